"""Operators on images. Names are imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tamis.curator_names import unknown_name

if TYPE_CHECKING:
    from tamis.image.appearance import (
        ImageBlank,
        ImageBlockiness,
        ImageBlur,
        ImageBrightness,
        ImageColours,
        ImageContrast,
        ImageEntropy,
        ImageSaturation,
    )
    from tamis.image.edit import ImageConvert, ImageCrop, ImageDigest, ImageFrames, ImageResize
    from tamis.image.filters import (
        ImageAspect,
        ImageBytes,
        ImageDecodable,
        ImageFormat,
        ImageFrameCount,
        ImageMode,
        ImagePixels,
        ImageSize,
        JpegQuality,
    )
    from tamis.image.metadata import ImageExif, ImageMetadataRemoval

_MODULES = {
    "appearance": (
        "ImageBlank", "ImageBlockiness", "ImageBlur", "ImageBrightness", "ImageColours", "ImageContrast", "ImageEntropy",
        "ImageSaturation",
    ),
    "edit": ("ImageConvert", "ImageCrop", "ImageDigest", "ImageFrames", "ImageResize"),
    "filters": (
        "ImageAspect", "ImageBytes", "ImageDecodable", "ImageFormat", "ImageFrameCount", "ImageMode", "ImagePixels",
        "ImageSize", "JpegQuality",
    ),
    "metadata": ("ImageExif", "ImageMetadataRemoval"),
}  # fmt: skip
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "ImageAspect",
    "ImageBlank",
    "ImageBlockiness",
    "ImageBlur",
    "ImageBrightness",
    "ImageBytes",
    "ImageColours",
    "ImageContrast",
    "ImageConvert",
    "ImageCrop",
    "ImageDecodable",
    "ImageDigest",
    "ImageEntropy",
    "ImageExif",
    "ImageFormat",
    "ImageFrameCount",
    "ImageFrames",
    "ImageMetadataRemoval",
    "ImageMode",
    "ImagePixels",
    "ImageResize",
    "ImageSaturation",
    "ImageSize",
    "JpegQuality",
]

if not TYPE_CHECKING:  # a type checker would accept every misspelt name

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise unknown_name("tamis.image", name)
        return getattr(import_module(f"tamis.image.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
