"""`tamis train-classifier`, `tamis train-language-model` and `tamis stats`.

`train_classifier`, `train_language_model` and `stats` are the commands; `train_classifier_on_files`, `train_head_on_files` and
`train_language_model_on_files` are the same for Python. Heavy modules are imported inside functions, so that
`tamis --help` stays fast.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from tamis.parameters import format_bytes, plural

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from tamis.models import language_model, language_training
    from tamis.models.devices import Device
    from tamis.models.heads import TrainedHead
    from tamis.models.linear import Settings, Trained
    from tamis.text.embed import Embed


ColumnOption: TypeAlias = Annotated[str, typer.Option("--column", metavar="NAME", help="Column that holds the text.")]
ScratchOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--scratch", metavar="DIR", help="Put intermediate files into this local folder."),
]
MemoryOption: TypeAlias = Annotated[
    str | None, typer.Option("--memory", metavar="SIZE", help="Memory budget of all processes together, e.g. 8GB.")
]

MIN_WORKING_BYTES = 16_000_000
"""The least memory for counting n-grams."""


@dataclass(frozen=True)
class ClassifierTraining:
    """The result of training a classifier on files."""

    trained: Trained
    positive: int
    negative: int
    output: str
    skipped: int = 0
    """Texts found on both sides, which are left out."""

    def __str__(self) -> str:
        metrics = self.trained.evaluation
        found, wrong, missed = metrics.true_positive, metrics.false_positive, metrics.false_negative
        lines = [
            f"{self.positive:,} positive and {self.negative:,} negative texts, of which "
            f"{self.trained.trained_rows:,} for training and {metrics.rows:,} held out",
        ]
        if self.skipped:
            lines.append(f"left out {plural(self.skipped, 'text')} found on both sides")
        lines += [
            f"loss      {' '.join(f'{loss:.4f}' for loss in self.trained.losses)}",
            *_held_out(
                metrics.rows,
                f"accuracy  {metrics.accuracy:.4f}",
                f"precision {metrics.precision:.4f}   {found} of {found + wrong}",
                f"recall    {metrics.recall:.4f}   {found} of {found + missed}",
                f"F1        {metrics.f1:.4f}",
                f"AUC       {metrics.auc:.4f}",
            ),
            f"wrote {self.output}; use it with LinearClassifier(model={self.output!r})",
        ]
        return "\n".join(lines)


def _held_out(rows: int, *metrics: str) -> list[str]:
    """The lines about held-out texts."""
    if not rows:
        return ["no metrics, since no text was held out"]
    return ["held-out metrics:", *(f"  {metric}" for metric in metrics)]


def _as_strings(table: pa.Table, column: str) -> pa.Array:
    """A column of a table as text; numbers are written out."""
    import pyarrow as pa

    from tamis.errors import ColumnError

    found = table.column(column)
    if pa.types.is_nested(found.type):
        raise ColumnError(f"column `{column}` holds {found.type}, not one value per row", hint="name another column")
    return found.cast(pa.large_string()).combine_chunks()


def _read_texts(paths: Sequence[str], column: str, limit: int | None) -> pa.Array:
    """The texts of files of any supported format, without nulls and empty texts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from tamis.executors.failures import DEFAULT_MAX_FAILED
    from tamis.pipeline import Pipeline
    from tamis.sources.tables import reader_for

    table = Pipeline(reader_for(list(paths), fields=[column], limit=limit)).collect(
        executor="inline", on_error="isolate", max_failed=DEFAULT_MAX_FAILED
    )
    if column not in table.column_names:
        return pa.array([], pa.large_string())
    texts = _as_strings(table, column)
    return texts.filter(pc.fill_null(pc.greater(pc.binary_length(texts), 0), False))


def train_classifier_on_files(
    positive: Sequence[str],
    negative: Sequence[str],
    output: str,
    *,
    column: str = "text",
    settings: Settings | None = None,
    epochs: int = 5,
    rate: float = 0.1,
    holdout: float = 0.1,
    max_rows: int | None = None,
    seed: int = 0,
    progress: Callable[[int, float], None] | None = None,
) -> ClassifierTraining:
    """Train on the texts of two sets of files (JSONL, Parquet, CSV, Arrow or text lines) and write the model to `output`.

    Texts found on both sides are left out. All texts are held in memory; `max_rows` limits the texts of each side.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from tamis.models.linear import train
    from tamis.store import check_writable, writing
    from tamis.text.segment import buffers

    check_writable(output)
    sides = [_read_texts(negative, column, max_rows), _read_texts(positive, column, max_rows)]
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
    with writing(output) as file:
        trained.model.save(file)
    return ClassifierTraining(trained, len(kept[1]), len(kept[0]), output, sum(map(len, sides)) - sum(map(len, kept)))


@dataclass(frozen=True)
class HeadTraining:
    """The result of training a classifier on embeddings."""

    trained: TrainedHead
    counts: dict[str, int]
    """Texts by label."""
    output: str
    seconds: float
    """The time that embedding the texts took."""
    skipped: int = 0
    """Texts found with several labels, which are left out."""

    def __str__(self) -> str:
        metrics, head = self.trained.evaluation, self.trained.head
        total = sum(self.counts.values())
        shown = ", ".join(f"{count:,} {label}" for label, count in list(self.counts.items())[:10])
        more = f" and {len(self.counts) - 10} more labels" if len(self.counts) > 10 else ""
        lines = [
            f"{total:,} texts ({shown}{more}), of which {self.trained.trained_rows:,} for training and "
            f"{metrics.rows:,} held out"
        ]
        if self.skipped:
            lines.append(f"left out {plural(self.skipped, 'text')} found with several labels")
        lines += [
            f"embedded with {head.embeddings.model} in {self.seconds:.1f} s; penalty {self.trained.penalty:g}",
            *_held_out(
                metrics.rows,
                f"accuracy  {metrics.accuracy:.4f}",
                f"AUC       {metrics.auc:.4f}",
                f"macro F1  {metrics.macro_f1:.4f}",
                *(
                    f"{label.label}: F1 {label.f1:.4f}, precision {label.precision:.4f}, recall {label.recall:.4f}, "
                    f"{plural(label.rows, 'text')}"
                    for label in metrics.labels
                ),
            ),
            f"wrote {self.output}; use it with EmbeddingClassifier(model={self.output!r}, filter_by=[{head.labels[-1]!r}])",
        ]
        return "\n".join(lines)


def train_head_on_files(
    embeddings: str,
    output: str,
    *,
    positive: Sequence[str] = (),
    negative: Sequence[str] = (),
    labelled: Sequence[str] = (),
    column: str = "text",
    label_column: str = "label",
    max_chars: int | None = None,
    max_rows: int | None = None,
    holdout: float = 0.1,
    device: Device = "auto",
    progress: Callable[[str], None] | None = None,
) -> HeadTraining:
    """Train a linear layer on the vectors of an embedding model and write it to `output`.

    The rows are those of `positive` and `negative` files, or of `labelled` files with the label of each row in a column.
    Texts with several labels are left out. All texts and vectors are held in memory; `max_rows` limits the texts of each side.
    """
    import time

    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from tamis.errors import ParameterError
    from tamis.models.files import find
    from tamis.models.heads import Embeddings, train_head
    from tamis.models.linear import held_out
    from tamis.store import check_writable, writing
    from tamis.text.embed import Embed
    from tamis.text.segment import buffers

    if bool(labelled) == bool(positive and negative) or (labelled and (positive or negative)):
        raise ParameterError(
            "a classifier needs positive and negative texts, or labelled ones",
            hint="--positive A --negative B, or --labelled FILE with the label of each row in --label",
        )
    if not 0 <= holdout < 1:
        raise ParameterError(f"`holdout` must be at least 0 and below 1, got {holdout}")
    check_writable(output)
    if labelled:
        texts, named = _read_labelled(labelled, column, label_column, max_rows)
    else:
        sides = [_read_texts(negative, column, max_rows), _read_texts(positive, column, max_rows)]
        texts = pa.concat_arrays(sides)
        named = pa.array(np.repeat(["negative", "positive"], [len(side) for side in sides]))
    total = len(texts)
    pairs = pa.table({"text": texts, "label": named}).group_by("text", use_threads=False)
    kinds = pairs.aggregate([("label", "count_distinct")])
    several = kinds.filter(pc.greater(kinds["label_count_distinct"], 1))["text"]
    kept = pc.invert(pc.is_in(texts, value_set=several.combine_chunks()))
    texts, named = texts.filter(kept), named.filter(kept)
    labels = sorted(pc.unique(named).to_pylist())
    if len(labels) < 2:
        only = (
            f"all {len(texts):,} texts to train on have the label {labels[0]!r}"
            if labels
            else "there are no texts to train on"
        )
        left_out = (
            f"; {plural(total - len(texts), 'text')} with several labels were left out" if total > len(texts) else ""
        )
        raise ParameterError(only + left_out, hint="training needs texts of at least two labels")
    targets = np.asarray(
        pc.index_in(named, value_set=pa.array(labels, named.type)).to_numpy(zero_copy_only=False), np.int64
    )
    step = Embed(model=embeddings, max_chars=max_chars, device=device)
    step.check()
    began = time.perf_counter()
    vectors = _embed(step, texts, progress)
    seconds = time.perf_counter() - began
    data, offsets = buffers(texts)
    trained = train_head(
        vectors,
        targets,
        labels,
        held_out(data, offsets, offsets[1:], holdout),
        Embeddings(embeddings, find(embeddings).identity(), vectors.shape[1], max_chars=max_chars),
        balanced=not labelled,
        progress=progress,
    )
    with writing(output) as file:
        trained.head.save(file)
    counts = dict(zip(labels, np.bincount(targets, minlength=len(labels)).tolist(), strict=True))
    return HeadTraining(trained, counts, output, seconds, total - len(texts))


def _read_labelled(paths: Sequence[str], column: str, label: str, limit: int | None) -> tuple[pa.Array, pa.Array]:
    """The texts of files and their labels as strings, without rows that lack one of them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from tamis.executors.failures import DEFAULT_MAX_FAILED
    from tamis.pipeline import Pipeline
    from tamis.sources.tables import reader_for

    table = Pipeline(reader_for(list(paths), fields=[column, label], limit=limit)).collect(
        executor="inline", on_error="isolate", max_failed=DEFAULT_MAX_FAILED
    )
    if not table.num_rows:
        return pa.array([], pa.large_string()), pa.array([], pa.large_string())
    texts, named = _as_strings(table, column), _as_strings(table, label)
    kept = pc.and_(pc.fill_null(pc.greater(pc.binary_length(texts), 0), False), pc.is_valid(named))
    return texts.filter(kept), named.filter(kept)


def _embed(step: Embed, texts: pa.Array, progress: Callable[[str], None] | None) -> np.ndarray:
    """The vectors of texts, in this process."""
    import numpy as np

    from tamis.context import Context
    from tamis.models.devices import choose

    context = Context(device="cuda:0" if choose(step.device) == "gpu" and step.resources.gpus else "cpu")
    embedder, parts, size = step.open(context), [], 2048
    try:
        for first in range(0, len(texts), size):
            parts.append(embedder.vectors(texts.slice(first, size)))
            if progress is not None:
                progress(f"embedded {min(first + size, len(texts)):,} of {len(texts):,} texts")
        return np.concatenate(parts) if parts else np.zeros((0, 1), np.float32)
    finally:
        embedder.close()
        context.close()


def train_classifier(
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Write the model to this file.")],
    positive: Annotated[
        list[str] | None, typer.Option("--positive", metavar="PATH", help="Examples of texts to keep; repeatable.")
    ] = None,
    negative: Annotated[
        list[str] | None, typer.Option("--negative", metavar="PATH", help="Examples of texts to drop; repeatable.")
    ] = None,
    labelled: Annotated[
        list[str] | None,
        typer.Option("--labelled", metavar="PATH", help="Texts with labels, for --embeddings; repeatable."),
    ] = None,
    embeddings: Annotated[
        str | None,
        typer.Option(
            "--embeddings", metavar="MODEL", help="Train on the vectors of this model (minilm, wordllama, a folder)."
        ),
    ] = None,
    column: ColumnOption = "text",
    label: Annotated[str, typer.Option("--label", metavar="NAME", help="Column that holds the label.")] = "label",
    epochs: Annotated[int, typer.Option(metavar="N", min=1, help="Passes over the texts.")] = 5,
    rate: Annotated[float, typer.Option(metavar="X", help="Learning rate.")] = 0.1,
    bits: Annotated[int, typer.Option(metavar="N", min=8, max=28, help="Use 2**N weights.")] = 20,
    min_ngram: Annotated[int, typer.Option(metavar="N", min=1, help="Shortest character n-gram.")] = 3,
    max_ngram: Annotated[int, typer.Option(metavar="N", min=0, help="Longest character n-gram; 0 for words only.")] = 5,
    max_chars: Annotated[
        int, typer.Option(metavar="N", min=0, help="Use the first N characters of each text; 0 for all.")
    ] = 0,
    max_rows: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Use the first N texts of each side.")
    ] = None,
    holdout: Annotated[float, typer.Option(metavar="X", help="Share of the texts to hold out for testing.")] = 0.1,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the order of the texts.")] = 0,
) -> None:
    """Train a text classifier and print held-out metrics.

    Without --embeddings, on word and character n-grams, for two sides; see --epochs, --rate, --bits and the n-gram lengths.
    """
    from tamis.errors import ParameterError
    from tamis.models.linear import Settings

    if embeddings is not None:
        trained_head = train_head_on_files(
            embeddings,
            output,
            positive=positive or (),
            negative=negative or (),
            labelled=labelled or (),
            column=column,
            label_column=label,
            max_chars=max_chars or None,
            max_rows=max_rows,
            holdout=holdout,
            progress=lambda text: typer.echo(text, err=True),
        )
        typer.echo(str(trained_head))
        return
    if not positive or not negative or labelled:
        raise ParameterError(
            "a classifier on n-grams needs --positive and --negative texts",
            hint="add --embeddings minilm to train on --labelled texts with several labels",
        )

    def print_loss(epoch: int, loss: float) -> None:
        typer.echo(f"epoch {epoch} of {epochs}: loss {loss:.4f}", err=True)

    trained = train_classifier_on_files(
        positive,
        negative,
        output,
        column=column,
        settings=Settings(bits, min_ngram, max_ngram, max_chars),
        epochs=epochs,
        rate=rate,
        holdout=holdout,
        max_rows=max_rows,
        seed=seed,
        progress=print_loss,
    )
    typer.echo(str(trained))


@dataclass(frozen=True)
class LanguageModelTraining:
    """The result of training a language model on files."""

    trained: language_training.Trained
    output: str
    size_bytes: int

    def __str__(self) -> str:
        found = self.trained
        counts = ", ".join(f"{count:,}" for count in found.ngrams)
        lines = [
            f"{found.texts + found.tested:,} texts, of which {found.texts:,} for training and {found.tested:,} held out",
            f"words       {found.words:,}, {found.vocabulary:,} of them distinct",
            f"n-grams     {counts}",
        ]
        if found.tested:
            lines += [
                f"perplexity  {found.perplexity:.1f} on held-out texts",
                "per text    "
                + ", ".join(f"{value:.1f} ({percent} %)" for percent, value in found.percentiles.items()),
            ]
        bound = f"{found.percentiles[90]:.0f}" if found.percentiles else "..."
        lines.append(
            f"wrote {self.output} ({format_bytes(self.size_bytes)}); "
            f"use it with Perplexity(model={self.output!r}, max_perplexity={bound})"
        )
        return "\n".join(lines)


def train_language_model_on_files(
    inputs: Sequence[str],
    output: str,
    *,
    column: str = "text",
    settings: language_model.Settings | None = None,
    holdout: float = 0.1,
    max_rows: int | None = None,
    memory: int | str | None = None,
    progress: Callable[[str], None] | None = None,
) -> LanguageModelTraining:
    """Train a language model on the texts of files and write it to `output`.

    Reads texts in batches and counts n-grams on disk, which takes about 10 bytes per byte of text in the folder for
    temporary files. Memory is about 64 bytes per n-gram of the model plus a few hundred megabytes at most, within `memory`;
    the model does not depend on it, and one that does not fit is an error. `max_rows` limits the number of texts.
    """
    from pathlib import Path

    from tamis.memory.budget import CALLER_BYTES, make_budget
    from tamis.models.language_training import WORKING_BYTES, train
    from tamis.store import check_writable, writing

    check_writable(output)
    # The usual size of a process with Tamis and its kernels loaded; the calling program may hold much more.
    room = make_budget(memory=memory, workers=1).total_bytes - CALLER_BYTES
    working = max(MIN_WORKING_BYTES, min(WORKING_BYTES, room // 3))
    with tempfile.TemporaryDirectory(prefix="tamis-") as folder:
        texts = _stream_texts(inputs, column, max_rows, memory, folder)
        trained = train(
            texts, settings=settings, holdout=holdout, working_bytes=working, model_bytes=room, progress=progress
        )
    with writing(output) as file:
        trained.model.save(file)
    return LanguageModelTraining(trained, output, Path(output).stat().st_size)


def _stream_texts(
    paths: Sequence[str], column: str, limit: int | None, memory: int | str | None, folder: str
) -> Iterator[pa.Array]:
    """The texts of files of any supported format in batches, through Arrow files in a folder."""
    from pathlib import Path

    import pyarrow as pa
    import pyarrow.compute as pc

    from tamis.pipeline import Pipeline
    from tamis.sinks.tables import ArrowWriter
    from tamis.sources.tables import reader_for

    reader = reader_for(list(paths), fields=[column], limit=limit)
    Pipeline(reader, ArrowWriter(folder)).run(executor="inline", on_error="isolate", memory=memory)
    for file in sorted(Path(folder).glob("*.arrow")):
        with pa.OSFile(str(file)) as source, pa.ipc.open_file(source) as found:
            if column not in found.schema.names:
                continue
            for number in range(found.num_record_batches):
                texts = found.get_batch(number).column(column).cast(pa.large_string())
                yield texts.filter(pc.fill_null(pc.greater(pc.binary_length(texts), 0), False))
        file.unlink()


def train_language_model(
    inputs: Annotated[
        list[str], typer.Option("--input", metavar="PATH", help="Examples of texts to keep; repeatable.")
    ],
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Write the model to this file.")],
    column: ColumnOption = "text",
    order: Annotated[int, typer.Option(metavar="N", min=1, max=6, help="Longest n-gram.")] = 3,
    unit: Annotated[str, typer.Option(metavar="UNIT", help="words or characters.")] = "words",
    fold: Annotated[bool, typer.Option(help="Convert to lower case and digits to 0.")] = True,
    min_count: Annotated[
        int, typer.Option(metavar="N", min=1, help="Leave out the longest n-grams if rarer; 2 saves the most space.")
    ] = 1,
    max_rows: Annotated[int | None, typer.Option(metavar="N", min=1, help="Use the first N texts.")] = None,
    holdout: Annotated[float, typer.Option(metavar="X", help="Share of the texts to hold out for testing.")] = 0.1,
    memory: MemoryOption = None,
) -> None:
    """Train an n-gram language model and print its perplexity on held-out texts."""
    from tamis.models.language_model import Settings

    settings = Settings(order, unit, fold, min_count)  # type: ignore[arg-type]
    trained = train_language_model_on_files(
        inputs,
        output,
        column=column,
        settings=settings,
        holdout=holdout,
        max_rows=max_rows,
        memory=memory,
        progress=lambda text: typer.echo(text, err=True),
    )
    typer.echo(str(trained))
