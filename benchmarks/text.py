"""Compare text recipes, JSON Lines to JSON Lines with one worker, with other tools on the same files in the same run.

    python benchmarks/text.py [--megabytes 300] [--peer-files 1] [--repeats 2] [--save]

Creates a virtual environment for each tool (once, in --cache, default ~/.cache/tamis/benchmarks) and documents of English
prose (see text_kernels.py) in files of 5 MB. Each tool runs as a user would run it: `tamis run RECIPE --input --output
--workers 1`; datatrove's executor with one task and one worker; NeMo Curator's own configuration of the English cascade, on
Ray with one processor, and a second time without Ray, calling its stages directly. The other tools process the first
--peer-files files, since all files would take an hour; Tamis processes these, and then all files.

Start-up time is measured by running on one document, and is excluded from the rates. Rates are given by wall-clock time and by
the processor time of all processes of the run (sampled), which depends less on the load of the machine. No rate is given if
less than a second remains after start-up. For Tamis, the best of --repeats runs counts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parent))
from text_kernels import documents, technical

PACKAGES = {
    "datatrove": ["datatrove[processing,io]==0.10.1", "spacy", "xxhash", "orjson"],
    "nemo": ["nemo-curator[text_cpu]==1.4.0"],
}
PUBLISHED = (
    0.66  # MB/s per core: 17.5 million documents in 882 s on 128 processors, NeMo Curator's own nightly benchmark
)
NOTES = "## Interpretation"

DATATROVE = """
import sys
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.filters import GopherQualityFilter, GopherRepetitionFilter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter

source, target = sys.argv[1:3]
steps = [JsonlReader(source), GopherQualityFilter(), GopherRepetitionFilter(), JsonlWriter(target, compression=None)]
LocalPipelineExecutor(steps, tasks=1, workers=1, logging_dir=target + "-logs").run()
"""

NEMO = """
import importlib, sys
from pathlib import Path
import nemo_curator, yaml

def build(value):
    if isinstance(value, list):
        return [build(each) for each in value]
    if not isinstance(value, dict):
        return value
    values = {key: build(each) for key, each in value.items() if key != "_target_"}
    if "_target_" not in value:
        return values
    module, _, name = value["_target_"].rpartition(".")
    return getattr(importlib.import_module(module), name)(**values)

source, target, engine = sys.argv[1:4]
text = (Path(nemo_curator.__file__).parent / "config/text/heuristic_filter_english_pipeline.yaml").read_text()
for name, value in {"input_path": source, "output_path": target, "text_field": "text"}.items():
    text = text.replace("${" + name + "}", value)
stages = [build(stage) for stage in yaml.safe_load(text)["stages"]]
if engine == "bare":
    import pandas as pd
    from nemo_curator.tasks import DocumentBatch
    Path(target).mkdir(parents=True, exist_ok=True)
    for file in sorted(Path(source).glob("*.jsonl")):
        batch = DocumentBatch(dataset_name="", data=pd.read_json(file, lines=True))
        for stage in stages[1:-1]:
            batch = batch and stage.process(batch)
        if batch:
            batch.to_pandas().to_json(Path(target) / file.name, lines=True, orient="records")
else:
    from nemo_curator.backends.ray_data import RayDataExecutor
    from nemo_curator.core.client import RayClient
    from nemo_curator.pipeline import Pipeline
    client = RayClient(num_cpus=1, num_gpus=0, include_dashboard=False)
    client.start()
    try:
        Pipeline(name="english", stages=stages).run(RayDataExecutor())
    finally:
        client.stop()
"""


@dataclass(frozen=True)
class Run:
    seconds: float
    processor: float
    peak: float
    kept: int


def say(text: str = "") -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    said.append(text)


said: list[str] = []
Rates = tuple[float, float]


def make_environments(cache: Path) -> dict[str, Path]:
    """Create the virtual environments of the other tools and return their interpreters."""
    result = {}
    for name, packages in PACKAGES.items():
        folder = cache / name
        result[name] = folder / "bin" / "python"
        if not (folder / "complete").exists():
            venv.create(folder, with_pip=True, clear=True)
            subprocess.run([result[name], "-m", "pip", "install", "-q", *packages], check=True)
            (folder / "complete").touch()
    return result


def make_corpus(folder: Path, megabytes: int, per_file: int = 5_000_000) -> list[Path]:
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        texts = documents(technical(), megabytes * 1_000_000)
        number, file, room = 0, None, 0
        for index, text in enumerate(texts):
            if room <= 0:
                if file is not None:
                    file.close()
                file, number, room = (folder / f"{number:04d}.jsonl").open("w"), number + 1, per_file
            line = json.dumps({"id": index, "url": f"https://example.org/{index}", "text": text}, ensure_ascii=False)
            assert file is not None
            file.write(line + "\n")
            room -= len(line.encode()) + 1
        if file is not None:
            file.close()
        (folder / "complete").touch()
    return sorted(folder.glob("*.jsonl"))


def link(files: list[Path], folder: Path) -> Path:
    """Create a folder with links to some of the files."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in files:
        (folder / file.name).symlink_to(file)
    return folder


def watch(command: list[str], target: Path, environment: dict[str, str] | None = None) -> Run:
    """Run a command and sample the total processor time and memory of its processes."""
    for folder in (target, Path(f"{target}-logs")):
        shutil.rmtree(folder, ignore_errors=True)
    began = time.perf_counter()
    log_path = target.parent / "log.txt"
    with log_path.open("w") as log:
        process = psutil.Popen(command, stdout=log, stderr=log, env={**os.environ, **(environment or {})})
        spent: dict[tuple[int, float], float] = {}
        peak = 0.0
        while process.poll() is None:
            memory = 0.0
            for each in _tree(process):
                try:
                    times = each.cpu_times()
                    spent[each.pid, each.create_time()] = times.user + times.system
                    memory += each.memory_info().rss
                except psutil.Error:
                    continue
            peak = max(peak, memory)
            time.sleep(0.03)
    seconds = time.perf_counter() - began
    _end(spent)
    if process.returncode:
        raise SystemExit(log_path.read_text()[-3000:])
    kept = sum(file.read_bytes().count(b"\n") for file in target.glob("*.jsonl"))
    return Run(seconds, sum(spent.values()), peak / 1e6, kept)


def _end(seen: Iterable[tuple[int, float]], patience_s: float = 15) -> None:
    """Wait for processes that a run left behind and end those that remain; only processes seen as its descendants."""
    left = []
    for pid, created in seen:
        try:
            each = psutil.Process(pid)
            if each.create_time() == created:
                left.append(each)
        except psutil.Error:
            continue
    for each in psutil.wait_procs(left, timeout=patience_s)[1]:
        each.kill()


def _tree(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def tamis(recipe: str, source: Path, target: Path) -> Run:
    command = [sys.executable, "-m", "tamis", "run", recipe, "--input", str(source), "--output", str(target)]
    return watch([*command, "--workers", "1"], target)


def row(name: str, megabytes: float, start: Run, run: Run, base: Rates | None) -> Rates:
    """Print one line of the table. Return the rates by clock and by processor time, 0 if nearly all time is start-up."""
    spent = run.seconds - start.seconds, run.processor - start.processor
    rates = tuple(megabytes / each if each > 1 else 0.0 for each in spent)
    cells = [name, f"{megabytes:.1f}"]
    cells += [f"{each.seconds:.1f} / {each.processor:.1f}" for each in (run, start)]
    cells += [" / ".join(f"{rate:.2f}" if rate else "-" for rate in rates)]
    cells += [
        " / ".join(f"{rate / other:.0f}" if rate else "-" for rate, other in zip(rates, base or (), strict=False))
    ]
    say(f"| {' | '.join([*cells, f'{run.peak:.0f}', f'{run.kept:,}'])} |")
    return rates[0], rates[1]


def compare(recipe: str, peers: dict[str, Any], work: Path, files: list[Path], options: argparse.Namespace) -> None:
    one = work / "one"
    link([], one)
    with files[0].open() as file:
        (one / "0.jsonl").write_text(file.readline())
    few, everything = link(files[: options.peer_files], work / "few"), link(files, work / "all")
    say(f"\n## `{recipe}`\n")
    say("| clock / processor | MB | seconds | of which start-up | MB/s | ratio to the fastest other | peak MB | kept |")
    say("|---|---:|---:|---:|---:|---:|---:|---:|")
    few_mb, all_mb = (sum(file.stat().st_size for file in part) / 1e6 for part in (files[: options.peer_files], files))
    rates = {}
    for name, run in peers.items():
        rates[name] = row(name, few_mb, run(one, work / "peer-one"), run(few, work / "peer-few"), None)
    fastest = max(rates.values(), key=lambda rate: rate[1], default=None)
    tamis(recipe, one, work / "out")  # compile the kernels
    start = min((tamis(recipe, one, work / "out") for _ in range(options.repeats)), key=lambda each: each.seconds)
    for name, source, size in (("tamis, the same files", few, few_mb), ("tamis", everything, all_mb)):
        if source is few and not peers:
            continue
        runs = [tamis(recipe, source, work / "out") for _ in range(options.repeats)]
        best = min(runs, key=lambda each: each.seconds)
        least = min(each.processor for each in runs)
        row(name, size, start, Run(best.seconds, least, best.peak, best.kept), fastest)
    report = json.loads((work / "out" / ".tamis" / "report.json").read_text())
    say("\nTime per step in the last run, by the clock of its worker:\n")
    say("| step | rows | seconds | MB/s |\n|---|---:|---:|---:|")
    for step in report["operators"]:
        say(f"| {step['name']} | {step['rows_in']:,} | {step['seconds']:.2f} | {step['mb_per_s'] or 0:.0f} |")
    say(f"| whole run | {report['read']:,} | {report['seconds']:.2f} | {all_mb / report['seconds']:.0f} |")


def _load() -> str:
    return ", ".join(f"{value:.1f}" for value in os.getloadavg())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--peer-files", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "tamis" / "benchmarks")
    parser.add_argument("--recipes", nargs="+", default=["gopher", "nemo_english", "fineweb"])
    parser.add_argument("--save", action="store_true", help="write the tables to text.md, above its notes")
    options = parser.parse_args()
    pythons = make_environments(options.cache)
    files = make_corpus(options.cache / f"prose-{options.megabytes}", options.megabytes)
    work = options.cache / "work"
    work.mkdir(exist_ok=True)

    def datatrove(source: Path, target: Path) -> Run:
        return watch([str(pythons["datatrove"]), "-c", DATATROVE, str(source), str(target)], target)

    def nemo(engine: str) -> Any:
        found = {"PATH": f"{pythons['nemo'].parent}{os.pathsep}{os.environ['PATH']}"}  # it calls `ray`

        def run(source: Path, target: Path) -> Run:
            return watch([str(pythons["nemo"]), "-c", NEMO, str(source), str(target), engine], target, found)

        return run

    peers = {
        "gopher": {"datatrove 0.10.1": datatrove},
        "nemo_english": {
            "NeMo Curator 1.4.0, Ray Data": nemo("ray"),
            "NeMo Curator 1.4.0, stages without Ray": nemo("bare"),
        },
    }
    say("# Text recipes, end to end, one worker\n")
    say(f"`python benchmarks/text.py {' '.join(sys.argv[1:])}`".rstrip().replace(" `", "`"))
    say(f"\n{platform.platform()}, {os.cpu_count()} processors, Python {platform.python_version()}.")
    say(f"Load average before: {_load()}.")
    say(f"NeMo Curator's published figure is {PUBLISHED} MB/s per core, including JSON and start-up.")
    for recipe in options.recipes:
        compare(recipe, peers.get(recipe, {}), work, files, options)
    say(f"\nLoad average after: {_load()}.")
    if options.save:
        page = Path(__file__).with_suffix(".md")
        notes = page.read_text().partition(NOTES)[2] if page.exists() else "\n"
        page.write_text("\n".join(said) + "\n\n" + NOTES + notes)


if __name__ == "__main__":
    main()
