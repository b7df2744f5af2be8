"""The loop that runs a stage over the batches of a partition, in every executor.

    for each partition:
        Source.read -> [fates of a Gather] -> operators -> Sink | Gather.observe
             |                  |                 |
             +---- failed rows -+--- rejects -----+          each file complete before the outcome is reported

A row that makes an operator raise is isolated by halving the batch until only that row is left. It fails, with its address
and its error, and the other rows continue.
"""

from __future__ import annotations

import os
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import HIDDEN, LINE, Batch, Failure, Origin
from tamis.errors import DiskFull, MissingExtra, OperatorError, SetupTooLarge, TamisError, is_full_disk, is_shortage
from tamis.executors.regroup import Growth, joined, regroup
from tamis.executors.scores import ScoreKeeper, measured_operators
from tamis.executors.segments import Outcome, Segment, publish
from tamis.executors.side_outputs import failure_record, rejected_rows
from tamis.executors.steps import (
    Applied,
    Types,
    apply_step,
    bytes_read,
    dropped,
    facts_of,
    filter_rows,
    rewritten,
    schema_after,
    schema_read,
    view,
)
from tamis.executors.tasks import CorruptFrames, RowOverflow, Stage, Task
from tamis.functions import Function
from tamis.mapped import SPILL
from tamis.memory import process, spill
from tamis.memory.governor import Allowance
from tamis.operators import Expand, Filter, Gather, Operator, Reading, ShardWriter, Sink
from tamis.parameters import format_bytes
from tamis.report import Account, ErrorCount, ErrorCounts, OperatorAccount
from tamis.sinks.schemas import encode_schema

TRIM_EVERY_S = 10.0
"""How often free memory is returned to the system within a partition; it also is after each one."""

REPORT_FAILURES_EVERY = 1_000

MOSTLY_ALIVE = 0.75
"""Dropped rows stay in a batch as long as at least this share of its rows is alive."""

EXPENSIVE = 2.0
"""Filters of at least this cost see only rows that are alive."""


class Marker(Protocol):
    """Notes what the worker is doing outside of its memory, where the driver can read it after a death."""

    def __call__(self, first_row: int, rows: int, step: int) -> None: ...


class Progress(Protocol):
    """Called after each batch with the rows and bytes read so far, and the errors of rows that failed."""

    def __call__(self, rows: int, num_bytes: int, errors: Sequence[ErrorCount]) -> None: ...


def no_marker(first_row: int, rows: int, step: int) -> None:
    """For executors that run in the driver's process."""


class StageRunner:
    """A stage with its operators set up, ready for partitions."""

    def __init__(self, stage: Stage, marker: Marker = no_marker) -> None:
        self.stage = stage
        self.marker = marker
        self.setup_bytes: list[int] = []
        """Memory that each step took when it was set up."""
        for step in self._steps():
            before = process.own_bytes()
            try:
                step.setup()
            except Exception as error:
                if is_shortage(error):
                    raise SetupTooLarge(f"`{step.name}`", error) from error
                raise
            self.setup_bytes.append(max(0, process.own_bytes() - before))

    def _steps(self) -> Iterator[Operator]:
        yield self.stage.source
        yield from self.stage.operators
        if self.stage.end is not None:
            yield self.stage.end

    def close(self) -> None:
        for step in self._steps():
            step.close()

    def run(self, task: Task, progress: Progress) -> Outcome | Segment:
        """Process a partition, or some of its rows. The files of a whole partition are in place when this returns."""
        with _PartitionRun(self.stage, task, self.marker, progress) as run:
            source, *others = self.setup_bytes
            run.account.operators[0].setup_bytes = source
            for account, taken in zip(run.account.operators[run.first_operator :], others, strict=True):
                account.setup_bytes = taken
            try:
                return run.all()
            except OSError as error:
                if is_full_disk(error):
                    raise DiskFull(
                        f"the disk is full while writing {self.stage.store.root}",
                        hint="free some space and rerun the same command to resume; committed work is kept",
                    ) from error
                raise


class _PartitionRun:
    """The state of one partition on its way through a stage."""

    def __init__(self, stage: Stage, task: Task, marker: Marker, progress: Progress) -> None:
        self.stage, self.task, self.marker, self.progress = stage, task, marker, progress
        self.partition = task.partition
        self.stem = spill.stem(self.partition.index)
        self.scratch = stage.store.scratch() / f"{os.getpid()}-{stage.index}-{self.stem}"
        self.account = Account(operators=[OperatorAccount(stage.source.name, "source")])
        if stage.fates_of is not None:
            self.account.operators.append(OperatorAccount(stage.fates_of.name, "gather"))
        self.first_operator = len(self.account.operators)
        self.account.operators += [OperatorAccount(op.name, op.kind) for op in stage.operators]
        if stage.end is not None:
            self.account.operators.append(OperatorAccount(stage.end.name, stage.end.kind))
        self.allowance = task.allowance or Allowance(stage.batch_bytes)
        self.batch_bytes = self.allowance.batch_bytes
        self.usage = process.Usage()
        self.growth = Growth()
        self.ordinal = 0  # rows read so far
        self.in_progress = (np.empty(0, np.int64), Origin.of("", []))  # numbers and origins of the rows being processed
        self.fated = 0  # rows whose fate was looked up so far
        self.fates: tuple[np.ndarray, pa.Array, pa.Array | None] | None = None
        self.observed = 0  # rows handed to the Gather at the end so far
        self.failures: list[dict[str, Any]] = []
        self.errors = ErrorCounts()
        self.corrupt: set[str] = set()  # frames found to be corrupt
        self.reading_step = 0  # -1 - the number of the piece being read, if the source reports it
        self.exhausted = False  # whether all rows of the partition were read
        self.bad_rows: list[Failure] = []
        self.keeper: ScoreKeeper | None = None
        self.rejects: ShardWriter | None = None
        self.sink: ShardWriter | None = None
        self.facts: spill.SpillWriter | None = None
        self.spilled: spill.SpillWriter | None = None
        self.step = 0
        self.types: dict[int, Types] = {}
        """By operator, the types of the columns it returned so far."""
        self.source_schema: pa.Schema | None = None

    def __enter__(self) -> _PartitionRun:
        self.scratch.mkdir(parents=True, exist_ok=True)
        if self.stage.scores is not None and self.task.is_whole:
            head = self.stage.operators[: measured_operators(self.stage.operators)]
            self.keeper = ScoreKeeper(self.stage.store, self.stage.scores, self.partition, head, self.scratch)
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is not None:
            for writer in (self.sink, self.rejects, self.facts, self.spilled):
                with suppress(Exception):  # the files are removed below, and another error is on its way
                    if writer is not None:
                        writer.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    # ---------------------------------------------------------------------------------------------- from read to commit

    def all(self) -> Outcome | Segment:
        began = time.perf_counter()
        before = process.reset_peak()
        self._open_end()
        trimmed = began
        for first, batch in self._read():
            self._run_batch(first, batch)
            self.progress(self.account.read, self.account.num_bytes, self.errors.entries)
            if time.perf_counter() - trimmed > TRIM_EVERY_S:  # a file that cannot be split takes long
                process.trim()
                trimmed = time.perf_counter()
        if self.corrupt:
            raise CorruptFrames(frozenset(self.corrupt))
        outcome = self._finish()
        self.account.seconds = time.perf_counter() - began
        peaks = [op.peak_bytes for op in self.account.operators]  # measuring each step resets the peak of the whole
        self.account.peak_memory_bytes = max(0, process.peak_bytes() - before, *peaks)
        if not self.account.balances:
            raise TamisError(f"the account of {self.stem} does not balance: {self.account}")
        return outcome

    def _open_end(self) -> None:
        end = self.stage.end
        if isinstance(end, Sink):
            left = self.stage.sink_schema
            self.sink = end.open_shard(self.scratch, self.stem, self.stage.schema if left is None else left)
        elif isinstance(end, Gather):
            # Not compressed, so that a Gather can map the file and read single columns and rows of it.
            self.facts = spill.SpillWriter(self.scratch / f"{self.stem}.facts{SPILL}", compression=None)
            if self.stage.spills_rows:
                self.spilled = spill.SpillWriter(self.scratch / f"{self.stem}.rows{SPILL}")

    def _read(self) -> Iterator[tuple[int, Batch]]:
        """The rows of the task, in batches, each with the number of its first row."""
        stage, mine = self.stage, self.account.operators[0]
        reading = Reading(
            columns=stage.columns,
            schema=stage.schema,
            batch_bytes=self.batch_bytes,
            fail=self._bad_row,
            keep_lines=stage.keep_lines,
            max_row_bytes=self.allowance.max_row_bytes,
            damaged=self.task.damaged,
            on_damage=self.corrupt.add,
            unreadable=self.task.unreadable,
            on_piece=self._at_piece,
        )
        batches = iter(stage.source.read(self.partition, reading))
        start, stop = self.task.start, self.task.end
        while stop is None or self.ordinal < stop:
            self.marker(self.ordinal, 0, self.reading_step)
            with self._measured(mine):
                batch = next(batches, None)
            if batch is None:
                self.exhausted = True
                return
            first = self.ordinal
            self.ordinal += len(batch)
            if first < start:
                self._skip(batch.select(slice(0, start - first)))
            if first < start or (stop is not None and self.ordinal > stop):
                end = None if stop is None else max(0, stop - first)
                batch, first = batch.select(slice(max(0, start - first), end)), max(start, first)
            if not len(batch):
                continue
            mine.rows_in += len(batch)
            mine.rows_out += len(batch)
            size = batch.table.column(LINE).nbytes if LINE in batch else batch.num_bytes
            mine.num_bytes += size
            self.account.read += len(batch)
            self.account.num_bytes += size
            yield first, batch

    def _at_piece(self, number: int) -> None:
        self.reading_step = -1 - number
        self.marker(self.ordinal, 0, self.reading_step)

    def _bad_row(self, failure: Failure) -> None:
        if self.stage.reads_again or self.task.stop is not None:
            return  # counted by the stage before, or with the last rows of the partition
        if self.task.max_rows is not None:
            self.bad_rows.append(failure)  # counted if this task turns out to read the last rows
        else:
            self._count_bad_row(failure)

    def _count_bad_row(self, failure: Failure) -> None:
        if failure.damaged_file is not None:
            self.account.damaged_files.setdefault(failure.damaged_file, failure.error)
        self.account.read += failure.rows
        source = self.account.operators[0]
        source.rows_in += failure.rows
        source.failed += failure.rows
        self._note_failure(failure)

    def _run_batch(self, first: int, batch: Batch) -> None:
        size = len(batch)
        self.source_schema = batch.table.schema
        numbers = np.arange(first, first + size)
        batch, numbers = self._apply_fates(batch, numbers)
        if self.task.poison and len(batch):
            sick = np.isin(numbers, list(self.task.poison))
            for row in np.flatnonzero(sick):
                self._fail_row(
                    batch, int(row), min(1, len(self.account.operators) - 1), self.task.poison[int(numbers[row])]
                )
            batch, numbers = batch.select(~sick), numbers[~sick]
        if self.task.careful:
            for number in range(len(batch)):
                one = slice(number, number + 1)
                self._run_rows(batch.select(one), numbers[one], int(numbers[number]), 1)
        else:
            self._run_rows(batch, numbers, first, size)

    def _run_rows(self, batch: Batch, numbers: np.ndarray, first: int, size: int) -> None:
        begin = 0
        self.in_progress = (numbers, batch.origin)
        if self.keeper is not None and len(batch):
            batch = self._measure(self.keeper, batch, numbers, first, size)
            begin = len(self.keeper.operators)
        self._run_steps(batch, begin, first, size)

    def _run_steps(self, batch: Batch, begin: int, first: int, size: int) -> None:
        """Run the operators from number `begin` on, and the end of the stage.

        If a step makes more than a batch should hold, its output continues in pieces, one after the other.
        """
        alive: np.ndarray | None = None
        for index, op in enumerate(self.stage.operators[begin:], start=begin):
            if not len(batch):
                return
            self.step = self.first_operator + index
            self.marker(first, size, self.step)
            if isinstance(op, Filter) and not op.score_only:
                batch, alive = self._filtered(op, batch, alive)
                continue
            pieces = regroup(self._made(op, _cut(batch, alive)), self.batch_bytes)
            alive = None
            batch = next(pieces, batch.select(slice(0, 0)))
            following = next(pieces, None)
            while following is not None:
                self._run_steps(batch, index + 1, first, size)
                self.step = self.first_operator + index
                batch, following = following, next(pieces, None)
        batch = _cut(batch, alive)
        if len(batch):
            self.step = len(self.account.operators) - 1
            self.marker(first, size, self.step)
            self._hand_on(batch)

    def _made(self, op: Operator, batch: Batch) -> Iterator[Batch]:
        """The output of a step, computed for as many rows at a time as make about one batch."""
        step = self.step
        creates_rows = isinstance(op, Expand) or (isinstance(op, Function) and not op.batch_wise)
        while len(batch):
            rows = self.growth.rows(step, batch, self.batch_bytes, creates_rows=creates_rows)
            part = batch if rows >= len(batch) else batch.select(slice(0, rows))
            self.step = step
            made = self._timed(op, part, partial(apply_step, op, types=self.types.setdefault(step, {})))
            self.growth.note(step, part.num_bytes, sum(piece.num_bytes for piece in made))
            yield from made
            batch = batch.select(slice(len(part), None))

    def _measure(self, keeper: ScoreKeeper, batch: Batch, numbers: np.ndarray, first: int, size: int) -> Batch:
        """Run the operators whose scores are kept. Rows that are dropped but still measured are not counted."""
        batch = keeper.begin(batch, numbers)
        if self.stage.rejects is None:
            batch = self._drop_early(keeper, batch)
        for index, op in enumerate(keeper.operators):
            if not len(batch):
                return batch
            self.step = self.first_operator + index
            self.marker(first, size, self.step)
            account = self.account.operators[self.step]
            account.rows_in -= keeper.num_dropped(batch)
            batch = joined(self._timed(op, batch, partial(keeper.apply, index)))
            account.rows_out -= keeper.num_dropped(batch)
        return keeper.end(batch)

    def _drop_early(self, keeper: ScoreKeeper, batch: Batch) -> Batch:
        """Drop the rows that stored scores decide against, counted as if they had reached their filter."""
        drops = keeper.dropped_by_stored_scores(batch)
        for index, reason, mask in drops:
            count = int(np.count_nonzero(mask))
            for account in self.account.operators[self.first_operator : self.first_operator + index]:
                account.rows_in += count
                account.rows_out += count
            account = self.account.operators[self.first_operator + index]
            account.rows_in += count
            account.dropped[reason] = account.dropped.get(reason, 0) + count
        return batch.select(~np.logical_or.reduce([mask for _, _, mask in drops])) if drops else batch

    def _hand_on(self, batch: Batch) -> None:
        if self.facts is not None:
            assert self.stage.end is not None
            self.account.kept += sum(map(len, self._timed(self.stage.end, batch, self._observe)))
            return
        if self.sink is not None:
            mine = self.account.operators[self.step]
            with self._measured(mine):
                self.sink.write(batch.table)
            mine.rows_in += len(batch)
            mine.rows_out += len(batch)
            mine.num_bytes += batch.num_bytes
        self.account.kept += len(batch)

    def _finish(self) -> Outcome | Segment:
        if self.exhausted:
            for failure in self.bad_rows:
                self._count_bad_row(failure)
        segment = Segment(self.scratch, self.account, failures=self.failures, observed=self.observed)
        if self.sink is not None:
            began = time.perf_counter()
            segment.shards = self.sink.close()
            if not segment.shards:
                read = self.source_schema or schema_read(self.stage.schema, self.stage.columns)
                types = {step - self.first_operator: known for step, known in self.types.items()}
                segment.schema = encode_schema(schema_after(self.stage.operators, read, types))
            self.account.operators[-1].seconds += time.perf_counter() - began
        if self.keeper is not None:
            self.keeper.close()
        if self.rejects is not None:
            segment.rejects = self.rejects.close()
        if self.facts is not None:
            segment.facts = self.facts.close()
        if self.spilled is not None:
            segment.rows = self.spilled.close()
        if self.task.is_whole:
            return publish(self.stage, self.task, [segment])
        if self.task.end != self.task.stop and not self.exhausted:
            segment.next_row = self.task.end
        return segment.moved(self.scratch.with_name(f"{self.stage.index}-{self.stem}-{self.task.start}"))

    def _side_stem(self) -> str:
        return f"{self.stem}-stage-{self.stage.index + 1}"

    # -------------------------------------------------------------------------------------------- one operator, one batch

    def _timed(self, op: Operator, batch: Batch, apply: Callable[[Batch], Applied]) -> list[Batch]:
        mine = self.account.operators[self.step]
        if self.stage.profile and not mine.rows_in:
            apply(batch)  # kernels are loaded on first use, which is not to be measured
        with self._measured(mine):
            made = self._isolating(self.step, batch, apply)
        mine.rows_in += len(batch)
        mine.rows_out += sum(map(len, made))
        mine.num_bytes += bytes_read(op, batch)
        return made

    def _filtered(self, op: Filter, batch: Batch, alive: np.ndarray | None) -> tuple[Batch, np.ndarray | None]:
        """Apply a filter; returns the batch and which of its rows are alive.

        Removing a few rows means copying all the others, so dropped rows stay in the batch, and are scored needlessly, until
        they are a good part of it.
        """
        if op.cost >= EXPENSIVE:
            batch, alive = _cut(batch, alive), None
        mine = self.account.operators[self.step]
        before = np.ones(len(batch), dtype=np.bool_) if alive is None else alive
        rows, num_bytes = int(np.count_nonzero(before)), bytes_read(op, batch, alive)
        if self.stage.profile and not mine.rows_in:
            filter_rows(op, batch, before)  # kernels are loaded on first use, which is not what is measured
        with self._measured(mine):
            found = None
            with suppress(Exception):  # raised again below, where rows are isolated
                found = filter_rows(op, batch, before)
            if found is None:
                batch = joined(self._isolating(self.step, _cut(batch, alive), partial(apply_step, op)))
                after = np.ones(len(batch), dtype=np.bool_)
            else:
                self._settle(self.step, found)
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

    @contextmanager
    def _measured(self, account: OperatorAccount) -> Iterator[None]:
        """Add the time the block takes, and its peak memory when profiling, to an account."""
        before = process.reset_peak() if self.stage.profile else 0
        began = time.perf_counter()
        yield
        account.seconds += time.perf_counter() - began
        if self.stage.profile:
            account.peak_bytes = max(account.peak_bytes, process.peak_bytes() - before)

    def _isolating(self, step: int, batch: Batch, apply: Callable[[Batch], Applied]) -> list[Batch]:
        """Apply a step; if that fails, apply it to each half, down to the single row that causes the error."""
        try:
            applied = apply(batch)
        except (OperatorError, MissingExtra):
            raise  # not caused by a row
        except Exception as error:
            if self.stage.on_error == "raise" or is_full_disk(error):
                raise
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f" ({Path(where.filename).name}:{where.lineno})"
            short = is_shortage(error)
            if short:
                self.account.splits += 1
                traceback.clear_frames(error.__traceback__)  # they hold what was made of the batch
                process.trim()
                if self.usage.is_full(batch.num_bytes) and not self.task.last_attempt:
                    raise
            if len(batch) == 1:
                self._fail_or_hand_back(batch, step, error, place, short=short)
                return [batch.select(slice(0, 0))]
        else:
            return [self._settle(step, applied)]
        middle = len(batch) // 2
        first = self._isolating(step, batch.select(slice(0, middle)), apply)
        second = self._isolating(step, batch.select(slice(middle, None)), apply)
        return first + second

    def _fail_or_hand_back(self, batch: Batch, step: int, error: Exception, place: str, *, short: bool) -> None:
        """Fail a row; for lack of memory only in the last attempt, in which it is alone in a new worker."""
        message = error.message if isinstance(error, TamisError) else error
        text = f"{type(error).__name__}: {message}".strip(": ")
        if short:
            text += f"; this row alone ({format_bytes(batch.num_bytes)}) needs more memory than a worker may hold"
            if not self.task.last_attempt:
                raise RowOverflow(*self._numbers_of(batch.origin, 0), text)
        self._fail_row(batch, 0, step, text + place)

    def _numbers_of(self, origin: Origin, row: int) -> tuple[int, int]:
        """(first, count) of the rows read that a row on its way may come from: those with its address."""
        numbers, read = self.in_progress
        place, position = origin.places[origin.place[row]], origin.position[row]
        same = np.array([name == place for name in read.places], dtype=np.bool_)[read.place]
        found = numbers[same & (read.position == position)]
        return int(found[0]), int(found[-1] - found[0] + 1)

    def _settle(self, step: int, applied: Applied) -> Batch:
        """Add what a step did to the account, and keep dropped rows if requested."""
        mine = self.account.operators[step]
        if self.stage.rejects is not None:
            for reason, mask in applied.verdicts:
                chosen = {name: values.filter(pa.array(mask)) for name, values in applied.scores.items()}
                self._reject(applied.given.select(mask), mine.name, reason, chosen)
        for reason, mask in applied.verdicts:
            mine.dropped[reason] = mine.dropped.get(reason, 0) + int(np.count_nonzero(mask))
        mine.created += applied.created
        return applied.batch

    def _reject(self, batch: Batch, step: str, reason: str, scores: dict[str, pa.Array]) -> None:
        if self.rejects is None:
            assert self.stage.rejects is not None
            self.rejects = self.stage.rejects.open_shard(self.scratch, self._side_stem(), pa.schema([]))
        self.rejects.write(rejected_rows(batch, step, reason, scores))

    # ------------------------------------------------------------------------------------------------------- gathering

    def _observe(self, batch: Batch) -> Applied:
        gather = self.stage.end
        assert isinstance(gather, Gather)
        assert self.facts is not None
        self.facts.write(facts_of(gather, gather.observe(view(gather, batch)), len(batch)))
        if self.spilled is not None:
            spill.write_rows(self.spilled, batch)
        self.observed += len(batch)
        return Applied(batch, batch)

    def _apply_fates(self, batch: Batch, numbers: np.ndarray) -> tuple[Batch, np.ndarray]:
        """Apply the decisions of the Gather before this stage. Rows that failed there were counted there."""
        if self.stage.fates_of is None:
            return batch, numbers
        known = self._known_to_have_failed(batch)
        if known is not None:
            self.account.read -= int(np.count_nonzero(known))
            self.account.operators[0].rows_in -= int(np.count_nonzero(known))
            self.account.operators[0].rows_out -= int(np.count_nonzero(known))
            batch, numbers = batch.select(~known), numbers[~known]
        if self.fates is None:
            before = Path(self.stage.work).parent / f"stage-{self.stage.index - 1}"
            self.fates = spill.read_fates(before, self.partition.index)
        began = time.perf_counter()
        here = slice(self.fated, self.fated + len(batch))
        self.fated += len(batch)
        drop, reasons, payload = self.fates[0][here], self.fates[1][here].cast(pa.string()), self.fates[2]
        verdicts = []
        if drop.any():
            for reason in dict.fromkeys(reasons.filter(pa.array(drop)).to_pylist()):
                same = pc.fill_null(pc.equal(reasons, reason), reason is None).to_numpy(zero_copy_only=False)
                verdicts.append((str(reason), drop & same))
        mine = self.account.operators[1]
        mine.rows_in += len(batch)
        batch, numbers = self._settle(1, dropped(batch, verdicts)), numbers[~drop]
        if payload is not None and len(batch):
            batch = rewritten(self.stage.fates_of, batch, payload[here].filter(pa.array(~drop)))
        mine.rows_out += len(batch)
        mine.seconds += time.perf_counter() - began
        return batch, numbers

    def _known_to_have_failed(self, batch: Batch) -> np.ndarray | None:
        if not self.task.gone:
            return None
        return np.array([address in self.task.gone for address in batch.origin.addresses()], dtype=np.bool_)

    def _skip(self, batch: Batch) -> None:
        """Pass over rows that another task processes."""
        if self.stage.fates_of is not None:
            known = self._known_to_have_failed(batch)
            self.fated += len(batch) - (0 if known is None else int(np.count_nonzero(known)))

    # ---------------------------------------------------------------------------------------------------------- failures

    def _fail_row(self, batch: Batch, row: int, step: int, error: str) -> None:
        mine = self.account.operators[step]
        if self.keeper is not None and self.keeper.is_dropped(batch, row):
            return  # it was only measured
        mine.failed += 1
        values = batch.select(slice(row, row + 1)).shown_rows()[0]
        line = values.get(LINE)
        shown = {name: value for name, value in values.items() if not name.startswith(HIDDEN)}
        content = line.rstrip(b"\r\n") if line is not None else shown
        self._note_failure(Failure(batch.origin.address(row), mine.name, error, content))

    def _note_failure(self, failure: Failure) -> None:
        self.failures.append(failure_record(failure))
        if failure.rows:  # the number of rows in a damaged file may be unknown
            self.errors.add(failure.step, failure.error, failure.address, failure.rows)
            self.account.errors = self.errors.entries
        if len(self.failures) % REPORT_FAILURES_EVERY == 0:  # a source may fail any number of rows before a batch
            self.progress(self.account.read, self.account.num_bytes, self.errors.entries)


def _cut(batch: Batch, alive: np.ndarray | None) -> Batch:
    """The rows of a batch that are alive; None means all."""
    return batch if alive is None else batch.select(alive)
