"""Videos for tests, encoded with PyAV: scenes of moving patterns, black and frozen parts, and damaged files."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np

Draw = Callable[[int], np.ndarray]


def scene(seed: int, size: tuple[int, int] = (160, 120), speed: int = 2) -> Draw:
    """Smooth noise that moves to the left by `speed` pixels per frame."""
    width, height = size
    low = np.random.default_rng(seed).integers(0, 256, (height // 10 + 2, width // 10 + 2, 3), np.uint8)
    wide = np.kron(low, np.ones((10, 10, 1), np.uint8))[:height, :width]

    def draw(frame: int) -> np.ndarray:
        return np.roll(wide, -speed * frame, axis=1)

    return draw


def plain(level: int, size: tuple[int, int] = (160, 120)) -> Draw:
    picture = np.full((size[1], size[0], 3), level, np.uint8)
    return lambda frame: picture


def video(
    scenes: Sequence[tuple[Draw, int]],
    *,
    codec: str = "libx264",
    container: str = "mp4",
    rate: int = 10,
    sound: str | None = None,
    gop: int = 12,
    rotation: int = 0,
    pixel_format: str = "yuv420p",
    times: Sequence[int] | None = None,
    options: dict[str, str] | None = None,
    **muxer: str,
) -> bytes:
    """A file of scenes, each as a function that draws a frame, and its number of frames."""
    target = io.BytesIO()
    with av.open(target, "w", format=container, options=muxer) as output:
        stream: Any = output.add_stream(codec, rate=rate, options=options or {})
        first = scenes[0][0](0)
        stream.height, stream.width = first.shape[:2]
        stream.pix_fmt = pixel_format
        stream.codec_context.gop_size = gop
        stream.codec_context.thread_count = 1
        if rotation:
            stream.set_display_rotation(rotation)
        audio: Any = output.add_stream(sound, rate=48000) if sound else None
        number = 0
        for draw, count in scenes:
            for index in range(count):
                frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(draw(index)), format="rgb24")
                frame.pts = number if times is None else times[number]
                output.mux(stream.encode(frame))
                number += 1
        output.mux(stream.encode(None))
        if audio is not None:
            tone = np.sin(np.arange(48000 * number // rate) * 2 * np.pi * 440 / 48000).astype(np.float32)
            piece = av.AudioFrame.from_ndarray(tone[None], format="fltp", layout="mono")
            piece.rate, piece.pts = 48000, 0
            resampler = av.AudioResampler(audio.format, audio.layout, audio.rate, frame_size=audio.frame_size or 1024)
            for part in [*resampler.resample(piece), *resampler.resample(None)]:
                output.mux(audio.encode(part))
            output.mux(audio.encode(None))
    return target.getvalue()


def only_sound() -> bytes:
    target = io.BytesIO()
    with av.open(target, "w", format="mp4") as output:
        stream: Any = output.add_stream("aac", rate=48000)
        piece = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        piece.rate, piece.pts = 48000, 0
        output.mux(stream.encode(piece))
        output.mux(stream.encode(None))
    return target.getvalue()


def written(folder: Path, **files: bytes) -> Path:
    for name, data in files.items():
        (folder / name.replace("_", ".")).write_bytes(data)
    return folder
