"""Outliers and representatives: chosen by embeddings, the same for any division of the work."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest

from tamis import JsonlWriter, Pipeline, Rows
from tamis.dedup import Diverse, Outliers, selection, shuffle
from tamis.errors import ParameterError
from tamis.kernels import clusters


def grouped(count=400, groups=5, dimension=12, seed=0):
    """Vectors around a few directions, and the last ten in directions of their own."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(groups, dimension))
    vectors = means[np.arange(count) % groups] + 0.2 * rng.normal(size=(count, dimension))
    vectors[-10:] = rng.normal(size=(10, dimension))
    return vectors.astype(np.float32)


def rows_of(vectors):
    return [{"n": number, "embedding": vector.tolist()} for number, vector in enumerate(vectors)]


def run(rows, step, per_partition=60, **options):
    """(numbers of the kept rows, reasons of the drops)"""
    with tempfile.TemporaryDirectory() as folder:
        sink = JsonlWriter(f"{folder}/out", fields=["n"])
        report = Pipeline(Rows(rows, rows_per_partition=per_partition), step, sink).run(
            **(options or {"executor": "inline"})
        )
        assert report.balances
        files = sorted(Path(folder, "out").glob("*.jsonl"))
        return [json.loads(line)["n"] for file in files for line in file.read_text().splitlines()], report.dropped


def unit(vectors):
    exact = np.asarray(vectors, np.float64)
    return exact / np.linalg.norm(exact, axis=1, keepdims=True)


def test_rows_far_from_all_centres_are_dropped():
    vectors = grouped()
    kept, dropped = run(rows_of(vectors), Outliers(min_similarity=0.8, num_clusters=5))
    assert set(range(390, 400)) & set(kept) == set()
    assert dropped == {"centre_similarity < 0.8": 400 - len(kept)}
    assert len(kept) > 380


def test_the_score_is_the_similarity_to_the_nearest_centre():
    vectors = grouped(60, groups=1)
    found = Pipeline(Rows(rows_of(vectors)), Outliers(num_clusters=1, score_only=True)).collect()
    exact = unit(vectors)
    centre = exact.sum(axis=0) / np.linalg.norm(exact.sum(axis=0))
    assert np.allclose(found["centre_similarity"], exact @ centre, atol=1e-6)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5])
def test_a_share_of_the_rows_is_dropped(share):
    rows = [*rows_of(grouped()), {"n": 400, "embedding": None}]
    kept, dropped = run(rows, Outliers(share=share, num_clusters=5))
    assert len(kept) == 401 - int(400 * share)
    assert sum(dropped.values()) == int(400 * share)
    assert 400 in kept, "a row without an embedding has no score"
    scores = Pipeline(Rows(rows), Outliers(num_clusters=5, score_only=True)).collect()["centre_similarity"].to_pylist()
    worst = [number for number in range(400) if number not in kept]
    assert not worst or max(scores[n] for n in worst) <= min(scores[n] for n in kept if n < 400)


def test_equal_scores_are_dropped_in_source_order():
    rows = rows_of(np.ones((40, 4), np.float32))
    kept, _ = run(rows, Outliers(share=0.25, num_clusters=1), per_partition=7)
    assert kept == list(range(10, 40))


def brute_k_center(vectors, centre, count):
    exact = unit(vectors)
    chosen = [int((exact @ centre).argmax())]
    while len(chosen) < count:
        closest = (exact @ exact[chosen].T).max(axis=1)
        closest[chosen] = np.inf
        chosen.append(int(closest.argmin()))
    return chosen


def gains_of(vectors, chosen):
    """How much each vector would add to the sum of similarities to the nearest chosen one."""
    similarity = np.maximum(unit(vectors) @ unit(vectors).T, 0)
    covered = similarity[:, chosen].max(axis=1, initial=0.0)
    gains = np.maximum(similarity - covered[:, None], 0).sum(axis=0)
    gains[chosen] = -1.0
    return gains


@pytest.mark.parametrize("seed", range(4))
def test_representatives_of_a_cluster_are_those_of_a_loop(seed):
    vectors = unit(grouped(70, seed=seed)).astype(np.float32)
    centre = unit([vectors.sum(axis=0)])[0].astype(np.float32)
    assert clusters.k_center(vectors, centre, 12).tolist() == brute_k_center(vectors, centre, 12)
    chosen = clusters.facility_location(vectors, centre, 12).tolist()
    assert len(set(chosen)) == 12
    for number, choice in enumerate(chosen):
        gains = gains_of(vectors, chosen[:number])
        assert gains[choice] >= gains.max() - 1e-5


@pytest.mark.parametrize("method", ["k_center", "facility_location"])
def test_as_many_rows_are_kept_as_wanted_and_all_groups_are_among_them(method):
    vectors = grouped()
    for step, count in (
        (Diverse(rows=23, method=method, num_clusters=5), 23),
        (Diverse(share=0.25, method=method), 100),
    ):
        kept, dropped = run(rows_of(vectors), step)
        assert len(kept) == count
        assert dropped == {"represented by others": 400 - count}
        assert {number % 5 for number in kept if number < 390} == set(range(5))


def test_representatives_are_more_diverse_than_a_random_sample():
    vectors = unit(grouped(1000, groups=30, seed=3))
    rng = np.random.default_rng(1)
    covered = {}
    for method in ("k_center", "facility_location"):
        kept, _ = run(rows_of(vectors), Diverse(rows=60, method=method), 300)
        covered[method] = (vectors @ vectors[kept].T).max(axis=1)
    random = [(vectors @ vectors[rng.choice(1000, 60, replace=False)].T).max(axis=1) for _ in range(10)]
    assert covered["facility_location"].mean() > max(each.mean() for each in random)
    assert covered["k_center"].mean() > min(each.mean() for each in random)


def test_the_choice_does_not_depend_on_the_executor(executor):
    rows = rows_of(grouped(300, seed=6))
    expected = run(rows, Diverse(rows=37), 300), run(rows, Outliers(share=0.1), 300)
    assert (
        run(rows, Diverse(rows=37), 90, executor=executor),
        run(rows, Outliers(share=0.1), 90, executor=executor),
    ) == expected


@pytest.mark.parametrize(
    "step", [Diverse(rows=37), Diverse(share=0.1, method="facility_location"), Outliers(share=0.1)]
)
def test_the_choice_does_not_depend_on_the_division(step, monkeypatch):
    rows = rows_of(grouped(300, seed=5))
    expected = run(rows, step, 300)
    assert run(rows, step, 17) == expected
    assert run(rows, step, 90, executor="local", workers=2, memory="3GB") == expected
    monkeypatch.setattr(shuffle, "PART_BYTES", 20_000)
    monkeypatch.setattr(shuffle, "bytes_per_call", lambda worker_bytes: 20_000)
    assert run(rows, step, 50) == expected


def test_a_large_cluster_is_divided(monkeypatch):
    monkeypatch.setattr(selection, "MAX_TOGETHER", 50)
    kept, _ = run(rows_of(grouped(400)), Diverse(rows=21, num_clusters=1))
    assert len(kept) == 21


def test_rows_without_an_embedding_and_too_few_rows():
    rows = [*rows_of(np.eye(3)), {"n": 3, "embedding": None}]
    kept, dropped = run(rows, Diverse(rows=10))
    assert (kept, dropped) == ([0, 1, 2], {"no embedding": 1})
    assert run(rows, Diverse(rows=1))[1] == {"no embedding": 1, "represented by others": 2}
    nothing = [{"n": 0, "embedding": None}, {"n": 1, "embedding": None}]
    assert run(nothing, Diverse(rows=1))[1] == {"no embedding": 2}
    assert run(nothing, Outliers(min_similarity=0.5))[0] == [0, 1]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (Outliers(), "either `min_similarity` or `share`"),
        (Outliers(share=1.0), "`share` must be"),
        (Outliers(min_similarity=3.0), "from -1 to 1"),
        (Diverse(), "either `rows` or `share`"),
        (Diverse(rows=1, share=0.5), "either `rows` or `share`"),
        (Diverse(rows=0), "`rows` must be at least 1"),
        (Diverse(share=0.0), "above 0 and at most 1"),
        (Diverse(share=2.0), "above 0 and at most 1"),
        (Diverse(rows=3, num_clusters=0), "`num_clusters` must be"),
    ],
)
def test_invalid_parameters_are_rejected(step, message):
    with pytest.raises(ParameterError, match=message):
        step.check()
