"""Centres, reach and matches of vectors: NumPy and PyTorch against loops over all pairs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.kernels import clusters, clusters_gpu
from tamis.kernels.clusters import DROPPED, KEPT, UNKNOWN
from tamis.models.devices import choose


def unit(count, dimension, seed=0, kind=np.float32):
    vectors = np.random.default_rng(seed).normal(size=(count, dimension))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(kind)


@pytest.fixture(
    params=[
        "numpy",
        "torch",
        "torch in float16",
        pytest.param("gpu", marks=[pytest.mark.gpu, pytest.mark.skipif(choose("auto") == "cpu", reason="no GPU")]),
    ]
)
def kernels(request, monkeypatch):
    """The functions on a CPU with NumPy, on a CPU with PyTorch (also as on a GPU, in float16), and on a GPU."""
    if request.param == "numpy":
        return clusters
    pytest.importorskip("torch")
    if request.param != "gpu":
        monkeypatch.setattr(clusters_gpu, "DEVICE", "cpu")
    if request.param == "torch in float16":
        monkeypatch.setattr(clusters_gpu, "short", lambda vectors: vectors.half())
    return clusters_gpu


# ------------------------------------------------------------------------------------------------------------- centres


@pytest.mark.parametrize("count", [1, 2, 37])
def test_nearest_is_the_first_of_the_most_similar_centres(kernels, count):
    vectors, centres = unit(500, 12, 1), unit(count, 12, 2)
    centres = np.concatenate([centres, centres[:2]])  # equal centres: the first counts
    home, similarity = kernels.nearest(vectors, centres)
    exact = vectors.astype(np.float64) @ centres.astype(np.float64).T
    assert home.tolist() == exact[:, :count].argmax(axis=1).tolist()
    assert np.allclose(similarity, exact.max(axis=1), atol=1e-12)


def test_nearest_is_exact_where_float32_is_not(kernels):
    angles = np.arccos(0.5) + np.array([0, 3e-9, -3e-9])
    centres = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    vectors = np.array([[1.0, 0.0]] * 3, np.float32)
    expected = (vectors.astype(np.float64) @ centres.T.astype(np.float64)).argmax(axis=1)
    assert kernels.nearest(vectors, centres)[0].tolist() == expected.tolist()


def test_sums_do_not_depend_on_the_order(kernels):
    vectors = unit(9000, 5, 3)
    home = np.random.default_rng(4).integers(0, 7, 9000).astype(np.int32)
    sums, counts = kernels.fixed_sums(vectors, home, 9)
    order = np.random.default_rng(5).permutation(9000)
    again, _ = kernels.fixed_sums(vectors[order], home[order], 9)
    assert np.array_equal(sums, again)
    assert counts.tolist() == np.bincount(home, minlength=9).tolist()
    for cluster in range(9):
        assert np.allclose(sums[cluster] / clusters.FIXED, vectors[home == cluster].sum(axis=0), atol=1e-3)


def test_centres_are_the_same_with_pytorch(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(clusters_gpu, "DEVICE", "cpu")
    sample = unit(3000, 16, 6)
    found = [
        clusters.initial_centres(sample, 60, 7, 2.0),
        clusters.initial_centres(sample, 60, 7, 2.0, clusters_gpu.nearest, clusters_gpu.plus_plus),
    ]
    assert np.array_equal(*found)
    for kernels, centres in zip((clusters, clusters_gpu), found, strict=True):
        for _ in range(3):
            home, _ = kernels.nearest(sample, centres)
            centres[:] = clusters.moved_centres(centres, kernels.fixed_sums(sample, home, 60)[0])
    assert np.array_equal(*found)


def test_initial_centres_are_spread_out():
    rng = np.random.default_rng(8)
    means = unit(20, 24, 9)
    sample = np.repeat(means, 200, axis=0) + 0.05 * rng.normal(size=(4000, 24))
    sample = (sample / np.linalg.norm(sample, axis=1, keepdims=True)).astype(np.float32)
    centres = clusters.initial_centres(sample, 20, 1, 2.0)
    assert len(np.unique((centres @ means.T).argmax(axis=1))) >= 19, "almost every group has a centre of its own"


@pytest.mark.parametrize("count", [1, 5, 30, 40])
def test_as_many_centres_as_there_are_vectors(count):
    sample = np.repeat(unit(6, 4, 1), 5, axis=0)
    centres = clusters.initial_centres(sample, count, 1, 2.0)
    assert centres.shape == (min(count, 30), 4)
    assert clusters.initial_centres(sample[:0], count, 1, 2.0).shape == (0, 4)


# --------------------------------------------------------------------------------------------------------------- pairs


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), threshold=st.sampled_from([0.5, 0.8, 0.95, 1.0]))
def test_no_similar_vector_is_out_of_reach(seed, threshold):
    rng = np.random.default_rng(seed)
    vectors = unit(150, 4, seed)
    vectors[75:] = vectors[:75] + 0.1 * rng.normal(size=(75, 4))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    centres = unit(12, 4, seed + 1)
    home, _ = clusters.nearest(vectors, centres)
    row, cluster, left_out = clusters.reach(vectors, centres, home, threshold, None)
    visits = {*zip(row.tolist(), cluster.tolist(), strict=True)}
    assert left_out == 0
    alike = vectors.astype(np.float64) @ vectors.astype(np.float64).T >= threshold - 1e-6
    for left, right in zip(*np.nonzero(alike), strict=True):
        assert home[left] == home[right] or (left, home[right]) in visits


def test_a_limit_of_clusters_takes_the_nearest(kernels):
    vectors, centres = unit(200, 6, 1), unit(30, 6, 2)
    home, _ = clusters.nearest(vectors, centres)
    every = clusters.reach(vectors, centres, home, 0.8, None)
    counts = np.bincount(every[0], minlength=200)
    row, cluster, left_out = kernels.reach(vectors, centres, home, 0.8, 3)
    assert np.array_equal(np.bincount(row, minlength=200), np.minimum(counts, 3))
    assert left_out == np.count_nonzero(counts > 3)
    apart = np.linalg.norm(centres[:, None] - centres[None], axis=2)
    for number in range(200):
        others = [other for other in range(30) if other != home[number]]
        plane = {c: (vectors[number] @ (centres[home[number]] - centres[c])) / apart[home[number], c] for c in others}
        nearest = sorted(others, key=plane.__getitem__)[: counts[number]][:3]
        assert sorted(cluster[row == number].tolist()) == sorted(nearest)
    again = kernels.reach(vectors, centres, home, 0.8, None)
    assert {*zip(*(part.tolist() for part in again[:2]), strict=True)} == {
        *zip(*(part.tolist() for part in every[:2]), strict=True)
    }
    assert len(kernels.reach(vectors, centres, home, 0.8, 0)[0]) == 0


@pytest.mark.parametrize("limit", [1, 3, 100])
@pytest.mark.parametrize("threshold", [0.3, 0.7, 0.99])
def test_first_matches_are_those_of_a_loop(kernels, limit, threshold, monkeypatch):
    monkeypatch.setattr(clusters, "TARGET_ROWS", 16)
    monkeypatch.setattr(clusters, "BLOCK_VALUES", 200)
    monkeypatch.setattr(clusters_gpu, "WIDTHS", (4, 16))
    monkeypatch.setattr(clusters_gpu, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(clusters_gpu, "PAIR_ROWS", 8)
    queries, targets = unit(60, 4, 1), unit(70, 4, 2)
    targets[:10] = queries[:10]
    before = np.random.default_rng(3).integers(0, 71, 60)
    counts = np.zeros(60, np.int64)
    query, target, value, near, near_value = kernels.first_matches(
        queries, before, targets, threshold, limit, counts, 0.0
    )
    exact = queries.astype(np.float64) @ targets.astype(np.float64).T
    for number in range(60):
        mine = [place for place in range(before[number]) if exact[number, place] >= threshold - 1e-6]
        assert target[query == number].tolist() == mine[:limit]
        assert np.allclose(value[query == number], exact[number, mine[:limit]], atol=1e-6)
        assert counts[number] == len(mine[:limit])
        if not mine:
            below = exact[number, : before[number]]
            best = below.max(initial=-1.0)
            if best >= 0:
                assert (near[number], near_value[number]) == (below.argmax(), pytest.approx(best, abs=1e-6))
            else:
                assert near[number] == -1


def test_rows_are_counted_by_source_order_and_number():
    rng = np.random.default_rng(1)
    keys = np.stack([rng.integers(0, 3, 50), rng.integers(0, 4, 50), rng.permutation(50)]).astype(np.uint64)
    order = np.lexsort(keys[::-1])
    source, place, row = (part[order] for part in keys)
    row = row.astype(np.int64)
    for across in (False, True):
        found = np.empty(50, np.int64)
        clusters.count_better(keys[0], keys[1], keys[2].astype(np.int64), source, place, row, across, found)
        for number in range(50):
            mine = (keys[0][number],) if across else tuple(keys[:, number])
            better = sum(((s,) if across else (s, o, r)) < mine for s, o, r in zip(source, place, row, strict=True))
            assert found[number] == better


def test_rows_are_unknown_only_if_edges_that_are_not_listed_could_decide():
    # 0 is kept. 1 is like 0. 2 is like 1 only. 3 is like 1, and may be like others. 4 is like 3.
    first, worse = np.array([0, 1, 2, 3, 4]), np.array([1, 2, 3, 4])
    better, full = np.array([0, 1, 1, 3]), np.array([False, False, True, False])
    states, twins = np.zeros(5, np.int8), np.empty(4, np.int64)
    clusters.choose_kept(first, worse, better, states, full, twins)
    assert states.tolist() == [KEPT, DROPPED, KEPT, UNKNOWN, UNKNOWN]
    assert twins.tolist() == [0, -1, -1, -1]
