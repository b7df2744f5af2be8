"""Traces of a run for OpenTelemetry: a span for the run, and in it for stages, partitions and the phases of a Gather.

    run
      stage 1: jsonl_reader > word_count > fuzzy_dedup
        partition 0 ...
        gather: candidate pairs
      stage 2: spilled_rows > jsonl_writer
        partition 0 ...

The exporter speaks OTLP over HTTP and is set by the standard environment variables: `OTEL_EXPORTER_OTLP_ENDPOINT`,
`OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_TRACES_SAMPLER` and others. Spans are sent
from a thread; if the collector is slow or absent they are dropped, and the run is not affected.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from tamis.errors import TamisError
from tamis.events import (
    CallsFinished,
    Event,
    MemoryAction,
    MemoryAlert,
    PartitionCommitted,
    PartitionStarted,
    RunFinished,
    RunStarted,
    StageStarted,
    WorkerDied,
)
from tamis.inert import one_line

MOST_CHARS = 300
FLUSH_MS = 10_000


class Tracing:
    """A subscriber that makes spans of events; use it as a context manager.

    with Tracing() as tracing:
        pipeline.run(on_event=tracing)
    """

    def __init__(self) -> None:
        trace, sdk = _packages()
        attributes = {"service.name": "tamis"}
        resource = sdk["Resource"](attributes).merge(sdk["Resource"].create())
        if resource.attributes.get("service.name", "").startswith("unknown_service"):
            resource = resource.merge(sdk["Resource"](attributes))
        self._provider = sdk["TracerProvider"](resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(sdk["BatchSpanProcessor"](sdk["OTLPSpanExporter"]()))
        self._trace = trace
        self._tracer = self._provider.get_tracer("tamis")
        self._lock = threading.Lock()
        self._run: Any = None
        self._stages: dict[int, Any] = {}
        self._partitions: dict[tuple[int, int], Any] = {}

    def __enter__(self) -> Tracing:
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._end_all(failed=error[0] is not None)
        self._provider.force_flush(FLUSH_MS)
        self._provider.shutdown()

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._handle(event)

    def _handle(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._run = self._tracer.start_span(
                    "run",
                    attributes={
                        "tamis.output": one_line(event.output or "", MOST_CHARS),
                        "tamis.workers": event.workers,
                        "tamis.partitions": event.partitions,
                        "tamis.committed": event.committed,
                        "tamis.memory.budget_bytes": event.budget_bytes,
                    },
                )
            case StageStarted() if event.partitions:
                for stage in self._stages.values():
                    stage.end()
                self._stages = {event.stage: self._start(f"stage {event.stage + 1}", self._run)}
                self._stages[event.stage].set_attributes(
                    {"tamis.stage.steps": one_line(event.name, MOST_CHARS), "tamis.partitions": event.partitions}
                )
            case PartitionStarted():
                self._end(event.stage, event.partition, "tried again")
                span = self._start("partition", self._stages.get(event.stage))
                span.set_attributes({"tamis.partition": event.partition, "tamis.worker": event.worker})
                self._partitions[event.stage, event.partition] = span
            case PartitionCommitted():
                span = self._partitions.pop((event.stage, event.partition), None)
                if span is not None:
                    span.set_attributes(
                        {
                            "tamis.rows.read": event.account.get("read", 0),
                            "tamis.rows.kept": event.account.get("kept", 0),
                            "tamis.bytes": event.num_bytes,
                        }
                    )
                    span.end()
            case CallsFinished():
                now = time.time_ns()
                name = one_line(event.name, MOST_CHARS).partition(",")[0]
                span = self._start(f"gather: {name}", self._stages.get(event.stage), now - int(event.seconds * 1e9))
                span.set_attribute("tamis.calls", event.calls)
                span.end(now)
            case WorkerDied():
                if event.partition is not None:
                    for stage, partition in list(self._partitions):
                        if partition == event.partition:
                            self._end(stage, partition, f"the worker died: {one_line(event.how, MOST_CHARS)}")
            case MemoryAlert() | MemoryAction():
                if self._run is not None:
                    self._run.add_event(f"memory {event.kind}", {"tamis.text": one_line(event.text, MOST_CHARS)})
            case RunFinished():
                self._end_all(failed=event.report.state == "failed")
            case _:
                pass

    def _start(self, name: str, parent: Any, start_ns: int | None = None) -> Any:
        context = self._trace.set_span_in_context(parent) if parent is not None else None
        return self._tracer.start_span(name, context=context, start_time=start_ns)

    def _end(self, stage: int, partition: int, problem: str) -> None:
        span = self._partitions.pop((stage, partition), None)
        if span is not None:
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, problem))
            span.end()

    def _end_all(self, *, failed: bool) -> None:
        for stage, partition in list(self._partitions):
            self._end(stage, partition, "not finished")
        for span in self._stages.values():
            span.end()
        self._stages = {}
        if self._run is not None:
            if failed:
                self._run.set_status(self._trace.Status(self._trace.StatusCode.ERROR, "the run failed"))
            self._run.end()
            self._run = None


def _packages() -> tuple[Any, dict[str, Any]]:
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise TamisError(
            f"traces need the packages of OpenTelemetry: {error}", hint='pip install "tamis[tracing]"'
        ) from error
    names = {
        "OTLPSpanExporter": OTLPSpanExporter,
        "Resource": Resource,
        "TracerProvider": TracerProvider,
        "BatchSpanProcessor": BatchSpanProcessor,
    }
    return trace, names
