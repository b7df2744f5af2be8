"""The only loop that runs a stage over batches, whichever executor it serves.

    for each partition:
        Source.read -> [fates of a Gather] -> operators -> Sink | Gather.observe
             |                  |                 |
             +---- failed rows -+--- rejects -----+          each file complete before the outcome is told

A row that breaks an operator is isolated by halving the batch until the row stands alone; it then counts as failed, with
its address and its error, and its neighbours go on.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import HIDDEN, LINE, Batch, Failure
from tamis.errors import DiskFull, MissingExtra, OperatorError, SetupTooLarge, TamisError, is_full_disk, is_shortage
from tamis.executors.scores import ScoreKeeper, measured_operators
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
from tamis.mapped import SPILL
from tamis.memory import process, spill
from tamis.memory.governor import Allowance
from tamis.operators import Filter, Gather, Operator, Partition, Reading, Shard, ShardWriter, Sink, Source
from tamis.parameters import format_bytes
from tamis.report import Account, ErrorCount, ErrorCounts, OperatorAccount
from tamis.sinks.schemas import encode_schema
from tamis.store import INTERNAL, LINES, TABLE, Store, checksum_of

TRIM_EVERY_S = 10.0
"""What is free is given back to the system after each partition, and so often within one."""

REPORT_FAILURES_EVERY = 1_000

MOSTLY_ALIVE = 0.75
"""While this share of a batch is alive, the rest is not cut away."""

DEAR = 2.0
"""Filters of this cost look at no row in vain."""


@dataclass(frozen=True)
class Stage:
    """Operators fused in one worker, from a source to a sink, or to a Gather that observes."""

    index: int
    name: str
    source: Source
    operators: tuple[Operator, ...]
    end: Sink | Gather | None
    columns: tuple[str, ...] | None
    schema: pa.Schema
    batch_bytes: int
    fingerprint: str
    work: str
    """Local folder for what passes between stages."""
    store: Store
    fates_of: Gather | None = None
    """The Gather whose decision this stage applies first."""
    reads_again: bool = False
    """The source was read by the stage before already: bad rows are accounted for there."""
    spills_rows: bool = False
    """The next stage reads the rows from disk and not from the source."""
    sink_schema: pa.Schema | None = None
    """What the sink may expect of the columns of the source: those that no step removed."""
    rejects: Sink | None = None
    on_error: str = "isolate"
    keep_lines: bool = False
    """Rows are written as the lines they were read from."""
    scores: str | None = None
    """Keep what filters measure under this identity, and use what an earlier run kept under it."""
    profile: bool = False
    """Measure the peak of each operator, which takes time."""


@dataclass
class Task:
    """A partition to run, and what earlier attempts taught: rows that kill, and where to go one by one."""

    partition: Partition
    poison: dict[int, str] = field(default_factory=dict)
    """Row number in the partition -> how the worker died on it."""
    careful: tuple[int, int] | None = None
    """Rows to process one at a time, to find the one that kills."""
    allowance: Allowance | None = None
    """How much memory to use; the stage's batch size if not told."""
    gone: frozenset[str] = frozenset()
    """Addresses of rows that the stage before failed, met again because the source is read again."""


@dataclass
class Outcome:
    """What became of a partition."""

    shards: list[Shard]
    account: Account
    extra: dict[str, Any] = field(default_factory=dict)


class Marker(Protocol):
    """Remembers, outside the process, what it is doing; read by the driver after a death."""

    def __call__(self, first_row: int, rows: int, step: int) -> None: ...


class Progress(Protocol):
    """Called after each batch with the rows and bytes read so far, and the errors of rows that failed."""

    def __call__(self, rows: int, num_bytes: int, errors: Sequence[ErrorCount]) -> None: ...


def no_marker(first_row: int, rows: int, step: int) -> None:
    """For executors whose workers cannot die alone."""


class StageRunner:
    """A stage with its operators set up, ready for partitions."""

    def __init__(self, stage: Stage, marker: Marker = no_marker) -> None:
        self.stage = stage
        self.marker = marker
        self.setup_bytes: list[int] = []
        """What each step took when it was set up."""
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

    def run(self, task: Task, progress: Progress) -> Outcome:
        """Process one partition; its files are complete and in place when this returns."""
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
                        hint="make room and run the same command again: what is committed is kept",
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
        self.ordinal = 0  # rows read so far
        self.fated = 0  # rows whose fate was looked up so far
        self.fates: tuple[np.ndarray, pa.Array, pa.Array | None] | None = None
        self.observed = 0  # rows handed to the Gather at the end so far
        self.failures: list[dict[str, Any]] = []
        self.errors = ErrorCounts()
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
        if self.stage.scores is not None:
            head = self.stage.operators[: measured_operators(self.stage.operators)]
            self.keeper = ScoreKeeper(self.stage.store, self.stage.scores, self.partition, head, self.scratch)
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is not None:
            for writer in (self.sink, self.rejects, self.facts, self.spilled):
                with suppress(Exception):  # files that are removed below; the error that led here is what counts
                    if writer is not None:
                        writer.close()
        for file in sorted(self.scratch.iterdir()):
            file.unlink()
        self.scratch.rmdir()

    # ---------------------------------------------------------------------------------------------- from read to commit

    def all(self) -> Outcome:
        began = time.perf_counter()
        before = process.reset_peak()
        self._open_end()
        trimmed = began
        for batch in self._read():
            self._run_batch(batch)
            self.progress(self.account.read, self.account.num_bytes, self.errors.entries)
            if time.perf_counter() - trimmed > TRIM_EVERY_S:  # a file that cannot be entered in the middle takes long
                process.trim()
                trimmed = time.perf_counter()
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
            self.sink = end.open(self.scratch, self.stem, self.stage.schema if left is None else left)
        elif isinstance(end, Gather):
            # Not compressed, so that a Gather can map the file and read single columns and rows of it.
            self.facts = spill.SpillWriter(self.scratch / f"{self.stem}.facts{SPILL}", compression=None)
            if self.stage.spills_rows:
                self.spilled = spill.SpillWriter(self.scratch / f"{self.stem}.rows{SPILL}")

    def _read(self) -> Iterator[Batch]:
        stage, mine = self.stage, self.account.operators[0]
        allowance = self.task.allowance or Allowance(stage.batch_bytes)
        reading = Reading(
            columns=stage.columns,
            schema=stage.schema,
            batch_bytes=allowance.batch_bytes,
            fail=self._bad_row,
            keep_lines=stage.keep_lines,
            max_row_bytes=allowance.max_row_bytes,
        )
        batches = iter(stage.source.read(self.partition, reading))
        while True:
            self.marker(self.ordinal, 0, 0)
            with self._measured(mine):
                batch = next(batches, None)
            if batch is None:
                return
            mine.rows_in += len(batch)
            mine.rows_out += len(batch)
            size = batch.table.column(LINE).nbytes if LINE in batch else batch.num_bytes
            mine.num_bytes += size
            self.account.read += len(batch)
            self.account.num_bytes += size
            yield batch

    def _bad_row(self, failure: Failure) -> None:
        if self.stage.reads_again:
            return
        if failure.damaged_file is not None:
            self.account.damaged_files.setdefault(failure.damaged_file, failure.error)
        self.account.read += failure.rows
        source = self.account.operators[0]
        source.rows_in += failure.rows
        source.failed += failure.rows
        self._note_failure(failure)

    def _run_batch(self, batch: Batch) -> None:
        first, size = self.ordinal, len(batch)
        self.ordinal += size
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
        careful = self.task.careful
        if careful and first < careful[1] and first + size > careful[0]:
            for number in range(len(batch)):
                one = slice(number, number + 1)
                self._run_rows(batch.select(one), numbers[one], int(numbers[number]), 1)
        else:
            self._run_rows(batch, numbers, first, size)

    def _run_rows(self, batch: Batch, numbers: np.ndarray, first: int, size: int) -> None:
        begin = 0
        if self.keeper is not None and len(batch):
            batch = self._measure(self.keeper, batch, numbers, first, size)
            begin = len(self.keeper.operators)
        alive: np.ndarray | None = None
        for index, op in enumerate(self.stage.operators[begin:], start=begin):
            if not len(batch):
                return
            self.step = self.first_operator + index
            self.marker(first, size, self.step)
            if isinstance(op, Filter) and not op.score_only:
                batch, alive = self._filtered(op, batch, alive)
            else:
                batch, alive = _cut(batch, alive), None
                batch = self._timed(op, batch, partial(apply_step, op, types=self.types.setdefault(index, {})))
        batch = _cut(batch, alive)
        if len(batch):
            self.step = len(self.account.operators) - 1
            self.marker(first, size, self.step)
            self._hand_on(batch)

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
            batch = self._timed(op, batch, partial(keeper.apply, index))
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
            batch = self._timed(self.stage.end, batch, self._observe)
            self.account.kept += len(batch)
            return
        if self.sink is not None:
            mine = self.account.operators[self.step]
            with self._measured(mine):
                self.sink.write(batch.table)
            mine.rows_in += len(batch)
            mine.rows_out += len(batch)
            mine.num_bytes += batch.num_bytes
        self.account.kept += len(batch)

    def _finish(self) -> Outcome:
        shards: list[Shard] = []
        extra: dict[str, Any] = {"rejects": self.stage.rejects is not None}
        if self.sink is not None:
            began = time.perf_counter()
            for shard in self.sink.close():
                shards.append(self._publish(shard, shard.name))
            if not shards:
                read = self.source_schema or schema_read(self.stage.schema, self.stage.columns)
                extra["schema"] = encode_schema(schema_after(self.stage.operators, read, self.types))
            self.account.operators[-1].seconds += time.perf_counter() - began
        if self.keeper is not None:
            self.keeper.close()
        if self.rejects is not None:
            for shard in self.rejects.close():
                shards.append(self._publish_side(shard, "rejects", TABLE))
        if self.failures:
            shard = spill.write_failures(self.scratch / f"{self._side_stem()}{LINES}", self.failures)
            shards.append(self._publish_side(shard, "failed", LINES))
        if self.facts is not None:
            gone = [failure["address"] for failure in self.failures if failure["step"] != self.stage.source.name]
            extra |= {"observed": self.observed, "files": self._publish_spill(), "gone": gone}
        return Outcome(shards, self.account, extra)

    def _side_stem(self) -> str:
        return f"{self.stem}-stage-{self.stage.index + 1}"

    def _publish_side(self, shard: Shard, folder: str, suffix: str) -> Shard:
        name = f"{INTERNAL}/{folder}/{shard.name.partition('.')[0]}{suffix}"
        return self._publish(shard, name)

    def _publish(self, shard: Shard, name: str) -> Shard:
        file = self.scratch / shard.name
        checksum = checksum_of(file)  # read from the page cache: the file was just written
        self.stage.store.publish(file, name)
        return replace(shard, name=name, checksum=checksum)

    def _publish_spill(self) -> list[str]:
        names = []
        work = Path(self.stage.work)
        work.mkdir(parents=True, exist_ok=True)
        for writer in (self.facts, self.spilled):
            for file in writer.close() if writer is not None else []:
                file.replace(work / file.name)
                names.append(file.name)
        return names

    # -------------------------------------------------------------------------------------------- one operator, one batch

    def _timed(self, op: Operator | None, batch: Batch, apply: Callable[[Batch], Applied]) -> Batch:
        assert op is not None
        mine = self.account.operators[self.step]
        if self.stage.profile and not mine.rows_in:
            apply(batch)  # kernels are loaded on first use, which is not what is measured
        with self._measured(mine):
            result = self._isolating(self.step, batch, apply)
        mine.rows_in += len(batch)
        mine.rows_out += len(result)
        mine.num_bytes += bytes_read(op, batch)
        return result

    def _filtered(self, op: Filter, batch: Batch, alive: np.ndarray | None) -> tuple[Batch, np.ndarray | None]:
        """A filter's verdict, and which rows are alive after it.

        To cut a few rows out means to copy all the others, so dropped rows stay where they are, and are looked at in vain,
        until they are a good part of the batch.
        """
        if op.cost >= DEAR:
            batch, alive = _cut(batch, alive), None
        mine = self.account.operators[self.step]
        before = np.ones(len(batch), dtype=np.bool_) if alive is None else alive
        rows, num_bytes = int(np.count_nonzero(before)), bytes_read(op, batch, alive)
        if self.stage.profile and not mine.rows_in:
            filter_rows(op, batch, before)  # kernels are loaded on first use, which is not what is measured
        with self._measured(mine):
            found = None
            with suppress(Exception):  # found again below, where it is dealt with row by row
                found = filter_rows(op, batch, before)
            if found is None:
                batch = self._isolating(self.step, _cut(batch, alive), partial(apply_step, op))
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
        """Enter the time something takes into its account and, when profiling, the memory."""
        before = process.reset_peak() if self.stage.profile else 0
        began = time.perf_counter()
        yield
        account.seconds += time.perf_counter() - began
        if self.stage.profile:
            account.peak_bytes = max(account.peak_bytes, process.peak_bytes() - before)

    def _isolating(self, step: int, batch: Batch, apply: Callable[[Batch], Applied]) -> Batch:
        """`apply(batch)`; if that fails, each half apart, down to the single row that is to blame."""
        try:
            applied = apply(batch)
        except (OperatorError, MissingExtra):
            raise  # it is no row's fault
        except Exception as error:
            if self.stage.on_error == "raise" or is_full_disk(error):
                raise
            short = is_shortage(error)
            if short:
                self.account.splits += 1
                process.trim()
            if len(batch) == 1:
                where = traceback.extract_tb(error.__traceback__)[-1]
                message = error.message if isinstance(error, TamisError) else error
                text = f"{type(error).__name__}: {message}".strip(": ")
                if short:
                    text += f"; this row alone ({format_bytes(batch.num_bytes)}) is more than a worker can process"
                self._fail_row(batch, 0, step, f"{text} ({Path(where.filename).name}:{where.lineno})")
                return batch.select(slice(0, 0))
        else:
            return self._settle(step, applied)
        middle = len(batch) // 2
        halves = [
            self._isolating(step, batch.select(slice(0, middle)), apply),
            self._isolating(step, batch.select(slice(middle, None)), apply),
        ]
        halves = [half for half in halves if len(half)] or halves[:1]
        return halves[0] if len(halves) == 1 else Batch.concat(halves)

    def _settle(self, step: int, applied: Applied) -> Batch:
        """Enter into the account what a step did, and keep the rejected rows if that was asked for."""
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
            self.rejects = self.stage.rejects.open(self.scratch, self._side_stem(), pa.schema([]))
        rows = len(batch)
        table = batch.table
        if LINE in batch:
            line = pc.utf8_rtrim(batch[LINE].cast(pa.string()), "\r\n")
            table = table.append_column("_line", line)
        table = table.drop_columns([name for name in table.column_names if name.startswith(HIDDEN)])
        marks = {
            "_reason": pa.array([reason] * rows),
            "_step": pa.array([step] * rows),
            "_address": pa.array(batch.origin.addresses()),
            # As text, since each step has scores of its own and a file has one set of columns.
            "_scores": pa.array(
                [json.dumps(row, default=str) for row in pa.table(scores).to_pylist()] if scores else [None] * rows,
                pa.string(),
            ),
        }
        for name, values in marks.items():
            table = table.append_column(name, values)
        self.rejects.write(table)

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
        """Drop what the Gather before this stage decided against; rows that failed there are known already."""
        if self.stage.fates_of is None:
            return batch, numbers
        if self.task.gone:
            known = np.array([address in self.task.gone for address in batch.origin.addresses()], dtype=np.bool_)
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
        row: object = failure.row
        if isinstance(failure.row, bytes):
            try:
                row = failure.row.decode()
            except UnicodeDecodeError:
                row = {"base64": b64encode(failure.row).decode()}
        entry = {"address": failure.address, "step": failure.step, "error": failure.error, "row": row}
        if failure.rows != 1:
            entry["rows"] = failure.rows
        self.failures.append(entry)
        if failure.rows:  # of a damaged file nobody may know the number of rows
            self.errors.add(failure.step, failure.error, failure.address, failure.rows)
            self.account.errors = self.errors.entries
        if len(self.failures) % REPORT_FAILURES_EVERY == 0:  # a source may fail any number of rows before a batch
            self.progress(self.account.read, self.account.num_bytes, self.errors.entries)


def _cut(batch: Batch, alive: np.ndarray | None) -> Batch:
    """The rows that are alive; None means all."""
    return batch if alive is None else batch.select(alive)
