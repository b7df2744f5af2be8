"""What a cluster costs: Ray and Dask against this machine alone on the same two cores, and against other tools on Ray.

    python benchmarks/overhead.py ours [--megabytes 200] [--rounds 3] [--jobs gopher,fuzzy] [--save]
    python benchmarks/overhead.py peers --datatrove PYTHON --nemo PYTHON [--megabytes 5] [--save]

`ours` runs every executor in turn, in each round, with two workers. Start-up is a run over one document: it includes imports,
planning, starting Ray or Dask on this machine, and stopping it. The work is what a run over all documents takes beyond that, by
the clock, and by the processor time of all processes of the run (sampled), which depends less on other load. Ratios are
medians over rounds of the ratio to the local executor in the same round.

`peers` runs the same filters, and the same deduplication, in tamis on Ray and in other tools on Ray, as a user would:
datatrove's RayPipelineExecutor and NeMo Curator's RayDataExecutor. NeMo Curator's fuzzy deduplication needs a GPU. PYTHON is
that of an environment with the tool: `pip install "datatrove[processing,io,ray]" spacy xxhash orjson` or
`pip install "nemo-curator[text_cpu]"`.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import corpus
import text
from pages import save

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "benchmarks" / "cluster.md"
EXECUTORS = ("local", "ray", "dask")
CORES = 2

DATATROVE_FILTERS = """
import sys, ray
from datatrove.executor.ray import RayPipelineExecutor
from datatrove.pipeline.filters import GopherQualityFilter, GopherRepetitionFilter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter

source, target = sys.argv[1:3]
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
steps = [JsonlReader(source), GopherQualityFilter(), GopherRepetitionFilter(), JsonlWriter(target, compression=None)]
RayPipelineExecutor(steps, tasks=2, workers=2, mem_per_cpu_gb=1, logging_dir=target + "-logs").run()
"""

DATATROVE_FUZZY = """
import sys, ray
from datatrove.executor.ray import RayPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupSignature, MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter

source, target = sys.argv[1:3]
work = target + "-logs"
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
config = MinhashConfig(n_grams=5, num_buckets=14, hashes_per_bucket=8)
stages = [
    ([JsonlReader(source), MinhashDedupSignature(output_folder=f"{work}/sigs", config=config)], 2),
    ([MinhashDedupBuckets(input_folder=f"{work}/sigs", output_folder=f"{work}/buckets", config=config)], 14),
    ([MinhashDedupCluster(input_folder=f"{work}/buckets", output_folder=f"{work}/remove", config=config)], 1),
    ([JsonlReader(source), MinhashDedupFilter(input_folder=f"{work}/remove"), JsonlWriter(target, compression=None)], 2),
]
for number, (steps, tasks) in enumerate(stages):
    RayPipelineExecutor(steps, tasks=tasks, workers=2, mem_per_cpu_gb=1, logging_dir=f"{work}/logs/{number}").run()
"""

NEMO = text.NEMO.replace("num_cpus=1", f"num_cpus={CORES}")

# ----------------------------------------------------------------------------------------------------------------- runs


def drive(executor: str, job: str, source: str, output: str) -> None:
    """One run with our executors."""
    from tamis import DaskExecutor, JsonlReader, JsonlWriter, LocalExecutor, Pipeline, RayExecutor
    from tamis.dedup import FuzzyDedup
    from tamis.recipes.load import find_shipped

    steps = [FuzzyDedup(device="cpu")] if job == "fuzzy" else list(find_shipped(job).operators())
    chosen: Any = LocalExecutor(workers=CORES)
    if executor == "ray":
        import ray

        ray.init(address="local", num_cpus=CORES, include_dashboard=False, log_to_driver=False, configure_logging=False)
        chosen = RayExecutor(workers=CORES)
    elif executor == "dask":
        chosen = DaskExecutor(workers=CORES)
    Pipeline(JsonlReader(source), *steps, JsonlWriter(output)).run(executor=chosen, memory="4GB", progress=False)


@dataclass(frozen=True)
class Work:
    """A run over all documents, without what a run over one takes."""

    start_s: float
    seconds: float
    processor_s: float
    kept: int


def measured(command: Callable[[Path], list[str]], source: Path, folder: Path, environment: dict[str, str]) -> Work:
    """Run a command over one document and over all."""
    one = folder / f"one-{source.name}"
    if not one.exists():
        one.mkdir()
        with next(source.glob("*.jsonl")).open() as file:
            (one / "0.jsonl").write_text(file.readline())
    start, whole = (text.watch(command(given), folder / "out", environment) for given in (one, source))
    return Work(start.seconds, whole.seconds - start.seconds, whole.processor - start.processor, whole.kept)


def ours(options: argparse.Namespace, folder: Path) -> list[str]:
    sources = make_sources(options.megabytes, folder)
    lines = ["| job | executor | start-up, s | work, s | ratio by clock | ratio by processor time | MB/s |"]
    lines.append("|---|---|---|---|---|---|---|")
    for job in options.jobs.split(","):
        size = megabytes_in(sources[job])
        run_ours(job, "local", sources[job], folder)  # compiles the kernels
        runs: dict[str, list[Work]] = {executor: [] for executor in EXECUTORS}
        for number in range(options.rounds):
            for executor in EXECUTORS:
                runs[executor].append(run_ours(job, executor, sources[job], folder))
                print(f"{job} round {number} {executor}: {runs[executor][-1]}", flush=True)
        assert len({each.kept for some in runs.values() for each in some}) == 1
        for executor, some in runs.items():
            pairs = list(zip(some, runs["local"], strict=True))
            clock = statistics.median(each.seconds / local.seconds for each, local in pairs)
            processor = statistics.median(each.processor_s / local.processor_s for each, local in pairs)
            start, work = (statistics.median(getattr(each, name) for each in some) for name in ("start_s", "seconds"))
            lines.append(
                f"| {job} | {executor} | {start:.1f} | {work:.1f} | {clock:.2f} | {processor:.2f} | {size / work:.0f} |"
            )
    return lines


def run_ours(job: str, executor: str, source: Path, folder: Path) -> Work:
    def command(given: Path) -> list[str]:
        return [sys.executable, __file__, "--drive", executor, job, str(given), str(folder / "out")]

    return measured(command, source, folder, {"PYTHONPATH": str(ROOT)})


def megabytes_in(source: Path) -> float:
    return sum(file.stat().st_size for file in source.glob("*.jsonl")) / 1e6


def make_sources(megabytes: int, folder: Path) -> dict[str, Path]:
    """Real English for filters, and documents with known duplicates for deduplication."""
    text.make_corpus(folder / "english", megabytes)
    corpus.make_corpus(folder / "copies", megabytes * 1_000_000 // 560)
    return {"fuzzy": folder / "copies", "gopher": folder / "english", "nemo_english": folder / "english"}


# ---------------------------------------------------------------------------------------------------------------- peers


def peers(options: argparse.Namespace, folder: Path) -> list[str]:
    sources = make_sources(options.megabytes, folder)
    cases: list[tuple[str, str, str | None, str]] = [
        ("gopher", "datatrove, RayPipelineExecutor", options.datatrove, DATATROVE_FILTERS),
        ("fuzzy", "datatrove, RayPipelineExecutor", options.datatrove, DATATROVE_FUZZY),
        ("nemo_english", "NeMo Curator, RayDataExecutor", options.nemo, NEMO),
    ]
    lines = ["| job | tool | start-up, s | work, s | processor seconds of the work | MB/s | kept |"]
    lines.append("|---|---|---|---|---|---|---|")
    for job, name, python, script in cases:
        if python is None:
            continue
        size = megabytes_in(sources[job])
        run_ours(job, "local", sources[job], folder)  # compiles the kernels
        found = {
            name: run_peer(python, script, sources[job], folder),
            "tamis, RayExecutor": run_ours(job, "ray", sources[job], folder),
        }
        for tool, run in found.items():
            lines.append(
                f"| {job} | {tool} | {run.start_s:.1f} | {run.seconds:.1f} | {run.processor_s:.1f} | "
                f"{size / run.seconds:.1f} | {run.kept:,} |"
            )
            print(lines[-1], flush=True)
    return lines


def run_peer(python: str, script: str, source: Path, folder: Path) -> Work:
    def command(given: Path) -> list[str]:
        return [python, "-c", script, str(given), str(folder / "out"), "ray"]

    environment = {"PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": ""}
    return measured(command, source, folder, environment)


def main() -> None:
    if sys.argv[1:2] == ["--drive"]:
        drive(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["ours", "peers"])
    parser.add_argument("--megabytes", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", default="gopher,fuzzy")
    parser.add_argument("--datatrove")
    parser.add_argument("--nemo")
    parser.add_argument("--save", action="store_true", help=f"write the results into {PAGE.name}")
    options = parser.parse_args()
    options.megabytes = options.megabytes or (200 if options.what == "ours" else 5)
    with tempfile.TemporaryDirectory(prefix="overhead-") as name:
        lines = (ours if options.what == "ours" else peers)(options, Path(name))
    print("\n".join(lines))
    if options.save:
        command = f"`python benchmarks/overhead.py {options.what} --megabytes {options.megabytes}`"
        titles = {"ours": "Overhead of Ray and Dask", "peers": "Other tools on Ray"}
        load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
        save(PAGE, titles[options.what], [f"{command}, {CORES} cores; load at the end: {load}.", "", *lines])


if __name__ == "__main__":
    main()
