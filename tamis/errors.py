"""Every error a user can meet, and the one way an optional package is asked for.

TamisError                 has a hint: what to do about it
├── ParameterError         an operator was given a value it cannot take
├── RecipeError            a recipe that cannot be understood
├── ColumnError            a step reads a column that is not there
├── SourceError            the input cannot be listed, opened or understood
├── SinkError              the output cannot be written, or holds something else
│   └── DiskFull           there is no room left to write to
├── LedgerError            the record of what is done is damaged or in use
├── OperatorError          a step broke its contract (wrong number of rows, ...)
├── BudgetError            the work cannot fit the memory or disk it was given
├── WorkerError            workers keep dying and it is not the fault of one row
├── MissingExtra           an optional package is not installed
└── Interrupted            the user asked the run to stop; it can be resumed
"""

from __future__ import annotations

import difflib
import errno
import importlib
from collections.abc import Iterable
from types import ModuleType


class TamisError(Exception):
    """An error that explains itself: what happened, and a hint towards the way out."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n\nhint: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions travel from workers to the driver; keyword arguments must survive that.
        return (_rebuild, (type(self), self.message, self.hint))


def _rebuild(kind: type[TamisError], message: str, hint: str | None) -> TamisError:
    error = kind.__new__(kind)
    TamisError.__init__(error, message, hint=hint)
    return error


class ParameterError(TamisError):
    """A parameter has a value of the wrong type or range."""


class RecipeError(TamisError):
    """A recipe names something unknown or has the wrong shape."""


class ColumnError(TamisError):
    """A step reads a column that no earlier step provides."""


class SourceError(TamisError):
    """The input cannot be listed, opened or understood."""


class SinkError(TamisError):
    """The output cannot be written, or the folder holds something else."""


class DiskFull(SinkError):
    """There is no room left on the disk that a run writes to."""


class LedgerError(TamisError):
    """The record of committed work is damaged, or another run is using it."""


class OperatorError(TamisError):
    """An operator returned something its kind does not allow."""


class BudgetError(TamisError):
    """The work does not fit the memory or disk it was given."""


class WorkerError(TamisError):
    """Workers keep dying, and no single row is to blame."""


class MissingExtra(TamisError):
    """An optional package is needed and not installed."""


class Interrupted(TamisError):
    """The run was stopped on request; what is committed stays committed."""


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import an optional package, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(
            f"{purpose} needs the package `{module.partition('.')[0]}`, which is not installed",
            hint=f"pip install 'tamis[{extra}]'",
        ) from error


def did_you_mean(word: str, choices: Iterable[str]) -> str | None:
    """A hint naming the nearest of `choices`, or None when nothing is near."""
    near = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.5)
    return f"did you mean `{near[0]}`?" if near else None


def is_full_disk(error: BaseException) -> bool:
    """Whether an error says that there is no room left on a disk, or that a quota is used up."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


SHORTAGES = (
    "Failed to launch worker thread",  # Arrow: a thread needs a stack
    "can't start new thread",
    "DefaultCPUAllocator: can't allocate memory",  # torch
    "CUDA out of memory",
    "CUDA error: out of memory",
    "Failed to allocate memory for requested buffer",  # ONNX Runtime
    "std::bad_alloc",
)
"""What libraries say that raise errors of other kinds when memory runs out."""


class SetupTooLarge(MemoryError):
    """A step did not fit beside what its worker holds, before any row was read."""

    def __init__(self, step: str, cause: Exception) -> None:
        reason = f" ({cause})" if str(cause) else ""
        super().__init__(f"{step} ran out of memory while it was set up{reason}")


def is_shortage(error: BaseException) -> bool:
    """Whether an error comes of too little memory, as which it does not always announce itself."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, (TamisError, ValueError)):
        return False  # says what it is; or quotes data, which may say anything
    return isinstance(error, MemoryError) or any(words in str(error) for words in SHORTAGES)
