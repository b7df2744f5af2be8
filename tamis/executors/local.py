"""Worker processes on this machine. Tasks and accounts pass between processes, never rows.

driver                                worker
  stage (once), task  ------------->    StageRunner.run(task): reads, processes, writes its shards
  progress, outcome   <-------------
  after a death, reads the worker's mark: which rows, which step
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tamis.errors import WorkerError
from tamis.events import Events, KernelsCompiling, LeakFound, PartitionProgress, PartitionStarted, WorkerDied
from tamis.executors.forkserver import take_server
from tamis.executors.schedule import Progress, Trouble, after_death, after_overflow
from tamis.executors.segments import Outcome, Segment, publish
from tamis.executors.tasks import Stage, Task
from tamis.executors.worker_process import MARK, dumps
from tamis.memory.governor import OVERUSE_BYTES, Governor
from tamis.memory.gpu import GpuShare
from tamis.memory.leaks import Leak, LeakDetector
from tamis.memory.monitor import private_bytes
from tamis.memory.tree import descendants
from tamis.parameters import format_bytes

MAX_BLAMED = 10
"""Rows of one partition that may fail because workers died over them; with more, the rows are not the cause."""

MAX_KILLS = 10
"""Deaths by a signal before any row of a partition; each time less memory is used."""

CRASHES = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE")
MAX_CRASHES = 3
"""Crashes while reading the same piece of a file before the piece fails as damaged: the first may be chance, the second
lack of memory."""

MAX_CALL_DEATHS = 3
"""Deaths over one call of `map`, or by an exit before any row of a partition."""

MAX_COMPILED = 200
"""Times one partition or call may be repeated because kernels were compiled; there are fewer kernels than that."""


class Stop:
    """Whether the user asked to stop: 0 no, 1 finish what is in progress, 2 abandon it."""

    def __init__(self) -> None:
        self.level = 0


@dataclass
class _Worker:
    number: int
    pid: int
    connection: Connection
    marker: Path
    share_bytes: int
    task: Task | None = None
    calling: bool = False
    """Whether it is in the middle of a call of `map`."""
    compiling: bool = False
    """Its memory is not limited, and it exits when the kernel is on disk."""
    stage: int = -1
    shards: int = 0
    given: int = 0
    """Tasks and calls so far."""

    @property
    def busy(self) -> bool:
        return self.task is not None or self.calling

    @property
    def used(self) -> bool:
        """Whether it may hold memory from before its current task."""
        return self.given > 1

    def send(self, *message: Any) -> None:
        """Send a message. If the worker has died, that shows when its answer is awaited."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send_bytes(pickle.dumps(message))

    def last_mark(self) -> tuple[int, int, int]:
        """(first row, rows, step) the worker noted last."""
        return MARK.unpack(self.marker.read_bytes()[: MARK.size])


class LocalExecutor:
    """Runs the partitions of a stage on as many processes as the governor allows; use as a context manager."""

    name = "local"

    def __init__(self, governor: Governor, preload: Iterable[str], emit: Events, stop: Stop) -> None:
        self.governor = governor
        self.preload = set(preload)
        self.emit, self.stop = emit, stop
        self._paused = False
        self.on_tick: Callable[[], None] = lambda: None
        self.on_gpus: Callable[[int, Mapping[int, GpuShare]], None] = lambda pid, shares: None
        """Called with a worker's process id and what it reports about its GPU memory; with nothing once it has exited."""
        self.on_leak: Callable[[Leak], bool] = lambda leak: True
        """Called with a leak; returns whether to replace the worker."""
        self._workers: list[_Worker] = []
        self._leaving: list[int] = []
        """Process ids of workers that were asked to exit and may still be running."""
        self._numbers = iter(range(1_000_000))
        self._compiling_announced = False
        self._overuse: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()

    def __enter__(self) -> LocalExecutor:
        self._stack = ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="tamis-")))
        self._wake_read, self._wake_write = os.pipe()
        self._stack.callback(os.close, self._wake_read)
        self._stack.callback(os.close, self._wake_write)
        self._server = self._stack.enter_context(take_server())
        self._server.preload(self.preload)
        return self

    def __exit__(self, *exc: object) -> None:
        for worker in self._workers:
            worker.connection.close()
        self._stack.close()

    def roles(self) -> dict[int, str]:
        """What each process of the run does."""
        workers = {worker.pid: f"worker {worker.number}" for worker in list(self._workers)}
        return {os.getpid(): "driver", self._server.pid: "server", **workers}

    def limits(self) -> dict[int, int]:
        """How much memory each busy worker may hold, by process id; called from the monitor's thread."""
        return {
            worker.pid: worker.share_bytes + OVERUSE_BYTES
            for worker in list(self._workers)
            if worker.busy and not worker.compiling
        }

    def on_overuse(self, pid: int, held_bytes: int) -> None:
        """Stop a worker that holds more than its limit; called from the monitor's thread."""
        self._overuse.put((pid, held_bytes))
        os.write(self._wake_write, b".")

    def pause(self, *, paused: bool) -> bool:
        """Start no partition while another is in progress, or resume; returns whether that changes anything."""
        changed, self._paused = paused != self._paused, paused
        return changed

    def recycle(self) -> None:
        """Stop idle workers to release their memory; others are started when needed."""
        while (idle := self._idle()) is not None:
            self._end(idle, "memory is short")

    def _end(self, worker: _Worker, why: str) -> None:
        self._stop_worker(worker)
        self.governor.recycled(worker.number, why)

    def _stop_worker(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        self._leaving.append(worker.pid)
        worker.connection.close()
        self.on_gpus(worker.pid, {})

    def _kill(self, worker: _Worker) -> None:
        """End a worker, and the processes it started, now."""
        for pid in [worker.pid, *descendants(worker.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._stop_worker(worker)

    def _announce_compiling(self, worker: _Worker) -> None:
        worker.compiling = True
        if not self._compiling_announced:
            self._compiling_announced = True
            self.emit(KernelsCompiling())

    # ------------------------------------------------------------------------------------------------------- partitions

    def run_stage(self, stage: Stage, tasks: Iterable[Task], done: Callable[[Task, Outcome], None]) -> None:
        """Run every task and call `done` in the driver as each one ends; returns early if asked to stop."""
        _StageRun(self, stage, deque(tasks), done).run()

    def map(
        self,
        function: Callable[..., Any],
        items: Sequence[tuple[Any, ...]],
        done: Callable[[int, Any], None],
        *,
        new_workers: bool = False,
    ) -> None:
        """Call `function(*item)` in the workers for each item; `done(number, result)` in the driver as each one ends.

        With `new_workers`, in workers that hold nothing yet: the heap of one that has worked is fragmented.
        """
        for worker in list(self._workers) if new_workers else []:
            self._stop_worker(worker)
        running: dict[int, int] = {}
        try:
            self._map(function, items, done, running)
        finally:
            # After an error or a stop, an answer to this call must not be taken for an answer to the next one.
            for worker in [worker for worker in self._workers if worker.number in running]:
                self._kill(worker)

    def _map(
        self,
        function: Callable[..., Any],
        items: Sequence[tuple[Any, ...]],
        done: Callable[[int, Any], None],
        running: dict[int, int],
    ) -> None:
        pending = deque(range(len(items)))
        deaths: Counter[int] = Counter()
        compiled: Counter[int] = Counter()
        while pending or running:
            if self.stop.level == 2 or (self.stop.level == 1 and not running):
                return
            while pending and self.stop.level == 0 and len(running) < self.governor.workers:
                idle = self._idle() or self._start()
                idle.calling = True
                idle.given += 1
                running[idle.number] = pending.popleft()
                idle.send("call", dumps((function, items[running[idle.number]])))
            for worker, message in self._messages():
                if message is not None and message[0] == "compiling":
                    self._announce_compiling(worker)
                    continue
                worker.calling = False
                number = running.pop(worker.number, None)
                if message is None or message[0] == "overuse":
                    if message is None:
                        how = self._server.ending(worker.pid)
                        self._stop_worker(worker)
                    else:
                        how = self._stop_overuse(worker, message[1], function.__name__)
                    if number is None:
                        continue
                    self.emit(WorkerDied(worker.number, how, None, function.__name__))
                    deaths[number] += 1
                    if deaths[number] > MAX_CALL_DEATHS:
                        raise WorkerError(
                            f"workers died {deaths[number]} times in {function.__name__} ({how})",
                            hint="rerun the same command with more --memory or fewer --workers",
                        )
                    pending.appendleft(number)
                elif message[0] == "error":
                    raise message[1]
                elif message[0] == "compiled":
                    assert number is not None
                    pending.appendleft(number)
                    self._stop_worker(worker)
                    count_compiled(compiled, number, function.__name__)
                else:
                    assert number is not None
                    done(number, message[1])

    def _stop_overuse(self, worker: _Worker, held_bytes: int, step: str) -> str:
        """Kill a worker that holds more than it may; returns why, for messages."""
        self._kill(worker)
        self._server.ending(worker.pid)
        why = (
            f"it held {format_bytes(held_bytes)} in `{step}`, more than the "
            f"{format_bytes(worker.share_bytes + OVERUSE_BYTES)} a worker may hold"
        )
        self.governor.stopped(worker.number, why)
        return f"stopped because {why}"

    # ---------------------------------------------------------------------------------------------------------- workers

    def _start(self, share_bytes: int | None = None) -> _Worker:
        while self._leaving:  # their memory is not free before they have exited
            self._server.ending(self._leaving.pop())
        number = next(self._numbers)
        marker = self._folder / f"worker-{number}"
        marker.write_bytes(b"\0" * MARK.size)
        pid, connection = self._server.start(str(marker))
        worker = _Worker(number, pid, connection, marker, share_bytes or self.governor.worker_bytes)
        self._workers.append(worker)
        worker.send("cap", worker.share_bytes)
        return worker

    def _worker_for(self, task: Task) -> _Worker | None:
        """An idle or new worker for a task; None if it has to wait."""
        if task.last_attempt:  # with the whole budget, and so without other workers
            if self._busy():
                return None
            for worker in list(self._workers):
                self._stop_worker(worker)
            return self._start(self.governor.single_worker_bytes)
        idle = [worker for worker in self._workers if not worker.busy]
        if task.new_worker:
            unused = [worker for worker in idle if not worker.given]
            if idle and not unused:
                self._stop_worker(idle[0])
            idle = unused
        if idle:
            return idle[0]
        return self._start() if len(self._workers) < self.governor.workers else None

    def _fit_workers(self) -> None:
        """After the governor reduced the number of workers: stop idle ones, and raise the share of the rest."""
        while len(self._workers) > self.governor.workers and (idle := self._idle()) is not None:
            self._stop_worker(idle)
        for worker in self._workers:
            worker.share_bytes = max(worker.share_bytes, self.governor.worker_bytes)
            worker.send("cap", worker.share_bytes)

    def _busy(self) -> bool:
        return any(worker.busy for worker in self._workers)

    def _idle(self) -> _Worker | None:
        return next((worker for worker in self._workers if not worker.busy), None)

    def _messages(self) -> Iterator[tuple[_Worker, Any]]:
        """What workers report; None for one that died, ("overuse", bytes) for one that holds too much."""
        by_connection = {worker.connection: worker for worker in self._workers}
        for ready in wait([*by_connection, self._wake_read], timeout=0.2):
            if ready == self._wake_read:
                os.read(self._wake_read, 4096)
                continue
            worker = by_connection[ready]  # type: ignore[index]
            if worker not in self._workers:
                continue  # stopped because of another worker's message
            try:
                message = pickle.loads(worker.connection.recv_bytes())
            except (EOFError, ConnectionResetError):
                message = None
            if message is not None and message[0] == "gpus":
                self.on_gpus(worker.pid, message[1])
            else:
                yield worker, message
        while not self._overuse.empty():
            pid, held = self._overuse.get()
            worker_or_none = next((worker for worker in self._workers if worker.pid == pid), None)
            if worker_or_none is not None and not worker_or_none.compiling:
                yield worker_or_none, ("overuse", held)
        self.on_tick()


class _StageRun:
    """One stage on the workers of an executor."""

    def __init__(
        self, executor: LocalExecutor, stage: Stage, pending: deque[Task], done: Callable[[Task, Outcome], None]
    ) -> None:
        self.executor, self.stage, self.pending, self.done = executor, stage, pending, done
        self.governor, self.emit = executor.governor, executor.emit
        self.payload = dumps(stage)
        self.progress: dict[int, Progress] = {}
        self.compiled: Counter[int] = Counter()
        self.leaks = LeakDetector(stage.name)

    def run(self) -> None:
        executor = self.executor
        while self.pending or executor._busy():
            level = executor.stop.level
            if level == 2 or (level == 1 and not executor._busy()):
                return
            if level == 0:
                self._hand_out()
            for worker, message in executor._messages():
                if message is None:
                    self._on_worker_death(worker)
                else:
                    self._on_message(worker, *message)

    def _hand_out(self) -> None:
        executor = self.executor
        while self.pending and not (executor._paused and executor._busy()):
            worker = executor._worker_for(self.pending[0])
            if worker is None:
                return
            task = self.pending.popleft()
            if task.allowance is None:
                task = replace(task, allowance=self.governor.allowance())
            if worker.stage != self.stage.index:
                worker.send("stage", self.payload)
                worker.stage = self.stage.index
            worker.send("task", task)
            worker.task = task
            worker.given += 1
            self.emit(PartitionStarted(self.stage.index, task.partition.index, worker.number))

    def _on_message(self, worker: _Worker, kind: str, *content: Any) -> None:
        executor, task = self.executor, worker.task
        if kind == "overuse":
            self._on_overuse(worker, content[0])
            return
        assert task is not None
        if kind == "progress":
            self.emit(PartitionProgress(self.stage.index, task.partition.index, worker.number, *content))
        elif kind == "outcome":
            worker.task = None
            self._on_outcome(task, content[0])
            if task.last_attempt:  # its share is that of all workers
                executor._stop_worker(worker)
            else:
                self._look_for_leak(worker)
        elif kind == "compiling":
            executor._announce_compiling(worker)
        elif kind == "compiled":
            self.pending.appendleft(task)
            executor._stop_worker(worker)
            count_compiled(self.compiled, task.partition.index, task.partition.pieces[0].path)
        elif kind == "corrupt":
            worker.task = None
            again = self._restarted(replace(task, damaged=task.damaged | content[0]))
            self._try(task, [replace(again, allowance=task.allowance, new_worker=False)])
        elif kind == "overflow":
            executor._stop_worker(worker)
            self._on_overflow(worker, task, *content[0])
        elif kind == "too large":
            self.pending.appendleft(task)
            executor._stop_worker(worker)
            error, share = content[0]
            # A used worker is simply replaced; another failure may already have freed memory.
            if not worker.used and share >= self.governor.worker_bytes:
                self.governor.too_large_to_set_up(error)
                executor._fit_workers()
        else:
            raise content[0]

    def _on_outcome(self, task: Task, outcome: Outcome | Segment) -> None:
        index = task.partition.index
        if isinstance(outcome, Outcome):
            self.progress.pop(index, None)
            self.done(task, outcome)
            return
        segments = self.progress[index].add(task, outcome)
        if outcome.next_row is not None:
            self.pending.appendleft(replace(task, start=outcome.next_row))
        if segments is not None:
            whole = publish(self.stage, task, segments)
            self.progress.pop(index).restart()
            self.done(task, whole)

    def _look_for_leak(self, worker: _Worker) -> None:
        """After a shard, when a worker has released what it can: if its memory keeps rising, replace it."""
        worker.shards += 1
        held, limit = private_bytes(worker.pid), self.governor.worker_bytes
        leak = self.leaks.add(worker.number, worker.shards, held, time.monotonic(), limit)
        if leak is not None:
            self.emit(
                LeakFound(leak.stage, leak.worker, leak.bytes_per_shard, leak.bytes_per_s, leak.since, leak.confidence)
            )
            self.leaks.forget(worker.number)
            if self.executor.on_leak(leak):
                why = f"the memory it holds rises by {format_bytes(leak.bytes_per_shard)} per shard"
                self.executor._end(worker, why)

    # ---------------------------------------------------------------------------------------------------- trying again

    def _on_overuse(self, worker: _Worker, held_bytes: int) -> None:
        first, rows, step = worker.last_mark()
        how = self.executor._stop_overuse(worker, held_bytes, self._step_name(step))
        if worker.task is not None:
            self._on_overflow(worker, worker.task, first, rows, f"the worker was {how}")

    def _on_overflow(self, worker: _Worker, task: Task, first: int, rows: int, error: str, full: bool = False) -> None:
        """Decide how to try the rows of a task again that ran out of memory."""
        assert task.allowance is not None
        what = f"{task.partition.pieces[0].path} in `{self._step_name(worker.last_mark()[2])}`"
        if task.last_attempt and self.stage.on_error == "raise":
            raise WorkerError(f"{what}: {error}", hint="give it more --memory")
        tasks = after_overflow(task, Trouble(first, rows, error, worker.used, full=full))
        allowance = task.allowance
        if tasks is None:
            allowance = self.governor.overflowed(allowance, what)
            tasks = [replace(task, new_worker=True)]
            if allowance.max_row_bytes != task.allowance.max_row_bytes:
                tasks = [self._restarted(task)]
        elif rows != 1:
            allowance = self.governor.shrunk(allowance, what)
        if len(tasks) > 1:
            self.governor.divided(what)
        self._try(task, [replace(each, allowance=allowance) for each in tasks])
        self.executor._fit_workers()

    def _on_worker_death(self, worker: _Worker) -> None:
        """Replace a dead worker and decide how to try its rows again."""
        how = self.executor._server.ending(worker.pid)
        self.executor._stop_worker(worker)
        task = worker.task
        if task is None:
            return
        first, rows, step = worker.last_mark()
        index, name = task.partition.index, self._step_name(step)
        path = task.partition.pieces[0].path
        self.emit(WorkerDied(worker.number, how, index, name))
        progress = self.progress.setdefault(index, Progress())
        progress.deaths += 1
        progress.deaths_while_reading += not rows
        if step < 0 and any(signal_name in how for signal_name in CRASHES):
            progress.crashes[-1 - step] += 1
            if progress.crashes[-1 - step] >= MAX_CRASHES:
                self._skip_piece(task, -1 - step, how)
                return
        by_signal = "signal" in how
        most = MAX_KILLS if by_signal else MAX_CALL_DEATHS
        if progress.deaths_while_reading > most or progress.blamed >= MAX_BLAMED:
            raise WorkerError(
                f"workers died {progress.deaths} times over {path} in `{name}` ({how})",
                hint="give the run more --memory or the reader a smaller blocksize; --executor inline shows where it happens",
            )
        assert task.allowance is not None
        what = f"{path} in `{name}`"
        self.governor.restarted(what, how)
        one_worker = worker.share_bytes >= self.governor.single_worker_bytes
        tasks = after_death(task, Trouble(first, rows, f"the worker was {how} in `{name}`", one_worker=one_worker))
        allowance = task.allowance
        if by_signal and task.deaths and not rows:  # perhaps a library that ran out of memory
            allowance = self.governor.overflowed(allowance, what)
            if allowance.max_row_bytes != task.allowance.max_row_bytes:
                tasks = [self._restarted(task)]
        elif "SIGKILL" in how and task.deaths and rows > 1:  # perhaps by the kernel, because memory ran out
            allowance = self.governor.shrunk(allowance, what)
        progress.blamed += sum(len(each.poison) for each in tasks)
        self._try(task, [replace(each, allowance=allowance) for each in tasks])
        self.executor._fit_workers()

    def _skip_piece(self, task: Task, number: int, how: str) -> None:
        """Begin the partition again without a piece that crashes its readers."""
        piece = task.partition.pieces[number]
        self.governor.restarted(f"{piece.path} in `{self._step_name(0)}`", how)
        self.progress[task.partition.index].deaths_while_reading = 0
        error = f"{MAX_CRASHES} workers were {how} while reading {piece.path}"
        again = self._restarted(replace(task, unreadable={**task.unreadable, number: error}))
        self._try(task, [replace(again, allowance=task.allowance, deaths=0)])

    def _try(self, task: Task, tasks: list[Task]) -> None:
        """Queue tasks in place of one. Those that need all other workers to wait go to the end."""
        self.progress.setdefault(task.partition.index, Progress()).replaced(tasks)
        self.pending.extendleft(each for each in reversed(tasks) if not each.last_attempt)
        self.pending.extend(each for each in tasks if each.last_attempt)

    def _restarted(self, task: Task) -> Task:
        """The whole partition from its beginning: with another limit for rows, their numbers are no longer the same."""
        index = task.partition.index
        for worker in [w for w in self.executor._workers if w.task is not None and w.task.partition.index == index]:
            self.executor._kill(worker)
        kept = [each for each in self.pending if each.partition.index != index]
        self.pending.clear()
        self.pending.extend(kept)
        self.progress.setdefault(index, Progress()).restart()
        return Task(
            task.partition,
            gone=task.gone,
            damaged=task.damaged,
            unreadable=task.unreadable,
            new_worker=True,
            deaths=task.deaths + 1,
        )

    def _step_name(self, step: int) -> str:
        names = [each.name for each in self.stage.steps]
        return names[max(0, step)] if step < len(names) else names[-1]


def count_compiled(times: Counter[int], number: int, what: str) -> None:
    """Count how often work was handed back because kernels were compiled for it, and give up if that does not end."""
    times[number] += 1
    if times[number] > MAX_COMPILED:
        raise WorkerError(
            f"kernels were compiled {times[number]} times for {what}, and were not found on disk afterwards",
            hint="check that the folder of compiled kernels can be written and has room; NUMBA_CACHE_DIR names another",
        )
