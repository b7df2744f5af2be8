"""Text in images: the share of the area that it covers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tamis.batch import Batch
from tamis.context import Context
from tamis.errors import require
from tamis.image.decode import row_bytes
from tamis.image.onnx import Graph, OnnxStep, for_each
from tamis.models.pixels import BILINEAR, resize
from tamis.operators import Filter, Rule, Scores, at_most, operator

SIDE = 512
"""The short side of the picture in which text is searched, at most."""

LONGEST = 2048
MULTIPLE = 32
"""The sides of the input of the network are multiples of this."""

TEXT, GOOD, LARGER = 0.3, 0.5, 1.6
"""A pixel is text above the first probability, a region if the mean is above the second; regions are enlarged by the third
(Liao et al. 2020; the settings of RapidOCR 3.10)."""

SMALLEST, LARGEST = 3, 0.2
"""Regions that are narrower than this many pixels, or wider than this part of the short side, are ignored. The network marks
the core of a line, a third of its height; it takes some round things for large letters."""


@operator(reads="image", writes=("text_share", "num_texts"))
class TextShare(OnnxStep, Filter):
    """Keep images of which text covers at most 30 % of the area.

    Text is found by the detection network of PP-OCRv6 (small, Apache-2.0), in any script; it is not read. `text_share` is
    the area of the rotated rectangles around its lines, by the area of the image, and `num_texts` their number. The
    picture is searched with a short side of at most 512 pixels, so small print on large pages is missed. The bound is a
    choice: photographs with signs have less than 0.1, pages and screenshots often more than 0.3. A row without image is
    dropped. Needs `tamis[image,onnx,image-models]` and the file PP-OCRv6_det_small.onnx of the package rapidocr 3.10.0;
    about 5 images per second and core.

    >>> TextShare(max_text_share=0.05).rules()[0].maximum
    0.05
    """

    model: str | Path = "pp-ocr"
    column: str = "image"
    max_text_share: float = 0.3

    cost = 10_000.0

    @property
    def row_bytes(self) -> int:
        return row_bytes(SIDE)

    def check(self) -> None:
        super().check()
        require("cv2", extra="image-models", purpose="measuring text")

    def open(self, context: Context) -> _TextFinder:
        return _TextFinder(self.open_graph(context))

    def rules(self) -> list[Rule]:
        return [at_most("text_share", self.max_text_share)]


class _TextFinder:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._cv2 = require("cv2", extra="image-models", purpose="measuring text")
        self._cv2.setNumThreads(1)

    def score(self, batch: Batch) -> Scores:
        found = for_each(batch, SIDE, self._look)
        return {
            "text_share": pa.array([None if each is None else each[0] for each in found], pa.float64()),
            "num_texts": pa.array([None if each is None else each[1] for each in found], pa.int64()),
        }

    def _look(self, picture: np.ndarray) -> tuple[float, int]:
        size = [min(LONGEST, max(MULTIPLE, round(length / MULTIPLE) * MULTIPLE)) for length in picture.shape[:2]]
        if picture.shape[:2] != tuple(size):
            picture = resize(picture, (size[0], size[1]), BILINEAR)
        # The network was trained on blue, green, red.
        pixels = np.ascontiguousarray(picture[:, :, ::-1].transpose(2, 0, 1), np.float32) / 127.5 - 1
        return self._covered(self._graph.run(pixels)[0])

    def _covered(self, probabilities: np.ndarray) -> tuple[float, int]:
        """(the share of the area in regions of text, their number)."""
        cv2 = self._cv2
        mask = cv2.dilate((probabilities > TEXT).astype(np.uint8), np.ones((2, 2), np.uint8))
        outlines, _ = cv2.findContours(mask, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
        canvas = np.zeros(mask.shape, np.uint8)
        count = 0
        for outline in outlines:
            around = cv2.minAreaRect(outline)
            (x, y), (width, height), angle = around
            if not SMALLEST <= min(width, height) <= LARGEST * min(mask.shape):
                continue
            if self._mean(probabilities, around) < GOOD:
                continue
            margin = width * height * LARGER / (2 * (width + height))
            larger = ((x, y), (width + 2 * margin, height + 2 * margin), angle)
            cv2.fillPoly(canvas, [np.round(cv2.boxPoints(larger)).astype(np.int32)], 1)
            count += 1
        return float(canvas.mean()), count

    def _mean(self, probabilities: np.ndarray, around: Any) -> float:
        """The mean probability in a rotated rectangle."""
        cv2 = self._cv2
        corners = cv2.boxPoints(around)
        rows, columns = probabilities.shape
        left, right = (int(np.clip(f(corners[:, 0]), 0, columns - 1)) for f in (np.min, np.max))
        top, bottom = (int(np.clip(f(corners[:, 1]), 0, rows - 1)) for f in (np.min, np.max))
        part = probabilities[top : bottom + 1, left : right + 1]
        mask = np.zeros(part.shape, np.uint8)
        cv2.fillPoly(mask, [np.round(corners - [left, top]).astype(np.int32)], 1)
        return float(part[mask > 0].mean()) if mask.any() else 0.0
