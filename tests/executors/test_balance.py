"""How many workers each stage gets, with numbers."""

import random

import pytest

from tamis.executors.balance import StageLoad, balance


def stage(seconds_per_mb, workers=1, most=1000, waiting=10, running=1, **options):
    return StageLoad(workers, most, seconds_per_mb, waiting, running, **options)


def test_a_stage_that_cannot_grow_sets_the_pace():
    # One classifier takes a second per megabyte, so readers and writers need a tenth of a core each.
    assert balance([stage(0.1), stage(1.0, most=1), stage(0.1)], cores=16) == (1, 1, 1)


def test_cores_are_divided_in_proportion_to_the_work():
    assert balance([stage(0.1), stage(0.4), stage(0.1)], cores=12) == (2, 8, 2)


def test_eight_gpus_get_enough_readers():
    # 8 GPUs at 10 MB/s each need 80 MB/s, and a reader gives 20; one more, so that the GPUs never wait.
    assert balance([stage(0.05), stage(0.1, most=8, cpus=0.2), stage(0.01)], cores=64) == (5, 8, 1)


def test_every_stage_has_a_worker_even_on_one_core():
    assert balance([stage(0.1) for _ in range(20)], cores=1) == (1,) * 20


def test_before_anything_is_measured_pools_stay_as_they_are():
    assert balance([stage(None, workers=2), stage(None, workers=0), stage(None, workers=1)], cores=4) == (2, 1, 1)


def test_a_pool_shrinks_by_half_at_a_time_unless_nothing_is_left_for_it():
    # The first packet on a GPU takes long, and for a moment one reader seems to be enough.
    slow = stage(8.0, most=1)
    assert balance([stage(0.1, workers=15), slow], cores=16) == (7, 1)
    assert balance([stage(0.1, workers=7), slow], cores=16) == (3, 1)
    assert balance([stage(0.1, workers=15, waiting=0, running=2, more_to_come=False), slow], cores=16) == (1, 1)


def test_cores_go_to_what_is_left_at_the_end():
    done = stage(0.5, waiting=0, running=0, finished=True, more_to_come=False)
    assert balance([done, stage(0.5, most=8), stage(0.5, most=8)], cores=4) == (0, 2, 2)
    last = stage(0.5, most=8, waiting=1, running=1, more_to_come=False)
    assert balance([done, done, last], cores=4) == (0, 0, 2)


def test_more_memory_is_never_exceeded():
    generator = random.Random(3)
    for _ in range(500):
        loads = [
            stage(generator.choice([None, generator.expovariate(2)]), generator.randrange(5), generator.randrange(1, 9))
            for _ in range(generator.randrange(1, 6))
        ]
        for load, workers in zip(loads, balance(loads, generator.randrange(1, 65)), strict=True):
            assert 1 <= workers <= load.most


@pytest.mark.parametrize("cores", [16, 1000])
def test_a_simulated_pipeline_keeps_its_cores_busy(cores):
    """Three stages with true costs that are known to the simulation alone; the pools follow the measurements."""
    costs = (0.2, 1.0, 0.3)
    workers = (1, 1, 1)
    done = [0.0, 0.0, 0.0]
    busy = [0.0, 0.0, 0.0]
    queues = [0.0, 0.0]
    for second in range(60):
        rates = [count / cost for count, cost in zip(workers, costs, strict=True)]
        moved = [rates[0], min(rates[1], queues[0] + rates[0]), 0.0]
        moved[2] = min(rates[2], queues[1] + moved[1])
        queues = [queues[0] + moved[0] - moved[1], queues[1] + moved[1] - moved[2]]
        for number in range(3):
            done[number] += moved[number]
            busy[number] += moved[number] * costs[number]
        loads = [
            stage(busy[n] / done[n] if done[n] else None, workers=workers[n], most=cores, waiting=int(queues[n - 1]))
            for n in range(3)
        ]
        workers = balance(loads, cores)
        if second == 10:
            after_warm_up = done[2]
    best = cores / sum(costs)
    assert (done[2] - after_warm_up) / 49 > 0.9 * best
    assert sum(workers) <= cores + len(costs)
