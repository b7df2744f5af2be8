"""Filters on one measure of a document: its length, words, characters or lines.

Each filter has one score and one rule. Defaults are those of NeMo Curator, which took most of them from Gopher (Rae et
al. 2021) and C4 (Raffel et al. 2020). Shares are between 0 and 1. A missing or empty text has no characters, words or
lines, and all its shares are 0.
"""

from __future__ import annotations

import re
from typing import Literal

import numpy as np

from tamis.batch import Batch, Facts
from tamis.operators import Filter, Rule, Scores, at_least, at_most, between, operator
from tamis.text.passages import Passages, passages_of
from tamis.text.segment import WORD_STATS, Words, WordStats, ended_lines, ratio, text_stats


def text_facts(batch: Batch) -> Facts:
    return batch.facts("text", text_stats)


def word_facts(batch: Batch, words: Words) -> Facts:
    return batch.facts("text", WORD_STATS[words])


class MarkingFilter(Filter):
    """A filter whose scores count passages of a text, which can be marked."""

    def passages(self, text: str, score: str) -> Passages:
        return passages_of(text, score)


class WordFilter(MarkingFilter):
    """A filter with a parameter `words`, the definition of a word."""

    words: Words | None


@operator(reads="text", writes="words")
class WordCount(WordFilter):
    """Keep documents with 50 to 100,000 words (Rae et al. 2021).

    >>> WordCount().score(Batch.from_rows([{"text": "one two  three"}, {"text": None}]))["words"].tolist()
    [3, 0]
    """

    min_words: int | None = 50
    max_words: int | None = 100_000
    words: Words = "auto"
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        return {"words": word_facts(batch, self.words)["words"]}

    def rules(self) -> list[Rule]:
        return [between("words", self.min_words, self.max_words)]


@operator(reads="text", writes="characters")
class CharacterCount(Filter):
    """Keep texts with at least 6 characters, DataComp's bound for captions (Gadre et al. 2023).

    >>> CharacterCount().score(Batch.from_rows([{"text": "caf\u00e9"}, {"text": None}]))["characters"].tolist()
    [4, 0]
    """

    min_characters: int | None = 6
    max_characters: int | None = None
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        return {"characters": text_facts(batch)["chars"]}

    def rules(self) -> list[Rule]:
        return [between("characters", self.min_characters, self.max_characters)]


@operator(reads="text", writes="mean_word_length")
class MeanWordLength(WordFilter):
    """Keep documents whose words have 3 to 10 characters on average (Rae et al. 2021).

    Characters in words / words. In scripts without spaces each character is a word unless `words="dictionary"`; lower
    the minimum for them.

    >>> MeanWordLength().score(Batch.from_rows([{"text": "a bcd"}]))["mean_word_length"].tolist()
    [2.0]
    """

    min_mean_word_length: float | None = 3
    max_mean_word_length: float | None = 10
    words: Words = "auto"
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        found = word_facts(batch, self.words)
        return {"mean_word_length": ratio(found["chars"], found["words"])}

    def rules(self) -> list[Rule]:
        return [between("mean_word_length", self.min_mean_word_length, self.max_mean_word_length)]


@operator(reads="text", writes="longest_word")
class LongestWord(WordFilter):
    """Drop documents with a word of more than 1,000 characters, such as minified code or base64 (Raffel et al. 2020).

    >>> LongestWord().score(Batch.from_rows([{"text": "a bcd ef"}]))["longest_word"].tolist()
    [3]
    """

    max_longest_word: int = 1000
    words: Words = "auto"
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        return {"longest_word": word_facts(batch, self.words)["longest"]}

    def rules(self) -> list[Rule]:
        return [at_most("longest_word", self.max_longest_word)]


@operator(reads="text", writes="symbols_to_words")
class SymbolsToWords(WordFilter):
    """Drop documents in which more than 10 % of the words are symbols (Rae et al. 2021).

    Symbols / words. A symbol is a word that consists of an ellipsis ("..." or the character, with or without brackets) or
    that is more than half '#'. NeMo Curator counts runs of '#' instead, so that '##' is no symbol there.

    >>> SymbolsToWords().score(Batch.from_rows([{"text": "and so on ... #"}]))["symbols_to_words"].tolist()
    [0.4]
    """

    max_symbols_to_words: float = 0.1
    words: Words = "auto"
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        found = word_facts(batch, self.words)
        return {"symbols_to_words": ratio(found["symbols"], found["words"])}

    def rules(self) -> list[Rule]:
        return [at_most("symbols_to_words", self.max_symbols_to_words)]


@operator(reads="text", writes="alphabetic_words")
class WordsWithoutAlphabets(WordFilter):
    """Keep documents in which at least 80 % of the words contain a letter of any script (Rae et al. 2021).

    >>> WordsWithoutAlphabets().score(Batch.from_rows([{"text": "a1 22 b 3,5"}]))["alphabetic_words"].tolist()
    [0.5]
    """

    min_alphabetic_words: float = 0.8
    words: Words = "auto"
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        found = word_facts(batch, self.words)
        return {"alphabetic_words": ratio(found["alphabetic"], found["words"])}

    def rules(self) -> list[Rule]:
        return [at_least("alphabetic_words", self.min_alphabetic_words)]


@operator(reads="text", writes="common_words")
class CommonEnglishWords(WordFilter):
    """Keep documents with at least two occurrences of common English words (Rae et al. 2021).

    Occurrences of the, be, to, of, and, that, have, with, in lower case only; so a text in capitals has none. For other
    languages, set `common_words`.

    >>> CommonEnglishWords().score(Batch.from_rows([{"text": "The cat and the dog"}]))["common_words"].tolist()
    [2]
    """

    min_common_words: int = 2
    common_words: list[str] | None = None
    words: Words = "auto"
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        stats = WORD_STATS[self.words] if self.common_words is None else WordStats(self.words, tuple(self.common_words))
        return {"common_words": batch.facts("text", stats)["listed_exact"]}

    def rules(self) -> list[Rule]:
        return [at_least("common_words", self.min_common_words)]


@operator(reads="text", writes="non_alphanumeric")
class NonAlphaNumeric(Filter):
    """Drop documents in which more than a quarter of the characters are neither letters nor digits.

    Characters outside the alphabet / characters. The "english" alphabet of NeMo Curator is A-Z a-z 0-9, newline and
    ? ! , . (not the space). "unicode" has the letters, marks and digits of every script instead of A-Z a-z 0-9.

    >>> NonAlphaNumeric().score(Batch.from_rows([{"text": "a b!"}, {"text": ""}]))["non_alphanumeric"].tolist()
    [0.25, 0.0]
    """

    max_non_alphanumeric: float = 0.25
    alphabet: Literal["english", "unicode"] = "english"
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        found = text_facts(batch)
        inside = found["plain"]
        if self.alphabet == "unicode":
            inside = found["letters"] + found["marks"] + found["digits"] + found["signs"]
        return {"non_alphanumeric": ratio(found["chars"] - inside, found["chars"])}

    def rules(self) -> list[Rule]:
        return [at_most("non_alphanumeric", self.max_non_alphanumeric)]


@operator(reads="text", writes="numbers")
class Numbers(Filter):
    """Drop documents of which more than 15 % are digits of any script: digits / characters.

    >>> Numbers().score(Batch.from_rows([{"text": "in 1999"}, {"text": "\u0663 \u0664 \u0665"}]))["numbers"].round(2).tolist()
    [0.57, 0.6]
    """

    max_numbers: float = 0.15
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        found = text_facts(batch)
        return {"numbers": ratio(found["digits"], found["chars"])}

    def rules(self) -> list[Rule]:
        return [at_most("numbers", self.max_numbers)]


@operator(reads="text", writes="white_space")
class WhiteSpace(Filter):
    """Drop documents of which more than a quarter is white space: white space / characters.

    White space is space, tab, newline, carriage return and backspace, as in NeMo Curator.

    >>> WhiteSpace().score(Batch.from_rows([{"text": "a  b"}]))["white_space"].tolist()
    [0.5]
    """

    max_white_space: float = 0.25
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        found = text_facts(batch)
        return {"white_space": ratio(found["blanks"], found["chars"])}

    def rules(self) -> list[Rule]:
        return [at_most("white_space", self.max_white_space)]


@operator(reads="text", writes="parentheses")
class Parentheses(Filter):
    """Drop documents of which more than 10 % are brackets: brackets / characters.

    Brackets are ( ) [ ] { } and the mathematical angle brackets.

    >>> Parentheses().score(Batch.from_rows([{"text": "f(x)[0]"}]))["parentheses"].round(2).tolist()
    [0.57]
    """

    max_parentheses: float = 0.1
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        found = text_facts(batch)
        return {"parentheses": ratio(found["brackets"], found["chars"])}

    def rules(self) -> list[Rule]:
        return [at_most("parentheses", self.max_parentheses)]


@operator(reads="text", writes="url_share")
class Urls(MarkingFilter):
    """Drop documents of which more than 20 % are URLs: characters in URLs / characters.

    A URL starts with http:// or https:// and ends before white space or one of < > " '. A regular expression in
    `pattern` replaces this definition and is much slower (Python's `re`).

    >>> Urls().score(Batch.from_rows([{"text": "see http://a.org/x"}]))["url_share"].round(2).tolist()
    [0.78]
    """

    max_url_share: float = 0.2
    pattern: str | None = None
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        found = text_facts(batch)
        chars = found["url_chars"]
        if self.pattern is not None:
            chars = np.array([sum(map(len, urls)) for urls in _matches(self.pattern, batch)], np.int64)
        return {"url_share": ratio(chars, found["chars"])}

    def rules(self) -> list[Rule]:
        return [at_most("url_share", self.max_url_share)]


@operator(reads="text", writes="pornographic_urls")
class PornographicUrls(Filter):
    """Drop documents with a URL that contains "porn", in upper or lower case. URLs are defined as in `Urls`.

    >>> PornographicUrls().score(Batch.from_rows([{"text": "http://porn.example"}]))["pornographic_urls"].tolist()
    [1]
    """

    max_pornographic_urls: int = 0
    pattern: str | None = None
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        if self.pattern is None:
            return {"pornographic_urls": text_facts(batch)["porn_urls"]}
        counts = [sum("porn" in url.lower() for url in urls) for urls in _matches(self.pattern, batch)]
        return {"pornographic_urls": np.array(counts, np.int64)}

    def rules(self) -> list[Rule]:
        return [at_most("pornographic_urls", self.max_pornographic_urls)]


def _matches(pattern: str, batch: Batch) -> list[list[str]]:
    compiled = re.compile(pattern)
    return [[match.group() for match in compiled.finditer(text or "")] for text in batch["text"].to_pylist()]


@operator(reads="text", writes="bullet_lines")
class BulletPoints(MarkingFilter):
    """Drop documents in which more than 90 % of the lines begin with a bullet (Rae et al. 2021).

    Lines that begin with a bullet / non-blank lines. Bullets are U+2022 and eleven similar characters, not '-' or '*';
    white space before them is ignored.

    >>> BulletPoints().score(Batch.from_rows([{"text": "List\\n\u2022 a\\n\\n \u2022 b\\n\u2022 c"}]))["bullet_lines"].tolist()
    [0.75]
    """

    max_bullet_lines: float = 0.9
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        found = text_facts(batch)
        bullets = found["bullet_lines"] + found["disc_lines"] + found["other_bullet_lines"]
        return {"bullet_lines": ratio(bullets, found["lines"])}

    def rules(self) -> list[Rule]:
        return [at_most("bullet_lines", self.max_bullet_lines)]


@operator(reads="text", writes="unpunctuated_lines")
class Punctuation(Filter):
    """Drop documents in which more than 85 % of the lines end without . ? ! " or ' (Raffel et al. 2020).

    Such lines / non-blank lines; white space at the end of a line is ignored. With `stops="unicode"` a line may also end
    in a full stop of any script, followed by closing quotes and brackets or not, and in any letter of Thai and Lao, which
    have no full stop.

    >>> Punctuation().score(Batch.from_rows([{"text": "Home\\nIt rains. \\nAbout"}]))["unpunctuated_lines"].round(2).tolist()
    [0.67]
    """

    max_unpunctuated_lines: float = 0.85
    stops: Literal["english", "unicode"] = "english"
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        found = text_facts(batch)
        ended = found["marked_lines"] if self.stops == "english" else batch.facts("text", ended_lines)["ended_lines"]
        return {"unpunctuated_lines": ratio(found["lines"] - ended, found["lines"])}

    def rules(self) -> list[Rule]:
        return [at_most("unpunctuated_lines", self.max_unpunctuated_lines)]


@operator(reads="text", writes="ellipsis_lines")
class Ellipsis(MarkingFilter):
    """Drop documents in which more than 30 % of the lines end in an ellipsis (Rae et al. 2021).

    Lines that end in "..." or the ellipsis character, with or without brackets, or in "read more" / non-blank lines.

    >>> Ellipsis().score(Batch.from_rows([{"text": "Once upon a...\\nRead more\\nThe\\nend."}]))["ellipsis_lines"].tolist()
    [0.5]
    """

    max_ellipsis_lines: float = 0.3
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        found = text_facts(batch)
        return {"ellipsis_lines": ratio(found["ellipsis_lines"] + found["teaser_lines"], found["lines"])}

    def rules(self) -> list[Rule]:
        return [at_most("ellipsis_lines", self.max_ellipsis_lines)]
