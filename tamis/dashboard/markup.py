"""Pages of HTML: elements that escape what they contain, and the frame that all pages share.

    element("td", row["text"])  ->  Html        whatever is not Html already is text, and nothing in it is markup
    page("title", body)         ->  Html        one file: styles and script inside, nothing from elsewhere, a strict policy

Markup has no `style` and no `on...` attributes, because the policy of a page forbids both: charts use attributes of SVG, and
the script finds elements by their `data-` attributes.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import re
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import TypeAlias

LONGEST = 200_000
"""Characters of a text that a page shows at most, whatever a caller requests."""

_HIDDEN = [0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0x80, 0xA0)]
"""Characters that change the direction of writing, and control characters that have no sign of their own."""
_INERT: dict[int, int | str] = {13: " ", 127: 0x2421}
_INERT.update({code: 0x2400 + code for code in range(32) if code not in (9, 10, 13)})
_INERT.update(dict.fromkeys(_HIDDEN, "\N{REPLACEMENT CHARACTER}"))
_SURROGATES = re.compile("[\ud800-\udfff]")
_VOID = {"br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}
_SHAPES = {"circle", "line", "path", "rect", "stop", "polyline", "polygon", "use"}


class Html(str):
    """Markup. Everything else is text, and is escaped when it becomes part of an element."""

    __slots__ = ()


Child: TypeAlias = "str | int | float | Iterable[Child] | None"


def text(value: object, longest: int = LONGEST) -> Html:
    """A value as text of a page, shortened to `longest` characters.

    Control characters become visible signs, and those that reverse the direction of writing are replaced, so that data
    cannot change how a page reads.

    >>> text("<b>\\x1b[31m")
    '&lt;b&gt;\u241b[31m'
    """
    return Html(html.escape(plain(value, longest)))


def plain(value: object, longest: int = LONGEST) -> str:
    """The same, not escaped: for JSON and for attributes that are escaped elsewhere."""
    found = value if isinstance(value, str) else str(value)
    if len(found) > longest:
        found = found[: max(0, longest - 3)] + "..."
    return _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", found).translate(_INERT)


def element(tag: str, *children: Child, **attributes: object) -> Html:
    """An element. Names of attributes end with `_` if Python reserves them; `_` inside becomes `-`.

    An attribute that is None or False is left out; one that is True has no value; one that is Html is used as it is.

    >>> element("a", "1 < 2", href="#x", class_="quiet", hidden=True)
    '<a href="#x" class="quiet" hidden>1 &lt; 2</a>'
    """
    written = [tag]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        name = name.rstrip("_").replace("_", "-")
        written.append(name if value is True else f'{name}="{value if isinstance(value, Html) else text(value)}"')
    opening = f"<{' '.join(written)}"
    if tag in _VOID:
        return Html(f"{opening}>")
    if tag in _SHAPES and not children:
        return Html(f"{opening}/>")
    return Html(f"{opening}>{join(children)}</{tag}>")


def join(children: Child) -> Html:
    """Several children as markup, one after the other."""
    if children is None:
        return Html("")
    if isinstance(children, Html):
        return children
    if isinstance(children, (str, int, float)):
        return text(children)
    return Html("".join(join(child) for child in children))


# --------------------------------------------------------------------------------------------------------- common parts


def number(value: float | None, digits: int = 0) -> str:
    """A number with thousands separated; a dash if there is none."""
    return "\N{EN DASH}" if value is None else f"{value:,.{digits}f}"


def percent(part: float, whole: float) -> str:
    """A share of a whole.

    >>> percent(1, 8), percent(1, 100_000), percent(0, 0)
    ('12.5 %', '< 0.1 %', '\u2013')
    """
    if not whole:
        return "\N{EN DASH}"
    share = 100 * part / whole
    return "< 0.1 %" if 0 < share < 0.1 else f"{share:.1f} %"


def duration(seconds: float) -> str:
    """A time in the two units that matter.

    >>> duration(0.004), duration(0.25), duration(65), duration(7300), duration(200_000)
    ('4 ms', '0.2 s', '1 min 5 s', '2 h 1 min', '2 d 7 h')
    """
    if 0.0005 <= seconds < 0.0995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = round(seconds)
    for size, unit, small, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // small} {smaller}"
    raise AssertionError


def figures(items: Iterable[tuple[Child, Child, Child]]) -> Html:
    """A row of key figures: label, value, and a remark below it."""
    return element(
        "dl",
        [
            element("div", element("dt", label), element("dd", value), element("dd", remark, class_="remark"))
            for label, value, remark in items
        ],
        class_="figures",
    )


def section(name: str, title: str, *children: Child, lead: Child = None) -> Html:
    """A part of a page that its navigation lists; `name` is its fragment."""
    heading = element("h2", title, id=f"{name}-title")
    intro = element("p", lead, class_="lead") if lead else None
    return element("section", heading, intro, children, id=name, aria_labelledby=f"{name}-title", tabindex="-1")


def table(
    header: Sequence[Child], rows: Iterable[Sequence[Child]], *, right: Iterable[int] = (), caption: str = ""
) -> Html:
    """A table that scrolls sideways on a small screen; columns numbered in `right` hold numbers."""
    flush = set(right)

    def cells(row: Sequence[Child]) -> list[Html]:
        return [element("td", cell, class_="number" if place in flush else None) for place, cell in enumerate(row)]

    return element(
        "div",
        element(
            "table",
            element("caption", caption, class_="unseen") if caption else None,
            element("thead", element("tr", [_header(cell, place in flush) for place, cell in enumerate(header)])),
            element("tbody", [element("tr", cells(row)) for row in rows]),
        ),
        class_="wide",
        tabindex="0",
        role="region",
        aria_label=caption or "table",
    )


def _header(cell: Child, right: bool) -> Html:
    """The head of a column; one without a name, such as that of bars, is no header."""
    return element("th", cell, class_="number" if right else None, scope="col") if cell else element("td")


def marked(content: str, passages: Iterable[tuple[int, int]], longest: int = 1_200) -> Html:
    """A text with passages marked, shortened around them: `passages` are pairs of character positions.

    >>> marked("a bad word", [(2, 5)])
    'a <mark>bad</mark> word'
    """
    spans = _merged((start, end) for start, end in passages if 0 <= start < end <= len(content))
    parts: list[Html] = []
    last = 0
    for start, end in _windows(spans, len(content), longest):
        at = start
        if start:
            parts.append(element("span", " [...] ", class_="cut"))
        for left, right in spans:
            if start <= left < end:
                parts += [text(content[at:left]), element("mark", content[left : min(right, end)])]
                at = min(right, end)
        parts.append(text(content[at:end]))
        last = end
    if content and last < len(content):
        parts.append(element("span", f" [...] {len(content) - last:,} more characters", class_="cut"))
    return join(parts)


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    result: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result


def _windows(spans: Sequence[tuple[int, int]], size: int, longest: int) -> list[tuple[int, int]]:
    """The parts of a text to show: its beginning, and what is around the first marks."""
    if size <= longest:
        return [(0, size)]
    if not spans:
        return [(0, longest)]
    around, budget = longest // 12, longest
    windows: list[tuple[int, int]] = [(0, min(size, longest // 4))]
    budget -= windows[0][1]
    for start, end in spans:
        left, right = max(windows[-1][1], start - around), min(size, end + around, max(start, windows[-1][1]) + budget)
        if right <= windows[-1][1] or budget <= 0:
            continue
        if left <= windows[-1][1] + 8:
            windows[-1] = (windows[-1][0], right)
        else:
            windows.append((left, right))
        budget -= right - left
    return windows


# ---------------------------------------------------------------------------------------------------------------- pages


@functools.cache
def asset(name: str) -> str:
    """A file that ships with the package: styles or a script."""
    return (resources.files("tamis.dashboard") / "static" / name).read_text(encoding="utf-8")


def policy(*, script: str = "", live: bool = False) -> str:
    """The Content-Security-Policy of a page: only its own styles and script, and media inside the page."""
    parts = ["default-src 'none'", f"style-src 'sha256-{_digest(asset('page.css'))}'"]
    if script:
        parts.append(f"script-src 'sha256-{_digest(script)}'")
    parts += ["img-src data:", "media-src data:", "base-uri 'none'", "form-action 'none'"]
    return "; ".join([*parts, *(["connect-src 'self'"] if live else [])])


def page(
    title: str,
    *body: Child,
    head: Child = None,
    nav: Child = None,
    script: bool = True,
    live: str | None = None,
    order: Sequence[str] = (),
) -> Html:
    """A whole page. `head` is above `nav`; `live` is the address from which the script fetches new parts, placed by `order`."""
    code = asset("page.js") if script else ""
    about = {"data_live": live, "data_order": " ".join(order) if live is not None else None}
    return join(
        [
            Html('<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'),
            element("meta", http_equiv="Content-Security-Policy", content=policy(script=code, live=live is not None)),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="color-scheme", content="light dark"),
            element("meta", name="referrer", content="no-referrer"),
            element("title", plain(title, 200)),
            Html(f"<style>{asset('page.css')}</style></head>\n"),
            Html(element("body", **about).removesuffix("</body>")),
            element("a", "Skip to the content", href="#content", class_="skip"),
            element("header", head, class_="top") if head else None,
            element("nav", nav, aria_label="Sections", class_="sections") if nav else None,
            element("main", body, id="content", tabindex="-1"),
            Html(f"<script>{code}</script>" if code else ""),
            Html("</body></html>\n"),
        ]
    )


def _digest(code: str) -> str:
    return base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
