"""Filters by lists of phrases, words and characters."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Batch, Column, Facts
from tamis.context import Context
from tamis.errors import ParameterError
from tamis.kernels.phrases import build_automaton, character_set, count_members, count_phrases
from tamis.kernels.unicode_tables import KINDS, POINTS
from tamis.operators import Filter, Rule, Scores, at_least, at_most, between, operator
from tamis.text.clean import PLACEHOLDER, POLICY_PHRASES
from tamis.text.passages import Passages, phrases
from tamis.text.quality import text_facts
from tamis.text.segment import BareStats, Words, WordStats, buffers, ratio

BAD_WORDS = (
    "anal", "anus", "bitch", "blowjob", "bukkake", "camgirl", "clit", "cock", "cum", "cumshot", "cunt", "dildo",
    "erotic", "fuck", "fucked", "fucking", "gangbang", "handjob", "hentai", "horny", "masturbate", "milf", "nude",
    "nsfw", "orgasm", "porn", "porno", "pornhub", "pussy", "sexcam", "slut", "threesome", "tits", "whore", "xxx",
)  # fmt: skip
"""A short English list to start with. C4 used a longer one, which can be given as a file."""


ENGLISH_STOP_WORDS = (
    "a", "about", "above", "after", "again", "against", "all", "also", "although", "am", "among", "an", "and", "another",
    "any", "anyone", "anything", "are", "aren't", "around", "as", "at", "be", "because", "been", "before", "being",
    "below", "between", "both", "but", "by", "can", "can't", "cannot", "could", "couldn't", "did", "didn't", "do", "does",
    "doesn't", "doing", "don't", "down", "during", "each", "either", "every", "everyone", "everything", "few", "for",
    "from", "had", "hadn't", "has", "hasn't", "have", "haven't", "having", "he", "he's", "her", "here", "hers", "herself",
    "him", "himself", "his", "how", "however", "i", "i'd", "i'll", "i'm", "i've", "if", "in", "into", "is", "isn't", "it",
    "it's", "its", "itself", "just", "less", "let's", "many", "may", "me", "might", "mine", "more", "most", "much",
    "must", "my", "myself", "neither", "no", "none", "nor", "not", "nothing", "now", "of", "off", "on", "once", "one",
    "only", "onto", "or", "other", "others", "our", "ours", "ourselves", "out", "over", "own", "per", "same", "several",
    "shall", "she", "she's", "should", "shouldn't", "since", "so", "some", "someone", "something", "such", "than",
    "that", "that's", "the", "their", "theirs", "them", "themselves", "then", "there", "there's", "these", "they",
    "they're", "this", "those", "though", "through", "to", "too", "toward", "under", "unless", "until", "up", "upon",
    "us", "very", "was", "wasn't", "we", "we're", "were", "weren't", "what", "when", "where", "whether", "which", "while",
    "who", "whom", "whose", "why", "will", "with", "within", "without", "won't", "would", "wouldn't", "yet", "you",
    "you're", "your", "yours", "yourself", "yourselves",
)  # fmt: skip
"""English pronouns, prepositions, conjunctions, articles, auxiliary verbs and similar words, to start with."""


class PhraseStats:
    """Facts about phrases in a column: `matches`, `paragraphs` with a match, and `first`, matches of the first phrase."""

    def __init__(self, phrases: tuple[str, ...], *, whole: bool) -> None:
        self.phrases, self.whole = phrases, whole
        self._automaton = build_automaton(phrases)
        self.__module__ = __name__
        self.__qualname__ = f"phrase_stats.{whole}.{'|'.join(phrases)}"

    def __call__(self, column: Column) -> Facts:
        if not all(phrase.isascii() for phrase in self.phrases):
            column = pc.utf8_lower(column)
        data, offsets = buffers(column)
        out = np.zeros((3, len(column)), np.int64)
        count_phrases(data, offsets, *self._automaton, self.whole, POINTS, KINDS, out)
        return dict(zip(("matches", "paragraphs", "first"), out, strict=True))


def read_lines(path: str) -> list[str]:
    """The lines of a text file, plain or compressed with gzip."""
    raw = Path(path).read_bytes()
    try:
        return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig").splitlines()
    except (OSError, EOFError, zlib.error) as error:
        raise ParameterError(f"{path} is damaged: {error}") from error
    except UnicodeDecodeError as error:
        raise ParameterError(f"{path} is not UTF-8 text: {error}", hint="convert it with `iconv -t utf-8`") from error


def read_list(path: str | None) -> tuple[str, ...]:
    """The words or phrases of a file, one per line, trimmed. Lines that begin with '#' are comments."""
    lines = [] if path is None else map(str.strip, read_lines(path))
    return tuple(text for text in lines if text and not text.startswith("#"))


def check_files(owner: str, paths: Iterable[str | None]) -> None:
    """Raise if a file that an operator needs does not exist."""
    for path in paths:
        if path is not None and not Path(path).is_file():
            raise ParameterError(f"`{owner}` reads the file {path!r}, which does not exist")


def identify_files(identity: dict[str, Any], paths: Iterable[str | None]) -> dict[str, Any]:
    """An operator's identity, with hashes of the files it reads."""
    hashes = {path: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in paths if path is not None}
    return {**identity, "files": hashes}


@operator(reads="text", writes="boilerplate_paragraphs", version=2)
class BoilerPlate(Filter):
    """Drop documents in which more than 40 % of the paragraphs are about cookies, privacy or terms of use.

    Paragraphs that contain one of `phrases`, in any case / paragraphs; 1 if the text contains "lorem ipsum". The default
    phrases are those of C4 and NeMo Curator, as in `BoilerplateRemoval`.

    >>> batch = Batch.from_rows([{"text": "News.\\n\\nPrivacy Policy"}, {"text": "Lorem ipsum dolor"}])
    >>> BoilerPlate().open(Context()).score(batch)["boilerplate_paragraphs"].tolist()
    [0.5, 1.0]
    """

    max_boilerplate_paragraphs: float = 0.4
    phrases: list[str] | None = None
    column: str = "text"

    def open(self, context: Context) -> _BoilerPlateScorer:
        return _BoilerPlateScorer(PhraseStats(self._listed(), whole=False))

    def passages(self, text: str, score: str) -> Passages:
        return phrases(text, self._listed(), whole=False)

    def _listed(self) -> tuple[str, ...]:
        return (PLACEHOLDER, *(POLICY_PHRASES if self.phrases is None else self.phrases))

    def rules(self) -> list[Rule]:
        return [at_most("boilerplate_paragraphs", self.max_boilerplate_paragraphs)]


@dataclass(frozen=True)
class _BoilerPlateScorer:
    stats: PhraseStats

    def score(self, batch: Batch) -> Scores:
        found = batch.facts("text", self.stats)
        share = ratio(found["paragraphs"], text_facts(batch)["paragraphs"])
        return {"boilerplate_paragraphs": np.where(found["first"] > 0, 1.0, share)}


class ListFilter(Filter):
    """A filter with a list of words: `listed` and the lines of the file `path`, or without either, `default`."""

    listed: list[str] | None
    path: str | None
    default: ClassVar[tuple[str, ...]]

    def check(self) -> None:
        check_files(self.name, [self.path])

    def identity(self) -> dict[str, Any]:
        return identify_files(super().identity(), [self.path])

    def _listed(self) -> tuple[str, ...]:
        if self.listed is None and self.path is None:
            return self.default
        return (*(self.listed or ()), *read_list(self.path))


@operator(reads="text", writes="bad_words")
class BadWords(ListFilter):
    """Drop documents that contain a word or phrase of a list (Raffel et al. 2020).

    Occurrences in any case: as whole words, or anywhere in scripts without spaces. The list is `listed` and the lines of
    the file `path`; without either, a short English one.

    >>> batch = Batch.from_rows([{"text": "Darn! Oh no, darning."}])
    >>> BadWords(listed=["darn", "oh no"]).open(Context()).score(batch)["bad_words"].tolist()
    [2]
    """

    max_bad_words: int = 0
    listed: list[str] | None = None
    path: str | None = None
    column: str = "text"
    default = BAD_WORDS

    def open(self, context: Context) -> _BadWordsScorer:
        return _BadWordsScorer(PhraseStats(self._listed(), whole=True))

    def passages(self, text: str, score: str) -> Passages:
        return phrases(text, self._listed(), whole=True)

    def rules(self) -> list[Rule]:
        return [at_most("bad_words", self.max_bad_words)]


@dataclass(frozen=True)
class _BadWordsScorer:
    stats: PhraseStats

    def score(self, batch: Batch) -> Scores:
        return {"bad_words": batch.facts("text", self.stats)["matches"]}


@operator(reads="text", writes="stop_word_share")
class StopWords(ListFilter):
    """Keep documents in which at least 30 % of the words are stop words (Laurençon et al. 2022).

    Words of the list / words, in any case. Words are split as `words` says and begin and end with a letter: what is before
    and after is cut off, and words without letters do not count. The list is `listed` and the lines of the file `path`;
    without either, 195 English words. For another language, give its list and its bound: ROOTS used 0.27 for French and
    0.4 for Spanish. A text without words scores 0.

    The default is that of Data-Juicer's `stopwords_filter` and of ROOTS for English. Their own lists can be given as a file.
    With the same list, most scores are the same; `WordRepetition` says how their words differ. Their word augmentation,
    which also looks up pairs of neighbouring words, is left out.

    >>> batch = Batch.from_rows([{"text": "The cat (and the dog) sleep."}, {"text": "click buy cart"}])
    >>> StopWords().open(Context()).score(batch)["stop_word_share"].tolist()
    [0.5, 0.0]
    """

    min_stop_word_share: float = 0.3
    listed: list[str] | None = None
    path: str | None = None
    words: Words = "auto"
    column: str = "text"
    default = ENGLISH_STOP_WORDS

    def open(self, context: Context) -> _ShareScorer:
        return _ShareScorer("stop_word_share", BareStats(WordStats(self.words, self._listed())))

    def rules(self) -> list[Rule]:
        return [at_least("stop_word_share", self.min_stop_word_share)]


@operator(reads="text", writes="flagged_word_share")
class FlaggedWords(ListFilter):
    """Drop documents in which more than 4.5 % of the words are in a list of words to avoid (Laurençon et al. 2022).

    Words of the list / words, as in `StopWords`. The list is `listed` and the lines of the file `path`; without either, a
    short English one. Phrases of several words are never found: `BadWords` finds them, and counts instead of dividing. A
    text without words scores 0.

    The default is that of Data-Juicer's `flagged_words_filter`; ROOTS used 0.01 for English. Their own lists can be given as a
    file. With the same list, most scores are the same; `WordRepetition` says how their words differ.

    >>> batch = Batch.from_rows([{"text": "Darn! Oh no, darning."}])
    >>> FlaggedWords(listed=["darn"]).open(Context()).score(batch)["flagged_word_share"].tolist()
    [0.25]
    """

    max_flagged_word_share: float = 0.045
    listed: list[str] | None = None
    path: str | None = None
    words: Words = "auto"
    column: str = "text"
    default = BAD_WORDS

    def open(self, context: Context) -> _ShareScorer:
        return _ShareScorer("flagged_word_share", BareStats(WordStats(self.words, self._listed())))

    def passages(self, text: str, score: str) -> Passages:
        return phrases(text, self._listed(), whole=True)

    def rules(self) -> list[Rule]:
        return [at_most("flagged_word_share", self.max_flagged_word_share)]


@dataclass(frozen=True)
class _ShareScorer:
    name: str
    stats: BareStats

    def score(self, batch: Batch) -> Scores:
        found = batch.facts("text", self.stats)
        return {self.name: ratio(found["listed"], found["words"])}


@operator(reads="text", writes="substring")
class Substring(Filter):
    """Keep documents that begin with a substring, end with it or contain it: 1 if so, else 0.

    >>> Substring("Hello").score(Batch.from_rows([{"text": "Hello reader"}, {"text": "Oh Hello"}]))["substring"].tolist()
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


@operator(reads="text", writes="regex_matches")
class Regex(Filter):
    """Drop documents in which a regular expression matches; with `min_matches`, keep those in which it matches.

    Matches are counted without overlaps. The syntax is that of RE2: time grows with the length of the text, whatever the
    expression, so there are no backreferences and no look-around. A null text has no match.

    >>> Regex("[0-9]+").score(Batch.from_rows([{"text": "3 of 14"}, {"text": "none"}]))["regex_matches"].tolist()
    [2, 0]
    """

    pattern: str
    ignore_case: bool = False
    min_matches: int | None = None
    max_matches: int | None = None
    column: str = "text"

    def check(self) -> None:
        try:
            pc.count_substring_regex(pa.array([""]), self.pattern)
        except pa.ArrowInvalid as error:
            raise ParameterError(
                f"`pattern` of `{self.name}` is not a regular expression: {error}",
                hint="RE2 has no backreferences and no look-around",
            ) from error

    def score(self, batch: Batch) -> Scores:
        texts = batch["text"].cast(pa.large_string())
        found = pc.count_substring_regex(texts, self.pattern, ignore_case=self.ignore_case)
        return {"regex_matches": pc.fill_null(found, 0).to_numpy(zero_copy_only=False).astype(np.int64)}

    def rules(self) -> list[Rule]:
        given = self.min_matches is not None or self.max_matches is not None
        return [between("regex_matches", self.min_matches, self.max_matches if given else 0)]


def _read_histogram(path: str, end: str) -> np.ndarray:
    """The first characters of the lines of a file, up to the line that begins with `end`."""
    members = []
    for line in Path(path).read_text(encoding="utf-8").split("\n"):
        if line[:1] == end:
            break
        members.append(line[:1])
    return character_set(filter(None, members))


@operator(reads="text", writes="known_characters")
class Histogram(Filter):
    """Keep documents of which at least 80 % of the characters are usual in their language (NLLB team 2022, section 4.1.3).

    Characters in the histogram, without white space around the text / characters. The histogram is a text file whose
    lines begin with a character, the most frequent first. The line that begins with `end` ends the part that is used.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "en"
    >>> _ = path.write_text("e 12\\na 9\\nt 8\\n] 0\\nz 0\\n")
    >>> Histogram(str(path)).open(Context()).score(Batch.from_rows([{"text": "teaz"}]))["known_characters"].tolist()
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

    def open(self, context: Context) -> _HistogramScorer:
        return _HistogramScorer(_read_histogram(self.path, self.end))

    def rules(self) -> list[Rule]:
        return [at_least("known_characters", self.min_known_characters)]


@dataclass(frozen=True)
class _HistogramScorer:
    characters: np.ndarray

    def score(self, batch: Batch) -> Scores:
        data, offsets = buffers(batch["text"])
        out = np.zeros(len(batch), np.int64)
        count_members(data, offsets, self.characters, POINTS, KINDS, out)
        return {"known_characters": ratio(out, text_facts(batch)["chars"])}
