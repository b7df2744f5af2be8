"""GPUs of the nodes of a cluster, which are pretended here: device files that are not there, and steps that open no device."""

import os
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from distributed import Client, LocalCluster

from tamis import DaskExecutor, JsonlWriter, Map, Pipeline, RayExecutor, Resources, Rows, get_client, operator
from tamis.dedup.shuffle import run_in_workers
from tamis.errors import ParameterError, WorkerError
from tamis.executors import nodes as cluster_nodes
from tamis.executors.dask import _DaskNodes
from tamis.models import devices
from tamis.sampling import Sample
from tests.executors import clusters
from tests.executors.clusters import Faults, await_none, end, meet, patience, servers_of  # noqa: F401

pytestmark = pytest.mark.skipif(devices.gpu_count() > 0, reason="there is a GPU")

NODES = {"a": "0,1", "b": "2", "c": ""}
"""The GPUs that each node sees. All nodes are on one machine with three GPUs."""

PRETEND = """
import tamis.models.devices as devices

devices._device_files = lambda root: 3
"""


@pytest.fixture(scope="module")
def pretended(tmp_path_factory):
    """The environment of a node, by name."""
    folder = tmp_path_factory.mktemp("pretended")
    (folder / "sitecustomize.py").write_text(PRETEND)
    path = os.pathsep.join([str(folder), str(Path.cwd())])
    return lambda name: {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": NODES[name], "NODE_FOR_TESTS": name}


@contextmanager
def dask_nodes(pretended):
    with ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0"))
        for name in NODES:
            stack.callback(end, dask_worker(cluster, pretended(name)))
        with Client(cluster.scheduler_address) as client:
            client.wait_for_workers(len(NODES), timeout=300)
        yield DaskExecutor(cluster.scheduler_address)


def dask_worker(cluster, environment):
    command = [sys.executable, "-m", "distributed.cli.dask_worker", cluster.scheduler_address]
    more = ["--nthreads", "2", "--memory-limit", "6GB", "--no-nanny", "--no-dashboard"]
    return subprocess.Popen([*command, *more], env=os.environ | environment, stderr=subprocess.DEVNULL)


@contextmanager
def ray_nodes(pretended):
    import ray

    nodes = [
        {"num_cpus": 2, "num_gpus": len(gpus.split(",")) if gpus else 0, "env_vars": pretended(name)}
        for name, gpus in NODES.items()
    ]
    with ExitStack() as stack:
        cluster = stack.enter_context(clusters.ray_nodes(*nodes))
        ray.init(cluster.address, log_to_driver=False, configure_logging=False)
        stack.callback(ray.shutdown)
        yield RayExecutor()


@pytest.fixture(scope="module", params=["dask", "ray"])
def nodes(request, pretended):
    with (dask_nodes if request.param == "dask" else ray_nodes)(pretended) as executor:
        yield executor


@operator(reads="n", writes="place", resources=Resources(gpus=1))
class PlaceOnGpuForTests(Map):
    """Where a row was processed: node, device, GPU, process."""

    batch_rows = 5

    def open(self, context):
        words = (os.environ["NODE_FOR_TESTS"], context.device, os.environ["CUDA_VISIBLE_DEVICES"], str(os.getpid()))
        return PlaceRunnerForTests(" ".join(words))


class PlaceRunnerForTests:
    def __init__(self, place):
        self.place = place

    def apply(self, batch):
        return {"place": pa.array([self.place] * len(batch))}


def reader_of(folder):
    def where(row):
        meet(folder, os.environ["NODE_FOR_TESTS"], 2)
        return {"reader": os.environ["NODE_FOR_TESTS"]}

    return where


ROWS = Rows([{"n": number} for number in range(600)], rows_per_partition=15)


def test_each_gpu_of_each_node_has_a_worker(nodes, tmp_path):
    met = tmp_path / "met"
    met.mkdir()
    table = Pipeline(ROWS, reader_of(met), PlaceOnGpuForTests()).collect(executor=nodes, memory="4GB")
    assert table["n"].to_pylist() == list(range(600))
    places = {tuple(place.split()) for place in table["place"].to_pylist()}
    workers = Counter(place[:3] for place in places)
    assert {node for node, _, _ in workers} == {"a", "b"}
    assert set(workers) <= {("a", "cuda:0", "0"), ("a", "cuda:0", "1"), ("b", "cuda:0", "2")}
    assert set(workers.values()) == {1}
    # Rows stay on their node, so that none is read where there is no GPU.
    pairs = zip(table["place"].to_pylist(), table["reader"].to_pylist(), strict=True)
    assert all(place.split()[0] == reader for place, reader in pairs)


def call_on_gpu(folder, number):
    meet(Path(folder), os.environ["NODE_FOR_TESTS"], 2)
    return [os.environ["NODE_FOR_TESTS"], devices.assigned().device, os.environ["CUDA_VISIBLE_DEVICES"]]


@operator(resources=Resources(memory=1))
class CallsOnGpuForTests(Sample):
    """Keeps every row, after calls on GPUs."""

    folder: str = ""
    device: str = "auto"

    def resolve(self, observed, decide, work):
        calls = [(self.folder, number) for number in range(12)]
        found = run_in_workers(work, "places", call_on_gpu, calls, on_gpu=True)
        work.publish("places.txt", "\n".join(map(" ".join, found)).encode())
        super().resolve(observed, decide, work)


def test_calls_of_a_gather_run_on_the_gpus_of_all_nodes(nodes, tmp_path):
    folder = tmp_path / "at work"
    folder.mkdir()
    output = tmp_path / "out"
    step = CallsOnGpuForTests(rows=600, folder=str(folder))
    Pipeline(ROWS, step, JsonlWriter(output)).run(executor=nodes, memory="4GB")
    places = set((output / ".tamis" / "places.txt").read_text().splitlines())
    assert places <= {"a cuda:0 0", "a cuda:0 1", "b cuda:0 2"}
    assert {place[0] for place in places} == {"a", "b"}


@contextmanager
def losing_the_gpus(pretended):
    """A cluster with one node that has a GPU and one that has none, and a function that ends the first, when both are there."""
    with ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0"))
        with_gpu, without = (dask_worker(cluster, pretended(name)) for name in "bc")
        for worker in (with_gpu, without):
            stack.callback(end, worker)
        with Client(cluster.scheduler_address) as client:
            client.wait_for_workers(2, timeout=300)

        def lose(*, comes_back):
            await_none(lambda: not servers_of([without.pid]))
            with_gpu.kill()
            if comes_back:
                stack.callback(end, dask_worker(cluster, pretended("b")))

        yield cluster.scheduler_address, lose


@pytest.mark.parametrize("streaming", ["always", "never"])
def test_a_run_waits_for_another_node_with_a_gpu_if_the_last_one_is_lost(pretended, streaming):
    with losing_the_gpus(pretended) as (address, lose):
        faults = Faults(map=lambda: lose(comes_back=True))
        executor = DaskExecutor(address, streaming=streaming)
        table = Pipeline(ROWS, PlaceOnGpuForTests()).collect(executor=executor, memory="4GB", on_event=faults)
    assert table["n"].to_pylist() == list(range(600))
    assert sum("was lost" in note for note in faults.notes) == 1


def test_a_run_ends_if_no_other_node_with_a_gpu_joins(pretended, tmp_path, monkeypatch):
    def lose_for_good():
        monkeypatch.setattr(cluster_nodes, "NO_NODE_S", 1.0)
        lose(comes_back=False)

    with losing_the_gpus(pretended) as (address, lose):
        faults = Faults(map=lose_for_good)
        job = Pipeline(ROWS, PlaceOnGpuForTests(), JsonlWriter(tmp_path))
        with pytest.raises(WorkerError, match="no node with enough GPUs is left"):
            job.run(executor=DaskExecutor(address), memory="4GB", on_event=faults)


@pytest.mark.parametrize("nodes", ["dask"], indirect=True)
def test_a_node_that_does_not_answer_hides_no_gpus_of_others(nodes, monkeypatch):
    monkeypatch.setattr("tamis.executors.dask.CONNECT_S", 0.1)
    with Client(nodes.address, set_as_default=False) as client:
        known = client.run(lambda: (os.environ["NODE_FOR_TESTS"], os.getpid()))
        seen = _DaskNodes(client)

        def gpus():
            return {known[address][0]: len(machine.gpus) for address, machine in seen.machines().items()}

        (frozen,) = [psutil.Process(pid) for name, pid in known.values() if name == "b"]
        frozen.suspend()
        try:
            await_none(lambda: gpus() != {"a": 2, "b": 0, "c": 0})
        finally:
            frozen.resume()
        await_none(lambda: gpus() != {"a": 2, "b": 1, "c": 0})


def test_more_gpus_than_a_node_has_is_an_error(nodes):
    @operator(reads="n", writes="place", resources=Resources(gpus=3))
    class ThreeGpusForTests(PlaceOnGpuForTests):
        pass

    with pytest.raises(ParameterError, match="it needs 3 GPUs, and there are 2 here"):
        Pipeline(ROWS, ThreeGpusForTests()).run(executor=nodes, memory="4GB")


def test_a_client_for_gpus(nodes):
    """Steps for GPUs can be made in a driver that has none."""
    with get_client(cluster_type="gpu", engine=nodes.name, address=nodes.address, memory="4GB"):
        assert devices.choose("gpu") == "gpu"
        table = Pipeline(ROWS, PlaceOnGpuForTests()).collect()
        assert {place.split()[1] for place in table["place"].to_pylist()} == {"cuda:0"}
        with pytest.raises(ParameterError, match="a GPU"):
            Pipeline(ROWS, PlaceOnGpuForTests()).run(executor="local")
    assert devices.gpu_count() == 0
    with (
        get_client(engine=nodes.name, address=nodes.address, memory="4GB"),
        pytest.raises(ParameterError, match="uses none"),
    ):
        Pipeline(ROWS, PlaceOnGpuForTests()).run()
