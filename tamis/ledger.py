"""The ledger: which partitions are committed, and from which inputs and settings. A resumed run skips those.

    .tamis/ledger.log            on a disk: one line per record, `crc32 json`, appended and synced
    .tamis/ledger/00000007.log   in an object store, which cannot append: a few such lines per object

A record counts only if its checksum is correct, it has the expected fields, and it names only files that a run could
have written. Any other line is damaged. A damaged line costs the work of its partition: it is processed again, and
writes files of the same names.
"""

from __future__ import annotations

import functools
import io
import json
import os
import re
import typing
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any

from tamis.errors import DiskFull, SinkError, is_full_disk
from tamis.lock import FolderLock, StoreLock
from tamis.memory.spill import stem
from tamis.operators import Shard
from tamis.parameters import fits
from tamis.report import Account, Report
from tamis.store import INTERNAL, LINES, TABLE, Store

SHARD_NAME = re.compile(r"part-\d{6,}[\w.-]*", re.ASCII)
"""The name of a file of rows. `_has_own_names` also checks the number and the names in the internal folder."""

_SEGMENT = re.compile(r"\d{8}\.log")


@dataclass
class Commit:
    """A finished partition: a hash of its input and settings (`key`), its files, and the account of its rows."""

    stage: int
    key: str
    partition: int
    shards: list[Shard]
    account: Account
    extra: dict[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        return {"kind": "commit"} | asdict(self)

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> Commit:
        """Raise ValueError if the record is not one that `record` could have written."""
        values = {name: value for name, value in record.items() if name != "kind"}
        shards = [Shard(**shard) for shard in values["shards"]]
        commit = Commit(**values | {"shards": shards, "account": Account.from_dict(values["account"])})
        _check_types(commit)
        _check_extra(commit.extra)
        if not _has_own_names(commit):
            raise ValueError("it names files that no run writes")
        return commit


def _has_own_names(commit: Commit) -> bool:
    """Whether all files of a commit have names that its partition could have given them."""
    own = re.escape(stem(commit.partition))
    side = rf"{own}-stage-{commit.stage + 1}"
    numbered = rf"{side}(?:-\d{{4}})?"
    internal = rf"{re.escape(INTERNAL)}/(?:rejects/{numbered}\{TABLE}|failed/{numbered}\{LINES}|written/{side}\{TABLE})"
    names = re.compile(rf"{own}(?!\d)[\w.-]*|{internal}", re.ASCII)
    return all(names.fullmatch(shard.name) for shard in commit.shards)


def _check_extra(extra: Mapping[str, Any]) -> None:
    """Raise ValueError if what a stage leaves for later ones is not of the expected types."""
    kinds = {"observed": int, "files": list[str], "gone": list[str], "damaged": list[str], "schema": str, "reuse": str}
    for name, kind in kinds.items():
        if name in extra and not fits(extra[name], kind):
            raise ValueError(f"`{name}` is {extra[name]!r}")
    if "files" in extra and not {"observed", "gone", "damaged", "unreadable"} <= set(extra):
        raise ValueError("its facts are incomplete")
    if not all(map(SHARD_NAME.fullmatch, extra.get("files", []))):
        raise ValueError("it names files that no run writes")
    if not all(str(row).isdecimal() and isinstance(error, str) for row, error in extra.get("unreadable", {}).items()):
        raise ValueError("its unreadable rows are damaged")


def _check_types(record: Any) -> None:
    """Raise ValueError if a field of a dataclass, or of dataclasses in it, is not of the annotated type."""
    for name, annotation in _hints(type(record)).items():  # type: ignore[arg-type]
        value = getattr(record, name)
        if not fits(value, annotation):
            raise ValueError(f"`{name}` is {value!r}")
        for part in value if isinstance(value, list) else [value]:
            if is_dataclass(part):
                _check_types(part)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


class Ledger:
    """The record of one output folder. As a context manager it is locked, and can be written."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.commits: dict[tuple[int, str], Commit] = {}
        self.earlier: dict[tuple[int, int], Commit] = {}
        """By stage and partition, commits of a run with other thresholds, whose files are used to write the new ones."""
        self.steps: dict[tuple[int, str], Any] = {}
        """Results of the calls that a Gather made while resolving."""
        self.plan: dict[str, Any] | None = None
        self.finished: dict[str, Any] | None = None
        self.card: str | None = None
        """The checksum of the dataset card, if a run wrote one."""
        self.damaged = 0
        """The number of damaged lines."""
        self._file: io.FileIO | None = None
        self._segment = 0
        self.lock: FolderLock | StoreLock = FolderLock(store) if store.local else StoreLock(store)

    # ------------------------------------------------------------------------------------------ opening and closing

    def __enter__(self) -> Ledger:
        self.lock.take()
        try:
            self.load()
            if self.store.local:
                # Unbuffered: close() must not retry a write that failed.
                self._file = (self.store.path / INTERNAL / "ledger.log").open("ab", buffering=0)
                self._end_last_line()
        except BaseException:
            self.lock.release()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        if self._file is not None:
            self._file.close()
        self.lock.release()

    def load(self) -> None:
        """Read all records. Needs no lock, and changes nothing on disk."""
        for data in self._segments():
            for line in data.splitlines():
                record = parse_line(line)
                try:
                    if record is None:
                        raise ValueError("its checksum is wrong")
                    self._apply(record)
                except (ValueError, TypeError, KeyError, AttributeError):
                    self.damaged += 1

    def _segments(self) -> Iterator[bytes]:
        if self.store.local:
            yield self.store.read(f"{INTERNAL}/ledger.log") or b""
            return
        for name in self.store.names(f"{INTERNAL}/ledger"):
            if _SEGMENT.fullmatch(name):
                self._segment = max(self._segment, int(name.partition(".")[0]))
                yield self.store.read(f"{INTERNAL}/ledger/{name}") or b""

    def _end_last_line(self) -> None:
        """Start the next record on a new line if the last append was cut short."""
        assert self._file is not None
        with (self.store.path / INTERNAL / "ledger.log").open("rb") as file:
            if file.seek(0, os.SEEK_END) and file.seek(-1, os.SEEK_END) is not None and file.read() != b"\n":
                self._file.write(b"\n")

    # ------------------------------------------------------------------------------------------------------- records

    def append(self, records: Iterable[dict[str, Any]]) -> None:
        """Write records and sync them to disk before returning."""
        new = list(records)
        if not new:
            return
        self.lock.check()
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
                hint="free some space or fix the permissions, then rerun the same command: committed work is kept",
            ) from error
        for record in new:
            self._apply(record)

    def _apply(self, record: dict[str, Any]) -> None:
        kind = record["kind"]
        if kind == "commit":
            commit = Commit.from_record(record)
            self.commits[commit.stage, commit.key] = commit
            self.earlier.pop((commit.stage, commit.partition), None)
        elif kind == "earlier":
            aside = self.commits.pop((record["stage"], record["key"]), None)
            if aside is not None:
                self.earlier[aside.stage, aside.partition] = aside
        elif kind == "forget":
            self.earlier.pop((record["stage"], record["partition"]), None)
        elif kind == "step":
            self.steps[record["stage"], record["key"]] = record["result"]
        elif kind == "drop":
            self.commits.pop((record["stage"], record["key"]), None)
        elif kind == "card":
            self.card = str(record["checksum"])
        elif kind == "clear":
            self._forget_all()
        elif kind == "plan":
            self.plan = _checked_plan(record)
            self.finished = None
        elif kind == "finished":
            Report(**record["report"])  # raises if the fields are not those of a report
            self.finished = record

    def _forget_all(self) -> None:
        self.commits.clear()
        self.earlier.clear()
        self.steps.clear()
        self.plan = self.finished = None

    @property
    def is_new(self) -> bool:
        """Whether the ledger shows no earlier run in this folder."""
        return self.plan is None and not self.commits and not self.damaged

    def drop(self, stale: Iterable[Commit]) -> None:
        """Forget commits whose input or settings changed."""
        self.append({"kind": "drop", "stage": commit.stage, "key": commit.key} for commit in list(stale))

    def set_aside(self, commits: Iterable[Commit]) -> None:
        """Forget commits, but keep their files to write new ones from them."""
        self.append({"kind": "earlier", "stage": commit.stage, "key": commit.key} for commit in list(commits))

    def forget_earlier(self, commits: Iterable[Commit]) -> None:
        """Forget commits that were set aside and cannot be used."""
        self.append({"kind": "forget", "stage": each.stage, "partition": each.partition} for each in list(commits))

    @property
    def owned_files(self) -> set[str]:
        """The names of all files that commits name, including those that were set aside."""
        return {shard.name for each in (*self.commits.values(), *self.earlier.values()) for shard in each.shards}

    def clear(self) -> None:
        """Forget everything: commits, results of a Gather, and the plan."""
        self.append([{"kind": "clear"}])


def _checked_plan(record: dict[str, Any]) -> dict[str, Any]:
    shape = {"version": str, "identity": list[dict[str, Any]], "blocksize": int, "rejects": bool, "files": list[str]}
    for name, kind in shape.items():
        if not fits(record[name], kind):
            raise ValueError(f"`{name}` of the plan is {record[name]!r}")
    if not all(fits(step["step"], str) and fits(step.get("parameters", {}), dict) for step in record["identity"]):
        raise ValueError("the steps of the plan are damaged")
    return record


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
