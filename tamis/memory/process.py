"""The memory of the current process: its usage, its peak, and returning free memory to the system."""

from __future__ import annotations

import ctypes
import functools
import gc
import io
import resource
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from tamis.mapped import release_pages
from tamis.memory.budget import BATCH_COPIES


def status() -> dict[str, int]:
    """The memory lines of /proc/self/status (`VmRSS`, `RssAnon`, ...) in bytes; empty where there is no such file."""
    try:
        text = Path("/proc/self/status").read_text()
    except OSError:
        return {}
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.startswith(("Vm", "Rss")):
            found[name] = int(value.split()[0]) * 1024
    return found


def data_bytes() -> int:
    """Private writable memory that this process has mapped; RLIMIT_DATA limits it."""
    return status().get("VmData", 0)


def own_bytes() -> int:
    """Resident memory that belongs to this process: private and shared anonymous pages, without pages of mapped files."""
    found = status()
    return found.get("RssAnon", found.get("VmRSS", 0)) + found.get("RssShmem", 0)


class Usage:
    """How much of the memory that was free at the start this process holds since."""

    def __init__(self) -> None:
        self.free_bytes = _free_bytes()
        self.start_bytes = own_bytes()

    def is_full(self, expected_bytes: int = 0) -> bool:
        """Whether it holds more than half of it, beside some copies of data of a known size."""
        if self.free_bytes is None:
            return False
        return own_bytes() - self.start_bytes - BATCH_COPIES * expected_bytes > self.free_bytes // 2


def _free_bytes() -> int | None:
    """How much more this process may allocate; None without a cap."""
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return None if limit == resource.RLIM_INFINITY else max(0, limit - data_bytes())


def reset_peak() -> int:
    """Reset the peak; returns the memory held now. Returns 0 where the kernel does not support it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 0
    return status().get("VmRSS", 0)


def peak_bytes() -> int:
    """The most memory held since `reset_peak`, or since the process started where the peak cannot be reset."""
    found = status().get("VmHWM")
    if found is not None:
        return found
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def start_threads(path: Path) -> None:
    """Make Arrow start its two thread pools, of one thread each, before a cap is set; `path` is for a temporary file.

    Arrow starts them on first use, when there may be no memory left for their stacks.
    """
    import pyarrow.json

    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    pyarrow.json.read_json(io.BytesIO(b"{}\n"))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, pa.schema([])):
        pass
    pa.ipc.open_file(pa.memory_map(str(path)))
    path.unlink()


def trim() -> None:
    """Return free memory to the system: collect garbage, release Arrow's pool and mapped files, trim arenas."""
    gc.collect()
    release_pages(code=True)
    pa.default_memory_pool().release_unused()
    libc = _libc()
    if libc is not None:
        libc.malloc_trim(0)


@functools.cache
def _libc() -> Any:
    """The C library if it has malloc_trim (glibc), else None."""
    library = ctypes.CDLL(None)
    return library if hasattr(library, "malloc_trim") else None
