"""Runs a pipeline on a Dask cluster: an agent per Dask worker, which forks workers there."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
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
from tamis.memory.slots import GpuDevice, gpu_devices

REACH_S = 10
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
            with suppress(TimeoutError):
                client.wait_for_workers(1, timeout=CONNECT_S)
            with client.as_current():
                yield smallest(list(_DaskNodes(client).machines().values()), "Dask")

    @contextmanager
    def session(self, governor: Governor, modules: set[str], emit: Events, stop: Stop) -> Iterator[ClusterSession]:
        import distributed

        client = distributed.get_client()
        # Workers may join from wherever the scheduler can be reached, also if all of them are on this machine now.
        addresses = [client.scheduler_info(n_workers=0)["address"], *client.scheduler_info(n_workers=-1)["workers"]]
        hosts = [host for host in map(_host, addresses) if host not in ("", "127.0.0.1")]
        host = distributed.utils.get_ip(hosts[0]) if hosts else "127.0.0.1"
        with ClusterSession(_DaskPlacement(client, governor), host, governor, modules, emit, stop) as session:
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
        _check_reachable(distributed, address)
        return stack.enter_context(distributed.Client(address, timeout=CONNECT_S, set_as_default=False))
    except (OSError, ValueError) as error:
        raise ParameterError(
            f"cannot connect to Dask at {address}: {error}", hint="start it with `dask scheduler` and `dask worker`"
        ) from error


def _check_reachable(distributed: Any, address: str) -> None:
    """Raise at once if nothing listens there. Dask tries for longer, and a client that failed delays the exit by a minute."""
    scheme, place = distributed.comm.parse_address(address)
    distributed.comm.registry.get_backend(scheme)
    if scheme == "tls" and distributed.Security().get_connection_args("client")["ssl_context"] is None:
        raise ValueError("it needs certificates, which the configuration of Dask (distributed.comm.tls) does not name")
    if scheme in ("tcp", "tls"):
        socket.create_connection(distributed.comm.parse_host_port(place), REACH_S).close()


class _DaskPlacement:
    """Agents as tasks, each bound to its Dask worker."""

    def __init__(self, client: Any, governor: Governor) -> None:
        self._client, self._nodes = client, _DaskNodes(client, with_gpus=bool(governor.budget.gpus))
        self._calls: dict[str, Any] = {}

    def machines(self) -> dict[str, Machine]:
        return self._nodes.machines()

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


class _DaskNodes:
    """The Dask workers of a cluster, and the GPUs that each of them sees."""

    def __init__(self, client: Any, *, with_gpus: bool = True) -> None:
        self._client, self._with_gpus = client, with_gpus
        self._answers: dict[str, Future[Any]] = {}

    def machines(self) -> dict[str, Machine]:
        """By address. A GPU that several workers of a host see belongs to one of them."""
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        if self._with_gpus:
            self._ask([address for address in workers if address not in self._answers])
        gpus = divided_gpus({address: (found["host"], self._seen_by(address)) for address, found in workers.items()})
        return {
            address: Machine(int(found["nthreads"]), int(found["memory_limit"] or 0), found["host"], gpus[address])
            for address, found in workers.items()
        }

    def _ask(self, addresses: list[str]) -> None:
        """Ask each worker for its GPUs. One that does not answer keeps the others waiting once, and may answer later."""
        for address in addresses:
            asked = self._client._run(gpu_devices, workers=[address], on_error="return")
            self._answers[address] = asyncio.run_coroutine_threadsafe(asked, self._client.loop.asyncio_loop)
        wait([self._answers[address] for address in addresses], CONNECT_S)

    def _seen_by(self, address: str) -> tuple[GpuDevice, ...]:
        answer = self._answers.get(address)
        if answer is None or not answer.done() or answer.exception() is not None:
            return ()  # the agent says what is wrong with the worker
        found = answer.result().get(address)
        return found if isinstance(found, tuple) else ()


def divided_gpus(seen: Mapping[str, tuple[str, tuple[GpuDevice, ...]]]) -> dict[str, tuple[GpuDevice, ...]]:
    """Give each GPU to one of the workers that see it, from their hosts and GPUs, in turns.

    >>> two = (GpuDevice("0"), GpuDevice("1"))
    >>> {name: [gpu.name for gpu in gpus] for name, gpus in divided_gpus({"a": ("host", two), "b": ("host", two)}).items()}
    {'a': ['0'], 'b': ['1']}
    """
    found: dict[str, list[GpuDevice]] = {name: [] for name in sorted(seen)}
    taken: set[tuple[str, str]] = set()
    grows = True
    while grows:
        grows = False
        for name, mine in found.items():
            host, gpus = seen[name]
            free = next((gpu for gpu in gpus if (host, gpu.name) not in taken), None)
            if free is not None:
                taken.add((host, free.name))
                mine.append(free)
                grows = True
    return {name: tuple(gpus) for name, gpus in found.items()}
