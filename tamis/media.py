"""Media columns: images, sounds and videos, held in a row or referred to by it.

A media column is `struct<bytes: binary, path: string>`, the convention of Hugging Face datasets. If `bytes` is not null,
`path` is only a name. If it is null, `path` is a reference, which is read when an operator calls `read_bytes`:

    cat.png                               a file, in the folder of the source file
    /data/cat.png, s3://bucket/cat.png    a file elsewhere
    shard.tar#cats/1.png                  a member of a tar or zip archive
    shard.tar@1536+20480                  20,480 bytes from byte 1,536 on; a name may follow: shard.tar@1536+20480#1.png
    @1536+20480#1.png                     the same, in the `.media` file that belongs to the source file
    talk.mp3#t=12.5,20                    a part in time of any of these; see `tamis/segments.py`

References come from data and are not trusted. A reference may lead to any file in the folder of the source file, or below
it, after links are followed. Any other file or URL must be in one of the `media_roots` that the user gave to the reader.
"""

from __future__ import annotations

import functools
import importlib
import io
import os
import posixpath
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any, TypeAlias
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Batch, Origin, contiguous
from tamis.errors import MediaError, is_shortage
from tamis.formats import CODECS, codec_of
from tamis.segments import Segment, cut_name, is_video_name, split_segment

MEDIA_SUFFIX = ".media"
"""The suffix of the file next to a file of JSON lines that holds the binaries of its rows. It is a tar archive."""

MAX_BYTES = 2**31 - 2
"""Arrow counts the bytes of a binary column in 32 bits."""

Data: TypeAlias = memoryview | bytes | None

_RANGE = re.compile(r"(?P<file>.*?)@(?P<start>\d{1,19})\+(?P<length>\d{1,19})(?:#(?P<name>.*))?", re.DOTALL)
_MEMBER = re.compile(r"(?P<file>.+?\.(?:tar|zip))#(?P<member>.+)", re.DOTALL | re.IGNORECASE)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_FRAME = re.compile(r"(.*)@\d+", re.DOTALL)
_NAMES = ("bytes", "path")
_INDEXED_ARCHIVES = 16


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


@dataclass(frozen=True)
class MediaAccess:
    """What the user allows references to reach, and how to open it."""

    roots: tuple[str, ...] = ()
    """Folders and URLs: "/data/images", "s3://bucket/images/", "https://" for all of the web."""
    storage_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reference:
    """A parsed path: a file, or a part of one."""

    file: str
    """Empty for the `.media` file that belongs to the source file."""
    start: int | None = None
    length: int | None = None
    member: str | None = None
    name: str | None = None
    """What the data was called before it became part of the file."""
    segment: Segment | None = None
    """A part in time of what the rest leads to."""

    @staticmethod
    def parse(path: str) -> Reference:
        """
        >>> Reference.parse("a.tar@512+10#cat.png")
        Reference(file='a.tar', start=512, length=10, member=None, name='cat.png', segment=None)
        >>> Reference.parse("a.tar#cat.png").member, Reference.parse("a#b.png").file
        ('cat.png', 'a#b.png')
        >>> Reference.parse("a.tar#1.mp3#t=1,2").segment
        Segment(begin=1.0, end=2.0, track=None)
        """
        path, segment = split_segment(path)
        if found := _RANGE.fullmatch(path):
            start, length = int(found["start"]), int(found["length"])
            return Reference(found["file"], start, length, name=found["name"], segment=segment)
        if found := _MEMBER.fullmatch(path):
            return Reference(found["file"], member=found["member"], name=found["member"], segment=segment)
        return Reference(path, name=path, segment=segment)

    @property
    def suffix(self) -> str:
        """What follows the file in the path."""
        part = "" if self.segment is None else self.segment.suffix
        if self.start is not None:
            return f"@{self.start}+{self.length}" + ("" if self.name is None else f"#{self.name}") + part
        return part if self.member is None else f"#{self.member}{part}"


def media_name(path: str) -> str:
    """What data is called: the name of a member of an archive, or the last part of a path.

    >>> media_name("/data/a.tar@512+10#cats/1.png"), media_name("https://example.org/cat.png?size=2")
    ('cats/1.png', 'cat.png')
    >>> media_name("/data/talk.mp3#t=12.5,20")  # what it is called once it is cut out
    'talk_12.5-20.flac'
    """
    whole, segment = split_segment(path)
    if segment is not None:
        return cut_name(media_name(whole), segment)
    reference = Reference.parse(path)
    if reference.member is not None or reference.start is not None:
        return reference.name or posixpath.basename(reference.file)
    return posixpath.basename(path.partition("?")[0].partition("#")[0] if _is_remote(path) else path)


def media_file_of(place: str) -> str:
    """The `.media` file that belongs to a source file, or to a frame of one.

    >>> media_file_of("out/part-000000.jsonl"), media_file_of("out/part-000001.jsonl.zst@1048576")
    ('out/part-000000.media', 'out/part-000001.media')
    """
    found = _FRAME.fullmatch(place)
    path = found[1] if found and codec_of(found[1]) else place
    for suffix in CODECS:
        path = path.removesuffix(suffix)
    return posixpath.splitext(path)[0] + MEDIA_SUFFIX


def with_full_paths(column: pa.Array, origin: Origin) -> pa.Array:
    """The column with relative references made absolute, so that they lead to the same files from anywhere.

    Rows that have bytes do not change, and neither do references that lead out of the folder of the source file: reading
    them is an error, passing them on is not.
    """
    if not has_media(column.type):
        return column
    if is_media(column.type):
        return _with_full_paths(column, origin)
    values = [_in_nested(value, column.type, origin, row) for row, value in enumerate(column.to_pylist())]
    return pa.array(values, column.type)


def _with_full_paths(column: pa.Array, origin: Origin) -> pa.Array:
    content, paths = _fields(column)
    refers = pc.and_(pc.is_null(content), pc.is_valid(paths))
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
        if value["bytes"] is not None or path is None or path.startswith("/") or _URL.match(path):
            return value
        return value | {"path": _full_path(path, origin.places[origin.place[row]])}
    if pa.types.is_struct(kind):
        return {each.name: _in_nested(value[each.name], each.type, origin, row) for each in kind}
    if pa.types.is_map(kind):
        return [(key, _in_nested(item, kind.item_type, origin, row)) for key, item in value]
    return [_in_nested(item, kind.value_type, origin, row) for item in value]


def _full_path(path: str, place: str) -> str:
    reference = Reference.parse(path)
    inside = _joined(reference.file, place)
    return path if inside is None else inside + reference.suffix


def _joined(file: str, place: str) -> str | None:
    """The full path of a file relative to the folder of a source file; None if it leads out of that folder."""
    if not file:
        file = posixpath.basename(media_file_of(place))
    inside = posixpath.normpath(file)
    if inside in (".", "..") or inside.startswith(("../", "/")) or "\0" in file or "::" in file:
        return None
    if not _is_remote(place):
        return os.path.join(_folder_of(place), inside)  # noqa: PTH118
    return None if ".." in unquote(file).replace("\\", "/").split("/") else f"{_folder_of(place)}/{inside}"


@functools.lru_cache(maxsize=1024)
def _folder_of(place: str) -> str:
    folder = posixpath.dirname(place.removeprefix("file://"))
    return posixpath.dirname(place) if _is_remote(place) else os.path.abspath(folder)  # noqa: PTH100


def _is_remote(path: str) -> bool:
    return bool(_URL.match(path)) and not path.startswith("file://")


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
        raise MediaError(f"a media column is struct<bytes: binary, path: string>; this one is {column.type}")
    content, paths = _fields(column)
    data = np.full(len(column), None, dtype=object)
    with _Files(access or MediaAccess()) as files:
        for row, (held, path) in enumerate(zip(content, paths, strict=True)):
            if held.is_valid:
                data[row] = memoryview(held.as_buffer())
            elif path.is_valid and path.as_py():
                try:
                    data[row] = files.read(path.as_py(), origin.places[origin.place[row]])
                except MediaError as error:
                    data[row] = error
    return {"data": data}


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
        with _Files(self.access) as files:
            with _explained(shown):
                file = files.part(self.reference, self.place, shown)
            yield file


def media_items(batch: Batch, column: str) -> list[MediaItem | None]:
    """The media of a column, one per row, without reading any; None for a row without."""
    values = batch[column]
    if values.null_count == len(values) or _has_only_nulls(values.type):
        return [None] * len(values)
    if not is_media(values.type):
        raise MediaError(f"a media column is struct<bytes: binary, path: string>; this one is {values.type}")
    access, origin = batch.access or MediaAccess(), batch.origin
    items: list[MediaItem | None] = []
    for row, (held, path) in enumerate(zip(*_fields(values), strict=True)):
        place = origin.places[origin.place[row]]
        if held.is_valid:
            items.append(MediaItem(path.as_py(), place, access, memoryview(held.as_buffer())))
        else:
            items.append(MediaItem(path.as_py(), place, access) if path.is_valid and path.as_py() else None)
    return items


def _has_only_nulls(kind: pa.DataType) -> bool:
    """Whether a media column has neither bytes nor paths in this batch, so that their types are unknown."""
    return pa.types.is_struct(kind) and kind.num_fields == 2 and all(pa.types.is_null(each.type) for each in kind)


def _fields(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The bytes and paths of a media column, null where the row is."""
    kinds = {each.name: number for number, each in enumerate(column.type)}
    parts = column.flatten()
    return parts[kinds["bytes"]], parts[kinds["path"]]


class _Files:
    """Reads references. The file read last stays open, because neighbouring rows often refer to the same archive."""

    def __init__(self, access: MediaAccess) -> None:
        self.access = access
        self._path: str | None = None
        self._file: IO[bytes] | None = None
        self._zip: zipfile.ZipFile | None = None
        self._roots = functools.cache(self._local_roots)
        self._real = functools.lru_cache(maxsize=64)(os.path.realpath)

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._path = self._file = self._zip = None

    def read(self, path: str, place: str) -> bytes:
        """The bytes that a reference in a row of `place` leads to."""
        reference = Reference.parse(path)
        if reference.segment is not None:
            return _cut(MediaItem(path, place, self.access))
        full = self._allowed(reference.file, place, path)
        with _explained(path):
            file = self._open(full)
            if reference.start is not None and reference.length is not None:
                return _range(file, reference.start, reference.length)
            if reference.member is not None:
                return self._member(file, full, reference.member)
            return _range(file, 0, None)

    def part(self, reference: Reference, place: str, path: str) -> IO[bytes]:
        """What a reference leads to, as a file; valid until the next call, or until this object is closed."""
        full = self._allowed(reference.file, place, path)
        file = self._open(full)
        if reference.start is not None and reference.length is not None:
            return io.BufferedReader(_Window(file, reference.start, reference.length))
        if reference.member is None:
            file.seek(0)
            return file
        if full.lower().endswith(".zip"):
            return io.BytesIO(self._member(file, full, reference.member))
        return io.BufferedReader(_Window(file, *self._member_range(file, full, reference.member)))

    def _allowed(self, file: str, place: str, path: str) -> str:
        """The full path of a file that a reference may reach."""
        if "\0" in file or "::" in file:
            raise MediaError(f"`{path!r:.200}` is not a path to a file")
        if _is_remote(file):
            self._check_url(file, place, path)
            return file
        if not posixpath.isabs(file.removeprefix("file://")):
            inside = _joined(file, place)
            if inside is None:
                raise _outside(path, place)
            if _is_remote(inside):
                return inside
            file = inside
        file = file.removeprefix("file://")
        real = self._real(file)
        if not any(real == root or real.startswith(f"{root.rstrip('/')}/") for root in self._roots(place)):
            raise _outside(path, place)
        return real

    def _check_url(self, url: str, place: str, path: str) -> None:
        folder = [f"{_folder_of(place)}/"] if _is_remote(place) else []
        steps = unquote(unquote(url)).replace("\\", "/").split("/")
        for root in (*folder, *self.access.roots):
            whole = root if root.endswith("/") else f"{root}/"
            if _is_remote(root) and url.startswith(whole) and ".." not in steps:
                return
        raise _outside(path, place)

    def _local_roots(self, place: str) -> list[str]:
        folders = [] if _is_remote(place) else [_folder_of(place)]
        folders += [root.removeprefix("file://") for root in self.access.roots if not _is_remote(root)]
        return [os.path.realpath(folder) for folder in folders]

    def _open(self, path: str) -> IO[bytes]:
        if self._path != path or self._file is None:
            self._close()
            self._file = _open_remote(path, self.access) if _is_remote(path) else _open_local(path)
            self._path = path
        return self._file

    def _member(self, file: IO[bytes], path: str, member: str) -> bytes:
        if path.lower().endswith(".zip"):
            if self._zip is None:
                self._zip = zipfile.ZipFile(file)
            return _zip_member(self._zip, member)
        return _range(file, *self._member_range(file, path, member))

    def _member_range(self, file: IO[bytes], path: str, member: str) -> tuple[int, int]:
        size = file.seek(0, os.SEEK_END)
        stamp = os.fstat(file.fileno()).st_mtime_ns if not _is_remote(path) else 0
        index = _tar_index(path, size, stamp, _Unhashed(file))
        if member not in index:
            raise MediaError(f"{path} has no member {member!r}")
        return index[member]


class _Window(io.RawIOBase):
    """A range of bytes of a file, as a file."""

    def __init__(self, file: IO[bytes], start: int, length: int) -> None:
        size = file.seek(0, os.SEEK_END)
        if start + length > size:
            raise MediaError(f"bytes {start:,} to {start + length:,} are beyond its end at {size:,}")
        self._file, self._start, self._length, self._position = file, start, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._length}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, target: Any) -> int:
        left = max(0, self._length - self._position)
        self._file.seek(self._start + self._position)
        data = self._file.read(min(len(target), left))
        target[: len(data)] = data
        self._position += len(data)
        return len(data)


def _cut(item: MediaItem) -> bytes:
    """A segment as a file of its own. What cuts knows codecs, so it is above this module and imported by name."""
    assert item.segment is not None
    clip = is_video_name(item.name) and item.segment.track != "audio"
    cut = importlib.import_module("tamis.video.cut" if clip else "tamis.audio.cut").cut
    made: bytes = cut(item)
    return made


def _open_local(path: str) -> IO[bytes]:
    # Not blocking, so that a named pipe does not stop the worker before its kind is known.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise MediaError(f"{path} is not a regular file")
    return os.fdopen(descriptor, "rb")


def _open_remote(url: str, access: MediaAccess) -> IO[bytes]:
    import fsspec

    return fsspec.open(url, "rb", **access.storage_options).open()


def _range(file: IO[bytes], start: int, length: int | None) -> bytes:
    size = file.seek(0, os.SEEK_END)
    if length is None:
        length = size - start
    if length > MAX_BYTES:
        raise MediaError(f"it has {length:,} bytes, and a value can hold {MAX_BYTES:,}")
    if start + length > size:
        raise MediaError(f"bytes {start:,} to {start + length:,} are beyond its end at {size:,}")
    file.seek(start)
    data = file.read(length)
    if len(data) < length:
        raise MediaError(f"it ends after {len(data):,} of {length:,} bytes")
    return data


def _zip_member(archive: zipfile.ZipFile, member: str) -> bytes:
    try:
        info = archive.getinfo(member)
    except KeyError:
        raise MediaError(f"the archive has no member {member!r}") from None
    if info.is_dir() or info.file_size > MAX_BYTES:
        raise MediaError(f"member {member!r} is a folder, or larger than {MAX_BYTES:,} bytes")
    with archive.open(info) as opened:
        data = opened.read(info.file_size + 1)  # an entry may lie about its size
    if len(data) != info.file_size:
        raise MediaError(f"member {member!r} has another size than the archive says")
    return data


class _Unhashed:
    """An argument that does not count for a cache."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Unhashed)


@functools.lru_cache(maxsize=_INDEXED_ARCHIVES)
def _tar_index(path: str, size: int, stamp: int, opened: _Unhashed) -> dict[str, tuple[int, int]]:
    """(start, length) of the regular files in a tar archive; the last of several with one name counts."""
    opened.file.seek(0)
    with tarfile.open(fileobj=opened.file, mode="r:") as archive:
        return {
            member.name.removeprefix("./"): (member.offset_data, member.size)
            for member in archive
            if member.isreg() and not member.issparse()
        }


def _outside(path: str, place: str) -> MediaError:
    return MediaError(
        f"`{path:.200}` is outside the folder of its source file, {_folder_of(place)}; "
        "allow other folders and URLs with media_roots=[...] of the reader"
    )


@contextmanager
def _explained(path: str) -> Iterator[None]:
    """Turn errors of reading a reference into one that names it."""
    try:
        yield
    except MediaError as error:
        raise MediaError(f"`{path:.200}` cannot be read: {error.message}") from error
    except (OSError, EOFError, ValueError, RuntimeError, NotImplementedError, zlib.error) as error:
        if is_shortage(error):
            raise
        raise MediaError(f"`{path:.200}` cannot be read: {_why(error)}") from error
    except (tarfile.TarError, zipfile.BadZipFile) as error:
        raise MediaError(f"`{path:.200}` cannot be read: the archive is damaged ({error})") from error


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def full_paths(table: pa.Table, origin: Origin) -> pa.Table:
    """A table that a reader made, with the references of its media columns made absolute."""
    for index, each in enumerate(table.schema):
        if has_media(each.type):
            column = with_full_paths(contiguous(table.column(index)), origin)
            table = table.set_column(index, each, column)
    return table
