"""Gopher, C4 and FineWeb in each dialect, on cases worked out by hand."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.batch import Batch
from tamis.context import Context
from tamis.operators import Filter
from tamis.text.repetition import GopherRepetition
from tamis.text.web import C4Paragraphs, C4Quality, FineWebQuality, GopherQuality

DIALECTS = ["datatrove", "dolma", "dclm", "paper"]


def score(step: Filter, text: str | None, name: str) -> float:
    return float(step.open(Context()).score(Batch.from_rows([{"text": text}, {"text": "x"}]))[name][0])


def gopher(dialect: str, text: str, name: str) -> float:
    return score(GopherQuality(dialect=dialect), text, f"gopher_{name}")  # type: ignore[arg-type]


def repetition(dialect: str, text: str, name: str) -> float:
    return score(GopherRepetition(dialect=dialect, words="auto"), text, f"gopher_{name}")  # type: ignore[arg-type]


def across(measure, text: str, name: str) -> list[float]:
    return [round(measure(dialect, text, name), 4) for dialect in DIALECTS]


def test_symbols_alone_are_no_words_for_some() -> None:
    assert across(gopher, "one -- two !! 3", "words") == [3, 5, 3, 5]


def test_dclm_counts_words_by_their_boundaries_and_measures_them_between_spaces() -> None:
    # well, known, isn't, it: four words of UAX #29; three runs between spaces, of 10 + 5 + 3 characters
    assert gopher("dclm", "well-known isn't it?", "words") == 4
    assert gopher("dclm", "well-known isn't it?", "word_length") == 6
    own = GopherQuality(dialect="dclm", words="whitespace")
    assert score(own, "well-known isn't it?", "gopher_words") == 3


def test_word_length_is_a_mean_or_a_median() -> None:
    # a, bb, cccccc: mean 3, median 2; datatrove leaves "..." out
    assert across(gopher, "a bb cccccc", "word_length") == [3, 2, 3, 3]
    assert across(gopher, "a bb cccccc ...", "word_length") == [3, 2.5, 3, 3]


def test_symbols_are_counted_in_four_ways() -> None:
    # 8 words, 12 tokens; '#' twice, "..." once, the character once, ". . ." once; dolma: two words hold '#' or the character
    text = "##x y... z… w . . . v"
    assert across(gopher, text, "symbols") == [round(2 / 12, 4), 2 / 8, 5 / 8, 2 / 8]


def test_every_comma_is_a_word_for_datatrove() -> None:
    # It | does | n't | rain | , | she | said | . : six with a letter of eight; and six that are not symbols alone
    text = "It doesn't rain, she said."
    assert across(gopher, text, "alphabetic_words") == [6 / 8, 1, 1, 1]
    assert gopher("datatrove", text, "words") == 6
    assert gopher("datatrove", text, "word_length") == pytest.approx((2 + 4 + 3 + 4 + 3 + 4) / 6)
    own = GopherQuality(words="whitespace")
    assert score(own, text, "gopher_alphabetic_words") == 1


def test_a_comma_makes_two_pairs_of_words_differ_for_datatrove() -> None:
    # a , b a b: no pair twice, so the first counts, "a ," of 3 characters; with "auto" the first is "a, b" of 4
    assert score(GopherRepetition(), "a, b a b", "gopher_top_2_grams") == pytest.approx(3 / 8)
    assert score(GopherRepetition(words="auto"), "a, b a b", "gopher_top_2_grams") == pytest.approx(4 / 8)


def test_a_newline_at_either_end_is_a_line_for_datatrove() -> None:
    assert across(repetition, "a\nb\na\n", "duplicate_lines") == [0.25, 0.5, round(2 / 3, 4), round(1 / 3, 4)]
    # two empty lines, of which the second repeats the first
    assert repetition("datatrove", "\na\nb\na\n", "duplicate_lines") == 2 / 5


def test_bullets_differ() -> None:
    # 7 lines by split, 6 by splitlines, 5 not blank
    text = "- a\n * b\n• c\n\n● d\ne\n"
    assert across(gopher, text, "bullet_lines") == [
        round(2 / 6, 4),  # '-' and the bullet
        round(1 / 7, 4),  # '-' in the first column
        round(4 / 5, 4),
        round(4 / 5, 4),
    ]


def test_ellipses_at_the_end_of_lines_differ() -> None:
    text = "a...\nb…\nc. . .\nd… \n\n"
    assert across(gopher, text, "ellipsis_lines") == [
        round(3 / 5, 4),
        round(1 / 6, 4),  # the character, at the very end
        round(4 / 4, 4),
        round(3 / 4, 4),
    ]


def test_stop_words_differ() -> None:
    # "the" twice in lower case, "The" once, "and" once
    assert across(gopher, "The cat the dog and the end", "stop_words") == [2, 3, 4, 2]


def test_stop_words_of_another_language() -> None:
    step = GopherQuality(stop_words=["el", "la", "y"])
    assert score(step, "el perro y el gato", "gopher_stop_words") == 2


def test_letters_make_a_word_alphabetic_in_every_dialect() -> None:
    assert across(gopher, "a1 22 слово -", "alphabetic_words") == [0.5] * 4


def test_duplicate_lines_differ() -> None:
    # the case of the comparison table: a b a c b d
    text = "a\nb\na\nc\nb\nd"
    assert across(repetition, text, "duplicate_lines") == [
        round(2 / 6, 4),
        round(4 / 6, 4),
        round(4 / 6, 4),
        round(2 / 6, 4),
    ]
    assert across(repetition, text, "duplicate_line_chars") == [
        round(2 / 11, 4),  # newlines count
        round(4 / 6, 4),
        round(4 / 6, 4),
        round(2 / 6, 4),
    ]


def test_blank_lines_repeat_for_dolma_alone() -> None:
    assert across(repetition, "a\n\nb\n\nc", "duplicate_lines") == [0, 0.4, 0, 0]


def test_dolma_compares_lines_as_they_are() -> None:
    # "", "  ", "", " ", "  ", "": three empty lines and two of two spaces repeat, one of one space does not
    text = "\n  \n\n \n  \n"
    assert repetition("dolma", text, "duplicate_lines") == pytest.approx(5 / 6)
    assert repetition("dolma", "a\n\nb\n  \nc", "duplicate_lines") == 0
    assert repetition("dolma", "ab\n \ncd\n ", "duplicate_line_chars") == pytest.approx(2 / 4)


@settings(deadline=None)
@given(st.text("ab \t\r\n\u00a0", max_size=12))
def test_dolma_counts_copies_of_lines_as_its_tagger_does(text: str) -> None:
    lines = Counter(text.split("\n"))
    copies = sum(count for count in lines.values() if count > 1)
    chars = sum(len(line) * count for line, count in lines.items() if count > 1)
    letters = sum(map(len, text.split()))
    step = GopherRepetition(dialect="dolma")
    assert score(step, text, "gopher_duplicate_lines") == pytest.approx(copies / lines.total())
    assert score(step, text, "gopher_duplicate_line_chars") == pytest.approx(chars / max(letters, 1))


def test_dclm_trims_lines_before_it_compares() -> None:
    assert across(repetition, "a\n a\nb", "duplicate_lines") == [0, 0, round(2 / 3, 4), 0]


def test_duplicate_paragraphs_differ() -> None:
    text = "ab\nc\n\nd\n\nab\nc"
    assert across(repetition, text, "duplicate_paragraphs") == [round(1 / 3, 4), 0, round(2 / 3, 4), round(1 / 3, 4)]
    assert across(repetition, text, "duplicate_paragraph_chars") == [
        round(4 / 13, 4),
        0,
        round(8 / 9, 4),
        round(4 / 9, 4),
    ]


def test_top_ngrams_differ() -> None:
    # "ab c" and "c ddd" twice each: 4 and 5 characters with the space, 3 and 4 without; 13 characters in words, 19 in the text
    text = "ab c ddd ab c ddd e"
    assert len(text) == 19
    assert across(repetition, text, "top_2_grams") == [
        round(2 * 4 / 19, 4),
        round(2 * 3 / 13, 4),
        round(2 * 4 / 13, 4),  # the longest of the most frequent: "c ddd" or "ddd ab" (once)
        round(2 * 3 / 13, 4),
    ]


def test_an_ngram_that_does_not_repeat_counts_for_some() -> None:
    text = "aa b c d"
    assert across(repetition, text, "top_4_grams") == [1, 1, 0, 0]
    assert across(repetition, "aa b c", "top_4_grams") == [0, 0, 0, 0]


def test_duplicate_ngrams_differ() -> None:
    # words 0 1 2 3 4 | 0 1 2 3 4 | 5: one 5-gram twice, at words 0 and 5
    text = "a b c d e a b c d e f"
    assert across(repetition, text, "duplicate_5_grams") == [
        round(5 / 21, 4),  # the second copy, of all characters
        round(10 / 35, 4),  # two of seven 5-grams
        round(10 / 11, 4),  # ten of eleven words
        round(10 / 11, 4),
    ]


def test_overlapping_repeats_are_skipped_by_datatrove() -> None:
    # one word six times over: 5-grams at 0 and 1; read at 0, found again at 1, then reading continues at 6
    text = "z z z z z z"
    assert across(repetition, text, "duplicate_5_grams") == [round(5 / 11, 4), 1, 1, 1]


def test_dialects_tell_words_apart_in_their_own_way() -> None:
    # UAX #29 leaves the comma out, so "a b" repeats
    text = "a, b a b"
    own = {d: score(GopherRepetition(dialect=d), text, "gopher_top_2_grams") for d in DIALECTS}  # type: ignore[arg-type]
    assert own["dclm"] == 1.0
    assert own["dolma"] == pytest.approx(3 / 5)


def test_redpajama_counts_words_without_punctuation() -> None:
    # it's, costs, 5, dont worry: "--" is nothing without its dashes; 4 + 5 + 1 + 4 + 5 letters
    text = "It's costs -- 5! Don't worry"
    assert gopher("redpajama", text, "words") == 5
    assert gopher("redpajama", text, "word_length") == pytest.approx((3 + 5 + 1 + 4 + 5) / 5)


def test_redpajama_takes_letters_and_accents_apart() -> None:
    assert gopher("redpajama", "\u00e9t\u00e9", "word_length") == 5


def test_redpajama_tells_signs_from_words() -> None:
    # the raw words: ## x y ... z … 12 v: 8 of them, 4 with a letter; '#' twice, "..." once, the character once
    text = "##x y... z… 12 v"
    assert gopher("redpajama", text, "symbols") == 4 / 8
    assert gopher("redpajama", text, "alphabetic_words") == 4 / 8


def test_redpajama_knows_only_latin_letters() -> None:
    assert gopher("redpajama", "слово word", "alphabetic_words") == 0.5


def test_redpajama_takes_the_share_of_stop_words() -> None:
    # The cat , and the end: "and" and "the" of six
    assert gopher("redpajama", "The cat, and the end", "stop_words") == pytest.approx(2 / 6)
    own = GopherQuality(dialect="redpajama", stop_words=["The", "cat"], min_stop_words=0.3)
    assert score(own, "The cat, and the end", "gopher_stop_words") == pytest.approx(2 / 6)
    assert own.rules()[-1].minimum == 0.3
    assert GopherQuality(dialect="redpajama").rules()[-1].minimum is None


def test_redpajama_has_bullets_of_its_own() -> None:
    # en dash, bullet and small square of six lines; '-' and '*' are none
    text = "\u2013 a\n \u2022 b\n- c\n* d\n\n\u25aa e\n"
    assert gopher("redpajama", text, "bullet_lines") == 3 / 6


def test_redpajama_counts_ellipses_among_all_lines() -> None:
    assert gopher("redpajama", "a...\nb… \n. . .\n\n", "ellipsis_lines") == 2 / 4


def test_redpajama_looks_for_ngrams_in_the_normalised_text() -> None:
    # ab c ddd ab c ddd e: "ab c" is first of those that occur twice, 3 of 13 letters
    text = "Ab, c ddd! AB c DDD e."
    assert repetition("redpajama", text, "top_2_grams") == pytest.approx(2 * 3 / 13)
    assert repetition("redpajama", "aa b c d", "top_4_grams") == 0
    # five words twice, then one: ten of eleven letters, each once
    assert repetition("redpajama", "A b c d e. a b c d e f", "duplicate_5_grams") == pytest.approx(10 / 11)


def test_redpajama_leaves_lines_alone() -> None:
    assert repetition("redpajama", "a\na\na\n\nb\n\nb", "duplicate_lines") == 0
    assert repetition("redpajama", "a\na\na\n\nb\n\nb", "duplicate_paragraphs") == 0


@pytest.mark.parametrize("dialect", [*DIALECTS, "redpajama"])
@pytest.mark.parametrize("text", ["", None, " ", "\n\n", "x", "你", "\u0301"])
def test_odd_texts_score_finite_numbers(dialect: str, text: str | None) -> None:
    batch = Batch.from_rows([{"text": text}, {"text": "x"}])
    for step in (GopherQuality(dialect=dialect), GopherRepetition(dialect=dialect)):  # type: ignore[arg-type]
        for name, values in step.open(Context()).score(batch).items():
            assert 0 <= float(values[0]) <= 3, name


def test_gopher_bounds_are_those_of_the_paper() -> None:
    found = {rule.score.removeprefix("gopher_"): rule.maximum for rule in GopherRepetition().rules()}
    assert list(found.values()) == [0.3, 0.3, 0.2, 0.2, 0.2, 0.18, 0.16, 0.15, 0.14, 0.13, 0.12, 0.11, 0.10]


def test_c4_counts_sentences_and_looks_for_code_and_filler() -> None:
    text = "One. Two! Three?\nFour\nLorem  ipsum { x }"
    assert score(C4Quality(), text, "c4_sentences") == 5
    assert score(C4Quality(), text, "c4_curly_brackets") == 1
    assert score(C4Quality(), text, "c4_lorem_ipsum") == 0
    assert score(C4Quality(), "LOREM IPSUM", "c4_lorem_ipsum") == 1


def test_c4_asks_for_fewer_sentences_in_the_dialect_of_dclm() -> None:
    assert C4Quality().rules()[0].minimum == 5
    dclm = {rule.score: rule for rule in C4Quality(dialect="dclm").rules()}
    assert (dclm["c4_sentences"].minimum, dclm["c4_chars"].maximum) == (3, 190_000)
    assert C4Quality(min_sentences=2).rules()[0].minimum == 2


def test_c4_paragraphs_counts_long_lines() -> None:
    assert score(C4Paragraphs(), "\n".join(["y" * 200, "y" * 199, "y" * 300]), "long_paragraphs") == 2


def test_fineweb_lines() -> None:
    # four lines that are not blank; one ends in a straight stop, three are short; 7 newlines, 19 words, of them
    # 5 marks
    text = "Home\n\nIt rains today in the north of the country, they say.\nHome\n\n“No.”\n\n"
    step = FineWebQuality()
    assert score(step, text, "fineweb_ended_lines") == 0.25
    assert score(step, text, "fineweb_short_lines") == 0.75
    assert score(step, text, "fineweb_duplicate_line_chars") == pytest.approx(4 / (4 + 53 + 4 + 5))
    assert score(step, text, "fineweb_newlines") == pytest.approx(7 / 19)


def test_fineweb_of_the_paper_counts_blank_lines() -> None:
    text = "It rains.\n\nHome\n"
    assert score(FineWebQuality(dialect="paper"), text, "fineweb_ended_lines") == 0.25
    assert score(FineWebQuality(dialect="paper"), text, "fineweb_short_lines") == 1.0
    assert score(FineWebQuality(), text, "fineweb_ended_lines") == 0.5


def test_fineweb_knows_the_stops_of_other_scripts() -> None:
    text = "他又数了一遍。\n结果一样"
    assert score(FineWebQuality(stops="english"), text, "fineweb_ended_lines") == 0
    assert score(FineWebQuality(), text, "fineweb_ended_lines") == 0.5


def test_a_quote_ends_a_line_for_the_paper_alone() -> None:
    text = 'He said "no"\nand went.\n'
    assert score(FineWebQuality(), text, "fineweb_ended_lines") == 0.5
    assert score(FineWebQuality(stops="english"), text, "fineweb_ended_lines") == 1.0
    assert score(FineWebQuality(dialect="paper"), text, "fineweb_ended_lines") == pytest.approx(2 / 3)


def test_fineweb_with_another_idea_of_short() -> None:
    assert score(FineWebQuality(short_line_chars=3), "abc\nabcd\n\n", "fineweb_short_lines") == 0.5
