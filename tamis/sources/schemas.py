"""One schema for all files, and tables converted to it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.errors import SourceError, did_you_mean
from tamis.features import features_of, merged_features, with_features
from tamis.media import with_media_types


def unify(schemas: Sequence[tuple[str, pa.Schema]], reader: str) -> pa.Schema:
    """One schema for all files, or an error that names a column and two files with conflicting types."""
    result = pa.schema([])
    homes: dict[str, str] = {}
    for path, schema in schemas:
        try:
            result = pa.unify_schemas([result, schema], promote_options="permissive")
        except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
            for spec in schema:
                known = result.field(spec.name).type if spec.name in result.names else None
                if known is not None and not _agree(known, spec.type):
                    raise SourceError(
                        f"column `{spec.name}` is {known} in {homes[spec.name]} and {spec.type} in {path}",
                        hint=f'declare its type: {reader}(..., types={{"{spec.name}": "string"}})'
                        if reader in ("JsonlReader", "CsvReader")
                        else "read these files in separate runs",
                    ) from error
            raise SourceError(f"the columns of {path} conflict with those of earlier files: {error}") from error
        for name in schema.names:
            homes.setdefault(name, path)
    return with_features(result, merged_features(schema for _, schema in schemas))


def _agree(one: pa.DataType, other: pa.DataType) -> bool:
    try:
        pa.unify_schemas([pa.schema([("x", one)]), pa.schema([("x", other)])], promote_options="permissive")
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return False
    return True


def missing_column(reader: str, parameter: str, name: str, there: Sequence[str]) -> SourceError:
    """The error for a column that was named but does not exist."""
    near = did_you_mean(name, there)
    hint = near or f"the files have: {', '.join(there[:20]) or 'no columns'}"
    if reader == "JsonlReader":
        hint += f'; if it is rare, declare it: types={{"{name}": "string"}}'
    return SourceError(f"the files have no column `{name}`, which `{parameter}` of {reader} names", hint=hint)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type without encodings that operators do not handle: dictionaries, views, extensions.

    The fields of a media column are typed even if they are always null.
    """
    return with_media_types(_plain_type(kind))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([spec.with_type(plain_type(spec.type)) for spec in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(plain_type(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(plain_type(kind.value_type)))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(plain_type(kind.value_type)), kind.list_size)
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), kind.item_field.with_type(plain_type(kind.item_type)))
    if pa.types.is_list_view(kind):
        return pa.list_(kind.value_field.with_type(plain_type(kind.value_type)))
    if pa.types.is_large_list_view(kind):
        return pa.large_list(kind.value_field.with_type(plain_type(kind.value_type)))
    return kind


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema in plain types, with the features of a Hugging Face dataset and no other metadata."""
    fields = pa.schema([pa.field(spec.name, plain_type(spec.type)) for spec in schema])
    return with_features(fields, features_of(schema))


def plain(table: pa.Table) -> pa.Table:
    """The table in plain types, with the features of a Hugging Face dataset and no other metadata."""
    schema = plain_schema(table.schema)
    if not len(schema):
        return table
    if table.schema.types == schema.types:
        return table.replace_schema_metadata(schema.metadata)
    columns = [_decoded(column) for column in table.columns]
    # Arrow's cast damages lists of lists of nulls, even to their own type.
    return pa.Table.from_arrays(
        [
            column if column.type == spec.type else column.cast(spec.type)
            for column, spec in zip(columns, schema, strict=True)
        ],
        schema=schema,
    )


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column without run-end encoding and views of lists, at any depth. Arrow casts neither of them correctly."""
    if not _holds_uncastable(column.type):
        return column
    chunks = [_rebuilt(chunk) for chunk in column.chunks]
    return pa.chunked_array(chunks, None if chunks else plain_type(column.type))


def _holds_uncastable(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _holds_uncastable(kind.storage_type)
    if pa.types.is_run_end_encoded(kind) or pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return True
    if pa.types.is_dictionary(kind):
        return _holds_uncastable(kind.value_type)
    return any(_holds_uncastable(kind.field(number).type) for number in range(kind.num_fields))


def _rebuilt(array: pa.Array) -> pa.Array:
    kind = array.type
    if not _holds_uncastable(kind):
        return array
    if isinstance(kind, pa.BaseExtensionType):
        return _rebuilt(array.storage)
    if pa.types.is_dictionary(kind):
        return _rebuilt(array.dictionary_decode())
    if pa.types.is_run_end_encoded(kind):
        return _rebuilt(pc.run_end_decode(array))
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(kind):
        parts = [_rebuilt(array.field(number)) for number in range(kind.num_fields)]
        fields = [kind.field(number).with_type(part.type) for number, part in enumerate(parts)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=mask)
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        values = _rebuilt(array.values.slice(array.offset * size, len(array) * size))
        return pa.FixedSizeListArray.from_arrays(
            values, type=pa.list_(kind.value_field.with_type(values.type), size), mask=mask
        )
    if pa.types.is_map(kind):
        offsets, first = pc.subtract(array.offsets, array.offsets[0]), array.offsets[0].as_py()
        keys, items = (_rebuilt(part.slice(first, offsets[-1].as_py())) for part in (array.keys, array.items))
        return pa.MapArray.from_arrays(offsets, keys, items, mask=mask)
    large = pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind)
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        sizes = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
        values = _rebuilt(array.flatten())
        offsets = pa.array(ends, pa.int64() if large else pa.int32())
    else:
        offsets = pc.subtract(array.offsets, array.offsets[0])
        values = _rebuilt(array.values.slice(array.offsets[0].as_py(), offsets[-1].as_py()))
    made, make = (pa.LargeListArray, pa.large_list) if large else (pa.ListArray, pa.list_)
    return made.from_arrays(offsets, values, type=make(kind.value_field.with_type(values.type)), mask=mask)


def cheapest_column(schema: pa.Schema) -> list[str]:
    """A column to read if none is needed: a table without columns loses its number of rows."""
    flat = [spec.name for spec in schema if pa.types.is_primitive(spec.type)]
    return (flat or schema.names)[:1]


def conform(table: pa.Table, schema: pa.Schema, wanted: Sequence[str] | None) -> pa.Table:
    """The table with the columns, order and types of the dataset. Missing columns are null; new ones are kept."""
    known = [spec for spec in schema if wanted is None or spec.name in wanted]
    new = [name for name in table.column_names if name not in schema.names and (wanted is None or name in wanted)]
    columns = {}
    for spec in known:
        if spec.name not in table.column_names:
            columns[spec.name] = pa.nulls(table.num_rows, spec.type)
            continue
        column = table.column(spec.name)
        if column.type != spec.type and not pa.types.is_null(spec.type):
            try:
                column = column.cast(spec.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise ValueError(
                    f"column `{spec.name}` is {spec.type} in this dataset and {column.type} in this file ({error})"
                ) from error
        columns[spec.name] = column
    columns.update({name: table.column(name) for name in new})
    return pa.table(columns) if columns else table.select([])
