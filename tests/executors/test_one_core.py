"""Clusters of one core: a long pipeline whose stages run at the same time finishes, and leaves no process behind."""

import json
import uuid

import psutil
import pytest

from tests.executors.clusters import await_none, run_driver

SCRIPT = """
import json
import sys

import numpy as np

from tamis import DaskExecutor, JsonlReader, JsonlWriter, Map, Pipeline, RayExecutor, Resources, operator
from tamis.dedup import ExactDedup
from tamis.executors import nodes
from tamis.text.quality import WordCount
from tests.executors.clusters import PATIENCE

vars(nodes).update(PATIENCE)
engine, source, output = sys.argv[1:]


@operator(reads="text", resources=Resources(memory="2MB"))
class HeavyForTests(Map):
    '''A step that declares memory, and so gets workers of its own.'''

    number: int = 0

    def writes(self):
        return (f"heavy_{self.number}",)

    def apply(self, batch):
        return {f"heavy_{self.number}": np.array([len(text) + self.number for text in batch["text"].to_pylist()])}


def light(number):
    return lambda row: {f"light_{number}": row[f"heavy_{number}"] * 2}


def check(number):
    return lambda row: row[f"light_{number}"] > 0


steps = [step for number in range(6) for step in (HeavyForTests(number), light(number), check(number))]
pipeline = Pipeline(
    JsonlReader(source, blocksize="5kB"), WordCount(min_words=2), *steps, ExactDedup(), JsonlWriter(output)
)


def run(executor):
    report = pipeline.run(executor=executor, memory="3GB", on_error="isolate")
    print(json.dumps({"kept": report.kept, "stages": [len(group["stages"]) for group in report.streams]}))


if engine == "ray":
    import ray

    ray.init("local", num_cpus=1, include_dashboard=False, object_store_memory=80_000_000, log_to_driver=False)
    run(RayExecutor(streaming="always"))
elif engine == "dask":
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0", memory_limit="4GB"
        ) as cluster,
        Client(cluster),
    ):
        run(DaskExecutor(streaming="always"))
else:
    run("inline")
"""


def run_script(engine, source, output, **environment):
    folder, printed = run_driver(lambda folder: ["-c", SCRIPT, engine, str(source), str(folder)], output, **environment)
    rows = [line for file in sorted(folder.glob("part-*")) for line in file.read_text().splitlines()]
    return json.loads(printed.splitlines()[-1]), rows


def marked(mark):
    """Running processes that inherited a mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("TAMIS_TEST_MARK") == mark:
                found.append(process.cmdline())
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ray", "dask"])
def test_twenty_operators_in_many_stages_on_one_core(engine, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"text": f"text {number % 70}"}) + "\n" for number in range(600)))
    mark = uuid.uuid4().hex
    report, rows = run_script(engine, source, tmp_path / "out", TAMIS_TEST_MARK=mark)
    assert report == {"kept": 70, "stages": [13]}
    assert rows == run_script("inline", source, tmp_path / "inline")[1]
    await_none(lambda: marked(mark))
