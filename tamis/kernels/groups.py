"""From pairs that may be alike to groups: union-find in integer arrays, and the choice of who stays.

Nothing here is a dict: what grows with the rows is an array the caller gives, in memory or mapped from disk.
"""
# mypy: disallow-untyped-defs=False, disable-error-code="call-arg,var-annotated,assignment"

from __future__ import annotations

import numpy as np
from numba import njit

MAX_COMPARED = 256
"""Kept rows that one row is compared with at most. It only matters where hundreds of rows meet in a band and are yet unlike
each other (pages of one template); there it bounds the time, and may keep a row too many, never drop one too many."""

SIGNATURE, SETS, CHAINED = 0, 1, 2
"""How alike two rows are: by their signatures, by their sets of n-grams; or all of a component count as alike."""


@njit(nogil=True, cache=True)
def find_root(parents, row):
    while parents[row] != row:
        parents[row] = parents[parents[row]]
        row = parents[row]
    return row


@njit(nogil=True, cache=True)
def unite(parents, left, right):
    """Join the sets of left[i] and right[i]; the root of a set is its smallest member."""
    for index in range(len(left)):
        a = find_root(parents, np.int64(left[index]))
        b = find_root(parents, np.int64(right[index]))
        if a < b:
            parents[b] = a
        elif b < a:
            parents[a] = b


@njit(nogil=True, cache=True)
def flatten(parents, start, stop, touched, out):
    """out[i] = root of row start + i, or -1 where touched says that the row was never joined to another."""
    for row in range(start, stop):
        out[row - start] = find_root(parents, row) if touched[row] else -1


@njit(nogil=True, cache=True)
def mark(touched, rows):
    for index in range(len(rows)):
        touched[rows[index]] = True


@njit(nogil=True, cache=True)
def repeated_keys(ordered, table):
    """Put the keys that occur twice or more in `ordered` (sorted uint64) into an open-addressing table; how many."""
    mask = np.uint64(len(table) - 1)
    count = 0
    for index in range(1, len(ordered)):
        key = ordered[index]
        if key == ordered[index - 1] and (index == 1 or ordered[index - 2] != key):
            slot = key & mask
            while table[slot] != 0:
                slot = (slot + np.uint64(1)) & mask
            table[slot] = key
            count += 1
    return count


@njit(nogil=True, cache=True)
def in_table(keys, table, out):
    mask = np.uint64(len(table) - 1)
    for index in range(len(keys)):
        key = keys[index]
        slot = key & mask
        while table[slot] != 0 and table[slot] != key:
            slot = (slot + np.uint64(1)) & mask
        out[index] = table[slot] == key


@njit(nogil=True, cache=True)
def scatter_keys(keys, wanted, first, num_buckets, ends, out_keys, out_rows):
    """The keys of each wanted row, and its number, in the order of their buckets; bucket b ends at ends[b].

    keys uint64[rows, keys per row]; rows are numbered from `first`.
    """
    buckets = np.uint64(num_buckets)
    starts = np.zeros(num_buckets + 1, np.int64)
    for row in range(len(keys)):
        if wanted[row]:
            for index in range(keys.shape[1]):
                starts[np.int64((keys[row, index] >> np.uint64(48)) * buckets >> np.uint64(16)) + 1] += 1
    for bucket in range(num_buckets):
        starts[bucket + 1] += starts[bucket]
        ends[bucket] = starts[bucket + 1]
    for row in range(len(keys)):
        if wanted[row]:
            for index in range(keys.shape[1]):
                bucket = np.int64((keys[row, index] >> np.uint64(48)) * buckets >> np.uint64(16))
                out_keys[starts[bucket]] = keys[row, index]
                out_rows[starts[bucket]] = first + row
                starts[bucket] += 1


@njit(nogil=True, cache=True)
def count_equal(left, right):
    equal = 0
    for index in range(len(left)):
        equal += np.int64(left[index] == right[index])
    return equal


@njit(nogil=True, cache=True)
def overlap(values, first, last, other, end):
    """How many values two sorted spans of an array of distinct values share."""
    shared = np.int64(0)
    while first < last and other < end:
        a, b = values[first], values[other]
        shared += np.int64(a == b)
        first += np.int64(a <= b)
        other += np.int64(b <= a)
    return shared


@njit(nogil=True, cache=True)
def _likeness(how, a, b, signatures, sets, spans, threshold):
    if how == SETS:
        size_a, size_b = spans[a + 1] - spans[a], spans[b + 1] - spans[b]
        if min(size_a, size_b) < threshold * max(size_a, size_b) - 1e-9:
            return -1.0  # even if one held the other they could not be alike enough
        shared = overlap(sets, spans[a], spans[a + 1], spans[b], spans[b + 1])
        return shared / (size_a + size_b - shared)
    return count_equal(signatures[a], signatures[b]) / signatures.shape[1]


@njit(nogil=True, cache=True)
def choose(
    components, ranks, keys, fixed, how, signatures, sets, spans, threshold, floor, twins, likeness, near, near_likeness
):
    """Decide who stays, going through the rows of each component in the order of the keep policy.

    A row goes if a row that stays, and that it shares a band with, is alike enough; it goes in favour of the most alike of
    these, of the best ranked one among equals. So nothing goes but in favour of a row that stays and was compared with it.

    components  int64[rows]          ascending; rows of a component follow each other in the order of the policy
    ranks       int64[rows]          equal where rows must not be compared (same source, if only other sources count)
    keys        uint64[rows, bands]  rows meet where a key is equal
    fixed       bool[rows]           rows that stay whatever they are like
    twins       int64[rows]          out: in whose favour, or -1 for rows that stay
    likeness    float64[rows]        out: how alike the twin is
    near, near_likeness              out: for rows that stay, the most alike row they were compared with, if above `floor`
    """
    rows, bands = keys.shape
    seen = np.full(rows, -1, np.int64)
    following = np.empty((rows, bands), np.int32)
    first = 0
    while first < rows:
        last = first
        while last < rows and components[last] == components[first]:
            last += 1
        slots = 16
        while 3 * slots < 4 * (last - first) * bands:
            slots *= 2
        heads = np.full(slots, -1, np.int32)  # of the chain of kept rows with a key: (row - first) * bands + band
        mask = np.uint64(slots - 1)
        for row in range(first, last):
            best, best_likeness = np.int64(-1), -1.0
            if how == CHAINED:
                if row > first:
                    best = np.int64(first)
                    best_likeness = count_equal(signatures[row], signatures[first]) / signatures.shape[1]
            elif not fixed[row]:
                compared = 0
                for band in range(bands):
                    key = keys[row, band]
                    slot = key & mask
                    while heads[slot] >= 0 and keys[first + heads[slot] // bands, heads[slot] % bands] != key:
                        slot = (slot + np.uint64(1)) & mask
                    other = first + np.int64(heads[slot]) // bands if heads[slot] >= 0 else np.int64(-1)
                    while other >= 0 and compared < MAX_COMPARED:
                        if seen[other] != row and ranks[other] != ranks[row]:
                            seen[other] = row
                            compared += 1
                            alike = _likeness(how, row, other, signatures, sets, spans, min(threshold, floor))
                            if alike > best_likeness or (alike == best_likeness and other < best):
                                best, best_likeness = np.int64(other), alike
                        other = np.int64(following[other, band])
            alike_enough = best >= 0 and (how == CHAINED or best_likeness >= threshold - 1e-9)
            twins[row] = best if alike_enough and not fixed[row] else -1
            likeness[row] = best_likeness if alike_enough else 0.0
            near[row] = best if best >= 0 and not alike_enough and best_likeness >= floor else -1
            near_likeness[row] = max(best_likeness, 0.0)
            if twins[row] >= 0 or how == CHAINED:
                continue
            for band in range(bands):  # this row stays: others with the same keys will be compared with it
                key = keys[row, band]
                slot = key & mask
                while heads[slot] >= 0 and keys[first + heads[slot] // bands, heads[slot] % bands] != key:
                    slot = (slot + np.uint64(1)) & mask
                before = heads[slot]
                following[row, band] = np.int32(first + before // bands) if before >= 0 else np.int32(-1)
                heads[slot] = np.int32((row - first) * bands + band)
        first = last


@njit(nogil=True, cache=True)
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
