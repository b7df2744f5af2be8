"""All pairs within a Hamming distance, as comparing all pairs finds them."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.kernels.hamming import Substrings, flips, pairs_within


def naive_pairs(hashes, radius):
    distances = np.bitwise_count(hashes[:, None] ^ hashes[None]).sum(axis=2)
    return {
        (int(a), int(b)): int(distances[a, b])
        for a, b in zip(*np.nonzero(np.triu(distances <= radius, 1)), strict=True)
    }


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), words=st.sampled_from([1, 4]), radius=st.integers(0, 20), rows=st.integers(0, 120))
def test_pairs_are_those_of_comparing_all(seed, words, radius, rows):
    rng = np.random.default_rng(seed)
    hashes = rng.integers(0, 2**64, (rows, words), dtype=np.uint64)
    for row in range(1, rows, 2):
        hashes[row] = hashes[rng.integers(0, row)]
        for bit in rng.integers(0, 64 * words, rng.integers(0, radius + 3)):
            hashes[row, bit // 64] ^= np.uint64(1 << int(bit % 64))
    left, right, distances = pairs_within(hashes, 64 * words, radius)
    found = list(zip(left.tolist(), right.tolist(), strict=True))
    assert len(found) == len(set(found))
    assert dict(zip(found, distances.tolist(), strict=True)) == naive_pairs(hashes, radius)


@given(bits=st.sampled_from([64, 256]), radius=st.integers(0, 60), count=st.integers(3, 40))
def test_two_hashes_within_the_radius_are_close_in_a_substring(bits, radius, count):
    division = Substrings(bits, radius, count)
    # The adversary puts one bit more than a substring may differ by into each of them.
    assert sum(division.reach(number) + 1 for number in range(count)) == radius + 1
    assert sum(division.width(number) for number in range(count)) == bits


def test_flips_are_all_values_with_few_bits():
    assert flips(8, 2).tolist() == [value for value in range(256) if value.bit_count() <= 2]
    assert flips(5, -1).tolist() == []


def test_a_billion_rows_get_long_substrings_and_few_rows_short_ones():
    assert Substrings.best(64, 8, 10**9).count < Substrings.best(64, 8, 1000).count
    assert Substrings.best(64, 0, 10**6).used == [0]
