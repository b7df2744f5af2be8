"""Find a common schema for tables with different schemas, and convert tables to it.

merge_schemas    null + T -> T, int + double -> double, structs field by field, lists by their values
conform          a table with exactly the columns and types of a schema; missing columns are null
plain            a schema with only the types that every file reader supports
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import contiguous
from tamis.errors import SinkError
from tamis.features import features_of, media_feature, merged_features, with_features
from tamis.media import is_media, with_media_types


def merge_schemas(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """Return the narrowest schema that can represent all of `schemas`, columns in order of first appearance.

    >>> merge_schemas([pa.schema({"a": pa.int64()}), pa.schema({"a": pa.float64(), "b": pa.null()})])
    a: double
    b: null
    """
    types: dict[str, pa.DataType] = {}
    every = list(schemas)
    for schema in every:
        for field in schema:
            types[field.name] = merge_types(types.get(field.name, pa.null()), field.type, field.name)
    return with_features(pa.schema(types), merged_features(every))


def merge_types(one: pa.DataType, other: pa.DataType, where: str) -> pa.DataType:
    """Return a type that can represent both; `where` names the column or field in errors."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            known = fields.get(field.name, pa.null())
            fields[field.name] = merge_types(known, field.type, f"{where}.{field.name}")
        return pa.struct(list(fields.items()))
    if _is_list(one) and _is_list(other):
        value = merge_types(one.value_type, other.value_type, f"{where}[]")
        if pa.types.is_fixed_size_list(one) and pa.types.is_fixed_size_list(other) and one.list_size == other.list_size:
            return pa.list_(value, one.list_size)
        large = pa.types.is_large_list(one) or pa.types.is_large_list(other)
        return pa.large_list(value) if large else pa.list_(value)
    if pa.types.is_map(one) and pa.types.is_map(other):
        key = merge_types(one.key_type, other.key_type, f"{where} (keys)")
        return pa.map_(key, merge_types(one.item_type, other.item_type, f"{where} (values)"))
    try:
        pair = [pa.schema({"x": plain_type(one)}), pa.schema({"x": plain_type(other)})]
        return pa.unify_schemas(pair, promote_options="permissive").field("x").type
    except (pa.ArrowTypeError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise SinkError(
            f"column `{where}` is {one} in some rows and {other} in others, and no type holds both",
            hint="convert the column in a step before the sink, leave it out with fields=[...], or write JSONL",
        ) from None


def with_media_features(schema: pa.Schema) -> pa.Schema:
    """The schema with the features of the media columns `image`, `audio` and `video`, so that `datasets` shows them."""
    media = ("image", "audio", "video")
    own = {spec.name: media_feature(spec.name) for spec in schema if spec.name in media and is_media(spec.type)}
    return with_features(schema, own | features_of(schema)) if own else schema


def plain(schema: pa.Schema) -> pa.Schema:
    """Replace dictionary, view, run-length, large and extension types by the corresponding plain types.

    Files are written in pieces far below 2 GB, so large types are not needed, and shards with the same rows should not differ
    because of the in-memory representation of the rows.
    """
    return with_features(pa.schema([(field.name, plain_type(field.type)) for field in schema]), features_of(schema))


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The plain type; the fields of a media column are typed even if they are always null."""
    return with_media_types(_plain_type(kind))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, plain_type(field.type)) for field in kind])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(plain_type(kind.value_type), kind.list_size)
    if _is_list(kind):
        return pa.list_(plain_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    return kind


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Convert a table to exactly the columns of `schema`, without loss; missing columns are null."""
    columns = []
    for field in schema:
        index = table.schema.get_field_index(field.name)
        if index < 0:
            columns.append(pa.nulls(table.num_rows, field.type))
        elif table.schema.field(index).type == field.type:
            columns.append(table.column(index))
        else:
            columns.append(conform_array(contiguous(table.column(index)), field.type, field.name))
    return pa.Table.from_arrays(columns, schema=schema)


def conform_array(array: pa.Array, kind: pa.DataType, where: str) -> pa.Array:
    """Cast `array` to `kind`, nested types level by level: Arrow's own cast cannot add fields to a struct."""
    have = array.type
    if have == kind:
        return array
    if array.null_count == len(array):
        return pa.nulls(len(array), kind)
    if isinstance(have, pa.BaseExtensionType):
        return conform_array(array.storage, kind, where)
    if pa.types.is_dictionary(have):
        return conform_array(array.dictionary_decode(), kind, where)
    if pa.types.is_run_end_encoded(have):
        return conform_array(pc.run_end_decode(array), kind, where)
    if pa.types.is_struct(have) and pa.types.is_struct(kind):
        parts = [_conform_field(array, field, where) for field in kind]
        return struct_array(parts, list(kind), array)
    if _is_list(have) and _is_list(kind):
        return _conform_list(array, kind, where)
    if pa.types.is_map(have) and pa.types.is_map(kind):
        offsets, entries = list_parts(array)
        keys = conform_array(entries.field(0), kind.key_type, where)
        items = conform_array(entries.field(1), kind.item_type, where)
        made = pa.MapArray.from_arrays(offsets, keys, items, type=kind)
        return with_nulls_of(array, made)
    if pa.types.is_string(have) and pa.types.is_struct(kind) and _only_empty_objects(array):
        return struct_array([pa.nulls(len(array), field.type) for field in kind], list(kind), array)
    if pa.types.is_struct(have) and not have.num_fields and pa.types.is_string(kind):
        return pc.if_else(array.is_valid(), "{}", pa.scalar(None, kind))
    try:
        return array.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise SinkError(
            f"column `{where}` holds {have} values that cannot be written as {kind}: {error}",
            hint="convert the column in a step before the sink, or leave it out with fields=[...]",
        ) from error


def struct_array(parts: Sequence[pa.Array], fields: list[pa.Field], nulls: pa.Array) -> pa.Array:
    """Return a struct of `parts` that is null where `nulls` is."""
    if not fields:
        bits = None if not nulls.null_count else pa.array(nulls.is_valid()).buffers()[1]
        return pa.Array.from_buffers(pa.struct([]), len(nulls), [bits])
    return pa.StructArray.from_arrays(parts, fields=fields, mask=nulls.is_null() if nulls.null_count else None)


def list_parts(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the offsets, from zero, and the values of a list or map array, even if it is a slice; null rows are empty."""
    lengths = pc.fill_null(pc.list_value_length(_as_list(array)), 0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(array) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    large = pa.types.is_large_list(array.type)
    return pa.array(offsets, type=pa.int64() if large else pa.int32()), _as_list(array).flatten()


def with_nulls_of(array: pa.Array, made: pa.Array) -> pa.Array:
    """Return `made`, with nulls where `array` is null."""
    if not array.null_count:
        return made
    return pc.if_else(array.is_valid(), made, pa.scalar(None, made.type))


def encode_schema(schema: pa.Schema) -> str:
    """Serialize a schema for the ledger."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def decode_schema(text: str) -> pa.Schema:
    """Parse the text of `encode_schema`."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def widest(schemas: Sequence[str]) -> str:
    """The text of the schema that rows of all these fit into."""
    return encode_schema(merge_schemas(decode_schema(schema) for schema in schemas))


def _conform_field(array: pa.Array, field: pa.Field, where: str) -> pa.Array:
    index = array.type.get_field_index(field.name)
    if index < 0:
        return pa.nulls(len(array), field.type)
    return conform_array(array.field(index), field.type, f"{where}.{field.name}")


def _conform_list(array: pa.Array, kind: pa.DataType, where: str) -> pa.Array:
    if pa.types.is_fixed_size_list(kind):
        if not pa.types.is_fixed_size_list(array.type) or array.type.list_size != kind.list_size:
            raise SinkError(f"column `{where}` holds {array.type} values that cannot be written as {kind}")
        size = kind.list_size
        values = conform_array(
            array.values.slice(array.offset * size, len(array) * size), kind.value_type, f"{where}[]"
        )
        mask = array.is_null() if array.null_count else None
        return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=mask)
    offsets, values = list_parts(array)
    values = conform_array(values, kind.value_type, f"{where}[]")
    make = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    offsets = offsets.cast(pa.int64() if pa.types.is_large_list(kind) else pa.int32())
    return make.from_arrays(offsets, values, type=kind, mask=array.is_null() if array.null_count else None)


def _as_list(array: pa.Array) -> pa.Array:
    """View a map array as a list of structs."""
    if not pa.types.is_map(array.type):
        return array
    entry = pa.struct([array.type.key_field, array.type.item_field])
    return array.cast(pa.list_(pa.field("entries", entry, nullable=False)))


def _only_empty_objects(array: pa.Array) -> bool:
    return bool(pc.all(pc.equal(array, "{}"), skip_nulls=True).as_py())


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
