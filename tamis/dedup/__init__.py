"""Exact, fuzzy, semantic and perceptual deduplication, of texts, images, sounds and videos, as steps of a pipeline."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tamis.curator_names import unknown_name

if TYPE_CHECKING:
    from tamis.dedup.exact import ExactDedup
    from tamis.dedup.fuzzy import FuzzyDedup
    from tamis.dedup.groups import Groups
    from tamis.dedup.images import ImageDedup
    from tamis.dedup.index import Index
    from tamis.dedup.selection import Diverse, Outliers
    from tamis.dedup.semantic import SemanticDedup
    from tamis.dedup.sounds import AudioDedup
    from tamis.dedup.videos import VideoDedup

_MODULES = {
    "AudioDedup": "sounds",
    "Diverse": "selection",
    "ExactDedup": "exact",
    "FuzzyDedup": "fuzzy",
    "Groups": "groups",
    "ImageDedup": "images",
    "Index": "index",
    "Outliers": "selection",
    "SemanticDedup": "semantic",
    "VideoDedup": "videos",
}

__all__ = [
    "AudioDedup",
    "Diverse",
    "ExactDedup",
    "FuzzyDedup",
    "Groups",
    "ImageDedup",
    "Index",
    "Outliers",
    "SemanticDedup",
    "VideoDedup",
]


if not TYPE_CHECKING:  # a type checker would accept every misspelt name

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise unknown_name("tamis.dedup", name)
        return getattr(import_module(f"tamis.dedup.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
