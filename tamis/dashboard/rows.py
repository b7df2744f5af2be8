"""Samples of rows on the page of a run, with the reasons for their fate."""

from __future__ import annotations

from collections.abc import Sequence

from tamis.dashboard.markup import (
    Html,
    element,
    marked,
    plain,
    section,
)
from tamis.dashboard.runs import RunView
from tamis.dashboard.samples import Sample
from tamis.dashboard.sections import anchor

FATES = ("kept", "dropped", "borderline", "failed")


def rows(view: RunView, samples: Sequence[Sample], notes: Sequence[str] = ()) -> Html:
    """Samples of kept, dropped, borderline and failed rows, chosen by fate or reason."""
    title = "Rows"
    said = [element("p", plain(note, 1000), class_="quiet") for note in notes]
    dropped = sum(view.report.dropped.values())
    if dropped and not view.manifest.get("rejects") and not any("dropped" in _fates(each) for each in samples):
        said.append(
            element("p", "The run did not keep dropped rows; run it with --rejects to see them.", class_="quiet")
        )
    if not samples:
        words = "No rows to show yet." if view.live else "No rows to show."
        return section("rows", title, said or element("p", words, class_="empty"))
    counts: dict[str, int] = {}
    for sample in samples:
        for fate in _fates(sample):
            counts[fate] = counts.get(fate, 0) + 1
    choices = [
        element(
            "button", fate.capitalize(), element("small", count), type="button", data_fate=fate, aria_pressed="false"
        )
        for fate, count in sorted(counts.items(), key=lambda item: FATES.index(item[0]))
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


def _fates(sample: Sample) -> list[str]:
    """The choices that show a row: a dropped row near a threshold is one of the dropped rows too.

    Kept rows near a threshold are chosen apart from the other kept rows, and some may be among both.
    """
    return ["borderline", "dropped"] if sample.fate == "borderline" and sample.outcome == "dropped" else [sample.fate]


def _row(sample: Sample) -> Html:
    fate = sample.outcome if sample.fate == "borderline" else sample.fate
    css = {"dropped": "row dropped", "failed": "row failed"}.get(fate, "row kept")
    what = f"borderline, {fate}" if sample.fate == "borderline" else fate
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
        media_of(sample),
        element("pre", marked(sample.text, sample.passages)) if sample.text else None,
        element("p", f"{cut:,} more characters are not shown", class_="quiet small") if cut > 0 else None,
        element("footer", ", ".join(f"{plain(key, 80)} {plain(value, 200)}" for key, value in details))
        if details
        else None,
        class_=css,
        data_fate=" ".join(_fates(sample)),
        data_reason=anchor(sample.reason) if fate == "dropped" else None,
    )


def media_of(sample: Sample) -> Html | None:
    """The thumbnails and players of a row."""
    return element("div", [_player(*each) for each in sample.media], class_="media") if sample.media else None


def _player(kind: str, content: str) -> Html:
    if kind == "image":
        return element("img", src=Html(content), alt="thumbnail", decoding="async")
    if kind in ("audio", "video"):
        return element(kind, src=Html(content), controls=True, preload="none", aria_label=f"{kind} clip")
    return element("span", plain(content, 300), class_="quiet small")
