"""The tokens of LaTeX with the macros that a document defines expanded.

    tokens (latex_tokens.py)  -->  Stream: pushes back what a macro expands to  -->  tokens without user-defined macros

Every token that a macro produces is counted, and a document whose macros produce more than `most` ends with `TooFar`: neither
a macro that calls itself nor ten macros that each call the next one ten times takes longer than that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tamis.web.latex_tokens import BEGIN_DOCUMENT, COMMAND, END_DOCUMENT, PARAGRAPH

MOST_DEPTH = 2_000
"""Frames of macros that call each other; tail calls take none."""
_MOST_OPTION = 400
"""Tokens in brackets."""


class TooFar(Exception):
    """The macros of a document expand too far."""


@dataclass
class Macro:
    """A command that the document defines."""

    body: list[str]
    pattern: list[str] = field(default_factory=list)
    """What follows it: "#" for an argument, "*" for a star that may be missing, anything else as it is."""
    defaults: dict[int, list[str]] = field(default_factory=dict)
    """Arguments that are given in brackets or not at all, by their place in `pattern`, and what they are then."""
    alias: str | None = None
    """The command that it is another name of, also after that one is redefined."""


TRUE, FALSE, NO_VALUE = ["\\BooleanTrue"], ["\\BooleanFalse"], ["\\NoValue"]


class Stream:
    """Tokens in order, with macros expanded."""

    def __init__(self, tokens: list[str], most: int) -> None:
        self._frames: list[tuple[list[str], int]] = []
        self._tokens, self._at = tokens, 0
        self.left = most
        self.macros: dict[str, Macro] = {}
        self.in_preamble = BEGIN_DOCUMENT in tokens

    # ------------------------------------------------------------------------------------------------------------ tokens

    def raw(self) -> str | None:
        """The next token, not expanded; None at the end."""
        while self._at >= len(self._tokens):
            if not self._frames:
                return None
            self._tokens, self._at = self._frames.pop()
        self._at += 1
        return self._tokens[self._at - 1]

    def next(self) -> str | None:
        """The next token that is no macro; None at the end."""
        while True:
            token = self.raw()
            if token is None or token[0] != "\\":
                return token
            if token in _PRIMITIVES:
                _PRIMITIVES[token](self)
                continue
            macro, star = self.macros.get(token), ""
            if macro is None and token[-1] == "*":
                macro, star = self.macros.get(token[:-1]), "*"
            if macro is None:
                return token
            if macro.alias is not None:
                star = star or "*" * (COMMAND.fullmatch(macro.alias) is not None and self.star())
                return macro.alias + star
            if star:
                self.push(["*"], free=True)
            self._expand(macro)

    def push(self, tokens: list[str], *, free: bool = False) -> None:
        """Continue with these tokens."""
        if not tokens:
            return
        if not free:
            self.left -= len(tokens)
            if self.left < 0:
                raise TooFar
        if self._at < len(self._tokens):
            self._frames.append((self._tokens, self._at))
            if len(self._frames) > MOST_DEPTH:
                raise TooFar
        self._tokens, self._at = tokens, 0

    def peek(self) -> str | None:
        """The next token, not expanded, without taking it."""
        token = self.raw()
        if token is not None:
            self._at -= 1
        return token

    def skip_spaces(self) -> str | None:
        """The next token after spaces, without taking it."""
        while (token := self.peek()) is not None and token.isspace() and token != PARAGRAPH:
            self.raw()
        if token is not None and token[0] in " \t" and token[0] != token:
            self.raw()
            self.push([token.lstrip()], free=True)
            token = token.lstrip()
        return token

    # --------------------------------------------------------------------------------------------------------- arguments

    def argument(self) -> list[str]:
        """The next argument: a group without its braces, or one token."""
        token = self.skip_spaces()
        if token is None or token in ("}", PARAGRAPH, BEGIN_DOCUMENT, END_DOCUMENT):
            return []
        self.raw()
        if token == "{":
            return self._until_closed()
        if token[0] != "\\" and len(token) > 1:  # a text: its first character
            self.push([token[1:]], free=True)
            return [token[0]]
        return [token]

    def _until_closed(self) -> list[str]:
        """Everything up to the brace that closes a group. A group of the preamble that is never closed ends with it."""
        found: list[str] = []
        depth = 1
        while (token := self.raw()) is not None:
            if token == "{":
                depth += 1
            elif token == "}":
                depth -= 1
                if not depth:
                    break
            elif token == BEGIN_DOCUMENT and self.in_preamble:
                self.push([token], free=True)
                break
            found.append(token)
        return found

    def option(self) -> list[str] | None:
        """What stands in brackets; None if there are none."""
        if self.skip_spaces() != "[":
            return None
        self.raw()
        found: list[str] = []
        depth = 0
        while (token := self.raw()) is not None and not (token == "]" and depth <= 0):
            found.append(token)
            depth += (token == "{") - (token == "}")
            if len(found) > _MOST_OPTION or token == PARAGRAPH:
                self.push(["[", *found])  # no option: a bracket in the text
                return None
        return found

    def skip_group(self) -> None:
        """Skip an argument in braces."""
        if self.skip_spaces() == "{":
            self.raw()
            self._until_closed()

    def star(self) -> bool:
        """Whether a star follows, which is taken."""
        return self._take("*")

    def name(self) -> str:
        """An argument as text, such as the name of an environment."""
        return "".join(self.argument()).strip()

    # ------------------------------------------------------------------------------------------------------------ macros

    def _expand(self, macro: Macro) -> None:
        self.left -= 1
        if self.left < 0:
            raise TooFar
        if not macro.pattern and "#" not in macro.body:
            self.push(macro.body)
            return
        arguments = self._arguments(macro)
        self.left -= sum(map(len, arguments))
        if self.left < 0:
            raise TooFar
        made: list[str] = []
        body = iter(macro.body)
        for token in body:
            if token != "#":
                made.append(token)
                continue
            number = next(body, "")
            if number[:1].isdigit() and 0 < int(number[0]) <= len(arguments):
                made += arguments[int(number[0]) - 1]
                if len(number) > 1:
                    made.append(number[1:])
            elif number == "#":  # of a definition within the definition
                made.append(number)
            else:
                made += [token, number] if number else [token]
            if len(made) > self.left:
                raise TooFar
        self.push(made)

    def _arguments(self, macro: Macro) -> list[list[str]]:
        found: list[list[str]] = []
        for place, part in enumerate(macro.pattern):
            if place in macro.defaults:
                given = self.option()
                found.append(macro.defaults[place] if given is None else given)
            elif part == "*":
                found.append(TRUE if self.star() else FALSE)
            elif part[0] != "#":
                self._take(part)
            else:
                following = macro.pattern[place + 1] if place + 1 < len(macro.pattern) else "#"
                found.append(self.argument() if following[0] in "#*" else self._until(following))
        return found

    def _if_next(self) -> None:
        """`\\@ifnextchar[{...}{...}`"""
        expected, yes, no = "".join(self.argument()), self.argument(), self.argument()
        self.push(yes if (self.skip_spaces() or "").startswith(expected or "{") else no)

    def _if_star(self) -> None:
        yes, no = self.argument(), self.argument()
        self.push(yes if self.star() else no)

    def _if_undefined(self) -> None:
        name, yes, no = self.name(), self.argument(), self.argument()
        self.push(no if f"\\{name}" in self.macros else yes)

    def _second_of_four(self) -> None:
        """`\\mathchoice`: the style of formulas in a text."""
        self.push([self.argument() for _ in range(4)][1])

    def _take(self, literal: str) -> bool:
        """Take what a macro expects, if it follows."""
        token = self.peek()
        if token is None or not token.startswith(literal):
            return False
        self.raw()
        self.push([token[len(literal) :]] if token != literal else [], free=True)
        return True

    def _until(self, delimiter: str) -> list[str]:
        found: list[str] = []
        depth = 0
        while (token := self.peek()) is not None:
            if (not depth and token == delimiter) or token in (BEGIN_DOCUMENT, END_DOCUMENT):
                break
            if not depth and delimiter[0] != "\\" and token[0] not in "\\{}" and delimiter in token:
                before, _, after = token.partition(delimiter)
                self.raw()
                self.push([part for part in (delimiter, after) if part], free=True)
                return [*found, before] if before else found
            self.raw()
            found.append(token)
            depth += (token == "{") - (token == "}")
            if token == PARAGRAPH or len(found) > _MOST_OPTION:
                break
        return found

    def define(self, command: str) -> bool:
        """Read a definition; returns False if the command is none."""
        reader = _DEFINITIONS.get(command.rstrip("*"))
        if reader is None:
            return False
        reader(self, command.rstrip("*"))
        return True

    def _set(self, name: str, macro: Macro, itself: list[str] | None = None) -> None:
        """Define a macro; `itself` is what its name within it stands for.

        A macro that calls itself is a loop that ends with a condition, which is not evaluated here: one round is expanded.
        """
        if name in macro.body:
            macro.body = [each for token in macro.body for each in ((itself or []) if token == name else [token])]
        self.macros[name] = macro

    def _new_command(self, command: str) -> None:
        name = self.name()
        count = self.option()
        default = self.option() if count is not None else None
        body = self.argument()
        digits = "".join(count or ()).strip()
        number = min(9, int(digits)) if digits.isdecimal() and len(digits) < 3 else 0
        if not COMMAND.fullmatch(name) and not re.fullmatch(r"\\[^a-zA-Z]", name):
            return
        if command == "\\providecommand" and name in self.macros:
            return
        if name not in _PROTECTED:
            self._set(name, Macro(body, ["#"] * number, {} if default is None else {0: default}))

    def _def(self, command: str) -> None:
        self.skip_spaces()
        name = self.raw() or ""
        pattern: list[str] = []
        while (token := self.raw()) not in (None, "{"):
            assert token is not None
            if token == "#":
                following = self.raw() or ""
                pattern.append("#")
                if len(following) > 1:
                    pattern.append(following[1:])
            elif token != PARAGRAPH:
                pattern.append(token)
            if len(pattern) > 40:
                return
        body = self._until_closed() if token == "{" else []
        if not COMMAND.fullmatch(name) or name in _PROTECTED:
            return
        before = self.macros.get(name) if command in ("\\edef", "\\xdef") else None
        self._set(name, Macro(body, pattern), before.body if before is not None else [])

    def _let(self, command: str) -> None:
        self.skip_spaces()
        name, other = self.raw() or "", self.skip_spaces()
        if other is not None and other.startswith("="):
            self.raw()
            if other.strip() != "=":
                return
            other = self.skip_spaces()
        self.raw()
        if other is None or not COMMAND.fullmatch(name) or name in _PROTECTED or name == other:
            return
        self.macros[name] = self.macros.get(other) or Macro([], alias=other)

    def _operator(self, command: str) -> None:
        name, body = self.name(), self.argument()
        if COMMAND.fullmatch(name):
            self.macros[name] = Macro(["\\operatorname", "{", *body, "}"])

    def _new_environment(self, command: str) -> None:
        name = self.name()
        count, default = self.option(), None
        if count is not None:
            default = self.option()
        digits = "".join(count or ()).strip()
        number = int(digits) if digits.isdecimal() and len(digits) == 1 else 0
        defaults = {} if default is None else {0: default}
        self._set_environment(name, ["#"] * number, defaults)

    def _set_environment(self, name: str, pattern: list[str], defaults: dict[int, list[str]]) -> None:
        self.macros[f"\\begin {name}"] = Macro(self.argument(), pattern, defaults)
        self.macros[f"\\end {name}"] = Macro(self.argument())

    def _new_document_command(self, command: str) -> None:
        """`\\NewDocumentCommand{\\name}{s O{1} m}{...}`"""
        name = self.name()
        pattern, defaults = _signature(self.argument())
        body = self.argument()
        if COMMAND.fullmatch(name) and name not in _PROTECTED:
            self._set(name, Macro(body, pattern, defaults))

    def _new_document_environment(self, command: str) -> None:
        name = self.name()
        self._set_environment(name, *_signature(self.argument()))

    def _paired_delimiter(self, command: str) -> None:
        """`\\DeclarePairedDelimiter{\\abs}{\\lvert}{\\rvert}`, which is used as `\\abs*{x}` or `\\abs[\\big]{x}`."""
        name, left, right = self.name(), self.argument(), self.argument()
        if COMMAND.fullmatch(name):
            self.macros[name] = Macro([*left, " ", "#", "3", " ", *right], ["*", "#", "#"], {1: []})

    def environment(self, kind: str, name: str) -> bool:
        """Expand the beginning or end of an environment that the document defines; False if it defines none."""
        macro = self.macros.get(f"\\{kind} {name}")
        if macro is not None:
            self._expand(macro)
        return macro is not None


def _signature(specification: list[str]) -> tuple[list[str], dict[int, list[str]]]:
    """The pattern and the defaults of a command, from the letters of xparse: `m`, `o`, `O{default}`, `s`."""
    pattern: list[str] = []
    defaults: dict[int, list[str]] = {}
    tokens = Stream(specification, 0)
    while (token := tokens.raw()) is not None:
        if token == "{":  # of a processor of arguments
            tokens._until_closed()
        for letter in token if token[0] != "\\" else "":
            if letter in "mvrRb":
                pattern.append("#")
            elif letter in "st":
                pattern.append("*")
            elif letter in "oOdD":
                defaults[len(pattern)] = NO_VALUE if letter in "od" else tokens.argument()
                pattern.append("#")
    return pattern, defaults


_PROTECTED = frozenset(
    [
        *("\\begin", "\\end", "\\documentclass", "\\input", "\\include", "\\item", "\\def", "\\newcommand"),
        *("\\LaTeX", "\\TeX", "\\LaTeXe", "\\BibTeX", "\\xspace", "\\cite", "\\ref"),
    ]
)
"""Commands on which the structure of a document depends; redefinitions of them are about layout."""

_PRIMITIVES = {
    "\\@ifnextchar": Stream._if_next,
    "\\@ifstar": Stream._if_star,
    "\\@ifundefined": Stream._if_undefined,
    "\\mathchoice": Stream._second_of_four,
}
"""Commands with which macros look at what follows them."""

_DEFINITIONS = {
    **dict.fromkeys(
        (
            "\\newcommand",
            "\\renewcommand",
            "\\providecommand",
            "\\DeclareRobustCommand",
            "\\newrobustcmd",
            "\\renewrobustcmd",
        ),
        Stream._new_command,
    ),
    **dict.fromkeys(("\\def", "\\gdef", "\\edef", "\\xdef"), Stream._def),
    **dict.fromkeys(("\\let",), Stream._let),
    **dict.fromkeys(("\\DeclareMathOperator",), Stream._operator),
    **dict.fromkeys(("\\newenvironment", "\\renewenvironment"), Stream._new_environment),
    **dict.fromkeys(
        (f"\\{verb}DocumentCommand" for verb in ("New", "Renew", "Provide", "Declare")), Stream._new_document_command
    ),
    **dict.fromkeys(
        (f"\\{verb}DocumentEnvironment" for verb in ("New", "Renew", "Provide", "Declare")),
        Stream._new_document_environment,
    ),
    "\\DeclarePairedDelimiter": Stream._paired_delimiter,
}
