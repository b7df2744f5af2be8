"""`rethreshold` decides again in the folder it is given, or into another one."""

import json
import shutil

import pyarrow.parquet as pq
import pytest

from tamis.cli import main
from tamis.errors import RecipeError, SinkError
from tamis.recipes.rethreshold import rethreshold
from tamis.verification import verify

RECIPE = """
steps:
  - jsonl_reader: {file_paths: in}
  - word_count: {min_words: 3}
  - jsonl_writer: {path: a}
"""


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def words(folder):
    lines = [line for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]
    return [len(json.loads(line)["text"].split()) for line in lines]


def reasons(folder):
    files = (folder / ".tamis" / "rejects").iterdir()
    return sorted(row["_reason"] for file in files for row in pq.ParquetFile(file).read().to_pylist())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows.jsonl").write_text("".join(json.dumps({"text": "w " * n}) + "\n" for n in range(8)))
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["run", "recipe.yaml", "--scores", "--rejects", "--executor", "inline", "--quiet"]) == 0
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


OPTIONS = {"executor": "inline", "progress": False}


def test_a_copy_is_changed_and_not_the_original(folder):
    shutil.copytree(folder / "a", folder / "b")
    before = contents(folder / "a")
    report = rethreshold("../b", ["word_count.min_words=5"], **OPTIONS)
    assert report.kept == 3
    assert words(folder / "b") == [5, 6, 7]
    assert reasons(folder / "b") == ["words < 5"] * 5
    assert contents(folder / "a") == before


def test_looser_thresholds_bring_rows_back_and_rejects_stay(folder):
    rethreshold(folder / "a", ["word_count.min_words=1"], **OPTIONS)
    assert words(folder / "a") == [1, 2, 3, 4, 5, 6, 7]
    assert reasons(folder / "a") == ["words < 1"]


def test_another_output_leaves_the_given_one_as_it_is(folder):
    before = contents(folder / "a")
    assert main(["rethreshold", "../a", "--set", "word_count.min_words=6", "--output", "new"]) == 0
    assert contents(folder / "a") == before
    new = folder / "elsewhere" / "new"
    assert words(new) == [6, 7]
    assert reasons(new) == ["words < 6"] * 6
    rethreshold(new, ["word_count.min_words=7"], **OPTIONS)  # it has scores of its own
    assert words(new) == [7]


def test_another_output_shares_shards_that_do_not_change_and_writes_the_others(folder):
    shard = "part-000000.jsonl"
    rethreshold(folder / "a", ["word_count.max_words=100"], to=folder / "same", **OPTIONS)
    assert (folder / "same" / shard).samefile(folder / "a" / shard)
    before = contents(folder / "a")
    rethreshold(folder / "a", ["word_count.min_words=1"], to=folder / "looser", **OPTIONS)
    assert words(folder / "looser") == [1, 2, 3, 4, 5, 6, 7]
    assert reasons(folder / "looser") == ["words < 1"]
    assert contents(folder / "a") == before
    assert verify(folder / "looser").ok


def test_an_output_folder_with_other_data_is_refused_and_not_changed(folder):
    (folder / "full").mkdir()
    (folder / "full" / "data.jsonl").write_text("{}")
    with pytest.raises(SinkError, match="not empty"):
        rethreshold(folder / "a", ["word_count.min_words=1"], to=folder / "full", **OPTIONS)
    assert [file.name for file in (folder / "full").glob("*.jsonl")] == ["data.jsonl"]


def test_an_output_without_scores_is_refused(folder):
    shutil.rmtree(folder / "a" / ".tamis" / "scores")
    with pytest.raises(RecipeError, match="no scores are stored"):
        rethreshold(folder / "a", ["word_count.min_words=5"])


def test_a_parameter_that_is_no_threshold_is_refused(folder):
    with pytest.raises(RecipeError, match="not a threshold"):
        rethreshold(folder / "a", ["word_count.words=unicode"])
