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
from typing import Any

import pyarrow as pa

import tamis
from tamis.batch import HIDDEN
from tamis.errors import ColumnError, MissingExtra, ParameterError, SinkError
from tamis.exchange import Exchange, FolderExchange
from tamis.executors.packets import PacketRows
from tamis.executors.scores import measured_operators, measuring_identity
from tamis.executors.steps import visible
from tamis.executors.tasks import Group, Stage
from tamis.features import after_writing, features_of, with_features
from tamis.formats import FORMATS
from tamis.functions import Function
from tamis.media import has_media
from tamis.memory.budget import (
    DEFAULT_BLOCKSIZE,
    MOST_PARTITIONS,
    SMALLEST_DEFAULT_BLOCKSIZE,
    WANTED_PARTITIONS,
    Budget,
    default_blocksize,
    stream_budget,
    usable_cpus,
)
from tamis.memory.governor import Learned
from tamis.memory.runs import ReorderedRows
from tamis.memory.spill import RESOLVE, SpilledRows
from tamis.modules import is_installed
from tamis.operators import ALL, Filter, Gather, Layout, Map, Operator, Reorder, Sink, Source, digest
from tamis.parameters import format_bytes, parse_bytes
from tamis.placement import naming, resource_runs
from tamis.store import Store


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

    def workers_for(self, partitions: int, learned: Learned) -> int:
        """The most workers that have something to do at a time if so many partitions are left.

        A partition is processed by one worker, but a Gather divides its decisions among all of them, and stages that run at the
        same time have workers of their own.
        """
        gathers = any(isinstance(stage.end, Gather) for stage in self.stages)
        alone = self.budget.workers if gathers else min(self.budget.workers, max(1, partitions))
        pools = [stream_budget(self.budget, group.needs(learned)).pools for group in self.groups if group.streams]
        return max([alone, *(sum(pool.most for pool in each) for each in pools)])

    @property
    def sink(self) -> Sink | None:
        end = self.stages[-1].end
        return end if isinstance(end, Sink) else None


@dataclass(frozen=True)
class PlanOptions:
    """What is requested of a run, as far as its stages depend on it."""

    rejects: Sink | None = None
    """Where dropped rows are written."""
    on_error: str = "isolate"
    profile: bool = False
    scores: bool = False


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
    """Raise if a step reads a column that no earlier step provides, or would replace one by accident."""
    here: dict[str, None] = dict.fromkeys(layout.schema.names)
    if not here:
        return  # no rows, or rows without columns: there is nothing to check
    steps = [shape.source, *shape.operators, *([shape.sink] if shape.sink else [])]
    for number, step in enumerate(steps, start=1):
        if isinstance(step, Function):
            return  # a function may add any column
        wanted = [real for real in step.real_names().values() if real != ALL]
        if isinstance(step, Sink):
            wanted = [name for name in step.reads() if name != ALL] + list(getattr(step, "fields", None) or ())
        for name in wanted:
            if name not in here:
                raise _missing_column(name, number, len(steps), step, list(here), layout)
        if replaced := [name for name in step.adds() if name in here]:
            rest = ", ".join(f'"{name}"' for name in step.adds() if name not in here)
            which = f"step {number} of {len(steps)}, `{step.name}`"
            raise ColumnError(
                f"{which}, would replace columns that the rows have: {', '.join(replaced)}",
                hint=f"name the columns to add: fields=[{rest}]",
            )
        for name in step.removes(list(here)):
            del here[name]
        here.update(dict.fromkeys(name for name in step.writes() if name != ALL))


def _missing_column(name: str, number: int, total: int, step: Operator, here: list[str], layout: Layout) -> ColumnError:
    return ColumnError(
        f"step {number} of {total}, `{step.name}`, reads column `{name}`, which no earlier step provides\n\n"
        f"columns here: {', '.join(sorted(here))}",
        hint=_where_to_get(name, number, step, [each for each in here if each in layout.schema.names]),
    )


_MANIFESTS = {"audio_filepath": "nemo_manifest", "recording": "lhotse_manifest"}
"""The steps that read recordings by the columns of their manifests."""


def _where_to_get(name: str, number: int, step: Operator, read: list[str]) -> str:
    if isinstance(step, Sink):
        return step.without(name)
    if number == 1:
        return "correct `fields`"
    struct, dot, field = name.partition(".")
    if dot and struct in read:
        return f'copy the field before this step: Copy("{struct}", field="{field}", into="...")'
    maker = next((maker for column, maker in _MANIFESTS.items() if column in read), None)
    if name == "audio" and maker is not None:
        return f"put `{maker}` before this step: it makes `audio` from the columns of a manifest"
    usual = ("content", "raw_content", "body", "document", "page_content") if name == "text" else ()
    like = next((each for each in usual if each in read), None)
    if like is not None:
        return f'name it at the source: columns={{"{name}": "{like}"}}'
    paths = next((each for each in (f"{name}_file_name", "file_name", "path", "file") if each in read), None)
    media = {each.name for each in FORMATS.values() if each.is_media}
    if name in media and paths is not None and media.isdisjoint(read):
        return f'if `{paths}` has paths of files, put this before it: MediaReference(column="{paths}", to="{name}")'
    return f'name it at the source: columns={{"{name}": "..."}}, or put a step that writes it before this one'


def lines_pass_through(shape: Shape) -> bool:
    """Return whether source and sink are JSON lines and no step changes rows, so that lines are written as they were read.

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


def make_plan(
    steps: Sequence[Operator],
    budget: Budget,
    store: Store,
    options: PlanOptions | None = None,
    *,
    blocksize: int | None = None,
    exchange: Exchange | None = None,
    limits: Mapping[str, int] | None = None,
    notes: Sequence[str] = (),
) -> Plan:
    """Turn the steps into stages. Reads only file listings, footers and samples of the input.

    `blocksize` is that of the run to resume, if any: with other partitions, its commits could not be reused. `exchange` holds
    what passes between stages; by default it is a folder beside the output.
    """
    exchange, options = exchange or FolderExchange(store.work()), options or PlanOptions()
    shape = shape_of(steps)
    _check_steps(steps, shape, store)
    given = getattr(shape.source, "blocksize", None)
    chosen = parse_bytes(given) if given is not None else blocksize or default_blocksize(shape.source.input_bytes())
    layout = shape.source.layout(chosen)
    if any(name.startswith(HIDDEN) for name in layout.schema.names):
        layout = replace(layout, schema=visible(layout.schema))  # rows that have such columns fail when they are read
    check_columns(shape, layout)
    identity = [_identity(step) for step in steps]
    # Lines are not copied if rows refer to media relative to the file they are in.
    keep_lines = lines_pass_through(shape) and not any(has_media(column.type) for column in layout.schema)
    columns = columns_to_read(shape, everything=options.rejects is not None and not keep_lines, nothing=keep_lines)
    if columns is not None:
        optional = {name for step in shape.operators for name in step.optional_reads()} & set(layout.schema.names)
        columns = tuple(sorted({*columns, *optional}))
    known = {id(step): found for step, found in zip(steps, identity, strict=True)}
    base = Stage(
        index=0,
        name="",
        source=shape.source,
        operators=(),
        end=None,
        columns=columns,
        schema=layout.schema,
        batch_bytes=budget.batch_bytes,
        fingerprint="",
        exchange=exchange,
        store=store,
        sink_schema=sink_schema(shape, layout.schema),
        rejects=options.rejects,
        on_error=options.on_error,
        keep_lines=keep_lines,
        profile=options.profile,
        reuse=_reuse(shape, known, columns, rejects=options.rejects is not None) if options.scores else None,
        limits=limits or {},
    )
    stages = _cut(shape, base, len(layout.partitions), known, scores=options.scores)
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
        identity=[found for step, found in zip(steps, identity, strict=True) if step.decides],
        recipe=[{step.name: _written(step)} for step in steps],
        reasons=reasons,
        hints=tuple(order_hints(shape.operators)),
        notes=(
            *notes,
            *_step_notes(steps),
            *_replacement_notes(shape, layout.schema),
            *([f"all steps run on the {budget.reasons['device']}"] if "device" in budget.reasons else []),
            *(_opaque_notes(steps, identity) if shape.sink is not None else ()),
        ),
    )


def _check_steps(steps: Sequence[Operator], shape: Shape, store: Store) -> None:
    """Raise for a step that cannot run here, and for an output that overlaps with the input."""
    for number, step in enumerate(steps, start=1):
        with naming(number, step):
            step.check()
            check_packages(step)
            check_resources(step)
    if shape.sink is not None:
        how = shape.source.touches(store.root, f"part-000000{shape.sink.file_suffix}")
        if how:
            raise SinkError(f"the output {store.root} {how}", hint="write to a folder of its own, outside the input")


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
    if blocksize > DEFAULT_BLOCKSIZE:
        share = f"so that the driver has no more than {MOST_PARTITIONS:,} partitions"
    return {"blocksize": f"{text}{share}; a partition is read in batches, never whole"}


def _identity(step: Operator) -> dict[str, Any]:
    """Return what determines the result of a step; unique to this run if it cannot be compared between runs."""
    found = step.identity()
    return found | ({"run": uuid.uuid4().hex} if "opaque" in found else {})


def _step_notes(steps: Sequence[Operator]) -> Iterator[str]:
    for number, step in enumerate(steps, start=1):
        for note in step.notes():
            yield f"step {number}, `{step.name}`: {note}"


def _replacement_notes(shape: Shape, schema: pa.Schema) -> Iterator[str]:
    """Steps that replace columns of the input which they do not read, such as labels that the data already has."""
    untouched = set(schema.names)
    for number, step in enumerate(shape.operators, start=2):  # the source is the first step
        untouched.difference_update(step.removes(schema.names))
        replaced = sorted(untouched.intersection(step.writes()).difference(step.real_names().values()))
        untouched.difference_update(step.writes())
        if replaced:
            yield f"step {number}, `{step.name}`, replaces {_listed(replaced)} of the input"


def _listed(columns: Sequence[str]) -> str:
    names = ", ".join(f"`{name}`" for name in columns)
    return f"the column {names}" if len(columns) == 1 else f"the columns {names}"


def _opaque_notes(steps: Sequence[Operator], identity: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for number, (step, found) in enumerate(zip(steps, identity, strict=True), start=1):
        if "opaque" in found:
            example = f"step({step.name}, version=1)" if isinstance(step, Function) else "@operator(..., version=1)"
            yield (
                f"step {number}, `{step.name}`, is redone in every run: it uses {', '.join(found['opaque'])}, "
                f"which cannot be compared between runs; to reuse its work, set a version by hand: {example}"
            )


def check_packages(step: Operator) -> None:
    """Raise if an optional package that workers will import for a step is not installed. Nothing is imported."""
    needed = {module: extra for part in step.parts() for module, extra in part.packages().items()}
    missing = [module for module in needed if not is_installed(module)]
    if missing:
        listed = " and ".join(f"`{module}`" for module in missing)
        noun, verb = ("package", "is") if len(missing) == 1 else ("packages", "are")
        extras = ",".join(dict.fromkeys(needed[module] for module in missing))
        raise MissingExtra(
            f"it needs the {noun} {listed}, which {verb} not installed", hint=f"pip install 'tamis[{extras}]'"
        )


def check_resources(step: Operator) -> None:
    """Raise if a step needs more cores than this machine has. The budget checks memory and GPUs."""
    if step.resources.cpus > usable_cpus():
        raise ParameterError(f"it needs {step.resources.cpus:g} cores, and there are {usable_cpus()}")


def _cut(
    shape: Shape, base: Stage, partitions: int, known: Mapping[int, Mapping[str, Any]], *, scores: bool
) -> list[Stage]:
    """The operators divided into stages that end at each Gather. `base` has what all stages share."""
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
        untouched = index == 0 and not operators and not isinstance(end, Reorder)
        decisive = [known[id(op)] for op in operators if op.decides]
        fingerprint = digest([fingerprint, decisive, known[id(end)] if end else None])
        stages.append(
            replace(
                base,
                index=index,
                name=_stage_name(source, operators, end),
                source=source,
                operators=tuple(operators),
                end=end,
                fingerprint=fingerprint,
                exchange=base.exchange.sub(f"stage-{index}"),
                fates_of=fates_of,
                fates=base.exchange.sub(f"stage-{index - 1}") if fates_of is not None else None,
                reads_again=index > 0 and source is shape.source,
                spills_rows=cut is not None and not untouched,
                # Rows that a stage reads from disk have no input file whose identity could key their scores.
                scores=_measuring(shape.source, operators, known) if scores and index == 0 else None,
            )
        )
        if cut is None:
            return stages
        assert isinstance(end, Gather)
        fates_of = None if isinstance(end, Reorder) else end
        rest = rest[cut + 1 :]
        if isinstance(end, Reorder) or not untouched:
            source = _handed_on(end, stages[-1].exchange, partitions, shape.source)


def _stage_name(source: Source, operators: Sequence[Operator], end: Operator | None) -> str:
    return " > ".join(step.name for step in (source, *operators, *([end] if end is not None else [])))


def _handed_on(gather: Gather, exchange: Exchange, partitions: int, source: Source) -> Source:
    """The rows that a stage with this end wrote to its exchange, as the source of the next stage."""
    if isinstance(gather, Reorder):
        return ReorderedRows(
            exchange=exchange, manifest=exchange.sub(RESOLVE), partitions=partitions, access=source.access
        )
    return SpilledRows(exchange=exchange, access=source.access)


def _group(stage: Stage, heavy_bytes: int | None) -> Group:
    """A stage, cut where operators need other resources than their neighbours."""
    runs = resource_runs(stage.operators, heavy_bytes, stage.end) if heavy_bytes is not None else []
    if len(runs) < 2:
        return Group(stage, (stage,))
    stages: list[Stage] = []
    before: tuple[Operator, ...] = ()
    measured = measured_operators(stage.operators) if stage.scores is not None else 0
    for number, run in enumerate(runs):
        last = number == len(runs) - 1
        source = stage.source if not number else PacketRows(access=stage.source.access)
        end = stage.end if last else None
        stages.append(
            replace(
                stage,
                name=_stage_name(source, run, end),
                source=source,
                operators=run,
                end=end,
                columns=stage.columns if not number else None,
                fates_of=stage.fates_of if not number else None,
                reads_again=stage.reads_again and not number,
                spills_rows=stage.spills_rows and last,
                keep_lines=stage.keep_lines and not number,
                scores=stage.scores if len(before) < measured else None,
                measures_on=len(before) + len(run) < measured,
                pool=number,
                before=before,
                hands_on=not last,
            )
        )
        before = (*before, *run)
    return Group(stage, tuple(stages))


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
    if all(isinstance(stage.end, (Reorder, Sink)) for stage in stages):
        return "rows are stored on disk in sorted runs, and read in ranges of keys that fit a worker"
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
