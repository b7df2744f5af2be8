"""The functions of `clusters` on a GPU (PyTorch), with the same results.

Products are computed in float16, whose error is below `MARGIN`, with sums in float32. Where that could change a decision, they
are computed again in float32, and where that could change it, in float64.

`nearest`, `fixed_sums`, `reach` and `first_matches` take and return NumPy arrays, as those of `clusters` do. Functions whose
names end in `_on` work on tensors that are on the device already.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tamis.errors import MissingExtra, require
from tamis.kernels import clusters

DEVICE = "cuda:0"

MARGIN = 1.5e-3
"""More than the error of a product of unit vectors in float16: 2**-11 for each factor and for the result."""

BLOCK_BYTES = 512_000_000
"""Products that are computed at a time."""

FUSED = True
"""Use kernels of triton where it is installed."""

TILE = {"queries": 128, "targets": 128, "step": 64}
"""Vectors and dimensions that a program of these kernels multiplies at a time."""

STAGES = (32, 512, 2**31 - 1)
"""Clusters are compared in parts that end here: a row with enough matches in one part is left out of the next."""

MAX_PAIRS = 2**27
"""Pairs that the kernels may find at a time: 2 GB."""

PAIR_ROWS = 2**18
"""Pairs that are computed again at a time."""

WIDTHS = (256, 2048, 8192)
"""Vectors that queries are compared with at a time, from the first on. Where all are similar, the first few are enough."""


@functools.cache
def library() -> Any:
    """PyTorch, with products in float32 as exact as on a CPU."""
    torch = require("torch", extra="models", purpose="comparing embeddings on a GPU")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    return torch


def to_device(array: np.ndarray) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that mapped arrays cannot be written to
        return library().from_numpy(np.ascontiguousarray(array)).to(DEVICE)


def short(vectors) -> Any:
    """The vectors in the type that is multiplied fastest."""
    return vectors.half() if vectors.is_cuda else vectors


@functools.cache
def _kernels() -> Any:
    """Kernels that do not write products to memory, or None without triton."""
    try:
        require("triton", extra="models", purpose="kernels on a GPU")
    except MissingExtra:
        return None
    from tamis.kernels import clusters_kernel

    return clusters_kernel


_unsupported: set[str] = set()
"""Kernels that cannot be used on the GPU of this process."""


def _launch(name: str, programs: int, halves, *arguments: Any) -> bool:
    """Run a kernel; False if it cannot be used: not on a GPU, not in float16, without triton, or not on this GPU."""
    usable = FUSED and halves.is_cuda and halves.dtype == library().float16 and name not in _unsupported
    kernels = _kernels() if usable else None
    if kernels is None or not programs:
        return False
    try:
        getattr(kernels, name)[(programs,)](halves, *arguments, dimension=halves.shape[1], num_warps=8, **TILE)
    except kernels.FAILURES:
        _unsupported.add(name)
        return False
    return True


def _blocks(rows: int, width: int, item: int) -> Iterator[tuple[int, int]]:
    step = max(1, BLOCK_BYTES // max(1, width * item))
    return ((start, min(rows, start + step)) for start in range(0, rows, step))


# ------------------------------------------------------------------------------------------------------------- centres


def nearest(vectors: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """See `clusters.nearest`."""
    whole = to_device(vectors)
    home, similarity = nearest_on(whole, short(whole), to_device(centres))
    return home.int().cpu().numpy(), similarity.cpu().numpy()


def nearest_on(vectors, halves, centres) -> tuple[Any, Any]:
    """(int64: the most similar centre of each vector; float64: the similarity to it)"""
    torch = library()
    short_centres = short(centres).T.contiguous()
    home = torch.empty(len(halves), dtype=torch.int64, device=halves.device)
    margin = 2 * (MARGIN if halves.dtype == torch.float16 else clusters.MARGIN)
    if (fused := _nearest_fused(halves, short(centres), margin)) is not None:
        home, close = fused
        if len(close):
            home[close] = _exact_nearest(vectors[close], centres)
        return home, _exact_similarity(vectors, centres, home)
    for start, stop in _blocks(len(halves), len(centres), 2 * halves.element_size()):
        products = halves[start:stop] @ short_centres
        top, best = products.max(dim=1)
        if len(centres) > 1:
            products.scatter_(1, best[:, None], -2.0)
            close = (products.amax(dim=1) >= top - margin).nonzero()[:, 0]
            del products
            if len(close):
                best[close] = _exact_nearest(vectors[start:stop][close], centres)
        home[start:stop] = best
    return home, _exact_similarity(vectors, centres, home)


def _exact_similarity(vectors, centres, home) -> Any:
    torch = library()
    similarity = torch.empty(len(home), dtype=torch.float64, device=home.device)
    for start in range(0, len(home), PAIR_ROWS):
        some = slice(start, start + PAIR_ROWS)
        similarity[some] = _exact(vectors[some], centres[home[some]])
    return similarity.clamp_(max=1.0)


def _nearest_fused(halves, centres, margin: float) -> tuple[Any, Any] | None:
    """(the most similar centre of each vector by products in float16, vectors for which it may be another)"""
    torch, rows = library(), len(halves)
    best = torch.empty(rows, dtype=torch.int32, device=halves.device)
    top, second = (torch.empty(rows, dtype=torch.float32, device=halves.device) for _ in range(2))
    programs = -(-rows // TILE["queries"])
    if not _launch("top_two", programs, halves, centres.contiguous(), rows, len(centres), best, top, second):
        return None
    return best.long(), (second >= top - margin).nonzero()[:, 0]


def _exact_nearest(vectors, centres) -> Any:
    torch = library()
    found = torch.empty(len(vectors), dtype=torch.int64, device=vectors.device)
    for start, stop in _blocks(len(vectors), len(centres), 8):
        products = vectors[start:stop] @ centres.T
        top, best = products.max(dim=1)
        close = ((products >= (top - clusters.MARGIN)[:, None]).sum(dim=1) > 1).nonzero()[:, 0]
        if len(close):
            exact = vectors[start:stop][close].double() @ centres.T.double()
            tied = exact >= exact.amax(dim=1, keepdim=True) - 1e-14
            best[close] = tied.int().argmax(dim=1)  # the first of equal ones
        found[start:stop] = best
    return found


def exact_on(left, row, right, column) -> Any:
    """See `clusters.exact_products`."""
    return _exact(left[row], right[column])


def _exact(left, right) -> Any:
    products = (left.double() * right.double()).sum(dim=1)
    return (products * 2.0**40).round_() / 2.0**40


def fixed_sums(vectors: np.ndarray, home: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """See `clusters.fixed_sums`."""
    sums, counts = fixed_sums_on(to_device(vectors), to_device(home.astype(np.int64)), count)
    return sums.cpu().numpy(), counts.cpu().numpy()


def fixed_sums_on(vectors, home, count: int) -> tuple[Any, Any]:
    torch = library()
    sums = torch.zeros((count, vectors.shape[1]), dtype=torch.int64, device=vectors.device)
    for start in range(0, len(vectors), PAIR_ROWS):
        some = slice(start, start + PAIR_ROWS)
        fixed = (vectors[some].double() * clusters.FIXED).round_().long()
        sums.index_add_(0, home[some], fixed)  # integers: the order does not matter
    return sums, torch.bincount(home, minlength=count)


def plus_plus(candidates: np.ndarray, weights: np.ndarray, count: int, seed: int) -> np.ndarray:
    """See `clusters.plus_plus`. Nothing is copied to the host between two choices."""
    torch = library()
    vectors = to_device(candidates).double()
    weight = to_device(np.maximum(weights, 1e-3))
    draws = to_device(clusters.uniform(count, seed, 9))
    left = torch.ones(len(vectors), dtype=torch.bool, device=vectors.device)
    distance = torch.ones(len(vectors), dtype=torch.float64, device=vectors.device)
    last = torch.arange(len(vectors), device=vectors.device)
    chosen = torch.empty(count, dtype=torch.int64, device=vectors.device)
    for number in range(count):
        share = torch.where(left, distance.clamp(min=1e-12) * weight, 0.0)
        ends = share.cumsum(0)
        place = torch.searchsorted(ends, draws[number : number + 1] * ends[-1:], right=True)
        place = torch.minimum(place, torch.where(left, last, -1).amax())  # a draw at the very end
        chosen[number : number + 1] = place
        left[place] = False
        farther = (1.0 - vectors @ vectors[place][0]).clamp_(min=0.0)
        distance = torch.minimum(distance, farther) if number else farther
    return candidates[chosen.cpu().numpy()]


# --------------------------------------------------------------------------------------------------------------- pairs


def reach(
    vectors: np.ndarray, centres: np.ndarray, home: np.ndarray, threshold: float, limit: int | None
) -> tuple[np.ndarray, np.ndarray, int]:
    """See `clusters.reach`."""
    row, column, left_out = reach_on(
        to_device(vectors), to_device(centres), to_device(home.astype(np.int64)), threshold, limit
    )
    return row.cpu().numpy(), column.int().cpu().numpy(), left_out


def reach_on(vectors, centres, home, threshold: float, limit: int | None) -> tuple[Any, Any, int]:
    torch, device = library(), vectors.device
    chord, near = clusters.chord_of(threshold), clusters.num_near(limit, len(centres))
    nothing = torch.empty(0, dtype=torch.int64, device=device)
    if limit == 0 or len(centres) == 1 or not len(vectors):
        return nothing, nothing, 0
    order = torch.sort(home, stable=True)[1]
    ends = torch.searchsorted(home[order], torch.arange(len(centres) + 1, device=device)).tolist()
    gram = centres @ centres.T
    apart = (2.0 - 2.0 * gram).clamp_(min=1e-12).sqrt_()
    gram.fill_diagonal_(-torch.inf)
    table = gram.topk(near, dim=1)[1].sort(dim=1)[0]
    kept = near if limit is None else min(limit, near)
    rows_found, clusters_found, left_out = [nothing], [nothing], torch.zeros((), dtype=torch.int64, device=device)
    for own in range(len(centres)):
        others = table[own]
        for first, last in _blocks(ends[own + 1] - ends[own], near, 16):
            some = order[ends[own] + first : ends[own] + last]
            mine = vectors[some]
            margin = ((mine @ centres[own])[:, None] - mine @ centres[others].T) / apart[own, others]
            inside = margin <= chord
            if kept < near:
                left_out += (inside.sum(dim=1) > kept).sum()
                margin, place = margin.topk(kept, dim=1, largest=False, sorted=False)
                # Without a copy to the host: those out of reach are removed at the end.
                rows_found.append(some.repeat_interleave(kept))
                clusters_found.append(torch.where(margin <= chord, others[place], -1).flatten())
            else:
                row, place = inside.nonzero(as_tuple=True)
                rows_found.append(some[row])
                clusters_found.append(others[place])
    row, cluster = torch.cat(rows_found), torch.cat(clusters_found)
    inside = (cluster >= 0).nonzero()[:, 0]
    return row[inside], cluster[inside], int(left_out)


def first_matches(
    queries: np.ndarray,
    before: np.ndarray,
    targets: np.ndarray,
    threshold: float,
    limit: int,
    counts: np.ndarray,
    floor: float = 2.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """See `clusters.first_matches`."""
    left, right = to_device(queries), to_device(targets)
    search = Search(left, short(left), right, short(right), threshold, limit, floor)
    so_far = to_device(counts)
    every = library().arange(len(queries), device=left.device)
    found = search.run(every, to_device(before), slice(0, len(targets)), so_far)
    counts[:] = so_far.cpu().numpy()
    query, target, value, near, near_value = (part.cpu().numpy() for part in found)
    return query, target, value.astype(np.float32), near, near_value.astype(np.float32)


class Search:
    """Finds the first similar vectors in ranges of targets, which are in the order of the keep policy."""

    def __init__(self, left, left_short, right, right_short, threshold: float, limit: int, floor: float) -> None:
        self._left, self._left_short, self._right, self._right_short = left, left_short, right, right_short
        self._threshold, self._limit, self._floor = threshold, limit, floor
        torch = library()
        margin = MARGIN if left_short.dtype == torch.float16 else clusters.MARGIN
        self._least = threshold - clusters.TOLERANCE - margin

    def run(self, query, before, targets: slice, counts) -> tuple[Any, Any, Any, Any, Any]:
        """(query, target, similarity) of the matches, and (near miss, similarity) of each query, by position in `query`.

        query     the vectors on the left that are compared
        before    how many targets of the range, from its first on, each is compared with
        counts    matches of each so far; updated
        """
        torch = library()
        near = torch.full((len(query),), -1, dtype=torch.int64, device=query.device)
        near_value = torch.full((len(query),), -1.0, dtype=torch.float64, device=query.device)
        found: list[tuple[Any, Any, Any]] = []
        start, number = 0, 0
        size = targets.stop - targets.start
        while start < size:
            stop = min(size, start + WIDTHS[min(number, len(WIDTHS) - 1)])
            active = ((before > start) & (counts < self._limit)).nonzero()[:, 0]
            if not len(active):
                break
            for first, last in _blocks(len(active), stop - start, 8):
                some = active[first:last]
                found.append(self._block(query, before, some, targets.start, start, stop, counts, near, near_value))
            start, number = stop, number + 1
        parts = (
            [torch.cat(each) for each in zip(*found, strict=True)] if found else [near[:0], near[:0], near_value[:0]]
        )
        return parts[0], parts[1], parts[2], near, near_value

    def _block(
        self, query, before, some, offset: int, start: int, stop: int, counts, near, near_value
    ) -> tuple[Any, ...]:
        torch = library()
        products = self._left_short[query[some]] @ self._right_short[offset + start : offset + stop].T
        columns = torch.arange(start, stop, device=some.device)
        products.masked_fill_(columns >= before[some][:, None], -2.0)
        top, best = products.max(dim=1)
        hits = (top >= self._least).nonzero()[:, 0]
        row, column = (products[hits] >= self._least).nonzero(as_tuple=True)
        row = hits[row]
        value = torch.empty(len(row), dtype=torch.float64, device=some.device)
        for first in range(0, len(row), PAIR_ROWS):
            part = slice(first, first + PAIR_ROWS)
            value[part] = exact_on(self._left, query[some[row[part]]], self._right, offset + start + column[part])
        reached = value >= self._threshold - clusters.TOLERANCE
        if self._floor <= 1:
            close = ((top >= self._floor) & (top < self._least)).nonzero()[:, 0]
            exact = exact_on(self._left, query[some[close]], self._right, offset + start + best[close])
            below = ~reached & (value >= self._floor)
            missed, at, exact = (
                torch.cat(parts) for parts in ((close, row[below]), (best[close], column[below]), (exact, value[below]))
            )
            ascending = torch.argsort(exact, stable=True)
            ascending = ascending[torch.argsort(missed[ascending], stable=True)]
            missed, at, exact = missed[ascending], at[ascending], exact[ascending]
            last = torch.ones(len(missed), dtype=torch.bool, device=some.device)
            last[:-1] = missed[1:] != missed[:-1]
            chosen = (last & (exact > near_value[some[missed]])).nonzero()[:, 0]
            near_value[some[missed[chosen]]], near[some[missed[chosen]]] = exact[chosen], start + at[chosen]
        row, column, value = row[reached], column[reached], value[reached]
        place = torch.arange(len(row), device=some.device) - torch.searchsorted(row, row)
        within = counts[some[row]] + place < self._limit
        row, column, value = row[within], column[within], value[within]
        counts.index_add_(0, some[row], torch.ones_like(row))
        return some[row], start + column, value.clamp_(max=1.0)


# ------------------------------------------------------------------------------------------------------ all clusters at once


@dataclass(frozen=True)
class Matches:
    """Matches of visits: (visit, target) are positions, in the order of visits; near misses are of queries."""

    query: Any
    target: Any
    value: Any
    full: Any
    """Queries that may have more matches."""
    near_query: Any
    near_target: Any
    near_value: Any


def fused_matches(
    vectors, halves, query, before, ends, starts, threshold: float, limit: int, floor: float
) -> Matches | None:
    """What `Search` finds for all visits of all clusters; None if triton is missing or there are too many pairs.

    query      int64[visits]    the vectors that are compared, by cluster that they visit
    before     int64[visits]    with how many vectors of the cluster, from its first on
    ends       int64[clusters + 1]    the visits of each cluster
    starts     int64[clusters + 1]    the vectors of each cluster
    """
    torch, device, visits = library(), halves.device, len(query)
    cluster = torch.repeat_interleave(torch.arange(len(ends) - 1, device=device), ends.diff())
    order = torch.sort(cluster * (len(vectors) + 1) + before)[1]  # tiles of visits that are compared with equally many
    query, before, cluster = query[order], before[order], cluster[order]
    counts = torch.zeros(visits, dtype=torch.int64, device=device)
    active = torch.arange(visits, device=device)
    parts: list[tuple[Any, Any, Any]] = []
    skip = 0
    for stop in STAGES:
        active = active[(before[active] > skip) & (counts[active] < limit)]
        if not len(active):
            break
        mine, span = cluster[active], torch.arange(len(ends), device=device)
        found = _pairs_above(
            halves, query[active], before[active], torch.searchsorted(mine, span), starts,
            min(floor, threshold - clusters.TOLERANCE) - MARGIN, skip, stop,
        )  # fmt: skip
        if found is None:
            return None
        visit, target = active[found[0]], found[1] + starts[cluster[active[found[0]]]]
        value = torch.empty(len(visit), dtype=torch.float64, device=device)
        for start in range(0, len(visit), PAIR_ROWS):
            some = slice(start, start + PAIR_ROWS)
            value[some] = exact_on(vectors, query[visit[some]], vectors, target[some])
        parts.append((visit, target, value.clamp_(max=1.0)))
        reached = visit[value >= threshold - clusters.TOLERANCE]
        counts.index_add_(0, reached, torch.ones_like(reached))
        skip = stop
    if not parts:
        parts = [(active, active, active.double())]
    visit, target, value = (torch.cat(each) for each in zip(*parts, strict=True))
    by_visit = torch.sort(visit, stable=True)[1]  # the stages, and the targets of each, are in ascending order
    visit, target, value = visit[by_visit], target[by_visit], value[by_visit]
    reached = value >= threshold - clusters.TOLERANCE
    near = _best_of(query[visit[~reached]], target[~reached], value[~reached], floor)
    visit, target, value = visit[reached], target[reached], value[reached]
    place = torch.arange(len(visit), device=device) - torch.searchsorted(visit, visit)
    within = place < limit
    return Matches(query[visit[within]], target[within], value[within], query[counts >= limit], *near)


def _best_of(query, target, value, floor: float) -> tuple[Any, Any, Any]:
    """The target with the highest value of each query, if that is at least `floor`."""
    torch = library()
    some = (value >= floor).nonzero()[:, 0]
    some = some[torch.argsort(value[some], stable=True)]
    some = some[torch.argsort(query[some], stable=True)]
    last = torch.ones(len(some), dtype=torch.bool, device=query.device)
    last[:-1] = query[some[1:]] != query[some[:-1]]
    some = some[last]
    return query[some], target[some], value[some]


def _pairs_above(halves, query, before, ends, starts, least: float, skip: int, stop: int) -> Any:
    """(visit, number of the target in its cluster), sorted, of all pairs with a product of at least `least`."""
    torch, device, size = library(), halves.device, TILE["queries"]
    per_cluster = (ends.diff() + size - 1) // size
    cluster = torch.repeat_interleave(torch.arange(len(per_cluster), device=device), per_cluster)
    number = torch.arange(len(cluster), device=device) - (per_cluster.cumsum(0) - per_cluster)[cluster]
    first = ends[cluster] + number * size
    last = torch.minimum(first + size, ends[cluster + 1])
    visit = torch.empty(MAX_PAIRS, dtype=torch.int64, device=device)
    target = torch.empty(MAX_PAIRS, dtype=torch.int32, device=device)
    value = torch.empty(MAX_PAIRS, dtype=torch.float32, device=device)
    found = torch.zeros(1, dtype=torch.int64, device=device)
    if not _launch(
        "pairs_above", len(cluster), halves, query, before.int(), first, last, starts[cluster], least, skip, stop,
        MAX_PAIRS, visit, target, value, found,
    ):  # fmt: skip
        return None
    count = int(found)
    if count > MAX_PAIRS:
        return None
    order = torch.sort(visit[:count] * 2**31 + target[:count])[1]
    return visit[:count][order], target[:count][order].long()
