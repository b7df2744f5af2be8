"""Checks on Arrow data that comes from files, made before any kernel or cast sees it.

    record batch --> check_structure    offsets, lengths and dictionary indices within bounds     else the batch is damaged
                 --> plain types
                 --> invalid_text       UTF-8                                                      else the row fails

Arrow trusts its input: an offset out of bounds reads other memory, or crashes the process. The structure costs a pass
over the offsets. UTF-8 costs a pass over the text: 2 GB/s for ASCII, 0.2 GB/s for text in other scripts.
"""

from __future__ import annotations

import re
from contextlib import suppress

import pyarrow as pa

DECODE_ERRORS = (
    OSError,
    UnicodeDecodeError,
    pa.ArrowInvalid,
    pa.ArrowNotImplementedError,
    pa.ArrowTypeError,
    pa.ArrowIndexError,
    pa.ArrowKeyError,
    pa.ArrowSerializationError,
    pa.ArrowCapacityError,
)
"""What pyarrow raises for a damaged Parquet or Arrow file."""
_LARGEST_RATIO = 2**15
"""No supported codec expands data by more than this (zstd: 128 KB blocks of one repeated byte)."""
_ALLOCATION = re.compile(r"(?:malloc|realloc) of size (\d+) failed")


def check_structure(batch: pa.RecordBatch) -> None:
    """Raise ArrowInvalid if offsets, lengths or dictionary indices of a record batch are out of bounds."""
    for column in batch.columns:
        _check_array(column.storage if isinstance(column, pa.ExtensionArray) else column)


def _check_array(values: pa.Array) -> None:
    types, kind = pa.types, values.type
    if _has_null_child(kind) and (types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind)):
        values.validate()
        # The same offsets over as many nulls: a view would give a child of type null the length of the whole array.
        offsets = pa.large_list(pa.null()) if types.is_large_list(kind) else pa.list_(pa.null())
        children = [pa.nulls(len(values.values))]
        shell = pa.Array.from_buffers(
            offsets, len(values), values.buffers()[:2], values.null_count, values.offset, children
        )
        shell.validate(full=True)
        _check_array(values.values)
    elif _has_null_child(kind) and types.is_fixed_size_list(kind):
        values.validate()
        _check_array(values.values)
    elif _has_null_child(kind) and types.is_struct(kind):
        values.validate()
        for number in range(kind.num_fields):
            _check_array(values.field(number))
    elif _has_null_child(kind) and (types.is_list_view(kind) or types.is_large_list_view(kind)):
        values.validate(full=True)
    else:
        with suppress(pa.ArrowNotImplementedError):
            values = values.view(_without_value_checks(kind))
        values.validate(full=True)


def _has_null_child(kind: pa.DataType) -> bool:
    """Whether a type contains the type null, at any depth."""
    children = [kind.field(index).type for index in range(kind.num_fields)]
    return any(pa.types.is_null(child) or _has_null_child(child) for child in children)


def _without_value_checks(kind: pa.DataType) -> pa.DataType:
    """The type of the same memory layout for which full validation checks the structure but no values."""
    types = pa.types
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _without_value_checks(kind.value_type), kind.ordered)
    if types.is_struct(kind):
        return pa.struct([field.with_type(_without_value_checks(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_without_value_checks(kind.key_type), _without_value_checks(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        field = kind.value_field.with_type(_without_value_checks(kind.value_type))
        if types.is_fixed_size_list(kind):
            return pa.list_(field, kind.list_size)
        return pa.large_list(field) if types.is_large_list(kind) else pa.list_(field)
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        field = kind.value_field.with_type(_without_value_checks(kind.value_type))
        return pa.large_list_view(field) if types.is_large_list_view(kind) else pa.list_view(field)
    same_layout = {
        types.is_string: pa.binary(),
        types.is_large_string: pa.large_binary(),
        types.is_string_view: pa.binary_view(),
        types.is_date64: pa.int64(),
        types.is_time32: pa.int32(),
        types.is_time64: pa.int64(),
        types.is_decimal128: pa.binary(16),
        types.is_decimal256: pa.binary(32),
    }
    return next((other for matches, other in same_layout.items() if matches(kind)), kind)


def invalid_text(table: pa.Table) -> dict[int, str]:
    """Rows that hold text that is not UTF-8, with the error of each. The structure must have been checked."""
    errors: dict[int, str] = {}
    for spec, column in zip(table.schema, table.columns, strict=True):
        if _has_text(spec.type) and not _is_valid(column):
            for row in range(len(column)):
                # A row of a nested column is copied out: slices keep the children of their neighbours.
                one = column.slice(row, 1) if _is_text(spec.type) else column.take(pa.array([row]))
                if not _is_valid(one):
                    errors.setdefault(row, f"column `{spec.name}` is not UTF-8")
    return errors


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _has_text(kind: pa.DataType) -> bool:
    children = [kind.field(index).type for index in range(kind.num_fields)]
    return _is_text(kind) or pa.types.is_string_view(kind) or any(map(_has_text, children))


def _is_valid(values: pa.Array | pa.ChunkedArray) -> bool:
    try:
        values.validate(full=True)
    except pa.ArrowInvalid as error:
        return "UTF8" not in str(error)
    return True


def is_absurd(error: MemoryError, file_size: int) -> bool:
    """Whether an allocation failed because a damaged file specifies a size that it cannot expand to."""
    match = _ALLOCATION.search(str(error))
    return match is not None and int(match[1]) > _LARGEST_RATIO * max(file_size, 1)
