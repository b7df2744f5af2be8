"""Rows and facts that pass between the stages of a run, as Arrow IPC files in an exchange.

stage 1:  ... -> observe -> part-000000.rows.spill    the rows, with their addresses
                         -> part-000000.facts.spill   the facts from Gather.observe, one line per row
resolve:  all facts      -> fates/part-000000.spill   which rows are dropped, and why
stage 2:  rows + fates   -> ...
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tamis.batch import Batch, Origin, as_array, bytes_of, contiguous
from tamis.errors import OperatorError
from tamis.exchange import Draft, Exchange
from tamis.mapped import SPILL
from tamis.media import MediaAccess
from tamis.operators import Layout, Partition, Reading, Source

FATES = "fates"
"""The part of a stage's exchange with the decisions of its Gather."""

RESOLVE = "resolve"
"""The part of a stage's exchange with the intermediate results of its Gather."""

LARGEST_BATCH = 1.25
"""A batch may be this much larger than requested, so that a packet that is a little too large is not cut."""

_PLACE, _POSITION, _CHILDREN = "_tamis_place", "_tamis_position", "_tamis_children"


def stem(partition: int) -> str:
    """The stem of the file names of a partition; names sort in the order of partitions."""
    return f"part-{partition:06d}"


class SpillWriter:
    """Appends tables to one Arrow file, which is created on the first write, when its columns are known."""

    def __init__(self, exchange: Exchange, name: str, compression: str | None = "lz4") -> None:
        self.exchange, self.name = exchange, name
        self.compression = compression
        self.drafts: list[Draft] = []
        self._schema: pa.Schema | None = None
        self._stack = ExitStack()
        self._writer: pa.RecordBatchFileWriter | None = None

    def write(self, table: pa.Table) -> None:
        if self._writer is None or table.schema != self._schema:
            # A batch with another column or a wider type starts another file.
            self.close()
            writing = self.exchange.writing(numbered(self.name, len(self.drafts)))
            self.drafts.append(writing.draft)
            options = pa.ipc.IpcWriteOptions(compression=self.compression)
            self._schema = table.schema
            path = self._stack.enter_context(writing)
            self._writer = self._stack.enter_context(pa.ipc.new_file(path, table.schema, options=options))
        self._writer.write_table(table)

    def close(self) -> list[Draft]:
        """The files written, in order; empty if there were no rows."""
        self._writer = None
        self._stack.close()
        return self.drafts

    def discard(self) -> None:
        """Remove the file that is being written."""
        self._writer = None
        error = OperatorError("the attempt failed")
        with suppress(Exception):  # the error of the attempt is on its way
            self._stack.__exit__(type(error), error, None)


def numbered(name: str, number: int) -> str:
    """The name of one of the files that a SpillWriter writes for `name`."""
    return f"{name}.{number}" if number else name


def write_rows(writer: SpillWriter, batch: Batch) -> None:
    """Append rows together with their addresses."""
    writer.write(with_addresses(batch))


def with_addresses(batch: Batch) -> pa.Table:
    """The rows with columns for their addresses."""
    places = pa.DictionaryArray.from_arrays(pa.array(batch.origin.place), pa.array(batch.origin.places, pa.string()))
    table = batch.table.append_column(_PLACE, places.cast(pa.string()))
    table = table.append_column(_POSITION, pa.array(batch.origin.position))
    return table.append_column(_CHILDREN, batch.origin.child_lists())


@dataclass(frozen=True, kw_only=True)
class SpilledRows(Source):
    """Reads the rows that an earlier stage wrote with `write_rows`, in the same partitions."""

    internal = True

    exchange: Exchange
    access: MediaAccess | None = None
    """What references in the rows may reach, as the reader of the input allows it."""

    @property
    def name(self) -> str:
        return "spilled_rows"

    def layout(self, blocksize: int) -> Layout:
        raise NotImplementedError("the partitions of a later stage come from the plan")

    def read(self, partition: Partition, reading: Reading) -> Iterator[Batch]:
        for name in spilled_names(self.exchange, f"{stem(partition.index)}.rows{SPILL}"):
            with self.exchange.open(name) as opened:
                reader = pa.ipc.open_file(opened)
                for number in range(reader.num_record_batches):
                    yield from batches_of(pa.table(reader.get_batch(number)), reading.batch_bytes, self.access)


def batches_of(table: pa.Table, batch_bytes: int, access: MediaAccess | None) -> Iterator[Batch]:
    """The inverse of `with_addresses`, in equal batches of about `batch_bytes`."""
    rows = table.num_rows
    count = max(1, -(-bytes_of(table) // int(LARGEST_BATCH * batch_bytes)))
    step = max(1, -(-rows // count))
    for start in range(0, rows, step):
        part = table.slice(start, step)
        places = contiguous(part.column(_PLACE)).dictionary_encode()
        origin = Origin(
            tuple(places.dictionary.to_pylist()),
            places.indices.to_numpy(zero_copy_only=False).astype(np.int32),
            contiguous(part.column(_POSITION)).to_numpy(zero_copy_only=False),
            Origin.children_from(contiguous(part.column(_CHILDREN))),
        )
        part = part.drop_columns([_PLACE, _POSITION, _CHILDREN])
        yield Batch(part, origin, access=access)


def spilled_names(exchange: Exchange, first: str) -> Iterator[str]:
    """The names of the files that a SpillWriter wrote for `first`, in order."""
    for number in itertools.count():
        name = numbered(first, number)
        if not exchange.has(name):  # by name: listing an exchange with thousands of files is slow
            return
        yield name


class ObservedFacts:
    """The facts from `Gather.observe`, read from disk one partition at a time; `rows` is the row count by partition."""

    def __init__(self, exchange: Exchange, rows: Mapping[int, int]) -> None:
        self.exchange = exchange
        self.rows = dict(sorted(rows.items()))
        self.partitions = list(self.rows)

    def __len__(self) -> int:
        return len(self.partitions)

    def num_rows(self, partition: int) -> int:
        return self.rows[self.partitions[partition]]

    def __getitem__(self, partition: int) -> pa.Table:
        tables = [self._open(name).read_all() for name in self._names(partition)]
        if tables:
            return pa.concat_tables(tables, promote_options="permissive")
        # No row of this partition was observed; use the columns of another partition.
        for name in (name for number in range(len(self)) for name in self._names(number)):
            return self._open(name).schema.empty_table()
        return pa.table({})

    def _names(self, partition: int) -> Iterator[str]:
        return spilled_names(self.exchange, f"{stem(self.partitions[partition])}.facts{SPILL}")

    def _open(self, name: str) -> pa.RecordBatchFileReader:
        return pa.ipc.open_file(pa.memory_map(str(self.exchange.file(name))))

    def __iter__(self) -> Iterator[pa.Table]:
        return (self[number] for number in range(len(self)))


class Fates:
    """Writes the decisions of `Gather.resolve`, and checks that there is one for every row. Can be sent to a worker."""

    def __init__(self, exchange: Exchange, rows: Mapping[int, int]) -> None:
        self.exchange = exchange.sub(FATES)
        self.rows = dict(sorted(rows.items()))
        self.partitions = list(self.rows)

    def __call__(
        self,
        partition: int,
        drop: np.ndarray,
        reason: str | Sequence[str | None] | pa.Array,
        payload: pa.Array | None = None,
    ) -> None:
        index = self.partitions[partition]
        if len(drop) != self.rows[index]:
            raise OperatorError(f"resolve() decided about {len(drop)} rows of a partition with {self.rows[index]} rows")
        if isinstance(reason, str):
            reasons: pa.Array = pa.DictionaryArray.from_arrays(
                pa.array(np.zeros(len(drop), np.int8)), pa.array([reason])
            )
        else:
            reasons = as_array(reason)
        table = pa.table({"drop": pa.array(np.asarray(drop, dtype=np.bool_)), "reason": reasons})
        if payload is not None:
            table = table.append_column("payload", payload)
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with (
            self.exchange.writing(f"{stem(index)}{SPILL}") as path,
            pa.ipc.new_file(path, table.schema, options=options) as writer,
        ):
            writer.write_table(table)

    def close(self) -> None:
        written = set(self.exchange.names())
        missing = [index for index in self.partitions if f"{stem(index)}{SPILL}" not in written]
        if missing:
            raise OperatorError(f"resolve() made no decision about {len(missing)} of {len(self.partitions)} partitions")


def read_fates(exchange: Exchange, partition: int) -> tuple[np.ndarray, pa.Array, pa.Array | None]:
    """(drop, reason, payload) for each row of a partition, in the order in which they were observed."""
    with pa.memory_map(str(exchange.sub(FATES).file(f"{stem(partition)}{SPILL}"))) as file:
        table = pa.ipc.open_file(file).read_all()
    drop = contiguous(table.column("drop")).to_numpy(zero_copy_only=False)
    payload = contiguous(table.column("payload")) if "payload" in table.column_names else None
    return drop, contiguous(table.column("reason")), payload
