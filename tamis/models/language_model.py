r"""Small n-gram language models: how surprised is a reader of other texts by this one?

    texts --words of each line--> n-grams, counted --modified Kneser-Ney--> log p and backoff of each n-gram --> one file

The model is the interpolated, modified Kneser-Ney model of Chen and Goodman (1998), the one that KenLM estimates (Heafield et
al. 2013) and by whose perplexity CCNet sorts web text (Wenzek et al. 2020). It is kept as backoff models are in ARPA files, for
each n-gram a probability and a weight for what is longer, under 64-bit hashes of the words instead of the words
(Brants et al. 2007 show what size buys; hashes are what makes a small file). ARPA files of other tools can be read too.

Training is deterministic: the same texts give the same file. A model file holds numbers and JSON, nothing that runs.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import struct
from collections.abc import Callable, Iterator
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
_WAYS: dict[str, Words] = {"words": "unicode", "characters": "characters", "whitespace": "whitespace"}
_NEVER = -99.0  # log10 p of what is not predicted, as ARPA files write it
_UNKNOWN = -100.0  # log10 p of an unknown word where a file has none, as KenLM has it
_FALLBACK = (0.5, 1.0, 1.5)  # discounts where there is too little to estimate them, as KenLM has it


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
        if self.unit not in _WAYS:
            raise ParameterError(f"`unit` must be one of {', '.join(_WAYS)}, got {self.unit!r}")
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
        words = MarkedWords.of(data, offsets, _WAYS[self.settings.unit])
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
        marks = _keys_of([np.array([mark]) for mark in (kernel.END, kernel.UNKNOWN)])
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


def _keys_of(ngrams: list[np.ndarray]) -> np.ndarray:
    """The keys of n-grams given as hashes of their words, first to last."""
    result = np.zeros(len(ngrams), np.uint64)
    for index, words in enumerate(ngrams):
        keys = np.zeros(len(words), np.uint64)
        kernel.make_keys(words.astype(np.uint64), np.arange(len(words), dtype=np.int32), len(words), keys)
        result[index] = keys[-1]
    return result


def _sorted_model(settings: Settings, keys: np.ndarray, values: np.ndarray) -> LanguageModel:
    order = np.argsort(keys)
    return LanguageModel(settings, keys[order], values[order].astype(np.float32))


# ------------------------------------------------------------------------------------------------------------ training


@dataclass(frozen=True)
class Trained:
    model: LanguageModel
    texts: int
    words: int
    vocabulary: int
    ngrams: tuple[int, ...]
    """How many different n-grams of each length the model has."""
    tested: int
    perplexity: float
    """Of all texts held out together; nan if there are none."""
    percentiles: dict[int, float]
    """Of the perplexities of single texts held out."""


def train(
    texts: Column,
    *,
    settings: Settings | None = None,
    holdout: float = 0.1,
    progress: Callable[[str], None] | None = None,
) -> Trained:
    """Train on a string column and evaluate on the share `holdout` of it, chosen by content and kept apart.

    Holds about 40 bytes for each word and length of n-gram.
    """
    settings = settings or Settings()
    settings.check()
    if not 0 <= holdout < 1:
        raise ParameterError(f"`holdout` must be at least 0 and below 1, got {holdout}")
    apart = _held_out(texts, holdout)
    taught, tested = texts.filter(pa.array(~apart)), texts.filter(pa.array(apart))
    data, offsets = settings.read(taught)
    words, fold = MarkedWords.of(data, offsets, _WAYS[settings.unit]), settings.folding
    none = np.zeros(0, np.uint64), np.zeros(0, np.int32)
    count = kernel.find_tokens(data, offsets, words.begins, words.ends, fold, *none)
    if not count:
        raise TamisError("there is no word to learn from", hint="is `text_field` the column that holds the text?")
    tokens, places = np.zeros(count, np.uint64), np.zeros(count, np.int32)
    kernel.find_tokens(data, offsets, words.begins, words.ends, fold, tokens, places)
    keys, values, sizes = _estimate(tokens, places, settings, progress)
    model = _sorted_model(settings, keys, values)
    logs, counts = model.score(tested)
    each = 10.0 ** np.minimum(-logs[counts > 0] / counts[counts > 0], 300.0)
    return Trained(
        model=model,
        texts=len(taught),
        words=int((places > 0).sum() - (tokens == kernel.END).sum()),
        vocabulary=sizes[0] - 2,
        ngrams=tuple(sizes),
        tested=len(each),
        perplexity=float(10.0 ** (-logs.sum() / counts.sum())) if counts.sum() else float("nan"),
        percentiles={p: float(np.percentile(each, p)) for p in (10, 30, 50, 60, 90)} if len(each) else {},
    )


def _held_out(texts: Column, holdout: float) -> np.ndarray:
    """Which texts are for testing: those whose content hashes below a bound, whatever their order or number."""
    bound = int(holdout * 2**32)
    hashes = b"".join(hashlib.blake2b((text or "").encode(), digest_size=4).digest() for text in texts.to_pylist())
    return np.frombuffer(hashes, "<u4").astype(np.int64) < bound


@dataclass
class _Grams:
    """The different n-grams of one length: their keys (ascending), and a place in the text where each ends."""

    keys: np.ndarray
    ends: np.ndarray
    counts: np.ndarray


def _estimate(
    tokens: np.ndarray, places: np.ndarray, settings: Settings, progress: Callable[[str], None] | None
) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Keys and values (log10 p, log10 backoff) of all n-grams, and how many there are of each length.

    p(w | c) = (a(c w) - D) / a(c) + g(c) p(w | c without its first word), where a counts occurrences of the longest n-grams
    and of those that begin a line, and for the others the different words that stand before them; g(c) is what makes the
    probabilities after c add up to one, and the backoff of c.
    """
    lengths: list[_Grams] = []
    for length in range(1, settings.order + 1):
        if progress is not None:
            progress(f"counting n-grams of {length}")
        keys = _all_keys(tokens, places, length)
        inside = np.flatnonzero(keys) if length > 1 else np.arange(len(keys))
        unique, first, counts = np.unique(keys[inside], return_index=True, return_counts=True)
        lengths.append(_Grams(unique, inside[first], counts))
    logs: list[np.ndarray] = []
    backoffs = [np.zeros(len(grams.keys)) for grams in lengths]
    lower = np.zeros(0)  # p of the n-grams one shorter
    unknown = 0.0
    for length, grams in enumerate(lengths, 1):
        counts = _adjusted(lengths, length, places, tokens).astype(np.float64)
        predicted = tokens[grams.ends] != kernel.BEGIN
        discounts = np.zeros(len(counts))
        discounts[predicted] = _discount(counts[predicted])
        kept = predicted & (grams.counts >= (settings.min_count if 1 < length == settings.order else 1))
        share = np.where(kept, np.maximum(counts - discounts, 0.0), 0.0)
        if length == 1:
            total = counts[predicted].sum()
            rest = 1 - share.sum() / total
            unknown = rest / (predicted.sum() + 1)
            chances = share / total + unknown
        else:
            shorter = lengths[length - 2]
            parts = _all_keys(tokens, places, length - 1)
            context = np.searchsorted(shorter.keys, parts[grams.ends - 1])
            suffix = np.searchsorted(shorter.keys, parts[grams.ends])
            totals = np.bincount(context, counts, len(shorter.keys))
            masses = np.bincount(context, share, len(shorter.keys))
            seen = totals > 0
            rests = np.ones(len(totals))
            rests[seen] = np.maximum(1 - masses[seen] / totals[seen], 1e-9)
            backoffs[length - 2] = np.log10(rests)
            chances = share / totals[context] + rests[context] * lower[suffix]
        lower = chances
        with np.errstate(divide="ignore"):
            logs.append(np.where(kept, np.log10(chances), _NEVER if length == 1 else np.nan))
    keys = np.concatenate([grams.keys for grams in lengths])
    values = np.stack([np.concatenate(logs), np.concatenate(backoffs)], axis=1)
    there = ~np.isnan(values[:, 0])
    mark = _keys_of([np.array([kernel.UNKNOWN])])
    sizes = [int((~np.isnan(each)).sum()) for each in logs]
    return (
        np.concatenate([keys[there], mark]),
        np.concatenate([values[there], [[np.log10(unknown), 0.0]]]),
        sizes,
    )


def _all_keys(tokens: np.ndarray, places: np.ndarray, length: int) -> np.ndarray:
    """The key of the n-gram of a length that ends at each token, 0 where there is none."""
    keys = np.zeros(len(tokens), np.uint64)
    kernel.make_keys(tokens, places, length, keys)
    return keys


def _adjusted(lengths: list[_Grams], length: int, places: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """How often each n-gram of a length counts; see `_estimate`."""
    grams = lengths[length - 1]
    if length == len(lengths):
        return grams.counts
    longer = lengths[length]
    suffix = np.searchsorted(grams.keys, _all_keys(tokens, places, length)[longer.ends])
    before = np.bincount(suffix, minlength=len(grams.keys))
    return np.where(places[grams.ends] == length - 1, grams.counts, before)


def _discount(counts: np.ndarray) -> np.ndarray:
    """What is taken off each count (Chen and Goodman 1998, equation 26)."""
    times = [int((counts == number).sum()) for number in (1, 2, 3, 4)]
    found = _FALLBACK
    if all(times):
        share = times[0] / (times[0] + 2 * times[1])
        found = (
            1 - 2 * share * times[1] / times[0],
            2 - 3 * share * times[2] / times[1],
            3 - 4 * share * times[3] / times[2],
        )
        if not all(0 < discount <= number for number, discount in enumerate(found, 1)):
            found = _FALLBACK
    return np.array((0.0, *found))[np.minimum(counts, 3).astype(np.int64)]


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
        logs.append(max(float(fields[0]), _UNKNOWN))
        backoffs.append(float(fields[length + 1]) if len(fields) == length + 2 else 0.0)
        lengths.append(length)
    settings = Settings(order=max(lengths, default=0), unit="whitespace", fold=False)
    settings.check()
    data, offsets = _buffers(pa.array(words, pa.large_string()))
    hashes = np.zeros(len(words), np.uint64)
    kernel.hash_rows(data, offsets, settings.folding, hashes)
    marks = {"<s>": kernel.BEGIN, "</s>": kernel.END, "<unk>": kernel.UNKNOWN, "<UNK>": kernel.UNKNOWN}
    hashes = np.array([marks.get(word, own) for word, own in zip(words, hashes, strict=True)], np.uint64)
    keys = _keys_of(np.split(hashes, np.cumsum(lengths)[:-1]))
    values = np.array([logs, backoffs]).T
    absent = [mark for mark in (kernel.END, kernel.UNKNOWN) if _keys_of([np.array([mark])])[0] not in keys]
    if absent:
        keys = np.concatenate([keys, _keys_of([np.array([mark]) for mark in absent])])
        values = np.concatenate([values, [[_UNKNOWN, 0.0]] * len(absent)])
    return _sorted_model(settings, keys, values)


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
