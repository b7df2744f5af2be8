"""Deduplication measured: against datatrove's four stages on the same files, over sizes, and for quality.

    python benchmarks/dedup.py compare --peer /tmp/peers/dt/bin/python        ratios to datatrove, in one run
    python benchmarks/dedup.py scale 1000000 3000000 10000000 --memory 2GB    time and peak memory by size
    python benchmarks/dedup.py quality                                        precision and recall against brute force

`--peer` is the Python of an environment with datatrove:
    python -m venv X; X/bin/pip install "datatrove[processing,io]" spacy xxhash orjson
On a shared machine only ratios within one run mean something.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import json
import platform
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parent))
from corpus import make_corpus

from tamis import JsonlReader, JsonlWriter, Pipeline, Rows
from tamis.dedup import ExactDedup, FuzzyDedup, Groups
from tamis.dedup.verdicts import Verdicts

PEER = r"""
import json, sys, time, shutil
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupSignature, MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter
from datatrove.utils.word_tokenizers import load_word_tokenizer
import datatrove
from importlib.metadata import version

source, work, tasks = sys.argv[1], sys.argv[2], int(sys.argv[3])
if __name__ == "__main__":
    load_word_tokenizer("eng").word_tokenize("warm up")
    config = MinhashConfig(n_grams=5, num_buckets=14, hashes_per_bucket=8)
    shutil.rmtree(work, ignore_errors=True)
    stages = [
        ([JsonlReader(source), MinhashDedupSignature(output_folder=f"{work}/sigs", config=config)], tasks),
        ([MinhashDedupBuckets(input_folder=f"{work}/sigs", output_folder=f"{work}/buckets", config=config)], 14),
        ([MinhashDedupCluster(input_folder=f"{work}/buckets", output_folder=f"{work}/remove", config=config)], 1),
        ([JsonlReader(source), MinhashDedupFilter(input_folder=f"{work}/remove"),
          JsonlWriter(f"{work}/out", compression=None)], tasks),
    ]
    seconds = []
    for number, (pipeline, count) in enumerate(stages):
        began = time.perf_counter()
        workers = min(tasks, count)
        LocalPipelineExecutor(pipeline, tasks=count, workers=workers, logging_dir=f"{work}/logs/{number}").run()
        seconds.append(time.perf_counter() - began)
    import glob
    kept = sum(1 for file in glob.glob(f"{work}/out/*.jsonl") for _ in open(file))
    print("RESULT" + json.dumps({"seconds": seconds, "kept": kept, "version": version("datatrove")}))
"""


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if "model name" in line), "?")
    memory = psutil.virtual_memory().total / 1e9
    return f"{cpu}, {psutil.cpu_count()} cores, {memory:.0f} GB, Python {platform.python_version()}"


def peer(python: str, source: Path, work: Path, tasks: int) -> dict[str, object]:
    done = subprocess.run(
        [python, "-c", PEER, str(source), str(work), str(tasks)], capture_output=True, text=True, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    if not lines:
        raise SystemExit(done.stderr[-3000:])
    return json.loads(lines[-1].removeprefix("RESULT"))


def timed(action: Callable[[], object]) -> tuple[float, object]:
    began = time.perf_counter()
    result = action()
    return time.perf_counter() - began, result


def signing_seconds(source: Path, work: Path, step: FuzzyDedup) -> float:
    """Reading and signing in this process, without what follows."""
    shutil.rmtree(work, ignore_errors=True)
    report = Pipeline(JsonlReader(str(source)), step, Verdicts(str(work))).run(executor="inline")
    return sum(operator["seconds"] for operator in report.operators[:2])


def compare(args: argparse.Namespace) -> None:
    small, large = args.folder / f"compare-{args.documents}", args.folder / f"compare-{args.documents * args.times}"
    size = make_corpus(small, args.documents)
    large_size = make_corpus(large, args.documents * args.times)
    work = args.folder / "work"
    print(machine())
    print(f"{args.documents:,} documents, {size / 1e6:.0f} MB of JSON lines; tamis also on {args.times} times as much")
    one = peer(args.peer, small, work / "peer-1", 1)
    two = peer(args.peer, small, work / "peer-2", 2)
    print(f"datatrove {one['version']}")
    warm = args.folder / "warm"
    make_corpus(warm, 2000)
    rows = []
    for verify in ("signature", "jaccard"):
        step = FuzzyDedup(verify=verify)
        signing_seconds(warm, work / "warm", step)
        alone = signing_seconds(large, work / "sign", step) / large_size
        shutil.rmtree(work / "out", ignore_errors=True)
        pipeline = Pipeline(JsonlReader(str(large)), step, JsonlWriter(str(work / "out")))
        whole, report = timed(lambda pipeline=pipeline: pipeline.run(memory="2GB", workers=2))
        rows.append((verify, 1 / alone, large_size / whole, report.kept))
    peer_sign, peer_whole = size / one["seconds"][0], size / sum(two["seconds"])
    print(f"\n{'':32}{'signatures, 1 core':>20}{'end to end, 2 cores':>22}{'kept':>12}")
    print(f"{'datatrove (4 stages)':32}{peer_sign / 1e6:>15.2f} MB/s{peer_whole / 1e6:>17.2f} MB/s{two['kept']:>12,}")
    for verify, sign, whole, kept in rows:
        print(f"{'tamis, verify=' + verify:32}{sign / 1e6:>15.1f} MB/s{whole / 1e6:>17.1f} MB/s{kept:>12,}")
        print(f"{'  times datatrove':32}{sign / peer_sign:>20.0f}{whole / peer_whole:>22.0f}")
    print("datatrove's stages on 2 cores:", ", ".join(f"{second:.1f} s" for second in two["seconds"]))


def scale(args: argparse.Namespace) -> None:
    print(machine())
    step = ExactDedup() if args.exact else FuzzyDedup(verify=args.verify)
    print(f"{step.name} {step.parameters()}, memory {args.memory}, {args.workers} workers")
    print(f"{'documents':>12}{'MB':>8}{'seconds':>10}{'us/document':>13}{'peak MB':>10}{'disk MB':>10}{'kept':>12}")
    for documents in args.sizes:
        source, out = args.folder / f"{documents}", args.folder / "out"
        size = make_corpus(source, documents)
        shutil.rmtree(out, ignore_errors=True)
        most = 0

        def watch(event: object, out: Path = out) -> None:
            nonlocal most
            if type(event).__name__ == "StageStarted":
                found = sum(file.stat().st_size for file in (out / "_tamis").rglob("*") if file.is_file())
                most = max(most, found)

        pipeline = Pipeline(JsonlReader(str(source)), step, JsonlWriter(str(out)))
        seconds, report = timed(lambda p=pipeline, w=watch: p.run(memory=args.memory, workers=args.workers, on_event=w))
        print(
            f"{documents:>12,}{size / 1e6:>8.0f}{seconds:>10.1f}{seconds / documents * 1e6:>13.1f}"
            f"{report.peak_memory_bytes / 1e6:>10.0f}{most / 1e6:>10.0f}{report.kept:>12,}",
            flush=True,
        )
    shutil.rmtree(args.folder / "out", ignore_errors=True)


def quality(args: argparse.Namespace) -> None:
    """Pairs of every similarity from 0.5 to 1, true similarity by brute force."""
    rng = random.Random(1)
    vocabulary = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(20_000)]
    rows, truth = [], []
    for number in range(args.pairs):
        words = rng.choices(vocabulary, k=rng.randint(60, 400))
        other = list(words)
        for _ in range(rng.randint(0, max(1, len(words) // 14))):
            other[rng.randrange(len(other))] = rng.choice(vocabulary)
        rows += [{"id": f"a{number}", "text": " ".join(words)}, {"id": f"b{number}", "text": " ".join(other)}]
        left, right = ({tuple(text[i : i + 5]) for i in range(len(text) - 4)} for text in (words, other))
        truth.append(len(left & right) / len(left | right))
    close = np.array(truth) >= args.threshold
    print(
        f"{len(truth):,} pairs, {close.sum():,} of them at {args.threshold} or above; similarities spread from 0.5 to 1"
    )
    print(f"{'':20}{'precision':>12}{'recall':>10}{'promised by bands':>20}")
    for verify in ("jaccard", "signature", "none"):
        out = args.folder / "quality"
        shutil.rmtree(out, ignore_errors=True)
        step = FuzzyDedup(threshold=args.threshold, verify=verify)
        Pipeline(Rows(rows), step, Verdicts(str(out))).run(executor="inline")
        gone = {int(name[1:]) for name in Groups.load(out).table()["id"].to_pylist()}
        right = sum(close[number] for number in gone)
        promised = np.mean([step.probability(truth[number]) for number in np.flatnonzero(close)])
        print(f"{verify:20}{right / len(gone):>12.4f}{right / close.sum():>10.4f}{promised:>20.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/tamis-dedup"), help="where corpora and outputs lie")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("compare")
    command.add_argument("--peer", required=True)
    command.add_argument("--documents", type=int, default=20_000)
    command.add_argument("--times", type=int, default=25)
    command.set_defaults(run=compare)
    command = commands.add_parser("scale")
    command.add_argument("sizes", type=int, nargs="+")
    command.add_argument("--memory", default="2GB")
    command.add_argument("--workers", type=int, default=2)
    command.add_argument("--verify", default="jaccard")
    command.add_argument("--exact", action="store_true")
    command.set_defaults(run=scale)
    command = commands.add_parser("quality")
    command.add_argument("--pairs", type=int, default=4000)
    command.add_argument("--threshold", type=float, default=0.8)
    command.set_defaults(run=quality)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
