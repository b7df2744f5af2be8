"""Lists of ids of any size, on disk: sorted digests, which workers look up without holding them in memory.

    files with ids --digests--> buckets by their first bits, on disk --sort each--> one file of distinct, sorted digests

A number may be stored with each digest, such as the place where the id is; of several, the smallest.

A digest has 128 bits, so that among a trillion ids the chance of one wrong answer is less than 10^-14. Where the digests with
each prefix begin is known, so that looking up an id reads a few kilobytes. The workers of a machine share the file.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from tamis.batch import Failure, as_array
from tamis.dedup.texts import Normalization, digest_columns
from tamis.errors import ColumnError, SourceError, did_you_mean
from tamis.operators import Reading
from tamis.sources.tables import reader_for

_BUCKET_BYTES = 16 * 2**20
"""What is sorted at a time."""
NAME = "ids.sorted"
_READ_BYTES = 2**20
_BATCH_BYTES = 4 * 2**20
_PER_PREFIX = 256
"""Digests that begin with the same bits, on average; this many are read to look up one."""
_SMALLEST_ID = 8
"""Bytes; a guess that only decides about the number of buckets."""


def digests_of_ids(values: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """(uint64[rows, 2], whether the row has an id). Numbers are compared as text: 7 is "7"."""
    return digest_columns([("id", values)], Normalization())


def ids_in(paths: str | Sequence[str], column: str | None) -> Iterator[pa.Array]:
    """The ids in files, in pieces. In text files, a line is an id; in tables, `column` has them."""
    reader = reader_for(paths)
    layout = reader.layout(2**26)
    name = column or ("text" if reader.name == "text_reader" else "id")
    if name not in layout.schema.names:
        raise ColumnError(
            f"the list of ids {paths} has no column `{name}`",
            hint=did_you_mean(name, layout.schema.names) or f"columns: {', '.join(layout.schema.names)}",
        )

    def bad(failure: Failure) -> None:
        raise SourceError(f"the list of ids cannot be read: {failure.address}: {failure.error}")

    reading = Reading((name,), layout.schema, _READ_BYTES, bad)
    if layout.damaged_files:
        path, error = next(iter(layout.damaged_files.items()))
        raise SourceError(f"the list of ids {path} cannot be read: {error}")
    for partition in layout.partitions:
        for batch in reader.read(partition, reading):
            yield as_array(batch[name])


def build(paths: str | Sequence[str], column: str | None, folder: Path, num_bytes: int) -> IdList:
    """Write the sorted digests of all ids to a folder, with a few tens of megabytes of memory."""

    def records() -> Iterator[np.ndarray]:
        for values in ids_in(paths, column):
            digests, known = digests_of_ids(values)
            yield digests[known]

    write_sorted(records(), folder, num_bytes // _SMALLEST_ID)
    return IdList(folder / NAME)


def write_sorted(pieces: Iterable[np.ndarray], folder: Path, num_records: int, numbers: int = 0) -> int:
    """Sort records, uint64[rows, 2 + numbers], by the digests they begin with, into a file; returns how many were left out.

    Of records with one digest, the first by its numbers remains.
    """
    folder.mkdir(parents=True, exist_ok=True)
    width = 2 + numbers
    record_bytes = 8 * width
    count = min(1 << max(0, (num_records * record_bytes // _BUCKET_BYTES).bit_length()), 4096)
    files = [
        (folder / f"bucket-{number}").open("wb", buffering=65_536 if count <= 256 else 4096) for number in range(count)
    ]
    shift = np.uint64(64 - (count.bit_length() - 1))
    given = written = 0
    try:
        for records in pieces:
            given += len(records)
            if count == 1:
                files[0].write(records.tobytes())
                continue
            bucket = (records[:, 0] >> shift).astype(np.int64)
            order = np.argsort(bucket, kind="stable")
            ends = np.searchsorted(bucket[order], np.arange(count + 1))
            for number in np.unique(bucket).tolist():
                files[number].write(records[order[ends[number] : ends[number + 1]]].tobytes())
    finally:
        for file in files:
            file.close()
    with (folder / NAME).open("wb") as out:
        for number in range(count):
            bucket_file = folder / f"bucket-{number}"
            distinct = np.empty((0, width), np.uint64)
            with bucket_file.open("rb") as file:
                while data := file.read(
                    _BUCKET_BYTES // record_bytes * record_bytes
                ):  # larger only if ids are repeated
                    distinct = _distinct(np.concatenate([distinct, np.frombuffer(data, np.uint64).reshape(-1, width)]))
            out.write(distinct.tobytes())
            written += len(distinct)
            bucket_file.unlink()
    return given - written


def _distinct(records: np.ndarray) -> np.ndarray:
    ordered = records[np.lexsort((*records[:, 2:].T, records[:, 1], records[:, 0]))]
    if not len(ordered):
        return ordered
    return ordered[np.append(True, (ordered[1:, :2] != ordered[:-1, :2]).any(axis=1))]


def build_once(paths: str | Sequence[str], column: str | None, folder: Path, num_bytes: int) -> IdList:
    """The list in a folder. Of several processes, one builds it, and the others wait."""
    once(folder, lambda: build(paths, column, folder, num_bytes).close())
    return IdList(folder / NAME)


def once(folder: Path, make: Callable[[], None]) -> None:
    """Call `make` in the first of several processes that call this for a folder; the others wait."""
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / "done"
    with (folder / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            make()
            done.touch()


class IdList:
    """Sorted digests in a file, with `numbers` numbers each."""

    def __init__(self, path: Path, numbers: int = 0) -> None:
        self._file = path.open("rb")
        self._width = 2 + numbers
        self.size = os.fstat(self._file.fileno()).st_size // (8 * self._width)
        bits = max(0, (self.size // _PER_PREFIX).bit_length() - 1)
        self._shift = 64 - bits
        self._begins = self._find_begins(1 << bits)

    def _find_begins(self, prefixes: int) -> np.ndarray:
        """The first digest of each prefix. Read once, in order."""
        counts = np.zeros(prefixes + 1, np.int64)
        step = _BATCH_BYTES // (8 * self._width)
        for start in range(0, self.size, step):
            high = self._read(start, min(self.size, start + step))[:, 0]
            counts[1:] += np.bincount(self._prefix(high), minlength=prefixes)
        return np.cumsum(counts)

    def _prefix(self, high: np.ndarray) -> np.ndarray:
        if self._shift == 64:
            return np.zeros(len(high), np.int64)
        return (high >> np.uint64(self._shift)).astype(np.int64)

    def _read(self, start: int, stop: int) -> np.ndarray:
        size = 8 * self._width
        data = os.pread(self._file.fileno(), (stop - start) * size, start * size)
        return np.frombuffer(data, np.uint64).reshape(-1, self._width)

    def contains(self, values: pa.Array) -> np.ndarray:
        """Whether each id is in the list; False for null."""
        found = np.zeros(len(values), np.bool_)
        for rows, _ in self._matches(values):
            found[rows] = True
        return found

    def numbers(self, values: pa.Array) -> np.ndarray:
        """The number stored with each id; -1 if it is not in the list, and for null."""
        found = np.full(len(values), -1, np.int64)
        for rows, records in self._matches(values):
            found[rows] = records[:, 2].astype(np.int64)
        return found

    def _matches(self, values: pa.Array) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The rows whose ids are in the list, with the records of these, by the first bits of the digests."""
        digests, known = digests_of_ids(values)
        prefix = self._prefix(digests[:, 0])
        order = np.argsort(prefix, kind="stable")
        order = order[known[order]]
        if not len(order):
            return
        borders = np.flatnonzero(np.diff(prefix[order], prepend=-1))
        for first, last in zip(borders, [*borders[1:], len(order)], strict=True):
            rows, number = order[first:last], int(prefix[order[first]])
            records = self._read(int(self._begins[number]), int(self._begins[number + 1]))
            if not len(records):
                continue
            asked, listed = _as_pairs(digests[rows]), _as_pairs(records[:, :2])
            places = np.minimum(np.searchsorted(listed, asked), len(listed) - 1)
            hit = listed[places] == asked
            yield rows[hit], records[places[hit]]

    def close(self) -> None:
        self._file.close()

    def __del__(self) -> None:
        self.close()  # steps share a list, so none of them closes it


def _as_pairs(digests: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(digests).view([("high", np.uint64), ("low", np.uint64)]).reshape(-1)
