"""The smallest keys of all partitions, found without holding them all, against sorting them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tamis.sampling import find_smallest

KEY = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 3), st.sampled_from([2**64 - 1, 2**63, 2**56 - 1, 2**56]))


class Here:
    """`Work` whose calls run in this process."""

    def map(self, name, function, items):
        return [function(*item) for item in items]


class Given:
    def __init__(self, parts):
        self.parts = parts

    def __call__(self, partition):
        return np.array(self.parts[partition], np.uint64)


@given(st.lists(st.lists(KEY, max_size=12), max_size=6), st.integers(0, 40))
def test_the_smallest_keys_are_those_of_a_sort(parts, wanted):
    keys = Given(parts)
    limits = find_smallest(Here(), "keys", keys, len(parts), wanted)
    found = [limit.chosen(keys(number)).tolist() for number, limit in enumerate(limits)]
    flat = [(key, part, place) for part, each in enumerate(parts) for place, key in enumerate(each)]
    chosen = {(part, place) for _, part, place in sorted(flat)[:wanted]}
    assert found == [[(part, place) in chosen for place in range(len(each))] for part, each in enumerate(parts)]
