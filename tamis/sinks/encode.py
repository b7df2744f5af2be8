"""Encode rows as lines of JSON.

A kernel copies text from the Arrow buffer into the lines; all other columns are first converted to JSON fragments. Values
that JSON cannot represent are written as follows:

    NaN, infinity      null                      binary       base64 text
    timestamps         ISO 8601 text, in UTC     decimals     text, every digit kept
    durations          a number in their unit    maps         objects if the keys are text, else [[key, value], ...]
"""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import contiguous
from tamis.errors import SinkError
from tamis.sinks.schemas import list_parts, struct_array, with_nulls_of


def encode_rows(table: pa.Table) -> pa.Buffer:
    """Encode each row as a JSON object on one line, keys in the order of the columns.

    >>> encode_rows(pa.table({"text": ["a", None], "words": [1, 2]})).to_pybytes()
    b'{"text":"a","words":1}\\n{"text":null,"words":2}\\n'
    """
    from tamis.kernels.json import measure, write  # imported late, because importing numba is slow

    rows = table.num_rows
    if not table.num_columns:
        return pa.py_buffer(b"{}\n" * rows)
    lengths = np.full(rows, len("}\n"), dtype=np.int64)
    parts = []
    for index, name in enumerate(table.column_names):
        text, raw = _fragments(contiguous(table.column(index)), name)
        key = ("," if index else "{") + json.dumps(name, ensure_ascii=False) + ":"
        prefix = np.frombuffer(key.encode(), dtype=np.uint8)
        values = (*_buffers(text), raw)
        measure(*values, lengths)
        lengths += len(prefix)
        parts.append((values, prefix))
    ends = np.cumsum(lengths)
    cursor = ends - lengths
    out = np.empty(int(ends[-1]) if rows else 0, dtype=np.uint8)
    for values, prefix in parts:
        write(*values, prefix, out, cursor)
    out[cursor] = ord("}")
    out[cursor + 1] = ord("\n")
    return pa.py_buffer(out)


def json_text(array: pa.Array, where: str) -> pa.Array:
    """Convert each value to JSON text and keep nulls, for formats without nested values."""
    array = json_values(array, where)
    values = array.to_pylist()
    if _has_map(array.type):
        values = [_objects(value, array.type) for value in values]
    return pa.array([None if value is None else _dumps(value) for value in values], pa.large_string())


def json_values(array: pa.Array, where: str) -> pa.Array:
    """Replace all values that JSON cannot represent by text, at any depth."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return json_values(array.storage, where)
    if pa.types.is_dictionary(kind):
        return json_values(array.dictionary_decode(), where)
    if pa.types.is_run_end_encoded(kind):
        return json_values(pc.run_end_decode(array), where)
    if pa.types.is_struct(kind):
        parts = [json_values(array.field(i), f"{where}.{field.name}") for i, field in enumerate(kind)]
        fields = [pa.field(field.name, part.type) for field, part in zip(kind, parts, strict=True)]
        return struct_array(parts, fields, array)
    if pa.types.is_map(kind):
        offsets, entries = list_parts(array)
        keys, items = json_values(entries.field(0), where), json_values(entries.field(1), where)
        return with_nulls_of(array, pa.MapArray.from_arrays(offsets, keys, items))
    if pa.types.is_fixed_size_list(kind):
        return json_values(array.cast(pa.list_(kind.value_type)), where)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        offsets, values = list_parts(array)
        make = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
        mask = array.is_null() if array.null_count else None
        return make.from_arrays(offsets, json_values(values, f"{where}[]"), mask=mask)
    return _json_leaf(array, where)


def _json_leaf(array: pa.Array, where: str) -> pa.Array:
    kind, types = array.type, pa.types
    if types.is_string(kind) or types.is_large_string(kind) or types.is_integer(kind) or types.is_boolean(kind):
        return array
    if types.is_null(kind) or types.is_float64(kind):
        return array
    if types.is_floating(kind):
        return array.cast(pa.float64())
    if types.is_string_view(kind):
        return array.cast(pa.large_string())
    if (
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    ):
        texts = [None if value is None else base64.b64encode(value).decode() for value in array.to_pylist()]
        return pa.array(texts, type=pa.large_string())
    if types.is_timestamp(kind):
        texts = array.cast(pa.timestamp(kind.unit, "UTC") if kind.tz else kind).cast(pa.string())
        return pc.replace_substring(texts, " ", "T", max_replacements=1)
    if types.is_decimal(kind) or types.is_date(kind) or types.is_time(kind):
        return array.cast(pa.string())
    if types.is_duration(kind):
        return array.cast(pa.int64())
    raise SinkError(
        f"column `{where}` is {kind}, which JSON cannot represent",
        hint="convert the column in a step before the sink, or leave it out with fields=[...]",
    )


def _fragments(array: pa.Array, name: str) -> tuple[pa.Array, bool]:
    """Return the values as text, and whether the text is already JSON."""
    values = json_values(array, name)
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return values, False
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return values.cast(pa.string()), True
    if pa.types.is_floating(kind):
        finite = pc.if_else(pc.is_finite(values), values, None)
        # repr() gives the shortest text that parses to the same number, and distinguishes 1.0 from 1.
        return pa.array([None if x is None else repr(x) for x in finite.to_pylist()], type=pa.string()), True
    return json_text(values, name), True


def _dumps(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_without_nan(value), ensure_ascii=False, separators=(",", ":"))


def _objects(value: Any, kind: pa.DataType) -> Any:
    """Convert maps, which Arrow returns as lists of pairs, to objects if their keys are text."""
    if value is None or not pa.types.is_nested(kind):
        return value
    if pa.types.is_struct(kind):
        return {field.name: _objects(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        pairs = [(key, _objects(item, kind.item_type)) for key, item in value]
        return dict(pairs) if pa.types.is_string(kind.key_type) or pa.types.is_large_string(kind.key_type) else pairs
    return [_objects(item, kind.value_type) for item in value]


def _has_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_has_map(kind.field(i).type) for i in range(kind.num_fields))


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _buffers(text: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the data, words, offsets and validity of a string array, always with the same types, so kernels compile once."""
    width = np.int64 if pa.types.is_large_string(text.type) else np.int32
    _, offsets, content = text.buffers()
    starts = np.zeros(len(text) + 1, dtype=np.int64)
    if offsets is not None and len(text):
        starts[:] = np.frombuffer(offsets, dtype=width)[text.offset : text.offset + len(text) + 1]
    data = np.frombuffer(content if content is not None else b"", dtype=np.uint8)
    if data.ctypes.data % 8:  # a slice of a larger buffer
        data = data[starts[0] : starts[-1]].copy()
        starts -= starts[0]
    data.flags.writeable = False
    words = data[: len(data) // 8 * 8].view(np.uint64)
    valid = text.is_valid().to_numpy(zero_copy_only=False) if text.null_count else np.ones(len(text), dtype=np.bool_)
    return data, words, starts, valid
