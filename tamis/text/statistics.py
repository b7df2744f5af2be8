"""Statistics of a corpus: lengths, languages, characters, repetition, duplicates.

    rows --TextStatistics--> a struct per row --Arrow files--> fold --> Description

`TextStatistics` is an ordinary step that adds its measurements to every row. `tamis.workflows.describe` runs it over files
and keeps only the measurements; `fold` summarizes them in bounded memory, with a histogram per measure, and finds
duplicates by sorting keys in several passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Batch, Column, as_array
from tamis.context import Context
from tamis.inert import html_text, one_line
from tamis.kernels import overlap as kernel
from tamis.kernels.digests import digest_spans
from tamis.operators import Map, Resources, operator
from tamis.parameters import plural
from tamis.text.language import LID, Language, LanguageScorer, script_of
from tamis.text.segment import NGRAM_STATS, buffers, ratio, text_stats, word_stats

COUNTS = ("bytes", "chars", "words", "lines", "sentences", "paragraphs")
SHARES = ("letters", "digits", "punctuation", "symbols", "spaces", "upper", "repeated_lines", "repeated_5grams")

_GROUPS, _PER_GROUP = 4, 4
_FACTORS = np.array(
    [pow(0x9E3779B97F4A7C15, 2 * power + 3, 1 << 64) for power in range(_GROUPS * _PER_GROUP)], np.uint64
)
_NEAR = tuple(f"near_{number}" for number in range(_GROUPS))


@operator(reads="text", writes="statistics")
class TextStatistics(Map):
    """Add a column `statistics`, a struct with the measurements that `tamis stats` summarizes.

    bytes, chars (code points), words (each character in scripts without spaces), lines (non-blank), sentences, paragraphs
    letters, digits, punctuation, symbols, spaces: shares of the characters; upper: share of the letters
    repeated_lines: share of the characters in lines that occurred before; repeated_5grams: share in repeated word 5-grams
    language, language_confidence, script: as in `Language` (the first two are null with `language=False`)
    exact, near_0 to near_3: keys that duplicates share

    A null counts as an empty text; its shares are 0.

    >>> from tamis import Pipeline, Rows
    >>> row = Pipeline(Rows([{"text": "Two words."}]), TextStatistics(language=False)).collect(executor="inline").to_pylist()[0]
    >>> {name: row["statistics"][name] for name in ("chars", "words", "script")}
    {'chars': 10, 'words': 2, 'script': 'Latn'}
    """

    column: str = "text"
    language: bool = True
    model: str | Path = LID

    cost = 6.0

    def identity(self) -> dict[str, Any]:
        identity = super().identity()
        return identity | ({"language_model": self._language().identity()["model"]} if self.language else {})

    def check(self) -> None:
        if self.language:
            self._language().check()

    @property
    def resources(self) -> Resources:
        return self._language().resources if self.language else Resources()

    def open(self, context: Context) -> _Measurer:
        return _Measurer(self._language().open(context) if self.language else None)

    def _language(self) -> Language:
        return Language(model=self.model)


@dataclass(frozen=True)
class _Measurer:
    language: LanguageScorer | None

    def apply(self, batch: Batch) -> Mapping[str, Column]:
        column = batch["text"]
        data, offsets = buffers(column)
        text, words = batch.facts("text", text_stats), batch.facts("text", word_stats)
        repeated = batch.facts("text", NGRAM_STATS["auto"])["covered_chars"][:, 3]
        chars = text["chars"]
        found: dict[str, Any] = {
            "bytes": np.diff(offsets),
            "chars": chars,
            "words": words["words"],
            **{name: text[name] for name in ("lines", "sentences", "paragraphs")},
            **{name: ratio(text[name], chars) for name in ("letters", "digits", "punctuation", "symbols", "spaces")},
            "upper": ratio(text["upper"], text["letters"]),
            "repeated_lines": ratio(text["line_later_chars"], text["line_chars"]),
            "repeated_5grams": ratio(repeated, words["chars"]),
        }
        found |= self._languages(batch, column)
        found |= _keys(data, offsets)
        arrays = [as_array(values) for values in found.values()]
        return {"statistics": pa.StructArray.from_arrays(arrays, names=list(found))}

    def _languages(self, batch: Batch, column: Column) -> dict[str, Any]:
        if self.language is not None:
            return dict(self.language.score(batch))
        unknown = {
            "language": pa.nulls(len(batch), pa.string()),
            "language_confidence": pa.nulls(len(batch), pa.float32()),
        }
        return unknown | {"script": script_of(column)}


def _keys(data: np.ndarray, offsets: np.ndarray) -> dict[str, np.ndarray]:
    """Keys that duplicates share: of the whole text, and of its word 5-grams; 0 for an empty text."""
    exact, near = np.zeros((len(offsets) - 1, 2), np.uint64), np.zeros((len(offsets) - 1, _GROUPS), np.uint64)
    digest_spans(data, offsets[:-1], offsets[1:], 0, exact)
    exact[offsets[:-1] == offsets[1:]] = 0
    kernel.sketch(data, offsets, kernel.word_tables(), 5, _FACTORS, near)
    return {"exact": exact[:, 0].copy(), **{name: near[:, number].copy() for number, name in enumerate(_NEAR)}}


# ------------------------------------------------------------------------------------------------------ the description


QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
QUANTILE_COLUMNS = ("mean", "min", "1 %", "5 %", "25 %", "median", "75 %", "95 %", "99 %", "max")
NARROW_COLUMNS = ("mean", "5 %", "median", "95 %", "max")


@dataclass(frozen=True)
class Summary:
    """One measure over all documents. Quantiles are accurate to 1 %, or to 0.001 for shares."""

    mean: float
    minimum: float
    maximum: float
    quantiles: tuple[float, ...]


@dataclass(frozen=True)
class Description:
    """Statistics of a corpus. `print` shows tables; `as_dict` is for JSON."""

    rows: int
    empty: int
    num_bytes: int
    num_chars: int
    num_words: int
    measures: dict[str, Summary]
    languages: dict[str, int]
    scripts: dict[str, int]
    exact_duplicates: int
    """Documents whose text an earlier one has, byte for byte."""
    near_duplicates: int
    """An estimate of the documents that share most of their word 5-grams with an earlier one, exact ones included."""
    notes: tuple[str, ...] = field(default=())
    word_histogram: dict[int, int] = field(default_factory=dict)
    """Documents with up to this many words, and more than half as many."""
    num_tokens: int | None = None
    """With a tokenizer: the tokens of all texts."""
    nulls: dict[str, int] = field(default_factory=dict)
    """Rows without a value, by column."""
    domains: dict[str, int] = field(default_factory=dict)
    """Rows by the domain of their URL, the most frequent first."""
    by: str = ""
    groups: dict[str, dict[str, int]] = field(default_factory=dict)
    """Documents, bytes, characters, words and tokens for each value of the column `by`, or for each domain."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return self.as_text()

    def as_text(self, width: int = 128) -> str:
        """The description as tables; in less than 128 columns with fewer quantiles."""
        shown = QUANTILE_COLUMNS if width >= 128 else NARROW_COLUMNS
        lines = [
            f"documents   {self.rows:>16,}   {self.empty:,} of them empty",
            f"bytes       {self.num_bytes:>16,}",
            f"characters  {self.num_chars:>16,}",
            f"words       {self.num_words:>16,}",
            f"duplicates  {self.exact_duplicates:>16,}   {_percent(self.exact_duplicates, self.rows)} of documents, exact",
            f"            {self.near_duplicates:>16,}   {_percent(self.near_duplicates, self.rows)} near or exact, estimated",
            "",
            "per document     " + "".join(f"{name:>11}" for name in shown),
        ]
        for name, measure in self.measures.items():
            values = (measure.mean, measure.minimum, *measure.quantiles, measure.maximum)
            by_name = dict(zip(QUANTILE_COLUMNS, values, strict=True))
            cells = [f"{by_name[each]:.3f}" if name in SHARES else f"{by_name[each]:,.0f}" for each in shown]
            lines.append(f"{name:<17}" + "".join(f"{cell:>11}" for cell in cells))
        if self.num_tokens is not None:
            lines.insert(4, f"tokens      {self.num_tokens:>16,}")
        for title, counts in (("language", self.languages), ("script", self.scripts), ("domain", self.domains)):
            if counts:
                lines += ["", f"{title:<17}{'documents':>11}{'share':>11}"]
                lines += [f"{name:<17}{count:>11,}{_percent(count, self.rows):>11}" for name, count in _top(counts)]
        if any(self.nulls.values()):
            lines += ["", f"{'without a value':<17}{'rows':>11}{'share':>11}"]
            lines += [
                f"{one_line(name, 40):<17}{count:>11,}{_percent(count, self.rows):>11}"
                for name, count in self.nulls.items()
                if count
            ]
        if self.groups:
            names = list(next(iter(self.groups.values())))
            wide = min(40, max(17, *(len(key) + 1 for key in self.groups)))
            lines += ["", f"{one_line('by ' + self.by, wide):<{wide}}" + "".join(f"{name:>14}" for name in names)]
            lines += [
                f"{one_line(key, wide):<{wide}}" + "".join(f"{group[name]:>14,}" for name in names)
                for key, group in list(self.groups.items())[:20]
            ]
        return "\n".join([*lines, *(f"\n{note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        return html_text(self)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "0.0 %"


def _top(counts: dict[str, int], most: int = 20) -> list[tuple[str, int]]:
    listed = list(counts.items())
    rest = sum(count for _, count in listed[most:])
    return [*listed[:most], (plural(len(listed) - most, "other"), rest)] if rest else listed


# --------------------------------------------------------------------------------------------------------------- fold


_PER_DOUBLING = 64  # bins of the histogram of a count
_BINS = {**dict.fromkeys(COUNTS, 48 * _PER_DOUBLING), **dict.fromkeys(SHARES, 1001)}
ROWS_AT_ONCE = 4_000_000
"""Keys sorted per pass to count duplicates."""


def fold(files: Sequence[Path], notes: Sequence[str] = ()) -> Description:
    """Summarize the `statistics` columns of some Arrow files, in the given order."""
    histograms = {name: np.zeros(bins, np.int64) for name, bins in _BINS.items()}
    totals, lowest, highest = dict.fromkeys(_BINS, 0.0), dict.fromkeys(_BINS, np.inf), dict.fromkeys(_BINS, -np.inf)
    words: dict[str, dict[str, int]] = {"language": {}, "script": {}}
    rows = empty = 0
    for part in _parts(files):
        rows += len(part)
        empty += int(pc.sum(pc.equal(part.field("bytes"), 0)).as_py() or 0)
        for name in _BINS:
            values = part.field(name).to_numpy(zero_copy_only=False).astype(np.float64)
            histograms[name] += np.bincount(_bin(name, values), minlength=_BINS[name])
            totals[name] += float(values.sum())
            lowest[name], highest[name] = min(lowest[name], values.min()), max(highest[name], values.max())
        for name, counts in words.items():
            for item in pc.value_counts(part.field(name)).to_pylist():
                label = item["values"] if item["values"] is not None else "none"
                counts[label] = counts.get(label, 0) + item["counts"]
    measures = {
        name: Summary(
            totals[name] / rows, lowest[name], highest[name], _quantiles(name, histograms[name], lowest, highest)
        )
        for name in _BINS
        if rows
    }
    ordered = {
        name: dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))) for name, counts in words.items()
    }
    exact = _repeats(files, ["exact"], rows)
    near = exact | _repeats(files, _NEAR, rows)
    return Description(
        rows=rows,
        empty=empty,
        num_bytes=int(totals["bytes"]),
        num_chars=int(totals["chars"]),
        num_words=int(totals["words"]),
        measures=measures,
        languages={} if set(ordered["language"]) <= {"none"} else ordered["language"],
        scripts=ordered["script"],
        exact_duplicates=int(exact.sum()),
        near_duplicates=int(near.sum()),
        notes=tuple(notes),
        word_histogram=_by_doubling(histograms["words"]) if rows else {},
    )


def _by_doubling(histogram: np.ndarray) -> dict[int, int]:
    """Counts up to each power of two, from a histogram with several bins for each."""
    ups = np.concatenate([[0], 1 + (np.arange(len(histogram) - 1) + _PER_DOUBLING - 1) // _PER_DOUBLING])
    counts = np.bincount(ups, weights=histogram).astype(np.int64)
    last = int(np.flatnonzero(counts)[-1])
    return {0 if up == 0 else 2 ** (up - 1): int(counts[up]) for up in range(last + 1)}


def _parts(files: Sequence[Path]) -> Iterator[pa.StructArray]:
    for file in files:
        with pa.OSFile(str(file)) as source, pa.ipc.open_file(source) as reader:
            for number in range(reader.num_record_batches):
                part = reader.get_batch(number).column("statistics")
                if len(part):
                    yield part


def _bin(name: str, values: np.ndarray) -> np.ndarray:
    if name in SHARES:
        return np.clip(np.rint(values * 1000), 0, 1000).astype(np.int64)
    bins = np.ceil(np.log2(np.maximum(values, 1)) * _PER_DOUBLING).astype(np.int64) + (values > 0)
    return np.minimum(bins, _BINS[name] - 1)


def _quantiles(
    name: str, histogram: np.ndarray, lowest: Mapping[str, float], highest: Mapping[str, float]
) -> tuple[float, ...]:
    """The middle of the bin of each quantile, clipped to the observed range."""
    upto = np.cumsum(histogram)
    bins = np.searchsorted(upto, np.array(QUANTILES) * upto[-1])
    if name in SHARES:
        middles = bins / 1000
    else:
        middles = np.where(bins == 0, 0, np.rint(2 ** ((bins - 1.5) / _PER_DOUBLING)))
    return tuple(float(value) for value in np.clip(middles, lowest[name], highest[name]))


def _repeats(files: Sequence[Path], names: Sequence[str], rows: int) -> np.ndarray:
    """Whether an earlier row has the same key in one of the columns; sorts a part of the keys per pass."""
    repeated = np.zeros(rows, np.bool_)
    passes = -(-rows // ROWS_AT_ONCE)
    for name in names:
        for number in range(passes):
            keys, numbers, first = [], [], 0
            for part in _parts(files):
                here = part.field(name).to_numpy(zero_copy_only=False)
                mine = np.flatnonzero((here != 0) & ((here >> np.uint64(8)) % np.uint64(passes) == number))
                keys.append(here[mine])
                numbers.append(mine + first)
                first += len(here)
            key, row = np.concatenate(keys), np.concatenate(numbers)
            order = np.argsort(key, kind="stable")
            again = np.zeros(len(key), np.bool_)
            again[1:] = key[order][1:] == key[order][:-1]
            repeated[row[order][again]] = True
    return repeated
