"""Steps on media columns as such: make one from a column of paths, and read what rows refer to."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Batch, Column
from tamis.context import Context
from tamis.errors import ParameterError
from tamis.media import MediaItem, is_media, media_items, media_name, read_bytes, sizes_of, with_full_paths
from tamis.operators import ALL, Map, operator
from tamis.segments import is_clip
from tamis.sources.jsonmedia import MEDIA

SPOOL = ".tamis-spool"
"""The folder of temporary files, within that of the stage; a sink removes a file there once it has copied it."""

LONG_S = 600.0
"""Segments that are longer than this are cut into a file."""


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

    Sinks that copy files set `leave_above`: a file on a disk with more bytes stays a reference to them. A file in a store or a
    member of a zip archive with more bytes is copied to a temporary file, and a segment of sound that is longer than ten
    minutes is cut into one, so that none of them is held in memory.

    >>> ReadMedia(columns=["image"]).name
    'read_media'
    """

    columns: Sequence[str] | None = None
    leave_above: int | None = None

    incidental = frozenset({"leave_above"})

    def check(self) -> None:
        if self.columns is not None and not self.columns:
            raise ParameterError(f"`columns` of `{self.name}` is empty", hint="leave it out to read every media column")

    def reads(self) -> tuple[str, ...]:
        return (ALL,) if self.columns is None else ()

    def optional_reads(self) -> tuple[str, ...]:
        return () if self.columns is None else tuple(self.columns)

    def open(self, context: Context) -> _MediaLoader:
        return _MediaLoader(self, context.scratch)


class _MediaLoader:
    def __init__(self, step: ReadMedia, scratch: Path) -> None:
        self._step, self._scratch = step, scratch
        self._temporary: list[Path] = []

    def apply(self, batch: Batch) -> Mapping[str, Column]:
        made, step = {}, self._step
        self._temporary = []
        try:
            for name in batch.columns:
                column = batch[name]
                if (step.columns is None or name in step.columns) and is_media(column.type) and _refers(column):
                    left = {} if step.leave_above is None else self._left(batch, name, step.leave_above)
                    made[name] = _with_bytes(batch, name, left)
        except BaseException:  # a row failed, and the step is applied again to the others
            for path in self._temporary:
                path.unlink()
            raise
        return made

    def _left(self, batch: Batch, name: str, most: int) -> dict[int, str]:
        """References to files that are too large to be held, by row."""
        found, items = {}, media_items(batch, name)
        for row, (item, size) in enumerate(zip(items, sizes_of(items), strict=True)):
            if item is None or item.data is not None:
                continue
            called = media_name(item.path or "")
            if _is_long_sound(item):
                found[row] = self._spooled(item, _cut_into, called)
            elif size is not None and size > most:
                place = item.place_on_disk()
                found[row] = (
                    self._spooled(item, MediaItem.copy_to, called)
                    if place is None
                    else f"{place[0]}@{place[1]}+{place[2]}#{called}"
                )
        return found

    def _spooled(self, item: MediaItem, write: Callable[[MediaItem, IO[bytes]], int], called: str) -> str:
        """A reference to a temporary file, which `write` fills."""
        folder = self._scratch / SPOOL
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, path = tempfile.mkstemp(dir=folder)
        self._temporary.append(Path(path))
        with os.fdopen(descriptor, "w+b") as target:
            size = write(item, target)
        return f"{path}@0+{size}#{called}"


def _cut_into(item: MediaItem, target: IO[bytes]) -> int:
    cut_into = importlib.import_module("tamis.audio.cut").cut_into  # knows codecs, so it is above this module
    cut_into(target, item)
    return target.seek(0, os.SEEK_END)


def _is_long_sound(item: MediaItem) -> bool:
    segment = item.segment
    if segment is None or is_clip(item.name, segment):
        return False
    return segment.duration is None or segment.duration > LONG_S


def _refers(column: pa.Array) -> bool:
    """Whether some row has a path and no bytes."""
    referring = pc.and_(pc.is_null(pc.struct_field(column, "bytes")), pc.is_valid(pc.struct_field(column, "path")))
    return bool(pc.any(referring).as_py())


def _with_bytes(batch: Batch, name: str, left: Mapping[int, str]) -> pa.Array:
    """A media column with the bytes of all rows but those that are left references, and names instead of references."""
    column = batch[name]
    if left:
        rest = [None if row in left else value.as_py() for row, value in enumerate(column)]
        made = _with_bytes(batch.with_columns({name: pa.array(rest, column.type)}), name, {}).to_pylist()
        values = [{"bytes": None, "path": left[row]} if row in left else value for row, value in enumerate(made)]
        return pa.array(values, MEDIA)
    held = pc.is_valid(pc.struct_field(column, "bytes")).to_pylist()
    paths = pc.struct_field(column, "path").to_pylist()
    names = [path if held or path is None else media_name(path) for held, path in zip(held, paths, strict=True)]
    content = pa.array(read_bytes(batch, name), pa.binary())
    mask = column.is_null() if column.null_count else None
    return pa.StructArray.from_arrays([content, pa.array(names, pa.string())], fields=list(MEDIA), mask=mask)
