"""What commands print, and the codes they exit with. Results go to stdout, progress and errors to stderr.

0     done
1     a bug, with a traceback; for `grep`, `why` and `dedup explain`, no row matches
2     a mistake in the command, the recipe or the input
3     too many rows or files failed
4     `verify` found damage, `merge` misses shards, or `doctor` found a problem
130   interrupted; rerun the same command to resume
141   the reader of stdout has closed it, as `head` does
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec

import typer

from tamis.errors import ShardsMissing, ShardsRunning, SinkError, TamisError, TooManyFailed
from tamis.inert import inert, inert_json

NO_MATCH, BAD_USE, TOO_MANY_FAILED, NOT_OK, INTERRUPTED, BROKEN_PIPE = 1, 2, 3, 4, 130, 141

P = ParamSpec("P")


def print_status(text: str) -> None:
    """Print to stderr, which carries everything but results."""
    with suppress(OSError):  # its reader has closed it, or the disk is full; results are printed all the same
        sys.stderr.write(inert(text) + "\n")
        sys.stderr.flush()


def print_result(text: str) -> None:
    """Print to stdout; exits silently if its reader is closed."""
    try:
        sys.stdout.write(inert(text) + "\n")
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter prints an error at exit
        if isinstance(error, BrokenPipeError):
            raise typer.Exit(BROKEN_PIPE) from None
        raise SinkError(f"stdout cannot be written: {error.strerror or error}") from error


def print_json(value: object) -> None:
    print_result(inert_json(json.dumps(value, indent=2, ensure_ascii=False, default=str)))


def _exit_code(error: TamisError) -> int:
    if isinstance(error, TooManyFailed):
        return TOO_MANY_FAILED
    return NOT_OK if isinstance(error, (ShardsMissing, ShardsRunning)) else BAD_USE


def explains_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Turn a TamisError into a message and an exit code."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        from tamis.console import error_text, wrapped

        try:
            command(*args, **kwargs)
        except TamisError as error:
            text = error_text(error.message, error.hint)
            print_status(wrapped(text, indent=0) if sys.stderr.isatty() else text)
            raise typer.Exit(_exit_code(error)) from None
        except BrokenPipeError as error:  # typer takes it for a closed stdout and exits silently
            raise RuntimeError("a pipe inside the run broke") from error

    return wrapped
