"""The available word definitions, and the words of a column marked according to one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from tamis.kernels.boundaries import find_unicode_words
from tamis.kernels.masks import last_block
from tamis.kernels.tokens import EDGES, ROLES, find_tokens
from tamis.kernels.unicode_tables import KINDS, POINTS
from tamis.kernels.words import find_single_words, find_spaced_words, first_block, num_blocks

Words: TypeAlias = Literal["auto", "whitespace", "unicode", "tokens", "characters", "dictionary"]
"""How text is split into words.

auto        at whitespace; in scripts without spaces (Chinese, Japanese, Thai, Lao, Khmer, Burmese, Tibetan and related
            scripts) each letter is a word, together with any other characters up to the next letter
whitespace  at whitespace, like Python's str.split()
unicode     at UAX #29 word boundaries; punctuation alone is not a word
tokens      like spaCy's English tokenizer, with punctuation separated from words (see `tokens`)
characters  each letter or digit of any script is a word, together with any other characters up to the next one
dictionary  like auto, but Chinese, Japanese, Thai, Lao, Khmer and Burmese are split with a dictionary; requires
            `tamis[segment]`
"""

WORD_DEFINITIONS: tuple[Words, ...] = ("auto", "whitespace", "unicode", "tokens", "characters", "dictionary")


@dataclass(frozen=True)
class MarkedWords:
    """The bytes and offsets of a column and the marks of its words (see `words`)."""

    data: np.ndarray
    tail: np.ndarray
    offsets: np.ndarray
    begins: np.ndarray
    ends: np.ndarray

    @staticmethod
    def of(data: np.ndarray, offsets: np.ndarray, words: Words) -> MarkedWords:
        """Find the words. For "dictionary", the text must already have spaces between words (`text.dictionary`)."""
        tail = last_block(data, first_block(offsets))
        begins, ends = np.zeros((2, num_blocks(offsets)), np.uint64)
        if words == "unicode":
            find_unicode_words(data, offsets, POINTS, KINDS, begins, ends)
        elif words == "tokens":
            edges = np.empty(EDGES, np.int64)
            find_tokens(data, tail, offsets, POINTS, KINDS, ROLES, edges, begins, ends)
        elif words == "characters":
            find_single_words(data, offsets, POINTS, KINDS, begins, ends)
        else:
            find_spaced_words(data, tail, offsets, words == "auto", POINTS, KINDS, begins, ends)
        return MarkedWords(data, tail, offsets, begins, ends)

    def spans(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the start and the end of each word."""
        first = first_block(self.offsets)
        starts, lasts = (
            np.flatnonzero(np.unpackbits(marks.view(np.uint8), bitorder="little")) + first
            for marks in (self.begins, self.ends)
        )
        return starts, lasts + 1
