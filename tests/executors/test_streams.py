"""Stages that run at the same time: the same rows as in one worker, whatever happens in any of them."""

import fcntl
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet
import pytest

from tamis import JsonlReader, JsonlWriter, LocalExecutor, Pipeline, Resources, Rows, operator, step
from tamis.batch import Batch
from tamis.dedup import ExactDedup
from tamis.errors import BudgetError, Interrupted, ParameterError, WorkerError
from tamis.executors.packets import PacketRows, PacketWriter, partition_of
from tamis.executors.tasks import Emission
from tamis.memory import slots
from tamis.memory.budget import PoolNeed, make_budget, stream_budget
from tamis.operators import Expand, Filter, Map, Reading, at_least
from tamis.text.quality import WordCount
from tests.test_pipeline import numbered, write_jsonl

STREAMED = LocalExecutor(workers=2, streaming="always")


def strike(batch, marker, kind):
    """Do what a test asks for when the row that it names passes, as often as there are lines in the file `marker`."""
    path = Path(marker) if marker else None
    if path is None or not path.exists():
        return
    spec = json.loads(path.read_text())
    if spec["kind"] != kind or spec["id"] not in batch["id"].to_pylist():
        return
    if spec["times"] is not None:
        if spec["times"] == 0:
            return
        path.write_text(json.dumps(spec | {"times": spec["times"] - 1}))
    if spec["how"] == "memory":
        bytearray(20_000_000_000)
    elif spec["how"] == "raise":
        raise RuntimeError("as planned")
    else:
        os.kill(os.getpid(), signal.SIGKILL)


@operator(reads=("text", "id"))
class LightForTests(Map):
    """A step before or after the heavy one."""

    kind_of: str = "head"
    marker: str = ""
    incidental = frozenset({"marker"})

    def writes(self):
        return (self.kind_of,)

    def apply(self, batch):
        strike(batch, self.marker, self.kind_of)
        return {self.kind_of: np.array([len(text) for text in batch["text"].to_pylist()])}


@operator(reads=("text", "id"), writes="weight", resources=Resources(memory="10MB"))
class HeavyForTests(Filter):
    """A filter that declares memory, and so gets workers of its own."""

    marker: str = ""
    min_weight: int = 60
    incidental = frozenset({"marker"})

    def score(self, batch):
        strike(batch, self.marker, "middle")
        return {"weight": np.array([len(text) for text in batch["text"].to_pylist()])}

    def rules(self):
        return [at_least("weight", self.min_weight)]


@operator(reads="text", writes="word", resources=Resources(memory="10MB"))
class HeavyWordsForTests(Expand):
    """One row for each of the first words, in a stage of its own."""

    def expand(self, batch):
        words = [text.split()[: number % 4] for number, text in enumerate(batch["text"].to_pylist())]
        parents = np.repeat(np.arange(len(words)), [len(each) for each in words])
        return pa.table({"word": [word for each in words for word in each]}), parents


def breaks_on_some(row):
    if row["id"] % 97 == 13:
        raise RuntimeError("a row that fails")
    return {"double": 2 * row["id"]}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streams")
    for number in range(3):
        rows = [
            {"id": number * 1000 + row, "text": f"{row} words " * (1 + row * 7 % 40) + "x" * (row % 1000)}
            for row in range(1000)
        ]
        write_jsonl(folder / f"{number}.jsonl", rows)
        with (folder / f"{number}.jsonl").open("a") as file:
            file.write('{"id": broken\n')
    return folder


def steps(source, output, marker="", blocksize="300kB"):
    return [
        JsonlReader(source, blocksize=blocksize),
        WordCount(min_words=5),
        LightForTests(kind_of="head", marker=marker),
        HeavyForTests(marker=marker),
        LightForTests(kind_of="tail", marker=marker),
        step(breaks_on_some, version=1),
        JsonlWriter(output),
    ]


def contents(output):
    internal = output / ".tamis"
    rows = [line for file in sorted(output.glob("part-*")) for line in file.read_text().splitlines()]
    failed = [json.loads(line) for file in (internal / "failed").glob("*") for line in file.read_text().splitlines()]
    rejects = [row for file in (internal / "rejects").glob("*") for row in pa.parquet.read_table(file).to_pylist()]
    # In one file, rows that were dropped early have nulls in the columns of later steps.
    rejects = [{name: value for name, value in row.items() if value is not None} for row in rejects]
    return {
        "rows": rows,
        "failed": sorted(failed, key=lambda row: row["address"]),
        "rejects": sorted(rejects, key=lambda row: row["_address"]),
    }


def account(report):
    counts = [(op["name"], op["rows_in"], op["rows_out"], op["dropped"], op["failed"]) for op in report.operators]
    return report.read, report.kept, report.dropped, report.failed, report.created, counts


def outcome(pipeline, output, **options):
    report = Pipeline(*pipeline).run(rejects=True, on_error="isolate", **options)
    return contents(output) | {"account": account(report)}, report


@pytest.fixture(scope="module")
def reference(source, tmp_path_factory):
    output = tmp_path_factory.mktemp("reference") / "out"
    found, report = outcome(steps(source, output), output, executor=LocalExecutor(workers=2, streaming="never"))
    assert report.streams == []
    assert len(found["failed"]) > 20
    assert found["rejects"]
    return found


@pytest.mark.parametrize(
    ("blocksize", "options"),
    [
        ("300kB", {"executor": STREAMED}),
        ("20kB", {"executor": LocalExecutor(workers=1, streaming="always")}),
        ("10MB", {"executor": LocalExecutor(workers=4, streaming="always"), "memory": "4GB"}),
        ("300kB", {"executor": STREAMED, "memory": "900MB"}),
    ],
    ids=str,
)
def test_the_same_rows_streamed(source, reference, tmp_path, blocksize, options):
    found, report = outcome(steps(source, tmp_path / "out", blocksize=blocksize), tmp_path / "out", **options)
    assert found == reference
    (group,) = report.streams
    assert [stage["name"].split(" > ")[-1] for stage in group["stages"]] == [
        "light_for_tests",
        "heavy_for_tests",
        "jsonl_writer",
    ]


@pytest.mark.parametrize("kind", ["head", "middle", "tail"])
def test_a_worker_that_dies_in_any_stage_costs_nothing(source, reference, tmp_path, kind):
    marker = tmp_path / "strike"
    marker.write_text(json.dumps({"kind": kind, "id": 1500, "how": "kill", "times": 1}))
    found, report = outcome(steps(source, tmp_path / "out", str(marker)), tmp_path / "out", executor=STREAMED)
    assert json.loads(marker.read_text())["times"] == 0
    assert found == reference
    assert report.memory["actions"]["restart"] == 1


@pytest.mark.parametrize("how", ["kill", "memory"])
@pytest.mark.parametrize("kind", ["head", "middle", "tail"])
def test_a_row_that_kills_workers_in_any_stage_fails_alone(source, reference, tmp_path, kind, how):
    marker = tmp_path / "strike"
    marker.write_text(json.dumps({"kind": kind, "id": 1500, "how": how, "times": None}))
    found, _ = outcome(steps(source, tmp_path / "out", str(marker)), tmp_path / "out", executor=STREAMED)
    kept = lambda rows: [row for row in rows if json.loads(row)["id"] != 1500]  # noqa: E731
    assert found["rows"] == kept(reference["rows"]) != reference["rows"]
    assert found["rejects"] == reference["rejects"]
    (new,) = [row for row in found["failed"] if row not in reference["failed"]]
    assert new["row"]["id"] == 1500
    assert ("SIGKILL" if how == "kill" else "MemoryError") in new["error"]


def test_an_expand_in_a_stage_of_its_own(source, tmp_path):
    def run(output, executor):
        pipeline = [
            JsonlReader(source, blocksize="100kB"),
            HeavyWordsForTests(),
            ExactDedup(column=["word", "id"]),
            JsonlWriter(output),
        ]
        found = outcome(pipeline, output, executor=executor, memory="4GB")[0]
        groups = pa.parquet.read_table(output / ".tamis" / "groups").to_pylist()
        return found | {"groups": sorted(groups, key=lambda row: row["address"])}

    streamed, fused = run(tmp_path / "streamed", STREAMED), run(tmp_path / "fused", LocalExecutor(streaming="never"))
    assert streamed == fused
    assert len(fused["rows"]) > 3000
    duplicates = [row["_address"] for row in fused["rejects"] if row["_reason"] == "exact duplicate"]
    assert [row["address"] for row in fused["groups"]] == duplicates
    assert all(re.search(r"\.jsonl:\d+/\d$", address) for address in duplicates)


def types_change(row):
    return {"value": row["id"] if row["id"] < 1500 else str(row["id"]) if row["id"] % 50 == 0 else row["id"] + 0.5}


def test_the_first_rows_decide_about_types_in_every_stage(source, tmp_path):
    def run(output, executor):
        @operator(reads="id", writes="again", resources=Resources(memory="10MB"))
        class AgainForTests(Map):
            def apply(self, batch):
                values = batch["id"].to_pylist()
                return {"again": pa.array(values if max(values) < 1500 else [value + 0.5 for value in values])}

        pipeline = [
            JsonlReader(source, blocksize="10MB"),
            AgainForTests(),
            step(types_change, version=1),
            JsonlWriter(output),
        ]
        return outcome(pipeline, output, executor=executor)[0]

    streamed = run(tmp_path / "streamed", STREAMED)
    fused = run(tmp_path / "fused", LocalExecutor(streaming="never"))
    assert streamed["failed"] == fused["failed"]
    assert len(streamed["rows"]) == len(fused["rows"])


def test_no_row_is_left_after_the_first_stage(tmp_path):
    source = write_jsonl(tmp_path / "in.jsonl", numbered(50))
    steps = [JsonlReader(source), WordCount(min_words=10_000), step(lambda row: {"new": 1}, version=1)]
    heavy = HeavyForTests().changed(score_only=True)
    from tamis import ParquetWriter

    for name, executor in (("a", STREAMED), ("b", LocalExecutor(streaming="never"))):
        Pipeline(*steps, heavy, ParquetWriter(tmp_path / name)).run(executor=executor)
    schemas = [pa.parquet.read_table(tmp_path / name).schema.names for name in ("a", "b")]
    assert schemas[0] == schemas[1] != []


def slow(row):
    time.sleep(0.002)
    return {}


def test_an_interrupted_run_continues(source, reference, tmp_path):
    from tamis.events import PartitionCommitted

    def stop(event):
        if isinstance(event, PartitionCommitted):
            os.kill(os.getpid(), signal.SIGINT)

    pipeline = Pipeline(*steps(source, tmp_path / "out", blocksize="60kB"))
    with pytest.raises(Interrupted):
        pipeline.run(rejects=True, on_error="isolate", executor=STREAMED, on_event=stop)
    committed = len(list((tmp_path / "out").glob("part-*")))
    assert 0 < committed < 15
    found, _ = outcome(steps(source, tmp_path / "out", blocksize="60kB"), tmp_path / "out", executor=STREAMED)
    assert found["rows"] == reference["rows"]
    assert found["failed"] == reference["failed"]


SCRIPT = """
import sys
from pathlib import Path
from tamis import LocalExecutor, Pipeline
from tests.executors.test_streams import steps
Pipeline(*steps(sys.argv[1], sys.argv[2], blocksize="30kB")).run(
    rejects=True, on_error="isolate", executor=LocalExecutor(workers=2, streaming="always")
)
"""


def is_abandoned(folder):
    try:
        with (folder / "lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except OSError:
        return False


def test_a_killed_driver_leaves_nothing_in_shared_memory_that_the_next_run_does_not_remove(source, reference, tmp_path):
    command = [sys.executable, "-c", SCRIPT, str(source), str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    process = subprocess.Popen(command, env=environment)
    while not list((tmp_path / "out").glob("part-*")):
        time.sleep(0.01)
        assert process.poll() is None
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    psutil.wait_procs(children, timeout=30)
    left = [folder for folder in Path("/dev/shm").glob("tamis-*") if is_abandoned(folder)]
    subprocess.run(command, env=environment, check=True)
    assert not [folder for folder in left if folder.exists() and is_abandoned(folder)]  # others may be in use again
    assert contents(tmp_path / "out") == {name: reference[name] for name in ("rows", "failed", "rejects")}


# ---------------------------------------------------------------------------------------------------------- the parts


class Heard:
    def __init__(self):
        self.packets, self.waits = [], 0

    def packet(self, packet):
        self.packets.append(packet)

    def wait(self):
        self.waits += 1

    def safe(self, segment):
        raise AssertionError


def read_back(packets):
    reading = Reading(None, pa.schema([]), 1 << 20, lambda failure: None)
    return [row for batch in PacketRows().read(partition_of(0, packets), reading) for row in batch.rows()]


@pytest.mark.parametrize(("packet_bytes", "packet_rows"), [(1, None), (2000, None), (10**9, 7), (10**9, None)])
@pytest.mark.parametrize("skip", [0, 1, 37, 200])
def test_packets_hold_the_rows_in_order_without_those_handed_on_before(tmp_path, packet_bytes, packet_rows, skip):
    rows = numbered(100)
    heard = Heard()
    writer = PacketWriter(Emission(str(tmp_path), "a", packet_bytes, packet_rows, credits=2, skip=skip), heard)
    for start in range(0, 100, 9):
        writer.write(Batch.from_rows(rows[start : start + 9]))
    writer.close(None, None, {})
    assert read_back(heard.packets) == rows[skip:]
    assert writer.skip == max(0, skip - 100)
    assert sum(packet.rows for packet in heard.packets) == max(0, 100 - skip)
    assert heard.waits == max(0, len(heard.packets) - 2)
    if packet_rows is not None:
        assert all(packet.rows <= packet_rows for packet in heard.packets)


def test_packets_lie_in_shared_memory_as_far_as_their_share_goes(tmp_path):
    shared, disk = tmp_path / "shared", tmp_path / "disk"
    shared.mkdir()
    disk.mkdir()
    heard = Heard()
    emission = Emission(str(disk), "a", 20_000, first_folder=str(shared), first_bytes=150_000)
    writer = PacketWriter(emission, heard)
    rows = [{"id": number, "text": "x" * 10_000} for number in range(40)]
    for row in rows:
        writer.write(Batch.from_rows([row]))
    writer.close(None, None, {})
    assert read_back(heard.packets) == rows
    in_memory = [packet for packet in heard.packets if packet.path.startswith(str(shared))]
    assert in_memory == heard.packets[: len(in_memory)]
    assert 1 <= len(in_memory) < len(heard.packets)
    assert sum(packet.num_bytes for packet in in_memory) <= emission.first_bytes


def test_memory_is_divided_among_stages():
    budget = make_budget(memory="4GB", workers=2)
    found = stream_budget(budget, [PoolNeed(0), PoolNeed(2_000_000_000, heavy=True), PoolNeed(0)])
    assert [pool.most for pool in found.pools] == [2, 1, 2]
    held = sum(pool.most * pool.worker_bytes for pool in found.pools)
    assert held + found.edge_bytes + found.last_edge_bytes + budget.driver_bytes <= budget.total_bytes
    assert found.last_edge_bytes > 0
    with pytest.raises(BudgetError, match="not enough for 3 stages"):
        stream_budget(make_budget(memory="2GB", workers=2), [PoolNeed(0), PoolNeed(2_000_000_000), PoolNeed(0)])


def test_a_stage_is_handed_as_much_at_a_time_as_it_asks_for():
    """Packets were never larger than a batch of the stage before, so a network on a GPU got eight recordings at a time."""
    budget = replace(make_budget(memory="4GB", workers=2), total_bytes=100_000_000_000)
    needs = [PoolNeed(0, batches_after=8), PoolNeed(0, heavy=True, batches=8), PoolNeed(0)]
    found = stream_budget(budget, needs)
    batch = found.batch_bytes
    assert [pool.packet_bytes for pool in found.pools[:2]] == [8 * batch, batch]
    assert found.edge_bytes >= sum(pool.most for pool in found.pools) * 8 * batch
    held = sum(pool.most * pool.worker_bytes for pool in found.pools)
    assert held + found.edge_bytes + found.last_edge_bytes + budget.driver_bytes <= budget.total_bytes

    little = found.within(6 * batch)
    assert [pool.packet_bytes for pool in little.pools[:2]] == [batch // 2, batch]
    assert little.edge_bytes == 6 * batch
    assert found.within(10**12) == found


def test_a_model_that_fits_once_gets_a_worker_of_its_own(source, tmp_path):
    @operator(reads="text", writes="big", resources=Resources(memory="2GB"))
    class BigForTests(Map):
        def apply(self, batch):
            return {"big": np.ones(len(batch))}

    pipeline = Pipeline(JsonlReader(source), BigForTests(), JsonlWriter(tmp_path / "out"))
    shown = pipeline.explain(memory="4GB", workers=2)
    (stage,) = shown.as_dict()["stages"]
    assert [pool["most_workers"] for pool in stage["pools"]] == [2, 1, 2]
    assert "packet_rows > big_for_tests: up to 1 worker" in str(shown)
    fused = pipeline.explain(memory="4GB", workers=2, executor=LocalExecutor(streaming="never"))
    assert shown.as_dict()["reasons"]["max_row_bytes"] == fused.as_dict()["reasons"]["max_row_bytes"]
    assert not pipeline.explain(memory="20GB", workers=2).as_dict()["stages"][0]["pools"]
    assert not pipeline.explain(memory="2500MB", workers=2).as_dict()["stages"][0]["pools"]


def test_a_step_gets_the_rows_at_a_time_that_it_asks_for(tmp_path):
    @operator(reads="text", writes="rows", resources=Resources(memory="10MB"))
    class SevenForTests(Map):
        batch_rows = 7

        def apply(self, batch):
            return {"rows": np.full(len(batch), len(batch))}

    for executor in (STREAMED, LocalExecutor(streaming="never")):
        table = Pipeline(Rows(numbered(100)), SevenForTests()).collect(executor=executor)
        assert Counter(table["rows"].to_pylist()) == {7: 98, 2: 2}


def test_a_row_that_makes_a_gpu_unusable_fails_alone():
    @operator(reads="id", writes="m")
    class LosesDeviceForTests(Map):
        def open(self, context):
            return LosingRunnerForTests()

    report = Pipeline(Rows(numbered(20)), LosesDeviceForTests()).run(max_failed="50%", workers=1, memory="2GB")
    assert (report.kept, report.failed) == (19, 1)
    assert "CUDA error: device-side assert triggered" in report.errors[0]["error"]


class LosingRunnerForTests:
    """As a process whose GPU cannot be used any more after row 7."""

    lost = False

    def apply(self, batch):
        self.lost = self.lost or 7 in batch["id"].to_pylist()
        if self.lost:
            raise RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be reported later")
        return {"m": batch["id"]}


def test_workers_that_need_a_gpu_get_one_each(tmp_path, monkeypatch):
    @operator(reads="text", writes="gpu", resources=Resources(gpus=1))
    class GpuForTests(Map):
        batch_rows = 5

        def open(self, context):
            return GpuRunnerForTests(f"{context.device} {os.environ['CUDA_VISIBLE_DEVICES']} {os.getpid()}")

    monkeypatch.setattr(slots, "usable_gpus", lambda: ["3", "5"])
    rows = Rows(numbered(400), rows_per_partition=50)
    table = Pipeline(rows, GpuForTests()).collect(executor=LocalExecutor(workers=2), memory="4GB")
    used = {tuple(value.rsplit(" ", 1)) for value in table["gpu"].to_pylist()}
    assert {name for name, _ in used} == {"cuda:0 3", "cuda:0 5"}
    assert len(used) == 2


class GpuRunnerForTests:
    def __init__(self, name):
        self.name = name

    def apply(self, batch):
        time.sleep(0.02)
        return {"gpu": pa.array([self.name] * len(batch))}


@operator(reads="text", writes="was_open")
class AwaitOpenForTests(Map):
    """Says whether a step after it was opened before the first rows, or soon after; keeps the byte for the next worker."""

    pipe: str

    def apply(self, batch):
        end = os.open(self.pipe, os.O_RDWR)
        found = bool(select.select([end], [], [], 60)[0])
        os.close(end)
        return {"was_open": pa.array([found] * len(batch))}


@operator(reads="text", writes="gpu", resources=Resources(gpus=1))
class OpenOnGpuForTests(Map):
    pipe: str
    error: str | None = None

    def open(self, context):
        if self.error:
            raise ValueError(self.error)
        self_end = os.open(self.pipe, os.O_RDWR)
        os.write(self_end, b"1")
        return GpuRunnerForTests(str(self_end))  # stays open, as a pipe without any end forgets what was written


def test_workers_on_gpus_are_opened_before_rows_arrive(tmp_path, monkeypatch):
    monkeypatch.setattr(slots, "usable_gpus", lambda: ["3"])
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    steps = [AwaitOpenForTests(pipe=pipe), OpenOnGpuForTests(pipe=pipe)]
    table = Pipeline(Rows(numbered(10)), *steps).collect(executor=LocalExecutor(workers=2), memory="4GB")
    assert table["was_open"].to_pylist() == [True] * 10


def test_a_step_on_a_gpu_that_cannot_be_opened_ends_the_run(monkeypatch):
    monkeypatch.setattr(slots, "usable_gpus", lambda: ["3", "5"])
    step = OpenOnGpuForTests(pipe="", error="there are no weights")
    with pytest.raises(WorkerError, match="there are no weights"):
        Pipeline(Rows(numbered(10)), step).run(executor=LocalExecutor(workers=2), memory="4GB")


def test_more_gpus_than_there_are_is_an_error(monkeypatch):
    @operator(reads="text", writes="gpu", resources=Resources(gpus=3))
    class ManyGpusForTests(Map):
        def apply(self, batch):
            return {}

    monkeypatch.setattr(slots, "usable_gpus", lambda: ["3", "5"])
    with pytest.raises(ParameterError, match="it needs 3 GPUs, and there are 2 here"):
        Pipeline(Rows(numbered(3)), ManyGpusForTests()).run()
