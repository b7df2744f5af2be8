"""Filters by learned scores, on models small enough to reckon by hand."""

import pickle

import numpy as np
import pyarrow as pa
import pytest

from tamis import Pipeline, Rows
from tamis.batch import Batch
from tamis.context import Context
from tamis.errors import ParameterError, TamisError
from tamis.models.linear import LinearModel, Settings, train
from tamis.registry import build_operator
from tamis.text.classify import FastTextLabel, FastTextQuality, FastTextScore, LinearClassifier
from tamis.text.segment import buffers
from tests.models.make_fasttext import hand_made

ODD = [None, "", " \n ", "x", "\U0001f600", "\x00\x01", "日本語", "e\u0301", "a" * 5000]


@pytest.fixture
def model(tmp_path):
    return hand_made(tmp_path / "quality.bin", ["fine", "clear"], ["junk", "spam"])


@pytest.fixture
def linear(tmp_path):
    texts = ["a fine clear text"] * 20 + ["junk spam junk"] * 20
    data, offsets = buffers(pa.array(texts, pa.large_string()))
    trained = train(data, offsets, np.repeat([1, 0], 20), settings=Settings(bits=10), holdout=0.0)
    trained.model.save(tmp_path / "own.model")
    return tmp_path / "own.model"


def batch(texts):
    return Batch(pa.table({"text": pa.array(texts, pa.string())}))


def scores(step, texts):
    found = step.open(Context()).score(batch(texts))
    (values,) = (np.asarray(values) for name, values in found.items() if not name.endswith("margin"))
    return values


def test_a_score_worked_out_by_hand(model):
    # "fine" and </s>: the mean of (6, 0) and (0, 0) is (3, 0); softmax gives 1 / (1 + exp(-3)), and the library adds 1e-5
    found = scores(FastTextScore(model=model, label="__label__hq"), ["fine", "junk", "fine junk"])
    expected = 1 / (1 + np.exp(-3))
    assert found == pytest.approx([expected + 1e-5, 1 - expected + 1e-5, 0.5 + 1e-5], abs=1e-6)


def test_it_says_why_it_dropped(model):
    rows = [{"text": text} for text in ("fine clear", "junk", "", None)]
    report = Pipeline(Rows(rows), FastTextScore(model=model, label="__label__hq")).run(executor="inline")
    assert (report.kept, report.dropped) == (1, {"fasttext_score < 0.5": 3})


def test_scores_of_two_models_are_kept_apart(model):
    steps = [
        FastTextScore(model=model, label=f"__label__{kind}", score_column=kind, score_only=True)
        for kind in ("hq", "lq")
    ]
    table = Pipeline(Rows([{"text": "fine"}]), *steps).collect(executor="inline")
    assert table.column("hq")[0].as_py() + table.column("lq")[0].as_py() == pytest.approx(1, abs=1e-4)


def test_a_score_that_would_replace_the_text_is_a_mistake(model):
    step = FastTextScore(model=model, label="__label__hq", score_column="text")
    step.check()
    with pytest.raises(ParameterError, match="would replace the column `text`, which it reads"):
        step.changed(score_only=True).check()


def test_a_label_that_is_not_there_is_a_mistake(model):
    with pytest.raises(ParameterError, match="has no label '__label__hp'") as raised:
        FastTextScore(model=model, label="__label__hp").open(Context())
    assert "did you mean" in str(raised.value)


@pytest.mark.parametrize("make", [FastTextScore, FastTextQuality, FastTextLabel, LinearClassifier])
def test_a_missing_model_is_reported_before_data_moves(make, tmp_path):
    label = {"label": "__label__hq"} if make is FastTextScore else {}
    with pytest.raises(TamisError, match="there is no model file"):
        make(model=tmp_path / "none.bin", **label).check()


class TestQualityByLot:
    def test_the_better_the_likelier(self, model):
        rows = [{"text": text} for text in ["fine clear fine", "junk spam junk", "unknown"] for _ in range(400)]
        step = FastTextQuality(model=model, score_only=True)
        table = Pipeline(Rows(rows), step).collect(executor="inline")
        kept = np.asarray(table.column("fasttext_quality_margin")).reshape(3, 400) >= 0
        # a Pareto number exceeds x with probability (1 + x) ** -3
        for share, p in zip(kept.mean(axis=1), [0.989, 0.011, 0.5], strict=True):
            assert share == pytest.approx((1 + (1 - p)) ** -3, abs=0.07)

    def test_the_draw_depends_on_the_address_and_the_seed(self, model):
        texts = ["unknown"] * 50
        drawn = {}
        for seed in (1, 2):
            step = FastTextQuality(model=model, seed=seed).open(Context())
            drawn[seed] = step.score(batch(texts))["fasttext_quality_margin"]
            np.testing.assert_array_equal(drawn[seed], step.score(batch(texts))["fasttext_quality_margin"])
        assert len(set(drawn[1])) == 50
        assert (drawn[1] != drawn[2]).all()


def test_labels_as_columns(model):
    step = FastTextLabel(model=model).open(Context())
    found = step.apply(batch(["fine", "spam", "", None]))
    assert found["label"].to_pylist() == ["hq", "lq", None, None]
    assert found["label_confidence"].null_count == 2


def test_a_classifier_of_ones_own(linear):
    rows = [{"text": text} for text in ("a clear fine text", "spam spam", "", None)]
    report = Pipeline(Rows(rows), LinearClassifier(model=linear)).run(executor="inline")
    assert (report.kept, report.dropped) == (1, {"classifier_score < 0.5": 3})


def test_odd_texts_have_defined_scores(model, linear):
    for step in (FastTextScore(model=model, label="__label__hq"), LinearClassifier(model=linear)):
        found = scores(step, ODD)
        assert ((found >= 0) & (found <= 1)).all()
        assert found[:3].tolist() == [0, 0, 0]
        assert found.tolist() == [scores(step, [text])[0] for text in ODD]


def test_steps_travel_and_can_be_written_down(model, linear):
    for step in (
        FastTextScore(model=str(model), label="__label__hq"),
        LinearClassifier(model=str(linear), min_score=0.7),
    ):
        step.open(Context())
        assert len(pickle.dumps(step)) < 1000
        assert pickle.loads(pickle.dumps(step)) == step
        assert build_operator(step.name, step.parameters()) == step


def test_thresholds_can_change_without_measuring_again(model, linear):
    one, two = (FastTextScore(model=model, label="__label__hq", min_score=bound) for bound in (0.1, 0.9))
    assert one.measuring_identity() == two.measuring_identity() != one.identity()
    three = FastTextScore(model=model, label="__label__hq", max_chars=7)
    assert three.measuring_identity() != one.measuring_identity()
    assert LinearClassifier(model=linear).identity()["model"] != one.identity()["model"]


def test_a_linear_model_is_not_a_fasttext_model_nor_the_other_way(model, linear):
    with pytest.raises(TamisError, match="is not a fastText model"):
        FastTextLabel(model=linear).open(Context())
    with pytest.raises(TamisError, match="is not a classifier that Tamis trained"):
        LinearModel.load(model)
