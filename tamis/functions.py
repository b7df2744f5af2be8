"""Plain Python functions as steps of a pipeline."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tamis.batch import Batch
from tamis.errors import ParameterError
from tamis.identity import identify
from tamis.operators import ALL, Operator, snake_case


@dataclass(frozen=True, kw_only=True)
class Function(Operator):
    """A Python function as a step; `tamis.step` builds one.

    A row function takes a dict and returns a dict (columns to add or replace), True or False (keep or drop), or a list of
    dicts (rows that replace it). A batch function, whose first parameter is annotated `Batch`, returns a mapping of columns
    or a boolean array.
    """

    kind = "function"

    function: Callable[..., Any]
    title: str | None = None
    reason: str | None = None
    version: int | str | None = None  # type: ignore[misc]

    @property
    def name(self) -> str:
        return self.title or _name_of(self.function)

    @property
    def batch_wise(self) -> bool:
        try:
            parameters = list(inspect.signature(self.function).parameters.values())
        except ValueError:  # some functions written in C have no signature
            return False
        return bool(parameters) and parameters[0].annotation in (Batch, "Batch", "tamis.Batch")

    def reads(self) -> tuple[str, ...]:
        return (ALL,)

    def writes(self) -> tuple[str, ...]:
        return (ALL,)

    def identity(self) -> dict[str, Any]:
        known = {"step": self.name, "version": self.version, "parameters": {"reason": self.reason}}
        if self.version is not None:
            return known
        code = identify(self.function, self.name)
        known |= {"code": code.digest, "batch_wise": self.batch_wise}
        return known | ({"opaque": list(code.opaque)} if code.opaque else {})


def step(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    reason: str | None = None,
    version: int | str | None = None,
) -> Function:
    """A function as a step with a name, a reason for the rows it drops, or a version.

    A pipeline accepts functions as they are. A run redoes committed work when the code of a function changes, including the
    functions, globals and closures it uses. With `version`, only a change of the version counts: use it where the code
    refers to something that cannot be compared between runs, or that does not affect the result.

    >>> from tamis import Pipeline, Rows
    >>> long = step(lambda row: len(row["text"]) > 3, name="long", reason="too short", version=1)
    >>> Pipeline(Rows([{"text": "a"}, {"text": "long enough"}]), long).run(executor="inline").dropped
    {'too short': 1}
    """
    if not callable(function):
        raise ParameterError(f"{function!r} is not a function", hint="step(my_function, version=1)")
    return Function(function=function, title=name, reason=reason, version=version)


def _name_of(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None)
    return name.replace("<lambda>", "lambda") if name else snake_case(type(function).__name__)


def as_operator(step: Operator | Callable[..., Any]) -> Operator:
    """A step as given by the user, as an operator: functions are wrapped."""
    if isinstance(step, Operator):
        return step
    if isinstance(step, type) and issubclass(step, Operator):
        raise ParameterError(f"{step.__name__} is a class, not a step", hint=f"write {step.__name__}()")
    if callable(step):
        return Function(function=step)
    raise ParameterError(f"{step!r} is not a step", hint="a step is an operator or a function")
