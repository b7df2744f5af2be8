"""The sinks: which files they write, under which names, and what they refuse."""

import bz2
import datetime
import decimal
import gzip
import json
import lzma
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from tamis.errors import ColumnError, ParameterError, SinkError
from tamis.registry import build_operator
from tamis.sinks import delimited, writers
from tamis.sinks.tables import ArrowWriter, CsvWriter, JsonlWriter, ParquetWriter, decode_schema, encode_schema

SINKS = [JsonlWriter, ParquetWriter, CsvWriter, ArrowWriter]
TABLE = pa.table({"text": ["one", None, "drei ☃"], "n": [1, 2, None]})


def write(sink, folder, *tables, schema=None, stem="part"):
    sink.check()
    writer = sink.open_shard(folder, stem, schema if schema is not None else tables[0].schema)
    for table in tables:
        writer.write(table)
    return writer.close()


def read(path):
    if path.suffix == ".parquet":
        return pq.read_table(path)
    if path.suffix == ".arrow":
        return pa.ipc.open_file(path.read_bytes()).read_all()
    if path.suffix == ".csv":
        return pyarrow.csv.read_csv(
            path, convert_options=pyarrow.csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
        )
    return pa.Table.from_pylist([json.loads(line) for line in path.read_text().splitlines()])


@pytest.fixture
def small_groups(monkeypatch):
    monkeypatch.setattr(writers, "GROUP_BYTES", 64)


@pytest.mark.parametrize("kind", SINKS)
def test_one_file_holds_all_rows_in_order(kind, tmp_path):
    (shard,) = write(kind(tmp_path), tmp_path, TABLE, TABLE.slice(1, 1))
    path = tmp_path / f"part{kind.suffix}"
    assert (shard.name, shard.rows, shard.size) == (path.name, 4, path.stat().st_size)
    assert read(path).to_pylist() == TABLE.to_pylist() + TABLE.slice(1, 1).to_pylist()
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("kind", SINKS)
def test_without_rows_there_is_no_file(kind, tmp_path):
    assert write(kind(tmp_path), tmp_path, TABLE.slice(0, 0)) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", SINKS)
@pytest.mark.parametrize("target", [None, "100B"])
def test_an_aborted_writer_leaves_nothing(kind, target, tmp_path, small_groups):
    writer = kind(tmp_path, target_shard_size=target).open_shard(tmp_path, "part", TABLE.schema)
    for _ in range(5):
        writer.write(TABLE)
    assert list(tmp_path.iterdir())
    writer.abort()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", SINKS)
def test_fields_choose_and_order_the_columns_and_columns_rename_them(kind, tmp_path):
    table = TABLE.append_column("extra", pa.array([0, 0, 0]))
    sink = kind(tmp_path, fields=["n", "text"], columns={"text": "content"})
    (shard,) = write(sink, tmp_path, table)
    assert read(tmp_path / shard.name).column_names == ["n", "content"]
    assert sink.reads() == ("n", "text")


@pytest.mark.parametrize("kind", SINKS)
def test_a_field_that_is_expected_but_missing_here_is_null(kind, tmp_path):
    schema = pa.schema({"text": pa.string(), "n": pa.int64(), "late": pa.int64()})
    (shard,) = write(kind(tmp_path, fields=["late", "n"]), tmp_path, TABLE, schema=schema)
    assert read(tmp_path / shard.name).column("late").null_count == 3


@pytest.mark.parametrize("kind", SINKS)
@pytest.mark.parametrize("wrong", [{"fields": ["texd"]}, {"columns": {"texd": "content"}}])
def test_a_column_that_is_not_there_is_named_with_those_that_are(kind, wrong, tmp_path):
    writer = kind(tmp_path, **wrong).open_shard(tmp_path, "part", TABLE.schema)
    with pytest.raises(ColumnError, match=r"`texd`[^$]*columns here: text, n[^$]*did you mean `text`"):
        writer.write(TABLE)


@pytest.mark.parametrize("kind", SINKS)
def test_two_columns_cannot_share_a_name(kind, tmp_path):
    writer = kind(tmp_path, columns={"n": "text"}).open_shard(tmp_path, "part", TABLE.schema)
    with pytest.raises(SinkError, match="two columns would be written as `text`"):
        writer.write(TABLE)


@pytest.mark.parametrize("kind", SINKS)
@pytest.mark.parametrize("stem", ["../up", "a/b", "a\\b", "..", ""])
def test_a_name_cannot_climb_out_of_the_folder(kind, stem, tmp_path):
    with pytest.raises(SinkError, match="file names cannot start with"):
        kind(tmp_path).open_shard(tmp_path, stem, TABLE.schema)


@pytest.mark.parametrize("kind", SINKS)
def test_the_same_rows_give_the_same_bytes(kind, tmp_path):
    for stem in ("a", "b"):
        write(kind(tmp_path), tmp_path, TABLE, stem=stem)
    assert (tmp_path / f"a{kind.suffix}").read_bytes() == (tmp_path / f"b{kind.suffix}").read_bytes()


@pytest.mark.parametrize("kind", SINKS)
def test_a_target_size_divides_the_rows_over_numbered_files(kind, tmp_path):
    rows = [{"id": i, "text": f"{(i * 2654435761) % 2**32:x}" * 20} for i in range(3000)]
    table = pa.Table.from_pylist(rows)
    shards = write(
        kind(tmp_path, target_shard_size="50kB", compression=None), tmp_path, table.slice(0, 5), table.slice(5)
    )
    assert [shard.name for shard in shards] == [f"part-{i:04d}{kind.suffix}" for i in range(len(shards))]
    assert len(shards) > 4
    assert all(30_000 < shard.size < 80_000 for shard in shards[:-1])
    assert [row for shard in shards for row in read(tmp_path / shard.name).to_pylist()] == rows
    assert [read(tmp_path / shard.name).num_rows for shard in shards] == [shard.rows for shard in shards]


OPENERS = {"gz": gzip.open, "bz2": bz2.open, "xz": lzma.open, "zst": pa.input_stream, "lz4": pa.input_stream}


@pytest.mark.parametrize("kind", [JsonlWriter, CsvWriter])
@pytest.mark.parametrize("compression", OPENERS)
def test_compressed_lines_are_the_same_lines_and_the_same_bytes_each_time(kind, compression, tmp_path):
    write(kind(tmp_path), tmp_path, TABLE, TABLE)
    for stem in ("a", "b"):
        (shard,) = write(kind(tmp_path, compression=compression), tmp_path, TABLE, TABLE, stem=stem)
    with OPENERS[compression](str(tmp_path / shard.name)) as file:
        assert file.read() == (tmp_path / f"part{kind.suffix}").read_bytes()
    assert shard.name == f"b{kind.suffix}.{compression}"
    assert (tmp_path / shard.name).read_bytes() == (tmp_path / shard.name.replace("b", "a", 1)).read_bytes()


@pytest.mark.parametrize("compression", OPENERS)
def test_compressed_lines_can_be_divided(compression, tmp_path):
    table = pa.table({"text": [f"{(i * 2654435761) % 2**32:x}" * 4 for i in range(9000)]})
    shards = write(JsonlWriter(tmp_path, compression=compression, target_shard_size="20kB"), tmp_path, table)
    lines = []
    for shard in shards:
        with OPENERS[compression](str(tmp_path / shard.name)) as file:
            lines += [json.loads(line)["text"] for line in file.read().splitlines()]
    assert lines == table.column("text").to_pylist()
    assert sum(shard.rows for shard in shards) == 9000


@pytest.mark.parametrize("compression", ["zstd", "snappy", "gzip", "brotli", "lz4", "none", None])
def test_parquet_is_compressed_as_requested(compression, tmp_path):
    (shard,) = write(ParquetWriter(tmp_path, compression=compression), tmp_path, TABLE)
    column = pq.ParquetFile(tmp_path / shard.name).metadata.row_group(0).column(0)
    assert column.compression.lower() == {"none": "uncompressed", None: "uncompressed"}.get(compression, compression)
    assert column.is_stats_set


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_arrow_is_compressed_as_requested(compression, tmp_path):
    table = pa.table({"text": ["abc" * 1000] * 10})
    (shard,) = write(ArrowWriter(tmp_path, compression=compression), tmp_path, table)
    assert shard.size < 5000
    assert read(tmp_path / shard.name) == table


def test_small_tables_share_a_row_group_and_large_ones_are_divided(tmp_path):
    mega = pa.table({"text": ["x" * 1_000_000] * 80})
    (shard,) = write(ParquetWriter(tmp_path), tmp_path, *[TABLE.select(["text"])] * 20, mega)
    meta = pq.ParquetFile(tmp_path / shard.name).metadata
    sizes = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]
    assert sum(sizes) == 140
    assert len(sizes) == 3
    assert max(sizes[1:]) <= 34


def test_nulls_over_hidden_values_are_written(tmp_path):
    hidden = pa.ListArray.from_arrays(
        pa.array([0, 2, 3], pa.int32()), pa.array([1, 2, 3]), mask=pa.array([True, False])
    )
    (shard,) = write(ParquetWriter(tmp_path), tmp_path, pa.table({"a": hidden}))
    assert read(tmp_path / shard.name).to_pylist() == [{"a": None}, {"a": [3]}]


@pytest.mark.parametrize("kind", [ParquetWriter, ArrowWriter])
def test_every_type_is_written_by_value(kind, tmp_path):
    table = pa.table(
        {
            "dictionary": pa.array(["a", None]).dictionary_encode(),
            "large": pa.array([["a"], None], pa.large_list(pa.large_string())),
            "view": pa.array(["a", None], pa.string_view()),
            "binary": pa.array([b"\x00\xff", None]),
            "decimal": pa.array([decimal.Decimal("1.10"), None]),
            "moment": pa.array([datetime.datetime(2024, 2, 29), None], pa.timestamp("us", "UTC")),
            "day": pa.array([datetime.date(2024, 2, 29), None]),
            "half": pa.array([np.float16(0.5), None], pa.float16()),
            "big": pa.array([2**64 - 1, None], pa.uint64()),
            "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        }
    )
    (shard,) = write(kind(tmp_path), tmp_path, table, table.slice(1))
    assert read(tmp_path / shard.name).to_pylist() == table.to_pylist() + table.slice(1).to_pylist()


@pytest.mark.parametrize("kind", [ParquetWriter, ArrowWriter])
def test_embeddings_may_be_missing(kind, tmp_path):
    table = pa.table({"embedding": pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2))})
    (shard,) = write(kind(tmp_path), tmp_path, table, table.slice(1))
    assert read(tmp_path / shard.name).to_pylist() == table.to_pylist() + table.slice(1).to_pylist()


# ------------------------------------------------------------------------------------- tables that disagree


@pytest.mark.parametrize("kind", [ParquetWriter, ArrowWriter])
@pytest.mark.parametrize("target", [None, "1GB"])
def test_a_later_table_widens_what_is_already_written(kind, target, tmp_path, small_groups):
    tables = [
        pa.table({"a": list(range(50)), "s": [{"x": 1}] * 50}),
        pa.table({"a": [0.5] * 50, "s": [{"y": "z"}] * 50}),
        pa.table({"new": ["n"] * 50}),
    ]
    (shard,) = write(kind(tmp_path, target_shard_size=target), tmp_path, *tables)
    result = read(tmp_path / shard.name)
    assert result.to_pylist() == (
        [{"a": float(i), "s": {"x": 1, "y": None}, "new": None} for i in range(50)]
        + [{"a": 0.5, "s": {"x": None, "y": "z"}, "new": None}] * 50
        + [{"a": None, "s": None, "new": "n"}] * 50
    )
    assert result.schema.equals(decode_schema(shard.schema))
    assert [entry.name for entry in tmp_path.iterdir()] == [shard.name]


@pytest.mark.parametrize("kind", [ParquetWriter, ArrowWriter])
def test_tables_that_cannot_agree_are_refused_by_name(kind, tmp_path):
    writer = kind(tmp_path).open_shard(tmp_path, "part", TABLE.schema)
    writer.write(TABLE)
    with pytest.raises(SinkError, match="`n` is int64 in some rows and string in others"):
        writer.write(pa.table({"n": ["x"]}))
    writer.abort()


@pytest.mark.parametrize("kind", [ParquetWriter, ArrowWriter])
def test_the_first_rows_overrule_a_plan_that_was_wrong(kind, tmp_path):
    (shard,) = write(kind(tmp_path), tmp_path, TABLE, schema=pa.schema({"n": pa.string(), "more": pa.null()}))
    assert decode_schema(shard.schema) == pa.schema({"n": pa.int64(), "more": pa.null(), "text": pa.string()})


@pytest.mark.parametrize("kind", [ParquetWriter, ArrowWriter])
def test_a_file_can_be_rewritten_to_a_wider_schema(kind, tmp_path, small_groups):
    empty = pa.array([{}, None, {}], pa.struct([]))
    table = pa.table(
        {"n": [1, 2, 3], "z": pa.nulls(3), "e": empty, "deep": pa.array([[{}], [], None], pa.list_(pa.struct([])))}
    )
    sink = kind(tmp_path)
    (shard,) = write(sink, tmp_path, *[table] * 20)
    assert decode_schema(shard.schema) == table.schema
    inner = pa.struct([("k", pa.int64())])
    wide = pa.schema({"n": pa.float64(), "z": pa.string(), "e": inner, "deep": pa.list_(inner), "new": pa.string()})
    target = tmp_path / f"wide{kind.suffix}"
    made = sink.rewrite(tmp_path / shard.name, sink.widest([shard.schema, encode_schema(wide)]), target)
    assert read(target).schema == wide
    assert read(target).to_pylist() == 20 * [
        {"n": 1.0, "z": None, "e": {"k": None}, "deep": [{"k": None}], "new": None},
        {"n": 2.0, "z": None, "e": None, "deep": [], "new": None},
        {"n": 3.0, "z": None, "e": {"k": None}, "deep": None, "new": None},
    ]
    assert (made.name, made.rows, made.size) == (target.name, 60, target.stat().st_size)
    assert decode_schema(made.schema) == wide


def test_a_struct_without_fields_is_text_in_parquet(tmp_path):
    (shard,) = write(ParquetWriter(tmp_path), tmp_path, pa.table({"e": pa.array([{}, None], pa.struct([]))}))
    assert read(tmp_path / shard.name).to_pylist() == [{"e": "{}"}, {"e": None}]


def test_a_type_parquet_cannot_hold_is_named(tmp_path):
    table = TABLE.append_column("gap", pa.array([pa.MonthDayNano([1, 2, 3])] * 3))
    writer = ParquetWriter(tmp_path).open_shard(tmp_path, "part", table.schema)
    writer.write(table)
    with pytest.raises(SinkError, match=r"Parquet cannot hold column `gap` \(month_day_nano_interval\)"):
        writer.close()
    writer.abort()
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------------------- CSV


def test_csv_tells_nulls_from_empty_text_and_writes_nested_values_as_json(tmp_path):
    table = pa.table({"text": ["", None, 'a "b"\nc'], "m": [{"k": [1]}, None, {"k": []}], "b": [b"hi", None, b""]})
    (shard,) = write(CsvWriter(tmp_path), tmp_path, table)
    assert (tmp_path / shard.name).read_text() == (
        '"text","m","b"\n"","{""k"":[1]}","aGk="\n,,\n"a ""b""\nc","{""k"":[]}",""\n'
    )


@pytest.mark.parametrize("compression", [None, "gz", "zst", "bz2"])
@pytest.mark.parametrize("chunk", [1, 7, writers.CHUNK_BYTES])
def test_a_csv_file_is_the_same_whether_or_not_its_columns_are_known_in_advance(
    compression, chunk, tmp_path, monkeypatch
):
    monkeypatch.setattr(delimited, "CHUNK_BYTES", chunk)
    early = pa.table({"text": ["", None, 'a, "b"\nc', '"', "\n,\n"], "n": [1, None, 3, 4, 5], 'lo,"ng': [None] * 5})
    late = pa.table({"n": [6], "late": ["x"], "text": ["y"], "later": [{"k": '"'}]})
    known = pa.schema([*early.schema, *late.schema.remove(0).remove(1)])
    sink = CsvWriter(tmp_path, compression=compression)
    (one,) = write(sink, tmp_path, early, late, stem="one")
    (two,) = write(sink, tmp_path, early, late, stem="two", schema=known)
    assert (tmp_path / one.name).read_bytes() == (tmp_path / two.name).read_bytes()
    assert (one.rows, one.size, one.schema) == (two.rows, two.size, two.schema)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_csv_file_of_one_column_gets_others(tmp_path):
    shards = write(CsvWriter(tmp_path), tmp_path, pa.table({"a": ["x", None, ""]}), pa.table({"b": [1.5]}))
    assert (tmp_path / shards[0].name).read_text() == '"a","b"\n"x",\n,\n"",\n,1.5\n'


def test_a_csv_shard_is_rewritten_with_the_columns_of_all(tmp_path):
    sink = CsvWriter(tmp_path)
    (one,) = write(sink, tmp_path, pa.table({"b": ["x\ny"], "a": [1]}), stem="one")
    (two,) = write(sink, tmp_path, pa.table({"c": [True], "a": [2]}), stem="two")
    schema = sink.widest([one.schema, two.schema])
    shard = sink.rewrite(tmp_path / two.name, schema, tmp_path / "new.csv")
    assert (tmp_path / "new.csv").read_text() == '"b","a","c"\n,2,true\n'
    assert (shard.rows, shard.size, shard.schema) == (1, len('"b","a","c"\n,2,true\n'), schema)


# ------------------------------------------------------------------------------------------------------ parameters


@pytest.mark.parametrize(
    ("sink", "hint"),
    [
        (JsonlWriter("x", compression="zstd"), "did you mean `zst`"),
        (JsonlWriter("x", compression="rar"), "one of gz, zst, bz2, xz, lz4"),
        (ParquetWriter("x", compression="zst"), "did you mean `zstd`"),
        (ArrowWriter("x", compression="lz"), "did you mean `lz4`"),
        (CsvWriter(" "), "name the folder"),
        (CsvWriter("x", target_shard_size="big"), "write a size as 256MB"),
        (CsvWriter("x", fields=["a", "a"]), "names a column twice"),
        (CsvWriter("x", fields=[]), "leave it out to write every column"),
    ],
)
def test_mistakes_are_seen_before_any_data_moves(sink, hint):
    with pytest.raises(ParameterError, match=hint):
        sink.check()


@pytest.mark.parametrize("kind", SINKS)
def test_where_the_rows_go_is_not_part_of_what_they_are(kind):
    one = kind("here", fields=["text"])
    other = kind("there", fields=["text"], mode="overwrite", storage_options={"key": "secret"})
    assert one.identity() == other.identity()
    assert "secret" not in str(other.identity())


@pytest.mark.parametrize("kind", SINKS)
def test_sinks_survive_recipes_and_pickles(kind):
    sink = kind("out", fields=["text"], columns={"text": "content"}, target_shard_size="1MB", mode="error")
    assert build_operator(sink.name, sink.parameters()) == sink
    assert pickle.loads(pickle.dumps(sink)) == sink
    assert sink.folder == "out"
