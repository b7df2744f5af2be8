"""What each kind of step makes of a batch: addresses of children, types of columns, rows that fail alone."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tamis import (
    ArrowWriter,
    JsonlWriter,
    Map,
    ParquetReader,
    ParquetWriter,
    Pipeline,
    Rows,
    Sink,
    Source,
    operator,
    step,
)
from tamis.batch import Batch
from tamis.dedup.exact import ExactDedup
from tamis.errors import ColumnError, OperatorError
from tamis.executors.steps import apply_step
from tamis.fields import AddId
from tamis.functions import as_operator
from tamis.ledger import Ledger
from tamis.operators import Expand
from tamis.recipes.load import load_recipe
from tamis.sampling import RowShare, Sample
from tamis.store import Store, checksum_of
from tamis.text.clean import Slice


@operator(reads="text", writes="text")
class SpelledForTests(Expand):
    """One row per letter."""

    def expand(self, batch):
        texts = batch["text"].to_pylist()
        parents = [row for row, text in enumerate(texts) for _ in text]
        return pa.table({"text": pa.array([letter for text in texts for letter in text], pa.string())}), np.array(
            parents
        )


def split(row):
    return [{"text": letter} for letter in row["text"]]


def failures(output):
    return [
        json.loads(line) for file in sorted(output.glob(".tamis/failed/*")) for line in file.read_text().splitlines()
    ]


class TestAddressesOfChildren:
    @pytest.mark.parametrize("expand", [SpelledForTests(), split], ids=["operator", "function"])
    def test_children_append_their_number(self, expand):
        made = apply_step(as_operator(expand), Batch.from_rows([{"text": "ab"}, {"text": ""}, {"text": "c"}])).batch
        assert made.origin.addresses() == ["rows:0/0", "rows:0/1", "rows:2/0"]

    def test_children_of_children_append_another(self):
        batch = Batch.from_rows([{"text": "ab"}, {"text": "c"}])
        made = apply_step(as_operator(lambda row: [{"text": row["text"] * 2}]), batch).batch
        again = apply_step(SpelledForTests(), made).batch
        assert again.origin.addresses() == [
            "rows:0/0/0",
            "rows:0/0/1",
            "rows:0/0/2",
            "rows:0/0/3",
            "rows:1/0/0",
            "rows:1/0/1",
        ]

    def test_rows_for_which_a_function_returns_no_list_keep_their_address(self):
        rows = Batch.from_rows([{"text": "ab"}, {"text": "c"}, {"text": "d"}])
        made = apply_step(as_operator(lambda row: split(row) if row["text"] == "ab" else {"n": 1}), rows).batch
        assert made.origin.addresses() == ["rows:0/0", "rows:0/1", "rows:1", "rows:2"]
        joined = Batch.concat([made, rows])
        assert joined.origin.addresses()[1:] == ["rows:0/1", "rows:1", "rows:2", "rows:0", "rows:1", "rows:2"]

    def test_origins_out_of_order_are_refused(self):
        @operator(reads="text")
        class BackwardsForTests(Expand):
            def expand(self, batch):
                return pa.table({"text": ["a", "b"]}), np.array([1, 0])

        with pytest.raises(OperatorError, match="ascending"):
            apply_step(BackwardsForTests(), Batch.from_rows([{"text": "ab"}, {"text": "c"}]))

    def test_a_sample_takes_children_one_by_one(self):
        rows = Rows([{"text": "abcdefghijklmnopqrstuvwxyz" * 4, "doc": doc} for doc in range(10)])
        found = Pipeline(rows, SpelledForTests(), Sample(rows=100)).collect(executor="inline")
        counts = np.bincount(found["doc"].to_numpy(), minlength=10)
        assert counts.sum() == 100
        assert counts.min() > 0  # whole parents would be 104 of one
        assert counts.max() < 30

    def test_a_share_takes_children_one_by_one(self):
        rows = Rows([{"text": "abcdefghijklmnopqrstuvwxyz" * 4, "doc": doc} for doc in range(4)])
        found = Pipeline(rows, split, RowShare(share=0.5)).collect(executor="inline")
        assert all(20 < count < 80 for count in np.bincount(found["doc"].to_numpy(), minlength=4))

    def test_addresses_survive_the_way_over_disk_and_name_rejects_failures_and_duplicates(self, tmp_path):
        def refuse(row):
            if row["text"] == "d":
                raise ValueError("no")
            return row["text"] != "c"

        steps = [SpelledForTests(), lambda row: [row], ExactDedup(), refuse, AddId(overwrite=True)]
        job = Pipeline(Rows([{"text": "aba"}, {"text": "bcd"}]), *steps, JsonlWriter(tmp_path))
        report = job.run(executor="inline", on_error="isolate", rejects=True)
        assert (report.kept, report.failed) == (2, 1)
        rejects = pa.concat_tables([pq.read_table(file) for file in sorted(tmp_path.glob(".tamis/rejects/*"))])
        addresses = dict(zip(rejects["_address"].to_pylist(), rejects["text"].to_pylist(), strict=True))
        assert addresses == {"rows:0/2/0": "a", "rows:1/0/0": "b", "rows:1/1/0": "c"}
        assert [failure["address"] for failure in failures(tmp_path)] == ["rows:1/2/0"]
        groups = pa.concat_tables([pq.read_table(file) for file in sorted(tmp_path.glob(".tamis/groups/*"))])
        pairs = zip(groups["address"].to_pylist(), groups["kept_address"].to_pylist(), strict=True)
        assert sorted(pairs) == [("rows:0/2/0", "rows:0/0/0"), ("rows:1/0/0", "rows:0/1/0")]
        written = [json.loads(line) for file in tmp_path.glob("part-*") for line in file.read_text().splitlines()]
        assert len({row["id"] for row in written}) == 2

    def test_ids_by_address_differ_among_children(self):
        found = Pipeline(Rows([{"text": "abc"}]), split, AddId()).collect(executor="inline")
        assert len(set(found["id"].to_pylist())) == 3


MIXED = [{"n": n} for n in range(20)]


def mixed(row):
    return {"made": "text" if row["n"] % 7 == 3 else row["n"]}


class TestTypes:
    @pytest.mark.parametrize("rows_per_batch", [1, 3, 100])
    def test_values_that_do_not_fit_their_column_fail_alone(self, tmp_path, rows_per_batch):
        table = pa.table({"n": pa.array(range(20), pa.int64())})
        pq.write_table(table, tmp_path / "in.parquet", row_group_size=rows_per_batch)
        job = Pipeline(ParquetReader(tmp_path / "in.parquet"), mixed, ParquetWriter(tmp_path / "out"))
        report = job.run(executor="inline", on_error="isolate")
        assert (report.kept, report.failed) == (17, 3)
        found = failures(tmp_path / "out")
        assert [row["address"].rpartition(":")[2] for row in found] == ["3", "10", "17"]
        assert found[0]["error"].startswith("ColumnError: `mixed` returned string for column `made`, which holds int64")
        assert pq.read_table(tmp_path / "out")["made"].type == pa.int64()

    def test_the_error_names_the_column_when_errors_are_raised(self):
        with pytest.raises(ColumnError, match="`mixed` returned string for column `made`, which holds int64"):
            Pipeline(Rows(MIXED), mixed).run(executor="inline")

    @pytest.mark.parametrize("kind", ["map", "batch function"])
    def test_lists_of_mixed_values_from_batches_fail_row_by_row(self, kind):
        def values(batch: Batch):
            return {"made": [mixed({"n": n})["made"] for n in batch["n"].to_pylist()]}

        @operator(reads="n", writes="made")
        class MixedForTests(Map):
            def apply(self, batch):
                return values(batch)

        report = Pipeline(Rows(MIXED), MixedForTests() if kind == "map" else values).run(
            executor="inline", on_error="isolate"
        )
        assert (report.kept, report.failed) == (17, 3)

    def test_whole_numbers_and_fractions_are_one_type(self):
        found = Pipeline(Rows(MIXED), lambda row: {"made": row["n"] / 2 if row["n"] % 2 else row["n"]}).collect(
            executor="inline"
        )
        assert found["made"].type == pa.float64()

    def test_a_column_keeps_its_type_where_it_can(self):
        table = pa.table(
            {
                "i": pa.array([1, 2], pa.int8()),
                "f": pa.array([1, 2], pa.float32()),
                "s": pa.array(["a", "b"], pa.large_string()),
            }
        )
        given = Pipeline(Rows(table), lambda row: {"i": row["i"] + 1, "f": 3, "s": "c"}).collect(executor="inline")
        assert [str(kind) for kind in given.schema.types] == ["int8", "float", "string"]
        whole = Pipeline(Rows(table), lambda row: {"i": row["i"] * 1.0}).collect(executor="inline")
        assert whole["i"].type == pa.float64()

    def test_a_number_too_large_fails_its_row(self):
        job = Pipeline(Rows(MIXED), lambda row: {"n": 2**70 if row["n"] == 5 else row["n"]})
        assert job.run(executor="inline", on_error="isolate").failed == 1

    def test_nested_values_changed_in_place_are_written(self):
        def add(row):
            row["tags"].append("x")
            return row

        found = Pipeline(Rows([{"tags": ["a"]}, {"tags": []}]), add).collect(executor="inline")
        assert found["tags"].to_pylist() == [["a", "x"], ["x"]]

    def test_columns_that_a_function_leaves_alone_are_not_rebuilt(self):
        batch = Batch(pa.table({f"c{n}": pa.array([n, None], pa.int16()) for n in range(5)}))
        made = apply_step(as_operator(lambda row: row | {"c1": 7}), batch).batch
        assert made.table.schema.types == [pa.int16()] * 5
        assert made.table.column("c1").to_pylist() == [7, 7]
        assert (
            made.table.column("c0").chunk(0).buffers()[1].address
            == batch.table.column("c0").chunk(0).buffers()[1].address
        )


@pytest.fixture
def invalid():
    """A table of four rows, of which the third is not valid UTF-8."""
    lines = [b"the first row of a text.", b"the second row of a text.", b"\xff\xfe broken", b"the last row of a text."]
    offsets, values = pa.array(lines).buffers()[1:]
    return pa.table({"text": pa.Array.from_buffers(pa.string(), 4, [None, offsets, values]), "n": [1, 2, 3, 4]})


class TestInvalidText:
    def test_a_row_function_fails_that_row_alone(self, invalid, tmp_path):
        job = Pipeline(Rows(invalid), lambda row: {"size": len(row["text"])}, JsonlWriter(tmp_path))
        report = job.run(executor="inline", on_error="isolate")
        assert (report.kept, report.failed) == (3, 1)
        (failure,) = failures(tmp_path)
        assert failure["row"] == {"text": "\\xff\\xfe broken", "n": 3}
        assert "column `text` holds text that is not valid UTF-8" in failure["error"]

    def test_an_operator_that_cannot_decode_it_fails_that_row_alone(self, invalid, tmp_path):
        job = Pipeline(Rows(invalid), Slice(right=5), JsonlWriter(tmp_path))
        report = job.run(executor="inline", on_error="isolate")
        assert (report.kept, report.failed) == (3, 1)
        assert failures(tmp_path)[0]["row"]["text"] == "\\xff\\xfe broken"

    def test_in_a_parquet_file_it_fails_alone_in_functions_and_in_c4(self, invalid, tmp_path):
        pq.write_table(invalid, tmp_path / "in.parquet")
        steps = [one for one in load_recipe("c4").build().steps if not isinstance(one, (Source, Sink))]
        for chosen in ([lambda row: {"size": len(row["text"])}], steps):
            job = Pipeline(ParquetReader(tmp_path / "in.parquet"), *chosen)
            report = job.run(executor="inline", on_error="isolate")
            assert (report.read, report.failed, report.balances) == (4, 1, True)


class TestEmptyResults:
    def test_collect_keeps_the_columns(self):
        steps = [lambda row: {"size": len(row["text"])}, lambda row: False]
        found = Pipeline(Rows([{"text": "a", "n": 1}]), *steps).collect(executor="inline")
        assert found.schema == pa.schema({"text": pa.string(), "n": pa.int64(), "size": pa.int64()})
        assert found.num_rows == 0

    def test_columns_of_maps_after_the_drop_are_known(self):
        steps = [lambda row: False, AddId(), SpelledForTests()]
        found = Pipeline(Rows([{"text": "a", "n": 1}]), *steps).collect(executor="inline")
        assert found.schema == pa.schema({"text": pa.string(), "n": pa.int64(), "id": pa.string()})

    def test_rows_without_rows_keep_their_columns(self):
        table = pa.table({"a": pa.array([], pa.int32()), "b": pa.array([], pa.list_(pa.string()))})
        assert Pipeline(Rows(table)).collect(executor="inline").schema == table.schema

    def test_parquet_can_be_read_with_its_columns(self, tmp_path):
        def job(limit):
            return Pipeline(
                Rows([{"text": "a", "n": n} for n in range(4)], rows_per_partition=1),
                step(lambda row: row["n"] >= limit, name="filter"),
                ParquetWriter(tmp_path, fields=["n", "text"]),
            )

        assert job(9).run(executor="inline").kept == 0
        assert [file.name for file in tmp_path.glob("part-*")] == ["part-000000.parquet"]
        assert pq.read_table(tmp_path).schema == pa.schema({"n": pa.int64(), "text": pa.string()})
        assert list(pd.read_parquet(tmp_path).columns) == ["n", "text"]
        assert job(9).run(executor="inline").state == "unchanged"
        assert job(3).run(executor="inline").kept == 1
        assert [file.name for file in tmp_path.glob("part-*")] == ["part-000003.parquet"]

    def test_a_gather_that_drops_all_rows(self, tmp_path):
        Pipeline(Rows([{"text": "a"}]), Sample(rows=0), ArrowWriter(tmp_path)).run(executor="inline")
        (file,) = tmp_path.glob("part-*")
        assert pa.ipc.open_file(file).read_all().schema == pa.schema({"text": pa.string()})


class NullShards:
    def write(self, table):
        pass

    def close(self):
        return []


@operator()
class NullWriterForTests(Sink):
    """Writes nothing."""

    path: str

    @property
    def folder(self):
        return self.path

    def open_shard(self, folder, stem, schema):
        return NullShards()


def test_a_pipeline_with_a_null_writer_can_be_profiled(tmp_path):
    job = Pipeline(Rows([{"text": "a"}] * 10), lambda row: True, NullWriterForTests(path=str(tmp_path / "out")))
    assert job.profile().rows == 10


def test_shards_rewritten_with_a_wider_type_keep_a_checksum(tmp_path):
    rows = Rows([{"n": 1}, {"n": 2}], rows_per_partition=1)
    Pipeline(rows, lambda row: {"made": 1 if row["n"] == 1 else 1.5}, ParquetWriter(tmp_path)).run(executor="inline")
    store = Store(str(tmp_path))
    with Ledger(store) as ledger:
        shards = [shard for commit in ledger.commits.values() for shard in commit.shards]
    assert {shard.name: shard.checksum for shard in shards} == {
        file.name: checksum_of(file) for file in tmp_path.glob("part-*")
    }
