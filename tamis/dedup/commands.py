"""`tamis dedup exact IN OUT`, `fuzzy`, `semantic`, `images`, `audio` and `video` alike, and `tamis dedup explain OUT ID`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, cast

import typer

from tamis.errors import Interrupted, ParameterError
from tamis.executors.forkserver import launched

if TYPE_CHECKING:
    from tamis.workflows import (
        AudioDeduplicationWorkflow,
        ExactDeduplicationWorkflow,
        FuzzyDeduplicationWorkflow,
        ImageDeduplicationWorkflow,
        SemanticDeduplicationWorkflow,
        VideoDeduplicationWorkflow,
    )

app: typer.Typer = typer.Typer(
    name="dedup",
    help="Remove exact, near or semantic duplicates, images that look alike, or sounds and videos that repeat others, and "
    "explain why each row was dropped.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

# After `app`: the main command imports it, and this module may be imported first.
from tamis.cli import (  # noqa: E402
    INTERRUPTED,
    ExchangeOption,
    JsonOption,
    KeepWorkOption,
    MaxFailedOption,
    MemoryOption,
    ScratchOption,
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


class SemanticKeep(StrEnum):
    hard = "hard"
    easy = "easy"
    random = "random"
    first = "first"
    newest = "newest"
    best = "best"


class ImageKeep(StrEnum):
    largest = "largest"
    first = "first"
    newest = "newest"
    best = "best"


class SequenceKeep(StrEnum):
    longest = "longest"
    first = "first"
    newest = "newest"
    best = "best"


class ImageHash(StrEnum):
    phash = "phash"
    dhash = "dhash"
    ahash = "ahash"
    whash = "whash"
    pdq = "pdq"


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    gpu = "gpu"


class Format(StrEnum):
    jsonl = "jsonl"
    parquet = "parquet"
    csv = "csv"
    arrow = "arrow"
    tar = "tar"
    image = "image"
    audio = "audio"
    video = "video"


Input: TypeAlias = Annotated[str, typer.Argument(metavar="IN", help="A file, a folder or a pattern.")]
Output: TypeAlias = Annotated[str, typer.Argument(metavar="OUT", help="The output folder.")]
ColumnOption: TypeAlias = Annotated[str, typer.Option("--column", help="The column to compare.")]
KeepOption: TypeAlias = Annotated[Keep, typer.Option("--keep", help="Which row of each group of duplicates to keep.")]
ByOption: TypeAlias = Annotated[str | None, typer.Option("--by", help="The column to rank by, for newest and best.")]
PreferOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--prefer", help="A source to keep rows from: part of a path, or a value. Repeat the option, best source first."
    ),
]
PreferColumnOption: TypeAlias = Annotated[
    str | None, typer.Option("--prefer-column", help="The column whose values --prefer lists.")
]
AcrossOption: TypeAlias = Annotated[
    bool, typer.Option("--across-sources", help="Drop a row only if a better source of --prefer has it too.")
]
AgainstOption: TypeAlias = Annotated[
    str | None, typer.Option("--against", metavar="INDEX", help="Also drop rows that this index contains.")
]
UpdateOption: TypeAlias = Annotated[bool, typer.Option("--update", help="Add the kept rows to the index.")]
FormatOption: TypeAlias = Annotated[
    Format | None, typer.Option("--format", help="Input format, if it cannot be inferred from file names.")
]
BlocksizeOption: TypeAlias = Annotated[str | None, typer.Option("--blocksize", help="Bytes of input per partition.")]
ExecutorOption: TypeAlias = Annotated[
    str, typer.Option("--executor", metavar="NAME", help="local, or inline for debugging.")
]
FreshOption: TypeAlias = Annotated[bool, typer.Option("--fresh", help="Discard earlier results and start over.")]
RejectsOption: TypeAlias = Annotated[bool, typer.Option("--rejects", help="Keep dropped rows with their reasons.")]
OnlyFindOption: TypeAlias = Annotated[
    bool, typer.Option("--only-find", help="Write the groups of duplicates, but no rows.")
]
QuietOption: TypeAlias = Annotated[bool, typer.Option("--quiet", help="Print neither progress nor summary.")]


@dataclass(frozen=True)
class Shared:
    """The options that all kinds of deduplication share."""

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
    keep_work: KeepWorkOption = False
    scratch: ScratchOption = None
    exchange: ExchangeOption = None
    only_find: OnlyFindOption = False
    as_json: JsonOption = False
    quiet: QuietOption = False

    def run(
        self,
        workflow: AudioDeduplicationWorkflow
        | ExactDeduplicationWorkflow
        | FuzzyDeduplicationWorkflow
        | ImageDeduplicationWorkflow
        | SemanticDeduplicationWorkflow
        | VideoDeduplicationWorkflow,
    ) -> None:
        """Run a workflow with these options."""
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
                    keep_work=self.keep_work,
                    scratch=self.scratch,
                    exchange=self.exchange,
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
    """Add the options of `Shared` to a command, which receives them as `shared`; the command may have its own instead."""
    own = [each for name, each in inspect.signature(command, eval_str=True).parameters.items() if name != "shared"]
    names = {each.name for each in own}
    found = inspect.signature(Shared, eval_str=True).parameters
    more = {name: each for name, each in found.items() if name not in names}

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
    unit: Annotated[Unit, typer.Option(help="Drop documents, or cut repeated paragraphs or lines.")] = Unit.document,
    ignore_case: Annotated[bool, typer.Option("--ignore-case", help="Ignore letter case.")] = False,
    ignore_whitespace: Annotated[
        bool, typer.Option("--ignore-whitespace", help="Ignore the amount of white space.")
    ] = False,
    unicode: Annotated[Unicode | None, typer.Option(help="Compare in this Unicode normal form.")] = None,
    max_removed: Annotated[
        float, typer.Option(help="With --unit: drop documents that would lose more than this share of their text.")
    ] = 0.5,
    *,
    shared: Shared,
) -> None:
    """Remove rows with the same text, or the same value in another column."""
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
    settings: Annotated[Settings, typer.Option(help="A preset of n-grams, bands and hashes.")] = Settings.fineweb,
    threshold: Annotated[float, typer.Option(help="Drop documents of at least this similarity to one kept.")] = 0.8,
    verify: Annotated[
        Verify, typer.Option(help="Compare the full n-gram sets, packed ones, or not at all.")
    ] = Verify.jaccard,
    num_bands: Annotated[int | None, typer.Option(help="Number of bands, instead of the preset's.")] = None,
    hashes_per_band: Annotated[int | None, typer.Option(help="Hashes per band, instead of the preset's.")] = None,
    num_hashes: Annotated[
        int | None, typer.Option(help="Total number of hashes, split into the bands that suit the threshold best.")
    ] = None,
    word_ngrams: Annotated[int | None, typer.Option(help="Words per n-gram, instead of the preset's.")] = None,
    char_ngrams: Annotated[int | None, typer.Option(help="Characters per n-gram, instead of words.")] = None,
    reuse: Annotated[
        str | None, typer.Option(metavar="OUT", help="Reuse the hashes of an earlier output for the same input.")
    ] = None,
    *,
    shared: Shared,
) -> None:
    """Remove documents that are similar to one already kept."""
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
            minhashes_per_band=hashes_per_band,
            num_hashes=num_hashes,
            reuse=reuse,
        )
        shared.run(workflow)


@app.command()
@explains_errors
@with_shared
def semantic(
    input_path: Input,
    output_path: Output,
    column: Annotated[str, typer.Option("--column", help="The column with the embeddings.")] = "embedding",
    threshold: Annotated[
        float | None, typer.Option(help="Drop rows of at least this cosine similarity to one kept. [default: 0.9]")
    ] = None,
    eps: Annotated[float | None, typer.Option(help="1 - threshold.")] = None,
    keep: Annotated[
        SemanticKeep,
        typer.Option(
            "--keep", help="Which row to keep: far from the centre of its cluster (hard), near to it (easy), ..."
        ),
    ] = SemanticKeep.hard,
    clusters: Annotated[
        int | None, typer.Option(help="Number of clusters. [default: the square root of the number of rows]")
    ] = None,
    neighbours: Annotated[
        int, typer.Option(min=-1, help="Neighbouring clusters that a row is compared with; -1 for all within reach.")
    ] = 16,
    model: Annotated[
        str | None, typer.Option(help="Embed the text first, with this model: minilm, wordllama, a folder, ...")
    ] = None,
    text_column: Annotated[str, typer.Option(help="With --model: the column to embed.")] = "text",
    seed: Annotated[int, typer.Option(help="Seed of clusters and of --keep random.")] = 42,
    device: Annotated[Device, typer.Option(help="Where to compare embeddings.")] = Device.auto,
    *,
    shared: Shared,
) -> None:
    """Remove rows whose embedding is similar to that of one already kept."""
    with launched(shared.executor == "local"):
        from tamis.workflows import SemanticDeduplicationWorkflow, TextSemanticDeduplicationWorkflow

        options: dict[str, Any] = {
            "embedding_field": column,
            "threshold": threshold,
            "eps": eps,
            "which_to_keep": keep.value,
            "n_clusters": clusters if clusters is not None else "auto",
            "neighbours": neighbours if neighbours >= 0 else None,
            "random_state": seed,
            "device": device.value,
        }
        if model is None:
            shared.run(SemanticDeduplicationWorkflow(input_path, output_path, **options))
        else:
            options |= {"model_identifier": model, "text_field": text_column}
            shared.run(TextSemanticDeduplicationWorkflow(input_path, output_path, **options))


@app.command()
@explains_errors
@with_shared
def images(
    input_path: Input,
    output_path: Output,
    column: Annotated[str, typer.Option("--column", help="The column with the images.")] = "image",
    hash_name: Annotated[ImageHash, typer.Option("--hash", help="The perceptual hash to compare.")] = ImageHash.phash,
    radius: Annotated[
        int | None,
        typer.Option(help="Bits in which the hashes of duplicates differ at most. [default: by hash, phash 8]"),
    ] = None,
    exact_pixels: Annotated[
        bool, typer.Option("--exact", help="Hash all pixels instead of pictures of reduced size.")
    ] = False,
    min_quality: Annotated[
        int, typer.Option(min=0, max=100, help="Compare only pictures with at least this much detail.")
    ] = 10,
    keep: Annotated[ImageKeep, typer.Option("--keep", help="Which image to keep.")] = ImageKeep.largest,
    *,
    shared: Shared,
) -> None:
    """Remove images that look like one already kept."""
    with launched(shared.executor == "local"):
        from tamis.workflows import ImageDeduplicationWorkflow

        workflow = ImageDeduplicationWorkflow(
            input_path,
            output_path,
            image_field=column,
            hash=hash_name.value,
            radius=radius,
            exact=exact_pixels,
            min_quality=min_quality,
            which_to_keep=keep.value,
        )
        shared.run(workflow)


ShareOption: TypeAlias = Annotated[
    float, typer.Option("--threshold", help="Drop rows if at least this share of the shorter one agrees with one kept.")
]
SecondsOption: TypeAlias = Annotated[
    float, typer.Option(min=0, help="Compare only rows with this many seconds that are not silent or blank.")
]
SequenceKeepOption: TypeAlias = Annotated[SequenceKeep, typer.Option("--keep", help="Which one to keep.")]
ErrorOption: TypeAlias = Annotated[
    float | None,
    typer.Option(
        help="Share of the bits of hashes that may differ where two rows agree. [default: audio 0.3, video 0.2]"
    ),
]


@app.command()
@explains_errors
@with_shared
def audio(
    input_path: Input,
    output_path: Output,
    column: Annotated[str, typer.Option("--column", help="The column with the sounds.")] = "audio",
    threshold: ShareOption = 0.8,
    max_error: ErrorOption = None,
    min_seconds: SecondsOption = 1.0,
    keep: SequenceKeepOption = SequenceKeep.longest,
    *,
    shared: Shared,
) -> None:
    """Remove sounds that repeat one already kept, also excerpts, in other formats or at another loudness."""
    with launched(shared.executor == "local"):
        from tamis.workflows import AudioDeduplicationWorkflow

        workflow = AudioDeduplicationWorkflow(
            input_path,
            output_path,
            audio_field=column,
            threshold=threshold,
            max_error=max_error,
            min_seconds=min_seconds,
            which_to_keep=keep.value,
        )
        shared.run(workflow)


@app.command()
@explains_errors
@with_shared
def video(
    input_path: Input,
    output_path: Output,
    column: Annotated[str, typer.Option("--column", help="The column with the videos.")] = "video",
    threshold: ShareOption = 0.8,
    max_error: ErrorOption = None,
    min_seconds: SecondsOption = 1.0,
    keep: SequenceKeepOption = SequenceKeep.longest,
    *,
    shared: Shared,
) -> None:
    """Remove videos that repeat one already kept, also parts of it, in other formats or sizes."""
    with launched(shared.executor == "local"):
        from tamis.workflows import VideoDeduplicationWorkflow

        workflow = VideoDeduplicationWorkflow(
            input_path,
            output_path,
            video_field=column,
            threshold=threshold,
            max_error=max_error,
            min_seconds=min_seconds,
            which_to_keep=keep.value,
        )
        shared.run(workflow)


@app.command()
@explains_errors
def explain(
    output_path: Output,
    name: Annotated[
        str | None, typer.Argument(metavar="ID", help="A row's id, or its address (FILE:POSITION) as in reports.")
    ] = None,
    closest: Annotated[int, typer.Option(min=0, help="How many rows near the threshold to show.")] = 5,
    largest: Annotated[int, typer.Option(min=0, help="How many of the largest groups to show.")] = 5,
    as_json: JsonOption = False,
) -> None:
    """Explain what happened to a row; without ID, summarise the duplicates found."""
    from tamis.dedup.explain import explain_row, explanation_text
    from tamis.dedup.groups import Groups

    groups = Groups.load(output_path)
    if name is not None:
        rows = explain_row(groups, name)
        if as_json:
            print_json([asdict(row) for row in rows])
        else:
            print_result("\n\n".join(map(explanation_text, rows)))
        return
    steps = [
        {name: value for name, value in summary.items() if name in _SHOWN}
        | {
            "group_sizes": groups.histogram(stage),
            "largest": groups.largest(largest, stage),
            "closest": groups.closest(closest, stage),
        }
        for stage, summary in groups.summaries.items()
    ]
    if as_json:
        print_json(steps)
    else:
        print_result("\n\n".join(map(_overview, steps)))


# ------------------------------------------------------------------------------------------------------------- overview

_SHOWN = {
    "step": "",
    "threshold": "threshold",
    "rows": "rows",
    "dropped": "rows dropped",
    "groups": "groups of duplicates",
    "largest_group": "rows in the largest group",
    "units": "paragraphs or lines",
    "cut": "paragraphs or lines cut",
    "cut_bytes": "bytes cut",
    "rewritten": "rows with cuts",
    "candidates": "rows compared",
    "vectors": "rows with an embedding",
    "hashes": "images compared",
    "blank": "rows with too little content to compare",
    "sequences": "rows compared over time",
    "radius": "radius in bits",
    "other_dimensions": "rows with an embedding of another length",
    "clusters": "clusters",
    "limited": "rows with more neighbouring clusters",
    "largest_component": "rows in the largest set of linked rows",
}
"""What the overview shows of a summary, with its label."""


def _named(entry: Mapping[str, Any], prefix: str = "") -> str:
    name, address = entry.get(f"{prefix}id"), entry[f"{prefix}address"]
    return f"{name} ({address})" if name is not None else str(address)


def _overview(step: Mapping[str, Any]) -> str:
    lines = [step["step"]]
    for name, label in _SHOWN.items():
        value = step.get(name)
        if label and value is not None:
            lines.append(f"  {label:<40}{value:>12,}" if isinstance(value, int) else f"  {label:<40}{value:>12g}")
    if step["group_sizes"]:
        lines += ["", "  groups by size"]
        lines += [f"  {size:>10,} rows {count:>12,}" for size, count in list(step["group_sizes"].items())[:20]]
    if step["largest"]:
        lines += ["", "  largest groups, by the row kept"]
        lines += [f"  {group['size']:>10,} rows  {_named(group, 'kept_')}" for group in step["largest"]]
    for side, title in (
        ("above", "dropped rows closest to the threshold"),
        ("below", "kept rows closest to the threshold"),
    ):
        pairs: Sequence[Mapping[str, Any]] = step["closest"][side] if "threshold" in step else []
        if pairs:
            lines += ["", f"  {title}"]
            for pair in pairs:
                lines += [f"  {pair['similarity']:>10.3f}  {_named(pair)}", f"{'':12}  like {_named(pair, 'kept_')}"]
    return "\n".join(lines)
