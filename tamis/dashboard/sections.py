"""The parts of the page of a run. Each is a function of what is known about the run; a part with nothing to say is None."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from tamis.dashboard import charts
from tamis.dashboard.markup import (
    Child,
    Html,
    duration,
    element,
    figures,
    join,
    marked,
    number,
    percent,
    plain,
    section,
    table,
    text,
)
from tamis.dashboard.runs import RunView
from tamis.dashboard.samples import Sample
from tamis.dashboard.scores import Bound, ScoreHistogram, Scores, payload, place_of, ticks_of
from tamis.parameters import format_bytes, plural
from tamis.report import error_text

MOST_REASONS, MOST_ERRORS, MOST_FILES, MOST_EVENTS = 200, 100, 50, 100
LONGEST_NAME = 300

STATES = {
    "running": "Running",
    "finished": "Finished",
    "unchanged": "Finished",
    "interrupted": "Interrupted",
    "failed": "Failed",
    "ended": "Ended without a report",
    "shard": "Shard finished",
    "empty": "No run yet",
}


def anchor(reason: str) -> str:
    """The fragment of the rows of a reason."""
    import hashlib

    return "reason-" + hashlib.sha256(reason.encode("utf-8", "replace")).hexdigest()[:10]


# ----------------------------------------------------------------------------------------------------------------- head


def brand(kind: str, *links: Child) -> Html:
    return element(
        "div", element("b", "tamis"), element("span", links, element("span", kind), class_="links"), class_="brand"
    )


def chip(view: RunView) -> Html:
    state = view.state if view.state in STATES else "interrupted"
    return element("span", STATES.get(view.state, plain(view.state, 40)), class_=f"chip {state}")


def head(view: RunView) -> Html:
    """What the run is, how it ended, and its key figures."""
    report, log = view.report, view.log
    started = (
        datetime.fromtimestamp(log["started"], UTC).strftime("%d %b %Y, %H:%M UTC") if log.get("started") else None
    )
    steps = max(0, len(view.steps) - 2)
    about = [
        chip(view),
        element("span", f"started {started}") if started else None,
        element("span", plural(steps, "step")) if steps else None,
        element("span", plain(view.output, LONGEST_NAME), class_="mono"),
    ]
    error = element("p", plain(view.error, 1000), class_="fail") if view.error else None
    if view.state == "empty":
        return join([element("h1", plain(view.name, LONGEST_NAME)), element("p", about, class_="state")])
    dropped, budget = sum(report.dropped.values()), budget_of(view)
    shown: list[tuple[Child, Child, Child]] = [
        ("Rows read", number(report.read), f"{format_bytes(report.num_bytes)}"),
        ("Kept", number(report.kept), _kept_remark(view)),
        (
            "Dropped",
            number(dropped),
            f"{percent(dropped, report.read)}, {plural(len(report.dropped), 'reason')}" if dropped else "",
        ),
        ("Failed", number(report.failed), percent(report.failed, report.read) if report.failed else ""),
        _time_figure(view),
        (
            "Peak memory",
            format_bytes(report.peak_memory_bytes),
            f"{percent(report.peak_memory_bytes, budget)} of {format_bytes(budget)}" if budget else "",
        ),
    ]
    return join(
        [
            element("h1", plain(view.name, LONGEST_NAME)),
            element("p", about, class_="state"),
            error,
            figures(shown),
        ]
    )


def _kept_remark(view: RunView) -> str:
    report = view.report
    if view.live and not report.kept and len(view.log.get("stages") or {}) < len(view.log.get("plan") or ()):
        return "written by the last stage"
    created = f", {number(report.created)} created" if report.created else ""
    return f"{percent(report.kept, report.read + report.created)}{created}"


def _time_figure(view: RunView) -> tuple[Child, Child, Child]:
    if view.live:
        left = view.seconds_left
        return "Elapsed", duration(view.elapsed_s), f"about {duration(left)} left" if left is not None else ""
    rate = view.report.new_bytes / view.report.seconds if view.report.seconds else 0
    return "Time", duration(view.elapsed_s), f"{format_bytes(rate)}/s" if rate else ""


def budget_of(view: RunView) -> int:
    memory = view.manifest.get("memory")
    found = view.log.get("budget_bytes") or (memory.get("total_bytes") if isinstance(memory, dict) else 0)
    return int(found or 0)


# ------------------------------------------------------------------------------------------------------------- progress


def progress(view: RunView) -> Html | None:
    """How far a running run is: overall, and by stage."""
    if not view.live:
        return None
    share = view.progress
    stages = view.log.get("stages") or {}
    plan = view.log.get("plan") or []
    rows: list[Sequence[Child]] = []
    for place, name in enumerate(plan):
        stage = stages.get(str(place))
        if stage is None:
            rows.append((element("span", plain(name, LONGEST_NAME), class_="quiet"), "", "", "", "waiting"))
            continue
        done = min(1.0, stage["done_bytes"] / stage["num_bytes"]) if stage["num_bytes"] else 1.0
        account = stage["account"]
        rows.append(
            (
                [plain(name, LONGEST_NAME), charts.share_bar([(done, "kept")], 1.0, height=6)],
                number(account["read"] + stage["rows_in_progress"]),
                number(account["kept"]),
                str(stage["workers"] or ""),
                f"{stage['committed']:,} of {stage['partitions']:,}",
            )
        )
    label = "Progress of the run"
    bar = None
    if share is not None:
        bar = element(
            "div",
            charts.share_bar([(share, "kept")], 1.0, height=14),
            role="progressbar",
            aria_label=label,
            aria_valuemin=0,
            aria_valuemax=100,
            aria_valuenow=round(100 * share),
        )
    left = view.seconds_left
    words = f"{share:.0%} of the work is done" if share is not None else "The run is starting"
    return section(
        "progress",
        "Progress",
        element("div", bar, class_="overall") if bar else None,
        table(("stage", "rows read", "rows kept", "workers", "partitions"), rows, right=(1, 2, 3, 4), caption=label),
        lead=words + (f", about {duration(left)} left." if left is not None else "."),
    )


# --------------------------------------------------------------------------------------------------------------- funnel


def funnel_steps(view: RunView) -> list[dict[str, Any]]:
    """The steps that rows pass, without readers of intermediate rows, and with each Gather once."""
    ops = [op for op in view.report.operators if op["kind"] not in ("source", "sink")]
    later: set[str] = set()
    steps = []
    for op in reversed(ops):
        if op["kind"] == "gather":
            if op["name"] in later and not op["dropped"]:
                later.discard(op["name"])
                continue
            later.add(op["name"])
        steps.append(op)
    return steps[::-1]


def funnel(view: RunView) -> Html:
    """From rows read to rows kept, step by step."""
    report = view.report
    if not report.read:
        body: Child = element("p", _nothing_read(view), class_="empty")
        return section("funnel", "From read to kept", body)
    whole = max(report.read + report.created, 1)
    bad = sum(op["failed"] for op in report.operators if op["kind"] == "source")
    parts = [(report.read - bad, "kept"), (bad, "failed")]
    items = [_funnel_line("Rows read", "", report.read, parts, whole, f"\N{MINUS SIGN}{bad:,} failed" if bad else "")]
    for op in funnel_steps(view):
        lost = sum(op["dropped"].values())
        passed = op["rows_in"] - lost - op["failed"]
        parts = [(passed, "kept"), (lost, "lost"), (op["failed"], "failed")]
        note = [f"\N{MINUS SIGN}{lost:,} dropped"] if lost else []
        note += [f"\N{MINUS SIGN}{op['failed']:,} failed"] if op["failed"] else []
        note += [f"+{op['created']:,} created"] if op["created"] else []
        items.append(
            _funnel_line(
                op["name"],
                op["kind"],
                op["rows_out"],
                parts,
                whole,
                ", ".join(note) or ("all pass" if op["rows_in"] else ""),
            )
        )
    items.append(
        _funnel_line("Rows kept", "", report.kept, [(report.kept, "kept")], whole, percent(report.kept, whole))
    )
    lead = f"{number(report.read)} rows were read, {number(report.kept)} of them are kept"
    lead = f"{number(report.read)} rows have been read so far" if view.live else lead
    lead += f"; {plural(bad, 'row')} could not be read." if bad else "."
    return section("funnel", "From read to kept", element("ol", items, class_="funnel"), _key(), lead=lead)


def _nothing_read(view: RunView) -> str:
    if view.state == "empty":
        return "There is no run in this folder yet. This page shows it as soon as it starts."
    return "No rows have been read yet." if view.live else "The input has no rows, so there is nothing to show."


def _funnel_line(name: str, kind: str, count: int, parts: Sequence[tuple[float, str]], whole: float, note: str) -> Html:
    return element(
        "li",
        element("span", plain(name, 80), element("small", kind) if kind else None, class_="name"),
        charts.share_bar(parts, whole, height=22),
        element("span", number(count), element("small", note), class_="count"),
    )


def _key() -> Html:
    names = (("accent", "passes"), ("", "dropped by the step"), ("bad", "failed"))
    return element("ul", [element("li", name, class_=kind or None) for kind, name in names], class_="legend")


def reasons(view: RunView, shown: Iterable[str] = ()) -> Html:
    """Why rows were dropped, most frequent first; each reason leads to its rows."""
    report, known = view.report, set(shown)
    lost = sum(report.dropped.values())
    if not lost:
        body: Child = element("p", "No row was dropped." if report.read else "Nothing to show yet.", class_="empty")
        return section("reasons", "Why rows were dropped", body)
    of_step = {reason: op["name"] for op in report.operators for reason in op["dropped"]}
    ordered = sorted(report.dropped.items(), key=lambda item: (-item[1], item[0]))
    most = ordered[0][1]
    rows = [
        (
            [
                element("a", plain(reason, LONGEST_NAME), href=f"#{anchor(reason)}", data_reason=anchor(reason))
                if reason in known
                else plain(reason, LONGEST_NAME),
                element("small", of_step.get(reason, "")),
            ],
            charts.share_bar([(count, "lost")], most, height=12),
            number(count),
            percent(count, report.read),
        )
        for reason, count in ordered[:MOST_REASONS]
    ]
    more = len(ordered) - MOST_REASONS
    return section(
        "reasons",
        "Why rows were dropped",
        table(("reason", "", "rows", "of rows read"), rows, right=(2, 3), caption="Dropped rows by reason"),
        element("p", f"and {plural(more, 'other reason')}", class_="quiet") if more > 0 else None,
        lead=f"{number(lost)} rows were dropped. A row counts for the first rule that it breaks.",
    )


# ----------------------------------------------------------------------------------------------------------- thresholds


def thresholds(view: RunView, scores: Scores | None, problem: str = "") -> Html:
    """A histogram of each score with its thresholds, and a slider for each."""
    title = "Thresholds"
    if scores is None:
        words = problem or (
            "The run kept no scores. Run it with --scores to see how rows are distributed around each threshold, and what "
            "another threshold would keep."
        )
        return section("thresholds", title, element("p", plain(words, 1000), class_="empty"))
    then = " Later steps, such as deduplication, may drop more of them." if scores.then_gathered else ""
    drops = view.report.dropped
    ordered = sorted(
        scores.histograms,
        key=lambda each: -sum(count for reason, count in drops.items() if reason.startswith(f"{each.score} ")),
    )
    blocks = [_histogram(view, scores, each, place) for place, each in enumerate(ordered)]
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
        "they would keep if only this one changed. Grey columns are all rows, coloured ones those that are kept.",
    )


def _histogram(view: RunView, scores: Scores, found: ScoreHistogram, place: int) -> Html:
    group = max(1, len(found.every) // 56)
    every, kept = _grouped(found.every, group), _grouped(found.kept, group)
    ticks = _ticks(found)
    lines = [(place_of(found, bound.value), f"{bound.value:g}", "limit") for bound in found.bounds]
    steep = found.every.max() > 40 * max(1.0, float(np.median(every[every > 0])) if every.any() else 1.0)
    chart = charts.columns(
        every.tolist(),
        second=kept.tolist(),
        ticks=ticks,
        lines=lines,
        log=bool(steep),
        label=f"Histogram of {found.score} over {int(found.every.sum()):,} rows, "
        + (", ".join(f"{bound.side} {bound.value:g}" for bound in found.bounds) or "no threshold"),
    )
    notes = [found.step, "logarithmic height" if steep else "", f"{found.missing:,} without" if found.missing else ""]
    return element(
        "article",
        element("header", element("h3", found.score), element("span", ", ".join(filter(None, notes)))),
        chart,
        [_slider(view, scores, found, bound, f"{place}-{number}") for number, bound in enumerate(found.bounds)],
        class_="score block",
    )


def _slider(view: RunView, scores: Scores, found: ScoreHistogram, bound: Bound, name: str) -> Html | None:
    if bound.parameter is None:
        return None
    index = int(np.searchsorted(found.edges, bound.value))
    command = ["tamis", "rethreshold", view.output, "--set"]
    data = payload(found, bound) | {
        "command": shlex.join(command),
        "set": f"{bound.step}.{bound.parameter}",
        "rows": scores.rows,
        "kept": scores.kept,
    }
    return element(
        "div",
        element("label", f"{bound.parameter} = ", element("b", f"{bound.value:g}"), for_=f"slider-{name}"),
        element(
            "input",
            type="range",
            id=f"slider-{name}",
            min=0,
            max=len(found.edges) - 1,
            value=index,
            data_slider=json.dumps(data, separators=(",", ":")),
            aria_describedby=f"kept-{name}",
            aria_valuetext=f"{bound.value:g}",
        ),
        element("output", f"{number(scores.kept)} of {number(scores.rows)} rows, as now", id=f"kept-{name}"),
        element(
            "div",
            element("code", f"{shlex.join(command)} {data['set']}={bound.value:g}"),
            element("button", "Copy", type="button", data_copy=True),
            class_="command",
            hidden=True,
        ),
        class_="slider",
    )


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


# ----------------------------------------------------------------------------------------------------------------- rows


def rows(view: RunView, samples: Sequence[Sample], notes: Sequence[str] = ()) -> Html:
    """Samples of kept, dropped, borderline and failed rows, chosen by fate or reason."""
    title = "Rows"
    said = [element("p", plain(note, 1000), class_="quiet") for note in notes]
    dropped = sum(view.report.dropped.values())
    if dropped and not any(sample.fate == "dropped" for sample in samples):
        said.append(
            element("p", "The run did not keep dropped rows; run it with --rejects to see them.", class_="quiet")
        )
    if not samples:
        return section("rows", title, said or element("p", "No rows to show.", class_="empty"))
    counts: dict[str, int] = {}
    for sample in samples:
        counts[sample.fate] = counts.get(sample.fate, 0) + 1
    choices = [
        element(
            "button", fate.capitalize(), element("small", count), type="button", data_fate=fate, aria_pressed="false"
        )
        for fate, count in counts.items()
    ]
    everything = element(
        "button", "All", element("small", len(samples)), type="button", data_fate="", aria_pressed="true"
    )
    return section(
        "rows",
        title,
        said,
        element("div", everything, choices, class_="choices", role="group", aria_label="Which rows are shown"),
        element("p", "", class_="quiet small", id="rows-shown", role="status"),
        element("div", [_row(sample) for sample in samples], class_="rows"),
        lead="A sample from all parts of the data. Marked passages are what the rule looked at, where it can say so.",
    )


def _row(sample: Sample) -> Html:
    css = {"kept": "row kept", "failed": "row failed"}.get(sample.fate, "row dropped")
    what = {"kept": "kept", "failed": "failed", "dropped": "dropped", "borderline": "borderline, dropped"}[sample.fate]
    cut = sample.length - len(sample.text)
    first = [each for each in sample.details if each[0] and sample.reason.startswith(each[0] + " ")]
    details = [*first, *(each for each in sample.details if each not in first and each[1] not in ("0", ""))][:8]
    return element(
        "article",
        element(
            "header",
            element("b", what),
            element("span", plain(sample.reason, 400)) if sample.reason else None,
            element("span", plain(sample.step, 80)) if sample.step else None,
            element("span", plain(sample.title, 160), class_="mono"),
        ),
        element("div", [_player(*each) for each in sample.media], class_="media") if sample.media else None,
        element("pre", marked(sample.text, sample.passages)) if sample.text else None,
        element("p", f"{cut:,} more characters are not shown", class_="quiet small") if cut > 0 else None,
        element("footer", ", ".join(f"{plain(key, 80)} {plain(value, 200)}" for key, value in details))
        if details
        else None,
        class_=css,
        data_fate=sample.fate,
        data_reason=anchor(sample.reason) if sample.fate in ("dropped", "borderline") else None,
    )


def _player(kind: str, content: str) -> Html:
    if kind == "image":
        return element("img", src=Html(content), alt="thumbnail", loading="lazy")
    if kind in ("audio", "video"):
        return element(kind, src=Html(content), controls=True, preload="none", aria_label=f"{kind} clip")
    return element("span", plain(content, 300), class_="quiet small")


# ------------------------------------------------------------------------------------------------- languages and lengths


def makeup(view: RunView, scores: Scores | None, before: Sequence[float], kept: Sequence[float]) -> Html | None:
    """Languages and lengths, before and after. `before` and `kept` are counts by `LENGTHS`."""
    blocks = []
    for found in scores.texts if scores is not None else ():
        if len(found.values) > 1 or found.score == "language":
            most = found.values[0][1]
            rows = [
                (
                    plain(value, 80),
                    charts.share_bar([(after, "kept"), (count - after, "lost")], most),
                    number(count),
                    number(after),
                )
                for value, count, after in found.values[:12]
            ]
            blocks.append(
                element(
                    "article",
                    element("header", element("h3", found.score), element("span", found.step)),
                    table(("value", "", "before", "kept"), rows, right=(2, 3), caption=f"Rows by {found.score}"),
                    class_="score block",
                )
            )
    if any(kept) or any(before):
        blocks.append(
            element(
                "article",
                element("header", element("h3", "Length of the text"), element("span", "characters, sampled")),
                _length_chart(before, kept),
                element(
                    "ul",
                    element("li", "all rows" if before else "rows"),
                    element("li", "kept rows", class_="accent"),
                    class_="legend",
                ),
                class_="score block",
            )
        )
    if not blocks:
        return None
    lead = "What the data consists of, before and after."
    return section("makeup", "Languages and lengths", element("div", blocks, class_="columns"), lead=lead)


def _length_chart(before: Sequence[float], kept: Sequence[float]) -> Html:
    """Lengths up to the longest that occurs."""
    every = list(before) or list(kept)
    last = max(place for place, count in enumerate(every) if count) + 2
    ticks = [(place / last, charts.short_number(LENGTHS[place])) for place in range(1, min(last, len(LENGTHS)), 6)]
    label = "Histogram of text lengths: all rows, and rows that are kept"
    return charts.columns(every[:last], second=list(kept[:last]), ticks=ticks, label=label)


LENGTHS = [0, *(round(10 ** (step / 6)) for step in range(6, 37))]
"""Lower bounds of classes of lengths, in characters."""


def length_counts(lengths: Sequence[int], weight: float = 1.0) -> np.ndarray:
    places = np.searchsorted(LENGTHS, np.asarray(lengths, np.int64), "right") - 1
    return np.bincount(places, minlength=len(LENGTHS)) * weight if len(lengths) else np.zeros(len(LENGTHS))


# -------------------------------------------------------------------------------------------------------- time and memory


def resources(view: RunView) -> Html | None:
    """Where time and memory went: stages over time, memory against the budget, and the time of each step."""
    report, log = view.report, view.log
    if not report.operators and not log:
        return None
    samples = log.get("samples") or []
    until = max([view.elapsed_s, *(each[0] for each in samples[-1:])])
    blocks: list[Child] = []
    bottleneck = bottleneck_text(view)
    plan, stages = log.get("plan") or [], log.get("stages") or {}
    lanes = [
        (
            _short_stage(name),
            [
                (
                    stages[str(place)]["started_s"],
                    stages[str(place)]["last_s"] if not view.live or str(place) != str(log.get("current")) else until,
                    "kept",
                )
            ]
            + [(call["from_s"], call["to_s"], "lost") for call in log.get("calls") or () if call["stage"] == place],
        )
        for place, name in enumerate(plan)
        if str(place) in stages
    ]
    ticks = [(at / until, duration(at) if at else "0") for at in charts.nice_ticks(0, until, 5)] if until else []
    if lanes:
        blocks.append(
            element(
                "div",
                element("h3", "Stages"),
                charts.lanes(lanes, until=until, label=_lanes_label(lanes)),
                class_="block",
            )
        )
    if len(samples) > 1:
        blocks.append(_memory_chart(view, samples, until, ticks))
        if (speed := _speed_chart(samples, until, ticks)) is not None:
            blocks.append(speed)
    table_rows = [
        (
            [plain(op["name"], 80), element("small", op["kind"])],
            charts.share_bar([(op["share"], "kept")], 1.0),
            f"{100 * op['share']:.1f} %",
            duration(op["seconds"]),
            number(op["rows_in"]),
            "" if not op["mb_per_s"] else f"{op['mb_per_s']:,.1f}",
        )
        for op in report.operators
    ]
    return section(
        "resources",
        "Time and memory",
        element("div", blocks, class_="rows"),
        element("h3", "Steps", class_="gap"),
        table(
            ("step", "", "share", "worker time", "rows in", "MB/s"),
            table_rows,
            right=(2, 3, 4, 5),
            caption="Time of the workers by step",
        ),
        _streams(view),
        _remarks(view),
        lead=bottleneck,
    )


def _lanes_label(lanes: Sequence[tuple[str, Sequence[tuple[float, float, str]]]]) -> str:
    return "; ".join(f"{name}: from {duration(spans[0][0])} to {duration(spans[0][1])}" for name, spans in lanes)


def bottleneck_text(view: RunView) -> str:
    """Which step limits the speed of the run, in a sentence."""
    streams = [stream for stream in view.report.streams if stream.get("bottleneck")]
    if streams:
        return f"The slowest stage is {plain(streams[-1]['bottleneck'], 200)}: all others wait for it."
    busiest = max(view.report.operators, key=lambda op: op["seconds"], default=None)
    if busiest is None or not busiest["seconds"]:
        return "No step has used time yet."
    return f"The bottleneck is {busiest['name']}: it takes {100 * busiest['share']:.0f} % of the time of all workers."


def _short_stage(name: str) -> str:
    steps = [plain(step, 40) for step in name.split(" > ")]
    return " > ".join(steps if len(steps) <= 5 else [*steps[:3], "...", steps[-1]])


def _memory_chart(view: RunView, samples: Sequence[Sequence[float]], until: float, ticks: Any) -> Html:
    budget = budget_of(view)
    peak = max(max(each[1] for each in samples), view.report.peak_memory_bytes)
    most = 1.08 * (budget if budget and peak > 0.3 * budget else max(peak, 1) * 1.15)
    levels: list[tuple[float, str]] = [(budget, f"budget {format_bytes(budget)}")] if budget and budget <= most else []
    levels.append((peak, f"peak {format_bytes(peak)}"))
    bands = [
        (stage["started_s"], stage["last_s"], f"stage {int(place) + 1}")
        for place, stage in sorted((view.log.get("stages") or {}).items())
    ]
    chart = charts.series(
        [([(each[0], each[1]) for each in samples], "first")],
        label=f"Memory of all processes over time: peak {format_bytes(peak)}, budget {format_bytes(budget)}",
        most=most,
        until=until,
        ticks=ticks,
        levels=levels,
        bands=bands if len(bands) > 1 else (),
    )
    note = "" if len(levels) == 2 else f", far below the budget of {format_bytes(budget)}" if budget else ""
    return element("div", element("h3", f"Memory of all processes{note}"), chart, class_="block chart-block")


def _speed_chart(samples: Sequence[Sequence[float]], until: float, ticks: Any) -> Html | None:
    """Rows per second over time, from the differences of counts within a stage."""
    points: list[tuple[float, float]] = []
    step = max(1, len(samples) // 120)
    chosen = samples[::step]
    for before, after in itertools.pairwise(chosen):
        seconds = after[0] - before[0]
        if seconds > 0:
            rows = after[3] - before[3] if after[2] == before[2] else after[3]
            points.append((after[0], max(0.0, rows / seconds)))
    most = max((y for _, y in points), default=0.0)
    if not most:
        return None
    chart = charts.series(
        [(points, "first")],
        label=f"Rows per second over time: at most {most:,.0f}",
        most=1.15 * most,
        until=until,
        ticks=ticks,
        levels=[(most, f"{charts.short_number(most)} rows/s")],
    )
    return element("div", element("h3", "Rows per second"), chart, class_="block chart-block")


def _streams(view: RunView) -> Html | None:
    parts = []
    for stream in view.report.streams:
        lines = [
            (
                plain(stage["name"], LONGEST_NAME),
                *(duration(stage[key]) for key in _STREAM_TIMES),
                str(stage["most_workers"]),
            )
            for stage in stream.get("stages", ())
        ]
        header = ("stage", "busy", "waiting for input", "waiting for output", "opening", "workers")
        parts.append(table(header, lines, right=(1, 2, 3, 4, 5), caption=f"Stages of group {stream.get('group')}"))
    return element("div", element("h3", "Stages that ran at the same time", class_="gap"), parts) if parts else None


_STREAM_TIMES = ("busy_s", "waiting_for_input_s", "waiting_for_output_s", "opening_s")


def _remarks(view: RunView) -> Html | None:
    remarks = view.log.get("remarks") or []
    lines = [(duration(each["time_s"]), each["kind"], plain(each["text"], 500)) for each in remarks[-MOST_EVENTS:]]
    if not lines:
        lines = [(event["time"], event["level"], plain(event["text"], 500)) for event in view.report.memory_events]
    if not lines:
        return None
    return element(
        "details",
        element("summary", f"Alerts and remarks ({len(lines)})"),
        table(("time", "kind", "what"), lines, caption="Alerts and remarks"),
    )


# ------------------------------------------------------------------------------------------------- failures and settings


def failures(view: RunView) -> Html:
    report = view.report
    if not report.failed and not report.damaged_files and not view.error:
        return section("failures", "Failures", element("p", "No row failed.", class_="empty"))
    rows = [
        (plain(error_text(error), 600), number(error["rows"]), percent(error["rows"], report.read))
        for error in report.errors[:MOST_ERRORS]
    ]
    files = list(report.damaged_files.items())
    return section(
        "failures",
        "Failures",
        element("p", plain(view.error, 1000), class_="fail") if view.error else None,
        table(("error", "rows", "of rows read"), rows, right=(1, 2), caption="Failed rows by error") if rows else None,
        element("h3", plural(len(files), "damaged file"), class_="gap") if files else None,
        table(
            ("file", "error"),
            [(plain(path, LONGEST_NAME), plain(why, 400)) for path, why in files[:MOST_FILES]],
            caption="Damaged files",
        )
        if files
        else None,
        lead=f"{plural(report.failed, 'row')} failed. Failed rows are never dropped silently: each is stored with its error.",
    )


def settings(view: RunView) -> Html | None:
    """The recipe, the versions, the machine and the reasons for choices: what is needed to repeat the run."""
    manifest = view.manifest
    if not manifest:
        return None
    steps = [
        (str(place), plain(name, 80), plain(json.dumps(given, ensure_ascii=False, default=str), 2000) if given else "")
        for place, (name, given) in enumerate(view.steps, 1)
    ]
    facts = [
        (plain(f"{part} {key}", 80), plain(value, 300))
        for part in ("versions", "hardware", "partitioning", "memory")
        for key, value in _items(manifest.get(part))
    ]
    facts += [("command", plain(shlex.join(map(str, manifest.get("command") or [])), 2000))]
    facts += [("directory", plain(manifest.get("directory"), 500))]
    reasons = [(plain(key, 80), plain(value, 500)) for key, value in _items(manifest.get("reasons"))]
    written = json.dumps(manifest, indent=2, ensure_ascii=False, default=str)
    return section(
        "settings",
        "Settings",
        table(("no.", "step", "parameters"), steps, caption="The recipe"),
        element(
            "details",
            element("summary", "Versions, hardware and memory"),
            table(("what", "value"), facts, caption="Facts"),
        ),
        element(
            "details", element("summary", "Reasons for choices"), table(("what", "why"), reasons, caption="Reasons")
        )
        if reasons
        else None,
        element(
            "details",
            element("summary", "The whole manifest"),
            element("pre", text(written, 60_000), class_="mono block"),
        ),
        [element("p", plain(note, 500), class_="quiet small") for note in view.report.notes[:20]],
        lead="Everything that decided about rows.",
    )


def _items(value: object) -> list[tuple[str, object]]:
    if not isinstance(value, Mapping):
        return []
    return [(str(key), each if not isinstance(each, (dict, list)) else json.dumps(each)) for key, each in value.items()]


def navigation(names: Sequence[tuple[str, str]]) -> Html:
    return element("ul", [element("li", element("a", title, href=f"#{name}")) for name, title in names])


def short_path(path: str) -> str:
    return PurePosixPath(path).name
