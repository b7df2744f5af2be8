"""Calls in worker processes, apart from any run."""

import io
import os
import select
import signal
import sys

import pyarrow as pa
import pytest

from tamis import Pipeline, Rows
from tamis.errors import TamisError, WorkerError, is_shortage
from tamis.events import Events
from tamis.executors import schedule
from tamis.executors.compiling import KernelsCompiled
from tamis.executors.executor import Stop
from tamis.executors.local import LocalExecutor
from tamis.memory import process
from tamis.memory.budget import make_budget
from tamis.memory.governor import Governor
from tamis.operators import Map, operator


def held_or_broken(number, begun, released):
    """Number 0 says that it has begun and waits to be released; number 1 breaks once that has begun."""
    if number == 1:
        begun.open("rb").read(1)
        raise TamisError("as planned")
    if number == 0:
        begun.write_bytes(b".")
        released.open("rb").read(1)
    return number


def always_compiling(number):
    raise KernelsCompiled


@operator(reads="n", writes="m")
class CompilesForTests(Map):
    """Never finds its kernels on disk."""

    def apply(self, batch):
        raise KernelsCompiled


def threads(_):
    import pyarrow as pa

    return pa.cpu_count(), pa.io_thread_count(), os.environ["OPENBLAS_NUM_THREADS"]


def read_with_no_memory_left(path):
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
    governor = Governor(make_budget(memory="4GB", workers=2), Events([]))
    with LocalExecutor().session(governor, set(), Events([]), Stop()) as found:
        yield found


@pytest.fixture
def fifos(tmp_path):
    """Two named pipes, held open at both ends so that nobody waits for the other to open one."""
    paths = [tmp_path / "begun", tmp_path / "released"]
    for path in paths:
        os.mkfifo(path)
    held = [os.open(path, os.O_RDWR) for path in paths]
    yield paths
    for descriptor in held:
        os.close(descriptor)


def test_what_was_begun_before_an_error_is_no_answer_to_the_next_call(executor, fifos):
    assert executor.governor.workers == 2
    with pytest.raises(TamisError, match="as planned"):
        executor.map(held_or_broken, [(0, *fifos), (1, *fifos)], lambda number, result: None)
    fifos[1].write_bytes(b".")
    found = {}
    executor.map(held_or_broken, [(10, *fifos), (11, *fifos), (12, *fifos)], found.__setitem__)
    assert found == {0: 10, 1: 11, 2: 12}


def test_a_call_that_compiles_without_end_is_given_up(executor, monkeypatch):
    monkeypatch.setattr(schedule, "MAX_COMPILED", 3)
    with pytest.raises(WorkerError, match="compiled 4 times for always_compiling") as raised:
        executor.map(always_compiling, [(0,)], lambda number, result: None)
    assert "NUMBA_CACHE_DIR" in raised.value.hint


def test_a_partition_that_compiles_without_end_is_given_up(monkeypatch):
    monkeypatch.setattr(schedule, "MAX_COMPILED", 3)
    with pytest.raises(WorkerError, match="kernels were compiled 4 times for"):
        Pipeline(Rows([{"n": 1}]), CompilesForTests()).collect(workers=1)


def own_pid(_number):
    return os.getpid()


def test_new_workers_are_used_for_calls_on_request(executor):
    found = {}
    for number, fresh in enumerate([False, False, True]):
        executor.map(own_pid, [(0,)], lambda _, pid, number=number: found.update({number: pid}), new_workers=fresh)
    assert found[0] == found[1] != found[2]


def test_recycling_in_the_middle_of_calls_ends_nobody_who_is_busy(executor, fifos):
    begun, released = fifos

    def recycle():
        if select.select([watched], [], [], 0)[0]:  # the call has begun, and waits
            os.read(watched, 1)
            executor.recycle()
            released.write_bytes(b".")

    watched = os.open(begun, os.O_RDONLY | os.O_NONBLOCK)
    executor.hooks.on_tick = recycle
    found = {}
    executor.map(held_or_broken, [(0, *fifos), (2, *fifos), (3, *fifos)], found.__setitem__)
    os.close(watched)
    assert found == {0: 0, 1: 2, 2: 3}


def test_a_worker_that_dies_before_its_first_message_is_replaced(executor):
    found = {}
    executor.map(own_pid, [(0,), (1,)], found.__setitem__)
    for pid in set(found.values()):
        os.kill(pid, signal.SIGKILL)
    for worker in executor.crew.workers:
        worker.send("cap", worker.share_bytes)
    found.clear()
    executor.map(held_or_broken, [(2, None, None), (3, None, None)], found.__setitem__)
    assert found == {0: 2, 1: 3}


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
    executor.map(read_with_no_memory_left, [(str(tmp_path / "a.arrow"),)], found.__setitem__)
    assert found == {0: (1, True)}
