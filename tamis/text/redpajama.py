"""Facts about texts as RedPajama-Data-v2 computes them, for `dialect="redpajama"`.

normalized   the text without ASCII punctuation, in lower case and Unicode NFD; words are split at white space
raw          the text itself; words are the matches of the regular expression of NLTK's WordPunctTokenizer
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Column, Facts
from tamis.kernels.marks import MarkedWords, Words
from tamis.kernels.redpajama import RAW_FIELDS, hash_exact, measure_raw
from tamis.kernels.spans import fill_table
from tamis.kernels.unicode_tables import KINDS, POINTS
from tamis.text.segment import WORD_MARKS, NgramStats, StatsOfMarks, WordStats, buffers


def normalized(column: Column) -> Column:
    """A string column in lower case, without ASCII punctuation, in NFD.

    >>> normalized(pa.array(["Don't PANIC!"])).to_pylist()
    ['dont panic']
    """
    bare = pc.replace_substring_regex(column.cast(pa.large_string()), r"[!-/:-@\\[-`{-~]", "")
    return pc.utf8_normalize(pc.utf8_lower(bare), form="NFD")


class NormalizedMarks:
    """The word boundaries of the normalized text, as in `WordMarks`."""

    def __init__(self, words: Words) -> None:
        self.words = words
        self.__module__ = __name__
        self.__qualname__ = f"normalized_marks.{words}"

    def __call__(self, column: Column) -> MarkedWords:
        return WORD_MARKS[self.words](normalized(column))


class NormalizedStats(StatsOfMarks):
    """The facts of `stats` for the normalized text."""

    def __init__(self, stats: WordStats | NgramStats) -> None:
        super().__init__(stats, NormalizedMarks(stats.needs.words))


class RawStats:
    """Facts about the raw text, one array per name in `kernels.redpajama.RAW_FIELDS`."""

    def __init__(self, listed: tuple[str, ...]) -> None:
        self.listed = listed
        self.__module__ = __name__
        self.__qualname__ = f"raw_stats.{'|'.join(listed)}"

    def __call__(self, column: Column) -> Facts:
        listed = sorted(set(self.listed) - {""})
        data, offsets = buffers(pa.array(listed, pa.string()))
        hashes = np.zeros(len(listed), np.uint64)
        hash_exact(data, offsets, hashes)
        keys = np.zeros(1 << (8 * len(listed) + 8).bit_length(), np.uint64)
        fill_table(keys, hashes)
        longest = max((len(word.encode()) for word in listed), default=0)
        out = np.zeros((len(RAW_FIELDS), len(column)), np.int64)
        measure_raw(*buffers(column), POINTS, KINDS, keys, longest, out)
        return dict(zip(RAW_FIELDS, out, strict=True))
