"""The smallest keys of all partitions, found without holding them all, against sorting them."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis import Pipeline, Rows
from tamis.errors import ParameterError
from tamis.sampling import Sample, SampleByGroup, Shuffle, find_smallest, shares_of
from tamis.splitting import Split

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


GROUPED = [{"n": n, "language": ["en", "en", "en", "en", "de", None][n % 6]} for n in range(3000)]


def kept_by_language(**settings):
    table = Pipeline(Rows(GROUPED, rows_per_partition=700), SampleByGroup(by="language", **settings)).collect()
    return Counter(table["language"].to_pylist())


def test_groups_get_shares_by_temperature():
    assert kept_by_language(rows=10_000) == {"en": 2000, "de": 500, None: 500}
    proportional, flat = kept_by_language(rows=1200), kept_by_language(rows=1200, temperature=1e9)
    for language, number in {"en": 800, "de": 200, None: 200}.items():
        assert abs(proportional[language] - number) < 80
        assert abs(flat[language] - 400) < 80


def test_the_sample_by_group_does_not_depend_on_partitions():
    found = [
        Pipeline(
            Rows(GROUPED, rows_per_partition=size), SampleByGroup(by="language", rows=500, temperature=3)
        ).collect()
        for size in (100, 3000)
    ]
    assert found[0]["n"].to_pylist() == found[1]["n"].to_pylist()


@given(
    st.dictionaries(st.text(max_size=3), st.integers(1, 1000), max_size=8), st.integers(0, 3000), st.floats(0.2, 1e6)
)
def test_shares_add_up_to_the_rows_requested(counts, rows, temperature):
    shares = shares_of(counts, rows, temperature)
    expected = min(rows, sum(counts.values()))
    assert abs(sum(shares[name] * number for name, number in counts.items()) - expected) < 1e-6 * (1 + expected)
    assert all(0 <= share <= 1 for share in shares.values())


def test_too_many_groups_and_lists_are_errors(monkeypatch):
    monkeypatch.setattr("tamis.sampling.MOST_GROUPS", 1)
    with pytest.raises(ParameterError, match="more than 1 different values"):
        kept_by_language(rows=1)


@pytest.mark.parametrize(
    "step", [Shuffle, lambda seed: Sample(rows=5, seed=seed), lambda seed: Split(shares={"a": 1, "b": 1}, seed=seed)]
)
def test_any_integer_is_a_seed(step):
    found = {
        str(Pipeline(Rows(GROUPED[:50]), step(seed=seed)).collect(executor="inline").to_pylist())
        for seed in (0, -1, 2**63 - 1, 2**63, 10**30)
    }
    assert len(found) == 5
