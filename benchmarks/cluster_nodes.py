"""Ray and Dask clusters of several nodes on one machine, whose processes can be killed and suspended one by one.

    RayNodes     a head without cores, and raylets of one core each, as separate `ray start` commands would make
    DaskNodes    a scheduler, and `dask worker` commands of one thread each

Every process that a cluster or a run starts inherits a mark in its environment, so that those left over can be found.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

MARK = "TAMIS_BENCHMARK_MARK"
NODE_BYTES = 2_000_000_000


class RayNodes:
    """Several raylets on this machine."""

    executor = "ray"

    def __init__(self, count: int, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        small = {"object_store_memory": 80_000_000, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
        self._nodes: list[Any] = []
        for _ in range(count):
            self.add()
        self.address = self._cluster.address

    def add(self) -> None:
        node = self._cluster.add_node(num_cpus=1, memory=NODE_BYTES, object_store_memory=80_000_000)
        self._nodes.append(node)

    def roots(self) -> list[int]:
        """The process of each node that has all others below it."""
        return [node.all_processes["raylet"][0].process.pid for node in self._nodes]

    def kill(self, root: int) -> None:
        """Kill all processes of a node."""
        node = self._nodes[self.roots().index(root)]
        below = _below(root)
        self._nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)
        kill(below)

    def close(self) -> None:
        self._cluster.shutdown()


class DaskNodes:
    """A scheduler and several workers with their nannies."""

    executor = "dask"

    def __init__(self, count: int, folder: Path) -> None:
        self._folder = folder
        self._nodes: list[subprocess.Popen[bytes]] = []
        self._scheduler = self._start("scheduler", "--port", "0", "--scheduler-file", str(folder / "scheduler.json"))
        while not (folder / "scheduler.json").exists():
            time.sleep(0.1)
        self.address: str = json.loads((folder / "scheduler.json").read_text())["address"]
        for _ in range(count):
            self.add()

    def _start(self, what: str, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.dask_{what}", *options, "--no-dashboard"]
        with (self._folder / "dask.log").open("ab") as log:
            return subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log)

    def add(self) -> None:
        local = ["--local-directory", str(self._folder)]
        options = ["--nthreads", "1", "--memory-limit", str(NODE_BYTES), "--host", "127.0.0.1", *local]
        self._nodes.append(self._start("worker", self.address, *options))

    def roots(self) -> list[int]:
        return [node.pid for node in self._nodes]

    def kill(self, root: int) -> None:
        node = self._nodes.pop(self.roots().index(root))
        below = _below(root)  # before they have another parent
        node.kill()
        kill(below)
        node.wait()

    def close(self) -> None:
        for node in self._nodes:
            node.terminate()
        for node in self._nodes:
            node.wait()
        self._scheduler.terminate()
        self._scheduler.wait()


@contextmanager
def cluster(engine: str, count: int, folder: Path) -> Iterator[RayNodes | DaskNodes]:
    """A cluster of `count` nodes with one core each."""
    folder.mkdir(parents=True, exist_ok=True)
    nodes = RayNodes(count, folder) if engine == "ray" else DaskNodes(count, folder)
    try:
        yield nodes
    finally:
        nodes.close()


# ------------------------------------------------------------------------------------------------------------- processes


def servers(root: int) -> list[psutil.Process]:
    """The fork servers below a process. Their parents are agents, and their children are workers."""
    found = [process for process in _below(root) if _is_forked(process)]
    pids = {process.pid for process in found}
    with suppress(psutil.NoSuchProcess):
        return [process for process in found if process.ppid() not in pids]  # workers have the same command line
    return []


def _is_forked(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        if process.status() != psutil.STATUS_ZOMBIE:
            return any("forkserver" in word for word in process.cmdline()[:3])
    return False


def _below(root: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(root).children(recursive=True)
    return []


def kill(processes: list[psutil.Process]) -> None:
    signal_all(processes, signal.SIGKILL)


def signal_all(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def marked(mark: str) -> list[str]:
    """Command lines of running processes, other than this one, that inherited the mark."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found.append(f"{process.pid} {' '.join(process.cmdline())[:100]}")
    return found
