import pytest

from tamis.errors import BudgetError, ParameterError
from tamis.memory.budget import make_budget, usable_cpus, usable_memory


def test_a_budget_is_divided_among_the_workers_and_says_why():
    budget = make_budget(memory="8GB", workers=4)
    assert budget.workers == 4
    assert budget.workers * budget.worker_bytes <= 8_000_000_000
    assert budget.reasons["memory"] == "8.0 GB: as asked"
    assert set(budget.reasons) == {"memory", "driver", "workers", "worker_bytes", "batch_bytes", "blocksize"}


def test_a_small_budget_means_fewer_workers_and_smaller_batches():
    large, small = make_budget(memory="8GB", workers=2), make_budget(memory="400MB")
    assert small.workers == 1
    assert small.batch_bytes < large.batch_bytes


def test_a_budget_that_cannot_work_names_the_smallest_that_can():
    with pytest.raises(BudgetError, match="the smallest budget it can work with is 316 MB"):
        make_budget(memory="50MB")
    make_budget(memory="316MB")


def test_what_the_caller_holds_is_counted_up_to_what_tamis_needs():
    small, large = (
        make_budget(memory="1GB", caller_bytes=100_000_000),
        make_budget(memory="1GB", caller_bytes=3_000_000_000),
    )
    assert small.before_bytes == 0
    assert large.before_bytes == 2_800_000_000
    assert large.driver_bytes - small.driver_bytes == 100_000_000
    assert "2.8 GB the caller held before" in large.reasons["driver"]


def test_operators_that_need_memory_are_counted():
    with pytest.raises(BudgetError):
        make_budget(memory="400MB", operator_bytes=1_000_000_000)


@pytest.mark.parametrize("workers", [0, -1, "two", 1.5, True])
def test_the_number_of_workers_is_checked(workers):
    with pytest.raises(ParameterError, match="`workers` must be"):
        make_budget(workers=workers)


def test_the_machine_is_looked_at():
    assert usable_cpus() >= 1
    assert usable_memory() > 100_000_000
