"""Calls in worker processes, apart from any run."""

import io
import os
import sys
import time

import pyarrow as pa
import pytest

from tamis.errors import TamisError, is_shortage
from tamis.events import Events
from tamis.executors.local import LocalExecutor, Stop
from tamis.memory import process
from tamis.memory.budget import make_budget
from tamis.memory.governor import Governor


def slow_or_broken(number):
    if number == 1:
        raise TamisError("as planned")
    time.sleep(0.5)
    return number


def threads(_):
    import pyarrow as pa

    return pa.cpu_count(), pa.io_thread_count(), os.environ["OPENBLAS_NUM_THREADS"]


def read_with_no_room_left(path):
    """Opens and parses with Arrow's pools where there is not a megabyte left for the stack of another thread."""
    import resource

    import pyarrow as pa
    import pyarrow.json

    limit = process.data_bytes() + 1_000_000
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    with pytest.raises(pa.ArrowException) as raised:  # this one starts a thread for each call
        pyarrow.json.read_json(io.BytesIO(b"{}\n"))
    return pa.ipc.open_file(pa.memory_map(path)).num_record_batches, is_shortage(raised.value)


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
    assert found == {0: (1, 1, os.environ.get("OPENBLAS_NUM_THREADS", "1"))}


@pytest.mark.skipif(sys.platform != "linux", reason="caps are for Linux")
def test_under_a_cap_arrow_has_its_threads_or_says_that_memory_is_short(executor, tmp_path):
    with (
        pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file,
        pa.ipc.new_file(file, pa.schema({"a": pa.int64()})) as writer,
    ):
        writer.write_table(pa.table({"a": [1]}))
    found = {}
    executor.map(read_with_no_room_left, [(str(tmp_path / "a.arrow"),)], found.__setitem__)
    assert found == {0: (1, True)}
