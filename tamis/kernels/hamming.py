"""All pairs of hashes within a Hamming distance, without comparing all pairs (multi-index hashing, Norouzi et al. 2012).

A hash of some words of 64 bits is divided into m substrings. If two hashes differ in at most r = m s + a bits, they differ in
at most s bits in one of the first a + 1 substrings, or in at most s - 1 bits in one of the others. So it suffices to compare
hashes whose substrings are that close:

    substring 2 of each hash   ->  sorted by its value, offsets by value
    each flip of up to s bits  ->  rows with value v are compared with rows with value v ^ flip

Bit i of a hash belongs to substring i mod m, because neighbouring bits of perceptual hashes are correlated.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tamis.kernels.jit import kernel, part
from tamis.kernels.masks import ones

MAX_KEY_BITS = 24
"""The longest substring: its values index an array of offsets."""

LOOKUP = 4
"""Measured on a million rows: 9 ns for a lookup, 2 ns for a comparison of 64 bits."""

NONE = 255
"""The near-miss distance of a row that has none."""


@dataclass(frozen=True)
class Substrings:
    """The division of hashes of `bits` bits into substrings, for a search within `radius`."""

    bits: int
    radius: int
    count: int

    @staticmethod
    def best(bits: int, radius: int, rows: int) -> Substrings:
        """The division with the least work for this number of rows, if their bits are random."""
        least = -(-bits // MAX_KEY_BITS)
        options = [Substrings(bits, radius, count) for count in range(least, min(bits, radius + least) + 1)]
        return min(options, key=lambda each: each.work(max(rows, 1)))

    def work(self, rows: int) -> float:
        """Comparisons of hashes, and lookups of keys, which take as long as `LOOKUP` comparisons."""
        return sum(
            self.num_flips(number) * rows * (LOOKUP + rows / 2 / 2 ** self.width(number)) for number in self.used
        )

    def width(self, number: int) -> int:
        """The number of bits of a substring."""
        return self.bits // self.count + (number < self.bits % self.count)

    def reach(self, number: int) -> int:
        """How many bits of a substring are flipped; -1 if no pair has to be found by it."""
        return self.radius // self.count - (number > self.radius % self.count)

    def num_flips(self, number: int) -> int:
        return sum(math.comb(self.width(number), flipped) for flipped in range(self.reach(number) + 1))

    @property
    def used(self) -> list[int]:
        """The substrings by which pairs are found."""
        return [number for number in range(self.count) if self.reach(number) >= 0]

    def keys(self, hashes: np.ndarray, number: int) -> np.ndarray:
        """The values of a substring, uint32, of hashes uint64[rows, words]."""
        places = np.arange(number, self.bits, self.count)
        keys = np.empty(len(hashes), np.uint32)
        gather_bits(np.ascontiguousarray(hashes), places, keys)
        return keys

    def masks(self) -> np.ndarray:
        """uint64[substrings, words]: the bits of each substring, to see in which of them two hashes are close."""
        masks = np.zeros((self.count, -(-self.bits // 64)), np.uint64)
        for bit in range(self.bits):
            masks[bit % self.count, bit // 64] |= np.uint64(1 << (63 - bit % 64))
        return masks


def flips(width: int, reach: int) -> np.ndarray:
    """All values of `width` bits with at most `reach` bits set, in ascending order.

    >>> flips(3, 1).tolist()
    [0, 1, 2, 4]
    """
    found = [np.zeros(1, np.uint32)] if reach >= 0 else [np.zeros(0, np.uint32)]
    for _ in range(min(reach, width)):
        last = found[-1]
        more = [last[last < (1 << bit)] | np.uint32(1 << bit) for bit in range(width)]
        found.append(np.concatenate(more))
    return np.sort(np.concatenate(found))


@kernel
def gather_bits(hashes, places, keys):
    """keys[row] = the bits at `places` of each hash, the first of them highest."""
    for row in range(len(hashes)):
        key = np.uint32(0)
        for place in places:
            bit = (hashes[row, place >> 6] >> np.uint64(63 - (place & 63))) & np.uint64(1)
            key = (key << np.uint32(1)) | np.uint32(bit)
        keys[row] = key


@kernel
def offsets_of(keys, base, offsets):
    """offsets[key - base] = the first row with this key or a larger one; keys in ascending order."""
    at = 0
    for value in range(len(offsets)):
        while at < len(keys) and keys[at] - base < value:
            at += 1
        offsets[value] = at


@part
def _distance(left, right, row, other):
    """The number of bits in which two hashes differ."""
    total = 0
    for word in range(left.shape[1]):
        total += ones(left[row, word] ^ right[other, word])
    return total


@part
def _is_first(left, right, row, other, masks, reaches, number):
    """Whether no substring before `number` finds this pair too."""
    for before in range(number):
        close = 0
        for word in range(left.shape[1]):
            close += ones((left[row, word] ^ right[other, word]) & masks[before, word])
        if close <= reaches[before]:
            return False
    return True


@kernel
def find_close(
    keys, hashes, limits, offsets, base, targets, target_ranks, flip_of, start, radius, margin, most,
    masks, reaches, number, counts, near, near_distances, left, right, distances,
):  # fmt: skip
    """List pairs of a row and a better row within `radius`, until `left` has no space for the pairs of another row.

    keys, hashes              uint32[rows], uint64[rows, words]                 rows, sorted by key
    limits                    int64[rows]                                       rows are compared with targets of a smaller rank
    offsets, base             int64[keys + 1], key of the first offset          targets by key, sorted by rank within a key
    targets, target_ranks     uint64[targets, words], int64[targets]
    flip_of                   uint32[flips]                                     what differs between the keys of a pair
    start                     int64[2]                                          in and out: (flip, row) to continue with
    most                      the most targets to find for a row, over all calls for this substring
    masks, reaches, number    all substrings, and which one this is
    counts                    int64[rows]                                       in and out: targets found so far
    near, near_distances      int64[rows], uint8[rows]                          in and out: closest target beyond the radius
    left, right, distances    int64, int64, uint8 [pairs]                       out: row, target, distance

    Returns the number of pairs. A pair that several substrings find is listed by the first of them, and by any that reaches
    `most` with it, so that the reader learns that the row has more.
    """
    found, keys_here = 0, len(offsets) - 1
    flip, row = start[0], start[1]
    while flip < len(flip_of):
        while row < len(keys):
            value = np.int64(keys[row] ^ flip_of[flip]) - base
            if counts[row] < most and 0 <= value < keys_here and offsets[value] < offsets[value + 1]:
                first, last = offsets[value], offsets[value + 1]
                if found + min(last - first, most - counts[row]) > len(left):
                    start[0], start[1] = flip, row
                    return found
                for other in range(first, last):
                    if target_ranks[other] >= limits[row]:
                        break
                    distance = _distance(hashes, targets, row, other)
                    if distance <= radius:
                        counts[row] += 1
                        full = counts[row] >= most
                        if full or _is_first(hashes, targets, row, other, masks, reaches, number):
                            left[found], right[found], distances[found] = row, other, distance
                            found += 1
                        if full:
                            break
                    elif distance <= radius + margin and distance < near_distances[row]:
                        near[row], near_distances[row] = other, distance
            row += 1
        flip, row = flip + 1, 0
    start[0], start[1] = flip, 0
    return found


def pairs_within(hashes: np.ndarray, bits: int, radius: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(row, later row, distance) of all pairs of hashes uint64[rows, words] within a distance, in memory.

    >>> [found.tolist() for found in pairs_within(np.array([[0], [7], [2**63]], np.uint64), 64, 1)]
    [[0], [2], [1]]
    """
    substrings = Substrings.best(bits, radius, len(hashes))
    parts = []
    masks, reaches = substrings.masks(), np.array([substrings.reach(each) for each in range(substrings.count)])
    for number in substrings.used:
        keys = substrings.keys(hashes, number)
        order = np.argsort(keys, kind="stable")
        keys, mine = keys[order], hashes[order]
        offsets = np.empty((1 << substrings.width(number)) + 1, np.int64)
        offsets_of(keys, 0, offsets)
        room = max(2**20, int(np.diff(offsets).max(initial=0)))
        left, right, distances = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.uint8)
        counts, near = np.zeros(len(hashes), np.int64), np.empty(len(hashes), np.int64)
        near_distances = np.zeros(len(hashes), np.uint8)
        start, flip_of = np.zeros(2, np.int64), flips(substrings.width(number), substrings.reach(number))
        while start[0] < len(flip_of):
            found = find_close(
                keys, mine, order, offsets, 0, mine, order, flip_of, start, radius, 0, len(hashes) + 1,
                masks, reaches, number, counts, near, near_distances, left, right, distances,
            )  # fmt: skip
            parts.append((order[right[:found]], order[left[:found]], distances[:found].copy()))
    joined = (
        [np.concatenate([part[side] for part in parts]) for side in range(3)] if parts else [np.empty(0, np.int64)] * 3
    )
    return joined[0], joined[1], joined[2]
