"""Decoding on the video engine of an NVIDIA GPU (NVDEC), by PyAV, against the CPU: frames per second, CPU time, equal pixels.

    python benchmarks/video_nvdec.py [--frames 1500] [--size 1920x1080]

A clip of a moving pattern is encoded as H.264 first. Frames are brought to the host, since all measures of Tamis are computed
there, and about 64 x 64 pixels of the brightness of each are compared.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import av
import numpy as np
from av.codec.hwaccel import HWAccel

sys.path.insert(0, str(Path(__file__).parent.parent))

from tamis.kernels.frames import SIDE


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def encode(path: Path, frames: int, width: int, height: int) -> None:
    generator = np.random.default_rng(1)
    texture = generator.integers(0, 255, (height * 2, width * 2), dtype=np.uint8)
    texture = (texture // 8 + np.add.outer(np.arange(height * 2), np.arange(width * 2)) // 16 % 200).astype(np.uint8)
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=25, options={"preset": "veryfast", "crf": "23"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(frames):
            at = number * 3 % height
            picture = np.full((height * 3 // 2, width), 128, np.uint8)
            picture[:height] = texture[at : at + height, at : at + width]
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="yuv420p")))
        out.mux(stream.encode())


def decode(path: Path, acceleration: HWAccel | None, threads: int) -> tuple[float, float, int, list[int]]:
    """(seconds, CPU seconds, frames, a number per frame that depends on the sampled pixels)"""
    begin, cpu = time.perf_counter(), time.process_time()
    sums = []
    with av.open(str(path), hwaccel=acceleration) as container:
        stream = container.streams.video[0]
        if acceleration is None:
            stream.codec_context.thread_count = threads
            stream.codec_context.thread_type = "AUTO" if threads > 1 else "NONE"
        for frame in container.decode(stream):
            plane = frame.planes[0]
            luma = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[: frame.height, : frame.width]
            small = luma[:: max(1, frame.height // SIDE), :: max(1, frame.width // SIDE)]
            sums.append(hash(small.tobytes()))
        used = stream.codec_context.is_hwaccel
    if acceleration is not None and not used:
        say("the decoder fell back to the CPU")
    return time.perf_counter() - begin, time.process_time() - cpu, len(sums), sums


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--frames", type=int, default=1500)
    parser.add_argument("--size", default="1920x1080")
    given = parser.parse_args()
    width, height = map(int, given.size.split("x"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.mp4"
        encode(path, given.frames, width, height)
        say(f"{given.frames} frames of {given.size}, {path.stat().st_size / 1e6:.1f} MB")
        known = None
        for name, acceleration, threads in (
            ("CPU, one thread", None, 1),
            ("CPU, 8 threads", None, 8),
            ("NVDEC", HWAccel("cuda", allow_software_fallback=True), 1),
            ("NVDEC again", HWAccel("cuda", allow_software_fallback=True), 1),
        ):
            try:
                seconds, cpu, frames, sums = decode(path, acceleration, threads)
            except (RuntimeError, av.error.FFmpegError) as error:
                say(f"{name}: {error}")
                continue
            known = known or sums
            equal = "equal" if sums == known else "different"
            say(
                f"{name}: {frames / seconds:.0f} frames/s, {1000 * cpu / frames:.2f} ms of CPU per frame, pixels {equal}"
            )


if __name__ == "__main__":
    main()
