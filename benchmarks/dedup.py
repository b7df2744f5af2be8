"""Benchmarks of deduplication: against datatrove's four stages on the same files, by size, and for quality.

    python benchmarks/dedup.py compare --peer PEER/bin/python        ratios to datatrove, in one run
    python benchmarks/dedup.py scale 1000000 3000000 10000000 --memory 2GB    time and peak memory by size
    python benchmarks/dedup.py quality                                        precision and recall against brute force
    python benchmarks/dedup.py families                                       recall in families of variants, low thresholds
    python benchmarks/dedup.py cost                                           CPU seconds, also for linked but dissimilar pages
    python benchmarks/dedup.py device                                         hashes on a GPU and on one core

`--peer` is the Python of an environment with datatrove:
    python -m venv X; X/bin/pip install "datatrove[processing,io]" spacy xxhash orjson
On a shared machine, compare only ratios within one run.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parent))
from corpus import make_corpus, make_english

from tamis import JsonlReader, JsonlWriter, Pipeline, Rows
from tamis.dedup import ExactDedup, FuzzyDedup, Groups
from tamis.dedup.groups_only import GroupsOnly
from tamis.dedup.texts import text_buffers
from tamis.operators import Reading

PEER = r"""
import json, resource, sys, time, shutil
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupSignature, MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter
from datatrove.utils.word_tokenizers import load_word_tokenizer
import datatrove
from importlib.metadata import version

def cpu_seconds():
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, kinds))

source, work, tasks, bands, rows = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
if __name__ == "__main__":
    load_word_tokenizer("eng").word_tokenize("warm up")
    config = MinhashConfig(n_grams=5, num_buckets=bands, hashes_per_bucket=rows)
    shutil.rmtree(work, ignore_errors=True)
    stages = [
        ([JsonlReader(source), MinhashDedupSignature(output_folder=f"{work}/sigs", config=config)], tasks),
        ([MinhashDedupBuckets(input_folder=f"{work}/sigs", output_folder=f"{work}/buckets", config=config)], bands),
        ([MinhashDedupCluster(input_folder=f"{work}/buckets", output_folder=f"{work}/remove", config=config)], 1),
        ([JsonlReader(source), MinhashDedupFilter(input_folder=f"{work}/remove"),
          JsonlWriter(f"{work}/out", compression=None)], tasks),
    ]
    seconds, cpu = [], []
    for number, (pipeline, count) in enumerate(stages):
        began, used = time.perf_counter(), cpu_seconds()
        workers = min(tasks, count)
        LocalPipelineExecutor(pipeline, tasks=count, workers=workers, logging_dir=f"{work}/logs/{number}").run()
        seconds.append(time.perf_counter() - began)
        cpu.append(cpu_seconds() - used)
    import glob
    kept = sum(1 for file in glob.glob(f"{work}/out/*.jsonl") for _ in open(file))
    print("RESULT" + json.dumps({"seconds": seconds, "cpu": cpu, "kept": kept, "version": version("datatrove")}))
"""


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if "model name" in line), "?")
    memory = psutil.virtual_memory().total / 1e9
    return f"{cpu}, {psutil.cpu_count()} cores, {memory:.0f} GB, Python {platform.python_version()}"


def peer(python: str, source: Path, work: Path, tasks: int, bands: int = 14, rows: int = 8) -> dict[str, Any]:
    done = subprocess.run(
        [python, "-c", PEER, *map(str, (source, work, tasks, bands, rows))],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    if not lines:
        raise SystemExit(done.stderr[-3000:])
    return json.loads(lines[-1].removeprefix("RESULT"))


def cpu_seconds() -> float:
    """CPU time of this process and of its finished children, which hardly depends on the load of the machine."""
    used = [resource.getrusage(kind) for kind in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def timed(action: Callable[[], Any]) -> tuple[float, float, Any]:
    """(seconds, CPU seconds, result)"""
    began, used = time.perf_counter(), cpu_seconds()
    result = action()
    return time.perf_counter() - began, cpu_seconds() - used, result


def sign(source: Path, work: Path, step: FuzzyDedup) -> None:
    """Read, sign and write the signatures in this process, as datatrove's first stage does."""
    reader = JsonlReader(str(source))
    layout = reader.layout(128_000_000)
    work.mkdir(parents=True, exist_ok=True)
    reading = Reading(None, layout.schema, 16_000_000, lambda failure: None)
    for partition in layout.partitions:
        writer = None
        for batch in reader.read(partition, reading):
            facts = pa.table(dict(step.facts(batch)))
            writer = writer or pa.ipc.new_file(work / f"{partition.index}.arrow", facts.schema)
            writer.write_table(facts)
        if writer is not None:
            writer.close()


def compare(args: argparse.Namespace) -> None:
    small, large = args.folder / f"english-{args.documents}", args.folder / f"english-{args.documents * args.times}"
    size = make_english(small, args.documents)
    large_size = make_english(large, args.documents * args.times)
    work, warm = args.folder / "work", args.folder / "warm"
    make_english(warm, 2000)
    print(machine())
    print(f"{args.documents:,} documents, {size / 1e6:.0f} MB of JSON lines; tamis on {args.times} times as much")
    print("MB/s of wall-clock time and of CPU time")
    print(f"{'':34}{'signatures, 1 core':>22}{'end to end, 2 workers':>24}{'kept':>12}")
    # datatrove has only word n-grams, so it gets NeMo's number of hashes over words; ours are over 24 characters.
    for bands, rows, steps in (
        (14, 8, {"14 x 8, signature": FuzzyDedup(verify="signature"), "14 x 8, jaccard": FuzzyDedup()}),
        (20, 13, {"nemo, signature": FuzzyDedup(settings="nemo", verify="signature")}),
    ):
        one, two = (peer(args.peer, small, work / f"peer-{tasks}", tasks, bands, rows) for tasks in (1, 2))
        rates = [size / one["seconds"][0] / 1e6, size / one["cpu"][0] / 1e6, size / sum(two["seconds"]) / 1e6]
        print(row_of(f"datatrove {one['version']}, {bands} x {rows}", rates, ".2f") + f"{two['kept']:>12,}", flush=True)
        for name, step in steps.items():
            sign(warm, work / "warm", step)
            measure(name, step, rates, ((small, size), (large, large_size)), work)
    shutil.rmtree(work, ignore_errors=True)


def measure(name: str, step: FuzzyDedup, rates: list[float], sources: Sequence[tuple[Path, int]], work: Path) -> None:
    """Sign and deduplicate each corpus; print the rates and their ratios to the peer's."""
    for source, num_bytes in sources:
        wall, cpu, _ = timed(lambda source=source: sign(source, work / "sign", step))
        shutil.rmtree(work / "out", ignore_errors=True)
        pipeline = Pipeline(JsonlReader(str(source)), step, JsonlWriter(str(work / "out")))
        whole, _, report = timed(lambda pipeline=pipeline: pipeline.run(memory="2GB", workers=2))
        mine = [num_bytes / seconds / 1e6 for seconds in (wall, cpu, whole)]
        print(row_of(f"tamis, {name}, {num_bytes / 1e6:.0f} MB", mine, ".1f") + f"{report.kept:>12,}")
        print(row_of("  times datatrove", [a / b for a, b in zip(mine, rates, strict=True)], ".0f"), flush=True)


def row_of(name: str, rates: list[float], form: str) -> str:
    shown = [format(rate, form) for rate in rates]
    return f"{name:34}{shown[0] + ' / ' + shown[1]:>22}{shown[2]:>24}"


def scale(args: argparse.Namespace) -> None:
    print(machine())
    step = ExactDedup() if args.exact else FuzzyDedup(verify=args.verify, settings=args.settings)
    print(f"{step.name} {step.parameters()}, memory {args.memory}, {args.workers} workers, device {args.device}")
    print(f"{'documents':>12}{'MB':>8}{'seconds':>10}{'us/document':>13}{'peak MB':>10}{'disk MB':>10}{'kept':>12}")
    for documents in args.sizes:
        source, out = args.folder / f"{documents}", args.folder / "out"
        size = make_corpus(source, documents)
        shutil.rmtree(out, ignore_errors=True)
        most = 0

        def watch(event: object, out: Path = out) -> None:
            nonlocal most
            if type(event).__name__ == "StageStarted":
                found = sum(file.stat().st_size for file in (out / ".tamis").rglob("*") if file.is_file())
                most = max(most, found)

        pipeline = Pipeline(JsonlReader(str(source)), step, JsonlWriter(str(out)))
        seconds, _, report = timed(
            lambda p=pipeline, w=watch: p.run(memory=args.memory, workers=args.workers, device=args.device, on_event=w)
        )
        print(
            f"{documents:>12,}{size / 1e6:>8.0f}{seconds:>10.1f}{seconds / documents * 1e6:>13.1f}"
            f"{report.peak_memory_bytes / 1e6:>10.0f}{most / 1e6:>10.0f}{report.kept:>12,}",
            flush=True,
        )
    shutil.rmtree(args.folder / "out", ignore_errors=True)


def quality(args: argparse.Namespace) -> None:
    """Precision and recall on pairs of similarities from 0.5 to 1; the true similarity is computed by brute force."""
    rng = random.Random(1)
    vocabulary = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(20_000)]
    rows, truth = [], []
    for number in range(args.pairs):
        words = rng.choices(vocabulary, k=rng.randint(*args.words))
        other = list(words)
        for _ in range(rng.randint(0, max(1, len(words) // 14))):
            other[rng.randrange(len(other))] = rng.choice(vocabulary)
        rows += [{"id": f"a{number}", "text": " ".join(words)}, {"id": f"b{number}", "text": " ".join(other)}]
        left, right = ({tuple(text[i : i + 5]) for i in range(len(text) - 4)} for text in (words, other))
        truth.append(len(left & right) / len(left | right))
    close = np.array(truth) >= args.threshold
    print(
        f"{len(truth):,} pairs, {close.sum():,} of them at {args.threshold} or above; similarities from about 0.5 to 1"
    )
    print(f"{'':20}{'precision':>12}{'recall':>10}{'banding curve':>20}")
    for verify in ("jaccard", "signature", "none"):
        out = args.folder / "quality"
        shutil.rmtree(out, ignore_errors=True)
        step = FuzzyDedup(threshold=args.threshold, verify=verify)
        Pipeline(Rows(rows), step, GroupsOnly(str(out))).run(executor="inline")
        gone = {int(name[1:]) for name in Groups.load(out).table()["id"].to_pylist()}
        right = sum(close[number] for number in gone)
        promised = np.mean([step.probability(truth[number]) for number in np.flatnonzero(close)])
        print(f"{verify:20}{right / len(gone):>12.4f}{right / close.sum():>10.4f}{promised:>20.4f}")


def families(args: argparse.Namespace) -> None:
    """Families of documents, each a changed copy of an earlier one of its family; recall against brute force.

    Recall: of the rows with an earlier survivor at the threshold or above, the share that was dropped.
    """
    rng = random.Random(2)
    vocabulary = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(20_000)]
    texts: list[list[str]] = []
    for _ in range(args.families):
        family = [rng.choices(vocabulary, k=rng.randint(60, 150))]
        for _ in range(args.members - 1):
            copy = list(rng.choice(family))
            for _ in range(rng.randint(0, max(1, len(copy) // 10))):
                copy[rng.randrange(len(copy))] = rng.choice(vocabulary)
            family.append(copy)
        texts += family
    rng.shuffle(texts)
    sets = [{tuple(words[i : i + 5]) for i in range(len(words) - 4)} for words in texts]
    rows = [{"number": number, "text": " ".join(words)} for number, words in enumerate(texts)]
    print(f"{args.families:,} families of {args.members}, settings {args.settings}")
    print(f"{'threshold':>10}{'kept':>10}{'dropped':>10}{'missed':>10}{'recall':>10}{'CPU s':>8}")
    for threshold in args.thresholds:
        pipeline = Pipeline(Rows(rows), FuzzyDedup(threshold=threshold, settings=args.settings))
        _, cpu, table = timed(lambda p=pipeline: p.collect(executor="inline"))
        kept = sorted(table["number"].to_pylist())
        missed = count_missed([sets[number] for number in kept], threshold)
        dropped = len(rows) - len(kept)
        recall = dropped / (dropped + missed)
        print(f"{threshold:>10}{len(kept):>10,}{dropped:>10,}{missed:>10,}{recall:>10.4f}{cpu:>8.1f}", flush=True)


def count_missed(kept: list[set[tuple[str, ...]]], threshold: float) -> int:
    """How many of these sets are as similar as the threshold to an earlier one."""
    holders: dict[tuple[str, ...], list[int]] = {}
    missed = 0
    for number, ngrams in enumerate(kept):
        shared = Counter(other for ngram in ngrams for other in holders.get(ngram, ()))
        missed += any(n / len(ngrams | kept[other]) >= threshold for other, n in shared.items())
        for ngram in ngrams:
            holders.setdefault(ngram, []).append(number)
    return missed


def cost(args: argparse.Namespace) -> None:
    """CPU seconds of deduplication in one process: the corpus of `scale`, and pages of templates that are all kept."""
    plain = args.folder / "cost-plain"
    make_corpus(plain, 250_000)
    sources = {"corpus of scale": plain} | {
        f"templates, {share:.0%} shared": templates(args.folder, share) for share in (0.6, 0.75)
    }
    Pipeline(Rows([{"text": "a text of more than five words"}] * 2), FuzzyDedup()).run(executor="inline")  # compiles
    print(machine())
    print(f"{'':28}{'threshold':>10}{'kept':>10}  CPU s, each of {args.times} runs")
    for name, source in sources.items():
        for threshold in (0.8, 0.6):
            used = []
            for _ in range(args.times):
                pipeline = Pipeline(JsonlReader(str(source)), FuzzyDedup(threshold=threshold))
                _, cpu, report = timed(lambda p=pipeline: p.run(executor="inline"))
                used.append(cpu)
            print(f"{name:28}{threshold:>10}{report.kept:>10,}  {', '.join(f'{cpu:.1f}' for cpu in used)}", flush=True)


def templates(folder: Path, share: float, pages: int = 100_000, words: int = 150) -> Path:
    """Pages of 20 templates, of which `share` of the words is the template's: linked by bands, and dissimilar."""
    target = folder / f"templates-{share}"
    if not target.exists():
        target.mkdir(parents=True)
        rng = np.random.default_rng(1)
        sizes = rng.integers(2, 10, 30_000)
        vocabulary = np.array(["".join(chr(97 + letter) for letter in rng.integers(0, 26, size)) for size in sizes])
        frames = [rng.integers(0, 30_000, int(words * share)) for _ in range(20)]
        with (target / "pages.jsonl").open("w") as file:
            for page in range(pages):
                own = rng.integers(0, 30_000, words - int(words * share))
                text = " ".join(vocabulary[np.concatenate([frames[page % 20], own])])
                file.write(json.dumps({"id": str(page), "text": text}) + "\n")
    return target


def device(args: argparse.Namespace) -> None:
    """Sign the same batch on a GPU and on one core; the results must be identical."""
    import cupy

    rng = np.random.default_rng(1)
    words = np.array(["".join(chr(97 + letter) for letter in rng.integers(0, 26, size)) for size in range(2, 12)] * 500)
    print(machine(), cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(), f"CuPy {cupy.__version__}", sep=", ")
    print(f"{'':28}{'MB':>6}{'GPU MB/s':>12}{'core MB/s':>12}{'times':>8}")
    for name, step in {
        "14 x 8, signature": FuzzyDedup(verify="signature"),
        "14 x 8, jaccard": FuzzyDedup(),
        "nemo, signature": FuzzyDedup(settings="nemo", verify="signature"),
    }.items():
        for documents, size in ((30_000, 80), (100_000, 80), (10_000, 800)):
            rows = [" ".join(rng.choice(words, size)) for _ in range(documents)]
            data, offsets = text_buffers(pa.array(rows), "text")
            seconds, facts = {}, {}
            for where in ("gpu", "cpu"):
                gpu = where == "gpu"
                step.signed(data, offsets, on_gpu=gpu)  # compiles
                tries = [timed(lambda s=step, d=data, o=offsets, g=gpu: s.signed(d, o, on_gpu=g)) for _ in range(5)]
                seconds[where], facts[where] = min(each[0] for each in tries), tries[-1][2]
            for field in ("content", "counts", "keys", "compared", "spans"):
                same = np.array_equal(getattr(facts["gpu"], field), getattr(facts["cpu"], field))
                assert same, f"{field}: results of GPU and CPU differ"
            megabytes = len(data) / 1e6
            gpu, core = (megabytes / seconds[where] for where in ("gpu", "cpu"))
            print(
                f"{name}, {size} words".ljust(28) + f"{megabytes:>6.0f}{gpu:>12.0f}{core:>12.0f}{gpu / core:>8.1f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/tamis-dedup"), help="folder of corpora and outputs")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("compare")
    command.add_argument("--peer", required=True)
    command.add_argument("--documents", type=int, default=24_000)
    command.add_argument("--times", type=int, default=12)
    command.set_defaults(run=compare)
    command = commands.add_parser("scale")
    command.add_argument("sizes", type=int, nargs="+")
    command.add_argument("--memory", default="2GB")
    command.add_argument("--workers", type=int, default=2)
    command.add_argument("--verify", default="jaccard")
    command.add_argument("--settings", default="fineweb")
    command.add_argument("--device", default="auto")
    command.add_argument("--exact", action="store_true")
    command.set_defaults(run=scale)
    command = commands.add_parser("quality")
    command.add_argument("--pairs", type=int, default=4000)
    command.add_argument("--threshold", type=float, default=0.8)
    command.add_argument(
        "--words", type=int, nargs=2, default=(60, 400), help="words of the shortest and the longest document"
    )
    command.set_defaults(run=quality)
    command = commands.add_parser("families")
    command.add_argument("--families", type=int, default=500)
    command.add_argument("--members", type=int, default=16)
    command.add_argument("--thresholds", type=float, nargs="+", default=(0.5, 0.6, 0.7, 0.8))
    command.add_argument("--settings", default="fineweb")
    command.set_defaults(run=families)
    command = commands.add_parser("cost")
    command.add_argument("--times", type=int, default=3)
    command.set_defaults(run=cost)
    commands.add_parser("device").set_defaults(run=device)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
