"""How many workers each stage of a group should have: a function of what was measured, without processes.

The rows pass all stages, so all of them go at the pace of the slowest. That pace is limited by the cores, and by stages that
cannot have more workers because of memory or GPUs. Every stage gets as many workers as it needs to keep up, and no more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SLACK = 1.15
"""A stage gets workers for somewhat more than the pace that is expected, so that it does not become the slowest."""


@dataclass(frozen=True)
class StageLoad:
    """One stage at the moment."""

    workers: int
    most: int
    """The most workers that fit in memory, or that there are GPUs for."""
    seconds_per_mb: float | None
    """Time that its workers were busy, per megabyte of the input of the whole group; None if it has done nothing yet."""
    waiting: int
    """Pieces of work that could be started now."""
    running: int
    finished: bool = False
    """Nothing is left for it to do, now or later."""
    more_to_come: bool = True
    """Work may still arrive beside what is waiting."""
    cpus: float = 1.0
    """Cores that a busy worker uses."""


def balance(stages: Sequence[StageLoad], cores: int) -> tuple[int, ...]:
    """Workers per stage.

    >>> read = StageLoad(workers=2, most=2, seconds_per_mb=0.1, waiting=0, running=1)
    >>> classify = StageLoad(workers=1, most=1, seconds_per_mb=1.0, waiting=4, running=1)
    >>> balance([read, classify, read], cores=2)
    (1, 1, 1)
    """
    active = [stage for stage in stages if not stage.finished and stage.seconds_per_mb]
    work = sum((stage.seconds_per_mb or 0.0) * stage.cpus for stage in active)
    by_cores = cores / work if work else math.inf
    by_limits = min((stage.most / stage.seconds_per_mb for stage in active if stage.seconds_per_mb), default=math.inf)
    slack = SLACK if by_limits < by_cores else 1.0  # if all cores are busy, more workers do not help
    return tuple(_workers(stage, min(by_cores, by_limits) * slack) for stage in stages)


def _workers(stage: StageLoad, pace: float) -> int:
    if stage.finished:
        return 0
    wanted = max(1, stage.workers)
    if stage.seconds_per_mb is not None and pace < math.inf:
        wanted = math.ceil(round(pace * stage.seconds_per_mb, 6))
    if stage.more_to_come:
        # By half at most: the first rows of another stage may be slow, and starting workers again takes time.
        wanted = max(wanted, stage.workers // 2)
    else:
        wanted = min(wanted, stage.waiting + stage.running)
    return max(1, min(wanted, stage.most))
