"""The shuffle: regroup rows from partitions to buckets, through files of Arrow batches with one batch per bucket.

    partition 0   | bucket 0 | bucket 1 | ... |        one call writes a file, completely or not at all;
    partition 1   | bucket 0 | bucket 1 | ... |        one call reads a bucket, as one batch of each file
    ...               |
                      v
                  one call

The number of files does not grow with the number of buckets. A writer whose data does not fit in memory writes several rounds
of buckets to the file, one after another.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
import pyarrow as pa

from tamis.batch import contiguous
from tamis.errors import BudgetError, DiskFull, is_full_disk, is_shortage
from tamis.exchange import Blob, Exchange
from tamis.kernels.groups import in_table, repeated_keys
from tamis.mapped import SPILL
from tamis.operators import Work

P = ParamSpec("P")
R = TypeVar("R")

RESOLVING_BYTES = 50_000_000
"""Memory that kernels and row tables of a deduplication take in a worker before the first row."""

WORKER_FIXED_BYTES = 250_000_000
"""Memory that the interpreter, Arrow and kernels take in a worker."""

MIN_CALL_BYTES = 16_000_000
"""The least memory that the first attempt of a call plans for. What a worker takes at its start varies, so more may fit."""

MIN_PART_BYTES = 2_000_000
"""A part of this size is not divided further."""

PART_BYTES = 64_000_000
"""The size of a part if memory allows more. With parts as large as the budget, peak memory would grow with the data."""

MANY_PARTS = 1024
"""Beyond this number the parts grow instead, up to the budget: each part is read from the file of every partition."""

OVERFLOW = "overflow"
"""The result of a call that ran out of memory."""

BUFFER_BYTES = 4_000_000
"""Rows that a writer buffers before it divides them into buckets, so that a bucket is not made of many tiny batches."""

RESERVE_BYTES = 100_000
"""Disk space left free for the ledger."""


def bytes_per_call(worker_bytes: int) -> int:
    """Memory that one call plans for: half of what is left in a worker, because sorting and Arrow make copies."""
    return max(MIN_CALL_BYTES, (worker_bytes - WORKER_FIXED_BYTES) // 2)


class Overflow(BudgetError):
    """A call ran out of memory; the work is planned again with smaller parts."""


def retry_with_less_memory(resolve: Callable[[int], R], worker_bytes: int) -> R:
    """`resolve(call_bytes)` with the memory that a call may plan for, halved after each `Overflow`.

    The division does not change the result. Files written for another division are not reused.
    """
    call_bytes = bytes_per_call(worker_bytes)
    while True:
        try:
            return resolve(call_bytes)
        except Overflow:
            if call_bytes < 2 * MIN_PART_BYTES:
                raise
            call_bytes //= 2


def handles_shortage(function: Callable[P, R]) -> Callable[P, R]:
    """Raise `DiskFull` if the disk fills up during a call, and return `OVERFLOW` if memory runs out."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if is_full_disk(error):
                raise _disk_full() from error
            if is_shortage(error):
                return cast("R", OVERFLOW)
            raise

    return wrapped


def run_in_workers(
    work: Work, name: str, function: Callable[..., Any], items: Sequence[tuple[Any, ...]], *, on_gpu: bool = False
) -> list[Any]:
    """`work.map`. Calls that run out of memory are retried once in new workers; raises `Overflow` if that fails too.

    The retry has a name of its own with the memory of a worker in it, because an earlier run may have had less.
    """
    where: dict[str, Any] = {"on_gpu": True} if on_gpu else {}
    results = work.map(name, function, items, **where)
    left = [number for number, result in enumerate(results) if result == OVERFLOW]
    if left:
        items_left = [items[number] for number in left]
        again = work.map(f"{name}, within {work.worker_bytes}", function, items_left, new_workers=True, **where)
        if OVERFLOW in again:
            raise Overflow(
                f"deduplication needs more memory than a worker has ({name})",
                hint="rerun the same command with more --memory or fewer --workers to resume",
            )
        for number, result in zip(left, again, strict=True):
            results[number] = result
    return results


def _disk_full() -> DiskFull:
    return DiskFull(
        "the disk is full during deduplication",
        hint="free some space, then rerun the same command to resume",
    )


def check_free_space(exchange: Exchange, num_bytes: int) -> None:
    """Raise `DiskFull` before a write that does not fit, while there is still space to record what is done."""
    if exchange.free_bytes() < num_bytes + RESERVE_BYTES:
        raise _disk_full()


@dataclass(frozen=True)
class NumberedFiles:
    """The numbered blobs of one phase, followed by `more`. Cheap to send to a worker however many there are."""

    exchange: Exchange
    stem: str
    count: int
    more: tuple[str, ...] = ()

    def __len__(self) -> int:
        return self.count + len(self.more)

    def __getitem__(self, number: int) -> Blob:
        if number >= self.count:
            return Blob(self.exchange, self.more[number - self.count])
        return Blob(self.exchange, f"{self.stem}{number:06d}{SPILL}")

    def __iter__(self) -> Iterator[Blob]:
        return (self[number] for number in range(len(self)))


class ShuffleWriter:
    """Writes the rows of tables to one file, divided into buckets."""

    def __init__(self, blob: Blob, num_buckets: int, schema: pa.Schema) -> None:
        self.num_buckets, self.schema = num_buckets, schema
        self._blob, self._stack = blob, ExitStack()
        self._buffered: list[tuple[pa.Table, np.ndarray]] = []
        self._buffered_bytes = 0

    def __enter__(self) -> ShuffleWriter:
        path = self._stack.enter_context(self._blob.writing())
        self._writer = self._stack.enter_context(pa.ipc.new_file(path, self.schema))
        return self

    def __exit__(self, kind: Any, *exc: Any) -> None:
        if kind is None:
            with self._stack:
                self._divide()
        else:
            with suppress(Exception):  # another error is on its way
                self._stack.__exit__(kind, *exc)

    def write(self, table: pa.Table, buckets: np.ndarray) -> None:
        """Append each row of a table to its bucket; the rows of a bucket keep their order."""
        if not table.num_rows:
            return
        self._buffered.append((table, buckets))
        self._buffered_bytes += table.nbytes
        if self._buffered_bytes > BUFFER_BYTES:
            self._divide()

    def _divide(self) -> None:
        if not self._buffered:
            return
        table = pa.concat_tables([table for table, _ in self._buffered])
        buckets = np.concatenate([buckets for _, buckets in self._buffered])
        self._buffered, self._buffered_bytes = [], 0
        small = buckets.astype(np.uint16) if self.num_buckets <= 65536 else buckets
        order = np.argsort(small, kind="stable")  # radix sort for 16 bits
        ends = np.cumsum(np.bincount(buckets, minlength=self.num_buckets))
        self.write_ordered(table.take(pa.array(order)), ends)

    def write_ordered(self, table: pa.Table, ends: np.ndarray) -> None:
        """Append rows that are already sorted by bucket; bucket b ends at row ends[b]."""
        whole = table.cast(self.schema).combine_chunks()
        batches = whole.to_batches()
        assert len(batches) <= 1, "combine_chunks leaves one chunk for these types"
        check_free_space(self._blob.exchange, whole.nbytes)
        empty = pa.RecordBatch.from_pylist([], schema=self.schema)
        start = 0
        for end in ends:
            # For an empty slice, Arrow would write the offsets of all rows.
            self._writer.write_batch(batches[0].slice(start, int(end) - start) if end > start else empty)
            start = int(end)


def read_bucket(blob: Blob, bucket: int, num_buckets: int, *, mapped: bool = False) -> Iterator[pa.RecordBatch]:
    """The rows of one bucket of a file, in the order in which they were written.

    Reading is the default: for many small batches, the kernel maps far more pages than they fill.
    """
    with pa.memory_map(str(blob.file())) if mapped else blob.open() as file:
        reader = pa.ipc.open_file(file)
        for number in range(bucket, reader.num_record_batches, num_buckets):
            batch = reader.get_batch(number)
            if batch.num_rows:
                yield batch


def read_whole_bucket(blobs: Iterable[Blob], bucket: int, num_buckets: int) -> pa.Table | None:
    """The rows of one bucket of all files as a table in memory, or None if there are none."""
    batches = [batch for blob in blobs for batch in read_bucket(blob, bucket, num_buckets)]
    return pa.Table.from_batches(batches).combine_chunks() if batches else None


def pieces(columns: Iterable[dict[str, np.ndarray]], max_rows: int) -> Iterator[dict[str, np.ndarray]]:
    """Join small parts of columns to pieces of at most `max_rows` rows.

    A bucket is usually one piece. It is several if a key is repeated very often, since all rows with a key are in one bucket.
    """
    held: list[dict[str, np.ndarray]] = []
    rows = 0
    for part in columns:
        size = len(next(iter(part.values())))
        start = 0
        while rows + size - start > max_rows:
            stop = start + max_rows - rows
            held.append({name: values[start:stop] for name, values in part.items()})
            joined, held, rows, start = _joined(held), [], 0, stop
            yield joined
            del joined
        held.append({name: values[start:] for name, values in part.items()})
        rows += size - start
    if rows:
        joined, held = _joined(held), []  # do not keep the parts alive while the caller works
        yield joined


def _joined(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def matrix_to_column(matrix: np.ndarray) -> pa.FixedSizeBinaryArray:
    """A two-dimensional array as a column of fixed-size binary values, one per row."""
    matrix = np.ascontiguousarray(matrix)
    width = matrix.shape[1] * matrix.itemsize
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(matrix), [None, pa.py_buffer(matrix)])


def column_to_matrix(column: pa.Array | pa.ChunkedArray, dtype: Any) -> np.ndarray:
    """The inverse of `matrix_to_column`; does not copy a column of one chunk."""
    array = contiguous(column)
    width = array.type.byte_width
    raw = np.frombuffer(array.buffers()[1] or b"", np.uint8)
    raw = raw[array.offset * width : (array.offset + len(array)) * width]
    return (
        raw.view(dtype).reshape(len(array), -1)
        if len(array)
        else np.empty((0, width // np.dtype(dtype).itemsize), dtype)
    )


def as_numpy(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """A column without nulls as a NumPy array."""
    return contiguous(column).to_numpy(zero_copy_only=False)


def bucket_count(num_bytes: int, call_bytes: int) -> int:
    """How many parts to divide data of this size into: small ones unless there are too many, each within `call_bytes`."""
    part = min(call_bytes, max(PART_BYTES, num_bytes // MANY_PARTS))
    return min(65536, max(1, -(-num_bytes // part)))


def chunk_rows(row_bytes: int, call_bytes: int, min_rows: int = 1000) -> int:
    """How many rows to process at a time, if each takes `row_bytes` of memory."""
    return max(min_rows, min(call_bytes, PART_BYTES) // row_bytes)


def bucket_of(keys: np.ndarray, num_buckets: int) -> np.ndarray:
    """The bucket of each uint64 key. Buckets are ranges of keys."""
    return ((keys >> np.uint64(48)) * np.uint64(num_buckets) >> np.uint64(16)).astype(np.int64)


def bounds_of(bucket: int, num_buckets: int) -> tuple[int, int]:
    """(low, high): the keys of a bucket are low <= key < high."""
    return -(-bucket * 65536 // num_buckets) << 48, -(-(bucket + 1) * 65536 // num_buckets) << 48


def duplicated(keys: np.ndarray) -> np.ndarray:
    """Whether each key occurs more than once. The key 0 counts as 1.

    Sorts the keys without their rows, which is much faster.
    """
    ordered = np.sort(keys)
    np.maximum(ordered, np.uint64(1), out=ordered)
    repeats = int(np.count_nonzero(ordered[1:] == ordered[:-1]))
    result = np.zeros(len(keys), np.bool_)
    if repeats:
        table = np.zeros(1 << (2 * repeats).bit_length(), np.uint64)
        repeated_keys(ordered, table)
        del ordered
        in_table(keys, table, result)
    return result
