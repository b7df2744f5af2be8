"""Where in a text a score comes from: the passages that a page marks in a dropped row.

Scores are computed by kernels over whole batches; here one text is looked at again, to show it to a person. What is marked is
close to what the kernels count, for all dialects, and decides nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeAlias

Passages: TypeAlias = list[tuple[int, int]]
"""Pairs of character positions, in ascending order."""

_WORD = re.compile(r"\w+(?:['\N{RIGHT SINGLE QUOTATION MARK}]\w+)*")
_LINE = re.compile(r"[^\n]+")
_PARAGRAPH = re.compile(r"[^\n]+(?:\n[^\n]+)*")
_SYMBOLS = re.compile(r"#|\.\.\.|\N{HORIZONTAL ELLIPSIS}")
_NGRAMS = re.compile(r"(top|duplicate|repeated)_(\d+)_grams$")

SHORT_LINE = 30
"""Characters; Penedo et al. 2024."""


def passages_of(text: str, score: str) -> Passages:
    """The passages that a score of this name counts; [] if it says nothing about single passages.

    >>> passages_of("Home\\nA story.\\nHome", "gopher_duplicate_lines")
    [(14, 18)]
    >>> passages_of("to be or not to be", "top_2_grams")
    [(0, 5), (13, 18)]
    """
    if (found := _NGRAMS.search(score)) is not None:
        return top_ngram(text, int(found[2])) if found[1] == "top" else repeated_ngrams(text, int(found[2]))
    finder = next((find for name, find in _FINDERS.items() if score.endswith(name)), None)
    return finder(text) if finder is not None else []


def matches(text: str, pattern: re.Pattern[str]) -> Passages:
    return [found.span() for found in pattern.finditer(text)]


def phrases(text: str, listed: Iterable[str], *, whole: bool) -> Passages:
    """The occurrences of words and phrases, in any case.

    >>> phrases("Darn, darning!", ["darn"], whole=True)
    [(0, 4)]
    """
    wanted = sorted({re.escape(each) for each in listed if each}, key=len, reverse=True)
    if not wanted:
        return []
    ends = r"(?<!\w)(?:{})(?!\w)" if whole else "(?:{})"
    return matches(text, re.compile(ends.format("|".join(wanted)), re.IGNORECASE))


def top_ngram(text: str, length: int) -> Passages:
    """The occurrences of the most frequent n-gram, if it repeats."""
    words, spans = _words(text)
    grams = [tuple(words[place : place + length]) for place in range(len(words) - length + 1)]
    if not grams:
        return []
    gram, count = max(Counter(grams).items(), key=lambda item: item[1])
    return [] if count < 2 else [_span(spans, place, length) for place, each in enumerate(grams) if each == gram]


def repeated_ngrams(text: str, length: int) -> Passages:
    """The n-grams that occurred before."""
    words, spans = _words(text)
    seen: set[tuple[str, ...]] = set()
    result = []
    for place in range(len(words) - length + 1):
        gram = tuple(words[place : place + length])
        if gram in seen:
            result.append(_span(spans, place, length))
        seen.add(gram)
    return result


def _repeated(pattern: re.Pattern[str]) -> Callable[[str], Passages]:
    def find(text: str) -> Passages:
        seen: set[str] = set()
        result = []
        for found in pattern.finditer(text):
            content = found[0].strip()
            if content and content in seen:
                result.append(found.span())
            seen.add(content)
        return result

    return find


def _lines_that(keep: Callable[[str], bool]) -> Callable[[str], Passages]:
    return lambda text: [found.span() for found in _LINE.finditer(text) if found[0].strip() and keep(found[0].strip())]


def _words(text: str) -> tuple[list[str], list[tuple[int, int]]]:
    found = list(_WORD.finditer(text))
    return [each[0].lower() for each in found], [each.span() for each in found]


def _span(spans: list[tuple[int, int]], place: int, length: int) -> tuple[int, int]:
    return spans[place][0], spans[place + length - 1][1]


_FINDERS: dict[str, Callable[[str], Passages]] = {
    "duplicate_lines": _repeated(_LINE),
    "duplicate_line_chars": _repeated(_LINE),
    "unique_lines": _repeated(_LINE),
    "unique_line_chars": _repeated(_LINE),
    "duplicate_paragraphs": _repeated(_PARAGRAPH),
    "duplicate_paragraph_chars": _repeated(_PARAGRAPH),
    "unique_paragraphs": _repeated(_PARAGRAPH),
    "unique_paragraph_chars": _repeated(_PARAGRAPH),
    "bullet_lines": _lines_that(lambda line: line[0] in "-*\N{BULLET}\N{BLACK CIRCLE}\N{MIDDLE DOT}"),
    "ellipsis_lines": _lines_that(lambda line: line.endswith(("...", "\N{HORIZONTAL ELLIPSIS}", ". . ."))),
    "short_lines": _lines_that(lambda line: len(line) <= SHORT_LINE),
    "ended_lines": _lines_that(lambda line: line[-1] not in ".?!\"'"),
    "symbols_to_words": lambda text: matches(text, _SYMBOLS),
    "symbols": lambda text: matches(text, _SYMBOLS),
    "alphabetic_words": lambda text: matches(text, re.compile(r"(?<!\S)[^\sA-Za-z\u00c0-\uffff]+(?!\S)")),
    "curly_brackets": lambda text: matches(text, re.compile(r"[{}]")),
    "lorem_ipsum": lambda text: matches(text, re.compile("lorem ipsum", re.IGNORECASE)),
    "url_share": lambda text: matches(text, re.compile(r"https?://\S+")),
}
