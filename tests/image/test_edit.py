"""Maps on images: new sizes and formats, metadata, frames and digests."""

import datetime
import hashlib

import numpy as np
import pytest
from PIL import Image

from tamis import Pipeline, Rows
from tamis.errors import ImageError, ParameterError
from tamis.image import (
    ImageConvert,
    ImageCrop,
    ImageDigest,
    ImageExif,
    ImageFrames,
    ImageMetadataRemoval,
    ImageResize,
)
from tamis.image.decode import full_pictures, headers
from tamis.image.metadata import without_metadata
from tests.image.files import animation, batch_of, opened, photo, pixels_of, row, saved


def edited(step, file, path="a.png"):
    """The image after a step."""
    (found,) = Pipeline(Rows([row(file, path)]), step).collect(executor="inline")["image"].to_pylist()
    return found


def size_of(file):
    return opened(file).size


def decoded(file):
    (found,) = full_pictures(batch_of(file), "image")
    return found


# ---------------------------------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    ("mode", "size", "expected"),
    [
        ("fit", (600, 300), (200, 100)),
        ("fit", (300, 600), (50, 100)),
        ("fill", (600, 300), (200, 100)),
        ("fill", (400, 400), (200, 100)),
        ("fill", (150, 400), (150, 100)),
        ("pad", (300, 600), (200, 100)),
        ("pad", (20, 10), (200, 100)),
    ],
)
@pytest.mark.parametrize("format_", ["PNG", "JPEG"])
def test_sizes_after_resizing(mode, size, expected, format_):
    made = edited(ImageResize(width=200, height=100, mode=mode), saved(photo(*size), format_))
    assert size_of(made["bytes"]) == expected
    assert opened(made["bytes"]).format == format_


def test_the_pixels_of_a_resized_image():
    pixels = photo(400, 300)
    quarter = pixels.reshape(150, 2, 200, 2, 3).sum(axis=(1, 3))
    half = ((quarter + 2) // 4).astype(np.uint8)
    assert (decoded(edited(ImageResize(width=200, height=150), saved(pixels))["bytes"]) == half).all()
    filled = decoded(edited(ImageResize(width=100, height=150, mode="fill"), saved(pixels))["bytes"])
    assert (filled == half[:, 50:150]).all()
    padded = decoded(edited(ImageResize(width=200, height=200, mode="pad"), saved(pixels))["bytes"])
    assert (padded[25:175] == half).all()
    assert (padded[:25] == 255).all()


def test_an_image_that_fits_keeps_its_bytes():
    file = saved(photo(200, 100), "JPEG", quality=40)
    for step in (
        ImageResize(width=200, height=300),
        ImageCrop(width=300, height=100),
        ImageConvert(format="JPEG"),
    ):
        assert edited(step, file, "a.jpg") == {"bytes": file, "path": "a.jpg"}
    larger = edited(ImageResize(width=400, height=400, only_shrink=False), file, "a.jpg")
    assert size_of(larger["bytes"]) == (400, 200)


def test_a_turned_photo_is_resized_upright():
    exif = Image.Exif()
    exif[0x0112] = 6
    made = edited(ImageResize(width=100, height=100), saved(photo(800, 400), "JPEG", exif=exif))
    assert size_of(made["bytes"]) == (50, 100)
    assert not opened(made["bytes"]).getexif()


def test_a_crop_is_a_part_of_the_image():
    pixels = photo(90, 70)
    assert (decoded(edited(ImageCrop(width=30, height=20), saved(pixels))["bytes"]) == pixels[25:45, 30:60]).all()
    corner = edited(ImageCrop(width=30, height=20, left=80, top=60), saved(pixels))
    assert (decoded(corner["bytes"]) == pixels[60:, 80:]).all()
    with pytest.raises(ParameterError, match="at least 1"):
        Pipeline(Rows([row(saved(pixels))]), ImageCrop(width=0, height=1)).collect(executor="inline")


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP", "AVIF"])
def test_images_are_converted_with_the_quality_that_is_given(format_):
    file = saved(photo(200, 150), "BMP")
    good, bad = (edited(ImageConvert(format=format_, quality=quality), file, "x/a.bmp") for quality in (95, 20))
    assert opened(good["bytes"]).format == format_
    assert good["path"] == {"JPEG": "x/a.jpg"}.get(format_, f"x/a.{format_.lower()}")
    assert (len(good["bytes"]) > len(bad["bytes"])) == (format_ != "PNG")


# ------------------------------------------------------------------------------------------------------------- metadata


def tagged(orientation=1):
    exif = Image.Exif()
    exif[0x0112], exif[0x010F], exif[0x0110], exif[0x8298] = orientation, "Maker", "Model\0 ", "© Somebody"
    exif.get_ifd(0x8769)[0x9003] = "2024:02:30 25:00:00" if orientation == 3 else "2024:02:29 12:34:56"
    exif.get_ifd(0x8825).update({1: "S", 2: (33.0, 30.0, 0.0), 3: "E", 4: (151.0, 0.0, 36.0)})
    return exif


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP"])
def test_metadata_is_removed_and_pixels_stay(format_, orientation):
    options = {"comment": b"private"} if format_ == "JPEG" else {}
    file = saved(photo(64, 48), format_, exif=tagged(orientation), xmp=b"<x>private</x>", **options)
    assert b"private" in file or format_ == "PNG"
    made = edited(ImageMetadataRemoval(), file)["bytes"]
    assert b"private" not in made
    assert b"Maker" not in made
    assert dict(opened(made).getexif()) == ({0x0112: 6} if orientation == 6 else {})
    assert (pixels_of(made) == pixels_of(file)).all()
    assert (decoded(made) == decoded(file)).all()
    assert edited(ImageMetadataRemoval(), made)["bytes"] == made


def test_removing_metadata_changes_nothing_else():
    plain = saved(photo(64, 48), "JPEG", progressive=True, icc_profile=b"profile" * 20)
    with_data = plain[:20] + b"\xff\xe1\x00\x10Exif\0\0private\0" + plain[20:] + b"a video"
    assert edited(ImageMetadataRemoval(), with_data)["bytes"] == plain
    moving = animation([photo(30, 30, seed) for seed in range(3)], comment=b"private", loop=0)
    made = edited(ImageMetadataRemoval(), moving)["bytes"]
    assert b"private" not in made
    assert opened(made).n_frames == 3
    assert opened(made).info["loop"] == 0
    apng = animation([photo(30, 30, seed) for seed in range(3)], "PNG")
    assert edited(ImageMetadataRemoval(), apng)["bytes"] == apng


def test_thumbnails_in_jfif_segments_are_removed():
    plain = saved(photo(64, 48), "JPEG")
    assert plain[2:11] == b"\xff\xe0\0\x10JFIF\0"
    small = b"\1\2secret"  # 1 x 2 pixels of 3 bytes
    extended = b"\xff\xe0\0\x0fJFXX\0\x10private"
    file = plain[:4] + b"\0\x16" + plain[6:18] + small + extended + b"\xff\xee\0\x09private" + plain[20:]
    assert (pixels_of(file) == pixels_of(plain)).all()
    assert edited(ImageMetadataRemoval(), file)["bytes"] == plain


@pytest.mark.parametrize("skipped", [b"\0\0\0", b"private", b"\xff\x00private", b"\xff\xff\xff"])
def test_bytes_between_segments_of_a_jpeg_are_skipped(skipped):
    plain = saved(photo(64, 48), "JPEG")
    file = plain[:20] + skipped + plain[20:]
    assert (pixels_of(file) == pixels_of(plain)).all()
    assert edited(ImageMetadataRemoval(), file)["bytes"] == plain


def test_a_jpeg_without_pixels_fails():
    plain = saved(photo(64, 48), "JPEG")
    start = plain.index(b"\xff\xda")
    for end in (20, 100, start, start + 5):
        with pytest.raises(ImageError, match="truncated"):
            without_metadata(plain[:end], "JPEG", 1)
    with pytest.raises(ImageError, match="corrupt"):
        without_metadata(plain[:start] + b"\xff\xd9", "JPEG", 1)
    assert without_metadata(plain[:-20], "JPEG", 1) == plain[:-20]


def test_formats_whose_metadata_cannot_be_removed_fail():
    file = saved(photo(8, 8), "TIFF")
    with pytest.raises(ImageError, match="convert them first"):
        ImageMetadataRemoval().apply(batch_of(file))
    assert edited(ImageMetadataRemoval(others="keep"), file)["bytes"] == file


def test_exif_data_become_columns():
    rows = [
        row(saved(photo(8, 8), "JPEG", exif=tagged())),
        row(saved(photo(8, 8), exif=tagged(3))),
        row(saved(photo(8, 8))),
        row(None),
    ]
    found = Pipeline(Rows(rows), ImageExif()).collect(executor="inline").drop_columns(["image"]).to_pylist()
    assert found[0] == {
        "exif_make": "Maker",
        "exif_model": "Model",
        "exif_software": None,
        "exif_artist": None,
        "exif_copyright": found[0]["exif_copyright"],
        "exif_taken": datetime.datetime(2024, 2, 29, 12, 34, 56),
        "exif_latitude": -33.5,
        "exif_longitude": pytest.approx(151.01),
    }
    assert "Somebody" in found[0]["exif_copyright"]
    assert found[1]["exif_taken"] is None, "there is no such day"
    assert set(found[2].values()) == set(found[3].values()) == {None}


def test_exif_data_that_do_not_fit_in_memory_are_not_taken_for_missing(monkeypatch):
    def no_memory(self):
        raise MemoryError

    exif = Image.Exif()
    exif[0x0110] = "camera"
    monkeypatch.setattr(Image.Image, "getexif", no_memory)
    with pytest.raises(MemoryError):
        ImageExif().apply(batch_of(saved(photo(30, 20), "JPEG", exif=exif)))


# ---------------------------------------------------------------------------------------------------- digests and frames


def test_digests_of_bytes_and_of_pixels():
    pixels = photo(40, 30)
    first, second = saved(pixels), saved(pixels, compress_level=1)
    rows = [row(first), row(second), row(None)]
    steps = (ImageDigest(output="b"), ImageDigest(of="pixels", output="p"))
    found = Pipeline(Rows(rows), *steps).collect(executor="inline")
    assert found["b"].to_pylist() == [hashlib.sha256(first).hexdigest(), hashlib.sha256(second).hexdigest(), None]
    expected = hashlib.sha256(b"\x28\0\0\0\x1e\0\0\0" + pixels.tobytes()).hexdigest()
    assert found["p"].to_pylist() == [expected, expected, None]


@pytest.mark.parametrize("format_", ["GIF", "PNG", "WEBP", "TIFF"])
def test_frames_become_rows(format_):
    frames = [np.full((20, 30, 3), 60 * number, np.uint8) for number in range(4)]
    options = {"lossless": True} if format_ == "WEBP" else {}
    rows = [row(animation(frames, format_, **options), "a.gif") | {"id": 7}, row(saved(frames[0]), "b.png") | {"id": 8}]
    found = Pipeline(Rows(rows), ImageFrames()).collect(executor="inline")
    assert found["frame"].to_pylist() == [0, 1, 2, 3, 0]
    assert found["id"].to_pylist() == [7] * 4 + [8]
    images = found["image"].to_pylist()
    assert [int(pixels_of(each["bytes"])[0, 0, 0]) for each in images] == [0, 60, 120, 180, 0]
    assert images[-1] == rows[1]["image"]
    some = Pipeline(Rows(rows[:1]), ImageFrames(every=3)).collect(executor="inline")
    assert some["frame"].to_pylist() == [0, 3]


def test_an_animation_of_a_thousand_frames_is_limited():
    file = animation([np.full((8, 8, 3), number % 251, np.uint8) for number in range(1000)], duration=20)
    assert headers(batch_of(file), "image").width.tolist() == [8]
    found = Pipeline(Rows([row(file)]), ImageFrames(max_frames=12)).collect(executor="inline")
    assert len(found) == 12
    assert all(getattr(opened(each["bytes"]), "n_frames", 1) == 1 for each in found["image"].to_pylist())
