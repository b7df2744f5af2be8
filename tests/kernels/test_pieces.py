"""Check that a tokenizer splits the pieces of a text exactly as it splits the whole text."""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tamis.text.tokens import STYLES, PieceCounter

tokenizers = pytest.importorskip("tokenizers")

NAMES = ("gpt2", "gpt4", "qwen", "gpt4o")
ODD = "\xa0\u3000\u2028\x85\u017f\u212a\uff41\U0001f600éя中अ가½→"
signs = st.sampled_from([*"ab SXst01.,(/'\n\r\t_\x0b\x1f", *ODD, "'s", "'ll", "  ", "\n\n", "e\u0301", "\u0301"])
texts = st.lists(signs, max_size=24).map("".join)


def splitter(style: str, digits: bool):
    steps = [tokenizers.pre_tokenizers.Digits(individual_digits=True)] if digits else []
    pattern = list(STYLES)[NAMES.index(style)]
    steps.append(tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated"))
    return tokenizers.pre_tokenizers.Sequence(steps)


def counter(style: str, digits: bool = False) -> PieceCounter:
    """Count a value that identifies the parts instead of tokens."""
    split = splitter(style, digits)

    def encode(pieces: Sequence[str]) -> list[int]:
        return [sum(zlib.crc32(part.encode()) & 0xFFFFF for part, _ in split.pre_tokenize_str(each)) for each in pieces]

    return PieceCounter(encode, STYLES[list(STYLES)[NAMES.index(style)]], "")


@pytest.fixture(scope="module")
def counters() -> dict[tuple[str, bool], PieceCounter]:
    return {(style, digits): counter(style, digits) for style in NAMES for digits in (False, True)}


@settings(max_examples=1500)
@given(rows=st.lists(texts, min_size=1, max_size=3))
@example(rows=["foo  1", "x \tfoo", ".\n/(foo", "\n    return 'x'", "don't", "x''s 's", "\u00a0 a", "a\n \n  b"])
@pytest.mark.parametrize("digits", [False, True])
@pytest.mark.parametrize("style", NAMES)
def test_pieces_are_split_like_the_whole_text(counters, style, digits, rows):
    count = counters[style, digits]
    assert count(pa.array(rows)).tolist() == count.encode(rows)


@pytest.mark.parametrize("style", NAMES)
def test_pieces_are_as_short_as_words(style):
    met: list[str] = []

    def encode(pieces: Sequence[str]) -> list[int]:
        met.extend(pieces)
        return [1] * len(pieces)

    PieceCounter(encode, STYLES[list(STYLES)[NAMES.index(style)]], "")(
        pa.array(["def parse(self):\n    return self.x12"])
    )
    apart = ["def", " parse", "(", "self", "):", "\n   ", " return", " self", ".", "x", "12"]
    together = ["def", " parse", "(self", "):\n", "   ", " return", " self", ".x", "12"]
    assert met == (apart if style == "gpt2" else together)


@pytest.mark.parametrize("style", NAMES)
def test_long_runs_take_linear_time(style):
    count = PieceCounter(lambda pieces: [1] * len(pieces), STYLES[list(STYLES)[NAMES.index(style)]], "")
    count(pa.array(["x"]))
    start = time.process_time()
    for run in (" ", "\n", "\t", ".", "'", "é", "\n ", " \t"):
        count(pa.array([run * 1_000_000]))
    assert time.process_time() - start < 20  # quadratic time would take minutes


def test_a_failed_count_is_not_cached():
    answers = iter([MemoryError(), [3], [2, 3]])

    def encode(pieces: Sequence[str]) -> list[int]:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    count = PieceCounter(encode, STYLES[next(iter(STYLES))], "")
    with pytest.raises(MemoryError):
        count(pa.array(["word"]))
    assert count(pa.array(["word", "word", None])).tolist() == [3, 3, 0]
    count.forget()
    assert count(pa.array(["a word"])).tolist() == [5]


def test_a_full_table_is_cleared(monkeypatch):
    monkeypatch.setattr("tamis.text.tokens._SLOTS", 1 << 16)
    asked: list[int] = []

    def encode(pieces: Sequence[str]) -> list[int]:
        asked.append(len(pieces))
        return [len(piece) for piece in pieces]

    count = PieceCounter(encode, STYLES[next(iter(STYLES))], "")
    rows = [" ".join(f"{number:06d}" for number in range(first, first + 9000)) for first in range(0, 90_000, 9000)] * 2
    assert count(pa.array(rows)).tolist() == [len(row) for row in rows]
    assert sum(asked) > 90_000
    assert count.used <= len(count.keys)
