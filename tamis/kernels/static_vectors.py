"""The mean of vectors of a table.

ids int32, offsets int64[rows + 1], table float32[tokens, dimensions], out float32[rows, dimensions], zeros at first.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

from tamis.kernels.jit import kernel


@kernel
def mean_rows(ids, offsets, table, out):
    """out[i] = the mean of the rows of the table named by ids[offsets[i] : offsets[i + 1]]; zeros if there are none."""
    for row in range(len(offsets) - 1):
        first, last = offsets[row], offsets[row + 1]
        for at in range(first, last):
            for column in range(table.shape[1]):
                out[row, column] += table[ids[at], column]
        if last > first:
            for column in range(table.shape[1]):
                out[row, column] /= last - first
