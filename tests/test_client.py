"""`get_client`: which executor, memory and device runs use that name none."""

import subprocess
import sys

import pytest

from tamis import InlineExecutor, LocalExecutor, Pipeline, RayExecutor, Rows, get_client
from tamis.client import current_client, executor_of
from tamis.errors import ParameterError
from tamis.models.devices import gpu_count

ROWS = Rows([{"n": number} for number in range(10)], rows_per_partition=3)


def test_runs_use_the_client_until_it_is_closed():
    with get_client(workers=1, memory="900MB") as client:
        assert current_client() is client
        assert executor_of(None) == LocalExecutor(workers=1)
        assert executor_of("inline") == InlineExecutor()
        report = Pipeline(ROWS).run()
        assert report.memory["budget_bytes"] == 900_000_000
        assert Pipeline(ROWS).run(memory="800MB").memory["budget_bytes"] == 800_000_000
    assert current_client() is None
    assert executor_of(None) == LocalExecutor()


def test_a_plain_call_lasts_until_close_and_the_last_one_counts():
    first = get_client(workers=1)
    second = get_client(workers=2)
    assert executor_of(None) == LocalExecutor(workers=2)
    second.close()
    assert executor_of(None) == LocalExecutor(workers=1)
    first.close()
    first.close()
    assert current_client() is None


def test_dask_is_started_once_for_all_runs():
    with get_client(engine="dask", workers=1, memory="1GB"):
        reports = [Pipeline(ROWS, lambda row: row["n"] > 3).run() for _ in range(2)]
    assert [report.kept for report in reports] == [6, 6]
    assert [report.memory["nodes"][0]["workers"] for report in reports] == [1, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "spark"}, "`engine` is 'spark'"),
        ({"cluster_type": "tpu"}, "`cluster_type` is 'tpu'"),
        ({"memory": "much"}, "much"),
        ({"address": "10.0.0.1:1"}, "has no address"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ParameterError, match=message):
        get_client(**options)
    assert current_client() is None


@pytest.mark.skipif(gpu_count() > 0, reason="there is a GPU")
def test_a_client_that_is_not_closed_stops_its_cluster_at_exit_without_complaints(tmp_path):
    code = """
from tamis import Pipeline, Rows, get_client
get_client(engine="dask", workers=1, memory="1GB")
print(Pipeline(Rows([{"n": 1}])).run().kept)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_without_a_gpu_that_is_said():
    with pytest.raises(ParameterError, match="there is no GPU"):
        get_client(cluster_type="gpu")


@pytest.mark.skipif(gpu_count() > 0, reason="there is a GPU")
def test_a_cluster_without_a_gpu_is_refused():
    with pytest.raises(ParameterError, match="there is no GPU on any node that Dask has"):
        get_client(cluster_type="gpu", engine="dask", workers=1)
    assert current_client() is None
    assert Pipeline(ROWS).run(workers=1).kept == 10


def test_names_of_clusters():
    assert executor_of("ray", "auto") == RayExecutor("auto")
