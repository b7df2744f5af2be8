"""Filters on the pixels of an image: blank, dark, pale, blurred, blocky.

All but `ImageBlockiness` measure the picture with a short side of 256 pixels, which is decoded once for all of them. Pictures
of one size can be compared: the sharpness of a photo depends on the size at which it is measured. A row without image has
no scores and is dropped.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from tamis.batch import Batch, Facts
from tamis.image.decode import PictureStep, headers, measured, pictures, row_bytes
from tamis.image.filters import ImageFilter, scored
from tamis.kernels.pixels import appearance, laplacian_variance, luma, step_sums
from tamis.operators import Rule, Scores, at_least, at_most, between, operator

MEASURES = ("brightness", "contrast", "saturation", "entropy", "colours", "colour_range")


class PixelFilter(PictureStep, ImageFilter):
    """A filter on one measure of the picture with a short side of 256 pixels."""

    def _score(self, batch: Batch, measure: str) -> Scores:
        score = self.declared_writes[0]
        return {score: scored(_measures(batch)[measure], headers(batch, "image").present)}


def _measures(batch: Batch) -> Facts:
    def compute() -> Facts:
        found = np.full((len(batch), len(MEASURES)), np.nan)
        for row, picture in enumerate(pictures(batch, "image")):
            if picture is not None:
                appearance(picture, gray_of(picture), found[row])
        return {name: found[:, index] for index, name in enumerate(MEASURES)}

    return batch.remembered("image", "image appearance", compute)


def gray_of(picture: np.ndarray) -> np.ndarray:
    """The brightness of each pixel, uint8[height, width] (ITU-R BT.601)."""
    gray = np.empty(picture.shape[:2], np.uint8)
    luma(picture, gray)
    return gray


@operator(reads="image", writes="colour_range")
class ImageBlank(PixelFilter):
    """Drop blank images: those whose colours differ by less than 10 of 256 levels in every channel.

    The range of each channel is measured without the lowest and the highest 1 % of its values, so that a few pixels do not
    matter. The largest of the three ranges counts.

    >>> import numpy as np
    >>> from tamis.image.files import encoded
    >>> batch = Batch.from_rows([{"image": {"bytes": encoded(np.full((50, 50, 3), 200, np.uint8), "PNG"), "path": None}}])
    >>> ImageBlank().score(batch)["colour_range"].to_pylist()
    [0.0]
    """

    min_colour_range: float = 10.0
    column: str = "image"

    def score(self, batch: Batch) -> Scores:
        return self._score(batch, "colour_range")

    def rules(self) -> list[Rule]:
        return [at_least("colour_range", self.min_colour_range)]


@operator(reads="image", writes="colours")
class ImageColours(PixelFilter):
    """Keep images with at least 16 colours, counted with 4 bits per channel: drop icons and simple drawings."""

    min_colours: int | None = 16
    max_colours: int | None = None
    column: str = "image"

    def score(self, batch: Batch) -> Scores:
        return self._score(batch, "colours")

    def rules(self) -> list[Rule]:
        return [between("colours", self.min_colours, self.max_colours)]


@operator(reads="image", writes="image_entropy")
class ImageEntropy(PixelFilter):
    """Keep images whose histogram of brightness has an entropy of at least 1 bit; the most is 8."""

    min_entropy: float | None = 1.0
    max_entropy: float | None = None
    column: str = "image"

    def score(self, batch: Batch) -> Scores:
        return self._score(batch, "entropy")

    def rules(self) -> list[Rule]:
        return [between("image_entropy", self.min_entropy, self.max_entropy)]


@operator(reads="image", writes="brightness")
class ImageBrightness(PixelFilter):
    """Keep images whose mean brightness is 10 to 245, where black is 0 and white is 255 (ITU-R BT.601)."""

    min_brightness: float | None = 10.0
    max_brightness: float | None = 245.0
    column: str = "image"

    def score(self, batch: Batch) -> Scores:
        return self._score(batch, "brightness")

    def rules(self) -> list[Rule]:
        return [between("brightness", self.min_brightness, self.max_brightness)]


@operator(reads="image", writes="contrast")
class ImageContrast(PixelFilter):
    """Keep images whose brightness has a standard deviation of at least 10 levels."""

    min_contrast: float | None = 10.0
    max_contrast: float | None = None
    column: str = "image"

    def score(self, batch: Batch) -> Scores:
        return self._score(batch, "contrast")

    def rules(self) -> list[Rule]:
        return [between("contrast", self.min_contrast, self.max_contrast)]


@operator(reads="image", writes="saturation")
class ImageSaturation(PixelFilter):
    """Keep images by their mean saturation, from 0 for gray to 1: with the default minimum, drop gray images.

    The saturation of a pixel is (max - min) / max of its channels, as in HSV.
    """

    min_saturation: float | None = 0.02
    max_saturation: float | None = None
    column: str = "image"

    def score(self, batch: Batch) -> Scores:
        return self._score(batch, "saturation")

    def rules(self) -> list[Rule]:
        return [between("saturation", self.min_saturation, self.max_saturation)]


@operator(reads="image", writes="sharpness")
class ImageBlur(PixelFilter):
    """Drop blurred images: those with a sharpness below 20.

    Sharpness is the variance of the Laplacian (Pech-Pacheco et al. 2000) of the picture with a short side of 256 pixels. Of 72
    photos and desktop backgrounds, nine in ten are above 32; after a Gaussian blur with a radius of 1 % of the short side, all
    are below 20. Images of soft gradients are also below. A larger `side` finds weaker blur and needs another threshold,
    since the same photo is less sharp in a larger size. With `side=None`, all pixels are measured; files are then decoded
    twice if other steps look at their pixels.
    """

    min_sharpness: float | None = 20.0
    max_sharpness: float | None = None
    side: Literal[256, 512, 1024] | None = 256
    column: str = "image"

    @property
    def row_bytes(self) -> int:
        return row_bytes(self.side)

    def score(self, batch: Batch) -> Scores:
        found = measured(batch, "image", "sharpness", _sharpness, self.side)
        return {"sharpness": scored(found, headers(batch, "image").present)}

    def rules(self) -> list[Rule]:
        return [between("sharpness", self.min_sharpness, self.max_sharpness)]


def _sharpness(picture: np.ndarray) -> float:
    return float(laplacian_variance(gray_of(picture)))


@operator(reads="image", writes="blockiness")
class ImageBlockiness(ImageFilter):
    """Drop images with visible blocks of 8 x 8 pixels, the traces of strong JPEG compression.

    For each of the 8 positions of a grid of blocks, the mean step between neighbouring pixels at the borders of blocks is
    compared with the mean step inside of blocks. Blockiness is the largest ratio: about 1 if there are no blocks. It is also
    found in images that were cropped, or saved in another format later. All pixels are decoded.
    """

    cost = 20.0

    max_blockiness: float = 2.0
    column: str = "image"

    def score(self, batch: Batch) -> Scores:
        found = measured(batch, "image", "blockiness", _blockiness, None)
        return {"blockiness": scored(found, headers(batch, "image").present)}

    def rules(self) -> list[Rule]:
        return [at_most("blockiness", self.max_blockiness)]


def _blockiness(picture: np.ndarray) -> float:
    height, width, _ = picture.shape
    if min(height, width) < 17:  # two blocks and a pixel
        return 1.0
    across, down = np.zeros(8, np.int64), np.zeros(8, np.int64)
    step_sums(gray_of(picture), across, down)
    return max(_ratio(across / _counts(width - 1), height), _ratio(down / _counts(height - 1), width))


def _counts(steps: int) -> np.ndarray:
    """How many of the first `steps` numbers are 0, 1, ... 7 modulo 8."""
    return (steps + 7 - np.arange(8)) // 8


def _ratio(steps: np.ndarray, lines: int) -> float:
    """The largest of 8 mean steps, compared with the mean of the others; a level in a hundred pixels counts as none."""
    means = steps / lines
    border = int(means.argmax())
    inside = (means.sum() - means[border]) / 7
    return float((means[border] + 0.01) / (inside + 0.01))
