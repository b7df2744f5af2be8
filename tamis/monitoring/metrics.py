"""Metrics of a run for Prometheus, at `http://127.0.0.1:PORT/metrics`.

    events --> Metrics.__call__    adds to counters, a few microseconds per event
    scrape --> Metrics.collect     in the thread of the server, under the same lock

Names follow the conventions of Prometheus: base units (bytes, seconds, ratios), and `_total` for what only grows. Labels come
from recipes and, as reasons of drops, perhaps from data, so their number and their length are bounded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tamis.errors import ParameterError, TamisError
from tamis.events import (
    CallsFinished,
    Event,
    MemoryAction,
    MemoryAlert,
    MemorySampled,
    PartitionCommitted,
    PartitionProgress,
    PoolsSampled,
    RunFinished,
    RunStarted,
    StageStarted,
    WorkerDied,
)
from tamis.inert import one_line
from tamis.progress import Tally

if TYPE_CHECKING:
    from prometheus_client.core import Metric

LOOPBACK = "127.0.0.1"
MOST_LABELS = 100
"""Different values of a label; what comes later counts as "other"."""
LABEL_CHARS = 120
OTHER = "other"


class Labels:
    """Values of a label: harmless, short, and not too many.

    >>> labels = Labels(most=1)
    >>> labels("words < 50"), labels("a reason\\nmade of data"), labels("words < 50")
    ('words < 50', 'other', 'words < 50')
    """

    def __init__(self, most: int = MOST_LABELS) -> None:
        self._most = most
        self._known: dict[str, str] = {}

    def __call__(self, value: object) -> str:
        text = one_line(value, LABEL_CHARS)
        if text not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known[text] = text
        return text


class Metrics:
    """A subscriber to the events of a run that serves them to Prometheus while it is open; use it as a context manager.

        with Metrics(9464) as metrics:
            pipeline.run(on_event=metrics)

    Port 0 chooses a free one, which `port` then has. Only programs on this machine can connect.
    """

    def __init__(self, port: int = 0, address: str = LOOPBACK) -> None:
        if not 0 <= port <= 65535:
            raise ParameterError(f"a port is a number from 0 to 65535, got {port}")
        self.port, self._address = port, address
        self._lock = threading.Lock()
        self._tally = Tally()
        self._labels = {name: Labels() for name in ("stage", "step", "reason", "pool", "kind", "phase")}
        self._counts: dict[str, dict[tuple[str, ...], float]] = {}
        self._gauges: dict[str, dict[tuple[str, ...], float]] = {}
        self._started = 0.0
        self._state = "starting"
        self._server: Any = None

    # ---------------------------------------------------------------------------------------------------------- serving

    def __enter__(self) -> Metrics:
        client = _client()
        registry = client.CollectorRegistry(auto_describe=False)
        registry.register(self)
        try:
            self._server, self._thread = client.start_http_server(self.port, addr=self._address, registry=registry)
        except OSError as error:
            raise TamisError(
                f"metrics cannot be served on port {self.port}: {error.strerror or error}",
                hint="another program may use the port; choose another one, or 0 for any that is free",
            ) from error
        self.port = self._server.server_port
        return self

    def __exit__(self, *error: object) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = None

    @property
    def url(self) -> str:
        return f"http://{self._address}:{self.port}/metrics"

    # ------------------------------------------------------------------------------------------------------------ events

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._tally(event)
            self._count(event)

    def _count(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._started, self._state = time.time(), "running"
            case StageStarted():
                stage = self._stage(event.stage)
                self._set("stage_partitions", event.partitions + event.committed, stage)
                self._add("partitions_committed", event.committed, stage)
            case PartitionCommitted():
                self._commit(event)
            case PoolsSampled():
                self._sample(event)
            case MemorySampled():
                self._set("memory_bytes", event.num_bytes)
                self._set("memory_peak_bytes", event.peak_bytes)
                self._set("memory_budget_bytes", event.budget_bytes)
                for gpu in event.gpus:
                    self._set("gpu_memory_used_bytes", gpu.used_bytes, str(gpu.index))
                    self._set("gpu_memory_total_bytes", gpu.total_bytes, str(gpu.index))
                    self._set("gpu_memory_run_bytes", gpu.own_bytes, str(gpu.index))
                if self._tally.current is not None:
                    stage = self._stage(self._tally.current)
                    self._set_peak("stage_memory_peak_bytes", event.num_bytes, stage)
                    for gpu in event.gpus:
                        self._set_peak("stage_gpu_memory_peak_bytes", gpu.own_bytes, stage, str(gpu.index))
            case CallsFinished():
                phase = self._labels["phase"](event.name.partition(",")[0])
                self._add("gather_seconds", event.seconds, self._stage(event.stage), phase)
                self._add("gather_calls", event.calls, self._stage(event.stage), phase)
            case MemoryAlert():
                self._add("memory_alerts", 1, self._labels["kind"](event.kind), self._labels["kind"](event.level))
            case MemoryAction():
                self._add("memory_actions", 1, self._labels["kind"](event.kind))
            case WorkerDied():
                self._add("worker_deaths", 1)
            case RunFinished():
                self._state = str(event.report.state)
            case PartitionProgress() | _:
                pass  # the tally has it

    def _commit(self, event: PartitionCommitted) -> None:
        account, stage = event.account, self._stage(event.stage)
        self._add("partitions_committed", 1, stage)
        self._add("rows_kept", account.get("kept", 0), stage)
        for op in account.get("operators", ()):
            step = self._labels["step"](op["name"])
            self._add("step_rows_in", op["rows_in"], stage, step)
            self._add("step_rows_out", op["rows_out"], stage, step)
            self._add("step_seconds", op["seconds"], stage, step)
            self._add("step_bytes", op["num_bytes"], stage, step)
            self._add("rows_failed", op["failed"], stage, step)
            for reason, count in op["dropped"].items():
                self._add("rows_dropped", count, stage, step, self._labels["reason"](reason))

    def _sample(self, event: PoolsSampled) -> None:
        stage = self._stage(event.stage)
        for pool in event.pools:
            name = self._labels["pool"](pool.name)
            self._set("workers", pool.workers, stage, name)
            self._set("workers_busy", pool.busy, stage, name)
            self._set("queue_length", pool.waiting, stage, name)
        self._set("queue_bytes", event.packet_bytes, stage)

    def _stage(self, number: int) -> str:
        return self._labels["stage"](number + 1)

    def _add(self, name: str, amount: float, *labels: str) -> None:
        counts = self._counts.setdefault(name, {})
        counts[labels] = counts.get(labels, 0) + amount

    def _raise(self, name: str, value: float, *labels: str) -> None:
        """A counter never falls, though a partition that is tried again is read from its start."""
        counts = self._counts.setdefault(name, {})
        counts[labels] = max(counts.get(labels, 0), value)

    def _set(self, name: str, value: float, *labels: str) -> None:
        self._gauges.setdefault(name, {})[labels] = value

    def _set_peak(self, name: str, value: float, *labels: str) -> None:
        values = self._gauges.setdefault(name, {})
        values[labels] = max(values.get(labels, 0), value)

    # ---------------------------------------------------------------------------------------------------------- scraping

    def collect(self) -> Iterator[Metric]:
        """The metrics at the moment, for the client library."""
        from prometheus_client import core

        with self._lock:
            gauges = {name: dict(values) for name, values in self._gauges.items()}
            for number, stage in self._tally.stages.items():
                self._raise("rows_read", stage.rows_read, self._stage(number))
                self._raise("input_bytes", stage.seen_bytes, self._stage(number))
            counts = {name: dict(values) for name, values in self._counts.items()}
            gauges["progress_ratio"] = {(): self._tally.share}
            gauges["run_start_time_seconds"] = {(): self._started}
            gauges["run_up"] = {(): float(self._state in ("starting", "running"))}
        for name, (text, labels) in COUNTERS.items():
            family = core.CounterMetricFamily(f"tamis_{name}", text, labels=labels)
            for values, value in counts.get(name, {}).items():
                family.add_metric(values, value)
            yield family
        for name, (text, labels) in GAUGES.items():
            gauge = core.GaugeMetricFamily(f"tamis_{name}", text, labels=labels)
            for values, value in gauges.get(name, {}).items():
                gauge.add_metric(values, value)
            yield gauge


COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "rows_read": ("Rows that the stage has read, in partitions that are not committed too.", ("stage",)),
    "input_bytes": ("Bytes that the stage has read, decompressed.", ("stage",)),
    "rows_kept": ("Rows that the stage kept, in committed partitions.", ("stage",)),
    "rows_dropped": ("Rows that the step dropped, by reason.", ("stage", "step", "reason")),
    "rows_failed": ("Rows that failed in the step.", ("stage", "step")),
    "partitions_committed": ("Partitions of the stage that are done, those of earlier runs included.", ("stage",)),
    "step_rows_in": ("Rows given to the step.", ("stage", "step")),
    "step_rows_out": ("Rows that the step passed on.", ("stage", "step")),
    "step_seconds": ("Time that workers spent in the step.", ("stage", "step")),
    "step_bytes": ("Bytes of the columns given to the step.", ("stage", "step")),
    "gather_seconds": ("Time of a phase of a step that decides about all rows.", ("stage", "phase")),
    "gather_calls": ("Calls in workers of a phase of a step that decides about all rows.", ("stage", "phase")),
    "memory_alerts": ("Alerts about memory.", ("kind", "level")),
    "memory_actions": ("Actions to stay within the memory budget.", ("kind",)),
    "worker_deaths": ("Workers that exited unexpectedly.", ()),
}
"""Names without prefix and `_total`, with help and labels."""

GAUGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "run_up": ("1 while the run is in progress, 0 when it has ended.", ()),
    "run_start_time_seconds": ("When the run started, in seconds since 1970.", ()),
    "progress_ratio": ("The part of the run that is processed, from 0 to 1.", ()),
    "stage_partitions": ("Partitions of the stage.", ("stage",)),
    "workers": ("Worker processes of the stage.", ("stage", "pool")),
    "workers_busy": ("Workers of the stage that process rows.", ("stage", "pool")),
    "queue_length": ("Partitions or packets that wait for a worker.", ("stage", "pool")),
    "queue_bytes": ("Rows between stages in shared memory.", ("stage",)),
    "memory_bytes": ("Memory of all processes of the run.", ()),
    "memory_peak_bytes": ("The most memory that the run has held.", ()),
    "memory_budget_bytes": ("The memory budget of the run.", ()),
    "stage_memory_peak_bytes": (
        "The most memory that all processes of the run have held during the stage.",
        ("stage",),
    ),
    "gpu_memory_used_bytes": ("Memory of the GPU used by all processes.", ("gpu",)),
    "gpu_memory_total_bytes": ("Memory of the GPU.", ("gpu",)),
    "gpu_memory_run_bytes": ("Memory of the GPU used by the run.", ("gpu",)),
    "stage_gpu_memory_peak_bytes": (
        "The most memory of the GPU that the run has used during the stage.",
        ("stage", "gpu"),
    ),
}


def _client() -> Any:
    try:
        import prometheus_client
    except ImportError as error:
        raise TamisError("metrics need the package prometheus-client", hint='pip install "tamis[metrics]"') from error
    return prometheus_client
