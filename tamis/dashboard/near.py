"""Kept rows that would have been dropped with slightly other thresholds, from stored scores.

.tamis/scores/*.table     which rows come closest to a bound, and their addresses
.tamis/written/*.table    the place of such a row in the output, if all steps are filters and maps
input                     otherwise, the row as it was read, if the input is still there
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

import pyarrow as pa

from tamis.batch import Batch
from tamis.dashboard.originals import rows_from_input
from tamis.dashboard.runs import RunView
from tamis.dashboard.samples import (
    BATCH_BYTES,
    CLOSE,
    PARTITION_BYTES,
    Sample,
    Samples,
    output_source,
    shown_value,
)
from tamis.dashboard.scores import Bound, Near, Scores
from tamis.errors import TamisError, first_line
from tamis.looking.scores import AT, KEPT, PLACE, ROW, SCORES_FILE, WRITTEN, open_table
from tamis.operators import Reading

SHOWN = 12
"""Rows that a page shows."""


def kept_near_bounds(view: RunView, scores: Scores, samples: Samples) -> list[Sample]:
    """The rows that pass all filters and come closest to a bound, each once."""
    try:
        return list(_found(view, scores, samples))
    except (TamisError, pa.ArrowException, OSError, ValueError, KeyError) as error:
        samples.notes.append(f"Kept rows near a threshold cannot be shown: {first_line(error)}")
        return []


def _found(view: RunView, scores: Scores, samples: Samples) -> Iterator[Sample]:
    chosen = _chosen(
        [bound for found in scores.histograms for bound in found.bounds if bound.value]
    )  # most have exactly 0
    numbers = {(near.file, near.line): _identity(view, near) for _, near in chosen}
    written = dict(_written(view, {near.file for _, near in chosen}))
    source = output_source(view)
    outcome = "passed the filters" if scores.then_gathered else "kept"
    missing = []
    for bound, near in chosen:
        number, address = numbers[near.file, near.line]
        sample = None
        if source is not None and number in (rows := written.get(near.file, ("", {}))[1]):
            row = _row_of_output(view, written[near.file][0], rows[number])
            sample = None if row is None else samples.sample("borderline", row, PurePosixPath(address).name)
        if sample is None:
            missing.append((bound, near, address))
            continue
        yield _judged(sample, bound, near, outcome)
    read = {
        address: samples.sample("borderline", row, PurePosixPath(address).name)
        for address, row in rows_from_input(view, {address for _, _, address in missing})
    }
    for bound, near, address in missing:
        if address in read:
            yield _judged(read[address], bound, near, outcome)


def _judged(sample: Sample, bound: Bound, near: Near, outcome: str) -> Sample:
    sample.outcome, sample.reason, sample.step = outcome, str(bound), bound.step.partition("#")[0]
    sample.details = [(bound.score, shown_value(near.value)), *sample.details]
    return sample


def _chosen(bounds: Sequence[Bound]) -> list[tuple[Bound, Near]]:
    """The nearest rows of all bounds: one of each bound before a second of any, and each row once."""
    seen: set[tuple[str, int]] = set()
    chosen: list[tuple[Bound, Near]] = []
    for place in range(max((len(bound.nearest) for bound in bounds), default=0)):
        turn = [
            (bound, bound.nearest[place])
            for bound in bounds
            if place < len(bound.nearest) and bound.nearest[place].margin <= CLOSE
        ]
        for bound, near in sorted(turn, key=lambda each: (each[1], str(each[0]))):
            if (near.file, near.line) not in seen and len(chosen) < SHOWN:
                seen.add((near.file, near.line))
                chosen.append((bound, near))
    return chosen


def _identity(view: RunView, near: Near) -> tuple[int, str]:
    """(number among the rows of its partition, address) of a row."""
    with open_table(view.store, near.file) as file:
        start = 0
        for batch in file.iter_batches(columns=[ROW, AT, PLACE]):
            if near.line < start + len(batch):
                row = batch.slice(near.line - start, 1)
                return row.column(ROW)[0].as_py(), f"{row.column(PLACE)[0].as_py()}:{row.column(AT)[0].as_py()}"
            start += len(batch)
    raise KeyError(near.file)


def _written(view: RunView, files: set[str]) -> Iterator[tuple[str, tuple[str, dict[int, int]]]]:
    """By file of scores: the partition, and the place of each of its rows among the rows of the partition in the output."""
    for name in view.store.names(WRITTEN):
        with open_table(view.store, f"{WRITTEN}/{name}") as file:
            scores = (file.schema_arrow.metadata or {}).get(SCORES_FILE, b"").decode()
            if scores in files:
                table = file.read()
                kept = table.column("row").to_numpy()[table.column("step").to_numpy() == KEPT]
                places = {int(number): place for place, number in enumerate(kept)}
                yield scores, ("-".join(name.split("-")[:2]), places)


def _row_of_output(view: RunView, partition: str, place: int) -> Batch | None:
    """A row of a partition in the output, as a batch."""
    source = output_source(view, only=partition)
    if source is None:
        return None
    layout = source.layout(PARTITION_BYTES)
    reading = Reading(None, layout.schema, BATCH_BYTES, lambda failure: None)
    start = 0
    for part in layout.partitions:
        for batch in source.read(part, reading):
            if place < start + len(batch):
                return batch.select(slice(place - start, place - start + 1))
            start += len(batch)
    return None
