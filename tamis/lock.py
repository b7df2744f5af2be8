"""The lock of an output folder: one run writes to it at a time.

    on a disk              `flock` on `.tamis/lock`, released by the system when the process ends
    in an object store     the object `.tamis/lock`, with the name of its owner, renewed by a thread and taken over when stale

In a store with conditional writes (S3 since 2024, and servers that follow it), creating, renewing and taking over the object
each succeed for one run only: the object must be missing, or the same as when it was read. In other stores, two runs that start
within the same second may both believe for a moment that they own it; the one whose name is in the object continues.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import time
import uuid
from typing import IO, Any

from tamis.errors import LedgerError
from tamis.store import INTERNAL, Store

STALE_S = 120.0
"""A lock in an object store is taken over if its owner has not renewed it for this long."""

NAME = f"{INTERNAL}/lock"


class FolderLock:
    """The lock of an output folder on a disk."""

    notes: tuple[str, ...] = ()

    def __init__(self, store: Store) -> None:
        self._store = store
        self._file: IO[bytes] | None = None

    def take(self) -> None:
        file = (self._store.path / NAME).open("a+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            owner = file.read().decode(errors="replace").strip() or "another process"
            file.close()
            raise _in_use(self._store.root, owner) from None
        file.truncate(0)
        file.write(f"process {os.getpid()}".encode())
        file.flush()
        self._file = file

    def check(self) -> None:
        """The system holds the lock as long as the process lives."""

    def release(self) -> None:
        if self._file is not None:
            self._file.close()


class StoreLock:
    """The lock of an output in an object store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._owner = uuid.uuid4().hex
        self._tag: str | None = None
        """Identifies the lock object as this run wrote it last; None if the store has no conditional writes."""
        self._lost: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_renewing, name="tamis-lock", daemon=True)
        self.notes: tuple[str, ...] = ()

    def take(self) -> None:
        if self._store.writes_conditionally():
            self._take_conditionally()
        else:
            self._take_and_look()
            self.notes = (
                f"{self._store.root} has no conditional writes: do not start two runs with this output at the same moment",
            )
        self._thread.start()

    def _take_conditionally(self) -> None:
        found = self._store.read_tagged(NAME)
        if found is None:
            self._tag = self._store.create(NAME, self._content())
        else:
            self._check_stale(found[0])
            self._tag = self._store.replace(NAME, self._content(), found[1])
        if self._tag is None:
            raise _in_use(self._store.root, "a run that started at the same moment")

    def _take_and_look(self) -> None:
        self._check_stale(self._store.read(NAME) or b"{}")
        self._store.write(NAME, self._content())
        if _parsed(self._store.read(NAME) or b"{}").get("owner") != self._owner:
            raise _in_use(self._store.root, "a run that started at the same moment")

    def _check_stale(self, content: bytes) -> None:
        renewed = _parsed(content).get("renewed")
        if isinstance(renewed, (int, float)) and time.time() - renewed < STALE_S:
            raise _in_use(self._store.root, f"a run that was alive {time.time() - renewed:.0f} s ago")

    def _content(self) -> bytes:
        return json.dumps({"owner": self._owner, "renewed": time.time(), "process": os.getpid()}).encode()

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
            self._store.write(NAME, self._content())
            return
        tag = self._store.replace(NAME, self._content(), self._tag)
        if tag is not None:
            self._tag = tag
        elif _parsed(self._store.read(NAME) or b"{}").get("owner") == self._owner:
            found = self._store.read_tagged(NAME)  # an earlier renewal arrived, but not the answer to it
            self._tag = found[1] if found is not None else self._tag
        else:
            self._lost = "another run has taken it over"

    def check(self) -> None:
        """Raise if this run no longer owns the lock: another one may be writing."""
        if self._lost is not None:
            raise LedgerError(
                f"the lock of {self._store.root} is lost: {self._lost}",
                hint="rerun the same command when no other run writes there; committed work is kept",
            )

    def release(self) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._lost is None:
            with contextlib.suppress(OSError):
                self._store.remove(NAME)


def _parsed(content: bytes) -> dict[str, Any]:
    """What a lock object says; {} if it is damaged."""
    try:
        holder = json.loads(content)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _in_use(root: str, owner: str) -> LedgerError:
    return LedgerError(
        f"another run is writing to {root} ({owner})",
        hint="wait for it to end, or choose another --output",
    )
