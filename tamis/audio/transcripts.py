"""Judges transcripts: against another transcript, against the time they take, and against what recognizers invent.

    transcript, text --normalized, split--> words and characters --kernel--> edits --> WER, CER, edge CER
    transcript, duration --------------------------------------------------> words and characters per second

All operators on texts work on transcripts too, with `column="transcript"`. What NeMo Curator calls AudioToDocument is a
renaming: `Rename({"text": "transcript"})`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Batch, Column
from tamis.context import Context
from tamis.kernels.edits import edit_distances, most_repeats
from tamis.models.fasttext import find_model, with_model
from tamis.operators import Filter, Resources, Rule, Scores, at_least, at_most, between, less_than, operator
from tamis.text.clean import strings
from tamis.text.language import LID, LanguageScorer
from tamis.text.shared_files import FASTTEXT

_SPACES = r"[\s\x0b\x1c-\x1f\x{85}\pZ]+"
"""What is a space in Python; `\\s` alone has only those of ASCII, and not that of Chinese and Japanese."""


def normalized(column: Column, *, ignore_case: bool = True, ignore_punctuation: bool = True) -> pa.Array:
    """Texts as they are compared: one space between words, none at the ends; if requested, without case and punctuation.

    Apostrophes within words stay. A null becomes an empty text.

    >>> normalized(pa.array(["  It's  the END -- of\\tit. ", None])).to_pylist()
    ["it's the end of it", '']
    """
    texts = pc.fill_null(strings(column), "")
    if ignore_case:
        texts = pc.utf8_lower(texts)
    if ignore_punctuation:
        texts = pc.replace_substring_regex(texts, "[\u2018\u2019]", "'")
        texts = pc.replace_substring_regex(texts, r"[^\pL\pM\pN\s']+", " ")
        texts = pc.replace_substring_regex(texts, r"(^|\s)'+|'+(\s|$)", " ")
    return pc.utf8_trim_whitespace(pc.replace_substring_regex(texts, _SPACES, " "))


def word_ids(*columns: pa.Array) -> list[tuple[np.ndarray, np.ndarray]]:
    """(numbers of words, offsets) for columns of normalized texts; the same word has the same number in all of them."""
    lists = [pc.split_pattern(column, " ") for column in columns]
    counts = [
        np.where(_lengths(column) > 0, pc.list_value_length(words).to_numpy(zero_copy_only=False), 0)
        for column, words in zip(columns, lists, strict=True)
    ]
    words = [each.flatten() for each in lists]
    words = [each.filter(pc.greater(pc.binary_length(each), 0)) for each in words]
    codes = pa.concat_arrays(words).dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int32)
    result, first = [], 0
    for each, count in zip(words, counts, strict=True):
        result.append((codes[first : first + len(each)], _offsets(count)))
        first += len(each)
    return result


def characters(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """(code points, offsets) of texts."""
    joined = "".join(column.to_pylist())
    return np.frombuffer(joined.encode("utf-32-le"), "<i4"), _offsets(_lengths(column))


def _lengths(column: pa.Array) -> np.ndarray:
    return np.asarray(pc.utf8_length(column).to_numpy(zero_copy_only=False), np.int64)


def _offsets(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def _edits(left: tuple[np.ndarray, np.ndarray], right: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    out = np.zeros(len(left[1]) - 1, np.int64)
    kinds = 1 + max(left[0].max(initial=0), right[0].max(initial=0))
    edit_distances(*left, *right, int(kinds), out)
    return out


def word_edits(references: pa.Array, hypotheses: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """(edits, words in the reference) of pairs of normalized texts."""
    left, right = word_ids(references, hypotheses)
    return _edits(left, right), np.diff(left[1])


def char_edits(references: pa.Array, hypotheses: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """(edits, characters in the reference) of pairs of normalized texts."""
    return _edits(characters(references), characters(hypotheses)), _lengths(references)


def _rate(edits: np.ndarray, length: np.ndarray) -> np.ndarray:
    return edits / np.maximum(length, 1)


@operator(
    reads=("transcript", "text"),
    writes=("wer", "cer", "edge_cer", "word_edits", "reference_words", "char_edits", "reference_chars"),
)
class WordErrorRate(Filter):
    """Keep rows whose transcript has a word error rate of at most 0.75 against a reference text.

    WER is the least number of words to insert, delete or substitute, divided by the words of the reference; CER is the
    same for characters. `edge_cer` is the larger CER of the first and the last `edge_chars` characters: a high one
    means that the sound begins or ends within a word, or that the text is of a longer passage. Rates can exceed 1. For
    an empty reference they are the number of insertions. All equal those of the library jiwer on normalized texts. 0.75
    is the bound in NeMo Curator's tutorial, 12 characters its edge.

    Texts are compared without case and punctuation unless `ignore_case` or `ignore_punctuation` is False. With
    `keep_without_text`, rows whose reference is null or blank are kept, their scores are null, and the data need not have the
    column at all. The report has the sums of edits and lengths; `error_rates` returns the rates of a whole corpus.

    >>> rows = [{"transcript": "the cat sat", "text": "The cat sits."}, {"transcript": "", "text": "hello"}]
    >>> [round(each, 2) for each in WordErrorRate().open(Context()).score(Batch.from_rows(rows))["wer"].tolist()]
    [0.33, 1.0]
    """

    column: str = "transcript"
    reference: str = "text"
    ignore_case: bool = True
    ignore_punctuation: bool = True
    edge_chars: int = 12
    max_wer: float | None = 0.75
    max_cer: float | None = None
    max_edge_cer: float | None = None
    keep_without_text: bool = False

    def reads(self) -> tuple[str, ...]:
        return ("transcript",) if self.keep_without_text else ("transcript", "text")

    def optional_reads(self) -> tuple[str, ...]:
        return (self.reference,) if self.keep_without_text else ()

    def real_names(self) -> dict[str, str]:
        return super().real_names() | ({} if self.keep_without_text else {"text": self.reference})

    def open(self, context: Context) -> _ErrorScorer:
        return _ErrorScorer(self)

    def rules(self) -> list[Rule]:
        bounds = {"wer": self.max_wer, "cer": self.max_cer, "edge_cer": self.max_edge_cer}
        lenient = self.keep_without_text
        return [at_most(name, bound, keeps_missing=lenient) for name, bound in bounds.items() if bound is not None]


class _ErrorScorer:
    def __init__(self, step: WordErrorRate) -> None:
        self._step = step
        self._counts: dict[str, float] = {}

    def score(self, batch: Batch) -> Scores:
        step = self._step
        name = step.reference if step.keep_without_text else "text"
        given = batch[name] if name in batch else pa.nulls(len(batch), pa.string())
        found, references = (
            normalized(column, ignore_case=step.ignore_case, ignore_punctuation=step.ignore_punctuation)
            for column in (batch["transcript"], given)
        )
        words, num_words = word_edits(references, found)
        chars, num_chars = char_edits(references, found)
        edges = []
        for side in ({"start": 0, "stop": step.edge_chars}, {"start": -step.edge_chars}):
            cut = [pc.utf8_slice_codeunits(texts, **side) for texts in (references, found)]
            edges.append(_rate(*char_edits(*cut)))
        scores = {
            "wer": _rate(words, num_words),
            "cer": _rate(chars, num_chars),
            "edge_cer": np.maximum(*edges),
            "word_edits": words,
            "reference_words": num_words,
            "char_edits": chars,
            "reference_chars": num_chars,
        }
        missing = _lengths(references) == 0 if step.keep_without_text else np.zeros(len(batch), np.bool_)
        for name in ("word_edits", "reference_words", "char_edits", "reference_chars"):
            self._counts[name] = self._counts.get(name, 0) + int(scores[name][~missing].sum())
        if not missing.any():
            return scores
        return {name: pa.array(values, mask=missing) for name, values in scores.items()}

    def take_counts(self) -> dict[str, float]:
        counts, self._counts = self._counts, {}
        return counts


def error_rates(table: pa.Table | Mapping[str, Any]) -> dict[str, float]:
    """WER and CER of a corpus: the edits of all rows, divided by the length of all references.

    `table` has the columns that `WordErrorRate(score_only=True)` adds, or the counts of its step in a report.

    >>> error_rates({"word_edits": [1, 0], "reference_words": [3, 1], "char_edits": [1, 0], "reference_chars": [12, 4]})
    {'wer': 0.25, 'cer': 0.0625}
    """

    def total(name: str) -> float:
        values: Any = table[name]
        if isinstance(values, pa.ChunkedArray):
            return float(pc.sum(values).as_py() or 0)
        return float(np.sum(values))

    return {
        "wer": total("word_edits") / max(total("reference_words"), 1),
        "cer": total("char_edits") / max(total("reference_chars"), 1),
    }


# ------------------------------------------------------------------------------------------------------------------- rate


@operator(reads=("transcript", "duration"), writes=("words_per_second", "chars_per_second"))
class SpeechRate(Filter):
    """Keep rows whose transcript has at most 40 characters per second, the bound of NeMo Curator.

    Words and characters, without spaces at the ends, are divided by the seconds in the column `duration`. People speak
    two to three words per second; a transcript that is much faster or slower does not belong to its sound. A row
    without a duration, or with one that is not positive, is dropped.

    >>> batch = Batch.from_rows([{"transcript": "one two three", "duration": 2.0}])
    >>> SpeechRate().score(batch)["words_per_second"].to_pylist()
    [1.5]
    """

    column: str = "transcript"
    duration: str = "duration"
    min_words_per_second: float | None = None
    max_words_per_second: float | None = None
    min_chars_per_second: float | None = None
    max_chars_per_second: float | None = 40.0

    def real_names(self) -> dict[str, str]:
        return super().real_names() | {"duration": self.duration}

    def score(self, batch: Batch) -> Scores:
        texts = normalized(batch["transcript"], ignore_case=False, ignore_punctuation=False)
        ((_, offsets),) = word_ids(texts)
        seconds = _seconds(batch["duration"])
        missing = ~(seconds > 0)
        divided = np.where(missing, 1.0, seconds)
        return {
            "words_per_second": pa.array(np.diff(offsets) / divided, mask=missing),
            "chars_per_second": pa.array(_lengths(texts) / divided, mask=missing),
        }

    def rules(self) -> list[Rule]:
        return [
            between("words_per_second", self.min_words_per_second, self.max_words_per_second),
            between("chars_per_second", self.min_chars_per_second, self.max_chars_per_second),
        ]


def _seconds(column: Column) -> np.ndarray:
    """Durations as float64; NaN where there is none."""
    return np.asarray(pc.fill_null(column.cast(pa.float64()), float("nan")).to_numpy(zero_copy_only=False), np.float64)


# --------------------------------------------------------------------------------------------------------- hallucinations

PHRASES = (
    "thank you", "thank you for watching", "thanks for watching", "thank you so much for watching", "please subscribe",
    "subscribe", "like and subscribe", "see you in the next video", "i'll see you in the next video", "bye", "bye bye",
    "you", "subtitles by the amara org community", "subtitles by amara org", "transcription by castingwords", "music",
    "applause", "untertitel der amara org community", "untertitel im auftrag des zdf", "sous titrage st' 501",
    "sous titres réalisés par la communauté d'amara org", "subtítulos realizados por la comunidad de amara org",
    "legendas pela comunidade amara org", "sottotitoli creati dalla comunità amara org", "продолжение следует",
    "ondertitels ingediend door de amara org gemeenschap", "ご視聴ありがとうございました", "субтитры сделал dimatorzok",
    "字幕由amara org社区提供",
)  # fmt: skip
"""What Whisper writes for silence and music, as Koenecke et al. (2024) and users of the model report it."""

_UNSPACED = r"([\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}]\pM*)"

LONGEST_LOOP = 12
"""Words of the longest n-gram whose repetitions are counted."""


@operator(
    reads="transcript", writes=("unique_words", "longest_word", "longest_word_ratio", "repeats", "invented_phrase")
)
class Hallucination(Filter):
    """Keep transcripts without the marks of what recognizers such as Whisper invent.

    unique_words         distinct words / words; at least 0.4, below it the text repeats itself
    longest_word         characters of the longest word; at most 24
    longest_word_ratio   (longest word - second longest) / second longest; below 3
    repeats              how often an n-gram of up to 12 words follows itself; at most 5
    invented_phrase      1 if the whole text is one of `phrases`, else 0

    Words are compared without case and punctuation. In scripts without spaces, such as Chinese, Japanese and Thai, each
    letter is a word in `repeats` and `longest_word`, and `longest_word_ratio` is 0. All bounds but the one of `repeats`
    are those of NeMo Curator, which also drops a share of exactly 0.4, and allows 34 characters and any ratio in
    languages with long words. Combine it with `SpeechRate`, which finds text that is too fast to be spoken. `phrases`
    replaces the list of what Whisper writes for silence. An empty transcript has no such mark.

    >>> batch = Batch.from_rows([{"transcript": "Thank you for watching!"}, {"transcript": "no no no no no no no no"}])
    >>> scores = Hallucination().score(batch)
    >>> scores["invented_phrase"].tolist(), scores["repeats"].tolist()
    ([1, 0], [1, 8])
    """

    column: str = "transcript"
    phrases: Sequence[str] = PHRASES
    min_unique_words: float = 0.4
    max_longest_word: int = 24
    max_longest_word_ratio: float = 3.0
    max_repeats: int = 5

    def score(self, batch: Batch) -> Scores:
        texts = normalized(batch["transcript"])
        apart = _letters_apart(texts)
        ((ids, offsets),) = word_ids(apart)
        repeats = np.zeros(len(texts), np.int64)
        most_repeats(ids, offsets, LONGEST_LOOP, repeats)
        ((ids, offsets),) = word_ids(texts)
        distinct = np.array([len(np.unique(ids[start:stop])) for start, stop in itertools.pairwise(offsets)], np.int64)
        counts = np.diff(offsets)
        longest, ratio = _longest(apart)
        known = normalized(pa.array(list(self.phrases), pa.string()))
        invented = pc.and_(pc.is_in(texts, value_set=known), pc.greater(pc.binary_length(texts), 0))
        return {
            "unique_words": np.where(counts > 0, distinct / np.maximum(counts, 1), 1.0),
            "longest_word": longest,
            "longest_word_ratio": np.where(pc.equal(apart, texts), ratio, 0.0),
            "repeats": repeats,
            "invented_phrase": invented.to_numpy(zero_copy_only=False).astype(np.int64),
        }

    def rules(self) -> list[Rule]:
        return [
            at_least("unique_words", self.min_unique_words),
            at_most("longest_word", self.max_longest_word),
            less_than("longest_word_ratio", self.max_longest_word_ratio),
            at_most("repeats", self.max_repeats),
            at_most("invented_phrase", 0),
        ]


def _letters_apart(texts: pa.Array) -> pa.Array:
    """Normalized texts with a space around each letter of a script that puts none between words."""
    return pc.utf8_trim_whitespace(
        pc.replace_substring_regex(pc.replace_substring_regex(texts, _UNSPACED, r" \1 "), " +", " ")
    )


def _longest(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """(characters of the longest word, by how much it exceeds the second longest relative to it)."""
    longest, ratio = np.zeros(len(texts), np.int64), np.zeros(len(texts))
    for row, text in enumerate(texts.to_pylist()):
        lengths = sorted(map(len, text.split()), reverse=True)
        if lengths:
            longest[row] = lengths[0]
        if len(lengths) > 1:
            ratio[row] = (lengths[0] - lengths[1]) / lengths[1]
    return longest, ratio


# --------------------------------------------------------------------------------------------------------------- language


@operator(reads=("transcript", "language"), writes=("text_language", "text_language_confidence", "language_agrees"))
class TranscriptLanguage(Filter):
    """Keep rows whose transcript is in the language of their label.

    The language of the transcript is found by lid.176 (Joulin et al. 2017), as by `Language`. Labels are codes such as "en",
    "en-US" or "en_us", of which the first part counts. `language_agrees` is 1 if both are the same and 0 if not. It is 0.5 if
    the transcript is blank, the label is missing or not a code of the model, or the model is less confident than `sure`:
    short transcripts such as names look like many languages. Only rows with 0 are dropped, unless `keep_unsure` is False.

        TranscriptLanguage(label="lang", sure=0.5)
    """

    column: str = "transcript"
    label: str = "language"
    sure: float = 0.65
    keep_unsure: bool = True
    model: str | Path = LID

    cost = 3.0
    verdict_parameters = frozenset({"keep_unsure"})

    def real_names(self) -> dict[str, str]:
        return super().real_names() | {"language": self.label}

    def check(self) -> None:
        find_model(self.model)

    def identity(self) -> dict[str, Any]:
        return with_model(super().identity(), find_model(self.model))

    @property
    def resources(self) -> Resources:
        return FASTTEXT.resources(self.model)

    def open(self, context: Context) -> _LanguageComparer:
        return _LanguageComparer(self, LanguageScorer(FASTTEXT.open(self.model, context), 0))

    def rules(self) -> list[Rule]:
        return [at_least("language_agrees", 0.5 if self.keep_unsure else 1.0)]


class _LanguageComparer:
    def __init__(self, step: TranscriptLanguage, scorer: LanguageScorer) -> None:
        self._step, self._scorer = step, scorer

    def score(self, batch: Batch) -> Scores:
        found = self._scorer.score(Batch(pa.table({"text": strings(batch["transcript"])})))
        labels = pc.utf8_lower(pc.utf8_trim_whitespace(strings(batch["language"])))
        labels, languages = (
            pc.replace_substring_regex(codes, "[-_].*", "") for codes in (labels, pa.array(found["language"]))
        )
        agrees = pc.equal(languages, labels).cast(pa.float64())
        known = pc.is_in(labels, value_set=pa.array([re.sub("[-_].*", "", code) for code in self._scorer.languages]))
        doubtful = pc.fill_null(pc.less(pa.array(found["language_confidence"]), self._step.sure), True)
        unsure = pc.or_(doubtful, pc.invert(known))
        return {
            "text_language": found["language"],
            "text_language_confidence": found["language_confidence"],
            "language_agrees": pc.fill_null(pc.if_else(unsure, 0.5, agrees), 0.5),
        }
