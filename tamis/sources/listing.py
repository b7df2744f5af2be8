"""List the input once per run: to infer its format, to compare it with the output folder, and to read it.

Imports nothing heavy, since the command line uses it before anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

_T = TypeVar("_T")
_listings: ContextVar[dict[object, Any] | None] = ContextVar("listings", default=None)


@contextmanager
def one_listing() -> Iterator[None]:
    """Within this context each path is listed once. A context inside another uses the listings of the outer one."""
    if _listings.get() is not None:
        yield
        return
    token = _listings.set({})
    try:
        yield
    finally:
        _listings.reset(token)


def listed_once(key: object, list_path: Callable[[], _T]) -> _T:
    """The result of `list_path()`, or that of an earlier call with the same key in this context."""
    known = _listings.get()
    if known is None:
        return list_path()
    if key not in known:
        known[key] = list_path()
    return known[key]


def forget_listings() -> None:
    """Free the listings of this context, which can be large; later calls list again."""
    known = _listings.get()
    if known is not None:
        known.clear()
