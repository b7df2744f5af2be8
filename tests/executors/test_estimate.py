"""What a run will need, estimated before it, and settings found by measuring a sample."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tamis
from tamis import JsonlReader, JsonlWriter, ParquetReader, Pipeline, Rows
from tamis.dedup import ExactDedup, FuzzyDedup
from tamis.memory.profile import profile_of
from tamis.mixing import Mix
from tamis.parameters import parse_bytes
from tamis.report import Report
from tamis.sampling import Sample
from tamis.text.quality import WordCount
from tests.memory.test_governor import ModelForTests
from tests.test_pipeline import numbered, write_jsonl


def test_memory_spill_and_disk_are_estimated_before_the_run(tmp_path):
    write_jsonl(tmp_path / "in.jsonl", numbered(5000))
    size = (tmp_path / "in.jsonl").stat().st_size
    pipeline = Pipeline(JsonlReader(tmp_path / "in.jsonl"), WordCount(), Sample(rows=9), JsonlWriter(tmp_path / "out"))
    found = pipeline.explain(memory="1GB").as_dict()["estimate"]
    assert found["memory_bytes"] <= 1_000_000_000
    assert size * 0.5 < found["spill_bytes"] < size * 3
    assert found["output_bytes"] == pytest.approx(size, rel=0.1)
    assert found["rows"] == pytest.approx(5000, rel=0.5)
    assert found["fits_disk"]


def test_a_profile_measures_each_step_and_recommends(tmp_path):
    write_jsonl(tmp_path / "in.jsonl", numbered(5000))
    profile = Pipeline(
        JsonlReader(tmp_path / "in.jsonl"), WordCount(min_words=1), JsonlWriter(tmp_path / "out")
    ).profile(rows=2000)
    assert [op.name for op in profile.operators] == ["jsonl_reader", "word_count", "jsonl_writer"]
    assert profile.rows == 2000
    assert profile.memory_bytes > 300_000_000
    assert "recommended: --memory" in str(profile)
    assert not (tmp_path / "out").exists()


def test_a_profile_counts_what_is_loaded_and_its_advice_can_be_followed(tmp_path):
    steps = [JsonlReader(write_jsonl(tmp_path / "in.jsonl", numbered(500))), ModelForTests(num_bytes=400_000_000)]
    plain, loaded = (Pipeline(*each).profile() for each in (steps[:1], steps))
    assert loaded.operators[-1].setup_bytes == pytest.approx(400_000_000, rel=0.1)
    assert loaded.memory_bytes - plain.memory_bytes > 0.9 * loaded.workers * 400_000_000
    report = Pipeline(*steps).run(memory=loaded.memory_bytes, workers=loaded.workers)
    assert report.memory["actions"] == {}


@pytest.mark.parametrize(
    ("mb_per_s", "blocksize"), [(0.01, "1MB"), (1.6, "16MB"), (12.8, "128MB"), (100, "256MB"), (5000, "256MB")]
)
def test_a_partition_keeps_a_worker_busy_for_ten_seconds_within_reason(mb_per_s, blocksize):
    step = {"name": "step", "rows_in": 1, "mb_per_s": None, "num_bytes": 1, "peak_bytes": 0, "setup_bytes": 0}
    memory = {"bytes_held_per_batch_byte": {}, "batch_bytes": 1}
    report = Report(operators=[step | {"seconds": 1 / mb_per_s}], num_bytes=1_000_000, memory=memory)
    assert profile_of(report, 0, []).blocksize == parse_bytes(blocksize)


def test_stages_are_estimated_separately_and_from_earlier_measurements(tmp_path):
    source = JsonlReader(write_jsonl(tmp_path / "in.jsonl", numbered(50_000)))
    pipeline = Pipeline(source, ModelForTests(num_bytes=400_000_000), Sample(rows=9), JsonlWriter(tmp_path / "out"))
    before = pipeline.explain(memory="2GB")
    assert [line.split()[:2] for line in str(before).splitlines() if line.startswith("  stage ")] == [
        ["stage", "1"],
        ["stage", "2"],
    ]
    pipeline.run(memory="2GB", workers=1)
    first, second = pipeline.explain(memory="2GB").estimate.stages
    assert first.memory_bytes - before.estimate.stages[0].memory_bytes > 300_000_000
    assert (first.output_bytes, second.spill_bytes) == (0, 0)
    assert second.memory_bytes < first.memory_bytes


def test_a_budget_above_the_available_memory_is_reported(tmp_path):
    report = Pipeline(Rows(numbered(3)), JsonlWriter(tmp_path)).run(memory="9000GB", workers=1)
    assert any(note.startswith("there may not be enough memory: the budget is 9.0 TB") for note in report.notes)


@pytest.fixture(scope="module")
def speeches(tmp_path_factory):
    """A folder of four files of thirty megabytes."""
    folder = tmp_path_factory.mktemp("speeches")
    with gzip.open(Path(tamis.__file__).parent / "recipes" / "speeches.jsonl.gz", "rt") as file:
        text = file.read()
    for number in range(4):
        (folder / f"{number}.jsonl").write_text(text * (1 + 30_000_000 // len(text)))
    return folder


def said(folder, *words):
    done = subprocess.run([sys.executable, "-m", "tamis", *map(str, words)], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "memory"), [("gopher", "512MB"), ("c4", "1GB")])
def test_the_peak_is_foreseen(tmp_path, speeches, recipe, memory):
    options = [recipe, "--input", speeches, "--output", "out", "--memory", memory, "--workers", "2", "--json"]
    foreseen = json.loads(said(tmp_path, "explain", *options))["estimate"]["memory_bytes"]
    peak = json.loads(said(tmp_path, "run", *options))["peak_memory_bytes"]
    assert 0.75 * peak < foreseen < 2.5 * peak  # pages shared with processes outside the run count in part


STEPS = {
    "exact": ExactDedup(),
    "paragraphs": ExactDedup(unit="paragraph"),
    "fuzzy": FuzzyDedup(),
    "nemo": FuzzyDedup(settings="nemo"),  # four bytes for each byte of text, which must not all be held at a time
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(STEPS))
def test_duplicates_are_found_within_every_budget_and_the_same_rows_stay(tmp_path, speeches, name):
    """A text that is repeated a hundred times, in partitions of a hundred megabytes."""
    stay = set()
    for memory in ("512MB", "4GB"):
        reader = {"jsonl_reader": {"file_paths": [str(speeches / f"{number}.jsonl") for number in range(3)]}}
        recipe = {"name": "one", "steps": [reader, {STEPS[name].name: written(STEPS[name])}]}
        recipe["steps"].append({"jsonl_writer": {"path": memory}})
        (tmp_path / "one.yaml").write_text(json.dumps(recipe))
        options = ["one.yaml", "--memory", memory, "--workers", "2", "--json"]
        foreseen = json.loads(said(tmp_path, "explain", *options))["estimate"]["memory_bytes"]
        peak = json.loads(said(tmp_path, "run", *options))["peak_memory_bytes"]
        assert peak <= parse_bytes(memory)
        assert 0.75 * peak < foreseen < 3 * peak  # on a busy machine, workers may take turns
        stay.add(b"".join(file.read_bytes() for file in sorted((tmp_path / memory).glob("part-*"))))
    assert len(stay) == 1


@pytest.mark.slow
def test_a_recipe_keeps_the_same_rows_at_every_budget(tmp_path, speeches):
    stay = set()
    for memory in ("512MB", "4GB"):
        said(tmp_path, "run", "nemo_english", "--input", speeches, "--output", memory, "--memory", memory)
        stay.add(b"".join(file.read_bytes() for file in sorted((tmp_path / memory).glob("part-*"))))
    assert len(stay) == 1


def written(step):
    return {name: value for name, value in step.parameters().items() if value is not None}


def test_a_blocksize_that_is_given_is_the_one_that_is_shown(tmp_path):
    source = write_jsonl(tmp_path / "in.jsonl", numbered(10))
    shown = Pipeline(JsonlReader(source, blocksize="8MB")).explain()
    assert shown.as_dict()["blocksize"] == 8_000_000
    assert shown.as_dict()["reasons"]["blocksize"] == "8.0 MB: given to `jsonl_reader`"
    counted = Pipeline(JsonlReader(source, files_per_partition=1)).explain()
    assert counted.as_dict()["reasons"]["blocksize"] == "not used: `files_per_partition` is given"


def test_the_number_of_rows_of_parquet_files_is_not_estimated(tmp_path):
    for name, rows in (("a", 3), ("b", 40)):
        pq.write_table(pa.table({"text": ["word " * (1 + n * n) for n in range(rows)]}), tmp_path / f"{name}.parquet")
    found = Pipeline(ParquetReader(tmp_path)).explain()
    assert found.estimate.rows == 43
    assert "rows          43 of" in str(found)
    assert Pipeline(ParquetReader(tmp_path, limit=7)).explain().estimate.rows == 7


def test_rows_are_estimated_from_each_of_a_few_files(tmp_path):
    """Files of one partition whose rows have different sizes, compressed to a small part of these."""
    rows = [{"text": f"{n} " + "word " * (240 if n < 800 else 100)} for n in range(3000)]
    for name, part in (("a", rows[:800]), ("b", rows[800:])):
        with gzip.open(tmp_path / f"{name}.jsonl.gz", "wt") as file:
            file.writelines(json.dumps(row) + "\n" for row in part)
    source = JsonlReader(tmp_path)
    assert len(source.layout(10**9).partitions) == 1
    assert Pipeline(source).explain().estimate.rows == 3000
    assert Pipeline(JsonlReader(tmp_path, limit=10)).explain().estimate.rows == 10
    assert Pipeline(JsonlReader(tmp_path, skip=2990)).explain().estimate.rows == 10
    mixed = Mix({"a": JsonlReader(tmp_path / "a.jsonl.gz"), "b": JsonlReader(tmp_path / "b.jsonl.gz")})
    assert Pipeline(mixed).explain().estimate.rows == 3000


def test_rows_of_large_files_are_extrapolated(tmp_path):
    for name, words, count in (("a", 20, 30_000), ("b", 200, 20_000), ("c", 20, 30_000)):
        write_jsonl(tmp_path / f"{name}.jsonl", ({"text": "word " * words} for _ in range(count)))
    assert Pipeline(JsonlReader(tmp_path)).explain().estimate.rows == pytest.approx(80_000, rel=0.1)
