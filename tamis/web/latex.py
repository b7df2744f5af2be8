r"""LaTeX to text: macros expanded, comments and bibliography removed, formulas kept.

    source  -->  tokens (latex_tokens.py), macros expanded (latex_macros.py)  -->  _Converter
            -->  paragraphs, tables, formulas (latex_output.py)  -->  text or Markdown

One pass over the tokens, without recursion: groups, environments and formulas are entries of a stack. Commands that are not
known are removed, and what is in their braces stays.
"""

from __future__ import annotations

import contextlib
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tamis.web import latex_tables as tables
from tamis.web.latex_macros import FALSE, NO_VALUE, Stream, TooFar
from tamis.web.latex_output import CONTROL, Environment, Options
from tamis.web.latex_packages import PACKAGES, Packages
from tamis.web.latex_tokens import BEGIN_DOCUMENT, END_DOCUMENT, PARAGRAPH, code_environments, joined, tokens_of

__all__ = ["Options", "Result", "TooDeep", "TooFar", "is_latex", "latex_to_text"]

_SETTING = re.compile(
    r"\s*[-+]?[\d.]*\s*(?:pt|em|ex|cm|mm|in|\\[a-zA-Z]*(?:width|height|length|skip|sep|indent|size))?\s*|[^{}]*=[\s\S]*|[lcrpmbX|@!*>\d]+"
)
"""An argument of an environment that is no text."""
_INPUT = ("\\input", "\\include", "\\subfile", "\\subimport", "\\import", "\\includestandalone")
_MOST_INPUTS = 1_000
_LATEX = re.compile(
    r"\\(?:documentclass|documentstyle|begin\s*\{|section\b|input\b|title\b|magnification|bye\b|def\b|chapter\b)"
)
_CODE = re.compile(r"\\begin\s*\{([a-zA-Z]+\*?)\}([\s\S]*)\\end\{\1\}")
_OPENS = re.compile(r"[ \t]*[\[{]")
_BRACKETS = re.compile(r"[\[\]{}]")
_INLINE_CODE = re.compile(r"\\[a-zA-Z]+\*?(?:\[[^\]]*\])?(?:\{[a-z]{1,20}\}(?=[{|!]))?.([\s\S]*).")
_LENGTH = re.compile(
    r"\s*=?\s*[-+]?\s*(?:\d+\.?\d*|\.\d+)\s*(?:pt|em|ex|cm|mm|in|mu|sp|pc|bp)?(?:\s*(?:plus|minus)\s*-?[\d.]+\s*[a-z]{2,5})*"
)
_LINE_ENDS = "\r\n"
_BEGINS_CODE = ("\\begin{", "\\verb", "\\lstinline", "\\mintinline")
_REFERS = re.compile(r"\\[a-zA-Z@]*(?:ref|refs|cite|cites|citep|citet|citealp)\*?")
"""Commands of packages and documents whose argument is the name of a label: `\\figureref`, `\\citeauthor`."""
MOST_NESTED = 200
"""Environments within each other. LaTeX itself stops earlier."""


class TooDeep(Exception):
    """Environments are nested too deeply."""


_DEFAULTS = Options()


@dataclass(frozen=True)
class Result:
    text: str
    title: str | None


def is_latex(source: str) -> bool:
    """Whether a text looks like LaTeX or TeX."""
    return _LATEX.search(source) is not None


def latex_to_text(source: str, options: Options = _DEFAULTS, files: Mapping[str, str] | None = None) -> Result:
    r"""The text of a document. `files` are those that it may include, by name.

    >>> latex_to_text(r"\newcommand{\R}[1]{\mathbb{R}^{#1}} A \emph{vector} $x \in \R{3}$~\cite{a}. % not this").text
    'A vector $x \\in \\mathbb{R}^{3}$.'
    """
    return _Converter(source, options, files or {}).run()


class _Converter(Packages):
    """What commands and environments do."""

    def __init__(self, source: str, options: Options, files: Mapping[str, str]) -> None:
        self._code_environments = code_environments([source, *files.values()])
        tokens = self._tokens_of(source)
        super().__init__(Stream(tokens, options.max_expansion), options)
        self._files = files
        self._documents = 0  # documents that are open: another one within is an example
        self._theorems: dict[str, str] = {}
        self._switches: dict[str, bool] = {}
        self._title: str | None = None
        self._inputs = 0

    def _tokens_of(self, source: str) -> list[str]:
        return tokens_of(CONTROL.sub("", source), self._code_environments)

    def run(self) -> Result:
        while (token := self._stream.next()) is not None:
            first = token[0]
            if first == "\\":
                if self._command(token):
                    break
            elif first == "{":
                self._groups.append(None)
            elif first == "}":
                self._close_group()
            elif first == "$":
                self._formula()
            elif token == PARAGRAPH:
                self._end_paragraph()
            elif first == "~":
                self._parts.append(" ")
            elif first == "&":
                self._parts.append(" | " if self._in_table() else " ")
            elif first != "#":
                self._text(token)
        while self._outer:
            self._leave_text()
        self._end_paragraph()
        return Result(self._joined(), self._title)

    # ---------------------------------------------------------------------------------------------------------- commands

    def _command(self, token: str) -> bool:
        """Do what a command says; True at the end of the document."""
        plain = token[:-1] if token[-1] == "*" and len(token) > 2 else token
        if token == BEGIN_DOCUMENT:
            self._begin_document()
        elif token == END_DOCUMENT:
            self._documents -= 1
            return self._documents <= 0
        elif token.startswith(_BEGINS_CODE) and not token[1:].rstrip("*").isalpha():
            self._code(token)
        elif token[-1] == "}" and len(token) > 2:
            self._address(token)
        elif token in tables.SYMBOLS:
            self._text_symbol(token)
        elif token in tables.ACCENTS and (not token[1].isalpha() or self._accent_follows()):
            self._accent(tables.ACCENTS[token])
        elif plain == "\\begin":
            self._begin(self._stream.name())
        elif plain == "\\end":
            self._end(self._stream.name())
        elif plain in ("\\(", "\\["):
            self._formula(plain)
        elif self._stream.define(token):
            pass
        elif plain in tables.HEADINGS:
            self._heading(tables.HEADINGS[plain])
        elif plain in tables.STYLES:
            self._style(tables.STYLES[plain])
        elif plain in _INPUT:
            self._include(plain)
        elif plain[1:] in _HANDLERS:
            _HANDLERS[plain[1:]](self)
        elif plain.startswith("\\if") and self._is_condition(plain):
            self._condition(plain)
        elif plain in ("\\else", "\\or"):
            self._skip_branch(stop_at_else=False)
        elif plain[1:] in tables.DROPPED:
            for _ in range(tables.DROPPED[plain[1:]]):
                self._stream.option()
                self._stream.option()
                self._stream.skip_group()
        elif plain[1:] in tables.FIRST_DROPPED:
            self._stream.option()
            for _ in range(tables.FIRST_DROPPED[plain[1:]]):
                self._stream.skip_group()
        elif plain[-4:] == "true" and plain[1:-4] in self._switches:
            self._switches[plain[1:-4]] = True
        elif plain[-5:] == "false" and plain[1:-5] in self._switches:
            self._switches[plain[1:-5]] = False
        elif plain == "\\bye":
            return True
        else:
            self._unknown(plain)
        return False

    def _unknown(self, command: str) -> None:
        """Remove a command. What is in its braces stays, with spaces between, unless it is the name of a label."""
        if self._stream.peek() == "[":
            self._stream.option()
        if _REFERS.fullmatch(command):
            self._stream.option()
            self._stream.skip_group()
        elif self._stream.peek() == "{":
            self._stream.raw()
            self._groups.append(self._separate)
        else:
            self._eat_space()

    def _separate(self) -> None:
        """At the end of an argument of an unknown command: another argument is another text."""
        if self._stream.peek() == "{":
            self._stream.raw()
            self._parts_append(" ")
            self._groups.append(self._separate)

    def _symbol(self) -> None:
        """`\\symbol{"5C}`, `\\char92`"""
        code = joined(self._stream.argument()) if self._stream.skip_spaces() == "{" else self._digits()
        base = {'"': 16, "'": 8}.get(code[:1], 10)
        digits = code.lstrip("\"'").strip()
        if digits.isalnum() and digits.isascii() and len(digits) <= 6:
            with contextlib.suppress(ValueError):
                self._parts_append(CONTROL.sub("", chr(int(digits, base))))

    def _digits(self) -> str:
        token = self._stream.peek() or ""
        found = re.match(r"\"[0-9A-F]+|'[0-7]+|\d+", token)
        if found is None:
            return ""
        self._stream.raw()
        self._stream.push([token[found.end() :]] if found.end() < len(token) else [], free=True)
        return found[0]

    def _text_symbol(self, token: str) -> None:
        if self._hidden:
            return
        shown = tables.SYMBOLS[token]
        if token in ("\\\\", "\\\\*", "\\tabularnewline", "\\cr"):
            self._stream.option()
            if self._in_table():
                self._end_row()
                return
        self._parts.append(shown)
        if token[1].isalpha():
            self._eat_space()

    def _eat_space(self) -> None:
        """Spaces after the name of a command are no text."""
        following = self._stream.peek()
        if following is not None and following[0] in " \t\n" and following != PARAGRAPH:
            self._stream.raw()
            self._stream.push([following.lstrip()] if following.strip() else [], free=True)

    def _accent_follows(self) -> bool:
        following = self._stream.peek()
        return following is not None and (following[0] == "{" or following[0] in " \\")

    def _accent(self, mark: str) -> None:
        base = "".join(tables.SYMBOLS.get(part, part) for part in self._stream.argument() if part not in "{}")
        if base and not self._hidden:
            self._parts.append(unicodedata.normalize("NFC", base[0] + mark) + base[1:])

    def _style(self, mark: str) -> None:
        if not self._options.markdown:
            return
        self._group(partial(self._parts_append, mark))
        self._parts_append(mark)

    def _heading(self, level: int) -> None:
        self._stream.option()
        self._end_paragraph()
        self._enter_text()
        self._group(partial(self._end_heading, level))

    def _end_heading(self, level: int) -> None:
        title = self._leave_text() if self._outer else ""
        if title:
            self._block("heading", f"{'#' * level} {title}" if self._options.markdown else title)

    def _set_title(self) -> None:
        self._stream.option()
        self._enter_text()
        hidden, self._hidden = self._hidden, 0

        def end() -> None:
            title = self._leave_text() if self._outer else ""
            self._hidden = hidden
            self._title = self._title or title or None

        self._group(end)

    def _make_title(self) -> None:
        if self._title and not self._hidden:
            self._block("heading", f"# {self._title}" if self._options.markdown else self._title)

    def _footnote(self) -> None:
        self._stream.option()
        self._enter_text()

        def end() -> None:
            note = self._leave_text() if self._outer else ""
            if note and not self._hidden:
                self._notes.append(note)

        self._group(end)

    def _caption(self) -> None:
        self._stream.option()
        hidden, self._hidden = self._hidden, 0 if not self._preamble else self._hidden
        self._enter_text()

        def end() -> None:
            text = self._leave_text() if self._outer else ""
            if text:
                self._notes.append(text)
            self._hidden = hidden

        self._group(end)

    def _address(self, token: str) -> None:
        command, _, address = token[:-1].partition("{")
        if command.strip() == "\\href":
            self._link(address)
        else:
            self._parts_append(address.replace("\\", ""))

    def _link(self, address: str) -> None:
        if self._options.markdown:
            self._parts_append("[")
            self._group(partial(self._parts_append, f"]({address})"))

    def _ensure_math(self) -> None:
        self._stream.push(["$", "{", *self._stream.argument(), "}", "$"])

    def _item(self) -> None:
        self._end_paragraph()
        label = self._stream.option()
        here = next((each for each in reversed(self._environments) if each.name in tables.LISTS), None)
        if here is None or self._hidden:
            return
        here.number += 1
        depth = sum(each.name in tables.LISTS for each in self._environments) - 1
        mark = "" if not self._options.markdown else f"{here.number}. " if "enum" in here.name else "- "
        self._prefix = "  " * depth * self._options.markdown + mark
        if label:
            self._stream.push([*label, " "], free=True)

    def _space(self) -> None:
        """`\\xspace`: a space, unless punctuation follows."""
        following = (self._stream.peek() or "}")[0]
        if following.isalnum() or following in "\\($ \n":
            self._parts_append(" ")

    def _dimension(self) -> None:
        """Skip a length after a primitive of TeX: `\\kern-.1em`."""
        token = self._stream.peek()
        if token is not None and (found := _LENGTH.match(token)):
            self._stream.raw()
            self._stream.push([token[found.end() :]] if found.end() < len(token) else [], free=True)

    def _abstract(self) -> None:
        if self._stream.skip_spaces() == "{":
            hidden, self._hidden = self._hidden, 0
            self._end_paragraph()

            def end() -> None:
                self._end_paragraph()
                self._hidden = hidden

            self._group(end)

    def _new_theorem(self) -> None:
        name = self._stream.name()
        self._stream.option()
        self._theorems[name] = re.sub(r"\\[a-zA-Z]+\s*|[{}]", "", joined(self._stream.argument())).strip()
        self._stream.option()

    def _new_switch(self) -> None:
        name = self._stream.raw() or ""
        if name.startswith("\\if"):
            self._switches[name[3:]] = False

    def _code(self, token: str) -> None:
        """Code, which is one token."""
        if inline := _INLINE_CODE.fullmatch(token) if not token.startswith("\\begin") else None:
            self._parts_append(f"`{inline[1]}`" if self._options.markdown else inline[1])
        elif (found := _CODE.fullmatch(token)) and found[1] not in tables.HIDDEN_CODE:
            code = found[2] if found[1].startswith("verbatim") else _without_options(found[2])
            code = code.rstrip(" \t").strip(_LINE_ENDS)
            self._block("code", f"```\n{code}\n```" if self._options.markdown else code)

    def _csname(self) -> None:
        name = ""
        while (token := self._stream.raw()) not in (None, "\\endcsname", PARAGRAPH) and len(name) < 200:
            name += token or ""
        if re.fullmatch(r"[a-zA-Z@]+", name):
            self._stream.push([f"\\{name}"])

    def _include(self, command: str) -> None:
        folder = self._stream.name() if command in ("\\import", "\\subimport") else ""
        if self._stream.skip_spaces() == "{":
            name = self._stream.name()
        else:  # \input file
            token = self._stream.raw() or ""
            name, _, rest = token.partition(" ")
            self._stream.push([rest] if rest else [], free=True)
        name = f"{folder.rstrip('/')}/{name}".strip().removeprefix("./").lstrip("/")
        found = next((self._files[each] for each in (name, f"{name}.tex", f"{name}.ltx") if each in self._files), None)
        self._inputs += 1
        if found is None or self._inputs > _MOST_INPUTS:
            return
        source = re.sub(r"\\end\s*\{document\}[\s\S]*", "", found)
        source = re.sub(r"^[\s\S]*?\\begin\s*\{document\}", "", source)
        self._stream.push(self._tokens_of(source))

    def _use_package(self) -> None:
        self._stream.option()
        for name in self._stream.name().split(","):
            found = self._files.get(f"{name.strip()}.sty")
            self._inputs += 1
            if found is not None and self._inputs <= _MOST_INPUTS and self._hidden:
                self._stream.push(self._tokens_of(found))

    # --------------------------------------------------------------------------------------------------------- conditions

    def _if_argument(self, is_not: list[str] | None, branches: str) -> None:
        """`\\IfBooleanTF{#1}{...}{...}`, `\\IfNoValueTF`, `\\IfValueTF` of commands with optional arguments."""
        given = self._stream.argument()
        holds = given == NO_VALUE if is_not is None else given != is_not
        chosen = {branch: self._stream.argument() for branch in branches}
        self._stream.push(chosen.get("T" if holds else "F", []))

    def _is_condition(self, command: str) -> bool:
        """Whether a command is a condition of TeX, which ends with `\\fi`, and not one of LaTeX with arguments in braces."""
        name = command[1:]
        if name in tables.CONDITIONS or name[2:] in self._switches:
            return True
        return self._stream.peek() != "{" and name not in ("iff", "ifthenelse")

    def _condition(self, command: str) -> None:
        name = command[3:]
        if name == "true" or self._switches.get(name):
            return
        if name == "x":
            one, other = self._stream.raw(), self._stream.raw()
            if one == other or (
                one in self._stream.macros and self._stream.macros.get(other or "") is self._stream.macros[one]
            ):
                return
        self._skip_branch(stop_at_else=True)

    def _skip_branch(self, *, stop_at_else: bool) -> None:
        """Skip to the `\\else` or the `\\fi` that belongs to a condition."""
        depth = 0
        while (token := self._stream.raw()) is not None:
            if token == "\\fi":
                if not depth:
                    return
                depth -= 1
            elif token == "\\else" and not depth and stop_at_else:
                return
            elif token.startswith("\\if") and self._is_condition(token):
                depth += 1
            elif token == BEGIN_DOCUMENT and self._preamble:  # it has no end
                self._stream.push([token], free=True)
                return

    # ------------------------------------------------------------------------------------------------------- environments

    def _begin_document(self) -> None:
        self._documents += 1
        if self._documents == 1:
            self._hidden, self._preamble, self._stream.in_preamble = 0, False, False
            self._parts.clear()
            self._groups.clear()

    def _begin(self, name: str) -> None:
        base = name.rstrip("*")
        if len(self._environments) > MOST_NESTED:
            raise TooDeep
        if name in tables.MATH:
            self._formula_environment(name)
        elif self._stream.environment("begin", name):
            self._environments.append(Environment(name))
        elif name in tables.DROPPED_ENVIRONMENTS:
            self._skip_environment(name)
        elif name in tables.TABLES:
            self._begin_table(name)
        elif name in tables.FLOATS:
            self._stream.option()
            self._open(name, hide=True)
        else:
            self._end_paragraph()
            is_theorem = base in self._theorems or name == "proof"
            if not is_theorem:
                self._skip_settings()
            self._environments.append(Environment(name))
            if name == "abstract":
                self._block("heading", "## Abstract" if self._options.markdown else "Abstract")
            elif is_theorem:
                title = self._theorems.get(base, "Proof")
                self._parts_append(f"**{title}.** " if self._options.markdown else f"{title}. ")
                label = self._stream.option()
                if label:
                    self._stream.push(["(", *label, ") "], free=True)

    def _skip_settings(self) -> None:
        """Skip arguments of an environment that are no text: options, lengths, numbers and columns."""
        if self._stream.peek() == "[":
            self._stream.option()
        while self._stream.peek() == "{":
            given = self._stream.argument()
            if not _SETTING.fullmatch("".join(given)):
                self._stream.push(["{", *given, "}"], free=True)
                return

    def _end(self, name: str) -> None:
        if not any(each.name == name for each in self._environments):
            return
        while self._environments:
            closed = self._environments.pop()
            if closed.on_end is not None:
                closed.on_end()
            if closed.name == name:
                break
        if not self._stream.environment("end", name):
            self._end_paragraph()

    def _skip_environment(self, name: str) -> None:
        """Skip everything up to the end of an environment."""
        self._end_paragraph()
        while (token := self._stream.raw()) is not None:
            if token == "\\end" and self._stream.name() == name:
                return


def _without_options(code: str) -> str:
    """Code without the options and arguments of its environment, and what else is in their line."""
    at = 0
    while opened := _OPENS.match(code, at):
        depth = 0
        for bracket in _BRACKETS.finditer(code, opened.end() - 1):
            depth += 1 if bracket[0] in "[{" else -1
            if not depth:
                at = bracket.end()
                break
        else:
            break
    return code[max(at, code.find("\n", at)) :] if at else code


_HANDLERS: dict[str, Callable[[Any], None]] = {
    "title": _Converter._set_title,
    "maketitle": _Converter._make_title,
    "footnote": _Converter._footnote,
    "footnotetext": _Converter._footnote,
    "caption": _Converter._caption,
    "captionof": _Converter._caption,
    "ensuremath": _Converter._ensure_math,
    "item": _Converter._item,
    "abstract": _Converter._abstract,
    "newtheorem": _Converter._new_theorem,
    "newif": _Converter._new_switch,
    "csname": _Converter._csname,
    "usepackage": _Converter._use_package,
    "par": _Converter._end_paragraph,
    "xspace": _Converter._space,
    "symbol": _Converter._symbol,
    "char": _Converter._symbol,
    **{
        f"If{test}{branches}": partial(_Converter._if_argument, is_not=is_not, branches=branches)
        for test, is_not in (("Boolean", FALSE), ("NoValue", None), ("Value", NO_VALUE))
        for branches in ("TF", "T", "F")
    },
    **dict.fromkeys(tables.WITH_LENGTH, _Converter._dimension),
    **PACKAGES,
}
