"""The last step of every deduplication: what was found about each row becomes its fate, and is written down.

    pairs (row, twin), by partition of the row  ->  decide(partition, drop, reason)
                                                ->  _tamis/groups/stage-0-000000.parquet    rows that go, and why
                                                ->  _tamis/dedup/stage-0/near_misses/       rows that just stayed
                                                ->  entries of an index, if one is kept

A pipeline may deduplicate several times; what each step found is under the number of its stage.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tamis.dedup.index import Index
from tamis.dedup.rows import RowNumbers
from tamis.dedup.shuffle import Unfinished, gather_bucket, link, numbers, tells_disk
from tamis.errors import BudgetError
from tamis.operator import Decide, Work
from tamis.parameters import format_bytes

PAIRS = pa.schema(
    {
        "row": pa.int64(),
        "twin": pa.int64(),  # a row number; from the number of rows on, an entry of the index
        "similarity": pa.float32(),
        "bands": pa.int16(),
        "short": pa.bool_(),
        "dropped": pa.bool_(),
    }
)

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
class Settling:
    """What `settle` needs to know beside the pairs."""

    rows: RowNumbers
    decide: Decide
    pairs: tuple[Path, ...]
    folder: Path
    reason: str
    short_reason: str = ""
    index_reason: str = ""
    index: Index | None = None
    index_folder: Path | None = None
    keep_entries: KeepEntries | None = None

    def run(self, work: Work, name: str) -> list[dict[str, Any]]:
        return work.map(name, settle, [(self, partition) for partition in range(self.rows.num_partitions)])


@tells_disk
def settle(settling: Settling, partition: int) -> dict[str, int]:
    """Decide about the rows of one partition and write down why."""
    rows = settling.rows
    first, last = int(rows.offsets[partition]), int(rows.offsets[partition + 1])
    drop = np.zeros(last - first, np.bool_)
    pairs = gather_bucket(settling.pairs, partition, rows.num_partitions)
    reasons = np.zeros(last - first, np.int8)
    if pairs is not None:
        pairs = pairs.sort_by("row")
        gone = pairs.filter(pairs.column("dropped"))
        local = numbers(gone.column("row")) - first
        drop[local] = True
        reasons[local] = np.where(numbers(gone.column("short")), 2, 1)
        reasons[local[numbers(gone.column("twin")) >= rows.total]] = 3
        write_pairs(settling, gone, GROUPS, partition)
        write_pairs(settling, pairs.filter(pa.compute.invert(pairs.column("dropped"))), NEAR_MISSES, partition)
    names = pa.array([None, settling.reason, settling.short_reason, settling.index_reason], pa.string())
    settling.decide(partition, drop, names.take(pa.array(reasons)))
    if settling.keep_entries is not None and settling.index_folder is not None and not drop.all():
        settling.keep_entries(rows.observed[partition], np.flatnonzero(~drop), settling.index_folder, partition)
    return {"rows": len(drop), "dropped": int(drop.sum())}


def write_pairs(settling: Settling, pairs: pa.Table, folder: str, partition: int) -> None:
    """Rows and their twins by address, as Parquet."""
    if pairs.num_rows:
        facts = {name: pairs.column(name) for name in ("similarity", "bands", "short")}
        row, twin = numbers(pairs.column("row")), numbers(pairs.column("twin"))
        write_found(settling.rows, settling.index, row, twin, facts, settling.folder / folder, partition)


def write_found(
    rows: RowNumbers,
    index: Index | None,
    row: np.ndarray,
    twin: np.ndarray,
    facts: Mapping[str, Any],
    folder: Path,
    partition: int,
) -> None:
    """Write a part of the groups: rows by number, their twins, and what is known of each pair."""
    address, name = rows.addresses(row)
    twin_address, twin_name = twin_addresses(rows, index, twin)
    old = twin >= rows.total
    columns: dict[str, Any] = {
        "id": name,
        "kept_id": twin_name,
        "address": address,
        "kept_address": twin_address,
        "row": row,
        "kept_row": pa.array(twin, mask=old),
        "index": pa.array([index.path if index is not None and there else None for there in old], pa.string()),
        **facts,
    }
    if "id" not in rows.observed[partition].column_names:
        del columns["id"], columns["kept_id"]
    schema = pa.schema([spec for spec in FOUND if spec.name in columns or not spec.name.endswith("id")])
    table = pa.table({spec.name: columns.get(spec.name, pa.nulls(len(row), spec.type)) for spec in schema}).cast(schema)
    with Unfinished(folder / f"{partition:06d}.parquet") as temporary:
        pq.write_table(table, temporary, compression="zstd")


def twin_addresses(rows: RowNumbers, index: Index | None, twins: np.ndarray) -> tuple[pa.Array, pa.Array]:
    inside = twins < rows.total
    if inside.all() or index is None:
        return rows.addresses(twins)
    address, name = rows.addresses(twins[inside])
    old_address, old_name = index.addresses(twins[~inside] - rows.total)
    at = np.empty(len(twins), np.int64)
    at[inside] = np.arange(int(inside.sum()))
    at[~inside] = np.arange(int((~inside).sum())) + int(inside.sum())
    order = pa.array(at)
    return pa.concat_arrays([address, old_address]).take(order), pa.concat_arrays([name, old_name]).take(order)


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


def publish(work: Work, summary: Mapping[str, Any], more: Mapping[str, Sequence[Path]]) -> None:
    """Put what was found into the output folder, in place of what earlier runs of this and later stages left there.

    The files are linked and not moved, so that this can be repeated after an interruption.
    """
    folder, stage = work.folder, work.folder.parent.name
    for place in (GROUPS, DETAILS):
        for name in work.published(place):
            if _stage_number(name) >= _stage_number(stage):
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


def _stage_number(name: str) -> int:
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
