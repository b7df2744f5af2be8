"""Sets of n-grams, whole and packed, against Python's own."""

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.kernels import sets


def packed(rows):
    """(bytes, offsets of the rows)"""
    values = np.array([value for row in rows for value in row], np.uint32)
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    out, spans = np.empty(sets.max_packed_bytes(len(values), len(rows)), np.uint8), np.empty(len(rows) + 1, np.int64)
    sets.pack_sets(values, offsets, out, spans)
    assert spans[-1] <= len(out)
    return out[: spans[-1]], spans


def unpacked(rows):
    """(places of all rows, offsets of the rows, bits of each row)"""
    data, ends = packed(rows)
    spans, bits = np.empty(len(ends), np.int64), np.empty(len(rows), np.int8)
    sets.packed_sizes(data, ends, spans)
    places = np.empty(spans[-1], np.uint32)
    sets.unpack_sets(data, ends, spans, places, bits)
    return places, spans, bits


def whole(rows):
    ordered = [sorted(set(row)) for row in rows]
    spans = np.concatenate([[0], np.cumsum([len(row) for row in ordered])]).astype(np.int64)
    values = np.array([value for row in ordered for value in row], np.uint32)
    return values, spans, np.full(len(rows), sets.FULL_BITS, np.int8)


VALUES = st.one_of(st.integers(0, 2**32 - 1), st.integers(0, 20), st.integers(2**32 - 20, 2**32 - 1))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(VALUES, max_size=60), max_size=6))
def test_packing_keeps_the_upper_bits_of_the_distinct_ngrams(rows):
    places, spans, bits = unpacked(rows)
    for number, row in enumerate(rows):
        different = {max(value, 1) for value in row}
        size = len(different)
        assert bits[number] == sets.SPARE_BITS + (math.ceil(math.log2(size)) if size else 0)
        expected = sorted(value >> (32 - int(bits[number])) for value in different)
        assert places[spans[number] : spans[number + 1]].tolist() == expected


def test_a_long_text_is_packed_the_same():
    rng = np.random.default_rng(1)
    values = rng.integers(0, 2**32, 1_100_000, dtype=np.uint32)
    values = np.concatenate([values, values[:1000], np.zeros(1, np.uint32)])
    places, _, bits = unpacked([values])
    expected = np.unique(np.maximum(values, 1)) >> np.uint32(32 - bits[0])
    assert np.array_equal(places, expected)


def test_a_packed_ngram_takes_a_byte():
    rng = random.Random(1)
    for size in (33, 64, 65, 1000, 5000):
        data, _ = packed([[rng.randrange(2**32) for _ in range(size)]])
        assert len(data) <= 1.04 * size


@settings(max_examples=200, deadline=None)
@given(st.sets(VALUES), st.sets(VALUES), st.sets(VALUES), st.integers(0, 150), st.sampled_from([0.0, 0.5, 0.8, 1.0]))
def test_similarity_of_whole_sets_is_exact_or_below_the_floor(shared, left, right, more, least):
    shared = shared | set(range(1, more + 1))  # enough for several strides
    left, right = left | shared | {0}, right | shared | {7}
    true = len(left & right) / len(left | right)
    found = sets.jaccard_similarity(0, 1, *whole([left, right]), least)
    assert found == pytest.approx(true) or (found == -1 and true < least)


def test_comparison_stops_once_the_sets_cannot_be_similar_enough():
    left, right = set(range(0, 4000, 2)), set(range(1, 4000, 2))
    assert sets.jaccard_similarity(0, 1, *whole([left, right]), 0.5) == -1
    assert sets.jaccard_similarity(0, 1, *whole([left, right]), 0.0) == 0


def pair(rng, size, similarity):
    """Two sets of about this size and similarity, and their exact similarity."""
    shared = round(2 * size * similarity / (1 + similarity))
    left, right = ({rng.randrange(2**32) for _ in range(size - shared)} for _ in range(2))
    both = {rng.randrange(2**32) for _ in range(shared)}
    left, right = left | both, right | both | {rng.randrange(2**32) for _ in range(rng.randrange(1 + size // 20))}
    return left, right, len(left & right) / len(left | right)


@pytest.mark.parametrize("similarity", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("size", [30, 120, 400, 3000])
def test_packed_sets_estimate_the_similarity_without_bias(size, similarity):
    rng = random.Random(size)
    errors = []
    for _ in range(200):
        left, right, true = pair(rng, size, similarity)
        errors.append(sets.jaccard_similarity(0, 1, *unpacked([left, right]), 0.0) - true)
    # Two n-grams that the texts do not share have the same place with a probability of at most 1 in 32 n.
    alone = (1 - similarity) / (1 + similarity)
    deviation = math.sqrt(alone**2 / 32 / size) * (1 + similarity) ** 2 / 2
    assert np.std(errors) <= 1.2 * deviation + 0.25 / size
    assert abs(np.mean(errors)) <= 5 * deviation / math.sqrt(len(errors)) + 0.25 / size


def test_equal_and_disjoint_sets():
    rng = random.Random(2)
    left, right = ({rng.randrange(2**32) for _ in range(500)} for _ in range(2))
    same = unpacked([left, left, right])
    assert sets.jaccard_similarity(0, 1, *same, 0.8) == 1.0
    assert sets.jaccard_similarity(0, 2, *same, 0.0) < 0.02


@given(st.lists(st.lists(st.one_of(st.integers(0, 3), st.integers(0, 2**32 - 1)), max_size=80), max_size=6))
@settings(deadline=None)
def test_sets_are_sorted_without_repeats(rows):
    values = np.array([value for row in rows for value in row], np.uint32)
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    out, spans = np.empty(len(values), np.uint32), np.empty(len(offsets), np.int64)
    sets.sort_sets(values, offsets, out, spans)
    assert [out[a:b].tolist() for a, b in itertools.pairwise(spans)] == [sorted(set(row)) for row in rows]
