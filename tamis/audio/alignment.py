"""Checks transcripts against their recordings word by word, and cuts both into sentences.

audio, text --CTC network--> forced alignment -----------------------> times and probabilities of the words of the text
audio, text --other recognizer--> words with times --edit distance--> times of the words of the text that were heard
audio, text, words --> sentences: one row each, with the part of the recording in which it is said
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tamis.audio.decode import RATE, AudioStep, recordings, waveforms
from tamis.audio.segment import segment_rows
from tamis.audio.transcribe import WORDS, open_shared, recognizer_resources
from tamis.audio.transcripts import normalized
from tamis.batch import Batch
from tamis.context import Context
from tamis.errors import ParameterError, TamisError
from tamis.models.ctc import Ctc
from tamis.models.files import ModelError, with_files
from tamis.models.recognizers import CtcRecognizer, Heard, Wish, find_recognizer, joined, pieces
from tamis.operators import Expand, Filter, Resources, Rule, Scores, at_least, operator
from tamis.text.clean import strings

_ENDS = re.compile("[.!?\u2026\u3002\uff01\uff1f\u0964\u061f]+[\"'\u201d\u2019\u00bb)\\]]*$")
"""A word that ends a sentence."""


@operator(reads=("audio", "text"), writes=("alignment", "aligned_share", "words"))
class TranscriptAlignment(AudioStep, Filter):
    """Keep recordings that say their text, and add when each word is said.

    With a CTC folder (wav2vec 2.0, HuBERT, ...), the text is aligned by force (Kürzinger et al. 2020): `alignment` is
    the geometric mean of the probabilities of its characters at the frames that say them. With any recognizer that has
    times, such as whisper-tiny.en, the recording is transcribed and its words are compared with those of the text:
    `alignment` is the mean confidence of the words that agree, times their share. `aligned_share` is the share of the
    words of the text that have times. `words` lists the words of the text with their begin and end in seconds, which
    are null for words that were not found.

    A text that does not belong to its recording has an alignment near 0. Scores are columns of the rows that are kept.
    A row without text is dropped; one with more text than time has an alignment of 0. Recordings are at most ten
    minutes long.

        TranscriptAlignment("models/wav2vec2-base-960h", min_alignment=0.5)
    """

    model: str | Path = "whisper-tiny.en"
    column: str = "audio"
    text: str = "text"
    min_alignment: float = 0.3
    min_aligned_share: float | None = 0.5

    cost = 20_000.0
    tolerance = 1e-3

    @property
    def adds_scores(self) -> bool:
        return True

    def real_names(self) -> dict[str, str]:
        return {"audio": self.column, "text": self.text}

    def score_columns(self) -> dict[str, str]:
        return {name: name for name in self.declared_writes}

    def check(self) -> None:
        found = find_recognizer(self.model)
        if found.kind == "moonshine":
            raise ModelError(
                f"{self.model} has no times of words",
                hint="use whisper-tiny.en, or a folder of a network with a CTC head",
            )

    def packages(self) -> Mapping[str, str]:
        return {**super().packages(), **find_recognizer(self.model).packages}

    def identity(self) -> dict[str, Any]:
        return with_files(super().identity(), find_recognizer(self.model))

    @property
    def resources(self) -> Resources:
        try:
            return recognizer_resources(find_recognizer(self.model), on_gpu=False)
        except TamisError:  # `check` reports it
            return Resources()

    def open(self, context: Context) -> _Aligner:
        found = find_recognizer(self.model)
        recognizer = open_shared(found, context, "cpu")
        return _ForcedAligner(recognizer.model) if isinstance(recognizer, CtcRecognizer) else _WordAligner(recognizer)

    def rules(self) -> list[Rule]:
        rules = [at_least("alignment", self.min_alignment)]
        least = self.min_aligned_share
        return rules if least is None else [*rules, at_least("aligned_share", least)]


class _Aligner:
    def score(self, batch: Batch) -> Scores:
        texts = strings(batch["text"]).to_pylist()
        waves = waveforms(batch, "audio")
        scores: list[float | None] = []
        shares: list[float | None] = []
        words: list[list[dict[str, Any]] | None] = []
        for row, text in enumerate(texts):
            wave = waves[row]
            if wave is None or not (text or "").split():
                scores.append(None)
                shares.append(None)
                words.append(None)
                continue
            score, found = self._align(wave, text)
            scores.append(score)
            shares.append(sum(each["start"] is not None for each in found) / len(found))
            words.append(found)
        return {
            "alignment": pa.array(scores, pa.float64()),
            "aligned_share": pa.array(shares, pa.float64()),
            "words": pa.array(words, WORDS),
        }

    def _align(self, wave: np.ndarray, text: str) -> tuple[float, list[dict[str, Any]]]:
        """(how well the text fits, its words with times)."""
        raise NotImplementedError


def _word(text: str, start: float | None = None, end: float | None = None, sure: float | None = None) -> dict[str, Any]:
    return {"text": text, "start": start, "end": end, "confidence": sure}


class _ForcedAligner(_Aligner):
    def __init__(self, model: Ctc) -> None:
        self._model = model

    def _align(self, wave: np.ndarray, text: str) -> tuple[float, list[dict[str, Any]]]:
        (found,) = self._model.logarithms([wave])
        aligned = self._model.align(found, text, len(wave) / RATE)
        if aligned is None:
            return 0.0, [_word(word) for word in text.split()]
        times = iter(aligned)
        following = next(times, None)
        words = []
        for word in text.split():
            if following is not None and following[0] == word:
                words.append(_word(word, *following[1:]))
                following = next(times, None)
            else:
                words.append(_word(word))
        sure = [max(each[3], 1e-9) for each in aligned]
        lengths = [len(each[0]) for each in aligned]
        return float(np.exp(np.average(np.log(sure), weights=lengths))), words


class _WordAligner(_Aligner):
    def __init__(self, recognizer: Any) -> None:
        self._recognizer = recognizer

    def _align(self, wave: np.ndarray, text: str) -> tuple[float, list[dict[str, Any]]]:
        parts = list(pieces([wave], self._recognizer.max_s))
        heard: list[Heard] = self._recognizer.transcribe([samples for _, samples in parts], Wish(times=True))
        whole = joined([(begin, len(samples), each) for (begin, samples), each in zip(parts, heard, strict=True)])
        said = whole.words or []
        words = [_word(word) for word in text.split()]
        left, right = (
            normalized(pa.array(each, pa.string())).to_pylist()
            for each in ([word["text"] for word in words], [word.text for word in said])
        )
        sure = 0.0
        for first, second, size in difflib.SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks():
            for place in range(size):
                word = said[second + place]
                words[first + place] |= {"start": word.start, "end": word.end, "confidence": word.confidence}
                sure += word.confidence if word.confidence is not None else 1.0
        return sure / max(len(left), len(right)), words


# -------------------------------------------------------------------------------------------------------------- sentences


@operator(reads=("audio", "text", "words"), writes=("audio", "text", "words", "begin", "duration"))
class SentenceSegments(AudioStep, Expand):
    """Replace each recording with a text by its sentences, each with the part of the recording in which it is said.

    `words` are the words of the text with times, as `TranscriptAlignment` adds them. A sentence ends at a word with . !
    ? or the like. Sentences are joined while they are shorter than `min_s`, and left out if they are longer than
    `max_s` or have fewer than `min_timed` of their words timed. Up to `pad_s` of the silence around is added, but at
    most half of it. `begin` is in seconds from the begin of the file; the times in `words` count from the begin of the
    new segment. Segments refer to the recording, as those of `SpeechSegments`.

        SentenceSegments(max_s=15)
    """

    column: str = "audio"
    text: str = "text"
    words: str = "words"
    min_s: float = 1.0
    max_s: float = 30.0
    pad_s: float = 0.2
    min_timed: float = 0.8

    cost = 20.0

    def real_names(self) -> dict[str, str]:
        return {"audio": self.column, "text": self.text, "words": self.words}

    def writes(self) -> tuple[str, ...]:
        return (self.column, self.text, self.words, "begin", "duration")

    def check(self) -> None:
        if not 0 <= self.min_s < self.max_s or self.pad_s < 0:
            raise ParameterError(
                f"`min_s` is {self.min_s}, `max_s` {self.max_s}, `pad_s` {self.pad_s}",
                hint="give 0 <= min_s < max_s, and a pad of at least 0",
            )

    def expand(self, batch: Batch) -> tuple[pa.Table, np.ndarray]:
        rows = recordings(batch, "audio")
        found = [
            [] if row is None or not words else list(self._sentences(words, row.duration))
            for row, words in zip(rows, batch["words"].to_pylist(), strict=True)
        ]
        columns, parents = segment_rows(rows, [[(begin, end) for begin, end, _ in each] for each in found])
        columns[self.column] = columns.pop("audio")
        flat = [words for each in found for *_, words in each]
        columns[self.text] = pa.array([" ".join(word["text"] for word in words) for words in flat], pa.string())
        columns[self.words] = pa.array(flat, WORDS)
        return pa.table(columns), parents

    def _sentences(
        self, words: Sequence[dict[str, Any]], duration: float
    ) -> Iterator[tuple[float, float, list[dict[str, Any]]]]:
        groups = list(self._groups(words))
        times = [_times(group) for group in groups]
        for number, (group, found) in enumerate(zip(groups, times, strict=True)):
            if found is None or sum(word["start"] is not None for word in group) < self.min_timed * len(group):
                continue
            before = next((each[1] for each in reversed(times[:number]) if each), 0.0)
            after = next((each[0] for each in times[number + 1 :] if each), duration)
            begin = max(0.0, found[0] - min(self.pad_s, max(0.0, found[0] - before) / 2))
            end = min(duration, found[1] + min(self.pad_s, max(0.0, after - found[1]) / 2))
            if 0 < end - begin <= self.max_s:
                yield begin, end, [_moved(word, begin) for word in group]

    def _groups(self, words: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
        group: list[dict[str, Any]] = []
        for word in words:
            group.append(word)
            times = _times(group)
            if _ENDS.search(word["text"] or "") and times is not None and times[1] - times[0] >= self.min_s:
                yield group
                group = []
        if group:
            yield group


def _times(group: Sequence[dict[str, Any]]) -> tuple[float, float] | None:
    """(begin, end) of the words that have times."""
    starts = [word["start"] for word in group if word["start"] is not None]
    ends = [word["end"] for word in group if word["end"] is not None]
    return (min(starts), max(ends)) if starts and ends else None


def _moved(word: dict[str, Any], begin: float) -> dict[str, Any]:
    moved = {key: None if word[key] is None else max(0.0, word[key] - begin) for key in ("start", "end")}
    return word | moved
