"""Digests of texts that may be stored on disk (MurmurHash3 x64 128), and the normalisation and splitting before them.

Kernels take `data` (uint8, the bytes of a string column) and `offsets` (int64, rows + 1); digests are uint64[rows, 2].
MurmurHash3 is by Austin Appleby and in the public domain. Among 10**12 texts, the probability that any two have the same 128
bits is about 10**-15.
"""
# mypy: disallow-untyped-defs=False, disable-error-code="call-arg,var-annotated,assignment"

from __future__ import annotations

import numpy as np

from tamis.kernels.hashing import load64
from tamis.kernels.jit import expanded, kernel

_C1 = np.uint64(0x87C37B91114253D5)
_C2 = np.uint64(0x4CF5AD432745937F)
_F1 = np.uint64(0xFF51AFD7ED558CCD)
_F2 = np.uint64(0xC4CEB9FE1A85EC53)
_A1 = np.uint64(0x52DCE729)
_A2 = np.uint64(0x38495AB5)
_FIVE = np.uint64(5)
_SHIFT33 = np.uint64(33)


@expanded
def mix64(value):
    """A bijection of uint64 in which each input bit flips half of the output bits on average (finaliser of MurmurHash3)."""
    value ^= value >> _SHIFT33
    value *= _F1
    value ^= value >> _SHIFT33
    value *= _F2
    return value ^ (value >> _SHIFT33)


@expanded
def _rotate(value, left):
    return (value << np.uint64(left)) | (value >> np.uint64(64 - left))


@kernel
def digest_bytes(data, start, stop, seed):
    """The two 64-bit halves of MurmurHash3_x64_128 over data[start:stop]."""
    h1 = np.uint64(seed)
    h2 = np.uint64(seed)
    at = np.int64(start)
    while at + 16 <= stop:
        k1 = load64(data, at)
        k2 = load64(data, at + 8)
        h1 ^= _rotate(k1 * _C1, 31) * _C2
        h1 = (_rotate(h1, 27) + h2) * _FIVE + _A1
        h2 ^= _rotate(k2 * _C2, 33) * _C1
        h2 = (_rotate(h2, 31) + h1) * _FIVE + _A2
        at += 16
    left = stop - at
    if left:
        k1 = np.uint64(0)
        k2 = np.uint64(0)
        for index in range(min(8, left)):
            k1 |= np.uint64(data[at + index]) << np.uint64(8 * index)
        for index in range(8, left):
            k2 |= np.uint64(data[at + index]) << np.uint64(8 * (index - 8))
        if left > 8:
            h2 ^= _rotate(k2 * _C2, 33) * _C1
        h1 ^= _rotate(k1 * _C1, 31) * _C2
    size = np.uint64(stop - start)
    h1 ^= size
    h2 ^= size
    h1 += h2
    h2 += h1
    h1 = mix64(h1)
    h2 = mix64(h2)
    h1 += h2
    h2 += h1
    return h1, h2


@kernel
def digest_spans(data, starts, stops, seed, out):
    """out[i] = digest of data[starts[i]:stops[i]]."""
    for index in range(len(starts)):
        out[index, 0], out[index, 1] = digest_bytes(data, starts[index], stops[index], seed)


@kernel
def ascii_rows(data, offsets, out):
    """out[row] = whether all bytes of the row are below 128."""
    for row in range(len(offsets) - 1):
        seen = np.uint64(0)
        at, end = offsets[row], offsets[row + 1]
        while at + 8 <= end:
            seen |= load64(data, at)
            at += 8
        while at < end:
            seen |= np.uint64(data[at])
            at += 1
        out[row] = (seen & np.uint64(0x8080808080808080)) == 0


@kernel
def fold_ascii(data, offsets, wanted, lower, squeeze, buffer, spans):
    """Write each wanted row to buffer; spans (int64, rows + 1) are its offsets there. Other rows become empty.

    `lower` replaces A-Z by a-z. `squeeze` replaces runs of white space by one space and strips both ends; white space is
    what str.split() splits at: tab to carriage return, the four separators, and space.
    """
    size = np.int64(0)
    for row in range(len(offsets) - 1):
        spans[row] = size
        if not wanted[row]:
            continue
        first = size
        space = False
        for at in range(offsets[row], offsets[row + 1]):
            byte = data[at]
            if squeeze and (byte == 32 or 9 <= byte <= 13 or 28 <= byte <= 31):
                space = True
                continue
            if space and size > first:
                buffer[size] = 32
                size += 1
            space = False
            if lower and 65 <= byte <= 90:
                byte += np.uint8(32)
            buffer[size] = byte
            size += 1
    spans[len(offsets) - 1] = size


@kernel
def find_units(data, offsets, paragraphs, min_bytes, firsts, starts, stops):
    """Split each row into lines, or paragraphs (runs of lines that are not blank); returns the number of units.

    The span of a unit does not include white space at its ends. Units shorter than `min_bytes` are skipped. Writes the spans,
    unless starts is empty, and the number of each row's first unit to firsts (int64, rows + 1).
    """
    count = np.int64(0)
    for row in range(len(offsets) - 1):
        firsts[row] = count
        at, end = offsets[row], offsets[row + 1]
        while at < end:
            begin = at
            stop = at
            while at < end:
                blank = True
                while at < end and data[at] != 10:
                    if data[at] > 32:
                        blank = False
                    at += 1
                if not blank:
                    stop = at
                at = min(end, at + 1)
                if blank or not paragraphs:
                    break
            while begin < stop and data[begin] <= 32:
                begin += 1
            while stop > begin and data[stop - 1] <= 32:
                stop -= 1
            if stop - begin >= min_bytes and stop > begin:
                if len(starts):
                    starts[count], stops[count] = begin, stop
                count += 1
    firsts[len(offsets) - 1] = count
    return count


@kernel
def count_solid(data, starts, stops, out):
    """out[i] = bytes of data[starts[i]:stops[i]] that are not white space."""
    for index in range(len(starts)):
        count = 0
        for at in range(starts[index], stops[index]):
            count += data[at] > 32
        out[index] = count


@kernel
def count_chars(data, starts, stops, out):
    """out[i] = characters of data[starts[i]:stops[i]]."""
    for index in range(len(starts)):
        count = 0
        for at in range(starts[index], stops[index]):
            count += data[at] & 0xC0 != 0x80
        out[index] = count


@kernel
def cut_units(data, offsets, firsts, starts, stops, cut_offsets, cuts, buffer, spans):
    """Copy each row to buffer without its units cuts[cut_offsets[row]:cut_offsets[row + 1]], ascending numbers in the row.

    Also removes the white space before a unit on its line, and after it up to the indent of the next line.
    """
    size = np.int64(0)
    for row in range(len(offsets) - 1):
        spans[row] = size
        begin_of_row = size
        at, end = offsets[row], offsets[row + 1]
        for index in range(cut_offsets[row], cut_offsets[row + 1]):
            unit = firsts[row] + cuts[index]
            start = starts[unit]
            while start > at and (data[start - 1] == 32 or data[start - 1] == 9):
                start -= 1
            while at < start:
                buffer[size] = data[at]
                size += 1
                at += 1
            at = stops[unit]
            while at < end and data[at] <= 32:
                at += 1
            if at < end:
                while at > stops[unit] and data[at - 1] != 10:
                    at -= 1
        while at < end:
            buffer[size] = data[at]
            size += 1
            at += 1
        if cut_offsets[row + 1] > cut_offsets[row]:
            while size > begin_of_row and buffer[size - 1] <= 32:
                size -= 1
    spans[len(offsets) - 1] = size
