"""From edges to components: the smallest row of the component of each row, or -1 for a row without an edge.

If an integer per row fits in a worker, one call joins all edges (union-find). Otherwise rows are divided into ranges, and
calls for different ranges run at the same time, on any node. A range keeps the parent of each of its rows, which is a smaller
row of the same component. Each round has two phases:

    hook    parents of the range, edges to them    -> joined within the range; each row gets the smallest parent that was found
                                                   -> edges between that parent and the others, to the ranges of the others
                                                   -> the parents outside of the range, to their ranges, each once
    answer  parents that other ranges ask for      -> their own parents, to the ranges that asked

When no edge is left and all parents outside of a range are their own parents, the parents are the components. Every round
halves the length of paths to the smallest row (pointer jumping, Shiloach and Vishkin 1982), and passes edges on to smaller rows
(as the small-star of Kiveris et al. 2014 does), so there are few rounds. A row with a million neighbours is looked up once per
range, and not once by each of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tamis.dedup.rows import MAX_MAPPED_BYTES
from tamis.dedup.shuffle import (
    NumberedFiles,
    ShuffleWriter,
    as_numpy,
    bucket_count,
    check_free_space,
    handles_shortage,
    read_bucket,
    run_in_workers,
)
from tamis.exchange import Blob, Exchange
from tamis.kernels import groups as kernel
from tamis.mapped import release_pages
from tamis.operators import Work

RANGE_ROW_BYTES = 40
"""Memory per row of a range while it is joined."""

_STEP = 2**20
"""Rows or edges that are processed at a time."""

_EDGES = pa.schema({"larger": pa.int64(), "smaller": pa.int64()})
_ASKED = pa.schema({"row": pa.int64(), "asking": pa.int32()})
_ANSWERS = pa.schema({"row": pa.int64(), "parent": pa.int64()})


@dataclass(frozen=True)
class RowValues:
    """A number per row, in files of `range_rows` rows each."""

    files: NumberedFiles
    range_rows: int
    dtype: str = "int64"

    def of(self, rows: np.ndarray) -> np.ndarray:
        """The numbers of some rows."""
        found, number = np.empty(len(rows), self.dtype), rows // self.range_rows
        for each in np.unique(number):
            mine = np.flatnonzero(number == each)
            mapped = np.memmap(self.files[int(each)].file(), self.dtype, mode="r")
            found[mine] = mapped[rows[mine] - each * self.range_rows]
        return found


@dataclass(frozen=True)
class Components(RowValues):
    """The component of each row."""

    @staticmethod
    def in_one_file(exchange: Exchange, stem: str, total: int) -> Components:
        return Components(NumberedFiles(exchange, stem, 1), max(1, total))

    def between(self, start: int, stop: int) -> np.ndarray:
        """The components of some consecutive rows."""
        parts = [np.empty(0, np.int64)]
        while start < stop:
            number, first = divmod(start, self.range_rows)
            count = min(stop - start, self.range_rows - first)
            with self.files[number].open() as file:
                file.seek(8 * first)
                parts.append(np.frombuffer(file.read(8 * count), np.int64))
            start += count
        return np.concatenate(parts)


def join_components(
    work: Work, name: str, total: int, edges: NumberedFiles, call_bytes: int
) -> tuple[Components, dict[str, int]]:
    """(components of rows that edges connect, how many rows and components these are). Edges are `left` and `right`."""
    if total * bytes_per_row(total) <= call_bytes:
        found = Components.in_one_file(work.exchange, f"components-{name}-", total)
        (counts,) = run_in_workers(work, f"components, {name}", join_in_one_call, [(total, edges, found.files[0])])
        return found, counts
    ranges = Ranges.of(work.exchange.sub(f"components-{name}"), total, call_bytes)
    return ranges.join(work, f"components, {name}, {ranges.count} ranges", edges)


def bytes_per_row(total: int) -> int:
    """Memory per row of the union-find in one call."""
    return 5 if total < 2**31 else 9


@handles_shortage
def join_in_one_call(total: int, edges: NumberedFiles, blob: Blob) -> dict[str, int]:
    """Write the component of each row, int64, with all rows in memory."""
    parents = np.arange(total, dtype=np.int32 if total < 2**31 else np.int64)
    touched = np.zeros(total, np.bool_)
    for found_edges in edges:
        for left, right in _mapped_edges(found_edges):
            kernel.unite(parents, left, right)
            kernel.mark(touched, left)
            kernel.mark(touched, right)
    counts = {"candidates": 0, "components": 0}
    check_free_space(blob.exchange, 8 * total)
    with blob.writing() as path, path.open("wb") as written:
        for start in range(0, total, _STEP):
            out = np.empty(min(total, start + _STEP) - start, np.int64)
            kernel.flatten(parents, start, start + len(out), touched, out)
            written.write(out.tobytes())
            _count(counts, out, start)
    return counts


def _count(counts: dict[str, int], components: np.ndarray, start: int) -> None:
    counts["candidates"] += int(np.count_nonzero(components >= 0))
    counts["components"] += int(np.count_nonzero(components == np.arange(start, start + len(components))))


def _mapped_edges(blob: Blob) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    with pa.memory_map(str(blob.file())) as file:
        reader = pa.ipc.open_file(file)
        held = 0
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            yield as_numpy(batch.column("left")), as_numpy(batch.column("right"))
            held += batch.nbytes
            if held > MAX_MAPPED_BYTES:
                release_pages()
                held = 0


# --------------------------------------------------------------------------------------------------------- over ranges


@dataclass(frozen=True)
class Ranges:
    """Rows divided into ranges of equal size, with the names of the files of each round."""

    exchange: Exchange
    total: int
    rows: int
    """Rows of a range; the last one may have fewer."""

    @staticmethod
    def of(exchange: Exchange, total: int, call_bytes: int) -> Ranges:
        return Ranges(exchange, total, -(-total // bucket_count(total * RANGE_ROW_BYTES, call_bytes)))

    @property
    def count(self) -> int:
        return -(-self.total // self.rows)

    def borders(self, number: int) -> tuple[int, int]:
        return number * self.rows, min(self.total, (number + 1) * self.rows)

    def files(self, kind: str, round_number: int | None = None) -> NumberedFiles:
        label = kind if round_number is None else f"{kind}-{round_number}"
        return NumberedFiles(self.exchange, f"{self.count}-{label}-", self.count)

    def delete(self, round_number: int) -> None:
        for kind in ("edges", "parents", "asked", "answers"):
            for blob in self.files(kind, round_number):
                blob.delete()

    def join(self, work: Work, name: str, edges: NumberedFiles) -> tuple[Components, dict[str, int]]:
        sent = NumberedFiles(self.exchange, f"{self.count}-sent-", len(edges))
        run_in_workers(
            work, f"{name}, edges", send_edges, [(self, each, blob) for each, blob in zip(edges, sent, strict=True)]
        )
        numbers = range(self.count)
        for number in itertools.count():
            incoming = self.files("edges", number - 1) if number else sent
            items = [(self, number, each, incoming) for each in numbers]
            left = sum(run_in_workers(work, f"{name}, hook {number}", hook, items))
            changed = run_in_workers(
                work, f"{name}, answer {number}", answer, [(self, number, each) for each in numbers]
            )
            for blob in incoming:
                blob.delete()
            if number:
                self.delete(number - 1)
            if not left and not sum(changed):
                break
        found = Components(self.files("components"), self.rows)
        counts = run_in_workers(
            work, f"{name}, components", finish, [(self, number, each, found.files[each]) for each in numbers]
        )
        self.delete(number)
        return found, {key: sum(each[key] for each in counts) for key in ("candidates", "components")}


@handles_shortage
def send_edges(ranges: Ranges, edges: Blob, blob: Blob) -> int:
    """Write the edges of one file by range of the larger row."""
    count = 0
    with ShuffleWriter(blob, ranges.count, _EDGES) as writer:
        for left, right in _mapped_edges(edges):
            larger, smaller = np.maximum(left, right), np.minimum(left, right)
            writer.write(pa.table({"larger": larger, "smaller": smaller}), larger // ranges.rows)
            count += len(left)
    return count


@handles_shortage
def hook(ranges: Ranges, round_number: int, number: int, incoming: NumberedFiles) -> int:
    """Join the rows of a range with their parents so far and with the edges sent to it; returns how many edges are left."""
    first, last = ranges.borders(number)
    inside = np.arange(last - first, dtype=np.int32 if last - first < 2**31 else np.int64)
    lowest, touched = np.full(last - first, ranges.total, np.int64), np.zeros(last - first, np.bool_)
    joined = _Joined(ranges, round_number, number, incoming)
    for larger, smaller in joined:
        kernel.join_range(first, larger, smaller, inside, lowest, touched)
    kernel.lower_roots(inside, lowest)
    left = 0
    with ShuffleWriter(ranges.files("edges", round_number)[number], ranges.count, _EDGES) as writer:
        for larger, smaller in joined:
            table = _passed_on(first, larger, smaller, inside, lowest)
            writer.write(table, as_numpy(table.column("larger")) // ranges.rows)
            left += table.num_rows
    del joined
    blob = ranges.files("parents", round_number)[number]
    check_free_space(blob.exchange, 8 * (last - first))
    with blob.writing() as path, path.open("wb") as written:
        for start in range(0, last - first, _STEP):
            out = np.empty(min(_STEP, last - first - start), np.int64)
            kernel.parents_in_range(first, start, inside, lowest, touched, out)
            written.write(out.tobytes())
    lowest = lowest[(inside == np.arange(last - first)) & (lowest < first)]
    del inside, touched
    _ask(ranges, round_number, number, np.unique(lowest))
    return left


def _ask(ranges: Ranges, round_number: int, number: int, rows: np.ndarray) -> None:
    """Send the parents outside of a range to their ranges."""
    with ShuffleWriter(ranges.files("asked", round_number)[number], ranges.count, _ASKED) as writer:
        for start in range(0, len(rows), _STEP):
            some = rows[start : start + _STEP]
            table = pa.table({"row": some, "asking": np.full(len(some), number, np.int32)})
            writer.write(table, some // ranges.rows)


def _passed_on(first: int, larger: np.ndarray, smaller: np.ndarray, inside: np.ndarray, lowest: np.ndarray) -> pa.Table:
    """The edges between rows outside of a range, each once."""
    out_larger, out_smaller = np.empty(len(larger), np.int64), np.empty(len(larger), np.int64)
    count = kernel.passed_on(first, larger, smaller, inside, lowest, out_larger, out_smaller)
    out_larger, out_smaller = out_larger[:count], out_smaller[:count]
    order = np.lexsort([out_smaller, out_larger])
    out_larger, out_smaller = out_larger[order], out_smaller[order]
    new = np.ones(count, np.bool_)
    new[1:] = (out_larger[1:] != out_larger[:-1]) | (out_smaller[1:] != out_smaller[:-1])
    return pa.table({"larger": out_larger[new], "smaller": out_smaller[new]})


class _Joined:
    """What is joined to the rows of a range: their parents of the round before, and edges. Can be iterated more than once.

    A parent that has another parent itself is replaced by that one.
    """

    def __init__(self, ranges: Ranges, round_number: int, number: int, incoming: NumberedFiles) -> None:
        self._ranges, self._number, self._incoming = ranges, number, incoming
        self._before = ranges.files("parents", round_number - 1)[number] if round_number else None
        rows, parents = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for blob in ranges.files("answers", round_number - 1) if round_number else ():
            for batch in read_bucket(blob, number, ranges.count):
                rows.append(as_numpy(batch.column("row")))
                parents.append(as_numpy(batch.column("parent")))
        # Files are in the order of ranges, and the rows of each are sorted.
        self._row, self._parent = np.concatenate(rows), np.concatenate(parents)

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(row of the range, smaller row)"""
        if self._before is not None:
            for start, parents in _read_parents(self._before, *self._ranges.borders(self._number)):
                rows = np.flatnonzero(parents >= 0)
                yield rows + start, self._replaced(parents[rows])
        for blob in self._incoming:
            for batch in read_bucket(blob, self._number, self._ranges.count):
                yield as_numpy(batch.column("larger")), as_numpy(batch.column("smaller"))

    def _replaced(self, parents: np.ndarray) -> np.ndarray:
        if not len(self._row):
            return parents
        place = np.minimum(np.searchsorted(self._row, parents), len(self._row) - 1)
        return np.where(self._row[place] == parents, self._parent[place], parents)


def _read_parents(blob: Blob, first: int, last: int) -> Iterator[tuple[int, np.ndarray]]:
    with blob.open() as file:
        for start in range(first, last, _STEP):
            yield start, np.frombuffer(file.read(8 * min(_STEP, last - start)), np.int64)


@handles_shortage
def answer(ranges: Ranges, round_number: int, number: int) -> int:
    """Send the parents of rows that other ranges asked for, unless a row is its own parent; returns how many were sent."""
    first, last = ranges.borders(number)
    parents = np.empty(last - first, np.int64)
    for start, some in _read_parents(ranges.files("parents", round_number)[number], first, last):
        parents[start - first : start - first + len(some)] = some
    changed = 0
    with ShuffleWriter(ranges.files("answers", round_number)[number], ranges.count, _ANSWERS) as writer:
        for blob in ranges.files("asked", round_number):
            for batch in read_bucket(blob, number, ranges.count):
                row, asking = as_numpy(batch.column("row")), as_numpy(batch.column("asking"))
                parent = parents[row - first]
                other = np.flatnonzero((parent >= 0) & (parent != row))
                writer.write(pa.table({"row": row[other], "parent": parent[other]}), asking[other].astype(np.int64))
                changed += len(other)
    return changed


@handles_shortage
def finish(ranges: Ranges, round_number: int, number: int, blob: Blob) -> dict[str, int]:
    """Write the components of a range from the parents of the last round."""
    first, last = ranges.borders(number)
    asked = np.zeros(last - first, np.bool_)
    for written_by in ranges.files("asked", round_number):
        for batch in read_bucket(written_by, number, ranges.count):
            asked[as_numpy(batch.column("row")) - first] = True
    counts = {"candidates": 0, "components": 0}
    check_free_space(blob.exchange, 8 * (last - first))
    with blob.writing() as path, path.open("wb") as written:
        for start, parents in _read_parents(ranges.files("parents", round_number)[number], first, last):
            rows = np.arange(start, start + len(parents))
            # A row that is the smallest of its component may have been joined in other ranges only.
            alone = asked[start - first : start - first + len(parents)] & (parents < 0)
            components = np.where(alone, rows, parents)
            written.write(components.tobytes())
            _count(counts, components, start)
    return counts
