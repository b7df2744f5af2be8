"""ONNX graphs on pictures, on the CPU: one session per worker, one picture at a time.

Larger batches are no faster on one core, take more memory, and let rounding depend on the other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tamis.batch import Batch
from tamis.context import Context
from tamis.errors import TamisError
from tamis.image.decode import PictureStep, pictures
from tamis.models import onnx
from tamis.models.files import IMAGE_DEFAULTS, ModelError, ModelFiles, find, with_files
from tamis.operators import Resources

ACTIVATION_BYTES = 100_000_000
"""What a picture takes while a graph runs."""


def find_onnx(model: str | Path) -> ModelFiles:
    """The ONNX file of a model."""
    found = find(model, (), IMAGE_DEFAULTS)
    if found.kind != "onnx":
        raise ModelError(
            f"{model} is not an ONNX file", hint="give an .onnx file, or a folder that contains model.onnx"
        )
    return found


class OnnxStep(PictureStep):
    """A step with a parameter `model`, an ONNX file."""

    cost = 2000.0

    def found(self) -> ModelFiles:
        return find_onnx(getattr(self, "model"))  # noqa: B009

    def check(self) -> None:
        self.found()

    def packages(self) -> Mapping[str, str]:
        return {**super().packages(), **self.found().packages}

    def identity(self) -> dict[str, Any]:
        return with_files(super().identity(), self.found())

    @property
    def resources(self) -> Resources:
        try:
            found = self.found()
        except TamisError:
            return Resources()
        size = onnx.RUNTIME_BYTES + 2 * found.num_bytes
        return Resources(memory=ACTIVATION_BYTES, shared={onnx.key_of(found): size})

    def open_graph(self, context: Context) -> Graph:
        return Graph(onnx.shared_session(self.found(), context))


class Graph:
    """A graph with one input and one output, on one picture."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._input, self._output = session.get_inputs()[0].name, session.get_outputs()[0].name

    def run(self, values: np.ndarray) -> np.ndarray:
        """The output for one picture, without the dimension of rows. Raises a ValueError if it is not a number."""
        (found,) = self._session.run([self._output], {self._input: values[None]})
        if not np.isfinite(found).all():
            raise ValueError("the model returned a value that is not a number")
        return np.asarray(found[0], np.float32)


def for_each(batch: Batch, side: int, look: Callable[[np.ndarray], Any]) -> list[Any]:
    """`look(picture)` for each row; None for a row without image."""
    return [None if picture is None else look(picture) for picture in pictures(batch, "image", side)]
