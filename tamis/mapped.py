"""Release the pages of mapped files.

Each page of a mapped file that was touched counts as memory of the process until it is unmapped or released with `madvise`. A
released page stays in the page cache and is cheap to map again. The same applies to library code: the kernel maps sixteen pages
around each one that is executed, which is most of the memory of a process after start-up.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

SPILL = ".spill"
"""Suffix of Arrow files with intermediate results of a run. Not `.arrow`, so that they are not mistaken for data."""

_DONTNEED = 4
"""MADV_DONTNEED, see madvise(2). Changes written to a shared file mapping are kept."""


def release_pages(*, code: bool = False) -> None:
    """Release all pages of the files that this process has mapped, with `code` also those of libraries. Linux only.

    The mappings stay valid: pages that are read again are mapped again.
    """
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
    """Return whether a mapping is of a data file, not of a library or a device.

    Arrow maps files privately, as libraries are; NumPy uses shared mappings, as devices and memfd files do.
    """
    if rights == "r--p":
        return any(suffix in path.rpartition("/")[2] for suffix in (SPILL, ".arrow", ".feather", ".ipc"))
    return rights.endswith("s") and path.startswith("/") and not path.startswith(("/dev/", "/memfd:"))


@functools.cache
def _libc() -> Any:
    return ctypes.CDLL(None)
