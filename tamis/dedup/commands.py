"""`tamis dedup exact IN OUT`, the same for `fuzzy`, `substrings`, `sentences`, `paragraphs`, `semantic`, `images`, `audio` and
`video`, and `tamis dedup explain OUT ID`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal, TypeAlias

import typer

from tamis.commands.options import JsonOption
from tamis.commands.printing import NO_MATCH, explains_errors, print_json, print_result
from tamis.dedup.options import POLICY, Input, Output, with_shared

app: typer.Typer = typer.Typer(
    name="dedup",
    help="Remove exact, near or semantic duplicates, text that documents repeat, images that look alike, or sounds and videos "
    "that repeat others, and explain why each row was dropped.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

ColumnOption: TypeAlias = Annotated[str, typer.Option("--column", help="The column to compare.")]


@app.command()
@with_shared()
def exact(
    input_path: Input,
    output_path: Output,
    column: ColumnOption = "text",
    unit: Annotated[
        Literal["document", "paragraph", "line"],
        typer.Option(help="Drop documents, or cut repeated paragraphs or lines."),
    ] = "document",
    ignore_case: Annotated[bool, typer.Option("--ignore-case", help="Ignore letter case.")] = False,
    ignore_whitespace: Annotated[
        bool, typer.Option("--ignore-whitespace", help="Ignore the amount of white space.")
    ] = False,
    unicode: Annotated[Literal["NFC", "NFKC"] | None, typer.Option(help="Compare in this Unicode normal form.")] = None,
    max_removed: Annotated[
        float, typer.Option(help="With --unit: drop documents that would lose more than this share of their text.")
    ] = 0.5,
) -> Any:
    """Remove rows with the same text, or the same value in another column."""
    from tamis.workflows import ExactDeduplicationWorkflow

    return ExactDeduplicationWorkflow(
        input_path,
        output_path,
        text_field=column,
        ignore_case=ignore_case,
        ignore_whitespace=ignore_whitespace,
        unicode=unicode,
        unit=unit,
        max_removed=max_removed,
    )


@app.command()
@with_shared()
def fuzzy(
    input_path: Input,
    output_path: Output,
    column: ColumnOption = "text",
    settings: Annotated[
        Literal["fineweb", "dolma3", "nemo"], typer.Option(help="A preset of n-grams, bands and hashes.")
    ] = "fineweb",
    threshold: Annotated[float, typer.Option(help="Drop documents of at least this similarity to one kept.")] = 0.8,
    verify: Annotated[
        Literal["jaccard", "signature", "none"],
        typer.Option(help="Compare the full n-gram sets, packed ones, or not at all."),
    ] = "jaccard",
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
) -> Any:
    """Remove documents that are similar to one already kept."""
    from tamis.workflows import FuzzyDeduplicationWorkflow

    return FuzzyDeduplicationWorkflow(
        input_path,
        output_path,
        text_field=column,
        settings=settings,
        threshold=threshold,
        verify=verify,
        char_ngrams=char_ngrams,
        word_ngrams=word_ngrams,
        num_bands=num_bands,
        minhashes_per_band=hashes_per_band,
        num_hashes=num_hashes,
        reuse=reuse,
    )


@app.command()
@with_shared(without=POLICY)
def substrings(
    input_path: Input,
    output_path: Output,
    column: ColumnOption = "text",
    min_bytes: Annotated[int, typer.Option(help="The shortest span to cut, in bytes; 200 are about 50 tokens.")] = 200,
    keep: Annotated[
        Literal["first", "none"], typer.Option("--keep", help="Keep the first occurrence, or none.")
    ] = "first",
    cut: Annotated[
        Literal["character", "word"], typer.Option(help="Cut between characters, or only next to white space.")
    ] = "character",
    max_removed: Annotated[
        float, typer.Option(help="Drop documents that would lose more than this share of their text.")
    ] = 1.0,
) -> Any:
    """Cut text that occurs before, in the same document or another one."""
    from tamis.workflows import SubstringDeduplicationWorkflow

    return SubstringDeduplicationWorkflow(
        input_path,
        output_path,
        text_field=column,
        min_bytes=min_bytes,
        which_to_keep=keep,
        cut=cut,
        max_removed=max_removed,
    )


@app.command()
@with_shared(without=POLICY)
def sentences(
    input_path: Input,
    output_path: Output,
    column: ColumnOption = "text",
    num_sentences: Annotated[int, typer.Option(help="Sentences per span.")] = 3,
    unit: Annotated[Literal["sentence", "line"], typer.Option(help="Compare sentences, or lines.")] = "sentence",
    simplify: Annotated[bool, typer.Option(help="Ignore case, punctuation, accents and numbers.")] = True,
    min_words: Annotated[int, typer.Option(help="Drop changed documents with fewer words left.")] = 50,
    min_sentences: Annotated[int, typer.Option(help="Drop changed documents with fewer sentences left.")] = 3,
) -> Any:
    """Cut spans of three consecutive sentences that occur before."""
    from tamis.workflows import SentenceDeduplicationWorkflow

    return SentenceDeduplicationWorkflow(
        input_path,
        output_path,
        text_field=column,
        num_sentences=num_sentences,
        unit=unit,
        simplify=simplify,
        min_words=min_words,
        min_sentences=min_sentences,
    )


@app.command()
@with_shared(without=POLICY)
def paragraphs(
    input_path: Input,
    output_path: Output,
    column: ColumnOption = "text",
    ngram: Annotated[int, typer.Option(help="Words per n-gram.")] = 13,
    threshold: Annotated[
        float, typer.Option(help="Cut paragraphs if this share of their n-grams occurs before.")
    ] = 0.8,
    stride: Annotated[int, typer.Option(help="Compare every n-th n-gram.")] = 1,
    unit: Annotated[
        Literal["line", "paragraph"], typer.Option(help="Lines, or runs of lines that are not blank.")
    ] = "line",
    min_words: Annotated[int, typer.Option(help="Keep paragraphs with fewer words.")] = 5,
    max_removed: Annotated[
        float, typer.Option(help="Drop documents that would lose more than this share of their text.")
    ] = 1.0,
) -> Any:
    """Cut paragraphs most of whose n-grams of words occur before."""
    from tamis.workflows import ParagraphDeduplicationWorkflow

    return ParagraphDeduplicationWorkflow(
        input_path,
        output_path,
        text_field=column,
        ngram=ngram,
        threshold=threshold,
        stride=stride,
        unit=unit,
        min_words=min_words,
        max_removed=max_removed,
    )


@app.command()
@with_shared()
def semantic(
    input_path: Input,
    output_path: Output,
    column: Annotated[str, typer.Option("--column", help="The column with the embeddings.")] = "embedding",
    threshold: Annotated[
        float | None, typer.Option(help="Drop rows of at least this cosine similarity to one kept. [default: 0.9]")
    ] = None,
    eps: Annotated[float | None, typer.Option(help="1 - threshold.")] = None,
    keep: Annotated[
        Literal["hard", "easy", "random", "first", "newest", "best"],
        typer.Option(
            "--keep", help="Which row to keep: far from the centre of its cluster (hard), near to it (easy), ..."
        ),
    ] = "hard",
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
    device: Annotated[Literal["auto", "cpu", "gpu"], typer.Option(help="Where to compare embeddings.")] = "auto",
) -> Any:
    """Remove rows whose embedding is similar to that of one already kept."""
    from tamis.workflows import SemanticDeduplicationWorkflow, TextSemanticDeduplicationWorkflow

    options: dict[str, Any] = {
        "embedding_field": column,
        "threshold": threshold,
        "eps": eps,
        "which_to_keep": keep,
        "n_clusters": clusters if clusters is not None else "auto",
        "neighbours": neighbours if neighbours >= 0 else None,
        "random_state": seed,
        "device": device,
    }
    if model is None:
        return SemanticDeduplicationWorkflow(input_path, output_path, **options)
    options |= {"model_identifier": model, "text_field": text_column}
    return TextSemanticDeduplicationWorkflow(input_path, output_path, **options)


@app.command()
@with_shared()
def images(
    input_path: Input,
    output_path: Output,
    column: Annotated[str, typer.Option("--column", help="The column with the images.")] = "image",
    hash_name: Annotated[
        Literal["phash", "dhash", "ahash", "whash", "pdq"],
        typer.Option("--hash", help="The perceptual hash to compare."),
    ] = "phash",
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
    keep: Annotated[
        Literal["largest", "first", "newest", "best"], typer.Option("--keep", help="Which image to keep.")
    ] = "largest",
) -> Any:
    """Remove images that look like one already kept."""
    from tamis.workflows import ImageDeduplicationWorkflow

    return ImageDeduplicationWorkflow(
        input_path,
        output_path,
        image_field=column,
        hash=hash_name,
        radius=radius,
        exact=exact_pixels,
        min_quality=min_quality,
        which_to_keep=keep,
    )


ShareOption: TypeAlias = Annotated[
    float, typer.Option("--threshold", help="Drop rows if at least this share of the shorter one agrees with one kept.")
]
SecondsOption: TypeAlias = Annotated[
    float, typer.Option(min=0, help="Compare only rows with this many seconds that are not silent or blank.")
]
SequenceKeepOption: TypeAlias = Annotated[
    Literal["longest", "first", "newest", "best"], typer.Option("--keep", help="Which one to keep.")
]
ErrorOption: TypeAlias = Annotated[
    float | None,
    typer.Option(
        help="Share of the bits of hashes that may differ where two rows agree. [default: audio 0.3, video 0.2]"
    ),
]


@app.command()
@with_shared()
def audio(
    input_path: Input,
    output_path: Output,
    column: Annotated[str, typer.Option("--column", help="The column with the sounds.")] = "audio",
    threshold: ShareOption = 0.8,
    max_error: ErrorOption = None,
    min_seconds: SecondsOption = 1.5,
    keep: SequenceKeepOption = "longest",
) -> Any:
    """Remove sounds that repeat one already kept, also excerpts, in other formats or at another loudness."""
    from tamis.workflows import AudioDeduplicationWorkflow

    return AudioDeduplicationWorkflow(
        input_path,
        output_path,
        audio_field=column,
        threshold=threshold,
        max_error=max_error,
        min_seconds=min_seconds,
        which_to_keep=keep,
    )


@app.command()
@with_shared()
def video(
    input_path: Input,
    output_path: Output,
    column: Annotated[str, typer.Option("--column", help="The column with the videos.")] = "video",
    threshold: ShareOption = 0.8,
    max_error: ErrorOption = None,
    min_seconds: SecondsOption = 1.0,
    keep: SequenceKeepOption = "longest",
) -> Any:
    """Remove videos that repeat one already kept, also parts of it, in other formats or sizes."""
    from tamis.workflows import VideoDeduplicationWorkflow

    return VideoDeduplicationWorkflow(
        input_path,
        output_path,
        video_field=column,
        threshold=threshold,
        max_error=max_error,
        min_seconds=min_seconds,
        which_to_keep=keep,
    )


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
    """Explain what happened to a row; without ID, summarise the duplicates found.

    Exits with 1 if nothing is known about the row.
    """
    from tamis.dedup.explain import explain_row, explanation_text
    from tamis.dedup.groups import Groups
    from tamis.dedup.overview import overview, overview_text
    from tamis.looking.life import explaining_damage

    groups = Groups.load(output_path)
    if name is not None:
        with explaining_damage(output_path):
            rows = explain_row(groups, name)
        if as_json:
            print_json([asdict(row) for row in rows])
        else:
            print_result("\n\n".join(map(explanation_text, rows)))
        if all(row.outcome == "unknown" and not row.findings for row in rows):
            raise typer.Exit(NO_MATCH)
        return
    with explaining_damage(output_path):
        steps = overview(groups, closest, largest)
    if as_json:
        print_json(steps)
    else:
        print_result("\n\n".join(map(overview_text, steps)))
