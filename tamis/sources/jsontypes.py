"""Corrections to the types and arrays that pyarrow's JSON reader infers."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc


def _map_leaves(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType | None]) -> pa.DataType | None:
    """The type with each leaf changed. Leaves changed to None are removed, and types that become empty with them."""
    if pa.types.is_struct(kind):
        fields = [(spec.name, _map_leaves(spec.type, change)) for spec in kind]
        return pa.struct([(name, inner) for name, inner in fields if inner is not None])
    if pa.types.is_list(kind):
        inner = _map_leaves(kind.value_type, change)
        return None if inner is None else pa.list_(inner)
    return change(kind)


def without_nulls(kind: pa.DataType) -> pa.DataType | None:
    """The known part of a type: fields that were always null are removed, to be inferred later."""
    return _map_leaves(kind, lambda leaf: None if pa.types.is_null(leaf) else leaf)


def as_strings(kind: pa.DataType) -> pa.DataType:
    return _map_leaves(kind, lambda leaf: pa.string() if pa.types.is_temporal(leaf) else leaf) or kind


def with_doubles(kind: pa.DataType) -> pa.DataType:
    return _map_leaves(kind, lambda leaf: pa.float64() if pa.types.is_integer(leaf) else leaf) or kind


def has_fields(kind: pa.DataType) -> bool:
    return pa.types.is_struct(kind) or (pa.types.is_list(kind) and has_fields(kind.value_type))


def _leaves(column: pa.ChunkedArray | pa.Array) -> list[pa.Array]:
    """The flat arrays of numbers within a column."""
    if isinstance(column, pa.ChunkedArray):
        return [leaf for chunk in column.chunks for leaf in _leaves(chunk)]
    if pa.types.is_struct(column.type):
        return [leaf for inner in column.flatten() for leaf in _leaves(inner)]
    if pa.types.is_list(column.type):
        return _leaves(column.flatten())
    return [column]


def lacks_values(column: pa.ChunkedArray | pa.Array) -> bool:
    """Whether the offsets of lists in a column exceed the number of values."""
    if isinstance(column, pa.ChunkedArray):
        return any(map(lacks_values, column.chunks))
    if pa.types.is_list(column.type):
        return len(column) > 0 and (column.offsets[-1].as_py() > len(column.values) or lacks_values(column.values))
    if pa.types.is_struct(column.type):
        return any(lacks_values(column.field(index)) for index in range(column.type.num_fields))
    return False


def repaired(table: pa.Table) -> pa.Table:
    """The table with the missing nulls of lists that contain only nulls."""
    for index, column in enumerate(table.columns):
        if lacks_values(column):
            table = table.set_column(
                index, table.column_names[index], pa.chunked_array([_with_nulls(chunk) for chunk in column.chunks])
            )
    return table


def _with_nulls(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_list(kind):
        many = array.offsets[-1].as_py() if len(array) else 0
        values = pa.nulls(many) if pa.types.is_null(kind.value_type) else _with_nulls(array.values)
        return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], array.null_count, array.offset, [values])
    if pa.types.is_struct(kind):
        fields = [_with_nulls(array.field(index)) for index in range(kind.num_fields)]
        return pa.Array.from_buffers(kind, len(array), array.buffers()[:1], array.null_count, array.offset, fields)
    return array


def is_huge(column: pa.ChunkedArray) -> bool:
    for leaf in _leaves(column):
        if pa.types.is_floating(leaf.type) and leaf.null_count < len(leaf):
            # Converting an array with nulls to numpy would import pandas, if that is installed.
            extremes = pc.min_max(leaf).as_py()
            if extremes["max"] >= 2.0**63 or extremes["min"] <= -(2.0**63):
                return True
    return False


def huge_integer(value: object) -> int | None:
    """An integer within a JSON value that does not fit 64 bits, if any."""
    if isinstance(value, int):
        return value if not -(2**63) <= value < 2**63 else None
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((found for item in inner if (found := huge_integer(item)) is not None), None)
