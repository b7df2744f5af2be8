"""The binaries of media columns next to a file of JSON lines, which refer to them by byte range.

part-000000.jsonl    {"id":1,"image":{"bytes":null,"path":"@512+20480#cat.png"}}
part-000000.media    a tar archive: 00000000.png, ...

References name no file: they belong to the `.media` file of the same name, so that both can be renamed together.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from tamis.batch import contiguous
from tamis.media import has_media, is_media
from tamis.sinks.streams import ByteStream

_EXTENSION = re.compile(r"\.[A-Za-z0-9]{1,8}$")
Store: TypeAlias = Callable[[bytes, str | None], str]


class MediaFile:
    """A tar archive that grows by one member for each binary. The same binaries always give the same file."""

    def __init__(self, path: Path) -> None:
        self._stream = ByteStream(path, None)
        self._members = 0

    @property
    def path(self) -> Path:
        return self._stream.path

    @property
    def size(self) -> int:
        return self._stream.size

    def add(self, data: bytes, name: str | None) -> str:
        """Append data, and return the reference to it; `name` is what it was called so far."""
        found = _EXTENSION.search(name or "")
        member = tarfile.TarInfo(f"{self._members:08d}{found[0].lower() if found else ''}")
        member.size = len(data)
        self._stream.write(member.tobuf(tarfile.GNU_FORMAT))
        start = self.size
        self._stream.write(data)
        self._stream.write(b"\0" * (-len(data) % tarfile.BLOCKSIZE))
        self._members += 1
        return f"@{start}+{len(data)}" + ("" if name is None else f"#{name}")

    def close(self) -> int:
        """End the archive, sync it to disk, and return its size."""
        self._stream.write(b"\0" * (2 * tarfile.BLOCKSIZE))
        return self._stream.close()

    def abort(self) -> None:
        self._stream.abort()


def by_reference(table: pa.Table, store: Store) -> pa.Table:
    """The table with the bytes of its media columns replaced by references to where `store` put them."""
    for index, field in enumerate(table.schema):
        if has_media(field.type):
            values = [_refer(value, field.type, store) for value in contiguous(table.column(index))]
            kind = _without_bytes(field.type)
            table = table.set_column(index, pa.field(field.name, kind), pa.array(values, kind))
    return table


def _refer(value: pa.Scalar, kind: pa.DataType, store: Store) -> Any:
    if not value.is_valid:
        return None
    if is_media(kind):
        held, path = value["bytes"], value["path"].as_py()
        return {"bytes": None, "path": store(held.as_buffer(), path) if held.is_valid else path}
    if not has_media(kind):
        return value.as_py()
    if pa.types.is_struct(kind):
        return {each.name: _refer(value[each.name], each.type, store) for each in kind}
    if pa.types.is_map(kind):
        return [(entry["key"].as_py(), _refer(entry["value"], kind.item_type, store)) for entry in value.values]
    return [_refer(item, kind.value_type, store) for item in value.values]


def _without_bytes(kind: pa.DataType) -> pa.DataType:
    if is_media(kind):
        return pa.struct([each.with_type(pa.null() if each.name == "bytes" else pa.string()) for each in kind])
    if not has_media(kind):
        return kind
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_without_bytes(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _without_bytes(kind.item_type))
    return pa.list_(_without_bytes(kind.value_type))
