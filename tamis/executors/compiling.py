"""Kernels compiled for the first time, without harm to the budget.

A compiler takes memory and keeps it, and a worker that runs out of memory in the middle of it cannot be saved. So the cap
is lifted while a worker compiles, one worker compiles at a time, and when the step that needed the kernel is done the worker
gives up its task and ends: the kernel is on disk by then, and a fresh worker that holds no compiler takes the task over.

worker A   compiles, holding the lock ............ says so, ends      -> its task is handed out again
worker B   needs the same kernel: waits ................ ends         -> its task too; both find the kernel on disk
"""

from __future__ import annotations

import fcntl
import os
import resource
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


class KernelsCompiled(BaseException):
    """Raised in a worker between two steps; no error, so nothing that looks for errors may catch it."""


class Compiling:
    """What one worker process compiles. `announce` is called when it begins."""

    def __init__(self, announce: Callable[[], None]) -> None:
        self.happened = False
        self._announce = announce
        self._listening = False
        self._lock: int | None = None

    def look(self) -> None:
        """Between two steps: give up what is being done if a kernel was compiled for it."""
        if self.happened:
            raise KernelsCompiled
        if not self._listening and "numba" in sys.modules:
            self._listen()

    def release(self) -> None:
        """After a task or call: what was compiled for it is on disk, and others may go on."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _listen(self) -> None:
        from numba.core import event

        outer = self

        class Listener(event.Listener):
            def on_start(self, found: Any) -> None:
                outer._begin(found.data["dispatcher"])

            def on_end(self, found: Any) -> None:
                """The kernel is written to disk after this, so the lock is kept until the step or the process ends."""

        event.register("numba:compile", Listener())
        self._listening = True

    def _begin(self, dispatcher: Any) -> None:
        # What is not kept on disk has to be compiled by every process anew, and is somebody else's.
        if self.happened or not dispatcher.py_func.__module__.startswith("tamis."):
            return
        lock = _open_lock()
        if lock is not None and not _take(lock):
            os.close(lock)
            raise KernelsCompiled  # another worker has compiled, most likely the same
        self._lock = lock
        self.happened = True
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
        self._announce()


def _open_lock() -> int | None:
    """The file workers of this user take turns over; None where there can be none, and turns are then not taken.

    The folder belongs to everybody, so what others put there under this name is neither followed nor waited for.
    """
    path = Path(tempfile.gettempdir()) / f"tamis-compiling-{os.getuid()}.lock"
    try:
        lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError:
        return None
    if os.fstat(lock).st_uid == os.getuid():
        return lock
    os.close(lock)
    return None


def _take(lock: int) -> bool:
    """Whether the lock was free, or there is none to be had; if another held it, returns when that one let go."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return False
    except OSError:
        return True  # a file system without locks
    return True
