"""Everything a run reports while it runs, as values; progress bars, logs and the report are subscribers.

A subscriber is a function of one event. It must not raise and must return quickly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tamis.account import Account, ErrorCount


@dataclass(frozen=True)
class Event:
    """Something that happened."""


@dataclass(frozen=True)
class RunStarted(Event):
    """A run starts: how many partitions there are, how many are committed already, and why others are redone."""

    output: str | None
    stages: tuple[str, ...]
    workers: int
    budget_bytes: int
    partitions: int
    committed: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class StageStarted(Event):
    """A stage starts; `partitions` and the approximate `num_bytes` are what is left to do. Stages count from 0."""

    stage: int
    name: str
    partitions: int
    committed: int
    num_bytes: int


@dataclass(frozen=True)
class WorkCommittedBefore(Event):
    """The account of what earlier runs committed of a stage, and this run does not repeat."""

    stage: int
    account: Account


@dataclass(frozen=True)
class PartitionStarted(Event):
    stage: int
    partition: int
    worker: int


@dataclass(frozen=True)
class PartitionProgress(Event):
    """Rows and bytes of a partition that a worker has read so far, and the errors of rows that failed."""

    stage: int
    partition: int
    worker: int
    rows: int
    num_bytes: int
    errors: tuple[ErrorCount, ...] = ()


@dataclass(frozen=True)
class PartitionCommitted(Event):
    """A partition is done; its rows are accounted for and will not be processed again."""

    stage: int
    partition: int
    account: dict[str, Any]
    num_bytes: int


@dataclass(frozen=True)
class PoolSampled:
    """The workers of one stage of a group at a moment, and what waits for them."""

    name: str
    workers: int
    busy: int
    waiting: int
    """Partitions, or packets of rows, that no worker has begun."""
    rows_in: int
    rows_out: int
    bytes_done: int
    """Bytes of input that are processed: of partitions, or of packets."""


@dataclass(frozen=True)
class PoolsSampled(Event):
    """The pools of the group of stages that runs now, about once a second and at its end; most groups have one."""

    stage: int
    pools: tuple[PoolSampled, ...]
    packet_bytes: int
    """Rows between stages in shared memory."""


@dataclass(frozen=True)
class CallsFinished(Event):
    """One phase of a Gather is done: its calls in the workers, without those of an earlier run."""

    stage: int
    name: str
    calls: int
    seconds: float


@dataclass(frozen=True)
class KernelsCompiling(Event):
    """A worker compiles kernels that this machine has not compiled before."""


@dataclass(frozen=True)
class WorkerDied(Event):
    """A worker exited unexpectedly; its partition is tried again."""

    worker: int
    how: str
    partition: int | None
    step: str | None


@dataclass(frozen=True)
class GpuSampled:
    """The current memory of one GPU."""

    index: int
    used_bytes: int
    """By all processes."""
    total_bytes: int
    own_bytes: int
    """By the processes of the run."""
    owners: dict[str, int]
    """The same by purpose: weights, activations, buffers, kernels."""


@dataclass(frozen=True)
class MemorySampled(Event):
    """The memory of the process tree, now or a little earlier."""

    num_bytes: int
    peak_bytes: int
    budget_bytes: int
    gpus: tuple[GpuSampled, ...] = ()
    age_s: float = 0.0
    """How long ago it was measured: a driver that is busy emits several at once."""


@dataclass(frozen=True)
class MemoryAction(Event):
    """An action to stay within the budget: split, shrink, fewer_workers, restart, isolate, recycle, pause or sample."""

    kind: str
    text: str


@dataclass(frozen=True)
class MemoryAlert(Event):
    """A memory threshold was exceeded or, with level `cleared`, no longer is; `action` is what the remedy chose."""

    kind: str
    level: str
    value: float
    limit: float
    text: str
    action: str | None = None


@dataclass(frozen=True)
class LeakFound(Event):
    """The memory of a worker keeps growing from shard to shard."""

    stage: str
    worker: int
    bytes_per_shard: float
    bytes_per_s: float | None
    since: int
    confidence: float


@dataclass(frozen=True)
class Stopping(Event):
    """The user stopped the run: partitions in progress are finished, or abandoned on a second request."""

    abandon: bool


@dataclass(frozen=True)
class Note(Event):
    """A sentence for the user."""

    text: str


@dataclass(frozen=True)
class RunFinished(Event):
    report: Any


Subscriber: TypeAlias = Callable[[Event], None]


@dataclass
class Events:
    """Passes each event to every subscriber."""

    subscribers: list[Subscriber] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        for subscriber in self.subscribers:
            subscriber(event)
