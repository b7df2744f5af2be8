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
        _serve(connection, marker_path, stack)


def _serve(connection: Connection, marker_path: str, at_exit: ExitStack) -> None:
    with Path(marker_path).open("r+b") as file:
        marks = mmap.mmap(file.fileno(), MARK.size)
    process.start_threads(Path(f"{marker_path}.arrow"))
    runner: StageRunner | None = None
    share, where, cpus, apart = 0, devices.Assigned(), 1, False
    trimmed = time.monotonic()

    def close_stage() -> None:
        nonlocal runner
        if runner is not None:
            closing, runner = runner, None
            closing.close()

    at_exit.callback(close_stage)

    def send(*answer: Any) -> None:
        with suppress(ConnectionError):
            connection.send_bytes(pickle.dumps(answer))

    reported: dict[int, GpuShare] = {}

    def report_gpus() -> None:
        """Report what this process holds on GPUs and for what, which only the process itself can know."""
        nonlocal reported
        shares = own_shares()
        if shares != reported:
            reported = shares
            publish_shares(shares)
            send("gpus", shares)

    at_exit.callback(publish_shares, {})
    compiling = Compiling(lambda: send("compiling"))

    def marker(first_row: int, rows: int, step: int) -> None:
        compiling.look()
        MARK.pack_into(marks, 0, first_row, rows, step)

    while True:
        try:
            kind, content = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return
        overflow: tuple[int, int, str] | None = None
        usage = process.Usage()
        try:
            if kind == "stage":
                if runner is not None:
                    close_stage()
                    process.trim()
                began = time.monotonic()
                runner = StageRunner(
                    loads(content), marker, Context(where.device, share or None, where.gpu_memory_bytes, cpus=cpus)
                )
                if share and where.device != "cpu":  # what CUDA maps when it is opened is mapped now
                    cap_this_process(share, devices.GPU_RUNNING_BYTES)
                send("opened", time.monotonic() - began)
                continue
            if kind == "gpu":
                where = (
                    devices.assign(content.names, content.gpu_bytes) if content is not None else devices.assign(None)
                )
                continue
            if kind == "cpus":
                cpus = content
                continue
            if kind == "apart":
                apart = True
                continue
            if kind == "credit":
                continue  # granted when the task had ended already
            if kind == "cap":
                share = content
                cap_this_process(share, _address_bytes(where, opened=runner is not None))
                continue
            if kind == "call":
                function, arguments = loads(content)
                compiling.look()
                answer: tuple[Any, ...] = ("outcome", function(*arguments))
            else:
                assert runner is not None
                compiling.look()
                progress = _progress_over(connection, report_gpus)
                answer = ("outcome", runner.run(content, progress, _StreamOver(connection)))
        except CorruptFrames as found:
            answer = ("corrupt", found.places)
        except KernelsCompiled:
            send("compiled", None)
            return
        except DeviceLost as error:
            send("dying", str(error))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.abort()  # counts as the crash of a worker: the rows are tried again in others
        except Exception as error:  # noqa: BLE001 - raised again in the driver
            if kind == "stage" and is_shortage(error):
                known = error if isinstance(error, SetupTooLarge) else SetupTooLarge("a step", error)
                send("too large", (str(known), share))
                return
            if kind == "task" and is_shortage(error):
                first, rows, _ = MARK.unpack_from(marks, 0)
                text = f"{type(error).__name__}: {error}".strip(": ")
                if isinstance(error, RowOverflow):
                    first, rows, text = error.first, error.rows, str(error)
                overflow = (first, rows, text)
            else:
                # A node of a cluster may lack a package; rows have not been processed yet.
                answer = ("error", _portable(error), missing_module(error) if kind in ("stage", "call") else None)
            error.__traceback__ = None  # its frames hold the memory
        compiling.release()
        if kind == "task" and (overflow is not None or time.monotonic() - trimmed > TRIM_AFTER_S):
            process.trim()
            trimmed = time.monotonic()
        if overflow is not None:
            answer = ("overflow", (*overflow, usage.is_full()))
        report_gpus()
        if apart:
            send("mark", *MARK.unpack_from(marks, 0))
            if kind == "task":
                send("held", private_bytes(os.getpid()))
        send(*answer)


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
