r"""Small n-gram language models: how surprised is a reader of other texts by this one?

    texts --language_training.py--> log p and backoff of each n-gram, in one file --> perplexity of other texts

The model is the interpolated, modified Kneser-Ney model of Chen and Goodman (1998), the one that KenLM estimates (Heafield et
al. 2013) and by whose perplexity CCNet sorts web text (Wenzek et al. 2020). It is kept as backoff models are in ARPA files, for
each n-gram a probability and a weight for what is longer, under 64-bit hashes of the words instead of the words
(Brants et al. 2007 show what size buys; hashes are what makes a small file). ARPA files of other tools can be read too.

A model file holds numbers and JSON, nothing that runs.
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
WAYS: dict[str, Words] = {"words": "unicode", "characters": "characters", "whitespace": "whitespace"}
NEVER = -99.0  # log10 p of what is not predicted, as ARPA files write it
UNKNOWN = -100.0  # log10 p of an unknown word where a file has none, as KenLM has it


@dataclass(frozen=True)
class Settings:
    """What a model reads."""

    order: int = 3
    """The longest n-gram."""
    unit: Literal["words", "characters", "whitespace"] = "words"
    """Words of UAX #29, signs left out, or single letters and digits; what is read from ARPA files is split at spaces."""
    fold: bool = True
    """Whether case does not matter and every digit is read as 0 (Wenzek et al. 2020 do the same)."""
    min_count: int = 1
    """The longest n-grams that occur less often are left out of the model; 2 makes a file much smaller."""

    def check(self) -> None:
        if not 1 <= self.order <= kernel.LONGEST:
            raise ParameterError(f"`order` must be between 1 and {kernel.LONGEST}, got {self.order}")
        if self.unit not in WAYS:
            raise ParameterError(f"`unit` must be one of {', '.join(WAYS)}, got {self.unit!r}")
        if self.min_count < 1:
            raise ParameterError(f"`min_count` must be positive, got {self.min_count}")

    def read(self, column: Column) -> tuple[np.ndarray, np.ndarray]:
        """The bytes and offsets of a string column in lower case, if case does not matter."""
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
    """N-grams by key, with log10 p and log10 backoff."""

    settings: Settings
    keys: np.ndarray
    """uint64, ascending, so that the same n-grams are the same file."""
    values: np.ndarray
    """float32[n, 2]"""

    @functools.cached_property
    def _table(self) -> tuple[np.ndarray, np.ndarray]:
        size = 1 << max(4, (3 * len(self.keys) // 2).bit_length())
        slots = np.zeros(2 * size, np.uint64)
        kernel.fill_table(self.keys, self.values, slots, slots.view(np.float32))
        return slots, slots.view(np.float32)

    def score(self, column: Column) -> tuple[np.ndarray, np.ndarray]:
        """(log10 of the probability of each text, how many words and ends of lines it is of)."""
        data, offsets = self.settings.read(column)
        logs, counts = np.zeros(len(column), np.float64), np.zeros(len(column), np.int64)
        words = MarkedWords.of(data, offsets, WAYS[self.settings.unit])
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
        """The inverse geometric mean of the probabilities of the words and ends of lines of each text; nan without any."""
        logs, counts = self.score(column)
        with np.errstate(over="ignore"):
            return np.where(counts > 0, 10.0 ** np.minimum(-logs / np.maximum(counts, 1), 300.0), np.nan)

    def save(self, path: str | Path) -> None:
        """Write the model as safetensors: an 8-byte length, JSON, numbers."""
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
        """Read a model, or an ARPA file (plain or gzip), or raise a TamisError that says what is wrong with the file."""
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
                raise ValueError(f"it is a {header['__metadata__']['kind']!r}")
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
            raise ValueError("it is not complete")


def open_language_model(path: Path) -> LanguageModel:
    """The model of a file, opened once in this process for as long as the file does not change."""
    found = path.stat()
    return _open(str(path), found.st_size, found.st_mtime_ns)


@functools.lru_cache(maxsize=4)
def _open(path: str, size: int, changed: int) -> LanguageModel:
    return LanguageModel.load(path)


def keys_of(ngrams: list[np.ndarray]) -> np.ndarray:
    """The keys of n-grams given as hashes of their words, first to last."""
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
    """A backoff model in the format of the ARPA files of CMU, SRILM and KenLM: \\N-grams: log10 p, words, log10 backoff."""
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
        raise ValueError("it ends before its \\end\\")
