"""Real speech for tests: the opening of A Tale of Two Cities, read aloud, from the wheel of moonshine-voice (MIT)."""

from __future__ import annotations

import functools
import json
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np

from tamis.audio.decode import RATE, waveforms
from tamis.batch import Batch

FILE = Path(sysconfig.get_path("purelib")) / "moonshine_voice" / "assets" / "two_cities.wav"
TEXT = (
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness, it was "
    "the epoch of belief, it was the epoch of incredulity, it was the season of light, it was the season of darkness, it "
    "was the spring of hope, it was the winter of despair. We had everything before us, we had nothing before us. We were "
    "all going direct to heaven, we were all going direct the other way. In short, the period was so far like the present "
    "period that some of its noisiest authorities insisted on its being received, for good or for evil, in the superlative "
    "degree of comparison only."
)


@functools.cache
def speech() -> np.ndarray:
    """44 seconds at 16 kHz."""
    row = {"audio": {"bytes": FILE.read_bytes(), "path": FILE.name}}
    wave = waveforms(Batch.from_rows([row]), "audio")[0]
    assert wave is not None
    return wave


def seconds(begin: float, end: float) -> np.ndarray:
    return speech()[int(begin * RATE) : int(end * RATE)]


@functools.cache
def golden() -> dict[str, Any]:
    """What the packages silero-vad, speechmos, resemblyzer and inaSpeechSegmenter return for this speech."""
    found: dict[str, Any] = json.loads(Path(__file__).with_name("golden.json").read_text())
    return found
