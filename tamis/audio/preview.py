"""Recordings on a contact sheet: a picture of the waveform above the spectrogram, and the first seconds to listen to."""

from __future__ import annotations

import numpy as np

from tamis.audio.decode import RATE, Recording
from tamis.audio.files import encoded

WIDTH, HEIGHT = 180, 60
"""Pixels of the waveform, and of the spectrogram below it."""

LISTEN_S = 10.0
"""How much can be played."""

PICTURE_S = 60.0
"""How much is drawn."""

_FFT = 256

LEAST_DB = -20.0
"""The darkest shade means this power at least, about -55 dB of full scale, so that silence is white."""


def first_seconds(recording: Recording, seconds: float) -> np.ndarray:
    """The begin of a recording at 16 kHz; no more of it is decoded."""
    return next(iter(recording.blocks(seconds=seconds)), np.zeros(0, np.float32))


def drawn(wave: np.ndarray) -> np.ndarray:
    """uint8[120, 180, 3]: the extremes of the waveform in each column, and below it the power by frequency."""
    picture = np.full((2 * HEIGHT, WIDTH, 3), 255, np.uint8)
    if not len(wave):
        return picture
    edges = np.linspace(0, len(wave), WIDTH + 1).astype(int)
    rows = np.arange(HEIGHT)[:, None]
    starts = np.minimum(edges[:-1], len(wave) - 1)
    high, low = np.maximum.reduceat(wave, starts), np.minimum.reduceat(wave, starts)
    middle = (HEIGHT - 1) / 2
    top, bottom = np.floor(middle - middle * high.clip(-1, 1)), np.ceil(middle - middle * low.clip(-1, 1))
    picture[:HEIGHT][(rows >= top) & (rows <= bottom)] = (40, 90, 160)
    padded = np.pad(wave, (0, _FFT))
    centres = ((edges[:-1] + edges[1:]) // 2)[:, None] + np.arange(_FFT)
    frames = padded[np.minimum(centres, len(padded) - 1)] * np.hanning(_FFT).astype(np.float32)
    decibels = 20 * np.log10(np.abs(np.fft.rfft(frames, axis=1)) + 1e-5).T[::-1]
    chosen = decibels[np.linspace(0, len(decibels) - 1, HEIGHT).astype(int)]
    loudest = max(chosen.max(), LEAST_DB)
    shade = ((chosen - loudest + 80) / 80 * 255).clip(0, 255).astype(np.uint8)
    picture[HEIGHT:] = (255 - shade)[:, :, None]
    return picture


def playable(wave: np.ndarray) -> bytes:
    """The first seconds as Opus, about 30 KB."""
    return encoded(wave[None, : round(LISTEN_S * RATE)], RATE, "opus", bitrate=24_000)
