"""Semantic deduplication: the same rows as comparing all pairs, for any division of the work."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import JsonlWriter, ParquetReader, ParquetWriter, Pipeline, Rows
from tamis.dedup import Groups, Outliers, SemanticDedup, shuffle, similar
from tamis.dedup.index import describe
from tamis.errors import BudgetError, OperatorError, ParameterError
from tamis.events import WorkerDied
from tamis.executors import driver
from tests.dedup.embeddings import EXACT, fates, planted, rows_of


def unit(vectors):
    exact = np.asarray(vectors, np.float64)
    return exact / np.linalg.norm(exact, axis=1, keepdims=True)


def naive(vectors, threshold, order=None):
    """(kept ids, {dropped id: (kept id, similarity)}): each row is compared with the rows kept before it."""
    exact, kept, pairs = unit(vectors), [], {}
    for row in range(len(exact)) if order is None else order:
        alike = exact[kept] @ exact[row]
        reached = np.flatnonzero(alike >= threshold - 1e-6)
        twin = (kept[reached[0]], float(alike[reached[0]])) if len(reached) else None
        if twin is None:
            kept.append(row)
        else:
            pairs[f"v{row}"] = (f"v{twin[0]}", pytest.approx(twin[1], abs=1e-5))
    return [f"v{row}" for row in sorted(kept)], pairs


def ids_in(file):
    return pq.read_table(file, columns=["id"])["id"].to_pylist()


# ---------------------------------------------------------------------------------------------------------- decisions


@settings(max_examples=12)
@given(
    seed=st.integers(0, 10**6),
    threshold=st.sampled_from([0.3, 0.6, 0.8, 0.9, 0.97, 1.0]),
    clusters=st.sampled_from(["auto", 1, 3, 40]),
    per_partition=st.integers(7, 90),
    listed=st.sampled_from([1, 2, 16]),
)
def test_survivors_and_pairs_are_those_of_comparing_all_rows(seed, threshold, clusters, per_partition, listed):
    vectors = planted(80, dimension=6, seed=seed)
    step = SemanticDedup(threshold=threshold, num_clusters=clusters, **EXACT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(similar, "MAX_LISTED", listed)  # with few, rows have to be compared again
        kept, pairs = fates(rows_of(vectors), step, per_partition)
    expected, twins = naive(vectors, threshold)
    assert kept == expected
    assert pairs.keys() == twins.keys()
    if listed == 16:
        assert pairs == twins


def test_a_chain_of_similar_rows_loses_only_rows_similar_to_a_kept_one():
    angles = np.arange(40) * 0.2
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    kept, pairs = fates(rows_of(vectors), SemanticDedup(threshold=float(np.cos(0.25)), **EXACT))
    assert kept == [f"v{number}" for number in range(0, 40, 2)][: len(kept)]
    assert len(kept) + len(pairs) == 40


@pytest.mark.parametrize("listed", [1, 3])
def test_rows_whose_listed_neighbours_are_all_dropped_are_compared_again(monkeypatch, listed):
    monkeypatch.setattr(similar, "MAX_LISTED", listed)
    vectors = planted(300, dimension=3, seed=5)  # a crowded space: every row is similar to many
    kept, _ = fates(rows_of(vectors), SemanticDedup(threshold=0.9, **EXACT))
    assert kept == naive(vectors, 0.9)[0]


def test_recall_with_a_limit_of_neighbours():
    vectors = planted(1500, dimension=24, noise=0.2, seed=3)
    expected = set(naive(vectors, 0.9)[1])
    assert len(expected) > 500
    found = set(fates(rows_of(vectors), SemanticDedup(threshold=0.9, keep="first", neighbours=4), 1000)[1])
    assert len(found & expected) >= 0.99 * len(expected)
    alone = set(fates(rows_of(vectors), SemanticDedup(threshold=0.9, keep="first", neighbours=0), 1000)[1])
    assert len(alone) < len(found), "pairs across the border of two clusters are missed without neighbours"


def test_keep_hard_and_easy_by_the_distance_to_the_centre():
    rng = np.random.default_rng(1)
    centre = np.zeros(8)
    centre[0] = 1.0
    vectors = centre + np.linspace(0.02, 0.3, 12)[:, None] * unit(rng.normal(size=(12, 8)))
    order = np.argsort(unit(vectors) @ unit([unit(vectors).sum(axis=0)])[0])  # the farthest first
    for keep, first in (("hard", order[0]), ("easy", order[-1])):
        step = SemanticDedup(threshold=0.5, num_clusters=1, keep=keep)
        kept, pairs = fates(rows_of(vectors), step)
        assert kept == [f"v{first}"]
        assert len(pairs) == 11


def test_keep_best_newest_and_preferred_sources():
    vectors = np.repeat(planted(4, dimension=8, seed=2)[:1], 4, axis=0)
    rows = rows_of(vectors, score=[1, 5, 3, 5], date=["2021", "2020", "2023", "2022"], source=["a", "a", "b", "b"])
    for row in rows:
        row["date"] += "-01-01"
    assert fates(rows, SemanticDedup(keep="best", by="score"))[0] == ["v1"]
    assert fates(rows, SemanticDedup(keep="newest", by="date"))[0] == ["v2"]
    preferred = {"prefer": ["b", "a"], "prefer_column": "source"}
    assert fates(rows, SemanticDedup(keep="first", **preferred))[0] == ["v2"]
    assert fates(rows, SemanticDedup(keep="first", across_sources=True, **preferred))[0] == ["v2", "v3"]


def test_keep_random_depends_on_the_seed_only():
    vectors = planted(200, seed=8)
    found = {seed: fates(rows_of(vectors), SemanticDedup(keep="random", seed=seed), 30)[0] for seed in (1, 2)}
    assert found[1] != found[2]
    assert fates(rows_of(vectors), SemanticDedup(keep="random", seed=1), 200)[0] == found[1]


def test_eps_is_one_minus_the_threshold():
    rows = rows_of(planted(120, seed=9))
    assert fates(rows, SemanticDedup(eps=0.07)) == fates(rows, SemanticDedup(threshold=0.93))


# ------------------------------------------------------------------------------------------- independent of the division


@pytest.mark.parametrize("keep", ["hard", "first"])
def test_result_does_not_depend_on_partitions_workers_or_budget(keep, monkeypatch):
    rows = rows_of(planted(700, seed=11))
    step = SemanticDedup(keep=keep, neighbours=2)
    expected = fates(rows, step, per_partition=700)
    assert len(expected[1]) > 100
    assert fates(rows, step, per_partition=37) == expected
    for workers, memory in ((1, "1600MB"), (2, "3GB"), (4, "6GB")):
        assert fates(rows, step, 90, executor="local", workers=workers, memory=memory) == expected
    monkeypatch.setattr(shuffle, "PART_BYTES", 20_000)
    monkeypatch.setattr(shuffle, "bytes_per_call", lambda worker_bytes: 20_000)
    assert fates(rows, step, per_partition=100) == expected


def test_result_does_not_depend_on_the_executor(executor):
    rows = rows_of(planted(300, seed=11))
    step = SemanticDedup(neighbours=2)
    assert fates(rows, step, 90, executor=executor) == fates(rows, step, per_partition=300)


def test_a_cluster_larger_than_a_workers_memory(monkeypatch):
    rows = rows_of(planted(900, seed=12))
    step = SemanticDedup(num_clusters=1, **EXACT)
    expected = fates(rows, step)
    monkeypatch.setattr(shuffle, "bytes_per_call", lambda worker_bytes: 5000)
    monkeypatch.setattr(similar.kernel, "TARGET_ROWS", 64)
    monkeypatch.setattr(similar.kernel, "BLOCK_VALUES", 3000)
    assert fates(rows, step, per_partition=100) == expected


def test_rows_that_are_all_the_same_are_compared_with_few(monkeypatch):
    compared = []
    plain = similar.kernel.first_matches
    monkeypatch.setattr(
        similar.kernel,
        "first_matches",
        lambda queries, before, targets, *more: (
            compared.append(len(queries) * len(targets)) or plain(queries, before, targets, *more)
        ),
    )
    count = 20_000
    table = pa.table({"id": [str(n) for n in range(count)], "embedding": as_lists(np.ones((count, 4), np.float32))})
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(table, f"{folder}/in.parquet")
        pipeline = Pipeline(
            ParquetReader(f"{folder}/in.parquet"), SemanticDedup(keep="first"), ParquetWriter(f"{folder}/out")
        )
        report = pipeline.run(executor="inline")
        assert (report.kept, report.dropped) == (1, {"similar embedding": count - 1})
        assert ids_in(next(Path(folder, "out").glob("*.parquet"))) == ["0"]
    assert sum(compared) < 5 * count * similar.kernel.TARGET_ROWS


def as_lists(vectors):
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])


def write_vectors(folder, vectors, per_file=100):
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(0, len(vectors), per_file):
        part = vectors[number : number + per_file]
        names = [f"v{number + place}" for place in range(len(part))]
        pq.write_table(pa.table({"id": names, "embedding": as_lists(part)}), folder / f"{number:06d}.parquet")
    return str(folder)


PHASES = [
    "vectors", "sample", "first centres", "centres, 2", "clusters", "members", "similar rows", "components",
    "by component", "choices", "states", "near misses", "survivors", "decisions",
]  # fmt: skip


def test_workers_killed_while_resolving_change_nothing(tmp_path, monkeypatch):
    source = write_vectors(tmp_path / "in", planted(300, seed=13))
    marks = tmp_path / "marks"
    marks.mkdir()

    def run(name, **more):
        pipeline = Pipeline(ParquetReader(source), SemanticDedup(), ParquetWriter(str(tmp_path / name)))
        return pipeline.run(workers=2, memory="3GB", **more)

    run("calm")
    plain = driver._GatherWork.map

    def killing(self, name, function, items):
        def once(*item):
            mark = marks / name.replace(" ", "-")
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*item)

        return plain(self, name, once, items)

    monkeypatch.setattr(driver._GatherWork, "map", killing)
    events = []
    assert run("killed", on_event=events.append).balances
    assert sum(isinstance(event, WorkerDied) for event in events) >= 10
    assert same_output(tmp_path / "killed", tmp_path / "calm")


def same_output(left, right):
    names = [[name for file in sorted(folder.glob("*.parquet")) for name in ids_in(file)] for folder in (left, right)]
    return names[0] == names[1] and Groups.load(left).table().equals(Groups.load(right).table())


def test_a_run_interrupted_in_any_phase_resumes_there(tmp_path, monkeypatch):
    """One run, broken off after every phase in turn; no call is repeated."""
    source = write_vectors(tmp_path / "in", planted(200, seed=14))
    Pipeline(ParquetReader(source), SemanticDedup(), ParquetWriter(str(tmp_path / "calm"))).run(executor="inline")
    plain, calls, done = driver._GatherWork.map, [], []

    def breaking(self, name, function, items):
        def counted(*item):
            calls.append(name)
            return function(*item)

        result = plain(self, name, counted, items)
        if name.startswith(phase) and phase not in done:
            done.append(phase)
            raise RuntimeError("broken off")
        return result

    monkeypatch.setattr(driver._GatherWork, "map", breaking)
    pipeline = Pipeline(ParquetReader(source), SemanticDedup(), ParquetWriter(str(tmp_path / "out")))
    repeated = []
    for phase in PHASES:  # noqa: B007 - read by `breaking`
        calls.clear()
        with pytest.raises(RuntimeError, match="broken off"):
            pipeline.run(executor="inline")
        assert not set(calls) & set(repeated)
        repeated += calls
    phase = "none"
    pipeline.run(executor="inline")
    assert done == PHASES
    assert same_output(tmp_path / "out", tmp_path / "calm")


KILLED = """
import os, signal, sys
from tamis import ParquetReader, ParquetWriter, Pipeline
from tamis.dedup import SemanticDedup
from tamis.executors import driver

source, out, *phases = sys.argv[1:]
plain = driver._GatherWork.map

def map(self, name, function, items, **more):
    def counted(*item):
        if any(name.startswith(phase) for phase in phases) and items.index(item) == len(items) - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*item)
    return plain(self, name, counted, items, **more)

driver._GatherWork.map = map
Pipeline(ParquetReader(source), SemanticDedup(num_clusters=4), ParquetWriter(out)).run(executor="inline")
"""


def test_a_run_killed_in_several_phases_resumes_with_the_same_result(tmp_path):
    """`kill -9` of the whole process, before the last call of a phase."""
    source = write_vectors(tmp_path / "in", planted(200, seed=15))

    def run(out, *phases):
        command = [sys.executable, "-c", KILLED, source, str(tmp_path / out), *phases]
        return subprocess.run(command, capture_output=True, text=True)

    assert run("calm").returncode == 0
    for phase in ("centres, 2", "similar rows"):
        assert run("killed", phase).returncode == -9
    done = run("killed")
    assert done.returncode == 0, done.stderr
    assert same_output(tmp_path / "killed", tmp_path / "calm")


# --------------------------------------------------------------------------------------------------------- odd vectors


def test_float16_gives_the_same_as_its_values_in_float32(tmp_path):
    vectors = (planted(300, seed=21, kind=np.float16) * np.float16(7)).astype(np.float16)
    for kind in (np.float16, np.float32, np.float64):
        source = write_vectors(tmp_path / np.dtype(kind).name, vectors.astype(kind))
        out = str(tmp_path / f"out-{np.dtype(kind).name}")
        Pipeline(ParquetReader(source), SemanticDedup(**EXACT), ParquetWriter(out)).run(executor="inline")
    tables = [Groups.load(tmp_path / f"out-{name}").table() for name in ("float16", "float32", "float64")]
    assert tables[0].num_rows > 50
    for table in tables[1:]:
        assert table.select(["id", "kept_id"]).equals(tables[0].select(["id", "kept_id"]))
        assert np.allclose(table["similarity"], tables[0]["similarity"], atol=1e-6)


def test_files_in_float16_and_float32_are_compared(tmp_path):
    vectors = planted(40, seed=22)
    write_vectors(tmp_path / "in", vectors)
    half = pa.table({"id": [f"h{n}" for n in range(40)], "embedding": as_lists(vectors.astype(np.float16))})
    pq.write_table(half.slice(0, 20), tmp_path / "in" / "x.parquet")
    pipeline = Pipeline(
        ParquetReader(str(tmp_path / "in")),
        SemanticDedup(threshold=0.999, keep="first"),
        ParquetWriter(str(tmp_path / "out")),
    )
    assert pipeline.run(executor="inline").dropped == {"similar embedding": 20}


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1.0, 1e30, 1e300])
def test_the_length_of_vectors_does_not_matter(scale):
    vectors = planted(60, seed=23, kind=np.float64)
    assert fates(rows_of(vectors * scale), SemanticDedup(**EXACT)) == naive(vectors, 0.9)


def test_thresholds_at_the_edge():
    theta = np.arccos(0.9)
    for delta, dropped in ((-1e-4, 1), (0.0, 1), (1e-4, 0)):
        vectors = np.array([[1.0, 0.0], [np.cos(theta + delta), np.sin(theta + delta)]])
        assert len(fates(rows_of(vectors), SemanticDedup())[1]) == dropped
    vectors = planted(50, seed=24)
    kept, pairs = fates(rows_of(np.concatenate([vectors, vectors * 3])), SemanticDedup(threshold=1.0, keep="first"))
    assert (len(kept), len(pairs)) == (50, 50)


def test_rows_without_a_usable_vector_are_kept_and_bad_ones_fail(tmp_path):
    good = [1.0, 2.0, 3.0]
    rows = [
        {"id": "a", "embedding": good},
        {"id": "none", "embedding": None},
        {"id": "zero", "embedding": [0.0, 0.0, 0.0]},
        {"id": "nan", "embedding": [float("nan"), 1.0, 2.0]},
        {"id": "infinite", "embedding": [float("inf"), 1.0, 2.0]},
        {"id": "hole", "embedding": [None, 1.0, 2.0]},
        {"id": "short", "embedding": [1.0, 2.0]},
        {"id": "empty", "embedding": []},
        {"id": "b", "embedding": good},
        {"id": "none again", "embedding": None},
    ]

    def run(out, **parameters):
        step = SemanticDedup(keep="first", **parameters)
        report = Pipeline(Rows(rows), step, JsonlWriter(str(tmp_path / out))).run(
            executor="inline", on_error="isolate", max_failed=1.0
        )
        assert report.balances
        assert report.dropped == {"similar embedding": 1}
        return report

    report = run("any")
    assert (report.kept, report.failed) == (6, 3)
    assert Groups.load(tmp_path / "any").summary["other_dimensions"] == 1
    assert run("three", dimension=3).failed == 4


@pytest.mark.parametrize("step", [SemanticDedup(), Outliers(min_similarity=0.5)])
def test_rows_are_kept_if_all_embeddings_are_empty(step):
    report = Pipeline(Rows([{"embedding": []}, {"embedding": []}]), step).run(executor="inline")
    assert (report.kept, report.dropped) == (2, {})


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_few_rows(count, tmp_path):
    schema = pa.schema({"id": pa.string(), "embedding": pa.list_(pa.float32(), 3)})
    rows = rows_of(np.eye(3)[np.arange(count) % 3])
    pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "in.parquet")
    step = SemanticDedup(num_clusters=4)
    report = Pipeline(ParquetReader(str(tmp_path / "in.parquet")), step, ParquetWriter(str(tmp_path / "out"))).run(
        executor="inline"
    )
    assert (report.kept, sum(report.dropped.values())) == (min(count, 3), max(0, count - 3))


def test_more_clusters_than_rows_or_different_vectors():
    vectors = np.repeat(planted(6, seed=25), 5, axis=0)
    for clusters in (20, 40):
        kept, _ = fates(rows_of(vectors), SemanticDedup(num_clusters=clusters, **EXACT))
        assert kept == naive(vectors, 0.9)[0]


# --------------------------------------------------------------------------------------------------- groups and index


def test_groups_have_similarity_and_distance_and_are_explained(tmp_path):
    from typer.testing import CliRunner

    from tamis.dedup.commands import app

    vectors = planted(400, noise=0.35, seed=31)
    source = write_vectors(tmp_path / "in", vectors)
    out = str(tmp_path / "out")
    Pipeline(ParquetReader(source), SemanticDedup(keep="first"), ParquetWriter(out)).run(executor="inline")
    groups = Groups.load(out)
    table = groups.table()
    assert table.num_rows > 20
    exact = unit(vectors)
    for row in table.to_pylist():
        left, right = (int(row[name][1:]) for name in ("id", "kept_id"))
        assert row["similarity"] == pytest.approx(exact[left] @ exact[right], abs=1e-5)
        assert 0 <= row["distance"] < 1
        assert row["similarity"] >= 0.9
    assert sum((size - 1) * count for size, count in groups.histogram().items()) == table.num_rows
    near = groups.closest(5)["below"]
    assert near
    assert all(0.85 <= pair["similarity"] < 0.9 for pair in near)
    result = CliRunner().invoke(app, ["explain", out, table["id"][0].as_py()])
    assert "was dropped by semantic_dedup" in result.output
    similarity, distance = table["similarity"][0].as_py(), table["distance"][0].as_py()
    assert f"cosine similarity {similarity:.4f}, distance to its centre {distance:.4f}" in result.output
    shown = CliRunner().invoke(app, ["explain", out]).output
    assert "kept rows closest to the threshold" in shown


def test_an_index_of_earlier_rows(tmp_path):
    vectors = planted(240, noise=0.1, seed=32)
    first, second = rows_of(vectors)[:120], rows_of(vectors)[120:]
    index = str(tmp_path / "index")

    def run(rows, out, **parameters):
        step = SemanticDedup(against=index, **EXACT, **parameters)
        source = Rows(rows, rows_per_partition=50)
        report = Pipeline(source, step, ParquetWriter(str(tmp_path / out))).run(executor="inline")
        kept = [name for file in sorted((tmp_path / out).glob("*.parquet")) for name in ids_in(file)]
        return kept, report

    kept, _ = run(first, "first", update=True)
    expected = naive(vectors, 0.9)[0]
    assert kept == [name for name in expected if int(name[1:]) < 120]
    for out, parameters in (("dry", {}), ("second", {"update": True}), ("second", {"update": True})):
        kept, report = run(second, out, **parameters)
        assert kept == [name for name in expected if int(name[1:]) >= 120]
        assert report.dropped[f"in the index {index}"] > 20
    assert run(rows_of(vectors), "all")[0] == []
    with pytest.raises(ParameterError, match="other settings"):
        SemanticDedup(against=index, column="other").check()


def test_an_index_has_embeddings_of_one_length(tmp_path):
    index = tmp_path / "index"
    vectors = planted(40, dimension=8, seed=33)
    rows = [*rows_of(vectors), {"id": "short", "embedding": [1.0, 2.0, 3.0, 4.0]}]

    def run(rows, out):
        step = SemanticDedup(against=str(index), update=True)
        return Pipeline(Rows(rows), step, ParquetWriter(str(tmp_path / out))).run(executor="inline")

    kept = run(rows, "first").kept
    assert sum(describe(str(index))["rows"].values()) == kept - 1, "the short one is compared with none"
    with pytest.raises(ParameterError, match="has embeddings of 8 values, and these rows have 4"):
        run(rows_of(vectors[:, :4]), "second")
    assert sum(describe(str(index))["rows"].values()) == kept - 1
    assert run(rows_of(vectors), "second").kept == 0


# -------------------------------------------------------------------------------------------------------------- mistakes


def test_columns_of_another_type_are_rejected():
    for rows, message in (
        ([{"embedding": "text"}], "is string, not a list of numbers"),
        ([{"embedding": ["a"]}], "is a list of string"),
    ):
        with pytest.raises(OperatorError, match=message):
            Pipeline(Rows(rows), SemanticDedup()).run(executor="inline")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"threshold": 0.0}, "above 0"),
        ({"threshold": 1.5}, "at most 1"),
        ({"eps": 1.0}, "`eps` must be"),
        ({"eps": 0.1, "threshold": 0.9}, "not both"),
        ({"num_clusters": 0}, "from 1 to"),
        ({"neighbours": -1}, "at least 0"),
        ({"update": True}, "needs an index"),
        ({"keep": "best"}, "needs a column"),
    ],
)
def test_invalid_parameters_are_rejected(parameters, message):
    with pytest.raises(ParameterError, match=message):
        SemanticDedup(**parameters).check()


def test_too_little_disk_space_is_reported_before_the_work_begins(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=100, used=90, free=10))
    with pytest.raises(BudgetError, match="of disk"):
        Pipeline(Rows(rows_of(planted(50))), SemanticDedup()).run(executor="inline")
