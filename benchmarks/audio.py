"""Decoding, resampling and measuring sound, and the memory that it takes.

python benchmarks/audio.py            about two minutes; needs soundfile beside tamis[audio]

Prints CPU seconds per hour of sound (one core), so lower is better, and the peak memory of a run by length of the recording.
"""

# ruff: noqa: T201

from __future__ import annotations

import io
import resource
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import soundfile
import soxr

from tamis.audio.decode import recordings, waveforms
from tamis.audio.files import encoded, read_blocks
from tamis.audio.signal import signals
from tamis.batch import Batch

SECONDS = 120


def speech_like(rate: int, channels: int) -> np.ndarray:
    """Filtered noise with pauses: float32[channels, samples]."""
    count = SECONDS * rate
    noise = np.convolve(np.random.default_rng(0).standard_normal(count), np.ones(8) / 8, "same")
    loud = 0.5 + 0.5 * np.sin(2 * np.pi * 0.7 * np.arange(count) / rate)
    return np.stack([noise * loud * 0.2] * channels).astype(np.float32)


def cost(work: Callable[[], object]) -> float:
    """CPU seconds per hour of sound: the best of three."""
    found = []
    for _ in range(3):
        before = time.process_time()
        work()
        found.append(time.process_time() - before)
    return min(found) * 3600 / SECONDS


def batch_of(data: bytes) -> Batch:
    return Batch.from_rows([{"audio": {"bytes": data, "path": "a"}}])


def decoding() -> None:
    print("decode                          PyAV   soundfile   (CPU s per hour of sound)")
    for kind, rate, channels in [
        ("wav", 16_000, 1), ("flac", 16_000, 1), ("flac", 44_100, 2), ("mp3", 44_100, 2), ("opus", 48_000, 1),
    ]:  # fmt: skip
        data = encoded(speech_like(rate, channels), rate, kind)
        ours = cost(lambda data=data: [None for _ in read_blocks(io.BytesIO(data))])
        theirs = cost(lambda data=data: soundfile.read(io.BytesIO(data), dtype="float32"))
        print(f"{kind:5} {rate:6} Hz x {channels}       {ours:10.2f} {theirs:10.2f}")


def resampling() -> None:
    print("\nresample to 16 kHz           CPU s per hour   error of a sine at 1 kHz   a sine at 12 kHz becomes")
    rate = 44_100
    count = 10 * rate
    times = np.arange(count) / rate
    for name, convert in (("soxr HQ", _by_soxr), ("soxr VHQ", _by_soxr_vhq), ("PyAV (swr)", _by_swr)):
        wave = speech_like(rate, 1)[0]
        spent = cost(lambda wave=wave, convert=convert: convert(wave, rate))
        made = convert(np.sin(2 * np.pi * 1000 * times).astype(np.float32), rate)[8_000:-8_000]
        at = np.arange(8_000, 8_000 + len(made)) / 16_000
        basis = np.stack([np.sin(2 * np.pi * 1000 * at), np.cos(2 * np.pi * 1000 * at)])
        left = made - basis.T @ np.linalg.lstsq(basis.T, made, rcond=None)[0]
        alias = convert(np.sin(2 * np.pi * 12_000 * times).astype(np.float32), rate)[8_000:-8_000]
        print(f"{name:14} {spent:20.2f} {_decibels(left):20.1f} dB {_decibels(alias):22.1f} dB")


def _decibels(wave: np.ndarray) -> float:
    return float(10 * np.log10(np.mean(np.square(wave, dtype=np.float64)) + 1e-20) + 3.01)


def _by_soxr(wave: np.ndarray, rate: int) -> np.ndarray:
    return soxr.resample(wave, rate, 16_000, quality="HQ")


def _by_soxr_vhq(wave: np.ndarray, rate: int) -> np.ndarray:
    return soxr.resample(wave, rate, 16_000, quality="VHQ")


def _by_swr(wave: np.ndarray, rate: int) -> np.ndarray:
    frame = av.AudioFrame.from_ndarray(wave[None], "flt", "mono")
    frame.sample_rate = rate
    resampler = av.AudioResampler("flt", "mono", 16_000)
    return np.concatenate([part.to_ndarray()[0] for part in [*resampler.resample(frame), *resampler.resample(None)]])


def measuring() -> None:
    data = encoded(speech_like(16_000, 1), 16_000, "flac")
    signals(batch_of(data), "audio")  # compiles
    print("\n16 kHz FLAC                  CPU s per hour")
    print(f"decode to a waveform {cost(lambda: waveforms(batch_of(data), 'audio')[0]):16.2f}")
    print(
        f"decode and measure   {cost(lambda: signals(batch_of(data), 'audio')):16.2f}   loudness, levels, clipping, bandwidth"
    )

    def both() -> None:
        batch = batch_of(data)
        signals(batch, "audio")
        recordings(batch, "audio")[0].waveform()

    print(f"both, one decode     {cost(both):16.2f}")


RUN = """
import resource, sys
from tamis import AudioReader, ParquetWriter, Pipeline
from tamis.audio import AudioSilence
report = Pipeline(AudioReader(sys.argv[1]), AudioSilence(), ParquetWriter(sys.argv[2])).run(memory="600MB", workers=1)
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(f"{usage.ru_maxrss / 1000:.0f} MB, {usage.ru_utime:.1f} CPU s, {report.dropped}")
"""


def memory() -> None:
    print('\nmemory of a worker, silence at 16 kHz, memory="600MB"')
    for name, seconds in (("1 minute", 60), ("1 hour", 3600), ("10 hours", 36_000)):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "a.wav")
            size = seconds * 16_000 * 2
            head = (b"RIFF", 36 + size, b"WAVEfmt ", 16, 1, 1, 16_000, 32_000, 2, 16, b"data", size)
            with path.open("wb") as file:
                file.write(struct.pack("<4sI8sIHHIIHH4sI", *head))
                file.truncate(44 + size)
            done = subprocess.run(
                [sys.executable, "-c", RUN, str(path), f"{folder}/out"], capture_output=True, text=True
            )
            print(f"{name:10} {done.stdout.strip() or done.stderr[-300:]}")


if __name__ == "__main__":
    decoding()
    resampling()
    measuring()
    memory()
    print(f"peak of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000:.0f} MB")
