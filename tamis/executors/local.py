"""Runs a pipeline in worker processes on this machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tamis.events import Events
from tamis.executors.crew import LocalCrew
from tamis.executors.executor import Stop, Streaming
from tamis.executors.folders import Folders, has_room, shared_folder
from tamis.executors.forkserver import take_server
from tamis.executors.sessions import CrewSession
from tamis.executors.tasks import Group
from tamis.memory.budget import StreamBudget
from tamis.memory.governor import Governor


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
        leaving = dict.fromkeys(list(self.crew.leaving), "worker")
        workers = leaving | {worker.pid: f"worker {worker.number}" for worker in list(self.crew.workers)}
        return {os.getpid(): "driver", self._server.pid: "server", **workers}

    @property
    def whole_tree(self) -> bool:
        return True

    def limits(self) -> dict[int, int]:
        return self.crew.limits()

    def on_overuse(self, pid: int, held_bytes: int) -> None:
        self.crew.on_overuse(pid, held_bytes)

    @contextmanager
    def packets(self, group: Group, stream: StreamBudget) -> Iterator[StreamBudget]:
        with _packet_folders(group, stream) as (possible, self.crew.folders):
            yield possible


@contextmanager
def _packet_folders(group: Group, stream: StreamBudget) -> Iterator[tuple[StreamBudget, Folders]]:
    """The budget, and folders for packets. Without room in shared memory, both are on disk."""
    disk = group.whole.store.scratch() / "packets"
    shutil.rmtree(disk, ignore_errors=True)
    disk.mkdir(parents=True)
    try:
        with shared_folder(stream.edge_bytes) as shared:
            if shared is None or not has_room(stream.edge_bytes + stream.last_edge_bytes):
                stream = replace(stream, last_edge_bytes=0)
            yield stream, Folders(shared or disk, disk)
    finally:
        shutil.rmtree(disk, ignore_errors=True)
