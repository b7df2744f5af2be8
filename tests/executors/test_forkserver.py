"""The server that workers are forked from: what it imports, and one clear error when it is killed from outside."""

import os
import re
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tamis import JsonlWriter
from tamis.cli import app
from tamis.errors import WorkerError
from tamis.events import Events
from tamis.executors.executor import Stop
from tamis.executors.forkserver import ForkServer, modules_of
from tamis.executors.local import LocalExecutor
from tamis.executors.worker_process import MARK
from tamis.memory.budget import make_budget
from tamis.memory.governor import Governor
from tamis.video import VideoBlack, VideoPreview
from tests.test_pipeline import numbered, write_jsonl

ENDED = r"the process that starts the workers has ended unexpectedly \(killed by signal 9 \(SIGKILL\)\)"


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@pytest.fixture
def server():
    with ForkServer() as found:
        yield found


@pytest.fixture
def executor():
    governor = Governor(make_budget(memory="4GB", workers=2), Events([]))
    with LocalExecutor().session(governor, set(), Events([]), Stop()) as found:
        yield found


def test_killed_before_modules_are_preloaded(server):
    kill(server.pid)
    with pytest.raises(WorkerError, match=ENDED) as raised:
        server.preload(["json"])
    assert "rerun the same command to resume" in raised.value.hint


def test_killed_before_a_worker_is_started(server, tmp_path):
    kill(server.pid)
    with pytest.raises(WorkerError, match=ENDED):
        server.start(str(tmp_path / "marker"))


def test_killed_with_a_request_in_its_socket(server, tmp_path):
    os.kill(server.pid, signal.SIGSTOP)
    server.preload(["json"])
    kill(server.pid)
    with pytest.raises(WorkerError, match=ENDED):
        server.start(str(tmp_path / "marker"))


def own_pid(_):
    return os.getpid()


def kills_its_server(_):
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()


def test_killed_while_workers_are_idle(executor):
    executor.map(own_pid, [(0,), (1,)], lambda number, result: None)
    kill(executor._server.pid)
    with pytest.raises(WorkerError, match=ENDED):
        executor.map(own_pid, [(number,) for number in range(4)], lambda number, result: None)


def test_killed_while_a_worker_is_busy(executor):
    with pytest.raises(WorkerError, match=ENDED):
        executor.map(kills_its_server, [(0,)], lambda number, result: None)


def test_killed_while_a_large_message_is_sent(executor):
    executor.map(own_pid, [(0,)], lambda number, result: None)
    (worker,) = executor.crew.workers
    os.kill(worker.pid, signal.SIGSTOP)  # reads nothing, so the message fills the socket
    kill(executor._server.pid)
    with pytest.raises(WorkerError, match=ENDED):
        executor.map(own_pid, [(b"x" * 10_000_000,)], lambda number, result: None)


def test_the_command_line_prints_the_error_and_no_traceback(tmp_path, monkeypatch):
    source = write_jsonl(tmp_path / "in.jsonl", numbered(10))
    started = ForkServer.start

    def start(self, marker):
        kill(self.pid)
        return started(self, marker)

    monkeypatch.setattr(ForkServer, "start", start)
    done = CliRunner().invoke(app, ["run", "gopher", "--input", str(source), "--output", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert "the process that starts the workers has ended unexpectedly" in done.stderr
    assert "Traceback" not in done.output


def test_converting_rows_does_not_import_pandas_once_it_is_kept_out():
    code = """
import sys
import numpy as np
import pyarrow as pa
from tamis.executors.forkserver import _keep_pandas_out

_keep_pandas_out()
table = pa.table({"a": np.arange(2), "b": ["x", None], "c": np.array(["x", "y"], dtype=object)})
assert table.to_pylist()[1] == {"a": 1, "b": None, "c": "y"}
assert "pandas" not in sys.modules
assert table.to_pandas().shape == (2, 3)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_command_has_no_threads_when_it_forks_the_server():
    code = """
import os
from tamis.__main__ import _import_what_workers_need

_import_what_workers_need()
print(len(os.listdir("/proc/self/task")))
"""
    variables = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


def test_a_server_that_is_a_copy_of_the_driver_has_its_own_session_and_no_input(tmp_path):
    code = """
import os, sys
from tamis.executors.forkserver import ForkServer, modules_of

with ForkServer(fork=True) as server:
    pid, connection = server.start(sys.argv[1])
    assert os.getsid(pid) == server.pid != os.getsid(0)
    assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null" != os.readlink("/proc/self/fd/0")
    assert not os.listdir("/proc/self/task")[1:]
    connection.close()
    assert server.ending(pid) == "exit code 0"
assert server._process.wait() == 0
"""
    marker = tmp_path / "marker"
    marker.write_bytes(b"\0" * MARK.size)
    subprocess.run([sys.executable, "-c", code, str(marker)], input=b"", check=True)


def test_the_error_of_a_killed_copy(tmp_path):
    code = """
import os, signal
from tamis.errors import WorkerError
from tamis.executors.forkserver import ForkServer, modules_of

server = ForkServer(fork=True)
os.kill(server.pid, signal.SIGKILL)
try:
    server.start("marker")
except WorkerError as error:
    print(error.message)
server._process.kill()  # does nothing to a process that has been waited for
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.fullmatch(ENDED + "\n", done.stdout)


def test_packages_of_steps_are_imported_before_workers_are_limited():
    found = modules_of([VideoPreview, VideoBlack, JsonlWriter])
    assert {"tamis.video.previews", "av", "PIL.WebPImagePlugin"} <= found
    assert "tamis.kernels.json" not in found  # what a sink needs depends on the steps before it
