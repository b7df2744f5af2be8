"""Groups of duplicates on a page, with the differences between the kept row and those dropped for it.

A run records the addresses of duplicates, not their texts, so these are read again: dropped rows from the rejects, if the run
kept them, and all others from the input, through the reader of the run.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tamis.dashboard import charts
from tamis.dashboard.markup import Child, Html, element, join, number, plain, section, text
from tamis.dashboard.originals import texts_from_input
from tamis.dashboard.runs import RunView
from tamis.dashboard.samples import spread, text_column
from tamis.dedup.explain import alignment, store_file
from tamis.dedup.groups import Groups
from tamis.errors import TamisError
from tamis.parameters import plural
from tamis.store import INTERNAL, TABLE

GROUPS, PER_GROUP = 5, 2
MOST_FILES = 40
"""Files of rejects that are searched."""
LONGEST = 4_000
"""Characters of a text that are compared."""
CONTEXT_WORDS = 25

_TOKEN = re.compile(r"\s+|\w+|[^\w\s]")


def duplicates(view: RunView) -> Html | None:
    """The largest groups of each deduplication step."""
    try:
        groups = Groups.load(view.output)
    except (TamisError, OSError, ValueError):
        return None
    wanted: list[tuple[str, dict[str, Any], list[dict[str, Any]]]] = []
    blocks: list[Child] = []
    for stage, summary in groups.summaries.items():
        for group in groups.largest(GROUPS, stage):
            wanted.append((stage, group, groups.members(group["kept_address"], PER_GROUP, stage)))
        sizes = groups.histogram(stage)
        if sizes:
            blocks.append(_sizes(summary, sizes))
    addresses = {group["kept_address"] for _, group, _ in wanted}
    addresses |= {row["address"] for _, _, members in wanted for row in members}
    texts = _texts(view, addresses)
    shown = [_group(group, members, texts) for _, group, members in wanted]
    dropped = sum(int(summary.get("dropped", 0)) for summary in groups.summaries.values())
    names = ", ".join(plain(summary["step"], 80) for summary in groups.summaries.values())
    return section(
        "duplicates",
        "Duplicates",
        element("div", blocks, class_="columns") if blocks else None,
        element("div", shown, class_="rows gap")
        if shown
        else element("p", "No duplicates were found.", class_="empty"),
        lead=f"{names} dropped {plural(dropped, 'row')}. The largest groups, with what differs from the kept row.",
    )


def _sizes(summary: Mapping[str, Any], sizes: Mapping[int, int]) -> Html:
    shown = list(sizes.items())[:24]
    most = max(count for _, count in shown)
    rows = [
        element(
            "li",
            element("span", f"{size} rows", class_="name"),
            charts.share_bar([(count, "lost")], most, height=10),
            element("span", number(count), class_="count"),
        )
        for size, count in shown[:10]
    ]
    more = sum(sizes.values()) - sum(count for _, count in shown[:10])
    return element(
        "article",
        element("header", element("h3", f"Sizes of groups: {plain(summary['step'], 80)}")),
        element("ol", rows, class_="funnel tight"),
        element("p", f"and {plural(more, 'larger group')}", class_="quiet small") if more else None,
        class_="score block",
    )


def _group(group: Mapping[str, Any], members: Sequence[Mapping[str, Any]], texts: Mapping[str, str]) -> Html:
    kept = texts.get(group["kept_address"])
    parts: list[Child] = [
        element(
            "header",
            element("b", f"{group['size']:,} rows"),
            element("span", "kept"),
            element("span", _title(group, "kept_"), class_="mono"),
        ),
        element("pre", text(kept, 600)) if kept is not None else element("p", _MISSING, class_="quiet small"),
    ]
    for row in members:
        other = texts.get(row["address"])
        parts.append(
            element(
                "div",
                element(
                    "header",
                    element("b", "dropped"),
                    element("span", likeness(row)),
                    element("span", _title(row, ""), class_="mono"),
                ),
                element("pre", differences(kept, other))
                if kept is not None and other is not None
                else element("p", _MISSING, class_="quiet small"),
                class_="member",
            )
        )
    return element("article", parts, class_="row kept twins")


_MISSING = (
    "The text is not shown: the row was made by a step, or its file is not there any more or too large to read again."
)


def _title(row: Mapping[str, Any], prefix: str) -> str:
    name = row.get(f"{prefix}id") or PurePosixPath(str(row[f"{prefix}address"])).name
    return plain(name, 160)


def likeness(row: Mapping[str, Any]) -> str:
    """How similar a dropped row is to the kept one."""
    if row.get("bits") is not None:
        return f"{row['bits']} bits differ"
    if row.get("offset") is not None:
        return alignment(row)
    if row.get("bands") is None and row.get("distance") is None:
        return "the same content"
    return f"similarity {row['similarity']:.3f}"


def differences(kept: str, other: str) -> Html:
    """The text of a dropped row, with what it adds to the kept one and what it lacks.

    >>> differences("the old mill", "the new mill")
    'the <del>old</del><ins>new</ins> mill'
    """
    before, after = _TOKEN.findall(kept[:LONGEST]), _TOKEN.findall(other[:LONGEST])
    parts: list[Child] = []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind == "equal":
            parts.append(_shortened(after[c:d]))
            continue
        if b > a:
            parts.append(element("del", "".join(before[a:b])))
        if d > c:
            parts.append(element("ins", "".join(after[c:d])))
    if kept[:LONGEST] == other[:LONGEST]:
        parts.append(element("span", " (no difference in the text)", class_="cut"))
    return join(parts)


def _shortened(words: Sequence[str]) -> Child:
    if len(words) <= 2 * CONTEXT_WORDS + 20:
        return "".join(words)
    middle = element("span", " [...] ", class_="cut")
    return ["".join(words[:CONTEXT_WORDS]), middle, "".join(words[-CONTEXT_WORDS:])]


# -------------------------------------------------------------------------------------------------------------- reading


def _texts(view: RunView, addresses: set[str]) -> dict[str, str]:
    found = dict(_rejected(view, addresses))
    return found | texts_from_input(view, addresses - set(found), 4 * LONGEST)


def _rejected(view: RunView, addresses: set[str]) -> Iterator[tuple[str, str]]:
    folder = f"{INTERNAL}/rejects"
    names = [name for name in view.store.names(folder) if name.endswith(TABLE)]
    left = set(addresses)
    for name in spread(names, MOST_FILES):
        if not left:
            return
        with store_file(view.store, f"{folder}/{name}") as opened:
            try:
                file = pq.ParquetFile(opened)
                column = text_column(file.schema_arrow.empty_table())
                if column is None:
                    continue
                wanted = pa.array(sorted(left))
                for batch in file.iter_batches(4096, columns=["_address", column]):
                    for row in batch.filter(pc.is_in(batch.column("_address"), value_set=wanted)).to_pylist():
                        left.discard(row["_address"])
                        yield row["_address"], str(row[column] or "")[: 4 * LONGEST]
            except pa.ArrowException:
                continue
