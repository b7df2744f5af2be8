"""Runs a pipeline on a Dask cluster: an agent per Dask worker, which forks workers there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from tamis.errors import ParameterError, require
from tamis.events import Events
from tamis.executors.agent import AgentSettings, run_agent
from tamis.executors.cluster import ClusterSession, smallest
from tamis.executors.executor import Stop, Streaming
from tamis.memory.budget import Machine, usable_cpus
from tamis.memory.governor import Governor

CONNECT_S = 30
LAST_S = 15
"""How long agents may take to end after a run."""


@dataclass(frozen=True)
class DaskExecutor:
    """Workers beside all workers of a Dask cluster. Input, output and exchange must be where all of them see them.

    `address` is that of a scheduler, such as "tcp://10.0.0.1:8786". Without it, the client that this process has is used; if
    there is none, a cluster is started on this machine, and stopped after the run. A Dask worker counts as a node: with its
    threads as cores and with its memory limit. `workers` and the memory of a run are per node.
    """

    address: str | None = None
    workers: int | Literal["auto"] = "auto"
    streaming: Streaming = "auto"

    @property
    def name(self) -> str:
        return "dask"

    @contextmanager
    def connected(self) -> Iterator[Machine]:
        distributed = require("distributed", extra="dask", purpose="the Dask executor")
        with ExitStack() as stack:
            client = _client(distributed, self.address, stack)
            client.wait_for_workers(1, timeout=CONNECT_S)
            with client.as_current():
                yield smallest(list(_machines(client).values()), "Dask")

    @contextmanager
    def session(self, governor: Governor, modules: set[str], emit: Events, stop: Stop) -> Iterator[ClusterSession]:
        import distributed

        client = distributed.get_client()
        # Workers may join from wherever the scheduler can be reached, also if all of them are on this machine now.
        addresses = [client.scheduler_info(n_workers=0)["address"], *_machines(client)]
        hosts = [host for host in map(_host, addresses) if host not in ("", "127.0.0.1")]
        host = distributed.utils.get_ip(hosts[0]) if hosts else "127.0.0.1"
        with ClusterSession(_DaskPlacement(client), host, governor, modules, emit, stop) as session:
            yield session


def _host(address: str) -> str:
    """The host in the address of a scheduler or worker; "" if it is in this process."""
    return "" if address.startswith("inproc") else urlsplit(address).hostname or ""


def _client(distributed: Any, address: str | None, stack: ExitStack) -> Any:
    """A connection to a cluster: the one given, the one that this process has, or a new one on this machine."""
    if address is None:
        try:
            return distributed.get_client()
        except ValueError:  # there is none
            # In this process: a process of its own would import the main script of the user again.
            cluster = distributed.LocalCluster(
                n_workers=1, threads_per_worker=usable_cpus(), dashboard_address="127.0.0.1:0", processes=False
            )
            address = stack.enter_context(cluster).scheduler_address
    try:
        return stack.enter_context(distributed.Client(address, timeout=CONNECT_S, set_as_default=False))
    except (OSError, ValueError) as error:
        raise ParameterError(
            f"cannot connect to Dask at {address}: {error}", hint="start it with `dask scheduler` and `dask worker`"
        ) from error


class _DaskPlacement:
    """Agents as tasks, each bound to its Dask worker."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._calls: dict[str, Any] = {}

    def machines(self) -> dict[str, Machine]:
        return _machines(self._client)

    def start(self, settings: AgentSettings) -> None:
        self._calls[settings.node] = self._client.submit(
            run_agent,
            settings,
            workers=[settings.node],
            pure=False,
        )

    def ended(self) -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        alive = self.machines()
        for node, call in list(self._calls.items()):
            if call.done() or node not in alive:
                del self._calls[node]
                found[node] = repr(call.exception()) if call.status == "error" else None
                call.release()
        return found

    def close(self) -> None:
        import distributed

        calls = list(self._calls.values())
        with suppress(TimeoutError):
            distributed.wait(calls, timeout=LAST_S)
        self._client.cancel(calls)


def _machines(client: Any) -> dict[str, Machine]:
    """The Dask workers of the cluster, by address."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return {
        address: Machine(int(found["nthreads"]), int(found["memory_limit"] or 0), found["host"])
        for address, found in workers.items()
    }
