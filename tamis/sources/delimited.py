"""A source of rows in CSV and TSV files.

Values are strings unless `types` declares otherwise. Types are not inferred: 007, 1e5, NA and 2020-01-01 may be text,
and the result would depend on the sample.

    file --> rows of bytes (pyarrow, block by block) --> UTF-8 and types, column by column --> batches
                 too few or many fields: failed            a value that does not fit: that row failed
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv

from tamis.batch import Batch, Failure, Origin
from tamis.errors import DamagedFile, ParameterError
from tamis.operators import Layout, Partition, Piece, Reading, operator
from tamis.sources import partitions as division
from tamis.sources.files import open_file
from tamis.sources.filesource import NEVER, ByteSource, DamagedFiles, end_of
from tamis.sources.lines import KEPT_OF_BAD_ROW, Chunk, Unread
from tamis.sources.schemas import conform, unify

_LONGEST_ROW = 2**28
"""A longer row is taken for a quote that is never closed."""


@operator()
class CsvReader(ByteSource):
    """Read rows of CSV or TSV files with a header row, plain or compressed.

    Values are strings unless declared otherwise, as in `types={"year": "int64"}`, so "007" stays "007". An empty field
    is an empty string, or null in a column of another type. Quoted fields may contain line ends, so files are not
    split: for large data, prefer JSON lines or Parquet. A row fails if it has too few or too many fields, or a value
    that is not UTF-8 or does not fit its type. Rows of a corrupt member of a compressed file fail; with
    `on_damage="keep"`, those before the damage are kept.

    >>> CsvReader("labels/*.tsv", types={"label": "int64"}).name
    'csv_reader'
    """

    types: Mapping[str, str] | None = None
    delimiter: str | None = None

    format = "csv"

    def check(self) -> None:
        super().check()
        check_types(self.name, self.types)
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise ParameterError(f"`delimiter` of `{self.name}` must be one character, got {self.delimiter!r}")

    def layout(self, blocksize: int) -> Layout:
        size = self.block_bytes(blocksize)
        files, damaged = self.list_files(), DamagedFiles()
        sampled = division.sampled(files, 200)
        headers = damaged.examine(sampled, lambda file: self._header(file.path))
        damaged.raise_if_nothing_is_left(sampled)
        schemas = [(path, pa.schema([(name, self._type(name)) for name in names])) for path, names in headers.items()]
        pieces, reasons = self.pieces(files, NEVER, None, damaged)
        return self.divided(files, pieces, unify(schemas, type(self).__name__), size, reasons, damaged)

    def _type(self, name: str) -> pa.DataType:
        declared = {self.in_file(column): kind for column, kind in (self.types or {}).items()}
        return pa.type_for_alias(declared[name]) if name in declared else pa.string()

    def _delimiter(self, path: str) -> str:
        return self.delimiter or ("\t" if ".tsv" in path.rpartition("/")[2].lower() else ",")

    def _header(self, path: str) -> list[str]:
        """The column names in the first row, which may contain quotes and line ends."""
        corrupt: list[str] = []
        with _Stream(self, path, on_damage=corrupt.append) as stream:
            head = stream.read(division.SAMPLE_BYTES).decode("utf-8-sig", errors="replace")
            if stream.damage is not None and (path in corrupt or not head):
                raise DamagedFile(f"the header of {path} cannot be read: {stream.damage.error}")
        rows = csv.reader(io.StringIO(head, newline=""), delimiter=self._delimiter(path))
        names = next((row for row in rows if row), [])
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise DamagedFile(
                f"{path} has two columns called `{twice[0]}`", hint="rename one of them in the header row"
            )
        return names

    def count_rows(self, piece: Piece, most: int) -> int:
        count = 0
        bad: dict[int, str] = {}
        reading = Reading(None, pa.schema([]), division.SAMPLE_BYTES, lambda failure: None)
        for numbers, _ in self._tables(piece, reading, bad):
            count = int(numbers[-1]) + 1
            if count >= most:
                return count
        return max([count, *(number + 1 for number in bad)])

    def read(self, partition: Partition, reading: Reading) -> Iterator[Batch]:
        for piece in self.pieces_to_read(partition, reading):
            try:
                yield from self._read_piece(piece, reading)
            except DamagedFile as error:
                self.fail_file(reading, piece.path, error)

    def _read_piece(self, piece: Piece, reading: Reading) -> Iterator[Batch]:
        wanted = self.wanted(reading)
        schema = self.file_schema(reading.schema)
        for numbers, table in self._tables(piece, reading, {}):
            if piece.limit is not None or piece.skip:
                first, last = np.searchsorted(numbers, [piece.skip, end_of(piece) or NEVER]).tolist()
                table, numbers = table.slice(first, last - first), numbers[first:last]
            if wanted is not None:
                table = table.select([name for name in table.column_names if name in wanted])
            table, numbers = self._typed(table, numbers, piece.path, reading)
            if len(numbers):
                yield self.batch(conform(table, schema, wanted), Origin.of(piece.path, numbers))

    def _tables(self, piece: Piece, reading: Reading, bad: dict[int, str]) -> Iterator[tuple[np.ndarray, pa.Table]]:
        """Rows as bytes, with their numbers in the file; `bad` collects the errors of malformed rows by number."""
        names = self._header(piece.path) if piece.start != piece.stop else []
        limit = end_of(piece) or NEVER
        texts: dict[int, str] = {}
        given = row = 0  # rows yielded; number of the next row in the file
        longest = min(_LONGEST_ROW, reading.max_row_bytes or _LONGEST_ROW)
        block = max(4096, min(reading.batch_bytes, longest))

        def malformed(found: pv.InvalidRow) -> str:
            number = (found.number or 2) - 2  # numbers start at 1 and count the header
            if number not in bad:
                bad[number] = f"the row has {found.actual_columns} fields, the header {found.expected_columns}"
                texts[number] = found.text
            return "skip"

        while names:
            with _Stream(self, piece.path, reading.damaged, reading.on_damage) as stream:
                skip = given
                try:
                    for batch in self._open(stream, names, piece.path, block, malformed):
                        table = pa.Table.from_batches([batch])
                        if skip >= table.num_rows:
                            skip -= table.num_rows
                            continue
                        table, skip = table.slice(skip), 0
                        numbers = _numbers(row, table.num_rows, bad)
                        yield numbers, table
                        given += table.num_rows
                        row = int(numbers[-1]) + 1
                        self._report_malformed(reading, piece, bad, texts, min(row, limit))
                        if row >= limit:
                            return
                except pa.ArrowInvalid as error:
                    long = "straddl" in str(error)
                    if long and block < longest:
                        block = min(2 * block, longest)
                        continue
                    what = f"a row is longer than {longest:,} bytes; perhaps a quote is never closed" if long else error
                    self.fail_file(reading, piece.path, f"cannot be read from here on: {what}", row=row, rows=1)
                self._report_malformed(reading, piece, bad, texts, limit)
                if stream.damage is not None:
                    self.fail_file(reading, piece.path, stream.damage.error, row=row)
                return

    def _report_malformed(
        self, reading: Reading, piece: Piece, bad: dict[int, str], texts: dict[int, str], until: int
    ) -> None:
        """Report the malformed rows before `until` that are not skipped, each once."""
        for number in sorted(number for number in texts if number < until):
            row = texts.pop(number).encode("utf-8", errors="replace")[:KEPT_OF_BAD_ROW]
            if number >= piece.skip:
                reading.fail(Failure(f"{piece.path}:{number}", self.name, bad[number], row))

    def _open(
        self, stream: _Stream, names: Sequence[str], path: str, block: int, malformed: Any
    ) -> Iterator[pa.RecordBatch]:
        if not stream.peek():
            return iter(())
        return pv.open_csv(
            pa.PythonFile(stream, mode="r"),
            read_options=pv.ReadOptions(use_threads=False, block_size=block),
            parse_options=pv.ParseOptions(
                delimiter=self._delimiter(path), newlines_in_values=True, invalid_row_handler=malformed
            ),
            convert_options=pv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.binary()), strings_can_be_null=False, check_utf8=False
            ),
        )

    def _typed(self, table: pa.Table, numbers: np.ndarray, path: str, reading: Reading) -> tuple[pa.Table, np.ndarray]:
        """Convert bytes to strings and declared types; rows with values that do not fit fail."""
        while True:
            errors: dict[int, str] = {}
            columns = {}
            for name in table.column_names:
                column = table.column(name)
                try:
                    columns[name] = _convert(column, self._type(name))
                except pa.ArrowInvalid:
                    errors.update(_misfits(name, column, self._type(name)))
            if not errors:
                return (pa.table(columns) if columns else table), numbers
            for index, error in errors.items():
                row = {name: _shown(table.column(name)[index].as_py()) for name in table.column_names}
                reading.fail(Failure(f"{path}:{numbers[index]}", self.name, error, row))
            keep = np.delete(np.arange(table.num_rows), list(errors))
            table, numbers = table.take(pa.array(keep)), numbers[keep]


def _convert(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    text = column.cast(pa.string())
    if pa.types.is_string(kind):
        return text
    stripped = pc.utf8_trim_whitespace(text)
    return pc.if_else(pc.equal(stripped, ""), None, stripped).cast(kind)


def _misfits(name: str, column: pa.ChunkedArray, kind: pa.DataType) -> dict[int, str]:
    errors = {}
    for index, value in enumerate(column):
        try:
            _convert(pa.chunked_array([[value.as_py()]], pa.binary()), kind)
        except pa.ArrowInvalid as error:
            reason = "is not UTF-8" if "UTF8" in str(error) else f"is not {kind}"
            errors[index] = f"the value {_shown(value.as_py())!r:.80} of column `{name}` {reason}"
    return errors


def _shown(value: bytes) -> str:
    return value[:KEPT_OF_BAD_ROW].decode("utf-8", errors="backslashreplace")


def _numbers(first: int, count: int, bad: Mapping[int, str]) -> np.ndarray:
    """The numbers of the next `count` well-formed rows, from `first` on."""
    between = sorted(number for number in bad if number >= first)
    numbers = np.arange(first, first + count)
    for number in between:
        if len(numbers) and number <= numbers[-1]:
            numbers[numbers >= number] += 1
    return numbers


class _Stream:
    """The decoded bytes of a file, as a file object for pyarrow. Damage ends it after the last whole row."""

    def __init__(
        self,
        source: ByteSource,
        path: str,
        damaged: frozenset[str] = frozenset(),
        on_damage: Callable[[str], None] | None = None,
    ) -> None:
        self.file = open_file(path, source.storage_options)
        self._chunks = iter(
            source.chunks(self.file, Piece(path, 0, NEVER), 2**18, damaged=damaged, on_damage=on_damage)
        )
        self._held = b""
        self._open_quotes = False  # whether the bytes returned so far end within quotes
        self.damage: Unread | None = None
        self.closed = False
        self._ended = False

    def peek(self) -> bytes:
        self._fill(1)
        return self._held[:1]

    def read(self, size: int = 2**18) -> bytes:
        self._fill(size)
        data, self._held = self._held[:size], self._held[size:]
        self._open_quotes ^= data.count(b'"') % 2 == 1
        return data

    def _fill(self, size: int) -> None:
        parts, count = [self._held], len(self._held)
        while count < size and not self._ended:
            chunk = next(self._chunks, None)
            if isinstance(chunk, Chunk) and chunk.is_damaged:
                self.damage = next(other for other in self._chunks if isinstance(other, Unread))
                self._ended = True
            elif isinstance(chunk, Chunk):
                parts.append(chunk.data[: chunk.size])
                count += chunk.size
            else:
                self._ended = True
                if isinstance(chunk, Unread):
                    self.damage = chunk
        self._held = b"".join(parts)
        if self.damage is not None:
            self._held = self._held[: self._end_of_rows()]

    def _end_of_rows(self) -> int:
        """Where the last row ends: at a line end that is not within quotes."""
        end = self._held.rfind(b"\n") + 1
        while end and (self._held.count(b'"', 0, end) % 2 == 1) != self._open_quotes:
            end = self._held.rfind(b"\n", 0, end - 1) + 1
        return end

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True
        self.file.close()

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_types(owner: str, types: Mapping[str, str] | None, others: Sequence[str] = ()) -> None:
    """Raise if a declared type is not the name of an Arrow type."""
    for column, kind in (types or {}).items():
        try:
            kind in others or pa.type_for_alias(kind)
        except ValueError as error:
            names = ", ".join(itertools.chain(("string", "int64", "double", "bool", "date32"), others))
            raise ParameterError(
                f"{kind!r}, the type of `{column}` in `{owner}`, is not a type", hint=f"for example {names}"
            ) from error
