"""fastText classifiers (Joulin et al. 2017; Bojanowski et al. 2017): from bytes to the mean of a text's rows, to scores.

    bytes --whitespace--> words --memo--> sum of the word's rows: itself if it is known, and its character n-grams
                            |
                            +--word n-grams--> one row each            mean of all rows --> output --> scores

Kernels take `data` (uint8, the bytes of a string column) and `offsets` (int64, rows + 1). A text is read as one line that ends
in </s>: line breaks are spaces. What a word adds up to is kept in a table while a batch lasts, so a word that comes back
costs one addition of a row; the sum is formed the same way whether it was kept or not, so a text has the same scores alone
and among others.
"""
# mypy: disallow-untyped-defs=False, disallow-any-expr=False

from __future__ import annotations

import numpy as np
from numba import njit

from tamis.kernels.hashing import mix, tail64

HIERARCHICAL, NEGATIVE, SOFTMAX, ONE_VS_ALL = 1, 2, 3, 4
"""Losses, by the numbers model files have."""

_FNV_START, _FNV_PRIME = np.uint32(2166136261), np.uint32(16777619)  # FNV-1a, 32 bits
_WORD_NGRAM = np.uint64(116049371)  # the multiplier of fastText's word n-grams
_SMALLEST = 1e-5  # fastText adds this to a probability before it takes the logarithm

KEPT = 24
"""Bytes of the longest word whose rows are kept in the memo."""

SPACES = np.zeros(256, np.bool_)
SPACES[[0, 9, 10, 11, 12, 13, 32]] = True
SPACES.flags.writeable = False

_EOS = np.frombuffer(b"</s>", np.uint8)
_LABEL = np.frombuffer(b"__label__", np.uint8)


@njit(nogil=True, cache=True, forceinline=True)
def _fold(state, byte):
    """One step of FNV-1a as fastText does it: a byte above 127 is a negative number."""
    extended = np.uint32(byte) | np.uint32(0xFFFFFF00) if byte >= 128 else np.uint32(byte)
    return np.uint32((state ^ extended) * _FNV_PRIME)


@njit(nogil=True, cache=True, forceinline=True)
def hash_word(data, start, stop):
    state = _FNV_START
    for at in range(start, stop):
        state = _fold(state, data[at])
    return state


@njit(nogil=True, cache=True)
def fill_vocabulary(data, offsets, slots):
    """Put the entries of a dictionary into `slots` (int32, a power of two of them, -1 where empty)."""
    mask = len(slots) - 1
    for entry in range(len(offsets) - 1):
        slot = np.int64(hash_word(data, offsets[entry], offsets[entry + 1])) & mask
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = entry


@njit(nogil=True, cache=True, forceinline=True)
def _same(data, start, stop, other, at):
    for index in range(stop - start):
        if data[start + index] != other[at + index]:
            return False
    return True


@njit(nogil=True, cache=True)
def _find(data, start, stop, hashed, vocabulary, ends, slots):
    """The number of a word in the dictionary, or -1."""
    mask = len(slots) - 1
    slot = np.int64(hashed) & mask
    while slots[slot] >= 0:
        entry = slots[slot]
        if ends[entry + 1] - ends[entry] == stop - start and _same(data, start, stop, vocabulary, ends[entry]):
            return np.int64(entry)
        slot = (slot + 1) & mask
    return np.int64(-1)


@njit(nogil=True, cache=True, forceinline=True)
def _add_bucket(bucket, known, kept, rows, total):
    """Add the row of an n-gram to total, unless it was pruned; how many rows were added."""
    if len(kept):
        bucket = np.int64(kept[bucket])
        if bucket < 0:
            return 0
    row = known + bucket
    for index in range(len(total)):
        total[index] += rows[row, index]
    return 1


@njit(nogil=True, cache=True)
def _add_subwords(data, start, stop, shortest, longest, buckets, known, kept, rows, total):
    """Add the rows of the character n-grams of <word> to total; how many there are."""
    added = 0
    inverse = 1.0 / buckets
    begin = start - 1  # the bytes before and after the word read as < and >
    while begin <= stop:
        state = _FNV_START
        at, size = begin, 0
        while at <= stop and size < longest:
            byte = np.uint8(60) if at < start else np.uint8(62) if at == stop else data[at]
            state = _fold(state, byte)
            at += 1
            while start < at < stop and (data[at] & 0xC0) == 0x80:
                state = _fold(state, data[at])
                at += 1
            size += 1
            if size == 1:
                following = at
            if size >= shortest and not (size == 1 and (begin < start or at > stop)):
                bucket = np.int64(state) - np.int64(np.float64(state) * inverse) * buckets  # state mod buckets
                if bucket < 0:
                    bucket += buckets
                elif bucket >= buckets:
                    bucket -= buckets
                added += _add_bucket(bucket, known, kept, rows, total)
        begin = following
    return added


@njit(nogil=True, cache=True)
def _add_word(data, start, stop, model, total):
    """Add the rows of one word to total: (how many, its hash, whether it is a word and not a label)."""
    known, _, shortest, longest, buckets, vocabulary, ends, slots, kept, rows = model
    hashed = hash_word(data, start, stop)
    entry = _find(data, start, stop, hashed, vocabulary, ends, slots)
    if entry >= known or (entry < 0 and stop - start >= 9 and _same(data, start, start + 9, _LABEL, 0)):
        return 0, hashed, False
    added = 0
    if entry >= 0:
        for index in range(len(total)):
            total[index] += rows[entry, index]
        added = 1
    if longest > 0 and not (stop - start == 4 and _same(data, start, stop, _EOS, 0)):
        added += _add_subwords(data, start, stop, shortest, longest, buckets, known, kept, rows, total)
    return added, hashed, True


@njit(nogil=True, cache=True, forceinline=True)
def _add_ngrams(hashed, running, seen, model, total):
    """Add the rows of the word n-grams that end in this word; running[i] is the hash of the one i + 2 words long."""
    known, _, _, _, buckets, _, _, _, kept, rows = model
    added = 0
    signed = np.uint64(np.int64(np.int32(hashed)))  # fastText keeps word hashes as signed numbers
    for index in range(min(seen, len(running) - 1), 0, -1):
        running[index] = running[index - 1] * _WORD_NGRAM + signed
        added += _add_bucket(np.int64(running[index] % np.uint64(buckets)), known, kept, rows, total)
    running[0] = signed
    return added


@njit(nogil=True, cache=True)
def clip(data, start, stop, max_chars):
    """The position after `max_chars` characters, or stop; 0 characters means all."""
    if max_chars <= 0 or stop - start <= max_chars:
        return stop
    at, chars = start, 0
    while at < stop:
        if (data[at] & 0xC0) != 0x80:
            if chars == max_chars:
                return at
            chars += 1
        at += 1
    return stop


@njit(nogil=True, cache=True)
def embed(data, offsets, spaces, max_chars, model, means):
    """means[i] = the mean of the rows of text i, float32[rows, size]; zeros where there is no row at all.

    model: (words in the dictionary, longest word n-gram, shortest and longest character n-gram, buckets, bytes of the
    dictionary's entries, their offsets, their slots, what is left of each bucket (empty: all), the rows).
    """
    size = means.shape[1]
    orders = model[1]
    running = np.zeros(max(1, orders), np.uint64)
    slots = 64
    most = min(1 << 15, max(64, (1 << 20) // size))
    while slots < most and slots * 16 < offsets[len(offsets) - 1] - offsets[0]:
        slots *= 2
    keys = np.zeros((slots, 3), np.uint64)
    facts = np.full((slots, 3), -1, np.int32)  # rows added, hash, whether it is a word
    sums = np.zeros((slots, size), np.float32)
    total = np.zeros(size, np.float64)
    fresh = np.zeros(size, np.float32)
    end_sum = np.zeros(size, np.float32)
    end_added, end_hash, _ = _add_word(_EOS, 0, 4, model, end_sum)
    for row in range(len(offsets) - 1):
        at = offsets[row]
        end = clip(data, at, offsets[row + 1], max_chars)
        total[:] = 0
        count = seen = 0
        while True:
            while at < end and spaces[data[at]]:
                at += 1
            start = at
            while at < end and not spaces[data[at]]:
                at += 1
            last = start == at or (at - start == 4 and _same(data, start, at, _EOS, 0))
            if last:
                for index in range(size):
                    total[index] += end_sum[index]
                count += end_added
                if orders > 1:
                    fresh[:] = 0
                    count += _add_ngrams(end_hash, running, seen, model, fresh)
                    for index in range(size):
                        total[index] += fresh[index]
                break
            if at - start <= KEPT:
                first = tail64(data, start, min(at, start + 8))
                second = tail64(data, start + 8, min(at, start + 16)) if at - start > 8 else np.uint64(0)
                third = tail64(data, start + 16, at) if at - start > 16 else np.uint64(0)
                slot = np.int64(mix(mix(first, second), third) & np.uint64(slots - 1))
                # a word holds no zero byte, so its bytes tell its size
                if not (keys[slot, 0] == first and keys[slot, 1] == second and keys[slot, 2] == third):
                    keys[slot, 0], keys[slot, 1], keys[slot, 2] = first, second, third
                    sums[slot, :] = 0
                    added, hashed, word = _add_word(data, start, at, model, sums[slot])
                    facts[slot, 0], facts[slot, 1], facts[slot, 2] = added, np.int32(hashed), word
                for index in range(size):
                    total[index] += sums[slot, index]
                count += facts[slot, 0]
                hashed, word = np.uint32(facts[slot, 1]), facts[slot, 2] != 0
            else:
                fresh[:] = 0
                added, hashed, word = _add_word(data, start, at, model, fresh)
                for index in range(size):
                    total[index] += fresh[index]
                count += added
            if orders > 1 and word:
                fresh[:] = 0
                count += _add_ngrams(hashed, running, seen, model, fresh)
                for index in range(size):
                    total[index] += fresh[index]
                seen += 1
        for index in range(size):
            means[row, index] = total[index] / max(count, 1)


# ------------------------------------------------------------------------------------------------------------- scores


@njit(nogil=True, cache=True)
def project(rows, output, projected):
    """projected = rows @ output.T, in the same order of additions on every machine."""
    for row in range(len(rows)):
        for unit in range(len(output)):
            total = 0.0
            for index in range(rows.shape[1]):
                total += np.float64(rows[row, index]) * output[unit, index]
            projected[row, unit] = total


@njit(nogil=True, cache=True, forceinline=True)
def _unit(mean, output, unit):
    """What one row of the output says; an output without rows was multiplied into the input already."""
    if len(output) == 0:
        return np.float64(mean[unit])
    total = np.float32(0)
    for index in range(len(mean)):
        total += mean[index] * output[unit, index]
    return np.float64(total)


@njit(nogil=True, cache=True)
def _descend(mean, output, left, right, only_best, scores):
    """Probabilities of the leaves of the tree of a hierarchical softmax; where only the best counts, others may be 0."""
    nodes, leaves = len(left), (len(left) + 1) // 2
    scores[nodes - 1] = 1.0
    best = 0.0
    for node in range(nodes - 1, leaves - 1, -1):
        here = scores[node]
        first, second = left[node], right[node]
        if only_best and here < best:  # no leaf below can be better
            scores[first] = scores[second] = 0.0
            continue
        share = 1.0 / (1.0 + np.exp(-_unit(mean, output, node - leaves)))
        scores[first] = here * (1.0 - share + _SMALLEST)
        scores[second] = here * (share + _SMALLEST)
        if first < leaves:
            best = max(best, scores[first])
        if second < leaves:
            best = max(best, scores[second])


@njit(nogil=True, cache=True)
def _judge(mean, output, labels, loss, left, right, only_best, scores):
    """scores[label] = what the library would say: a probability, and up to a few 1e-5 more."""
    if loss == HIERARCHICAL:
        _descend(mean, output, left, right, only_best, scores)
        return
    highest = -np.inf
    for label in range(labels):
        scores[label] = _unit(mean, output, label)
        highest = max(highest, scores[label])
    if loss == SOFTMAX:
        total = 0.0
        for label in range(labels):
            scores[label] = np.exp(scores[label] - highest)
            total += scores[label]
        for label in range(labels):
            scores[label] = scores[label] / total + _SMALLEST
        return
    for label in range(labels):
        value = scores[label]
        if value < -8:
            share = 0.0
        elif value > 8:
            share = 1.0
        else:  # the library looks the logistic function up in 512 steps from -8 to 8
            share = 1.0 / (1.0 + np.exp(8.0 - np.floor((value + 8.0) * 32.0) / 32.0))
        scores[label] = share + _SMALLEST


@njit(nogil=True, cache=True)
def rank(means, output, labels, loss, left, right, best, scores):
    """The best labels of each row, best first, ties by number: best int32[rows, k], scores float32[rows, k]."""
    places = best.shape[1]
    judged = np.zeros(max(labels, len(left)), np.float64)
    for row in range(len(means)):
        _judge(means[row], output, labels, loss, left, right, places == 1, judged)
        for place in range(places):
            best[row, place] = -1
        for label in range(labels):
            value = judged[label]
            place = places
            while place > 0 and (best[row, place - 1] < 0 or scores[row, place - 1] < np.float32(value)):
                place -= 1
            if place < places:
                for other in range(places - 1, place, -1):
                    best[row, other], scores[row, other] = best[row, other - 1], scores[row, other - 1]
                best[row, place], scores[row, place] = label, value


@njit(nogil=True, cache=True)
def score_label(means, output, labels, loss, left, right, label, scores):
    """scores[i] = what the model says of one label, float32[rows]."""
    judged = np.zeros(max(labels, len(left)), np.float64)
    for row in range(len(means)):
        _judge(means[row], output, labels, loss, left, right, False, judged)
        scores[row] = judged[label]
