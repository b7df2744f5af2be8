"""Deduplication of real photographs: copies in other sizes, formats and qualities, by bytes, pixels, look and subject."""

import io

import pytest
from PIL import Image

from tamis import Pipeline, Rows
from tamis.dedup import ExactDedup, ImageDedup, SemanticDedup
from tamis.image import ImageDigest, ImageEmbed
from tests.image.photographs import photograph

NAMES = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg")


def saved(picture, **options):
    data = io.BytesIO()
    picture.save(data, **options)
    return data.getvalue()


def copies(name):
    """(kind, bytes) of a photograph and what people make of it."""
    original = photograph(name).read_bytes()
    picture = Image.open(io.BytesIO(original)).convert("RGB")
    width, height = picture.size
    yield "original", original
    yield "same bytes", original
    yield "same pixels", saved(picture, format="PNG", compress_level=1)
    yield "half size", saved(picture.resize((width // 2, height // 2)), format="JPEG", quality=90)
    yield "low quality", saved(picture, format="JPEG", quality=25)
    yield "webp", saved(picture.resize((width * 2, height * 2)), format="WEBP", quality=80)
    margin = width // 50
    yield "cropped", saved(picture.crop((margin, margin, width - margin, height - margin)), format="JPEG")


ROWS = [
    {"name": name, "kind": kind, "image": {"bytes": data, "path": f"{name}-{kind}"}}
    for name in NAMES
    for kind, data in copies(name)
]


def kept(*steps, executor="inline"):
    table = Pipeline(Rows(ROWS, rows_per_partition=9), *steps).collect(executor=executor)
    return [(row["name"], row["kind"]) for row in table.select(["name", "kind"]).to_pylist()]


def test_equal_bytes_are_dropped():
    expected = [(row["name"], row["kind"]) for row in ROWS if row["kind"] != "same bytes"]
    assert kept(ExactDedup(column="image")) == expected


def test_equal_pixels_are_dropped_whatever_the_format():
    found = kept(ImageDigest(of="pixels"), ExactDedup(column="image_digest"))
    assert {kind for _, kind in found} == {"original", "half size", "low quality", "webp", "cropped"}


@pytest.mark.parametrize("hash", ["phash", "dhash", "pdq"])
def test_images_that_look_alike_are_dropped_and_no_others(hash):
    found = kept(ImageDedup(hash=hash))
    assert {name for name, _ in found} == set(NAMES)
    missed = [kind for _, kind in found if kind != "original"]
    assert set(missed) <= {"cropped"}, "crops are the hard case"


def test_the_largest_copy_is_kept():
    found = [pair for pair in kept(ImageDedup(keep="largest")) if pair[1] != "cropped"]
    assert found == [(name, "webp") for name in NAMES]


def test_the_same_images_are_kept_on_every_executor(executor):
    assert kept(ImageDedup(), executor=executor) == kept(ImageDedup())


def test_images_of_the_same_subject_are_dropped():
    found = kept(ImageEmbed(), SemanticDedup(threshold=0.7, keep="first", neighbours=None))
    assert found == [(name, "original") for name in NAMES]
