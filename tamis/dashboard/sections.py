"""The parts of the page of a run that follow from its report and its event log. A part with nothing to say is None."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tamis.dashboard import charts
from tamis.dashboard.markup import (
    Child,
    Html,
    duration,
    element,
    figures,
    join,
    number,
    percent,
    plain,
    section,
    table,
    text,
)
from tamis.dashboard.runs import RunView
from tamis.parameters import format_bytes, plural
from tamis.report import error_text

MOST_REASONS, MOST_ERRORS, MOST_FILES, MOST_EVENTS = 200, 100, 50, 100
LONGEST_NAME = 300
UNKNOWN = "\N{EN DASH}"

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
    steps = len(view.steps)
    about = [
        chip(view),
        element("span", f"started {started}") if started else None,
        element("span", plural(steps, "step")) if steps else None,
        element("span", plain(view.output, LONGEST_NAME), class_="mono"),
    ]
    again = ". Rerun the same command to resume." if view.state == "interrupted" else ""
    error = element("p", plain(view.error, 1000) + again, class_="fail") if view.error else None
    if view.state == "empty":
        return join([element("h1", plain(view.name, LONGEST_NAME)), element("p", about, class_="state")])
    dropped, budget = sum(report.dropped.values()), budget_of(view)
    shown: list[tuple[Child, Child, Child]] = [
        ("Rows read", number(report.read), f"{format_bytes(report.num_bytes)}"),
        ("Kept", number(report.kept) if view.knows_kept else UNKNOWN, _kept_remark(view)),
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
    if not view.knows_kept:
        return "written by the last stage"
    created = f", {number(report.created)} created" if report.created else ""
    if not report.read:
        return ""
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
                [element("span", plain(name, LONGEST_NAME)), charts.share_bar([(done, "kept")], 1.0, height=6)],
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
    words = f"{100 * share:.0f} % of the work is done" if share is not None else "The run is starting"
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
        passed = op["rows_in"] + op["created"] - lost - op["failed"]
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
    lead = f"{plural(report.read, 'row')} {'was' if report.read == 1 else 'were'} read"
    if view.knows_kept:
        items.append(
            _funnel_line("Rows kept", "", report.kept, [(report.kept, "kept")], whole, percent(report.kept, whole))
        )
        if report.created:
            lead += f", {number(report.created)} created, and {number(report.kept)} kept"
        else:
            lead += f", {number(report.kept)} of them {'was' if report.kept == 1 else 'were'} kept"
    if view.live:
        lead = f"{plural(report.read, 'row')} {'has' if report.read == 1 else 'have'} been read so far"
    lead += f"; {plural(bad, 'row')} could not be read." if bad else "."
    if not view.knows_kept:
        lead += " The last stage, which writes the rows that are kept, has not begun."
    return section("funnel", "From read to kept", element("ol", items, class_="funnel"), _key(), lead=lead)


def _nothing_read(view: RunView) -> str:
    if view.state == "empty":
        return "There is no run in this folder yet. This page shows it as soon as it starts."
    if view.state in ("failed", "interrupted", "ended"):
        return "The run ended before any part of the input was processed."
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
        body: Child = element(
            "p", "No row was dropped." if report.read or not view.live else "Nothing to show yet.", class_="empty"
        )
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
        lead=f"{plural(lost, 'row')} {'was' if lost == 1 else 'were'} dropped. A row counts for the first rule that it breaks.",
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
        lead=f"{plural(report.failed, 'row')} failed. Failed rows are never dropped silently: each is stored with its error."
        if report.failed
        else "No row failed.",
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
        [element("p", plain(note, 500), class_="quiet small") for note in view.report.notes[:20] if note != view.error],
        lead="The steps, and everything else that determined the result.",
    )


def _items(value: object) -> list[tuple[str, object]]:
    if not isinstance(value, Mapping):
        return []
    return [(str(key), each if not isinstance(each, (dict, list)) else json.dumps(each)) for key, each in value.items()]


def navigation(names: Sequence[tuple[str, str]]) -> Html:
    return element("ul", [element("li", element("a", title, href=f"#{name}")) for name, title in names])
