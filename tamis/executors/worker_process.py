"""The worker process: reads messages from the driver, runs tasks and calls, and reports what came of them.

driver -> worker    cpus, cap, gpu, stage, task, call, credit (another packet may be handed to the next stage),
                    apart (the driver is on another machine)
worker -> driver    opened (a stage), progress, packet, safe (point), outcome, error, gpus (memory it uses there)
                    overflow (a task ran out of memory), too large (a stage did), dying (of an error that this says)
                    compiling, compiled (a kernel; the worker then exits)
                    held, mark (what a driver on the same machine can see)
"""

from __future__ import annotations

import mmap
import os
import pickle
import resource
import struct
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tamis.context import Context
from tamis.errors import DeviceLost, SetupTooLarge, TamisError, WorkerError, is_shortage, missing_module
from tamis.exchange import remove_local_copies
from tamis.executors.compiling import Compiling, KernelsCompiled
from tamis.executors.segments import Segment
from tamis.executors.tasks import CorruptFrames, Packet, RowOverflow
from tamis.executors.worker import Progress, StageRunner
from tamis.memory import process
from tamis.memory.governor import cap_this_process
from tamis.memory.gpu import GpuShare, own_shares, publish_shares
from tamis.memory.monitor import private_bytes
from tamis.models import devices
from tamis.report import ErrorCount

PROGRESS_EVERY_S = 0.25

TRIM_AFTER_S = 2.0
"""Free memory is returned to the system after a task if this long has passed since the last time. Doing so costs a twentieth
of a second, mostly for pages that the next task needs again: a tenth of the time of a small partition."""

MARK = struct.Struct("<qqq")
"""What a worker is doing: first row, number of rows (0 while it reads), step (-1 - the number of the piece while it reads
a file). Kept in a file that survives the worker."""


def worker_loop(connection: Connection, marker_path: str) -> None:
    """Serve the driver until it closes the connection."""
    with ExitStack() as stack:
        stack.callback(remove_local_copies)
        worker = _Worker(connection, marker_path)
        stack.callback(worker.close_stage)
        stack.callback(publish_shares, {})
        worker.serve()


class _Worker:
    """The state of a worker between two messages: its stage, and its share of memory, cores and GPUs."""

    def __init__(self, connection: Connection, marker_path: str) -> None:
        self._connection = connection
        with Path(marker_path).open("r+b") as file:
            self._marks = mmap.mmap(file.fileno(), MARK.size)
        process.start_threads(Path(f"{marker_path}.arrow"))
        self._runner: StageRunner | None = None
        self._share, self._where, self._cpus = 0, devices.Assigned(), 1
        self._apart = False
        self._trimmed = time.monotonic()
        self._reported: dict[int, GpuShare] = {}
        self._compiling = Compiling(lambda: self._send("compiling"))

    def serve(self) -> None:
        while True:
            try:
                kind, content = pickle.loads(self._connection.recv_bytes())
            except (EOFError, OSError):
                return
            if not self._handle(kind, content):
                return

    def close_stage(self) -> None:
        if self._runner is not None:
            closing, self._runner = self._runner, None
            closing.close()

    def _handle(self, kind: str, content: Any) -> bool:
        """Do what a message requests and report what came of it; returns whether the worker continues to serve."""
        overflow: tuple[int, int, str] | None = None
        usage = process.Usage()
        try:
            if self._is_set(kind, content):
                return True
            if kind == "stage":
                self._open_stage(content)
                return True
            answer: tuple[Any, ...] = ("outcome", self._outcome(kind, content))
        except CorruptFrames as found:
            answer = ("corrupt", found.places)
        except KernelsCompiled:
            self._send("compiled", None)
            return False
        except DeviceLost as error:
            self._send("dying", str(error))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.abort()  # counts as the crash of a worker: the rows are tried again in others
        except Exception as error:  # noqa: BLE001 - raised again in the driver
            if kind == "stage" and is_shortage(error):
                known = error if isinstance(error, SetupTooLarge) else SetupTooLarge("a step", error)
                self._send("too large", (str(known), self._share))
                return False
            if kind == "task" and is_shortage(error):
                overflow = self._overflow_of(error)
            else:
                # A node of a cluster may lack a package; rows have not been processed yet.
                answer = ("error", _portable(error), missing_module(error) if kind in ("stage", "call") else None)
            error.__traceback__ = None  # its frames hold the memory
        self._compiling.release()
        if kind == "task" and (overflow is not None or time.monotonic() - self._trimmed > TRIM_AFTER_S):
            process.trim()
            self._trimmed = time.monotonic()
        if overflow is not None:
            answer = ("overflow", (*overflow, usage.is_full()))
        self._report_gpus()
        if self._apart:
            self._send("mark", *MARK.unpack_from(self._marks, 0))
            if kind == "task":
                self._send("held", private_bytes(os.getpid()))
        self._send(*answer)
        return True

    def _is_set(self, kind: str, content: Any) -> bool:
        """Take over a setting; returns whether the message was one. They are not answered."""
        match kind:
            case "gpu":
                self._where = (
                    devices.assign(content.names, content.gpu_bytes) if content is not None else devices.assign(None)
                )
            case "cpus":
                self._cpus = content
            case "apart":
                self._apart = True
            case "cap":
                self._share = content
                cap_this_process(self._share, _address_bytes(self._where, opened=self._runner is not None))
            case "credit":
                pass  # granted when the task had ended already
            case _:
                return False
        return True

    def _open_stage(self, content: bytes) -> None:
        if self._runner is not None:
            self.close_stage()
            process.trim()
        began = time.monotonic()
        where = self._where
        context = Context(where.device, self._share or None, where.gpu_memory_bytes, cpus=self._cpus)
        self._runner = StageRunner(loads(content), self._mark, context)
        if self._share and where.device != "cpu":  # what CUDA maps when it is opened is mapped now
            cap_this_process(self._share, devices.GPU_RUNNING_BYTES)
        self._send("opened", time.monotonic() - began)

    def _outcome(self, kind: str, content: Any) -> Any:
        """The result of a call or a task."""
        if kind == "call":
            function, arguments = loads(content)
            self._compiling.look()
            return function(*arguments)
        assert self._runner is not None
        self._compiling.look()
        progress = _progress_over(self._connection, self._report_gpus)
        return self._runner.run(content, progress, _StreamOver(self._connection))

    def _overflow_of(self, error: Exception) -> tuple[int, int, str]:
        """The first row, the number of rows and the error of a task that ran out of memory."""
        if isinstance(error, RowOverflow):
            return error.first, error.rows, str(error)
        first, rows, _ = MARK.unpack_from(self._marks, 0)
        return first, rows, f"{type(error).__name__}: {error}".strip(": ")

    def _mark(self, first_row: int, rows: int, step: int) -> None:
        self._compiling.look()
        MARK.pack_into(self._marks, 0, first_row, rows, step)

    def _report_gpus(self) -> None:
        """Report what this process holds on GPUs and for what, which only the process itself can know."""
        shares = own_shares()
        if shares != self._reported:
            self._reported = shares
            publish_shares(shares)
            self._send("gpus", shares)

    def _send(self, *answer: Any) -> None:
        with suppress(ConnectionError):
            self._connection.send_bytes(pickle.dumps(answer))


def _address_bytes(where: devices.Assigned, *, opened: bool) -> int:
    """What a worker on a GPU may map beyond its share of memory: CUDA maps gigabytes that it never uses."""
    if where.device == "cpu":
        return 0
    return devices.GPU_RUNNING_BYTES if opened else devices.GPU_OPENING_BYTES


class _StreamOver:
    """Tells the driver about packets."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def packet(self, packet: Packet) -> None:
        self._send("packet", packet)

    def safe(self, segment: Segment) -> None:
        self._send("safe", segment)

    def wait(self) -> None:
        while True:
            try:
                kind, content = pickle.loads(self._connection.recv_bytes())
            except (EOFError, OSError):
                os._exit(0)  # the driver has ended, or given up this worker
            if kind == "credit":
                return
            assert kind == "cap"
            cap_this_process(content, _address_bytes(devices.assigned(), opened=True))

    def _send(self, *message: Any) -> None:
        try:
            self._connection.send_bytes(pickle.dumps(message))
        except ConnectionError:
            os._exit(0)


def _progress_over(connection: Connection, report_gpus: Callable[[], None]) -> Progress:
    last = time.monotonic()

    def progress(rows: int, num_bytes: int, errors: Sequence[ErrorCount]) -> None:
        nonlocal last
        if time.monotonic() - last >= PROGRESS_EVERY_S:
            last = time.monotonic()
            report_gpus()
            connection.send_bytes(pickle.dumps(("progress", rows, num_bytes, tuple(errors))))

    return progress


def _portable(error: Exception) -> Exception:
    """The error as the driver raises it: a TamisError unchanged, any other with the worker's traceback."""
    if isinstance(error, TamisError):
        return error
    text = "".join(traceback.format_exception(error))
    return WorkerError(f"a worker failed: {type(error).__name__}: {error}\n\n{text}")


def dumps(value: object) -> bytes:
    """Pickle a value; functions of the user's main script by value."""
    import cloudpickle

    return cloudpickle.dumps(value)


def loads(data: bytes) -> Any:
    """Unpickle what `dumps` made. Only ever called with bytes that the driver wrote to the worker's socket."""
    return pickle.loads(data)
