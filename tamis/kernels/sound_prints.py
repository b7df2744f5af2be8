"""Acoustic fingerprints: what a sound is like over time, in 32 bits for every 32 ms (after Haitsma and Kalker 2002).

    samples at 8 kHz   -> frames of 512 ms, one every 32 ms        -> power in 33 bands from 150 to 3700 Hz
    E[t, b]            -> D[t, b] = E[t, b] - E[t, b + 1]          -> bit b of the hash is D[t, b] > D[t - 4, b]

A bit depends on the sign of a difference between neighbouring bands and between times 128 ms apart, which re-encoding, gain
and noise rarely change. Frames overlap by 94 %, so that a copy that begins between two frames has nearly the same bits.

A hash is stored in a word of 64 bits, with the numbers of the bits that are most likely to be wrong:

    bit  42           set, unless the frame is silent: a silent frame is 0
         37 ... 41    the bit whose difference is second smallest, relative to the power in its bands
         32 ... 36    the bit whose difference is smallest
          0 ... 31    the hash

Frames, bands and lag were chosen by recall under re-encoding, noise and cutting (benchmarks/sequences.md).
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import numpy as np

from tamis.kernels.jit import kernel

RATE = 8000
FRAME, HOP, LAG = 4096, 256, 4
BITS = 32
BANDS = BITS + 1
LOW_HZ, HIGH_HZ = 150.0, 3700.0

SILENT = 1e-7
"""A frame is silent if the mean square of its samples, within the bands, is below this: -70 dB of full scale."""

LOUDEST = 1000.0
"""Damaged files with floating-point samples may have values whose power is no number."""

PRESENT = 1 << 42
FRAMES_AT_A_TIME = 256


@cache
def band_edges() -> np.ndarray:
    """The first bin of each band, and the end of the last one: int64[BANDS + 1], equal steps on a logarithmic scale."""
    edges: np.ndarray = np.round(np.geomspace(LOW_HZ, HIGH_HZ, BANDS + 1) * FRAME / RATE).astype(np.int64)
    return edges


@cache
def window() -> np.ndarray:
    return np.hanning(FRAME).astype(np.float32)


@cache
def silent_power() -> float:
    """The power in the bands of a silent frame, from the mean square of its samples (Parseval)."""
    return float(SILENT * FRAME * np.square(window(), dtype=np.float64).sum() / 2)


@kernel
def band_powers(spectra, edges, powers):
    """powers[t, b] = the power of spectrum t between edges b and b + 1; complex64[frames, bins] -> float64[frames, bands]"""
    for frame in range(spectra.shape[0]):
        for band in range(powers.shape[1]):
            total = 0.0
            for place in range(edges[band], edges[band + 1]):
                value = spectra[frame, place]
                total += np.float64(value.real) * value.real + np.float64(value.imag) * value.imag
            powers[frame, band] = total


@kernel
def hash_bands(powers, lag, silent, words):
    """words[t] = the stored hash of frame t + lag, from the powers of frames t and t + lag; 0 if the latter is silent."""
    for place in range(len(words)):
        before, now = powers[place], powers[place + lag]
        total = 0.0
        for band in range(len(now)):
            total += now[band]
        words[place] = 0
        if total < silent:
            continue
        bits, first, second = np.uint64(0), 0, 0
        least, less = np.inf, np.inf
        for bit in range(len(now) - 1):
            difference = (now[bit] - now[bit + 1]) - (before[bit] - before[bit + 1])
            if difference > 0:
                bits |= np.uint64(1) << np.uint64(bit)
            sure = abs(difference) / (now[bit] + now[bit + 1] + before[bit] + before[bit + 1] + 1e-30)
            if sure < least:
                least, less, first, second = sure, least, bit, first
            elif sure < less:
                less, second = sure, bit
        words[place] = bits | (np.uint64(first) << np.uint64(32)) | (np.uint64(second) << np.uint64(37))
        words[place] |= np.uint64(PRESENT)


class SoundPrinter:
    """Computes a fingerprint from samples that come in blocks of any size; the result does not depend on the blocks."""

    def __init__(self) -> None:
        self._samples = np.empty(0, np.float32)
        self._powers = np.empty((0, BANDS))
        self.words: list[np.ndarray] = []

    def add(self, block: np.ndarray) -> None:
        """Add samples, float32 at `RATE`. Values that are not numbers count as 0, and those beyond `LOUDEST` as that."""
        block = np.nan_to_num(np.asarray(block, np.float32), nan=0.0, posinf=0.0, neginf=0.0).clip(-LOUDEST, LOUDEST)
        samples = np.concatenate([self._samples, block]) if len(self._samples) else block
        begin = 0
        while (count := min(FRAMES_AT_A_TIME, (len(samples) - begin - FRAME) // HOP + 1)) > 0:
            self._add_frames(samples[begin : begin + (count - 1) * HOP + FRAME])
            begin += count * HOP
        self._samples = samples[begin:].copy()

    def _add_frames(self, samples: np.ndarray) -> None:
        frames = np.lib.stride_tricks.sliding_window_view(samples, FRAME)[::HOP]
        spectra = np.fft.rfft(frames * window(), axis=1)
        powers = np.empty((len(frames), BANDS))
        band_powers(spectra, band_edges(), powers)
        powers = np.concatenate([self._powers, powers])
        words = np.zeros(max(0, len(powers) - LAG), np.uint64)
        hash_bands(powers, LAG, silent_power(), words)
        self.words.append(words)
        self._powers = powers[-LAG:]

    def fingerprint(self) -> np.ndarray:
        """uint64[hashes]: entry i is that of the 640 ms that begin at i times 32 ms."""
        return np.concatenate([np.empty(0, np.uint64), *self.words])


def sound_print(blocks: Iterable[np.ndarray]) -> np.ndarray:
    """The fingerprint of a sound, whose samples come in blocks.

    >>> len(sound_print([np.zeros(8000, np.float32)]))
    12
    """
    printer = SoundPrinter()
    for block in blocks:
        printer.add(block)
    return printer.fingerprint()
