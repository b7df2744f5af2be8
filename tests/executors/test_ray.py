"""Runs on Ray: the same rows, reasons and failures as on one machine, also after faults."""

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tamis import RayExecutor
from tamis.errors import ParameterError, WorkerError
from tamis.executors.ray import _reason
from tests.executors import clusters
from tests.executors.clusters import (
    Faults,
    at_work,
    await_none,
    dedup,
    kill_one,
    patience,  # noqa: F401
    servers_of,
    workers_of,
)
from tests.test_object_store import bucket, job, rows_out  # noqa: F401

SMALL = {"object_store_memory": 80_000_000}


@pytest.fixture(scope="module")
def ray_cluster():
    """Two nodes of one core each, on this machine."""
    with clusters.ray_nodes({"num_cpus": 1}, {"num_cpus": 1}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def connected(ray_cluster):
    import ray

    ray.init(ray_cluster.address, log_to_driver=False, configure_logging=False)
    yield ray_cluster
    ray.shutdown()


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return clusters.write_source(tmp_path_factory.mktemp("ray"))


@pytest.fixture(scope="module")
def reference(source, tmp_path_factory):
    found = dedup(source, tmp_path_factory.mktemp("reference") / "out", executor="inline", blocksize="10MB")
    assert len(found["rows"]) > 200
    assert len(found["failed"]) > 5
    return found


def raylet(node):
    return node.all_processes["raylet"][0].process.pid


def agents(cluster):
    """The fork servers of the agents of all nodes."""
    return servers_of([raylet(node) for node in cluster.list_all_nodes()])


def parents(cluster):
    """The agents of all nodes that are at work. A raylet becomes the parent of a server whose agent has just ended."""
    raylets = [raylet(node) for node in cluster.list_all_nodes()]
    found = []
    for server in at_work(agents(cluster)):
        with suppress(psutil.NoSuchProcess):
            agent = server.parent()
            found += [agent] if agent is not None and agent.pid not in raylets else []
    return found


def is_alive(node):
    """Whether Ray lists a node. It lists one that was lost for another 16 seconds."""
    import ray

    return any(each["NodeID"] == node.node_id and each["Alive"] for each in ray.nodes())


def join(cluster, **options):
    """Let a node of one core join the cluster; Ray itself waits for 30 seconds at most."""
    node = cluster.add_node(wait=False, num_cpus=1, **SMALL, **options)
    await_none(lambda: not is_alive(node))
    return node


def leave(cluster, node):
    """Let a node leave the cluster, so that the next test does not find it there."""
    await_none(lambda: not is_alive(node))
    cluster.remove_node(node)
    await_none(lambda: is_alive(node))


def test_the_same_rows_reasons_failures_and_groups(connected, source, reference, tmp_path):
    met = tmp_path / "met"
    met.mkdir()
    found = dedup(source, tmp_path / "out", clusters.keep_once_at_work(met, 2), executor=RayExecutor(), memory="1GB")
    assert found == reference
    nodes = json.loads((tmp_path / "out" / ".tamis" / "report.json").read_text())["memory"]["nodes"]
    assert [node["workers"] for node in nodes] == [1, 1]
    await_none(lambda: agents(connected))


def test_a_node_of_another_machine_could_join(connected):
    """All nodes are on this machine, and the driver still listens where others can reach it."""
    import ray

    assert clusters.hosts_listened_on(RayExecutor()) == {ray.util.get_node_ip_address()}


def test_stages_that_run_at_the_same_time(connected, source, tmp_path):
    """Also if workers and an agent are killed: packets on its node are lost, and their partitions begin again."""

    def worker():
        servers = at_work(agents(connected))
        return kill_one(workers_of(servers[:1])) and kill_one(servers[::-1])

    reference = clusters.divided(source, tmp_path / "inline", executor="inline", blocksize="10MB")
    faults = Faults(map=worker)
    executor = RayExecutor(streaming="always")
    found = clusters.divided(
        source, tmp_path / "out", executor=executor, memory="2GB", blocksize="4kB", on_event=faults
    )
    assert found == reference
    assert sum("was lost" in note for note in faults.notes) == 1
    report = json.loads((tmp_path / "out" / ".tamis" / "report.json").read_text())
    assert len(report["streams"][0]["stages"]) == 3
    await_none(lambda: agents(connected))


def test_rows_that_break_their_worker_fail_alone(connected, tmp_path):
    kept, errors = clusters.broken(tmp_path / "ray", executor="ray")
    assert (kept, sorted(errors)) == ([0, 2, 4], [1, 3, 5])
    assert (kept, errors) == clusters.broken(tmp_path / "local", executor="local", workers=1)


def test_semantic_deduplication(connected, tmp_path):
    kept = clusters.semantic(tmp_path / "ray", executor="ray", memory="1GB")
    assert kept == clusters.semantic(tmp_path / "inline", executor="inline")


def test_everything_in_an_object_store(connected, bucket):  # noqa: F811
    report = job(bucket).run(executor="ray", memory="1GB", exchange=f"{bucket.url}/exchange")
    assert (report.read, report.kept) == (300, len(rows_out(bucket)))
    assert report.balances


def test_workers_servers_and_agents_that_are_killed_cost_no_row(connected, source, reference, tmp_path):
    def worker():
        return kill_one(workers_of(agents(connected)))

    def server():
        return kill_one(at_work(agents(connected)))

    def agent():
        return kill_one(parents(connected)[::-1])

    faults = Faults(map=worker, calls=server, write=agent)
    found = dedup(source, tmp_path / "out", executor=RayExecutor(), memory="1GB", on_event=faults, blocksize="4kB")
    assert found == reference
    assert not faults.left
    assert sum("was lost" in note for note in faults.notes) == 2
    assert any("SIGKILL" in how for how in faults.deaths)
    await_none(lambda: agents(connected))


def test_a_node_that_is_lost_and_one_that_joins(connected, source, reference, tmp_path):
    extra = join(connected)
    lost = tmp_path / "lost"
    joined = []

    def lose():
        """Remove the node once it is at work: until then the rows of all nodes wait, however long it takes to join."""
        await_none(lambda: not at_work(servers_of([raylet(extra)])))
        connected.remove_node(extra, allow_graceful=False)
        lost.touch()

    def add():
        joined.append(connected.add_node(wait=False, num_cpus=1, **SMALL))

    faults = Faults(calls=add)
    with ThreadPoolExecutor() as pool:
        losing = pool.submit(lose)
        found = dedup(
            source,
            tmp_path / "out",
            clusters.keep_after(lost),
            executor=RayExecutor(),
            memory="1GB",
            on_event=faults,
            blocksize="4kB",
        )
        losing.result()
    leave(connected, joined[0])
    await_none(lambda: is_alive(extra))
    assert found == reference
    assert sum("was lost" in note for note in faults.notes) == 1
    assert all("lost with node" in how for how in faults.deaths)


def test_a_node_that_is_silent_is_given_up_and_does_no_harm_when_it_comes_back(
    connected, source, reference, tmp_path, monkeypatch
):
    monkeypatch.setattr("tamis.executors.nodes.SILENT_S", 5.0)
    stopped = []

    def suspend():
        for agent in parents(connected)[:1]:
            stopped.extend([agent, *agent.children(recursive=True)])
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        return bool(stopped)

    faults = Faults(map=suspend)
    try:
        found = dedup(source, tmp_path / "out", executor=RayExecutor(), memory="1GB", on_event=faults, blocksize="4kB")
    finally:
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.resume()
    await_none(lambda: agents(connected))
    assert found == reference == clusters.outcome_in(tmp_path / "out") | {"account": found["account"]}
    assert any("was silent for 5 seconds" in note for note in faults.notes)  # or more, on a busy machine


def test_a_driver_that_is_killed_leaves_nothing_running_and_the_run_resumes(connected, source, reference, tmp_path):
    output = clusters.kill_a_driver("RayExecutor", connected.address, source, tmp_path / "out")
    await_none(lambda: agents(connected))
    found = dedup(source, output, executor=RayExecutor(), memory="1GB", blocksize="4kB")
    assert found == reference


def test_a_node_that_does_not_see_the_input_is_named(connected, source, tmp_path, monkeypatch):
    monkeypatch.chdir(source)
    here = Path("/proc/self/cwd/0.jsonl")  # another folder in another process
    with pytest.raises(WorkerError, match=r"node \S+ \(\w+\) cannot see /proc/self/cwd/0.jsonl"):
        dedup(here, tmp_path / "out", executor=RayExecutor(), memory="1GB")


def test_a_node_that_does_not_see_the_output_is_named(connected, source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    there = Path("/proc/self/cwd/out")  # another folder in another process
    with pytest.raises(WorkerError, match=r"node \S+ \(\w+\) cannot see /proc/self/cwd/out/"):
        dedup(source, there, executor=RayExecutor(), memory="1GB")


def test_a_node_without_a_package_is_named_and_gets_no_work(connected, source, tmp_path):
    node = join(connected, env_vars=clusters.without_module(tmp_path, "colorsys"))
    refused = tmp_path / "refused"
    faults = Faults(refused=refused.touch)
    step = clusters.ColourForTests()
    steps = (step, clusters.keep_after(refused))
    found = dedup(source, tmp_path / "out", *steps, executor=RayExecutor(), memory="1GB", on_event=faults)
    leave(connected, node)
    assert found == dedup(source, tmp_path / "inline", step, executor="inline", blocksize="10MB")
    (note,) = [note for note in faults.notes if "gets no work" in note]
    assert re.search(rf"node \S+ \({node.node_id[:8]}\) cannot import `colorsys`, which a step needs", note)


def test_a_node_without_tamis_gets_no_work(connected, source, reference, tmp_path):
    node = join(connected, env_vars=clusters.without_module(tmp_path, "tamis"))
    refused = tmp_path / "refused"
    faults = Faults(refused=refused.touch)
    step = clusters.keep_after(refused)
    found = dedup(source, tmp_path / "out", step, executor=RayExecutor(), memory="1GB", on_event=faults)
    leave(connected, node)
    assert found == reference
    (note,) = [note for note in faults.notes if "gets no work" in note]
    assert re.search(rf"node \S+ \({node.node_id[:8]}\) cannot start an agent: .*No module named 'tamis'", note)


def test_a_package_that_no_node_has(connected, source, tmp_path):
    with pytest.raises(WorkerError, match=r"node \S+ \(\w+\) cannot import `no_such_module`"):
        dedup(source, tmp_path / "out", clusters.ColourForTests("no_such_module"), executor="ray", memory="1GB")


def test_the_command_line(connected, source, tmp_path):
    command = ["-m", "tamis", "run", "length", "--input", str(source), "--memory", "1GB", "--json"]
    ray = ["--executor", "ray", "--address", connected.address]
    _, printed = clusters.run_driver(lambda output: [*command, *ray, "--output", str(output)], tmp_path / "out")
    assert json.loads(printed)["read"] == 1200 + json.loads(printed)["failed"]


def test_what_cannot_be_is_refused(connected, source, tmp_path):
    with pytest.raises(ParameterError, match="no node of the cluster has a GPU"):
        dedup(source, tmp_path / "out", executor=RayExecutor(), device="gpu")


def test_a_cluster_that_cannot_be_reached_is_an_error_at_once(tmp_path):
    code = "from tamis import *; Pipeline(Rows([{'n': 1}])).run(executor=RayExecutor(address='127.0.0.1:1'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert "cannot connect to Ray at 127.0.0.1:1" in done.stderr
    assert "start it with `ray start --head`" in done.stderr


def test_a_process_that_is_connected_to_another_cluster(connected):
    port = connected.address.rpartition(":")[2]
    for address in (None, "auto", connected.address, f"localhost:{port}"):
        with RayExecutor(address).connected() as machine:
            assert machine.cpus == 1
    for address in (f"198.51.100.7:{port}", "localhost:1"):
        error = f"connected to Ray at {connected.address}, and the run is to use {address}"
        with pytest.raises(ParameterError, match=error), RayExecutor(address).connected():
            pass


def test_an_agent_that_ray_ended_for_lack_of_memory_says_so():
    from ray.exceptions import OutOfMemoryError

    error = OutOfMemoryError(
        "1 worker(s) were killed due to the node running low on memory.\nRefer to the documentation"
    )
    assert _reason(error) == "1 worker(s) were killed due to the node running low on memory."
