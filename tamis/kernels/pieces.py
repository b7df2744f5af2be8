"""Split a text into pieces whose tokens can be counted independently, and keep a table of the known counts.

    def parse(self):\\n    return 12  -->  def | parse | ( | self | ):\\n |     | return | 12

A tokenizer first splits a text into parts with a regular expression, and no token spans two parts. This module cuts a text at
positions where a part certainly starts. For every regular expression that `tamis.text.tokens` knows, these are

    after an ASCII letter, before any other ASCII character except an apostrophe (don't)
    after an ASCII digit, likewise
    before a space that does not follow whitespace
    before the last of several whitespace characters, and after a tab or a line end

where the last two depend on the next character: whitespace before a digit or a character outside ASCII is not cut off.
In addition

    WORDS_APART       (GPT-2)            before and after any run of other ASCII signs
    WORDS_WITH_SIGNS  (GPT-4 and later)  likewise, but one sign stays with the word after it (.name), and line ends
                                         stay with the signs before them

A piece may contain several parts, but never half of one. Most pieces occur many times in a corpus, as words do.
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
"""What two neighbouring bytes determine: no known cut between them, a cut, or which check decides."""


def _kinds():
    kinds = np.full(256, _UNKNOWN, np.uint8)  # control characters and everything outside ASCII
    kinds[33:127] = _SIGN
    for signs, kind in (("'", _APOSTROPHE), ("/", _SLASH), (" ", _BLANK), ("\t", _TAB), ("\r\n", _NEWLINE)):
        kinds[list(signs.encode())] = kind
    kinds[ord("0") : ord("9") + 1] = _DIGIT
    kinds[ord("A") : ord("Z") + 1] = kinds[ord("a") : ord("z") + 1] = _LETTER
    return kinds


def _neighbours():
    """Return the rule for each pair of neighbours: uint8[styles, kind on the left, kind on the right]."""
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
        _CUT  # not before a slash: GPT-4o keeps it with the line end
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
"""Pieces of up to this many bytes are their own key; longer ones are identified by a digest."""
_OUTSIDE = np.uint64(1 << 63)


@inlined
def _may_be_space(data, start, at):
    """Return whether whitespace other than a blank may end at `at`; also true for some letters of three bytes."""
    last = data[at - 1]
    if last < 128:
        return last < 32
    if at - start >= 2 and data[at - 2] >= 0xC0:
        return data[at - 2] == 0xC2
    return at - start < 3 or 0xE1 <= data[at - 3] <= 0xE3


@inlined
def _starts_part(rule, data, start, at, end, style):
    """Return whether a part starts at `at`, where the two neighbours alone do not decide."""
    if rule == _IF_ALONE:
        return at - 1 == start
    if rule == _AFTER_UNKNOWN:
        return not _may_be_space(data, start, at)
    if rule == _AFTER_SIGN:
        kind = _KINDS[data[at - 2]] if at - 2 >= start else _UNKNOWN
        return kind == _SIGN or kind == _APOSTROPHE or kind == _BLANK  # not a slash, as above
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
        rule = _NEIGHBOURS[style, left, right]
        if rule != _TOGETHER and (rule == _CUT or _starts_part(rule, data, start, at, end, style)):
            return at
        left = right
    return end


@inlined
def key_of(data, start, stop):
    size = stop - start
    if size <= _INSIDE:
        first = tail64(data, start, min(stop, start + 8))
        second = tail64(data, start + 8, stop) if size > 8 else np.uint64(0)
        return first, second | np.uint64(size) << np.uint64(56)
    first, second = digest_bytes(data, start, stop, 0)
    return first, second | _OUTSIDE


@inlined
def slot_of(keys, first, second):
    """Return the slot of a piece, or the slot to insert it at; keys: uint64[a power of two, 2], the second 0 if empty."""
    mask = len(keys) - 1
    slot = np.int64(mix(first, second) & np.uint64(mask))
    while keys[slot, 1] != 0 and (keys[slot, 0] != first or keys[slot, 1] != second):
        slot = (slot + 1) & mask
    return slot


@kernel
def count_pieces(data, offsets, whole, style, keys, counts, position, out, new, pending):
    """Add the known token counts of the pieces of row i to out[i], and insert unknown pieces into the table.

    whole     bool[rows]         rows to skip
    style     WORDS_APART or WORDS_WITH_SIGNS
    keys      uint64[size, 2]    the table
    counts    int32[size]        tokens of each piece, negative until the caller fills it in
    position  int64[2]           row and byte to start at; updated to where the next call continues
    new       int64[capacity, 3] start, stop and slot of each new piece
    pending   int64[capacity, 2] row and slot of each piece whose count the caller has to add

    Returns early when `pending` is full. Returns the number of entries in `new` and in `pending`.
    """
    num_new, num_pending = 0, 0
    row, start = position
    while row < len(offsets) - 1:
        start = max(start, offsets[row])
        end = start if whole[row] else offsets[row + 1]
        while start < end:
            if num_pending == len(pending):
                position[0], position[1] = row, start
                return num_new, num_pending
            stop = _end_of_piece(data, start, end, style)
            first, second = key_of(data, start, stop)
            slot = slot_of(keys, first, second)
            if keys[slot, 1] == 0:
                keys[slot, 0], keys[slot, 1], counts[slot] = first, second, -1
                new[num_new, 0], new[num_new, 1], new[num_new, 2] = start, stop, slot
                num_new += 1
            if counts[slot] >= 0:
                out[row] += counts[slot]
            else:
                pending[num_pending, 0], pending[num_pending, 1] = row, slot
                num_pending += 1
            start = stop
        row += 1
    position[0], position[1] = row, start
    return num_new, num_pending


@kernel
def find_pieces(data, offsets, whole, style, keys, counts, most_new, position, slots, rows, new):
    """List the slots of the pieces of rows in order, and insert unknown pieces into the table.

    whole     bool[rows]         rows before which to return: the caller handles them and moves `position` beyond
    counts    int32[size]        tokens of each piece, negative until the caller fills it in
    most_new  how many pieces may be inserted
    position  int64[2]           row and byte to start at; updated to where the next call continues
    slots     int32[capacity]    the slot of each piece
    rows      int64[capacity]    its row
    new       int64[capacity, 3] start, stop and slot of each new piece

    Returns early when `slots` or `new` is full. Returns the number of pieces and of new ones.
    """
    num, num_new = 0, 0
    row, start = position
    while row < len(offsets) - 1:
        start, end = max(start, offsets[row]), offsets[row + 1]
        if whole[row]:
            break
        while start < end:
            if num == len(slots) or num_new == min(most_new, len(new)):
                position[0], position[1] = row, start
                return num, num_new
            stop = _end_of_piece(data, start, end, style)
            first, second = key_of(data, start, stop)
            slot = slot_of(keys, first, second)
            if keys[slot, 1] == 0:
                keys[slot, 0], keys[slot, 1], counts[slot] = first, second, -1
                new[num_new, 0], new[num_new, 1], new[num_new, 2] = start, stop, slot
                num_new += 1
            slots[num], rows[num] = slot, row
            num += 1
            start = stop
        row += 1
    position[0], position[1] = row, start
    return num, num_new


@kernel
def spell(slots, starts, counts, pool, out):
    """out = the tokens of the pieces in these slots: pool[starts[slot] : starts[slot] + counts[slot]] each."""
    at = 0
    for slot in slots:
        start = starts[slot]
        for index in range(counts[slot]):
            out[at + index] = pool[start + index]
        at += counts[slot]
