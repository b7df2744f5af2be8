"""Runs a pipeline in worker processes on this machine."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tamis.events import Events
from tamis.executors.crew import LocalCrew
from tamis.executors.executor import Stop, Streaming
from tamis.executors.forkserver import take_server
from tamis.executors.sessions import CrewSession
from tamis.executors.tasks import Group
from tamis.memory.budget import StreamBudget
from tamis.memory.governor import Governor

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
    def connected(self) -> Iterator[None]:
        yield None

    @contextmanager
    def session(self, governor: Governor, modules: set[str], emit: Events, stop: Stop) -> Iterator[LocalSession]:
        with LocalSession(governor, modules, emit, stop) as session:
            yield session


class LocalSession(CrewSession):
    """The workers of one run on this machine; use as a context manager."""

    crew: LocalCrew

    def __init__(self, governor: Governor, modules: set[str], emit: Events, stop: Stop) -> None:
        super().__init__(governor, emit, stop)
        self._modules = modules

    def __enter__(self) -> LocalSession:
        self._stack = ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="tamis-")))
        self._server = self._stack.enter_context(take_server())
        self._server.preload(self._modules)
        self.crew = LocalCrew(self._server, folder, self.governor, self.hooks)
        self._stack.callback(self.crew.close)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def roles(self) -> dict[int, str]:
        workers = {worker.pid: f"worker {worker.number}" for worker in list(self.crew.workers)}
        return {os.getpid(): "driver", self._server.pid: "server", **workers}

    @property
    def whole_tree(self) -> bool:
        return True

    def limits(self) -> dict[int, int]:
        return self.crew.limits()

    def on_overuse(self, pid: int, held_bytes: int) -> None:
        self.crew.on_overuse(pid, held_bytes)

    def packet_folders(
        self, group: Group, stream: StreamBudget
    ) -> AbstractContextManager[tuple[StreamBudget, Path, Path]]:
        return _packet_folders(group, stream)


@contextmanager
def _packet_folders(group: Group, stream: StreamBudget) -> Iterator[tuple[StreamBudget, Path, Path]]:
    """The budget, and folders in shared memory and on disk for packets. Without room in shared memory, both are on disk."""
    disk = group.whole.store.scratch() / "packets"
    shutil.rmtree(disk, ignore_errors=True)
    disk.mkdir(parents=True)
    try:
        with _shared_folder(stream.edge_bytes) as shared:
            if shared is None or not _has_room(stream.edge_bytes + stream.last_edge_bytes):
                stream = replace(stream, last_edge_bytes=0)
            yield stream, shared or disk, disk
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
