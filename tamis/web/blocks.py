"""Paragraphs, headings, items and rows of tables as text or Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SPACES = re.compile(r"[ \t\u00a0\r\f\v]+")


class Blocks:
    """The blocks of a document, in order."""

    def __init__(self, *, markdown: bool) -> None:
        self._markdown = markdown
        self._blocks: list[tuple[str, str]] = []  # (kind, text)

    def paragraph(self, text: str) -> None:
        self._add("text", text)

    def heading(self, level: int, text: str) -> None:
        self._add("heading", text, "#" * min(level, 6) + " ")

    def item(self, level: int, text: str, *, numbered: bool = False) -> None:
        self._add("item", text, "  " * (level - 1) + ("1. " if numbered else "- "))

    def table(self, rows: Iterable[list[str]]) -> None:
        """Rows with cells, of which the first is the head."""
        kept = [[_cleaned(cell).replace("\n", " ") for cell in row] for row in rows]
        kept = [row for row in kept if any(row)]
        width = max(map(len, kept), default=0)
        for number, row in enumerate(kept):
            line = " | ".join((*row, *[""] * (width - len(row)))) if self._markdown else " | ".join(filter(None, row))
            self._blocks.append(("row", f"| {line} |" if self._markdown else line))
            if not number and self._markdown:
                self._blocks.append(("row", f"|{' --- |' * width}"))
        self._blocks.append(("", ""))  # the next table is another one

    def _add(self, kind: str, text: str, mark: str = "") -> None:
        text = _cleaned(text)
        if text:
            self._blocks.append((kind, mark + text if self._markdown else text))

    def __str__(self) -> str:
        return join_blocks(self._blocks)


def join_blocks(blocks: Iterable[tuple[str, str]]) -> str:
    """Blocks as a text: an empty line between them, except within lists and tables.

    >>> join_blocks([("text", "a"), ("item", "b"), ("item", "c")])
    'a\\n\\nb\\nc'
    """
    result: list[str] = []
    before = ""
    for kind, text in blocks:
        if text:
            if result:
                result.append("\n" if kind == before and kind in ("item", "row") else "\n\n")
            result.append(text)
        before = kind
    return "".join(result)


def _cleaned(text: str) -> str:
    return "\n".join(line.strip() for line in _SPACES.sub(" ", text).split("\n")).strip()
