"""Schemas that disagree, and tables made to agree."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.errors import SinkError
from tamis.sinks.schemas import conform, decode_schema, encode_schema, merge_schemas, plain


def merged(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    return merge_schemas([pa.schema({"a": one}), pa.schema({"a": other})]).field("a").type


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (pa.null(), pa.string(), pa.string()),
        (pa.int64(), pa.float64(), pa.float64()),
        (pa.int8(), pa.int64(), pa.int64()),
        (pa.list_(pa.null()), pa.list_(pa.string()), pa.list_(pa.string())),
        (pa.list_(pa.float32(), 2), pa.list_(pa.float32(), 2), pa.list_(pa.float32(), 2)),
        (pa.list_(pa.float32(), 2), pa.list_(pa.float32(), 3), pa.list_(pa.float32())),
        (pa.struct([("x", pa.int64())]), pa.struct([]), pa.struct([("x", pa.int64())])),
        (
            pa.list_(pa.struct([("x", pa.int64()), ("y", pa.null())])),
            pa.list_(pa.struct([("y", pa.string()), ("x", pa.float64())])),
            pa.list_(pa.struct([("x", pa.float64()), ("y", pa.string())])),
        ),
        (pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.float64()), pa.map_(pa.string(), pa.float64())),
        (pa.timestamp("s"), pa.timestamp("us"), pa.timestamp("us")),
    ],
)
def test_types_merge_into_the_narrowest_that_holds_both(one, other, both):
    assert merged(one, other) == both
    assert merged(both, other) == merged(both, one) == both


def test_columns_stand_in_order_of_first_appearance():
    schemas = [pa.schema({"b": pa.int64()}), pa.schema({"a": pa.int64(), "b": pa.null()})]
    assert merge_schemas(schemas).names == ["b", "a"]


def test_a_conflict_names_the_column_and_both_types():
    one = pa.schema({"meta": pa.struct([("tags", pa.list_(pa.struct([("n", pa.int64())])))])})
    other = pa.schema({"meta": pa.struct([("tags", pa.list_(pa.struct([("n", pa.string())])))])})
    with pytest.raises(SinkError, match=r"`meta\.tags\[\]\.n` is int64 in some rows and string in others"):
        merge_schemas([one, other])


def test_plain_types_take_the_place_of_their_kin():
    table = pa.table(
        {
            "d": pa.array(["a"]).dictionary_encode(),
            "l": pa.array([["a"]], pa.large_list(pa.large_string())),
            "v": pa.array(["a"], pa.string_view()),
            "r": pa.RunEndEncodedArray.from_arrays([1], pa.array(["a"], pa.large_string())),
            "u": pa.array([b"0123456789abcdef"], pa.uuid()),
        }
    )
    schema = plain(table.schema)
    assert schema.types == [pa.string(), pa.list_(pa.string()), pa.string(), pa.string(), pa.binary(16)]
    assert conform(table, schema).to_pylist() == [{"d": "a", "l": ["a"], "v": "a", "r": "a", "u": b"0123456789abcdef"}]


def test_missing_columns_and_fields_become_null_at_every_depth():
    table = pa.table({"a": [{"x": 1}, None, {"x": None}], "b": [[{"x": 1}], [], None]})
    wide = pa.struct([("y", pa.string()), ("x", pa.float64())])
    schema = pa.schema({"c": pa.int8(), "b": pa.list_(wide), "a": wide})
    assert conform(table, schema).to_pylist() == [
        {"c": None, "b": [{"y": None, "x": 1.0}], "a": {"y": None, "x": 1.0}},
        {"c": None, "b": [], "a": None},
        {"c": None, "b": None, "a": {"y": None, "x": None}},
    ]


def test_slices_conform_to_their_own_rows():
    table = pa.table(
        {
            "lists": pa.array([[1], None, [2, 3], [4]]),
            "pairs": pa.array([[1, 2], None, [3, 4], [5, 6]], pa.list_(pa.int64(), 2)),
            "maps": pa.array([[("a", 1)], None, [("b", 2)], []], pa.map_(pa.string(), pa.int64())),
            "empty": pa.array([{}, None, {}, {}], pa.struct([])),
        }
    )
    schema = pa.schema(
        {
            "lists": pa.list_(pa.float64()),
            "pairs": pa.list_(pa.float64(), 2),
            "maps": pa.map_(pa.string(), pa.float64()),
            "empty": pa.struct([("x", pa.int64())]),
        }
    )
    assert conform(table.slice(1, 2), schema).to_pylist() == [
        {"lists": None, "pairs": None, "maps": None, "empty": None},
        {"lists": [2.0, 3.0], "pairs": [3.0, 4.0], "maps": [("b", 2.0)], "empty": {"x": None}},
    ]


def test_a_null_list_over_hidden_values_loses_them():
    hidden = pa.ListArray.from_arrays(pa.array([0, 2, 3]), pa.array([1, 2, 3]), mask=pa.array([True, False]))
    result = conform(pa.table({"a": hidden}), pa.schema({"a": pa.list_(pa.float64())}))
    assert result.column("a").chunk(0).values.to_pylist() == [3.0]


def test_values_that_do_not_fit_are_refused():
    with pytest.raises(SinkError, match=r"column `a` holds int64 values that cannot be written as double"):
        conform(pa.table({"a": [2**53 + 1]}), pa.schema({"a": pa.float64()}))


def test_an_empty_struct_becomes_text_and_comes_back():
    table = pa.table({"a": pa.array([{}, None], pa.struct([]))})
    text = conform(table, pa.schema({"a": pa.string()}))
    assert text.to_pylist() == [{"a": "{}"}, {"a": None}]
    assert conform(text, table.schema).to_pylist() == table.to_pylist()


def test_a_schema_survives_the_ledger():
    schema = pa.schema({"a": pa.list_(pa.struct([("x", pa.null())])), "b": pa.timestamp("us", "UTC")})
    assert decode_schema(encode_schema(schema)) == schema


values = st.recursive(
    st.none() | st.integers(-1000, 1000) | st.floats(-5, 5),
    lambda inner: st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.dictionaries(st.sampled_from("ab"), values, min_size=1, max_size=2), min_size=2, max_size=4))
def test_rows_keep_their_values_under_the_merged_schema(rows):
    tables = [pa.Table.from_pylist([row]) for row in rows]
    try:
        schema = merge_schemas(table.schema for table in tables)
    except SinkError:
        return  # a number here and an object there
    for table, row in zip(tables, rows, strict=True):
        result = conform(table, schema)
        assert result.schema == schema
        assert _without_nulls(result.to_pylist()[0]) == _without_nulls(row)


def _without_nulls(value):
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value
