"""Kernels on pictures: uint8[height, width, 3].

All sums are integers, so that results are the same on every machine.
"""

from __future__ import annotations

import numpy as np

from tamis.kernels.jit import kernel


@kernel
def shrink(source, out):
    """out = source reduced by area averaging, rounded to nearest; out uint8[h, w, 3] is at most as large as source.

    A pixel of `out` is the mean of the rectangle of `source` that it covers. Lengths are in units of 1 / (size of out) of a
    source pixel, so that all weights are integers. Sums are below 2**53, so the division in float64 is exact enough to be
    rounded correctly.
    """
    height, width, _ = source.shape
    new_height, new_width, _ = out.shape
    line = np.empty(width * 3, np.int32)
    area = np.float64(height * width)
    half = np.int64(height * width) // 2
    for row in range(new_height):
        line[:] = 0
        begin, end = row * height, (row + 1) * height
        for above in range(begin // new_height, (end - 1) // new_height + 1):
            weight = np.int32(min(end, (above + 1) * new_height) - max(begin, above * new_height))
            values = source[above].reshape(width * 3)
            for index in range(width * 3):
                line[index] += weight * np.int32(values[index])
        for column in range(new_width):
            begin, end = column * width, (column + 1) * width
            red = green = blue = half
            for left in range(begin // new_width, (end - 1) // new_width + 1):
                weight = np.int64(min(end, (left + 1) * new_width) - max(begin, left * new_width))
                red += weight * line[3 * left]
                green += weight * line[3 * left + 1]
                blue += weight * line[3 * left + 2]
            out[row, column, 0] = np.uint8(red / area)
            out[row, column, 1] = np.uint8(green / area)
            out[row, column, 2] = np.uint8(blue / area)
