"""Compare the start-up of two versions of Tamis: a job of 1 MB, in alternating runs.

    python benchmarks/startup.py OLD NEW [--rounds 11] [--no-bytecode]

OLD and NEW are folders with a copy of the source. Prints the wall time, the processor time of driver and server, and the
ratio of the versions. Without bytecode, every process compiles the modules of Tamis, as where PYTHONDONTWRITEBYTECODE is set.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

RECIPE = """
steps:
  - jsonl_reader: {file_paths: in.jsonl}
  - word_count
  - parquet_writer: {path: out}
"""


def write_job(folder: Path) -> None:
    generator = random.Random(0)
    words = ["".join(generator.choices("etaoinshrdlu", k=generator.randint(2, 10))) for _ in range(1000)]
    size = 0
    with (folder / "in.jsonl").open("w") as file:
        while size < 1_000_000:
            size += file.write(json.dumps({"text": " ".join(generator.choices(words, k=60))}) + "\n")
    (folder / "recipe.yaml").write_text(RECIPE)


def run_once(tree: Path, folder: Path, *, bytecode: bool) -> tuple[float, float]:
    """Wall and processor time of one run."""
    shutil.rmtree(folder / "out", ignore_errors=True)
    variables = {**os.environ, "PYTHONPATH": str(tree)}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    if not bytecode:
        variables |= {"PYTHONDONTWRITEBYTECODE": "1"}
    before, began = os.times(), time.perf_counter()
    command = [sys.executable, "-m", "tamis", "run", "recipe.yaml", "--quiet"]
    subprocess.run(command, cwd=folder, env=variables, check=True)
    wall, after = time.perf_counter() - began, os.times()
    return wall, sum(after[2:4]) - sum(before[2:4])


def prepare(tree: Path, *, bytecode: bool) -> None:
    if bytecode:
        compileall.compile_dir(tree / "tamis", quiet=1)
    else:
        for file in tree.glob("tamis/**/*.pyc"):
            file.unlink()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("trees", nargs=2, type=Path, metavar=("OLD", "NEW"))
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--no-bytecode", action="store_true")
    given = parser.parse_args()
    old, new = (tree.resolve() for tree in given.trees)
    results: dict[Path, list[tuple[float, float]]] = {old: [], new: []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_job(folder)
        for tree in results:
            prepare(tree, bytecode=not given.no_bytecode)
            run_once(tree, folder, bytecode=not given.no_bytecode)  # compiles kernels that are not on disk
        for number in range(given.rounds):
            for tree in [old, new] if number % 2 else [new, old]:
                results[tree].append(run_once(tree, folder, bytecode=not given.no_bytecode))
    for title, found in [("old", results[old]), ("new", results[new])]:
        walls, times = [wall for wall, _ in found], [cpu for _, cpu in found]
        sys.stdout.write(
            f"{title}: wall {min(walls):.2f} to {max(walls):.2f} s, median {median(walls):.2f}; "
            f"CPU {min(times):.2f} to {max(times):.2f} s, median {median(times):.2f}\n"
        )
    ratios = [one[0] / other[0] for one, other in zip(results[new], results[old], strict=True)]
    sys.stdout.write(f"median of the ratios of wall times: {median(ratios):.2f}; load {os.getloadavg()[0]:.1f}\n")


if __name__ == "__main__":
    main()
