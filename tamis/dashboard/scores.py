"""Histograms of stored scores, and what another threshold would keep.

    .tamis/scores/*.table     one row per row of the input, one column per score

For each bound of a rule (`gopher_words < 50`), the rows that pass all other bounds are counted by their score. The rows that a
run with another value of this one bound would keep are then a sum over these counts, exactly, without the rows themselves.
The files are read once, in a stream, so that memory does not grow with them.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tamis.dashboard.charts import nice_ticks
from tamis.dedup.explain import store_file
from tamis.errors import TamisError
from tamis.executors.scores import SCORE, measured_operators
from tamis.operators import Filter, Gather, Operator, Rule
from tamis.store import INTERNAL, TABLE, Store

FINE = 240
"""Steps of a slider."""

SAMPLED_ROWS = 200_000
"""Rows from which the range of a histogram is chosen."""

MOST_NEAR = 6
"""Rows near each bound that are remembered."""

MOST_VALUES = 24
"""Values of a score that is a text, such as a language, that are listed."""

BATCH_ROWS = 131_072

Side: TypeAlias = Literal["minimum", "maximum", "below"]
_COLUMN = re.compile(rf"{re.escape(SCORE)}_(\d+)_(.+)")


class Near(NamedTuple):
    """A row whose score is close to a bound."""

    margin: float
    """How far it is from the bound, relative to it."""
    file: str
    """The file of its scores."""
    line: int
    """Its place in that file."""
    value: float


@dataclass
class Bound:
    """One threshold of a filter: `min_words` of `gopher_quality`, which is the minimum of the score `gopher_words`."""

    step: str
    """As `--set` names it."""
    parameter: str | None
    score: str
    side: Side
    value: float
    alone: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """Rows that pass all other bounds, by bin of their score."""
    nearest: list[Near] = field(default_factory=list)
    """The rows that pass all bounds and come closest to this one."""

    @property
    def limit(self) -> str:
        """The value with all its digits, as a recipe writes it."""
        return f"{self.value:.0f}" if float(self.value).is_integer() else repr(float(self.value))

    def __str__(self) -> str:
        """The rule that a row which passes obeys."""
        return f"{self.score} {({'minimum': '>=', 'maximum': '<='}).get(self.side, '<')} {self.limit}"


@dataclass
class ScoreHistogram:
    """How a score is distributed over all rows, and over the rows that the filters keep."""

    step: str
    score: str
    edges: np.ndarray
    log: bool
    whole: bool
    """Whether the score is an integer."""
    every: np.ndarray
    kept: np.ndarray
    missing: int = 0
    bounds: list[Bound] = field(default_factory=list)


@dataclass
class ScoreValues:
    """Counts of the values of a score that is a text: (value, rows, rows that the filters keep)."""

    step: str
    score: str
    values: list[tuple[str, int, int]]
    others: int = 0


@dataclass
class Scores:
    """What the stored scores of a run say."""

    rows: int = 0
    kept: int = 0
    """Rows that all filters with stored scores keep."""
    then_gathered: bool = False
    """Whether a later step, such as deduplication, drops more."""
    histograms: list[ScoreHistogram] = field(default_factory=list)
    texts: list[ScoreValues] = field(default_factory=list)
    without: list[str] = field(default_factory=list)
    """Filters whose scores are not stored, because they follow a step that is neither a filter nor a map."""


@dataclass
class _Column:
    """A stored score of one filter."""

    name: str
    step: str
    op: Filter
    score: str
    text: bool
    histogram: ScoreHistogram | None = None
    counts: dict[str, list[int]] = field(default_factory=dict)


def read_scores(store: Store, steps: Sequence[Operator]) -> Scores | None:
    """The histograms of an output; None if no scores are stored. `steps` are the operators of the run."""
    files = [f"{INTERNAL}/scores/{name}" for name in store.names(f"{INTERNAL}/scores") if name.endswith(TABLE)]
    if not files:
        return None
    result = Scores(then_gathered=any(isinstance(step, Gather) for step in steps))
    names = step_names(steps)
    measured: set[str] = set()
    for stage in _stages(steps):
        head = stage[: measured_operators([op for _, op in stage])]
        columns: list[_Column] | None = None
        mine = []
        for file in files:
            try:
                with store_file(store, file) as opened:
                    schema = pq.read_schema(opened)
            except (pa.ArrowException, OSError):
                continue
            found = _columns_of(schema, head, names)
            if found:
                mine.append(file)
                columns = columns or found
        if columns:
            _count(store, mine, columns, result)
            measured |= {column.step for column in columns}
            files = [file for file in files if file not in mine]
    filters = [names[place] for place, step in enumerate(steps) if isinstance(step, Filter)]
    result.without = [name for name in filters if name not in measured]
    return result if result.rows else None


def step_names(steps: Sequence[Operator]) -> dict[int, str]:
    """The name of each step in `--set`, by its place: `c4_quality`, or `c4_quality#2` for the second of that name."""
    seen: dict[str, int] = {}
    named = {}
    for place, step in enumerate(steps):
        seen[step.name] = seen.get(step.name, 0) + 1
        named[place] = step.name if seen[step.name] == 1 else f"{step.name}#{seen[step.name]}"
    return named


def _stages(steps: Sequence[Operator]) -> Iterator[list[tuple[int, Operator]]]:
    """The steps between two Gathers, each with its place."""
    stage: list[tuple[int, Operator]] = []
    for place, step in enumerate(steps[1:], 1):
        if isinstance(step, Gather):
            yield stage
            stage = []
        else:
            stage.append((place, step))
    yield stage


def _columns_of(schema: pa.Schema, head: Sequence[tuple[int, Operator]], names: dict[int, str]) -> list[_Column]:
    """The stored scores of the filters at the start of a stage; [] if the file is of another stage."""
    by_number: dict[int, list[str]] = {}
    for name in schema.names:
        if (match := _COLUMN.fullmatch(name)) is not None:
            by_number.setdefault(int(match[1]), []).append(match[2])
    filters = [(place, op) for place, op in head if isinstance(op, Filter)]
    if len(by_number) != len(filters):
        return []
    columns = []
    for (number, scores), (place, op) in zip(sorted(by_number.items()), filters, strict=True):
        if not set(scores) <= set(op.declared_writes):
            return []
        for score in scores:
            kind = schema.field(name := f"{SCORE}_{number}_{score}").type
            if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
                columns.append(_Column(name, names[place], op, score, text=False))
            elif pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind):
                columns.append(_Column(name, names[place], op, score, text=True))
    return columns


def bounds_of(step: str, op: Filter) -> list[Bound]:
    """The thresholds of a filter, each with the parameter that sets it, found by changing one parameter after the other."""
    if op.invert:  # rows are kept outside of the bounds, so moving one of them has no simple meaning
        return []
    before = op.rules()
    bounds = []
    for place, rule in enumerate(before):
        for side in ("minimum", "maximum", "below"):
            value = getattr(rule, side)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                bounds.append(Bound(step, _parameter(op, before, place, side), rule.score, side, value))
    return bounds


def _parameter(op: Filter, before: Sequence[Rule], place: int, side: Side) -> str | None:
    limit = getattr(before[place], side)
    others = (limit + 1, limit - 1) if isinstance(limit, int) else (limit * 0.5 + 0.01, limit * 1.1 + 0.01)
    for spec in dataclasses.fields(op):
        name, value = spec.name, getattr(op, spec.name)
        if op.is_threshold(name) and name != "score_only" and value in (None, limit):
            for other in others:
                try:
                    after = op.changed(**{name: other}).rules()
                except (TamisError, TypeError, ValueError):
                    continue
                if len(after) == len(before) and getattr(after[place], side) == other:
                    return name
    return None


# ------------------------------------------------------------------------------------------------------------- counting


def _count(store: Store, files: Sequence[str], columns: list[_Column], result: Scores) -> None:
    """Read the files of one stage, and add what they say to the result."""
    sample = _sample(store, files, columns)
    first = not result.rows
    for column in columns:
        if not column.text:
            column.histogram = _empty_histogram(column, sample.column(column.name))
    for file, line, table in _tables(store, files, columns):
        kept = _count_table(table, columns, file, line)
        if first:
            result.rows += len(table)
            result.kept += kept
    for column in columns:
        if column.histogram is not None and column.histogram.every.any():
            result.histograms.append(column.histogram)
        elif column.text:
            ordered = sorted(column.counts.items(), key=lambda item: (-item[1][0], item[0]))
            shown = [(value, counts[0], counts[1]) for value, counts in ordered[:MOST_VALUES]]
            result.texts.append(
                ScoreValues(column.step, column.score, shown, sum(counts[0] for _, counts in ordered[MOST_VALUES:]))
            )


def _tables(store: Store, files: Sequence[str], columns: Sequence[_Column]) -> Iterator[tuple[str, int, pa.Table]]:
    """(file, line in it, scores) for some rows at a time."""
    names = [column.name for column in columns]
    for file in files:
        line = 0
        try:
            with store_file(store, file) as opened:
                for batch in pq.ParquetFile(opened).iter_batches(BATCH_ROWS, columns=names):
                    yield file, line, pa.Table.from_batches([batch])
                    line += len(batch)
        except (pa.ArrowException, OSError):
            continue  # a run measures damaged scores again


def _sample(store: Store, files: Sequence[str], columns: Sequence[_Column]) -> pa.Table:
    """Rows from files all over the input."""
    chosen = files[:: max(1, len(files) // 16)]
    tables, rows = [], 0
    for _, _, table in _tables(store, chosen, columns):
        tables.append(table.slice(0, SAMPLED_ROWS // len(chosen) + 1))
        rows += len(tables[-1])
        if rows > 2 * SAMPLED_ROWS:
            break
    if not tables:
        raise OSError("the files are damaged")
    return pa.concat_tables(tables, promote_options="permissive")


def _empty_histogram(column: _Column, sample: pa.ChunkedArray) -> ScoreHistogram:
    bounds = [bound for bound in bounds_of(column.step, column.op) if bound.score == column.score]
    whole = pa.types.is_integer(sample.type)
    values = _floats(sample)
    edges, log = edges_for(values[np.isfinite(values)], [bound.value for bound in bounds], whole=whole)
    size = len(edges) + 1
    for bound in bounds:
        bound.alone = np.zeros(size, np.int64)
    zeros = np.zeros(size, np.int64)
    return ScoreHistogram(column.step, column.score, edges, log, whole, zeros, zeros.copy(), bounds=bounds)


def edges_for(values: np.ndarray, limits: Sequence[float], *, whole: bool) -> tuple[np.ndarray, bool]:
    """Borders of about `FINE` bins for these values, with the thresholds among them, and whether they grow by a factor.

    The outermost thousandths have no bins of their own: a single row of a million words would hide all others.
    """
    if not len(values):
        return np.unique(np.asarray([0.0, 1.0, *limits])), False
    low, high = (float(each) for each in np.quantile(values, [0.002, 0.998]))
    low, high = min([low, *limits]), max([high, *limits])
    middle = float(np.median(values))
    log = low >= 0 and high > 100 and high > 25 * max(middle, 1.0)
    if log:
        start = max(low, 1.0 if whole else high / 1e5)
        grown = np.geomspace(start, max(high * 1.05, start * 2), FINE)
        digits = 10.0 ** (np.floor(np.log10(grown)) - 2)
        edges = np.round(grown / digits) * digits
        edges = np.concatenate([[0.0], edges])
    else:
        span = (high - low) or abs(high) or 1.0
        step = span / FINE
        power = 10.0 ** math.floor(math.log10(step))
        step = next(each * power for each in (1, 2, 5, 10) if each * power >= step * 0.999)
        if whole:
            step = max(1.0, round(step))
        first, last = math.floor(low / step) - 2, math.ceil(high / step) + 2
        edges = np.round(np.arange(first, last + 1) * step, 10)
        if low >= 0:
            edges = edges[edges >= 0]
        if high <= 1 and not whole:
            edges = edges[edges <= 1]
    if whole:
        edges = np.round(edges)
    return np.unique(np.concatenate([edges, np.asarray(limits, float)])), log


def _count_table(table: pa.Table, columns: Sequence[_Column], file: str, line: int) -> int:
    """Add the rows of a table, which begins at a line of a file, to the histograms; returns how many rows all filters keep."""
    rows = len(table)
    broken = np.zeros(rows, np.int16)
    values = {column.name: _floats(table.column(column.name)) for column in columns if not column.text}
    breaks: list[tuple[_Column, Bound, np.ndarray]] = []
    for column in columns:
        if not column.op.score_only and not column.op.invert:
            broken += _other_breaks(column, table.column(column.name), rows)
        for bound in column.histogram.bounds if column.histogram is not None else ():
            mask = _breaks(bound, values[column.name])
            breaks.append((column, bound, mask))
            if not column.op.score_only:
                broken += mask
    broken += _inverted_breaks(columns, table)
    kept = broken == 0
    for column, bound, mask in breaks:
        assert column.histogram is not None
        alone = (broken - mask.astype(np.int16)) == 0 if not column.op.score_only else kept
        found = values[column.name][alone]
        found = found[~np.isnan(found)]
        side: Literal["left", "right"] = "left" if bound.side == "maximum" else "right"
        bound.alone += np.bincount(
            np.searchsorted(column.histogram.edges, found, side), minlength=len(column.histogram.edges) + 1
        )
        if not column.op.score_only and not column.op.invert:
            _remember_nearest(bound, values[column.name], kept, file, line)
    for column in columns:
        if column.histogram is not None:
            _add(column.histogram, values[column.name], kept)
        else:
            _add_texts(column.counts, table.column(column.name), kept)
    return int(np.count_nonzero(kept))


def _inverted_breaks(columns: Sequence[_Column], table: pa.Table) -> np.ndarray:
    """How many inverted filters drop a row, because it breaks none of their rules."""
    broken = np.zeros(len(table), np.int16)
    inverted = {id(each.op): each.op for each in columns if each.op.invert and not each.op.score_only}
    for key, op in inverted.items():
        met = np.ones(len(table), np.bool_)
        for column in (each for each in columns if id(each.op) == key):
            for rule in (each for each in op.rules() if each.score == column.score):
                for _, mask in rule.verdicts(table.column(column.name)):
                    met &= ~mask
        broken += met
    return broken


def _remember_nearest(bound: Bound, values: np.ndarray, kept: np.ndarray, file: str, line: int) -> None:
    rows = np.flatnonzero(kept & np.isfinite(values))
    margins = np.abs(values[rows] - bound.value) / max(abs(bound.value), 1e-9)
    if len(rows) > MOST_NEAR:  # of equal margins the first, so that pages can be made again
        last = np.partition(margins, MOST_NEAR - 1)[MOST_NEAR - 1]
        near = np.concatenate([np.flatnonzero(margins < last), np.flatnonzero(margins == last)[:MOST_NEAR]])
        rows, margins = rows[near], margins[near]
    found = [
        Near(float(margin), file, line + int(row), float(values[row]))
        for margin, row in zip(margins, rows, strict=True)
    ]
    bound.nearest = sorted([*bound.nearest, *found])[:MOST_NEAR]


def _other_breaks(column: _Column, values: pa.ChunkedArray, rows: int) -> np.ndarray:
    """How many rules a row breaks that no slider moves: missing scores, and values that are not allowed."""
    broken = np.zeros(rows, np.int16)
    for rule in column.op.rules():
        if rule.score == column.score:
            fixed = dataclasses.replace(rule, minimum=None, maximum=None, below=None)
            for _, mask in fixed.verdicts(values):
                broken += mask
    return broken


def _breaks(bound: Bound, values: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        if bound.side == "minimum":
            return np.asarray(values < bound.value)
        return np.asarray(values > bound.value if bound.side == "maximum" else values >= bound.value)


def _add(histogram: ScoreHistogram, values: np.ndarray, kept: np.ndarray) -> None:
    known = ~np.isnan(values)
    histogram.missing += int(np.count_nonzero(~known))
    places = np.searchsorted(histogram.edges, values[known], "right")
    histogram.every += np.bincount(places, minlength=len(histogram.edges) + 1)
    histogram.kept += np.bincount(places[kept[known]], minlength=len(histogram.edges) + 1)


def _add_texts(counts: dict[str, list[int]], values: pa.ChunkedArray, kept: np.ndarray) -> None:
    table = pa.table({"value": values, "kept": pa.array(kept.astype(np.int64))})
    grouped = table.group_by("value").aggregate([("kept", "sum"), ("kept", "count")]).to_pylist()
    for row in grouped:
        name = "none" if row["value"] is None else str(row["value"])[:80]
        if name in counts or len(counts) < 10_000:
            found = counts.setdefault(name, [0, 0])
            found[0] += row["kept_count"]
            found[1] += row["kept_sum"]


def _floats(values: pa.ChunkedArray) -> np.ndarray:
    return np.asarray(pc.cast(values, pa.float64()).to_numpy(), dtype=np.float64)


def place_of(histogram: ScoreHistogram, value: float) -> float:
    """Where a value lies on the axis of a histogram, from 0 to 1."""
    edges = histogram.edges
    return float((np.interp(value, edges, np.arange(len(edges))) + 1) / (len(edges) + 1))


def ticks_of(histogram: ScoreHistogram) -> list[float]:
    """Round numbers for the axis of a histogram."""
    low, high = float(histogram.edges[0]), float(histogram.edges[-1])
    if not histogram.log:
        return nice_ticks(low, high, 6)
    powers = range(0, 1 + math.floor(math.log10(max(high, 1))))
    return [low, *(10.0**power for power in powers if 10.0**power > low)]


def payload(histogram: ScoreHistogram, bound: Bound) -> dict[str, Any]:
    """What the slider of a bound needs."""
    return {
        "edges": [float(edge) for edge in histogram.edges],
        "alone": bound.alone.tolist(),
        "side": bound.side,
        "value": bound.value,
        "whole": histogram.whole,
        "parameter": bound.parameter,
    }
