"""What the JSON parser makes of good, odd and bad lines."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.sources.jsonl import JsonlParser, quote_values
from tamis.sources.lines import Frame, Lines, Text


def parse(data: bytes | str, schema: dict | None = None, **options):
    """(table, kept line numbers, {line: error})"""
    data = data.encode() if isinstance(data, str) else data
    errors: dict[int, str] = {}
    parser = JsonlParser(pa.schema(list((schema or {}).items())), **options)
    lines = Lines.of(Text(data, 0, len(data), (Frame(0, 0, "p"),)))
    table, kept = parser.parse(lines, lambda line, error: errors.setdefault(line, error))
    assert sorted([*kept.tolist(), *errors]) == list(range(len(lines)))
    assert table.num_rows == len(kept)
    return table, kept.tolist(), errors


@pytest.mark.parametrize(
    "line",
    [
        '{"x": "2020-01-01"}',
        '{"x": ["2020-01-01T10:00:00"]}',
        '{"x": {"a": [{"b": "2021-05-05"}]}}',
        '{"x": "12:00:00"}',
    ],
)
def test_strings_that_look_like_times_stay_strings(line):
    table, _, errors = parse(line)
    assert table.to_pylist() == [json.loads(line)]
    assert errors == {}


def test_a_date_in_a_column_that_was_null_in_the_sample_stays_a_string():
    table, _, _ = parse('{"x": "2020-01-01", "n": 1}', {"x": pa.null(), "n": pa.int64()})
    assert table.to_pylist() == [{"x": "2020-01-01", "n": 1}]


def test_a_dataset_learns_once_that_a_column_is_text():
    parser = JsonlParser(pa.schema([]))
    for value, expected in (("2020-01-01", "2020-01-01"), ("not a date", "not a date")):
        data = json.dumps({"x": value}).encode()
        table, _ = parser.parse(Lines.of(Text(data, 0, len(data), (Frame(0, 0, "p"),))), pytest.fail)
        assert table.column("x").to_pylist() == [expected]


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ('{"x": 1', "does not end with }"),
        ('{"x": }', "not JSON"),
        ("{x: 1}", "not JSON"),
        ('{"x": 1} {"x": 2}', "has 2"),
        ('{"x": 1} junk }', "not JSON"),
        ("[1, 2]", "a list"),
        ('"text"', "a string"),
        ("17", "something else"),
        ("null", "something else"),
        ('{"x": 1, "x": 2}', "`x` occurs twice"),
        ('{"t": "\\ud800"}', "surrogate"),
        ('{"t": "a\0b"}', "NUL"),
        ('{"t": "a\tb"}', "not JSON"),
        ('{"x": "s"}', 'column `x` is int64 in this dataset, this row has a string (types={"x": "string"}'),
        ('{"x": [1]}', "has a list"),
        ('{"x": 1e999}', "not JSON"),
        ('{"x": 12345678901234567890123}', "does not fit 64 bits"),
        ('{"t": 5}', "column `t` is string in this dataset, this row has a number"),
        ('{"x": 1]', "does not end"),
    ],
)
@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_bad_line_fails_alone_with_plain_words(bad, word, position):
    lines = ['{"x": 1, "t": "a"}', '{"x": 2, "t": "b"}']
    lines.insert(position, bad)
    table, _, errors = parse("\n".join(lines), {"x": pa.int64(), "t": pa.string()})
    assert list(errors) == [position]
    assert word in errors[position]
    assert table.to_pylist() == [{"x": 1, "t": "a"}, {"x": 2, "t": "b"}]


def test_lines_that_are_not_utf8_fail_alone():
    table, _, errors = parse(b'{"t": "a"}\n{"t": "\xff\xfe"}\n{"t": "\xc3\xa9"}\n{"t": "\xed\xa0\x80"}\n')
    assert table.to_pylist() == [{"t": "a"}, {"t": "é"}]
    assert list(errors) == [1, 3]
    assert errors[1].startswith("not UTF-8: invalid start byte at byte 7")


def test_an_object_over_two_lines_and_two_on_one_line_do_not_cancel_out():
    table, _, errors = parse('{"x": 1}{"x": 2}\n{"x":\n3}\n{"x": 4}')
    assert table.to_pylist() == [{"x": 4}]
    assert list(errors) == [1, 2, 0]


def test_half_of_the_lines_bad_costs_only_those():
    lines = [f'{{"x": {i}}}' if i % 2 else f'{{"x": {i}' + ', "y": }' for i in range(1000)]
    table, _, errors = parse("\n".join(lines))
    assert table.column("x").to_pylist() == list(range(1, 1000, 2))
    assert len(errors) == 500


def test_escaped_nul_and_nan_are_values():
    table, _, errors = parse('{"t": "a\\u0000b", "x": NaN}\n{"t": "", "x": 1}')
    assert table.column("t").to_pylist() == ["a\0b", ""]
    assert str(table.column("x").to_pylist()) == "[nan, 1.0]"
    assert errors == {}


def test_blank_lines_crlf_and_indentation_are_no_trouble():
    table, kept, errors = parse('\r\n  {"x": 1}  \r\n\n \t \n\t{"x": 2}\r\n')
    assert table.to_pylist() == [{"x": 1}, {"x": 2}]
    assert kept == [0, 1]
    assert errors == {}


def test_empty_objects_are_rows():
    assert parse("{}\n{}\n{}")[0].num_rows == 3
    assert parse("{}\n{}", {"x": pa.int64()})[0].to_pylist() == [{"x": None}, {"x": None}]


def test_nothing_wanted_still_counts_rows_and_finds_bad_ones():
    table, kept, errors = parse('{"x": 1}\n{"x": \n{"x": 2}', {"x": pa.int64()}, wanted=[])
    assert (table.num_rows, table.num_columns, kept, list(errors)) == (2, 0, [0, 2], [1])


def test_wanted_columns_alone_are_parsed():
    table, _, errors = parse('{"x": 1, "y": 2}\n{"x": 3, "y": "s"}', {"x": pa.int64(), "y": pa.int64()}, wanted=["x"])
    assert table.to_pylist() == [{"x": 1}, {"x": 3}]
    assert errors == {}


def test_wanted_columns_keep_what_the_sample_did_not_know():
    schema = {"a": pa.null(), "s": pa.struct([("k", pa.int64())]), "z": pa.int64()}
    table, _, _ = parse('{"a": "new", "s": {"k": 1, "new": true}, "z": 5, "q": 1}', schema, wanted=["a", "s"])
    assert table.to_pylist() == [{"a": "new", "s": {"k": 1, "new": True}}]


def test_declared_types_of_columns_that_are_not_wanted_keep_their_rows():
    schema = {"s": pa.struct([("k", pa.int64())]), "y": pa.string()}
    lines = '{"s": {"k": 1}, "y": 2}\n{"s": {"k": 2}, "y": [3]}'
    table, _, errors = parse(lines, schema, wanted=["s"], declared={"y": "json"})
    assert table.to_pylist() == [{"s": {"k": 1}}, {"s": {"k": 2}}]
    assert errors == {}


def test_columns_of_the_schema_come_first_and_new_ones_are_kept():
    table, _, _ = parse('{"new": [1], "b": 1}', {"a": pa.string(), "b": pa.int64(), "c": pa.null()})
    assert table.to_pylist() == [{"a": None, "b": 1, "c": None, "new": [1]}]
    assert table.schema.field("a").type == pa.string()


def test_fractions_make_an_integer_column_double_and_integers_suit_a_double_one():
    schema = {"x": pa.int64(), "y": pa.float64(), "z": pa.int64()}
    table, _, errors = parse('{"x": 1, "y": 1, "z": 7}\n{"x": 2.5, "y": 2, "z": 8}\n{"x": 1.0}', schema)
    assert table.to_pylist()[1] == {"x": 2.5, "y": 2.0, "z": 8}
    assert [str(kind) for kind in table.schema.types] == ["double", "double", "int64"]
    assert errors == {}


def test_fractions_within_lists_and_objects_are_taken_too():
    schema = {"v": pa.list_(pa.int64()), "s": pa.struct([("k", pa.int64())])}
    table, _, errors = parse('{"v": [1, 2.5], "s": {"k": 0.5}}', schema)
    assert table.to_pylist() == [{"v": [1.0, 2.5], "s": {"k": 0.5}}]
    assert errors == {}


@pytest.mark.parametrize("known", [{}, {"x": pa.int64()}, {"x": pa.float64()}])
def test_integers_beyond_64_bits_fail_and_are_not_rounded(known):
    table, _, errors = parse('{"x": 1}\n{"x": 18446744073709551615}\n{"x": 9223372036854775807}\n{"x": -5}', known)
    assert list(errors) == [1]
    assert 'types={"x": "string"}' in errors[1]
    if known.get("x") != pa.float64():
        assert table.column("x").to_pylist() == [1, 2**63 - 1, -5]


def test_huge_integers_within_lists_fail_and_huge_floats_do_not():
    table, _, errors = parse('{"v": [1, 99999999999999999999]}\n{"v": [1e300]}\n{"v": [2]}')
    assert list(errors) == [0]
    assert table.column("v").to_pylist() == [[1e300], [2.0]]


def test_a_value_of_another_kind_within_an_object_fails_its_row():
    table, _, errors = parse('{"s": {"k": 1}}\n{"s": {"k": "x"}}', {"s": pa.struct([("k", pa.int64())])})
    assert table.to_pylist() == [{"s": {"k": 1}}]
    assert "at s/k" in errors[1]


def test_in_a_new_column_the_first_kind_seen_decides():
    table, _, errors = parse('{"x": 1}\n{"x": "a"}\n{"x": 2}')
    assert table.to_pylist() == [{"x": 1}, {"x": 2}]
    assert list(errors) == [1]


@pytest.mark.parametrize(
    "value",
    [
        [None, None],
        [None, 1],
        [None, None, "2020-01-01"],
        [[None], [None, None]],
        {"a": [None, {"b": [None, 2.5]}]},
        [{"a": None}] * 3,
    ],
)
def test_nulls_at_the_beginning_of_lists_are_kept(value):
    rows = [{"x": value, "y": 1}, {"x": None, "y": 2}, {"x": value, "y": 3}]
    table, _, errors = parse("\n".join(map(json.dumps, rows)))
    table.validate(full=True)
    assert table.to_pylist() == rows
    assert errors == {}


def test_declared_strings_keep_digits_and_declared_json_keeps_text():
    data = (
        '{"id": 18446744073709551616, "m": {"a": 1.10}}\n{"id": "7", "m": "s"}\n{"id": null, "m": null}\n{"id": true}'
    )
    table, _, errors = parse(data, declared={"id": "string", "m": "json"})
    assert table.column("id").to_pylist() == ["18446744073709551616", "7", None, "true"]
    assert table.column("m").to_pylist() == ['{"a": 1.10}', '"s"', None, None]
    assert errors == {}


def test_declared_strings_do_not_hide_a_broken_line():
    table, _, errors = parse('{"id": 5}\n{"id": 6\n{"id": 7, }\n{"id": 8}', declared={"id": "string"})
    assert table.column("id").to_pylist() == ["5", "8"]
    assert list(errors) == [1, 2]


def test_a_declared_type_is_kept_and_what_does_not_fit_fails():
    table, _, errors = parse('{"x": 1}\n{"x": 300}\n{"x": 2.5}\n{"x": 3}', declared={"x": "int8"})
    assert table.schema.field("x").type == pa.int8()
    assert table.column("x").to_pylist() == [1, 3]
    assert list(errors) == [1, 2]


def test_unsigned_and_time_types_can_be_declared():
    table, _, _ = parse('{"x": 18446744073709551615, "d": "2020-01-01"}', declared={"x": "uint64", "d": "timestamp[s]"})
    assert table.column("x").to_pylist() == [2**64 - 1]
    assert pa.types.is_timestamp(table.schema.field("d").type)


def test_lines_over_the_maximum_fail_with_their_size():
    table, _, errors = parse('{"t": "a"}\n{"t": "' + "b" * 100 + '"}', max_line_bytes=50)
    assert table.num_rows == 1
    assert errors == {1: "the line is 109 bytes long, more than max_line_bytes=50"}


def test_quoting_leaves_strings_nulls_and_other_keys_alone():
    line = ' { "a" : [1, "}"] , "b\\"c": {"a": 2}, "d":"x", "e": null } '
    assert json.loads(quote_values(line, ["a"], ["d", "e"])) == {
        "a": '[1, "}"]', 'b"c': {"a": 2}, "d": "x", "e": None,
    }  # fmt: skip


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from("abc"), values, max_size=3), min_size=1, max_size=6))
def test_whatever_is_kept_is_what_was_written(rows):
    data = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    table, kept, _ = parse(data)
    for line, got in zip(kept, table.to_pylist(), strict=True):
        for key, value in rows[line].items():
            assert same(got[key], value)


def same(got: object, value: object) -> bool:
    """Equal, but for keys that other rows have and numbers that are double because other rows' are."""
    if isinstance(value, dict):
        return isinstance(got, dict) and all(same(got[key], inner) for key, inner in value.items())
    if isinstance(value, list):
        return isinstance(got, list) and len(got) == len(value) and all(map(same, got, value))
    return got == value
