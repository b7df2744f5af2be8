"""Mark where the words of a UTF-8 text start and end.

Words are marked in two bitmaps with one bit per byte of the text. Finding words is separate from using them: each word
definition is a kernel of its own, here, in `boundaries` and in `tokens`, and every kernel that measures words reads the marks,
whichever definition produced them.

    text     T h e   e n d ,   s o
    begins   x . . . x . . x . x .
    ends     . . x . . . x x . . x      the last byte of each word

Kernels take `data` (uint8, the bytes of a string column), `offsets` (int64, rows + 1), the property tables POINTS and
KINDS of `unicode_tables`, and `begins` and `ends` (uint64[num_blocks], initially zeros): bit i of block k represents byte
first_block(offsets) + 64 k + i. Some also take `tail`, see `masks.last_block`. Positions are in bytes; lengths called `chars`
are in code points.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from tamis.kernels.characters import decode, flags_of
from tamis.kernels.jit import bare, inlined, kernel
from tamis.kernels.masks import ALL, LANES, ONE, below, block_at, highest, lowest, matcher
from tamis.kernels.unicode_tables import ALPHANUMERIC, KINDS, LETTER, MARK, SPACE, UNSPACED

SPACES = [byte for byte in range(128) if KINDS[byte] & SPACE]
_HIGH = np.uint64(LANES - 1)

CHUNK = 4096
EDGES = 2 * CHUNK + 8
"""Bytes that `read_words` scans per call, and the size of its output array, which fits in the first-level cache."""


def first_block(offsets):
    """Return the position of the byte that the first bit represents."""
    return int(offsets[0]) // LANES * LANES


def num_blocks(offsets):
    return (int(offsets[-1]) - first_block(offsets)) // LANES + 2


base_of = inlined(first_block)
_match = matcher(SPACES, [0xC2, *range(0xE0, 256)])


# ------------------------------------------------------------------------------------------------------------- the marks


@inlined
def mark_word(begins, ends, base, start, stop):
    first, last = np.uint64(start - base), np.uint64(stop - 1 - base)
    begins[first >> np.uint64(6)] |= ONE << (first & _HIGH)
    ends[last >> np.uint64(6)] |= ONE << (last & _HIGH)


@inlined
def clear_marks(begins, ends, base, start, stop):
    """Remove the marks of the words in a span."""
    at = start - base
    while at < stop - base:
        block = at // LANES
        kept = ~(below(stop - base - block * LANES) & ~below(at - block * LANES))
        begins[block] &= kept
        ends[block] &= kept
        at = (block + 1) * LANES


@inlined
def outside(at, start, stop):
    """Return the bits of the block at `at` that are outside the row from `start` to `stop`."""
    return below(start - at) | ~below(stop - at)


@inlined
def run_start(data, spaces, at, bit, start):
    """Return the start of the run without ASCII spaces that contains byte `bit` of the block at `at`.

    The row starts at `start`.
    """
    before = spaces & below(bit)
    if before:
        return at + highest(before) + 1
    while at > start and not _is_space(data[at - 1]):
        at -= 1
    return at if at > start else start


@inlined
def run_stop(data, spaces, at, bit, stop):
    """Return the end of the run without ASCII spaces that contains byte `bit` of the block at `at`."""
    after = spaces >> np.uint64(bit)
    if after:
        return at + bit + lowest(after)
    at += LANES
    while at < stop and not _is_space(data[at]):
        at += 1
    return at


@inlined
def _is_space(byte):
    return (byte == 32) | ((byte >= 9) & (byte <= 13)) | ((byte >= 28) & (byte <= 31))


@inlined
def mark_ends(ends, block, after):
    """Mark the byte before each of the bits `after` as the last byte of a word."""
    ends[block] |= after >> ONE
    if after & ONE:
        ends[block - 1] |= ONE << _HIGH


@bare
def read_words(begins, ends, base, at, stop, edges):
    """Read the words of the next few kilobytes of a row. Return (number of edges, position to continue from).

    Word i starts at edges[2 i] and ends at edges[2 i + 1]; edges: int64[EDGES]. `at` must not be inside a word.
    """
    begun = ended = 0
    block = (at - base) // LANES
    last = (stop - 1 - base) // LANES
    inside = ~below(at - base - block * LANES)
    limit = block + CHUNK // LANES
    while block <= last and (block < limit or (ended == 0 and begun == 1)):
        if block == last:
            inside &= below(stop - base - block * LANES)
        place = base + block * LANES
        bits = begins[block] & inside
        while bits:
            edges[2 * begun] = place + lowest(bits)
            bits &= bits - ONE
            begun += 1
        bits = ends[block] & inside
        while bits:
            edges[2 * ended + 1] = place + lowest(bits) + 1
            bits &= bits - ONE
            ended += 1
        inside = ALL
        block += 1
    if block > limit:  # a single word longer than CHUNK
        return 2, edges[1]
    if begun > ended:  # the last word ends beyond the chunk
        return 2 * ended, edges[2 * ended]
    return 2 * ended, base + block * LANES


# ---------------------------------------------------------------------------------------------------------- spaced words


@bare
def next_word(data, at, end, singles, points, kinds):
    """Return (start, stop, combined flags of its characters) of the next word; start == stop if there is none.

    A word is a run of non-spaces, but a character with a flag in `singles` starts a new word if there is a letter or digit
    before it in this word, and so does the next letter or digit after it.
    """
    while at < end:
        byte = data[at]
        if byte < 128:
            if not kinds[byte] & SPACE:
                break
            at += 1
        else:
            point, after = decode(data, at, end)
            if not flags_of(point, points, kinds) & SPACE:
                break
            at = after
    start = at
    flags = np.int64(0)
    breaks = np.int64(SPACE)
    while at < end:
        byte = data[at]
        after = at + 1
        if byte < 128:
            found = np.int64(kinds[byte])
        else:
            point, after = decode(data, at, end)
            found = flags_of(point, points, kinds)
        if found & breaks:
            break
        if found & singles:
            if flags & ALPHANUMERIC:
                break
            breaks |= ALPHANUMERIC
        flags |= found
        at = after
    return start, at, flags


@bare
def _mark_each(data, start, stop, singles, points, kinds, begins, ends, base):
    """Mark the words of a span one by one."""
    while True:
        start, after, _ = next_word(data, start, stop, singles, points, kinds)
        if start == after:
            break
        mark_word(begins, ends, base, start, after)
        start = after


@kernel
def find_spaced_words(data, tail, offsets, unspaced, points, kinds, begins, ends):
    """Mark runs of non-spaces, like str.split(); if `unspaced`, each letter of a script without spaces starts a word.

    ASCII spaces are found 64 bytes at a time. Runs with a byte that may belong to another kind of space, or to a script
    without spaces, are examined a second time, character by character.
    """
    base = base_of(offsets)
    singles = np.int64(UNSPACED) if unspaced else np.int64(0)
    for row in range(len(offsets) - 1):
        start, stop = offsets[row], offsets[row + 1]
        done = start  # words that begin before here are marked
        going = np.uint64(0)  # whether a word continues from the previous block
        for block in range((start - base) // LANES, (stop - base + LANES - 1) // LANES):
            at = base + block * LANES
            spaces, odd = _match(block_at(data, tail, at))
            others = outside(at, start, stop)
            spaces |= others
            odd &= ~others
            before = ~spaces << ONE | going
            going = ~spaces >> _HIGH
            begins[block] |= ~spaces & ~before & ~below(done - at)
            mark_ends(ends, block, before & spaces & ~below(done - at + 1))
            odd &= ~below(done - at)
            while odd:
                bit = lowest(odd)
                first, done = run_start(data, spaces, at, bit, start), run_stop(data, spaces, at, bit, stop)
                clear_marks(begins, ends, base, first, done)
                _mark_each(data, first, done, singles, points, kinds, begins, ends, base)
                odd &= ~below(done - at)
        if going and done < stop:
            ends[(stop - 1 - base) // LANES] |= ONE << np.uint64((stop - 1 - base) % LANES)


@kernel
def find_single_words(data, offsets, points, kinds, begins, ends):
    """Mark each letter or digit as a word, together with any other characters up to the next one or a space."""
    base = base_of(offsets)
    for row in range(len(offsets) - 1):
        _mark_each(data, offsets[row], offsets[row + 1], np.int64(ALPHANUMERIC), points, kinds, begins, ends, base)


@kernel
def trim_words(data, offsets, points, kinds, begins, ends, trimmed_begins, trimmed_ends):
    """Mark each word again, from its first letter to its last and the marks after it; a word without letters is left out."""
    base = base_of(offsets)
    edges = np.empty(EDGES, np.int64)
    for row in range(len(offsets) - 1):
        at, end = offsets[row], offsets[row + 1]
        while at < end:
            found, at = read_words(begins, ends, base, at, end, edges)
            for index in range(0, found, 2):
                start, stop = _trimmed(data, edges[index], edges[index + 1], points, kinds)
                if start < stop:
                    mark_word(trimmed_begins, trimmed_ends, base, start, stop)


@bare
def _trimmed(data, start, stop, points, kinds):
    """Return (start, stop) from the first to the last letter of a span; start == stop if there is none."""
    while start < stop and data[start] < 128 and not kinds[data[start]] & LETTER:
        start += 1
    while start < stop and data[stop - 1] < 128 and not kinds[data[stop - 1]] & LETTER:
        stop -= 1
    if start == stop or (data[start] < 128 and data[stop - 1] < 128):
        return start, stop
    first, after, at = stop, stop, start
    while at < stop:
        point, following = decode(data, at, stop)
        flags = flags_of(point, points, kinds)
        if flags & LETTER:
            first = at if first == stop else first
            after = following
        elif flags & MARK and at == after:
            after = following
        at = following
    return first, after
