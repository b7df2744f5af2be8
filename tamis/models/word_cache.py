"""Token ids of texts, with each distinct word tokenized once.

    texts --whitespace--> words --table--> ids of known words
                                --tokenizer--> ids of new words, added to the table

Tokenizers of BERT and most SentencePiece models split a text at whitespace before anything else, so the tokens of a word do
not depend on the words around it, and most words occur many times. Looking them up is about twenty times as fast as tokenizing
them. Whether a tokenizer splits like that is read from its file and tried on examples; in addition, each new word is tokenized
alone and between two others, and a text with a word for which that differs is tokenized as a whole.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tamis.batch import contiguous
from tamis.kernels.word_ids import count_ids, find_words, place_ids

_SLOTS = 1 << 19
"""Slots of the table, 14 MB. It is cleared when half of them are taken."""

CACHE_BYTES = 28 * _SLOTS + 16_000_000
"""The table, and the ids of its words."""

_NEW_WORDS = 1 << 13
"""Words tokenized at a time."""

_LONG_WORD = 200
"""Bytes. Texts with longer words are tokenized as a whole: such words are rarely repeated."""

_SPLITTING = frozenset({"BertPreTokenizer", "Whitespace", "WhitespaceSplit", "Metaspace"})
"""Pre-tokenizers that split at whitespace."""

_LOCAL = frozenset({
    "BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "Strip", "StripAccents",
})  # fmt: skip
"""Normalizers that treat each character, or each character and its accents, on its own."""

_EXAMPLES = (
    "a", " a", "a ", "a  b", "a\nb", "a\t b", "\n\na b\r\n", "a \n b", "The quick brown Fox, 1,234 jumps.", "don't x-y (z)",
    "\u00e9t\u00e9 na\u00efve \u2013 \u201cquoted\u201d it\u2019s", "\u4e2d\u6587 \u0440\u0443\u0441 \u0645\u0631\u062d",
)  # fmt: skip


def word_cache_of(tokenizer: Any) -> WordCache | None:
    """A cache for a tokenizer of the library tokenizers, or None if its tokens may depend on neighbouring words."""
    pre, normalizer = (_settings(part) for part in (tokenizer.pre_tokenizer, tokenizer.normalizer))
    splits = any(part["type"] in _SPLITTING and part.get("split", True) for part in _parts(pre, "pretokenizers"))
    local = all(part["type"] in _LOCAL or _joins_spaces(part) for part in _parts(normalizer, "normalizers"))
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    if not splits or not local or any(token.split() != [token] for token in added):
        return None
    cache = WordCache(tokenizer)
    for text in _EXAMPLES:
        ids, _ = cache.encode(pa.array([text]))
        if ids.tolist() != tokenizer.encode(text, add_special_tokens=False).ids:
            return None
    return cache


def _settings(part: Any) -> dict[str, Any] | None:
    """The settings of a part of a tokenizer, as in its file."""
    return None if part is None else json.loads(part.__getstate__())


def _parts(setting: Mapping[str, Any] | None, name: str) -> Iterable[Mapping[str, Any]]:
    """The parts of a setting that may be a sequence."""
    if setting is None:
        return ()
    return setting[name] if setting["type"] == "Sequence" else (setting,)


def _joins_spaces(part: Mapping[str, Any]) -> bool:
    return part["type"] == "Replace" and part.get("pattern") == {"Regex": " {2,}"} and part.get("content") == " "


class WordCache:
    """Tokenizes texts word by word; calls the tokenizer for new words only."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._around = tokenizer.encode("a", add_special_tokens=False).ids
        self._keys: np.ndarray
        self._starts: np.ndarray
        self._counts: np.ndarray
        self._ids: np.ndarray
        self._clear()

    def encode(self, texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        """(int32 ids of all texts without special tokens, their number for each text). A null has none."""
        column = contiguous(texts).cast(pa.large_string())
        rows = len(column)
        offsets = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + rows + 1]
        data = np.frombuffer(column.buffers()[2] or b"", np.uint8)
        slots = np.empty((int(offsets[-1] - offsets[0]) + rows) // 2 + 1, np.int32)
        ends = np.zeros(rows, np.int64)
        if not self._find(data, offsets, slots, ends):
            self._clear()
            if not self._find(data, offsets, slots, ends):  # too many words even for an empty table
                return self._in_halves(column)
        counts = np.empty(rows, np.int64)
        count_ids(slots, ends, self._counts, counts)
        whole = np.flatnonzero(counts < 0)
        skip = counts < 0
        encoded = self._whole([column[int(row)].as_py() or "" for row in whole])
        for row, found in zip(whole, encoded, strict=True):
            counts[row] = len(found)
        places = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        out = np.empty(int(places[-1]), np.int32)
        place_ids(slots, ends, self._starts, self._counts, self._ids, skip, places, out)
        for row, found in zip(whole, encoded, strict=True):
            out[places[row] : places[row + 1]] = found
        return out, counts

    def _in_halves(self, texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        if len(texts) == 1:
            (ids,) = self._whole([texts[0].as_py()])
            return np.array(ids, np.int32), np.array([len(ids)])
        middle = len(texts) // 2
        left, right = self.encode(texts[:middle]), self.encode(texts[middle:])
        return np.concatenate([left[0], right[0]]), np.concatenate([left[1], right[1]])

    def _find(self, data: np.ndarray, offsets: np.ndarray, slots: np.ndarray, ends: np.ndarray) -> bool:
        """Find the slots of all words and fill in new ones; returns False if the table becomes too full."""
        position = np.zeros(3, np.int64)
        new_slots, new_spans = np.empty(_NEW_WORDS, np.int64), np.empty((_NEW_WORDS, 2), np.int64)
        while position[0] < len(ends):
            room = min(_NEW_WORDS, _SLOTS // 2 - self._used)
            if room <= 0:
                return False
            new = find_words(data, offsets, self._keys, position, slots, ends, new_slots[:room], new_spans[:room])
            self._used += new
            try:
                self._add(data, new_slots[:new], new_spans[:new])
            except BaseException:
                self._clear()  # the table has words without ids
                raise
        return True

    def _add(self, data: np.ndarray, slots: np.ndarray, spans: np.ndarray) -> None:
        words = [bytes(data[start:stop]).decode() if stop - start <= _LONG_WORD else None for start, stop in spans]
        short = [word for word in words if word is not None]
        alone = iter(self._whole(short))
        between = iter(self._whole([f"a {word} a" for word in short]))
        flat, around = array("i"), self._around
        for slot, word in zip(slots, words, strict=True):
            ids = next(alone) if word is not None else []
            self._starts[slot] = len(self._ids) + len(flat)
            if word is not None and next(between) == [*around, *ids, *around]:
                self._counts[slot] = len(ids)
                flat.extend(ids)
            else:
                self._counts[slot] = -1
        self._ids = np.concatenate([self._ids, np.frombuffer(flat, np.int32)]) if len(flat) else self._ids

    def _whole(self, texts: Sequence[str]) -> list[list[int]]:
        return [found.ids for found in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def _clear(self) -> None:
        self._keys = np.zeros((_SLOTS, 2), np.uint64)
        self._starts, self._counts = np.zeros(_SLOTS, np.int64), np.zeros(_SLOTS, np.int32)
        self._ids = np.empty(0, np.int32)
        self._used = 0
