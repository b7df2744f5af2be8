"""Training of n-gram language models within bounded memory.

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
from tamis.models.language_model import NEVER, WAYS, LanguageModel, Settings, keys_of, sorted_model
from tamis.models.ngrams import Runs, count_tokens
from tamis.parameters import format_bytes

WORKING_BYTES = 128_000_000
"""What counting may hold; more makes it little faster."""
BYTES_PER_NGRAM = 64
"""What a model takes while it is made, and as a table to look n-grams up in."""
_COPIES = 4  # of what is held of one length, while it is merged
_PER_BYTE = 128  # bytes held per byte of text that is being counted, if each is a token
_SMALLEST_PIECE = 1 << 16
_TELL_EVERY = 10_000_000  # words
_TEXT = pa.schema({"text": pa.large_string()})
_PLACED = np.dtype([("key", "<u8"), ("count", "<i8"), ("context", "<i8"), ("suffix", "<i8")])
_FALLBACK = (0.5, 1.0, 1.5)  # discounts where there is too little to estimate them, as KenLM has it


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
    texts: Column | Iterable[Column],
    *,
    settings: Settings | None = None,
    holdout: float = 0.1,
    working_bytes: int = WORKING_BYTES,
    room_bytes: int | None = None,
    folder: str | Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Trained:
    """Train on string columns and evaluate on the share `holdout` of the texts, chosen by content and kept apart.

    Texts may come column by column. Holds the model, about 64 bytes for each of its n-grams, and beside it about
    `working_bytes` and one column of texts; n-grams still being counted and texts held out are on disk, in a temporary folder
    in `folder`, about 10 bytes for each byte of text. What is learned depends on none of these, nor on how the texts are cut
    into columns. If `room_bytes` are too few for the model, an error says so before it is made.
    """
    settings = settings or Settings()
    settings.check()
    if not 0 <= holdout < 1:
        raise ParameterError(f"`holdout` must be at least 0 and below 1, got {holdout}")
    columns = [texts] if isinstance(texts, pa.Array | pa.ChunkedArray) else texts
    with tempfile.TemporaryDirectory(prefix="tamis-", dir=folder) as work:
        counted = _Counted.of(columns, settings, holdout, Path(work), working_bytes, progress)
        if not counted.tokens:
            raise TamisError("there is no word to learn from", hint="is `text_field` the column that holds the text?")
        keys, values, sizes = _estimate(counted, settings, room_bytes, progress)
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
    """Which texts are for testing: those whose content hashes below a bound, whatever their order or number."""
    bound = int(holdout * 2**32)
    hashes = b"".join(hashlib.blake2b((text or "").encode(), digest_size=4).digest() for text in texts.to_pylist())
    return np.frombuffer(hashes, "<u4").astype(np.int64) < bound


@dataclass
class _Counted:
    """N-grams of all texts to learn from, and the texts to test on, in files."""

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
        room = working_bytes // (settings.order + _COPIES)
        runs = [Runs(work / f"{length}-grams", room) for length in range(1, settings.order + 1)]
        counted = cls(runs, work / "held-out.arrow", work, working_bytes)
        told = 0
        with pa.OSFile(str(counted.held_out), "wb") as file, pa.ipc.new_file(file, _TEXT) as tested:
            for column in columns:
                for piece in _pieces(column, max(_SMALLEST_PIECE, working_bytes // _PER_BYTE)):
                    apart = _held_out(piece, holdout)
                    if apart.any():
                        tested.write_batch(pa.record_batch([piece.filter(pa.array(apart))], schema=_TEXT))
                    counted._count(piece.filter(pa.array(~apart)) if apart.any() else piece, settings)
                if progress is not None and counted.words >= told + _TELL_EVERY:
                    told = counted.words
                    progress(f"counted {counted.words:,} words")
        return counted

    def _count(self, texts: Column, settings: Settings) -> None:
        data, offsets = settings.read(texts)
        words, fold = MarkedWords.of(data, offsets, WAYS[settings.unit]), settings.folding
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
    """A column in arrays of about so many bytes, or of one text that is longer."""
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
    """The different n-grams of one length, in the order of their keys."""

    keys: np.ndarray
    counts: np.ndarray
    begins: np.ndarray
    context: np.ndarray
    """Where the n-gram without its last word is among the shorter ones, and without its first."""
    suffix: np.ndarray

    @staticmethod
    def of(records: np.ndarray, shorter: np.ndarray) -> _Grams:
        """Of records, with the keys of all n-grams one shorter."""
        none = np.zeros(0, np.int64)
        parts = (
            [np.searchsorted(shorter, records[name]) for name in ("context", "suffix")] if len(shorter) else [none] * 2
        )
        return _Grams(np.ascontiguousarray(records["key"]), records["count"].copy(), records["begins"].copy(), *parts)


def _estimate(
    counted: _Counted, settings: Settings, room_bytes: int | None, progress: Callable[[str], None] | None
) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Keys and values (log10 p, log10 backoff) of all n-grams, and how many there are of each length.

    p(w | c) = (a(c w) - D) / a(c) + g(c) p(w | c without its first word), where a counts occurrences of the longest n-grams
    and of those that begin a line, and for the others the different words that stand before them; g(c) is what makes the
    probabilities after c add up to one, and the backoff of c.

    The shorter n-grams are all in the model, and so in memory. The longest are most, and many of them may be left out: they
    pass part by part, once to see how many there are, once for the masses of their contexts, once for their probabilities.
    Sums of fractions are taken in the order of the keys, so that they do not depend on the parts.
    """
    order = settings.order
    lengths: list[_Grams] = []
    for length in range(1, max(2, order)):
        if progress is not None:
            progress(f"merging n-grams of {length}")
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
            progress(f"merging n-grams of {order}")
        longest = _Longest.of(counted, lengths[-1], settings.min_count)
        adjusted[-1] += np.where(lengths[-1].begins, 0, longest.before)
    _check_room(sum(len(grams.keys) for grams in lengths) + (longest.kept if longest else 0), room_bytes)
    logs: list[np.ndarray] = []
    backoffs: list[np.ndarray] = []
    lower = np.zeros(0)  # p of the n-grams one shorter
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


def _check_room(ngrams: int, room_bytes: int | None) -> None:
    need = BYTES_PER_NGRAM * ngrams
    if room_bytes is not None and need > room_bytes:
        raise BudgetError(
            f"a model of {ngrams:,} n-grams takes about {format_bytes(need)} to make and to use, and "
            f"{format_bytes(room_bytes)} of memory are left for it",
            hint="give it more --memory, leave out rare n-grams with --min-count 2, or lower --order or --max-rows",
        )


@dataclass
class _Longest:
    """The longest n-grams, in a file of (key, count, context, suffix), the last two as places among those one shorter."""

    path: Path
    rows: int
    at_once: int
    min_count: int
    kept: int
    """How many of them the model has."""
    before: np.ndarray
    """Of each n-gram one shorter: the different words that stand before it, and how often it is followed by a word."""
    totals: np.ndarray
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
        """(Keys and log10 p of the n-grams kept, what is left of the probability after each n-gram one shorter)."""
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
    """What is left for words that never followed, one where none ever did."""
    seen = totals > 0
    rests = np.ones(len(totals))
    rests[seen] = np.maximum(1 - masses[seen] / totals[seen], 1e-9)
    return rests


def _times(counts: np.ndarray) -> np.ndarray:
    """How many of the counts are 1, 2, 3, 4, and something else."""
    found = np.bincount(np.where(counts > 4, 0, counts), minlength=5)
    return np.concatenate([found[1:], found[:1]])


def _discounts(counted: np.ndarray) -> np.ndarray:
    """What is taken off counts of 0, 1, 2, and of 3 and more (Chen and Goodman 1998, equation 26)."""
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
