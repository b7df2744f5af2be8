"""Captions of videos by a vision-language model: a local one, or one behind an OpenAI-compatible endpoint.

video -> windows of frames -> local model                                  -> caption -> (second pass) -> column
                           -> JPEG images in a chat message -> endpoint    -> caption -> (second pass) -> column
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tamis.batch import Batch, Column
from tamis.context import Context
from tamis.errors import ParameterError, TamisError
from tamis.image.files import encoded
from tamis.models.answers import Answer, Limit, default_folder
from tamis.models.captioning import CONTINUE, PROMPT, Captioner, captioning_model, find_captioner
from tamis.models.devices import Device, choose
from tamis.models.endpoint import (
    Endpoint,
    EndpointSettings,
    Question,
    check_cache,
    check_extra_body,
    check_url,
    read_key,
)
from tamis.models.files import with_files
from tamis.models.structured import AnswerError
from tamis.operators import Map, Resources, operator
from tamis.text.neural import network_resources
from tamis.video.decode import FramePolicy, Still, TrackStep, stills


@operator(reads="video")
class Caption(TrackStep, Map):
    """Add captions of each video, one per window of frames, by a vision-language model.

    Frames are taken `frames_per_s` times a second, at most `max_frames` per video, and described with `prompt`,
    `window_frames` at a time. A remainder of fewer than `min_window_frames` belongs to no window, unless it is the only one.
    The defaults are those of NeMo Curator. With a `second_prompt`, each caption is rewritten: the text has `{caption}` where
    the first one is put. Column `caption` has the captions joined by spaces, `caption_windows` each of them with its times.
    The captions of a row without video are null.

    Without `endpoint`, `model` is a folder of transformers with its weights, tokenizer and preprocessor_config.json, or a
    Hugging Face name in the local cache. Needs `tamis[video,image,models]`.

    BLIP                   looks at the middle frame of a window; a prompt is the begin of the caption
    GIT                    looks at as many frames as it was trained with; a prompt is the begin of the caption
    LLaVA, SmolVLM         frames are images in a conversation, 8 of a window unless `shown_frames` says otherwise
    SmolVLM2               frames are a video in a conversation, 64 of a window unless its folder or `shown_frames` says
                           otherwise; the times that it reads count from the begin of the window
    Qwen2-VL, Qwen2.5-VL   frames are a video in a conversation, all of a window unless `shown_frames` says otherwise

    `template` replaces the conversation that the model was trained with; it has `{frames}` and `{prompt}`. The most probable
    token is taken at each step. BLIP and GIT do not follow instructions, so they have no second pass.

    With `endpoint`, an OpenAI-compatible server (its address up to `/v1`) gets the frames as JPEG images; `model` is its name
    there. Requests are repeated, cached and limited as those of `Ask`.

        Caption("models/git-base-vatex", max_tokens=40)
    """

    path_parameters: ClassVar[frozenset[str]] = frozenset({"cache"})
    incidental: ClassVar[frozenset[str]] = frozenset(
        {"endpoint", "api_key_env", "concurrency", "timeout_s", "retries", "cache", "max_total_tokens", "device"}
    )
    cost = 3000.0

    model: str | Path | None = None
    prompt: str | None = None
    second_prompt: str | None = None
    endpoint: str | None = None
    frames_per_s: float = 2.0
    window_frames: int = 256
    min_window_frames: int = 128
    max_frames: int = 512
    side: int = 256
    quality: int = 85
    max_tokens: int = 512
    temperature: float | None = 0
    shown_frames: int | None = None
    template: str | None = None
    device: Device = "auto"
    extra_body: Mapping[str, Any] = field(default_factory=dict, hash=False)
    api_key_env: str | None = None
    concurrency: int = 16
    timeout_s: float = 300
    retries: int = 5
    cache: str | Path | None = "auto"
    max_total_tokens: int | None = None
    output: str = "caption"
    column: str = "video"

    def check(self) -> None:
        if min(self.window_frames, self.max_frames, self.max_tokens, self.concurrency) < 1 or not self.frames_per_s > 0:
            raise ParameterError(
                "`window_frames`, `max_frames`, `max_tokens`, `concurrency` are at least 1, `frames_per_s` positive"
            )
        if not 1 <= self.quality <= 100 or not 16 <= self.side <= 1024:
            raise ParameterError("`quality` is 1 to 100, `side` 16 to 1024")
        if self.second_prompt is not None and "{caption}" not in self.second_prompt:
            raise ParameterError("`second_prompt` does not contain {caption}", hint="'Shorten this caption: {caption}'")
        if self.endpoint is None:
            self._check_local()
            return
        check_url(self.endpoint, self.name)
        check_extra_body(self.extra_body, self.name)
        check_cache(self.cache, self.name)
        if self.cache is None and self.max_total_tokens is not None:
            raise ParameterError(f"`{self.name}` needs a `cache` to keep a budget")
        read_key(self.api_key_env)

    def _check_local(self) -> None:
        if self.model is None:
            raise ParameterError(
                f"`{self.name}` needs a `model` or an `endpoint`",
                hint="Caption('models/git-base-vatex'), or Caption(endpoint='http://127.0.0.1:8000/v1')",
            )
        if self.temperature not in (None, 0) or self.extra_body:
            raise ParameterError(
                "a local model takes the most probable token: `temperature` is 0, and `extra_body` empty"
            )
        if self.shown_frames is not None and self.shown_frames < 1:
            raise ParameterError("`shown_frames` must be at least 1")
        if self.template is not None and not ("{frames}" in self.template and "{prompt}" in self.template):
            raise ParameterError("`template` does not contain {frames} and {prompt}")
        found = find_captioner(self.model)
        kind = str(found.config["model_type"])
        if self.second_prompt is not None and kind in CONTINUE:
            raise ParameterError(f"{self.model} does not follow instructions, so it has no `second_prompt`")
        choose(self.device)

    def identity(self) -> dict[str, Any]:
        if self.endpoint is None and self.model is not None:
            return with_files(super().identity(), find_captioner(self.model))
        return super().identity()

    @property
    def resources(self) -> Resources:
        if self.endpoint is not None or self.model is None:
            return Resources(memory="64MB")
        try:
            return network_resources(find_captioner(self.model), self.device, captioning_model)
        except TamisError:
            return Resources()

    @property
    def row_bytes(self) -> int:
        return 512_000 * max(1, self.side // 256) ** 2 * self.max_frames // 4

    def writes(self) -> tuple[str, ...]:
        return (self.output, f"{self.output}_windows")

    def open(self, context: Context) -> _Captions:
        if self.endpoint is None:
            assert self.model is not None
            found = find_captioner(self.model)
            model = Captioner(
                found, context, max_new_tokens=self.max_tokens, frames_per_s=self.frames_per_s,
                shown_frames=self.shown_frames, template=self.template,
            )  # fmt: skip
            return _LocalCaptions(self, model)
        name = None if self.model is None else str(self.model)
        settings = EndpointSettings(
            self.endpoint, name, "chat", self.api_key_env, self.concurrency, self.timeout_s, self.retries, 1.0,
            Limit(self.max_total_tokens, None), 0, 0,
        )  # fmt: skip
        folder = None if self.cache is None else default_folder() if self.cache == "auto" else Path(self.cache)
        scope = json.dumps([context.run, self.measuring_identity()], sort_keys=True, default=str)
        return _EndpointCaptions(self, Endpoint(settings, folder.expanduser() if folder else None, scope))


class _Captions:
    """Divides videos into windows and puts their captions into columns."""

    def __init__(self, step: Caption) -> None:
        self._step = step

    def captions(self, windows: list[list[Still]]) -> list[str]:
        raise NotImplementedError

    def rewritten(self, texts: list[str]) -> list[str]:
        raise NotImplementedError

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        step = self._step
        policy = FramePolicy("every", 1 / step.frames_per_s, 1, step.max_frames)
        windows: list[tuple[int, list[Still]]] = []
        found = stills(batch, "video", policy, step.side)
        for row, shown in enumerate(found):
            windows += [(row, part) for part in self._windows(shown or [])]
        captions = self.captions([part for _, part in windows]) if windows else []
        if step.second_prompt is not None and captions:
            captions = self.rewritten([step.second_prompt.replace("{caption}", caption) for caption in captions])
        listed: list[list[dict[str, Any]] | None] = [None if shown is None else [] for shown in found]
        for (row, part), caption in zip(windows, captions, strict=True):
            into = listed[row]
            assert into is not None
            into.append({"begin": part[0].time, "end": part[-1].time, "text": caption})
        kind = pa.list_(pa.struct([("begin", pa.float64()), ("end", pa.float64()), ("text", pa.string())]))
        joined = [None if each is None else " ".join(part["text"] for part in each) for each in listed]
        return {step.output: pa.array(joined, pa.string()), f"{step.output}_windows": pa.array(listed, kind)}

    def _windows(self, shown: list[Still]) -> list[list[Still]]:
        size = self._step.window_frames
        parts = [shown[first : first + size] for first in range(0, len(shown), size)]
        if len(parts) > 1 and len(parts[-1]) < self._step.min_window_frames:
            parts.pop()
        return parts


class _LocalCaptions(_Captions):
    def __init__(self, step: Caption, model: Captioner) -> None:
        super().__init__(step)
        self._model = model

    def captions(self, windows: list[list[Still]]) -> list[str]:
        return self._model.captions([[still.pixels for still in part] for part in windows], self._step.prompt)

    def rewritten(self, texts: list[str]) -> list[str]:
        return self._model.rewritten(texts)


class _EndpointCaptions(_Captions):
    def __init__(self, step: Caption, endpoint: Endpoint) -> None:
        super().__init__(step)
        self._endpoint = endpoint
        self.take_counts, self.close = endpoint.take_counts, endpoint.close

    def captions(self, windows: list[list[Still]]) -> list[str]:
        return self._asked([self._question(part) for part in windows])

    def rewritten(self, texts: list[str]) -> list[str]:
        return self._asked([self._body([{"type": "text", "text": text}]) for text in texts])

    def _question(self, shown: list[Still]) -> Question:
        content: list[dict[str, Any]] = [{"type": "text", "text": self._step.prompt or PROMPT}]
        for still in shown:
            data = base64.b64encode(encoded(still.pixels, "JPEG", self._step.quality)).decode()
            content.append({"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{data}"}})
        return self._body(content)

    def _body(self, content: list[dict[str, Any]]) -> Question:
        step = self._step
        body: dict[str, Any] = {"messages": [{"role": "user", "content": content}], "max_tokens": step.max_tokens}
        if step.temperature is not None:
            body["temperature"] = step.temperature
        return Question({**body, **step.extra_body}, step.max_tokens, None)

    def _asked(self, questions: list[Question]) -> list[str]:
        answers = self._endpoint.answers(questions, _text)
        return [_text(answer) for answer in answers]


def _text(found: Answer | AnswerError) -> str:
    if isinstance(found, AnswerError):
        raise AnswerError(found.message)
    text = found.text.strip()
    if not text:
        raise AnswerError("the caption is empty")
    return text
