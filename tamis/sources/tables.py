"""Readers of JSON lines and of text, and the choice of a reader by format.

layout   in the driver: list the files, sample their columns, divide them into partitions
read     in a worker: the rows of a partition as batches; `reading.fail` is called for rows that cannot be read
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tamis.batch import LINE, Batch, Failure, Origin
from tamis.errors import DamagedFile, ParameterError
from tamis.formats import FORMATS, codec_of
from tamis.operators import Layout, Partition, Piece, Reading, operator
from tamis.parameters import parse_bytes
from tamis.registry import find_operator
from tamis.sources import partitions as division
from tamis.sources.columnar import ArrowReader, ParquetReader
from tamis.sources.delimited import CsvReader, check_types
from tamis.sources.files import File, Paths, detect_format, open_file
from tamis.sources.filesource import NEVER, ByteSource, DamagedFiles, FileSource
from tamis.sources.jsonl import JSON, JsonlParser, is_utf8
from tamis.sources.jsonmedia import json_media_type, references, without_bytes
from tamis.sources.lines import (
    KEPT_OF_BAD_ROW,
    Chunk,
    Lines,
    Text,
    Unread,
    join_texts,
    line_too_long,
    some_of,
    whole_lines,
)
from tamis.sources.schemas import unify

__all__ = ["ArrowReader", "CsvReader", "JsonlReader", "ParquetReader", "TextReader", "reader_for"]

_LONGEST_LINE = 2**31 - 2
"""pyarrow counts the bytes of a block of JSON in 32 bits."""
_NOTHING = "_tamis_nothing"
"""A column that no file has, because the parser needs at least one."""
_LONGEST_SAMPLED = 16_000_000
"""Longer lines are not used to infer types, to limit the memory of the driver."""


@dataclass(frozen=True)
class _LineSource(ByteSource):
    """A source whose rows are lines that are not blank."""

    @property
    def _max_line(self) -> int:
        return _LONGEST_LINE

    def count_rows(self, piece: Piece, most: int) -> int:
        count = 0
        for text in self.texts(piece, division.SAMPLE_BYTES, self._max_line):
            count += len(Lines.of(text)) if isinstance(text, Text) else text.rows
            if count >= most:
                break
        return count

    def _lines(self, partition: Partition, reading: Reading) -> Iterator[Lines]:
        """The lines of a partition, small files together; `reading.fail` is called for what cannot be read."""

        most = min(self._max_line, reading.max_row_bytes or self._max_line)

        def texts() -> Iterator[Text | Unread]:
            for piece in self.pieces_to_read(partition, reading):
                try:
                    yield from some_of(self.texts(piece, reading.batch_bytes, most, reading), piece.skip, piece.limit)
                except DamagedFile as error:
                    yield Unread(piece.path, piece.start, error.message, rows=0, damaged_file=piece.path)

        for text in join_texts(texts(), reading.batch_bytes):
            if isinstance(text, Unread):
                self._fail_unread(reading, text)
                continue
            lines = Lines.of(text)
            too_long = lines.ends - lines.starts > most
            if too_long.any():
                for line in np.flatnonzero(too_long):
                    place, _, position = lines.address(int(line)).rpartition(":")
                    size = int(lines.ends[line] - lines.starts[line])
                    self._fail_unread(reading, Unread(place, int(position), line_too_long(size, most)))
                lines = lines.select(~too_long)
            yield lines

    def _fail_unread(self, reading: Reading, found: Unread) -> None:
        error = found.error
        if found.damaged_file is None:
            by_memory = reading.max_row_bytes is not None and reading.max_row_bytes < self._max_line
            error += " that --memory allows; more memory allows longer rows" if by_memory else " set by max_line_bytes"
        elif found.rows > 1:
            error += (
                f'; {found.rows:,} rows cannot be verified and fail. on_damage="keep" keeps the rows before the damage'
            )
        place = f"{found.place}:{found.position}"
        reading.fail(Failure(place, self.name, error, found.row, rows=found.rows, damaged_file=found.damaged_file))

    def _fail(self, reading: Reading, lines: Lines, line: int, error: str) -> None:
        row = lines.line(line)[:KEPT_OF_BAD_ROW]
        reading.fail(Failure(lines.address(line), self.name, error, row))

    def _sample(self, file: File) -> tuple[Lines | None, float | None]:
        """The first lines of a file, and decompressed over compressed bytes."""
        whole = Piece(file.path, 0, file.size)
        expanded = 0
        corrupt: list[str] = []
        with open_file(file.path, self.storage_options) as opened:

            def counted() -> Iterator[Any]:
                nonlocal expanded
                for chunk in self.chunks(opened, whole, division.SAMPLE_BYTES, on_damage=corrupt.append):
                    if expanded > 2 * _LONGEST_SAMPLED:
                        return  # one long line
                    expanded += chunk.size if isinstance(chunk, Chunk) else 0
                    yield chunk

            texts = whole_lines(
                counted(),
                skip_first=False,
                owns_stop=False,
                batch_bytes=division.SAMPLE_BYTES,
                max_line_bytes=min(self._max_line, _LONGEST_SAMPLED),
            )
            text = next((text for text in texts if isinstance(text, Text)), None)
            if expanded < division.SAMPLE_BYTES:
                deque(texts, maxlen=0)
            if corrupt:
                text = None  # its types may be those of altered rows
            ratio = expanded / max(1, opened.tell()) if codec_of(file.path) else None
        return (Lines.of(text) if text is not None else None), ratio

    def _samples(self, files: Sequence[File], damaged: DamagedFiles) -> tuple[dict[str, Lines], float | None]:
        """The first lines of some files by path, and decompressed over compressed bytes."""
        samples = damaged.examine(division.sampled(files), self._sample)
        ratios = [ratio for _, ratio in samples.values() if ratio]
        lines = {path: lines for path, (lines, _) in samples.items() if lines is not None}
        return lines, sum(ratios) / len(ratios) if ratios else None


@operator()
class JsonlReader(_LineSource):
    """Read rows of JSON lines files, plain or compressed (.gz, .zst, .bz2, .xz, .lz4).

    Reads paths, folders, globs, lists and `@lists.txt`, local or on any fsspec file system. Large files are split:
    plain ones anywhere, compressed ones between frames. Types are inferred from a sample of the files or declared:
    `types={"id": "string", "meta": "json"}` keeps the digits of large numbers and the text of irregular objects.
    A line fails if it is not a JSON object, is not UTF-8 or does not fit the types of its columns. Strings are never
    converted to dates. A column with integers and fractions is double, which keeps integers up to 2**53 exactly.
    Rows of a corrupt member or frame of a compressed file fail; with `on_damage="keep"`, those before the damage are
    kept.

    >>> JsonlReader("crawl/*.jsonl.zst", blocksize="256MB", columns={"text": "content"}).name
    'jsonl_reader'
    """

    types: Mapping[str, str] | None = None
    max_line_bytes: int | str = "1GB"

    format = "jsonl"
    can_choose_rows = True

    def check(self) -> None:
        super().check()
        check_types(self.name, self.types, (JSON,))
        if parse_bytes(self.max_line_bytes) > _LONGEST_LINE:
            raise ParameterError(f"`max_line_bytes` of `{self.name}` can be at most {_LONGEST_LINE}")

    def gives_lines(self) -> bool:
        return self.fields is None and not self.columns

    @property
    def _max_line(self) -> int:
        return min(parse_bytes(self.max_line_bytes), _LONGEST_LINE)

    def layout(self, blocksize: int) -> Layout:
        size = self.block_bytes(blocksize)
        files, damaged = self.list_files(), DamagedFiles()
        samples, ratio = self._samples(files, damaged)
        sampled = [file for file in files if file.path in samples]
        schemas = damaged.examine(sampled, lambda file: self._schema(file.path, samples[file.path]))
        damaged.raise_if_nothing_is_left(division.sampled(files))
        schema = unify(list(schemas.items()), type(self).__name__)
        pieces, reasons = self.pieces(files, size if self.files_per_partition is None else NEVER, ratio, damaged)
        return self.divided(files, pieces, schema, size, reasons, damaged)

    def _schema(self, path: str, lines: Lines) -> pa.Schema:
        errors: list[str] = []
        table, kept = self._parser(pa.schema([]), None).parse(lines, lambda line, error: errors.append(error))
        first = lines.line(0).strip() if len(lines) else b""
        if first == b"[" or (first.startswith(b"[") and not len(kept)):
            raise DamagedFile(
                f"{path} is not JSON lines: it begins with a list ([)",
                hint="write one object per line, for example with jq -c '.[]'",
            )
        # The parser returns declared columns first; the order in the file is restored here.
        order: dict[str, None] = {}
        for line in kept[:100]:
            order.update(dict.fromkeys(json.loads(lines.line(line))))
        names = [name for name in order if name in table.column_names]
        order = dict.fromkeys([*names, *table.column_names])
        return pa.schema([(name, json_media_type(table.schema.field(name).type)) for name in order])

    def _parser(self, schema: pa.Schema, wanted: Sequence[str] | None) -> JsonlParser:
        types = {self.in_file(name): kind for name, kind in (self.types or {}).items()}
        known = pa.schema([(spec.name, without_bytes(spec.type)) for spec in schema])
        return JsonlParser(known, types, wanted, self._max_line)

    def read(self, partition: Partition, reading: Reading) -> Iterator[Batch]:
        schema = self.file_schema(reading.schema)
        if reading.keep_lines and not reading.columns:  # only the lines are needed
            parser = self._parser(pa.schema([(_NOTHING, pa.bool_())]), [_NOTHING])
        else:
            parser = self._parser(schema, self.wanted(reading))
        seen = 0
        for lines in self._lines(partition, reading):
            if reading.chosen is not None:
                here = reading.chosen[seen : seen + len(lines)]
                seen += len(lines)
                lines = lines.select(here)
                if not len(lines):
                    continue

            def bad(line: int, error: str, lines: Lines = lines) -> None:
                self._fail(reading, lines, line, error)

            table, kept = references(*parser.parse(lines, bad), schema, bad)
            if len(kept):
                kept_lines = lines if len(kept) == len(lines) else lines.select(kept)
                if reading.keep_lines:
                    table = table.append_column(LINE, kept_lines.with_ends())
                    table = table.drop_columns([_NOTHING]) if _NOTHING in table.column_names else table
                yield self.batch(table, kept_lines.origin())


@operator()
class TextReader(_LineSource):
    """Read rows of plain text: one per line that is not blank or, with `unit="file"`, one per file, with its `path`.

    A line or file that is not UTF-8 fails. Rows of a corrupt member of a compressed file fail; with
    `on_damage="keep"`, those before the damage are kept.

    >>> TextReader("books/", unit="file").name
    'text_reader'
    """

    unit: Literal["line", "file"] = "line"

    format = "text"

    def layout(self, blocksize: int) -> Layout:
        size = self.block_bytes(blocksize)
        files, damaged = self.list_files(), DamagedFiles()
        _, ratio = self._samples(files, damaged)
        whole = self.unit == "file" or self.files_per_partition is not None
        pieces, reasons = self.pieces(files, NEVER if whole else size, ratio, damaged)
        schema = pa.schema([("text", pa.string())] + ([("path", pa.string())] if self.unit == "file" else []))
        return self.divided(files, pieces, schema, size, reasons, damaged)

    def count_rows(self, piece: Piece, most: int) -> int:
        return 1 if self.unit == "file" else super().count_rows(piece, most)

    def read(self, partition: Partition, reading: Reading) -> Iterator[Batch]:
        if self.unit == "file":
            yield from self._read_files(partition, reading)
            return
        wanted = self.wanted(reading)
        for lines in self._lines(partition, reading):
            values = [lines.line(index) for index in range(len(lines))]
            kept = np.arange(len(values))
            if not is_utf8(lines.text.data, lines.text.begin, lines.text.end):
                errors = {index: error for index, value in enumerate(values) if (error := not_utf8(value))}
                for index, error in errors.items():
                    self._fail(reading, lines, index, error)
                kept = np.delete(kept, list(errors))
            if len(kept):
                texts = pa.array([values[index].rstrip(b"\r") for index in kept], pa.string())
                yield Batch(self._shaped({"text": texts}, wanted), lines.select(kept).origin())

    def _read_files(self, partition: Partition, reading: Reading) -> Iterator[Batch]:
        wanted = self.wanted(reading)
        rows: list[tuple[str, str]] = []
        size = 0

        def batch() -> Batch:
            columns = {"text": pa.array([row[0] for row in rows]), "path": pa.array([row[1] for row in rows])}
            places = tuple(path for _, path in rows)
            origin = Origin(places, np.arange(len(rows), dtype=np.int32), np.zeros(len(rows), np.int64))
            return Batch(self._shaped(columns, wanted), origin)

        for piece in self.pieces_to_read(partition, reading):
            text = self._whole(piece, reading)
            if text is not None:
                rows.append((text, piece.path))
                size += len(text)
            if rows and size >= reading.batch_bytes:
                yield batch()
                rows, size = [], 0
        if rows:
            yield batch()

    def _whole(self, piece: Piece, reading: Reading) -> str | None:
        """The text of a file, or None if it failed."""
        parts: list[bytes] = []
        size, most = 0, min(_LONGEST_LINE, reading.max_row_bytes or _LONGEST_LINE)
        error = damaged_file = None
        try:
            with open_file(piece.path, self.storage_options) as file:
                for chunk in self.chunks(file, piece, 2**20):
                    if isinstance(chunk, Chunk):
                        size += chunk.size
                        parts += [chunk.data[: chunk.size]] if size <= most else []
                    else:
                        error = chunk.error if isinstance(chunk, Unread) else None
                        damaged_file = piece.path if error else None
                        break
        except DamagedFile as damage:
            self.fail_file(reading, piece.path, damage)
            return None
        data = b"".join(parts)
        if size > most:
            error = f"the file is {size:,} bytes long, more than the limit of {most:,}"
        error = error or not_utf8(data)
        if error is None:
            return data.decode("utf-8-sig")
        row = data[:KEPT_OF_BAD_ROW]
        reading.fail(Failure(f"{piece.path}:0", self.name, error, row, damaged_file=damaged_file))
        return None

    def _shaped(self, columns: dict[str, pa.Array], wanted: Sequence[str] | None) -> pa.Table:
        table = pa.table(columns)
        return self.renamed(table if wanted is None else table.select([n for n in table.column_names if n in wanted]))


def not_utf8(data: bytes) -> str | None:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"not UTF-8: {error.reason} at byte {error.start}"
    return None


def reader_for(paths: Paths, **parameters: Any) -> FileSource:
    """The reader for the format of the files, inferred from their names."""
    reader = find_operator(FORMATS[detect_format(paths, parameters.get("storage_options"))].reader)
    assert issubclass(reader, FileSource)
    return reader(paths, **parameters)
