"""A first look at data, and a recipe that fits it: `tamis init`.

files --format, size--> reader --a few rows--> columns, the text column, languages --> steps, budget --> recipe
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from tamis.batch import Batch, Failure
from tamis.context import Context
from tamis.errors import SourceError, TamisError
from tamis.features import features_of
from tamis.formats import FORMATS, media_kind
from tamis.looking.rows import reader_of, rows_of_reader
from tamis.media import is_media
from tamis.memory.budget import DEFAULT_SHARE, usable_memory
from tamis.parameters import format_bytes, plural
from tamis.recipes.load import Recipe, Settings, Step, find_shipped
from tamis.sources.files import detect_format, is_local, list_files

SAMPLED_ROWS = 200
SAMPLED_FILES = 10
"""Files from which these rows come: the files of a folder often have different languages."""
TEXT_NAMES = ("text", "content", "raw_content", "body", "document", "markdown", "article", "caption", "transcript")
SHORT_CHARACTERS = 300
"""Texts shorter than this on average are no documents, and rules for web pages would drop most of them."""
LEAST_SHARE = 0.05
"""Languages with a smaller share of the sample are not kept: they are often mistakes of the model."""
LEAST_IMAGES = 0.9
"""A column has the paths of images if this share of its values has such a suffix."""
BUDGETS = ((10**9, 2), (20 * 10**9, 4), (200 * 10**9, 8))
"""Sizes of the input in bytes, and the gigabytes with which deduplication needs few passes."""

_TABLES = ("jsonl", "parquet", "csv", "arrow", "text")
_IMAGE_STEPS = (
    Step("image_decodable"),
    Step("image_size", {"min_width": 200, "min_height": 200}),
    Step("image_aspect", {"max_aspect_ratio": 3}),
    Step("image_blank"),
    Step("image_blur"),
    Step("image_dedup"),
)
_RECIPES = {"warc": "fineweb_from_warc", "mediawiki": "wikipedia", "audio": "speech", "video": "video_split"}


@dataclass(frozen=True)
class Look:
    """What a first look at data found."""

    path: str
    format: str
    num_files: int
    num_bytes: int
    columns: Mapping[str, str] = field(default_factory=dict)
    """Column names with their types; empty if no row could be read."""
    num_rows: int = 0
    """How many rows were looked at."""
    failed: bool = False
    """Whether rows or files could not be read."""
    text_column: str | None = None
    mean_characters: float = 0.0
    image_column: str | None = None
    """The column with images, or with the paths of image files if `image_paths`."""
    image_paths: bool = False
    languages: Mapping[str, float] = field(default_factory=dict)
    """The share of each language in the sample; empty if it is not known."""
    notes: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """The look as sentences."""
        yield f"{self.path}: {plural(self.num_files, self.format + ' file')}, {format_bytes(self.num_bytes)}"
        if self.columns:
            yield "columns: " + ", ".join(f"{name} ({kind})" for name, kind in self.columns.items())
        if self.image_column:
            yield f"images: column `{self.image_column}`{', with paths' if self.image_paths else ''}"
        if self.text_column:
            yield f"texts: column `{self.text_column}`, {self.mean_characters:,.0f} characters on average"
        if self.languages:
            shares = ", ".join(
                f"{code} {100 * share:.0f} %" for code, share in islice(self.languages.items(), 8) if share >= 0.005
            )
            yield f"languages of {plural(self.num_rows, 'row')}: {shares}"
        yield from self.notes


def look_at(path: str) -> Look:
    """Read the names of all files and the first rows of some."""
    form = detect_format([path])
    files = list_files([path], form)
    found = Look(path, form, len(files), sum(file.size for file in files))
    if FORMATS[form].is_media:
        return found
    failed: set[str] = set()
    table = _sampled_rows([file.path for file in files], lambda failure: failed.add(failure.step))
    found = replace(found, failed=bool(failed))
    if table is None:
        return replace(found, notes=("no row could be read" if failed else "there are no rows",))
    columns = {name: _type_name(kind) for name, kind in zip(table.schema.names, table.schema.types, strict=True)}
    found = replace(found, columns=columns, num_rows=len(table))
    name, mean = _text_column(table)
    if mean < SHORT_CHARACTERS and (image := _image_column(table)) is not None:
        return replace(found, image_column=image, image_paths=not is_media(table.schema.field(image).type))
    if name is None:
        return found
    languages, notes = _languages(table[name])
    return replace(found, text_column=name, mean_characters=mean, languages=languages, notes=notes)


def suggested(look: Look, output: str) -> Recipe:
    """A recipe for the data, which writes to `output`."""
    settings = Settings(memory=suggested_memory(look.num_bytes))
    title = f"Suggested by a look at {plural(look.num_files, look.format + ' file')}; edit it as you need."
    if look.format in _TABLES:
        if not look.columns:
            raise _nothing_read(look)
        if look.image_column is not None:
            return Recipe(
                (*_steps_of_table(look), Step("parquet_writer", {"path": output})), "suggested", title, settings
            )
        if look.text_column is None:
            raise SourceError(
                f"{look.path} has no column with texts; its columns are {', '.join(look.columns)}",
                hint="write a recipe by hand; `tamis ops` lists the steps",
            )
        reader: dict[str, Any] = {"file_paths": look.path}
        if look.text_column != "text":
            reader["columns"] = _renamed(look)
        steps = [
            Step(FORMATS[look.format].reader, reader),
            *_text_steps(look),
            Step("parquet_writer", {"path": output}),
        ]
        return Recipe(tuple(steps), "suggested", title, settings)
    if look.format in _RECIPES:
        body = find_shipped(_RECIPES[look.format]).steps
    else:
        body = _IMAGE_STEPS
    return Recipe(body, "suggested", title, settings).with_paths(input=look.path, output=output)


def _steps_of_table(look: Look) -> Iterator[Step]:
    """The steps for a table with images, whose rows then hold the bytes of the images that are left."""
    column = look.image_column
    yield Step(FORMATS[look.format].reader, {"file_paths": look.path})
    if look.image_paths:
        made = column if "image" in look.columns else "image"
        yield Step("media_reference", {"column": column, "to": made})
        column = made
    named = {} if column == "image" else {"column": column}
    yield from (replace(step, parameters={**step.parameters, **named}) for step in _IMAGE_STEPS)
    yield Step("read_media")


def _nothing_read(look: Look) -> SourceError:
    if look.failed:
        return SourceError(
            f"no row of {look.path} could be read", hint=f"`tamis head {look.path}` shows the first error"
        )
    seen = min(look.num_files, SAMPLED_FILES)
    where = look.path if seen == look.num_files else f"{seen} of the {plural(look.num_files, 'file')} of {look.path}"
    return SourceError(f"there are no rows in {where}", hint="name files that have rows")


def _renamed(look: Look) -> dict[str, str]:
    """The names that columns get so that the texts are in `text`. Another column of this name gets one that is not taken."""
    assert look.text_column is not None
    if "text" not in look.columns:
        return {"text": look.text_column}
    names = ("other_text", *(f"other_text_{number}" for number in range(2, len(look.columns) + 2)))
    return {"text": look.text_column, next(name for name in names if name not in look.columns): "text"}


def suggested_memory(num_bytes: int) -> str:
    """A budget that suffices for such an input, or what a run gets by default if that is less."""
    wanted = next((budget for size, budget in BUDGETS if num_bytes <= size), 16)
    most = usable_memory() * DEFAULT_SHARE / 10**9
    return f"{wanted}GB" if wanted <= most else f"{max(0.5, int(most * 2) / 2):g}GB"


def recipe_text(recipe: Recipe, look: Look, first_line: str = "") -> str:
    """The recipe as YAML, after what was found as comments."""
    return first_line + "".join(f"# {line}\n" for line in look.lines()) + recipe.to_yaml()


def relative_to(path: str, folder: Path) -> str:
    """A path as a recipe in `folder` writes it; URLs and absolute paths are unchanged."""
    if not is_local(path) or Path(path).is_absolute():
        return path
    return os.path.relpath(path, folder) + ("/" if path.endswith("/") else "")


# ------------------------------------------------------------------------------------------------------------ the look


def _sampled_rows(files: list[str], on_bad: Callable[[Failure], None]) -> pa.Table | None:
    """The first rows of files that are spread evenly over all of them."""
    count = min(len(files), SAMPLED_FILES)
    sampled: pa.Table | None = None
    for number in range(count):
        rows = _first_rows(files[number * len(files) // count], SAMPLED_ROWS // count, on_bad)
        if sampled is None or rows is None:
            sampled = rows if sampled is None else sampled
            continue
        try:
            sampled = pa.concat_tables([sampled, rows], promote_options="permissive")
        except pa.ArrowException:  # a column has another type than in the files before
            continue
    return sampled


def _first_rows(path: str, count: int, on_bad: Callable[[Failure], None]) -> pa.Table | None:
    for seen in rows_of_reader(reader_of(path), None, on_bad):
        if len(seen.table):
            return seen.table.slice(0, count)
    return None


def _type_name(kind: pa.DataType) -> str:
    text = str(kind)
    return text if len(text) <= 20 else text.partition("<")[0]


def _text_column(table: pa.Table) -> tuple[str | None, float]:
    """The column with the texts: one with a usual name, or else the one with the longest texts."""
    means = {}
    for name, kind in zip(table.schema.names, table.schema.types, strict=True):
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            means[name] = sum(len(text or "") for text in table[name].to_pylist()) / len(table)
    usual = [name for name in TEXT_NAMES if name in means]
    best = usual[0] if usual else max(means, key=lambda name: means[name], default=None)
    return best, means.get(best, 0.0) if best is not None else 0.0


def _image_column(table: pa.Table) -> str | None:
    """The first column with images, or else with names of image files."""
    known = features_of(table.schema)
    for spec in table.schema:
        if is_media(spec.type) and (spec.name == "image" or known.get(spec.name, {}).get("_type") == "Image"):
            return str(spec.name)
    for spec in table.schema:
        if pa.types.is_string(spec.type) or pa.types.is_large_string(spec.type):
            paths = [path for path in table[spec.name].to_pylist() if path]
            images = [path for path in paths if media_kind(path) == "image" and "://" not in path]
            if images and len(images) >= LEAST_IMAGES * len(paths):
                return str(spec.name)
    return None


def _languages(column: pa.ChunkedArray) -> tuple[dict[str, float], tuple[str, ...]]:
    """The share of each language, most frequent first, or a note on why it is not known."""
    from tamis.text.language import Language

    texts = [text for text in column.to_pylist() if text]
    try:
        runner = Language().open(Context())
    except TamisError as error:
        return {}, (f"languages are not known: {error.hint or error.message}",)
    found = pa.array(runner.score(Batch.from_rows([{"text": text} for text in texts]))["language"])
    counts = Counter(code for code in found.to_pylist() if code is not None)
    total = sum(counts.values())
    return {code: count / total for code, count in counts.most_common()}, ()


def _text_steps(look: Look) -> Iterator[Step]:
    kept = [code for code, share in look.languages.items() if share >= LEAST_SHARE]
    if look.mean_characters >= SHORT_CHARACTERS:
        # The words that a text must contain are English.
        yield Step("gopher_quality", {} if kept in ([], ["en"]) else {"min_stop_words": None})
        yield Step("gopher_repetition")
    else:
        yield Step("word_count", {"min_words": 1, "max_words": None})
    if kept:
        yield Step("language", {"keep": kept, "min_confidence": 0.5})
    yield Step("fuzzy_dedup" if look.mean_characters >= SHORT_CHARACTERS else "exact_dedup")
