"""One step of the decoder of Moonshine, with the arithmetic of its quantised graph.

Matrices are those of 8-bit numbers, as `Matrices` for all layers; a vector is quantised before each product, by its own largest
values. Keys and values are float32[layers, heads, size, times], so that loops over time are vectorised.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tamis.kernels.jit import kernel, part, summed

_ZERO, _ONE, _LEVELS = np.float32(0), np.float32(1), np.float32(255)
EPSILON = np.float32(1e-5)


class Matrices(NamedTuple):
    """A matrix per layer: (numbers - zero) * scale; the products of a vector with its lines have a bias."""

    numbers: np.ndarray
    """uint8[layers, outputs, inputs]"""
    zeros: np.ndarray
    """int32[layers]"""
    scales: np.ndarray
    """float32[layers]"""
    bias: np.ndarray
    """float32[layers, outputs]"""


class Weights(NamedTuple):
    """The matrices of all layers, and gains and shifts of the normalisations: float32[layers, 3, width]."""

    query: Matrices
    key: Matrices
    value: Matrices
    out: Matrices
    sound_query: Matrices
    sound_out: Matrices
    opened: Matrices
    closed: Matrices
    gains: np.ndarray
    shifts: np.ndarray


@part
def _normalise(values, gain, shift, out):
    """Layer normalisation, with sums in the order of onnxruntime."""
    size = np.float32(len(values))
    mean = squares = _ZERO
    for value in values:
        mean += value
        squares += value * value
    mean /= size
    spread = np.sqrt(squares / size - mean * mean + EPSILON)
    for place in range(len(values)):
        out[place] = (values[place] - mean) / spread * gain[place] + shift[place]


@part
def _quantise(values, numbers):
    """DynamicQuantizeLinear of ONNX, less its zero point: integers from -255 to 255. Returns what one of them stands for."""
    low = high = _ZERO
    for value in values:
        low = min(low, value)
        high = max(high, value)
    if low == high:
        numbers[: len(values)] = 0
        return _ONE
    scale = (high - low) / _LEVELS
    zero = np.float32(np.rint(min(max(-low / scale, _ZERO), _LEVELS)))
    for place in range(len(values)):
        level = np.float32(np.rint(values[place] / scale)) + zero
        numbers[place] = np.int16(min(max(level, _ZERO), _LEVELS) - zero)
    return scale


@part
def _multiply(matrices, layer, numbers, scale, out):
    """out = the products of the lines of a matrix with a quantised vector."""
    lines, size = matrices.numbers[layer], matrices.numbers.shape[2]
    factor, bias = scale * matrices.scales[layer], matrices.bias[layer]
    total = np.int32(0)
    for place in range(size):
        total = np.int32(total + np.int32(numbers[place]))
    shift = np.int32(total * matrices.zeros[layer])
    for number in range(len(lines)):
        line = lines[number]
        found = np.int32(0)
        for place in range(
            size
        ):  # integers of 32 bits throughout, which LLVM turns into one instruction for 32 products
            found = np.int32(found + np.int32(np.int32(numbers[place]) * np.int32(line[place])))
        out[number] = np.float32(np.int32(found - shift)) * factor + bias[number]


@summed
def _attend(query, keys, values, length, scores, out):
    """out = the mean of the first `length` values, weighted by how well their keys match; both are [size, times]."""
    scores[:length] = 0
    size = len(query)
    for place in range(0, size - 3, 4):
        a, b, c, d = query[place], query[place + 1], query[place + 2], query[place + 3]
        one, two, three, four = keys[place], keys[place + 1], keys[place + 2], keys[place + 3]
        for time in range(length):
            scores[time] += a * one[time] + b * two[time] + c * three[time] + d * four[time]
    for place in range(size - size % 4, size):
        a, one = query[place], keys[place]
        for time in range(length):
            scores[time] += a * one[time]
    high = scores[0]
    for time in range(length):
        high = max(high, scores[time])
    total = _ZERO
    for time in range(length):
        weight = np.float32(math.exp(scores[time] - high))
        scores[time] = weight
        total += weight
    for place in range(size):
        line, found = values[place], _ZERO
        for time in range(length):
            found += scores[time] * line[time]
        out[place] = found / total


@part
def _rotate(vector, cosines, sines):
    """Turn pairs of numbers by the angles of a place in the text; the numbers that follow stay."""
    for pair in range(len(cosines)):
        a, b = vector[2 * pair], vector[2 * pair + 1]
        vector[2 * pair] = a * cosines[pair] - b * sines[pair]
        vector[2 * pair + 1] = b * cosines[pair] + a * sines[pair]


@kernel
def step(weights, values, place, cosines, sines, keys, own, sound_keys, sound, frames):
    """Pass a token through all layers: `values` float32[width] is its embedding, and afterwards what the last layer made of it.

    place           the place of the token in the text
    cosines, sines  float32[pairs]: the rotation of this place
    keys, own       keys and values of the tokens of the text, to which those of this token are added
    frames          how many states of the encoder there are in `sound_keys` and `sound`
    """
    layers, heads, size, _ = keys.shape
    width = heads * size
    inner = weights.closed.numbers.shape[2]
    vector = np.empty(width, np.float32)
    query = np.empty(width, np.float32)
    other = np.empty(width, np.float32)
    wide = np.empty(2 * inner, np.float32)
    numbers = np.empty(max(width, inner), np.int16)
    scores = np.empty(max(place + 1, frames), np.float32)
    share = _ONE / np.sqrt(np.float32(size))
    for layer in range(layers):
        _normalise(values, weights.gains[layer, 0], weights.shifts[layer, 0], vector)
        scale = _quantise(vector, numbers)
        _multiply(weights.value, layer, numbers, scale, other)
        for at in range(width):
            own[layer, at // size, at % size, place] = other[at]
        _multiply(weights.key, layer, numbers, scale, other)
        _multiply(weights.query, layer, numbers, scale, query)
        for head in range(heads):
            first = head * size
            turned, asked = other[first : first + size], query[first : first + size]
            _rotate(turned, cosines, sines)
            _rotate(asked, cosines, sines)
            for at in range(size):
                keys[layer, head, at, place] = turned[at]
                asked[at] *= share
            _attend(asked, keys[layer, head], own[layer, head], place + 1, scores, vector[first : first + size])
        scale = _quantise(vector, numbers)
        _multiply(weights.out, layer, numbers, scale, other)
        for at in range(width):
            values[at] += other[at]

        _normalise(values, weights.gains[layer, 1], weights.shifts[layer, 1], vector)
        scale = _quantise(vector, numbers)
        _multiply(weights.sound_query, layer, numbers, scale, query)
        for head in range(heads):
            first = head * size
            asked = query[first : first + size]
            for at in range(size):
                asked[at] *= share
            _attend(asked, sound_keys[layer, head], sound[layer, head], frames, scores, vector[first : first + size])
        scale = _quantise(vector, numbers)
        _multiply(weights.sound_out, layer, numbers, scale, other)
        for at in range(width):
            values[at] += other[at]

        _normalise(values, weights.gains[layer, 2], weights.shifts[layer, 2], vector)
        scale = _quantise(vector, numbers)
        _multiply(weights.opened, layer, numbers, scale, wide)
        for at in range(inner):
            gate = wide[inner + at]
            wide[at] *= gate / (_ONE + np.float32(math.exp(-gate)))
        scale = _quantise(wide[:inner], numbers)
        _multiply(weights.closed, layer, numbers, scale, other)
        for at in range(width):
            values[at] += other[at]


@kernel
def logits(words, values, gain, shift, out):
    """out = the scores of all tokens after the last layer; `words` are matrices of one layer."""
    vector = np.empty(len(values), np.float32)
    numbers = np.empty(len(values), np.int16)
    _normalise(values, gain, shift, vector)
    scale = _quantise(vector, numbers)
    _multiply(words, 0, numbers, scale, out)
