"""A run on the nodes of a cluster: an agent on each, placed by Ray or Dask, and the loop of every other run.

Ray or Dask     starts an agent on every node, reserves its cores, notices nodes that come and go
agents          fork the workers of a node
this session    hands out tasks and calls, as on one machine
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from tamis.errors import ParameterError
from tamis.events import Events
from tamis.exchange import FolderExchange
from tamis.executors.agent import AgentSettings
from tamis.executors.executor import Done, Stop
from tamis.executors.nodes import ClusterCrew
from tamis.executors.sessions import CrewSession
from tamis.executors.tasks import Group, Task
from tamis.executors.wire import Door
from tamis.memory.budget import Machine, StreamBudget, edge_bytes
from tamis.memory.governor import Governor
from tamis.parameters import plural

POLL_S = 1.0
"""How often to look for new nodes, and for agents that have ended."""

MAX_STARTS = 3
"""An agent that has failed this often on a node before it connected is not tried again there."""


class Placement(Protocol):
    """Where agents can run, and how they are started. Called from one thread."""

    def machines(self) -> dict[str, Machine]:
        """The nodes of the cluster at the moment."""
        ...

    def start(self, settings: AgentSettings) -> None:
        """Start an agent on its node; returns at once."""
        ...

    def ended(self) -> dict[str, str | None]:
        """By node, the agents that have ended since the last call, and the error that did it."""
        ...

    def close(self) -> None:
        """End all agents. Those that had connected have ended."""
        ...


def smallest(machines: Sequence[Machine], engine: str) -> Machine:
    """What every node has at least; and the GPUs of the node with the most, since a node may have fewer workers on GPUs."""
    if not machines:
        raise ParameterError(f"the {engine} cluster has no node with a core", hint="start a node, and run again")
    count = plural(len(machines), "node")
    cpus, memory = min(m.cpus for m in machines), min(m.memory_bytes for m in machines)
    gpus = max((machine.gpus for machine in machines), key=len)
    return Machine(cpus, memory, f"the smallest of {count}" if len(machines) > 1 else f"the {engine} node", gpus)


class Placing:
    """Keeps an agent on every node, from a thread of its own, since asking a cluster may take a while."""

    def __init__(self, placement: Placement, settings: Callable[[str, Machine], AgentSettings]) -> None:
        self._placement, self._settings = placement, settings
        self.machines: dict[str, Machine] = {}
        self.problem: str | None = None
        """Why no node can have an agent."""
        self.failed: dict[str, str] = {}
        self._refused: set[str] = set()
        self._running: set[str] = set()
        self._starts: Counter[str] = Counter()
        self._errors: dict[str, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tamis-placing", daemon=True)

    def __enter__(self) -> Placing:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        self._placement.close()

    def joined(self, node: str) -> None:
        self._starts[node] = 0

    def refuse(self, node: str) -> None:
        self._refused.add(node)

    def _run(self) -> None:
        try:
            while not self._stop.wait(POLL_S):
                self._look()
        except Exception as error:  # noqa: BLE001 - the driver raises it when it has no node left
            self.problem = f"{type(error).__name__}: {error}"

    def _look(self) -> None:
        for node, error in self._placement.ended().items():
            self._running.discard(node)
            if error is not None:
                self._errors[node] = error
            else:
                self._starts[node] = 0
        self.machines = self._placement.machines()
        for node, machine in self.machines.items():
            if node not in self._running | self._refused and self._starts[node] < MAX_STARTS:
                self._running.add(node)
                self._starts[node] += 1
                self._placement.start(self._settings(node, machine))
        idle = [node for node in self.machines if node not in self._running]
        self.failed = {node: self._errors.get(node, "it ends at once") for node in idle if node not in self._refused}
        all_failed = idle and len(idle) == len(self.machines)
        self.problem = "no agent can be started" if all_failed else None


class ClusterSession(CrewSession):
    """The workers of one run on a cluster; use as a context manager."""

    crew: ClusterCrew

    def __init__(
        self, placement: Placement, host: str, governor: Governor, modules: set[str], emit: Events, stop: Stop
    ) -> None:
        super().__init__(governor, emit, stop)
        self._placement, self._host, self._modules = placement, host, modules
        self._last: Group | None = None

    def __enter__(self) -> ClusterSession:
        with ExitStack() as stack:
            door = Door(self._host)
            stack.callback(door.close)

            def settings(node: str, machine: Machine) -> AgentSettings:
                path, budget = tuple(entry for entry in sys.path if entry), self.governor.budget
                return AgentSettings(
                    door.address,
                    door.token,
                    node,
                    tuple(self._modules),
                    path,
                    edge_bytes(budget),
                    str(Path.cwd()),
                    tuple(gpu.name for gpu in machine.gpus) if budget.gpus else (),
                    budget.gpu_bytes,
                )

            placing = stack.enter_context(Placing(self._placement, settings))
            self.crew = ClusterCrew(door, placing, self.governor, self.emit, self.hooks)
            stack.callback(self.crew.close)
            stack.callback(door.close)  # before the agents end: those that are still starting find it closed
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def roles(self) -> dict[int, str]:
        return {os.getpid(): "driver"}

    @property
    def whole_tree(self) -> bool:
        return False  # Ray may have been started by this process

    def limits(self) -> dict[int, int]:
        return {}  # agents watch the workers

    def on_overuse(self, pid: int, held_bytes: int) -> None:
        """Never called: the driver has no limit."""

    def run_group(self, group: Group, tasks: Sequence[Task], done: Done) -> None:
        self._last = group
        with self._seen_by_nodes(_inputs(tasks), by_all=True):
            super().run_group(group, tasks, done)

    def map(
        self,
        function: Callable[..., Any],
        items: Sequence[tuple[Any, ...]],
        done: Callable[[int, Any], None],
        *,
        new_workers: bool = False,
        on_gpu: bool = False,
    ) -> None:
        with self._seen_by_nodes(()):  # by nodes that have joined since
            super().map(function, items, done, new_workers=new_workers, on_gpu=on_gpu)

    @contextmanager
    def _seen_by_nodes(self, inputs: Sequence[str], *, by_all: bool = False) -> Iterator[None]:
        """While the block runs, nodes get no work that do not see the folders of the run, and these files."""
        with _probes(_folders(self._last) if self._last is not None else ()) as probes:
            self.crew.require([*probes, *inputs], by_all=by_all)
            yield
            self.crew.require(())  # before the probes are removed, so that no node misses them

    def packets(self, group: Group, stream: StreamBudget) -> AbstractContextManager[StreamBudget]:
        # The agents have made the folders, and looked whether there is room. Packets for the last stage are on disk.
        return nullcontext(replace(stream.within(edge_bytes(self.governor.budget)), last_edge_bytes=0))


def _folders(group: Group) -> list[Path]:
    """The folders of a run that all nodes must share."""
    store, exchange = group.whole.store, group.whole.exchange
    folders = [store.scratch()] if store.local else []
    if isinstance(exchange, FolderExchange):
        folders.append(exchange.scratch())
    return folders


@contextmanager
def _probes(folders: Sequence[Path]) -> Iterator[list[str]]:
    """Files in these folders, which only nodes see that share them."""
    files = [folder / f"seen-by-nodes-{uuid4().hex}" for folder in folders]
    try:
        for file in files:
            file.touch()
        yield [str(file) for file in files]
    finally:
        for file in files:
            with suppress(OSError):
                file.unlink()


def _inputs(tasks: Sequence[Task]) -> list[str]:
    """Some input files, if they are on a disk."""
    paths = {task.partition.pieces[0].path for task in (tasks[0], tasks[-1]) if task.partition.pieces}
    return [path for path in sorted(paths) if Path(path).exists()]
