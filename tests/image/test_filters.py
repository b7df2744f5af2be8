"""Filters on images: each measure against a naive reference, and the reasons for drops."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFilter, ImageStat

from tamis import Pipeline, Rows
from tamis.image import (
    ImageAspect,
    ImageBlank,
    ImageBlockiness,
    ImageBlur,
    ImageBrightness,
    ImageBytes,
    ImageColours,
    ImageContrast,
    ImageDecodable,
    ImageEntropy,
    ImageFormat,
    ImageFrameCount,
    ImageMode,
    ImagePixels,
    ImageSaturation,
    ImageSize,
    JpegQuality,
)
from tamis.text import WordCount
from tests.image.files import animation, batch_of, photo, row, saved


def dropped(step, *files):
    """The reason for which each file is dropped; None if it is kept."""
    return [next(iter(Pipeline(Rows([row(file)]), step).run(executor="inline").dropped), None) for file in files]


def score(step, *files):
    (found,) = step.score(batch_of(*files)).values()
    return found.to_pylist()


# ------------------------------------------------------------------------------------------------------------- headers


def test_filters_on_headers_say_why_they_drop():
    wide, tall, small = (
        saved(photo(700, 210)),
        saved(photo(200, 600), "JPEG", quality=30),
        saved(photo(199, 300), "GIF"),
    )
    files = (wide, tall, small, None)
    assert dropped(ImageSize(), *files) == [None, None, "width < 200", "width is missing"]
    assert dropped(ImageSize(max_height=500), *files)[1] == "height > 500"
    assert dropped(ImageAspect(), *files) == ["aspect_ratio > 3", None, None, "aspect_ratio is missing"]
    assert dropped(ImagePixels(max_pixels=120_000), *files) == ["pixels > 120000", None, None, "pixels is missing"]
    assert dropped(ImageBytes(max_bytes=len(tall)), *files)[:2] == [f"image_bytes > {len(tall)}", None]
    assert dropped(ImageFormat(keep=["PNG"]), *files)[:3] == [None, *["image_format not in PNG"] * 2]
    assert dropped(ImageMode(keep=["RGB"]), *files)[:3] == [None, None, "image_mode not in RGB"]
    assert dropped(JpegQuality(), *files) == [None, "jpeg_quality < 50", None, "jpeg_quality is missing"]
    moving = animation([photo(40, 40, seed) for seed in range(3)])
    assert dropped(ImageFrameCount(), wide, moving) == [None, "frames > 1"]


def test_files_that_cannot_be_decoded_are_dropped_with_a_reason():
    file = saved(photo(300, 300), "JPEG")
    found = dropped(ImageDecodable(), file, file[:3000], b"text", b"", None)
    assert found == [
        None,
        "the file is truncated",
        "the file is not an image",
        "the file is empty",
        "there is no image",
    ]


def test_other_filters_fail_files_that_cannot_be_decoded():
    steps = [ImageSize(), ImageBlank()]
    file = saved(photo(300, 300), "JPEG")
    rows = [row(file), row(file[:3000]), row(b"text"), row(file)]
    report = Pipeline(Rows(rows), *steps).run(executor="inline", on_error="isolate", max_failed="100%")
    assert (report.kept, report.failed) == (2, 2)
    assert {error["step"] for error in report.errors} == {"image_size", "image_blank"}
    report = Pipeline(Rows(rows), ImageDecodable(), *steps).run(executor="inline")
    assert (report.kept, report.failed) == (2, 0)
    assert report.dropped == {"the file is truncated": 1, "the file is not an image": 1}


def test_captions_are_text():
    rows = [row(saved(photo(30, 30))) | {"caption": text} for text in ("a cat", "a cat on a red mat")]
    found = Pipeline(
        Rows(rows), WordCount(min_words=3, column="caption"), ImageSize(min_width=9, min_height=9)
    ).collect(executor="inline")
    assert found["caption"].to_pylist() == ["a cat on a red mat"]


# -------------------------------------------------------------------------------------------------------------- pixels


def small_pictures():
    sizes = st.tuples(st.integers(1, 30), st.integers(1, 30), st.integers(0, 10**6), st.sampled_from([1, 9, 100, 256]))
    return sizes.map(
        lambda found: np.random.default_rng(found[2]).integers(0, found[3], (found[1], found[0], 3), np.uint8)
    )


@given(small_pictures())
def test_measures_are_those_of_naive_references(pixels):
    file = saved(pixels)
    gray = Image.fromarray(pixels).convert("L")
    stat = ImageStat.Stat(gray)
    assert score(ImageBrightness(), file) == [pytest.approx(stat.mean[0])]
    assert score(ImageContrast(), file) == [pytest.approx(stat.stddev[0], abs=1e-6)]
    assert score(ImageEntropy(), file) == [pytest.approx(gray.entropy(), abs=1e-9)]
    high, low = pixels.max(axis=2).astype(float), pixels.min(axis=2).astype(float)
    assert score(ImageSaturation(), file) == [
        pytest.approx(np.where(high > 0, (high - low) / np.maximum(high, 1), 0).mean())
    ]
    assert score(ImageColours(), file) == [len({tuple(each >> 4) for each in pixels.reshape(-1, 3)})]
    outside = pixels.shape[0] * pixels.shape[1] // 100
    ordered = np.sort(pixels.reshape(-1, 3).astype(int), axis=0)
    assert score(ImageBlank(), file) == [(ordered[len(ordered) - 1 - outside] - ordered[outside]).max()]


@given(small_pictures())
def test_sharpness_is_the_variance_of_the_laplacian(pixels):
    gray = np.asarray(Image.fromarray(pixels).convert("L")).astype(float)
    inner = gray[1:-1, 1:-1]
    expected = 4 * inner - gray[:-2, 1:-1] - gray[2:, 1:-1] - gray[1:-1, :-2] - gray[1:-1, 2:]
    wanted = expected.var() if expected.size else 0.0
    assert score(ImageBlur(), saved(pixels)) == [pytest.approx(wanted, abs=1e-6)]


@given(small_pictures())
def test_blockiness_compares_steps_by_their_position_in_a_grid(pixels):
    gray = np.asarray(Image.fromarray(pixels).convert("L")).astype(int)
    wanted = []
    for steps in (np.abs(np.diff(gray, axis=1)), np.abs(np.diff(gray, axis=0)).T):
        if min(gray.shape) >= 17:
            means = [steps[:, phase::8].sum() / steps[:, phase::8].shape[1] / len(steps) for phase in range(8)]
            top = max(means)
            wanted.append((top + 0.01) / ((sum(means) - top) / 7 + 0.01))
    assert score(ImageBlockiness(), saved(pixels)) == [pytest.approx(max(wanted, default=1.0))]


def test_blank_images_are_dropped():
    pixels = np.full((300, 300, 3), 240, np.uint8)
    pixels[::40, ::40] = 0  # 64 of 90,000 pixels
    noisy = np.random.default_rng(0).integers(120, 125, (300, 300, 3), np.uint8)
    assert dropped(ImageBlank(), saved(pixels), saved(noisy), saved(photo(300, 300))) == [
        *["colour_range < 10"] * 2,
        None,
    ]


def test_blurred_images_are_dropped_at_any_size():
    for width in (400, 1600):
        sharp = Image.fromarray(photo(width, width * 3 // 4)).filter(ImageFilter.UnsharpMask(2, 300))
        blurred = sharp.filter(ImageFilter.GaussianBlur(width / 60))
        assert dropped(ImageBlur(), saved(sharp, "JPEG"), saved(blurred, "JPEG")) == [None, "sharpness < 20"]


def test_traces_of_jpeg_are_found_in_other_formats_and_after_cropping():
    pixels = photo(320, 240)
    blocks = np.asarray(Image.open(io.BytesIO(saved(pixels, "JPEG", quality=5))))
    found = score(ImageBlockiness(), saved(pixels), saved(blocks), saved(blocks[3:, 5:]))
    assert found[0] < 1.2
    assert min(found[1:]) > 2


@pytest.mark.parametrize("step", [ImageBlur(side=512), ImageBlur(side=None), ImageBlockiness()])
def test_steps_that_need_other_sizes_have_the_same_scores_in_any_company(step):
    files = [saved(photo(900, 700, seed), "JPEG") for seed in range(2)]
    alone = score(step, *files)
    batch = batch_of(*files)
    ImageBlank().score(batch)
    ImageBlur().score(batch)
    (together,) = step.score(batch).values()
    assert together.to_pylist() == alone


def test_memory_that_steps_hold_per_row_follows_from_the_size():
    assert ImageBlur(side=512).row_bytes == 4 * ImageBlur().row_bytes == 4 * ImageBlank().row_bytes
    assert ImageSize().row_bytes < ImageBlank().row_bytes
