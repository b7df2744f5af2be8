"""Deduplication of sounds and videos by sequences of hashes: recall, precision, and speed.

    python benchmarks/sequences.py sounds FOLDER      recall by format, noise and cutting, for two fingerprints; and precision
    python benchmarks/sequences.py videos FOLDER      recall by format, size and cutting, with offsets
    python benchmarks/sequences.py speed FOLDER       fingerprints and search, compared with brute force
    python benchmarks/sequences.py memory             memory for one minute and for ten hours of sound

FOLDER is searched for sounds or videos. Results are in sequences.md.
"""

# ruff: noqa: T201
from __future__ import annotations

import io
import random
import resource
import subprocess
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path

import numpy as np

from tamis import ParquetWriter, Pipeline, Rows
from tamis.audio.decode import resampled, waveforms
from tamis.audio.files import encoded
from tamis.batch import Batch
from tamis.dedup import AudioDedup, Groups, VideoDedup
from tamis.dedup.aligned import Agreement
from tamis.formats import FORMATS
from tamis.kernels.sequences import agreement, count_present
from tamis.kernels.sound_prints import RATE, sound_print

WIDE = 16_000


def files_in(folder: str, kind: str) -> list[Path]:
    return sorted(path for path in Path(folder).rglob("*") if path.suffix.lower() in FORMATS[kind].suffixes)


def samples_of(data: bytes, rate: int = WIDE) -> np.ndarray:
    (wave,) = waveforms(Batch.from_rows([{"audio": {"bytes": data, "path": None}}]), "audio", rate)
    return wave if wave is not None else np.empty(0, np.float32)


def print_of(samples: np.ndarray) -> np.ndarray:
    return sound_print([resampled(samples, WIDE, RATE)])


def found_by(step, rows) -> tuple[dict[str, dict], dict]:
    """({dropped id: pair}, summary)"""
    with tempfile.TemporaryDirectory() as folder:
        Pipeline(Rows(rows), step, ParquetWriter(folder)).run(executor="inline")
        groups = Groups.load(folder)
        return {row["id"]: row for row in groups.table().to_pylist()}, groups.summary


# -------------------------------------------------------------------------------------------------------------- sounds


def copies_of(samples: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The same sound, encoded again, changed, or cut."""

    def again(wave: np.ndarray, kind: str, bitrate: int) -> np.ndarray:
        return samples_of(encoded(wave[None], WIDE, kind, bitrate=bitrate))

    def cut(seconds: float) -> np.ndarray:
        length = min(round(seconds * WIDE), len(samples))
        start = int(rng.integers(0, len(samples) - length + 1))
        return samples[start : start + length]

    level = float(np.sqrt(np.mean(samples.astype(np.float64) ** 2)))
    noise = rng.normal(0, 0.1 * level, len(samples)).astype(np.float32)
    return {
        "MP3 64 kbit/s": again(samples, "mp3", 64_000),
        "MP3 32 kbit/s": again(samples, "mp3", 32_000),
        "Opus 24 kbit/s": again(samples, "opus", 24_000),
        "Opus 12 kbit/s": again(samples, "opus", 12_000),
        "gain -12 dB": samples * np.float32(0.25),
        "noise at 20 dB": samples + noise,
        "excerpt of 2 s": cut(2),
        "excerpt of half, MP3 64 kbit/s": again(cut(len(samples) / WIDE / 2), "mp3", 64_000),
    }


def chosen_sounds(folder: str, count: int) -> list[tuple[str, np.ndarray]]:
    """Clips of 4 to 30 seconds that are not silent, at random."""
    files = files_in(folder, "audio")
    random.Random(0).shuffle(files)
    found = []
    for file in files:
        samples = samples_of(file.read_bytes())[: 30 * WIDE]
        if len(samples) >= 4 * WIDE and np.abs(samples).max() > 0.01:
            found.append((str(file), samples))
            if len(found) == count:
                break
    return found


def landmarks(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(hashes, times) of pairs of peaks of the spectrogram (Wang 2003), five pairs for each peak; for comparison."""
    from scipy.ndimage import maximum_filter

    wave = resampled(samples, WIDE, RATE)
    count = (len(wave) - 512) // 256 + 1
    frames = np.lib.stride_tricks.sliding_window_view(wave, 512)[::256][:count]
    level = np.log(np.abs(np.fft.rfft(frames * np.hanning(512), axis=1)) ** 2 + 1e-9)
    peaks = (level == maximum_filter(level, size=(7, 15))) & (level > level.max() - 10)
    times, bins = np.nonzero(peaks)
    hashes, places = [], []
    for first in range(len(times)):
        later = np.flatnonzero((times > times[first]) & (times < times[first] + 64) & (abs(bins - bins[first]) < 64))[
            :5
        ]
        for second in later:
            hashes.append(bins[first] << 14 | (bins[second] - bins[first] + 64) << 6 | (times[second] - times[first]))
            places.append(times[first])
    return np.array(hashes, np.int64), np.array(places, np.int64)


def shared_landmarks(one, two) -> int:
    """The largest number of equal hashes at one offset."""
    by_hash: dict[int, list[int]] = {}
    for key, place in zip(*one, strict=True):
        by_hash.setdefault(int(key), []).append(int(place))
    offsets = [before - int(place) for key, place in zip(*two, strict=True) for before in by_hash.get(int(key), ())]
    return int(np.unique(offsets, return_counts=True)[1].max()) if offsets else 0


def sounds(folder: str) -> None:
    rng = np.random.default_rng(1)
    clips = chosen_sounds(folder, 120)
    copies = [copies_of(samples, rng) for _, samples in clips]
    kinds = list(copies[0])
    print(f"{len(clips)} clips, {sum(len(samples) for _, samples in clips) / WIDE / 60:.1f} minutes")
    prints = [print_of(samples) for _, samples in clips]
    marks = [landmarks(samples) for _, samples in clips]
    others = max(
        shared_landmarks(marks[one], marks[two]) for one in range(len(marks)) for two in (one - 1, one - 2, one - 7)
    )
    print(f"landmarks: most equal hashes at one offset of two different clips: {others}")
    print(f"{'copies':34}{'AudioDedup':>12}{'landmarks >= 5':>16}{'>= 15':>8}")
    for kind in kinds:
        rows = []
        for number, copy in enumerate(copies):  # a pair at a time: copies of other clips do not count
            rows.append({"id": f"{number}", "prints": prints[number].view(np.int64).tolist()})
            rows.append({"id": f"{number} copy", "prints": print_of(copy[kind]).view(np.int64).tolist()})
        hits = 0
        for number in range(len(clips)):
            pair, _ = found_by(AudioDedup(hash_column="prints", keep="first"), rows[2 * number : 2 * number + 2])
            hits += bool(pair)
        shared = np.array(
            [shared_landmarks(marks[number], landmarks(copy[kind])) for number, copy in enumerate(copies)]
        )
        scores = [hits / len(clips), np.mean(shared >= 5), np.mean(shared >= 15)]
        print(f"{kind:34}{scores[0]:>12.1%}{scores[1]:>16.1%}{scores[2]:>8.1%}", flush=True)
    precision(folder)


def precision(folder: str) -> None:
    """The duplicates among all sounds of the folder, which are said to be different; to be checked by ear and by name."""
    rows = []
    for file in files_in(folder, "audio"):
        words = sound_print([samples_of(file.read_bytes(), RATE)])
        rows.append({"id": str(file.relative_to(folder)), "prints": words.view(np.int64).tolist()})
    pairs, summary = found_by(AudioDedup(hash_column="prints"), rows)
    print(f"\nall {len(rows)} files, {summary['sequences']} long enough: {len(pairs)} dropped")
    for name, pair in sorted(pairs.items(), key=lambda each: -each[1]["error"]):
        share = f"{pair['similarity']:.2f} agrees, {pair['error']:.3f} of bits differ, at {pair['offset']:.2f} s"
        print(f"  {Path(name).name:32} in {Path(pair['kept_id']).name:32} {share}")


# -------------------------------------------------------------------------------------------------------------- videos


def videos(folder: str) -> None:
    import av

    from tamis.video.hashing import VideoHashes

    rng = np.random.default_rng(0)

    def encode(frames, codec: str, scale: float = 1.0, every: int = 1, **options: str) -> bytes:
        target, base = io.BytesIO(), Fraction(1, 1000)
        with av.open(target, "w", format="mp4") as file:
            stream = file.add_stream(codec, rate=25, options=options)
            stream.width, stream.height = (
                int(side * scale) // 2 * 2 for side in (frames[0][1].width, frames[0][1].height)
            )
            stream.pix_fmt = "yuv420p"
            stream.codec_context.time_base = base
            last = -1
            for at, frame in frames[::every]:
                new = frame.reformat(width=stream.width, height=stream.height, format="yuv420p")
                last = max(last + 1, round((at - frames[0][0]) * 1000))
                new.pts, new.time_base = last, base
                file.mux(stream.encode(new))
            file.mux(stream.encode(None))
        return target.getvalue()

    rows, cuts = [], {}
    for file in files_in(folder, "video"):
        frames = []
        try:
            with av.open(str(file)) as container:
                for frame in container.decode(container.streams.video[0]):
                    if (frame.time or 0) > 30 or len(frames) > 1000:
                        break
                    ratio = min(1.0, 480 / frame.width)
                    small = frame.reformat(
                        width=int(frame.width * ratio) // 2 * 2, height=int(frame.height * ratio) // 2 * 2
                    )
                    frames.append((frame.time or 0.0, small))
        except av.error.FFmpegError:
            continue
        if len(frames) < 50 or frames[-1][0] < 3:
            continue
        length = frames[-1][0]
        part = max(3.0, min(8.0, 0.4 * length))
        start = float(rng.uniform(0, length - part))
        sub = [each for each in frames if start <= each[0] < start + part]
        name = str(file.relative_to(folder))
        cuts[name] = sub[0][0] - frames[0][0]
        x264 = {"preset": "ultrafast"}
        made = {
            "original": encode(frames, "libx264", crf="18", **x264),
            "H.264, quality 35": encode(frames, "libx264", crf="35", **x264),
            "MPEG-4, 300 kbit/s": encode(frames, "mpeg4", b="300k"),
            "half the size": encode(frames, "libx264", 0.5, crf="28", **x264),
            "part": encode(sub, "libx264", crf="28", **x264),
            "part, half the size and rate": encode(sub, "libx264", 0.5, 2, crf="32", **x264),
        }
        rows += [{"id": f"{name} | {kind}", "video": {"bytes": data, "path": None}} for kind, data in made.items()]
        print(f"{name}: {length:.1f} s, {len(frames)} frames", flush=True)
    begin = time.process_time()
    table = Pipeline(Rows(rows), VideoHashes()).collect(executor="inline")
    seconds = time.process_time() - begin
    hashes = [
        {"id": row["id"], "hashes": row["frame_hashes"]} for row in table.select(["id", "frame_hashes"]).to_pylist()
    ]
    hours = sum(len(row["hashes"]) for row in hashes) * 0.1 / 3600
    print(f"{len(cuts)} videos, {len(rows)} files, {hours:.2f} hours decoded and hashed in {seconds:.1f} CPU seconds")
    kinds = list(made)[1:]
    hits, errors = dict.fromkeys(kinds, 0), []
    for name, offset in cuts.items():
        own = {row["id"].split(" | ")[1]: row for row in hashes if row["id"].startswith(f"{name} |")}
        for kind in kinds:
            pair, _ = found_by(VideoDedup(hash_column="hashes", keep="first"), [own["original"], own[kind]])
            hits[kind] += bool(pair)
            errors += [abs(row["offset"] - offset) for row in pair.values() if "part" in kind]
    for kind in kinds:
        print(f"{kind:34}{hits[kind] / len(cuts):>8.1%}")
    print(f"offsets of parts: median error {np.median(errors):.2f} s, largest {max(errors):.2f} s")
    pairs, summary = found_by(VideoDedup(hash_column="hashes"), hashes)
    other = {(name.split(" | ")[0], pair["kept_id"].split(" | ")[0], pair["offset"]) for name, pair in pairs.items()}
    print(f"all files together: {summary['dropped']} of {summary['rows']} dropped; of another video:")
    for name, kept, offset in sorted(each for each in other if each[0] != each[1]):
        print(f"  {name} in {kept} at {offset:.1f} s")
    real = [file for file in files_in(folder, "video") if "tailor" in file.name]
    if real:
        sub = [{"id": file.name, "video": {"bytes": file.read_bytes(), "path": None}} for file in real]
        for name, pair in found_by(VideoDedup(), sub)[0].items():
            print(
                f"as published: {name} in {pair['kept_id']} at {pair['offset']:.1f} s, {pair['similarity']:.2f} agrees"
            )


# --------------------------------------------------------------------------------------------------------------- speed


def brute_force(sequences: list[np.ndarray], step: AudioDedup) -> set[tuple[int, int]]:
    """All pairs that agree at any offset, each compared at every offset."""
    comparing, out, found = step.comparing, np.empty(4), set()
    for one in range(len(sequences)):
        for two in range(one + 1, len(sequences)):
            left, right = sequences[one], sequences[two]
            shorter = min(count_present(left), count_present(right))
            for offset in range(1 - len(right), len(left)):
                overlap = min(len(right), len(left) - offset) - max(0, -offset)
                if overlap >= step.threshold * shorter:
                    agreement(left, right, offset, comparing.bits, comparing.window, comparing.max_errors, out)
                    if out[0] >= step.threshold * shorter:
                        found.add((one, two))
                        break
    return found


def speed(folder: str) -> None:
    rng = np.random.default_rng(1)
    clips = chosen_sounds(folder, 100)
    waves = [resampled(samples, WIDE, RATE) for _, samples in clips]
    print_of(clips[0][1])
    begin = time.process_time()
    prints = [sound_print([wave]) for wave in waves for _ in range(3)][::3]
    seconds = time.process_time() - begin
    hours = 3 * sum(map(len, waves)) / RATE / 3600
    print(f"fingerprints: {hours / seconds:.2f} hours of sound per CPU second ({hours:.2f} h in {seconds:.2f} s)")
    sequences = []
    for number, (_, samples) in enumerate(clips):
        sequences.append(prints[number])
        if number % 2:
            length = len(samples) // 2
            start = int(rng.integers(0, len(samples) - length))
            sequences.append(
                print_of(samples_of(encoded(samples[None, start : start + length], WIDE, "mp3", bitrate=64_000)))
            )
    step = AudioDedup(hash_column="prints", keep="first")
    sequences = [words for words in sequences if count_present(words) >= step.min_hashes]
    rows = [{"id": str(number), "prints": words.view(np.int64).tolist()} for number, words in enumerate(sequences)]
    Agreement.of(sequences[0], sequences[0], 0, 0, len(sequences[0]), step.comparing)
    found_by(step, rows[:4])
    begin = time.process_time()
    pairs, summary = found_by(step, rows)
    middle = time.process_time()
    expected = brute_force(sequences, step)
    end = time.process_time()
    mine = {(int(pair["kept_id"]), int(name)) for name, pair in pairs.items()}
    dropped = {two for _, two in expected}
    print(
        f"search of {len(rows)} sequences: {middle - begin:.2f} CPU seconds, {summary['compared']} pairs compared; "
        f"brute force: {end - middle:.2f} CPU seconds, {(end - middle) / (middle - begin):.0f} times as long"
    )
    print(
        f"rows that repeat another: brute force {len(dropped)}, search {len(pairs)}; "
        f"pairs that brute force does not find: {len(mine - expected)}"
    )
    copies = 20
    many = [
        {"id": f"{n} {k}", "prints": np.roll(w, 7 * k).view(np.int64).tolist()}
        for n, w in enumerate(prints)
        for k in range(copies)
    ]
    begin = time.process_time()
    _, summary = found_by(step, many)
    print(
        f"search of {len(many)} sequences ({copies} copies each, rotated): {time.process_time() - begin:.2f} CPU seconds, "
        f"{summary['compared']} pairs compared"
    )


def memory() -> None:
    program = (
        "import numpy as np, resource, sys, time; from tamis.kernels.sound_prints import sound_print\n"
        "seconds = int(sys.argv[1]); rng = np.random.default_rng(0)\n"
        "begin = time.process_time()\n"
        "words = sound_print(rng.standard_normal(8000 * 30, np.float32) for _ in range(seconds // 30))\n"
        "print(len(words), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, f'{time.process_time() - begin:.1f}')"
    )
    for seconds in (60, 3600, 36_000):
        done = subprocess.run([sys.executable, "-c", program, str(seconds)], check=True, capture_output=True, text=True)
        count, peak, took = done.stdout.split()
        print(f"{seconds:>6} s of sound: {count:>9} hashes, {peak} MB at most, {took} CPU seconds")


if __name__ == "__main__":
    commands = {"sounds": sounds, "videos": videos, "speed": speed, "memory": memory}
    commands[sys.argv[1]](*sys.argv[2:])
    print(f"peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB")
