"""`Pipeline(source, *operators, sink)`: check it, explain it, run it.

Building a pipeline does no work. `check` and `explain` read file listings, footers and samples. `run` processes what earlier
runs into the same output have not committed.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Literal, TypeAlias

import psutil
import pyarrow as pa

from tamis.card import check_card, check_license, write_card
from tamis.client import ExecutorName, current_client, executor_of
from tamis.errors import BudgetError, DiskFull, ParameterError, TooManyFailed
from tamis.eventlog import EventLog
from tamis.events import Events, RunFinished, Subscriber
from tamis.exchange import Exchange, FolderExchange, StoreExchange, remove_local_copies
from tamis.executors.driver import Run
from tamis.executors.executor import Executor, Session, Stop, Streaming
from tamis.executors.failures import DEFAULT_MAX_FAILED, FailureLimit, FailureWatch, parse_max_failed
from tamis.executors.forkserver import modules_of
from tamis.executors.local import LocalExecutor
from tamis.executors.merging import exchange_for
from tamis.executors.resume import prepare_output
from tamis.executors.sampled import run_sampled
from tamis.executors.sharding import Joining, ShardRun, ShardSettings, merge_if_last
from tamis.executors.watch import Watch
from tamis.explanation import Explanation
from tamis.functions import Function, as_operator
from tamis.inert import html_table
from tamis.ledger import Ledger
from tamis.mapped import release_pages
from tamis.memory.alerts import parse_alerts
from tamis.memory.budget import CALLER_BYTES, Budget, Machine
from tamis.memory.governor import Governor, Learned
from tamis.memory.log import MemoryLog
from tamis.memory.profile import Profile, profile_of
from tamis.models.devices import Device, on_nodes
from tamis.operators import Operator, Sink
from tamis.parameters import as_text, plural
from tamis.placement import place
from tamis.plan import Plan, PlanOptions, lines_pass_through, make_plan, shape_of
from tamis.progress import SHOW_AFTER_S, Progress, shown_in_python
from tamis.remote import is_remote
from tamis.report import Report
from tamis.shards import DEFAULT_SHARD_WAIT_S, JobShard, parse_shard
from tamis.sources.listing import forget_listings, one_listing
from tamis.store import INTERNAL, Store, make_scratch, scratch_notes

Step: TypeAlias = Operator | Callable[..., Any]


ANY_FAILURES = FailureLimit(share=1.0)


@dataclasses.dataclass(frozen=True)
class _Settings:
    """The options of `Pipeline.run` that a single run needs, checked."""

    on_error: str = "isolate"
    limit: FailureLimit = ANY_FAILURES
    fresh: bool = False
    rejects: bool = False
    scores: bool = False
    profile: bool = False
    keep_work: bool = False
    card: bool = False
    license: str | None = None
    alerts: Mapping[str, Any] | None = None
    scratch: str | Path | None = None
    exchange: str | None = None
    shard: JobShard | None = None
    shard_wait: float = DEFAULT_SHARD_WAIT_S


class Pipeline:
    """A source, the operators that process its rows, and a sink.

    Steps may be given in lists, and in other pipelines. Without a sink, `run` only counts rows, and `collect` returns them.

    >>> from tamis import Rows
    >>> Pipeline(Rows([{"n": 1}, {"n": 2}]), lambda row: row["n"] > 1).collect().to_pylist()
    [{'n': 2}]
    """

    def __init__(self, *steps: Step | Pipeline | Sequence[Step | Pipeline]) -> None:
        self.steps: tuple[Operator, ...] = tuple(as_operator(step) for step in _flat(steps))
        self.notes: tuple[str, ...] = tuple(note for step in steps if isinstance(step, Pipeline) for note in step.notes)
        """What a run reports beside the notes of steps, such as steps of a recipe that were left out."""

    def __repr__(self) -> str:
        return f"Pipeline({', '.join(step.name for step in self.steps)})"

    def _repr_html_(self) -> str:
        rows = [
            (number, step.kind, step.name, ", ".join(f"{key}={value!r}" for key, value in _given(step).items()))
            for number, step in enumerate(self.steps, 1)
        ]
        return html_table(["", "kind", "step", "parameters"], rows, caption=f"pipeline of {plural(len(rows), 'step')}")

    @property
    def sink(self) -> Sink | None:
        return shape_of(self.steps).sink

    def check(self) -> tuple[str, ...]:
        """Raise a TamisError for any mistake that can be found without processing data; return the notes of steps."""
        return self.explain().notes

    def explain(
        self,
        *,
        memory: int | str | None = None,
        workers: int | Literal["auto"] = "auto",
        executor: ExecutorName | Executor | None = None,
        device: Device = "auto",
        gpu_memory: int | str | None = None,
        scratch: str | Path | None = None,
    ) -> Explanation:
        """Describe what a run would do: stages, partitions, memory, devices, the columns it reads, and why."""
        where = executor_of(executor)
        memory, device = _settings_of(executor, memory, device)
        if workers == "auto":
            workers = where.workers
        with ExitStack() as stack:
            machine = stack.enter_context(where.connected())
            stack.enter_context(_gpus_of(machine))
            store = self._store(stack, scratch)
            learned = learned_from(store)
            with one_listing():
                placed, budget = self._placed(memory, workers, learned, where.streaming, device, gpu_memory, machine)
                return Explanation(make_plan(placed.steps, budget, store, notes=self.notes), learned)

    def run(
        self,
        *,
        memory: int | str | None = None,
        workers: int | Literal["auto"] = "auto",
        executor: ExecutorName | Executor | None = None,
        device: Device = "auto",
        gpu_memory: int | str | None = None,
        rejects: bool = False,
        scores: bool = False,
        fresh: bool = False,
        keep_work: bool = False,
        card: bool = False,
        license: str | None = None,
        on_error: Literal["isolate", "raise"] | None = None,
        max_failed: float | str = DEFAULT_MAX_FAILED,
        on_overflow: Literal["error", "sample"] = "error",
        max_seconds: float | None = None,
        scratch: str | Path | None = None,
        exchange: str | None = None,
        shard: str | None = None,
        shard_wait: float = DEFAULT_SHARD_WAIT_S,
        alerts: Mapping[str, Any] | None = None,
        on_event: Subscriber | Sequence[Subscriber] = (),
        progress: bool | None = None,
    ) -> Report:
        """Run the pipeline and account for every row.

        Work that an earlier run of the same pipeline committed to the same output is kept; `fresh` discards it.

        `executor` says where: "local", in worker processes on this machine; "inline", in this process, for debugging; "ray" or
        "dask", on a cluster. By default that is the cluster of `get_client`, if there is one, or this machine.

        `device` applies to all steps whose own `device` is "auto": "gpu" raises an error if there is no GPU, and "cpu" hides
        GPUs from the workers. `gpu_memory` is what the workers on one GPU may hold together; by default most of what is free.

        If a row raises an error in a step, the row is written to `.tamis/failed/` and the run continues. The inline executor
        raises the error instead; `on_error` overrides either. The report counts the errors. If more rows or files fail than
        `max_failed` allows, the run ends with `TooManyFailed`: a share such as "10%" or 0.1, or a number of rows and files
        such as 20. A share applies to the rows read so far from 10,000 rows on, and at the end of the run from 100 rows on;
        to damaged files, from 10 input files on.

        `rejects` writes dropped rows with their reasons to `.tamis/rejects/`. `scores` writes the scores of filters to
        `.tamis/scores/`, from which the same pipeline can be run with other thresholds. `alerts` sets when and where to send
        alerts about memory, as `alerts:` does in a recipe.

        `card` writes a dataset card, `README.md`, in the form of the Hugging Face Hub, with `license` in its header if
        given. A `README.md` that no run wrote is never replaced.

        A step that needs all rows before it decides, such as a deduplication, writes facts about rows to disk. They are
        removed at the end; with `keep_work` they are kept, and after files are added a later run reads only those.

        `scratch` names a local folder for these files; by default they are beside a local output, and in the temporary folder
        for one in an object store. A resumed run needs the same folder; with another, the facts are made again. `exchange`
        names an object store, or a folder that all workers share, for what passes between workers, so that they need no
        other folder in common. `storage_options` are those of the writer.

        `shard="3/64"` does the third of 64 parts of the work, for the jobs of an array that write to one output. Where a step
        needs all rows, a shard waits for the others: as long as any of them is running, and else for `shard_wait` seconds. The
        last one to finish merges; otherwise `tamis merge` does. Until then, the report is that of the shard.

        If the whole job does not fit its memory or disk, `BudgetError` or `DiskFull` is raised. With `on_overflow="sample"`, a
        random sample of the rows is processed instead, doubled until it no longer fits or takes longer than `max_seconds`;
        the report has the share of the rows and the weight of each.

        `progress` shows a bar in a terminal and a line in a notebook once a run takes more than two seconds; False turns
        this off, and True prints lines where there is neither. The inline executor shows none by default. `on_event`
        receives all events.
        """
        parse_alerts(alerts)  # raise before anything is written
        where = executor_of(executor)
        memory, device = _settings_of(executor, memory, device)
        inline = where.name == "inline"
        settings = _Settings(
            on_error=on_error or ("raise" if inline else "isolate"),
            limit=parse_max_failed(max_failed),
            rejects=rejects,
            scores=scores,
            keep_work=keep_work,
            card=card,
            license=license,
            alerts=alerts,
            scratch=scratch,
            exchange=exchange,
            shard=self._checked_shard(shard, shard_wait, fresh=fresh, on_overflow=on_overflow),
            shard_wait=shard_wait,
        )
        check_license(license)
        if card and self.sink is None:
            raise ParameterError("a card is written to the output folder, and there is none", hint="add a writer")
        if progress is None and inline:
            progress = False  # bars would overwrite the prompt of a debugger
        shown = Progress(shows=shown_in_python(progress, sys.stderr), after_s=0.0 if progress else SHOW_AFTER_S)
        subscribers: list[Subscriber] = [on_event] if callable(on_event) else list(on_event)
        emit = Events([shown, *subscribers])
        if workers == "auto":
            workers = where.workers
        streaming = "never" if scores and not fresh and self._has_scores() else where.streaming

        with where.connected() as machine, _gpus_of(machine), shown:
            placed, budget = self._placed(memory, workers, self._learned(), streaming, device, gpu_memory, machine)

            def attempt(steps: Sequence[Operator], *, fresh: bool) -> Report:
                with ExitStack() as stack:
                    return self._with(steps)._run(
                        stack, budget, where, emit, dataclasses.replace(settings, fresh=fresh)
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

    def profile(
        self,
        *,
        rows: int = 20_000,
        memory: int | str | None = None,
        device: Device = "auto",
        gpu_memory: int | str | None = None,
        scratch: str | Path | None = None,
    ) -> Profile:
        """Run the first rows with one worker, and measure the memory and time of each step.

        Discards the output. Recommends memory, workers and block size for the whole input.
        """
        source = self.steps[0].changed(limit=rows) if hasattr(self.steps[0], "limit") else self.steps[0]
        steps = [source, *shape_of(self.steps).operators]
        parent = make_scratch(scratch) if scratch is not None else None
        with tempfile.TemporaryDirectory(prefix="tamis-", dir=parent) as folder, ExitStack() as stack:
            if self.sink is not None:
                elsewhere = {"path": folder, "mode": "overwrite", "storage_options": None}
                known = {spec.name for spec in dataclasses.fields(self.sink)}
                steps.append(self.sink.changed(**{k: v for k, v in elsewhere.items() if k in known}))
            placed, budget = Pipeline(*steps)._placed(memory, 1, Learned(), "never", device, gpu_memory)
            report = placed._run(stack, budget, LocalExecutor(), Events(), _Settings(fresh=True, profile=True))
        return profile_of(report, budget.driver_bytes, self.steps)

    def collect(self, *, max_failed: float | str = 0, **options: Any) -> pa.Table:
        """Run the pipeline and return its rows as one Arrow table; for results that fit in memory.

        Takes the options of `run`. Raises `TooManyFailed` if any row fails; with `max_failed="100%"`, failed rows are left out.
        """
        from tamis.sinks.tables import ArrowWriter

        if self.sink is not None:
            raise ParameterError("a pipeline with a sink writes its rows", hint="leave out the sink, or call run()")
        scratch = options.get("scratch")
        parent = make_scratch(scratch) if scratch is not None else None
        with tempfile.TemporaryDirectory(prefix="tamis-", dir=parent) as folder:
            try:
                self._with([*self.steps, ArrowWriter(folder)]).run(max_failed=max_failed, **options)
            except TooManyFailed as error:
                error.hint = 'fix the cause, or call collect(max_failed="100%") to get the rows that did not fail'
                raise
            tables = [
                pa.ipc.open_file(pa.OSFile(str(file))).read_all() for file in sorted(Path(folder).glob("*.arrow"))
            ]
        return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})

    def _run(self, stack: ExitStack, budget: Budget, executor: Executor, emit: Events, settings: _Settings) -> Report:
        stop = Stop()
        failures = FailureWatch(settings.limit)
        log = MemoryLog()
        shard = settings.shard
        store = self._store(stack, settings.scratch, shard.part if shard is not None else "")
        event_log = [stack.enter_context(EventLog(store))] if self.sink is not None else []
        emit = Events([failures, log, *event_log, *emit.subscribers])
        stack.callback(remove_local_copies, store.work())
        governor = Governor(budget, emit, learned_from(store))
        # First, because the fork server starts while the plan is made.
        session = stack.enter_context(executor.session(governor, self._modules(), emit, stop))
        make_plan_for = self._planner(budget, store, settings)
        stack.enter_context(one_listing())
        if shard is not None:
            kept = settings.keep_work, settings.card, settings.license
            joining = Joining(
                store, ShardSettings(shard, settings.shard_wait, settings.limit, *kept), make_plan_for, emit
            )
            run_of = functools.partial(
                ShardRun, governor=governor, emit=emit, stop=stop, failures=failures, memory_log=log
            )
            return _run_shard(joining, run_of, session, settings.alerts)
        plan = make_plan_for(None)  # raises for mistakes before the output folder is touched
        store.make()
        ledger = stack.enter_context(Ledger(store))
        if settings.card:
            check_card(ledger)
        prepare_output(store, plan.exchange, ledger, plan.sink, fresh=settings.fresh)
        if ledger.plan is not None and ledger.plan["blocksize"] != plan.blocksize:
            plan = make_plan_for(ledger.plan["blocksize"])
        forget_listings()
        run = Run(plan, ledger, governor, emit, stop, failures, log, keep_work=settings.keep_work)
        run.notes += [*scratch_notes(store), *ledger.lock.notes]
        left = run.settle()
        run.announce(left)
        if run.untouched and not any(left):
            report = run.unchanged()
        else:
            with Watch(store, governor, session, emit, settings.alerts) as watch:
                report = run.run(left, session, watch)
        if settings.card:
            assert plan.sink is not None
            write_card(ledger, plan.sink, plan.recipe, report, settings.license)
        return report

    def _planner(self, budget: Budget, store: Store, settings: _Settings) -> Callable[[int | None], Plan]:
        """A function that makes the plan of a run, with the block size of one to resume."""
        from tamis.sinks.tables import ParquetWriter

        rejects = ParquetWriter(store.root) if settings.rejects else None
        place = settings.exchange
        exchange = self._exchange(store, place) if settings.shard is None else exchange_for(store, place)
        options = PlanOptions(rejects, settings.on_error, settings.profile, settings.scores)
        limits = learned_from(store).limits
        return lambda blocksize: make_plan(
            self.steps, budget, store, options, blocksize=blocksize, exchange=exchange, limits=limits, notes=self.notes
        )

    def _modules(self) -> set[str]:
        """The modules that workers need."""
        modules = modules_of(map(type, self.steps))
        if not lines_pass_through(shape_of(self.steps)):
            modules |= set(self.sink.preload if self.sink is not None else ())
        return modules

    def _checked_shard(self, shard: str | None, wait_s: float, *, fresh: bool, on_overflow: str) -> JobShard | None:
        """The shard that is requested; raises for options that shards cannot have."""
        if shard is None:
            return None
        found = parse_shard(shard)
        if self.sink is None:
            raise ParameterError("shards need an output folder that they share", hint="add a writer")
        if fresh:
            raise ParameterError(
                "a shard cannot start over: it would discard the work of the others",
                hint="remove the output folder, or write to another one",
            )
        if on_overflow != "error":
            raise ParameterError("a shard cannot process a sample of the rows", hint='use on_overflow="error"')
        if isinstance(wait_s, bool) or not isinstance(wait_s, (int, float)) or not wait_s >= 0:
            raise ParameterError(f"`shard_wait` must be a number of seconds, got {wait_s!r}")
        return found

    def _store(self, stack: ExitStack, scratch: str | Path | None = None, part: str = "") -> Store:
        if scratch is not None:
            make_scratch(scratch)
        sink = self.sink
        if sink is not None:
            return Store(sink.folder, getattr(sink, "storage_options", None), scratch, part)
        return Store(stack.enter_context(tempfile.TemporaryDirectory(prefix="tamis-", dir=scratch)))

    def _exchange(self, store: Store, place: str | None) -> Exchange:
        """What passes between stages: a folder beside the output, or at the place given, which may be an object store."""
        if place is None:
            return FolderExchange(store.work())
        if not is_remote(place):
            return FolderExchange(make_scratch(place.removeprefix("file://")) / store.work_name)
        options = getattr(self.sink, "storage_options", None)
        return StoreExchange(f"{place.rstrip('/')}/{store.work_name}", options, store.work())

    def _has_scores(self) -> bool:
        """Whether a finished run stored scores, or they were copied. With them, one stage drops rows where it reads them.

        An interrupted run stored some too, but the rest is still to be measured.
        """
        if self.sink is None:
            return False
        with ExitStack() as stack:
            store = self._store(stack)
            report = store.read(f"{INTERNAL}/report.json")
            if not store.names(f"{INTERNAL}/scores"):
                return False
            if report is not None and json.loads(report).get("state") == "finished":
                return True
            ledger = Ledger(store)
            ledger.load()
            return ledger.plan is None

    def _learned(self) -> Learned:
        with ExitStack() as stack:
            return learned_from(self._store(stack))

    def _placed(
        self,
        memory: int | str | None,
        workers: int | Literal["auto"],
        learned: Learned,
        streaming: Streaming,
        device: Device,
        gpu_memory: int | str | None,
        machine: Machine | None = None,
    ) -> tuple[Pipeline, Budget]:
        """The pipeline with its steps on their devices, and the budget of a run."""
        release_pages(code=True)  # otherwise resident memory depends on the page cache when libraries were loaded
        # Not PSS: the share of pages that other processes map changes when they start and end.
        caller_bytes = psutil.Process().memory_info().rss if machine is None else CALLER_BYTES  # an agent
        steps, budget = place(
            self.steps,
            learned,
            streaming,
            memory=memory,
            workers=workers,
            caller_bytes=caller_bytes,
            device=device,
            gpu_memory=gpu_memory,
            machine=machine,
        )
        return self._with(steps), budget

    def _with(self, steps: Sequence[Operator]) -> Pipeline:
        """Other steps with the notes of this pipeline."""
        made = Pipeline(*steps)
        made.notes = self.notes
        return made


def _given(step: Operator) -> dict[str, Any]:
    """The parameters of a step that are shown; rows in memory as their number and digest."""
    return {} if isinstance(step, Function) else {k: as_text(v) for k, v in step.recorded_parameters().items()}


def _run_shard(
    joining: Joining, run_of: Callable[..., ShardRun], session: Session, alerts: Mapping[str, Any] | None
) -> Report:
    """Run one shard, and merge the run if it is the last one."""
    joining.store.make()
    with ExitStack() as stack:
        ledger = joining.join()
        forget_listings()
        if ledger is None:
            joining.emit(RunFinished(joining.unchanged))
            return joining.unchanged
        stack.enter_context(ledger)
        run = run_of(joining.plan, ledger)
        run.notes += [*scratch_notes(joining.store), *ledger.lock.notes]
        left = run.begin(joining.settings)
        run.announce(left)
        with Watch(joining.store, run.governor, session, joining.emit, alerts) as watch:
            report = run.run(left, session, watch)
    merged = merge_if_last(run, joining.emit)
    if merged is None:
        joining.emit(RunFinished(report))
    return merged or report


def _gpus_of(machine: Machine | None) -> AbstractContextManager[None]:
    """In the block, steps are planned for the GPUs of a node, or of this machine."""
    return on_nodes(None if machine is None else [gpu.name for gpu in machine.gpus])


def _settings_of(
    executor: ExecutorName | Executor | None, memory: int | str | None, device: Device
) -> tuple[int | str | None, Device]:
    """The memory and device of a run: as given, or those of the client that it uses."""
    client = current_client() if executor is None else None
    if client is None:
        return memory, device
    on_cpu = client.cluster_type == "cpu" and device == "auto"
    return client.memory if memory is None else memory, "cpu" if on_cpu else device


def _flat(steps: Sequence[Any]) -> Iterator[Any]:
    """The steps, those in lists and in other pipelines one by one."""
    for step in steps:
        if isinstance(step, Pipeline):
            yield from step.steps
        elif isinstance(step, Sequence) and not isinstance(step, str):
            yield from _flat(step)
        else:
            yield step


def learned_from(store: Store) -> Learned:
    """The measurements of an earlier run; none if they cannot be read, for which the run itself raises an error."""
    try:
        return Learned.from_text(store.read(f"{INTERNAL}/learned.json"))
    except OSError:
        return Learned()


Sequential = Pipeline
"""The same class under the name that PyTorch and NeMo Curator use."""
