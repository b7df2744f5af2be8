"""Splitting and joining, whatever the batches and partitions."""

import itertools

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import Pipeline, Rows
from tamis.batch import Batch
from tamis.errors import ParameterError
from tamis.operators import Filter, at_least, operator
from tamis.text.documents import DocumentJoin, DocumentSplit


@operator(reads="text", writes="length")
class LongEnoughForTests(Filter):
    """Drop empty segments."""

    def score(self, batch):
        return {"length": pa.compute.utf8_length(batch["text"])}

    def rules(self):
        return [at_least("length", 1)]


def split(texts, **options):
    table, parents = DocumentSplit(**options).expand(Batch(pa.table({"text": pa.array(texts, pa.string())})))
    return list(
        zip(parents.tolist(), table.column("text").to_pylist(), table.column("segment").to_pylist(), strict=True)
    )


def join_rows(rows, separator="\n\n", max_chars=None):
    """What `DocumentJoin` promises, row by row: (key, text) of each document."""
    documents = []
    for key, text in rows:
        last = documents[-1] if documents else None
        same = last is not None and key is not None and last[0] == key
        if same and max_chars is not None and text is not None and last[1] is not None:
            same = len(last[1]) + len(separator) + len(text) <= max_chars
        if not same:
            documents.append([key, text])
        elif text is not None:
            last[1] = text if last[1] is None else last[1] + separator + text
    return [tuple(document) for document in documents]


class FactsInMemory:
    """Observations as the engine hands them over, without the files."""

    def __init__(self, tables):
        self.tables = tables

    def __iter__(self):
        return iter(self.tables)


def resolve(step, rows, cuts):
    """Return (key, text) of the documents kept, for rows cut into partitions at `cuts`."""
    bounds = [0, *sorted(cuts), len(rows)]
    parts = [rows[a:b] for a, b in itertools.pairwise(bounds)]
    tables = []
    for part in parts:
        batch = Batch(
            pa.table({name: pa.array([row[i] for row in part], pa.string()) for i, name in ((0, "id"), (1, "text"))})
        )
        tables.append(pa.table(step.observe(batch)) if part else pa.table({}))
    fates = {}

    def decide(partition, drop, reason, payload=None):
        assert partition not in fates
        assert len(drop) == len(payload) == len(parts[partition])
        fates[partition] = [
            (key, text)
            for key, gone, text in zip([row[0] for row in parts[partition]], drop, payload.to_pylist(), strict=True)
            if not gone
        ]

    step.resolve(FactsInMemory(tables), decide, None)
    assert sorted(fates) == list(range(len(parts)))
    return [document for number in sorted(fates) for document in fates[number]]


class TestSplit:
    def test_by_hand(self):
        assert split(["a\n\nb", "", None, "\n\n"]) == [
            (0, "a", 0),
            (0, "b", 1),
            (1, "", 0),
            (2, None, 0),
            (3, "", 0),
            (3, "", 1),
        ]

    @settings(deadline=None)
    @given(st.lists(st.none() | st.text("ab|\n\u00e9", max_size=8), max_size=5), st.sampled_from(["|", "\n\n", "a|"]))
    def test_against_python(self, texts, separator):
        expected = [
            (number, segment, index)
            for number, text in enumerate(texts)
            for index, segment in enumerate([None] if text is None else text.split(separator))
        ]
        assert split(texts, separator=separator) == expected

    def test_other_columns_are_repeated_and_rows_counted(self):
        report = Pipeline(Rows([{"id": 1, "body": "a b"}, {"id": 2, "body": "c"}]), DocumentSplit(" ", column="body"))
        assert report.collect(executor="inline").to_pylist() == [
            {"id": 1, "body": "a", "segment": 0},
            {"id": 1, "body": "b", "segment": 1},
            {"id": 2, "body": "c", "segment": 0},
        ]

    def test_large_strings_and_five_megabytes(self):
        batch = Batch(pa.table({"text": pa.array(["\n\n" * 500_000, "a" * 5_000_000], pa.large_string())}))
        table, parents = DocumentSplit().expand(batch)
        assert (table.num_rows, len(parents)) == (500_002, 500_002)


rows = st.lists(st.tuples(st.none() | st.sampled_from("xy"), st.none() | st.text("ab", max_size=3)), max_size=12)


class TestJoin:
    @settings(max_examples=150, deadline=None)
    @given(rows, st.data(), st.none() | st.integers(1, 9))
    def test_against_python_for_any_partitions(self, rows, data, max_chars):
        cuts = data.draw(st.lists(st.integers(0, len(rows)), max_size=4))
        step = DocumentJoin(separator="--", max_chars=max_chars)
        assert resolve(step, rows, cuts) == join_rows(rows, "--", max_chars)

    @pytest.mark.parametrize("rows_per_partition", [1, 2, 3, 100])
    def test_the_same_for_any_partition_size(self, rows_per_partition):
        rows = [{"id": key, "n": n, "text": f"t{n}"} for n, key in enumerate("aabbbbac")]
        pipeline = Pipeline(Rows(rows, rows_per_partition=rows_per_partition), DocumentJoin(separator=" "))
        assert pipeline.collect(executor="inline").to_pylist() == [
            {"id": "a", "n": 0, "text": "t0 t1"},
            {"id": "b", "n": 2, "text": "t2 t3 t4 t5"},
            {"id": "a", "n": 6, "text": "t6"},
            {"id": "c", "n": 7, "text": "t7"},
        ]

    def test_each_row_that_goes_has_a_reason(self):
        report = Pipeline(Rows([{"id": 1, "text": "a"}] * 3), DocumentJoin()).run(executor="inline")
        assert (report.kept, report.dropped) == (1, {"joined to a row before": 2})
        assert report.balances

    def test_what_is_split_can_be_joined(self):
        texts = ["a\n\nb\n\n\n\nc", "", "d", "\n\n"]
        rows = [{"id": number, "text": text} for number, text in enumerate(texts)]
        table = Pipeline(Rows(rows, rows_per_partition=2), DocumentSplit(), DocumentJoin()).collect(executor="local")
        assert table.column("text").to_pylist() == texts
        assert table.schema.field("text").type == pa.string()

    def test_segments_dropped_in_between_are_left_out(self):
        rows = [{"id": 7, "text": "a\n\n\n\nb"}]
        steps = [DocumentSplit(), LongEnoughForTests(), DocumentJoin()]
        assert Pipeline(Rows(rows), *steps).collect(executor="inline")["text"].to_pylist() == ["a\n\nb"]

    def test_another_column_and_key(self):
        rows = [{"doc": 1.5, "body": "a"}, {"doc": 1.5, "body": "b"}]
        step = DocumentJoin(" ", key="doc", column="body")
        assert Pipeline(Rows(rows), step).collect(executor="inline").to_pylist() == [{"doc": 1.5, "body": "a b"}]

    @pytest.mark.parametrize(
        ("options", "message"),
        [({"separator": ""}, "separator"), ({"max_chars": 0}, "max_chars"), ({"key": "text"}, "both `text`")],
    )
    def test_nonsense_is_refused(self, options, message):
        with pytest.raises(ParameterError, match=message):
            DocumentJoin(**options).check()
