"""Videos that repeat others: hashes of frames that agree at an offset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from tamis.batch import Batch
from tamis.dedup.sequences import SequenceDedup, SequenceKeep
from tamis.dedup.shuffle import RESOLVING_BYTES
from tamis.kernels.sequences import Comparing
from tamis.operators import Resources, operator
from tamis.video.decode import TrackStep
from tamis.video.hashing import hashes_of

WINDOW = 4
"""Hashes over which errors are averaged."""


@operator(reads="media", resources=Resources(memory=RESOLVING_BYTES))
class VideoDedup(TrackStep, SequenceDedup):
    """Keep one video of each group of copies, whatever their format, size or length.

    Videos are visited in the order of the keep policy. A video is dropped if the hashes of its frames (see `VideoHashes`), one
    every `every_s` seconds, agree with those of a video already kept, at any offset, over at least `threshold` of the shorter
    of the two: clips are found in the videos that they come from, and videos that share only a part are kept. Hashes agree at
    a time if at most `max_error` of their bits differ, on average over four of them in a row; of unrelated frames, half of the
    bits differ. Copies that are mirrored, cropped, turned or at another speed are not found; a rotation that a container states
    is applied first.

    `keep` chooses the order: the longest first, the first in source order, the newest or best by the column `by`. `prefer`,
    `prefer_column`, `across_sources`, `against`, `update` and `storage_options` are as in `ExactDedup`. With an order other
    than `"longest"`, a whole video is dropped if a part of it was kept before.

    Two videos are compared if they share two of the keys that are made of their hashes at one offset: each pair of the four
    quarters of a hash. Of the videos that share a key, each is compared with the first 8 in the order of the keep policy.
    Black frames, and frames with hardly any contrast, have no keys and do not count. A video with less than `min_seconds` of
    other frames is kept and compared with no other. `ExactDedup` removes those that are really equal.

    `hash_column` names a column that already has the hashes, so that no video is decoded. A row without video is kept.

    `tamis dedup explain` and `.tamis/groups/` name the twin of each dropped video, the share that agrees, the share of bits
    that differ, and the offset in seconds at which the video begins in its twin. Recall and precision are in
    benchmarks/sequences.md. Costs about 17 MB of disk space per hour of video, and memory within the budget.

    >>> from tamis import Pipeline, Rows
    >>> film = np.random.default_rng(1).integers(-(2**63), 2**63, 200).tolist()
    >>> rows = [{"frame_hashes": film}, {"frame_hashes": film[60:150]}, {"frame_hashes": film[::-1]}]
    >>> Pipeline(Rows(rows), VideoDedup(hash_column="frame_hashes")).run().dropped
    {'similar video': 1}
    """

    every_s: float = 0.1
    threshold: float = 0.8
    max_error: float = 0.2
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
    column: str = "video"

    version = 2
    cost = 200.0
    index_kind = "video"
    hashing = MappingProxyType({"hash": "frames", "version": 2})

    @property
    def step_s(self) -> float:
        return self.every_s

    @property
    def span_s(self) -> float:
        return self.step_s

    @property
    def comparing(self) -> Comparing:
        return Comparing(64, WINDOW, self.max_error * 64)

    def sequences(self, batch: Batch) -> list[np.ndarray | None]:
        return hashes_of(batch, "media", self.every_s)
