"""MinHash signatures of texts (Broder 1997), over word or character n-grams.

    bytes -> words or characters, normalised -> one 64-bit hash each -> rolling n-gram hash -> 32 bits x
                                                minimum over the text of a[p] * x mod 2**32, for each p     -> band keys

Kernels take `data` (uint8, the bytes of a string column), `offsets` (int64, rows + 1), the property tables of
`unicode_tables` and the tables of `folding_tables`. Each a[p] is odd, so x -> a[p] * x is a bijection of 32-bit words. Since
the x are hashes, the probability that two texts have the same minimum is the Jaccard similarity of their n-gram sets. Band
keys are hashes of several such minima. Candidates are then compared by the x themselves, see `sets.py`.

A text of fewer than n words is a single n-gram that differs from all n-grams of longer texts, so it matches only texts that
are equal after normalisation. A text without words has no n-gram and matches nothing.
"""
# mypy: disallow-untyped-defs=False, disable-error-code="call-arg,var-annotated,assignment"

from __future__ import annotations

import functools
import unicodedata
from typing import Any

import numpy as np

from tamis.kernels.characters import decode, flags_of
from tamis.kernels.digests import mix64
from tamis.kernels.hashing import load64
from tamis.kernels.jit import expanded, intrinsic, ir, kernel, types
from tamis.kernels.sets import max_packed_bytes, pack_sets
from tamis.kernels.unicode_tables import (
    ALPHANUMERIC,
    CONTROL,
    DIGIT,
    PUNCTUATION,
    SPACE,
    SYMBOL,
    UNSPACED,
)

LOWERCASE, FOLD_DIGITS, STRIP_PUNCTUATION, STRIP_ACCENTS = 1, 2, 4, 8
"""Options of normalisation: lower-case letters; replace numbers by 0, and punctuation and symbols by spaces; remove accents."""

CHUNK = 1024
"""Words processed at a time; their hashes fit in the L1 cache."""
BUFFER = 4096
"""Bytes normalised at a time; a longer word is split."""

_BLOCK = 8  # n-grams per pass over the permutations, enough to hide the latency of loading the multipliers
_SEPARATOR, _NUMBER = 0, 255
_BASE = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, odd: the base of the rolling hash
_START = np.uint64(0x243F6A8885A308D3)  # pi
_UNIT = np.uint64(1)
_ONES = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)
_SPACES = np.uint64(0x2020202020202020)
_SHORT = np.uint64(0xB7E151628AED2A6B)  # e
_ACCENTED = ((0x00C0, 0x0250), (0x0370, 0x0530), (0x1E00, 0x2000))
"""Latin, Greek and Cyrillic: scripts in which a letter without its accent is still the same letter."""


@functools.cache
def folding_tables(options: int) -> tuple[np.ndarray, np.ndarray]:
    """(replacement for each ASCII byte, replacement for each code point below 65536) under these options.

    The replacement of a byte is 0 if it separates words, and 255 if it is a digit and numbers are folded.
    """
    ascii_table = np.arange(128, dtype=np.uint8)
    for byte in range(128):
        char = chr(byte)
        if char.isspace() or byte < 32 or byte == 127 or (options & STRIP_PUNCTUATION and not char.isalnum()):
            ascii_table[byte] = _SEPARATOR
        elif options & FOLD_DIGITS and char.isdigit():
            ascii_table[byte] = _NUMBER
        elif options & LOWERCASE:
            ascii_table[byte] = ord(char.lower())
    points = np.arange(65536, dtype=np.int32)
    if options & STRIP_ACCENTS:
        for first, last in _ACCENTED:
            for point in range(first, last):
                base, *marks = list(unicodedata.normalize("NFD", chr(point)))
                if marks and all(unicodedata.combining(mark) for mark in marks):
                    points[point] = ord(base)
    if options & LOWERCASE:
        for point in range(128, 65536):
            lower = chr(points[point]).lower()
            if len(lower) == 1:
                points[point] = min(ord(lower), 65535)
    ascii_table.flags.writeable = points.flags.writeable = False
    return ascii_table, points


def multipliers(count: int, seed: int = 1) -> np.ndarray:
    """Odd 32-bit numbers, one per permutation."""
    words = np.random.Generator(np.random.PCG64(seed)).integers(0, 2**32, count, dtype=np.uint32)
    return words | np.uint32(1)


@intrinsic
def store64(typingctx, data, at, word):
    """Write a uint64 to eight bytes of a uint8 array, at any alignment; the caller checks the bounds."""

    def generate(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = builder.bitcast(builder.gep(array.data, [arguments[1]]), ir.IntType(64).as_pointer())
        builder.store(arguments[2], pointer, align=1)
        return context.get_dummy_value()

    return types.void(data, types.int64, types.uint64), generate


@expanded
def _at_least(word, byte):
    """Sets the high bit of each byte of word (all below 128) that is at least `byte`."""
    return ((word | _HIGHS) - _ONES * np.uint64(byte)) & _HIGHS


@expanded
def _fold_eight(word, options):
    """(eight normalised bytes, whether these bytes can be normalised without context)."""
    digits = _at_least(word, 48) & ~_at_least(word, 58)
    plain = word & _HIGHS == 0 and not (options & FOLD_DIGITS and digits)
    letters = _at_least(word | _SPACES, 97) & ~_at_least(word | _SPACES, 123)
    if options & LOWERCASE:
        word |= (letters & ~_at_least(word, 97)) >> np.uint64(2)
    kept = letters | digits if options & STRIP_PUNCTUATION else _at_least(word, 33) & ~_at_least(word, 127)
    return word & ((kept >> np.uint64(7)) * np.uint64(255)), plain


@kernel
def normalise(data, at, end, by_characters, options, ascii_table, folds, points, kinds, state, buffer, size):
    """Write the normalised data[at:end] to buffer[size:] until the buffer is full; (bytes in buffer, position in data).

    A separator is written as 0, ASCII as itself, any other character as three bytes above 127. Separators surround each
    letter, with its marks, of a script without spaces. For character n-grams, runs of separators become one; without any
    option the text is not changed. `state` (bool[3]) is passed from call to call: whether the last character was in a
    number, was a word of one letter, and was not a separator.
    """
    number, single = state[0], state[1]
    verbatim = by_characters and options == 0
    room = len(buffer) - 24
    last = np.uint8(state[2])
    slow_until = at
    while at < end and size < room:
        if at >= slow_until and not by_characters and at + 8 <= end:
            read64, plain = _fold_eight(load64(data, at), options)
            if plain:
                if single:
                    single = False
                    buffer[size] = _SEPARATOR
                    size += 1
                store64(buffer, size, read64)
                size += 8
                at += 8
                last = np.uint8(read64 >> np.uint64(56))
                number = False
                continue
            slow_until = at + 8
        byte = data[at]
        if byte < 128:
            read = byte if verbatim else ascii_table[byte]
            at += 1
            if verbatim:
                buffer[size] = read
                size += 1
                continue
            if read == _NUMBER:
                read = np.uint8(48)
                if number:
                    continue
                number = True
            elif number:
                joins = read == _SEPARATOR and (byte == 46 or byte == 44) and at < end and data[at] < 128
                if joins and ascii_table[data[at]] == _NUMBER:  # 3.14 and 10,000 are one number
                    continue
                number = False
            if single:
                single = False
                if read != _SEPARATOR:
                    buffer[size] = _SEPARATOR
                    size += 1
            buffer[size] = read
            size += 1 if read | last else 0
            last = read
            continue
        point, at = decode(data, at, end)
        if not verbatim:
            flags = flags_of(point, points, kinds)
            if flags & (SPACE | CONTROL) or (options & STRIP_PUNCTUATION and flags & (PUNCTUATION | SYMBOL)):
                buffer[size] = _SEPARATOR
                size += 1 if last else 0
                last = np.uint8(_SEPARATOR)
                number = single = False
                continue
            if options & STRIP_ACCENTS and 0x300 <= point < 0x370:
                continue
            if flags & DIGIT and options & FOLD_DIGITS:
                if number:
                    continue
                number = True
                point = np.int64(48)
            else:
                number = False
                if point < 65536:
                    point = np.int64(folds[point])
            if flags & ALPHANUMERIC and last and (single or flags & UNSPACED) and not by_characters:
                buffer[size] = _SEPARATOR
                size += 1
            if flags & ALPHANUMERIC:
                single = flags & UNSPACED != 0 and not by_characters
        if point < 128:
            buffer[size] = np.uint8(point)
            size += 1
        else:
            buffer[size] = np.uint8(128 | (point & 127))
            buffer[size + 1] = np.uint8(128 | ((point >> 7) & 127))
            buffer[size + 2] = np.uint8(128 | (point >> 14))
            size += 3
        last = np.uint8(1)
    state[0], state[1], state[2] = number, single, last != 0
    return size, at


@kernel
def hash_words(buffer, size, final, out, first):
    """Write the hashes of the words in buffer[:size] to out[first:]; (end of the hashes, first byte not used).

    The last word is not used unless the data is `final` or it fills the buffer. Reads eight bytes beyond `size`.
    """
    count = first
    at = np.int64(0)
    buffer[size : size + 8] = _SEPARATOR
    while at < size and count < len(out):
        state = _START
        start = at
        while True:
            word = load64(buffer, at)
            zero = (word - _ONES) & ~word & _HIGHS
            if zero:
                below = ((zero & (~zero + _UNIT)) >> np.uint64(7)) - _UNIT
                word &= below
                length = np.int64(((below & _ONES) * _ONES) >> np.uint64(56))
                break
            state = mix64(state ^ word)
            at += 8
        if at + length >= size and not final and start > 0:
            return count, start
        at += length + 1
        if at > start + 1:
            out[count] = mix64(state ^ word)
            count += 1
    return count, min(at, size)


@kernel
def hash_characters(buffer, size, out, first):
    """Write the hashes of the characters in buffer[:size] to out[first:]; (end of the hashes, first byte not used)."""
    count = first
    at = np.int64(0)
    while at < size and count < len(out):
        if buffer[at] < 128:
            point = np.uint64(buffer[at])
            at += 1
        else:
            point = np.uint64(buffer[at]) | np.uint64(buffer[at + 1]) << np.uint64(8)
            point |= np.uint64(buffer[at + 2]) << np.uint64(16)
            at += 3
        out[count] = mix64(_START ^ point)
        count += 1
    return count, at


@kernel
def _minimise(found, count, factors, minima):
    """minima[p] = min(minima[p], factors[p] * x mod 2**32) over x in found[:count]; found is padded to a full block."""
    for index in range(count, (count + _BLOCK - 1) // _BLOCK * _BLOCK):
        found[index] = found[count - 1]
    for block in range(0, count, _BLOCK):
        x0, x1, x2, x3 = found[block], found[block + 1], found[block + 2], found[block + 3]
        x4, x5, x6, x7 = found[block + 4], found[block + 5], found[block + 6], found[block + 7]
        for p in range(len(factors)):
            a = factors[p]
            m = minima[p]
            m = min(m, np.uint32(a * x0))
            m = min(m, np.uint32(a * x1))
            m = min(m, np.uint32(a * x2))
            m = min(m, np.uint32(a * x3))
            m = min(m, np.uint32(a * x4))
            m = min(m, np.uint32(a * x5))
            m = min(m, np.uint32(a * x6))
            m = min(m, np.uint32(a * x7))
            minima[p] = m


@kernel
def sign(
    data, offsets, by_characters, n, options, ascii_table, folds, points, kinds,
    factors, num_bands, counts, keys, shingles, shingle_offsets,
):  # fmt: skip
    """Compute the n-grams and band keys of each row.

    factors    uint32[perms]         from `multipliers`
    counts     int64[rows]           out: number of n-grams, including repeats; negative if the text is shorter than n
    keys       uint64[rows, bands]   out: a hash of the band's number and minima
    shingles   uint32                out: the n-grams of all rows, concatenated
    shingle_offsets  int64[rows + 1] out: offsets of the rows in shingles
    """
    perms = len(factors)
    per_band = perms // num_bands
    minima = np.empty(perms, np.uint32)
    units = np.empty(CHUNK + n, np.uint64)
    found = np.empty(CHUNK + n + _BLOCK, np.uint32)
    buffer = np.zeros(BUFFER + 32, np.uint8)
    state = np.zeros(3, np.bool_)
    out_of = np.uint64(1)  # _BASE ** n: the weight of a unit that leaves the window
    for _ in range(n):
        out_of *= _BASE
    written = np.int64(0)
    for row in range(len(offsets) - 1):
        shingle_offsets[row] = written
        minima[:] = np.uint32(0xFFFFFFFF)
        state[:] = False
        at, end = offsets[row], offsets[row + 1]
        have = np.int64(0)  # units carried over from the previous chunk, at most n
        total = np.int64(0)
        rolling = np.uint64(0)
        size = np.int64(0)  # bytes that are normalised but not hashed yet
        while at < end or size:
            size, at = normalise(
                data, at, end, by_characters, options, ascii_table, folds, points, kinds, state, buffer, size
            )
            if by_characters:
                filled, rest = hash_characters(buffer, size, units, have)
            else:
                filled, rest = hash_words(buffer, size, at >= end, units, have)
            for index in range(rest, size):
                buffer[index - rest] = buffer[index]
            size -= rest
            count = 0
            for index in range(have, filled):
                rolling = rolling * _BASE + units[index]
                if index >= n:
                    rolling -= out_of * units[index - n]
                if index >= n - 1:
                    found[count] = np.uint32(mix64(rolling) >> np.uint64(32))
                    count += 1
            if count:
                _minimise(found, count, factors, minima)
                total += count
                for index in range(count):
                    shingles[written] = found[index]
                    written += 1
            if filled > n:
                for index in range(n):
                    units[index] = units[filled - n + index]
                have = np.int64(n)
            else:
                have = np.int64(filled)
        if total == 0 and have > 0:
            found[0] = np.uint32(mix64(rolling ^ _SHORT * np.uint64(have)) >> np.uint64(32))
            _minimise(found, 1, factors, minima)
            total = np.int64(-1)
            shingles[written] = found[0]
            written += 1
        counts[row] = total
        for band in range(num_bands):
            keys[row, band] = _START + np.uint64(band)
        for index in range(per_band):  # interleaves the bands, so that their dependency chains overlap
            for band in range(num_bands):
                keys[row, band] = mix64(keys[row, band] ^ np.uint64(minima[band * per_band + index]))
    shingle_offsets[len(offsets) - 1] = written


def ngram_buffers(offsets: np.ndarray, by_characters: bool) -> tuple[np.ndarray, np.ndarray]:
    """`shingles` and `shingle_offsets` for `sign`: a word takes at least a byte and a separator, or three bytes."""
    rows = len(offsets) - 1
    size = (int(offsets[-1] - offsets[0]) + 2 * rows) // (1 if by_characters else 2) + rows + 1
    return np.empty(size, np.uint32), np.zeros(rows + 1, np.int64)  # pages that are never written take no memory


def sign_packed(
    data: np.ndarray, offsets: np.ndarray, by_characters: bool, *arguments: Any
) -> tuple[np.ndarray, np.ndarray]:
    """`sign`, with its arguments up to `keys`; returns the packed n-grams and the offsets of the rows in them."""
    shingles, spans = ngram_buffers(offsets, by_characters)
    sign(data, offsets, by_characters, *arguments, shingles, spans)
    rows = len(offsets) - 1
    packed, ends = np.empty(max_packed_bytes(int(spans[-1]), rows), np.uint8), np.empty(rows + 1, np.int64)
    pack_sets(shingles, spans, packed, ends)
    return packed[: ends[-1]], ends
