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
    from tamis.image.brisque import Brisque
    from tamis.image.classify import ImageClassifier, ImageTags, Watermark
    from tamis.image.edit import ImageConvert, ImageCrop, ImageDigest, ImageFrames, ImageResize
    from tamis.image.embed import ImageEmbed
    from tamis.image.faces import BlurFaces, Faces
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
    from tamis.image.hashing import ImageHash
    from tamis.image.metadata import ImageExif, ImageMetadataRemoval
    from tamis.image.neural import ImageTensor
    from tamis.image.nsfw import BodyParts, Nsfw
    from tamis.image.similarity import Aesthetics, ImageTextSimilarity
    from tamis.image.text_share import TextShare

_MODULES = {
    "appearance": (
        "ImageBlank", "ImageBlockiness", "ImageBlur", "ImageBrightness", "ImageColours", "ImageContrast", "ImageEntropy",
        "ImageSaturation",
    ),
    "brisque": ("Brisque",),
    "edit": ("ImageConvert", "ImageCrop", "ImageDigest", "ImageFrames", "ImageResize"),
    "filters": (
        "ImageAspect", "ImageBytes", "ImageDecodable", "ImageFormat", "ImageFrameCount", "ImageMode", "ImagePixels",
        "ImageSize", "JpegQuality",
    ),
    "hashing": ("ImageHash",),
    "metadata": ("ImageExif", "ImageMetadataRemoval"),
    "embed": ("ImageEmbed",),
    "classify": ("ImageClassifier", "ImageTags", "Watermark"),
    "nsfw": ("BodyParts", "Nsfw"),
    "faces": ("BlurFaces", "Faces"),
    "neural": ("ImageTensor",),
    "similarity": ("Aesthetics", "ImageTextSimilarity"),
    "text_share": ("TextShare",),
}  # fmt: skip
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Aesthetics",
    "BlurFaces",
    "BodyParts",
    "Brisque",
    "Faces",
    "ImageAspect",
    "ImageBlank",
    "ImageBlockiness",
    "ImageBlur",
    "ImageBrightness",
    "ImageBytes",
    "ImageClassifier",
    "ImageColours",
    "ImageContrast",
    "ImageConvert",
    "ImageCrop",
    "ImageDecodable",
    "ImageDigest",
    "ImageEmbed",
    "ImageEntropy",
    "ImageExif",
    "ImageFormat",
    "ImageFrameCount",
    "ImageFrames",
    "ImageHash",
    "ImageMetadataRemoval",
    "ImageMode",
    "ImagePixels",
    "ImageResize",
    "ImageSaturation",
    "ImageSize",
    "ImageTags",
    "ImageTensor",
    "ImageTextSimilarity",
    "JpegQuality",
    "Nsfw",
    "TextShare",
    "Watermark",
]

if not TYPE_CHECKING:  # a type checker would accept every misspelt name

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise unknown_name("tamis.image", name)
        return getattr(import_module(f"tamis.image.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
