r"""Counts that RedPajama takes from the raw text: words and signs matched by \w+|[^\w\s]+, and lines that start with a bullet.

Kernels take `data` (uint8), `offsets` (int64, rows + 1) and the property tables POINTS and KINDS of `unicode_tables`.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from tamis.kernels.characters import decode, flags_of
from tamis.kernels.jit import inlined, kernel
from tamis.kernels.spans import find_slot, hash_span
from tamis.kernels.unicode_tables import ALPHANUMERIC, SPACE

RAW_FIELDS = ("words", "alphabetic", "listed", "bullet_lines")
"""Rows of the output of `measure_raw`."""

BULLETS = np.array([0x2013, 0x2022, 0x2023, 0x25A0, 0x25A1, 0x25AA, 0x25AB, 0x25B6, 0x25C0, 0x25E6], np.int64)
BULLETS.flags.writeable = False
_GAP, _WORD, _SIGNS = 0, 1, 2


@kernel
def hash_exact(data, offsets, out):
    """out[i] = hash of row i; uint64."""
    for row in range(len(offsets) - 1):
        out[row] = hash_span(data, offsets[row], offsets[row + 1])


@inlined
def _is_listed(data, start, stop, keys, longest):
    return stop - start <= longest and keys[find_slot(keys, hash_span(data, start, stop))] != 0


@kernel
def measure_raw(data, offsets, points, kinds, keys, longest, out):
    """Measure each row; out int64[fields, rows], fields in the order of RAW_FIELDS.

    words         runs of letters, digits and '_', and runs of signs
    alphabetic    words with a letter from a to z, in either case
    listed        words in the table `keys`, case-sensitive; `longest` is the length of the longest listed word in bytes
    bullet_lines  lines whose first non-space character is one of BULLETS
    """
    for row in range(len(offsets) - 1):
        at, end = offsets[row], offsets[row + 1]
        words = alphabetic = listed = bullets = 0
        kind, start = _GAP, at
        plain, line_start = False, True
        while at <= end:
            here, after, point = _GAP, at + 1, np.int64(10)
            if at < end:
                point, after = decode(data, at, end)
                flags = flags_of(point, points, kinds)
                here = _GAP if flags & SPACE else _WORD if flags & ALPHANUMERIC or point == 95 else _SIGNS
            if here != kind:
                if kind != _GAP:
                    words += 1
                    alphabetic += plain
                    listed += _is_listed(data, start, at, keys, longest)
                kind, start, plain = here, at, False
            if point == 10:
                line_start = True
            elif here != _GAP and line_start:
                line_start = False
                for bullet in BULLETS:
                    bullets += point == bullet
            lower = point | 32
            plain |= 97 <= lower <= 122 and point < 128
            at = after
        out[0, row], out[1, row], out[2, row], out[3, row] = words, alphabetic, listed, bullets
