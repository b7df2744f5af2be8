"""Merge the shards of a run: what remains to be done once every partition is committed.

merge        `tamis merge OUTPUT`: needs neither the input nor the pipeline, only the ledger
merge_into   the same with an open ledger; the last shard to finish does it, too
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from tamis.card import write_card
from tamis.errors import LedgerError, ShardsMissing, TamisError, TooManyFailed
from tamis.events import Events, RunFinished
from tamis.exchange import Exchange, FolderExchange, StoreExchange
from tamis.executors.failures import FailureLimit, FailureWatch, parse_max_failed
from tamis.executors.finishing import agree_on_types
from tamis.executors.resume import remove_attempts, remove_unowned
from tamis.ledger import Commit, Ledger
from tamis.memory import spill
from tamis.memory.spill import RESOLVE
from tamis.operators import Sink
from tamis.parameters import plural
from tamis.registry import find_operator
from tamis.remote import is_remote
from tamis.report import Account, Report
from tamis.shards import ShardState, missing_by_shard
from tamis.store import INTERNAL, Store

MERGE_WAIT_S = 5.0
"""How long to wait for the lock of the folder, which another shard may hold while it looks whether all are complete."""


def merge(
    output: str | Path,
    *,
    partial: bool = False,
    max_failed: float | str | None = None,
    exchange: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    emit: Events | None = None,
) -> Report:
    """Finish a run that was divided into shards: make its files agree on their columns, and write the report.

    Raises `ShardsMissing`, with the name and the state of each shard that is not complete. With `partial`, what is committed is
    published nevertheless, and the run is closed: the next one may have other settings or another number of shards, and keeps
    what still holds. A note counts the rows that wait for a Gather, and so are in no file. `exchange` is that of the shards, if
    they were given one; its contents are removed.
    """
    store = Store(str(output), storage_options)
    found = Ledger(store)
    found.load()
    if found.is_new or found.plan is None:
        raise LedgerError(f"there is no ledger in {output}", hint="name the output folder of a run")
    if found.finished is not None:
        return Report(**{**found.finished["report"], "state": "unchanged"})
    if not found.plan.get("shards"):
        raise LedgerError(
            f"the run in {output} is not finished, and has no shards", hint="rerun the same command to resume"
        )
    limit = parse_max_failed(max_failed) if max_failed is not None else None
    with Ledger(store, patience_s=MERGE_WAIT_S) as ledger:
        store.make()
        sink = _recorded_sink(ledger)
        return merge_into(ledger, sink, exchange_for(store, exchange), emit or Events(), limit=limit, partial=partial)


def exchange_for(store: Store, place: str | None) -> Exchange:
    """The exchange of a run with shards, which all of them must reach: in the output, or at the place given."""
    if place is None and store.local:
        return FolderExchange(store.path / INTERNAL / "work")
    if place is None:
        return StoreExchange(f"{store.root.rstrip('/')}/{INTERNAL}/work", store.storage_options, store.work())
    if not is_remote(place):
        return FolderExchange(Path(place.removeprefix("file://")).absolute() / store.work_name)
    return StoreExchange(f"{place.rstrip('/')}/{store.work_name}", store.storage_options, store.work())


def _recorded_sink(ledger: Ledger) -> Sink:
    """The sink of the run, as the plan in its ledger describes it."""
    assert ledger.plan is not None
    try:
        ((name, parameters),) = ledger.plan["sink"].items()
        sink = find_operator(name)(**parameters)
        if not isinstance(sink, Sink):
            raise TypeError(f"`{name}` does not write rows")
    except (TamisError, ValueError, TypeError, AttributeError) as error:
        raise LedgerError(
            f"the writer of the run in {ledger.store.root} cannot be made again: {error}",
            hint="rerun one of its shards: the last one merges",
        ) from error
    return sink


def stages_of(ledger: Ledger) -> list[list[Commit]]:
    """The commits of a run with shards, by stage and in source order."""
    assert ledger.plan is not None
    stages: list[list[Commit]] = [[] for _ in range(ledger.plan["stages"])]
    for commit in sorted(ledger.commits.values(), key=lambda each: each.partition):
        stages[commit.stage].append(commit)
    return stages


def is_complete(ledger: Ledger) -> bool:
    """Whether every partition of the last stage is committed."""
    assert ledger.plan is not None
    return len({commit.partition for commit in stages_of(ledger)[-1]}) == ledger.plan["partitions"]


def incomplete_shards(ledger: Ledger) -> list[ShardState]:
    """The shards that miss partitions of the first stage that is not complete."""
    assert ledger.plan is not None
    if is_complete(ledger):
        return []
    for commits in stages_of(ledger):
        done = {commit.partition for commit in commits}
        missing = missing_by_shard(done.__contains__, ledger.plan["partitions"], ledger.plan["shards"])
        if missing:
            return [ShardState(n, count, tuple(ledger.sessions.get(n, ()))) for n, count in sorted(missing.items())]
    return []


def merge_into(
    ledger: Ledger,
    sink: Sink,
    exchange: Exchange,
    emit: Events,
    *,
    limit: FailureLimit | None = None,
    partial: bool = False,
) -> Report:
    """Finish the run in a ledger that is open and locked."""
    plan, store = ledger.plan, ledger.store
    assert plan is not None
    missing = incomplete_shards(ledger)
    if missing and not partial:
        count = plan["shards"]
        raise ShardsMissing(
            "\n".join([f"{len(missing)} of {count} shards are not complete", *map(str, missing)]),
            hint=f"rerun them, for example with --shard {missing[0].number}/{count}; they resume. "
            "`tamis merge --partial` publishes what is complete and closes the run",
        )
    remove_unowned(store, ledger)
    agree_on_types(ledger, sink, stages_of(ledger)[-1], emit)
    report = _report(ledger, [str(state) for state in missing])
    failures = FailureWatch(limit or FailureLimit(**plan["max_failed"]))
    committed = [(number, commit.account) for number, commits in enumerate(stages_of(ledger)) for commit in commits]
    failures.begin(plan["num_files"], plan["damaged_files"], committed)
    try:
        failures.check(output=store.root, final=True)
    except TooManyFailed as error:
        report.state = "failed"
        report.notes.append(error.message)
        store.write(f"{INTERNAL}/report.json", report.as_text())
        raise
    store.write(f"{INTERNAL}/report.json", report.as_text())
    if missing:
        ledger.append([{"kind": "closed"}])
    else:
        _clean_up(ledger, exchange)  # first: a run that is finished is never merged again
        ledger.append([{"kind": "finished", "report": report.as_dict()}])
        if plan["card"]:
            write_card(ledger, sink, plan["recipe"], report, plan["license"])
    emit(RunFinished(report))
    return report


def _report(ledger: Ledger, notes: list[str]) -> Report:
    """The report of the whole run, from the accounts of its partitions and what shards recorded at their ends."""
    assert ledger.plan is not None
    accounts = []
    for commits in stages_of(ledger):
        total = Account()
        for commit in commits:
            total.add(commit.account)
        accounts.append(total)
    shards: list[dict[str, Any]] = []
    for number, sessions in sorted(ledger.sessions.items()):
        own = [each for each in sessions if each["by"] == number]
        shards.append(
            {
                "shard": number,
                "hosts": list(dict.fromkeys(str(each.get("host")) for each in sessions)),
                "seconds": round(sum(float(each.get("seconds", 0)) for each in own), 3),
                "peak_memory_bytes": max((int(each.get("peak_memory_bytes", 0)) for each in own), default=0),
                "sessions": len(sessions),
            }
        )
    ended = [each for sessions in ledger.sessions.values() for each in sessions if "memory" in each]
    report = Report.of(
        accounts,
        seconds=max((shard["seconds"] for shard in shards), default=0.0),
        peak_memory_bytes=max((shard["peak_memory_bytes"] for shard in shards), default=0),
        output=ledger.store.root,
    )
    report.damaged_files = {**ledger.plan["damaged_files"], **report.damaged_files}
    report.shards = shards
    report.memory = max(ended, key=lambda each: each.get("peak_memory_bytes", 0))["memory"] if ended else {}
    report.memory_events = [event for each in ended for event in each["memory_events"]]
    report.streams = [stream for each in ended for stream in each["streams"]]
    report.state = "interrupted" if notes else "finished"
    report.notes = [*ledger.plan["notes"], *notes]
    waiting = sum(before.kept - after.read for before, after in pairwise(accounts))
    if notes and waiting:
        report.notes.append(
            f"not in the output: {plural(waiting, 'row')} that a step can decide about only with those of all shards"
        )
    return report


def _clean_up(ledger: Ledger, exchange: Exchange) -> None:
    """Remove intermediate files; facts and rows remain if the plan says so."""
    assert ledger.plan is not None
    remove_attempts(ledger.store)
    if not ledger.plan["keep_work"]:
        exchange.delete()
        return
    exchange.delete_drafts()
    for stage in range(ledger.plan["stages"]):
        exchange.sub(f"stage-{stage}").delete(RESOLVE)
        exchange.sub(f"stage-{stage}").delete(spill.FATES)
