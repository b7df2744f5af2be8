"""A run on the workers of a crew: groups of stages and calls, one after the other, in one loop. Which crew does not matter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Protocol

from tamis.events import Events, KernelsCompiling
from tamis.executors.calls import Calls
from tamis.executors.compiling import CompilingTime
from tamis.executors.crew import Crew, Worker
from tamis.executors.executor import Done, Hooks, Stop
from tamis.executors.groups import GroupRun
from tamis.executors.tasks import Group, Task
from tamis.memory.budget import StreamBudget, stream_budget
from tamis.memory.governor import Governor


class _Work(Protocol):
    """Something for the crew to do."""

    @property
    def unfinished(self) -> bool: ...

    @property
    def in_progress(self) -> bool: ...

    def hand_out(self, *, only_begun: bool) -> None: ...

    def on_message(self, worker: Worker, kind: str, *content: Any) -> None: ...

    def on_death(self, worker: Worker) -> None: ...

    def close(self) -> None: ...


class CrewSession(ABC):
    """The workers of one run."""

    crew: Crew

    def __init__(self, governor: Governor, emit: Events, stop: Stop) -> None:
        self.governor, self.emit, self.stop = governor, emit, stop
        self.hooks = Hooks()
        self._paused = False
        self._group: GroupRun | None = None
        self._compiling = CompilingTime(lambda: emit(KernelsCompiling()))

    @abstractmethod
    def packets(self, group: Group, stream: StreamBudget) -> AbstractContextManager[StreamBudget]:
        """While the block runs, there are folders for packets. Yields the budget, as far as there is shared memory for it."""

    def packet_bytes(self) -> int:
        return self._group.edges.memory_bytes if self._group is not None else 0

    def pause(self, *, paused: bool) -> bool:
        changed, self._paused = paused != self._paused, paused
        if self._group is not None:
            self._group.paused = paused
        return changed

    def recycle(self) -> None:
        for worker in self.crew.idle():
            if self._group is not None:
                for pool in self._group.pools:
                    if worker in pool.workers:
                        pool.workers.remove(worker)
            self.crew.replace(worker, "memory is short")

    def run_group(self, group: Group, tasks: Sequence[Task], done: Done) -> None:
        stream = None
        with ExitStack() as stack:
            if group.streams:
                planned = stream_budget(self.governor.budget, group.needs(self.governor.learned))
                stream = stack.enter_context(self.packets(group, planned))
                for worker in list(self.crew.workers):  # their shares are others
                    self.crew.stop(worker)
            run = GroupRun(self.crew, group, deque(tasks), done, self.governor, self.emit, self.hooks, stream)
            run.paused = self._paused
            self._group = run
            try:
                self._work(run)
            finally:
                self._group = None

    def map(
        self,
        function: Callable[..., Any],
        items: Sequence[tuple[Any, ...]],
        done: Callable[[int, Any], None],
        *,
        new_workers: bool = False,
        on_gpu: bool = False,
    ) -> None:
        on_gpu = on_gpu and bool(self.governor.budget.gpus)
        for worker in list(self.crew.workers) if new_workers or on_gpu else []:
            self.crew.stop(worker)
        self._work(Calls(self.crew, self.governor, self.emit, function, items, done, on_gpu=on_gpu))
        for worker in list(self.crew.workers) if on_gpu else []:
            self.crew.stop(worker)

    def _work(self, work: _Work) -> None:
        """The loop between driver and workers."""
        try:
            while work.unfinished:
                level = self.stop.level
                if level == 2 or (level == 1 and not work.in_progress):
                    return
                work.hand_out(only_begun=level > 0)
                for worker, message in self.crew.messages():
                    if message is not None and message[0] == "compiling":
                        worker.compiling = True
                        self._compiling.begin(worker.number)
                        continue
                    self._compiling.end(worker.number)  # it compiles no more, whatever it reports
                    if message is None:
                        work.on_death(worker)
                    else:
                        work.on_message(worker, *message)
                self._compiling.look()
        finally:
            work.close()
