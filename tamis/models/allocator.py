"""Freed memory that is used again while a network runs on a CPU.

glibc maps every block of more than 32 MB for itself and unmaps it when it is freed. A network that allocates such blocks in
each layer has the kernel clear the same memory again and again, for a third of the time of Whisper's encoder or more.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -2, -3, -4  # malloc.h
_DEFAULT_TOP_PAD, _DEFAULT_MMAP_MAX = 128 * 1024, 65_536
_LARGEST_THRESHOLD = 32 * 2**20
_HEAP = 2 * _LARGEST_THRESHOLD
"""Threads allocate from heaps of this size, and a heap that becomes empty is unmapped unless the padding is as large."""
_NEVER = 2**31 - 1


@contextmanager
def reusing_freed_memory() -> Iterator[None]:
    """Let the C library keep blocks that are freed, and allocate from them, in all threads of the process.

    Afterwards its thresholds are those that it sets itself once a block of 32 MB was freed. What it kept is used by later
    allocations, and returned to the system by `malloc_trim`. Only glibc has these settings; elsewhere nothing happens.
    """
    library = _glibc()
    if library is None:
        yield
        return
    _set(library, {_MMAP_MAX: 0, _TRIM_THRESHOLD: _NEVER, _TOP_PAD: _HEAP})
    try:
        yield
    finally:
        _set(library, {_MMAP_MAX: _DEFAULT_MMAP_MAX, _TOP_PAD: _DEFAULT_TOP_PAD})
        _set(library, {_MMAP_THRESHOLD: _LARGEST_THRESHOLD, _TRIM_THRESHOLD: _HEAP})


def _set(library: Any, settings: dict[int, int]) -> None:
    for name, value in settings.items():
        library.mallopt(name, value)


@functools.cache
def _glibc() -> Any:
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "gnu_get_libc_version") else None
