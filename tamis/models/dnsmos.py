"""The quality of speech as listeners would rate it, with DNSMOS P.835 and P.808 (Reddy et al. 2021 and 2022; MIT).

    16 kHz --windows of 9.01 s, one per second--> waveform        --P.835 graph--> signal, background, overall
                                                  mel spectrogram --P.808 graph--> overall
           means over the windows

A recording is passed in blocks and not held. One that is shorter than a window is repeated until it fills one. Scores
equal those of the package speechmos, which computes the spectrogram of each window again, although windows overlap by 8
s.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tamis.models import mel
from tamis.models.files import ModelFiles
from tamis.models.onnx import open_graph

LENGTH_S = 9.01
WINDOW = int(LENGTH_S * mel.RATE)
_SIZE, _HOP, _BANDS = 321, 160, 120
_FRAMES = 900
_PER_SECOND = mel.RATE // _HOP

# Polynomials that map the outputs of the graph to the scale of listeners, by Reddy et al., highest power first.
_SIGNAL = (-0.08397278, 1.22083953, 0.0052439)
_BACKGROUND = (-0.13166888, 1.60915514, -0.39604546)
_OVERALL = (-0.06766283, 1.11546468, 0.04602535)


@dataclass(frozen=True)
class Quality:
    """Opinions from 1 (bad) to 5 (excellent)."""

    signal: float
    background: float
    overall: float
    p808: float


class Graphs:
    """The two networks. Their inputs have one size, so they may keep the memory that they need."""

    def __init__(self, found: ModelFiles) -> None:
        files = {path.stem: path for path in found.weights}
        self._p835 = open_graph(files["sig_bak_ovr"], found.name, arena=True)
        self._p808 = open_graph(files["model_v8"], found.name, arena=True)

    def rate(self, window: np.ndarray, features: np.ndarray) -> np.ndarray:
        """Signal, background, overall and P.808 of one window, before they are mapped to the scale of listeners.

        One window at a time: rounding would depend on the other windows, and a batch is no faster on one core.
        """
        p835 = self._p835.run(None, {"input_1": window[None]})[0][0]
        p808 = self._p808.run(None, {"input_1": features[None]})[0][0]
        return np.concatenate([p835, p808])

    def close(self) -> None:
        self._p835 = self._p808 = None


class Rating:
    """The quality of one recording, which is passed in blocks: float32 at 16 kHz, from -1 to 1."""

    def __init__(self, graphs: Graphs) -> None:
        self._graphs = graphs
        self._held = np.empty(0, np.float32)
        self._first = 0
        """The second at which `_held` begins."""
        self._found: list[np.ndarray] = []

    def feed(self, samples: np.ndarray) -> None:
        self._held = np.concatenate([self._held, samples])
        # The window of a second is rated if its tenth second is there, as in the script of the authors.
        ready = len(self._held) // mel.RATE - 9
        if ready > 0:
            self._rate(ready)

    def finish(self) -> Quality | None:
        """The means over all windows; None without samples."""
        if not self._first:
            if not len(self._held):
                return None
            while len(self._held) < WINDOW:
                self._held = np.concatenate([self._held, self._held])
            self._rate(max(1, len(self._held) // mel.RATE - 9))
        found = np.stack(self._found).astype(np.float64)
        if not np.isfinite(found).all():
            raise ValueError("the model returned a value that is not a number")
        lines = (_SIGNAL, _BACKGROUND, _OVERALL)
        signal, background, overall = (
            float(np.polyval(line, found[:, column]).mean()) for column, line in enumerate(lines)
        )
        return Quality(signal, background, overall, float(found[:, 3].mean()))

    def _rate(self, count: int) -> None:
        """Rate the windows of the next seconds."""
        held = self._held[: (count - 1) * mel.RATE + WINDOW]
        shared = mel.power(mel.frames_of(held, _SIZE, _HOP), mel.hann(_SIZE))
        for second in range(count):
            if _is_skipped(self._first + second):
                continue
            window = held[second * mel.RATE : second * mel.RATE + WINDOW]
            features = _features(window[:-_HOP], shared[second * _PER_SECOND :])
            self._found.append(self._graphs.rate(window, features))
        self._held = self._held[count * mel.RATE :]
        self._first += count


def _is_skipped(second: int) -> bool:
    """Whether the script of the authors skips a window: it computes its end in seconds, and rounding loses one sample."""
    return int((second + LENGTH_S) * mel.RATE) - second * mel.RATE < WINDOW


def _features(window: np.ndarray, shared: np.ndarray) -> np.ndarray:
    """[900, 120]: the input of P.808. `shared` has the frames that begin at multiples of 160 samples.

    Frames are centred, so the first and the last one reach beyond the window, where there is silence.
    """
    half = _SIZE // 2
    ends = np.zeros((2, _SIZE), np.float32)
    ends[0, half:] = window[: half + 1]
    begin = (_FRAMES - 1) * _HOP - half
    ends[1, : len(window) - begin] = window[begin:]
    first, last = mel.power(ends, mel.hann(_SIZE))
    spectrum = np.concatenate([first[None], shared[: _FRAMES - 2], last[None]])
    bands = spectrum @ mel.filters(_SIZE, _BANDS)
    decibels = 10 * np.log10(np.maximum(bands, 1e-10))
    decibels = decibels - decibels.max()
    return ((np.maximum(decibels, -80.0) + 40) / 40).astype(np.float32)
