"""The sentence rules of MADLAD-400 on texts small enough to count by eye."""

from __future__ import annotations

from pathlib import Path

import pytest

from tamis import Pipeline, Rows
from tamis.batch import Batch
from tamis.context import Context
from tamis.errors import ParameterError
from tamis.text.quality import WordCount
from tamis.text.web import GopherQuality, MadladSentences

GOOD = "The old mill had stood empty for years. "  # 38 characters before the stop
LIST = "Anna Berta Clara Dora Emma Frida and so on and so on. "  # 6 of 12 words begin with a capital
NAMES = "Anna Berta Clara Dora Emma Frida Greta so on and so on. "  # 7 of 12


def questionable(text: str, *signals: str, **parameters: object) -> int:
    """How many sentences of a text are questionable for these signals."""
    step = MadladSentences(signals=list(signals) or None, **parameters)  # type: ignore[arg-type]
    found = step.open(Context()).score(Batch.from_rows([{"text": text}]))
    return round(float(found["madlad_questionable"][0] * found["madlad_sentences"][0]))


def dropped(*texts: str | None, **parameters: object) -> dict[str, int]:
    step = MadladSentences(**parameters)  # type: ignore[arg-type]
    return dict(Pipeline(Rows([{"text": text} for text in texts]), step).run(executor="inline").dropped)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three?\nFour", 4),
        ("One.Two 3.5 e.g.this", 1),
        ("Really?! Yes... No", 3),
        ("One.\u00a0Two.\u3000Three. ", 3),
        ("One.\" Two", 1),  # a quotation mark is no space
        ("一。二。三。", 1),  # nor is a stop of another script one of the three
        ("... One", 1),
        ("One. ! Two", 2),
        ("  . One", 1),
        ("?!", 1),
        (" \n\t", 0),
        ("", 0),
        (None, 0),
    ],
)  # fmt: skip
def test_sentences_are_parted_by_stops_and_spaces(text: str | None, sentences: int) -> None:
    found = MadladSentences().open(Context()).score(Batch.from_rows([{"text": text}, {"text": "x"}]))
    assert found["madlad_sentences"][0] == sentences
    assert sentences or found["madlad_questionable"][0] == 0


def test_a_list_has_twelve_words_and_more_than_half_of_them_with_capitals() -> None:
    assert questionable(LIST, "list_case") == 0
    assert questionable(NAMES, "list_case") == 1
    assert questionable("Anna Berta Clara Dora Emma Frida Greta so on and so. ", "list_case") == 0  # 11 words
    assert questionable("Anna Berta Clara", "list_case", list_case_words=3) == 1
    assert questionable(LIST, "list_case", list_case_share=0.4) == 1


def test_capitals_are_those_of_any_alphabet_at_the_beginning_of_a_word() -> None:
    assert questionable("Élan Жук Ωmega aB cD", "list_case", list_case_words=5) == 1
    assert questionable("élan жук ωmega AB CD", "list_case", list_case_words=5) == 0
    assert questionable("你 好 世 界 A", "list_case", list_case_words=5) == 0


@pytest.mark.parametrize(("size", "expected"), [(19, 1), (20, 0), (500, 0), (501, 1)])
def test_a_sentence_has_20_to_500_characters(size: int, expected: int) -> None:
    assert questionable("é" * size + ". ", "length") == expected
    assert questionable("é" * size + ". " + GOOD, "length") == expected


def test_lengths_may_be_others() -> None:
    assert questionable("four. sixsix. ", "length", min_sentence_chars=5, max_sentence_chars=5) == 2


def test_a_fifth_of_technical_characters_is_allowed() -> None:
    assert questionable("8 letters12 ok{", "technical") == 1  # 4 of 15
    assert questionable("8 letters1 ok{e", "technical") == 0  # 3 of 15
    assert questionable("ééé)", "technical") == 1  # 1 of 4, but of 7 bytes
    assert questionable("0123456789{}+/()>", "technical", technical_share=0.99) == 1
    assert questionable("[]<|*=-%$#_.", "technical") == 0


def test_phrases_are_looked_for_as_they_are_written() -> None:
    phrases = ["orem ipsum", "É", "a. b"]
    assert questionable("Lorem ipsum here. OREM IPSUM there", "phrases", phrases=phrases) == 1
    assert questionable("é. É", "phrases", phrases=phrases) == 1
    assert questionable("a. b", "phrases", phrases=phrases) == 0  # these are two sentences
    assert questionable("a.b", "phrases", phrases=["a.b"]) == 1
    assert questionable("Lorem ipsum", "phrases") == 0


def test_phrases_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "phrases.txt"
    path.write_text("# a list\nbuy now\n\n  free  \n")
    step = MadladSentences(path=str(path), signals=["phrases"])
    assert questionable("You buy now. It is freedom. No", "phrases", path=str(path)) == 2
    assert questionable("You buy now. It is freedom. No", "phrases", path=str(path), phrases=["No"]) == 3
    first = step.identity()
    path.write_text("other\n")
    assert step.identity() != first
    with pytest.raises(ParameterError, match="does not exist"):
        MadladSentences(path=str(tmp_path / "none")).check()


def test_a_sentence_with_several_signals_counts_once() -> None:
    assert questionable("(1). Well", "length", "technical", "phrases", phrases=["1"]) == 2
    assert questionable("(1). Well", "technical", "phrases", phrases=["1"]) == 1
    assert questionable(GOOD + NAMES + "x", "list_case") == 1
    assert questionable(GOOD + NAMES + "x") == 2


def test_a_document_goes_when_a_fifth_of_it_is_questionable() -> None:
    """1 of 5 is the bound, and too much; 1 of 6 is not."""
    assert dropped(GOOD * 4 + NAMES) == {"madlad_questionable >= 0.2": 1}
    assert dropped(GOOD * 5 + NAMES) == {}
    for size in range(1, 60):
        assert dropped(GOOD * 4 * size + NAMES * size) == {"madlad_questionable >= 0.2": 1}
    assert dropped(GOOD * 4 + NAMES, max_share=0.21) == {}
    assert dropped(NAMES * 5, max_share=None) == {}


def test_a_document_of_four_sentences_is_too_short() -> None:
    assert dropped(GOOD * 4, "", None, " \n") == {"madlad_sentences < 5": 4}
    assert dropped(GOOD * 5) == {}
    assert dropped(GOOD * 4, "", None, " \n", min_sentences=None) == {}


def test_the_words_are_found_once_for_all_that_ask_for_them() -> None:
    batch = Batch.from_rows([{"text": GOOD * 5}])
    for step in (WordCount(words="unicode"), GopherQuality(dialect="dclm"), MadladSentences()):
        step.open(Context()).score(batch)
    assert len([name for _, name in batch.needed if name.endswith("word_marks.unicode")]) == 1
    assert (
        MadladSentences(signals=["length"]).open(Context()).score(batch).keys()
        == MadladSentences().open(Context()).score(batch).keys()
    )


def test_an_unknown_signal_is_refused() -> None:
    with pytest.raises(ParameterError, match="signals"):
        MadladSentences(signals=["lists"])  # type: ignore[list-item]
