"""Fuzzy deduplication with a GPU: what bounds it, and how it compares with the CPU of the same machine.

    python benchmarks/dedup_gpu.py kernels                                     time of each kernel and transfer, by batch size
    python benchmarks/dedup_gpu.py parquet --gigabytes 4 --workers 15          Parquet to groups: phases, GB/s, GPU busy
    python benchmarks/dedup_gpu.py components --rows 50000000                  keys to components: GPU and CPU

Results of GPU and CPU are compared, and must be identical.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parent))
from scaling import Phases

from tamis import ParquetReader, Pipeline
from tamis.dedup import FuzzyDedup
from tamis.dedup.candidates import edges_from_keys
from tamis.dedup.groups_only import GroupsOnly
from tamis.dedup.texts import text_buffers
from tamis.kernels import components_gpu, minhash_gpu
from tamis.kernels import groups as groups_kernel

WORDS = ["".join(random.Random(n).choices("etaoinshrdlucmfwypvbgk", k=2 + n % 9)) for n in range(30_000)]


def some_texts(seed: int, num_bytes: int, repeated: float) -> list[str]:
    """Texts of 80 to 900 words; a share of them repeats an earlier one."""
    rng, words = np.random.default_rng(seed), np.array(WORDS, object)
    texts: list[str] = []
    size = 0
    while size < num_bytes:
        if texts and rng.random() < repeated:
            text = texts[int(rng.integers(len(texts)))]
        else:
            text = " ".join(words[(len(words) * rng.random(int(rng.integers(80, 900))) ** 2).astype(int)])
        texts.append(text)
        size += len(text)
    return texts


def write_file(path: Path, seed: int, num_bytes: int) -> None:
    pq.write_table(pa.table({"text": some_texts(seed, num_bytes, 0.08)}), path, row_group_size=8000)


# --------------------------------------------------------------------------------------------------------------- kernels


class Timings:
    """Milliseconds on the GPU by kernel, and of the host functions around them, which wait for the GPU."""

    def __init__(self, cupy: Any) -> None:
        self.cupy, self.spent = cupy, defaultdict(float)
        self._module = minhash_gpu._kernels()

    def get_function(self, name: str) -> Callable[..., None]:
        kernel, cupy = self._module.get_function(name), self.cupy

        def run(*arguments: Any, **options: Any) -> None:
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            begin.record()
            kernel(*arguments, **options)
            end.record()
            end.synchronize()
            self.spent[name] += cupy.cuda.get_elapsed_time(begin, end)

        return run

    def host(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            self.cupy.cuda.Device().synchronize()
            began = time.perf_counter()
            result = function(*arguments)
            self.cupy.cuda.Device().synchronize()
            self.spent[name] += 1000 * (time.perf_counter() - began)
            return result

        return run


@contextmanager
def timed_kernels(cupy: Any) -> Iterator[Timings]:
    timings = Timings(cupy)
    saved = {name: getattr(minhash_gpu, name) for name in ("_kernels", "_send", "_fetch", "_pack")}
    minhash_gpu._kernels = lambda: timings
    for name in ("_send", "_fetch", "_pack"):
        setattr(minhash_gpu, name, timings.host(name, saved[name]))
    try:
        yield timings
    finally:
        for name, function in saved.items():
            setattr(minhash_gpu, name, function)


def kernels(args: argparse.Namespace) -> None:
    import cupy

    print(machine(), cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(), f"CuPy {cupy.__version__}", sep=", ")
    steps = {
        "14 x 8, jaccard": FuzzyDedup(),
        "14 x 8, signature": FuzzyDedup(verify="signature"),
        "nemo, signature": FuzzyDedup(settings="nemo", verify="signature"),
    }
    whole = pa.array(some_texts(1, args.megabytes[-1] * 1_000_000, 0.08))
    for name, step in steps.items():
        for megabytes in args.megabytes:
            texts = whole.slice(0, len(whole) * megabytes // args.megabytes[-1])
            data, offsets = text_buffers(texts, "text")
            size = int(offsets[-1] - offsets[0])
            step.signed(data, offsets, on_gpu=True)
            tries = []
            for _ in range(5):
                began = time.perf_counter()
                found = step.signed(data, offsets, on_gpu=True)
                tries.append(time.perf_counter() - began)
            with timed_kernels(cupy) as timings:
                step.signed(data, offsets, on_gpu=True)
            shown = ", ".join(f"{each} {spent:.2f}" for each, spent in timings.spent.items())
            held = cupy.get_default_memory_pool().total_bytes() / size
            print(
                f"{name:18}{size / 1e6:6.0f} MB{1000 * min(tries):8.1f} ms{size / min(tries) / 1e9:7.2f} GB/s, "
                f"{held:.0f} bytes of GPU memory per byte; ms: {shown}",
                flush=True,
            )
            if megabytes <= 64:
                expected = step.signed(data, offsets)
                for field in ("content", "counts", "keys", "compared", "spans"):
                    assert np.array_equal(getattr(found, field), getattr(expected, field)), f"{field} differs"
            cupy.get_default_memory_pool().free_all_blocks()


# --------------------------------------------------------------------------------------------------------------- parquet


class GpuWatch:
    """Samples how busy the GPU is and how much of its memory is used, with nvidia-smi."""

    def __enter__(self) -> GpuWatch:
        self.busy: list[tuple[float, float]] = []
        self.used_mib = 0.0
        self._smi = None
        if shutil.which("nvidia-smi"):
            query = [
                "nvidia-smi",
                "--query-gpu=utilization.gpu,memory.used",
                "--format=csv,noheader,nounits",
                "-lms",
                "100",
            ]
            self._smi = subprocess.Popen(query, stdout=subprocess.PIPE, text=True)
            threading.Thread(target=self._read, daemon=True).start()
        return self

    def _read(self) -> None:
        assert self._smi is not None
        assert self._smi.stdout is not None
        for line in self._smi.stdout:
            busy, used = line.split(",")[:2]
            self.busy.append((time.perf_counter(), float(busy)))
            self.used_mib = max(self.used_mib, float(used))

    def __exit__(self, *exc: object) -> None:
        if self._smi is not None:
            self._smi.kill()
            self._smi.wait()

    def share(self) -> float:
        return float(np.mean([busy for _, busy in self.busy])) if self.busy else 0.0


def parquet(args: argparse.Namespace) -> None:
    source, small, out = (args.folder / name for name in ("parquet", "small", "out"))
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    small.mkdir(exist_ok=True)
    each = int(args.gigabytes * 1e9 / args.files)
    with multiprocessing.Pool() as pool:
        pool.starmap(write_file, [(source / f"{n:03d}.parquet", n, each) for n in range(args.files)])
    write_file(small / "0.parquet", 99, 6_000_000)
    print(f"{machine()}; {args.gigabytes} GB of text in {args.files} Parquet files, {args.workers} workers")
    cases = {
        "fineweb": FuzzyDedup(),
        "fineweb, signature": FuzzyDedup(verify="signature"),
        "nemo, signature": FuzzyDedup(settings="nemo", verify="signature"),
    }
    kept: dict[str, int] = {}
    for name in args.cases.split("; "):
        for device in args.devices.split(","):
            step = cases[name].changed(device=device)
            for where in (small, source):  # the first run compiles kernels
                shutil.rmtree(out, ignore_errors=True)
                phases = Phases()
                with GpuWatch() as watch:
                    began = time.perf_counter()
                    report = Pipeline(ParquetReader(str(where)), step, GroupsOnly(str(out))).run(
                        workers=args.workers, memory=args.memory, progress=False, on_event=[phases]
                    )
                    took = time.perf_counter() - began
            print(
                f"{name}, {device}: {took:.2f} s, {report.num_bytes / took / 1e9:.2f} GB/s, kept {report.kept:,}, "
                f"peak {report.peak_memory_bytes / 1e9:.1f} GB; GPU {watch.share():.0f} % busy, "
                f"{watch.used_mib / 1024:.1f} GiB",
                flush=True,
            )
            for phase, spent in phases.ended:
                print(f"    {spent:7.2f} {phase}")
            for each_step in report.operators:
                print(f"    {each_step['seconds']:7.2f} s of workers: {each_step['name']} ({each_step['kind']})")
            for stream in report.streams:
                print("    stream", {k: v for k, v in stream.items() if k != "queues"})
            if report.memory["actions"]:
                print("    actions", report.memory["actions"], [e for e in report.memory_events][:3])
            print(end="", flush=True)
            assert kept.setdefault(name, report.kept) == report.kept, "devices keep different rows"
    shutil.rmtree(args.folder, ignore_errors=True)


# ------------------------------------------------------------------------------------------------------------ components


def components(args: argparse.Namespace) -> None:
    """Random keys, and one row in ten shares some of them with an earlier one."""
    import cupy

    print(machine(), f"{args.rows:,} rows of {args.bands} keys")
    rng = np.random.default_rng(1)
    keys = rng.integers(0, 2**64, (args.rows, args.bands), np.uint64)
    copies = np.flatnonzero(rng.random(args.rows) < 0.1)[1:]
    bands = rng.integers(0, args.bands, len(copies))
    keys[copies, bands] = keys[(copies * rng.random(len(copies))).astype(np.int64), bands]
    rows = np.arange(args.rows)
    cupy.cuda.Device().synchronize()
    for _ in range(2):  # the first one compiles kernels
        began = time.perf_counter()
        found = components_gpu.KeyComponents(args.rows, args.bands, args.gpu_bytes)
        for start in range(0, args.rows, 2**20):
            found.add(rows[start : start + 2**20], keys[start : start + 2**20])
        cupy.cuda.Device().synchronize()
        sent = time.perf_counter()
        pairs = found.join()
        labels = found.labels(0, args.rows)
        ended = time.perf_counter()
        ranges = found._ranges
        del found
        cupy.get_default_memory_pool().free_all_blocks()
        print(
            f"GPU: keys sent in {sent - began:.2f} s, joined in {ended - sent:.2f} s, {ranges} ranges, {pairs:,} pairs",
            flush=True,
        )
    began = time.perf_counter()
    parents, touched, count = np.arange(args.rows, dtype=np.int32), np.zeros(args.rows, np.bool_), 0
    _shared["keys"] = keys  # for the processes that are forked; CUDA is not used in them
    with multiprocessing.get_context("fork").Pool(args.workers) as pool:
        for left, right in pool.imap(_edges, [(number, args.ranges) for number in range(args.ranges)]):
            groups_kernel.unite(parents, left, right)
            groups_kernel.mark(touched, left)
            groups_kernel.mark(touched, right)
            count += len(left)
    expected = np.empty(args.rows, np.int64)
    groups_kernel.flatten(parents, 0, args.rows, touched, expected)
    print(f"CPU, {args.workers} processes in memory: {time.perf_counter() - began:.2f} s", flush=True)
    assert pairs == count
    assert np.array_equal(labels, expected), "components of GPU and CPU differ"
    print(f"identical: {np.count_nonzero(labels >= 0):,} rows in {len(np.unique(labels)) - 1:,} components")


_shared: dict[str, np.ndarray] = {}


def _edges(task: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    number, ranges = task
    keys = _shared["keys"]
    flat = keys.reshape(-1)
    inside = np.flatnonzero((flat >> np.uint64(48)) * np.uint64(ranges) >> np.uint64(16) == number)
    parts = list(edges_from_keys(iter([{"key": flat[inside], "row": inside // keys.shape[1]}])))
    return np.concatenate([left for left, _ in parts]), np.concatenate([right for _, right in parts])


def machine() -> str:
    return f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("kernels")
    command.add_argument("--megabytes", type=int, nargs="+", default=(4, 16, 64, 256))
    command.set_defaults(run=kernels)
    command = commands.add_parser("parquet")
    command.add_argument("--folder", type=Path, default=Path("/tmp/tamis-dedup-gpu"))
    command.add_argument("--gigabytes", type=float, default=4.0)
    command.add_argument("--files", type=int, default=32)
    command.add_argument("--workers", type=int, default=15)
    command.add_argument("--memory", default="64GB")
    command.add_argument("--devices", default="cpu,gpu")
    command.add_argument("--cases", default="fineweb; fineweb, signature; nemo, signature")
    command.set_defaults(run=parquet)
    command = commands.add_parser("components")
    command.add_argument("--rows", type=int, default=50_000_000)
    command.add_argument("--bands", type=int, default=14)
    command.add_argument("--ranges", type=int, default=64)
    command.add_argument("--workers", type=int, default=15)
    command.add_argument("--gpu-bytes", type=int, default=60_000_000_000)
    command.set_defaults(run=components)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
