"""A function that runs in a process of its own, within a limit of CPU time.

    worker                                   child
    call(argument)  -- length, JSON -->      function(argument)
                    <-- length, JSON --      its result, or nothing if it took too long and the system ended it

The limit is that of the system (RLIMIT_CPU): it also holds if the worker no longer exists, and does not depend on what else
the machine does.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import struct
import subprocess
import sys
from typing import IO, Any


class TookTooLong(Exception):
    """The call used more CPU time than it may."""


class Alone:
    """A function, by the name of its module and its own, in a process that is started when it is first called."""

    def __init__(self, module: str, function: str, limit_s: float) -> None:
        self._target, self._limit_s = f"{module}:{function}", limit_s
        self._child: subprocess.Popen[bytes] | None = None

    def call(self, argument: Any) -> Any:
        """The result of the function. Arguments and results are what JSON can hold."""
        if self._child is None:
            environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
            command = [
                sys.executable,
                "-c",
                "from tamis.web.alone import serve; serve()",
                self._target,
                str(self._limit_s),
            ]
            self._child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, bufsize=-1
            )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            _send(self._child.stdin, argument)
            answer = _receive(self._child.stdout)
        except BrokenPipeError:
            answer = None
        if answer is None:
            self.close()
            raise TookTooLong(f"took more than {self._limit_s:g} s of CPU time")
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer["result"]

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
    function, limit_s = getattr(importlib.import_module(module), name), float(sys.argv[2])
    source, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is not an answer
    while (argument := _receive(source)) is not None:
        used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        limit = int(used + limit_s) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        try:
            _send(answers, {"result": function(argument)})
        except Exception as error:  # noqa: BLE001  any error of a library is that of the row
            _send(answers, {"error": f"{type(error).__name__}: {error}"[:1000]})


def _send(pipe: IO[bytes], value: Any) -> None:
    data = json.dumps(value).encode()
    pipe.write(struct.pack("<Q", len(data)) + data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> Any:
    head = pipe.read(8)
    if len(head) < 8:
        return None
    (size,) = struct.unpack("<Q", head)
    data = pipe.read(size)
    return json.loads(data) if len(data) == size else None
