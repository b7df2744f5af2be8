"""From sequences of hashes to offsets at which rows may agree. Each phase is a set of calls that fit in a worker's memory.

    sequences of a partition   -> keys with row and position, by range of keys             divide       one call per partition
    a range of keys            -> (row, better row, offset) of rows that share a key       find_shared  one call per range
    shared keys of some rows   -> the offsets with the most shared keys of each pair       find_offsets one call per bucket

A pair may be compared if it shares `MIN_SHARED` keys at one offset. Of the rows that share a key, each is paired with the
first `MAX_SHARING` in the order of the keep policy: a key that thousands of rows have, such as that of a jingle or a title
card, costs each of them a few comparisons, and a copy is still compared with the row that is kept instead. Hashes of silence
and of blank pictures have no keys. A row is compared with the `MAX_COMPARED` better rows that share the most keys with it; if
all of these that agree are dropped, it is compared with others that are not, in another round. Nothing of this depends on how
the work is divided.
"""

from __future__ import annotations

from collections.abc import Iterator

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
    bucket_of,
    check_free_space,
    duplicated,
    handles_shortage,
    pieces,
    read_bucket,
    read_whole_bucket,
)
from tamis.dedup.similar import States
from tamis.exchange import Blob
from tamis.kernels import clusters
from tamis.kernels import sequences as kernel
from tamis.kernels.sequences import Comparing
from tamis.mapped import release_pages

MAX_SHARING = 8
"""Rows with the same key that each other row with it is paired with: the first in the order of the keep policy."""

MIN_SHARED = 2
"""Keys that a pair must share at an offset, give or take one position, to be compared."""

MAX_COMPARED = 32
"""Better rows that a row is compared with at a time: those that share the most keys."""

MAX_OFFSETS = 2
"""Offsets of a pair that are compared: those with the most shared keys."""

KEY_BYTES = 150
"""Memory per key while keys are sorted."""
SHARED_BYTES = 120
"""Memory per shared key while they are counted."""
STORED_KEY_BYTES = 40
"""Disk space per key."""

POSITIONS = 2**16
"""Hashes that are processed at a time, unless a single row has more."""

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
OFFSETS = pa.schema(
    {
        "left": pa.int64(),
        "right": pa.int64(),
        "offset": pa.int32(),
        "length": pa.int32(),
        "full": pa.bool_(),  # whether the row on the right shares keys with more rows than it is compared with
    }
)


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
    for begin, end in sequences.ranges(POSITIONS):
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
        by_key = np.lexsort((positions[:count], keys[:count], rows[:count]))
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
    for start in range(0, len(rows["key"]), POSITIONS):
        mine = {name: values[start : start + POSITIONS] for name, values in rows.items()}
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
    with ShuffleWriter(blob, len(blocks.starts), OFFSETS) as writer:
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

    Keys at the offsets next to an offset count too, and such an offset is not chosen itself: it is tried anyway. Of equal
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
    return table.select(OFFSETS.names).filter(pa.array(np.repeat(compared, offsets))).cast(OFFSETS)
