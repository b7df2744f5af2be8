"""Each filter on texts small enough to count by eye."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tamis import Pipeline, Rows
from tamis.batch import Batch, as_array
from tamis.context import Context
from tamis.errors import ParameterError
from tamis.operators import Filter
from tamis.text.code import (
    Alpha,
    GeneralCommentToCode,
    HtmlBoilerplate,
    NumberOfLinesOfCode,
    PerExtension,
    PythonCommentToCode,
    XmlHeader,
)
from tamis.text.lists import BadWords, BoilerPlate, FlaggedWords, Histogram, Regex, StopWords, Substring
from tamis.text.quality import (
    BulletPoints,
    CommonEnglishWords,
    Ellipsis,
    LongestWord,
    MeanWordLength,
    NonAlphaNumeric,
    Numbers,
    Parentheses,
    PornographicUrls,
    Punctuation,
    SymbolsToWords,
    Urls,
    WhiteSpace,
    WordCount,
    WordsWithoutAlphabets,
)
from tamis.text.repetition import (
    CharacterRepetition,
    RepeatedLines,
    RepeatedLinesByChars,
    RepeatedParagraphs,
    RepeatedParagraphsByChars,
    RepeatingDuplicateNGrams,
    RepeatingTopNGrams,
    WordRepetition,
)


def scores(step: Filter, *texts: str | None, column: str = "text") -> dict[str, list[float]]:
    found = step.open(Context()).score(Batch.from_rows([{column: text} for text in texts]))
    return {name: np.asarray(values).tolist() for name, values in found.items()}


def score(step: Filter, text: str | None) -> float:
    (values,) = scores(step, text, "other").values()
    return values[0]


def reasons(step: Filter, *texts: str, column: str = "text") -> list[list[str]]:
    """For each text, the rules it breaks."""
    found = step.open(Context()).score(Batch.from_rows([{column: text} for text in texts]))
    result: list[list[str]] = [[] for _ in texts]
    for rule in step.rules():
        for reason, broken in rule.verdicts(as_array(found[rule.score])):
            for row in np.flatnonzero(broken):
                result[row].append(reason)
    return result


@pytest.mark.parametrize(
    ("step", "text", "expected"),
    [
        (WordCount(), "a b\u00a0c\n\nd", 4),
        (WordCount(), "我喜欢 Python", 4),
        (WordCount(words="whitespace"), "我喜欢 Python", 2),
        (WordCount(words="unicode"), "can't stop, won't stop!", 4),
        (WordCount(words="characters"), "ab c", 3),
        (MeanWordLength(), "ab abcd", 3.0),
        (LongestWord(), "ab abcd é", 4),
        (SymbolsToWords(), "# ## a… … (...) word", 4 / 6),
        (WordsWithoutAlphabets(), "abc 123 4x ..", 0.5),
        (CommonEnglishWords(), "the THE be that that", 4),
        (CommonEnglishWords(common_words=["und", "der"]), "der Hund und die Katze", 2),
        (NonAlphaNumeric(), "ab, é-", 3 / 6),
        (NonAlphaNumeric(alphabet="unicode"), "ab, é-", 2 / 6),
        (Numbers(), "a1b2", 0.5),
        (WhiteSpace(), "a \t\r\nb", 4 / 6),
        (Parentheses(), "(a)[b]{c}⟨d⟩", 8 / 12),
        (Urls(), "at https://a.b/c ok", 13 / 19),
        (Urls(pattern=r"www\.\w+"), "at www.ab ok", 6 / 12),
        (PornographicUrls(), "http://a.b http://x/PORN", 1),
        (PornographicUrls(), "porn http://a.b", 0),
        (PornographicUrls(pattern=r"www\S+"), "www.porn.x www.y", 1),
        (BulletPoints(), "• a\n  ● b\n- c\n\nd", 0.5),
        (Punctuation(), "One.\nTwo\nThree?  \n\n", 1 / 3),
        (Ellipsis(), "a...\nb…\nread more..\n[...]\nend.", 0.8),
        (RepeatedLines(), "a\na\nb\n\n\n", 2 / 3),
        (RepeatedParagraphs(), "a\nb\n\na\nb\n\n\nc", 2 / 3),
        (RepeatedLinesByChars(), "abc\nabc\nde", 5 / 8),
        (RepeatedParagraphsByChars(), "abc\n\nabc\n\nde", 5 / 8),
        # "a b" three times, 3 characters each, of 11
        (RepeatingTopNGrams(n=2), "a b a b a b", 9 / 11),
        (RepeatingTopNGrams(n=3), "a b", 1.0),
        # "a b" again at words 2 and 4, "b a" again at word 3: words 2 to 5 with the three spaces between
        (RepeatingDuplicateNGrams(n=2), "a b a b a b", 7 / 11),
        (RepeatingDuplicateNGrams(n=10), "a b", 1.0),
        # of the four distinct 2-grams "a b", "b c", "c a" and "b b", only "a b" repeats
        (WordRepetition(n=2), "A b, c: a b -- 7 b", 2 / 5),
        (WordRepetition(n=2), "one two", 0.0),
        (WordRepetition(n=2), "你好你好", 2 / 3),
        (WordRepetition(n=2, words="whitespace"), "你好你好 你好你好", 0.0),
        # seven 2-grams, five distinct: the two most frequent of them, "ab" and "bc", occur twice each
        (CharacterRepetition(n=2), "abcXabcY", 4 / 7),
        (CharacterRepetition(n=2), "éa éa", 2 / 4),
        (CharacterRepetition(), "too short", 0.0),
        (CharacterRepetition(), "a" * 11, 1.0),
        (StopWords(), 'The cat ("and") THE dog, 3 + 4!', 3 / 5),
        (StopWords(listed=["été"]), "L'ÉTÉ? Été!", 1 / 2),
        (StopWords(listed=["का"]), "का घर।", 1 / 2),
        (FlaggedWords(listed=["ass"]), "Class ass. ASS! ass_x", 2 / 4),
        (FlaggedWords(listed=["bad words"]), "bad words", 0.0),
        (BoilerPlate(), "We use cookies.\n\nNews.\n\nTERMS OF USE", 2 / 3),
        (BoilerPlate(), "All about LOREM IPSUM.", 1.0),
        (BoilerPlate(phrases=["subscribe"]), "Subscribe!\n\nWe use cookies.", 0.5),
        (BadWords(listed=["ass", "schön", "坏"]), "Class ass. SCHÖN! 很坏的 ass_x", 3),
        (BadWords(), "Nice weather in Scunthorpe", 0),
        (Substring("end", "suffix"), "the end", 1),
        (Substring("end", "any"), "bend it", 1),
        (Substring("end", "prefix"), "bend it", 0),
        (NumberOfLinesOfCode(), "a\nb\n", 3),
        (XmlHeader(), "x" * 100 + '<?xml version="1.0"?>', 0),
        (XmlHeader(), '\ufeff<?xml version="1.0"?>', 1),
        (Alpha(), "ab12 é", 0.5),
        (PythonCommentToCode(), "# abc\nx = '# no'  # y\n", 6 / 13),
        (PythonCommentToCode(), 'def f():\n    r"""Doc"""\n    return "no"\n', 9 / 27),
        (PythonCommentToCode(), "# Too many\n# comments!", 1.0),
        (PythonCommentToCode(), '"""Only a docstring."""\n', 1.0),
        (PythonCommentToCode(), "x = '''# no", 0.0),
        (GeneralCommentToCode("java"), 'a("//"); /* bc */ // d', 9 / 17),
        (GeneralCommentToCode("text/x-shellscript"), "echo '#'# x", 2 / 9),
        (GeneralCommentToCode("html"), "<b>x</b><!--y", 5 / 13),
        (GeneralCommentToCode("text/x-c++"), "// Way far too many\n\n    // comments!\n", 1.0),
        (GeneralCommentToCode("c"), "/*\n * a\n */\n", 1.0),
        (HtmlBoilerplate(min_chars=1), "<a href='>'>x</a><script>y<b></script>z&lt;", 3 / 43),
        (HtmlBoilerplate(min_chars=1), "<div>\n    <p>a\n      b</p>\n    <p>c</p>\n</div>\n", 5 / 47),
        (HtmlBoilerplate(), "<p>short</p>", 0.0),
    ],
)
def test_scores_worked_out_by_hand(step: Filter, text: str, expected: float) -> None:
    assert score(step, text) == pytest.approx(expected)


NOTHING = [
    step
    for step in (
        WordCount(), MeanWordLength(), LongestWord(), SymbolsToWords(), WordsWithoutAlphabets(), CommonEnglishWords(),
        NonAlphaNumeric(), Numbers(), WhiteSpace(), Parentheses(), Urls(), PornographicUrls(), BulletPoints(),
        Punctuation(), Ellipsis(), BoilerPlate(), BadWords(), Alpha(), PythonCommentToCode(), HtmlBoilerplate(),
        StopWords(), FlaggedWords(), WordRepetition(), CharacterRepetition(),
        GeneralCommentToCode("c"), XmlHeader(), Substring("x"),
    )
]  # fmt: skip


@pytest.mark.parametrize("step", NOTHING, ids=lambda step: step.name)
def test_a_missing_or_empty_text_scores_nothing(step: Filter) -> None:
    (values,) = scores(step, "", None).values()
    assert values == [0, 0]


@pytest.mark.parametrize(
    "step", [RepeatedLines(), RepeatedParagraphs(), RepeatedLinesByChars(), RepeatedParagraphsByChars()]
)
def test_a_text_without_lines_repeats_nothing(step: Filter) -> None:
    (values,) = scores(step, "", None, " \n ").values()
    assert values == [1, 1, 1]


def test_the_reason_names_the_bound_that_was_broken() -> None:
    assert reasons(WordCount(min_words=2, max_words=3), "a", "a b", "a b c d") == [["words < 2"], [], ["words > 3"]]
    assert reasons(MeanWordLength(), "a b") == [["mean_word_length < 3"]]
    assert reasons(Substring("x"), "y") == [["substring < 1"]]


def test_ngram_scores_of_different_lengths_have_different_columns() -> None:
    assert RepeatingTopNGrams(n=3).score_columns() == {"top_3_grams": "top_3_grams"}
    assert RepeatingDuplicateNGrams(n=5, column="title").score_columns() == {
        "duplicate_5_grams": "title_duplicate_5_grams"
    }


def test_the_reason_says_which_ngrams_repeat() -> None:
    text = "a b c d a b c d a b c d"
    assert reasons(RepeatingTopNGrams(n=3, max_top_ngrams=0.18), text) == [["top_3_grams > 0.18"]]
    assert reasons(RepeatingDuplicateNGrams(n=4), text) == [["duplicate_4_grams > 0.2"]]


@pytest.mark.parametrize("make", [RepeatingTopNGrams, RepeatingDuplicateNGrams])
def test_ngrams_are_two_to_ten_words_long(make: type[Filter]) -> None:
    with pytest.raises(ParameterError, match="from 2 to 10"):
        make(n=11)  # type: ignore[call-arg]


def test_character_ngrams_are_one_to_a_hundred_characters_long() -> None:
    with pytest.raises(ParameterError, match="from 1 to 100"):
        CharacterRepetition(n=0)


def test_shares_of_words_name_their_bounds() -> None:
    assert reasons(WordRepetition(n=2, max_repeated_ngrams=0.1), "a b a b") == [["repeated_2_grams > 0.1"]]
    assert reasons(CharacterRepetition(), "a" * 20) == [["repeated_character_10_grams > 0.5"]]
    assert reasons(StopWords(), "the quick brown fox") == [["stop_word_share < 0.3"]]
    assert reasons(FlaggedWords(listed=["x"]), "x y") == [["flagged_word_share > 0.045"]]


def test_words_in_capitals_or_in_brackets_are_the_same_words() -> None:
    spaced = "one two (three) four, one two three four"
    assert score(WordRepetition(n=4), spaced) == score(WordRepetition(n=4), spaced.upper()) == pytest.approx(2 / 5)


def test_an_unknown_language_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ParameterError, match="did you mean `java`"):
        GeneralCommentToCode("jave")


def test_the_most_frequent_ngram_does_not_depend_on_chance() -> None:
    text = "a b c d a b ccccccc ddddddd ccccccc ddddddd"
    assert score(RepeatingTopNGrams(n=2), text) == pytest.approx(2 * 3 / len(text))


def test_operators_that_ask_for_the_same_facts_share_them() -> None:
    batch = Batch.from_rows([{"text": "a b"}])
    for step in (WordCount(), MeanWordLength(), LongestWord(), Numbers(), Ellipsis(), CommonEnglishWords()):
        step.open(Context()).score(batch)
    assert len(batch.memo) == 2


def test_stop_words_come_from_a_file_and_from_a_list(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("# a list\nder\n")
    assert score(StopWords(path=str(path), listed=["und"]), "Der Hund und") == pytest.approx(2 / 3)


def test_bad_words_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("# a list\nfoo\n\nBar baz\n")
    step = BadWords(path=str(path))
    assert score(step, "Foo, bar baz; food") == 2
    first = step.identity()
    path.write_text("food\n")
    assert step.identity() != first
    with pytest.raises(ParameterError, match="does not exist"):
        BadWords(path=str(tmp_path / "none")).check()


def test_histogram_reads_the_trusted_characters(tmp_path: Path) -> None:
    path = tmp_path / "de"
    path.write_text("a 9\né 8\n] 0\nb 0\n")
    assert score(Histogram(str(path)), " aéb ") == pytest.approx(2 / 5)


def test_per_extension_bounds_come_from_a_table(tmp_path: Path) -> None:
    path = tmp_path / "code_meta.csv"
    path.write_text(
        "language,extension,Include,Long_line_threshold,Alphanum_threshold,Alpha filter\n"
        "python,py,1,10,0.5,0.4\nc-sharp,cs,0,,,\n"
    )
    step = PerExtension("Python", "py", str(path))
    assert reasons(step, "x = abc") == [[]]
    assert reasons(step, "x = abcdefgh") == [["longest_line > 10"]]
    assert reasons(step, "(- + -)") == [["alphanumeric < 0.5", "alphabetic < 0.4"]]
    assert reasons(PerExtension("C#", "cs", str(path)), "x") == [["included < 1"]]
    assert reasons(PerExtension("Perl", "pl", str(path)), "x") == [["included < 1"]]


def test_regex_drops_matches_or_keeps_them():
    rows = [{"text": "Call 555-0100 NOW"}, {"text": "nothing here"}, {"text": None}]
    assert Pipeline(Rows(rows), Regex(r"[0-9]{3}-[0-9]{4}")).run().dropped == {"regex_matches > 0": 1}
    report = Pipeline(Rows(rows), Regex("now", ignore_case=True, min_matches=1)).run()
    assert report.dropped == {"regex_matches < 1": 2}
    with pytest.raises(ParameterError, match="not a regular expression"):
        Regex("(a").check()
