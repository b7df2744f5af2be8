"""Keeps a run within its budget: how much each worker may hold, what was learned, and what to do when that is not enough.

rows over a limit      fail with their size before they are read; the limit follows from the budget alone
cap per worker         RLIMIT_DATA: a worker that exceeds it gets a MemoryError, and the kernel kills nobody
    in an operator     the batch is halved, down to single rows; a row that does not fit is tried alone in a new worker, with
                       the whole budget, before it fails (`executors/schedule.py`)
    in its setup       fewer workers; if a single one has too little, an error
    while reading      smaller batches, then fewer workers, then a lower limit for rows, then an error
measured per worker    what the cap does not count, such as shared memory and other processes: a worker over its share is
                       stopped, and its rows are tried again as above
"""

from __future__ import annotations

import json
import resource
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tamis.errors import BudgetError
from tamis.events import Events, MemoryAction
from tamis.memory import process
from tamis.memory.budget import (
    BATCH_COPIES,
    DEFAULT_BATCH_BYTES,
    SMALLEST_BATCH_BYTES,
    SMALLEST_ROW_LIMIT,
    Budget,
    PoolNeed,
    PoolShare,
)
from tamis.memory.slots import GpuNeed
from tamis.models.devices import GPU_HOST_BYTES
from tamis.operators import Gather, Operator
from tamis.parameters import format_bytes, plural

OVERUSE_BYTES = 32_000_000
"""How much more than its share a worker may hold before it is stopped: its cap counts mapped and not resident memory."""

MOST_COPIES = 200.0

WORTH_NOTING = 10_000_000
"""Setup memory below this is ignored: it is small compared with the interpreter itself."""


@dataclass(frozen=True)
class Allowance:
    """How much memory one attempt at a partition may use."""

    batch_bytes: int
    max_row_bytes: int | None = None
    """Rows larger than this fail with their size instead of being read."""


@dataclass
class Learned:
    """Measurements of earlier partitions, and of earlier runs over the same output."""

    copies: dict[str, float] = field(default_factory=dict)
    """By stage: memory held per byte of batch."""
    setup: dict[str, int] = field(default_factory=dict)
    """By operator: memory it took before its first batch, such as the weights of a model."""
    limits: dict[str, int] = field(default_factory=dict)
    """What fits in memory, by whatever a step names it: tokens per batch of a model, by length and device."""

    def note(self, stage: str, peak_bytes: int, batch_bytes: int) -> None:
        if batch_bytes > 0 and peak_bytes > 0:
            seen = min(MOST_COPIES, peak_bytes / batch_bytes)
            self.copies[stage] = round(max(seen, 0.9 * self.copies.get(stage, 0.0) + 0.1 * seen), 2)

    def note_setup(self, taken: Iterable[tuple[str, int]]) -> None:
        """Record what each operator of a stage took; operators with the same name are added up, as they may share a model."""
        totals: Counter[str] = Counter()
        for name, num_bytes in taken:
            totals[name] += num_bytes
        for name, num_bytes in totals.items():
            known = max(num_bytes, self.setup.get(name, 0) * 9 // 10)
            self.setup[name] = known if known >= WORTH_NOTING else 0

    def setup_bytes(self, steps: Iterable[Operator]) -> int:
        """What a worker holds for these steps before its first batch.

        Only the steps of one stage are loaded at a time, so the largest stage counts. A measurement replaces what an operator
        declares, except for a Gather, which declares what it needs after its setup.
        """
        largest = 0
        for stage in _stages(steps):
            declared: Counter[str] = Counter()
            shared: set[str] = set()
            for step in stage:
                needs = step.resources
                declared[step.name] += needs.own_bytes
                declared[step.name] += sum(size for key, size in needs.shared.items() if key not in shared)
                shared |= needs.shared.keys()
            gathers = {step.name for step in stage if isinstance(step, Gather)}
            largest = max(
                largest,
                sum(
                    max(num_bytes, self.setup.get(name, 0)) if name in gathers else self.setup.get(name, num_bytes)
                    for name, num_bytes in declared.items()
                ),
            )
        return largest

    def as_text(self) -> bytes:
        known = {"bytes_held_after_setup": self.setup, "limits": self.limits}
        return json.dumps(self.as_dict() | known, indent=2).encode()

    def as_dict(self) -> dict[str, Any]:
        """For the report, which leaves out operators that take next to nothing."""
        setup = {name: num_bytes for name, num_bytes in self.setup.items() if num_bytes}
        return {"bytes_held_per_batch_byte": self.copies, "bytes_held_after_setup": setup}

    @staticmethod
    def from_text(text: bytes | None) -> Learned:
        if text is None:
            return Learned()
        try:
            found = json.loads(text)
            copies = {str(name): float(value) for name, value in found["bytes_held_per_batch_byte"].items()}
            setup = {str(name): int(value) for name, value in found.get("bytes_held_after_setup", {}).items()}
            limits = {str(name): int(value) for name, value in found.get("limits", {}).items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            return Learned()  # only a hint for the next run: a damaged file is ignored
        return Learned(copies, setup, limits)


def _stages(steps: Iterable[Operator]) -> list[list[Operator]]:
    """The steps of each stage of a pipeline; a Gather ends the stage that observes rows for it."""
    stages: list[list[Operator]] = [[]]
    for step in steps:
        stages[-1].append(step)
        if isinstance(step, Gather):
            stages.append([])
    return stages


def pool_needs(runs: Sequence[Sequence[Operator]], learned: Learned, end: Operator | None = None) -> list[PoolNeed]:
    """What a worker of each stage of a group needs beside its batches. `end` is the step that ends the last one.

    A Gather declares memory for its decisions, for which there are other workers later; only its GPU counts.
    """
    last = len(runs) - 1
    ends: list[tuple[Operator, ...]] = [
        (end,) if end is not None and number == last else () for number in range(len(runs))
    ]
    found: list[PoolNeed] = []
    for number, (run, after) in enumerate(zip(runs, ends, strict=True)):
        on_gpu = gpu_need([*run, *after])
        memory_bytes = max(learned.setup_bytes(run), GPU_HOST_BYTES if on_gpu.any else 0)
        wanted = max((op.batch_bytes or 0 for op in (*run, *after)), default=0)
        batches = max(1, wanted // DEFAULT_BATCH_BYTES)
        if found:
            found[-1] = replace(found[-1], batches_after=batches)
        found.append(PoolNeed(memory_bytes, on_gpu, heavy=number % 2 == 1, batches=batches))
    return found


def gpu_need(steps: Sequence[Operator]) -> GpuNeed:
    """What a worker that runs these steps needs of GPUs: they take turns, but their memory adds up."""
    declared = [step.resources for step in steps if step.resources.uses_gpu]
    sizes = [found.gpu_bytes for found in declared if found.gpu_bytes is not None]
    if not declared:
        return GpuNeed()
    # One that does not declare its memory may need any amount.
    return GpuNeed(max(found.gpus for found in declared), sum(sizes) if len(sizes) == len(declared) else None)


class Governor:
    """Derives each worker's allowance from the budget, learns from measurements, and decides what to do about overflows."""

    def __init__(self, budget: Budget, emit: Events, learned: Learned | None = None) -> None:
        self.budget, self.emit = budget, emit
        self.learned = learned or Learned()
        self.workers = budget.workers
        self.actions: dict[str, int] = {}
        self._batch_bytes = budget.batch_bytes
        self._stage = ""

    def for_pool(self, stage: str, share: PoolShare, batch_bytes: int) -> Governor:
        """A governor for the workers of one of several stages that run at the same time."""
        budget = replace(
            self.budget,
            total_bytes=share.worker_bytes * share.most,
            driver_bytes=0,
            workers=share.most,
            worker_bytes=share.worker_bytes,
            batch_bytes=batch_bytes,
            fixed_bytes=share.fixed_bytes,
        )
        governor = Governor(budget, self.emit, self.learned)
        governor.actions = self.actions
        governor.begin(stage)
        return governor

    @property
    def worker_bytes(self) -> int:
        """What each worker may hold, including its code."""
        return max(0, self.budget.total_bytes - self.budget.driver_bytes) // self.workers

    @property
    def single_worker_bytes(self) -> int:
        """What one worker may hold while no other runs."""
        return max(0, self.budget.total_bytes - self.budget.driver_bytes)

    def begin(self, stage: str) -> None:
        """Start a stage, whose operators may hold more or less per byte than those of the last one."""
        self._stage = stage
        self._batch_bytes = self.budget.batch_bytes
        copies = self.learned.copies.get(stage)
        if copies is not None:
            self._fit(copies)

    def allowance(self) -> Allowance:
        return Allowance(self._batch_bytes, self.budget.max_row_bytes)

    def finished(self, peak_bytes: int, batch_bytes: int, splits: int) -> None:
        """Learn from a finished partition: how much it held, and whether batches had to be halved."""
        self.learned.note(self._stage, peak_bytes, batch_bytes)
        if splits:
            self._act("split", splits, f"halved {plural(splits, 'batch')} because an operator ran out of memory")
            self._batch_bytes = max(SMALLEST_BATCH_BYTES, self._batch_bytes // 2)
        self._fit(self.learned.copies.get(self._stage, BATCH_COPIES))

    def tighten(self) -> None:
        """Use smaller batches from now on, because memory is nearly used up."""
        smaller = max(SMALLEST_BATCH_BYTES, self._batch_bytes // 2)
        if smaller < self._batch_bytes:
            self._batch_bytes = smaller
            self._act("shrink", 1, f"memory is nearly used up; batches of {format_bytes(smaller)} from now on")

    def recycled(self, worker: int, why: str) -> None:
        """Record that a worker was replaced to release its memory."""
        self._act("recycle", 1, f"worker {worker} was replaced: {why}")

    def paused(self) -> None:
        """Record that no partition is started for now."""
        self._act("pause", 1, "no partition is started until memory is free again")

    def restarted(self, what: str, how: str) -> None:
        """Record that a partition is tried again because its worker died."""
        self._act("restart", 1, f"the worker on {what} died ({how}); another worker tries again")

    def too_large_to_set_up(self, why: str) -> None:
        """A worker's share is too small for what an operator loads: continue with one worker less, or raise."""
        if self.workers > 1:
            self._fewer(why)
            return
        on_gpu = "CUDA" in why or "GPU" in why
        raise BudgetError(
            f"{why}, in a single worker that may hold {format_bytes(self.worker_bytes)}",
            hint="the GPU is out of memory: check what else uses it, or use a smaller model"
            if on_gpu
            else f"try --memory {format_bytes(2 * self.budget.total_bytes).replace(' ', '')}",
        )

    def overflowed(self, allowance: Allowance, what: str, *, same_rows: bool = False) -> Allowance:
        """What to try next for a partition that ran out of memory while it was read.

        With `same_rows`, none of them may fail for its size: they were decided about in source order.
        """
        if allowance.batch_bytes > SMALLEST_BATCH_BYTES:
            return self._smaller(allowance, f"{what} ran out of memory")
        if self.workers > 1:
            self._fewer(f"{what} ran out of memory")
            return allowance
        limit = (allowance.max_row_bytes or self.budget.max_row_bytes) // 2
        if limit >= SMALLEST_ROW_LIMIT and not same_rows:
            self._act("isolate", 1, f"{what} ran out of memory; rows over {format_bytes(limit)} fail")
            return replace(allowance, max_row_bytes=limit)
        raise BudgetError(
            f"{what} does not fit into {format_bytes(self.budget.total_bytes)} of memory, even in the smallest batches",
            hint=f"try --memory {format_bytes(2 * self.budget.total_bytes).replace(' ', '')}",
        )

    def shrunk(self, allowance: Allowance, what: str) -> Allowance:
        """Smaller batches for rows that ran out of memory, as long as there are any."""
        if allowance.batch_bytes <= SMALLEST_BATCH_BYTES:
            return allowance
        return self._smaller(allowance, f"{what} ran out of memory")

    def divided(self, what: str) -> None:
        """Record that the rows of a partition are divided among several workers, one after the other."""
        self._act("divide", 1, f"{what} ran out of memory; its rows are divided, and each part gets a new worker")

    def stopped(self, worker: int, why: str) -> None:
        """Record that a worker was stopped because it held more than its share."""
        self._act("stop", 1, f"worker {worker} was stopped: {why}")

    def _smaller(self, allowance: Allowance, why: str) -> Allowance:
        smaller = max(SMALLEST_BATCH_BYTES, allowance.batch_bytes // 2)
        self._batch_bytes = min(self._batch_bytes, smaller)
        self._act("shrink", 1, f"{why}; batches of {format_bytes(smaller)} from now on")
        return replace(allowance, batch_bytes=smaller)

    def _fewer(self, why: str) -> None:
        self.workers -= 1
        self._act("fewer_workers", 1, f"{why}; {plural(self.workers, 'worker')} from now on")

    def _fit(self, copies: float) -> None:
        room = 0.8 * (self.worker_bytes - self.budget.fixed_bytes)
        fitting = int(room / max(copies, 1.0))
        most = max(DEFAULT_BATCH_BYTES, self.budget.batch_bytes)
        self._batch_bytes = max(SMALLEST_BATCH_BYTES, min(self._batch_bytes, fitting, most))

    def _act(self, kind: str, count: int, detail: str) -> None:
        self.actions[kind] = self.actions.get(kind, 0) + count
        self.emit(MemoryAction(kind, detail))

    def as_dict(self) -> dict[str, Any]:
        """For the report: what was allowed, what was done about overflows, what was learned."""
        return {
            "budget_bytes": self.budget.total_bytes,
            "worker_bytes": self.worker_bytes,
            "workers": self.workers,
            "batch_bytes": self._batch_bytes,
            "actions": dict(self.actions),
            **self.learned.as_dict(),
        }


# ---------------------------------------------------------------------------------------------------- inside a worker


def cap_this_process(share_bytes: int, address_bytes: int = 0) -> None:
    """Cap the memory of this process at `share_bytes`; an allocation beyond it raises a MemoryError.

    RLIMIT_DATA counts private writable mappings, so the limit is what is mapped already, plus the share, less what is already
    resident. That includes pages shared with the server this process was forked from. `address_bytes` are allowed on top, for
    libraries that map more than they use.
    """
    if sys.platform != "linux":
        return
    room = max(0, share_bytes - process.status()["VmRSS"])
    limit = process.data_bytes() + room + address_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
