"""The last phase of every deduplication: turn pairs of rows into decisions, and record why each row was dropped.

    pairs (row, survivor), by block of the survivor  ->  address and id of each survivor, by block of the row
    pairs and names, by block of the row             ->  decide(partition, drop, reason)
                                                     ->  .tamis/groups/stage-0-000000.table      dropped rows, with reasons
                                                     ->  .tamis/dedup/stage-0/near_misses/       rows kept by a small margin
                                                     ->  entries of an index, if one is updated

A survivor may be in any partition. If each partition looked up its own survivors, it would open the files of all partitions.
Instead each file is opened once and its names are sent to the blocks that request them. A partition can have millions of
short rows, so it is processed in blocks that fit in memory.

A pipeline may deduplicate several times. Each step's findings are stored under the number of its stage.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tamis.dedup.index import Index
from tamis.dedup.rows import RowNumbers, names_of
from tamis.dedup.shuffle import (
    NumberedFiles,
    ShuffleWriter,
    as_numpy,
    bucket_count,
    check_free_space,
    handles_shortage,
    read_bucket,
    read_whole_bucket,
    run_in_workers,
)
from tamis.errors import BudgetError
from tamis.exchange import Blob, Exchange
from tamis.gathering import DETAILS, GROUPS, stage_number
from tamis.mapped import release_pages
from tamis.operators import Decide, Work
from tamis.parameters import format_bytes
from tamis.store import TABLE

PAIRS = pa.schema(
    {
        "row": pa.int64(),
        "survivor": pa.int64(),  # a row number; numbers beyond the last row are entries of the index
        "unit": pa.int32(),  # number of the paragraph or line, if these are compared
        "kept_unit": pa.int32(),
        "similarity": pa.float32(),
        "bands": pa.int16(),
        "distance": pa.float32(),  # from the centre of its cluster, if rows are compared by embedding
        "bits": pa.int16(),  # in which the hashes of images differ
        "error": pa.float32(),  # share of the bits that differ, if sounds or videos are compared over time
        "offset": pa.float64(),  # where the row begins in the survivor, in seconds; negative if it begins earlier
        "short": pa.bool_(),
        "dropped": pa.bool_(),
    }
)
_REQUESTS = pa.schema({name: PAIRS.field(name).type for name in ("row", "unit", "survivor", "dropped")})
_COUNTS = pa.schema({"row": pa.int64(), "count": pa.int64()})
_SURVIVOR_NAMES = pa.schema(
    {"row": pa.int64(), "unit": pa.int32(), "address": pa.large_string(), "id": pa.large_string()}
)

NEAR_MISSES = "near_misses"

GROUP_SCHEMA = pa.schema(
    {
        "id": pa.string(),
        "kept_id": pa.string(),
        "address": pa.string(),
        "kept_address": pa.string(),
        "similarity": pa.float32(),
        "bands": pa.int16(),
        "distance": pa.float32(),
        "bits": pa.int16(),
        "error": pa.float32(),
        "offset": pa.float64(),
        "short": pa.bool_(),
        "unit": pa.int32(),
        "kept_unit": pa.int32(),
        "bytes": pa.int64(),
        "start": pa.int64(),
        "kept_start": pa.int64(),
        "row": pa.int64(),
        "kept_row": pa.int64(),
        "index": pa.string(),
        "dropped": pa.bool_(),
    }
)
"""A dropped row (or a unit that was cut out of a row) and the row kept instead. The ids are left out if the data has none."""
WriteEntries = Callable[[pa.Table, np.ndarray, Exchange, int], None]
"""Writes the kept rows of a block to a part of an index: (facts, row numbers in the block, parts, block)."""

DECISION_ROW_BYTES = 250
"""Memory per row, with the name of its survivor, while rows are decided; looking up the name takes half of it."""
MIN_BLOCK_ROWS = 2**14


@dataclass(frozen=True)
class Blocks:
    """The division of rows and index entries into blocks: ranges of rows of a partition, or of entries of an index part.

    Adjacent blocks form groups. Names are looked up one group at a time.
    """

    rows: RowNumbers
    index: Index | None
    block_rows: int
    max_groups: int

    @staticmethod
    def of(rows: RowNumbers, index: Index | None, call_bytes: int) -> Blocks:
        """Blocks and groups that fit in memory even if every row has a survivor; at least eight groups, for the workers."""
        block_rows = max(MIN_BLOCK_ROWS, call_bytes // DECISION_ROW_BYTES)
        return Blocks(rows, index, block_rows, max(8, bucket_count(rows.total * DECISION_ROW_BYTES // 2, call_bytes)))

    @cached_property
    def _layout(self) -> tuple[np.ndarray, np.ndarray]:
        """(partition or index part of each block, counted in this order; number of its first row)"""
        inside, starts = [], []
        for number, (first, last) in enumerate(zip(self._borders, self._borders[1:], strict=False)):
            starts.append(np.arange(first, last, self.block_rows))
            inside.append(np.full(len(starts[-1]), number))
        if not starts:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        return np.concatenate(inside), np.concatenate(starts)

    @cached_property
    def _borders(self) -> list[int]:
        """The first row of each partition and index part, and the end of the last one."""
        parts = [before for _, before in self.index.parts] + [self.index.total] if self.index is not None else [0]
        return [*self.rows.offsets[:-1].tolist(), *(self.rows.total + before for before in parts)]

    @property
    def starts(self) -> np.ndarray:
        """The number of the first row of each block."""
        return self._layout[1]

    @cached_property
    def num_blocks(self) -> int:
        """Number of blocks of rows; the blocks of the index follow them."""
        return int(np.searchsorted(self.starts, self.rows.total))

    @property
    def num_groups(self) -> int:
        return max(1, min(len(self.starts), self.max_groups))

    @property
    def division(self) -> str:
        """The division as part of the names of files and calls that depend on it."""
        return f"{self.num_groups}, {self.block_rows}"

    def block_of(self, rows: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.starts, rows, side="right") - 1

    def group_of(self, survivors: np.ndarray) -> np.ndarray:
        return self.block_of(survivors) * self.num_groups // max(1, len(self.starts))

    def blocks_of(self, partition: int) -> range:
        first, last = np.searchsorted(self.starts, self.rows.offsets[partition : partition + 2])
        return range(int(first), int(last))

    def facts(self, block: int) -> pa.Table:
        inside, start = int(self._layout[0][block]), int(self.starts[block])
        if inside < self.rows.num_partitions:
            whole = self.rows.observed[inside]
        else:
            assert self.index is not None
            whole = self.index.part(inside - self.rows.num_partitions)
        return whole.slice(start - self._borders[inside], self.block_rows)


class PairWriter:
    """Writes pairs by block of the row, and requests for names by group of the survivor."""

    def __init__(self, blob: Blob, blocks: Blocks) -> None:
        self._homes = blocks
        self._pairs = ShuffleWriter(blob, blocks.num_blocks, PAIRS)
        self._requests = ShuffleWriter(blob.with_suffix(REQUESTS), blocks.num_groups, _REQUESTS)

    def __enter__(self) -> PairWriter:
        self._pairs.__enter__()
        self._requests.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._requests.__exit__(*exc)
        self._pairs.__exit__(*exc)

    def write(self, pairs: Mapping[str, Any]) -> None:
        """Append pairs: `row`, `survivor` and any other columns of `PAIRS`; missing columns are null."""
        rows = len(pairs["row"])
        table = pa.table({spec.name: pairs.get(spec.name, pa.nulls(rows, spec.type)) for spec in PAIRS}).cast(PAIRS)
        self._pairs.write(table, self._homes.block_of(as_numpy(table.column("row"))))
        self._requests.write(table.select(_REQUESTS.names), self._homes.group_of(as_numpy(table.column("survivor"))))


REQUESTS = ".asked"


@dataclass(frozen=True)
class Decisions:
    """Turns the pairs of a deduplication into decisions about rows."""

    blocks: Blocks
    decide: Decide
    pairs: NumberedFiles
    exchange: Exchange
    reason: str
    short_reason: str = ""
    index_reason: str = ""
    index_parts: Exchange | None = None
    write_entries: WriteEntries | None = None
    max_removed: float = 1.0
    """The largest share of its text that a row may lose, if units are cut."""
    counted: bool = False
    """Whether kept rows get a payload: the number of rows that they stand for, themselves included."""

    @property
    def rows(self) -> RowNumbers:
        return self.blocks.rows

    @property
    def names(self) -> NumberedFiles:
        return NumberedFiles(
            self.exchange.sub("names"), f"{self.pairs.stem}{self.blocks.division}-", self.blocks.num_groups
        )

    @property
    def counts(self) -> NumberedFiles:
        return NumberedFiles(
            self.exchange.sub("counts"), f"{self.pairs.stem}{self.blocks.division}-", self.blocks.num_groups
        )

    def run(self, work: Work, name: str, decide: Callable[..., dict[str, int]] | None = None) -> list[Any]:
        """Look up the names of survivors, then call `decide` (default `decide_rows`) for each partition."""
        name = f"{name}, {self.blocks.division}{', counted' if self.counted else ''}"
        groups, partitions = range(self.blocks.num_groups), range(self.rows.num_partitions)
        run_in_workers(work, f"survivors, {name}", look_up_survivors, [(self, group) for group in groups])
        return run_in_workers(
            work, f"decisions, {name}", decide or decide_rows, [(self, partition) for partition in partitions]
        )


@handles_shortage
def look_up_survivors(decisions: Decisions, group: int) -> int:
    """Look up the addresses and ids of the survivors in one group of blocks, as many at a time as a block has rows."""
    blocks, requested = decisions.blocks, [blob.with_suffix(REQUESTS) for blob in decisions.pairs]
    found = 0
    with ExitStack() as stack:
        writer = stack.enter_context(ShuffleWriter(decisions.names[group], blocks.num_blocks, _SURVIVOR_NAMES))
        counts = None
        if decisions.counted:
            counts = stack.enter_context(ShuffleWriter(decisions.counts[group], blocks.num_blocks, _COUNTS))
        for requests in _pieces(requested, group, blocks.num_groups, blocks.block_rows):
            table = _answer(blocks, requests)
            writer.write(table, blocks.block_of(as_numpy(table.column("row"))))
            found += table.num_rows
            if counts is not None:
                rows, times = _dropped_for(requests, blocks.rows.total)
                counts.write(pa.table({"row": rows, "count": times}, schema=_COUNTS), blocks.block_of(rows))
    return found


def _dropped_for(requests: pa.Table, total: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows that are kept for others, how many each), without entries of an index."""
    survivors = as_numpy(requests.filter(requests.column("dropped")).column("survivor"))
    rows, times = np.unique(survivors[survivors < total], return_counts=True)
    return rows, times.astype(np.int64)


def _pieces(blobs: Iterable[Blob], bucket: int, num_buckets: int, piece_rows: int) -> Iterator[pa.Table]:
    """The rows of a bucket of all files, in tables of about `piece_rows` rows."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in (batch for blob in blobs for batch in read_bucket(blob, bucket, num_buckets)):
        held.append(batch)
        rows += batch.num_rows
        if rows >= piece_rows:
            yield pa.Table.from_batches(held)
            held, rows = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _answer(blocks: Blocks, requests: pa.Table) -> pa.Table:
    requests = requests.take(pc.sort_indices(requests.column("survivor")))
    survivors = as_numpy(requests.column("survivor"))
    block = blocks.block_of(survivors)
    begins = np.flatnonzero(np.append(True, block[1:] != block[:-1]))
    found = []
    for first, last in zip(begins, [*begins[1:], len(block)], strict=True):
        number = int(block[first])
        found.append(names_of(blocks.facts(number), survivors[first:last] - blocks.starts[number]))
        release_pages()
    address, name = (pa.chunked_array([part[side].cast(pa.large_string()) for part in found]) for side in (0, 1))
    return pa.table({"row": requests.column("row"), "unit": requests.column("unit"), "address": address, "id": name})


def read_pairs(decisions: Decisions, block: int) -> tuple[pa.Table, pa.Table] | None:
    """(pairs of the rows of a block, names of their survivors), both in source order; None if there are no pairs."""
    pairs = read_whole_bucket(decisions.pairs, block, decisions.blocks.num_blocks)
    names = read_whole_bucket(decisions.names, block, decisions.blocks.num_blocks)
    if pairs is None or names is None:
        return None
    order = [("row", "ascending"), ("unit", "ascending")]
    return pairs.sort_by(order), names.sort_by(order)


@handles_shortage
def decide_rows(decisions: Decisions, partition: int) -> dict[str, int]:
    """Decide which rows of a partition are dropped, and record why."""
    rows = decisions.rows
    start, count = int(rows.offsets[partition]), rows.observed.num_rows(partition)
    drop, reasons = np.zeros(count, np.bool_), np.zeros(count, np.int8)
    stands_for = np.ones(count if decisions.counted else 0, np.int64)
    with GroupWriter(decisions, GROUPS, partition) as groups, GroupWriter(decisions, NEAR_MISSES, partition) as near:
        for block in decisions.blocks.blocks_of(partition):
            facts, first = decisions.blocks.facts(block), int(decisions.blocks.starts[block]) - start
            found = read_pairs(decisions, block)
            if found is not None:
                pairs, names = found
                dropped = pairs.column("dropped")
                duplicates = pairs.filter(dropped)
                local = as_numpy(duplicates.column("row")) - start
                drop[local] = True
                reasons[local] = np.where(as_numpy(duplicates.column("short")), 2, 1)
                reasons[local[as_numpy(duplicates.column("survivor")) >= rows.total]] = 3
                groups.write(block, facts, duplicates, names.filter(dropped), {})
                near.write(block, facts, pairs.filter(pc.invert(dropped)), names.filter(pc.invert(dropped)), {})
            if decisions.counted:
                times = read_whole_bucket(decisions.counts, block, decisions.blocks.num_blocks)
                if times is not None:
                    np.add.at(stands_for, as_numpy(times.column("row")) - start, as_numpy(times.column("count")))
            kept = np.flatnonzero(~drop[first : first + facts.num_rows])
            if decisions.write_entries is not None and decisions.index_parts is not None and len(kept):
                decisions.write_entries(facts, kept, decisions.index_parts, block)
            release_pages()
    texts = pa.array([None, decisions.reason, decisions.short_reason, decisions.index_reason], pa.string())
    payload = pa.array(stands_for) if decisions.counted else None
    decisions.decide(partition, drop, pa.DictionaryArray.from_arrays(pa.array(reasons), texts), payload)
    return {"rows": count, "dropped": int(drop.sum())}


class GroupWriter:
    """Writes the rows of one partition that are in groups, with their survivors, as Parquet."""

    def __init__(self, decisions: Decisions, kind: str, partition: int) -> None:
        self._decisions = decisions
        self._blob = Blob(decisions.exchange.sub(kind), f"{partition:06d}{TABLE}")
        self._stack = ExitStack()
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> GroupWriter:
        return self

    def __exit__(self, *exc: Any) -> None:
        self._stack.__exit__(*exc)

    def write(self, block: int, facts: pa.Table, pairs: pa.Table, names: pa.Table, more: Mapping[str, Any]) -> None:
        """Append the pairs of a block."""
        if not pairs.num_rows:
            return
        blocks = self._decisions.blocks
        row, survivor = as_numpy(pairs.column("row")), as_numpy(pairs.column("survivor"))
        address, name = names_of(facts, row - blocks.starts[block])
        in_index = survivor >= blocks.rows.total
        path = blocks.index.path if blocks.index is not None else None
        columns: dict[str, Any] = {
            **{column: pairs.column(column) for column in PAIRS.names if column not in ("row", "survivor")},
            "id": name,
            "kept_id": names.column("id"),
            "address": address,
            "kept_address": names.column("address"),
            "row": row,
            "kept_row": pa.array(survivor, mask=in_index),
            "index": pc.if_else(pa.array(in_index), pa.scalar(path, pa.string()), None),
            **more,
        }
        if "id" not in facts.column_names and path is None:
            del columns["id"], columns["kept_id"]
        schema = pa.schema([spec for spec in GROUP_SCHEMA if spec.name in columns or not spec.name.endswith("id")])
        table = pa.table({spec.name: columns.get(spec.name, pa.nulls(len(row), spec.type)) for spec in schema})
        if self._writer is None:
            file = self._stack.enter_context(self._blob.writing())
            self._writer = self._stack.enter_context(pq.ParquetWriter(file, schema, compression="zstd"))
        check_free_space(self._blob.exchange, table.nbytes)
        self._writer.write_table(table.cast(schema))


# ------------------------------------------------------------------------------------------------------------- summary


@dataclass
class GroupSizes:
    """How many groups there are of each size, summed over calls."""

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
    """How many groups there are of each size. A group is a kept row and the rows dropped as its duplicates."""
    values, counts = np.unique(sizes, return_counts=True)
    return {str(value): int(count) for value, count in zip(values, counts, strict=True)}


def publish(work: Work, summary: Mapping[str, Any], more: Mapping[str, Iterable[Blob]]) -> None:
    """Publish the groups and details of a stage in the output folder, replacing those of this and later stages.

    The summary comes last: a folder without one is that of an interrupted call, which is repeated.
    """
    stage = f"stage-{work.stage}"
    for place in (GROUPS, DETAILS):
        for name in work.published(place):
            if stage_number(name) >= work.stage:
                work.withdraw(f"{place}/{name}")
    for name, blobs in [(NEAR_MISSES, _tables(work, NEAR_MISSES)), *more.items()]:
        for blob in blobs:
            work.publish(f"{DETAILS}/{stage}/{name}/{Path(blob.name).name}", blob.file())
    groups = _tables(work, GROUPS)
    for blob in groups:
        work.publish(f"{GROUPS}/{stage}-{blob.name}", blob.file())
    if not groups:  # readers of the folder find an empty table
        empty = pa.BufferOutputStream()
        pq.write_table(GROUP_SCHEMA.empty_table(), empty)
        work.publish(f"{GROUPS}/{stage}-000000{TABLE}", empty.getvalue().to_pybytes())
    work.publish(f"{DETAILS}/{stage}/summary.json", json.dumps(summary, indent=2, ensure_ascii=False).encode())


def _tables(work: Work, kind: str) -> list[Blob]:
    exchange = work.exchange.sub(kind)
    return [Blob(exchange, name) for name in exchange.names() if name.endswith(TABLE)]


def index_parts_of(update: bool, work: Work, blocks: Blocks) -> Exchange | None:
    """Where new index entries are written before they are added. Each part is a block, hence the block size in the name."""
    return work.exchange.sub(f"index-{blocks.block_rows}") if update else None


def check_disk(work: Work, needed: int, what: str) -> None:
    """Raise if the disk does not have this much free space."""
    free = work.exchange.free_bytes()
    if needed > free:
        room = f"about {format_bytes(needed)} of disk space in {work.exchange}, but only {format_bytes(free)} is free"
        raise BudgetError(
            f"{what} needs {room}",
            hint="free some space, then rerun the same command to resume",
        )
