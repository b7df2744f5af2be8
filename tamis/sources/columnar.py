"""Sources of rows in columnar files: Parquet, split by row groups, and Arrow IPC, split by record batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tamis.batch import Batch, Failure, Origin, bytes_of
from tamis.errors import SourceError
from tamis.mapped import release_pages
from tamis.operators import Layout, Partition, Piece, Reading, operator
from tamis.sources import partitions as division
from tamis.sources.files import File, is_local, local_path, open_file
from tamis.sources.filesource import NEVER, WHOLE, FileSource
from tamis.sources.schemas import conform, plain, plain_schema, unify

_FOOTERS_READ = 200
"""Of more files than this the footers of a sample are read, and of those large enough to be split."""
_BUFFER_BYTES = 2**20
_DECODE_ERRORS = (OSError, pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)


class _Columnar(FileSource):
    """What Parquet and Arrow have in common: whole tables out of files that know their schema."""

    def _emit(
        self, table: pa.Table, place: str, row: int, reading: Reading, wanted: Sequence[str] | None
    ) -> Batch | None:
        """The rows of a table as a batch of the dataset, or None where they do not fit it and were failed."""
        try:
            shaped = conform(plain(table), self.file_schema(reading.schema), wanted)
        except ValueError as error:
            self._lost(reading, place, row, table.num_rows, str(error))
            return None
        return Batch(self.renamed(shaped), Origin.of(place, np.arange(row, row + table.num_rows)))

    def _lost(self, reading: Reading, place: str, row: int, rows: int, error: str) -> None:
        what = "row" if rows == 1 else f"{rows:,} rows"
        reading.fail(Failure(f"{place}:{row}", self.name, f"{what} lost: {error}", rows=rows))


@operator()
class ParquetReader(_Columnar):
    """Rows of Parquet files, split by row groups; only the columns that are needed are read.

    Files may differ in their columns: one that is missing is null, numbers are widened. A row group that cannot be
    decoded fails with all its rows; the rest of the file is read.

    >>> ParquetReader("crawl/", blocksize="256MB", fields=["text", "url"]).name
    'parquet_reader'
    """

    format = "parquet"

    def layout(self, blocksize: int) -> Layout:
        size = self.block_bytes(blocksize)
        files = self.list_files()
        full = [file for file in files if file.size]
        first = full if len(full) <= _FOOTERS_READ else division.sampled(full)
        footers = dict(zip([file.path for file in first], self._footers(first), strict=True))
        ratio = sum(map(_num_bytes, footers.values())) / max(1, sum(file.size for file in first))
        large = [file for file in full if file.path not in footers and file.size * ratio > size]
        footers.update(zip([file.path for file in large], self._footers(large), strict=True))
        pieces: list[Piece] = []
        for file in files:
            pieces += self._pieces(file, footers.get(file.path), size, ratio)
        schemas = [(path, plain_schema(footer.schema.to_arrow_schema())) for path, footer in footers.items()]
        reasons = {}
        if len(footers) < len(full):
            reasons["footers"] = (
                f"of {len(full):,} files {len(footers):,} footers were read; sizes are estimated from those"
            )
        return self.divided(files, pieces, unify(schemas, type(self).__name__), size, reasons)

    def _pieces(self, file: File, footer: pq.FileMetaData | None, blocksize: int, ratio: float) -> list[Piece]:
        if not file.size:
            return [Piece(file.path, 0, 0)]
        if footer is None:
            return [Piece(file.path, 0, WHOLE, int(file.size * ratio))]
        if _num_bytes(footer) <= blocksize or self.files_per_partition is not None:
            return [Piece(file.path, 0, WHOLE, _num_bytes(footer))]
        groups = [Piece(file.path, i, i + 1, footer.row_group(i).total_byte_size) for i in range(footer.num_row_groups)]
        return [
            Piece(file.path, part[0].start, part[-1].stop, sum(piece.size for piece in part))
            for part in division.pack(groups, blocksize)
        ]

    def _footers(self, files: Sequence[File]) -> list[pq.FileMetaData]:
        if len(files) > 1 and not is_local(files[0].path):
            with ThreadPoolExecutor(16) as pool:  # each is a round trip or two
                return list(pool.map(self._footer, files))
        return [self._footer(file) for file in files]

    def _footer(self, file: File) -> pq.FileMetaData:
        try:
            with self._open(file.path) as parquet:
                return parquet.metadata
        except _DECODE_ERRORS as error:
            raise SourceError(
                f"{file.path} is not a Parquet file, or its end is missing: {error}",
                hint="copy it again, or leave it out; a Parquet file that is still being written has no end yet",
            ) from error

    @contextmanager
    def _open(self, path: str) -> Iterator[pq.ParquetFile]:
        with open_file(path, self.storage_options) as file:
            source = local_path(path) if is_local(path) else file
            # A buffer instead of whole column chunks: a row group may be far larger than a batch.
            with pq.ParquetFile(source, buffer_size=_BUFFER_BYTES, pre_buffer=False) as parquet:
                yield parquet

    def count_rows(self, piece: Piece, most: int) -> int:
        if piece.start == piece.stop:
            return 0
        with self._open(piece.path) as parquet:
            return sum(parquet.metadata.row_group(i).num_rows for i in _groups(parquet, piece))

    def read(self, partition: Partition, reading: Reading) -> Iterator[Batch]:
        wanted = self.wanted(reading)
        for piece in partition.pieces:
            if piece.start == piece.stop:
                continue
            with ExitStack() as stack:
                try:
                    parquet = stack.enter_context(self._open(piece.path))
                except _DECODE_ERRORS as error:
                    why = f"the file has no readable footer, its rows are unknown: {error}"
                    self._lost(reading, piece.path, 0, 1, why)
                    continue
                for row, table in self._tables(parquet, piece, reading, wanted):
                    if (batch := self._emit(table, piece.path, row, reading, wanted)) is not None:
                        yield batch

    def _tables(
        self, parquet: pq.ParquetFile, piece: Piece, reading: Reading, wanted: Sequence[str] | None
    ) -> Iterator[tuple[int, pa.Table]]:
        """Tables with the number of their first row; of a row group that breaks, what is left is failed."""
        meta = parquet.metadata
        groups = _groups(parquet, piece)
        names = parquet.schema_arrow.names
        columns = names if wanted is None else [name for name in names if name in wanted]
        step = _rows_per_batch(meta, groups, columns, reading.batch_bytes)

        def tables() -> Iterator[tuple[int, pa.Table]]:
            row = sum(meta.row_group(i).num_rows for i in range(groups.start))
            end = NEVER if piece.limit is None else row + piece.limit
            for group in groups:
                group_end = min(end, row + meta.row_group(group).num_rows)
                try:
                    for batch in parquet.iter_batches(step, [group], columns, use_threads=False):
                        table = pa.Table.from_batches([batch])
                        if table.num_rows > group_end - row:
                            table = table.slice(0, group_end - row)
                        if table.num_rows:
                            yield row, table
                        row += table.num_rows
                except _DECODE_ERRORS as error:
                    self._lost(
                        reading, piece.path, row, group_end - row, f"row group {group} cannot be decoded: {error}"
                    )
                    row = group_end
                if row >= end:
                    return

        return _coalesced(tables(), step)


def _groups(parquet: pq.ParquetFile, piece: Piece) -> range:
    return range(piece.start, parquet.metadata.num_row_groups if piece.stop == WHOLE else piece.stop)


def _num_bytes(footer: pq.FileMetaData) -> int:
    return sum(footer.row_group(i).total_byte_size for i in range(footer.num_row_groups))


def _rows_per_batch(meta: pq.FileMetaData, groups: range, columns: Sequence[str], batch_bytes: int) -> int:
    """So many rows as make `batch_bytes` of the columns that are read."""
    rows = num_bytes = 0
    wanted = set(columns)
    for index in groups:
        group = meta.row_group(index)
        rows += group.num_rows
        for position in range(group.num_columns):
            column = group.column(position)
            path = column.path_in_schema
            if path in wanted or path.partition(".")[0] in wanted:
                num_bytes += column.total_uncompressed_size
    return max(1, min(rows, int(batch_bytes * rows / num_bytes) if num_bytes else rows))


def _coalesced(tables: Iterator[tuple[int, pa.Table]], rows: int) -> Iterator[tuple[int, pa.Table]]:
    """Neighbouring small tables as one, so that small row groups do not make small batches."""
    held: list[pa.Table] = []
    first = count = 0
    for row, table in tables:
        if held and (row != first + count or count + table.num_rows > rows or table.schema != held[0].schema):
            yield first, pa.concat_tables(held)
            held, count = [], 0
        if not held:
            first = row
        held.append(table)
        count += table.num_rows
    if held:
        yield first, pa.concat_tables(held)


# ---------------------------------------------------------------------------------------------------------------- Arrow


@operator()
class ArrowReader(_Columnar):
    """Rows of Arrow IPC files and streams (.arrow, .feather version 2, .ipc), split by record batches.

    A local file is mapped, not copied. On other file systems a file is read from its beginning and never split.

    >>> ArrowReader("cache/*.arrow").name
    'arrow_reader'
    """

    format = "arrow"

    def layout(self, blocksize: int) -> Layout:
        size = self.block_bytes(blocksize)
        files = self.list_files()
        pieces: list[Piece] = []
        schemas = []
        known = {file.path for file in division.sampled(files, _FOOTERS_READ)}
        for file in files:
            if not file.size:
                pieces.append(Piece(file.path, 0, 0))
                continue
            split = file.size > size and is_local(file.path) and self.files_per_partition is None
            if file.path in known or split:
                with self._reader(file.path) as reader:
                    schemas.append((file.path, plain_schema(reader.schema)))
                    if split and (count := reader.count()) > 1:
                        batches = [Piece(file.path, i, i + 1, file.size // count) for i in range(count)]
                        for part in division.pack(batches, size):
                            share = sum(piece.size for piece in part)
                            pieces.append(Piece(file.path, part[0].start, part[-1].stop, share))
                        continue
            pieces.append(Piece(file.path, 0, WHOLE, file.size))
        return self.divided(files, pieces, unify(schemas, type(self).__name__), size, {})

    def _reader(self, path: str, columns: Sequence[str] | None = None) -> _Ipc:
        try:
            source = pa.memory_map(local_path(path)) if is_local(path) else open_file(path, self.storage_options)
            return _Ipc(source, columns)
        except FileNotFoundError:
            raise
        except _DECODE_ERRORS as error:
            raise SourceError(
                f"{path} is not an Arrow file or stream: {error}",
                hint="Feather version 1 files can be rewritten with pyarrow.feather.write_feather(..., version=2)",
            ) from error

    def count_rows(self, piece: Piece, most: int) -> int:
        if piece.start == piece.stop:
            return 0
        count = 0
        with self._reader(piece.path) as first, self._reader(piece.path, first.schema.names[:1]) as reader:
            for batch in reader.batches(piece.start, piece.stop):
                count += batch.num_rows
                if count >= most:
                    break
        return count

    def read(self, partition: Partition, reading: Reading) -> Iterator[Batch]:
        wanted = self.wanted(reading)
        for piece in partition.pieces:
            if piece.start != piece.stop:
                for row, table in self._tables(piece, reading, wanted):
                    if (batch := self._emit(table, piece.path, row, reading, wanted)) is not None:
                        yield batch
                        release_pages()

    def _tables(self, piece: Piece, reading: Reading, wanted: Sequence[str] | None) -> Iterator[tuple[int, pa.Table]]:
        before = Piece(piece.path, 0, piece.start)
        row = self.count_rows(before, NEVER)
        end = NEVER if piece.limit is None else row + piece.limit
        with self._reader(piece.path) as whole:
            columns = None if wanted is None else [name for name in whole.schema.names if name in wanted]
        with self._reader(piece.path, columns) as reader:

            def tables() -> Iterator[tuple[int, pa.Table]]:
                nonlocal row
                try:
                    for batch in reader.batches(piece.start, piece.stop):
                        table = pa.Table.from_batches([batch.slice(0, min(batch.num_rows, end - row))])
                        if columns is not None:
                            table = table.select(columns)
                        for start in range(0, table.num_rows, step := _rows_of(table, reading.batch_bytes)):
                            yield row + start, table.slice(start, step)
                        row += table.num_rows
                        if row >= end:
                            return
                except _DECODE_ERRORS as error:
                    self._lost(
                        reading,
                        piece.path,
                        row,
                        1,
                        f"the file cannot be read from here on, its rows are unknown: {error}",
                    )

            held: list[pa.Table] = []
            first = size = 0
            for start, table in tables():
                if held and size + bytes_of(table) > reading.batch_bytes:
                    yield first, pa.concat_tables(held)
                    held, size = [], 0
                if not held:
                    first = start
                held.append(table)
                size += bytes_of(table)
            if held:
                yield first, pa.concat_tables(held)


def _rows_of(table: pa.Table, batch_bytes: int) -> int:
    size = bytes_of(table)
    return max(1, int(batch_bytes * table.num_rows / size) if size else table.num_rows)


class _Ipc:
    """An Arrow file or stream, whichever it is, as a sequence of record batches."""

    def __init__(self, source: pa.NativeFile | IO[bytes], columns: Sequence[str] | None = None) -> None:
        self.source = source
        self.is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        options = pa.ipc.IpcReadOptions()
        if columns:
            names = self._open(options).schema.names
            source.seek(0)
            options = pa.ipc.IpcReadOptions(included_fields=[names.index(name) for name in columns])
        self.reader = self._open(options)
        self.schema: pa.Schema = self.reader.schema

    def _open(self, options: pa.ipc.IpcReadOptions) -> Any:
        return (
            pa.ipc.open_file(self.source, options=options)
            if self.is_file
            else pa.ipc.open_stream(self.source, options=options)
        )

    def count(self) -> int:
        """How many record batches there are; of a stream every header is read."""
        if self.is_file:
            return self.reader.num_record_batches
        self.source.seek(0)
        return sum(message.type == "record batch" for message in pa.ipc.MessageReader.open_stream(self.source))

    def batches(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        if self.is_file:
            for index in range(start, self.reader.num_record_batches if stop == WHOLE else stop):
                yield self.reader.get_batch(index)
            return
        for index, batch in enumerate(self.reader):
            if index >= start:
                yield batch
            if index + 1 == stop:
                return

    def __enter__(self) -> _Ipc:
        return self

    def __exit__(self, *_: object) -> None:
        self.source.close()
