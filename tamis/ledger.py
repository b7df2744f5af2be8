"""Which partitions are committed, under which inputs and settings: resuming is skipping those.

    .tamis/ledger.log            on a disk: one line per record, `crc32 json`, appended and synced
    .tamis/ledger/00000007.log   in an object store, where nothing can be appended: a few such lines per object

A record is believed only if its checksum holds. Losing one costs the work of its partition, never its correctness: the
partition is done again under the same file names.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import IO, Any

from tamis.errors import DiskFull, LedgerError, SinkError, is_full_disk
from tamis.operators import Shard
from tamis.report import Account
from tamis.store import INTERNAL, Store

LOCK_STALE_S = 120.0
"""A lock in an object store whose owner has not renewed it for so long is taken over."""


@dataclass
class Commit:
    """A partition that is done: what it was made from (`key`), what it gave, and the account of its rows."""

    stage: int
    key: str
    partition: int
    shards: list[Shard]
    account: Account
    extra: dict[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        return {
            "kind": "commit",
            "stage": self.stage,
            "key": self.key,
            "partition": self.partition,
            "shards": [asdict(shard) for shard in self.shards],
            "account": self.account.as_dict(),
            "extra": self.extra,
        }

    @staticmethod
    def from_record(record: dict[str, Any]) -> Commit:
        return Commit(
            stage=record["stage"],
            key=record["key"],
            partition=record["partition"],
            shards=[Shard(**shard) for shard in record["shards"]],
            account=Account.from_dict(record["account"]),
            extra=record["extra"],
        )


class Ledger:
    """The open record of one output folder, held by one run at a time."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.commits: dict[tuple[int, str], Commit] = {}
        self.steps: dict[tuple[int, str], Any] = {}
        """Results of the calls a Gather made while resolving."""
        self.plan: dict[str, Any] | None = None
        self.finished: dict[str, Any] | None = None
        self.damaged = 0
        self._file: io.FileIO | None = None
        self._segment = 0
        self._owner = uuid.uuid4().hex
        self._lock: IO[bytes] | None = None
        self._lock_renewed = 0.0

    # ------------------------------------------------------------------------------------------ opening and closing

    def __enter__(self) -> Ledger:
        self._take_lock()
        try:
            for record in self._records():
                self._apply(record)
            if self.store.local:
                # Without a buffer: what could not be written must not be tried again when the file is closed.
                self._file = (self.store.path / INTERNAL / "ledger.log").open("ab", buffering=0)
        except BaseException:
            self._release_lock()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        if self._file is not None:
            self._file.close()
        self._release_lock()

    def _records(self) -> Iterator[dict[str, Any]]:
        for data in self._segments():
            for line in data.splitlines():
                record = parse_line(line)
                if record is None:
                    self.damaged += 1
                else:
                    yield record
            if self.store.local and data and not data.endswith(b"\n"):
                # The last append was cut short: start the next record on a line of its own.
                with (self.store.path / INTERNAL / "ledger.log").open("ab") as file:
                    file.write(b"\n")

    def _segments(self) -> Iterator[bytes]:
        if self.store.local:
            yield self.store.read(f"{INTERNAL}/ledger.log") or b""
            return
        for name in self.store.names(f"{INTERNAL}/ledger"):
            self._segment = max(self._segment, int(name.partition(".")[0]))
            yield self.store.read(f"{INTERNAL}/ledger/{name}") or b""

    # ------------------------------------------------------------------------------------------------------- records

    def append(self, records: Iterable[dict[str, Any]]) -> None:
        """Write records and make them durable before returning."""
        new = list(records)
        if not new:
            return
        data = b"".join(format_line(record) for record in new)
        try:
            if self._file is not None:
                rest = memoryview(data)
                while rest:
                    rest = rest[self._file.write(rest) :]
                os.fsync(self._file.fileno())
            else:
                self._segment += 1
                self.store.write(f"{INTERNAL}/ledger/{self._segment:08d}.log", data)
        except OSError as error:
            full = is_full_disk(error)
            what = "the disk is full" if full else str(error.strerror or error)
            raise (DiskFull if full else SinkError)(
                f"cannot write the ledger of {self.store.root}: {what}",
                hint="make room or mend permissions, then run the same command again: committed work is kept",
            ) from error
        for record in new:
            self._apply(record)

    def _apply(self, record: dict[str, Any]) -> None:
        kind = record["kind"]
        if kind == "commit":
            commit = Commit.from_record(record)
            self.commits[commit.stage, commit.key] = commit
        elif kind == "step":
            self.steps[record["stage"], record["key"]] = record["result"]
        elif kind == "drop":
            self.commits.pop((record["stage"], record["key"]), None)
        elif kind == "plan":
            self.plan = record
            self.finished = None
        elif kind == "finished":
            self.finished = record

    @property
    def is_new(self) -> bool:
        """Whether no run has written to this folder before, as far as can be told."""
        return self.plan is None and not self.commits and not self.damaged

    def drop(self, stale: Iterable[Commit]) -> None:
        """Forget commits whose input or settings changed."""
        self.append({"kind": "drop", "stage": commit.stage, "key": commit.key} for commit in list(stale))

    def clear(self) -> None:
        """Forget everything."""
        self.drop(self.commits.values())
        self.plan = None
        self.finished = None

    # ------------------------------------------------------------------------------------------------------ the lock

    def _take_lock(self) -> None:
        if self.store.local:
            lock = (self.store.path / INTERNAL / "lock").open("a+b")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.seek(0)
                owner = lock.read().decode(errors="replace").strip() or "another process"
                lock.close()
                raise _in_use(self.store.root, owner) from None
            lock.truncate(0)
            lock.write(f"process {os.getpid()}".encode())
            lock.flush()
            self._lock = lock
            return
        found = self.store.read(f"{INTERNAL}/lock")
        if found:
            holder = json.loads(found)
            if time.time() - holder["renewed"] < LOCK_STALE_S:
                raise _in_use(self.store.root, f"a run that was alive {time.time() - holder['renewed']:.0f} s ago")
        self.renew_lock(force=True)
        # Two runs may have seen no lock; the one whose name stands in the object goes on.
        if json.loads(self.store.read(f"{INTERNAL}/lock") or b"{}").get("owner") != self._owner:
            raise _in_use(self.store.root, "a run that started at the same moment")

    def renew_lock(self, *, force: bool = False) -> None:
        """Tell other machines that this run is alive; cheap, called often."""
        if self.store.local or (not force and time.monotonic() - self._lock_renewed < LOCK_STALE_S / 4):
            return
        holder = {"owner": self._owner, "renewed": time.time(), "process": os.getpid()}
        self.store.write(f"{INTERNAL}/lock", json.dumps(holder).encode())
        self._lock_renewed = time.monotonic()

    def _release_lock(self) -> None:
        if self._lock is not None:
            self._lock.close()
        elif not self.store.local:
            with contextlib.suppress(OSError):
                self.store.remove(f"{INTERNAL}/lock")


def _in_use(root: str, owner: str) -> LedgerError:
    return LedgerError(
        f"another run is writing to {root} ({owner})",
        hint="wait for it to end, or choose another --output",
    )


def format_line(record: dict[str, Any]) -> bytes:
    body = json.dumps(record, separators=(",", ":"), sort_keys=True).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The record on a line, or None if it is not whole."""
    checksum, _, body = line.partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(body):
            return None
    except ValueError:
        return None
    return json.loads(body)
