"""Letting go of mapped files.

Of a mapped file, each page that was touched counts as held by the process until it is unmapped, or until the kernel is
told otherwise. It is in the page cache all the same, and comes back from there at little cost. The same holds for the code of
libraries, of which the kernel maps sixteen pages for each that is run: after a start that is most of what a process holds.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

SPILL = ".spill"
"""Suffix of Arrow files that pass between the steps of a run: not `.arrow`, which is that of data."""

_DONTNEED = 4
"""MADV_DONTNEED, see madvise(2): what was written to a shared mapping of a file is kept."""


def release_pages(*, code: bool = False) -> None:
    """Hold no more of the files this process has mapped, all of which can be read as before; of code neither. Linux only."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        addresses, rights, _, _, _, *path = line.split(maxsplit=5)
        if path and (_is_data(rights, path[0]) or (code and rights == "r-xp" and path[0].startswith("/"))):
            first, last = (int(address, 16) for address in addresses.split("-"))
            _libc().madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _DONTNEED)


def _is_data(rights: str, path: str) -> bool:
    """Whether a mapping is of a file that was written to be read this way, and not of a library or a device.

    Arrow maps what it reads privately, as libraries are; NumPy shares, as devices and memory that is called a file do.
    """
    if rights == "r--p":
        return any(suffix in path.rpartition("/")[2] for suffix in (SPILL, ".arrow", ".feather", ".ipc"))
    return rights.endswith("s") and path.startswith("/") and not path.startswith(("/dev/", "/memfd:"))


@functools.cache
def _libc() -> Any:
    return ctypes.CDLL(None)
