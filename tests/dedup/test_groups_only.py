"""Without an output of rows, the second stage counts decisions instead of reading the input again."""

import json
import os
import shutil

import pytest

from tamis import JsonlReader, JsonlWriter, Pipeline
from tamis.dedup import ExactDedup, FuzzyDedup
from tamis.dedup.groups_only import GroupsOnly
from tamis.errors import Interrupted
from tamis.events import PartitionCommitted


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        rows = [{"text": f"the same few words as in other files, number {row % 7}"} for row in range(20)]
        lines = [json.dumps(row) for row in rows]
        if number == 1:
            lines[4] = "not JSON"
            lines[9] = json.dumps({"text": 5})
        (folder / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def counts(report):
    return [(op["name"], op["rows_in"], op["rows_out"], op["dropped"], op["failed"]) for op in report.operators]


@pytest.mark.parametrize("executor", ["inline", "local"])
@pytest.mark.parametrize("step", [ExactDedup(), FuzzyDedup(device="cpu"), FuzzyDedup(device="cpu", keep="none")])
def test_the_account_is_the_same_as_with_rows(corpus, tmp_path, step, executor):
    reports = [
        Pipeline(JsonlReader(corpus, files_per_partition=1), step, sink).run(executor=executor, workers=1)
        for sink in (GroupsOnly(str(tmp_path / "groups")), JsonlWriter(tmp_path / "rows"))
    ]
    found, expected = map(counts, reports)
    assert found[:-1] == expected[:-1]
    assert found[-1][1:] == expected[-1][1:]
    assert [reports[0].read, reports[0].kept, reports[0].dropped, reports[0].failed] == [
        reports[1].read, reports[1].kept, reports[1].dropped, reports[1].failed
    ]  # fmt: skip
    assert reports[0].failed
    assert reports[0].balances


def test_the_input_is_not_read_again(corpus, tmp_path):
    """It no longer exists when the second stage begins."""

    def remove(event):
        if isinstance(event, PartitionCommitted) and event.stage == 0 and event.partition == 2:
            shutil.rmtree(corpus)

    pipeline = Pipeline(JsonlReader(corpus, files_per_partition=1), ExactDedup(), GroupsOnly(str(tmp_path / "out")))
    report = pipeline.run(executor="inline", on_event=[remove])
    assert report.kept == 7
    assert not corpus.exists()


def test_a_run_that_was_stopped_in_the_second_stage_resumes(corpus, tmp_path):
    pipeline = Pipeline(JsonlReader(corpus, files_per_partition=1), ExactDedup(), GroupsOnly(str(tmp_path / "out")))

    def stop(event):
        if isinstance(event, PartitionCommitted) and event.stage == 1:
            os.kill(os.getpid(), 2)

    with pytest.raises(Interrupted):
        pipeline.run(executor="inline", on_event=[stop])
    resumed = pipeline.run(executor="inline")
    whole = Pipeline(JsonlReader(corpus, files_per_partition=1), ExactDedup(), GroupsOnly(str(tmp_path / "o"))).run()
    assert counts(resumed) == counts(whole)
