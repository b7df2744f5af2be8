"""Writes the rows that leave a stage: shards of a sink, facts for a Gather, and rows for the next stage."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from tamis.batch import Batch, contiguous
from tamis.executors.opening import OpenStage
from tamis.executors.records import Records
from tamis.executors.reuse import EarlierRows, NumberedShards, WrittenRows
from tamis.executors.segments import Segment
from tamis.executors.steps import Applied, Types, observed, schema_after
from tamis.mapped import SPILL
from tamis.memory import spill
from tamis.memory.runs import RunWriter, sorted_bytes
from tamis.operators import Gather, Reorder, Shard, ShardWriter, Sink
from tamis.sinks.schemas import encode_schema


class Writer:
    """The end of a stage, for the rows of one task."""

    def __init__(
        self,
        opened: OpenStage,
        stem: str,
        scratch: Path,
        records: Records,
        written: WrittenRows | None = None,
        earlier: EarlierRows | None = None,
        batch_bytes: int | None = None,
    ) -> None:
        stage = opened.stage
        self._stage, self._opened, self._records = stage, opened, records
        self._sink: ShardWriter | None = None
        self._facts: spill.SpillWriter | None = None
        self._rows: spill.SpillWriter | None = None
        self._runs: RunWriter | None = None
        self._observed = self._positions = 0
        end = stage.end
        if isinstance(end, Sink):
            left = stage.sink_schema
            self._sink = opened.end.open_shard(scratch, stem, stage.schema if left is None else left)
            if written is not None:
                self._sink = NumberedShards(self._sink, written, earlier)
        elif isinstance(end, Reorder):
            self._runs = RunWriter(
                stage.exchange, f"{stem}.rows{SPILL}", sorted_bytes(batch_bytes or stage.batch_bytes)
            )
        elif isinstance(end, Gather):
            # Not compressed, so that a Gather can map the file and read single columns and rows of it.
            self._facts = spill.SpillWriter(stage.exchange, f"{stem}.facts{SPILL}", compression=None)
            if stage.spills_rows:
                self._rows = spill.SpillWriter(stage.exchange, f"{stem}.rows{SPILL}")

    def write(self, batch: Batch) -> None:
        """Write rows to the sink, if there is one."""
        if self._sink is None:
            return
        step = len(self._records.account.operators) - 1
        mine = self._records.of(step)
        with self._records.measured(step):
            self._sink.write(batch.table)
        mine.rows_in += len(batch)
        mine.rows_out += len(batch)
        mine.num_bytes += batch.num_bytes

    def copy_earlier(self) -> list[Shard]:
        """Copy the rows of an earlier run that are kept again; or return its shards, if they stay as they are."""
        assert isinstance(self._sink, NumberedShards)
        with self._records.measured(len(self._records.account.operators) - 1):
            return self._sink.copy_rest()

    def observe(self, batch: Batch) -> Applied:
        """Let the Gather at the end observe rows, and write its facts."""
        gather = self._stage.end
        assert isinstance(gather, Gather)
        facts = observed(gather, batch, self._opened.end)
        self._observed += len(batch)
        self._positions += int(batch.origin.position.sum())
        if self._runs is not None:
            self._runs.write(batch, contiguous(facts.column("key")).to_numpy(zero_copy_only=False))
            return Applied(batch, batch)
        assert self._facts is not None
        self._facts.write(facts)
        if self._rows is not None:
            spill.write_rows(self._rows, batch)
        return Applied(batch, batch)

    def close(self, segment: Segment, schema: pa.Schema | None, types: dict[int, Types]) -> None:
        """Complete the files, and name them in `segment`.

        `schema` has the columns that were read, and `types` those that operators returned: if no row was written, they tell
        the columns of the output.
        """
        if self._sink is not None:
            began = time.perf_counter()
            segment.shards = self._sink.close()
            if not segment.shards:
                read = schema or self._opened.schema_before
                after = schema_after(self._stage.operators, self._opened.operators, read, types)
                segment.schema = encode_schema(after)
            self._records.account.operators[-1].seconds += time.perf_counter() - began
        if self._facts is not None:
            segment.facts = self._facts.close()
        if self._rows is not None:
            segment.rows = self._rows.close()
        if self._runs is not None:
            began = time.perf_counter()
            segment.rows = self._runs.close()
            self._records.account.operators[-1].seconds += time.perf_counter() - began
        segment.observed, segment.positions = self._observed, self._positions

    def abandon(self) -> None:
        """Close the files of a task that failed; they are about to be removed."""
        for abandon in (
            self._sink.close if self._sink is not None else None,
            self._facts.discard if self._facts is not None else None,
            self._rows.discard if self._rows is not None else None,
            self._runs.discard if self._runs is not None else None,
        ):
            with suppress(Exception):  # another error is on its way
                if abandon is not None:
                    abandon()
