"""Sinks that write tables: JSON lines, Parquet, CSV and Arrow.

ParquetWriter("clean/")                                  one file per partition
JsonlWriter("clean/", compression="zst")                 compressed lines
JsonlWriter("clean/", fields=["text", "url"])            these columns, in this order
ParquetWriter("clean/", columns={"text": "content"})     with the original name of the column
ParquetWriter("clean/", target_shard_size="256MB")       files of about this size
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa

from tamis.errors import ParameterError, did_you_mean
from tamis.operators import ALL, Shard, ShardWriter, Sink, operator
from tamis.parameters import parse_bytes
from tamis.sinks.delimited import CsvShards, rewrite_csv
from tamis.sinks.formats import ArrowFormat, ParquetFormat, TypedFormat, rewrite
from tamis.sinks.schemas import (
    conform,
    decode_schema,
    encode_schema,
    merge_schemas,
    plain,
    widest,
    with_media_features,
)
from tamis.sinks.streams import COMPRESSIONS
from tamis.sinks.writers import (
    CHUNK_BYTES,
    JsonlShards,
    Selection,
    TypedShards,
    slices,
    stored_lines,
)

__all__ = [
    "ArrowWriter",
    "CsvWriter",
    "JsonlWriter",
    "ParquetWriter",
    "TableSink",
    "TypedSink",
    "conform",
    "decode_schema",
    "encode_schema",
    "merge_schemas",
]


@dataclass(frozen=True)
class TableSink(Sink):
    """Shared by the sinks of this module. Subclass one of them, not this class."""

    compressions: ClassVar[tuple[str, ...]] = COMPRESSIONS

    path: str | Path
    fields: Sequence[str] | None = None
    columns: Mapping[str, str] | None = None
    compression: str | None = None
    target_shard_size: int | str | None = None
    mode: Literal["error", "overwrite", "resume"] = "resume"
    storage_options: Mapping[str, Any] | None = None

    @property
    def folder(self) -> str:
        return str(self.path)

    @property
    def file_suffix(self) -> str:
        """The suffix of file names, including the compression."""
        return f"{self.suffix}.{self.compression}" if self.compression else self.suffix

    def reads(self) -> tuple[str, ...]:
        return (ALL,) if self.fields is None else tuple(self.fields)

    def check(self) -> None:
        if not str(self.path).strip():
            raise ParameterError(f"`path` of `{self.name}` is empty", hint="name the folder to write to")
        if self.compression is not None and self.compression not in self.compressions:
            raise ParameterError(
                f"`{self.name}` does not support the compression {self.compression!r}",
                hint=did_you_mean(self.compression, self.compressions)
                or f"one of {', '.join(self.compressions)}, or none",
            )
        if self.target_shard_size is not None:
            parse_bytes(self.target_shard_size)
        if self.fields is not None and not self.fields:
            raise ParameterError(f"`fields` of `{self.name}` is empty", hint="leave it out to write every column")
        if self.fields is not None and len(set(self.fields)) < len(self.fields):
            raise ParameterError(f"`fields` of `{self.name}` names a column twice: {', '.join(self.fields)}")

    @property
    def _selection(self) -> Selection:
        return Selection(None if self.fields is None else tuple(self.fields), dict(self.columns or {}))

    @property
    def _target(self) -> int | None:
        return None if self.target_shard_size is None else parse_bytes(self.target_shard_size)


class TypedSink(TableSink):
    """A sink whose files have a schema, which can be widened afterwards so that it is the same in all files."""

    @property
    def _format(self) -> TypedFormat:
        raise NotImplementedError

    def open_shard(self, folder: Path, stem: str, schema: pa.Schema) -> ShardWriter:
        return TypedShards(folder, stem, self.file_suffix, self._selection, schema, self._target, self._format)

    can_copy_rows = True

    def schema_in_file(self, schema: pa.Schema) -> pa.Schema:
        return with_media_features(plain(self._selection.table(schema.empty_table(), schema).schema))

    def stored_rows(self, file: Path) -> Iterator[pa.Table]:
        for group in self._format.groups(file):
            yield from slices(group, CHUNK_BYTES)

    def empty_shard(self, folder: Path, stem: str, schema: pa.Schema) -> Shard | None:
        chosen = self.schema_in_file(schema)
        if not len(chosen):
            return None
        name = f"{stem}{'' if self._target is None else '-0000'}{self.file_suffix}"
        size = self._format.create(folder / name, chosen).close()
        return Shard(name, 0, size, encode_schema(chosen))

    def widest(self, schemas: Sequence[str]) -> str:
        return widest(schemas)

    def rewrite(self, file: Path, schema: str, target: Path) -> Shard:
        return rewrite(self._format, file, decode_schema(schema), target)


@operator()
class JsonlWriter(TableSink):
    """Write JSON lines: UTF-8, one object per row, keys in the order of the columns.

    Text outside ASCII is not escaped. Nulls, NaN and infinity are written as null, binary values as base64, timestamps as
    ISO 8601, decimals as text. The bytes of a media column (`struct<bytes, path>`) are written to a file of the same name
    with the suffix `.media`, and the row refers to them. `compression` is gz, zst, bz2, xz or lz4.

    >>> JsonlWriter("clean/", fields=["text", "url"], compression="zst").file_suffix
    '.jsonl.zst'
    """

    suffix = ".jsonl"
    preload = ("tamis.kernels.json",)
    can_copy_rows = True

    def takes_lines(self) -> bool:
        return self.fields is None and not self.columns

    def open_shard(self, folder: Path, stem: str, schema: pa.Schema) -> ShardWriter:
        return JsonlShards(folder, stem, self.file_suffix, self._selection, schema, self._target, self.compression)

    def stored_rows(self, file: Path) -> Iterator[pa.Table]:
        return stored_lines(file, self.compression)


@operator()
class CsvWriter(TableSink):
    """Write comma-separated values with a header in each file.

    A null is an empty field, an empty text is `""`. Nested values are written as JSON text, binary values as base64. All
    files have the same columns: one that first appears after rows were written is added to these, at the end.
    `compression` is gz, zst, bz2, xz or lz4.

    >>> CsvWriter("clean/").file_suffix
    '.csv'
    """

    suffix = ".csv"

    def open_shard(self, folder: Path, stem: str, schema: pa.Schema) -> ShardWriter:
        return CsvShards(folder, stem, self.file_suffix, self._selection, schema, self._target, self.compression)

    def widest(self, schemas: Sequence[str]) -> str:
        return widest(schemas)

    def rewrite(self, file: Path, schema: str, target: Path) -> Shard:
        return rewrite_csv(file, schema, target, self.compression)


@operator()
class ParquetWriter(TypedSink):
    """Write Parquet in row groups of about 32 MB before compression, with statistics.

    If rows have different types in a column, the column gets a type that can represent all of them. A column without any
    value keeps the type null. A struct without fields, which Parquet does not support, is written as the text `{}`.
    `compression` is zstd, snappy, gzip, brotli, lz4 or none.

    >>> ParquetWriter("clean/", target_shard_size="256MB").file_suffix
    '.parquet'
    """

    suffix = ".parquet"
    compressions = ("zstd", "snappy", "gzip", "brotli", "lz4", "none")

    compression: str | None = "zstd"

    @property
    def file_suffix(self) -> str:
        return self.suffix

    @property
    def _format(self) -> TypedFormat:
        return ParquetFormat(self.compression)


@operator()
class ArrowWriter(TypedSink):
    """Write the Arrow file format (Feather version 2), which can be memory-mapped.

    `compression` is lz4, zstd or none. Compressed files cannot be mapped.

    >>> ArrowWriter("clean/").file_suffix
    '.arrow'
    """

    suffix = ".arrow"
    compressions = ("lz4", "zstd")

    @property
    def file_suffix(self) -> str:
        return self.suffix

    @property
    def _format(self) -> TypedFormat:
        return ArrowFormat(self.compression)
