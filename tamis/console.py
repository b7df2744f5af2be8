"""The text that commands print: tables, reports, operators, errors."""

from __future__ import annotations

import inspect
import io
import json
import os
import random
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from tamis.errors import SourceError
from tamis.parameters import format_bytes, plural
from tamis.report import Report, damaged_text, error_kind
from tamis.report import error_text as describe_error

if TYPE_CHECKING:
    from tamis.operators import Operator
    from tamis.recipes.load import Recipe

SAMPLED_ROWS = 100_000
"""Samples of dropped and failed rows are drawn from this many rows at most, of files in random order."""

SHOWN_EVENTS = 20


NO_TERMINAL_WIDTH = 120


def terminal_width(otherwise: int = NO_TERMINAL_WIDTH) -> int:
    """Columns of the terminal that stdout or stderr is connected to, if one is."""
    if os.environ.get("COLUMNS", "").isdecimal():
        return int(os.environ["COLUMNS"]) or otherwise
    for stream in (sys.__stdout__, sys.__stderr__):
        try:
            return os.get_terminal_size(stream.fileno() if stream is not None else -1).columns or otherwise
        except (OSError, ValueError):
            continue
    return otherwise


def wrapped(text: str, indent: int = 2) -> str:
    """Text wrapped to the terminal, if there is one; lines that start with a count continue below their text."""
    width, lines = terminal_width(otherwise=10_000), []
    for line in text.splitlines():
        start = re.match(r" +[\d,]+(  +[\d.]+ %)?  ", line)
        following = " " * (min(len(start[0]), width // 2) if start else indent)
        lines += textwrap.wrap(line, width, subsequent_indent=following) or [""]
    return "\n".join(lines)


def fitted_paragraphs(text: str) -> str:
    """Paragraphs of prose refilled to the width of the terminal; examples and indented blocks are unchanged."""
    width = min(terminal_width(), NO_TERMINAL_WIDTH)
    return "\n\n".join(
        paragraph
        if paragraph.startswith(">>>") or any(line.startswith(" ") for line in paragraph.splitlines())
        else textwrap.fill(" ".join(paragraph.split()), width, break_on_hyphens=False)
        for paragraph in text.split("\n\n")
    )


def error_text(message: str, hint: str | None) -> str:
    return f"error: {message}\n\nhint: {hint}" if hint else f"error: {message}"


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[int] = (), width: int | None = None
) -> str:
    """Columns as wide as their widest cell; those numbered in `right` are right-aligned.

    If the table would be wider than `width`, the last column is wrapped.

    >>> print(table(["step", "rows"], [["word_count", "7"]], right=[1]))
    step        rows
    word_count     7
    """
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    flush = set(right)
    if width is not None:
        left = max(20, width - sum(widths[:-1]) - 2 * (len(widths) - 1))
        lines = [
            [*(line[:-1] if number == 0 else [""] * (len(line) - 1)), part]
            for line in lines
            for number, part in enumerate(textwrap.wrap(line[-1], left) or [""])
        ]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in flush else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


# ---------------------------------------------------------------------------------------------------------- operators


def operator_dict(name: str, cls: type[Operator]) -> dict[str, Any]:
    """What listings show about an operator."""
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
    return table(["name", "kind", ""], rows, width=terminal_width())


def operator_text(name: str, cls: type[Operator]) -> str:
    facts = operator_dict(name, cls)
    lines = [f"{name} ({cls.kind})", "", fitted_paragraphs(facts["doc"]), ""]
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
    lines.append(table(["parameter", "type", "default"], rows) if rows else "no parameters")
    return "\n".join(lines)


def _doc(cls: type[Operator]) -> str:
    text = inspect.cleandoc(cls.__doc__ or "")
    return "" if text.startswith(f"{cls.__name__}(") else text  # @dataclass writes this if there is none


def recipe_dict(recipe: Recipe) -> dict[str, Any]:
    return {
        "name": recipe.name,
        "description": recipe.description,
        "steps": [{step.name: dict(step.parameters)} for step in recipe.steps],
    }


def recipes_text(known: dict[str, Recipe]) -> str:
    rows = [[name, recipe.description] for name, recipe in known.items()]
    return table(["name", ""], rows, width=terminal_width())


# ------------------------------------------------------------------------------------------------------------- reports


def summary_text(report: Report) -> str:
    """What `tamis run` prints at the end."""
    if report.state == "unchanged":
        return f"nothing to do: {report.output} is complete and nothing has changed"
    lines = [wrapped(str(report))]
    if report.state == "shard":
        lines += [wrapped(note) for note in report.notes[:1]]
    elif report.state == "interrupted":  # `tamis merge --partial`
        lines += [wrapped(f"note: {note}") for note in report.notes]
    if report.failed and report.output:
        lines.append(f"failed rows are in {report.output.rstrip('/')}/.tamis/failed/")
    if report.output:
        lines.append(f"results are in {report.output}")
    return "\n".join(lines)


def failures_text(report: Report) -> str:
    """The failures of a run alone, for `--quiet` and `--json`; empty if there are none."""
    lines = []
    if report.failed:
        where = f"; see {report.output.rstrip('/')}/.tamis/failed/" if report.output else ""
        lines.append(f"{plural(report.failed, 'row')} failed{where}")
        lines += [f"  {error['rows']:>12,}  {describe_error(error)}" for error in report.errors]
    return wrapped("\n".join([*lines, *damaged_text(report.damaged_files)]))


def report_text(report: Report) -> str:
    """What `tamis report` prints."""
    lines = [wrapped(str(report)), ""]
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
    for group in report.streams:
        lines += [stream_text(group), ""]
    if report.memory_events:
        lines += [memory_events_text(report.memory_events), ""]
    lines += [*(wrapped(f"note: {note}") for note in report.notes), f"state: {report.state}"]
    if report.failed and report.output:
        lines.append(f"failed rows are in {report.output.rstrip('/')}/.tamis/failed/")
    if report.output:
        lines.append(f"results are in {report.output}")
    return "\n".join(lines)


def stream_text(group: Mapping[str, Any]) -> str:
    """How busy the stages of a group were that ran at the same time."""
    rows = []
    for stage in group["stages"]:
        whole = stage["busy_s"] + stage["waiting_for_input_s"] + stage["waiting_for_output_s"] or 1.0
        shares = [stage[name] / whole for name in ("busy_s", "waiting_for_input_s", "waiting_for_output_s")]
        rows.append([stage["name"], str(stage["most_workers"]), *(f"{share:.0%}" for share in shares)])
    header = ["stage", "workers", "busy", "waiting for input", "for output"]
    most = max((sample["packet_bytes"] for sample in group["queue"]), default=0)
    return (
        table(header, rows, right=range(1, len(header)), width=terminal_width())
        + f"\nslowest stage: {group['bottleneck']}; up to {format_bytes(most)} of rows between stages"
    )


def memory_events_text(events: Sequence[Mapping[str, Any]]) -> str:
    """Alerts about memory and actions, the most recent ones, oldest first."""
    shown = events[-SHOWN_EVENTS:]
    title = plural(len(events), "memory event")
    if len(shown) < len(events):
        title += f", of which the last {len(shown)}"
    rows = [
        [
            each["time"][11:19],
            each["kind"],
            each["level"],
            each["text"] + (f" -> {each['action']}" * bool(each["action"])),
        ]
        for each in shown
    ]
    return f"{title}:\n" + table(["UTC", "kind", "level", ""], rows, width=terminal_width())


# --------------------------------------------------------------------------------------------- failed and dropped rows


def sample_rows(output: str, kind: str, count: int) -> list[dict[str, Any]]:
    """A random sample of `count` rows for each reason or kind of error; the same rows each time."""
    chance = random.Random(0)
    seen: dict[tuple[str, str], int] = {}
    chosen: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in islice(side_rows(output, kind, shuffle=chance), SAMPLED_ROWS):
        group = (str(row.get("_reason") or error_kind(str(row.get("error")))), str(row.get("_step") or row.get("step")))
        seen[group] = seen.get(group, 0) + 1
        members = chosen.setdefault(group, [])
        if len(members) < count:
            members.append(row)
        elif (place := chance.randrange(seen[group])) < count:  # reservoir sampling
            members[place] = row
    return [row for group in sorted(chosen) for row in chosen[group]]


def sample_text(rows: Sequence[Mapping[str, Any]], width: int) -> str:
    """Sampled rows as a table that fits the terminal: the reason or the error first, the content last."""
    first = "reason" if rows and "_reason" in rows[0] else "error"
    columns = (first, "step", "address") if width >= 100 else (first, "address")
    lines = []
    for row in rows:
        cells = {name: row.get(f"_{name}", row.get(name)) for name in columns}
        address = _clip_start(cells.pop("address"), width // 4)
        lines.append([*(_clip(value, width // 3) for value in cells.values()), address, _content(row)])
    return shortened_table([*columns, "row"], lines, width)


def shortened_table(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
    """A table whose last column is cut at `width`."""
    lines = table(header, rows).splitlines()
    return "\n".join(line if len(line) <= width else line[: max(1, width - 3)] + "..." for line in lines)


def _content(row: Mapping[str, Any]) -> str:
    """The values of a sampled row on one line, its text first."""
    values = row.get("row") or "" if "error" in row else row.get("_line") if "text" not in row else None
    if values is None:
        values = {name: value for name, value in row.items() if not name.startswith("_")}
    if isinstance(values, Mapping):
        ordered = {**({"text": values["text"]} if "text" in values else {}), **values}
        values = json.dumps({k: v for k, v in ordered.items() if v is not None}, ensure_ascii=False, default=str)
    return " ".join(str(values)[:2_000].split())


def _clip(value: object, width: int) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= width else text[: max(1, width - 3)] + "..."


def _clip_start(value: object, width: int) -> str:
    """The end of an address: its row and file name say more than its folders."""
    text = str(value)
    return text if len(text) <= width else "..." + text[-max(1, width - 3) :]


def side_rows(output: str, kind: str, *, shuffle: random.Random | None = None) -> Iterator[dict[str, Any]]:
    """The rows in `.tamis/failed` or `.tamis/rejects` of an output folder, file by file, in random order if asked to."""
    from tamis.store import INTERNAL, Store

    store = Store(output)
    names = sorted(store.names(f"{INTERNAL}/{kind}"))
    if shuffle is not None:
        shuffle.shuffle(names)
    for name in names:
        path = f"{INTERNAL}/{kind}/{name}"
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
            raise SourceError(f"{name} has a format that cannot be shown")
    except (ValueError, pa.ArrowException, OSError) as error:
        raise SourceError(f"cannot read {name}: {error}") from error
