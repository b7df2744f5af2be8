"""Serialize columns to JSON lines, directly into the output buffer.

Lines are built column by column: `measure` adds the length of each value to the length of its line, then `write` puts
key and value at the cursor of each line and advances it.

    data      uint8[bytes], UTF-8
    words     uint64[bytes // 8], the same bytes (little-endian), to check eight at a time for escapes
    offsets   int64[rows + 1] into data
    valid     bool[rows]; a row that is not valid is written as null
    raw       True if the values are JSON already (numbers, nested values), False if they are text to quote
    prefix    uint8[n], the bytes before each value: a brace or comma, the key, a colon
    lengths   int64[rows], bytes of each line so far
    cursor    int64[rows], position of the next byte of each line in `out`, uint8[sum of lengths]

Positions are unsigned, because numba checks signed indices for negative values, which halves the speed.
"""

from __future__ import annotations

import numpy as np

from tamis.kernels.jit import inlined, kernel

_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)

_U = np.uint64
_1, _2, _3, _4, _5, _6, _7, _8 = (_U(number) for number in range(1, 9))
_LOW, _HIGH = _U(0x0101010101010101), _U(0x8080808080808080)
_SPACES, _QUOTES, _BACKSLASHES = _U(0x2020202020202020), _U(0x2222222222222222), _U(0x5C5C5C5C5C5C5C5C)


def _escape_table() -> np.ndarray:
    """For each byte, the letter after the backslash; 0 for bytes that need no escape, 1 for \\u00XX (RFC 8259, 7)."""
    table = np.zeros(256, dtype=np.uint8)
    table[:32] = 1
    for byte, letter in zip(b'"\\\b\f\n\r\t', b'"\\bfnrt', strict=True):
        table[byte] = letter
    return table


_ESCAPES = _escape_table()


@inlined
def _needs_escape(word):  # type: ignore[no-untyped-def]
    """Not 0 if any of the eight bytes is below 32, a quote or a backslash ("Bit Twiddling Hacks", hasless, haszero)."""
    quote, backslash = word ^ _QUOTES, word ^ _BACKSLASHES
    below = (word - _SPACES) & ~word
    return (below | ((quote - _LOW) & ~quote) | ((backslash - _LOW) & ~backslash)) & _HIGH


@kernel
def measure(data, words, offsets, valid, raw, lengths):  # type: ignore[no-untyped-def]
    """lengths[i] += bytes of row i as JSON."""
    for row in range(len(lengths)):
        i, stop = _U(offsets[row]), _U(offsets[row + 1])
        if not valid[row]:
            lengths[row] += 4
            continue
        size = stop - i
        if raw:
            i = stop
        else:
            size += _2
        while i < stop:
            if i & _7 == 0 and i + _8 <= stop and _needs_escape(words[i >> _3]) == 0:
                i += _8
                continue
            end = min((i | _7) + _1, stop)
            while i < end:
                letter = _ESCAPES[data[i]]
                size += _U(letter > 0) + _U(letter == 1) * _4
                i += _1
        lengths[row] += np.int64(size)


@kernel
def write(data, words, offsets, valid, raw, prefix, out, cursor):  # type: ignore[no-untyped-def]
    """Write `prefix` and the value of row i at out[cursor[i]], and advance the cursor."""
    for row in range(len(cursor)):
        i, stop, at = _U(offsets[row]), _U(offsets[row + 1]), _U(cursor[row])
        for j in range(_U(len(prefix))):
            out[at + j] = prefix[j]
        at += _U(len(prefix))
        if not valid[row]:
            out[at], out[at + _1], out[at + _2], out[at + _3] = 110, 117, 108, 108  # null
            cursor[row] = np.int64(at + _4)
            continue
        if raw:
            for j in range(stop - i):
                out[at + j] = data[i + j]
            cursor[row] = np.int64(at + stop - i)
            continue
        out[at] = 34
        at += _1
        while i < stop:
            if i & _7 == 0 and i + _8 <= stop:
                word = words[i >> _3]
                if _needs_escape(word) == 0:
                    for j in range(8):
                        out[at + _U(j)] = np.uint8((word >> _U(8 * j)) & _U(255))
                    i += _8
                    at += _8
                    continue
            end = min((i | _7) + _1, stop)
            while i < end:
                byte = data[i]
                letter = _ESCAPES[byte]
                i += _1
                if letter == 0:
                    out[at] = byte
                    at += _1
                    continue
                out[at] = 92
                if letter == 1:
                    out[at + _1], out[at + _2], out[at + _3] = 117, 48, 48  # u00
                    out[at + _4], out[at + _5] = _HEX[byte >> 4], _HEX[byte & 15]
                    at += _6
                else:
                    out[at + _1] = letter
                    at += _2
        out[at] = 34
        cursor[row] = np.int64(at + _1)
