"""The page of a run: `tamis report OUTPUT --html FILE` writes it as one file, and the dashboard serves its parts."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from tamis.dashboard import sections
from tamis.dashboard.duplicates import duplicates
from tamis.dashboard.makeup import length_counts, makeup
from tamis.dashboard.markup import Html, element, page
from tamis.dashboard.near import kept_near_bounds
from tamis.dashboard.passages import mark_passages
from tamis.dashboard.resources import resources
from tamis.dashboard.rows import rows
from tamis.dashboard.runs import RunView, load_run
from tamis.dashboard.samples import Samples
from tamis.dashboard.scores import Scores, read_scores
from tamis.dashboard.thresholds import thresholds
from tamis.errors import LedgerError, TamisError, first_line
from tamis.operators import Operator
from tamis.recipes.load import Recipe, Step
from tamis.registry import build_operator
from tamis.sources.memory import Rows
from tamis.store import INTERNAL, writing

_TITLE = re.compile(r'<h2 id="([a-z]+)-title">(.*?)</h2>')


def write_report_page(output: str, file: str | Path) -> int:
    """Write the page of a run to a file; returns its size in bytes."""
    view = load_run(output)
    if view.state == "empty":
        raise LedgerError(
            f"there is no report in {output}",
            hint=f"name the output folder of a run; it contains {INTERNAL}/report.json",
        )
    content = report_page(view).encode()
    with writing(file) as path:
        path.write_bytes(content)
    return len(content)


def report_page(view: RunView) -> Html:
    """The page of a run as one self-contained document."""
    return frame(view, [*light_parts(view), *heavy_parts(view)], kind="report")


def frame(
    view: RunView, parts: Sequence[Html], *, kind: str, live: str | None = None, links: Html | None = None
) -> Html:
    """The page of a run from its parts."""
    ordered = in_order(parts)
    top = [sections.brand(kind, links), element("div", sections.head(view), id="head")]
    nav = sections.navigation(titles_of(ordered))
    return page(f"{view.name}: {kind}", ordered, head=top, nav=nav, live=live, order=ORDER)


def titles_of(parts: Sequence[Html]) -> list[tuple[str, str]]:
    """The names and titles of parts, for the navigation. Titles are ours, without anything from data."""
    return [(name, title) for part in parts for name, title in _TITLE.findall(part[:300])]


ORDER = (
    "progress",
    "funnel",
    "reasons",
    "thresholds",
    "rows",
    "duplicates",
    "makeup",
    "resources",
    "failures",
    "settings",
)


def name_of(part: Html) -> str:
    found = re.match(r'<section id="([a-z]+)"', part)
    assert found is not None
    return found[1]


def in_order(parts: Sequence[Html]) -> list[Html]:
    return sorted(parts, key=lambda part: ORDER.index(name_of(part)))


def light_parts(view: RunView) -> list[Html]:
    """The parts that need only the report and the event log, which a dashboard makes every second."""
    reasons = set(view.report.dropped) if view.store.names(f"{INTERNAL}/rejects") else set()
    makers: list[Callable[[], Html | None]] = [
        lambda: sections.progress(view),
        lambda: sections.funnel(view),
        lambda: sections.reasons(view, reasons),
        lambda: resources(view),
        lambda: sections.failures(view),
        lambda: sections.settings(view),
    ]
    return [part for part in (make() for make in makers) if part is not None]


def heavy_parts(view: RunView) -> list[Html]:
    """The parts that read rows and scores."""
    steps, problem = _operators(view)
    scores: Scores | None = None
    unread = ""
    if view.store.names(f"{INTERNAL}/scores") and steps:
        try:
            scores = read_scores(view.store, steps)
            if scores is not None and problem:
                scores.then_gathered = True  # a step that cannot be built here may be one
        except (pa.ArrowException, OSError, ValueError) as error:
            unread = f"The stored scores cannot be read: {first_line(error)}"
    samples = Samples(view)
    found = [*samples.collect(), *(kept_near_bounds(view, scores, samples) if scores is not None else ())]
    mark_passages(found, _filters(view) if problem else steps)
    dropped = sum(view.report.dropped.values())
    kept = _weighted(samples.lengths_kept, view.report.kept)
    lost = _weighted(samples.lengths_dropped, dropped)
    before = (kept + lost).tolist() if lost.any() or not dropped else []
    parts = [
        thresholds(view, scores, problem, unread),
        rows(view, found, samples.notes),
        duplicates(view),
        makeup(scores, before, kept.tolist()),
    ]
    return [part for part in parts if part is not None]


def _weighted(lengths: Sequence[int], count: int) -> np.ndarray:
    """How many of `count` rows have which length, from a sample."""
    return length_counts(lengths, count / len(lengths) if lengths else 1.0)


def _operators(view: RunView) -> tuple[list[Operator], str]:
    """The steps of the run as operators; with the problem, those before the first that cannot be built here."""
    try:
        recipe = Recipe(tuple(Step(name, dict(given)) for name, given in view.steps))
        return recipe.operators(), ""
    except TamisError as error:
        problem = first_line(error)
    steps: list[Operator] = []
    for place, (name, given) in enumerate(view.steps):
        try:
            steps.append(build_operator(name, given))
        except (TamisError, TypeError, ValueError):
            if place:
                break
            steps.append(Rows([]))  # a source that only the program has
    return steps, problem


def _filters(view: RunView) -> list[Operator]:
    """The filters of the run that can be built here, wherever they are."""
    found = []
    for name, given in view.steps:
        with contextlib.suppress(TamisError, TypeError, ValueError):
            found.append(build_operator(name, given))
    return found
