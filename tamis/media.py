"""Media columns: images, sounds and videos, held in a row or referred to by it.

A media column is `struct<bytes: binary, path: string>`, the convention of Hugging Face datasets. If `bytes` is not null,
`path` is only a name. If it is null, `path` is a reference, which is read when an operator calls `read_bytes`:

    cat.png                               a file, in the folder of the source file
    /data/cat.png, s3://bucket/cat.png    a file elsewhere
    shard.tar#cats/1.png                  a member of a tar or zip archive
    shard.tar@1536+20480                  20,480 bytes from byte 1,536 on; a name may follow: shard.tar@1536+20480#1.png
    @1536+20480#1.png                     the same, in the `.media` file that belongs to the source file
    talk.mp3#t=12.5,20                    a part in time, or channels, of any of these; see `tamis/segments.py`

References come from data and are not trusted. A reference may lead to any file in the folder of the source file, or below
it, after links are followed. Any other file or URL must be in one of the `media_roots` that the user gave to the reader.
"""

from __future__ import annotations

import functools
import importlib
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Batch, Origin, contiguous
from tamis.errors import MediaError
from tamis.media_files import LARGE_BYTES, MAX_BYTES, PIECE_BYTES, Files, Window, explained
from tamis.media_paths import URL, MediaAccess, Reference, is_remote, joined, media_file_of, media_name
from tamis.segments import Segment, is_clip, split_segment

__all__ = [
    "LARGE_BYTES", "MAX_BYTES", "MediaAccess", "MediaItem", "Reference", "Window", "full_paths", "has_media", "is_media",
    "media_file_of", "media_items", "media_name", "read_bytes", "sizes_of", "with_full_paths", "with_media_types",
]  # fmt: skip

Data: TypeAlias = memoryview | bytes | None

_NAMES = ("bytes", "path")


# ---------------------------------------------------------------------------------------------------------------- types


def is_media(kind: pa.DataType) -> bool:
    """Whether a column of this type holds media: a struct of `bytes` and `path`; either may always be null.

    >>> is_media(pa.struct([("bytes", pa.binary()), ("path", pa.string())])), is_media(pa.binary())
    (True, False)
    """
    if not pa.types.is_struct(kind) or sorted(each.name for each in kind) != sorted(_NAMES):
        return False
    content, path = kind.field("bytes").type, kind.field("path").type
    # A struct of two nulls may be anything; a column is not taken for media only because of two names.
    return (_is_binary(content) and (_is_text(path) or pa.types.is_null(path))) or (
        pa.types.is_null(content) and _is_text(path)
    )


def with_media_types(kind: pa.DataType) -> pa.DataType:
    """The type with the fields of a media column typed, if one of them was always null."""
    if not is_media(kind):
        return kind
    missing = {"bytes": pa.binary(), "path": pa.string()}
    return pa.struct([each.with_type(missing[each.name]) if pa.types.is_null(each.type) else each for each in kind])


def has_media(kind: pa.DataType) -> bool:
    """Whether values of this type hold media, at any depth."""
    return is_media(kind) or any(has_media(kind.field(index).type) for index in range(kind.num_fields))


def _is_binary(kind: pa.DataType) -> bool:
    types = pa.types
    matches = (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)
    return any(matches(kind) for matches in matches)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


# ----------------------------------------------------------------------------------------------------------- references


def with_full_paths(column: pa.Array, origin: Origin) -> pa.Array:
    """The column with relative references made absolute, so that they lead to the same files from anywhere.

    Rows that have bytes do not change, and neither do references that no file can have. Those that lead out of the folder of
    the source file are made absolute as well: reading them is an error unless `media_roots` allows it, passing them on is not.
    """
    if not has_media(column.type):
        return column
    if is_media(column.type):
        return _with_full_paths(column, origin)
    values = [_in_nested(value, column.type, origin, row) for row, value in enumerate(column.to_pylist())]
    return pa.array(values, column.type)


def _with_full_paths(column: pa.Array, origin: Origin) -> pa.Array:
    content, paths = _fields(column)
    refers = pc.and_(pc.is_null(content), pc.not_equal(paths, ""))
    relative = pc.and_(refers, pc.invert(pc.match_substring_regex(paths, r"^(/|[A-Za-z][A-Za-z0-9+.-]*://)")))
    rows = np.flatnonzero(pc.fill_null(relative, False).to_numpy(zero_copy_only=False))
    if not len(rows):
        return column
    texts = paths.to_pylist()
    for row in rows:
        texts[row] = _full_path(texts[row], origin.places[origin.place[row]])
    parts = {"bytes": content, "path": pa.array(texts, paths.type)}
    mask = column.is_null() if column.null_count else None
    return pa.StructArray.from_arrays([parts[each.name] for each in column.type], fields=list(column.type), mask=mask)


def _in_nested(value: Any, kind: pa.DataType, origin: Origin, row: int) -> Any:
    if value is None or not has_media(kind):
        return value
    if is_media(kind):
        path = value["path"]
        if value["bytes"] is not None or not path or path.startswith("/") or URL.match(path):
            return value
        return value | {"path": _full_path(path, origin.places[origin.place[row]])}
    if pa.types.is_struct(kind):
        return {each.name: _in_nested(value[each.name], each.type, origin, row) for each in kind}
    if pa.types.is_map(kind):
        return [(key, _in_nested(item, kind.item_type, origin, row)) for key, item in value]
    return [_in_nested(item, kind.value_type, origin, row) for item in value]


def _full_path(path: str, place: str) -> str:
    reference = Reference.parse(path)
    inside = joined(reference.file, place)
    return path if inside is None else inside + reference.suffix


# -------------------------------------------------------------------------------------------------------------- reading


def read_bytes(batch: Batch, column: str) -> list[Data]:
    """The binaries of a media column, one per row; None for a row without any.

    Bytes that the rows hold are not copied. References are read once for all operators on the batch. If one cannot be
    read, a MediaError is raised; the engine then fails the row and calls the operator again for the others, for which
    nothing is read a second time.

    >>> batch = Batch.from_rows([{"image": {"bytes": b"abc", "path": "a.png"}}, {"image": None}])
    >>> [data and bytes(data) for data in read_bytes(batch, "image")]
    [b'abc', None]
    """
    facts = batch.facts_with_origin(column, _load)
    for found in facts["data"]:
        if isinstance(found, MediaError):
            raise found
    return list(facts["data"])


def _load(column: pa.Array, origin: Origin, access: MediaAccess | None) -> dict[str, np.ndarray]:
    if column.null_count == len(column) or _has_only_nulls(column.type):
        return {"data": np.full(len(column), None, dtype=object)}
    if not is_media(column.type):
        raise _no_media(column.type)
    content, paths = _fields(column)
    data = np.full(len(column), None, dtype=object)
    with Files(access or MediaAccess()) as files:
        for row, (held, path) in enumerate(zip(content, paths, strict=True)):
            if held.is_valid:
                data[row] = memoryview(held.as_buffer())
            elif path.is_valid and path.as_py():
                item = MediaItem(path.as_py(), origin.places[origin.place[row]], files.access)
                try:
                    data[row] = _cut(item) if item.segment is not None else files.read(item.path or "", item.place)
                except MediaError as error:
                    data[row] = error
    return {"data": data}


def _no_media(kind: pa.DataType) -> MediaError:
    """The error for a column of another type."""
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    step = "; the step media_reference makes one of paths" if text else ""
    return MediaError(f"a media column is struct<bytes: binary, path: string>; this one is {kind}{step}")


@dataclass(frozen=True)
class MediaItem:
    """The media of one row: its bytes, or a reference that is opened without reading all of it."""

    path: str | None
    place: str
    """The source file of the row."""
    access: MediaAccess
    data: memoryview | None = None
    """The bytes, if the row holds them."""

    @functools.cached_property
    def reference(self) -> Reference:
        return Reference.parse(self.path or "")

    @property
    def segment(self) -> Segment | None:
        """The part in time that the row stands for; None for all of it."""
        return self.reference.segment if self.data is None else None

    @property
    def name(self) -> str:
        """What the file is called, also if only a segment of it is meant."""
        return media_name(split_segment(self.path or "")[0] if self.data is None else self.path or "")

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The whole file, byte range or member, as a file that can be read and searched; segments are not cut out."""
        if self.data is not None:
            yield io.BytesIO(self.data)
            return
        shown = self.path or ""
        with Files(self.access) as files:
            with explained(shown):
                file = files.part(self.reference, self.place, shown)
            yield file

    def place_on_disk(self) -> tuple[str, int, int] | None:
        """(file, first byte, bytes) of what lies on a disk as it is, also within a tar archive; None for everything else."""
        reference, shown = self.reference, self.path or ""
        if self.data is not None or reference.segment is not None or (reference.member and ".zip#" in shown.lower()):
            return None
        with Files(self.access) as files, explained(shown):
            full = files.allowed(reference.file, self.place, shown)
            if is_remote(full):
                return None
            file = files.opened(full)
            size = file.seek(0, os.SEEK_END)
            start, length = 0, size
            if reference.start is not None and reference.length is not None:
                start, length = reference.start, reference.length
            elif reference.member is not None:
                start, length = files.member_range(file, full, reference.member)
            if start + length > size:
                raise MediaError(f"bytes {start:,} to {start + length:,} are beyond its end at {size:,}")
            return full, start, length

    def copy_to(self, target: IO[bytes]) -> int:
        """Copy the bytes of a file, range or member in pieces; returns how many there are."""
        with self.open() as file, explained(self.path or ""):
            size, copied = file.seek(0, os.SEEK_END), 0
            file.seek(0)
            while piece := file.read(PIECE_BYTES):
                copied += target.write(piece)
            if copied != size:
                raise MediaError(f"it ends after {copied:,} of {size:,} bytes")
            return size

    def members(self) -> Mapping[str, tuple[int, int]]:
        """(first byte, bytes) of the files in the tar archive that a row refers to, by name."""
        shown = self.path or ""
        with Files(self.access) as files, explained(shown):
            full = files.allowed(self.reference.file, self.place, shown)
            return files.members(files.opened(full), full)


def media_items(batch: Batch, column: str) -> list[MediaItem | None]:
    """The media of a column, one per row, without reading any; None for a row without."""
    values = batch[column]
    if values.null_count == len(values) or _has_only_nulls(values.type):
        return [None] * len(values)
    if not is_media(values.type):
        raise _no_media(values.type)
    access, origin = batch.access or MediaAccess(), batch.origin
    items: list[MediaItem | None] = []
    for row, (held, path) in enumerate(zip(*_fields(values), strict=True)):
        place = origin.places[origin.place[row]]
        if held.is_valid:
            items.append(MediaItem(path.as_py(), place, access, memoryview(held.as_buffer())))
        else:
            items.append(MediaItem(path.as_py(), place, access) if path.is_valid and path.as_py() else None)
    return items


def sizes_of(items: Sequence[MediaItem | None]) -> list[int | None]:
    """How many bytes rows refer to, without reading them; None for segments, and for rows that hold bytes or nothing."""
    sizes: list[int | None] = []
    with Files(next((item.access for item in items if item is not None), MediaAccess())) as files:
        for item in items:
            if item is None or item.data is not None or item.segment is not None:
                sizes.append(None)
                continue
            shown = item.path or ""
            with explained(shown):
                sizes.append(files.size(item.reference, item.place, shown))
    return sizes


def referred_bytes(table: pa.Table) -> int:
    """How many bytes the media of rows have that are parts of files, by their references."""
    total = 0
    for column in table.columns:
        if is_media(column.type) and pa.types.is_string(column.type.field("path").type):
            lengths = pc.extract_regex(_fields(contiguous(column))[1], r"(?s)@\d+\+(?P<length>\d{1,18})(?:#.*)?$")
            total += pc.sum(pc.struct_field(lengths, "length").cast(pa.int64())).as_py() or 0
    return total


def _has_only_nulls(kind: pa.DataType) -> bool:
    """Whether a media column has neither bytes nor paths in this batch, so that their types are unknown."""
    return pa.types.is_struct(kind) and kind.num_fields == 2 and all(pa.types.is_null(each.type) for each in kind)


def _fields(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The bytes and paths of a media column, null where the row is."""
    kinds = {each.name: number for number, each in enumerate(column.type)}
    parts = column.flatten()
    return parts[kinds["bytes"]], parts[kinds["path"]]


def _cut(item: MediaItem) -> bytes:
    """A segment as a file of its own. What cuts knows codecs, so it is above this module and imported by name."""
    assert item.segment is not None
    module = "tamis.video.cut" if is_clip(item.name, item.segment) else "tamis.audio.cut"
    cut = importlib.import_module(module).cut
    made: bytes = cut(item)
    return made


def full_paths(table: pa.Table, origin: Origin) -> pa.Table:
    """A table that a reader made, with the references of its media columns made absolute."""
    for index, each in enumerate(table.schema):
        if has_media(each.type):
            column = with_full_paths(contiguous(table.column(index)), origin)
            table = table.set_column(index, each, column)
    return table
