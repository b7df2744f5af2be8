"""`tamis memory [PID]`: the memory of the machine, of its GPUs and of a process tree, once or at intervals."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tamis.errors import ParameterError
from tamis.parameters import format_bytes, plural

if TYPE_CHECKING:
    from tamis.memory.tree import ProcessMemory, Snapshot

LARGEST = 10
"""Processes shown if no PID is given."""


def show_memory(
    pid: int | None,
    *,
    as_json: bool = False,
    watch_s: float | None = None,
    print_result: Callable[[str], None],
    wait: Callable[[float], object] = time.sleep,
) -> None:
    """Print the memory of the tree of `pid`, or of the largest processes, once or every `watch_s` until it ends.

    As JSON, this is one object or, with `watch_s`, one object per line.
    """
    import psutil

    from tamis.memory.gpu import published_shares
    from tamis.memory.monitor import MemoryMonitor

    if watch_s is not None and not watch_s > 0:
        raise ParameterError(f"`--watch` must be a positive number of seconds, got {watch_s:g}")
    if pid is not None and (pid <= 0 or not psutil.pid_exists(pid)):
        raise ParameterError(
            f"there is no process {pid}", hint="`tamis memory` without a PID lists the largest processes"
        )
    monitor = MemoryMonitor(pid, roles=None if pid is not None else dict, keep=8)
    while True:
        for other, shares in published_shares().items():
            monitor.hear(other, shares)
        shot = monitor.sample()
        if pid is None:
            processes = largest_processes()
        else:
            processes = list(shot.processes)
            if not processes:
                return  # the process has ended
        if as_json:
            print_result(
                json.dumps(memory_dict(shot, processes), ensure_ascii=False, indent=2 if watch_s is None else None)
            )
        else:
            print_result(memory_text(shot, processes, tree=pid is not None))
        if watch_s is None:
            return
        wait(watch_s)


def largest_processes(count: int = LARGEST) -> list[ProcessMemory]:
    """The processes with the most resident memory, as far as permissions allow."""
    import psutil

    from tamis.memory.tree import read_process

    sizes = [
        (process.info["memory_info"].rss, process.pid)
        for process in psutil.process_iter(["memory_info"])
        if process.info["memory_info"] is not None
    ]
    found = [read_process(pid) for size, pid in sorted(sizes, reverse=True)[:count] if size]
    return [process for process in found if process is not None]


def memory_dict(shot: Snapshot, processes: list[ProcessMemory]) -> dict[str, Any]:
    """Everything a snapshot says, as JSON can hold it."""
    return {
        "time": shot.time,
        "system": asdict(shot.system),
        "processes": [{**asdict(process), "held_bytes": process.held_bytes} for process in processes],
        "held_bytes": sum(process.held_bytes for process in processes),
        "gpus": [{**asdict(gpu), "percent": round(gpu.percent, 1)} for gpu in shot.gpus],
    }


def memory_text(shot: Snapshot, processes: list[ProcessMemory], *, tree: bool) -> str:
    """A snapshot as a table."""
    from tamis.console import table  # not at the top: `tamis --help` imports this module

    system = shot.system
    lines = [
        f"machine    {format_bytes(system.total_bytes)}, {format_bytes(system.available_bytes)} available, "
        f"{system.percent:.0f} % in use"
    ]
    if system.limit_bytes is not None:
        part = 100 * system.limited_bytes / system.limit_bytes
        lines.append(
            f"container  {format_bytes(system.limit_bytes)}, {format_bytes(system.limited_bytes)} counted, {part:.0f} %"
        )
    for gpu in shot.gpus:
        lines.append(
            f"GPU {gpu.index:<6} {format_bytes(gpu.total_bytes)}, {format_bytes(gpu.used_bytes)} in use, "
            f"{gpu.percent:.0f} % ({gpu.name})"
        )
        if owners := gpu.owners():
            lines.append(" " * 11 + ", ".join(f"{name} {format_bytes(size)}" for name, size in sorted(owners.items())))
    if tree:
        lines.append(f"tree       {format_bytes(shot.held_bytes)} in {plural(len(processes), 'process')}")
    header = ["pid", "role" if tree else "name", "held", "resident", "private", "peak", "swap", "gpu"]
    rows = [[str(each.pid), each.role, *map(_size, _figures(each, shot))] for each in processes]
    return "\n".join([*lines, "", table(header, rows, right=[0, *range(2, len(header))])])


def _figures(process: ProcessMemory, shot: Snapshot) -> list[int | None]:
    shares = [share.used_bytes for gpu in shot.gpus for share in gpu.shares if share.pid == process.pid]
    on_gpus = sum(size for size in shares if size is not None) if shares else None
    return [
        process.held_bytes,
        process.rss_bytes,
        process.private_bytes,
        process.peak_bytes,
        process.swap_bytes or None,
        on_gpus,
    ]


def _size(value: int | None) -> str:
    return "" if value is None else format_bytes(value)
