"""The quality rules of well-known web corpora: Gopher, C4, FineWeb, MADLAD-400. Each filter has several scores.

Projects compute the same rule differently. `dialect` selects whose formulas to use:

    datatrove  Hugging Face's library, which made FineWeb
    dolma      AI2's toolkit, tagger gopher_v1
    dclm       DataComp-LM and datamap-rs
    redpajama  the quality signals of RedPajama-Data-v2
    paper      as the paper defines it

Bounds are inclusive, even where a project's are not. The share of MadladSentences is the exception, since many documents
lie exactly on it (one sentence of five is 0.2). All scores of a missing or empty text are 0.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow.compute as pc

from tamis.batch import Batch, Column, Facts
from tamis.context import Context
from tamis.kernels.marks import MarkedWords
from tamis.kernels.phrases import build_automaton
from tamis.kernels.sentences import measure_sentences
from tamis.kernels.unicode_tables import KINDS, POINTS
from tamis.operators import Filter, Rule, Scores, at_least, between, less_than, operator
from tamis.text.lists import check_files, identify_files, read_list
from tamis.text.quality import MarkingFilter, WordFilter, text_facts, word_facts
from tamis.text.redpajama import NormalizedStats, RawStats
from tamis.text.segment import STOP_WORDS, WORD_MARKS, WORD_STATS, LineStats, Words, WordStats, ratio

Dialect = Literal["datatrove", "dolma", "dclm", "redpajama", "paper"]


@operator(
    reads="text",
    writes=(
        "gopher_words", "gopher_word_length", "gopher_symbols", "gopher_bullet_lines", "gopher_ellipsis_lines",
        "gopher_alphabetic_words", "gopher_stop_words",
    ),
)  # fmt: skip
class GopherQuality(WordFilter):
    """Keep documents that read like prose, by the rules of MassiveWeb (Rae et al. 2021, appendix A.1.1).

    score             datatrove                dolma                    dclm                     paper
    words             words that are not       words                    words by UAX #29         words
                      only symbols
    word_length       mean over these          median                   mean                     mean
    symbols           '#' or ellipses,         words with '#' or the    '#' and ellipses         as datatrove
                      whichever are more       ellipsis character       / words
                      / words                  / words
    bullet_lines      begin with the bullet    '-' or '*' in the first  black circle, bullet,    any bullet, '-', '*'
                      or '-' / lines           column / lines           '*', '-' / non-blank     / non-blank lines
                                                                        lines
    ellipsis_lines    end in either ellipsis   end in the character     end in any ellipsis,     end in either
                      / lines                  / lines                  also ". . ."             / non-blank lines
                                                                        / non-blank lines
    alphabetic_words  words with a letter / words
    stop_words        distinct, lower case     occurrences, lower case  occurrences, any case    as datatrove

    Symbols are punctuation, symbols and control characters by Unicode category. `words=None` uses the dialect's definition
    of a word: datatrove uses spaCy, for which a comma is a word ("tokens" is close to it), paper counts each character of a
    script without spaces ("auto"), and the other dialects split at white space.

    redpajama counts words, and their mean length, in the text without ASCII punctuation, in lower case and in NFD. Its other
    words are runs of letters and digits, and runs of other characters: alphabetic_words is the share of these with a letter
    from a to z, stop_words the share that is in `stop_words` (its own list has hundreds), and symbols are divided by them.
    Symbols are those of dclm without ". . .", bullet_lines has ten bullets including the en dash, and both line scores are
    shares of all lines. A minimum of stop_words above 1 is a count and is ignored.

    >>> batch = Batch.from_rows([{"text": "- The cat and\\n- the dog have # 2 lives..."}])
    >>> for name, value in GopherQuality().score(batch).items(): print(name, round(float(value[0]), 2))
    gopher_words 8.0
    gopher_word_length 3.12
    gopher_symbols 0.08
    gopher_bullet_lines 1.0
    gopher_ellipsis_lines 0.5
    gopher_alphabetic_words 0.58
    gopher_stop_words 3.0
    """

    min_words: int | None = 50
    max_words: int | None = 100_000
    min_word_length: float | None = 3
    max_word_length: float | None = 10
    max_symbols: float | None = 0.1
    max_bullet_lines: float | None = 0.9
    max_ellipsis_lines: float | None = 0.3
    min_alphabetic_words: float | None = 0.8
    min_stop_words: float | None = 2
    stop_words: list[str] | None = None
    dialect: Dialect = "datatrove"
    words: Words | None = None
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        how: Words = self.words or _WORDS[self.dialect]
        words = self._word_facts(batch, how)
        if self.dialect == "dclm" and self.words is None:
            words = {**words, "bounded": word_facts(batch, "unicode")["words"]}
        count, length, symbols, bullets, ellipses, alphabetic, stops = _GOPHER[self.dialect](text_facts(batch), words)
        return {
            "gopher_words": count,
            "gopher_word_length": length,
            "gopher_symbols": symbols,
            "gopher_bullet_lines": bullets,
            "gopher_ellipsis_lines": ellipses,
            "gopher_alphabetic_words": alphabetic,
            "gopher_stop_words": stops,
        }

    def _word_facts(self, batch: Batch, how: Words) -> Facts:
        if self.dialect == "redpajama":
            raw = batch.facts("text", RawStats(STOP_WORDS if self.stop_words is None else tuple(self.stop_words)))
            return {
                **batch.facts("text", NormalizedStats(WORD_STATS[how])),
                **{f"raw_{name}": raw[name] for name in raw},
            }
        if self.stop_words is not None:
            return batch.facts("text", WordStats(how, tuple(self.stop_words)))
        return word_facts(batch, how)

    def rules(self) -> list[Rule]:
        stop_words = self.min_stop_words
        if self.dialect == "redpajama" and stop_words is not None and stop_words > 1:
            stop_words = None
        return [
            between("gopher_words", self.min_words, self.max_words),
            between("gopher_word_length", self.min_word_length, self.max_word_length),
            between("gopher_symbols", None, self.max_symbols),
            between("gopher_bullet_lines", None, self.max_bullet_lines),
            between("gopher_ellipsis_lines", None, self.max_ellipsis_lines),
            between("gopher_alphabetic_words", self.min_alphabetic_words, None),
            between("gopher_stop_words", stop_words, None),
        ]


_WORDS: dict[str, Words] = {
    "datatrove": "tokens", "dolma": "whitespace", "dclm": "whitespace", "redpajama": "whitespace", "paper": "auto",
}  # fmt: skip
_Measures = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _alphabetic(words: Facts) -> np.ndarray:
    return ratio(words["alphabetic"], words["words"])


def _gopher_datatrove(text: Facts, words: Facts) -> _Measures:
    lines = text["newlines"] + text["last_line_open"]
    return (
        words["plain"],
        ratio(words["plain_chars"], words["plain"]),
        ratio(np.maximum(text["hashes"], text["ellipses"]), words["words"]),
        ratio(text["bullet_lines"] + text["dash_lines"], lines),
        ratio(text["ellipsis_lines"], lines),
        _alphabetic(words),
        words["listed_distinct"],
    )


def _gopher_dolma(text: Facts, words: Facts) -> _Measures:
    lines = text["newlines"] + 1
    return (
        words["words"],
        words["median_twice"] / 2,
        ratio(words["marked"], words["words"]),
        ratio(text["untrimmed_bullet_lines"], lines),
        ratio(text["ellipsis_lines_untrimmed"], lines),
        _alphabetic(words),
        words["listed_exact"],
    )


def _gopher_dclm(text: Facts, words: Facts) -> _Measures:
    bullets = text["disc_lines"] + text["bullet_lines"] + text["star_lines"] + text["dash_lines"]
    return (
        words.get("bounded", words["words"]),
        ratio(words["chars"], words["words"]),
        ratio(text["hashes"] + text["ellipses"] + text["spaced_ellipses"], words["words"]),
        ratio(bullets, text["lines"]),
        ratio(text["ellipsis_lines"] + text["spaced_ellipsis_lines"], text["lines"]),
        _alphabetic(words),
        words["listed"],
    )


def _gopher_redpajama(text: Facts, words: Facts) -> _Measures:
    lines = text["newlines"] + text["last_line_open"]
    return (
        words["words"],
        ratio(words["chars"], words["words"]),
        ratio(text["hashes"] + text["ellipses"], words["raw_words"]),
        ratio(words["raw_bullet_lines"], lines),
        ratio(text["ellipsis_lines"], lines),
        ratio(words["raw_alphabetic"], words["raw_words"]),
        ratio(words["raw_listed"], words["raw_words"]),
    )


def _gopher_paper(text: Facts, words: Facts) -> _Measures:
    bullets = text["disc_lines"] + text["bullet_lines"] + text["star_lines"] + text["dash_lines"]
    return (
        words["words"],
        ratio(words["chars"], words["words"]),
        ratio(np.maximum(text["hashes"], text["ellipses"]), words["words"]),
        ratio(bullets + text["other_bullet_lines"], text["lines"]),
        ratio(text["ellipsis_lines"], text["lines"]),
        _alphabetic(words),
        words["listed_distinct"],
    )


_GOPHER = {
    "datatrove": _gopher_datatrove,
    "dolma": _gopher_dolma,
    "dclm": _gopher_dclm,
    "redpajama": _gopher_redpajama,
    "paper": _gopher_paper,
}


def lorem_ipsum(column: Column) -> Facts:
    """1 for each text that contains "lorem ipsum", in any case, else 0."""
    found = pc.fill_null(pc.match_substring(column, "lorem ipsum", ignore_case=True), False)
    return {"lorem_ipsum": found.to_numpy(zero_copy_only=False).astype(np.int64)}


@operator(reads="text", writes=("c4_sentences", "c4_curly_brackets", "c4_lorem_ipsum", "c4_chars"))
class C4Quality(MarkingFilter):
    """Keep documents that pass the page rules of C4 (Raffel et al. 2020, section 2.2). `C4Lines` applies its line rules.

    At least 5 sentences, no curly bracket (code), no "lorem ipsum" (placeholder text). The "dclm" dialect requires 3
    sentences and at most 190,000 characters, as DataComp-LM's configuration does. Sentences are counted in the text as
    it is, by their full stops (see `kernels.lines`), not with a trained splitter.

    >>> batch = Batch.from_rows([{"text": "One. Two! Three?\\nLorem Ipsum {}"}])
    >>> {name: int(value[0]) for name, value in C4Quality().score(batch).items()}
    {'c4_sentences': 4, 'c4_curly_brackets': 1, 'c4_lorem_ipsum': 1, 'c4_chars': 31}
    """

    min_sentences: int | None = None
    max_curly_brackets: int | None = 0
    max_lorem_ipsum: int | None = 0
    max_chars: int | None = None
    dialect: Literal["paper", "datatrove", "dclm"] = "paper"
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        found = text_facts(batch)
        filler = batch.facts("text", lorem_ipsum)["lorem_ipsum"]
        return {
            "c4_sentences": found["sentences"],
            "c4_curly_brackets": found["curly"],
            "c4_lorem_ipsum": filler,
            "c4_chars": found["chars"],
        }

    def rules(self) -> list[Rule]:
        strict = self.dialect == "dclm"
        sentences = self.min_sentences if self.min_sentences is not None else 3 if strict else 5
        chars = self.max_chars if self.max_chars is not None else 190_000 if strict else None
        return [
            at_least("c4_sentences", sentences),
            between("c4_curly_brackets", None, self.max_curly_brackets),
            between("c4_lorem_ipsum", None, self.max_lorem_ipsum),
            between("c4_chars", None, chars),
        ]


@operator(reads="text", writes="long_paragraphs")
class C4Paragraphs(Filter):
    """Keep pages with at least three lines of 200 characters or more (mC4, Xue et al. 2021).

    >>> C4Paragraphs().score(Batch.from_rows([{"text": "x" * 200 + "\\nshort"}]))["long_paragraphs"].tolist()
    [1]
    """

    min_long_paragraphs: int = 3
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        return {"long_paragraphs": text_facts(batch)["long_lines"]}

    def rules(self) -> list[Rule]:
        return [at_least("long_paragraphs", self.min_long_paragraphs)]


@operator(
    reads="text",
    writes=("fineweb_ended_lines", "fineweb_short_lines", "fineweb_duplicate_line_chars", "fineweb_newlines"),
)
class FineWebQuality(WordFilter):
    """Drop documents of lists, menus and repeated lines, by the rules FineWeb adds to Gopher and C4 (Penedo et al. 2024).

    score                 meaning                                                                 default
    ended_lines           lines that end in a stop / lines                                        at least 0.12
    short_lines           lines of at most 30 characters / lines                                  at most 0.67
    duplicate_line_chars  characters of lines that occurred before / characters except newlines   at most 0.01
    newlines              newlines / words, where punctuation marks count as words                at most 0.3

    Lines are the non-blank ones (datatrove) or all (paper: the code that made FineWeb). A stop is one of . ? ! " ' (paper,
    `stops="english"`) or the full stop of any script, but no quote (datatrove 0.10, `stops="unicode"`).

    >>> batch = Batch.from_rows([{"text": "It rains.\\nHome\\nHome\\n"}])
    >>> for name, value in FineWebQuality().score(batch).items(): print(name, round(float(value[0]), 2))
    fineweb_ended_lines 0.33
    fineweb_short_lines 1.0
    fineweb_duplicate_line_chars 0.24
    fineweb_newlines 0.6
    """

    min_ended_lines: float | None = 0.12
    max_short_lines: float | None = 0.67
    short_line_chars: int = 30
    max_duplicate_line_chars: float | None = 0.01
    max_newlines: float | None = 0.3
    stops: Literal["english", "unicode"] | None = None
    dialect: Literal["datatrove", "paper"] = "datatrove"
    words: Words = "tokens"
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        text, words = text_facts(batch), word_facts(batch, self.words)
        stops = self.stops or ("unicode" if self.dialect == "datatrove" else "english")
        ended = text["marked_lines_untrimmed" if stops == "english" else "stopped_lines_untrimmed"]
        short = (
            batch.facts("text", LineStats(self.short_line_chars))["short_lines"]
            if self._unusual
            else text["short_lines"]
        )
        lines = text["lines"]
        if self.dialect == "paper":
            blank = text["newlines"] + 1 - lines
            lines, short = lines + blank, short + blank
        return {
            "fineweb_ended_lines": ratio(ended, lines),
            "fineweb_short_lines": ratio(short, lines),
            "fineweb_duplicate_line_chars": ratio(text["line_later_chars"], text["chars"] - text["newlines"]),
            "fineweb_newlines": ratio(text["newlines"], words["words"]),
        }

    @property
    def _unusual(self) -> bool:
        return self.short_line_chars != 30

    def rules(self) -> list[Rule]:
        return [
            between("fineweb_ended_lines", self.min_ended_lines, None),
            between("fineweb_short_lines", None, self.max_short_lines),
            between("fineweb_duplicate_line_chars", None, self.max_duplicate_line_chars),
            between("fineweb_newlines", None, self.max_newlines),
        ]


class SentenceStats:
    """Sentences and questionable sentences of each text, see `kernels.sentences`.

    limits: as described there, in the same order.
    """

    needs = WORD_MARKS["unicode"]

    def __init__(self, limits: tuple[int, float, int, int, float], phrases: tuple[str, ...]) -> None:
        self.limits = limits
        self._automaton = tuple(build_automaton(phrases, exact=True))
        self.__module__ = __name__
        self.__qualname__ = f"sentence_stats.{limits}.{'|'.join(phrases)}"

    def __call__(self, column: Column, found: MarkedWords | None = None) -> Facts:
        words = found or self.needs(column)
        out = np.zeros((2, len(column)), np.int64)
        measure_sentences(
            words.data,
            words.tail,
            words.offsets,
            POINTS,
            KINDS,
            words.begins,
            words.ends,
            self.limits,
            self._automaton,
            out,
        )
        return dict(zip(("sentences", "questionable"), out, strict=True))


@operator(reads="text", writes=("madlad_sentences", "madlad_questionable"))
class MadladSentences(Filter):
    """Drop documents with few sentences or many questionable ones (MADLAD-400, Kudugunta et al. 2023).

    sentences     at least `min_sentences`; sentences end with . ! ? and a space, and blank ones do not count
    questionable  questionable sentences / sentences; must be below `max_share`

    A sentence is questionable for any of the `signals`, by default all of them:

    list_case     at least `list_case_words` words (UAX #29), more than `list_case_share` of which begin with a capital
    length        fewer than `min_sentence_chars` or more than `max_sentence_chars` characters
    technical     more than `technical_share` of its characters are among 0-9 { } + / ( ) >
    phrases       contains one of `phrases` or a line of the file `path`, compared with case; there are none by default

    These are rules 2 to 5 of the paper. Rule 1, a sentence in another language than its document, is not implemented, and
    the list of rule 5, which includes regular expressions, is not supplied. Ai2's datamap-rs, the source of the all_dressed
    recipe, counts bytes instead of characters and computes no share for documents that are too short.

    >>> batch = Batch.from_rows([{"text": "It rained all day long. Nobody went out! f(1) + g(2)"}])
    >>> {name: round(float(value[0]), 2) for name, value in MadladSentences().open(Context()).score(batch).items()}
    {'madlad_sentences': 3.0, 'madlad_questionable': 0.67}
    """

    measuring_parameters = frozenset({"min_sentence_chars", "max_sentence_chars"})

    min_sentences: int | None = 5
    max_share: float | None = 0.2
    signals: list[Literal["list_case", "length", "technical", "phrases"]] | None = None
    list_case_words: int = 12
    list_case_share: float = 0.5
    min_sentence_chars: int = 20
    max_sentence_chars: int = 500
    technical_share: float = 0.2
    phrases: list[str] | None = None
    path: str | None = None
    column: str = "text"

    def check(self) -> None:
        check_files(self.name, [self.path])

    def identity(self) -> dict[str, Any]:
        return identify_files(super().identity(), [self.path])

    def open(self, context: Context) -> _MadladScorer:
        return _MadladScorer(self._stats())

    def _stats(self) -> SentenceStats:
        """Signals that are off get limits that no sentence reaches."""
        wanted = ("list_case", "length", "technical", "phrases") if self.signals is None else self.signals
        lists, length, technical = "list_case" in wanted, "length" in wanted, "technical" in wanted
        limits = (
            self.list_case_words if lists else sys.maxsize,
            float(self.list_case_share),
            self.min_sentence_chars if length else 0,
            self.max_sentence_chars if length else sys.maxsize,
            float(self.technical_share) if technical else 1.0,
        )
        return SentenceStats(limits, (*(self.phrases or ()), *read_list(self.path)) if "phrases" in wanted else ())

    def rules(self) -> list[Rule]:
        return [
            between("madlad_sentences", self.min_sentences, None),
            less_than("madlad_questionable", self.max_share),
        ]


@dataclass(frozen=True)
class _MadladScorer:
    stats: SentenceStats

    def score(self, batch: Batch) -> Scores:
        found = batch.facts("text", self.stats)
        return {
            "madlad_sentences": found["sentences"],
            "madlad_questionable": ratio(found["questionable"], found["sentences"]),
        }
