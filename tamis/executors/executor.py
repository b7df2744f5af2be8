"""What an executor is: it starts workers, moves messages, and reports deaths. How work is divided, tried again and balanced is
decided elsewhere, by functions that all executors share (`schedule.py`, `balance.py`).

    Executor   settings, chosen by the user        run(executor=LocalExecutor(workers=4))
    Session    an executor at work on one run      groups of stages, and calls of a Gather
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from tamis.events import Events
from tamis.executors.segments import Outcome
from tamis.executors.tasks import Group, Task
from tamis.memory.budget import Machine
from tamis.memory.governor import Governor
from tamis.memory.gpu import GpuShare
from tamis.memory.leaks import Leak

Streaming: TypeAlias = Literal["auto", "always", "never"]
"""Whether operators that need other resources than their neighbours get workers of their own: if that lets more workers run
within the memory budget, wherever an operator declares memory or GPUs, or never."""

Done: TypeAlias = Callable[[Task, Outcome], None]
"""Called in the driver with each partition that is complete."""


class Stop:
    """Whether the user asked to stop: 0 no, 1 finish what is in progress, 2 abandon it."""

    def __init__(self) -> None:
        self.level = 0


@dataclass
class Hooks:
    """What the driver wants to hear from a session while it works."""

    on_tick: Callable[[], None] = lambda: None
    """Called several times a second."""
    on_gpus: Callable[[int, Mapping[int, GpuShare]], None] = lambda pid, shares: None
    """Called with a worker's process id and what it reports about its GPU memory; with nothing once it has exited."""
    on_leak: Callable[[Leak], bool] = lambda leak: True
    """Called with a leak; returns whether to replace the worker."""
    streams: list[dict[str, Any]] = field(default_factory=list)
    """Figures about groups that streamed, for the report."""
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Figures about the nodes of a cluster, for the report."""


class Session(Protocol):
    """An executor at work on one run."""

    hooks: Hooks

    def run_group(self, group: Group, tasks: Sequence[Task], done: Done) -> None:
        """Run every task and call `done` as each one ends; returns early if asked to stop."""
        ...

    def map(
        self,
        function: Callable[..., Any],
        items: Sequence[tuple[Any, ...]],
        done: Callable[[int, Any], None],
        *,
        new_workers: bool = False,
        on_gpu: bool = False,
    ) -> None:
        """Call `function(*item)` in the workers for each item; `done(number, result)` in the driver as each one ends.

        With `new_workers`, in workers that hold nothing yet: the heap of one that has worked is fragmented. With `on_gpu`, in
        workers with a GPU each, if the run has any.
        """
        ...

    def roles(self) -> dict[int, str]:
        """What each process of the run on this machine does."""
        ...

    @property
    def whole_tree(self) -> bool:
        """Whether the processes that this one started belong to the run, beside those of `roles`."""
        ...

    def limits(self) -> dict[int, int]:
        """How much memory each busy worker on this machine may hold, by process id; called from the monitor's thread."""
        ...

    def on_overuse(self, pid: int, held_bytes: int) -> None:
        """Stop a worker that holds more than its limit; called from the monitor's thread."""
        ...

    def packet_bytes(self) -> int:
        """Shared memory in use for rows between stages."""
        ...

    def pause(self, *, paused: bool) -> bool:
        """Start no partition while another is in progress, or resume; returns whether that changes anything."""
        ...

    def recycle(self) -> None:
        """Stop idle workers to release their memory; others are started when needed."""
        ...


class Executor(Protocol):
    """Where a pipeline runs."""

    @property
    def name(self) -> str: ...

    @property
    def workers(self) -> int | Literal["auto"]: ...

    @property
    def streaming(self) -> Streaming: ...

    def connected(self) -> AbstractContextManager[Machine | None]:
        """While the block runs, be ready for sessions. Yields what a node of a cluster has; None for this machine."""
        ...

    def session(
        self, governor: Governor, modules: set[str], emit: Events, stop: Stop
    ) -> AbstractContextManager[Session]:
        """Begin to work on a run. `modules` are those that the steps need."""
        ...
