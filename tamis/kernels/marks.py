"""The ways to tell words apart, and the words of a column found in one of them."""

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
"""How words are told apart.

auto        by whitespace; in scripts without spaces (Chinese, Japanese, Thai, Lao, Khmer, Burmese, Tibetan and their
            kin) each letter with what follows it up to the next letter is a word
whitespace  by whitespace, as Python's str.split()
unicode     UAX #29 word boundaries; punctuation alone is not a word
tokens      punctuation apart from words, much as spaCy's English tokenizer does (see `tokens`)
characters  each letter or digit of any script, with what follows it up to the next one
dictionary  as auto, and the words of Chinese, Japanese, Thai, Lao, Khmer and Burmese are those of a dictionary; needs
            `tamis[segment]`
"""

WAYS: tuple[Words, ...] = ("auto", "whitespace", "unicode", "tokens", "characters", "dictionary")


@dataclass(frozen=True)
class MarkedWords:
    """The bytes and offsets of a column and the marks of its words, see `words`."""

    data: np.ndarray
    tail: np.ndarray
    offsets: np.ndarray
    begins: np.ndarray
    ends: np.ndarray

    @staticmethod
    def of(data: np.ndarray, offsets: np.ndarray, words: Words) -> MarkedWords:
        """Find the words; for "dictionary", of a text that has spaces between them (`text.dictionary`)."""
        tail = last_block(data, first_block(offsets))
        begins, ends = np.zeros((2, num_blocks(offsets)), np.uint64)
        if words == "unicode":
            find_unicode_words(data, offsets, POINTS, KINDS, begins, ends)
        elif words == "tokens":
            room = np.empty(EDGES, np.int64)
            find_tokens(data, tail, offsets, POINTS, KINDS, ROLES, room, begins, ends)
        elif words == "characters":
            find_single_words(data, offsets, POINTS, KINDS, begins, ends)
        else:
            find_spaced_words(data, tail, offsets, words == "auto", POINTS, KINDS, begins, ends)
        return MarkedWords(data, tail, offsets, begins, ends)

    def spans(self) -> tuple[np.ndarray, np.ndarray]:
        """Where each word begins and where it ends."""
        first = first_block(self.offsets)
        starts, lasts = (
            np.flatnonzero(np.unpackbits(marks.view(np.uint8), bitorder="little")) + first
            for marks in (self.begins, self.ends)
        )
        return starts, lasts + 1
