"""Operators on sound. Names are imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tamis.curator_names import unknown_name

if TYPE_CHECKING:
    from tamis.audio.fingerprint import AudioDigest, AudioFingerprint

_MODULES = {
    "fingerprint": ("AudioDigest", "AudioFingerprint"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = ["AudioDigest", "AudioFingerprint"]

if not TYPE_CHECKING:  # a type checker would accept every misspelt name

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise unknown_name("tamis.audio", name)
        return getattr(import_module(f"tamis.audio.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
