"""How well a caption fits an image, and how much people like an image: both by the vectors of CLIP."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Batch
from tamis.context import Context, file_key
from tamis.errors import ParameterError, TamisError, is_shortage, require
from tamis.image.embed import normalized
from tamis.image.neural import NetworkStep, is_missing
from tamis.models import image_model
from tamis.models.devices import Device
from tamis.models.fasttext import find_model, fingerprint
from tamis.models.files import PREPROCESSOR_FILES, TOKENIZER_FILES, ModelError, ModelFiles, find
from tamis.models.image_model import ImageBuild, ImageModel, LoadedImages, TorchImages
from tamis.models.network import load_weights
from tamis.models.text_model import RUNTIME, open_runtime
from tamis.models.vision import PAIRED, ImagePair, image_encoder, input_of
from tamis.operators import Filter, Resources, Rule, Scores, at_least, between, operator
from tamis.text.clean import strings

CAPTION_ROWS = 32
"""Captions per batch."""


def pair(found: ModelFiles) -> Any:
    """The image encoder of a model whose text encoder is used too."""
    return ImagePair(found)


@operator(reads="image", writes="similarity")
class ImageTextSimilarity(NetworkStep, Filter):
    """Keep images that fit their caption, by the cosine similarity of the vectors of CLIP or SigLIP.

    `model` is a folder of CLIP or SigLIP with both encoders, tokenizer.json and preprocessor_config.json, or a Hugging
    Face name in the local cache. Captions longer than its input (77 tokens for CLIP) are cut. The score equals the logits
    of transformers before scale and bias. Useful bounds depend on the model, so there is no default:

    CLIP ViT-B/32      0.28, and 0.3 in the first version    LAION-5B and LAION-400M (Schuhmann et al. 2022, 2021)
    CLIP ViT-L/14      0.243, the best 30 % of CommonPool    DataComp (Gadre et al. 2023)

    A row without image or caption has no score and is dropped. Scores may differ by 2e-5 with the rows that are processed
    together, and by 0.01 on a GPU, which computes in bfloat16. Needs `tamis[image,models]`.

        ImageTextSimilarity("openai/clip-vit-base-patch32", min_similarity=0.28)
    """

    model: str | Path
    column: str = "image"
    caption: str = "caption"
    min_similarity: float | None = None
    max_similarity: float | None = None
    batch_size: int | None = None
    device: Device = "auto"
    pixels: str | None = None
    """A column that `ImageTensor` wrote, which is then read in place of the image and removed."""

    def build(self) -> ImageBuild:
        return pair

    def found(self) -> ModelFiles:
        return find(self.model, (PREPROCESSOR_FILES, TOKENIZER_FILES), {})

    def check(self) -> None:
        super().check()
        kind = self.found().config.get("model_type")
        if kind not in PAIRED:
            raise ModelError(
                f"{self.model} is a model of type {kind}, which does not compare pictures with texts",
                hint="use a folder of CLIP or SigLIP, with both encoders",
            )
        if self.min_similarity is None and self.max_similarity is None and not self.score_only:
            raise ParameterError(
                f"`{self.name}` has neither `min_similarity` nor `max_similarity`",
                hint="0.28 for CLIP ViT-B/32, or score_only=True to add the score only",
            )

    def reads(self) -> tuple[str, ...]:
        return (*super().reads(), "caption")

    def real_names(self) -> dict[str, str]:
        return super().real_names() | {"caption": self.caption}

    def open(self, context: Context) -> _Comparer:
        found = self.found()
        context.shared(RUNTIME, lambda: open_runtime(context))

        def load() -> LoadedImages:
            both = ImagePair(found)
            return LoadedImages(
                TorchImages(both.images, input_of(found), context.device), _Captions(both, found, context)
            )

        loaded = context.shared(image_model.key_of(found, pair), load)
        return _Comparer(self, ImageModel(loaded, context, self.batch_size), loaded.extra)

    def rules(self) -> list[Rule]:
        return [between("similarity", self.min_similarity, self.max_similarity)]


class _Captions:
    """Vectors of captions."""

    def __init__(self, both: ImagePair, found: ModelFiles, context: Context) -> None:
        transformers = require("transformers", extra="models", purpose="comparing images with texts")
        self._torch = require("torch", extra="models", purpose="comparing images with texts")
        self._both, self._device = both, context.device
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(
                found.folder, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:
            if is_shortage(error):
                raise
            raise ModelError(
                f"the tokenizer in {found.folder} cannot be loaded: {error}", hint="download the model again"
            ) from error

    def vectors(self, texts: Sequence[str]) -> np.ndarray:
        """float32[rows, dimensions]."""
        parts = [self._batch(texts[start : start + CAPTION_ROWS]) for start in range(0, len(texts), CAPTION_ROWS)]
        return np.concatenate(parts) if parts else np.zeros((0, 1), np.float32)

    def _batch(self, texts: Sequence[str]) -> np.ndarray:
        torch = self._torch
        given = self._tokenizer(
            list(texts), padding="max_length" if self._both.pads else True, max_length=self._both.max_tokens,
            truncation=True, return_attention_mask=True, return_tensors="pt",
        )  # fmt: skip
        ids, mask = given["input_ids"].to(self._device), given["attention_mask"].to(self._device)
        with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16, enabled=self._device != "cpu"):
            found: np.ndarray = self._both.texts(ids, mask).float().cpu().numpy()
        return found


class _Comparer:
    def __init__(self, step: ImageTextSimilarity, model: ImageModel, captions: _Captions) -> None:
        self._step, self._model, self._captions = step, model, captions

    def score(self, batch: Batch) -> Scores:
        missing, images = self._step.outputs(self._model, batch)
        captions = strings(batch["caption"])
        missing = missing | is_missing(captions)
        texts = pc.fill_null(captions, "").to_pylist()
        cosines = np.zeros(len(missing), np.float32)
        rows = np.flatnonzero(~missing)
        if len(rows):
            found = normalized(self._captions.vectors([texts[row] for row in rows]))
            cosines[rows] = (normalized(images[rows]) * found).sum(axis=1)
        if not np.isfinite(cosines).all():
            raise ValueError("the model returned a value that is not a number")
        return {"similarity": pa.array(cosines, mask=missing)}


# ------------------------------------------------------------------------------------------------------------- aesthetics


@operator(reads="image", writes="aesthetics")
class Aesthetics(NetworkStep, Filter):
    """Keep images that people would rate at least 5 of 10 (Schuhmann et al. 2022).

    LAION's predictor: a few linear layers, `head`, on the normalized vector of CLIP ViT-L/14, `model`. `head` is a
    safetensors file, or a PyTorch file of tensors, with the layers of the first version (one layer, `weight` and `bias`)
    or of the second (`layers.0.weight`, ...). Between its layers there is nothing but dropout, so they are multiplied
    into one when they are loaded. Stable Diffusion 1.2 was trained on images above 5, LAION-Aesthetics begins at 4.5. A
    row without image is dropped. Needs `tamis[image,models]` and both files.

        Aesthetics("openai/clip-vit-large-patch14", head="sac+logos+ava1-l14-linearMSE.safetensors")
    """

    model: str | Path
    head: str | Path
    column: str = "image"
    min_aesthetics: float | None = 5.0
    max_aesthetics: float | None = None
    batch_size: int | None = None
    device: Device = "auto"
    pixels: str | None = None
    """A column that `ImageTensor` wrote, which is then read in place of the image and removed."""

    path_parameters = frozenset({"model", "head"})

    def build(self) -> ImageBuild:
        return image_encoder

    def check(self) -> None:
        super().check()
        self._head()

    def identity(self) -> dict[str, Any]:
        known = super().identity()
        parameters = {name: value for name, value in known["parameters"].items() if name != "head"}
        return known | {"parameters": parameters, "head": fingerprint(self._head())}

    @property
    def resources(self) -> Resources:
        known = super().resources
        try:
            head = self._head()
        except TamisError:
            return Resources()
        shared = {**known.shared, file_key("aesthetics", head): 4 * head.stat().st_size} if known.shared else {}
        return Resources(memory=known.memory, gpus=known.gpus, shared=shared)

    def open(self, context: Context) -> _Rater:
        model, head = self.open_model(context), self._head()
        layer = context.shared(file_key("aesthetics", head), lambda: load_head(head))
        return _Rater(self, model, *layer)

    def rules(self) -> list[Rule]:
        if self.max_aesthetics is None and self.min_aesthetics is not None:
            return [at_least("aesthetics", self.min_aesthetics)]
        return [between("aesthetics", self.min_aesthetics, self.max_aesthetics)]

    def _head(self) -> Path:
        return find_model(self.head)


def load_head(path: Path) -> tuple[np.ndarray, float]:
    """(weights, bias) of all layers multiplied into one, float64."""
    tensors = {name: np.asarray(value.double().numpy()) for name, value in load_weights((path,)).items()}
    stems = sorted(
        {name.rpartition(".")[0] for name in tensors},
        key=lambda stem: int(last) if (last := stem.rpartition(".")[2]).isdigit() else 0,
    )
    weights, bias = None, np.zeros(1)
    try:
        for stem in stems:
            dot = f"{stem}." if stem else ""
            layer, shift = tensors[f"{dot}weight"], tensors[f"{dot}bias"]
            bias = shift if weights is None else layer @ bias + shift
            weights = layer if weights is None else layer @ weights
        if weights is None or weights.shape[0] != 1:
            raise ValueError("the last layer does not have one output")
    except (KeyError, ValueError) as error:
        raise ModelError(
            f"{path} does not contain linear layers that follow each other: {error}",
            hint="use a predictor of LAION: `weight` and `bias`, or `layers.0.weight`, `layers.0.bias`, ...",
        ) from error
    return weights[0], float(bias[0])


class _Rater:
    def __init__(self, step: Aesthetics, model: ImageModel, weights: np.ndarray, bias: float) -> None:
        self._step, self._model, self._weights, self._bias = step, model, weights, bias

    def score(self, batch: Batch) -> Scores:
        missing, found = self._step.outputs(self._model, batch)
        if found.shape[1] != len(self._weights):
            raise ModelError(
                f"{self._step.head} is for vectors of {len(self._weights)} numbers, those of {self._step.model} "
                f"have {found.shape[1]}",
                hint="use the model that the predictor was trained on",
            )
        return {"aesthetics": pa.array(normalized(found) @ self._weights + self._bias, mask=missing)}
