"""Decode UTF-8 characters and look up their properties.

Kernels take `data` (uint8, the bytes of a string column) and the property tables POINTS and KINDS of `unicode_tables`.
A byte that does not decode counts as one character without properties, so a kernel never reads outside its row, even on
invalid input.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from tamis.kernels.jit import inlined


@inlined
def decode(data, at, end):
    """Return (code point, position after it)."""
    byte = np.int64(data[at])
    if byte < 0x80:
        return byte, at + 1
    if 0xE0 <= byte < 0xF0 and at + 2 < end:
        return (byte & 15) << 12 | (np.int64(data[at + 1]) & 63) << 6 | (np.int64(data[at + 2]) & 63), at + 3
    if 0xC0 <= byte < 0xE0 and at + 1 < end:
        return (byte & 31) << 6 | (np.int64(data[at + 1]) & 63), at + 2
    if 0xF0 <= byte < 0xF5 and at + 3 < end:
        point = (byte & 7) << 18 | (np.int64(data[at + 1]) & 63) << 12
        point |= (np.int64(data[at + 2]) & 63) << 6 | (np.int64(data[at + 3]) & 63)
        return point if point < 0x110000 else 0x10FFFF, at + 4
    return 0xFFFD, at + 1


@inlined
def class_of(point, points):
    return np.int64(points[4608 + (np.int64(points[256 + (point >> 8)]) << 8 | (point & 255))])


@inlined
def flags_of(point, points, kinds):
    return np.int64(kinds[128 + class_of(point, points)])
