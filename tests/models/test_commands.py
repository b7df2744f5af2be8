"""The commands as typer runs them."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tamis.errors import ColumnError, ParameterError
from tamis.looking.commands import stats
from tamis.models.commands import train_classifier, train_language_model


@pytest.fixture
def run():
    app = typer.Typer()
    app.command("train-classifier")(train_classifier)
    app.command("train-language-model")(train_language_model)
    app.command("stats")(stats)

    def call(*arguments):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    return call


@pytest.fixture
def folders(tmp_path):
    for name, word in (("good", "meadow"), ("bad", "casino")):
        rows = [{"body": f"{word} number {number} and more {word}"} for number in range(60)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_train_classifier_prints_held_out_metrics_and_writes_the_model(run, folders):
    sides = ["--positive", folders / "good.jsonl", "--negative", folders / "bad.jsonl", "-o", folders / "m.model"]
    said = run("train-classifier", *sides, "--column", "body", "--bits", 10, "--epochs", 2)
    assert "60 positive and 60 negative texts" in said
    assert "accuracy  1.0000" in said
    assert (folders / "m.model").stat().st_size > 4096


def test_train_classifier_on_embeddings(run, folders):
    model = Path(__file__).parent.parent / "text" / "data" / "classifier"
    sides = ["--positive", folders / "good.jsonl", "--negative", folders / "bad.jsonl", "-o", folders / "m.head"]
    said = run("train-classifier", *sides, "--column", "body", "--embeddings", model, "--holdout", 0.2)
    assert "120 texts (60 negative, 60 positive)" in said
    assert "macro F1" in said
    assert f"EmbeddingClassifier(model='{folders / 'm.head'}', filter_by=['positive'])" in said


@pytest.mark.parametrize(
    ("negative", "message"),
    [
        ("good.jsonl", "there are no texts to train on; 120 texts with several labels were left out"),
        ("empty.jsonl", "all 60 texts to train on have the label 'positive'"),
    ],
)
def test_texts_of_one_label_are_an_error_before_they_are_embedded(run, folders, negative, message):
    (folders / "empty.jsonl").touch()
    sides = ["--positive", folders / "good.jsonl", "--negative", folders / negative, "-o", folders / "m.head"]
    with pytest.raises(ParameterError, match=message):
        run("train-classifier", *sides, "--column", "body", "--embeddings", "no-such-model")
    labelled = ["--labelled", folders / "empty.jsonl", "-o", folders / "m.head"]
    with pytest.raises(ParameterError, match="there are no texts to train on"):
        run("train-classifier", *labelled, "--embeddings", "no-such-model")


@pytest.mark.parametrize("options", [[], ["--embeddings", "wordllama"]])
def test_without_held_out_texts_there_are_no_metrics(run, folders, options):
    sides = ["--positive", folders / "good.jsonl", "--negative", folders / "bad.jsonl", "-o", folders / "m"]
    said = run("train-classifier", *sides, "--column", "body", "--bits", 10, "--holdout", 0, *options)
    assert "no metrics, since no text was held out" in said
    assert "accuracy" not in said


@pytest.mark.parametrize("column", ["text", "label"])
def test_lists_in_place_of_texts_or_labels_are_an_error(run, tmp_path, column):
    row = {"text": "a", "label": "b"} | {column: ["a"]}
    (tmp_path / "in.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(ColumnError, match=f"column `{column}` holds list"):
        run(
            "train-classifier", "--labelled", tmp_path / "in.jsonl", "--embeddings", "minilm", "-o", tmp_path / "m.head"
        )


def test_several_labels_need_embeddings(run, folders):
    with pytest.raises(ParameterError, match="needs --positive and --negative") as caught:
        run("train-classifier", "--labelled", folders / "good.jsonl", "-o", folders / "m.head")
    assert "--embeddings" in str(caught.value.hint)


def test_stats_prints_tables_or_json(run, folders):
    options = ["--column", "body", "--no-language"]
    assert "documents                 60" in run("stats", folders / "good.jsonl", *options)
    assert json.loads(run("stats", folders / "good.jsonl", *options, "--json"))["rows"] == 60


def test_stats_fits_the_terminal(run, folders, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    said = run("stats", folders / "good.jsonl", "--column", "body", "--no-language")
    tables = said.partition("\n\nlanguages were")[0]
    assert max(map(len, tables.splitlines())) <= 80
    assert "median" in said


def test_train_language_model_prints_perplexities_and_writes_the_model(run, folders):
    said = run("train-language-model", "--input", folders / "good.jsonl", "-o", folders / "m.lm", "--column", "body")
    assert "60 texts" in said
    assert "n-grams     8, " in said  # meadow number 0 00 and more, begin and end of a line; digits are read as 0
    assert "on held-out texts" in said
    assert (folders / "m.lm").stat().st_size > 100


def test_the_language_model_does_not_depend_on_memory(run, folders):
    command = ["train-language-model", "--input", folders / "good.jsonl", "--column", "body"]
    run(*command, "-o", folders / "a.lm")
    run(*command, "-o", folders / "b.lm", "--memory", "512MB")
    assert (folders / "a.lm").read_bytes() == (folders / "b.lm").read_bytes()
