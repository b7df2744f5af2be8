"""What the data consists of on the page of a run: languages and lengths, before and after."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tamis.dashboard import charts
from tamis.dashboard.markup import (
    Html,
    element,
    number,
    plain,
    section,
    table,
)
from tamis.dashboard.scores import Scores


def makeup(scores: Scores | None, before: Sequence[float], kept: Sequence[float]) -> Html | None:
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
                    table(
                        ("value", "", "before", "after filters"), rows, right=(2, 3), caption=f"Rows by {found.score}"
                    ),
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
                    element("li", "kept rows", class_="accent") if any(kept) else None,
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
