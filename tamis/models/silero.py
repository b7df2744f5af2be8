"""Voice activity with Silero VAD 6 (MIT): the probability of speech for each 32 ms of a recording.

    blocks of samples --512 at a time, with the 64 before--> graph, one call per 16 s --> probabilities
                                                               ^ state of the LSTM from the block before

The graph takes a sequence of windows of one recording at a time, so recordings do not influence each other, and blocks
of any size give the same numbers. Only the state is kept, so a recording is never held.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

WINDOW = 512
"""Samples per probability, at 16 kHz."""

_CONTEXT = 64
_STATE = (1, 1, 128)
_MOST_WINDOWS = 512
"""Windows per call: 16 s."""


class Voice:
    """The probabilities of one recording, which is passed in blocks."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._hidden, self._cell = np.zeros(_STATE, np.float32), np.zeros(_STATE, np.float32)
        self._rest = np.zeros(_CONTEXT, np.float32)  # the end of the block before, from the context of its next window
        self.num_samples = 0

    def feed(self, samples: np.ndarray) -> np.ndarray:
        """The probabilities of the windows that these samples complete."""
        self.num_samples += len(samples)
        held = np.concatenate([self._rest, samples])
        count = (len(held) - _CONTEXT) // WINDOW
        self._rest = held[count * WINDOW :]
        if not count:
            return np.empty(0, np.float32)
        windows = np.lib.stride_tricks.sliding_window_view(held, _CONTEXT + WINDOW)[::WINDOW]
        found = [
            self._run(windows[start : min(count, start + _MOST_WINDOWS)]) for start in range(0, count, _MOST_WINDOWS)
        ]
        return np.concatenate(found)

    def finish(self) -> np.ndarray:
        """The probability of the last window, filled up with silence; empty if the windows end with the samples."""
        missing = _CONTEXT + WINDOW - len(self._rest)
        if missing == WINDOW:
            return np.empty(0, np.float32)
        found = self.feed(np.zeros(missing, np.float32))
        self.num_samples -= missing
        return found

    def _run(self, windows: np.ndarray) -> np.ndarray:
        found, self._hidden, self._cell = self._session.run(
            None, {"input": np.ascontiguousarray(windows), "h": self._hidden, "c": self._cell}
        )
        if not np.isfinite(found).all():
            raise ValueError("the model returned a value that is not a number")
        return np.asarray(found, np.float32).reshape(-1)


def probabilities(session: Any, blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """The probabilities of a recording, block by block."""
    voice = Voice(session)
    for block in blocks:
        yield voice.feed(block)
    yield voice.finish()
