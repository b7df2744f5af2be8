"""Shards: several drivers, each started on its own, that do one run together without a cluster between them.

    tamis run ... --shard 1/3      partitions 0, 3, 6, ...   lock and log .tamis/shards/0001.lock, 0001.log
    tamis run ... --shard 2/3      partitions 1, 4, 7, ...                        0002.lock, 0002.log
    tamis run ... --shard 3/3      partitions 2, 5, 8, ...                        0003.lock, 0003.log
                                   resolve of stage 0                             stage-0.lock, stage-0.log

All of them make the same plan, which the first one records in the ledger of the folder; a shard with another plan is refused.
The driver that holds a lock writes the log beside it, and all drivers read all logs. A driver holds the lock of its own shard
until it leaves. It may hold that of another shard too, which nobody is working on (`claim`), and do the work of that.

The lock of the folder belongs to a run without shards, to the first shard while it records the plan, and to the driver that
merges. A driver takes the lock of its shard first and then looks at that of the folder; the other one takes the lock of the
folder first and then looks at those of the shards. One of them sees the other, and waits or gives up.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tamis.errors import LedgerError, ParameterError
from tamis.ledger import Ledger
from tamis.lock import Lock, Locks, lock_of, owner_text
from tamis.logs import SHARDS, Log
from tamis.parameters import plural
from tamis.store import Store

DEFAULT_SHARD_WAIT_S = 600.0
"""How long a shard waits at a Gather while none of the missing shards is running."""

MOST_SHARDS = 100_000
"""More are a mistake: each shard is a job of its own."""


@dataclass(frozen=True)
class JobShard:
    """One of the drivers of a run: number 3 of 64."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @property
    def name(self) -> str:
        return shard_name(self.number)

    @property
    def part(self) -> str:
        """The name of its folder for unfinished files."""
        return f"shard-{self.name}"


def shard_name(number: int) -> str:
    return f"{number:04d}"


def shard_of(partition: int, count: int) -> int:
    """The number of the shard that a partition belongs to.

    >>> [shard_of(partition, 3) for partition in range(5)]
    [1, 2, 3, 1, 2]
    """
    return partition % count + 1


def parse_shard(text: str) -> JobShard:
    """A shard from "3/64": the third of 64.

    >>> parse_shard("3/64")
    JobShard(number=3, count=64)
    """
    hint = "for example 3/64, the third of 64 shards; the first is 1/64"
    match = re.fullmatch(r"\s*(\d{1,9})\s*/\s*(\d{1,9})\s*", text, re.ASCII) if isinstance(text, str) else None
    if match is None:
        raise ParameterError(f"`shard` must be a number and a count, got {text!r}", hint=hint)
    number, count = int(match[1]), int(match[2])
    if not 1 <= count <= MOST_SHARDS:
        raise ParameterError(f"`shard` must have 1 to {MOST_SHARDS:,} shards, got {text!r}", hint=hint)
    if not 1 <= number <= count:
        raise ParameterError(f"there is no shard {number} of {count}", hint=hint)
    return JobShard(number, count)


# ------------------------------------------------------------------------------------------------------------- the states


@dataclass(frozen=True)
class ShardState:
    """What is known about a shard that is not complete."""

    number: int
    missing: int
    """Partitions of the stage that are not committed."""
    sessions: tuple[Mapping[str, Any], ...] = ()
    holder: Mapping[str, Any] | None = None
    """Who holds its lock, if anybody does."""

    @property
    def failed(self) -> str | None:
        """The error that ended the last work on it, which would end the next one too."""
        last = self.sessions[-1] if self.sessions else {}
        return str(last.get("error") or "an error") if last.get("state") == "failed" else None

    @property
    def is_orphan(self) -> bool:
        """Whether another driver should do its work: it was begun, and nobody is working on it.

        Not after an error, and not if a driver has died doing so: if its rows were the cause, they would end all drivers.
        """
        if self.holder is not None or not self.sessions or self.failed is not None:
            return False
        return not any(each["by"] != self.number and each.get("state") == "running" for each in self.sessions)

    def __str__(self) -> str:
        text = f"shard {self.number}: "
        left = f"{plural(self.missing, 'partition')} missing"
        if self.holder is not None:
            return f"{text}running, {left} ({owner_text(self.holder)})"
        if not self.sessions:
            return f"{text}not started, {left}"
        last = self.sessions[-1]
        where = f" on {last['host']}" if last.get("host") else ""
        if self.failed is not None:
            return f"{text}failed{where}, {left}: {self.failed.splitlines()[0]}"
        ended = {"running": "ended without a word (killed?)", "interrupted": "was stopped"}
        return f"{text}{ended.get(str(last.get('state')), 'has ended')}{where}, {left}"


# ------------------------------------------------------------------------------------------------------------- the ledger


@dataclass(frozen=True)
class Claim:
    """A lock that is held, and the log that may be written because of it."""

    lock: Lock
    log: Log


class ShardLedger(Ledger):
    """The ledger of a run as one of its drivers sees it: reads all logs, and writes those whose locks it holds."""

    def __init__(self, store: Store, shard: JobShard) -> None:
        super().__init__(store)
        self.shard = shard
        self.locks = Locks()
        self.lock = self.locks
        self._claims: list[Claim] = []
        """The last one is written to."""

    def __enter__(self) -> ShardLedger:
        return self

    def __exit__(self, *exc: object) -> None:
        while self._claims:
            self._drop_claim()

    def load(self) -> None:
        """Read all records that are complete; others may be writing."""
        self._apply_lines(self._log.read())
        self.refresh()

    def refresh(self) -> None:
        super().refresh()
        self._shard_records.clear()  # kept to copy them to the ledger itself, which a shard does not do

    def join(self) -> Mapping[str, Any] | None:
        """Take the lock of the own shard, unless the folder is locked; returns who holds either, or None if it is taken."""
        busy = self._folder_lock.holder()
        if busy is not None:
            return busy
        try:
            self._add_claim(self.shard.name, str(self.shard))
        except LedgerError:
            return self.holder(self.shard.name) or {}  # it may have been released in the meantime
        busy = self._folder_lock.holder()
        if busy is None and not self._claims[0].lock.is_mine():
            busy = {}  # the folder was locked in between, and the lock of the shard removed
        if busy is not None:
            self._drop_claim()
        return busy

    def holder(self, name: str) -> Mapping[str, Any] | None:
        """Who holds the lock of a shard or a stage."""
        return lock_of(self.store, _lock_name(name)).holder()

    @contextmanager
    def claim(self, name: str) -> Iterator[bool]:
        """In the block, hold the lock of another shard or of a stage, and write its log; False if someone else holds it."""
        try:
            self._add_claim(name, str(self.shard))
        except LedgerError:
            yield False
            return
        try:
            self.refresh()
            yield True
        finally:
            self._drop_claim()

    def _add_claim(self, name: str, shard: str) -> None:
        lock = lock_of(self.store, _lock_name(name), shard=shard)
        lock.take()
        self.locks.held.append(lock)
        log = self._shard_logs.setdefault(name, Log(self.store, name))
        self._apply_lines(log.read())
        log.open()
        self._claims.append(Claim(lock, log))

    def _drop_claim(self) -> None:
        claim = self._claims.pop()
        claim.log.close()
        self.locks.held.remove(claim.lock)
        claim.lock.release()

    def _writes_to(self) -> Log:
        return self._claims[-1].log

    def states(self, missing: Mapping[int, int]) -> list[ShardState]:
        """The shards that are not complete, given how many partitions each of them misses."""
        return [
            ShardState(number, count, tuple(self.sessions.get(number, ())), self.holder(shard_name(number)))
            for number, count in sorted(missing.items())
        ]


def _lock_name(name: str) -> str:
    return f"{SHARDS}/{name}.lock"


def missing_by_shard(done: Callable[[int], bool], partitions: int, count: int) -> dict[int, int]:
    """How many partitions each shard misses, for shards that miss any.

    >>> missing_by_shard(lambda partition: partition in (0, 1), 5, 3)
    {3: 1, 1: 1, 2: 1}
    """
    missing: dict[int, int] = {}
    for partition in range(partitions):
        if not done(partition):
            number = shard_of(partition, count)
            missing[number] = missing.get(number, 0) + 1
    return missing


class Patience:
    """Decides how long to wait: without a limit for someone who is at work, else for `limit_s`."""

    def __init__(self, limit_s: float, first_s: float = 0.25, longest_s: float = 10.0) -> None:
        self._limit_s, self._pause_s, self._longest_s = limit_s, first_s, longest_s
        self._since: float | None = None

    def is_over(self, *, someone_works: bool) -> bool:
        """Whether nobody has worked for longer than the limit."""
        if someone_works:
            self._since = None
            return False
        self._since = self._since if self._since is not None else time.monotonic()
        return time.monotonic() - self._since >= self._limit_s

    def pause_s(self) -> float:
        """How long to sleep before looking again; longer each time."""
        self._pause_s = min(self._longest_s, self._pause_s * 1.3)
        return self._pause_s
