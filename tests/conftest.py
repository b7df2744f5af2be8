"""Fixtures shared by several test modules."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tamis.executors.executor import Executor

# The first example of a test may compile a kernel, which takes seconds.
settings.register_profile("tamis", deadline=None)
settings.load_profile("tamis")

os.environ.pop(
    "COLUMNS", None
)  # reports fit the terminal of the user who runs the tests; tests that need a width set it

os.fsync = lambda descriptor: None  # tests kill processes, not the machine; waiting for the disk takes minutes

os.environ.setdefault(
    "RAY_worker_niceness", "0"
)  # otherwise any other process that computes leaves Ray's workers a thirtieth of a core

os.environ.setdefault(
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED", "False"
)  # it samples idle workers a hundred times a second


@pytest.fixture(scope="session")
def small_classifiers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face cache with a small network under the name of each published classifier."""
    import torch

    from tests.models.make_networks import write_published
    from tests.models.make_vision import write_small_vision

    torch.set_num_threads(1)  # threads that wait for each other take longer than such networks
    folder = tmp_path_factory.mktemp("hub")
    write_published(folder)
    write_small_vision(folder)
    return folder


CLUSTERS = ("ray", "dask")
_open_clusters: dict[str, tuple[Executor, ExitStack]] = {}


def _on_a_cluster(item: pytest.Item | None) -> bool:
    return (
        isinstance(item, pytest.Function)
        and getattr(item, "callspec", None) is not None
        and (item.callspec.params.get("executor") in CLUSTERS)
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move tests on clusters to the front: of several xdist workers, only the one that begins there starts clusters."""
    items.sort(key=lambda item: not _on_a_cluster(item))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop clusters after the last test that uses one; idle, they take a few percent of a core each."""
    if _on_a_cluster(item) and not _on_a_cluster(nextitem):
        while _open_clusters:
            _open_clusters.popitem()[1][1].close()


def _ray(stack: ExitStack) -> Executor:
    """A Ray cluster of two nodes with one core each, on this machine."""
    import ray

    from tamis import RayExecutor
    from tests.executors.clusters import ray_nodes

    cluster = stack.enter_context(ray_nodes({"num_cpus": 1}, {"num_cpus": 1}))
    ray.init(cluster.address, log_to_driver=False, configure_logging=False)
    stack.callback(ray.shutdown)
    return RayExecutor()


def _dask(stack: ExitStack) -> Executor:
    """Two Dask workers of one thread each, on this machine."""
    from distributed import LocalCluster

    from tamis import DaskExecutor

    cluster = stack.enter_context(
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", memory_limit="2GB")
    )
    return DaskExecutor(cluster.scheduler_address)


@pytest.fixture(params=["inline", "local", *CLUSTERS])
def executor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | Executor:
    """Every executor, by name or connected to a cluster that all tests share."""
    name: str = request.param
    if name not in CLUSTERS:
        return name
    from tests.executors.clusters import PATIENCE

    for constant, value in PATIENCE.items():
        monkeypatch.setattr(f"tamis.executors.nodes.{constant}", value)
    if name not in _open_clusters:
        with ExitStack() as stack:
            found = (_ray if name == "ray" else _dask)(stack)
            _open_clusters[name] = found, stack.pop_all()
    return _open_clusters[name][0]


@dataclass(frozen=True)
class S3:
    """A bucket on a local S3 server, and the options to access it."""

    url: str
    storage_options: dict[str, Any]


@pytest.fixture(scope="session")
def _s3_endpoint() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_server(_s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> S3:
    """A fresh bucket on a local S3 server; `url` is s3://bucket."""
    import s3fs

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    options = {"key": "testing", "secret": "testing", "endpoint_url": _s3_endpoint}
    bucket = f"bucket-{uuid.uuid4().hex[:12]}"
    s3fs.S3FileSystem(**options).mkdir(bucket)
    return S3(f"s3://{bucket}", options)
