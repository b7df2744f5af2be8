"""Runs a network on pictures: batches of pixels, and one row of outputs per picture, in the order of the input.

    uint8[rows, height, width, 3] --on the device: scale, normalize, network--> float32[rows, outputs]

On a GPU, pictures are decoded and resized by other workers (`ImageTensor`), and a batch is copied while the one before is
computed. If memory runs out, batches are halved, down to one picture.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from tamis.context import Context
from tamis.errors import is_shortage
from tamis.models.devices import release_cached
from tamis.models.files import ModelFiles
from tamis.models.network import TorchModule
from tamis.models.pixels import Preprocessing
from tamis.models.text_model import GPU_SHARE, RUNTIME, open_runtime

ImageBuild: TypeAlias = Callable[[ModelFiles], Any]
"""A function from the files of a model to a torch module over normalized pixels."""

CPU_ROWS = 4
"""Pictures per batch on a CPU: larger batches leave its caches."""

GPU_ROWS = 256
"""Pictures per batch on a GPU: larger batches are no faster."""

PROBED_ROWS = 8


class TorchImages(TorchModule):
    """A module over pixels, which normalizes them on its device."""

    def __init__(self, module: Any, preprocessing: Preprocessing, device: str = "cpu") -> None:
        super().__init__(module, device)
        self.preprocessing = preprocessing
        self._factors = [self._torch.from_numpy(values).to(device) for values in preprocessing.factors()]

    def start(self, pixels: np.ndarray) -> Callable[[], np.ndarray]:
        """Begin a batch of uint8[rows, height, width, 3], or uint8[rows, frames, height, width, 3] for clips."""

        def forward(pixels: Any) -> Any:
            scale, shift = self._factors
            return self.module((pixels.float() * scale + shift).movedim(-1, -3))

        return self.begin(forward, pixels)

    def blank(self, rows: int) -> np.ndarray:
        return np.zeros((rows, *self.preprocessing.shape), np.uint8)

    def rows_that_fit(self, share: int | None) -> int:
        """How many pictures a batch on a GPU may have, of which two are in memory at a time, as measured."""
        self.start(self.blank(1))()  # loads kernels
        probed = max(1, PROBED_ROWS // (self.preprocessing.frames or 1))
        each = self.bytes_of(lambda: self.start(self.blank(probed))) / probed
        free = self.free_bytes()
        return int(GPU_SHARE * (free if share is None else min(free, share)) / 2 / max(each, 1.0))


@dataclass
class LoadedImages:
    """A network on pictures, shared by all steps of a worker that use the model."""

    network: TorchImages
    extra: Any = None
    """What else the model has, such as the encoder of texts."""
    most_rows: list[int] = field(default_factory=list)
    """The rows that fit in memory, once it is known."""

    def close(self) -> None:
        self.network.close()
        self.extra = None


def key_of(found: ModelFiles, build: ImageBuild) -> str:
    """The key of a loaded model in `Context.shared`."""
    return found.key(f"{build.__module__}.{build.__qualname__}")


def load(found: ModelFiles, build: ImageBuild, preprocessing: Preprocessing, context: Context) -> LoadedImages:
    """Load a model once per worker."""
    context.shared(RUNTIME, lambda: open_runtime(context))
    make = lambda: LoadedImages(TorchImages(build(found), preprocessing, context.device))  # noqa: E731
    return context.shared(key_of(found, build), make)


class ImageModel:
    """A network on pictures, with the settings of one step."""

    def __init__(self, loaded: LoadedImages, context: Context, batch_size: int | None = None) -> None:
        self._loaded, self._context, self._batch_size = loaded, context, batch_size

    @property
    def preprocessing(self) -> Preprocessing:
        return self._loaded.network.preprocessing

    def predict(self, pictures: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """The outputs of the network for each resized picture, float32[rows, outputs].

        Raises a ValueError if an output is not a number; the engine then finds the row that causes it.
        """
        network = self._loaded.network
        if not len(pictures):
            return network.start(network.blank(1))()[:0]
        queue = deque(self._batches(len(pictures)))
        running: deque[tuple[slice, Callable[[], np.ndarray]]] = deque()
        parts: dict[int, np.ndarray] = {}
        while queue or running:
            if queue and len(running) < (2 if network.on_gpu else 1):
                rows = queue.popleft()
                try:
                    running.append((rows, network.start(np.stack(pictures[rows]))))  # type: ignore[arg-type]
                except Exception as error:
                    if not is_shortage(error) or (not running and rows.stop - rows.start == 1):
                        raise
                    error.__traceback__ = None  # its frames hold the memory
                    self._smaller(queue, rows, halve=not running)
                    _drain(running, parts)
            else:
                _drain(running, parts, 1)
        return _finite(np.concatenate([parts[start] for start in sorted(parts)]))

    def _batches(self, total: int) -> list[slice]:
        rows = min(self._most(), self._batch_size or self._usual(GPU_ROWS))
        return [slice(start, min(start + rows, total)) for start in range(0, total, rows)]

    def _most(self) -> int:
        network, known = self._loaded.network, self._loaded.most_rows
        if not network.on_gpu:
            return known[-1] if known else self._batch_size or self._usual(CPU_ROWS)
        if not known:
            try:
                fits = network.rows_that_fit(self._context.gpu_memory_bytes)
            except Exception as error:
                if not is_shortage(error):
                    raise
                release_cached()
                fits = 1
            known.append(max(1, min(self._usual(GPU_ROWS), fits)))
        return known[-1]

    def _usual(self, pictures: int) -> int:
        """How many rows have so many pictures."""
        return max(1, pictures // (self.preprocessing.frames or 1))

    def _smaller(self, queue: deque[slice], rows: slice, *, halve: bool) -> None:
        """Put a batch that ran out of memory back: whole if others were running, else in halves."""
        release_cached()
        if not halve:
            queue.appendleft(rows)
            return
        half = -(-(rows.stop - rows.start) // 2)
        self._loaded.most_rows.append(half)
        queue.extendleft([slice(rows.start + half, rows.stop), slice(rows.start, rows.start + half)])

    def close(self) -> None:
        """The network is closed with the stage."""


def _drain(
    running: deque[tuple[slice, Callable[[], np.ndarray]]], parts: dict[int, np.ndarray], most: int = 99
) -> None:
    for _ in range(min(most, len(running))):
        rows, wait = running.popleft()
        parts[rows.start] = wait()


def _finite(result: np.ndarray) -> np.ndarray:
    wrong = ~np.isfinite(result).all(axis=1)
    if wrong.any():
        raise ValueError(
            f"the model returned a value that is not a number for {int(wrong.sum())} of {len(result)} rows"
        )
    return result
