"""Rows with media as files: what each column becomes, and under which name."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pyarrow as pa

from tamis.batch import contiguous
from tamis.errors import SinkError
from tamis.formats import media_kind
from tamis.media import Reference, Window, is_media, media_name
from tamis.media_files import PIECE_BYTES
from tamis.sinks.encode import encode_rows
from tamis.sources.references import SPOOL

_EXTENSION = re.compile(r"\.([A-Za-z0-9]{1,8})$")
_MAGIC = (
    (b"\xff\xd8\xff", "jpg"), (b"\x89PNG\r\n\x1a\n", "png"), (b"GIF8", "gif"), (b"BM", "bmp"),
    (b"II*\0", "tif"), (b"MM\0*", "tif"), (b"fLaC", "flac"), (b"OggS", "ogg"), (b"ID3", "mp3"),
    (b"\xff\xfb", "mp3"), (b"\x1a\x45\xdf\xa3", "mkv"),
)  # fmt: skip
_INSIDE = {b"WEBP": "webp", b"WAVE": "wav", b"AVI ": "avi", b"avif": "avif", b"M4A ": "m4a", b"qt  ": "mov"}


@dataclass(frozen=True)
class Content:
    """The bytes of a file: in memory, or a part of a file on a disk."""

    data: pa.Buffer | None = None
    path: str = ""
    start: int = 0
    length: int = 0

    @property
    def size(self) -> int:
        return self.length if self.data is None else int(self.data.size)

    @property
    def head(self) -> bytes:
        """The first 16 bytes."""
        if self.data is not None:
            return bytes(self.data.slice(0, min(self.data.size, 16)).to_pybytes())
        with self.opened() as file:
            return file.read(16)

    def pieces(self) -> Iterator[pa.Buffer | bytes]:
        """The bytes, a few megabytes at a time."""
        if self.data is not None:
            yield self.data
            return
        with self.opened() as file:
            left = self.length
            while left:
                piece = file.read(min(left, PIECE_BYTES))
                if not piece:
                    raise SinkError(f"{self.path} was shortened while it was copied", hint="rerun the same command")
                left -= len(piece)
                yield piece

    def write_to(self, path: Path) -> None:
        """Write the bytes to a new file."""
        with path.open("xb") as file:
            for piece in self.pieces():
                file.write(piece)

    @contextmanager
    def opened(self) -> Iterator[IO[bytes]]:
        """The bytes as a file."""
        if self.data is not None:
            yield io.BytesIO(self.data)
            return
        with Path(self.path).open("rb") as file:
            yield Window(file, self.start, self.length).buffered()

    def release(self) -> None:
        """Remove the file if it is a temporary one."""
        if self.data is None and Path(self.path).parent.name == SPOOL:
            Path(self.path).unlink(missing_ok=True)


@dataclass
class Sample:
    """A row as files."""

    key: str | None
    media: dict[str, tuple[Content, str, str]] = field(default_factory=dict)
    """By column: the bytes, the extension, and the name they had."""
    texts: dict[str, bytes] = field(default_factory=dict)
    """By extension."""
    fields: bytes = b"{}"
    """All other columns, as a JSON object."""

    @property
    def digest(self) -> str:
        """A hash of what the sample holds."""
        state = hashlib.blake2b(self.fields, digest_size=8)
        for column, (data, extension, _) in self.media.items():
            state.update(f"{column}.{extension}:{data.size}:".encode())
            for piece in data.pieces():
                state.update(piece)
        for extension, text in self.texts.items():
            state.update(f"{extension}:{len(text)}:".encode() + text)
        return state.hexdigest()


def samples(table: pa.Table, key: str, texts: Mapping[str, str]) -> Iterator[Sample]:
    """The rows of a table. Column `key` has their names; `texts` has the extensions of columns that become text files."""
    names = table.column_names
    media = [name for name in names if is_media(table.schema.field(name).type)]
    written = {name: extension for name, extension in texts.items() if name in names and name not in media}
    written = {name: ext for name, ext in written.items() if _is_writable(table.schema.field(name).type, ext)}
    rest = [name for name in names if name not in media and name not in written and name != key]
    keys = contiguous(table.column(key)).to_pylist() if key in names else [None] * table.num_rows
    lines = encode_rows(table.select(rest)).to_pybytes().split(b"\n") if rest else [b"{}"] * table.num_rows
    columns = {name: contiguous(table.column(name)) for name in media}
    values = {name: contiguous(table.column(name)).to_pylist() for name in written}
    for row in range(table.num_rows):
        name = keys[row]
        sample = Sample(None if name is None else str(name), fields=lines[row])
        for column, array in columns.items():
            found = _data(array[row])
            if found is not None:
                sample.media[column] = found
        for column, extension in written.items():
            if values[column][row] is not None:
                sample.texts[extension] = str(values[column][row]).encode()
        yield sample


def check_file_names(columns: Sequence[str], name_of: Callable[[str], str]) -> None:
    """Raise if the files of two columns would have the same names."""
    seen: dict[str, str] = {}
    for column in columns:
        other = seen.setdefault(name_of(column), column)
        if other != column:
            raise SinkError(
                f"the files of the columns `{other}` and `{column}` would have the same names",
                hint=f'rename one of them: columns={{"{column}": "other"}}',
            )


def _is_writable(kind: pa.DataType, extension: str) -> bool:
    """Whether values of a type can be written to a text file and read back; a class is an integer."""
    if extension == "cls":
        return bool(pa.types.is_integer(kind))
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _data(value: pa.Scalar) -> tuple[Content, str, str] | None:
    """(bytes, extension, name) of a media value that holds bytes, or that `ReadMedia` left on a disk."""
    if not value.is_valid:
        return None
    path = value["path"].as_py()
    name = media_name(path) if path else ""
    if value["bytes"].is_valid:
        content = Content(value["bytes"].as_buffer())
    else:
        left = Reference.parse(path or "")
        if left.start is None or left.length is None:
            return None
        content = Content(None, left.file, left.start, left.length)
    return content, extension_of(name, content), name


def extension_of(name: str, data: Content) -> str:
    """The extension of a file, by its name or else by its first bytes.

    >>> extension_of("Cat.JPEG", Content()), extension_of("cat", Content(pa.py_buffer(b"GIF89a")))
    ('jpeg', 'gif')
    """
    found = _EXTENSION.search(name)
    if found and media_kind(f"x{found[0]}"):
        return found[1].lower()
    head = data.head
    for magic, extension in _MAGIC:
        if head.startswith(magic):
            return extension
    inside = _INSIDE.get(head[8:12])
    if inside is None and head[4:8] == b"ftyp":
        inside = "mp4"
    return inside or (found[1].lower() if found else "bin")
