"""Operators over text. Names are imported on first use: some modules bring compiled kernels along."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tamis.curator_names import unknown_name

_MODULES = (
    "quality", "web", "repetition", "lists", "tokens", "code", "clean", "lines", "pii", "documents",
    "language", "classify", "decontaminate",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name[:1].isupper():
        for module in _MODULES:
            found = getattr(import_module(f"tamis.text.{module}"), name, None)
            if found is not None:
                globals()[name] = found
                return found
    raise unknown_name("tamis.text", name)
