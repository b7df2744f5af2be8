"""Near-duplicates, from band keys to decisions, each step a set of calls that fit a worker's share of memory.

    keys of a partition     -> by range of keys                                  scatter_bands     one call per partition
    a range of keys         -> rows that share a key: edges             candidate_pairs              one call per range
    all edges               -> components (union-find in one integer array)      join_components   one call
    rows in a component     -> with what is needed to compare them, by component collect           one call per partition
    some components         -> who stays, who goes in whose favour               verify            one call per bucket

What is proposed depends on the keys alone and what is decided on a component as a whole, so the result does not depend on how
the work was divided. Components only bring together what must be looked at together: that two rows are in one says nothing
about their likeness.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import contiguous
from tamis.dedup.index import Index
from tamis.dedup.rows import AROUND_BYTES, TOUCHED_BYTES, RowNumbers, fill
from tamis.dedup.settle import Homes, PairWriter, histogram
from tamis.dedup.shuffle import (
    Files,
    ShuffleWriter,
    Unfinished,
    allocate,
    as_matrix,
    bounds_of,
    duplicated,
    make_sure_of_room,
    numbers,
    pieces,
    read_bucket,
    tells_limits,
)
from tamis.dedup.texts import byte_buffers
from tamis.errors import BudgetError, is_shortage
from tamis.kernels import groups as kernel
from tamis.kernels import sets as packing
from tamis.mapped import release_pages

Verify: TypeAlias = Literal["jaccard", "signature", "none"]

FOUND_BYTES = 60
"""What is held of each row of a component, however it is divided."""

LEAST_ROWS = 100
"""Candidates that are compared at a time, however little memory there is."""

NEAR = 0.15
"""Rows that stayed although they are this close below the threshold are worth a look."""


@dataclass(frozen=True)
class Comparison:
    """How candidates are compared."""

    verify: Verify
    threshold: float
    num_bands: int
    none: bool
    across: bool

    @property
    def row_bytes(self) -> int:
        """Memory per candidate while it is compared, less its set of n-grams."""
        return 72 + 8 * self.num_bands + 14 * self.num_bands

    def rows_in(self, memory: int, table: pa.Table) -> int:
        """How many candidates like those of a table can be compared at a time: with a copy, and with sets unpacked."""
        times = 2 if self.verify == "jaccard" else 6
        return max(LEAST_ROWS, memory // (self.row_bytes + times * table.nbytes // max(1, table.num_rows)))

    def schema(self) -> pa.Schema:
        whole = self.verify == "jaccard"
        what = {"shingles": pa.large_list(pa.uint32())} if whole else {"signature": pa.large_binary()}
        return pa.schema(
            {
                "component": pa.int64(),
                "row": pa.int64(),
                "source": pa.uint64(),
                "order": pa.uint64(),
                "count": pa.int64(),
                "keys": pa.binary(8 * self.num_bands),
                **what,
            }
        )


# ---------------------------------------------------------------------------------------------------------- proposing

KEY_BYTES = 48
"""A key with its row, while keys are sorted."""
_SCATTERED = pa.schema({"key": pa.uint64(), "local": pa.uint32()})
_EDGES = pa.schema({"left": pa.int64(), "right": pa.int64()})


@tells_limits
def scatter_bands(rows: RowNumbers, partition: int, num_buckets: int, path: Path, chunk: int) -> dict[str, int]:
    """Write the band keys of a partition by range."""
    first = int(rows.offsets[partition])
    totals = {"texts": 0, "short": 0, "shingles": 0, "content": 0}
    with ShuffleWriter(path, num_buckets, _SCATTERED) as writer:
        for start, facts in rows.chunks(partition, ["keys", "count", "content"], chunk):
            keys, count = as_matrix(facts.column("keys"), np.uint64), numbers(facts.column("count"))
            wanted = count != 0
            size = int(wanted.sum()) * keys.shape[1]
            out_keys, out_rows = np.empty(size, np.uint64), np.empty(size, np.uint32)
            ends = np.empty(num_buckets, np.int64)
            kernel.scatter_keys(keys, wanted, start - first, num_buckets, ends, out_keys, out_rows)
            writer.write_ordered(pa.table({"key": out_keys, "local": out_rows}), ends)
            totals["texts"] += int(wanted.sum())
            totals["short"] += int(np.count_nonzero(count < 0))
            totals["shingles"] += int(np.abs(count).sum())
            totals["content"] += content_sum(numbers(facts.column("content")), start)
    return totals | {"content": totals["content"] % 2**64}


def content_sum(content: np.ndarray, first: int) -> int:
    """A sum over rows that says whether two runs saw the same texts in the same order, however they were divided."""
    weights = 2 * np.arange(first, first + len(content), dtype=np.uint64) + np.uint64(1)
    return int(np.sum(content * weights, dtype=np.uint64))


@tells_limits
def sum_content(rows: RowNumbers, partition: int) -> int:
    return content_sum(numbers(rows.observed[partition].column("content")), int(rows.offsets[partition]))


@tells_limits
def candidate_pairs(
    rows: RowNumbers, scattered: Files, bucket: int, num_buckets: int, index: Index | None, path: Path, usable: int
) -> int:
    """Join each row of a range that shares a key with others to the first of them."""

    def read() -> Iterator[dict[str, np.ndarray]]:
        for part, file in enumerate(scattered):
            for batch in read_bucket(file, bucket, num_buckets):
                local = numbers(batch.column("local")).astype(np.int64)
                yield {"key": numbers(batch.column("key")), "row": local + rows.offsets[part]}
        for before, batch in index.keys_between(*bounds_of(bucket, num_buckets)) if index is not None else ():
            entry = numbers(batch.column("entry")).astype(np.int64)
            yield {"key": numbers(batch.column("key")), "row": entry + before + rows.total}

    count = 0
    with Unfinished(path) as temporary, pa.ipc.new_file(temporary, _EDGES) as writer:
        for left, right in edges_of(pieces(read(), usable * 5 // 4 // KEY_BYTES)):
            edge = left < rows.total  # rows of the index alone are none of our business
            table = pa.table({"left": left[edge], "right": right[edge]})
            make_sure_of_room(path.parent, table.nbytes)
            writer.write_table(table)
            count += table.num_rows
    return count


def edges_of(parts: Iterator[dict[str, np.ndarray]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(first row with a key, each other row with it), from keys in ascending order of rows.

    Of each piece but the last, the first row with each key is carried on.
    """
    piece, following = next(parts, None), next(parts, None)
    while piece is not None:
        key, number = piece["key"], piece["row"]
        piece = None
        if following is None:
            repeated = duplicated(key)
            key, number = key[repeated], number[repeated]
        order = np.argsort(key, kind="stable")  # rows came in ascending order, and stay so within a key
        key, number = key[order], number[order]
        begins = np.ones(len(key), np.bool_)
        begins[1:] = key[1:] != key[:-1]
        first = number[begins][np.cumsum(begins) - 1] if len(key) else number
        yield first[~begins], number[~begins]
        if following is not None:
            firsts = {"key": key[begins], "row": number[begins]}
            following = {name: np.concatenate([values, following[name]]) for name, values in firsts.items()}
        piece, following = following, next(parts, None)


@tells_limits
def join_components(total: int, edges: Files, path: Path, memory: int) -> dict[str, int]:
    """Write to `path` (int64 per row) the smallest row of each row's component, -1 for rows that are alone.

    Holds 5 bytes per row, 9 from two thousand million rows on; if that is more than `memory`, the array is mapped from disk.
    """
    dtype = np.int32 if total < 2**31 else np.int64
    parents = allocate((total,), dtype, path.parent, memory)
    on_disk, held = parents.nbytes > memory, 0
    step = 2**22
    for start in range(0, total, step):
        parents[start : start + step] = np.arange(start, min(total, start + step), dtype=dtype)
    touched = allocate((total,), np.bool_, path.parent, memory)
    touched[:] = False
    for file in edges:
        reader = pa.ipc.open_file(pa.memory_map(str(file)))
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            left, right = numbers(batch.column("left")), numbers(batch.column("right"))
            kernel.unite(parents, left, right)
            kernel.mark(touched, left)
            kernel.mark(touched, right)
            held += batch.nbytes
            if held > TOUCHED_BYTES:
                release_pages()
                held = 0
    found = {"candidates": 0, "components": 0}
    with Unfinished(path) as temporary, temporary.open("wb") as written:
        for start in range(0, total, step):
            out = np.empty(min(total, start + step) - start, np.int64)
            kernel.flatten(parents, start, start + len(out), touched, out)
            written.write(out.tobytes())
            if on_disk:
                release_pages()
            found["candidates"] += int(np.count_nonzero(out >= 0))
            found["components"] += int(np.count_nonzero(out == np.arange(start, start + len(out))))
    return found


# ----------------------------------------------------------------------------------------------------------- comparing

_COLLECTED = ["keys", "count", "order", "source", "signature", "shingles"]


@tells_limits
def collect(
    rows: RowNumbers, partition: int, components: Path, num_buckets: int, path: Path, chunk: int, how: Comparison
) -> int:
    """Write what is needed to compare the candidates of a partition, by component."""
    with ShuffleWriter(path, num_buckets, how.schema()) as writer:
        written = 0
        for start, facts in rows.chunks(partition, _COLLECTED, chunk):
            written += _collect(writer, facts, start, components, how)
    return written


@tells_limits
def collect_index(index: Index, first: int, components: Path, num_buckets: int, path: Path, how: Comparison) -> int:
    """The same for the rows of an index, which are numbered from `first`."""
    with ShuffleWriter(path, num_buckets, how.schema()) as writer:
        written = 0
        for before, entries in index.entries():
            known = entries.select([name for name in _COLLECTED if name in entries.column_names])
            written += _collect(writer, known, first + before, components, how)
    return written


def _collect(writer: ShuffleWriter, facts: pa.Table, start: int, components: Path, how: Comparison) -> int:
    with components.open("rb") as file:
        file.seek(8 * start)
        component = np.frombuffer(file.read(8 * facts.num_rows), np.int64)
    chosen = np.flatnonzero(component >= 0)
    if not len(chosen):
        return 0
    facts = facts.take(pa.array(chosen))
    columns: dict[str, Any] = {
        "component": component[chosen],
        "row": chosen + start,
        "source": fill(facts, "source", len(chosen)),
        "order": fill(facts, "order", len(chosen)),
        "count": facts.column("count"),
        "keys": facts.column("keys"),
    }
    if how.verify == "jaccard":
        columns["shingles"] = _as_sets(contiguous(facts.column("shingles")))
    else:
        columns["signature"] = facts.column("signature")
    writer.write(pa.table(columns), bucket_of_component(component[chosen], writer.num_buckets))
    return len(chosen)


def bucket_of_component(component: np.ndarray, num_buckets: int) -> np.ndarray:
    """Components spread evenly, whatever rows they begin with."""
    mixed = component.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(32)) % np.uint64(num_buckets)).astype(np.int64)


def _as_sets(shingles: pa.Array) -> pa.LargeListArray:
    """Lists of n-gram hashes as sorted lists without repeats."""
    shingles = shingles.cast(pa.large_list(pa.uint32()))
    values = numbers(shingles.flatten())
    offsets = numbers(shingles.offsets).astype(np.int64)
    out, spans = np.empty(len(values), np.uint32), np.empty(len(offsets), np.int64)
    packing.sort_sets(values, offsets - offsets[0], out, spans)
    return pa.LargeListArray.from_arrays(pa.array(spans), pa.array(out[: spans[-1]]))


@tells_limits
def verify(
    homes: Homes, collected: Files, bucket: int, num_buckets: int, how: Comparison, path: Path, memory: int
) -> dict[str, Any]:
    """Decide about the rows of the components in one bucket.

    They are gone through in the order of the policy, as many at a time as fit; of a component that began before, those that
    stay are at hand, and no row is compared with others.
    """
    for share in (memory, memory // 8):
        found = Found()
        try:
            found.decide(*_bucket(collected, bucket, num_buckets, how, share), homes.rows.total, how, share)
            break
        except Exception as error:
            if not is_shortage(error) or found.largest * FOUND_BYTES < 2 * memory:
                raise  # smaller buckets will do
            if share < memory:
                raise BudgetError(
                    f"{found.largest:,} rows that may be near-duplicates of each other are more than a worker can decide about",
                    hint="run the same command again with more --memory or fewer --workers, or deduplicate exactly before",
                ) from error
    with PairWriter(path, homes) as writer:
        found.write(writer)
    dropped = int(np.count_nonzero(found.twins >= 0))
    return {"dropped": dropped, "sizes": histogram(found.sizes), "largest_component": found.largest}


def _bucket(collected: Files, bucket: int, num_buckets: int, how: Comparison, memory: int) -> tuple[pa.Table, bool]:
    """The candidates of a bucket, and whether they are in memory; they are mapped if they are more than `memory`."""
    batches: list[pa.RecordBatch] = []
    size = 0
    for batch in (batch for file in collected for batch in read_bucket(file, bucket, num_buckets)):
        batches.append(batch)
        size += batch.nbytes
        if size > memory:
            batches = [batch for file in collected for batch in read_bucket(file, bucket, num_buckets, mapped=True)]
            return pa.Table.from_batches(batches, how.schema()), False
    return pa.Table.from_batches(batches, how.schema()).combine_chunks(), True


def _taken(table: pa.Table, order: np.ndarray, *, mapped: bool) -> pa.Table:
    """`table.take(order)`; of a mapped table little is held at a time, while Arrow would copy all chunks to look at some."""
    if not mapped:
        return table.take(pa.array(order))
    batches = table.to_batches()
    ends = np.cumsum([batch.num_rows for batch in batches])
    inside = np.searchsorted(ends, order, side="right")
    by_batch = np.argsort(inside, kind="stable")
    step = max(1, TOUCHED_BYTES // (AROUND_BYTES + table.nbytes // table.num_rows))
    parts = []
    for start in range(0, len(order), step):
        some = by_batch[start : start + step]
        for number in np.unique(inside[some]):
            places = order[some[inside[some] == number]] - (ends[number] - batches[number].num_rows)
            parts.append(batches[number].take(pa.array(places)))
        release_pages()
    back = np.empty(len(order), np.int64)
    back[by_batch] = np.arange(len(order))
    return pa.Table.from_batches(parts, table.schema).take(pa.array(back))


class Found:
    """What is decided about the rows of a bucket, by their places in the order of the policy.

    row                    the number of each
    twins, near            the place of the row in whose favour one goes, or of the most alike of those one stays beside; or -1
    likeness, shared       how alike the two are, and how many bands they share
    short                  whether a row has fewer words than an n-gram
    sizes                  of groups: a row that stays, and those that went in its favour
    largest                rows of the largest component
    """

    def __init__(self) -> None:
        self.largest = 0

    def decide(self, table: pa.Table, fits: bool, total: int, how: Comparison, memory: int) -> None:
        """Go through the candidates of a table, which are in memory if that `fits`; rows from `total` on are of the index."""
        self.largest = table.num_rows  # as far as is known, should there be no room to look
        component, self.row = numbers(table.column("component")), numbers(table.column("row"))
        rows, self.largest = len(component), _largest(component)
        ours, source = self.row < total, numbers(table.column("source")) if how.across else None
        # What is the same for all rows is not sorted by: a component may be all that fits.
        policy = [numbers(column) for name in ("order", "source") if _varies(column := table.column(name))]
        order = np.lexsort([self.row, *policy, *([] if ours.all() else [ours]), component])
        del policy
        component, self.row, ours = component[order], self.row[order], ours[order]
        source = source[order].astype(np.int64) if source is not None else None
        places_of: Any = np.int32 if rows < 2**31 else np.int64
        self.twins, self.near = np.full(rows, -1, places_of), np.full(rows, -1, places_of)
        self.likeness, self.shared = np.zeros(rows, np.float32), np.zeros(rows, np.int16)
        self.short = np.zeros(rows, np.bool_)
        step = how.rows_in(memory, table)
        carried, before = None, np.zeros(0, np.int64)
        for start in range(0, rows, step):
            stop = min(rows, start + step)
            some = _taken(table, order[start:stop], mapped=not fits)
            if stop == rows:
                table = some  # nothing more is taken from it
            some = pa.concat_tables([carried, some]) if carried is not None else some
            places = np.concatenate([before, np.arange(start, stop)])
            fixed = ~ours[places] | (places < start)
            ranks = np.where(ours[places], source[places] + 1, 0) if source is not None else places
            stays = self.look(some, places, component[places], ranks, fixed, how)
            stays &= component[places] == component[stop] if stop < rows else False
            carried, before = some.filter(pa.array(stays)) if stays.any() else None, places[stays]
        self.sizes = np.unique(self.twins[self.twins >= 0], return_counts=True)[1] + 1
        if how.none:
            self.drop_originals(ours)

    def look(
        self,
        table: pa.Table,
        places: np.ndarray,
        component: np.ndarray,
        ranks: np.ndarray,
        fixed: np.ndarray,
        how: Comparison,
    ) -> np.ndarray:
        """Decide about the rows of a table; which of them stay."""
        rows, keys = table.num_rows, as_matrix(table.column("keys"), np.uint64)
        bits = np.full(rows, packing.WHOLE, np.int8)
        if how.verify == "jaccard":
            lists = contiguous(table.column("shingles"))
            sets, spans = numbers(lists.flatten()), numbers(lists.offsets) - lists.offsets[0].as_py()
        else:
            packed, ends = byte_buffers(contiguous(table.column("signature")))
            spans = np.empty(rows + 1, np.int64)
            packing.packed_sizes(packed, ends, spans)
            sets = np.empty(int(spans[-1]), np.uint32)
            packing.unpack_sets(packed, ends, spans, sets, bits)
            sets.flags.writeable = False  # one specialisation of the kernel
        slots = kernel.num_slots(_largest(component), how.num_bands)
        twins, near = np.empty(rows, np.int64), np.empty(rows, np.int64)
        likeness, near_likeness = np.empty(rows, np.float64), np.empty(rows, np.float64)
        kernel.choose(
            component, ranks, keys, fixed, how.verify == "none", sets, spans, bits, how.threshold,
            max(0.0, how.threshold - NEAR), kernel.MAX_LINKED, kernel.MAX_UNLINKED,
            np.empty(rows, np.int64), np.empty((rows, how.num_bands), np.int32),
            np.empty(slots, np.int32 if slots < 2**31 else np.int64), np.empty(rows, np.int64),
            twins, likeness, near, near_likeness,
        )  # fmt: skip
        met = np.flatnonzero((twins >= 0) | (near >= 0))
        other = np.where(twins[met] >= 0, twins[met], near[met])
        self.twins[places[met]] = np.where(twins[met] >= 0, places[other], -1)
        self.near[places[met]] = np.where(twins[met] >= 0, -1, places[other])
        self.likeness[places[met]] = np.where(twins[met] >= 0, likeness[met], near_likeness[met])
        self.shared[places[met]] = np.count_nonzero(keys[met] == keys[other], axis=1)
        self.short[places] = numbers(table.column("count")) < 0
        return twins < 0

    def drop_originals(self, ours: np.ndarray) -> None:
        """For keep="none": rows that others went in favour of go too, in favour of the most alike of these."""
        copies = np.flatnonzero(self.twins >= 0)
        copies = copies[np.argsort(-self.likeness[copies], kind="stable")]
        originals, first = np.unique(self.twins[copies], return_index=True)
        best = copies[first]
        mine = ours[originals]
        originals, best = originals[mine], best[mine]
        self.twins[originals], self.near[originals] = best, -1
        self.likeness[originals], self.shared[originals] = self.likeness[best], self.shared[best]

    def write(self, writer: PairWriter) -> None:
        chosen = np.flatnonzero((self.twins >= 0) | (self.near >= 0))
        for start in range(0, len(chosen), 2**18):
            some = chosen[start : start + 2**18]
            gone = self.twins[some] >= 0
            writer.write(
                {
                    "row": self.row[some],
                    "twin": self.row[np.where(gone, self.twins[some], self.near[some])],
                    "similarity": self.likeness[some],
                    "bands": self.shared[some],
                    "short": self.short[some],
                    "dropped": gone,
                }
            )


def _varies(column: pa.ChunkedArray) -> bool:
    ends = pc.min_max(column)
    return ends["min"] != ends["max"]


def _largest(component: np.ndarray) -> int:
    return int(np.unique(component, return_counts=True)[1].max()) if len(component) else 0
