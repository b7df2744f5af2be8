"""Plain Python functions as steps of a pipeline."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tamis.batch import Batch
from tamis.errors import ParameterError
from tamis.operators import ALL, Operator, digest


@dataclass(frozen=True, kw_only=True)
class Function(Operator):
    """A plain Python function as a step.

    Row-wise, it gets a dict and returns a dict (columns to add or replace), True or False (keep or drop), or a list of
    dicts (rows to put in its place). Batch-wise (its parameter is annotated `Batch`), it returns a mapping of
    columns, or a boolean array.
    """

    kind = "function"

    function: Callable[..., Any]
    reason: str | None = None

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", "function").replace("<lambda>", "lambda")

    @property
    def batch_wise(self) -> bool:
        parameters = list(inspect.signature(self.function).parameters.values())
        return bool(parameters) and parameters[0].annotation in (Batch, "Batch", "tamis.Batch")

    def reads(self) -> tuple[str, ...]:
        return (ALL,)

    def writes(self) -> tuple[str, ...]:
        return (ALL,)

    def identity(self) -> dict[str, Any]:
        return {"step": self.name, "code": digest(_code_of(self.function)), "reason": self.reason}


def _code_of(function: Callable[..., Any]) -> object:
    """What a function does, as far as it can be seen: its code, defaults and the values it closes over, not globals."""
    code = getattr(function, "__code__", None)
    if code is None:
        return repr(function)
    consts = [const.co_code.hex() if hasattr(const, "co_code") else repr(const) for const in code.co_consts]
    cells = [repr(cell.cell_contents) for cell in getattr(function, "__closure__", None) or ()]
    return [code.co_code.hex(), consts, list(code.co_names), repr(getattr(function, "__defaults__", None)), cells]


def as_operator(step: Operator | Callable[..., Any]) -> Operator:
    """A step as given by the user, as an operator: functions are wrapped."""
    if isinstance(step, Operator):
        return step
    if isinstance(step, type) and issubclass(step, Operator):
        raise ParameterError(f"{step.__name__} is a class, not a step", hint=f"write {step.__name__}()")
    if callable(step):
        return Function(function=step)
    raise ParameterError(f"{step!r} is not a step", hint="a step is an operator or a function")
