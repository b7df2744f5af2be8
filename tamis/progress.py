"""The progress of a run: bars on a terminal, one updated line in a notebook, a line every ten seconds in a log.

    events --> Tally --> Bars    one bar per stage, drawn by rich, on a terminal
                     --> Line    one line that is overwritten, in a notebook
                     --> Lines   plain sentences, for logs and pipes

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
from typing import TYPE_CHECKING, Any, Literal, Protocol, TextIO, TypeAlias

from tamis.events import (
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
    RunFinished,
    RunStarted,
    StageStarted,
    Stopping,
    WorkerDied,
)
from tamis.parameters import format_bytes, plural

if TYPE_CHECKING:
    from rich.progress import TaskID

Shown: TypeAlias = Literal["auto", "bars", "line", "lines", "compiling", "nothing"]

LINE_EVERY_S = 10.0
SHOW_AFTER_S = 2.0
"""In Python, progress is shown only for runs that take longer."""
WIDE = 110
"""From this many columns on, bars have full names and numbers."""
NARROW_NAME = 16
COMPILING = "compiling kernels (once, about 20 s)"
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

    @property
    def seen_bytes(self) -> int:
        return self.done_bytes + sum(num_bytes for _, num_bytes, _ in self.in_progress.values())

    def rate(self, now: float) -> float:
        """Bytes per second since the stage started."""
        return self.seen_bytes / (now - self.started) if now > self.started else 0.0

    def rows(self, number: Callable[[int], str] = "{:,}".format) -> str:
        """Rows kept, which are known for committed partitions only, and rows failed if there are any."""
        failed = self.failed + sum(count for _, _, count in self.in_progress.values())
        more = f", {number(failed)} failed" if failed else ""
        if self.committed:
            return f"{number(self.kept)} kept of {number(self.read)}{more}"
        return f"{number(sum(rows for rows, _, _ in self.in_progress.values()))} read{more}"

    def seconds_left(self, now: float) -> float | None:
        rate = self.rate(now)
        return max(0.0, self.num_bytes - self.seen_bytes) / rate if rate and self.num_bytes else None


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

    @property
    def stage(self) -> StageTally | None:
        return self.stages.get(self.current) if self.current is not None else None

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted():
                self.workers, self.budget_bytes = event.workers, event.budget_bytes
                self.partitions, self.committed = event.partitions, event.committed
                self.num_stages = len(event.stages)
            case StageStarted():
                self.stages[event.stage] = StageTally(event.name, event.num_bytes, event.partitions, self.clock())
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
                self.committed += 1
            case WorkerDied() if event.partition is not None:
                for stage in self.stages.values():  # its partition is read again from the start
                    stage.in_progress.pop(event.partition, None)
            case MemorySampled():
                self.memory_bytes, self.budget_bytes = event.num_bytes, event.budget_bytes
            case _:
                pass

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
        makers: dict[str, Callable[[Tally, TextIO], Display]] = {
            "bars": Bars,
            "line": Line,
            "lines": Lines,
            "compiling": OnlyCompiling,
            "nothing": Nothing,
        }
        self._display = makers[shows](self.tally, stream)
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
                self._display.stop()

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._waiting.append(event)
            if self._busy:  # a signal handler interrupted this thread while it was writing to the stream
                return
            self._busy = True
            try:
                while self._waiting:
                    self._show(self._waiting.popleft())
            finally:
                self._busy = False

    def _show(self, event: Event) -> None:
        self.tally(event)
        for sentence in sentences(event):
            if self._visible or not isinstance(event, RunStarted):
                self._display.say(sentence)
        if not self._visible:
            if self.tally.current is None or self.tally.clock() < self._visible_from:
                return
            self._visible = True
            self._display.stage(self.tally.current)
        elif isinstance(event, StageStarted) and event.partitions:
            self._display.stage(event.stage)
        elif isinstance(event, RunFinished):
            self._display.stop()
        elif isinstance(event, (PartitionProgress, PartitionCommitted, MemorySampled)):
            self._display.refresh()


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
    total = plural(event.partitions, "partition")
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
            self.say(f"stage {number + 1}: {self._tally.stages[number].name}")

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
        parts = [f"{stage.name}: {format_bytes(stage.seen_bytes)}"]
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


class Bars:
    """One bar per stage, on a terminal."""

    def __init__(self, tally: Tally, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self._tally = tally
        self._tasks: dict[int, TaskID] = {}
        console = Console(file=stream, force_terminal=True, highlight=False)
        self._wide = console.width >= WIDE
        self._rich = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[share]:>4}", markup=False),
            TextColumn("{task.fields[rate]:>9}", markup=False),
            TextColumn("{task.fields[left]:>5}", markup=False),
            TextColumn("{task.fields[rows]}", markup=False),
            TextColumn("{task.fields[memory]}", markup=False),
            console=console,
            redirect_stdout=False,  # stdout carries results
            refresh_per_second=5,
            expand=True,
        )

    def stage(self, number: int) -> None:
        stage = self._tally.stages[number]
        self._finish(but=number)
        total = self._tally.num_stages
        short = f"stage {number + 1} of {total}" if total > 1 else shortened(stage.name, NARROW_NAME)
        name = shortened(stage.name, self._rich.console.width // 4) if self._wide else short
        self._tasks[number] = self._rich.add_task(name, total=stage.num_bytes or None, **self._texts(stage))
        self._rich.start()

    def refresh(self) -> None:
        number, stage = self._tally.current, self._tally.stage
        if number in self._tasks and stage is not None:
            seen = min(stage.seen_bytes, stage.num_bytes) if stage.num_bytes else stage.seen_bytes
            self._rich.update(self._tasks[number], completed=seen, **self._texts(stage))

    def say(self, text: str) -> None:
        self._rich.console.print(text, markup=False, soft_wrap=True)

    def stop(self) -> None:
        self.refresh()
        self._finish(but=None)
        self._rich.stop()

    def _finish(self, but: int | None) -> None:
        """Fill the bars of stages whose partitions are all committed; their sizes were estimates."""
        for number, task in self._tasks.items():
            stage = self._tally.stages[number]
            if number != but and stage.committed >= stage.partitions:
                texts = {**self._texts(stage), "share": "100%", "left": ""}
                self._rich.update(task, total=1, completed=1, **texts)

    def _texts(self, stage: StageTally) -> dict[str, Any]:
        now = self._tally.clock()
        left = stage.seconds_left(now)
        share = min(99, 100 * stage.seen_bytes // stage.num_bytes) if stage.num_bytes else None
        return {
            "share": f"{share}%" if share is not None else "",
            "rate": f"{format_bytes(stage.rate(now))}/s",
            "left": duration(left) if left is not None else "",
            "rows": f"rows: {stage.rows()}" if self._wide else stage.rows(abbreviated),
            "memory": self._tally.memory() if self._wide else self._tally.memory().partition(" of ")[0],
        }


def shown_in_python(progress: bool | None, stream: TextIO) -> Shown:
    """How `Pipeline.run` shows progress: without a terminal or a notebook it does not, unless `progress` is true."""
    if progress is False:
        return "nothing"
    if is_terminal(stream):
        return "bars"
    if in_notebook():
        return "line"
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
