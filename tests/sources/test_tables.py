"""The readers of lines, from files to batches."""

from __future__ import annotations

import dataclasses
import json
import pickle
import random
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tamis.errors import ParameterError, SourceError
from tamis.registry import build_operator
from tamis.sources.tables import (
    ArrowReader,
    CsvReader,
    JsonlReader,
    ParquetReader,
    TextReader,
    reader_for,
)

CODECS = ["", ".gz", ".zst", ".bz2", ".xz", ".lz4"]


def some_rows(count: int, seed: int = 0) -> list[dict]:
    random.seed(seed)
    return [{"id": i, "text": "é" * random.randint(0, 40) + str(i), "date": "2020-01-01"} for i in range(count)]


def as_lines(rows: list[dict]) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def write(path, rows, compress, frames: int = 1):
    """Rows as JSON lines, compressed as the name says, in frames that cut lines anywhere."""
    data = as_lines(rows)
    codec = path.suffix[1:] if path.suffix in CODECS else ""
    if codec:
        step = max(1, -(-len(data) // frames))
        data = b"".join(compress(codec, data[i : i + step]) for i in range(0, len(data), step))
    path.write_bytes(data)


# ---------------------------------------------------------------------------------------------------------------- JSONL


@pytest.mark.parametrize("suffix", CODECS)
def test_rows_and_addresses_are_the_same_for_any_blocksize_and_batch(suffix, tmp_path, compress, read_all):
    rows = some_rows(2000)
    write(tmp_path / f"a.jsonl{suffix}", rows[:1700], compress, frames=9)
    write(tmp_path / f"b.jsonl{suffix}", rows[1700:], compress)
    whole = read_all(JsonlReader(tmp_path))
    assert whole.rows == rows
    assert whole.failures == []
    assert len(set(whole.addresses)) == len(rows)
    for blocksize, batch_bytes in ((3000, 10**7), (20_000, 1000), (10**9, 500)):
        parts = read_all(JsonlReader(tmp_path, blocksize=blocksize), batch_bytes=batch_bytes)
        assert parts.rows == rows
        assert parts.addresses == whole.addresses
        if blocksize < 10**6:
            assert len(parts.layout.partitions) > 3


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=6),
    blocksize=st.integers(1, 4000),
    batch=st.integers(1, 2000),
)
def test_every_row_once_for_any_files_and_blocksize(sizes, blocksize, batch, tmp_path_factory, compress, read_all):
    folder = tmp_path_factory.mktemp("rows")
    expected = []
    for index, size in enumerate(sizes):
        rows = [{"id": 100 * index + i, "text": "x" * (i % 50)} for i in range(size)]
        write(folder / f"{index}.jsonl{CODECS[index % 6]}", rows, compress, frames=index % 3 + 1)
        expected += rows
    found = read_all(JsonlReader(folder, blocksize=blocksize), batch_bytes=batch)
    assert found.rows == expected
    assert len(set(found.addresses)) == len(expected)
    pieces = [piece for partition in found.layout.partitions for piece in partition.pieces]
    assert len({(piece.path, piece.start) for piece in pieces}) == len(pieces)


def test_small_files_share_partitions_and_batches(tmp_path, compress, read_all):
    for index in range(30):
        write(tmp_path / f"{index:02}.jsonl", some_rows(10, index), compress)
    found = read_all(JsonlReader(tmp_path))
    assert len(found.layout.partitions) == 1
    assert found.batches == [300]
    assert "30 files of" in found.layout.reasons["partitions"]
    assert "become 1 partition" in found.layout.reasons["partitions"]


def test_files_per_partition_counts_files_and_never_splits(tmp_path, compress):
    for index in range(5):
        write(tmp_path / f"{index}.jsonl", some_rows(100), compress)
    layout = JsonlReader(tmp_path, files_per_partition=2).layout(10)
    assert [len(partition.pieces) for partition in layout.partitions] == [2, 2, 1]


def test_both_ways_of_dividing_are_refused_and_so_are_odd_values(tmp_path):
    with pytest.raises(ParameterError, match="both"):
        JsonlReader(tmp_path, files_per_partition=1, blocksize="1MB").check()
    with pytest.raises(ParameterError, match="limit"):
        JsonlReader(tmp_path, limit=0).check()
    with pytest.raises(ParameterError, match="is not a type") as caught:
        JsonlReader(tmp_path, types={"x": "text"}).check()
    assert "json" in (caught.value.hint or "")
    with pytest.raises(ParameterError, match="must be"):
        JsonlReader(7)


def test_identity_changes_with_the_partition_whose_file_changed(tmp_path, compress):
    for index in range(3):
        write(tmp_path / f"{index}.jsonl", some_rows(50, index), compress)
    reader = JsonlReader(tmp_path, files_per_partition=1)
    before = [partition.identity for partition in reader.layout(1).partitions]
    assert before == [partition.identity for partition in reader.layout(1).partitions]
    write(tmp_path / "1.jsonl", some_rows(50, 99), compress)
    after = [partition.identity for partition in reader.layout(1).partitions]
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, True]
    assert len(set(before)) == 3


def test_columns_are_renamed_pruned_and_kept_in_file_order(tmp_path, compress, read_all):
    rows = [{"url": "u", "content": "c", "n": 1, "day": "2020-01-01"}]
    write(tmp_path / "a.jsonl", rows, compress)
    reader = JsonlReader(tmp_path, columns={"text": "content"})
    assert reader.layout(10**6).schema.names == ["url", "text", "n", "day"]
    assert read_all(reader).rows == [{"url": "u", "text": "c", "n": 1, "day": "2020-01-01"}]
    assert read_all(reader, columns=("text",)).rows == [{"text": "c"}]
    chosen = dataclasses.replace(reader, fields=["n", "text"])
    assert chosen.layout(10**6).schema.names == ["text", "n"]
    assert read_all(chosen).rows == [{"text": "c", "n": 1}]
    assert read_all(chosen, columns=("n",)).rows == [{"n": 1}]


def test_names_that_are_not_there_or_clash_are_explained(tmp_path, compress):
    write(tmp_path / "a.jsonl", [{"content": "c", "text": "t"}], compress)
    with pytest.raises(SourceError, match="`conten`") as caught:
        JsonlReader(tmp_path, columns={"body": "conten"}).layout(10)
    assert "did you mean `content`?" in (caught.value.hint or "")
    with pytest.raises(SourceError, match="no column `nope`, which `fields` of JsonlReader names"):
        JsonlReader(tmp_path, fields=["nope"]).layout(10)
    with pytest.raises(SourceError, match="too") as caught:
        JsonlReader(tmp_path, columns={"text": "content"}).layout(10)
    assert "other_text" in (caught.value.hint or "")
    assert JsonlReader(tmp_path, columns={"text": "content", "old": "text"}).layout(10).schema.names == ["text", "old"]


def test_the_schema_is_sampled_over_files_and_nulls_wait_for_a_type(tmp_path, compress, read_all):
    write(tmp_path / "a.jsonl", [{"a": 1, "b": None}], compress)
    write(tmp_path / "b.jsonl", [{"a": 1.5, "c": "x"}], compress)
    found = read_all(JsonlReader(tmp_path, files_per_partition=1))
    assert [(spec.name, str(spec.type)) for spec in found.layout.schema] == [
        ("a", "double"),
        ("b", "null"),
        ("c", "string"),
    ]
    assert found.types["a"] == {"double"}
    assert found.rows == [{"a": 1.0, "b": None, "c": None}, {"a": 1.5, "b": None, "c": "x"}]


def test_files_that_disagree_about_a_column_are_named(tmp_path, compress, read_all):
    write(tmp_path / "a.jsonl", [{"x": 1}], compress)
    write(tmp_path / "b.jsonl", [{"x": "one"}], compress)
    with pytest.raises(SourceError, match=r"column `x` is int64 in .*a.jsonl and string in .*b.jsonl") as caught:
        JsonlReader(tmp_path).layout(10)
    assert 'types={"x": "string"}' in (caught.value.hint or "")
    assert read_all(JsonlReader(tmp_path, types={"x": "string"})).rows == [{"x": "1"}, {"x": "one"}]


def test_bad_lines_fail_with_their_address_and_bytes(tmp_path, read_all):
    (tmp_path / "a.jsonl").write_bytes(b'{"x": 1}\n{"x": \n\n{"x": 2}\n')
    found = read_all(JsonlReader(tmp_path))
    assert found.rows == [{"x": 1}, {"x": 2}]
    (failure,) = found.failures
    assert failure.address == f"{tmp_path}/a.jsonl:9"
    assert (failure.step, failure.row, failure.rows) == ("jsonl_reader", b'{"x": ', 1)


def test_a_json_list_is_not_json_lines(tmp_path):
    (tmp_path / "a.json").write_text('[\n {"x": 1},\n {"x": 2}\n]\n')
    with pytest.raises(SourceError, match="begins with a list"):
        JsonlReader(tmp_path).layout(10)


def test_empty_files_have_no_rows(tmp_path, compress, read_all):
    (tmp_path / "a.jsonl").write_bytes(b"")
    (tmp_path / "b.jsonl").write_bytes(b"\n\n")
    (tmp_path / "c.jsonl.gz").write_bytes(compress("gz", b""))
    (tmp_path / "d.jsonl.zst").write_bytes(b"")
    found = read_all(JsonlReader(tmp_path, fields=["text"]))
    assert (found.rows, found.failures) == ([], [])
    assert found.layout.schema.names == ["text"]


@pytest.mark.parametrize("suffix", CODECS[1:])
def test_a_truncated_file_keeps_what_is_there_and_fails_once(suffix, tmp_path, compress, read_all):
    rows = some_rows(5000)
    path = tmp_path / f"a.jsonl{suffix}"
    write(path, rows, compress, frames=3)
    path.write_bytes(path.read_bytes()[:-100])
    found = read_all(JsonlReader(tmp_path))
    assert found.rows == rows[: len(found.rows)]
    assert len(found.rows) > 3000
    (failure,) = found.failures
    assert "truncated" in failure.error
    assert f"a.jsonl{suffix}@" in failure.address


def test_damage_between_pieces_is_reported_once(tmp_path, compress, read_all):
    rows = some_rows(300)
    frames = [compress("zst", as_lines(rows[i : i + 100])) for i in (0, 100, 200)]
    frames[1] = b"\x28\xb5\x2f\xfd" + b"\xff" * (len(frames[1]) - 4)
    starts = [0, len(frames[0]), len(frames[0]) + len(frames[1])]
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(b"".join(frames))
    found = read_all(JsonlReader(tmp_path, blocksize=len(as_lines(rows[:100]))))
    assert found.rows == rows[:100]
    assert [failure.address for failure in found.failures] == [f"{path}@{starts[1]}:0"]


@pytest.mark.parametrize("limit", [1, 7, 150, 151, 299, 300, 1000])
@pytest.mark.parametrize("suffix", ["", ".zst"])
@pytest.mark.parametrize("blocksize", [500, 10**6])
def test_a_limit_gives_the_first_rows_for_any_blocksize(limit, suffix, blocksize, tmp_path, compress, read_all):
    rows = some_rows(300)
    write(tmp_path / f"a.jsonl{suffix}", rows[:150], compress, frames=5)
    write(tmp_path / f"b.jsonl{suffix}", rows[150:], compress)
    found = read_all(JsonlReader(tmp_path, blocksize=blocksize, limit=limit))
    assert found.rows == rows[:limit]


def test_a_limit_counts_bad_lines_and_reads_no_further(tmp_path, read_all):
    (tmp_path / "a.jsonl").write_bytes(b'{"x": 1}\n\nbad\n{"x": 2}\n')
    (tmp_path / "b.jsonl").write_bytes(b'{"x": 3}\n')
    found = read_all(JsonlReader(tmp_path, limit=2))
    assert (found.rows, len(found.failures)) == ([{"x": 1}], 1)
    assert [piece.path[-7:] for p in found.layout.partitions for piece in p.pieces] == ["a.jsonl"]


def test_lines_over_the_maximum_fail_and_are_not_held(tmp_path, read_all):
    (tmp_path / "a.jsonl").write_bytes(b'{"t": "a"}\n{"t": "' + b"x" * 50_000 + b'"}\n{"t": "b"}\n')
    found = read_all(JsonlReader(tmp_path, max_line_bytes="10kB"), batch_bytes=1000)
    assert found.rows == [{"t": "a"}, {"t": "b"}]
    assert ["50,009 bytes" in failure.error for failure in found.failures] == [True]
    assert found.failures[0].address.endswith("a.jsonl:11")


def test_a_partition_reads_little_of_the_file_after_its_end(tmp_path, read_all):
    (tmp_path / "a.jsonl").write_bytes(as_lines(some_rows(30_000)))
    size = (tmp_path / "a.jsonl").stat().st_size
    before = bytes_read_so_far()
    found = read_all(JsonlReader(tmp_path / "a.jsonl"), blocksize=size // 16)
    assert len(found.layout.partitions) >= 16
    assert bytes_read_so_far() - before < 4 * size


def bytes_read_so_far() -> int:
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def test_a_line_far_longer_than_a_batch_is_read(tmp_path, compress, read_all):
    rows = [{"t": "x" * 3_000_000}, {"t": "y"}]
    write(tmp_path / "a.jsonl", rows, compress)
    write(tmp_path / "b.jsonl.gz", rows, compress)
    assert read_all(JsonlReader(tmp_path, blocksize=10_000), batch_bytes=1000).rows == rows + rows


def test_a_reader_is_its_parameters(tmp_path):
    reader = build_operator("jsonl_reader", {"file_paths": ["a.jsonl", "b.jsonl"], "types": {"x": "json"}})
    assert reader == JsonlReader(["a.jsonl", "b.jsonl"], types={"x": "json"})
    assert reader.parameters() == {"file_paths": ["a.jsonl", "b.jsonl"], "types": {"x": "json"}}
    assert pickle.loads(pickle.dumps(reader)) == reader
    assert JsonlReader(tmp_path / "nothing").name == "jsonl_reader"


def test_object_stores_are_read_like_folders(s3_server, compress, read_all):
    import fsspec

    rows = some_rows(900)
    bucket, options = s3_server.url, s3_server.storage_options
    with fsspec.open(f"{bucket}/in/a.jsonl", "wb", **options) as file:
        file.write(as_lines(rows[:300]))
    with fsspec.open(f"{bucket}/in/b.jsonl.zst", "wb", **options) as file:
        file.write(b"".join(compress("zst", as_lines(rows[i : i + 100])) for i in range(300, 900, 100)))
    reader = JsonlReader(f"{bucket}/in/", blocksize=8000, storage_options=options)
    found = read_all(reader)
    assert found.rows == rows
    assert len(found.layout.partitions) > 4
    assert found.addresses[0] == f"{bucket}/in/a.jsonl:0"
    before = found.layout.partitions[0].identity
    with fsspec.open(f"{bucket}/in/a.jsonl", "wb", **options) as file:
        file.write(as_lines(rows[:300]).replace(b"2020", b"2021"))
    assert reader.layout(1).partitions[0].identity != before
    with pytest.raises(SourceError, match="does not exist"):
        JsonlReader(f"{bucket}/nothing.jsonl", storage_options=options).layout(1)


# ----------------------------------------------------------------------------------------------------------------- text


@pytest.mark.parametrize("suffix", CODECS)
@pytest.mark.parametrize("blocksize", [10, 10**6])
def test_text_gives_a_row_per_line_without_its_end(suffix, blocksize, tmp_path, compress, read_all):
    data = "one\r\n\n  two \nthreé".encode()
    (tmp_path / f"a.txt{suffix}").write_bytes(compress(suffix[1:], data) if suffix else data)
    found = read_all(TextReader(tmp_path, blocksize=blocksize))
    assert found.rows == [{"text": "one"}, {"text": "  two "}, {"text": "threé"}]
    assert [address.rpartition(":")[2] for address in found.addresses] == ["0", "6", "13"]


def test_text_that_is_not_utf8_fails_that_line(tmp_path, read_all):
    (tmp_path / "a.txt").write_bytes(b"good\n\xff\xfe\nfine\n")
    found = read_all(TextReader(tmp_path, columns={"line": "text"}))
    assert found.rows == [{"line": "good"}, {"line": "fine"}]
    assert [failure.address.rpartition(":")[2] for failure in found.failures] == ["5"]


def test_text_by_file_gives_a_row_per_file_with_its_path(tmp_path, compress, read_all):
    (tmp_path / "a.md").write_bytes(b"\xef\xbb\xbf# One\n\nmore\n")
    (tmp_path / "b.txt.gz").write_bytes(compress("gz", b"two\n"))
    (tmp_path / "c.txt").write_bytes(b"\xff")
    (tmp_path / "d.txt").write_bytes(b"")
    found = read_all(TextReader(tmp_path, unit="file"), batch_bytes=5)
    assert found.rows == [
        {"text": "# One\n\nmore\n", "path": f"{tmp_path}/a.md"},
        {"text": "two\n", "path": f"{tmp_path}/b.txt.gz"},
        {"text": "", "path": f"{tmp_path}/d.txt"},
    ]
    assert [failure.address for failure in found.failures] == [f"{tmp_path}/c.txt:0"]
    assert read_all(TextReader(tmp_path, unit="file", limit=1)).rows[0]["text"] == "# One\n\nmore\n"


# ------------------------------------------------------------------------------------------------------------ any format


@pytest.mark.parametrize(
    ("name", "reader"),
    [
        ("a.jsonl.gz", JsonlReader),
        ("a.parquet", ParquetReader),
        ("a.tsv", CsvReader),
        ("a.feather", ArrowReader),
        ("a.md", TextReader),
    ],
)
def test_the_reader_of_a_file_is_found_by_its_name(name, reader, tmp_path):
    (tmp_path / name).write_bytes(b"")
    found = reader_for(str(tmp_path / name), limit=3)
    assert type(found) is reader
    assert found.limit == 3


def test_twenty_small_codecs_in_one_folder_make_one_partition(tmp_path, compress, read_all):
    rows = some_rows(60)
    for index in range(20):
        write(tmp_path / f"{index:02}.jsonl{CODECS[index % 6]}", rows[3 * index : 3 * index + 3], compress)
    found = read_all(JsonlReader(tmp_path))
    assert (found.rows, len(found.layout.partitions)) == (rows, 1)
    assert pa.types.is_string(found.layout.schema.field("date").type)
