"""Media columns in JSON lines, which hold references and no bytes: {"bytes": null, "path": "cat.png"}."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from tamis.batch import contiguous
from tamis.media import has_media, is_media
from tamis.sinks.schemas import conform_array

MEDIA = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def json_media_type(kind: pa.DataType) -> pa.DataType:
    """The type inferred from JSON, with media where every `bytes` that was seen is null."""
    return _changed(kind, lambda media: MEDIA)


def without_bytes(kind: pa.DataType) -> pa.DataType:
    """The type for the parser: it infers `bytes`, because it would take a text for the bytes of its characters."""
    return _changed(kind, lambda media: pa.struct([("path", pa.string())]))


def _changed(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    if is_media(kind):
        return change(kind)
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_changed(each.type, change)) for each in kind])
    return pa.list_(_changed(kind.value_type, change)) if pa.types.is_list(kind) else kind


def references(
    table: pa.Table, kept: np.ndarray, schema: pa.Schema, bad: Callable[[int, str], None]
) -> tuple[pa.Table, np.ndarray]:
    """The parsed rows with typed media columns, and their line numbers; `bad` is called for rows that hold bytes."""
    media = [name for name in table.column_names if name in schema.names and has_media(schema.field(name).type)]
    alive = np.ones(len(kept), dtype=np.bool_)
    for name in media:
        kind = schema.field(name).type
        if _has_text_bytes(table.schema.field(name).type, kind):
            for row, value in enumerate(table.column(name).to_pylist()):
                if alive[row] and _holds_bytes(value, kind):
                    alive[row] = False
                    bad(
                        int(kept[row]),
                        f"`bytes` of column `{name}` is not null; JSON holds media by reference, in `path` "
                        f'(types={{"{name}": "json"}} keeps the text)',
                    )
    if not alive.all():
        table, kept = table.filter(pa.array(alive)), kept[alive]
    for name in media:
        index, target = table.column_names.index(name), schema.field(name)
        table = table.set_column(index, target, conform_array(contiguous(table.column(index)), target.type, name))
    return table, kept


def _has_text_bytes(found: pa.DataType, kind: pa.DataType) -> bool:
    """Whether the parser found anything but null for the bytes of a media column."""
    if is_media(kind):
        held = found.get_field_index("bytes") if pa.types.is_struct(found) else -1
        return held >= 0 and not pa.types.is_null(found.field(held).type)
    if pa.types.is_struct(kind) and pa.types.is_struct(found):
        return any(
            _has_text_bytes(found.field(each.name).type, each.type)
            for each in kind
            if found.get_field_index(each.name) >= 0
        )
    return pa.types.is_list(kind) and pa.types.is_list(found) and _has_text_bytes(found.value_type, kind.value_type)


def _holds_bytes(value: Any, kind: pa.DataType) -> bool:
    if value is None or not has_media(kind):
        return False
    if is_media(kind):
        return value.get("bytes") is not None
    if pa.types.is_struct(kind):
        return any(_holds_bytes(value.get(each.name), each.type) for each in kind)
    return any(_holds_bytes(item, kind.value_type) for item in value)
