"""Hashes of byte spans, and hash tables in plain arrays.

The hashes are the same in every process and on every little-endian machine. None of them is written to disk.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from tamis.kernels.hashing import load64
from tamis.kernels.jit import inlined, kernel, part

_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, odd
_SPREAD = np.uint64(0xD6E8FEB86659FD93)  # an odd constant with well spread bits
_HALF = np.uint64(32)
_MASKS = np.array(
    [(1 << 8 * min(size, 8)) - 1 for size in range(17)] + [(1 << 8 * max(size - 8, 0)) - 1 for size in range(17)],
    np.uint64,
)  # masks of the first and the second eight bytes of a span of 0 to 16 bytes


@inlined
def mix(state, word):
    """Mix a uint64 into a uint64 state; for a given state, different words give different results."""
    value = (state ^ word) * _MIX
    value ^= value >> _HALF
    value *= _SPREAD
    return value ^ (value >> _HALF)


@inlined
def tail64(data, at, stop):
    """The bytes of a span of at most 8, as a uint64."""
    size = stop - at
    if at + 8 <= len(data):
        word = load64(data, at)
        if size < 8:
            word &= (np.uint64(1) << np.uint64(8 * size)) - np.uint64(1)
        return word
    word = np.uint64(0)
    for index in range(size):
        word |= np.uint64(data[at + index]) << np.uint64(8 * index)
    return word


@inlined
def hash_span(data, start, stop):
    """A 64-bit hash of the bytes from start to stop."""
    size = stop - start
    if size <= 16 and start + 16 <= len(data):  # most words; no branch on their size
        state = mix(np.uint64(size) * _SPREAD, load64(data, start) & _MASKS[size])
        return mix(state, load64(data, start + 8) & _MASKS[size + 17])
    return _hash_long(data, start, stop)


@part
def _hash_long(data, start, stop):
    state = np.uint64(stop - start) * _SPREAD
    at = start
    while at + 8 < stop:
        state = mix(state, load64(data, at))
        at += 8
    state = mix(state, tail64(data, at, stop))
    return mix(state, np.uint64(0)) if stop - start <= 8 else state


@inlined
def lower8(word):
    """Eight bytes with A-Z replaced by a-z."""
    low = word & np.uint64(0x7F7F7F7F7F7F7F7F)
    above_at = low + np.uint64(0x3F3F3F3F3F3F3F3F)  # high bit where byte >= 'A'
    above_z = low + np.uint64(0x2525252525252525)  # high bit where byte > 'Z'
    upper = above_at & ~above_z & ~word & np.uint64(0x8080808080808080)
    return word | (upper >> np.uint64(2))


@inlined
def hash_start(data, start, stop):
    """A hash of a span's length and first 8 bytes, ignoring ASCII case; reads 8 bytes even if the span is shorter."""
    size = stop - start
    word = load64(data, start) & _MASKS[size if size < 8 else 8]
    return mix(np.uint64(size) * _SPREAD, lower8(word))


@inlined
def hash_lowered(data, start, stop):
    """A hash of a span, ignoring ASCII case; equal to `hash_start` for at most 8 bytes."""
    state = np.uint64(stop - start) * _SPREAD
    at = start
    while at + 8 < stop:
        state = mix(state, lower8(load64(data, at)))
        at += 8
    return mix(state, lower8(tail64(data, at, stop)))


@kernel
def hash_words(data, offsets, out):
    """out[i] = `hash_lowered` of row i; uint64."""
    for row in range(len(offsets) - 1):
        out[row] = hash_lowered(data, offsets[row], offsets[row + 1])


@inlined
def find_slot(keys, key):
    """The slot of `key`, or the free slot where it belongs, in an open-addressing table of uint64; 0 is empty.

    The length of the table is a power of two.
    """
    mask = len(keys) - 1
    slot = np.int64(key & np.uint64(mask))
    while (keys[slot] != 0) & (keys[slot] != key):
        slot = (slot + 1) & mask
    return slot


@kernel
def fill_table(keys, hashes):
    for key in hashes:
        keys[find_slot(keys, key)] = key


@inlined
def number_of(slots, mask, hashes, members, key):
    """The number of `key` in an open-addressing table of numbers (0 is empty); adds it as members + 1 if it is new.

    hashes[number] is the key of a number; members is how many have been added. The key is stored whether it is new or not,
    so that only collisions need a branch: new and known words alternate unpredictably in a text.
    """
    slot = np.int64(key & np.uint64(mask))
    number = np.int64(slots[slot])
    while (number != 0) & (hashes[number] != key):
        slot = (slot + 1) & mask
        number = np.int64(slots[slot])
    number = number if number else members + 1
    slots[slot] = number
    hashes[number] = key
    return number


@inlined
def table_size(members):
    """The number of slots for a table of `members` members: a power of two, of which at most a quarter are used."""
    size = 16
    while size < 4 * members:
        size *= 2
    return size


@inlined
def clear(array, size):
    """Set the first `size` entries to 0; a slice takes a second to compile."""
    for index in range(size):
        array[index] = 0


@part
def grown(array, size):
    """A copy of the array with space for at least `size` entries."""
    result = np.empty(size if size > 2 * len(array) else 2 * len(array), array.dtype)
    for index in range(len(array)):
        result[index] = array[index]
    return result
