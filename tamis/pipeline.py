"""`Pipeline(source, *operators, sink)`: check it, explain it, run it.

Building a pipeline does nothing; `check` and `explain` read listings, footers and samples; `run` does the work, once: what
an earlier run committed is not done again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, TypeAlias

import psutil
import pyarrow as pa

from tamis.errors import BudgetError, DiskFull, ParameterError, TooManyFailed
from tamis.events import Events, Subscriber
from tamis.executors.driver import Run, prepare_output
from tamis.executors.failures import DEFAULT_MAX_FAILED, FailureLimit, FailureWatch, parse_max_failed
from tamis.executors.inline import InlineExecutor
from tamis.executors.local import LocalExecutor, Stop
from tamis.executors.sampled import run_sampled
from tamis.executors.watch import Watch
from tamis.functions import Function, as_operator
from tamis.ledger import Ledger
from tamis.mapped import release_pages
from tamis.memory.alerts import parse_alerts
from tamis.memory.budget import Budget, make_budget
from tamis.memory.governor import Governor, Learned
from tamis.memory.profile import Profile, profile_of
from tamis.operators import Operator, Sink
from tamis.plan import Explanation, Plan, lines_pass_through, make_plan, shape_of
from tamis.report import Report
from tamis.store import INTERNAL, Store

Step: TypeAlias = Operator | Callable[..., Any]


class Pipeline:
    """A list of steps: a source, what is done to the rows, and where they go.

    Without a sink, `run` only counts; `collect` returns the rows.

    >>> from tamis import Rows
    >>> Pipeline(Rows([{"n": 1}, {"n": 2}]), lambda row: row["n"] > 1).collect().to_pylist()
    [{'n': 2}]
    """

    def __init__(self, *steps: Step | Sequence[Step]) -> None:
        given: Sequence[Any] = steps
        if len(steps) == 1 and isinstance(steps[0], Sequence):
            given = steps[0]
        self.steps: tuple[Operator, ...] = tuple(as_operator(step) for step in given)

    def __repr__(self) -> str:
        return f"Pipeline({', '.join(step.name for step in self.steps)})"

    @property
    def sink(self) -> Sink | None:
        return shape_of(self.steps).sink

    def check(self) -> tuple[str, ...]:
        """Raise a TamisError for any mistake that can be seen before data moves; return what steps note, if anything."""
        return self.explain().notes

    def explain(self, *, memory: int | str | None = None, workers: int | Literal["auto"] = "auto") -> Explanation:
        """What a run would do: stages, partitions, memory, what is read, and why."""
        with ExitStack() as stack:
            store = self._store(stack)
            learned = learned_from(store)
            return Explanation(make_plan(self.steps, self._budget(memory, workers, learned), store), learned)

    def run(
        self,
        *,
        memory: int | str | None = None,
        workers: int | Literal["auto"] = "auto",
        executor: Literal["local", "inline"] = "local",
        device: Literal["auto", "cpu", "gpu"] = "auto",
        rejects: bool = False,
        scores: bool = False,
        fresh: bool = False,
        on_error: Literal["isolate", "raise"] | None = None,
        max_failed: float | str = DEFAULT_MAX_FAILED,
        on_overflow: Literal["error", "sample"] = "error",
        max_seconds: float | None = None,
        alerts: Mapping[str, Any] | None = None,
        on_event: Subscriber | Sequence[Subscriber] = (),
    ) -> Report:
        """Run the pipeline and account for every row.

        Work that an earlier run of the same pipeline committed to the same output is kept; `fresh` starts over. A row that
        breaks a step is set aside under `.tamis/failed/` and the rest goes on, except inline, where errors are raised as
        they are (`on_error` decides otherwise). `rejects` keeps dropped rows, with their reasons, under `.tamis/rejects/`.

        `scores` keeps what filters measured under `.tamis/scores/`, so that the same pipeline with other thresholds need not
        measure again.

        `alerts` says when to raise the alert about memory and whom to tell, as the `alerts:` of a recipe does.

        If the job as a whole cannot fit its memory or disk, that is an error; with `on_overflow="sample"` a random share of
        the rows is processed instead, doubled from round to round until it does not fit or `max_seconds` are used, and the
        report tells the share and the weight of each row.
        """
        parse_alerts(alerts)  # a mistake is told before anything is touched
        if executor not in ("local", "inline"):
            raise ParameterError(f"there is no executor {executor!r}", hint="executors: local, inline")
        placed = Pipeline(*_placed(self.steps, device))
        emit = Events([on_event] if callable(on_event) else list(on_event))
        budget = placed._budget(memory, workers, placed._learned())
        limit = parse_max_failed(max_failed)
        errors = on_error or ("raise" if executor == "inline" else "isolate")

        def attempt(steps: Sequence[Operator], *, fresh: bool) -> Report:
            with ExitStack() as stack:
                return Pipeline(*steps)._run(
                    stack,
                    budget,
                    executor,
                    rejects=rejects,
                    fresh=fresh,
                    on_error=errors,
                    limit=limit,
                    emit=emit,
                    alerts=alerts,
                    scores=scores,
                )

        try:
            return attempt(placed.steps, fresh=fresh)
        except (BudgetError, DiskFull) as error:
            if on_overflow != "sample":
                raise
            report = run_sampled(attempt, placed.steps, error, emit, max_seconds)
            if self.sink is not None:
                with ExitStack() as stack:
                    self._store(stack).write(f"{INTERNAL}/report.json", report.as_text())
            return report

    def profile(self, *, rows: int = 20_000, memory: int | str | None = None) -> Profile:
        """Run the first rows with one worker and measure what each step holds and how long it takes.

        The output goes nowhere. Tells the memory, workers and block size to use for the whole.
        """
        source = self.steps[0].changed(limit=rows) if hasattr(self.steps[0], "limit") else self.steps[0]
        steps = [source, *shape_of(self.steps).operators]
        with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="tamis-") as folder:
            if self.sink is not None:
                steps.append(self.sink.changed(path=folder, mode="overwrite", storage_options=None))
            budget = self._budget(memory, 1)
            report = Pipeline(*steps)._run(
                stack, budget, "local", rejects=False, fresh=True, on_error="isolate", emit=Events(), profile=True
            )
        return profile_of(report, budget.driver_bytes, self.steps)

    def collect(self, *, max_failed: float | str = 0, **options: Any) -> pa.Table:
        """Run the pipeline and return its rows as one Arrow table; for results that fit in memory.

        Takes the options of `run`. Raises `TooManyFailed` if any row fails: `max_failed="100%"` returns the others.
        """
        from tamis.sinks.tables import ArrowWriter

        if self.sink is not None:
            raise ParameterError("a pipeline with a sink writes its rows", hint="leave out the sink, or call run()")
        with tempfile.TemporaryDirectory(prefix="tamis-") as folder:
            try:
                Pipeline(*self.steps, ArrowWriter(folder)).run(max_failed=max_failed, **options)
            except TooManyFailed as error:
                error.hint = 'fix the cause, or call collect(max_failed="100%") to get the rows that did not fail'
                raise
            tables = [
                pa.ipc.open_file(pa.OSFile(str(file))).read_all() for file in sorted(Path(folder).glob("*.arrow"))
            ]
        return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})

    def _run(
        self,
        stack: ExitStack,
        budget: Budget,
        executor: str,
        *,
        rejects: bool,
        fresh: bool,
        on_error: str,
        emit: Events,
        limit: FailureLimit | None = None,
        alerts: Mapping[str, Any] | None = None,
        scores: bool = False,
        profile: bool = False,
    ) -> Report:
        stop = Stop()
        failures = FailureWatch(limit or FailureLimit(share=1.0))
        emit = Events([failures, *emit.subscribers])
        store = self._store(stack)
        governor = Governor(budget, emit, learned_from(store))
        runner: InlineExecutor | LocalExecutor
        if executor == "inline":
            runner = stack.enter_context(InlineExecutor(governor, emit, stop))
        else:  # before anything else: what workers are forked from starts while the plan is made
            runner = stack.enter_context(LocalExecutor(governor, self._modules(), emit, stop))
        make_plan_for = _planner(
            self.steps, budget, store, rejects=rejects, on_error=on_error, profile=profile, scores=scores
        )
        plan = make_plan_for(None)  # mistakes are told before the output folder is touched
        store.make()
        ledger = stack.enter_context(Ledger(store))
        prepare_output(store, ledger, plan.sink, fresh=fresh)
        if ledger.plan is not None and ledger.plan["blocksize"] != plan.blocksize:
            plan = make_plan_for(ledger.plan["blocksize"])
        run = Run(plan, ledger, governor, emit, stop, failures)
        left = run.settle()
        run.announce(left)
        if run.untouched and not any(left):
            return run.unchanged()
        with Watch(store, governor, runner, emit, alerts) as watch:
            return run.run(left, runner, watch)

    def _modules(self) -> set[str]:
        """The modules that workers need."""
        modules = {type(step).__module__ for step in self.steps} - {"__main__"}
        if any(isinstance(step, Function) or not type(step).__module__.startswith("tamis.") for step in self.steps):
            modules.add("pandas")  # the user's code may convert rows to pandas
        if not lines_pass_through(shape_of(self.steps)):
            modules |= set(self.sink.preload if self.sink is not None else ())
        return modules

    def _store(self, stack: ExitStack) -> Store:
        sink = self.sink
        if sink is not None:
            return Store(sink.folder, getattr(sink, "storage_options", None))
        return Store(stack.enter_context(tempfile.TemporaryDirectory(prefix="tamis-")))

    def _learned(self) -> Learned:
        with ExitStack() as stack:
            return learned_from(self._store(stack))

    def _budget(
        self, memory: int | str | None, workers: int | Literal["auto"], learned: Learned | None = None
    ) -> Budget:
        release_pages(code=True)  # or what is held depends on what was in the page cache when libraries were loaded
        return make_budget(
            memory=memory,
            workers=workers,
            operator_bytes=Learned().setup_bytes(self.steps),
            learned_bytes=(learned or Learned()).setup_bytes(self.steps),
            # Not its share of what it has in common with others: what that is changes as these come and go.
            caller_bytes=psutil.Process().memory_info().rss,
        )


def _placed(steps: Sequence[Operator], device: str) -> Sequence[Operator]:
    """The steps with those that can choose between processor and GPU told where to run."""
    able = [step for step in steps if getattr(step, "device", None) == "auto"]
    if device == "gpu" and not able:
        raise ParameterError("none of these steps runs on a GPU", hint="leave --device at auto")
    return [step.changed(device=device) if step in able else step for step in steps]


def learned_from(store: Store) -> Learned:
    """What an earlier run left for this one; nothing if it cannot be read, which the run itself will explain."""
    try:
        return Learned.from_text(store.read(f"{INTERNAL}/learned.json"))
    except OSError:
        return Learned()


def _planner(
    steps: Sequence[Operator],
    budget: Budget,
    store: Store,
    *,
    rejects: bool,
    on_error: str,
    profile: bool,
    scores: bool,
) -> Callable[[int | None], Plan]:
    from tamis.sinks.tables import ParquetWriter

    side = ParquetWriter(store.root) if rejects else None
    return lambda blocksize: make_plan(
        steps, budget, store, blocksize=blocksize, rejects=side, on_error=on_error, profile=profile, scores=scores
    )


Sequential = Pipeline
"""The name that users of other systems know."""
