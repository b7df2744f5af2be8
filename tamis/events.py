"""Everything a run says, as values. The progress bar, the report, the event log are subscribers.

A subscriber is a function of one event; it must not raise and must not be slow. The library itself prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tamis.report import ErrorCount


@dataclass(frozen=True)
class Event:
    """Something that happened."""


@dataclass(frozen=True)
class RunStarted(Event):
    """Work begins: what there is to do, what is done already, and why the rest is done again."""

    output: str | None
    stages: tuple[str, ...]
    workers: int
    budget_bytes: int
    partitions: int
    committed: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class StageStarted(Event):
    """A stage begins with this many partitions still to do, of about so many bytes."""

    stage: int
    name: str
    partitions: int
    committed: int
    num_bytes: int


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
    """The rows of a partition are accounted for and will not be processed again."""

    stage: int
    partition: int
    account: dict[str, Any]
    num_bytes: int


@dataclass(frozen=True)
class WorkerDied(Event):
    """A worker ended without being asked to; its partition is tried again."""

    worker: int
    how: str
    partition: int | None
    step: str | None


@dataclass(frozen=True)
class MemorySampled(Event):
    """What the whole process tree holds now."""

    num_bytes: int
    peak_bytes: int
    budget_bytes: int


@dataclass(frozen=True)
class MemoryAction(Event):
    """Something was done to stay inside the budget: split, shrink, fewer_workers, restart, isolate, recycle, pause, sample."""

    kind: str
    text: str


@dataclass(frozen=True)
class MemoryAlert(Event):
    """A threshold of memory was passed, or is no longer (level `cleared`); `action` is what the remedy asked for."""

    kind: str
    level: str
    value: float
    limit: float
    text: str
    action: str | None = None


@dataclass(frozen=True)
class LeakFound(Event):
    """What a worker holds after each shard keeps rising."""

    stage: str
    worker: int
    bytes_per_shard: float
    bytes_per_s: float | None
    since: int
    confidence: float


@dataclass(frozen=True)
class Stopping(Event):
    """The user asked to stop; current partitions are finished, or abandoned on a second request."""

    abandon: bool


@dataclass(frozen=True)
class Note(Event):
    """A sentence a user should read."""

    text: str


@dataclass(frozen=True)
class RunFinished(Event):
    report: Any


Subscriber: TypeAlias = Callable[[Event], None]


@dataclass
class Events:
    """Hands each event to every subscriber."""

    subscribers: list[Subscriber] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        for subscriber in self.subscribers:
            subscriber(event)
