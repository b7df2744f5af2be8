"""Sounds that repeat others: fingerprints that agree at an offset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tamis.batch import Batch
from tamis.dedup.sequences import SequenceDedup, SequenceKeep
from tamis.kernels import sound_prints
from tamis.kernels.sequences import Comparing
from tamis.operators import operator


WINDOW = 31
"""Hashes over which errors are averaged: a second."""


@operator(reads="media")
class AudioDedup(SequenceDedup):
    """Keep one sound of each group of copies, whatever their format, loudness or length."""

    threshold: float = 0.8
    max_error: float = 0.3
    min_seconds: float = 1.0
    keep: SequenceKeep = "longest"
    by: str | None = None
    prefer: Sequence[str] | None = None
    prefer_column: str | None = None
    across_sources: bool = False
    hash_column: str | None = None
    against: str | None = None
    update: bool = False
    storage_options: Mapping[str, Any] | None = None
    column: str = "audio"

    version = 1
    cost = 50.0
    medium = "audio"
    hashing = {"fingerprint": "bands", "version": 1}

    @property
    def step_s(self) -> float:
        return sound_prints.HOP / sound_prints.RATE

    @property
    def comparing(self) -> Comparing:
        return Comparing(sound_prints.BITS, WINDOW, self.max_error * sound_prints.BITS)

    def sequences(self, batch: Batch) -> list[np.ndarray | None]:
        raise NotImplementedError
