"""Traces of a real run, received by a collector on this machine."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tamis import JsonlReader, JsonlWriter, Pipeline
from tamis.cli import main
from tamis.dedup import FuzzyDedup
from tamis.monitoring.tracing import Tracing


@pytest.fixture
def collector(monkeypatch):
    """A server that receives traces as OTLP over HTTP; the spans that it received."""
    received = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            import gzip

            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            received.append((self.path, ExportTraceServiceRequest.FromString(body)))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=data")
    yield received
    server.shutdown()
    server.server_close()
    thread.join()


def spans_of(received):
    return [
        span
        for path, request in received
        if path == "/v1/traces"
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def write_input(folder):
    texts = [
        "a text about nothing in particular " * 5,
        "a text about nothing in particular " * 5,
        "another one entirely",
    ]
    (folder / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def test_a_run_is_a_tree_of_spans(collector, tmp_path):
    write_input(tmp_path)
    with Tracing() as tracing:
        Pipeline(JsonlReader(str(tmp_path / "in.jsonl")), FuzzyDedup(), JsonlWriter(str(tmp_path / "out"))).run(
            on_event=tracing, executor="inline"
        )
    spans = spans_of(collector)
    names = {span.span_id: span.name for span in spans}
    parents = {(span.name, names.get(span.parent_span_id)) for span in spans}
    assert {("run", None), ("stage 1", "run"), ("stage 2", "run")} <= parents
    assert {("partition", "stage 1"), ("partition", "stage 2")} <= parents
    assert {parent for name, parent in parents if name.startswith("gather: ")} == {"stage 1"}
    assert len({span.trace_id for span in spans}) == 1
    (partition,) = [span for span in spans if span.name == "partition" and names[span.parent_span_id] == "stage 2"]
    attributes = {each.key: each.value.int_value for each in partition.attributes}
    assert (attributes["tamis.rows.read"], attributes["tamis.rows.kept"]) == (3, 2)
    resource = {each.key: each.value.string_value for each in collector[0][1].resource_spans[0].resource.attributes}
    assert (resource["service.name"], resource["team"]) == ("tamis", "data")


def test_the_option_sends_traces_of_a_recipe(collector, tmp_path, monkeypatch):
    write_input(tmp_path)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "curation")
    arguments = ["run", "length", "--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out")]
    assert main([*arguments, "--executor", "inline", "--trace", "--quiet"]) == 0
    assert {span.name for span in spans_of(collector)} == {"run", "stage 1", "partition"}
    resource = {each.key: each.value.string_value for each in collector[0][1].resource_spans[0].resource.attributes}
    assert resource["service.name"] == "curation"


def test_a_run_that_raises_ends_its_spans_with_an_error(collector, tmp_path):
    write_input(tmp_path)

    def fails(row):
        raise ValueError("no")

    with pytest.raises(Exception, match="no"), Tracing() as tracing:
        Pipeline(JsonlReader(str(tmp_path / "in.jsonl")), fails).run(on_event=tracing, executor="inline")
    (run,) = [span for span in spans_of(collector) if span.name == "run"]
    assert run.status.code == 2
