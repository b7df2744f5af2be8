"""Filters on the number of tokens.

A tokenizer is a file: a `tokenizer.json` of the Hugging Face library `tokenizers`, or a SentencePiece `.model`.

    text --split--> pieces --table--> counts of known pieces
                           --tokenizer--> counts of new pieces, added to the table

If the `tokenizer.json` splits texts by one of the rules below, each distinct piece of text is tokenized only once
(`tamis.kernels.pieces`). Other tokenizers tokenize every text as a whole. The counts are the same.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Batch, Column
from tamis.context import Context
from tamis.errors import ParameterError, require
from tamis.kernels.pieces import WORDS_APART, WORDS_WITH_SIGNS, count_pieces
from tamis.operators import Filter, Operator, Resources, Rule, Scores, at_least, between, operator
from tamis.text.lists import check_files, identify_files
from tamis.text.quality import text_facts
from tamis.text.segment import buffers, ratio
from tamis.text.shared_files import SharedFile

Counter = Callable[[Column], np.ndarray]
Encode = Callable[[Sequence[str]], list[int]]
"""How many tokens each text has."""

_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
STYLES = {
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": WORDS_APART,  # GPT-2
    rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}": (
        WORDS_WITH_SIGNS  # GPT-4, Llama 3
    ),
    rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}": WORDS_WITH_SIGNS,  # Qwen
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SHORT}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SHORT}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}": WORDS_WITH_SIGNS,  # GPT-4o
}
"""The rule to split texts into pieces for each regular expression of a pre-tokenizer."""

_MAX_NEW_PIECES = 1 << 14
"""Pieces tokenized at a time."""
_SLOTS = 1 << 20
"""Slots of the table, 20 MB. The table is cleared when half of them are taken."""
_CACHE_BYTES = 20 * _SLOTS
_MEMORY_PER_BYTE = {False: 16, True: 14}
"""Memory per byte of a tokenizer file, by whether it is a SentencePiece model."""


class PieceCounter:
    """Counts tokens piece by piece; calls `encode` for new pieces only.

    style    how texts are split into pieces (tamis.kernels.pieces)
    special  a regular expression; texts with a match are encoded as a whole
    """

    def __init__(self, encode: Encode, style: int, special: str) -> None:
        self.encode = encode
        self.style = style
        self.special = special
        self.keys = np.zeros((_SLOTS, 2), np.uint64)
        self.counts = np.zeros(_SLOTS, np.int32)
        self.used = 0

    def __call__(self, column: Column) -> np.ndarray:
        data, offsets = buffers(column)
        out, whole = np.zeros(len(column), np.int64), np.zeros(len(column), np.bool_)
        if self.special and len(column):
            found = pc.fill_null(pc.match_substring_regex(column.cast(pa.large_string()), self.special), False)
            whole = np.asarray(found.to_numpy(zero_copy_only=False))
        for row in np.flatnonzero(whole):
            (out[row],) = self.encode([str(column[row])])
        position = np.zeros(2, np.int64)
        fresh, waiting = np.empty((_MAX_NEW_PIECES, 3), np.int64), np.empty((_MAX_NEW_PIECES, 2), np.int64)
        while position[0] < len(column):
            if self.used > _SLOTS // 2:
                self.forget()
            num_fresh, num_waiting = count_pieces(
                data, offsets, whole, self.style, self.keys, self.counts, position, out, fresh, waiting
            )
            self.used += num_fresh
            self._learn(data, fresh[:num_fresh])
            np.add.at(out, waiting[:num_waiting, 0], self.counts[waiting[:num_waiting, 1]])
        return out

    def _learn(self, data: np.ndarray, fresh: np.ndarray) -> None:
        try:
            pieces = [bytes(data[start:stop]).decode() for start, stop, _ in fresh]
            self.counts[fresh[:, 2]] = self.encode(pieces) if pieces else []
        except BaseException:
            self.forget()  # the table has pieces without counts
            raise

    def forget(self) -> None:
        self.keys.fill(0)
        self.used = 0


def piecewise(settings: dict[str, Any]) -> tuple[int, str] | None:
    """The style and the special texts of a tokenizer, from its settings; None if it must encode whole texts."""
    before = settings["pre_tokenizer"] or {}
    style = None
    for step in before["pretokenizers"] if before.get("type") == "Sequence" else [before]:
        kind = step.get("type")
        found = None
        if kind == "ByteLevel" and not step["add_prefix_space"]:
            found = WORDS_APART if step["use_regex"] else None
        elif kind == "Split" and step["behavior"] == "Isolated" and not step["invert"]:
            found = STYLES.get(step["pattern"].get("Regex", ""))
            if found is None:
                return None
        elif kind != "Digits":
            return None
        style = found if style is None else style  # later pre-tokenizers only split the parts further
    added, normalizer = settings["added_tokens"], settings["normalizer"]
    if normalizer and (normalizer["type"] != "NFC" or any(token["normalized"] for token in added)):
        return None
    return None if style is None else (style, "|".join(re.escape(token["content"]) for token in added))


def load_tokenizer(path: str | Path) -> Counter:
    """A function that counts the tokens of each text of a column."""
    path = str(path)
    if path.endswith(".model"):
        module = require("sentencepiece", extra="text", purpose="counting SentencePiece tokens")
        with must_be(path, "a SentencePiece model"):
            processor = module.SentencePieceProcessor(model_file=path)
        return functools.partial(_count_whole, lambda texts: [len(ids) for ids in processor.encode(texts)])
    module = require("tokenizers", extra="text", purpose="counting tokens")
    with must_be(path, "a tokenizer.json of the library tokenizers"):
        tokenizer = module.Tokenizer.from_file(path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None  # for training: counts would be random

    def encode(texts: Sequence[str]) -> list[int]:
        return [len(each) for each in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    way = piecewise(json.loads(tokenizer.to_str()))
    return functools.partial(_count_whole, encode) if way is None else PieceCounter(encode, *way)


@contextmanager
def must_be(path: str, what: str) -> Iterator[None]:
    """Turn any error into a ParameterError: the libraries raise bare exceptions for files they cannot read."""
    try:
        yield
    except Exception as error:
        raise ParameterError(f"{path} is not {what}: {error}", hint="set `tokenizer` to another file") from error


def _count_whole(encode: Encode, column: Column) -> np.ndarray:
    texts = [text or "" for text in column.to_pylist()]
    return np.array(encode(texts) if texts else [], np.int64)


def memory_bytes(path: Path) -> int:
    """The memory that a tokenizer and its cache of pieces need."""
    each = _MEMORY_PER_BYTE[path.suffix == ".model"]
    return each * path.stat().st_size + (0 if path.suffix == ".model" else _CACHE_BYTES)


TOKENIZER = SharedFile("tokenizer", load_tokenizer, memory_bytes, find=Path)


class _CountsTokens(Operator):
    """A step with a tokenizer."""

    tokenizer: str

    def check(self) -> None:
        check_files(self.name, [self.tokenizer])

    def identity(self) -> dict[str, Any]:
        return identify_files(super().identity(), [self.tokenizer])

    @property
    def resources(self) -> Resources:
        return TOKENIZER.resources(self.tokenizer)


@operator(reads="text", writes="tokens")
class TokenCount(_CountsTokens, Filter):
    """Keep documents with `min_tokens` to `max_tokens` tokens, not counting special tokens.

    `tokenizer` is a `tokenizer.json` of the Hugging Face library tokenizers, or a SentencePiece `.model`. Needs `tamis[text]`.

        TokenCount("tokenizer.json", max_tokens=8192)
    """

    tokenizer: str
    min_tokens: int | None = 0
    max_tokens: int | None = None
    column: str = "text"

    def open(self, context: Context) -> _TokenCounter:
        return _TokenCounter(TOKENIZER.open(self.tokenizer, context))

    def rules(self) -> list[Rule]:
        return [between("tokens", self.min_tokens, self.max_tokens)]


@dataclass(frozen=True)
class _TokenCounter:
    count: Counter

    def score(self, batch: Batch) -> Scores:
        return {"tokens": self.count(batch["text"])}


@operator(reads="text", writes="chars_per_token")
class TokenizerFertility(_CountsTokens, Filter):
    """Keep files with at least 2.5 characters per token, as NeMo Curator does.

    Characters / tokens; a text without tokens scores 0. A low value means that the tokenizer knows little of the text, such
    as base64. `tokenizer` is a `tokenizer.json` of the Hugging Face library tokenizers, or a SentencePiece `.model`. Needs
    `tamis[text]`.

        TokenizerFertility("tokenizer.json")
    """

    tokenizer: str
    min_chars_per_token: float = 2.5
    column: str = "text"

    def open(self, context: Context) -> _FertilityScorer:
        return _FertilityScorer(TOKENIZER.open(self.tokenizer, context))

    def rules(self) -> list[Rule]:
        return [at_least("chars_per_token", self.min_chars_per_token)]


@dataclass(frozen=True)
class _FertilityScorer:
    count: Counter

    def score(self, batch: Batch) -> Scores:
        return {"chars_per_token": ratio(text_facts(batch)["chars"], self.count(batch["text"]))}
