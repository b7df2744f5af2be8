r"""Small n-gram language models, which compute the perplexity of a text.

    texts --language_training.py--> log p and backoff of each n-gram, in one file --> perplexity of other texts

The model is the interpolated, modified Kneser-Ney model of Chen and Goodman (1998). KenLM estimates the same model (Heafield
et al. 2013), and CCNet ranks web text by its perplexity (Wenzek et al. 2020). As in ARPA files, each n-gram has a probability
and a backoff weight, but it is stored under a 64-bit hash instead of its words, which keeps files small. ARPA files written by
other tools can be read too.

A model file contains only numbers and JSON, no executable code.
"""

from __future__ import annotations

import functools
import gzip
import json
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Column
from tamis.errors import ParameterError, TamisError
from tamis.kernels import language_model as kernel
from tamis.kernels.marks import MarkedWords, Words

_KIND = "tamis language model 1"
_OWN, _ARPA, _COMPRESSED_ARPA = 5, 20, 64
"""Bytes of memory to load a byte of a file. Files of ours have 16 bytes per n-gram, and the table has up to 48 more."""
WORDS_OF_UNIT: dict[str, Words] = {"words": "unicode", "characters": "characters", "whitespace": "whitespace"}
NEVER = -99.0  # log10 p of tokens that are never predicted, as in ARPA files
UNKNOWN = -100.0  # log10 p of an unknown word if the file has none, as in KenLM


@dataclass(frozen=True)
class Settings:
    """How a model splits and normalizes text, and which n-grams it has."""

    order: int = 3
    """Length of the longest n-grams."""
    unit: Literal["words", "characters", "whitespace"] = "words"
    """`words`: UAX #29 words, without punctuation. `characters`: single letters and digits. `whitespace`: split at spaces; used
    for models read from ARPA files."""
    fold: bool = True
    """Ignore case and read every digit as 0, as Wenzek et al. (2020) do."""
    min_count: int = 1
    """Omit n-grams of the longest length that occur less often. 2 makes the file much smaller."""

    def check(self) -> None:
        if not 1 <= self.order <= kernel.LONGEST:
            raise ParameterError(f"`order` must be between 1 and {kernel.LONGEST}, got {self.order}")
        if self.unit not in WORDS_OF_UNIT:
            raise ParameterError(f"`unit` must be one of {', '.join(WORDS_OF_UNIT)}, got {self.unit!r}")
        if self.min_count < 1:
            raise ParameterError(f"`min_count` must be positive, got {self.min_count}")

    def read(self, column: Column) -> tuple[np.ndarray, np.ndarray]:
        """Return the bytes and offsets of a string column, in lower case if `fold` is set and it has bytes above 127."""
        data, offsets = _buffers(column)
        if self.fold and len(data) and data[offsets[0] : offsets[-1]].max(initial=0) > 127:
            data, offsets = _buffers(pc.utf8_lower(column))
        return data, offsets

    @property
    def folding(self) -> np.ndarray:
        table = np.arange(256, dtype=np.uint8)
        if self.fold:
            table[ord("A") : ord("Z") + 1] += 32
            table[ord("0") : ord("9") + 1] = ord("0")
        table.flags.writeable = False
        return table


def _buffers(column: Column) -> tuple[np.ndarray, np.ndarray]:
    column = column.cast(pa.large_string()).fill_null("")
    _, spans, text = column.buffers()
    data = np.frombuffer(text, np.uint8) if text is not None and text.size else np.zeros(0, np.uint8)
    offsets = np.frombuffer(spans, np.int64)[column.offset : column.offset + len(column) + 1]
    if not len(column):
        offsets = np.zeros(1, np.int64)
    data.flags.writeable = offsets.flags.writeable = False
    return data, offsets


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """N-gram keys with their log10 probability and log10 backoff weight."""

    settings: Settings
    keys: np.ndarray
    """uint64, ascending, so that equal models give equal files."""
    values: np.ndarray
    """float32[n, 2]"""

    @functools.cached_property
    def _table(self) -> tuple[np.ndarray, np.ndarray]:
        size = 1 << max(4, (3 * len(self.keys) // 2).bit_length())
        slots = np.zeros(2 * size, np.uint64)
        kernel.fill_table(self.keys, self.values, slots, slots.view(np.float32))
        return slots, slots.view(np.float32)

    def with_table(self) -> LanguageModel:
        """Return this model, with the table that scoring needs built now instead of at the first text."""
        assert self._table
        return self

    def score(self, column: Column) -> tuple[np.ndarray, np.ndarray]:
        """Return (log10 of the probability of each text, its number of words and line ends)."""
        data, offsets = self.settings.read(column)
        logs, counts = np.zeros(len(column), np.float64), np.zeros(len(column), np.int64)
        words = MarkedWords.of(data, offsets, WORDS_OF_UNIT[self.settings.unit])
        kernel.score_rows(
            data,
            offsets,
            words.begins,
            words.ends,
            self.settings.folding,
            self.settings.order,
            *self._table,
            logs,
            counts,
        )
        return logs, counts

    def perplexity(self, column: Column) -> np.ndarray:
        """Return the perplexity of each text: the inverse geometric mean of the probabilities of its words and line ends.

        nan for texts without words.
        """
        logs, counts = self.score(column)
        with np.errstate(over="ignore"):
            return np.where(counts > 0, 10.0 ** np.minimum(-logs / np.maximum(counts, 1), 300.0), np.nan)

    def save(self, path: str | Path) -> None:
        """Write the model in the safetensors format: an 8-byte length, JSON, numbers."""
        metadata = {"kind": _KIND, "settings": json.dumps(asdict(self.settings))}
        middle = self.keys.nbytes
        tensors = {
            "keys": {"dtype": "U64", "shape": [len(self.keys)], "data_offsets": [0, middle]},
            "values": {
                "dtype": "F32",
                "shape": [len(self.keys), 2],
                "data_offsets": [middle, middle + self.values.nbytes],
            },
        }
        header = json.dumps({"__metadata__": metadata, **tensors}, sort_keys=True).encode()
        header += b" " * (-len(header) % 8)
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(target.name + ".partial")
        with partial.open("wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.write(self.keys.astype("<u8").tobytes())
            file.write(self.values.astype("<f4").tobytes())
        partial.replace(target)

    @staticmethod
    def load(path: str | Path) -> LanguageModel:
        """Read a model or an ARPA file (plain or gzip). Raises a TamisError that names the problem if the file is invalid."""
        try:
            raw = Path(path).read_bytes()
        except OSError as error:
            raise TamisError(f"the model {path} cannot be read: {error}") from error
        try:
            if raw[:2] == b"\x1f\x8b":
                raw = gzip.decompress(raw)
            if raw.lstrip().startswith(b"\\data\\"):
                return _parse_arpa(raw.decode())
            (size,) = struct.unpack_from("<Q", raw)
            header = json.loads(raw[8 : 8 + size])
            if header["__metadata__"]["kind"] != _KIND:
                raise ValueError(f"its kind is {header['__metadata__']['kind']!r}")
            settings = Settings(**json.loads(header["__metadata__"]["settings"]))
            settings.check()
            parts = {
                name: np.frombuffer(
                    raw, dtype, np.prod(header[name]["shape"]), 8 + size + header[name]["data_offsets"][0]
                )
                for name, dtype in (("keys", "<u8"), ("values", "<f4"))
            }
            model = LanguageModel(
                settings, parts["keys"].astype(np.uint64), parts["values"].reshape(-1, 2).astype(np.float32)
            )
            model._check()
        except (ValueError, KeyError, TypeError, OSError, EOFError, struct.error, TamisError) as error:
            raise TamisError(
                f"{path} is not a language model: {error}", hint="make one with `tamis train-language-model`"
            ) from error
        return model

    def _check(self) -> None:
        marks = keys_of([np.array([mark]) for mark in (kernel.END, kernel.UNKNOWN)])
        if (
            len(self.keys) != len(self.values)
            or not np.isin(marks, self.keys).all()
            or not np.isfinite(self.values).all()
        ):
            raise ValueError("it is incomplete")


def memory_bytes(path: Path) -> int:
    """Return the memory that loading a model and its first use need, from the size and the first bytes of its file."""
    with path.open("rb") as file:
        start = file.read(6)
    if start[:2] == b"\x1f\x8b":
        return _COMPRESSED_ARPA * path.stat().st_size
    return (_ARPA if start.lstrip()[:1] == b"\\" else _OWN) * path.stat().st_size


def keys_of(ngrams: list[np.ndarray]) -> np.ndarray:
    """Return the keys of n-grams, each given as the hashes of its words, first to last."""
    result = np.zeros(len(ngrams), np.uint64)
    for index, words in enumerate(ngrams):
        keys = np.zeros(len(words), np.uint64)
        kernel.make_keys(words.astype(np.uint64), np.arange(len(words), dtype=np.int32), len(words), keys)
        result[index] = keys[-1]
    return result


def sorted_model(settings: Settings, keys: np.ndarray, values: np.ndarray) -> LanguageModel:
    order = np.argsort(keys, kind="stable")
    return LanguageModel(settings, keys[order], values[order].astype(np.float32, copy=False))


# ----------------------------------------------------------------------------------------------------------- ARPA files


def _parse_arpa(text: str) -> LanguageModel:
    """Parse a backoff model in ARPA format, as CMU, SRILM and KenLM write it: log10 p, words, log10 backoff on each line."""
    words: list[str] = []
    logs: list[float] = []
    backoffs: list[float] = []
    lengths: list[int] = []
    for length, line in _ngram_lines(text):
        fields = line.split()
        if len(fields) not in (length + 1, length + 2):
            raise ValueError(f"a line of the {length}-grams has {len(fields)} fields: {line[:80]!r}")
        words += fields[1 : length + 1]
        logs.append(max(float(fields[0]), UNKNOWN))
        backoffs.append(float(fields[length + 1]) if len(fields) == length + 2 else 0.0)
        lengths.append(length)
    settings = Settings(order=max(lengths, default=0), unit="whitespace", fold=False)
    settings.check()
    data, offsets = _buffers(pa.array(words, pa.large_string()))
    hashes = np.zeros(len(words), np.uint64)
    kernel.hash_rows(data, offsets, settings.folding, hashes)
    marks = {"<s>": kernel.BEGIN, "</s>": kernel.END, "<unk>": kernel.UNKNOWN, "<UNK>": kernel.UNKNOWN}
    hashes = np.array([marks.get(word, own) for word, own in zip(words, hashes, strict=True)], np.uint64)
    keys = keys_of(np.split(hashes, np.cumsum(lengths)[:-1]))
    values = np.array([logs, backoffs]).T
    absent = [mark for mark in (kernel.END, kernel.UNKNOWN) if keys_of([np.array([mark])])[0] not in keys]
    if absent:
        keys = np.concatenate([keys, keys_of([np.array([mark]) for mark in absent])])
        values = np.concatenate([values, [[UNKNOWN, 0.0]] * len(absent)])
    return sorted_model(settings, keys, values)


def _ngram_lines(text: str) -> Iterator[tuple[int, str]]:
    length, ended = 0, False
    for line in map(str.strip, text.splitlines()):
        if line == "\\end\\":
            ended = True
            break
        if line.startswith("\\") and line.endswith("-grams:"):
            length = int(line[1:].partition("-")[0])
        elif length and line:
            yield length, line
    if not ended:
        raise ValueError("it has no \\end\\ line")
