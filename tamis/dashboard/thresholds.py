"""The scores of filters on the page of a run: histograms, and sliders that show what another threshold would keep."""

from __future__ import annotations

import json
import shlex

import numpy as np

from tamis.dashboard import charts
from tamis.dashboard.markup import (
    Html,
    element,
    number,
    plain,
    section,
)
from tamis.dashboard.runs import RunView
from tamis.dashboard.scores import Bound, ScoreHistogram, Scores, payload, place_of, ticks_of
from tamis.parameters import plural

STORED = "Scores are stored of filters before the first step that is neither a filter nor a map"


def thresholds(view: RunView, scores: Scores | None, problem: str = "", unread: str = "") -> Html:
    """A histogram of each score with its thresholds, and a slider for each.

    `problem` says why not all steps can be built here, and `unread` why scores cannot be read.
    """
    title = "Thresholds"
    if scores is None:
        return section("thresholds", title, element("p", plain(unread or _none(view, problem), 1000), class_="empty"))
    gathered = scores.then_gathered or scores.without
    then = " Later steps, such as deduplication, may drop more of them." if gathered else ""
    names = plain(", ".join(scores.without), 300)
    missing = f" {STORED}, so these are not shown: {names}." if names else ""
    drops = view.report.dropped
    ordered = sorted(
        scores.histograms,
        key=lambda each: -sum(count for reason, count in drops.items() if reason.startswith(f"{each.score} ")),
    )
    command = "" if problem else shlex.join(["tamis", "rethreshold", view.output, "--set"])
    if problem:
        missing += (
            f" `tamis rethreshold` cannot build all steps ({plain(problem, 300)}): set another threshold where the pipeline "
            "is defined, and run it again with --scores, which reuses the scores."
        )
    blocks = [_histogram(command, scores, each, place) for place, each in enumerate(ordered)]
    return section(
        "thresholds",
        title,
        element("div", blocks[:8], class_="columns"),
        element(
            "details",
            element("summary", f"{plural(len(blocks) - 8, 'other score')}"),
            element("div", blocks[8:], class_="columns"),
        )
        if len(blocks) > 8
        else None,
        lead=f"The filters keep {number(scores.kept)} of {number(scores.rows)} rows.{then} Move a threshold to see how many "
        "they would keep if only this one changed. Grey columns are all rows, coloured ones those that are kept."
        + missing,
    )


def _none(view: RunView, problem: str) -> str:
    """Why there are no scores."""
    if view.manifest.get("scores"):
        return f"The run stored no scores: no row was measured. {problem}".strip()
    built = f" Not all steps can be built here: {problem}." if problem else ""
    return (
        "The run kept no scores. Run it with --scores to see how rows are distributed around each threshold, and what "
        f"another threshold would keep. {STORED}.{built}"
    )


def _histogram(command: str, scores: Scores, found: ScoreHistogram, place: int) -> Html:
    group = max(1, len(found.every) // 56)
    every, kept = _grouped(found.every, group), _grouped(found.kept, group)
    ticks = _ticks(found)
    lines = [(place_of(found, bound.value), _label(bound), "limit") for bound in found.bounds]
    steep = found.every.max() > 40 * max(1.0, float(np.median(every[every > 0])) if every.any() else 1.0)
    chart = charts.columns(
        every.tolist(),
        second=kept.tolist(),
        ticks=ticks,
        lines=lines,
        log=bool(steep),
        label=f"Histogram of {found.score} over {int(found.every.sum()):,} rows, "
        + (", ".join(f"{bound.side} {bound.limit}" for bound in found.bounds) or "no threshold"),
    )
    notes = [found.step, "logarithmic height" if steep else "", f"{found.missing:,} without" if found.missing else ""]
    return element(
        "article",
        element("header", element("h3", found.score), element("span", ", ".join(filter(None, notes)))),
        chart,
        [_slider(command, scores, found, bound, f"{place}-{number}") for number, bound in enumerate(found.bounds)],
        class_="score block",
    )


def _slider(command: str, scores: Scores, found: ScoreHistogram, bound: Bound, name: str) -> Html | None:
    if bound.parameter is None:
        return None
    index = int(np.searchsorted(found.edges, bound.value))
    data = payload(found, bound) | {
        "command": command,
        "set": f"{bound.step}.{bound.parameter}",
        "rows": scores.rows,
        "kept": scores.kept,
    }
    return element(
        "div",
        element("label", f"{bound.parameter} = ", element("b", bound.limit), for_=f"slider-{name}"),
        element(
            "input",
            type="range",
            id=f"slider-{name}",
            min=0,
            max=len(found.edges) - 1,
            value=index,
            data_slider=json.dumps(data, separators=(",", ":")),
            aria_describedby=f"kept-{name}",
            aria_valuetext=bound.limit,
        ),
        element("output", f"{number(scores.kept)} of {number(scores.rows)} rows, as now", id=f"kept-{name}"),
        element(
            "div",
            element("code", f"{command} {data['set']}={bound.limit}".strip()),
            element("button", "Copy", type="button", data_copy=True),
            class_="command",
            hidden=True,
        ),
        class_="slider",
    )


def _label(bound: Bound) -> str:
    """A threshold beside its line; one in the thousands is easier to read with commas, which `--set` does not take."""
    return f"{int(bound.value):,}" if abs(bound.value) >= 1000 and float(bound.value).is_integer() else bound.limit


def _grouped(counts: np.ndarray, size: int) -> np.ndarray:
    padded = np.concatenate([counts, np.zeros(-len(counts) % size, counts.dtype)])
    return padded.reshape(-1, size).sum(axis=1)


def _ticks(found: ScoreHistogram) -> list[tuple[float, str]]:
    ticks: list[tuple[float, str]] = []
    for value in ticks_of(found):
        at = place_of(found, value)
        if not ticks or at - ticks[-1][0] > 0.1:
            ticks.append((at, charts.short_number(value)))
    return ticks
