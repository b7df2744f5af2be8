"""Calls in worker processes, apart from any run."""

import os
import time

import pytest

from tamis.errors import TamisError
from tamis.events import Events
from tamis.executors.local import LocalExecutor, Stop
from tamis.memory.budget import make_budget
from tamis.memory.governor import Governor


def slow_or_broken(number):
    if number == 1:
        raise TamisError("as planned")
    time.sleep(0.5)
    return number


def threads(_):
    import pyarrow as pa

    return pa.cpu_count(), os.environ["OPENBLAS_NUM_THREADS"]


@pytest.fixture
def executor():
    with LocalExecutor(Governor(make_budget(memory="4GB", workers=2), Events([])), [], Events([]), Stop()) as found:
        yield found


def test_what_was_begun_before_an_error_is_no_answer_to_the_next_call(executor):
    with pytest.raises(TamisError, match="as planned"):
        executor.map(slow_or_broken, [(0,), (1,)], lambda number, result: None)
    found = {}
    executor.map(slow_or_broken, [(10,), (11,), (12,)], found.__setitem__)
    assert found == {0: 10, 1: 11, 2: 12}


def test_a_worker_has_one_thread(executor):
    found = {}
    executor.map(threads, [(0,)], found.__setitem__)
    assert found == {0: (1, os.environ.get("OPENBLAS_NUM_THREADS", "1"))}
