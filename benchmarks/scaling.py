"""How much faster more workers are: filters, exact and fuzzy deduplication over the same input.

    python benchmarks/scaling.py [--megabytes 2000] [--workers 2,15] [--blocksizes 128MB,default] [--phases]

Prints seconds, and the ratio to the first number of workers; with `--phases`, also the seconds of each stage and of each phase
of a deduplication. Kernels are compiled before the first measurement.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from tamis import JsonlReader, JsonlWriter, Pipeline
from tamis.dedup import ExactDedup, FuzzyDedup
from tamis.events import CallsFinished, Event, PartitionCommitted, RunFinished, RunStarted, StageStarted
from tamis.recipes.load import find_shipped


def write_file(path: Path, seed: int, num_bytes: int) -> None:
    """Texts of 0.5 to 6 kB; one in twenty repeats another."""
    generator = random.Random(seed)
    words = ["".join(random.Random(n).choices("etaoinshrdlucmfwypvbgk", k=2 + n % 9)) for n in range(4000)]
    written, recent = 0, [""]
    with path.open("w") as file:
        while written < num_bytes:
            text = " ".join(generator.choices(words, k=generator.randint(80, 900))) + "."
            if generator.random() < 0.05:
                text = generator.choice(recent)
            recent = [*recent[-50:], text]
            written += file.write(json.dumps({"id": f"{seed}-{written}", "text": text}) + "\n")


def jobs() -> dict[str, list[Any]]:
    return {
        "gopher": list(find_shipped("gopher").operators()),
        "exact": [ExactDedup()],
        "fuzzy": [FuzzyDedup(device="cpu")],
    }


class Phases:
    """Subscribes to a run and notes when each stage and phase ended."""

    def __init__(self) -> None:
        self.began = self.last = time.perf_counter()
        self.ended: list[tuple[str, float]] = []

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._end("plan")
            case StageStarted():
                self._end("between" if self.ended[1:] else "start")
            case PartitionCommitted():
                now = time.perf_counter()
                if not self.ended[-1][0].startswith("stage"):
                    self.ended.append((f"stage {event.stage}", 0.0))
                self.ended[-1] = (self.ended[-1][0], self.ended[-1][1] + now - self.last)
                self.last = now
            case CallsFinished():
                self.ended.append((f"{event.name} ({event.calls} calls)", event.seconds))
                self.last = time.perf_counter()
            case RunFinished():
                self._end("finish")

    def _end(self, name: str) -> None:
        now = time.perf_counter()
        self.ended.append((name, now - self.last))
        self.last = now


def seconds(
    source: Path, steps: list[Any], workers: int, blocksize: str, folder: Path, phases: Phases | None = None
) -> tuple[float, int]:
    reader = JsonlReader(source) if blocksize == "default" else JsonlReader(source, blocksize=blocksize)
    output = folder / "out"
    shutil.rmtree(output, ignore_errors=True)
    began = time.perf_counter()
    report = Pipeline(reader, *steps, JsonlWriter(output)).run(
        workers=workers, progress=False, on_event=[phases] if phases else []
    )
    return time.perf_counter() - began, report.kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=2000)
    parser.add_argument("--workers", default="2,15")
    parser.add_argument("--blocksizes", default="128MB,default")
    parser.add_argument("--jobs", default="gopher,exact,fuzzy")
    parser.add_argument("--phases", action="store_true")
    options = parser.parse_args()
    counts = [int(count) for count in options.workers.split(",")]
    with tempfile.TemporaryDirectory(prefix="tamis-scaling-") as name:
        folder = Path(name)
        (folder / "in").mkdir()
        files = 16
        size = options.megabytes * 1_000_000 // files
        with multiprocessing.Pool() as pool:
            pool.starmap(write_file, [(folder / "in" / f"{n:02d}.jsonl", n, size) for n in range(files)])
        (folder / "small").mkdir()
        write_file(folder / "small" / "0.jsonl", 99, 2_000_000)
        for job in options.jobs.split(","):
            steps = jobs()[job]
            seconds(folder / "small", steps, 2, "default", folder)
            for blocksize in options.blocksizes.split(","):
                first = None
                for workers in counts:
                    phases = Phases()
                    took, kept = seconds(folder / "in", steps, workers, blocksize, folder, phases)
                    first = first or took
                    print(
                        f"{job:<8} blocksize {blocksize:<8} workers {workers:>3}  {took:7.2f} s  "
                        f"{first / took:5.2f} times  kept {kept}",
                        flush=True,
                    )
                    for name, part in phases.ended if options.phases else ():
                        print(f"           {part:7.2f} s  {name}", flush=True)


if __name__ == "__main__":
    main()
