"""The text column as kernels read it, and the facts about it that operators share.

    text column --buffers--> bytes, offsets --kernel--> facts: arrays with one entry per row, cached on the batch

Facts about words and n-grams depend on the definition of a word. `WORD_STATS` and `NGRAM_STATS` have one function per
definition, so that operators with the same definition share its result. Both use the same word boundaries (`WORD_MARKS`),
which are found once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Column, Facts
from tamis.errors import OperatorError
from tamis.kernels.lines import TEXT_FIELDS, count_short_lines, measure_line_copies, measure_text
from tamis.kernels.marks import WORD_DEFINITIONS, MarkedWords, Words
from tamis.kernels.repetition import NGRAM_FIELDS, NUM_LENGTHS, measure_character_ngrams, measure_ngrams
from tamis.kernels.spans import fill_table, hash_words
from tamis.kernels.unicode_tables import KINDS, POINTS
from tamis.kernels.unspaced import count_ended_lines
from tamis.kernels.word_stats import WORD_FIELDS, measure_words
from tamis.kernels.words import trim_words

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
"""The eight words of Rae et al. 2021, appendix A."""


def plain_strings(column: Column) -> Column:
    """A text column as strings or large strings; a null is an empty text."""
    if isinstance(column, pa.DictionaryArray) or pa.types.is_string_view(column.type):
        column = column.cast(pa.large_string())
    if pa.types.is_null(column.type):
        column = column.cast(pa.string())
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise OperatorError(
            f"a text column holds strings, this one holds {column.type}", hint="set `column` to a text column"
        )
    return column.fill_null("") if column.null_count else column


def buffers(column: Column) -> tuple[np.ndarray, np.ndarray]:
    """The bytes and int64 offsets of a string column, read-only; a null is an empty text."""
    column = plain_strings(column)
    _, spans, text = column.buffers()
    kind = np.int64 if pa.types.is_large_string(column.type) else np.int32
    data = np.frombuffer(text, np.uint8) if text is not None and text.size else np.zeros(0, np.uint8)
    if spans is None or not len(column):
        offsets = np.zeros(len(column) + 1, np.int64)
    else:
        offsets = np.frombuffer(spans, kind)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    data.flags.writeable = offsets.flags.writeable = False  # so that each kernel is compiled once
    return data, offsets


class WordMarks:
    """The word boundaries of a column, from which `WordStats` and `NgramStats` are computed."""

    def __init__(self, words: Words) -> None:
        self.words = words
        self.__module__ = __name__
        self.__qualname__ = f"word_marks.{words}"

    def __call__(self, column: Column) -> MarkedWords:
        if self.words == "dictionary":
            from tamis.text.dictionary import respaced  # it builds tables

            column = respaced(column)
        return MarkedWords.of(*buffers(column), self.words)


class BareMarks:
    """The boundaries of the words of the text in lower case, each from its first letter to its last.

    Words without letters are left out.
    """

    def __init__(self, words: Words) -> None:
        self.words = words
        self.__module__ = __name__
        self.__qualname__ = f"bare_marks.{words}"

    def __call__(self, column: Column) -> MarkedWords:
        found = WORD_MARKS[self.words](pc.utf8_lower(plain_strings(column)))
        begins, ends = np.zeros((2, len(found.begins)), np.uint64)
        trim_words(found.data, found.offsets, POINTS, KINDS, found.begins, found.ends, begins, ends)
        return MarkedWords(found.data, found.tail, found.offsets, begins, ends)


WORD_MARKS: dict[str, WordMarks] = {words: WordMarks(words) for words in WORD_DEFINITIONS}


def ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """part / whole row by row; 0 / 0 is 0."""
    return np.divide(part, whole, out=np.zeros(len(part), np.float64), where=np.asarray(whole) != 0)


def word_table(words: Iterable[str]) -> tuple[np.ndarray, int]:
    """The hash table of a list of words for `measure_words`, and the length of the longest word in bytes."""
    listed = sorted({word.lower().encode() for word in words} - {b""})
    data, offsets = buffers(pa.array([word.decode() for word in listed], pa.string()))
    hashes = np.zeros(len(listed), np.uint64)
    hash_words(data, offsets, hashes)
    keys = np.zeros(1 << (8 * len(listed) + 8).bit_length(), np.uint64)  # sparse, so that most lookups need one probe
    fill_table(keys, hashes)
    return keys, max(map(len, listed), default=0)


class WordStats:
    """Facts about the words of a column, one array per name in `kernels.word_stats.WORD_FIELDS`."""

    def __init__(self, words: Words, listed: tuple[str, ...] = STOP_WORDS) -> None:
        self.listed, self.needs = listed, WORD_MARKS[words]
        self.__module__ = __name__
        self.__qualname__ = f"word_stats.{words}" + ("" if listed == STOP_WORDS else f".{'|'.join(listed)}")

    def __call__(self, column: Column, found: MarkedWords | None = None) -> Facts:
        words = found or self.needs(column)
        out = np.zeros((len(WORD_FIELDS), len(column)), np.int64)
        keys, longest = word_table(self.listed)
        measure_words(
            words.data, words.tail, words.offsets, POINTS, KINDS, words.begins, words.ends, keys, longest, out
        )
        return dict(zip(WORD_FIELDS, out, strict=True))


def text_stats(column: Column) -> Facts:
    """Facts about characters, lines, sentences and paragraphs, one array per name in `kernels.lines.TEXT_FIELDS`."""
    data, offsets = buffers(column)
    out = np.zeros((len(TEXT_FIELDS), len(column)), np.int64)
    measure_text(data, offsets, POINTS, KINDS, out)
    return dict(zip(TEXT_FIELDS, out, strict=True))


class LineCopies:
    """Facts about lines that repeat, see `kernels.lines.measure_line_copies`: `chars`, `all`, `all_chars`."""

    def __init__(self, *, trim: bool) -> None:
        self.trim = trim
        self.__module__ = __name__
        self.__qualname__ = f"line_copies.{trim}"

    def __call__(self, column: Column) -> Facts:
        data, offsets = buffers(column)
        out = np.zeros((3, len(column)), np.int64)
        measure_line_copies(data, offsets, self.trim, POINTS, KINDS, out)
        return dict(zip(("chars", "all", "all_chars"), out, strict=True))


def ended_lines(column: Column) -> Facts:
    """The number of lines that end like a sentence, in any script; see `kernels.unspaced`."""
    data, offsets = buffers(column)
    out = np.zeros(len(column), np.int64)
    count_ended_lines(data, offsets, POINTS, KINDS, out)
    return {"ended_lines": out}


class LineStats:
    """The number of non-blank lines with at most `limit` characters."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.__module__ = __name__
        self.__qualname__ = f"line_stats.{limit}"

    def __call__(self, column: Column) -> Facts:
        data, offsets = buffers(column)
        out = np.zeros(len(column), np.int64)
        count_short_lines(data, offsets, self.limit, POINTS, KINDS, out)
        return {"short_lines": out}


class NgramStats:
    """Facts about repeated word n-grams, one array of (rows, 9) per name in `kernels.repetition.NGRAM_FIELDS`."""

    def __init__(self, words: Words) -> None:
        self.needs = WORD_MARKS[words]
        self.__module__ = __name__
        self.__qualname__ = f"ngram_stats.{words}"

    def __call__(self, column: Column, found: MarkedWords | None = None) -> Facts:
        words = found or self.needs(column)
        out = np.zeros((len(NGRAM_FIELDS), len(column), NUM_LENGTHS), np.int64)
        measure_ngrams(words.data, words.offsets, words.begins, words.ends, out)
        return dict(zip(NGRAM_FIELDS, out, strict=True))


class CharacterNgramStats:
    """Facts about repeated n-grams of characters, see `kernels.repetition.measure_character_ngrams`: `top` and `all`."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.__module__ = __name__
        self.__qualname__ = f"character_ngram_stats.{length}"

    def __call__(self, column: Column) -> Facts:
        data, offsets = buffers(column)
        out = np.zeros((2, len(column)), np.int64)
        measure_character_ngrams(data, offsets, self.length, out)
        return dict(zip(("top", "all"), out, strict=True))


class StatsOfMarks:
    """The facts of `stats`, about words or n-grams, for words that are marked by `marks`."""

    def __init__(self, stats: WordStats | NgramStats, marks: Callable[[Column], MarkedWords]) -> None:
        self.stats, self.needs = stats, marks
        self.__module__ = __name__
        self.__qualname__ = f"{marks.__qualname__}.{stats.__qualname__}"

    def __call__(self, column: Column, found: MarkedWords | None = None) -> Facts:
        return self.stats(column, found or self.needs(column))


class BareStats(StatsOfMarks):
    """The facts of `stats` for the words of `BareMarks`."""

    def __init__(self, stats: WordStats | NgramStats) -> None:
        super().__init__(stats, BareMarks(stats.needs.words))


NGRAM_STATS: dict[str, NgramStats] = {words: NgramStats(words) for words in WORD_DEFINITIONS}
WORD_STATS: dict[str, WordStats] = {words: WordStats(words) for words in WORD_DEFINITIONS}
word_stats = WORD_STATS["auto"]


def split_words(text: str, words: Words = "auto") -> list[str]:
    """The words of a text under a definition, to see what a value of `words` does.

    >>> split_words("the cat's 3.5 lives", "unicode"), split_words("我喜欢 Python。")
    (['the', "cat's", '3.5', 'lives'], ['我', '喜', '欢', 'Python。'])
    """
    found = WORD_MARKS[words](pa.array([text], pa.large_string()))
    raw = found.data.tobytes()
    return [raw[start:stop].decode() for start, stop in zip(*found.spans(), strict=True)]
