"""Sequences of hashes: keys that copies share, and how well two sequences agree at an offset.

A sequence is uint64[positions], one hash for each step of time. A hash of 0 says nothing, because the sound is silent or the
picture blank: it has no key and agrees with nothing. `Comparing` says which bits are compared.

    left     . . . h h h h h h h h h h . . .      better row, which may be kept
    right            h h h h h h .                offset 5: position i is compared with position i + 5 on the left
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tamis.kernels.jit import inlined, kernel
from tamis.kernels.masks import ones

_MIX = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class Comparing:
    """How hashes of one kind are compared."""

    bits: int
    """32 for sound (`kernels.sound_prints`), 64 for frames of video."""
    window: int
    """Positions over which errors are averaged."""
    max_errors: float
    """Wrong bits per position, on average over a window, up to which the position in the middle agrees."""

    @property
    def keys_per_hash(self) -> int:
        return 3 if self.bits == 32 else 6


@inlined
def _mixed(value):
    value = (value ^ (value >> np.uint64(31))) * np.uint64(_MIX)
    value = (value ^ (value >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return value ^ (value >> np.uint64(32))


@inlined
def _write_keys(word, bits, keys):
    """Write the keys of one hash, and return how many it has."""
    if bits == 32:
        value = word & np.uint64(0xFFFFFFFF)
        first = np.uint64(1) << ((word >> np.uint64(32)) & np.uint64(31))
        second = np.uint64(1) << ((word >> np.uint64(37)) & np.uint64(31))
        keys[0] = _mixed(value + np.uint64(1))
        keys[1] = _mixed((value ^ first) + np.uint64(1))
        keys[2] = _mixed((value ^ second) + np.uint64(1))
        return 3
    number = 0
    for low in range(4):
        for high in range(low + 1, 4):
            one = (word >> np.uint64(16 * low)) & np.uint64(0xFFFF)
            two = (word >> np.uint64(16 * high)) & np.uint64(0xFFFF)
            keys[number] = _mixed((np.uint64(number + 1) << np.uint64(32)) | (one << np.uint64(16)) | two)
            number += 1
    return number


@kernel
def keys_of(words, bits, keys, positions):
    """Write the keys of a sequence with their positions, and return how many there are.

    32 bits: the hash, and the hash with either of its two least certain bits flipped, so that copies whose hashes differ in
    these share a key. 64 bits: each pair of the four quarters of the hash, of which copies whose hashes differ in two bits
    share one at least. A key that the position before has too is left out.
    """
    count, before_count = 0, 0
    before, now = np.zeros(6, np.uint64), np.zeros(6, np.uint64)
    for place in range(len(words)):
        if words[place] == 0:
            before_count = 0
            continue
        number = _write_keys(words[place], bits, now)
        for each in range(number):
            known = False
            for other in range(before_count):
                known |= before[other] == now[each]
            if not known:
                keys[count] = now[each]
                positions[count] = place
                count += 1
        before[:number] = now[:number]
        before_count = number
    return count


@kernel
def agreement(left, right, offset, bits, window, max_errors, out):
    """How well two sequences agree at an offset. Writes to float64[4]:

    (positions of `right` that agree, wrong bits in them, positions compared, wrong bits in all that were compared)

    Position i of `right` is compared with position i + offset of `left`. It agrees if, on average over the compared positions
    of a window around it, at most `max_errors` bits differ.
    """
    first, last = max(0, -offset), min(len(right), len(left) - offset)
    mask = np.uint64(0xFFFFFFFF) if bits == 32 else ~np.uint64(0)
    out[:] = 0.0
    after = window // 2
    total, count = 0, 0  # of the window
    for ahead in range(first, last + after):
        if ahead < last and left[ahead + offset] != 0 and right[ahead] != 0:
            total += ones((left[ahead + offset] ^ right[ahead]) & mask)
            count += 1
        gone = ahead - window
        if gone >= first and left[gone + offset] != 0 and right[gone] != 0:
            total -= ones((left[gone + offset] ^ right[gone]) & mask)
            count -= 1
        place = ahead - after
        if place < first or place >= last or left[place + offset] == 0 or right[place] == 0:
            continue
        wrong = ones((left[place + offset] ^ right[place]) & mask)
        out[2] += 1
        out[3] += wrong
        if total <= max_errors * count:
            out[0] += 1
            out[1] += wrong


@kernel
def count_present(words):
    """How many positions of a sequence say something."""
    count = 0
    for word in words:
        count += word != 0
    return count


@kernel
def first_apart(left, right, offset, most, chosen):
    """Write the numbers of the first `most` offsets of each pair that are not next to one written before; return how many."""
    count, begin = 0, 0
    for place in range(len(left)):
        if place == 0 or left[place] != left[place - 1] or right[place] != right[place - 1]:
            begin = count
        if count - begin >= most:
            continue
        apart = True
        for other in range(begin, count):
            apart &= abs(offset[chosen[other]] - offset[place]) > 1
        if apart:
            chosen[count] = place
            count += 1
    return count
