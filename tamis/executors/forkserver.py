"""Worker processes, forked from a small server that has imported every module and started no threads.

    driver --- control socket ---> server --- fork ---> worker 0, 1, ...
       \\________________________ one socket per worker ______________/

multiprocessing's fork server runs the user's main script again in each child, so a script without
`if __name__ == "__main__"` starts the pipeline inside the pipeline. This one never imports the main script; functions
defined there are pickled by value. The server exits when the driver does, and the workers when the server does, however
the driver ends.
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from tamis.errors import WorkerError
from tamis.mapped import release_pages

OOM_SCORE = "800"
"""Out of 1000: how strongly the kernel prefers to kill a worker when the machine or container runs out of memory."""


class ForkServer:
    """Starts workers and reports how they ended. Use as a context manager."""

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
        """Import these modules before the next worker is forked; returns at once."""
        try:
            self._control.sendall(json.dumps({"preload": sorted(modules)}).encode() + b"\n")
        except ConnectionError as error:
            raise self._gone() from error

    def start(self, marker: str) -> tuple[int, Connection]:
        """Start a worker; returns its process id and the connection to it."""
        mine, theirs = socket.socketpair()
        with mine:  # closes nothing once detached
            try:
                with theirs:
                    request = json.dumps({"marker": marker}).encode() + b"\n"
                    socket.send_fds(self._control, [request], [theirs.fileno()])
            except ConnectionError as error:
                raise self._gone() from error
            while True:
                message = self._receive()
                if "started" in message:
                    return message["started"], Connection(mine.detach())

    def ending(self, pid: int) -> str:
        """Describe how a worker ended, such as "killed by signal 9 (SIGKILL)"; blocks until it has."""
        while pid not in self._ended:
            self._receive()
        return _in_words(os.waitstatus_to_exitcode(self._ended[pid]))

    def _receive(self) -> dict[str, int]:
        while b"\n" not in self._buffer:
            try:
                data = self._control.recv(65536)
            except ConnectionError:
                data = b""
            if not data:
                raise self._gone()
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message = json.loads(line)
        if "ended" in message:
            self._ended[message["ended"]] = message["status"]
        return message

    def _gone(self) -> WorkerError:
        self._control.close()  # a server that only closed its socket exits now
        how = _in_words(self._process.wait())
        return WorkerError(
            f"the process that starts the workers has ended unexpectedly ({how})",
            hint="rerun the same command to resume; committed work is kept",
        )

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self._control.close()
        self._process.wait()


def _in_words(exit_code: int) -> str:
    if exit_code < 0:
        return f"killed by signal {-exit_code} ({signal.Signals(-exit_code).name})"
    return f"exit code {exit_code}"


_waiting: list[ForkServer] = []


@contextlib.contextmanager
def launched(wanted: bool) -> Iterator[Callable[[Iterable[str]], None]]:
    """Start a server now for the run inside the block, so that it imports modules while the caller plans.

    Yields a function that gives it modules to import.
    """
    if wanted and not _waiting:
        _waiting.append(ForkServer())

    def preload(modules: Iterable[str]) -> None:
        for server in _waiting:
            server.preload(modules)

    try:
        yield preload
    finally:
        while _waiting:  # no run took it
            server = _waiting.pop()
            server._process.kill()
            server.__exit__()


def modules_of(steps: Iterable[type]) -> set[str]:
    """The modules that define steps; also pandas, to which the user's own code may convert rows."""
    modules = {step.__module__ for step in steps}
    if any(not name.startswith("tamis.") or name == "tamis.functions" for name in modules):
        modules.add("pandas")
    return modules - {"__main__"}


def take_server() -> ForkServer:
    """Return the server that `launched` started, or a new one."""
    return _waiting.pop() if _waiting else ForkServer()


def _environment() -> dict[str, str]:
    """This process's environment, plus settings that keep workers small.

    Other allocators than the C library's reserve a gigabyte at a time, which defeats the memory cap. There is a worker for
    each core, so thread pools inside workers (Arrow's, OpenBLAS's) only cost memory; variables the user has set win.
    """
    threads = {
        name: os.environ.get(name, "1") for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
    }
    return {**os.environ, **threads, "ARROW_DEFAULT_MEMORY_POOL": "system"}


def serve(descriptor: int) -> None:
    """Run the server: fork on request, report deaths, and kill all workers when the driver exits."""
    control = socket.socket(fileno=descriptor)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the driver decides when to stop
    _import_all(["tamis.executors.worker_process"])
    if not select.select([control], [], [], 0)[0]:  # the driver is still planning, and most steps call kernels
        _load_numba()
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
                        _preload(message["preload"])
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
        os._exit(0)  # an orderly interpreter shutdown takes longer than a small job


def _preload(modules: Sequence[str]) -> None:
    """Import what the steps need, so that workers share it."""
    if "pandas" not in modules:
        _keep_pandas_out()
    _import_all(modules)
    if any(name.startswith("tamis.kernels.") for name in sys.modules):
        _load_numba()


def _load_numba() -> None:
    """Import numba and what it loads with the first kernel, so that workers share it."""
    if "numba" in sys.modules:
        return
    from numba.core.registry import cpu_target

    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()


class _NoPandas:
    """An import hook that reports pandas as not installed."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name, name=name)


def _keep_pandas_out() -> None:
    """Stop pyarrow from importing pandas, where it is installed, when it first converts arrays and lists.

    pyarrow tries once, to recognise pandas' own types, and remembers that it failed. The import takes longer than all others,
    and without functions or operators of the user no row can hold such a type. `to_pandas()` still works.
    """
    if "pandas" in sys.modules:
        return
    import numpy as np
    import pyarrow as pa

    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array(np.zeros(1))
        pa.array(["", None])
    finally:
        sys.meta_path.remove(_NoPandas)


def _import_all(modules: Iterable[str]) -> None:
    for module in modules:
        with contextlib.suppress(ImportError):  # a worker that needs it reports the error
            importlib.import_module(module)


def _report_ended(control: socket.socket, children: set[int]) -> None:
    for pid in list(children):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            children.discard(pid)
            control.sendall(json.dumps({"ended": pid, "status": status}).encode() + b"\n")


def _become_worker(descriptor: int, marker: str, inherited: tuple[socket.socket, int, int]) -> None:
    """Run the worker loop in the forked child, then exit; never returns."""
    from tamis.executors.worker_process import worker_loop

    _die_with_parent()
    _prefer_as_oom_victim()
    gc.freeze()  # keeps pages shared with the server, and collections quick
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


def _prefer_as_oom_victim() -> None:
    """On Linux, make the kernel kill a worker, which can be replaced, rather than the driver if memory runs out."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)


def _die_with_parent() -> None:
    """On Linux, make the kernel kill this worker when the server dies, so that no orphan continues to write."""
    if sys.platform == "linux":
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG, see prctl(2)
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
