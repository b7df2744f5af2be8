"""Shuffle more rows than fit in memory, beside a plain copy of the same rows and GNU sort.

    python benchmarks/shuffle.py [--megabytes 10000] [--memory 1GB] [--workers 2] [--kind tiny] [--sort]

The input is JSON Lines of random words: files of 250 MB, documents of 1.4 kB in the mean with lengths as in a crawl. A copy is
the same pipeline without the step. The process tree is sampled ten times a second, counting shared pages once (PSS). The result
is checked: the same lines, each once, in another order. With --sort, GNU `sort -R` shuffles the lines in the same memory; it
hashes whole lines, and equal lines stay together.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
from corpus import vocabulary
from engine import TAMIS, measured

FILE_BYTES = 250_000_000
RECIPE = "steps:\n  - jsonl_reader: {file_paths: IN}\n%s  - jsonl_writer: {path: OUT}\n"


def make_input(folder: Path, megabytes: int) -> None:
    rng = np.random.default_rng(3)
    words = np.array(vocabulary()[:20_000], dtype=object)
    folder.mkdir()
    number = 0
    for file in range(max(1, megabytes * 10**6 // FILE_BYTES)):
        size = min(FILE_BYTES, megabytes * 10**6)
        with (folder / f"{file:04d}.jsonl").open("w") as target:
            while size > 0:
                lengths = np.clip(rng.lognormal(5.3, 0.9, 1000), 5, 20_000).astype(int)
                drawn = words[(20_000 ** rng.random(int(lengths.sum()))).astype(int) - 1]
                ends = np.cumsum(lengths)
                for start, end in zip(ends - lengths, ends, strict=True):
                    size -= target.write(json.dumps({"id": number, "text": " ".join(drawn[start:end])}) + "\n")
                    number += 1


def make_odd(folder: Path, kind: str) -> None:
    """Three million rows of one word, or 900 rows of up to 900 kB."""
    folder.mkdir()
    rng = np.random.default_rng(5)
    with (folder / "0.jsonl").open("w") as target:
        for number in range(3_000_000 if kind == "tiny" else 900):
            text = f"w{number}" if kind == "tiny" else "x y z " * int(rng.integers(1, 150_000))
            target.write(json.dumps({"id": number, "text": text}) + "\n")


def checksum(folder: Path, pattern: str) -> tuple[int, int, list[int]]:
    """Lines, a hash of the set of lines, and the first ids."""
    lines, total, first = 0, 0, []
    for file in sorted(folder.glob(pattern)):
        with file.open("rb") as opened:
            for line in opened:
                lines += 1
                total = (total + int.from_bytes(hashlib.blake2b(line, digest_size=8).digest(), "little")) % 2**64
                if len(first) < 5:
                    first.append(json.loads(line)["id"])
    return lines, total, first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=10_000)
    parser.add_argument("--memory", default="1GB")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder")
    parser.add_argument("--input", help="a folder that an earlier run of make_input wrote")
    parser.add_argument("--kind", choices=["documents", "tiny", "large"], default="documents")
    parser.add_argument("--sort", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        work = Path(name)
        source = Path(options.input or work / "in")
        if options.kind != "documents":
            make_odd(source, options.kind)
            options.megabytes = (source / "0.jsonl").stat().st_size // 10**6
        elif not options.input:
            make_input(source, options.megabytes)
        expected = checksum(source, "*.jsonl")
        print(f"{options.megabytes} MB, {expected[0]:,} lines, --memory {options.memory}, {options.workers} workers")
        for what, step in (("copy", ""), ("shuffle", "  - shuffle: {seed: 1}\n")):
            (work / "recipe.yaml").write_text(RECIPE % step)
            command = [*TAMIS, "run", str(work / "recipe.yaml"), "--input", str(source)]
            command += ["--output", str(work / "out"), "--memory", options.memory, "--workers", str(options.workers)]
            seconds, peak = measured([*command, "--quiet"])
            found = checksum(work / "out", "part-*")
            assert found[:2] == expected[:2], "the lines differ"
            rate = options.megabytes / seconds
            print(f"{what:8} {seconds:7.1f} s  {rate:6.1f} MB/s  peak {peak / 1e6:,.0f} MB  first ids {found[2]}")
            shutil.rmtree(work / "out")
        if options.sort:
            files = " ".join(f"'{file}'" for file in sorted(source.iterdir()))
            memory = options.memory.removesuffix("B")
            shell = f"sort -R -S {memory} --parallel={options.workers} -T '{work}' {files} > '{work}/sorted'"
            seconds, peak = measured(["bash", "-c", shell])
            print(f"{'sort -R':8} {seconds:7.1f} s  {options.megabytes / seconds:6.1f} MB/s  peak {peak / 1e6:,.0f} MB")


if __name__ == "__main__":
    main()
