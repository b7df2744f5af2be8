"""Rows that share a band key, as connected components, on a GPU (CUDA C++ through CuPy).

    keys of all rows --> sorted, a range at a time --> neighbours with the same key --> union-find --> smallest row of each set

The result is that of `edges_from_keys` and `unite` on the CPU: it depends only on which rows share a key.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

from tamis.errors import require

_THREADS = 256
SORTING_BYTES = 72
"""Memory per key of the range that is sorted: keys, positions, and what sorting them takes."""
MOST_RANGES = 64


def gpu_bytes(rows: int, bands: int) -> int:
    """The least memory that finding the components of this many rows takes on the GPU."""
    keys = rows * bands
    return 8 * keys + 25 * rows + keys + SORTING_BYTES * keys // MOST_RANGES


@functools.cache
def _kernels() -> Any:
    cupy = require("cupy", extra="gpu", purpose="kernels on a GPU")
    return cupy.RawModule(code=Path(__file__).with_name("components.cu").read_text(), options=("--std=c++17",))


class KeyComponents:
    """Collects the keys of rows, and finds their components."""

    def __init__(self, total: int, bands: int, memory: int) -> None:
        """For rows numbered below `total`, within `memory` bytes of the GPU; raises CuPy's error if that is not enough."""
        self._cupy = require("cupy", extra="gpu", purpose="kernels on a GPU")
        self._total, self._bands = total, bands
        self._keys = self._cupy.empty((total, bands), np.uint64)
        self._rows = self._cupy.empty(total, np.int64)
        self._count = 0
        self._labels: Any = None
        left = max(1, memory - gpu_bytes(total, bands))
        self._ranges = int(min(MOST_RANGES, max(1, -(-SORTING_BYTES * total * bands // left))))

    def add(self, rows: np.ndarray, keys: np.ndarray) -> None:
        """Add the keys (uint64[rows, bands]) of rows with these numbers (int64)."""
        here = slice(self._count, self._count + len(rows))
        self._rows[here].set(np.ascontiguousarray(rows))
        self._keys[here].set(np.ascontiguousarray(keys))
        self._count += len(rows)

    def join(self) -> int:
        """Find the components; returns the number of pairs of rows that are neighbours in the order of a key."""
        cupy, kernels, total = self._cupy, _kernels(), self._total
        keys = self._keys[: self._count].reshape(-1)
        parents = cupy.arange(total, dtype=np.uint64)
        touched, pairs = cupy.zeros(total, np.uint8), cupy.zeros(1, np.uint64)
        for number in range(self._ranges):
            chosen = self._in_range(keys, number)
            if len(chosen) < 2:
                continue
            some = keys[chosen]
            order = cupy.argsort(some)
            blocks = -(-len(chosen) // _THREADS)
            arguments = (
                some,
                order,
                chosen,
                np.int64(len(chosen)),
                np.int32(self._bands),
                self._rows,
                parents,
                touched,
                pairs,
            )
            kernels.get_function("join_rows")((blocks,), (_THREADS,), arguments)
            del chosen, some, order
        out = cupy.empty(total, np.int64)
        if total:
            blocks = -(-total // _THREADS)
            kernels.get_function("flatten")((blocks,), (_THREADS,), (parents, touched, np.int64(total), out))
        self._labels = out
        return int(pairs.get()[0])

    def labels(self, start: int, stop: int) -> np.ndarray:
        """int64: the smallest row of the component of each row from `start` to `stop`, or -1 if it shares no key."""
        return np.asarray(self._labels[start:stop].get())

    def _in_range(self, keys: Any, number: int) -> Any:
        """The positions of the keys of one range; rows with the same key are always in the same one."""
        cupy = self._cupy
        if self._ranges == 1:
            return cupy.arange(len(keys), dtype=np.int64)
        low, high = (-(-each * 2**64 // self._ranges) for each in (number, number + 1))
        inside = keys >= np.uint64(low)
        if high < 2**64:
            inside &= keys < np.uint64(high)
        return cupy.flatnonzero(inside)
