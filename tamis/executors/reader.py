"""Reads the rows of a task, each with its number in the partition, and applies what was decided about them before.

Source.read -> rows of the task -> decisions of the Gather before this stage -> rows known to kill workers fail
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import HIDDEN, LINE, Batch, Failure
from tamis.errors import SourceError
from tamis.executors.opening import OpenStage
from tamis.executors.records import Records
from tamis.executors.reuse import EarlierRows
from tamis.executors.scores import is_dropped, num_dropped
from tamis.executors.side_outputs import FailureLog, deferred_record
from tamis.executors.steps import dropped, rewritten, schema_read, visible
from tamis.executors.tasks import Marker, Task
from tamis.media import referred_bytes
from tamis.memory import spill
from tamis.memory.governor import Allowance
from tamis.operators import Reading

SHOWN_PATHS = 3


@dataclass(frozen=True)
class RowsRead:
    """A batch, the number of each of its rows in the partition, and the range of rows that it was read from."""

    batch: Batch
    numbers: np.ndarray
    first: int
    size: int


class Reader:
    """The rows of one task."""

    def __init__(
        self,
        opened: OpenStage,
        task: Task,
        scratch: Path,
        records: Records,
        marker: Marker,
        allowance: Allowance,
        earlier: EarlierRows | None = None,
    ) -> None:
        self._stage, self._opened = opened.stage, opened
        self._task, self._records, self._marker = task, records, marker
        self._allowance, self._earlier = allowance, earlier
        self._ordinal = 0  # rows read so far
        self._decided = 0  # rows whose fate was looked up so far
        self._positions = 0  # the sum of their positions
        self._step = 0  # -1 - the number of the piece being read, if the source reports it
        self._bad_rows = FailureLog(scratch / "unread")
        self.corrupt: set[str] = set()
        """Frames found to be corrupt."""
        self.exhausted = False
        """Whether all rows of the partition were read."""
        self.schema: pa.Schema | None = None
        """The columns that were read last."""
        self.regular = earlier is None or earlier.regular
        """Whether all rows had the columns and types that the plan expects."""

    def __iter__(self) -> Iterator[RowsRead]:
        if self._earlier is not None and not self._earlier.must_read:
            return
        expected = schema_read(self._stage.schema, self._stage.columns)
        for first, batch in self._read():
            self.schema = batch.table.schema
            self.regular &= visible(self.schema).equals(expected)
            if self._earlier is not None:
                rows = RowsRead(*self._earlier.needed(batch, first))
            else:
                rows = RowsRead(batch, np.arange(first, first + len(batch)), first, len(batch))
            left, numbers = self._fail_poison(*self._apply_fates(rows.batch, rows.numbers))
            yield RowsRead(left, numbers, rows.first, rows.size)

    def close(self) -> None:
        """Count the bad rows of a task that turned out to read the last rows of its partition, or that did not read it."""
        if self._earlier is not None and not self._earlier.must_read:
            for failure in self._earlier.bad_rows():
                self._records.fail_unread(failure)
        elif self._earlier is not None:
            self._earlier.check_read(self._ordinal)
        if self.exhausted:
            self._check_decided()
            for record in self._bad_rows.records():
                self._records.fail_unread(Failure(**record))
        self._bad_rows.close()

    def abandon(self) -> None:
        """Close the files of a task that failed; they are about to be removed."""
        self._bad_rows.close()

    def _read(self) -> Iterator[tuple[int, Batch]]:
        """The rows of the task, in batches, each with the number of its first row."""
        stage = self._stage
        reading = Reading(
            columns=stage.columns if self._task.observed is None else self._task.observed.columns,
            schema=stage.schema,
            batch_bytes=self._allowance.batch_bytes,
            fail=self._bad_row,
            keep_lines=stage.keep_lines,
            max_row_bytes=self._task.max_row_bytes or self._allowance.max_row_bytes,
            damaged=self._task.damaged,
            on_damage=self.corrupt.add,
            unreadable=self._task.unreadable,
            on_piece=self._at_piece,
            chosen=None if self._earlier is None else self._earlier.chosen,
        )
        batches = iter(self._opened.source.read(self._task.partition, reading))
        start, stop = self._task.start, self._task.end
        while stop is None or self._ordinal < stop:
            self._marker(self._ordinal, 0, self._step)
            with self._records.measured(0):
                batch = next(batches, None)
            if batch is None:
                self.exhausted = True
                return
            batch = self._without_reserved(batch)
            first = self._ordinal
            self._ordinal += len(batch)
            if first < start:
                self._skip(batch.select(slice(0, start - first)))
            if first < start or (stop is not None and self._ordinal > stop):
                end = None if stop is None else max(0, stop - first)
                batch, first = batch.select(slice(max(0, start - first), end)), max(start, first)
            if not len(batch):
                continue
            mine, account = self._records.of(0), self._records.account
            count = len(batch) - num_dropped(batch)
            mine.rows_in += count
            mine.rows_out += count
            size = self._size(batch)
            mine.num_bytes += size
            account.read += count
            account.num_bytes += size
            yield first, batch

    def _without_reserved(self, batch: Batch) -> Batch:
        """Fail the rows of an input that have columns with names of the engine's own, which would be taken for those."""
        source = self._stage.source
        if source.internal:
            return batch
        own = {LINE} if self._stage.keep_lines else set()
        found = [name for name in batch.columns if name.startswith(HIDDEN) and name not in own]
        if not found:
            return batch
        self.regular = False
        given = [pc.is_valid(batch.table.column(name)).to_numpy() for name in found]
        for row in np.flatnonzero(np.logical_or.reduce(given)).tolist():
            name = next(name for name, mask in zip(found, given, strict=True) if mask[row])
            error = f"column `{name}`: names that begin with `{HIDDEN}` are reserved; rename it where it is read"
            values = batch.select(slice(row, row + 1)).shown_rows()[0]
            self._bad_row(Failure(batch.origin.address(row), source.name, error, values))
        return batch.without(found).select(~np.logical_or.reduce(given))

    def _size(self, batch: Batch) -> int:
        """The bytes of input in a batch."""
        if LINE in batch:
            return int(batch.table.column(LINE).nbytes)
        if self._stage.source.rows_are_members:
            return batch.num_bytes + referred_bytes(batch.table)
        if not self._stage.source.rows_are_files:
            return batch.num_bytes
        sizes = np.array([self._file_sizes.get(place, 0) for place in batch.origin.places], np.int64)
        return int(sizes[batch.origin.place].sum())

    @functools.cached_property
    def _file_sizes(self) -> dict[str, int]:
        return {piece.path: piece.size for piece in self._task.partition.pieces}

    def _at_piece(self, number: int) -> None:
        self._step = -1 - number
        self._marker(self._ordinal, 0, self._step)

    def _bad_row(self, failure: Failure) -> None:
        if self._stage.reads_again or self._task.stop is not None:
            return  # counted by the stage before, or with the last rows of the partition
        if self._task.max_rows is not None:
            self._bad_rows.write(deferred_record(failure))  # counted if this task turns out to read the last rows
        else:
            self._records.fail_unread(failure)

    def _fail_poison(self, batch: Batch, numbers: np.ndarray) -> tuple[Batch, np.ndarray]:
        """Fail the rows that killed workers, instead of processing them."""
        poison = self._task.poison
        if not poison or not len(batch):
            return batch, numbers
        sick = np.isin(numbers, list(poison))
        step = min(1, len(self._records.account.operators) - 1)
        for row in np.flatnonzero(sick):
            if not is_dropped(batch, int(row)):  # otherwise it was only measured
                self._records.fail_row(batch, int(row), step, poison[int(numbers[row])])
        return batch.select(~sick), numbers[~sick]

    # ---------------------------------------------------------------------------------- decisions of the Gather before

    def _apply_fates(self, batch: Batch, numbers: np.ndarray) -> tuple[Batch, np.ndarray]:
        """Apply the decisions of the Gather before this stage. Rows that failed there were counted there."""
        stage, records = self._stage, self._records
        if stage.fates_of is None:
            return batch, numbers
        known = self._known_to_have_failed(batch)
        if known is not None:
            count = int(np.count_nonzero(known))
            records.account.read -= count
            records.of(0).rows_in -= count
            records.of(0).rows_out -= count
            batch, numbers = batch.select(~known), numbers[~known]
        began = time.perf_counter()
        here = self._count_decided(batch)
        drop, reasons, payload = self._fates[0][here], self._fates[1][here].cast(pa.string()), self._fates[2]
        verdicts = []
        if drop.any():
            for reason in dict.fromkeys(reasons.filter(pa.array(drop)).to_pylist()):
                same = pc.fill_null(pc.equal(reasons, reason), reason is None).to_numpy(zero_copy_only=False)
                verdicts.append((str(reason), drop & same))
        mine = records.of(1)
        mine.rows_in += len(batch)
        batch, numbers = records.settle(1, dropped(batch, verdicts)), numbers[~drop]
        if payload is not None and len(batch):
            chosen = payload[here].filter(pa.array(~drop))
            batch = rewritten(stage.fates_of, batch, chosen, self._opened.fates_of)
        mine.rows_out += len(batch)
        mine.seconds += time.perf_counter() - began
        return batch, numbers

    def count_decided(self) -> bool:
        """Count the rows of a whole partition by the decisions about them, without reading them; False if they must be read."""
        if not self._task.is_whole or self._task.poison:
            return False
        began = time.perf_counter()
        drop, reasons, payload = self._fates
        if payload is not None:
            return False
        gone = reasons.cast(pa.string()).filter(pa.array(drop))
        rows, kept, account = len(drop), len(drop) - len(gone), self._records.account
        account.read += rows
        account.kept += kept
        for number, step in enumerate(account.operators):
            step.rows_in += rows if number < 2 else kept
            step.rows_out += kept if number else rows
        mine = self._records.of(1)
        for found in pc.value_counts(gone):
            mine.dropped[str(found["values"].as_py())] = found["counts"].as_py()
        mine.seconds += time.perf_counter() - began
        return True

    def _known_to_have_failed(self, batch: Batch) -> np.ndarray | None:
        if not self._task.gone:
            return None
        return np.array([address in self._task.gone for address in batch.origin.addresses()], dtype=np.bool_)

    def _skip(self, batch: Batch) -> None:
        """Pass over rows that another task processes."""
        if self._stage.fates_of is not None:
            known = self._known_to_have_failed(batch)
            self._count_decided(batch if known is None else batch.select(~known))

    @functools.cached_property
    def _fates(self) -> tuple[np.ndarray, pa.Array, pa.Array | None]:
        """Whether each row is dropped, why, and what is to be written about it."""
        assert self._stage.fates is not None
        return spill.read_fates(self._stage.fates, self._task.partition.index)

    def _count_decided(self, batch: Batch) -> slice:
        """Count rows that were decided about; returns where among all of the partition their fates are."""
        here = slice(self._decided, self._decided + len(batch))
        self._decided += len(batch)
        self._positions += int(batch.origin.position.sum())
        if self._decided > len(self._fates[0]):
            raise self._changed()
        return here

    def _check_decided(self) -> None:
        """Raise if the rows of the partition are not those that were decided about.

        Fates are in source order, so after a row that is lacking or new, each would be applied to another row.
        """
        if self._stage.fates_of is None:
            return
        observed = self._task.observed
        moved = observed is not None and self._positions != observed.positions
        if moved or self._decided != len(self._fates[0]):
            raise self._changed()

    def _changed(self) -> SourceError:
        assert self._stage.fates_of is not None
        paths = list(dict.fromkeys(piece.path for piece in self._task.partition.pieces))
        what = " or ".join(paths[:SHOWN_PATHS]) + (
            f" or {len(paths) - SHOWN_PATHS} more" if paths[SHOWN_PATHS:] else ""
        )
        return SourceError(
            f"the input changed during the run: {what} has other rows than when `{self._stage.fates_of.name}` read them",
            hint="rerun the same command to resume: what changed is processed again",
        )
