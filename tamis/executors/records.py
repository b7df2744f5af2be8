"""What a worker records about the rows of a task: counts per step, failed rows, and dropped rows if they are kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from tamis.batch import HIDDEN, LINE, Batch, Failure
from tamis.executors.reuse import EarlierRows, WrittenRows
from tamis.executors.scores import ROW, ScoreKeeper
from tamis.executors.segments import Segment, Staging
from tamis.executors.side_outputs import FailureLog, failure_record, rejected_rows
from tamis.executors.steps import Applied
from tamis.executors.tasks import Stage
from tamis.memory import process
from tamis.operators import Shard, ShardWriter
from tamis.report import Account, ErrorCounts, OperatorAccount
from tamis.store import LINES

REPORT_FAILURES_EVERY = 1_000


class Records:
    """The account, the failed rows and the rejects of one task."""

    def __init__(
        self,
        stage: Stage,
        stem: str,
        staging: Staging,
        on_failures: Callable[[], None],
        written: WrittenRows | None = None,
        keeper: ScoreKeeper | None = None,
    ) -> None:
        self._keeper = keeper
        self._stage, self._staging, self._on_failures = stage, staging, on_failures
        self._written, self._cuts = written, 0
        self._side_stem = f"{stem}-stage-{stage.index + 1}"
        self._begin()

    def _begin(self) -> None:
        self.account = Account(operators=[OperatorAccount(op.name, op.kind) for op in self._stage.steps])
        self._failed = FailureLog(self._staging.folder / f"{self._side_stem}{LINES}")
        self.errors = ErrorCounts()
        self._rejects: ShardWriter | None = None

    def cut(self) -> Segment:
        """What was recorded since the last cut, as a segment with a folder of its own; recording starts again with nothing."""
        self._cuts += 1
        segment = Segment(self._staging.another(self._cuts), self.account)
        self.close(segment)
        if self._keeper is not None:
            segment.scores = self._keeper.close()
        files = [*segment.rejects, *segment.failed, *segment.scores]
        if files:
            segment.staging.folder.mkdir(exist_ok=True)
            for shard in files:
                (self._staging.folder / shard.name).replace(segment.staging.folder / shard.name)
            segment.stage_files()
        self._begin()
        return segment

    def of(self, step: int) -> OperatorAccount:
        return self.account.operators[step]

    @contextmanager
    def measured(self, step: int, runner: Any = None) -> Iterator[None]:
        """Add the time the block takes, its peak memory when profiling, and what its runner counts to the account of a step."""
        account = self.of(step)
        before = process.reset_peak() if self._stage.profile else 0
        began = time.perf_counter()
        yield
        account.seconds += time.perf_counter() - began
        if self._stage.profile:
            account.peak_bytes = max(account.peak_bytes, process.peak_bytes() - before)
        take_counts = getattr(runner, "take_counts", None)
        if take_counts is not None:
            account.count(take_counts())
        take_limits = getattr(runner, "take_limits", None)
        if take_limits is not None:
            self.account.limits.update(take_limits())

    def settle(self, step: int, applied: Applied) -> Batch:
        """Add what a step did to the account, and keep dropped rows if requested."""
        mine = self.of(step)
        if self._stage.rejects is not None:
            for reason, mask in applied.verdicts:
                chosen = {name: values.filter(pa.array(mask)) for name, values in applied.scores.items()}
                self._reject(applied.given.select(mask), step, reason, chosen)
        for reason, mask in applied.verdicts:
            mine.dropped[reason] = mine.dropped.get(reason, 0) + int(np.count_nonzero(mask))
        mine.created += applied.created
        return applied.batch

    def _reject(self, batch: Batch, step: int, reason: str, scores: dict[str, pa.Array]) -> None:
        self._rejects_writer().write(rejected_rows(batch, self.of(step).name, reason, scores))
        if self._written is not None:
            self._written.reject(batch[ROW].to_numpy(), step - self._stage.first_operator)

    def _rejects_writer(self) -> ShardWriter:
        if self._rejects is None:
            assert self._stage.rejects is not None
            self._rejects = self._stage.rejects.open_shard(self._staging.folder, self._side_stem, pa.schema([]))
        return self._rejects

    def copy_rejects(self, earlier: EarlierRows) -> list[Shard]:
        """Copy the rejects of an earlier run that hold; or return their files, if they stay as they are."""
        if self._stage.rejects is None:
            return []
        assert self._written is not None
        if self._rejects is None and earlier.rejects_hold:
            self._written.reject(earlier.rejected, earlier.steps)
            return earlier.reject_shards
        for numbers, steps, rows in earlier.reject_rows():
            self._rejects_writer().write(rows)
            self._written.reject(numbers, steps)
        return []

    def fail_row(self, batch: Batch, row: int, step: int, error: str) -> None:
        """Record a row that an operator could not process."""
        mine = self.of(step)
        mine.failed += 1
        values = batch.select(slice(row, row + 1)).shown_rows()[0]
        line = values.get(LINE)
        shown = {name: value for name, value in values.items() if not name.startswith(HIDDEN)}
        content = line.rstrip(b"\r\n") if line is not None else shown
        self._note(Failure(batch.origin.address(row), mine.name, error, content))

    def fail_unread(self, failure: Failure) -> None:
        """Record rows that could not be read."""
        if failure.damaged_file is not None:
            self.account.damaged_files.setdefault(failure.damaged_file, failure.error)
        self.account.read += failure.rows
        source = self.of(0)
        source.rows_in += failure.rows
        source.failed += failure.rows
        self._note(failure)

    def _note(self, failure: Failure) -> None:
        self._failed.write(failure_record(failure))
        if failure.rows:  # the number of rows in a damaged file may be unknown
            self.errors.add(failure.step, failure.error, failure.address, failure.rows)
            self.account.errors = self.errors.entries
        if self._failed.count % REPORT_FAILURES_EVERY == 0:  # a source may fail any number of rows before a batch
            self._on_failures()

    def close(self, segment: Segment) -> None:
        """Complete the files, and name them in `segment`."""
        if (file := self._failed.close()) is not None:
            segment.failed = [Shard(file.name, self._failed.count, file.stat().st_size)]
            if self._stage.gathers and not self._stage.spills_rows:
                source = self._stage.source.name
                segment.gone = [each["address"] for each in self._failed.records() if each["step"] != source]
        if self._rejects is not None:
            segment.rejects = self._rejects.close()

    def abandon(self) -> None:
        """Close the files of a task that failed; they are about to be removed."""
        self._failed.close()
        if self._rejects is not None:
            self._rejects.close()
