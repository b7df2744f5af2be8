"""From candidate pairs to duplicates: union-find in integer arrays, and the choice of the rows to keep.

All state that grows with the number of rows is in arrays that the caller passes, in memory or mapped from disk.
"""
# mypy: disallow-untyped-defs=False, disable-error-code="call-arg,var-annotated,assignment"

from __future__ import annotations

import numpy as np

from tamis.kernels.jit import kernel
from tamis.kernels.sets import jaccard_similarity

MAX_LINKED = 256
"""Survivors sharing a band with a row that it is compared with at most."""

MAX_UNLINKED = 64
"""Other survivors of its component that a row is compared with at most.

Both limits matter only where hundreds of dissimilar rows are linked, such as pages of one template. They bound the time
per row. A row beyond them may be kept although it has a duplicate; none is dropped that has none."""


@kernel
def find_root(parents, row):
    while parents[row] != row:
        parents[row] = parents[parents[row]]
        row = parents[row]
    return row


@kernel
def unite(parents, left, right):
    """Join the sets of left[i] and right[i]; the root of a set is its smallest member."""
    for index in range(len(left)):
        a = find_root(parents, np.int64(left[index]))
        b = find_root(parents, np.int64(right[index]))
        if a < b:
            parents[b] = a
        elif b < a:
            parents[a] = b


@kernel
def flatten(parents, start, stop, touched, out):
    """out[i] = root of row start + i, or -1 if it is not `touched`, that is, never joined to another row."""
    for row in range(start, stop):
        out[row - start] = find_root(parents, row) if touched[row] else -1


@kernel
def mark(touched, rows):
    for index in range(len(rows)):
        touched[rows[index]] = True


@kernel
def join_range(first, larger, smaller, inside, lowest, touched):
    """Join larger[i], in the range of rows that starts at `first`, and smaller[i], which is ignored if it is negative.

    inside   int32[rows]   union-find within the range, of rows numbered from `first`
    lowest   int64[rows]   the smallest row before the range that a row was joined to
    touched  bool[rows]    whether a row was joined, to itself or another
    """
    for index in range(len(larger)):
        row, other = np.int64(larger[index]) - first, np.int64(smaller[index])
        if other < 0:
            continue
        touched[row] = True
        if other < first:
            lowest[row] = min(lowest[row], other)
            continue
        touched[other - first] = True
        a, b = find_root(inside, row), find_root(inside, other - first)
        if a < b:
            inside[b] = a
        elif b < a:
            inside[a] = b


@kernel
def lower_roots(inside, lowest):
    """Give each root of `inside` the lowest of all rows of its set."""
    for row in range(len(inside)):
        root = find_root(inside, row)
        lowest[root] = min(lowest[root], lowest[row])


@kernel
def parents_in_range(first, start, inside, lowest, touched, out):
    """out[i] = the parent of row `start` + i of the range: the lowest row it is joined to, or -1 if it was never joined."""
    for index in range(len(out)):
        row = start + index
        if touched[row]:
            root = find_root(inside, row)
            out[index] = min(lowest[root], first + root)
        else:
            out[index] = -1


@kernel
def passed_on(first, larger, smaller, inside, lowest, out_larger, out_smaller):
    """Edges (smaller[i], parent of larger[i]) of rows before the range that are not that parent; returns how many."""
    count = 0
    for index in range(len(larger)):
        other = np.int64(smaller[index])
        if 0 <= other < first:
            parent = lowest[find_root(inside, np.int64(larger[index]) - first)]
            if parent != other:
                out_larger[count], out_smaller[count] = other, parent
                count += 1
    return count


@kernel
def repeated_keys(ordered, table):
    """Put the keys that occur more than once in `ordered` (sorted uint64) into an open-addressing table; returns how many."""
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


@kernel
def in_table(keys, table, out):
    """out[i] = whether keys[i] is in a table made by `repeated_keys`; the key 0 counts as 1."""
    mask = np.uint64(len(table) - 1)
    for index in range(len(keys)):
        key = max(keys[index], np.uint64(1))
        slot = key & mask
        while table[slot] != 0 and table[slot] != key:
            slot = (slot + np.uint64(1)) & mask
        out[index] = table[slot] == key


@kernel
def scatter_keys(keys, wanted, first, num_buckets, ends, out_keys, out_rows):
    """Write the keys of each wanted row, with its number, sorted by bucket; bucket b ends at ends[b].

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


@kernel
def _slot(heads, mask, keys, first, key):
    """The slot of a key, or the free slot where it would be."""
    bands = keys.shape[1]
    slot = key & mask
    while heads[slot] >= 0 and keys[first + heads[slot] // bands, heads[slot] % bands] != key:
        slot = (slot + np.uint64(1)) & mask
    return slot


def num_slots(rows, bands):
    """The size of the hash table for a component of `rows` rows."""
    return max(16, 1 << (rows * bands * 4 // 3).bit_length())


@kernel
def choose(
    components, ranks, keys, fixed, chained, sets, spans, bits, threshold, floor, max_linked, max_unlinked,
    compared_with, following, table, survivors, matches, similarities, nearest, nearest_similarities,
):  # fmt: skip
    """Decide which rows are dropped, visiting the rows of each component in the order of the keep policy.

    A row is compared with at most `max_linked` survivors that share a band with it, and matches the most similar one (the
    first in order if several are equally similar). If none of them reaches the threshold, it is compared with the other
    survivors of the component, in order and at most `max_unlinked` of them, and matches the first one that does. A row
    that matches a survivor is dropped; one that does not is the next survivor.

    components    int64[rows]          ascending; the rows of a component are in the order of the policy
    ranks         int64[rows]          rows of equal rank are adjacent and are not compared with each other
    keys          uint64[rows, bands]  two rows share a band where their keys are equal
    fixed         bool[rows]           rows that are kept without a comparison
    chained       bool                 all rows of a component match its first row
    sets, spans and bits               what is compared, see `sets.jaccard_similarity`
    compared_with int64[rows], following int32[rows, bands], table int[num_slots of the largest component],
    survivors int64[rows]              working memory
    matches       int64[rows]          out: the survivor that a dropped row matches, or -1 for a row that is kept
    similarities  float64[rows]        out: the similarity to it
    nearest, nearest_similarities      out: for a kept row, the most similar survivor it was compared with, if above `floor`
    """
    rows, bands = keys.shape
    least = min(threshold, floor)
    first = 0
    while first < rows:
        last = first
        while last < rows and components[last] == components[first]:
            last += 1
        slots = 16
        while slots <= (last - first) * bands * 4 // 3:
            slots *= 2
        heads = table[:slots]  # of the list of survivors with a key: (row - first) * bands + band
        heads[:] = -1
        mask = np.uint64(slots - 1)
        pending = first  # rows from here on are not listed as survivors yet
        num_survivors = 0
        for row in range(first, last):
            compared_with[row] = -1
            if chained:
                matches[row] = nearest[row] = -1
                similarities[row] = nearest_similarities[row] = 0.0
                if ranks[row] != ranks[first] and not fixed[row]:
                    matches[row] = first
                    similarities[row] = jaccard_similarity(row, first, sets, spans, bits, 0.0)
                continue
            if ranks[row] != ranks[pending]:
                for kept in range(pending, row):
                    if matches[kept] < 0:
                        survivors[num_survivors] = kept
                        num_survivors += 1
                        for band in range(bands):
                            slot = _slot(heads, mask, keys, first, keys[kept, band])
                            before = heads[slot]
                            following[kept, band] = first + before // bands if before >= 0 else -1
                            heads[slot] = (kept - first) * bands + band
                pending = row
            best, best_similarity = np.int64(-1), -1.0
            if not fixed[row]:
                compared, crowded = 0, True
                # A few of each band first, so that one crowded band does not exhaust the limit.
                for few in (max(1, max_linked // bands), max_linked):
                    if not crowded:
                        break
                    crowded = False
                    for band in range(bands):
                        here = 0
                        head = heads[_slot(heads, mask, keys, first, keys[row, band])]
                        other = first + np.int64(head) // bands if head >= 0 else np.int64(-1)
                        while other >= 0 and compared < max_linked and here < few:
                            here += 1
                            if compared_with[other] != row:
                                compared_with[other] = row
                                compared += 1
                                similarity = jaccard_similarity(row, other, sets, spans, bits, least)
                                if similarity > best_similarity or (similarity == best_similarity and other < best):
                                    best, best_similarity = other, similarity
                            other = np.int64(following[other, band])
                        crowded |= other >= 0
                compared = 0
                for number in range(num_survivors):
                    if best_similarity >= threshold - 1e-9 or compared == max_unlinked:
                        break
                    other = survivors[number]
                    if compared_with[other] != row:
                        compared += 1
                        similarity = jaccard_similarity(row, other, sets, spans, bits, least)
                        if similarity > best_similarity:
                            best, best_similarity = other, similarity
            drops = best >= 0 and best_similarity >= threshold - 1e-9
            matches[row] = best if drops else -1
            similarities[row] = best_similarity if drops else 0.0
            nearest[row] = best if best >= 0 and not drops and best_similarity >= floor else -1
            nearest_similarities[row] = max(best_similarity, 0.0)
        first = last
