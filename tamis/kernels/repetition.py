"""Repeated n-grams of words, n from 2 to 10, exact up to 64-bit collisions of word hashes.

An n-gram can repeat only where both (n-1)-grams it is made of repeat, so each length looks only at the places where
the shorter ones did, and an n-gram is known by the numbers of its two halves:

    words      a b c a b d a b c          positions still in play
    2-grams    ab bc ca ab bd da ab bc    ab at 0 3 6, bc at 1 7
    3-grams    abc        abd    abc      abc at 0 6

The work is linear in the number of words. In ordinary text hardly anything is left after 3-grams; in the worst text
(one word for ever) every length looks at every word. Of equally frequent n-grams the first in the text is the top one.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np
from numba import njit

from tamis.kernels.spans import grown, hash_span, mix, number_of
from tamis.kernels.words import BLOCK, EDGES, chars_between, find_block

SHORTEST, LONGEST = 2, 10
NUM_LENGTHS = LONGEST - SHORTEST + 1

NGRAM_FIELDS = (
    "top_count", "top_chars", "top_chars_longest", "all_chars", "total_chars", "covered_chars", "greedy_chars",
    "later_chars",
)  # fmt: skip
"""First axis of the output of `measure_ngrams`; see there."""


@njit(nogil=True, cache=True)
def _take_block(data, at, end, mode, points, kinds, packs, edges, counts, keys, upto, words):
    """Put down the words of the next block: their hashes, and the characters up to the end of each."""
    found, at = find_block(data, at, end, mode, points, kinds, packs, edges, counts)
    chars = upto[words]
    for index in range(0, found, 2):
        start, stop = edges[index], edges[index + 1]
        keys[words] = hash_span(data, start, stop)
        chars += chars_between(data, start, stop, counts[index], counts[index + 1])
        words += 1
        upto[words] = chars
    return words, at


@njit(nogil=True, cache=True)
def measure_ngrams(data, offsets, mode, points, kinds, packs, out):
    """Per row and n, in the order of NGRAM_FIELDS; out int64[fields, rows, NUM_LENGTHS]. Characters of words only.

    top_count       occurrences of the most frequent n-gram, 1 if none repeats, 0 if the row has fewer than n words
    top_chars       its characters, the first in the text among equally frequent ones
    top_chars_longest  its characters, the longest among equally frequent ones
    all_chars       characters of all occurrences of n-grams that occur more than once, overlaps counted again
    total_chars     characters of all n-grams, overlaps counted again
    covered_chars   characters of words that lie in an n-gram that occurs more than once, each counted once
    greedy_chars    reading on: an n-gram already read counts, and reading goes on after it; else one word further
    later_chars     characters and inner spaces covered by occurrences after the first, each counted once
    """
    edges, counts = np.empty(EDGES, np.int64), np.empty(EDGES, np.uint64)
    keys = np.empty(4096, np.uint64)  # word hashes
    upto = np.empty(4097, np.int64)  # characters before each word
    gram = np.empty(4096, np.int32)  # number of the n-gram at each word
    place = np.empty(4096, np.int32)  # words where an n-gram that repeats begins
    names = np.empty(4097, np.uint64)  # key of each number
    times = np.empty(4097, np.int32)  # occurrences of each number
    first = np.empty(4097, np.int32)  # first word of each number
    read = np.empty(4097, np.int32)
    slots = np.empty(8192, np.int32)
    for row in range(len(offsets) - 1):
        at, end = offsets[row], offsets[row + 1]
        words = 0
        upto[0] = 0
        while at < end:
            if words + BLOCK >= len(keys):
                keys = grown(keys, words + BLOCK + 1)
                upto = grown(upto, len(keys) + 1)
            words, at = _take_block(data, at, end, mode, points, kinds, packs, edges, counts, keys, upto, words)
        if words < SHORTEST:
            continue
        if len(gram) < words:
            room = len(keys)
            gram, place = np.empty(room, np.int32), np.empty(room, np.int32)
            names, times = np.empty(room + 1, np.uint64), np.empty(room + 1, np.int32)
            first, read = np.empty(room + 1, np.int32), np.empty(room + 1, np.int32)
        size = 16
        while size < 2 * words:
            size *= 2
        if len(slots) < size:
            slots = np.empty(size, np.int32)
        slots[:size] = 0
        members = 0
        for word in range(words):
            number = number_of(slots, size - 1, names, members, keys[word])
            if number > members:
                members = number
                times[number] = 0
            times[number] += 1
            gram[word] = number
        left = 0
        for word in range(words):
            if times[gram[word]] > 1:
                place[left] = word
                left += 1
        both = upto[words]  # characters of all n-grams, kept up from n to n + 1
        for length in range(SHORTEST, min(LONGEST, words) + 1):
            both += upto[words - length + 1] - upto[length - 1]
            out[4, row, length - SHORTEST] = both
            if left:
                left = _lengthen(gram, place, left, slots, names, times, first)
            if left:
                _measure_length(gram, place, left, length, upto, times, first, read, out[:, row, length - SHORTEST])
            else:
                out[0, row, length - SHORTEST] = 1
                out[1, row, length - SHORTEST] = out[2, row, length - SHORTEST] = upto[length]


@njit(nogil=True, cache=True)
def _lengthen(gram, place, left, slots, names, times, first):
    """From the places of repeated (n-1)-grams to those of repeated n-grams: renumber `gram`, return how many are left."""
    size = 16
    while size < 2 * left:
        size *= 2
    slots[:size] = 0
    members = 0
    kept = 0
    for index in range(left):
        word = np.int64(place[index])
        if index + 1 < left and place[index + 1] == word + 1:
            key = np.uint64(gram[word]) << np.uint64(32) | np.uint64(gram[word + 1])
            number = number_of(slots, size - 1, names, members, mix(np.uint64(0), key))
            if number > members:
                members = number
                times[number] = 0
                first[number] = word
            times[number] += 1
            gram[word] = number
            place[kept] = word
            kept += 1
    again = 0
    for index in range(kept):
        word = place[index]
        if times[gram[word]] > 1:
            place[again] = word
            again += 1
    return again


@njit(nogil=True, cache=True)
def _measure_length(gram, place, left, length, upto, times, first, read, out):
    """Put down what is known of one length of n-grams, some of which repeat; see `measure_ngrams`."""
    top = np.int64(0)
    every = covered = greedy = later = 0
    covered_to = greedy_from = later_to = np.int64(0)
    for index in range(left):
        word = np.int64(place[index])
        number = gram[word]
        chars = upto[word + length] - upto[word]
        every += chars
        from_word = max(word, covered_to)
        covered_to = word + length
        covered += upto[covered_to] - upto[from_word]
        if first[number] == word:
            read[number] = 0
            if top == 0 or times[number] > times[gram[top - 1]]:
                top = word + 1
                out[2] = chars
            elif times[number] == times[gram[top - 1]]:
                out[2] = max(out[2], chars)
        else:
            from_word = max(word, later_to)
            later += upto[word + length] - upto[from_word] + min(word + length - from_word, length - 1)
            later_to = word + length
        if word >= greedy_from:
            if read[number]:
                greedy += chars
                greedy_from = word + length
            read[number] = 1
    out[0] = times[gram[top - 1]]
    out[1] = upto[top - 1 + length] - upto[top - 1]
    out[3], out[5], out[6], out[7] = every, covered, greedy, later
