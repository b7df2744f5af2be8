"""Check the files of an output folder against the sizes and checksums in its ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tamis.errors import LedgerError
from tamis.ledger import SHARD_NAME, Commit, Ledger
from tamis.operators import Shard
from tamis.parameters import format_bytes, plural
from tamis.store import Store


@dataclass(frozen=True)
class Verification:
    """The result of `verify`: which files are damaged, missing, or not written by the run."""

    output: str
    files: int = 0
    num_bytes: int = 0
    damaged: dict[str, str] = field(default_factory=dict)
    """Files whose size or checksum is wrong, with what is wrong."""
    missing: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    """Files that a reader of the folder would take for data, and that the run did not write."""
    damaged_records: int = 0
    """Lines of the ledger that cannot be read. Their partitions are redone by the next run."""
    finished: bool = True
    forgotten: int = 0
    """Partitions or downloads that were forgotten, so that the next run writes them again."""

    @property
    def ok(self) -> bool:
        return not (self.damaged or self.missing or self.foreign)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"ok": self.ok}

    def __str__(self) -> str:
        lines = [f"verified {plural(self.files, 'file')} ({format_bytes(self.num_bytes)}) in {self.output}"]
        lines += [f"damaged: {name} ({why})" for name, why in self.damaged.items()]
        lines += [f"missing: {name}" for name in self.missing]
        lines += [f"foreign: {name}" for name in self.foreign]
        if self.damaged_records:
            lines.append(f"note: {plural(self.damaged_records, 'damaged line')} in the ledger")
        if not self.finished:
            lines.append("note: the run is not finished")
        if self.forgotten:
            lines.append(f"forgot {plural(self.forgotten, 'partition')}; run the same command again to write them")
        lines.append("ok" if self.ok else "not ok")
        return "\n".join(lines)


def verify(
    output: str | Path, *, forget: bool = False, storage_options: Mapping[str, Any] | None = None
) -> Verification:
    """Read every file that a run or a download wrote to `output`, and compare it with the ledger.

    The folder is on a disk or in an object store. Covers the rows, the rejected rows and the failed rows. With `forget`, the
    partitions of damaged and missing files are removed from the ledger, and the next run of the same pipeline writes them
    again; after a deduplication or another Gather that may mean all partitions.

    >>> verify("clean/").ok                                              # doctest: +SKIP
    True
    """
    store = Store(str(output), storage_options)
    found = Ledger(store)
    found.load()
    if found.is_new and not found.downloads:
        raise LedgerError(f"there is no ledger in {output}", hint="name the output folder of a run")
    if not forget:
        return Verification(str(output), **_compare(store, found))
    with Ledger(store) as ledger:  # locked: no run may write meanwhile
        result = _compare(store, ledger)
        stale = _dependent(ledger.commits.values(), {*result["damaged"], *result["missing"]})
        ledger.drop(stale)
        lost = [each for each in ledger.downloads.values() if each.name in {*result["damaged"], *result["missing"]}]
        ledger.append({"kind": "forget download", "url": each.url} for each in lost)
    return Verification(str(output), **result, forgotten=len(stale) + len(lost))


def _compare(store: Store, ledger: Ledger) -> dict[str, Any]:
    shards = {shard.name: shard for commit in ledger.commits.values() for shard in commit.shards}
    shards |= {each.name: Shard(each.name, 0, each.size, checksum=each.checksum) for each in ledger.downloads.values()}
    damaged: dict[str, str] = {}
    missing: list[str] = []
    num_bytes = 0
    for name, shard in sorted(shards.items()):
        size = store.size(name)
        if size is None:
            missing.append(name)
            continue
        num_bytes += size
        if size != shard.size:
            damaged[name] = f"{size:,} bytes instead of {shard.size:,}"
        elif shard.checksum and store.checksum(name) != shard.checksum:
            damaged[name] = "its checksum is wrong"
    return {
        "files": len(shards),
        "num_bytes": num_bytes,
        "damaged": damaged,
        "missing": missing,
        "foreign": _foreign(store, shards, ledger.owned_files),
        "damaged_records": ledger.damaged,
        "finished": ledger.finished is not None or ledger.is_new,
    }


def _foreign(store: Store, shards: Mapping[str, Shard], owned: set[str]) -> list[str]:
    suffixes = {name.partition(".")[2] for name in shards if "/" not in name}
    return [
        name
        for name in store.names()
        if name not in owned
        and not name.startswith(".")
        and (SHARD_NAME.fullmatch(name) or any(name.endswith(f".{suffix}") for suffix in suffixes))
    ]


def _dependent(commits: Iterable[Commit], names: set[str]) -> list[Commit]:
    """The commits that have one of these files, and all of the stages after them, which were made from their rows."""
    every = list(commits)
    hit = [commit for commit in every if any(shard.name in names for shard in commit.shards)]
    first = min((commit.stage for commit in hit), default=0)
    return [commit for commit in every if commit in hit or (hit and commit.stage > first)]
