"""From sequences of hashes to pairs of rows that agree over time. Each phase is a set of calls that fit in a worker's memory.

sequences                  -> offsets at which pairs of rows may agree, see `shared_keys`
better rows of a block     -> the stretch that each pair compares, to the other row    cut          one call per block
other rows of a block      -> share that agrees at the offset: edges                   compare      one call per block
edges                      -> which rows are dropped, see `rounds`
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tamis.dedup.decisions import Blocks
from tamis.dedup.rows import column_or_zeros
from tamis.dedup.shared_keys import (
    KEY_BYTES,
    OFFSETS,
    POSITIONS,
    SHARED_BYTES,
    Sequences,
    divide,
    divide_index,
    find_offsets,
    find_shared,
)
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
from tamis.dedup.similar import NEAR, States
from tamis.exchange import Blob
from tamis.kernels import sequences as kernel
from tamis.kernels.sequences import Comparing
from tamis.mapped import SPILL
from tamis.operators import Work

NEAR_MISS_MARGIN = 0.15
"""Kept rows whose best similarity to a kept row is this close below the threshold are recorded as near misses."""

_EDGES_AT_A_TIME = 2**14

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
                column = {name: as_numpy(batch.column(name)) for name in OFFSETS.names}
                for begin, end in _bounded(column["length"]):
                    part = {name: values[begin:end] for name, values in column.items()}
                    table = _stretches(sequences, part, first, source, order)
                    writer.write(table, blocks.block_of(part["right"]))
                count += batch.num_rows
    return count


def _bounded(lengths: np.ndarray) -> Iterator[tuple[int, int]]:
    """Ranges with at most `POSITIONS` positions in total, or one row."""
    begin, total = 0, 0
    for place, length in enumerate(lengths.tolist()):
        if total + length > POSITIONS and place > begin:
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
                (
                    left,
                    right,
                    pair["left_source"],
                    pair["left_order"],
                    *mine,
                    found.similarity,
                    found.error,
                    offset,
                    pair["full"],
                )
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
        columns = [
            pa.array(values, spec.type) for values, spec in zip(zip(*self._edges, strict=True), EDGES, strict=True)
        ]
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
