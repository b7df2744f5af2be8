"""Runs a pipeline in worker processes on this machine."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from tamis.events import Events, KernelsCompiling
from tamis.executors.calls import Calls
from tamis.executors.crew import Crew, Worker
from tamis.executors.executor import Done, Hooks, Stop, Streaming
from tamis.executors.forkserver import take_server
from tamis.executors.groups import GroupRun
from tamis.executors.tasks import Group, Task
from tamis.memory.budget import StreamBudget, stream_budget
from tamis.memory.governor import Governor
from tamis.memory.slots import GpuNeed, gpu_slots

SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class LocalExecutor:
    """Worker processes on this machine, one per core unless `workers` says otherwise.

    `streaming` decides whether operators that need other resources than their neighbours, such as a GPU or gigabytes of memory,
    get workers of their own: "auto" if that lets more workers run within the memory budget, "always" for each operator that
    declares memory or GPUs, or "never".
    """

    workers: int | Literal["auto"] = "auto"
    streaming: Streaming = "auto"

    @property
    def name(self) -> str:
        return "local"

    @contextmanager
    def session(self, governor: Governor, modules: set[str], emit: Events, stop: Stop) -> Iterator[LocalSession]:
        with LocalSession(governor, modules, emit, stop) as session:
            yield session


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


class LocalSession:
    """The workers of one run; use as a context manager."""

    def __init__(self, governor: Governor, modules: set[str], emit: Events, stop: Stop) -> None:
        self.governor, self.emit, self.stop = governor, emit, stop
        self.hooks = Hooks()
        self._modules = modules
        self._paused = False
        self._group: GroupRun | None = None
        self._compiling_announced = False

    def __enter__(self) -> LocalSession:
        self._stack = ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="tamis-")))
        self._server = self._stack.enter_context(take_server())
        self._server.preload(self._modules)
        self.crew = Crew(self._server, folder, self.governor, self.hooks)
        self._stack.callback(self.crew.close)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def roles(self) -> dict[int, str]:
        workers = {worker.pid: f"worker {worker.number}" for worker in list(self.crew.workers)}
        return {os.getpid(): "driver", self._server.pid: "server", **workers}

    def limits(self) -> dict[int, int]:
        return self.crew.limits()

    def on_overuse(self, pid: int, held_bytes: int) -> None:
        self.crew.on_overuse(pid, held_bytes)

    def packet_bytes(self) -> int:
        group = self._group
        return group.packet_bytes + group.last_packet_bytes if group is not None else 0

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
            shared = disk = None
            if group.streams:
                stream = stream_budget(self.governor.budget, group.needs(self.governor.learned))
                shared, disk = stack.enter_context(_packet_folders(group, stream))
                if shared == disk or not _has_room(stream.edge_bytes + stream.last_edge_bytes):
                    stream = replace(stream, last_edge_bytes=0)
                for worker in list(self.crew.workers):  # their shares are others
                    self.crew.stop(worker)
            run = GroupRun(
                self.crew, group, deque(tasks), done, self.governor, self.emit, self.hooks, stream, shared, disk
            )
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
        slots = gpu_slots(self.governor.budget.gpus, [GpuNeed(1)], [self.governor.workers])[0] if on_gpu else ()
        for worker in list(self.crew.workers) if new_workers or slots else []:
            self.crew.stop(worker)
        self._work(Calls(self.crew, self.governor, self.emit, function, items, done, slots))
        for worker in list(self.crew.workers) if slots else []:
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
                    if message is None:
                        work.on_death(worker)
                    elif message[0] == "compiling":
                        self._announce_compiling(worker)
                    else:
                        work.on_message(worker, *message)
        finally:
            work.close()

    def _announce_compiling(self, worker: Worker) -> None:
        worker.compiling = True
        if not self._compiling_announced:
            self._compiling_announced = True
            self.emit(KernelsCompiling())


@contextmanager
def _packet_folders(group: Group, stream: StreamBudget) -> Iterator[tuple[Path, Path]]:
    """(shared memory, disk) for packets. Without room in shared memory, both are on disk."""
    disk = group.whole.store.scratch() / "packets"
    shutil.rmtree(disk, ignore_errors=True)
    disk.mkdir(parents=True)
    try:
        with _shared_folder(stream.edge_bytes) as shared:
            yield shared or disk, disk
    finally:
        shutil.rmtree(disk, ignore_errors=True)


@contextmanager
def _shared_folder(num_bytes: int) -> Iterator[Path | None]:
    if not SHARED_MEMORY.is_dir() or not os.access(SHARED_MEMORY, os.W_OK):
        yield None
        return
    _remove_abandoned()
    if not _has_room(num_bytes):
        yield None
        return
    folder = SHARED_MEMORY / f"tamis-{uuid.uuid4().hex}"
    folder.mkdir(mode=0o700)
    try:
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released by the kernel, however this process ends
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _has_room(num_bytes: int) -> bool:
    return shutil.disk_usage(SHARED_MEMORY).free >= 2 * num_bytes


def _remove_abandoned() -> None:
    """Remove what runs left behind that were killed."""
    for folder in SHARED_MEMORY.glob("tamis-*"):
        try:
            with (folder / "lock").open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # in use, of another user, or just being made
