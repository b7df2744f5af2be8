"""Sounds that repeat others: fingerprints that agree at an offset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from tamis.audio.decode import AudioStep
from tamis.audio.fingerprint import fingerprints_of
from tamis.batch import Batch
from tamis.dedup.sequences import SequenceDedup, SequenceKeep
from tamis.dedup.shuffle import RESOLVING_BYTES
from tamis.kernels import sound_prints
from tamis.kernels.sequences import Comparing
from tamis.operators import Resources, operator

WINDOW = 31
"""Hashes over which errors are averaged: a second."""


@operator(reads="media", resources=Resources(memory=RESOLVING_BYTES))
class AudioDedup(AudioStep, SequenceDedup):
    """Keep one sound of each group of copies, whatever their format, loudness or length.

    Sounds are visited in the order of the keep policy. A sound is dropped if its fingerprint (see `AudioFingerprint`) agrees
    with that of a sound already kept, at any offset, over at least `threshold` of the shorter of the two: excerpts are found
    in the recordings that they come from, and recordings that share only a part are kept. Fingerprints agree at a time if at
    most `max_error` of their bits differ, on average over a second; of unrelated sounds, half of the bits differ. Copies at
    another speed or pitch are not found.

    `keep` chooses the order: the longest first, the first in source order, the newest or best by the column `by`. `prefer`,
    `prefer_column`, `across_sources`, `against`, `update` and `storage_options` are as in `ExactDedup`. With an order other
    than `"longest"`, a whole recording is dropped if an excerpt of it was kept before.

    Two sounds are compared if they share two of the keys that are made of their hashes at one offset: each hash, and the hash
    with either of its two least certain bits flipped. Of the sounds that share a key, each is compared with the first 8 in the
    order of the keep policy. Silence has no keys and does not count. A sound with less than `min_seconds` that are not silent
    is kept and compared with no other; shorter ones agree by chance. `ExactDedup` removes those that are really equal.

    `hash_column` names a column that already has the fingerprints, so that no sound is decoded. A row without sound is kept.

    `tamis dedup explain` and `.tamis/groups/` name the twin of each dropped sound, the share that agrees, the share of bits
    that differ, and the offset in seconds at which the sound begins in its twin. Recall and precision by format, noise and
    length are in benchmarks/sequences.md. Costs about 25 MB of disk space per hour of sound, and memory within the budget.

    >>> from tamis import Pipeline, Rows
    >>> song = (np.random.default_rng(1).integers(0, 2**32, 200) | 1 << 42).tolist()
    >>> rows = [{"fingerprint": song}, {"fingerprint": song[60:150]}, {"fingerprint": song[::-1]}]
    >>> Pipeline(Rows(rows), AudioDedup(hash_column="fingerprint")).run().dropped
    {'similar audio': 1}
    """

    threshold: float = 0.8
    max_error: float = 0.3
    min_seconds: float = 1.5
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
    index_kind = "audio"
    hashing = MappingProxyType({"fingerprint": "bands", "version": 1})

    @property
    def step_s(self) -> float:
        return sound_prints.HOP / sound_prints.RATE

    @property
    def span_s(self) -> float:
        return (sound_prints.FRAME + sound_prints.LAG * sound_prints.HOP) / sound_prints.RATE

    @property
    def comparing(self) -> Comparing:
        return Comparing(sound_prints.BITS, WINDOW, self.max_error * sound_prints.BITS)

    def sequences(self, batch: Batch) -> list[np.ndarray | None]:
        return fingerprints_of(batch, "media")
