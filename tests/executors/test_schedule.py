"""How a partition is tried again: policies alone, without processes."""

from dataclasses import replace
from itertools import pairwise

import pytest

from tamis.executors.schedule import Trouble, after_death, after_overflow
from tamis.executors.tasks import Task
from tamis.operators import Partition, Piece

WHOLE = Task(Partition(0, (Piece("a.jsonl", 0, 100),), "a"))


def ranges(tasks):
    return [(task.start, task.stop) for task in tasks]


def test_a_worker_that_was_used_before_is_replaced_first():
    (task,) = after_overflow(WHOLE, Trouble(10, 5, "MemoryError", used_worker=True))
    assert task == replace(WHOLE, new_worker=True)


def test_one_row_is_set_apart_and_gets_a_last_attempt_with_the_whole_budget():
    tasks = after_overflow(WHOLE, Trouble(10, 1, "MemoryError", used_worker=True))
    assert ranges(tasks) == [(0, 10), (10, 11), (11, None)]
    assert [task.last_attempt for task in tasks] == [False, True, False]
    assert all(task.new_worker for task in tasks)


def test_rows_that_may_have_filled_a_new_worker_are_halved():
    tasks = after_overflow(WHOLE, Trouble(10, 1, "MemoryError"))
    assert ranges(tasks) == [(0, 5), (5, 10), (10, 11), (11, None)]


def test_several_suspects_are_processed_one_at_a_time():
    tasks = after_overflow(WHOLE, Trouble(8, 4, "MemoryError"))
    assert ranges(tasks) == [(0, 4), (4, 8), (8, 12), (12, None)]
    assert [task.careful for task in tasks] == [False, False, True, False]


def test_a_row_fails_only_after_its_last_attempt():
    row = replace(WHOLE, start=10, stop=11, new_worker=True)
    (last,) = after_overflow(row, Trouble(10, 1, "MemoryError"))
    assert last.last_attempt
    assert not last.poison
    (failed,) = after_overflow(last, Trouble(10, 1, "MemoryError"))
    assert failed.poison == {10: "MemoryError"}


def test_a_leak_is_shared_out_in_parts_of_half_the_rows_that_filled_a_worker():
    (careful,) = after_overflow(WHOLE, Trouble(0, 100, "MemoryError", full=True))
    assert careful.careful
    tasks = after_overflow(careful, Trouble(60, 1, "MemoryError", full=True))
    assert ranges(tasks) == [(0, 30), (30, 60), (60, None)]
    assert tasks[-1].max_rows == 30
    assert not any(task.careful for task in tasks)


def test_a_leak_found_while_reading_is_shared_out_too():
    tasks = after_overflow(replace(WHOLE, careful=True), Trouble(60, 0, "MemoryError", full=True))
    assert ranges(tasks) == [(0, 30), (30, 60), (60, None)]


def test_reading_that_does_not_fit_is_not_a_matter_of_rows():
    assert after_overflow(WHOLE, Trouble(0, 0, "MemoryError")) is None
    rest = replace(WHOLE, start=50)
    assert after_overflow(rest, Trouble(20, 0, "MemoryError")) is None, "it was still passing over rows"


def test_a_worker_that_dies_once_may_have_been_killed_from_outside():
    (task,) = after_death(WHOLE, Trouble(8, 4, "killed"))
    assert ranges([task]) == [(0, None)]
    assert (task.deaths, task.poison) == (1, {})


def test_blame_needs_two_deaths_of_the_batch_and_two_of_the_row():
    (task,) = after_death(WHOLE, Trouble(8, 4, "killed"))
    _, _, suspects, _ = after_death(task, Trouble(8, 4, "killed"))
    assert (suspects.start, suspects.stop, suspects.careful) == (8, 12, True)
    _, row, _ = after_death(suspects, Trouble(9, 1, "killed"))
    assert (row.start, row.stop, row.last_attempt) == (9, 10, True)
    (failed,) = after_death(row, Trouble(9, 1, "killed"))
    assert failed.poison == {9: "killed"}


@pytest.mark.parametrize("policy", [after_overflow, after_death])
@pytest.mark.parametrize("trouble", [Trouble(0, 7, ""), Trouble(3, 1, ""), Trouble(5, 100, ""), Trouble(6, 0, "")])
@pytest.mark.parametrize("stop", [None, 20])
def test_no_row_is_lost_or_processed_twice(policy, trouble, stop):
    tasks = policy(replace(WHOLE, stop=stop, deaths=1), trouble)
    bounds = ranges(tasks)
    assert bounds[0][0] == 0
    assert bounds[-1][1] == stop
    assert all(before[1] == after[0] for before, after in pairwise(bounds))
