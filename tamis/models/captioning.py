"""Local vision-language models: several frames, and perhaps a prompt, become a text.

    BLIP                  one frame; a prompt is the begin of the caption
    GIT                   as many frames as the model was trained with; a prompt is the begin of the caption
    LLaVA                 frames as images in a conversation
    SmolVLM               frames as images in a conversation, each stretched to a square
    SmolVLM2              frames as a video in a conversation, each with its time, stretched to a square
    Qwen2-VL, Qwen2.5-VL  frames as a video in a conversation, in their shape

The modules and weights are those of transformers' folders. Frames are prepared here, since the video processors of
transformers need torchvision. The most probable token is taken at each step, as transformers' `generate` does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from tamis.context import Context
from tamis.errors import is_shortage, require
from tamis.models.devices import open_torch, release_cached
from tamis.models.files import PREPROCESSOR_FILES, TOKENIZER_FILES, ModelError, ModelFiles, find
from tamis.models.network import only_errors, transformers_module
from tamis.models.pixels import (
    BICUBIC,
    CLIP_MEAN,
    CLIP_STD,
    HALF,
    LANCZOS,
    Preprocessing,
    preprocessing_of,
    resize,
    settings_of,
)
from tamis.models.text_model import RUNTIME, key_of
from tamis.models.tokens import TextTokenizer, load_tokenizer

PROMPT = "Describe this video in detail."

TEMPLATES = {
    "llava": "USER: {frames}\n{prompt} ASSISTANT:",
    "idefics3": "<|im_start|>User:{frames}{prompt}<end_of_utterance>\nAssistant:",
    "smolvlm": "<|im_start|>User: {frames}{prompt}<end_of_utterance>\nAssistant:",
    "qwen2_vl": "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
    "<|vision_start|>{frames}<|vision_end|>{prompt}<|im_end|>\n<|im_start|>assistant\n",
}
TEMPLATES["qwen2_5_vl"] = TEMPLATES["qwen2_vl"]
"""How these models were trained to see a conversation; {frames} is where the tokens of the frames are put."""

WITHOUT_FRAMES = {
    "<|vision_start|>{frames}<|vision_end|>": "",
    "{frames}\n": "",
    "User:{frames}": "User: ",
    "{frames}": "",
}
"""What becomes of {frames} in a conversation without them."""

SERIES = "You are provided the following series of {count} frames from a {duration} [H:MM:SS] video.\n{frames}\n\n"
"""How SmolVLM2 was trained to see a video."""

CONTINUE = ("blip", "git")
"""Models that continue a text rather than answer a question."""

IMAGE_FRAMES = 8
"""Frames of a window that LLaVA and SmolVLM get: each takes up to 576 tokens, and the models were trained with few images."""

SERIES_FRAMES = 64
"""Frames of a window that SmolVLM2 gets, unless its folder says otherwise."""

GPU_WINDOWS = 8
"""Windows that a GPU gets at a time."""


def find_captioner(model: str | Path) -> ModelFiles:
    """The files of a vision-language model, of an architecture that is supported."""
    found = find(model, (TOKENIZER_FILES, PREPROCESSOR_FILES), {})
    kind = str(found.config.get("model_type", ""))
    if found.kind != "transformers" or kind not in (*CONTINUE, *TEMPLATES):
        raise ModelError(
            f"{model} is a model of type {kind or 'unknown'}, which cannot write captions here",
            hint="supported are folders of BLIP, GIT, LLaVA, SmolVLM, SmolVLM2, Qwen2-VL and Qwen2.5-VL; "
            "other models can be run by a server, with `endpoint`",
        )
    return found


def captioning_model(folder: Path, config: dict[str, Any]) -> Any:
    """The module of a vision-language folder."""
    return transformers_module(folder, "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING", unused="pooler")


@dataclass
class _Loaded:
    """A module, its tokenizer and the preparation of its frames, shared by the steps of a worker."""

    module: Any
    tokenizer: TextTokenizer

    def close(self) -> None:
        self.module = None


class Captioner:
    """Writes captions. A window of frames gives the same text whatever others it is processed with, up to rounding."""

    def __init__(
        self,
        found: ModelFiles,
        context: Context,
        *,
        max_new_tokens: int,
        frames_per_s: float,
        shown_frames: int | None = None,
        template: str | None = None,
    ) -> None:
        self._torch = context.shared(RUNTIME, lambda: open_torch(context))
        self._loaded: _Loaded = context.shared(key_of(found, captioning_model), lambda: _load(found, context))
        self._kind = str(found.config["model_type"])
        self._config, self._device = found.config, context.device
        self._max_new_tokens, self._frames_per_s = max_new_tokens, frames_per_s
        self._template = template or TEMPLATES.get(self._kind, "")
        self._shown = _frames_of(self._kind, found, shown_frames)
        self._input: Preprocessing | _Patches | _Squares = (
            _patches_of(found)
            if self._kind.startswith("qwen")
            else _squares_of(found)
            if self._kind in ("idefics3", "smolvlm")
            else preprocessing_of(found)
        )
        self._batch = 1 if context.device == "cpu" else GPU_WINDOWS
        ends = found.json("generation_config.json").get("eos_token_id")
        if ends is None:
            ends = (found.config.get("text_config") or {}).get("eos_token_id", found.config.get("eos_token_id"))
        self._ends = [ends] if isinstance(ends, int) else [end for end in ends or () if isinstance(end, int)]

    def _looked_at(self, count: int) -> list[int]:
        """Which frames of a window the model looks at, at equal distances, or some of them twice if it needs more."""
        if self._shown is None or (count <= self._shown and self._kind not in CONTINUE):
            return list(range(count))
        return [(2 * place + 1) * count // (2 * self._shown) for place in range(self._shown)]

    def captions(self, windows: Sequence[Sequence[np.ndarray]], prompt: str | None) -> list[str]:
        """A caption for each window of frames uint8[height, width, 3]."""
        found: list[str] = []
        ready: list[_Inputs] = []  # of the next windows: those of a model that sees 64 frames take 100 MB each
        while len(found) < len(windows):
            first = len(found) + len(ready)
            ready += [self._prepared(each, prompt) for each in windows[first : len(found) + self._batch]]
            together = next((n for n, each in enumerate(ready) if not _alike(ready[0], each)), len(ready))
            together = min(together, self._batch)
            try:
                found += self._generated(ready[:together])
            except Exception as error:
                if not is_shortage(error) or together == 1:
                    raise
                error.__traceback__ = None  # its frames hold the memory
                release_cached()
                self._batch = -(-together // 2)
                continue
            del ready[:together]
        return found

    def rewritten(self, texts: Sequence[str]) -> list[str]:
        """What the model answers to texts without frames."""
        if self._kind in CONTINUE:
            raise ModelError(
                f"a model of type {self._kind} cannot rewrite captions", hint="use a model that follows instructions"
            )
        template = self._template
        for mark, instead in WITHOUT_FRAMES.items():
            template = template.replace(mark, instead)
        found = []
        for text in texts:
            ids = self._loaded.tokenizer.prompts([template.replace("{prompt}", text)])[0]
            found += self._generated([_Inputs(np.array(ids, np.int64), {})])
        return found

    def _prepared(self, window: Sequence[np.ndarray], prompt: str | None) -> _Inputs:
        places = self._looked_at(len(window))
        frames = [window[place] for place in places]
        if isinstance(self._input, _Patches):
            patches, grid = self._input.of(frames)
            count = math.prod(grid) // self._input.merge**2
            ids = self._conversation(prompt, int(self._config.get("video_token_id", 151656)), count, "{frame}")
            return _Inputs(ids, {"pixel_values_videos": patches, "video_grid_thw": np.array([grid], np.int64)})
        if isinstance(self._input, _Squares):
            pixels = np.stack([self._input.of(frame) for frame in frames])[None]
            shown = (
                frame_series(places, len(window), self._frames_per_s)
                if self._kind == "smolvlm"
                else _MARKED * len(frames)
            )
            ids = self._conversation(prompt, int(self._config["image_token_id"]), self._input.tokens, shown)
            return _Inputs(ids, {"pixel_values": pixels})
        scale, shift = self._input.factors()
        pixels = np.stack([self._input.resized(frame) * scale + shift for frame in frames]).transpose(0, 3, 1, 2)
        if self._kind == "llava":
            token = self._config.get("image_token_id", self._config.get("image_token_index", 32000))
            ids = self._conversation(prompt, int(token), self._tokens_per_frame(), "{frame}" * len(frames))
        else:
            tokenizer = self._loaded.tokenizer
            ids = np.array(tokenizer.prompts([prompt or ""])[0], np.int64)
            if self._kind == "blip":
                ids = np.append(ids, tokenizer.suffix[:1] or [0])  # `generate` removes the last one
            elif self._config.get("num_image_with_embedding"):
                pixels = pixels[None]
        return _Inputs(ids, {"pixel_values": pixels})

    def _conversation(self, prompt: str | None, token: int, count: int, shown: str) -> np.ndarray:
        """Token ids in which `count` copies of `token` stand for each {frame} of the text that shows frames."""
        tokenizer = self._loaded.tokenizer
        name = tokenizer.token(token)
        if name is None:
            raise ModelError(f"the tokenizer has no token {token}, which stands for a frame")
        text = self._template.replace("{frames}", shown.replace("{frame}", name)).replace("{prompt}", prompt or PROMPT)
        ids = np.array(tokenizer.prompts([text])[0], np.int64)
        if int((ids == token).sum()) != shown.count("{frame}"):
            raise ModelError(
                "the tokenizer does not keep the marks of frames", hint="tokenizer.json must be of the same model"
            )
        return np.repeat(ids, np.where(ids == token, count, 1))

    def _tokens_per_frame(self) -> int:
        assert isinstance(self._input, Preprocessing)
        vision = self._config.get("vision_config") or {}
        patch = int(vision.get("patch_size", 14))
        more = 1 if vision.get("model_type", "clip_vision_model") == "clip_vision_model" else 0
        less = 1 if self._config.get("vision_feature_select_strategy", "default") == "default" else 0
        return (self._input.height // patch) * (self._input.width // patch) + more - less

    def _generated(self, given: Sequence[_Inputs]) -> list[str]:
        torch = self._torch
        kind = torch.bfloat16 if self._device != "cpu" else torch.float32
        ids = torch.from_numpy(np.stack([each.ids for each in given])).to(self._device)
        inputs = {
            name: torch.from_numpy(np.concatenate([each.arrays[name] for each in given])) for name in given[0].arrays
        }
        inputs = {
            name: (each.to(kind) if each.is_floating_point() else each).to(self._device)
            for name, each in inputs.items()
        }
        if "video_grid_thw" in inputs:
            inputs["mm_token_type_ids"] = 2 * (ids == int(self._config.get("video_token_id", 151656))).long()
            if self._kind == "qwen2_5_vl":
                assert isinstance(self._input, _Patches)
                seconds = self._input.temporal / self._frames_per_s
                inputs["second_per_grid_ts"] = torch.full((len(given),), seconds, device=self._device)
        settings: dict[str, Any] = {"do_sample": False, "num_beams": 1, "max_new_tokens": self._max_new_tokens}
        if self._ends and self._kind != "blip":
            settings |= {"eos_token_id": self._ends, "pad_token_id": self._ends[0]}
        with torch.inference_mode(), only_errors():
            made = self._loaded.module.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), **inputs, **settings
            ).tolist()
        begin = 0 if self._kind in CONTINUE else ids.shape[1]
        return [self._loaded.tokenizer.text(row[begin:]).strip() for row in made]


@dataclass(frozen=True)
class _Inputs:
    ids: np.ndarray
    arrays: dict[str, np.ndarray]


def _alike(one: _Inputs, other: _Inputs) -> bool:
    """Whether two windows can be processed together without padding."""
    return one.ids.shape == other.ids.shape and all(
        one.arrays[name].shape == other.arrays[name].shape for name in one.arrays
    )


def _frames_of(kind: str, found: ModelFiles, chosen: int | None) -> int | None:
    """How many frames of a window a model gets; None for all."""
    if kind == "blip":
        return 1
    if kind == "git":
        return int(found.config.get("num_image_with_embedding") or 1)
    if kind == "smolvlm":
        return chosen or int((settings_of(found).get("video_sampling") or {}).get("max_frames") or SERIES_FRAMES)
    return chosen or (IMAGE_FRAMES if kind in ("llava", "idefics3") else None)


def _load(found: ModelFiles, context: Context) -> _Loaded:
    torch = open_torch(context)
    tokenizer = load_tokenizer(found)
    module = captioning_model(found.folder, found.config)
    if context.device != "cpu":
        module = module.to(context.device, torch.bfloat16)
    return _Loaded(module.eval(), tokenizer)


@dataclass(frozen=True)
class _Patches:
    """How Qwen2-VL cuts frames into patches: in their shape, two frames at a time, four neighbours after another."""

    patch: int
    temporal: int
    merge: int
    min_pixels: int
    max_pixels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def of(self, frames: Sequence[np.ndarray]) -> tuple[np.ndarray, tuple[int, int, int]]:
        """(float32[patches, values], (times, rows, columns) of the patches) of frames of the same size."""
        height, width = self._size(*frames[0].shape[:2])
        resized = [
            resize(frame, (height, width), BICUBIC) if frame.shape[:2] != (height, width) else frame for frame in frames
        ]
        resized += resized[-1:] * (-len(resized) % self.temporal)
        mean, std = np.array(self.mean, np.float32), np.array(self.std, np.float32)
        values = ((np.stack(resized).astype(np.float32) / 255 - mean) / std).transpose(0, 3, 1, 2)
        grid = len(resized) // self.temporal, height // self.patch, width // self.patch
        parts = values.reshape(
            grid[0], self.temporal, 3,
            grid[1] // self.merge, self.merge, self.patch,
            grid[2] // self.merge, self.merge, self.patch,
        ).transpose(0, 3, 6, 4, 7, 2, 1, 5, 8)  # fmt: skip
        return np.ascontiguousarray(parts).reshape(math.prod(grid), -1), grid

    def _size(self, height: int, width: int) -> tuple[int, int]:
        """The height and width that a frame gets: multiples of the size of a token, with a number of pixels in the bounds."""
        unit = self.patch * self.merge
        sides = [max(unit, round(side / unit) * unit) for side in (height, width)]
        if math.prod(sides) > self.max_pixels:
            factor = math.sqrt(height * width / self.max_pixels)
            sides = [max(unit, math.floor(side / factor / unit) * unit) for side in (height, width)]
        elif math.prod(sides) < self.min_pixels:
            factor = math.sqrt(self.min_pixels / (height * width))
            sides = [math.ceil(side * factor / unit) * unit for side in (height, width)]
        return sides[0], sides[1]


def _patches_of(found: ModelFiles) -> _Patches:
    require("PIL.Image", extra="image", purpose="resizing frames")
    settings = {**settings_of(found), **found.json("video_preprocessor_config.json")}
    size = settings.get("size") or {}
    vision = found.config.get("vision_config") or {}
    get = lambda name, value: settings.get(name) or vision.get(name) or value  # noqa: E731
    try:
        return _Patches(
            int(get("patch_size", 14)),
            int(get("temporal_patch_size", 2)),
            int(settings.get("merge_size") or vision.get("spatial_merge_size") or 2),
            int(settings.get("min_pixels") or size.get("shortest_edge") or 128 * 28 * 28),
            int(settings.get("max_pixels") or size.get("longest_edge") or 768 * 28 * 28),
            tuple(settings.get("image_mean") or CLIP_MEAN),
            tuple(settings.get("image_std") or CLIP_STD),
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"the preprocessor_config.json of {found.folder} cannot be used: {error!r}") from error


# ---------------------------------------------------------------------------------------------------------------- SmolVLM

_MARKED = "<fake_token_around_image><global-img>{frame}<fake_token_around_image>"
"""A frame between the tokens that SmolVLM has around an image that is not split."""


def frame_series(places: Sequence[int], count: int, frames_per_s: float) -> str:
    """What SmolVLM2 reads about a window of `count` frames: how many it sees, their times, and {frame} for each."""
    times = [int(place / frames_per_s) for place in places]
    shown = "".join(f"\nFrame from {time // 60:02d}:{time % 60:02d}:{_MARKED}" for time in times)
    duration = str(timedelta(seconds=int(count / frames_per_s)))
    return SERIES.format(count=_in_words(len(times)), duration=duration, frames=shown)


@dataclass(frozen=True)
class _Squares:
    """How SmolVLM prepares a frame: its long side gets a length, then the frame is stretched to a square."""

    long: int
    side: int
    tokens: int
    """Per frame."""
    resample: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def of(self, frame: np.ndarray) -> np.ndarray:
        """float32[3, side, side]"""
        height, width = frame.shape[:2]
        ratio = width / height
        short = int(self.long / ratio) if width >= height else int(self.long * ratio)
        short = max(1, short + short % 2)  # as transformers does
        size = (short, self.long) if width >= height else (self.long, short)
        frame = resize(resize(frame, size, self.resample), (self.side, self.side), self.resample)
        values = (frame.astype(np.float32) / 255 - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        return values.transpose(2, 0, 1)


def _squares_of(found: ModelFiles) -> _Squares:
    require("PIL.Image", extra="image", purpose="resizing frames")
    settings = {**settings_of(found), **found.json("video_preprocessor_config.json")}
    sampling = settings.get("video_sampling") or {}
    vision = found.config.get("vision_config") or {}
    try:
        side = int((settings.get("max_image_size") or {})["longest_edge"])
        long = int((sampling.get("video_size") or settings.get("size") or {}).get("longest_edge") or 4 * side)
        patches = side // int(vision.get("patch_size", 32))
        return _Squares(
            min(long, 4096),
            side,
            patches**2 // int(found.config.get("scale_factor", 2)) ** 2,
            int(settings.get("resample", LANCZOS)),
            tuple(settings.get("image_mean") or HALF),
            tuple(settings.get("image_std") or HALF),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"the preprocessor_config.json of {found.folder} cannot be used: {error!r}") from error


_SMALL = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def _in_words(number: int) -> str:
    """A number as SmolVLM2 reads it; digits from a thousand on."""
    if number < 20:
        return _SMALL[number]
    if number < 100:
        return _TENS[number // 10 - 2] + (f"-{_SMALL[number % 10]}" if number % 10 else "")
    if number < 1000:
        return f"{_SMALL[number // 100]} hundred" + (f" and {_in_words(number % 100)}" if number % 100 else "")
    return str(number)
