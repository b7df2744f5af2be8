"""Decoding: sizes, orientation, colours, and that each file is decoded once, whatever looks at it."""

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms, ImageOps

from scripts.fetch_pictures import fetch
from tamis import Pipeline, Rows
from tamis.batch import Batch
from tamis.errors import ImageError
from tamis.image import decode, files
from tamis.image.decode import full_pictures, headers, measured, pictures, problems
from tamis.kernels.pixels import on_white, shrink
from tests.image.files import animation, batch_of, opened, photo, pixels_of, row, saved

PROBLEMS = {"fine", "missing", "empty", "truncated", "corrupt", "too large", "unsupported", "not an image"}


def picture(file, side=256):
    (found,) = pictures(batch_of(file), "image", side)
    return found


def whole(file):
    (found,) = full_pictures(batch_of(file), "image")
    return found


def naive_shrink(source, height, width):
    """Area averages with integer weights: pixel i of n covers source pixels i * N / n to (i + 1) * N / n."""

    def weights(small, large):
        i, k = np.arange(small)[:, None], np.arange(large)[None, :]
        return np.maximum(0, np.minimum((i + 1) * large, (k + 1) * small) - np.maximum(i * large, k * small))

    rows, columns = weights(height, source.shape[0]), weights(width, source.shape[1])
    total = np.stack([rows @ source[:, :, channel].astype(np.float64) @ columns.T for channel in range(3)], axis=2)
    area = source.shape[0] * source.shape[1]
    return ((total + area // 2) // area).astype(np.uint8)


# --------------------------------------------------------------------------------------------------------------- sizes


@given(st.integers(1, 40), st.integers(1, 40), st.data())
def test_shrinking_averages_areas(height, width, data):
    source = np.random.default_rng(height * 50 + width).integers(0, 256, (height, width, 3), np.uint8)
    out = np.empty((data.draw(st.integers(1, height)), data.draw(st.integers(1, width)), 3), np.uint8)
    shrink(source, out)
    assert (out == naive_shrink(source, *out.shape[:2])).all()


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((1200, 800), (384, 256)),
        ((800, 1200), (256, 384)),
        ((300, 200), (300, 200)),
        ((4000, 30), (2048, 15)),
        ((1, 1), (1, 1)),
    ],
)
@pytest.mark.parametrize("format_", ["JPEG", "PNG"])
def test_the_short_side_has_256_pixels_and_the_long_one_at_most_8_times_as_many(size, expected, format_):
    assert picture(saved(photo(*size), format_)).shape == (*expected[::-1], 3)


@pytest.mark.parametrize("side", [256, 512, 1024])
def test_a_jpeg_is_decoded_at_the_smallest_size_that_serves(side):
    file = saved(photo(1300, 1100), "JPEG", quality=90)
    draft = opened(file)
    scale = {256: 4, 512: 2, 1024: 1}[side]
    draft.draft("RGB", (1300 // scale, 1100 // scale))
    assert (picture(file, side) == naive_shrink(np.asarray(draft), side, round(1300 / 1100 * side))).all()


def test_a_png_is_reduced_from_all_its_pixels():
    pixels = photo(700, 500)
    assert (picture(saved(pixels)) == naive_shrink(pixels, 256, 358)).all()


def test_a_picture_does_not_depend_on_other_requests():
    file = saved(photo(1300, 1100), "JPEG")
    batch = batch_of(file)
    other = [pictures(batch, "image", side)[0] for side in (1024, 512, 200)][-1]
    assert (other == picture(file)).all()
    assert decode.tier_of(257) == 512
    with pytest.raises(ValueError, match="full_pictures"):
        decode.tier_of(2000)


@pytest.mark.parametrize("options", [{"subsampling": 0}, {"subsampling": 2}, {"progressive": True}, {"quality": 30}])
@pytest.mark.parametrize("scale", [1, 2, 4, 8])
def test_simplejpeg_and_pillow_return_the_same_pixels(options, scale):
    """They are used for different files, so a file must not look different because of a warning in it."""
    file = saved(photo(1111, 555), "JPEG", **options)
    image = opened(file)
    image.draft("RGB", (1111 // scale, 555 // scale))
    found, _ = files._jpeg_pixels(file, opened(file), 555 // scale)
    assert (found == np.asarray(image)).all()


# ------------------------------------------------------------------------------------------------------------- headers


def test_headers_are_read_without_decoding(monkeypatch):
    monkeypatch.setattr(decode, "decode_file", None)
    turned = Image.Exif()
    turned[0x0112] = 6
    batch = batch_of(saved(photo(30, 20), "JPEG", exif=turned), None, saved(photo(9, 7), "WEBP"), saved(photo(5, 5)))
    found = headers(batch, "image")
    assert found.width.tolist() == [20, 0, 9, 5]
    assert found.height.tolist() == [30, 0, 7, 5]
    assert found.orientation.tolist() == [6, 0, 1, 1]
    assert found.format.tolist() == ["JPEG", None, "WEBP", "PNG"]
    assert found.mode.tolist() == ["RGB", None, "RGB", "RGB"]
    assert found.present.tolist() == [True, False, True, True]
    assert found.num_bytes[2] == len(saved(photo(9, 7), "WEBP"))


def test_frames_are_counted():
    frames = [photo(40, 30, seed) for seed in range(5)]
    batch = batch_of(
        *(animation(frames, format_) for format_ in ("GIF", "WEBP", "PNG", "TIFF", "AVIF")), saved(frames[0]), None
    )
    assert decode.frame_counts(batch, "image").tolist() == [5, 5, 5, 5, 5, 1, 0]


def test_frames_that_cannot_be_counted_are_damage():
    file = animation([photo(8, 6, seed) for seed in range(3)], "GIF")
    found = {_counted(file[:cut]) for cut in range(len(file) // 3, len(file))}
    assert found <= {"1", "2", "3", "truncated", "corrupt"}
    assert {"3", "corrupt"} <= found


def _counted(file):
    try:
        return str(decode.frame_counts(batch_of(file), "image")[0])
    except ImageError as error:
        return error.problem


@pytest.mark.parametrize("quality", [1, 5, 20, 49, 50, 51, 75, 90, 95, 99, 100])
def test_the_quality_of_a_jpeg_is_that_it_was_saved_with(quality):
    assert decode.jpeg_qualities(batch_of(saved(photo(20, 20), "JPEG", quality=quality)), "image").tolist() == [quality]


# ----------------------------------------------------------------------------------------------- orientation and colours


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format_", ["PNG", "WEBP", "TIFF"])
def test_pictures_are_upright(orientation, format_):
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if format_ == "WEBP" else {}
    file = saved(photo(50, 30), format_, exif=exif, **options)
    assert (whole(file) == np.asarray(ImageOps.exif_transpose(opened(file)).convert("RGB"))).all()
    assert headers(batch_of(file), "image").width[0] == whole(file).shape[1]


@given(st.integers(0, 255), st.integers(0, 255))
def test_transparent_pixels_are_on_white(value, alpha):
    source, out = np.array([[[value, 255, 0, alpha]]], np.uint8), np.empty((1, 1, 3), np.uint8)
    on_white(source, out)
    exact = [(channel * alpha + 255 * (255 - alpha)) / 255 for channel in (value, 255, 0)]
    assert out[0, 0].tolist() == [int(each + 0.5) for each in exact]


def test_all_kinds_of_pixels_become_rgb():
    gray = photo(60, 40)[:, :, 0]
    deep = Image.fromarray(gray.astype(np.uint16) * 257)
    palette = opened(saved(photo(60, 40))).quantize(16)
    palette.info["transparency"] = 3
    clear = np.asarray(palette.convert("RGBA"))
    expected = clear[:, :, :3].copy()
    expected[clear[:, :, 3] == 0] = 255
    for image, wanted in [
        (deep, np.repeat(gray[:, :, None], 3, axis=2)),
        (Image.fromarray(gray), np.repeat(gray[:, :, None], 3, axis=2)),
        (Image.fromarray(gray > 128), np.repeat(np.where(gray > 128, 255, 0)[:, :, None], 3, axis=2)),
        (palette, expected),
    ]:
        assert (whole(saved(image)) == wanted).all(), image.mode
    cmyk = opened(saved(Image.fromarray(photo(60, 40)).convert("CMYK"), "JPEG"))
    assert (whole(saved(cmyk, "JPEG")) == pixels_of(saved(cmyk, "JPEG"))).all()
    with pytest.raises(ImageError, match="floating-point"):
        whole(saved(Image.fromarray(gray.astype(np.float32)), "TIFF"))


def test_colours_are_converted_to_srgb():
    """A profile with red and blue swapped: the same primaries in other channels."""
    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    count = struct.unpack_from(">I", profile, 128)[0]
    tags = {bytes(profile[132 + 12 * n : 136 + 12 * n]): 132 + 12 * n for n in range(count)}
    red, blue = tags[b"rXYZ"], tags[b"bXYZ"]
    profile[red : red + 4], profile[blue : blue + 4] = b"bXYZ", b"rXYZ"
    at, length = struct.unpack_from(">II", profile, tags[b"desc"] + 4)
    profile[at + 8 : at + length] = (
        profile[at + 8 : at + length].replace(b"s\0R\0G\0B", b"o\0d\0d\0!").replace(b"sRGB", b"odd!")
    )
    pixels = photo(300, 260)
    found = picture(saved(pixels, icc_profile=bytes(profile)))
    assert np.abs(found.astype(int) - picture(saved(pixels))[:, :, ::-1]).max() <= 3
    assert (picture(saved(pixels, icc_profile=b"damaged")) == picture(saved(pixels))).all()


# ------------------------------------------------------------------------------------------------------------- damage


@pytest.mark.slow
def test_every_picture_of_pillows_tests_is_decoded_or_explained():
    """What Pillow decodes in the formats that are supported, and is not a float, is decoded here too."""
    paths = sorted(path for path in fetch().rglob("*") if path.is_file())
    assert len(paths) > 1000
    counts = dict.fromkeys(PROBLEMS, 0)
    for path in paths:
        batch = batch_of(path.read_bytes())
        (state,) = problems(batch, "image")
        counts[state] += 1
    assert counts["fine"] > 700
    assert counts["not an image"] < 300
    assert counts["truncated"] + counts["corrupt"] + counts["unsupported"] < 70
    assert counts["too large"] >= 2
    assert counts["empty"] == counts["missing"] == 0


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        (b"", "empty"),
        (b"This is a text file named .jpg", "not an image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>", "not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n(x) run", "not an image"),
        (saved(photo(300, 300), "JPEG")[:2000], "truncated"),
        (saved(photo(300, 300))[:2000], "truncated"),
        (saved(photo(300, 300), "BMP")[:2000], "truncated"),
        (saved(photo(300, 300), "TIFF")[:-2000], "truncated"),
        (saved(photo(300, 300), "JPEG")[:30], "truncated"),
        (b"\xff\xd8\xff" + b"x" * 100, "corrupt"),
        (None, "missing"),
    ],
)
def test_a_file_that_cannot_be_decoded_says_why(file, problem):
    assert problems(batch_of(file), "image").tolist() == [problem]


@settings(max_examples=150)
@given(st.data())
def test_damaged_bytes_never_raise_anything_else(data):
    format_ = data.draw(
        st.sampled_from(["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "AVIF", "JPEG2000", "ICO", "PPM"])
    )
    file = bytearray(SMALL[format_])
    for _ in range(data.draw(st.integers(0, 8))):
        file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    del file[data.draw(st.integers(0, len(file))) :]
    (state,) = problems(batch_of(bytes(file)), "image")
    assert state in PROBLEMS


SMALL = {
    format_: saved(photo(40, 32), format_)
    for format_ in ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "AVIF", "JPEG2000", "ICO", "PPM")
}


def test_decoders_log_nothing_but_raise_errors(caplog):
    file = bytearray(saved(photo(40, 32), "TIFF"))
    at = file.index(b"\x15\x01\x03\0") + 8  # the number of samples per pixel
    file[at : at + 2] = struct.pack("<H", 2048)
    assert problems(batch_of(bytes(file)), "image").tolist() == ["corrupt"]
    assert not caplog.records


def test_a_jpeg_with_bytes_between_its_segments_is_fine():
    file = saved(photo(300, 200), "JPEG")
    assert (picture(file[:20] + b"\0\0\0" + file[20:] + b"behind") == picture(file)).all()
    assert problems(batch_of(file[:-20]), "image").tolist() == ["truncated"]


def big_png(width, height):
    """A real PNG of 1 bit per pixel, all black."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    packer = zlib.compressobj(1)
    line = bytes(1 + (width + 7) // 8)
    body = b"".join(packer.compress(line * 100) for _ in range(height // 100)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def test_a_bomb_is_refused_before_its_pixels_are_allocated():
    file = big_png(30_000, 30_000)
    assert len(file) < 1_000_000
    batch = batch_of(file)
    assert headers(batch, "image").width.tolist() == [30_000]
    assert problems(batch, "image").tolist() == ["too large"]
    with pytest.raises(ImageError, match="30,000 x 30,000 pixels"):
        next(full_pictures(batch, "image"))


# ------------------------------------------------------------------------------------------------------- once per row


@pytest.fixture
def decodes(monkeypatch):
    """The sizes of the files that were decoded."""
    seen = []

    def counted(data, header, tier, longest):
        seen.append(header.num_bytes)
        return files.decode_file(data, header, tier, longest)

    monkeypatch.setattr(decode, "decode_file", counted)
    return seen


def test_a_file_is_decoded_once_for_all_operators(decodes):
    batch = batch_of(*(saved(photo(300, 260, seed), "JPEG") for seed in range(4)), b"\xff\xd8\xff nothing")
    view = batch.view({"picture": "image"})
    assert problems(view, "picture").tolist() == ["fine"] * 4 + ["corrupt"]
    kept = batch.select(np.arange(4))
    pictures(kept, "image")
    measured(kept, "image", "mean", np.mean)
    assert len(decodes) == 4


def test_a_row_that_cannot_be_decoded_is_tried_once_and_fails_with_its_address(decodes):
    file = saved(photo(300, 260), "JPEG")
    rows = [row(file), row(file[:900]), row(file), row(None), row(file[:800])]

    def mean(batch: Batch):
        return {"mean": [None if each is None else float(each.mean()) for each in pictures(batch, "image")]}

    report = Pipeline(Rows(rows), mean).run(executor="inline", on_error="isolate", max_failed="100%")
    assert (report.kept, report.failed) == (3, 2)
    assert "the file is truncated" in report.errors[0]["error"]
    assert len(decodes) == 4
    assert {error["example"] for error in report.errors} <= {"rows:1", "rows:4"}


def test_a_column_without_any_image_has_none():
    assert pictures(Batch.from_rows([{"image": None}]), "image") == [None]
    assert headers(Batch.from_rows([{"image": None}]), "image").width.tolist() == [0]


def test_full_pictures_come_one_at_a_time(monkeypatch):
    alive = []
    monkeypatch.setattr(decode, "load_pixels", lambda *_: alive.append(1) or np.zeros((1, 1, 3), np.uint8))
    next(full_pictures(batch_of(*[saved(photo(8, 8))] * 3), "image"))
    assert alive == [1]


def test_errors_of_images_can_be_sent_between_processes():
    import pickle

    error = pickle.loads(pickle.dumps(ImageError("corrupt", "the header: of a file")))
    assert (error.problem, error.message) == ("corrupt", "the file is corrupt: the header: of a file")
