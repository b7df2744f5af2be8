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
    first, stop = np.empty(new_width, np.int64), np.empty(new_width, np.int64)  # divisions are slow: once per column
    for column in range(new_width):
        first[column], stop[column] = column * width // new_width, ((column + 1) * width - 1) // new_width + 1
    for row in range(new_height):
        line[:] = 0
        begin, end = row * height, (row + 1) * height
        for above in range(begin // new_height, (end - 1) // new_height + 1):
            weight = np.int32(min(end, (above + 1) * new_height) - max(begin, above * new_height))
            values = source[above].reshape(width * 3)
            for index in range(width * 3):
                line[index] += weight * np.int32(values[index])
        for column in range(new_width):
            red = green = blue = half
            for left in range(first[column], stop[column]):
                weight = np.int64(
                    min((column + 1) * width, (left + 1) * new_width) - max(column * width, left * new_width)
                )
                red += weight * line[3 * left]
                green += weight * line[3 * left + 1]
                blue += weight * line[3 * left + 2]
            out[row, column, 0] = np.uint8(red / area)
            out[row, column, 1] = np.uint8(green / area)
            out[row, column, 2] = np.uint8(blue / area)


@kernel
def on_white(source, out):
    """out uint8[h, w, 3] = source uint8[h, w, 4] on a white background, rounded to nearest."""
    height, width, _ = source.shape
    for row in range(height):
        for column in range(width):
            alpha = np.uint32(source[row, column, 3])
            for channel in range(3):
                value = np.uint32(source[row, column, channel]) * alpha + np.uint32(255) * (np.uint32(255) - alpha)
                out[row, column, channel] = np.uint8((value + np.uint32(127)) // np.uint32(255))


@kernel
def luma(picture, out):
    """out uint8[h, w] = brightness by ITU-R BT.601, rounded as in Pillow: 0.299 red + 0.587 green + 0.114 blue."""
    height, width, _ = picture.shape
    for row in range(height):
        for column in range(width):
            red, green, blue = picture[row, column, 0], picture[row, column, 1], picture[row, column, 2]
            total = np.uint32(19595) * red + np.uint32(38470) * green + np.uint32(7471) * blue
            out[row, column] = np.uint8((total + np.uint32(32768)) >> np.uint32(16))


@kernel
def appearance(picture, gray, out):
    """out float64[6] = brightness, contrast, saturation, entropy, colours, colour range; gray is its luma.

    Brightness and contrast are mean and standard deviation of luma, from 0 to 255. Saturation is the mean of
    (max - min) / max over the channels of a pixel. Entropy is that of the histogram of luma, in bits. Colours are counted
    with 4 bits per channel. The colour range is that of the channel with the largest one, without the lowest and the
    highest 1 % of its values.
    """
    height, width, _ = picture.shape
    pixels = height * width
    grays = np.zeros(256, np.int64)
    channels = np.zeros((3, 256), np.int64)
    colours = np.zeros(4096, np.bool_)
    saturation = 0.0
    for row in range(height):
        for column in range(width):
            red, green, blue = picture[row, column, 0], picture[row, column, 1], picture[row, column, 2]
            grays[gray[row, column]] += 1
            channels[0, red] += 1
            channels[1, green] += 1
            channels[2, blue] += 1
            colours[(np.int64(red) >> 4) << 8 | (np.int64(green) >> 4) << 4 | (np.int64(blue) >> 4)] = True
            high, low = max(red, green, blue), min(red, green, blue)
            if high:
                saturation += (high - low) / high
    total, squares, entropy = np.int64(0), np.int64(0), 0.0
    for value in range(256):
        count = grays[value]
        total += count * value
        squares += count * value * value
        if count:
            entropy -= count / pixels * np.log2(count / pixels)
    out[0] = total / pixels
    out[1] = np.sqrt(max(0.0, (squares - total / pixels * total) / pixels))
    out[2] = saturation / pixels
    out[3] = max(0.0, entropy)
    out[4] = np.count_nonzero(colours)
    out[5] = 0
    for channel in range(3):
        out[5] = max(out[5], middle_range(channels[channel], pixels // 100))


@kernel
def middle_range(counts, outside):
    """Highest - lowest value of a histogram, int64[256], after `outside` values are removed at each end."""
    low, seen = 0, counts[0]
    while seen <= outside:
        low += 1
        seen += counts[low]
    high, seen = 255, counts[255]
    while seen <= outside:
        high -= 1
        seen += counts[high]
    return high - low


@kernel
def laplacian_variance(gray):
    """The variance of 4 x pixel - its 4 neighbours, over all pixels that have these; gray uint8[h, w]."""
    height, width = gray.shape
    total, squares = np.int64(0), np.int64(0)
    for row in range(1, height - 1):
        for column in range(1, width - 1):
            value = (
                np.int32(4) * gray[row, column]
                - gray[row - 1, column]
                - gray[row + 1, column]
                - gray[row, column - 1]
                - gray[row, column + 1]
            )
            total += value
            squares += value * value
    count = max(0, height - 2) * max(0, width - 2)
    return (squares - total / count * total) / count if count else 0.0


@kernel
def step_sums(gray, across, down):
    """Sums of the differences between neighbours by position modulo 8; across, down int64[8], gray uint8[h, w].

    across[k] is the sum of |gray[:, x + 1] - gray[:, x]| over all x with x % 8 == k, and down the same for rows.
    """
    height, width = gray.shape
    for row in range(height):
        for column in range(width - 1):
            across[column % 8] += abs(np.int32(gray[row, column + 1]) - np.int32(gray[row, column]))
        if row + 1 < height:
            for column in range(width):
                down[row % 8] += abs(np.int32(gray[row + 1, column]) - np.int32(gray[row, column]))
