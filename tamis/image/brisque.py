"""BRISQUE: how natural the pixels of a photo look, without another one to compare with."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tamis.batch import Batch
from tamis.context import Context
from tamis.image.decode import headers, measured, row_bytes
from tamis.image.filters import ImageFilter, scored
from tamis.kernels.brisque import gray_levels, halve, moments, normalized_contrast
from tamis.models.files import IMAGE_DEFAULTS, ModelError, ModelFiles, find, with_files
from tamis.operators import Rule, Scores, at_most, operator

WINDOW = np.exp(-(np.arange(-3, 4) ** 2) / (2 * (7 / 6) ** 2))
WINDOW /= WINDOW.sum()
"""A Gaussian of 7 pixels with a deviation of 7/6 (Mittal et al. 2012, section III)."""

NEIGHBOURS = ((0, 1), (1, 0), (1, 1), (1, -1))
"""To the right, below, and both diagonals."""

LEAST = np.array(
    [0.336999, 0.019667, 0.23, -0.125959, 0.000167, 0.000616, 0.231, -0.125873, 0.000165, 0.0006, 0.241, -0.128814,
     0.000179, 0.000386, 0.243, -0.13308, 0.000182, 0.000421, 0.436998, 0.016929, 0.247, -0.200231, 0.000104, 0.000834,
     0.257, -0.200017, 0.000112, 0.000876, 0.257, -0.155072, 0.000112, 0.000356, 0.258, -0.154374, 0.000117, 0.000351]
)  # fmt: skip
MOST = np.array(
    [9.999411, 0.807472, 1.644021, 0.202917, 0.712384, 0.468672, 1.644021, 0.169548, 0.713132, 0.467896, 1.553016, 0.101368,
     0.687324, 0.533087, 1.554016, 0.101, 0.689177, 0.533133, 3.639918, 0.800955, 1.096995, 0.175286, 0.755547, 0.39927,
     1.095995, 0.155928, 0.751488, 0.402398, 1.041992, 0.093209, 0.623516, 0.532925, 1.042992, 0.093714, 0.621958, 0.534484]
)  # fmt: skip
"""Ranges of the 36 features in the LIVE database, to which they are scaled (the file allrange of the authors)."""

MAX_SHAPE, MIN_SHAPE = 10.0, 0.05


@operator(reads="image", writes="brisque")
class Brisque(ImageFilter):
    """Drop photos that look distorted: blurred, noisy or compressed, with a BRISQUE score above 60.

    Scores are about 0 for flawless photos and 100 for unusable ones (Mittal et al. 2012): a support vector
    regression on the statistics of neighbouring pixels, trained on people's opinions of distorted photos. Drawings and
    screenshots have no natural statistics, and high scores. Photos are measured with a short side of 512 pixels, close to
    those of the training data; with `side=None`, all pixels are measured, as the package brisque 0.2.0 does. A row without
    image is dropped. Needs `tamis[image]` and the file svm.txt of that package, or another file of LIBSVM (`model`). A photo of
    240,000 pixels takes 12 ms after decoding, an eighth of what the package takes.

    >>> Brisque(max_brisque=40).rules()[0].maximum
    40
    """

    cost = 200.0

    model: str | Path = "brisque"
    side: Literal[256, 512, 1024] | None = 512
    max_brisque: float = 60.0
    column: str = "image"

    @property
    def row_bytes(self) -> int:
        return row_bytes(self.side)

    def found(self) -> ModelFiles:
        own = Path(self.model)
        if own.suffix == ".txt" and own.is_file():
            return ModelFiles(str(own), own.parent, "regression", (own,))
        return find(self.model, (), IMAGE_DEFAULTS)

    def check(self) -> None:
        self.found()

    def identity(self) -> dict[str, Any]:
        return with_files(super().identity(), self.found())

    def open(self, context: Context) -> _BrisqueScorer:
        return _BrisqueScorer(Regression.read(self.found().weights[0]), self.side)

    def rules(self) -> list[Rule]:
        return [at_most("brisque", self.max_brisque)]


class _BrisqueScorer:
    def __init__(self, regression: Regression, side: int | None) -> None:
        self._regression, self._side = regression, side

    def score(self, batch: Batch) -> Scores:
        found = measured(batch, "image", "brisque", self._look, self._side)
        return {"brisque": scored(found, headers(batch, "image").present)}

    def _look(self, picture: np.ndarray) -> float:
        scaled = 2 * (features(picture) - LEAST) / (MOST - LEAST) - 1
        return self._regression.predict(scaled)


# ------------------------------------------------------------------------------------------------------------ features


def features(picture: np.ndarray) -> np.ndarray:
    """The 36 features of a picture: 18 of its pixels and 18 of those at half the size."""
    gray = np.empty(picture.shape[:2])
    gray_levels(picture, gray)
    height, width, _ = picture.shape
    small = np.empty((max(1, round(height / 2)), max(1, round(width / 2))))
    halve(gray, small)
    return np.concatenate([_features(gray), _features(small)])


def _features(gray: np.ndarray) -> np.ndarray:
    contrast = np.empty_like(gray)
    normalized_contrast(gray, WINDOW, contrast)
    shape, _, left, right = _fit(contrast, 0, 0)
    found = [shape, (left + right) / 2]
    for down, across in NEIGHBOURS:
        found += _fit(contrast, down, across)
    return np.array(found)


def _fit(contrast: np.ndarray, down: int, across: int) -> tuple[float, float, float, float]:
    """Shape, mean and both variances of an asymmetric generalized Gaussian (Lasmar et al. 2009, by moments)."""
    sums = np.zeros(5)
    moments(contrast, down, across, sums)
    absolute, negative, positive, negatives, positives = (float(value) for value in sums)
    left = negative / negatives if negatives else 0.0
    right = positive / positives if positives else 0.0
    squares = negative + positive
    if not squares:  # a picture of one colour
        return MAX_SHAPE, 0.0, 0.0, 0.0
    count = negatives + positives
    ratio = (absolute / count) ** 2 / (squares / count)
    if right:
        skew = math.sqrt(left / right)
        ratio *= (skew**3 + 1) * (skew + 1) / (skew**2 + 1) ** 2
    shape = _shape(ratio)
    spread = math.sqrt(math.gamma(1 / shape) / math.gamma(3 / shape))
    mean = (math.sqrt(right) - math.sqrt(left)) * spread * math.gamma(2 / shape) / math.gamma(1 / shape)
    return shape, mean, left, right


def _shape(ratio: float) -> float:
    """The shape whose distribution has this ratio of squared mean to mean square; the ratio grows with the shape."""
    low, high = MIN_SHAPE, MAX_SHAPE
    for _ in range(60):
        middle = (low + high) / 2
        if math.exp(2 * math.lgamma(2 / middle) - math.lgamma(1 / middle) - math.lgamma(3 / middle)) < ratio:
            low = middle
        else:
            high = middle
    return (low + high) / 2


# ---------------------------------------------------------------------------------------------------------- regression


class Regression:
    """A support vector regression with a Gaussian kernel, in the text format of LIBSVM (Chang and Lin 2011)."""

    def __init__(self, vectors: np.ndarray, coefficients: np.ndarray, gamma: float, rho: float) -> None:
        self._vectors, self._coefficients, self._gamma, self._rho = vectors, coefficients, gamma, rho

    @classmethod
    def read(cls, path: Path) -> Regression:
        """Read a model file; a ModelError if it is not one with a Gaussian kernel and 36 features."""
        try:
            header, _, body = path.read_text("ascii").partition("SV\n")
            settings = dict(line.split(" ", 1) for line in header.splitlines())
            if (settings["svm_type"], settings["kernel_type"]) != ("epsilon_svr", "rbf"):
                raise ValueError(f"it is a {settings['svm_type']} with a {settings['kernel_type']} kernel")
            lines = [line.split() for line in body.splitlines()]
            vectors = np.zeros((len(lines), len(LEAST)))
            for row, (_, *entries) in enumerate(lines):
                for entry in entries:
                    index, _, value = entry.partition(":")
                    vectors[row, int(index) - 1] = float(value)
            coefficients = np.array([float(line[0]) for line in lines])
            return cls(vectors, coefficients, float(settings["gamma"]), float(settings["rho"]))
        except (ValueError, KeyError, IndexError) as error:
            raise ModelError(
                f"{path} is not a model of BRISQUE: {error}",
                hint="use svm.txt of the package brisque 0.2.0, a regression with a Gaussian kernel in the format of LIBSVM",
            ) from error

    def predict(self, values: np.ndarray) -> float:
        """The value of the regression at a point."""
        distances = ((self._vectors - values) ** 2).sum(axis=1)
        return float((self._coefficients * np.exp(-self._gamma * distances)).sum() - self._rho)
