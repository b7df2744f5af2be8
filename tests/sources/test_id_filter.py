"""Rows by a list of ids of any size: kept or dropped, from any file, with little memory."""

import json
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tamis import IdFilter, JsonlReader, ParquetWriter, Pipeline, Rows
from tamis.errors import ColumnError, SourceError
from tamis.sources import id_lists
from tamis.sources.id_lists import build, digests_of_ids

ROWS = [{"id": f"doc-{n}", "n": n} for n in range(50)]
LISTED = {3, 7, 20, 49}


@pytest.fixture
def lists(tmp_path):
    ids = [f"doc-{n}" for n in sorted(LISTED)] + ["doc-700", "doc-7"]
    (tmp_path / "a.txt").write_text("\n".join(ids))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"id": each, "x": 1}) + "\n" for each in ids))
    pq.write_table(pa.table({"key": ids}), tmp_path / "a.parquet")
    (tmp_path / "n.csv").write_text("id\n" + "\n".join(map(str, sorted(LISTED))))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("a.txt", {}), ("a.jsonl", {}), ("a.parquet", {"id_column": "key"}), ("n.csv", {"column": "n"})],
)
def test_rows_in_a_list_are_dropped_or_kept(lists, name, parameters):
    step = IdFilter(lists / name, **parameters)
    report = Pipeline(Rows(ROWS), step).run(executor="inline")
    assert (report.kept, report.dropped) == (46, {"listed > 0": 4})
    kept = Pipeline(Rows(ROWS), step.changed(keep=True)).collect(executor="inline")
    assert set(kept["n"].to_pylist()) == LISTED
    assert Pipeline(Rows(ROWS), step.changed(invert=True)).run(executor="inline").dropped == {"listed <= 0": 46}


def test_rows_without_an_id_are_in_no_list(lists):
    rows = Rows([{"id": None}, {"id": ""}, {"id": "doc-7"}])
    assert Pipeline(rows, IdFilter(str(lists / "a.txt"))).run(executor="inline").kept == 2


def test_workers_share_a_list_and_leave_nothing(lists, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    out = tmp_path / "out"
    report = Pipeline(JsonlReader(str(source), blocksize=200), IdFilter(str(lists / "a.txt")), ParquetWriter(out)).run(
        workers=2
    )
    assert report.kept == 46
    assert not list(out.rglob("ids*"))


def test_a_list_that_changes_is_another_step(lists):
    step = IdFilter(str(lists / "a.txt"))
    before = step.identity()
    assert step.identity() == before
    (lists / "a.txt").write_text("doc-1\n")
    assert step.identity() != before


def test_mistakes_are_explained(lists, tmp_path):
    with pytest.raises(SourceError, match="does not exist"):
        IdFilter(str(tmp_path / "none.txt")).check()
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(SourceError, match=r"cannot be read: .*binary.txt:0: not UTF-8"):
        Pipeline(Rows(ROWS), IdFilter(str(tmp_path / "binary.txt"))).run(executor="inline")
    with pytest.raises(ColumnError, match="has no column `key`"):
        Pipeline(Rows(ROWS), IdFilter(str(lists / "a.jsonl"), id_column="key")).run(executor="inline")


def test_a_list_is_sorted_in_buckets_with_bounded_memory(tmp_path, monkeypatch):
    """Half a million ids, one of them very often, in many small buckets: the answers are those of a set."""
    monkeypatch.setattr(id_lists, "_BUCKET_BYTES", 2**18)
    numbers = np.random.default_rng(1).integers(0, 10**9, 300_000)
    every = np.concatenate([numbers, np.full(200_000, 17)])
    np.savetxt(tmp_path / "ids.txt", every, fmt="%d")
    size = (tmp_path / "ids.txt").stat().st_size
    tracemalloc.start()
    try:
        listed = build(str(tmp_path / "ids.txt"), None, tmp_path / "work", size)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 * 2**20
    assert listed.size == len(set(every.tolist()))
    asked = np.concatenate([numbers[:2000], [17, 18], np.arange(10**9, 10**9 + 2000)])
    assert listed.contains(pa.array(asked.astype(str))).tolist() == np.isin(asked, every).tolist()
    assert listed.contains(pa.array([], pa.string())).tolist() == []
    listed.close()
    assert sorted(file.name for file in (tmp_path / "work").iterdir()) == ["ids.sorted"]


def test_numbers_are_compared_as_text():
    numbers, _ = digests_of_ids(pa.array([7, 8]))
    texts, _ = digests_of_ids(pa.array(["7", "8"]))
    assert (numbers == texts).all()
