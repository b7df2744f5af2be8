"""The part of JSON Schema that answers are checked against."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.errors import ParameterError
from tamis.models.structured import MAX_QUOTED_CHARS, AnswerError, arrow_type, object_schema, read_answer


def read(value: object, **columns: object) -> dict[str, object]:
    return read_answer(json.dumps(value), object_schema(columns))


@pytest.mark.parametrize(
    ("value", "column", "problem"),
    [
        (6, {"type": "integer", "maximum": 5}, "`x` must be <= 5, got 6"),
        (-1, {"type": "integer", "minimum": 0}, "`x` must be >= 0, got -1"),
        (1.5, "integer", "`x` must be an integer, got float"),
        (True, "integer", "`x` must be an integer, got bool"),
        (2**63, "integer", "`x` must be an integer, got int"),
        (10**400, "integer", "`x` must be an integer, got int"),
        (10**400, "number", "`x` must be a number, got int"),
        ("4", "number", "`x` must be a number, got str"),
        ("\ud83d", "string", "`x` is not valid Unicode"),
        (None, "string", "`x` must be a string, got null"),
        ("c", {"enum": ["a", "b"]}, "`x` must be one of a, b, got c"),
        ("abc", {"type": "string", "maxLength": 2}, "`x` must be <= 2 characters, got 3"),
        ("abc", {"type": "string", "pattern": "^b"}, "`x` does not match '^b'"),
        ([1, "a"], {"type": "array", "items": "integer"}, "`x`[1] must be an integer, got str"),
        ([], {"type": "array", "items": "integer", "minItems": 1}, "`x` must be >= 1 items, got 0"),
        (
            {"y": 1, "z": 2},
            {"type": "object", "properties": {"y": "integer"}},
            "`x` has `z`, which the schema does not",
        ),
        ({}, {"type": "object", "properties": {"y": "integer"}}, "`y` must be an integer, got null"),
    ],
)
def test_a_value_that_does_not_match_is_named(value, column, problem):
    with pytest.raises(AnswerError) as raised:
        read({"x": value}, x=column)
    assert raised.value.message.startswith(problem)


@pytest.mark.parametrize(
    "text", ["", "yes", "{", '{"x": 1} {"x": 1}', '{"x": NaN}', '{"x": Infinity}', "[1]", "null", '"x"']
)
def test_other_texts_are_refused(text):
    with pytest.raises(AnswerError):
        read_answer(text, object_schema({"x": "number"}))


def test_a_fence_around_the_object_is_removed_and_nothing_else():
    schema = object_schema({"x": "integer"})
    assert read_answer('```json\n{"x": 1}\n```\n', schema) == read_answer(' {"x": 1.0}', schema) == {"x": 1}
    with pytest.raises(AnswerError, match="not JSON"):
        read_answer('Here you are: {"x": 1}', schema)


def test_a_long_answer_is_quoted_in_part():
    with pytest.raises(AnswerError) as raised:
        read_answer("blah " * 10_000, object_schema({"x": "integer"}))
    assert len(raised.value.message) < MAX_QUOTED_CHARS + 100
    nested = "[" * 100_000
    with pytest.raises(AnswerError):
        read_answer(nested, object_schema({"x": "integer"}))


def test_a_property_that_may_be_null_may_be_missing():
    assert read({}, x={"type": ["integer", "null"]}) == {"x": None}


@pytest.mark.parametrize(
    "column",
    [7, "float", {}, {"type": ["string", "integer"]}, {"type": "null"}, {"$ref": "#"}, {"type": "string", "format": "date"},
     {"type": "array"}, {"type": "object"}, {"type": "string", "pattern": "("}, {"type": "integer", "minimum": "0"},
     {"enum": []}, {"enum": [1, 2]}, {"type": "integer", "enum": [1, None]},
     {"type": "object", "properties": {}, "required": ["a"]}],
)  # fmt: skip
def test_what_is_not_checked_is_not_accepted(column):
    with pytest.raises(ParameterError):
        object_schema({"x": column})


COLUMNS = {
    "n": {"type": ["integer", "null"]},
    "s": "string",
    "f": "number",
    "b": "boolean",
    "a": {
        "type": "array",
        "items": {"type": "object", "properties": {"t": "string", "l": {"type": ["number", "null"]}}},
    },
}
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@given(
    st.fixed_dictionaries(
        {
            "n": st.none() | st.integers(-(2**63), 2**63 - 1),
            "s": TEXTS,
            "f": NUMBERS,
            "b": st.booleans(),
            "a": st.lists(st.fixed_dictionaries({"t": TEXTS, "l": st.none() | NUMBERS})),
        }
    )
)
def test_values_that_match_reach_a_column_unchanged(value):
    schema = object_schema(COLUMNS)
    found = read_answer(json.dumps(value), schema)
    column = pa.array([found], arrow_type(schema))
    assert found == value
    assert column.to_pylist() == [value]
