"""The toxicity model of hatesonar: the same probabilities as the package, without its locale."""

import numpy as np
import pyarrow as pa
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from tamis import Pipeline, Rows
from tamis.batch import Batch
from tamis.context import Context
from tamis.errors import TamisError
from tamis.models.fasttext import find_model
from tamis.models.tfidf import TfidfClassifier
from tamis.text.toxicity import Toxicity

EXPECTED = {
    "This is a quiet afternoon in the library.": [0.037213, 0.267145, 0.695642],
    "I hate all of you, idiots": [0.339155, 0.377963, 0.282882],
    "": [0.037542, 0.28742, 0.675038],
    "ÉCOLE Straße naïve café": [0.018604, 0.241049, 0.740347],
    "STRASSE İstanbul ǅ": [0.037542, 0.28742, 0.675038],
    "don't_know what_to say @user http://t.co/x": [0.020331, 0.146125, 0.833544],
    "\u212a elvin kelvin": [0.037542, 0.28742, 0.675038],
    "trash trash trash birds yankees": [6e-05, 0.000123, 0.999817],
    "123 456 don\u2019t\nnew\tline": [0.043275, 0.241009, 0.715716],
}
"""What `hatesonar.Sonar().ping` of version 0.1.0 returns: hate speech, offensive language, neither."""


@pytest.fixture(scope="module")
def model():
    return TfidfClassifier.load(find_model("hatesonar.onnx"))


def test_probabilities_are_those_of_the_package(model):
    np.testing.assert_allclose(model.predict(list(EXPECTED)), list(EXPECTED.values()), atol=2e-6)


def test_features_are_those_of_scikit_learn(model):
    texts = [text for text in EXPECTED if text.isascii()] * 3 + ["a birds, a trash; library LIBRARY"]
    vectorizer = TfidfVectorizer(vocabulary=model.words, token_pattern=r"[a-zA-Z0-9_]+")
    vectorizer.idf_ = model.idf
    logits = vectorizer.transform(texts) @ model.coefficients.T + model.intercepts
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(model.predict(texts), expected, atol=1e-5)


def test_it_keeps_what_is_not_toxic():
    rows = [{"text": text} for text in ("A quiet afternoon in the library.", "I hate all of you, idiots", None)]
    report = Pipeline(Rows(rows), Toxicity()).run(executor="inline")
    assert report.dropped == {"toxicity > 0.5": 1}
    table = Pipeline(Rows(rows), Toxicity(score_only=True)).collect(executor="inline")
    sums = np.add(table["hate_speech"].to_pylist(), table["offensive_language"].to_pylist())
    assert table["toxicity"].to_pylist() == pytest.approx(sums.tolist())


def test_max_chars():
    batch = Batch(pa.table({"text": ["A library. " + "I hate idiots. " * 20]}))
    short, whole = (Toxicity(max_chars=n).open(Context()).score(batch)["toxicity"][0] for n in (10, None))
    assert short < 0.5 < whole


@pytest.mark.parametrize("change", ["half", "text", "empty", "other"])
def test_other_files_are_explained(tmp_path, change):
    raw = find_model("hatesonar.onnx").read_bytes()
    content = {
        "half": raw[: len(raw) // 2],
        "text": b"not a model",
        "empty": b"",
        "other": raw.replace(b"TfIdf", b"TfIdx"),
    }
    (tmp_path / "m.onnx").write_bytes(content[change])
    with pytest.raises(TamisError, match="is not a TF-IDF classifier"):
        TfidfClassifier.load(tmp_path / "m.onnx")
