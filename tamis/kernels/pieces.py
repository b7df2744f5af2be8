"""Pieces of a text whose tokens can be counted apart, and a table of those whose count is known.

    def parse(self):\\n    return 12  -->  def | parse | ( | self | ):\\n |     | return | 12

A tokenizer takes a text apart before it looks for tokens, by a regular expression, and no token spans two parts. A text is cut
here at places where a part surely begins. For every expression that `tamis.text.tokens` knows these are

    behind an ASCII letter, before any other sign of ASCII but an apostrophe (don't)
    behind an ASCII digit, likewise
    before a space that follows something else than white space
    before the last of several signs of white space, and behind a tab or the end of a line

where the last two look one sign further: white space before a digit, or a sign that is not ASCII, stays with it. Then

    WORDS_APART       (GPT-2)            behind and before any run of other signs of ASCII
    WORDS_WITH_SIGNS  (GPT-4 and since)  likewise, but one sign stays with the word behind it (.name), and the ends of
                                         lines with the signs before them

A piece may hold several parts, never half of one. Pieces repeat as words do.
"""
# mypy: disallow-untyped-defs=False
# ruff: noqa: SIM109

from __future__ import annotations

import numpy as np

from tamis.kernels.digests import digest_bytes
from tamis.kernels.jit import inlined, kernel
from tamis.kernels.spans import mix, tail64

WORDS_APART, WORDS_WITH_SIGNS = range(2)

_UNKNOWN, _LETTER, _DIGIT, _SIGN, _APOSTROPHE, _SLASH, _BLANK, _TAB, _NEWLINE = range(9)
_TOGETHER, _CUT, _IF_ALONE, _AFTER_SIGN, _IN_SPACES, _AFTER_UNKNOWN = range(6)
"""What two neighbours say: that no part is known to begin between them, that one does, or where to look further."""


def _kinds():
    kinds = np.full(256, _UNKNOWN, np.uint8)  # control characters, and all that is not ASCII
    kinds[33:127] = _SIGN
    for signs, kind in (("'", _APOSTROPHE), ("/", _SLASH), (" ", _BLANK), ("\t", _TAB), ("\r\n", _NEWLINE)):
        kinds[list(signs.encode())] = kind
    kinds[ord("0") : ord("9") + 1] = _DIGIT
    kinds[ord("A") : ord("Z") + 1] = kinds[ord("a") : ord("z") + 1] = _LETTER
    return kinds


def _neighbours():
    """uint8[styles, kind on the left, kind on the right]"""
    table = np.full((2, 9, 9), _TOGETHER, np.uint8)
    signs, spaces = [_SIGN, _APOSTROPHE, _SLASH], [_BLANK, _TAB, _NEWLINE]
    for left, other in ((_LETTER, _DIGIT), (_DIGIT, _LETTER)):
        table[:, left, [other, _SIGN, _SLASH, *spaces]] = _CUT
    table[:, signs, _BLANK] = table[:, signs, _DIGIT] = _CUT
    table[:, _UNKNOWN, _BLANK] = _AFTER_UNKNOWN
    for left in spaces:
        table[:, left, [_BLANK, _TAB]] = _IN_SPACES
        table[WORDS_APART, left, _NEWLINE] = _IN_SPACES
    table[WORDS_WITH_SIGNS, _NEWLINE, [_LETTER, _SIGN, _APOSTROPHE]] = (
        _CUT  # a slash may belong to the line, for GPT-4o
    )
    for left in (_TAB, _NEWLINE):
        table[WORDS_APART, left, [_LETTER, *signs]] = _IF_ALONE
    for left in signs:
        table[WORDS_APART, left, [_TAB, _NEWLINE]] = _CUT
        table[WORDS_APART, left, _LETTER] = _TOGETHER if left == _APOSTROPHE else _CUT
        table[WORDS_WITH_SIGNS, left, _LETTER] = _AFTER_SIGN
    return table


_KINDS = _kinds()
_NEIGHBOURS = _neighbours()
_INSIDE = 15
"""Bytes of a piece that are its key; longer ones are known by their digest."""
_OUTSIDE = np.uint64(1 << 63)


@inlined
def _may_be_space(data, start, at):
    """Whether white space other than blanks may end before `at`; wrong about some letters of three bytes."""
    last = data[at - 1]
    if last < 128:
        return last < 32
    if at - start >= 2 and data[at - 2] >= 0xC0:
        return data[at - 2] == 0xC2
    return at - start < 3 or 0xE1 <= data[at - 3] <= 0xE3


@inlined
def _looked_at(saying, data, start, at, end, style):
    """Whether a part begins at `at` where neighbours alone do not tell."""
    if saying == _IF_ALONE:
        return at - 1 == start
    if saying == _AFTER_UNKNOWN:
        return not _may_be_space(data, start, at)
    if saying == _AFTER_SIGN:
        kind = _KINDS[data[at - 2]] if at - 2 >= start else _UNKNOWN
        return kind == _SIGN or kind == _APOSTROPHE or kind == _BLANK  # as above about slashes
    stop = at + 1
    if style == WORDS_WITH_SIGNS and _KINDS[data[at - 1]] == _NEWLINE:
        while stop < end and (data[stop] == 32 or data[stop] == 9):
            stop += 1
    following = _KINDS[data[stop]] if stop < end else _UNKNOWN
    return following == _LETTER or following == _SIGN or following == _APOSTROPHE or following == _SLASH


@inlined
def _end_of_piece(data, start, end, style):
    left = _KINDS[data[start]]
    for at in range(start + 1, end):
        right = _KINDS[data[at]]
        saying = _NEIGHBOURS[style, left, right]
        if saying != _TOGETHER and (saying == _CUT or _looked_at(saying, data, start, at, end, style)):
            return at
        left = right
    return end


@inlined
def _key(data, start, stop):
    size = stop - start
    if size <= _INSIDE:
        first = tail64(data, start, min(stop, start + 8))
        second = tail64(data, start + 8, stop) if size > 8 else np.uint64(0)
        return first, second | np.uint64(size) << np.uint64(56)
    first, second = digest_bytes(data, start, stop, 0)
    return first, second | _OUTSIDE


@inlined
def _slot(keys, first, second):
    """Where a piece is or belongs in the table; uint64[a power of two, 2], the second number 0 where it is empty."""
    mask = len(keys) - 1
    slot = np.int64(mix(first, second) & np.uint64(mask))
    while keys[slot, 1] != 0 and (keys[slot, 0] != first or keys[slot, 1] != second):
        slot = (slot + 1) & mask
    return slot


@kernel
def count_pieces(data, offsets, whole, style, keys, counts, position, out, fresh, waiting):
    """Add to out[i] the counts of the pieces of row i that are known, and put the others into the table.

    whole     bool[rows]       rows to pass over
    style     WORDS_APART or WORDS_WITH_SIGNS
    keys      uint64[size, 2]  the table
    counts    int32[size]      below 0 while the caller has not told
    position  int64[2]         the row and the byte to begin at, and to go on at the next time
    fresh     int64[room, 3]   start, stop and slot of each piece that was new
    waiting   int64[room, 2]   row and slot of each whose count is still to be added

    Ends early when there is no more room. Returns how many are fresh, and how many waiting.
    """
    num_fresh, num_waiting = 0, 0
    row, start = position
    while row < len(offsets) - 1:
        start = max(start, offsets[row])
        end = start if whole[row] else offsets[row + 1]
        while start < end:
            if num_waiting == len(waiting):
                position[0], position[1] = row, start
                return num_fresh, num_waiting
            stop = _end_of_piece(data, start, end, style)
            first, second = _key(data, start, stop)
            slot = _slot(keys, first, second)
            if keys[slot, 1] == 0:
                keys[slot, 0], keys[slot, 1], counts[slot] = first, second, -1
                fresh[num_fresh, 0], fresh[num_fresh, 1], fresh[num_fresh, 2] = start, stop, slot
                num_fresh += 1
            if counts[slot] >= 0:
                out[row] += counts[slot]
            else:
                waiting[num_waiting, 0], waiting[num_waiting, 1] = row, slot
                num_waiting += 1
            start = stop
        row += 1
    position[0], position[1] = row, start
    return num_fresh, num_waiting
