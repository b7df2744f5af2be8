"""Failed rows are written as they come, with their address, and hold no binaries."""

import hashlib
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tamis import JsonlReader, JsonlWriter, ParquetReader, ParquetWriter, Pipeline, Rows
from tamis.batch import Batch, Failure
from tamis.dedup.exact import ExactDedup
from tamis.executors.side_outputs import FailureLog, deferred_record, failure_record
from tamis.operators import Expand, operator
from tamis.sampling import Sample


def failed_rows(output):
    files = sorted((output / ".tamis/failed").iterdir())
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.mark.slow
def test_a_million_failed_rows_do_not_grow_memory(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"id": 1}\n' + "this line is not an object\n" * 1_000_000)
    report = Pipeline(JsonlReader(tmp_path / "in.jsonl", blocksize="1GB"), JsonlWriter(tmp_path / "out")).run(
        workers=1, memory="512MB", max_failed="100%"
    )
    assert (report.kept, report.failed) == (1, 1_000_000)
    (file,) = (tmp_path / "out/.tamis/failed").iterdir()
    assert file.read_bytes().count(b"\n") == 1_000_000
    assert report.peak_memory_bytes < 512 * 10**6


def breaks(row):
    if row["n"] % 2:
        raise ValueError("odd")
    return True


def test_binaries_in_failed_rows_are_given_by_size_and_hash(tmp_path):
    data = b"\x89PNG" * 1000
    rows = [{"n": n, "image": {"bytes": data, "path": f"{n}.png"}, "raw": [b"ab", None]} for n in range(2)]
    Pipeline(Rows(rows), breaks, ParquetWriter(tmp_path)).run(executor="inline", on_error="isolate")
    (failed,) = failed_rows(tmp_path)
    assert failed["address"] == "rows:1"
    assert failed["row"] == {
        "n": 1,
        "image": {"bytes": {"size": 4000, "sha256": hashlib.sha256(data).hexdigest()}, "path": "1.png"},
        "raw": [{"size": 2, "sha256": hashlib.sha256(b"ab").hexdigest()}, None],
    }


@pytest.mark.parametrize("executor", ["inline", "local"])
def test_an_error_that_quotes_half_a_surrogate_pair_fails_its_row_alone(tmp_path, executor):
    def refuses(row):
        if row["n"] == 1:
            raise ValueError("cannot read \ud83d")
        return True

    report = Pipeline(Rows([{"n": n} for n in range(3)]), refuses, ParquetWriter(tmp_path)).run(
        executor=executor, workers=1, on_error="isolate", max_failed="100%"
    )
    assert (report.kept, report.failed) == (2, 1)
    assert failed_rows(tmp_path)[0]["error"].startswith("ValueError: cannot read \\ud83d")


def test_a_failure_that_is_counted_later_is_the_same(tmp_path):
    found = [
        Failure("a:1", "reader", "bad", b"line"),
        Failure("a:2", "reader", "bad", b"\xff"),
        Failure("a:3", "reader", "lost", rows=7, damaged_file="a"),
        Failure("a:4", "step", "bad", {"x": b"\xff", "y": [1.5, None]}),
    ]
    log = FailureLog(tmp_path / "log")
    for failure in found:
        log.write(deferred_record(failure))
    restored = [Failure(**record) for record in log.records()]
    assert [failure_record(failure) for failure in restored] == [failure_record(failure) for failure in found]
    assert [failure.damaged_file for failure in restored] == [None, None, "a", None]


def test_a_log_without_failures_has_no_file(tmp_path):
    log = FailureLog(tmp_path / "log")
    assert (log.close(), list(log.records()), list(tmp_path.iterdir())) == (None, [], [])


@operator(reads="image", writes=("frame", "image"))
class ChildrenForTests(Expand):
    """Makes three frames of each image, with bytes of their own."""

    def expand(self, batch: Batch) -> tuple[pa.Table, np.ndarray]:
        parents = np.repeat(np.arange(len(batch)), 3)
        frame = np.tile(np.arange(3), len(batch))
        images = batch["image"].to_pylist()
        made = [{"bytes": images[p]["bytes"] + bytes([f]), "path": None} for p, f in zip(parents, frame, strict=True)]
        return pa.table({"frame": frame, "image": pa.array(made, batch["image"].type)}), parents


def fails_on_a_child(row):
    if (row["id"], row["frame"]) == (3, 2):
        raise ValueError("this frame")
    return True


@pytest.mark.parametrize("gather", [ExactDedup(column="text"), Sample(rows=1000)], ids=["dedup", "sample"])
def test_failures_rejects_and_explanations_name_the_child(gather, tmp_path):
    rows = [{"id": n, "text": str(n % 4), "image": {"bytes": bytes([n]) * 50, "path": None}} for n in range(8)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet", row_group_size=2)
    label = lambda row: {"text": f"{row['text']}-{row['frame']}"}  # noqa: E731
    job = Pipeline(
        ParquetReader(tmp_path / "in.parquet", blocksize="1B"), ChildrenForTests(), label, gather, fails_on_a_child,
        ParquetWriter(tmp_path / "out"),
    )  # fmt: skip
    report = job.run(workers=2, on_error="isolate", rejects=True, max_failed="100%")
    assert report.created == 16
    assert [failed["address"] for failed in failed_rows(tmp_path / "out")] == [f"{tmp_path}/in.parquet:3/2"]
    assert failed_rows(tmp_path / "out")[0]["row"]["image"]["bytes"]["size"] == 51
    kept = pq.read_table(tmp_path / "out")
    assert all(row["image"]["bytes"] == bytes([row["id"]]) * 50 + bytes([row["frame"]]) for row in kept.to_pylist())
    if isinstance(gather, Sample):
        assert report.kept == 23
        return
    assert report.kept == 11
    files = sorted((tmp_path / "out/.tamis/rejects").iterdir())
    rejects = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert sorted(row["_address"] for row in rejects) == sorted(
        f"{tmp_path}/in.parquet:{row}/{child}" for row in range(4, 8) for child in range(3)
    )
    assert all(row["image"]["bytes"] == bytes([row["id"]]) * 50 + bytes([row["frame"]]) for row in rejects)
