"""N-gram language models: hash the words of each line, build n-gram keys, and look up the probability of each row.

    line --words--> BEGIN, word hashes, END --n-grams ending at each token--> key --table--> log p, backoff

Kernels take `data` (uint8), `offsets` (int64, rows + 1), the word marks of `words`, and `fold` (uint8[256]), which maps each
byte before hashing: to ignore case or digits, for example. The table uses open addressing with 16 bytes per slot. It is passed
as two views: `slots` (uint64[2 * size], keys at even indices, 0 is empty) and `numbers` (float32[4 * size], the log probability
of slot i at 4 i + 2, its backoff weight at 4 i + 3; base 10, as in ARPA files). Keys are stored in model files, so they depend
only on the bytes of the words and are the same on every machine.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from tamis.kernels.hashing import mix64
from tamis.kernels.jit import inlined, kernel
from tamis.kernels.words import EDGES, base_of, read_words

LONGEST = 6
BEGIN, END, UNKNOWN = np.uint64(1), np.uint64(2), np.uint64(3)
"""Reserved hashes: start of line, end of line, unknown word. Word hashes are larger."""

_PART = 1024  # tokens scored together
_START, _PRIME = np.uint64(14695981039346656037), np.uint64(1099511628211)  # FNV-1a, 64 bits
_LENGTH = np.uint64(0xD6E8FEB86659FD93)
_PLACES = np.array(
    [
        0x9E3779B97F4A7C15,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
        0xFF51AFD7ED558CCD,
    ],
    np.uint64,
)  # odd multipliers with well-mixed bits, one for each distance from the last word
_PLACES.flags.writeable = False


@inlined
def hash_word(data, start, stop, fold):
    """Hash a word; the result is larger than the three reserved hashes."""
    state = _START
    for at in range(start, stop):
        state = (state ^ np.uint64(fold[data[at]])) * _PRIME
    return mix64(state) | np.uint64(4)


@kernel
def hash_rows(data, offsets, fold, out):
    """out[i] = hash of row i as one word; uint64."""
    for row in range(len(offsets) - 1):
        out[row] = hash_word(data, offsets[row], offsets[row + 1], fold)


@inlined
def _key(sums, length):
    """Return the key of an n-gram, given the weighted sum of its word hashes; never 0."""
    return mix64(sums + np.uint64(length) * _LENGTH) | np.uint64(1)


@kernel
def find_tokens(data, offsets, begins, ends, fold, tokens, places):
    """Write the hashes of all lines that have words, with BEGIN and END, and return their number.

    tokens: uint64, the hashes; places: int32, the position of each in its line. If both are empty, only count.
    """
    base, edges = base_of(offsets), np.empty(EDGES, np.int64)
    total = 0
    for row in range(len(offsets) - 1):
        at, end = offsets[row], offsets[row + 1]
        while at < end:
            stop = at
            while stop < end and data[stop] != 10:
                stop += 1
            place = 0
            while at < stop:
                found, at = read_words(begins, ends, base, at, stop, edges)
                for index in range(0, found, 2):
                    if len(tokens):
                        if place == 0:
                            tokens[total], places[total] = BEGIN, 0
                        tokens[total + place + 1] = hash_word(data, edges[index], edges[index + 1], fold)
                        places[total + place + 1] = place + 1
                    place += 1
            if place:
                if len(tokens):
                    tokens[total + place + 1], places[total + place + 1] = END, place + 1
                total += place + 2
            at = stop + 1
    return total


@kernel
def make_keys(tokens, places, length, keys):
    """keys[i] = key of the n-gram of `length` that ends at token i, 0 if the line has fewer tokens up to there; uint64."""
    for at in range(len(tokens)):
        if places[at] < length - 1:
            keys[at] = 0
            continue
        sums = np.uint64(0)
        for back in range(length):
            sums += tokens[at - back] * _PLACES[back]
        keys[at] = _key(sums, length)


@kernel
def fill_table(keys, values, slots, numbers):
    """Insert n-grams into an empty table; values float32[n, 2]: log probability, backoff weight."""
    mask = np.uint64(len(slots) // 2 - 1)
    for index in range(len(keys)):
        slot = keys[index] >> np.uint64(1) & mask
        while slots[2 * slot] != 0 and slots[2 * slot] != keys[index]:
            slot = (slot + np.uint64(1)) & mask
        slots[2 * slot] = keys[index]
        numbers[4 * slot + 2], numbers[4 * slot + 3] = values[index, 0], values[index, 1]


@inlined
def _find(slots, mask, key):
    """Return the slot of a key, or -1."""
    slot = key >> np.uint64(1) & mask
    while True:
        here = slots[np.uint64(2) * slot]
        if here == key:
            return np.int64(slot)
        if here == 0:
            return np.int64(-1)
        slot = (slot + np.uint64(1)) & mask


@kernel
def _score_part(tokens, count, first, order, slots, numbers, sums, found, depth):
    """Return log10 p of tokens[first:count] given the tokens before them; the first token may be BEGIN.

    All lookups of one length come before those of the next: they are independent, so the processor overlaps their cache
    misses. Unknown words are overwritten with UNKNOWN. An n-gram is in the table only if its shorter suffixes are.
    sums: uint64[part]; found: int64[order, part]; depth: int64[part], length of the longest known n-gram that ends at each
    token.
    """
    mask = np.uint64(len(slots) // 2 - 1)
    unknown = _find(slots, mask, _key(UNKNOWN * _PLACES[0], 1))
    for at in range(count):
        slot = _find(slots, mask, _key(tokens[at] * _PLACES[0], 1))
        if slot < 0 and tokens[at] != BEGIN:
            tokens[at], slot = UNKNOWN, unknown
        sums[at] = tokens[at] * _PLACES[0]
        found[0, at] = slot
        depth[at] = 1 if slot >= 0 else 0
    for length in range(2, order + 1):
        for at in range(length - 1, count):
            sums[at] += tokens[at - length + 1] * _PLACES[length - 1]
            slot = _find(slots, mask, _key(sums[at], length))
            found[length - 1, at] = slot
            if slot >= 0 and depth[at] == length - 1:
                depth[at] = length
    total = 0.0
    for at in range(first, count):
        total += numbers[4 * found[depth[at] - 1, at] + 2]
        for length in range(depth[at] + 1, min(order, at + 1) + 1):
            if length - 1 <= depth[at - 1]:
                total += numbers[4 * found[length - 2, at - 1] + 3]
    return total


@kernel
def score_rows(data, offsets, begins, ends, fold, order, slots, numbers, logs, counts):
    """logs[i] (float64) = log10 of the probability of row i; counts[i] (int64) = its number of words and line ends."""
    base, edges = base_of(offsets), np.empty(EDGES, np.int64)
    tokens, sums = np.empty(_PART, np.uint64), np.empty(_PART, np.uint64)
    found, depth = np.empty((order, _PART), np.int64), np.empty(_PART, np.int64)
    for row in range(len(offsets) - 1):
        at, end = offsets[row], offsets[row + 1]
        total = 0.0
        count = 0
        while at < end:
            stop = at
            while stop < end and data[stop] != 10:
                stop += 1
            held, first = 1, 1  # tokens in the buffer, and the index of the first one not yet scored
            tokens[0] = BEGIN
            words = False
            while at < stop:
                edged, at = read_words(begins, ends, base, at, stop, edges)
                for index in range(0, edged, 2):
                    if held == _PART - 1:
                        total += _score_part(tokens, held, first, order, slots, numbers, sums, found, depth)
                        count += held - first
                        for back in range(order):
                            tokens[back] = tokens[held - order + back]
                        held = first = order
                    tokens[held] = hash_word(data, edges[index], edges[index + 1], fold)
                    held += 1
                    words = True
            if words:
                tokens[held] = END
                total += _score_part(tokens, held + 1, first, order, slots, numbers, sums, found, depth)
                count += held + 1 - first
            at = stop + 1
        logs[row], counts[row] = total, count
