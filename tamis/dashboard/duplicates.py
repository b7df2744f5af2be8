"""Groups of duplicates on a page, with the differences between the kept row and those dropped for it.

A run records the addresses of duplicates, not their rows, so these are read again: dropped rows from the rejects, if the run
kept them, and all others from the input, through the reader of the run.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, TypeAlias

import pyarrow as pa

from tamis.dashboard import charts
from tamis.dashboard.markup import Child, Html, element, join, number, plain, section, text
from tamis.dashboard.originals import rows_from_input
from tamis.dashboard.rows import media_of
from tamis.dashboard.runs import RunView
from tamis.dashboard.samples import Sample, Samples
from tamis.dedup.explain import alignment
from tamis.dedup.groups import Groups
from tamis.errors import TamisError, first_line
from tamis.parameters import plural

TITLE = "Duplicates"
GROUPS, PER_GROUP = 5, 2
MEDIA_BYTES = 600_000
"""What all thumbnails and players of duplicates take together at most."""
LONGEST = 16_000
"""Characters of a text that are compared at most."""
WINDOW, MOST_WINDOWS = 700, 10
"""Words, spaces and signs that are compared at once, and how often."""
AGREED = 12
"""So many equal tokens show that two texts agree again."""
CONTEXT_WORDS = 25

_TOKEN = re.compile(r"\s+|\w+|[^\w\s]")


def duplicates(view: RunView) -> Html | None:
    """The largest groups of each deduplication step."""
    try:
        return _duplicates(view, Groups.load(view.output))
    except TamisError:
        return None
    except (pa.ArrowException, OSError, ValueError) as error:
        words = f"The groups of duplicates cannot be read: {first_line(error)}"
        return section("duplicates", TITLE, element("p", plain(words, 500), class_="empty"))


def _duplicates(view: RunView, groups: Groups) -> Html:
    wanted: list[tuple[str, dict[str, Any], list[dict[str, Any]]]] = []
    blocks: list[Child] = []
    for stage, summary in groups.summaries.items():
        for group in groups.largest(GROUPS, stage):
            wanted.append((summary["step"], group, groups.members(group["kept_address"], PER_GROUP, stage)))
        sizes = groups.histogram(stage)
        if sizes:
            blocks.append(_sizes(summary, sizes))
    addresses = {group["kept_address"] for _, group, _ in wanted}
    addresses |= {row["address"] for _, _, members in wanted for row in members}
    found = _rows(view, addresses)
    several = len(groups.summaries) > 1
    shown = [_group(group, members, found, step if several else "") for step, group, members in wanted]
    dropped = sum(int(summary.get("dropped", 0)) for summary in groups.summaries.values())
    names = ", ".join(plain(summary["step"], 80) for summary in groups.summaries.values())
    what = " The largest groups, with what differs from the kept row." if shown else ""
    return section(
        "duplicates",
        TITLE,
        element("div", blocks, class_="columns") if blocks else None,
        element("div", shown, class_="rows gap")
        if shown
        else element("p", "No duplicates were found.", class_="empty"),
        lead=f"{names} dropped {plural(dropped, 'row')}.{what}",
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


def _group(
    group: Mapping[str, Any], members: Sequence[Mapping[str, Any]], found: Mapping[str, Sample], step: str
) -> Html:
    kept = found.get(group["kept_address"])
    parts: list[Child] = [
        element(
            "header",
            element("b", f"{group['size']:,} rows"),
            element("span", plain(step, 80)) if step else None,
            element("span", "kept"),
            element("span", _title(group, "kept_"), class_="mono"),
        ),
        _content(kept, element("pre", text(kept.text, 600)) if kept is not None and kept.text else None),
    ]
    for row in members:
        other = found.get(row["address"])
        compared = kept is not None and other is not None and (kept.text or other.text)
        parts.append(
            element(
                "div",
                element(
                    "header",
                    element("b", "dropped"),
                    element("span", likeness(row)),
                    element("span", _title(row, ""), class_="mono"),
                ),
                _content(
                    other,
                    element("pre", differences(kept.text, other.text))
                    if compared and kept is not None and other is not None
                    else element("pre", text(other.text, 600))
                    if other is not None and other.text
                    else None,
                ),
                class_="member",
            )
        )
    return element("article", parts, class_="row kept twins")


def _content(row: Sample | None, words: Html | None) -> Child:
    """The thumbnails and players of a row and its text, or else its other columns."""
    if row is None:
        return element("p", _MISSING, class_="quiet small")
    if words is None and not row.media:
        details = ", ".join(f"{plain(key, 80)} {plain(value, 200)}" for key, value in row.details)
        return element("p", details or "no text", class_="quiet small")
    return [media_of(row), words]


_MISSING = "The row is not shown: it was made by a step, or its file is not there any more or too large to read again."


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
    pieces, complete = _compared(_tokens(kept), _tokens(other), limited=max(len(kept), len(other)) > LONGEST)
    parts: list[Child] = []
    for old, new in pieces:
        if old == new:
            parts.append(_shortened(new))
            continue
        parts += [element("del", "".join(old)) if old else None, element("ins", "".join(new)) if new else None]
    if not complete:
        parts.append(element("span", " [...] the rest is not compared", class_="cut"))
    elif all(old == new for old, new in pieces):
        parts.append(element("span", " (no difference in the text)", class_="cut"))
    return join(parts)


_Piece: TypeAlias = tuple[list[str], list[str]]
"""Tokens of the kept text and those of the other one in their place, which may be the same."""


def _compared(before: list[str], after: list[str], *, limited: bool) -> tuple[list[_Piece], bool]:
    """The pieces of two texts, and whether all of both is compared; `limited` if only the beginnings are given.

    The time grows with the square of what is compared at once. So where the texts agree, they are followed, and from the first
    difference on some tokens of both are compared, up to where they agree again.
    """
    pieces: list[_Piece] = []
    a = b = 0
    for _ in range(MOST_WINDOWS):
        same = _common(before[a:], after[b:])
        pieces.append((after[b : b + same], after[b : b + same]))
        a, b = a + same, b + same
        old, new = before[a : a + WINDOW], after[b : b + WINDOW]
        codes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        whole = not limited and a + WINDOW >= len(before) and b + WINDOW >= len(after)
        agreed = [place for place, (kind, i, j, _, _) in enumerate(codes) if kind == "equal" and j - i >= AGREED]
        if agreed and not whole:
            codes = codes[: agreed[-1] + 1]  # the rest may be equal to what follows
        elif limited and any(map(any, pieces)):
            codes = []  # one of the texts may end only because it is cut
        pieces += [(old[i:j], new[k:m]) for _, i, j, k, m in codes]
        if whole or not agreed:
            return _merged(pieces), whole
        a, b = a + codes[-1][2], b + codes[-1][4]
    return _merged(pieces), False


def _merged(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Pieces without empty ones, in which equal ones that follow each other are one."""
    found: list[_Piece] = []
    for old, new in pieces:
        if found and old == new and found[-1][0] == found[-1][1]:
            found[-1] = found[-1][1] + new, found[-1][1] + new
        elif old or new:
            found.append((old, new))
    return found


def _tokens(content: str) -> list[str]:
    """The words, spaces and signs of a text; of one that is too long, those of its beginning."""
    found = _TOKEN.findall(content[:LONGEST])
    return found if len(content) <= LONGEST else found[:-1]  # the last one may be half a word


def _common(one: Sequence[str], two: Sequence[str]) -> int:
    """With how many equal items two lists begin."""
    return next((place for place, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def _shortened(words: Sequence[str]) -> Child:
    if len(words) <= 2 * CONTEXT_WORDS + 20:
        return "".join(words)
    middle = element("span", " [...] ", class_="cut")
    return ["".join(words[:CONTEXT_WORDS]), middle, "".join(words[-CONTEXT_WORDS:])]


# -------------------------------------------------------------------------------------------------------------- reading


def _rows(view: RunView, addresses: set[str]) -> dict[str, Sample]:
    samples = Samples(view, MEDIA_BYTES)
    found = {sample.address: sample for sample in samples.rejected(addresses)}
    for address, row in rows_from_input(view, addresses - set(found)):
        found[address] = samples.sample("kept", row, address)
    return found
