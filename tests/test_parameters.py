from collections.abc import Mapping, Sequence
from typing import Literal

import pytest

from tamis.errors import ParameterError
from tamis.parameters import fits, format_bytes, parse_bytes, type_name


@pytest.mark.parametrize(
    ("text", "size"),
    [("256MB", 256_000_000), ("1GiB", 2**30), ("1.5 kb", 1500), ("12", 12), (7, 7), ("2T", 2 * 10**12)],
)
def test_sizes_are_parsed_from_text(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MB", "12 parsecs", "-3MB", "0", 0, -1, "1e9"])
def test_invalid_sizes_are_refused(text):
    with pytest.raises(ParameterError):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2e9, "2.0 GB"), (3e12, "3.0 TB")]
)
def test_sizes_are_formatted_for_reading(size, text):
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (1, int, True),
        (True, int, False),
        (1, float, True),
        ("1", int, False),
        (None, int | None, True),
        (["a"], Sequence[str], True),
        ("a", Sequence[str], False),
        ([1], Sequence[str], False),
        ({"a": "b"}, Mapping[str, str], True),
        ({"a": 1}, Mapping[str, str], False),
        ("x", Literal["x", "y"], True),
        ("z", Literal["x", "y"], False),
    ],
)
def test_values_are_checked_against_annotations(value, annotation, expected):
    assert fits(value, annotation) is expected


def test_types_are_named_as_in_annotations():
    assert type_name(int | None) == "int or None"
    assert type_name(Literal["a", "b"]) == "one of 'a', 'b'"
