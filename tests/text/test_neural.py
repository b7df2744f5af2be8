"""Classifiers: labels, probabilities and filters, compared with transformers itself."""

import json
import warnings

import numpy as np
import pyarrow as pa
import pytest

from tamis import JsonlWriter, Pipeline, Rows
from tamis.context import Context
from tamis.dedup import SemanticDedup
from tamis.errors import MissingExtra, ParameterError
from tamis.models.files import ModelError, find
from tamis.models.text_model import TextModel
from tamis.text import (
    Classifier,
    Embed,
    FineWebEduClassifier,
    Generate,
    NeuralPerplexity,
    QualityClassifier,
    Tokenize,
)
from tests.models.make_models import SIZES, write_classifier, write_onnx

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


@pytest.mark.parametrize("padding", [0, 1, None, -1])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_a_decoder_classifies_by_the_last_token_of_each_text(architecture, padding, tmp_path):
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = write_classifier(tmp_path / "model", architecture, pad_token_id=padding)
    texts = ["the cat sat on the mat", "cat", "good river", "one two three"]
    found = TextModel.open(find(folder), Context()).predict(pa.array(texts))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        alone = [model(**tokenizer(text, return_tensors="pt")).logits[0].numpy() for text in texts]
    np.testing.assert_allclose(found, np.array(alone), atol=1e-5)


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


def test_probabilities_of_all_labels_are_a_fixed_size_list(tmp_path):
    folder = write_classifier(tmp_path / "model")
    found = classified(folder, [*TEXTS, None], probabilities="p")
    assert found["p"].type == pa.list_(pa.float32(), 3)
    logits = expected_logits(folder, TEXTS)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    *rows, last = found["p"].to_pylist()
    np.testing.assert_allclose(np.array(rows), powers / powers.sum(axis=1, keepdims=True), atol=1e-5)
    assert last is None
    assert found["label"][-1].as_py() is found["score"][-1].as_py() is None


def test_a_model_of_several_labels_lists_those_that_apply(tmp_path):
    folder = write_classifier(tmp_path / "model", problem_type="multi_label_classification")
    found = classified(folder, [*TEXTS, None])
    logits = expected_logits(folder, TEXTS)
    names = np.array(["low", "medium", "high"])
    assert found["label"].to_pylist() == [*(names[row >= 0].tolist() for row in logits), None]
    assert found["score"].to_pylist()[:-1] == pytest.approx(1 / (1 + np.exp(-logits.max(axis=1))), abs=1e-5)
    kept = classified(folder, [*TEXTS, None], filter_by=["high"])
    assert kept["text"].to_pylist() == [text for text, row in zip(TEXTS, logits, strict=True) if row[2] >= 0]


def test_a_regression_gives_its_value_and_is_filtered_by_score(tmp_path):
    folder = write_classifier(tmp_path / "model", labels=("quality",))
    values = expected_logits(folder, TEXTS)[:, 0]
    found = classified(folder, TEXTS, score_field="quality")
    assert found.column_names == ["text", "quality"]
    assert found["quality"].to_pylist() == pytest.approx(values, abs=1e-5)
    bound = float(np.median(values)) - 1e-3
    kept = classified(folder, TEXTS, min_score=bound)
    assert kept["text"].to_pylist() == [text for text, value in zip(TEXTS, values, strict=True) if value >= bound]
    with pytest.raises(ParameterError, match="no labels to filter by"):
        Classifier(folder, filter_by=["quality"]).check()


def test_an_unknown_label_is_explained(tmp_path):
    folder = write_classifier(tmp_path / "model")
    with pytest.raises(ParameterError, match=r"no label 'hihg'[\s\S]*did you mean `high`"):
        Classifier(folder, filter_by=["hihg"]).check()


def test_columns_that_would_be_lost_are_found_before_the_run(tmp_path):
    step = Classifier(write_classifier(tmp_path / "model"), column="body")
    with pytest.raises(ParameterError, match="would add two columns named `p`"):
        step.changed(score_field="p", probabilities="p").check()
    with pytest.raises(ParameterError, match="would replace the column `body`"):
        step.changed(label_field="body").check()


def test_more_outputs_than_names_are_refused(tmp_path):
    folder = write_classifier(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {"0": "a", "1": "b"}
    config["label2id"] = {"a": 0, "b": 1}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="must name the 3 outputs of the network; it has 2 names"):
        Classifier(folder).open(Context())


def test_names_of_labels_with_gaps_are_refused_before_the_run(tmp_path):
    folder = write_classifier(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {"0": "a", "1": "b", "7": "c"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="not numbered from 0 without gaps"):
        Classifier(folder).check()


def test_a_number_of_labels_that_is_none_is_refused_before_the_run(tmp_path):
    folder = write_classifier(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config = {name: value for name, value in config.items() if "label" not in name} | {"num_labels": "three"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"`num_labels` in .* is 'three', not a number"):
        classified(folder, ["cat"])


def test_a_model_that_turns_out_not_to_fit_ends_the_run_and_fails_no_row(tmp_path):
    folder = write_classifier(tmp_path / "model")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["cat"] = 90_000
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    rows = Rows([{"text": text} for text in TEXTS])
    with pytest.raises(ModelError, match=r"a token has number \d+, but the network only knows"):
        Pipeline(rows, Classifier(folder), JsonlWriter(tmp_path / "out")).run(executor="inline", on_error="isolate")


def test_a_graph_gives_the_labels_of_its_network(tmp_path):
    folder = write_classifier(tmp_path / "model")
    expected = classified(folder, [*TEXTS, None], probabilities="p")
    path = write_onnx(folder, tmp_path / "graph", "AutoModelForSequenceClassification", ("logits",))
    (tmp_path / "graph" / "config.json").write_bytes((folder / "config.json").read_bytes())
    for model in (path, tmp_path / "graph"):
        found = classified(model, [*TEXTS, None], probabilities="p")
        assert found["label"].to_pylist() == expected["label"].to_pylist()
        np.testing.assert_allclose(found["p"].to_pylist()[:-1], expected["p"].to_pylist()[:-1], atol=1e-4)
        assert found["p"].to_pylist()[-1] is None
    with pytest.raises(ParameterError, match="runs on the CPU only"):
        Classifier(path, device="gpu").check()
    (tmp_path / "graph" / "config.json").unlink()
    with pytest.raises(ModelError, match="has 3 outputs but 2 names of labels"):
        classified(path, ["cat"])


def test_a_model_of_another_kind_is_explained_before_the_run(tmp_path):
    with pytest.raises(ModelError, match="`classifier` needs a sequence-classification model, and wordllama is not"):
        classified("wordllama", ["cat"])
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(ModelError, match="`quality_classifier` needs config"):
        QualityClassifier(model=tmp_path / "model.onnx").check()


@pytest.mark.parametrize(
    "make",
    [
        Classifier,
        Embed,
        Tokenize,
        lambda folder: FineWebEduClassifier(model=folder),
        lambda folder: NeuralPerplexity(folder, score_only=True),
        lambda folder: Generate(folder, prompt="{text}"),
        lambda folder: SemanticDedup(model=str(folder)),
    ],
)
def test_a_library_that_is_not_installed_is_named_before_the_run(make, tmp_path, monkeypatch):
    folder = write_classifier(tmp_path / "model")
    monkeypatch.setattr("tamis.plan.is_installed", lambda module: False)
    with pytest.raises(MissingExtra, match=r"step 2, .* `tokenizers`[\s\S]*pip install 'tamis\[models\]'"):
        Pipeline(Rows([{"text": "a"}]), make(folder)).run(executor="inline")


def test_scores_are_kept_for_other_filters_and_labels_stay_with_score_only(tmp_path):
    folder = write_classifier(tmp_path / "model")
    step = Classifier(folder, filter_by=["low"])
    assert step.measuring_identity() == step.changed(filter_by=["high"], min_score=0.1).measuring_identity()
    assert step.measuring_identity() != step.changed(max_tokens=5).measuring_identity()
    rows = Rows([{"text": text} for text in TEXTS])
    assert Pipeline(rows, step.changed(score_only=True)).collect(executor="inline").num_rows == len(TEXTS)


def test_a_missing_model_is_reported_with_its_step(tmp_path):
    with pytest.raises(ModelError, match=r"step 2, `classifier`: [\s\S]*nowhere"):
        Pipeline(Rows([{"text": "a"}]), Classifier(tmp_path / "nowhere")).run(executor="inline")
