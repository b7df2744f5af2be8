"""From sequences of hashes to pairs of rows that agree over time. Each phase is a set of calls that fit in a worker's memory.

    sequences of a partition   -> keys with row and position, by range of keys             divide       one call per partition
    a range of keys            -> (row, better row, offset) of rows that share a key       find_shared  one call per range
    shared keys of some rows   -> the offsets with the most shared keys of each pair       find_offsets one call per bucket
    better rows of a block     -> the stretch that each pair compares, to the other row    cut          one call per block
    other rows of a block      -> share that agrees at the offset: edges                   compare      one call per block
    edges                      -> which rows are dropped, see `rounds`

A pair may be compared if it shares `MIN_SHARED` keys at one offset. Of the rows that share a key, each is paired with the first
`MAX_SHARING` in the order of the keep policy: a key that thousands of rows have, such as that of a jingle or a title card, costs
each of them a few comparisons, and a copy is still compared with the row that is kept instead. Hashes of silence and of blank
pictures have no keys. A row is compared with the `MAX_COMPARED` better rows that share the most keys with it; if all of these
that agree are dropped, it is compared with others that are not, in another round. Nothing of this depends on how the work is
divided.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tamis.dedup.candidates import bucket_of_component
from tamis.dedup.decisions import Blocks
from tamis.dedup.index import Index
from tamis.dedup.rows import MAX_MAPPED_BYTES, RowNumbers, column_or_zeros
from tamis.dedup.shuffle import (
    NumberedFiles,
    ShuffleWriter,
    as_numpy,
    bucket_count,
    bucket_of,
    check_free_space,
    duplicated,
    handles_shortage,
    pieces,
    read_bucket,
    read_whole_bucket,
    run_in_workers,
)
from tamis.dedup.similar import NEAR, States
from tamis.exchange import Blob
from tamis.kernels import clusters
from tamis.kernels import sequences as kernel
from tamis.kernels.sequences import Comparing
from tamis.mapped import SPILL, release_pages
from tamis.operators import Work

MAX_SHARING = 8
"""Rows with the same key that each other row with it is compared with: the first in the order of the keep policy."""

MIN_SHARED = 2
"""Keys that a pair must share at an offset, give or take one position, to be compared."""

MAX_COMPARED = 32
"""Better rows that a row is compared with at a time: those that share the most keys."""

MAX_OFFSETS = 2
"""Offsets of a pair that are compared: those with the most shared keys."""

NEAR_MISS_MARGIN = 0.15
"""Kept rows whose best similarity to a kept row is this close below the threshold are recorded as near misses."""

KEY_BYTES = 150
"""Memory per key while keys are sorted."""
SHARED_BYTES = 120
"""Memory per shared key while they are counted."""
STORED_KEY_BYTES = 40

_POSITIONS = 2**16
"""Positions whose keys are computed at a time, unless a single row has more."""
_EDGES_AT_A_TIME = 2**14

_KEYS = pa.schema(
    {
        "key": pa.uint64(),
        "row": pa.int64(),
        "source": pa.uint64(),
        "order": pa.uint64(),
        "position": pa.int32(),
        "length": pa.int32(),
    }
)
_SHARED = pa.schema(
    {"left": pa.int64(), "right": pa.int64(), "offset": pa.int32(), "count": pa.int32(), "length": pa.int32()}
)
_OFFSETS = pa.schema(
    {
        "left": pa.int64(),
        "right": pa.int64(),
        "offset": pa.int32(),
        "length": pa.int32(),
        "full": pa.bool_(),  # whether the row on the right shares keys with more rows than it is compared with
    }
)
_STRETCHES = pa.schema(
    {
        "left": pa.int64(),
        "right": pa.int64(),
        "left_source": pa.uint64(),
        "left_order": pa.uint64(),
        "offset": pa.int32(),
        "start": pa.int32(),  # the position in the better row at which the stretch begins
        "present": pa.int32(),  # positions of the whole better row that say something
        "full": pa.bool_(),
        "hashes": pa.large_list(pa.uint64()),
    }
)
EDGES = pa.schema(
    {
        "left": pa.int64(),  # the better row
        "right": pa.int64(),
        "left_source": pa.uint64(),
        "left_order": pa.uint64(),
        "right_source": pa.uint64(),
        "right_order": pa.uint64(),
        "similarity": pa.float32(),
        "error": pa.float32(),
        "offset": pa.float64(),
        "full": pa.bool_(),  # whether the row on the right may have more edges
    }
)
NEAR_MISSES = pa.schema(
    {
        "row": pa.int64(),
        "survivor": pa.int64(),
        "similarity": pa.float32(),
        "error": pa.float32(),
        "offset": pa.float64(),
    }
)


@dataclass(frozen=True)
class Matching:
    """When two sequences are duplicates."""

    comparing: Comparing
    threshold: float
    """The share of the positions of the shorter one that must agree."""
    step_s: float
    """Seconds from one position to the next."""
    across_sources: bool


# ---------------------------------------------------------------------------------------------------------------- keys


@handles_shortage
def divide(rows: RowNumbers, partition: int, comparing: Comparing, num_buckets: int, blob: Blob) -> int:
    """Write the keys of the sequences of a partition by range of keys. Sources count from 1."""
    with ShuffleWriter(blob, num_buckets, _KEYS) as writer:
        return _divide(writer, rows.observed[partition], int(rows.offsets[partition]), comparing, new=True)


@handles_shortage
def divide_index(index: Index, first: int, comparing: Comparing, num_buckets: int, blob: Blob) -> int:
    """Write the keys of an index, whose entries are numbered from `first` and better than all rows."""
    count = 0
    with ShuffleWriter(blob, num_buckets, _KEYS) as writer:
        for before, entries in index.entries():
            count += _divide(writer, entries, first + before, comparing, new=False)
    return count


def _divide(writer: ShuffleWriter, facts: pa.Table, first: int, comparing: Comparing, *, new: bool) -> int:
    if not facts.num_rows:
        return 0
    sequences = Sequences(facts)
    source, order = (column_or_zeros(facts, name, facts.num_rows) for name in ("source", "order"))
    source = source + np.uint64(1) if new else np.zeros(facts.num_rows, np.uint64)
    written = 0
    for begin, end in sequences.ranges(_POSITIONS):
        row, key, position = sequences.keys(begin, end, comparing)
        columns = {
            "key": key,
            "row": row + first,
            "source": source[row],
            "order": order[row] if new else np.zeros(len(row), np.uint64),
            "position": position,
            "length": sequences.lengths[row],
        }
        for start in range(0, len(key), 2**18):
            part = {name: values[start : start + 2**18] for name, values in columns.items()}
            writer.write(pa.table(part).cast(_KEYS), bucket_of(part["key"], writer.num_buckets))
        written += len(key)
    return written


class Sequences:
    """The sequences of the rows of a table of facts, without a copy."""

    def __init__(self, facts: pa.Table) -> None:
        column = facts.column("hashes")
        self._chunks = [(as_numpy(chunk.offsets), as_numpy(chunk.values)) for chunk in column.chunks if len(chunk)]
        self._ends = np.cumsum([len(offsets) - 1 for offsets, _ in self._chunks])
        lengths = [np.diff(offsets) for offsets, _ in self._chunks]
        self.lengths = np.concatenate([np.empty(0, np.int64), *lengths])
        self._touched = 0

    def __getitem__(self, row: int) -> np.ndarray:
        self._touched += 8 * int(self.lengths[row])
        if self._touched > MAX_MAPPED_BYTES:
            release_pages()
            self._touched = 0
        number = int(np.searchsorted(self._ends, row, "right"))
        offsets, words = self._chunks[number]
        local = row - (int(self._ends[number - 1]) if number else 0)
        return words[offsets[local] : offsets[local + 1]]

    def ranges(self, positions: int) -> Iterator[tuple[int, int]]:
        """Ranges of rows with about this many positions, or one row with more."""
        ends = np.cumsum(self.lengths)
        begin = 0
        while begin < len(ends):
            before = int(ends[begin - 1]) if begin else 0
            end = max(begin + 1, int(np.searchsorted(ends, before + positions, "right")))
            yield begin, end
            begin = end

    def keys(self, begin: int, end: int, comparing: Comparing) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(row, key, first position of the key in the row) of the rows of a range, each key once for a row."""
        size = int(self.lengths[begin:end].sum()) * comparing.keys_per_hash
        keys, positions, rows = np.empty(size, np.uint64), np.empty(size, np.int32), np.empty(size, np.int32)
        count = 0
        for row in range(begin, end):
            found = kernel.keys_of(self[row], comparing.bits, keys[count:], positions[count:])
            rows[count : count + found] = row
            count += found
        by_key = np.lexsort([positions[:count], keys[:count], rows[:count]])
        rows, keys, positions = rows[by_key], keys[by_key], positions[by_key]
        first = np.ones(count, np.bool_)
        first[1:] = (keys[1:] != keys[:-1]) | (rows[1:] != rows[:-1])
        return rows[first].astype(np.int64), keys[first], positions[first]


@handles_shortage
def find_shared(
    files: NumberedFiles,
    bucket: int,
    num_buckets: int,
    total: int,
    across_sources: bool,
    num_pair_buckets: int,
    blob: Blob,
    call_bytes: int,
) -> int:
    """Write (better row, row, offset) for the rows that share a key of one range, by row."""
    max_rows = max(1, call_bytes * 5 // 4 // KEY_BYTES)

    def read() -> Iterator[dict[str, np.ndarray]]:
        batches = (batch for file in files for batch in read_bucket(file, bucket, num_buckets))
        columns = ({name: as_numpy(batch.column(name)) for name in _KEYS.names} for batch in batches)
        return pieces(columns, max_rows)

    begun = read()
    piece, second = next(begun, None), next(begun, None)
    count = 0
    with ShuffleWriter(blob, num_pair_buckets, _SHARED) as writer:
        if piece is None:
            return 0
        if second is None:
            wanted = duplicated(piece["key"])
            piece = {name: values[wanted] for name, values in piece.items()}
        leaders = _first_sharing(piece)
        while second is not None:
            leaders = _first_sharing({name: np.concatenate([leaders[name], second[name]]) for name in second})
            piece, second = None, next(begun, None)
        for part in read() if piece is None else [piece]:
            for found in _shared(leaders, part, total, across_sources):
                check_free_space(blob.exchange, found.nbytes)
                writer.write(found, bucket_of_component(as_numpy(found.column("right")), num_pair_buckets))
                count += found.num_rows
    return count


def _first_sharing(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The first rows with each key, in the order of the keep policy."""
    by_key = np.lexsort([columns[name] for name in ("row", "order", "source", "key")])
    key = columns["key"][by_key]
    begins = np.flatnonzero(np.append(True, key[1:] != key[:-1])) if len(key) else np.empty(0, np.int64)
    rank = np.arange(len(key)) - np.repeat(begins, np.diff(np.append(begins, len(key))))
    return {name: values[by_key[rank < MAX_SHARING]] for name, values in columns.items()}


def _shared(
    leaders: dict[str, np.ndarray], rows: dict[str, np.ndarray], total: int, across_sources: bool
) -> Iterator[pa.Table]:
    """Rows with the better ones of the leaders that have the same key, some at a time, with repeats counted."""
    for start in range(0, len(rows["key"]), _POSITIONS):
        mine = {name: values[start : start + _POSITIONS] for name, values in rows.items()}
        first, last = (np.searchsorted(leaders["key"], mine["key"], side) for side in ("left", "right"))
        parts = []
        for number in range(MAX_SHARING):
            here = np.flatnonzero((first + number < last) & (mine["row"] < total))
            other = first[here] + number
            better = leaders["source"][other] < mine["source"][here]
            if not across_sources:
                same = leaders["source"][other] == mine["source"][here]
                left, right = leaders["order"][other], mine["order"][here]
                earlier = leaders["row"][other] < mine["row"][here]
                better |= same & ((left < right) | ((left == right) & earlier))
            here, other = here[better], other[better]
            offset = leaders["position"][other] - mine["position"][here]
            parts.append((leaders["row"][other], mine["row"][here], offset, mine["length"][here]))
        left, right, offset, length = (np.concatenate(part) for part in zip(*parts, strict=True))
        yield _counted(left, right, offset, np.ones(len(left), np.int32), length)


def _counted(
    left: np.ndarray, right: np.ndarray, offset: np.ndarray, count: np.ndarray, length: np.ndarray
) -> pa.Table:
    """Equal pairs and offsets once, with the sum of their counts, sorted."""
    order = np.lexsort([offset, left, right])
    left, right, offset, length = left[order], right[order], offset[order], length[order]
    new = np.ones(len(left), np.bool_)
    new[1:] = (left[1:] != left[:-1]) | (right[1:] != right[:-1]) | (offset[1:] != offset[:-1])
    begins = np.flatnonzero(new)
    totals = np.add.reduceat(count[order], begins) if len(begins) else count[:0]
    columns = {"left": left[begins], "right": right[begins], "offset": offset[begins], "count": totals}
    return pa.table(columns | {"length": length[begins]}).cast(_SHARED)


# ------------------------------------------------------------------------------------------------------------- offsets


@handles_shortage
def find_offsets(
    blocks: Blocks, files: NumberedFiles, bucket: int, num_buckets: int, states: States | None, blob: Blob
) -> int:
    """Write the offsets at which the rows of one bucket are compared with better rows, by block of the better row.

    With `states`, only rows whose fate is unknown are compared, with rows that are not dropped.
    """
    table = read_whole_bucket(files, bucket, num_buckets)
    with ShuffleWriter(blob, len(blocks.starts), _OFFSETS) as writer:
        if table is None:
            return 0
        if states is not None:
            wanted = states.of(as_numpy(table.column("right"))) == clusters.UNKNOWN
            wanted &= states.of(as_numpy(table.column("left"))) != clusters.DROPPED
            table = table.filter(pa.array(wanted))
        names = ("left", "right", "offset", "count", "length")
        chosen = best_offsets(_counted(*(as_numpy(table.column(name)) for name in names)))
        writer.write(chosen, blocks.block_of(as_numpy(chosen.column("left"))))
    return table.num_rows


def best_offsets(counted: pa.Table) -> pa.Table:
    """The offsets at which rows are compared: those with the most shared keys of the pairs with the most shared keys.

    Keys at the offsets next to an offset count too, and such an offset is not chosen itself: `compare` tries it anyway. Of equal
    offsets the smaller, and of equal pairs that with the earlier row is chosen.
    """
    left, right, offset, count = (as_numpy(counted.column(name)) for name in ("left", "right", "offset", "count"))
    score = count.astype(np.int64)
    near = (left[1:] == left[:-1]) & (right[1:] == right[:-1]) & (offset[1:] == offset[:-1] + 1)
    score[1:] += np.where(near, count[:-1], 0)
    score[:-1] += np.where(near, count[1:], 0)
    order = np.lexsort([offset, -score, left, right])
    order = order[score[order] >= MIN_SHARED]
    apart = np.empty(len(order), np.int64)
    taken = kernel.first_apart(left[order], right[order], offset[order].astype(np.int64), MAX_OFFSETS, apart)
    chosen = order[apart[:taken]]
    left, right, score = left[chosen], right[chosen], score[chosen]
    begins = np.flatnonzero(np.append(True, (left[1:] != left[:-1]) | (right[1:] != right[:-1])))[: len(chosen)]
    ranked = np.lexsort([left[begins], -score[begins], right[begins]])
    row = right[begins][ranked]
    firsts = np.flatnonzero(np.append(True, row[1:] != row[:-1]))[: len(row)]
    sizes = np.diff(np.append(firsts, len(row)))
    compared, full = np.empty(len(begins), np.bool_), np.empty(len(begins), np.bool_)
    compared[ranked] = np.arange(len(row)) - np.repeat(firsts, sizes) < MAX_COMPARED
    full[ranked] = np.repeat(sizes > MAX_COMPARED, sizes)
    offsets = np.diff(np.append(begins, len(chosen)))
    table = counted.take(pa.array(chosen)).append_column("full", pa.array(np.repeat(full, offsets)))
    return table.select(_OFFSETS.names).filter(pa.array(np.repeat(compared, offsets))).cast(_OFFSETS)


# ---------------------------------------------------------------------------------------------------------- comparison


@handles_shortage
def cut(blocks: Blocks, files: NumberedFiles, block: int, blob: Blob) -> int:
    """Write the stretch of each better row of a block that is compared with another row, by block of the other row."""
    count = 0
    with ShuffleWriter(blob, blocks.num_blocks, _STRETCHES) as writer:
        sequences: Sequences | None = None
        for file in files:
            for batch in read_bucket(file, block, len(blocks.starts)):
                if sequences is None:
                    facts, first = blocks.facts(block), int(blocks.starts[block])
                    sequences = Sequences(facts)
                    order, source = (column_or_zeros(facts, name, facts.num_rows) for name in ("order", "source"))
                    ours = first < blocks.rows.total
                    source = source + np.uint64(1) if ours else np.zeros(facts.num_rows, np.uint64)
                column = {name: as_numpy(batch.column(name)) for name in _OFFSETS.names}
                for begin, end in _bounded(column["length"]):
                    part = {name: values[begin:end] for name, values in column.items()}
                    table = _stretches(sequences, part, first, source, order)
                    writer.write(table, blocks.block_of(part["right"]))
                count += batch.num_rows
    return count


def _bounded(lengths: np.ndarray) -> Iterator[tuple[int, int]]:
    """Ranges with at most `_POSITIONS` positions in total, or one row."""
    begin, total = 0, 0
    for place, length in enumerate(lengths.tolist()):
        if total + length > _POSITIONS and place > begin:
            yield begin, place
            begin, total = place, 0
        total += length
    if begin < len(lengths):
        yield begin, len(lengths)


def _stretches(
    sequences: Sequences, pairs: dict[str, np.ndarray], first: int, source: np.ndarray, order: np.ndarray
) -> pa.Table:
    local = pairs["left"] - first
    starts, parts, present = [], [], []
    for row, offset, length in zip(local.tolist(), pairs["offset"].tolist(), pairs["length"].tolist(), strict=True):
        words = sequences[row]
        start = max(0, offset - 1)  # one position more at each side, for the offsets next to this one
        starts.append(start)
        parts.append(words[start : max(start, offset + length + 1)])
        present.append(kernel.count_present(words))
    ends = np.cumsum([0, *(len(part) for part in parts)])
    columns = {
        "left": pairs["left"],
        "right": pairs["right"],
        "left_source": source[local],
        "left_order": order[local],
        "offset": pairs["offset"],
        "start": np.array(starts, np.int32),
        "present": np.array(present, np.int32),
        "full": pairs["full"],
        "hashes": pa.LargeListArray.from_arrays(pa.array(ends), pa.array(np.concatenate(parts))),
    }
    return pa.table(columns).cast(_STRETCHES)


@dataclass(frozen=True)
class Agreement:
    """How well two sequences agree at the best of some offsets."""

    similarity: float
    """The share of the shorter one that agrees."""
    error: float
    """The share of bits that differ in the positions that agree."""
    offset: int

    @staticmethod
    def of(
        left: np.ndarray, right: np.ndarray, offset: int, start: int, present: int, comparing: Comparing
    ) -> Agreement:
        """Compare at an offset and those next to it. `left` begins at position `start` of a sequence with `present` hashes."""
        shorter = min(present, kernel.count_present(right))
        best = Agreement(-1.0, 1.0, offset)
        out = np.empty(4)
        for each in (offset, offset - 1, offset + 1):
            kernel.agreement(left, right, each - start, comparing.bits, comparing.window, comparing.max_errors, out)
            agree, wrong = out[0], out[1]
            error = wrong / agree / comparing.bits if agree else 1.0
            found = Agreement(min(1.0, agree / shorter) if shorter else 0.0, error, each)
            if (-found.similarity, found.error) < (-best.similarity, best.error):
                best = found
        return best


@handles_shortage
def compare(blocks: Blocks, files: NumberedFiles, block: int, matching: Matching, blob: Blob) -> dict[str, int]:
    """Write an edge for each pair whose other row is in a block and that agrees, and the closest pair of each other row."""
    with ExitStack() as stack:
        path = stack.enter_context(blob.writing())
        edges = stack.enter_context(pa.ipc.new_file(path, EDGES))
        near_path = stack.enter_context(blob.with_suffix(NEAR).writing())
        near = stack.enter_context(pa.ipc.new_file(near_path, NEAR_MISSES))
        facts, first = blocks.facts(block), int(blocks.starts[block])
        found = _Found(edges, matching, facts, first, blob)
        sequences: Sequences | None = None
        compared, pair, best = 0, {}, None
        for stretch in _each_stretch(blocks, files, block):
            sequences = Sequences(facts) if sequences is None else sequences
            agreement = Agreement.of(
                stretch["hashes"], sequences[stretch["right"] - first], stretch["offset"], stretch["start"],
                stretch["present"], matching.comparing,
            )  # fmt: skip
            if best is not None and (pair["left"], pair["right"]) != (stretch["left"], stretch["right"]):
                found.add(pair, best)
                best, compared = None, compared + 1
            if best is None or (-agreement.similarity, agreement.error) < (-best.similarity, best.error):
                best = agreement
            pair = stretch
        if best is not None:
            found.add(pair, best)
            compared += 1
        found.flush()
        near.write_table(found.near_misses())
    return {"compared": compared, "edges": found.count}


def _each_stretch(blocks: Blocks, files: NumberedFiles, block: int) -> Iterator[dict[str, Any]]:
    names = [name for name in _STRETCHES.names if name != "hashes"]
    for file in files:
        for batch in read_bucket(file, block, blocks.num_blocks):
            lists = batch.column("hashes")
            ends, words = as_numpy(lists.offsets), as_numpy(lists.values)
            columns = [batch.column(name).to_pylist() for name in names]
            for number, values in enumerate(zip(*columns, strict=True)):
                yield {**dict(zip(names, values, strict=True)), "hashes": words[ends[number] : ends[number + 1]]}


class _Found:
    """Collects edges, and the closest near miss of each row."""

    def __init__(self, writer: Any, matching: Matching, facts: pa.Table, first: int, blob: Blob) -> None:
        self._writer, self._matching, self._first, self._blob = writer, matching, first, blob
        self._order, self._source = (column_or_zeros(facts, name, facts.num_rows) for name in ("order", "source"))
        self._edges: list[tuple[Any, ...]] = []
        self._near: dict[int, tuple[float, int, float, float]] = {}
        self.count = 0

    def add(self, pair: dict[str, Any], found: Agreement) -> None:
        left, right, offset = pair["left"], pair["right"], round(found.offset * self._matching.step_s, 6)
        if found.similarity >= self._matching.threshold:
            mine = (int(self._source[right - self._first]) + 1, int(self._order[right - self._first]))
            self._edges.append(
                (left, right, pair["left_source"], pair["left_order"], *mine, found.similarity, found.error, offset, pair["full"])
            )
            self.count += 1
            if len(self._edges) >= _EDGES_AT_A_TIME:
                self.flush()
        elif found.similarity >= self._matching.threshold - NEAR_MISS_MARGIN:
            closest = (-found.similarity, left, found.error, offset)
            self._near[right] = min(closest, self._near.get(right, closest))

    def flush(self) -> None:
        if not self._edges:
            return
        columns = [pa.array(values, spec.type) for values, spec in zip(zip(*self._edges, strict=True), EDGES, strict=True)]
        table = pa.Table.from_arrays(columns, schema=EDGES)
        check_free_space(self._blob.exchange, table.nbytes)
        self._writer.write_table(table)
        self._edges = []

    def near_misses(self) -> pa.Table:
        rows = sorted(self._near)
        columns = {
            "row": rows,
            "survivor": [self._near[row][1] for row in rows],
            "similarity": [-self._near[row][0] for row in rows],
            "error": [self._near[row][2] for row in rows],
            "offset": [self._near[row][3] for row in rows],
        }
        return pa.table({spec.name: pa.array(columns[spec.name], spec.type) for spec in NEAR_MISSES})


# --------------------------------------------------------------------------------------------------------------- calls


class SequenceSearch:
    """Finds the better rows that each row agrees with, in calls in the workers."""

    def __init__(self, work: Work, blocks: Blocks, matching: Matching, num_keys: int, call_bytes: int) -> None:
        self._work, self._blocks, self._matching = work, blocks, matching
        rows, comparing, place = blocks.rows, matching.comparing, work.exchange.sub("sequences")
        ranges = bucket_count(num_keys * KEY_BYTES, call_bytes)
        keys = NumberedFiles(place, f"keys-{ranges}-", rows.num_partitions)
        run_in_workers(
            work,
            f"keys by range, {ranges}",
            divide,
            [(rows, part, comparing, ranges, blob) for part, blob in enumerate(keys)],
        )
        if blocks.index is not None:
            more = Blob(place, f"keys-{ranges}-index{SPILL}")
            item = (blocks.index, rows.total, comparing, ranges, more)
            run_in_workers(work, f"keys of the index by range, {ranges}", divide_index, [item])
            keys = NumberedFiles(place, keys.stem, keys.count, (more.name,))
        self._buckets = bucket_count(num_keys * SHARED_BYTES, call_bytes)
        self._name = f"{ranges}, {self._buckets}, {blocks.division}"
        self._shared = NumberedFiles(place, f"shared-{ranges}, {self._buckets}-", ranges)
        across = matching.across_sources
        found = run_in_workers(
            work,
            f"shared keys, {ranges}, {self._buckets}",
            find_shared,
            [
                (keys, bucket, ranges, rows.total, across, self._buckets, blob, call_bytes)
                for bucket, blob in enumerate(self._shared)
            ],
        )
        self.summary: dict[str, int] = {"shared_keys": sum(found), "compared": 0, "edges": 0}

    def find(self, number: int, states: States | None) -> NumberedFiles:
        """Files of edges. In rounds after the first, `states` says which rows to compare again."""
        work, blocks, place = self._work, self._blocks, self._work.exchange.sub("sequences")
        name = f"{self._name}, round {number}"
        offsets = NumberedFiles(place, f"offsets-{name}-", self._buckets)
        run_in_workers(
            work,
            f"offsets, {name}",
            find_offsets,
            [(blocks, self._shared, bucket, self._buckets, states, blob) for bucket, blob in enumerate(offsets)],
        )
        stretches = NumberedFiles(place, f"stretches-{name}-", len(blocks.starts))
        run_in_workers(
            work,
            f"stretches, {name}",
            cut,
            [(blocks, offsets, block, blob) for block, blob in enumerate(stretches)],
        )
        edges = NumberedFiles(work.exchange.sub("edges"), f"{name}-", blocks.num_blocks)
        found = run_in_workers(
            work,
            f"aligned rows, {name}",
            compare,
            [(blocks, stretches, block, self._matching, blob) for block, blob in enumerate(edges)],
        )
        for each in ("compared", "edges"):
            self.summary[each] += sum(part[each] for part in found)
        return edges
