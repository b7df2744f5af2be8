"""Whole runs over damaged files: what is lost is counted and reported, and the rest is read."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tamis import JsonlReader, JsonlWriter, ParquetReader, Pipeline, TextReader
from tamis.dedup.exact import ExactDedup
from tamis.errors import SourceError
from tamis.operators import operator


def member(*numbers: int, wrong_checksum: bool = False) -> bytes:
    data = bytearray(gzip.compress("".join(json.dumps({"n": n, "text": f"row {n}"}) + "\n" for n in numbers).encode()))
    if wrong_checksum:
        data[-6] ^= 1
    return bytes(data)


@pytest.fixture
def folder(tmp_path):
    """The input; the output lies beside it."""
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def kept(folder) -> list[int]:
    files = sorted(folder.glob("part-*"))
    return [json.loads(line)["n"] for file in files for line in file.read_text().splitlines()]


@pytest.mark.parametrize("executor", ["inline", "local"])
def test_rows_of_a_corrupt_member_fail_after_they_were_processed(executor, folder):
    (folder / "a.jsonl.gz").write_bytes(member(0, 1, 2) + member(3, 4, wrong_checksum=True))
    (folder / "b.jsonl.gz").write_bytes(member(5, 6, wrong_checksum=True))
    (folder / "c.jsonl.gz").write_bytes(member(7, 8))
    steps = JsonlReader(folder), lambda row: {"double": 2 * row["n"]}, JsonlWriter(folder.parent / "out")
    report = Pipeline(*steps).run(executor=executor, max_failed="100%")
    assert kept(folder.parent / "out") == [0, 1, 2, 7, 8]
    assert (report.read, report.kept, report.failed) == (9, 5, 4)
    assert list(report.damaged_files) == [f"{folder}/a.jsonl.gz", f"{folder}/b.jsonl.gz"]


def test_a_stage_after_a_gather_reads_the_same_rows_of_a_corrupt_file(folder):
    (folder / "a.jsonl.gz").write_bytes(member(0, 1, 0) + member(3, 4, wrong_checksum=True))
    (folder / "b.jsonl.gz").write_bytes(member(1, 8))
    steps = JsonlReader(folder, files_per_partition=1), ExactDedup(), JsonlWriter(folder.parent / "out")
    report = Pipeline(*steps).run(executor="inline", max_failed="100%")
    assert kept(folder.parent / "out") == [0, 1, 8]
    assert (report.read, report.kept, report.failed) == (7, 3, 2)
    assert report.balances


def test_damaged_rows_are_kept_on_request(folder):
    (folder / "a.jsonl.gz").write_bytes(member(0, 1, wrong_checksum=True))
    steps = JsonlReader(folder, on_damage="keep"), JsonlWriter(folder.parent / "out")
    report = Pipeline(*steps).run(executor="inline", max_failed="100%")
    assert kept(folder.parent / "out") == [0, 1]
    assert (report.failed, len(report.damaged_files)) == (0, 1)


@operator()
class CrashingReader(TextReader):
    """A reader whose library crashes over some files."""

    def texts(self, piece, *arguments, **options):
        if "/crash" in piece.path:
            os.kill(os.getpid(), signal.SIGSEGV)
        yield from super().texts(piece, *arguments, **options)


def test_a_file_that_crashes_its_reader_costs_that_file(folder):
    for name in ("a.txt", "crash1.txt", "m.txt", "crash2.txt", "z.txt"):
        (folder / name).write_text(f"{name}\n")
    steps = CrashingReader(folder), JsonlWriter(folder.parent / "out")
    report = Pipeline(*steps).run(workers=1, max_failed="100%")
    assert (report.read, report.kept, report.failed) == (3, 3, 0)
    assert [path.rpartition("/")[2] for path in report.damaged_files] == ["crash1.txt", "crash2.txt"]
    assert all("SIGSEGV" in error for error in report.damaged_files.values())


def test_a_damaged_file_that_is_replaced_is_read_by_the_next_run(folder):
    pq.write_table(pa.table({"n": [0]}), folder / "a.parquet")
    (folder / "b.parquet").write_bytes(b"not Parquet")
    job = Pipeline(ParquetReader(folder), JsonlWriter(folder.parent / "out"))
    assert list(job.run(executor="inline", max_failed="100%").damaged_files) == [f"{folder}/b.parquet"]
    assert job.run(executor="inline", max_failed="100%").state == "unchanged"
    pq.write_table(pa.table({"n": [1]}), folder / "b.parquet")
    report = job.run(executor="inline", max_failed="100%")
    assert (kept(folder.parent / "out"), report.damaged_files) == ([0, 1], {})


def test_a_file_that_disappears_after_it_was_listed_costs_that_file(folder, monkeypatch):
    for name in ("a.jsonl", "b.jsonl"):
        (folder / name).write_text('{"n": 1}\n')
    listed = JsonlReader.list_files

    def list_then_delete(self):
        files = listed(self)
        (folder / "b.jsonl").unlink(missing_ok=True)
        return files

    monkeypatch.setattr(JsonlReader, "touches", lambda self, folder, name: None)
    monkeypatch.setattr(JsonlReader, "list_files", list_then_delete)
    report = Pipeline(JsonlReader(folder), JsonlWriter(folder.parent / "out")).run(executor="inline", max_failed="100%")
    assert report.kept == 1
    assert "does not exist" in report.damaged_files[f"{folder}/b.jsonl"]


def test_a_run_without_a_readable_file_ends_with_an_error(folder):
    (folder / "a.parquet").write_bytes(b"not Parquet")
    with pytest.raises(SourceError, match=r"a.parquet is not a Parquet file"):
        Pipeline(ParquetReader(folder), JsonlWriter(folder.parent / "out")).run(executor="inline")


def test_mutated_gzip_files_give_balanced_accounts_and_no_altered_row(folder):
    originals = {f"row {n}" for n in range(60)}
    whole = b"".join(member(*range(first, first + 20)) for first in (0, 20, 40))
    for seed in range(30):
        chance, data = random.Random(seed), bytearray(whole)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        (folder / f"{seed:02}.jsonl.gz").write_bytes(data)
    table = Pipeline(JsonlReader(folder)).collect(executor="inline", max_failed="100%")
    assert set(table.column("text").to_pylist()) <= originals
    assert len(table) > 300
