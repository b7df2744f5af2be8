"""Where time and memory went, on the page of a run: stages over time, memory against the budget and by role, time by step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tamis.dashboard import charts
from tamis.dashboard.markup import Child, Html, duration, element, number, plain, section, table
from tamis.dashboard.runs import RunView
from tamis.dashboard.sections import LONGEST_NAME, MOST_EVENTS, budget_of
from tamis.dedup.explain import store_file
from tamis.parameters import format_bytes
from tamis.store import INTERNAL, TABLE

LONGEST_STAGE = 48
MOST_RATES = 24
"""Points of the chart of rows per second."""
LEAST_WINDOW_S = 1.0
"""Two samples: rows are counted twice a second."""
_NUMBERED = re.compile(r" \d+$")
_ROLES = frozenset({"driver", "server", "worker"})


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
    in_time = duration if until >= 1 else "{:g} s".format
    ticks = [(at / until, in_time(at) if at else "0") for at in charts.nice_ticks(0, until, 5)] if until else []
    if lanes:
        blocks.append(
            element(
                "div",
                element("h3", "Stages"),
                charts.lanes(lanes, until=until, label=_lanes_label(lanes)),
                _lanes_legend() if log.get("calls") else None,
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
        [
            element("h3", "Steps", class_="gap"),
            table(
                ("step", "", "share", "time", "rows in", "MB/s"),
                table_rows,
                right=(2, 3, 4, 5),
                caption="Time of the workers by step",
            ),
        ]
        if table_rows
        else None,
        _streams(view),
        _remarks(view),
        lead=bottleneck,
    )


def _lanes_label(lanes: Sequence[tuple[str, Sequence[tuple[float, float, str]]]]) -> str:
    return "; ".join(f"{name}: from {duration(spans[0][0])} to {duration(spans[0][1])}" for name, spans in lanes)


def _lanes_legend() -> Html:
    names = (("processing rows", "accent"), ("deciding about all rows", None))
    return element("ul", [element("li", name, class_=kind) for name, kind in names], class_="legend")


def bottleneck_text(view: RunView) -> str:
    """Which step limits the speed of the run, in a sentence."""
    streams = [stream for stream in view.report.streams if stream.get("bottleneck")]
    if streams:
        return f"The slowest stage is {plain(streams[-1]['bottleneck'], 200)}: all others wait for it."
    busiest = max(view.report.operators, key=lambda op: op["seconds"], default=None)
    if busiest is None or not busiest["seconds"]:
        return "No step has used time yet."
    if not view.live and not view.report.read:
        return "There were no rows to process."
    steps_s = sum(op["seconds"] for op in view.report.operators)
    if not view.live and steps_s < view.elapsed_s / 2:
        deciding_s = sum(call["to_s"] - call["from_s"] for call in view.log.get("calls") or ())
        rest = "decisions about all rows" if deciding_s > view.elapsed_s / 2 else "start-up and compiling kernels"
        return (
            f"Steps took {duration(steps_s)} of the time of workers in a run of {duration(view.elapsed_s)}, "
            f"most of which went to {rest}. The slowest step is {busiest['name']}."
        )
    return f"The bottleneck is {busiest['name']}: it takes {100 * busiest['share']:.0f} % of the time of all workers."


def _short_stage(name: str) -> str:
    """The first steps and the last one, short enough for a phone."""
    steps = [plain(step, 40) for step in name.split(" > ")]
    first = len(steps) - 1
    while first > 1 and len(" > ".join(steps)) > LONGEST_STAGE:
        first -= 1
        steps = [*steps[:first], "...", steps[-1]]
    return " > ".join(steps)


def _memory_chart(view: RunView, samples: Sequence[Sequence[float]], until: float, ticks: Any) -> Html:
    budget = budget_of(view)
    peak = view.report.peak_memory_bytes or max(each[1] for each in samples)
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
    return element(
        "div", element("h3", f"Memory of all processes{note}"), chart, _memory_by_role(view), class_="block chart-block"
    )


def _memory_by_role(view: RunView) -> Html | None:
    """How much the processes of each role held together at most, from the snapshots that a run stores when it ends.

    As in all figures of a run, what the calling process held before does not count. Between exact readings, a snapshot may be
    slightly too high, but no role held more than all of them did.
    """
    if view.live:
        return None
    held: dict[str, dict[tuple[str, float], int]] = {}
    processes: dict[str, set[tuple[str, int]]] = {}
    for name in _snapshot_files(view):
        try:
            with store_file(view.store, name) as opened:
                found = pq.read_table(opened, columns=["elapsed_s", "pid", "role", "held_bytes", "before_bytes"])
        except (pa.ArrowException, OSError, ValueError):
            continue
        for row in found.to_pylist():
            role = _NUMBERED.sub("", row["role"])
            before = row.get("before_bytes", 0) if role == "driver" else 0
            moments = held.setdefault(role, {})
            moment = name, row["elapsed_s"]
            moments[moment] = moments.get(moment, 0) + max(0, row["held_bytes"] - before)
            processes.setdefault(role, set()).add((name, row["pid"]))
    if not held:
        return None
    peaks = {role: min(max(moments.values()), view.report.peak_memory_bytes) for role, moments in held.items()}
    lines = [
        (plain(role if role in _ROLES else f"other ({role})", 60), number(len(processes[role])), format_bytes(peak))
        for role, peak in sorted(peaks.items(), key=lambda item: (-item[1], item[0]))
    ]
    return table(
        ("processes", "number", "peak together"), lines, right=(1, 2), caption="Memory by role of the processes"
    )


def _snapshot_files(view: RunView) -> list[str]:
    """The files of memory snapshots of a run, or of its shards."""
    alone = f"{INTERNAL}/memory{TABLE}"
    found = [alone] if view.store.size(alone) is not None else []
    return found + [
        f"{INTERNAL}/memory/{name}" for name in view.store.names(f"{INTERNAL}/memory") if name.endswith(TABLE)
    ]


def rates(samples: Sequence[Sequence[float]], window_s: float) -> list[tuple[float, float]]:
    """(time, rows per second), each since the point before.

    Workers report rows by the batch, so a point needs a count that has changed, and `window_s` since the last one; otherwise
    the rate would jump between zero and a multiple of the true one. After a pause longer than that, it is zero.

    >>> rates([(0, 0, 0, 0), (1, 0, 0, 0), (2, 0, 0, 100), (3, 0, 0, 100), (4, 0, 0, 200), (9, 0, 0, 200)], 1.5)
    [(2, 50.0), (4, 50.0), (9, 0.0)]
    """
    points: list[tuple[float, float]] = []
    if not samples:
        return points
    before = samples[0]
    for after in samples[1:]:
        seconds, same = after[0] - before[0], after[2] == before[2]
        rows = after[3] - before[3] if same else after[3]
        if seconds <= 0 or (same and (not rows or seconds < window_s)):
            continue
        if not same and points and seconds > 2 * window_s:  # a step decided about all rows
            points.append((before[0] + window_s, 0.0))
        points.append((after[0], max(0.0, rows / seconds)))
        before = after
    last = samples[-1]
    if last[0] - before[0] > 2 * window_s:
        points.append((last[0], max(0.0, (last[3] - before[3]) / (last[0] - before[0]))))
    return points


def _speed_chart(samples: Sequence[Sequence[float]], until: float, ticks: Any) -> Html | None:
    """Rows per second over time."""
    points = rates(samples, max(LEAST_WINDOW_S, until / MOST_RATES))
    most = max((y for _, y in points), default=0.0)
    if not most:
        return None
    points = [(samples[0][0], points[0][1]), *points]  # the first rate is that of the time before
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
