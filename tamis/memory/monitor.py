"""Samples the memory of the process tree during a run.

thread, every half second:   machine, container, each process of the tree, each GPU   -> Snapshot
                                 |                                                          |
                             on_snapshot (alerts)          ring, thinned with age  -> memory.table
"""

from __future__ import annotations

import io
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import psutil

from tamis.memory.gpu import GpuMemory, GpuPeak, GpuReader, GpuShare, find_reader, own_shares, with_shares
from tamis.memory.leaks import Thinned, Trend, fit_trend
from tamis.memory.overuse import OveruseWatch
from tamis.memory.tree import Snapshot, TreeReader, read_system, walk

if TYPE_CHECKING:
    import pyarrow as pa

KEEP = 1024
"""The number of snapshots kept, in memory and on file."""

PEAK_STEP = 1.01
"""A new peak is measured when it seems this much higher than the last: that walks all page tables."""

MOST_TREND_POINTS = 128
"""Enough for a slope; the cost of fitting is quadratic."""


def held_bytes(pid: int) -> int:
    """Memory of one process, shared pages counted by their share (PSS) where the kernel reports it."""
    walked = walk(pid)
    if walked is not None:
        return walked.pss_bytes
    try:
        return psutil.Process(pid).memory_info().rss
    except psutil.Error:
        return 0


def private_bytes(pid: int) -> int:
    """Memory that a process shares with no other, so that it does not depend on other processes."""
    walked = walk(pid)
    return walked.private_bytes if walked is not None else held_bytes(pid)


class MemoryMonitor:
    """Watches a process tree from a separate thread while the block runs.

    Memory and file stay bounded however long it takes: the newest half of `keep` snapshots is whole, the other half is
    spread evenly over the time before. Costs less than 1 % of a core at two snapshots a second of ten processes.

    >>> with MemoryMonitor() as monitor:
    ...     data = bytearray(50_000_000)
    >>> monitor.peak.held_bytes > 50_000_000, monitor.snapshots[-1].processes[0].role
    (True, 'driver')

    `roles` names processes by their number (and may add some outside the tree); `on_snapshot` is called in the thread
    and must be quick. What either raises ends the monitor and is raised at the end of the block. With `path`, snapshots
    are written there as Parquet every `flush_every_s` and at the end, one row per snapshot and process; a write that
    fails is noted in `problems` and tried again later. `before_bytes` are taken off what the tree holds, and
    `packet_bytes`, rows in shared memory between processes, are added. `limits` says how much some processes may hold,
    with those they start; `on_overuse` is called in the thread, once for a process that
    holds more. Without `whole_tree`, only the process itself and those of `roles` are watched; with `only_new`, no
    processes that it had started before.
    """

    def __init__(
        self,
        pid: int | None = None,
        every_s: float = 0.5,
        path: str | Path | None = None,
        roles: Callable[[], Mapping[int, str]] | None = None,
        on_snapshot: Callable[[Snapshot], None] | None = None,
        *,
        keep: int = KEEP,
        flush_every_s: float = 30.0,
        gpus: GpuReader | None = None,
        before_bytes: int = 0,
        packet_bytes: Callable[[], int] | None = None,
        limits: Callable[[], Mapping[int, int]] | None = None,
        on_overuse: Callable[[int, int], None] | None = None,
        whole_tree: bool = True,
        only_new: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pid = os.getpid() if pid is None else pid
        self.every_s, self.keep, self.flush_every_s = every_s, max(8, keep), flush_every_s
        self.path = None if path is None else Path(path)
        self.peak: Snapshot | None = None
        """The snapshot in which the tree held the most memory."""
        self.gpu_peaks: dict[int, GpuPeak] = {}
        """By the driver's number of the GPU."""
        self.problems: list[str] = []
        self._roles = roles or (lambda: {self.pid: "driver"} if self.pid == os.getpid() else {})
        self._on_snapshot = on_snapshot
        self._gpus = gpus
        self._before_bytes = before_bytes
        self._packet_bytes = packet_bytes or (lambda: 0)
        self._limits, self._on_overuse = limits or (lambda: {}), on_overuse or (lambda pid, held: None)
        self._overuse = OveruseWatch()
        self._stopped: set[int] = set()
        self._clock = clock
        self._began = self._flushed = clock()
        self._tree = TreeReader(self.pid, whole=whole_tree, only_new=only_new, clock=clock)
        self._snapshots: Thinned[Snapshot] = Thinned(self.keep)
        self._told: dict[int, dict[int, GpuShare]] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def snapshots(self) -> list[Snapshot]:
        """Oldest first: all of the newest, and older ones thinned out evenly."""
        with self._lock:
            return list(self._snapshots)

    @property
    def elapsed_s(self) -> float:
        """Seconds since it started."""
        return self._clock() - self._began

    def sample(self) -> Snapshot:
        """Take a snapshot now, in the calling thread."""
        shot = Snapshot(
            time=time.time(),
            elapsed_s=self.elapsed_s,
            system=read_system(),
            processes=self._tree.read(self._roles()),
            gpus=self._read_gpus(),
            before_bytes=self._before_bytes,
            packet_bytes=self._packet_bytes(),
        )
        highest = self.peak is None or shot.held_bytes > PEAK_STEP * self.peak.held_bytes
        if highest:  # an inexact reading counts shared pages that a process has just touched as its own
            shot = replace(shot, processes=self._tree.read(self._roles(), exact=True))
        pids = {process.pid for process in shot.processes}
        for gpu in shot.gpus:
            with self._lock:
                self.gpu_peaks.setdefault(gpu.index, GpuPeak(gpu.index)).note(gpu, pids)
        with self._lock:
            self._snapshots.append(shot)
            if highest and (self.peak is None or shot.held_bytes > self.peak.held_bytes):
                self.peak = shot
        if self._on_snapshot is not None:
            self._on_snapshot(shot)
        return shot

    def hear(self, pid: int, shares: Mapping[int, GpuShare]) -> None:
        """Add what another process reports about its GPU memory (its `own_shares()`)."""
        with self._lock:
            self._told[pid] = dict(shares)
            held = list(self._told.values())
            for index in shares:
                same = tuple(found[index] for found in held if index in found)
                peak = self.gpu_peaks.setdefault(index, GpuPeak(index))
                peak.note_own(GpuMemory(index, "", 0, 0, same))

    def trend(self, last_s: float = 60.0) -> Trend | None:
        """The trend of the tree's memory in bytes per second; None while there are too few snapshots."""
        return trend_of(self.snapshots, lambda shot: shot.held_bytes, last_s)

    def _read_gpus(self) -> tuple[GpuMemory, ...]:
        if self._gpus is None:
            self._gpus = find_reader()
        gpus = self._gpus()
        if not gpus:
            return ()
        with self._lock:
            told = [own_shares(gpus), *self._told.values()]
        return with_shares(gpus, told)

    # ----------------------------------------------------------------------------------------------------------- thread

    def __enter__(self) -> MemoryMonitor:
        self.sample()
        self._thread = threading.Thread(target=self._watch, name="tamis-memory", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._error is None:
            try:
                self.sample()
            except Exception as raised:  # noqa: BLE001 - raised below, as one from the thread
                self._error = raised
        self.flush()
        if self._error is not None and error is None:
            raise self._error

    def _watch(self) -> None:
        try:
            due = time.monotonic() + self.every_s
            while not self._stop.wait(max(0.0, min(due - time.monotonic(), self._overuse.wait_s))):
                self._look_for_overuse()
                if time.monotonic() < due:
                    continue
                due = time.monotonic() + self.every_s
                self.sample()
                if self.path is not None and self._clock() - self._flushed >= self.flush_every_s:
                    self.flush()
        except BaseException as error:  # noqa: BLE001 - raised at the end of the block
            self._error = error

    def _look_for_overuse(self) -> None:
        limits = {pid: limit for pid, limit in self._limits().items() if pid not in self._stopped}
        for pid, held in self._overuse.look(limits).items():
            self.sample()  # so that the peak includes it
            self._stopped.add(pid)
            self._on_overuse(pid, held)

    # ------------------------------------------------------------------------------------------------------------- file

    def flush(self) -> None:
        """Write the snapshots to `path` atomically."""
        self._flushed = self._clock()
        if self.path is None:
            return
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.unfinished")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(self.to_parquet())
            temporary.replace(self.path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            self.problems.append(f"cannot write {self.path}: {error}")

    def to_parquet(self) -> bytes:
        """The snapshots as a Parquet file."""
        import pyarrow.parquet

        buffer = io.BytesIO()
        pyarrow.parquet.write_table(self.table(), buffer, compression="zstd")
        return buffer.getvalue()

    def table(self) -> pa.Table:
        """One row per snapshot and process; figures of the machine are repeated in each row of a snapshot."""
        import pyarrow.json

        # Through JSON, because pyarrow imports pandas, which is slow, as soon as it converts Python values.
        lines = "".join(json.dumps(row) + "\n" for shot in self.snapshots for row in _rows(shot))
        schema = _schema()
        if not lines:
            return schema.empty_table()
        options = pyarrow.json.ParseOptions(explicit_schema=schema.set(0, pyarrow.field("time", pyarrow.int64())))
        read = pyarrow.json.ReadOptions(use_threads=False, block_size=max(1 << 20, len(lines)))
        return pyarrow.json.read_json(io.BytesIO(lines.encode()), read_options=read, parse_options=options).cast(schema)


def trend_of(snapshots: list[Snapshot], value: Callable[[Snapshot], float], last_s: float) -> Trend | None:
    """The trend of a figure over the last seconds, from at most `MOST_TREND_POINTS` snapshots or so."""
    if not snapshots:
        return None
    recent = [shot for shot in snapshots if shot.elapsed_s >= snapshots[-1].elapsed_s - last_s]
    while len(recent) > MOST_TREND_POINTS:
        recent = recent[::-2][::-1]  # keeps the newest
    return fit_trend([shot.elapsed_s for shot in recent], [value(shot) for shot in recent])


def _rows(shot: Snapshot) -> list[dict[str, Any]]:
    held = {share.pid: 0 for gpu in shot.gpus for share in gpu.shares}
    for gpu in shot.gpus:
        for share in gpu.shares:
            held[share.pid] += share.used_bytes or share.reserved_bytes or 0
    shared = {
        "time": int(shot.time * 1000),
        "elapsed_s": shot.elapsed_s,
        "tree_bytes": shot.held_bytes,
        "before_bytes": shot.before_bytes,
        "system_total_bytes": shot.system.total_bytes,
        "system_available_bytes": shot.system.available_bytes,
        "system_percent": shot.system.percent,
        "container_limit_bytes": shot.system.limit_bytes,
        "container_used_bytes": shot.system.limited_bytes if shot.system.limit_bytes is not None else None,
        "gpus": [
            {
                "index": gpu.index,
                "used_bytes": gpu.used_bytes,
                "total_bytes": gpu.total_bytes,
                "reserved_bytes": sum(share.reserved_bytes or 0 for share in gpu.shares),
                "allocated_bytes": sum(share.allocated_bytes or 0 for share in gpu.shares),
                "owners": [{"owner": name, "bytes": size} for name, size in sorted(gpu.owners().items())],
            }
            for gpu in shot.gpus
        ],
    }
    return [
        {
            "pid": process.pid,
            "role": process.role,
            "held_bytes": process.held_bytes,
            "rss_bytes": process.rss_bytes,
            "pss_bytes": process.pss_bytes,
            "private_bytes": process.private_bytes,
            "peak_bytes": process.peak_bytes,
            "swap_bytes": process.swap_bytes,
            "gpu_bytes": held.get(process.pid, 0),
            **shared,
        }
        for process in shot.processes
    ]


def _schema() -> pa.Schema:
    import pyarrow as pa

    numbers = ["held", "rss", "pss", "private", "peak", "swap", "gpu"]
    machine = ["tree", "before", "system_total", "system_available", "container_limit", "container_used"]
    gpu = [(f"{name}_bytes", pa.int64()) for name in ("used", "total", "reserved", "allocated")]
    owners = pa.list_(pa.struct([("owner", pa.string()), ("bytes", pa.int64())]))
    fields = [
        ("time", pa.timestamp("ms", "UTC")),
        ("elapsed_s", pa.float64()),
        ("pid", pa.int64()),
        ("role", pa.string()),
        *((f"{name}_bytes", pa.int64()) for name in numbers + machine),
        ("system_percent", pa.float64()),
        ("gpus", pa.list_(pa.struct([("index", pa.int64()), *gpu, ("owners", owners)]))),
    ]
    return pa.schema(fields)
