"""Charts as SVG inside a page. Shapes stretch with the page; texts keep their size, because positions are percentages.

Every chart says in words what it shows (`label`); colours repeat what position and text say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tamis.dashboard.markup import Child, Html, element, join

Point = tuple[float, float]


def share_bar(parts: Sequence[tuple[float, str]], whole: float, *, height: int = 10) -> Html:
    """A bar of the full width with parts of it filled: (size, class) from left to right. Decoration beside numbers."""
    at, shapes = 0.0, []
    for size, kind in parts:
        width = 100 * size / whole if whole else 0
        shown = max(width, 0.35) if size else 0
        shapes.append(element("rect", x=_at(at), y=0, width=_at(shown), height="100%", class_=kind))
        at += width
    return element("svg", shapes, class_="bar", width="100%", height=height, aria_hidden="true")


def columns(
    counts: Sequence[float],
    *,
    label: str,
    second: Sequence[float] | None = None,
    ticks: Sequence[tuple[float, str]] = (),
    lines: Sequence[tuple[float, str, str]] = (),
    height: int = 150,
    log: bool = False,
) -> Html:
    """A histogram: one column for each count, `second` drawn in front of the first in the accent colour.

    `ticks` and `lines` are positions from 0 to 1 with a text; lines have a class too, such as "limit".
    """
    most = max([*counts, *(second or ()), 1])

    def shape(values: Sequence[float], kind: str) -> Html:
        width = 1000 / max(1, len(values))
        gap = min(1.5, width / 8)
        steps = []
        for place, value in enumerate(values):
            if value:
                share = math.log1p(value) / math.log1p(most) if log else value / most
                top = max(share * 100, 0.8)
                left, right = place * width + gap / 2, (place + 1) * width - gap / 2
                steps.append(f"M{left:.1f} 100V{100 - top:.2f}H{right:.1f}V100Z")
        return element("path", d="".join(steps), class_=kind)

    shapes = [shape(counts, "all"), shape(second, "some") if second is not None else None]
    return _frame(shapes, label=label, ticks=ticks, lines=lines, height=height)


def series(
    curves: Sequence[tuple[Sequence[Point], str]],
    *,
    label: str,
    most: float,
    until: float,
    ticks: Sequence[tuple[float, str]] = (),
    levels: Sequence[tuple[float, str]] = (),
    bands: Sequence[tuple[float, float, str]] = (),
    height: int = 170,
    fill: bool = True,
) -> Html:
    """Curves over time, from 0 to `until` and from 0 to `most`. `levels` are horizontal lines with a text.

    `bands` are (from, to, text): spans of time, separated by hairlines.
    """
    until, most = until or 1.0, most or 1.0
    shapes: list[Child] = []
    for points, kind in curves:
        if not points:
            continue
        spots = [f"{1000 * min(x / until, 1):.1f} {100 - 100 * min(y / most, 1):.2f}" for x, y in points]
        if fill:
            first, last = spots[0].split()[0], spots[-1].split()[0]
            shapes.append(element("path", d=f"M{first} 100L{'L'.join(spots)}L{last} 100Z", class_=f"area {kind}"))
        shapes.append(element("path", d=f"M{'L'.join(spots)}", class_=f"curve {kind}"))
    over: list[Child] = []
    for start, _, name in bands:
        place = min(1.0, start / until)
        over.append(element("line", x1=_at(100 * place), x2=_at(100 * place), y1=0, y2=height, class_="edge"))
        late = place > 0.85
        anchor = {"text_anchor": "end", "dx": -5} if late else {"text_anchor": "start", "dx": 5}
        over.append(element("text", name, x=_at(100 * place), y=height - 6, class_="note", **anchor))
    for value, name in levels:
        y = height * (1 - min(value / most, 1))
        over.append(element("line", x1="0%", x2="100%", y1=f"{y:.1f}", y2=f"{y:.1f}", class_="limit"))
        over.append(
            element("text", name, x="100%", y=f"{max(11.0, y - 4):.1f}", text_anchor="end", class_="note strong")
        )
    return _frame(shapes, label=label, ticks=ticks, height=height, over=over)


def lanes(rows: Sequence[tuple[str, Sequence[tuple[float, float, str]]]], *, until: float, label: str) -> Html:
    """What happened when: for each row a name, and spans of (from, to, class)."""
    until = until or 1.0
    shapes: list[Child] = []
    for place, (name, spans) in enumerate(rows):
        y = place * 34
        shapes.append(element("text", name, x=0, y=y + 11, class_="note strong"))
        shapes.append(element("rect", x=0, y=y + 16, width="100%", height=8, rx=2, class_="track"))
        for start, end, kind in spans:
            left, width = 100 * start / until, max(0.3, 100 * (end - start) / until)
            shapes.append(
                element("rect", x=_at(left), y=y + 16, width=_at(min(width, 100 - left)), height=8, rx=2, class_=kind)
            )
    return element("svg", shapes, class_="chart", width="100%", height=34 * len(rows) + 2, role="img", aria_label=label)


def _frame(
    shapes: Child,
    *,
    label: str,
    height: int,
    ticks: Sequence[tuple[float, str]] = (),
    lines: Sequence[tuple[float, str, str]] = (),
    over: Child = None,
) -> Html:
    """The stretched drawing, and what is written over and below it."""
    drawing = element(
        "svg", shapes, viewBox="0 0 1000 100", preserveAspectRatio="none", width="100%", height=height, class_="drawing"
    )
    marks: list[Child] = [element("line", x1="0%", x2="100%", y1=height, y2=height, class_="axis")]
    for place, name in ticks:
        anchor = "start" if place < 0.04 else "end" if place > 0.96 else "middle"
        marks.append(element("text", name, x=_at(100 * place), y=height + 16, text_anchor=anchor, class_="tick"))
    for place, name, kind in lines:
        x = _at(100 * min(1.0, max(0.0, place)))
        marks.append(element("line", x1=x, x2=x, y1=0, y2=height, class_=kind))
        if name:
            side = {"text_anchor": "end", "dx": -5} if place > 0.5 else {"text_anchor": "start", "dx": 5}
            marks.append(element("text", name, x=x, y=11, class_="note strong", **side))
    return element(
        "svg",
        drawing,
        join([marks, over]),
        class_="chart",
        width="100%",
        height=height + (20 if ticks else 2),
        role="img",
        aria_label=label,
    )


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between two bounds.

    >>> nice_ticks(0, 97)
    [0.0, 20.0, 40.0, 60.0, 80.0]
    """
    if not high > low:
        return [low]
    rough = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((each * power for each in (1, 2, 2.5, 5, 10) if each * power >= rough), 10 * power)
    first = math.ceil(low / step - 1e-9)
    return [place * step for place in range(first, math.floor(high / step + 1e-9) + 1)]


def short_number(value: float) -> str:
    """A number for an axis.

    >>> [short_number(each) for each in (0, 0.25, 950, 1500, 2_000_000)]
    ['0', '0.25', '950', '1.5k', '2M']
    """
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _at(percent: float) -> str:
    return f"{percent:.3f}".rstrip("0").rstrip(".") + "%"
