"""Workflows in Python and the commands that run them."""

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tamis import JsonlReader, JsonlWriter, ParquetWriter, Pipeline, Rows
from tamis.dedup import Groups, ImageDedup, SemanticDedup
from tamis.dedup.commands import app
from tamis.errors import ParameterError, SourceError
from tamis.workflows import (
    ExactDeduplicationWorkflow,
    FuzzyDeduplicationWorkflow,
    SemanticDeduplicationWorkflow,
    TextSemanticDeduplicationWorkflow,
)

TEXT = "a tale of twenty words that two pages tell in very nearly the same way and so only one of them stays"
ROWS = [
    {"id": "a", "text": TEXT},
    {"id": "b", "text": TEXT},
    {"id": "c", "text": TEXT + " here"},
    {"id": "d", "text": "x"},
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path


def ids(folder):
    return [json.loads(line)["id"] for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]


def test_the_example_of_the_guide_runs(folder):
    dedup = ExactDeduplicationWorkflow(
        input_path=str(folder / "in"),
        output_path=str(folder / "out"),
        text_field="text",
        input_blocksize="1GB",  # Control memory usage per input block
    )
    assert dedup.run(executor="inline").kept == 3
    assert ids(folder / "out") == ["a", "c", "d"]


def test_fuzzy_workflow_takes_the_parameters_of_nemo_curator(folder):
    workflow = FuzzyDeduplicationWorkflow(
        input_path=str(folder / "in"), output_path=folder / "out", char_ngrams=10, num_bands=20, minhashes_per_band=5
    )
    assert workflow.step().bands == (20, 5)
    workflow.run(executor="inline")
    assert ids(folder / "out") == ["a", "d"]


def test_without_removal_only_the_groups_are_written(folder):
    workflow = ExactDeduplicationWorkflow(str(folder / "in"), str(folder / "out"), perform_removal=False)
    report = workflow.run(executor="inline")
    assert report.dropped == {"exact duplicate": 1}
    assert ids(folder / "out") == []
    assert Groups.load(folder / "out").table()["id"].to_pylist() == ["b"]


def test_output_keeps_the_format_of_the_input(tmp_path):
    (tmp_path / "in").mkdir()
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "in" / "rows.parquet")
    ExactDeduplicationWorkflow(str(tmp_path / "in"), str(tmp_path / "out")).run(executor="inline")
    (file,) = (tmp_path / "out").glob("*.parquet")
    assert pq.read_table(file)["id"].to_pylist() == ["a", "c", "d"]


def test_rethreshold(folder):
    workflow = FuzzyDeduplicationWorkflow(str(folder / "in"), str(folder / "out"), threshold=0.5)
    assert workflow.run(executor="inline").kept == 2
    assert workflow.rethreshold(1.0, folder / "strict", executor="inline").kept == 3
    assert ids(folder / "strict") == ["a", "c", "d"]


def test_a_format_that_cannot_be_inferred_must_be_given(tmp_path):
    (tmp_path / "rows.data").write_text(json.dumps(ROWS[0]) + "\n")
    workflow = ExactDeduplicationWorkflow(str(tmp_path / "rows.data"), str(tmp_path / "out"))
    with pytest.raises(SourceError, match="the format of"):
        workflow.run(executor="inline")


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_output_keeps_the_compression_of_the_input(tmp_path, suffix):
    Pipeline(Rows(ROWS), JsonlWriter(str(tmp_path / "in"), compression=suffix)).run(executor="inline")
    done = CliRunner().invoke(app, ["exact", str(tmp_path / "in"), str(tmp_path / "out"), "--executor", "inline"])
    assert done.exit_code == 0, done.output
    (file,) = (file for file in (tmp_path / "out").iterdir() if not file.name.startswith("."))
    assert file.name.endswith(f".jsonl.{suffix}")


def test_formats_are_detected_in_an_object_store(s3_server, tmp_path, monkeypatch):
    source = f"{s3_server.url}/in"
    writer = ParquetWriter(source, storage_options=s3_server.storage_options)
    Pipeline(Rows(ROWS), writer).run(executor="inline")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.storage_options["endpoint_url"])
    ExactDeduplicationWorkflow(source, str(tmp_path / "out")).run(executor="inline")
    (file,) = (tmp_path / "out").glob("*.parquet")
    assert pq.read_table(file)["id"].to_pylist() == ["a", "c", "d"]


def test_commands_deduplicate_and_explain(folder):
    runner = CliRunner()
    done = runner.invoke(
        app, ["fuzzy", str(folder / "in"), str(folder / "out"), "--executor", "inline", "--json", "--keep", "longest"]
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["kept"] == 2
    assert ids(folder / "out") == ["c", "d"]
    explained = runner.invoke(app, ["explain", str(folder / "out"), "a"]).stdout
    assert explained.startswith("a (")
    assert "was dropped by fuzzy_dedup" in explained
    assert "duplicate of c (" in explained
    assert "similarity 0.947" in explained
    (overview,) = json.loads(runner.invoke(app, ["explain", str(folder / "out"), "--json"]).stdout)
    assert overview["group_sizes"] == {"3": 1}


def test_commands_report_mistakes(folder):
    runner = CliRunner()
    wrong = runner.invoke(app, ["exact", str(folder / "in"), str(folder / "out"), "--keep", "best"])
    assert wrong.exit_code == 2
    assert runner.invoke(app, ["explain", str(folder / "in")]).exit_code == 2
    cut = runner.invoke(
        app, ["exact", str(folder / "in"), str(folder / "out"), "--executor", "inline", "--unit", "line"]
    )
    assert cut.exit_code == 0


def test_two_deduplications_in_one_pipeline_keep_both_their_groups(folder):
    from tamis import JsonlReader
    from tamis.dedup import ExactDedup, FuzzyDedup

    steps = [JsonlReader(str(folder / "in")), ExactDedup(), FuzzyDedup(), JsonlWriter(str(folder / "out"))]
    assert Pipeline(*steps).run(executor="inline").kept == 2
    groups = Groups.load(folder / "out")
    assert [summary["step"] for summary in groups.summaries.values()] == ["exact_dedup", "fuzzy_dedup"]
    assert [groups.explain(name)[0]["kept_id"] for name in ("b", "c")] == ["a", "a"]
    assert pq.read_table(folder / "out" / ".tamis" / "groups").num_rows == 2


VECTORS = {"a": [1.0, 0.0, 0.0], "b": [0.99, 0.02, 0.0], "c": [0.0, 1.0, 0.0], "d": [0.0, 0.99, 0.1]}


@pytest.fixture
def vectors(tmp_path):
    rows = [{"id": name, "emb": vector, "score": place} for place, (name, vector) in enumerate(VECTORS.items())]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_semantic_workflow_takes_the_parameters_of_nemo_curator(vectors):
    workflow = SemanticDeduplicationWorkflow(
        input_path=str(vectors / "in"),
        output_path=str(vectors / "out"),
        embedding_field="emb",
        n_clusters=2,
        which_to_keep="easy",
        distance_metric="cosine",
        eps=0.05,
        random_state=7,
        max_iter=100,
        tol=1e-3,
        init="k-means||",
        oversampling_factor=2.0,
    )
    assert workflow.step().least_similarity == 0.95
    assert workflow.run(executor="inline").dropped == {"similar embedding": 2}
    best = SemanticDeduplicationWorkflow(
        str(vectors / "in"), str(vectors / "best"), embedding_field="emb", which_to_keep="best", by="score"
    )
    best.run(executor="inline")
    assert ids(vectors / "best") == ["b", "d"]
    with pytest.raises(ParameterError, match="`keep` has no effect"):
        SemanticDeduplicationWorkflow("in", "out", keep="longest").step()


def test_the_command_for_semantic_duplicates(vectors):
    arguments = ["semantic", str(vectors / "in"), str(vectors / "out"), "--column", "emb", "--executor", "inline"]
    done = CliRunner().invoke(app, [*arguments, "--keep", "first", "--threshold", "0.95", "--neighbours", "-1"])
    assert done.exit_code == 0, done.output
    assert ids(vectors / "out") == ["a", "c"]
    shown = CliRunner().invoke(app, ["explain", str(vectors / "out")])
    assert "rows with an embedding" in shown.output


def test_texts_are_embedded_and_deduplicated(tmp_path):
    pytest.importorskip("transformers")
    texts = [
        "The cat sat on the mat and watched the birds.",
        "The committee approved the annual budget on Tuesday.",
        "The cat sat on a mat and watched the birds!",
    ]
    (tmp_path / "in.jsonl").write_text(
        "".join(json.dumps({"id": str(n), "text": text}) + "\n" for n, text in enumerate(texts))
    )
    workflow = TextSemanticDeduplicationWorkflow(
        str(tmp_path / "in.jsonl"),
        str(tmp_path / "out"),
        model_identifier="minilm",
        which_to_keep="first",
        threshold=0.85,
    )
    assert workflow.run(executor="inline").kept == 2
    rows = [json.loads(line) for line in next((tmp_path / "out").glob("*.jsonl")).read_text().splitlines()]
    assert [row["id"] for row in rows] == ["0", "1"]
    assert all("embedding" not in row for row in rows)
    assert len(replace(workflow, keep_embeddings=True).steps()) == 2
    step = SemanticDedup(model="minilm", keep="first", threshold=0.85)
    report = Pipeline(JsonlReader(str(tmp_path / "in.jsonl")), step, JsonlWriter(str(tmp_path / "step"))).run(
        executor="inline"
    )
    assert report.kept == 2


@pytest.mark.parametrize("command", [each.callback for each in app.registered_commands[:-1]])  # the last is explain
def test_commands_workflows_and_operators_have_the_same_defaults(command):
    workflow = command.__wrapped__("in/", "out/")
    step = workflow.step()
    # The operator also compares hashes without images, of which none is the largest.
    known = {"keep": "largest"} if isinstance(step, ImageDedup) else {}
    assert step == type(step)(**known) == type(workflow)("in/", "out/").step()
