"""The ledger: which partitions are committed, and from which inputs and settings. A resumed run skips those.

    .tamis/ledger.log            on a disk: one line per record, `crc32 json`, appended and synced
    .tamis/ledger/00000007.log   in an object store, which cannot append: a few such lines per object
    .tamis/shards/0003.log       the records of a shard, until all shards are merged (`shards.py`)

A record counts only if its checksum is correct, it has the expected fields, and it names only files that a run could
have written. Any other line is damaged. A damaged line costs the work of its partition: it is processed again, and
writes files of the same names.
"""

from __future__ import annotations

import functools
import re
import time
import typing
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any

from tamis.errors import LedgerError, ShardsRunning
from tamis.lock import Lock, Locks, lock_of, owner_text
from tamis.logs import SHARDS, Log, parse_line
from tamis.memory.spill import stem
from tamis.operators import Shard
from tamis.parameters import fits
from tamis.report import Account, Report
from tamis.store import INTERNAL, LINES, TABLE, Store

SHARD_NAME = re.compile(r"part-\d{6,}[\w.-]*", re.ASCII)
"""The name of a file of rows. `_has_own_names` also checks the number and the names in the internal folder."""

_LOG_NAME = re.compile(r"(\d{4,}|stage-\d+)(?:-\d{8})?\.log", re.ASCII)

POLL_S = 0.1
"""How often a lock that another run has is tried."""


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


@dataclass(frozen=True)
class Downloaded:
    """A file that `tamis download` has completed, and what it is known by."""

    url: str
    name: str
    size: int
    checksum: str
    """As `Shard.checksum`."""
    sha256: str
    etag: str | None = None

    def record(self) -> dict[str, Any]:
        return {"kind": "download"} | asdict(self)

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> Downloaded:
        """Raise ValueError if the record is not one that `record` could have written."""
        found = Downloaded(**{name: value for name, value in record.items() if name != "kind"})
        _check_types(found)
        if found.name.startswith((".", "_")) or not found.name or "/" in found.name or "\0" in found.name:
            raise ValueError("it names a file that no download writes")
        return found


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
    numbers = dict.fromkeys(("observed", "positions", "max_row_bytes"), int)
    lists = dict.fromkeys(("files", "gone", "damaged"), list[str])
    kinds: dict[str, Any] = {**numbers, **lists, **dict.fromkeys(("schema", "reuse", "decided", "types"), str)}
    kinds |= {"columns": list[str] | None, "lines": bool}
    for name, kind in kinds.items():
        if name in extra and not fits(extra[name], kind):
            raise ValueError(f"`{name}` is {extra[name]!r}")
    if "files" in extra and not {*numbers, *lists, "unreadable", "columns", "types", "lines"} <= set(extra):
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

    def __init__(self, store: Store, patience_s: float = 0.0) -> None:
        """`patience_s` is how long to wait for the lock if another run has it."""
        self.store = store
        self.commits: dict[tuple[int, str], Commit] = {}
        self.earlier: dict[tuple[int, int], Commit] = {}
        """By stage and partition, commits of a run with other thresholds, whose files are used to write the new ones."""
        self.steps: dict[tuple[int, str], Any] = {}
        """Results of the calls that a Gather made while resolving."""
        self.plan: dict[str, Any] | None = None
        self.finished: dict[str, Any] | None = None
        self.downloads: dict[str, Downloaded] = {}
        """By URL, the files that were downloaded to the folder."""
        self.replaceable: set[str] = set()
        """The names of downloads that were forgotten because their files are damaged; they are downloaded again."""
        self.catalogs: dict[str, str] = {}
        """What names such as the latest snapshot of a crawl meant when they were first looked up."""
        self.card: str | None = None
        """The checksum of the dataset card, if a run wrote one."""
        self.damaged = 0
        """The number of damaged lines."""
        self.sessions: dict[int, list[dict[str, Any]]] = {}
        """By shard, who worked on it, and how that ended."""
        self.resolved: dict[int, str] = {}
        """By stage, the partitions about whose rows its Gather has decided."""
        self._folder_lock = lock_of(store)
        self.lock: Lock | Locks = self._folder_lock
        self._patience_s = patience_s
        self._log = Log(store)
        self._shard_logs: dict[str, Log] = {}
        self._shard_records: list[dict[str, Any]] = []

    # ------------------------------------------------------------------------------------------ opening and closing

    def __enter__(self) -> Ledger:
        self._take_lock()
        try:
            self._check_no_shard_runs()
            self.load()
            self._log.open()
            self._absorb_shards()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._log.close()
        self.lock.release()

    def _take_lock(self) -> None:
        waits_until = time.monotonic() + self._patience_s
        while True:
            try:
                self._folder_lock.take()
                return
            except LedgerError:
                if time.monotonic() > waits_until:
                    raise
                time.sleep(POLL_S)

    def _check_no_shard_runs(self) -> None:
        """Raise if a shard is being run. One that is about to start looks at the lock of the folder, and waits."""
        waits_until = time.monotonic() + max(1.0, self._patience_s)
        for name in [name for name in self.store.names(SHARDS) if name.endswith(".lock")]:
            while (holder := lock_of(self.store, f"{SHARDS}/{name}").holder()) is not None:
                if time.monotonic() > waits_until:
                    raise ShardsRunning(
                        f"shard {holder.get('shard', '?')} of the run in {self.store.root} is running ({owner_text(holder)})",
                        hint="wait for it to end, or choose another --output",
                    )
                time.sleep(POLL_S)

    def load(self) -> None:
        """Read all records. Needs no lock, and changes nothing on disk."""
        self._apply_lines(self._log.read(whole=True))
        self.refresh()

    def refresh(self) -> None:
        """Read what shards have recorded since."""
        listed = self.store.names(SHARDS)
        for name in sorted({match[1] for match in map(_LOG_NAME.fullmatch, listed) if match}):
            log = self._shard_logs.setdefault(name, Log(self.store, name))
            self._shard_records += self._apply_lines(log.read(listed))

    def _apply_lines(self, lines: Iterable[bytes]) -> list[dict[str, Any]]:
        """Apply the records on lines; returns those that are not damaged."""
        good = []
        for line in lines:
            record = parse_line(line)
            try:
                if record is None:
                    raise ValueError("its checksum is wrong")
                self._apply(record)
                good.append(record)
            except (ValueError, TypeError, KeyError, AttributeError):
                self.damaged += 1
        return good

    def _absorb_shards(self) -> None:
        """Move the records of shards, none of which is running, to the ledger itself."""
        if self._shard_records:
            self._log.append(self._shard_records)
            self._shard_records = []
        for log in self._shard_logs.values():
            log.remove()
        self._shard_logs.clear()
        if self.store.names(SHARDS):
            self.store.remove_folder(SHARDS)

    # ------------------------------------------------------------------------------------------------------- records

    def append(self, records: Iterable[dict[str, Any]]) -> None:
        """Write records and sync them to disk before returning."""
        new = list(records)
        if not new:
            return
        self.lock.check()
        self._writes_to().append(new)
        for record in new:
            self._apply(record)

    def _writes_to(self) -> Log:
        return self._log

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
        elif kind == "download":
            self.downloads[record["url"]] = Downloaded.from_record(record)
        elif kind == "forget download":
            forgotten = self.downloads.pop(record["url"], None)
            self.replaceable |= {forgotten.name} if forgotten is not None else set()
        elif kind == "catalog":
            self.catalogs[str(record["request"])] = str(record["meaning"])
        elif kind == "card":
            self.card = str(record["checksum"])
        elif kind == "clear":
            self._forget_all()
        elif kind == "plan":
            self.plan = _checked_plan(record)
            self.finished = None
            self.sessions, self.resolved = {}, {}
        elif kind == "began":
            self.sessions.setdefault(_shard_in(record), []).append(
                {"by": int(record["by"]), **record, "state": "running"}
            )
        elif kind == "ended":
            begun = self.sessions.setdefault(_shard_in(record), [{"by": int(record["by"])}])
            begun[-1] |= {**record, "state": str(record["state"])}
        elif kind == "closed":
            self.plan = self.plan and {**self.plan, "shards": None}
        elif kind == "resolved":
            self.resolved[int(record["stage"])] = str(record["key"])
        elif kind == "finished":
            Report(**record["report"])  # raises if the fields are not those of a report
            self.finished = record

    def _forget_all(self) -> None:
        self.commits.clear()
        self.earlier.clear()
        self.steps.clear()
        self.sessions, self.resolved = {}, {}
        self.plan = self.finished = None

    @property
    def shards(self) -> int:
        """The number of shards of a run that is not merged yet; 0 if there is none."""
        return (self.plan or {}).get("shards") or 0 if self.finished is None else 0

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
        """The names of all files that were downloaded or that commits name, including those that were set aside."""
        found = {shard.name for each in (*self.commits.values(), *self.earlier.values()) for shard in each.shards}
        return found | {each.name for each in self.downloads.values()}

    def clear(self) -> None:
        """Forget everything: commits, results of a Gather, and the plan."""
        self.append([{"kind": "clear"}])


_PLAN = {"version": str, "identity": list[dict[str, Any]], "blocksize": int, "rejects": bool, "files": list[str]}
_PLAN_OF_SHARDS = {
    "shards": int,
    "partitions": int,
    "stages": int,
    "keys": str,
    "exchange": str,
    "keep_work": bool,
    "card": bool,
    "license": str | None,
    "recipe": list[dict[str, Any]],
    "sink": dict[str, Any],
    "max_failed": dict[str, Any],
    "num_files": int,
    "damaged_files": dict[str, str],
    "notes": list[str],
}


def _checked_plan(record: dict[str, Any]) -> dict[str, Any]:
    for name, kind in (_PLAN | _PLAN_OF_SHARDS if record.get("shards") else _PLAN).items():
        if not fits(record[name], kind):
            raise ValueError(f"`{name}` of the plan is {record[name]!r}")
    if not all(fits(step["step"], str) and fits(step.get("parameters", {}), dict) for step in record["identity"]):
        raise ValueError("the steps of the plan are damaged")
    return record


def _shard_in(record: Mapping[str, Any]) -> int:
    number = record["shard"]
    if not isinstance(number, int) or number < 1:
        raise ValueError(f"`shard` is {number!r}")
    return number
