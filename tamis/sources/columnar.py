"""Readers of columnar files: Parquet, split by row groups, and Arrow IPC, split by record batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tamis.batch import Batch, Failure, Origin, bytes_of
from tamis.errors import DamagedFile, SourceError, remote_failure
from tamis.mapped import release_pages
from tamis.operators import Layout, Partition, Piece, Reading, operator
from tamis.sources import partitions as division
from tamis.sources.files import File, is_local, local_path, open_file
from tamis.sources.filesource import NEVER, WHOLE, DamagedFiles, FileSource
from tamis.sources.schemas import cheapest_column, conform, plain, plain_schema, unify
from tamis.sources.validation import DECODE_ERRORS, check_structure, invalid_text, is_absurd

_FOOTERS_READ = 200
"""With more files than this, only the footers of a sample and of files large enough to split are read."""
_BUFFER_BYTES = 2**20


class Columnar(FileSource):
    """A reader of files that contain tables and their schema."""

    def tables(self, piece: Piece, reading: Reading, wanted: Sequence[str] | None) -> Iterator[tuple[int, pa.Table]]:
        """The tables of a piece, each with the number of its first row; damaged parts are failed."""
        raise NotImplementedError

    def read(self, partition: Partition, reading: Reading) -> Iterator[Batch]:
        wanted = self.wanted(reading)
        for piece in self.pieces_to_read(partition, reading):
            if piece.start == piece.stop:
                continue
            try:
                for row, table in self.tables(piece, reading, wanted):
                    if (batch := self._emit(table, piece.path, row, reading, wanted)) is not None:
                        yield batch
            except DamagedFile as error:
                self.fail_file(reading, piece.path, error)

    def _emit(
        self, table: pa.Table, place: str, row: int, reading: Reading, wanted: Sequence[str] | None
    ) -> Batch | None:
        """The rows of a table as a batch with the schema of the dataset; None if all rows failed."""
        numbers = np.arange(row, row + table.num_rows)
        table = plain(table)
        errors = invalid_text(table)
        for index, error in errors.items():
            reading.fail(Failure(f"{place}:{numbers[index]}", self.name, error))
        if errors:
            numbers = np.delete(numbers, list(errors))
            table = table.take(pa.array(numbers - row))
        if not len(numbers):
            return None
        try:
            shaped = conform(table, self.file_schema(reading.schema), wanted)
        except ValueError as error:
            what = "1 row" if len(numbers) == 1 else f"{len(numbers):,} rows"
            reading.fail(Failure(f"{place}:{row}", self.name, f"{what} lost: {error}", rows=len(numbers)))
            return None
        return self.batch(shaped, Origin.of(place, numbers))

    def _fail_part(self, reading: Reading, path: str, row: int, rows: int, what: str, error: Exception) -> None:
        """Report a part of a file, `rows` rows from `row` on, that is damaged."""
        if not is_local(path) and (away := remote_failure(error, path, SourceError)) is not None:
            raise away from error
        lost = f"{rows:,} row{'s are' if rows != 1 else ' is'} lost" if rows else "its rows are lost"
        self.fail_file(reading, path, f"{what} is damaged, {lost}: {error}", row=row, rows=rows)


@operator()
class ParquetReader(Columnar):
    """Read rows of Parquet files, split by row groups. Only the columns that are needed are read.

    Files may have different columns: missing ones are null, and numbers are widened. If a row group is damaged, its
    rows fail and the rest of the file is read. A row with text that is not UTF-8 fails.

    >>> ParquetReader("crawl/", blocksize="256MB", fields=["text", "url"]).name
    'parquet_reader'
    """

    format = "parquet"

    def layout(self, blocksize: int) -> Layout:
        size = self.block_bytes(blocksize)
        files, damaged = self.list_files(), DamagedFiles()
        full = [file for file in files if file.size]
        first = full if len(full) <= _FOOTERS_READ else division.sampled(full)
        threads = 1 if not files or is_local(files[0].path) else 16  # each footer is a round trip or two
        footers = damaged.examine(first, self._footer, threads=threads)
        damaged.raise_if_nothing_is_left(first)
        ratio = sum(map(_num_bytes, footers.values())) / max(1, sum(file.size for file in first))
        large = [file for file in full if file.path not in footers and file.size * ratio > size]
        footers.update(damaged.examine(large, self._footer, threads=threads))
        pieces: list[Piece] = []
        for file in files:
            pieces += self._pieces(file, footers.get(file.path), size, ratio)
        pieces = damaged.without(pieces)
        schemas = [(path, plain_schema(footer.schema.to_arrow_schema())) for path, footer in footers.items()]
        reasons = {}
        if len(footers) < len(full):
            reasons["footers"] = f"{len(footers):,} of {len(full):,} footers were read; sizes are estimated from those"
        layout = self.divided(files, pieces, unify(schemas, type(self).__name__), size, reasons, damaged)
        if len(footers) < len(full):
            return layout
        num_rows = sum(footer.num_rows for path, footer in footers.items() if path not in layout.damaged_files)
        return replace(layout, num_rows=self.counted(num_rows))

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

    def _footer(self, file: File) -> pq.FileMetaData:
        with self._open(file.path) as parquet:
            try:
                plain_schema(parquet.schema_arrow)
            except DECODE_ERRORS as error:
                raise _not_parquet(file.path, error) from error
            return parquet.metadata

    @contextmanager
    def _open(self, path: str) -> Iterator[pq.ParquetFile]:
        with open_file(path, self.storage_options) as file:
            source = local_path(path) if is_local(path) else file
            try:
                # A buffer instead of whole column chunks: a row group may be far larger than a batch.
                parquet = pq.ParquetFile(source, buffer_size=_BUFFER_BYTES, pre_buffer=False)
            except DECODE_ERRORS as error:
                raise _not_parquet(path, error) from error
            with parquet:
                yield parquet

    def count_rows(self, piece: Piece, most: int) -> int:
        if piece.start == piece.stop:
            return 0
        with self._open(piece.path) as parquet:
            return sum(parquet.metadata.row_group(i).num_rows for i in _groups(parquet, piece))

    def tables(self, piece: Piece, reading: Reading, wanted: Sequence[str] | None) -> Iterator[tuple[int, pa.Table]]:
        with self._open(piece.path) as parquet:
            yield from self._tables(parquet, piece, reading, wanted)

    def _tables(
        self, parquet: pq.ParquetFile, piece: Piece, reading: Reading, wanted: Sequence[str] | None
    ) -> Iterator[tuple[int, pa.Table]]:
        """Tables with the number of their first row. The remaining rows of a damaged row group fail."""
        meta = parquet.metadata
        file_size = meta.serialized_size + sum(meta.row_group(i).total_byte_size for i in range(meta.num_row_groups))
        groups = _groups(parquet, piece)
        try:
            columns = columns_of(parquet.schema_arrow, wanted)
            step = _rows_per_batch(meta, groups, columns, reading.batch_bytes)
        except DECODE_ERRORS as error:
            raise _not_parquet(piece.path, error) from error
        for name in columns:
            if _holds_lists_of_no_values(kind := parquet.schema_arrow.field(name).type):
                raise SourceError(
                    f"column `{name}` of {piece.path} is {kind}, which Arrow cannot read from Parquet files",
                    hint="name the columns to read, without this one: ParquetReader(..., fields=[...])",
                )

        def tables() -> Iterator[tuple[int, pa.Table]]:
            row = sum(meta.row_group(i).num_rows for i in range(groups.start))
            begin, end = row + piece.skip, NEVER if piece.limit is None else row + piece.skip + piece.limit
            for group in groups:
                group_end = min(end, row + meta.row_group(group).num_rows)
                if group_end <= begin:
                    row = group_end
                    continue
                damage: Exception | None = None
                try:
                    for batch in parquet.iter_batches(step, [group], columns, use_threads=False):
                        check_structure(batch)
                        table = pa.Table.from_batches([batch])
                        if table.num_rows > group_end - row:
                            table = table.slice(0, group_end - row)
                        if row + table.num_rows > begin:
                            late = max(0, begin - row)
                            yield row + late, table.slice(late)
                        row += table.num_rows
                    if row < group_end:
                        damage = ValueError("it holds fewer rows than the footer says")
                except DECODE_ERRORS as error:
                    damage = error
                except MemoryError as error:
                    if not is_absurd(error, file_size):
                        raise
                    damage = error
                if damage is not None:
                    rows = group_end - row if _is_plausible(meta.row_group(group)) else 0
                    self._fail_part(reading, piece.path, row, rows, f"row group {group}", damage)
                    row += rows
                if row >= end:
                    return

        return coalesced(tables(), rows=step)


def _not_parquet(path: str, error: Exception) -> DamagedFile:
    return DamagedFile(
        f"{path} is not a Parquet file, or its footer is missing or damaged: {error}",
        hint="copy it again or exclude it; a Parquet file that is still being written has no footer yet",
    )


def columns_of(schema: pa.Schema, wanted: Sequence[str] | None) -> list[str]:
    """The columns to read of a file: at least one, because Arrow loses the number of rows of tables without columns."""
    return [name for name in schema.names if wanted is None or name in wanted] or cheapest_column(schema)


def _holds_lists_of_no_values(kind: pa.DataType) -> bool:
    """Whether a type is a fixed-size list of size 0, or contains one."""
    if pa.types.is_fixed_size_list(kind) and not kind.list_size:
        return True
    return any(_holds_lists_of_no_values(kind.field(number).type) for number in range(kind.num_fields))


def _groups(parquet: pq.ParquetFile, piece: Piece) -> range:
    return range(piece.start, parquet.metadata.num_row_groups if piece.stop == WHOLE else piece.stop)


def _is_plausible(group: pq.RowGroupMetaData) -> bool:
    """Whether a row group has as many values as rows: a damaged footer may claim any number of rows."""
    return group.num_rows <= max((group.column(i).num_values for i in range(group.num_columns)), default=0)


def _num_bytes(footer: pq.FileMetaData) -> int:
    return sum(footer.row_group(i).total_byte_size for i in range(footer.num_row_groups))


def _rows_per_batch(meta: pq.FileMetaData, groups: range, columns: Sequence[str], batch_bytes: int) -> int:
    """The number of rows whose columns to read have about `batch_bytes`."""
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


def coalesced(
    tables: Iterator[tuple[int, pa.Table]], *, rows: int = NEVER, batch_bytes: int = NEVER
) -> Iterator[tuple[int, pa.Table]]:
    """Concatenate small neighbouring tables, so that small row groups do not make small batches."""
    held: list[pa.Table] = []
    first = count = size = 0
    for row, table in tables:
        more = bytes_of(table)
        full = count + table.num_rows > rows or size + more > batch_bytes
        if held and (full or row != first + count or table.schema != held[0].schema):
            yield first, pa.concat_tables(held)
            held, count, size = [], 0, 0
        if not held:
            first = row
        held.append(table)
        count, size = count + table.num_rows, size + more
    if held:
        yield first, pa.concat_tables(held)


# ---------------------------------------------------------------------------------------------------------------- Arrow


@operator()
class ArrowReader(Columnar):
    """Read rows of Arrow IPC files and streams (.arrow, .feather version 2, .ipc), split by record batches.

    Local files are memory-mapped, not copied. Files on other file systems are not split. If a record batch is damaged,
    its rows fail. A row with text that is not UTF-8 fails.

    >>> ArrowReader("cache/*.arrow").name
    'arrow_reader'
    """

    format = "arrow"

    def layout(self, blocksize: int) -> Layout:
        size = self.block_bytes(blocksize)
        files, damaged = self.list_files(), DamagedFiles()
        sampled = division.sampled(files, _FOOTERS_READ)
        large = [file for file in files if self._is_split(file, size)]
        looked = damaged.examine(
            [*sampled, *(file for file in large if file not in sampled)],
            lambda file: self._examine(file, split=self._is_split(file, size)),
        )
        damaged.raise_if_nothing_is_left(sampled)
        pieces: list[Piece] = []
        for file in files:
            _, count = looked.get(file.path, (None, 0))
            if not file.size:
                pieces.append(Piece(file.path, 0, 0))
            elif count > 1 and self._is_split(file, size):
                batches = [Piece(file.path, i, i + 1, file.size // count) for i in range(count)]
                for part in division.pack(batches, size):
                    share = sum(piece.size for piece in part)
                    pieces.append(Piece(file.path, part[0].start, part[-1].stop, share))
            else:
                pieces.append(Piece(file.path, 0, WHOLE, file.size))
        schemas = [(path, schema) for path, (schema, _) in looked.items()]
        return self.divided(files, damaged.without(pieces), unify(schemas, type(self).__name__), size, {}, damaged)

    def _is_split(self, file: File, blocksize: int) -> bool:
        return file.size > blocksize and is_local(file.path) and self.files_per_partition is None

    def _examine(self, file: File, *, split: bool) -> tuple[pa.Schema, int]:
        """The schema of a file and, if it is to be split, the number of its record batches."""
        with self._reader(file.path) as reader:
            try:
                return plain_schema(reader.schema), reader.count() if split else 0
            except DECODE_ERRORS as error:
                raise _not_arrow(file.path, error) from error

    def _reader(self, path: str, columns: Sequence[str] | None = None) -> _Ipc:
        opened = open_file(path, self.storage_options)
        try:
            if is_local(path):
                opened.close()  # it was opened for its errors; Arrow maps it itself
                return _Ipc(pa.memory_map(local_path(path)), columns)
            return _Ipc(opened, columns)
        except DECODE_ERRORS as error:
            opened.close()
            raise _not_arrow(path, error) from error

    def count_rows(self, piece: Piece, most: int) -> int:
        if piece.start == piece.stop:
            return 0
        count = 0
        with self._reader(piece.path) as first, self._reader(piece.path, first.schema.names[:1]) as reader:
            for _, batch in reader.batches(piece.start, piece.stop):
                count += _plausible_rows(batch, reader) if isinstance(batch, pa.RecordBatch) else 0
                if count >= most:
                    break
        return count

    def tables(self, piece: Piece, reading: Reading, wanted: Sequence[str] | None) -> Iterator[tuple[int, pa.Table]]:
        for found in coalesced(self._tables(piece, reading, wanted), batch_bytes=reading.batch_bytes):
            yield found
            release_pages()

    def _tables(self, piece: Piece, reading: Reading, wanted: Sequence[str] | None) -> Iterator[tuple[int, pa.Table]]:
        """Tables with the number of their first row; a record batch that is damaged is failed."""
        row = self.count_rows(Piece(piece.path, 0, piece.start), NEVER)
        begin, end = row + piece.skip, NEVER if piece.limit is None else row + piece.skip + piece.limit
        with self._reader(piece.path) as whole:
            columns = None if wanted is None else columns_of(whole.schema, wanted)
        with self._reader(piece.path, columns) as reader:
            for index, batch in reader.batches(piece.start, piece.stop):
                what = f"record batch {index}"
                if isinstance(batch, Exception):
                    after = "" if reader.is_file else ", and the stream cannot be followed any further"
                    self._fail_part(reading, piece.path, row, 0, what + after, batch)
                    continue
                rows = min(_plausible_rows(batch, reader), end - row)
                try:
                    check_structure(batch)
                except DECODE_ERRORS as error:
                    self._fail_part(reading, piece.path, row, rows, what, error)
                else:
                    late = min(rows, max(0, begin - row))
                    table = pa.Table.from_batches([batch.slice(late, rows - late)])
                    if columns is not None:
                        table = table.select(columns)
                    for start in range(0, table.num_rows, step := rows_of(table, reading.batch_bytes)):
                        yield row + late + start, table.slice(start, step)
                row += rows
                if row >= end:
                    return


def _not_arrow(path: str, error: Exception) -> DamagedFile:
    return DamagedFile(
        f"{path} is not an Arrow file or stream: {error}",
        hint="Feather version 1 files can be rewritten with pyarrow.feather.write_feather(..., version=2)",
    )


def _plausible_rows(batch: pa.RecordBatch, reader: _Ipc) -> int:
    """The number of rows a record batch claims to have, or 0 if the whole file could not hold a bit for each."""
    return batch.num_rows if batch.num_rows <= 8 * reader.size or not batch.num_columns else 0


def rows_of(table: pa.Table, batch_bytes: int) -> int:
    size = bytes_of(table)
    return max(1, int(batch_bytes * table.num_rows / size) if size else table.num_rows)


class _Ipc:
    """An Arrow file or stream as a sequence of record batches."""

    def __init__(self, source: pa.NativeFile | IO[bytes], columns: Sequence[str] | None = None) -> None:
        self.source = source
        source.seek(0, 2)
        self.size = source.tell()
        source.seek(0)
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
        """The number of record batches. For a stream, all headers are read."""
        if self.is_file:
            return self.reader.num_record_batches
        self.source.seek(0)
        return sum(message.type == "record batch" for message in pa.ipc.MessageReader.open_stream(self.source))

    def batches(self, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch | Exception]]:
        """The record batches with their numbers. In place of one that cannot be read comes the error."""
        last = self.reader.num_record_batches if self.is_file else NEVER
        for index in range(start if self.is_file else 0, last if stop == WHOLE else min(stop, last)):
            try:
                batch = self.reader.get_batch(index) if self.is_file else self.reader.read_next_batch()
            except StopIteration:
                return
            except (*DECODE_ERRORS, MemoryError) as error:
                if isinstance(error, MemoryError) and not is_absurd(error, self.size):
                    raise
                if index >= start:
                    yield index, error
                if not self.is_file:
                    return
            else:
                if index >= start:
                    yield index, batch

    def __enter__(self) -> _Ipc:
        return self

    def __exit__(self, *_: object) -> None:
        self.source.close()
