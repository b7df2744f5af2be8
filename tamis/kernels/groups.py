"""From pairs that may be alike to groups: union-find in integer arrays, and the choice of who stays.

Nothing here is a dict: what grows with the rows is an array the caller gives, in memory or mapped from disk.
"""
# mypy: disallow-untyped-defs=False, disable-error-code="call-arg,var-annotated,assignment"

from __future__ import annotations

import numpy as np

from tamis.kernels.jit import kernel
from tamis.kernels.sets import likeness as likeness_of

MAX_COMPARED = 256
"""Kept rows that one row is compared with at most. It only matters where hundreds of rows meet in a band and are yet unlike
each other (pages of one template); there it bounds the time, and may keep a row too many, never drop one too many."""


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
    """out[i] = root of row start + i, or -1 where touched says that the row was never joined to another."""
    for row in range(start, stop):
        out[row - start] = find_root(parents, row) if touched[row] else -1


@kernel
def mark(touched, rows):
    for index in range(len(rows)):
        touched[rows[index]] = True


@kernel
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


@kernel
def in_table(keys, table, out):
    """out[i] = whether keys[i], 0 read as 1, is in a table made by `repeated_keys`."""
    mask = np.uint64(len(table) - 1)
    for index in range(len(keys)):
        key = max(keys[index], np.uint64(1))
        slot = key & mask
        while table[slot] != 0 and table[slot] != key:
            slot = (slot + np.uint64(1)) & mask
        out[index] = table[slot] == key


@kernel
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


@kernel
def _slot(heads, mask, keys, first, key):
    """Where the chain of a key begins, or the free place where it would."""
    bands = keys.shape[1]
    slot = key & mask
    while heads[slot] >= 0 and keys[first + heads[slot] // bands, heads[slot] % bands] != key:
        slot = (slot + np.uint64(1)) & mask
    return slot


def num_slots(rows, bands):
    """How long the hash table of a component of so many rows is."""
    return max(16, 1 << (rows * bands * 4 // 3).bit_length())


@kernel
def choose(
    components, ranks, keys, fixed, chained, sets, spans, bits, threshold, floor,
    seen, following, table, twins, likeness, near, near_likeness,
):  # fmt: skip
    """Decide who stays, going through the rows of each component in the order of the keep policy.

    A row goes if a row that stays, and that it shares a band with, is alike enough; it goes in favour of the most alike of
    these, of the best ranked one among equals. So nothing goes but in favour of a row that stays and was compared with it.

    components  int64[rows]          ascending; rows of a component follow each other in the order of the policy
    ranks       int64[rows]          equal, and adjacent, where rows must not be compared: only other sources count
    keys        uint64[rows, bands]  rows meet where a key is equal
    fixed       bool[rows]           rows that stay whatever they are like
    chained                          all rows of a component count as alike; they go in favour of the first
    sets, spans and bits             what is compared, see `sets.likeness`
    seen        int64[rows], following int32[rows, bands], table int[num_slots of the largest component]: room to work in
    twins       int64[rows]          out: in whose favour, or -1 for rows that stay
    likeness    float64[rows]        out: how alike the twin is
    near, near_likeness              out: for rows that stay, the most alike row they were compared with, if above `floor`
    """
    rows, bands = keys.shape
    first = 0
    while first < rows:
        last = first
        while last < rows and components[last] == components[first]:
            last += 1
        slots = 16
        while slots <= (last - first) * bands * 4 // 3:
            slots *= 2
        heads = table[:slots]  # of the chain of kept rows with a key: (row - first) * bands + band
        heads[:] = -1
        mask = np.uint64(slots - 1)
        waiting = first  # rows from here on are not in the chains yet
        for row in range(first, last):
            seen[row] = -1
            if chained:
                twins[row] = near[row] = -1
                likeness[row] = near_likeness[row] = 0.0
                if ranks[row] != ranks[first] and not fixed[row]:
                    twins[row] = first
                    likeness[row] = likeness_of(row, first, sets, spans, bits, 0.0)
                continue
            if ranks[row] != ranks[waiting]:
                for kept in range(waiting, row):
                    if twins[kept] < 0:
                        for band in range(bands):
                            slot = _slot(heads, mask, keys, first, keys[kept, band])
                            before = heads[slot]
                            following[kept, band] = first + before // bands if before >= 0 else -1
                            heads[slot] = (kept - first) * bands + band
                waiting = row
            best, best_alike = np.int64(-1), -1.0
            if not fixed[row]:
                compared, crowded = 0, True
                # A few of each band first, so that one crowded band cannot use up what a row may be compared with.
                for few in (max(1, MAX_COMPARED // bands), MAX_COMPARED):
                    if not crowded:
                        break
                    crowded = False
                    for band in range(bands):
                        here = 0
                        head = heads[_slot(heads, mask, keys, first, keys[row, band])]
                        other = first + np.int64(head) // bands if head >= 0 else np.int64(-1)
                        while other >= 0 and compared < MAX_COMPARED and here < few:
                            here += 1
                            if seen[other] != row:
                                seen[other] = row
                                compared += 1
                                alike = likeness_of(row, other, sets, spans, bits, min(threshold, floor))
                                if alike > best_alike or (alike == best_alike and other < best):
                                    best, best_alike = other, alike
                            other = np.int64(following[other, band])
                        crowded |= other >= 0
            goes = best >= 0 and best_alike >= threshold - 1e-9
            twins[row] = best if goes else -1
            likeness[row] = best_alike if goes else 0.0
            near[row] = best if best >= 0 and not goes and best_alike >= floor else -1
            near_likeness[row] = max(best_alike, 0.0)
        first = last
