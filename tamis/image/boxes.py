"""Boxes around things in pictures: their columns, non-maximum suppression, and the share of the area that they cover.

A box is (x, y, width, height) as a fraction of the width and height of the upright image, so that it does not depend on the
size at which the image was decoded.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

BOX = pa.struct(
    [("label", pa.string()), *((name, pa.float32()) for name in ("score", "x", "y", "width", "height"))],
)


def box(label: str, score: float, place: np.ndarray) -> dict[str, object]:
    """A value of a column of boxes; `place` is (x, y, width, height)."""
    values = dict(zip(("x", "y", "width", "height"), map(float, place), strict=True))
    return {"label": label, "score": float(score), **values}


def suppress(places: np.ndarray, scores: np.ndarray, overlap: float) -> list[int]:
    """The numbers of the boxes to keep, best first: none overlaps a better one by more than `overlap`.

    The overlap of two boxes is the area of their intersection by that of their union.

    >>> suppress(np.array([[0, 0, 2, 2], [0, 0, 2, 1.9], [5, 5, 1, 1]]), np.array([0.5, 0.9, 0.3]), 0.45)
    [1, 2]
    """
    left, top = places[:, 0], places[:, 1]
    right, bottom = left + places[:, 2], top + places[:, 3]
    areas = places[:, 2] * places[:, 3]
    waiting = np.argsort(-scores, kind="stable")
    kept = []
    while len(waiting):
        best, waiting = int(waiting[0]), waiting[1:]
        kept.append(best)
        width = np.minimum(right[best], right[waiting]) - np.maximum(left[best], left[waiting])
        height = np.minimum(bottom[best], bottom[waiting]) - np.maximum(top[best], top[waiting])
        common = np.maximum(width, 0) * np.maximum(height, 0)
        waiting = waiting[common <= overlap * (areas[best] + areas[waiting] - common)]
    return kept


def covered(places: Sequence[np.ndarray], cells: int = 256) -> float:
    """The share of the area that boxes cover together, on a grid.

    >>> covered([np.array([0, 0, 0.5, 1]), np.array([0.25, 0, 0.5, 1])])
    0.75
    """
    grid = np.zeros((cells, cells), np.bool_)
    for x, y, width, height in places:
        first, last = round(y * cells), max(round((y + height) * cells), round(y * cells) + 1)
        left, right = round(x * cells), max(round((x + width) * cells), round(x * cells) + 1)
        grid[first:last, left:right] = True
    return float(grid.mean())
