"""Image files made for tests, and the real ones of Pillow's own tests."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import numpy as np
from PIL import Image

from tamis.batch import Batch


def photo(width: int, height: int, seed: int = 0) -> np.ndarray:
    """Pixels with large smooth areas, edges and some noise."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (height // 16 + 2, width // 16 + 2, 3), np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    return (smooth + rng.integers(-6, 7, (height, width, 1))).clip(0, 255).astype(np.uint8)


def saved(pixels: np.ndarray | Image.Image, format_: str = "PNG", **options: Any) -> bytes:
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    target = io.BytesIO()
    image.save(target, format_, **options)
    return target.getvalue()


def row(file: bytes | None, path: str | None = "a") -> dict[str, Any]:
    return {"image": {"bytes": file, "path": path if file is not None else None}}


def batch_of(*files: bytes | None) -> Batch:
    return Batch.from_rows([row(file) for file in files])


def opened(file: bytes) -> Image.Image:
    return Image.open(io.BytesIO(file))


def pixels_of(file: bytes) -> np.ndarray:
    return np.asarray(opened(file).convert("RGB"))


def animation(frames: Iterable[np.ndarray], format_: str = "GIF", **options: Any) -> bytes:
    first, *others = [Image.fromarray(each) for each in frames]
    return saved(first, format_, save_all=True, append_images=others, **options)
