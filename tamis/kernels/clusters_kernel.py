"""Kernels of `clusters_gpu`, in a module of its own because importing it needs triton.

Products of vectors in float16, summed in float32, are reduced where they are computed and never written to memory.
"""
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

FAILURES = (triton.CompilationError, triton.OutOfResources)
"""What a launch raises on a GPU that does not support these kernels."""


@triton.jit
def top_two(
    vectors, centres, rows, count, best_out, top_out, second_out,
    dimension: tl.constexpr, queries: tl.constexpr, targets: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    """The most similar centre of each vector, its product, and the product of the next one; one program per block of vectors.

    vectors    float16[rows, dimension]
    centres    float16[count, dimension]
    """
    row = tl.program_id(0).to(tl.int64) * queries + tl.arange(0, queries)
    inside = row < rows
    best = tl.zeros((queries,), tl.int32)
    top = tl.full((queries,), -4.0, tl.float32)
    second = tl.full((queries,), -4.0, tl.float32)
    for begin in range(0, count, targets):
        column = begin + tl.arange(0, targets)
        products = tl.zeros((queries, targets), tl.float32)
        for at in range(0, dimension, step):
            place = at + tl.arange(0, step)
            known = place < dimension
            left = tl.load(
                vectors + row[:, None] * dimension + place[None, :], mask=inside[:, None] & known[None, :], other=0.0
            )
            right = tl.load(
                centres + column[None, :] * dimension + place[:, None],
                mask=(column < count)[None, :] & known[:, None],
                other=0.0,
            )
            products = tl.dot(left, right, products)
        products = tl.where((column < count)[None, :], products, -4.0)
        high = tl.max(products, axis=1)
        where = tl.argmax(products, axis=1)
        others = tl.where(tl.arange(0, targets)[None, :] == where[:, None], -4.0, products)
        second = tl.maximum(tl.maximum(second, tl.max(others, axis=1)), tl.minimum(top, high))
        best = tl.where(high > top, begin + where, best)
        top = tl.maximum(top, high)
    tl.store(best_out + row, best, mask=inside)
    tl.store(top_out + row, top, mask=inside)
    tl.store(second_out + row, second, mask=inside)


@triton.jit
def pairs_above(
    vectors, query, before, tile_first, tile_last, tile_target, least, skip, stop, capacity,
    visit_out, target_out, value_out, found,
    dimension: tl.constexpr, queries: tl.constexpr, targets: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    """The pairs of visits and targets whose product is at least `least`, in any order; one program per tile of visits.

    vectors       float16[rows, dimension]    those of a cluster are adjacent
    query         int64[visits]               the vector that visits a cluster; visits of a cluster are adjacent
    before        int32[visits]               how many vectors of the cluster, from its first on, it is compared with
    tile_first, tile_last    int64[tiles]     the visits of a tile, all of one cluster
    tile_target   int64[tiles]                the first vector of that cluster
    skip, stop                                the part of each cluster that is compared
    visit_out     int64[capacity], target_out int32[capacity] (its number in the cluster), value_out float32[capacity]
    found         int64[1]                    how many pairs there are; only the first `capacity` are written
    """
    tile = tl.program_id(0)
    first, last, start = tl.load(tile_first + tile), tl.load(tile_last + tile), tl.load(tile_target + tile)
    visit = first + tl.arange(0, queries)
    inside = visit < last
    row = tl.load(query + visit, mask=inside, other=0)
    limit = tl.load(before + visit, mask=inside, other=0)
    end = tl.minimum(tl.max(limit, axis=0), stop)
    for begin in range(skip, end, targets):
        column = begin + tl.arange(0, targets)
        products = tl.zeros((queries, targets), tl.float32)
        for at in range(0, dimension, step):
            place = at + tl.arange(0, step)
            known = place < dimension
            left = tl.load(
                vectors + row[:, None] * dimension + place[None, :], mask=inside[:, None] & known[None, :], other=0.0
            )
            right = tl.load(
                vectors + (start + column)[None, :] * dimension + place[:, None],
                mask=(column < end)[None, :] & known[:, None],
                other=0.0,
            )
            products = tl.dot(left, right, products)
        hit = (products >= least) & (column[None, :] < limit[:, None]) & (column < stop)[None, :]
        if tl.max(tl.max(hit.to(tl.int32), axis=1), axis=0) > 0:
            one = tl.full((queries, targets), 1, tl.int64)
            place_out = tl.atomic_add(found + tl.zeros((queries, targets), tl.int64), one, mask=hit)
            written = hit & (place_out < capacity)
            tl.store(visit_out + place_out, visit[:, None] + tl.zeros((queries, targets), tl.int64), mask=written)
            tl.store(target_out + place_out, column[None, :] + tl.zeros((queries, targets), tl.int32), mask=written)
            tl.store(value_out + place_out, products, mask=written)
