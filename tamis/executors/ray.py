"""Runs a pipeline on a Ray cluster: an actor per node, which forks workers there."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from tamis.errors import ParameterError, require
from tamis.events import Events
from tamis.executors.agent import AgentSettings, run_agent
from tamis.executors.cluster import ClusterSession, smallest
from tamis.executors.executor import Stop, Streaming
from tamis.memory.budget import Machine
from tamis.memory.governor import Governor
from tamis.memory.slots import GpuDevice
from tamis.models.devices import visible_gpus

CONNECT_S = 10


@dataclass(frozen=True)
class RayExecutor:
    """Workers on all nodes of a Ray cluster. Input, output and exchange must be where all nodes see them.

    `address` is that of a cluster, as in `ray.init`: "auto" for the one that runs on this machine. Without it, the cluster that
    this process is connected to or that `$RAY_ADDRESS` names is used; if there is none, Ray is started on this machine, and
    stopped after the run. A process that is connected to one cluster cannot use another. `workers` and the memory of a run are
    per node; each node reserves its cores. Nodes that join during a run get work, and others do that of nodes that are lost.
    """

    address: str | None = None
    workers: int | Literal["auto"] = "auto"
    streaming: Streaming = "auto"

    @property
    def name(self) -> str:
        return "ray"

    @contextmanager
    def connected(self) -> Iterator[Machine]:
        ray = require("ray", extra="ray", purpose="the Ray executor")
        started = not ray.is_initialized()
        if not started:
            self._check_connected(getattr(ray.get_runtime_context(), "gcs_address", None))  # a Ray Client has none
        address = self.address or os.environ.get("RAY_ADDRESS") or "local"
        if started:
            options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
            try:
                _check_reachable(address)
                ray.init(address, log_to_driver=False, configure_logging=False, **options)
            except (OSError, ValueError) as error:
                raise ParameterError(
                    f"cannot connect to Ray at {address}: {error}", hint="start it with `ray start --head`"
                ) from error
        try:
            yield smallest(list(_machines(ray).values()), "Ray")
        finally:
            if started:
                ray.shutdown()

    def _check_connected(self, known: str | None) -> None:
        """Raise if this process is connected to another cluster than the one requested."""
        if self.address is not None and known is not None and _differ(self.address, known):
            raise ParameterError(
                f"this process is connected to Ray at {known}, and the run is to use {self.address}",
                hint="leave out `address` to use the cluster that this process is connected to, or call ray.shutdown() first",
            )

    @contextmanager
    def session(self, governor: Governor, modules: set[str], emit: Events, stop: Stop) -> Iterator[ClusterSession]:
        import ray

        # Also while this is the only node: others may join.
        here = ray.util.get_node_ip_address()
        with ClusterSession(_RayPlacement(ray, governor), here, governor, modules, emit, stop) as session:
            yield session


def _check_reachable(address: str) -> None:
    """Raise at once if nothing listens at `host:port`; Ray itself tries for more than a minute."""
    host, _, port = address.rpartition(":")
    if port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), CONNECT_S).close()


def _differ(address: str, known: str) -> bool:
    """Whether two addresses are those of different clusters; False if that is uncertain.

    >>> _differ("10.0.0.1:6379", "10.0.0.2:6379"), _differ("localhost:6379", "10.0.0.2:6379"), _differ("auto", "10.0.0.2:6379")
    (True, False, False)
    """
    (host, _, port), (known_host, _, known_port) = address.rpartition(":"), known.rpartition(":")
    if not port.isdigit() or "/" in host or address == known:
        return False
    ips, known_ips = _ips(host), _ips(known_host)
    loopback = any(ipaddress.ip_address(ip).is_loopback for ip in ips | known_ips)
    return port != known_port or not (loopback or ips & known_ips)


def _ips(host: str) -> set[str]:
    with suppress(OSError):
        return {str(found[4][0]).partition("%")[0] for found in socket.getaddrinfo(host.strip("[]"), None)}
    return set()


class RayAgent:
    """The actor of a node."""

    def run(self, settings: AgentSettings) -> None:
        # Ray has chosen the GPUs, and shows the actor only these.
        run_agent(replace(settings, gpus=tuple(visible_gpus())) if settings.gpus else settings)


class _RayPlacement:
    """Agents as actors, each bound to its node."""

    def __init__(self, ray: Any, governor: Governor) -> None:
        self._ray, self._governor = ray, governor
        self._actors: dict[str, tuple[Any, Any]] = {}
        """By node, the actor and its call that ends with the agent."""

    def machines(self) -> dict[str, Machine]:
        return _machines(self._ray)

    def start(self, settings: AgentSettings) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        machine, budget = self.machines().get(settings.node), self._governor.budget
        if machine is None:
            return  # lost in the meantime
        actor = (
            self._ray.remote(RayAgent)
            .options(
                num_cpus=min(machine.cpus, budget.wanted_workers)
                if budget.wanted_workers < budget.cpus
                else machine.cpus,
                num_gpus=len(settings.gpus),
                memory=min(machine.memory_bytes, budget.total_bytes),
                max_restarts=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(settings.node, soft=False),
            )
            .remote()
        )
        self._actors[settings.node] = (actor, actor.run.remote(settings))

    def ended(self) -> dict[str, str | None]:
        calls = {call: node for node, (_, call) in self._actors.items()}
        done, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0) if calls else ([], [])
        found: dict[str, str | None] = {}
        for call in done:
            node = calls[call]
            actor, _ = self._actors.pop(node)
            found[node] = None
            try:
                self._ray.get(call)
            except self._ray.exceptions.RayError as error:
                found[node] = _reason(error)
            self._ray.kill(actor)
        return found

    def close(self) -> None:
        for actor, _ in self._actors.values():
            self._ray.kill(actor)


def _reason(error: Exception) -> str:
    """The line of an error of Ray that says what is wrong: the last one of a traceback, but the first of what Ray reports."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0 if type(error).__name__ == "OutOfMemoryError" else -1]


def _machines(ray: Any) -> dict[str, Machine]:
    """The nodes of the cluster that have cores."""
    found = {}
    for node in ray.nodes():
        resources = node["Resources"]
        if node["Alive"] and resources.get("CPU", 0) >= 1:
            host, memory = node["NodeManagerHostname"], int(resources.get("memory", 0))
            gpus = tuple(GpuDevice(str(number)) for number in range(int(resources.get("GPU", 0))))
            found[node["NodeID"]] = Machine(int(resources["CPU"]), memory, host, gpus)
    return found
