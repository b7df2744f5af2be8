"""The lock of an output folder: one run writes to it at a time. Each shard of a run has a lock of its own (`shards.py`).

    on a disk              `flock` on `.tamis/lock`, released by the system when the process ends
    in an object store     the object `.tamis/lock`, with the name of its owner, renewed by a thread and taken over when stale

On some shared file systems, `flock` holds on one machine only. The file therefore has the name of its owner too, which the
owner reads before it writes a record. Times in an object store are those of the store's clock.

In a store with conditional writes (S3 since 2024, and servers that follow it), creating, renewing and taking over the object
each succeed for one run only: the object must be missing, or the same as when it was read. In other stores, two runs that start
within the same second may both believe for a moment that they own it; the one whose name is in the object continues.

The file systems of Google Cloud Storage and Azure (gcsfs 2026.10, adlfs 2026.8) can create an object only if it is missing, but
not replace one only if it is unchanged, which renewing and taking over need. They count as stores without conditional writes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, TypeAlias

from tamis.errors import LedgerError
from tamis.store import INTERNAL, Store

STALE_S = 120.0
"""A lock in an object store is taken over if its owner has not renewed it for this long."""

LOOKING_S = 0.4
"""How long a lock on a disk is tried: a process that only looks at it holds it for a moment."""

CHECK_S = 1.0
"""How often the name in a lock on a disk is read."""

NAME = f"{INTERNAL}/lock"


class FolderLock:
    """A lock in an output folder on a disk."""

    notes: tuple[str, ...] = ()

    def __init__(self, store: Store, name: str = NAME, **about: Any) -> None:
        """`about` is what others may learn about the owner."""
        self._store, self._name = store, name
        self._about = {"owner": uuid.uuid4().hex, "host": platform.node(), "process": os.getpid(), **about}
        self._file: IO[bytes] | None = None
        self._checked = 0.0

    @property
    def _path(self) -> Path:
        return self._store.path / self._name

    def take(self) -> None:
        """Take the lock, or raise an error. Tries for a moment, because `holder` takes it to look at it."""
        tries_until = time.monotonic() + LOOKING_S
        while not self._try():
            if time.monotonic() > tries_until:
                raise _in_use(self._store.root, owner_text(self._content()))
            time.sleep(LOOKING_S / 20)

    def _try(self) -> bool:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = self._path.open("a+b")
        except FileNotFoundError:
            return False  # the folder was removed at the end of another run
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file.fileno()).st_ino != self._path.stat().st_ino:
                raise FileNotFoundError  # removed at the end of another run, after it was opened here
        except OSError:
            file.close()
            return False
        file.truncate(0)
        file.write(json.dumps(self._about).encode())
        file.flush()
        self._file = file
        return True

    def holder(self) -> dict[str, Any] | None:
        """What is known about the process that holds the lock; None if no process does."""
        try:
            with self._path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return None
        except OSError:
            return _parsed(self._content())
        return None

    def _content(self) -> bytes:
        with contextlib.suppress(OSError):
            return self._path.read_bytes()
        return b""

    def is_mine(self) -> bool:
        """Whether the lock is still there, with the name of this owner."""
        return _parsed(self._content()).get("owner") == self._about["owner"]

    def check(self) -> None:
        """Raise if another run has taken the lock, which is possible where the file system does not share locks."""
        if time.monotonic() - self._checked > CHECK_S and (content := self._content()):
            self._checked = time.monotonic()
            if _parsed(content).get("owner") != self._about["owner"]:
                raise _lost(self._store.root, f"taken over by {owner_text(content)}")

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class StoreLock:
    """A lock of an output in an object store."""

    def __init__(self, store: Store, name: str = NAME, **about: Any) -> None:
        self._store, self._name = store, name
        self._owner = uuid.uuid4().hex
        self._about = {"host": platform.node(), "process": os.getpid(), **about}
        self._clock_s = 0.0
        """How far the clock of the store is ahead of the one of this machine."""
        self._tag: str | None = None
        """Identifies the lock object as this run wrote it last; None if the store has no conditional writes."""
        self._lost: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_renewing, name="tamis-lock", daemon=True)
        self.notes: tuple[str, ...] = ()

    def take(self) -> None:
        self._clock_s = self._store.clock_ahead_s()
        if self._store.writes_conditionally():
            self._take_conditionally()
        else:
            self._take_and_look()
            self.notes = (
                f"{self._store.root} has no conditional writes: do not start two runs with this output at the same moment",
            )
        self._thread.start()

    def _take_conditionally(self) -> None:
        found = self._store.read_tagged(self._name)
        if found is None:
            self._tag = self._store.create(self._name, self._content())
        else:
            self._check_stale(found[0])
            self._tag = self._store.replace(self._name, self._content(), found[1])
        if self._tag is None:
            raise _in_use(self._store.root, "a run that started at the same moment")

    def _take_and_look(self) -> None:
        self._check_stale(self._store.read(self._name) or b"{}")
        self._store.write(self._name, self._content())
        if _parsed(self._store.read(self._name) or b"{}").get("owner") != self._owner:
            raise _in_use(self._store.root, "a run that started at the same moment")

    def _check_stale(self, content: bytes) -> None:
        if self._age_s(content) < STALE_S:
            raise _in_use(self._store.root, f"{owner_text(content)}, alive {self._age_s(content):.0f} s ago")

    def _age_s(self, content: bytes) -> float:
        renewed = _parsed(content).get("renewed")
        return self._now() - renewed if isinstance(renewed, (int, float)) else float("inf")

    def _now(self) -> float:
        return time.time() + self._clock_s

    def _content(self) -> bytes:
        return json.dumps({"owner": self._owner, "renewed": self._now(), **self._about}).encode()

    def holder(self) -> dict[str, Any] | None:
        """What is known about the process that holds the lock; None if no process does."""
        self._clock_s = self._clock_s or self._store.clock_ahead_s()
        content = self._store.read(self._name)
        return _parsed(content) if content is not None and self._age_s(content) < STALE_S else None

    def is_mine(self) -> bool:
        """Whether the lock is still there, with the name of this owner."""
        return _parsed(self._store.read(self._name) or b"{}").get("owner") == self._owner

    def _keep_renewing(self) -> None:
        """In a thread, so that the lock does not become stale while the driver is busy or waits for the store."""
        renewed = time.monotonic()
        while self._lost is None and not self._ended.wait(STALE_S / 6):
            try:
                self.renew()
                renewed = time.monotonic()
            except Exception as error:  # noqa: BLE001 - raised in the driver, if it does not pass
                if time.monotonic() - renewed > STALE_S:
                    self._lost = f"it could not be renewed for {STALE_S:.0f} s: {error}"

    def renew(self) -> None:
        """Show other machines that this run is alive."""
        if self._tag is None:
            self._store.write(self._name, self._content())
            return
        tag = self._store.replace(self._name, self._content(), self._tag)
        if tag is not None:
            self._tag = tag
        elif _parsed(self._store.read(self._name) or b"{}").get("owner") == self._owner:
            found = self._store.read_tagged(self._name)  # an earlier renewal arrived, but not the answer to it
            self._tag = found[1] if found is not None else self._tag
        else:
            self._lost = "another run has taken it over"

    def check(self) -> None:
        """Raise if this run no longer owns the lock: another one may be writing."""
        if self._lost is not None:
            raise _lost(self._store.root, self._lost)

    def release(self) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._lost is None:
            with contextlib.suppress(OSError):
                self._store.remove(self._name)


def _parsed(content: bytes) -> dict[str, Any]:
    """What a lock object says; {} if it is damaged."""
    try:
        holder = json.loads(content)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


class Locks:
    """Several locks that one run holds."""

    def __init__(self) -> None:
        self.held: list[Lock] = []

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(note for lock in self.held for note in lock.notes))

    def check(self) -> None:
        for lock in self.held:
            lock.check()

    def release(self) -> None:
        while self.held:
            self.held.pop().release()


Lock: TypeAlias = FolderLock | StoreLock


def lock_of(store: Store, name: str = NAME, **about: Any) -> Lock:
    """The lock of a name in an output folder, not taken yet."""
    return FolderLock(store, name, **about) if store.local else StoreLock(store, name, **about)


def owner_text(content: bytes | Mapping[str, Any]) -> str:
    """Who holds a lock, from its content."""
    known = content if isinstance(content, Mapping) else _parsed(content)
    if "process" not in known:
        return "another process"
    host = known.get("host")
    return f"process {known['process']} on {host}" if host else f"process {known['process']}"


def _lost(root: str, why: str) -> LedgerError:
    return LedgerError(
        f"the lock of {root} is lost: {why}",
        hint="rerun the same command when no other run writes there; committed work is kept",
    )


def _in_use(root: str, owner: str) -> LedgerError:
    return LedgerError(
        f"another run is writing to {root} ({owner})",
        hint="wait for it to end, or choose another --output",
    )
