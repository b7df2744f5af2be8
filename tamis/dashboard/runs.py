"""A run as a page shows it, from what its output folder records: the report, the manifest, and the event log while it runs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from tamis.account import Account
from tamis.errors import TamisError
from tamis.eventlog import FOLDER, read_states
from tamis.executors.merging import stages_of
from tamis.ledger import Ledger
from tamis.lock import NAME, lock_of
from tamis.logs import SHARDS
from tamis.report import Report
from tamis.store import INTERNAL, Store

QUIET_S = 5.0
"""A run whose log is this old and whose lock nobody holds has ended without a report: it was killed."""


@dataclass
class RunView:
    """What is known about a run at one moment."""

    output: str
    store: Store
    report: Report
    state: str
    """running, finished, interrupted, failed, unchanged, shard, ended (killed), or empty (nothing there)."""
    manifest: dict[str, Any] = field(default_factory=dict)
    log: dict[str, Any] = field(default_factory=dict)
    """The event log; {} if the run kept none."""
    shards: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The event logs of shards, if there are several."""
    error: str = ""
    title: str = ""
    """A name that tells it from other runs on the same page."""

    @property
    def name(self) -> str:
        return self.title or PurePosixPath(self.output.rstrip("/")).name or self.output

    @property
    def live(self) -> bool:
        return self.state == "running"

    @property
    def steps(self) -> list[tuple[str, dict[str, Any]]]:
        """The steps of the recipe: name and parameters."""
        found: list[tuple[str, dict[str, Any]]] = []
        recipe = self.manifest.get("recipe")
        for step in recipe.get("steps", []) if isinstance(recipe, dict) else []:
            if isinstance(step, str):
                found.append((step, {}))
            elif isinstance(step, dict) and len(step) == 1:
                ((name, given),) = step.items()
                found.append((str(name), dict(given or {})))
        return found

    @property
    def elapsed_s(self) -> float:
        if self.live or self.state == "ended":
            return max(0.0, float(self.log.get("updated", 0)) - float(self.log.get("started", 0)))
        return self.report.seconds

    @property
    def knows_kept(self) -> bool:
        """Whether it is known how many rows are kept: not before the last stage of the plan, which writes them, has begun."""
        stages, plan = self.log.get("stages") or {}, self.log.get("plan") or []
        return bool(self.report.kept) or self.state == "finished" or len(stages) >= len(plan)

    @property
    def progress(self) -> float | None:
        """The share of the work that is done, by bytes of the current stage and by stages."""
        stages, plan = self.log.get("stages") or {}, self.log.get("plan") or []
        if not stages or not plan:
            return None
        done = 0.0
        for stage in stages.values():
            todo = stage["num_bytes"]
            left = 1.0 if not stage["partitions"] else min(1.0, stage["done_bytes"] / todo) if todo else 0.0
            done += max(left, stage["committed"] / stage["partitions"] if stage["partitions"] else 1.0)
        return min(1.0, done / len(plan))

    @property
    def seconds_left(self) -> float | None:
        share = self.progress
        return self.elapsed_s * (1 - share) / share if share and self.elapsed_s > 2 else None


def load_run(output: str, storage_options: Mapping[str, Any] | None = None) -> RunView:
    """Read what there is. Nothing in the folder has to exist or to be whole."""
    store = Store(output, storage_options)
    states = _of_last_run(read_states(store))
    stored = _json(store, "report")
    manifest = _json(store, "manifest") or {}
    try:
        report = Report(**stored) if stored is not None else None
    except TypeError:
        report = None
    log = _joined(states)
    if "run" not in states and states:
        _count_commits(store, log)
        if report is not None and not report.shards:
            report = None  # that of an earlier run, which had no shards
    state, error = _state(store, states, report)
    view = RunView(output, store, report or Report(output=output), state, manifest, log, {}, error)
    view.shards = {name: each for name, each in states.items() if name != "run"}
    if state in ("running", "ended") or report is None or (state == "failed" and report.state != "failed"):
        view.report = _report_so_far(log, output, state)
    return view


def version_of(store: Store) -> tuple[Any, ...]:
    """Changes when a page of the run may change."""
    names = [f"{INTERNAL}/report.json", *(f"{FOLDER}/{name}" for name in store.names(FOLDER) if name.endswith(".json"))]
    if not store.local:
        return tuple((name, store.size(name)) for name in names), int(time.time() / 10)
    found = []
    for name in names:
        try:
            status = (store.path / name).stat()
        except OSError:
            continue
        found.append((name, status.st_size, status.st_mtime_ns))
    return tuple(found)


def _of_last_run(states: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The logs of the last run: that of a run without shards, or those of shards."""
    last = max(states, key=lambda name: _updated(states[name]), default="")
    return {name: state for name, state in states.items() if (name == "run") == (last == "run")}


def _updated(state: Mapping[str, Any]) -> float:
    return float(state.get("updated") or 0)


def _state(store: Store, states: Mapping[str, Mapping[str, Any]], report: Report | None) -> tuple[str, str]:
    """The state of a run, and its error if it ended with one."""
    finished = max((_updated(state) for state in states.values() if state.get("state") == "finished"), default=0.0)
    # A shard that was killed stays "running" in its log, also after another one has done its work and merged.
    running = [state for state in states.values() if state.get("state") == "running" and _updated(state) >= finished]
    if running:
        newest = max(_updated(state) for state in running)
        if _is_locked(store, states) or time.time() - newest < QUIET_S:
            return "running", ""
        if report is None or len(running) == 1:
            return "ended", "The run ended without a report: its process was killed. Rerun the same command to resume."
    last = max(states.values(), key=_updated, default=None)
    if last is not None and last.get("state") in ("failed", "interrupted"):
        return str(last["state"]), str(last.get("error") or "")
    if report is not None:
        return report.state, ""
    return ("empty", "") if last is None else (str(last.get("state")), "")


def _is_locked(store: Store, states: Mapping[str, Any]) -> bool:
    locks = [f"{SHARDS}/{name.removeprefix('shard-')}.lock" for name in states if name.startswith("shard-")]
    try:
        return any(lock_of(store, name).holder() is not None for name in (NAME, *locks))
    except (TamisError, OSError):
        return False


def _joined(states: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """One log from those of all shards: accounts are added, and measurements are those of the shard that runs longest."""
    if not states:
        return {}
    if len(states) == 1 or "run" in states:
        return states.get("run") or next(iter(states.values()))
    logs = sorted(states.values(), key=lambda state: -len(state.get("samples", ())))
    joined = dict(logs[0])
    joined["started"] = min(float(state.get("started", 0)) for state in logs)
    joined["updated"] = max(float(state.get("updated", 0)) for state in logs)
    joined["events"] = sum(int(state.get("events", 0)) for state in logs)
    stages: dict[str, dict[str, Any]] = {}
    for state in logs:
        for number, stage in state["stages"].items():
            mine = stages.get(number)
            if mine is None:
                stages[number] = dict(stage)
                continue
            account = Account.from_dict(mine["account"])
            account.add(Account.from_dict(stage["account"]))
            mine["account"] = account.as_dict()
            for key in ("partitions", "committed", "num_bytes", "done_bytes", "rows_in_progress", "workers"):
                mine[key] += stage[key]
    joined["stages"] = stages
    return joined


def _count_commits(store: Store, log: dict[str, Any]) -> None:
    """Replace the accounts in the logs of shards by what the ledger says: a shard may do the work of another one."""
    ledger = Ledger(store)
    try:
        ledger.load()
    except (TamisError, OSError):
        return
    for number, commits in enumerate(stages_of(ledger) if ledger.shards else ()):
        stage = log["stages"].get(str(number))
        if stage is not None:
            account = Account()
            for commit in commits:
                account.add(commit.account)
            log["stages"] |= {str(number): stage | {"account": account.as_dict()}}


def _report_so_far(log: Mapping[str, Any], output: str, state: str) -> Report:
    stages = log.get("stages") or {}
    accounts = [Account.from_dict(stages[number]["account"]) for number in sorted(stages, key=int)]
    seconds = max(0.0, float(log.get("updated", 0)) - float(log.get("started", 0)))
    report = Report.of(accounts, seconds=seconds, peak_memory_bytes=int(log.get("peak_bytes", 0)), output=output)
    if len(accounts) < len(log.get("plan") or accounts):
        report.kept = 0  # nothing is written before the last stage
    report.state = state
    report.notes = [each["text"] for each in log.get("remarks", ()) if each.get("kind") == "note"]
    return report


def _json(store: Store, what: str) -> dict[str, Any] | None:
    try:
        found = json.loads(store.read(f"{INTERNAL}/{what}.json") or b"null")
    except (ValueError, OSError):
        return None
    return found if isinstance(found, dict) else None
