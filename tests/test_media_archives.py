"""From archives to archives and folders: the same rows for any division of the work, after kills, and in any budget."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest
import s3fs

from tamis import (
    Batch,
    FolderWriter,
    ImageReader,
    JsonlReader,
    Pipeline,
    WebDatasetReader,
    WebDatasetWriter,
)
from tamis.batch import Origin
from tamis.context import Context
from tamis.dedup.exact import ExactDedup
from tamis.errors import MediaError
from tamis.events import PartitionCommitted
from tamis.media import read_bytes
from tamis.sources.jsonmedia import MEDIA
from tamis.sources.references import SPOOL, ReadMedia
from tests.tars import special, write_tar


def make_shards(folder, *, shards=3, rows=24):
    """Archives with duplicates, missing images, bad JSON, links and a truncated end."""
    generator = random.Random(5)
    for shard in range(shards):
        members = []
        for row in range(rows):
            key = f"{shard}{row:04d}"
            if row % 11:
                data = bytes([generator.randrange(12)]) * generator.choice([0, 10, 3000])
                members.append((f"{key}.{generator.choice(['jpg', 'png', 'webp'])}", data))
            members.append((f"{key}.txt", f"caption {row}".encode()))
            members.append((f"{key}.json", b'{"row": broken' if row % 13 == 5 else json.dumps({"row": row}).encode()))
            if row % 17 == 3:
                members.append((special(f"{key}x.jpg", tarfile.SYMTYPE, "/etc/passwd"), b""))
        path = write_tar(folder / f"{shard}.tar", members)
        if shard == 1:
            path.write_bytes(path.read_bytes()[:-11_000])
    return folder


def digest(batch: Batch):
    return {
        "digest": [None if data is None else hashlib.sha256(data).hexdigest() for data in read_bytes(batch, "image")]
    }


def fails_on_some(row):
    if row["row"] == 23:
        raise RuntimeError("row 23")
    return True


def stored_rows(output):
    """The rows of archives, whatever these are called."""
    rows = []
    for path in sorted(output.glob("part-*.tar")):
        with tarfile.open(path) as archive:
            rows += [(member.name, archive.extractfile(member).read()) for member in archive]
    return rows


def outcome(source, output, *, blocksize, **options):
    report = Pipeline(
        WebDatasetReader(source, blocksize=blocksize),
        digest,
        fails_on_some,
        ExactDedup(column="digest"),
        WebDatasetWriter(output, rows_per_shard=9),
    ).run(on_error="isolate", rejects=True, max_failed="100%", **options)
    files = (output / ".tamis" / "failed").iterdir()
    failed = sorted(line for file in files for line in file.read_text().splitlines())
    account = (report.read, report.kept, report.dropped, report.failed)
    return {"rows": stored_rows(output), "failed": failed, "account": account}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return make_shards(tmp_path_factory.mktemp("shards"))


@pytest.fixture(scope="module")
def reference(shards, tmp_path_factory):
    result = outcome(shards, tmp_path_factory.mktemp("reference") / "out", blocksize="10MB", executor="inline")
    assert len(result["rows"]) > 20
    for error in ("row 23", "is a symbolic link", "cannot be read", "truncated"):
        assert any(error in line for line in result["failed"]), error
    read, kept, dropped, failed = result["account"]
    assert read == kept + sum(dropped.values()) + failed
    return result


@pytest.mark.parametrize(
    ("blocksize", "options"),
    [
        ("2kB", {"executor": "inline"}),
        ("10MB", {"workers": 1, "memory": "512MB"}),
        ("20kB", {"workers": 2}),
        ("5kB", {"workers": 4, "memory": "1500MB"}),
    ],
    ids=str,
)
def test_archives_do_not_depend_on_how_the_work_is_divided(shards, reference, tmp_path, blocksize, options):
    assert outcome(shards, tmp_path / "out", blocksize=blocksize, **options) == reference


# ------------------------------------------------------------------------------------------------------------------ kills


def contents(output):
    return {
        str(path.relative_to(output)): path.read_bytes()
        for path in sorted(output.rglob("*"))
        if path.is_file() and ".tamis" not in path.parts
    }


SCRIPT = """
import os, signal, sys
from tamis import FolderWriter, ImageReader, Pipeline, WebDatasetWriter
from tamis.events import PartitionCommitted
source, output, sink, kill = sys.argv[1:]
seen = []
def watch(event):
    if isinstance(event, PartitionCommitted):
        seen.append(event)
        if len(seen) == int(kill):
            os.killpg(0, signal.SIGKILL)
writer = FolderWriter(output) if sink == "folder" else WebDatasetWriter(output, rows_per_shard=3)
Pipeline(ImageReader(source, blocksize="4kB"), writer).run(workers=2, on_event=watch)
"""


@pytest.mark.slow
@pytest.mark.parametrize("sink", ["folder", "archives"])
def test_killed_runs_leave_the_same_files(sink, tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(60):
        (tmp_path / "in" / f"{number:02d}.png").write_bytes(b"\x89PNG" + bytes([number]) * (number * 13))

    def run(output, kill):
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / "in"), str(tmp_path / output), sink, str(kill)]
        return subprocess.run(command, start_new_session=True, capture_output=True, env={**os.environ}).returncode

    assert run("undisturbed", 0) == 0
    kills = [run("out", kill) for kill in (1, 3)]
    assert kills == [-signal.SIGKILL] * 2
    left = tmp_path / "out" / "part-000099"  # as an attempt would leave it that was killed before its commit
    left.mkdir()
    (left / "x.png").write_bytes(b"x")
    assert run("out", 0) == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")
    assert sum(name.endswith(".png") for name in contents(tmp_path / "out")) == (60 if sink == "folder" else 0)


def test_an_interrupted_run_repeats_only_what_is_missing(tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(8):
        (tmp_path / "in" / f"{number}.png").write_bytes(bytes([number]))
    steps = [ImageReader(tmp_path / "in", files_per_partition=2), FolderWriter(tmp_path / "out")]
    done = []

    def stop(event):
        if isinstance(event, PartitionCommitted):
            done.append(event.partition)
            if len(done) == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Pipeline(*steps).run(executor="inline", on_event=stop)
    done.append(None)
    Pipeline(*steps).run(
        executor="inline", on_event=lambda e: done.append(e.partition) if isinstance(e, PartitionCommitted) else None
    )
    assert done == [0, 1, None, 2, 3]
    assert len(contents(tmp_path / "out")) == 12


# ----------------------------------------------------------------------------------------------------------------- memory


@pytest.mark.slow
def test_a_budget_holds_however_large_the_images_are(tmp_path):
    block = random.Random(1).randbytes(2**20)
    members = []
    for number in range(60):
        members.append((f"{number:04d}.jpg", block * (20 if number % 20 == 7 else 4)))
        members.append((f"{number:04d}.txt", b"caption"))
    path = write_tar(tmp_path / "in" / "0.tar", members)
    size = path.stat().st_size
    assert size > 280_000_000
    steps = [WebDatasetReader(tmp_path / "in"), digest, WebDatasetWriter(tmp_path / "out")]
    report = Pipeline(*steps).run(memory="600MB", workers=2)
    assert (report.kept, report.failed) == (60, 0)
    assert report.peak_memory_bytes < 600_000_000
    written = sum(each.stat().st_size for each in Path(tmp_path / "out").glob("*.tar"))
    assert written > size


LARGE = 300_000_000

COPY = """
import json, sys
import tamis
rows, url, options, sink, folder = sys.argv[1:]
reader = tamis.JsonlReader(rows, media_roots=[url], storage_options=json.loads(options))
steps = [tamis.MediaReference(to="video"), getattr(tamis, sink)(folder + "/out")]
report = tamis.Pipeline(reader, *steps).run(workers=1, memory="520MB", scratch=folder + "/tmp")
print(json.dumps([report.kept, report.failed, report.peak_memory_bytes]))
"""


def write_large(target) -> str:
    """Write 300 MB that do not repeat within a block; returns their hash."""
    block, state = random.Random(2).randbytes(1_000_000), hashlib.sha256()
    for number in range(LARGE // len(block)):
        piece = number.to_bytes(8, "big") + block[8:]
        state.update(piece)
        target.write(piece)
    return state.hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "sink"), [("stored", FolderWriter), ("deflated", WebDatasetWriter), ("bucket", FolderWriter)]
)
def test_large_members_of_zip_archives_and_files_in_a_bucket_are_copied_in_pieces(place, sink, tmp_path, s3_server):
    (tmp_path / "in").mkdir()
    if place == "bucket":
        path = f"{s3_server.url}/large.mp4"
        with s3fs.S3FileSystem(**s3_server.storage_options).open(path, "wb") as file:
            expected = write_large(file)
    else:
        path = "a.zip#large.mp4"
        method = zipfile.ZIP_STORED if place == "stored" else zipfile.ZIP_DEFLATED
        with (
            zipfile.ZipFile(tmp_path / "in/a.zip", "w", method, compresslevel=1) as archive,
            archive.open("large.mp4", "w", force_zip64=True) as file,
        ):
            expected = write_large(file)
            file.close()
            archive.writestr("small.mp4", b"small")
    rows = [{"id": 1, "path": path}] + ([] if place == "bucket" else [{"id": 2, "path": "a.zip#small.mp4"}])
    (tmp_path / "in/rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = [tmp_path / "in/rows.jsonl", s3_server.url, json.dumps(s3_server.storage_options), sink.__name__, tmp_path]
    # A process of its own, because the S3 server holds whole files in this one.
    done = subprocess.run([sys.executable, "-c", COPY, *map(str, given)], capture_output=True, text=True, check=True)
    kept, failed, peak = json.loads(done.stdout)
    assert (kept, failed) == (len(rows), 0)
    assert peak < 520_000_000  # held in memory, it would take more than twice the size of the file
    if sink is FolderWriter:
        with (tmp_path / "out/part-000000/00000000.mp4").open("rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == expected
    else:
        with tarfile.open(tmp_path / "out/part-000000.tar") as archive:
            member = next(each for each in archive if each.size == LARGE)
            assert hashlib.file_digest(archive.extractfile(member), "sha256").hexdigest() == expected
    assert not [each for each in (tmp_path / "tmp").rglob("*") if each.parent.name == SPOOL]


def test_a_large_damaged_member_of_a_zip_archive_fails_its_row(tmp_path, monkeypatch):
    monkeypatch.setattr("tamis.media_files.LARGE_BYTES", 1000)
    monkeypatch.setattr("tamis.sinks.folder.LARGE_BYTES", 1000)
    data = random.Random(3).randbytes(5000)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("bad.mp4", data)
        archive.writestr("good.mp4", data)
    content = bytearray((tmp_path / "a.zip").read_bytes())
    content[content.index(data) + 2500] ^= 1
    (tmp_path / "a.zip").write_bytes(content)
    rows = [{"id": n, "video": {"bytes": None, "path": f"a.zip#{name}.mp4"}} for n, name in enumerate(("bad", "good"))]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = Pipeline(JsonlReader(tmp_path / "rows.jsonl"), FolderWriter(tmp_path / "out")).run(
        executor="inline", on_error="isolate", scratch=tmp_path / "tmp"
    )
    assert (report.kept, report.failed) == (1, 1)
    assert (tmp_path / "out/part-000000/00000000.mp4").read_bytes() == data
    assert not [each for each in (tmp_path / "tmp").rglob("*") if each.parent.name == SPOOL]


def test_copies_for_a_batch_are_removed_if_one_of_its_rows_fails(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in ("1.mp4", "2.mp4"):
            archive.writestr(name, name.encode() * 1000)
    content = (tmp_path / "a.zip").read_bytes()
    (tmp_path / "a.zip").write_bytes(content.replace(b"2.mp42.mp4", b"2.mp42_mp4", 1))
    column = pa.array([{"bytes": None, "path": f"a.zip#{name}.mp4"} for name in (1, 2)], MEDIA)
    batch = Batch(pa.table({"video": column}), Origin.of(str(tmp_path / "rows.jsonl"), range(2)))
    runner = ReadMedia(leave_above=1000).open(Context(scratch=tmp_path / "scratch"))
    with pytest.raises(MediaError):
        runner.apply(batch)
    assert list((tmp_path / "scratch" / SPOOL).iterdir()) == []
    runner.apply(batch.select(slice(1)))
    assert len(list((tmp_path / "scratch" / SPOOL).iterdir())) == 1
