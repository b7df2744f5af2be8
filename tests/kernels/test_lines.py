"""Compare counts of characters, lines, sentences and paragraphs with reference implementations."""

# ruff: noqa: RUF001

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.kernels.lines import TEXT_FIELDS
from tamis.text.segment import LineCopies, LineStats, text_stats
from tests import naive

pieces = ["\n", "\n", "\n\n", " ", "  ", "\r\n", "word", "Word.", "word.", "...", "…", "- x", "* y", "• z", "●", "read more",
          "http://a.bc/d", ". . .", "你好。", "Why?", '"', ")", "3.5", "{", "#", "\u00a0", "end!"]  # fmt: skip
texts = st.one_of(
    st.text(st.sampled_from(naive.ALPHABET), max_size=60),
    st.lists(st.sampled_from(pieces), max_size=25).map("".join),
    st.lists(st.sampled_from(["same line", "other line.", "", " same line", "last…"]), max_size=12).map("\n".join),
)


def compare(text: str, found: dict[str, int]) -> None:
    expected = naive.text_stats(text)
    assert found == {name: expected[name] for name in TEXT_FIELDS}


@settings(deadline=None, max_examples=400)
@given(st.lists(texts, min_size=1, max_size=3))
def test_text_statistics_match_the_reference(rows: list[str]) -> None:
    found = text_stats(pa.array(rows, pa.string()))
    for row, text in enumerate(rows):
        compare(text, {name: int(array[row]) for name, array in found.items()})


@pytest.mark.parametrize("text", [*naive.SAMPLES, *naive.ODD, "\u0901  "])
def test_text_statistics_of_samples(text: str) -> None:
    found = text_stats(pa.array(["before", text, "after"]).slice(1, 1))
    compare(text, {name: int(array[0]) for name, array in found.items()})


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three?", 3),
        ("Dr. No is 3.5 m tall, e.g. today.", 2),  # "Dr." counts as a sentence
        ("He left... and came back.", 1),
        ("He left... Then he came back.", 2),
        ('"Stop!" he said.', 2),
        ("够了吗？没有人知道。", 2),
        ("क्या? हाँ।", 2),
        ("no stop\nno stop either", 2),
        ("...\n!!!\n", 0),
        ("", 0),
    ],
)
def test_sentences(text: str, sentences: int) -> None:
    assert text_stats(pa.array([text]))["sentences"].tolist() == [sentences]


def test_short_lines_with_another_limit() -> None:
    column = pa.array(["abc\nabcd\n\n  \nab", None])
    assert LineStats(3)(column)["short_lines"].tolist() == [2, 0]


@pytest.mark.parametrize("unit", [".", " ", "\n", "http://", "a\n", ". ", "-\n", "“", "你", "\r\n", ":", "://"])
def test_a_long_repetitive_text_takes_linear_time(unit: str) -> None:
    size = 2_000_000 // len(unit)
    found = text_stats(pa.array([unit * size]))
    assert found["chars"].tolist() == [size * len(unit)]


@settings(deadline=None, max_examples=150)
@given(st.lists(texts, max_size=3))
def test_trimmed_lines_match_the_reference(rows: list[str]) -> None:
    found = LineCopies(trim=True)(pa.array(rows, pa.string()))
    for row, text in enumerate(rows):
        expected = naive.text_stats(text)
        assert {name: array[row] for name, array in found.items()} == {
            name: expected[f"trimmed_line_{name}"] for name in ("chars", "all", "all_chars")
        }
