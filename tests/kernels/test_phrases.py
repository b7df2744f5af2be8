"""Compare phrase and character counts with reference implementations."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.kernels.phrases import build_automaton, character_set, count_members, count_phrases
from tamis.kernels.unicode_tables import KINDS, POINTS
from tamis.text.segment import buffers
from tests import naive

small = st.text(st.sampled_from("abAB你_ \n."), max_size=30)
phrases = st.lists(st.text(st.sampled_from("ab你 "), min_size=1, max_size=4), min_size=1, max_size=6, unique=True)


def count(rows: list[str], listed: list[str], *, whole: bool) -> np.ndarray:
    data, offsets = buffers(pa.array(rows, pa.string()))
    out = np.zeros((3, len(rows)), np.int64)
    count_phrases(data, offsets, *build_automaton(listed), whole, POINTS, KINDS, out)
    return out


def occurrences(text: str, phrase: str, *, whole: bool) -> int:
    lower, found = text.lower(), 0
    for at in range(len(text)):
        if lower.startswith(phrase, at):
            around = (lower[at - 1 : at], lower[at + len(phrase) :][:1])
            inside = any(c == "_" or (c.isalnum() and not naive.is_unspaced(c)) for c in around if c)
            found += not (whole and inside)
    return found


@settings(deadline=None, max_examples=300)
@given(st.lists(small, max_size=3), phrases, st.booleans())
def test_matches_match_the_reference(rows: list[str], listed: list[str], whole: bool) -> None:
    found = count(rows, listed, whole=whole)
    for row, text in enumerate(rows):
        assert found[0, row] == sum(occurrences(text, phrase, whole=whole) for phrase in listed)
        assert found[2, row] == occurrences(text, listed[0], whole=whole)


long_rows = st.lists(
    st.sampled_from(
        ["Privacy Policy", "privacy", " policy", "use of Cookies", "TERMS of use", "x" * 61, " filler ", "\n\n", "é"]
    ),
    max_size=14,
).map("".join)


@settings(deadline=None, max_examples=300)
@given(st.lists(long_rows, max_size=4), st.booleans())
def test_a_few_long_phrases_are_found_at_any_position(rows: list[str], whole: bool) -> None:
    """Such phrases are searched for by their rarest bytes first, 64 positions at a time."""
    listed = ["privacy policy", "cookies", "terms of use", "filler x"]
    found = count([*rows, " " * 80], listed, whole=whole)  # padding, so that the search by rare bytes covers every row
    for row, text in enumerate(rows):
        assert found[0, row] == sum(occurrences(text, phrase, whole=whole) for phrase in listed)
        assert found[2, row] == occurrences(text, listed[0], whole=whole)


def test_paragraphs_with_a_match_are_counted_once() -> None:
    assert count(["x x\nx\n\ny\n\n\nX\r\n\r\nx", ""], ["x"], whole=False)[1].tolist() == [3, 0]


def test_a_phrase_inside_another_is_found_too() -> None:
    assert count(["ushers"], ["he", "she", "hers", "his"], whole=False)[0].tolist() == [3]


def test_an_exact_automaton_is_case_sensitive() -> None:
    data, offsets = buffers(pa.array(["Ab aB ab É é"]))
    out = np.zeros((3, 1), np.int64)
    count_phrases(data, offsets, *build_automaton(["Ab", "ab", "É"], exact=True), False, POINTS, KINDS, out)
    assert out[0].tolist() == [3]


@settings(deadline=None)
@given(st.text(st.sampled_from(naive.ALPHABET), max_size=40))
def test_members_are_counted_without_surrounding_space(text: str) -> None:
    data, offsets = buffers(pa.array([text]))
    out = np.zeros(1, np.int64)
    count_members(data, offsets, character_set("aé \n你"), POINTS, KINDS, out)
    assert out[0] == sum(character in "aé \n你" for character in text.strip())
