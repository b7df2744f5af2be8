"""What looking at a run costs: ten million rows and a hundred thousand events.

    python benchmarks/dashboard.py [ROWS]

Prints the time of the event log within the run, the size of the page and the time to make it, and how fast the dashboard
answers.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tamis import ParquetReader, ParquetWriter, Pipeline
from tamis.dashboard.report_page import write_report_page
from tamis.dashboard.server import Dashboard
from tamis.eventlog import EventLog
from tamis.events import (
    MemorySampled,
    PartitionCommitted,
    PartitionProgress,
    PartitionStarted,
    RunStarted,
    StageStarted,
)
from tamis.report import Report
from tamis.store import Store
from tamis.text import CharacterCount, WordCount

FILES = 40


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def cpu_s() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def write_input(folder: Path, rows: int) -> None:
    """Rows of a few words, in Parquet files."""
    folder.mkdir()
    texts = [" ".join(["word"] * (number % 12)) + f" {number}" for number in range(1_000)]
    each = rows // FILES
    column = pa.array(texts * (each // 1_000 + 1))[:each]
    for number in range(FILES):
        pq.write_table(pa.table({"text": column}), folder / f"{number:03d}.parquet")


class TimedLog:
    """Measures the time that the event log takes, in the calling thread and in its own."""

    def __init__(self) -> None:
        self.seconds, self.events = 0.0, 0
        call, write = EventLog.__call__, EventLog._write

        def timed_call(log: EventLog, event: Any) -> None:
            began = time.thread_time()
            call(log, event)
            self.seconds += time.thread_time() - began
            self.events += 1

        def timed_write(log: EventLog, *, final: bool = False) -> None:
            began = time.thread_time()
            write(log, final=final)
            self.seconds += time.thread_time() - began

        EventLog.__call__, EventLog._write = timed_call, timed_write  # type: ignore[method-assign]


def run(folder: Path) -> tuple[Report, float]:
    source = ParquetReader(str(folder / "in"), files_per_partition=1)
    steps = [WordCount(min_words=3), CharacterCount(min_characters=12)]
    before = cpu_s()
    report = Pipeline(source, *steps, ParquetWriter(str(folder / "out"))).run(
        memory="2GB", workers=2, rejects=True, scores=True, progress=False
    )
    return report, cpu_s() - before


def many_events(folder: Path, count: int) -> None:
    """The log alone: partitions that start, progress and are committed."""
    operators = [
        {
            "name": f"step_{number}",
            "kind": "filter",
            "rows_in": 100,
            "rows_out": 90,
            "dropped": {f"score_{number} < 1": 10},
        }
        for number in range(8)
    ]
    account = {"operators": operators, "read": 100, "kept": 20, "errors": []}
    began = time.process_time()
    with EventLog(Store(str(folder))) as log:
        log(RunStarted("out", ("read > write",), 2, 10**9, count // 4, 0))
        log(StageStarted(0, "read > write", count // 4, 0, count))
        for number in range(count // 4):
            log(PartitionStarted(0, number, number % 2))
            log(PartitionProgress(0, number, number % 2, 50, 500))
            log(PartitionCommitted(0, number, account, 1000))
            log(MemorySampled(10**8 + number, 2 * 10**8, 10**9))
    took = time.process_time() - began
    size = (folder / ".tamis" / "events" / "run.json").stat().st_size
    say(
        f"{count:,} events            {took:.2f} s of CPU, {1e6 * took / count:.0f} us each; the log has {size:,} bytes"
    )


def answer_s(dashboard: Dashboard, path: str) -> tuple[float, int]:
    """The time and size of an answer."""
    target, _, query = path.partition("?")
    sent: list[Any] = []
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http", "path": target,
        "raw_path": target.encode(), "query_string": query.encode(), "headers": [(b"host", b"localhost")],
        "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1),
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    application = dashboard.application()
    began = time.perf_counter()
    asyncio.run(application(scope, receive, send))
    return time.perf_counter() - began, sum(len(message.get("body", b"")) for message in sent)


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_input(folder / "in", rows)
        timed = TimedLog()
        report, used = run(folder)
        say(f"run                       {report.read:,} rows, {report.seconds:.1f} s, {used:.1f} s of CPU")
        share = timed.seconds / used
        say(
            f"event log in the run      {timed.events:,} events, {1000 * timed.seconds:.0f} ms of CPU, {share:.3%} of the run"
        )
        began = time.perf_counter()
        size = write_report_page(str(folder / "out"), folder / "page.html")
        say(f"report page               {size:,} bytes, made in {time.perf_counter() - began:.1f} s")
        dashboard = Dashboard([str(folder / "out")])
        first, length = answer_s(dashboard, "/runs/1")
        dashboard.runs[0].wait()
        whole, all_length = answer_s(dashboard, "/runs/1/parts")
        parts = json.loads(asyncio.run(_parts(dashboard)))
        have = ",".join(f"{name}:{part['version']}" for name, part in parts.items())
        poll, poll_length = answer_s(dashboard, f"/runs/1/parts?have={have}")
        say(f"dashboard, first page     {1000 * first:.0f} ms, {length:,} bytes")
        say(f"dashboard, all parts      {1000 * whole:.0f} ms, {all_length:,} bytes")
        say(f"dashboard, nothing new    {1000 * poll:.0f} ms, {poll_length:,} bytes")
        (folder / "many").mkdir()
        many_events(folder / "many", 100_000)


async def _parts(dashboard: Dashboard) -> str:
    from tamis.dashboard.server import changed_parts

    return json.dumps(changed_parts(dashboard.runs[0], ""))


if __name__ == "__main__":
    main()
