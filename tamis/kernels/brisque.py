"""Kernels of BRISQUE: natural scene statistics of a gray picture (Mittal et al. 2012).

Pictures are float64[height, width] from 0 to 1. Sums run row by row in one order, so that results do not depend on the machine.
"""

from __future__ import annotations

import math

import numpy as np

from tamis.kernels.jit import kernel


@kernel
def gray_levels(picture, out):
    """out float64[h, w] = brightness of picture uint8[h, w, 3] by ITU-R BT.709, from 0 to 1."""
    height, width, _ = picture.shape
    for row in range(height):
        for column in range(width):
            out[row, column] = (
                0.2125 * picture[row, column, 0] + 0.7154 * picture[row, column, 1] + 0.0721 * picture[row, column, 2]
            ) / 255.0


@kernel
def halve(source, out):
    """out = source at half its size, by cubic interpolation between four pixels (a = -0.75); borders are repeated."""
    height, width = source.shape
    new_height, new_width = out.shape
    outer, inner = -0.09375, 0.59375  # the cubic at distances of 1.5 and 0.5 pixels
    line = np.empty(width)
    for row in range(new_height):
        above = source[min(max(2 * row - 1, 0), height - 1)]
        first, second = source[min(2 * row, height - 1)], source[min(2 * row + 1, height - 1)]
        below = source[min(2 * row + 2, height - 1)]
        for column in range(width):
            line[column] = outer * (above[column] + below[column]) + inner * (first[column] + second[column])
        for column in range(new_width):
            left, right = line[min(max(2 * column - 1, 0), width - 1)], line[min(2 * column + 2, width - 1)]
            middle = line[min(2 * column, width - 1)] + line[min(2 * column + 1, width - 1)]
            out[row, column] = outer * (left + right) + inner * middle


@kernel
def normalized_contrast(gray, weights, out):
    """out[i, j] = (gray - mean) / (deviation + 1/255) of the window around (i, j); weights float64[2 * reach + 1] sum to 1.

    Pixels beyond the border count as black.
    """
    height, width = gray.shape
    reach = len(weights) // 2
    means, squares = np.empty(width), np.empty(width)
    for row in range(height):
        means[:] = 0.0
        squares[:] = 0.0
        for offset in range(-reach, reach + 1):
            if 0 <= row + offset < height:
                weight = weights[offset + reach]
                for column in range(width):
                    value = gray[row + offset, column]
                    means[column] += weight * value
                    squares[column] += weight * value * value
        for column in range(width):
            mean = square = 0.0
            for offset in range(max(-reach, -column), min(reach, width - 1 - column) + 1):
                mean += weights[offset + reach] * means[column + offset]
                square += weights[offset + reach] * squares[column + offset]
            out[row, column] = (gray[row, column] - mean) / (math.sqrt(abs(mean * mean - square)) + 1.0 / 255.0)


@kernel
def moments(contrast, down, across, out):
    """out float64[5] = of the products of each value with the one `down` and `across` from it: sums and counts.

    The sum of absolute products, the sums of squares of negative and of other products, and the numbers of both. Without a
    distance (0, 0), of the values themselves.
    """
    height, width = contrast.shape
    absolute = negative = positive = 0.0
    negatives = positives = 0
    for row in range(height - down):
        for column in range(max(0, -across), width - max(0, across)):
            value = contrast[row, column]
            if down or across:
                value *= contrast[row + down, column + across]
            absolute += abs(value)
            if value < 0:
                negative += value * value
                negatives += 1
            else:
                positive += value * value
                positives += 1
    out[0], out[1], out[2], out[3], out[4] = absolute, negative, positive, negatives, positives
