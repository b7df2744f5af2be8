"""What progress, metrics and traces cost a run: CPU seconds of the subscribers over CPU seconds of the run.

The events of a real run are recorded with the time of each, and each subscriber receives them again, several times: that is far
less noisy than the difference between two runs. Metrics are scraped as often as Prometheus would have done during the run.

    python benchmarks/looking.py [--rows 200000]
"""

import argparse
import io
import json
import os
import platform
import random
import resource
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from tamis import JsonlReader, JsonlWriter, Pipeline
from tamis.dedup import ExactDedup
from tamis.monitoring.metrics import Metrics
from tamis.monitoring.tracing import Tracing
from tamis.progress import Progress
from tamis.text import GopherQuality, GopherRepetition

WORDS = [
    "the",
    "time",
    "of",
    "a",
    "day",
    "house",
    "water",
    "people",
    "light",
    "night",
    "great",
    "place",
    "world",
    "learn",
]
SCRAPE_EVERY_S = 5.0
REPEATS = 20


def cpu_s() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def replay(recorded, subscriber, clock, every=None) -> float:
    """CPU seconds to handle all events once."""
    began, last = time.process_time(), 0.0
    for at, event in recorded:
        clock[0] = at
        subscriber(event)
        if every is not None and at - last >= SCRAPE_EVERY_S:
            last = at
            every()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=200_000)
    given = parser.parse_args()
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        with Path(f"{folder}/in.jsonl").open("w") as file:
            for number in range(given.rows):
                file.write(
                    json.dumps({"id": number, "text": " ".join(chance.choices(WORDS, k=chance.randrange(20, 300)))})
                    + "\n"
                )
        size = Path(f"{folder}/in.jsonl").stat().st_size
        steps = [GopherQuality(), GopherRepetition(), ExactDedup(), JsonlWriter(f"{folder}/out")]
        pipeline = Pipeline(JsonlReader(f"{folder}/in.jsonl", blocksize="1MB"), *steps)
        pipeline.run(progress=False)  # compiles the kernels
        recorded, began = [], time.monotonic()
        before = cpu_s()
        pipeline.run(
            progress=False, fresh=True, on_event=lambda event: recorded.append((time.monotonic() - began, event))
        )
        run_cpu, seconds = cpu_s() - before, time.monotonic() - began
    say(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    say(
        f"run: {given.rows:,} rows, {size / 1e6:.0f} MB, {seconds:.1f} s, {run_cpu:.1f} CPU s, {len(recorded):,} events"
    )
    clock = [0.0]
    for name in ("lines", "bars"):
        total = 0.0
        for _ in range(REPEATS):
            with Progress(io.StringIO(), shows=name, clock=lambda: clock[0]) as progress:
                total += replay(recorded, progress, clock)
        report(f"progress ({name})", total / REPEATS, run_cpu)
    total = 0.0
    for _ in range(REPEATS):
        with Metrics() as metrics:
            total += replay(recorded, metrics, clock, lambda: urllib.request.urlopen(metrics.url).read())
    report(f"metrics, scraped every {SCRAPE_EVERY_S:.0f} s", total / REPEATS, run_cpu)
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://127.0.0.1:9"  # nobody listens: what is measured are the spans
    os.environ["OTEL_EXPORTER_OTLP_TIMEOUT"] = "1"
    tracing = Tracing()
    report("traces, without sending", replay(recorded, tracing, clock), run_cpu)
    os._exit(0)  # the exporter would try to send for a while


def report(name: str, seconds: float, whole: float) -> None:
    say(f"{name:<30} {1000 * seconds:8.1f} ms CPU  {100 * seconds / whole:6.2f} % of the run")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
