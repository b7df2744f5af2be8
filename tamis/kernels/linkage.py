"""Agglomerative clustering by average similarity (UPGMA; Sokal and Michener 1958) of a few thousand vectors.

similar    float32[n, n], symmetric; overwritten
labels     int64[n], out: the smallest index in the cluster of each vector
"""

from __future__ import annotations

import numpy as np

from tamis.kernels.jit import kernel, part


@kernel
def average_linkage(similar, weights, least, labels):
    """Join the two most similar clusters until no two reach `least` on average. Ties go to the first pair."""
    count = len(labels)
    size = weights.copy()
    alive = np.ones(count, np.bool_)
    best = np.full(count, -1, np.int64)  # of each cluster, the most similar later one
    for row in range(count):
        labels[row] = row
        best[row] = _nearest(similar, alive, row)
    while True:
        first = -1
        for row in range(count):
            if alive[row] and best[row] >= 0 and (first < 0 or similar[row, best[row]] > similar[first, best[first]]):
                first = row
        if first < 0 or similar[first, best[first]] < least:
            break
        second = best[first]
        total = size[first] + size[second]
        for other in range(count):
            if alive[other] and other != first and other != second:
                value = (size[first] * similar[first, other] + size[second] * similar[second, other]) / total
                similar[first, other] = value
                similar[other, first] = value
        size[first] = total
        alive[second] = False
        for row in range(count):
            if labels[row] == second:
                labels[row] = first
            if alive[row] and row <= max(first, second):
                touched = row == first or best[row] == first or best[row] == second
                if touched or (row < first and (best[row] < 0 or similar[row, first] > similar[row, best[row]])):
                    best[row] = _nearest(similar, alive, row)


@part
def _nearest(similar, alive, row):
    found = -1
    for other in range(row + 1, len(alive)):
        if alive[other] and (found < 0 or similar[row, other] > similar[row, found]):
            found = other
    return found
