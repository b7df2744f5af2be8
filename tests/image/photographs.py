"""Real pictures for tests: those that the package scikit-image includes, found without importing it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from tamis.batch import Batch


def photograph(name: str) -> Path:
    spec = importlib.util.find_spec("skimage")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "data" / name


def row(name: str) -> dict[str, Any]:
    return {"image": {"bytes": photograph(name).read_bytes(), "path": name}}


def batch(*names: str | None) -> Batch:
    """A batch of images; None is a row without."""
    return Batch.from_rows([{"image": None} if name is None else row(name) for name in names])
