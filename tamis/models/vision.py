"""Modules that turn pictures into numbers, built from folders of transformers.

    image_encoder       a vector per picture: projected (CLIP), pooled (SigLIP), or that of the class token (ViT, DINO)
    image_classifier    the logits of an image-classification folder
    ImagePair           both encoders of CLIP or SigLIP, for similarities of pictures and texts

Each module takes normalized pixels, float[rows, 3, height, width].
"""

from __future__ import annotations

from typing import Any

from tamis.errors import require
from tamis.models import efficientnet
from tamis.models.files import ModelError, ModelFiles
from tamis.models.network import assemble, load_config, load_weights, transformers_module
from tamis.models.pixels import Preprocessing, preprocessing_of

PAIRED = ("clip", "siglip", "siglip2")
CLASS_TOKEN = ("vit", "deit", "dinov2", "dinov2_with_registers", "ijepa", "vit_msn")
"""Architectures whose vector is that of the class token; of others it is the pooled output."""


def input_of(found: ModelFiles) -> Preprocessing:
    """How pictures are prepared for a model."""
    return efficientnet.PREPROCESSING if found.kind == "efficientnet" else preprocessing_of(found)


def image_encoder(found: ModelFiles) -> Any:
    """The module of an embedding model: pixels to float[rows, dimensions]."""
    if found.kind == "efficientnet":
        return efficientnet.features(found)
    kind = str(found.config.get("model_type", ""))
    if kind in PAIRED:
        whole = _pair(found)
        whole.text_model = None  # not moved to the device
        return module_of(whole, lambda module, pixels: pooled(module.get_image_features(pixel_values=pixels)))
    if kind == "clip_vision_model":
        transformers = require("transformers", extra="models", purpose="running a model")
        whole = assemble(
            transformers.CLIPVisionModelWithProjection, load_config(found.folder), load_weights(found.weights), found.folder
        )  # fmt: skip
        return module_of(whole, lambda module, pixels: module(pixel_values=pixels).image_embeds)
    if kind in CLASS_TOKEN:
        whole = transformers_module(found.folder, "MODEL_MAPPING", unused="pooler")
        return module_of(whole, lambda module, pixels: module(pixel_values=pixels).last_hidden_state[:, 0])
    whole = transformers_module(found.folder, "MODEL_MAPPING")
    return module_of(whole, lambda module, pixels: pooled(module(pixel_values=pixels)).flatten(1))


def image_classifier(found: ModelFiles) -> Any:
    """The module of an image-classification folder: pixels to logits."""
    if found.kind == "efficientnet":
        return efficientnet.classes(found)
    whole = transformers_module(found.folder, "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING")
    return module_of(whole, lambda module, pixels: module(pixel_values=pixels).logits)


class ImagePair:
    """The two encoders of CLIP or SigLIP, which share one module."""

    def __init__(self, found: ModelFiles) -> None:
        self.whole = _pair(found)
        self.images = module_of(
            self.whole, lambda module, pixels: pooled(module.get_image_features(pixel_values=pixels))
        )
        self.max_tokens = int(self.whole.config.text_config.max_position_embeddings)
        self.pads = found.config.get("model_type") != "clip"
        """SigLIP was trained on texts that are padded to the full length, and reads the padding."""

    def texts(self, ids: Any, mask: Any) -> Any:
        """A vector for each text, float[rows, dimensions]."""
        found = self.whole.get_text_features(input_ids=ids, attention_mask=None if self.pads else mask)
        return pooled(found)


def _pair(found: ModelFiles) -> Any:
    kind = str(found.config.get("model_type", ""))
    if kind not in PAIRED:
        raise ModelError(
            f"{found.folder} is a model of type {kind or 'unknown'}, which does not compare pictures with texts",
            hint="use a folder of CLIP or SigLIP, with both encoders",
        )
    return transformers_module(found.folder, "MODEL_MAPPING")


def pooled(outputs: Any) -> Any:
    """The pooled output; transformers before version 5 returns it alone."""
    return getattr(outputs, "pooler_output", outputs)


def module_of(whole: Any, call: Any) -> Any:
    """A module that has `whole` as its part, and whose outputs are `call(whole, pixels)`."""
    torch = require("torch", extra="models", purpose="running a model")

    class Vision(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.whole = whole

        def forward(self, pixels: Any) -> Any:
            return call(self.whole, pixels)

    return Vision()
