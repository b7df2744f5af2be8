"""Rows from memory: supported containers, partitions and identity."""

from __future__ import annotations

import datetime
import pickle

import pyarrow as pa
import pytest

from tamis import ParquetWriter, Pipeline
from tamis.errors import ParameterError, SourceError
from tamis.registry import build_operator
from tamis.report import load_manifest
from tamis.sources.memory import Rows

ROWS = [{"text": "a", "n": 1}, {"text": "b", "n": 2}, {"text": "c", "n": 3}]


def frames():
    import datasets
    import pandas
    import polars

    dataset = datasets.Dataset.from_list([ROWS[2], ROWS[0], ROWS[1]])
    return {
        "dicts": ROWS,
        "tuple": tuple(ROWS),
        "table": pa.Table.from_pylist(ROWS),
        "batch": pa.RecordBatch.from_pylist(ROWS),
        "pandas": pandas.DataFrame(ROWS, index=[5, 6, 7]),
        "polars": polars.DataFrame(ROWS),
        "lazy": polars.LazyFrame(ROWS),
        "datasets": dataset.select([1, 2, 0]),
    }


@pytest.mark.parametrize("kind", ["dicts", "tuple", "table", "batch", "pandas", "polars", "lazy", "datasets"])
def test_rows_can_be_any_kind_of_frame(kind, read_all):
    found = read_all(Rows(frames()[kind]))
    assert found.rows == ROWS
    assert found.addresses == ["rows:0", "rows:1", "rows:2"]


def test_partitions_follow_rows_or_bytes(read_all):
    found = read_all(Rows(ROWS, rows_per_partition=2))
    assert [partition.pieces[0].stop for partition in found.layout.partitions] == [2, 3]
    assert found.rows == ROWS
    assert len(read_all(Rows(ROWS), blocksize=20).layout.partitions) == 3
    assert read_all(Rows(ROWS), batch_bytes=1, columns=("n",)).batches == [1, 1, 1]
    assert read_all(Rows(ROWS, limit=2)).rows == ROWS[:2]


def test_the_identity_does_not_depend_on_chunks():
    whole = pa.Table.from_pylist(ROWS)
    chunked = pa.concat_tables([whole.slice(0, 1), whole.slice(1)])
    assert Rows(whole).identity() == Rows(chunked).identity() == Rows(ROWS).identity()
    assert Rows(ROWS).identity() != Rows(ROWS[:2]).identity()
    before = [partition.identity for partition in Rows(ROWS, rows_per_partition=1).layout(1).partitions]
    after = [p.identity for p in Rows([*ROWS[:2], {"text": "z", "n": 3}], rows_per_partition=1).layout(1).partitions]
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, True, False]


def test_rows_can_be_pickled_and_stored_in_recipes(read_all):
    made = build_operator("rows", {"rows": [{"text": "a"}]})
    assert read_all(pickle.loads(pickle.dumps(made))).rows == [{"text": "a"}]
    assert made.parameters() == {"rows": [{"text": "a"}]}
    assert build_operator("rows", made.parameters()).identity() == made.identity()


def test_missing_keys_are_null_and_an_empty_list_has_no_rows(read_all):
    assert read_all(Rows([{"a": 1}, {"b": "x"}])).rows == [{"a": 1, "b": None}, {"a": None, "b": "x"}]
    assert read_all(Rows([])).rows == []
    assert read_all(Rows(pa.table({"text": pa.array([], pa.string())}))).layout.schema.names == ["text"]


@pytest.mark.parametrize("value", ["text", 7, None, {"text": "a"}])
def test_values_without_rows_are_refused(value):
    with pytest.raises(ParameterError, match="must hold rows"):
        Rows(value)


def test_rows_that_are_not_dicts_or_have_mixed_types_are_refused():
    with pytest.raises(ParameterError, match="row 1 is not a dict"):
        Rows([{"a": 1}, "b"])
    with pytest.raises(SourceError, match="do not form a table"):
        Rows([{"a": 1}, {"a": "x"}])


def test_the_manifest_of_rows_of_any_type_holds_a_digest(tmp_path):
    rows = [
        {
            "data": b"\xff\x00",
            "when": datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC),
            "day": datetime.date(2024, 1, 2),
        },
        {"data": b"b", "when": None, "day": datetime.date(2024, 1, 3)},
    ]
    report = Pipeline(Rows(rows), ParquetWriter(tmp_path)).run(executor="inline")
    assert report.kept == 2
    recorded = load_manifest(tmp_path)["recipe"]["steps"][0]["rows"]["rows"]
    assert recorded == Rows(rows).recorded_parameters()["rows"] != Rows(rows[:1]).recorded_parameters()["rows"]
    assert Pipeline(Rows(rows), ParquetWriter(tmp_path)).run(executor="inline").state == "unchanged"
