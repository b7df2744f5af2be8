"""Stored filter scores: change thresholds later without measuring again.

    .tamis/scores/<digest of input and measuring parameters>.table     Parquet; one line per row, one column per score

The file name depends on everything that determines a score, and on no threshold. The measured operators are the filters
and maps at the start of a stage, up to its last filter.

    first run     every row goes through all measured operators, because later thresholds may keep a row that these drop.
                  A dropped row is counted and written to the rejects at the filter that drops it.
    later runs    the stored scores are loaded before any operator runs. Rows that a filter will drop are dropped at once;
                  with rejects, they pass the maps before that filter, so that the rejects hold the text the filter saw.
                  Rows that the output already holds are copied instead (`executors/reuse.py`).

In a group of stages, rows carry their numbers, marks and scores from stage to stage, also those that are dropped, up to the
last stage that measures. Its workers write the scores of the rows they see, and the driver joins them. Stored scores are used
by a run without groups, because most of its rows are not measured at all.

A row that failed in the first run has no stored scores and is measured again. Rows, reasons and counts are the same as
without stored scores.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tamis.batch import Batch, Origin, as_array
from tamis.executors.steps import Applied, Types, apply_step, dropped, scores_of, verdicts_of, with_scores
from tamis.looking.scores import AT, PLACE, ROW, SCORE, STEPS
from tamis.operators import Filter, Map, Operator, Partition, Shard, Source, digest
from tamis.store import INTERNAL, TABLE, Store

DROPPED, KNOWN = "_tamis_dropped", "_tamis_known"
"""Columns that a batch carries while it is measured, beside row number and scores: already dropped, has stored scores."""

_FORMAT: dict[str, Any] = {"compression": "zstd", "write_page_checksum": True}


def measured_operators(operators: Sequence[Operator]) -> int:
    """The number of operators at the start of a stage whose filters can be measured before any row is dropped."""
    count = 0
    for number, op in enumerate(operators, start=1):
        if not isinstance(op, (Filter, Map)):
            break
        if isinstance(op, Filter):
            count = number
    return count


def measuring_identity(source: Source, operators: Sequence[Operator]) -> str:
    """Changes with everything that determines a score, and with no threshold."""
    return digest([source.identity(), [op.measuring_identity() for op in operators]])


class ScoreKeeper:
    """Runs the measured operators on the batches of one partition, with stored scores where there are any."""

    def __init__(
        self,
        store: Store,
        identity: str,
        partition: Partition,
        opened: Iterable[tuple[Operator, Any]],
        scratch: Path,
        *,
        numbers_rows: bool = False,
        before: Sequence[Operator] | None = None,
        measures_on: bool = False,
    ) -> None:
        """`opened` are the measured operators, each with its runner.

        In a group of stages, `before` are the operators of the stages before.
        """
        pairs = list(opened)
        self.operators, self._runners = [op for op, _ in pairs], [runner for _, runner in pairs]
        self._internal = {DROPPED, KNOWN} if numbers_rows else {ROW, DROPPED, KNOWN}
        self.types: dict[int, Types] = {}
        """By operator, the types of the columns it returned so far."""
        self._path = scratch / "scores"
        self.name = scores_name(identity, partition)
        self._stored = _read(store, self.name) if before is None else None
        self._before, self._measures_on = [op.name for op in before or ()], measures_on
        self._writer: pq.ParquetWriter | None = None

    def begin(self, batch: Batch, numbers: np.ndarray) -> Batch:
        """The batch with the stored scores of its rows, or ready to be measured."""
        if DROPPED in batch:  # a stage before began
            return batch
        if self._stored is None:
            return batch.with_columns({ROW: numbers, DROPPED: np.zeros(len(batch), dtype=np.bool_)})
        rows = self._stored.column(ROW).to_numpy()
        places = np.searchsorted(rows, numbers)
        known = np.zeros(len(batch), dtype=np.bool_)
        inside = places < len(rows)
        known[inside] = rows[places[inside]] == numbers[inside]
        known[known] = self._same_origin(places[known], batch.origin.select(known))
        others = [name for name in (ROW, AT, PLACE) if name in self._stored.column_names]
        found = self._stored.drop_columns(others).take(pa.array(places, mask=~known))
        columns = {name: as_array(found.column(name)) for name in found.column_names}
        return batch.with_columns({ROW: numbers, KNOWN: known, **columns})

    def _same_origin(self, stored: np.ndarray, origin: Origin) -> np.ndarray:
        """Whether each of these stored rows has the address of a row."""
        assert self._stored is not None
        names, place = self._stored_places
        here = np.array([names.get(name, -1) for name in origin.places], np.int64)[origin.place]
        position = self._stored.column(AT).to_numpy()
        return (place[stored] == here) & (position[stored] == origin.position)

    @cached_property
    def _stored_places(self) -> tuple[dict[str, int], np.ndarray]:
        """The numbers of the places by name, and that of each stored row."""
        assert self._stored is not None
        found = as_array(self._stored.column(PLACE).cast(pa.string())).dictionary_encode()
        names = {name: number for number, name in enumerate(found.dictionary.to_pylist())}
        return names, found.indices.to_numpy(zero_copy_only=False)

    @property
    def known_rows(self) -> np.ndarray | None:
        """The numbers of the rows with stored scores, ascending; None if no scores are stored."""
        return None if self._stored is None else self._stored.column(ROW).to_numpy()

    def drops(self) -> list[tuple[int, str, np.ndarray]]:
        """(operator, reason, mask over `known_rows`) for all rows that stored scores drop."""
        assert self._stored is not None
        every = Batch(self._stored)
        return self.dropped_by_stored_scores(every.with_columns({KNOWN: np.ones(len(every), dtype=np.bool_)}))

    def dropped_by_stored_scores(self, batch: Batch) -> list[tuple[int, str, np.ndarray]]:
        """(operator, reason, rows) for the rows that will be dropped, before any operator has run."""
        if self._stored is None:
            return []
        result = []
        left = _mask(batch, KNOWN)
        for number, op in enumerate(self.operators):
            if isinstance(op, Filter) and not op.score_only:
                scores = self._stored_scores(number, batch)
                for reason, mask in verdicts_of(op, scores, left) if scores else []:
                    result.append((number, reason, mask))
                    left &= ~mask
        return result

    def apply(self, number: int, batch: Batch) -> Applied:
        """Apply one operator. In a first run dropped rows stay in the batch, marked, so that later filters measure them."""
        op = self.operators[number]
        if not isinstance(op, Filter):
            return apply_step(op, batch, self.types.setdefault(number, {}), self._runners[number])
        scores = self._scores(number, op, batch)
        made = with_scores(op, batch, scores)
        if op.score_only:
            return Applied(self._with_scores(number, made, scores), batch)
        if self._stored is not None:
            return dropped(made, verdicts_of(op, scores, np.ones(len(batch), dtype=np.bool_)), scores, given=batch)
        gone = _mask(batch, DROPPED)
        verdicts = verdicts_of(op, scores, ~gone)
        for _, mask in verdicts:
            gone |= mask
        marked = self._with_scores(number, made, scores).with_columns({DROPPED: gone})
        return Applied(marked, batch, verdicts, scores=scores)

    def end(self, batch: Batch) -> Batch:
        """The rows that are kept, without the columns of the measurement; what was measured is stored.

        Their numbers are left in the column `ROW` if requested, for the writer of the rows. If the next stage measures too, all
        rows are left as they are.
        """
        if self._measures_on:
            return batch
        if self._stored is None:
            self._store_scores(batch)
            batch = batch.select(~_mask(batch, DROPPED)) if num_dropped(batch) else batch
        own = [name for name in batch.columns if name in self._internal or name.startswith(SCORE)]
        return Batch(batch.table.drop_columns(own), batch.origin, memo=batch.memo, access=batch.access)

    def close(self) -> list[Shard]:
        """Complete the file of measured scores, if there are any. Later scores go to a new file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            return [Shard(self._path.name, 0, self._path.stat().st_size)]
        return []

    def _scores(self, number: int, op: Filter, batch: Batch) -> dict[str, pa.Array]:
        """The scores of all rows of a batch: the stored ones where there are any, others measured now."""
        stored = self._stored_scores(number, batch)
        if not stored:
            return scores_of(op, batch, self._runners[number])
        unknown = ~_mask(batch, KNOWN)
        if not unknown.any():
            return stored
        some = batch.select(unknown)
        measured = scores_of(op, some, self._runners[number])
        places = np.arange(len(batch))
        places[unknown] = len(batch) + np.arange(len(some))
        return {
            name: pa.concat_arrays([values, measured[name].cast(values.type)]).take(pa.array(places))
            for name, values in stored.items()
        }

    def _stored_scores(self, number: int, batch: Batch) -> dict[str, pa.Array]:
        if self._stored is None:
            return {}
        prefix = f"{SCORE}_{number}_"
        return {name.removeprefix(prefix): batch[name] for name in batch.columns if name.startswith(prefix)}

    def _with_scores(self, number: int, batch: Batch, scores: dict[str, pa.Array]) -> Batch:
        if self._stored is not None:
            return batch
        prefix = f"{SCORE}_{len(self._before) + number}_"
        return batch.with_columns({f"{prefix}{name}": values for name, values in scores.items()})

    def _store_scores(self, batch: Batch) -> None:
        names = [ROW, *(name for name in batch.columns if name.startswith(SCORE))]
        table = batch.table.select(names).append_column(AT, pa.array(batch.origin.position))
        places = pa.DictionaryArray.from_arrays(
            pa.array(batch.origin.place), pa.array(batch.origin.places, pa.string())
        )
        table = table.append_column(PLACE, places)
        if self._writer is None:
            marks = {STEPS: json.dumps([*self._before, *(op.name for op in self.operators)])}
            self._writer = pq.ParquetWriter(self._path, table.schema.with_metadata(marks), **_FORMAT)
        self._writer.write_table(table.cast(self._writer.schema))


def scores_name(identity: str, partition: Partition) -> str:
    """The file in the output that has the scores of a partition."""
    return f"{INTERNAL}/scores/{digest([identity, partition.identity])}{TABLE}"


def num_dropped(batch: Batch) -> int:
    """How many rows of a batch are dropped already, and are there only to be measured."""
    return int(np.count_nonzero(_mask(batch, DROPPED))) if DROPPED in batch else 0


def is_dropped(batch: Batch, row: int) -> bool:
    return DROPPED in batch and bool(batch[DROPPED][row].as_py())


def joined_scores(parts: Sequence[bytes]) -> bytes:
    """Files of scores of one partition as one file, in the order of its rows."""
    tables = sorted(
        (pq.read_table(io.BytesIO(part), page_checksum_verification=True) for part in parts),
        key=lambda table: int(table.column(ROW)[0].as_py()),
    )
    every = pa.concat_tables([table.cast(tables[0].schema) for table in tables])
    every = every.unify_dictionaries().combine_chunks().sort_by(ROW)
    buffer = io.BytesIO()
    pq.write_table(every, buffer, **_FORMAT)
    return buffer.getvalue()


def _read(store: Store, name: str) -> pa.Table | None:
    """Stored scores, or None if there are none or they are damaged: then they are measured again."""
    data = store.read(name)
    if data is None:
        return None
    try:
        return pq.read_table(io.BytesIO(data), page_checksum_verification=True)
    except (pa.ArrowException, OSError):
        return None


def _mask(batch: Batch, column: str) -> np.ndarray:
    return np.array(batch[column].to_numpy(zero_copy_only=False), dtype=np.bool_)
