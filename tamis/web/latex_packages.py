"""Commands of packages that print something else than their argument: quantities of siunitx, acronyms, glossaries."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from tamis.web import latex_tables as tables
from tamis.web.latex_macros import Stream
from tamis.web.latex_output import Options, Output
from tamis.web.latex_tokens import joined, tokens_of

_ENTRY = re.compile(r"\b(short|long|name)\s*=\s*(\{(?:[^{}]|\{[^{}]*\})*\}|[^,{}]*)")


class Packages(Output):
    """What the commands do."""

    def __init__(self, stream: Stream, options: Options) -> None:
        super().__init__(stream, options)
        self._acronyms: dict[str, tuple[list[str], list[str]]] = {}  # short and long

    def _quantity(self, arguments: str) -> None:
        """Numbers and units of siunitx: `\\SI{5}{\\kilo\\metre}`; `arguments` has "n" for a number and "u" for a unit."""
        self._stream.option()
        shown = []
        for kind in arguments:
            given = self._stream.argument()
            if kind == "u":
                given = [tables.UNITS.get(token[1:], token) if token[0] == "\\" else token for token in given]
                given = ["·" if token in "~.," else token.replace("~", "·") for token in given]
            shown.append(joined(given).strip())
        text = "\u2013".join(shown[:2]) + f" {shown[2]}" if len(shown) == 3 else " ".join(shown)
        self._stream.push(tokens_of(text), free=True)

    def _new_acronym(self) -> None:
        self._stream.option()
        key = self._stream.name()
        self._acronyms[key] = self._stream.argument(), self._stream.argument()

    def _declare_acronym(self) -> None:
        """`\\DeclareAcronym{key}{short=..., long=...}`, `\\newglossaryentry{key}{name=...}`"""
        key, entries = self._stream.name(), joined(self._stream.argument())
        found = {name: value.strip("{} ") for name, value in _ENTRY.findall(entries)}
        short = found.get("short") or found.get("name")
        if short:
            self._acronyms[key] = tokens_of(short), tokens_of(found.get("long", short))

    def _acronym(self, form: str) -> None:
        """A short or a long form by its key; a key that is not known is shown, because it often is the short form."""
        self._stream.option()
        key = self._stream.name()
        short, long = self._acronyms.get(key, ([key], [key]))
        shown = {"short": short, "long": long, "full": [*long, " (", *short, ")"]}[form.removesuffix("s")]
        self._stream.push([*shown, "s"] if form.endswith("s") else shown)


_ACRONYMS = {
    "short": "gls Gls GLS glsentryshort acrshort Acrshort ac Ac acs Acs",
    "shorts": "glspl Glspl acp Acp acrshortpl acsp",
    "long": "acrlong Acrlong acl Acl glsentrylong",
    "full": "acrfull Acrfull acf Acf",
}
_QUANTITIES = {"nu": "SI qty", "u": "si unit", "n": "num ang", "nnu": "SIrange qtyrange"}
PACKAGES: dict[str, Callable[[Any], None]] = {
    **{
        name: partial(Packages._quantity, arguments=kinds)
        for kinds, names in _QUANTITIES.items()
        for name in names.split()
    },
    **{name: partial(Packages._acronym, form=form) for form, names in _ACRONYMS.items() for name in names.split()},
    "newacronym": Packages._new_acronym,
    "DeclareAcronym": Packages._declare_acronym,
    "newglossaryentry": Packages._declare_acronym,
}
"""By the name of the command."""
