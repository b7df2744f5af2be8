"""How much memory a run may use, and what follows from it: workers, batch size, block size, the largest row.

Each figure is recorded with its reason, so that a run can be understood and repeated.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from tamis.errors import BudgetError, ParameterError
from tamis.memory.slots import GpuDevice, GpuNeed, GpuSlot, gpu_slots
from tamis.parameters import format_bytes, parse_bytes

DEFAULT_SHARE = 0.8
"""The default budget, as a share of the usable memory; the rest is for the page cache and other processes."""

DRIVER_BYTES = 160_000_000
"""The least that the driver and the fork server take, as measured: interpreter, Arrow and the plan."""

CALLER_BYTES = 150_000_000
"""The calling process with Tamis, kernels and operators loaded. Memory beyond that belongs to the calling program."""

SERVER_BYTES = 150_000_000
"""Set aside for the fork server, which shares its libraries with the driver, for the growth of both, and for released code
pages that are used again."""

SERVER_TYPICAL_BYTES = 30_000_000
"""What the fork server and the growth of the driver usually take of that."""

WORKER_BYTES = 150_000_000
"""A worker before its first batch: interpreter, Arrow, compiled kernels."""

WORKER_TYPICAL_BYTES = 90_000_000
"""What a worker usually takes of that; it shares most of its libraries with the others."""

BATCH_COPIES = 6
"""How many times over a batch is held at the worst moment: as raw bytes, parsed, filtered and encoded."""

HANDED_ON_COPIES = 2
"""How many times over rows are held that are collected for the next stage."""

ROW_COPIES = 8
"""How many times over a single row is held, at most, while it is read, processed and written."""

SMALLEST_ROW_LIMIT = 1_000_000
"""Rows up to this size never fail for lack of memory; a budget that cannot hold them is refused."""

SMALLEST_EDGE_BYTES = 16_000_000
EDGE_PACKETS = 32
"""Rows between stages take at most as many packets of the size that the next stage asks for."""
LARGEST_LAST_EDGE_BYTES = 4_000_000_000
SMALLEST_PACKET_BYTES = 250_000

DEFAULT_BATCH_BYTES = 16_000_000
SMALLEST_BATCH_BYTES = 1_000_000
DEFAULT_BLOCKSIZE = 128_000_000
SMALLEST_DEFAULT_BLOCKSIZE = 32_000_000
WANTED_PARTITIONS = 64
"""Inputs are divided into about as many partitions, within limits, so that many cores have work to the end."""
MOST_PARTITIONS = 500_000
"""The driver holds about 7 kB for each partition (`benchmarks/scale.py`), so inputs beyond 64 TB have larger ones."""

MOST_SLOTS = 64
"""Workers on GPUs are limited by their devices and by memory, not by cores; this only bounds the search."""

NO_LIMIT = 2**60
"""Values above this mean that there is no limit."""


@dataclass(frozen=True)
class Machine:
    """What a node of a cluster has. Where nodes differ, the smallest."""

    cpus: int
    memory_bytes: int
    name: str = "node"
    gpus: tuple[GpuDevice, ...] = ()
    """Its GPUs; those of the node that has the most."""


@dataclass(frozen=True)
class Budget:
    """What a run may use; derived once before it starts. On a cluster, what it may use on each node."""

    total_bytes: int
    workers: int
    batch_bytes: int
    worker_bytes: int
    """Each worker's share of the budget."""
    driver_bytes: int = DRIVER_BYTES
    """Set aside for the calling process and the fork server."""
    before_bytes: int = 0
    """What the calling program held before the run, beyond what Tamis needs; not counted."""
    fixed_bytes: int = WORKER_BYTES
    """What a worker holds before its first batch: its code, and what the operators declare or were measured to take."""
    usable_bytes: int = 0
    """What the process may really use, whatever was requested."""
    max_row_bytes: int = SMALLEST_ROW_LIMIT
    """Rows larger than this fail with their size instead of being read. Follows from the budget and from what operators
    declare alone, so that it is the same for any number of workers and in any calling program."""
    wanted_workers: int = 0
    """The workers that were requested, or the cores; there are fewer if memory does not suffice."""
    heavy_bytes: int | None = None
    """Operators that declare at least this much memory, or a GPU, get workers of their own; None if none do."""
    gpus: tuple[GpuDevice, ...] = ()
    """The GPUs that the run may use; none if no step uses one."""
    gpu_bytes: int | None = None
    """What the run may hold on each GPU, if that was requested."""
    hides_gpus: bool = False
    """Workers see no GPU, whatever the machine has."""
    cpus: int = 0
    """The cores of the machine, or of a node."""
    reasons: dict[str, str] = field(default_factory=dict)


def make_budget(
    *,
    memory: int | str | None = None,
    workers: int | str = "auto",
    operator_bytes: int = 0,
    learned_bytes: int | None = None,
    caller_bytes: int = 0,
    most_workers: int | None = None,
    machine: Machine | None = None,
) -> Budget:
    """Derive a budget from the memory and workers requested and from what the machine has.

    `operator_bytes` is what the operators declare they need beside their batches, `learned_bytes` the same with measurements
    of an earlier run where there are any, `caller_bytes` what the calling process already holds. Only what is declared can
    refuse a budget, since a measurement may be of another model; measurements decide the number of workers. There are never
    more than `most_workers`, of which each has a place on a GPU. `machine` is a node of a cluster; otherwise, it is this one.
    """
    reasons = {}
    usable = usable_memory() if machine is None else machine.memory_bytes
    if memory is None:
        total = int(usable * DEFAULT_SHARE)
        reasons["memory"] = (
            f"{format_bytes(total)}: {100 * DEFAULT_SHARE:.0f} % of the {format_bytes(usable)} this process may use"
            if machine is None
            else f"{format_bytes(total)} per node: {100 * DEFAULT_SHARE:.0f} % of the {format_bytes(usable)} of {machine.name}"
        )
    else:
        total = parse_bytes(memory)
        reasons["memory"] = f"{format_bytes(total)}: requested"

    cpus = usable_cpus() if machine is None else machine.cpus
    wanted = _wanted_workers(workers, cpus)
    before = max(0, caller_bytes - CALLER_BYTES)
    driver = max(DRIVER_BYTES, caller_bytes - before + SERVER_BYTES if caller_bytes else 0)
    reasons["driver"] = f"{format_bytes(driver)}: the calling process and the fork server"
    if before:
        reasons["driver"] += f", without the {format_bytes(before)} that the caller held before"
    each = total - driver
    fixed = WORKER_BYTES + operator_bytes
    smallest = fixed + BATCH_COPIES * SMALLEST_BATCH_BYTES
    if each < smallest:
        raise BudgetError(
            f"{format_bytes(total)} of memory is not enough for this pipeline",
            hint=f"the smallest budget it can work with is {format_bytes(driver + smallest)}",
        )
    learned = WORKER_BYTES + (operator_bytes if learned_bytes is None else learned_bytes)
    enough = learned + BATCH_COPIES * (SMALLEST_BATCH_BYTES if isinstance(workers, int) else DEFAULT_BATCH_BYTES)
    count = max(1, min(wanted, each // enough, most_workers or wanted))
    fixed = min(learned, each // count - BATCH_COPIES * SMALLEST_BATCH_BYTES)
    reasons["workers"] = (
        f"{count}: requested"
        if count == workers
        else f"{count}: one per place on a GPU"
        if count == most_workers
        else f"{count}: one per usable core ({cpus})"
        if count == cpus
        else f"{count}: {format_bytes(each)} divided by {format_bytes(enough)} each"
    )
    reasons["fixed_bytes"] = f"{format_bytes(fixed)}: interpreter, Arrow, compiled kernels"
    if learned > WORKER_BYTES:
        source = (
            "operators declare" if learned_bytes in (None, operator_bytes) else "an earlier run measured for operators"
        )
        reasons["fixed_bytes"] += f", and the {format_bytes(learned - WORKER_BYTES)} that {source}"
    share = each // count
    reasons["worker_bytes"] = f"{format_bytes(share)}: an equal share of the rest for each worker"
    batch = max(SMALLEST_BATCH_BYTES, min(DEFAULT_BATCH_BYTES, (share - fixed) // BATCH_COPIES))
    reasons["batch_bytes"] = (
        f"{format_bytes(batch)}: the default"
        if batch == DEFAULT_BATCH_BYTES
        else f"{format_bytes(batch)}: a {BATCH_COPIES}th of what a worker has left of its {format_bytes(share)}"
    )
    alone = total - CALLER_BYTES - SERVER_BYTES - WORKER_BYTES - operator_bytes
    max_row = max(SMALLEST_ROW_LIMIT, alone // ROW_COPIES)
    reasons["max_row_bytes"] = (
        f"{format_bytes(max_row)}: larger rows fail; a single worker has at least {format_bytes(max(0, alone))} for rows, and "
        f"holds one up to {ROW_COPIES} times"
    )
    reasons["queue"] = f"{count}: one partition per worker; rows wait on disk, not between processes"
    reasons["caches"] = "none that grow with the data; models and kernels are loaded before the first batch"
    usable += min(caller_bytes, CALLER_BYTES)  # the caller already uses its part of the budget
    return Budget(
        total, count, batch, share, driver, before, fixed, usable, max_row, wanted, cpus=cpus, reasons=reasons
    )


# ------------------------------------------------------------------------------------------- stages that run at one time


@dataclass(frozen=True)
class PoolNeed:
    """What a worker of one of several stages needs beside its batches."""

    memory_bytes: int
    gpu: GpuNeed = field(default_factory=GpuNeed)
    heavy: bool = False
    """Other stages get more workers first."""
    batches: int = 1
    """How many batches it processes at a time."""
    batches_after: int = 1
    """How many batches the next stage processes at a time, which is what it hands on at a time."""

    def worker_bytes(self, batch_bytes: int) -> int:
        """What a worker takes that reads batches of this size."""
        handed_on = HANDED_ON_COPIES * batch_bytes * (self.batches_after - 1)
        return WORKER_BYTES + self.memory_bytes + BATCH_COPIES * batch_bytes * self.batches + handed_on


@dataclass(frozen=True)
class PoolShare:
    """What the workers of one of several stages may use."""

    worker_bytes: int
    fixed_bytes: int
    most: int
    """The most workers that fit."""
    slots: tuple[GpuSlot, ...] = ()
    """Where on GPUs they run; none if they need no GPU."""
    batch_bytes: int = DEFAULT_BATCH_BYTES
    """What each of them processes at a time."""
    packet_bytes: int = DEFAULT_BATCH_BYTES
    """The size of a piece of the rows that they hand on."""


@dataclass(frozen=True)
class StreamBudget:
    """The budget, divided among stages that run at the same time and the rows between them."""

    pools: tuple[PoolShare, ...]
    batch_bytes: int
    edge_bytes: int
    """The most that rows between stages may take in shared memory."""
    last_edge_bytes: int = 0
    """The most that rows for the last stage may take in shared memory, from what workers leave; others wait on disk."""

    def within(self, edge_bytes: int) -> StreamBudget:
        """The same where rows between stages may take no more than this in shared memory."""
        if edge_bytes >= self.edge_bytes:
            return self
        most = _packet_limit(edge_bytes, sum(pool.most for pool in self.pools))
        pools = [replace(pool, packet_bytes=min(pool.packet_bytes, most)) for pool in self.pools[:-2]]
        return replace(self, edge_bytes=edge_bytes, pools=(*pools, *self.pools[-2:]))


def stream_budget(budget: Budget, needs: Sequence[PoolNeed]) -> StreamBudget:
    """Divide a budget among the stages of a group: a worker for each, then more as long as memory, cores and GPUs last.

    >>> budget = make_budget(memory="3GB", workers=2)
    >>> found = stream_budget(budget, [PoolNeed(0), PoolNeed(1_000_000_000, heavy=True), PoolNeed(0)])
    >>> [pool.most for pool in found.pools]
    [2, 1, 2]
    """
    on_gpus = [need.gpu for need in needs]
    slots = gpu_slots(budget.gpus, on_gpus, [MOST_SLOTS] * len(needs))
    limits = [len(found) if need.gpu.any else budget.wanted_workers for need, found in zip(needs, slots, strict=True)]
    edge = edge_bytes(budget, max((need.batches for need in needs[1:-1]), default=1))
    available = budget.total_bytes - budget.driver_bytes - edge
    batch = budget.batch_bytes
    while True:
        each = [need.worker_bytes(batch) for need in needs]
        if sum(each) <= available:
            break
        if batch <= SMALLEST_BATCH_BYTES:
            raise BudgetError(
                f"{format_bytes(budget.total_bytes)} of memory is not enough for {len(needs)} stages at a time",
                hint=f"the smallest budget they can work with is "
                f"{format_bytes(sum(each) + budget.driver_bytes + edge)}",
            )
        batch = max(SMALLEST_BATCH_BYTES, batch // 2)
    most = [1] * len(needs)
    for heavy in (False, True):
        for _ in range(budget.wanted_workers):
            for number, need in enumerate(needs):
                used = sum(count * size for count, size in zip(most, each, strict=True))
                if need.heavy == heavy and most[number] < limits[number] and used + each[number] <= available:
                    most[number] += 1
    spare = available - sum(count * size for count, size in zip(most, each, strict=True))
    last_edge = min(LARGEST_LAST_EDGE_BYTES, spare // 4)
    left = (spare - last_edge) // sum(most)
    slots = gpu_slots(budget.gpus, on_gpus, most)
    limit = _packet_limit(edge, sum(most))
    before_last = len(needs) - 2  # what it hands on is not limited by shared memory
    pools = tuple(
        PoolShare(
            size + left,
            WORKER_BYTES + need.memory_bytes,
            count,
            found,
            batch * need.batches,
            batch * need.batches_after if number == before_last else min(batch * need.batches_after, limit),
        )
        for number, (need, size, count, found) in enumerate(zip(needs, each, most, slots, strict=True))
    )
    return StreamBudget(pools, batch, edge, last_edge)


def edge_bytes(budget: Budget, batches: int = 1) -> int:
    """What rows between stages may take in shared memory, without those for the last stage, if a stage processes so many
    batches at a time."""
    largest = EDGE_PACKETS * DEFAULT_BATCH_BYTES * batches
    return min(largest, max(SMALLEST_EDGE_BYTES, budget.total_bytes // 20))


def _packet_limit(edge_bytes: int, workers: int) -> int:
    """Two packets for each worker that writes some, so that it need not wait while one of them is read."""
    return max(SMALLEST_PACKET_BYTES, edge_bytes // (2 * workers))


def default_blocksize(input_bytes: int | None) -> int:
    """The block size for an input. It depends on nothing but the input, so that shards are the same on every machine.

    >>> [default_blocksize(size) for size in (10**6, 2 * 10**9, 10**12, 10**15)]
    [32000000, 32000000, 128000000, 2000000000]
    """
    if input_bytes is None:
        return DEFAULT_BLOCKSIZE
    largest = max(DEFAULT_BLOCKSIZE, input_bytes // MOST_PARTITIONS)
    return max(SMALLEST_DEFAULT_BLOCKSIZE, min(largest, input_bytes // WANTED_PARTITIONS))


def _wanted_workers(workers: int | str, cpus: int) -> int:
    if workers == "auto":
        return cpus
    if isinstance(workers, int) and not isinstance(workers, bool) and workers >= 1:
        return workers
    raise ParameterError(f"`workers` must be a positive number or 'auto', got {workers!r}")


def usable_cpus(root: Path = Path("/")) -> int:
    """Cores this process may run on, or fewer if the container limits CPU time."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _cgroup_folders(root, "cpu"):
        words = _read_words(folder / "cpu.max") or [
            *_read_words(folder / "cpu.cfs_quota_us"),
            *_read_words(folder / "cpu.cfs_period_us"),
        ]
        if len(words) == 2 and all(word.isdigit() for word in words):  # otherwise there is no limit: `max`, or -1
            quota, period = map(int, words)
            count = min(count, max(1, -(-quota // period)))
    return count


def usable_memory() -> int:
    """Bytes this process can use now: what is available, or less if a container limits it."""
    available = psutil.virtual_memory().available
    limit, used = cgroup_memory()
    return min(available, max(0, limit - used)) if limit is not None else available


def cgroup_memory(root: Path = Path("/")) -> tuple[int | None, int]:
    """The container's limit and its usage; of nested limits, the one that leaves the least.

    Cached files that were not used recently are not counted: the kernel evicts them before it refuses memory.
    """
    found = []
    for folder in _cgroup_folders(root, "memory"):
        for names, used_name in (
            (("memory.max", "memory.high"), "memory.current"),  # above `high`, processes are throttled
            (("memory.limit_in_bytes",), "memory.usage_in_bytes"),
        ):
            limits = [
                limit for name in names if (limit := _read_number(folder / name)) is not None and limit < NO_LIMIT
            ]
            if limits:
                used = max(0, (_read_number(folder / used_name) or 0) - _cached_files(folder))
                found.append((min(limits), used))
    return min(found, key=lambda pair: pair[0] - pair[1]) if found else (None, 0)


def _cached_files(folder: Path) -> int:
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    found = dict(line.split(" ", 1) for line in lines if " " in line)
    text = found.get("total_inactive_file") or found.get("inactive_file") or "0"
    return int(text) if text.isdigit() else 0


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """The cgroups that may limit this process, its own first. In a container, the path may be the host's and not exist."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            base = root / "sys/fs/cgroup" / controllers
            leaf = base / path.lstrip("/")
            folders += [leaf, *(parent for parent in leaf.parents if parent.is_relative_to(base))]
    return folders


def _read_number(path: Path) -> int | None:
    words = _read_words(path)
    return int(words[0]) if words and words[0].isdigit() else None


def _read_words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
