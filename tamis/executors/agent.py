"""The agent of a run on a node of a cluster: forks workers there, and reports how they end. Rows never pass through here.

    driver                                          node
      Door  <---- control connection --------------- Agent ---- fork server ---> worker 0, 1, ...
            <---- one connection per worker --------------------------------------'

The agent opens the connection of a worker and hands it to the fork server, so that driver and worker talk directly. If the
control connection is lost, the agent ends, and its workers with it.

driver -> agent    start, leaving, kill (a worker), share (what it may hold, also beyond what its cap sees; None while it
                   compiles), remove and remove_others (packets), look (for files), end
agent -> driver    ready, started, ended (how, and the last mark), overuse, missing (files), beat (memory held)
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tamis import __version__
from tamis.errors import WorkerError
from tamis.exchange import scratch_root
from tamis.executors.folders import Folders, disk_folder, shared_folder
from tamis.executors.forkserver import ForkServer
from tamis.executors.wire import Address, connect
from tamis.executors.worker_process import MARK
from tamis.memory.monitor import held_bytes
from tamis.memory.overuse import OveruseWatch
from tamis.memory.slots import GpuDevice, gpu_devices
from tamis.memory.tree import descendants

BEAT_S = 1.0
"""How often an agent shows that it is alive."""

LAST_S = 10.0
"""How long workers may take to close their steps at the end of a run."""


@dataclass(frozen=True)
class AgentSettings:
    """What an agent needs to know; sent to its node by Ray or Dask."""

    address: Address
    token: bytes
    node: str
    modules: tuple[str, ...] = ()
    """Imported before workers are forked."""
    path: tuple[str, ...] = ()
    """`sys.path` of the driver; what exists on the node is added to that of the workers."""
    shared_bytes: int = 0
    """Shared memory for packets."""
    folder: str = "."
    """The working directory of the driver, to which relative paths refer."""
    gpus: tuple[str, ...] = ()
    """The GPUs of the node that the run may use, as CUDA_VISIBLE_DEVICES names them."""
    gpu_bytes: int | None = None
    """What it may hold on each of them; by default most of what is free."""
    version: str = __version__
    """Of the driver. Messages are pickled, so both sides must agree about what is in them."""

    def devices(self) -> tuple[GpuDevice, ...]:
        """On the node: its GPUs, with the budget on each."""
        return tuple(gpu for gpu in gpu_devices(self.gpu_bytes) if gpu.name in self.gpus) if self.gpus else ()


def run_agent(settings: AgentSettings) -> None:
    """Serve a run until it ends."""
    if settings.version != __version__:
        raise WorkerError(f"tamis {__version__} is installed there, and tamis {settings.version} on the driver")
    here = settings.folder if Path(settings.folder).is_dir() else None
    path = [entry for entry in settings.path if entry not in sys.path and Path(entry).exists()]
    with ExitStack() as stack:
        # Closed last, so that nothing is left to do when the driver sees the end of it.
        control = stack.enter_context(connect(settings.address, settings.token, "agent", settings.node))
        disk = stack.enter_context(disk_folder(scratch_root()))
        folders = Folders(stack.enter_context(shared_folder(settings.shared_bytes)) or disk, disk)
        server = stack.enter_context(ForkServer(folder=here, path=path))
        server.preload(settings.modules)
        Agent(settings, control, server, folders).serve()


@dataclass
class _Forked:
    """A worker, as the agent knows it."""

    number: int
    pid: int
    marker: Path
    limit_bytes: int | None
    told: float = field(default=0.0)
    """When it was last reported for holding too much."""

    def mark(self) -> tuple[int, int, int]:
        return MARK.unpack(self.marker.read_bytes()[: MARK.size])


class Agent:
    """Serves the driver until it closes the control connection."""

    def __init__(self, settings: AgentSettings, control: Connection, server: ForkServer, folders: Folders) -> None:
        self._settings, self._control, self._server, self._folders = settings, control, server, folders
        self._workers: dict[int, _Forked] = {}
        self._leaving: set[int] = set()
        self._overuse = OveruseWatch()
        self._sending = threading.Lock()
        self._ended = threading.Event()

    def serve(self) -> None:
        beats = threading.Thread(target=self._beat, name="tamis-beat", daemon=True)
        self._send("ready", socket.gethostname(), self._folders, self._settings.devices())
        beats.start()
        try:
            while True:
                ready = wait([self._control, self._server], timeout=self._overuse.wait_s)  # type: ignore[list-item]
                self._report_ended()
                if self._control in ready:
                    try:
                        message = pickle.loads(self._control.recv_bytes())
                    except (EOFError, OSError):
                        return  # the driver has ended, or given up this node
                    if message[0] == "end":
                        self._await(self._leaving, LAST_S)
                        return
                    getattr(self, f"_on_{message[0]}")(*message[1:])
                self._look_for_overuse()
        finally:
            self._ended.set()
            beats.join()

    # --------------------------------------------------------------------------------------------------------- requests

    def _on_start(self, number: int, limit_bytes: int) -> None:
        self._await(self._leaving)  # their memory is not free before they have exited
        marker = self._folders.disk / f"worker-{number}"
        marker.write_bytes(b"\0" * MARK.size)
        settings = self._settings
        with connect(settings.address, settings.token, "worker", settings.node, number) as connection:
            pid = self._server.fork(str(marker), connection.fileno())
        self._workers[number] = _Forked(number, pid, marker, limit_bytes)
        self._send("started", number, pid)

    def _on_share(self, number: int, limit_bytes: int | None) -> None:
        if number in self._workers:
            self._workers[number].limit_bytes = limit_bytes

    def _on_leaving(self, number: int) -> None:
        if number in self._workers:
            self._leaving.add(number)

    def _on_kill(self, number: int) -> None:
        if number in self._workers:
            _kill(self._workers[number].pid)
            self._leaving.add(number)

    def _on_remove(self, paths: Sequence[str]) -> None:
        self._folders.remove(paths)

    def _on_remove_others(self, stem: str, known: Sequence[str]) -> None:
        self._folders.remove_others(stem, known)

    def _on_look(self, request: int, paths: Sequence[str]) -> None:
        folder = Path(self._settings.folder)
        self._send("missing", request, [path for path in paths if not (folder / path).exists()])

    # ---------------------------------------------------------------------------------------------------------- reports

    def _send(self, *message: Any) -> None:
        with self._sending, suppress(OSError):  # a lost connection shows when the next request is awaited
            self._control.send_bytes(pickle.dumps(message))

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            self._send("beat", self._held_bytes())

    def _held_bytes(self) -> int:
        return sum(held_bytes(pid) for pid in [self._server.pid, *descendants(self._server.pid)])

    def _report_ended(self) -> None:
        by_pid = {worker.pid: worker for worker in self._workers.values()}
        for pid, how in self._server.ended().items():
            worker = by_pid[pid]
            del self._workers[worker.number]
            self._leaving.discard(worker.number)
            self._send("ended", worker.number, how, worker.mark())
            worker.marker.unlink(missing_ok=True)

    def _await(self, numbers: set[int], most_s: float | None = None) -> None:
        """Wait until these workers have exited."""
        until = None if most_s is None else time.monotonic() + most_s
        while numbers & self._workers.keys():
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return
            wait([self._server], timeout=left)  # type: ignore[list-item]
            self._report_ended()

    def _look_for_overuse(self) -> None:
        limits = {worker.pid: worker.limit_bytes for worker in self._workers.values() if worker.limit_bytes}
        by_pid = {worker.pid: worker for worker in self._workers.values()}
        for pid, held in self._overuse.look({pid: limit for pid, limit in limits.items() if limit}).items():
            worker = by_pid[pid]
            if time.monotonic() - worker.told > BEAT_S:  # the driver ignores it while the worker has nothing to do
                worker.told = time.monotonic()
                self._send("overuse", worker.number, held, worker.mark())


def _kill(pid: int) -> None:
    """End a process, and those it started, now."""
    for each in [pid, *descendants(pid)]:
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
