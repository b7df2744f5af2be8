"""The event log is small, complete enough for a page, and never in the way of a run."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from tamis import JsonlReader, ParquetWriter, Pipeline
from tamis.dashboard.report_page import write_report_page
from tamis.dashboard.runs import load_run
from tamis.eventlog import FOLDER, MOST_REMARKS, MOST_SAMPLES, EventLog, read_states
from tamis.events import (
    CallsFinished,
    KernelsCompiling,
    MemoryAction,
    MemorySampled,
    Note,
    PartitionCommitted,
    PartitionProgress,
    PartitionStarted,
    RunStarted,
    StageStarted,
    Stopping,
    WorkerDied,
)
from tamis.report import Account, OperatorAccount
from tamis.store import Store
from tamis.text import WordCount


def account(read, kept):
    step = OperatorAccount("word_count", "filter", read, kept, 0.1, dropped={"words < 2": read - kept})
    return Account([step], read=read, kept=kept, seconds=0.1)


def write_lines(folder, files=3, rows=20):
    folder.mkdir()
    for number in range(files):
        lines = [json.dumps({"text": "one two three" if row % 4 else "one"}) for row in range(rows)]
        (folder / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    return str(folder)


def test_a_finished_run_leaves_a_log_that_agrees_with_its_report(tmp_path):
    source = JsonlReader(write_lines(tmp_path / "in"), files_per_partition=1)
    report = Pipeline(source, WordCount(min_words=2), ParquetWriter(str(tmp_path / "out"))).run(
        executor="inline", progress=False
    )
    (log,) = read_states(Store(str(tmp_path / "out"))).values()
    assert log["state"] == "finished"
    assert log["stages"]["0"]["committed"] == 3
    summed = Account.from_dict(log["stages"]["0"]["account"])
    assert (summed.read, summed.kept, summed.dropped) == (report.read, report.kept, report.dropped)
    assert summed.balances


def test_a_run_with_nothing_to_do_keeps_the_log_of_the_one_that_did_the_work(tmp_path):
    source = JsonlReader(write_lines(tmp_path / "in"))
    pipeline = Pipeline(source, WordCount(min_words=2), ParquetWriter(str(tmp_path / "out")))
    pipeline.run(executor="inline", progress=False)
    before = read_states(Store(str(tmp_path / "out")))
    assert pipeline.run(executor="inline", progress=False).state == "unchanged"
    assert read_states(Store(str(tmp_path / "out"))) == before
    assert load_run(str(tmp_path / "out")).report.read == 60


def test_the_log_stays_small_however_many_events_there_are(tmp_path):
    """A hundred thousand events, with texts of a megabyte."""
    log = EventLog(Store(str(tmp_path)), clock=iter(range(10_000_000)).__next__)
    with log:
        log(RunStarted("out", ("a > b",), 2, 10**9, 30_000, 0))
        log(StageStarted(0, "a > b", 30_000, 0, 30_000))
        for number in range(30_000):
            log(PartitionStarted(0, number, number % 2))
            log(PartitionProgress(0, number, number % 2, 10, 1))
            log(PartitionCommitted(0, number, account(10, 7).as_dict(), 1))
            if number % 3 == 0:
                log(MemorySampled(10**8 + number, 2 * 10**8, 10**9))
        for _ in range(300):
            log(Note("<script>" + "x" * 1_000_000))
        for event in (KernelsCompiling(), MemoryAction("split", "t"), WorkerDied(1, "killed", 3, "b"), Stopping(False)):
            log(event)
        for number in range(500):
            log(CallsFinished(0, f"phase {number}", 1, 0.5))
    (state,) = read_states(Store(str(tmp_path))).values()
    assert state["events"] > 100_000
    assert len(state["samples"]) <= MOST_SAMPLES
    assert len(state["remarks"]) <= MOST_REMARKS
    assert (tmp_path / FOLDER / "run.json").stat().st_size < 300_000
    summed = Account.from_dict(state["stages"]["0"]["account"])
    assert (summed.read, summed.kept) == (300_000, 210_000)


def test_samples_that_arrive_late_are_put_where_they_belong(tmp_path):
    """A driver that is busy for nine seconds emits what was measured meanwhile at once."""
    clock = [100.0]
    log = EventLog(Store(str(tmp_path)), clock=lambda: clock[0])
    with log:
        log(RunStarted("out", ("a > b",), 1, 10**9, 1, 0))
        log(StageStarted(0, "a > b", 1, 0, 1_000))
        log(PartitionStarted(0, 0, 0))
        clock[0] = 110.0
        log(PartitionProgress(0, 0, 0, 70, 700))
        for age in (9.0, 5.0, 0.0):
            log(MemorySampled(10**8, 10**8, 10**9, age_s=age))
    (state,) = read_states(Store(str(tmp_path))).values()
    assert [(time, rows) for time, _, _, rows, *_ in state["samples"]] == [(1.0, 0), (5.0, 0), (10.0, 70)]


def test_a_run_continues_if_the_log_cannot_be_written(tmp_path):
    (tmp_path / "out" / ".tamis").mkdir(parents=True)
    (tmp_path / "out" / FOLDER).write_text("a file where the folder should be")
    source = JsonlReader(write_lines(tmp_path / "in"))
    report = Pipeline(source, WordCount(min_words=2), ParquetWriter(str(tmp_path / "out"))).run(
        executor="inline", progress=False
    )
    assert report.kept == 45
    assert load_run(str(tmp_path / "out")).state == "finished"


def test_an_error_is_in_the_log(tmp_path):
    def fail(batch):
        raise KeyboardInterrupt

    source = JsonlReader(write_lines(tmp_path / "in"))
    with pytest.raises(KeyboardInterrupt):
        Pipeline(source, fail, ParquetWriter(str(tmp_path / "out"))).run(executor="inline", progress=False)
    assert load_run(str(tmp_path / "out")).state == "interrupted"


def test_damaged_logs_and_reports_are_ignored(tmp_path):
    source = JsonlReader(write_lines(tmp_path / "in"))
    Pipeline(source, ParquetWriter(str(tmp_path / "out"))).run(executor="inline", progress=False)
    for content in ("{", "[]", '{"version": 1}', "\xff", '{"version": 2, "stages": {}}'):
        (tmp_path / "out" / FOLDER / "run.json").write_bytes(content.encode("latin-1"))
        assert load_run(str(tmp_path / "out")).report.read == 60
    for content in ("{", "[]", '{"read": 1, "unknown": 2}'):
        (tmp_path / "out" / ".tamis" / "report.json").write_text(content)
        assert load_run(str(tmp_path / "out")).report.read == 0


KILLED = """
    import json, pathlib, sys, time
    from tamis import JsonlReader, ParquetWriter, Pipeline

    def slow(row):
        while row["file"] == 2 and not pathlib.Path("go").exists():
            time.sleep(0.05)
        return {"seen": True}

    Pipeline(
        JsonlReader("in", files_per_partition=1), slow, ParquetWriter("out")
    ).run(executor="inline", progress=False)
"""


def test_a_killed_run_is_shown_as_ended_and_a_resumed_one_counts_what_was_there(tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(3):
        line = json.dumps({"file": number, "text": "one two three"}) + "\n"
        (tmp_path / "in" / f"{number}.jsonl").write_text(line * 20)
    script = textwrap.dedent(KILLED)
    output = str(tmp_path / "out")
    driver = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path)
    wait_for(lambda: load_run(output).log.get("stages", {}).get("0", {}).get("committed") == 2, driver)
    running = load_run(output)
    assert running.state == "running"
    assert running.report.read == 40
    assert running.progress is not None
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    os.utime(tmp_path / "out" / FOLDER / "run.json")
    state = json.loads((tmp_path / "out" / FOLDER / "run.json").read_text())
    state["updated"] -= 60  # as if a minute had passed
    (tmp_path / "out" / FOLDER / "run.json").write_text(json.dumps(state))
    ended = load_run(output)
    assert ended.state == "ended"
    assert "killed" in ended.error
    assert ended.report.read == 40
    assert write_report_page(output, tmp_path / "page.html") > 10_000
    (tmp_path / "go").touch()
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    resumed = load_run(output)
    assert resumed.state == "finished"
    summed = Account.from_dict(resumed.log["stages"]["0"]["account"])
    assert (summed.read, summed.kept) == (60, 60), "with the two partitions of the killed run"


def wait_for(condition, driver):
    """Wait for a state that the driver reaches for certain, unless it ends."""
    while not condition():
        assert driver.poll() is None, "the driver ended"
        time.sleep(0.05)
