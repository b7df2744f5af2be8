"""The progress of a run: one live view on a terminal, a bar in a notebook, a line every ten seconds in a log.

    events --> Tally --> View      a bar, a line per stage, memory and alerts, drawn by rich, on a terminal (`live.py`)
                     --> Notebook  the same as HTML that is replaced, in a notebook (`live.py`)
                     --> Line      one line that is overwritten, where a notebook cannot show HTML
                     --> Lines     plain sentences, for logs and pipes

Events may come from any thread, and from a signal handler that interrupts another call.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, Protocol, TextIO, TypeAlias

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
    WorkerDied,
)
from tamis.inert import inert
from tamis.parameters import format_bytes, plural

Shown: TypeAlias = Literal["auto", "bars", "notebook", "line", "lines", "sentences", "compiling", "nothing"]

LINE_EVERY_S = 10.0
LINE_NAME = 60
"""The length of the name of a stage in the lines of a log, which repeat it."""
SHOW_AFTER_S = 2.0
"""In Python, progress is shown only for runs that take longer."""
MAX_SENTENCE = 2_000
MIN_SHARE = 0.005
"""The part of the work that must be done before the remaining time is estimated."""
COMPILING = "compiling kernels (once on this machine)"
FINISHING = "finishing the shards in progress; press Ctrl-C again to abandon them"
ABANDONED = "abandoned"


@dataclass
class StageTally:
    """The progress of a stage."""

    name: str
    num_bytes: int
    partitions: int
    started: float
    committed: int = 0
    done_bytes: int = 0
    in_progress: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Rows read, bytes read and rows failed so far of each partition that is not committed yet."""
    read: int = 0
    kept: int = 0
    failed: int = 0
    pools: tuple[PoolSampled, ...] = ()
    """The workers and queues of the stages of the group that run at the same time, when they were last reported."""
    ended: float | None = None

    @property
    def done(self) -> bool:
        return self.committed >= self.partitions

    @property
    def share(self) -> float:
        """The part of the stage that is processed; 1 only if all of it is committed."""
        if self.done:
            return 1.0
        return min(0.99, self.seen_bytes / self.num_bytes) if self.num_bytes else self.committed / self.partitions

    @property
    def rows_read(self) -> int:
        return self.read + sum(rows for rows, _, _ in self.in_progress.values())

    @property
    def rows_failed(self) -> int:
        return self.failed + sum(count for _, _, count in self.in_progress.values())

    @property
    def seen_bytes(self) -> int:
        return self.done_bytes + sum(num_bytes for _, num_bytes, _ in self.in_progress.values())

    def rate(self, now: float) -> float:
        """Bytes per second since the stage started."""
        return self.seen_bytes / (now - self.started) if now > self.started else 0.0

    def rows(self, number: Callable[[int], str] = "{:,}".format) -> str:
        """Rows kept, which are known for committed partitions only, and rows failed if there are any."""
        more = f", {number(self.rows_failed)} failed" if self.rows_failed else ""
        if self.committed:
            return f"{number(self.kept)} kept of {number(self.read)}{more}"
        return f"{number(sum(rows for rows, _, _ in self.in_progress.values()))} read{more}"

    def seconds_left(self, now: float) -> float | None:
        """An estimate from the time so far; None before it means anything."""
        rate = self.rate(now)
        if not rate or not self.num_bytes or self.share < MIN_SHARE:
            return None
        return max(0.0, self.num_bytes - self.seen_bytes) / rate


@dataclass
class Tally:
    """The state of a run, from its events so far."""

    clock: Callable[[], float] = time.monotonic
    workers: int = 0
    budget_bytes: int = 0
    memory_bytes: int = 0
    num_stages: int = 0
    partitions: int = 0
    committed: int = 0
    stages: dict[int, StageTally] = field(default_factory=dict)
    current: int | None = None
    started: float | None = None
    alerts: dict[str, str] = field(default_factory=dict)
    """The alerts that are not cleared, by kind."""
    deaths: int = 0
    """Workers that exited unexpectedly."""
    packet_bytes: int = 0
    phase: str | None = None
    """The phase of a Gather that was finished last, until the next stage starts."""

    @property
    def stage(self) -> StageTally | None:
        return self.stages.get(self.current) if self.current is not None else None

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted():
                self.workers, self.budget_bytes = event.workers, event.budget_bytes
                self.partitions, self.committed = event.partitions, event.committed
                self.num_stages = len(event.stages)
                self.started = self.clock()
            case CallsFinished():
                self.phase = event.name
            case StageStarted():
                self.phase = None
                self.stages[event.stage] = StageTally(
                    inert(event.name, MAX_SENTENCE), event.num_bytes, event.partitions, self.clock()
                )
                if event.partitions:
                    self.current = event.stage
            case PartitionStarted() if stage := self.stages.get(event.stage):
                stage.in_progress[event.partition] = (0, 0, 0)
            case PartitionProgress() if stage := self.stages.get(event.stage):
                failed = sum(error.rows for error in event.errors)
                stage.in_progress[event.partition] = (event.rows, event.num_bytes, failed)
            case PartitionCommitted() if stage := self.stages.get(event.stage):
                stage.in_progress.pop(event.partition, None)
                stage.done_bytes += event.num_bytes
                stage.read += event.account.get("read", 0)
                stage.kept += event.account.get("kept", 0)
                stage.failed += sum(error["rows"] for error in event.account.get("errors", ()))
                stage.committed += 1
                stage.ended = self.clock() if stage.done else None
                self.committed += 1
            case WorkerDied():
                self.deaths += 1
                for stage in self.stages.values():  # its partition is read again from the start
                    stage.in_progress.pop(-1 if event.partition is None else event.partition, None)
            case PoolsSampled() if stage := self.stages.get(event.stage):
                stage.pools, self.packet_bytes = event.pools, event.packet_bytes
            case MemoryAlert():
                if event.level == "cleared":
                    self.alerts.pop(event.kind, None)
                else:
                    self.alerts[event.kind] = event.text
            case MemorySampled():
                self.memory_bytes, self.budget_bytes = event.num_bytes, event.budget_bytes
            case _:
                pass

    @property
    def share(self) -> float:
        """The part of the run that is processed, as if all stages took the same time."""
        if not self.stages:
            return 0.0
        total = max(self.num_stages, len(self.stages))
        return sum(stage.share for stage in self.stages.values()) / total

    @property
    def failed(self) -> int:
        return sum(stage.rows_failed for stage in self.stages.values())

    def seconds_left(self, now: float) -> float | None:
        """An estimate from the time so far; None before it means anything."""
        begun = [stage.started for stage in self.stages.values() if stage.partitions]
        now_done = self.share - self._share_before()
        between = self.stage is not None and self.stage.done  # a Gather decides, and how long that takes is not known
        if not begun or now_done <= MIN_SHARE or now <= min(begun) or between:
            return None
        return (now - min(begun)) / now_done * (1 - self.share)

    def _share_before(self) -> float:
        """The part that earlier runs committed."""
        skipped = sum(not stage.partitions for stage in self.stages.values())
        return skipped / max(1, self.num_stages, len(self.stages))

    def memory(self) -> str:
        return f"{format_bytes(self.memory_bytes)} of {format_bytes(self.budget_bytes)}" if self.memory_bytes else ""


class Display(Protocol):
    """How progress is shown."""

    def stage(self, number: int) -> None:
        """A stage starts."""

    def refresh(self) -> None:
        """The tally has changed."""

    def say(self, text: str) -> None:
        """Print a sentence that stays visible."""

    def stop(self) -> None:
        """Draw the final state and restore the terminal."""


class Progress:
    """A subscriber that shows the progress of a run on a stream, stderr by default.

    Use it as a context manager, which restores the terminal after an error. With `after_s`, nothing but warnings is shown
    until a run has taken that long.

        with Progress() as progress:
            pipeline.run(on_event=progress, progress=False)
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        shows: Shown = "auto",
        after_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tally = Tally(clock)
        self._visible_from = clock() + after_s
        self._visible = after_s <= 0
        stream = stream if stream is not None else sys.stderr
        if shows == "auto":
            shows = "bars" if is_terminal(stream) else "lines"
        self._display = _display(shows, self.tally, stream)
        self._lock = threading.RLock()
        self._waiting: deque[Event] = deque()
        self._busy = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop drawing and restore the terminal."""
        with self._lock:
            if self._visible:
                self._safely(self._display.stop)

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._waiting.append(event)
            if self._busy:  # a signal handler interrupted this thread while it was writing to the stream
                return
            self._busy = True
            try:
                while self._waiting:
                    self._safely(partial(self._show, self._waiting.popleft()))
            finally:
                self._busy = False

    def _safely(self, show: Callable[[], None]) -> None:
        try:
            show()
        except OSError:  # the reader of the stream has closed it, as `head` does; the run continues
            self._display = Nothing(self.tally, sys.stderr)

    def _show(self, event: Event) -> None:
        self.tally(event)
        for sentence in sentences(event):
            if self._visible or not isinstance(event, RunStarted):
                self._display.say(inert(sentence, MAX_SENTENCE))
        if not self._visible:
            if self.tally.current is None or self.tally.clock() < self._visible_from:
                return
            self._visible = True
            self._display.stage(self.tally.current)
        elif isinstance(event, StageStarted) and event.partitions:
            self._display.stage(event.stage)
        elif isinstance(event, RunFinished):
            self._display.stop()
        elif isinstance(event, _REDRAWN):
            self._display.refresh()


_REDRAWN = (PartitionProgress, PartitionCommitted, MemorySampled, PoolsSampled, MemoryAlert, CallsFinished)


def _display(shows: Shown, tally: Tally, stream: TextIO) -> Display:
    if shows in ("bars", "notebook"):
        from tamis import live  # not at the top: it imports rich

        return live.View(tally, stream) if shows == "bars" else live.Notebook(tally)
    makers: dict[str, Callable[[Tally, TextIO], Display]] = {
        "line": Line,
        "lines": Lines,
        "sentences": Sentences,
        "compiling": OnlyCompiling,
        "nothing": Nothing,
    }
    return makers[shows](tally, stream)


def sentences(event: Event) -> list[str]:
    """What to print for an event."""
    match event:
        case RunStarted():
            return [_start(event), *event.notes]
        case MemoryAction(kind="restart") | LeakFound():
            return []  # the death of the worker and the alert are printed instead
        case KernelsCompiling():
            return [COMPILING]
        case MemoryAction() | MemoryAlert():
            return [event.text]
        case Note():
            return [event.text]
        case Stopping():
            return [ABANDONED if event.abandon else FINISHING]
        case WorkerDied():
            where = f" in step `{event.step}`" if event.step else ""
            again = f"; retrying partition {event.partition}" if event.partition is not None else ""
            return [f"worker {event.worker} died{where} ({event.how}){again}"]
        case _:
            return []


def _start(event: RunStarted) -> str:
    stages = len(event.stages)
    total = plural(event.partitions // max(1, stages), "partition")
    if stages > 1:
        total = f"{stages} stages of {total} each"
    done = f" ({event.committed:,} already committed)" if event.committed else ""
    return f"{total}{done}, {plural(event.workers, 'worker')}, memory budget {format_bytes(event.budget_bytes)}"


class Nothing:
    """Prints nothing."""

    def __init__(self, tally: Tally, stream: TextIO) -> None:
        pass

    def stage(self, number: int) -> None:
        pass

    def refresh(self) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def stop(self) -> None:
        pass


class Sentences(Nothing):
    """Prints notes and alerts, and no progress."""

    def __init__(self, tally: Tally, stream: TextIO) -> None:
        self._stream = stream

    def say(self, text: str) -> None:
        self._stream.write(f"{text}\n")
        self._stream.flush()


class OnlyCompiling(Nothing):
    """Prints that kernels are being compiled, which would otherwise look like a hang, and nothing else."""

    def __init__(self, tally: Tally, stream: TextIO) -> None:
        self._stream = stream

    def say(self, text: str) -> None:
        if text == COMPILING:
            self._stream.write(f"{text}\n")
            self._stream.flush()


class Line:
    """One line per stage that is overwritten, for notebooks: these have no cursor that a bar could move."""

    WIDTH = 20
    EVERY_S = 0.5

    def __init__(self, tally: Tally, stream: TextIO) -> None:
        self._tally, self._stream = tally, stream
        self._last = float("-inf")
        self._drawn = 0

    def stage(self, number: int) -> None:
        if self._drawn:
            self._write("\n")
            self._drawn = 0
        self._draw()

    def refresh(self) -> None:
        if self._tally.clock() - self._last >= self.EVERY_S:
            self._draw()

    def say(self, text: str) -> None:
        self._write(f"\r{text.ljust(self._drawn)}\n")
        self._drawn = 0

    def stop(self) -> None:
        if self._tally.stage is not None and self._last > float("-inf"):
            self._draw()
            self._write("\n")
            self._last = float("-inf")

    def _draw(self) -> None:
        stage, now = self._tally.stage, self._tally.clock()
        if stage is None:
            return
        self._last = now
        done = stage.committed >= stage.partitions
        share = 1.0 if done else min(0.99, stage.seen_bytes / stage.num_bytes) if stage.num_bytes else 0.0
        left = None if done else stage.seconds_left(now)
        filled = round(share * self.WIDTH)
        text = (
            f"{shortened(stage.name, 40)} [{'#' * filled}{'.' * (self.WIDTH - filled)}] {share:.0%}, "
            f"{format_bytes(stage.rate(now))}/s, rows: {stage.rows()}{f', {duration(left)} left' if left else ''}"
        )
        self._write(f"\r{text.ljust(self._drawn)}")
        self._drawn = len(text)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class Lines:
    """Plain sentences for logs and pipes."""

    def __init__(self, tally: Tally, stream: TextIO) -> None:
        self._tally = tally
        self._stream = stream
        self._last = tally.clock()
        self._stopped = False

    def stage(self, number: int) -> None:
        self._last = self._tally.clock()
        if len(self._tally.stages) > 1:
            self.say(f"stage {number + 1}: {shortened(self._tally.stages[number].name, 120)}")

    def refresh(self) -> None:
        now = self._tally.clock()
        if now - self._last >= LINE_EVERY_S:
            self._last = now
            self.say(self._status(now))

    def say(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()

    def stop(self) -> None:
        if not self._stopped and self._tally.stage is not None:
            self._stopped = True
            self.say(self._status(self._tally.clock()))

    def _status(self, now: float) -> str:
        stage = self._tally.stage
        if stage is None:
            return f"memory {self._tally.memory()}"
        parts = [f"{shortened(stage.name, LINE_NAME)}: {format_bytes(stage.seen_bytes)}"]
        if stage.num_bytes:
            parts[0] += f" of {format_bytes(stage.num_bytes)}"
        parts.append(f"{format_bytes(stage.rate(now))}/s")
        left = stage.seconds_left(now)
        if left:
            parts.append(f"{duration(left)} left")
        parts.append(f"rows: {stage.rows()}")
        if self._tally.memory():
            parts.append(f"memory {self._tally.memory()}")
        return ", ".join(parts)


def shown_in_python(progress: bool | None, stream: TextIO) -> Shown:
    """How `Pipeline.run` shows progress: without a terminal or a notebook it does not, unless `progress` is true."""
    if progress is False:
        return "nothing"
    if is_terminal(stream):
        return "bars"
    if in_notebook():
        return "notebook"
    return "lines" if progress else "compiling"


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def is_terminal(stream: TextIO) -> bool:
    """Whether bars can be drawn on `stream`."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def shortened(name: str, width: int) -> str:
    """The first and last step of a stage if its name is longer than `width`.

    >>> shortened("jsonl_reader > language > word_count > jsonl_writer", 34)
    'jsonl_reader ... jsonl_writer'
    """
    steps = name.split(" > ")
    if len(name) > width and len(steps) > 2:
        name = f"{steps[0]} ... {steps[-1]}"
    return name if len(name) <= width else name[: width - 3] + "..."


def abbreviated(number: int) -> str:
    """
    >>> abbreviated(999), abbreviated(12_345), abbreviated(3_456_789)
    ('999', '12k', '3.5M')
    """
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.1f}{unit}" if number < 10 * size else f"{number // size}{unit}"
    return str(number)


def duration(seconds: float) -> str:
    """
    >>> duration(5), duration(65), duration(3700)
    ('0:05', '1:05', '1:01:40')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
