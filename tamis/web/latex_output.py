"""What the text of a LaTeX document is made of: paragraphs, tables and formulas, which commands add to."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from tamis.web import latex_tables as tables
from tamis.web.blocks import join_blocks
from tamis.web.latex_macros import Stream
from tamis.web.latex_tokens import END_DOCUMENT, PARAGRAPH, joined

CONTROL = re.compile("[\x00-\x08\x0b\x0e-\x1f\ufeff]")
BLANK = re.compile(r"[ \t\n\r\f]+")
_QUOTES = (("---", "\u2014"), ("--", "\u2013"), ("``", "\u201c"), ("''", "\u201d"))
_BEFORE_NOTHING = re.compile(
    r"(?<=[a-z]\.)[ ~\u00a0]*\.(?!\.)|[ ~\u00a0]+(?=[.,;:)\]])|(?<=\()[ ,;]+|\(\s*\)|\[\s*[,;]*\s*\]"
)


@dataclass(frozen=True)
class Options:
    """What to keep, and how far to expand."""

    markdown: bool = False
    tables: bool = False
    max_expansion: int = 1_000_000


@dataclass
class Environment:
    """An environment that is open."""

    name: str
    item: str = ""
    number: int = 0
    on_end: Callable[[], None] | None = None


class Output:
    """Text as far as it has been read."""

    def __init__(self, stream: Stream, options: Options) -> None:
        self._stream, self._options = stream, options
        self._parts: list[str] = []
        self._blocks: list[tuple[str, str]] = []  # (kind, text)
        self._groups: list[Callable[[], None] | None] = []
        self._environments: list[Environment] = []
        self._notes: list[str] = []
        self._outer: list[list[str]] = []  # texts that are interrupted by a footnote or a title
        self._prefix: str | None = None  # what precedes the next paragraph, if it is an item
        self._preamble = stream.in_preamble
        self._hidden = int(self._preamble)  # environments and preamble of which nothing is shown

    def _text(self, text: str) -> None:
        if self._hidden:
            return
        for written, shown in _QUOTES:
            if written in text:
                text = text.replace(written, shown)
        self._parts.append(text.replace("`", "\u2018") if "`" in text else text)

    def _close_group(self) -> None:
        if self._groups:
            action = self._groups.pop()
            if action is not None:
                action()

    def _group(self, action: Callable[[], None] | None) -> None:
        """Do something at the end of the argument that follows."""
        if self._stream.skip_spaces() == "{":
            self._stream.raw()
            self._groups.append(action)
        else:
            token = self._stream.argument()
            self._groups.append(action)
            self._stream.push([*token, "}"], free=True)

    def _end_paragraph(self, kind: str = "text") -> None:
        text = _tidy("".join(self._parts))
        self._parts.clear()
        if text and not self._hidden:
            self._blocks.append((kind, text) if self._prefix is None else ("item", self._prefix + text))
            self._prefix = None
        if self._notes and not self._outer:
            self._blocks += [("text", note) for note in self._notes]
            self._notes.clear()

    def _block(self, kind: str, text: str) -> None:
        self._end_paragraph()
        if text.strip() and not self._hidden:
            self._blocks.append((kind, text))

    def _joined(self) -> str:
        return unicodedata.normalize("NFC", join_blocks(self._blocks))

    def _enter_text(self) -> None:
        """Begin a text of its own, such as a footnote, within another."""
        self._outer.append(self._parts)
        self._parts = []

    def _leave_text(self) -> str:
        text = _tidy("".join(self._parts))
        self._parts = self._outer.pop()
        return text

    def _parts_append(self, text: str) -> None:
        if not self._hidden:
            self._parts.append(text)

    def _open(self, name: str, *, hide: bool = False) -> None:
        self._end_paragraph()
        self._environments.append(Environment(name, on_end=self._show if hide else None))
        self._hidden += hide

    def _show(self) -> None:
        self._parts.clear()
        self._hidden -= 1

    # ------------------------------------------------------------------------------------------------------------ tables

    def _begin_table(self, name: str) -> None:
        self._stream.option()
        for _ in range(2 if name in ("tabular*", "tabularx", "tabulary") else 1):
            self._stream.skip_group()
        self._end_paragraph()
        if not self._options.tables:
            self._open(name, hide=True)
            return
        hidden, self._hidden = self._hidden, 1 if self._preamble else 0

        def end() -> None:
            self._end_row()
            self._hidden = hidden

        self._environments.append(Environment(name, on_end=end))

    def _in_table(self) -> bool:
        return bool(self._environments) and self._environments[-1].name in tables.TABLES and self._options.tables

    def _end_row(self) -> None:
        here = self._environments[-1] if self._environments else Environment("")
        row = BLANK.sub(" ", "".join(self._parts)).strip()
        self._parts.clear()
        if not row or self._hidden:
            return
        here.number += 1
        self._blocks.append(("row", f"| {row} |" if self._options.markdown else row))
        if here.number == 1 and self._options.markdown:
            self._blocks.append(("row", f"|{' --- |' * (row.count(' | ') + 1)}"))

    # ---------------------------------------------------------------------------------------------------------- formulas

    def _formula(self, opened: str = "$") -> None:
        if opened == "$" and self._stream.peek() == "$":
            self._stream.raw()
            opened = "$$"
        closing = {"\\(": "\\)", "\\[": "\\]"}.get(opened, opened)
        source = self._until(
            lambda token: token == closing or (closing == "$$" and token == "$"), inline=len(opened) == 1
        )
        if closing == "$$" and self._stream.peek() == "$":
            self._stream.raw()
        self._show_formula(source, display=opened in ("$$", "\\["))

    def _formula_environment(self, name: str) -> None:
        source = self._until(None, name=name)
        if name.rstrip("*") not in ("equation", "displaymath", "math", "dmath"):
            source = f"\\begin{{{name}}} {source} \\end{{{name}}}"
        self._show_formula(source, display=name != "math")

    def _until(self, closes: Callable[[str], bool] | None, *, name: str | None = None, inline: bool = False) -> str:
        """The source of a formula, with macros expanded."""
        parts: list[str] = []
        begun: set[str] = set()
        depth = 0
        while (token := self._stream.next()) is not None:
            if token == "{":
                depth += 1
            elif token == "}":
                depth -= 1
                if depth < 0:  # the group around the formula ends first
                    self._stream.push(["}"], free=True)
                    break
            elif closes is not None and depth <= 0 and closes(token):
                break
            elif token == PARAGRAPH:
                if inline:
                    self._stream.push([PARAGRAPH], free=True)
                    break
                token = " "
            elif token == END_DOCUMENT:
                self._stream.push([token], free=True)
                break
            elif token == "\\begin":
                begun.add(inner := self._stream.name())
                parts += ["\\begin", "{", inner, "}"]
                continue
            elif token == "\\end":
                ended = self._stream.name()
                if ended == name:
                    break
                if inline and ended not in begun:
                    self._stream.push(["\\end", "{", ended, "}"], free=True)
                    break
                parts += ["\\end", "{", ended, "}"]
                continue
            elif token in ("\\label", "\\tag"):
                self._stream.skip_group()
                continue
            elif token in tables.NOT_IN_FORMULAS or (token[0] == "\\" and self._stream.define(token)):
                continue
            parts.append(token)
        return BLANK.sub(" ", joined(parts)).strip()

    def _show_formula(self, source: str, *, display: bool) -> None:
        if self._hidden or not source:
            return
        if display and not self._outer and not self._in_table():
            self._parts.append(f" $${source}$$ ")
        else:
            self._parts.append(f"${source}$")


def _tidy(text: str) -> str:
    """Without what is left around references that were removed."""
    if not text or text.isspace():
        return ""
    for _ in range(2):
        text = _BEFORE_NOTHING.sub("", BLANK.sub(" ", text))
    return text.strip()
