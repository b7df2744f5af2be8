"""Stored scores: the same rows and accounts as without, and no measuring the second time."""

import json
import random
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tamis import JsonlReader, JsonlWriter, Pipeline
from tamis.operators import Filter, Map, at_least, between, one_of, operator
from tamis.sampling import Sample
from tests.test_pipeline import read_jsonl

CALLS = []
STRIPPED = []


@operator(reads="text", writes="letters", version=1)
class LettersForTests(Filter):
    """Counts letters, and the rows it is given in a global, which its version keeps out of its identity."""

    min_letters: int = 0
    max_letters: int = 10**9
    case: str = "any"

    def score(self, batch):
        CALLS.append(len(batch))
        if "break me" in batch["text"].to_pylist():
            raise ValueError("broken")
        return {"letters": pa.compute.utf8_length(batch["text"])}

    def rules(self):
        return [between("letters", self.min_letters, self.max_letters)]


@operator(reads="text", writes="share")
class SpacesForTests(Filter):
    """The share of spaces."""

    min_share: float = 0.0

    def score(self, batch):
        spaces = pa.compute.count_substring(batch["text"], " ").to_numpy(zero_copy_only=False)
        return {"share": spaces / np.maximum(1, pa.compute.utf8_length(batch["text"]).to_numpy(zero_copy_only=False))}

    def rules(self):
        return [at_least("share", self.min_share)]


@operator(reads="text", writes="text", version=1)
class StripForTests(Map):
    """Takes blanks off the ends; refuses very short texts."""

    def apply(self, batch):
        STRIPPED.append(len(batch))
        if "x" in batch["text"].to_pylist():
            raise ValueError("too short to strip")
        return {"text": pa.compute.utf8_trim_whitespace(batch["text"])}


@pytest.fixture
def source(tmp_path):
    generator = random.Random(3)
    texts = [" ".join(generator.choices(["a", "bb", "ccc"], k=generator.randrange(30))) + " " for _ in range(800)]
    texts[100], texts[200] = "break me", "x"
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(texts)))
    return path


def job(source, output, *, min_letters=10, min_share=0.1, case="any", gather=False):
    return Pipeline(
        JsonlReader(source, blocksize="3kB"),
        LettersForTests(min_letters=min_letters, case=case),
        StripForTests(),
        SpacesForTests(min_share=min_share),
        *([Sample(rows=100)] if gather else []),
        JsonlWriter(output),
    )


def outcome(report, output):
    steps = [(op["name"], op["rows_in"], op["rows_out"], op["dropped"], op["failed"]) for op in report.operators]
    failed = sorted(line for file in (output / ".tamis" / "failed").iterdir() for line in file.read_text().splitlines())
    return report.read, report.kept, report.dropped, report.failed, steps, read_jsonl(output), failed


def rejects(output):
    files = sorted((output / ".tamis" / "rejects").iterdir())
    rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    return sorted(rows, key=lambda row: (row["_address"], row["_step"]))


def test_rejects_hold_the_text_that_the_dropping_filter_saw(source, tmp_path):
    options = {"executor": "inline", "on_error": "isolate", "rejects": True}
    job(source, tmp_path / "plain", min_letters=30).run(**options)
    expected = rejects(tmp_path / "plain")
    assert any(row["text"].endswith(" ") for row in expected if row["_step"] == "letters_for_tests")
    job(source, tmp_path / "first", min_letters=30).run(**options, scores=True)
    assert rejects(tmp_path / "first") == expected
    job(source, tmp_path / "again").run(**options, scores=True)
    job(source, tmp_path / "again", min_letters=30).run(**options, scores=True)
    assert rejects(tmp_path / "again") == expected


@pytest.mark.parametrize("kept", [False, True])
def test_with_stored_scores_maps_run_only_on_rows_that_pass_the_filters_before_them(source, tmp_path, kept):
    options = {"executor": "inline", "on_error": "isolate", "scores": True, "rejects": kept}
    job(source, tmp_path / "out").run(**options)
    shutil.rmtree(tmp_path / "out" / ".tamis" / "written")  # otherwise rows that are kept again are copied
    STRIPPED.clear()
    report = job(source, tmp_path / "out", min_letters=40, min_share=0.4).run(**options)
    dropped = {op["name"]: sum(op["dropped"].values()) for op in report.operators}
    assert dropped["letters_for_tests"]
    assert dropped["spaces_for_tests"]
    survivors = report.read - report.failed - dropped["letters_for_tests"]
    # Without rejects, rows that a later filter drops do not need the map either.
    assert sum(STRIPPED) == survivors - (0 if kept else dropped["spaces_for_tests"])


def test_maps_after_the_last_filter_run_only_on_kept_rows_in_the_first_run(source, tmp_path):
    STRIPPED.clear()
    steps = [LettersForTests(min_letters=30), StripForTests(), JsonlWriter(tmp_path / "out")]
    report = Pipeline(JsonlReader(source), *steps).run(executor="inline", on_error="isolate", scores=True)
    assert 0 < report.kept == sum(STRIPPED) < 700


@pytest.mark.parametrize("gather", [False, True])
def test_rows_and_accounts_are_the_same_as_without(source, tmp_path, gather):
    results = []
    for scores in (False, True):
        output = tmp_path / str(scores)
        report = job(source, output, gather=gather).run(
            executor="inline", on_error="isolate", scores=scores, rejects=True
        )
        assert report.balances
        results.append(outcome(report, output))
    assert results[0] == results[1]


def test_other_thresholds_need_no_measuring(source, tmp_path):
    options = {"executor": "inline", "on_error": "isolate"}
    job(source, tmp_path / "out").run(**options, scores=True)
    CALLS.clear()
    again = job(source, tmp_path / "out", min_letters=30, min_share=0.2).run(**options, scores=True)
    assert sum(CALLS) < 400  # only the batches with rows that could not be measured are halved again
    plain = job(source, tmp_path / "plain", min_letters=30, min_share=0.2).run(**options)
    assert outcome(again, tmp_path / "out") == outcome(plain, tmp_path / "plain")


def test_other_measuring_parameters_measure_again(source, tmp_path):
    options = {"executor": "inline", "on_error": "isolate", "scores": True}
    job(source, tmp_path / "out").run(**options)
    CALLS.clear()
    job(source, tmp_path / "out", case="upper").run(**options)
    assert sum(CALLS) >= 799


def test_damaged_scores_are_measured_again(source, tmp_path):
    options = {"executor": "inline", "on_error": "isolate", "scores": True}
    job(source, tmp_path / "out").run(**options)
    for file in (tmp_path / "out" / ".tamis" / "scores").iterdir():
        data = bytearray(file.read_bytes())
        data[40] ^= 1
        file.write_bytes(data)
    again = job(source, tmp_path / "out", min_letters=30).run(**options)
    plain = job(source, tmp_path / "plain", min_letters=30).run(executor="inline", on_error="isolate")
    assert outcome(again, tmp_path / "out") == outcome(plain, tmp_path / "plain")


def test_looser_thresholds_bring_rows_back(source, tmp_path):
    strict = job(source, tmp_path / "out", min_letters=60).run(scores=True)
    loose = job(source, tmp_path / "out", min_letters=0, min_share=0).run(scores=True)
    assert loose.kept > strict.kept
    assert loose.kept + loose.failed == loose.read


def test_a_row_that_can_be_read_now_does_not_shift_the_scores_of_others(tmp_path):
    texts = ["x" * 12_000_000, *("y" * (1 + number % 7) for number in range(100))]
    file = tmp_path / "in.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))

    def run(output, minimum, memory):
        steps = JsonlReader(file), LettersForTests(min_letters=minimum), JsonlWriter(tmp_path / output)
        report = Pipeline(*steps).run(scores=True, memory=memory, executor="inline", on_error="isolate")
        return [len(row["text"]) for row in read_jsonl(tmp_path / output)], report.failed

    assert run("out", 5, "520MB")[1] == 1
    found = run("out", 3, "4GB")
    assert found == run("fresh", 3, "4GB")
    assert len(found[0]) == 1 + sum(len(text) >= 3 for text in texts[1:])


def test_scores_belong_to_a_file_and_not_only_to_a_position_in_one(tmp_path):
    """The first of many files with one row each fails at first, so the numbers of all others move."""
    texts = ["x" * 12_000_000, *("y" * (1 + number % 7) for number in range(20))]
    (tmp_path / "in").mkdir()
    for number, text in enumerate(texts):
        (tmp_path / f"in/{number:02d}.jsonl").write_text(json.dumps({"text": text}) + "\n")

    def run(output, minimum, memory):
        steps = JsonlReader(tmp_path / "in"), LettersForTests(min_letters=minimum), JsonlWriter(tmp_path / output)
        report = Pipeline(*steps).run(scores=True, memory=memory, executor="inline", on_error="isolate")
        return [len(row["text"]) for row in read_jsonl(tmp_path / output)], report.failed

    assert run("out", 5, "520MB")[1] == 1
    assert run("out", 3, "4GB") == run("fresh", 3, "4GB")


@operator(reads="text", writes="size", version=1)
class SizeLabelForTests(Filter):
    """Labels texts "short" or "long", and keeps those with one of the labels."""

    filter_by: tuple[str, ...] = ()

    verdict_parameters = frozenset({"filter_by"})

    @property
    def adds_scores(self):
        return True

    def score(self, batch):
        CALLS.append(len(batch))
        long = pa.compute.greater(pa.compute.utf8_length(batch["text"]), 40)
        return {"size": pa.compute.if_else(long, "long", "short")}

    def rules(self):
        return [one_of("size", self.filter_by)] if self.filter_by else []


@pytest.mark.parametrize("executor", ["inline", "local"])
def test_a_filter_that_adds_its_scores_labels_the_rows_it_keeps(source, tmp_path, executor):
    def run(name, filter_by=(), **options):
        steps = [SizeLabelForTests(filter_by=filter_by), SpacesForTests(min_share=0.1)]
        pipeline = Pipeline(JsonlReader(source, blocksize="3kB"), *steps, JsonlWriter(tmp_path / name))
        report = pipeline.run(executor=executor, on_error="isolate", rejects=True, **options)
        assert report.balances
        return report, read_jsonl(tmp_path / name)

    everything, labelled = run("all")
    assert {row["size"] for row in labelled} == {"long", "short"}
    assert all(row["size"] == ("long" if len(row["text"]) > 40 else "short") for row in labelled)
    report, expected = run("plain", ("long",))
    assert expected == [row for row in labelled if row["size"] == "long"]
    assert report.dropped["size not in long"] > 100

    assert run("scored", ("short",), scores=True)[1] == [row for row in labelled if row["size"] == "short"]
    CALLS.clear()
    again, rows = run("scored", ("long",), scores=True)
    assert rows == expected
    assert again.dropped == report.dropped
    assert rejects(tmp_path / "scored") == rejects(tmp_path / "plain")
    assert sum(CALLS) == 0, "labels are stored, so another choice of labels needs no measuring"
    assert everything.kept == len(labelled)
