"""A pipeline with one slow stage: throughput with automatic balancing, with equal numbers of workers, and the ideal.

    python benchmarks/balance.py [--engine dask] [--cores 8] [--seconds 20] [--save]

Three stages run at the same time: read, a step that is ten times as slow as the others, write. Steps wait instead of computing,
so that a cluster node with eight cores can be imitated on any machine; it is a real node, with real workers and packets. The
ideal is what the best whole numbers of workers for eight cores reach if no time is lost. Ramp-up is the time from the moment
when the first worker is started until the slow stage has as many busy workers as the ideal gives it.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from pages import save

from tamis import DaskExecutor, JsonlReader, JsonlWriter, Map, Pipeline, RayExecutor, Resources, operator
from tamis.batch import Batch
from tamis.executors import groups, staffing

PAGE = Path(__file__).parent / "cluster.md"
ROW_BYTES = 1000
SECONDS_PER_ROW = (0.0002, 0.002, 0.0002)


@operator(reads="id")
class Waits(Map):
    """Takes a fixed time for each row, without computing."""

    seconds: float = 0.0
    name_of: str = "waited"

    def writes(self) -> tuple[str, ...]:
        return (self.name_of,)

    def apply(self, batch: Batch) -> dict[str, Any]:
        time.sleep(self.seconds * len(batch))
        return {self.name_of: batch["id"]}


@operator(reads="id", resources=Resources(memory="1MB"))
class WaitsApart(Waits):
    """The same, with workers of its own."""


def write_source(folder: Path, rows: int) -> Path:
    folder.mkdir()
    with (folder / "rows.jsonl").open("w") as file:
        for number in range(rows):
            file.write(json.dumps({"id": number, "text": "x" * (ROW_BYTES - 40)}) + "\n")
    return folder


def best_workers(cores: int) -> tuple[int, ...]:
    """The whole numbers of workers with the highest pace."""
    possible = [each for each in itertools.product(range(1, cores + 1), repeat=3) if sum(each) <= cores]
    return max(possible, key=lambda each: (pace(each), -sum(each)))


def pace(workers: Sequence[int]) -> float:
    """Rows per second with these workers."""
    return min(count / seconds for count, seconds in zip(workers, SECONDS_PER_ROW, strict=True))


@dataclass
class Trace:
    """How many workers each stage had, over time."""

    began: float | None = None
    samples: list[tuple[float, tuple[int, ...]]] = field(default_factory=list)

    def watch(self, run: groups.GroupRun) -> None:
        if self.began is None and any(worker.job is not None for worker in run.crew.workers):
            self.began = time.monotonic()
        if self.began is not None:
            workers = tuple(sum(worker.job is not None for worker in pool.workers) for pool in run.pools)
            self.samples.append((time.monotonic() - self.began, workers))

    def reached(self, wanted: int) -> float | None:
        """Seconds until the slow stage had this many busy workers."""
        return next((at for at, workers in self.samples if workers[1] >= wanted), None)


def run(executor: Any, source: Path, output: Path, fixed: tuple[int, ...] | None) -> tuple[float, Trace]:
    """Seconds from the first busy worker to the last, and how many were busy when."""
    trace = Trace()
    original, balance = groups.GroupRun.hand_out, staffing.balance

    def hand_out(self: groups.GroupRun, *, only_begun: bool) -> None:
        original(self, only_begun=only_begun)
        trace.watch(self)

    groups.GroupRun.hand_out = hand_out  # type: ignore[method-assign]
    if fixed is not None:
        staffing.balance = lambda loads, cores: fixed
    shutil.rmtree(output, ignore_errors=True)
    try:
        Pipeline(
            JsonlReader(source, blocksize="2MB"),
            Waits(SECONDS_PER_ROW[0], "first"),
            WaitsApart(SECONDS_PER_ROW[1], "second"),
            Waits(SECONDS_PER_ROW[2], "third"),
            JsonlWriter(output),
        ).run(executor=executor, memory="8GB", progress=False)
    finally:
        groups.GroupRun.hand_out, staffing.balance = original, balance  # type: ignore[method-assign]
    return trace.samples[-1][0], trace


def start(engine: str, cores: int, stack: ExitStack) -> Callable[[], Any]:
    """Start a cluster of one node that says it has this many cores."""
    if engine == "ray":
        import ray

        ray.init(address="local", num_cpus=cores, include_dashboard=False, log_to_driver=False, configure_logging=False)
        stack.callback(ray.shutdown)
        return lambda: RayExecutor(streaming="always")
    from distributed import Client, LocalCluster

    cluster = LocalCluster(
        n_workers=1, threads_per_worker=cores, processes=False, dashboard_address="127.0.0.1:0", memory_limit="10GB"
    )
    stack.enter_context(cluster)
    stack.enter_context(Client(cluster))
    return lambda: DaskExecutor(streaming="always")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["ray", "dask"], default="dask")
    parser.add_argument("--cores", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20, help="length of the ideal run")
    parser.add_argument("--save", action="store_true", help=f"write the results into {PAGE.name}")
    options = parser.parse_args()
    best = best_workers(options.cores)
    equal = tuple(max(1, options.cores // 3 + (number < options.cores % 3)) for number in range(3))
    rows = int(pace(best) * options.seconds)
    lines = [
        "| workers | rows per second | of the ideal | ramp-up, s | workers at half time |",
        "|---|---|---|---|---|",
    ]
    lines.append(f"| ideal {best} | {pace(best):,.0f} | 100 % | | |")
    with tempfile.TemporaryDirectory(prefix="balance-") as name, ExitStack() as stack:
        folder = Path(name)
        source = write_source(folder / "in", rows)
        executor = start(options.engine, options.cores, stack)
        for title, fixed in (("automatic", None), (f"equal {equal}", equal)):
            seconds, trace = run(executor(), source, folder / "out", fixed)
            half = next(workers for at, workers in trace.samples if at >= seconds / 2)
            reached = trace.reached(best[1])
            ramp = "" if fixed else (f"{reached:.1f}" if reached is not None else "not reached")
            share = rows / seconds / pace(best)
            lines.append(f"| {title} | {rows / seconds:,.0f} | {share:.0%} | {ramp} | {half} |")
            print(lines[-1], flush=True)
    print("\n".join(lines))
    if options.save:
        command = f"`python benchmarks/balance.py --engine {options.engine} --cores {options.cores}`"
        load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
        head = f"{command}, {rows:,} rows of 1 kB; load at the end: {load}."
        save(PAGE, "A pipeline with one slow stage", [head, "", *lines])


if __name__ == "__main__":
    main()
