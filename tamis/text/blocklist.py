"""Blocklists of sites, and the filter that applies them to the URLs of documents.

    line of a file --parse_line--> Rule | Skipped | None --Blocklist--> sites, patterns by domain, other patterns

Files may be lists of domains or URLs (UT1), hosts files, or lists of an ad blocker (Adblock Plus, uBlock Origin, AdGuard).
An ad blocker filters requests, most of which are for parts of a page; only its rules about whole pages apply here:

    ||bad.example^                  the site and its subdomains
    ||ok.example/ads/               the pages of the site whose path begins so
    ||bad.example^$document         the same; rules with $document, $doc or $all are about pages by definition
    /casino-*.html$document         any page, if the rule has one of these options
    @@||bad.example/about           not blocked after all, whichever list or parameter blocks it

Strictly, an ad blocker applies a rule without options to parts of a page only. Lists of dangerous sites are written
without options, though, so a rule anchored at a domain or at the start of the URL counts as one about pages.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tamis.batch import Batch
from tamis.context import Context
from tamis.errors import ParameterError
from tamis.operators import Filter, Resources, Rule, Scores, at_most, between, operator
from tamis.text.lists import check_files, identify_files, read_lines
from tamis.text.shared_files import SharedFile

ELEMENTS = "element hiding rules"
PARTS = "rules about parts of pages"
EXPRESSIONS = "regular expressions"
UNREADABLE = "unreadable lines"


@dataclass(frozen=True)
class Skipped:
    """A line that blocks no page; `kind` is one of the four names above."""

    kind: str


@dataclass(frozen=True)
class Entry:
    """A line that blocks pages, or allows them. `domain` is empty for a pattern that is not anchored at one."""

    domain: str = ""
    rest: str = ""
    """The pattern that follows the domain, or the whole pattern; empty for all pages of the domain."""
    allows: bool = False


_ELEMENT_RULE = re.compile(r"[^\s#]*#@?(?:\$\??|\?|%)?#(?!#*(?:\s|$))|[^\s/$]*\$@?\$")
_OPTIONS = re.compile(r"\$(~?[a-z0-9_-]+(?:=[^,]*)?(?:,~?[a-z0-9_-]+(?:=[^,]*)?)*)$")
_PAGE_OPTIONS = {"document", "doc", "all"}
_NEUTRAL_OPTIONS = {"important", "popup", "~third-party", "~3p", "first-party", "1p"}
_KNOWN_OPTIONS = _PAGE_OPTIONS | {
    "3p", "badfilter", "beacon", "csp", "css", "cname", "content", "cookie", "denyallow", "domain", "ehide", "elemhide",
    "empty", "extension", "first-party", "1p", "font", "frame", "from", "generichide", "genericblock", "ghide", "header", "hls",
    "image", "important", "inline-font", "inline-script", "jsinject", "jsonprune", "match-case", "media", "method", "mp4",
    "network", "object", "object-subrequest", "other", "permissions", "ping", "popunder", "popup", "redirect", "redirect-rule",
    "removeheader", "removeparam", "queryprune", "replace", "rewrite", "script", "shide", "sitekey", "specifichide", "stealth",
    "strict1p", "strict3p", "stylesheet", "subdocument", "third-party", "to", "urlblock", "urltransform", "webrtc", "websocket",
    "xhr", "xmlhttprequest", "background", "dtd", "donottrack", "collapse", "app", "client", "ctag", "dnstype", "dnsrewrite",
}  # fmt: skip

_IP = re.compile(r"[0-9]+(?:\.[0-9]+){3}|[0-9a-f:]*:[0-9a-f:.%a-z]*")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://")
_HOST = re.compile(r"(?:\w(?:[\w-]*\w)?\.)*[^\W_](?:[^\W_]|-(?=[^\W_]|-))*|\[[0-9a-f:.]+\]")
_HOSTS_FILE_NAMES = {
    "localhost", "localhost.localdomain", "localhost6", "localhost6.localdomain6", "broadcasthost", "local",
    "ip6-localhost", "ip6-loopback", "ip6-localnet", "ip6-mcastprefix", "ip6-allnodes", "ip6-allrouters", "ip6-allhosts",
    "0.0.0.0",
}  # fmt: skip
_ANCHORED = re.compile(r"(?:\|\||\|[a-z][a-z0-9+.-]*://)(?P<domain>[\w.-]+|\[[0-9a-f:.]+\])(?=[/^:?|]|$)")
_PLAIN = re.compile(r"[\w.-]+")
_WHOLE_SITE = {"", "^", "/", "*", "^*", "/*", "^|", "|"}


def parse_line(line: str) -> Iterator[Entry | Skipped]:
    """The entries of a line of a blocklist: none for a comment, several for a line of a hosts file with several names.

    >>> [list(parse_line(line)) for line in ("# ads", "0.0.0.0 b.org # ads", "c.org##.banner")]
    [[], [Entry(domain='b.org', rest='', allows=False)], [Skipped(kind='element hiding rules')]]
    >>> list(parse_line("@@||c.org/a^$document"))
    [Entry(domain='c.org', rest='/a^', allows=True)]
    """
    text = line.strip().lower()
    if not text or text[0] in "!;" or text.startswith(("[adblock", "[ublock", "[adguard")):
        return
    if _ELEMENT_RULE.match(text):
        yield Skipped(ELEMENTS)
        return
    if text[0] == "#":
        return
    allows = text.startswith("@@")
    rule = text[2:] if allows else text
    found = _OPTIONS.search(rule)
    options = found[1].split(",") if found else []
    if not {option.lstrip("~").partition("=")[0] for option in options} <= _KNOWN_OPTIONS:
        found, options = None, []  # a URL may hold a dollar sign
    pattern = rule[: found.start()] if found else rule
    pages = bool(_PAGE_OPTIONS & set(options))
    if len(pattern) > 2 and pattern[0] == pattern[-1] == "/" and (options or re.search(r"[\\\[\]()+?|{}]", pattern)):
        yield Skipped(EXPRESSIONS)
    elif options and not _concerns_pages(options):
        yield Skipped(PARTS)
    elif pattern.startswith("|") or (pages and not _PLAIN.fullmatch(pattern)):
        yield _pattern(pattern, allows=allows, any_site=pages)
    elif options or allows:
        yield _address(pattern, allows=allows)
    else:
        yield from _plain_line(text)


def _concerns_pages(options: list[str]) -> bool:
    """Whether a rule with these options applies when a page is opened; a page is no third party to itself."""
    given = set(options) - _NEUTRAL_OPTIONS
    if _PAGE_OPTIONS & given:
        return given <= _PAGE_OPTIONS
    return not given and "popup" not in options


def _pattern(pattern: str, *, allows: bool, any_site: bool) -> Entry | Skipped:
    """An ad blocker's pattern; one that names no site is about pages only where an option says so (`any_site`)."""
    found = _ANCHORED.match(pattern)
    if found and _HOST.fullmatch(found["domain"]):
        rest = pattern[found.end() :]
        return Entry(found["domain"], "" if rest in _WHOLE_SITE else rest, allows)
    return Entry("", pattern, allows) if any_site and pattern.strip("*^/|.") else Skipped(PARTS)


def _address(text: str, *, allows: bool = False) -> Entry | Skipped:
    """A domain or a URL, with or without scheme; without being one, it is an ad blocker's pattern for parts of pages."""
    address = text.removeprefix("*.")
    scheme = _SCHEME.match(address)
    host, _, path = (address[scheme.end() :] if scheme else address).partition("/")
    host = host.rpartition("@")[2]
    host = host if host.startswith("[") else host.partition(":")[0]
    path = path.rstrip("/")
    if not path and "." in host.strip("."):
        host = host.removeprefix(".").removesuffix(".")  # as in squid's lists; a fully qualified name
    if not _HOST.fullmatch(host) or (path and "." not in host) or re.search(r"[\s*^|]", path):
        return Skipped(PARTS)
    return Entry(host, f"/{path}^" if path else "", allows)


def _plain_line(text: str) -> Iterator[Entry | Skipped]:
    """A line of a list of domains or URLs, or of a hosts file."""
    fields = text.partition(" #")[0].partition("\t#")[0].split()
    if len(fields) > 1 and _IP.fullmatch(fields[0]):
        for name in fields[1:]:
            if name not in _HOSTS_FILE_NAMES:
                yield _address(name)
    elif len(fields) == 1:
        address = fields[0].partition("#")[0]
        if address and address not in _HOSTS_FILE_NAMES:
            yield _address(address)
    else:
        yield Skipped(UNREADABLE)


# ----------------------------------------------------------------------------------------------------------- many lines


@dataclass(frozen=True, eq=False)
class Patterns:
    """Pages, as the entries of a list describe them."""

    sites: frozenset[str]
    by_domain: dict[str, str]
    """Of each domain, an expression for what follows it in the URL."""
    others: re.Pattern[str] | None

    @staticmethod
    def of(entries: Iterable[Entry]) -> Patterns:
        sites, others = set(), []
        by_domain: dict[str, list[str]] = {}
        for entry in entries:
            if not entry.domain:
                others.append(_expression(entry.rest))
            elif entry.rest:
                by_domain.setdefault(entry.domain, []).append(_expression("|" + entry.rest))
            else:
                sites.add(entry.domain)
        joined = {domain: "|".join(expressions) for domain, expressions in by_domain.items()}
        return Patterns(frozenset(sites), joined, re.compile("|".join(others)) if others else None)

    def match(self, address: Address) -> bool:
        labels = address.host.split(".")
        domains = [".".join(labels[start:]) for start in range(min(len(labels), 64))]
        if not self.sites.isdisjoint(domains):
            return True
        if any(_compiled(self.by_domain[name]).match(address.rest) for name in domains if name in self.by_domain):
            return True
        return self.others is not None and self.others.search(address.url) is not None


@functools.lru_cache(maxsize=4096)
def _compiled(expression: str) -> re.Pattern[str]:
    """Compiled when first used: a list has thousands, of which a crawl meets a few."""
    return re.compile(expression)


def _expression(pattern: str) -> str:
    """An ad blocker's pattern as a regular expression."""
    start, end = "", ""
    if pattern.startswith("||"):
        start, pattern = r"^[a-z][a-z0-9+.-]*://(?:[^/?#]*\.)?", pattern[2:]
    elif pattern.startswith("|"):
        start, pattern = "^", pattern[1:]
    if pattern.endswith("|"):
        end, pattern = "$", pattern[:-1]
    signs = {"*": ".*", "^": r"(?:[^\w.%-]|$)"}
    return "(?:" + start + "".join(signs.get(char) or re.escape(char) for char in pattern) + end + ")"


@dataclass(frozen=True, eq=False)
class Blocklist:
    """What a list blocks, what it allows, and how many of its lines say nothing about pages, by kind."""

    blocked: Patterns
    allowed: Patterns
    skipped: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def of(lines: Iterable[str]) -> Blocklist:
        found = [entry for line in lines for entry in parse_line(line)]
        entries = [entry for entry in found if isinstance(entry, Entry)]
        return Blocklist(
            Patterns.of(entry for entry in entries if not entry.allows),
            Patterns.of(entry for entry in entries if entry.allows),
            Counter(entry.kind for entry in found if isinstance(entry, Skipped)),
        )


def _memory_bytes(path: Path) -> int:
    size = path.stat().st_size
    return _MEMORY_PER_BYTE * (size * _UNPACKED if path.suffix == ".gz" else size)


_MEMORY_PER_BYTE, _UNPACKED = 24, 4
"""Memory to read a list, per byte of its file; and how much larger a compressed file is unpacked."""
BLOCKLIST = SharedFile("blocklist", lambda path: Blocklist.of(read_lines(str(path))), _memory_bytes, find=Path)


@dataclass(frozen=True)
class Address:
    """A URL in lower case: its host, what follows the host, and all of it without user name and fragment."""

    host: str
    rest: str
    url: str

    @staticmethod
    def of(url: str) -> Address:
        """
        >>> Address.of("HTTPS://me@Example.org:8080/a/b?c#d")
        Address(host='example.org', rest=':8080/a/b?c', url='https://example.org:8080/a/b?c')
        """
        text = url.strip().lower().partition("#")[0]
        scheme = _SCHEME.match(text)
        text, scheme_text = (text[scheme.end() :], scheme[0]) if scheme else (text.removeprefix("//"), "http://")
        place = re.split(r"[/?]", text, maxsplit=1)[0]
        tail, host = text[len(place) :], place.rpartition("@")[2]
        name = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
        rest = host[len(name) :] + tail
        name = name.strip(".")
        return Address(name, rest, f"{scheme_text}{name}{rest}")


_WORD_BREAK = re.compile(r"[^a-z0-9]+")
_SCORES = ("blocked_sites", "blocked_url_words", "suspect_url_words", "blocked_url_substrings")


def _letters_and_digits(text: str) -> str:
    return _WORD_BREAK.sub("", text.lower())


@operator(reads="url", writes=_SCORES, version=2)
class UrlBlocklist(Filter):
    """Drop documents by URL: blocked sites and pages, forbidden words, or more than one suspect word.

    blocked_sites           1 if an entry of `sites` or of the files in `paths` blocks the URL and none allows it, else 0
    blocked_url_words       distinct words of `words` in the URL (a word is a run of letters and digits)
    suspect_url_words       the same for `suspect_words`; one alone is allowed, as in FineWeb (Penedo et al. 2024)
    blocked_url_substrings  distinct entries of `substrings` in the letters and digits of the URL, also within words and
                            across them, as datatrove's `banned_subwords`

    An entry is a domain, which blocks its subdomains too, or a URL, which blocks the pages below it. Files have one
    entry per line, plain or compressed with gzip: lists of domains or URLs (UT1), hosts files ("0.0.0.0 domain") and
    the lists of ad blockers. Of these, rules about pages apply: "||domain^", "||domain/path", any pattern with $document or
    $all, and exceptions ("@@"). Rules for parts of pages ($script, $third-party, patterns without a domain), element
    hiding rules ("domain##selector") and regular expressions are skipped; `tamis check` and the report say how many.
    A missing URL is not blocked.

    >>> blocklist = UrlBlocklist(sites=["bad.org", "ok.com/shop"], words=["casino"], substrings=["free spins"])
    >>> urls = ["https://www.bad.org/x", "http://ok.com/best-casino", "http://ok.com/100freespins", None]
    >>> found = blocklist.open(Context()).score(Batch.from_rows([{"url": url} for url in urls]))
    >>> for name, values in found.items(): print(name, values.tolist())
    blocked_sites [1, 0, 0, 0]
    blocked_url_words [0, 1, 0, 0]
    suspect_url_words [0, 0, 0, 0]
    blocked_url_substrings [0, 0, 1, 0]
    """

    sites: list[str] | None = None
    paths: list[str] | None = None
    words: list[str] | None = None
    suspect_words: list[str] | None = None
    max_suspect_words: int | None = 1
    substrings: list[str] | None = None
    column: str = "url"

    def check(self) -> None:
        check_files(self.name, self.paths or ())
        for each in self.substrings or ():
            if not _letters_and_digits(each):
                raise ParameterError(f"`substrings` of `{self.name}` has {each!r}, without letters a-z and digits")

    def notes(self) -> list[str]:
        result = []
        for path in self.paths or ():
            skipped = Blocklist.of(read_lines(path)).skipped
            if skipped:
                kinds = ", ".join(f"{kind}: {count:,}" for kind, count in skipped.most_common())
                result.append(f"lines of {path} that block no page are skipped ({kinds})")
        return result

    def identity(self) -> dict[str, Any]:
        return identify_files(super().identity(), self.paths or ())

    @property
    def resources(self) -> Resources:
        return BLOCKLIST.resources(*(self.paths or ()))

    def open(self, context: Context) -> _UrlScorer:
        lists = [BLOCKLIST.open(path, context) for path in self.paths or ()]
        if self.sites:
            lists.append(Blocklist.of(self.sites))
        words, suspect = (frozenset(map(str.lower, given or ())) for given in (self.words, self.suspect_words))
        substrings = sorted({_letters_and_digits(each) for each in self.substrings or ()})
        return _UrlScorer(lists, words, suspect, substrings)

    def rules(self) -> list[Rule]:
        return [
            at_most("blocked_sites", 0),
            at_most("blocked_url_words", 0),
            between("suspect_url_words", None, self.max_suspect_words),
            at_most("blocked_url_substrings", 0),
        ]


@dataclass(frozen=True)
class _UrlScorer:
    lists: Sequence[Blocklist]
    banned: frozenset[str]
    suspect: frozenset[str]
    substrings: Sequence[str]

    def score(self, batch: Batch) -> Scores:
        out = np.zeros((4, len(batch)), np.int64)
        for row, url in enumerate(batch["url"].to_pylist()):
            if url:
                address = Address.of(url)
                blocked = any(each.blocked.match(address) for each in self.lists)
                out[0, row] = blocked and not any(each.allowed.match(address) for each in self.lists)
                if self.banned or self.suspect:
                    parts = set(_WORD_BREAK.split(url.lower()))
                    out[1, row], out[2, row] = len(parts & self.banned), len(parts & self.suspect)
                if self.substrings:
                    found = _letters_and_digits(url)
                    out[3, row] = sum(each in found for each in self.substrings)
        return dict(zip(_SCORES, out, strict=True))
