"""Train n-gram language models within bounded memory.

    texts --words of each line--> n-grams, counted --modified Kneser-Ney--> log p and backoff of each n-gram
                                  (ngrams.py, on disk)

Training is deterministic: the same texts give the same model.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from tamis.batch import Column
from tamis.errors import BudgetError, ParameterError, TamisError
from tamis.kernels import language_model as kernel
from tamis.kernels.marks import MarkedWords
from tamis.models.language_model import NEVER, WORDS_OF_UNIT, LanguageModel, Settings, keys_of, sorted_model
from tamis.models.ngrams import Runs, count_tokens
from tamis.parameters import format_bytes

WORKING_BYTES = 128_000_000
"""Memory for counting; more makes it only slightly faster."""
BYTES_PER_NGRAM = 64
"""Memory that a model needs per n-gram, during training and as a lookup table."""
_COPIES = 4  # of the buffer of one length, while it is merged
_PER_BYTE = 128  # bytes of memory per byte of text being counted, if every byte is a token
_SMALLEST_PIECE = 1 << 16
_REPORT_EVERY = 10_000_000  # words
_TEXT = pa.schema({"text": pa.large_string()})
_PLACED = np.dtype([("key", "<u8"), ("count", "<i8"), ("context", "<i8"), ("suffix", "<i8")])
_FALLBACK = (0.5, 1.0, 1.5)  # discounts if there is too little data to estimate them, as in KenLM


@dataclass(frozen=True)
class Trained:
    model: LanguageModel
    texts: int
    words: int
    vocabulary: int
    ngrams: tuple[int, ...]
    """Number of distinct n-grams of each length."""
    tested: int
    perplexity: float
    """Perplexity of all held-out texts together; nan if there are none."""
    percentiles: dict[int, float]
    """Percentiles of the perplexities of the held-out texts."""


def train(
    texts: Column | Iterable[Column],
    *,
    settings: Settings | None = None,
    holdout: float = 0.1,
    working_bytes: int = WORKING_BYTES,
    model_bytes: int | None = None,
    folder: str | Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Trained:
    """Train on string columns and evaluate on the fraction `holdout` of the texts, which is chosen by content.

    `texts` may be an iterable of columns. Memory: about 64 bytes per n-gram for the model, plus about `working_bytes` and one
    column of texts. Disk: n-gram counts and held-out texts are stored in a temporary folder in `folder`, about 10 bytes per
    byte of text. The result depends neither on these limits nor on how the texts are divided into columns. If the model
    would exceed `model_bytes`, a BudgetError is raised before it is built.
    """
    settings = settings or Settings()
    settings.check()
    if not 0 <= holdout < 1:
        raise ParameterError(f"`holdout` must be at least 0 and below 1, got {holdout}")
    columns = [texts] if isinstance(texts, pa.Array | pa.ChunkedArray) else texts
    with tempfile.TemporaryDirectory(prefix="tamis-", dir=folder) as work:
        counted = _Counted.of(columns, settings, holdout, Path(work), working_bytes, progress)
        if not counted.tokens:
            raise TamisError(
                "the input has no words to train on", hint="does `column` name the column that contains the text?"
            )
        keys, values, sizes = _estimate(counted, settings, model_bytes, progress)
        model = sorted_model(settings, keys, values)
        del keys, values
        scored = [model.score(column) for column in counted.tested()]
    logs, counts = (np.concatenate(found) for found in zip(*scored, strict=True)) if scored else (np.zeros(0),) * 2
    each = 10.0 ** np.minimum(-logs[counts > 0] / counts[counts > 0], 300.0)
    return Trained(
        model=model,
        texts=counted.texts,
        words=counted.words,
        vocabulary=sizes[0] - 2,
        ngrams=tuple(sizes),
        tested=len(each),
        perplexity=float(10.0 ** (-logs.sum() / counts.sum())) if counts.sum() else float("nan"),
        percentiles={p: float(np.percentile(each, p)) for p in (10, 30, 50, 60, 90)} if len(each) else {},
    )


def _held_out(texts: Column, holdout: float) -> np.ndarray:
    """Return which texts are held out: those whose content hash is below a bound, independent of order and number."""
    bound = int(holdout * 2**32)
    hashes = b"".join(hashlib.blake2b((text or "").encode(), digest_size=4).digest() for text in texts.to_pylist())
    return np.frombuffer(hashes, "<u4").astype(np.int64) < bound


@dataclass
class _Counted:
    """The n-grams of all training texts, and the held-out texts, in files."""

    runs: list[Runs]
    held_out: Path
    work: Path
    working_bytes: int
    texts: int = 0
    tokens: int = 0
    words: int = 0

    @classmethod
    def of(
        cls,
        columns: Iterable[Column],
        settings: Settings,
        holdout: float,
        work: Path,
        working_bytes: int,
        progress: Callable[[str], None] | None,
    ) -> _Counted:
        buffer_bytes = working_bytes // (settings.order + _COPIES)
        runs = [Runs(work / f"{length}-grams", buffer_bytes) for length in range(1, settings.order + 1)]
        counted = cls(runs, work / "held-out.arrow", work, working_bytes)
        reported = 0
        with pa.OSFile(str(counted.held_out), "wb") as file, pa.ipc.new_file(file, _TEXT) as tested:
            for column in columns:
                for piece in _pieces(column, max(_SMALLEST_PIECE, working_bytes // _PER_BYTE)):
                    held = _held_out(piece, holdout)
                    if held.any():
                        tested.write_batch(pa.record_batch([piece.filter(pa.array(held))], schema=_TEXT))
                    counted._count(piece.filter(pa.array(~held)) if held.any() else piece, settings)
                if progress is not None and counted.words >= reported + _REPORT_EVERY:
                    reported = counted.words
                    progress(f"counted {counted.words:,} words")
        return counted

    def _count(self, texts: Column, settings: Settings) -> None:
        data, offsets = settings.read(texts)
        words, fold = MarkedWords.of(data, offsets, WORDS_OF_UNIT[settings.unit]), settings.folding
        none = np.zeros(0, np.uint64), np.zeros(0, np.int32)
        count = kernel.find_tokens(data, offsets, words.begins, words.ends, fold, *none)
        tokens, places = np.zeros(count, np.uint64), np.zeros(count, np.int32)
        kernel.find_tokens(data, offsets, words.begins, words.ends, fold, tokens, places)
        for runs, found in zip(self.runs, count_tokens(tokens, places, settings.order), strict=True):
            runs.add(found)
        self.texts += len(texts)
        self.tokens += count
        self.words += int((places > 0).sum() - (tokens == kernel.END).sum())

    def tested(self) -> Iterator[Column]:
        with pa.OSFile(str(self.held_out)) as file, pa.ipc.open_file(file) as found:
            for number in range(found.num_record_batches):
                yield found.get_batch(number).column(0)


def _pieces(column: Column, num_bytes: int) -> Iterator[pa.Array]:
    """Split a column into arrays of about `num_bytes`, or of a single text that is longer."""
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        texts = chunk.cast(pa.large_string())
        offsets = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset :] if len(texts) else np.zeros(1, np.int64)
        at = 0
        while at < len(texts):
            stop = int(np.searchsorted(offsets[: len(texts) + 1], offsets[at] + num_bytes, side="right")) - 1
            stop = min(max(stop, at + 1), len(texts))
            yield texts.slice(at, stop - at)
            at = stop


@dataclass
class _Grams:
    """The distinct n-grams of one length, sorted by key."""

    keys: np.ndarray
    counts: np.ndarray
    begins: np.ndarray
    context: np.ndarray
    """Index of the n-gram without its last word among the n-grams one word shorter."""
    suffix: np.ndarray
    """The same without its first word."""

    @staticmethod
    def of(records: np.ndarray, shorter: np.ndarray) -> _Grams:
        """Build from records; `shorter`: the keys of all n-grams one word shorter."""
        none = np.zeros(0, np.int64)
        parts = (
            [np.searchsorted(shorter, records[name]) for name in ("context", "suffix")] if len(shorter) else [none] * 2
        )
        return _Grams(np.ascontiguousarray(records["key"]), records["count"].copy(), records["begins"].copy(), *parts)


def _estimate(
    counted: _Counted, settings: Settings, model_bytes: int | None, progress: Callable[[str], None] | None
) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Return the keys and values (log10 p, log10 backoff) of all n-grams, and their number for each length.

    p(w | c) = (a(c w) - D) / a(c) + g(c) p(w | c without its first word). For the longest n-grams and those at the start of a
    line, a is the number of occurrences; for all others, the number of distinct words that precede them. g(c) makes the
    probabilities after c sum to one; it is the backoff weight of c.

    All shorter n-grams are part of the model and therefore in memory. Most n-grams are of the longest length, and many of
    those may be omitted: they are processed part by part, once to count them, once for the total mass of their contexts,
    once for their probabilities. Fractions are summed in key order, so the sums do not depend on the division into parts.
    """
    order = settings.order
    lengths: list[_Grams] = []
    for length in range(1, max(2, order)):
        if progress is not None:
            progress(f"merging {length}-grams")
        shorter = lengths[-1].keys if lengths else np.zeros(0, np.uint64)
        lengths.append(_joined([_Grams.of(records, shorter) for records in counted.runs[length - 1]]))
    adjusted = [np.where(grams.begins, grams.counts, 0) for grams in lengths]
    for grams, longer, counts in zip(lengths, lengths[1:], adjusted, strict=False):
        counts += np.where(grams.begins, 0, np.bincount(longer.suffix, minlength=len(grams.keys)))
    longest: _Longest | None = None
    if order == 1:
        adjusted[0] = lengths[0].counts
    else:
        if progress is not None:
            progress(f"merging {order}-grams")
        longest = _Longest.of(counted, lengths[-1], settings.min_count)
        adjusted[-1] += np.where(lengths[-1].begins, 0, longest.before)
    _check_memory(sum(len(grams.keys) for grams in lengths) + (longest.kept if longest else 0), model_bytes)
    logs: list[np.ndarray] = []
    backoffs: list[np.ndarray] = []
    lower = np.zeros(0)  # p of the n-grams one word shorter
    unknown = 0.0
    for length, (grams, integers) in enumerate(zip(lengths, adjusted, strict=True), 1):
        counts = integers.astype(np.float64)
        predicted = ~grams.begins if length == 1 else np.ones(len(counts), np.bool_)
        discounts = np.zeros(len(counts))
        discounts[predicted] = _discounts(_times(integers[predicted]))[np.minimum(integers[predicted], 3)]
        share = np.where(predicted, np.maximum(counts - discounts, 0.0), 0.0)
        if length == 1:
            total = counts[predicted].sum()
            rest = 1 - share.sum() / total
            unknown = rest / (predicted.sum() + 1)
            chances = share / total + unknown
        else:
            size = len(lengths[length - 2].keys)
            totals = np.bincount(grams.context, counts, size)
            rests = _rests(np.bincount(grams.context, share, size), totals)
            backoffs.append(np.log10(rests).astype(np.float32))
            chances = share / totals[grams.context] + rests[grams.context] * lower[grams.suffix]
        lower = chances
        with np.errstate(divide="ignore"):
            logs.append(np.where(predicted, np.log10(chances), NEVER).astype(np.float32))
    keys = [grams.keys for grams in lengths]
    if longest is not None:
        del lengths, adjusted
        found, rests = longest.finish(lower)
        backoffs.append(np.log10(rests).astype(np.float32))
        keys.append(found[0])
        logs.append(found[1])
    backoffs.append(np.zeros(len(keys[-1]), np.float32))
    sizes = [len(each) for each in keys]
    last = np.array([np.log10(unknown)]).astype(np.float32)
    return (
        np.concatenate([*keys, keys_of([np.array([kernel.UNKNOWN])])]),
        np.stack([np.concatenate([*logs, last]), np.concatenate([*backoffs, np.zeros(1, np.float32)])], axis=1),
        sizes,
    )


def _joined(parts: list[_Grams]) -> _Grams:
    fields = zip(*([part.keys, part.counts, part.begins, part.context, part.suffix] for part in parts), strict=True)
    return _Grams(*(np.concatenate(field) for field in fields))


def _check_memory(ngrams: int, model_bytes: int | None) -> None:
    need = BYTES_PER_NGRAM * ngrams
    if model_bytes is not None and need > model_bytes:
        raise BudgetError(
            f"a model of {ngrams:,} n-grams needs about {format_bytes(need)} of memory, and only "
            f"{format_bytes(model_bytes)} are available for it",
            hint="increase --memory, omit rare n-grams with --min-count 2, or reduce --order or --max-rows",
        )


@dataclass
class _Longest:
    """The longest n-grams, in a file of (key, count, context, suffix); the last two are indices as in `_Grams`."""

    path: Path
    rows: int
    at_once: int
    min_count: int
    kept: int
    """Number of these n-grams in the model."""
    before: np.ndarray
    """For each n-gram one word shorter: the number of distinct words that precede it."""
    totals: np.ndarray
    """For each n-gram one word shorter: how often a word follows it."""
    times: np.ndarray

    @classmethod
    def of(cls, counted: _Counted, shorter: _Grams, min_count: int) -> _Longest:
        size = len(shorter.keys)
        before, totals, times = np.zeros(size, np.int64), np.zeros(size, np.float64), np.zeros(5, np.int64)
        path, rows, kept = counted.work / "longest", 0, 0
        with path.open("wb") as file:
            for records in counted.runs[-1]:
                grams = _Grams.of(records, shorter.keys)
                np.add.at(before, grams.suffix, 1)
                np.add.at(totals, grams.context, grams.counts.astype(np.float64))
                times += _times(grams.counts)
                kept += int((grams.counts >= min_count).sum())
                rows += len(records)
                out = np.zeros(len(records), _PLACED)
                out["key"], out["count"] = grams.keys, grams.counts
                out["context"], out["suffix"] = grams.context, grams.suffix
                out.tofile(file)
        at_once = max(1, counted.working_bytes // (2 * _COPIES * _PLACED.itemsize))
        return cls(path, rows, at_once, min_count, kept, before, totals, times)

    def finish(self, lower: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
        """Return ((keys, log10 p) of the n-grams kept, remaining probability after each n-gram one word shorter)."""
        discounts = _discounts(self.times)
        masses = np.zeros(len(lower), np.float64)
        for part in self._parts():
            np.add.at(masses, part["context"], self._shares(part["count"], discounts))
        rests = _rests(masses, self.totals)
        keys, logs = np.zeros(self.kept, np.uint64), np.zeros(self.kept, np.float32)
        at = 0
        for part in self._parts():
            part = part[part["count"] >= self.min_count]
            context = part["context"]
            chances = self._shares(part["count"], discounts) / self.totals[context]
            chances += rests[context] * lower[part["suffix"]]
            keys[at : at + len(part)] = part["key"]
            with np.errstate(divide="ignore"):
                logs[at : at + len(part)] = np.log10(chances)
            at += len(part)
        return (keys, logs), rests

    def _parts(self) -> Iterator[np.ndarray]:
        with self.path.open("rb") as file:
            for first in range(0, self.rows, self.at_once):
                yield np.fromfile(file, _PLACED, min(self.at_once, self.rows - first))

    def _shares(self, counts: np.ndarray, discounts: np.ndarray) -> np.ndarray:
        share = np.maximum(counts.astype(np.float64) - discounts[np.minimum(counts, 3)], 0.0)
        return np.where(counts >= self.min_count, share, 0.0)


def _rests(masses: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Return the probability left for words that never followed; 1 if none ever did."""
    seen = totals > 0
    rests = np.ones(len(totals))
    rests[seen] = np.maximum(1 - masses[seen] / totals[seen], 1e-9)
    return rests


def _times(counts: np.ndarray) -> np.ndarray:
    """Return how many of the counts are 1, 2, 3, 4, and any other number."""
    found = np.bincount(np.where(counts > 4, 0, counts), minlength=5)
    return np.concatenate([found[1:], found[:1]])


def _discounts(counted: np.ndarray) -> np.ndarray:
    """Return the discounts for counts of 0, 1, 2, and 3 or more (Chen and Goodman 1998, equation 26)."""
    times = [int(each) for each in counted[:4]]
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
    return np.array((0.0, *found))
