"""Union-find and the choice of rows to keep, against naive code."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.dedup.shuffle import duplicated
from tamis.kernels import groups


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 30).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.tuples(*[st.integers(0, n - 1)] * 2)))))
def test_components_are_those_of_the_graph(case):
    size, edges = case
    parents = np.arange(size, dtype=np.int32)
    left, right = (np.array([edge[side] for edge in edges], np.int64) for side in (0, 1))
    groups.unite(parents, left, right)
    touched = np.zeros(size, np.bool_)
    groups.mark(touched, left)
    groups.mark(touched, right)
    out = np.empty(size, np.int64)
    groups.flatten(parents, 0, size, touched, out)
    sets = [{n} for n in range(size)]
    for a, b in edges:
        union = sets[a] | sets[b]
        for member in union:
            sets[member] = union
    assert out.tolist() == [min(sets[n]) if touched[n] else -1 for n in range(size)]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 12), max_size=40))
def test_duplicated_keys(values):
    keys = np.array(values, np.uint64)
    plain = [max(1, value) for value in values]
    assert duplicated(keys).tolist() == [plain.count(value) > 1 for value in plain]


def similarity(left, right):
    return len(left & right) / len(left | right)


def naive_choice(keys, sets, threshold, max_unlinked):
    """The best survivor with a common key if it is similar enough, otherwise the first of the rest that is."""
    kept, matches = [], []
    for row in range(len(keys)):
        linked = [other for other in kept if any(a == b for a, b in zip(keys[row], keys[other], strict=True))]
        unlinked = [other for other in kept if other not in linked][:max_unlinked]
        best = max(linked, key=lambda other: (similarity(sets[row], sets[other]), -other), default=None)
        if best is None or similarity(sets[row], sets[best]) < threshold:
            best = next((other for other in unlinked if similarity(sets[row], sets[other]) >= threshold), -1)
        matches.append(best)
        if best < 0:
            kept.append(row)
    return matches


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(1, 4), min_size=3, max_size=3), st.sets(st.integers(0, 9), min_size=1)),
        min_size=1,
        max_size=25,
    ),
    st.sampled_from([0.3, 0.5, 0.8, 1.0]),
    st.sampled_from([0, 1, 3, 100]),
)
def test_choice_is_that_of_the_naive_reference(rows, threshold, max_unlinked):
    # A key belongs to its band, as real keys do; all rows are one component.
    keys = np.array([[16 * band + value for band, value in enumerate(row[0])] for row in rows], np.uint64)
    sets = [row[1] for row in rows]
    flat = np.array([value for each in sets for value in sorted(each)], np.uint32)
    spans = np.concatenate([[0], np.cumsum([len(each) for each in sets])]).astype(np.int64)
    found = choose(keys, flat, spans, threshold, max_unlinked=max_unlinked)
    assert found.tolist() == naive_choice(keys.tolist(), sets, threshold, max_unlinked)


def choose(keys, flat, spans, threshold, ranks=None, max_unlinked=0):
    """The survivor that each row matches; all rows are one component."""
    size, bands = keys.shape
    matches = np.zeros(size, np.int64)
    groups.choose(
        np.zeros(size, np.int64), np.arange(size) if ranks is None else np.array(ranks), keys, np.zeros(size, np.bool_),
        False, flat, spans, np.full(size, 32, np.int8), threshold, 0.0, groups.MAX_LINKED, max_unlinked,
        np.empty(size, np.int64), np.empty((size, bands), np.int32), np.empty(groups.num_slots(size, bands), np.int32),
        np.empty(size, np.int64), matches, np.zeros(size), np.zeros(size, np.int64), np.zeros(size),
    )  # fmt: skip
    return matches


def test_rows_that_share_no_band_are_compared_within_the_component():
    # Row 2 shares a band with row 1 only, and equals row 0.
    keys = np.array([[1, 10], [1, 20], [2, 20]], np.uint64)
    flat, spans = np.array([5, 6, 5], np.uint32), np.arange(4)
    assert choose(keys, flat, spans, 0.8, max_unlinked=1).tolist() == [-1, -1, 0]
    assert choose(keys, flat, spans, 0.8, max_unlinked=0).tolist() == [-1, -1, -1]


def test_one_crowded_band_does_not_hide_a_duplicate():
    # All rows share band 0 and are dissimilar, but the last one equals an early row, with which it also shares band 1.
    size = 2000
    keys = np.array([[7, 1000 + min(row, size - 2) % (size - 2)] for row in range(size)], np.uint64)
    keys[size - 1, 1] = keys[3, 1]
    flat = np.arange(size, dtype=np.uint32)
    flat[size - 1] = 3
    survivors = choose(keys, flat, np.arange(size + 1), 0.8)
    assert survivors[size - 1] == 3
    assert (survivors[: size - 1] < 0).all()


def test_rows_of_one_rank_are_not_compared():
    keys = np.ones((4, 1), np.uint64)
    flat, spans = np.ones(4, np.uint32), np.arange(5)
    assert choose(keys, flat, spans, 0.8, ranks=[0, 0, 1, 1]).tolist() == [-1, -1, 0, 0]
