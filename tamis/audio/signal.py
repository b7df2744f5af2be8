"""Measures the signal of recordings: level, loudness, clipping, silence, noise, bandwidth.

Everything is measured in one pass over the samples, with all channels and at the sample rate of the file, in blocks
of ten seconds. So a recording of any length is decoded once for all of these filters, and memory does not depend on
its length.

    levels      of frames of 20 ms, mono: a histogram in steps of 0.1 dB
    loudness    energies of blocks of 100 ms, weighted as heard (ITU-R BS.1770-4)
    spectrum    the mean power of frames of 512 samples (Hann window), mono
    clipping    samples at full scale
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from tamis.audio.decode import Recording, recordings
from tamis.batch import Batch
from tamis.kernels.loudness import weighted_energy

FLOOR_DB = -120.0
"""The level of digital silence; 16 bits reach down to -96 dB, 24 bits to -144 dB, which nobody hears."""

FULL_SCALE = 0.999
"""A sample at this level is clipped: converters round down, and codecs that lose information come close to 1."""

_STEPS = 1300
_FRAME_S = 0.02
_FFT = 512
_BLOCK_S = 10.0


@dataclass(frozen=True)
class Signal:
    """What was measured of one recording."""

    rate: int
    num_samples: int
    """Per channel."""
    peak: float
    clipped: float
    """The share of samples at full scale, of all channels."""
    levels: np.ndarray
    """int64[1300]: frames of 20 ms by level in steps of 0.1 dB from -120 dB on."""
    energies: np.ndarray
    """float64: weighted energy of each 100 ms."""
    spectrum: np.ndarray
    """float64[257]: mean power from 0 Hz to half the sample rate."""

    @property
    def duration(self) -> float:
        """Seconds that were decoded."""
        return self.num_samples / self.rate

    def level(self, share: float) -> float:
        """The level in dB below which this share of the frames lies."""
        total = np.cumsum(self.levels)
        return float(FLOOR_DB + 0.1 * np.searchsorted(total, share * total[-1])) if total[-1] else FLOOR_DB

    def silence(self, threshold_db: float) -> float:
        """The share of frames below a level."""
        below = int(np.clip(round((threshold_db - FLOOR_DB) * 10), 0, _STEPS))
        return float(self.levels[:below].sum() / max(1, self.levels.sum()))

    @property
    def snr(self) -> float:
        """The level of the loudest 5 % of the frames above that of the quietest 10 %, in dB."""
        return self.level(0.95) - self.level(0.1)

    @property
    def bandwidth(self) -> float:
        """The highest frequency, in Hz, whose mean power is at most 50 dB below that of the strongest; 0 for silence."""
        strongest = self.spectrum.max(initial=0.0)
        if strongest <= 1e-12:
            return 0.0
        above = np.flatnonzero(self.spectrum > strongest * 1e-5)
        return float(above[-1] * self.rate / _FFT)

    @functools.cached_property
    def loudness(self) -> float:
        """Integrated loudness in LUFS (EBU R 128); -70 for silence."""
        return integrated_loudness(self.energies)


def integrated_loudness(energies: np.ndarray) -> float:
    """Loudness from energies of 100 ms: blocks of 400 ms that overlap by 75 %, with both gates of ITU-R BS.1770-4."""
    if not len(energies):
        return -70.0
    size = min(4, len(energies))
    sums = np.concatenate([[0.0], np.cumsum(energies)])
    blocks = (sums[size:] - sums[:-size]) / size
    loud = blocks[blocks > 10 ** ((-70.0 + 0.691) / 10)]
    if not len(loud):
        return -70.0
    relative = loud.mean() * 0.1  # 10 LU below the mean of what passed the first gate
    return float(max(-70.0, -0.691 + 10 * np.log10(loud[loud > relative].mean())))


def signals(batch: Batch, column: str) -> list[Signal | None]:
    """What was measured of the recordings of a column, once for all operators; None for a row without sound.

    A row that cannot be decoded raises an AudioError; the engine then fails the row, and no other is measured again.
    """
    return [None if each is None else signal_of(each) for each in recordings(batch, column)]


def signal_of(recording: Recording) -> Signal:
    """What was measured of a recording, once."""
    found = recording.measured.get("signal")
    if not isinstance(found, Signal):
        recording.measured["signal"] = found = measured(recording)
    return found


def measured(recording: Recording) -> Signal:
    """Decode a recording and measure it."""
    rate, channels = recording.info.rate, recording.info.channels
    frame, hop = max(1, round(_FRAME_S * rate)), max(1, round(0.1 * rate))
    levels = np.zeros(_STEPS, np.int64)
    power = np.zeros(_FFT // 2 + 1)
    filters, weights = hearing_filters(rate), channel_weights(channels)
    state, open_sum = np.zeros((channels, 4)), np.zeros(2)
    energies: list[np.ndarray] = []
    count = windows = clipped = 0
    peak = 0.0
    rest = np.zeros(0, np.float32)
    for block in recording.channels(_BLOCK_S):
        size = np.abs(block)
        peak = max(peak, float(size.max()))
        clipped += int((size >= FULL_SCALE).sum())
        count += block.shape[1]
        out = np.empty(block.shape[1] // hop + 2)
        energies.append(out[: weighted_energy(block, filters, state, weights, hop, open_sum, out)].copy())
        mono = block[0] if channels == 1 else block.mean(axis=0, dtype=np.float32)
        windows += _add_power(mono, power)
        rest = np.concatenate([rest, mono]) if len(rest) else mono
        whole = len(rest) // frame * frame
        _add_levels(rest[:whole].reshape(-1, frame), levels)
        rest = rest[whole:]
    if not levels.sum() and len(rest):
        _add_levels(rest[None], levels)
    heard = np.concatenate(energies) if energies else np.zeros(0)
    if not len(heard) and open_sum[1]:
        heard = np.array([open_sum[0] / open_sum[1]])
    return Signal(rate, count, peak, clipped / max(1, count * channels), levels, heard, power / max(1, windows))


def _add_levels(frames: np.ndarray, levels: np.ndarray) -> None:
    squares = np.einsum("ij,ij->i", frames, frames, dtype=np.float64) / frames.shape[1]
    decibels = 10 * np.log10(np.maximum(squares, 1e-12))
    steps = ((decibels - FLOOR_DB) * 10).astype(np.int64).clip(0, _STEPS - 1)
    levels += np.bincount(steps, minlength=_STEPS)


def _add_power(mono: np.ndarray, power: np.ndarray) -> int:
    """Add the power of frames without overlap; a block shorter than a frame is filled with zeros."""
    if len(mono) < _FFT:
        mono = np.pad(mono, (0, _FFT - len(mono)))
    frames = mono[: len(mono) // _FFT * _FFT].reshape(-1, _FFT)
    spectra = np.fft.rfft(frames * _window(), axis=1)
    power += (spectra.real**2 + spectra.imag**2).sum(axis=0)
    return len(frames)


@functools.cache
def _window() -> np.ndarray:
    return np.hanning(_FFT + 1)[:-1].astype(np.float32)


def channel_weights(channels: int) -> np.ndarray:
    """Surround channels count 1.41 times, the channel for low frequencies not at all (ITU-R BS.1770-4, table 3)."""
    weights = np.ones(channels)
    if channels >= 5:
        weights[3 if channels == 5 else 4 :] = 1.41
    if channels >= 6:
        weights[3] = 0.0
    return weights


@functools.cache
def hearing_filters(rate: int) -> np.ndarray:
    """The filters of ITU-R BS.1770-4 at any sample rate, from the analogue filters that the tables at 48 kHz stand for.

    Frequencies and gains are those of De Man (2014), "Evaluation of Implementations of the EBU R128 Loudness
    Measurement".
    """
    k = np.tan(np.pi * 1681.974450955533 / rate)
    q, high = 0.7071752369554196, 10 ** (3.999843853973347 / 20)
    band = high**0.4996667741545416
    a0 = 1 + k / q + k * k
    shelf = [
        (high + band * k / q + k * k) / a0,
        2 * (k * k - high) / a0,
        (high - band * k / q + k * k) / a0,
        2 * (k * k - 1) / a0,
        (1 - k / q + k * k) / a0,
    ]
    k, q = np.tan(np.pi * 38.13547087602444 / rate), 0.5003270373238773
    a0 = 1 + k / q + k * k
    return np.array([shelf, [1.0, -2.0, 1.0, 2 * (k * k - 1) / a0, (1 - k / q + k * k) / a0]])
