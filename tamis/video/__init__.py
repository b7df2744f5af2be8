"""Operators on videos. Names are imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tamis.curator_names import unknown_name

if TYPE_CHECKING:
    from tamis.video.appearance import VideoBars, VideoBlack, VideoFlashing, VideoFrozen, VideoMotion, VideoShake
    from tamis.video.caption import Caption
    from tamis.video.cut import VideoCut
    from tamis.video.filters import (
        VideoBitRate,
        VideoCodec,
        VideoDecodable,
        VideoDuration,
        VideoProbe,
        VideoRate,
        VideoSize,
        VideoSound,
    )
    from tamis.video.frames import FrameColumns, FrameFilter
    from tamis.video.hashing import VideoDigest, VideoHashes
    from tamis.video.previews import VideoPreview
    from tamis.video.split import FixedClips, Shots, TimedClips
    from tamis.video.transnet import TransNetShots

_MODULES = {
    "appearance": ("VideoBars", "VideoBlack", "VideoFlashing", "VideoFrozen", "VideoMotion", "VideoShake"),
    "caption": ("Caption",),
    "cut": ("VideoCut",),
    "filters": (
        "VideoBitRate", "VideoCodec", "VideoDecodable", "VideoDuration", "VideoProbe", "VideoRate", "VideoSize", "VideoSound",
    ),
    "hashing": ("VideoDigest", "VideoHashes"),
    "frames": ("FrameColumns", "FrameFilter"),
    "previews": ("VideoPreview",),
    "split": ("FixedClips", "Shots", "TimedClips"),
    "transnet": ("TransNetShots",),
}  # fmt: skip
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Caption",
    "FixedClips",
    "FrameColumns",
    "FrameFilter",
    "Shots",
    "TimedClips",
    "TransNetShots",
    "VideoBars",
    "VideoBitRate",
    "VideoBlack",
    "VideoCodec",
    "VideoCut",
    "VideoDecodable",
    "VideoDigest",
    "VideoDuration",
    "VideoFlashing",
    "VideoFrozen",
    "VideoHashes",
    "VideoMotion",
    "VideoPreview",
    "VideoProbe",
    "VideoRate",
    "VideoShake",
    "VideoSize",
    "VideoSound",
]

if not TYPE_CHECKING:  # a type checker would accept every misspelt name

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise unknown_name("tamis.video", name)
        return getattr(import_module(f"tamis.video.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
