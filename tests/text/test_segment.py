"""Words as users choose them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tamis.errors import OperatorError
from tamis.text.segment import buffers, ratio, split_words, word_stats


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("whitespace", ["Hello,", "世界!「你好」", "x2"]),
        ("auto", ["Hello,", "世", "界!「", "你", "好」", "x2"]),
        ("unicode", ["Hello", "世", "界", "你", "好", "x2"]),
        ("tokens", ["Hello", ",", "世界!「你好", "」", "x2"]),
        ("characters", ["H", "e", "l", "l", "o,", "世", "界!「", "你", "好」", "x", "2"]),
    ],
)
def test_five_ways_to_tell_words_apart(mode: str, expected: list[str]) -> None:
    assert split_words("Hello, 世界!「你好」 x2", mode) == expected  # type: ignore[arg-type]


def test_thai_vowel_signs_stay_with_their_letter() -> None:
    assert split_words("กี่") == ["กี่"]


def test_a_column_of_numbers_is_refused() -> None:
    with pytest.raises(OperatorError, match="int64"):
        buffers(pa.array([1, 2]))


def test_nothing_of_nothing_is_nothing() -> None:
    part = word_stats(pa.array(["", "a"]))["words"]
    assert ratio(part, part).tolist() == [0.0, 1.0]
