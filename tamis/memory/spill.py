"""Rows and facts on disk between the stages of a run, as Arrow IPC files.

stage 1:  ... -> observe -> part-000000.rows.spill    the rows, with their addresses
                         -> part-000000.facts.spill   the facts from Gather.observe, one line per row
resolve:  all facts      -> part-000000.fates.spill   which rows are dropped, and why
stage 2:  rows + fates   -> ...
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from tamis.batch import Batch, Origin, as_array, bytes_of, contiguous
from tamis.errors import OperatorError
from tamis.mapped import SPILL
from tamis.media import MediaAccess
from tamis.operators import Layout, Partition, Reading, Source

_PLACE, _POSITION, _CHILDREN = "_tamis_place", "_tamis_position", "_tamis_children"


def stem(partition: int) -> str:
    """The stem of the file names of a partition; names sort in the order of partitions."""
    return f"part-{partition:06d}"


class SpillWriter:
    """Appends tables to one Arrow file, which is created on the first write, when its columns are known."""

    def __init__(self, path: Path, compression: str | None = "lz4") -> None:
        self.path = path
        self.compression = compression
        self.files: list[Path] = []
        self._schema: pa.Schema | None = None
        self._writer: pa.RecordBatchFileWriter | None = None

    def write(self, table: pa.Table) -> None:
        if self._writer is None or table.schema != self._schema:
            # A batch with another column or a wider type starts another file.
            self.close()
            number = len(self.files)
            self.files.append(self.path.with_name(f"{self.path.name}.{number}") if number else self.path)
            options = pa.ipc.IpcWriteOptions(compression=self.compression)
            self._schema = table.schema
            self._writer = pa.ipc.new_file(self.files[-1], table.schema, options=options)
        self._writer.write_table(table)

    def close(self) -> list[Path]:
        """The files written, in order; empty if there were no rows."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        return self.files


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

    folder: str
    access: MediaAccess | None = None
    """What references in the rows may reach, as the reader of the input allows it."""

    @property
    def name(self) -> str:
        return "spilled_rows"

    def layout(self, blocksize: int) -> Layout:
        raise NotImplementedError("the partitions of a later stage come from the plan")

    def read(self, partition: Partition, reading: Reading) -> Iterator[Batch]:
        for file in spilled_files(Path(self.folder) / f"{stem(partition.index)}.rows{SPILL}"):
            with pa.OSFile(str(file)) as opened:
                reader = pa.ipc.open_file(opened)
                for number in range(reader.num_record_batches):
                    yield from batches_of(pa.table(reader.get_batch(number)), reading.batch_bytes, self.access)


def batches_of(table: pa.Table, batch_bytes: int, access: MediaAccess | None) -> Iterator[Batch]:
    """The inverse of `with_addresses`, in batches of about `batch_bytes`."""
    rows = table.num_rows
    step = max(1, rows * batch_bytes // max(1, bytes_of(table)))
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


def spilled_files(first: Path) -> list[Path]:
    """The files that a SpillWriter wrote for `first`, in order."""
    found: list[Path] = []
    file = first
    while file.exists():  # by name: listing a folder with thousands of files is slow
        found.append(file)
        file = first.with_name(f"{first.name}.{len(found)}")
    return found


class ObservedFacts:
    """The facts from `Gather.observe`, read from disk one partition at a time; `rows` is the row count by partition."""

    def __init__(self, folder: Path, rows: Mapping[int, int]) -> None:
        self.folder = folder
        self.rows = dict(sorted(rows.items()))
        self.partitions = list(self.rows)

    def __len__(self) -> int:
        return len(self.partitions)

    def num_rows(self, partition: int) -> int:
        return self.rows[self.partitions[partition]]

    def __getitem__(self, partition: int) -> pa.Table:
        files = self._files(partition)
        if not files:  # no row of this partition was observed; use the columns of another partition
            files = next((found for number in range(len(self)) if (found := self._files(number))), [])
            return pa.ipc.open_file(pa.memory_map(str(files[0]))).schema.empty_table() if files else pa.table({})
        tables = [pa.ipc.open_file(pa.memory_map(str(file))).read_all() for file in files]
        return pa.concat_tables(tables, promote_options="permissive")

    def _files(self, partition: int) -> list[Path]:
        return spilled_files(self.folder / f"{stem(self.partitions[partition])}.facts{SPILL}")

    def __iter__(self) -> Iterator[pa.Table]:
        return (self[number] for number in range(len(self)))


class Fates:
    """Writes the decisions of `Gather.resolve`, and checks that there is one for every row. Can be sent to a worker."""

    def __init__(self, folder: Path, rows: Mapping[int, int]) -> None:
        self.folder = folder
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
        path = self._path(index)
        table = pa.table({"drop": pa.array(np.asarray(drop, dtype=np.bool_)), "reason": reasons})
        if payload is not None:
            table = table.append_column("payload", payload)
        temporary = path.with_suffix(".unfinished")
        with pa.ipc.new_file(temporary, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
            writer.write_table(table)
        temporary.replace(path)

    def close(self) -> None:
        missing = [index for index in self.partitions if not self._path(index).exists()]
        if missing:
            raise OperatorError(f"resolve() made no decision about {len(missing)} of {len(self.partitions)} partitions")

    def _path(self, index: int) -> Path:
        return self.folder / f"{stem(index)}.fates{SPILL}"


def read_fates(folder: Path, partition: int) -> tuple[np.ndarray, pa.Array, pa.Array | None]:
    """(drop, reason, payload) for each row of a partition, in the order in which they were observed."""
    with pa.memory_map(str(folder / f"{stem(partition)}.fates{SPILL}")) as file:
        table = pa.ipc.open_file(file).read_all()
    drop = contiguous(table.column("drop")).to_numpy(zero_copy_only=False)
    payload = contiguous(table.column("payload")) if "payload" in table.column_names else None
    return drop, contiguous(table.column("reason")), payload
