"""Unicode word boundaries (UAX #29), and words: the segments between them that contain a letter or a digit.

Kernels take `data`, `offsets` and the property tables, as described in `words`.
"""
# mypy: disallow-untyped-defs=False
# ruff: noqa: SIM109

from __future__ import annotations

import numpy as np

from tamis.kernels.characters import class_of, decode
from tamis.kernels.jit import bare, inlined, kernel, part
from tamis.kernels.unicode_tables import (
    ALPHANUMERIC,
    DIGIT,
    LETTER,
    PICTOGRAPH,
    WB_ALETTER,
    WB_CR,
    WB_DOUBLE_QUOTE,
    WB_EXTEND,
    WB_EXTENDNUMLET,
    WB_FORMAT,
    WB_HEBREW_LETTER,
    WB_KATAKANA,
    WB_LF,
    WB_MIDLETTER,
    WB_MIDNUM,
    WB_MIDNUMLET,
    WB_NEWLINE,
    WB_NUMERIC,
    WB_REGIONAL_INDICATOR,
    WB_SINGLE_QUOTE,
    WB_WSEGSPACE,
    WB_ZWJ,
)
from tamis.kernels.words import base_of, mark_word

_UNDERSCORE = 95


@inlined
def break_of(point, points):
    return np.int64(points[class_of(point, points)])


@inlined
def _is_letter(kind):
    return kind == WB_ALETTER or kind == WB_HEBREW_LETTER


@inlined
def _is_ignored(kind):
    return kind == WB_EXTEND or kind == WB_FORMAT or kind == WB_ZWJ


@bare
def _decode(data, at, end):
    """`decode`, not inlined: for callers where compile time matters more than speed."""
    return decode(data, at, end)


@part
def _peek(data, at, end, points):
    """Return the Word_Break value of the next character that WB4 does not ignore, or -1."""
    while at < end:
        point, at = _decode(data, at, end)
        kind = break_of(point, points)
        if not _is_ignored(kind):
            return kind
    return -1


@part
def next_break(data, at, end, points, kinds):
    """Return the end of the UAX #29 word segment that starts at `at`."""
    point, at = _decode(data, at, end)
    kind = break_of(point, points)
    if kind == WB_CR:
        return at + 1 if at < end and data[at] == 10 else at
    if kind == WB_LF or kind == WB_NEWLINE:
        return at
    last, before, raw = kind, np.int64(-1), kind
    regional = 1 if kind == WB_REGIONAL_INDICATOR else 0
    while at < end:
        point, after = _decode(data, at, end)
        cls = class_of(point, points)
        kind = np.int64(points[cls])
        if kind == WB_CR or kind == WB_LF or kind == WB_NEWLINE:
            return at
        if _is_ignored(kind):
            raw, at = kind, after
            continue
        letter = _is_letter(kind)
        joined = False
        if raw == WB_ZWJ and kinds[128 + cls] & PICTOGRAPH:  # WB3c
            joined = True
        elif kind == WB_WSEGSPACE:  # WB3d
            joined = raw == WB_WSEGSPACE
        elif letter:  # WB5, WB7, WB7c, WB10, WB13b
            joined = _is_letter(last) or last == WB_NUMERIC or last == WB_EXTENDNUMLET
            if last == WB_MIDLETTER or last == WB_MIDNUMLET or last == WB_SINGLE_QUOTE:
                joined = _is_letter(before)
            elif last == WB_DOUBLE_QUOTE:
                joined = before == WB_HEBREW_LETTER and kind == WB_HEBREW_LETTER
        elif kind == WB_NUMERIC:  # WB8, WB9, WB11, WB13b
            joined = last == WB_NUMERIC or _is_letter(last) or last == WB_EXTENDNUMLET
            if last == WB_MIDNUM or last == WB_MIDNUMLET or last == WB_SINGLE_QUOTE:
                joined = before == WB_NUMERIC
        elif kind == WB_KATAKANA:  # WB13, WB13b
            joined = last == WB_KATAKANA or last == WB_EXTENDNUMLET
        elif kind == WB_EXTENDNUMLET:  # WB13a
            joined = _is_letter(last) or last == WB_NUMERIC or last == WB_KATAKANA or last == WB_EXTENDNUMLET
        elif kind == WB_REGIONAL_INDICATOR:  # WB15, WB16
            joined = last == WB_REGIONAL_INDICATOR and regional % 2 == 1
            regional += 1
        elif _is_letter(last):
            if kind == WB_SINGLE_QUOTE and last == WB_HEBREW_LETTER:  # WB7a
                joined = True
            elif kind == WB_MIDLETTER or kind == WB_MIDNUMLET or kind == WB_SINGLE_QUOTE:  # WB6
                joined = _is_letter(_peek(data, after, end, points))
            elif kind == WB_DOUBLE_QUOTE and last == WB_HEBREW_LETTER:  # WB7b
                joined = _peek(data, after, end, points) == WB_HEBREW_LETTER
        elif last == WB_NUMERIC and (kind == WB_MIDNUM or kind == WB_MIDNUMLET or kind == WB_SINGLE_QUOTE):  # WB12
            joined = _peek(data, after, end, points) == WB_NUMERIC
        if not joined:
            return at
        before, last, raw, at = last, kind, kind, after
    return at


@inlined
def _is_joint(data, at, end, kinds):
    """Return whether the ASCII byte at `at` joins the ASCII letters or digits around it (WB6, WB7, WB11, WB12)."""
    if at + 1 >= end or data[at + 1] >= 128:
        return False
    byte, around = data[at], kinds[data[at - 1]] & kinds[data[at + 1]]
    if byte == 46 or byte == 39:  # . '
        return around & (LETTER | DIGIT) != 0
    if byte == 58:  # :
        return around & LETTER != 0
    return (byte == 44 or byte == 59) and around & DIGIT != 0  # , ;


@bare
def _has_alphanumeric(data, at, stop, points, kinds):
    while at < stop:
        point, at = _decode(data, at, stop)
        if kinds[128 + class_of(point, points)] & ALPHANUMERIC:
            return True
    return False


@kernel
def find_unicode_words(data, offsets, points, kinds, begins, ends):
    """Mark the segments that contain a letter or a digit. Scans ASCII words itself; `next_break` finds all others."""
    base = base_of(offsets)
    for row in range(len(offsets) - 1):
        at, end = offsets[row], offsets[row + 1]
        while at < end:
            byte = data[at]
            if byte < 128 and not kinds[byte] & ALPHANUMERIC and byte != _UNDERSCORE:
                at += 1
                continue
            start, seen = at, np.int64(0)
            while at < end and data[at] < 128:
                flags = np.int64(kinds[data[at]])
                if (
                    not flags & ALPHANUMERIC
                    and data[at] != _UNDERSCORE
                    and (at == start or not _is_joint(data, at, end, kinds))
                ):
                    break
                seen |= flags & ALPHANUMERIC
                at += 1
            wide = at < end and (data[at] >= 128 or (at + 1 < end and data[at + 1] >= 128))
            if at == start or wide:
                at = next_break(data, start, end, points, kinds)
                seen = np.int64(_has_alphanumeric(data, start, at, points, kinds))
            if seen:
                mark_word(begins, ends, base, start, at)


@kernel
def find_breaks(data, offsets, points, kinds, breaks):
    """Write the end of every UAX #29 segment of every row to breaks (int64) and return the number of segments."""
    count = 0
    for row in range(len(offsets) - 1):
        at, end = offsets[row], offsets[row + 1]
        while at < end:
            at = next_break(data, at, end, points, kinds)
            breaks[count] = at
            count += 1
    return count
