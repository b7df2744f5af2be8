"""From hashes to pairs of rows within a Hamming distance. Each phase is a set of calls that fit in a worker's share of memory.

    hashes of a partition   -> by range of keys, once for each substring     divide          one call per partition
    a range of keys         -> better rows within the radius of each row     find_better     one call per range and substring
    edges                   -> which rows are dropped, see `rounds`

The keys of a substring (see `kernels.hamming`) are divided by their highest bits. A call compares the rows of a range with the
rows of every range whose highest bits differ by no more bits than the substring may, one range at a time. Keys are flipped in
ascending order, so that the rows listed do not depend on the division.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from tamis.dedup.index import Index
from tamis.dedup.rows import RowNumbers, column_or_zeros
from tamis.dedup.shuffle import (
    NumberedFiles,
    ShuffleWriter,
    as_numpy,
    bucket_count,
    check_free_space,
    chunk_rows,
    column_to_matrix,
    handles_shortage,
    matrix_to_column,
    read_whole_bucket,
    run_in_workers,
)
from tamis.dedup.similar import NEAR, States
from tamis.exchange import Blob
from tamis.kernels import clusters
from tamis.kernels import hamming as kernel
from tamis.kernels.hamming import Substrings
from tamis.mapped import SPILL, release_pages
from tamis.operators import Work

MAX_LISTED = 4
"""Better rows that are listed for a row by each substring. With fewer, more rows are compared again."""

NEAR_MISS_BITS = 4
"""Kept rows that differ from a kept row by this many bits more than the radius are recorded as near misses, if compared."""

PAIRS_AT_A_TIME = 2**16

EDGES = pa.schema(
    {
        "left": pa.int64(),  # the better row
        "right": pa.int64(),
        "left_source": pa.uint64(),
        "left_order": pa.uint64(),
        "right_source": pa.uint64(),
        "right_order": pa.uint64(),
        "similarity": pa.float32(),
        "bits": pa.int16(),
        "full": pa.bool_(),  # whether the row on the right may have more edges
    }
)
NEAR_MISSES = pa.schema({"row": pa.int64(), "survivor": pa.int64(), "similarity": pa.float32(), "bits": pa.int16()})


@dataclass(frozen=True)
class Division:
    """How the hashes are compared: by substrings, and each of these in 2**high_bits ranges."""

    substrings: Substrings
    high_bits: int
    across_sources: bool

    @staticmethod
    def of(bits: int, radius: int, count: int, across_sources: bool, call_bytes: int) -> Division:
        """The division for this number of hashes. The substrings do not depend on memory."""
        substrings = Substrings.best(bits, radius, count)
        ranges = bucket_count(count * row_bytes(bits), call_bytes)
        narrowest = min(substrings.width(number) for number in range(substrings.count))
        return Division(substrings, min((ranges - 1).bit_length(), narrowest), across_sources)

    @property
    def num_ranges(self) -> int:
        return 1 << self.high_bits

    @property
    def name(self) -> str:
        """As part of the names of files and calls."""
        return f"{self.substrings.count} by {self.num_ranges}"

    def low_bits(self, number: int) -> int:
        return self.substrings.width(number) - self.high_bits

    def schema(self) -> pa.Schema:
        hashes = pa.binary(-(-self.substrings.bits // 64) * 8)
        return pa.schema({"row": pa.int64(), "source": pa.uint64(), "order": pa.uint64(), "hash": hashes})


def row_bytes(bits: int) -> int:
    """Memory per row while it is compared: rows and targets, with copies while they are sorted."""
    return 3 * bits // 8 + 200


# ------------------------------------------------------------------------------------------------------------ division


@handles_shortage
def divide(rows: RowNumbers, partition: int, division: Division, files: list[Blob], chunk: int) -> int:
    """Write the hashes of a partition by range of keys, to one file for each substring. Sources count from 1."""

    def parts() -> Iterator[pa.Table]:
        for start, facts in rows.chunks(partition, ["hash", "order", "source"], chunk):
            chosen = np.flatnonzero(facts.column("hash").is_valid().to_numpy())
            source, order = (column_or_zeros(facts, name, facts.num_rows)[chosen] for name in ("source", "order"))
            hashes = facts.column("hash").take(pa.array(chosen))
            columns = {"row": start + chosen, "source": source + np.uint64(1), "order": order, "hash": hashes}
            yield pa.table(columns).cast(division.schema())

    return _write(division, files, parts)


@handles_shortage
def divide_index(index: Index, first: int, division: Division, files: list[Blob]) -> int:
    """Write the hashes of an index, whose entries are numbered from `first` and better than all rows."""

    def parts() -> Iterator[pa.Table]:
        for before, entries in index.entries():
            count = entries.num_rows
            columns = {"row": np.arange(first + before, first + before + count), "hash": entries.column("hash")}
            columns |= {name: np.zeros(count, np.uint64) for name in ("source", "order")}
            yield pa.table(columns).select(division.schema().names).cast(division.schema())
            release_pages()

    return _write(division, files, parts)


def _write(division: Division, files: list[Blob], parts: Any) -> int:
    count = 0
    for number, blob in zip(division.substrings.used, files, strict=True):
        with ShuffleWriter(blob, division.num_ranges, division.schema()) as writer:
            for table in parts():
                hashes = column_to_matrix(table.column("hash"), np.uint64)
                keys = division.substrings.keys(hashes, number)
                writer.write(table, (keys >> np.uint32(division.low_bits(number))).astype(np.int64))
                count += table.num_rows
    return count


# ---------------------------------------------------------------------------------------------------------- comparison


@handles_shortage
def find_better(
    files: NumberedFiles, number: int, bucket: int, division: Division, states: States | None, blob: Blob
) -> dict[str, int]:
    """Write an edge for each row of a range and each better row within the radius, at most `MAX_LISTED` for a row.

    With `states`, only rows whose fate is unknown are compared, with rows that are not dropped.
    """
    with ExitStack() as stack:
        path = stack.enter_context(blob.writing())
        edges = stack.enter_context(pa.ipc.new_file(path, EDGES))
        near_path = stack.enter_context(blob.with_suffix(NEAR).writing())
        near = stack.enter_context(pa.ipc.new_file(near_path, NEAR_MISSES))
        rows = _Rows.load(files, bucket, number, division)
        queries = rows.chosen(
            (rows.source > 0) & (states.of(rows.row) == clusters.UNKNOWN if states is not None else True)
        )
        if not len(queries.row):
            return {"queries": 0, "edges": 0}
        search = _Search(queries, number, division)
        for flip in kernel.flips(division.high_bits, division.substrings.reach(number)):
            other = bucket ^ int(flip)
            targets = rows if other == bucket else _Rows.load(files, other, number, division)
            if states is not None:
                targets = targets.chosen(states.of(targets.row) != clusters.DROPPED)
            for table in search.run(targets, other, int(flip)):
                check_free_space(blob.exchange, table.nbytes)
                edges.write_table(table)
        near.write_table(search.near_misses())
    return {"queries": len(queries.row), "edges": search.edges}


@dataclass(frozen=True)
class _Rows:
    """Rows of a range, in arrays sorted by key."""

    row: np.ndarray
    source: np.ndarray
    order: np.ndarray
    hashes: np.ndarray
    keys: np.ndarray

    @staticmethod
    def load(files: NumberedFiles, bucket: int, number: int, division: Division) -> _Rows:
        table = read_whole_bucket(files, bucket, division.num_ranges)
        table = table if table is not None else division.schema().empty_table()
        hashes = column_to_matrix(table.column("hash"), np.uint64)
        keys = division.substrings.keys(hashes, number)
        row, source, order = (as_numpy(table.column(name)) for name in ("row", "source", "order"))
        by_key = np.lexsort([row, order, source, keys])
        return _Rows(row[by_key], source[by_key], order[by_key], hashes[by_key], keys[by_key])

    def chosen(self, wanted: np.ndarray) -> _Rows:
        if wanted.all():
            return self
        return _Rows(*(each[wanted] for each in (self.row, self.source, self.order, self.hashes, self.keys)))


class _Search:
    """Compares some rows with the rows of one range after another."""

    def __init__(self, queries: _Rows, number: int, division: Division) -> None:
        self._queries, self._number, self._division = queries, number, division
        count = len(queries.row)
        self._counts = np.zeros(count, np.int64)
        self._near, self._near_bits = np.full(count, -1, np.int64), np.full(count, kernel.NONE, np.uint8)
        substrings = division.substrings
        self._masks = substrings.masks()
        self._reaches = np.array([substrings.reach(each) for each in range(substrings.count)])
        self.edges = 0

    def run(self, targets: _Rows, bucket: int, high: int) -> Iterator[pa.Table]:
        """Edges from the rows to better rows of a range; `high` is what differs in the highest bits of their keys."""
        division, queries, low = self._division, self._queries, self._division.low_bits(self._number)
        reach = division.substrings.reach(self._number) - high.bit_count()
        flips = kernel.flips(low, reach) | np.uint32(high << low)
        base = bucket << low
        offsets = np.empty((1 << low) + 1, np.int64)
        kernel.offsets_of(targets.keys, base, offsets)
        limits, target_ranks = _ranks(queries, targets, division.across_sources)
        near = np.full(len(queries.row), -1, np.int64)
        left, right = np.empty(PAIRS_AT_A_TIME, np.int64), np.empty(PAIRS_AT_A_TIME, np.int64)
        bits, start = np.empty(PAIRS_AT_A_TIME, np.uint8), np.zeros(2, np.int64)
        while start[0] < len(flips):
            found = kernel.find_close(
                queries.keys, queries.hashes, limits, offsets, base, targets.hashes, target_ranks, flips, start,
                division.substrings.radius, NEAR_MISS_BITS, MAX_LISTED, self._masks, self._reaches, self._number,
                self._counts, near, self._near_bits, left, right, bits,
            )  # fmt: skip
            if found:
                self.edges += found
                yield self._table(targets, left[:found], right[:found], bits[:found])
        closer = np.flatnonzero(near >= 0)
        self._near[closer] = targets.row[near[closer]]

    def _table(self, targets: _Rows, left: np.ndarray, right: np.ndarray, bits: np.ndarray) -> pa.Table:
        queries = self._queries
        columns = {
            "left": targets.row[right],
            "right": queries.row[left],
            "left_source": targets.source[right],
            "left_order": targets.order[right],
            "right_source": queries.source[left],
            "right_order": queries.order[left],
            "similarity": 1 - bits / self._division.substrings.bits,
            "bits": bits,
            "full": self._counts[left] >= MAX_LISTED,
        }
        return pa.table(columns).cast(EDGES)

    def near_misses(self) -> pa.Table:
        missed = np.flatnonzero(self._near >= 0)
        bits = self._near_bits[missed]
        columns = {
            "row": self._queries.row[missed],
            "survivor": self._near[missed],
            "similarity": 1 - bits / self._division.substrings.bits,
            "bits": bits,
        }
        return pa.table(columns).cast(NEAR_MISSES)


def _ranks(queries: _Rows, targets: _Rows, across_sources: bool) -> tuple[np.ndarray, np.ndarray]:
    """(for each row the rank below which targets are better, ranks of the targets), in the order of the keep policy"""
    count = len(queries.row)
    row, order, source = (
        np.concatenate([getattr(queries, name), getattr(targets, name)]) for name in ("row", "order", "source")
    )
    if not order.any() and source.min(initial=1) == source.max(initial=1) and not across_sources:
        return queries.row, targets.row
    by_rank = np.lexsort([row, order, source])
    ranks = np.empty(len(row), np.int64)
    ranks[by_rank] = np.arange(len(row))
    limits = np.searchsorted(source[by_rank], queries.source) if across_sources else ranks[:count]
    return limits, ranks[count:]


# --------------------------------------------------------------------------------------------------------------- calls


class HashSearch:
    """Finds the better rows within the radius of each row, in calls in the workers."""

    def __init__(self, work: Work, rows: RowNumbers, index: Index | None, division: Division, call_bytes: int) -> None:
        self._work, self._division = work, division
        self.summary = {"substrings": division.substrings.count, "edges": 0}
        used, place = division.substrings.used, work.exchange.sub(f"hashes-{division.name}")
        self._files = [NumberedFiles(place, f"{number}-", rows.num_partitions) for number in used]
        chunk = chunk_rows(row_bytes(division.substrings.bits), call_bytes)
        run_in_workers(
            work,
            f"hashes by range, {division.name}",
            divide,
            [
                (rows, part, division, [files[part] for files in self._files], chunk)
                for part in range(rows.num_partitions)
            ],
        )
        if index is not None:
            more = [Blob(place, f"{number}-index{SPILL}") for number in used]
            item = (index, rows.total, division, more)
            run_in_workers(work, f"hashes of the index by range, {division.name}", divide_index, [item])
            self._files = [replace(files, more=(blob.name,)) for files, blob in zip(self._files, more, strict=True)]

    def find(self, number: int, states: States | None) -> NumberedFiles:
        """Files of edges. In rounds after the first, `states` says which rows to compare again."""
        division = self._division
        ranges = [(each, bucket) for each in range(len(self._files)) for bucket in range(division.num_ranges)]
        edges = NumberedFiles(self._work.exchange.sub("edges"), f"{division.name}, round {number}-", len(ranges))
        found = run_in_workers(
            self._work,
            f"similar hashes, {division.name}, round {number}",
            find_better,
            [
                (self._files[each], division.substrings.used[each], bucket, division, states, blob)
                for (each, bucket), blob in zip(ranges, edges, strict=True)
            ],
        )
        self.summary["edges"] += sum(part["edges"] for part in found)
        return edges


def hash_facts(words: np.ndarray, known: np.ndarray) -> pa.Array:
    """Hashes uint64[rows, words] for `observe`; null where a row has none."""
    column = matrix_to_column(words)
    if known.all():
        return column
    bits = pa.py_buffer(np.packbits(known, bitorder="little"))
    return pa.FixedSizeBinaryArray.from_buffers(column.type, len(words), [bits, column.buffers()[1]])
