"""The workers of a cluster, as the driver sees them: a crew whose processes are forked by agents on the nodes.

Nothing here waits for a node. A worker that was just started has no connection yet; messages to it are kept until it has one. A
worker has died when its agent has said so and its connection has ended, so that its last message is not missed. A node that
is silent, or whose connection is lost, is given up: its workers count as dead, and no row is blamed for that.
"""

from __future__ import annotations

import os
import pickle
import time
import uuid
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from tamis.errors import WorkerError
from tamis.events import Events, Note
from tamis.executors.crew import Worker, why_stopped
from tamis.executors.executor import Hooks
from tamis.executors.folders import Folders
from tamis.executors.wire import Door
from tamis.memory.budget import DEFAULT_SHARE, Machine
from tamis.memory.governor import OVERUSE_BYTES, Governor
from tamis.memory.slots import GpuDevice, GpuSlot

SILENT_S = 15.0
"""A node whose agent has reported nothing for this long is given up."""

ENDED_S = 5.0
"""How long the connection of a worker that has ended may stay open: a process that it started may hold it."""

NO_NODE_S = 60.0
"""How long a run waits for a node if it has none, or none with the GPUs that it needs."""


def node_name(node_id: str, host: str) -> str:
    """How messages name a node: Ray's ids are long numbers, and Dask's are addresses."""
    short = node_id.rpartition("/")[2] if "://" in node_id else node_id[:8]
    return f"{host} ({short})" if host else short


class Cluster(Protocol):
    """What the driver asks about the cluster itself."""

    machines: dict[str, Machine]
    """The nodes at the moment."""
    problem: str | None
    """Why none of them can have an agent."""

    failed: dict[str, str]
    """By node, why no agent can be started on it."""

    def joined(self, node: str) -> None:
        """The agent of a node has connected."""
        ...

    def refuse(self, node: str) -> None:
        """Start no more agents on a node."""
        ...


@dataclass(eq=False)
class Node:
    """A node with an agent."""

    id: str
    key: str
    """Names the node and its agent, which may be followed by another one."""
    control: Connection
    machine: Machine
    capacity: int
    """Workers, if the budget suffices for all of them."""
    heard: float = field(default_factory=time.monotonic)
    workers: dict[int, RemoteWorker] = field(default_factory=dict)
    held_bytes: int = 0
    host: str = ""
    gpus: tuple[GpuDevice, ...] = ()
    ready: bool = False
    unanswered: str | None = None
    """The request about files that it has not answered yet; until then it gets no workers."""
    sees: bool = False
    """It has seen the files that it looked for last."""

    @property
    def name(self) -> str:
        return node_name(self.id, self.host)

    def send(self, *message: Any) -> None:
        """Send a request. If the agent has ended, that shows when it reports nothing."""
        with suppress(OSError):
            self.control.send_bytes(pickle.dumps(message))


@dataclass(eq=False)
class RemoteWorker(Worker):
    """A worker on a node."""

    node: Node = field(kw_only=True)
    outbox: list[bytes] = field(default_factory=list)
    """Messages for when it is connected."""
    arrived: bool = False
    mark: tuple[int, int, int] = (0, 0, 0)
    held_bytes: int | None = None
    how: str = ""
    """How it ended, once it has."""
    ended: float = 0.0

    def send(self, *message: Any) -> None:
        if message[0] == "cap":
            self.node.send("share", self.number, message[1] + OVERUSE_BYTES)
        data = pickle.dumps(message)
        if not self.arrived:
            self.outbox.append(data)
        elif self.connection is not None:
            with suppress(OSError):
                self.connection.send_bytes(data)

    def last_mark(self) -> tuple[int, int, int]:
        return self.mark

    def connect(self, connection: Connection) -> None:
        self.connection, self.arrived = connection, True
        with suppress(OSError):
            for data in self.outbox:
                connection.send_bytes(data)
        self.outbox.clear()

    def disconnect(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class ClusterCrew:
    """Workers on the nodes whose agents have come through the door."""

    def __init__(self, door: Door, cluster: Cluster, governor: Governor, emit: Events, hooks: Hooks) -> None:
        self.workers: list[Worker] = []
        self._joined: dict[str, Node] = {}
        self._door, self._governor, self._emit, self._hooks = door, governor, emit, hooks
        self._cluster = cluster
        self._numbers = iter(range(10_000_000))
        self._paths: list[str] = []
        self._folders: dict[str, Folders] = {}
        """By node, for packets; also of nodes that were lost."""
        self._refused: dict[str, str] = {}
        """By node, why it gets no work."""
        self._none_since = self._grew = time.monotonic()
        self._lost = float("-inf")
        """When a node was lost last."""

    def close(self) -> None:
        """Let idle workers close their steps and remove their files; agents kill the others and end."""
        for worker in list(self.workers):
            self.stop(worker) if worker.job is None else self.kill(worker)
        for node in self._joined.values():
            node.send("end")
        for node in self._joined.values():
            _drain(node.control)
            node.control.close()

    # ------------------------------------------------------------------------------------------------------------ places

    def nodes(self) -> list[str]:
        return [node.key for node in self._usable()]

    def places(self, workers: int, node: str | None = None) -> int:
        return sum(self._places_on(each, workers) for each in self._usable() if node in (None, each.key))

    def gpus_on(self, node: str) -> tuple[GpuDevice, ...]:
        return next((each.gpus for each in self._joined.values() if each.key == node), ())

    def may_grow(self) -> bool:
        now = time.monotonic()
        more = len(self._usable()) < len(self._cluster.machines)
        # A node that was lost may come back, as a new one; until then the cluster does not list it.
        return (more and now - self._grew < NO_NODE_S) or now - self._lost < NO_NODE_S

    def folders_on(self, node: str) -> Folders:
        return self._folders[node]

    def remove_packets(self, node: str, paths: Collection[str]) -> None:
        self._tell(node, "remove", list(paths))

    def remove_other_packets(self, node: str, stem: str, known: Collection[str]) -> None:
        self._tell(node, "remove_others", stem, list(known))

    def _tell(self, node: str, *message: Any) -> None:
        """Send a request to a node, if it is still there; the folders of an agent that has ended are removed."""
        for each in self._joined.values():
            if each.key == node:
                each.send(*message)

    def _places_on(self, node: Node, workers: int) -> int:
        return max(1, node.capacity * workers // self._governor.budget.workers)

    def _usable(self) -> list[Node]:
        return [node for node in self._joined.values() if node.ready and node.unanswered is None]

    def cpus(self) -> int:
        return sum(node.machine.cpus for node in self._usable())

    def require(self, paths: Iterable[str], *, by_all: bool = False) -> None:
        """Give no work to nodes that do not see these files. Without `by_all`, nodes that saw the last ones do not look."""
        self._paths = list(paths)
        for node in self._joined.values():
            if by_all or not node.sees:
                self._look(node)

    def _look(self, node: Node) -> None:
        node.sees, node.unanswered = False, None
        if self._paths and node.ready:
            node.unanswered = uuid.uuid4().hex
            node.send("look", node.unanswered, self._paths)

    # ----------------------------------------------------------------------------------------------------------- workers

    def start(
        self,
        share_bytes: int,
        gpu: GpuSlot | None = None,
        slot: int | None = None,
        cpus: int = 1,
        node: str | None = None,
    ) -> Worker:
        possible = [each for each in self._usable() if node in (None, each.key)]
        chosen = min(possible, key=lambda each: (len(each.workers) / each.capacity, each.id))
        number = next(self._numbers)
        worker = RemoteWorker(number, 0, None, share_bytes, slot=slot, node=chosen, place=chosen.key)
        chosen.workers[number] = worker
        self.workers.append(worker)
        chosen.send("start", number, share_bytes + OVERUSE_BYTES)
        if gpu is not None or self._governor.budget.hides_gpus:
            worker.send("gpu", gpu)
        worker.send("apart", None)
        worker.send("cpus", cpus)
        worker.send("cap", share_bytes)
        return worker

    def stop(self, worker: Worker) -> None:
        self._remove(worker, "leaving")

    def kill(self, worker: Worker) -> None:
        self._remove(worker, "kill")

    def _remove(self, worker: Worker, request: str) -> None:
        assert isinstance(worker, RemoteWorker)
        self.workers.remove(worker)
        worker.node.workers.pop(worker.number, None)
        worker.node.send(request, worker.number)
        worker.disconnect()

    def replace(self, worker: Worker, why: str) -> None:
        self.stop(worker)
        self._governor.recycled(worker.number, why)

    def bury(self, worker: Worker) -> str:
        assert isinstance(worker, RemoteWorker)
        self.stop(worker)
        return f"{worker.how} after {worker.last_words}" if worker.last_words else worker.how

    def stop_overuse(self, worker: Worker, held_bytes: int, step: str) -> str:
        self.kill(worker)
        why = why_stopped(worker, held_bytes, step)
        self._governor.stopped(worker.number, why)
        return f"stopped because {why}"

    def private_bytes(self, worker: Worker) -> int | None:
        assert isinstance(worker, RemoteWorker)
        return worker.held_bytes

    def is_busy(self) -> bool:
        return any(worker.job is not None for worker in self.workers)

    def idle(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.job is None]

    # ---------------------------------------------------------------------------------------------------------- messages

    def messages(self) -> Iterator[tuple[Worker, tuple[Any, ...] | None]]:
        workers = {w.connection: w for w in self.workers if isinstance(w, RemoteWorker) and w.connection is not None}
        nodes = {node.control: node for node in self._joined.values()}
        for ready in wait([*workers, *nodes, self._door.wake], timeout=0.2):
            if ready == self._door.wake:
                os.read(self._door.wake, 4096)
            elif ready in nodes:
                yield from self._hear(nodes[ready])
            else:
                yield from self._receive(workers[ready])  # type: ignore[index]
        self._admit()
        now = time.monotonic()
        for node in [node for node in self._joined.values() if now - node.heard > SILENT_S]:
            if _has_message(node.control):
                continue  # it is the driver that was busy
            yield from self._lose(node, f"its agent was silent for {SILENT_S:.0f} seconds")
        for worker in list(self.workers):
            assert isinstance(worker, RemoteWorker)
            if worker.ended and (now - worker.ended > ENDED_S or (worker.arrived and worker.connection is None)):
                worker.disconnect()
                yield worker, None
        self._check_nodes(now)
        self._hooks.on_tick()

    def _receive(self, worker: RemoteWorker) -> Iterator[tuple[Worker, tuple[Any, ...] | None]]:
        """A message of a worker."""
        if worker not in self.workers or worker.connection is None:
            return  # stopped because of another worker's message
        try:
            message = pickle.loads(worker.connection.recv_bytes())
        except (EOFError, OSError):
            worker.disconnect()  # its agent reports how it ended
            return
        if message[0] == "held":
            worker.held_bytes = message[1]
        elif message[0] == "mark":
            worker.mark = message[1:]
        elif message[0] == "dying":
            worker.last_words = message[1]
        elif message[0] == "error" and message[2] is not None:
            yield from self._on_missing_module(worker.node, *message[1:])
        elif message[0] != "gpus":
            if message[0] == "compiling":
                worker.node.send("share", worker.number, None)
            yield worker, message

    def _hear(self, node: Node) -> Iterator[tuple[Worker, tuple[Any, ...] | None]]:
        """A report of an agent."""
        if self._joined.get(node.id) is not node:
            return  # given up because of another message
        try:
            kind, *content = pickle.loads(node.control.recv_bytes())
        except (EOFError, OSError):
            yield from self._lose(node, "its agent ended")
            return
        node.heard = time.monotonic()
        if kind == "beat":
            node.held_bytes = content[0]
            known = self._hooks.nodes[node.id]
            known["peak_bytes"] = max(known["peak_bytes"], node.held_bytes)
        elif kind == "ready":
            self._on_ready(node, *content)
        elif kind == "missing":
            yield from self._on_missing(node, *content)
        elif content[0] in node.workers:
            worker = node.workers[content[0]]
            if kind == "started":
                worker.pid = content[1]
            elif kind == "ended":
                worker.how, worker.mark, worker.ended = content[1], content[2], time.monotonic()
            elif worker.job is not None and not worker.compiling:
                worker.mark = content[2]
                yield worker, ("overuse", content[1])

    def _lose(self, node: Node, why: str) -> Iterator[tuple[Worker, None]]:
        """Give up a node. If it is only out of reach, its agent ends when it finds its connection closed."""
        self._lost = time.monotonic()
        self._emit(Note(f"node {node.name} was lost: {why}; its work is repeated by others"))
        yield from self._dismiss(node)

    def _refuse(self, node: Node, why: str, hint: str, cause: Exception | None = None) -> Iterator[tuple[Worker, None]]:
        """Give no work to a node; raise if no other is left."""
        self._refused[node.id] = text = f"node {node.name} {why}"
        if self._refused.keys() >= self._cluster.machines.keys():
            raise WorkerError(text, hint=hint) from cause
        self._cluster.refuse(node.id)
        self._emit(Note(f"{text}, and gets no work"))
        yield from self._dismiss(node)

    def _dismiss(self, node: Node) -> Iterator[tuple[Worker, None]]:
        """Close the connection to a node, whose agent then ends; its workers are dead, and no row is blamed."""
        del self._joined[node.id]
        self._none_since = time.monotonic()  # if it was the last one, even if the driver did not look for long
        node.control.close()
        for worker in list(node.workers.values()):
            worker.lost, worker.how, worker.ended = True, f"lost with node {node.name}", time.monotonic()
            worker.disconnect()
            if worker in self.workers:
                yield worker, None

    def _admit(self) -> None:
        """Take in the agents and workers that have arrived."""
        while not self._door.arrived.empty():
            connection, (kind, node_id, *content) = self._door.arrived.get()
            node = self._joined.get(node_id)
            if kind == "agent" and node is None:
                self._welcome(node_id, connection)
            elif kind == "worker" and node is not None and content[0] in node.workers:
                node.workers[content[0]].connect(connection)
            else:
                connection.close()  # stopped in the meantime, or of a node that was given up

    def _welcome(self, node_id: str, connection: Connection) -> None:
        machine = self._cluster.machines.get(node_id) or Machine(1, 0)
        key = f"{node_id}/{next(self._numbers)}"
        self._joined[node_id] = Node(node_id, key, connection, machine, self._capacity(machine))

    def _on_ready(self, node: Node, host: str, folders: Folders, gpus: tuple[GpuDevice, ...]) -> None:
        node.host, node.ready, node.gpus, self._folders[node.key] = host, True, gpus, folders
        self._grew = time.monotonic()
        self._cluster.joined(node.id)
        known = self._hooks.nodes.setdefault(node.id, {"host": host, "peak_bytes": 0})
        known |= {"cpus": node.machine.cpus, "memory_bytes": node.machine.memory_bytes, "workers": node.capacity}
        known["gpus"] = [gpu.name for gpu in gpus]
        self._look(node)

    def _capacity(self, machine: Machine) -> int:
        """How many workers a node may have. The smallest node decides what each of them may hold."""
        budget = self._governor.budget
        every = min(self._cluster.machines.values(), key=lambda each: each.memory_bytes, default=machine)
        most = (
            max(budget.wanted_workers, machine.cpus) if budget.wanted_workers == budget.cpus else budget.wanted_workers
        )
        total = budget.total_bytes
        if total == int(every.memory_bytes * DEFAULT_SHARE):  # not requested
            total = max(total, int(machine.memory_bytes * DEFAULT_SHARE))
        return max(1, min(most, (total - budget.driver_bytes) // budget.worker_bytes))

    def _on_missing_module(self, node: Node, error: Exception, module: str) -> Iterator[tuple[Worker, None]]:
        yield from self._refuse(
            node,
            f"cannot import `{module}`, which a step needs ({str(error).splitlines()[0]})",
            hint="install the same packages on all nodes",
            cause=error,
        )

    def _on_missing(self, node: Node, request: str, missing: list[str]) -> Iterator[tuple[Worker, None]]:
        if request != node.unanswered:
            return
        if not missing:
            node.sees, node.unanswered = True, None
            return
        yield from self._refuse(
            node,
            f"cannot see {missing[0]}",
            hint="put input, output and --exchange where all nodes see them: a shared folder or an object store",
        )

    def _check_nodes(self, now: float) -> None:
        for node_id, why in self._cluster.failed.items():
            if node_id not in self._refused:
                machine = self._cluster.machines.get(node_id)
                name = node_name(node_id, machine.name if machine else "")
                self._refused[node_id] = text = f"node {name} cannot start an agent: {why}"
                self._emit(Note(f"{text}; it gets no work"))
        if self._joined:
            self._none_since = now
        elif now - self._none_since > NO_NODE_S or self._cluster.problem is not None:
            why = self._cluster.problem or f"none has started an agent within {NO_NODE_S:.0f} seconds"
            why = next(iter(self._refused.values()), why)
            raise WorkerError(
                f"there is no node to work on: {why}", hint="rerun the same command to resume; committed work is kept"
            )


def _has_message(control: Connection) -> bool:
    """Whether there is something to read, or the end of the connection to find."""
    try:
        return control.poll(0)
    except OSError:
        return True


def _drain(control: Connection) -> None:
    """Wait until an agent has ended, so that its workers no longer run; not for long."""
    with suppress(EOFError, OSError):
        while control.poll(SILENT_S):
            control.recv_bytes()
