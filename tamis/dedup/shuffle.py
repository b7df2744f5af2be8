"""Rows on their way from "by partition" to "by key": files of Arrow batches, one batch per bucket.

    part 0   | bucket 0 | bucket 1 | ... |        each file is written by one call, whole or not at all;
    part 1   | bucket 0 | bucket 1 | ... |        a bucket is read as one batch of each file,
    ...          |                                so a file per part is enough, however many buckets there are
                 v
             one call

A file that is larger than its writer may hold is several such rows of buckets, one behind the other.
"""

from __future__ import annotations

import functools
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
import pyarrow as pa

from tamis.batch import contiguous
from tamis.errors import BudgetError, DiskFull, is_full_disk, is_shortage
from tamis.kernels.groups import in_table, repeated_keys
from tamis.mapped import SPILL
from tamis.operators import Work

P = ParamSpec("P")
R = TypeVar("R")

RESOLVING_BYTES = 50_000_000
"""What a worker that looks for duplicates holds beyond any other before it begins: kernels, and tables of rows."""

WORKER_FIXED_BYTES = 250_000_000
"""Interpreter, Arrow and kernels: what a worker holds before it begins."""

FIRST_BYTES = 16_000_000
"""What a call plans to hold at first, however little there is: what a worker holds before it begins varies."""

LEAST_BYTES = 2_000_000
"""A part that is not divided further."""

PART_BYTES = 64_000_000
"""What a call plans to hold where it may hold more: with parts as large as the budget allows, the peak grows with the data."""

MANY_PARTS = 1024
"""From here on parts grow, as far as the budget goes, and not their number: each one looks into the file of every partition."""

OVERFLOW = "overflow"
"""The result of a call that ran out of memory."""

GATHERED_BYTES = 4_000_000
"""Rows are gathered up to here before they are divided, so that a bucket is a few batches, and not many of a row each."""

RESERVE_BYTES = 100_000
"""Left free on the disk, for the ledger."""


def usable_bytes(worker_bytes: int) -> int:
    """What one call may plan to hold, leaving as much again for what sorting and Arrow take on the way."""
    return max(FIRST_BYTES, (worker_bytes - WORKER_FIXED_BYTES) // 2)


class Overflow(BudgetError):
    """A call held more than its worker may: it is planned again with smaller parts."""


def retry_with_less_memory(resolve: Callable[[int], R], worker_bytes: int) -> R:
    """`resolve(usable)`, with what a call may plan to hold, with half of it if that proves too much, and so on.

    How the work is divided does not change the result; what is written in larger parts is not used again.
    """
    usable = usable_bytes(worker_bytes)
    while True:
        try:
            return resolve(usable)
        except Overflow:
            if usable < 2 * LEAST_BYTES:
                raise
            usable //= 2


def tells_limits(function: Callable[P, R]) -> Callable[P, R]:
    """A full disk in the middle of a call becomes an error that says what to do; a full memory, a result that is answered."""

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


def in_workers(work: Work, name: str, function: Callable[..., Any], items: Sequence[tuple[Any, ...]]) -> list[Any]:
    """`work.map`, and, once all calls have ended, an error if one of them held too much.

    What ran out of memory is tried once more, in fresh workers, and under a name of its own: an earlier run may have had less.
    """
    results = work.map(name, function, items)
    left = [number for number, result in enumerate(results) if result == OVERFLOW]
    if left:
        items_left = [items[number] for number in left]
        again = work.map(f"{name}, within {work.worker_bytes}", function, items_left, new_workers=True)
        if OVERFLOW in again:
            raise Overflow(
                f"looking for duplicates takes more memory than a worker may hold ({name})",
                hint="run the same command again with more --memory or fewer --workers: what is done is kept",
            )
        for number, result in zip(left, again, strict=True):
            results[number] = result
    return results


def _disk_full() -> DiskFull:
    return DiskFull(
        "the disk is full while duplicates are being looked for",
        hint="make room and run the same command again: what is done is kept",
    )


def make_sure_of_room(folder: Path, num_bytes: int) -> None:
    """Stop before a write that the disk cannot hold, while there is still room for the record of what is done."""
    if shutil.disk_usage(folder).free < num_bytes + RESERVE_BYTES:
        raise _disk_full()


@dataclass(frozen=True)
class Files:
    """The numbered files of one step, small to send to a worker however many they are; `more` lie behind them."""

    folder: Path
    stem: str
    count: int
    more: tuple[Path, ...] = ()

    def __len__(self) -> int:
        return self.count + len(self.more)

    def __getitem__(self, number: int) -> Path:
        if number >= self.count:
            return self.more[number - self.count]
        return self.folder / f"{self.stem}{number:06d}{SPILL}"

    def __iter__(self) -> Iterator[Path]:
        return (self[number] for number in range(len(self)))


class Unfinished:
    """A file under another name until it is complete: `with Unfinished(path) as temporary: ...`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.temporary = path.with_name(f"{path.name}.{os.getpid()}.unfinished")

    def __enter__(self) -> Path:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return self.temporary

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is None:
            self.temporary.replace(self.path)
        else:
            self.temporary.unlink(missing_ok=True)


def link(file: Path, target: Path) -> None:
    """The same file under another name; a copy where the file system or its border does not allow that."""
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)


class ShuffleWriter:
    """Writes tables, each divided into the same number of buckets, to one file."""

    def __init__(self, path: Path, num_buckets: int, schema: pa.Schema) -> None:
        self.num_buckets, self.schema = num_buckets, schema
        self._file = Unfinished(path)
        self._gathered: list[tuple[pa.Table, np.ndarray]] = []
        self._gathered_bytes = 0

    def __enter__(self) -> ShuffleWriter:
        self._writer = pa.ipc.new_file(self._file.__enter__(), self.schema)
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        try:
            if kind is None:
                self._divide()
            self._writer.close()
        except BaseException as error:
            self._file.__exit__(type(error))
            if kind is None:
                raise
        else:
            self._file.__exit__(kind, *exc)

    def write(self, table: pa.Table, buckets: np.ndarray) -> None:
        """Append the rows of a table, each to its bucket; rows of a bucket keep their order."""
        if not table.num_rows:
            return
        self._gathered.append((table, buckets))
        self._gathered_bytes += table.nbytes
        if self._gathered_bytes > GATHERED_BYTES:
            self._divide()

    def _divide(self) -> None:
        if not self._gathered:
            return
        table = pa.concat_tables([table for table, _ in self._gathered])
        buckets = np.concatenate([buckets for _, buckets in self._gathered])
        self._gathered, self._gathered_bytes = [], 0
        small = buckets.astype(np.uint16) if self.num_buckets <= 65536 else buckets
        order = np.argsort(small, kind="stable")  # a radix sort for 16 bits
        ends = np.cumsum(np.bincount(buckets, minlength=self.num_buckets))
        self.write_ordered(table.take(pa.array(order)), ends)

    def write_ordered(self, table: pa.Table, ends: np.ndarray) -> None:
        """Append rows that are in the order of their buckets already; bucket b ends at row ends[b]."""
        whole = table.cast(self.schema).combine_chunks()
        batches = whole.to_batches()
        assert len(batches) <= 1, "columns of fixed size and large lists are one piece"
        make_sure_of_room(self._file.path.parent, whole.nbytes)
        empty = pa.RecordBatch.from_pylist([], schema=self.schema)
        start = 0
        for end in ends:
            # Of a slice without rows Arrow would write the offsets of all rows.
            self._writer.write_batch(batches[0].slice(start, int(end) - start) if end > start else empty)
            start = int(end)


def read_bucket(path: Path, bucket: int, num_buckets: int, *, mapped: bool = False) -> Iterator[pa.RecordBatch]:
    """The rows of one bucket of a file, in the order in which they were written.

    They are read, for where a bucket is many small batches the pages that the kernel maps around each are far more than these.
    """
    with pa.memory_map(str(path)) if mapped else pa.OSFile(str(path)) as file:
        reader = pa.ipc.open_file(file)
        for number in range(bucket, reader.num_record_batches, num_buckets):
            batch = reader.get_batch(number)
            if batch.num_rows:
                yield batch


def gather_bucket(paths: Iterable[Path], bucket: int, num_buckets: int) -> pa.Table | None:
    """The rows of one bucket of all files as one table in memory; None if there are none."""
    batches = [batch for path in paths for batch in read_bucket(path, bucket, num_buckets)]
    return pa.Table.from_batches(batches).combine_chunks() if batches else None


def pieces(columns: Iterable[dict[str, np.ndarray]], max_rows: int) -> Iterator[dict[str, np.ndarray]]:
    """Columns that come in small parts, joined to as many rows as fit; one piece, unless a key is repeated very often.

    Buckets are made so large that what is different in one fits. A text that a tenth of the corpus repeats is in one bucket
    all the same.
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
        joined, held = _joined(held), []  # nothing is held here while the piece is worked on
        yield joined


def _joined(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def allocate(shape: tuple[int, ...], dtype: Any, folder: Path, memory: int) -> np.ndarray:
    """An array in memory, or in a nameless file in `folder` if it is larger than `memory`."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size <= memory or size == 0:
        return np.empty(shape, dtype)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, size)  # a disk that fills up later would kill the process
        return np.asarray(np.memmap(file, dtype=dtype, mode="r+", shape=shape))


def from_matrix(matrix: np.ndarray) -> pa.FixedSizeBinaryArray:
    """A two-dimensional array as one column of fixed size, which Arrow moves row by row."""
    matrix = np.ascontiguousarray(matrix)
    width = matrix.shape[1] * matrix.itemsize
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(matrix), [None, pa.py_buffer(matrix)])


def as_matrix(column: pa.Array | pa.ChunkedArray, dtype: Any) -> np.ndarray:
    """What `from_matrix` was given, without a copy if the column is in one piece."""
    array = contiguous(column)
    width = array.type.byte_width
    raw = np.frombuffer(array.buffers()[1] or b"", np.uint8)
    raw = raw[array.offset * width : (array.offset + len(array)) * width]
    return (
        raw.view(dtype).reshape(len(array), -1)
        if len(array)
        else np.empty((0, width // np.dtype(dtype).itemsize), dtype)
    )


def numbers(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """A column of numbers without nulls as an array."""
    return contiguous(column).to_numpy(zero_copy_only=False)


def bucket_count(num_bytes: int, usable: int) -> int:
    """How many parts to make of what takes so many bytes: small ones as long as they are not too many, and each one fits."""
    part = min(usable, max(PART_BYTES, num_bytes // MANY_PARTS))
    return min(65536, max(1, -(-num_bytes // part)))


def chunk_rows(row_bytes: int, usable: int, least: int = 1000) -> int:
    """How many rows, each of so many bytes while it is handled, to take at a time."""
    return max(least, min(usable, PART_BYTES) // row_bytes)


def bucket_of(keys: np.ndarray, num_buckets: int) -> np.ndarray:
    """The bucket of each uint64 key; buckets are ranges of keys."""
    return ((keys >> np.uint64(48)) * np.uint64(num_buckets) >> np.uint64(16)).astype(np.int64)


def bounds_of(bucket: int, num_buckets: int) -> tuple[int, int]:
    """The keys of a bucket: low <= key < high."""
    return -(-bucket * 65536 // num_buckets) << 48, -(-(bucket + 1) * 65536 // num_buckets) << 48


def duplicated(keys: np.ndarray) -> np.ndarray:
    """Whether each key occurs more than once; sorts a copy of the keys alone, which is much faster than sorting rows.

    The key 0 counts as 1.
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
