"""Kernels that are compiled for the first time, within the memory budget.

The compiler allocates memory and keeps it, and a worker that runs out of memory while compiling crashes. So a worker's cap is
lifted while it compiles, one worker compiles at a time, and once the step that needed the kernel is done the worker returns
its task and exits. The kernel is on disk by then, and a new worker takes over the task without loading the compiler.

worker A   compiles, holding the lock ............ reports it, exits  -> its task is handed out again
worker B   needs the same kernel: waits ................ exits        -> its task too; both find the kernel on disk
"""

from __future__ import annotations

import fcntl
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ANNOUNCED_AFTER_S = 2.0
"""A user who sees no progress for longer wants to know why; a kernel or two that take a moment are not worth a line."""


class KernelsCompiled(BaseException):
    """Raised in a worker between two steps. Not an error, so `except Exception` must not catch it."""


class Compiling:
    """Notices when this worker process compiles a kernel; calls `announce` when it begins."""

    def __init__(self, announce: Callable[[], None]) -> None:
        self.happened = False
        self._announce = announce
        self._listening = False
        self._lock: int | None = None

    def look(self) -> None:
        """Between two steps: abandon the task if a kernel was compiled for it."""
        if self.happened:
            raise KernelsCompiled
        if not self._listening and "numba" in sys.modules:
            self._listen()

    def release(self) -> None:
        """After a task or call, when its kernels are on disk: let other workers compile."""
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
                """The kernel is written to disk after this event, so the lock is held until the step or the process ends."""

        event.register("numba:compile", Listener())
        self._listening = True

    def _begin(self, dispatcher: Any) -> None:
        # Kernels outside this package are not cached on disk by us, and every process compiles them.
        if self.happened or not dispatcher.py_func.__module__.startswith("tamis."):
            return
        lock = _open_lock()
        if lock is not None and not _take(lock):
            os.close(lock)
            raise KernelsCompiled  # another worker compiled, most likely the same kernel
        self._lock = lock
        self.happened = True
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
        self._announce()


class CompilingTime:
    """In the driver: how long workers have compiled. Calls `announce` once if that takes longer than a moment."""

    def __init__(self, announce: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._announce, self._clock = announce, clock
        self._begun: dict[int, float] = {}
        self._ended_s = 0.0
        self._announced = False

    def begin(self, worker: int) -> None:
        self._begun[worker] = self._clock()

    def end(self, worker: int) -> None:
        if worker in self._begun:
            self._ended_s += self._clock() - self._begun.pop(worker)

    def look(self) -> None:
        """Called often."""
        if self._announced or not self._begun:
            return
        now = self._clock()
        if self._ended_s + sum(now - begun for begun in self._begun.values()) >= ANNOUNCED_AFTER_S:
            self._announced = True
            self._announce()


def _open_lock() -> int | None:
    """Open the lock file that this user's workers share; None where it cannot be opened, and then there is no lock.

    The folder is shared with other users, so a link or a file of another user under this name is not used.
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
    """Take the lock. False if another worker held it, after that worker has released it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return False
    except OSError:
        return True  # a file system without locks
    return True
