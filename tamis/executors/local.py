"""Worker processes on this machine. Only descriptions of work and accounts of it pass between processes, never rows.

driver                                worker
  stage (once), task  ------------->    StageRunner.run(task): reads, processes, writes its shards
  progress, outcome   <-------------
  reads the marker file of a worker that died: which rows, which step
"""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import struct
import tempfile
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tamis.errors import SetupTooLarge, TamisError, WorkerError, is_shortage
from tamis.events import Events, KernelsCompiling, LeakFound, PartitionProgress, PartitionStarted, WorkerDied
from tamis.executors.compiling import Compiling, KernelsCompiled
from tamis.executors.forkserver import take_server
from tamis.executors.worker import Outcome, Progress, Stage, StageRunner, Task
from tamis.memory import process
from tamis.memory.governor import Governor, cap_this_process
from tamis.memory.gpu import GpuShare, own_shares
from tamis.memory.leaks import Leak, LeakDetector
from tamis.memory.monitor import private_bytes
from tamis.parameters import format_bytes
from tamis.report import ErrorCount

MAX_DEATHS = 40
"""Deaths over one partition before the run gives up: two or more per row that kills, so that a good row is not blamed."""

MAX_KILLS = 10
"""Deaths by SIGKILL before any row before the run gives up: each time less memory is taken."""

MAX_CALL_DEATHS = 3
"""Deaths over one call of `map`, or before any row of a partition, before the run gives up."""

MAX_COMPILED = 200
"""Times one partition or call may be handed out again because kernels were compiled; there are fewer kernels than that."""

PROGRESS_EVERY_S = 0.25

_MARK = struct.Struct("<qqq")


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
    task: Task | None = None
    calling: bool = False
    """Whether it is in the middle of a call of `map`."""
    stage: int = -1
    shards: int = 0
    used: bool = False
    """Whether it has worked before: then it may hold what a new one would not."""

    @property
    def busy(self) -> bool:
        return self.task is not None or self.calling

    def send(self, *message: Any) -> None:
        """Tell it something; one that is gone is noticed when its answer is awaited."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send_bytes(pickle.dumps(message))

    def last_mark(self) -> tuple[int, int, int]:
        """(first row, rows, step) the worker was at, as it noted before each step."""
        return _MARK.unpack(self.marker.read_bytes()[: _MARK.size])


@dataclass
class _History:
    """What happened to a partition so far."""

    deaths: int = 0
    last: tuple[int, int, int] | None = None
    task: Task | None = field(default=None)


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
        """Told what a worker, by its process id, says of its GPU memory; nothing when it is gone."""
        self.on_leak: Callable[[Leak], bool] = lambda leak: True
        """Asked whether to replace the worker that leaks."""
        self._workers: list[_Worker] = []
        self._leaving: list[int] = []
        """Process ids of workers that were let go and may not be gone yet."""
        self._numbers = iter(range(1_000_000))
        self._told_of_compiling = False

    def __enter__(self) -> LocalExecutor:
        self._stack = ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="tamis-")))
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

    def pause(self, *, paused: bool) -> bool:
        """Hand out no new partition while others are in progress, or do again; whether that changes anything."""
        changed, self._paused = paused != self._paused, paused
        return changed

    def recycle(self) -> None:
        """End idle workers, so that what they hold is given back; others take their place when needed."""
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

    def _tell_of_compiling(self) -> None:
        if not self._told_of_compiling:
            self._told_of_compiling = True
            self.emit(KernelsCompiling())

    # ------------------------------------------------------------------------------------------------------- partitions

    def run_stage(self, stage: Stage, tasks: Iterable[Task], done: Callable[[Task, Outcome], None]) -> None:
        """Run every task, calling `done` in the driver as each one ends; returns early if asked to stop."""
        payload = dumps(stage)
        pending = deque(tasks)
        history: dict[int, _History] = {}
        compiled: Counter[int] = Counter()
        leaks = LeakDetector(stage.name)
        while pending or self._busy():
            if self.stop.level == 2 or (self.stop.level == 1 and not self._busy()):
                return
            if self.stop.level == 0:
                self._hand_out(stage, payload, pending)
            for worker, message in self._messages():
                if message is None:
                    self._on_worker_death(worker, stage, pending, history)
                elif message[0] == "progress":
                    assert worker.task is not None
                    index = worker.task.partition.index
                    self.emit(PartitionProgress(stage.index, index, worker.number, *message[1:]))
                elif message[0] == "outcome":
                    task, worker.task = worker.task, None
                    assert task is not None
                    done(task, message[1])
                    self._look_for_leak(worker, leaks)
                elif message[0] == "compiling":
                    self._tell_of_compiling()
                elif message[0] == "compiled":
                    assert worker.task is not None
                    pending.appendleft(worker.task)
                    self._stop_worker(worker)
                    _count_compiled(compiled, worker.task.partition.index, worker.task.partition.pieces[0].path)
                elif message[0] == "overflow":
                    task, worker.task = worker.task, None
                    assert task is not None
                    assert task.allowance is not None
                    what = f"{task.partition.pieces[0].path} in `{_step_name(stage, worker.last_mark()[2])}`"
                    pending.appendleft(replace(task, allowance=self.governor.overflowed(task.allowance, what)))
                    self._fit_workers()
                elif message[0] == "too large":
                    assert worker.task is not None
                    pending.appendleft(worker.task)
                    self._stop_worker(worker)
                    error, share = message[1]
                    # One that had worked before is replaced; and maybe another one that failed has made room already.
                    if not worker.used and share >= self.governor.worker_bytes:
                        self.governor.too_large_to_set_up(error)
                        self._fit_workers()
                else:
                    raise message[1]

    def map(
        self,
        function: Callable[..., Any],
        items: Sequence[tuple[Any, ...]],
        done: Callable[[int, Any], None],
        *,
        new_workers: bool = False,
    ) -> None:
        """Call `function(*item)` in the workers for each item; `done(number, result)` in the driver as each one ends.

        With `new_workers`, in workers that hold nothing yet: what one has been through leaves its heap in pieces.
        """
        for worker in list(self._workers) if new_workers else []:
            self._stop_worker(worker)
        running: dict[int, int] = {}
        try:
            self._map(function, items, done, running)
        finally:
            # After an error or when asked to stop: what is still being done must not be taken for an answer to the next call.
            for worker in [worker for worker in self._workers if worker.number in running]:
                with suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGKILL)
                self._stop_worker(worker)

    def _map(
        self,
        function: Callable[..., Any],
        items: Sequence[tuple[Any, ...]],
        done: Callable[[int, Any], None],
        running: dict[int, int],
    ) -> None:
        pending = deque(range(len(items)))
        deaths: dict[int, int] = {}
        compiled: Counter[int] = Counter()
        while pending or running:
            if self.stop.level == 2 or (self.stop.level == 1 and not running):
                return
            while pending and self.stop.level == 0 and len(running) < self.governor.workers:
                idle = self._idle() or self._start()
                idle.calling = idle.used = True
                running[idle.number] = pending.popleft()
                idle.send("call", dumps((function, items[running[idle.number]])))
            for worker, message in self._messages():
                if message is not None and message[0] == "compiling":
                    self._tell_of_compiling()
                    continue
                worker.calling = False
                number = running.pop(worker.number, None)
                if message is None:
                    how = self._server.ending(worker.pid)
                    self._stop_worker(worker)
                    if number is None:
                        continue
                    self.emit(WorkerDied(worker.number, how, None, function.__name__))
                    deaths[number] = deaths.get(number, 0) + 1
                    if deaths[number] > MAX_CALL_DEATHS:
                        raise WorkerError(
                            f"workers died {deaths[number]} times in {function.__name__} ({how})",
                            hint="run the same command again with more --memory or fewer --workers",
                        )
                    pending.appendleft(number)
                elif message[0] == "error":
                    raise message[1]
                elif message[0] == "compiled":
                    assert number is not None
                    pending.appendleft(number)
                    self._stop_worker(worker)
                    _count_compiled(compiled, number, function.__name__)
                else:
                    assert number is not None
                    done(number, message[1])

    def _look_for_leak(self, worker: _Worker, leaks: LeakDetector) -> None:
        """After each shard, when a worker has given back what it can: if what it holds keeps rising, replace it."""
        worker.shards += 1
        held, limit = private_bytes(worker.pid), self.governor.worker_bytes
        leak = leaks.add(worker.number, worker.shards, held, time.monotonic(), limit)
        if leak is not None:
            self.emit(
                LeakFound(leak.stage, leak.worker, leak.bytes_per_shard, leak.bytes_per_s, leak.since, leak.confidence)
            )
            leaks.forget(worker.number)
            if self.on_leak(leak):
                self._end(worker, f"what it holds rises by {format_bytes(leak.bytes_per_shard)} per shard")

    def _hand_out(self, stage: Stage, payload: bytes, pending: deque[Task]) -> None:
        while pending and not (self._paused and self._busy()):
            worker = self._idle()
            if worker is None:
                if len(self._workers) >= self.governor.workers:
                    return
                worker = self._start()
            task = pending.popleft()
            if task.allowance is None:
                task = replace(task, allowance=self.governor.allowance())
            if worker.stage != stage.index:
                worker.used = worker.stage >= 0 or worker.used
                worker.send("stage", payload)
                worker.stage = stage.index
            worker.send("task", task)
            worker.task = task
            self.emit(PartitionStarted(stage.index, task.partition.index, worker.number))

    def _on_worker_death(
        self, worker: _Worker, stage: Stage, pending: deque[Task], history: dict[int, _History]
    ) -> None:
        """Replace a dead worker and decide how to try its partition again."""
        how = self._server.ending(worker.pid)
        self._stop_worker(worker)
        task = worker.task
        if task is None:
            return
        first, rows, step = worker.last_mark()
        index = task.partition.index
        past = history.setdefault(index, _History())
        past.deaths += 1
        name = _step_name(stage, step)
        self.emit(WorkerDied(worker.number, how, index, name))
        killed = "SIGKILL" in how
        if past.deaths > MAX_DEATHS or (rows == 0 and past.deaths > (MAX_KILLS if killed else MAX_CALL_DEATHS)):
            raise WorkerError(
                f"workers died {past.deaths} times over {task.partition.pieces[0].path} in `{name}` ({how})",
                hint="look for lack of memory (smaller --memory or blocksize), or run with --executor inline to see it happen",
            )
        assert task.allowance is not None
        what = f"{task.partition.pieces[0].path} in `{name}`"
        self.governor.restarted(what, how)
        if killed and past.deaths > 1 and task.careful is None:  # maybe by the kernel, for want of memory
            task = replace(task, allowance=self.governor.overflowed(task.allowance, what))
            self._fit_workers()
        pending.appendleft(next_attempt(task, past.last, (first, rows, step), f"the worker was {how} in `{name}`"))
        past.last = (first, rows, step)

    # ---------------------------------------------------------------------------------------------------------- workers

    def _start(self) -> _Worker:
        while self._leaving:  # what one that goes still holds cannot be promised to another
            self._server.ending(self._leaving.pop())
        number = next(self._numbers)
        marker = self._folder / f"worker-{number}"
        marker.write_bytes(b"\0" * _MARK.size)
        pid, connection = self._server.start(str(marker))
        worker = _Worker(number, pid, connection, marker)
        self._workers.append(worker)
        worker.send("cap", self.governor.worker_bytes)
        return worker

    def _fit_workers(self) -> None:
        """After the governor took a worker away: end idle ones, and let the others have its share."""
        while len(self._workers) > self.governor.workers and (idle := self._idle()) is not None:
            self._stop_worker(idle)
        for worker in self._workers:
            worker.send("cap", self.governor.worker_bytes)

    def _busy(self) -> bool:
        return any(worker.busy for worker in self._workers)

    def _idle(self) -> _Worker | None:
        return next((worker for worker in self._workers if not worker.busy), None)

    def _messages(self) -> Iterator[tuple[_Worker, Any]]:
        """What workers say; None for one whose connection is closed because it is gone."""
        by_connection = {worker.connection: worker for worker in self._workers}
        for ready in wait(list(by_connection), timeout=0.2):
            worker = by_connection[ready]  # type: ignore[index]
            if worker not in self._workers:
                continue  # let go because of what another one said
            try:
                message = pickle.loads(worker.connection.recv_bytes())
            except (EOFError, ConnectionResetError):
                message = None
            if message is not None and message[0] == "gpus":
                self.on_gpus(worker.pid, message[1])
            else:
                yield worker, message
        self.on_tick()


def next_attempt(task: Task, last: tuple[int, int, int] | None, now: tuple[int, int, int], how: str) -> Task:
    """How to try a partition again after a death at (first row, rows, step).

    Once may be chance (killed from outside): simply again. Twice at the same rows: these rows one by one. Twice at the
    same single row: that row is to blame, and is not tried again.
    """
    first, rows, _ = now
    if last is None or last[:2] != (first, rows) or not rows:
        return task
    if rows == 1:
        return replace(task, poison={**task.poison, first: how})
    return replace(task, careful=(first, first + rows))


def _count_compiled(times: Counter[int], number: int, what: str) -> None:
    """Note that work was handed back because kernels were compiled for it, and give up if that does not come to an end."""
    times[number] += 1
    if times[number] > MAX_COMPILED:
        raise WorkerError(
            f"kernels were compiled {times[number]} times for {what}, and each time not found on disk afterwards",
            hint="can the folder of compiled kernels be written, and is there room? NUMBA_CACHE_DIR names another one",
        )


def _step_name(stage: Stage, step: int) -> str:
    names = [stage.source.name]
    if stage.fates_of is not None:
        names.append(stage.fates_of.name)
    names += [op.name for op in stage.operators]
    if stage.end is not None:
        names.append(stage.end.name)
    return names[step] if step < len(names) else names[-1]


# ----------------------------------------------------------------------------------------------------- inside a worker


def worker_loop(connection: Connection, marker_path: str) -> None:
    """Serve the driver until it closes the connection."""
    with Path(marker_path).open("r+b") as file:
        marks = mmap.mmap(file.fileno(), _MARK.size)
    process.start_threads(Path(f"{marker_path}.arrow"))
    runner: StageRunner | None = None
    share = 0

    def say(*answer: Any) -> None:
        with suppress(BrokenPipeError):
            connection.send_bytes(pickle.dumps(answer))

    told: dict[int, GpuShare] = {}

    def tell_gpus() -> None:
        """What this process holds of GPUs, and for what: nobody outside can see that."""
        nonlocal told
        shares = own_shares()
        if shares != told:
            told = shares
            say("gpus", shares)

    compiling = Compiling(lambda: say("compiling"))

    def marker(first_row: int, rows: int, step: int) -> None:
        compiling.look()
        _MARK.pack_into(marks, 0, first_row, rows, step)

    while True:
        try:
            kind, content = pickle.loads(connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            return
        try:
            if kind == "stage":
                if runner is not None:
                    runner.close()
                    runner = None
                    process.trim()
                runner = StageRunner(loads(content), marker)
                continue
            if kind == "cap":
                share = content
                cap_this_process(share)
                continue
            if kind == "call":
                function, arguments = loads(content)
                compiling.look()
                answer: tuple[str, Any] = ("outcome", function(*arguments))
            else:
                assert runner is not None
                compiling.look()
                answer = ("outcome", runner.run(content, _progress_over(connection, tell_gpus)))
        except KernelsCompiled:
            say("compiled", None)
            return
        except Exception as error:  # noqa: BLE001 - it is raised again in the driver
            if kind == "stage" and is_shortage(error):
                known = error if isinstance(error, SetupTooLarge) else SetupTooLarge("a step", error)
                say("too large", (str(known), share))
                return
            overflow = kind == "task" and is_shortage(error)
            answer = ("overflow", None) if overflow else ("error", _portable(error))
            error.__traceback__ = None  # what held the memory hangs on it
        compiling.release()
        if kind == "task":
            process.trim()
        tell_gpus()
        say(*answer)


def _progress_over(connection: Connection, tell_gpus: Callable[[], None]) -> Progress:
    last = time.monotonic()

    def progress(rows: int, num_bytes: int, errors: Sequence[ErrorCount]) -> None:
        nonlocal last
        if time.monotonic() - last >= PROGRESS_EVERY_S:
            last = time.monotonic()
            tell_gpus()
            connection.send_bytes(pickle.dumps(("progress", rows, num_bytes, tuple(errors))))

    return progress


def _portable(error: Exception) -> Exception:
    """The error as the driver raises it; our own as they are, others with the worker's traceback."""
    if isinstance(error, TamisError):
        return error
    text = "".join(traceback.format_exception(error))
    return WorkerError(f"a worker failed: {type(error).__name__}: {error}\n\n{text}")


def dumps(value: object) -> bytes:
    """Pickle, functions of the user's main script by value."""
    import cloudpickle

    return cloudpickle.dumps(value)


def loads(data: bytes) -> Any:
    """What `dumps` made; only ever bytes that our own driver wrote to our own socket."""
    return pickle.loads(data)
