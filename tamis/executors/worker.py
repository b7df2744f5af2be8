"""The loop that runs a stage over the batches of a partition, in every executor.

for each task:
    Reader -> Chain of operators -> Writer
       |            |
       +-- Records: counts, failed rows, rejects          each file complete before the outcome is reported
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from tamis.context import Context
from tamis.errors import DiskFull, TamisError, is_full_disk
from tamis.exchange import Attempt, attempt
from tamis.executors.chain import Chain
from tamis.executors.opening import OpenStage
from tamis.executors.packets import PacketWriter, Stream
from tamis.executors.reader import Reader
from tamis.executors.records import Records
from tamis.executors.reuse import RowsMoved, WrittenRows, earlier_rows
from tamis.executors.scores import ScoreKeeper, measured_operators
from tamis.executors.segments import Segment, Staging
from tamis.executors.tasks import CorruptFrames, Marker, Stage, Task
from tamis.executors.writer import Writer
from tamis.memory import process, spill
from tamis.memory.governor import Allowance
from tamis.report import Account, ErrorCount
from tamis.store import TABLE

TRIM_EVERY_S = 10.0
"""How often free memory is returned to the system within a partition."""


class Progress(Protocol):
    """Called after each batch with the rows and bytes read so far, and the errors of rows that failed."""

    def __call__(self, rows: int, num_bytes: int, errors: Sequence[ErrorCount]) -> None: ...


def no_marker(first_row: int, rows: int, step: int) -> None:
    """For executors that run in the driver's process."""


class StageRunner:
    """A stage with its steps opened, ready for partitions."""

    def __init__(self, stage: Stage, marker: Marker = no_marker, context: Context | None = None) -> None:
        self.stage = stage
        self.marker = marker
        self.opened = OpenStage(stage, context)

    def close(self) -> None:
        self.opened.close()

    def run(self, task: Task, progress: Progress, stream: Stream | None = None) -> Segment:
        """Process a partition, or some of its rows, as one attempt. The driver puts the files in place.

        A stage that hands on its rows reports them to `stream`, and returns a segment with what is left to report.
        """
        with attempt() as this, _TaskRun(self.opened, task, this, self.marker, progress, stream) as run:
            source, *others = self.opened.taken_bytes
            run.records.of(0).setup_bytes = source
            for account, taken in zip(run.records.account.operators[self.stage.first_operator :], others, strict=True):
                account.setup_bytes = taken
            try:
                return run.all()
            except RowsMoved:
                run.abandon()  # tried again below
            except OSError as error:
                if is_full_disk(error):
                    raise DiskFull(
                        f"the disk is full while writing {self.stage.store.root}",
                        hint="free some space and rerun the same command to resume; committed work is kept",
                    ) from error
                raise
        return self.run(replace(task, earlier=None), progress)


class _TaskRun:
    """One task on its way through a stage."""

    def __init__(
        self, opened: OpenStage, task: Task, this: Attempt, marker: Marker, progress: Progress, stream: Stream | None
    ) -> None:
        stage = opened.stage
        self.stage, self.task, self.progress, self.stream = stage, task, progress, stream
        self.stem = spill.stem(task.partition.index)
        self.staging = Staging.of(stage, self.stem, this)
        self.scratch = self.staging.folder
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.keeper: ScoreKeeper | None = None
        self.written: WrittenRows | None = None
        if stage.scores is not None and (task.is_whole or stage.in_group):
            head = len(stage.operators) if stage.measures_on else measured_operators(stage.operators)
            measured = zip(stage.operators[:head], opened.operators[:head], strict=True)
            self.written = WrittenRows() if stage.reuse is not None and not stage.in_group else None
            self.keeper = ScoreKeeper(
                stage.store,
                stage.scores,
                task.partition,
                measured,
                self.scratch,
                numbers_rows=self.written is not None,
                before=stage.before if stage.in_group else None,
                measures_on=stage.measures_on,
            )
        self.earlier = earlier_rows(opened, task, self.keeper, self.scratch)
        allowance = task.allowance or Allowance(stage.batch_bytes)
        self.records = Records(stage, self.stem, self.staging, self._report, self.written, self.keeper)
        self.reader = Reader(opened, task, self.scratch, self.records, marker, allowance, self.earlier)
        self.writer: Writer | PacketWriter
        if stage.hands_on:
            assert task.emission is not None
            assert stream is not None
            self.writer = PacketWriter(task.emission, stream)
        else:
            self.writer = Writer(
                opened, self.stem, self.scratch, self.records, self.written, self.earlier, allowance.batch_bytes
            )
        self.chain = Chain(opened, task, self.records, marker, self.writer, allowance.batch_bytes, self.keeper)
        self.chain.types = {step: dict(known) for step, known in task.types.items()}
        if self.keeper is not None and stage.in_group:
            self.keeper.types = self.chain.types

    def __enter__(self) -> _TaskRun:
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is not None:
            self.abandon()

    def abandon(self) -> None:
        """Remove the files of this attempt."""
        for abandon in (self.reader.abandon, self.writer.abandon, self.records.abandon, self.staging.discard):
            with suppress(Exception):  # another error is on its way
                abandon()

    def all(self) -> Segment:
        self.began = trimmed = time.perf_counter()
        self.before = process.reset_peak()
        if self.stage.only_counts and self.reader.count_decided():
            self._report()
            return self._finish()
        for rows in self.reader:
            self.chain.run(rows)
            self._report()
            if isinstance(self.writer, PacketWriter) and self.writer.is_safe() and not self.reader.corrupt:
                self._report_safe_point(rows.first + rows.size, self.writer)
            if time.perf_counter() - trimmed > TRIM_EVERY_S:  # a file that cannot be split takes long
                process.trim()
                trimmed = time.perf_counter()
        if self.reader.corrupt:
            raise CorruptFrames(frozenset(self.reader.corrupt))
        return self._finish()

    def _close_account(self, account: Account) -> None:
        account.seconds = time.perf_counter() - self.began
        self.began = time.perf_counter()
        peaks = [op.peak_bytes for op in account.operators]  # measuring each step resets the peak of the whole
        account.peak_memory_bytes = max(0, process.peak_bytes() - self.before, *peaks)
        if not account.balances:
            raise TamisError(f"the account of {self.stem} does not balance: {account}")

    def _report_safe_point(self, next_row: int, writer: PacketWriter) -> None:
        segment = self.records.cut()
        segment.next_row, segment.skip, segment.waited_s = next_row, writer.skip, writer.waited_s
        segment.types = self.chain.known_types()
        writer.waited_s = 0.0
        self._close_account(segment.account)
        assert self.stream is not None
        self.stream.safe(segment)

    def _report(self) -> None:
        account = self.records.account
        self.progress(account.read, account.num_bytes, self.records.errors.entries)

    def _finish(self) -> Segment:
        self.reader.close()
        if isinstance(self.writer, PacketWriter):
            return self._handed_on(self.writer)
        segment = Segment(self.staging, self.records.account)
        if self.earlier is not None:
            segment.in_place = [*self.writer.copy_earlier(), *self.records.copy_rejects(self.earlier)]
            self.earlier.count_into(self.records.account, self.stage.first_operator)
        self.writer.close(segment, self.reader.schema, self.chain.types)
        if self.keeper is not None:
            segment.scores = self.keeper.close()
        self.records.close(segment)
        if self.written is not None:
            self.written.regular = self.reader.regular
            scores = self.keeper.name if self.keeper is not None else ""
            segment.written = [self.written.write(self.scratch / f"written{TABLE}", self.stage.fingerprint, scores)]
        segment.stage_files()
        self._close_account(segment.account)
        task = self.task
        if task.end != task.stop and not self.reader.exhausted:
            segment.next_row = task.end
        return segment

    def _handed_on(self, writer: PacketWriter) -> Segment:
        writer.close(Segment(self.staging, self.records.account), None, {})
        segment = self.records.cut()
        shutil.rmtree(self.scratch, ignore_errors=True)
        self._close_account(segment.account)
        segment.skip, segment.types, segment.waited_s = writer.skip, self.chain.known_types(), writer.waited_s
        if self.task.end != self.task.stop and not self.reader.exhausted:
            segment.next_row = self.task.end
        return segment
