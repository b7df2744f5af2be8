"""Filters by lists: phrases, bad words, characters, blocked sites."""

from __future__ import annotations

import functools
import gzip
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Batch, Column, Facts
from tamis.errors import ParameterError
from tamis.kernels.phrases import Automaton, build_automaton, character_set, count_members, count_phrases
from tamis.kernels.unicode_tables import KINDS, POINTS
from tamis.operators import Filter, Rule, Scores, at_least, at_most, between, operator
from tamis.text.quality import text_facts
from tamis.text.segment import buffers, ratio

FILLER = "lorem ipsum"
POLICY_PHRASES = (
    "terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies",
    "privacy overview", "privacy & cookies policy", "privacy and cookies policy",
)  # fmt: skip
"""Phrases of legal notices: the six of C4 (Raffel et al. 2020), and three that NeMo Curator adds."""

BAD_WORDS = (
    "anal", "anus", "bitch", "blowjob", "bukkake", "camgirl", "clit", "cock", "cum", "cumshot", "cunt", "dildo",
    "erotic", "fuck", "fucked", "fucking", "gangbang", "handjob", "hentai", "horny", "masturbate", "milf", "nude",
    "nsfw", "orgasm", "porn", "porno", "pornhub", "pussy", "sexcam", "slut", "threesome", "tits", "whore", "xxx",
)  # fmt: skip
"""A short English list, for a start; C4 used a longer one, to be given as a file."""


@functools.lru_cache(maxsize=16)
def automaton(phrases: tuple[str, ...], *, exact: bool = False) -> Automaton:
    return build_automaton(phrases, exact=exact)


class PhraseStats:
    """Facts about some phrases in a column: `matches`, `paragraphs` with a match, and `first`, matches of the first."""

    def __init__(self, phrases: tuple[str, ...], *, whole: bool) -> None:
        self.phrases, self.whole = phrases, whole
        self.__module__ = __name__
        self.__qualname__ = f"phrase_stats.{whole}.{'|'.join(phrases)}"

    def __call__(self, column: Column) -> Facts:
        if not all(phrase.isascii() for phrase in self.phrases):
            column = pc.utf8_lower(column)
        data, offsets = buffers(column)
        out = np.zeros((3, len(column)), np.int64)
        count_phrases(data, offsets, *automaton(self.phrases), self.whole, POINTS, KINDS, out)
        return dict(zip(("matches", "paragraphs", "first"), out, strict=True))


def read_lines(path: str) -> list[str]:
    """The lines of a text file, or of one compressed with gzip."""
    raw = Path(path).read_bytes()
    return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig").splitlines()


def _stamp(path: str) -> int:
    return Path(path).stat().st_mtime_ns


@functools.lru_cache(maxsize=16)
def _read_list(path: str, stamp: int) -> tuple[str, ...]:
    return tuple(text for line in read_lines(path) if (text := line.strip()) and not text.startswith("#"))


def read_list(path: str | None) -> tuple[str, ...]:
    """The words or phrases of a file, one a line; without the spaces around, without lines that begin with '#'."""
    return () if path is None else _read_list(path, _stamp(path))


def check_files(owner: str, paths: Iterable[str | None]) -> None:
    """Raise if a list that an operator names is not there."""
    for path in paths:
        if path is not None and not Path(path).is_file():
            raise ParameterError(f"`{owner}` reads the file {path!r}, which is not there")


def identify_files(identity: dict[str, Any], paths: Iterable[str | None]) -> dict[str, Any]:
    """An operator's identity with the contents of the files it reads."""
    hashes = {path: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in paths if path is not None}
    return {**identity, "files": hashes}


@operator(reads="text", writes="boilerplate_paragraphs")
class BoilerPlate(Filter):
    """Drop documents in which more than 40 % of the paragraphs speak of cookies, privacy or terms of use.

    Paragraphs with one of `phrases` in any case / paragraphs; 1 if "lorem ipsum" stands anywhere.

    >>> batch = Batch.from_rows([{"text": "News.\\n\\nPrivacy Policy"}, {"text": "Lorem ipsum dolor"}])
    >>> BoilerPlate().score(batch)["boilerplate_paragraphs"].tolist()
    [0.5, 1.0]
    """

    max_boilerplate_paragraphs: float = 0.4
    phrases: list[str] | None = None
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        phrases = POLICY_PHRASES if self.phrases is None else tuple(self.phrases)
        found = batch.facts("text", PhraseStats((FILLER, *phrases), whole=False))
        share = ratio(found["paragraphs"], text_facts(batch)["paragraphs"])
        return {"boilerplate_paragraphs": np.where(found["first"] > 0, 1.0, share)}

    def rules(self) -> list[Rule]:
        return [at_most("boilerplate_paragraphs", self.max_boilerplate_paragraphs)]


@operator(reads="text", writes="bad_words")
class BadWords(Filter):
    """Drop documents with a word or phrase of a list (Raffel et al. 2020).

    Occurrences, in any case, as whole words; in scripts without spaces, anywhere. The list is `listed`, or the lines
    of the file `path`, or a short one in English.

    >>> BadWords(listed=["darn", "oh no"]).score(Batch.from_rows([{"text": "Darn! Oh no, darning."}]))["bad_words"].tolist()
    [2]
    """

    max_bad_words: int = 0
    listed: list[str] | None = None
    path: str | None = None
    column: str = "text"

    def check(self) -> None:
        check_files(self.name, [self.path])

    def identity(self) -> dict[str, Any]:
        return identify_files(super().identity(), [self.path])

    def score(self, batch: Batch) -> Scores:
        words: tuple[str, ...] = BAD_WORDS
        if self.listed is not None or self.path is not None:
            words = (*(self.listed or ()), *read_list(self.path))
        return {"bad_words": batch.facts("text", PhraseStats(words, whole=True))["matches"]}

    def rules(self) -> list[Rule]:
        return [at_most("bad_words", self.max_bad_words)]


@operator(reads="text", writes="substring")
class Substring(Filter):
    """Keep documents that have a substring at their beginning, at their end or anywhere: 1 if so, 0 if not.

    >>> Substring("Dear").score(Batch.from_rows([{"text": "Dear reader"}, {"text": "Oh Dear"}]))["substring"].tolist()
    [1, 0]
    """

    substring: str
    position: Literal["prefix", "suffix", "any"] = "prefix"
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        look = {"prefix": pc.starts_with, "suffix": pc.ends_with, "any": pc.match_substring}[self.position]
        found = look(batch["text"].cast(pa.large_string()), self.substring)
        return {"substring": pc.fill_null(found, False).to_numpy(zero_copy_only=False).astype(np.int64)}

    def rules(self) -> list[Rule]:
        return [at_least("substring", 1)]


@functools.lru_cache(maxsize=16)
def _read_histogram(path: str, end: str, stamp: int) -> np.ndarray:
    """The characters that begin the lines of a file, up to the line that begins with `end`."""
    members = []
    for line in Path(path).read_text(encoding="utf-8").split("\n"):
        if line[:1] == end:
            break
        members.append(line[:1])
    return character_set(filter(None, members))


@operator(reads="text", writes="known_characters")
class Histogram(Filter):
    """Keep documents written in the characters of their language (NLLB team 2022, section 4.1.3).

    Characters found in the histogram, white space around the text aside / characters. The histogram is a text file
    whose lines begin with a character, the commonest first; the line that begins with `end` ends the trusted part.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "en"
    >>> _ = path.write_text("e 12\\na 9\\nt 8\\n] 0\\nz 0\\n")
    >>> Histogram(str(path)).score(Batch.from_rows([{"text": "teaz"}]))["known_characters"].tolist()
    [0.75]
    """

    path: str
    min_known_characters: float = 0.8
    end: str = "]"
    column: str = "text"

    def check(self) -> None:
        check_files(self.name, [self.path])

    def identity(self) -> dict[str, Any]:
        return identify_files(super().identity(), [self.path])

    def score(self, batch: Batch) -> Scores:
        data, offsets = buffers(batch["text"])
        out = np.zeros(len(batch), np.int64)
        count_members(data, offsets, _read_histogram(self.path, self.end, _stamp(self.path)), POINTS, KINDS, out)
        return {"known_characters": ratio(out, text_facts(batch)["chars"])}

    def rules(self) -> list[Rule]:
        return [at_least("known_characters", self.min_known_characters)]


def parse_blocklist_line(line: str) -> str | None:
    """The domain, or domain and path, of a line of any usual blocklist, or None.

    >>> [parse_blocklist_line(line) for line in ("a.org", "0.0.0.0 b.org # ads", "||c.org^$third-party", "! note", "*.d.org")]
    ['a.org', 'b.org', 'c.org', None, 'd.org']
    """
    text = line.strip().lower()
    if not text or text[0] in "#!;[" or text.startswith("@@"):
        return None
    text = text.partition("#")[0].strip()
    if text.startswith("||"):
        text = re.split(r"[\^$|]", text[2:])[0]
    fields = text.split()
    if len(fields) > 1 and re.fullmatch(r"[0-9.]+|[0-9a-f:]*:[0-9a-f:]*", fields[0]):
        fields = fields[1:]
    if not fields:
        return None
    address = re.sub(r"^[a-z][a-z0-9+.-]*://", "", fields[0]).removeprefix("*.").strip(".")
    address = address.rstrip("/")
    return None if address in ("", "localhost", "localhost.localdomain", "broadcasthost", "local") else address


@functools.lru_cache(maxsize=8)
def _read_blocklist(path: str, stamp: int) -> frozenset[str]:
    return frozenset(address for line in read_lines(path) if (address := parse_blocklist_line(line)) is not None)


_WORD_BREAK = re.compile(r"[^a-z0-9]+")


@operator(reads="url", writes=("blocked_sites", "blocked_url_words", "suspect_url_words"))
class UrlBlocklist(Filter):
    """Drop documents by their address: blocked sites, words that are never right in a URL, several suspect ones.

    blocked_sites       1 if the host, a domain above it, or host and path up to some '/' is in `sites` or in a file
    blocked_url_words   different words of `words` among the words of the URL (runs of letters and digits)
    suspect_url_words   the same for `suspect_words`; one alone is let pass, as in FineWeb (Penedo et al. 2024)

    Files hold one domain or address a line, as hosts files ("0.0.0.0 domain") and ad blockers ("||domain^") do too;
    comments and exceptions are skipped. A missing URL is not blocked.

    >>> blocklist = UrlBlocklist(sites=["bad.org", "ok.com/shop"], words=["casino"])
    >>> batch = Batch.from_rows([{"url": "https://www.bad.org/x"}, {"url": "http://ok.com/best-casino"}, {"url": None}])
    >>> {name: values.tolist() for name, values in blocklist.score(batch).items()}
    {'blocked_sites': [1, 0, 0], 'blocked_url_words': [0, 1, 0], 'suspect_url_words': [0, 0, 0]}
    """

    sites: list[str] | None = None
    paths: list[str] | None = None
    words: list[str] | None = None
    suspect_words: list[str] | None = None
    max_suspect_words: int | None = 1
    column: str = "url"

    def check(self) -> None:
        check_files(self.name, self.paths or ())

    def identity(self) -> dict[str, Any]:
        return identify_files(super().identity(), self.paths or ())

    def score(self, batch: Batch) -> Scores:
        own = frozenset(address for line in self.sites or () if (address := parse_blocklist_line(line)) is not None)
        lists = [own, *(_read_blocklist(path, _stamp(path)) for path in self.paths or ())]
        banned, suspect = (
            frozenset(map(str.lower, self.words or ())),
            frozenset(map(str.lower, self.suspect_words or ())),
        )
        out = np.zeros((3, len(batch)), np.int64)
        for row, url in enumerate(batch["url"].to_pylist()):
            if url:
                address = _address(url)
                out[0, row] = any(_is_listed(address, listed) for listed in lists if listed)
                if banned or suspect:
                    parts = set(_WORD_BREAK.split(url.lower()))
                    out[1, row], out[2, row] = len(parts & banned), len(parts & suspect)
        return dict(zip(("blocked_sites", "blocked_url_words", "suspect_url_words"), out, strict=True))

    def rules(self) -> list[Rule]:
        return [
            at_most("blocked_sites", 0),
            at_most("blocked_url_words", 0),
            between("suspect_url_words", None, self.max_suspect_words),
        ]


def _address(url: str) -> str:
    """A URL in lower case without scheme, user, port, query and fragment.

    >>> _address("HTTPS://me@Example.org:8080/a/b?c#d")
    'example.org/a/b'
    """
    text = url.strip().lower()
    rest = text.partition("://")[2] or text.removeprefix("//")
    place, slash, path = re.split(r"[?#]", rest, maxsplit=1)[0].partition("/")
    host = place.rpartition("@")[2]
    host = host if host.startswith("[") else host.partition(":")[0]
    return host.strip(".") + slash + path


def _is_listed(address: str, listed: frozenset[str]) -> bool:
    """Whether the host, a domain above it, or either followed by the beginning of the path is in the list."""
    host, _, path = address.partition("/")
    labels = host.split(".")
    domains = [".".join(labels[start:]) for start in range(min(len(labels), 64))]
    if not listed.isdisjoint(domains):
        return True
    parts = [part for part in path.split("/", 16) if part][:16]
    tails = ["/".join(parts[:size]) for size in range(1, len(parts) + 1)]
    return any(f"{domain}/{tail}" in listed for domain in domains[:4] for tail in tails)
