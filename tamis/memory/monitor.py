"""What the process tree really holds, sampled while a run goes on."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import psutil


def held_bytes(pid: int) -> int:
    """Memory of one process, shared pages counted by their share (PSS) where the kernel tells it."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        return psutil.Process(pid).memory_info().rss
    except psutil.Error:
        return 0


class TreeMemory:
    """The memory of this process and its workers, now and at its peak."""

    def __init__(self, every_s: float = 0.5) -> None:
        self.every_s = every_s
        self.now_bytes = 0
        self.peak_bytes = 0
        self._last = 0.0

    def sample(self, pids: Iterable[int], *, force: bool = False) -> bool:
        """Measure if the last time is long enough ago; whether it did."""
        if not force and time.monotonic() - self._last < self.every_s:
            return False
        self._last = time.monotonic()
        self.now_bytes = sum(held_bytes(pid) for pid in pids)
        self.peak_bytes = max(self.peak_bytes, self.now_bytes)
        return True
