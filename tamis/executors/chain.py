"""Runs the operators of a stage on batches, one after the other, and hands the rows that are left to the writer.

A row that makes an operator raise is isolated by halving the batch until only that row is left. It fails, with its address
and its error, and the other rows continue.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tamis.batch import Batch, Origin
from tamis.errors import (
    BudgetError,
    DeviceLost,
    EndpointError,
    MissingExtra,
    OperatorError,
    TamisError,
    is_device_lost,
    is_full_disk,
    is_shortage,
)
from tamis.executors.opening import OpenStage
from tamis.executors.packets import PacketWriter
from tamis.executors.reader import RowsRead
from tamis.executors.records import Records
from tamis.executors.regroup import Growth, joined, regroup
from tamis.executors.scores import ScoreKeeper, is_dropped, num_dropped
from tamis.executors.steps import Applied, Types, apply_step, bytes_read, filter_rows
from tamis.executors.tasks import Marker, RowOverflow, Task
from tamis.executors.writer import Writer
from tamis.functions import Function
from tamis.memory import process
from tamis.models import devices
from tamis.models.files import ModelError
from tamis.operators import Expand, Filter, Operator
from tamis.parameters import format_bytes

MOSTLY_ALIVE = 0.75
"""Dropped rows stay in a batch as long as at least this share of its rows is alive."""

NO_LIMIT = 2**60

EXPENSIVE = 2.0
"""Filters of at least this cost see only rows that are alive."""


class Chain:
    """The operators of a stage, for the rows of one task."""

    def __init__(
        self,
        opened: OpenStage,
        task: Task,
        records: Records,
        marker: Marker,
        writer: Writer | PacketWriter,
        batch_bytes: int,
        keeper: ScoreKeeper | None,
    ) -> None:
        self._stage, self._runners = opened.stage, opened.operators
        self._task, self._records, self._marker = task, records, marker
        self._writer, self._batch_bytes, self._keeper = writer, batch_bytes, keeper
        self._usage = process.Usage()
        self._growth = Growth()
        # Numbers and origins of the rows being processed.
        self._in_progress = (np.empty(0, np.int64), Origin.of("", []))
        self._step = 0
        self.types: dict[int, Types] = {}
        """By operator, the types of the columns it returned so far."""

    def known_types(self) -> dict[int, Types]:
        """A copy of `types`."""
        return {step: dict(known) for step, known in self.types.items()}

    def run(self, rows: RowsRead) -> None:
        """Run all operators on some rows, and write what is left of them."""
        if not self._task.careful:
            self._run_rows(rows)
            return
        for row in range(len(rows.batch)):
            one = slice(row, row + 1)
            self._run_rows(RowsRead(rows.batch.select(one), rows.numbers[one], int(rows.numbers[row]), 1))

    def _run_rows(self, rows: RowsRead) -> None:
        if self._keeper is not None:
            most = min((self._rows_at_a_time(op) for op in self._keeper.operators), default=len(rows.batch))
            if len(rows.batch) > most:
                for start in range(0, len(rows.batch), most):
                    part = slice(start, start + most)
                    self._run_rows(RowsRead(rows.batch.select(part), rows.numbers[part], rows.first, rows.size))
                return
        begin = 0
        batch = rows.batch
        self._in_progress = (rows.numbers, batch.origin)
        if self._keeper is not None and len(batch):
            batch = self._measure(self._keeper, rows)
            begin = len(self._keeper.operators)
        self._run_steps(batch, begin, rows.first, rows.size)

    def _run_steps(self, batch: Batch, begin: int, first: int, size: int) -> None:
        """Run the operators from number `begin` on, and the end of the stage.

        If a step makes more than a batch should hold, its output continues in pieces, one after the other.
        """
        alive: np.ndarray | None = None
        for index, op in enumerate(self._stage.operators[begin:], start=begin):
            if not len(batch):
                return
            if len(batch) > self._rows_at_a_time(op):
                for piece in self._pieces(op, _cut(batch, alive)):
                    self._run_steps(piece, index, first, size)
                return
            self._step = self._stage.first_operator + index
            self._marker(first, size, self._step)
            if isinstance(op, Filter) and not op.adds_scores and op.batch_rows is None:
                batch, alive = self._filtered(op, self._runners[index], batch, alive)
                continue
            pieces = regroup(self._made(op, index, _cut(batch, alive)), self._batch_bytes)
            alive = None
            batch = next(pieces, batch.select(slice(0, 0)))
            following = next(pieces, None)
            while following is not None:
                self._run_steps(batch, index + 1, first, size)
                self._step = self._stage.first_operator + index
                batch, following = following, next(pieces, None)
        batch = _cut(batch, alive)
        if len(batch):
            self._step = len(self._records.account.operators) - 1
            self._marker(first, size, self._step)
            self._hand_on(batch)

    def _rows_at_a_time(self, op: Operator) -> int:
        """How many rows to give to a step, so that the facts it leaves on them are about as large as a batch."""
        return max(1, self._batch_bytes // op.row_bytes) if op.row_bytes else NO_LIMIT

    def _pieces(self, op: Operator, batch: Batch) -> Iterator[Batch]:
        most = self._rows_at_a_time(op)
        for start in range(0, len(batch), most):
            yield batch.select(slice(start, start + most))

    def _hand_on(self, batch: Batch) -> None:
        account = self._records.account
        if self._stage.gathers:
            assert self._stage.end is not None
            for piece in self._pieces(self._stage.end, batch):
                account.kept += sum(map(len, self._timed(self._stage.end, piece, self._writer.observe)))
        else:
            self._writer.write(batch)
            account.kept += len(batch) - num_dropped(batch)

    def _made(self, op: Operator, index: int, batch: Batch) -> Iterator[Batch]:
        """The output of a step, computed for as many rows at a time as make about one batch."""
        step = self._step
        creates_rows = isinstance(op, Expand) or (isinstance(op, Function) and not op.batch_wise)
        types = self.types.setdefault(index, {})
        apply = partial(apply_step, op, types=types, runner=self._runners[index])
        while len(batch):
            rows = self._growth.rows(step, batch, self._batch_bytes, creates_rows=creates_rows)
            if op.batch_rows is not None:
                rows = min(rows, op.batch_rows)
            part = batch if rows >= len(batch) else batch.select(slice(0, rows))
            self._step = step
            made = self._timed(op, part, apply, self._runners[index])
            self._growth.note(step, part.num_bytes, sum(piece.num_bytes for piece in made))
            yield from made
            batch = batch.select(slice(len(part), None))

    # ------------------------------------------------------------------------------------------------------ kept scores

    def _measure(self, keeper: ScoreKeeper, rows: RowsRead) -> Batch:
        """Run the operators whose scores are kept. Rows that are dropped but still measured are not counted."""
        batch = keeper.begin(rows.batch, rows.numbers)
        if self._stage.rejects is None:
            batch = self._drop_early(keeper, batch)
        for index, op in enumerate(keeper.operators):
            if not len(batch):
                return batch
            self._step = self._stage.first_operator + index
            self._marker(rows.first, rows.size, self._step)
            account = self._records.of(self._step)
            account.rows_in -= num_dropped(batch)
            batch = joined(self._timed(op, batch, partial(keeper.apply, index), self._runners[index]))
            account.rows_out -= num_dropped(batch)
        return keeper.end(batch)

    def _drop_early(self, keeper: ScoreKeeper, batch: Batch) -> Batch:
        """Drop the rows that stored scores decide against, counted as if they had reached their filter."""
        drops = keeper.dropped_by_stored_scores(batch)
        first = self._stage.first_operator
        for index, reason, mask in drops:
            count = int(np.count_nonzero(mask))
            for account in self._records.account.operators[first : first + index]:
                account.rows_in += count
                account.rows_out += count
            account = self._records.of(first + index)
            account.rows_in += count
            account.dropped[reason] = account.dropped.get(reason, 0) + count
        return batch.select(~np.logical_or.reduce([mask for _, _, mask in drops])) if drops else batch

    # -------------------------------------------------------------------------------------------- one operator, one batch

    def _timed(self, op: Operator, batch: Batch, apply: Callable[[Batch], Applied], runner: Any = None) -> list[Batch]:
        mine = self._records.of(self._step)
        if self._stage.profile and not mine.rows_in:
            apply(batch)  # kernels are loaded on first use, which is not to be measured
        with self._records.measured(self._step, runner):
            made = self._isolating(batch, apply)
        mine.rows_in += len(batch)
        mine.rows_out += sum(map(len, made))
        mine.num_bytes += bytes_read(op, batch)
        return made

    def _filtered(
        self, op: Filter, runner: Any, batch: Batch, alive: np.ndarray | None
    ) -> tuple[Batch, np.ndarray | None]:
        """Apply a filter; returns the batch and which of its rows are alive.

        Removing a few rows means copying all the others, so dropped rows stay in the batch, and are scored needlessly, until
        they are a good part of it.
        """
        if op.cost >= EXPENSIVE:
            batch, alive = _cut(batch, alive), None
        mine = self._records.of(self._step)
        before = np.ones(len(batch), dtype=np.bool_) if alive is None else alive
        rows, num_bytes = int(np.count_nonzero(before)), bytes_read(op, batch, alive)
        if self._stage.profile and not mine.rows_in:
            filter_rows(op, batch, before, runner)  # kernels are loaded on first use, which is not what is measured
        with self._records.measured(self._step, runner):
            found = None
            with suppress(Exception):  # raised again below, where rows are isolated
                found = filter_rows(op, batch, before, runner)
            if found is None:
                batch = joined(self._isolating(_cut(batch, alive), partial(apply_step, op, runner=runner)))
                after = np.ones(len(batch), dtype=np.bool_)
            else:
                self._records.settle(self._step, found)
                after = (
                    before & ~np.logical_or.reduce([mask for _, mask in found.verdicts]) if found.verdicts else before
                )
            left = int(np.count_nonzero(after))
            if left < MOSTLY_ALIVE * len(batch):
                batch, after = batch.select(after), np.ones(left, dtype=np.bool_)
        mine.rows_in += rows
        mine.rows_out += left
        mine.num_bytes += num_bytes
        return batch, None if left == len(batch) else after

    def _isolating(self, batch: Batch, apply: Callable[[Batch], Applied]) -> list[Batch]:
        """Apply a step; if that fails, apply it to each half, down to the single row that causes the error."""
        try:
            applied = apply(batch)
        except (OperatorError, MissingExtra, EndpointError, ModelError):
            raise  # not caused by a row
        except Exception as error:
            if self._stage.on_error == "raise" or is_full_disk(error):
                raise
            if is_device_lost(error):  # all other rows would fail too; another worker finds the one that is the cause
                first_line = (str(error).splitlines() or [""])[0]
                raise DeviceLost(f"{type(error).__name__}: {first_line}") from error
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f" ({Path(where.filename).name}:{where.lineno})"
            short = is_shortage(error)
            if short:
                self._records.account.splits += 1
                traceback.clear_frames(error.__traceback__)  # they hold what was made of the batch
                process.trim()
                devices.release_cached()
                if self._usage.is_full(batch.num_bytes) and not self._task.last_attempt:
                    raise
            if len(batch) == 1:
                if short and self._room_came_back():
                    return self._isolating(batch, apply)
                self._fail_or_hand_back(batch, error, place, short=short)
                return [batch.select(slice(0, 0))]
        else:
            return [self._records.settle(self._step, applied)]
        middle = len(batch) // 2
        first = self._isolating(batch.select(slice(0, middle)), apply)
        second = self._isolating(batch.select(slice(middle, None)), apply)
        return first + second

    def _room_came_back(self) -> bool:
        """Whether a row was short of GPU memory that other processes used, and that is free now.

        The row is not to blame. If the others do not release it in time, the run ends, and can be resumed.
        """
        if devices.missing_room() is None:
            return False
        why = devices.wait_for_room()
        if why is not None:
            raise BudgetError(why, hint="end other processes that use the GPU, and rerun the same command to resume")
        return True

    def _fail_or_hand_back(self, batch: Batch, error: Exception, place: str, *, short: bool) -> None:
        """Fail a row; for lack of memory only in the last attempt, in which it is alone in a new worker."""
        message = error.message if isinstance(error, TamisError) else error
        text = f"{type(error).__name__}: {message}".strip(": ")
        if short:
            what = "GPU memory" if "CUDA" in text else "memory"
            text += f"; this row alone ({format_bytes(batch.num_bytes)}) needs more {what} than a worker may hold"
            if not self._task.last_attempt:
                raise RowOverflow(*self._numbers_of(batch.origin, 0), text)
        if not is_dropped(batch, 0):  # otherwise it was only measured
            self._records.fail_row(batch, 0, self._step, text + place)

    def _numbers_of(self, origin: Origin, row: int) -> tuple[int, int]:
        """(first, count) of the rows read that a row on its way may come from: those with its address."""
        numbers, read = self._in_progress
        place, position = origin.places[origin.place[row]], origin.position[row]
        same = np.array([name == place for name in read.places], dtype=np.bool_)[read.place]
        found = numbers[same & (read.position == position)]
        return int(found[0]), int(found[-1] - found[0] + 1)


def _cut(batch: Batch, alive: np.ndarray | None) -> Batch:
    """The rows of a batch that are alive; None means all."""
    return batch if alive is None else batch.select(alive)
