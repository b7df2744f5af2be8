"""Compare repeated n-grams with reference implementations."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.text.segment import NGRAM_STATS, split_words
from tests import naive

few_words = st.lists(st.sampled_from(["a", "b", "ab", "ccc", "é", "你"]), max_size=60).map(" ".join)


def compare(rows: list[str], mode: str) -> None:
    found = NGRAM_STATS[mode](pa.array(rows, pa.string()))
    for row, text in enumerate(rows):
        words = naive.words(text, mode)
        for n in range(2, 11):
            assert {name: array[row, n - 2] for name, array in found.items()} == naive.ngram_stats(words, n), (text, n)


@settings(deadline=None, max_examples=300)
@given(st.lists(few_words, max_size=3))
def test_ngram_statistics_match_the_reference(rows: list[str]) -> None:
    compare(rows, "auto")


@pytest.mark.parametrize("mode", ["auto", "whitespace", "unicode", "tokens", "characters"])
def test_ngram_statistics_of_samples(mode: str) -> None:
    small = [text for text in naive.ODD if len(text) < 100]
    compare([*naive.SAMPLES, *small, "\n".join(naive.SAMPLES * 2)], mode)


def test_words_that_differ_only_beyond_sixteen_bytes_are_different() -> None:
    words = [f"{'x' * 20}{index}" for index in range(3000)]
    found = NGRAM_STATS["auto"](pa.array([" ".join(words)]))
    assert found["top_count"][0].tolist() == [1] * 9


def test_results_do_not_depend_on_the_position_in_the_buffer() -> None:
    text = "pan tau pan tau pan"
    alone = NGRAM_STATS["auto"](pa.array([text]))["top_count"][0].tolist()
    assert NGRAM_STATS["auto"](pa.array([text, "z" * 50]))["top_count"][0].tolist() == alone


def test_one_word_repeated_takes_linear_time() -> None:
    found = NGRAM_STATS["auto"](pa.array(["ab " * 300_000]))
    assert found["top_count"][0].tolist() == [300_000 - n + 1 for n in range(2, 11)]
    assert found["covered_chars"][0].tolist() == [600_000] * 9


def test_many_words_grow_the_tables() -> None:
    text = " ".join(str(index) for index in range(50_000))
    found = NGRAM_STATS["auto"](pa.array(["a b a b", text + " " + text, "a b a b"]))
    assert found["top_count"][:, 0].tolist() == [2, 2, 2]
    assert found["greedy_chars"][1, 3] == len(text.replace(" ", ""))
    assert len(split_words(text)) == 50_000
