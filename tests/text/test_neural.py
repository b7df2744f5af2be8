"""Classifiers: labels, probabilities and filters, compared with transformers itself."""

import warnings

import numpy as np
import pyarrow as pa
import pytest

from tamis import Pipeline, Rows
from tamis.context import Context
from tamis.models.files import find
from tamis.models.text_model import TextModel
from tamis.text import Classifier
from tests.models.make_models import SIZES, write_classifier

TEXTS = ["the cat sat on a mat", "", "one", "two three " * 60, "the old mill, by the river!", "bad bad", "x" * 300]


@pytest.fixture(scope="session", params=sorted(SIZES))
def architecture(request, tmp_path_factory):
    return write_classifier(tmp_path_factory.mktemp("models") / request.param, request.param)


def expected_logits(folder, texts):
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    inputs = tokenizer(texts, padding=True, truncation=True, max_length=64, return_tensors="pt")
    with torch.inference_mode():
        return model(inputs["input_ids"], inputs["attention_mask"]).logits.numpy()


def classified(folder, texts, **parameters):
    rows = Rows([{"text": text} for text in texts])
    return Pipeline(rows, Classifier(folder, **parameters)).collect(executor="inline")


def test_logits_equal_those_of_transformers(architecture):
    model = TextModel.open(find(architecture), Context())
    found = model.predict(pa.array(TEXTS))
    np.testing.assert_allclose(found, expected_logits(architecture, TEXTS), atol=1e-5)


def test_a_pipeline_adds_the_most_probable_label_and_its_probability(architecture):
    found = classified(architecture, TEXTS)
    logits = expected_logits(architecture, TEXTS)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = powers / powers.sum(axis=1, keepdims=True)
    assert found["label"].to_pylist() == [("low", "medium", "high")[number] for number in logits.argmax(axis=1)]
    assert found["score"].to_pylist() == pytest.approx(probabilities.max(axis=1), abs=1e-5)


def test_filter_by_drops_other_labels_with_a_reason(tmp_path):
    folder = write_classifier(tmp_path / "model")
    labels = classified(folder, TEXTS)["label"].to_pylist()
    kept = labels[0]
    report = Pipeline(Rows([{"text": text} for text in [*TEXTS, None]]), Classifier(folder, filter_by=[kept])).run(
        executor="inline"
    )
    assert report.kept == labels.count(kept)
    assert report.dropped == {
        f"label not in {kept}": len(labels) - labels.count(kept),
        "label is missing": 1,
    }
