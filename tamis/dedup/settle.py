"""The last step of every deduplication: what was found about each row becomes its fate, and is written down.

    pairs (row, twin), by where the twin is     ->  names: addresses of twins, by partition of the row
    pairs and names, by partition of the row    ->  decide(partition, drop, reason)
                                                ->  _tamis/groups/stage-0-000000.parquet    rows that go, and why
                                                ->  _tamis/dedup/stage-0/near_misses/       rows that just stayed
                                                ->  entries of an index, if one is kept

Twins may be anywhere. Were each partition to look its twins up, every partition would open every other one's file; so each file
is opened once, and what it tells of twins is sent to those who ask.

A pipeline may deduplicate several times; what each step found is under the number of its stage.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tamis.dedup.index import Index
from tamis.dedup.rows import RowNumbers, named
from tamis.dedup.shuffle import (
    Files,
    ShuffleWriter,
    Unfinished,
    bucket_count,
    gather_bucket,
    in_workers,
    link,
    make_sure_of_room,
    numbers,
    tells_limits,
)
from tamis.errors import BudgetError
from tamis.operator import Decide, Work
from tamis.parameters import format_bytes

PAIRS = pa.schema(
    {
        "row": pa.int64(),
        "twin": pa.int64(),  # a row number; from the number of rows on, an entry of the index
        "unit": pa.int32(),  # of the row, if units of rows are compared
        "kept_unit": pa.int32(),
        "similarity": pa.float32(),
        "bands": pa.int16(),
        "short": pa.bool_(),
        "dropped": pa.bool_(),
    }
)
_ASKED = pa.schema({name: PAIRS.field(name).type for name in ("row", "unit", "twin")})
_NAMES = pa.schema({"row": pa.int64(), "unit": pa.int32(), "address": pa.large_string(), "id": pa.large_string()})

GROUPS, DETAILS, NEAR_MISSES = "groups", "dedup", "near_misses"

FOUND = pa.schema(
    {
        "id": pa.string(),
        "kept_id": pa.string(),
        "address": pa.string(),
        "kept_address": pa.string(),
        "similarity": pa.float32(),
        "bands": pa.int16(),
        "short": pa.bool_(),
        "unit": pa.int32(),
        "kept_unit": pa.int32(),
        "bytes": pa.int64(),
        "row": pa.int64(),
        "kept_row": pa.int64(),
        "index": pa.string(),
    }
)
"""A row that went (or a unit of it that was cut), and the one that stayed in its place. Without ids where the data has none."""
KeepEntries = Callable[[pa.Table, np.ndarray, Path, int], None]
"""Writes the rows of a partition that stay to a part of an index: (facts, local row numbers, folder, partition)."""


@dataclass(frozen=True)
class Homes:
    """Where rows and entries of the index lie: partitions and parts, in groups of neighbours that are asked together."""

    rows: RowNumbers
    index: Index | None
    num_groups: int

    @staticmethod
    def of(rows: RowNumbers, index: Index | None, usable: int) -> Homes:
        """As many groups as make each fit if every row had a twin, and a few more for the workers."""
        homes = rows.num_partitions + (len(index.parts) if index is not None else 0)
        return Homes(rows, index, max(1, min(homes, max(8, bucket_count(rows.total * 150, usable)))))

    @property
    def starts(self) -> np.ndarray:
        """The number of the first row of each home."""
        parts = [self.rows.total + before for _, before in self.index.parts] if self.index is not None else []
        return np.concatenate([self.rows.offsets[:-1], np.array(parts, np.int64)])

    def group_of(self, twins: np.ndarray) -> np.ndarray:
        starts = self.starts
        # Homes without rows start where the next one does: the last of them is the one that has the row.
        return (np.searchsorted(starts, twins, side="right") - 1) * self.num_groups // max(1, len(starts))

    def facts(self, home: int) -> pa.Table:
        if home < self.rows.num_partitions:
            return self.rows.observed[home]
        assert self.index is not None
        return self.index.part(home - self.rows.num_partitions)


class PairWriter:
    """Writes pairs twice: whole, by partition of the row, and who asks for which name, by where the twin is."""

    def __init__(self, path: Path, homes: Homes) -> None:
        self._homes = homes
        self._pairs = ShuffleWriter(path, homes.rows.num_partitions, PAIRS)
        self._asked = ShuffleWriter(path.with_suffix(ASKED), homes.num_groups, _ASKED)

    def __enter__(self) -> PairWriter:
        self._pairs.__enter__()
        self._asked.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._asked.__exit__(*exc)
        self._pairs.__exit__(*exc)

    def write(self, found: Mapping[str, Any]) -> None:
        """Append pairs: row, twin, and what else is known; the rest is null."""
        rows = len(found["row"])
        table = pa.table({spec.name: found.get(spec.name, pa.nulls(rows, spec.type)) for spec in PAIRS}).cast(PAIRS)
        self._pairs.write(table, self._homes.rows.partition_of(numbers(table.column("row"))))
        self._asked.write(table.select(_ASKED.names), self._homes.group_of(numbers(table.column("twin"))))


ASKED = ".asked"


@dataclass(frozen=True)
class Settling:
    """What `settle` needs to know beside the pairs."""

    homes: Homes
    decide: Decide
    pairs: Files
    folder: Path
    reason: str
    short_reason: str = ""
    index_reason: str = ""
    index_folder: Path | None = None
    keep_entries: KeepEntries | None = None
    max_removed: float = 1.0
    """Share of its text that a row may lose, where units of rows are cut."""

    @property
    def rows(self) -> RowNumbers:
        return self.homes.rows

    @property
    def names(self) -> Files:
        return Files(self.folder / "names", f"{self.pairs.stem}{self.homes.num_groups}-", self.homes.num_groups)

    def run(self, work: Work, name: str, settle_partition: Callable[..., dict[str, int]] | None = None) -> list[Any]:
        groups = self.homes.num_groups
        in_workers(work, f"names, {name}, {groups}", find_names, [(self, group) for group in range(groups)])
        partitions = range(self.rows.num_partitions)
        return in_workers(
            work, f"fates, {name}", settle_partition or settle, [(self, partition) for partition in partitions]
        )


@tells_limits
def find_names(settling: Settling, group: int) -> int:
    """Look up the addresses and ids of the twins that lie in one group of homes."""
    homes, files = settling.homes, [path.with_suffix(ASKED) for path in settling.pairs]
    asked = gather_bucket(files, group, homes.num_groups)
    with ShuffleWriter(settling.names[group], homes.rows.num_partitions, _NAMES) as writer:
        if asked is None:
            return 0
        asked = asked.take(pc.sort_indices(asked.column("twin")))
        twins, starts = numbers(asked.column("twin")), homes.starts
        home = np.searchsorted(starts, twins, side="right") - 1
        begins = np.flatnonzero(np.append(True, home[1:] != home[:-1]))
        found = []
        for first, last in zip(begins, [*begins[1:], len(home)], strict=True):
            number = int(home[first])
            found.append(named(homes.facts(number), twins[first:last] - starts[number]))
        address, name = (pa.chunked_array([part[side].cast(pa.large_string()) for part in found]) for side in (0, 1))
        table = pa.table({"row": asked.column("row"), "unit": asked.column("unit"), "address": address, "id": name})
        writer.write(table, homes.rows.partition_of(numbers(asked.column("row"))))
    return len(twins)


def read_pairs(settling: Settling, partition: int) -> tuple[pa.Table, pa.Table] | None:
    """(pairs of the rows of a partition, the names of their twins), both in source order; None if there are none."""
    pairs = gather_bucket(settling.pairs, partition, settling.rows.num_partitions)
    names = gather_bucket(settling.names, partition, settling.rows.num_partitions)
    if pairs is None or names is None:
        return None
    order = [("row", "ascending"), ("unit", "ascending")]
    return pairs.sort_by(order), names.sort_by(order)


@tells_limits
def settle(settling: Settling, partition: int) -> dict[str, int]:
    """Decide about the rows of one partition and write down why."""
    rows = settling.rows
    facts = rows.observed[partition]
    first, last = int(rows.offsets[partition]), int(rows.offsets[partition + 1])
    drop = np.zeros(last - first, np.bool_)
    reasons = np.zeros(last - first, np.int8)
    found = read_pairs(settling, partition)
    if found is not None:
        pairs, names = found
        dropped = pairs.column("dropped")
        gone = pairs.filter(dropped)
        local = numbers(gone.column("row")) - first
        drop[local] = True
        reasons[local] = np.where(numbers(gone.column("short")), 2, 1)
        reasons[local[numbers(gone.column("twin")) >= rows.total]] = 3
        for folder, mask in ((GROUPS, dropped), (NEAR_MISSES, pc.invert(dropped))):
            write_found(settling, facts, pairs.filter(mask), names.filter(mask), {}, folder, partition)
    texts = pa.array([None, settling.reason, settling.short_reason, settling.index_reason], pa.string())
    settling.decide(partition, drop, texts.take(pa.array(reasons)))
    if settling.keep_entries is not None and settling.index_folder is not None and not drop.all():
        settling.keep_entries(facts, np.flatnonzero(~drop), settling.index_folder, partition)
    return {"rows": len(drop), "dropped": int(drop.sum())}


def write_found(
    settling: Settling,
    facts: pa.Table,
    pairs: pa.Table,
    names: pa.Table,
    more: Mapping[str, Any],
    folder: str,
    partition: int,
) -> None:
    """Write a part of the groups as Parquet: rows of one partition, the names of their twins, what is known of each pair."""
    if not pairs.num_rows:
        return
    row, twin = numbers(pairs.column("row")), numbers(pairs.column("twin"))
    address, name = named(facts, row - settling.rows.offsets[partition])
    old = twin >= settling.rows.total
    index = settling.homes.index
    columns: dict[str, Any] = {
        **{column: pairs.column(column) for column in ("unit", "kept_unit", "similarity", "bands", "short")},
        "id": name,
        "kept_id": names.column("id"),
        "address": address,
        "kept_address": names.column("address"),
        "row": row,
        "kept_row": pa.array(twin, mask=old),
        "index": pc.if_else(pa.array(old), pa.scalar(index.path if index is not None else None, pa.string()), None),
        **more,
    }
    if "id" not in facts.column_names and names.column("id").null_count == len(row):
        del columns["id"], columns["kept_id"]
    schema = pa.schema([spec for spec in FOUND if spec.name in columns or not spec.name.endswith("id")])
    table = pa.table({spec.name: columns.get(spec.name, pa.nulls(len(row), spec.type)) for spec in schema}).cast(schema)
    with Unfinished(settling.folder / folder / f"{partition:06d}.parquet") as temporary:
        make_sure_of_room(temporary.parent, table.nbytes)
        pq.write_table(table, temporary, compression="zstd")


# ------------------------------------------------------------------------------------------------------------- summary


@dataclass
class Counts:
    """Sizes of groups, added up over calls."""

    sizes: dict[int, int] = field(default_factory=dict)

    def add(self, found: Mapping[str, Any]) -> None:
        for size, count in found["sizes"].items():
            self.sizes[int(size)] = self.sizes.get(int(size), 0) + count

    def as_dict(self) -> dict[str, Any]:
        return {
            "groups": sum(self.sizes.values()),
            "largest_group": max(self.sizes, default=0),
            "group_sizes": {str(size): self.sizes[size] for size in sorted(self.sizes)},
        }


def histogram(sizes: np.ndarray) -> dict[str, int]:
    """How many groups there are of each size, a group being a row that stays and those that went in its favour."""
    values, counts = np.unique(sizes, return_counts=True)
    return {str(value): int(count) for value, count in zip(values, counts, strict=True)}


def publish(work: Work, summary: Mapping[str, Any], more: Mapping[str, Iterable[Path]]) -> None:
    """Put what was found into the output folder, in place of what earlier runs of this and later stages left there.

    The files are linked and not moved, so that this can be repeated after an interruption.
    """
    folder, stage = work.folder, work.folder.parent.name
    for place in (GROUPS, DETAILS):
        for name in work.published(place):
            if stage_number(name) >= stage_number(stage):
                work.withdraw(f"{place}/{name}")
    text, empty = folder / "summary.json", folder / "000000.parquet"
    text.write_text(json.dumps(summary, indent=2, ensure_ascii=False))
    groups = sorted((folder / GROUPS).glob("*.parquet"))
    if not groups:  # so that there is something to read for those who look
        pq.write_table(FOUND.empty_table(), empty)
        groups = [empty]
    near = sorted((folder / NEAR_MISSES).glob("*.parquet"))
    for name, files in [(NEAR_MISSES, near), *more.items(), ("", groups), ("", [text])]:
        for file in files:
            copy = folder / f"{file.name}.copy"
            copy.unlink(missing_ok=True)
            link(file, copy)
            is_group = not name and file is not text
            target = (
                f"{GROUPS}/{stage}-{file.name}"
                if is_group
                else "/".join(filter(None, (DETAILS, stage, name, file.name)))
            )
            work.publish(target, copy)


def stage_number(name: str) -> int:
    """The number in `stage-3` and `stage-3-000001.parquet`."""
    return int(name.split("-")[1]) if name.startswith("stage-") else 0


def check_disk(work: Work, needed: int, what: str) -> None:
    """Refuse to begin what the disk cannot hold."""
    free = shutil.disk_usage(work.folder).free
    if needed > free:
        raise BudgetError(
            f"{what} needs about {format_bytes(needed)} of disk in {work.folder}, and {format_bytes(free)} are free",
            hint="make room and run the same command again: what is done is kept",
        )
