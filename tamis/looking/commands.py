"""`tamis head`, `sample`, `grep`, `why`, `compare` and `stats`: look into files and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from tamis.commands.options import (
    JsonOption,
    MemoryOption,
    NoProgressOption,
    QuietOption,
    ScratchOption,
    progress_of,
)
from tamis.commands.printing import NO_MATCH, print_json, print_result, print_status

if TYPE_CHECKING:
    from tamis.batch import Failure
    from tamis.looking.rows import Fate, Seen


class Fates(StrEnum):
    kept = "kept"
    dropped = "dropped"
    failed = "failed"
    all = "all"


PathArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="PATH", help="A file, a folder, a pattern, or the output folder of a run.")
]
FateOption: TypeAlias = Annotated[
    Fates, typer.Option("--fate", help="Of an output: rows that were kept, dropped, failed, or all of them.")
]
ColumnsOption: TypeAlias = Annotated[
    list[str] | None, typer.Option("--column", metavar="NAME", help="Show this column only; repeatable.")
]
FullOption: TypeAlias = Annotated[bool, typer.Option("--full", help="Do not shorten texts to one line.")]
LinesOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print a JSON object per row to stdout.")]


def head(
    path: PathArgument,
    count: Annotated[int, typer.Option("-n", "--rows", min=1, help="Number of rows.")] = 5,
    fate: FateOption = Fates.kept,
    columns: ColumnsOption = None,
    full: FullOption = False,
    as_json: LinesOption = False,
) -> None:
    """Show the first rows of a file or an output, rejected and failed rows included."""
    from tamis.looking.rows import chosen, read_rows
    from tamis.looking.search import first

    bad = _BadRows()
    rows = first(chosen(read_rows(path, _fates(fate, path), on_bad=bad), columns), count)
    shown = _print_rows(rows, full=full, as_json=as_json)
    bad.report()
    _report_none(shown, path, fate)


def sample(
    path: PathArgument,
    count: Annotated[int, typer.Option("-n", "--rows", min=1, help="Number of rows.")] = 5,
    fate: FateOption = Fates.kept,
    seed: Annotated[int, typer.Option(min=0, help="Another seed gives other rows.")] = 0,
    columns: ColumnsOption = None,
    full: FullOption = False,
    as_json: LinesOption = False,
) -> None:
    """Show a random sample of the rows of a file or an output; every row has the same chance.

    Reads all rows, and holds the sample in memory.
    """
    from tamis.looking.rows import chosen, read_rows
    from tamis.looking.search import sampled

    bad = _BadRows()
    rows = sampled(chosen(read_rows(path, _fates(fate, path), on_bad=bad), columns), count, seed)
    shown = _print_rows(rows, full=full, as_json=as_json)
    bad.report()
    _report_none(shown, path, fate)


def grep(
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="A regular expression, in the syntax of RE2.")],
    path: PathArgument,
    columns: Annotated[
        list[str] | None,
        typer.Option(
            "--in",
            metavar="NAME",
            help="Search this column, e.g. text, id, _reason or error; repeatable. [default: all]",
        ),
    ] = None,
    fate: FateOption = Fates.all,
    ignore_case: Annotated[bool, typer.Option("-i", "--ignore-case", help="Ignore letter case.")] = False,
    fixed: Annotated[bool, typer.Option("-F", "--fixed", help="Search for the text itself.")] = False,
    most: Annotated[int | None, typer.Option("-n", "--rows", min=1, help="Stop after this many rows.")] = None,
    only_count: Annotated[bool, typer.Option("-c", "--count", help="Print only how many rows match.")] = False,
    full: FullOption = False,
    as_json: LinesOption = False,
) -> None:
    """Show the rows of a file or an output in which a text, a reason or an id matches; exits with 1 if none does."""
    from tamis.inert import inert
    from tamis.looking.rows import read_rows, title_of
    from tamis.looking.search import Pattern

    wanted = Pattern(pattern, ignore_case, fixed, columns)
    wanted.check()
    bad, found = _BadRows(), 0
    for match in wanted.matches(read_rows(path, _fates(fate, path), on_bad=bad)):
        found += 1
        if only_count:
            continue
        if full or as_json:
            _print_rows([(match.seen, match.number)], full=full, as_json=as_json)
        else:
            print_result(f"{inert(title_of(match.seen, match.number))}  {inert(match.column, 60)}: {match.excerpt}")
        if found == most:
            break
    if only_count:
        print_result(f"{found}")
    bad.report()
    if not found:
        raise typer.Exit(NO_MATCH)


def why(
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="The output folder of a run.")],
    name: Annotated[
        str, typer.Argument(metavar="ID", help="A row's id, or its address (FILE:POSITION) as in reports.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Show what happened to one document: every step with its scores, its fate, and the duplicate kept instead."""
    from tamis.console import terminal_width
    from tamis.looking.life import why as lives_of
    from tamis.looking.rows import json_line

    lives = lives_of(output, name)
    if as_json:
        print_result(json_line([life.as_dict() for life in lives], indent=2))
    else:
        print_result("\n\n".join(life.as_text(terminal_width()) for life in lives))
    if all(life.fate == "unknown" for life in lives):
        raise typer.Exit(NO_MATCH)


def compare(
    first: Annotated[str, typer.Argument(metavar="OUTPUT1", help="The output folder of a run.")],
    second: Annotated[str, typer.Argument(metavar="OUTPUT2", help="That of another run.")],
    key: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Match rows by this column. [default: id, or else the text]")
    ] = None,
    examples: Annotated[int, typer.Option(min=0, help="How many rows to show of each kind.")] = 3,
    as_json: JsonOption = False,
) -> None:
    """Compare two outputs: settings, counts by reason, rows only in one, and rows that crossed a threshold.

    Works on disk, in bounded memory. Why a row is missing is known if the runs were given --rejects.
    """
    from tamis.console import terminal_width
    from tamis.looking.compare import compare as compare_outputs
    from tamis.looking.rows import json_line

    found = compare_outputs(first, second, key=key, examples=examples)
    print_result(json_line(found.as_dict(), indent=2) if as_json else found.as_text(terminal_width()))


def stats(
    inputs: Annotated[list[str], typer.Argument(metavar="INPUT", help="Files, folders or glob patterns.")],
    column: Annotated[str, typer.Option(metavar="NAME", help="Column that holds the text.")] = "text",
    language: Annotated[
        bool | None,
        typer.Option("--language/--no-language", help="Count languages; the default if the model is installed."),
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="FILE", help="Count tokens with this tokenizer.json or SentencePiece model.")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Repeat the sizes for each value of a column, or for each domain."),
    ] = None,
    url_column: Annotated[str, typer.Option(metavar="NAME", help="Column that holds URLs.")] = "url",
    html: Annotated[str | None, typer.Option(metavar="FILE", help="Write a page of HTML that opens offline.")] = None,
    memory: MemoryOption = None,
    scratch: ScratchOption = None,
    as_json: JsonOption = False,
    no_progress: NoProgressOption = False,
    quiet: QuietOption = False,
) -> None:
    """Describe a corpus: lengths, tokens, languages, repetition, duplicates, domains and missing values."""
    from tamis.console import terminal_width
    from tamis.store import check_writable, writing
    from tamis.workflows import describe

    if html is not None:
        check_writable(html)
    with progress_of(quiet, no_progress) as progress:
        found = describe(
            inputs,
            column=column,
            language=language,
            tokenizer=tokenizer,
            by=by,
            url_column=url_column,
            memory=memory,
            scratch=scratch,
            on_event=progress,
            progress=False,
        )
    if html is not None:
        from tamis.looking.corpus import corpus_page

        page = corpus_page(found, ", ".join(inputs))
        with writing(html) as file:
            file.write_text(page, encoding="utf-8")
        print_status(f"{html} describes {found.rows:,} documents")
    if as_json:
        print_json(found.as_dict())
    elif html is None:
        print_result(found.as_text(terminal_width()))


# -------------------------------------------------------------------------------------------------------------- output


def _fates(fate: Fates, path: str) -> tuple[Fate, ...]:
    from tamis.errors import ParameterError
    from tamis.looking.rows import FATES, is_output

    if fate in (Fates.dropped, Fates.failed) and not is_output(path):
        raise ParameterError(
            f"{path} is not the output folder of a run, so it has no {fate.value} rows", hint="leave out --fate"
        )
    return FATES if fate is Fates.all else tuple(each for each in FATES if each == fate.value)


def _print_rows(rows: Iterable[tuple[Seen, int]], *, full: bool, as_json: bool) -> int:
    """Print rows as they come, and return how many there were."""
    from tamis.console import terminal_width
    from tamis.looking.rows import json_line, row_text, title_of

    count = 0
    for seen, number in rows:
        count += 1
        row: Mapping[str, Any] = seen.row(number)
        if as_json:
            marks = {"_fate": seen.fate, "_address": seen.addresses(number)}
            print_result(json_line({name: value for name, value in marks.items() if value is not None} | dict(row)))
        else:
            print_result(row_text(title_of(seen, number), row, terminal_width(), full=full))
    return count


class _BadRows:
    """Counts rows that cannot be read, and reports the first."""

    def __init__(self) -> None:
        self.count, self.first = 0, ""

    def __call__(self, failure: Failure) -> None:
        self.count += failure.rows
        self.first = self.first or f"{failure.address}: {failure.error}"

    def report(self) -> None:
        from tamis.inert import one_line
        from tamis.parameters import plural

        if self.first:
            print_status(f"{plural(self.count, 'row')} could not be read. The first error: {one_line(self.first, 500)}")


def _report_none(shown: int, path: str, fate: Fates) -> None:
    from tamis.looking.rows import is_output

    if shown:
        return
    hint = "; runs keep dropped rows if they are given --rejects" if fate is Fates.dropped else ""
    what = f"{fate.value} rows" if is_output(path) and fate is not Fates.all else "rows"
    print_status(f"there are no {what} in {path}{hint}")
