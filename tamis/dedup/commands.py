"""`tamis dedup exact IN OUT`, `tamis dedup fuzzy IN OUT`, `tamis dedup explain OUT ID`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, cast

import typer

from tamis.errors import Interrupted, ParameterError
from tamis.executors.forkserver import launched

if TYPE_CHECKING:
    from tamis.workflows import ExactDeduplicationWorkflow, FuzzyDeduplicationWorkflow

app: typer.Typer = typer.Typer(
    name="dedup",
    help="Remove duplicates, exact or nearly so, and say why each row went.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

# After `app`: the main command imports it, and this module may be imported first.
from tamis.cli import (  # noqa: E402
    INTERRUPTED,
    JsonOption,
    MaxFailedOption,
    MemoryOption,
    StrictOption,
    WorkersOption,
    choose_max_failed,
    explains_errors,
    print_json,
    print_result,
    print_status,
)


class Keep(StrEnum):
    first = "first"
    longest = "longest"
    newest = "newest"
    best = "best"
    none = "none"


class Unit(StrEnum):
    document = "document"
    paragraph = "paragraph"
    line = "line"


class Unicode(StrEnum):
    nfc = "NFC"
    nfkc = "NFKC"


class Settings(StrEnum):
    fineweb = "fineweb"
    dolma3 = "dolma3"
    nemo = "nemo"


class Verify(StrEnum):
    jaccard = "jaccard"
    signature = "signature"
    none = "none"


class Format(StrEnum):
    jsonl = "jsonl"
    parquet = "parquet"
    csv = "csv"
    arrow = "arrow"


Input: TypeAlias = Annotated[str, typer.Argument(metavar="IN", help="A file, a folder or a pattern.")]
Output: TypeAlias = Annotated[str, typer.Argument(metavar="OUT", help="The output folder.")]
ColumnOption: TypeAlias = Annotated[str, typer.Option("--column", help="The column to compare.")]
KeepOption: TypeAlias = Annotated[Keep, typer.Option("--keep", help="Which of the copies stays.")]
ByOption: TypeAlias = Annotated[str | None, typer.Option("--by", help="The column that says newest or best.")]
PreferOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--prefer", help="Sources to keep from, best first: parts of paths, or values; may be repeated."),
]
PreferColumnOption: TypeAlias = Annotated[
    str | None, typer.Option("--prefer-column", help="The column whose values --prefer lists.")
]
AcrossOption: TypeAlias = Annotated[
    bool, typer.Option("--across-sources", help="Drop only what a better source of --prefer has.")
]
AgainstOption: TypeAlias = Annotated[
    str | None, typer.Option("--against", metavar="INDEX", help="Also drop what this index has seen.")
]
UpdateOption: TypeAlias = Annotated[bool, typer.Option("--update", help="Add what is kept to the index.")]
FormatOption: TypeAlias = Annotated[
    Format | None, typer.Option("--format", help="Of the input, if its names do not tell.")
]
BlocksizeOption: TypeAlias = Annotated[str | None, typer.Option("--blocksize", help="Bytes of input per partition.")]
ExecutorOption: TypeAlias = Annotated[
    str, typer.Option("--executor", metavar="NAME", help="local, or inline to debug.")
]
FreshOption: TypeAlias = Annotated[bool, typer.Option("--fresh", help="Forget what is committed and begin again.")]
RejectsOption: TypeAlias = Annotated[bool, typer.Option("--rejects", help="Keep dropped rows with their reasons.")]
OnlyFindOption: TypeAlias = Annotated[
    bool, typer.Option("--only-find", help="Write the groups of duplicates and no rows.")
]
QuietOption: TypeAlias = Annotated[bool, typer.Option("--quiet", help="No progress, no summary.")]


@dataclass(frozen=True)
class Shared:
    """The options that every kind of deduplication has, and what is done with them."""

    keep: KeepOption = Keep.first
    by: ByOption = None
    prefer: PreferOption = None
    prefer_column: PreferColumnOption = None
    across_sources: AcrossOption = False
    against: AgainstOption = None
    update: UpdateOption = False
    filetype: FormatOption = None
    blocksize: BlocksizeOption = None
    memory: MemoryOption = None
    workers: WorkersOption = None
    executor: ExecutorOption = "local"
    max_failed: MaxFailedOption = None
    strict: StrictOption = False
    rejects: RejectsOption = False
    fresh: FreshOption = False
    only_find: OnlyFindOption = False
    as_json: JsonOption = False
    quiet: QuietOption = False

    def run(self, workflow: ExactDeduplicationWorkflow | FuzzyDeduplicationWorkflow) -> None:
        """Run a workflow to which all else was given."""
        from tamis.console import failures_text, summary_text
        from tamis.progress import Progress

        workers = self.workers
        if workers is not None and workers != "auto" and (not workers.isdecimal() or int(workers) < 1):
            raise ParameterError(f"--workers must be a positive number or auto, got {workers!r}")
        count: Any = int(workers) if workers is not None and workers != "auto" else "auto"
        workflow = replace(
            workflow,
            input_filetype=self.filetype.value if self.filetype else None,
            input_blocksize=self.blocksize,
            perform_removal=not self.only_find,
            keep=self.keep.value,
            by=self.by,
            prefer=self.prefer or None,
            prefer_column=self.prefer_column,
            across_sources=self.across_sources,
            against=self.against,
            update=self.update,
        )
        shows: Any = "nothing" if self.quiet else "lines" if self.executor == "inline" else "auto"
        with Progress(shows=shows) as progress:
            try:
                report = workflow.run(
                    memory=self.memory,
                    workers=count,
                    executor=cast("Any", self.executor),
                    max_failed=choose_max_failed(self.max_failed, self.strict),
                    rejects=self.rejects,
                    fresh=self.fresh,
                    on_event=progress,
                    progress=False,
                )
            except Interrupted as error:
                progress.stop()
                print_status(str(error))
                raise typer.Exit(INTERRUPTED) from None
        if self.as_json:
            print_json(report.as_dict())
        if not self.quiet and not self.as_json:
            print_status(summary_text(report))
        elif text := failures_text(report):
            print_status(text)


def with_shared(command: Callable[..., None]) -> Callable[..., None]:
    """A command that has the options of `Shared` behind its own, and is handed them as `shared`."""
    own = [each for name, each in inspect.signature(command, eval_str=True).parameters.items() if name != "shared"]
    more = inspect.signature(Shared, eval_str=True).parameters

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        shared = Shared(**{name: given.pop(name) for name in more})
        command(**given, shared=shared)

    parameters = [*own, *more.values()]
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {each.name: each.annotation for each in parameters}
    return wrapped


@app.command()
@explains_errors
@with_shared
def exact(
    input_path: Input,
    output_path: Output,
    column: ColumnOption = "text",
    unit: Annotated[Unit, typer.Option(help="Compare documents, or cut repeated paragraphs or lines.")] = Unit.document,
    ignore_case: Annotated[bool, typer.Option("--ignore-case", help="A and a are the same.")] = False,
    ignore_whitespace: Annotated[bool, typer.Option("--ignore-whitespace", help="So are one space and two.")] = False,
    unicode: Annotated[Unicode | None, typer.Option(help="Compare in this Unicode normal form.")] = None,
    max_removed: Annotated[float, typer.Option(help="Drop documents that would lose more than this share.")] = 0.5,
    *,
    shared: Shared,
) -> None:
    """Remove rows whose text, or other column, is the same."""
    with launched(shared.executor == "local"):
        from tamis.workflows import ExactDeduplicationWorkflow

        workflow = ExactDeduplicationWorkflow(
            input_path,
            output_path,
            text_field=column,
            ignore_case=ignore_case,
            ignore_whitespace=ignore_whitespace,
            unicode=unicode.value if unicode else None,
            unit=unit.value,
            max_removed=max_removed,
        )
        shared.run(workflow)


@app.command()
@explains_errors
@with_shared
def fuzzy(
    input_path: Input,
    output_path: Output,
    column: ColumnOption = "text",
    settings: Annotated[Settings, typer.Option(help="n-grams, bands and hashes by name.")] = Settings.fineweb,
    threshold: Annotated[float, typer.Option(help="Similarity that a document must reach to go.")] = 0.8,
    verify: Annotated[Verify, typer.Option(help="How that is verified.")] = Verify.jaccard,
    num_bands: Annotated[int | None, typer.Option(help="Bands, other than in the settings.")] = None,
    num_rows: Annotated[int | None, typer.Option(help="Hashes per band, other than in the settings.")] = None,
    num_hashes: Annotated[int | None, typer.Option(help="Hashes in all, divided as suits the threshold best.")] = None,
    word_ngrams: Annotated[int | None, typer.Option(help="Words per n-gram.")] = None,
    char_ngrams: Annotated[int | None, typer.Option(help="Characters per n-gram, instead of words.")] = None,
    reuse: Annotated[
        str | None, typer.Option(metavar="OUT", help="Use the hashes of this earlier output of the same input.")
    ] = None,
    *,
    shared: Shared,
) -> None:
    """Remove documents that are nearly the same as one that stays."""
    with launched(shared.executor == "local"):
        from tamis.workflows import FuzzyDeduplicationWorkflow

        workflow = FuzzyDeduplicationWorkflow(
            input_path,
            output_path,
            text_field=column,
            settings=settings.value,
            threshold=threshold,
            verify=verify.value,
            char_ngrams=char_ngrams,
            word_ngrams=word_ngrams,
            num_bands=num_bands,
            minhashes_per_band=num_rows,
            num_hashes=num_hashes,
            reuse=reuse,
        )
        shared.run(workflow)


@app.command()
@explains_errors
def explain(
    output_path: Output,
    name: Annotated[str | None, typer.Argument(metavar="ID", help="An id, or an address as in a report.")] = None,
    closest: Annotated[int, typer.Option(min=0, help="Show so many of the closest calls.")] = 5,
    largest: Annotated[int, typer.Option(min=0, help="Show so many of the largest groups.")] = 5,
    as_json: JsonOption = False,
) -> None:
    """Say what became of a row and why; without ID, what was found in all."""
    from tamis.dedup.groups import Groups

    groups = Groups.load(output_path)
    if name is not None:
        found = groups.explain(name)
        if as_json:
            print_json(found)
        else:
            unknown = f"{name} is not among the duplicates: it stayed, or there is no such row"
            print_result("\n".join(map(_sentence, found)) or unknown)
        return
    overview = {
        "summary": {key: value for key, value in groups.summary.items() if key != "group_sizes"},
        "group_sizes": groups.histogram(),
        "largest": groups.largest(largest),
        "closest": groups.closest(closest),
    }
    if as_json:
        print_json(overview)
    else:
        print_result(_overview(overview))


# ------------------------------------------------------------------------------------------------------------ in sentences


def _named(entry: Mapping[str, Any], prefix: str = "") -> str:
    name, address = entry.get(f"{prefix}id"), entry[f"{prefix}address"]
    return f"{name} ({address})" if name is not None else str(address)


def _sentence(entry: Mapping[str, Any]) -> str:
    """One entry of `Groups.explain` in words."""
    row, kept = _named(entry), _named(entry, "kept_")
    if entry.get("unit") is not None:
        return f"{row}: unit {entry['unit']} repeats unit {entry['kept_unit']} of {kept}, and was cut"
    alike = f"similarity {entry['similarity']:.3f}" + (
        f", {entry['bands']} bands met" if entry["bands"] is not None else ""
    )
    where = f" of the index {entry['index']}" if entry.get("index") else ""
    if entry["fate"] == "dropped":
        return f"{row} was dropped: {alike}, kept in its place: {kept}{where}"
    if entry["fate"] == "kept":
        return f"{kept} was kept in place of {row}: {alike}"
    return f"{row} was kept: the nearest it was compared with is {kept}{where}, {alike}"


def _overview(overview: Mapping[str, Any]) -> str:
    lines = [
        f"{name:<20} {value}" for name, value in overview["summary"].items() if isinstance(value, (int, float, str))
    ]
    lines.append("\ngroups by size")
    lines += [f"{size:>10,} rows  {count:>12,}" for size, count in list(overview["group_sizes"].items())[:20]]
    if overview["largest"]:
        lines.append("\nlargest groups")
        lines += [f"{group['size']:>10,} rows  {_named(group, 'kept_')}" for group in overview["largest"]]
    for side, title in (("above", "closest calls: dropped"), ("below", "closest calls: kept")):
        pairs: Sequence[Mapping[str, Any]] = overview["closest"][side]
        if pairs:
            lines.append(f"\n{title}")
            lines += [f"{pair['similarity']:>10.3f}  {_named(pair)}  like  {_named(pair, 'kept_')}" for pair in pairs]
    return "\n".join(lines)
