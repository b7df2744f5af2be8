"""The last step of every deduplication: what was found about each row becomes its fate, and is written down.

pairs (row, twin), by partition of the row  ->  decide(partition, drop, reason)
                                            ->  _tamis/groups/part-000000.parquet       rows that go, and why
                                            ->  _tamis/near_misses/part-000000.parquet  rows that just stayed
                                            ->  entries of an index, if one is kept
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

GROUPS, NEAR_MISSES = "groups", "near_misses"
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
    if not pairs.num_rows:
        return
    row, twin = numbers(pairs.column("row")), numbers(pairs.column("twin"))
    address, name = settling.rows.addresses(row)
    twin_address, twin_name = twin_addresses(settling, twin)
    columns: dict[str, Any] = {
        "address": address,
        "kept_address": twin_address,
        "similarity": pairs.column("similarity"),
        "bands": pairs.column("bands"),
        "short": pairs.column("short"),
        "row": row,
        "kept_row": pa.array(twin, mask=twin >= settling.rows.total),
        "index": pa.array(
            [settling.index.path if settling.index and old else None for old in twin >= settling.rows.total],
            pa.string(),
        ),
    }
    if "id" in settling.rows.observed[partition].column_names:
        columns = {"id": name, "kept_id": twin_name, **columns}
    with Unfinished(settling.folder / folder / f"part-{partition:06d}.parquet") as temporary:
        pq.write_table(pa.table(columns), temporary, compression="zstd")


def twin_addresses(settling: Settling, twins: np.ndarray) -> tuple[pa.Array, pa.Array]:
    inside = twins < settling.rows.total
    if inside.all() or settling.index is None:
        return settling.rows.addresses(twins)
    address, name = settling.rows.addresses(twins[inside])
    old_address, old_name = settling.index.addresses(twins[~inside] - settling.rows.total)
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


def publish(work: Work, folder: Path, summary: Mapping[str, Any], more: Mapping[str, Sequence[Path]]) -> None:
    """Put what was found into the output folder, in place of what an earlier run left there; `more` by folder.

    The files are linked and not moved, so that this can be repeated after an interruption.
    """
    found = {name: sorted((folder / name).glob("*.parquet")) for name in (GROUPS, NEAR_MISSES)}
    for name in found:
        work.withdraw(name)
    text = folder / "summary.json"
    text.write_text(json.dumps(summary, indent=2, ensure_ascii=False))
    for name, files in [*found.items(), *more.items(), (GROUPS, [text])]:
        for file in files:
            copy = folder / f"{file.name}.copy"
            copy.unlink(missing_ok=True)
            link(file, copy)
            work.publish(f"{name}/{file.name}", copy)


def check_disk(work: Work, needed: int, what: str) -> None:
    """Refuse to begin what the disk cannot hold."""
    free = shutil.disk_usage(work.folder).free
    if needed > free:
        raise BudgetError(
            f"{what} needs about {format_bytes(needed)} of disk in {work.folder}, and {format_bytes(free)} are free",
            hint="make room and run the same command again: what is done is kept",
        )
