"""Reuse what a run with other thresholds wrote: copy rows that are kept again, and process only rows that are not in its files.

    .tamis/written/part-000000-stage-1.table     Parquet; the number of each row in the shard, then of each rejected row
                                                 together with the filter that dropped it

                     stored scores + new thresholds
                                 |
    row, before -> now           v
    kept -> kept                 copied from the shard; if it holds these rows and no others, it stays as it is
    kept -> dropped              left out; with rejects, read from the source and processed up to the filter that drops it
    dropped -> kept              read from the source, processed, and merged with the shard in source order
    dropped -> dropped           counted; with rejects, copied with the new reason, or processed if another filter drops it now
    without scores               it failed before: processed again

A worker removes the file of row numbers before it replaces any other file of the partition, and writes the new one after them.
After a crash in between, row numbers and files therefore never differ: without the row numbers nothing is reused.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tamis.batch import Batch, Failure
from tamis.executors.opening import OpenStage
from tamis.executors.scores import ScoreKeeper
from tamis.executors.steps import schema_after, schema_read
from tamis.executors.tasks import Stage, Task
from tamis.ledger import Commit
from tamis.looking.scores import KEPT, ROW, SCORES_FILE, WRITTEN
from tamis.media import has_media
from tamis.operators import CopyingWriter, Filter, Map, Partition, Shard, ShardWriter, Sink, digest
from tamis.report import Account
from tamis.sinks.schemas import conform, decode_schema, merge_schemas, plain
from tamis.store import INTERNAL, Store, checksum_of, text_checksum

UNKNOWN = -2
"""In place of the number of the filter that dropped a row: it is in no file, or has no scores."""

_REGULAR, _FINGERPRINT = b"regular", b"fingerprint"


class RowsMoved(Exception):
    """The source gives other rows than before, for example because another memory limit fails fewer of them."""


def reuse_key(stage: Stage, partition: Partition) -> str | None:
    """Equal for two commits if they differ in thresholds at most; None if nothing can be reused."""
    return None if stage.reuse is None else digest([stage.reuse, partition.identity])


# ------------------------------------------------------------------------------------------------------ rows that are written


@dataclass
class WrittenRows:
    """The numbers of the rows of a partition that are written to its shard and to its rejects, in the order of these files."""

    kept: list[np.ndarray] = field(default_factory=list)
    rejected: list[np.ndarray] = field(default_factory=list)
    steps: list[np.ndarray] = field(default_factory=list)
    """For each rejected row, the number of the filter that dropped it."""
    regular: bool = True
    """Whether all rows have the columns and types that the plan expects. Then a few rows can be read without the others."""

    def reject(self, numbers: np.ndarray, step: int | np.ndarray) -> None:
        self.rejected.append(numbers)
        self.steps.append(np.broadcast_to(np.asarray(step, np.int16), numbers.shape))

    def write(self, file: Path, fingerprint: str, scores: str = "") -> Shard:
        """Write the numbers to a file that names the file of scores with the same numbers."""
        kept, rejected = _joined(self.kept, np.int64), _joined(self.rejected, np.int64)
        steps = np.concatenate([np.full(len(kept), KEPT, np.int16), _joined(self.steps, np.int16)])
        table = pa.table({"row": np.concatenate([kept, rejected]), "step": steps})
        # With the fingerprint, files that different thresholds led to have different checksums.
        marks = {_REGULAR: str(self.regular), _FINGERPRINT: fingerprint, SCORES_FILE: scores}
        pq.write_table(
            table.replace_schema_metadata(marks),
            file,
            compression="zstd",
            use_dictionary=["step"],
            column_encoding={"row": "DELTA_BINARY_PACKED"},
        )
        return Shard(file.name, len(steps), file.stat().st_size)


def _joined(parts: Sequence[np.ndarray], kind: type) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0, kind)


class NumberedShards:
    """A writer of rows that come with their numbers in the column `ROW`. Merges them with rows of an earlier shard."""

    def __init__(self, writer: ShardWriter, written: WrittenRows, earlier: EarlierRows | None) -> None:
        self._writer, self._written, self._earlier = writer, written, earlier
        self._old: _OldRows | None = None

    def write(self, table: pa.Table) -> None:
        numbers, table = table.column(ROW).to_numpy(), table.drop_columns([ROW])
        if self._earlier is None:
            self._writer.write(table)
            self._written.kept.append(numbers)
            return
        copying: CopyingWriter = self._writer  # type: ignore[assignment]
        self._merge(numbers, copying.as_stored(table))

    def copy_rest(self) -> list[Shard]:
        """Copy the rows of the earlier shard that follow the last row written; or return that shard if it stays as it is."""
        assert self._earlier is not None
        if self._old is None and self._earlier.kept_again.all():
            self._written.kept.append(self._earlier.kept)
            return self._earlier.shards
        for numbers, rows in self._old_rows().all():
            self._append(numbers, rows)
        return []

    def close(self) -> list[Shard]:
        return self._writer.close()

    def _old_rows(self) -> _OldRows:
        if self._old is None:
            assert self._earlier is not None
            self._old = _OldRows(self._earlier.shard_rows())
        return self._old

    def _merge(self, numbers: np.ndarray, rows: pa.Table) -> None:
        for old_numbers, old in self._old_rows().before(int(numbers[-1])):
            here = int(np.searchsorted(numbers, old_numbers[-1]))
            self._append(*_in_order((old_numbers, old), (numbers[:here], rows.slice(0, here))))
            numbers, rows = numbers[here:], rows.slice(here)
        self._append(numbers, rows)

    def _append(self, numbers: np.ndarray, rows: pa.Table) -> None:
        copying: CopyingWriter = self._writer  # type: ignore[assignment]
        copying.append(rows)
        self._written.kept.append(numbers)


def _in_order(one: tuple[np.ndarray, pa.Table], other: tuple[np.ndarray, pa.Table]) -> tuple[np.ndarray, pa.Table]:
    """Rows of both, by row number."""
    if not len(other[0]):
        return one
    numbers = np.concatenate([one[0], other[0]])
    order = np.argsort(numbers)
    schema = merge_schemas([plain(one[1].schema), plain(other[1].schema)])
    both = pa.concat_tables([conform(one[1], schema), conform(other[1], schema)])
    return numbers[order], both.take(pa.array(order))


class _OldRows:
    """Rows of an earlier shard with their numbers, taken in order."""

    def __init__(self, parts: Iterator[tuple[np.ndarray, pa.Table]]) -> None:
        self._parts = parts
        self._waiting: tuple[np.ndarray, pa.Table] | None = None

    def before(self, number: int) -> Iterator[tuple[np.ndarray, pa.Table]]:
        while (part := self._waiting or next(self._parts, None)) is not None:
            numbers, rows = part
            here = int(np.searchsorted(numbers, number))
            self._waiting = (numbers[here:], rows.slice(here)) if here < len(numbers) else None
            if here:
                yield numbers[:here], rows.slice(0, here)
            if self._waiting is not None:
                return

    def all(self) -> Iterator[tuple[np.ndarray, pa.Table]]:
        if self._waiting is not None:
            yield self._waiting
        yield from self._parts


# ---------------------------------------------------------------------------------------------------- rows of an earlier run


def earlier_rows(opened: OpenStage, task: Task, keeper: ScoreKeeper | None, scratch: Path) -> EarlierRows | None:
    """What can be reused of an earlier run; None if the whole partition must be processed."""
    stage, commit = opened.stage, task.earlier
    if commit is None or keeper is None or keeper.known_rows is None or task.deaths:
        return None
    before = _row_numbers(stage.store, commit)
    if before is None or any(stage.store.size(shard.name) != shard.size for shard in commit.shards):
        return None
    if keeper.known_rows.max(initial=-1) >= commit.account.operators[0].rows_out:
        return None
    found = EarlierRows(opened, commit, before, keeper, scratch)
    return found if found.is_usable else None


def _row_numbers(store: Store, commit: Commit) -> pa.Table | None:
    shard = next((shard for shard in commit.shards if shard.name.startswith(f"{WRITTEN}/")), None)
    data = store.read(shard.name) if shard is not None else None
    if shard is None or data is None or text_checksum(data) != shard.checksum:
        return None
    return pq.read_table(io.BytesIO(data))


class EarlierRows:
    """The rows that an earlier run wrote for a partition, and what other thresholds make of each row."""

    def __init__(
        self, opened: OpenStage, commit: Commit, written: pa.Table, keeper: ScoreKeeper, scratch: Path
    ) -> None:
        self._stage, self._runners, self._commit, self._scratch = opened.stage, opened.operators, commit, scratch
        self.num_rows = commit.account.operators[0].rows_out
        numbers, steps = written.column("row").to_numpy(), written.column("step").to_numpy()
        self.kept, self.rejected, self.steps = numbers[steps == KEPT], numbers[steps != KEPT], steps[steps != KEPT]
        self.regular = written.schema.metadata[_REGULAR] == b"True"
        self.shards = [shard for shard in commit.shards if "/" not in shard.name and shard.rows]
        self.reject_shards = [shard for shard in commit.shards if shard.name.startswith(f"{INTERNAL}/rejects/")]
        self._before = np.full(self.num_rows, UNKNOWN, np.int16)
        self._before[self.kept], self._before[self.rejected] = KEPT, self.steps
        self._decide(keeper)

    def _decide(self, keeper: ScoreKeeper) -> None:
        """For each row, the number of the filter that drops it now, or KEPT, or UNKNOWN without scores; and the reason."""
        known = keeper.known_rows
        assert known is not None
        self._now = np.full(self.num_rows, UNKNOWN, np.int16)
        self._now[known] = KEPT
        self._reason = np.zeros(self.num_rows, np.int32)
        self._reasons: list[tuple[int, str]] = []
        for step, reason, mask in keeper.drops():
            self._now[known[mask]] = step
            self._reason[known[mask]] = len(self._reasons)
            self._reasons.append((step, reason))

    def _has_reason(self, number: int) -> np.ndarray:
        return np.asarray((self._now >= 0) & (self._reason == number))

    # ----------------------------------------------------------------------------------------------- what is to be done

    @cached_property
    def to_process(self) -> np.ndarray:
        """bool[rows]: the rows that are not in the files of the earlier run as they are needed now."""
        before, now = self._before, self._now
        needed = (now == UNKNOWN) | ((now == KEPT) & (before != KEPT))
        return needed | ((now >= 0) & (before != now)) if self._stage.rejects is not None else needed

    @cached_property
    def kept_again(self) -> np.ndarray:
        """bool[rows of the shard]"""
        return np.asarray(self._now[self.kept] == KEPT)

    @property
    def is_usable(self) -> bool:
        return self._is_consistent() and self._can_copy_kept() and self._can_copy_rejected()

    def _is_consistent(self) -> bool:
        return len(self.kept) == sum(shard.rows for shard in self.shards) and len(self.shards) <= 1

    def _can_copy_kept(self) -> bool:
        """Whether the rows of the shard can be copied, and have the columns and types that any selection of them has."""
        stage, sink = self._stage, self._stage.end
        assert isinstance(sink, Sink)
        written = schema_after(stage.operators, self._runners, schema_read(stage.schema, stage.columns), {})
        if any(has_media(kind) for kind in (*stage.schema.types, *written.types)):
            return False  # a second file may belong to the shard
        if not sink.can_copy_rows:
            may_change = not self.kept_again.all() or self.to_process[self._now < 0].any()
            return not may_change
        expected = sink.schema_in_file(written)
        return expected is None or all(_types(decode_schema(shard.schema)) == _types(expected) for shard in self.shards)

    def _can_copy_rejected(self) -> bool:
        """Whether rejects have the same columns as before: those of the rows at each filter that drops any."""
        head = self._stage.operators
        changing = any(isinstance(op, Map) or (isinstance(op, Filter) and op.adds_scores) for op in head)
        return not changing or set(self.steps.tolist()) <= set(self._now.tolist())

    @property
    def must_read(self) -> bool:
        return bool(self.to_process.any())

    @cached_property
    def chosen(self) -> np.ndarray | None:
        """A mask for the source, if it can read single rows and these are the same as if all were read."""
        had_bad_rows = self._commit.account.operators[0].failed or self._commit.account.damaged_files
        able = self._stage.source.can_choose_rows and self.regular and not had_bad_rows
        return self.to_process if able else None

    # ------------------------------------------------------------------------------------------------ while rows are read

    def needed(self, batch: Batch, first: int) -> tuple[Batch, np.ndarray, int, int]:
        """The rows of a batch to process, their numbers, and the range of rows that they were read from.

        `first` counts the rows that the source gave before.
        """
        end = first + len(batch)
        numbers = np.arange(first, end) if self.chosen is None else self._chosen_numbers[first:end]
        if len(numbers) < len(batch) or numbers[-1] >= self.num_rows:
            raise RowsMoved
        start, size = int(numbers[0]), int(numbers[-1] - numbers[0] + 1)
        here = self.to_process[numbers]
        return (batch, numbers, start, size) if here.all() else (batch.select(here), numbers[here], start, size)

    @cached_property
    def _chosen_numbers(self) -> np.ndarray:
        return np.flatnonzero(self.to_process)

    def check_read(self, rows: int) -> None:
        """Raise if the source gave other rows than in the earlier run."""
        if rows != (self.num_rows if self.chosen is None else len(self._chosen_numbers)):
            raise RowsMoved

    # -------------------------------------------------------------------------------------------------------- the account

    def count_into(self, account: Account, first_operator: int) -> None:
        """Count the rows that were not processed as if they had been."""
        skipped = ~self.to_process
        fates = self._now[skipped]
        kept = int(np.count_nonzero(fates == KEPT))
        for index, op in enumerate(account.operators[first_operator:]):
            op.rows_in += kept + int(np.count_nonzero(fates >= index))
            op.rows_out += kept + int(np.count_nonzero(fates > index))
        for number, (step, reason) in enumerate(self._reasons):
            count = int(np.count_nonzero(skipped & self._has_reason(number)))
            if count:
                dropped = account.operators[first_operator + step].dropped
                dropped[reason] = dropped.get(reason, 0) + count
        account.kept += kept
        if self.must_read and self.chosen is None:
            return  # all rows were read
        source = account.operators[0]
        unread = self.num_rows - source.rows_out
        source.rows_in += unread
        source.rows_out += unread
        account.read += unread
        source.num_bytes = self._commit.account.operators[0].num_bytes
        account.num_bytes = self._commit.account.num_bytes
        account.damaged_files = dict(self._commit.account.damaged_files)

    def bad_rows(self) -> Iterator[Failure]:
        """The rows that the source could not read."""
        for shard in self._commit.shards:
            if shard.name.startswith(f"{INTERNAL}/failed/"):
                for line in (self._stage.store.read(shard.name) or b"").splitlines():
                    record = json.loads(line)
                    if record["step"] == self._stage.source.name:
                        yield Failure(**{"rows": 1, **record})

    # ------------------------------------------------------------------------------------------------ rows to be copied

    def shard_rows(self) -> Iterator[tuple[np.ndarray, pa.Table]]:
        """The rows of the shard that are kept again, with their numbers."""
        assert isinstance(self._stage.end, Sink)
        return self._copied(self.shards, self._stage.end, self.kept, self.kept_again)

    @property
    def rejects_hold(self) -> bool:
        """Whether the same rows are dropped as before, each for the same reason."""
        before = [op.dropped for op in self._commit.account.operators]
        now: list[dict[str, int]] = [{} for _ in before]
        for number, (step, reason) in enumerate(self._reasons):
            now[self._stage.first_operator + step][reason] = int(np.count_nonzero(self._has_reason(number)))
        return before == now and bool((self._now[self.rejected] == self.steps).all())

    def reject_rows(self) -> Iterator[tuple[np.ndarray, np.ndarray, pa.Table]]:
        """The rejected rows that the same filter drops again, with the new reasons: their numbers, filters and columns."""
        assert self._stage.rejects is not None
        again = np.asarray(self._now[self.rejected] == self.steps)
        reasons = pa.array([reason for _, reason in self._reasons], pa.string())
        for numbers, rows in self._copied(self.reject_shards, self._stage.rejects, self.rejected, again):
            reason = reasons.take(pa.array(self._reason[numbers]))
            changed = rows.set_column(rows.schema.get_field_index("_reason"), "_reason", reason)
            yield numbers, self._now[numbers], changed

    def _copied(
        self, shards: Sequence[Shard], sink: Sink, numbers: np.ndarray, wanted: np.ndarray
    ) -> Iterator[tuple[np.ndarray, pa.Table]]:
        at = 0
        for shard in shards:
            for rows in sink.stored_rows(self._local(shard)):
                here = slice(at, at + rows.num_rows)
                at += rows.num_rows
                if wanted[here].all():
                    yield numbers[here], rows
                elif wanted[here].any():
                    yield numbers[here][wanted[here]], rows.filter(pa.array(wanted[here]))

    def _local(self, shard: Shard) -> Path:
        """A shard as a local file, after its checksum is compared: damage must not be copied under a new checksum."""
        file = self._stage.store.local_copy(shard.name, self._scratch / f"earlier-{Path(shard.name).name}")
        if checksum_of(file) != shard.checksum:
            raise RowsMoved
        return file


def _types(schema: pa.Schema) -> dict[str, pa.DataType]:
    return dict(zip(schema.names, schema.types, strict=True))
