"""Partitions on their way through the stages of a group, as the driver sees them.

Flow    a partition: what each stage has made of it so far
Unit    what one stage processes and may have to try again: the partition itself, a packet of it, or all its packets
Pool    the workers of a stage and the units that wait for them
Job     a unit, or some of its rows, in a worker
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from tamis.errors import TamisError
from tamis.executors.crew import Worker
from tamis.executors.schedule import Progress
from tamis.executors.segments import Segment
from tamis.executors.tasks import PACKET_ROWS, Packet, Stage, Task
from tamis.executors.worker_process import dumps
from tamis.memory.governor import Governor
from tamis.memory.leaks import LeakDetector
from tamis.memory.slots import GpuSlot
from tamis.operators import Filter
from tamis.report import Account


@dataclass(eq=False)
class Flow:
    """A partition on its way through a group."""

    task: Task
    """As the driver gave it."""
    num_stages: int
    place: str | None = None
    """The node on which all its packets are written and read; None before it is begun, and if there are no packets."""
    abandoned: bool = False
    """It was begun again from the start; what workers still report about it is ignored."""
    units: list[list[Unit]] = field(default_factory=list)
    """By stage: what is not finished yet."""
    accounts: list[Account] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    """Failed and rejected rows, and scores, of the stages before the last."""
    types: list[Mapping[int, Mapping[str, pa.DataType]]] = field(default_factory=list)
    """By stage and operator, the types of the columns it returned so far."""
    packets: list[tuple[tuple[int, ...], Packet]] = field(default_factory=list)
    """For the last stage, with their order."""

    def __post_init__(self) -> None:
        self.units = [[] for _ in range(self.num_stages)]
        self.accounts = [Account() for _ in range(self.num_stages)]
        self.types = [{} for _ in range(self.num_stages)]

    @property
    def index(self) -> int:
        return self.task.partition.index

    def add(self, stage: int, segment: Segment) -> None:
        """Add what a stage before the last reports."""
        self.accounts[stage].add(segment.account)
        if segment.rejects or segment.failed or segment.scores:
            self.segments.append(segment)
        if segment.types:
            self.types[stage] = segment.types

    def is_next(self, unit: Unit) -> bool:
        """Whether all rows before those of a unit have been processed by the stage of the unit and the stages before it."""
        earlier = (other for units in self.units[: unit.stage + 1] for other in units if other is not unit)
        return all(other.key > unit.key[: len(other.key)] for other in earlier if other.stage)

    def account(self) -> Account:
        """The account of the whole group: what was read by the first stage, and what the last one kept."""
        first, *others = self.accounts
        total = replace(first, operators=list(first.operators), errors=list(first.errors))
        for account in others:
            if account.read != total.kept:
                raise TamisError(
                    f"{total.kept} rows of partition {self.index} were handed to a stage that read {account.read}"
                )
            own = replace(account, operators=[op for op in account.operators if op.name != PACKET_ROWS])
            own.read = own.num_bytes = 0
            merged = replace(total, operators=[], kept=0)
            merged.add(replace(own, operators=[]))
            merged.operators = [*total.operators, *own.operators]
            total = merged
        if not total.balances:
            raise TamisError(f"the account of partition {self.index} does not balance: {total}")
        return total


@dataclass(eq=False)
class Unit:
    """Rows that one stage processes, and that are tried again together."""

    flow: Flow
    stage: int
    key: tuple[int, ...]
    """Source order among the units of a partition."""
    pending: deque[Task]
    packet: Packet | None = None
    """What the rows are read from, if that is a single packet."""
    progress: Progress = field(default_factory=Progress)
    running: int = 0
    packets: int = 0
    """Packets handed on so far."""
    handed_on: int = 0
    """Rows handed on since the last safe point."""
    skip: int = 0
    """Rows that had been handed on at the last safe point, and that were to be skipped from there."""

    @property
    def is_finished(self) -> bool:
        return not self.pending and not self.running


@dataclass(eq=False)
class Job:
    """A task in a worker."""

    pool: Pool
    unit: Unit
    task: Task
    began: float = field(default_factory=time.monotonic)
    credits: int = 0
    """Packets that the worker may still write without asking."""
    waited_s: float = 0.0
    reported: set[str] = field(default_factory=set)
    """Paths of the packets that the worker has reported."""
    opened_s: float = 0.0
    """What it took to open the stage, with its first task."""
    opening: bool = False
    """The worker still opens the stage."""

    def busy_s(self, now: float) -> float:
        """How long the worker has been processing rows."""
        return 0.0 if self.opening else max(0.0, now - self.began - self.opened_s - self.waited_s)


class Pool:
    """The workers of one stage, and what waits for them."""

    def __init__(self, stage: Stage, governor: Governor, most: int, *, on_gpu: bool = False) -> None:
        self.stage, self.governor, self.on_gpu = stage, governor, on_gpu
        self.slots: dict[str, tuple[GpuSlot, ...]] = {}
        """By node, the places of workers on its GPUs."""
        self.payload = dumps(stage)
        self.key = (stage.index, stage.pool)
        self.most = most
        """The most workers that fit in memory."""
        self.target = most
        self.workers: list[Worker] = []
        self.waiting: deque[Unit] = deque()
        self.leaks = LeakDetector(stage.name)
        # The types of new columns depend on the rows before; the scores of filters do not.
        self.in_order = not all(isinstance(op, Filter) for op in stage.operators)
        self.clock = PoolClock()
        self.bytes_in = self.bytes_done = 0
        self.rows_in = self.rows_out = 0

    def next_unit(self, *, last_attempts: bool, full: Collection[str | None] = ()) -> Unit | None:
        """The first unit that can be started now, on a node that is not full."""
        for unit in self.waiting:
            if unit.flow.place in full and unit.flow.place is not None:
                continue
            if not unit.pending or (self.stage.hands_on and unit.running):
                continue
            if unit.pending[0].last_attempt != last_attempts:
                continue
            if self.stage.hands_on and self.stage.pool and self.in_order and not unit.flow.is_next(unit):
                continue
            return unit
        return None

    def free_slot(self, node: str, *, alone: bool = False) -> tuple[GpuSlot, int]:
        """A slot of a node that no worker has, and its number; with `alone`, with all that the pool has on that GPU."""
        slots = self.slots[node]
        taken = Counter(worker.slot for worker in self.workers if worker.place == node)
        number = min(range(len(slots)), key=lambda number: taken[number])
        slot = slots[number]
        if alone and slot.gpu_bytes is not None:
            same = [other.gpu_bytes or 0 for other in slots if other.names == slot.names]
            slot = replace(slot, gpu_bytes=sum(same))
        return slot, number

    def idle(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.job is None]

    def is_busy(self) -> bool:
        return any(worker.job is not None for worker in self.workers)

    def drop(self, units: Iterable[Unit]) -> None:
        gone = set(map(id, units))
        self.waiting = deque(unit for unit in self.waiting if id(unit) not in gone)


class PoolClock:
    """How long the workers of a pool were busy, and how long they waited."""

    def __init__(self) -> None:
        self.opening_s = self.busy_s = self.output_s = self.alive_s = 0.0
        self.first: float | None = None
        self.last = 0.0
        self._since: dict[int, float] = {}

    def started(self, worker: Worker, now: float) -> None:
        self._since[worker.number] = now

    def stopped(self, worker: Worker, now: float) -> None:
        self.alive_s += now - self._since.pop(worker.number, now)

    def job(self, job: Job, now: float) -> None:
        """Count a job that has ended."""
        began = job.began + job.opened_s
        self.first = began if self.first is None else min(self.first, began)
        self.last = now
        self.opening_s += job.opened_s
        self.busy_s += now - began - job.waited_s
        self.output_s += job.waited_s

    def close(self, now: float) -> None:
        for began in self._since.values():
            self.alive_s += now - began
        self._since.clear()

    @property
    def input_s(self) -> float:
        """Time that workers had nothing to do."""
        return max(0.0, self.alive_s - self.opening_s - self.busy_s - self.output_s)
