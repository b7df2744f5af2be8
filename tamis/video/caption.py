"""Captions of videos by a vision-language model behind an OpenAI-compatible endpoint.

video -> windows of frames -> JPEG images in a chat message -> caption -> (second pass: a request to rewrite it) -> column
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
from tamis.errors import ParameterError
from tamis.image.files import encoded
from tamis.models.answers import Answer, Limit, default_folder
from tamis.models.endpoint import Endpoint, EndpointSettings, Question, check_url, read_key
from tamis.models.structured import AnswerError
from tamis.operators import Map, Resources, operator
from tamis.video.decode import FramePolicy, Still, TrackStep, stills


@operator(reads="video")
class Caption(TrackStep, Map):
    """Add captions of each video, one per window of frames, by a vision-language model behind an endpoint.

    Frames are taken `frames_per_s` times a second and sent as JPEG images with `prompt`, `window_frames` at a time, to an
    OpenAI-compatible server (`endpoint` up to `/v1`). A remainder of fewer than `min_window_frames` belongs to no
    window, unless it
    is the only one. With a `second_prompt`, each caption is rewritten: the text has `{caption}` where the first one is
    put. Column
    `caption` has the captions joined by spaces, `caption_windows` each of them with its times. The defaults of frames
    are those of
    NeMo Curator, at most `max_frames` per video. Requests are repeated, cached and limited as those of `Ask`. The
    captions of a
    row without video are null.
    """

    path_parameters: ClassVar[frozenset[str]] = frozenset({"cache"})
    incidental: ClassVar[frozenset[str]] = frozenset(
        {"endpoint", "api_key_env", "concurrency", "timeout_s", "retries", "cache", "max_total_tokens"}
    )
    cost = 3000.0
    declared_resources = Resources(memory="64MB")

    prompt: str = "Describe this video in detail."
    second_prompt: str | None = None
    endpoint: str = "http://127.0.0.1:8000/v1"
    model: str | None = None
    frames_per_s: float = 2.0
    window_frames: int = 256
    min_window_frames: int = 128
    max_frames: int = 512
    side: int = 256
    quality: int = 85
    max_tokens: int = 512
    temperature: float | None = 0
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
        check_url(self.endpoint, self.name)
        if min(self.window_frames, self.max_frames, self.max_tokens, self.concurrency) < 1 or not self.frames_per_s > 0:
            raise ParameterError(
                "`window_frames`, `max_frames`, `max_tokens`, `concurrency` are at least 1, `frames_per_s` positive"
            )
        if not 1 <= self.quality <= 100 or not 16 <= self.side <= 1024:
            raise ParameterError("`quality` is 1 to 100, `side` 16 to 1024")
        if self.second_prompt is not None and "{caption}" not in self.second_prompt:
            raise ParameterError("`second_prompt` does not contain {caption}", hint="'Shorten this caption: {caption}'")
        if self.cache is None and self.max_total_tokens is not None:
            raise ParameterError(f"`{self.name}` needs a `cache` to keep a budget")
        read_key(self.api_key_env)

    @property
    def row_bytes(self) -> int:
        return 512_000 * max(1, self.side // 256) ** 2 * self.max_frames // 4

    def writes(self) -> tuple[str, ...]:
        return (self.output, f"{self.output}_windows")

    def open(self, context: Context) -> _Captioner:
        settings = EndpointSettings(
            self.endpoint, self.model, "chat", self.api_key_env, self.concurrency, self.timeout_s, self.retries, 1.0,
            Limit(self.max_total_tokens, None), 0, 0,
        )  # fmt: skip
        folder = None if self.cache is None else default_folder() if self.cache == "auto" else Path(self.cache)
        scope = json.dumps([context.run, self.measuring_identity()], sort_keys=True, default=str)
        return _Captioner(self, Endpoint(settings, folder.expanduser() if folder else None, scope))


class _Captioner:
    def __init__(self, step: Caption, endpoint: Endpoint) -> None:
        self._step, self._endpoint = step, endpoint
        self.take_counts, self.close = endpoint.take_counts, endpoint.close

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        step = self._step
        policy = FramePolicy("every", 1 / step.frames_per_s, 1, step.max_frames)
        windows: list[tuple[int, list[Still]]] = []
        found = stills(batch, "video", policy, step.side)
        for row, shown in enumerate(found):
            windows += [(row, part) for part in self._windows(shown or [])]
        captions = self._asked([self._question(part) for _, part in windows])
        if step.second_prompt is not None:
            texts = [step.second_prompt.replace("{caption}", caption) for caption in captions]
            captions = self._asked([self._body([{"type": "text", "text": text}]) for text in texts])
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

    def _question(self, shown: list[Still]) -> Question:
        content: list[dict[str, Any]] = [{"type": "text", "text": self._step.prompt}]
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
        answers = self._endpoint.answers(questions, _text) if questions else []
        return [_text(answer) for answer in answers]


def _text(found: Answer | AnswerError) -> str:
    if isinstance(found, AnswerError):
        raise AnswerError(found.message)
    text = found.text.strip()
    if not text:
        raise AnswerError("the caption is empty")
    return text
