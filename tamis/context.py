"""What a worker gives an operator when it opens it: a device, a share of memory, a folder, and objects shared between steps.

worker, once per stage    step.open(context) -> runner        loads the model
each batch                runner.score(batch) ...
at the end                runner.close(), context.close()     in reverse order
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

_T = TypeVar("_T")


def file_key(kind: str, path: Path) -> str:
    """A key of `Context.shared` for what is made of a file; it changes when the file does."""
    found = path.stat()
    return f"{kind} {path.absolute()} {found.st_size} {found.st_mtime_ns}"


class _SharedObjects:
    """Objects by key, each opened once and closed in reverse order."""

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}
        self._stack = ExitStack()

    def get(self, key: str, load: Callable[[], _T]) -> _T:
        if key not in self._found:
            made = load()
            close = getattr(made, "close", None)
            if callable(close):
                self._stack.callback(close)
            self._found[key] = made
        found: _T = self._found[key]
        return found

    def close(self) -> None:
        self._found.clear()
        self._stack.close()


@dataclass(frozen=True)
class Context:
    """The place where an operator runs. `Context()` is one without limits on the CPU, for tests and notebooks."""

    device: str = "cpu"
    """"cpu", or a GPU such as "cuda:0"."""
    memory_bytes: int | None = None
    """What is left of the worker's share of memory, for this step and those after it; None if there is no limit."""
    gpu_memory_bytes: int | None = None
    """The share of the GPU's memory; None if there is no GPU or no limit."""
    scratch: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    """A folder for temporary files. In a run, it is removed when the stage is closed."""
    cpus: int | None = None
    """The cores of the worker: more than one if memory limits the number of workers; None if libraries decide."""
    run: str = ""
    """Names the output of the run; the same if the run is resumed."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """What earlier runs over the same output learned, such as how many tokens fit in a batch; see `Operator.open`."""
    _objects: _SharedObjects = field(default_factory=_SharedObjects, repr=False, compare=False)

    def shared(self, key: str, load: Callable[[], _T]) -> _T:
        """The object under `key`: `load()` at first, the same object for every step of the stage that asks again.

        The key names the kind of object and everything that `load` depends on. The object is closed after all runners of
        the stage, with its `close()` if it has one.

        >>> context = Context()
        >>> context.shared("model a", list) is context.shared("model a", list)
        True
        """
        return self._objects.get(key, load)

    def shared_folder(self) -> Path:
        """A folder that the workers of a run on this machine have in common, or that of this worker if there is none.

        A later run finds it empty.
        """
        return Path(self.run) if self.run and Path(self.run).is_dir() else self.scratch

    def close(self) -> None:
        """Close the shared objects."""
        self._objects.close()
