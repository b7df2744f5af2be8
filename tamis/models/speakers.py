"""Vectors of voices: the speaker encoder of Resemblyzer (GE2E, Wan et al. 2018; Apache-2.0).

    16 kHz --louder to -30 dB--> mel spectrogram --windows of 1.6 s--> LSTM --> vectors [windows, 256] --mean--> one vector

Vectors are not negative and have length 1. Those of one voice have a cosine similarity of about 0.9, those of two
voices 0.6.
"""

from __future__ import annotations

import numpy as np

from tamis.errors import is_shortage, require
from tamis.models import mel
from tamis.models.files import ModelError, ModelFiles

WIDTH = 256
WINDOW_S = 1.6
_FRAMES, _HOP, _SIZE, _BANDS = 160, 160, 400, 40
_RATE = 1.3
"""Windows per second, as in the package."""

_COVERAGE = 0.75
"""The last window is used if it has at least this share of sound."""

_LOUDNESS = -30.0
"""Quieter recordings are amplified to this level, in dB relative to full scale."""


class SpeakerEncoder:
    """Three LSTM layers and a linear layer, in torch."""

    def __init__(self, found: ModelFiles) -> None:
        torch = require("torch", extra="models", purpose=f"running {found.name}")
        path = found.weights[0]
        try:
            tensors = torch.load(path, map_location="cpu", weights_only=True)["model_state"]
            self._lstm = torch.nn.LSTM(_BANDS, WIDTH, 3, batch_first=True)
            self._linear = torch.nn.Linear(WIDTH, WIDTH)
            for layer, prefix in ((self._lstm, "lstm."), (self._linear, "linear.")):
                own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
                layer.load_state_dict(own)
        except Exception as error:  # a damaged file can fail in any way
            if is_shortage(error):
                raise
            raise ModelError(f"{path} is not the speaker encoder of Resemblyzer", hint="download it again") from error
        self._torch = torch

    def windows(self, samples: np.ndarray, rate: float = _RATE) -> tuple[np.ndarray, np.ndarray]:
        """(the begin of each window in seconds, its vector) for a recording of at least one sample."""
        starts = _starts(len(samples), rate)
        padded = np.pad(samples, (0, max(0, (starts[-1] + _FRAMES) * _HOP - len(samples))))
        bands = mel.spectrogram(padded, _SIZE, _HOP, "constant") @ mel.filters(_SIZE, _BANDS)
        torch = self._torch
        found = []
        with torch.inference_mode():
            # The same number of windows at a time for any recording, so that rounding does not depend on its length.
            for begin in range(0, len(starts), 8):
                some = [bands[start : start + _FRAMES] for start in starts[begin : begin + 8]]
                filled = np.stack(some + some[-1:] * (8 - len(some)))
                _, (hidden, _) = self._lstm(torch.from_numpy(filled))
                raw = torch.relu(self._linear(hidden[-1])).numpy()[: len(some)]
                found.append(raw / np.maximum(np.linalg.norm(raw, axis=1, keepdims=True), 1e-9))
        return np.array(starts) * (_HOP / mel.RATE), np.concatenate(found)

    def embed(self, samples: np.ndarray) -> np.ndarray:
        """The vector of the voice of a recording: float32[256], of length 1."""
        _, found = self.windows(amplified(samples))
        return unit(found.mean(axis=0))

    def close(self) -> None:
        self._lstm = self._linear = None


def unit(vector: np.ndarray) -> np.ndarray:
    """A vector divided by its length."""
    return np.asarray(vector / max(float(np.linalg.norm(vector)), 1e-9), np.float32)


def amplified(samples: np.ndarray) -> np.ndarray:
    """A recording at -30 dB or louder."""
    level = float(np.sqrt(np.mean(np.square(samples, dtype=np.float64))))
    if level <= 0:
        return samples
    change = _LOUDNESS - 20 * np.log10(level)
    return samples if change < 0 else np.asarray(samples * 10 ** (change / 20), np.float32)


def _starts(num_samples: int, rate: float) -> list[int]:
    """The first frame of each window. There is at least one window; the last one may reach beyond the end."""
    frames = -(-(num_samples + 1) // _HOP)
    step = round(mel.RATE / rate / _HOP)
    starts = list(range(0, max(1, frames - _FRAMES + step + 1), step))
    covered = (num_samples - starts[-1] * _HOP) / (_FRAMES * _HOP)
    return starts[:-1] if covered < _COVERAGE and len(starts) > 1 else starts
