"""The last step of every deduplication: what was found about each row becomes its fate, and is written down.

    pairs (row, twin), by where the twin is     ->  names: addresses of twins, by where the row is
    pairs and names, by where the row is        ->  decide(partition, drop, reason)
                                                ->  .tamis/groups/stage-0-000000.table      rows that go, and why
                                                ->  .tamis/dedup/stage-0/near_misses/       rows that just stayed
                                                ->  entries of an index, if one is kept

Twins may be anywhere. Were each partition to look its twins up, every partition would open every other one's file; so each file
is opened once, and what it tells of twins is sent to those who ask. A partition may be millions of rows of a few bytes, so it
is gone through in blocks of so many rows as fit.

A pipeline may deduplicate several times; what each step found is under the number of its stage.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
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
    read_bucket,
    tells_limits,
)
from tamis.errors import BudgetError
from tamis.mapped import release_pages
from tamis.operators import Decide, Work
from tamis.parameters import format_bytes
from tamis.store import TABLE

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
"""Writes the rows of a block that stay to a part of an index: (facts, row numbers in the block, folder, block)."""

SETTLED_BYTES = 250
"""A row with the name of its twin, while it is settled; half of it while its name is looked up."""
LEAST_ROWS = 2**14


@dataclass(frozen=True)
class Homes:
    """Where rows and entries of the index lie: in blocks of rows of a partition, or of entries of a part of the index.

    Blocks are neighbours in groups, which are asked for names together.
    """

    rows: RowNumbers
    index: Index | None
    block_rows: int
    most_groups: int

    @staticmethod
    def of(rows: RowNumbers, index: Index | None, usable: int) -> Homes:
        """Blocks and groups that fit if every row had a twin, and a few more groups for the workers."""
        block_rows = max(LEAST_ROWS, usable // SETTLED_BYTES)
        return Homes(rows, index, block_rows, max(8, bucket_count(rows.total * SETTLED_BYTES // 2, usable)))

    @cached_property
    def _blocks(self) -> tuple[np.ndarray, np.ndarray]:
        """(the partition, or the part of the index behind these, of each block, and the number of its first row)"""
        inside, starts = [], []
        for number, (first, last) in enumerate(zip(self._borders, self._borders[1:], strict=False)):
            starts.append(np.arange(first, last, self.block_rows))
            inside.append(np.full(len(starts[-1]), number))
        if not starts:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        return np.concatenate(inside), np.concatenate(starts)

    @cached_property
    def _borders(self) -> list[int]:
        """Where partitions and parts begin, and where the last one ends."""
        parts = [before for _, before in self.index.parts] + [self.index.total] if self.index is not None else [0]
        return [*self.rows.offsets[:-1].tolist(), *(self.rows.total + before for before in parts)]

    @property
    def starts(self) -> np.ndarray:
        """The number of the first row of each block."""
        return self._blocks[1]

    @cached_property
    def num_blocks(self) -> int:
        """Blocks of rows; those of the index lie behind them."""
        return int(np.searchsorted(self.starts, self.rows.total))

    @property
    def num_groups(self) -> int:
        return max(1, min(len(self.starts), self.most_groups))

    @property
    def division(self) -> str:
        """What files and results of earlier calls depend on."""
        return f"{self.num_groups}, {self.block_rows}"

    def block_of(self, rows: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.starts, rows, side="right") - 1

    def group_of(self, twins: np.ndarray) -> np.ndarray:
        return self.block_of(twins) * self.num_groups // max(1, len(self.starts))

    def blocks_of(self, partition: int) -> range:
        first, last = np.searchsorted(self.starts, self.rows.offsets[partition : partition + 2])
        return range(int(first), int(last))

    def facts(self, block: int) -> pa.Table:
        inside, start = int(self._blocks[0][block]), int(self.starts[block])
        if inside < self.rows.num_partitions:
            whole = self.rows.observed[inside]
        else:
            assert self.index is not None
            whole = self.index.part(inside - self.rows.num_partitions)
        return whole.slice(start - self._borders[inside], self.block_rows)


class PairWriter:
    """Writes pairs twice: whole, by where the row is, and who asks for which name, by where the twin is."""

    def __init__(self, path: Path, homes: Homes) -> None:
        self._homes = homes
        self._pairs = ShuffleWriter(path, homes.num_blocks, PAIRS)
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
        self._pairs.write(table, self._homes.block_of(numbers(table.column("row"))))
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
        return Files(self.folder / "names", f"{self.pairs.stem}{self.homes.division}-", self.homes.num_groups)

    def run(self, work: Work, name: str, settle_partition: Callable[..., dict[str, int]] | None = None) -> list[Any]:
        name = f"{name}, {self.homes.division}"
        groups, partitions = range(self.homes.num_groups), range(self.rows.num_partitions)
        in_workers(work, f"names, {name}", find_names, [(self, group) for group in groups])
        return in_workers(
            work, f"fates, {name}", settle_partition or settle, [(self, partition) for partition in partitions]
        )


@tells_limits
def find_names(settling: Settling, group: int) -> int:
    """Look up the addresses and ids of the twins that lie in one group of blocks, as many at a time as a block has rows."""
    homes, files = settling.homes, [path.with_suffix(ASKED) for path in settling.pairs]
    found = 0
    with ShuffleWriter(settling.names[group], homes.num_blocks, _NAMES) as writer:
        for asked in _pieces(files, group, homes.num_groups, homes.block_rows):
            table = _named(homes, asked)
            writer.write(table, homes.block_of(numbers(table.column("row"))))
            found += table.num_rows
    return found


def _pieces(files: Iterable[Path], bucket: int, num_buckets: int, most: int) -> Iterator[pa.Table]:
    """The rows of a bucket of all files, about so many at a time."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in (batch for file in files for batch in read_bucket(file, bucket, num_buckets)):
        held.append(batch)
        rows += batch.num_rows
        if rows >= most:
            yield pa.Table.from_batches(held)
            held, rows = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _named(homes: Homes, asked: pa.Table) -> pa.Table:
    asked = asked.take(pc.sort_indices(asked.column("twin")))
    twins = numbers(asked.column("twin"))
    block = homes.block_of(twins)
    begins = np.flatnonzero(np.append(True, block[1:] != block[:-1]))
    found = []
    for first, last in zip(begins, [*begins[1:], len(block)], strict=True):
        number = int(block[first])
        found.append(named(homes.facts(number), twins[first:last] - homes.starts[number]))
        release_pages()
    address, name = (pa.chunked_array([part[side].cast(pa.large_string()) for part in found]) for side in (0, 1))
    return pa.table({"row": asked.column("row"), "unit": asked.column("unit"), "address": address, "id": name})


def read_pairs(settling: Settling, block: int) -> tuple[pa.Table, pa.Table] | None:
    """(pairs of the rows of a block, the names of their twins), both in source order; None if there are none."""
    pairs = gather_bucket(settling.pairs, block, settling.homes.num_blocks)
    names = gather_bucket(settling.names, block, settling.homes.num_blocks)
    if pairs is None or names is None:
        return None
    order = [("row", "ascending"), ("unit", "ascending")]
    return pairs.sort_by(order), names.sort_by(order)


@tells_limits
def settle(settling: Settling, partition: int) -> dict[str, int]:
    """Decide about the rows of one partition and write down why."""
    rows = settling.rows
    start, count = int(rows.offsets[partition]), rows.observed.num_rows(partition)
    drop, reasons = np.zeros(count, np.bool_), np.zeros(count, np.int8)
    with FoundWriter(settling, GROUPS, partition) as groups, FoundWriter(settling, NEAR_MISSES, partition) as near:
        for block in settling.homes.blocks_of(partition):
            facts, first = settling.homes.facts(block), int(settling.homes.starts[block]) - start
            found = read_pairs(settling, block)
            if found is not None:
                pairs, names = found
                dropped = pairs.column("dropped")
                gone = pairs.filter(dropped)
                local = numbers(gone.column("row")) - start
                drop[local] = True
                reasons[local] = np.where(numbers(gone.column("short")), 2, 1)
                reasons[local[numbers(gone.column("twin")) >= rows.total]] = 3
                groups.write(block, facts, gone, names.filter(dropped), {})
                near.write(block, facts, pairs.filter(pc.invert(dropped)), names.filter(pc.invert(dropped)), {})
            stays = np.flatnonzero(~drop[first : first + facts.num_rows])
            if settling.keep_entries is not None and settling.index_folder is not None and len(stays):
                settling.keep_entries(facts, stays, settling.index_folder, block)
            release_pages()
    texts = pa.array([None, settling.reason, settling.short_reason, settling.index_reason], pa.string())
    settling.decide(partition, drop, pa.DictionaryArray.from_arrays(pa.array(reasons), texts))
    return {"rows": count, "dropped": int(drop.sum())}


class FoundWriter:
    """Writes a part of the groups as Parquet: rows of one partition, the names of their twins, what is known of each pair."""

    def __init__(self, settling: Settling, folder: str, partition: int) -> None:
        self._settling = settling
        self._file = Unfinished(settling.folder / folder / f"{partition:06d}{TABLE}")
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> FoundWriter:
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if self._writer is not None:
            self._writer.close()
            self._file.__exit__(kind, *exc)

    def write(self, block: int, facts: pa.Table, pairs: pa.Table, names: pa.Table, more: Mapping[str, Any]) -> None:
        """Append the pairs of a block."""
        if not pairs.num_rows:
            return
        homes = self._settling.homes
        row, twin = numbers(pairs.column("row")), numbers(pairs.column("twin"))
        address, name = named(facts, row - homes.starts[block])
        old = twin >= homes.rows.total
        path = homes.index.path if homes.index is not None else None
        columns: dict[str, Any] = {
            **{column: pairs.column(column) for column in ("unit", "kept_unit", "similarity", "bands", "short")},
            "id": name,
            "kept_id": names.column("id"),
            "address": address,
            "kept_address": names.column("address"),
            "row": row,
            "kept_row": pa.array(twin, mask=old),
            "index": pc.if_else(pa.array(old), pa.scalar(path, pa.string()), None),
            **more,
        }
        if "id" not in facts.column_names and path is None:
            del columns["id"], columns["kept_id"]
        schema = pa.schema([spec for spec in FOUND if spec.name in columns or not spec.name.endswith("id")])
        table = pa.table({spec.name: columns.get(spec.name, pa.nulls(len(row), spec.type)) for spec in schema})
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._file.__enter__(), schema, compression="zstd")
        make_sure_of_room(self._file.path.parent, table.nbytes)
        self._writer.write_table(table.cast(schema))


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
    text, empty = folder / "summary.json", folder / f"000000{TABLE}"
    text.write_text(json.dumps(summary, indent=2, ensure_ascii=False))
    groups = sorted((folder / GROUPS).glob(f"*{TABLE}"))
    if not groups:  # so that there is something to read for those who look
        pq.write_table(FOUND.empty_table(), empty)
        groups = [empty]
    near = sorted((folder / NEAR_MISSES).glob(f"*{TABLE}"))
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
    """The number in `stage-3` and `stage-3-000001.table`."""
    return int(name.split("-")[1]) if name.startswith("stage-") else 0


def index_folder_of(update: bool, work: Work, homes: Homes) -> Path | None:
    """Where the entries for an index are written before it takes them in; parts are blocks, and another division has others."""
    folder = work.folder / f"index-{homes.block_rows}" if update else None
    if folder is not None:
        folder.mkdir(exist_ok=True)
    return folder


def check_disk(work: Work, needed: int, what: str) -> None:
    """Refuse to begin what the disk cannot hold."""
    free = shutil.disk_usage(work.folder).free
    if needed > free:
        raise BudgetError(
            f"{what} needs about {format_bytes(needed)} of disk in {work.folder}, and {format_bytes(free)} are free",
            hint="make room and run the same command again: what is done is kept",
        )
