"""GPUs of the nodes of a cluster, which are pretended here: device files that are not there, and steps that open no device."""

import os
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from tamis import DaskExecutor, JsonlWriter, Map, Pipeline, RayExecutor, Resources, Rows, get_client, operator
from tamis.dedup.shuffle import run_in_workers
from tamis.errors import ParameterError
from tamis.models import devices
from tamis.sampling import Sample
from tests.executors.clusters import await_none

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
    from distributed import Client, LocalCluster

    with ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0"))
        command = [sys.executable, "-m", "distributed.cli.dask_worker", cluster.scheduler_address]
        more = ["--nthreads", "2", "--memory-limit", "6GB", "--no-nanny", "--no-dashboard"]
        for name in NODES:
            worker = subprocess.Popen([*command, *more], env=os.environ | pretended(name), stderr=subprocess.DEVNULL)
            stack.callback(worker.wait)
            stack.callback(worker.terminate)
        with Client(cluster.scheduler_address) as client:
            client.wait_for_workers(len(NODES), timeout=120)
        yield DaskExecutor(cluster.scheduler_address)


@contextmanager
def ray_nodes(pretended):
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    for name, gpus in NODES.items():
        num_gpus = len(gpus.split(",")) if gpus else 0
        small = {"num_cpus": 2, "object_store_memory": 80_000_000, "include_dashboard": False}
        cluster.add_node(**small, num_gpus=num_gpus, env_vars=pretended(name))
    ray.init(cluster.address, log_to_driver=False, configure_logging=False)
    try:
        yield RayExecutor()
    finally:
        ray.shutdown()
        cluster.shutdown()


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


def meet(folder):
    """Wait until both nodes with GPUs are at work: the first to start would otherwise finish before the other joins."""
    here = os.environ["NODE_FOR_TESTS"]
    (Path(folder) / here).touch()
    await_none(lambda: [name for name in "ab" if not (Path(folder) / name).exists()], most_s=150)
    return here


def reader_of(folder):
    def where(row):
        return {"reader": meet(folder)}

    return where


ROWS = Rows([{"n": number} for number in range(600)], rows_per_partition=15)


def test_each_gpu_of_each_node_has_a_worker(nodes, tmp_path):
    table = Pipeline(ROWS, reader_of(tmp_path), PlaceOnGpuForTests()).collect(executor=nodes, memory="4GB")
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
    return [meet(folder), devices.assigned().device, os.environ["CUDA_VISIBLE_DEVICES"]]


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
