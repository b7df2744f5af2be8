"""What the driver hands to a worker: a stage, once, and tasks, each a partition or some rows of one.

The stages between two Gathers form a group. Usually that is one stage. Where operators differ in the resources they need, a
group has several stages, each with workers of its own, and rows pass from one to the next in packets:

    read > clean ==packets==> classify ==packets==> filter > write          the last stage begins with whole partitions
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from tamis.exchange import Exchange
from tamis.ledger import Commit
from tamis.memory.budget import PoolNeed
from tamis.memory.governor import Allowance, Learned, gpu_need, pool_needs
from tamis.memory.slots import GpuNeed
from tamis.operators import Gather, Operator, Partition, Sink, Source
from tamis.store import Store


@dataclass(frozen=True)
class Stage:
    """Operators fused in one worker, from a source to a sink or to the Gather that observes the rows."""

    index: int
    name: str
    source: Source
    operators: tuple[Operator, ...]
    end: Sink | Gather | None
    columns: tuple[str, ...] | None
    schema: pa.Schema
    batch_bytes: int
    fingerprint: str
    exchange: Exchange
    """What the stage hands to the next one, and its Gather's intermediate results."""
    store: Store
    fates_of: Gather | None = None
    """The Gather whose decisions this stage applies first."""
    fates: Exchange | None = None
    """The exchange with these decisions: that of the stage before."""
    reads_again: bool = False
    """The stage before read the same source and counted its bad rows."""
    spills_rows: bool = False
    """The next stage reads the rows from disk instead of from the source."""
    sink_schema: pa.Schema | None = None
    """The source columns that the sink may expect: those that no step removes."""
    rejects: Sink | None = None
    on_error: str = "isolate"
    keep_lines: bool = False
    """Write rows as the lines they were read from."""
    scores: str | None = None
    """Keep scores under this identity, and reuse those that an earlier run kept under it."""
    measures_on: bool = False
    """The next stage of the group measures the same rows, also those that are dropped."""
    reuse: str | None = None
    """Identifies everything that determines the rows written except thresholds; None if written rows cannot be reused."""
    profile: bool = False
    """Measure the peak memory of each operator, which takes time."""
    pool: int = 0
    """The number of the stage in its group."""
    before: tuple[Operator, ...] = ()
    """The operators of the stages before it in its group."""
    hands_on: bool = False
    """The rows go to the next stage of the group, in packets."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """What earlier runs learned about what fits in memory, for the steps."""

    @property
    def in_group(self) -> bool:
        """Whether it is one of several stages that run at the same time."""
        return self.hands_on or self.pool > 0

    @property
    def gathers(self) -> bool:
        """Whether the stage ends with a Gather that observes its rows."""
        return isinstance(self.end, Gather)

    @property
    def only_counts(self) -> bool:
        """Whether the decisions of the Gather before are all that the stage needs: no step looks at the rows."""
        needs_rows = isinstance(self.end, Gather) or (isinstance(self.end, Sink) and self.end.needs_rows)
        return self.fates_of is not None and not (self.operators or needs_rows or self.rejects or self.hands_on)

    @property
    def steps(self) -> tuple[Operator, ...]:
        """The steps in the order of their accounts: source, the Gather whose decisions are applied, operators, end."""
        fates_of = () if self.fates_of is None else (self.fates_of,)
        return (self.source, *fates_of, *self.operators, *(() if self.end is None else (self.end,)))

    @property
    def slots_needed(self) -> GpuNeed:
        """What a worker that runs the stage needs of GPUs."""
        return gpu_need([*self.operators, *(() if self.end is None else (self.end,))])

    @property
    def first_operator(self) -> int:
        """The number of the first of `operators` among the steps."""
        return 1 if self.fates_of is None else 2


@dataclass(frozen=True)
class Group:
    """The work between two Gathers."""

    whole: Stage
    """All of it as one stage."""
    stages: tuple[Stage, ...]
    """The same as stages that run at the same time, each with workers of its own."""

    @property
    def index(self) -> int:
        return self.whole.index

    @property
    def streams(self) -> bool:
        return len(self.stages) > 1

    def needs(self, learned: Learned) -> list[PoolNeed]:
        """What a worker of each stage needs beside its batches."""
        return pool_needs([stage.operators for stage in self.stages], learned, self.whole.end)


PACKET_ROWS = "packet_rows"
"""The name of the source of all stages of a group but the first."""


@dataclass(frozen=True)
class Packet:
    """Rows on their way from one stage to the next, in a file."""

    path: str
    rows: int
    num_bytes: int


@dataclass(frozen=True)
class Emission:
    """Where and how a stage hands its rows to the next one."""

    folder: str
    stem: str
    """Of the file names; unique to the attempt."""
    packet_bytes: int
    packet_rows: int | None = None
    """The most rows in a packet, if the next stage asks for it."""
    credits: int | None = None
    """How many packets may be written before the driver allows more; None for any number."""
    skip: int = 0
    """Rows at the beginning that an earlier attempt has handed on already."""
    first_folder: str | None = None
    """A folder in shared memory that is used before `folder`, up to `first_bytes`."""
    first_bytes: int = 0


@dataclass(frozen=True)
class Observed:
    """The rows of a partition that a Gather decides about, and the columns that were read then."""

    positions: int
    """The sum of the positions of the rows."""
    columns: tuple[str, ...] | None
    """Fewer columns could give more rows: one may fail because of a value that no later step needs."""


@dataclass(frozen=True)
class Task:
    """An attempt at a partition, or at some of its rows."""

    partition: Partition
    start: int = 0
    stop: int | None = None
    """The rows to process, by their number in the partition; None means to the end."""
    max_rows: int | None = None
    """Process at most this many rows; the next worker continues."""
    allowance: Allowance | None = None
    """How much memory to use; if not given, the stage's batch size."""
    gone: frozenset[str] = frozenset()
    """Addresses of rows that failed in the stage before, which reads the same source."""
    damaged: frozenset[str] = frozenset()
    """Frames of compressed files, by place, that are corrupt: their rows fail."""
    unreadable: Mapping[int, str] = field(default_factory=dict)
    """Pieces of the partition, by number, that crash the worker that reads them, and how."""
    max_row_bytes: int | None = None
    """Larger rows fail; if not given, those that do not fit the allowance."""
    observed: Observed | None = None
    """What the stage before read, if this one reads the same source again."""
    poison: Mapping[int, str] = field(default_factory=dict)
    """Rows to fail without processing them, by number, and why."""
    careful: bool = False
    """Process one row at a time, to find the one that kills the worker."""
    new_worker: bool = False
    """Run in a worker that has processed nothing before."""
    last_attempt: bool = False
    """Nothing more can be tried: a row that does not fit fails."""
    deaths: int = 0
    """How many workers died over these rows."""
    emission: Emission | None = None
    """Where the rows go if the stage hands them on."""
    types: Mapping[int, Mapping[str, pa.DataType]] = field(default_factory=dict)
    """By operator, the types of the columns it returned for the packets before, of the same partition."""
    earlier: Commit | None = None
    """What a run with other thresholds wrote for this partition."""

    @property
    def is_whole(self) -> bool:
        return self.start == 0 and self.stop is None and self.max_rows is None

    @property
    def end(self) -> int | None:
        """The first row not to process."""
        most = None if self.max_rows is None else self.start + self.max_rows
        return most if self.stop is None or (most is not None and most < self.stop) else self.stop


class RowOverflow(MemoryError):
    """A single row does not fit beside what the worker holds."""

    def __init__(self, first: int, rows: int, text: str) -> None:
        super().__init__(text)
        self.first, self.rows = first, rows


class CorruptFrames(Exception):
    """Frames whose rows were processed turned out to be corrupt; the partition must be read again without them."""

    def __init__(self, places: frozenset[str]) -> None:
        super().__init__(places)
        self.places = places


class Marker(Protocol):
    """Notes what the worker is doing outside of its memory, where the driver can read it after a death."""

    def __call__(self, first_row: int, rows: int, step: int) -> None: ...
