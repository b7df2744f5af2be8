"""Runs everything in the calling process, for debugging: errors are raised where they occur."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from tamis.context import Context
from tamis.events import Events, PartitionProgress, PartitionStarted
from tamis.executors.executor import Done, Hooks, Stop, Streaming
from tamis.executors.segments import Segment, publish
from tamis.executors.tasks import CorruptFrames, Group, Stage, Task
from tamis.executors.worker import StageRunner
from tamis.memory.governor import Governor
from tamis.memory.slots import gpu_slots
from tamis.models import devices
from tamis.report import ErrorCount


@dataclass(frozen=True)
class InlineExecutor:
    """Everything in the calling process, one partition after the other."""

    workers: int | Literal["auto"] = "auto"
    streaming: Streaming = "never"

    @property
    def name(self) -> str:
        return "inline"

    @contextmanager
    def connected(self) -> Iterator[None]:
        yield None

    @contextmanager
    def session(self, governor: Governor, modules: set[str], emit: Events, stop: Stop) -> Iterator[InlineSession]:
        with devices.hidden() if governor.budget.hides_gpus else nullcontext():
            try:
                yield InlineSession(governor, emit, stop)
            finally:
                devices.set_assigned(devices.Assigned())


class InlineSession:
    """Runs partitions one after the other in this process."""

    def __init__(self, governor: Governor, emit: Events, stop: Stop) -> None:
        self.governor, self.emit, self.stop = governor, emit, stop
        self.hooks = Hooks()

    def roles(self) -> dict[int, str]:
        return {os.getpid(): "driver"}

    @property
    def whole_tree(self) -> bool:
        return True

    def limits(self) -> dict[int, int]:
        return {}

    def on_overuse(self, pid: int, held_bytes: int) -> None:
        """Never called: this process has no limit."""

    def packet_bytes(self) -> int:
        return 0

    def pause(self, *, paused: bool) -> bool:
        """Does nothing: partitions run one at a time anyway."""
        return False

    def recycle(self) -> None:
        """Does nothing: there are no workers."""

    def run_group(self, group: Group, tasks: Sequence[Task], done: Done) -> None:
        runner = StageRunner(group.whole, context=self._context(group.whole))
        try:
            for given in tasks:
                if self.stop.level:
                    return
                allowance = given.allowance or self.governor.allowance()
                task = replace(given, allowance=allowance, last_attempt=True)  # there is no other worker to try
                self.emit(PartitionStarted(group.index, task.partition.index, 0))
                task, segment = self._run(runner, task)
                outcome = publish(group.whole, task, [segment], scores=group.whole.scores)
                self.governor.finished(outcome.account.peak_memory_bytes, allowance.batch_bytes, outcome.account.splits)
                self.governor.learned.note_setup((op.name, op.setup_bytes) for op in outcome.account.operators)
                self.governor.learned.limits.update(outcome.account.limits)
                done(task, outcome)
        finally:
            runner.close()

    def _context(self, stage: Stage) -> Context:
        """A GPU if the stage needs one: the first that this process may use, with all of its budget."""
        if not stage.slots_needed.any or not self.governor.budget.gpus:
            return Context()
        ((slot,),) = gpu_slots(self.governor.budget.gpus, [stage.slots_needed], [1])
        devices.set_assigned(devices.Assigned("cuda:0", slot.gpu_bytes))
        return Context("cuda:0", None, slot.gpu_bytes)

    def _run(self, runner: StageRunner, task: Task) -> tuple[Task, Segment]:
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
        on_gpu: bool = False,
    ) -> None:
        for number, item in enumerate(items):
            if self.stop.level:
                return
            done(number, function(*item))
            self.hooks.on_tick()

    def _progress(self, stage: Stage, task: Task, rows: int, num_bytes: int, errors: Sequence[ErrorCount]) -> None:
        if self.stop.level == 2:
            raise KeyboardInterrupt
        self.emit(PartitionProgress(stage.index, task.partition.index, 0, rows, num_bytes, tuple(errors)))
        self.hooks.on_tick()
