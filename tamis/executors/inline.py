"""Runs everything in the calling process, for debugging: errors are raised where they occur."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tamis.events import Events, PartitionProgress, PartitionStarted
from tamis.executors.local import Stop
from tamis.executors.segments import Outcome, Segment
from tamis.executors.tasks import CorruptFrames, Stage, Task
from tamis.executors.worker import StageRunner
from tamis.memory.governor import Governor
from tamis.memory.gpu import GpuShare
from tamis.memory.leaks import Leak
from tamis.report import ErrorCount


class InlineExecutor:
    """Runs partitions one after the other in this process; use as a context manager."""

    name = "inline"

    def __init__(self, governor: Governor, emit: Events, stop: Stop) -> None:
        self.governor = governor
        self.emit, self.stop = emit, stop
        self.on_tick: Callable[[], None] = lambda: None
        self.on_gpus: Callable[[int, Mapping[int, GpuShare]], None] = lambda pid, shares: None
        """Never called: the monitor measures this process itself."""
        self.on_leak: Callable[[Leak], bool] = lambda leak: False
        """Never called: there are no workers."""

    def roles(self) -> dict[int, str]:
        return {os.getpid(): "driver"}

    def limits(self) -> dict[int, int]:
        return {}

    def on_overuse(self, pid: int, held_bytes: int) -> None:
        """Never called: this process has no limit."""

    def pause(self, *, paused: bool) -> bool:
        """Does nothing: partitions run one at a time anyway."""
        return False

    def recycle(self) -> None:
        """Does nothing: there are no workers."""

    def __enter__(self) -> InlineExecutor:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def run_stage(self, stage: Stage, tasks: Iterable[Task], done: Callable[[Task, Outcome], None]) -> None:
        runner = StageRunner(stage)
        try:
            for given in tasks:
                if self.stop.level:
                    return
                allowance = given.allowance or self.governor.allowance()
                task = replace(given, allowance=allowance, last_attempt=True)  # there is no other worker to try
                self.emit(PartitionStarted(stage.index, task.partition.index, 0))
                task, outcome = self._run(runner, task)
                assert isinstance(outcome, Outcome)
                done(task, outcome)
        finally:
            runner.close()

    def _run(self, runner: StageRunner, task: Task) -> tuple[Task, Outcome | Segment]:
        """Run a task; again without the corrupt frames of compressed files that it finds."""
        while True:
            try:
                return task, runner.run(task, partial(self._progress, runner.stage, task))
            except CorruptFrames as found:
                task = replace(task, damaged=task.damaged | found.places)

    def map(
        self,
        function: Callable[..., Any],
        items: Sequence[tuple[Any, ...]],
        done: Callable[[int, Any], None],
        *,
        new_workers: bool = False,
    ) -> None:
        for number, item in enumerate(items):
            if self.stop.level:
                return
            done(number, function(*item))
            self.on_tick()

    def _progress(self, stage: Stage, task: Task, rows: int, num_bytes: int, errors: Sequence[ErrorCount]) -> None:
        if self.stop.level == 2:
            raise KeyboardInterrupt
        self.emit(PartitionProgress(stage.index, task.partition.index, 0, rows, num_bytes, tuple(errors)))
        self.on_tick()
