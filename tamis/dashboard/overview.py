"""Several runs side by side: how far each is, and where they differ."""

from __future__ import annotations

from collections.abc import Sequence

from tamis.dashboard import charts
from tamis.dashboard.markup import Child, Html, duration, element, number, percent, plain, section, table
from tamis.dashboard.runs import RunView
from tamis.dashboard.sections import UNKNOWN, chip
from tamis.parameters import format_bytes

MOST_REASONS = 40


def runs(views: Sequence[RunView]) -> Html:
    """A card for each run."""
    return element("div", [_card(view, place) for place, view in enumerate(views, 1)], class_="runs", id="runs")


def _card(view: RunView, place: int) -> Html:
    report = view.report
    title = element("h2", element("a", plain(view.name, 200), href=f"/runs/{place}"))
    if view.state == "empty":
        words = "There is no run in this folder yet. The page shows it as soon as it starts."
        return element("article", chip(view), title, element("p", words, class_="quiet"))
    whole, dropped = max(1, report.read + report.created), sum(report.dropped.values())
    facts: list[tuple[str, str]] = [
        ("read", number(report.read)),
        ("kept", f"{number(report.kept)} ({percent(report.kept, whole)})" if view.knows_kept else UNKNOWN),
        ("dropped", number(dropped)),
        ("failed", number(report.failed)),
        ("time", duration(view.elapsed_s)),
        ("peak memory", format_bytes(report.peak_memory_bytes)),
    ]
    if view.live and view.progress is not None:
        left = view.seconds_left
        facts.insert(
            0, ("done", f"{100 * view.progress:.0f} %" + (f", about {duration(left)} left" if left is not None else ""))
        )
        bar = charts.share_bar([(view.progress, "kept")], 1.0, height=12)
    else:
        bar = charts.share_bar([(report.kept, "kept"), (dropped, "lost"), (report.failed, "failed")], whole, height=12)
    return element(
        "article",
        chip(view),
        title,
        bar,
        element("dl", [[element("dt", name), element("dd", value)] for name, value in facts]),
        element("p", plain(view.error, 300), class_="fail small gap") if view.error else None,
    )


def comparison(views: Sequence[RunView]) -> Html:
    """What each run dropped for which reason, one column for each run."""
    views = [view for view in views if view.state != "empty"]
    totals: dict[str, int] = {}
    for view in views:
        for reason, count in view.report.dropped.items():
            totals[reason] = totals.get(reason, 0) + count
    ordered = sorted(totals, key=lambda reason: (-totals[reason], reason))[:MOST_REASONS]
    rows: list[Sequence[Child]] = [
        (plain(reason, 300), *(_share(view, view.report.dropped.get(reason, 0)) for view in views))
        for reason in ordered
    ]
    body: Child = table(
        ("reason", *(plain(view.name, 80) for view in views)),
        rows,
        right=range(1, len(views) + 1),
        caption="Dropped rows by reason and run",
    )
    if not rows:
        body = element("p", "No run has dropped a row.", class_="empty")
    return section(
        "comparison", "Reasons compared", body, lead="Rows dropped by each run, and their share of its rows."
    )


def _share(view: RunView, count: int) -> Child:
    return [number(count), element("small", percent(count, view.report.read))] if count else UNKNOWN
