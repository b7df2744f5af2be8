"""BRISQUE: scores of photographs compared with those of the package brisque 0.2.0."""

from __future__ import annotations

import io

import numpy as np
import pytest
import skimage.data
from PIL import Image, ImageFilter

from tamis import Pipeline, Rows
from tamis.context import Context
from tamis.image import Brisque
from tamis.kernels.brisque import halve
from tamis.models.files import IMAGE_DEFAULTS, ModelError, find

# Printed by `BRISQUE().score(numpy.asarray(image))` of brisque 0.2.0 with numpy 2.3: the photo, the photo after
# ImageFilter.GaussianBlur(3), and its upper left corner of 201 x 151 pixels.
PACKAGE = {
    "astronaut": (10.7949, 76.7353, 25.0977),
    "coffee": (3.0479, 76.8810, 29.8180),
    "chelsea": (2.8708, 80.4592, 13.7783),
    "rocket": (4.2332, 79.7830, 2.0327),
}


def row(image):
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return {"image": {"bytes": stream.getvalue(), "path": None}}


@pytest.fixture(scope="module")
def photos():
    found = {name: Image.fromarray(getattr(skimage.data, name)()) for name in PACKAGE}
    return [
        row(changed)
        for photo in found.values()
        for changed in (photo, photo.filter(ImageFilter.GaussianBlur(3)), photo.crop((0, 0, 201, 151)))
    ]


def test_scores_are_those_of_the_package(photos):
    scores = Pipeline(Rows(photos), Brisque(side=None, score_only=True)).collect()["brisque"].to_pylist()
    expected = [score for scores in PACKAGE.values() for score in scores]
    # Black pixels are exactly 0 or not after rounding, which counts as negative or not: a few thousandths of a point.
    assert scores == pytest.approx(expected, abs=0.01)


def test_blurred_photos_are_dropped(photos):
    report = Pipeline(Rows(photos), Brisque()).run()
    assert report.dropped == {"brisque > 60": 4}


def test_a_picture_of_one_colour_and_a_row_without_image_are_dropped():
    rows = [row(Image.new("RGB", (40, 30), "gray")), row(Image.new("RGB", (1, 1))), {"image": None}]
    report = Pipeline(Rows(rows), Brisque()).run()
    assert (report.kept, report.failed, sum(report.dropped.values())) == (0, 0, 3)


def test_half_the_size_is_a_cubic_interpolation():
    gray = np.random.default_rng(3).random((7, 10))
    small = np.empty((4, 5))
    halve(gray, small)
    for row_, column in np.ndindex(small.shape):
        expected = 0.0
        for down, across in np.ndindex(4, 4):
            weight = cubic(abs(down - 1.5)) * cubic(abs(across - 1.5))
            expected += weight * gray[clip(2 * row_ + down - 1, 7), clip(2 * column + across - 1, 10)]
        assert small[row_, column] == pytest.approx(expected)


def cubic(distance, a=-0.75):  # Keys 1981
    if distance < 1:
        return (a + 2) * distance**3 - (a + 3) * distance**2 + 1
    return a * distance**3 - 5 * a * distance**2 + 8 * a * distance - 4 * a


def clip(index, size):
    return min(max(index, 0), size - 1)


def test_the_own_file_of_a_user_is_read_and_another_file_is_an_error(tmp_path, photos):
    packaged = find("brisque", (), IMAGE_DEFAULTS).weights[0]
    own = tmp_path / "own.txt"
    own.write_bytes(packaged.read_bytes())
    tables = [Pipeline(Rows(photos[:1]), Brisque(model=model, score_only=True)).collect() for model in ("brisque", own)]
    assert tables[0]["brisque"].equals(tables[1]["brisque"])
    own.write_text("svm_type c_svc\nkernel_type linear\nSV\n1 1:2\n")
    with pytest.raises(ModelError, match="it is a c_svc with a linear kernel"):
        Brisque(model=own).open(Context())
