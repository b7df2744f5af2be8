"""Licences of source code: detect them in notices and licence files, judge them, and remove notices.

    notice or licence file --detect--> SPDX expression ("MIT OR Apache-2.0") --kind_of--> permissive, weak copyleft, ...

Licences are found by their SPDX tags and by sentences that only their texts and notices have. Names are those of the SPDX list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Batch, Column
from tamis.errors import ParameterError
from tamis.operators import Filter, Map, Rule, Scores, one_of, operator
from tamis.text.clean import Rewrite, mask_of, strings

Kind: TypeAlias = Literal["permissive", "weak copyleft", "copyleft", "other"]
KINDS: tuple[Kind, ...] = ("permissive", "weak copyleft", "copyleft", "other")
"""From the least to the most restrictive."""

UNKNOWN = "LicenseRef-unknown"
"""The licence of a file of that name whose text is none of those known."""

PERMISSIVE = frozenset(
    name.lower()
    for name in (
        "0BSD", "AFL-3.0", "Apache-1.1", "Apache-2.0", "Artistic-2.0", "BlueOak-1.0.0", "BSD-1-Clause", "BSD-2-Clause",
        "BSD-2-Clause-Patent", "BSD-3-Clause", "BSD-3-Clause-Clear", "BSD-3-Clause-LBNL", "BSD-4-Clause", "BSD-Source-Code",
        "BSL-1.0", "CC0-1.0", "CNRI-Python", "curl", "ECL-2.0", "EFL-2.0", "FSFAP", "FTL", "HPND", "ICU", "IJG", "ISC",
        "libpng-2.0", "Libpng", "libtiff", "MIT", "MIT-0", "MIT-CMU", "MIT-Modern-Variant", "MulanPSL-2.0", "NCSA", "NTP",
        "OpenSSL", "PHP-3.01", "PostgreSQL", "PSF-2.0", "Python-2.0", "Ruby", "SGI-B-2.0", "TCL", "Unicode-3.0",
        "Unicode-DFS-2016", "Unlicense", "UPL-1.0", "bzip2-1.0.6", "Vim", "W3C", "WTFPL", "X11", "Xnet", "Zlib",
        "zlib-acknowledgement", "ZPL-2.1",
    )
)  # fmt: skip
"""Licences on the list of permissive ones by Blue Oak Council (version 15), as far as they are in use, and Unicode-3.0, the
successor of Unicode-DFS-2016."""
_WEAK = ("lgpl-", "mpl-", "epl-", "cddl-", "cpl-", "eupl-", "cecill-c", "ms-pl", "apsl-")
_STRONG = ("gpl-", "agpl-", "osl-", "cc-by-sa-", "cecill-2", "sspl-", "gfdl-")

# ------------------------------------------------------------------------------------------------------------- detection

_SPDX = re.compile(r"SPDX-License-Identifier:[ \t]*([A-Za-z0-9.+() -]{2,200}?)[ \t]*(?:\*/|-->|--|#\}|[\"'\r\n]|$)")
_GNU = (
    r"gnu (?P<{0}kind>affero |lesser |library )?(?:general )?public licen[sc]e"
    r"(?P<{0}middle>[^.]{{0,120}}?)\b(?:version|v\.?) ?(?P<{0}version>[123](?:\.\d)?)"
)
_GNU_TITLE = re.compile(_GNU.format("").replace("[^.]{0,120}?", " ?") + r",? \d+ (?:june|november|february)")
_GNU_NOTICE = re.compile(_GNU.format(""))
_CREATIVE = re.compile(
    r"attribution(?P<more>(?:[ -](?:noncommercial|sharealike|noderivatives|noderivs))*) (?P<version>[1-4]\.\d)"
)
_TEXTS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("Apache-2.0", r"apache license,? version 2\.0|apache-2\.0|apache\.org/licenses/license-2\.0"),
        ("MPL-2.0", r"mozilla public license,? (?:version|v\.) ?2\.0"),
        ("MPL-1.1", r"mozilla public license version 1\.1"),
        ("EPL-2.0", r"eclipse public license (?:- )?(?:version|v\.?) ?2\.0"),
        ("EPL-1.0", r"eclipse public license (?:- )?(?:version|v\.?) ?1\.0"),
        ("CDDL-1.0", r"common development and distribution license (?:\(cddl\) )?version 1\.0"),
        ("EUPL-1.2", r"european union public licen[sc]e v\. ?1\.2"),
        ("Unlicense", r"this is free and unencumbered software released into the public domain"),
        ("CC0-1.0", r"cc0 1\.0 universal|creativecommons\.org/publicdomain/zero/1\.0"),
        ("BSL-1.0", r"boost software license[ ,-]+version 1\.0"),
        ("WTFPL", r"do what the fuck you want to public license"),
        ("Artistic-2.0", r"artistic license 2\.0"),
        ("Python-2.0", r"python software foundation license version 2|psf license agreement for python"),
        ("PostgreSQL", r"permission to use, copy, modify, and distribute this software and its documentation for any purpose, "
         r"without fee, and without a written agreement is [a-z]+ granted"),
        ("NCSA", r"university of illinois(?:/|\s)ncsa open source license"),
        ("UPL-1.0", r"the universal permissive license"),
        ("MulanPSL-2.0", r"mulan psl v2|mulan permissive software license, ?version 2"),
        ("OFL-1.1", r"sil open font license,? version 1\.1"),
        ("Zlib", r"altered source versions must be plainly marked as such"),
        ("SSPL-1.0", r"server side public license"),
        ("BUSL-1.1", r"business source license 1\.1"),
        ("ISC", r"permission to use, copy, modify,? and(?:/or)? distribute this software for any purpose with or without fee "
         r"is [a-z]+ granted, provided that"),
        ("0BSD", r"permission to use, copy, modify,? and(?:/or)? distribute this software for any purpose with or without fee "
         r"is [a-z]+ granted\. "),
        ("MIT", r"permission is [a-z]+ granted, free of charge, to any person obtaining a copy of this software"),
        ("MIT", r"(?:licen[sc]ed|released|distributed|available)[a-z, ]{0,30} under (?:the )?(?:terms of (?:the )?)?"
         r"(?:mit|expat)\b"),
        ("BSD-3-Clause", r"(?:under (?:the|a) )?(?:bsd-3|3-clause bsd|bsd 3-clause|new bsd|modified bsd)[a-z -]*licen[sc]e"),
        ("BSD-2-Clause", r"(?:under (?:the|a) )?(?:bsd-2|2-clause bsd|bsd 2-clause|simplified bsd)[a-z -]*licen[sc]e"),
    )
)  # fmt: skip
_BSD = "redistribution and use in source and binary forms, with or without modification, are permitted"
_ALTERED = "altered source versions must be plainly marked as such"
_MIT_NOTICE = "copyright notice and this permission notice"
_EITHER = re.compile(
    r"choice of one of|dual[- ]licen[sc]ed under|under the terms of either|either of the following licen[sc]es"
)
"""Notices that let the user choose."""
_MARKS = re.compile(r"(?m)^[ \t]*(?:/?\*+/?|//+|#+|--|;+|%+|\.\.|dnl\b|rem\b|')?[ \t]*")
_SPACE = re.compile(r"\s+")
_DETECTED_CHARS = 40_000
"""More of a file is not looked at; the longest of the usual licences, the GPL, has 35,000 characters."""


_LONG = ("MPL-", "EPL-", "CDDL-", "EUPL-", "Apache-", "CC", "Artistic-", "OFL-", "MulanPSL-")
_LONG_CHARS, _TITLE_CHARS = 4000, 400


def detect(text: str) -> str | None:
    """The SPDX expression of the licence of a licence file or a notice; None if there is none.

    >>> detect("/* Copyright 2020 Ann.\\n * SPDX-License-Identifier: MIT */"), detect("x = 1")
    ('MIT', None)
    """
    text = text[:_DETECTED_CHARS]
    tags = dict.fromkeys(" ".join(found[1].split()) for found in _SPDX.finditer(text))
    if tags:
        return _joined(list(tags), " AND ")
    plain = _SPACE.sub(" ", _MARKS.sub("", text)).lower().replace("\u2019", "'")
    found = sorted(_in_text(plain))
    if found and found[0][0] < _TITLE_CHARS and found[0][1].startswith(_LONG) and len(plain) > _LONG_CHARS:
        found = found[:1]  # the text itself, which names others that are compatible with it
    return (" OR " if _EITHER.search(plain) else " AND ").join(dict.fromkeys(name for _, name in found)) or None


def _in_text(plain: str) -> Iterator[tuple[int, str]]:
    """(position, name) of each licence that a text is or refers to."""
    title = _GNU_TITLE.search(plain[:600])
    if title is not None:  # the text itself, which names the other licences of GNU
        yield title.start(), _gnu_name(title, plain)
        return
    notice = _GNU_NOTICE.search(plain)
    if notice is not None:
        yield notice.start(), _gnu_name(notice, plain)
    creative = _CREATIVE.search(plain)
    if creative is not None:
        letters = {"noncommercial": "NC", "sharealike": "SA", "noderivatives": "ND", "noderivs": "ND"}
        parts = [letters[part] for part in re.split("[ -]", creative["more"]) if part]
        yield creative.start(), "-".join(["CC-BY", *parts, creative["version"]])
    at = plain.find(_BSD)
    for name, pattern in _TEXTS:
        found = pattern.search(plain)
        if found is not None and not (name == "Zlib" and at >= 0):
            yield found.start(), _mit_name(plain, found) if name == "MIT" else name
    if at >= 0:
        endorse = "neither the name" in plain or "may not be used to endorse" in plain
        clauses = 4 if "all advertising materials" in plain else 3 if endorse else 2
        yield at, "bzip2-1.0.6" if _ALTERED in plain else f"BSD-{clauses}-Clause"


def _gnu_name(found: re.Match[str], plain: str) -> str:
    kind = {"affero ": "AGPL", "lesser ": "LGPL", "library ": "LGPL"}.get(found["kind"] or "", "GPL")
    version = found["version"] if "." in found["version"] else f"{found['version']}.0"
    later = re.search(r"any later version|or later|or newer", plain[found.start() : found.end() + 120])
    return f"{kind}-{version}-{'or-later' if later else 'only'}"


def _mit_name(plain: str, found: re.Match[str]) -> str:
    """The text of MIT-0 does not demand the notice; that of SGI demands the dates too."""
    if not found[0].startswith("permission") or _MIT_NOTICE in plain:
        return "MIT"
    return "SGI-B-2.0" if "dates of first publication" in plain else "MIT-0"


def _joined(expressions: Sequence[str], word: str) -> str:
    if len(expressions) == 1:
        return expressions[0]
    return word.join(f"({each})" if " " in each else each for each in expressions)


_CHOICE = re.compile(r"[-_.](mit|apache|bsd|unlicense|zlib|cc0|gpl)", re.IGNORECASE)


def detect_files(files: Mapping[str, str]) -> str | None:
    """The licence that the licence files of a folder give, by name: LICENSE-MIT beside LICENSE-APACHE is a choice."""
    found = [(name, detect(text) or UNKNOWN) for name, text in sorted(files.items())]
    licences = list(dict.fromkeys(licence for _, licence in found))
    choice = len(found) > 1 and all(_CHOICE.search(name) for name, _ in found)
    return _joined(licences, " OR " if choice else " AND ") if licences else None


# --------------------------------------------------------------------------------------------------------------- judging

_TOKENS = re.compile(r"[A-Za-z0-9.+_:-]+|[()]")
_MOST_CHARS = 2000


def kind_of(expression: str, known: Mapping[str, Kind] | None = None) -> Kind:
    """How restrictive an SPDX expression is: `OR` is a choice, `AND` adds up, exceptions (`WITH`) count for nothing.

    `known` has the kinds of licences, by name in lower case, that are to count differently.

    >>> kind_of("MIT OR GPL-2.0-only"), kind_of("MIT AND LGPL-2.1-or-later"), kind_of("apache-2.0"), kind_of("((")
    ('permissive', 'weak copyleft', 'permissive', 'other')
    """
    tokens = _TOKENS.findall(expression) if len(expression) <= _MOST_CHARS else []
    values: list[int] = []
    signs: list[str] = []

    def reduce(least: int) -> None:
        while signs and _RANKS.get(signs[-1], 0) >= least:
            right, left = values.pop(), values.pop()
            values.append(min(left, right) if signs.pop() == "OR" else max(left, right))

    try:
        skipped = False
        for token in tokens:
            sign = token.upper()
            if skipped or sign == "WITH":
                skipped = sign == "WITH" and not skipped
            elif token == "(":
                signs.append(token)
            elif token == ")":
                reduce(1)
                signs.pop()
            elif sign in _RANKS:
                reduce(_RANKS[sign])
                signs.append(sign)
            else:
                name = token.lower()
                values.append(KINDS.index((known or {}).get(name) or _kind_of_name(name.removesuffix("+"))))
        reduce(1)
    except IndexError:
        return "other"
    return KINDS[values[0]] if len(values) == 1 and not signs else "other"


_RANKS = {"OR": 1, "AND": 2}


def _kind_of_name(name: str) -> Kind:
    if name in PERMISSIVE:
        return "permissive"
    if name.startswith(_WEAK):
        return "weak copyleft"
    return "copyleft" if name.startswith(_STRONG) else "other"


# ------------------------------------------------------------------------------------------------------------- operators


@operator(reads="text", version=2)
class LicenseDetect(Map):
    """Add the licence of each file as an SPDX expression, found in its SPDX tag or its notice, in column `to`.

    A file without a notice keeps the value that the column has, such as the licence of its repository from `GitReader`. The
    first 40,000 characters are searched, for 30 licences.

    >>> batch = Batch.from_rows([{"text": "# SPDX-License-Identifier: ISC", "license": "MIT"}, {"text": "", "license": "MIT"}])
    >>> LicenseDetect().apply(batch)["license"].to_pylist()
    ['ISC', 'MIT']
    """

    column: str = "text"
    to: str = "license"

    cost = 2.0

    def writes(self) -> tuple[str, ...]:
        return (self.to,)

    def optional_reads(self) -> tuple[str, ...]:
        return (self.to,)

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        text = strings(batch["text"])
        head = pc.utf8_slice_codeunits(text, 0, _DETECTED_CHARS)
        rows = np.flatnonzero(mask_of(pc.match_substring_regex(head, _MENTIONS)))
        before = strings(batch[self.to]).to_pylist() if self.to in batch.columns else [None] * len(batch)
        for row, content in zip(rows.tolist(), head.take(pa.array(rows)).to_pylist(), strict=True):
            before[row] = detect(content) or before[row]
        return {self.to: pa.array(before, pa.string())}


_MENTIONS = r"(?i)licen[sc]e|copyright|permission|redistribution|public domain|attribution"


@operator(reads="license", writes="license_kind", version=2)
class License(Filter):
    """Keep files under a licence of the given kinds: "permissive", "weak copyleft", "copyleft", "other".

    `license` is an SPDX expression, in any case, or a list of such names, all of which apply. Permissive are the licences that
    Blue Oak Council lists as such, as in The Stack (Kocetkov et al. 2022). A file without a licence is dropped with the reason
    "license_kind is missing". `allow` and `refuse` name licences that count as permissive, or as "other", whatever their kind.

    >>> rows = [{"license": "MIT"}, {"license": "GPL-3.0-only OR Apache-2.0"}, {"license": "GPL-3.0-only"}, {"license": None}]
    >>> License().score(Batch.from_rows(rows))["license_kind"].to_pylist()
    ['permissive', 'permissive', 'copyleft', None]
    """

    keep: Sequence[Kind] = ("permissive",)
    allow: Sequence[str] = ()
    refuse: Sequence[str] = ()
    column: str = "license"

    verdict_parameters = frozenset({"keep"})

    def check(self) -> None:
        if not self.keep:
            raise ParameterError(f"`keep` of `{self.name}` is empty", hint=f"kinds are {', '.join(KINDS)}")

    def score(self, batch: Batch) -> Scores:
        values = batch["license"].to_pylist()
        differing: dict[str, Kind] = {name.lower(): "permissive" for name in self.allow}
        differing |= {name.lower(): "other" for name in self.refuse}
        known: dict[str, str] = {}
        found = []
        for value in values:
            names = [value] if isinstance(value, str) else [each for each in value or () if each]
            text = " AND ".join(f"({name})" for name in names if name.strip())
            if text and text not in known:
                known[text] = kind_of(text, differing)
            found.append(known.get(text))
        return {"license_kind": pa.array(found, pa.string())}

    def rules(self) -> list[Rule]:
        return [one_of("license_kind", self.keep)]


_BLOCKS = (
    *(("/*", "*/"), ("<!--", "-->"), ('"""', '"""'), ("'''", "'''"), ("(*", "*)"), ("{-", "-}"), ("#|", "|#")),
    ("--[[", "]]"),
)
_LINES = ("//", "#", "--", ";", "%", "REM ", "rem ", "dnl ", '"', "..")
_NOTICE = re.compile(r"copyright|\blicen[sc]ed?\b|spdx-license-identifier|\(c\) ?(?:19|20)\d\d", re.IGNORECASE)
_KEPT_LINE = re.compile(r"#!.*\n|[ \t]*#.*coding[:=].*\n|<\?(?:xml|php).*\n?|\ufeff|[ \t]*\r?\n")


@operator(reads="text", version=1)
class LicenseNoticeRemoval(Rewrite):
    """Remove the comments with a copyright or licence notice that a source file begins with.

    As RedPajama did, but only comments that mention a copyright or a licence: a description that follows is kept, and so are
    `#!` lines and declarations of the encoding. Comments of the usual languages are known by their marks.

    >>> text = "#!/bin/sh\\n# Copyright 2020 Ann\\n# MIT License\\n\\n# Says hello.\\necho hello\\n"
    >>> LicenseNoticeRemoval().apply(Batch.from_rows([{"text": text}]))["text"][0].as_py()
    '#!/bin/sh\\n# Says hello.\\necho hello\\n'
    """

    def clean(self, text: Column) -> Column:
        head = pc.utf8_slice_codeunits(text, 0, _DETECTED_CHARS)
        chosen = mask_of(pc.match_substring_regex(head, r"(?i)copyright|licen[sc]e|spdx|\(c\)"))
        if not chosen.any():
            return text
        changed = [without_notice(each) for each in text.filter(pa.array(chosen)).to_pylist()]
        return pc.replace_with_mask(text, pa.array(chosen), pa.array(changed, text.type))


def without_notice(text: str) -> str:
    """A source file without the notices at its beginning."""
    at = kept_until = 0
    while (line := _KEPT_LINE.match(text, at)) is not None and line.end() > at:
        at = line.end()
        kept_until = at if line[0].strip() else kept_until
    start = at
    while (stop := _comment_end(text, at)) > at and _NOTICE.search(text, at, stop):
        at = stop
        while at < len(text) and text[at] in " \t\r\n":
            at += 1
        at = text.rfind("\n", 0, at) + 1 if "\n" in text[stop:at] else at
    return text[:kept_until] + text[at:] if at > start else text


def _comment_end(text: str, at: int) -> int:
    """The end of the comment that begins at a place; the place itself if none does."""
    begin = len(text[at:]) - len(text[at:].lstrip(" \t")) + at if text[at : at + 1] in " \t" else at
    for opening, closing in _BLOCKS:
        if text.startswith(opening, begin):
            end = text.find(closing, begin + len(opening))
            return end + len(closing) if end >= 0 else at
    for mark in _LINES:
        if text.startswith(mark, begin):
            return _lines_end(text, begin, mark)
    return at


def _lines_end(text: str, at: int, mark: str) -> int:
    """The end of the lines that begin with a mark."""
    while True:
        end = text.find("\n", at)
        if end < 0:
            return len(text)
        following = end + 1
        while following < len(text) and text[following] in " \t":
            following += 1
        if not text.startswith(mark.strip(), following):
            return end
        at = following
