"""Classify 64 bytes at a time: one bit per byte, set if the byte is in a given set.

bytes   T h e   e n d .          sets of bytes become range comparisons, which the compiler turns into the vector
space   . . . x . . . .          instructions of the machine
stop    . . . . . . . x
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from tamis.kernels.jit import inlined, intrinsic, ir, types

LANES = 64
ONE, ALL = np.uint64(1), np.uint64(2**64 - 1)


def _ranges(members: Iterable[int]) -> list[tuple[int, int]]:
    """Return the runs of consecutive numbers as (first, last)."""
    ordered = sorted(set(members))
    breaks = [0, *(index + 1 for index, (a, b) in enumerate(pairwise(ordered)) if b != a + 1), len(ordered)]
    return [(ordered[first], ordered[stop - 1]) for first, stop in pairwise(breaks)]


def matcher(*sets: Iterable[int]) -> Callable[..., Any]:
    """Return a function that takes an address (`array.ctypes.data` plus an offset) and returns one uint64 per set.

    Bit i is set if byte i is in the set. All 64 bytes must be readable.
    """
    parts = [_ranges(members) for members in sets]

    @intrinsic
    def match(typingctx, address):
        def generate(context, builder, signature, arguments):
            vector = ir.VectorType(ir.IntType(8), LANES)

            def splat(value: int) -> ir.Constant:
                return ir.Constant(vector, [value] * LANES)

            found = builder.load(builder.inttoptr(arguments[0], vector.as_pointer()), align=1)
            masks = []
            for ranges in parts:
                hits = None
                for first, last in ranges:
                    moved = builder.sub(found, splat(first)) if first else found
                    hit = builder.icmp_unsigned("<=", moved, splat(last - first))
                    hits = hit if hits is None else builder.or_(hits, hit)
                masks.append(builder.bitcast(hits, ir.IntType(LANES)))
            return context.make_tuple(builder, signature.return_type, masks)

        return types.UniTuple(types.uint64, len(parts))(types.intp), generate

    return match  # type: ignore[no-any-return]


@intrinsic
def folded_matches(typingctx, address, byte):
    """Return a bit for each of the 64 bytes at an address that equals `byte` once its bit 5 is set: A-Z match a-z."""

    def generate(context, builder, signature, arguments):
        vector = ir.VectorType(ir.IntType(8), LANES)
        found = builder.load(builder.inttoptr(arguments[0], vector.as_pointer()), align=1)
        one = builder.insert_element(ir.Constant(vector, ir.Undefined), arguments[1], ir.Constant(ir.IntType(32), 0))
        indices = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        wanted = builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), indices)
        folded = builder.or_(found, ir.Constant(vector, [32] * LANES))
        return builder.bitcast(builder.icmp_unsigned("==", folded, wanted), ir.IntType(LANES))

    return types.uint64(types.intp, types.uint8), generate


@intrinsic
def ones(typingctx, bits):
    """Return the number of bits set in a uint64, as int64."""

    def generate(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate


@intrinsic
def highest(typingctx, bits):
    """Return the position of the highest bit set in a nonzero uint64, as int64."""

    def generate(context, builder, signature, arguments):
        return builder.sub(
            ir.Constant(ir.IntType(64), LANES - 1), builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 1))
        )

    return types.int64(types.uint64), generate


@intrinsic
def lowest(typingctx, bits):
    """Return the position of the lowest bit set in a nonzero uint64, as int64."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


@inlined
def below(count):
    """Return a uint64 with its lowest `count` bits set: none if count is negative, all if it is 64 or more."""
    if count >= LANES:
        return ALL
    return (ONE << np.uint64(count)) - ONE if count > 0 else np.uint64(0)


def last_block(data, base):
    """Return the last, incomplete block of 64 bytes counted from `base`, padded with zeros."""
    block = np.zeros(LANES, np.uint8)
    rest = data[base + (len(data) - base) // LANES * LANES :]
    block[: len(rest)] = rest
    return block


@inlined
def block_at(data, tail, at):
    """Return the address of the 64 bytes at `at`, or of `tail` (see `last_block`) if fewer are left in the array."""
    return data.ctypes.data + at if at + LANES <= len(data) else tail.ctypes.data
