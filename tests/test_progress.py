from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest

from tamis import events
from tamis.commands.printing import print_status
from tamis.events import (
    CallsFinished,
    Event,
    KernelsCompiling,
    LeakFound,
    MemoryAction,
    MemoryAlert,
    MemorySampled,
    Note,
    PartitionCommitted,
    PartitionProgress,
    PartitionStarted,
    PoolSampled,
    PoolsSampled,
    RunFinished,
    RunStarted,
    StageStarted,
    Stopping,
    WorkCommittedBefore,
    WorkerDied,
)
from tamis.progress import Progress, Tally, is_terminal, shown_in_python
from tamis.report import Account, ErrorCount, Report

MB = 10**6


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def started(committed: int = 0, notes: tuple[str, ...] = ()) -> RunStarted:
    return RunStarted("out", ("read to write",), 2, 8_000 * MB, 10, committed, notes)


def stage(number: int = 0, name: str = "clean", partitions: int = 10, num_bytes: int = 100 * MB) -> StageStarted:
    return StageStarted(number, name, partitions, 0, num_bytes)


def committed(partition: int, read: int, kept: int, num_bytes: int = 10 * MB, stage: int = 0) -> PartitionCommitted:
    return PartitionCommitted(stage, partition, Account(read=read, kept=kept).as_dict(), num_bytes)


ONE_RUN: list[Event] = [
    started(),
    WorkCommittedBefore(0, Account()),
    stage(partitions=1),
    PartitionStarted(0, 0, 1),
    PartitionProgress(0, 0, 1, 5, 4 * MB),
    MemorySampled(2_000 * MB, 3_000 * MB, 8_000 * MB),
    Note("a remark"),
    KernelsCompiling(),
    MemoryAction("shrink", "batches of 1 MB from now on"),
    MemoryAlert("budget", "warning", 0.81, 0.8, "81 % of the budget are used"),
    LeakFound("clean", 1, 2_000_000.0, 1_000.0, 5, 0.9999),
    WorkerDied(1, "killed by signal 9", 0, "word_count"),
    WorkerDied(2, "exit code 1", None, None),
    PartitionStarted(0, 0, 3),
    Stopping(False),
    Stopping(True),
    committed(0, 300, 120),
    CallsFinished(0, "candidate pairs, 7", 7, 0.5),
    PoolsSampled(0, (PoolSampled("clean", 2, 1, 7, 300, 120, 10 * MB),), 0),
    RunFinished(Report()),
]


def shown(told: list[Event], clock: Clock | None = None) -> list[str]:
    stream = io.StringIO()
    with Progress(stream, clock=clock or Clock()) as progress:
        for event in told:
            progress(event)
    return stream.getvalue().splitlines()


def test_the_example_run_has_every_event():
    kinds = {kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)}
    assert kinds - {Event} == {type(event) for event in ONE_RUN}


@pytest.mark.parametrize("shows", ["bars", "line", "lines", "compiling", "nothing"])
def test_every_event_can_be_shown_alone_and_in_order(shows):
    with Progress(io.StringIO(), shows=shows) as progress:
        for event in ONE_RUN:
            progress(event)
    for event in ONE_RUN:
        with Progress(io.StringIO(), shows=shows) as progress:
            progress(event)


def test_a_log_gets_a_start_and_an_end():
    clock = Clock()
    stream = io.StringIO()
    with Progress(stream, clock=clock) as progress:
        progress(started(committed=3, notes=("the recipe changed",)))
        progress(stage())
        clock.now = 2.0
        progress(committed(0, 300, 120))
    assert stream.getvalue().splitlines() == [
        "10 partitions (3 already committed), 2 workers, memory budget 8.0 GB",
        "the recipe changed",
        "clean: 10.0 MB of 100 MB, 5.0 MB/s, 0:18 left, rows: 120 kept of 300",
    ]


def test_the_partitions_of_all_stages_are_not_added_up():
    events = [RunStarted("out", ("read to dedup", "dedup to write"), 2, 8_000 * MB, 20, 13)]
    assert shown(events) == ["2 stages of 10 partitions each (13 already committed), 2 workers, memory budget 8.0 GB"]


def test_a_log_gets_a_line_every_ten_seconds_and_not_more():
    clock = Clock()
    stream = io.StringIO()
    progress = Progress(stream, clock=clock)
    progress(stage())
    for second in range(1, 31):
        clock.now = float(second)
        progress(PartitionProgress(0, 0, 1, second, second * MB))
    assert [line.split(",")[0] for line in stream.getvalue().splitlines()] == [
        "clean: 10.0 MB of 100 MB",
        "clean: 20.0 MB of 100 MB",
        "clean: 30.0 MB of 100 MB",
    ]


def test_lines_show_memory_and_later_stages():
    lines = shown([stage(), MemorySampled(2_000 * MB, 3_000 * MB, 8_000 * MB), stage(1, "write")])
    assert lines[0] == "stage 2: write"
    assert lines[-1].endswith("memory 2.0 GB of 8.0 GB")


def test_a_stage_with_nothing_left_is_not_shown():
    assert shown([stage(partitions=0, num_bytes=0)]) == []


def test_ctrl_c_once_and_twice():
    assert shown([Stopping(False), Stopping(True)]) == [
        "finishing the shards in progress; press Ctrl-C again to abandon them",
        "abandoned",
    ]


def test_notes_and_dead_workers_are_sentences():
    assert shown(
        [Note("look"), WorkerDied(4, "signal 9", 7, "word_count"), WorkerDied(5, "exit code 1", None, None)]
    ) == [
        "look",
        "worker 4 died in step `word_count` (signal 9); retrying partition 7",
        "worker 5 died (exit code 1)",
    ]


def test_nothing_is_shown_on_request():
    stream = io.StringIO()
    with Progress(stream, shows="nothing") as progress:
        for event in ONE_RUN:
            progress(event)
    assert stream.getvalue() == ""
    assert progress.tally.committed == 1


def test_bars_show_stage_share_rate_rows_and_memory(monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    clock = Clock()
    stream = io.StringIO()
    with Progress(stream, shows="bars", clock=clock) as progress:
        progress(started())
        progress(stage(name="clean [bold]", partitions=4))
        progress(MemorySampled(2_000 * MB, 3_000 * MB, 8_000 * MB))
        clock.now = 2.0
        progress(committed(0, 300, 120, 50 * MB))
        progress(Note("said [above] the bars"))
    text = stream.getvalue()
    for part in (
        "clean [bold]",
        "50%",
        "25.0 MB/s",
        "0:02",
        "300",
        "120",
        "2.0 GB of 8.0 GB",
        "said [above] the bars",
    ):
        assert part in text


def test_a_stage_that_is_done_fills_its_bar_whatever_was_estimated(monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    stream = io.StringIO()
    with Progress(stream, shows="bars") as progress:
        progress(stage(partitions=1, num_bytes=1_000 * MB))
        progress(committed(0, 3, 3, 10 * MB))
    assert "100%" in stream.getvalue()


def test_a_partition_that_is_tried_again_is_not_counted_twice():
    tally = Tally()
    for event in [
        stage(),
        PartitionStarted(0, 3, 1),
        PartitionProgress(0, 3, 1, 10, 4 * MB),
        WorkerDied(1, "signal 9", 3, None),
        PartitionStarted(0, 3, 2),
        PartitionProgress(0, 3, 2, 2, 1 * MB),
    ]:
        tally(event)
    assert tally.stages[0].seen_bytes == 1 * MB
    tally(committed(3, 10, 9))
    assert (tally.stages[0].seen_bytes, tally.stages[0].read, tally.stages[0].kept) == (10 * MB, 10, 9)


def test_a_signal_handler_may_emit_events_while_a_line_is_written():
    class Interrupting(io.StringIO):
        told = False

        def write(self, text: str) -> int:
            if not self.told:
                self.told = True
                progress(Stopping(False))
            return super().write(text)

    stream = Interrupting()
    progress = Progress(stream)
    progress(Note("first"))
    assert [line.split(";")[0] for line in stream.getvalue().splitlines()] == [
        "first",
        "finishing the shards in progress",
    ]


def test_a_dumb_terminal_gets_lines(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    assert is_terminal(Terminal())
    assert not is_terminal(io.StringIO())
    monkeypatch.setenv("TERM", "dumb")
    assert not is_terminal(Terminal())


def test_bars_fit_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    stream = io.StringIO()
    with Progress(stream, shows="bars") as progress:
        progress(stage(name="jsonl_reader > language > word_count > jsonl_writer", partitions=1))
        progress(MemorySampled(936 * MB, 936 * MB, 8_000 * MB))
        progress(committed(0, 480_004, 362_020, 100 * MB))
    for part in ("jsonl_reader", "100%", "362k", "480k", "936 MB of 8.0 GB"):
        assert part in stream.getvalue()
    assert "…" not in stream.getvalue()


def test_before_the_first_commit_only_rows_read_are_known():
    clock = Clock()
    stream = io.StringIO()
    progress = Progress(stream, clock=clock)
    progress(stage())
    clock.now = 10.0
    progress(PartitionProgress(0, 0, 1, 1_234, 5 * MB))
    assert stream.getvalue().endswith("rows: 1,234 read\n")


def test_failed_rows_are_shown_while_they_are_counted():
    error = ErrorCount("step", "KeyError: 'typo'", 7, "in:0", "KeyError")
    tally = Tally()
    for event in [stage(), PartitionProgress(0, 0, 1, 1_000, 5 * MB, (error,))]:
        tally(event)
    assert tally.stages[0].rows() == "1,000 read, 7 failed"
    account = Account(read=2_000, kept=1_990, errors=[error]).as_dict()
    tally(PartitionCommitted(0, 0, account, 10 * MB))
    assert tally.stages[0].rows() == "1,990 kept of 2,000, 7 failed"


class Notebook(io.StringIO):
    """A stream as a notebook shows it: what follows a carriage return replaces its line."""

    def lines(self) -> list[str]:
        return [line.rpartition("\r")[2].rstrip() for line in self.getvalue().split("\n")]


def test_a_notebook_shows_one_line_per_stage():
    clock, stream = Clock(), Notebook()
    with Progress(stream, shows="line", clock=clock) as progress:
        progress(stage(partitions=2))
        clock.now = 2.0
        progress(PartitionProgress(0, 0, 1, 300, 50 * MB))
        assert stream.lines() == ["clean [##########..........] 50%, 25.0 MB/s, rows: 300 read, 0:02 left"]
        progress(Note("a remark"))
        progress(committed(0, 300, 120, 50 * MB))
        progress(committed(1, 300, 120, 50 * MB))
    assert stream.lines() == [
        "a remark",
        "clean [####################] 100%, 50.0 MB/s, rows: 240 kept of 600",
        "",
    ]


def test_a_short_run_shows_nothing_but_warnings():
    clock, stream = Clock(), io.StringIO()
    with Progress(stream, shows="bars", after_s=2.0, clock=clock) as progress:
        for event in [started(), stage(partitions=1), committed(0, 3, 3), RunFinished(Report())]:
            progress(event)
        assert stream.getvalue() == ""
        progress(KernelsCompiling())
    assert stream.getvalue() == "compiling kernels (once on this machine)\n"


def test_a_long_run_is_shown_from_then_on():
    clock, stream = Clock(), Notebook()
    with Progress(stream, shows="line", after_s=2.0, clock=clock) as progress:
        progress(started())
        progress(stage(partitions=1))
        clock.now = 3.0
        progress(PartitionProgress(0, 0, 1, 300, 30 * MB))
    assert stream.lines()[0].startswith("clean [######..............] 30%")


def test_in_python_a_log_gets_only_the_line_about_compiling():
    stream = io.StringIO()
    assert shown_in_python(None, stream) == "compiling"
    assert shown_in_python(True, stream) == "lines"
    assert shown_in_python(False, stream) == "nothing"
    with Progress(stream, shows="compiling") as progress:
        for event in ONE_RUN:
            progress(event)
    assert stream.getvalue() == "compiling kernels (once on this machine)\n"


class Closed(io.StringIO):
    """A stream whose reader has closed it."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("shows", ["line", "lines", "sentences", "compiling"])
def test_a_run_continues_if_nobody_reads_its_progress(shows, monkeypatch):
    with Progress(Closed(), shows=shows) as progress:
        for event in ONE_RUN:
            progress(event)
    assert progress.tally.committed == 1
    monkeypatch.setattr(sys, "stderr", Closed())
    print_status("a remark")


def test_a_notebook_is_recognised_by_the_kernel_of_its_shell(monkeypatch):
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert shown_in_python(None, io.StringIO()) == "notebook"
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace()))
    assert shown_in_python(None, io.StringIO()) == "compiling"


def test_while_rows_are_decided_about_the_phase_is_named_without_its_numbers(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    stream = io.StringIO()
    with Progress(stream, shows="bars") as progress:
        progress(RunStarted("out", ("read > observe", "read > write"), 2, 8_000 * MB, 2, 0))
        progress(stage(partitions=1))
        progress(committed(0, 300, 120))
        progress(CallsFinished(0, "candidate pairs, 1, 32823954", 7, 0.5))
    assert "deciding about rows; finished: candidate pairs" in stream.getvalue()
    assert "32823954" not in stream.getvalue()


def test_bars_of_a_narrow_terminal_show_failed_rows(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    stream = io.StringIO()
    error = ErrorCount("step", "KeyError: 'typo'", 1_234, "in:0", "KeyError")
    with Progress(stream, shows="bars") as progress:
        progress(RunStarted("out", ("read > observe", "read > write"), 2, 8_000 * MB, 2, 0))
        progress(stage(name="jsonl_reader > language > exact_dedup", partitions=1))
        progress(MemorySampled(936 * MB, 936 * MB, 19_100 * MB))
        account = Account(read=480_004, kept=362_020, errors=[error]).as_dict()
        progress(PartitionCommitted(0, 0, account, 100 * MB))
    for part in ("1/2 jsonl_reader", "50%", "362k", "480k", "1,234 rows failed", "936 MB"):
        assert part in stream.getvalue()
    assert "…" not in stream.getvalue()
