"""Turn steps into stages: check the columns, read only the columns needed, fuse consecutive steps, end a stage at each Gather.

JsonlReader  Language  GopherQuality  FuzzyDedup  WordCount  ParquetWriter
|-- stage 1 -----------------------------------|                              read ... observe
                                      resolve                                 all observations -> fates
                                               |-- stage 2 ----------------|  fates, rest, write
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pyarrow as pa

import tamis
from tamis.errors import BudgetError, ColumnError, ParameterError, SinkError, TamisError
from tamis.exchange import Exchange, FolderExchange
from tamis.executors.estimate import estimate
from tamis.executors.executor import Streaming
from tamis.executors.packets import PacketRows
from tamis.executors.scores import measured_operators, measuring_identity
from tamis.executors.tasks import Group, Stage
from tamis.features import after_writing, features_of, with_features
from tamis.functions import Function
from tamis.media import has_media
from tamis.memory.budget import (
    DEFAULT_BLOCKSIZE,
    SMALLEST_DEFAULT_BLOCKSIZE,
    WANTED_PARTITIONS,
    Budget,
    StreamBudget,
    default_blocksize,
    make_budget,
    stream_budget,
    usable_cpus,
    usable_gpus,
)
from tamis.memory.governor import Learned, pool_needs
from tamis.memory.spill import SpilledRows
from tamis.operators import ALL, Filter, Gather, Layout, Map, Operator, Sink, Source, digest
from tamis.parameters import as_text, format_bytes, parse_bytes, plural
from tamis.store import Store

HEAVY_BYTES = 200_000_000
"""Operators that declare at least this much memory get workers of their own if there is not enough for one in each worker."""


@dataclass(frozen=True)
class Plan:
    """The stages of a run, the partitions they share, and the reason for each choice."""

    groups: tuple[Group, ...]
    layout: Layout
    budget: Budget
    blocksize: int
    store: Store
    exchange: Exchange
    identity: list[dict[str, Any]]
    recipe: list[dict[str, Any]] = field(default_factory=list)
    """The steps with their parameters, as in a recipe, without secrets."""
    reasons: dict[str, str] = field(default_factory=dict)
    hints: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What users should know about the steps: `Operator.notes`, and work that a later run cannot reuse."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The work between two Gathers as one stage each, whether it runs so or not."""
        return tuple(group.whole for group in self.groups)

    @property
    def keeps_scores(self) -> bool:
        return self.stages[0].scores is not None

    @property
    def sink(self) -> Sink | None:
        end = self.stages[-1].end
        return end if isinstance(end, Sink) else None


@dataclass(frozen=True)
class Shape:
    """The steps of a pipeline by role: source, operators, sink."""

    source: Source
    operators: tuple[Operator, ...]
    sink: Sink | None


def shape_of(steps: Sequence[Operator]) -> Shape:
    """Return the steps by role. Raise if a source or a sink is in the wrong position."""
    if not steps:
        raise ParameterError("a pipeline needs at least a source", hint='Pipeline(JsonlReader("in/"), ...)')
    source = steps[0]
    if not isinstance(source, Source):
        raise ParameterError(
            f"step 1, `{source.name}`, is a {source.kind}; the first step must be a source",
            hint='begin with a reader, such as JsonlReader("in/")',
        )
    sink = steps[-1] if len(steps) > 1 and isinstance(steps[-1], Sink) else None
    middle = tuple(steps[1:-1] if sink else steps[1:])
    for number, step in enumerate(middle, start=2):
        if isinstance(step, Source):
            raise ParameterError(
                f"step {number}, `{step.name}`, is a second source", hint="give one reader a list of paths"
            )
        if isinstance(step, Sink):
            raise ParameterError(f"step {number}, `{step.name}`, is a sink but not the last step")
    return Shape(source, middle, sink)


# -------------------------------------------------------------------------------------------------------------- columns


def check_columns(shape: Shape, layout: Layout) -> None:
    """Raise if a step reads a column that no earlier step provides."""
    here: dict[str, None] = dict.fromkeys(layout.schema.names)
    if not here:
        return  # no rows, or rows without columns: there is nothing to check
    steps = [shape.source, *shape.operators, *([shape.sink] if shape.sink else [])]
    for number, step in enumerate(steps, start=1):
        if isinstance(step, Function):
            return  # a function may add any column
        wanted = [real for real in step.real_names().values() if real != ALL]
        if isinstance(step, Sink):
            wanted = list(getattr(step, "fields", None) or ())
        for name in wanted:
            if name not in here:
                raise _missing_column(name, number, len(steps), step, list(here), layout)
        for name in step.removes(list(here)):
            del here[name]
        here.update(dict.fromkeys(name for name in step.writes() if name != ALL))


def _missing_column(name: str, number: int, total: int, step: Operator, here: list[str], layout: Layout) -> ColumnError:
    candidates = [column for column in here if column in layout.schema.names]
    like = next((c for c in ("content", "raw_content", "body", "document", "page_content") if c in candidates), None)
    example = like or (candidates[0] if candidates else "its name")
    return ColumnError(
        f"step {number} of {total}, `{step.name}`, reads column `{name}`, which no earlier step provides\n\n"
        f"columns here: {', '.join(sorted(here))}",
        hint=f'name it at the source: columns={{"{name}": "{example}"}}'
        if number > 1 and not isinstance(step, Sink)
        else "correct `fields`",
    )


def lines_pass_through(shape: Shape) -> bool:
    """Return whether source and sink are JSON lines and no step changes rows, so that lines are written as they were read.

    Not if rows refer to media relative to the file they are in.

    Only the columns that steps read are then parsed.
    """
    passive = all(isinstance(op, (Filter, Gather)) and not op.writes() for op in shape.operators)
    return passive and shape.source.gives_lines() and shape.sink is not None and shape.sink.takes_lines()


def sink_schema(shape: Shape, schema: pa.Schema) -> pa.Schema:
    """Return the columns of the source that reach the sink."""
    for step in shape.operators:
        gone = set(step.removes(schema.names))
        features = after_writing(features_of(schema), step.writes())
        schema = with_features(pa.schema([column for column in schema if column.name not in gone]), features)
    return schema


def columns_to_read(shape: Shape, *, everything: bool, nothing: bool = False) -> tuple[str, ...] | None:
    """Return the columns that the source must read, derived backwards from the sink; None for all columns."""
    needed: set[str] | None = set() if nothing else None
    if not everything and not nothing:
        fields = getattr(shape.sink, "fields", None) if shape.sink else ()
        needed = set(fields) if fields is not None else None
    for step in reversed(shape.operators):
        reads = set(step.real_names().values())
        if ALL in reads:
            needed = None
        elif needed is not None:
            needed = (needed - set(step.writes())) | reads
    return None if needed is None else tuple(sorted(needed))


# --------------------------------------------------------------------------------------------------------------- stages


def choose_budget(
    steps: Sequence[Operator],
    learned: Learned,
    streaming: Streaming,
    *,
    memory: int | str | None,
    workers: int | Literal["auto"],
    caller_bytes: int,
) -> Budget:
    """Derive the budget, and decide whether operators that need much memory or a GPU get workers of their own.

    They do if there is not enough memory to load them in every worker.
    """

    def budget_for(chosen: Sequence[Operator]) -> Budget:
        return make_budget(
            memory=memory,
            workers=workers,
            operator_bytes=Learned().setup_bytes(chosen),
            learned_bytes=learned.setup_bytes(chosen),
            caller_bytes=caller_bytes,
        )

    fused = budget_for(steps)
    heavy_bytes = HEAVY_BYTES if streaming == "auto" else 1
    heavy = [step for step in steps if not isinstance(step, (Source, Gather, Sink)) and is_heavy(step, heavy_bytes)]
    if streaming == "never" or not heavy:
        return fused
    if streaming == "auto" and fused.workers >= fused.wanted_workers and not any(op.resources.gpus for op in heavy):
        return fused
    light = budget_for([step for step in steps if step not in heavy])
    reasons = light.reasons | {
        "max_row_bytes": fused.reasons["max_row_bytes"],
        "queue": "rows between stages that run at the same time wait in packets, within the budget",
    }
    divided = replace(light, heavy_bytes=heavy_bytes, max_row_bytes=fused.max_row_bytes, reasons=reasons)
    try:
        for operators in _between_gathers(steps):
            runs = resource_runs(operators, heavy_bytes)
            if len(runs) > 1:
                stream_budget(divided, pool_needs(runs, learned))
    except BudgetError:
        if streaming == "always":
            raise
        return fused
    return divided


def _between_gathers(steps: Sequence[Operator]) -> Iterator[list[Operator]]:
    found: list[Operator] = []
    for step in steps:
        if isinstance(step, Gather):
            yield found
            found = []
        elif not isinstance(step, (Source, Sink)):
            found.append(step)
    yield found


def make_plan(
    steps: Sequence[Operator],
    budget: Budget,
    store: Store,
    *,
    blocksize: int | None = None,
    rejects: Sink | None = None,
    on_error: str = "isolate",
    profile: bool = False,
    scores: bool = False,
    exchange: Exchange | None = None,
) -> Plan:
    """Turn the steps into stages. Reads only file listings, footers and samples of the input.

    `blocksize` is that of the run to resume, if any: with other partitions, its commits could not be reused. `exchange` holds
    what passes between stages; by default it is a folder beside the output.
    """
    exchange = exchange or FolderExchange(store.work())
    shape = shape_of(steps)
    for number, step in enumerate(steps, start=1):
        try:
            step.check()
            check_resources(step)
        except TamisError as error:
            error.message = f"step {number}, `{step.name}`: {error.message}"
            raise
    if shape.sink is not None:
        how = shape.source.touches(store.root, f"part-000000{shape.sink.file_suffix}")
        if how:
            raise SinkError(f"the output {store.root} {how}", hint="write to a folder of its own, outside the input")
    given = getattr(shape.source, "blocksize", None)
    chosen = parse_bytes(given) if given is not None else blocksize or default_blocksize(shape.source.input_bytes())
    layout = shape.source.layout(chosen)
    check_columns(shape, layout)
    identity = [_identity(step) for step in steps]
    keep_lines = lines_pass_through(shape) and not any(has_media(column.type) for column in layout.schema)
    columns = columns_to_read(shape, everything=rejects is not None and not keep_lines, nothing=keep_lines)
    if columns is not None:
        optional = {name for step in shape.operators for name in step.optional_reads()} & set(layout.schema.names)
        columns = tuple(sorted({*columns, *optional}))
    known = {id(step): found for step, found in zip(steps, identity, strict=True)}
    stages = _cut(
        shape, layout, columns, budget, store, exchange, rejects, on_error, known,
        keep_lines=keep_lines, profile=profile, scores=scores,
    )  # fmt: skip
    reasons = {
        **budget.reasons,
        **_blocksize_reason(shape.source, chosen, resumed=blocksize is not None),
        **layout.reasons,
    }
    reasons["columns"] = _columns_reason(columns, keep_lines)
    if any(isinstance(stage.end, Gather) for stage in stages):
        reasons["spill"] = _spill_reason(stages)
    return Plan(
        groups=tuple(_group(stage, budget.heavy_bytes) for stage in stages),
        layout=layout,
        budget=budget,
        blocksize=chosen,
        store=store,
        exchange=exchange,
        identity=identity,
        recipe=[{step.name: _written(step)} for step in steps],
        reasons=reasons,
        hints=tuple(order_hints(shape.operators)),
        notes=(*_step_notes(steps), *(_opaque_notes(steps, identity) if shape.sink is not None else ())),
    )


def _blocksize_reason(source: Source, blocksize: int, *, resumed: bool) -> dict[str, str]:
    """Why partitions have the size they have."""
    if getattr(source, "files_per_partition", None) is not None:
        return {"blocksize": "not used: `files_per_partition` is given"}
    text = f"{format_bytes(blocksize)}: "
    if getattr(source, "blocksize", None) is not None:
        return {"blocksize": f"{text}given to `{source.name}`"}
    if resumed:
        return {"blocksize": f"{text}that of the run that is resumed"}
    least, most = format_bytes(SMALLEST_DEFAULT_BLOCKSIZE), format_bytes(DEFAULT_BLOCKSIZE)
    share = f"a {WANTED_PARTITIONS}th of the input, from {least} to {most}"
    return {"blocksize": f"{text}{share}; a partition is read in batches, never whole"}


def _identity(step: Operator) -> dict[str, Any]:
    """Return what determines the result of a step; unique to this run if it cannot be compared between runs."""
    found = step.identity()
    return found | ({"run": uuid.uuid4().hex} if "opaque" in found else {})


def _step_notes(steps: Sequence[Operator]) -> Iterator[str]:
    for number, step in enumerate(steps, start=1):
        for note in step.notes():
            yield f"step {number}, `{step.name}`: {note}"


def _opaque_notes(steps: Sequence[Operator], identity: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for number, (step, found) in enumerate(zip(steps, identity, strict=True), start=1):
        if "opaque" in found:
            example = f"step({step.name}, version=1)" if isinstance(step, Function) else "@operator(..., version=1)"
            yield (
                f"step {number}, `{step.name}`, is redone in every run: it uses {', '.join(found['opaque'])}, "
                f"which cannot be compared between runs; to reuse its work, set a version by hand: {example}"
            )


def check_resources(step: Operator) -> None:
    """Raise if a step needs more cores or GPUs than this machine has. The budget checks memory."""
    if step.resources.cpus > usable_cpus():
        raise ParameterError(f"it needs {step.resources.cpus:g} cores, and there are {usable_cpus()}")
    if step.resources.gpus > (gpus := len(usable_gpus()) if step.resources.gpus else 0):
        raise ParameterError(f"it needs {step.resources.gpus:g} GPUs, and there are {gpus or 'none'} here")


def _cut(
    shape: Shape,
    layout: Layout,
    columns: tuple[str, ...] | None,
    budget: Budget,
    store: Store,
    exchange: Exchange,
    rejects: Sink | None,
    on_error: str,
    known: Mapping[int, Mapping[str, Any]],
    *,
    keep_lines: bool,
    profile: bool,
    scores: bool,
) -> list[Stage]:
    stages: list[Stage] = []
    source: Source = shape.source
    fates_of: Gather | None = None
    rest = list(shape.operators)
    fingerprint = digest([tamis.__version__, known[id(shape.source)]])
    while True:
        index = len(stages)
        cut = next((number for number, op in enumerate(rest) if isinstance(op, Gather)), None)
        operators = rest if cut is None else rest[:cut]
        end = shape.sink if cut is None else rest[cut]
        assert end is None or isinstance(end, (Sink, Gather))
        # Rows that no step has changed are read from the source again instead of being copied to disk.
        untouched = isinstance(source, type(shape.source)) and not operators and index == 0
        parts = [fingerprint, [known[id(op)] for op in operators], known[id(end)] if end else None]
        fingerprint = digest(parts)
        stages.append(
            Stage(
                index=index,
                name=" > ".join(step.name for step in (source, *operators, *([end] if end else []))),
                source=source,
                operators=tuple(operators),
                end=end,
                columns=columns,
                schema=layout.schema,
                batch_bytes=budget.batch_bytes,
                fingerprint=fingerprint,
                exchange=exchange.sub(f"stage-{index}"),
                store=store,
                fates_of=fates_of,
                fates=exchange.sub(f"stage-{index - 1}") if fates_of is not None else None,
                reads_again=index > 0 and source is shape.source,
                spills_rows=cut is not None and not untouched,
                sink_schema=sink_schema(shape, layout.schema),
                rejects=rejects,
                on_error=on_error,
                keep_lines=keep_lines,
                profile=profile,
                # Rows that a stage reads from disk have no input file whose identity could key their scores.
                scores=_measuring(shape.source, operators, known) if scores and index == 0 else None,
                reuse=_reuse(shape, known, columns, rejects=rejects is not None) if scores else None,
            )
        )
        if cut is None:
            return stages
        assert isinstance(end, Gather)
        fates_of = end
        rest = rest[cut + 1 :]
        if not untouched:
            source = SpilledRows(exchange=exchange.sub(f"stage-{index}"), access=shape.source.access)


def _group(stage: Stage, heavy_bytes: int | None) -> Group:
    """A stage, cut where operators need other resources than their neighbours."""
    runs = resource_runs(stage.operators, heavy_bytes) if heavy_bytes is not None else []
    if len(runs) < 2:
        return Group(stage, (stage,))
    stages: list[Stage] = []
    before: tuple[Operator, ...] = ()
    for number, run in enumerate(runs):
        last = number == len(runs) - 1
        source = stage.source if not number else PacketRows(access=stage.source.access)
        end = stage.end if last else None
        stages.append(
            replace(
                stage,
                name=" > ".join(step.name for step in (source, *run, *([end] if end else []))),
                source=source,
                operators=run,
                end=end,
                columns=stage.columns if not number else None,
                fates_of=stage.fates_of if not number else None,
                reads_again=stage.reads_again and not number,
                spills_rows=stage.spills_rows and last,
                keep_lines=stage.keep_lines and not number,
                scores=None,
                pool=number,
                before=before,
                hands_on=not last,
            )
        )
        before = (*before, *run)
    return Group(stage, tuple(stages))


def resource_runs(operators: Sequence[Operator], heavy_bytes: int) -> list[tuple[Operator, ...]]:
    """Neighbours that can share a worker: the first and the last run are light, and may be empty.

    Consecutive operators that need a GPU, or much memory, share a worker.
    """
    runs: list[list[Operator]] = [[]]
    for op in operators:
        if is_heavy(op, heavy_bytes) != (len(runs) % 2 == 0):
            runs.append([])
        runs[-1].append(op)
    if len(runs) % 2 == 0:
        runs.append([])
    return [tuple(run) for run in runs]


def is_heavy(op: Operator, heavy_bytes: int) -> bool:
    """Whether an operator needs a GPU, or so much memory that it should have workers of its own."""
    return op.resources.gpus > 0 or op.resources.memory_bytes >= heavy_bytes


def _measuring(source: Source, operators: Sequence[Operator], known: Mapping[int, Mapping[str, Any]]) -> str | None:
    """Return the identity of the measurements of the filters at the start of a stage; None if there are none."""
    head = operators[: measured_operators(operators)]
    runs = [known[id(step)].get("run") for step in (source, *head)]
    return digest([measuring_identity(source, head), *filter(None, runs)]) if head else None


def _reuse(
    shape: Shape, known: Mapping[int, Mapping[str, Any]], columns: tuple[str, ...] | None, *, rejects: bool
) -> str | None:
    """Return the identity of the rows written apart from thresholds; None if written rows cannot be reused.

    Each row written must be one row read, which filters and maps guarantee, and a partition must have one shard.
    """
    filters = [op for op in shape.operators if isinstance(op, Filter)]
    one_to_one = filters and all(isinstance(op, (Filter, Map)) for op in shape.operators)
    if not one_to_one or shape.sink is None or getattr(shape.sink, "target_shard_size", None) is not None:
        return None
    steps = [[op.measuring_identity(), known[id(op)].get("run")] for op in shape.operators]
    adds_columns = [op.adds_scores for op in filters]
    return digest(
        [tamis.__version__, known[id(shape.source)], steps, adds_columns, known[id(shape.sink)], columns, rejects]
    )


def _written(step: Operator) -> dict[str, Any]:
    parameters = {} if isinstance(step, Function) else step.recorded_parameters()
    return {name: value for name, value in parameters.items() if name != "storage_options"}


def _columns_reason(columns: tuple[str, ...] | None, keep_lines: bool) -> str:
    if columns is None:
        return "all columns are read: the output contains them all"
    if keep_lines:
        return f"only {', '.join(columns) or 'nothing'} is parsed: lines are written as they were read"
    return f"only {', '.join(columns) or 'the number of rows'}: no step needs other columns"


def _spill_reason(stages: Sequence[Stage]) -> str:
    if any(stage.spills_rows for stage in stages):
        return "rows and observations are stored on disk and processed in parts that fit a worker"
    return "observations are stored on disk and processed in parts that fit a worker; the rows are read again"


def order_hints(operators: Sequence[Operator]) -> list[str]:
    """Return hints for cheap filters that follow an expensive step they do not depend on."""
    hints = []
    for costly, cheap in itertools.pairwise(operators):
        free = isinstance(cheap, Filter) and not set(costly.writes()) & set(cheap.real_names().values())
        if free and not isinstance(costly, (Function, Gather)) and costly.cost >= 10 * cheap.cost:
            hints.append(f"move `{cheap.name}`, which is cheap, before `{costly.name}`, to process fewer rows there")
    return hints


# -------------------------------------------------------------------------------------------------------------- explain


class Explanation:
    """A plan as text and as data: stages, partitions, memory, and columns to read."""

    def __init__(self, plan: Plan, learned: Learned | None = None) -> None:
        self._plan = plan
        self._learned = learned or Learned()
        self.estimate = estimate(plan.groups, plan.layout, plan.budget, learned)
        self.notes = plan.notes

    def as_dict(self) -> dict[str, Any]:
        plan = self._plan
        return {
            "stages": [
                {
                    "stage": stage.index + 1,
                    "source": stage.source.name,
                    "operators": [op.name for op in stage.operators],
                    "end": stage.end.name if stage.end else None,
                    "applies": stage.fates_of.name if stage.fates_of else None,
                    "spills_rows": stage.spills_rows,
                    "pools": self._pools(group),
                }
                for group in plan.groups
                for stage in (group.whole,)
            ],
            "partitions": len(plan.layout.partitions),
            "files": plan.layout.num_files,
            "bytes": plan.layout.num_bytes,
            "columns": list(plan.stages[0].columns) if plan.stages[0].columns is not None else None,
            "schema": {
                name: str(kind) for name, kind in zip(plan.layout.schema.names, plan.layout.schema.types, strict=True)
            },
            "memory_bytes": plan.budget.total_bytes,
            "workers": plan.budget.workers,
            "batch_bytes": plan.budget.batch_bytes,
            "blocksize": plan.blocksize,
            "output": plan.store.root if plan.sink else None,
            "estimate": self.estimate.as_dict(),
            "reasons": dict(plan.reasons),
            "hints": list(plan.hints),
            "notes": list(plan.notes),
        }

    def __str__(self) -> str:
        plan = self._plan
        lines = [
            f"reads    {plural(plan.layout.num_files, 'file')}, {format_bytes(plan.layout.num_bytes)}, "
            f"in {plural(len(plan.layout.partitions), 'partition')}"
        ]
        if plan.layout.schema.names:
            lines.append(f"columns  {_shorten(plan.layout.schema.names)}")
        for group in plan.groups:
            stage = group.whole
            lines.append(f"stage {stage.index + 1}")
            lines.append(f"  read     {stage.source.name}" + (" (again)" if stage.reads_again else ""))
            if stage.fates_of is not None:
                lines.append(f"  apply    {stage.fates_of.name}")
            lines += [f"  {op.kind:<8} {op.name} {_parameters(op)}".rstrip() for op in stage.operators]
            if stage.end is not None:
                verb = "observe" if isinstance(stage.end, Gather) else "write"
                lines.append(f"  {verb:<8} {stage.end.name} {_parameters(stage.end)}".rstrip())
            if group.streams:
                lines += self._pool_lines(group)
        lines.append(str(self.estimate))
        lines += [f"{name:<12} {reason}" for name, reason in plan.reasons.items()]
        lines += [f"note: {note}" for note in plan.notes]
        lines += [f"hint: {hint}" for hint in plan.hints]
        return "\n".join(lines)

    def _stream(self, group: Group) -> StreamBudget:
        needs = pool_needs([stage.operators for stage in group.stages], self._learned)
        return stream_budget(self._plan.budget, needs)

    def _pools(self, group: Group) -> list[dict[str, Any]]:
        """Stages that run at the same time, each with workers of its own."""
        if not group.streams:
            return []
        found = self._stream(group)
        last = len(group.stages) - 1
        return [
            {
                "steps": [step.name for step in stage.steps],
                "most_workers": share.most,
                "worker_bytes": share.worker_bytes,
                "hands_on": None if number == last else "disk" if number == last - 1 else "shared memory",
                "packet_bytes": None
                if number == last
                else found.packet_bytes
                if number < last - 1
                else found.batch_bytes,
            }
            for number, (stage, share) in enumerate(zip(group.stages, found.pools, strict=True))
        ]

    def _pool_lines(self, group: Group) -> Iterator[str]:
        yield (
            f"  at the same time, with at most {format_bytes(self._stream(group).edge_bytes)} of rows in shared memory "
            "between them:"
        )
        for pool in self._pools(group):
            line = f"    {' > '.join(pool['steps'])}: up to {plural(pool['most_workers'], 'worker')} "
            line += f"of {format_bytes(pool['worker_bytes'])}"
            if pool["hands_on"]:
                line += f", packets of {format_bytes(pool['packet_bytes'])} through {pool['hands_on']}"
            yield line


def _parameters(op: Operator) -> str:
    parameters: Mapping[str, Any] = op.parameters() if not isinstance(op, Function) else {}
    return ", ".join(f"{name}={as_text(value)!r}" for name, value in parameters.items())


def _shorten(names: Sequence[str], most: int = 12) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown}, ... ({len(names)} in total)"


__all__ = ["Explanation", "Plan", "make_plan", "shape_of"]
