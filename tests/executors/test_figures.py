"""The loads of stages that run at the same time."""

import time
from types import SimpleNamespace

import pytest

from tamis.executors.figures import stage_loads
from tamis.executors.flows import Job, PoolClock


def pool(bytes_in, bytes_done, busy_s, jobs=()):
    clock = PoolClock()
    clock.busy_s = busy_s
    return SimpleNamespace(
        bytes_in=bytes_in,
        bytes_done=bytes_done,
        clock=clock,
        waiting=[],
        most=4,
        governor=SimpleNamespace(workers=4),
        stage=SimpleNamespace(operators=[]),
        workers=[SimpleNamespace(job=job) for job in jobs],
    )


def job(size, busy_s, **options):
    task = SimpleNamespace(partition=SimpleNamespace(size=size))
    return Job(None, None, task, began=time.monotonic() - busy_s, **options)


def seconds_per_mb(*pools):
    return [load.seconds_per_mb for load in stage_loads(pools, [], lambda workers: workers, more_partitions=True)]


def test_a_stage_that_has_finished_nothing_is_as_slow_as_its_work_in_progress_shows():
    read = pool(10_000_000, 10_000_000, busy_s=2.0)
    slow = pool(10_000_000, 0, busy_s=0.0, jobs=[job(1_000_000, 3.0), job(1_000_000, 1.0)])
    assert seconds_per_mb(read, slow) == pytest.approx([0.2, 2.0], rel=0.05)


def test_a_worker_that_opens_its_stage_is_not_busy():
    read = pool(10_000_000, 10_000_000, busy_s=2.0)
    slow = pool(10_000_000, 1_000_000, busy_s=1.0, jobs=[job(1_000_000, 50.0, opening=True)])
    assert seconds_per_mb(read, slow) == pytest.approx([0.2, 1.0], rel=0.05)
