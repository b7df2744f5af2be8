"""Statistics of the words of a text, computed from the marks of `words`.

Kernels take `data`, `tail`, `offsets`, the property tables, `begins` and `ends`, as described there.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from tamis.kernels.characters import decode, flags_of
from tamis.kernels.jit import bare, inlined, kernel, part
from tamis.kernels.masks import LANES, ONE, below, block_at, matcher
from tamis.kernels.spans import hash_lowered, hash_start
from tamis.kernels.unicode_tables import DIGIT, KINDS, LETTER, MARKER, NUMBER, UPPER
from tamis.kernels.words import CHUNK, EDGES, base_of, read_words

WORD_FIELDS = (
    "words", "chars", "longest", "alphabetic", "plain", "plain_chars", "symbols", "marked",
    "listed", "listed_exact", "listed_distinct", "median_twice",
)  # fmt: skip
"""Rows of the output of `measure_words`, which describes them."""

_HISTOGRAM = 1024
_BLOCKS = CHUNK // LANES + 2


def _bytes_with(flags):
    return [byte for byte in range(128) if KINDS[byte] & flags]


_match = matcher(
    _bytes_with(LETTER), _bytes_with(LETTER | DIGIT | NUMBER), _bytes_with(UPPER), _bytes_with(MARKER), range(128, 256)
)  # fmt: skip


@part
def _read_masks(data, tail, at, stop, masks):
    """Classify the bytes from the block at `at` up to `stop`; masks uint64[5, _BLOCKS]."""
    block = 0
    while at < stop:
        masks[0, block], masks[1, block], masks[2, block], masks[3, block], masks[4, block] = _match(
            block_at(data, tail, at)
        )
        at += LANES
        block += 1


@inlined
def _bits(masks, kind, block, bit, size):
    """Return the bits of up to 64 bytes, starting at a bit of a block."""
    here, beyond = masks[kind, block] >> bit, masks[kind, block + 1] << ONE << (np.uint64(LANES - 1) - bit)
    return (here | beyond) & below(size)


@bare
def _look_at(data, at, stop, points, kinds):
    """Return (number of characters in a span, their combined flags)."""
    chars, seen = np.int64(0), np.int64(0)
    while at < stop:
        point, at = decode(data, at, stop)
        seen |= flags_of(point, points, kinds)
        chars += 1
    return chars, seen


@part
def _is_symbol_word(data, start, stop, chars, markers, alphanumerics):
    """Return whether a word is an ellipsis ("..." or the character, bare or in brackets), "->>" or mostly '#'."""
    if markers:
        hashes = 0
        for at in range(start, stop):
            if data[at] == 35:
                hashes += 1
        if 2 * hashes > chars:
            return True
    if alphanumerics:
        return False
    first, last = data[start], data[stop - 1]
    if stop - start >= 5 and ((first == 91 and last == 93) or (first == 40 and last == 41)):
        start, stop = start + 1, stop - 1
    if stop - start != 3:
        return False
    dots = data[start] == 46 and data[start + 1] == 46 and data[start + 2] == 46
    glyph = data[start] == 0xE2 and data[start + 1] == 0x80 and data[start + 2] == 0xA6
    arrow = data[start] == 45 and data[start + 1] == 0xC2 and data[start + 2] == 0xBB
    return dots or glyph or arrow


@inlined
def _find_listed(data, start, stop, keys, longest, probes):
    """Return (hash of a word, its slot in the table `keys` if it is listed); `probes`: see `_most_probes`."""
    if longest <= 8 and start + 8 <= len(
        data
    ):  # words longer than 8 bytes then hash differently from every listed word
        key = hash_start(data, start, stop)
    elif stop - start <= longest:
        key = _hash_lowered(data, start, stop)
    else:
        key = np.uint64(1)
    mask = np.uint64(len(keys) - 1)
    slot = key & mask
    for _ in range(1, probes):
        slot = slot if keys[slot] == key else (slot + np.uint64(1)) & mask
    return key, slot


@part
def _most_probes(keys):
    """Return the largest number of slots that must be tried to find a key of the table."""
    probes = 1
    mask = np.uint64(len(keys) - 1)
    for slot in range(len(keys)):
        if keys[slot]:
            away = np.int64((np.uint64(slot) - keys[slot]) & mask)
            probes = away + 1 if away >= probes else probes
    return probes


@part
def _hash_lowered(data, start, stop):
    """`hash_lowered`, not inlined, which saves compile time."""
    return hash_lowered(data, start, stop)


@kernel
def measure_words(data, tail, offsets, points, kinds, begins, ends, keys, longest, out):
    """Measure each row; out int64[fields, rows], fields in the order of WORD_FIELDS.

    words            number of words
    chars            characters of all words
    longest          characters of the longest word
    alphabetic       words with a letter
    plain            words with a letter, digit or number
    plain_chars      characters of plain words
    symbols          words that are an ellipsis or mostly '#'
    marked           words with a '#' or an ellipsis character
    listed           words in the table `keys`, with A-Z read as a-z
    listed_exact     listed words that are in lower case in the text
    listed_distinct  distinct words among listed_exact
    median_twice     twice the median word length; lengths above 1023 count as 1023

    keys: hash table of the listed words (`fill_table`); longest: length of the longest listed word in bytes.
    """
    base = base_of(offsets)
    histogram = np.zeros(_HISTOGRAM, np.int64)
    seen = np.zeros(len(keys), np.int64)
    probes = _most_probes(keys)
    edges, masks = np.empty(EDGES, np.int64), np.empty((5, _BLOCKS), np.uint64)
    for row in range(len(offsets) - 1):
        at, end = offsets[row], offsets[row + 1]
        words = total = most = alphabetic = plain = plain_chars = symbols = marked = np.int64(0)
        listed = exact = distinct = np.int64(0)
        while at < end:
            origin = base + (at - base) // LANES * LANES
            found, at = read_words(begins, ends, base, at, end, edges)
            words += found >> 1
            limit = origin + CHUNK
            _read_masks(data, tail, origin, limit if limit < at else at, masks)
            for index in range(0, found, 2):  # avoid unpredictable branches: a misprediction costs more than the rest
                start, stop = edges[index], edges[index + 1]
                chars = stop - start
                block, bit = (start - origin) >> 6, np.uint64((start - origin) & 63)
                letters = _bits(masks, 0, block, bit, chars) != 0
                named = _bits(masks, 1, block, bit, chars) != 0
                upper = _bits(masks, 2, block, bit, chars) != 0
                marks = _bits(masks, 3, block, bit, chars) != 0
                if chars > LANES or _bits(masks, 4, block, bit, chars) != 0:
                    chars, flags = _look_at(data, start, stop, points, kinds)
                    letters, named = flags & LETTER != 0, flags & (LETTER | DIGIT | NUMBER) != 0
                    upper, marks = flags & UPPER != 0, flags & MARKER != 0
                total += chars
                most = chars if chars > most else most
                histogram[chars if chars < _HISTOGRAM else _HISTOGRAM - 1] += 1
                alphabetic += letters
                plain += named
                plain_chars += chars if named else 0
                marked += marks
                if marks | ((not named) & (stop - start > 2)):
                    symbols += _is_symbol_word(data, start, stop, chars, marks, named)
                key, slot = _find_listed(data, start, stop, keys, longest, probes)
                known = keys[slot] == key
                low = known & (not upper)
                listed += known
                exact += low
                distinct += low & (seen[slot] != row + 1)
                seen[slot] = row + 1 if low else seen[slot]
        out[0, row], out[1, row], out[2, row], out[3, row] = words, total, most, alphabetic
        out[4, row], out[5, row], out[6, row], out[7, row] = plain, plain_chars, symbols, marked
        out[8, row], out[9, row], out[10, row] = listed, exact, distinct
        out[11, row] = _twice_median(histogram, words, most if most < _HISTOGRAM else _HISTOGRAM - 1)


@part
def _twice_median(histogram, count, most):
    """Return twice the median of the lengths counted in `histogram`, and clear it."""
    low, high = (count - 1) // 2, count // 2
    passed, result = 0, 0
    for length in range(most + 1):
        here = histogram[length]
        if here:
            if passed <= low < passed + here:
                result += length
            if passed <= high < passed + here:
                result += length
            passed += here
            histogram[length] = 0
    return result
