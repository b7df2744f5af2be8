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
AGENT = "tamis-agent-"
"""Begins the names of the folders that agents have on disk."""


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
    _remove_abandoned(SHARED_MEMORY, "tamis-")
    if not has_room(num_bytes):
        yield None
        return
    with _locked_folder(SHARED_MEMORY / f"tamis-{uuid.uuid4().hex}") as folder:
        yield folder


@contextmanager
def disk_folder(root: Path) -> Iterator[Path]:
    """A folder of this process below `root`. If the process is killed, the next one that needs a folder there removes it."""
    root.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(root, AGENT)
    with _locked_folder(root / f"{AGENT}{uuid.uuid4().hex}") as folder:
        yield folder


def has_room(num_bytes: int) -> bool:
    return shutil.disk_usage(SHARED_MEMORY).free >= 2 * num_bytes


@contextmanager
def _locked_folder(folder: Path) -> Iterator[Path]:
    folder.mkdir(mode=0o700)
    try:
        with (folder / "locking").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released by the kernel, however this process ends
            (folder / "locking").rename(folder / "lock")  # only now, or another process could find it unlocked
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(root: Path, prefix: str) -> None:
    """Remove what processes left behind that were killed."""
    for folder in root.glob(f"{prefix}*"):
        try:
            with (folder / "lock").open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # in use, of another user, or just being made
