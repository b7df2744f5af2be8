"""Rows in the order of a key, out of core: sorted runs in an exchange, and ranges of keys read from all of them.

stage 1:  ... -> rows and keys -> part-000000.rows.spill, ...spill.1   runs, each sorted by key
resolve:  list of all runs     -> resolve/runs.json                    after merging runs, if there are very many
stage 2:  partition p of n reads all keys from p/n to (p+1)/n of their range, from all runs, in ranges that fit in memory

A run is one file. Its blocks are small tables with consecutive keys, and an index at the end says where each begins:

    block 0 | block 1 | ... | first keys | offsets | bytes in memory | schema | its size, number of blocks, magic

Rows with the same key are in source order, because runs are read in source order and sorting is stable. So the order of all
rows depends neither on how many runs there are nor on how the keys are divided into partitions.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tamis.batch import Batch, bytes_of, contiguous
from tamis.errors import OperatorError
from tamis.exchange import Draft, Exchange, Writing
from tamis.gathering import Work
from tamis.mapped import SPILL
from tamis.media import MediaAccess
from tamis.memory.spill import batches_of, numbered, with_addresses
from tamis.operators import REORDER_BYTES, Layout, Partition, Reading, Source

MANIFEST = "runs.json"
"""The blob that lists the runs of a stage, in source order."""

RUN_BYTES = REORDER_BYTES // 2
"""Rows that are sorted at a time, if batches are not so small that memory must be scarce. Sorting copies them."""

BATCHES_HELD = 2
"""Rows sorted at a time are at most this many batches."""

BLOCK_BYTES = 1 << 16
"""The smallest block, unless a run is smaller. Reading a range of keys reads up to one block too many of each run."""

MOST_RUNS = 512
"""If there are more runs, they are merged first, so that a range of keys is not read in too many small pieces."""

MERGED_RUNS = 64
"""How many consecutive runs become one."""

_KEY = "_tamis_key"
_FOOTER = struct.Struct("<qq8s")
_MAGIC = b"tamisrun"
_INDEX_TYPES = ("<u8", "<i8", "<i8")


def sorted_bytes(batch_bytes: int) -> int:
    """How many bytes of rows to sort at a time."""
    return max(1, min(RUN_BYTES, BATCHES_HELD * batch_bytes))


# -------------------------------------------------------------------------------------------------------------- writing


class RunWriter:
    """Writes rows as sorted runs, each as large as memory allows."""

    def __init__(self, exchange: Exchange, name: str, run_bytes: int) -> None:
        self._exchange, self._name, self._run_bytes = exchange, name, run_bytes
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self.drafts: list[Draft] = []

    def write(self, batch: Batch, keys: np.ndarray) -> None:
        table = with_addresses(batch).append_column(_KEY, pa.array(keys, pa.uint64()))
        if self._waiting and table.schema != self._waiting[0].schema:
            self._flush()  # a batch with another column or a wider type starts another run
        most = max(1, table.num_rows * self._run_bytes // max(1, bytes_of(table)))
        for start in range(0, table.num_rows, most):
            part = table.slice(start, most)
            size = bytes_of(part)
            if self._waiting and self._waiting_bytes + size > self._run_bytes:
                self._flush()
            self._waiting.append(part)
            self._waiting_bytes += size

    def close(self) -> list[Draft]:
        """The runs written, in order."""
        self._flush()
        return self.drafts

    def discard(self) -> None:
        """Forget rows that are not written. Complete runs belong to the attempt."""
        self._waiting = []

    def _flush(self) -> None:
        if not self._waiting:
            return
        table = pa.concat_tables(self._waiting).combine_chunks()
        self._waiting, self._waiting_bytes = [], 0
        writing = self._exchange.writing(numbered(self._name, len(self.drafts)))
        self.drafts.append(writing.draft)
        write_run(writing, [sorted_by_key(table)])


def sorted_by_key(table: pa.Table) -> pa.Table:
    """The rows in the order of their keys; those with the same key in the order they have."""
    keys = _keys_of(table)
    if np.all(keys[1:] >= keys[:-1]):
        return table
    return table.take(pa.array(np.argsort(keys, kind="stable")))


def write_run(writing: Writing, tables: Iterator[pa.Table] | Sequence[pa.Table]) -> None:
    """Write tables, each sorted, and each with larger keys than the one before, as one run."""
    firsts, offsets, sizes = [], [0], []
    schema = pa.schema([])
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with writing as path, pa.OSFile(str(path), "wb") as file:
        for table in tables:
            schema = table.schema
            step = max(1, table.num_rows * BLOCK_BYTES // max(1, bytes_of(table)))
            for start in range(0, table.num_rows, step):
                block = table.slice(start, step)
                firsts.append(block.column(_KEY)[0].as_py())
                sizes.append(bytes_of(block))
                with pa.ipc.new_stream(file, schema, options=options) as writer:
                    writer.write_table(block)
                offsets.append(file.tell())
        for values, kind in zip((firsts, offsets, sizes), _INDEX_TYPES, strict=True):
            file.write(np.array(values, kind).tobytes())
        columns = schema.serialize().to_pybytes()
        file.write(columns)
        file.write(_FOOTER.pack(len(columns), len(firsts), _MAGIC))


def _keys_of(table: pa.Table) -> np.ndarray:
    return contiguous(table.column(_KEY)).to_numpy(zero_copy_only=False)


# -------------------------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class Run:
    """The blocks of a run that may have keys of some range: their first keys, where they are, and their size in memory."""

    exchange: Exchange
    name: str
    firsts: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    schema: pa.Schema

    @staticmethod
    def open(exchange: Exchange, name: str, first: int, last: int) -> Run:
        """The blocks of a published run that may have keys from `first` to `last`."""
        with exchange.open(name) as file:
            end = file.size() - _FOOTER.size
            columns, count, magic = _FOOTER.unpack(file.read_at(_FOOTER.size, end))
            if magic != _MAGIC:
                raise OperatorError(f"the file {name} between two stages is damaged")
            length = 8 * (3 * count + 1)
            data = file.read_at(length + columns, end - length - columns)
        firsts = np.frombuffer(data, "<u8", count)
        offsets = np.frombuffer(data, "<i8", count + 1, 8 * count)
        sizes = np.frombuffer(data, "<i8", count, 8 * (2 * count + 1))
        here = _overlap(firsts, first, last)
        schema = pa.ipc.read_schema(pa.py_buffer(data[length:]))
        return Run(exchange, name, firsts[here], offsets[here.start : here.stop + 1], sizes[here], schema)

    def read(self, first: int, last: int) -> Iterator[pa.Table]:
        """The rows with keys from `first` to `last`, in order."""
        here = _overlap(self.firsts, first, last)
        if here.start == here.stop:
            return
        with self.exchange.open(self.name) as file:
            for number in range(here.start, here.stop):
                begin, end = int(self.offsets[number]), int(self.offsets[number + 1])
                table = pa.ipc.open_stream(pa.py_buffer(file.read_at(end - begin, begin))).read_all()
                keys = _keys_of(table)
                low = int(np.searchsorted(keys, np.uint64(first), "left"))
                high = int(np.searchsorted(keys, np.uint64(last), "right"))
                if high - low == table.num_rows:
                    yield table
                elif high > low:
                    yield table.take(pa.array(np.arange(low, high)))  # a copy: a slice would hold the whole block


def _overlap(firsts: np.ndarray, first: int, last: int) -> slice:
    """The blocks that may have keys from `first` to `last`; a key may occur in several."""
    stop = int(np.searchsorted(firsts, np.uint64(last), "right"))
    start = max(0, int(np.searchsorted(firsts, np.uint64(first), "left")) - 1)
    return slice(min(start, stop), stop)


def read_range(exchange: Exchange, names: Sequence[str], first: int, last: int, most_bytes: int) -> Iterator[pa.Table]:
    """All rows of the runs with keys from `first` to `last`, in order, in tables of about `most_bytes`.

    All tables have the columns of all runs, so that rows do not depend on how the keys are divided.
    """
    runs = [Run.open(exchange, name, first, last) for name in names]
    schemas = [
        runs[number].schema for number in range(len(runs)) if not number or runs[number].schema != runs[0].schema
    ]
    schema = pa.unify_schemas(schemas, promote_options="permissive") if schemas else pa.schema([])
    runs = [run for run in runs if len(run.firsts)]
    for low, high in _ranges(runs, first, last, most_bytes):
        parts = [table for run in runs for table in run.read(low, high)]
        if parts:
            table = pa.concat_tables([schema.empty_table(), *parts], promote_options="permissive").combine_chunks()
            del parts
            yield sorted_by_key(table)


def _ranges(runs: Sequence[Run], first: int, last: int, most_bytes: int) -> Iterator[tuple[int, int]]:
    """Divide a range of keys so that each part has about `most_bytes` of rows, by where blocks begin."""
    if not runs:
        return
    firsts = np.concatenate([run.firsts for run in runs])
    sizes = np.concatenate([run.sizes for run in runs])
    order = np.argsort(firsts, kind="stable")
    before = np.cumsum(sizes[order]) - sizes[order]
    cuts = firsts[order][np.flatnonzero(np.diff(before // max(1, most_bytes))) + 1]
    starts = [first, *sorted({key for key in cuts.tolist() if first < key <= last})]
    for begin, end in zip(starts, [*starts[1:], last + 1], strict=True):
        yield begin, end - 1


@dataclass(frozen=True, kw_only=True)
class ReorderedRows(Source):
    """Reads the rows that the stage before wrote as runs, in the order of their keys, an equal range of keys per partition."""

    internal = True

    exchange: Exchange
    manifest: Exchange
    """Where the list of runs is."""
    partitions: int
    access: MediaAccess | None = None

    @property
    def name(self) -> str:
        return "reordered_rows"

    def layout(self, blocksize: int) -> Layout:
        raise NotImplementedError("the partitions of a later stage come from the plan")

    def read(self, partition: Partition, reading: Reading) -> Iterator[Batch]:
        names = json.loads(self.manifest.file(MANIFEST).read_text())
        first, stop = ((partition.index + each) * 2**64 // self.partitions for each in (0, 1))
        for table in read_range(self.exchange, names, first, stop - 1, sorted_bytes(reading.batch_bytes)):
            yield from batches_of(table.drop_columns([_KEY]), reading.batch_bytes, self.access)


# -------------------------------------------------------------------------------------------------------------- merging


def arrange(names: Sequence[str], exchange: Exchange, work: Work) -> None:
    """List the runs of a stage for the next one, and merge them before if there are very many. Runs in the driver."""
    found = list(names)
    level = 0
    while len(found) > MOST_RUNS:
        groups = [found[start : start + MERGED_RUNS] for start in range(0, len(found), MERGED_RUNS)]
        merged = [f"merged-{level}-{number:06d}{SPILL}" for number in range(len(groups))]
        most = max(BLOCK_BYTES, min(RUN_BYTES, work.worker_bytes // 16))
        items = [(exchange, group, name, most) for group, name in zip(groups, merged, strict=True)]
        work.map(f"merge sorted rows, level {level}", merge_runs, items)
        found, level = merged, level + 1
    with work.exchange.writing(MANIFEST) as path:
        path.write_text(json.dumps(found))


def merge_runs(exchange: Exchange, names: Sequence[str], target: str, most_bytes: int) -> None:
    """Write consecutive runs as one."""
    write_run(exchange.writing(target), read_range(exchange, names, 0, 2**64 - 1, most_bytes))
