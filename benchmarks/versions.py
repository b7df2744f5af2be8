"""Compare two versions of Tamis: seconds and peak memory of recipes and deduplication, both versions at the same time.

    python benchmarks/versions.py OLD NEW [--budgets 512MB,1GB,2GB] [--times 2] [--pairs 3] [--jobs gopher,fuzzy]

OLD and NEW are folders with the source of a version. Every job runs in both at the same moment, each on two cores of its own,
`--pairs` jobs at a time, so that both have the same share of disk and memory bandwidth. Peaks are those of the process tree,
sampled from outside (PSS). Kernels are compiled before. Exits with 1 if the versions keep different numbers of rows.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from corpus import make_corpus
from engine import Peak
from memory import DEDUP, DOCUMENT_BYTES, SHORT, modules, same_file_often, speeches, write_documents

from tamis.parameters import parse_bytes

JOBS = "gopher,c4,fineweb,nemo_english,nemo_non_english,length,code,exact,paragraph,fuzzy,nemo"
HEADER = (
    "| job | budget | old | new | ratio | old peak | new peak | ratio | kept |\n|---|---|---|---|---|---|---|---|---|\n"
)


def command(job: str, source: Path, output: Path, budget: str) -> list[str]:
    what = (
        ["dedup", *DEDUP[job], source, output] if job in DEDUP else ["run", job, "--input", source, "--output", output]
    )
    return [sys.executable, "-m", "tamis", *map(str, what), "--memory", budget, "--workers", "2", "--quiet"]


def measure(version: Path, cores: str, job: str, source: Path, output: Path, budget: str) -> tuple[float, int, int]:
    """(seconds, peak bytes, rows kept) of a job with one version on some cores."""
    paths = [str(version), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    began = time.perf_counter()
    pinned = ["taskset", "--cpu-list", cores, *command(job, source, output, budget)]
    process = subprocess.Popen(pinned, cwd=output.parent, env=environment, stderr=subprocess.PIPE)
    peak = Peak(process.pid)
    _, errors = process.communicate()
    seconds, most = time.perf_counter() - began, peak.close()
    if process.returncode:
        raise RuntimeError(errors.decode()[-2000:])
    kept = json.loads((output / ".tamis" / "report.json").read_text())["kept"]
    shutil.rmtree(output)
    return seconds, most, kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs=2, type=Path, metavar="VERSION")
    parser.add_argument("--budgets", default="512MB,1GB,2GB")
    parser.add_argument("--jobs", default=JOBS)
    parser.add_argument("--times", type=float, default=2.0, help="size of the data as a multiple of the budget")
    parser.add_argument("--pairs", type=int, default=(os.cpu_count() or 4) // 4)
    options = parser.parse_args()
    jobs = [SHORT.get(job, job) for job in options.jobs.split(",")]
    free: SimpleQueue[int] = SimpleQueue()
    for pair in range(options.pairs):
        free.put(pair)
    with tempfile.TemporaryDirectory(prefix="tamis-versions-") as name:
        folder = Path(name)
        write_documents(folder / "text.jsonl", speeches(), joined=True)
        write_documents(folder / "code.jsonl", modules(), joined=False)
        sources = {}
        for budget in ("8MB", *options.budgets.split(",")):
            size = int(options.times * parse_bytes(budget))
            documents = folder / f"documents-{budget}"
            make_corpus(documents, -(-size // DOCUMENT_BYTES), workers=os.cpu_count() or 2)
            sources[budget] = {"dedup": documents}
            for kind in ("text", "code"):
                sources[budget][kind] = folder / f"{kind}-{budget}"
                same_file_often(sources[budget][kind], folder / f"{kind}.jsonl", size)

        def compare(job: str, data: str, budget: str) -> tuple[str, bool]:
            source = sources[data]["dedup" if job in DEDUP else "code" if job.startswith("code") else "text"]
            pair = free.get()
            try:
                with ThreadPoolExecutor(2) as both:
                    running = []
                    for number, version in enumerate(options.versions):
                        first = 4 * pair + 2 * number
                        work = folder / f"work-{pair}-{number}-{data}-{job.replace(' ', '')}"
                        work.mkdir()
                        arguments = (version.absolute(), f"{first},{first + 1}", job, source, work / "out", budget)
                        running.append(both.submit(measure, *arguments))
                    found = [each.result() for each in running]
            except RuntimeError as error:
                return f"| {job} | {budget} | {error} |", False
            finally:
                free.put(pair)
            (old, old_peak, kept), (new, new_peak, also) = found
            line = (
                f"| {job} | {budget} | {old:.1f} s | {new:.1f} s | {new / old:.2f} | {old_peak / 1e6:.0f} MB | "
                f"{new_peak / 1e6:.0f} MB | {new_peak / old_peak:.2f} | {kept:,}{'' if kept == also else f', NOT {also:,}'} |"
            )
            return line, kept == also

        with ThreadPoolExecutor(options.pairs) as pool:
            list(pool.map(lambda job: compare(job, "8MB", "1GB"), jobs))  # compiles kernels
            sys.stdout.write(HEADER)
            same = True
            for budget in options.budgets.split(","):
                for line, equal in pool.map(lambda job, budget=budget: compare(job, budget, budget), jobs):
                    sys.stdout.write(line + "\n")
                    sys.stdout.flush()
                    same &= equal
    raise SystemExit(not same)


if __name__ == "__main__":
    main()
