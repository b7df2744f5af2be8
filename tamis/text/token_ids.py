"""Token ids of texts, for files that trainers read.

    text --split--> pieces --table--> ids of known pieces
                           --tokenizer--> ids of new pieces, added to the table

As in `tamis.text.tokens`, each distinct piece of text is tokenized once if the tokenizer allows it. The ids are those of the
tokenizer on the whole text.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Batch, Column
from tamis.context import Context
from tamis.errors import ParameterError, did_you_mean, require
from tamis.kernels.pieces import find_pieces, spell
from tamis.operators import Map, Resources, operator
from tamis.text.lists import check_files, identify_files
from tamis.text.segment import buffers
from tamis.text.shared_files import SharedFile
from tamis.text.tokens import must_be, piecewise

Encode = Callable[[Sequence[str]], list[list[int]]]
"""The ids of each text, without special tokens."""

SLOTS = 1 << 19
"""Slots of the table. It is cleared when half of them are taken."""
_CHUNK = 1 << 16
"""Pieces that are looked up at a time."""
_TABLE_BYTES = SLOTS * (16 + 4 + 8) + 8 * SLOTS
_MEMORY_PER_BYTE = 16
"""Memory per byte of a tokenizer file, as for counting."""
MOST_SOURCES = 1000
"""Sources that are counted on their own; the rest is counted together."""


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer that returns ids."""

    encode: Encode
    size: int
    """One more than the largest id."""
    find: Callable[[str], int | None]
    """The id of a token."""
    special: tuple[str, ...]
    style: tuple[int, str] | None
    """How texts are split into pieces, and what must be encoded as a whole; None if every text must be."""


def load_vocabulary(path: str | Path) -> Vocabulary:
    """Read a `tokenizer.json` of the Hugging Face library tokenizers or a SentencePiece `.model`."""
    path = str(path)
    if path.endswith(".model"):
        module = require("sentencepiece", extra="text", purpose="SentencePiece tokens")
        with must_be(path, "a SentencePiece model"):
            processor = module.SentencePieceProcessor(model_file=path)

        def id_of(token: str) -> int | None:
            found = int(processor.piece_to_id(token))
            return found if processor.id_to_piece(found) == token else None

        size = int(processor.vocab_size())
        special = tuple(processor.id_to_piece(number) for number in range(size) if processor.is_control(number))
        return Vocabulary(lambda texts: processor.encode(list(texts)), size, id_of, special, None)
    module = require("tokenizers", extra="text", purpose="tokens")
    with must_be(path, "a tokenizer.json of the library tokenizers"):
        tokenizer = module.Tokenizer.from_file(path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None  # for training: ids would be random
    settings = json.loads(tokenizer.to_str())

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [each.ids for each in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    return Vocabulary(
        encode,
        max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1,
        tokenizer.token_to_id,
        tuple(token["content"] for token in settings["added_tokens"]),
        piecewise(settings),
    )


def memory_bytes(path: Path) -> int:
    """The memory that a tokenizer and its table of pieces need."""
    return _MEMORY_PER_BYTE * path.stat().st_size + _TABLE_BYTES


VOCABULARY = SharedFile("token ids", load_vocabulary, memory_bytes, find=Path)


class Speller:
    """Returns the ids of texts, and keeps those of the pieces that it has seen."""

    def __init__(self, vocabulary: Vocabulary, num_slots: int = SLOTS) -> None:
        self._encode = vocabulary.encode
        self._style, self._special = vocabulary.style or (0, "")
        self._in_pieces = vocabulary.style is not None
        if self._in_pieces:
            self._keys = np.zeros((num_slots, 2), np.uint64)
            self._counts, self._starts = np.zeros(num_slots, np.int32), np.zeros(num_slots, np.int64)
            self._pool = np.empty(num_slots, np.int32)
            self._used = self._filled = 0

    def __call__(self, column: Column) -> tuple[np.ndarray, np.ndarray]:
        """The ids of all texts, int32, and the number of ids of each text; a null has none."""
        if not self._in_pieces:
            found = self._encode([text or "" for text in column.to_pylist()]) if len(column) else []
            sizes = np.array([len(ids) for ids in found], np.int64)
            return np.fromiter((each for ids in found for each in ids), np.int32, int(sizes.sum())), sizes
        data, offsets = buffers(column)
        whole = self._whole(column)
        sizes, parts = np.zeros(len(column), np.int64), []
        position = np.zeros(2, np.int64)
        slots, rows = np.empty(_CHUNK, np.int32), np.empty(_CHUNK, np.int64)
        fresh = np.empty((_CHUNK, 3), np.int64)
        while position[0] < len(column):
            row = int(position[0])
            if whole[row]:
                (ids,) = self._encode([str(column[row])])
                sizes[row] = len(ids)
                parts.append(np.array(ids, np.int32))
                position[0] += 1
                continue
            room = len(self._keys) // 2 - self._used
            if room <= 0:
                self._forget()
                continue
            num, num_fresh = find_pieces(
                data, offsets, whole, self._style, self._keys, self._counts, room, position, slots, rows, fresh
            )
            self._used += num_fresh
            self._learn(data, fresh[:num_fresh])
            lengths = self._counts[slots[:num]]
            out = np.empty(int(lengths.sum()), np.int32)
            spell(slots[:num], self._starts, self._counts, self._pool, out)
            parts.append(out)
            np.add.at(sizes, rows[:num], lengths)
        return np.concatenate(parts) if parts else np.empty(0, np.int32), sizes

    def _whole(self, column: Column) -> np.ndarray:
        if not self._special or not len(column):
            return np.zeros(len(column), np.bool_)
        found = pc.fill_null(pc.match_substring_regex(column.cast(pa.large_string()), self._special), False)
        return np.asarray(found.to_numpy(zero_copy_only=False))

    def _learn(self, data: np.ndarray, fresh: np.ndarray) -> None:
        if not len(fresh):
            return
        try:
            found = self._encode([bytes(data[start:stop]).decode() for start, stop, _ in fresh])
            lengths = np.array([len(ids) for ids in found], np.int32)
            total = self._filled + int(lengths.sum())
            if total > len(self._pool):
                self._pool = np.concatenate([self._pool[: self._filled], np.empty(2 * total - self._filled, np.int32)])
            self._pool[self._filled : total] = [each for ids in found for each in ids]
            self._starts[fresh[:, 2]] = self._filled + np.cumsum(lengths) - lengths
            self._counts[fresh[:, 2]] = lengths
            self._filled = total
        except BaseException:
            self._forget()  # the table has pieces without ids
            raise

    def _forget(self) -> None:
        self._keys.fill(0)
        self._used = self._filled = 0


@operator(reads="text")
class TokenIds(Map):
    """Add the token ids of each document as a list of int32, with `end_token`, if given, at the end.

    `tokenizer` is a `tokenizer.json` of the Hugging Face library tokenizers, or a SentencePiece `.model`. Ids are those of the
    tokenizer on the whole text; where the tokenizer splits texts into words first, each distinct word is tokenized once. No
    other special tokens are added, but a `tokenizer.json` recognizes those that are written out in a text. A null text has no
    ids. The report has the number of tokens, by the values of column `source` if it is given. Needs
    `tamis[text]`.

        TokenIds("tokenizer.json", end_token="<|endoftext|>")
    """

    tokenizer: str
    end_token: str | None = None
    output: str = "input_ids"
    source: str | None = None
    column: str = "text"

    cost = 20.0

    def check(self) -> None:
        check_files(self.name, [self.tokenizer])

    def identity(self) -> dict[str, Any]:
        return identify_files(super().identity(), [self.tokenizer])

    def reads(self) -> tuple[str, ...]:
        return (*super().reads(), *(() if self.source is None else (self.source,)))

    def writes(self) -> tuple[str, ...]:
        return (self.output,)

    @property
    def resources(self) -> Resources:
        return VOCABULARY.resources(self.tokenizer)

    def open(self, context: Context) -> _IdWriter:
        return _IdWriter(self, VOCABULARY.open(self.tokenizer, context))


END_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]")
"""What tokenizers call the end of a document: GPT-2 and GPT-4, Llama 3, Llama 2 and T5, Gemma, chat models, BERT."""


def end_token_of(tokenizer: str | Path) -> str | None:
    """The token that ends documents, if the tokenizer has one of the usual names."""
    path = str(tokenizer)
    with must_be(path, "a tokenizer"):
        if path.endswith(".model"):
            special = load_vocabulary(path).special
        else:
            special = tuple(token["content"] for token in json.loads(Path(path).read_bytes())["added_tokens"])
    return next((token for token in END_TOKENS if token in special), None)


def find_token(vocabulary: Vocabulary, token: str, parameter: str, tokenizer: str) -> int:
    """The id of a token that a parameter names."""
    found = vocabulary.find(token)
    if found is None:
        known = ", ".join(vocabulary.special[:20])
        raise ParameterError(
            f"{tokenizer} has no token {token!r}, which `{parameter}` names",
            hint=did_you_mean(token, vocabulary.special)
            or (f"its special tokens: {known}" if known else "it has none"),
        )
    return found


class _IdWriter:
    def __init__(self, step: TokenIds, vocabulary: Vocabulary) -> None:
        self._step = step
        self._spell = Speller(vocabulary)
        self._end = None
        if step.end_token is not None:
            self._end = find_token(vocabulary, step.end_token, "end_token", step.tokenizer)
        self._counts: Counter[str] = Counter()

    def apply(self, batch: Batch) -> dict[str, Column]:
        ids, sizes = self._spell(batch["text"])
        if self._end is not None:
            ids = np.insert(ids, np.cumsum(sizes), self._end).astype(np.int32, copy=False)
            sizes = sizes + 1
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        found = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(ids))
        self._count(batch, sizes)
        return {self._step.output: found}

    def _count(self, batch: Batch, sizes: np.ndarray) -> None:
        counts: Counter[str] = Counter(tokens=int(sizes.sum()))
        if self._step.source is not None:
            values = batch[self._step.source].cast(pa.string()).to_pylist()
            for value, size in zip(values, sizes.tolist(), strict=True):
                counts[f"tokens of {value if value is not None else 'no source'}"] += size
        for name, number in counts.items():
            known = name in self._counts or len(self._counts) <= MOST_SOURCES
            self._counts[name if known else "tokens of other sources"] += number

    def take_counts(self) -> dict[str, float]:
        """The tokens since the last call, in all and by source."""
        taken, self._counts = self._counts, Counter()
        return {name: float(number) for name, number in taken.items()}
