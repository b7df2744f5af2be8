import json
from pathlib import Path

import pytest

from tamis import JsonlReader, JsonlWriter, Pipeline
from tamis.errors import BudgetError
from tamis.sampling import Sample
from tests.test_pipeline import read_jsonl, write_jsonl


class HungryForTests(Sample):
    """Needs a megabyte per row to decide, so that only so many fit."""

    def memory_bytes(self, num_rows):
        return num_rows * 1_000_000


@pytest.fixture
def source(tmp_path) -> Path:
    return write_jsonl(tmp_path / "in.jsonl", [{"id": n} for n in range(20_000)])


def test_a_job_that_cannot_fit_says_what_would(source, tmp_path):
    with pytest.raises(BudgetError, match=r"`hungry_for_tests` needs 20\.0 GB to decide about 20,000 rows"):
        Pipeline(JsonlReader(source), HungryForTests(rows=10**6), JsonlWriter(tmp_path / "out")).run(memory="2GB")


def test_asked_to_sample_it_processes_the_largest_share_that_fits(source, tmp_path):
    report = Pipeline(JsonlReader(source), HungryForTests(rows=10**6), JsonlWriter(tmp_path / "out")).run(
        memory="2GB", on_overflow="sample"
    )
    assert report.sample["share"] == 1 / 16
    assert report.sample["weight"] == 16
    assert [entry["share"] for entry in report.sample["rounds"]] == [1 / 64, 1 / 32, 1 / 16]
    assert report.read == 20_000
    assert report.kept == len(read_jsonl(tmp_path / "out"))
    assert 1000 < report.kept < 1500
    assert report.balances
    assert json.loads((tmp_path / "out" / ".tamis" / "report.json").read_text())["sample"]["weight"] == 16


def test_a_larger_share_holds_the_smaller_one(source, tmp_path):
    from tamis.sampling import RowShare

    small, large = (
        set(Pipeline(JsonlReader(source), RowShare(share=share)).collect(executor="inline").column("id").to_pylist())
        for share in (0.05, 0.1)
    )
    assert small < large


def test_time_ends_the_rounds_too(source, tmp_path):
    report = Pipeline(JsonlReader(source), HungryForTests(rows=10**6), JsonlWriter(tmp_path / "out")).run(
        memory="2GB", on_overflow="sample", max_seconds=0.0
    )
    assert report.sample["share"] == 1 / 64
