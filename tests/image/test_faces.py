"""Faces and text in real pictures."""

import io

import numpy as np
import pytest
from PIL import Image, ImageDraw

from tamis import Pipeline
from tamis.batch import Batch
from tamis.context import Context
from tamis.errors import ParameterError
from tamis.image import BlurFaces, Faces, TextShare
from tamis.sources.memory import Rows
from tests.image.files import animation, opened, saved
from tests.image.photographs import batch, photograph, row


def scores(step, rows):
    step.check()
    return {name: values.to_pylist() for name, values in step.open(Context()).score(rows).items()}


def png(image: Image.Image) -> dict:
    target = io.BytesIO()
    image.save(target, "PNG")
    return {"image": {"bytes": target.getvalue(), "path": "made.png"}}


@pytest.mark.parametrize("detector", ["haar", "nudenet"])
def test_the_face_of_the_astronaut_is_counted_and_measured(detector):
    found = scores(Faces(detector, score_only=True), batch("astronaut.png", "coffee.png", None))
    assert found["num_faces"] == [1, 0, None]
    assert found["face_share"][0] == pytest.approx(0.035, abs=0.015)
    assert found["face_share"][1:] == [0.0, None]
    face = found["faces"][0][0]
    center = (face["x"] + face["width"] / 2, face["y"] + face["height"] / 2)
    assert center == pytest.approx((0.44, 0.24), abs=0.05)


def test_a_face_at_the_border_is_found():
    image = Image.open(photograph("astronaut.png")).convert("RGB").crop((170, 60, 280, 180))
    assert scores(Faces(max_faces=0), Batch.from_rows([png(image)]))["num_faces"] == [1]


def test_two_faces_are_two():
    image = Image.open(photograph("astronaut.png")).convert("RGB")
    both = Image.new("RGB", (1024, 512))
    both.paste(image, (0, 0))
    both.paste(image, (512, 0))
    found = scores(Faces(max_faces=0), Batch.from_rows([png(both)]))
    assert found["num_faces"] == [2]


def test_images_with_faces_are_dropped():
    rows = Rows([row("astronaut.png"), row("coffee.png"), {"image": None}])
    report = Pipeline(rows, Faces(max_faces=0)).run(executor="inline")
    assert report.dropped == {"num_faces > 0": 1, "num_faces is missing": 1}
    with pytest.raises(ParameterError, match="no bounds"):
        Faces().check()


def test_faces_are_blurred_and_other_images_stay_as_they_are():
    rows = Rows([row("astronaut.png"), row("coffee.png"), {"image": None}])
    table = Pipeline(rows, BlurFaces()).collect(executor="inline")
    assert table["num_blurred"].to_pylist() == [1, 0, None]
    astronaut, coffee, missing = table["image"].to_pylist()
    assert coffee == row("coffee.png")["image"]
    assert missing is None
    before = np.asarray(Image.open(photograph("astronaut.png")).convert("RGB"), np.int64)
    after = np.asarray(Image.open(io.BytesIO(astronaut["bytes"])), np.int64)
    assert after.shape == before.shape
    changed = np.abs(after - before).sum(axis=2) > 0
    assert changed[90:170, 190:260].mean() > 0.8, "the face"
    assert not changed[250:].any(), "below it"
    assert scores(Faces(max_faces=0), Batch.from_rows([{"image": astronaut}]))["num_faces"] == [0]


def test_blurred_images_keep_their_format():
    target = io.BytesIO()
    Image.open(photograph("astronaut.png")).convert("RGB").save(target, "JPEG", quality=95)
    rows = Rows([{"image": {"bytes": target.getvalue(), "path": "a.jpg"}}])
    image = Pipeline(rows, BlurFaces(quality=80)).collect(executor="inline")["image"].to_pylist()[0]
    assert Image.open(io.BytesIO(image["bytes"])).format == "JPEG"
    assert image["path"] == "a.jpg"
    with pytest.raises(ParameterError, match="quality"):
        BlurFaces(quality=0).check()


@pytest.mark.parametrize(
    ("format_", "suffix", "expected"), [("AVIF", "avif", "png"), ("PPM", "ppm", "png"), ("TIFF", "tif", "tif")]
)
def test_blurred_images_are_named_by_their_format(format_, suffix, expected):
    file = saved(Image.open(photograph("astronaut.png")).convert("RGB"), format_)
    rows = Rows([{"image": {"bytes": file, "path": f"a.{suffix}"}}])
    (image,) = Pipeline(rows, BlurFaces()).collect(executor="inline")["image"].to_pylist()
    assert image["path"] == f"a.{expected}"
    assert opened(image["bytes"]).format == ("PNG" if expected == "png" else format_)


@pytest.mark.parametrize("format_", ["GIF", "TIFF", "WEBP"])
def test_the_first_frame_of_an_animation_is_searched_and_kept(format_):
    face = np.asarray(Image.open(photograph("astronaut.png")).convert("RGB"))
    first, later = animation([face, face * 0], format_), animation([face * 0, face], format_)
    rows = Rows([{"image": {"bytes": file, "path": "a"}} for file in (first, later)])
    table = Pipeline(rows, BlurFaces()).collect(executor="inline")
    assert table["num_blurred"].to_pylist() == [1, 0]
    made = [opened(image["bytes"]) for image in table["image"].to_pylist()]
    assert [getattr(image, "n_frames", 1) for image in made] == [1, 2]


def test_pages_have_text_and_photographs_have_none():
    found = scores(TextShare(), batch("page.png", "coffee.png", "chelsea.png", None))
    assert found["text_share"][0] > 0.3
    assert found["text_share"][1:] == [0.0, 0.0, None]
    assert found["num_texts"][0] >= 5


def test_the_share_of_text_is_about_the_area_of_its_lines():
    image = Image.new("RGB", (800, 600), "white")
    draw = ImageDraw.Draw(image)
    area = 0.0
    for number in range(3):
        place = draw.textbbox((60, 80 + 160 * number), "Curated data 2024", font_size=70)
        draw.text((60, 80 + 160 * number), "Curated data 2024", fill="black", font_size=70)
        area += (place[2] - place[0]) * (place[3] - place[1]) / (800 * 600)
    found = scores(TextShare(), Batch.from_rows([png(image)]))
    assert found["num_texts"] == [3]
    assert found["text_share"][0] == pytest.approx(area, rel=0.5)


def test_pages_are_dropped():
    report = Pipeline(Rows([row("page.png"), row("coffee.png")]), TextShare()).run(executor="inline")
    assert report.dropped == {"text_share > 0.3": 1}
