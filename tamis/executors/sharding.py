"""Run one shard: join the others, do the own partitions, wait at each Gather, and help where nobody works.

    join          the first shard records the plan, others compare theirs with it
    own work      partitions of this shard
    others'       partitions of shards that were begun, and on which nobody works any more
    wait          until all partitions of the stage are committed; one driver then resolves the Gather
    leave         the last one merges

Every step may be interrupted at any moment. What is recorded in a log counts, and the next driver continues from there.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from tamis.card import check_card
from tamis.errors import Interrupted, LedgerError, ShardsRunning, TamisError, TooManyFailed
from tamis.events import Events, Note
from tamis.exchange import forget_names
from tamis.executors.driver import Run
from tamis.executors.executor import Session
from tamis.executors.failures import FailureLimit
from tamis.executors.merging import MERGE_WAIT_S, is_complete, merge_into, stages_of
from tamis.executors.resume import (
    CommittedWork,
    may_be_damaged,
    note_system,
    prepare_output,
    remove_attempts,
    remove_unowned,
    withdraw_groups,
)
from tamis.executors.tasks import Group, Stage
from tamis.executors.watch import Watch
from tamis.ledger import Ledger
from tamis.lock import lock_of, owner_text
from tamis.memory import spill
from tamis.memory.runs import MANIFEST
from tamis.memory.spill import RESOLVE
from tamis.operators import Gather, Partition, Reorder
from tamis.parameters import plural
from tamis.plan import Plan
from tamis.report import Account, Report
from tamis.shards import JobShard, Patience, ShardLedger, ShardState, missing_by_shard, shard_name, shard_of
from tamis.store import INTERNAL, TABLE, Store

CLAIM_WAIT_S = 130.0
"""How long to wait for another driver of the same shard on another machine, if it shows no sign of life: a file system or an
object store takes up to two minutes to release the lock of a machine that was switched off."""

SETUP_WAIT_S = 600.0
"""How long a shard waits for the lock of the folder, which others hold to record the plan or to merge."""

SHOWN_SHARDS = 3
"""How many shards a message names."""

Left: TypeAlias = list[list[tuple[str, Partition]]]
End: TypeAlias = Literal["complete", "waiting", "interrupted"]


@dataclass(frozen=True)
class ShardSettings:
    """What a shard is given apart from the pipeline. That of the first shard counts for the whole run."""

    shard: JobShard
    wait_s: float
    limit: FailureLimit
    keep_work: bool = False
    card: bool = False
    license: str | None = None


# ---------------------------------------------------------------------------------------------------------------- joining


class Joining:
    """Makes a driver one of those that work on a run: returns its ledger, with the lock of its shard."""

    def __init__(
        self, store: Store, settings: ShardSettings, make_plan: Callable[[int | None], Plan], emit: Events
    ) -> None:
        self.store, self.settings, self.emit = store, settings, emit
        self._make_plan = make_plan
        self.plan = make_plan(None)
        self.notes: list[str] = []

    def join(self) -> ShardLedger | None:
        """The ledger, or None if the run is finished and nothing has changed since."""
        patience = Patience(SETUP_WAIT_S)
        said = False
        self._first_seen: tuple[Mapping[str, Any], float] | None = None
        while True:
            ledger = ShardLedger(self.store, self.settings.shard)
            busy = self._refused_or_busy(ledger) or self._without_damage() or ledger.join()
            if busy is None:
                try:
                    ledger.load()
                    if ledger.shards:
                        self._compare(ledger)
                        return ledger
                except BaseException:
                    ledger.__exit__()
                    raise
                ledger.__exit__()
                if self._record_plan():
                    return None
                continue
            if not said:
                self.emit(Note(_waiting_text(busy)))
                said = True
            if patience.is_over(someone_works="shard" in busy):
                raise LedgerError(
                    f"another run is writing to {self.store.root} ({owner_text(busy)})",
                    hint="wait for it to end, or choose another --output",
                )
            time.sleep(patience.pause_s())

    def _refused_or_busy(self, ledger: ShardLedger) -> Mapping[str, Any] | None:
        """Who works on this shard, to be waited for; raises if that is another driver of this shard which is alive."""
        shard = self.settings.shard
        holder = ledger.holder(shard.name)
        if holder is None or holder.get("shard") != str(shard):
            return holder
        first, since = self._first_seen or (holder, time.monotonic())
        self._first_seen = (first, since)
        may_be_dead = holder == first and holder.get("host") != platform.node()
        if not may_be_dead or time.monotonic() - since > CLAIM_WAIT_S:
            raise LedgerError(
                f"shard {shard} is running already ({owner_text(holder)})",
                hint="wait for it to end, or give this one another number",
            )
        return holder

    def _without_damage(self) -> Mapping[str, Any] | None:
        """Discard what passes between stages if a power failure may have damaged it; returns who holds the folder, if anybody.

        Not while another shard is running: it began after the restart, or on another machine.
        """
        if not may_be_damaged(self.plan.exchange):
            return None
        try:
            with Ledger(Store(self.store.root, self.store.storage_options)) as ledger:
                if ledger.shards and may_be_damaged(self.plan.exchange):
                    if ledger.plan is not None and ledger.plan["blocksize"] != self.plan.blocksize:
                        self.plan = self._make_plan(ledger.plan["blocksize"])
                    work = CommittedWork(self.plan, ledger)
                    if work.why_not_the_same():
                        return None  # the shard is refused
                    self.plan.exchange.delete()
                    work.settle()
                    note_system(self.plan.exchange)
        except ShardsRunning:
            return None
        except LedgerError:
            return lock_of(self.store).holder() or {}
        return None

    def _compare(self, ledger: ShardLedger) -> None:
        """Raise if the plan of this shard is not the one of the run."""
        assert ledger.plan is not None
        shard, root = self.settings.shard, self.store.root
        close = f"`tamis merge {root} --partial` closes it, when no shard is running, and keeps what still holds"
        if ledger.shards != shard.count:
            raise LedgerError(
                f"the run in {root} has {plural(ledger.shards, 'shard')}, and this is shard {shard}", hint=close
            )
        if ledger.plan["blocksize"] != self.plan.blocksize:
            self.plan = self._make_plan(ledger.plan["blocksize"])
        differences = CommittedWork(self.plan, ledger).why_not_the_same()
        if differences:
            raise LedgerError(
                "\n".join([f"shard {shard} has other settings or another input than the run in {root}:", *differences]),
                hint=f"give all shards the same; {close}",
            )

    def _record_plan(self) -> bool:
        """As the first shard, prepare the folder and record the plan; returns whether nothing has to be done."""
        with ExitStack() as stack:
            try:
                ledger = stack.enter_context(Ledger(Store(self.store.root, self.store.storage_options)))
            except LedgerError:
                return False  # another shard is recording the plan, or has, and shards are running
            if ledger.shards:
                return False
            ledger.store.make()
            if self.settings.card:
                check_card(ledger)
            prepare_output(ledger.store, self.plan.exchange, ledger, self.plan.sink, fresh=False)
            if ledger.plan is not None and ledger.plan["blocksize"] != self.plan.blocksize:
                self.plan = self._make_plan(ledger.plan["blocksize"])
            work = CommittedWork(self.plan, ledger)
            notes = work.what_changed()
            if not any(work.settle()) and not work.changed:
                self.unchanged = Report(**{**(ledger.finished or {})["report"], "state": "unchanged"})
                return True
            ledger.append([self._plan_record(work, notes)])
            withdraw_groups(ledger.store, lambda stage: stage >= len(self.plan.stages) - 1)
        self.store.make()  # the folder of this shard was removed with those of earlier runs
        return False

    def _plan_record(self, work: CommittedWork, notes: list[str]) -> dict[str, Any]:
        settings, plan = self.settings, self.plan
        return {
            **work.plan_record(),
            "shards": settings.shard.count,
            "partitions": len(plan.layout.partitions),
            "stages": len(plan.stages),
            "keys": work.key,
            "keep_work": settings.keep_work,
            "card": settings.card,
            "license": settings.license,
            "recipe": plan.recipe,
            "sink": plan.recipe[-1],
            "max_failed": asdict(settings.limit),
            "num_files": plan.layout.num_files,
            "damaged_files": dict(plan.layout.damaged_files),
            "notes": [*plan.notes, *notes],
        }


def _waiting_text(busy: Mapping[str, Any]) -> str:
    if "shard" in busy:
        return f"waiting for {owner_text(busy)}, which works on this shard as shard {busy['shard']}"
    return f"waiting for {owner_text(busy)}, which is preparing or merging the output"


# ---------------------------------------------------------------------------------------------------------------- running


class ShardRun(Run):
    """The execution of the part of a plan that belongs to one shard, and of what others have left."""

    ledger: ShardLedger

    def begin(self, settings: ShardSettings) -> Left:
        """Remove what an earlier attempt at this shard left unfinished, and return the partitions that are missing."""
        self.settings, self.shard = settings, settings.shard
        self.partitions = tuple(p for p in self.plan.layout.partitions if self._is_of(self.shard.number, p.index))
        remove_attempts(self.plan.store)
        return self._left_of(self.shard.number)

    def _is_of(self, number: int, partition: int) -> bool:
        return shard_of(partition, self.shard.count) == number

    def _left_of(self, number: int) -> Left:
        """The missing partitions of a shard whose lock is held."""

        def own(partition: int) -> bool:
            return self._is_of(number, partition)

        if is_complete(self.ledger):
            return [[] for _ in self.plan.stages]
        remove_unowned(self.plan.store, self.ledger, own)
        return self.committed.settle_some(own, self._is_resolved)

    def run(self, left: Left, session: Session, watch: Watch) -> Report:
        """Do what this shard can do, and return its account."""
        self.watch, self.streams = watch, session.hooks.streams
        session.hooks.on_tick = self._tick
        if len(self.plan.stages) > 1:
            note_system(self.plan.exchange, first=False)
        self._begin_failures()
        self._record_begin(self.shard.number)
        self.plan.store.write(f"{INTERNAL}/manifest.json", self._manifest_text())
        end: End = "interrupted"
        try:
            with self._listening():
                end = self._run_stages(left, session)
        except Exception as error:
            self._record_end(self.shard.number, "failed", error)
            raise
        if self.stop.level:
            self._record_end(self.shard.number, "interrupted")
            raise Interrupted(f"stopped shard {self.shard}", hint="rerun the same command to resume")
        self._record_end(self.shard.number, "finished" if end == "complete" else "waiting")
        return self._shard_report()

    def _run_stages(self, left: Left, session: Session) -> End:
        for group in self.plan.groups:
            self._run_group(group, left[group.index], session)
            last = group is self.plan.groups[-1]
            end = self._help(group, session, waits=not last)
            if end != "complete":
                return end
            if isinstance(group.whole.end, Gather) and not self._decide(group.whole, session):
                return "interrupted"
        return "complete"

    # -------------------------------------------------------------------------------------------------- other shards

    def _help(self, group: Group, session: Session, *, waits: bool) -> End:
        """Do the work of shards that nobody works on; with `waits`, until every partition of the stage is committed."""
        patience = Patience(self.settings.wait_s)
        said = ""
        while not self.stop.level:
            self._tick()
            self.ledger.refresh()
            states = self._states(group.index)
            if not states or is_complete(self.ledger):
                return "complete"
            if self._adopt(group, [state for state in states if state.is_orphan], session):
                patience = Patience(self.settings.wait_s)
                continue
            if not waits:
                return "complete"
            failed = [state for state in states if state.failed is not None and state.holder is None]
            if failed or patience.is_over(someone_works=any(state.holder is not None for state in states)):
                self._say(f"not waiting any longer for {_named(failed or states)}")
                return "waiting"
            text = f"waiting for {plural(len(states), 'shard')}: {_named(states)}"
            if text != said:
                self._say(text)
                said = text
            time.sleep(patience.pause_s())
        return "interrupted"

    def _say(self, text: str) -> None:
        self.emit(Note(f"shard {self.shard}: {text}"))

    def _states(self, stage: int) -> list[ShardState]:
        done = {commit.partition for commit in stages_of(self.ledger)[stage]}
        count = len(self.plan.layout.partitions)
        return self.ledger.states(missing_by_shard(done.__contains__, count, self.shard.count))

    def _adopt(self, group: Group, orphans: Sequence[ShardState], session: Session) -> bool:
        """Do the work of one of these shards, up to the end of a group; returns whether there was one."""
        me = self.shard.number
        for state in sorted(orphans, key=lambda each: (each.number - me) % self.shard.count):
            if state.number == me:
                continue
            with self.ledger.claim(shard_name(state.number)) as mine:
                now = ShardState(state.number, 0, tuple(self.ledger.sessions.get(state.number, ())))
                if not mine or not now.is_orphan:
                    continue
                self._say(f"doing the work of shard {state.number}, which nobody works on")
                self._record_begin(state.number)
                try:
                    left = self._left_of(state.number)
                    for each in self.plan.groups[: group.index + 1]:
                        self._run_group(each, left[each.index], session)
                except Exception as error:
                    self._record_end(state.number, "failed", error)
                    raise
                self._record_end(state.number, "interrupted" if self.stop.level else "finished")
            return True
        return False

    # ------------------------------------------------------------------------------------------------------ a Gather

    def _is_resolved(self, stage: Stage) -> bool:
        if self.ledger.resolved.get(stage.index) != self.committed.gather_key(stage.index):
            return False
        if isinstance(stage.end, Reorder):
            return stage.exchange.sub(RESOLVE).has(MANIFEST)
        names = {f"{spill.stem(partition.index)}{spill.SPILL}" for partition in self.plan.layout.partitions}
        return names <= set(stage.exchange.sub(spill.FATES).names())

    def _decide(self, stage: Stage, session: Session) -> bool:
        """Resolve a Gather, or wait until another driver has; returns whether that is done."""
        patience = Patience(self.settings.wait_s)
        name = f"stage-{stage.index}"
        said = False
        while not self.stop.level:
            self._tick()
            self.ledger.refresh()
            if is_complete(self.ledger) or self._is_resolved(stage):
                return True
            with self.ledger.claim(name) as mine:
                if mine and not self._is_resolved(stage):
                    forget_names()
                    for part in (RESOLVE, spill.FATES):
                        stage.exchange.sub(part).delete_drafts()  # of a driver that was killed
                    self._resolve(stage, session)
                    if not self.stop.level:
                        record = {
                            "kind": "resolved",
                            "stage": stage.index,
                            "key": self.committed.gather_key(stage.index),
                        }
                        self.ledger.append([record])
            if not mine:
                if not said:
                    holder = self.ledger.holder(name) or {}
                    self._say(f"waiting for shard {holder.get('shard', '?')} to resolve {stage.name}")
                    said = True
                time.sleep(patience.pause_s())
        return False

    # ------------------------------------------------------------------------------------------------------- records

    def _record_begin(self, number: int) -> None:
        about = {"host": platform.node(), "time": time.time()}
        self.ledger.append([{"kind": "began", "shard": number, "by": self.shard.number, **about}])

    def _record_end(self, number: int, state: str, error: BaseException | None = None) -> None:
        record: dict[str, Any] = {"kind": "ended", "shard": number, "by": self.shard.number, "state": state}
        if error is not None:
            record["error"] = error.message if isinstance(error, TamisError) else f"{type(error).__name__}: {error}"
        if number == self.shard.number:
            self.watch.save(f"{INTERNAL}/memory/{self.shard.name}{TABLE}")
            record |= {
                "host": platform.node(),
                "seconds": time.monotonic() - self.began,
                "peak_memory_bytes": self.watch.peak_bytes,
                "memory": self.governor.as_dict() | {"gpus": self.watch.gpu_figures()},
                "memory_events": self.memory_log.entries,
                "streams": self.streams,
            }
            self.plan.store.write(f"{INTERNAL}/learned.json", self.governor.learned.as_text())
        try:
            self.ledger.append([record])
        except LedgerError:
            if error is None:
                raise
            # The lock may be lost, and that may be the error.

    def _shard_report(self) -> Report:
        """The account of this shard, including what other drivers did for it."""
        accounts = []
        for commits in stages_of(self.ledger):
            total = Account()
            for commit in commits:
                if self._is_of(self.shard.number, commit.partition):
                    total.add(commit.account)
            accounts.append(total)
        report = Report.of(
            accounts,
            new=self._new_work[min(self._new_work)] if self._new_work else Account(),
            seconds=time.monotonic() - self.began,
            peak_memory_bytes=self.watch.peak_bytes,
            output=self.plan.store.root,
        )
        report.state = "shard"
        report.memory = self.governor.as_dict()
        report.memory_events, report.streams = self.memory_log.entries, self.streams
        rest = self._states(self._first_incomplete())
        if rest:
            report.notes = [f"shard {self.shard}; not complete yet: {_named(rest)}", *self.notes]
        return report

    def _first_incomplete(self) -> int:
        partitions = len(self.plan.layout.partitions)
        counts = [len(commits) for commits in stages_of(self.ledger)]
        return next((stage for stage, count in enumerate(counts) if count < partitions), len(counts) - 1)


def _named(states: Sequence[ShardState]) -> str:
    more = f", and {len(states) - SHOWN_SHARDS} more" if states[SHOWN_SHARDS:] else ""
    return "; ".join(map(str, states[:SHOWN_SHARDS])) + more


# ---------------------------------------------------------------------------------------------------------------- leaving


def merge_if_last(run: ShardRun, emit: Events) -> Report | None:
    """Merge the run if every partition is committed and no other shard is at work; returns its report."""
    if not is_complete(run.ledger):
        return None
    plan = run.plan
    assert plan.sink is not None
    store = Store(plan.store.root, plan.store.storage_options)
    try:
        with Ledger(store, patience_s=MERGE_WAIT_S) as ledger:
            if ledger.finished is None:
                store.make()
                return merge_into(ledger, plan.sink, plan.exchange, emit, limit=run.settings.limit)
            return Report(**{**ledger.finished["report"]})
    except ShardsRunning:
        return None  # that one merges when it leaves
    except TooManyFailed:
        raise
    except LedgerError:
        return None  # another driver holds the lock, to merge
