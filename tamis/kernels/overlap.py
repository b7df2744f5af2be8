"""Find the word n-grams of a text that are in a given set, such as those of a benchmark.

    bytes --letters and digits, in lower case--> words --64-bit hash--> rolling sums --> n-gram keys --bits, slots--> hits

A word is a run of letters, digits and marks; a letter of a script without spaces is a word of its own. The characters
between words are ignored. Kernels take `data` (uint8), `offsets` (int64, rows + 1) and `tables`: (a replacement for each
ASCII byte, 0 between words; a replacement for each code point below 65536; the property tables of `unicode_tables`).
"""
# mypy: disallow-untyped-defs=False, disallow-any-expr=False

from __future__ import annotations

import functools

import numpy as np

from tamis.kernels.characters import decode, flags_of
from tamis.kernels.hashing import mix64
from tamis.kernels.jit import inlined, kernel, part
from tamis.kernels.unicode_tables import ALPHANUMERIC, KINDS, MARK, POINTS, UNSPACED

_START, _PRIME = np.uint64(14695981039346656037), np.uint64(1099511628211)  # FNV-1a, 64 bits
BASE = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, odd: the base of the rolling hash
_UNIT = np.uint64(1)
_ROOM = 4096  # initial size of arrays, in words of a text


@functools.cache
def word_tables():
    """The `tables` that kernels of this module take."""
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


@kernel
def find_words(data, at, end, tables, words, starts, stops):
    """The number of words in a text. Their hashes (uint64) and places (int64) are written as far as the arrays reach."""
    ascii_table, lower, points, kinds = tables
    room = len(words)
    count = 0
    state = _START
    start = np.int64(-1)
    while at < end:
        byte = data[at]
        after = at + 1
        alone = np.int64(0)
        if byte < 128:
            value = np.int64(ascii_table[byte])
        else:
            point, after = decode(data, at, end)
            flags = flags_of(point, points, kinds)
            value = np.int64(0)
            if flags & (ALPHANUMERIC | MARK):
                value = np.int64(lower[point]) if point < 65536 else np.int64(point)
                alone = flags & UNSPACED
        if start >= 0 and (value == 0 or alone):
            if count < room:
                words[count], starts[count], stops[count] = mix64(state), start, at
            count += 1
            start, state = np.int64(-1), _START
        if value:
            if start < 0:
                start = at
            state = (state ^ np.uint64(value)) * _PRIME
            if alone:  # the next character, even a mark, begins another word
                if count < room:
                    words[count], starts[count], stops[count] = mix64(state), start, after
                count += 1
                start, state = np.int64(-1), _START
        at = after
    if start >= 0:
        if count < room:
            words[count], starts[count], stops[count] = mix64(state), start, end
        count += 1
    return count


@part
def _grown(array):
    larger = np.zeros(2 * len(array), array.dtype)
    for index in range(len(array)):  # a slice takes seconds to compile
        larger[index] = array[index]
    return larger


@part
def _sum_up(words, count, sums):
    """sums[i] = the rolling hash of the first i words."""
    sums[0] = 0
    for index in range(count):
        sums[index + 1] = sums[index] * BASE + words[index]


@inlined
def _key(sums, first, length, power):
    """The key of the n-gram of `length` words from word `first`; never 0."""
    return mix64(sums[first + length] - sums[first] * power + np.uint64(length)) | _UNIT


@kernel
def ngram_keys(data, offsets, tables, ngram, min_words, min_different, powers, keys, rows, sizes, num_words):
    """The keys of all n-grams of all rows: (keys uint64, rows int32, their number); the arrays grow as needed.

    A row of fewer than `ngram` words but at least `min_words` is a single n-gram. An n-gram is left out if less than one in
    `min_different` of its words is distinct. sizes[i] = words per n-gram of row i (0: none); num_words[i] = its words;
    powers[n] = BASE ** n.
    """
    words, sums = np.zeros(_ROOM, np.uint64), np.zeros(_ROOM + 1, np.uint64)
    starts, stops = np.zeros(_ROOM, np.int64), np.zeros(_ROOM, np.int64)
    total = 0
    for row in range(len(offsets) - 1):
        count = find_words(data, offsets[row], offsets[row + 1], tables, words, starts, stops)
        if count > len(words):
            words, sums = np.zeros(2 * count, np.uint64), np.zeros(2 * count + 1, np.uint64)
            starts, stops = np.zeros(2 * count, np.int64), np.zeros(2 * count, np.int64)
            find_words(data, offsets[row], offsets[row + 1], tables, words, starts, stops)
        num_words[row] = count
        length = min(ngram, count)
        if length < min_words or length == 0:
            continue
        sizes[row] = length
        _sum_up(words, count, sums)
        while total + count > len(keys):
            keys, rows = _grown(keys), _grown(rows)
        for first in range(count - length + 1):
            different = 0
            for index in range(first, first + length):
                is_new = True
                for before in range(first, index):
                    if words[before] == words[index]:
                        is_new = False
                        break
                different += is_new
            if different * min_different >= length:
                keys[total], rows[total] = _key(sums, first, length, powers[length]), row
                total += 1
    return keys, rows, total


@kernel
def fill_index(keys, slots, bits):
    """Put distinct keys into `slots` (int32, a power of two, -1 where empty) and mark them in `bits` (uint64)."""
    mask, last = len(slots) - 1, len(bits) * 64 - 1
    for number in range(len(keys)):
        key = keys[number]
        spot = np.int64(key >> np.uint64(20)) & last
        bits[spot >> 6] |= _UNIT << np.uint64(spot & 63)
        slot = np.int64(key >> np.uint64(1)) & mask
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = number


@kernel
def find_hits(data, offsets, tables, lengths, powers, keys, slots, bits, hits, found):
    """Look up all n-grams of all rows: (hits, their number); found[i] = hits in row i, int64.

    hits int64[n, 6], grown as needed: row, number of the key, first word, word after the last, first byte, byte after the
    last. Bytes are relative to the start of the row.
    """
    words, sums = np.zeros(_ROOM, np.uint64), np.zeros(_ROOM + 1, np.uint64)
    starts, stops = np.zeros(_ROOM, np.int64), np.zeros(_ROOM, np.int64)
    total = np.int64(0)
    for row in range(len(offsets) - 1):
        count = find_words(data, offsets[row], offsets[row + 1], tables, words, starts, stops)
        if count > len(words):
            words, sums = np.zeros(2 * count, np.uint64), np.zeros(2 * count + 1, np.uint64)
            starts, stops = np.zeros(2 * count, np.int64), np.zeros(2 * count, np.int64)
            find_words(data, offsets[row], offsets[row + 1], tables, words, starts, stops)
        _sum_up(words, count, sums)
        while True:  # retried with a larger array if the hits do not fit
            here = _look_up(row, count, lengths, powers, keys, slots, bits, sums, hits, total)
            if total + here <= len(hits):
                break
            larger = np.zeros((2 * (total + here), 6), np.int64)
            for index in range(total):
                for place in range(6):
                    larger[index, place] = hits[index, place]
            hits = larger
        for index in range(total, total + here):
            hits[index, 4] = starts[hits[index, 2]] - offsets[row]
            hits[index, 5] = stops[hits[index, 3] - 1] - offsets[row]
        found[row] = here
        total += here
    return hits, total


@part
def _look_up(row, count, lengths, powers, keys, slots, bits, sums, hits, total):
    """The number of n-grams of a row that are in the index, written after the first `total` hits as far as they fit."""
    mask, last, room = len(slots) - 1, len(bits) * 64 - 1, len(hits)
    here = 0
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
            if slots[slot] >= 0:
                if total + here < room:
                    hits[total + here, 0], hits[total + here, 1] = row, slots[slot]
                    hits[total + here, 2], hits[total + here, 3] = first, first + length
                here += 1
    return here


@kernel
def sketch(data, offsets, tables, ngram, factors, keys):
    """keys[i] = hashes of groups of minima over the word n-grams of row i (Broder 1997); uint64[rows, groups], 0 if no word.

    A row of fewer than `ngram` words is a single n-gram. factors: odd numbers, uint64, the same number for each group.
    """
    words, sums = np.zeros(_ROOM, np.uint64), np.zeros(_ROOM + 1, np.uint64)
    starts, stops = np.zeros(_ROOM, np.int64), np.zeros(_ROOM, np.int64)
    minima = np.zeros(len(factors), np.uint64)
    groups = keys.shape[1]
    power = _UNIT
    for _ in range(ngram):
        power *= BASE
    for row in range(len(offsets) - 1):
        count = find_words(data, offsets[row], offsets[row + 1], tables, words, starts, stops)
        if count > len(words):
            words, sums = np.zeros(2 * count, np.uint64), np.zeros(2 * count + 1, np.uint64)
            starts, stops = np.zeros(2 * count, np.int64), np.zeros(2 * count, np.int64)
            find_words(data, offsets[row], offsets[row + 1], tables, words, starts, stops)
        _sum_up(words, count, sums)
        _minimise(sums, count, ngram, power, factors, minima)
        for group in range(groups):
            state = np.uint64(group)
            for index in range(group, len(factors), groups):
                state = mix64(state + minima[index])
            keys[row, group] = state | _UNIT if count else np.uint64(0)


@part
def _minimise(sums, count, ngram, power, factors, minima):
    for index in range(len(minima)):
        minima[index] = np.uint64(0xFFFFFFFFFFFFFFFF)
    if count < ngram:
        ngram, power = count, _UNIT
        for _ in range(count):
            power *= BASE
    for first in range(count - ngram + 1):
        key = _key(sums, first, ngram, power)
        for index in range(len(factors)):
            minima[index] = min(minima[index], key * factors[index])
