"""Sequences for training: documents as they are, or packed into sequences of a fixed length.

    documents --cut at the length--> pieces --best fit--> sequences, each with the sizes of its documents

Pieces are packed a few million tokens at a time, in the order of the rows, so that memory does not grow with the shard and
the result does not depend on batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tamis.kernels.packing import best_fit

WINDOW_TOKENS = 1 << 22
"""Tokens that are packed together, 16 MB. With sequences of 4,096 tokens that is a thousand of them, or more."""


@dataclass(frozen=True)
class Sequence:
    """Consecutive tokens for a trainer, and how many of them each document has."""

    ids: np.ndarray
    """int32"""
    sizes: np.ndarray
    """int64; the documents, or parts of documents, in this sequence"""


class Packer:
    """Makes sequences of documents; of exactly one document each without a length, of at most `length` tokens with one."""

    def __init__(self, length: int | None, window: int = WINDOW_TOKENS) -> None:
        self._length, self._window = length, max(window, 64 * (length or 1))
        self._parts: list[np.ndarray] = []
        self._sizes: list[int] = []
        self._held = 0

    def add(self, ids: np.ndarray) -> Iterator[Sequence]:
        """Sequences that are complete with this document."""
        if self._length is None:
            yield Sequence(ids, np.array([len(ids)], np.int64))
            return
        self._parts.append(ids)
        self._sizes.append(len(ids))
        self._held += len(ids)
        if self._held >= self._window:
            yield from self.finish()

    def finish(self) -> Iterator[Sequence]:
        """Sequences of the documents that are left."""
        if self._length is None or not self._held:
            return
        tokens = np.concatenate(self._parts)
        starts, sizes = cut(np.array(self._sizes, np.int64), self._length)
        self._parts, self._sizes, self._held = [], [], 0
        bins = np.empty(len(sizes), np.int64)
        order = np.argsort(-sizes, kind="stable")
        best_fit(sizes, order, self._length, bins)
        placed = order[np.argsort(bins[order], kind="stable")]
        ends = np.flatnonzero(np.diff(bins[placed], append=-1)) + 1
        for begin, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
            members = placed[begin:end]
            pieces = [tokens[starts[each] : starts[each] + sizes[each]] for each in members.tolist()]
            yield Sequence(np.concatenate(pieces), sizes[members])


def cut(sizes: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """The start and the size of each piece of documents that are cut every `length` tokens.

    >>> cut(np.array([5, 0, 3]), 4)
    (array([0, 4, 5]), array([4, 1, 3]))
    """
    counts = -(-sizes // length)
    begins = np.repeat(np.cumsum(sizes) - sizes, counts)
    number = np.arange(len(begins)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = begins + number * length
    return starts, np.minimum(length, np.repeat(np.cumsum(sizes), counts) - starts)
