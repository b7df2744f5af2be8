"""Folders for packets on one machine, in shared memory and on disk, and their removal."""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Folders:
    """Where the workers of a machine write packets."""

    shared: Path
    disk: Path

    def in_memory(self, path: str) -> bool:
        return self.shared != self.disk and Path(path).is_relative_to(self.shared)

    def remove(self, paths: Iterable[str]) -> None:
        """Remove packets."""
        for path in paths:
            if Path(path).parent in (self.shared, self.disk):
                with suppress(FileNotFoundError):
                    Path(path).unlink()

    def remove_others(self, stem: str, known: Collection[str]) -> None:
        """Remove the packets of an attempt that are not known."""
        for folder in {self.shared, self.disk}:
            self.remove(str(file) for file in folder.glob(f"{stem}-*") if str(file) not in known)


@contextmanager
def shared_folder(num_bytes: int) -> Iterator[Path | None]:
    """A folder in shared memory, removed at the end however the process ends; None if there is not enough memory."""
    if not SHARED_MEMORY.is_dir() or not os.access(SHARED_MEMORY, os.W_OK):
        yield None
        return
    _remove_abandoned()
    if not has_room(num_bytes):
        yield None
        return
    folder = SHARED_MEMORY / f"tamis-{uuid.uuid4().hex}"
    folder.mkdir(mode=0o700)
    try:
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released by the kernel, however this process ends
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def has_room(num_bytes: int) -> bool:
    return shutil.disk_usage(SHARED_MEMORY).free >= 2 * num_bytes


def _remove_abandoned() -> None:
    """Remove what runs left behind that were killed."""
    for folder in SHARED_MEMORY.glob("tamis-*"):
        try:
            with (folder / "lock").open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # in use, of another user, or just being made
