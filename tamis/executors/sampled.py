"""When not all rows fit: run a random sample of them, doubled from round to round until it no longer fits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from tamis.errors import BudgetError, DiskFull
from tamis.events import Events, MemoryAction
from tamis.operators import Operator
from tamis.report import Report
from tamis.sampling import RowShare

SMALLEST_SHARE = 1 / 64
"""The first round. The sixth doubling would be all rows, which are known not to fit."""


class Attempt(Protocol):
    """Runs these steps from the start and replaces the output."""

    def __call__(self, steps: Sequence[Operator], *, fresh: bool) -> Report: ...


def run_sampled(
    attempt: Attempt, steps: Sequence[Operator], error: Exception, emit: Events, max_seconds: float | None
) -> Report:
    """Run the largest share that fits. Each share includes the smaller ones; `error` is why not all rows fit."""
    began = time.monotonic()
    rounds: list[dict[str, float]] = []
    share, fits = SMALLEST_SHARE, True
    report = Report()
    while share < 1 and fits:
        emit(MemoryAction("sample", f"not all rows fit; trying {share:.2%} of them"))
        before = time.monotonic()
        try:
            report = attempt(_sampled(steps, share), fresh=True)
        except (BudgetError, DiskFull) as overflow:
            error, fits = overflow, False
        else:
            rounds.append({"share": share, "seconds": round(time.monotonic() - before, 3), "kept": report.kept})
            share *= 2
            if max_seconds is not None and time.monotonic() - began + 2 * rounds[-1]["seconds"] > max_seconds:
                break
    if not rounds:
        raise error
    fitted = rounds[-1]["share"]
    if not fits:  # the round that did not fit has replaced the output of the one that did
        report = attempt(_sampled(steps, fitted), fresh=True)
    report.sample = {"share": fitted, "weight": 1 / fitted, "rounds": rounds}
    return report


def _sampled(steps: Sequence[Operator], share: float) -> list[Operator]:
    return [steps[0], RowShare(share=share), *steps[1:]]
