"""The kernel of `deberta.py`, in a module of its own because importing it needs triton."""
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def attend(
    query, key, value, to_position, from_position, table, mask, out,
    rows, length, heads, buckets, scale,
    size: tl.constexpr, queries: tl.constexpr, keys: tl.constexpr,
):  # fmt: skip
    """One program per block of queries of one head of one row.

    query, key, value, out        [rows * length, heads, size]
    to_position, from_position    [heads, rows * length, buckets]: products of queries, and of keys, with all positions
    table                         int32[2 * length - 1]: the bucket of each distance, from -(length - 1) on
    mask                          int8[rows, length]: which keys count; at least one of each row does
    """
    row, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    first = row.to(tl.int64) * length
    at = tl.program_id(0) * queries + tl.arange(0, queries)
    inside = at < length
    within = tl.arange(0, size)
    stride = heads * size
    token = first + at
    q = tl.load(query + token[:, None] * stride + head * size + within[None, :], mask=inside[:, None], other=0.0)
    tokens = rows * length
    by_query = to_position + (head * tokens + token) * buckets
    highest = tl.full([queries], float("-inf"), tl.float32)
    total = tl.zeros([queries], tl.float32)
    sums = tl.zeros([queries, size], tl.float32)
    for start in range(0, length, keys):
        other = start + tl.arange(0, keys)
        known = other < length
        counts = tl.load(mask + first + other, mask=known, other=0) != 0
        place = (first + other)[:, None] * stride + head * size + within[None, :]
        k = tl.load(key + place, mask=known[:, None], other=0.0)
        v = tl.load(value + place, mask=known[:, None], other=0.0)
        both = inside[:, None] & counts[None, :]
        bucket = tl.load(table + at[:, None] - other[None, :] + length - 1, mask=both, other=0)
        by_key = from_position + (head * tokens + first + other) * buckets
        score = tl.dot(q, tl.trans(k), input_precision="ieee")
        score += tl.load(by_query[:, None] + bucket, mask=both, other=0.0).to(tl.float32)
        score += tl.load(by_key[None, :] + bucket, mask=both, other=0.0).to(tl.float32)
        score = tl.where(counts[None, :], score * scale, float("-inf"))
        new = tl.maximum(highest, tl.max(score, 1))
        safe = tl.where(new == float("-inf"), 0.0, new)  # no key so far
        weight = tl.exp2(score - safe[:, None])
        factor = tl.exp2(highest - safe)
        total = total * factor + tl.sum(weight, 1)
        sums = sums * factor[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        highest = new
    result = sums / total[:, None]
    place = token[:, None] * stride + head * size + within[None, :]
    tl.store(out + place, result.to(out.dtype.element_ty), mask=inside[:, None])
