"""Perceptual hashes of pictures: pHash, dHash, aHash, wHash and PDQ.

    rgb uint8[height, width, 3]  ->  grey uint8[height, width]  ->  resized to a few pixels  ->  64 bits   the first four
                                 ->  luma float32, blurred twice, 64 x 64 of its pixels      ->  256 bits  PDQ

From the same pixels the bits are those of the packages ImageHash 4.3 and pdqhash 0.2, which hash fully decoded pictures. Grey
values and resizing are those of Pillow: ITU-R 601 luma, and Lanczos with 22-bit coefficients, rows before columns. Pillow 13
resizes columns first if a picture is much taller than wide; its rounding then differs, which may change a bit.
Where a value equals the median in exact arithmetic, the packages compare rounding errors; here such a bit is 0.

Hashes are uint64 words; the first bit is the highest of the first word, so that bytes in big-endian order, written in hex, are
what the packages print. PDQ: Dalins et al. 2019, "PDQ and TMK + PDQF"; pHash: Zauner 2010.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from functools import cache

import numpy as np

from tamis.kernels.jit import kernel, part

PRECISION = 22
"""Fraction bits of the coefficients with which Pillow resizes 8-bit pictures."""

SUPPORT = 3.0
"""Pixels on each side that a Lanczos filter reads."""

TIE = 1e-9
"""Relative differences below this are rounding errors of the transform."""

SIDE, LOW = 64, 16
"""PDQ transforms a picture of 64 x 64 pixels and keeps the 16 x 16 lowest frequencies but the constant ones."""

MIN_PDQ_SIDE = 5
"""Pictures with a smaller side have no PDQ hash."""


# ---------------------------------------------------------------------------------------------------------- as Pillow does


@kernel
def grey_of(rgb, grey):
    """grey uint8[height, width] = luma of rgb, in 16-bit fixed point."""
    for y in range(rgb.shape[0]):
        for x in range(rgb.shape[1]):
            value = np.uint32(rgb[y, x, 0]) * 19595 + np.uint32(rgb[y, x, 1]) * 38470 + np.uint32(rgb[y, x, 2]) * 7471
            grey[y, x] = (value + 0x8000) >> 16


@part
def _lanczos(x):
    if x < -SUPPORT or x >= SUPPORT:
        return 0.0
    if x == 0.0:
        return 1.0
    near, wide = x * math.pi, x / SUPPORT * math.pi
    return math.sin(near) / near * (math.sin(wide) / wide)


@part
def _coefficients(size, wanted):
    """(first input pixel of each output pixel, number of them, int32 weights)"""
    scale = size / wanted
    stretch = max(scale, 1.0)
    support = SUPPORT * stretch
    firsts, counts = np.empty(wanted, np.int64), np.empty(wanted, np.int64)
    weights = np.zeros((wanted, math.ceil(support) * 2 + 1), np.int32)
    exact = np.empty(weights.shape[1], np.float64)
    for out in range(wanted):
        centre = (out + 0.5) * scale
        first = max(int(centre - support + 0.5), 0)
        count = min(int(centre + support + 0.5), size) - first
        total = 0.0
        for i in range(count):
            exact[i] = _lanczos((i + first - centre + 0.5) * (1.0 / stretch))
            total += exact[i]
        for i in range(count):
            weight = (exact[i] / total if total != 0.0 else exact[i]) * (1 << PRECISION)
            weights[out, i] = int(weight - 0.5) if weight < 0 else int(weight + 0.5)
        firsts[out], counts[out] = first, count
    return firsts, counts, weights


@part
def _clipped(total):
    return min(max(total >> PRECISION, 0), 255)


@part
def _resized(grey, height, width):
    """A grey picture in another size, as `Image.resize((width, height), LANCZOS)`."""
    rows = grey
    if width != grey.shape[1]:
        firsts, counts, weights = _coefficients(grey.shape[1], width)
        rows = np.empty((grey.shape[0], width), np.uint8)
        for y in range(grey.shape[0]):
            for x in range(width):
                total, first = np.int32(1 << (PRECISION - 1)), firsts[x]
                for i in range(counts[x]):
                    total += np.int32(grey[y, first + i]) * weights[x, i]
                rows[y, x] = _clipped(total)
    if height == grey.shape[0]:
        return rows
    firsts, counts, weights = _coefficients(grey.shape[0], height)
    out = np.empty((height, width), np.uint8)
    totals = np.empty(width, np.int32)
    for y in range(height):
        totals[:] = 1 << (PRECISION - 1)
        for i in range(counts[y]):
            weight = weights[y, i]
            for x in range(width):
                totals[x] += np.int32(rows[firsts[y] + i, x]) * weight
        for x in range(width):
            out[y, x] = _clipped(totals[x])
    return out


@kernel
def resized(grey, out):
    """Resize a grey picture to the size of `out`."""
    out[:] = _resized(grey, out.shape[0], out.shape[1])


# ------------------------------------------------------------------------------------------------------- 64-bit hashes


@part
def _bits(wanted):
    word = np.uint64(0)
    for row in range(wanted.shape[0]):
        for column in range(wanted.shape[1]):
            word = (word << np.uint64(1)) | np.uint64(1 if wanted[row, column] else 0)
    return word


@part
def _above_median(values):
    """The bits of the values that are above the median of an even number of values."""
    flat = np.sort(values.copy().reshape(-1))
    middle = len(flat) // 2
    median = (flat[middle - 1] + flat[middle]) / 2.0
    return _bits(values > median + TIE * max(abs(flat[0]), abs(flat[-1])))


@kernel
def phash(grey, cosines):
    """Signs of the 8 x 8 lowest frequencies of a 32 x 32 picture relative to their median; cosines: `dct_cosines()`."""
    small = _resized(grey, 32, 32)
    rows, low = np.zeros((8, 32)), np.zeros((8, 8))
    for k in range(8):
        for y in range(32):
            for x in range(32):
                rows[k, x] += cosines[k, y] * small[y, x]
    for k in range(8):
        for j in range(8):
            for x in range(32):
                low[k, j] += rows[k, x] * cosines[j, x]
    return _above_median(low)


@kernel
def dhash(grey):
    """Whether each pixel of a 9 x 8 picture is brighter than the one on its left."""
    small = _resized(grey, 8, 9)
    return _bits(small[:, 1:] > small[:, :-1])


@kernel
def ahash(grey):
    """Whether each pixel of an 8 x 8 picture is brighter than the mean."""
    small = _resized(grey, 8, 8)
    total = 0
    for value in small.flat:
        total += value
    return _bits(small.astype(np.int64) * 64 > total)


@kernel
def whash(grey):
    """Signs of the 8 x 8 averages of a Haar transform relative to their median.

    The averages are those of blocks of the largest square whose side is a power of two.
    """
    side = 8
    while side * 2 <= min(grey.shape[0], grey.shape[1]):
        side *= 2
    small, block = _resized(grey, side, side), side // 8
    sums = np.zeros((8, 8))
    for y in range(side):
        for x in range(side):
            sums[y // block, x // block] += small[y, x]
    return _above_median(sums)


@kernel
def quality_of(grey):
    """PDQ's measure of detail, 0 to 100, from the averages of 64 x 64 blocks."""
    height, width = grey.shape
    small = np.empty((SIDE, SIDE), np.float32)
    for i in range(SIDE):
        top, bottom = i * height // SIDE, (i + 1) * height // SIDE
        for j in range(SIDE):
            left, right = j * width // SIDE, (j + 1) * width // SIDE
            total = 0
            for y in range(top, max(bottom, top + 1)):
                for x in range(left, max(right, left + 1)):
                    total += grey[y, x]
            small[i, j] = total / (max(bottom - top, 1) * max(right - left, 1))
    return _quality(small)


@cache
def dct_cosines():
    """The first 8 rows of the discrete cosine transform of 32 values, as scipy scales it."""
    return 2 * np.cos(np.pi * np.outer(np.arange(8), 2 * np.arange(32) + 1) / 64)


def says_little(words: np.ndarray) -> np.ndarray:
    """Whether fewer than an eighth of the bits of each hash uint64[hashes, words] are set, or not set."""
    bits = 64 * words.shape[1]
    ones = np.unpackbits(np.ascontiguousarray(words).view(np.uint8).reshape(len(words), bits // 8), axis=1).sum(axis=1)
    return (ones < bits // 8) | (ones > bits - bits // 8)


# ----------------------------------------------------------------------------------------------------------------- PDQ


@part
def _quality(small):
    """The sum of the gradients, each rounded towards zero to a hundredth of the range."""
    total = 0
    for i in range(SIDE):
        for j in range(SIDE):
            if i + 1 < SIDE:
                total += abs(int((small[i, j] - small[i + 1, j]) * np.float32(100) / np.float32(255)))
            if j + 1 < SIDE:
                total += abs(int((small[i, j] - small[i, j + 1]) * np.float32(100) / np.float32(255)))
    return min(total // 90, 100)


@part
def _blurred_rows(luma, window, out):
    """Means of `window` pixels of each row around each pixel, or of fewer at the ends; a running sum in float32."""
    height, width = luma.shape
    ahead = (window + 2) // 2 - 1
    for y in range(height):
        total, count = np.float32(0), 0
        for right in range(width + ahead):
            if right < width:
                total += luma[y, right]
                count += 1
            if right >= window:
                total -= luma[y, right - window]
                count -= 1
            if right >= ahead:
                out[y, right - ahead] = total / np.float32(count)


@part
def _blurred_columns(luma, window, out):
    """As `_blurred_rows` for columns, all of them at a time."""
    height, width = luma.shape
    ahead, count = (window + 2) // 2 - 1, 0
    totals = np.zeros(width, np.float32)
    for bottom in range(height + ahead):
        if bottom < height:
            count += 1
            for x in range(width):
                totals[x] += luma[bottom, x]
        if bottom >= window:
            count -= 1
            for x in range(width):
                totals[x] -= luma[bottom - window, x]
        if bottom >= ahead:
            divisor = np.float32(count)
            for x in range(width):
                out[bottom - ahead, x] = totals[x] / divisor


@kernel
def pdq(rgb, cosines, words):
    """Write PDQ's 256 bits to uint64[4] and return the quality; cosines: `pdq_cosines()`."""
    height, width = rgb.shape[0], rgb.shape[1]
    words[:] = 0
    if min(height, width) < MIN_PDQ_SIDE:
        return 0
    luma, other = np.empty((height, width), np.float32), np.empty((height, width), np.float32)
    for y in range(height):
        for x in range(width):
            luma[y, x] = np.float32(rgb[y, x, 0] * 0.299 + rgb[y, x, 1] * 0.587 + rgb[y, x, 2] * 0.114)
    if height != SIDE or width != SIDE:
        for _ in range(2):
            _blurred_rows(luma, (width + 2 * SIDE - 1) // (2 * SIDE), other)
            _blurred_columns(other, (height + 2 * SIDE - 1) // (2 * SIDE), luma)
    small = np.empty((SIDE, SIDE), np.float32)
    for i in range(SIDE):
        for j in range(SIDE):
            small[i, j] = luma[int((i + 0.5) * height / SIDE), int((j + 0.5) * width / SIDE)]
    rows, low = np.zeros((LOW, SIDE), np.float32), np.zeros((LOW, LOW), np.float32)
    for i in range(LOW):
        for k in range(SIDE):
            for j in range(SIDE):
                rows[i, j] += cosines[i, k] * small[k, j]
    for i in range(LOW):
        for k in range(SIDE):
            for j in range(LOW):
                low[i, j] += rows[i, k] * cosines[j, k]
    median = np.sort(low.copy().reshape(-1))[LOW * LOW // 2 - 1]
    for i in range(LOW):
        for j in range(LOW):
            if low[i, j] > median:
                bit = i * LOW + j
                words[3 - bit // 64] |= np.uint64(1) << np.uint64(bit % 64)
    return _quality(small)


@cache
def pdq_cosines():
    """Rows 1 to 16 of the discrete cosine transform of 64 values, float32[16, 64]."""
    angles = (np.pi / 2 / SIDE) * np.outer(np.arange(1, LOW + 1), 2 * np.arange(SIDE) + 1)
    return (np.float64(np.float32(math.sqrt(2.0 / SIDE))) * np.cos(angles)).astype(np.float32)
