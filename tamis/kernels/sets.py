"""Sets of n-grams as ascending numbers, whole or packed, and how alike two of them are.

    n-grams of a text, 32 bits each  --ascending, without repeats-->                  whole: 4 bytes per n-gram
                                     --their upper bits, the gaps between them-->     packed: about 1 byte per n-gram

Of each of n n-grams a packed set keeps the place it falls on, of 32 n to 64 n places: as many upper bits as that takes. A gap
between neighbours is a byte, after a 255 for each 255 that do not fit. N-grams of one set that fall on one place are kept
all the same, so that nothing is lost of what two texts share; but where one text alone has d n-grams and the other alone
has e, d * e / places pairs of them are expected to fall on one place and to look alike. That is subtracted. What
remains is chance: at a similarity of 0.8 a standard deviation of 0.001 at 1000 n-grams (it falls as their root grows); of
texts of 100, one pair in thirty is off, by one n-gram.
"""
# mypy: disallow-untyped-defs=False, disable-error-code="call-arg,var-annotated,assignment"

from __future__ import annotations

import math

import numpy as np

from tamis.kernels.jit import kernel

FULL_BITS = 32
"""Bits of an n-gram in a set that is not packed."""
SPARE_BITS = 5
"""Bits of a place beyond those that number the n-grams. One more halves the mistakes, and one gap in ten takes two bytes."""

STRIDE = 64
"""Values that `overlap` compares before it checks whether the sets can still be similar enough."""

ESCAPE = 255
"""A gap that is this or more takes another byte."""


def max_packed_bytes(num_ngrams: int, rows: int) -> int:
    """Bytes that so many n-grams of so many sets take at most: the gaps of n n-grams sum up to less than 64 n places."""
    return num_ngrams + (num_ngrams << (SPARE_BITS + 1)) // ESCAPE + rows


@kernel
def bits_of(size):
    """Of how many bits a place in a packed set of some size is."""
    bits = SPARE_BITS
    while bits < FULL_BITS and (1 << (bits - SPARE_BITS)) < size:
        bits += 1
    return bits


@kernel
def sort_unique(values, ends, out):
    """The different values (0 counts as 1) in ascending order, to the front of `out`; how many they are.

    Values are hashes: thrown into as many bins as they are, by their upper bits, each lies almost where it belongs.

    ends  int32, room for twice as many as there are values, and one more
    """
    bits = 1
    while 1 << bits < len(values):
        bits += 1
    shift = np.uint32(32 - bits)
    for number in range((1 << bits) + 1):
        ends[number] = 0
    for value in values:
        ends[np.int64(max(value, np.uint32(1)) >> shift) + 1] += 1
    for number in range(1 << bits):
        ends[number + 1] += ends[number]
    for value in values:
        value = max(value, np.uint32(1))
        place = np.int64(value >> shift)
        out[ends[place]] = value
        ends[place] += 1
    count = 0
    for index in range(len(values)):
        value, at = out[index], count
        while at and out[at - 1] > value:  # few: those of the same bin
            out[at] = out[at - 1]
            at -= 1
        if at and out[at - 1] == value:
            for back in range(at, count):  # it is there already: what moved on moves back
                out[back] = out[back + 1]
            continue
        out[at] = value
        count += 1
    return count


@kernel
def pack_sets(values, offsets, out, spans):
    """Pack the n-grams of each row (uint32, in any order, repeated or not).

    out    uint8[packed_room]
    spans  int64[rows + 1]  where the bytes of each row begin
    """
    largest = np.int64(0)
    for row in range(len(offsets) - 1):
        largest = max(largest, offsets[row + 1] - offsets[row])
    ordered, ends = np.empty(largest + 1, np.uint32), np.empty(2 * largest + 2, np.int32)
    size = np.int64(0)
    for row in range(len(offsets) - 1):
        spans[row] = size
        found = values[offsets[row] : offsets[row + 1]]
        count = sort_unique(found, ends, ordered)
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
    """spans[i] = how many n-grams the rows before i have; offsets int64[rows + 1] of the bytes."""
    size = np.int64(0)
    for row in range(len(offsets) - 1):
        spans[row] = size
        for index in range(offsets[row], offsets[row + 1]):
            size += np.int64(packed[index] != ESCAPE)
    spans[len(offsets) - 1] = size


@kernel
def unpack_sets(packed, offsets, spans, places, bits):
    """The places (uint32, ascending) of the n-grams of each row, and of how many bits they are."""
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
    """Sort the values of each row and leave out repeats; out has room for all of them, spans int64[rows + 1]."""
    size = np.int64(0)
    for row in range(len(offsets) - 1):
        spans[row] = size
        ordered = np.sort(values[offsets[row] : offsets[row + 1]])
        for index in range(len(ordered)):
            if index == 0 or ordered[index] != ordered[index - 1]:
                out[size] = ordered[index]
                size += 1
    spans[len(offsets) - 1] = size


@kernel
def overlap(values, first, last, shift, other, end, other_shift, max_unmatched):
    """How many values two ascending spans of an array share, after each is shifted down; repeats count as often as in both.

    Returns -1 as soon as more than `max_unmatched` values of the two spans are known to have no counterpart.
    """
    shared = np.int64(0)
    begin = first + other
    while first < last and other < end:
        # The check is cheap only when it is rare. A step advances each span by one value at most.
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

    sets   uint32             ascending values of all rows, one row after the other
    spans  int64[rows + 1]    where those of each row begin
    bits   int8[rows]         how many bits the values of a row have: WHOLE, or those of a packed set
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
