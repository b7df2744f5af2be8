"""Labels of images: the logits of transformers, tags of real photographs, watermarks."""

import json

import numpy as np
import pytest
import torch

from tamis import Pipeline
from tamis.context import Context
from tamis.errors import ParameterError
from tamis.image import ImageClassifier, ImageTags, Watermark
from tamis.image.classify import imagenet_labels
from tamis.models.files import ModelError
from tamis.models.outputs import sigmoid, softmax
from tamis.sources.memory import Rows
from tests.image.photographs import batch, row
from tests.image.test_embed import PHOTOGRAPHS, prepared
from tests.models.make_vision import write_convnext, write_image_classifier

LABELS = ["plain", "watermark", "drawing"]


def scores(step, rows):
    step.check()
    return {name: values.to_pylist() for name, values in step.open(Context()).score(rows).items()}


def logits(model, step, rows):
    with torch.inference_mode():
        return model(pixel_values=prepared(step, rows)).logits.numpy()


@pytest.mark.parametrize("write", [write_image_classifier, write_convnext])
def test_labels_are_those_of_transformers(tmp_path, write):
    model = write(tmp_path, LABELS)
    step = ImageClassifier(tmp_path, probabilities="all")
    rows = batch(*PHOTOGRAPHS)
    expected = softmax(logits(model, step, rows))
    found = scores(step, rows)
    assert found["label"] == [LABELS[number] for number in expected.argmax(axis=1)]
    np.testing.assert_allclose(found["score"], expected.max(axis=1), atol=2e-5)
    np.testing.assert_allclose(found["probabilities"], expected, atol=2e-5)


def test_several_labels_and_regressions(tmp_path):
    model = write_image_classifier(tmp_path / "several", LABELS, problem_type="multi_label_classification")
    step, rows = ImageClassifier(tmp_path / "several"), batch(*PHOTOGRAPHS)
    chosen = sigmoid(logits(model, step, rows)) >= 0.5
    assert scores(step, rows)["label"] == [
        [label for label, has in zip(LABELS, each, strict=True) if has] for each in chosen
    ]
    model = write_image_classifier(tmp_path / "one", ["beauty"], problem_type="regression")
    step = ImageClassifier(tmp_path / "one")
    np.testing.assert_allclose(scores(step, rows)["score"], logits(model, step, rows)[:, 0], atol=2e-5)
    with pytest.raises(ParameterError, match="no labels to filter by"):
        ImageClassifier(tmp_path / "one", filter_by=["beauty"]).check()


def test_images_are_kept_by_their_label(tmp_path):
    write_image_classifier(tmp_path, LABELS)
    label = scores(ImageClassifier(tmp_path), batch("coffee.png"))["label"][0]
    others = [name for name in LABELS if name != label]
    rows = Rows([row("coffee.png"), {"image": None}])
    kept = Pipeline(rows, ImageClassifier(tmp_path, filter_by=[label])).collect(executor="inline")
    assert kept["label"].to_pylist() == [label]
    report = Pipeline(rows, ImageClassifier(tmp_path, filter_by=others)).run(executor="inline")
    assert report.dropped == {f"label not in {', '.join(others)}": 1, "label is missing": 1}
    with pytest.raises(ParameterError, match="no label 'plane'"):
        ImageClassifier(tmp_path, filter_by=["plane"]).check()
    for wrong in ({"label_field": "score"}, {"score_field": "image"}):
        with pytest.raises(ParameterError, match=r"two columns named `score`|replace the column `image`"):
            ImageClassifier(tmp_path, **wrong).check()


def test_photographs_have_the_tags_of_what_they_show():
    found = scores(ImageTags(max_tags=2), batch("coffee.png", "chelsea.png", "rocket.jpg", None, "motorcycle_left.png"))
    coffee, cat, rocket, missing, motorcycle = found["tags"]
    assert coffee[0] == "espresso"
    assert set(cat) <= {"tiger cat", "Egyptian cat", "tabby"}
    assert rocket[0] in ("missile", "projectile")
    assert missing is None
    assert motorcycle[0] in ("moped", "motor scooter")
    assert found["tag_score"][0] > 0.9


def test_images_are_kept_and_dropped_by_their_tags():
    rows = Rows([row("coffee.png"), row("chelsea.png"), {"image": None}])
    report = Pipeline(rows, ImageTags(drop=["espresso", "cup"])).run(executor="inline")
    assert report.dropped == {"tags has espresso": 1, "tags is missing": 1}
    report = Pipeline(rows, ImageTags(keep=["espresso"])).run(executor="inline")
    assert report.dropped == {"tags has none of espresso": 1, "tags is missing": 1}
    with pytest.raises(ParameterError, match="no label 'expresso'"):
        ImageTags(keep=["expresso"]).check()


def test_imagenet_has_a_thousand_names():
    names = imagenet_labels()
    assert len(set(names)) == 1000
    assert (names[0], names[323], names[950], names[999]) == ("tench", "monarch", "orange", "toilet tissue")


def test_the_watermark_score_is_the_probability_of_its_label(tmp_path):
    model = write_image_classifier(tmp_path, LABELS)
    step, rows = Watermark(tmp_path), batch(*PHOTOGRAPHS)
    np.testing.assert_allclose(scores(step, rows)["watermark"], softmax(logits(model, step, rows))[:, 1], atol=2e-5)
    with pytest.raises(ParameterError, match="no label 'stamp'"):
        Watermark(tmp_path, label="stamp").check()


def test_a_model_with_too_few_names_is_an_error(tmp_path):
    write_image_classifier(tmp_path, LABELS)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"id2label": {"0": "plain", "1": "drawing"}}))
    with pytest.raises(ModelError, match=r"do not fit its config\.json: classifier"):
        ImageClassifier(tmp_path).open(Context()).score(batch("coffee.png"))
