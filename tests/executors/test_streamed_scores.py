"""Scores of stages that run at the same time: those of one worker, and other thresholds measure nothing again."""

import json
import os
import shutil
import signal

import numpy as np
import pyarrow.parquet as pq
import pytest

from tamis import JsonlReader, JsonlWriter, LocalExecutor, Pipeline, Rows, operator, step
from tamis.errors import Interrupted
from tamis.events import PartitionCommitted
from tamis.operators import Filter, at_least
from tamis.text.quality import WordCount
from tests.executors.test_streams import (
    STREAMED,
    HeavyForTests,
    LightForTests,
    account,
    breaks_on_some,
    contents,
    strike,
)
from tests.test_pipeline import write_jsonl

FUSED = LocalExecutor(workers=2, streaming="never")
NUM_ROWS = 900


@operator(reads=("text", "id"), writes="ending")
class EndingForTests(Filter):
    """A filter after the heavy one."""

    marker: str = ""
    min_ending: int = 0
    incidental = frozenset({"marker"})

    def score(self, batch):
        strike(batch, self.marker, "ending")
        return {"ending": np.array([len(text) % 10 for text in batch["text"].to_pylist()])}

    def rules(self):
        return [at_least("ending", self.min_ending)]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Rows of which each filter drops some; some are no JSON."""
    rows = [{"id": row, "text": f"{row} words " * (1 + row * 7 % 20) + "x" * (row % 100)} for row in range(NUM_ROWS)]
    path = write_jsonl(tmp_path_factory.mktemp("scores") / "in.jsonl", rows)
    with path.open("a") as file:
        file.write('{"id": broken\n')
    return path


def steps(source, output, *, last="light", marker="", min_words=10, min_weight=60, min_ending=2):
    """The last filter is in the last stage (light), or in the one before (heavy)."""
    after = [EndingForTests(marker=marker, min_ending=min_ending)] if last == "light" else []
    return [
        JsonlReader(source, blocksize="30kB"),
        WordCount(min_words=min_words),
        LightForTests(kind_of="head", marker=marker),
        HeavyForTests(marker=marker, min_weight=min_weight),
        *after,
        step(breaks_on_some, version=1),
        JsonlWriter(output),
    ]


def run(steps, output, executor, **options):
    """Everything that must not depend on the stages, and the report."""
    given = {"rejects": True, "on_error": "isolate", "scores": True} | options
    report = Pipeline(*steps).run(executor=executor, **given)
    tables = {file.name: pq.read_table(file) for file in sorted((output / ".tamis/scores").iterdir())}
    scores = {name: table.to_pydict() for name, table in tables.items()}
    schemas = {name: (table.schema, table.schema.metadata) for name, table in tables.items()}
    return contents(output) | {"account": account(report), "scores": scores, "schemas": schemas}, report


@pytest.fixture(scope="module", params=["light", "heavy"])
def reference(request, source, tmp_path_factory):
    """Which stage has the last filter, and the outcome of a run in one stage."""
    output = tmp_path_factory.mktemp("fused") / "out"
    found, report = run(steps(source, output, last=request.param), output, FUSED)
    assert report.streams == []
    assert sum(len(table["_tamis_row"]) for table in found["scores"].values()) == NUM_ROWS
    assert len(found["scores"]) > 2
    return request.param, found


def test_a_group_of_stages_stores_the_same_scores(source, reference, tmp_path):
    last, expected = reference
    found, report = run(steps(source, tmp_path / "out", last=last), tmp_path / "out", STREAMED)
    assert len(report.streams[0]["stages"]) == 3
    assert found == expected


def test_other_thresholds_measure_nothing_again(source, reference, tmp_path):
    last, _ = reference
    run(steps(source, tmp_path / "out", last=last), tmp_path / "out", STREAMED, rejects=False)
    marker = tmp_path / "strike"  # a row would fail if the heavy filter saw it again
    marker.write_text(json.dumps({"kind": "middle", "id": 500, "how": "raise", "times": None}))
    shutil.copytree(tmp_path / "out/.tamis/scores", tmp_path / "copied/.tamis/scores")
    other = {"last": last, "min_words": 4, "min_weight": 100, "min_ending": 3}
    fresh, _ = run(steps(source, tmp_path / "fresh", **other), tmp_path / "fresh", FUSED, rejects=False)
    for output in (tmp_path / "out", tmp_path / "copied"):
        found, report = run(steps(source, output, marker=str(marker), **other), output, STREAMED, rejects=False)
        assert report.streams == []
        assert found == fresh


def test_an_interrupted_run_continues_in_stages(source, reference, tmp_path):
    last, expected = reference

    def stop(event):
        if isinstance(event, PartitionCommitted):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        run(steps(source, tmp_path / "out", last=last), tmp_path / "out", STREAMED, on_event=stop)
    found, report = run(steps(source, tmp_path / "out", last=last), tmp_path / "out", STREAMED)
    assert found == expected
    assert all(len(group["stages"]) == 3 for group in report.streams)


@pytest.mark.parametrize("kind", ["head", "middle", "ending"])
def test_a_worker_that_dies_in_any_stage_costs_no_score(source, tmp_path, reference, kind):
    last, expected = reference
    marker = tmp_path / "strike"
    marker.write_text(json.dumps({"kind": kind, "id": 500, "how": "kill", "times": 1}))
    found, _ = run(steps(source, tmp_path / "out", last=last, marker=str(marker)), tmp_path / "out", STREAMED)
    assert found == expected


@pytest.mark.parametrize(
    ("kind", "row", "was_dropped"), [("head", 507, False), ("middle", 507, False), ("middle", 20, True)]
)
def test_a_row_that_kills_workers_fails_alone_unless_it_was_dropped(
    source, tmp_path, reference, kind, row, was_dropped
):
    """It has no scores. A row that a stage before has dropped is only measured, and its fate is the same."""
    last, expected = reference
    marker = tmp_path / "strike"
    marker.write_text(json.dumps({"kind": kind, "id": row, "how": "kill", "times": None}))
    found, _ = run(steps(source, tmp_path / "out", last=last, marker=str(marker)), tmp_path / "out", STREAMED)
    numbers = [number for table in found["scores"].values() for number in table["_tamis_row"]]
    assert len(numbers) == NUM_ROWS - 1
    failed = [each for each in found["failed"] if each not in expected["failed"]]
    assert [each["row"]["id"] for each in failed] == ([] if was_dropped else [row])
    assert [each for each in found["rows"] if json.loads(each)["id"] == row] == []
    assert found["rejects"] == expected["rejects"]


def test_no_row_is_left_for_the_last_stage(tmp_path):
    """Nothing is left for the last stage, and the columns of the output are those of one stage."""
    from tamis import ParquetWriter

    rows = Rows([{"id": number, "text": "short"} for number in range(20)])
    schemas = []
    for name, executor in (("streamed", STREAMED), ("fused", FUSED)):
        job = Pipeline(rows, HeavyForTests(), EndingForTests(), ParquetWriter(tmp_path / name))
        assert job.run(executor=executor, scores=True).kept == 0
        schemas.append(pq.read_table(tmp_path / name).schema)
    assert schemas[0] == schemas[1]
