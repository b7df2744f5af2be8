"""A function that runs in a process of its own, within a limit of CPU time.

    worker                                   child
    call(argument)  -- JSON, bytes -->       function(argument)
                    <-- JSON --              its result, or nothing if it took too long or crashed

The limits are those of the system (RLIMIT_CPU, RLIMIT_AS): they also hold if the worker no longer exists, and do not depend on
what else the machine does. A decoder that crashes ends its process only.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import IO, Any


class TookTooLong(Exception):
    """The call used more CPU time than it may."""


class Crashed(Exception):
    """The process of the call ended by itself."""


class Alone:
    """A function, by the name of its module and its own, in a process that is started when it is first called.

    `memory_bytes` is what the process may use in addition to what it needs before the first call.
    """

    def __init__(self, module: str, function: str, limit_s: float, memory_bytes: int = 0) -> None:
        self._target, self._limit_s, self._memory_bytes = f"{module}:{function}", limit_s, memory_bytes
        self._child: subprocess.Popen[bytes] | None = None

    def call(self, argument: Any, data: bytes | memoryview | None = None) -> Any:
        """The result of the function. Arguments and results are what JSON can hold; `data` is a second argument."""
        if self._child is None:
            environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
            command = [
                sys.executable,
                "-c",
                "from tamis.web.alone import serve; serve()",
                self._target,
                str(self._limit_s),
                str(self._memory_bytes),
            ]
            self._child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, bufsize=-1
            )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            _send(self._child.stdin, argument, data)
            answer = _receive(self._child.stdout)
        except BrokenPipeError:
            answer = None
        if answer is None:
            code = self._child.wait()
            self.close()
            if code == -signal.SIGXCPU:
                raise TookTooLong(f"took more than {self._limit_s:g} s of CPU time")
            how = f"signal {-code}, {signal.strsignal(-code)}" if code < 0 else f"exit code {code}"
            raise Crashed(f"the decoder crashed ({how})")
        found, _ = answer
        if "error" in found:
            raise ValueError(found["error"])
        return found["result"]

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            for pipe in (self._child.stdin, self._child.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
            self._child = None


def serve() -> None:
    """Answer calls until the pipe is closed."""
    module, _, name = sys.argv[1].partition(":")
    function, limit_s, memory_bytes = (
        getattr(importlib.import_module(module), name),
        float(sys.argv[2]),
        int(sys.argv[3]),
    )
    source, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is not an answer
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes and (used := _address_space()):
        resource.setrlimit(resource.RLIMIT_AS, (used + memory_bytes, resource.getrlimit(resource.RLIMIT_AS)[1]))
    while (received := _receive(source)) is not None:
        argument, data = received
        used_s = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        limit = int(used_s + limit_s) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        try:
            result = function(argument) if data is None else function(argument, data)
        except Exception as error:  # noqa: BLE001  any error of a library is that of the row
            _send(answers, {"error": f"{type(error).__name__}: {error}"[:1000]})
        else:
            _send(answers, {"result": result})


def _address_space() -> int:
    """The bytes of the address space of this process; 0 if the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


_NO_DATA = 2**64 - 1


def _send(pipe: IO[bytes], value: Any, data: bytes | memoryview | None = None) -> None:
    text = json.dumps(value).encode()
    pipe.write(struct.pack("<QQ", len(text), _NO_DATA if data is None else len(data)) + text)
    if data is not None:
        pipe.write(data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> tuple[Any, bytes | None] | None:
    head = pipe.read(16)
    if len(head) < 16:
        return None
    size, extra = struct.unpack("<QQ", head)
    text = pipe.read(size)
    data = None if extra == _NO_DATA else pipe.read(extra)
    complete = len(text) == size and (data is None or len(data) == extra)
    return (json.loads(text), data) if complete else None
