"""Worker processes, forked from a small server that has imported every module and started no threads.

The server is a new process, since the program that calls Tamis may have threads and hold much memory. The command `tamis`
has neither when it starts, so there the server is a copy of the driver and shares what that has imported.

    driver --- control socket ---> server --- fork ---> worker 0, 1, ...
       \\________________________ one socket per worker ______________/

multiprocessing's fork server runs the user's main script again in each child, so a script without
`if __name__ == "__main__"` starts the pipeline inside the pipeline. This one never imports the main script; functions
defined there are pickled by value. The server exits when the driver does, and the workers when the server does, however
the driver ends.
"""

from __future__ import annotations

import contextlib
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
from typing import TYPE_CHECKING

from tamis.errors import WorkerError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from tamis.operators import Operator

# The server cannot start before this module is imported, so other modules are imported where they are used.

OOM_SCORE = "800"
"""Out of 1000: how strongly the kernel prefers to kill a worker when the machine or container runs out of memory."""


class ForkServer:
    """Starts workers and reports how they ended. Use as a context manager."""

    def __init__(self, *, fork: bool = False, folder: str | None = None, path: Sequence[str] = ()) -> None:
        """Start the server: as a new process, or with `fork` as a copy of this one, which must have no threads.

        A new process has `folder` as its working directory, and `path` at the end of its `sys.path`.
        """
        mine, theirs = socket.socketpair()
        with theirs:
            self._process = _Copy(mine, theirs) if fork else _new_process(theirs, folder, [*sys.path, *path])
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
        from multiprocessing.connection import Connection

        mine, theirs = socket.socketpair()
        with mine:  # closes nothing once detached
            with theirs:
                pid = self.fork(marker, theirs.fileno())
            return pid, Connection(mine.detach())

    def fork(self, marker: str, descriptor: int) -> int:
        """Start a worker that serves the other side of a connection; returns its process id."""
        try:
            request = json.dumps({"marker": marker}).encode() + b"\n"
            socket.send_fds(self._control, [request], [descriptor])
        except ConnectionError as error:
            raise self._gone() from error
        while True:
            message = self._receive()
            if "started" in message:
                return message["started"]

    def fileno(self) -> int:
        """Readable when `ended` has something to report."""
        return self._control.fileno()

    def ended(self) -> dict[int, str]:
        """By process id, how workers ended since the last call; does not wait."""
        while b"\n" in self._buffer or select.select([self._control], [], [], 0)[0]:
            self._receive()
        found = {pid: _in_words(os.waitstatus_to_exitcode(status)) for pid, status in self._ended.items()}
        self._ended.clear()
        return found

    def ending(self, pid: int) -> str:
        """Describe how a worker ended, such as "killed by signal 9 (SIGKILL)"; blocks until it has."""
        while pid not in self._ended:
            self._receive()
        return _in_words(os.waitstatus_to_exitcode(self._ended[pid]))

    def _receive(self) -> dict[str, int]:
        while b"\n" not in self._buffer:
            try:
                data = self._control.recv(65536)
            except OSError:  # the connection is lost, or was closed when that was found out
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


def _new_process(control: socket.socket, folder: str | None, path: Sequence[str]) -> subprocess.Popen[bytes]:
    descriptor = control.fileno()
    code = f"import sys; sys.path[:] = {path!r}; from tamis.executors.forkserver import serve; serve({descriptor})"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        pass_fds=[descriptor],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, **worker_environment()},
    )


class _Copy:
    """A copy of this process that runs the server; has the methods of `Popen` that are used here."""

    def __init__(self, mine: socket.socket, theirs: socket.socket) -> None:
        self._exit_code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            try:
                mine.close()
                os.setsid()
                _close_stdin()
                serve(theirs.fileno())
            finally:
                os._exit(1)

    def wait(self) -> int:
        if self._exit_code is None:
            self._exit_code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._exit_code

    def kill(self) -> None:
        if self._exit_code is None:
            os.kill(self.pid, signal.SIGKILL)


def _close_stdin() -> None:
    """Make reads from stdin end at once."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    if null != 0:
        os.close(null)


def _in_words(exit_code: int) -> str:
    if exit_code < 0:
        return f"killed by signal {-exit_code} ({signal.Signals(-exit_code).name})"
    return f"exit code {exit_code}"


_waiting: list[ForkServer] = []


@contextlib.contextmanager
def launched(wanted: bool, *, fork: bool = False) -> Iterator[Callable[[Iterable[str]], None]]:
    """Start a server now for the run inside the block, so that it imports modules while the caller plans.

    Yields a function that gives it modules to import.
    """
    if wanted and not _waiting:
        _waiting.append(ForkServer(fork=fork))

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


def modules_of(steps: Iterable[type[Operator]]) -> set[str]:
    """The modules of steps and those they name; also pandas, to which the user's own code may convert rows."""
    steps = list(steps)
    modules = {step.__module__ for step in steps}
    if any(not name.startswith("tamis.") or name == "tamis.functions" for name in modules):
        modules.add("pandas")
    # What a sink names is needed only if it converts rows.
    modules |= {name for step in steps if step.kind != "sink" for name in step.preload}
    return modules - {"__main__"}


def take_server() -> ForkServer:
    """Return the server that `launched` started, or a new one."""
    return _waiting.pop() if _waiting else ForkServer()


def worker_environment() -> dict[str, str]:
    """Variables that keep workers small.

    Other allocators than the C library's reserve a gigabyte at a time, which defeats the memory cap. There is a worker for
    each core, so thread pools inside workers (Arrow's, OpenBLAS's) only cost memory; variables the user has set win.
    """
    threads = {
        name: os.environ.get(name, "1") for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
    }
    return {
        **threads,
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        # Arrow loads jemalloc even so, and it starts a thread, which a process that forks must not have.
        "JE_ARROW_MALLOC_CONF": os.environ.get("JE_ARROW_MALLOC_CONF", "background_thread:false"),
        # Otherwise a module that calls torch.cuda.is_available() when it is imported opens the GPU in the server, and no
        # process that is forked from it can use the GPU.
        "PYTORCH_NVML_BASED_CUDA_CHECK": os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK", "1"),
    }


def serve(descriptor: int) -> None:
    """Run the server: fork on request, report deaths, and kill all workers when the driver exits."""
    gc.disable()  # what is imported stays, so that there is little to collect; workers collect
    control = socket.socket(fileno=descriptor)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the driver decides when to stop
    _import_all(["tamis.executors.worker_process"])
    from tamis.mapped import release_pages

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
    from tamis.kernels.jit import start_runtime

    start_runtime()


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
    from multiprocessing.connection import Connection

    from tamis.executors.worker_process import worker_loop

    _die_with_parent()
    _prefer_as_oom_victim()
    gc.freeze()  # keeps pages shared with the server, and collections quick
    gc.enable()
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
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
        file.write(OOM_SCORE)


def _die_with_parent() -> None:
    """On Linux, make the kernel kill this worker when the server dies, so that no orphan continues to write."""
    if sys.platform == "linux":
        import ctypes

        set_parent_death_signal = 1  # PR_SET_PDEATHSIG, see prctl(2)
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
