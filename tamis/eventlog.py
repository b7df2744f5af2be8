"""The event log of a run: what its events add up to, in one small file that other processes can read while it runs.

    events --> EventLog --thread, once a second--> OUTPUT/.tamis/events/run.json       a shard: shard-0003.json

The file is replaced as a whole, so that a reader sees a state and never half of one. It stays small however long a run takes:
measurements are thinned out with age, and of remarks the first and the last are kept. Nothing depends on it: if it cannot be
written, the run continues.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tamis.account import Account
from tamis.errors import Interrupted, TamisError
from tamis.events import (
    CallsFinished,
    Event,
    KernelsCompiling,
    LeakFound,
    MemoryAction,
    MemoryAlert,
    MemorySampled,
    Note,
    PartitionCommitted,
    PartitionProgress,
    PartitionStarted,
    RunFinished,
    RunStarted,
    StageStarted,
    Stopping,
    WorkCommittedBefore,
    WorkerDied,
)
from tamis.memory.leaks import Thinned
from tamis.store import INTERNAL, Store

FOLDER = f"{INTERNAL}/events"

EVERY_S, EVERY_S_REMOTE = 1.0, 15.0
"""How often the file is replaced: on a disk, and in an object store, where each time is a request."""

LATE_S = 1.0
"""A sample of memory that arrives later belongs to the counts before."""
MOST_SAMPLES = 600
MOST_REMARKS = 200
MOST_CALLS = 100
LONGEST_TEXT = 500


@dataclass
class _StageState:
    """A stage: what is left of it, and what was done."""

    name: str
    partitions: int
    committed_before: int
    num_bytes: int
    started_s: float
    last_s: float
    committed: int = 0
    done_bytes: int = 0
    account: Account = field(default_factory=Account)
    in_progress: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Worker, rows and bytes of each partition that is being processed."""

    def as_dict(self) -> dict[str, Any]:
        running = self.in_progress.values()
        return {
            "name": self.name,
            "partitions": self.partitions,
            "committed_before": self.committed_before,
            "committed": self.committed,
            "num_bytes": self.num_bytes,
            "done_bytes": self.done_bytes + sum(size for _, _, size in running),
            "rows_in_progress": sum(rows for _, rows, _ in running),
            "workers": len({worker for worker, _, _ in running}),
            "started_s": round(self.started_s, 2),
            "last_s": round(self.last_s, 2),
            "account": self.account.as_dict(),
        }


class EventLog:
    """A subscriber that keeps the event log; use it as a context manager, which notes how the run ended."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock
        self.name = f"{FOLDER}/{store.part or 'run'}.json"
        self._lock = threading.RLock()  # a signal handler may emit an event while another one is handled
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._began = clock()
        self._state: dict[str, Any] = {"version": 1, "state": "running", "started": self._began}
        self._stages: dict[int, _StageState] = {}
        self._before: dict[int, Account] = {}
        self._current: int | None = None
        self._samples: Thinned[list[float]] = Thinned(MOST_SAMPLES)
        self._counted: list[int] = [0, 0, 0, 0]
        """The stage, rows, bytes and kept rows of the last sample."""
        self._first: list[dict[str, Any]] = []
        self._last: deque[dict[str, Any]] = deque(maxlen=MOST_REMARKS // 2)
        self._calls: deque[dict[str, Any]] = deque(maxlen=MOST_CALLS)
        self._count = 0
        self._written = -1

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._thread is None:
            return
        if error is not None:
            stopped = isinstance(error, (Interrupted, KeyboardInterrupt))
            message = error.message if isinstance(error, TamisError) else f"{type(error).__name__}: {error}"
            with self._lock:
                self._state |= {"state": "interrupted" if stopped else "failed", "error": message[:LONGEST_TEXT]}
        self._ended.set()
        self._thread.join()
        self._write(final=True)

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._count += 1
            self._take(event)
            if isinstance(event, StageStarted) and self._thread is None:
                # Not earlier, so that a run with nothing to do leaves the log of the one that did the work.
                self._thread = threading.Thread(target=self._keep_writing, name="tamis-events", daemon=True)
                self._thread.start()

    def _take(self, event: Event) -> None:
        now = self._clock() - self._began
        match event:
            case PartitionProgress() if stage := self._stages.get(event.stage):
                stage.in_progress[event.partition] = (event.worker, event.rows, event.num_bytes)
            case PartitionStarted() if stage := self._stages.get(event.stage):
                stage.in_progress[event.partition] = (event.worker, 0, 0)
            case PartitionCommitted() if stage := self._stages.get(event.stage):
                stage.in_progress.pop(event.partition, None)
                stage.committed += 1
                stage.done_bytes += event.num_bytes
                stage.last_s = now
                stage.account.add(Account.from_dict(event.account))
            case MemorySampled():
                self._sample(now, event)
            case RunStarted():
                self._state |= {
                    "output": event.output,
                    "plan": list(event.stages),
                    "workers": event.workers,
                    "budget_bytes": event.budget_bytes,
                    "partitions": event.partitions,
                    "committed_before": event.committed,
                }
                for note in event.notes:
                    self._remark("note", note)
            case WorkCommittedBefore():
                self._before[event.stage] = event.account
            case StageStarted():
                started = _StageState(event.name, event.partitions, event.committed, event.num_bytes, now, now)
                started.account.add(self._before.pop(event.stage, Account()))
                self._stages[event.stage] = started
                self._current = event.stage
            case CallsFinished():
                self._calls.append(
                    {
                        "stage": event.stage,
                        "name": event.name,
                        "calls": event.calls,
                        "from_s": round(now - event.seconds, 2),
                        "to_s": round(now, 2),
                    }
                )
            case RunFinished():
                self._state["state"] = event.report.state
            case _:
                self._other(event)

    def _other(self, event: Event) -> None:
        match event:
            case WorkerDied():
                for stage in self._stages.values():
                    if event.partition is not None:
                        stage.in_progress.pop(event.partition, None)
                where = f" in `{event.step}`" if event.step else ""
                self._remark("worker", f"worker {event.worker} died{where}: {event.how}")
            case MemoryAlert():
                self._remark(event.level, event.text)
            case MemoryAction() | Note():
                self._remark("memory" if isinstance(event, MemoryAction) else "note", event.text)
            case LeakFound():
                self._remark("leak", f"the memory of worker {event.worker} keeps growing in {event.stage}")
            case KernelsCompiling():
                self._remark("note", "a worker compiles kernels, which happens once on a machine")
            case Stopping():
                self._remark("stop", "abandoning partitions" if event.abandon else "finishing partitions in progress")
            case _:
                pass

    def _sample(self, now: float, event: MemorySampled) -> None:
        self._state["peak_bytes"], self._state["memory_bytes"] = event.peak_bytes, event.num_bytes
        stage = self._stages.get(self._current) if self._current is not None else None
        rows = size = kept = 0
        if stage is not None:
            rows = stage.account.read + sum(count for _, count, _ in stage.in_progress.values())
            size = stage.done_bytes + sum(each for _, _, each in stage.in_progress.values())
            kept = stage.account.kept
        counts = [self._current or 0, rows, size, kept]
        if event.age_s > LATE_S:  # what was counted since is not what was known then
            counts = self._counted
        self._counted = counts
        gpu = sum(each.own_bytes for each in event.gpus)
        self._samples.append([max(0.0, round(now - event.age_s, 2)), event.num_bytes, *counts, gpu])

    def _remark(self, kind: str, text: str) -> None:
        entry = {"time_s": round(self._clock() - self._began, 2), "kind": kind, "text": text[:LONGEST_TEXT]}
        (self._first if len(self._first) < MOST_REMARKS // 2 else self._last).append(entry)

    # ---------------------------------------------------------------------------------------------------------- writing

    def as_dict(self) -> dict[str, Any]:
        """The content of the file."""
        with self._lock:
            return self._state | {
                "updated": self._clock(),
                "events": self._count,
                "current": self._current,
                "stages": {str(number): stage.as_dict() for number, stage in sorted(self._stages.items())},
                "samples": list(self._samples),
                "remarks": [*self._first, *self._last],
                "calls": list(self._calls),
            }

    def _keep_writing(self) -> None:
        every_s = EVERY_S if self._store.local else EVERY_S_REMOTE
        while True:
            self._write()
            if self._ended.wait(every_s):
                return

    def _write(self, *, final: bool = False) -> None:
        state = self.as_dict()
        if state["events"] == self._written and not final:
            return
        self._written = state["events"]
        data = json.dumps(state, separators=(",", ":")).encode()
        try:
            if self._store.local:
                self._replace(data)
            else:
                self._store.write(self.name, data)
        except (OSError, TamisError):
            return  # the log is a view of the run; the run itself reports a disk that is full

    def _replace(self, data: bytes) -> None:
        """Replace the file without syncing it: after a crash of the machine an older state, or none, is as good."""
        path = self._store.path / self.name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".unfinished")
        draft.write_bytes(data)
        draft.replace(path)


def read_states(store: Store) -> dict[str, dict[str, Any]]:
    """The event logs of an output folder, by name: `run`, or one for each shard. Damaged ones are left out."""
    found = {}
    for name in store.names(FOLDER):
        if name.endswith(".json"):
            try:
                state = json.loads(store.read(f"{FOLDER}/{name}") or b"null")
            except ValueError:
                continue
            if isinstance(state, dict) and state.get("version") == 1 and isinstance(state.get("stages"), dict):
                found[name.removesuffix(".json")] = state
    return found
