"""Measures a pipeline on a sample: for each operator peak memory, memory per input byte and time; and recommends settings."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from tamis.memory.budget import (
    BATCH_COPIES,
    DEFAULT_BATCH_BYTES,
    DEFAULT_BLOCKSIZE,
    DEFAULT_SHARE,
    WORKER_BYTES,
    usable_cpus,
    usable_memory,
)
from tamis.memory.governor import Learned
from tamis.operators import Operator
from tamis.parameters import format_bytes
from tamis.report import Report

HEADROOM = 1.25
"""Rows outside the sample may need more."""

PARTITION_S = 10.0
SMALLEST_BLOCKSIZE, LARGEST_BLOCKSIZE = 1_000_000, 256_000_000


@dataclass(frozen=True)
class OperatorProfile:
    """One step on the sample."""

    name: str
    rows: int
    seconds: float
    mb_per_s: float | None
    peak_bytes: int
    held_per_byte: float
    """Peak divided by the bytes of the batch it was given."""
    setup_bytes: int
    """Memory it took before its first batch."""


@dataclass(frozen=True)
class Profile:
    """The measurements, and the settings that follow from them."""

    rows: int
    operators: tuple[OperatorProfile, ...]
    copies: float
    """Bytes a worker held per byte of batch, over a whole stage."""
    memory_bytes: int
    workers: int
    blocksize: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{'step':<24}{'rows':>10}{'seconds':>10}{'MB/s':>9}{'setup':>11}{'peak':>11}{'held per byte':>15}"]
        for op in self.operators:
            rate = f"{op.mb_per_s:.1f}" if op.mb_per_s is not None else "-"
            lines.append(
                f"{op.name:<24}{op.rows:>10,}{op.seconds:>10.3f}{rate:>9}{format_bytes(op.setup_bytes):>11}"
                f"{format_bytes(op.peak_bytes):>11}{op.held_per_byte:>15.1f}"
            )
        lines.append("")
        lines.append(f"a worker held {self.copies:.1f} bytes per byte of batch over {self.rows:,} rows")
        lines.append(
            f"recommended: --memory {format_bytes(self.memory_bytes).replace(' ', '')} --workers {self.workers}, "
            f"blocksize {format_bytes(self.blocksize).replace(' ', '')}"
        )
        return "\n".join(lines)


def profile_of(report: Report, driver_bytes: int, steps: Iterable[Operator]) -> Profile:
    """Make a profile from the report of a profiled run with one worker, and recommend settings.

    The recommended memory is enough for a worker on each core, or for as many workers as the machine has memory for.
    """
    held = report.memory["bytes_held_per_batch_byte"].values()
    copies = max(max(held, default=0.0), 2.0)
    batch = report.memory["batch_bytes"]
    operators = tuple(
        OperatorProfile(
            name=op["name"],
            rows=op["rows_in"],
            seconds=op["seconds"],
            mb_per_s=op["mb_per_s"],
            peak_bytes=op["peak_bytes"],
            held_per_byte=round(op["peak_bytes"] / max(1, min(batch, op["num_bytes"])), 2),
            setup_bytes=op["setup_bytes"],
        )
        for op in report.operators
    )
    learned = Learned()
    learned.note_setup((op.name, op.setup_bytes) for op in operators)
    each = WORKER_BYTES + learned.setup_bytes(steps) + HEADROOM * max(copies, BATCH_COPIES) * DEFAULT_BATCH_BYTES
    room = DEFAULT_SHARE * usable_memory() - driver_bytes
    workers = max(1, min(usable_cpus(), int(room // each)))
    return Profile(
        rows=report.read,
        operators=operators,
        copies=round(copies, 2),
        memory_bytes=int(driver_bytes + workers * each),
        workers=workers,
        blocksize=_blocksize(report),
    )


def _blocksize(report: Report) -> int:
    """The size that keeps a worker busy for about `PARTITION_S`, the most work that a killed run loses."""
    seconds = sum(op["seconds"] for op in report.operators)
    if not seconds or not report.num_bytes:
        return DEFAULT_BLOCKSIZE
    wanted = PARTITION_S * report.num_bytes / seconds
    return int(2 ** round(math.log2(min(max(wanted, SMALLEST_BLOCKSIZE), LARGEST_BLOCKSIZE) / 1e6))) * 1_000_000
