"""Calls of a function in workers, for the Gathers: each item once, and again if its worker dies."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from tamis.errors import WorkerError
from tamis.events import Events, WorkerDied
from tamis.executors.crew import Crew, Worker
from tamis.executors.schedule import MAX_CALL_DEATHS, count_compiled
from tamis.executors.staffing import no_gpus_left
from tamis.executors.worker_process import dumps
from tamis.memory.governor import Governor
from tamis.memory.slots import GpuNeed, GpuSlot, gpu_slots


class Calls:
    """`function(*item)` for each item, in the workers."""

    def __init__(
        self,
        crew: Crew,
        governor: Governor,
        emit: Events,
        function: Callable[..., Any],
        items: Sequence[tuple[Any, ...]],
        done: Callable[[int, Any], None],
        *,
        on_gpu: bool = False,
    ) -> None:
        """With `on_gpu`, each worker has a GPU, and there are no more workers than GPUs."""
        self._crew, self._governor, self._emit = crew, governor, emit
        self._function, self._items, self._done, self._on_gpu = function, items, done, on_gpu
        self._slots: dict[str, tuple[GpuSlot, ...]] = {}
        self._pending = deque(range(len(items)))
        self._deaths: Counter[int] = Counter()
        self._compiled: Counter[int] = Counter()

    @property
    def unfinished(self) -> bool:
        return bool(self._pending) or self.in_progress

    @property
    def in_progress(self) -> bool:
        return self._crew.is_busy()

    def hand_out(self, *, only_begun: bool) -> None:
        running = sum(worker.job is not None for worker in self._crew.workers)
        places = self._crew.places(self._governor.workers)
        most = min(places, sum(map(len, self._slots_now().values()))) if self._on_gpu else places
        while self._pending and not only_begun and running < most:
            idle = self._crew.idle()
            worker = idle[0] if idle else self._start()
            worker.job = _Call(self._pending.popleft())
            worker.given += 1
            running += 1
            worker.send("call", dumps((self._function, self._items[worker.job.number])))

    def _start(self) -> Worker:
        if not self._on_gpu:
            return self._crew.start(self._governor.worker_bytes)
        taken = {(worker.place, worker.slot) for worker in self._crew.workers}
        node, number, slot = next(
            (node, number, slot)
            for node, slots in self._slots_now().items()
            for number, slot in enumerate(slots)
            if (node, number) not in taken
        )
        return self._crew.start(self._governor.worker_bytes, slot, number, node=node)

    def _slots_now(self) -> dict[str, tuple[GpuSlot, ...]]:
        """By node, the places on its GPUs."""
        nodes = self._crew.nodes()
        if nodes and not any(map(self._crew.gpus_on, nodes)) and not self._crew.may_grow():
            raise no_gpus_left()
        for node in nodes:
            if node not in self._slots:
                gpus = self._crew.gpus_on(node)
                (found,) = gpu_slots(gpus, [GpuNeed(1)], [self._governor.workers]) if gpus else ((),)
                self._slots[node] = found
        return {node: self._slots[node] for node in nodes}

    def on_death(self, worker: Worker) -> None:
        self._try_again(worker, self._crew.bury(worker))

    def on_message(self, worker: Worker, kind: str, *content: Any) -> None:
        if kind == "overuse":
            self._try_again(worker, self._crew.stop_overuse(worker, content[0], self._function.__name__))
            return
        number = worker.job.number
        worker.job = None
        if kind == "error":
            raise content[0]
        if kind == "compiled":
            self._pending.appendleft(number)
            self._crew.stop(worker)
            count_compiled(self._compiled, number, self._function.__name__)
        else:
            self._done(number, content[0])

    def _try_again(self, worker: Worker, how: str) -> None:
        call, worker.job = worker.job, None
        if call is None:
            return
        name = self._function.__name__
        self._emit(WorkerDied(worker.number, how, None, name))
        self._deaths[call.number] += not worker.lost
        if self._deaths[call.number] > MAX_CALL_DEATHS:
            raise WorkerError(
                f"workers died {self._deaths[call.number]} times in {name} ({how})",
                hint="rerun the same command with more --memory or fewer --workers",
            )
        self._pending.appendleft(call.number)

    def close(self) -> None:
        """After an error or a stop, an answer to one of these calls must not be taken for an answer to the next ones."""
        for worker in [worker for worker in self._crew.workers if worker.job is not None]:
            self._crew.kill(worker)


class _Call:
    """A call that a worker is busy with."""

    def __init__(self, number: int) -> None:
        self.number = number
