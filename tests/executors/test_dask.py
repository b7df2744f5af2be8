"""Runs on Dask: the same rows, reasons and failures as on one machine, also after faults."""

import json
import os
import re
import subprocess
import sys
from contextlib import suppress

import psutil
import pytest
from distributed import Client, LocalCluster

from tamis import DaskExecutor, Pipeline, Rows
from tamis.errors import ParameterError
from tests.executors import clusters
from tests.executors.clusters import (
    Faults,
    at_work,
    await_none,
    dedup,
    end,
    kill_one,
    patience,  # noqa: F401
    servers_of,
    workers_of,
)
from tests.test_object_store import bucket, job, rows_out  # noqa: F401


@pytest.fixture(scope="module")
def dask_cluster():
    """Two Dask workers of one thread each, on this machine."""
    with LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", memory_limit="2GB"
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def executor(dask_cluster):
    return DaskExecutor(dask_cluster.scheduler_address)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return clusters.write_source(tmp_path_factory.mktemp("dask"))


@pytest.fixture(scope="module")
def reference(source, tmp_path_factory):
    return dedup(source, tmp_path_factory.mktemp("reference") / "out", executor="inline", blocksize="10MB")


def dask_workers(cluster):
    """Their processes; a nanny that starts another one has none."""
    return [nanny.pid for nanny in cluster.workers.values() if nanny.pid]


def agents(cluster):
    """The fork servers of the agents of all Dask workers."""
    return servers_of(dask_workers(cluster))


def test_the_same_rows_reasons_failures_and_groups(executor, dask_cluster, source, reference, tmp_path):
    met = tmp_path / "met"
    met.mkdir()
    found = dedup(source, tmp_path / "out", clusters.keep_once_at_work(met, 2), executor=executor, memory="1GB")
    assert found == reference
    nodes = json.loads((tmp_path / "out" / ".tamis" / "report.json").read_text())["memory"]["nodes"]
    assert [node["workers"] for node in nodes] == [1, 1]
    await_none(lambda: agents(dask_cluster))


def test_a_worker_of_another_machine_could_join():
    """The only Dask worker is on this machine, and the driver still listens where others can reach it."""
    from distributed.utils import get_ip

    with LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        dashboard_address="127.0.0.1:0",
        processes=False,
        protocol="tcp",
        host=get_ip(),
    ) as cluster:
        assert clusters.hosts_listened_on(DaskExecutor(cluster.scheduler_address)) == {get_ip()}


def test_nobody_is_let_in_from_outside_without_need(executor):
    assert clusters.hosts_listened_on(executor) == {"127.0.0.1"}


def test_stages_that_run_at_the_same_time(dask_cluster, source, tmp_path):
    """Also if workers and an agent are killed: packets on its node are lost, and their partitions begin again."""

    def worker():
        servers = at_work(agents(dask_cluster))
        return kill_one(workers_of(servers[:1])) and kill_one(servers[::-1])

    reference = clusters.divided(source, tmp_path / "inline", executor="inline", blocksize="10MB")
    faults = Faults(map=worker)
    executor = DaskExecutor(dask_cluster.scheduler_address, streaming="always")
    found = clusters.divided(
        source, tmp_path / "out", executor=executor, memory="2GB", blocksize="4kB", on_event=faults
    )
    assert found == reference
    assert sum("was lost" in note for note in faults.notes) == 1
    report = json.loads((tmp_path / "out" / ".tamis" / "report.json").read_text())
    assert len(report["streams"][0]["stages"]) == 3
    await_none(lambda: agents(dask_cluster))


def test_rows_that_break_their_worker_fail_alone(executor, tmp_path):
    kept, errors = clusters.broken(tmp_path / "dask", executor=executor)
    assert (kept, sorted(errors)) == ([0, 2, 4], [1, 3, 5])
    assert (kept, errors) == clusters.broken(tmp_path / "local", executor="local", workers=1)


def test_semantic_deduplication(executor, tmp_path):
    kept = clusters.semantic(tmp_path / "dask", executor=executor, memory="1GB")
    assert kept == clusters.semantic(tmp_path / "inline", executor="inline")


def test_everything_in_an_object_store(executor, bucket):  # noqa: F811
    report = job(bucket).run(executor=executor, memory="1GB", exchange=f"{bucket.url}/exchange")
    assert (report.read, report.kept) == (300, len(rows_out(bucket)))
    assert report.balances


def test_workers_servers_and_dask_workers_that_are_killed_cost_no_row(
    executor, dask_cluster, source, reference, tmp_path
):
    def worker():
        return kill_one(workers_of(agents(dask_cluster)))

    def server():
        return kill_one(at_work(agents(dask_cluster)))

    def dask_worker():  # its nanny starts another
        for pid in dask_workers(dask_cluster):
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if at_work(servers_of([pid])):
                    return kill_one([process])
        return False

    faults = Faults(map=worker, calls=server, write=dask_worker)
    found = dedup(source, tmp_path / "out", executor=executor, memory="1GB", on_event=faults, blocksize="4kB")
    assert found == reference
    assert not faults.left
    assert sum("was lost" in note for note in faults.notes) == 2
    assert any("SIGKILL" in how for how in faults.deaths)
    await_none(lambda: agents(dask_cluster))


def test_a_node_that_joins_while_a_gather_decides_gets_work(executor, dask_cluster, source, reference, tmp_path):
    """It looks for the folders of the run when it joins, and they have to be there also between stages."""

    def join():
        known = {agent.pid for agent in agents(dask_cluster)}
        if not kill_one(at_work(agents(dask_cluster))):
            return False
        await_none(lambda: not {agent.pid for agent in agents(dask_cluster)} - known)
        return True

    faults = Faults(calls=join)
    found = dedup(source, tmp_path / "out", executor=executor, memory="1GB", on_event=faults)
    assert found == reference
    assert sum("was lost" in note for note in faults.notes) == 1
    assert not any("gets no work" in note for note in faults.notes)


def test_a_driver_that_is_killed_leaves_nothing_running_and_the_run_resumes(
    executor, dask_cluster, source, reference, tmp_path
):
    output = clusters.kill_a_driver("DaskExecutor", dask_cluster.scheduler_address, source, tmp_path / "out")
    await_none(lambda: agents(dask_cluster))
    assert dedup(source, output, executor=executor, memory="1GB", blocksize="4kB") == reference


def test_a_node_without_a_package_is_named_and_gets_no_work(executor, dask_cluster, source, tmp_path):
    options = ["--nthreads", "1", "--memory-limit", "2GB", "--host", "127.0.0.1", "--name", "bare", "--no-dashboard"]
    bare = subprocess.Popen(
        [sys.executable, "-m", "distributed.cli.dask_worker", dask_cluster.scheduler_address, *options],
        env=os.environ | clusters.without_module(tmp_path, "colorsys"),
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
    )
    try:
        with Client(dask_cluster) as client:
            client.wait_for_workers(3, timeout=300)
        refused = tmp_path / "refused"
        faults = Faults(refused=refused.touch)
        step = clusters.ColourForTests()
        steps = (step, clusters.keep_after(refused))
        found = dedup(source, tmp_path / "out", *steps, executor=executor, memory="1GB", on_event=faults)
    finally:
        end(bare)
    assert found == dedup(source, tmp_path / "inline", step, executor="inline", blocksize="10MB")
    (note,) = [note for note in faults.notes if "gets no work" in note]
    assert re.search(r"node \S+ \(127.0.0.1:\d+\) cannot import `colorsys`, which a step needs", note)


def test_without_a_cluster_one_is_started_on_this_machine(source, reference, tmp_path):
    command = ["run", "length", "--input", str(source), "--output", str(tmp_path / "out"), "--memory", "1GB", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "tamis", *command, "--executor", "dask"], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["read"] == 1200 + json.loads(done.stdout)["failed"]


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("tcp://127.0.0.1:1", "Connection refused"),
        ("127.0.0.1", "missing port number"),
        ("tls://127.0.0.1:1", "it needs certificates"),
    ],
)
def test_a_scheduler_that_cannot_be_reached_is_an_error_at_once(address, why, tmp_path):
    code = f"from tamis import *; Pipeline(Rows([{{'n': 1}}])).run(executor=DaskExecutor({address!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert f"cannot connect to Dask at {address}: " in done.stderr
    assert why in done.stderr
    assert "Exception ignored" not in done.stderr  # a client of Dask that has failed delays the exit


def test_a_scheduler_without_workers(monkeypatch):
    monkeypatch.setattr("tamis.executors.dask.CONNECT_S", 1)
    with (
        LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0") as cluster,
        pytest.raises(ParameterError, match="the Dask cluster has no node with a core"),
    ):
        Pipeline(Rows([{"n": 1}])).run(executor=DaskExecutor(cluster.scheduler_address))
