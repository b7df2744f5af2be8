"""All errors raised for users, and the import of optional packages.

TamisError                 carries a hint on how to fix the problem
├── ParameterError         a parameter has an invalid value
├── RecipeError            a recipe is invalid
├── ColumnError            a step reads a column that does not exist
├── SourceError            the input cannot be listed, opened or parsed
│   └── DamagedFile        one file cannot be read; others can
├── MediaError             the image, sound or video that a row refers to cannot be read
│   ├── ImageError         the file is not an image, or cannot be decoded
│   ├── AudioError         the file is not a sound, or cannot be decoded
│   └── VideoError         the file is not a video, or cannot be decoded
├── SinkError              the output cannot be written, or holds other data
│   └── DiskFull           no disk space left
├── LedgerError            the record of committed work is damaged or in use
│   ├── ShardsRunning      shards of a run are writing to the output
│   └── ShardsMissing      shards of a run have failed, stopped, or were never started
├── OperatorError          a step broke its contract (wrong number of rows, ...)
├── BudgetError            the job does not fit the memory or disk it was given
├── WorkerError            workers keep dying, and no single row is the cause
├── TooManyFailed          more rows or files failed than `max_failed` allows
├── EndpointError          a service that a step uses refuses requests, or the budget for it is spent
├── MissingExtra           an optional package is not installed
├── UnknownName            a name of NeMo Curator that does not exist here
└── Interrupted            the user stopped the run; it can be resumed
"""

from __future__ import annotations

import errno
import importlib
from collections.abc import Iterable
from types import ModuleType


class TamisError(Exception):
    """An error with a message and, usually, a hint on how to fix it."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n\nhint: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        # Workers send exceptions to the driver pickled; the default would lose keyword arguments.
        return (_rebuild, (type(self), self.message, self.hint))


def _rebuild(kind: type[TamisError], message: str, hint: str | None) -> TamisError:
    error = kind.__new__(kind)
    TamisError.__init__(error, message, hint=hint)
    return error


class ParameterError(TamisError):
    """A parameter has a value of the wrong type or range."""


class RecipeError(TamisError):
    """A recipe has an unknown name or the wrong structure."""


class ColumnError(TamisError):
    """A step reads a column that no earlier step provides, or would replace one by accident."""


class SourceError(TamisError):
    """The input cannot be listed, opened or parsed."""


class DamagedFile(SourceError):
    """One file cannot be opened or parsed. It ends a run only if no other file can be read."""


class MediaError(TamisError):
    """The image, sound or video that a row refers to cannot be read."""


class ImageError(MediaError):
    """An image cannot be decoded. `problem` is a word or two that can be counted: "truncated", "corrupt"."""

    def __init__(self, problem: str, message: str) -> None:
        super().__init__(f"the file is {problem}: {message}")
        self.problem = problem

    def __reduce__(self) -> tuple[object, ...]:
        return (ImageError, (self.problem, self.message.partition(": ")[2]))


class AudioError(MediaError):
    """A sound cannot be decoded. `problem` is a word or two that can be counted: "truncated", "corrupt"."""

    def __init__(self, problem: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"the recording is {problem}: {message}", hint=hint)
        self.problem = problem

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_audio, (self.problem, self.message.partition(": ")[2], self.hint))


def _rebuild_audio(problem: str, message: str, hint: str | None) -> AudioError:
    return AudioError(problem, message, hint=hint)


class VideoError(MediaError):
    """A video cannot be decoded. `problem` is a word or two that can be counted: "truncated", "corrupt"."""

    def __init__(self, problem: str, message: str) -> None:
        super().__init__(f"the video is {problem}: {message}")
        self.problem = problem

    def __reduce__(self) -> tuple[object, ...]:
        return (VideoError, (self.problem, self.message.partition(": ")[2]))


class SinkError(TamisError):
    """The output cannot be written, or the folder holds other data."""


class DiskFull(SinkError):
    """The disk that a run writes to is full."""


class LedgerError(TamisError):
    """The record of committed work is damaged, or another run is using it."""


class ShardsRunning(LedgerError):
    """Shards of a run are writing to the output."""


class ShardsMissing(LedgerError):
    """A run cannot be merged, because shards of it have failed, stopped, or were never started."""


class OperatorError(TamisError):
    """An operator returned something its kind does not allow."""


class BudgetError(TamisError):
    """The job does not fit the memory or disk it was given."""


class WorkerError(TamisError):
    """Workers keep dying, and no single row is the cause."""


class TooManyFailed(TamisError):
    """More rows or files failed than `max_failed` allows; committed work stays committed."""


class EndpointError(TamisError):
    """A service that a step uses cannot be reached or refuses all requests, or its budget is spent; it ends the run."""


class MissingExtra(TamisError):
    """An optional package is needed and not installed."""


class UnknownName(TamisError, ImportError):
    """An import of a name that exists in NeMo Curator but not here."""


class Interrupted(TamisError):
    """The user stopped the run; committed work stays committed."""


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import an optional package, or raise an error that names the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if is_shortage(error):
            raise MemoryError(str(error)) from error
        raise MissingExtra(
            f"{purpose} needs the package `{module.partition('.')[0]}`, which is not installed",
            hint=f"pip install 'tamis[{extra}]'",
        ) from error


def missing_module(error: BaseException | None) -> str | None:
    """The module whose import failed and so caused an error; None if it has another cause."""
    while error is not None:
        if isinstance(error, ImportError) and error.name:
            return error.name
        error = error.__cause__ or error.__context__
    return None


def did_you_mean(word: str, choices: Iterable[str]) -> str | None:
    """A hint with the closest match among `choices`, or None if none is close."""
    import difflib

    near = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return f"did you mean `{near[0]}`?" if near else None


def is_full_disk(error: BaseException) -> bool:
    """Whether an error means that a disk is full or a quota is used up."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


SHORTAGES = (
    "Failed to launch worker thread",  # Arrow: a thread needs a stack
    "can't start new thread",
    "DefaultCPUAllocator: can't allocate memory",  # torch
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "cudaErrorMemoryAllocation",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "Failed to allocate memory for requested buffer",  # ONNX Runtime
    "std::bad_alloc",
    "failed to map segment from shared object",  # the loader, on importing a library
    "error return without exception set",  # CPython, from an extension whose allocation failed
    "returned NULL without setting an exception",
)
"""Messages of libraries that do not raise MemoryError when memory runs out."""


LOST_DEVICES = (
    "device-side assert",
    "illegal memory access",
    "illegal instruction was encountered",
    "misaligned address",
    "unspecified launch failure",
    "cudaErrorIllegalAddress",
    "cudaErrorLaunchFailure",
    "cudaErrorAssert",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_ASSERT",
    "uncorrectable ECC error",
)
"""Messages of CUDA after which a process can no longer use the GPU."""


class DeviceLost(Exception):
    """A kernel failed in such a way that this process can no longer use its GPU."""


def is_device_lost(error: BaseException) -> bool:
    """Whether every later use of the GPU in this process fails because of an error."""
    return isinstance(error, RuntimeError) and any(words in str(error) for words in LOST_DEVICES)


class SetupTooLarge(MemoryError):
    """A step ran out of memory in its setup, before any row was read."""

    def __init__(self, step: str, cause: Exception) -> None:
        reason = f" ({cause})" if str(cause) else ""
        super().__init__(f"{step} ran out of memory during setup{reason}")


def is_shortage(error: BaseException) -> bool:
    """Whether an error is caused by lack of memory; not all of these are MemoryErrors."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, (TamisError, ValueError)):
        return False  # a TamisError is explicit; a ValueError may quote data that contains any text
    return isinstance(error, MemoryError) or any(words in str(error) for words in SHORTAGES)


_REMOTE_PACKAGES = (
    *("botocore", "aiobotocore", "aiohttp", "gcsfs", "google", "adlfs", "azure"),
    *("httpx", "httpx2", "httpcore", "huggingface_hub"),
)
_CREDENTIAL_ERRORS = ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound")


def remote_failure(error: BaseException, what: str, kind: type[TamisError]) -> TamisError | None:
    """The error for an object store that cannot be reached or refuses access; None if `error` is something else."""
    names = {base.__name__ for base in type(error).__mro__}
    package = type(error).__module__.partition(".")[0]
    if names & set(_CREDENTIAL_ERRORS):
        return kind(
            f"no credentials for {what}: {error}",
            hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, run `aws configure`, or pass storage_options",
        )
    if isinstance(error, PermissionError):
        return kind(f"access to {what} is denied: {error}", hint="check your credentials and the rights they grant")
    if package in _REMOTE_PACKAGES or isinstance(error, (ConnectionError, TimeoutError)):
        return kind(
            f"cannot reach {what}: {error}",
            hint="check the network and the endpoint (endpoint_url in storage_options), then rerun the same command",
        )
    return None


def first_line(error: Exception) -> str:
    """What an error says, in one line.

    >>> first_line(ValueError("a\\nb")), first_line(StopIteration())
    ('a', 'StopIteration')
    """
    return (str(error).splitlines() or [type(error).__name__])[0]
