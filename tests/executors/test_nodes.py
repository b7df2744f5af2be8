"""Nodes of a cluster, as the driver sees them."""

import time
from contextlib import closing
from types import SimpleNamespace

import pytest

from tamis.errors import WorkerError
from tamis.events import Events
from tamis.executors import nodes
from tamis.executors.executor import Hooks
from tamis.executors.nodes import ClusterCrew
from tamis.executors.wire import Door, connect
from tamis.memory.budget import Machine

BUDGET = SimpleNamespace(
    wanted_workers=1, cpus=1, total_bytes=10**9, driver_bytes=10**8, worker_bytes=10**8, workers=1, hides_gpus=False
)

ONE_NODE = SimpleNamespace(machines={"node": Machine(1, 2 * 10**9)}, problem=None, failed={})


def test_a_run_whose_last_node_is_lost_waits_for_another_also_if_the_driver_was_busy_for_long(monkeypatch):
    ahead = [0.0]
    monkeypatch.setattr(nodes, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead[0]))
    with closing(Door("127.0.0.1")) as door:
        crew = ClusterCrew(door, ONE_NODE, SimpleNamespace(budget=BUDGET), Events(), Hooks())
        with closing(connect(door.address, door.token, "agent", "node")):
            while not crew._joined:
                list(crew.messages())
            ahead[0] += 10 * nodes.NO_NODE_S
        while crew._joined:
            list(crew.messages())
        list(crew.messages())
        ahead[0] += 2 * nodes.NO_NODE_S
        with pytest.raises(WorkerError, match="there is no node to work on"):
            list(crew.messages())
