"""Which workers hold more memory than they may, including what their cap does not see.

RLIMIT_DATA bounds the private memory of one process. Shared anonymous memory (`mmap(-1)`, POSIX shared memory) and the memory
of processes that a worker starts are outside of it, so they are measured. Pages of mapped files that are only read are not
counted: the kernel can drop them at any time.

    every look     private and shared anonymous pages from /proc/PID/status     about 50 us per process
    if too much    the same by mapping, shared pages by their share (PSS)       some ms
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping

from tamis.memory.tree import descendants, kilobytes, read_file

LOOK_EVERY_S = 0.05
LOOK_SHARE = 0.01
"""Of a core, for looking; with many workers there is more time between looks."""

THOROUGH_EVERY = 10
"""Looks at processes that only main threads started, between looks at all."""

_MAPPING = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ (....) \S+ \S+ \d+ *(.*)$")


class OveruseWatch:
    """Looks at processes again and again, at a bounded cost: `wait_s` is how long to wait before the next look."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self.wait_s = LOOK_EVERY_S
        self._clock = clock
        self._looks = 0

    def look(self, limits: Mapping[int, int]) -> dict[int, int]:
        """Of the processes in `limits` (process id -> bytes), those that hold more with their descendants, and how much."""
        began = self._clock()
        found = {}
        for pid, limit in limits.items():
            family = [pid, *(descendants(pid) if self._looks % THOROUGH_EVERY == 0 else _main_descendants(pid))]
            if sum(map(_quick_bytes, family)) > limit:
                held = sum(map(_exact_bytes, {pid, *descendants(pid)}))
                if held > limit:
                    found[pid] = held
        self._looks += 1
        self.wait_s = max(LOOK_EVERY_S, (self._clock() - began) / LOOK_SHARE)
        return found


def _main_descendants(pid: int) -> list[int]:
    """The processes that main threads started; reading the children of every thread costs several times as much."""
    found, todo = [], [pid]
    for parent in todo:
        children = [int(child) for child in (read_file(f"/proc/{parent}/task/{parent}/children") or b"").split()]
        found += children
        todo += children
    return found


def _quick_bytes(pid: int) -> int:
    """Anonymous and shared memory of a process; pages it shares with its parent count in full."""
    data = read_file(f"/proc/{pid}/status") or b""
    fields = dict(line.split(b":", 1) for line in data.splitlines() if line.startswith(b"Rss"))
    return kilobytes(fields.get(b"RssAnon")) + kilobytes(fields.get(b"RssShmem"))


def _exact_bytes(pid: int) -> int:
    """The same by mapping: shared pages by their share, files that are only read left out."""
    total = 0
    counts = False
    for line in (read_file(f"/proc/{pid}/smaps", None) or b"").splitlines():
        mapping = _MAPPING.match(line)
        if mapping is not None:
            mode, file = mapping.groups()
            counts = b"w" in mode or not file.startswith(b"/")
        elif counts and line.startswith((b"Pss_Dirty:", b"SwapPss:")):
            total += kilobytes(line.split(b":", 1)[1])
    return total
