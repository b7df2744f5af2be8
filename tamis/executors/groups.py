"""Runs a group of stages on a crew: hands out tasks, tries them again, moves packets on, and keeps to the bounds.

    one stage        partitions -> workers                                       each writes its shards
    several stages   partitions -> pool 1 -> packets -> pool 2 -> packets -> pool 3    the last one writes shards

Every decision about rows is made by the policies in `schedule.py`, and every decision about pools by `balance.py`.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from tamis.errors import BudgetError, ParameterError, WorkerError
from tamis.events import (
    Events,
    LeakFound,
    PartitionProgress,
    PartitionStarted,
    PoolSampled,
    PoolsSampled,
    WorkerDied,
)
from tamis.executors.balance import balance
from tamis.executors.crew import Crew, Worker
from tamis.executors.executor import Done, Hooks
from tamis.executors.figures import Queues, figures_of, stage_loads
from tamis.executors.flows import Flow, Job, Pool, Unit
from tamis.executors.folders import Folders
from tamis.executors.packets import partition_of
from tamis.executors.schedule import (
    CRASHES,
    MAX_BLAMED,
    MAX_CALL_DEATHS,
    MAX_CRASHES,
    MAX_KILLS,
    Trouble,
    after_death,
    after_overflow,
    count_compiled,
)
from tamis.executors.segments import Outcome, Segment, publish
from tamis.executors.tasks import Emission, Group, Packet, Task
from tamis.memory.budget import StreamBudget
from tamis.memory.governor import Allowance, Governor
from tamis.memory.slots import GpuNeed, gpu_slots
from tamis.parameters import format_bytes

BALANCE_EVERY_S = 1.0
SAMPLE_EVERY_S = 1.0


class GroupRun:
    """One group on the workers of a crew."""

    def __init__(
        self,
        crew: Crew,
        group: Group,
        tasks: Iterable[Task],
        done: Done,
        governor: Governor,
        emit: Events,
        hooks: Hooks,
        stream: StreamBudget | None = None,
    ) -> None:
        self.crew, self.group, self.done, self.emit, self.hooks = crew, group, done, emit, hooks
        self.governor, self.stream = governor, stream
        self.todo = deque(tasks)
        self.flows: list[Flow] = []
        self.paused = False
        self.compiled: Counter[int] = Counter()
        self.bytes_on: Counter[str | None] = Counter()
        """By node, bytes of packets in shared memory, without those for the last stage."""
        self.last_packet_bytes = 0
        """Bytes of packets for the last stage in shared memory."""
        if stream is None:
            on_gpu = group.whole.slots_needed.any
            if on_gpu:  # those there are have no GPU
                for worker in list(crew.workers):
                    crew.stop(worker)
            self.pools = [Pool(group.whole, governor, governor.workers, on_gpu=on_gpu)]
            self.pools[0].workers = list(crew.workers)
            self.max_flows: int | None = None
        else:
            self.pools = [
                Pool(
                    stage, governor.for_pool(stage.name, share, share.batch_bytes), share.most, on_gpu=bool(share.slots)
                )
                for stage, share in zip(group.stages, stream.pools, strict=True)
            ]
            for pool in self.pools[1:]:
                pool.target = 1
            self.max_flows = sum(pool.most for pool in self.pools) + 1  # on each node
        self._balanced = time.monotonic()
        self._sampled = float("-inf")
        self._queues = Queues()
        self._warm = False

    @property
    def packet_bytes(self) -> int:
        return sum(self.bytes_on.values())

    # ------------------------------------------------------------------------------------------------------ handing out

    @property
    def unfinished(self) -> bool:
        return bool(self.todo) or self.in_progress

    @property
    def in_progress(self) -> bool:
        return bool(self.flows)

    def hand_out(self, *, only_begun: bool) -> None:
        if not self._warm and not only_begun:
            self._warm_up()
        self._restart_lost()
        for pool in reversed(self.pools):  # what is nearly complete first
            for last_attempts in (False, True):
                full: set[str | None] = set()
                while None not in full:
                    unit = pool.next_unit(last_attempts=last_attempts, full=full)
                    if unit is None and pool is self.pools[0] and not last_attempts and not only_begun:
                        unit = self._next_flow(pool)
                    if unit is None:
                        break
                    if not self._start(pool, unit):
                        full.add(unit.flow.place)
        self._grant()
        self._balance()
        now = time.monotonic()
        if now - self._sampled >= SAMPLE_EVERY_S:
            self._sampled = now
            self._emit_pools()

    def _warm_up(self) -> None:
        """Start workers on GPUs at once: opening a device, or loading a model, takes longer than reading the first rows."""
        self._warm = True
        for pool in self.pools[1:]:
            if pool.on_gpu:
                nodes = self._nodes()
                pool.target = max(1, min(sum(len(pool.slots[node]) for node in nodes), len(self.todo)))
                for node in nodes:
                    for _ in range(self._allowed(pool, node)):
                        self._open_stage(pool, self._start_worker(pool, node=node))

    def _nodes(self) -> list[str]:
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

    def _open_stage(self, pool: Pool, worker: Worker) -> None:
        worker.send("stage", pool.payload)
        worker.stage = pool.key

    def _next_flow(self, pool: Pool) -> Unit | None:
        """Begin another partition, if there is a worker for it."""
        if self.paused and self.flows:
            return None
        if not self.todo or not self._nodes_for(pool):
            return None
        return self._begin(pool, self.todo.popleft())

    def _nodes_for(self, pool: Pool) -> Sequence[str | None]:
        """Where another partition can begin, the nodes with the fewest first; [None] if that does not matter."""
        if self.stream is None:
            return [None] if pool.idle() or len(pool.workers) < self._allowed(pool) else []
        assert self.max_flows is not None
        flows = Counter(flow.place for flow in self.flows)
        idle = {worker.place for worker in pool.idle()}
        workers = Counter(worker.place for worker in pool.workers)
        found = [
            node
            for node in self._nodes()
            if flows[node] < self.max_flows and (node in idle or workers[node] < self._allowed(pool, node))
        ]
        return sorted(found, key=lambda node: flows[node])

    def _begin(self, pool: Pool, task: Task) -> Unit:
        flow = Flow(task, len(self.pools))
        self.flows.append(flow)
        pool.bytes_in += task.partition.size
        return self._add_unit(pool, Unit(flow, 0, (), deque([task])))

    def _add_unit(self, pool: Pool, unit: Unit) -> Unit:
        unit.flow.units[unit.stage].append(unit)
        pool.waiting.append(unit)
        return unit

    def _start(self, pool: Pool, unit: Unit) -> bool:
        """Give the next task of a unit to a worker; returns False if there is none for it."""
        flow = unit.flow
        if self.stream is not None and flow.place is None:
            flow.place = next(iter(self._nodes_for(pool)), None)
            if flow.place is None:
                return False
        worker = self._worker_for(pool, unit.pending[0], flow.place)
        if worker is None:
            return False
        task = unit.pending.popleft()
        if task.allowance is None:
            task = replace(task, allowance=pool.governor.allowance())
        job = Job(pool, unit, task)
        if pool.stage.hands_on:
            job.task = task = replace(task, emission=self._emission(pool, unit), types=unit.flow.types[unit.stage])
            job.credits = 1 if task.emission is not None and task.emission.credits is not None else 0
        if worker.stage != pool.key:
            self._open_stage(pool, worker)
            job.opening = True
        worker.send("task", task)
        worker.job = job
        worker.given += 1
        unit.running += 1
        if not pool.stage.pool:
            self.emit(PartitionStarted(self.group.index, unit.flow.index, worker.number))
        return True

    def _emission(self, pool: Pool, unit: Unit) -> Emission:
        assert self.stream is not None
        shared = self._next_is_shared(pool)
        following = self.group.stages[pool.stage.pool + 1]
        rows = [op.batch_rows for op in following.operators if op.batch_rows is not None]
        folders = self._folders(unit.flow)
        return Emission(
            folder=str(folders.shared if shared else folders.disk),
            first_folder=None if shared else str(folders.shared),
            first_bytes=0 if shared else self._last_edge_bytes(unit.flow),
            stem=f"{unit.flow.index:06d}-{pool.stage.pool}-{uuid.uuid4().hex[:12]}",
            packet_bytes=self.stream.packet_bytes if shared else self.stream.pools[pool.stage.pool + 1].batch_bytes,
            packet_rows=min(rows, default=None),
            credits=1 if shared else None,
            skip=unit.skip + unit.handed_on,
        )

    def _last_edge_bytes(self, flow: Flow) -> int:
        """What the packets of a partition for the last stage may still take in shared memory: each has an equal share."""
        assert self.stream is not None
        assert self.max_flows is not None
        used = sum(packet.num_bytes for _, packet in flow.packets if self._in_memory(flow, packet))
        return max(0, self.stream.last_edge_bytes // self.max_flows - used)

    def _folders(self, flow: Flow) -> Folders:
        assert flow.place is not None
        return self.crew.folders_on(flow.place)

    def _in_memory(self, flow: Flow, packet: Packet) -> bool:
        return self._folders(flow).in_memory(packet.path)

    def _discard(self, flow: Flow) -> None:
        """Remove the files of a flow that is abandoned, or complete."""
        if flow.place is not None:
            self.last_packet_bytes -= sum(p.num_bytes for _, p in flow.packets if self._in_memory(flow, p))
            self.crew.remove_packets(flow.place, [packet.path for packet in flow.all_packets()])
        for segment in flow.segments:
            segment.discard()
        flow.packets = []

    def _next_is_shared(self, pool: Pool) -> bool:
        """Whether the packets of a pool lie in shared memory: all but those for the last stage."""
        return pool.stage.pool + 2 < len(self.pools)

    def _worker_for(self, pool: Pool, task: Task, node: str | None) -> Worker | None:
        """An idle or new worker for a task, on a node if one is given; None if it has to wait."""
        workers = [worker for worker in pool.workers if node in (None, worker.place)]
        if not self.crew.places(1) or (node is not None and node not in self.crew.nodes()):
            return None
        if task.last_attempt:  # with all the memory of the pool, and so without other workers
            if any(worker.job is not None for worker in workers):
                return None
            for worker in workers:
                self._stop(pool, worker)
            return self._start_worker(pool, pool.governor.single_worker_bytes, node)
        idle = [worker for worker in workers if worker.job is None]
        if task.new_worker:
            unused = [worker for worker in idle if not worker.given]
            if idle and not unused:
                self._stop(pool, idle[0])
            idle = unused
        if idle:
            return idle[0]
        count = sum(node in (None, worker.place) for worker in pool.workers)
        return self._start_worker(pool, node=node) if count < self._allowed(pool, node) else None

    def _allowed(self, pool: Pool, node: str | None = None) -> int:
        """How many workers a pool may have; of several nodes, each has an equal part of what balancing gave the pool."""
        nodes_now = self._nodes()
        if pool.on_gpu and node is None:
            return sum(self._allowed(pool, each) for each in nodes_now)
        places = self.crew.places(pool.governor.workers, node)
        if pool.on_gpu:
            places = min(places, len(pool.slots.get(node or "", ())))
        if self.stream is None:
            return places
        nodes = len(nodes_now) if node is not None else 1
        return min(places, max(1, -(-pool.target // max(1, nodes))))

    def _start_worker(self, pool: Pool, share_bytes: int | None = None, node: str | None = None) -> Worker:
        slot, number = None, None
        if pool.on_gpu:
            if node is None:  # the one with the most GPUs that no worker has
                taken = Counter(worker.place for worker in pool.workers)
                node = max(self._nodes(), key=lambda each: len(pool.slots[each]) - taken[each])
            slot, number = pool.free_slot(node, alone=share_bytes is not None)
        # In a group, only the stages between the first and the last compute for long.
        alone = len(self.pools) == 1 or 0 < pool.stage.pool < len(self.pools) - 1
        cpus = max(1, self.crew.cpus() // self.crew.places(pool.governor.workers)) if alone else 1
        worker = self.crew.start(share_bytes or pool.governor.worker_bytes, slot, number, cpus, node)
        pool.workers.append(worker)
        pool.clock.started(worker, time.monotonic())
        return worker

    def _stop(self, pool: Pool, worker: Worker) -> None:
        self._forget(pool, worker)
        self.crew.stop(worker)

    def _forget(self, pool: Pool, worker: Worker) -> None:
        pool.workers.remove(worker)
        pool.clock.stopped(worker, time.monotonic())

    def _fit_workers(self, pool: Pool) -> None:
        """After the governor reduced the number of workers: stop idle ones, and raise the share of the rest."""
        while len(pool.workers) > self.crew.places(pool.governor.workers) and (idle := pool.idle()):
            self._stop(pool, idle[0])
        for worker in pool.workers:
            worker.share_bytes = max(worker.share_bytes, pool.governor.worker_bytes)
            worker.send("cap", worker.share_bytes)

    # --------------------------------------------------------------------------------------------------------- messages

    def on_message(self, worker: Worker, kind: str, *content: Any) -> None:
        job: Job | None = worker.job
        if kind == "overuse":
            self._on_overuse(worker, content[0])
            return
        if job is None:
            self._on_warmed_up(worker, kind, content[0])
            return
        pool, unit, task = job.pool, job.unit, job.task
        if unit.flow.abandoned and kind in ("packet", "safe"):
            return
        if kind == "opened":
            job.opened_s = min(content[0], time.monotonic() - job.began)  # it may have begun before the job
            job.opening = False
            pool.clock.opening_s += content[0] - job.opened_s
        elif kind == "progress":
            if not pool.stage.pool:
                self.emit(PartitionProgress(self.group.index, unit.flow.index, worker.number, *content))
        elif kind == "packet":
            self._on_packet(job, content[0])
        elif kind == "safe":
            self._on_safe_point(job, content[0])
        elif kind == "outcome":
            self._job_ended(worker)
            self._on_outcome(job, content[0])
            if task.last_attempt:  # its share is that of all workers
                self._stop(pool, worker)
            else:
                self._look_for_leak(pool, worker)
        elif kind == "compiled":
            self._job_ended(worker)
            self._stop(pool, worker)
            self._try(job, [self._rest_of(job)])
            count_compiled(self.compiled, unit.flow.index, task.partition.pieces[0].path)
        elif kind == "corrupt":
            self._job_ended(worker)
            self._restart(unit.flow, replace(task, damaged=task.damaged | content[0]), new_worker=False)
        elif kind == "overflow":
            self._job_ended(worker)
            self._stop(pool, worker)
            self._on_overflow(worker, job, *content[0])
        elif kind == "too large":
            self._job_ended(worker)
            self._stop(pool, worker)
            self._try(job, [self._rest_of(job)])
            error, share = content[0]
            # A used worker is simply replaced; another failure may already have freed memory.
            if not worker.used and share >= pool.governor.worker_bytes:
                pool.governor.too_large_to_set_up(error)
                self._fit_workers(pool)
        else:
            raise content[0]

    def _on_warmed_up(self, worker: Worker, kind: str, content: Any) -> None:
        """What a worker says that was started before there was work for it."""
        pool = next(pool for pool in self.pools if worker in pool.workers)
        if kind == "error":
            raise content
        if kind == "opened":
            pool.clock.opening_s += content
        else:  # it exits; the worker that takes its place with the first rows will say the same
            self._stop(pool, worker)

    def _job_ended(self, worker: Worker) -> None:
        job: Job = worker.job
        worker.job = None
        job.unit.running -= 1
        job.pool.clock.job(job, time.monotonic())

    def _on_outcome(self, job: Job, segment: Segment) -> None:
        pool, unit, flow = job.pool, job.unit, job.unit.flow
        if flow.abandoned:
            segment.discard()
            return
        if pool.stage.hands_on:
            self._add(job, segment)
            if segment.next_row is not None:
                unit.pending.appendleft(replace(job.task, start=segment.next_row))
            if unit.is_finished:
                self._finish_unit(pool, unit)
            return
        segments = [segment]
        if not job.task.is_whole:
            complete = unit.progress.add(job.task, segment)
            if segment.next_row is not None:
                unit.pending.appendleft(replace(job.task, start=segment.next_row))
            if complete is None:
                return
            segments = complete
        outcome = publish(pool.stage, flow.task, segments, flow.segments, self.group.whole.scores)
        flow.segments = []
        if not job.task.is_whole:
            unit.progress.restart()
        self._complete(job, outcome)

    def _complete(self, job: Job, outcome: Outcome) -> None:
        """A partition has passed the last stage."""
        pool, flow = job.pool, job.unit.flow
        self._learn(job, outcome)
        flow.accounts[-1] = outcome.account
        pool.rows_in += outcome.account.read
        pool.rows_out += outcome.account.kept
        if len(self.pools) > 1:
            outcome.account = flow.account()
        pool.drop([job.unit])
        pool.bytes_done += job.task.partition.size
        self.flows.remove(flow)
        self.done(replace(flow.task, allowance=job.task.allowance), outcome)
        flow.units[-1] = []
        self._discard(flow)

    def _learn(self, job: Job, outcome: Outcome | Segment) -> None:
        account, governor = outcome.account, job.pool.governor
        assert job.task.allowance is not None
        governor.finished(account.peak_memory_bytes, job.task.allowance.batch_bytes, account.splits)
        governor.learned.note_setup((op.name, op.setup_bytes) for op in account.operators)
        governor.learned.limits.update(account.limits)

    # ---------------------------------------------------------------------------------------------------------- packets

    def _on_packet(self, job: Job, packet: Packet) -> None:
        pool, unit = job.pool, job.unit
        key = (*unit.key, unit.packets)
        job.reported.add(packet.path)
        unit.packets += 1
        unit.handed_on += packet.rows
        following = self.pools[pool.stage.pool + 1]
        following.bytes_in += packet.num_bytes
        if not self._next_is_shared(pool):
            unit.flow.packets.append((key, packet))
            self.last_packet_bytes += packet.num_bytes if self._in_memory(unit.flow, packet) else 0
            return
        self.bytes_on[unit.flow.place] += packet.num_bytes
        job.credits -= 1
        task = Task(partition_of(unit.flow.index, [packet]))
        self._add_unit(following, Unit(unit.flow, unit.stage + 1, key, deque([task]), packet))

    def _on_safe_point(self, job: Job, segment: Segment) -> None:
        assert segment.next_row is not None
        job.task = replace(job.task, start=segment.next_row)
        self._add(job, segment)

    def _add(self, job: Job, segment: Segment) -> None:
        unit = job.unit
        unit.flow.add(unit.stage, segment)
        job.pool.rows_in += segment.account.read
        job.pool.rows_out += segment.account.kept
        unit.skip, unit.handed_on = segment.skip, 0
        job.waited_s += segment.waited_s
        if not unit.stage:
            job.pool.bytes_done += segment.account.num_bytes
        self._learn(job, segment)

    def _finish_unit(self, pool: Pool, unit: Unit) -> None:
        """All rows of a unit have been handed on."""
        pool.drop([unit])
        unit.flow.units[unit.stage].remove(unit)
        if unit.packet is not None:
            assert unit.flow.place is not None
            self.crew.remove_packets(unit.flow.place, [unit.packet.path])
            self.bytes_on[unit.flow.place] -= unit.packet.num_bytes
            pool.bytes_done += unit.packet.num_bytes
        self._look_for_end(unit.flow)

    def _look_for_end(self, flow: Flow) -> None:
        """Hand a partition to the last stage once all stages before have processed it."""
        before = True
        for stage in range(len(self.pools) - 1):
            before = before and not flow.units[stage]
        if not before:
            return
        packets = [packet for _, packet in sorted(flow.packets, key=lambda each: each[0])]
        task = Task(partition_of(flow.index, packets))
        self._add_unit(self.pools[-1], Unit(flow, len(self.pools) - 1, (), deque([task])))

    def _grant(self) -> None:
        """Let workers write more packets as long as they fit."""
        if self.stream is None:
            return
        jobs = [(worker, worker.job) for worker in self.crew.workers if worker.job is not None]
        emitting = [(w, job) for w, job in jobs if job.task.emission and job.task.emission.credits is not None]
        reserved: Counter[str] = Counter()
        for worker, job in emitting:
            reserved[worker.place] += job.credits * self.stream.packet_bytes
        for worker, job in emitting:
            if job.credits or job.unit.flow.abandoned:
                continue
            wanted = self.bytes_on[worker.place] + reserved[worker.place] + self.stream.packet_bytes
            fits = wanted <= self.stream.edge_bytes
            # A partition that has nothing on its way may always continue, so that the group cannot come to a standstill.
            if fits or not job.unit.flow.units[job.unit.stage + 1]:
                job.credits += 1
                reserved[worker.place] += self.stream.packet_bytes
                worker.send("credit", 1)

    # ---------------------------------------------------------------------------------------------------- trying again

    def on_death(self, worker: Worker) -> None:
        """Replace a dead worker and decide how to try its rows again."""
        pool = next(pool for pool in self.pools if worker in pool.workers)
        how = self.crew.bury(worker)
        self._forget(pool, worker)
        job: Job | None = worker.job
        if job is None:
            return
        self._job_ended(worker)
        self._remove_unreported(job)
        unit, flow = job.unit, job.unit.flow
        if flow.abandoned:
            return
        task = self._rest_of(job)
        first, rows, step = worker.last_mark()
        name = _step_name(pool, step)
        path = _path_of(flow)
        self.emit(WorkerDied(worker.number, how, flow.index, name))
        if worker.lost:
            if self.stream is None:  # otherwise packets may be lost too, and the partition begins again
                self._try(job, [task])
            return
        progress = unit.progress
        progress.deaths += 1
        progress.deaths_while_reading += not rows
        if step < 0 and any(signal_name in how for signal_name in CRASHES):
            progress.crashes[-1 - step] += 1
            if progress.crashes[-1 - step] >= MAX_CRASHES:
                self._skip_piece(job, -1 - step, how)
                return
        by_signal = "signal" in how
        most = MAX_KILLS if by_signal else MAX_CALL_DEATHS
        if progress.deaths_while_reading > most or progress.blamed >= MAX_BLAMED:
            raise WorkerError(
                f"workers died {progress.deaths} times over {path} in `{name}` ({how})",
                hint="give the run more --memory or the reader a smaller blocksize; --executor inline shows where it happens",
            )
        assert task.allowance is not None
        what = f"{path} in `{name}`"
        governor = pool.governor
        governor.restarted(what, how)
        one_worker = worker.share_bytes >= governor.single_worker_bytes
        tasks = after_death(task, Trouble(first, rows, f"the worker was {how} in `{name}`", one_worker=one_worker))
        allowance = task.allowance
        if by_signal and task.deaths and not rows:  # perhaps a library that ran out of memory
            allowance = governor.overflowed(allowance, what)
            if self._limits_rows(unit, task, allowance):
                self._restart(flow, task, allowance)
                return
        elif "SIGKILL" in how and task.deaths and rows > 1:  # perhaps by the kernel, because memory ran out
            allowance = governor.shrunk(allowance, what)
        progress.blamed += sum(len(each.poison) for each in tasks)
        self._try(job, [replace(each, allowance=allowance) for each in tasks])
        self._fit_workers(pool)

    def _remove_unreported(self, job: Job) -> None:
        """Remove a packet that a worker was writing when it was killed."""
        emission, node = job.task.emission, job.unit.flow.place
        if emission is not None and node is not None:
            self.crew.remove_other_packets(node, emission.stem, job.reported)

    def _rest_of(self, job: Job) -> Task:
        """The rows of a job that are not done: those after its last safe point."""
        return replace(job.task, emission=None)

    def _on_overuse(self, worker: Worker, held_bytes: int) -> None:
        pool = next(pool for pool in self.pools if worker in pool.workers)
        first, rows, step = worker.last_mark()
        how = self.crew.stop_overuse(worker, held_bytes, _step_name(pool, step))
        self._forget(pool, worker)
        job: Job | None = worker.job
        if job is not None:
            self._job_ended(worker)
            self._remove_unreported(job)
            self._on_overflow(worker, job, first, rows, f"the worker was {how}")

    def _on_overflow(self, worker: Worker, job: Job, first: int, rows: int, error: str, full: bool = False) -> None:
        """Decide how to try the rows of a task again that ran out of memory."""
        pool, unit, task = job.pool, job.unit, self._rest_of(job)
        if unit.flow.abandoned:
            return
        assert task.allowance is not None
        what = f"{_path_of(unit.flow)} in `{_step_name(pool, worker.last_mark()[2])}`"
        if task.last_attempt and pool.stage.on_error == "raise":
            raise WorkerError(f"{what}: {error}", hint="give it more --memory")
        tasks = after_overflow(task, Trouble(first, rows, error, worker.used, full=full))
        allowance, governor = task.allowance, pool.governor
        if tasks is None:
            allowance = governor.overflowed(allowance, what)
            tasks = [replace(task, new_worker=True)]
            if self._limits_rows(unit, task, allowance):
                self._restart(unit.flow, task, allowance)
                self._fit_workers(pool)
                return
        elif rows != 1:
            allowance = governor.shrunk(allowance, what)
        if len(tasks) > 1:
            governor.divided(what)
        self._try(job, [replace(each, allowance=allowance) for each in tasks])
        self._fit_workers(pool)

    def _limits_rows(self, unit: Unit, task: Task, allowance: Allowance) -> bool:
        """Whether other rows fail as too large from now on, so that the rows of a file are no longer numbered as before."""
        assert task.allowance is not None
        return not unit.stage and allowance.max_row_bytes != task.allowance.max_row_bytes

    def _skip_piece(self, job: Job, number: int, how: str) -> None:
        """Begin the partition again without a piece that crashes its readers."""
        task, pool = job.task, job.pool
        piece = task.partition.pieces[number]
        if pool.stage.pool:
            raise WorkerError(f"{MAX_CRASHES} workers were {how} while reading rows between stages")
        pool.governor.restarted(f"{piece.path} in `{_step_name(pool, 0)}`", how)
        job.unit.progress.deaths_while_reading = 0
        error = f"{MAX_CRASHES} workers were {how} while reading {piece.path}"
        again = replace(task, unreadable={**task.unreadable, number: error}, deaths=-1)
        self._restart(job.unit.flow, again, task.allowance)

    def _try(self, job: Job, tasks: list[Task]) -> None:
        """Queue tasks in place of one."""
        unit = job.unit
        unit.progress.replaced(tasks)
        unit.pending.extendleft(reversed(tasks))
        if (
            not job.pool.stage.hands_on
        ):  # their order does not matter, and those that need all workers to wait come last
            unit.pending = deque(sorted(unit.pending, key=lambda task: task.last_attempt))
        job.pool.waiting.remove(unit)
        job.pool.waiting.appendleft(unit)

    def _restart(self, flow: Flow, task: Task, allowance: Allowance | None = None, *, new_worker: bool = True) -> None:
        """Begin a partition again: its rows will be others, so their numbers are no longer the same."""
        flow.abandoned = True
        for worker in [w for w in self.crew.workers if w.job is not None and w.job.unit.flow is flow]:
            pool = worker.job.pool
            self._job_ended(worker)
            self._forget(pool, worker)
            self.crew.kill(worker)
        for pool, units in zip(self.pools, flow.units, strict=True):
            for unit in units:
                unit.progress.restart()
                if unit.packet is not None:
                    self.bytes_on[flow.place] -= unit.packet.num_bytes
            pool.drop(units)
        before = flow.units[0][0].progress if flow.units[0] else None
        self._discard(flow)
        self.flows.remove(flow)
        again = Task(
            task.partition,
            gone=task.gone,
            damaged=task.damaged,
            unreadable=task.unreadable,
            new_worker=new_worker,
            deaths=task.deaths + 1,
            allowance=allowance or task.allowance,
        )
        unit = self._begin(self.pools[0], again)
        unit.flow.task = replace(again, allowance=None)
        if before is not None:
            unit.progress = before
        self.pools[0].waiting.remove(unit)
        self.pools[0].waiting.appendleft(unit)

    def _restart_lost(self) -> None:
        """Begin partitions again whose packets are on nodes that were lost."""
        if self.stream is not None:
            nodes = set(self.crew.nodes())
            for flow in [flow for flow in self.flows if flow.place is not None and flow.place not in nodes]:
                self._restart(flow, replace(flow.task, deaths=flow.task.deaths - 1), new_worker=False)

    def _look_for_leak(self, pool: Pool, worker: Worker) -> None:
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
                self._forget(pool, worker)
                self.crew.replace(
                    worker, f"the memory it holds rises by {format_bytes(leak.bytes_per_shard)} per shard"
                )

    # --------------------------------------------------------------------------------------------------------- balancing

    def _balance(self) -> None:
        now = time.monotonic()
        if self.stream is None or now - self._balanced < BALANCE_EVERY_S:
            return
        self._balanced = now
        loads = stage_loads(self.pools, self.flows, self.crew.places, more_partitions=bool(self.todo))
        for pool, wanted in zip(self.pools, balance(loads, self.crew.cpus()), strict=True):
            if pool.on_gpu and wanted:  # opening a GPU again would cost more than a worker that waits
                wanted = max(wanted, len(pool.workers))
            if wanted:  # a partition stays on its node
                wanted = max(wanted, len(self._nodes()))
            pool.target = wanted
            for worker in pool.idle()[: max(0, len(pool.workers) - wanted)]:
                self._stop(pool, worker)
        self._queues.sample(self.pools, self.packet_bytes)

    def _emit_pools(self) -> None:
        """Report the workers and queues of all stages of the group."""
        pools = tuple(
            PoolSampled(
                name=pool.stage.name,
                workers=len(pool.workers),
                busy=sum(worker.job is not None for worker in pool.workers),
                waiting=sum(not unit.running for unit in pool.waiting) + (0 if number else len(self.todo)),
                rows_in=pool.rows_in,
                rows_out=pool.rows_out,
                bytes_done=pool.bytes_done,
            )
            for number, pool in enumerate(self.pools)
        )
        self.emit(PoolsSampled(self.group.index, pools, self.packet_bytes + self.last_packet_bytes))

    def close(self) -> None:
        """End the group: workers of its own exit, and packets that are left are removed."""
        self._emit_pools()
        if self.stream is None:
            return
        now = time.monotonic()
        for pool in self.pools:
            pool.clock.close(now)
            for worker in list(pool.workers):
                self.crew.kill(worker) if worker.job is not None else self.crew.stop(worker)
            pool.workers.clear()
        for flow in self.flows:
            self._discard(flow)
        self.hooks.streams.append(figures_of(self.group, self.pools, self.stream, self._queues))


def _path_of(flow: Flow) -> str:
    pieces = flow.task.partition.pieces
    return pieces[0].path if pieces else f"partition {flow.index}"


def _step_name(pool: Pool, step: int) -> str:
    names = [each.name for each in pool.stage.steps]
    return names[max(0, step)] if step < len(names) else names[-1]
