"""Figures about stages that run at the same time: their loads, for balancing, and how busy they were, for the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from tamis.executors.balance import StageLoad
from tamis.executors.flows import Flow, Pool
from tamis.executors.tasks import Group
from tamis.memory.budget import StreamBudget

SAMPLE_EVERY_S = 1.0
MOST_SAMPLES = 240
"""Queue lengths kept for the report; every other one is dropped when there are more."""


def stage_loads(
    pools: Sequence[Pool], flows: Sequence[Flow], places: Callable[[int], int], *, more_partitions: bool
) -> list[StageLoad]:
    """The load of each stage at the moment. `places` is how many workers there may be, given how many on one machine.

    Work in progress counts with the time it has taken so far, as if it ended now. A slow stage is thus known to be slow, at
    least, before it has finished anything.
    """
    loads, now = [], time.monotonic()
    source = float(pools[0].bytes_done)  # bytes of the input that a stage has processed
    for number, pool in enumerate(pools):
        jobs = [worker.job for worker in pool.workers if worker.job is not None]
        done, busy = pool.bytes_done, pool.clock.busy_s + sum(job.busy_s(now) for job in jobs)
        if number:
            done += sum(job.task.partition.size for job in jobs if not job.opening)
            source *= min(1.0, done / pool.bytes_in) if pool.bytes_in else 0.0
        before = any(flow.units[stage] for flow in flows for stage in range(number))
        waiting, more = len(pool.waiting), more_partitions or before
        running = len(jobs)
        loads.append(
            StageLoad(
                workers=len(pool.workers),
                most=places(min(pool.most, pool.governor.workers)),
                seconds_per_mb=busy * 1e6 / source if source and busy else None,
                waiting=waiting,
                running=running,
                finished=not more and not waiting and not running,
                more_to_come=more,
                cpus=max([1.0, *(op.resources.cpus for op in pool.stage.operators)]),
            )
        )
    return loads


class Queues:
    """How much waited for each stage, over time."""

    def __init__(self) -> None:
        self.samples: list[dict[str, Any]] = []
        self._began = time.monotonic()
        self._every_s = SAMPLE_EVERY_S

    def sample(self, pools: Sequence[Pool], packet_bytes: int) -> None:
        """Note the present state, unless that was done a moment ago."""
        seconds = time.monotonic() - self._began
        if self.samples and seconds - self.samples[-1]["seconds"] < self._every_s:
            return
        self.samples.append(
            {
                "seconds": round(seconds, 2),
                "waiting": [len(pool.waiting) for pool in pools],
                "workers": [len(pool.workers) for pool in pools],
                "packet_bytes": packet_bytes,
            }
        )
        if len(self.samples) > MOST_SAMPLES:
            self.samples = self.samples[::2]
            self._every_s *= 2


def figures_of(group: Group, pools: Sequence[Pool], stream: StreamBudget, queues: Queues) -> dict[str, Any]:
    """How busy each stage was, for the report."""
    stages: list[dict[str, Any]] = []
    for pool in pools:
        clock = pool.clock
        span = (clock.last - clock.first) if clock.first is not None else 0.0
        stages.append(
            {
                "name": pool.stage.name,
                "most_workers": pool.most,
                "opening_s": round(clock.opening_s, 3),
                "busy_s": round(clock.busy_s, 3),
                "waiting_for_input_s": round(clock.input_s, 3),
                "waiting_for_output_s": round(clock.output_s, 3),
                "span_s": round(span, 3),
            }
        )
    slowest = max(stages, key=lambda stage: stage["busy_s"] / stage["most_workers"])
    return {
        "group": group.index + 1,
        "stages": stages,
        "bottleneck": slowest["name"],
        "edge_bytes": stream.edge_bytes,
        "queue": queues.samples,
    }
