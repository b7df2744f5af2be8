"""Runs a group of stages on a crew: hands out tasks, tries them again, moves packets on, and keeps to the bounds.

    one stage        partitions -> workers                                       each writes its shards
    several stages   partitions -> pool 1 -> packets -> pool 2 -> packets -> pool 3    the last one writes shards

Every decision about rows is made by the policies in `schedule.py`, and every decision about pools by `balance.py`. Workers are
started and stopped by `staffing.py`; `edges.py` keeps account of the packets.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tamis.errors import WorkerError
from tamis.events import (
    Events,
    PartitionProgress,
    PartitionStarted,
    PoolSampled,
    PoolsSampled,
    WorkerDied,
)
from tamis.executors.crew import Crew, Worker
from tamis.executors.edges import Edges
from tamis.executors.executor import Done, Hooks
from tamis.executors.figures import Queues, figures_of
from tamis.executors.flows import Flow, Job, Pool, Unit
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
from tamis.executors.staffing import Staffing, make_pools
from tamis.executors.tasks import Group, Packet, Task
from tamis.memory.budget import StreamBudget
from tamis.memory.governor import Allowance, Governor

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
        self.stream = stream
        self.todo = deque(tasks)
        self.flows: list[Flow] = []
        self.paused = False
        self.compiled: Counter[int] = Counter()
        self.pools = make_pools(crew, group, governor, stream)
        self.staffing = Staffing(crew, self.pools, emit, hooks, streams=stream is not None)
        self.edges = Edges(crew, group, stream, self.staffing.max_flows)
        self._sampled = float("-inf")
        self._queues = Queues()

    # ------------------------------------------------------------------------------------------------------ handing out

    @property
    def unfinished(self) -> bool:
        return bool(self.todo) or self.in_progress

    @property
    def in_progress(self) -> bool:
        return bool(self.flows)

    def hand_out(self, *, only_begun: bool) -> None:
        if not only_begun:
            self.staffing.warm_up(len(self.todo))
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
        self.edges.grant()
        if self.staffing.balance(self.flows, more_partitions=bool(self.todo)):
            self._queues.sample(self.pools, self.edges.shared_bytes)
        now = time.monotonic()
        if now - self._sampled >= SAMPLE_EVERY_S:
            self._sampled = now
            self._emit_pools()

    def _next_flow(self, pool: Pool) -> Unit | None:
        """Begin another partition, if there is a worker for it."""
        if self.paused and self.flows:
            return None
        if not self.todo or not self.staffing.nodes_for(pool, self.flows):
            return None
        return self._begin(pool, self.todo.popleft())

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
            flow.place = next(iter(self.staffing.nodes_for(pool, self.flows)), None)
            if flow.place is None:
                return False
        worker = self.staffing.worker_for(pool, unit.pending[0], flow.place)
        if worker is None:
            return False
        task = unit.pending.popleft()
        if task.allowance is None:
            task = replace(task, allowance=pool.governor.allowance())
        job = Job(pool, unit, task)
        if pool.stage.hands_on:
            job.task = task = replace(task, emission=self.edges.emission(pool, unit), types=unit.flow.types[unit.stage])
            job.credits = 1 if task.emission is not None and task.emission.credits is not None else 0
        if worker.stage != pool.key:
            self.staffing.open_stage(pool, worker)
            job.opening = True
        worker.send("task", task)
        worker.job = job
        worker.given += 1
        unit.running += 1
        if not pool.stage.pool:
            self.emit(PartitionStarted(self.group.index, unit.flow.index, worker.number))
        return True

    # --------------------------------------------------------------------------------------------------------- messages

    def on_message(self, worker: Worker, kind: str, *content: Any) -> None:
        job: Job | None = worker.job
        if kind == "overuse":
            self._on_overuse(worker, content[0])
            return
        if job is None:
            self._on_warmed_up(worker, kind, content[0])
            return
        if job.unit.flow.abandoned and kind in ("packet", "safe"):
            return
        match kind:
            case "opened":
                job.opened_s = min(content[0], time.monotonic() - job.began)  # it may have begun before the job
                job.opening = False
                job.pool.clock.opening_s += content[0] - job.opened_s
            case "progress":
                if not job.pool.stage.pool:
                    self.emit(PartitionProgress(self.group.index, job.unit.flow.index, worker.number, *content))
            case "packet":
                self._on_packet(job, content[0])
            case "safe":
                self._on_safe_point(job, content[0])
            case "outcome" | "compiled" | "corrupt" | "overflow" | "too large":
                self._job_ended(worker)
                self._on_end(worker, job, kind, content[0])
            case _:
                raise content[0]

    def _on_end(self, worker: Worker, job: Job, kind: str, content: Any) -> None:
        """A job has ended, with all its rows or before."""
        pool, flow, task = job.pool, job.unit.flow, job.task
        if kind == "outcome":
            self._on_outcome(job, content)
            if task.last_attempt:  # its share is that of all workers
                self.staffing.stop(pool, worker)
            else:
                self.staffing.look_for_leak(pool, worker)
            return
        if kind == "corrupt":
            self._restart(flow, replace(task, damaged=task.damaged | content), new_worker=False)
            return
        self.staffing.stop(pool, worker)
        if kind == "overflow":
            self._on_overflow(worker, job, *content)
            return
        self._try(job, [self._rest_of(job)])
        if kind == "compiled":
            count_compiled(self.compiled, flow.index, task.partition.pieces[0].path)
            return
        error, share = content
        # A used worker is simply replaced; another failure may already have freed memory.
        if not worker.used and share >= pool.governor.worker_bytes:
            pool.governor.too_large_to_set_up(error)
            self.staffing.fit(pool)

    def _on_warmed_up(self, worker: Worker, kind: str, content: Any) -> None:
        """What a worker says that was started before there was work for it."""
        pool = self.staffing.pool_of(worker)
        if kind == "error":
            raise content
        if kind == "opened":
            pool.clock.opening_s += content
        else:  # it exits; the worker that takes its place with the first rows will say the same
            self.staffing.stop(pool, worker)

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
        self.edges.discard(flow)

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
        if not self.edges.next_is_shared(pool):
            self.edges.add_last(unit.flow, key, packet)
            return
        self.edges.add_shared(unit.flow, packet)
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
            self.edges.remove_shared(unit.flow, unit.packet)
            pool.bytes_done += unit.packet.num_bytes
        self._look_for_end(unit.flow)

    def _look_for_end(self, flow: Flow) -> None:
        """Hand a partition to the last stage once all stages before have processed it."""
        if any(flow.units[:-1]):
            return
        packets = [packet for _, packet in sorted(flow.packets, key=lambda each: each[0])]
        task = Task(partition_of(flow.index, packets))
        self._add_unit(self.pools[-1], Unit(flow, len(self.pools) - 1, (), deque([task])))

    # ---------------------------------------------------------------------------------------------------- trying again

    def on_death(self, worker: Worker) -> None:
        """Replace a dead worker and decide how to try its rows again."""
        pool = self.staffing.pool_of(worker)
        how = self.crew.bury(worker)
        self.staffing.forget(pool, worker)
        job: Job | None = worker.job
        if job is None:
            return
        self._job_ended(worker)
        self.edges.remove_unreported(job)
        flow = job.unit.flow
        if flow.abandoned:
            return
        _, rows, step = worker.last_mark()
        self.emit(WorkerDied(worker.number, how, flow.index, _step_name(pool, step)))
        if worker.lost:
            if self.stream is None:  # otherwise packets may be lost too, and the partition begins again
                self._try(job, [self._rest_of(job)])
            return
        progress = job.unit.progress
        progress.deaths += 1
        progress.deaths_while_reading += not rows
        if step < 0 and any(signal_name in how for signal_name in CRASHES):
            progress.crashes[-1 - step] += 1
            if progress.crashes[-1 - step] >= MAX_CRASHES:
                self._skip_piece(job, -1 - step, how)
                return
        self._try_after_death(worker, job, how)

    def _try_after_death(self, worker: Worker, job: Job, how: str) -> None:
        """Decide how to try the rows of a worker again that died on its own, unless too many have died."""
        pool, unit, task, progress = job.pool, job.unit, self._rest_of(job), job.unit.progress
        first, rows, step = worker.last_mark()
        name = _step_name(pool, step)
        what = f"{_path_of(unit.flow)} in `{name}`"
        by_signal = "signal" in how
        most = MAX_KILLS if by_signal else MAX_CALL_DEATHS
        if progress.deaths_while_reading > most or progress.blamed >= MAX_BLAMED:
            raise WorkerError(
                f"workers died {progress.deaths} times over {what} ({how})",
                hint="give the run more --memory or the reader a smaller blocksize; --executor inline shows where it happens",
            )
        assert task.allowance is not None
        allowance, governor = task.allowance, pool.governor
        governor.restarted(what, how)
        one_worker = worker.share_bytes >= governor.single_worker_bytes
        tasks = after_death(task, Trouble(first, rows, f"the worker was {how} in `{name}`", one_worker=one_worker))
        if by_signal and task.deaths and not rows:  # perhaps a library that ran out of memory
            allowance = governor.overflowed(allowance, what, same_rows=pool.stage.reads_again)
            if self._limits_rows(unit, task, allowance):
                self._restart(unit.flow, replace(task, max_row_bytes=allowance.max_row_bytes), allowance)
                return
        elif "SIGKILL" in how and task.deaths and rows > 1:  # perhaps by the kernel, because memory ran out
            allowance = governor.shrunk(allowance, what)
        progress.blamed += sum(len(each.poison) for each in tasks)
        self._try(job, [replace(each, allowance=allowance) for each in tasks])
        self.staffing.fit(pool)

    def _rest_of(self, job: Job) -> Task:
        """The rows of a job that are not done: those after its last safe point."""
        return replace(job.task, emission=None)

    def _on_overuse(self, worker: Worker, held_bytes: int) -> None:
        pool = self.staffing.pool_of(worker)
        first, rows, step = worker.last_mark()
        how = self.crew.stop_overuse(worker, held_bytes, _step_name(pool, step))
        self.staffing.forget(pool, worker)
        job: Job | None = worker.job
        if job is not None:
            self._job_ended(worker)
            self.edges.remove_unreported(job)
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
            allowance = governor.overflowed(allowance, what, same_rows=pool.stage.reads_again)
            tasks = [replace(task, new_worker=True)]
            if self._limits_rows(unit, task, allowance):
                self._restart(unit.flow, replace(task, max_row_bytes=allowance.max_row_bytes), allowance)
                self.staffing.fit(pool)
                return
        elif rows != 1:
            allowance = governor.shrunk(allowance, what)
        if len(tasks) > 1:
            governor.divided(what)
        self._try(job, [replace(each, allowance=allowance) for each in tasks])
        self.staffing.fit(pool)

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
        if not job.pool.stage.hands_on:  # their order does not matter: those that need all workers to wait come last
            unit.pending = deque(sorted(unit.pending, key=lambda task: task.last_attempt))
        job.pool.waiting.remove(unit)
        job.pool.waiting.appendleft(unit)

    def _restart(self, flow: Flow, task: Task, allowance: Allowance | None = None, *, new_worker: bool = True) -> None:
        """Begin a partition again: its rows will be others, so their numbers are no longer the same."""
        flow.abandoned = True
        for worker in [w for w in self.crew.workers if w.job is not None and w.job.unit.flow is flow]:
            pool = worker.job.pool
            self._job_ended(worker)
            self.staffing.forget(pool, worker)
            self.crew.kill(worker)
        for pool, units in zip(self.pools, flow.units, strict=True):
            for unit in units:
                unit.progress.restart()
            pool.drop(units)
        before = flow.units[0][0].progress if flow.units[0] else None
        self.edges.discard(flow)
        self.flows.remove(flow)
        again = Task(
            task.partition,
            gone=task.gone,
            damaged=task.damaged,
            unreadable=task.unreadable,
            max_row_bytes=task.max_row_bytes,
            observed=task.observed,
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

    # --------------------------------------------------------------------------------------------------------- reporting

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
        self.emit(PoolsSampled(self.group.index, pools, self.edges.memory_bytes))

    def close(self) -> None:
        """End the group: workers of its own exit, and packets that are left are removed."""
        self._emit_pools()
        if self.stream is None:
            return
        self.staffing.close()
        for flow in self.flows:
            self.edges.discard(flow)
        self.hooks.streams.append(figures_of(self.group, self.pools, self.stream, self._queues))


def _path_of(flow: Flow) -> str:
    pieces = flow.task.partition.pieces
    return pieces[0].path if pieces else f"partition {flow.index}"


def _step_name(pool: Pool, step: int) -> str:
    names = [each.name for each in pool.stage.steps]
    return names[max(0, step)] if step < len(names) else names[-1]
