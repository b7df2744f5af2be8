"""Compare the engine with a plain pyarrow loop, in one run on the same files.

    python benchmarks/engine.py [--megabytes 500] [--large-megabytes 5000] [--workers 2]

Prints, and writes to benchmarks/engine.md with --save:
  - conversion of JSON Lines to Parquet: MB/s, ratio to a loop of pyarrow reads and writes on as many cores, peak memory
  - peak memory of the same job over 100 MB and over much more data
  - start-up: `tamis --help`, a job over 1 MB, 20,000 small files in one folder

Absolute numbers depend on the machine and its load; the ratios are from one run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq

import tamis

TAMIS = [sys.executable, "-m", "tamis"]
FILE_BYTES = 64_000_000
READ_BLOCK = 16_000_000


def make_corpus(folder: Path, megabytes: int) -> list[Path]:
    """Write JSON Lines like those of a crawl: texts of 0.5 to 10 kB, a few short columns, one nested column."""
    generator = random.Random(0)
    words = ["".join(generator.choices("etaoinshrdlucmfwypvbgk", k=generator.randint(2, 10))) for _ in range(5000)]
    folder.mkdir(parents=True)
    pool: list[str] = []
    for _ in range(4000):
        sentences = [
            " ".join(generator.choices(words, k=generator.randint(5, 25))) + "."
            for _ in range(generator.randint(5, 80))
        ]
        pool.append("\n".join(" ".join(sentences[i : i + 5]) for i in range(0, len(sentences), 5)))
    files, written, row = [], 0, 0
    while written < megabytes * 1_000_000:
        path = folder / f"{len(files):05d}.jsonl"
        with path.open("w") as file:
            size = 0
            while size < min(FILE_BYTES, megabytes * 1_000_000 - written):
                text = pool[generator.randrange(len(pool))]
                entry = {
                    "id": f"doc-{row:09d}",
                    "url": f"https://example.org/{row}",
                    "date": "2024-05-17",
                    "text": text,
                    "score": generator.random(),
                    "meta": {"language": "en", "length": len(text)},
                }
                size += file.write(json.dumps(entry) + "\n")
                row += 1
        written += size
        files.append(path)
    return files


class Peak:
    """Peak memory (PSS) of a process and its descendants, sampled ten times a second from outside."""

    def __init__(self, pid: int) -> None:
        self.bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(psutil.Process(pid),))
        self._thread.start()

    def _watch(self, root: psutil.Process) -> None:
        from tamis.memory.monitor import held_bytes

        while not self._stop.wait(0.1):
            try:
                tree = [root, *root.children(recursive=True)]
            except psutil.Error:
                return
            self.bytes = max(self.bytes, sum(held_bytes(process.pid) for process in tree))

    def close(self) -> int:
        self._stop.set()
        self._thread.join()
        return self.bytes


def measured(command: list[str]) -> tuple[float, int]:
    """Return the seconds and the peak bytes of a command."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    peak = Peak(process.pid)
    _, errors = process.communicate()
    seconds = time.perf_counter() - began
    if process.returncode:
        raise SystemExit(errors.decode())
    return seconds, peak.close()


def bare_file(job: tuple[str, str]) -> None:
    """Stream a JSON Lines file into a Parquet file with pyarrow alone."""
    source, target = job
    options = pyarrow.json.ReadOptions(use_threads=False, block_size=READ_BLOCK)
    reader = pyarrow.json.open_json(source, read_options=options)
    with pq.ParquetWriter(target, reader.schema, compression="zstd", compression_level=3) as writer:
        for batch in reader:
            writer.write_batch(batch)


def bare_loop(files: list[Path], target: Path, workers: int) -> float:
    target.mkdir()
    jobs = [(str(file), str(target / f"{file.stem}.parquet")) for file in files]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        pool.map(bare_file, jobs[:workers])  # warm up, to exclude start-up
        began = time.perf_counter()
        pool.map(bare_file, jobs, chunksize=1)
        return time.perf_counter() - began


RECIPE = "steps:\n  - jsonl_reader: {file_paths: IN}\n  - parquet_writer: {path: OUT}\n"


def tamis_run(recipe: Path, source: Path, target: Path, workers: int, *more: str) -> tuple[float, int]:
    command = [*TAMIS, "run", str(recipe), "--input", str(source), "--output", str(target), "--workers", str(workers)]
    return measured([*command, "--quiet", *more])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--large-megabytes", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    lines = [
        "# Engine overhead compared with plain pyarrow",
        "",
        f"`{' '.join(['python', *sys.argv])}`",
        "",
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, pyarrow {pa.__version__}, "
        f"tamis {tamis.__version__}",
        "",
        "| what | value |",
        "|---|---|",
    ]

    def say(what: str, value: str) -> None:
        lines.append(f"| {what} | {value} |")
        sys.stdout.write(f"{what:<70} {value}\n")
        sys.stdout.flush()

    with tempfile.TemporaryDirectory(prefix="tamis-bench-") as folder_name:
        folder = Path(folder_name)
        recipe = folder / "pass.yaml"
        recipe.write_text(RECIPE)
        files = make_corpus(folder / "in", options.megabytes)
        size = sum(file.stat().st_size for file in files) / 1e6
        ratios = []
        for number in range(options.rounds):
            bare_s = bare_loop(files, folder / f"bare-{number}", options.workers)
            ours_s, peak = tamis_run(recipe, folder / "in", folder / f"out-{number}", options.workers)
            ratios.append(bare_s / ours_s)
            say(
                f"conversion of {size:.0f} MB of JSON Lines to Parquet, {options.workers} workers, round {number + 1}",
                f"tamis {size / ours_s:.0f} MB/s with start-up, pyarrow {size / bare_s:.0f} MB/s without: "
                f"ratio {bare_s / ours_s:.2f}; peak {peak / 1e6:.0f} MB",
            )
            shutil.rmtree(folder / f"bare-{number}")
            shutil.rmtree(folder / f"out-{number}")
        say("median ratio (target: at least 0.5)", f"{sorted(ratios)[len(ratios) // 2]:.2f}")

        shutil.rmtree(folder / "in")
        for megabytes in [100, *([options.large_megabytes] if options.large_megabytes else [])]:
            make_corpus(folder / "in", megabytes)
            # Small partitions, so that every worker has some even with little data.
            small = ("--set", "jsonl_reader.blocksize=16MB")
            seconds, peak = tamis_run(recipe, folder / "in", folder / "out", options.workers, *small)
            say(
                f"peak memory of a conversion of {megabytes:,} MB",
                f"{peak / 1e6:.0f} MB ({megabytes / seconds:.0f} MB/s)",
            )
            shutil.rmtree(folder / "in")
            shutil.rmtree(folder / "out")

        make_corpus(folder / "in", 1)
        tamis_run(recipe, folder / "in", folder / "warm", 1)
        times = [tamis_run(recipe, folder / "in", folder / f"small-{n}", options.workers)[0] for n in range(5)]
        say(
            "a job over 1 MB, best and median of 5 (target: under 2 s)", f"{min(times):.2f} s, {sorted(times)[2]:.2f} s"
        )
        times = [measured([*TAMIS, "--help"])[0] for _ in range(5)]
        say(
            "`tamis --help`, best and median of 5 (target: under 0.5 s)",
            f"{min(times):.2f} s, {sorted(times)[2]:.2f} s",
        )

        (folder / "many").mkdir()
        for number in range(20_000):
            (folder / "many" / f"{number:05d}.jsonl").write_text(f'{{"id": {number}, "text": "a small file"}}\n')
        seconds, peak = tamis_run(recipe, folder / "many", folder / "many-out", options.workers)
        shards = len(list((folder / "many-out").glob("*.parquet")))
        say("20,000 small files in one folder", f"{seconds:.1f} s, {shards} shards, peak {peak / 1e6:.0f} MB")

    if options.save:
        Path(__file__).with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
