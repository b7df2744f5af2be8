"""Detect what other scripts do differently from English: words without spaces between them, lines without a full stop.

Kernels take `data` (uint8), `offsets` (int64, rows + 1) and the property tables POINTS and KINDS of `unicode_tables`.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

from tamis.kernels.characters import decode, flags_of
from tamis.kernels.jit import inlined, kernel
from tamis.kernels.unicode_tables import CLOSER, LETTER, MARK, SPACE, STOP, UNSPACED

_NEWLINE, _QUOTE, _APOSTROPHE, _ELLIPSIS = 10, 34, 39, 0x2026
_THAI, _AFTER_LAO = 0x0E00, 0x0F00  # the blocks of Thai and Lao, which have no full stop
_SHAD, _DOUBLE_SHAD, _KHAN, _BARIYOOSAN = (
    0x0F0D,
    0x0F0E,
    0x17D4,
    0x17D5,
)  # Tibetan and Khmer stops missing from older Unicode tables
TSHEG, WORDSPACE = 0x0F0B, 0x1361
"""The mark between Tibetan syllables and the mark between Ethiopic words."""


@kernel
def find_unspaced(data, offsets, points, kinds, out):
    """out[i] = whether row i has a letter of a script without spaces, or a mark used in place of a space; bool."""
    for row in range(len(offsets) - 1):
        at, end = offsets[row], offsets[row + 1]
        found = False
        while at < end and not found:
            if data[at] < 0xE0:  # scripts without spaces are all above U+0E00
                at += 1
            else:
                point, at = decode(data, at, end)
                found = flags_of(point, points, kinds) & UNSPACED != 0 or point == WORDSPACE
        out[row] = found


@inlined
def _before(data, start, at):
    """Return the position of the character that ends at `at`."""
    at -= 1
    while at > start and data[at] & 0xC0 == 0x80:
        at -= 1
    return at


@kernel
def _is_ended(data, start, stop, points, kinds):
    """Return whether a line, ignoring trailing spaces, ends like a sentence; see `count_ended_lines`."""
    first = True
    while stop > start:
        at = _before(data, start, stop)
        point, _ = decode(data, at, stop)
        flags = flags_of(point, points, kinds)
        if first and flags & SPACE:
            stop = at
            continue
        if flags & STOP or point == _ELLIPSIS or (first and (point == _QUOTE or point == _APOSTROPHE)):  # noqa: SIM109
            return True
        if _SHAD <= point <= _DOUBLE_SHAD or _KHAN <= point <= _BARIYOOSAN:
            return True
        if flags & (LETTER | MARK) and _THAI <= point < _AFTER_LAO:
            return True
        if not flags & CLOSER:
            return False
        first = False
        stop = at
    return False


@kernel
def count_ended_lines(data, offsets, points, kinds, out):
    """out[i] = lines of row i that end like a sentence; int64.

    They do if their last character, ignoring closing quotes and brackets, is a stop of any script (Unicode
    Sentence_Terminal), an ellipsis, a straight quote, or a letter of Thai or Lao.
    """
    for row in range(len(offsets) - 1):
        start, end = offsets[row], offsets[row + 1]
        count = 0
        for at in range(start, end):
            if data[at] == _NEWLINE:
                count += _is_ended(data, start, at, points, kinds)
                start = at + 1
        count += _is_ended(data, start, end, points, kinds)
        out[row] = count
