"""Sounds for tests: made in a moment, the same every time."""

from __future__ import annotations

import io
import wave
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import soundfile

from tamis.audio.files import encoded
from tamis.batch import Batch, Origin
from tamis.sources.jsonmedia import MEDIA


def tone(seconds: float, rate: int = 16_000, channels: int = 1, hertz: float = 220.0, level: float = 0.3) -> np.ndarray:
    """A warbling tone with a little noise: float32[channels, samples]. No two parts of it are alike."""
    time = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(int(hertz)).standard_normal(len(time))
    wave = level * np.sin(2 * np.pi * hertz * time + 3 * np.sin(time)) + 0.05 * level * noise
    return np.stack([wave * (1 - 0.1 * channel) for channel in range(channels)]).astype(np.float32)


def silence(seconds: float, rate: int = 16_000, channels: int = 1) -> np.ndarray:
    return np.zeros((channels, round(seconds * rate)), np.float32)


def sound(samples: np.ndarray, rate: int = 16_000, format_: str = "wav", **options) -> bytes:
    """A file of samples. Formats beyond those that Tamis writes: m4a, aac, mp4 (with pictures), wav8, "container/codec" of
    FFmpeg, and "format:subtype" of libsndfile."""
    if format_ == "wav8":
        return _eight_bits(samples, rate)
    if ":" in format_:
        return _by_libsndfile(samples, rate, *format_.split(":"))
    if "/" in format_:
        return _muxed(samples, rate, *format_.split("/"))
    if format_ in ("m4a", "aac", "mp4"):
        return _aac(samples, rate, format_)
    return encoded(samples, rate, format_, **options)


def _muxed(samples: np.ndarray, rate: int, container: str, codec: str) -> bytes:
    target = io.BytesIO()
    with av.open(target, "w", format=container) as output:
        stream: Any = output.add_stream(codec, rate=rate, layout={1: "mono", 2: "stereo"}[len(samples)])
        frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout=stream.layout.name)
        frame.sample_rate, frame.pts = rate, 0
        output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return target.getvalue()


def _by_libsndfile(samples: np.ndarray, rate: int, format_: str, subtype: str) -> bytes:
    target = io.BytesIO()
    soundfile.write(target, samples.T, rate, format=format_, subtype=subtype)
    return target.getvalue()


def _eight_bits(samples: np.ndarray, rate: int) -> bytes:
    target = io.BytesIO()
    with wave.open(target, "wb") as file:
        file.setparams((len(samples), 1, rate, 0, "NONE", ""))
        file.writeframes(np.rint(samples.T * 127 + 128).clip(0, 255).astype(np.uint8).tobytes())
    return target.getvalue()


def _aac(samples: np.ndarray, rate: int, format_: str) -> bytes:
    target = io.BytesIO()
    container = av.open(target, "w", format={"m4a": "mp4", "mp4": "mp4", "aac": "adts"}[format_])
    layout = {1: "mono", 2: "stereo"}[len(samples)]
    stream = container.add_stream("aac", rate=rate, layout=layout)
    pictures = container.add_stream("mpeg4", rate=5) if format_ == "mp4" else None
    if pictures is not None:
        pictures.width, pictures.height, pictures.pix_fmt = 32, 32, "yuv420p"
        for _ in range(round(5 * samples.shape[1] / rate)):
            picture = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
            for packet in pictures.encode(picture):
                container.mux(packet)
        for packet in pictures.encode(None):
            container.mux(packet)
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples), "fltp", layout)
    frame.sample_rate, frame.pts = rate, 0
    for packet in [*stream.encode(frame), *stream.encode(None)]:
        container.mux(packet)
    container.close()
    return target.getvalue()


def batch_of(*files: bytes | None) -> Batch:
    return Batch.from_rows([{"audio": None if data is None else {"bytes": data, "path": "a"}} for data in files])


def batch_in(folder: Path, *paths: str) -> Batch:
    """Rows of a manifest in a folder, which refer to files there."""
    rows = pa.table({"audio": pa.array([{"bytes": None, "path": path} for path in paths], MEDIA)})
    count = len(paths)
    return Batch(rows, Origin((str(folder / "manifest.jsonl"),), np.zeros(count, np.int32), np.arange(count)))
