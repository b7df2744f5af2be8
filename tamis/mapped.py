"""Release the pages of mapped files.

Each page of a mapped file that was touched counts as memory of the process until it is unmapped or released with `madvise`. A
released page stays in the page cache and is cheap to map again. The same applies to library code: the kernel maps sixteen pages
around each one that is executed, which is most of the memory of a process after start-up.
"""

from __future__ import annotations

import ctypes
import functools
import re
from pathlib import Path
from typing import Any

SPILL = ".spill"
"""Suffix of Arrow files with intermediate results of a run. Not `.arrow`, so that they are not mistaken for data."""

_DONTNEED = 4
"""MADV_DONTNEED, see madvise(2). Changes written to a shared file mapping are kept."""


_DATA = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) (?:r--p \S+ \S+ \S+ +/.*(?:%s)[^/\n]*|\S\S\Ss \S+ \S+ \S+ +/(?!dev/|memfd:).*)$"
    % b"|".join(re.escape(suffix.encode()) for suffix in (SPILL, ".arrow", ".feather", ".ipc")),
    re.MULTILINE,
)
"""Mappings of data files, not of libraries or devices. Arrow maps files privately, as libraries are; NumPy uses shared
mappings, as devices and memfd files do."""

_CODE = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) r-xp \S+ \S+ \S+ +/.*$", re.MULTILINE)


def release_pages(*, code: bool = False) -> None:
    """Release all pages of the files that this process has mapped, with `code` also those of libraries. Linux only.

    The mappings stay valid: pages that are read again are mapped again.
    """
    try:
        maps = Path("/proc/self/maps").read_bytes()
    except OSError:
        return
    # One search in all lines: a worker with many libraries has a thousand of them, and calls this after each chunk.
    for kind in (_DATA, _CODE) if code else (_DATA,):
        for found in kind.finditer(maps):
            first, last = int(found[1], 16), int(found[2], 16)
            _libc().madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _DONTNEED)


@functools.cache
def _libc() -> Any:
    return ctypes.CDLL(None)
