"""Sets of n-grams as sorted numbers, whole or packed, and the similarity of two sets.

    n-grams of a text, 32 bits each  --sorted, without repeats-->                       whole: 4 bytes per n-gram
                                     --upper bits, gaps between neighbours-->           packed: about 1 byte per n-gram

A packed set of n n-grams keeps only the upper bits of each, enough to tell 32 n to 64 n places apart. The gap between
neighbours takes one byte, preceded by a byte 255 for each 255 that do not fit. N-grams of a set with the same place are all
kept, so packing loses nothing that two texts share. But n-grams that only one of the texts has may fall on the same place by
chance: with d of them in one text and e in the other, d * e / places pairs are expected, and are subtracted. The remaining
error is random. At a similarity of 0.8 its standard deviation is 0.001 for 1000 n-grams and falls with the square root of
their number; for texts of 100 n-grams, one pair in thirty is off by one n-gram.
"""
# mypy: disallow-untyped-defs=False, disable-error-code="call-arg,var-annotated,assignment"

from __future__ import annotations

import math

import numpy as np

from tamis.kernels.jit import kernel

FULL_BITS = 32
"""Bits of an n-gram in a whole set."""
SPARE_BITS = 5
"""Bits of a place beyond those needed to number the n-grams. One more halves the errors, and one gap in ten takes two bytes."""

STRIDE = 64
"""Values that `overlap` compares before it checks whether the sets can still be similar enough."""

ESCAPE = 255
"""A gap of this size or more takes another byte."""


def max_packed_bytes(num_ngrams: int, rows: int) -> int:
    """The most bytes that the packed sets of `rows` rows take: the gaps of n n-grams add up to less than 64 n."""
    return num_ngrams + (num_ngrams << (SPARE_BITS + 1)) // ESCAPE + rows


@kernel
def bits_of(size):
    """Bits per place in a packed set of this size."""
    bits = SPARE_BITS
    while bits < FULL_BITS and (1 << (bits - SPARE_BITS)) < size:
        bits += 1
    return bits


@kernel
def sort_unique(values, least, ends, out):
    """Write the distinct values (one below `least` counts as `least`) in ascending order to `out`; returns their number.

    The values are hashes, so a bin sort by their upper bits, with about one value per bin, almost sorts them.

    ends  int32, working memory for 2 * len(values) + 1 entries
    """
    bits = 1
    while 1 << bits < len(values):
        bits += 1
    shift = np.uint32(32 - bits)
    for number in range((1 << bits) + 1):
        ends[number] = 0
    for value in values:
        ends[np.int64(max(value, least) >> shift) + 1] += 1
    for number in range(1 << bits):
        ends[number + 1] += ends[number]
    for value in values:
        value = max(value, least)
        place = np.int64(value >> shift)
        out[ends[place]] = value
        ends[place] += 1
    count = 0
    for index in range(len(values)):
        value, at = out[index], count
        while at and out[at - 1] > value:  # only values of the same bin
            out[at] = out[at - 1]
            at -= 1
        if at and out[at - 1] == value:
            for back in range(at, count):  # a repeat: undo the moves
                out[back] = out[back + 1]
            continue
        out[at] = value
        count += 1
    return count


@kernel
def pack_sets(values, offsets, out, spans):
    """Pack the n-grams of each row (uint32, in any order, repeats allowed).

    out    uint8[max_packed_bytes]
    spans  int64[rows + 1]          offsets of the rows in out
    """
    largest = np.int64(0)
    for row in range(len(offsets) - 1):
        largest = max(largest, offsets[row + 1] - offsets[row])
    ordered, ends = np.empty(largest + 1, np.uint32), np.empty(2 * largest + 2, np.int32)
    size = np.int64(0)
    for row in range(len(offsets) - 1):
        spans[row] = size
        found = values[offsets[row] : offsets[row + 1]]
        count = sort_unique(found, np.uint32(1), ends, ordered)
        shift = np.uint32(FULL_BITS - bits_of(count))
        before = np.uint32(0)
        for index in range(count):
            place = np.uint32(ordered[index] >> shift)
            gap = np.uint32(place - before)
            before = place
            while gap >= ESCAPE:
                out[size] = ESCAPE
                gap -= np.uint32(ESCAPE)
                size += 1
            out[size] = gap
            size += 1
    spans[len(offsets) - 1] = size


@kernel
def packed_sizes(packed, offsets, spans):
    """spans[i] = number of n-grams in the rows before i; offsets int64[rows + 1] of the bytes."""
    size = np.int64(0)
    for row in range(len(offsets) - 1):
        spans[row] = size
        for index in range(offsets[row], offsets[row + 1]):
            size += np.int64(packed[index] != ESCAPE)
    spans[len(offsets) - 1] = size


@kernel
def unpack_sets(packed, offsets, spans, places, bits):
    """Write the places (uint32, ascending) of the n-grams of each row, and their number of bits."""
    for row in range(len(offsets) - 1):
        at = spans[row]
        place = np.uint32(0)
        for index in range(offsets[row], offsets[row + 1]):
            place += np.uint32(packed[index])
            if packed[index] != ESCAPE:
                places[at] = place
                at += 1
        bits[row] = bits_of(spans[row + 1] - spans[row])


@kernel
def sort_sets(values, offsets, out, spans):
    """Sort the values of each row and remove repeats; out is as long as values, spans int64[rows + 1] are its offsets."""
    largest = np.int64(0)
    for row in range(len(offsets) - 1):
        largest = max(largest, offsets[row + 1] - offsets[row])
    ends = np.empty(2 * largest + 2, np.int32)
    size = np.int64(0)
    for row in range(len(offsets) - 1):
        spans[row] = size
        size += sort_unique(values[offsets[row] : offsets[row + 1]], np.uint32(0), ends, out[size:])
    spans[len(offsets) - 1] = size


@kernel
def overlap(values, first, last, shift, other, end, other_shift, max_unmatched):
    """How many values two ascending spans of an array share after a right shift; repeats count as often as both have them.

    Returns -1 as soon as more than `max_unmatched` values of the two spans are known to have no counterpart.
    """
    shared = np.int64(0)
    begin = first + other
    while first < last and other < end:
        # Checked once per stride, since a check for each value would be slower than the comparison.
        stop = min(first + STRIDE, last)
        other_stop = min(other + STRIDE, end)
        while first < stop and other < other_stop:
            a, b = values[first] >> shift, values[other] >> other_shift
            shared += np.int64(a == b)
            first += np.int64(a <= b)
            other += np.int64(b <= a)
        if first + other - begin - 2 * shared > max_unmatched:
            return np.int64(-1)
    return shared


@kernel
def jaccard_similarity(a, b, sets, spans, bits, least):
    """The Jaccard similarity of the sets of rows a and b, or -1 once it is certain to be below `least`.

    sets   uint32             ascending values of all rows, concatenated
    spans  int64[rows + 1]    offsets of the rows in sets
    bits   int8[rows]         bits of the values of a row: FULL_BITS, or those of a packed set
    """
    size_a, size_b = spans[a + 1] - spans[a], spans[b + 1] - spans[b]
    if min(size_a, size_b) < least * max(size_a, size_b) - 1e-9:
        return -1.0  # even a subset of the larger set would not be similar enough
    # shared / (a + b - shared) >= least  is  shared >= least / (1 + least) * (a + b); the rest is unmatched.
    needed = math.ceil(least / (1.0 + least) * (size_a + size_b) - 1e-6)
    common = min(bits[a], bits[b])
    shared = overlap(
        sets, spans[a], spans[a + 1], np.uint32(bits[a] - common), spans[b], spans[b + 1], np.uint32(bits[b] - common),
        size_a + size_b - 2 * needed,
    )  # fmt: skip
    if shared < 0:
        return -1.0
    by_chance = (size_a - shared) * (size_b - shared) / 2.0**common
    shared = max(0, math.floor(shared - by_chance + 0.5))
    return shared / max(1, size_a + size_b - shared)
