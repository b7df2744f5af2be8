"""Which word n-grams of a text are in a given set: for finding benchmarks in training data.

    bytes --letters and digits, in lower case--> words --64-bit hash--> rolling sums --> n-gram keys --bits, slots--> hits

A word is a run of letters, digits and marks; a letter of a script without spaces is a word of its own. What stands between words
does not count. Kernels take `data` (uint8), `offsets` (int64, rows + 1) and `tables`: (what an ASCII byte is read as, 0 between
words; what a code point below 65536 is read as; the property tables of `unicode_tables`).
"""
# mypy: disallow-untyped-defs=False, disallow-any-expr=False

from __future__ import annotations

import functools

import numpy as np
from numba import njit

from tamis.kernels.hashing import mix64
from tamis.kernels.unicode_tables import ALPHANUMERIC, KINDS, MARK, POINTS, UNSPACED
from tamis.kernels.words import decode, flags_of

_START, _PRIME = np.uint64(14695981039346656037), np.uint64(1099511628211)  # FNV-1a, 64 bits
BASE = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, odd: the base of the rolling hash
_UNIT = np.uint64(1)


@functools.cache
def word_tables():
    """`tables` for all kernels here."""
    ascii_table = np.zeros(128, np.uint8)
    for byte in range(128):
        if chr(byte).isalnum():
            ascii_table[byte] = ord(chr(byte).lower())
    lower = np.arange(65536, dtype=np.int32)
    for point in range(128, 65536):
        small = chr(point).lower()
        if len(small) == 1:
            lower[point] = ord(small)
    ascii_table.flags.writeable = lower.flags.writeable = False
    return ascii_table, lower, POINTS, KINDS


def powers_of(lengths):
    """BASE to the power of each length, uint64."""
    return np.array([pow(int(BASE), int(length), 1 << 64) for length in lengths], np.uint64)


@njit(nogil=True, cache=True)
def find_words(data, at, end, tables, words, starts, stops):
    """Hashes (uint64) and places (int64) of the words of one text: (words, starts, stops, how many); arrays grow as they must."""
    ascii_table, lower, points, kinds = tables
    count = 0
    state = _START
    start = np.int64(-1)
    while at <= end:
        value, after, alone = np.int64(0), at + 1, False
        if at < end:
            byte = data[at]
            if byte < 128:
                value = np.int64(ascii_table[byte])
            else:
                point, after = decode(data, at, end)
                flags = flags_of(point, points, kinds)
                if flags & (ALPHANUMERIC | MARK):
                    value = np.int64(lower[point]) if point < 65536 else np.int64(point)
                    alone = flags & UNSPACED != 0
        if start >= 0 and (value == 0 or alone):
            if count == len(words):
                words, starts, stops = _grown(words), _grown(starts), _grown(stops)
            words[count], starts[count], stops[count] = mix64(state), start, at
            count += 1
            start, state = np.int64(-1), _START
        if value:
            if start < 0:
                start = at
            state = (state ^ np.uint64(value)) * _PRIME
            if alone:  # the next letter begins another word; marks that follow do too, on both sides alike
                if count == len(words):
                    words, starts, stops = _grown(words), _grown(starts), _grown(stops)
                words[count], starts[count], stops[count] = mix64(state), start, after
                count += 1
                start, state = np.int64(-1), _START
        at = after
    return words, starts, stops, count


@njit(nogil=True, cache=True)
def _grown(array):
    larger = np.zeros(2 * len(array), array.dtype)
    larger[: len(array)] = array
    return larger


@njit(nogil=True, cache=True)
def _sum_up(words, count, sums):
    """sums[i] = the rolling hash of the first i words; grows as it must."""
    if count + 1 > len(sums):
        sums = np.zeros(2 * count + 2, np.uint64)
    sums[0] = 0
    for index in range(count):
        sums[index + 1] = sums[index] * BASE + words[index]
    return sums


@njit(nogil=True, cache=True, forceinline=True)
def _key(sums, first, length, power):
    """The key of the n-gram of `length` words from word `first`; never 0."""
    return mix64(sums[first + length] - sums[first] * power + np.uint64(length)) | _UNIT


@njit(nogil=True, cache=True)
def ngram_keys(data, offsets, tables, ngram, min_words, min_different, powers, keys, rows, sizes, num_words):
    """The keys of all n-grams of all rows: (keys uint64, rows int32, how many), grown as they must.

    A row of fewer than `ngram` words but at least `min_words` has one n-gram, all of it. An n-gram with fewer different words than
    one in `min_different` is left out. sizes[i] = words per n-gram of row i (0: none); num_words[i] = its words;
    powers[n] = BASE ** n.
    """
    words, starts, stops = np.zeros(1024, np.uint64), np.zeros(1024, np.int64), np.zeros(1024, np.int64)
    sums = np.zeros(1024, np.uint64)
    total = 0
    for row in range(len(offsets) - 1):
        words, starts, stops, count = find_words(data, offsets[row], offsets[row + 1], tables, words, starts, stops)
        num_words[row] = count
        length = min(ngram, count)
        if length < min_words or length == 0:
            continue
        sizes[row] = length
        sums = _sum_up(words, count, sums)
        while total + count > len(keys):
            keys, rows = _grown(keys), _grown(rows)
        for first in range(count - length + 1):
            different = 0
            for index in range(first, first + length):
                fresh = True
                for before in range(first, index):
                    if words[before] == words[index]:
                        fresh = False
                        break
                different += fresh
            if different * min_different >= length:
                keys[total], rows[total] = _key(sums, first, length, powers[length]), row
                total += 1
    return keys, rows, total


@njit(nogil=True, cache=True)
def fill_index(keys, slots, bits):
    """Put different keys into `slots` (int32, a power of two, -1 where empty) and mark them in `bits` (uint64)."""
    mask, last = len(slots) - 1, len(bits) * 64 - 1
    for number in range(len(keys)):
        key = keys[number]
        spot = np.int64(key >> np.uint64(20)) & last
        bits[spot >> 6] |= _UNIT << np.uint64(spot & 63)
        slot = np.int64(key >> np.uint64(1)) & mask
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = number


@njit(nogil=True, cache=True)
def find_hits(data, offsets, tables, lengths, powers, keys, slots, bits, hits, found):
    """Look all n-grams of all rows up: (hits, how many); found[i] = hits in row i, int64.

    hits int64[n, 6], grown as it must: row, number of the key, first word, word after the last, first byte, byte after the last.
    """
    words, starts, stops = np.zeros(1024, np.uint64), np.zeros(1024, np.int64), np.zeros(1024, np.int64)
    sums = np.zeros(1024, np.uint64)
    mask, last = len(slots) - 1, len(bits) * 64 - 1
    total = 0
    for row in range(len(offsets) - 1):
        words, starts, stops, count = find_words(data, offsets[row], offsets[row + 1], tables, words, starts, stops)
        sums = _sum_up(words, count, sums)
        for which in range(len(lengths)):
            length, power = lengths[which], powers[which]
            for first in range(count - length + 1):
                key = _key(sums, first, length, power)
                spot = np.int64(key >> np.uint64(20)) & last
                if not bits[spot >> 6] >> np.uint64(spot & 63) & _UNIT:
                    continue
                slot = np.int64(key >> np.uint64(1)) & mask
                while slots[slot] >= 0 and keys[slots[slot]] != key:
                    slot = (slot + 1) & mask
                if slots[slot] < 0:
                    continue
                if total == len(hits):
                    larger = np.zeros((2 * len(hits), 6), np.int64)
                    larger[:total] = hits
                    hits = larger
                hits[total, 0], hits[total, 1] = row, slots[slot]
                hits[total, 2], hits[total, 3] = first, first + length
                hits[total, 4], hits[total, 5] = starts[first] - offsets[row], stops[first + length - 1] - offsets[row]
                total += 1
                found[row] += 1
    return hits, total
