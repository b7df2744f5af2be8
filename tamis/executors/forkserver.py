"""Worker processes forked from a small server that has imported everything and started nothing.

    driver --- control socket ---> server --- fork ---> worker 0, 1, ...
       \\________________________ one socket per worker ______________/

Why not multiprocessing's: it runs the user's main script again in each child, and a script without
`if __name__ == "__main__"` then starts the pipeline inside the pipeline. Here the main script is never imported; functions
defined in it travel by value. The server dies with the driver, and the workers with the server, however the driver ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from tamis.errors import WorkerError
from tamis.mapped import release_pages

LOSABLE = "800"
"""Of 1000, the preference to be killed when the machine or its container runs out of memory."""


class ForkServer:
    """Starts workers and tells how they ended. Use as a context manager."""

    def __init__(self) -> None:
        mine, theirs = socket.socketpair()
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from tamis.executors.forkserver import serve; "
            f"serve({theirs.fileno()})"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=_environment(),
        )
        theirs.close()
        self._control = mine
        self._buffer = b""
        self._ended: dict[int, int] = {}

    @property
    def pid(self) -> int:
        return self._process.pid

    def preload(self, modules: Iterable[str]) -> None:
        """Have these imported before the next worker is forked; returns at once."""
        self._control.sendall(json.dumps({"preload": sorted(modules)}).encode() + b"\n")

    def start(self, marker: str) -> tuple[int, Connection]:
        """A new worker: its process id and the connection to it."""
        mine, theirs = socket.socketpair()
        socket.send_fds(self._control, [json.dumps({"marker": marker}).encode() + b"\n"], [theirs.fileno()])
        theirs.close()
        while True:
            message = self._receive()
            if "started" in message:
                return message["started"], Connection(mine.detach())

    def ending(self, pid: int) -> str:
        """How a worker that is gone ended, in words; waits until the server knows."""
        while pid not in self._ended:
            self._receive()
        status = self._ended[pid]
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            return f"killed by signal {number} ({signal.Signals(number).name})"
        return f"exit code {os.WEXITSTATUS(status)}"

    def _receive(self) -> dict[str, int]:
        while b"\n" not in self._buffer:
            try:
                data = self._control.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                raise WorkerError("the process that starts workers has ended", hint="run the same command again")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message = json.loads(line)
        if "ended" in message:
            self._ended[message["ended"]] = message["status"]
        return message

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self._control.close()
        self._process.wait()


_waiting: list[ForkServer] = []


@contextlib.contextmanager
def launched(wanted: bool) -> Iterator[None]:
    """Start a server now for the run that comes in this block: it imports while the caller still reads and plans."""
    if wanted:
        _waiting.append(ForkServer())
    try:
        yield
    finally:
        while _waiting:  # nobody came for it
            server = _waiting.pop()
            server._process.kill()
            server.__exit__()


def take_server() -> ForkServer:
    """The server that was launched already, or a new one."""
    return _waiting.pop() if _waiting else ForkServer()


def _environment() -> dict[str, str]:
    """Ours, and what keeps a worker small.

    Other allocators reserve a gigabyte at a time, and a cap on what a worker holds could not be kept. There is a worker for
    each core, so a pool of threads in each of them (Arrow's, OpenBLAS's) would only cost memory; who wants one says so.
    """
    threads = {
        name: os.environ.get(name, "1") for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
    }
    return {**os.environ, **threads, "ARROW_DEFAULT_MEMORY_POOL": "system"}


def serve(descriptor: int) -> None:
    """The server's life: fork on request, report deaths, and end all workers when the driver is gone."""
    control = socket.socket(fileno=descriptor)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the driver decides when to stop
    # pyarrow imports pandas, where there is one, when it first converts an array: better once here than in each worker.
    _import_all(["tamis.executors.local", "pandas"])
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write)
    children: set[int] = set()
    inbox: list[socket.socket | int] = [control, wake_read]
    try:
        while True:
            ready, _, _ = select.select(inbox, [], [])
            if wake_read in ready:
                os.read(wake_read, 4096)
                _report_ended(control, children)
            if control in ready:
                data, descriptors, _, _ = socket.recv_fds(control, 1 << 20, 1)
                if not data:
                    return
                for line in data.splitlines():
                    message = json.loads(line)
                    if "preload" in message:
                        _import_all(message["preload"])
                        release_pages(code=True)
                        continue
                    pid = os.fork()
                    if pid == 0:
                        _become_worker(descriptors[0], message["marker"], (control, wake_read, wake_write))
                    os.close(descriptors[0])
                    children.add(pid)
                    control.sendall(json.dumps({"started": pid}).encode() + b"\n")
    except (BrokenPipeError, ConnectionResetError):
        pass
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        sys.stderr.flush()
        os._exit(0)  # taking everything apart in order takes longer than a small job


def _import_all(modules: Iterable[str]) -> None:
    for module in modules:
        with contextlib.suppress(ImportError):  # a worker that needs it will tell the driver
            importlib.import_module(module)


def _report_ended(control: socket.socket, children: set[int]) -> None:
    for pid in list(children):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            children.discard(pid)
            control.sendall(json.dumps({"ended": pid, "status": status}).encode() + b"\n")


def _become_worker(descriptor: int, marker: str, inherited: tuple[socket.socket, int, int]) -> None:
    """Never returns: runs the worker loop in the forked child and exits."""
    from tamis.executors.local import worker_loop

    _die_with_parent()
    _die_first()
    gc.freeze()  # what was imported before the fork stays shared, and collecting is quick
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    inherited[0].close()
    os.close(inherited[1])
    os.close(inherited[2])
    code = 1
    try:
        worker_loop(Connection(descriptor), marker)
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def _die_first() -> None:
    """On Linux, if memory runs out all the same, have the kernel end a worker, which is replaced, and not the driver."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(LOSABLE)


def _die_with_parent() -> None:
    """On Linux, have the kernel end this worker if the server is killed: an orphan must not go on writing."""
    if sys.platform == "linux":
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG, see prctl(2)
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
