"""Spectrograms in mel bands, as the networks that listen were trained on them. Samples are float32 at 16 kHz.

    samples --frames, window, FFT--> power [frames, bins] --triangular filters--> [frames, bands]

The conventions differ between networks: how the ends are padded, and on which scale the bands are spaced.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

RATE = 16_000
"""The sample rate of every network here."""


@functools.cache
def hann(length: int) -> np.ndarray:
    """The periodic Hann window."""
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length)).astype(np.float32)


def frames_of(samples: np.ndarray, length: int, hop: int) -> np.ndarray:
    """[frames, length]: a view on all windows that lie within the samples."""
    if len(samples) < length:
        return np.empty((0, length), samples.dtype)
    return np.lib.stride_tricks.sliding_window_view(samples, length)[::hop]


def power(frames: np.ndarray, window: np.ndarray, size: int | None = None) -> np.ndarray:
    """[frames, bins]: the power spectrum of windowed frames, in float32."""
    out = np.empty((len(frames), (size or frames.shape[1]) // 2 + 1), np.float32)
    for start in range(0, len(frames), 256):  # the windowed frames stay in the cache
        found = np.fft.rfft(frames[start : start + 256] * window, size, axis=-1)
        out[start : start + 256] = found.real**2 + found.imag**2
    return out


def spectrogram(samples: np.ndarray, size: int, hop: int, pad: Literal["constant", "reflect"]) -> np.ndarray:
    """[1 + samples // hop, bins]: power of frames that are centred on multiples of `hop`."""
    padded = np.pad(samples, size // 2, mode=pad)
    return power(frames_of(padded, size, hop), hann(size))


@functools.cache
def filters(size: int, bands: int) -> np.ndarray:
    """[bins, bands]: triangles of equal area on the scale of Slaney (Auditory Toolbox, 1998), from 0 Hz to 8 kHz."""
    edges = _hertz(np.linspace(_slaney(0.0), _slaney(RATE / 2), bands + 2))
    bins = np.fft.rfftfreq(size, 1 / RATE)
    widths = np.diff(edges)
    ramps = edges[:, None] - bins[None, :]
    rising = -ramps[:-2] / widths[:-1, None]
    falling = ramps[2:] / widths[1:, None]
    triangles = np.maximum(0, np.minimum(rising, falling))
    triangles *= (2.0 / (edges[2:] - edges[:-2]))[:, None]
    return np.ascontiguousarray(triangles.T, np.float32)


_LINEAR_HZ = 200.0 / 3
_LOG_FROM_HZ = 1000.0
_LOG_STEP = np.log(6.4) / 27.0


def _slaney(hertz: float) -> float:
    """Hertz in mel: linear up to 1 kHz, logarithmic above."""
    if hertz < _LOG_FROM_HZ:
        return hertz / _LINEAR_HZ
    return float(_LOG_FROM_HZ / _LINEAR_HZ + np.log(hertz / _LOG_FROM_HZ) / _LOG_STEP)


def _hertz(mels: np.ndarray) -> np.ndarray:
    border = _LOG_FROM_HZ / _LINEAR_HZ
    return np.where(mels < border, mels * _LINEAR_HZ, _LOG_FROM_HZ * np.exp(_LOG_STEP * (mels - border)))


# ------------------------------------------------------------------------------------------------------------ for Whisper

WHISPER_S = 30
"""What Whisper reads at a time, in seconds."""


def whisper_features(samples: np.ndarray, bands: int = 80) -> np.ndarray:
    """[bands, 3000]: the input of Whisper (Radford et al. 2022, section 2.2) for up to 30 s, filled up with silence."""
    padded = np.zeros(WHISPER_S * RATE, np.float32)
    padded[: len(samples)] = samples[: len(padded)]
    found = spectrogram(padded, 400, 160, "reflect")[:-1] @ filters(400, bands)
    logarithm = np.log10(np.maximum(found, 1e-10))
    logarithm = np.maximum(logarithm, logarithm.max() - 8.0)
    return np.ascontiguousarray((logarithm.T + 4.0) / 4.0, np.float32)


def whisper_features_on(torch: Any, clips: Sequence[np.ndarray], bands: int, device: str) -> Any:
    """[clips, bands, 3000] as a tensor on a GPU, computed there."""
    padded = np.zeros((len(clips), WHISPER_S * RATE), np.float32)
    for row, clip in enumerate(clips):
        padded[row, : len(clip)] = clip[: padded.shape[1]]
    window = torch.from_numpy(hann(400)).to(device)
    found = torch.stft(torch.from_numpy(padded).to(device), 400, 160, window=window, return_complex=True)[..., :-1]
    weights = torch.from_numpy(np.ascontiguousarray(filters(400, bands).T)).to(device)
    logarithm = (weights @ found.abs().square()).clamp(min=1e-10).log10()
    highest = logarithm.amax(dim=(1, 2), keepdim=True)
    return (torch.maximum(logarithm, highest - 8.0) + 4.0) / 4.0
