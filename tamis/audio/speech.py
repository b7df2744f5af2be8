"""Cuts recordings where people speak.

    blocks --Silero--> probability of speech per 32 ms --Speeches--> segments --> references, one row each

Nothing but one block and the state of the network is held, so a recording may have any length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tamis.audio.decode import RATE, Recording, recordings
from tamis.audio.neural import ModelStep, find_audio_model
from tamis.audio.segment import segment_rows
from tamis.batch import Batch
from tamis.context import Context
from tamis.errors import ParameterError
from tamis.models.files import ModelFiles
from tamis.models.onnx import open_session
from tamis.models.silero import WINDOW, Voice
from tamis.operators import Expand, Filter, Rule, Scores, at_least, operator
from tamis.text.clean import strings

_RESUME_BELOW = 0.15
"""Within speech, silence begins this much below the threshold, as in the package silero-vad."""

_CUT_SILENCE_S = 0.098
"""A speech that gets too long is cut in its longest silence of at least this length, as in the package silero-vad."""

SHORTEST_WORD_S = 0.25
"""Less speech than this does not count in a recording that is not cut, as in the package silero-vad."""


@dataclass
class Speeches:
    """Turns probabilities into segments, in samples, with the rules of the package silero-vad.

    A speech begins when a window reaches the threshold, and ends when all windows of `gap` are below a lower threshold.
    If it gets longer than `longest`, it is cut in its longest silence, or right there if it has none. Segments of at
    most `shortest` are left out. Others are padded on both sides, by half of the silence if the next one is near.
    """

    threshold: float
    shortest: float
    longest: float
    gap: float
    pad: float
    _window: int = 0
    _begin: int | None = None
    _quiet: int = 0
    """Where the silence within the speech began; 0 if there is none."""
    _silences: list[tuple[int, int]] = field(default_factory=list)
    _last: list[int] | None = None
    """The segment before, whose end is not padded yet."""

    def feed(self, probabilities: np.ndarray) -> Iterator[tuple[int, int]]:
        """The segments that are complete, (first sample, sample after the last)."""
        longest = self.longest - WINDOW - 2 * self.pad
        for probability in probabilities.tolist():
            now, self._window = self._window * WINDOW, self._window + 1
            loud = probability >= self.threshold
            if loud and self._quiet:
                if now - self._quiet > _CUT_SILENCE_S * RATE:
                    self._silences.append((self._quiet, now - self._quiet))
                self._quiet = 0
            if self._begin is None:
                if loud:
                    self._begin = now
                continue
            if now - self._begin > longest:
                if self._silences:
                    quiet, length = max(self._silences, key=lambda each: each[1])
                    yield from self._add(self._begin, quiet)
                    self._begin, self._quiet, self._silences = quiet + length, 0, []
                else:
                    yield from self._add(self._begin, now)
                    self._begin, self._quiet, self._silences = None, 0, []
                    continue
            if probability < max(self.threshold - _RESUME_BELOW, 0.01):
                self._quiet = self._quiet or now
                if now - self._quiet >= self.gap:
                    if self._quiet - self._begin > self.shortest:
                        yield from self._add(self._begin, self._quiet)
                    self._begin, self._quiet, self._silences = None, 0, []

    def finish(self, num_samples: int) -> Iterator[tuple[int, int]]:
        """The remaining segments of a recording of `num_samples`."""
        if self._begin is not None and num_samples - self._begin > self.shortest:
            yield from self._add(self._begin, num_samples)
        if self._last is not None:
            begin, end = self._last
            yield begin, int(min(num_samples, end + self.pad))

    def _add(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Pad the segment before and the begin of this one."""
        if self._last is None:
            self._last = [int(max(0, begin - self.pad)), end]
            return
        first, stop = self._last
        silence = begin - stop
        if silence < 2 * self.pad:
            yield first, stop + int(silence // 2)
            self._last = [int(max(0, begin - silence // 2)), end]
        else:
            yield first, int(stop + self.pad)
            self._last = [int(max(0, begin - self.pad)), end]


class _VoiceStep(ModelStep):
    """A step that runs Silero."""

    def found(self) -> ModelFiles:
        return find_audio_model(getattr(self, "model"), "onnx")  # noqa: B009

    def key(self, found: ModelFiles) -> str:
        return found.key("silero")

    @property
    def row_bytes(self) -> int:
        return 2_000_000  # recordings may be long, and are read in blocks


@operator(reads="audio", writes=("audio", "begin", "duration"))
class SpeechSegments(_VoiceStep, Expand):
    """Replace each recording by its segments with speech.

    The network is Silero VAD 6 (MIT), which gives a probability of speech for each 32 ms. A segment begins where it
    reaches `threshold` and ends where it stays 0.15 below for `gap_s`. Segments of up to `min_s` are left out; those
    longer than `max_s` are cut in their longest silence. `pad_s` is added at both ends, but not beyond the middle of a
    shorter silence. The defaults are those of NeMo Curator: 2 to 60 s, 0.5, 0.3 s of padding, gaps of 0.5 s. Times
    equal those of the package silero-vad.

    Segments refer to the recording (`talk.mp3#t=12.5,20`), so nothing is copied; only those of rows that hold bytes are
    cut out. `begin` is in seconds from the begin of the file, `duration` in seconds. A recording without speech is
    dropped. With `text`, the name of a column, rows that have a text there are not cut, because it is that of the whole
    recording: they are kept as they are, or dropped if nobody speaks. Recordings of any length are read in blocks of
    30 s. Needs `tamis[audio,onnx]` and a file of the package silero-vad 6.2.3; takes 0.003 s per second and core.

        SpeechSegments(min_s=1, max_s=30)
    """

    model: str | Path = "silero"
    column: str = "audio"
    min_s: float = 2.0
    max_s: float = 60.0
    threshold: float = 0.5
    pad_s: float = 0.3
    gap_s: float = 0.5
    text: str | None = None

    def optional_reads(self) -> tuple[str, ...]:
        return () if self.text is None else (self.text,)

    def check(self) -> None:
        super().check()
        if not 0 <= self.min_s < self.max_s:
            raise ParameterError(f"`min_s` is {self.min_s} and `max_s` {self.max_s}", hint="give 0 <= min_s < max_s")
        if not 0 < self.threshold < 1 or self.pad_s < 0 or self.gap_s < 0:
            raise ParameterError(
                f"`threshold` is {self.threshold}, `pad_s` {self.pad_s}, `gap_s` {self.gap_s}",
                hint="the threshold is between 0 and 1, and times are not negative",
            )
        if self.max_s - 2 * self.pad_s < 0.1:
            raise ParameterError(f"`max_s` of {self.max_s} is used up by the padding", hint="reduce `pad_s`")

    def writes(self) -> tuple[str, ...]:
        return (self.column, "begin", "duration")

    def open(self, context: Context) -> _Segmenter:
        return _Segmenter(self, self.shared(context, open_session))


class _Segmenter:
    def __init__(self, step: SpeechSegments, session: Any) -> None:
        self._step, self._session = step, session

    def expand(self, batch: Batch) -> tuple[pa.Table, np.ndarray]:
        rows, texts = recordings(batch, "audio"), self._texts(batch)
        parts: list[Sequence[tuple[float, float | None]]] = [
            [] if row is None else self._whole(row) if text else list(self._segments(row, self._step.min_s))
            for row, text in zip(rows, texts, strict=True)
        ]
        columns, parents = segment_rows(rows, parts)
        columns[self._step.column] = columns.pop("audio")
        return pa.table(columns), parents

    def _texts(self, batch: Batch) -> list[str | None]:
        name = self._step.text
        if name is None or name not in batch:
            return [None] * len(batch)
        return [text and text.strip() for text in strings(batch[name]).to_pylist()]

    def _whole(self, recording: Recording) -> list[tuple[float, float | None]]:
        spoken = next(self._segments(recording, SHORTEST_WORD_S), None)
        return [] if spoken is None else [(0.0, None)]

    def _segments(self, recording: Recording, min_s: float) -> Iterator[tuple[float, float]]:
        step = self._step
        speeches = Speeches(step.threshold, min_s * RATE, step.max_s * RATE, step.gap_s * RATE, step.pad_s * RATE)
        voice = Voice(self._session)
        found = [part for block in recording.blocks() for part in speeches.feed(voice.feed(block))]
        found += speeches.feed(voice.finish())
        found += speeches.finish(voice.num_samples)
        # By the header, a recording may be a few samples shorter than what was decoded and resampled.
        length = recording.duration
        times = [(begin / RATE, min(end / RATE, length)) for begin, end in found]
        yield from ((begin, end) for begin, end in times if end > begin)


@operator(reads="audio", writes=("speech_share", "speech_s"))
class SpeechShare(_VoiceStep, Filter):
    """Keep recordings in which people speak for at least 20 % of the time.

    `speech_share` is the share of 32 ms windows whose probability of speech reaches `threshold`, `speech_s` their
    length in seconds, both by Silero VAD 6. Whisper invents text where nobody speaks, so recordings without speech are
    best dropped before transcription. A row without sound is dropped. Needs the same as `SpeechSegments`.

        SpeechShare(min_speech_share=0.5)
    """

    model: str | Path = "silero"
    column: str = "audio"
    threshold: float = 0.5
    min_speech_share: float = 0.2
    min_speech_s: float | None = None

    def open(self, context: Context) -> _ShareScorer:
        return _ShareScorer(self.threshold, self.shared(context, open_session))

    def rules(self) -> list[Rule]:
        rules = [at_least("speech_share", self.min_speech_share)]
        return rules if self.min_speech_s is None else [*rules, at_least("speech_s", self.min_speech_s)]


class _ShareScorer:
    def __init__(self, threshold: float, session: Any) -> None:
        self._threshold, self._session = threshold, session

    def score(self, batch: Batch) -> Scores:
        shares: list[float | None] = []
        seconds: list[float | None] = []
        for recording in recordings(batch, "audio"):
            if recording is None:
                shares.append(None)
                seconds.append(None)
                continue
            voice, loud, count = Voice(self._session), 0, 0
            for found in (*map(voice.feed, recording.blocks()), voice.finish()):
                loud, count = loud + int((found >= self._threshold).sum()), count + len(found)
            shares.append(loud / max(count, 1))
            seconds.append(loud * WINDOW / RATE)
        return {"speech_share": pa.array(shares, pa.float64()), "speech_s": pa.array(seconds, pa.float64())}
