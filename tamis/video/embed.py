"""Embeddings of clips: one vector per video or clip, by a network that sees how it moves.

on a CPU   video --stills, resize--> frames --network--> vector                          in one worker
on a GPU   video --VideoTensor, CPU workers--> frames ==packets==> network, GPU worker --> vector
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tamis.batch import Batch, Column
from tamis.context import Context
from tamis.errors import TamisError
from tamis.image.decode import ROW_BYTES
from tamis.image.embed import Embedder
from tamis.image.neural import NetworkStep, to_binary
from tamis.models.clips import CLIP_PREPROCESSOR_FILES, clip_encoder, clip_input
from tamis.models.devices import Device
from tamis.models.files import ModelError, ModelFiles, find, with_files
from tamis.models.image_model import ImageBuild
from tamis.models.pixels import Preprocessing
from tamis.operators import Map, Operator, operator
from tamis.video.decode import TIERS, FramePolicy, TrackStep, stills


def find_clip_model(model: str | Path) -> ModelFiles:
    """The files of a network on clips: a folder of transformers with the settings of its processor."""
    found = find(model, (CLIP_PREPROCESSOR_FILES,), {})
    if found.kind == "onnx":
        raise ModelError(f"{model} is an ONNX file, which this step does not run", hint="give a folder of transformers")
    return found


def clip_frames(batch: Batch, preprocessing: Preprocessing) -> tuple[np.ndarray, list[np.ndarray]]:
    """(which rows have no video, the frames of the others as the network looks at them)."""
    number = preprocessing.frames or 1
    found = stills(batch, "video", FramePolicy("number", 1.0, number, number), min(preprocessing.side, TIERS[-1]))
    missing = np.array([shown is None for shown in found], np.bool_)
    clips = []
    for shown in found:
        if shown is not None:
            resized = [preprocessing.resized(still.pixels) for still in shown]
            # A video with fewer frames than the network takes shows some of them several times.
            clips.append(np.stack([resized[place * len(resized) // number] for place in range(number)]))
    return missing, clips


def _row_bytes(model: str | Path) -> int:
    """Stills in the size that they are decoded in, and the frames for the network."""
    try:
        given = clip_input(find_clip_model(model))
    except TamisError:
        return ROW_BYTES
    tier = next((tier for tier in TIERS if given.side <= tier), TIERS[-1])
    return (given.frames or 1) * ROW_BYTES * (tier // TIERS[0]) ** 2 + 2 * given.num_bytes


@operator(reads="video", writes="pixels")
class VideoTensor(TrackStep, Map):
    """Add the frames of each video as a network on clips looks at them: resized, 8 bits per colour, as fixed-size binary.

    The number of frames, their size and the filter are those of `model`. A run on a GPU adds this step before `VideoEmbed`,
    so that CPU workers decode while the GPU computes. The pixels of a row without video are null.

        VideoTensor("models/videomae-base")
    """

    model: str | Path
    column: str = "video"
    output: str = "pixels"
    as_part: bool = False
    """Added by a run, in place of work that the next step would do itself."""

    @property
    def decides(self) -> bool:
        return not self.as_part

    def check(self) -> None:
        clip_input(find_clip_model(self.model))

    def identity(self) -> dict[str, Any]:
        return with_files(super().identity(), find_clip_model(self.model))

    def writes(self) -> tuple[str, ...]:
        return (self.output,)

    @property
    def row_bytes(self) -> int:
        return _row_bytes(self.model)

    def open(self, context: Context) -> _Resizer:
        return _Resizer(self.output, clip_input(find_clip_model(self.model)))


@dataclass(frozen=True)
class _Resizer:
    output: str
    preprocessing: Preprocessing

    def apply(self, batch: Batch) -> dict[str, Column]:
        missing, found = clip_frames(batch, self.preprocessing)
        return {self.output: to_binary(found, missing, self.preprocessing)}


@operator(reads="video", writes="embedding")
class VideoEmbed(NetworkStep, Map):
    """Add a vector for each video or clip, by a network on clips, as a fixed-size list of float32 or float16.

    `model` is a folder of transformers with its weights and the settings of its processor, or a Hugging Face name in the
    local cache:

    VideoMAE, V-JEPA 2      the mean of all tokens
    TimeSformer, ViViT      the class token
    X-CLIP                  the vector that is compared with those of texts

    The network gets as many frames as its configuration says (8 to 64), at equal distances over the clip; a video with fewer
    frames shows some of them several times. They are decoded at a reduced size, then resized and cropped as the processor of
    the model does. Vectors have length 1 unless `normalize` is False, and may differ by 2e-5 with the rows that are processed
    together, and by 0.01 on a GPU, which computes in bfloat16. The vector of a row without video is null. Needs
    `tamis[video,image,models]`.

    `FrameColumns({"image_embed": ...})` is cheaper: it averages the vectors of frames, which do not show what moves.
    `SemanticDedup` and `ClipWriter` read the column.

        VideoEmbed("models/videomae-base")
    """

    model: str | Path
    column: str = "video"
    output: str = "embedding"
    dtype: Literal["float32", "float16"] = "float32"
    normalize: bool = True
    batch_size: int | None = None
    device: Device = "auto"
    pixels: str | None = None
    """A column that `VideoTensor` wrote, which is then read in place of the video and removed."""

    def build(self) -> ImageBuild:
        return clip_encoder

    def found(self) -> ModelFiles:
        return find_clip_model(self.model)

    def input_of(self, found: ModelFiles) -> Preprocessing:
        return clip_input(found)

    def tensor_step(self, output: str) -> Operator:
        return VideoTensor(self.model, self.column, output, as_part=True)

    def prepared(self, batch: Batch, preprocessing: Preprocessing) -> tuple[np.ndarray, list[np.ndarray]]:
        return clip_frames(batch, preprocessing)

    @property
    def row_bytes(self) -> int:
        return 0 if self.pixels else _row_bytes(self.model)

    def writes(self) -> tuple[str, ...]:
        return (self.output,)

    def open(self, context: Context) -> Embedder:
        return Embedder(self, self.open_model(context), self.output, self.dtype, normalize=self.normalize)
