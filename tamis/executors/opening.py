"""Opens the steps of a stage in a worker, and closes them.

    stage: source, operators, end --open--> OpenStage: their runners, and the memory that each took

A step without state is its own runner. Runners are closed in reverse order, then what they shared.
"""

from __future__ import annotations

import functools
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tamis.context import Context
from tamis.errors import OperatorError, SetupTooLarge, is_shortage
from tamis.exchange import FolderExchange
from tamis.executors.steps import schema_after, schema_read
from tamis.executors.tasks import Stage
from tamis.memory import process
from tamis.models import devices
from tamis.operators import Operator

METHODS = {
    "source": "read",
    "map": "apply",
    "filter": "score",
    "expand": "expand",
    "gather": "observe",
    "sink": "open_shard",
}
"""By kind of operator, the method that its runner must have."""


def runner_of(op: Operator, context: Context) -> Any:
    """The object that runs a step, checked for the method that its kind needs."""
    runner = op.open(context)
    method = METHODS.get(op.kind)
    if method is not None and not callable(getattr(runner, method, None)):
        raise OperatorError(
            f"`open` of `{op.name}` returned {type(runner).__name__}, which has no `{method}`",
            hint=f"return an object with a method `{method}`, or the step itself",
        )
    return runner


@contextmanager
def opened(op: Operator) -> Iterator[Any]:
    """The runner of a step, outside of a worker."""
    with ExitStack() as stack:
        context = Context()
        stack.callback(context.close)
        yield _open(op, context, stack)


def _open(op: Operator, context: Context, stack: ExitStack) -> Any:
    runner = runner_of(op, context)
    close = getattr(runner, "close", None)
    if callable(close):
        stack.callback(close)
    return runner


class OpenStage:
    """The runners of a stage, each opened once. If opening one fails, those before it are closed."""

    def __init__(self, stage: Stage, context: Context | None = None) -> None:
        """`context.memory_bytes` is the share of the worker; each step is given what is left of it."""
        given = context or Context()
        self.stage = stage
        self.taken_bytes: list[int] = []
        """Memory that the source, each operator and the end took when they were opened."""
        own = stage.store.scratch()
        shared = isinstance(stage.exchange, FolderExchange)  # else this worker may not reach the folders of the driver
        self._context = replace(
            given,
            scratch=(own if shared else stage.exchange.scratch()) / f"open-{uuid.uuid4().hex}",
            run=str(own),
            limits=stage.limits,
        )
        self._share_bytes = given.memory_bytes
        self._stack = ExitStack()
        self._fates_of: Any = None
        with ExitStack() as failing:
            failing.callback(self.close)
            steps: Sequence[Operator] = [stage.source, *stage.operators]
            self.source, *self.operators = [self._opened(step) for step in steps]
            self.end: Any = None if stage.end is None else self._opened(stage.end)
            failing.pop_all()

    @property
    def fates_of(self) -> Any:
        """The runner of the Gather whose decisions the stage applies, opened when a row is first rewritten.

        Most are never needed, and a Gather may need a model to observe rows that it does not need to rewrite them.
        """
        if self._fates_of is None:
            assert self.stage.fates_of is not None
            self._fates_of = self._opened(self.stage.fates_of)
            self.taken_bytes.pop()
        return self._fates_of

    @functools.cached_property
    def schema_before(self) -> pa.Schema:
        """The columns that rows have before the operators of this stage, found without rows.

        Rows from other stages went through steps that are not open in this worker. They are opened for a moment.
        """
        schema = schema_read(self.stage.schema, self.stage.columns)
        for op in self.stage.before:
            with suppress(Exception), opened(op) as runner:  # this worker may lack a GPU; the columns are then unknown
                schema = schema_after([op], [runner], schema, {})
        return schema

    def close(self) -> None:
        """Close the runners in reverse order, what they shared, and their folder, also if closing one of them fails."""
        with ExitStack() as last:
            last.callback(shutil.rmtree, self._context.scratch, ignore_errors=True)
            last.callback(self._context.close)
            last.callback(self._stack.close)

    def _opened(self, step: Operator) -> Any:
        if type(step).open is not Operator.open:
            self._context.scratch.mkdir(parents=True, exist_ok=True)
        before = process.own_bytes()
        try:
            self._limit_gpu()
            runner = _open(step, self._left(before), self._stack)
            self._limit_gpu()  # of a library that the step has just loaded
        except Exception as error:
            if is_shortage(error):
                raise SetupTooLarge(f"`{step.name}`", error) from error
            raise
        self.taken_bytes.append(max(0, process.own_bytes() - before))
        return runner

    def _limit_gpu(self) -> None:
        if self._context.device != "cpu":
            devices.keep_to_share(self._context.gpu_memory_bytes)

    def _left(self, held_bytes: int) -> Context:
        if self._share_bytes is None:
            return self._context
        return replace(self._context, memory_bytes=max(0, self._share_bytes - held_bytes))
