"""Estimates what a run needs before it starts: peak memory, and disk for spill and output, from small samples of the input.

The estimated peak is also the limit: the cap of each worker enforces it. Measurements of an earlier run over the same output
are used where there are any. Disk is extrapolated from the sample, and an upper bound where rows are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from tamis.batch import LINE, Batch, Failure
from tamis.events import Events
from tamis.executors.opening import opened
from tamis.executors.steps import observed
from tamis.executors.tasks import Group, Stage
from tamis.memory.budget import (
    BATCH_COPIES,
    SERVER_BYTES,
    SERVER_TYPICAL_BYTES,
    WORKER_TYPICAL_BYTES,
    Budget,
    stream_budget,
)
from tamis.memory.governor import Governor, Learned
from tamis.operators import Gather, Layout, Partition, Piece, Reading, Sink
from tamis.parameters import format_bytes

SAMPLE_BYTES = 4_000_000
SAMPLE_PIECES = 4
BATCH_BYTES = 500_000
SPILL_RATIO = 0.6
"""Rows between stages are compressed with lz4."""

OUTPUT_RATIO = {"": 1.0, "gz": 0.4, "zst": 0.4, "zstd": 0.4, "xz": 0.3, "bz2": 0.35, "lz4": 0.6, "snappy": 0.55}
"""Bytes written per byte of text, by compression, as seen on web text."""


@dataclass(frozen=True)
class StageEstimate:
    """What one stage needs."""

    stage: int
    memory_bytes: int
    spill_bytes: int
    output_bytes: int

    def __str__(self) -> str:
        return (
            f"  stage {self.stage:<5} {format_bytes(self.memory_bytes)} of memory, {format_bytes(self.spill_bytes)} of disk "
            f"between stages, at most {format_bytes(self.output_bytes)} of output"
        )


@dataclass(frozen=True)
class Estimate:
    """What a run needs, and the disk space available."""

    rows: int
    rows_known: bool
    """Whether the source knows the number of rows; otherwise it is an estimate from a sample."""
    row_bytes: int
    memory_bytes: int
    spill_bytes: int
    output_bytes: int
    free_disk_bytes: int
    stages: tuple[StageEstimate, ...]

    @property
    def fits_disk(self) -> bool:
        return self.spill_bytes + self.output_bytes <= self.free_disk_bytes

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"fits_disk": self.fits_disk}

    def __str__(self) -> str:
        lines = [
            f"needs         {format_bytes(self.memory_bytes)} of memory, {format_bytes(self.spill_bytes)} of disk between "
            f"stages and at most {format_bytes(self.output_bytes)} for the output; "
            f"{format_bytes(self.free_disk_bytes)} are free"
        ]
        if len(self.stages) > 1:
            lines += map(str, self.stages)
        about = "" if self.rows_known else "about "
        lines.append(f"rows          {about}{self.rows:,} of {format_bytes(self.row_bytes)} each")
        if not self.fits_disk:
            lines.append("warning: there is not enough disk space")
        return "\n".join(lines)


def estimate(groups: Iterable[Group], layout: Layout, budget: Budget, learned: Learned | None = None) -> Estimate:
    """Estimate the needs of each stage of a plan from some rows of the input and from earlier measurements."""
    all_groups = list(groups)
    plan = [group.whole for group in all_groups]
    total = sum(partition.size for partition in layout.partitions)
    rows, sample = _sampled(plan[0], layout)
    if layout.num_rows is not None:
        rows = layout.num_rows
    row_bytes = max(1, total // max(1, rows))
    estimates = []
    for group, stage in zip(all_groups, plan, strict=True):
        spill = int(total * SPILL_RATIO) if stage.spills_rows else 0
        if isinstance(stage.end, Gather):
            spill += _facts_bytes(stage.end, sample, rows, total)
        output = int(total * OUTPUT_RATIO.get(_compression(stage.end), 1.0)) if isinstance(stage.end, Sink) else 0
        memory = _memory_bytes(group, layout, rows, budget, learned or Learned())
        if group.streams:
            spill += _packets_on_disk(group, total, len(layout.partitions), budget)
        estimates.append(StageEstimate(stage.index + 1, memory, spill, output))
    return Estimate(
        rows=rows,
        rows_known=layout.num_rows is not None,
        row_bytes=row_bytes,
        memory_bytes=max((stage.memory_bytes for stage in estimates), default=0),
        spill_bytes=sum(stage.spill_bytes for stage in estimates),
        output_bytes=sum(stage.output_bytes for stage in estimates),
        free_disk_bytes=free_disk(plan[0]),
        stages=tuple(estimates),
    )


def _packets_on_disk(group: Group, num_bytes: int, partitions: int, budget: Budget) -> int:
    """Rows that wait for the last stage of a group: those of the partitions in progress."""
    at_once = len(group.stages) * budget.wanted_workers + 1
    return int(num_bytes * min(1.0, at_once / max(1, partitions)))


def _memory_bytes(group: Group, layout: Layout, rows: int, budget: Budget, learned: Learned) -> int:
    """Peak memory of a stage: its workers, the driver and the server."""
    stage = group.whole
    if group.streams:
        found = stream_budget(budget, group.needs(learned))
        workers = sum(
            pool.most * min(pool.worker_bytes, pool.fixed_bytes + BATCH_COPIES * pool.batch_bytes)
            for pool in found.pools
        )
        return min(budget.total_bytes, budget.driver_bytes + found.edge_bytes + found.last_edge_bytes + workers)
    governor = Governor(budget, Events(), learned)
    governor.begin(stage.name)
    # What a Gather declares is for deciding, after its rows were observed.
    steps = [stage.source, *stage.operators, *([stage.end] if isinstance(stage.end, Sink) else [])]
    copies = learned.copies.get(stage.name, BATCH_COPIES)
    each = WORKER_TYPICAL_BYTES + learned.setup_bytes(steps) + int(copies * governor.allowance().batch_bytes)
    workers = max(1, min(budget.workers, len(layout.partitions)))
    deciding = stage.end.memory_bytes(rows) if isinstance(stage.end, Gather) else 0
    driver = budget.driver_bytes - SERVER_BYTES + SERVER_TYPICAL_BYTES
    return min(budget.total_bytes, driver + max(deciding, workers * min(budget.worker_bytes, each)))


def _compression(end: Sink) -> str:
    return getattr(end, "compression", None) or ""


def _size(batch: Batch) -> int:
    return batch.table.column(LINE).nbytes if LINE in batch else batch.num_bytes


def _sampled(stage: Stage, layout: Layout) -> tuple[int, Batch | None]:
    """The number of rows, estimated from the beginning of a few pieces spread over the input, and some rows.

    Files may differ, and those of one partition as well, so pieces of partitions are sampled.
    """

    def ignore(failure: Failure) -> None:
        """The run itself counts bad rows."""

    reading = Reading(stage.columns, layout.schema, BATCH_BYTES, ignore, stage.keep_lines, BATCH_BYTES)
    everything = [part for partition in layout.partitions for part in _parts(partition)]
    last = len(everything) - 1
    chosen = sorted({number * last // (SAMPLE_PIECES - 1) for number in range(SAMPLE_PIECES)}) if everything else []
    first: Batch | None = None
    rows = size = 0
    with opened(stage.source) as source:
        for partition, piece in (everything[number] for number in chosen):
            part = partition if piece is None else replace(partition, pieces=(piece,))
            seen = num_bytes = 0
            for batch in source.read(part, reading):
                first = batch if first is None else first
                seen += len(batch)
                num_bytes += _size(batch)
                if num_bytes >= SAMPLE_BYTES // len(chosen):
                    seen = max(seen, part.size * seen // num_bytes)
                    break
            rows += seen
            size += part.size
    if len(chosen) < len(everything) and size:
        rows = rows * sum(partition.size for partition in layout.partitions) // size
    limit = getattr(stage.source, "limit", None)
    return (rows if limit is None else min(rows, limit)), first


def _parts(partition: Partition) -> Iterator[tuple[Partition, Piece | None]]:
    """The pieces of a partition that can be read alone; the whole of one that belongs to another source."""
    if type(partition) is Partition:
        yield from ((partition, piece) for piece in partition.pieces if piece.limit != 0)
    else:
        yield partition, None


def _facts_bytes(gather: Gather, sample: Batch | None, rows: int, num_bytes: int) -> int:
    """What a Gather declares to write, or else the size of its observations of the sample, scaled to all rows."""
    said = gather.disk_bytes(rows, num_bytes)
    if said is not None or sample is None or not len(sample):
        return said or 0
    with opened(gather) as runner:
        return observed(gather, sample, runner).nbytes * rows // len(sample)


def free_disk(stage: Stage) -> int:
    """Free bytes on the disk that holds files between stages."""
    return stage.exchange.free_bytes()
