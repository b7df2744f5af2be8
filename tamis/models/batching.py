"""Which texts a network processes together: sorted by length, filled by tokens, and halved when memory runs out.

    lengths   5 130 7 7 128 6          rows in input order
    order     5 6 7 7 | 128 130        batches of neighbours in length, so that little is padding

Pure functions over numbers of tokens. Results are written by row number, so that the order of the input is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

SMALLEST_TOKENS = 64
"""Batches are not halved below this many tokens, only down to a single row."""


def round_up(length: int, multiple: int) -> int:
    """
    >>> [round_up(length, 64) for length in (1, 64, 65)]
    [64, 64, 128]
    """
    return -(-length // multiple) * multiple


def plan_batches(
    lengths: np.ndarray, most_tokens: int, most_rows: int | None = None, multiple: int = 1
) -> list[np.ndarray]:
    """Row numbers of each batch, longest texts first. Every batch pads to at most `most_tokens` tokens, or has one row.

    Texts of equal length keep their order. Lengths are padded to a multiple of `multiple`.

    >>> [batch.tolist() for batch in plan_batches(np.array([5, 130, 7, 7, 128, 6]), 300)]
    [[1, 4], [2, 3, 5, 0]]
    """
    order = np.argsort(-lengths, kind="stable")
    batches = []
    start = 0
    while start < len(order):
        longest = round_up(max(1, int(lengths[order[start]])), multiple)
        rows = max(1, most_tokens // longest)
        if most_rows is not None:
            rows = min(rows, most_rows)
        batches.append(order[start : start + rows])
        start += rows
    return batches


def pad(ids: np.ndarray, offsets: np.ndarray, rows: np.ndarray, width: int, fill: int) -> np.ndarray:
    """Token ids of some rows as one matrix, int64[rows, width], filled up on the right."""
    lengths = (offsets[rows + 1] - offsets[rows]).astype(np.int64)
    columns = np.arange(width)
    inside = columns[None, :] < lengths[:, None]
    out = np.full((len(rows), width), fill, np.int64)
    out[inside] = ids[(offsets[rows][:, None] + columns[None, :])[inside]]
    return out


@dataclass
class TokenBudget:
    """How many tokens of a length a network processes at a time: probed upwards, halved when memory runs out."""

    limit: int
    """The most tokens worth processing at a time."""
    known: dict[int, int] = field(default_factory=dict)
    """By length, the tokens that were too many."""

    def most(self, length: int) -> int:
        """The tokens to process at a time for texts of this length."""
        return max(SMALLEST_TOKENS, min([self.limit, *(most for known, most in self.known.items() if known <= length)]))

    def halve(self, length: int, tokens: int) -> int:
        """Memory ran out with `tokens` tokens: returns the number for the next attempt and remembers it."""
        self.known[length] = max(SMALLEST_TOKENS, tokens // 2)
        return self.known[length]
