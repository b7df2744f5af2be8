"""Compare sentences, and the questionable ones among them, with a reference implementation."""

# ruff: noqa: RUF001

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.text.web import SentenceStats
from tests import naive

Limits = tuple[int, float, int, int, float]

PAPER: Limits = (12, 0.5, 20, 500, 0.2)
NO_LIMIT = 2**60
EACH: dict[str, tuple[Limits, tuple[str, ...]]] = {
    "all": (PAPER, ("Oops", "你")),
    "capitals": ((3, 0.5, 0, NO_LIMIT, 1.0), ()),
    "length": ((NO_LIMIT, 0.5, 4, 9, 1.0), ()),
    "technical": ((NO_LIMIT, 0.5, 0, NO_LIMIT, 0.2), ()),
    "phrases": ((NO_LIMIT, 0.5, 0, NO_LIMIT, 1.0), ("ab", "b.C", "", "é ", ". ")),
}
SPACES = [" ", "\n", "\t\r\n", "\x0b", "\x1c", "\x85", *"\u00a0\u1680\u2003\u2028\u202f\u205f\u3000"]
pieces = [
    ".", "!", "?", "...", "?!", ". ", "! ", "a", "B", "ab", "b.C", "Oops", "Ab", "É", "é", "Жук", "ж", "ǅ", "你", "𝐀", "Ⅳ",
    "0", "(1)", "{+}", "/>", "3.5", "e.g.", "A'b", "”", "«", "…", "。", "\u0301", "\u200d", "\u200dℹ", "_", *SPACES,
]  # fmt: skip
LONG = ["a" * 63, " " * 64, "." * 70, "Word " * 30, "word and Word " * 9, "x1" * 40, "é" * 250, "你" * 170, "!? " * 50]
texts = st.one_of(
    st.lists(st.sampled_from(pieces), max_size=20).map("".join),
    st.text(st.sampled_from(naive.ALPHABET), max_size=60),
    st.lists(st.sampled_from([*pieces, "The", "Cat", "sat"]), max_size=60).map(" ".join),
    st.tuples(st.sampled_from(naive.SAMPLES), st.integers(0, 40), st.integers(0, 120)).map(lambda s: s[0][s[1] : s[2]]),
)
long_texts = st.lists(st.one_of(texts, st.sampled_from(LONG)), max_size=9).map("".join)


def measured(column: pa.Array, limits: Limits, phrases: tuple[str, ...]) -> list[dict[str, int]]:
    found = SentenceStats(limits, phrases)(column)
    return [{name: int(values[row]) for name, values in found.items()} for row in range(len(column))]


@pytest.mark.parametrize("signal", EACH)
def test_sentences_of_samples_match_the_reference(signal: str) -> None:
    rows = [*naive.SAMPLES, *naive.ODD, *(text * 7 for text in naive.SAMPLES), *LONG]
    expected = [naive.sentence_stats(text, *EACH[signal]) for text in rows]
    assert measured(pa.array(rows), *EACH[signal]) == expected


@pytest.mark.parametrize("signal", EACH)
@settings(deadline=None, max_examples=200)
@given(texts)
def test_sentences_match_the_reference(signal: str, text: str) -> None:
    assert measured(pa.array([text]), *EACH[signal]) == [naive.sentence_stats(text, *EACH[signal])]


@pytest.mark.parametrize("signal", EACH)
@settings(deadline=None, max_examples=100)
@given(st.lists(long_texts, max_size=5), st.integers(0, 3))
def test_sentences_do_not_depend_on_the_position_of_rows(signal: str, rows: list[str], skipped: int) -> None:
    """Kernels read 64 bytes at a time; rows, sentences, stops and spaces may start and end anywhere in a block."""
    column = pa.array(rows, pa.string())[skipped:]
    assert measured(column, *EACH[signal]) == [naive.sentence_stats(text, *EACH[signal]) for text in rows[skipped:]]


@pytest.mark.parametrize("space", SPACES, ids=ascii)
@pytest.mark.parametrize("size", range(58, 68))
def test_a_sentence_may_end_at_the_edge_of_a_block(size: int, space: str) -> None:
    rows = ["x" * size + "?!." + space + "Éa 1", "x" * size + "." + space, "x" * size + ".", "x" * size + ".a"]
    assert measured(pa.array(rows), *EACH["all"]) == [naive.sentence_stats(text, *EACH["all"]) for text in rows]
    assert [row["sentences"] for row in measured(pa.array(rows), *EACH["all"])] == [2, 1, 1, 1]


def test_one_sentence_may_be_very_long() -> None:
    found = measured(pa.array(["A" * 3_000_000, "你" * 1_000_000, "Aé " * 500_000, ". " * 500_000]), PAPER, ())
    assert found == [{"sentences": 1, "questionable": 1}] * 3 + [{"sentences": 0, "questionable": 0}]


def test_invalid_utf8_does_not_read_beyond_its_row() -> None:
    raw = b"\xf0\x9fabc. \xe4\xbd" + b".\xc2" + b"\x80\x80\x80.\xff. \xc3"
    offsets = pa.py_buffer(np.array([0, 9, 11, len(raw)], np.int64))
    column = pa.Array.from_buffers(pa.large_string(), 3, [None, offsets, pa.py_buffer(raw)])
    assert [row["sentences"] for row in measured(column, *EACH["all"])] == [2, 1, 2]
