"""Applies operators on images to frames of videos, and reduces what they find to one value per video.

    video -> stills by a policy -> any operator on images -> min, mean or max of its scores, or the share of frames it keeps

Frames reach the operator as pictures, in the size that it needs, without being encoded. Only operators that read files
themselves get each frame as a PNG file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tamis.batch import Batch, Column, Origin, as_array
from tamis.context import Context
from tamis.errors import ParameterError
from tamis.image.decode import ROW_BYTES, TIERS, PictureStep
from tamis.image.files import Header as ImageHeader
from tamis.image.files import encoded
from tamis.image.neural import NetworkStep
from tamis.operators import Filter, Map, Operator, Resources, Rule, Scores, at_least, operator
from tamis.registry import build_operator
from tamis.video.decode import FramePolicy, Still, TrackStep, stills

Reduction = Literal["min", "mean", "max", "share"]
Choice = Literal["every", "number", "middle", "keys"]

READ_FILES = frozenset({"image_blockiness", "blur_faces"})
"""Operators on pictures that also read the files."""

READ_HEADERS = frozenset({"image_aspect", "image_pixels", "image_size"})
"""Operators that read nothing but the size of an image; for a frame it is that of the video."""


class FrameStep(TrackStep):
    """Shared by steps that apply an operator on images to frames."""

    step: Mapping[str, Any]
    frames: Choice
    every_s: float
    number: int
    max_frames: int
    column: str

    @property
    def inner(self) -> Operator:
        """The operator on images."""
        if len(self.step) != 1:
            raise ParameterError("`step` names one operator on images", hint="- frame_filter: {step: {nsfw: {}}}")
        name, parameters = next(iter(self.step.items()))
        return build_operator(name, parameters or {})

    @property
    def policy(self) -> FramePolicy:
        return FramePolicy(self.frames, self.every_s, self.number, self.max_frames)

    def _check(self, kind: type[Operator], word: str) -> None:
        self.policy.check()
        inner = self.inner
        if not isinstance(inner, kind) or inner.real_names() != {"image": "image"}:
            raise ParameterError(f"`{inner.name}` is not a {word} on images, which `{self.name}` needs")
        inner.check()

    @property
    def resources(self) -> Resources:
        return self.inner.resources

    @property
    def side(self) -> int:
        """The size of the pictures that the operator uses; it declares their memory."""
        factor = max(1, round((self.inner.row_bytes / ROW_BYTES) ** 0.5))
        return next((tier for tier in TIERS if tier >= TIERS[0] * factor), TIERS[-1])

    @property
    def row_bytes(self) -> int:
        number = {"number": self.number, "middle": 1}.get(self.frames, self.max_frames)
        return ROW_BYTES * (self.side // TIERS[0]) ** 2 * min(number, self.max_frames)

    def images(self, batch: Batch) -> tuple[Batch, np.ndarray]:
        """The frames of all videos as a batch of images, and the row that each came from."""
        found = stills(batch, "video", self.policy, self.side)
        shown = [still for each in found if each is not None for still in each]
        rows = np.repeat(np.arange(len(found)), [0 if each is None else len(each) for each in found])
        return as_images(shown, _reads_files(self.inner), self.side), rows


def _reads_files(inner: Operator) -> bool:
    """Whether an operator needs files of the frames, because it uses more than pictures of one size."""
    if inner.name in READ_HEADERS:
        return False
    all_pixels = getattr(inner, "side", 0) is None or getattr(inner, "exact", False)
    return not isinstance(inner, (PictureStep, NetworkStep)) or inner.name in READ_FILES or all_pixels


def as_images(shown: list[Still], files: bool, side: int) -> Batch:
    """Frames as rows of images, which are decoded already."""
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    data = [encoded(still.pixels, "PNG") if files else b"" for still in shown]
    values = [{"bytes": each, "path": f"{still.time:.3f}.png"} for each, still in zip(data, shown, strict=True)]
    batch = Batch(pa.table({"image": pa.array(values, kind)}), Origin.of("frames", np.arange(len(shown))))
    if not files:
        pictures, headers = np.empty(len(shown), object), np.empty(len(shown), object)
        for row, still in enumerate(shown):
            pictures[row] = still.pixels
            headers[row] = ImageHeader("PNG", "RGB", *still.size, 1, 0)
        batch.memo["image", f"picture {side}"] = {"picture": pictures}
        batch.memo["image", "image header"] = {"header": headers}
    return batch


def reduced(values: Column, rows: np.ndarray, count: int, reduction: Reduction) -> Column:
    """One value per video: null for a video without frames.

    Numbers are reduced, vectors averaged, lists of texts (tags) joined, each text once, and other values listed.
    """
    numeric = pa.types.is_integer(values.type) or pa.types.is_floating(values.type) or pa.types.is_boolean(values.type)
    if numeric:
        function = {"min": np.nanmin, "max": np.nanmax}.get(reduction, np.nanmean)
        numbers = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
        parts = [numbers[rows == row] for row in range(count)]
        return pa.array([float(function(part)) if np.isfinite(part).any() else None for part in parts], pa.float64())
    if pa.types.is_fixed_size_list(values.type) and pa.types.is_floating(values.type.value_type):
        found = []
        for row in range(count):
            vectors = [each for each in values.filter(pa.array(rows == row)).to_pylist() if each is not None]
            mean = np.mean(vectors, axis=0) if vectors else None
            found.append(None if mean is None else mean / max(float(np.linalg.norm(mean)), 1e-12))
        return pa.array(found, values.type)
    listed = [values.filter(pa.array(rows == row)).to_pylist() for row in range(count)]
    if pa.types.is_list(values.type) and pa.types.is_string(values.type.value_type):
        joined = [
            list(dict.fromkeys(tag for tags in each if tags is not None for tag in tags)) if each else None
            for each in listed
        ]
        return pa.array(joined, values.type)
    return pa.array([each or None for each in listed], pa.list_(values.type))


@operator(reads="video")
class FrameFilter(FrameStep, Filter):
    """Apply a filter on images to frames of each video, and keep videos by the min, mean or max of its scores.

    `step` is any filter on images, by its name in recipes, with its thresholds: `{nsfw: {max_nsfw: 0.2}}`, `{text_share:
    {}}`, `{aesthetics: {...}}`, `{image_blur: {}}`. With `reduce="share"`, a video is kept if the filter keeps at least
    `min_share` of its frames. `{image_tags: {...}}` adds the tags of all frames to the rows, each tag once. Frames are taken
    as `frames` says: `number` at equal distances, one `every` so many seconds, the `middle` one, or key frames (`keys`), at
    most `max_frames`. They have a short side of 256 pixels, or 512 or 1024 if the step uses larger pictures; a step that uses
    all pixels sees those of a reduced frame. `image_size` and `image_pixels` see the size of the video. Frames of one policy
    and size are decoded once for all such steps. The scores of a row without video are null, and it is dropped.

        FrameFilter({"nsfw": {}}, reduce="max")
    """

    step: Mapping[str, Any]
    reduce: Reduction = "mean"
    min_share: float = 0.5
    frames: Choice = "number"
    every_s: float = 1.0
    number: int = 8
    max_frames: int = 64
    column: str = "video"

    @classmethod
    def is_threshold(cls, parameter: str) -> bool:
        return parameter in ("min_share", "score_only", "invert")

    @property
    def adds_scores(self) -> bool:
        inner = self.inner
        return self.score_only or (self.reduce != "share" and isinstance(inner, Filter) and inner.adds_scores)

    def check(self) -> None:
        self._check(Filter, "filter")
        inner = self.inner
        if isinstance(inner, Filter) and inner.invert:
            raise ParameterError(
                f"`invert` of `{inner.name}` would be applied to frames", hint=f"set `invert` of `{self.name}` instead"
            )

    def score_columns(self) -> dict[str, str]:
        inner = self.inner
        if self.reduce == "share":
            return {f"{inner.name}_share": f"{inner.name}_share"}
        assert isinstance(inner, Filter)
        return {name: name for name in inner.score_columns()}

    def rules(self) -> list[Rule]:
        inner = self.inner
        assert isinstance(inner, Filter)
        return [at_least(f"{inner.name}_share", self.min_share)] if self.reduce == "share" else inner.rules()

    def open(self, context: Context) -> _FrameScorer:
        return _FrameScorer(self, self.inner.open(context))


class _FrameScorer:
    def __init__(self, step: FrameFilter, runner: Any) -> None:
        self._step, self._runner = step, runner

    def score(self, batch: Batch) -> Scores:
        step, inner = self._step, self._step.inner
        assert isinstance(inner, Filter)
        images, rows = step.images(batch)
        found = {name: as_array(values) for name, values in self._runner.score(images).items()}
        if step.reduce != "share":
            return {name: reduced(values, rows, len(batch), step.reduce) for name, values in found.items()}
        kept = np.ones(len(images), np.bool_)
        for rule in inner.rules():
            for _, broken in rule.verdicts(found[rule.score]):
                kept &= ~broken
        return {f"{inner.name}_share": reduced(pa.array(kept), rows, len(batch), "mean")}

    def close(self) -> None:
        close = getattr(self._runner, "close", None)
        if callable(close):
            close()


@operator(reads="video")
class FrameColumns(FrameStep, Map):
    """Add what a step on images finds in frames of each video: mean vectors, reduced numbers, lists of other values.

    `step` is any step on images that adds columns, by its name in recipes: `{image_embed: {}}` gives each video the mean
    of the vectors of its frames, with length 1; `{image_hash: {}}` gives a list with one entry per frame.

        FrameColumns({"image_embed": {"model": "models/clip-vit-large-patch14"}})
    """

    step: Mapping[str, Any]
    reduce: Literal["min", "mean", "max"] = "mean"
    frames: Choice = "number"
    every_s: float = 1.0
    number: int = 8
    max_frames: int = 64
    column: str = "video"

    @property
    def tolerance(self) -> float:  # type: ignore[override]
        return self.inner.tolerance

    def check(self) -> None:
        self._check(Map, "step")

    def writes(self) -> tuple[str, ...]:
        return self.inner.writes()

    def open(self, context: Context) -> _FrameApplier:
        return _FrameApplier(self, self.inner.open(context))


class _FrameApplier:
    def __init__(self, step: FrameColumns, runner: Any) -> None:
        self._step, self._runner = step, runner

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        images, rows = self._step.images(batch)
        found = {name: as_array(values) for name, values in self._runner.apply(images).items()}
        return {name: reduced(values, rows, len(batch), self._step.reduce) for name, values in found.items()}

    def close(self) -> None:
        close = getattr(self._runner, "close", None)
        if callable(close):
            close()
