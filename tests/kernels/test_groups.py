"""Union-find and the choice of who stays, against naive code."""

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


def naive_choice(keys, sets, threshold):
    """Row by row: goes if like a row that stays and shares a key with it."""
    kept, twins = [], []
    for row in range(len(keys)):
        best = (-1.0, -1)
        for other in kept:
            if any(a == b for a, b in zip(keys[row], keys[other], strict=True)):
                alike = len(sets[row] & sets[other]) / len(sets[row] | sets[other])
                if alike > best[0]:
                    best = (alike, other)
        gone = best[1] >= 0 and best[0] >= threshold
        twins.append(best[1] if gone else -1)
        if not gone:
            kept.append(row)
    return twins


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(1, 4), min_size=3, max_size=3), st.sets(st.integers(0, 9), min_size=1)),
        min_size=1,
        max_size=25,
    ),
    st.sampled_from([0.3, 0.5, 0.8, 1.0]),
)
def test_choice_is_that_of_the_naive_reference(rows, threshold):
    # A key belongs to its band, as real keys do; all rows are one component.
    keys = np.array([[16 * band + value for band, value in enumerate(row[0])] for row in rows], np.uint64)
    sets = [row[1] for row in rows]
    flat = np.array([value for each in sets for value in sorted(each)], np.uint32)
    spans = np.concatenate([[0], np.cumsum([len(each) for each in sets])]).astype(np.int64)
    size = len(rows)
    twins, near = np.zeros(size, np.int64), np.zeros(size, np.int64)
    groups.choose(
        np.zeros(size, np.int64), np.arange(size), keys, np.zeros(size, np.bool_), groups.SETS,
        np.empty((0, 1), np.uint16), flat, spans, threshold, 0.0, twins, np.zeros(size), near, np.zeros(size),
    )  # fmt: skip
    assert twins.tolist() == naive_choice(keys.tolist(), sets, threshold)
