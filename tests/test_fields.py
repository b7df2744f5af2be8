"""Ids and computed columns."""

import hashlib
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import JsonlReader, JsonlWriter, ParquetWriter, Pipeline, Rows
from tamis.batch import Batch, Origin
from tamis.errors import ColumnError, OperatorError, ParameterError, SinkError
from tamis.fields import (
    AddId,
    Arithmetic,
    Concat,
    Constant,
    Copy,
    DropFields,
    Hash,
    Length,
    Rename,
    SelectFields,
    numbers,
    texts,
)
from tamis.registry import build_operator
from tamis.sampling import Shuffle


def computed(step, **columns):
    (values,) = step.apply(Batch(pa.table(columns))).values()
    return values.to_pylist()


def collect(rows, *steps):
    return Pipeline(Rows(rows), *steps).collect(executor="inline").to_pylist()


class TestAddId:
    def test_ids_by_address_do_not_depend_on_partitions_or_text(self):
        rows = [{"text": f"t{n}"} for n in range(5)]
        tables = [
            Pipeline(Rows(changed, rows_per_partition=size), AddId())
            .collect(executor="inline")
            .column("id")
            .to_pylist()
            for size, changed in ((1, rows), (2, rows), (5, [{"text": "other"}] * 5))
        ]
        assert tables[0] == tables[1] == tables[2]
        assert len(set(tables[0])) == 5

    def test_an_id_by_address_is_the_hash_of_the_address(self):
        batch = Batch(pa.table({"text": ["a"]}), Origin.of("in/a.jsonl", np.array([17])))
        expected = "p-" + hashlib.blake2b(b"in/a.jsonl:17", digest_size=16).hexdigest()
        assert AddId(prefix="p-").apply(batch)["id"].to_pylist() == [expected]

    def test_an_id_by_content_is_the_hash_of_the_text(self):
        ids = [
            row["id"]
            for row in collect([{"text": "a"}, {"text": "a"}, {"text": None}, {"text": ""}], AddId(by="content"))
        ]
        assert ids[0] == ids[1] == hashlib.blake2b(b"a", digest_size=16).hexdigest()
        assert ids[2] == ids[3] != ids[0]

    def test_existing_ids_are_kept_unless_overwritten(self):
        rows = [{"text": "a", "id": 5}, {"text": "b", "id": None}]
        kept = collect(rows, AddId())
        assert kept[0]["id"] == "5"
        assert len(kept[1]["id"]) == 32
        assert len(collect(rows, AddId(overwrite=True))[0]["id"]) == 32

    def test_another_column_and_name(self):
        assert set(collect([{"body": "a"}], AddId(by="content", column="body", into="key"))[0]) == {"body", "key"}


class TestNames:
    def test_columns_can_swap_names(self):
        rows = [{"a": 1, "b": 2, "c": 3}]
        assert collect(rows, Rename({"a": "b", "b": "a"})) == [{"c": 3, "a": 2, "b": 1}]

    def test_only_some_are_kept_or_dropped(self):
        rows = [{"a": 1, "b": 2, "c": 3}]
        assert collect(rows, SelectFields(["c", "a"])) == [{"a": 1, "c": 3}]
        assert collect(rows, DropFields(["b", "x"])) == [{"a": 1, "c": 3}]

    def test_reading_a_removed_column_is_an_error_before_the_run(self):
        rows = [{"content": "a"}]
        with pytest.raises(ColumnError, match="reads column `content`"):
            collect(rows, Rename({"text": "content"}), Hash(column="content"))
        assert "hash" in collect(rows, Rename({"text": "content"}), Hash())[0]

    def test_only_remaining_columns_are_written(self, tmp_path):
        (tmp_path / "a.jsonl").write_text('{"content": "a", "n": 1}\n')
        for writer in (JsonlWriter(tmp_path / "out"), ParquetWriter(tmp_path / "out.parquet")):
            Pipeline(JsonlReader(tmp_path / "a.jsonl"), Rename({"text": "content"}), DropFields(["n"]), writer).run()
        assert (tmp_path / "out" / "part-000000.jsonl").read_text() == '{"text":"a"}\n'
        import pyarrow.parquet as pq

        (file,) = (tmp_path / "out.parquet").glob("*.parquet")
        assert pq.read_table(file).to_pylist() == [{"text": "a"}]

    def test_facts_are_computed_again_for_a_renamed_text(self):
        rows = [{"text": "a b", "other": "c"}]
        steps = [
            Length(unit="words", into="x"),
            Rename({"text": "other", "old": "text"}),
            Length(unit="words", into="y"),
        ]
        assert [(row["x"], row["y"]) for row in collect(rows, *steps)] == [(2, 1)]

    def test_an_existing_id_column_is_read_from_the_source(self, tmp_path):
        (tmp_path / "a.jsonl").write_text('{"id": "mine", "text": "a"}\n')
        Pipeline(JsonlReader(tmp_path / "a.jsonl"), AddId(), JsonlWriter(tmp_path / "out", fields=["id"])).run()
        assert (tmp_path / "out" / "part-000000.jsonl").read_text() == '{"id":"mine"}\n'


class TestComputed:
    @pytest.mark.parametrize("value", ["books", 3, 2.5, True])
    def test_constant(self, value):
        assert collect([{"a": 1}, {"a": 2}], Constant(value, into="c")) == [{"a": 1, "c": value}, {"a": 2, "c": value}]

    def test_copy_of_any_type(self):
        assert collect([{"n": [1, 2]}], Copy("n", into="m")) == [{"n": [1, 2], "m": [1, 2]}]

    @pytest.mark.parametrize("meta", [pa.array([{"page": {"url": "a"}}, {"page": None}, None]), pa.nulls(3)])
    def test_copy_of_a_field_is_null_where_the_struct_is(self, meta):
        copied = collect(pa.table({"meta": meta}), Copy("meta", field="page.url", into="url"))
        assert [row["url"] for row in copied] == [
            "a" if row["meta"] and row["meta"]["page"] else None for row in copied
        ]

    def test_a_field_that_a_struct_does_not_have_is_named_in_the_error(self):
        with pytest.raises(OperatorError, match="column `meta` has no field `ulr`"):
            collect([{"meta": {"url": "a"}}], Copy("meta", field="ulr", into="url"))

    @settings(deadline=None)
    @given(st.lists(st.none() | st.text("ab \n\u00e9\U0001f600", max_size=9), max_size=4))
    def test_length_against_python(self, rows):
        text = pa.array(rows, pa.string())
        units = {"characters": len, "bytes": lambda t: len(t.encode()), "words": lambda t: len(t.split())}
        units["lines"] = lambda t: t.count("\n") + 1 if t else 0
        for unit, measure in units.items():
            assert computed(Length(unit=unit), text=text) == [None if row is None else measure(row) for row in rows]

    @settings(deadline=None)
    @given(st.lists(st.tuples(*[st.none() | st.text("ab", max_size=2)] * 3), max_size=5))
    def test_concat_against_python(self, rows):
        columns = {name: pa.array([row[i] for row in rows], pa.string()) for i, name in enumerate("xyz")}
        expected = [
            "-".join(part for part in row if part is not None) if any(p is not None for p in row) else None
            for row in rows
        ]
        assert computed(Concat(["x", "y", "z"], separator="-"), **columns) == expected
        assert computed(Concat(["x"]), **columns) == [row[0] for row in rows]

    def test_concat_writes_numbers_and_needs_columns(self):
        assert computed(Concat(["id", "segment"], separator="-"), id=["a"], segment=[3]) == ["a-3"]
        with pytest.raises(ParameterError, match="nothing to join"):
            Concat([]).check()
        with pytest.raises(OperatorError, match="cannot be converted to text"):
            computed(Concat(["x"]), x=[{"a": 1}])

    def test_ids_of_segments(self):
        from tamis.text.documents import DocumentSplit

        steps = [DocumentSplit(" "), Concat(["id", "segment"], separator="-", into="id")]
        assert [row["id"] for row in collect([{"id": "d", "text": "a b"}], *steps)] == ["d-0", "d-1"]

    @settings(deadline=None)
    @given(st.lists(st.none() | st.text(max_size=9), max_size=4))
    def test_hash_against_hashlib(self, rows):
        expected = [None if row is None else hashlib.blake2b(row.encode(), digest_size=16).hexdigest() for row in rows]
        assert computed(Hash(), text=pa.array(rows, pa.string())) == expected


number = st.none() | st.floats(-1e6, 1e6)


class TestArithmetic:
    @settings(deadline=None)
    @given(st.lists(st.tuples(number, number), max_size=5))
    def test_against_python(self, rows):
        left, right = (pa.array([row[side] for row in rows], pa.float64()) for side in (0, 1))
        operations = {
            "add": lambda a, b: a + b,
            "subtract": lambda a, b: a - b,
            "multiply": lambda a, b: a * b,
            "divide": lambda a, b: a / b if b else None,
            "min": min,
            "max": max,
        }
        for name, operation in operations.items():
            expected = [None if a is None or b is None else operation(a, b) for a, b in rows]
            assert computed(Arithmetic("a", name, "b"), a=left, b=right) == pytest.approx(expected)

    def test_columns_numbers_and_texts(self):
        assert computed(Arithmetic("a", "multiply", 2.5), a=[2, None]) == [5.0, None]
        assert computed(Arithmetic("a", "add", 1), a=["1.5", " 2e3 ", "two", "", None]) == [
            2.5,
            2001.0,
            None,
            None,
            None,
        ]
        assert computed(Arithmetic(1, "subtract", "a"), a=[True, False]) == [0.0, 1.0]
        assert computed(Arithmetic("a", "power", 2), a=[3]) == [9.0]
        assert math.isinf(computed(Arithmetic("a", "power", 9), a=[1e300])[0])

    def test_only_the_listed_operations_exist(self):
        with pytest.raises(ParameterError, match="operation"):
            build_operator("arithmetic", {"left": "a", "operation": "__import__", "right": "b"})

    def test_a_column_without_numbers_is_an_error(self):
        with pytest.raises(OperatorError, match="does not hold numbers"):
            computed(Arithmetic("a", "add", 1), a=[[1]])


def test_numbers_and_texts_of_other_types():
    assert numbers(pa.array(["1", None]).dictionary_encode()).to_pylist() == [1.0, None]
    assert numbers(pa.nulls(1)).to_pylist() == [None]
    assert texts(pa.array([1, None])).to_pylist() == ["1", None]
    assert texts(pa.array(["a"]).dictionary_encode()).to_pylist() == ["a"]


@pytest.mark.parametrize("steps", [[], [lambda row: True], [Shuffle()]], ids=["alone", "function", "gather"])
def test_rows_whose_columns_are_all_dropped_are_rows(tmp_path, steps):
    (tmp_path / "in.jsonl").write_text('{}\n{"a": 1}\n{}\n{"a": 2}\n')
    source = JsonlReader(tmp_path / "in.jsonl", blocksize="5B")
    dropping = [source, DropFields(columns=["a"]), *steps]
    report = Pipeline(*dropping, JsonlWriter(tmp_path / "out")).run(executor="inline")
    assert (report.kept, report.balances) == (4, True)
    assert "".join(sorted(file.read_text() for file in (tmp_path / "out").glob("part-*"))) == "{}\n" * 4
    with pytest.raises(SinkError, match="no columns, which only JSONL supports"):
        Pipeline(*dropping, ParquetWriter(tmp_path / "table")).run(executor="inline")
    with pytest.raises(ParameterError, match="have no columns"):
        Rows([{}, {}])
