"""Rows as lines of JSON."""

import datetime
import decimal
import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.errors import SinkError
from tamis.sinks.encode import encode_rows


def lines(table: pa.Table) -> list[object]:
    text = encode_rows(table).to_pybytes().decode()
    assert text.endswith("\n") or not text
    return [json.loads(line) for line in text.split("\n")[:-1]]


LEAVES = st.sampled_from(
    [
        (pa.string(), st.text(max_size=20)),
        (pa.large_string(), st.text(max_size=20)),
        (pa.string_view(), st.text(max_size=20)),
        (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
        (pa.uint64(), st.integers(0, 2**64 - 1)),
        (pa.int8(), st.integers(-128, 127)),
        (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
        (pa.float32(), st.floats(allow_nan=False, allow_infinity=False, width=32)),
        (pa.bool_(), st.booleans()),
        (pa.null(), st.none()),
    ]
)


def nested(inner):
    def of_list(pair):
        return pa.list_(pair[0]), st.lists(st.none() | pair[1], max_size=3)

    def of_struct(pairs):
        fields = {f"k{i}": pair for i, pair in enumerate(pairs)}
        kind = pa.struct([(name, pair[0]) for name, pair in fields.items()])
        return kind, st.fixed_dictionaries({name: st.none() | pair[1] for name, pair in fields.items()})

    return inner.map(of_list) | st.lists(inner, max_size=3).map(of_struct)


@st.composite
def tables(draw):
    columns = draw(st.lists(st.recursive(LEAVES, nested, max_leaves=4), min_size=1, max_size=4))
    names = draw(st.lists(st.text(max_size=5), min_size=len(columns), max_size=len(columns), unique=True))
    rows = draw(st.integers(0, 6))
    arrays = [
        pa.array(draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), type=kind)
        for kind, values in columns
    ]
    start = draw(st.integers(0, rows))
    return pa.table(arrays, names=names).slice(start, draw(st.integers(0, rows)))


@settings(deadline=None, max_examples=300)
@given(tables())
def test_each_line_reads_back_as_its_row(table):
    assert lines(table) == table.to_pylist()


def test_lines_are_compact_and_keys_stand_in_column_order():
    table = pa.table({"b": ["x"], "a": [1], "é": [[{"q": 1.0}]]})
    assert encode_rows(table).to_pybytes().decode() == '{"b":"x","a":1,"é":[{"q":1.0}]}\n'


def test_columns_in_several_chunks_are_joined():
    table = pa.concat_tables([pa.table({"a": ["x"]}), pa.table({"a": ["y", None]})])
    assert lines(table) == [{"a": "x"}, {"a": "y"}, {"a": None}]


def test_rows_without_columns_are_empty_objects():
    assert encode_rows(pa.table({"a": [1, 2]}).select([])).to_pybytes() == b"{}\n{}\n"


def test_no_rows_give_no_bytes():
    assert encode_rows(pa.table({"a": pa.array([], pa.string())})).to_pybytes() == b""


def test_what_is_not_a_number_is_null_at_any_depth():
    nan, inf = float("nan"), float("inf")
    assert lines(pa.table({"a": [nan, inf, -inf, 0.5], "b": [[nan], [inf], None, [0.5]]})) == [
        {"a": None, "b": [None]},
        {"a": None, "b": [None]},
        {"a": None, "b": None},
        {"a": 0.5, "b": [0.5]},
    ]


def test_floats_keep_every_digit_and_their_point():
    table = pa.table({"a": [1.0, 0.1, 1e22, 5e-324, -0.0]})
    text = encode_rows(table).to_pybytes().decode().split()
    assert text == ['{"a":1.0}', '{"a":0.1}', '{"a":1e+22}', '{"a":5e-324}', '{"a":-0.0}']


def test_binary_is_base64_at_any_depth():
    table = pa.table({"a": pa.array([b"\x00\xff", None]), "b": pa.array([[b"hi"], []])})
    assert lines(table) == [{"a": "AP8=", "b": ["aGk="]}, {"a": None, "b": []}]


def test_times_are_iso_8601():
    moment = datetime.datetime(2024, 2, 29, 12, 30, 15, 250000)
    table = pa.table(
        {
            "naive": pa.array([moment], pa.timestamp("us")),
            "zoned": pa.array([moment.replace(tzinfo=datetime.UTC)], pa.timestamp("ms", "Europe/Paris")),
            "nano": pa.array([1], pa.timestamp("ns")),
            "date": [moment.date()],
            "time": [moment.time()],
            "span": pa.array([1500], pa.duration("ms")),
            "deep": pa.array([[{"at": moment}]]),
        }
    )
    assert lines(table) == [
        {
            "naive": "2024-02-29T12:30:15.250000",
            "zoned": "2024-02-29T12:30:15.250Z",
            "nano": "1970-01-01T00:00:00.000000001",
            "date": "2024-02-29",
            "time": "12:30:15.250000",
            "span": 1500,
            "deep": [{"at": "2024-02-29T12:30:15.250000"}],
        }
    ]


def test_decimals_are_text_with_every_digit():
    assert lines(pa.table({"a": [decimal.Decimal("12345678901234567890.10")]})) == [{"a": "12345678901234567890.10"}]


def test_maps_with_text_keys_are_objects_and_others_are_pairs():
    words = pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.int64()))
    numbers = pa.array([[(1, [("x", None)])], [], None], pa.map_(pa.int64(), pa.map_(pa.string(), pa.int64())))
    assert lines(pa.table({"words": words, "numbers": numbers})) == [
        {"words": {"a": 1}, "numbers": [[1, {"x": None}]]},
        {"words": {}, "numbers": []},
        {"words": None, "numbers": None},
    ]


def test_dictionaries_run_lengths_and_fixed_lists_are_written_by_value():
    runs = pa.RunEndEncodedArray.from_arrays([2, 3], ["x", None])
    table = pa.table(
        {
            "dictionary": pa.array(["a", None, "a"]).dictionary_encode(),
            "runs": runs,
            "pair": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)),
        }
    )
    assert lines(table.slice(1)) == [
        {"dictionary": None, "runs": "x", "pair": None},
        {"dictionary": "a", "runs": None, "pair": [3, 4]},
    ]


def test_a_type_without_a_form_in_json_is_named():
    table = pa.table({"meta": pa.array([{"gap": pa.MonthDayNano([1, 2, 3])}])})
    with pytest.raises(SinkError, match=r"`meta.gap` is month_day_nano_interval"):
        encode_rows(table)
