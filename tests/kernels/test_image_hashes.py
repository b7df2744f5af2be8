"""Perceptual hashes have the bits of the packages ImageHash and pdqhash."""

import imagehash
import numpy as np
import pdqhash
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tamis.image.hashing import BITS, hash_pictures
from tamis.kernels import image_hashes as kernel

PACKAGES = {
    "phash": imagehash.phash,
    "dhash": imagehash.dhash,
    "ahash": imagehash.average_hash,
    "whash": imagehash.whash,
}


def photo(height, width, seed=0):
    """A picture with detail of every size, as photos have, and no two equal regions."""
    rng = np.random.default_rng(seed)
    picture = np.zeros((height, width, 3))
    for side in (3, 7, 15, 40):
        noise = Image.fromarray(rng.integers(0, 255, (side, side, 3), np.uint8))
        picture += np.asarray(noise.resize((width, height), Image.Resampling.BICUBIC)) / 4
    return picture.astype(np.uint8)


def grey(picture):
    out = np.empty(picture.shape[:2], np.uint8)
    kernel.grey_of(picture, out)
    return out


SIZES = st.tuples(st.integers(5, 300), st.integers(5, 300)).map(sorted)
"""(height, width). If a picture is tall, Pillow 13 resizes its columns first, and rounds differently."""


@settings(max_examples=40)
@given(size=SIZES, seed=st.integers(0, 10**6), kind=st.sampled_from(sorted(PACKAGES)))
def test_bits_are_those_of_imagehash(size, seed, kind):
    picture = photo(*size, seed)
    found = hash_pictures([picture], kind).column("hex").to_pylist()
    expected = str(PACKAGES[kind](Image.fromarray(picture)))
    ties = median_ties(picture) if kind == "whash" else 0
    assert int(found[0], 16) == int(expected, 16) & ~ties


def median_ties(picture):
    """The bits of a wHash that compare equal numbers; ImageHash decides these by rounding errors."""
    side = 2 ** max(3, int(np.log2(min(picture.shape[:2]))))
    small = np.asarray(Image.fromarray(picture).convert("L").resize((side, side), Image.Resampling.LANCZOS))
    sums = small.astype(int).reshape(8, side // 8, 8, side // 8).sum(axis=(1, 3)).reshape(-1)
    return int("".join("1" if tie else "0" for tie in sums == np.median(sums)), 2)


@settings(max_examples=25)
@given(size=SIZES, seed=st.integers(0, 10**6))
def test_bits_and_quality_are_those_of_pdqhash(size, seed):
    picture = photo(*size, seed)
    bits, quality = pdqhash.compute(picture)
    found = hash_pictures([picture], "pdq")
    assert found.column("hex").to_pylist() == [np.packbits(bits.astype(np.uint8)).tobytes().hex()]
    assert found.quality[0] == quality


@settings(max_examples=20)
@given(size=SIZES, side=st.integers(1, 64), seed=st.integers(0, 10**6))
def test_grey_values_and_resizing_are_those_of_pillow(size, side, seed):
    picture = np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)
    same = Image.fromarray(picture).convert("L")
    assert np.array_equal(grey(picture), np.asarray(same))
    out = np.empty((side, side), np.uint8)
    kernel.resized(grey(picture), out)
    assert np.array_equal(out, np.asarray(same.resize((side, side), Image.Resampling.LANCZOS)))


@settings(max_examples=15)
@given(height=st.integers(100, 400), kind=st.sampled_from(sorted(PACKAGES)))
def test_tall_pictures_differ_by_rounding_only(height, kind):
    picture = photo(height, 30, height)
    found = int(hash_pictures([picture], kind).words[0, 0])
    assert (found ^ int(str(PACKAGES[kind](Image.fromarray(picture))), 16)).bit_count() <= 3


def test_a_bit_that_equals_the_median_is_zero():
    half = np.zeros((64, 64, 3), np.uint8)
    half[:, 32:] = 255
    assert hash_pictures([half], "whash").column("hex").to_pylist() == ["0f" * 8]
    blank = np.full((64, 64, 3), 255, np.uint8)
    assert hash_pictures([blank], "whash").words[0, 0] == 0


@pytest.mark.parametrize("kind", sorted(BITS))
def test_quality_is_zero_for_blank_pictures_and_high_for_detail(kind):
    pictures = [np.full((80, 90, 3), 200, np.uint8), photo(200, 300), None]
    found = hash_pictures(pictures, kind)
    assert found.quality[0] == 0
    assert found.quality[1] > 30
    assert found.present.tolist() == [True, True, False]
    assert found.column("hex").to_pylist()[2] is None


def test_pictures_of_a_few_pixels_have_hashes():
    for kind in BITS:
        found = hash_pictures([photo(1, 1), photo(3, 200), photo(64, 64)], kind)
        assert found.words.shape == (3, BITS[kind] // 64)
