"""Embeddings of images: one vector per image."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from tamis.batch import Batch, Column
from tamis.context import Context
from tamis.image.neural import NetworkStep
from tamis.models.devices import Device
from tamis.models.image_model import ImageBuild, ImageModel
from tamis.models.outputs import vectors
from tamis.models.vision import image_encoder
from tamis.operators import Map, operator

Dtype: TypeAlias = Literal["float32", "float16"]


@operator(reads="image", writes="embedding")
class ImageEmbed(NetworkStep, Map):
    """Add a vector for each image, as a fixed-size list of float32 or float16.

    `model` is a folder of CLIP, SigLIP, DINO, DINOv2 or ViT with preprocessor_config.json, or a Hugging Face name in the
    local cache. The default is EfficientNet-lite0, trained on ImageNet: 1,280 dimensions, about 30 images per second and
    core; it needs `tamis[image,models,image-models]`.

    CLIP, SigLIP                  the vector that is compared with those of texts
    DINO, DINOv2, ViT, DeiT       the class token after the last layer
    other encoders                the pooled output

    Vectors have length 1 unless `normalize` is False. The vector of a row without image is null. Images are decoded at a
    reduced size and prepared as preprocessor_config.json says, so vectors differ slightly from those of images that are
    decoded in full: of 14 wallpapers, the median of the cosine similarities was 0.994 and the lowest 0.94 (0.19 between
    different ones). They may differ by 2e-5 with the rows that are processed together, and by 0.01 on a GPU, which
    computes in bfloat16.

        ImageEmbed("models/clip-vit-large-patch14", dtype="float16")
    """

    model: str | Path = "efficientnet-lite0"
    column: str = "image"
    output: str = "embedding"
    dtype: Dtype = "float32"
    normalize: bool = True
    batch_size: int | None = None
    device: Device = "auto"
    pixels: str | None = None
    """A column that `ImageTensor` wrote, which is then read in place of the image and removed."""

    def build(self) -> ImageBuild:
        return image_encoder

    def writes(self) -> tuple[str, ...]:
        return (self.output,)

    def open(self, context: Context) -> Embedder:
        return Embedder(self, self.open_model(context), self.output, self.dtype, normalize=self.normalize)


class Embedder:
    """Makes vectors of images, or of clips."""

    def __init__(self, step: NetworkStep, model: ImageModel, output: str, dtype: Dtype, *, normalize: bool) -> None:
        self._step, self._model = step, model
        self._output, self._dtype, self._normalize = output, dtype, normalize

    def apply(self, batch: Batch) -> dict[str, Column]:
        missing, found = self._step.outputs(self._model, batch)
        if self._normalize:
            found = normalized(found)
        return {self._output: vectors(found, missing, self._dtype)}


def normalized(values: np.ndarray) -> np.ndarray:
    """Vectors of length 1; those of length 0 stay."""
    return values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)
