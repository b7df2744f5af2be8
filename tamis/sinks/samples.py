"""Rows with media as files: what each column becomes, and under which name."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from tamis.batch import contiguous
from tamis.formats import media_kind
from tamis.media import is_media, media_name
from tamis.sinks.encode import encode_rows

_EXTENSION = re.compile(r"\.([A-Za-z0-9]{1,8})$")
_MAGIC = (
    (b"\xff\xd8\xff", "jpg"), (b"\x89PNG\r\n\x1a\n", "png"), (b"GIF8", "gif"), (b"BM", "bmp"),
    (b"II*\0", "tif"), (b"MM\0*", "tif"), (b"fLaC", "flac"), (b"OggS", "ogg"), (b"ID3", "mp3"),
    (b"\xff\xfb", "mp3"), (b"\x1a\x45\xdf\xa3", "mkv"),
)  # fmt: skip
_INSIDE = {b"WEBP": "webp", b"WAVE": "wav", b"AVI ": "avi", b"avif": "avif", b"M4A ": "m4a", b"qt  ": "mov"}


@dataclass
class Sample:
    """A row as files."""

    key: str | None
    media: dict[str, tuple[pa.Buffer, str, str]] = field(default_factory=dict)
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
            state.update(data)
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


def _is_writable(kind: pa.DataType, extension: str) -> bool:
    """Whether values of a type can be written to a text file and read back; a class is an integer."""
    if extension == "cls":
        return bool(pa.types.is_integer(kind))
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _data(value: pa.Scalar) -> tuple[pa.Buffer, str, str] | None:
    """(bytes, extension, name) of a media value that holds bytes."""
    if not value.is_valid or not value["bytes"].is_valid:
        return None
    data = value["bytes"].as_buffer()
    path = value["path"].as_py()
    name = media_name(path) if path else ""
    return data, extension_of(name, data), name


def extension_of(name: str, data: pa.Buffer) -> str:
    """The extension of a file, by its name or else by its first bytes.

    >>> extension_of("Cat.JPEG", pa.py_buffer(b"")), extension_of("cat", pa.py_buffer(b"GIF89a"))
    ('jpeg', 'gif')
    """
    found = _EXTENSION.search(name)
    if found and media_kind(f"x{found[0]}"):
        return found[1].lower()
    head = data.slice(0, min(data.size, 16)).to_pybytes()
    for magic, extension in _MAGIC:
        if head.startswith(magic):
            return extension
    inside = _INSIDE.get(head[8:12])
    if inside is None and head[4:8] == b"ftyp":
        inside = "mp4"
    return inside or (found[1].lower() if found else "bin")
