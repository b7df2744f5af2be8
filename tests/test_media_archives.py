"""From archives to archives and folders: the same rows for any division of the work, after kills, and in any budget."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tamis import Batch, FolderWriter, ImageReader, Pipeline, WebDatasetReader, WebDatasetWriter
from tamis.dedup.exact import ExactDedup
from tamis.events import PartitionCommitted
from tamis.media import read_bytes
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
