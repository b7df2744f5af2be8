"""Judges recordings by networks: the quality of speech, and whether there is speech, music or noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tamis.audio.decode import RATE, Recording, recordings
from tamis.audio.neural import ModelStep, find_audio_model
from tamis.batch import Batch
from tamis.context import Context
from tamis.errors import ParameterError, did_you_mean
from tamis.models.dnsmos import Graphs, Rating
from tamis.models.files import ModelFiles
from tamis.models.sounds import BLOCK_S, LABELS, SoundNetwork
from tamis.operators import Filter, Rule, Scores, at_least, at_most, one_of, operator


def _scores(batch: Batch, look: Callable[[Recording], Sequence[float] | None], names: Sequence[str]) -> Scores:
    """Columns of numbers; null for a row without sound."""
    found = [None if row is None else look(row) for row in recordings(batch, "audio")]
    return {
        name: pa.array([None if row is None else row[number] for row in found], pa.float64())
        for number, name in enumerate(names)
    }


@operator(reads="audio", writes=("dnsmos_sig", "dnsmos_bak", "dnsmos_ovrl", "dnsmos_p808"))
class SpeechQuality(ModelStep, Filter):
    """Keep recordings whose speech listeners would rate at least 2.5 of 5 overall, by DNSMOS P.835 (Reddy et al. 2022).

    dnsmos_sig    how natural the voice sounds
    dnsmos_bak    how little the background disturbs
    dnsmos_ovrl   overall
    dnsmos_p808   overall, by a second network (Reddy et al. 2021)

    Scores go from 1 (bad) to 5 (excellent) and equal those of the package speechmos: the mean over windows of 9.01 s,
    one per second. Shorter recordings are repeated. A row without sound is dropped. Recordings of any length are read
    in blocks. Needs `tamis[audio,onnx]` and two files of the package speechmos 0.0.1.1; takes 0.1 s per second of a
    long recording and core.

        SpeechQuality(min_ovrl=3.0, min_bak=3.5)
    """

    model: str | Path = "dnsmos"
    column: str = "audio"
    min_sig: float | None = None
    min_bak: float | None = None
    min_ovrl: float | None = 2.5
    min_p808: float | None = None

    cost = 10_000.0

    def found(self) -> ModelFiles:
        return find_audio_model(self.model, "onnx")

    def open(self, context: Context) -> _QualityScorer:
        return _QualityScorer(self.shared(context, Graphs))

    def rules(self) -> list[Rule]:
        bounds = {"sig": self.min_sig, "bak": self.min_bak, "ovrl": self.min_ovrl, "p808": self.min_p808}
        return [at_least(f"dnsmos_{name}", bound) for name, bound in bounds.items() if bound is not None]


class _QualityScorer:
    def __init__(self, graphs: Graphs) -> None:
        self._graphs = graphs

    def score(self, batch: Batch) -> Scores:
        return _scores(batch, self._rate, ("dnsmos_sig", "dnsmos_bak", "dnsmos_ovrl", "dnsmos_p808"))

    def _rate(self, recording: Recording) -> Sequence[float] | None:
        rating = Rating(self._graphs)
        for block in recording.blocks():
            rating.feed(np.clip(block, -1.0, 1.0))
        found = rating.finish()
        return None if found is None else (found.signal, found.background, found.overall, found.p808)


@operator(reads="audio", writes=("speech", "music", "noise", "silence", "sound"))
class SoundKind(ModelStep, Filter):
    """Keep recordings that are mostly speech.

    `speech`, `music`, `noise` and `silence` are shares of the time, `sound` is the one of the first three with the
    largest share ("silence" if there is nothing else). The network is that of inaSpeechSegmenter (Doukhan et al. 2018;
    MIT), trained on French television and radio; labels of 20 ms are smoothed by the Viterbi algorithm with its
    constants. Long recordings are judged minute by minute. With `keep`, other sounds are kept:
    `SoundKind(keep=["music"])`. A row without sound is dropped. Needs `tamis[audio,models,audio-models]` and a file of
    the package inaSpeechSegmenter 0.6.8; takes 0.1 s per second and core.

        SoundKind(keep=["speech"], max_music=0.2)
    """

    model: str | Path = "ina-smn"
    column: str = "audio"
    keep: Sequence[str] = ("speech",)
    min_speech: float | None = None
    max_music: float | None = None
    max_noise: float | None = None
    max_silence: float | None = None

    cost = 5000.0
    tolerance = 0.02
    verdict_parameters = frozenset({"keep"})
    runtime_bytes = 300_000_000

    def found(self) -> ModelFiles:
        return find_audio_model(self.model, "sounds")

    def check(self) -> None:
        super().check()
        for label in self.keep:
            if label not in LABELS:
                raise ParameterError(
                    f"`keep`: there is no kind of sound {label!r}",
                    hint=did_you_mean(label, LABELS) or f"there are {', '.join(LABELS)}",
                )

    def open(self, context: Context) -> _KindScorer:
        return _KindScorer(self.shared(context, SoundNetwork))

    def rules(self) -> list[Rule]:
        rules = [one_of("sound", self.keep)] if self.keep else []
        rules += [at_least("speech", self.min_speech)] if self.min_speech is not None else []
        bounds = {"music": self.max_music, "noise": self.max_noise, "silence": self.max_silence}
        return rules + [at_most(name, bound) for name, bound in bounds.items() if bound is not None]


class _KindScorer:
    def __init__(self, network: Any) -> None:
        self._network = network

    def score(self, batch: Batch) -> Scores:
        scores = dict(_scores(batch, self._shares, LABELS))
        missing = np.array([row is None for row in recordings(batch, "audio")], np.bool_)
        shares = np.stack([np.nan_to_num(pa.array(scores[name]).to_numpy(zero_copy_only=False)) for name in LABELS])
        best = np.where(shares[:3].max(axis=0, initial=0) > 0, shares[:3].argmax(axis=0), len(LABELS) - 1)
        names = pa.array(LABELS).take(pa.array(best, mask=missing))
        return scores | {"sound": names}

    def _shares(self, recording: Recording) -> Sequence[float] | None:
        counts = np.zeros(len(LABELS))
        for block in recording.blocks(RATE, BLOCK_S):
            counts += np.bincount(self._network.labels(block), minlength=len(LABELS))
        return tuple(counts / counts.sum()) if counts.sum() else (0.0, 0.0, 0.0, 1.0)
