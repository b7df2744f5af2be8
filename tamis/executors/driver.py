"""Carry out a run: compare the ledger with the plan, do the missing work, and record it.

    open ledger -> compare with the plan -> run what is missing, stage by stage -> make shards agree -> report

Only the driver writes the ledger. A partition counts as done when its record is on disk. Files in the output folder without a
record are removed before work begins.
"""

from __future__ import annotations

import json
import platform
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import pyarrow as pa

import tamis
from tamis.errors import BudgetError, Interrupted, TooManyFailed
from tamis.events import (
    CallsFinished,
    Events,
    PartitionCommitted,
    RunFinished,
    RunStarted,
    StageStarted,
    Stopping,
    WorkCommittedBefore,
)
from tamis.exchange import Attempted, Draft, FolderExchange
from tamis.executors.estimate import estimate, free_disk
from tamis.executors.executor import Session, Stop
from tamis.executors.failures import FailureWatch
from tamis.executors.finishing import agree_on_types
from tamis.executors.resume import CommittedWork, how_read, note_system, remove_attempts, sync, withdraw_groups
from tamis.executors.segments import Outcome
from tamis.executors.tasks import Group, Observed, Stage, Task
from tamis.executors.watch import Watch
from tamis.ledger import Commit, Ledger
from tamis.memory import runs, spill
from tamis.memory.governor import Governor
from tamis.memory.log import MemoryLog
from tamis.memory.spill import RESOLVE
from tamis.operators import Gather, Partition, Reorder, digest
from tamis.parameters import format_bytes, plural
from tamis.plan import Plan
from tamis.report import Account, Report
from tamis.store import INTERNAL, link_or_copy

TOKEN = "token"
"""The blob that identifies the intermediate results of a Gather, and the rows that they follow from."""

PLENTY_OF_DISK = 20
"""If this many times the size of the input is free, the need for disk space is not estimated."""


class Run:
    """The execution of a plan with an open ledger."""

    def __init__(
        self,
        plan: Plan,
        ledger: Ledger,
        governor: Governor,
        emit: Events,
        stop: Stop,
        failures: FailureWatch,
        memory_log: MemoryLog,
        *,
        keep_work: bool = False,
    ) -> None:
        self.plan, self.ledger, self.governor = plan, ledger, governor
        self.failures, self.memory_log = failures, memory_log
        self.emit, self.stop = emit, stop
        self.partitions = plan.layout.partitions
        self.committed = CommittedWork(plan, ledger)
        self.keep_work = keep_work
        self.began = time.monotonic()
        self.notes: list[str] = list(plan.notes)
        self._new_work: dict[int, Account] = {}
        """The work of this run, by stage."""

    def settle(self) -> list[list[tuple[str, Partition]]]:
        """Compare the ledger with the plan, and return the partitions that are missing, by stage."""
        self.notes += self.committed.what_changed()
        return self.committed.settle()

    @property
    def untouched(self) -> bool:
        """Whether the output is that of a finished run, and nothing in it had to be changed."""
        return not self.committed.changed

    # --------------------------------------------------------------------------------------------------------------- running

    def run(self, left: list[list[tuple[str, Partition]]], session: Session, watch: Watch) -> Report:
        """Do the remaining work and return the account of the whole output, including earlier runs."""
        self.watch, self.streams = watch, session.hooks.streams
        session.hooks.on_tick = self._tick
        self.ledger.append([self.committed.plan_record()])
        withdraw_groups(self.plan.store, lambda stage: stage >= len(self.plan.stages) - 1)
        self.plan.store.write(f"{INTERNAL}/manifest.json", self._manifest_text())  # for those who look while it runs
        if len(self.plan.stages) > 1:
            note_system(self.plan.exchange)
        self._begin_failures()
        try:
            with self._listening():
                for group in self.plan.groups:
                    stage = group.whole
                    self._run_group(group, left[group.index], session)
                    if self.stop.level:
                        return self._interrupted()
                    if isinstance(stage.end, Gather) and any(left[stage.index + 1 :]):
                        left[stage.index + 1] += self.committed.settle_decisions(stage.index + 1)
                        self._resolve(stage, session)
                        if self.stop.level:
                            return self._interrupted()
            self._agree_on_types()
            self._check_failures(final=True)
        except TooManyFailed as error:
            self.notes.append(error.message)
            self._finished("failed")
            raise
        return self._finished("finished")

    def _begin_failures(self) -> None:
        committed = [
            (number, c.account) for number in range(len(self.plan.stages)) for c in self.committed.commits(number)
        ]
        self.failures.begin(self.plan.layout.num_files, self.plan.layout.damaged_files, committed)
        for number in {stage for stage, _ in committed}:
            self.emit(WorkCommittedBefore(number, _sum(account for stage, account in committed if stage == number)))

    def _check_failures(self, *, final: bool = False) -> None:
        self.failures.check(output=self.plan.store.root if self.plan.sink else None, final=final)

    def unchanged(self) -> Report:
        """Return the report of a run that had nothing to do."""
        self._begin_failures()
        self._check_failures(final=True)  # an earlier run may have allowed more
        report = Report(**{**(self.ledger.finished or {})["report"], "state": "unchanged", "notes": self.notes})
        accounts = [commit.account for stage in self.plan.stages for commit in self.committed.commits(stage.index)]
        report.damaged_files = dict(self.plan.layout.damaged_files)
        for account in accounts:
            report.damaged_files.update(account.damaged_files)
        self.emit(RunFinished(report))
        return report

    def _run_group(self, group: Group, left: list[tuple[str, Partition]], session: Session) -> None:
        stage = group.whole
        keys = {partition.index: key for key, partition in left}
        size = sum(partition.size for _, partition in left)
        done = max(0, len(self.partitions) - len(left))
        self.emit(StageStarted(stage.index, stage.name, len(left), done, size))
        before = (
            {commit.partition: commit for commit in self.committed.commits(stage.index - 1)}
            if stage.reads_again
            else {}
        )
        decided = self.committed.gather_key(stage.index - 1) if stage.index else ""
        self.governor.begin(stage.name)

        def commit(task: Task, outcome: Outcome) -> None:
            index = task.partition.index
            extra = outcome.extra | {"scores": self.plan.keeps_scores}
            if stage.gathers:
                assert task.allowance is not None
                extra["max_row_bytes"] = task.max_row_bytes or task.allowance.max_row_bytes
                extra |= how_read(stage)
            if stage.index:
                extra["decided"] = decided
            record = Commit(stage.index, keys[index], index, outcome.shards, outcome.account, extra)
            earlier = self.ledger.earlier.get((stage.index, index))
            self.ledger.append([record.record()])
            self._remove_replaced(earlier, record)
            self._new_work.setdefault(stage.index, Account()).add(outcome.account)
            self.emit(PartitionCommitted(stage.index, index, outcome.account.as_dict(), task.partition.size))
            self._check_failures()

        tasks = [self._task(stage, partition, before) for _, partition in left]
        if tasks:
            session.run_group(group, tasks, commit)

    def _remove_replaced(self, earlier: Commit | None, new: Commit) -> None:
        """Remove the files of an earlier commit that the new one has not replaced."""
        names = {shard.name for shard in new.shards}
        for shard in earlier.shards if earlier is not None else []:
            if shard.name not in names:
                self.plan.store.remove_shard(shard.name)

    def _task(self, stage: Stage, partition: Partition, before: Mapping[int, Commit]) -> Task:
        """Return the task for a partition. A stage that reads the source again must read the same rows as the stage before."""
        if not stage.reads_again:
            return Task(partition, earlier=self.ledger.earlier.get((stage.index, partition.index)))
        known = before[partition.index].extra
        unreadable = {int(number): error for number, error in known["unreadable"].items()}
        return Task(
            partition,
            gone=frozenset(known["gone"]),
            damaged=frozenset(known["damaged"]),
            unreadable=unreadable,
            max_row_bytes=known["max_row_bytes"],
            observed=Observed(known["positions"], None if known["columns"] is None else tuple(known["columns"])),
        )

    def _resolve(self, stage: Stage, session: Session) -> None:
        """Let a Gather decide about every row it observed."""
        assert isinstance(stage.end, Gather)
        rows = {commit.partition: commit.extra["observed"] for commit in self.committed.commits(stage.index)}
        needs = stage.end.memory_bytes(sum(rows.values()))
        if needs > self.plan.budget.total_bytes - self.plan.budget.driver_bytes:
            raise BudgetError(
                f"`{stage.end.name}` needs {format_bytes(needs)} to decide about {plural(sum(rows.values()), 'row')}",
                hint=f"use --memory {format_bytes(needs + self.plan.budget.driver_bytes).replace(' ', '')}, "
                "or process a sample with --on-overflow sample",
            )
        work = _GatherWork(self, session, stage, self.committed.gather_key(stage.index))
        if isinstance(stage.end, Reorder):
            files = [name for commit in self.committed.commits(stage.index) for name in commit.extra["files"]]
            with suppress(_Stopped):
                runs.arrange(files, stage.exchange, work)
                work.withdraw_others()
            return
        fates = spill.Fates(stage.exchange, rows)
        try:
            stage.end.resolve(spill.ObservedFacts(stage.exchange, rows), fates, work)
        except _Stopped:
            return
        work.withdraw_others()
        fates.close()

    def _tick(self) -> None:
        self.ledger.lock.check()
        self.watch.tick()
        self._check_failures()

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Handle signals: the first Ctrl-C finishes partitions in progress, the second abandons them, and so does SIGTERM."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, frame: FrameType | None) -> None:
            self.stop.level = 2 if number == signal.SIGTERM else min(2, self.stop.level + 1)
            self.emit(Stopping(abandon=self.stop.level == 2))

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        except KeyboardInterrupt:
            if self.stop.level < 2:
                raise
            # The executor stopped on request; the caller checks the level.
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    # ------------------------------------------------------------------------------------------------------------ finishing

    def _agree_on_types(self) -> None:
        if self.plan.sink is not None:
            commits = self.committed.commits(self.plan.stages[-1].index)
            agree_on_types(self.ledger, self.plan.sink, commits, self.emit)

    def _interrupted(self) -> Report:
        self._finished("interrupted")
        last = len(self.plan.stages) - 1
        done = sum(len(self.committed.commits(number)) for number in range(last + 1))
        raise Interrupted(
            f"stopped: {done} of {plural(len(self.partitions) * (last + 1), 'partition')} committed",
            hint="rerun the same command to resume",
        )

    def _finished(self, state: str) -> Report:
        self.watch.save()
        self.watch.tick()
        accounts = []
        for stage in self.plan.stages:
            accounts.append(_sum(commit.account for commit in self.committed.commits(stage.index)))
        report = Report.of(
            accounts,
            new=self._new_work[min(self._new_work)] if self._new_work else Account(),
            seconds=time.monotonic() - self.began,
            peak_memory_bytes=self.watch.peak_bytes,
            output=self.plan.store.root if self.plan.sink else None,
        )
        report.state = state
        report.notes = [*self.notes, *self.watch.notes()]
        report.damaged_files = {**self.plan.layout.damaged_files, **report.damaged_files}
        report.memory = self.governor.as_dict() | {"gpus": self.watch.gpu_figures()}
        nodes = self.watch.executor.hooks.nodes
        if nodes:
            report.memory["nodes"] = [nodes[node] for node in sorted(nodes)]
        report.memory_events = self.memory_log.entries
        report.streams = self.streams
        self.plan.store.write(f"{INTERNAL}/report.json", report.as_text())
        self.plan.store.write(f"{INTERNAL}/manifest.json", self._manifest_text())
        self.plan.store.write(f"{INTERNAL}/learned.json", self.governor.learned.as_text())
        if state == "finished":
            self.ledger.append([{"kind": "finished", "report": report.as_dict()}])
            self._clean_up()
        sync(self.plan.exchange)
        self.emit(RunFinished(report))
        return report

    def _clean_up(self) -> None:
        """Remove intermediate files. `keep_work` keeps facts and rows, so that a later run observes only new rows."""
        remove_attempts(self.plan.store)
        if not self.keep_work:
            self.plan.exchange.delete()
            work = self.plan.store.work()
            FolderExchange(work).delete()  # an interrupted run may have had its exchange there
            if not self.plan.store.local:
                self.plan.store.remove_folder(f"{INTERNAL}/work")  # and shards theirs here
            with suppress(OSError):  # not empty, if it is beside the output
                work.parent.rmdir()
            return
        self.plan.exchange.delete_drafts()
        for stage in self.plan.stages:
            stage.exchange.delete(RESOLVE)
            stage.exchange.delete(spill.FATES)

    def _manifest_text(self) -> bytes:
        return json.dumps(self._manifest(), indent=2, ensure_ascii=False).encode()

    def _manifest(self) -> dict[str, Any]:
        """Return everything needed to understand and repeat the run."""
        plan = self.plan
        return {
            "recipe": {"steps": plan.recipe},
            "directory": str(Path.cwd()),
            "rejects": plan.stages[-1].rejects is not None,
            "scores": plan.keeps_scores,
            "versions": {
                "tamis": tamis.__version__,
                "python": platform.python_version(),
                "pyarrow": pa.__version__,
            },
            "hardware": {
                "machine": platform.machine(),
                "system": platform.platform(),
                "cpus": psutil.cpu_count(),
                "memory_bytes": psutil.virtual_memory().total,
            },
            "partitioning": {
                "files": plan.layout.num_files,
                "bytes": plan.layout.num_bytes,
                "partitions": len(plan.layout.partitions),
                "blocksize": plan.blocksize,
            },
            "memory": {key: value for key, value in asdict(plan.budget).items() if key != "reasons"},
            "alerts": asdict(self.watch.thresholds) | {"remedy": self.watch.remedy},
            "columns": plan.stages[0].columns,
            "reasons": plan.reasons,
            "command": sys.argv,
        }

    def announce(self, left: list[list[tuple[str, Partition]]]) -> None:
        if any(left):
            self._check_available_memory()
            self._check_free_disk()
        total = len(self.partitions) * len(self.plan.stages)
        todo = sum(map(len, left))
        self.emit(
            RunStarted(
                output=self.plan.store.root if self.plan.sink else None,
                stages=tuple(stage.name for stage in self.plan.stages),
                workers=self.plan.workers_for(max(map(len, left)), self.governor.learned),
                budget_bytes=self.plan.budget.total_bytes,
                partitions=total,
                committed=total - todo,
                notes=tuple(self.notes),
            )
        )

    def _check_available_memory(self) -> None:
        """Add a note if the budget exceeds the available memory, since it then guarantees nothing."""
        budget = self.plan.budget
        if budget.total_bytes > budget.usable_bytes:
            asked, usable = format_bytes(budget.total_bytes), format_bytes(budget.usable_bytes)
            self.notes.append(
                f"there may not be enough memory: the budget is {asked}, and this process may use {usable}"
            )

    def _check_free_disk(self) -> None:
        """Add a note if disk space may not be enough. Reads a sample of the input only if that is possible."""
        plan = self.plan
        if free_disk(plan.stages[0]) > PLENTY_OF_DISK * plan.layout.num_bytes:
            return
        found = estimate(plan.groups, plan.layout, plan.budget, self.governor.learned)
        if not found.fits_disk:
            needed, free = format_bytes(found.spill_bytes + found.output_bytes), format_bytes(found.free_disk_bytes)
            self.notes.append(f"there may not be enough disk space: about {needed} are needed and {free} are free")


def _sum(accounts: Iterable[Account]) -> Account:
    total = Account()
    for account in accounts:
        total.add(account)
    return total


class _Stopped(Exception):
    """Not an error: the user stopped the run while a Gather was resolving."""


class _GatherWork:
    """The workers and the exchange, as available to a Gather. Records finished calls in the ledger."""

    def __init__(self, run: Run, session: Session, stage: Stage, key: str) -> None:
        self._run, self._session, self._key = run, session, key
        self._has_published = False
        self.exchange, self.stage = stage.exchange.sub(RESOLVE), stage.index
        if not self._has_token():  # results are useless without the blobs written with them
            self.exchange.delete()
            stage.exchange.delete(spill.FATES)
            with self.exchange.writing(TOKEN) as path:
                path.write_text(f"{key} {uuid.uuid4().hex}")
        self._key = self.exchange.file(TOKEN).read_text()
        self.workers = run.governor.workers
        self.worker_bytes = run.governor.worker_bytes

    def _has_token(self) -> bool:
        """Whether the blobs were written for the same rows."""
        return self.exchange.has(TOKEN) and self.exchange.file(TOKEN).read_text().startswith(f"{self._key} ")

    def map(
        self,
        name: str,
        function: Callable[..., Any],
        items: Sequence[tuple[Any, ...]],
        *,
        new_workers: bool = False,
        on_gpu: bool = False,
    ) -> list[Any]:
        ledger, stage = self._run.ledger, self.stage
        keys = [digest([self._key, name, number, len(items)]) for number in range(len(items))]
        missing = [number for number, key in enumerate(keys) if (stage, key) not in ledger.steps]

        def done(position: int, answer: tuple[Any, list[Draft]]) -> None:
            result, drafts = answer
            for draft in drafts:
                draft.publish()
            ledger.append([{"kind": "step", "stage": stage, "key": keys[missing[position]], "result": result}])

        if missing:
            left = [items[number] for number in missing]
            began = time.monotonic()
            self._session.map(Attempted(function), left, done, new_workers=new_workers, on_gpu=on_gpu)
            self._run.emit(CallsFinished(stage, name, len(missing), time.monotonic() - began))
        if self._run.stop.level:
            raise _Stopped
        return [ledger.steps[stage, key] for key in keys]

    def publish(self, name: str, content: Path | bytes) -> None:
        self._has_published = True
        store, full = self._run.plan.store, f"{INTERNAL}/{name}"
        if isinstance(content, bytes):
            store.write(full, content)
        elif store.local:
            copy = store.scratch() / f"{digest(name)}.copy"
            copy.unlink(missing_ok=True)
            link_or_copy(content, copy)
            store.publish(copy, full)
        else:
            store.upload(content, full)

    def published(self, folder: str) -> list[str]:
        return self._run.plan.store.names(f"{INTERNAL}/{folder}")

    def withdraw_others(self) -> None:
        """Remove what another Gather published here in an earlier run, if this one publishes nothing."""
        if not self._has_published:
            withdraw_groups(self._run.plan.store, self.stage.__eq__)

    def withdraw(self, name: str) -> None:
        self._run.plan.store.remove_folder(f"{INTERNAL}/{name}")
