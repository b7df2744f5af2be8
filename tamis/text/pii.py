r"""A step that masks personal data, found by patterns and checksums.

    text --RE2--> rows with candidates --Python, kind by kind--> spans of personal data --> text with masks, counts

Only rows with a candidate are processed in Python, and each kind examines a few characters around each candidate, so time is
linear in the text. Names and postal addresses have no fixed form and are not searched for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Batch, Column
from tamis.errors import ParameterError
from tamis.operators import Map, operator
from tamis.text.clean import mask_of, strings

Kind: TypeAlias = Literal["email", "iban", "card", "ip", "phone"]
Span: TypeAlias = tuple[int, int]

KINDS: tuple[Kind, ...] = ("email", "iban", "card", "ip", "phone")
"""In order of precedence: where two kinds overlap, the one less likely to match by chance wins."""

MASKS: dict[str, str] = {"email": "[EMAIL]", "iban": "[IBAN]", "card": "[CARD]", "ip": "[IP]", "phone": "[PHONE]"}

COUNTS: dict[str, str] = {
    "email": "num_emails", "iban": "num_ibans", "card": "num_cards", "ip": "num_ips", "phone": "num_phones",
}  # fmt: skip

# What a row must match to be searched. Each pattern matches more than its kind, but few rows.
_CANDIDATES: dict[str, str] = {
    "email": r"[^\s@]@(?:\[|[^\s@]+\.[^\s@])",
    "iban": r"[A-Z]{2}[0-9]{2}[ -]?[A-Z0-9]{4}",
    "card": r"[0-9](?:[ -]?[0-9]){12}",
    "ip": r"[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}|[0-9A-Fa-f]{0,4}:[0-9A-Fa-f]{0,4}:[0-9A-Fa-f:]",
    "phone": "|".join(
        (
            r"\+[1-9](?:[ .\-/()]{0,2}[0-9]){7}|\b00[1-9][0-9]{0,2}[ .\-/]",
            r"[2-9][0-9]{2}(?:\)[ .\-]?|[ .\-])[2-9][0-9]{2}[ .\-][0-9]{4}",
            r"0[1-9][ .\-][0-9]{2}[ .\-][0-9]{2}[ .\-]|0[1-9][0-9]{1,4}(?:[ \-/]|\)[ \-/]?)[0-9]{3}",
        )
    ),
}


# ---------------------------------------------------------------------------------------------------------------- e-mail

_LETTER = "A-Za-z\u00c0-\u024f\u0370-\u03ff\u0400-\u04ff"
_AT = re.compile(rf"(?<=[{_LETTER}0-9_%+\-])@(?=[{_LETTER}0-9\[])")
_LOCAL = re.compile(rf"[{_LETTER}0-9_%+\-]+(?:\.[{_LETTER}0-9_%+\-]+)*\Z")
_DOMAIN = re.compile(
    rf"(?:[{_LETTER}0-9](?:[{_LETTER}0-9\-]{{0,61}}[{_LETTER}0-9])?\.){{1,8}}(xn--[a-z0-9]{{2,59}}|[A-Za-z]{{2,24}})"
)
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IP_DOMAIN = re.compile(
    rf"\[(?:(?:{_OCTET}\.){{3}}{_OCTET}|IPv6:[0-9A-Fa-f:.]{{2,45}})\]"  # RFC 5321, section 4.1.3
    rf"|(?![0-9](?:\.[0-9]){{3}}(?![0-9]))(?:{_OCTET}\.){{3}}{_OCTET}(?!\.?[0-9])"  # a@1.2.3.4 is a version
)
_PICTURE = re.compile(r"[1-9]x\.(?:png|jpe?g|gif|webp|svg|avif|css)\b", re.IGNORECASE)
_MAX_LOCAL = 64  # RFC 5321, section 4.5.3.1.1


def find_emails(text: str) -> Iterator[Span]:
    """Addresses at a domain with a top-level name or at an IP address.

    Not: handles, `file@2x.png`, `package@1.2.3`, `git@host:path`.
    """
    for found in _AT.finditer(text):
        at = found.start()
        after = _DOMAIN.match(text, at + 1, at + 256) or _IP_DOMAIN.match(text, at + 1, at + 256)
        before = _LOCAL.search(text[max(0, at - _MAX_LOCAL - 1) : at]) if after else None
        if not after or not before or len(before[0]) > _MAX_LOCAL:
            continue
        following = text[after.end() : after.end() + 1]
        whole = not _continues_word(text, after.end()) and following not in ("_", "@")
        repository = before[0] == "git" and following == ":"
        if whole and not repository and not _PICTURE.match(text, at + 1):
            yield at - len(before[0]), after.end()


# ------------------------------------------------------------------------------------------------------------------ IBAN

_IBAN_START = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2}[0-9]{2}(?=[ -]?[A-Z0-9])")
_IBAN_LENGTHS = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BI": 27, "BR": 29,
    "BY": 28, "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DJ": 27, "DK": 18, "DO": 28, "EE": 20, "EG": 29,
    "ES": 24, "FI": 18, "FK": 18, "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28,
    "HN": 28, "HR": 21, "HU": 28, "IE": 22, "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20,
    "LB": 28, "LC": 32, "LI": 21, "LT": 20, "LU": 20, "LV": 21, "LY": 25, "MC": 27, "MD": 24, "ME": 22, "MK": 19,
    "MN": 20, "MR": 27, "MT": 31, "MU": 30, "NI": 28, "NL": 18, "NO": 15, "OM": 23, "PK": 24, "PL": 28, "PS": 29,
    "PT": 25, "QA": 29, "RO": 24, "RS": 22, "RU": 33, "SA": 24, "SC": 31, "SD": 18, "SE": 24, "SI": 19, "SK": 24,
    "SM": 27, "SO": 23, "ST": 25, "SV": 28, "TL": 23, "TN": 24, "TR": 26, "UA": 29, "VA": 22, "VG": 24, "XK": 20,
    "YE": 30,
}  # fmt: skip
"""Characters of an IBAN by country (SWIFT, IBAN registry)."""


def find_ibans(text: str) -> Iterator[Span]:
    """Account numbers with a valid checksum and the length of their country, compact or in groups of four."""
    for match in _IBAN_START.finditer(text):
        length = _IBAN_LENGTHS.get(match[0][:2])
        if length is None:
            continue
        start = match.start()
        for separator in ("", " ", "-"):
            size = length + (length - 1) // 4 * len(separator)
            span = text[start : start + size]
            groups = span.split(separator) if separator else [span]
            plain = "".join(groups)
            regular = not separator or all(len(group) == 4 for group in groups[:-1])
            if (
                len(plain) == length
                and regular
                and plain.isascii()
                and plain.isalnum()
                and not _continues_word(text, start + size)
            ):
                if plain.upper() == plain and is_iban(plain):
                    yield start, start + size
                break


def is_iban(account: str) -> bool:
    """Whether the two check digits after the country code are correct (ISO 7064, modulo 97).

    >>> is_iban("DE89370400440532013000"), is_iban("DE88370400440532013000")
    (True, False)
    """
    return int("".join(str(int(char, 36)) for char in account[4:] + account[:4])) % 97 == 1


def _continues_word(text: str, at: int) -> bool:
    following = text[at : at + 1]
    return bool(following) and following.isascii() and following.isalnum()


# ------------------------------------------------------------------------------------------------------------------ card

_CARD = re.compile(
    r"(?<![\w])(?<![0-9][.,\-])(?:"
    r"[2-6][0-9]{12,18}"
    r"|[2-6][0-9]{3}([ -])[0-9]{4}\1[0-9]{4}\1[0-9]{4}(?:\1[0-9]{3})?"
    r"|3[0-9]{3}([ -])[0-9]{6}\2[0-9]{4,5}"
    r")(?![\w])(?![.,\-][0-9])",
    re.ASCII,
)
_ISSUERS = re.compile(
    r"4(?:[0-9]{12}|[0-9]{15}|[0-9]{18})"  # Visa
    r"|(?:5[1-5][0-9]{2}|222[1-9]|22[3-9][0-9]|2[3-6][0-9]{2}|27[01][0-9]|2720)[0-9]{12}"  # Mastercard
    r"|3[47][0-9]{13}"  # American Express
    r"|3(?:0[0-59]|6[0-9]|[89][0-9])[0-9]{11,16}"  # Diners Club
    r"|(?:6011|64[4-9][0-9]|65[0-9]{2})[0-9]{12,15}"  # Discover
    r"|35(?:2[89]|[3-8][0-9])[0-9]{12,15}"  # JCB
    r"|62[0-9]{14,17}"  # UnionPay
    r"|(?:5018|5020|5038|5893|6304|6759|676[1-3])[0-9]{12,15}"  # Maestro
)


def find_cards(text: str) -> Iterator[Span]:
    """Numbers with an issuer's prefix, its length and a valid checksum, compact or in the groups printed on cards."""
    for match in _CARD.finditer(text):
        digits = match[0].replace(" ", "").replace("-", "")
        if _ISSUERS.fullmatch(digits) and passes_luhn(digits):
            yield match.span()


def passes_luhn(digits: str) -> bool:
    """Whether the last digit is the correct check digit (ISO/IEC 7812-1, annex B).

    >>> passes_luhn("4111111111111111"), passes_luhn("4111111111111112")
    (True, False)
    """
    doubled = sum(sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    return (doubled + sum(int(digit) for digit in digits[-1::-2])) % 10 == 0


# -------------------------------------------------------------------------------------------------------------------- IP

_IPV4 = re.compile(rf"(?<![\w\-])(?<![\w]\.)(?:{_OCTET}\.){{3}}{_OCTET}(?![\w\-])(?!\.[0-9])", re.ASCII)
_IPV6 = re.compile(
    r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}(?:(?:[0-9]{1,3}\.){3}[0-9]{1,3}|[0-9A-Fa-f]{1,4}|(?<=::))(?![\w:])",
    re.ASCII,
)
_NUMBERING = re.compile(
    r"(?:\bv|\b(?:ver|vers|version|release|rel|build|firmware|revision|rev|sec|section|chapter|clause|article|paragraph|para|"
    r"figure|fig|table|rule|item|no|number|oid)|§|[A-Za-z]/)\.?[\s:=(#]{0,3}\Z",
    re.IGNORECASE,
)
# Addresses that are not globally reachable, by the IANA special-purpose address registries.
_PRIVATE_V4 = tuple(
    IPv4Network(net)
    for net in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
        "224.0.0.0/3",
    )
)  # fmt: skip
_GLOBAL_V6 = IPv6Network("2000::/3")
_RESERVED_V6 = tuple(IPv6Network(net) for net in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))
_LOCAL_V6 = tuple(IPv6Network(net) for net in ("::1/128", "::ffff:0:0/96", "fc00::/7", "fe80::/10", "ff00::/8"))


def find_ips(text: str, public_only: bool = True) -> Iterator[Span]:
    """Addresses of either version. Not: version and section numbers, times, MAC addresses, names such as std::a."""
    for match in _IPV4.finditer(text):
        address = IPv4Address(match[0])
        # 1.2.3.4 and numbers after "version" are section or version numbers far more often than addresses.
        small = max(address.packed) < 10
        if small or _NUMBERING.search(text[max(0, match.start() - 16) : match.start()]):
            continue
        if not (public_only and any(address in net for net in _PRIVATE_V4)):
            yield match.span()
    for match in _IPV6.finditer(text):
        if _is_ipv6(match[0], public_only):
            yield match.span()


def _is_ipv6(text: str, public_only: bool) -> bool:
    try:
        address = IPv6Address(text)
    except ValueError:
        return False
    public = address in _GLOBAL_V6 and not any(address in net for net in _RESERVED_V6)
    # Outside the ranges in use there are words: a parser accepts add::bad as an address.
    return public or (not public_only and (address in _GLOBAL_V6 or any(address in net for net in _LOCAL_V6)))


# ----------------------------------------------------------------------------------------------------------------- phone

_PHONE = re.compile(
    r"(?<![\w+])(?<![0-9][.,/\-:])(?:"
    r"\+[1-9](?:[ .\-/()]{0,2}[0-9]){7,14}"  # international
    r"|00[1-9][0-9]{0,2}[ .\-/]\(?[0-9]{1,4}\)?(?:[ .\-/][0-9]{2,5}){1,5}"
    r"|(?:1[ .\-])?\([2-9][0-9]{2}\)[ .\-]?[2-9][0-9]{2}[ .\-][0-9]{4}"  # North America
    r"|(?:1[ .\-])?[2-9][0-9]{2}([ .\-])[2-9][0-9]{2}\1[0-9]{4}"
    r"|0[1-9]([ .\-])[0-9]{2}(?:\2[0-9]{2}){3}"  # France
    r"|(?:0[1-9][0-9]{1,4}[ \-/]|\(0[1-9][0-9]{1,4}\)[ \-/]?)[0-9]{3,4}[ \-]?[0-9]{3,5}"  # other countries, trunk 0
    r")(?![\w])(?![.,/\-:][0-9])",
    re.ASCII,
)
_GROUP = re.compile("[0-9]+")


def find_phones(text: str) -> Iterator[Span]:
    """Numbers in the usual formats of phone numbers: international, North American, or national with a trunk 0, in groups.

    Not: bare digits, dates, times, amounts, columns of numbers.
    """
    for match in _PHONE.finditer(text):
        number = match[0]
        groups = _GROUP.findall(number)
        digits = sum(map(len, groups))
        if number[0] == "+":
            # +1 2 3 4 5 is a list of numbers, +10000000 an amount.
            shaped = 8 <= digits <= 15 and sum(len(group) == 1 for group in groups) <= 2
            shaped = shaped and (len(groups) > 2 or (digits >= 10 and not number.endswith("000")))
        elif number.startswith("00"):
            shaped = 8 <= digits <= 15
        else:
            shaped = 9 <= digits <= 12 and not (_between_numbers(text, *match.span()) and "(" not in number)
        if shaped and number.count("(") == number.count(")"):
            yield match.span()


def _between_numbers(text: str, start: int, stop: int) -> bool:
    """Whether another number is one space away, as in a row of a table."""
    before, after = text[max(0, start - 2) : start], text[stop : stop + 2]
    return (before[-1:] == " " and before[:1].isdigit()) or (after[:1] == " " and after[1:].isdigit())


FINDERS: dict[str, Callable[[str], Iterator[Span]]] = {
    "email": find_emails,
    "iban": find_ibans,
    "card": find_cards,
    "ip": find_ips,
    "phone": find_phones,
}


# -------------------------------------------------------------------------------------------------------------- operator


@operator(reads="text", version=2)
class PersonalDataMask(Map):
    """Replace e-mail addresses, IP addresses, phone numbers, card numbers and bank account numbers by masks.

    Candidates are checked: cards by issuer and Luhn digit, IBANs by country and checksum, and IP addresses must be public
    (unless `public_ips_only=False`). Four single digits, such as 1.2.3.4 and 8.8.8.8, are taken for a version.
    `replacements` changes the mask of a kind, for example {"email": "email@example.com"}. With `counts`, the numbers of
    masks become the columns num_emails, num_ips and so on. A second application changes nothing. Names and postal
    addresses, which need a model, are not masked.

    >>> from tamis import Pipeline, Rows
    >>> rows = [{"text": "Mail ann@example.org or call +44 20 7946 0958, version 1.2.3.4."}]
    >>> Pipeline(Rows(rows), PersonalDataMask()).collect()["text"].to_pylist()
    ['Mail [EMAIL] or call [PHONE], version 1.2.3.4.']
    """

    column: str = "text"
    kinds: Sequence[Kind] = KINDS
    replacements: Mapping[str, str] | None = None
    public_ips_only: bool = True
    counts: bool = False
    into: str | None = None

    def check(self) -> None:
        if not self.kinds:
            raise ParameterError("`kinds` is empty, so there is nothing to mask", hint=f"kinds are {', '.join(KINDS)}")
        for kind in self.replacements or {}:
            if kind not in KINDS:
                raise ParameterError(
                    f"`replacements` names the unknown kind `{kind}`", hint=f"kinds are {', '.join(KINDS)}"
                )
        for kind, mask in self._masks().items():
            for other, spans in ((other, list(self._find(other, mask))) for other in self._order()):
                if spans and not (other == kind and spans == [(0, len(mask))]):
                    raise ParameterError(f"the replacement of `{kind}` would be masked as `{other}` itself: {mask!r}")

    def writes(self) -> tuple[str, ...]:
        return (self.into or self.column, *(COUNTS[kind] for kind in self._order() if self.counts))

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        text = strings(batch["text"])
        kinds = self._order()
        found = np.zeros((len(kinds), len(text)), np.int64)
        chosen = mask_of(pc.match_substring_regex(text, "|".join(_CANDIDATES[kind] for kind in kinds)))
        rows, masked = np.flatnonzero(chosen), text.filter(pa.array(chosen)).to_pylist()
        turn = np.arange(len(rows))
        for _ in range(_TURNS):  # a mask may turn its neighbours into a match, so changed rows are searched again
            now = pa.array([masked[number] for number in turn], pa.large_string())
            candidates = np.array([mask_of(pc.match_substring_regex(now, _CANDIDATES[kind])) for kind in kinds])
            for at, number in enumerate(turn):
                masked[number] = self._mask(masked[number], candidates[:, at], found[:, rows[number]])
            turn = turn[[masked[number] != old for number, old in zip(turn, now.to_pylist(), strict=True)]]
            if not len(turn):
                break
        if len(rows):
            text = pc.replace_with_mask(text, pa.array(chosen), pa.array(masked, text.type))
        counts = {COUNTS[kind]: found[number] for number, kind in enumerate(kinds)} if self.counts else {}
        return {self.into or self.column: text, **counts}

    def _order(self) -> list[Kind]:
        return [kind for kind in KINDS if kind in self.kinds]

    def _masks(self) -> dict[str, str]:
        return {kind: {**MASKS, **(self.replacements or {})}[kind] for kind in self._order()}

    def _find(self, kind: str, text: str) -> Iterator[Span]:
        return find_ips(text, self.public_ips_only) if kind == "ip" else FINDERS[kind](text)

    def _mask(self, text: str, candidates: np.ndarray, found: np.ndarray) -> str:
        """`text` with masks for the kinds it has candidates of; adds the number of masks of each kind to `found`."""
        for number, (kind, mask) in enumerate(self._masks().items()):
            if not candidates[number]:
                continue
            parts, at = [], 0
            for start, stop in sorted(self._find(kind, text)):
                if start >= at and text[start:stop] != mask:
                    parts += [text[at:start], mask]
                    at = stop
            if parts:
                found[number] += len(parts) // 2
                text = "".join([*parts, text[at:]])
        return text


@operator(reads="text")
class PersonalDataSpans(Map):
    """Add where a text has e-mail addresses, IP addresses, phone numbers, card numbers and bank account numbers.

    The column `personal_data` has a list of structs: start and end in characters, score (1) and kind. What is found is what
    `PersonalDataMask` replaces first. Spans do not overlap: of two, the one of the kind that comes first counts. Write them
    beside the data, and `ReplaceSpans` masks them later.

    >>> from tamis import Pipeline, Rows
    >>> rows = [{"text": "Mail ann@example.org."}]
    >>> Pipeline(Rows(rows), PersonalDataSpans()).collect()["personal_data"].to_pylist()
    [[{'start': 5, 'end': 20, 'score': 1.0, 'kind': 'email'}]]
    """

    column: str = "text"
    kinds: Sequence[Kind] = KINDS
    public_ips_only: bool = True
    output: str = "personal_data"

    def writes(self) -> tuple[str, ...]:
        return (self.output,)

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        text = strings(batch["text"])
        found: list[list[dict[str, Any]] | None] = [[] if valid else None for valid in text.is_valid().to_pylist()]
        for kind in [kind for kind in KINDS if kind in self.kinds]:
            for row in np.flatnonzero(mask_of(pc.match_substring_regex(text, _CANDIDATES[kind]))).tolist():
                one, spans = text[row].as_py(), found[row] or []
                places = find_ips(one, self.public_ips_only) if kind == "ip" else FINDERS[kind](one)
                spans += [
                    {"start": start, "end": stop, "score": 1.0, "kind": kind}
                    for start, stop in sorted(places)
                    if all(stop <= each["start"] or start >= each["end"] for each in spans)
                ]
                found[row] = sorted(spans, key=lambda each: each["start"])
        return {self.output: pa.array(found, SPANS)}


SPANS = pa.list_(
    pa.struct([("start", pa.int64()), ("end", pa.int64()), ("score", pa.float64()), ("kind", pa.string())])
)

_TURNS = 10
"""Only unusual replacements need more than two."""
