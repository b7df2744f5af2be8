"""Classifiers on embeddings: the optimum of logistic regression, held-out metrics, files, and the step that uses them."""

import gzip
import json
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, precision_score, recall_score, roc_auc_score

import tamis
from tamis import Pipeline, Rows
from tamis.errors import ParameterError, SourceError, TamisError, TooManyFailed
from tamis.models import heads
from tamis.models.commands import train_head_on_files
from tamis.models.files import ModelError
from tamis.models.heads import Embeddings, Head, HeadEvaluation, train_head
from tamis.recipes.load import load_recipe
from tamis.text.embed import Embed
from tamis.text.embedding_classifier import EmbeddingClassifier

MODEL = str(Path(__file__).parent.parent / "text" / "data" / "classifier")
"""A network with random weights; its vectors still tell which words a text has."""


def clusters(rows=600, labels=3, size=12, seed=1):
    """Overlapping groups of vectors, and the number of the group of each."""
    random = np.random.Generator(np.random.PCG64(seed))
    targets = random.integers(0, labels, rows)
    centers = random.normal(size=(labels, size))
    return (centers[targets] + 1.5 * random.normal(size=(rows, size))).astype(np.float32), targets


class TestTraining:
    def test_it_finds_the_optimum_of_logistic_regression(self):
        vectors, targets = clusters()
        points = np.concatenate([(vectors - vectors.mean(0)) / vectors.std(0), np.ones((len(vectors), 1))], axis=1)
        found = heads._fit(points, np.eye(3)[targets], np.ones(len(points)), 1e-2)
        reference = LogisticRegression(C=1 / (1e-2 * len(points)), tol=1e-8, max_iter=2000).fit(points[:, :-1], targets)
        expected = reference.predict_proba(points[:, :-1])
        np.testing.assert_allclose(heads._softmax(points @ found.T), expected, atol=1e-3)

    def test_the_head_takes_vectors_as_they_are(self):
        vectors, targets = clusters()
        shifted = vectors * 0.01 + 5
        held = np.arange(len(vectors)) % 10 == 0
        names = ["a", "b", "c"]
        plain, moved = (
            train_head(points, targets, names, held, Embeddings("m", "x", 12)) for points in (vectors, shifted)
        )
        np.testing.assert_allclose(plain.head.predict(vectors), moved.head.predict(shifted), atol=0.01)
        assert plain.evaluation.accuracy > 0.7
        assert plain.evaluation.rows == 60
        assert plain.trained_rows == 540

    def test_training_is_deterministic(self, tmp_path):
        vectors, targets = clusters()
        for name in ("one", "two"):
            held = np.arange(len(vectors)) % 10 == 0
            train_head(vectors, targets, ["a", "b", "c"], held, Embeddings("m", "x", 12)).head.save(tmp_path / name)
        assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()

    def test_balanced_labels_have_the_same_weight(self):
        random = np.random.Generator(np.random.PCG64(3))
        targets = (random.random(2000) < 0.05).astype(np.int64)
        vectors = (random.normal(size=(2000, 4)) + targets[:, None]).astype(np.float32)
        held = np.zeros(2000, np.bool_)
        made = Embeddings("m", "x", 4)
        names = ["negative", "positive"]
        plain = train_head(vectors, targets, names, held, made).head.predict(vectors)[:, 1]
        even = train_head(vectors, targets, names, held, made, balanced=True).head.predict(vectors)[:, 1]
        assert (plain >= 0.5)[targets == 1].mean() < 0.5 < (even >= 0.5)[targets == 1].mean()

    def test_a_label_without_rows(self):
        vectors, targets = clusters(labels=2)
        with pytest.raises(TamisError, match="no rows to train on for c"):
            train_head(vectors, targets, ["a", "b", "c"], np.zeros(600, np.bool_), Embeddings("m", "x", 12))
        with pytest.raises(TamisError, match="the same label"):
            train_head(vectors, targets * 0, ["a"], np.zeros(600, np.bool_), Embeddings("m", "x", 12))


def test_metrics_are_those_of_scikit_learn():
    random = np.random.Generator(np.random.PCG64(5))
    targets = random.integers(0, 3, 200)
    chances = random.dirichlet([1, 1, 1], 200) + 0.4 * np.eye(3)[targets]
    chances /= chances.sum(1, keepdims=True)
    found, said = HeadEvaluation.of(["a", "b", "c"], targets, chances), chances.argmax(1)
    assert found.accuracy == pytest.approx((said == targets).mean())
    assert found.auc == pytest.approx(roc_auc_score(targets, chances, multi_class="ovr"))
    assert [label.f1 for label in found.labels] == pytest.approx(f1_score(targets, said, average=None))
    assert [label.precision for label in found.labels] == pytest.approx(precision_score(targets, said, average=None))
    assert [label.recall for label in found.labels] == pytest.approx(recall_score(targets, said, average=None))
    assert found.macro_f1 == pytest.approx(f1_score(targets, said, average="macro"))


class TestFiles:
    @pytest.fixture
    def head(self):
        made = Embeddings("minilm", "abc", 4, max_chars=100)
        return Head(("a", "b"), np.arange(8, dtype=np.float32).reshape(2, 4), np.array([1, -1], np.float32), made)

    def test_a_saved_head_is_the_same_when_loaded(self, head, tmp_path):
        head.save(tmp_path / "x" / "h.head")
        found = Head.load(tmp_path / "x" / "h.head")
        assert (found.labels, found.embeddings) == (head.labels, head.embeddings)
        assert found.weights.tolist() == head.weights.tolist()
        assert found.bias.tolist() == head.bias.tolist()

    def test_it_is_a_safetensors_file(self, head, tmp_path):
        from safetensors.numpy import load_file

        head.save(tmp_path / "h.head")
        assert load_file(tmp_path / "h.head")["weights"].tolist() == head.weights.tolist()

    @pytest.mark.parametrize("damage", ["half", "kind", "nan", "labels", "empty", "offsets"])
    def test_damaged_files_are_explained(self, head, tmp_path, damage):
        if damage == "nan":
            head.weights[0, 0] = np.nan
        head.save(tmp_path / "h.head")
        raw = (tmp_path / "h.head").read_bytes()
        (size,) = struct.unpack_from("<Q", raw)
        header = json.loads(raw[8 : 8 + size])
        if damage == "kind":
            header["__metadata__"]["kind"] = "tamis linear classifier 1"
        if damage == "labels":
            header["__metadata__"]["labels"] = '["a", "b", "c"]'
        if damage == "offsets":
            header["bias"]["data_offsets"] = [0, 1 << 40]
        text = json.dumps(header).encode()
        made = {"half": raw[: len(raw) // 2], "empty": b"", "nan": raw}
        (tmp_path / "h.head").write_bytes(made.get(damage, struct.pack("<Q", len(text)) + text + raw[8 + size :]))
        with pytest.raises(TamisError, match="is not a classifier on embeddings"):
            Head.load(tmp_path / "h.head")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two sides of texts that differ in their words, and the same with labels in a column."""
    folder = tmp_path_factory.mktemp("texts")
    random = np.random.Generator(np.random.PCG64(2))
    words = {"positive": ["cat", "mat", "sat", "quiet"], "negative": ["dog", "ran", "barks", "loud"]}
    rows = [
        {"text": " ".join(random.choice([*words[label], "the", "on", "and"], 12)), "label": label}
        for label in words
        for _ in range(150)
    ]
    rows += [{"text": "the the the", "label": label} for label in words]
    for label in words:
        side = [row for row in rows if row["label"] == label]
        (folder / f"{label}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in side))
    (folder / "all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def trained(files):
    output = str(files / "quality.head")
    sides = {name: [str(files / f"{name}.jsonl")] for name in ("positive", "negative")}
    return train_head_on_files(MODEL, output, **sides)


class TestOnFiles:
    def test_the_report_says_what_was_trained(self, trained):
        assert trained.skipped == 2
        assert trained.counts == {"negative": 150, "positive": 150}
        metrics = trained.trained.evaluation
        assert metrics.accuracy > 0.8
        assert metrics.rows + trained.trained.trained_rows == 300
        text = str(trained)
        assert "left out 2 texts found with several labels" in text
        assert f"accuracy  {metrics.accuracy:.4f}" in text
        assert "positive: F1" in text
        assert "EmbeddingClassifier(model=" in text

    def test_labels_in_a_column(self, files, trained):
        again = train_head_on_files(MODEL, str(files / "l.head"), labelled=[str(files / "all.jsonl")])
        assert again.counts == trained.counts
        assert again.trained.evaluation.accuracy > 0.8

    def test_wrong_combinations_and_columns(self, files):
        sides = [str(files / "positive.jsonl")]
        for wrong in ({"positive": sides}, {}, {"positive": sides, "negative": sides, "labelled": sides}):
            with pytest.raises(ParameterError, match="positive and negative texts, or labelled ones"):
                train_head_on_files(MODEL, "x", **wrong)
        with pytest.raises(SourceError, match="no column `kind`"):
            train_head_on_files(MODEL, "x", labelled=sides, label_column="kind")

    def test_real_texts_in_a_packaged_model(self, tmp_path):
        """State of the Union addresses against lines of code, on MiniLM."""
        folder = Path(tamis.__file__).parent
        speeches = gzip.decompress((folder / "recipes" / "speeches.jsonl.gz").read_bytes()).splitlines()[:60]
        texts = [json.loads(line)["text"][:300] for line in speeches]
        code = [path.read_text()[:300] for path in sorted(folder.rglob("*.py"))[:60] if path.stat().st_size > 300]
        for name, rows in (("good", texts), ("bad", code)):
            (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
        done = train_head_on_files(
            "minilm",
            str(tmp_path / "m.head"),
            positive=[str(tmp_path / "good.jsonl")],
            negative=[str(tmp_path / "bad.jsonl")],
            holdout=0.3,
        )
        assert done.trained.evaluation.accuracy > 0.95


class TestAsAStep:
    ROWS = (
        {"text": "cat mat the sat quiet cat on mat sat quiet cat and"},
        {"text": "dog ran the barks loud dog on ran barks loud dog and"},
        {"text": None},
    )

    def test_it_labels_and_filters(self, trained):
        table = Pipeline(Rows(list(self.ROWS)), EmbeddingClassifier(trained.output, probabilities="p")).collect(
            executor="inline"
        )
        assert table["label"].to_pylist() == ["positive", "negative", None]
        first, second, none = table["score"].to_pylist()
        assert second < 0.5 < first
        assert none is None
        assert table["p"][0].as_py()[1] == pytest.approx(first)
        step = EmbeddingClassifier(trained.output, filter_by=["positive"])
        report = Pipeline(Rows(list(self.ROWS)), step).run(executor="inline")
        assert report.dropped == {"label is missing": 1, "label not in positive": 1}
        step = EmbeddingClassifier(trained.output, min_score=0.5)
        assert Pipeline(Rows(list(self.ROWS)), step).run(executor="inline").dropped == {
            "score is missing": 1,
            "score < 0.5": 1,
        }

    def test_vectors_that_are_already_there_are_used(self, trained):
        embed = Embed(MODEL)
        step = EmbeddingClassifier(trained.output, embedding="embedding")
        assert step.reads() == ("embedding",)
        table = Pipeline(Rows(list(self.ROWS)), embed, step).collect(executor="inline")
        plain = Pipeline(Rows(list(self.ROWS)), EmbeddingClassifier(trained.output)).collect(executor="inline")
        assert table["label"].to_pylist() == plain["label"].to_pylist()
        assert table["score"].to_pylist()[:2] == pytest.approx(plain["score"].to_pylist()[:2], abs=1e-5)
        assert step.resources.memory is None

    def test_vectors_of_another_size(self, trained):
        rows = pa.table({"embedding": pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2))})
        with pytest.raises(TamisError, match="not vectors of"):
            Pipeline(Rows(rows), EmbeddingClassifier(trained.output, embedding="embedding")).collect(executor="inline")

    @pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float64())])
    def test_a_vector_of_another_size_fails_its_row_and_a_null_has_no_label(self, trained, kind):
        size = Head.load(trained.output).embeddings.dimensions
        rows = pa.table({"v": pa.array([[1.0] * size, None, [1.0, 2.0], [0.5] * size], kind)})
        step = EmbeddingClassifier(trained.output, embedding="v")
        with pytest.raises(TooManyFailed, match=rf"`v` has 2 values, not {size} as the vectors of "):
            Pipeline(Rows(rows), step).collect(executor="inline", on_error="isolate")
        found = Pipeline(Rows(rows), step).collect(executor="inline", on_error="isolate", max_failed=1)
        assert [label is None for label in found["label"].to_pylist()] == [False, True, False]
        fixed = rows.take([0, 1, 3]).cast(pa.schema([("v", pa.list_(kind.value_type, size))]))
        same = Pipeline(Rows(fixed), step).collect(executor="inline")
        assert same["score"].to_pylist() == pytest.approx(found["score"].to_pylist())

    def test_a_column_without_vectors_has_no_labels(self, trained):
        rows = pa.table({"v": pa.nulls(2)})
        found = Pipeline(Rows(rows), EmbeddingClassifier(trained.output, embedding="v")).collect(executor="inline")
        assert found["label"].to_pylist() == found["score"].to_pylist() == [None, None]

    def test_the_embedding_model_must_be_the_one_it_was_trained_on(self, trained, tmp_path):
        made = Head.load(trained.output)
        other = Head(made.labels, made.weights, made.bias, Embeddings(MODEL, "other", made.embeddings.dimensions))
        other.save(tmp_path / "other.head")
        with pytest.raises(ModelError, match="trained on other vectors"):
            EmbeddingClassifier(tmp_path / "other.head").check()

    def test_columns_that_would_be_lost(self, trained):
        with pytest.raises(ParameterError, match="would add two columns named `x`"):
            EmbeddingClassifier(trained.output, label_field="x", score_field="x").check()
        with pytest.raises(ParameterError, match="would replace the column `v`"):
            EmbeddingClassifier(trained.output, embedding="v", score_field="v").check()

    def test_unknown_labels_and_other_files(self, trained, files):
        with pytest.raises(ParameterError, match="no label 'positiv'"):
            EmbeddingClassifier(trained.output, filter_by=["positiv"]).check()
        with pytest.raises(TamisError, match="not a classifier on embeddings"):
            EmbeddingClassifier(files / "all.jsonl").check()

    def test_in_a_recipe(self, trained, files, tmp_path):
        recipe = tmp_path / "r.yaml"
        recipe.write_text(
            "steps:\n"
            f"  - jsonl_reader: {{file_paths: {files / 'all.jsonl'}}}\n"
            f"  - embedding_classifier: {{model: {trained.output}, filter_by: [positive]}}\n"
            f"  - jsonl_writer: {{path: {tmp_path / 'out'}}}\n"
        )
        report = load_recipe(recipe).build().run(executor="inline")
        assert report.balances
        assert 130 <= report.kept <= 170
