"""Texts to token ids, with the Rust library tokenizers.

    texts --cut--> the part that can matter --encode--> ids without special tokens --fit--> pieces of at most `max_tokens`

A text that is longer than the network accepts becomes one piece (its head, or its head and tail) or several (windows). Only as
much of a text is encoded as the pieces need, in small portions: the library holds about a hundred bytes per token while it
works, and a process whose memory runs out inside it cannot recover.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Column
from tamis.errors import is_shortage, require
from tamis.models.files import PROMPTS_FILE, SENTENCE_FILES, ModelError, ModelFiles, json_object
from tamis.models.word_cache import word_cache_of

LongTexts: TypeAlias = Literal["truncate", "head_tail", "windows"]

PORTION_CHARS = 500_000
"""Characters encoded at a time."""

PORTION_TEXTS = 512

CHARS_PER_TOKEN = 8
"""How much of a long text is encoded at first; more if that gives too few tokens."""

MARGIN_TOKENS = 16
"""The last tokens of a text that was cut may differ from those of the whole text, so more than needed are encoded."""


@dataclass(frozen=True)
class Pieces:
    """Token ids of all pieces, with special tokens, one after the other."""

    ids: np.ndarray
    """int32"""
    offsets: np.ndarray
    """int64[pieces + 1]"""
    row: np.ndarray
    """int64[pieces]: the text that each piece is of, ascending."""
    rows: int

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def mean_by_row(self, values: np.ndarray) -> np.ndarray:
        """One row of values per text: the mean over its pieces, weighted by their number of tokens."""
        if len(values) == self.rows:
            return values
        weights = np.maximum(self.lengths, 1).astype(np.float64)
        totals = np.zeros((self.rows, values.shape[1]), np.float64)
        np.add.at(totals, self.row, values * weights[:, None])
        return (totals / np.bincount(self.row, weights, self.rows)[:, None]).astype(np.float32)


class TextTokenizer:
    """A tokenizer, the special tokens it puts around a text, and a prompt that precedes each text."""

    def __init__(self, tokenizer: Any, name: str = "", prompt: str = "") -> None:
        self._tokenizer, self.name, self._prompt = tokenizer, name, prompt
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.prefix, self.suffix = _special_tokens(tokenizer)
        self.size = int(tokenizer.get_vocab_size(with_added_tokens=True))
        self._words = word_cache_of(tokenizer)

    @property
    def special(self) -> int:
        """The number of special tokens around a text."""
        return len(self.prefix) + len(self.suffix)

    def without_special(self) -> TextTokenizer:
        """This tokenizer, without special tokens around texts."""
        self.prefix, self.suffix = [], []
        return self

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, without special ones."""
        return str(self._tokenizer.decode(list(ids)))

    def pieces(
        self,
        texts: Column,
        max_tokens: int,
        long_texts: LongTexts = "truncate",
        max_chars: int | None = None,
        *,
        pad_empty: bool = True,
    ) -> Pieces:
        """The pieces of each text, each at most `max_tokens` tokens long. A null is an empty text; each text has a piece.

        With `pad_empty`, a piece without tokens gets the first token of the vocabulary, since networks need one.
        """
        found = self._contents(texts, max_tokens, long_texts, max_chars)
        return self._fit(found.buffer(), found.start, found.count, max_tokens, long_texts, int(pad_empty))

    def contents(
        self, texts: Column, max_tokens: int, long_texts: LongTexts = "truncate", max_chars: int | None = None
    ) -> pa.ListArray:
        """The tokens of each text that `pieces` would use, without special tokens, as a column; null for a null."""
        found = self._contents(texts, max_tokens, long_texts, max_chars)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(found.count)])
        inside = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], found.count)
        ids = found.buffer()[np.repeat(found.start, found.count) + inside]
        mask = texts.is_null() if texts.null_count else None
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(ids, pa.int32()), mask=mask)

    def pieces_of(self, contents: pa.ListArray, max_tokens: int, long_texts: LongTexts = "truncate") -> Pieces:
        """The pieces of texts, from a column that `contents` made."""
        offsets = contents.offsets.to_numpy().astype(np.int64)
        count = np.diff(offsets)
        if contents.null_count:
            count[contents.is_null().to_numpy(zero_copy_only=False)] = 0
        ids = contents.values.to_numpy(zero_copy_only=False)
        return self._fit(ids, offsets[:-1], count, max_tokens, long_texts, 1)

    def prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text for a model to continue: with the special tokens before a text, without those after it."""
        found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [[*self.prefix, *encoding.ids] for encoding in found]

    def text(self, ids: Sequence[int]) -> str:
        """The text of some tokens, without special ones."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def token(self, number: int) -> str | None:
        """The token with a number; None if there is none."""
        found: str | None = self._tokenizer.id_to_token(number)
        return found

    def _contents(self, texts: Column, max_tokens: int, long_texts: LongTexts, max_chars: int | None) -> _Contents:
        space = max(1, max_tokens - self.special)
        if max_chars is not None:
            texts = pc.utf8_slice_codeunits(texts, 0, max_chars)
        if self._prompt:
            texts = pc.binary_join_element_wise(pa.scalar(self._prompt, texts.type), texts, pa.scalar("", texts.type))
        if long_texts == "windows":
            return self._whole(texts)
        found = self._edges(texts, space, from_end=False)
        if long_texts == "head_tail":
            self._add_tails(texts, found, space)
        found.count = np.minimum(found.count, space)
        return found

    def _fit(
        self, ids: np.ndarray, start: np.ndarray, count: np.ndarray, max_tokens: int, long_texts: LongTexts, least: int
    ) -> Pieces:
        space, rows = max(1, max_tokens - self.special), len(count)
        if long_texts == "windows":
            return self._assemble(ids, *_windows(start, count, space), rows, least)
        return self._assemble(ids, np.arange(rows), start, np.minimum(count, space), rows, least)

    def _whole(self, texts: Column) -> _Contents:
        """All tokens of each text. Long texts are encoded in parts that end at a space, if there is one."""
        found = _Contents(len(texts))
        rows: list[int] = []
        parts: list[str] = []
        chars = 0
        for row, text in enumerate(_strings(texts)):
            for part in _parts(text):
                rows.append(row)
                parts.append(part)
                chars += len(part)
                if chars >= PORTION_CHARS or len(parts) >= PORTION_TEXTS:
                    found.extend(np.array(rows), *self._encode(pa.array(parts, pa.large_string())))
                    rows, parts, chars = [], [], 0
        found.extend(np.array(rows, np.int64), *self._encode(pa.array(parts, pa.large_string())))
        return found

    def _edges(self, texts: Column, space: int, *, from_end: bool) -> _Contents:
        """The first (or last) tokens of each text: at least `space` of them, or all."""
        found = _Contents(len(texts))
        chars = pc.fill_null(pc.utf8_length(texts), 0).to_numpy(zero_copy_only=False)
        size = CHARS_PER_TOKEN * (space + MARGIN_TOKENS)
        rows = np.arange(len(texts))
        while len(rows):
            for part in _portions(np.minimum(chars[rows], size)):
                some = rows[part]
                whole = len(rows) == len(texts)
                column = texts.slice(part.start, len(some)) if whole else texts.take(pa.array(some))
                cut = pc.utf8_slice_codeunits(column, -size) if from_end else pc.utf8_slice_codeunits(column, 0, size)
                found.put(some, *self._encode(cut))
            found.is_whole[rows] = chars[rows] <= size
            rows = rows[~found.is_whole[rows] & (found.count[rows] < space + MARGIN_TOKENS)]
            size *= 4
        return found

    def _add_tails(self, texts: Column, heads: _Contents, space: int) -> None:
        """Replace the content of long texts by a quarter from the start and the rest from the end (Sun et al. 2019)."""
        long = np.flatnonzero(heads.count > space)
        if not len(long):
            return
        head = max(1, space // 4) if space > 1 else 1
        tail = space - head
        cut = long[~heads.is_whole[long]]
        tails = self._edges(texts.take(pa.array(cut)), tail, from_end=True) if len(cut) else _Contents(0)
        last = {int(row): tails.of(number)[-tail:] if tail else tails.of(number)[:0] for number, row in enumerate(cut)}
        for row in map(int, long):
            content = heads.of(row)
            end = last[row] if row in last else content[len(content) - tail :]
            joined = np.concatenate([content[:head], end])
            heads.put(np.array([row]), joined, np.array([len(joined)]))

    def _encode(self, texts: Column) -> tuple[np.ndarray, np.ndarray]:
        """(ids of all texts without special tokens, their number for each text)."""
        if self._words is not None:
            return self._words.encode(texts)
        flat = array("i")
        counts = np.zeros(len(texts), np.int64)
        strings = list(_strings(texts))
        for number, encoding in enumerate(self._tokenizer.encode_batch_fast(strings, add_special_tokens=False)):
            flat.fromlist(encoding.ids)
            counts[number] = len(encoding)
        return np.frombuffer(flat, np.int32) if len(flat) else np.empty(0, np.int32), counts

    def _assemble(
        self, ids: np.ndarray, row: np.ndarray, start: np.ndarray, count: np.ndarray, rows: int, least: int
    ) -> Pieces:
        """Pieces of the given content between the special tokens, each of at least `least` tokens."""
        before, after = np.array(self.prefix, np.int32), np.array(self.suffix, np.int32)
        lengths = np.maximum(count + self.special, least)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        out = np.zeros(int(offsets[-1]), np.int32)
        for number, token in enumerate(before):
            out[offsets[:-1] + number] = token
        inside = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        out[np.repeat(offsets[:-1] + len(before), count) + inside] = ids[np.repeat(start, count) + inside]
        for number, token in enumerate(after):
            out[offsets[:-1] + len(before) + count + number] = token
        return Pieces(out, offsets, row, rows)


class _Contents:
    """The token ids of each text without special tokens; those of a text can be replaced."""

    def __init__(self, rows: int) -> None:
        self.start, self.count = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self.is_whole = np.zeros(rows, np.bool_)
        """Whether these are all tokens of the text."""
        self._parts: list[np.ndarray] = []
        self._size = 0

    def put(self, rows: np.ndarray, ids: np.ndarray, counts: np.ndarray) -> None:
        """Set the content of some rows."""
        self.start[rows] = self._size + np.cumsum(counts) - counts
        self.count[rows] = counts
        self._add(ids)

    def extend(self, rows: np.ndarray, ids: np.ndarray, counts: np.ndarray) -> None:
        """Append content to some rows, in ascending order, which may repeat."""
        starts = self._size + np.cumsum(counts) - counts
        new = np.ones(len(rows), np.bool_)
        new[1:] = rows[1:] != rows[:-1]
        new &= self.count[rows] == 0
        self.start[rows[new]] = starts[new]
        np.add.at(self.count, rows, counts)
        self._add(ids)

    def _add(self, ids: np.ndarray) -> None:
        self._parts.append(ids)
        self._size += len(ids)

    def buffer(self) -> np.ndarray:
        """All ids; `start` and `count` refer to it."""
        if len(self._parts) != 1:
            self._parts = [np.concatenate([np.empty(0, np.int32), *self._parts])]
        return self._parts[0]

    def of(self, row: int) -> np.ndarray:
        return self.buffer()[self.start[row] : self.start[row] + self.count[row]]


def _windows(start: np.ndarray, count: np.ndarray, space: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(row, start, count) of the windows of each text: as few as possible, of nearly equal size."""
    windows = np.maximum(1, -(-count // space))
    row = np.repeat(np.arange(len(windows)), windows)
    number = np.arange(len(row)) - np.repeat(np.cumsum(windows) - windows, windows)
    total, parts = count[row], windows[row]
    begin, end = number * total // parts, (number + 1) * total // parts
    return row, start[row] + begin, end - begin


def _portions(chars: np.ndarray) -> Iterator[slice]:
    """Consecutive texts that are encoded together."""
    start = 0
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(chars)])
    while start < len(chars):
        stop = int(np.searchsorted(total, total[start] + PORTION_CHARS, side="right")) - 1
        stop = min(max(stop, start + 1), start + PORTION_TEXTS)
        yield slice(start, stop)
        start = stop


def _strings(texts: Column) -> Iterator[str]:
    return (text or "" for text in texts.to_pylist())


def _parts(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > PORTION_CHARS:
        stop = text.rfind(" ", start + PORTION_CHARS // 2, start + PORTION_CHARS)
        stop = start + PORTION_CHARS if stop < 0 else stop
        yield text[start:stop]
        start = stop
    yield text[start:]


def _special_tokens(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The tokens before and after a text."""
    for probe in ("a", "the", "1", ".", "\u4e00"):
        bare = tokenizer.encode(probe, add_special_tokens=False).ids
        full = tokenizer.encode(probe).ids
        for start in range(len(full) - len(bare) + 1):
            if bare and full[start : start + len(bare)] == bare:
                return full[:start], full[start + len(bare) :]
    return list(tokenizer.encode("").ids), []


# -------------------------------------------------------------------------------------------------------------- loading


def load_tokenizer(found: ModelFiles) -> TextTokenizer:
    """The tokenizer of a model: its tokenizer.json, or else the older files, converted by transformers."""
    purpose = f"tokenizing texts for {found.name}"
    lowers = bool(_sentence_settings(found.folder).get("do_lower_case"))
    path = next((path for path in found.others if path.name in ("tokenizer.json", *_STATIC_NAMES)), None)
    if path is not None:
        tokenizers = require("tokenizers", extra="models", purpose=purpose)
        tokenizer = _parse(tokenizers, path)
        if lowers:
            _lower(tokenizers, tokenizer)
        return TextTokenizer(tokenizer, found.name, default_prompt(found.folder))
    transformers = require("transformers", extra="models", purpose=purpose)
    try:
        converted = transformers.AutoTokenizer.from_pretrained(
            found.folder, local_files_only=True, trust_remote_code=False, use_fast=True
        )
        tokenizer = converted.backend_tokenizer
    except Exception as error:
        if is_shortage(error):
            raise
        raise ModelError(
            f"the tokenizer of {found.name} in {found.folder} cannot be loaded: {error}",
            hint=f"put its tokenizer.json into {found.folder}",
        ) from error
    if lowers:
        _lower(require("tokenizers", extra="models", purpose=purpose), tokenizer)
    return TextTokenizer(tokenizer, found.name, default_prompt(found.folder))


_STATIC_NAMES = ("l2_supercat_tokenizer_config.json",)


def _parse(tokenizers: Any, path: Path) -> Any:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare exceptions
        if is_shortage(error):
            raise
        raise ModelError(f"{path} is not a tokenizer: {error}", hint="download the file again") from error


def _sentence_settings(folder: Path) -> dict[str, Any]:
    """The settings of the Transformer module in a sentence-transformers folder; empty if there are none."""
    return next(filter(None, (json_object(folder / name) for name in SENTENCE_FILES)), {})


def _lower(tokenizers: Any, tokenizer: Any) -> None:
    """Make a tokenizer lowercase each text first, as `do_lower_case` of sentence-transformers does."""
    normalizers, known = tokenizers.normalizers, tokenizer.normalizer
    parts = list(known) if isinstance(known, normalizers.Sequence) else [known] if known is not None else []
    if not any(isinstance(part, normalizers.Lowercase) for part in parts):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *parts])


def default_prompt(folder: Path) -> str:
    """The prompt that sentence-transformers puts before each text unless another is requested; empty if there is none."""
    path = folder / PROMPTS_FILE
    settings = json_object(path)
    name = settings.get("default_prompt_name")
    if name is None:
        return ""
    prompts = settings.get("prompts")
    prompt = {"query": "", "document": ""} | prompts if isinstance(prompts, dict) else {}
    found = prompt.get(name)
    if name not in prompt or not isinstance(found, str | None):
        raise ModelError(
            f"`default_prompt_name` in {path} is {name!r}, for which `prompts` has no text",
            hint="download the model again",
        )
    return found or ""


def longest_input(found: ModelFiles) -> int | None:
    """The most tokens that a model accepts, with special tokens, from its configuration; None if there is no limit."""
    limits = [
        _sentence_settings(found.folder).get("max_seq_length"),
        found.json("tokenizer_config.json").get("model_max_length"),
        _positions(found.config),
    ]
    known = [int(limit) for limit in limits if isinstance(limit, (int, float)) and 0 < limit < 10**9]
    return min(known) if known else None


_COUNTS_FROM_PADDING = frozenset({
    "camembert", "data2vec-text", "ibert", "lilt", "longformer", "luke", "markuplm", "mpnet", "roberta", "roberta-prelayernorm",
    "xlm-roberta", "xlm-roberta-xl", "xmod",
})  # fmt: skip
"""Types of models in transformers that count positions from the one after the padding token."""


def _positions(config: dict[str, Any]) -> int | None:
    """The positions of a network that has a fixed number of them."""
    if config.get("model_type") in ("deberta", "deberta-v2") and not config.get("position_biased_input", True):
        return None  # relative positions have no limit
    count = config.get("max_position_embeddings", config.get("n_positions"))
    if not isinstance(count, int) or count <= 0:
        return None
    if config.get("model_type") in _COUNTS_FROM_PADDING:
        return count - int(config.get("pad_token_id") or 1) - 1
    return count
