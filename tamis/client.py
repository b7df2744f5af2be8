"""Which executor a run uses: the one given, that of the client around it, or workers on this machine."""

from __future__ import annotations

import atexit
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, get_args

from tamis.errors import ParameterError
from tamis.executors.executor import Executor
from tamis.executors.inline import InlineExecutor
from tamis.executors.local import LocalExecutor
from tamis.models.devices import gpu_count, on_nodes
from tamis.parameters import parse_bytes

ExecutorName: TypeAlias = Literal["local", "inline", "ray", "dask"]
ClusterType: TypeAlias = Literal["cpu", "gpu"]
Engine: TypeAlias = Literal["local", "ray", "dask"]


def executor_of(given: str | Executor | None, address: str | None = None) -> Executor:
    """An executor, by name or as it is; `address` is that of a cluster. Without one, that of the current client."""
    if given is None:
        client = current_client()
        return client.executor if client is not None else LocalExecutor()
    if not isinstance(given, str):
        return given
    if given not in get_args(ExecutorName):
        raise ParameterError(f"there is no executor {given!r}", hint=f"executors: {', '.join(get_args(ExecutorName))}")
    if given in ("local", "inline"):
        if address is not None:
            raise ParameterError(f"the executor {given} has no address", hint="addresses are for ray and dask")
        return LocalExecutor() if given == "local" else InlineExecutor()
    if given == "dask":
        from tamis.executors.dask import DaskExecutor

        return DaskExecutor(address)
    from tamis.executors.ray import RayExecutor

    return RayExecutor(address)


@dataclass
class Client:
    """A connection to a cluster, or to this machine, that runs use until it is closed. Also a context manager."""

    executor: Executor
    cluster_type: ClusterType = "cpu"
    memory: int | str | None = None
    """The memory of runs that state none."""
    _stack: ExitStack = field(default_factory=ExitStack)

    def close(self) -> None:
        """Disconnect; a cluster that `get_client` started is stopped."""
        if self in _clients:
            _clients.remove(self)
        self._stack.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


_clients: list[Client] = []


def current_client() -> Client | None:
    """The client that was opened last and is not closed yet."""
    return _clients[-1] if _clients else None


def get_client(
    cluster_type: ClusterType = "cpu",
    engine: Engine = "local",
    address: str | None = None,
    workers: int | None = None,
    memory: int | str | None = None,
) -> Client:
    """Start or join a cluster, for all runs that name no executor until the client is closed.

    `engine` is this machine, Ray or Dask; `address` that of a cluster, without which one is used that this process is connected
    to, or started. `workers` and `memory` are per node. With `cluster_type="cpu"` runs use no GPU. With "gpu", steps that can
    use a GPU have a worker on each GPU of each node, with a memory pool (of RMM, where it is installed); an error says if no
    node has a GPU.

    >>> from tamis import Pipeline, Rows
    >>> with get_client(workers=1, memory="1GB"):
    ...     Pipeline(Rows([{"n": 1}, {"n": 2}]), lambda row: row["n"] > 1).run().kept
    1
    """
    for name, value, known in (("cluster_type", cluster_type, ClusterType), ("engine", engine, Engine)):
        if value not in get_args(known):
            raise ParameterError(f"`{name}` is {value!r}", hint=f"one of: {', '.join(get_args(known))}")
    if memory is not None:
        parse_bytes(memory)
    executor = executor_of(engine, address)
    if workers is not None:
        executor = replace(executor, workers=workers)  # type: ignore[type-var]
    with ExitStack() as stack:
        machine = stack.enter_context(executor.connected())
        stack.enter_context(on_nodes(None if machine is None else [gpu.name for gpu in machine.gpus]))
        if cluster_type == "gpu" and not gpu_count():
            where = "on this machine" if machine is None else f"on any node that {engine.capitalize()} has"
            raise ParameterError(f"there is no GPU {where}", hint='use cluster_type="cpu"')
        client = Client(executor, cluster_type, memory, stack.pop_all())
    _clients.append(client)
    atexit.unregister(_close_all)
    atexit.register(_close_all)  # again, so that it precedes what Ray and Dask do at exit: they stop the cluster
    return client


def _close_all() -> None:
    while _clients:
        _clients[-1].close()
