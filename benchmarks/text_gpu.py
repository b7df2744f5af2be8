"""Would statistics of texts be faster on a GPU? The time of sixteen cores for them, and that of copying texts to a GPU.

    python benchmarks/text_gpu.py [--gigabytes 8] [--files 64] [--workers 15]

Three runs from Parquet files, alternating, in each of two rounds: reading and counting rows alone, with `GopherQuality`,
and with `GopherRepetition` too. No kernel on a GPU can save more than what these filters take beyond reading. In one
process: megabytes per second of the filters on one core, and of copying the same texts through pinned memory to a GPU,
which any kernel there needs.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import multiprocessing
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parent))
from dedup_gpu import machine, some_texts, write_file

from tamis import Map, ParquetReader, Pipeline, operator
from tamis.batch import Batch
from tamis.dedup.groups_only import GroupsOnly
from tamis.dedup.texts import text_buffers
from tamis.kernels import minhash_gpu
from tamis.text import GopherQuality, GopherRepetition


@operator(reads="text", writes="size")
class Size(Map):
    """Adds the number of bytes of each text: reads the column, and does almost nothing with it."""

    def apply(self, batch: Batch) -> dict[str, pa.Array]:
        return {"size": pa.compute.binary_length(batch["text"])}


CASES = {
    "reading alone": (Size(),),
    "GopherQuality": (GopherQuality(score_only=True),),
    "GopherQuality, GopherRepetition": (GopherQuality(score_only=True), GopherRepetition(score_only=True)),
}


def best(call: Callable[[], object], tries: int = 5) -> float:
    call()
    took = []
    for _ in range(tries):
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    return min(took)


def one_process(megabytes: int) -> None:
    texts = pa.array(some_texts(1, megabytes * 1_000_000, 0.08))
    data, offsets = text_buffers(texts, "text")
    size = int(offsets[-1] - offsets[0])
    for name, steps in CASES.items():
        filters = [step for step in steps if hasattr(step, "score")]
        if filters:

            def score(filters: list[object] = filters) -> None:
                batch = Batch(pa.table({"text": texts}))
                for step in filters:
                    step.score(batch)  # type: ignore[attr-defined]

            print(f"one core, {name}: {size / best(score) / 1e6:,.0f} MB/s", flush=True)
    if minhash_gpu.available():
        import cupy

        def send() -> None:
            minhash_gpu._send(cupy, data)
            cupy.cuda.Device().synchronize()

        print(f"to the GPU through pinned memory: {size / best(send) / 1e6:,.0f} MB/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/tamis-text-gpu"))
    parser.add_argument("--gigabytes", type=float, default=8.0)
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--workers", type=int, default=15)
    parser.add_argument("--memory", default="64GB")
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    print(machine())
    one_process(64)
    shutil.rmtree(args.folder, ignore_errors=True)
    source, out = args.folder / "parquet", args.folder / "out"
    source.mkdir(parents=True)
    each = int(args.gigabytes * 1e9 / args.files)
    with multiprocessing.get_context("spawn").Pool() as pool:
        pool.starmap(write_file, [(source / f"{n:03d}.parquet", n, each) for n in range(args.files)])
    for number in range(args.rounds):
        for name, steps in CASES.items():
            shutil.rmtree(out, ignore_errors=True)
            began = time.perf_counter()
            report = Pipeline(ParquetReader(str(source)), *steps, GroupsOnly(str(out))).run(
                workers=args.workers, memory=args.memory, progress=False
            )
            took = time.perf_counter() - began
            inside = sum(each["seconds"] for each in report.operators)
            print(
                f"round {number}, {name}: {took:.2f} s, {args.gigabytes / took:.2f} GB/s, {inside:.1f} s of workers, "
                f"kept {report.kept:,} of {report.read:,}",
                flush=True,
            )
    shutil.rmtree(args.folder)


if __name__ == "__main__":
    main()
