"""Past this machine: replays measured times through the policies of the executors, for 1 to 1,000 workers and 1 TB to 1 PB.

    python benchmarks/scale.py [--megabytes 60] [--save]

1. Measures, in real runs with one worker: the time of a worker per partition and per call of a deduplication, and the time of
   the driver for each of them (handing out, publishing, recording in the ledger).
2. Replays them: partitions of the size that `default_blocksize` chooses, one queue, workers that take the next one, and one
   driver that serves one message at a time; for stages at the same time, the number of workers that `balance` chooses.
3. Checks itself against real runs with 1, 2 and 4 workers of a pipeline whose steps wait, so that four fit on any machine.

Storage is taken to be as fast as on this machine for every worker. At most 200,000 pieces of each phase are simulated, and
longer phases are extended at the pace of the last half.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import heapq
import os
import random
import shutil
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import corpus
import text
from pages import save

from tamis import JsonlReader, JsonlWriter, LocalExecutor, Pipeline, step
from tamis.dedup import FuzzyDedup
from tamis.events import CallsFinished, Event, PartitionCommitted, PartitionStarted
from tamis.executors.balance import StageLoad, balance
from tamis.executors.calls import Calls
from tamis.executors.groups import GroupRun
from tamis.memory.budget import default_blocksize
from tamis.recipes.load import find_shipped

PAGE = Path(__file__).parent / "cluster.md"
MOST_SIMULATED = 200_000
WORKERS = (1, 10, 100, 300, 1000)
SIZES = {"1 TB": 10**12, "10 TB": 10**13, "100 TB": 10**14, "1 PB": 10**15}
CALL_BYTES = 1_000_000_000
"""What one call of a phase that divides its data by key may hold, as for workers with 2 GB each."""


# ------------------------------------------------------------------------------------------------------------- measuring


@dataclass
class Phase:
    """One phase of a run: pieces of work of which each worker takes the next one."""

    name: str
    seconds: list[float] = field(default_factory=list)
    """Of a worker for each piece, in the measured run."""
    by_partition: bool = True
    """Whether there is a piece for each partition; otherwise one for each `CALL_BYTES`."""

    @property
    def total_s(self) -> float:
        return sum(self.seconds)


@dataclass
class Measured:
    """A real run."""

    input_bytes: int = 0
    seconds: float = 0.0
    """From the first piece that a worker took to the end of the last."""
    driver_s: float = 0.0
    """Of the driver for each piece."""
    phases: list[Phase] = field(default_factory=list)


class Recorder:
    """Subscribes to a run and notes how long its pieces took."""

    def __init__(self) -> None:
        self.phases: dict[str, Phase] = {}
        self.began: dict[tuple[int, int], float] = {}
        self.first = self.last = 0.0

    def __call__(self, event: Event) -> None:
        now = time.perf_counter()
        match event:
            case PartitionStarted():
                self.first = self.first or now
                self.began[event.stage, event.partition] = now
            case PartitionCommitted():
                phase = self.phases.setdefault(f"stage {event.stage}", Phase(f"stage {event.stage}"))
                phase.seconds.append(now - self.began[event.stage, event.partition])
                self.last = now
            case CallsFinished():
                name = f"{event.stage}: {event.name.split(',')[0]}"
                per_call = event.seconds / max(1, event.calls)
                partitions = max(len(phase.seconds) for phase in self.phases.values())
                self.phases[name] = Phase(name, [per_call] * event.calls, by_partition=event.calls == partitions > 1)
                self.last = now


class DriverClock:
    """Measures what the driver does for pieces of work: processor time, and waiting for the disk; not starting workers."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._patched: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> DriverClock:
        for owner in (GroupRun, Calls):
            for name in ("hand_out", "on_message"):
                self._patch(owner, name, self._timed(getattr(owner, name)))
        self._patch(os, "fsync", self._waiting(os.fsync))
        return self

    def __exit__(self, *exc: object) -> None:
        for owner, name, function in self._patched:
            setattr(owner, name, function)

    def _patch(self, owner: Any, name: str, function: Any) -> None:
        self._patched.append((owner, name, getattr(owner, name)))
        setattr(owner, name, function)

    def _timed(self, function: Any) -> Any:
        def timed(work: Any, *arguments: Any, **options: Any) -> Any:
            crew = work.crew if isinstance(work, GroupRun) else work._crew
            before, began = list(crew.workers), time.thread_time()
            try:
                return function(work, *arguments, **options)
            finally:
                if set(map(id, crew.workers)) <= set(map(id, before)):
                    self.seconds += time.thread_time() - began

        return timed

    def _waiting(self, function: Any) -> Any:
        def timed(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                self.seconds += time.perf_counter() - began

        return timed


def measure(source: Path, steps: Sequence[Any], workers: int, blocksize: str, output: Path) -> Measured:
    recorder = Recorder()
    shutil.rmtree(output, ignore_errors=True)
    with DriverClock() as clock:
        Pipeline(JsonlReader(source, blocksize=blocksize), *steps, JsonlWriter(output)).run(
            executor=LocalExecutor(workers=workers, streaming="never"),
            memory="4GB",
            progress=False,
            on_event=[recorder],
        )
    phases = list(recorder.phases.values())
    size = sum(file.stat().st_size for file in source.glob("*.jsonl"))
    driver_s = clock.seconds / sum(len(phase.seconds) for phase in phases)
    for phase in phases:  # from the first message to the last, so with what the driver did
        phase.seconds = [max(seconds / 2, seconds - driver_s) for seconds in phase.seconds]
    return Measured(size, recorder.last - recorder.first, driver_s, phases)


def driver_bytes_per_partition(source: Path, output: Path) -> float:
    """What the driver holds for each partition, from two runs that differ in their number."""
    held: dict[int, int] = {}
    for blocksize in ("4kB", "64kB"):
        shutil.rmtree(output, ignore_errors=True)
        partitions, most = 0, 0

        def look(event: Event) -> None:
            nonlocal partitions, most
            if isinstance(event, PartitionCommitted):
                partitions += 1
                most = max(most, tracemalloc.get_traced_memory()[0])

        tracemalloc.start()
        Pipeline(JsonlReader(source, blocksize=blocksize), JsonlWriter(output)).run(
            executor="inline", progress=False, on_event=[look]
        )
        tracemalloc.stop()
        held[partitions] = most
    (fewer, low), (more, high) = sorted(held.items())
    return (high - low) / (more - fewer)


# ------------------------------------------------------------------------------------------------------------ simulating


def phase_seconds(seconds: Sequence[float], pieces: int, workers: int, driver_s: float, seed: int = 0) -> float:
    """How long a phase takes: workers take pieces in turn, and the driver serves one of them at a time."""
    simulated = min(pieces, MOST_SIMULATED)
    generator = random.Random(seed)
    times = generator.choices(seconds, k=simulated)
    driver_free, finished, half = 0.0, 0.0, 0.0
    busy: list[float] = []
    for number, took in enumerate(times):
        if len(busy) < workers:
            asked = driver_free
        else:
            asked = heapq.heappop(busy)  # the first worker that has finished
            finished = max(finished, asked)
        driver_free = max(driver_free, asked) + driver_s
        heapq.heappush(busy, driver_free + took)
        if number == simulated // 2:
            half = asked
    end = max(busy)
    if pieces > simulated:
        end += (pieces - simulated) * (finished - half) / (simulated - simulated // 2)
    return end


def predicted(found: Measured, input_bytes: int, workers: int, partitions: int | None = None) -> dict[str, float]:
    """Seconds of each phase for another size and number of workers."""
    scale = input_bytes / found.input_bytes
    partitions = partitions or max(1, round(input_bytes / default_blocksize(input_bytes)))
    result = {}
    for number, phase in enumerate(found.phases):
        pieces = partitions if phase.by_partition else max(1, -(-input_bytes // CALL_BYTES))
        each = phase.total_s * scale / pieces
        mean = phase.total_s / len(phase.seconds)
        samples = [each * seconds / mean for seconds in phase.seconds]
        result[phase.name] = phase_seconds(samples, int(pieces), workers, found.driver_s, number)
    return result


def balanced_pace(seconds_per_mb: Sequence[float], cores: int) -> float:
    """The share of the ideal pace that the workers chosen by `balance` reach, after two adjustments."""
    workers: tuple[int, ...] = (1,) * len(seconds_per_mb)
    for _ in range(2):
        loads = [StageLoad(count, cores, each, 10, 1) for count, each in zip(workers, seconds_per_mb, strict=True)]
        workers = balance(loads, cores)
    share = min(1.0, cores / sum(workers))  # more workers than cores take turns
    return (
        min(count * share / each for count, each in zip(workers, seconds_per_mb, strict=True))
        * sum(seconds_per_mb)
        / cores
    )


# --------------------------------------------------------------------------------------------------------------- report


def check(folder: Path) -> list[str]:
    """Real runs with 1, 2 and 4 workers against what the run with one worker predicts."""
    source = folder / "check"
    source.mkdir()
    with (source / "rows.jsonl").open("w") as file:
        file.writelines(f'{{"id": {number}, "text": "{"x" * 960}"}}\n' for number in range(3000))

    def wait(row: dict[str, Any]) -> bool:
        time.sleep(0.002 if row["id"] % 700 < 350 else 0.004)
        return True

    runs = {count: measure(source, [step(wait, version=1)], count, "100kB", folder / "out") for count in (1, 2, 4)}
    lines = ["| workers | real, s | predicted, s | real / predicted |", "|---|---|---|---|"]
    for count, run in runs.items():
        expected = sum(predicted(runs[1], run.input_bytes, count, len(run.phases[0].seconds)).values())
        lines.append(f"| {count} | {run.seconds:.1f} | {expected:.1f} | {run.seconds / expected:.2f} |")
    return lines


def table(name: str, found: Measured) -> list[str]:
    lines = [
        f"\n### {name}\n",
        f"Driver: {found.driver_s * 1e3:.1f} ms for each partition or call. Worker, per GB of input:",
    ]
    per_gb = found.input_bytes / 1e9
    lines.append(", ".join(f"{phase.name} {phase.total_s / per_gb:.1f} s" for phase in found.phases) + ".")
    lines += [
        "",
        "| | " + " | ".join(f"{count:,} workers" for count in WORKERS) + " | limit |",
        "|---" * (len(WORKERS) + 2) + "|",
    ]
    for title, size in SIZES.items():
        cells, limit = [], "none up to 1,000"
        one = sum(phase.total_s for phase in found.phases) * size / found.input_bytes
        for count in WORKERS:
            phases = predicted(found, size, count)
            total = sum(phases.values())
            efficiency = one / count / total
            cells.append(f"{_duration(total)}, {efficiency:.0%}")
            if efficiency < 0.8 and limit.startswith("none"):
                ideal = {phase.name: phase.total_s * size / found.input_bytes / count for phase in found.phases}
                worst = max(phases, key=lambda name: phases[name] - ideal[name])
                limit = f"{worst} at {count:,}"
        lines.append(f"| {title} | " + " | ".join(cells) + f" | {limit} |")
    partition = default_blocksize(10**15)
    slowest = min(phase.total_s / found.input_bytes * partition for phase in found.phases if phase.by_partition)
    lines.append(
        f"\nThe driver is saturated by {slowest / found.driver_s:,.0f} workers (shortest piece / its own time)."
    )
    return lines


def _duration(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=60)
    parser.add_argument("--save", action="store_true", help=f"write the results into {PAGE.name}")
    options = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory(prefix="scale-") as name:
        folder = Path(name)
        lines += ["Real runs against the replay, for a pipeline whose steps wait:\n", *check(folder)]
        print("\n".join(lines), flush=True)
        text.make_corpus(folder / "english", options.megabytes)
        corpus.make_corpus(folder / "copies", options.megabytes * 1_000_000 // 560)
        blocksize = f"{max(1, options.megabytes // 16)}MB"
        jobs = {"gopher": find_shipped("gopher").operators(), "fuzzy": [FuzzyDedup(device="cpu")]}
        for job, steps in jobs.items():
            source = folder / ("copies" if job == "fuzzy" else "english")
            measure(source, list(steps), 2, blocksize, folder / "out")  # compiles the kernels
            lines += table(job, measure(source, list(steps), 1, blocksize, folder / "out"))
            print("\n".join(lines[-12:]), flush=True)
        held = driver_bytes_per_partition(folder / "check", folder / "out")
    partitions = 10**15 / default_blocksize(10**15)
    lines.append(
        f"\nThe driver holds {held / 1e3:.1f} kB for each partition: {held * partitions / 1e9:.1f} GB for the "
        f"{partitions / 1e6:.1f} million partitions of 1 PB."
    )
    pace = {cores: balanced_pace((0.01, 0.1, 0.02), cores) for cores in (4, 16, 64, 256, 1000)}
    shares = ", ".join(f"{cores:,} cores {share:.0%}" for cores, share in pace.items())
    lines.append(
        f"\nThree stages at the same time (10, 100 and 20 ms/MB), share of the ideal pace that `balance` reaches: {shares}."
    )
    print("\n".join(lines))
    if options.save:
        load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
        head = f"`python benchmarks/scale.py --megabytes {options.megabytes}`; load at the end: {load}."
        save(PAGE, "Past this machine", [head, "", *lines])


if __name__ == "__main__":
    main()
