"""Linear classifiers over hashed n-grams: feature extraction, training, scoring.

    bytes --runs of letters and digits; every other sign on its own--> tokens
          each token               its lower-cased bytes, and its character n-grams as written, with < and > around it
          each pair of neighbours  their lower-cased bytes

Kernels take `data` (uint8), `offsets` (int64, rows + 1), `kinds` (one byte per byte value: SPACE, WORD or SIGN) and the
shape of the features: (bits, shortest, longest character n-gram). A feature is an index below 2**bits into the weights.
The score of a text with n features is bias + sum of weights / sqrt(n): counts scaled to about unit length.
"""
# mypy: disallow-untyped-defs=False, disallow-any-expr=False

from __future__ import annotations

import numpy as np

from tamis.kernels.fasttext import KEPT, upto8
from tamis.kernels.hashing import mix64
from tamis.kernels.jit import inlined, kernel, part

SPACE, WORD, SIGN = 0, 1, 2
LONGEST = 64
"""Tokens longer than this many bytes have no feature of their own, only character n-grams."""

_START, _PRIME = np.uint64(14695981039346656037), np.uint64(1099511628211)  # FNV-1a, 64 bits
_PAIR = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, odd
_SLOTS = 1 << 14  # tokens in the memo


def _byte_kinds():
    kinds = np.full(256, SIGN, np.uint8)
    kinds[128:] = WORD
    kinds[[0, 9, 10, 11, 12, 13, 32]] = SPACE
    for byte in b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz":
        kinds[byte] = WORD
    kinds.flags.writeable = False
    return kinds


KINDS = _byte_kinds()


@inlined
def _next_token(data, at, end, kinds):
    """Return (start, stop) of the next token; start == stop if there is none."""
    while at < end and kinds[data[at]] == SPACE:
        at += 1
    start = at
    if at < end and kinds[data[at]] == SIGN:
        return start, at + 1
    while at < end and kinds[data[at]] == WORD:
        at += 1
    return start, at


@inlined
def _hash_lowered(data, start, stop):
    state = _START
    for at in range(start, stop):
        byte = np.uint64(data[at])
        if np.uint64(65) <= byte <= np.uint64(90):
            byte += np.uint64(32)
        state = (state ^ byte) * _PRIME
    return mix64(state)


@part
def _token_features(data, start, stop, shape, found, count):
    """Append the features of one token to the first `count` of found (int32). Return (found, new count)."""
    bits, shortest, longest = shape
    shift = np.uint64(64 - bits)
    need = count + 2 + (stop - start + 2) * max(0, longest - shortest + 1)
    if need > len(found):
        larger = np.empty(2 * need, np.int32)
        for index in range(count):  # slice assignment takes seconds to compile
            larger[index] = found[index]
        found = larger
    if stop - start <= LONGEST:
        found[count] = np.int32(_hash_lowered(data, start, stop) >> shift)
        count += 1
    begin = start - 1
    while begin <= stop and longest > 0:
        state = _PAIR
        at, chars = begin, 0
        following = stop + 1
        while at <= stop and chars < longest:
            byte = np.uint64(60) if at < start else np.uint64(62) if at == stop else np.uint64(data[at])
            state = (state ^ byte) * _PRIME
            at += 1
            while start < at < stop and (data[at] & 0xC0) == 0x80:
                state = (state ^ np.uint64(data[at])) * _PRIME
                at += 1
            chars += 1
            if chars == 1:
                following = at
            if chars >= shortest:
                found[count] = np.int32(mix64(state) >> shift)
                count += 1
        begin = following
    return found, count


@inlined
def _pair_feature(before, here, bits):
    return np.int32(mix64(before * _PAIR + here) >> np.uint64(64 - bits))


@kernel
def find_features(data, start, end, kinds, shape, found):
    """Find all features of a text. Return (found, count); found (int32) is reallocated when it is too small."""
    count = np.int64(0)
    before = np.uint64(0)
    at = start
    while True:
        first, at = _next_token(data, at, end, kinds)
        if first == at:
            return found, count
        found, count = _token_features(data, first, at, shape, found, count)
        here = _hash_lowered(data, first, at)
        found[count] = _pair_feature(before, here, shape[0])  # fits: _token_features reserves space for it
        count += 1
        before = here


@kernel
def train_epoch(data, offsets, stops, order, targets, costs, kinds, shape, rate, weights, squares, bias):
    """Run one epoch of Adagrad (Duchi et al. 2011) over the texts (offsets[i] to stops[i]) in `order`; return the mean loss.

    targets: 1 or 0 per row; costs: class weight of each row. weights, squares: float32[2**bits]; squares are the sums of
    squared gradients. bias: float64[2], the bias and its sum of squared gradients.
    """
    found = np.empty(4096, np.int32)
    loss = 0.0
    for row in order:
        found, count = find_features(data, offsets[row], stops[row], kinds, shape, found)
        scale = 1.0 / np.sqrt(max(count, 1))
        total = 0.0
        for index in range(count):
            total += weights[found[index]]
        score = bias[0] + total * scale
        share = 1.0 / (1.0 + np.exp(-score))
        surprise = -score if targets[row] else score
        loss += costs[row] * (max(surprise, 0.0) + np.log1p(np.exp(-abs(surprise))))
        slope = costs[row] * (share - targets[row])
        bias[1] += slope * slope
        bias[0] -= rate * slope / np.sqrt(bias[1] + 1e-12)
        step = slope * scale
        for index in range(count):
            feature = found[index]
            squares[feature] += np.float32(step * step)
            weights[feature] -= np.float32(rate * step / np.sqrt(squares[feature] + 1e-12))
    return loss / max(len(order), 1)


@kernel
def score_rows(data, offsets, stops, kinds, shape, weights, bias, out):
    """out[i] = probability of the positive class for the bytes offsets[i] to stops[i], nan if there is no token.

    The sum of each token's weights is memoized for the duration of a batch, so repeated tokens are cheap.
    """
    found = np.empty(4096, np.int32)
    slots = 64
    while slots < _SLOTS and slots * 16 < offsets[len(offsets) - 1] - offsets[0]:
        slots *= 2
    keys = np.zeros((slots, 3), np.uint64)
    hashes = np.zeros(slots, np.uint64)
    counts, sums = np.zeros(slots, np.int64), np.zeros(slots, np.float64)
    for row in range(len(offsets) - 1):
        at, end = offsets[row], stops[row]
        before = np.uint64(0)
        total, count = 0.0, 0
        while True:
            first, at = _next_token(data, at, end, kinds)
            if first == at:
                break
            one, two, three = upto8(data, first, at), upto8(data, first + 8, at), upto8(data, first + 16, at)
            slot = np.int64(mix64(one + _PAIR * (two + _PAIR * three)) & np.uint64(slots - 1))
            # a token contains no zero byte, so 24 padded bytes also determine its length; longer tokens are not memoized
            if at - first > KEPT or keys[slot, 0] != one or keys[slot, 1] != two or keys[slot, 2] != three:
                found, counts[slot] = _token_features(data, first, at, shape, found, np.int64(0))
                sums[slot] = 0.0
                for index in range(counts[slot]):
                    sums[slot] += weights[found[index]]
                hashes[slot] = _hash_lowered(data, first, at)
                keys[slot, 0], keys[slot, 1], keys[slot, 2] = one, two, three
                if at - first > KEPT:
                    keys[slot, 0] = np.uint64(0)
            total += sums[slot] + weights[_pair_feature(before, hashes[slot], shape[0])]
            count += counts[slot] + 1
            before = hashes[slot]
        out[row] = 1.0 / (1.0 + np.exp(-(bias + total / np.sqrt(count)))) if count else np.nan
