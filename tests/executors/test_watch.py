"""A run watched: snapshots on disk, a real leak found and its worker replaced, alerts delivered."""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tamis import JsonlWriter, Pipeline, Rows
from tamis.dedup import ExactDedup
from tamis.events import LeakFound, MemoryAction, MemoryAlert, MemorySampled, PartitionCommitted, PartitionStarted
from tamis.memory import gpu, monitor
from tamis.memory.markdown import memory_markdown
from tamis.models import gpu_owners
from tamis.operators import Map, operator
from tamis.report import load_manifest

KEPT = []


@operator(reads="n", writes="m")
class LeakyForTests(Map):
    """Keeps three megabytes of every partition for good, or only seems to."""

    leaks: bool = True

    def apply(self, batch):
        block = np.ones(3_000_000 // 8)
        if self.leaks:
            KEPT.append(block)
        return {"m": batch["n"]}


@operator(reads="n", writes="m")
class FillsGpuForTests(Map):
    """Takes ten megabytes of a GPU for each row, of the two gigabytes it may have."""

    def open(self, context):
        import torch

        torch.cuda.set_per_process_memory_fraction(2e9 / torch.cuda.get_device_properties(0).total_memory)
        return self

    def apply(self, batch):
        import torch

        with gpu_owners.owner("activations"):
            held = torch.zeros((len(batch), 10_000_000), dtype=torch.uint8, device="cuda")
            return {"m": held[:, 0].cpu().numpy()}


@operator(reads="n", writes="m")
class OnGpuForTests(Map):
    """Holds a million bytes of weights on a GPU, or only says so."""

    real: bool = False

    def open(self, context):
        if self.real:
            import torch

            with gpu_owners.owner("weights"):
                torch.zeros(1, device="cuda")  # or no device is open when the account begins
            with gpu_owners.owner("weights"):
                KEPT.append(torch.zeros(1_000_000, dtype=torch.uint8, device="cuda"))
        else:
            gpu_owners.add_owned("weights", 1_000_000)
        return self

    def apply(self, batch):
        return {"m": batch["n"]}


def owners_on_file(folder):
    table = pq.read_table(folder / ".tamis" / "memory.table").to_pylist()
    return [owner for row in table for each in row["gpus"] for owner in each["owners"]]


def run(tmp_path, *, leaks, alerts=None):
    seen = []
    rows = Rows([{"n": n} for n in range(600)], rows_per_partition=10)
    report = Pipeline(rows, LeakyForTests(leaks=leaks), JsonlWriter(tmp_path / "out")).run(
        workers=1, on_event=seen.append, alerts=alerts
    )
    assert report.kept == 600
    return report, seen


@pytest.mark.slow
def test_a_worker_that_leaks_is_found_and_replaced(tmp_path):
    script = f"import sys; open({str(tmp_path / 'alert.json')!r}, 'a').write(sys.stdin.read())"
    report, seen = run(tmp_path, leaks=True, alerts={"command": [sys.executable, "-c", script]})
    leaks = [event for event in seen if isinstance(event, LeakFound)]
    assert leaks
    assert 1_500_000 < leaks[0].bytes_per_shard < 6_000_000
    assert report.memory["actions"]["recycle"] >= 1
    assert any(isinstance(event, MemoryAction) and event.kind == "recycle" for event in seen)
    assert any(isinstance(event, MemoryAlert) and event.kind == "leak" for event in seen)
    told = json.JSONDecoder().raw_decode((tmp_path / "alert.json").read_text())[0]
    assert told["kind"] == "leak"
    assert "more after each shard; it reaches its" in told["message"]


@pytest.mark.slow
def test_a_leaking_worker_is_kept_on_request(tmp_path):
    asked = []

    def decide(alert):
        asked.append(alert.kind)

    report, seen = run(tmp_path, leaks=True, alerts={"remedy": decide, "time_to_exhaustion_s": None})
    assert "leak" in asked
    assert [event for event in seen if isinstance(event, LeakFound)]
    assert "recycle" not in report.memory["actions"]


@pytest.mark.slow
def test_a_worker_that_only_uses_memory_is_left_alone(tmp_path):
    report, seen = run(tmp_path, leaks=False)
    assert not [event for event in seen if isinstance(event, LeakFound)]
    assert "recycle" not in report.memory["actions"]


def test_snapshots_name_every_process_and_its_role(tmp_path):
    Pipeline(Rows([{"n": n} for n in range(100)], rows_per_partition=10), JsonlWriter(tmp_path)).run(workers=2)
    table = pq.read_table(tmp_path / ".tamis" / "memory.table").to_pylist()
    roles = {row["role"] for row in table}
    assert {"driver", "server"} <= roles
    assert all(row["pid"] for row in table)


def test_what_a_worker_holds_on_a_gpu_is_on_file_by_owner(tmp_path, monkeypatch):
    one = (gpu.GpuMemory(0, "a stand-in", 2_000_000, 10_000_000),)
    monkeypatch.setattr(monitor, "find_reader", lambda: lambda: one)
    rows = Rows([{"n": n} for n in range(30)], rows_per_partition=10)
    seen = []
    report = Pipeline(rows, OnGpuForTests(), JsonlWriter(tmp_path)).run(workers=1, on_event=seen.append)
    assert {"owner": "weights", "bytes": 1_000_000} in owners_on_file(tmp_path)
    (peak,) = report.memory["gpus"]
    assert (peak["own_bytes"], peak["other_bytes"], peak["owners"]) == (1_000_000, 2_000_000, {"weights": 1_000_000})
    assert "| weights on GPU 0 | 1.0 MB |" in memory_markdown(report, load_manifest(tmp_path))
    sampled = [event.gpus[0].owners for event in seen if isinstance(event, MemorySampled)]
    assert {"weights": 1_000_000} in sampled
    assert not any(share.owners for share in gpu.own_shares().values()), "it was a worker that said so"


@pytest.mark.gpu
def test_what_a_worker_holds_on_a_real_gpu_is_on_file_by_owner(tmp_path):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU here")
    rows = Rows([{"n": n} for n in range(30)], rows_per_partition=10)
    Pipeline(rows, OnGpuForTests(real=True), JsonlWriter(tmp_path)).run(workers=1)
    held = [owner["bytes"] for owner in owners_on_file(tmp_path) if owner["owner"] == "weights"]
    assert held
    assert 1_000_000 <= max(held) < 3_000_000


@pytest.mark.gpu
def test_a_batch_that_does_not_fit_a_real_gpu_is_split(tmp_path):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU here")
    rows = Rows([{"n": n} for n in range(1000)])
    report = Pipeline(rows, FillsGpuForTests(), JsonlWriter(tmp_path)).run(workers=1)
    assert (report.kept, report.failed) == (1000, 0)
    assert report.memory["actions"]["split"] >= 3


def test_a_paused_run_continues_with_one_partition_at_a_time(tmp_path):
    def slowly(row):
        time.sleep(0.01)
        return True

    seen = []
    report = Pipeline(Rows([{"n": n} for n in range(400)], rows_per_partition=10), slowly, JsonlWriter(tmp_path)).run(
        workers=2,
        memory="20GB",
        alerts={"budget_percent": [0.001, 99], "remedy": {"budget": "pause"}},
        on_event=seen.append,
    )
    assert report.kept == 400
    assert report.memory["actions"] == {"pause": 1}
    paused = next(n for n, event in enumerate(seen) if isinstance(event, MemoryAction))
    running, begun_alone = 0, []
    for number, event in enumerate(seen):
        if isinstance(event, PartitionStarted):
            if number > paused:
                begun_alone.append(running == 0)
            running += 1
        elif isinstance(event, PartitionCommitted):
            running -= 1
    assert len(begun_alone) > 10
    assert all(begun_alone)
    manifest = json.loads((tmp_path / ".tamis" / "manifest.json").read_text())
    assert manifest["alerts"]["remedy"] == {"budget": "pause"}


def test_recycling_workers_does_not_change_the_result(tmp_path):
    rows = [{"n": n, "text": f"row {n % 50} of a table with many rows and words"} for n in range(3000)]
    alerts = {"budget_percent": [0.001, 99], "remedy": lambda alert: "recycle"}
    steps = Rows(rows, rows_per_partition=100), ExactDedup(), JsonlWriter(tmp_path)
    assert Pipeline(*steps).run(workers=2, memory="20GB", alerts=alerts).kept == 50


def test_alerts_reach_a_webhook_and_a_command(tmp_path):
    heard = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    script = f"import sys; open({str(tmp_path / 'alert.json')!r}, 'w').write(sys.stdin.read())"
    seen = []
    try:
        Pipeline(Rows([{"n": 1}])).run(
            memory="20GB",
            on_event=seen.append,
            alerts={
                "budget_percent": [0.001, 99],
                "webhook": f"http://127.0.0.1:{server.server_port}/alert",
                "command": [sys.executable, "-c", script],
            },
        )
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert any(isinstance(event, MemoryAlert) for event in seen)
    assert heard
    assert heard[0]["level"] == "warning"
    assert json.loads(Path(tmp_path / "alert.json").read_text())["kind"] == heard[0]["kind"]
