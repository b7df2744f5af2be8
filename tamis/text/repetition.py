"""Filters on repeated lines, paragraphs, and n-grams of words or characters.

Paragraphs are separated by empty lines and trimmed. Blank paragraphs do not count, nor do blank lines, except in some
dialects. A missing or empty text repeats nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tamis.batch import Batch, Facts
from tamis.errors import ParameterError
from tamis.kernels.repetition import LONGEST, SHORTEST
from tamis.operators import Filter, Rule, Scores, at_least, at_most, between, operator
from tamis.text.quality import MarkingFilter, WordFilter, text_facts, word_facts
from tamis.text.redpajama import NormalizedStats
from tamis.text.segment import (
    NGRAM_STATS,
    WORD_STATS,
    BareStats,
    CharacterNgramStats,
    LineCopies,
    Words,
    ratio,
)
from tamis.text.web import Dialect


def ngram_facts(batch: Batch, words: Words, length: int) -> Facts:
    """Facts about n-grams of one length."""
    return {name: each[:, length - SHORTEST] for name, each in batch.facts("text", NGRAM_STATS[words]).items()}


@operator(reads="text", writes="unique_lines")
class RepeatedLines(MarkingFilter):
    """Keep documents in which at least 70 % of the lines are distinct (Rae et al. 2021).

    Distinct lines / lines, without blank lines. A text without lines scores 1.

    >>> RepeatedLines().score(Batch.from_rows([{"text": "a\\nb\\na\\n\\na"}]))["unique_lines"].tolist()
    [0.5]
    """

    min_unique_lines: float = 0.7
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        found = text_facts(batch)
        return {"unique_lines": 1 - ratio(found["line_later"], found["lines"])}

    def rules(self) -> list[Rule]:
        return [at_least("unique_lines", self.min_unique_lines)]


@operator(reads="text", writes="unique_paragraphs")
class RepeatedParagraphs(MarkingFilter):
    """Keep documents in which at least 70 % of the paragraphs are distinct (Rae et al. 2021).

    Distinct paragraphs / paragraphs. A text without paragraphs scores 1.

    >>> RepeatedParagraphs().score(Batch.from_rows([{"text": "a\\n\\nb\\n\\na\\n\\nc"}]))["unique_paragraphs"].tolist()
    [0.75]
    """

    min_unique_paragraphs: float = 0.7
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        found = text_facts(batch)
        return {"unique_paragraphs": 1 - ratio(found["paragraph_later"], found["paragraphs"])}

    def rules(self) -> list[Rule]:
        return [at_least("unique_paragraphs", self.min_unique_paragraphs)]


@operator(reads="text", writes="unique_line_chars")
class RepeatedLinesByChars(MarkingFilter):
    """Keep documents in which at least 80 % of the characters are in distinct lines (Rae et al. 2021).

    Characters of the first copy of each line / characters of lines. A text without lines scores 1.

    >>> RepeatedLinesByChars().score(Batch.from_rows([{"text": "aaaa\\nb\\nb\\n"}]))["unique_line_chars"].round(2).tolist()
    [0.83]
    """

    min_unique_line_chars: float = 0.8
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        found = text_facts(batch)
        return {"unique_line_chars": 1 - ratio(found["line_later_chars"], found["line_chars"])}

    def rules(self) -> list[Rule]:
        return [at_least("unique_line_chars", self.min_unique_line_chars)]


@operator(reads="text", writes="unique_paragraph_chars")
class RepeatedParagraphsByChars(MarkingFilter):
    """Keep documents in which at least 80 % of the characters are in distinct paragraphs (Rae et al. 2021).

    Characters of the first copy of each paragraph / characters of paragraphs. A text without paragraphs scores 1.

    >>> batch = Batch.from_rows([{"text": "aaa\\n\\nb\\n\\nb"}])
    >>> RepeatedParagraphsByChars().score(batch)["unique_paragraph_chars"].tolist()
    [0.8]
    """

    min_unique_paragraph_chars: float = 0.8
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        found = text_facts(batch)
        return {"unique_paragraph_chars": 1 - ratio(found["paragraph_later_chars"], found["paragraph_chars"])}

    def rules(self) -> list[Rule]:
        return [at_least("unique_paragraph_chars", self.min_unique_paragraph_chars)]


def _check_length(name: str, length: int, shortest: int = SHORTEST, longest: int = LONGEST) -> None:
    if not shortest <= length <= longest:
        raise ParameterError(f"`n` of `{name}` must be from {shortest} to {longest}, got {length}")


def _with_length(columns: dict[str, str], length: int) -> dict[str, str]:
    """Names of scores and columns with the length of the n-grams, since a recipe may use several lengths."""
    pairs = ((name.replace("ngrams", f"{length}_grams"), column) for name, column in columns.items())
    return {name: column.replace("ngrams", f"{length}_grams") for name, column in pairs}


@operator(reads="text", writes="top_ngrams")
class RepeatingTopNGrams(WordFilter):
    """Drop documents in which the most frequent word n-gram makes up more than 20 % of the text (Rae et al. 2021).

    Occurrences of the most frequent n-gram * its characters, including the spaces between its words / characters. Among
    equally frequent n-grams the first in the text counts, so the score is deterministic. A text of fewer than n words
    scores 1, as in NeMo Curator. Gopher's bounds are 0.20, 0.18 and 0.16 for n = 2, 3 and 4. The score is named
    top_2_grams, top_3_grams and so on.

    >>> RepeatingTopNGrams().score(Batch.from_rows([{"text": "a b c a b"}]))["top_2_grams"].round(2).tolist()
    [0.67]
    """

    n: int = 2
    max_top_ngrams: float = 0.2
    words: Words = "auto"
    column: str = "text"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_length(self.name, self.n)

    def score_columns(self) -> dict[str, str]:
        return _with_length(super().score_columns(), self.n)

    def score(self, batch: Batch) -> Scores:
        found, chars = ngram_facts(batch, self.words, self.n), text_facts(batch)["chars"]
        share = ratio(found["top_count"] * (found["top_chars"] + self.n - 1), chars)
        return {f"top_{self.n}_grams": np.where(found["top_count"] == 0, 1.0, np.minimum(share, 1.0))}

    def rules(self) -> list[Rule]:
        return [at_most(f"top_{self.n}_grams", self.max_top_ngrams)]


@operator(reads="text", writes="duplicate_ngrams")
class RepeatingDuplicateNGrams(WordFilter):
    """Drop documents in which repeated word n-grams make up more than 20 % of the text (Rae et al. 2021).

    Characters covered by n-grams that occurred earlier in the text, including the spaces between words, each counted once
    / characters. A text of fewer than n words scores 1, as in NeMo Curator. Gopher's bounds are 0.15, 0.14, 0.13, 0.12,
    0.11 and 0.10 for n = 5 to 10. The score is named duplicate_5_grams and so on.

    >>> RepeatingDuplicateNGrams().score(Batch.from_rows([{"text": "a b c a b"}]))["duplicate_2_grams"].round(2).tolist()
    [0.33]
    """

    n: int = 2
    max_duplicate_ngrams: float = 0.2
    words: Words = "auto"
    column: str = "text"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_length(self.name, self.n)

    def score_columns(self) -> dict[str, str]:
        return _with_length(super().score_columns(), self.n)

    def score(self, batch: Batch) -> Scores:
        found, chars = ngram_facts(batch, self.words, self.n), text_facts(batch)["chars"]
        share = ratio(found["later_chars"], chars)
        return {f"duplicate_{self.n}_grams": np.where(found["top_count"] == 0, 1.0, np.minimum(share, 1.0))}

    def rules(self) -> list[Rule]:
        return [at_most(f"duplicate_{self.n}_grams", self.max_duplicate_ngrams)]


@operator(reads="text", writes="repeated_ngrams")
class WordRepetition(WordFilter):
    """Drop documents in which more than half of the word n-grams repeat (Laurençon et al. 2022).

    Occurrences of n-grams that occur at least twice / n-grams, in lower case. Words are split as `words` says and begin and
    end with a letter: what is before and after is cut off, and words without letters do not count. A text of fewer than n
    words scores 0. The score is named repeated_10_grams and so on.

    The defaults are those of Data-Juicer's `word_repetition_filter`. ROOTS used n = 5 and a maximum of 0.19 for English. Both
    cut off listed characters instead, with the same result in most texts. The list lacks control characters, rare symbols
    and some digits of other scripts, and has a few letters, such as heh in Arabic and the vowel sign aa in Hindi. Both
    split only at spaces, tabs and newlines, which `words="whitespace"` is closest to; "auto" counts each letter of Chinese,
    Japanese and Thai as a word.

    >>> WordRepetition(n=2).score(Batch.from_rows([{"text": "A b, c: a b 3"}]))["repeated_2_grams"].tolist()
    [0.5]
    """

    n: int = 10
    max_repeated_ngrams: float = 0.5
    words: Words = "auto"
    column: str = "text"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_length(self.name, self.n)

    def score_columns(self) -> dict[str, str]:
        return _with_length(super().score_columns(), self.n)

    def score(self, batch: Batch) -> Scores:
        found = batch.facts("text", BareStats(NGRAM_STATS[self.words]))
        repeated, every = (found[name][:, self.n - SHORTEST] for name in ("all_count", "total_count"))
        return {f"repeated_{self.n}_grams": ratio(repeated, every)}

    def rules(self) -> list[Rule]:
        return [at_most(f"repeated_{self.n}_grams", self.max_repeated_ngrams)]


@operator(reads="text", writes="repeated_character_ngrams")
class CharacterRepetition(Filter):
    """Drop documents in which a few character n-grams make up more than half of all (Laurençon et al. 2022).

    Occurrences of the most frequent n-grams / n-grams. Of d distinct n-grams, the floor(sqrt(d)) most frequent ones count,
    and of these only those that occur at least twice. An n-gram is n characters in a row, including white space, in upper
    and lower case. A text of fewer than n characters scores 0. The score is named repeated_character_10_grams and so on.

    The defaults are those of Data-Juicer's `character_repetition_filter`, and the scores are the same. ROOTS used a maximum
    of 0.106 for English, after making white space uniform.

    >>> batch = Batch.from_rows([{"text": "abcabcabc"}])
    >>> CharacterRepetition(n=2).score(batch)["repeated_character_2_grams"].tolist()
    [0.375]
    """

    n: int = 10
    max_repeated_character_ngrams: float = 0.5
    column: str = "text"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_length(self.name, self.n, 1, _MOST_CHARACTERS)

    def score_columns(self) -> dict[str, str]:
        return _with_length(super().score_columns(), self.n)

    def score(self, batch: Batch) -> Scores:
        found = batch.facts("text", CharacterNgramStats(self.n))
        return {f"repeated_character_{self.n}_grams": ratio(found["top"], found["all"])}

    def rules(self) -> list[Rule]:
        return [at_most(f"repeated_character_{self.n}_grams", self.max_repeated_character_ngrams)]


_MOST_CHARACTERS = 100  # each n-gram is hashed, so the time grows with n

_SCORES = (
    "gopher_duplicate_lines", "gopher_duplicate_paragraphs", "gopher_duplicate_line_chars",
    "gopher_duplicate_paragraph_chars", "gopher_top_2_grams", "gopher_top_3_grams", "gopher_top_4_grams",
    "gopher_duplicate_5_grams", "gopher_duplicate_6_grams", "gopher_duplicate_7_grams", "gopher_duplicate_8_grams",
    "gopher_duplicate_9_grams", "gopher_duplicate_10_grams",
)  # fmt: skip


@operator(reads="text", writes=_SCORES, version=2)
class GopherRepetition(WordFilter):
    """Drop documents that repeat themselves, by the rules of MassiveWeb (Rae et al. 2021, table A1).

    score                 datatrove             dolma                  dclm                    paper
    duplicate_lines       copies after the      all copies of lines    all copies of trimmed   copies after the
                          first / lines, plus   that repeat, blank     lines / lines           first / lines
                          one for a newline     ones too / all lines
                          at either end
    duplicate_line_chars  their characters      / characters in words  / characters of lines   / characters of lines
                          / characters
    duplicate_paragraphs  as lines              0                      as lines                as lines
    top_n_grams           occurrences * length  occurrences * letters  longest of the most     occurrences * letters
                          with spaces           / characters in words  frequent, if it         / characters in words,
                          / characters                                 repeats                 if it repeats
    duplicate_n_grams     copies after the      all occurrences, with  words inside, once      as dclm
                          first, not            overlaps               / characters in words
                          overlapping           / all n-grams
                          / characters

    redpajama scores lines and paragraphs 0, computes top_n_grams as paper does and duplicate_n_grams as dclm does, both on
    the text without ASCII punctuation, in lower case and in NFD.

    Letters are the characters of the words. Among equally frequent n-grams the first in the text counts, except in dclm.
    `words=None` uses the dialect's definition of a word: datatrove counts punctuation marks as words ("tokens"), dolma
    and redpajama split at white space, dclm follows UAX #29, paper is "auto". datatrove joins the words of an n-gram before
    it compares them and counts lines of spaces; here n-grams are equal if their words are, and blank lines do not count.

    >>> batch = Batch.from_rows([{"text": "one two\\none two\\none two three"}])
    >>> scores = GopherRepetition().score(batch)
    >>> [round(float(scores[f"gopher_{name}"][0]), 2) for name in ("duplicate_lines", "duplicate_line_chars", "top_2_grams")]
    [0.33, 0.24, 0.72]
    """

    max_duplicate_lines: float | None = 0.30
    max_duplicate_paragraphs: float | None = 0.30
    max_duplicate_line_chars: float | None = 0.20
    max_duplicate_paragraph_chars: float | None = 0.20
    max_top_2_grams: float | None = 0.20
    max_top_3_grams: float | None = 0.18
    max_top_4_grams: float | None = 0.16
    max_duplicate_5_grams: float | None = 0.15
    max_duplicate_6_grams: float | None = 0.14
    max_duplicate_7_grams: float | None = 0.13
    max_duplicate_8_grams: float | None = 0.12
    max_duplicate_9_grams: float | None = 0.11
    max_duplicate_10_grams: float | None = 0.10
    dialect: Dialect = "datatrove"
    words: Words | None = None
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        how: Words = self.words or _WORDS[self.dialect]
        text = text_facts(batch)
        if self.dialect in ("dclm", "dolma"):
            copies = batch.facts("text", LineCopies(trim=self.dialect == "dclm"))
            text = {**text, **{f"copies_{name}": values for name, values in copies.items()}}
        if self.dialect == "redpajama":
            letters = batch.facts("text", NormalizedStats(WORD_STATS[how]))["chars"]
            ngrams = batch.facts("text", NormalizedStats(NGRAM_STATS[how]))
        else:
            letters = word_facts(batch, how)["chars"]
            ngrams = batch.facts("text", NGRAM_STATS[how])
        scores = dict(zip(_SCORES[:4], _LINES[self.dialect](text, letters), strict=True))
        for n in range(2, 11):
            name = f"gopher_top_{n}_grams" if n < 5 else f"gopher_duplicate_{n}_grams"
            measure = _TOP[self.dialect] if n < 5 else _DUPLICATE[self.dialect]
            found = {fact: values[:, n - SHORTEST] for fact, values in ngrams.items()}
            scores[name] = measure(found, n, text["chars"], letters)
        return scores

    def rules(self) -> list[Rule]:
        return [between(name, None, getattr(self, name.replace("gopher_", "max_"))) for name in _SCORES]


_Four = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
_NGRAMS = Callable[[Facts, int, np.ndarray, np.ndarray], np.ndarray]

_WORDS: dict[str, Words] = {
    "datatrove": "tokens", "dolma": "whitespace", "dclm": "unicode", "redpajama": "whitespace", "paper": "auto",
}  # fmt: skip


def _lines_datatrove(text: Facts, letters: np.ndarray) -> _Four:
    # Split at newlines, a text that begins or ends with one has an empty line there.
    before = (text["newlines"] > 0) & (text["first_line_open"] == 0)
    after = (text["newlines"] > 0) & (text["last_line_open"] == 0)
    return (
        ratio(text["line_later"] + (before & after), text["lines"] + before + after),
        ratio(text["paragraph_later"], text["paragraphs"]),
        ratio(text["line_later_chars"], text["chars"]),
        ratio(text["paragraph_later_chars"], text["chars"]),
    )


def _lines_dolma(text: Facts, letters: np.ndarray) -> _Four:
    none = np.zeros(len(letters))
    return (
        ratio(text["copies_all"], text["newlines"] + 1),
        none,
        ratio(text["copies_all_chars"], np.maximum(letters, 1)),
        none,
    )


def _lines_dclm(text: Facts, letters: np.ndarray) -> _Four:
    return (
        ratio(text["copies_all"], text["lines"]),
        ratio(text["paragraph_all"], text["paragraphs"]),
        ratio(text["copies_all_chars"], text["copies_chars"]),
        ratio(text["paragraph_all_chars"], text["paragraph_chars"]),
    )


def _lines_redpajama(text: Facts, letters: np.ndarray) -> _Four:
    none = np.zeros(len(letters))
    return none, none, none, none


def _lines_paper(text: Facts, letters: np.ndarray) -> _Four:
    return (
        ratio(text["line_later"], text["lines"]),
        ratio(text["paragraph_later"], text["paragraphs"]),
        ratio(text["line_later_chars"], text["line_chars"]),
        ratio(text["paragraph_later_chars"], text["paragraph_chars"]),
    )


def _top_datatrove(found: Facts, n: int, chars: np.ndarray, letters: np.ndarray) -> np.ndarray:
    return ratio(found["top_count"] * (found["top_chars"] + n - 1), chars)


def _top_dolma(found: Facts, n: int, chars: np.ndarray, letters: np.ndarray) -> np.ndarray:
    return ratio(found["top_count"] * found["top_chars"], letters)


def _top_dclm(found: Facts, n: int, chars: np.ndarray, letters: np.ndarray) -> np.ndarray:
    return np.where(found["top_count"] > 1, ratio(found["top_count"] * found["top_chars_longest"], letters), 0.0)


def _top_paper(found: Facts, n: int, chars: np.ndarray, letters: np.ndarray) -> np.ndarray:
    return np.where(found["top_count"] > 1, ratio(found["top_count"] * found["top_chars"], letters), 0.0)


def _duplicate_datatrove(found: Facts, n: int, chars: np.ndarray, letters: np.ndarray) -> np.ndarray:
    return ratio(found["greedy_chars"], chars)


def _duplicate_dolma(found: Facts, n: int, chars: np.ndarray, letters: np.ndarray) -> np.ndarray:
    return ratio(found["all_chars"], found["total_chars"])


def _duplicate_once(found: Facts, n: int, chars: np.ndarray, letters: np.ndarray) -> np.ndarray:
    return ratio(found["covered_chars"], letters)


_LINES = {
    "datatrove": _lines_datatrove, "dolma": _lines_dolma, "dclm": _lines_dclm, "redpajama": _lines_redpajama,
    "paper": _lines_paper,
}  # fmt: skip
_TOP: dict[str, _NGRAMS] = {
    "datatrove": _top_datatrove, "dolma": _top_dolma, "dclm": _top_dclm, "redpajama": _top_paper, "paper": _top_paper,
}  # fmt: skip
_DUPLICATE: dict[str, _NGRAMS] = {
    "datatrove": _duplicate_datatrove, "dolma": _duplicate_dolma, "dclm": _duplicate_once, "redpajama": _duplicate_once,
    "paper": _duplicate_once,
}  # fmt: skip
