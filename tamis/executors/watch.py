"""Watches the memory of a run: writes snapshots to disk, sends alerts, and acts on them.

The monitor measures in its own thread and only puts results into a queue; everything else happens in the driver's loop,
between two messages from workers.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from tamis.events import Events, GpuSampled, MemoryAlert, MemorySampled, Note
from tamis.executors.executor import Session
from tamis.memory.alerts import Action, Alert, AlertDesk, AlertRules, parse_alerts
from tamis.memory.governor import Governor
from tamis.memory.leaks import Leak
from tamis.memory.monitor import MemoryMonitor
from tamis.memory.tree import Snapshot
from tamis.parameters import format_bytes
from tamis.store import INTERNAL, TABLE, Store


def gpus_of(snapshot: Snapshot) -> tuple[GpuSampled, ...]:
    """The GPUs of a snapshot, for events."""
    pids = {process.pid for process in snapshot.processes}
    return tuple(
        GpuSampled(gpu.index, gpu.used_bytes, gpu.total_bytes, gpu.held_by(pids), gpu.owners()) for gpu in snapshot.gpus
    )


class Watch:
    """Measures the process tree of a run and acts on alerts; use as a context manager and call `tick` often."""

    def __init__(
        self, store: Store, governor: Governor, executor: Session, emit: Events, alerts: Mapping[str, Any] | None
    ) -> None:
        self.store, self.governor, self.executor, self.emit = store, governor, executor, emit
        settings = parse_alerts(alerts or {})
        self._budget = governor.budget.total_bytes
        self.thresholds = settings.thresholds
        self._rules = AlertRules(self.thresholds, self._budget)
        self.remedy = settings.remedy_name
        self._pausing: set[str] = set()
        """The kinds of alert that keep new partitions from being started."""
        self._desk = AlertDesk(
            settings.receivers(),
            log=self._log,
            remedy=settings.remedy,
            on_problem=lambda text: self._found.put(Note(text)),
        )
        self._found: queue.SimpleQueue[Snapshot | Alert | Note] = queue.SimpleQueue()
        before = governor.budget.before_bytes
        self.monitor = MemoryMonitor(
            os.getpid(),
            roles=executor.roles,
            on_snapshot=self._hear,
            before_bytes=before,
            packet_bytes=executor.packet_bytes,
            limits=executor.limits,
            on_overuse=executor.on_overuse,
            whole_tree=executor.whole_tree,
            only_new=True,
        )
        executor.hooks.on_gpus = self.monitor.hear
        executor.hooks.on_leak = self._leaks
        self._stack = ExitStack()

    @property
    def peak_bytes(self) -> int:
        """The most memory that the run held; on a cluster, on one node."""
        here = self.monitor.peak.held_bytes if self.monitor.peak is not None else 0
        return max([here, *(node["peak_bytes"] for node in self.executor.hooks.nodes.values())])

    def gpu_figures(self) -> list[dict[str, Any]]:
        """For the report: the budget and the peak of each GPU, by owner; nothing for a run that used none."""
        budgets = {gpu.name: gpu.budget_bytes for gpu in self.governor.budget.gpus}
        return [
            asdict(peak) | {"budget_bytes": budgets.get(str(index))}
            for index, peak in sorted(self.monitor.gpu_peaks.items())
            if budgets or peak.own_bytes
        ]

    def notes(self) -> list[str]:
        """For the report: that the budget was exceeded, if it was."""
        if self.peak_bytes <= self._budget:
            return []
        return [
            f"the run held up to {format_bytes(self.peak_bytes)}, more than its budget of {format_bytes(self._budget)}"
        ]

    def __enter__(self) -> Watch:
        self._stack.enter_context(self._desk)
        self._stack.enter_context(self.monitor)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def save(self, name: str = f"{INTERNAL}/memory{TABLE}") -> None:
        """Write the snapshots taken so far beside the output."""
        self.monitor.sample()
        self.store.write(name, self.monitor.to_parquet())

    def _hear(self, snapshot: Snapshot) -> None:
        """Called in the monitor's thread."""
        self._found.put(snapshot)
        for alert in self._rules.check(snapshot):
            self._found.put(alert)

    def tick(self) -> None:
        """In the driver: emit what was measured and act on alerts."""
        while True:
            try:
                found = self._found.get_nowait()
            except queue.Empty:
                return
            if isinstance(found, Alert):
                self.handle(found)
            elif isinstance(found, Note):
                self.emit(found)
            else:
                age = self.monitor.elapsed_s - found.elapsed_s
                self.emit(MemorySampled(found.held_bytes, self.peak_bytes, self._budget, gpus_of(found), age))

    def _leaks(self, leak: Leak) -> bool:
        """Handle a leak; returns whether to replace the worker."""
        action = self._desk.handle(Alert.of_leak(leak, self.governor.worker_bytes))
        if action == "shrink":
            self.governor.tighten()
        return action == "recycle"  # a leak does not end, so it never pauses the run

    def handle(self, alert: Alert) -> None:
        action = self._desk.handle(alert)
        self._pausing.discard(alert.kind)
        if action == "pause":
            self._pausing.add(alert.kind)
        elif action == "recycle":
            self.executor.recycle()
        elif action == "shrink":
            self.governor.tighten()
        if self.executor.pause(paused=bool(self._pausing)) and self._pausing:
            self.governor.paused()

    def _log(self, alert: Alert, action: Action | None) -> None:
        self.emit(MemoryAlert(alert.kind, alert.level, alert.value, alert.limit, alert.message, action))
