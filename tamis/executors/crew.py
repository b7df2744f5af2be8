"""Worker processes: start, stop, and what they report; here those of this machine. Rows never pass through here.

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
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

from tamis.errors import WorkerError
from tamis.executors.executor import Hooks
from tamis.executors.folders import Folders
from tamis.executors.forkserver import ForkServer
from tamis.executors.worker_process import MARK
from tamis.memory.budget import usable_cpus
from tamis.memory.governor import OVERUSE_BYTES, Governor
from tamis.memory.monitor import private_bytes
from tamis.memory.slots import GpuDevice, GpuSlot
from tamis.memory.tree import descendants
from tamis.parameters import format_bytes


@dataclass
class Worker:
    """A worker process, as the driver knows it."""

    number: int
    pid: int
    connection: Connection | None
    """None as long as there is none, and after it is lost."""
    share_bytes: int
    marker: Path | None = None
    """The file in which it notes what it is doing, if the driver can read it."""
    job: Any = None
    """What it is doing; None if it is idle."""
    compiling: bool = False
    """Its memory is not limited, and it exits when the kernel is on disk."""
    stage: tuple[int, int] | None = None
    """The stage that it has opened, by group and number."""
    shards: int = 0
    given: int = 0
    """Tasks and calls so far."""
    last_words: str = ""
    """Why it is about to exit."""
    slot: int | None = None
    """The number of its slot on a GPU, among those of its pool."""
    place: str = ""
    """The node it runs on; "" for this machine."""
    lost: bool = False
    """It ended with its node, so that its death says nothing about the rows."""

    @property
    def used(self) -> bool:
        """Whether it may hold memory from before its current task."""
        return self.given > 1

    def send(self, *message: Any) -> None:
        """Send a message. If the worker has died, that shows when its answer is awaited."""
        assert self.connection is not None
        with suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send_bytes(pickle.dumps(message))

    def last_mark(self) -> tuple[int, int, int]:
        """(first row, rows, step) the worker noted last."""
        assert self.marker is not None
        return MARK.unpack(self.marker.read_bytes()[: MARK.size])


class Crew(Protocol):
    """Workers, wherever they run."""

    workers: list[Worker]

    def nodes(self) -> list[str]:
        """The nodes there are now."""
        ...

    def places(self, workers: int, node: str | None = None) -> int:
        """How many workers there may be now, on all nodes or on one, given how many the budget has for one machine."""
        ...

    def gpus_on(self, node: str) -> tuple[GpuDevice, ...]:
        """The GPUs of a node that the run may use."""
        ...

    def may_grow(self) -> bool:
        """Whether there are nodes that will soon have workers."""
        ...

    def folders_on(self, node: str) -> Folders:
        """Where the workers of a node write packets."""
        ...

    def remove_packets(self, node: str, paths: Collection[str]) -> None:
        """Remove packets on a node."""
        ...

    def remove_other_packets(self, node: str, stem: str, known: Collection[str]) -> None:
        """Remove the packets of an attempt that are not known."""
        ...

    def cpus(self) -> int:
        """The cores of all machines."""
        ...

    def start(
        self,
        share_bytes: int,
        gpu: GpuSlot | None = None,
        slot: int | None = None,
        cpus: int = 1,
        node: str | None = None,
    ) -> Worker:
        """Start a worker, on a node if one is given."""
        ...

    def stop(self, worker: Worker) -> None:
        """Ask a worker to exit."""
        ...

    def kill(self, worker: Worker) -> None:
        """End a worker, and the processes it started, now."""
        ...

    def replace(self, worker: Worker, why: str) -> None:
        """Ask a worker to exit to release its memory; another is started when needed."""
        ...

    def bury(self, worker: Worker) -> str:
        """Remove a worker that died; returns how it did."""
        ...

    def stop_overuse(self, worker: Worker, held_bytes: int, step: str) -> str:
        """Kill a worker that holds more than it may; returns why, for messages."""
        ...

    def private_bytes(self, worker: Worker) -> int | None:
        """Memory that an idle worker shares with no other; None if that is unknown."""
        ...

    def is_busy(self) -> bool: ...

    def idle(self) -> list[Worker]: ...

    def messages(self) -> Iterator[tuple[Worker, tuple[Any, ...] | None]]:
        """What workers report; None for one that died, ("overuse", bytes) for one that holds too much."""
        ...


class LocalCrew:
    """Worker processes of this machine, forked from a server."""

    def __init__(self, server: ForkServer, folder: Path, governor: Governor, hooks: Hooks) -> None:
        self.workers: list[Worker] = []
        self.folders: Folders | None = None
        """For packets, while stages run at the same time."""
        self._server, self._folder, self._governor, self._hooks = server, folder, governor, hooks
        self.leaving: list[int] = []
        """Process ids of workers that were asked to exit and may still be running."""
        self._numbers = iter(range(1_000_000))
        self._overuse: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._wake_read, self._wake_write = os.pipe()

    def close(self) -> None:
        """Let idle workers close their steps and remove their files; others are killed with the server."""
        for worker in self.idle():
            self.stop(worker)
        with suppress(WorkerError):  # the server has ended, and the workers with it
            self._await_leaving()
        for worker in self.workers:
            _close(worker)
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _await_leaving(self) -> None:
        while self.leaving:
            self._server.ending(self.leaving[-1])
            self.leaving.pop()

    def nodes(self) -> list[str]:
        return [""]

    def places(self, workers: int, node: str | None = None) -> int:
        return workers

    def gpus_on(self, node: str) -> tuple[GpuDevice, ...]:
        return self._governor.budget.gpus

    def may_grow(self) -> bool:
        return False

    def folders_on(self, node: str) -> Folders:
        assert self.folders is not None
        return self.folders

    def remove_packets(self, node: str, paths: Collection[str]) -> None:
        self.folders_on(node).remove(paths)

    def remove_other_packets(self, node: str, stem: str, known: Collection[str]) -> None:
        self.folders_on(node).remove_others(stem, known)

    def cpus(self) -> int:
        return usable_cpus()

    def private_bytes(self, worker: Worker) -> int | None:
        return private_bytes(worker.pid)

    def start(
        self,
        share_bytes: int,
        gpu: GpuSlot | None = None,
        slot: int | None = None,
        cpus: int = 1,
        node: str | None = None,
    ) -> Worker:
        self._await_leaving()  # their memory is not free before they have exited
        number = next(self._numbers)
        marker = self._folder / f"worker-{number}"
        marker.write_bytes(b"\0" * MARK.size)
        pid, connection = self._server.start(str(marker))
        worker = Worker(number, pid, connection, share_bytes, marker, slot=slot)
        self.workers.append(worker)
        if gpu is not None or self._governor.budget.hides_gpus:
            worker.send("gpu", gpu)
        worker.send("cpus", cpus)
        worker.send("cap", worker.share_bytes)
        return worker

    def stop(self, worker: Worker) -> None:
        self.workers.remove(worker)
        self.leaving.append(worker.pid)
        _close(worker)
        self._hooks.on_gpus(worker.pid, {})

    def kill(self, worker: Worker) -> None:
        for pid in [worker.pid, *descendants(worker.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.stop(worker)

    def replace(self, worker: Worker, why: str) -> None:
        self.stop(worker)
        self._governor.recycled(worker.number, why)

    def bury(self, worker: Worker) -> str:
        how = self._server.ending(worker.pid)
        self.stop(worker)
        return f"{how} after {worker.last_words}" if worker.last_words else how

    def stop_overuse(self, worker: Worker, held_bytes: int, step: str) -> str:
        self.kill(worker)
        self._server.ending(worker.pid)
        why = why_stopped(worker, held_bytes, step)
        self._governor.stopped(worker.number, why)
        return f"stopped because {why}"

    def is_busy(self) -> bool:
        return any(worker.job is not None for worker in self.workers)

    def idle(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.job is None]

    def limits(self) -> dict[int, int]:
        """How much memory each busy worker may hold, by process id; called from the monitor's thread."""
        return {
            worker.pid: worker.share_bytes + OVERUSE_BYTES
            for worker in list(self.workers)
            if worker.job is not None and not worker.compiling
        }

    def on_overuse(self, pid: int, held_bytes: int) -> None:
        """Called from the monitor's thread."""
        self._overuse.put((pid, held_bytes))
        os.write(self._wake_write, b".")

    def messages(self) -> Iterator[tuple[Worker, tuple[Any, ...] | None]]:
        by_connection = {w.connection: w for w in self.workers if w.connection is not None}
        for ready in wait([*by_connection, self._wake_read], timeout=0.2):
            if ready == self._wake_read:
                os.read(self._wake_read, 4096)
                continue
            worker = by_connection[ready]  # type: ignore[index]
            if worker not in self.workers:
                continue  # stopped because of another worker's message
            try:
                message = pickle.loads(ready.recv_bytes())  # type: ignore[union-attr]
            except (EOFError, ConnectionResetError):
                message = None
            if message is not None and message[0] == "gpus":
                self._hooks.on_gpus(worker.pid, message[1])
            elif message is not None and message[0] == "dying":
                worker.last_words = message[1]
            else:
                yield worker, message
        while not self._overuse.empty():
            pid, held = self._overuse.get()
            found = next((worker for worker in self.workers if worker.pid == pid), None)
            if found is not None and not found.compiling:
                yield found, ("overuse", held)
        self._hooks.on_tick()


def why_stopped(worker: Worker, held_bytes: int, step: str) -> str:
    """Why a worker was stopped that held too much, for messages."""
    return (
        f"it held {format_bytes(held_bytes)} in `{step}`, more than the "
        f"{format_bytes(worker.share_bytes + OVERUSE_BYTES)} a worker may hold"
    )


def _close(worker: Worker) -> None:
    if worker.connection is not None:
        worker.connection.close()
