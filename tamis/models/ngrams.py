"""Count n-grams within bounded memory: a small buffer in memory, sorted runs on disk.

    tokens of a piece of text --sort, count--> run --+
    tokens of the next        --sort, count--> run --+-- buffered, merged --> a longer run on disk --+
    ...                                                                                              +--> merged again, one
                                                                              a longer run on disk --+    key range at a time

A record describes one n-gram: its key, its count, and the keys of its context and suffix. If several n-grams have the same
key, the first one in the texts is kept, so the result does not depend on how the texts are divided into pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tamis.kernels import language_model as kernel

WORD = np.dtype([("key", "<u8"), ("count", "<i8"), ("begins", "?")])
NGRAM = np.dtype([*WORD.descr, ("context", "<u8"), ("suffix", "<u8")])
"""`begins` is whether the n-gram starts at the beginning of a line (with BEGIN); `context` is the key of the n-gram without
its last word, `suffix` without its first."""

_RANGE_BITS = 11
_RANGES = 1 << _RANGE_BITS
"""Number of equal key ranges in which a run can be read back."""


def count_tokens(tokens: np.ndarray, places: np.ndarray, order: int) -> Iterator[np.ndarray]:
    """Yield the n-grams of a piece of text for each length from 1 to `order`, as records sorted by key."""
    shorter = np.zeros(0, np.uint64)
    for length in range(1, order + 1):
        keys = np.zeros(len(tokens), np.uint64)
        kernel.make_keys(tokens, places, length, keys)
        inside = np.flatnonzero(places >= length - 1)
        unique, first, counts = np.unique(keys[inside], return_index=True, return_counts=True)
        ends = inside[first]
        found = np.zeros(len(unique), WORD if length == 1 else NGRAM)
        found["key"], found["count"], found["begins"] = unique, counts, places[ends] == length - 1
        if length > 1:
            found["context"], found["suffix"] = shorter[ends - 1], shorter[ends]
        yield found
        shorter = keys


def merge(runs: list[np.ndarray]) -> np.ndarray:
    """Merge several runs, given in the order of the texts, into one."""
    if len(runs) == 1:
        return runs[0]
    records = np.concatenate(runs)
    keys = records["key"]
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    counts = np.add.reduceat(records["count"][order], first)
    merged = records[order[first]]
    merged["count"] = counts
    return merged


class Runs:
    """The n-grams of one length: up to `buffer_bytes` in memory, the rest in a file of sorted runs."""

    def __init__(self, path: Path, buffer_bytes: int) -> None:
        self.path, self.buffer_bytes = path, buffer_bytes
        self._held: list[np.ndarray] = []
        self._held_bytes = 0
        self._starts: list[int] = []
        self._bounds: list[np.ndarray] = []
        self._kind = NGRAM

    def add(self, run: np.ndarray) -> None:
        """Add the n-grams of a piece of text. Pieces must be added in the order of the texts."""
        if not len(run):
            return
        self._kind = run.dtype
        self._held.append(run)
        self._held_bytes += run.nbytes
        if self._held_bytes > self.buffer_bytes:
            merged = merge(self._held)
            # Merging may be enough when the same n-grams keep occurring; write only if it does not free half of the buffer.
            if merged.nbytes > self.buffer_bytes // 2:
                self._write(merged)
                self._held, self._held_bytes = [], 0
            else:
                self._held, self._held_bytes = [merged], merged.nbytes

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yield all distinct n-grams in key order, a part at a time."""
        if not self._starts:
            if self._held:
                yield merge(self._held)
            return
        if self._held_bytes:
            self._write(merge(self._held))
        self._held, self._held_bytes = [], 0
        sizes = np.diff(self._bounds, axis=1).sum(axis=0) * self._kind.itemsize
        at = 0
        while at < _RANGES:
            stop = at + max(1, int(np.searchsorted(np.cumsum(sizes[at:]), self.buffer_bytes, side="right")))
            found = [run for run in self._read(at, stop) if len(run)]
            if found:
                yield merge(found)
            at = stop

    def _write(self, run: np.ndarray) -> None:
        edges = np.arange(1, _RANGES, dtype=np.uint64) << np.uint64(64 - _RANGE_BITS)
        self._bounds.append(np.concatenate([[0], np.searchsorted(run["key"], edges), [len(run)]]))
        with self.path.open("ab") as file:
            self._starts.append(file.tell())
            run.tofile(file)

    def _read(self, first: int, stop: int) -> Iterator[np.ndarray]:
        with self.path.open("rb") as file:
            for start, bounds in zip(self._starts, self._bounds, strict=True):
                file.seek(start + int(bounds[first]) * self._kind.itemsize)
                yield np.fromfile(file, self._kind, int(bounds[stop] - bounds[first]))
