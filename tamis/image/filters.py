"""Filters on what the header of an image says. No pixels are decoded."""

from __future__ import annotations

import pyarrow as pa

from tamis.batch import Batch
from tamis.image.decode import headers
from tamis.operators import Filter, Rule, Scores, between, operator


@operator(reads="image", writes=("width", "height"))
class ImageSize(Filter):
    """Keep images of at least 200 x 200 pixels, after the orientation in their EXIF data is applied.

    A row without image has no size and is dropped.
    """

    min_width: int | None = 200
    max_width: int | None = None
    min_height: int | None = 200
    max_height: int | None = None
    column: str = "image"

    def score(self, batch: Batch) -> Scores:
        found = headers(batch, "image")
        return {
            "width": pa.array(found.width, mask=~found.present),
            "height": pa.array(found.height, mask=~found.present),
        }

    def rules(self) -> list[Rule]:
        return [
            between("width", self.min_width, self.max_width),
            between("height", self.min_height, self.max_height),
        ]
