"""Networks on clips of video, built from folders of transformers: several frames become one vector.

    VideoMAE, V-JEPA 2      the mean of all tokens
    TimeSformer, ViViT      the class token
    X-CLIP                  the vector that is compared with those of texts

Each module takes normalized pixels, float[rows, frames, 3, height, width].
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tamis.models.files import ModelError, ModelFiles
from tamis.models.network import transformers_module
from tamis.models.pixels import BILINEAR, HALF, Preprocessing, of_processor, settings_of
from tamis.models.vision import module_of, pooled

CLIP_PREPROCESSOR_FILES = ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json")

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

_DEFAULTS: dict[str, dict[str, Any]] = {
    "videomae": {"size": {"shortest_edge": 224}, "crop_size": 224, "image_mean": HALF, "image_std": HALF},
    "timesformer": {
        "size": {"shortest_edge": 224}, "crop_size": 224, "image_mean": IMAGENET_MEAN, "image_std": IMAGENET_STD,
    },
    "vivit": {
        "size": {"shortest_edge": 256}, "crop_size": 224, "rescale_factor": 1 / 127.5, "image_mean": HALF, "image_std": HALF,
    },
    "xclip": {"size": {"shortest_edge": 224}, "crop_size": 224, "image_mean": IMAGENET_MEAN, "image_std": IMAGENET_STD},
    "vjepa2": {
        "size": {"shortest_edge": 292}, "crop_size": 256, "image_mean": IMAGENET_MEAN, "image_std": IMAGENET_STD,
    },
}  # fmt: skip
"""What the processors of these models do if their file does not say (transformers 5)."""

SUPPORTED = ("VideoMAE", "TimeSformer", "ViViT", "X-CLIP", "V-JEPA 2")


def clip_input(found: ModelFiles) -> Preprocessing:
    """How many frames a network looks at, and how they are prepared."""
    kind = _kind(found)
    settings = found.json("video_preprocessor_config.json") or settings_of(found)
    settings = {name: value for name, value in settings.items() if not name.endswith("_type")}
    settings = {"do_center_crop": True, "resample": BILINEAR, **_DEFAULTS[kind], **settings}
    prepared = of_processor({**settings, "image_processor_type": "CLIPImageProcessor"}, found)
    offset = kind == "vivit" and settings.get("do_rescale", True) and settings.get("offset", True)
    return dataclasses.replace(prepared, frames=_num_frames(found, kind), shift=-1.0 if offset else 0.0)


def _num_frames(found: ModelFiles, kind: str) -> int:
    config = found.config
    defaults = {"videomae": 16, "timesformer": 8, "vivit": 32, "xclip": 8, "vjepa2": 64}
    if kind == "xclip":
        config = config.get("vision_config") or {}
    number = config.get("frames_per_clip" if kind == "vjepa2" else "num_frames", defaults[kind])
    if not isinstance(number, int) or not 1 <= number <= 1024:
        raise ModelError(f"the config.json of {found.folder} says that a clip has {number} frames")
    return number


def _kind(found: ModelFiles) -> str:
    kind = str(found.config.get("model_type", ""))
    if kind not in _DEFAULTS:
        raise ModelError(
            f"{found.folder} is a model of type {kind or 'unknown'}, which does not look at clips",
            hint=f"use a folder of {', '.join(SUPPORTED)}; for models on images, use `frame_columns` with `image_embed`",
        )
    return kind


def clip_encoder(found: ModelFiles) -> Any:
    """The module of an embedding model: pixels of clips to float[rows, dimensions]."""
    kind = _kind(found)
    whole = transformers_module(found.folder, "MODEL_MAPPING", unused="pooler")
    if kind == "xclip":
        return module_of(whole, lambda module, pixels: pooled(module.get_video_features(pixel_values=pixels)))
    if kind == "vjepa2":
        whole.predictor = None  # predicts parts of a clip that are hidden, for training
        return module_of(
            whole,
            lambda module, pixels: module(pixel_values_videos=pixels, skip_predictor=True).last_hidden_state.mean(
                dim=1
            ),
        )
    if kind == "videomae":
        return module_of(whole, lambda module, pixels: module(pixel_values=pixels).last_hidden_state.mean(dim=1))
    return module_of(whole, lambda module, pixels: module(pixel_values=pixels).last_hidden_state[:, 0])
