"""Snapshots of the memory of the machine, a process tree and the GPUs, at a bounded cost.

The size of a process is cheap to read, but the share it has in common pages (PSS) means a walk over its page tables.
That is done for the processes that changed most, as far as an allowance of a small part of a core goes; for the others
what changed since the last walk is taken to be their own.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from tamis.memory import budget
from tamis.memory.gpu import GpuMemory

WALK_SHARE = 0.005
"""The share of a core that may be spent on walking page tables."""

FRESH_S, FRESH_BYTES = 0.05, 8_000_000
"""A walk counts as exact for so long, unless the size of the process changes by more: a walk of 2 GB takes 30 ms."""

AGING_BYTES = 1_000_000
"""Each reading since a process's last walk counts like a change of this many bytes, so that every process gets its turn."""


@dataclass(frozen=True, slots=True)
class SystemMemory:
    """The machine, and the container around this process if there is one."""

    total_bytes: int
    available_bytes: int
    percent: float
    """The share of the machine's memory that is not available."""
    limit_bytes: int | None = None
    """The container's limit; None without one."""
    limited_bytes: int = 0
    """What the container counts against its limit."""


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """One process. pss and private are None where the system does not report them (macOS)."""

    pid: int
    role: str
    rss_bytes: int
    pss_bytes: int | None = None
    private_bytes: int | None = None
    peak_bytes: int = 0
    """Its largest resident size so far, or since its peak was reset."""
    swap_bytes: int = 0

    @property
    def held_bytes(self) -> int:
        return self.rss_bytes if self.pss_bytes is None else self.pss_bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one moment."""

    time: float
    """Seconds since the epoch."""
    elapsed_s: float
    """Since the monitor started."""
    system: SystemMemory
    processes: tuple[ProcessMemory, ...]
    gpus: tuple[GpuMemory, ...] = ()
    before_bytes: int = 0
    """What the first process held before the run."""
    packet_bytes: int = 0
    """Rows in shared memory between processes. What a process has mapped of them counts a second time."""

    @property
    def held_bytes(self) -> int:
        """What the process tree holds, without `before_bytes`, shared pages counted once."""
        held = sum(process.held_bytes for process in self.processes) + self.packet_bytes
        return max(0, held - self.before_bytes)


def read_system() -> SystemMemory:
    memory = psutil.virtual_memory()
    limit, used = budget.cgroup_memory()
    return SystemMemory(memory.total, memory.available, memory.percent, limit, used if limit is not None else 0)


# ------------------------------------------------------------------------------------------------------ reading the tree


@dataclass(slots=True)
class Walked:
    """The last walk over a process's page tables."""

    pss_bytes: int
    private_bytes: int
    rss_bytes: int = 0
    age: int = 0
    """Readings since the walk."""
    at: float = float("-inf")
    """When it took place."""


@dataclass(slots=True)
class _Status:
    name: str
    rss_bytes: int
    peak_bytes: int
    swap_bytes: int


class TreeReader:
    """Reads a process and, with `whole`, all its descendants, spending at most `walk_share` of a core on page tables.

    With `only_new`, children that the process has when it is first read are not counted, unless `roles` names them: a program
    may have started a cluster or a server of its own before a run.
    """

    def __init__(
        self,
        pid: int,
        *,
        whole: bool = True,
        only_new: bool = False,
        walk_share: float = WALK_SHARE,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.pid, self.whole, self.walk_share = pid, whole, walk_share
        self._others: frozenset[int] | None = None if only_new else frozenset()
        self._clock, self._cpu_clock = clock, cpu_clock
        self._walked: dict[int, Walked] = {}
        self._allowance_s = 0.0
        self._last: float | None = None

    def read(self, roles: Mapping[int, str] | None = None, *, exact: bool = False) -> tuple[ProcessMemory, ...]:
        """The running processes, this one first. `roles` names them, and adds processes that are no longer in the tree.

        With `exact`, walks the page tables of all of them that were not walked just now.
        """
        names = roles or {}
        if self._others is None:
            self._others = frozenset(children_of(self.pid)) - names.keys()
        below = descendants(self.pid, self._others) if self.whole else []
        pids = list(dict.fromkeys([self.pid, *below, *names]))
        alive = {pid: status for pid in pids if (status := _status(pid)) is not None}
        self._walk_some(alive, exact)
        return tuple(self._process(pid, names.get(pid, status.name), status) for pid, status in alive.items())

    def _walk_some(self, alive: Mapping[int, _Status], exact: bool) -> None:
        now = self._clock()
        if self._last is not None:
            # Unspent time is saved for some seconds at most, so that walks do not pile up after a quiet time.
            self._allowance_s = min(self._allowance_s + self.walk_share * (now - self._last), 10 * self.walk_share)
        self._last = now
        self._walked = {pid: walked for pid, walked in self._walked.items() if pid in alive}
        order = sorted(alive, key=lambda pid: (-self._urgency(pid, alive[pid]), pid))
        for pid in order:
            if pid in self._walked:  # a new process is always walked
                if not exact and self._allowance_s <= 0:
                    break
                if exact and self._is_fresh(pid, alive[pid], now):
                    continue
            began = self._cpu_clock()
            walked = walk(pid)
            self._allowance_s -= self._cpu_clock() - began
            if walked is not None:
                walked.rss_bytes, walked.at = alive[pid].rss_bytes, now
                self._walked[pid] = walked

    def _is_fresh(self, pid: int, status: _Status, now: float) -> bool:
        walked = self._walked[pid]
        return now - walked.at <= FRESH_S and abs(status.rss_bytes - walked.rss_bytes) <= FRESH_BYTES

    def _urgency(self, pid: int, status: _Status) -> float:
        walked = self._walked.get(pid)
        if walked is None:
            return float("inf")
        walked.age += 1
        return abs(status.rss_bytes - walked.rss_bytes) + AGING_BYTES * walked.age

    def _process(self, pid: int, role: str, status: _Status) -> ProcessMemory:
        walked = self._walked.get(pid)
        pss = private = None
        if walked is not None:
            since = status.rss_bytes - walked.rss_bytes
            pss = max(0, walked.pss_bytes + since)
            private = max(0, walked.private_bytes + since)
        return ProcessMemory(pid, role, status.rss_bytes, pss, private, status.peak_bytes, status.swap_bytes)


def read_process(pid: int, role: str | None = None) -> ProcessMemory | None:
    """Read one process and walk its page tables; None if it no longer exists."""
    status = _status(pid)
    if status is None:
        return None
    walked = walk(pid)
    pss, private = (walked.pss_bytes, walked.private_bytes) if walked is not None else (None, None)
    sizes = status.rss_bytes, pss, private, status.peak_bytes, status.swap_bytes
    return ProcessMemory(pid, role or status.name, *sizes)


def descendants(pid: int, without: frozenset[int] = frozenset()) -> list[int]:
    """The descendants of a process, nearest first, without some of its children and what these have started."""
    found, todo = [], [pid]
    for parent in todo:
        children = [child for child in children_of(parent) if child not in without]
        found += children
        todo += children
    return found


def children_of(pid: int) -> list[int]:
    children = _children(pid)
    return _children_by_psutil(pid) if children is None else children


def _children(pid: int) -> list[int] | None:
    """The children of a process from the kernel's list, without scanning all processes; None if the kernel has no list."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - called ten times a second
    except FileNotFoundError:
        return [] if sys.platform == "linux" else None
    except OSError:
        return []
    found: list[int] = []
    for thread in threads:
        path = f"/proc/{pid}/task/{thread}/children"
        data = read_file(path)
        if data is None and thread == str(pid) and Path(f"/proc/{pid}/task/{thread}").exists():
            return None
        found += map(int, (data or b"").split())
    return found


def _children_by_psutil(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []


def read_file(path: str, most_bytes: int | None = 65536) -> bytes | None:
    """The content of a small file of /proc, or all of it with None; None where it cannot be read."""
    try:
        if most_bytes is None:
            return Path(path).read_bytes()
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - half the cost of pathlib, called often
            return file.read(most_bytes)
    except OSError:
        return None


def _status(pid: int) -> _Status | None:
    """Size, peak and swap of a process; None if it no longer exists or is a zombie."""
    if sys.platform != "linux":
        return _status_by_psutil(pid)
    data = read_file(f"/proc/{pid}/status")
    if data is None:
        return None
    fields = dict(line.split(b":", 1) for line in data.splitlines() if b":" in line)
    if b"VmRSS" not in fields:
        return None
    name = fields[b"Name"].strip().decode(errors="replace")
    return _Status(name, *(kilobytes(fields.get(key)) for key in (b"VmRSS", b"VmHWM", b"VmSwap")))


def _status_by_psutil(pid: int) -> _Status | None:
    try:
        process = psutil.Process(pid)
        size = process.memory_info().rss
        return _Status(process.name(), size, size, 0)
    except psutil.Error:
        return None


def walk(pid: int) -> Walked | None:
    """Walk the page tables of a process; None if it no longer exists or cannot be read."""
    data = read_file(f"/proc/{pid}/smaps_rollup")
    if not data:
        return None
    fields = dict(line.split(b":", 1) for line in data.splitlines()[1:] if b":" in line)
    if b"Pss" not in fields:
        return None
    own = kilobytes(fields.get(b"Private_Clean")) + kilobytes(fields.get(b"Private_Dirty"))
    return Walked(kilobytes(fields[b"Pss"]), own)


def kilobytes(value: bytes | None) -> int:
    return int(value.split()[0]) * 1024 if value else 0
