"""Parquet and Arrow files: row groups and record batches as pieces, schemas that differ, damage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tamis.errors import SourceError
from tamis.sources import columnar
from tamis.sources.columnar import ArrowReader, ParquetReader
from tamis.sources.schemas import plain, plain_type
from tamis.sources.validation import check_structure


def table(count: int, first: int = 0) -> pa.Table:
    return pa.table(
        {"text": [f"text {i}" * 3 for i in range(first, first + count)], "n": list(range(first, first + count))}
    )


# -------------------------------------------------------------------------------------------------------------- Parquet


@pytest.mark.parametrize("blocksize", [1, 3000, 10**9])
@pytest.mark.parametrize("batch_bytes", [100, 10**7])
def test_row_groups_are_pieces_and_addresses_are_row_numbers(blocksize, batch_bytes, tmp_path, read_all):
    pq.write_table(table(1000), tmp_path / "a.parquet", row_group_size=90)
    pq.write_table(table(50, 1000), tmp_path / "b.parquet")
    found = read_all(ParquetReader(tmp_path, blocksize=blocksize), batch_bytes=batch_bytes)
    assert found.rows == table(1050).to_pylist()
    assert found.addresses[500] == f"{tmp_path}/a.parquet:500"
    assert found.addresses[-1] == f"{tmp_path}/b.parquet:49"
    assert len(found.layout.partitions) == {1: 13, 3000: len(found.layout.partitions), 10**9: 1}[blocksize]


def test_small_row_groups_make_full_batches(tmp_path, read_all):
    pq.write_table(table(1000), tmp_path / "a.parquet", row_group_size=10)
    assert read_all(ParquetReader(tmp_path)).batches == [1000]


def test_only_the_columns_asked_for_are_read(tmp_path, read_all):
    pq.write_table(table(3), tmp_path / "a.parquet")
    assert read_all(ParquetReader(tmp_path, columns={"body": "text"}), columns=("body",)).rows[0] == {
        "body": "text 0" * 3
    }
    assert read_all(ParquetReader(tmp_path, fields=["n"])).rows == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert read_all(ParquetReader(tmp_path), columns=()).batches == [3]


def test_files_that_differ_are_widened_and_missing_columns_are_null(tmp_path, read_all):
    pq.write_table(pa.table({"x": pa.array([1], pa.int32()), "s": ["a"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": pa.array([2.5]), "y": [True]}), tmp_path / "b.parquet")
    found = read_all(ParquetReader(tmp_path))
    assert found.rows == [{"x": 1.0, "s": "a", "y": None}, {"x": 2.5, "s": None, "y": True}]
    assert found.types["x"] == {"double"}


@pytest.mark.parametrize("skip", [0, 2, 4])
@pytest.mark.parametrize("batch_bytes", [1, 100, 10**7])
@pytest.mark.parametrize("reader", [ParquetReader, ArrowReader])
def test_rows_of_a_file_without_any_of_the_columns_are_read_with_nulls(tmp_path, read_all, reader, batch_bytes, skip):
    for name, part in (("a", {"n": [0], "s": ["a"]}), ("b", {"n": [1, 2, 3]}), ("c", {"n": [4], "s": ["c"]})):
        for one in range(len(part["n"])):  # several row groups or record batches
            part_of = {key: values[one : one + 1] for key, values in part.items()}
            pq.write_table(pa.table(part_of), tmp_path / f"{name}{one}.parquet")
        if name == "b":
            pq.write_table(pa.table(part), tmp_path / "b.parquet", row_group_size=2)
    for path in tmp_path.glob("*.parquet"):
        whole = pq.read_table(path)
        with pa.ipc.new_file(path.with_suffix(".arrow"), whole.schema) as file:
            file.write_table(whole, max_chunksize=2)
    files = [tmp_path / f"{name}.{reader.format}" for name in ("a0", "b", "b0", "b1", "c0")]
    expected = [{"s": "a"}, *[{"s": None}] * 5, {"s": "c"}]
    assert read_all(reader(files, fields=["s"], skip=skip), batch_bytes=batch_bytes).rows == expected[skip:]
    assert len(read_all(reader(files, skip=skip), columns=("s",), batch_bytes=batch_bytes).rows) == 7 - skip
    assert read_all(reader(files, fields=["s"], limit=5)).rows == expected[:5]
    counted = read_all(reader([files[1], files[0]]), columns=())  # reads the column that is cheapest in the first file
    assert sum(counted.batches) == 4


def test_files_that_cannot_go_together_are_named(tmp_path):
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": ["one"]}), tmp_path / "b.parquet")
    with pytest.raises(SourceError, match=r"`x` is int64 in .*a.parquet and string in .*b.parquet"):
        ParquetReader(tmp_path).layout(10**6)


def test_dictionaries_are_decoded_nested_ones_too(tmp_path, read_all):
    words = pa.array(["a", "b", "a"]).dictionary_encode()
    nested = pa.StructArray.from_arrays([words], ["w"])
    pq.write_table(pa.table({"w": words, "s": nested}), tmp_path / "a.parquet")
    found = read_all(ParquetReader(tmp_path))
    assert found.rows[1] == {"w": "b", "s": {"w": "b"}}
    assert found.types["w"] == {"string"}


def test_a_file_without_a_footer_costs_that_file(tmp_path, read_all):
    pq.write_table(table(10), tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-20])
    found = read_all(ParquetReader(tmp_path))
    assert found.rows == table(10).to_pylist()
    (error,) = found.layout.damaged_files.values()
    assert "b.parquet is not a Parquet file, or its footer is missing" in error


def test_a_layout_without_a_readable_file_is_an_error(tmp_path):
    for name in ("a.parquet", "b.parquet"):
        (tmp_path / name).write_bytes(b"not Parquet")
    with pytest.raises(
        SourceError, match=r"none of the 2 files can be read.*a.parquet is not a Parquet file"
    ) as caught:
        ParquetReader(tmp_path).layout(10**6)
    assert caught.value.hint


def test_a_column_name_that_is_not_utf8_is_damage(tmp_path):
    pq.write_table(pa.table({"columnname": [1]}), tmp_path / "a.parquet", store_schema=False)
    data = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(data.replace(b"columnname", b"column\xff\xfeme"))
    with pytest.raises(SourceError, match=r"a.parquet is not a Parquet file"):
        ParquetReader(tmp_path).layout(10**6)


def test_a_damaged_row_group_fails_its_rows_and_no_others(tmp_path, read_all):
    path = tmp_path / "a.parquet"
    pq.write_table(table(300), path, row_group_size=100, compression="snappy", use_dictionary=False)
    meta = pq.ParquetFile(path).metadata
    offset = meta.row_group(1).column(0).data_page_offset
    data = bytearray(path.read_bytes())
    data[offset : offset + 60] = b"\xff" * 60
    path.write_bytes(bytes(data))
    found = read_all(ParquetReader(tmp_path))
    assert [row["n"] for row in found.rows] == [*range(100), *range(200, 300)]
    (failure,) = found.failures
    assert (failure.address, failure.rows) == (f"{path}:100", 100)
    assert failure.error.startswith("row group 1 is damaged, 100 rows are lost")
    assert failure.damaged_file == str(path)


def test_an_unsampled_file_that_does_not_fit_fails_its_rows(tmp_path, read_all, monkeypatch):
    monkeypatch.setattr(columnar, "_FOOTERS_READ", 3)
    monkeypatch.setattr(columnar.division, "SAMPLED_FILES", 2)
    monkeypatch.setattr(columnar.division.sampled, "__defaults__", (2,))
    for index in range(5):
        values = pa.array([index]) if index != 2 else pa.array(["two", "deux"])
        pq.write_table(pa.table({"x": values}), tmp_path / f"{index}.parquet")
    (tmp_path / "3.parquet").write_bytes(b"not a file of ours")
    found = read_all(ParquetReader(tmp_path))
    assert found.rows == [{"x": 0}, {"x": 1}, {"x": 4}]
    assert [failure.rows for failure in found.failures] == [2, 0]
    assert found.failures[1].damaged_file == f"{tmp_path}/3.parquet"
    assert "footers were read" in found.layout.reasons["footers"]


@pytest.mark.parametrize("limit", [1, 90, 91, 250, 1000])
@pytest.mark.parametrize("blocksize", [1, 10**9])
def test_a_limit_gives_the_first_rows(limit, blocksize, tmp_path, read_all):
    pq.write_table(table(200), tmp_path / "a.parquet", row_group_size=90)
    pq.write_table(table(100, 200), tmp_path / "b.parquet")
    found = read_all(ParquetReader(tmp_path, limit=limit, blocksize=blocksize))
    assert [row["n"] for row in found.rows] == list(range(min(limit, 300)))


def test_empty_parquet_files_have_no_rows(tmp_path, read_all):
    pq.write_table(table(0), tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"")
    found = read_all(ParquetReader(tmp_path))
    assert found.rows == []
    assert found.layout.schema.names == ["text", "n"]


def test_parquet_is_read_from_an_object_store(s3_server, read_all):
    import fsspec

    with fsspec.open(f"{s3_server.url}/in/a.parquet", "wb", **s3_server.storage_options) as file:
        pq.write_table(table(500), file, row_group_size=100)
    found = read_all(ParquetReader(f"{s3_server.url}/in", blocksize=1, storage_options=s3_server.storage_options))
    assert found.rows == table(500).to_pylist()
    assert len(found.layout.partitions) == 5


# ---------------------------------------------------------------------------------------------------------------- Arrow


def write_arrow(path, data: pa.Table, kind: str, compression: str | None = None) -> None:
    make = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    with make(path, data.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(data, max_chunksize=90)


@pytest.mark.parametrize("kind", ["file", "stream"])
@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("blocksize", [1000, 10**9])
def test_arrow_files_and_streams_are_split_by_record_batches(kind, compression, blocksize, tmp_path, read_all):
    write_arrow(tmp_path / "a.arrow", table(1000), kind, compression)
    write_arrow(tmp_path / "b.arrow", table(50, 1000), kind, compression)
    found = read_all(ArrowReader(tmp_path, blocksize=blocksize), batch_bytes=2000)
    assert found.rows == table(1050).to_pylist()
    assert found.addresses[500] == f"{tmp_path}/a.arrow:500"
    assert (len(found.layout.partitions) > 5) == (blocksize == 1000)
    assert read_all(ArrowReader(tmp_path, blocksize=blocksize), columns=("n",)).rows[-1] == {"n": 1049}
    assert len(read_all(ArrowReader(tmp_path, blocksize=blocksize, limit=777)).rows) == 777


def test_arrow_batches_are_large_however_small_the_record_batches(tmp_path, read_all):
    write_arrow(tmp_path / "a.arrow", table(1000), "stream")
    assert read_all(ArrowReader(tmp_path)).batches == [1000]


def test_arrow_dictionaries_are_decoded(tmp_path, read_all):
    data = pa.table({"w": pa.array(["a", "b"] * 100).dictionary_encode()})
    write_arrow(tmp_path / "a.feather", data, "file")
    found = read_all(ArrowReader(tmp_path, blocksize=100))
    assert found.rows == [{"w": "a"}, {"w": "b"}] * 100
    assert found.types == {"w": {"string"}}


def test_what_is_not_arrow_is_named(tmp_path):
    (tmp_path / "a.arrow").write_bytes(b"FEA1 and so on, an old file")
    with pytest.raises(SourceError, match=r"a.arrow is not an Arrow file") as caught:
        ArrowReader(tmp_path).layout(10**6)
    assert "version=2" in (caught.value.hint or "")


def test_a_truncated_stream_keeps_what_is_there_and_fails_once(tmp_path, read_all):
    path = tmp_path / "a.arrow"
    write_arrow(path, table(1000), "stream")
    path.write_bytes(path.read_bytes()[:-3000])
    found = read_all(ArrowReader(tmp_path))
    assert found.rows == table(1000).to_pylist()[: len(found.rows)]
    assert len(found.rows) >= 800
    assert ["cannot be followed any further" in failure.error for failure in found.failures] == [True]


# ---------------------------------------------------------------------------------------------------------- validation


def write_offsets(path, offsets, kind):
    """An Arrow file with a good record batch, one with these offsets into 51 bytes, and another good one."""
    values = pa.Array.from_buffers(kind, 4, [None, pa.py_buffer(np.array(offsets, np.int32)), pa.py_buffer(b"x" * 51)])
    good = pa.array(["a", "b"]).cast(kind)
    with pa.ipc.new_file(path, pa.schema([("text", kind)])) as writer:
        for column in (good, values, good):
            writer.write_batch(pa.RecordBatch.from_arrays([column], ["text"]))


@pytest.mark.parametrize("offsets", [[0, 5, 3000, 20, 51], [0, 20, 11, 5, 51], [0, -5, 11, 20, 51]])
@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_offsets_out_of_bounds_cost_their_record_batch(offsets, kind, tmp_path, read_all):
    write_offsets(tmp_path / "a.arrow", offsets, kind)
    found = read_all(ArrowReader(tmp_path))
    assert len(found.rows) == 4
    assert found.addresses == [f"{tmp_path}/a.arrow:{row}" for row in (0, 1, 6, 7)]
    (failure,) = found.failures
    assert (failure.rows, failure.damaged_file) == (4, f"{tmp_path}/a.arrow")
    assert failure.error.startswith("record batch 1 is damaged, 4 rows are lost")


def test_dictionary_indices_out_of_bounds_cost_their_record_batch(tmp_path, read_all):
    indices = pa.array([0, 7, 1], pa.int8())
    column = pa.DictionaryArray.from_arrays(indices, pa.array(["a", "b"]), safe=False)
    with pa.ipc.new_file(tmp_path / "a.arrow", pa.schema([("text", column.type)])) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([column], ["text"]))
    found = read_all(ArrowReader(tmp_path))
    assert [failure.rows for failure in found.failures] == [3]
    assert found.rows == []


def not_utf8(values: list[bytes]) -> pa.Array:
    return pa.array(values, pa.binary()).view(pa.string())


@pytest.mark.parametrize(
    "column",
    [
        not_utf8([b"a", b"\xff", b"c"]),
        pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), not_utf8([b"a", b"\xff", b"c"])),
        pa.StructArray.from_arrays([not_utf8([b"a", b"\xff", b"c"])], ["inner"]),
        pa.ListViewArray.from_arrays(
            pa.array([0, 1, 2], pa.int32()), pa.array([1, 1, 1], pa.int32()), not_utf8([b"a", b"\xff", b"c"])
        ),
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), not_utf8([b"a", b"\xff"])),
    ],
    ids=["text", "list", "struct", "view", "dictionary"],
)
@pytest.mark.parametrize("suffix", ["arrow", "parquet"])
def test_text_that_is_not_utf8_costs_its_row(column, suffix, tmp_path, read_all):
    if suffix == "parquet" and pa.types.is_dictionary(column.type):
        column = column.cast(pa.string())  # Arrow itself refuses a Parquet dictionary that is not UTF-8
    rows, path = pa.table({"text": column, "n": [0, 1, 2]}), tmp_path / f"a.{suffix}"
    if suffix == "arrow":
        with pa.ipc.new_file(path, rows.schema) as writer:
            writer.write_table(rows)
    else:
        pq.write_table(rows, path)
    found = read_all(ArrowReader(path) if suffix == "arrow" else ParquetReader(path))
    assert [row["n"] for row in found.rows] == [0, 2]
    assert [(failure.address, failure.error) for failure in found.failures] == [
        (f"{path}:1", "column `text` is not UTF-8")
    ]


MESSAGE = pa.struct([("content", pa.string()), ("calls", pa.null())])


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.list_(MESSAGE), [[{"content": "a", "calls": None}, {"content": "b", "calls": None}], None, []]),
        (pa.large_list(pa.null()), [[None, None], [], [None]]),
        (pa.list_(pa.list_(pa.null())), [[[None, None, None], [None]], [], None]),
        (pa.list_(pa.null(), 2), [[None, None], [None, None]]),
        (pa.map_(pa.string(), pa.null()), [[("a", None), ("b", None)], []]),
        (pa.struct([("messages", pa.list_(MESSAGE))]), [{"messages": [{"content": "a", "calls": None}] * 3}]),
    ],
    ids=str,
)
@pytest.mark.parametrize("suffix", ["arrow", "parquet"])
def test_lists_of_values_that_are_always_null_are_not_damaged(kind, values, suffix, tmp_path, read_all):
    rows, path = pa.table({"x": pa.array(values, kind), "n": range(len(values))}), tmp_path / f"a.{suffix}"
    if suffix == "arrow":
        with pa.ipc.new_file(path, rows.schema) as writer:
            writer.write_table(rows)
    else:
        pq.write_table(rows, path)
    found = read_all(ArrowReader(path) if suffix == "arrow" else ParquetReader(path))
    assert found.failures == []
    assert found.rows == rows.to_pylist()


@pytest.mark.parametrize("offsets", [[0, 3, 90], [0, 4, 2], [-1, 2, 3]])
@pytest.mark.parametrize("inner", [pa.null(), MESSAGE, pa.list_(pa.null())])
def test_offsets_over_values_that_are_always_null_are_checked(offsets, inner):
    stored = np.array([0, 1, 2], np.int32)
    lists = pa.Array.from_buffers(pa.list_(inner), 2, [None, pa.py_buffer(stored)], children=[pa.nulls(3, inner)])
    both = pa.struct([("lists", lists.type), ("nothing", pa.null())])
    nested = pa.Array.from_buffers(both, 2, [None], children=[lists, pa.nulls(2)])
    stored[:] = offsets  # pyarrow would refuse them
    for column in (lists, nested):
        with pytest.raises(pa.ArrowInvalid):
            check_structure(pa.record_batch([column], ["x"]))


def test_text_that_is_not_utf8_beside_values_that_are_always_null_costs_its_row(tmp_path, read_all):
    messages = pa.StructArray.from_arrays([not_utf8([b"a", b"\xff", b"c"]), pa.nulls(3)], ["content", "calls"])
    column = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), messages)
    pq.write_table(pa.table({"x": column, "n": [0, 1, 2]}), tmp_path / "a.parquet")
    found = read_all(ParquetReader(tmp_path / "a.parquet"))
    assert [row["n"] for row in found.rows] == [0, 2]
    assert [failure.error for failure in found.failures] == ["column `x` is not UTF-8"]


def _views(offsets: list[int], sizes: list[int], mask: list[bool] | None = None) -> pa.ListViewArray:
    """Views of the letters a to f."""
    return pa.ListViewArray.from_arrays(
        pa.array(offsets, pa.int32()),
        pa.array(sizes, pa.int32()),
        pa.array(list("abcdef")),
        mask=mask and pa.array(mask),
    )


def _written(column: pa.Array, path: Path) -> Path:
    rows = pa.table({"x": column, "n": range(len(column))})
    with pa.ipc.new_file(path, rows.schema) as writer:
        writer.write_table(rows)
    return path


@pytest.mark.parametrize("view", [pa.list_view, pa.large_list_view])
@pytest.mark.parametrize(
    ("make", "values"),
    [
        (lambda view: view(pa.int64()), [[1, 2], [3], None, [], [4, None]]),
        (lambda view: view(view(pa.string())), [[["a", "b"], None], [[]], None, [["c"]]]),
        (lambda view: pa.list_(view(pa.string_view())), [[["a", "b"], None], [[]], None, [["c"]]]),
        (lambda view: pa.list_(view(pa.null())), [[[None, None], []], None]),
        (lambda view: pa.list_(view(pa.int8()), 2), [[[1], None], None, [[], [2, 3]]]),
        (lambda view: pa.struct([("a", view(pa.int8()))]), [{"a": [1]}, None, {"a": None}, {"a": []}]),
        (lambda view: pa.map_(pa.string(), view(pa.int8())), [[("k", [1])], None, [("a", None), ("b", [])], []]),
    ],
)
def test_views_of_lists_become_lists(view, make, values, tmp_path, read_all):
    column = pa.array(values, make(view))
    for start, count in ((0, len(values)), (1, len(values) - 1), (1, 1), (2, 0)):
        found = plain(pa.table({"x": column.slice(start, count)}))
        found.validate(full=True)
        assert found["x"].to_pylist() == values[start : start + count]
        assert found["x"].type == plain_type(column.type)
    found = read_all(ArrowReader(_written(column, tmp_path / "a.arrow")), batch_bytes=50)
    assert [row["x"] for row in found.rows] == column.to_pylist()


def test_views_of_lists_may_overlap_and_be_out_of_order(tmp_path, read_all):
    column = _views([4, 0, 2, 0, 0], [2, 3, 2, 0, 6], [False, False, True, False, False])
    found = read_all(ArrowReader(_written(column, tmp_path / "a.arrow")))
    assert [row["x"] for row in found.rows] == [list("ef"), list("abc"), None, [], list("abcdef")]


@pytest.mark.parametrize(("offset", "size"), [(5, 2), (-1, 1), (0, -1), (2_000_000_000, 2_000_000_000)])
def test_views_beyond_their_values_cost_their_record_batch(offset, size, tmp_path, read_all):
    column = _views([0, offset], [1, size])
    found = read_all(ArrowReader(_written(column, tmp_path / "a.arrow")))
    assert [failure.rows for failure in found.failures] == [2]


def test_lists_of_no_values_are_not_called_damaged(tmp_path, read_all):
    rows = pa.table({"n": [1, 2], "x": pa.array([[[]], None], pa.list_(pa.list_(pa.int8(), 0)))})
    pq.write_table(rows, tmp_path / "a.parquet")
    with pytest.raises(SourceError, match=r"column `x` of .*\[0\]>, which Arrow cannot read[\s\S]*fields="):
        read_all(ParquetReader(tmp_path))
    assert read_all(ParquetReader(tmp_path, fields=["n"])).rows == [{"n": 1}, {"n": 2}]
