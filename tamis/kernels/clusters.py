"""Unit vectors by cosine similarity: centres of clusters, clusters within reach, and pairs above a threshold.

Vectors are float32[rows, dimension] of length 1. Products are computed in float32 (BLAS); where the rounding error could change
a decision, the products of these rows are computed again in float64. `clusters_gpu` has the same functions for a GPU. Sums
are integers, so that they do not depend on the order or the device.

All choices at random are hashes of the seed and a row number, so they do not depend on the division of the rows.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from tamis.kernels.jit import kernel

MARGIN = 1e-5
"""More than the error of a float32 product of two unit vectors, which is below 2e-6 for up to 4096 dimensions."""

TOLERANCE = 1e-6
"""Similarities this little below the threshold reach it: vectors in float32 have a length of 1 within 1e-7."""

BLOCK_VALUES = 2**21
"""Similarities that are computed at a time: 8 MB."""

TARGET_ROWS = 2048
"""Vectors that a block of queries is compared with at a time."""

FIXED = 2.0**30
"""Sums of vectors are integers in units of 2**-30."""

Nearest: TypeAlias = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


# -------------------------------------------------------------------------------------------------------------- random


def mixed(numbers: np.ndarray, seed: int, stream: int = 0) -> np.ndarray:
    """A hash of each number, uint64 (the finaliser of splitmix64, Steele et al. 2014)."""
    start = (seed * 0x9E3779B97F4A7C15 + stream * 0xD1B54A32D192ED03) % 2**64
    values = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(start)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def uniform(count: int, seed: int, stream: int) -> np.ndarray:
    """Numbers from 0 to 1 that depend on their position, the seed and the stream."""
    return mixed(np.arange(count), seed, stream) / 2.0**64


# ------------------------------------------------------------------------------------------------------------- centres


def _row_blocks(rows: int, width: int) -> Iterator[slice]:
    step = max(1, BLOCK_VALUES // max(1, width))
    return (slice(start, min(rows, start + step)) for start in range(0, rows, step))


def nearest(vectors: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(int32: the most similar centre of each vector, the first of equal ones; float64: the similarity to it)"""
    found = np.empty(len(vectors), np.int32)
    for rows in _row_blocks(len(vectors), len(centres)):
        products = vectors[rows] @ centres.T
        best = products.argmax(axis=1)
        top = products[np.arange(len(best)), best]
        close = np.flatnonzero(np.count_nonzero(products >= (top - MARGIN)[:, None], axis=1) > 1)
        if len(close):
            exact = vectors[rows][close].astype(np.float64) @ centres.T.astype(np.float64)
            exact = np.where(exact >= exact.max(axis=1, keepdims=True) - 1e-14, 1.0, 0.0)
            best[close] = exact.argmax(axis=1)
        found[rows] = best
    return found, np.minimum(exact_products(vectors, np.arange(len(vectors)), centres, found), 1.0)


def fixed_sums(vectors: np.ndarray, home: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(int64[count, dimension]: the sum of the vectors of each cluster in fixed point; int64[count]: how many)"""
    sums = np.zeros((count, vectors.shape[1]), np.int64)
    step = 4096
    for start in range(0, len(vectors), step):
        part = home[start : start + step]
        order = np.argsort(part, kind="stable")
        part = part[order]
        begins = np.flatnonzero(np.append(True, part[1:] != part[:-1]))
        fixed = np.rint(vectors[start : start + step][order].astype(np.float64) * FIXED).astype(np.int64)
        sums[part[begins]] += np.add.reduceat(fixed, begins, axis=0)
    return sums, np.bincount(home, minlength=count).astype(np.int64)


def moved_centres(centres: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """The direction of each sum; a cluster without vectors, or whose vectors cancel out, keeps its centre."""
    exact = sums.astype(np.float64)
    length = np.sqrt(np.einsum("ij,ij->i", exact, exact))[:, None]
    usable = length > FIXED * 1e-6
    return np.where(usable, exact / np.where(usable, length, 1.0), centres).astype(np.float32)


def initial_centres(
    sample: np.ndarray,
    count: int,
    seed: int,
    oversampling: float,
    nearest: Nearest = nearest,
    plus_plus: Callable[[np.ndarray, np.ndarray, int, int], np.ndarray] | None = None,
) -> np.ndarray:
    """Centres by k-means|| (Bahmani et al. 2012): candidates in five rounds, in proportion to their distance, then k-means++.

    `oversampling` times `count` candidates are expected. If there are fewer vectors than centres, all are centres.
    """
    rows, rounds = len(sample), 5
    if rows <= count:
        return np.array(sample)
    first = int(np.argmin(mixed(np.arange(rows), seed, 1)))
    chosen = [np.array([first])]
    owner, similarity = np.zeros(rows, np.int64), nearest(sample, sample[first : first + 1])[1]
    for number in range(rounds):
        distance = np.maximum(0.0, 1.0 - similarity)
        total = distance.sum()
        if total <= rows * 1e-9:
            break
        share = oversampling * count / rounds * distance / total
        new = np.flatnonzero(uniform(rows, seed, 2 + number) < share)
        if len(new):
            place, closer = nearest(sample, sample[new])
            better = closer > similarity
            owner[better] = place[better] + sum(map(len, chosen))
            similarity = np.maximum(similarity, closer)
            chosen.append(new)
    candidates = np.concatenate(chosen)
    if len(candidates) < count:
        others = np.setdiff1d(np.arange(rows), candidates)
        order = np.argsort(mixed(others, seed, 8), kind="stable")
        return sample[np.concatenate([candidates, others[order][: count - len(candidates)]])]
    weights = np.bincount(owner, minlength=len(candidates)).astype(np.float64)
    return (plus_plus or weighted_plus_plus)(sample[candidates], weights, count, seed)


def weighted_plus_plus(candidates: np.ndarray, weights: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Weighted k-means++ (Arthur and Vassilvitskii 2007) on the candidates of k-means||."""
    draws, exact = uniform(count, seed, 9), candidates.astype(np.float64)
    distance, left = np.ones(len(candidates)), np.ones(len(candidates), np.bool_)
    chosen = np.empty(count, np.int64)
    for number in range(count):
        share = np.where(left, np.maximum(distance, 1e-12) * np.maximum(weights, 1e-3), 0.0)
        ends = np.cumsum(share)
        place = min(int(np.searchsorted(ends, draws[number] * ends[-1], side="right")), len(ends) - 1)
        place = min(place, int(np.flatnonzero(left)[-1]))  # a draw at the very end
        chosen[number], left[place] = place, False
        farther = np.maximum(0.0, 1.0 - exact @ exact[place])
        distance = np.minimum(distance, farther) if number else farther
    return candidates[chosen]


# --------------------------------------------------------------------------------------------------------------- pairs


def chord_of(threshold: float) -> float:
    """The distance of two unit vectors of this similarity, and a little more than the rounding error."""
    return math.sqrt(max(0.0, 2.0 - 2.0 * (threshold - TOLERANCE))) + MARGIN


def reach(
    vectors: np.ndarray, centres: np.ndarray, home: np.ndarray, threshold: float, limit: int | None
) -> tuple[np.ndarray, np.ndarray, int]:
    """(vector, cluster) for each cluster that may have vectors similar to it, and for how many vectors some were left out.

    A vector of another cluster is nearer to the centre of that cluster, so it is beyond the plane halfway between the two
    centres. If that plane is further away than two vectors of this similarity are from each other, the cluster is out of
    reach. Of the clusters in reach, the `limit` with the nearest planes are returned, if their centres are among the
    `num_near(limit)` nearest to the vector's own centre.
    """
    chord, near = chord_of(threshold), num_near(limit, len(centres))
    rows_found, clusters_found, left_out = [np.empty(0, np.int64)], [np.empty(0, np.int32)], 0
    if limit == 0 or len(centres) == 1:
        return rows_found[0], clusters_found[0], 0
    order = np.argsort(home, kind="stable")
    begins = np.flatnonzero(np.append(True, home[order[1:]] != home[order[:-1]])) if len(order) else order
    for first, last in zip(begins, [*begins[1:], len(order)], strict=True):
        own = int(home[order[first]])
        others = nearest_others(centres, own, near)
        apart = np.sqrt(np.maximum(2.0 - 2.0 * (centres[others] @ centres[own]), 1e-12)).astype(np.float32)
        for rows in _row_blocks(last - first, near):
            some = order[first:last][rows]
            mine = vectors[some]
            margin = ((mine @ centres[own])[:, None] - mine @ centres[others].T) / apart
            if limit is not None and limit < near:
                left_out += int(np.count_nonzero(np.count_nonzero(margin <= chord, axis=1) > limit))
                closest = np.argpartition(margin, limit - 1, axis=1)[:, :limit]
                row, place = np.nonzero(np.take_along_axis(margin, closest, axis=1) <= chord)
                place = closest[row, place]
            else:
                row, place = np.nonzero(margin <= chord)
            rows_found.append(some[row])
            clusters_found.append(others[place].astype(np.int32))
    return np.concatenate(rows_found), np.concatenate(clusters_found), left_out


def num_near(limit: int | None, count: int) -> int:
    """How many centres are examined for each cluster: all others without a limit, otherwise many times the limit."""
    return count - 1 if limit is None else min(count - 1, max(64, 8 * limit))


def nearest_others(centres: np.ndarray, own: int, count: int) -> np.ndarray:
    """The numbers of the centres that are most similar to one of them, in ascending order."""
    products = centres @ centres[own]
    products[own] = -np.inf
    if count >= len(centres) - 1:
        return np.delete(np.arange(len(centres)), own)
    return np.sort(np.argpartition(-products, count - 1)[:count])


def first_matches(
    queries: np.ndarray,
    before: np.ndarray,
    targets: np.ndarray,
    threshold: float,
    limit: int,
    counts: np.ndarray,
    floor: float = 2.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The first targets whose similarity to each query reaches the threshold, at most `limit` with those found earlier.

    before    int64[queries]    only this many targets, from the first on, are compared with a query
    counts    int64[queries]    matches so far; updated. A query with `limit` matches is not compared further

    Returns (query, target, similarity) of the matches, those of a query in ascending order of targets; and for each query
    the most similar target from `floor` up to the threshold and the similarity to it (-1 if there is none).
    """
    near, near_similarity = np.full(len(queries), -1, np.int64), np.full(len(queries), -1.0, np.float32)
    least = threshold - TOLERANCE - MARGIN
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for start in range(0, len(targets), TARGET_ROWS):
        part = targets[start : start + TARGET_ROWS]
        active = np.flatnonzero((before > start) & (counts < limit))
        for rows in _row_blocks(len(active), len(part)):
            some = active[rows]
            products = (queries if len(some) == len(queries) else queries[some]) @ part.T
            partly = np.flatnonzero(before[some] < start + len(part))
            if len(partly):
                beyond = np.arange(start, start + len(part)) >= before[some[partly], None]
                products[partly] = np.where(beyond, np.float32(-2), products[partly])
            top = products.max(axis=1)
            hits = np.flatnonzero(top >= least)
            if len(hits):
                row, column = np.nonzero(products[hits] >= least)
                row = hits[row]
                reached = _reached(products[row, column], queries, some[row], part, column, threshold)
                row, column = row[reached], column[reached]
                products[row, column] = -2.0  # what is left is below the threshold
                top[hits] = products[hits].max(axis=1)
                query = some[row]
                place = np.arange(len(row)) - np.searchsorted(row, row)  # among the matches of its query
                within = counts[query] + place < limit
                query, column = query[within], column[within]
                counts += np.bincount(query, minlength=len(counts))
                found.append((query, column + start, exact_products(queries, query, part, column)))
            closer = np.flatnonzero((top >= floor) & (top > near_similarity[some]))
            if len(closer):
                near_similarity[some[closer]] = top[closer]
                near[some[closer]] = start + products[closer].argmax(axis=1)
    if not found:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32), near, near_similarity
    query, target, value = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return query, target, np.minimum(value, 1.0).astype(np.float32), near, near_similarity


def _reached(
    value: np.ndarray, left: np.ndarray, row: np.ndarray, right: np.ndarray, column: np.ndarray, threshold: float
) -> np.ndarray:
    """Which pairs reach the threshold; products close to it are computed again in float64."""
    reached = value >= threshold - TOLERANCE + MARGIN
    close = np.flatnonzero(~reached)
    reached[close] = exact_products(left, row[close], right, column[close]) >= threshold - TOLERANCE
    return reached


def exact_products(left: np.ndarray, row: np.ndarray, right: np.ndarray, column: np.ndarray) -> np.ndarray:
    """The product of left[row[i]] and right[column[i]] for each i, in float64.

    Rounded to a multiple of 2**-40, so that the result does not depend on the order of summation.
    """
    found = np.empty(len(row), np.float64)
    for start in range(0, len(row), 4096):
        some = slice(start, start + 4096)
        found[some] = np.einsum("ij,ij->i", left[row[some]].astype(np.float64), right[column[some]].astype(np.float64))
    return np.rint(found * 2.0**40) / 2.0**40


@kernel
def count_better(source, order, row, target_source, target_order, target_row, across, out):
    """out[i] = how many targets come before (source, order, row)[i]; with `across`, how many have a better source.

    The targets are in ascending order of (source, order, row).
    """
    for index in range(len(row)):
        low, high = 0, len(target_row)
        while low < high:
            middle = (low + high) // 2
            if target_source[middle] != source[index]:
                smaller = target_source[middle] < source[index]
            elif across:
                smaller = False
            elif target_order[middle] != order[index]:
                smaller = target_order[middle] < order[index]
            else:
                smaller = target_row[middle] < row[index]
            if smaller:
                low = middle + 1
            else:
                high = middle
        out[index] = low


KEPT, DROPPED, UNKNOWN = 0, 1, 2


@kernel
def choose_kept(first, worse, better, states, full, twins):
    """Decide about rows in the order of the keep policy, from edges to the better rows that each is similar to.

    first     int64[rows + 1]    the edges of the row decided i-th are first[i] to first[i + 1], those to better rows first
    worse     int64[rows]        the vertex of that row
    better    int64[edges]       the vertex at the other end
    states    int8[vertices]     in: KEPT, also for rows without edges; out: for each row
    full      bool[rows]         whether it may have more edges than are listed
    twins     int64[rows]        out: the edge to the kept row that a dropped row is similar to, or -1

    A row is dropped if it is similar to a better row that is kept. It is unknown if that depends on edges that are not listed.
    """
    for index in range(len(worse)):
        twins[index] = -1
        state = UNKNOWN if full[index] else KEPT
        for edge in range(first[index], first[index + 1]):
            other = states[better[edge]]
            if other == KEPT:
                state = DROPPED
                twins[index] = edge
                break
            if other == UNKNOWN:
                state = UNKNOWN
        states[worse[index]] = state


# ------------------------------------------------------------------------------------------------------ representatives


def k_center(vectors: np.ndarray, centre: np.ndarray, count: int) -> np.ndarray:
    """The vector nearest to the centre, then each time the one least similar to those chosen; the first of equal ones."""
    chosen = np.empty(count, np.int64)
    closest = np.full(len(vectors), -np.inf, np.float32)
    for number in range(count):
        chosen[number] = (vectors @ centre).argmax() if number == 0 else closest.argmin()
        np.maximum(closest, vectors @ vectors[chosen[number]], out=closest)
        closest[chosen[: number + 1]] = np.inf
    return chosen


def facility_location(vectors: np.ndarray, centre: np.ndarray, count: int) -> np.ndarray:
    """Vectors that greedily maximise the sum of the similarities of all vectors to the nearest chosen one (Minoux 1978).

    The gain of a vector can only decrease, so that only the best few are computed again before each choice.
    """
    similarity = np.maximum(vectors @ vectors.T, 0.0)
    covered = np.zeros(len(vectors), np.float32)
    gains = similarity.sum(axis=0, dtype=np.float64)
    fresh = np.zeros(len(vectors), np.int64)
    chosen = np.empty(count, np.int64)
    for number in range(count):
        best = int(gains.argmax())
        while fresh[best] < number:
            gains[best] = np.maximum(similarity[best] - covered, 0.0).sum(dtype=np.float64)
            fresh[best] = number
            best = int(gains.argmax())
        chosen[number] = best
        np.maximum(covered, similarity[best], out=covered)
        gains[best] = -np.inf
    return chosen
