"""Write tables to files: the writers that sinks open, one per partition.

    write(table) -> selected, renamed -> JSONL, CSV       encoded immediately
                                      -> Parquet, Arrow   buffered until a row group is full, in the widest schema so far

A file is created with its first row, so a partition without rows has no file. With a target size, files are numbered, and a
file that has reached it is closed before the next row is written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from tamis.batch import LINE, bytes_of
from tamis.errors import ColumnError, SinkError, did_you_mean
from tamis.features import features_of, with_features
from tamis.media import media_file_of
from tamis.operators import Shard
from tamis.sinks.encode import encode_rows
from tamis.sinks.formats import TypedFile, TypedFormat
from tamis.sinks.media import MediaFile, by_reference
from tamis.sinks.schemas import conform, encode_schema, merge_schemas, merge_types, plain, with_media_features
from tamis.sinks.streams import ByteStream, reading

GROUP_BYTES = 32 * 2**20
"""Uncompressed bytes of a row group: large enough to compress and scan well, small enough to buffer one per worker."""
CHUNK_BYTES = 4 * 2**20
"""Bytes that are encoded as text at a time."""


@dataclass(frozen=True)
class Selection:
    """The columns to write and their names in the file."""

    fields: tuple[str, ...] | None
    columns: Mapping[str, str]

    def names(self, there: Sequence[str]) -> dict[str, str]:
        """Map the canonical names of the columns `there` to their names in the file, in the order of the file."""
        for name in (*(self.fields or ()), *self.columns):
            if name not in there:
                near = did_you_mean(name, there)
                raise ColumnError(
                    f"the sink should write column `{name}`, which no step provides\n\ncolumns here: {', '.join(there)}",
                    hint=near or "name existing columns in fields=[...] and columns={...}",
                )
        result = {name: self.columns.get(name, name) for name in (self.fields if self.fields is not None else there)}
        written = list(result.values())
        for name in written:
            if written.count(name) > 1:
                raise SinkError(
                    f"two columns would be written as `{name}`", hint="give them different names in columns={...}"
                )
        return result

    def table(self, table: pa.Table, expected: pa.Schema) -> pa.Table:
        """Select the columns; those that the plan expects and this table lacks are null."""
        lacking = [field for field in expected if field.name not in table.column_names]
        there = [*table.column_names, *(field.name for field in lacking)]
        if len(set(table.column_names)) < len(table.column_names):
            raise SinkError(f"two columns have the same name: {', '.join(table.column_names)}")
        names = self.names(there)
        if self.fields is None:
            names = {name: written for name, written in names.items() if name in table.column_names}
        arrays = [
            table.column(name) if name in table.column_names else pa.nulls(table.num_rows, expected.field(name).type)
            for name in names
        ]
        if not arrays:
            return table.select([])
        return pa.table(arrays, names=list(names.values()))

    def schema(self, expected: pa.Schema) -> pa.Schema:
        """Return the schema that the plan expects in the file, without columns that it cannot know."""
        fields = self.fields if self.fields is not None else expected.names
        chosen = pa.schema([(self.columns.get(n, n), expected.field(n).type) for n in fields if n in expected.names])
        return with_features(chosen, {self.columns.get(n, n): kind for n, kind in features_of(expected).items()})


class Writer:
    """Shared by all writers: files, their names, and when to start a new one."""

    def __init__(
        self, folder: Path, stem: str, suffix: str, selection: Selection, schema: pa.Schema, target: int | None
    ) -> None:
        if not stem or "/" in stem or "\\" in stem or stem in (".", "..") or "\0" in stem:
            raise SinkError(f"file names cannot start with {stem!r}")
        self._folder, self._stem, self._suffix = folder, stem, suffix
        self._selection, self._expected, self._target = selection, schema, target
        self._shards: list[Shard] = []
        self._paths: list[Path] = []
        self._files = 0  # finished; a file of JSON lines and its media count as one
        self._rows = 0

    def write(self, table: pa.Table) -> None:
        """Append rows."""
        if table.num_rows:
            self._write(self._selection.table(table, self._expected))

    def as_stored(self, table: pa.Table) -> pa.Table:
        """Rows as a file contains them, to be merged with rows read from one."""
        return self._selection.table(table, self._expected)

    def append(self, table: pa.Table) -> None:
        """Append rows that are as a file contains them."""
        if table.num_rows:
            self._write(table)

    def close(self) -> list[Shard]:
        """Finish the last file, sync all files, and return them."""
        self._finish()
        return self._shards

    def abort(self) -> None:
        """Delete all files."""
        self._discard()
        for path in self._paths:
            path.unlink(missing_ok=True)

    def _next_path(self) -> Path:
        number = "" if self._target is None else f"-{self._files:04d}"
        path = self._folder / f"{self._stem}{number}{self._suffix}"
        self._paths.append(path)
        return path

    def _write(self, table: pa.Table) -> None:
        raise NotImplementedError

    def _finish(self) -> None:
        raise NotImplementedError

    def _discard(self) -> None:
        raise NotImplementedError


# ----------------------------------------------------------------------------------------------------- lines of text


def joined(lines: pa.ChunkedArray) -> pa.Buffer:
    """Return the bytes of all values, concatenated."""
    parts = []
    for chunk in lines.chunks:
        _, offsets, data = chunk.buffers()
        begin, end = np.frombuffer(offsets, np.int32)[[chunk.offset, chunk.offset + len(chunk)]].tolist()
        parts.append(data.slice(begin, end - begin))
    return parts[0] if len(parts) == 1 else pa.py_buffer(b"".join(parts))


def stored_lines(path: Path, compression: str | None) -> Iterator[pa.Table]:
    """The lines of a file with their line ends, as tables with the column `LINE`."""
    rest = b""
    with reading(path, compression) as stream:
        while chunk := stream.read(max(CHUNK_BYTES, len(rest))):  # a long line is not copied again and again
            data = rest + chunk if rest else chunk
            end = data.rfind(b"\n") + 1
            if end:
                yield pa.table({LINE: _lines_of(pa.py_buffer(data).slice(0, end))})
            rest = data[end:]
    assert not rest, f"{path} does not end with a line end"


def _lines_of(data: bytes | pa.Buffer) -> pa.Array:
    """Data that consists of whole lines, as an array of these."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1
    offsets = np.concatenate([np.zeros(1, np.int32), ends.astype(np.int32)])
    return pa.Array.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


class JsonlShards(Writer):
    """One JSON object per line. Binaries of media columns are in a second file, which is part of the shard."""

    def __init__(
        self,
        folder: Path,
        stem: str,
        suffix: str,
        selection: Selection,
        schema: pa.Schema,
        target: int | None,
        compression: str | None,
    ) -> None:
        super().__init__(folder, stem, suffix, selection, schema, target)
        self._compression = compression
        self._stream: ByteStream | None = None
        self._media: MediaFile | None = None

    def _write(self, table: pa.Table) -> None:
        # Write in small steps, so that a file does not exceed its target size by much.
        step = CHUNK_BYTES if self._target is None else max(1, min(CHUNK_BYTES, self._target // 4))
        for part in slices(table, step):
            if self._stream is None:
                self._stream = ByteStream(self._next_path(), self._compression)
                self._begin(part)
            self._stream.write(self._encode(part))
            self._rows += part.num_rows
            if self._target is not None:
                self._stream.flush()
                if self._stream.size + (self._media.size if self._media is not None else 0) >= self._target:
                    self._finish()

    def as_stored(self, table: pa.Table) -> pa.Table:
        return pa.table({LINE: _lines_of(self._encode(self._selection.table(table, self._expected)))})

    def _begin(self, table: pa.Table) -> None:
        """Write the start of a file, before its first row."""

    def _encode(self, table: pa.Table) -> pa.Buffer:
        if LINE in table.column_names:
            return joined(table.column(LINE))
        return encode_rows(by_reference(table, self._store))

    def _store(self, data: bytes, name: str | None) -> str:
        """Put the bytes of a media column next to the file that is being written."""
        if self._media is None:
            assert self._stream is not None
            path = Path(media_file_of(str(self._stream.path)))
            self._paths.append(path)
            self._media = MediaFile(path)
        return self._media.add(data, name)

    def _finish(self) -> None:
        if self._stream is not None:
            size = self._stream.close()
            self._shards.append(Shard(self._stream.path.name, self._rows, size, self._schema()))
            if self._media is not None:
                self._shards.append(Shard(self._media.path.name, 0, self._media.close()))
            self._files += 1
            self._stream, self._media, self._rows = None, None, 0

    def _schema(self) -> str:
        """The columns of the file that is being written, if all files of the output must have the same."""
        return ""

    def _discard(self) -> None:
        for file in (self._stream, self._media):
            if file is not None:
                file.abort()
        self._stream = self._media = None


# ------------------------------------------------------------------------------------------------------- typed files


class TypedShards(Writer):
    """Files with one schema each. A table that does not fit widens the schema, and rows already written are rewritten."""

    def __init__(
        self,
        folder: Path,
        stem: str,
        suffix: str,
        selection: Selection,
        schema: pa.Schema,
        target: int | None,
        form: TypedFormat,
    ) -> None:
        super().__init__(folder, stem, suffix, selection, schema, target)
        self._form = form
        self._schema: pa.Schema | None = None
        self._file: TypedFile | None = None
        self._pending: list[pa.Table] = []
        self._pending_bytes = 0
        self._flushed_bytes = 0

    def _write(self, table: pa.Table) -> None:
        self._widen(plain(table.schema))
        row_bytes = max(1.0, bytes_of(table) / table.num_rows)
        start = 0
        while start < table.num_rows:
            room = max(1, int((self._group_bytes() - self._pending_bytes) / row_bytes) + 1)
            part = table.slice(start, room)
            start += part.num_rows
            self._pending.append(part)
            self._pending_bytes += bytes_of(part)
            self._rows += part.num_rows
            if self._pending_bytes >= self._group_bytes():
                self._flush()

    def _widen(self, schema: pa.Schema) -> None:
        if not len(schema):
            raise SinkError("the rows have no columns, which only JSONL supports")
        if self._schema is None:
            self._schema = with_media_features(_expect(plain(self._selection.schema(self._expected)), schema))
            return
        wider = with_media_features(merge_schemas([self._schema, schema]))
        if wider == self._schema:
            return
        self._schema = wider
        if self._file is None:
            return
        self._file.close()
        path = self._paths[-1]
        narrow = path.with_name(f"{path.name}.narrow")
        self._paths.append(narrow)
        path.rename(narrow)
        self._file = self._form.create(path, wider)
        for group in self._form.groups(narrow):
            self._file.write(conform(group, wider))
        narrow.unlink()
        self._paths.remove(narrow)

    def _group_bytes(self) -> int:
        """Bytes to buffer before writing: a row group, or the estimated remainder up to the target size of the file."""
        if self._target is None:
            return GROUP_BYTES
        done = self._file.size if self._file is not None else 0
        written = done + sum(shard.size for shard in self._shards)
        ratio = written / self._flushed_bytes if self._flushed_bytes else 1.0
        return int(min(GROUP_BYTES, max(self._target - done, self._target // 8) / max(ratio, 0.01)))

    def _flush(self) -> None:
        assert self._schema is not None
        if self._pending:
            if self._file is None:
                self._file = self._form.create(self._next_path(), self._schema)
            self._file.write(pa.concat_tables([conform(part, self._schema) for part in self._pending]))
            self._flushed_bytes += self._pending_bytes
            self._pending, self._pending_bytes = [], 0
        if self._target is not None and self._file is not None and self._file.size >= 0.9 * self._target:
            self._finish()

    def _finish(self) -> None:
        if self._pending:
            self._flush()
        if self._file is not None:
            assert self._schema is not None
            size = self._file.close()
            self._shards.append(Shard(self._paths[-1].name, self._rows, size, encode_schema(self._schema)))
            self._files += 1
            self._file, self._rows = None, 0

    def _discard(self) -> None:
        self._pending = []
        if self._file is not None:
            with contextlib.suppress(OSError, pa.ArrowException):  # failing to finish it may be why it is deleted
                self._file.close()
            self._file = None


def _expect(expected: pa.Schema, first: pa.Schema) -> pa.Schema:
    """Return the initial schema: the one that the plan expects, corrected by the first rows."""
    types = {field.name: field.type for field in expected}
    for field in first:
        try:
            known = types.get(field.name, pa.null())
            types[field.name] = merge_types(known, field.type, field.name)
        except SinkError:
            types[field.name] = field.type
    return with_features(pa.schema(types), features_of(expected))


def slices(table: pa.Table, num_bytes: int) -> Iterator[pa.Table]:
    """Split a table into pieces of about `num_bytes`, each with at least one row."""
    rows = max(1, int(table.num_rows * num_bytes / max(1, bytes_of(table))))
    for start in range(0, table.num_rows, rows):
        yield table.slice(start, min(rows, table.num_rows - start))
