"""Compare repeated n-grams with reference implementations."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.kernels.marks import Words
from tamis.text.segment import NGRAM_STATS, BareMarks, BareStats, CharacterNgramStats, split_words
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


def test_repeated_words_are_counted_in_occurrences() -> None:
    found = NGRAM_STATS["auto"](pa.array(["a b a b c"]))
    assert (found["all_count"][0, :2].tolist(), found["total_count"][0, :4].tolist()) == ([2, 0], [4, 3, 2, 1])


def compare_characters(rows: list[str], n: int) -> None:
    found = CharacterNgramStats(n)(pa.array(rows, pa.string()))
    for row, text in enumerate(rows):
        assert {name: array[row] for name, array in found.items()} == naive.character_ngram_stats(text, n), (text, n)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.text(st.sampled_from("ab \u00e9\u4f60\U0001f600"), max_size=80), max_size=4), st.integers(1, 12))
def test_character_ngrams_match_the_reference(rows: list[str], n: int) -> None:
    compare_characters(rows, n)


@pytest.mark.parametrize("n", [1, 3, 10, 40])
def test_character_ngrams_of_samples(n: int) -> None:
    compare_characters([*naive.SAMPLES, *naive.ODD, *(text * 3 for text in naive.SAMPLES), " ".join(naive.SAMPLES)], n)


def test_character_ngrams_of_a_slice() -> None:
    texts = pa.array(["x" * 30, "abcabcabc", None, "y" * 30])
    assert {name: array.tolist() for name, array in CharacterNgramStats(2)(texts[1:3]).items()} == {
        "top": [3, 0], "all": [8, 0],
    }  # fmt: skip


def test_only_the_most_frequent_character_ngrams_count() -> None:
    # of 4 distinct 1-grams the 2 most frequent count: a five times, b four times
    found = CharacterNgramStats(1)(pa.array(["aaaaabbbbccdd", "abcdabcd", "abcd", ""]))
    assert found["top"].tolist() == [9, 4, 0, 0]


def bare_words(text: str, mode: Words) -> list[str]:
    found = BareMarks(mode)(pa.array([text], pa.string()))
    raw = found.data.tobytes()
    return [raw[start:stop].decode() for start, stop in zip(*found.spans(), strict=True)]


def test_bare_words_begin_and_end_with_a_letter() -> None:
    text = 'The "END", (x-ray) 3.5 -- can\'t covid19 \u00c9T\u00c9\u2026 \u2014 \u0915\u093e\u0964 e\u0301 7\u0301'
    expected = ["the", "end", "x-ray", "can't", "covid", "\u00e9t\u00e9", "\u0915\u093e", "e\u0301"]
    assert bare_words(text, "whitespace") == expected


@settings(deadline=None, max_examples=300)
@given(st.text(st.sampled_from("aB1.- \u00e9\u0301\u4f60\u093e\u0915\u2026\U0001f600"), max_size=60))
def test_bare_words_match_the_reference(text: str) -> None:
    modes: tuple[Words, ...] = ("auto", "whitespace", "characters")
    for mode in modes:
        assert bare_words(text, mode) == naive.bare_words(text, mode), mode


@pytest.mark.parametrize("mode", ["auto", "whitespace", "unicode", "tokens", "characters"])
def test_bare_words_of_samples(mode: Words) -> None:
    for text in [*naive.SAMPLES, *naive.ODD]:
        if "\u0130" not in text:  # Python's lower case of the Turkish letter is two characters, Arrow's is one
            assert bare_words(text, mode) == naive.bare_words(text, mode), text


def test_ngrams_of_bare_words_are_those_of_the_reference() -> None:
    texts = ["A b, c: a b 3.", "one Two one two, ONE (two)"]
    found = BareStats(NGRAM_STATS["whitespace"])(pa.array(texts))
    for row, text in enumerate(texts):
        expected = naive.ngram_stats(naive.bare_words(text, "whitespace"), 2)
        assert {name: array[row, 0] for name, array in found.items()} == expected
