"""A whole run against an S3 server on loopback: read from it, write to it, resume there."""

import json
import os

import pyarrow.parquet as pq
import pytest
import s3fs

import tamis
from tamis import JsonlReader, JsonlWriter, ParquetWriter, Pipeline
from tamis.dedup import ExactDedup, FuzzyDedup, Groups, SubstringDedup
from tamis.errors import LedgerError
from tamis.events import PartitionCommitted
from tamis.ledger import Ledger
from tamis.sampling import Sample
from tamis.store import Store
from tamis.text.quality import WordCount
from tamis.verification import verify


@pytest.fixture
def bucket(s3_server):
    system = s3fs.S3FileSystem(**s3_server.storage_options)
    for number in range(3):
        rows = [{"id": f"{number}-{row}", "text": "word " * (row % 9)} for row in range(100)]
        system.pipe_file(f"{s3_server.url}/in/{number}.jsonl", "".join(json.dumps(r) + "\n" for r in rows).encode())
    return s3_server


def job(bucket, *middle, writer=JsonlWriter):
    options = bucket.storage_options
    return Pipeline(
        JsonlReader(f"{bucket.url}/in/", files_per_partition=1, storage_options=options),
        WordCount(min_words=3),
        *middle,
        writer(f"{bucket.url}/out", storage_options=options),
    )


def listing(bucket):
    system = s3fs.S3FileSystem(**bucket.storage_options)
    system.invalidate_cache()
    return sorted(path.partition("/out/")[2] for path in system.find(f"{bucket.url}/out"))


def rows_out(bucket):
    system = s3fs.S3FileSystem(**bucket.storage_options)
    system.invalidate_cache()
    files = sorted(system.glob(f"{bucket.url}/out/part-*.jsonl"))
    return [json.loads(line) for file in files for line in system.cat_file(file).splitlines()]


@pytest.mark.parametrize("executor", ["inline", "local"])
def test_rows_go_from_bucket_to_bucket(bucket, executor):
    report = job(bucket).run(executor=executor)
    assert (report.read, report.kept) == (300, len(rows_out(bucket)))
    assert report.balances
    assert [row["id"] for row in rows_out(bucket)][:3] == ["0-3", "0-4", "0-5"]
    assert ".tamis/report.json" in listing(bucket)
    assert ".tamis/lock" not in listing(bucket)


def test_a_second_run_has_nothing_to_do_and_a_changed_object_is_redone(bucket):
    job(bucket).run(executor="inline")
    assert job(bucket).run(executor="inline").state == "unchanged"
    system = s3fs.S3FileSystem(**bucket.storage_options)
    system.pipe_file(f"{bucket.url}/in/1.jsonl", b'{"id": "new", "text": "one two three"}\n')
    done = []
    report = job(bucket).run(
        executor="inline", on_event=lambda e: done.append(e.partition) if isinstance(e, PartitionCommitted) else None
    )
    assert done == [1]
    assert report.read == 201
    assert "new" in [row["id"] for row in rows_out(bucket)]


def test_a_lost_object_is_made_again(bucket):
    job(bucket).run(executor="inline")
    before = rows_out(bucket)
    s3fs.S3FileSystem(**bucket.storage_options).rm(f"{bucket.url}/out/part-000001.jsonl")
    job(bucket).run(executor="inline")
    assert rows_out(bucket) == before


def test_parquet_and_a_gather_work_there_too(bucket):
    report = job(bucket, Sample(rows=17), writer=ParquetWriter).run()
    assert report.kept == 17
    system = s3fs.S3FileSystem(**bucket.storage_options)
    system.invalidate_cache()
    files = system.glob(f"{bucket.url}/out/*.parquet")
    assert sum(pq.read_table(file, filesystem=system).num_rows for file in files) == 17


def test_verify_finds_a_changed_object(bucket):
    job(bucket).run(executor="inline")
    output, options = f"{bucket.url}/out", bucket.storage_options
    assert tamis.verify(output, storage_options=options).ok
    system = s3fs.S3FileSystem(**options)
    data = system.cat_file(f"{output}/part-000001.jsonl")
    system.pipe_file(f"{output}/part-000001.jsonl", data.replace(b"word", b"wort", 1))
    found = tamis.verify(output, forget=True, storage_options=options)
    assert found.damaged == {"part-000001.jsonl": "its checksum is wrong"}
    job(bucket).run(executor="inline")
    assert system.cat_file(f"{output}/part-000001.jsonl") == data


def test_two_runs_cannot_write_to_one_bucket(bucket):
    store = Store(f"{bucket.url}/out", bucket.storage_options)
    store.make()
    with Ledger(store), pytest.raises(LedgerError, match="another run is writing"):
        job(bucket).run(executor="inline")


def test_a_lock_left_by_a_dead_run_is_taken_over(bucket):
    Store(f"{bucket.url}/out", bucket.storage_options).write(
        ".tamis/lock", json.dumps({"owner": "gone", "renewed": 0, "process": 1}).encode()
    )
    assert job(bucket).run(executor="inline").kept > 0


def test_an_output_that_would_harm_its_input_is_seen(bucket):
    def touches(source, folder):
        reader = JsonlReader(f"{bucket.url}/{source}", storage_options=bucket.storage_options)
        return str(reader.touches(f"{bucket.url}/{folder}", "part-000000.jsonl"))

    assert "is within" in touches("in", "in/out")
    assert "is within" in touches("in/", "in/")
    assert "contains an input file" in touches("in", "")
    assert "contains an input file" in touches("in/0.jsonl", "in")
    assert touches("in", "input") == "None"
    assert touches("in", "i") == "None"


@pytest.mark.parametrize("writer", [JsonlWriter, ParquetWriter])
def test_rows_in_an_object_store_are_reused_with_other_thresholds(bucket, writer):
    system, options = s3fs.S3FileSystem(**bucket.storage_options), bucket.storage_options
    run = {"executor": "inline", "scores": True, "rejects": True}

    def filtered(folder, minimum):
        reader = JsonlReader(f"{bucket.url}/in/", files_per_partition=1, storage_options=options)
        sink = writer(f"{bucket.url}/{folder}", storage_options=options)
        return Pipeline(reader, WordCount(min_words=minimum), sink).run(**run)

    def shards(folder):
        system.invalidate_cache()
        names = sorted(system.glob(f"{bucket.url}/{folder}/part-*"))
        return [system.cat_file(name) for name in names]

    filtered("out", 3)
    for minimum in (5, 2, 4):
        report, fresh = filtered("out", minimum), filtered(f"fresh-{minimum}", minimum)
        assert (report.kept, report.dropped) == (fresh.kept, fresh.dropped)
        assert len(shards("out")) == 3
        assert shards("out") == shards(f"fresh-{minimum}")
        assert verify(f"{bucket.url}/out", storage_options=options).ok


# ------------------------------------------------------------------------------------- workers that share no folder


@pytest.fixture
def folder_of_the_driver(tmp_path):
    """A path that leads to a folder in this process alone: in a worker, /proc/self is another process."""
    (tmp_path / "driver").mkdir()
    descriptor = os.open(tmp_path / "driver", os.O_RDONLY | os.O_DIRECTORY)
    yield f"/proc/self/fd/{descriptor}"
    os.close(descriptor)


def corpus():
    words = [f"word{number}" for number in range(40)]
    texts = [" ".join(words[(row * 7 + place) % 40] for place in range(30)) for row in range(40)]
    return [{"id": str(n), "text": texts[n % 40] + (" and one more" if n % 3 else "")} for n in range(150)]


STEPS = {
    "exact": ExactDedup(),
    "lines": ExactDedup(unit="line", min_unit_bytes=1),
    "fuzzy": FuzzyDedup(),
    "substrings": SubstringDedup(min_bytes=12),
    "changed rows": None,
}


@pytest.mark.parametrize("step", STEPS)
def test_workers_that_share_no_folder_with_the_driver_deduplicate(
    s3_server, tmp_path, monkeypatch, folder_of_the_driver, step
):
    monkeypatch.setenv("TAMIS_SCRATCH", str(tmp_path / "workers"))
    system = s3fs.S3FileSystem(**s3_server.storage_options)
    lines = [json.dumps(row) + "\n" for row in corpus()]
    for number in range(3):
        data = "".join(lines[number * 50 : number * 50 + 50]).encode()
        system.pipe_file(f"{s3_server.url}/in/{number}.jsonl", data)
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{number}.jsonl").write_bytes(data)
    # A step before the deduplication makes it write the rows to the exchange too.
    steps = [STEPS[step]] if STEPS[step] is not None else [WordCount(min_words=3), ExactDedup()]
    options = s3_server.storage_options
    there = Pipeline(
        JsonlReader(f"{s3_server.url}/in/", files_per_partition=1, storage_options=options),
        *steps,
        JsonlWriter(f"{s3_server.url}/out", storage_options=options),
    ).run(workers=2, scratch=folder_of_the_driver, exchange=f"{s3_server.url}/between", rejects=True)
    here = Pipeline(
        JsonlReader(str(tmp_path / "in"), files_per_partition=1), *steps, JsonlWriter(str(tmp_path / "out"))
    ).run(executor="inline", rejects=True)
    assert (there.read, there.kept, there.dropped) == (here.read, here.kept, here.dropped)
    assert sum(here.dropped.values()) > 0
    assert there.balances
    local = [
        json.loads(line)
        for file in sorted((tmp_path / "out").glob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    assert rows_out(s3_server) == local
    names = ["id", "kept_id", "row", "kept_row", "similarity", "unit", "kept_unit", "dropped"]
    found, expected = Groups.load(f"{s3_server.url}/out", options).table(), Groups.load(tmp_path / "out").table()
    order = [("row", "ascending"), ("unit", "ascending")]
    assert found.select(names).sort_by(order) == expected.select(names).sort_by(order)
    assert not system.find(f"{s3_server.url}/between"), "everything in the exchange is removed at the end"
    assert not [name for name in listing(s3_server) if "attempts" in name or "draft" in name]
    assert not [path for path in (tmp_path / "workers").rglob("*") if path.is_file()]
    assert not [path for path in (tmp_path / "driver").rglob("*") if path.is_file()]


def test_a_run_with_its_exchange_in_a_store_resumes_there(s3_server, tmp_path, monkeypatch):
    monkeypatch.setenv("TAMIS_SCRATCH", str(tmp_path / "scratch"))
    system = s3fs.S3FileSystem(**s3_server.storage_options)
    for number in range(3):
        data = "".join(json.dumps(row) + "\n" for row in corpus()[number * 50 : number * 50 + 50])
        system.pipe_file(f"{s3_server.url}/in/{number}.jsonl", data.encode())

    def run(**more):
        return Pipeline(
            JsonlReader(f"{s3_server.url}/in/", files_per_partition=1, storage_options=s3_server.storage_options),
            FuzzyDedup(),
            JsonlWriter(f"{s3_server.url}/out", storage_options=s3_server.storage_options),
        ).run(executor="inline", exchange=f"{s3_server.url}/between", **more)

    def stop(event):
        if isinstance(event, PartitionCommitted) and event.stage == 1:
            raise RuntimeError("stopped after the first partition of the second stage")

    with pytest.raises(RuntimeError, match="stopped after"):
        run(on_event=stop)
    assert system.find(f"{s3_server.url}/between")
    done = []
    report = run(on_event=lambda e: done.append((e.stage, e.partition)) if isinstance(e, PartitionCommitted) else None)
    assert report.balances
    assert done == [(1, 1), (1, 2)]
    assert not system.find(f"{s3_server.url}/between")
