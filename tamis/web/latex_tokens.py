r"""The tokens of LaTeX: commands, braces, formulas and text.

    \section{A $x$}  -->  "\section", "{", "A ", "$", "x", "$", "}"

Comments are no tokens. Code is one token, with all that is in it, because nothing in it is LaTeX; for that, environments
that the document declares for code are found first.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator

from tamis.web.latex_tables import CODE

PARAGRAPH = "\n\n"
BEGIN_DOCUMENT, END_DOCUMENT = r"\begin{document}", r"\end{document}"
COMMAND = re.compile(r"\\[a-zA-Z@]+\*?")
_TOKEN = re.compile(
    r"\\(?:begin|end)\s{0,9}\{\s{0,9}document\s{0,9}\}"
    r"|\\(?:url|nolinkurl|href)\s{0,9}\{[^{}\n]{0,2000}\}"  # an address, in which % is no comment
    r"|\\(?:[a-zA-Z@]+\*?|[^a-zA-Z@]|$)"  # a command
    r"|%[^\n]*(?:\n[ \t]*)?(?:\n\s*)?"  # a comment, which includes the end of its line
    r"|\n[ \t]*\n\s*"  # the end of a paragraph
    r"|[{}$&~#\[\]]"
    r"|[^\\%{}$&~#\[\]\n]+|\n",
    re.DOTALL,
)
_DOCUMENT = re.compile(r"\\(?:begin|end)\s*\{\s*document\s*\}")
_MAY_HAVE_CODE = re.compile(r"\\(?:verb|lstinline|mintinline|MakeShortVerb|DefineShortVerb)|\{ltx(?:doc|guide)\}")
_CODE_BEGINS = (
    r"\\(?:verb|lstinline|mintinline)\*?(?:\[[^\]\n]{0,200}\])?(?:\{[a-z]{1,20}\}(?=[{|!]))?(?P<inline>[^a-zA-Z*\s])"
    r"|\\begin\s{0,9}\{(?P<name>[a-zA-Z]+\*?)\}"
    r"|\\(?P<change>(?:Make|Define|Delete|Undefine)ShortVerb)\*?[ \t]*\{?\\(?P<changed>[^a-zA-Z\s])\}?"
    r"|\\(?:url|nolinkurl|href)\s{0,9}\{[^{}\n]{0,2000}\}|\\[^a-zA-Z]|%[^\n]*"  # what looks like code in here is none
)
_DECLARES_CODE = re.compile(
    r"\\(lstnewenvironment|DefineVerbatimEnvironment|(?:re)?newtcblisting|DeclareTCBListing|NewTCBListing|newminted"
    r"|newverbatim)\s*(?:\[[^\]]{0,400}\]\s*)?\{([a-zA-Z]+\*?)\}"
)
_MOST_INLINE = 1_000
"""Characters of code within a line."""


def code_environments(sources: Iterable[str]) -> frozenset[str]:
    r"""Environments whose content is code: those of packages, and those that a document declares.

    >>> sorted(code_environments([r"\lstnewenvironment{sh}{}{} \newminted{r}{}"]) - CODE)
    ['rcode', 'sh']
    """
    declared: set[str] = set()
    for source in sources:
        for command, name in _DECLARES_CODE.findall(source):
            declared.add(f"{name}code" if command == "newminted" else name)
    return CODE | declared


def tokens_of(source: str, code: frozenset[str] = CODE) -> list[str]:
    """The tokens of a source without comments; what is in the environments of `code` is one token.

    >>> tokens_of(r"\\a{b}% c" + chr(10) + "d")
    ['\\\\a', '{', 'b', '}', 'd']
    """
    has_code = _MAY_HAVE_CODE.search(source) or any(f"{{{name}}}" in source for name in code)
    found = []
    for token in _with_code(source, code) if has_code else _TOKEN.findall(source):
        first = token[0]
        if first == "%":
            if token.count("\n") > 1:
                found.append(PARAGRAPH)
        elif first == "\n" and token.count("\n") > 1:
            found.append(PARAGRAPH)
        elif first == "\\" and token[-1] == "}" and _DOCUMENT.fullmatch(token):
            found.append(BEGIN_DOCUMENT if token[1] == "b" else END_DOCUMENT)
        else:
            found.append(token)
    return found


def _with_code(source: str, code: frozenset[str]) -> Iterator[str]:
    """The tokens of a source with code, which is one token: `\\begin{verbatim}...\\end{verbatim}`, `\\verb|...|`."""
    done = at = 0
    missing: set[str] = set()  # ends that are not in the rest: without it, searching for them takes quadratic time
    short = "|" if "{ltxdoc}" in source or "{ltxguide}" in source else ""  # characters that begin and end code
    begins = _code_begins(short)
    while found := begins.search(source, at):
        start, at = found.span()
        if found["change"]:
            yield from _TOKEN.findall(source[done:start])
            done = at
            short = short.replace(found["changed"], "")
            short += found["changed"] if found["change"][0] in "MD" and found["change"] != "DeleteShortVerb" else ""
            begins = _code_begins(short)
            continue
        inline = found["inline"] or (found["short"] if short else None)
        closing = (
            {"{": "}"}.get(inline, inline) if inline else f"\\end{{{found['name']}}}" if found["name"] in code else ""
        )
        if not closing or closing in missing:
            continue
        end = source.find(closing, at, at + _MOST_INLINE if inline else None)
        if end < 0 and not inline:
            missing.add(closing)
        elif end >= 0 and not (inline and "\n" in source[at:end]):
            yield from _TOKEN.findall(source[done:start])
            at = done = end + len(closing)
            yield source[start:at] if source[start] == "\\" else f"\\verb{source[start:at]}"
    yield from _TOKEN.findall(source[done:])


@functools.cache
def _code_begins(short: str) -> re.Pattern[str]:
    return re.compile(rf"(?P<short>[{re.escape(short)}])|{_CODE_BEGINS}" if short else _CODE_BEGINS)


def joined(tokens: Iterable[str]) -> str:
    """Tokens as source. A space separates a command from letters that would become part of its name."""
    parts: list[str] = []
    for token in tokens:
        if parts and token[:1].isalpha() and COMMAND.fullmatch(parts[-1]):
            parts.append(" ")
        parts.append(token)
    return "".join(parts)
