"""Comma-separated values: files with a header, and how columns that appear later are added to files that are written.

    "text","n"          "text","n","late"
    "a",1        ->     "a",1,
    "b",2               "b",2,

Fields are moved as they are, with their quotes, so that a file is the same whether or not its columns were known in advance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from tamis.operators import Shard
from tamis.sinks.encode import json_text, json_values
from tamis.sinks.schemas import decode_schema, encode_schema
from tamis.sinks.streams import ByteStream, reading
from tamis.sinks.writers import CHUNK_BYTES, JsonlShards

QUOTE, COMMA, END = ord('"'), ord(","), ord("\n")
_NARROW = ".narrow"


class CsvShards(JsonlShards):
    """Comma-separated values with a header; nested values are JSON text."""

    _header: list[str] | None = None

    def _write(self, table: pa.Table) -> None:
        if self._header is None:
            self._header = list(self._selection.schema(self._expected).names)
        if new := [name for name in table.column_names if name not in self._header]:
            self._widen([*self._header, *new])
        there = set(table.column_names)
        columns = [table.column(name) if name in there else pa.nulls(table.num_rows) for name in self._header]
        super()._write(pa.table(columns, names=self._header))

    def _widen(self, header: list[str]) -> None:
        """Write the file that is open again, with more columns."""
        if self._stream is not None:
            path, narrow = self._stream.path, self._stream.path.with_name(f"{self._stream.path.name}{_NARROW}")
            self._stream.close()
            path.rename(narrow)
            self._paths.append(narrow)
            self._stream = ByteStream(path, self._compression)
            add_columns(narrow, header, self._stream, self._compression)
            narrow.unlink()
        self._header = header

    def _begin(self, table: pa.Table) -> None:
        assert self._stream is not None
        self._stream.write(_header_line(table.column_names))

    def _encode(self, table: pa.Table) -> pa.Buffer:
        columns = []
        for name, column in zip(table.column_names, table.columns, strict=True):
            array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
            values = json_values(array, name)
            columns.append(json_text(values, name) if pa.types.is_nested(values.type) else values)
        return _csv(pa.table(columns, names=table.column_names), header=False)

    def _schema(self) -> str:
        assert self._header is not None
        return schema_of(self._header)


def schema_of(header: Sequence[str]) -> str:
    """The columns of a file for the ledger. They have no types."""
    return encode_schema(pa.schema([(name, pa.string()) for name in header]))


def rewrite_csv(file: Path, schema: str, target: Path, compression: str | None) -> Shard:
    """Write a file again with the columns of a wider schema."""
    stream = ByteStream(target, compression)
    rows = add_columns(file, decode_schema(schema).names, stream, compression)
    return Shard(target.name, rows, stream.close(), schema)


def add_columns(file: Path, header: Sequence[str], into: ByteStream, compression: str | None) -> int:
    """Write the rows of a file with the columns of `header`, which include its own; returns their number."""
    into.write(_header_line(header))
    places: list[int | None] = []
    rows = 0
    for data, ends in _records(file, compression):
        if not places:  # the first record is the header
            own = _names(data[: ends[0, -1]].tobytes())
            places = [own.index(name) if name in own else None for name in header]
            data, ends = data[ends[0, -1] + 1 :], ends[1:] - ends[0, -1] - 1
        if len(ends):
            nothing = pa.repeat(pa.scalar(b"", pa.large_binary()), len(ends))
            columns = [nothing if place is None else _fields(data, ends, place) for place in places]
            lines = pc.binary_join_element_wise(*columns, pa.scalar(b",", pa.large_binary()))
            lines = pc.binary_join_element_wise(lines, nothing, pa.scalar(b"\n", pa.large_binary()))
            _, offsets, content = lines.buffers()
            into.write(content.slice(0, int(np.frombuffer(offsets, np.int64)[len(lines)])))
            rows += len(ends)
    return rows


def _records(file: Path, compression: str | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Whole records, as bytes and int64[records, columns]: where each field ends."""
    rest, columns = b"", 0
    with reading(file, compression) as stream:
        while chunk := stream.read(max(CHUNK_BYTES, len(rest))):
            data = np.frombuffer(rest + chunk, np.uint8)
            outside = np.cumsum(data == QUOTE) % 2 == 0
            ends = np.flatnonzero((data == END) & outside)
            if len(ends):
                fields = np.flatnonzero(((data == COMMA) | (data == END)) & outside)
                fields = fields[fields <= ends[-1]]
                columns = columns or int(np.searchsorted(fields, ends[0])) + 1
                yield data[: ends[-1] + 1], fields.reshape(-1, columns)
            rest = data[ends[-1] + 1 if len(ends) else 0 :].tobytes()
    assert not rest, f"{file} does not end with a line end"


def _fields(data: np.ndarray, ends: np.ndarray, place: int) -> pa.Array:
    """A column of records, with the quotes of its fields."""
    begins = np.concatenate([[0], ends.ravel()[:-1] + 1]).reshape(ends.shape)[:, place]
    sizes = ends[:, place] - begins
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    content = data[np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], sizes)]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.large_binary(), len(ends), buffers)


def _header_line(names: Sequence[str]) -> pa.Buffer:
    return _csv(pa.table([pa.nulls(0)] * len(names), names=list(names)), header=True)


def _names(line: bytes) -> list[str]:
    return pyarrow.csv.read_csv(pa.BufferReader(line + b"\n")).column_names


def _csv(table: pa.Table, *, header: bool) -> pa.Buffer:
    out = pa.BufferOutputStream()
    pyarrow.csv.write_csv(table, out, pyarrow.csv.WriteOptions(include_header=header))
    return out.getvalue()
