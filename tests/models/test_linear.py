"""Custom classifiers: accuracy, reproducibility and file contents."""

import json
import random
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.errors import ParameterError, TamisError
from tamis.kernels import linear as kernel
from tamis.models.commands import train_classifier_on_files
from tamis.models.linear import Evaluation, LinearModel, Settings, area_under_curve, train
from tamis.text.segment import buffers

GOOD = ["harvest", "kettle", "lantern", "meadow", "orchard", "pebble", "quiet", "river", "saddle", "thimble"]
BAD = ["casino", "jackpot", "lottery", "pills", "prizes", "refund", "subscribe", "unlimited", "viagra", "winner"]


def made_texts(words, count, seed):
    rng = random.Random(seed)
    return [
        " ".join(rng.choice([*words, "the", "and", "of", "a"]) for _ in range(rng.randint(8, 20))) for _ in range(count)
    ]


def tensors(texts):
    return buffers(pa.array(texts, pa.large_string()))


@pytest.fixture(scope="module")
def lesson():
    texts = made_texts(GOOD, 200, 1) + made_texts(BAD, 100, 2)
    data, offsets = tensors(texts)
    targets = np.repeat(np.array([1, 0], np.uint8), [200, 100])
    return data, offsets, targets


SMALL = Settings(bits=14)


def test_separable_classes_are_separated(lesson):
    trained = train(*lesson, settings=SMALL)
    assert trained.evaluation.rows + trained.trained_rows == 300
    assert trained.evaluation.accuracy == 1
    assert trained.evaluation.auc == 1
    scores = trained.model.predict(*tensors(["the quiet meadow", "jackpot winner", "harvests and orchards"]))
    assert scores[0] > 0.5 > scores[1]
    assert scores[2] > 0.5, "words never seen, known by their letters"


def test_noise_cannot_be_learnt():
    texts = made_texts(GOOD, 600, 3)
    targets = np.array([random.Random(number).random() < 0.5 for number in range(600)])
    assert 0.2 < train(*tensors(texts), targets, settings=SMALL, holdout=0.3).evaluation.auc < 0.8


def test_the_same_lesson_gives_the_same_file(lesson, tmp_path):
    for name in ("one", "two"):
        train(*lesson, settings=SMALL).model.save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_the_loss_goes_down(lesson):
    seen = []
    losses = train(*lesson, settings=SMALL, epochs=4, progress=lambda epoch, loss: seen.append((epoch, loss))).losses
    assert list(losses) == sorted(losses, reverse=True)
    assert seen == list(enumerate(losses, 1))


def test_equal_texts_fall_on_one_side():
    texts = ["the same text"] * 50 + ["another one"] * 50 + made_texts(GOOD, 30, 5)
    targets = np.array([1] * 50 + [0] * 80, np.uint8)
    trained = train(*tensors(texts), targets, settings=SMALL, holdout=0.02)
    assert trained.evaluation.rows in (0, 50, *range(1, 6))


def test_one_class_alone_is_refused(lesson):
    data, offsets, targets = lesson
    with pytest.raises(TamisError, match="0 negative"):
        train(data, offsets, np.ones_like(targets))


@pytest.mark.parametrize("bad", [{"epochs": 0}, {"rate": 0.0}, {"holdout": 1.0}, {"settings": Settings(bits=40)}])
def test_settings_out_of_range_are_refused(lesson, bad):
    with pytest.raises(ParameterError):
        train(*lesson, **bad)


def naive_features(text, bits, shortest, longest):
    """The number of features, and the scored tokens, told slowly."""
    tokens, current = [], b""
    for byte in text.encode():
        kind = kernel.KINDS[byte]
        if kind == kernel.WORD:
            current += bytes([byte])
            continue
        tokens += [current] if current else []
        current = b""
        tokens += [bytes([byte])] if kind == kernel.SIGN else []
    tokens += [current] if current else []
    count = 0
    for token in tokens:
        chars = len(f"<{token.decode()}>")
        count += 1 + (len(token) <= kernel.LONGEST)
        count += sum(max(0, chars - n + 1) for n in range(shortest, longest + 1))
    return count


@given(st.text(max_size=120), st.integers(1, 4), st.integers(0, 6))
def test_features_are_as_many_as_there_should_be(text, shortest, longest):
    text = text.encode("utf-8", "ignore").decode()
    data, offsets = tensors([text])
    found, count = kernel.find_features(
        data, offsets[0], offsets[1], kernel.KINDS, (12, shortest, longest), np.zeros(4, np.int32)
    )
    assert count == naive_features(text, 12, shortest, longest)
    assert ((found[:count] >= 0) & (found[:count] < 1 << 12)).all()


@given(st.lists(st.text(max_size=80), min_size=1, max_size=6))
def test_scores_are_the_sum_of_the_weights_of_the_features(texts):
    texts = [text.encode("utf-8", "ignore").decode() for text in texts]
    settings = Settings(bits=10)
    weights = np.random.default_rng(0).normal(0, 1, 1 << 10).astype(np.float32)
    data, offsets = tensors(texts)
    scores = LinearModel(settings, weights, 0.25).predict(data, offsets)
    for row in range(len(texts)):
        found, count = kernel.find_features(
            data, offsets[row], offsets[row + 1], kernel.KINDS, settings.shape, np.zeros(64, np.int32)
        )
        if count == 0:
            assert np.isnan(scores[row])
            continue
        total = 0.25 + weights[found[:count]].astype(np.float64).sum() / np.sqrt(count)
        assert scores[row] == pytest.approx(1 / (1 + np.exp(-total)), abs=1e-6)


def test_a_text_scores_the_same_alone_and_among_others(lesson):
    model = train(*lesson, settings=SMALL).model
    texts = [*made_texts(GOOD, 40, 9), "é" * 40, "x" * 10_000, "!", "日本語のテキスト", "a\x00b"]
    together = model.predict(*tensors(texts)).tolist()
    assert together == [model.predict(*tensors([text]))[0] for text in texts]


class TestFiles:
    def test_what_is_saved_is_what_is_loaded(self, lesson, tmp_path):
        model = train(*lesson, settings=Settings(bits=10, max_chars=50)).model
        model.save(tmp_path / "new" / "m.model")
        loaded = LinearModel.load(tmp_path / "new" / "m.model")
        assert (loaded.settings, loaded.bias) == (model.settings, model.bias)
        np.testing.assert_array_equal(loaded.weights, model.weights)

    def test_it_is_a_safetensors_file(self, lesson, tmp_path):
        train(*lesson, settings=Settings(bits=8)).model.save(tmp_path / "m")
        raw = (tmp_path / "m").read_bytes()
        (size,) = struct.unpack_from("<Q", raw)
        header = json.loads(raw[8 : 8 + size])
        assert header["weights"] == {"dtype": "F32", "shape": [256], "data_offsets": [0, 1024]}
        assert len(raw) == 8 + size + 1024

    @pytest.mark.parametrize(
        "content", [b"", b"\x00" * 8, b"\xff" * 100, b"PK\x03\x04 not this one", b"\x02" + b"\0" * 7 + b"{}"]
    )
    def test_other_files_are_refused(self, content, tmp_path):
        (tmp_path / "m").write_bytes(content)
        with pytest.raises(TamisError, match="is not a classifier that Tamis trained"):
            LinearModel.load(tmp_path / "m")

    @pytest.mark.parametrize(
        ("weight", "bias"), [(np.nan, 0.0), (np.inf, 0.0), (-np.inf, 0.0), (1.0, np.nan), (1.0, np.inf)]
    )
    def test_weights_that_are_not_finite_are_refused(self, weight, bias, tmp_path):
        weights = np.zeros(256, np.float32)
        weights[7] = weight
        LinearModel(Settings(bits=8), weights, bias).save(tmp_path / "m")
        with pytest.raises(TamisError, match="some of its weights are not finite numbers"):
            LinearModel.load(tmp_path / "m")

    @pytest.mark.parametrize(
        ("part", "name", "value"),
        [
            ("weights", "dtype", "I32"),
            ("weights", "data_offsets", ["0", "1024"]),
            ("__metadata__", "bias", "much"),
            ("__metadata__", "settings", '{"bits": "8"}'),
        ],
    )
    def test_values_of_another_type_are_refused(self, part, name, value, tmp_path):
        LinearModel(Settings(bits=8), np.zeros(256, np.float32), 0.0).save(tmp_path / "m")
        raw = (tmp_path / "m").read_bytes()
        (size,) = struct.unpack_from("<Q", raw)
        header = json.loads(raw[8 : 8 + size])
        header[part][name] = value
        changed = json.dumps(header).encode()
        (tmp_path / "m").write_bytes(struct.pack("<Q", len(changed)) + changed + raw[8 + size :])
        with pytest.raises(TamisError, match="is not a classifier that Tamis trained"):
            LinearModel.load(tmp_path / "m")

    def test_a_file_cut_off_is_refused(self, lesson, tmp_path):
        train(*lesson, settings=Settings(bits=8)).model.save(tmp_path / "m")
        raw = (tmp_path / "m").read_bytes()
        for size in range(0, len(raw), 97):
            (tmp_path / "m").write_bytes(raw[:size])
            with pytest.raises(TamisError, match="is not a classifier that Tamis trained"):
                LinearModel.load(tmp_path / "m")


class TestMarks:
    def test_by_hand(self):
        marks = Evaluation.of(np.array([1, 1, 1, 0, 0]), np.array([0.9, 0.8, 0.2, 0.7, 0.1]))
        assert (marks.true_positive, marks.false_positive, marks.true_negative, marks.false_negative) == (2, 1, 1, 1)
        assert marks.accuracy == pytest.approx(3 / 5)
        assert marks.precision == marks.recall == marks.f1 == pytest.approx(2 / 3)
        assert marks.auc == pytest.approx(5 / 6)

    def test_nothing_to_measure(self):
        marks = Evaluation.of(np.array([], np.uint8), np.array([]))
        assert (marks.accuracy, marks.precision, marks.f1) == (0, 0, 0)
        assert np.isnan(marks.auc)

    @given(st.lists(st.tuples(st.booleans(), st.sampled_from([0.1, 0.4, 0.4, 0.9])), min_size=1, max_size=12))
    def test_the_area_counts_pairs(self, rows):
        true, scores = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
        pairs = [(p, n) for p in scores[true] for n in scores[~true]]
        expected = np.mean([(p > n) + (p == n) / 2 for p, n in pairs]) if pairs else np.nan
        assert area_under_curve(true, scores) == pytest.approx(expected, nan_ok=True)


class TestTrainingOnFiles:
    def write(self, path, texts, field="text"):
        path.write_text("".join(json.dumps({field: text}) + "\n" for text in texts))
        return str(path)

    def test_files_in_model_out(self, tmp_path):
        good = self.write(tmp_path / "good.jsonl", [*made_texts(GOOD, 150, 1), "", None, "in both"], "body")
        bad = self.write(tmp_path / "bad.jsonl", [*made_texts(BAD, 150, 2), "in both"], "body")
        out = str(tmp_path / "m.model")
        lesson = train_classifier_on_files([good], [bad], out, column="body", settings=SMALL)
        assert (lesson.positive, lesson.negative, lesson.skipped) == (150, 150, 2)
        assert "accuracy  1.0000" in str(lesson)
        assert f"wrote {out}" in str(lesson)
        assert LinearModel.load(out).predict(*tensors(["a quiet orchard"]))[0] > 0.5

    def test_only_so_many_of_each(self, tmp_path):
        good = self.write(tmp_path / "good.jsonl", made_texts(GOOD, 50, 1))
        bad = self.write(tmp_path / "bad.jsonl", made_texts(BAD, 50, 2))
        lesson = train_classifier_on_files([good], [bad], str(tmp_path / "m"), settings=SMALL, max_rows=20)
        assert (lesson.positive, lesson.negative) == (20, 20)
