"""fastText classifiers (Joulin et al. 2017; Bojanowski et al. 2017): average the embedding rows of a text, then score it.

    bytes --whitespace--> words --memo--> sum of the word's rows: its own if it is known, and those of its character n-grams
                            |
                            +--word n-grams--> one row each            mean of all rows --> output --> scores

Kernels take `data` (uint8, the bytes of a string column) and `offsets` (int64, rows + 1). A text is read as one line that ends
in </s>: line breaks are spaces. The sum of each word's rows is memoized for the duration of a batch, so a repeated word costs
the addition of one row. Memoized and fresh sums are computed in the same order, so the scores of a text do not depend on the
other texts in its batch.
"""
# mypy: disallow-untyped-defs=False, disallow-any-expr=False

from __future__ import annotations

import numpy as np

from tamis.kernels.hashing import load64, mix64
from tamis.kernels.jit import inlined, intrinsic, ir, kernel, part, types

HIERARCHICAL, NEGATIVE, SOFTMAX, ONE_VS_ALL = 1, 2, 3, 4
"""Loss functions, numbered as in model files."""

_FNV_START, _FNV_PRIME = np.uint32(2166136261), np.uint32(16777619)  # FNV-1a, 32 bits
_WORD_NGRAM = np.uint64(116049371)  # the multiplier of fastText's word n-grams
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, odd
_UNIT = np.uint64(1)
_SMALLEST = 1e-5  # fastText adds this to a probability before it takes the logarithm

_MEMO = 1 << 19  # float32 values in the memo: 3 MB with its keys, so most of it fits in the second-level cache
KEPT = 24
"""Words longer than this many bytes are not memoized."""

SPACES = np.zeros(256, np.bool_)
SPACES[[0, 9, 10, 11, 12, 13, 32]] = True
SPACES.flags.writeable = False

_EOS = np.frombuffer(b"</s>", np.uint8)
_LABEL = np.frombuffer(b"__label__", np.uint8)


LANES = 4
"""Rows are padded to a multiple of this many values, which one vector instruction adds."""


@intrinsic
def _add_lanes(typingctx, target, at, source, where):
    """target[at : at + LANES] += source[where : where + LANES]; both float32, one-dimensional, and within bounds."""

    def generate(context, builder, signature, arguments):
        lanes = ir.VectorType(ir.FloatType(), LANES).as_pointer()
        spots = []
        for array, kind, index in ((arguments[0], 0, arguments[1]), (arguments[2], 2, arguments[3])):
            made = context.make_array(signature.args[kind])(context, builder, array)
            spots.append(builder.bitcast(builder.gep(made.data, [index]), lanes))
        total = builder.fadd(builder.load(spots[0], align=4), builder.load(spots[1], align=4))
        builder.store(total, spots[0], align=4)
        return context.get_dummy_value()

    return types.none(target, types.int64, source, types.int64), generate


@inlined
def _add_row(total, at, rows, where, size):
    for index in range(0, size, LANES):
        _add_lanes(total, at + index, rows, where + index)


@inlined
def _clear(total, at, size):
    for index in range(at, at + size):  # slice assignment takes seconds to compile
        total[index] = 0


@inlined
def _fold(state, byte):
    """Apply one step of FNV-1a the way fastText does: bytes above 127 are sign-extended."""
    extended = np.uint32(byte) | np.uint32(0xFFFFFF00) if byte >= 128 else np.uint32(byte)
    return np.uint32((state ^ extended) * _FNV_PRIME)


@inlined
def hash_word(data, start, stop):
    state = _FNV_START
    for at in range(start, stop):
        state = _fold(state, data[at])
    return state


@kernel
def fill_vocabulary(data, offsets, slots):
    """Insert the entries of a dictionary into the hash table `slots` (int32, length a power of two, -1 if empty)."""
    mask = len(slots) - 1
    for entry in range(len(offsets) - 1):
        slot = np.int64(hash_word(data, offsets[entry], offsets[entry + 1])) & mask
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = entry


@inlined
def _same(data, start, stop, other, at):
    size = stop - start
    index = 0
    while index < size and data[start + index] == other[at + index]:
        index += 1
    return index == size


@part
def _find(data, start, stop, hashed, vocabulary, ends, slots):
    """Return the index of a word in the dictionary, or -1."""
    mask = len(slots) - 1
    slot = np.int64(hashed) & mask
    while slots[slot] >= 0:
        entry = slots[slot]
        if ends[entry + 1] - ends[entry] == stop - start and _same(data, start, stop, vocabulary, ends[entry]):
            return np.int64(entry)
        slot = (slot + 1) & mask
    return np.int64(-1)


@intrinsic
def _ones(typingctx, bits):
    """Return the number of bits set in a uint64."""

    def generate(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate


@inlined
def _bucket_row(bucket, known, kept, zeros):
    """Return the row of an n-gram. Pruned n-grams map to the last row of the matrix, which is all zeros."""
    if len(kept) == 0:
        return known + bucket
    bits, bit = kept[bucket >> 6, 0], np.uint64(bucket & 63)
    row = known + np.int64(kept[bucket >> 6, 1] + _ones(bits & ((_UNIT << bit) - _UNIT)))
    return row if bits >> bit & _UNIT else zeros


@part
def _add_subwords(data, start, stop, model, total, at_total):
    """Add the rows of the character n-grams of <word> to total and return their number."""
    known, _, shortest, longest, buckets, _, _, _, kept, rows, size = model
    added = 0
    inverse = 1.0 / buckets
    zeros = len(rows) // size - 1
    begin = start - 1  # the bytes before and after the word are read as < and >
    while begin <= stop:
        state = _FNV_START
        at, chars = begin, 0
        following = stop + 1
        while at <= stop and chars < longest:
            byte = np.uint8(60) if at < start else np.uint8(62) if at == stop else data[at]
            state = _fold(state, byte)
            at += 1
            while start < at < stop and (data[at] & 0xC0) == 0x80:
                state = _fold(state, data[at])
                at += 1
            chars += 1
            if chars == 1:
                following = at
            if chars >= shortest and not (chars == 1 and (begin < start or at > stop)):
                bucket = np.int64(state) - np.int64(np.float64(state) * inverse) * buckets  # state mod buckets
                bucket += buckets if bucket < 0 else -buckets if bucket >= buckets else 0
                row = _bucket_row(bucket, known, kept, zeros)
                _add_row(total, at_total, rows, row * size, size)
                added += row != zeros
        begin = following
    return added


@part
def _add_word(data, start, stop, model, total, at_total):
    """Add the rows of one word to total. Return (number of rows, hash, False if it is a label)."""
    known, _, _, longest, _, vocabulary, ends, slots, _, rows, size = model
    hashed = hash_word(data, start, stop)
    entry = _find(data, start, stop, hashed, vocabulary, ends, slots)
    if entry >= known or (entry < 0 and stop - start >= 9 and _same(data, start, start + 9, _LABEL, np.int64(0))):
        return 0, hashed, False
    added = 0
    if entry >= 0:
        _add_row(total, at_total, rows, entry * size, size)
        added = 1
    if longest > 0 and not (stop - start == 4 and _same(data, start, stop, _EOS, np.int64(0))):
        added += _add_subwords(data, start, stop, model, total, at_total)
    return added, hashed, True


@part
def _add_ngrams(hashed, running, seen, model, total):
    """Add the rows of the word n-grams that end in this word; running[i] is the hash of the n-gram of i + 1 words."""
    known, _, _, _, buckets, _, _, _, kept, rows, size = model
    added = 0
    zeros = len(rows) // size - 1
    signed = np.uint64(np.int64(np.int32(hashed)))  # fastText stores word hashes as signed integers
    for index in range(min(seen, len(running) - 1), 0, -1):
        running[index] = running[index - 1] * _WORD_NGRAM + signed
        row = _bucket_row(np.int64(running[index] % np.uint64(buckets)), known, kept, zeros)
        _add_row(total, np.int64(0), rows, row * size, size)
        added += row != zeros
    running[0] = signed
    return added


@inlined
def upto8(data, start, stop):
    """Return the first eight bytes of a span, or fewer, as one uint64."""
    size = min(stop - start, 8)
    if size <= 0:
        return np.uint64(0)
    if start + 8 <= len(data):
        return load64(data, start) & (np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - 8 * size))
    word = np.uint64(0)
    for index in range(size):
        word |= np.uint64(data[start + index]) << np.uint64(8 * index)
    return word


@kernel
def clip(data, start, stop, max_chars):
    """Return the position after `max_chars` characters, or `stop`; 0 means no limit."""
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


@kernel
def _clip_all(data, offsets, max_chars, stops):
    for row in range(len(stops)):
        stops[row] = clip(data, offsets[row], offsets[row + 1], max_chars)


def clip_rows(data, offsets, max_chars):
    """Return the end of each row when cut after `max_chars` characters (0: no limit); int64[rows]."""
    if max_chars <= 0:
        return offsets[1:]
    stops = np.zeros(len(offsets) - 1, np.int64)
    _clip_all(data, offsets, max_chars, stops)
    stops.flags.writeable = False
    return stops


@kernel
def embed(data, offsets, stops, spaces, model, means, counts):
    """means[i] = mean of the embedding rows of the text offsets[i] to stops[i]; counts[i] = their number.

    means: float32[rows, size]; counts: int64[rows].
    model: (words in the dictionary, longest word n-gram, shortest and longest character n-gram, number of buckets, bytes of
    the dictionary entries, their offsets, their hash table, buckets left after pruning, all rows concatenated (float32, the
    last one zeros), values per row). Buckets left: uint64[buckets / 64, 2], one bit per bucket and the number of bits set
    before this word; empty if no bucket was pruned.
    """
    orders, size = model[1], model[10]
    running = np.zeros(max(1, orders), np.uint64)
    slots = 64
    most = max(64, _MEMO // size)
    while slots < most and slots * 16 < offsets[len(offsets) - 1] - offsets[0]:
        slots *= 2
    keys = np.zeros((slots, 3), np.uint64)
    facts = np.zeros((slots, 3), np.int32)  # number of rows, hash, False for a label
    sums = np.zeros(slots * size, np.float32)
    total, fresh, end_sum = np.zeros(size, np.float32), np.zeros(size, np.float32), np.zeros(size, np.float32)
    zero = np.int64(0)  # numba types a literal 0 differently and would compile every callee a second time
    end_added, end_hash, _ = _add_word(_EOS, zero, np.int64(4), model, end_sum, zero)
    for row in range(len(offsets) - 1):
        at, end = offsets[row], stops[row]
        _clear(total, zero, size)
        count = seen = np.int64(0)
        while True:
            while at < end and spaces[data[at]]:
                at += 1
            start = at
            while at < end and not spaces[data[at]]:
                at += 1
            if start == at or (at - start == 4 and _same(data, start, at, _EOS, zero)):
                _add_row(total, zero, end_sum, zero, size)
                count += end_added
                if orders > 1:
                    count += _add_ngrams(end_hash, running, seen, model, total)
                break
            if at - start <= KEPT:
                first, second = upto8(data, start, at), upto8(data, start + 8, at)
                third = upto8(data, start + 16, at)
                slot = np.int64(mix64(first + _SPREAD * (second + _SPREAD * third)) & np.uint64(slots - 1))
                # a word contains no zero byte, so the padded bytes also determine its length
                if not (keys[slot, 0] == first and keys[slot, 1] == second and keys[slot, 2] == third):
                    keys[slot, 0], keys[slot, 1], keys[slot, 2] = first, second, third
                    _clear(sums, slot * size, size)
                    added, hashed, word = _add_word(data, start, at, model, sums, slot * size)
                    facts[slot, 0], facts[slot, 1], facts[slot, 2] = added, np.int32(hashed), word
                _add_row(total, zero, sums, slot * size, size)
                count += facts[slot, 0]
                hashed, word = np.uint32(facts[slot, 1]), facts[slot, 2] != 0
            else:
                _clear(fresh, zero, size)
                added, hashed, word = _add_word(data, start, at, model, fresh, zero)
                _add_row(total, zero, fresh, zero, size)
                count += added
            if orders > 1 and word:
                count += _add_ngrams(hashed, running, seen, model, total)
                seen += 1
        for index in range(means.shape[1]):
            means[row, index] = total[index] / np.float32(max(count, 1))
        counts[row] = count


@kernel
def find_blank(data, offsets, spaces, out):
    """out[i] = whether row i has no words; bool[rows]."""
    for row in range(len(offsets) - 1):
        at, end = offsets[row], offsets[row + 1]
        while at < end and spaces[data[at]]:
            at += 1
        out[row] = at == end


# ------------------------------------------------------------------------------------------------------------- scores


@kernel
def project(rows, output, projected):
    """projected = rows @ output.T, with the same order of additions on every machine."""
    for row in range(len(rows)):
        for unit in range(len(output)):
            total = 0.0
            for index in range(rows.shape[1]):
                total += np.float64(rows[row, index]) * output[unit, index]
            projected[row, unit] = total


@inlined
def _unit(mean, output, unit):
    """Return the activation of one output unit; if `output` is empty, it is already multiplied into the input."""
    if len(output) == 0:
        return np.float64(mean[unit])
    total = np.float32(0)
    for index in range(len(mean)):
        total += mean[index] * output[unit, index]
    return np.float64(total)


@part
def _descend(mean, output, left, right, only_best, scores):
    """Compute the leaf probabilities of a hierarchical softmax; with `only_best`, leaves other than the best may be 0."""
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


@part
def _judge(mean, output, labels, loss, left, right, only_best, scores):
    """scores[label] = the score of the fastText library: a probability plus up to a few 1e-5."""
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
        else:  # the library uses a lookup table for the logistic function: 512 steps from -8 to 8
            share = 1.0 / (1.0 + np.exp(8.0 - np.floor((value + 8.0) * 32.0) / 32.0))
        scores[label] = share + _SMALLEST


@kernel
def rank(means, output, labels, loss, left, right, best, scores):
    """Find the k best labels of each row, best first, ties by index: best int32[rows, k], scores float32[rows, k]."""
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


@kernel
def score_label(means, output, labels, loss, left, right, label, scores):
    """scores[i] = the score of `label` for row i, float32[rows]."""
    judged = np.zeros(max(labels, len(left)), np.float64)
    for row in range(len(means)):
        _judge(means[row], output, labels, loss, left, right, False, judged)
        scores[row] = judged[label]
