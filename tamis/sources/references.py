"""Steps on media columns as such: make one from a column of paths, and read what rows refer to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Batch, Column
from tamis.errors import ParameterError
from tamis.media import is_media, media_name, read_bytes, with_full_paths
from tamis.operators import ALL, Map, operator
from tamis.sources.jsonmedia import MEDIA


@operator(reads="path", writes="image")
class MediaReference(Map):
    """Make a media column from a column of paths, such as that of a manifest.

    Paths are relative to the folder of the source file, and may lead to any file in it, to members of archives
    (`shard.tar#cats/1.png`) and to byte ranges; others must be allowed with `media_roots` of the reader. Nothing is read. `to`
    is the new column: `image`, `audio`, `video` or any other.

    >>> batch = Batch.from_rows([{"path": "/photos/cat.png"}, {"path": None}])
    >>> MediaReference().apply(batch)["image"].to_pylist()
    [{'bytes': None, 'path': '/photos/cat.png'}, None]
    """

    column: str = "path"
    to: str = "image"

    def writes(self) -> tuple[str, ...]:
        return (self.to,)

    def apply(self, batch: Batch) -> Mapping[str, Column]:
        paths = batch["path"]
        if pa.types.is_null(paths.type):
            paths = pa.nulls(len(paths), pa.string())
        if not (pa.types.is_string(paths.type) or pa.types.is_large_string(paths.type)):
            raise TypeError(f"column `{self.column}` holds {paths.type} and no paths")
        paths = paths.cast(pa.string())
        paths = pc.if_else(pc.equal(paths, ""), pa.scalar(None, pa.string()), paths)  # CSV has no nulls
        fields = [pa.nulls(len(paths), pa.binary()), paths]
        column = pa.StructArray.from_arrays(fields, fields=list(MEDIA), mask=pc.is_null(paths))
        return {self.to: with_full_paths(column, batch.origin)}


@operator(reads=ALL)
class ReadMedia(Map):
    """Read the files, byte ranges and archive members that media columns refer to, so that rows hold the bytes.

    Sinks that write bytes do this themselves; before a `ParquetWriter` it makes the output independent of its input. A row
    whose reference cannot be read fails. `columns` limits it to some columns; by default all media columns are read.

    >>> ReadMedia(columns=["image"]).name
    'read_media'
    """

    columns: Sequence[str] | None = None

    def check(self) -> None:
        if self.columns is not None and not self.columns:
            raise ParameterError(f"`columns` of `{self.name}` is empty", hint="leave it out to read every media column")

    def reads(self) -> tuple[str, ...]:
        return (ALL,) if self.columns is None else ()

    def optional_reads(self) -> tuple[str, ...]:
        return () if self.columns is None else tuple(self.columns)

    def apply(self, batch: Batch) -> Mapping[str, Column]:
        made = {}
        for name in batch.columns:
            column = batch[name]
            if (self.columns is None or name in self.columns) and is_media(column.type) and _refers(column):
                made[name] = _with_bytes(batch, name)
        return made


def _refers(column: pa.Array) -> bool:
    """Whether some row has a path and no bytes."""
    referring = pc.and_(pc.is_null(pc.struct_field(column, "bytes")), pc.is_valid(pc.struct_field(column, "path")))
    return bool(pc.any(referring).as_py())


def _with_bytes(batch: Batch, name: str) -> pa.Array:
    """A media column with the bytes of all its rows, and names instead of references."""
    column = batch[name]
    held = pc.is_valid(pc.struct_field(column, "bytes")).to_pylist()
    paths = pc.struct_field(column, "path").to_pylist()
    names = [path if held or path is None else media_name(path) for held, path in zip(held, paths, strict=True)]
    content = pa.array(read_bytes(batch, name), pa.binary())
    mask = column.is_null() if column.null_count else None
    return pa.StructArray.from_arrays([content, pa.array(names, pa.string())], fields=list(MEDIA), mask=mask)
