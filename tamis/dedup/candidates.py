"""From band keys to pairs of near-duplicates. Each phase is a set of calls that fit in a worker's share of memory.

    keys of a partition   -> by range of keys                                shuffle_bands     one call per partition
    a range of keys       -> rows that share a key: edges                    candidate_pairs   one call per range
    all edges             -> components                                      see `joining`
    rows in components    -> with their n-grams, by component                collect           one call per partition
    some components       -> survivors, and the duplicates of each           verify            one call per bucket

Candidates depend only on the keys, and decisions only on a whole component, so the result does not depend on how the work is
divided. A component is a set of rows that are decided together; rows of a component are not necessarily similar.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import contiguous
from tamis.dedup.decisions import Blocks, PairWriter, histogram
from tamis.dedup.index import Index
from tamis.dedup.joining import Components
from tamis.dedup.rows import FAULT_BYTES, MAX_MAPPED_BYTES, RowNumbers, column_or_zeros, take_mapped
from tamis.dedup.shuffle import (
    NumberedFiles,
    ShuffleWriter,
    as_numpy,
    bounds_of,
    check_free_space,
    column_to_matrix,
    duplicated,
    handles_shortage,
    pieces,
    read_bucket,
)
from tamis.dedup.texts import byte_buffers
from tamis.errors import BudgetError, is_shortage
from tamis.exchange import Blob
from tamis.kernels import groups as kernel
from tamis.kernels import sets as packing

Verify: TypeAlias = Literal["jaccard", "signature", "none"]

COMPONENT_ROW_BYTES = 60
"""Memory per row of a component that does not depend on how the component is divided."""

MIN_PIECE_ROWS = 100
"""Candidates that are compared at a time even if there is hardly any memory."""

NEAR_MISS_MARGIN = 0.15
"""Kept rows whose best similarity is this close below the threshold are recorded as near misses."""


@dataclass(frozen=True)
class Comparison:
    """How candidates are compared."""

    verify: Verify
    threshold: float
    num_bands: int
    drop_all: bool
    across_sources: bool

    @property
    def row_bytes(self) -> int:
        """Memory per candidate during comparison, without its n-grams."""
        return 72 + 8 * self.num_bands + 14 * self.num_bands

    def rows_in(self, memory: int, table: pa.Table) -> int:
        """How many candidates of a table can be compared at a time. Counts a copy of the rows, and unpacked sets."""
        times = 2 if self.verify == "jaccard" else 6
        return max(MIN_PIECE_ROWS, memory // (self.row_bytes + times * table.nbytes // max(1, table.num_rows)))

    def schema(self) -> pa.Schema:
        full = self.verify == "jaccard"
        ngrams = {"shingles": pa.large_list(pa.uint32())} if full else {"signature": pa.large_binary()}
        return pa.schema(
            {
                "component": pa.int64(),
                "row": pa.int64(),
                "source": pa.uint64(),
                "order": pa.uint64(),
                "count": pa.int64(),
                "keys": pa.binary(8 * self.num_bands),
                **ngrams,
            }
        )


# --------------------------------------------------------------------------------------------------------- candidates

KEY_BYTES = 48
"""Memory per key and row number while keys are sorted."""
KEY_COLUMNS = ["keys", "count", "content"]
NO_TOTALS = {"texts": 0, "short": 0, "shingles": 0, "content": 0}
_SHUFFLED = pa.schema({"key": pa.uint64(), "local": pa.uint32()})
_EDGES = pa.schema({"left": pa.int64(), "right": pa.int64()})


@handles_shortage
def shuffle_bands(rows: RowNumbers, partition: int, num_buckets: int, blob: Blob, chunk: int) -> dict[str, int]:
    """Write the band keys of a partition by range of keys."""
    first = int(rows.offsets[partition])
    totals = dict(NO_TOTALS)
    with ShuffleWriter(blob, num_buckets, _SHUFFLED) as writer:
        for start, facts in rows.chunks(partition, KEY_COLUMNS, chunk):
            keys, count = column_to_matrix(facts.column("keys"), np.uint64), as_numpy(facts.column("count"))
            wanted = count != 0
            size = int(wanted.sum()) * keys.shape[1]
            out_keys, out_rows = np.empty(size, np.uint64), np.empty(size, np.uint32)
            ends = np.empty(num_buckets, np.int64)
            kernel.scatter_keys(keys, wanted, start - first, num_buckets, ends, out_keys, out_rows)
            writer.write_ordered(pa.table({"key": out_keys, "local": out_rows}), ends)
            add_totals(totals, facts, start)
    return totals


def add_totals(totals: dict[str, int], facts: pa.Table, first: int) -> None:
    """Add what some rows contribute to the summary; `first` is the number of the first of them."""
    count = as_numpy(facts.column("count"))
    totals["texts"] += int(np.count_nonzero(count))
    totals["short"] += int(np.count_nonzero(count < 0))
    totals["shingles"] += int(np.abs(count).sum())
    totals["content"] = (totals["content"] + content_sum(as_numpy(facts.column("content")), first)) % 2**64


def content_sum(content: np.ndarray, first: int) -> int:
    """A checksum of texts and their order that does not depend on how the rows are divided into partitions."""
    weights = 2 * np.arange(first, first + len(content), dtype=np.uint64) + np.uint64(1)
    return int(np.sum(content * weights, dtype=np.uint64))


@handles_shortage
def sum_content(rows: RowNumbers, partition: int) -> int:
    return content_sum(as_numpy(rows.observed[partition].column("content")), int(rows.offsets[partition]))


@handles_shortage
def candidate_pairs(
    rows: RowNumbers,
    shuffled: NumberedFiles,
    bucket: int,
    num_buckets: int,
    index: Index | None,
    blob: Blob,
    call_bytes: int,
) -> int:
    """Write an edge from the first row with a key to each other row with it, for the keys of one range."""

    def read() -> Iterator[dict[str, np.ndarray]]:
        for part, written in enumerate(shuffled):
            for batch in read_bucket(written, bucket, num_buckets):
                local = as_numpy(batch.column("local")).astype(np.int64)
                yield {"key": as_numpy(batch.column("key")), "row": local + rows.offsets[part]}
        for before, batch in index.keys_between(*bounds_of(bucket, num_buckets)) if index is not None else ():
            entry = as_numpy(batch.column("entry")).astype(np.int64)
            yield {"key": as_numpy(batch.column("key")), "row": entry + before + rows.total}

    count = 0
    with blob.writing() as path, pa.ipc.new_file(path, _EDGES) as writer:
        for left, right in edges_from_keys(pieces(read(), call_bytes * 5 // 4 // KEY_BYTES)):
            edge = left < rows.total  # edges between entries of the index are not needed
            table = pa.table({"left": left[edge], "right": right[edge]})
            check_free_space(blob.exchange, table.nbytes)
            writer.write_table(table)
            count += table.num_rows
    return count


def edges_from_keys(parts: Iterator[dict[str, np.ndarray]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(first row with a key, each other row with it), from pieces in ascending order of rows.

    The first row with each key is carried over from one piece to the next.
    """
    piece, following = next(parts, None), next(parts, None)
    while piece is not None:
        key, number = piece["key"], piece["row"]
        piece = None
        if following is None:
            repeated = duplicated(key)
            key, number = key[repeated], number[repeated]
        order = np.argsort(key, kind="stable")  # keeps the rows of a key in ascending order
        key, number = key[order], number[order]
        begins = np.ones(len(key), np.bool_)
        begins[1:] = key[1:] != key[:-1]
        first = number[begins][np.cumsum(begins) - 1] if len(key) else number
        yield first[~begins], number[~begins]
        if following is not None:
            firsts = {"key": key[begins], "row": number[begins]}
            following = {name: np.concatenate([values, following[name]]) for name, values in firsts.items()}
        piece, following = following, next(parts, None)


# --------------------------------------------------------------------------------------------------------- comparison

_COLLECTED = ["keys", "count", "order", "source", "signature", "shingles"]


@handles_shortage
def collect(
    rows: RowNumbers,
    partition: int,
    components: Components,
    num_buckets: int,
    blob: Blob,
    chunk: int,
    comparison: Comparison,
) -> int:
    """Write the candidates of a partition, with keys and n-grams, by component."""
    with ShuffleWriter(blob, num_buckets, comparison.schema()) as writer:
        written = 0
        for start, facts in rows.chunks(partition, _COLLECTED, chunk):
            written += _collect(writer, facts, start, components, comparison)
    return written


@handles_shortage
def collect_index(
    index: Index, part: int, first: int, components: Components, num_buckets: int, blob: Blob, comparison: Comparison
) -> int:
    """Write the candidates of one part of an index, whose entries are numbered from `first`, by component."""
    with ShuffleWriter(blob, num_buckets, comparison.schema()) as writer:
        entries = index.part(part)
        known = entries.select([name for name in _COLLECTED if name in entries.column_names])
        return _collect(writer, known, first + index.parts[part][1], components, comparison)


def _collect(writer: ShuffleWriter, facts: pa.Table, start: int, components: Components, comparison: Comparison) -> int:
    component = components.between(start, start + facts.num_rows)
    chosen = np.flatnonzero(component >= 0)
    if not len(chosen):
        return 0
    facts = facts.take(pa.array(chosen))
    columns: dict[str, Any] = {
        "component": component[chosen],
        "row": chosen + start,
        "source": column_or_zeros(facts, "source", len(chosen)),
        "order": column_or_zeros(facts, "order", len(chosen)),
        "count": facts.column("count"),
        "keys": facts.column("keys"),
    }
    if comparison.verify == "jaccard":
        columns["shingles"] = _as_sets(contiguous(facts.column("shingles")))
    else:
        columns["signature"] = facts.column("signature")
    writer.write(pa.table(columns), bucket_of_component(component[chosen], writer.num_buckets))
    return len(chosen)


def bucket_of_component(component: np.ndarray, num_buckets: int) -> np.ndarray:
    """The bucket of each component; hashing spreads them evenly."""
    mixed = component.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(32)) % np.uint64(num_buckets)).astype(np.int64)


def _as_sets(shingles: pa.Array) -> pa.LargeListArray:
    """Lists of n-gram hashes, sorted and without repeats."""
    shingles = shingles.cast(pa.large_list(pa.uint32()))
    values = as_numpy(shingles.flatten())
    offsets = as_numpy(shingles.offsets).astype(np.int64)
    out, spans = np.empty(len(values), np.uint32), np.empty(len(offsets), np.int64)
    packing.sort_sets(values, offsets - offsets[0], out, spans)
    return pa.LargeListArray.from_arrays(pa.array(spans), pa.array(out[: spans[-1]]))


@handles_shortage
def verify(
    blocks: Blocks,
    collected: NumberedFiles,
    bucket: int,
    num_buckets: int,
    comparison: Comparison,
    blob: Blob,
    memory: int,
) -> dict[str, Any]:
    """Find the duplicates among the components of one bucket.

    Rows are visited in the order of the keep policy, as many at a time as fit in memory. Of the rows of a component visited
    before, only the survivors are needed, and these are carried over.
    """
    for share in (memory, memory // 8):
        decided = BucketDecisions()
        try:
            table, in_memory = _read_candidates(collected, bucket, num_buckets, comparison, share)
            decided.run(table, in_memory, blocks.rows.total, comparison, share)
            break
        except Exception as error:
            if not is_shortage(error) or decided.largest * COMPONENT_ROW_BYTES < 2 * memory:
                raise  # smaller buckets fit
            if share < memory:
                raise BudgetError(
                    f"a component of {decided.largest:,} possible near-duplicates does not fit in a worker's memory",
                    hint="rerun the same command with more --memory or fewer --workers, or remove exact duplicates first",
                ) from error
    with PairWriter(blob, blocks) as writer:
        decided.write(writer)
    dropped = int(np.count_nonzero(decided.matches >= 0))
    return {"dropped": dropped, "sizes": histogram(decided.sizes), "largest_component": decided.largest}


def _read_candidates(
    collected: NumberedFiles, bucket: int, num_buckets: int, comparison: Comparison, memory: int
) -> tuple[pa.Table, bool]:
    """(candidates of a bucket, whether they are in memory); they are mapped if larger than `memory`."""
    batches: list[pa.RecordBatch] = []
    size = 0
    for batch in (batch for blob in collected for batch in read_bucket(blob, bucket, num_buckets)):
        batches.append(batch)
        size += batch.nbytes
        if size > memory:
            batches = [batch for blob in collected for batch in read_bucket(blob, bucket, num_buckets, mapped=True)]
            return pa.Table.from_batches(batches, comparison.schema()), False
    return pa.Table.from_batches(batches, comparison.schema()).combine_chunks(), True


def _take(table: pa.Table, order: np.ndarray, *, mapped: bool) -> pa.Table:
    """`table.take(order)`. A mapped table is read a little at a time, while Arrow would copy all of its chunks."""
    if not mapped:
        return table.take(pa.array(order))
    step = max(1, MAX_MAPPED_BYTES // (FAULT_BYTES + table.nbytes // table.num_rows))
    return take_mapped(table.to_batches(), order, step)


class BucketDecisions:
    """Decisions about the candidates of a bucket, in arrays indexed by position in the order of the keep policy.

    row                     number of the row
    matches                 position of the survivor that a dropped row matches, or -1 for a kept row
    nearest                 position of the most similar survivor that a kept row was compared with, or -1
    similarities, shared    similarity to that survivor, and the number of bands they share
    short                   whether the row has fewer words than an n-gram
    sizes                   sizes of groups: a survivor and its duplicates
    largest                 rows of the largest component
    """

    def __init__(self) -> None:
        self.largest = 0

    def run(self, table: pa.Table, in_memory: bool, total: int, comparison: Comparison, memory: int) -> None:
        """Decide about all candidates of a table; rows numbered from `total` on are entries of the index."""
        self.largest = table.num_rows  # an upper bound, in case memory runs out below
        component, self.row = as_numpy(table.column("component")), as_numpy(table.column("row"))
        rows, self.largest = len(component), _largest(component)
        ours, source = self.row < total, as_numpy(table.column("source")) if comparison.across_sources else None
        # Constant columns are left out of the sort to save memory.
        policy = [as_numpy(column) for name in ("order", "source") if _varies(column := table.column(name))]
        order = np.lexsort([self.row, *policy, *([] if ours.all() else [ours]), component])
        del policy
        component, self.row, ours = component[order], self.row[order], ours[order]
        source = source[order].astype(np.int64) if source is not None else None
        places_of: Any = np.int32 if rows < 2**31 else np.int64
        self.matches, self.nearest = np.full(rows, -1, places_of), np.full(rows, -1, places_of)
        self.similarities, self.shared = np.zeros(rows, np.float32), np.zeros(rows, np.int16)
        self.short = np.zeros(rows, np.bool_)
        step = comparison.rows_in(memory, table)
        carried, before = None, np.zeros(0, np.int64)
        for start in range(0, rows, step):
            stop = min(rows, start + step)
            some = _take(table, order[start:stop], mapped=not in_memory)
            if stop == rows:
                table = some  # releases the whole table
            some = pa.concat_tables([carried, some]) if carried is not None else some
            places = np.concatenate([before, np.arange(start, stop)])
            fixed = ~ours[places] | (places < start)
            ranks = np.where(ours[places], source[places] + 1, 0) if source is not None else places
            carry = self._compare(some, places, component[places], ranks, fixed, comparison)
            carry &= component[places] == component[stop] if stop < rows else False
            carried, before = some.filter(pa.array(carry)) if carry.any() else None, places[carry]
        self.sizes = np.unique(self.matches[self.matches >= 0], return_counts=True)[1] + 1
        if comparison.drop_all:
            self._drop_survivors(ours)

    def _compare(
        self,
        table: pa.Table,
        places: np.ndarray,
        component: np.ndarray,
        ranks: np.ndarray,
        fixed: np.ndarray,
        comparison: Comparison,
    ) -> np.ndarray:
        """Decide about the rows of a table; returns which of them are kept."""
        rows, keys = table.num_rows, column_to_matrix(table.column("keys"), np.uint64)
        bits = np.full(rows, packing.FULL_BITS, np.int8)
        if comparison.verify == "jaccard":
            lists = contiguous(table.column("shingles"))
            sets, spans = as_numpy(lists.flatten()), as_numpy(lists.offsets) - lists.offsets[0].as_py()
        else:
            packed, ends = byte_buffers(contiguous(table.column("signature")))
            spans = np.empty(rows + 1, np.int64)
            packing.packed_sizes(packed, ends, spans)
            sets = np.empty(int(spans[-1]), np.uint32)
            packing.unpack_sets(packed, ends, spans, sets, bits)
            sets.flags.writeable = False  # as those of whole sets, so that the kernel is compiled once
        slots = kernel.num_slots(_largest(component), comparison.num_bands)
        matches, nearest = np.empty(rows, np.int64), np.empty(rows, np.int64)
        similarities, nearest_similarities = np.empty(rows, np.float64), np.empty(rows, np.float64)
        kernel.choose(
            component, ranks, keys, fixed, comparison.verify == "none", sets, spans, bits, comparison.threshold,
            max(0.0, comparison.threshold - NEAR_MISS_MARGIN), kernel.MAX_LINKED, kernel.MAX_UNLINKED,
            np.empty(rows, np.int64), np.empty((rows, comparison.num_bands), np.int32),
            np.empty(slots, np.int32 if slots < 2**31 else np.int64), np.empty(rows, np.int64),
            matches, similarities, nearest, nearest_similarities,
        )  # fmt: skip
        compared = np.flatnonzero((matches >= 0) | (nearest >= 0))
        at, dropped = places[compared], matches[compared] >= 0
        other = np.where(dropped, matches[compared], nearest[compared])
        self.matches[at] = np.where(dropped, places[other], -1)
        self.nearest[at] = np.where(dropped, -1, places[other])
        self.similarities[at] = np.where(dropped, similarities[compared], nearest_similarities[compared])
        self.shared[at] = np.count_nonzero(keys[compared] == keys[other], axis=1)
        self.short[places] = as_numpy(table.column("count")) < 0
        return matches < 0

    def _drop_survivors(self, ours: np.ndarray) -> None:
        """For keep="none": drop each survivor of a group too, as a duplicate of the most similar row of the group."""
        duplicates = np.flatnonzero(self.matches >= 0)
        duplicates = duplicates[np.argsort(-self.similarities[duplicates], kind="stable")]
        survivors, first = np.unique(self.matches[duplicates], return_index=True)
        best = duplicates[first]
        mine = ours[survivors]
        survivors, best = survivors[mine], best[mine]
        self.matches[survivors], self.nearest[survivors] = best, -1
        self.similarities[survivors], self.shared[survivors] = self.similarities[best], self.shared[best]

    def write(self, writer: PairWriter) -> None:
        chosen = np.flatnonzero((self.matches >= 0) | (self.nearest >= 0))
        for start in range(0, len(chosen), 2**18):
            some = chosen[start : start + 2**18]
            dropped = self.matches[some] >= 0
            writer.write(
                {
                    "row": self.row[some],
                    "survivor": self.row[np.where(dropped, self.matches[some], self.nearest[some])],
                    "similarity": self.similarities[some],
                    "bands": self.shared[some],
                    "short": self.short[some],
                    "dropped": dropped,
                }
            )


def _varies(column: pa.ChunkedArray) -> bool:
    ends = pc.min_max(column)
    return ends["min"] != ends["max"]


def _largest(component: np.ndarray) -> int:
    return int(np.unique(component, return_counts=True)[1].max()) if len(component) else 0
