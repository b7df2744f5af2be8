"""Make text from data harmless where it is shown: in a terminal, in HTML, and in labels of metrics.

A field may contain escape sequences that move the cursor or set the title of the window, characters that reverse the
direction of the text after them, markup, ten megabytes without a line break, or bytes that are not UTF-8.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, without tab and line feed
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # line separators, and marks that reorder what follows
    "\ud800-\udfff\ufff9-\ufffb\U000e0000-\U000e007f]"  # halves of pairs, and invisible tags
)


def inert(text: object, most: int | None = None) -> str:
    """The text with escapes for everything that a terminal acts on; longer texts than `most` characters are cut.

    Tabs and line feeds are unchanged.

    >>> inert("red \\x1b[31malert")
    'red \\\\x1b[31malert'
    >>> inert("x" * 10, most=5)
    'xx...'
    """
    found = as_text(text, most)
    if found.isascii() and found.isprintable():
        return found
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape", "surrogatepass").decode(), found)


def inert_json(text: str) -> str:
    """JSON text with JSON escapes for everything that a terminal acts on: the same value, harmless to print.

    >>> inert_json('"\\x9b2J"')
    '"\\\\u009b2J"'
    """
    return (
        text if text.isascii() and text.isprintable() else _UNSAFE.sub(lambda match: json.dumps(match[0])[1:-1], text)
    )


def one_line(text: object, most: int | None = None) -> str:
    """The text on one line, with its white space collapsed.

    >>> one_line("two\\n  words")
    'two words'
    """
    # Twice as much, because white space is collapsed before the text is cut.
    cut = as_text(text, None if most is None else 2 * most + 100)
    return inert(" ".join(cut.split()), most)


def as_text(text: object, most: int | None = None) -> str:
    """A value as text; bytes that are not UTF-8 become `\\xff`. Longer texts than `most` characters are cut."""
    if isinstance(text, bytes):
        found = (text if most is None else text[: 4 * most]).decode("utf-8", "backslashreplace")
    else:
        found = str(text)
    return found if most is None or len(found) <= most else found[: max(0, most - 3)] + "..."


def escaped(text: object, most: int | None = None) -> str:
    """The text for HTML, in an element or in a quoted attribute.

    >>> escaped("<script>alert('1')</script>")
    '&lt;script&gt;alert(&#x27;1&#x27;)&lt;/script&gt;'
    """
    return html.escape(inert(text, most), quote=True)


# ------------------------------------------------------------------------------------------------ tables for notebooks

CELL_CHARS = 300
"""Longer values are cut in tables."""


def html_table(
    header: Sequence[object], rows: Iterable[Sequence[object]], *, right: Iterable[int] = (), caption: str = ""
) -> str:
    """A table of HTML with everything escaped; the columns numbered in `right` are right-aligned."""
    flush = set(right)

    def cells(tag: str, values: Sequence[object]) -> str:
        return "".join(
            f'<{tag} style="text-align: {"right" if number in flush else "left"}">{escaped(value, CELL_CHARS)}</{tag}>'
            for number, value in enumerate(values)
        )

    title = f"<caption>{escaped(caption, CELL_CHARS)}</caption>" if caption else ""
    head = f"<thead><tr>{cells('th', header)}</tr></thead>"
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table>{title}{head}<tbody>{body}</tbody></table>"


def html_facts(facts: Mapping[str, object], caption: str = "") -> str:
    """Names and values as a table of HTML with two columns."""
    rows = "".join(
        f'<tr><th style="text-align: left">{escaped(name, CELL_CHARS)}</th>'
        f'<td style="text-align: left">{escaped(value, CELL_CHARS)}</td></tr>'
        for name, value in facts.items()
    )
    title = f"<caption>{escaped(caption, CELL_CHARS)}</caption>" if caption else ""
    return f"<table>{title}<tbody>{rows}</tbody></table>"


def html_text(text: object, most: int = 20_000) -> str:
    """Text as preformatted HTML."""
    return f"<pre>{escaped(text, most)}</pre>"
