"""Steps that run a torch network on pictures, and the part of their work that stays on the CPU.

on a CPU   image --decode, resize--> pixels --network--> outputs                       in one worker
on a GPU   image --ImageTensor, CPU workers--> pixels ==packets==> network, GPU worker --> outputs
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Batch, Column
from tamis.context import Context
from tamis.errors import ParameterError, TamisError
from tamis.image.decode import ROW_BYTES, TIERS, PictureStep, pictures, row_bytes
from tamis.models import image_model
from tamis.models.devices import Device, choose, why_not_gpu
from tamis.models.files import IMAGE_DEFAULTS, PREPROCESSOR_FILES, ModelError, ModelFiles, find, with_files
from tamis.models.image_model import ImageBuild, ImageModel
from tamis.models.pixels import Preprocessing
from tamis.models.text_model import RUNTIME, runtime_bytes
from tamis.models.vision import input_of
from tamis.operators import Map, Operator, Resources, operator
from tamis.text.neural import SMALL_NETWORK_BYTES, WORKERS_PER_GPU

ACTIVATION_BYTES = 200_000_000
"""What a batch takes on a CPU: four pictures, and the layers that are computed at a time."""

GPU_PACKET_ROWS = 512
"""Pictures that a GPU worker receives at a time."""


def find_image_model(model: str | Path) -> ModelFiles:
    """The files of a torch network on pictures: a folder with a preprocessor_config.json, or a default."""
    found = find(model, (PREPROCESSOR_FILES,), IMAGE_DEFAULTS)
    if found.kind == "onnx":
        raise ModelError(
            f"{model} is an ONNX file, which this step does not run", hint="give a folder with config.json and weights"
        )
    return found


def _row_bytes(input_of: Callable[[ModelFiles], Preprocessing], found: ModelFiles) -> int:
    """Pictures in the size that they are decoded in."""
    try:
        return row_bytes(min(input_of(found).side, TIERS[-1]))
    except TamisError:  # which `check` reports
        return ROW_BYTES


def is_missing(column: Column) -> np.ndarray:
    return np.asarray(pc.is_null(column).to_numpy(zero_copy_only=False), np.bool_)


def resized(batch: Batch, preprocessing: Preprocessing) -> tuple[np.ndarray, list[np.ndarray]]:
    """(which rows have no image, the images of the others as the network reads them)."""
    found = pictures(batch, "image", min(preprocessing.side, TIERS[-1]))
    missing = np.array([picture is None for picture in found], np.bool_)
    return missing, [preprocessing.resized(picture) for picture in found if picture is not None]


def spread(values: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """Outputs of the rows that have an image, with zeros for the others."""
    if not missing.any():
        return values
    out = np.zeros((len(missing), *values.shape[1:]), values.dtype)
    out[~missing] = values
    return out


# ----------------------------------------------------------------------------------------------------------- resized pixels


@operator(reads="image", writes="pixels")
class ImageTensor(PictureStep, Map):
    """Add the pixels of each image as a network reads them: resized and cropped, 8 bits per colour, as fixed-size binary.

    The size and the filter are those of the preprocessor_config.json of `model`. A run on a GPU adds this step before steps
    that run a network, so that CPU workers decode while the GPU computes. The pixels of a row without image are null.

        ImageTensor("efficientnet-lite0")
    """

    model: str | Path
    column: str = "image"
    output: str = "pixels"
    as_part: bool = False
    """Added by a run, in place of work that the next step would do itself."""

    cost = 100.0

    @property
    def decides(self) -> bool:
        return not self.as_part

    @property
    def row_bytes(self) -> int:
        try:
            return _row_bytes(input_of, find_image_model(self.model))
        except TamisError:
            return ROW_BYTES

    def check(self) -> None:
        input_of(find_image_model(self.model))

    def identity(self) -> dict[str, Any]:
        return with_files(super().identity(), find_image_model(self.model))

    def writes(self) -> tuple[str, ...]:
        return (self.output,)

    def open(self, context: Context) -> _Resizer:
        return _Resizer(self.output, input_of(find_image_model(self.model)))


@dataclass(frozen=True)
class _Resizer:
    output: str
    preprocessing: Preprocessing

    def apply(self, batch: Batch) -> dict[str, Column]:
        missing, found = resized(batch, self.preprocessing)
        return {self.output: to_binary(found, missing, self.preprocessing)}


def to_binary(
    found: Sequence[np.ndarray], missing: np.ndarray, preprocessing: Preprocessing
) -> pa.FixedSizeBinaryArray:
    """Resized pictures as a column."""
    out = np.zeros((len(missing), preprocessing.num_bytes), np.uint8)
    for row, picture in zip(np.flatnonzero(~missing), found, strict=True):
        out[row] = picture.reshape(-1)
    valid = pa.array(~missing).buffers()[1] if missing.any() else None
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(preprocessing.num_bytes), len(missing), [valid, pa.py_buffer(out)]
    )


def from_binary(column: Column, preprocessing: Preprocessing) -> np.ndarray:
    """uint8[rows, height, width, 3] of such a column, zeros where it is null; for clips with their frames."""
    if column.type != pa.binary(preprocessing.num_bytes):
        raise ModelError(
            f"a column of {column.type} does not hold pictures of {preprocessing.width} x {preprocessing.height} pixels",
            hint="the column must be written by `ImageTensor` or `VideoTensor` with the same model",
        )
    shape = (len(column), *preprocessing.shape)
    data = column.buffers()[1]
    if data is None or not len(column):
        return np.zeros(shape, np.uint8)
    start = column.offset * preprocessing.num_bytes
    flat = np.frombuffer(data, np.uint8)[start : start + len(column) * preprocessing.num_bytes]
    return flat.reshape(shape)


# ------------------------------------------------------------------------------------------- steps that run a torch network


class NetworkStep(Operator):
    """A step with the parameters model, column, device, batch_size and pixels. `build` makes its network.

    `pixels` is a column that `ImageTensor` wrote, which is then read in place of the image and removed.
    """

    cost = 2000.0
    tolerance = 2e-5
    incidental = frozenset({"batch_size", "device", "pixels"})

    def build(self) -> ImageBuild:
        raise NotImplementedError

    def found(self) -> ModelFiles:
        return find_image_model(getattr(self, "model"))  # noqa: B009

    def input_of(self, found: ModelFiles) -> Preprocessing:
        """What the network looks at."""
        return input_of(found)

    def tensor_step(self, output: str) -> Operator:
        """The step that writes the column `output` with the pixels of each row."""
        return ImageTensor(getattr(self, "model"), str(getattr(self, "column", "image")), output, as_part=True)  # noqa: B009

    def prepared(self, batch: Batch, preprocessing: Preprocessing) -> tuple[np.ndarray, list[np.ndarray]]:
        """(which rows have nothing to look at, the pixels of the others)."""
        return resized(batch, preprocessing)

    def check(self) -> None:
        batch_size: int | None = getattr(self, "batch_size", None)
        if batch_size is not None and batch_size < 1:
            raise ParameterError(f"`batch_size` of `{self.name}` must be at least 1, got {batch_size}")
        self.input_of(self.found())
        choose(self._device)

    def packages(self) -> Mapping[str, str]:
        pictures = {} if self._pixels else {"PIL": "image", "simplejpeg": "image"}
        return {**pictures, **self.found().packages}

    def identity(self) -> dict[str, Any]:
        return with_files(super().identity(), self.found())

    def parts(self) -> Sequence[Operator]:
        if self._pixels or self._device == "cpu" or why_not_gpu("torch") or self._known() is None:
            return [self]
        output = f"pixels for {self.name} (of this run)"  # replaces no column of the user
        return [self.tensor_step(output), self.changed(pixels=output)]

    def _known(self) -> ModelFiles | None:
        """The files of the model; None if there are none, which `check` reports."""
        try:
            return self.found()
        except TamisError:
            return None

    def reads(self) -> tuple[str, ...]:
        return (self._pixels or self.declared_reads[0], *self.declared_reads[1:])

    def real_names(self) -> dict[str, str]:
        names = super().real_names()
        return {name: name if name == self._pixels else real for name, real in names.items()}

    def removes(self, columns: Sequence[str]) -> tuple[str, ...]:
        return (self._pixels,) if self._pixels else ()

    @property
    def row_bytes(self) -> int:
        if self._pixels:
            return 0
        found = self._known()
        return ROW_BYTES if found is None else _row_bytes(self.input_of, found)

    @property
    def batch_bytes(self) -> int | None:
        found = self._known() if self._pixels else None
        if found is None:
            return None
        given = self.input_of(found)
        return max(1, GPU_PACKET_ROWS // (given.frames or 1)) * given.num_bytes

    @property
    def resources(self) -> Resources:
        try:
            found = self.found()
        except TamisError:
            return Resources()
        return network_resources(found, self._device, self.build())

    def open_model(self, context: Context) -> ImageModel:
        """The network, loaded once per worker."""
        found = self.found()
        loaded = image_model.load(found, self.build(), self.input_of(found), context)
        return ImageModel(loaded, context, getattr(self, "batch_size", None))

    def outputs(self, model: ImageModel, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """(which rows have no image, the outputs of the network, zeros for these)."""
        if self._pixels:
            missing = is_missing(batch[self._pixels])
            pixels = from_binary(batch[self._pixels], model.preprocessing)
            return missing, spread(model.predict(pixels[~missing] if missing.any() else pixels), missing)
        missing, found = self.prepared(batch, model.preprocessing)
        return missing, spread(model.predict(found), missing)

    @property
    def _pixels(self) -> str | None:
        found: str | None = getattr(self, "pixels", None)
        return found

    @property
    def _device(self) -> Device:
        found: Device = getattr(self, "device", "auto")
        return found


def network_resources(found: ModelFiles, device: Device, build: ImageBuild) -> Resources:
    """What a step needs that runs a network: a GPU if there is one, the weights, and the libraries."""
    place = "cpu" if device == "cpu" or why_not_gpu("torch") else "gpu"
    copies = 2 if found.kind == "efficientnet" else 1  # others are mapped
    shared = {RUNTIME: runtime_bytes(place), image_model.key_of(found, build): copies * found.num_bytes}
    if place == "gpu":
        gpus = 1 / WORKERS_PER_GPU if found.num_bytes <= SMALL_NETWORK_BYTES else 1
        return Resources(gpus=gpus, shared=shared)
    return Resources(memory=ACTIVATION_BYTES, shared=shared)
