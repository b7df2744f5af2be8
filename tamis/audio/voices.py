"""Who speaks: vectors of voices, how many there are, whether two are the same, and their turns.

speech (Silero) --windows of 1.6 s, every 0.4 s--> vectors (GE2E) --clustered by average similarity--> speakers
                                                                                                 --> turns
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tamis.audio.decode import RATE, Recording, recordings
from tamis.audio.neural import ModelStep, find_audio_model
from tamis.audio.rttm import Turn, read_rttm, turns_of
from tamis.audio.segment import segment_rows
from tamis.batch import Batch, Column
from tamis.context import Context
from tamis.errors import ParameterError
from tamis.kernels.linkage import average_linkage
from tamis.models import onnx
from tamis.models.files import ModelFiles
from tamis.models.outputs import vectors
from tamis.models.silero import WINDOW, Voice
from tamis.models.speakers import WIDTH, WINDOW_S, SpeakerEncoder, amplified, unit
from tamis.operators import Expand, Filter, Map, Resources, Rule, Scores, at_least, between, operator

BLOCK_S = 300.0
"""Voices of this much are compared at a time; speakers of different blocks are compared by their means."""

STEP_S = 0.4
SIMILAR = 0.72
"""Windows of one voice are more similar than this on average; chosen on three recordings with one and two voices."""

SPEECH = 0.5
"""The probability of speech above which a window of Silero counts."""


class _SpeakerStep(ModelStep):
    runtime_bytes = 300_000_000
    tolerance = 1e-4

    def found(self) -> ModelFiles:
        return find_audio_model(getattr(self, "model"), "speakers")  # noqa: B009

    def key(self, found: ModelFiles) -> str:
        return found.key("speakers")

    def encoder(self, context: Context) -> SpeakerEncoder:
        made: SpeakerEncoder = self.shared(context, SpeakerEncoder)
        return made


@dataclass(frozen=True)
class Span:
    """Somebody speaks: times in seconds from the begin of the row, and the number of the speaker."""

    begin: float
    end: float
    speaker: int


class Diarizer:
    """Finds the turns of speakers."""

    def __init__(self, encoder: SpeakerEncoder, session: Any, similar: float, shortest: float, gap: float) -> None:
        self._encoder, self._session = encoder, session
        self._similar, self._shortest, self._gap = similar, shortest, gap

    def turns(self, recording: Recording) -> list[Span]:
        """The turns of a recording, in order of time; speakers are numbered by their first turn."""
        voice = Voice(self._session)
        spans: list[tuple[float, float, int]] = []
        means: list[np.ndarray] = []
        weights: list[float] = []
        begin = 0.0
        for block in recording.blocks(RATE, BLOCK_S):  # which are a whole number of windows of Silero long
            loud = voice.feed(block) >= SPEECH
            for label, first, last in self._block(block, loud, len(means), means, weights):
                spans.append((begin + first, begin + last, label))
            begin += len(block) / RATE
        if not spans:
            return []
        labels = self._joined(means, weights)
        return self._merged([(first, last, labels[label]) for first, last, label in spans])

    def _block(
        self, block: np.ndarray, loud: np.ndarray, offset: int, means: list[np.ndarray], weights: list[float]
    ) -> list[tuple[int, float, float]]:
        """(speaker, begin, end) of the turns of one block; the vectors of its speakers are appended to `means`."""
        if len(block) < RATE * 0.2 or not loud.any():
            return []
        starts, found = self._encoder.windows(amplified(block), 1 / STEP_S)
        centres = starts + WINDOW_S / 2
        speech = np.array(
            [
                loud[int(start * RATE) // WINDOW : int((start + WINDOW_S) * RATE) // WINDOW + 1].mean()
                for start in starts
            ]
        )
        used = np.flatnonzero(speech >= 0.5)
        if not len(used):
            used = np.array([int(speech.argmax())])
        labels = cluster(found[used], np.ones(len(used)), self._similar)
        for label in range(labels.max() + 1):
            mine = found[used][labels == label]
            means.append(unit(mine.mean(axis=0)))
            weights.append(float(len(mine)))
        times = (np.arange(len(loud)) + 0.5) * WINDOW / RATE
        nearest = np.searchsorted((centres[used][1:] + centres[used][:-1]) / 2, times)
        who = np.where(loud, labels[nearest], -1)
        edges = np.flatnonzero(np.diff(who, prepend=-2, append=-2))
        runs = itertools.pairwise(edges)
        length = len(block) / RATE
        return [
            (offset + int(who[first]), first * WINDOW / RATE, min(last * WINDOW / RATE, length))
            for first, last in runs
            if who[first] >= 0
        ]

    def _joined(self, means: Sequence[np.ndarray], weights: Sequence[float]) -> list[int]:
        return [int(each) for each in cluster(np.stack(means), np.array(weights), self._similar)]

    def _merged(self, spans: Sequence[tuple[float, float, int]]) -> list[Span]:
        """Turns of one speaker that are close are one turn; short ones are left out."""
        turns: list[Span] = []
        for begin, end, speaker in spans:
            if turns and turns[-1].speaker == speaker and begin - turns[-1].end <= self._gap:
                turns[-1] = Span(turns[-1].begin, end, speaker)
            else:
                turns.append(Span(begin, end, speaker))
        turns = [turn for turn in turns if turn.end - turn.begin >= self._shortest]
        order = {speaker: number for number, speaker in enumerate(dict.fromkeys(turn.speaker for turn in turns))}
        return [Span(turn.begin, turn.end, order[turn.speaker]) for turn in turns]


def cluster(found: np.ndarray, weights: np.ndarray, similar: float) -> np.ndarray:
    """Numbers of clusters from 0 on, in order of their first vector, for vectors of length 1."""
    table = np.ascontiguousarray(found @ found.T, np.float32)
    labels = np.zeros(len(found), np.int64)
    average_linkage(table, np.asarray(weights, np.float64), similar, labels)
    return np.unique(labels, return_inverse=True)[1]


# -------------------------------------------------------------------------------------------------------- turns as rows


class _DiarizingStep(_SpeakerStep):
    def vad(self) -> ModelFiles:
        return find_audio_model("silero", "onnx")

    def check(self) -> None:
        super().check()
        self.vad()

    def packages(self) -> Mapping[str, str]:
        return {**super().packages(), **self.vad().packages}

    @property
    def resources(self) -> Resources:
        found = super().resources
        extra = {self.vad().key("silero"): onnx.RUNTIME_BYTES} if found.shared else {}
        return Resources(memory=found.memory, shared={**found.shared, **extra})

    def diarizer(self, context: Context, similar: float, shortest: float = 0.0, gap: float = 0.5) -> Diarizer:
        vad = self.vad()
        session = context.shared(vad.key("silero"), lambda: onnx.open_session(vad))
        return Diarizer(self.encoder(context), session, similar, shortest, gap)


@operator(reads="audio", writes=("audio", "begin", "duration", "speaker"))
class SpeakerTurns(_DiarizingStep, Expand):
    """Replace each recording by the turns of its speakers.

    Speech is found by Silero VAD 6. Vectors of voices (GE2E, Wan et al. 2018) of windows of 1.6 s are clustered by
    average similarity, and each moment belongs to the speaker of the nearest window. Turns of one speaker that are at
    most `gap_s` apart are joined, and those shorter than `min_s` are left out. Speakers are called speaker_0,
    speaker_1, ... in order of their first turn, per recording. Overlapping speech is given to one speaker.

    With `rttm`, a file or folder of RTTM lines, the turns are those listed there for the name of the file without
    suffix, in which spaces may be percent-encoded, and no network runs. `RttmWriter` writes them. Segments refer to the
    recording, as those of `SpeechSegments`. A recording without turns is dropped. Needs `tamis[audio,onnx,models]` and
    files of the packages silero-vad 6.2.3 and resemblyzer 0.1.4; takes 0.05 s per second and core.

        SpeakerTurns(min_s=1.0)
    """

    model: str | Path = "ge2e"
    column: str = "audio"
    rttm: str | Path | None = None
    similar: float = SIMILAR
    min_s: float = 0.8
    gap_s: float = 0.5

    path_parameters = frozenset({"model", "rttm"})

    def check(self) -> None:
        if self.rttm is not None:
            read_rttm(self.rttm)
        else:
            super().check()
        if self.min_s < 0 or self.gap_s < 0:
            raise ParameterError("`min_s` and `gap_s` must not be negative", hint="they are in seconds")

    def packages(self) -> Mapping[str, str]:
        return super().packages() if self.rttm is None else super(ModelStep, self).packages()

    def identity(self) -> dict[str, Any]:
        if self.rttm is None:
            return super().identity()
        turns = {name: [turn.line for turn in each] for name, each in sorted(read_rttm(self.rttm).items())}
        known = super(ModelStep, self).identity()
        return known | {"parameters": {**known["parameters"], "rttm": turns}}

    @property
    def resources(self) -> Resources:
        return Resources() if self.rttm is not None else super().resources

    def writes(self) -> tuple[str, ...]:
        return (self.column, "begin", "duration", "speaker")

    def open(self, context: Context) -> _TurnCutter:
        if self.rttm is not None:
            return _TurnCutter(self, None, read_rttm(self.rttm))
        return _TurnCutter(self, self.diarizer(context, self.similar, self.min_s, self.gap_s), {})


class _TurnCutter:
    def __init__(self, step: SpeakerTurns, diarizer: Diarizer | None, known: dict[str, list[Turn]]) -> None:
        self._step, self._diarizer, self._known = step, diarizer, known

    def expand(self, batch: Batch) -> tuple[pa.Table, np.ndarray]:
        rows = recordings(batch, "audio")
        found = [[] if row is None else self._turns(row) for row in rows]
        columns, parents = segment_rows(rows, [[(begin, end) for begin, end, _ in each] for each in found])
        columns[self._step.column] = columns.pop("audio")
        columns["speaker"] = pa.array([speaker for each in found for *_, speaker in each], pa.string())
        return pa.table(columns), parents

    def _turns(self, recording: Recording) -> list[tuple[float, float, str]]:
        length = recording.duration
        if self._diarizer is not None:
            found = [(turn.begin, turn.end, f"speaker_{turn.speaker}") for turn in self._diarizer.turns(recording)]
        else:
            found = [
                (turn.begin - recording.begin, turn.begin + turn.duration - recording.begin, turn.speaker)
                for turn in turns_of(recording.item.path or "", self._known)
                if turn.duration >= self._step.min_s
            ]
        cut = [(max(0.0, begin), min(end, length), speaker) for begin, end, speaker in found]
        return [each for each in cut if each[1] > each[0]]


# -------------------------------------------------------------------------------------------------------------- judging


@operator(reads="audio", writes=("speakers", "main_speaker_share"))
class SpeakerCount(_DiarizingStep, Filter):
    """Keep recordings with one speaker.

    `speakers` is the number of voices that `SpeakerTurns` finds, `main_speaker_share` the share of the one who speaks
    most in the time of speech. A recording without speech has 0 speakers. Voices that speak for less than a second are
    not counted. A row without sound is dropped. Needs the same as `SpeakerTurns`.

        SpeakerCount(min_speakers=2, max_speakers=5)
    """

    model: str | Path = "ge2e"
    column: str = "audio"
    similar: float = SIMILAR
    min_speakers: int | None = 1
    max_speakers: int | None = 1
    min_main_speaker_share: float | None = None

    def open(self, context: Context) -> _Counter:
        return _Counter(self.diarizer(context, self.similar))

    def rules(self) -> list[Rule]:
        rules = [between("speakers", self.min_speakers, self.max_speakers)]
        least = self.min_main_speaker_share
        return rules if least is None else [*rules, at_least("main_speaker_share", least)]


class _Counter:
    def __init__(self, diarizer: Diarizer) -> None:
        self._diarizer = diarizer

    def score(self, batch: Batch) -> Scores:
        counts: list[int | None] = []
        shares: list[float | None] = []
        for recording in recordings(batch, "audio"):
            if recording is None:
                counts.append(None)
                shares.append(None)
                continue
            seconds: dict[int, float] = {}
            for turn in self._diarizer.turns(recording):
                seconds[turn.speaker] = seconds.get(turn.speaker, 0.0) + turn.end - turn.begin
            heard = [each for each in seconds.values() if each >= 1.0] or list(seconds.values())[:1]
            counts.append(len(heard))
            shares.append(max(heard) / sum(seconds.values()) if heard else 0.0)
        return {"speakers": pa.array(counts, pa.int64()), "main_speaker_share": pa.array(shares, pa.float64())}


@operator(reads=("audio", "reference"), writes="speaker_similarity")
class SpeakerSimilarity(_SpeakerStep, Filter):
    """Keep rows in which the voices of two recordings are the same.

    The score is the cosine similarity of their vectors (GE2E, Wan et al. 2018): about 0.9 for one voice and 0.6 for
    two. `reference` is another column of sound, or a column of vectors that `SpeakerEmbed` wrote. A row without one of
    them is dropped. Needs `tamis[audio,models]` and a file of the package resemblyzer 0.1.4.

        SpeakerSimilarity(column="audio", reference="prompt_audio", min_speaker_similarity=0.8)
    """

    model: str | Path = "ge2e"
    column: str = "audio"
    reference: str = "reference"
    min_speaker_similarity: float = 0.75

    def real_names(self) -> dict[str, str]:
        return {"audio": self.column, "reference": self.reference}

    def open(self, context: Context) -> _Comparer:
        return _Comparer(self.encoder(context))

    def rules(self) -> list[Rule]:
        return [at_least("speaker_similarity", self.min_speaker_similarity)]


class _Comparer:
    def __init__(self, encoder: SpeakerEncoder) -> None:
        self._encoder = encoder

    def score(self, batch: Batch) -> Scores:
        left = _voices(self._encoder, batch, "audio")
        if pa.types.is_struct(batch["reference"].type) or pa.types.is_null(batch["reference"].type):
            right = _voices(self._encoder, batch, "reference")
        else:
            right = [
                None if each is None else unit(np.array(each, np.float32)) for each in batch["reference"].to_pylist()
            ]
            if any(each is not None and len(each) != WIDTH for each in right):
                raise ValueError(f"a vector of a voice has {WIDTH} dimensions")
        found = [None if one is None or two is None else float(one @ two) for one, two in zip(left, right, strict=True)]
        return {"speaker_similarity": pa.array(found, pa.float64())}


def _voices(encoder: SpeakerEncoder, batch: Batch, column: str) -> list[np.ndarray | None]:
    return [None if row is None else voice_of(encoder, row) for row in recordings(batch, column)]


def voice_of(encoder: SpeakerEncoder, recording: Recording) -> np.ndarray | None:
    """The vector of a recording of any length, as the mean over blocks of five minutes; None if it has no samples."""
    total, count = np.zeros(WIDTH, np.float64), 0
    for block in recording.blocks(RATE, BLOCK_S):
        total += encoder.embed(block).astype(np.float64) * len(block)
        count += len(block)
    return unit(total) if count else None


@operator(reads="audio", writes="embedding")
class SpeakerEmbed(_SpeakerStep, Map):
    """Add a vector for the voice in each recording, as a fixed-size list of 256 numbers of length 1 (GE2E, Wan et al.
    2018).

    Recordings of one voice have a cosine similarity of about 0.9, those of two voices of 0.6. Quiet recordings are
    amplified to -30 dB, as in the package resemblyzer; cut out speech first, because silence counts as a voice too. The
    vector of a row without sound is null. Needs `tamis[audio,models]` and a file of the package resemblyzer 0.1.4;
    takes 0.03 s per second and core.

        SpeakerEmbed(output="voice")
    """

    model: str | Path = "ge2e"
    column: str = "audio"
    output: str = "embedding"
    dtype: Literal["float32", "float16"] = "float32"

    def writes(self) -> tuple[str, ...]:
        return (self.output,)

    def open(self, context: Context) -> _Embedder:
        return _Embedder(self, self.encoder(context))


class _Embedder:
    def __init__(self, step: SpeakerEmbed, encoder: SpeakerEncoder) -> None:
        self._step, self._encoder = step, encoder

    def apply(self, batch: Batch) -> dict[str, Column]:
        found = _voices(self._encoder, batch, "audio")
        missing = np.array([each is None for each in found], np.bool_)
        filled = [np.zeros(WIDTH, np.float32) if each is None else each for each in found]
        table = np.stack(filled) if filled else np.zeros((0, WIDTH), np.float32)
        return {self._step.output: vectors(table, missing, self._step.dtype)}
