"""Kernels for convolutions of 3 x 3 pixels by the algorithm of Winograd (Lavin and Gray 2016), in tiles of 4 x 4 pixels.

    tile and its border, 6 x 6 pixels -> 36 sums -> a product with weights for each of the 36 -> 36 sums -> 4 x 4 pixels

These kernels are the first and the last step. A tile takes 36 products per pair of channels; the definition takes 144.

    pixels     float32[rows, columns, frames, channels]; pixels outside of the picture are 0
    sums       float32[tiles, frames, 36, channels], the tiles from number `first` on, of which `across` are side by side

The number of channels is a multiple of LANES.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from tamis.kernels.jit import bare, inlined, kernel

TILE, POINTS, LANES = 4, 6, 16

WEIGHTS = np.array([[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]]) / 24
"""The weights k[3, 3] of a pair of channels become WEIGHTS @ k @ WEIGHTS.T, for the 36 sums."""

_ZERO, _QUARTER, _TWO, _FOUR, _FIVE, _EIGHT = (np.float32(value) for value in (0, 0.25, 2, 4, 5, 8))


@inlined
def _spread(a, b, c, d, e, f):
    """6 values of a line -> 6 sums."""
    even, odd = e - _FOUR * c, d - _FOUR * b
    near, far = e - c, _TWO * (d - b)
    return _FOUR * a - _FIVE * c + e, even + odd, even - odd, near + far, near - far, _FOUR * b - _FIVE * d + f


@inlined
def _gather(a, b, c, d, e, f):
    """6 sums -> 4 values of a line."""
    near, near_odd, far, far_odd = b + c, b - c, d + e, d - e
    return a + near + far, near_odd + _TWO * far_odd, near + _FOUR * far, near_odd + _EIGHT * far_odd + f


@bare
def _spread_tiles(pixels, first, across, offset, nothing, lines, out):
    rows, columns = pixels.shape[:2]
    for number in range(out.shape[0]):
        top, left = (first + number) // across * TILE - 1, (first + number) % across * TILE - 1
        for frame in range(pixels.shape[2]):
            for channel in range(0, pixels.shape[3], LANES):
                end = channel + LANES
                for place in range(POINTS):
                    x = left + place
                    there = x >= 0 and x < columns
                    a = pixels[top, x, frame, channel:end] if there and top >= 0 else nothing
                    b = pixels[top + 1, x, frame, channel:end] if there else nothing
                    c = pixels[top + 2, x, frame, channel:end] if there and top + 2 < rows else nothing
                    d = pixels[top + 3, x, frame, channel:end] if there and top + 3 < rows else nothing
                    e = pixels[top + 4, x, frame, channel:end] if there and top + 4 < rows else nothing
                    f = pixels[top + 5, x, frame, channel:end] if there and top + 5 < rows else nothing
                    for lane in range(LANES):
                        line = _spread(a[lane], b[lane], c[lane], d[lane], e[lane], f[lane])
                        lines[0, place, lane], lines[1, place, lane], lines[2, place, lane] = line[:3]
                        lines[3, place, lane], lines[4, place, lane], lines[5, place, lane] = line[3:]
                start, stop = offset + channel, offset + end
                for place in range(POINTS):
                    begin = POINTS * place
                    g = out[number, frame, begin, start:stop]
                    h = out[number, frame, begin + 1, start:stop]
                    i = out[number, frame, begin + 2, start:stop]
                    j = out[number, frame, begin + 3, start:stop]
                    k = out[number, frame, begin + 4, start:stop]
                    m = out[number, frame, begin + 5, start:stop]
                    for lane in range(LANES):
                        g[lane], h[lane], i[lane], j[lane], k[lane], m[lane] = _spread(
                            lines[place, 0, lane], lines[place, 1, lane], lines[place, 2, lane],
                            lines[place, 3, lane], lines[place, 4, lane], lines[place, 5, lane],
                        )  # fmt: skip


@kernel
def spread_tiles(pixels, first, across, offset, out):
    """out, sums of the tiles, in channels `offset` and after it."""
    lines = np.empty((POINTS, POINTS, LANES), np.float32)
    _spread_tiles(pixels, first, across, offset, np.zeros(LANES, np.float32), lines, out)


@bare
def _gather_tile(sums, channel, lines, tile):
    """tile float32[4, 4, LANES] = the pixels of sums[36, channels]."""
    end = channel + LANES
    for place in range(POINTS):
        begin = POINTS * place
        a, b, c = sums[begin, channel:end], sums[begin + 1, channel:end], sums[begin + 2, channel:end]
        d, e, f = sums[begin + 3, channel:end], sums[begin + 4, channel:end], sums[begin + 5, channel:end]
        for lane in range(LANES):
            line = _gather(a[lane], b[lane], c[lane], d[lane], e[lane], f[lane])
            lines[0, place, lane], lines[1, place, lane], lines[2, place, lane], lines[3, place, lane] = line
    for place in range(TILE):
        for lane in range(LANES):
            tile[0, place, lane], tile[1, place, lane], tile[2, place, lane], tile[3, place, lane] = _gather(
                lines[place, 0, lane], lines[place, 1, lane], lines[place, 2, lane], lines[place, 3, lane],
                lines[place, 4, lane], lines[place, 5, lane],
            )  # fmt: skip


@bare
def _gather_tiles(sums, first, across, bias, lines, tile, out):
    rows = out.shape[0]
    for number in range(sums.shape[0]):
        top, left = (first + number) // across * TILE, (first + number) % across * TILE
        for frame in range(sums.shape[1]):
            for channel in range(0, out.shape[3], LANES):
                end = channel + LANES
                _gather_tile(sums[number, frame], channel, lines, tile)
                for row in range(min(TILE, rows - top)):
                    for column in range(TILE):
                        pixel, made = out[top + row, left + column, frame, channel:end], tile[row, column]
                        for lane in range(LANES):
                            pixel[lane] = max(made[lane] + bias[channel + lane], _ZERO)


@kernel
def gather_tiles(sums, first, across, bias, out):
    """out, pixels = max(those of the sums + bias, 0). The picture is a whole number of tiles wide."""
    lines = np.empty((TILE, POINTS, LANES), np.float32)
    _gather_tiles(sums, first, across, bias, lines, np.empty((TILE, TILE, LANES), np.float32), out)


@bare
def _gather_means(sums, first, across, bias, more, lines, tile, out):
    rows = out.shape[0]
    for number in range(sums.shape[0]):
        top, left = (first + number) // across * TILE, (first + number) % across * TILE
        for frame in range(sums.shape[1]):
            for channel in range(0, out.shape[3], LANES):
                end = channel + LANES
                _gather_tile(sums[number, frame], channel, lines, tile)
                for row in range(0, min(TILE, 2 * rows - top), 2):
                    for column in range(0, TILE, 2):
                        y, x = top + row, left + column
                        a, b = more[y, x, frame, channel:end], more[y, x + 1, frame, channel:end]
                        c, d = more[y + 1, x, frame, channel:end], more[y + 1, x + 1, frame, channel:end]
                        mean = out[y // 2, x // 2, frame, channel:end]
                        for lane in range(LANES):
                            add = bias[channel + lane]
                            mean[lane] = _QUARTER * (
                                (max(tile[row, column, lane] + add, _ZERO) + a[lane])
                                + (max(tile[row, column + 1, lane] + add, _ZERO) + b[lane])
                                + (max(tile[row + 1, column, lane] + add, _ZERO) + c[lane])
                                + (max(tile[row + 1, column + 1, lane] + add, _ZERO) + d[lane])
                            )


@kernel
def gather_means(sums, first, across, bias, more, out):
    """out, the means of 2 x 2 pixels of max(those of the sums + bias, 0) + more. An odd last row has no mean."""
    lines = np.empty((TILE, POINTS, LANES), np.float32)
    _gather_means(sums, first, across, bias, more, lines, np.empty((TILE, TILE, LANES), np.float32), out)


@kernel
def neighbours(frames, out):
    """out float32[rows, columns, frames, 32] = the 3 x 3 pixels around each of uint8[frames, rows, columns, 3], and zeros."""
    count, rows, columns, _ = frames.shape
    for row in range(rows):
        for column in range(columns):
            for frame in range(count):
                pixel = out[row, column, frame]
                pixel[27:] = _ZERO
                for place in range(9):
                    y, x = row + place // 3 - 1, column + place % 3 - 1
                    inside = y >= 0 and y < rows and x >= 0 and x < columns
                    for channel in range(3):
                        pixel[3 * place + channel] = frames[frame, y, x, channel] if inside else _ZERO
