"""Scores kept beside the output, so that thresholds can be changed without measuring again.

With scores kept, filters measure every row and drop none until the filters and maps at the head of a stage are
through; what they measured is stored under a name made from everything that decides it, thresholds left out:

    .tamis/scores/<digest of input and measuring parameters>.parquet     one line per row, one column per score

A later run that finds the file skips the measuring; only rules are applied again. Rows, reasons and counts are the
same as without.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tamis.batch import Batch, as_array
from tamis.executors.steps import Applied, apply_step, check_lengths, view
from tamis.operators import Filter, Map, Operator, Partition, Source, digest
from tamis.store import INTERNAL, Store

ROW, DOOM, SCORE = "_tamis_row", "_tamis_doom", "_tamis_score"
"""Columns a batch carries while it is measured: number in the partition, why it will be dropped, and the scores."""


def measured_prefix(operators: Sequence[Operator]) -> int:
    """How many operators at the head of a stage can be run before any row is dropped."""
    count = 0
    for op in operators:
        if not isinstance(op, (Filter, Map)):
            break
        count += 1
    return count


def measuring_identity(source: Source, operators: Sequence[Operator]) -> str:
    """Changes with everything that decides a score, and with no threshold."""
    return digest([source.identity(), [op.measuring_identity() for op in operators]])


class ScoreKeeper:
    """Runs the measuring operators of one partition, with scores from an earlier run where there are some."""

    def __init__(
        self, store: Store, identity: str, partition: Partition, operators: Sequence[Operator], scratch: Path
    ) -> None:
        self.operators = list(operators)
        self.name = f"{INTERNAL}/scores/{digest([identity, partition.identity])}.parquet"
        self.reasons: list[tuple[int, str]] = []  # what a number in DOOM stands for: operator and reason
        self._store, self._scratch = store, scratch
        stored = store.read(self.name)
        self._known = pq.read_table(io.BytesIO(stored)) if stored is not None else None
        self._writer: pq.ParquetWriter | None = None

    def begin(self, batch: Batch, numbers: np.ndarray) -> Batch:
        """The batch with what is known about its rows."""
        batch = batch.with_columns({ROW: numbers, DOOM: np.full(len(batch), -1, dtype=np.int32)})
        if self._known is None:
            return batch
        rows = self._known.column(ROW).to_numpy()
        found = np.searchsorted(rows, numbers)
        if len(rows) == 0 or (found >= len(rows)).any() or (rows[found] != numbers).any():
            return batch  # a row that failed in the earlier run fails again by being measured again
        known = self._known.drop_columns([ROW]).take(pa.array(found))
        return batch.with_columns({name: as_array(known.column(name)) for name in known.column_names})

    def apply(self, number: int, batch: Batch) -> Applied:
        """One operator over all rows, doomed or not."""
        op = self.operators[number]
        if not isinstance(op, Filter) or op.score_only:
            return apply_step(op, batch)
        prefix = f"{SCORE}_{number}_"
        scores = self.scores_of(number, batch)
        if not scores:
            scores = check_lengths(op, op.score(view(op, batch)), len(batch))
            batch = batch.with_columns({prefix + name: values for name, values in scores.items()})
        doom = np.array(batch[DOOM].to_numpy(zero_copy_only=False))
        for rule in op.rules():
            for reason, broken in rule.verdicts(scores[rule.score]):
                first_broken = broken & (doom < 0)
                if first_broken.any():
                    doom[first_broken] = len(self.reasons)
                    self.reasons.append((number, reason))
        return Applied(batch.with_columns({DOOM: doom}), batch)

    def scores_of(self, number: int, batch: Batch) -> dict[str, pa.Array]:
        """What operator `number` measured of a batch that is not released yet."""
        prefix = f"{SCORE}_{number}_"
        return {name.removeprefix(prefix): batch[name] for name in batch.columns if name.startswith(prefix)}

    def release(self, batch: Batch) -> tuple[Batch, list[tuple[int, str, np.ndarray]]]:
        """The batch as it was meant, and (operator, reason, rows) for what must be dropped from it now."""
        doom = batch[DOOM].to_numpy(zero_copy_only=False)
        drops = [(*self.reasons[code], doom == code) for code in np.unique(doom[doom >= 0]).tolist()]
        if self._known is None:
            self._store_scores(batch)
        extra = [name for name in batch.columns if name in (ROW, DOOM) or name.startswith(SCORE)]
        table = batch.table.drop_columns(extra)
        assert table.num_columns, "rows have columns of their own"
        return Batch(table, batch.origin, memo=batch.memo), drops

    def fate(self, batch: Batch, row: int) -> tuple[int, str] | None:
        """Why a row would have been dropped before it failed; without kept scores it would not have come that far."""
        if DOOM not in batch:
            return None
        code = batch[DOOM][row].as_py()
        return self.reasons[code] if code >= 0 else None

    def _store_scores(self, batch: Batch) -> None:
        names = [ROW, *(name for name in batch.columns if name.startswith(SCORE))]
        table = batch.table.select(names)
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, table.schema, compression="zstd")
        self._writer.write_table(table.cast(self._writer.schema))

    def close(self) -> None:
        """Put what was measured in its place."""
        if self._writer is not None:
            self._writer.close()
            self._store.publish(self._path, self.name)

    @property
    def _path(self) -> Path:
        return self._scratch / "scores.parquet"
