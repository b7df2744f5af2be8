"""`skip` beside `limit`: any reader, compressed or not, divided or not, gives the rows in between."""

import gzip
import itertools
import json

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from tamis import (
    ArrowReader,
    CsvReader,
    ImageReader,
    JsonlReader,
    ParquetReader,
    Pipeline,
    Rows,
    TextReader,
    WarcReader,
    WebDatasetReader,
)
from tamis.errors import ParameterError
from tests.tars import tar_bytes

ROWS = [{"n": number, "text": f"row {number} " * 5} for number in range(60)]


def parquet(folder, name, rows):
    pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet", row_group_size=7)


def arrow(folder, name, rows):
    feather.write_feather(pa.Table.from_pylist(rows), str(folder / f"{name}.arrow"), chunksize=7)


def jsonl(folder, name, rows):
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def packed(folder, name, rows):
    parts = [rows[at : at + 7] for at in range(0, len(rows), 7)]
    lines = [gzip.compress("".join(json.dumps(row) + "\n" for row in part).encode()) for part in parts]
    (folder / f"{name}.jsonl.gz").write_bytes(b"".join(lines))


def csv(folder, name, rows):
    (folder / f"{name}.csv").write_text("n,text\n" + "".join(f"{row['n']},{row['text']}\n" for row in rows))


def text(folder, name, rows):
    (folder / f"{name}.txt").write_text("".join(f"{row['n']}\n" for row in rows))


def tar(folder, name, rows):
    (folder / f"{name}.tar").write_bytes(
        tar_bytes([(f"{row['n']:03d}.json", json.dumps(row).encode()) for row in rows])
    )


def warc(folder, name, rows):
    records = b""
    for row in rows:
        body = str(row["n"]).encode()
        head = f"WARC/1.0\r\nWARC-Type: conversion\r\nWARC-Record-ID: <urn:{row['n']}>\r\nContent-Type: text/plain\r\n"
        records += f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body + b"\r\n\r\n"
    (folder / f"{name}.wet").write_bytes(records)


READERS = {
    "parquet": (parquet, ParquetReader),
    "arrow": (arrow, ArrowReader),
    "jsonl": (jsonl, JsonlReader),
    "jsonl.gz": (packed, JsonlReader),
    "csv": (csv, CsvReader),
    "text": (text, TextReader),
    "tar": (tar, WebDatasetReader),
    "warc": (warc, WarcReader),
}


def numbers(reader):
    table = Pipeline(reader).collect(executor="inline")
    return [int(value) for value in table["n" if "n" in table.column_names else "text"].to_pylist()]


@pytest.mark.parametrize("kind", READERS)
def test_rows_in_between(kind, tmp_path):
    write, reader = READERS[kind]
    bounds = [0, 20, 41, 60]
    for name, (first, last) in zip("abc", itertools.pairwise(bounds), strict=True):
        write(tmp_path, name, ROWS[first:last])
    for skip, limit in ((0, 5), (3, None), (19, 3), (20, 21), (45, 100), (59, 1), (60, None), (100, 5)):
        for blocksize in (100, "1MB"):
            found = numbers(reader(str(tmp_path), skip=skip, limit=limit, blocksize=blocksize))
            end = None if limit is None else skip + limit
            assert found == list(range(60))[skip:end], (skip, limit, blocksize)


def test_files_as_rows_and_rows_in_memory(tmp_path):
    for name in "abcd":
        (tmp_path / f"{name}.png").write_bytes(b"")
        (tmp_path / f"{name}.txt").write_text(name)
    found = Pipeline(ImageReader(str(tmp_path), skip=1, limit=2)).collect(executor="inline")
    assert [path[-5:] for path in found["path"].to_pylist()] == ["b.png", "c.png"]
    found = Pipeline(TextReader(str(tmp_path), unit="file", skip=3)).collect(executor="inline")
    assert found["text"].to_pylist() == ["d"]
    source = Rows([{"n": n} for n in range(5)], skip=2, limit=2)
    assert Pipeline(source).collect(executor="inline")["n"].to_pylist() == [2, 3]
    assert Rows(**source.parameters()) == source


def test_rows_that_are_skipped_do_not_fail(tmp_path):
    (tmp_path / "a.csv").write_text("n,text\n0\n1,a\n2\n3,b\n")
    report = Pipeline(CsvReader(str(tmp_path), skip=1)).run(executor="inline", max_failed=1.0)
    assert (report.read, report.failed) == (3, 1)
    (tmp_path / "a.jsonl").write_text('{"n": 0\n{"n": 1}\n{"n": 2\n{"n": 3}\n')
    report = Pipeline(JsonlReader(str(tmp_path), skip=1)).run(executor="inline", max_failed=1.0)
    assert (report.read, report.failed) == (3, 1)


def test_skip_is_checked():
    with pytest.raises(ParameterError, match="must not be negative"):
        JsonlReader("x", skip=-1).check()
    with pytest.raises(ParameterError, match="must not be negative"):
        Rows([], skip=-1)
