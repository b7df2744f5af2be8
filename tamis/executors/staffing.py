"""The workers of a group: how many each stage has, on which nodes and GPUs, and which of them are replaced."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from tamis.errors import BudgetError, ParameterError, WorkerError
from tamis.events import Events, LeakFound
from tamis.executors.balance import balance
from tamis.executors.crew import Crew, Worker
from tamis.executors.executor import Hooks
from tamis.executors.figures import stage_loads
from tamis.executors.flows import Flow, Pool
from tamis.executors.tasks import Group, Task
from tamis.memory.budget import StreamBudget
from tamis.memory.governor import Governor
from tamis.memory.slots import GpuNeed, gpu_slots
from tamis.parameters import format_bytes

BALANCE_EVERY_S = 1.0


def no_gpus_left() -> WorkerError:
    """No node is left with the GPUs that a step needs, and none has joined."""
    return WorkerError(
        "no node with enough GPUs is left", hint="rerun the same command to resume; committed work is kept"
    )


def make_pools(crew: Crew, group: Group, governor: Governor, stream: StreamBudget | None) -> list[Pool]:
    """A pool for each stage of a group that streams; otherwise one, which takes over the workers of the crew."""
    if stream is not None:
        pools = [
            Pool(stage, governor.for_pool(stage.name, share, share.batch_bytes), share.most, on_gpu=bool(share.slots))
            for stage, share in zip(group.stages, stream.pools, strict=True)
        ]
        for pool in pools[1:]:
            pool.target = 1
        return pools
    on_gpu = group.whole.slots_needed.any
    if on_gpu:  # the workers that exist have no GPU
        for worker in list(crew.workers):
            crew.stop(worker)
    pool = Pool(group.whole, governor, governor.workers, on_gpu=on_gpu)
    pool.workers = list(crew.workers)
    return [pool]


class Staffing:
    """The workers of the pools of a group. With `streams`, its stages run at the same time and share the CPUs."""

    def __init__(self, crew: Crew, pools: Sequence[Pool], emit: Events, hooks: Hooks, *, streams: bool) -> None:
        self.crew, self.pools, self.emit, self.hooks, self.streams = crew, pools, emit, hooks, streams
        self.max_flows = sum(pool.most for pool in pools) + 1
        """The most partitions on their way through a group that streams, on each node."""
        self._balanced = time.monotonic()
        self._warm = False

    def pool_of(self, worker: Worker) -> Pool:
        return next(pool for pool in self.pools if worker in pool.workers)

    # ------------------------------------------------------------------------------------------------------------- nodes

    def nodes(self) -> list[str]:
        """The nodes that can have workers of all stages: those with enough GPUs."""
        if not any(pool.on_gpu for pool in self.pools):
            return self.crew.nodes()
        found, problem = [], None
        for node in self.crew.nodes():
            try:
                self._find_slots(node)
                found.append(node)
            except (BudgetError, ParameterError) as error:
                problem = error
        if problem is not None and not found and not self.crew.may_grow():
            if self.pools[0].slots or not any(map(self.crew.gpus_on, self.crew.nodes())):
                raise no_gpus_left() from problem
            raise problem
        return found

    def _find_slots(self, node: str) -> None:
        """Divide the GPUs of a node among the stages; raises if they are too few or too small."""
        if node in self.pools[0].slots:
            return
        needs = [pool.stage.slots_needed if pool.on_gpu else GpuNeed() for pool in self.pools]
        slots = gpu_slots(self.crew.gpus_on(node), needs, [pool.most for pool in self.pools])
        for pool, found in zip(self.pools, slots, strict=True):
            pool.slots[node] = found

    def nodes_for(self, pool: Pool, flows: Sequence[Flow]) -> Sequence[str | None]:
        """Where another partition can begin, the nodes with the fewest first; [None] if that does not matter."""
        if not self.streams:
            return [None] if pool.idle() or len(pool.workers) < self._allowed(pool) else []
        begun = Counter(flow.place for flow in flows)
        idle = {worker.place for worker in pool.idle()}
        workers = Counter(worker.place for worker in pool.workers)
        found = [
            node
            for node in self.nodes()
            if begun[node] < self.max_flows and (node in idle or workers[node] < self._allowed(pool, node))
        ]
        return sorted(found, key=lambda node: begun[node])

    def _allowed(self, pool: Pool, node: str | None = None) -> int:
        """How many workers a pool may have; of several nodes, each has an equal part of what balancing gave the pool."""
        nodes_now = self.nodes()
        if pool.on_gpu and node is None:
            return sum(self._allowed(pool, each) for each in nodes_now)
        places = self.crew.places(pool.governor.workers, node)
        if pool.on_gpu:
            places = min(places, len(pool.slots.get(node or "", ())))
        if not self.streams:
            return places
        nodes = len(nodes_now) if node is not None else 1
        return min(places, max(1, -(-pool.target // max(1, nodes))))

    # ------------------------------------------------------------------------------------------------ starting and stopping

    def warm_up(self, num_tasks: int) -> None:
        """Start workers on GPUs at once: opening a device, or loading a model, takes longer than reading the first rows."""
        if self._warm:
            return
        self._warm = True
        for pool in self.pools[1:]:
            if pool.on_gpu:
                nodes = self.nodes()
                pool.target = max(1, min(sum(len(pool.slots[node]) for node in nodes), num_tasks))
                for node in nodes:
                    for _ in range(self._allowed(pool, node)):
                        self.open_stage(pool, self._start(pool, node=node))

    def open_stage(self, pool: Pool, worker: Worker) -> None:
        worker.send("stage", pool.payload)
        worker.stage = pool.key

    def worker_for(self, pool: Pool, task: Task, node: str | None) -> Worker | None:
        """An idle or new worker for a task, on a node if one is given; None if it has to wait."""
        workers = [worker for worker in pool.workers if node in (None, worker.place)]
        nodes = self.nodes()
        if not nodes or (node is not None and node not in nodes):
            return None
        if task.last_attempt:  # with all the memory of the pool, and so without other workers
            if any(worker.job is not None for worker in workers):
                return None
            for worker in workers:
                self.stop(pool, worker)
            return self._start(pool, pool.governor.single_worker_bytes, node)
        idle = [worker for worker in workers if worker.job is None]
        if task.new_worker:
            unused = [worker for worker in idle if not worker.given]
            if idle and not unused:
                self.stop(pool, idle[0])
            idle = unused
        if idle:
            return idle[0]
        count = sum(node in (None, worker.place) for worker in pool.workers)
        return self._start(pool, node=node) if count < self._allowed(pool, node) else None

    def _start(self, pool: Pool, share_bytes: int | None = None, node: str | None = None) -> Worker:
        slot, number = None, None
        if pool.on_gpu:
            if node is None:  # the one with the most GPUs that no worker has
                taken = Counter(worker.place for worker in pool.workers)
                node = max(self.nodes(), key=lambda each: len(pool.slots[each]) - taken[each])
            slot, number = pool.free_slot(node, alone=share_bytes is not None)
        # In a group, only the stages between the first and the last compute for long.
        alone = len(self.pools) == 1 or 0 < pool.stage.pool < len(self.pools) - 1
        cpus = max(1, self.crew.cpus() // self.crew.places(pool.governor.workers)) if alone else 1
        worker = self.crew.start(share_bytes or pool.governor.worker_bytes, slot, number, cpus, node)
        pool.workers.append(worker)
        pool.clock.started(worker, time.monotonic())
        return worker

    def stop(self, pool: Pool, worker: Worker) -> None:
        self.forget(pool, worker)
        self.crew.stop(worker)

    def forget(self, pool: Pool, worker: Worker) -> None:
        """Remove a worker that has ended, or is about to, from its pool."""
        pool.workers.remove(worker)
        pool.clock.stopped(worker, time.monotonic())

    def fit(self, pool: Pool) -> None:
        """After the governor reduced the number of workers: stop idle ones, and raise the share of the rest."""
        while len(pool.workers) > self.crew.places(pool.governor.workers) and (idle := pool.idle()):
            self.stop(pool, idle[0])
        for worker in pool.workers:
            worker.share_bytes = max(worker.share_bytes, pool.governor.worker_bytes)
            worker.send("cap", worker.share_bytes)

    def look_for_leak(self, pool: Pool, worker: Worker) -> None:
        """After a task, when a worker has released what it can: if its memory keeps rising, replace it."""
        worker.shards += 1
        held, limit = self.crew.private_bytes(worker), pool.governor.worker_bytes
        if held is None:
            return
        leak = pool.leaks.add(worker.number, worker.shards, held, time.monotonic(), limit)
        if leak is not None:
            self.emit(
                LeakFound(leak.stage, leak.worker, leak.bytes_per_shard, leak.bytes_per_s, leak.since, leak.confidence)
            )
            pool.leaks.forget(worker.number)
            if self.hooks.on_leak(leak):
                self.forget(pool, worker)
                self.crew.replace(
                    worker, f"the memory it holds rises by {format_bytes(leak.bytes_per_shard)} per shard"
                )

    def balance(self, flows: Sequence[Flow], *, more_partitions: bool) -> bool:
        """Once a second, move workers to the stages that need them; returns whether it was time to do so."""
        now = time.monotonic()
        if not self.streams or now - self._balanced < BALANCE_EVERY_S:
            return False
        self._balanced = now
        loads = stage_loads(self.pools, flows, self.crew.places, more_partitions=more_partitions)
        for pool, wanted in zip(self.pools, balance(loads, self.crew.cpus()), strict=True):
            if pool.on_gpu and wanted:  # opening a GPU again would cost more than a worker that waits
                wanted = max(wanted, len(pool.workers))
            if wanted:  # a partition stays on its node
                wanted = max(wanted, len(self.nodes()))
            pool.target = wanted
            for worker in pool.idle()[: max(0, len(pool.workers) - wanted)]:
                self.stop(pool, worker)
        return True

    def close(self) -> None:
        """End the workers of a group that streams: their shares of memory are not those of others."""
        now = time.monotonic()
        for pool in self.pools:
            pool.clock.close(now)
            for worker in list(pool.workers):
                self.crew.kill(worker) if worker.job is not None else self.crew.stop(worker)
            pool.workers.clear()
