"""Find repeated word n-grams, n from 2 to 10, and repeated character n-grams. Exact, except for 64-bit collisions of hashes.

An n-gram can repeat only where both of its (n-1)-grams repeat. Each length therefore examines only the positions where the
shorter n-grams repeated, and an n-gram is identified by the numbers of its two (n-1)-grams:

    words      a b c a b d a b c          remaining positions
    2-grams    ab bc ca ab bd da ab bc    ab at 0 3 6, bc at 1 7
    3-grams    abc        abd    abc      abc at 0 6

The cost is linear in the number of words. In ordinary text few positions remain after 3-grams; in the worst case (one word
repeated throughout) every length examines every word. Of equally frequent n-grams, the first in the text is the top one.

Words are marked by `begins` and `ends`, see `words`.

Whether an n-gram repeats is unpredictable, so the loops select values instead of branching. Word positions and numbers are
unsigned, which avoids numba's check for negative indices.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from tamis.kernels.jit import bare, inlined, kernel, part
from tamis.kernels.spans import clear, grown, hash_span, mix, number_of, table_size
from tamis.kernels.words import EDGES, base_of, read_words

SHORTEST, LONGEST = 2, 10
NUM_LENGTHS = LONGEST - SHORTEST + 1

NGRAM_FIELDS = (
    "top_count", "top_chars", "top_chars_longest", "all_chars", "total_chars", "covered_chars", "greedy_chars",
    "later_chars", "all_count", "total_count",
)  # fmt: skip
"""First axis of the output of `measure_ngrams`, which describes the fields."""


@inlined
def _is_ascii(data, at, stop):
    seen = np.uint8(0)
    for place in range(at, stop):
        seen |= data[place]
    return seen < 128


@bare
def _take_words(data, at, end, begins, ends, base, edges, keys, upto, words):
    """Append the next words of a row: their hashes, and the number of characters up to the end of each."""
    start = at
    found, at = read_words(begins, ends, base, at, end, edges)
    plain = _is_ascii(data, start, at if at < end else end)
    chars = upto[words]
    for index in range(0, found, 2):
        start, stop = edges[index], edges[index + 1]
        keys[words] = hash_span(data, start, stop)
        chars += stop - start
        if not plain:
            for place in range(start, stop):
                chars -= data[place] & 0xC0 == 0x80
        words += 1
        upto[words] = chars
    return words, at


@kernel
def measure_ngrams(data, offsets, begins, ends, out):
    """Measure each row; out int64[fields, rows, NUM_LENGTHS], fields in the order of NGRAM_FIELDS.

    The counts of characters, except `later_chars`, are of those within words; spaces do not count.

    top_count       occurrences of the most frequent n-gram, 1 if none repeats, 0 if the row has fewer than n words
    top_chars       its characters; of equally frequent n-grams, the first in the text
    top_chars_longest  its characters; of equally frequent n-grams, the longest
    all_chars       characters of all occurrences of repeated n-grams, overlaps counted each time
    total_chars     characters of all n-grams, overlaps counted each time
    covered_chars   characters of words within a repeated n-gram, each counted once
    greedy_chars    characters of n-grams already seen, in a scan that skips past each of them and otherwise moves one word
    later_chars     characters and inner spaces covered by occurrences after the first, each counted once
    all_count       occurrences of repeated n-grams
    total_count     n-grams
    """
    base, edges = base_of(offsets), np.empty(EDGES, np.int64)
    keys = np.empty(EDGES, np.uint64)  # word hashes
    upto = np.empty(EDGES + 1, np.int64)  # characters before each word
    gram = np.empty(4096, np.uint32)  # number of the n-gram that starts at each word
    place = np.empty(4096, np.uint32)  # words where a repeated n-gram starts
    names = np.empty(4098, np.uint64)  # key of each number
    times = np.empty(4098, np.uint32)  # occurrences of each number
    first = np.empty(4098, np.uint32)  # first word of each number
    read = np.empty(4098, np.uint32)
    slots = np.empty(16384, np.uint32)
    for row in range(len(offsets) - 1):
        at, end = offsets[row], offsets[row + 1]
        words = np.int64(0)
        upto[0] = 0
        while at < end:
            if words + EDGES // 2 >= len(keys):
                keys = grown(keys, words + EDGES // 2 + 1)
                upto = grown(upto, len(keys) + 1)
            words, at = _take_words(data, at, end, begins, ends, base, edges, keys, upto, words)
        if words < SHORTEST:
            continue
        if len(gram) < words:
            capacity = len(keys)
            gram, place = np.empty(capacity, np.uint32), np.empty(capacity, np.uint32)
            names, times = np.empty(capacity + 2, np.uint64), np.empty(capacity + 2, np.uint32)
            first, read = np.empty(capacity + 2, np.uint32), np.empty(capacity + 2, np.uint32)
        if len(slots) < table_size(words):
            slots = np.empty(table_size(words), np.uint32)
        left = _number_words(keys, words, gram, place, slots, names, times)
        both = upto[words]  # characters of all n-grams, updated from n to n + 1
        for length in range(SHORTEST, (words if words < LONGEST else LONGEST) + 1):
            both += upto[words - length + 1] - upto[length - 1]
            out[4, row, length - SHORTEST], out[9, row, length - SHORTEST] = both, words - length + 1
            if left:
                left = _lengthen(gram, place, left, slots, names, times, first, read)
            out[8, row, length - SHORTEST] = left
            if left:
                _measure_length(gram, place, left, length, upto, times, first, read, out, row)
            else:
                out[0, row, length - SHORTEST] = 1
                out[1, row, length - SHORTEST] = out[2, row, length - SHORTEST] = upto[length]


@part
def _number_words(keys, words, gram, place, slots, names, times):
    """Number the distinct words and write the positions of those that repeat; return how many positions."""
    size = table_size(words)
    clear(slots, size)
    members = np.int64(0)
    for word in range(words):
        times[members + 1] = 0
        number = number_of(slots, size - 1, names, members, keys[word])
        members = number if number > members else members
        times[number] += np.uint32(1)
        gram[word] = number
    left = np.int64(0)
    for word in range(words):
        place[left] = word
        left += times[gram[word]] > 1
    return left


@part
def _lengthen(gram, place, left, slots, names, times, first, read):
    """Reduce the positions of repeated (n-1)-grams to those of repeated n-grams and renumber `gram`; return how many."""
    kept = np.int64(0)
    for index in range(left - 1):
        word = place[index]
        place[kept] = word
        kept += place[index + 1] == word + 1
    size = table_size(kept)
    clear(slots, size)
    members = np.int64(0)
    for index in range(kept):
        word = np.uint64(place[index])
        times[members + 1], first[members + 1], read[members + 1] = 0, word, 0
        key = np.uint64(gram[word]) << np.uint64(32) | np.uint64(gram[word + np.uint64(1)])
        number = number_of(slots, size - 1, names, members, mix(np.uint64(0), key))
        members = number if number > members else members
        times[number] += np.uint32(1)
        gram[word] = number
    again = np.int64(0)
    for index in range(kept):
        word = place[index]
        place[again] = word
        again += times[gram[word]] > 1
    return again


@part
def _measure_length(gram, place, left, length, upto, times, first, read, out, row):
    """Write the measurements for one n, where some n-grams repeat; see `measure_ngrams`."""
    size = np.uint64(length)
    top, most, longest = np.uint64(0), np.uint32(0), np.int64(0)
    every = covered = greedy = later = np.int64(0)
    covered_to = greedy_from = later_to = np.uint64(0)
    for index in range(left):
        word = np.uint64(place[index])
        end = word + size
        number = gram[word]
        chars = upto[end] - upto[word]
        every += chars
        start = word if word > covered_to else covered_to
        covered += upto[end] - upto[start]
        covered_to = end
        if times[number] > most:
            top, most, longest = word, times[number], chars
        elif times[number] == most:
            longest = chars if chars > longest else longest
        start = word if word > later_to else later_to
        more = upto[end] - upto[start] + np.int64(end - start - np.uint64(start == word))
        again = first[number] != word
        later += more if again else 0
        later_to = end if again else later_to
        reached = word >= greedy_from
        skips = reached & (read[number] != 0)
        greedy += chars if skips else 0
        greedy_from = end if skips else greedy_from
        read[number] |= np.uint32(reached)
    column = length - SHORTEST
    out[0, row, column], out[1, row, column] = most, upto[top + size] - upto[top]
    out[2, row, column], out[3, row, column], out[5, row, column] = longest, every, covered
    out[6, row, column], out[7, row, column] = greedy, later


# ------------------------------------------------------------------------------------------------------------ characters


@inlined
def _next_character(data, at, end):
    at += 1
    while at < end and data[at] & 0xC0 == 0x80:
        at += 1
    return at


@inlined
def _counter_of(key, counters):
    """Return (byte, shift) of the two-bit counter that belongs to a hash."""
    counter = np.int64((key >> np.uint64(32)) * counters >> np.uint64(32))
    return counter >> 2, np.uint8(2 * (counter & 3))


@kernel
def measure_character_ngrams(data, offsets, length, out):
    """Measure the n-grams of characters in each row; out int64[2, rows], initially zeros.

    0  occurrences of the most frequent n-grams that repeat, at most floor(sqrt(d)) of them, d the distinct n-grams
    1  n-grams

    Each n-gram is hashed twice. The first time, counters of two bits, four for each n-gram, record whether any other n-gram
    has the same counter. In ordinary text few do, and only their hashes are kept and sorted the second time. Memory is a
    byte for each n-gram of the longest row, and eight for each that shares a counter.
    """
    seen = np.empty(4096, np.uint8)
    keys = np.empty(4096, np.uint64)
    for row in range(len(offsets) - 1):
        start, end = offsets[row], offsets[row + 1]
        first = start  # where the last character of the first n-gram starts
        for _ in range(length - 1):
            if first < end:
                first = _next_character(data, first, end)
        total = np.int64(0)
        for at in range(first, end):
            total += data[at] & 0xC0 != 0x80
        if total == 0:
            continue
        if len(seen) < total:
            seen = np.empty(total, np.uint8)
        clear(seen, total)
        counters = np.uint64(4 * total if total < 1 << 30 else 1 << 32)
        shared = _count_shared(data, start, first, end, counters, seen)
        if len(keys) < shared:
            keys = np.empty(0, np.uint64)  # release the previous array first
            keys = np.empty(shared, np.uint64)
        _take_shared(data, start, first, end, counters, seen, keys)
        out[0, row], out[1, row] = _most_frequent(keys, shared, total), total


@part
def _count_shared(data, at, last, end, counters, seen):
    """Count each n-gram; return how many share a counter with another one."""
    shared = np.int64(0)
    while last < end:
        last = _next_character(data, last, end)
        byte, shift = _counter_of(hash_span(data, at, last), counters)
        count = np.int64(seen[byte] >> shift & 3)
        seen[byte] += np.uint8((count < 2) << shift)
        shared += 2 if count == 1 else count >> 1
        at = _next_character(data, at, end)
    return shared


@part
def _take_shared(data, at, last, end, counters, seen, keys):
    """Write the hashes of the n-grams that share a counter."""
    taken = np.int64(0)
    while last < end:
        last = _next_character(data, last, end)
        key = hash_span(data, at, last)
        byte, shift = _counter_of(key, counters)
        if seen[byte] >> shift & 3 == 2:
            keys[taken] = key
            taken += 1
        at = _next_character(data, at, end)


@part
def _most_frequent(keys, shared, total):
    """Return the occurrences of the most frequent n-grams that repeat; overwrites `keys`."""
    keys[:shared].sort()
    distinct, repeated, at = total - shared, np.int64(0), np.int64(0)
    while at < shared:
        after = at + 1
        while after < shared and keys[after] == keys[at]:
            after += 1
        distinct += 1
        if after - at > 1:
            keys[repeated] = after - at
            repeated += 1
        at = after
    most = np.int64(np.sqrt(distinct))
    if most < repeated:
        keys[:repeated].sort()
    found = np.int64(0)
    for index in range(repeated - most if most < repeated else 0, repeated):
        found += np.int64(keys[index])
    return found
