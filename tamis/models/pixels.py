"""What a network does with a picture before it looks at it: resize, crop, scale and normalize.

    picture uint8[any, any, 3] --resized--> uint8[height, width, 3] --normalized, on the device--> float32[3, height, width]

The steps are those of `preprocessor_config.json`, and their results equal those of the image processors of transformers that
use Pillow. The two parts are separate because the first runs in CPU workers also if the network runs on a GPU, and its result
is a quarter of the size of the second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tamis.errors import require
from tamis.models.files import ModelError, ModelFiles

NEAREST, LANCZOS, BILINEAR, BICUBIC, BOX, HAMMING = range(6)
"""Filters, by the numbers that Pillow and preprocessor_config.json use."""

Resize = Literal["none", "exact", "shortest"]

KNOWN = ("CLIP", "Siglip", "ViT", "Bit", "ConvNext", "DeiT", "Blip")
"""Image processors of transformers that do these steps only; most architectures use one of them."""

CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5)

_PROCESSOR_DEFAULTS: dict[str, dict[str, Any]] = {
    "CLIP": {
        "size": {"shortest_edge": 224}, "crop_size": 224, "do_center_crop": True, "resample": BICUBIC,
        "image_mean": CLIP_MEAN, "image_std": CLIP_STD,
    },
    "Bit": {
        "size": {"shortest_edge": 224}, "crop_size": 224, "do_center_crop": True, "resample": BICUBIC,
        "image_mean": CLIP_MEAN, "image_std": CLIP_STD,
    },
    "Siglip": {"size": {"height": 224, "width": 224}, "resample": BICUBIC, "image_mean": HALF, "image_std": HALF},
    "ViT": {"size": {"height": 224, "width": 224}, "resample": BILINEAR, "image_mean": HALF, "image_std": HALF},
    "DeiT": {
        "size": {"height": 256, "width": 256}, "crop_size": 224, "do_center_crop": True, "resample": BICUBIC,
        "image_mean": HALF, "image_std": HALF,
    },
    "Blip": {
        "size": {"height": 384, "width": 384}, "resample": BICUBIC, "image_mean": CLIP_MEAN, "image_std": CLIP_STD,
    },
    "ConvNext": {"size": {"shortest_edge": 384}, "resample": BICUBIC, "image_mean": HALF, "image_std": HALF},
}  # fmt: skip
"""What the processors do if their file does not say."""


@dataclass(frozen=True)
class Preprocessing:
    """The input of a network, and how pictures become it."""

    height: int
    width: int
    resize: Resize = "exact"
    resize_to: tuple[int, int] = (0, 0)
    """Height and width, or twice the length of the shorter side."""
    resample: int = BICUBIC
    scale: float = 1 / 255
    mean: tuple[float, ...] = HALF
    std: tuple[float, ...] = HALF
    shift: float = 0.0
    """Added after scaling, before the mean is subtracted."""
    frames: int | None = None
    """How many pictures a clip has, for a network on clips."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of what the network looks at: a picture, or the pictures of a clip."""
        picture = (self.height, self.width, 3)
        return picture if self.frames is None else (self.frames, *picture)

    @property
    def side(self) -> int:
        """A picture whose shorter side has this many pixels is large enough."""
        return max(self.height, self.width, *self.resize_to)

    @property
    def num_bytes(self) -> int:
        """The size of a resized picture or clip."""
        return math.prod(self.shape)

    def resized(self, picture: np.ndarray) -> np.ndarray:
        """uint8[height, width, 3] of a picture uint8[any, any, 3]."""
        height, width = picture.shape[:2]
        size = self.resize_to if self.resize != "none" else (height, width)
        if self.resize == "shortest":
            short = self.resize_to[0]
            long = int(short * max(height, width) / min(height, width))
            size = (long, short) if width <= height else (short, long)
        if (height, width) != size:
            picture = resize(picture, size, self.resample)
        return _center(picture, self.height, self.width)

    def factors(self) -> tuple[np.ndarray, np.ndarray]:
        """(a, b) of a * pixels + b, float32[3], which scales and normalizes."""
        mean, std = np.array(self.mean), np.array(self.std)
        return (self.scale / std).astype(np.float32), ((self.shift - mean) / std).astype(np.float32)


def resize(picture: np.ndarray, size: tuple[int, int], resample: int = BILINEAR) -> np.ndarray:
    """A picture with another height and width, by Pillow, which averages where it shrinks."""
    images = require("PIL.Image", extra="image", purpose="resizing pictures")
    return np.asarray(images.fromarray(picture).resize((size[1], size[0]), resample=resample))


def _center(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    """The middle of a picture, with black borders where it is too small."""
    if picture.shape[:2] == (height, width):
        return picture
    top, left = (picture.shape[0] - height) // 2, (picture.shape[1] - width) // 2
    inside = picture[max(0, top) : max(0, top) + height, max(0, left) : max(0, left) + width]
    if inside.shape[:2] == (height, width):
        return inside
    out = np.zeros((height, width, 3), np.uint8)
    rows, columns = inside.shape[:2]
    above, before = max(0, -top), max(0, -left)  # rounded up, as transformers does
    out[above : above + rows, before : before + columns] = inside
    return out


def preprocessing_of(found: ModelFiles) -> Preprocessing:
    """What the configuration of a model folder says, with the defaults of its image processor."""
    return of_processor(settings_of(found), found)


def settings_of(found: ModelFiles) -> dict[str, Any]:
    """What the files of a folder say about its image processor."""
    settings = found.json("preprocessor_config.json") or found.json("processor_config.json").get("image_processor", {})
    return settings if isinstance(settings, dict) else {}


def of_processor(settings: Mapping[str, Any], found: ModelFiles) -> Preprocessing:
    """The steps of an image processor with these settings, and its defaults."""
    name = str(settings.get("image_processor_type") or settings.get("feature_extractor_type") or "")
    kind = name.removesuffix("Fast").removesuffix("Pil").removesuffix("ImageProcessor").removesuffix("FeatureExtractor")
    kind = {"CLIP": "CLIP", "SigLIP": "Siglip", "Dinov2": "Bit"}.get(kind, kind)
    if name and kind not in KNOWN:
        raise ModelError(
            f"{found.folder} prepares pictures with {name}, which is not supported",
            hint=f"supported are the image processors {', '.join(KNOWN)} of transformers",
        )
    settings = {**_PROCESSOR_DEFAULTS.get(kind, _PROCESSOR_DEFAULTS["ViT"]), **settings}
    try:
        return _of_settings(settings, kind)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"the preprocessor_config.json of {found.folder} cannot be used: {error!r}", hint="download the model again"
        ) from error


def _of_settings(settings: Mapping[str, Any], kind: str) -> Preprocessing:
    shortest, exact = _size(settings["size"], kind in ("CLIP", "Bit", "ConvNext"))
    mode: Resize = "none" if not settings.get("do_resize", True) else "shortest" if shortest else "exact"
    crop: tuple[int, int] | None = None
    if settings.get("do_center_crop", False):
        crop = _size(settings["crop_size"], False)[1]
    if kind == "ConvNext" and shortest:
        # Below 384 pixels a margin is cut off; larger inputs are stretched to a square.
        crop = (shortest, shortest)
        mode, exact = ("shortest", exact) if shortest < 384 else ("exact", crop)
        shortest = int(shortest / float(settings.get("crop_pct") or 224 / 256))
    to = (shortest, shortest) if mode == "shortest" else exact
    height, width = crop or exact
    if mode == "shortest" and crop is None:
        raise ValueError("pictures that are not cropped differ in size, which is not supported")
    scaled, normalized = settings.get("do_rescale", True), settings.get("do_normalize", True)
    return Preprocessing(
        height,
        width,
        mode,
        to if mode != "none" else (0, 0),
        int(settings["resample"]) if settings.get("resample") is not None else BILINEAR,
        float(settings.get("rescale_factor") or 1 / 255) if scaled else 1.0,
        _three(settings["image_mean"]) if normalized else (0.0, 0.0, 0.0),
        _three(settings["image_std"]) if normalized else (1.0, 1.0, 1.0),
    )


def _size(value: Any, shortest: bool) -> tuple[int, tuple[int, int]]:
    """(length of the shorter side or 0, height and width) of one of the forms that a size has."""
    if isinstance(value, Mapping):
        if value.get("shortest_edge"):
            side = int(value["shortest_edge"])
            return side, (side, side)
        return 0, (int(value["height"]), int(value["width"]))
    side = int(value)
    return (side if shortest else 0), (side, side)


def _three(values: Any) -> tuple[float, ...]:
    found = tuple(float(value) for value in values)
    if len(found) != 3:
        raise ValueError(f"{len(found)} values for three colours")
    return found
