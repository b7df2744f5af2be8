"""What the command line prints, as text: tables, the summary of a run, the page of an operator, errors."""

from __future__ import annotations

import inspect
import io
import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from tamis.errors import SourceError
from tamis.report import Report

if TYPE_CHECKING:
    from tamis.operators import Operator
    from tamis.recipes.load import Recipe

SIDE_ROWS_LOOKED_AT = 100_000
"""The most frequent errors are found among so many failed rows."""


def error_text(message: str, hint: str | None) -> str:
    return f"error: {message}\n\nhint: {hint}" if hint else f"error: {message}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[int] = ()) -> str:
    """Columns as wide as their widest cell; those numbered in `right` are set flush right.

    >>> print(table(["step", "rows"], [["word_count", "7"]], right=[1]))
    step        rows
    word_count     7
    """
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    flush = set(right)
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in flush else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


# ---------------------------------------------------------------------------------------------------------- operators


def operator_dict(name: str, cls: type[Operator]) -> dict[str, Any]:
    """Everything a listing says of an operator."""
    from tamis.registry import describe_parameters

    return {
        "name": name,
        "kind": cls.kind,
        "reads": list(cls.declared_reads),
        "writes": list(cls.declared_writes),
        "parameters": describe_parameters(cls),
        "doc": _doc(cls),
    }


def operators_text(known: dict[str, type[Operator]]) -> str:
    rows = [[name, cls.kind, (_doc(cls).splitlines() or [""])[0]] for name, cls in known.items()]
    return table(["name", "kind", ""], rows)


def operator_text(name: str, cls: type[Operator]) -> str:
    facts = operator_dict(name, cls)
    lines = [f"{name} ({cls.kind})", "", facts["doc"], ""]
    for title in ("reads", "writes"):
        if facts[title]:
            lines.append(f"{title}: {', '.join(facts[title])}")
    if facts["reads"] or facts["writes"]:
        lines.append("")
    rows = [
        [
            each["name"],
            each["type"],
            "required" if each["required"] else json.dumps(each["default"], ensure_ascii=False),
        ]
        for each in facts["parameters"]
    ]
    lines.append(table(["parameter", "type", "default"], rows) if rows else "It takes no parameters.")
    return "\n".join(lines)


def _doc(cls: type[Operator]) -> str:
    text = inspect.cleandoc(cls.__doc__ or "")
    return "" if text.startswith(f"{cls.__name__}(") else text  # what @dataclass writes where nobody did


def recipe_dict(recipe: Recipe) -> dict[str, Any]:
    return {
        "name": recipe.name,
        "description": recipe.description,
        "steps": [{step.name: dict(step.parameters)} for step in recipe.steps],
    }


def recipes_text(known: dict[str, Recipe]) -> str:
    return table(["name", ""], [[name, recipe.description] for name, recipe in known.items()])


# ------------------------------------------------------------------------------------------------------------- reports


def summary_text(report: Report) -> str:
    """What a run says at its end."""
    if report.state == "unchanged":
        return f"nothing to do: {report.output} is finished and nothing has changed"
    lines = [str(report)]
    if report.failed:
        lines.append(failed_text(report))
    if report.output:
        lines.append(f"results are in {report.output}")
    return "\n".join(lines)


def failed_text(report: Report) -> str:
    """How many rows failed, where they are, and of what."""
    noun = "row" if report.failed == 1 else "rows"
    if not report.output:
        return f"{report.failed:,} {noun} failed"
    lines = [f"{report.failed:,} {noun} failed; see {report.output.rstrip('/')}/.tamis/failed/"]
    for error, count in frequent_errors(report.output):
        lines.append(f"  {count:>12,}  {error}")
    return "\n".join(lines)


def report_text(report: Report) -> str:
    """The account of a run as a page."""
    lines = [str(report), ""]
    if report.operators:
        rows = [
            [
                row["name"],
                f"{row['rows_in']:,}",
                f"{row['rows_out']:,}",
                f"{sum(row['dropped'].values()):,}",
                f"{row['failed']:,}",
                f"{row['seconds']:.2f}",
                f"{100 * row['share']:.1f} %",
                f"{row['mb_per_s']:,.1f}" if row["mb_per_s"] is not None else "",
            ]
            for row in report.operators
        ]
        header = ["step", "rows in", "rows out", "dropped", "failed", "seconds", "share", "MB/s"]
        lines += [table(header, rows, right=range(1, len(header))), ""]
    if report.failed:
        lines += [failed_text(report), ""]
    lines += [*(f"note: {note}" for note in report.notes), f"the run is {report.state}"]
    if report.output:
        lines.append(f"results are in {report.output}")
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------- failed and rejected rows


def frequent_errors(output: str, most: int = 3) -> list[tuple[str, int]]:
    """The errors that most rows failed with."""
    counts: Counter[str] = Counter()
    for row in islice(side_rows(output, "failed"), SIDE_ROWS_LOOKED_AT):
        first = (str(row.get("error") or "").splitlines() or [""])[0]
        counts[textwrap.shorten(first, 160, placeholder=" ...")] += int(row.get("rows", 1))
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most]


def side_rows(output: str, kind: str) -> Iterator[dict[str, Any]]:
    """The rows in `.tamis/failed` or `.tamis/rejects` of an output folder, one file at a time."""
    from tamis.store import INTERNAL, Store

    store = Store(output)
    folders = [f"{INTERNAL}/{kind}"]
    while folders:
        folder = folders.pop(0)
        for name in store.names(folder):
            path = f"{folder}/{name}"
            if "." not in name:  # `stage-2`, the failed rows of a later stage
                folders.append(path)
                continue
            yield from _rows_of(path, store.read(path) or b"")


def _rows_of(name: str, data: bytes) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet

    from tamis.store import LINES, TABLE

    try:
        if name.endswith(LINES):
            for line in data.splitlines():
                yield json.loads(line)
        elif name.endswith(TABLE):
            for batch in pyarrow.parquet.ParquetFile(io.BytesIO(data)).iter_batches(1_000):
                yield from batch.to_pylist()
        else:
            raise SourceError(f"{name} is of no format that can be shown", hint="open it with the tool that fits")
    except (ValueError, pa.ArrowException, OSError) as error:
        raise SourceError(f"cannot read {name}: {error}") from error


def rows_text(rows: Iterable[dict[str, Any]]) -> str:
    """One line of JSON per row; what JSON cannot hold is shown as text."""
    return "\n".join(json.dumps(row, ensure_ascii=False, default=str) for row in rows)
