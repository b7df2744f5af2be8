"""`tamis train-classifier` and `tamis train-language-model`: from files to a model, with its marks.

`train_classifier` and `train_language_model` are the commands, to be added to a typer app; `train_on_files` and
`learn_language` are the same for Python. What is heavy is imported when it is needed, so that listing the commands costs
nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import pyarrow as pa

    from tamis.models import language_model, language_training
    from tamis.models.linear import Settings, Trained


MIN_WORKING_BYTES = 16_000_000
"""What counting n-grams holds at the least."""


@dataclass(frozen=True)
class Lesson:
    """What came of training on files."""

    trained: Trained
    positive: int
    negative: int
    output: str
    skipped: int = 0
    """Texts found on both sides, which can teach nothing."""

    def __str__(self) -> str:
        marks, rows = self.trained.evaluation, self.trained.evaluation.rows
        lines = [
            f"{self.positive:,} positive and {self.negative:,} negative texts: "
            f"{self.trained.trained_rows:,} to train on, {rows:,} held out",
        ]
        if self.skipped:
            lines.append(f"{self.skipped:,} texts were in both sets and left out")
        lines += [
            f"loss      {' '.join(f'{loss:.4f}' for loss in self.trained.losses)}",
            "on the texts held out:",
            f"  accuracy  {marks.accuracy:.4f}",
            f"  precision {marks.precision:.4f}   {marks.true_positive} of {marks.true_positive + marks.false_positive}",
            f"  recall    {marks.recall:.4f}   {marks.true_positive} of {marks.true_positive + marks.false_negative}",
            f"  F1        {marks.f1:.4f}",
            f"  AUC       {marks.auc:.4f}",
            f"written to {self.output}; use it as LinearClassifier(model={self.output!r})",
        ]
        return "\n".join(lines)


def _read_texts(paths: Sequence[str], text_field: str, limit: int | None) -> pa.Array:
    """The texts of files of any format there is a reader for, nulls and empty ones left out."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from tamis.pipeline import Pipeline
    from tamis.sources.tables import reader_for

    table = Pipeline(reader_for(list(paths), fields=[text_field], limit=limit)).collect(
        executor="inline", on_error="isolate"
    )
    if text_field not in table.column_names:
        return pa.array([], pa.large_string())
    column = table.column(text_field).cast(pa.large_string()).combine_chunks()
    return column.filter(pc.fill_null(pc.greater(pc.binary_length(column), 0), False))


def train_on_files(
    positive: Sequence[str],
    negative: Sequence[str],
    output: str,
    *,
    text_field: str = "text",
    settings: Settings | None = None,
    epochs: int = 5,
    rate: float = 0.1,
    holdout: float = 0.1,
    max_rows: int | None = None,
    seed: int = 0,
    progress: Callable[[int, float], None] | None = None,
) -> Lesson:
    """Train on the texts of two sets of files (JSONL, Parquet, CSV, Arrow, text lines) and write the model to `output`.

    Texts found on both sides are left out. Holds all texts in memory; `max_rows` takes the first so many of each side.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from tamis.models.linear import train
    from tamis.text.segment import buffers

    sides = [_read_texts(negative, text_field, max_rows), _read_texts(positive, text_field, max_rows)]
    shared = pc.unique(sides[0].filter(pc.is_in(sides[0], value_set=sides[1])))
    kept = [side.filter(pc.invert(pc.is_in(side, value_set=shared))) for side in sides] if len(shared) else sides
    data, offsets = buffers(pa.concat_arrays(kept))
    targets = np.repeat(np.array([0, 1], np.uint8), [len(side) for side in kept])
    trained = train(
        data,
        offsets,
        targets,
        settings=settings,
        epochs=epochs,
        rate=rate,
        holdout=holdout,
        seed=seed,
        progress=progress,
    )
    trained.model.save(output)
    return Lesson(trained, len(kept[1]), len(kept[0]), output, sum(map(len, sides)) - sum(map(len, kept)))


def train_classifier(
    positive: Annotated[
        list[str], typer.Option("--positive", metavar="PATH", help="Texts like those to keep; may be repeated.")
    ],
    negative: Annotated[
        list[str], typer.Option("--negative", metavar="PATH", help="Texts like those to drop; may be repeated.")
    ],
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Write the model to this file.")],
    text_field: Annotated[str, typer.Option(metavar="NAME", help="The column that holds the text.")] = "text",
    epochs: Annotated[int, typer.Option(metavar="N", min=1, help="Passes over the texts.")] = 5,
    rate: Annotated[float, typer.Option(metavar="X", help="The learning rate.")] = 0.1,
    bits: Annotated[int, typer.Option(metavar="N", min=8, max=28, help="2**N weights.")] = 20,
    min_ngram: Annotated[int, typer.Option(metavar="N", min=1, help="The shortest character n-gram.")] = 3,
    max_ngram: Annotated[int, typer.Option(metavar="N", min=0, help="The longest; 0: words only.")] = 5,
    max_chars: Annotated[int, typer.Option(metavar="N", min=0, help="Characters of each text; 0: all.")] = 0,
    max_rows: Annotated[int | None, typer.Option(metavar="N", min=1, help="The first N texts of each side.")] = None,
    holdout: Annotated[float, typer.Option(metavar="X", help="Share of the texts to test on.")] = 0.1,
    seed: Annotated[int, typer.Option(metavar="N", help="For the order of the texts.")] = 0,
) -> None:
    """Train a text classifier and print its marks on texts it has not seen."""
    from tamis.models.linear import Settings

    def tell(epoch: int, loss: float) -> None:
        typer.echo(f"pass {epoch} of {epochs}: loss {loss:.4f}", err=True)

    lesson = train_on_files(
        positive,
        negative,
        output,
        text_field=text_field,
        settings=Settings(bits, min_ngram, max_ngram, max_chars),
        epochs=epochs,
        rate=rate,
        holdout=holdout,
        max_rows=max_rows,
        seed=seed,
        progress=tell,
    )
    typer.echo(str(lesson))


@dataclass(frozen=True)
class LanguageLesson:
    """What came of training a language model on files."""

    trained: language_training.Trained
    output: str
    size_bytes: int

    def __str__(self) -> str:
        found = self.trained
        counts = ", ".join(f"{count:,}" for count in found.ngrams)
        lines = [
            f"{found.texts + found.tested:,} texts: {found.texts:,} to train on, {found.tested:,} held out",
            f"words       {found.words:,}, of which {found.vocabulary:,} different",
            f"n-grams     {counts}",
        ]
        if found.tested:
            lines += [
                f"perplexity  {found.perplexity:.1f} on the texts held out",
                "of each     "
                + ", ".join(f"{value:.1f} ({percent} %)" for percent, value in found.percentiles.items()),
            ]
        bound = f"{found.percentiles[90]:.0f}" if found.percentiles else "..."
        lines.append(
            f"written to {self.output} ({self.size_bytes / 1e6:.1f} MB); "
            f"use it as Perplexity(model={self.output!r}, max_perplexity={bound})"
        )
        return "\n".join(lines)


def learn_language(
    inputs: Sequence[str],
    output: str,
    *,
    text_field: str = "text",
    settings: language_model.Settings | None = None,
    holdout: float = 0.1,
    max_rows: int | None = None,
    memory: int | str | None = None,
    progress: Callable[[str], None] | None = None,
) -> LanguageLesson:
    """Train a language model on the texts of files and write it to `output`.

    Texts are read piece by piece and n-grams counted on disk (about 10 bytes for each byte of text, in the folder for temporary
    files). What it holds is the model, about 64 bytes for each n-gram of it, and a few hundred megabytes at most, within
    `memory`, of which nothing that is learned depends; a model too large for it is an error. `max_rows` takes the first so
    many texts.
    """
    from pathlib import Path

    from tamis.memory.budget import CALLER_BYTES, make_budget
    from tamis.models.language_training import WORKING_BYTES, train

    # The process, with Tamis and its kernels loaded, is taken for what it usually is: its caller may hold much more.
    room = make_budget(memory=memory, workers=1).total_bytes - CALLER_BYTES
    working = max(MIN_WORKING_BYTES, min(WORKING_BYTES, room // 3))
    with tempfile.TemporaryDirectory(prefix="tamis-") as folder:
        texts = _stream_texts(inputs, text_field, max_rows, memory, folder)
        trained = train(
            texts, settings=settings, holdout=holdout, working_bytes=working, model_bytes=room, progress=progress
        )
    trained.model.save(output)
    return LanguageLesson(trained, output, Path(output).stat().st_size)


def _stream_texts(
    paths: Sequence[str], text_field: str, limit: int | None, memory: int | str | None, folder: str
) -> Iterator[pa.Array]:
    """The texts of files of any format there is a reader for, batch by batch, by way of Arrow files in a folder."""
    from pathlib import Path

    import pyarrow as pa
    import pyarrow.compute as pc

    from tamis.pipeline import Pipeline
    from tamis.sinks.tables import ArrowWriter
    from tamis.sources.tables import reader_for

    reader = reader_for(list(paths), fields=[text_field], limit=limit)
    Pipeline(reader, ArrowWriter(folder)).run(executor="inline", on_error="isolate", memory=memory)
    for file in sorted(Path(folder).glob("*.arrow")):
        with pa.OSFile(str(file)) as source, pa.ipc.open_file(source) as found:
            if text_field not in found.schema.names:
                continue
            for number in range(found.num_record_batches):
                column = found.get_batch(number).column(text_field).cast(pa.large_string())
                yield column.filter(pc.fill_null(pc.greater(pc.binary_length(column), 0), False))
        file.unlink()


def train_language_model(
    inputs: Annotated[
        list[str], typer.Option("--input", metavar="PATH", help="Texts like those to keep; may be repeated.")
    ],
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Write the model to this file.")],
    text_field: Annotated[str, typer.Option(metavar="NAME", help="The column that holds the text.")] = "text",
    order: Annotated[int, typer.Option(metavar="N", min=1, max=6, help="The longest n-gram.")] = 3,
    unit: Annotated[str, typer.Option(metavar="UNIT", help="words or characters.")] = "words",
    fold: Annotated[bool, typer.Option(help="Read capitals as small letters and digits as 0.")] = True,
    min_count: Annotated[
        int, typer.Option(metavar="N", min=1, help="Leave out the longest n-grams that are rarer; 2 saves most space.")
    ] = 1,
    max_rows: Annotated[int | None, typer.Option(metavar="N", min=1, help="The first N texts.")] = None,
    holdout: Annotated[float, typer.Option(metavar="X", help="Share of the texts to test on.")] = 0.1,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="What the run may hold in all, e.g. 8GB.")] = None,
) -> None:
    """Train an n-gram language model and print its perplexity on texts it has not seen."""
    from tamis.models.language_model import Settings

    def tell(what: str) -> None:
        typer.echo(what, err=True)

    settings = Settings(order, unit, fold, min_count)  # type: ignore[arg-type]
    lesson = learn_language(
        inputs,
        output,
        text_field=text_field,
        settings=settings,
        holdout=holdout,
        max_rows=max_rows,
        memory=memory,
        progress=tell,
    )
    typer.echo(str(lesson))


def stats(
    inputs: Annotated[list[str], typer.Argument(metavar="INPUT...", help="Files, folders or patterns.")],
    column: Annotated[str, typer.Option(metavar="NAME", help="The column that holds the text.")] = "text",
    language: Annotated[
        bool | None, typer.Option("--language/--no-language", help="Count languages; by default if the model is here.")
    ] = None,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="What the run may hold in all, e.g. 8GB.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON to stdout.")] = False,
) -> None:
    """Describe a corpus: lengths, languages, characters, repetition, duplicates."""
    import json

    from tamis.workflows import describe

    described = describe(inputs, column=column, language=language, memory=memory)
    typer.echo(json.dumps(described.as_dict(), indent=2, ensure_ascii=False) if as_json else str(described))
