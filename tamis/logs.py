"""A log: records in the order in which they were written, by one writer at a time.

    on a disk              one file with a line per record, `crc32 json`, appended and synced
    in an object store     which cannot append: numbered objects with a few such lines each

The writer of a log holds its lock. Others may read it meanwhile: only complete lines count.
"""

from __future__ import annotations

import io
import json
import os
import re
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from tamis.errors import DiskFull, LedgerError, SinkError, is_full_disk
from tamis.store import INTERNAL, Store

SHARDS = f"{INTERNAL}/shards"
"""The folder with the logs and locks of the shards of a run, until they are merged."""


class Log:
    """One log of an output folder: the ledger itself (without a name), or the one of a shard."""

    def __init__(self, store: Store, name: str = "") -> None:
        self.store, self.name = store, name
        self._path = f"{SHARDS}/{name}.log" if name else f"{INTERNAL}/ledger.log"
        self._objects = f"{SHARDS}/{name}-" if name else f"{INTERNAL}/ledger/"
        self._file: io.FileIO | None = None
        self._read_bytes = 0
        self._segment = 0
        self._conditional: bool | None = None

    # -------------------------------------------------------------------------------------------------------- reading

    def read(self, listed: Sequence[str] | None = None, *, whole: bool = False) -> list[bytes]:
        """The lines since the last call. With `whole`, one that was cut short too, which is damaged.

        `listed` are the names in the folder of the log, if they are known.
        """
        if self.store.local:
            return self._read_file(whole=whole)
        folder, _, prefix = self._objects.rpartition("/")
        pattern = re.compile(rf"{re.escape(prefix)}(\d{{8}})\.log")
        names = self.store.names(folder) if listed is None else listed
        found = sorted(int(match[1]) for match in map(pattern.fullmatch, names) if match)
        new = [number for number in found if number > self._segment]
        self._segment = max([self._segment, *new])
        data = self.store.read_all([self._name_of(number) for number in new])
        return [line for each in data for line in each.splitlines()]

    def _read_file(self, *, whole: bool) -> list[bytes]:
        try:
            with (self.store.path / self._path).open("rb") as file:
                file.seek(self._read_bytes)
                data = file.read()
        except (FileNotFoundError, NotADirectoryError):
            return []
        complete = data if whole else data[: data.rfind(b"\n") + 1]
        self._read_bytes += len(complete)
        return complete.splitlines()

    # -------------------------------------------------------------------------------------------------------- writing

    def open(self) -> None:
        """Begin to write, after everything was read."""
        if not self.store.local:
            self._conditional = self.store.writes_conditionally()
            return
        file = self._file = self._open_file()
        size = os.fstat(file.fileno()).st_size
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
            file.write(b"\n")  # the last append was cut short

    def _open_file(self) -> io.FileIO:
        """The file to append to, unbuffered: close() must not retry a write that failed."""
        path = self.store.path / self._path
        while True:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                return path.open("a+b", buffering=0)
            except FileNotFoundError:
                continue  # another run ended in between, and removed the folder of the shards

    def append(self, records: Iterable[dict[str, Any]]) -> None:
        """Write records and sync them to disk before returning."""
        data = b"".join(map(format_line, records))
        try:
            if self._file is not None:
                rest = memoryview(data)
                while rest:
                    rest = rest[self._file.write(rest) :]
                os.fsync(self._file.fileno())
                self._read_bytes = os.fstat(self._file.fileno()).st_size
            else:
                self._segment += 1
                self._write_object(data)
        except OSError as error:
            full = is_full_disk(error)
            what = "the disk is full" if full else str(error.strerror or error)
            raise (DiskFull if full else SinkError)(
                f"cannot write the ledger of {self.store.root}: {what}",
                hint="free some space or fix the permissions, then rerun the same command: committed work is kept",
            ) from error

    def _write_object(self, data: bytes) -> None:
        name = self._name_of(self._segment)
        if not self._conditional:
            self.store.write(name, data)
        elif self.store.create(name, data) is None and self.store.read(name) != data:
            raise LedgerError(
                f"another run has written to the ledger of {self.store.root}",
                hint="rerun the same command when no other run writes there; committed work is kept",
            )

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def remove(self) -> None:
        """Remove the log, when its records are in another one."""
        if self.store.local:
            self.store.remove(self._path)
            return
        for number in range(1, self._segment + 1):
            self.store.remove(self._name_of(number))

    def _name_of(self, segment: int) -> str:
        return f"{self._objects}{segment:08d}.log"


def format_line(record: dict[str, Any]) -> bytes:
    body = json.dumps(record, separators=(",", ":"), sort_keys=True).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The record on a line, or None if it is damaged."""
    checksum, _, body = line.partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(body):
            return None
        record = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
