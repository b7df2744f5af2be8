"""Compare the word kernels with reference implementations, and with Unicode's conformance file if it is installed."""

# ruff: noqa: RUF001

from __future__ import annotations

import itertools
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.kernels import unicode_tables as tables
from tamis.kernels.boundaries import find_breaks
from tamis.text.segment import STOP_WORDS, WORD_DEFINITIONS, WORD_MARKS, WORD_STATS, buffers, split_words
from tests import naive

FOUND = [
    mode for mode in WORD_DEFINITIONS if mode != "dictionary"
]  # "dictionary" changes the text before the kernels run

pieces = [
    *"aAzZ019.,;:!?'’\"-–—~+*^/\\@|#%&()[]{}<>=_$…°€é你", "...", "Mr", "Inc.", "and/or", "n't", "'s", "'ll", "://", "www.", " ",
]  # fmt: skip
LONG = [" " * 64, "a" * 63, "word " * 30, "Mr. Smith, (who) ran. " * 9, "f(x) a_b [1] " * 6, "x" * 5000, "é" * 2100]
LONG += ["'q" + "a" * 99, "(" + "b" * 3000]
texts = st.one_of(
    st.lists(st.sampled_from(pieces), max_size=14).map("".join),
    st.text(st.sampled_from(naive.ALPHABET), max_size=60),
    st.lists(st.sampled_from(["the", "To", "a'b", "3.5", "你", "...", " ", "\n", "#", "…", "ไทย"]), max_size=30).map(
        " ".join
    ),
    st.tuples(st.sampled_from(naive.SAMPLES), st.integers(0, 40), st.integers(0, 120)).map(lambda s: s[0][s[1] : s[2]]),
)


@pytest.mark.parametrize("mode", FOUND)
@pytest.mark.parametrize("text", naive.SAMPLES + naive.ODD)
def test_words_of_samples_match_the_reference(text: str, mode: str) -> None:
    assert split_words(text, mode) == naive.words(text, mode)


@pytest.mark.parametrize("mode", FOUND)
@settings(deadline=None, max_examples=150)
@given(texts)
def test_words_match_the_reference(mode: str, text: str) -> None:
    assert split_words(text, mode) == naive.words(text, mode)


@pytest.mark.parametrize("mode", FOUND)
@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.lists(st.one_of(texts, st.sampled_from(LONG)), max_size=9).map("".join), max_size=5), st.integers(0, 3)
)
def test_words_do_not_depend_on_the_position_of_rows(mode: str, rows: list[str], skipped: int) -> None:
    """Kernels read 64 bytes at a time; rows may start and end anywhere in a block, and words may span several blocks."""
    column = pa.array(rows, pa.string())[skipped:]
    found = WORD_MARKS[mode](column)
    raw, (starts, stops) = found.data.tobytes(), found.spans()
    here = [raw[start:stop].decode() for start, stop in zip(starts, stops, strict=True)]
    assert here == [word for text in rows[skipped:] for word in naive.words(text, mode)]
    counted = WORD_STATS[mode](column)
    for row, text in enumerate(rows[skipped:]):
        assert {name: array[row] for name, array in counted.items()} == naive.word_stats(text, mode, STOP_WORDS)


@pytest.mark.parametrize("mode", FOUND)
@settings(deadline=None, max_examples=60)
@given(st.lists(texts, max_size=4))
def test_word_statistics_match_the_reference(mode: str, rows: list[str]) -> None:
    found = WORD_STATS[mode](pa.array(rows, pa.string()))
    for row, text in enumerate(rows):
        assert {name: array[row] for name, array in found.items()} == naive.word_stats(text, mode, STOP_WORDS)


@pytest.mark.parametrize("mode", FOUND)
def test_word_statistics_of_samples(mode: str) -> None:
    rows = naive.SAMPLES + naive.ODD
    found = WORD_STATS[mode](pa.array(rows, pa.large_string()))
    for row, text in enumerate(rows):
        assert {name: array[row] for name, array in found.items()} == naive.word_stats(text, mode, STOP_WORDS), text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(Don't!)", "( Do n't ! )"),
        ("and so... it ends...", "and so ... it ends ..."),
        ("the U.S. and e.g. J. Smith.", "the U.S. and e.g. J. Smith ."),
        ("Mr. Miss. in N.Y. v. Roe, Inc.", "Mr. Miss. in N.Y. v. Roe , Inc."),
        ("it's we'll you’ve I'm she'd the 1980's", "it 's we 'll you ’ve I 'm she 'd the 1980 's"),
        ("well-known 1-2 3-D a--b", "well - known 1 - 2 3 - D a -- b"),
        ("-x x- -- /usr/bin", "-x x- -- /usr / bin"),
        ("end.Then 3.5 1,000 a,b", "end . Then 3.5 1,000 a , b"),
        ("see www.a.com/b-c or http://a.org/x-y.", "see www.a.com/b-c or http://a.org/x-y ."),
        ("and/or either/or", "and/or either / or"),
        ("“So,” she said—twice.", "“ So , ” she said — twice ."),
        ("f(self): g(x);", "f(self ): g(x ) ;"),
        ("$5 5% C++ 20°C GPL-2+", "$ 5 5 % C++ 20 ° C GPL-2 +"),
        ("Foo::Bar a.b x=1 x=y", "Foo::Bar a.b x=1 x = y"),
        ("我来到北京。", "我来到北京 。"),
    ],
)
def test_tokens_by_hand(text: str, expected: str) -> None:
    assert split_words(text, "tokens") == expected.split()


def test_a_very_long_run_is_one_token() -> None:
    assert split_words("x-" * 1024, "tokens")[:3] == ["x", "-", "x"]
    assert split_words("x-" * 1025, "tokens") == ["x-" * 1025]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("can't stop", ["can't", " ", "stop"]),
        ("3.14 1,000", ["3.14", " ", "1,000"]),
        ("a.b", ["a.b"]),
        ("a. b", ["a", ".", " ", "b"]),
        ("foo_bar", ["foo_bar"]),
        ("Hello, world!", ["Hello", ",", " ", "world", "!"]),
        ("\r\n\n", ["\r\n", "\n"]),
        ("カタカナ", ["カタカナ"]),
        ("漢字", ["漢", "字"]),
        ("👩‍👧", ["👩‍👧"]),
        ("🇫🇷🇩🇪🇮", ["🇫🇷", "🇩🇪", "🇮"]),
        ("e\u0301te\u0301", ["e\u0301te\u0301"]),
        ("צה\"ל", ["צה\"ל"]),
        ("a  b", ["a", "  ", "b"]),
        ("x:y", ["x:y"]),
        ("1:2", ["1", ":", "2"]),
    ],
)  # fmt: skip
def test_word_boundaries_of_unicode(text: str, expected: list[str]) -> None:
    assert breaks(text) == expected
    assert naive.segments(text) == expected


def breaks(text: str) -> list[str]:
    data, offsets = buffers(pa.array([text]))
    ends = np.zeros(len(data) + 1, np.int64)
    count = find_breaks(data, offsets, tables.POINTS, tables.KINDS, ends)
    raw = data.tobytes()
    edges = [0, *ends[:count].tolist()]
    return [raw[start:stop].decode(errors="surrogatepass") for start, stop in itertools.pairwise(edges)]


def test_word_boundaries_pass_the_unicode_conformance_test() -> None:
    path = Path(os.environ.get("TAMIS_UCD", "/usr/share/unicode")) / "auxiliary" / "WordBreakTest.txt"
    if not path.is_file():
        pytest.skip("the Unicode Character Database is not installed (Debian: unicode-data, or TAMIS_UCD=folder)")
    failures = []
    for line in path.read_text(encoding="utf-8").splitlines():
        case = line.partition("#")[0].strip()
        if case:
            parts = [part.replace("×", "").split() for part in case.strip("÷ ").split("÷")]
            expected = ["".join(chr(int(code, 16)) for code in part) for part in parts]
            if breaks("".join(expected)) != expected or naive.segments("".join(expected)) != expected:
                failures.append(line)
    assert failures == []


def test_tables_agree_with_python_on_spaces_letters_and_digits() -> None:
    for point in [*range(0x3000), 0x3000, 0x4E00, 0xAC00, 0xFF10, 0x1D400, 0x1F600, 0xE0020]:
        flags = int(tables.FLAGS[tables.CLASSES[int(tables.BLOCKS[point >> 8]) << 8 | point & 255]])
        character = chr(point)
        assert bool(flags & tables.SPACE) == character.isspace()
        if character.isprintable():
            assert bool(flags & tables.LETTER) == character.isalpha()
            assert bool(flags & tables.DIGIT) == character.isdecimal()


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_every_string_type_gives_the_same_result_sliced_or_not(kind: pa.DataType) -> None:
    column = pa.array(["x", "one two", None, "three", "y"], pa.string()).cast(kind)
    assert WORD_STATS["auto"](column)["words"].tolist() == [1, 2, 0, 1, 1]
    assert WORD_STATS["auto"](column.slice(1, 3))["words"].tolist() == [2, 0, 1]
    assert WORD_STATS["auto"](column.slice(2, 0))["words"].tolist() == []


def test_nulls_count_as_empty_texts() -> None:
    assert WORD_STATS["auto"](pa.nulls(2))["words"].tolist() == [0, 0]


def test_invalid_utf8_does_not_read_beyond_its_row() -> None:
    raw = b"\xf0\x9fabc \xe4\xbd" + b"\xff\x80 \xc3"
    column = pa.Array.from_buffers(
        pa.large_string(), 2, [None, pa.py_buffer(np.array([0, 8, len(raw)], np.int64)), pa.py_buffer(raw)]
    )
    for mode in FOUND:
        assert WORD_STATS[mode](column)["words"].shape == (2,)


def test_a_long_text_of_one_character_is_one_word() -> None:
    column = pa.array(["a" * 3_000_000, "é" * 1_000_000, "你" * 1_000_000])
    found = WORD_STATS["auto"](column)
    assert found["words"].tolist() == [1, 1, 1_000_000]
    assert found["longest"].tolist() == [3_000_000, 1_000_000, 1]
