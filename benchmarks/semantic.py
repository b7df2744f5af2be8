"""Benchmarks of semantic deduplication: recall, time against scikit-learn and faiss, memory, and the phases on a GPU.

    python benchmarks/semantic.py recall                        rows found, by threshold and number of neighbours
    python benchmarks/semantic.py compare --rows 200000         time against scikit-learn and faiss
    python benchmarks/semantic.py memory --rows 1000000 --memory 1GB
    python benchmarks/semantic.py gpu --rows 10000000           phases with all vectors on a GPU
    python benchmarks/semantic.py gpu-files --rows 10000000     the whole run, from Parquet files to groups

On a shared machine, compare only ratios within one run.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DIMENSION = 384


PART_ROWS = 100_000


def vectors(rows: int, dimension: int = DIMENSION, seed: int = 0, copies: float = 0.2) -> Iterator[np.ndarray]:
    """Unit vectors in parts: topics of different sizes, and copies of earlier rows with a little noise.

    Two vectors of a topic have a similarity of about 0.5, and a copy one of 0.8 to 1 to its original.
    """
    for number in range(-(-rows // PART_ROWS)):
        yield vectors_of_part(number, rows, dimension, seed, copies)


def vectors_of_part(
    number: int, rows: int, dimension: int = DIMENSION, seed: int = 0, copies: float = 0.2
) -> np.ndarray:
    rng = np.random.default_rng(seed)
    topics = rng.normal(size=(max(1, int(rows**0.5) // 2), dimension)).astype(np.float32)
    popularity = rng.pareto(1.5, len(topics)) + 0.1
    popularity /= popularity.sum()
    rng = np.random.default_rng([seed, number])
    count = min(PART_ROWS, rows - number * PART_ROWS)
    topic = topics[rng.choice(len(topics), count, p=popularity)]
    part = topic + rng.normal(size=topic.shape).astype(np.float32)
    copied = rng.random(count) < copies
    copied[0] = False
    origin = rng.integers(0, np.maximum(1, np.arange(count)))[copied]
    noise = rng.uniform(0.0, 0.75, (int(copied.sum()), 1)).astype(np.float32)
    part[copied] = part[origin] + noise * rng.normal(size=(len(noise), dimension)).astype(np.float32) * 1.4
    return np.asarray(part / np.linalg.norm(part, axis=1, keepdims=True), np.float32)


def write_part(folder: Path, number: int, rows: int, kind: str) -> None:
    part = vectors_of_part(number, rows)
    values = pa.FixedSizeListArray.from_arrays(pa.array(part.astype(kind).reshape(-1)), part.shape[1])
    ids = [f"{number}-{place}" for place in range(len(part))]
    pq.write_table(
        pa.table({"id": ids, "embedding": values}), folder / f"{number:05d}.parquet", compression="none",
        use_dictionary=False, row_group_size=20_000,
    )  # fmt: skip


def write_files(folder: Path, rows: int, kind: Any = np.float32) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    with multiprocessing.get_context("spawn").Pool() as pool:
        jobs = [(folder, number, rows, np.dtype(kind).name) for number in range(-(-rows // PART_ROWS))]
        pool.starmap(write_part, jobs, chunksize=1)
    return str(folder)


def machine() -> str:
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = function()
    return time.perf_counter() - began, result


# ---------------------------------------------------------------------------------------------------------------- GPU


def gpu(arguments: argparse.Namespace) -> None:
    """The phases on a GPU, with vectors made on the spot."""
    import torch

    from tamis.dedup import clustering
    from tamis.dedup.clustering import Training
    from tamis.dedup.resident import Resident
    from tamis.dedup.vectors import VectorKind
    from tamis.kernels import clusters, clusters_gpu

    clusters_gpu.library()
    rows, dimension, device = arguments.rows, DIMENSION, clusters_gpu.DEVICE
    print(torch.cuda.get_device_name(0), torch.__version__, machine())
    torch.manual_seed(1)
    num_clusters = arguments.clusters or min(2**14, int(np.ceil(rows**0.5)))
    settings = clustering.Settings(
        VectorKind(dimension, half=False), "hard", 42, arguments.threshold, arguments.neighbours, False, True
    )

    def synced(name: str, function: Callable[[], Any], flops: float = 0.0) -> Any:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        result = function()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        rate = f"{flops / seconds / 1e12:8.1f} TFLOP/s, {flops / seconds / 989e12:5.1%} of 989" if flops else ""
        print(f"{name:<44}{seconds:9.3f} s  peak {torch.cuda.max_memory_allocated() / 1e9:6.1f} GB  {rate}", flush=True)
        return result

    def make() -> Any:
        topics = torch.randn(max(1, int(rows**0.5) // 2), dimension, device=device)
        found = torch.empty((rows, dimension), dtype=torch.float32, device=device)
        for start in range(0, rows, 2**20):
            count = min(2**20, rows - start)
            part = topics[torch.randint(len(topics), (count,), device=device)] + torch.randn(
                count, dimension, device=device
            )
            copied = (torch.rand(count, device=device) < 0.2).nonzero()[:, 0]
            copied = copied[copied > 0]
            origin = (torch.rand(len(copied), device=device) * copied).long()
            noise = torch.rand(len(copied), 1, device=device) * 0.75 * 1.4
            part[copied] = part[origin] + noise * torch.randn(len(copied), dimension, device=device)
            found[start : start + count] = part / part.norm(dim=1, keepdim=True)
        return found

    found = Resident(settings, rows)
    found.vectors = synced("vectors made", make)
    found.row = np.arange(rows)
    found.source, found.order = np.ones(rows, np.uint64), np.zeros(rows, np.uint64)
    share = max(clustering.MIN_SAMPLE, clustering.SAMPLE_PER_CENTRE * num_clusters) / rows
    training = Training(num_clusters, share, 2.0, 20, 1e-4)
    synced("first product (libraries are loaded)", lambda: found.vectors[:4096].half() @ found.vectors[:4096].half().T)
    synced(f"centres ({num_clusters}) from a sample", lambda: found.train(training))
    halves = clusters_gpu.short(found.vectors)
    centres = clusters_gpu.to_device(found.centres)
    flops = 2.0 * rows * num_clusters * dimension
    for _ in range(2):
        home, _ = synced(
            "an iteration: nearest centres of all rows",
            lambda: clusters_gpu.nearest_on(found.vectors, halves, centres),
            flops,
        )
    synced("an iteration: sums of all rows", lambda: clusters_gpu.fixed_sums_on(found.vectors, home, num_clusters))
    halves = home = None
    synced("rows by cluster, in order", found.arrange)
    synced(
        "clusters within reach (part of the next line)",
        lambda: clusters_gpu.reach_on(found.vectors, centres, found.home, settings.threshold, settings.neighbours),
        2.0 * rows * dimension * clusters.num_near(settings.neighbours, num_clusters),
    )
    clusters_gpu.FUSED = not arguments.plain
    edges, near = synced("similar rows (kernels are compiled)", lambda: found.compare(None))
    edges, near = synced("similar rows", lambda: found.compare(None))
    sizes = np.bincount(found.home.cpu().numpy(), minlength=num_clusters).astype(float)
    print(f"{edges.num_rows:,} edges, {near.num_rows:,} near misses, {found.counts}")
    print(f"rows per cluster: mean {sizes.mean():.0f}, largest {sizes.max():.0f}")
    pairs = found.counts["compared"] * float((sizes**2).sum() / sizes.sum())
    print(f"about {2 * pairs * dimension / 1e12:.0f} TFLOP in pairs of rows; memory of the host {host_gb():.1f} GB")


def host_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def gpu_files(arguments: argparse.Namespace) -> None:
    """A whole run from Parquet files to groups, with and without a GPU."""
    from tamis import ParquetReader, Pipeline
    from tamis.dedup import Groups, SemanticDedup
    from tamis.dedup.groups_only import GroupsOnly

    folder = Path(arguments.folder)
    shutil.rmtree(folder, ignore_errors=True)
    kind = np.float16 if arguments.half else np.float32
    seconds, source = timed(lambda: write_files(folder / "in", arguments.rows, kind))
    size = sum(file.stat().st_size for file in (folder / "in").iterdir())
    print(
        f"{arguments.rows:,} vectors of {DIMENSION} in {np.dtype(kind).name}, {size / 1e9:.1f} GB, written in {seconds:.0f} s"
    )
    for device in arguments.devices.split(","):
        out = folder / f"out-{device}"
        step = SemanticDedup(threshold=arguments.threshold, neighbours=arguments.neighbours, device=device)
        began = time.perf_counter()

        def seen(event: Any, began: float = began) -> None:
            name = type(event).__name__
            if name in ("CallsFinished", "StageStarted", "StageFinished", "WorkerDied"):
                print(f"  {time.perf_counter() - began:8.2f} s  {str(event)[:110]}", flush=True)

        report = Pipeline(ParquetReader(source), step, GroupsOnly(str(out))).run(
            memory=arguments.memory, workers=arguments.workers, on_event=seen, progress=False
        )
        total = time.perf_counter() - began
        summary = Groups.load(out).summary
        summary.pop("group_sizes")
        print(f"\ndevice={device}: {total:.1f} s, {arguments.rows / total:,.0f} rows/s")
        print(f"kept {report.kept:,}, dropped {report.dropped}")
        print(json.dumps(summary))
    shutil.rmtree(folder, ignore_errors=True)


# ---------------------------------------------------------------------------------------------------------------- CPU


def greedy(row: np.ndarray, other: np.ndarray, count: int) -> np.ndarray:
    """Which rows are kept, from all pairs of a row and an earlier similar row."""
    kept = np.ones(count, np.bool_)
    order = np.lexsort([other, row])
    row, other = row[order], other[order]
    begins = np.searchsorted(row, np.arange(count + 1))
    for number in np.flatnonzero(np.diff(begins)):
        kept[number] = not kept[other[begins[number] : begins[number + 1]]].any()
    return kept


def by_faiss(matrix: np.ndarray, threshold: float, lists: int = 0, probes: int = 0) -> np.ndarray:
    """All pairs, or those of the nearest lists of an inverted file."""
    import faiss

    index = faiss.IndexFlatIP(matrix.shape[1])
    if lists:
        index = faiss.IndexIVFFlat(index, matrix.shape[1], lists, faiss.METRIC_INNER_PRODUCT)
        index.train(matrix[:: max(1, len(matrix) // (64 * lists))])
        index.nprobe = probes
    index.add(matrix)
    limits, _, found = index.range_search(matrix, threshold)
    row = np.repeat(np.arange(len(matrix)), np.diff(limits).astype(np.int64))
    earlier = found < row
    return greedy(row[earlier], found[earlier], len(matrix))


def by_sklearn(matrix: np.ndarray, threshold: float, num_clusters: int) -> np.ndarray:
    """k-means on a sample of 64 rows per cluster, and all pairs within a cluster."""
    from sklearn.cluster import KMeans

    sample = matrix[:: max(1, len(matrix) // (64 * num_clusters))]
    model = KMeans(num_clusters, n_init=1, max_iter=20, random_state=42).fit(sample)
    home = model.predict(matrix)
    rows, others = [], []
    for cluster in range(num_clusters):
        mine = np.flatnonzero(home == cluster)
        left, right = np.nonzero(np.tril(matrix[mine] @ matrix[mine].T >= threshold, -1))
        rows.append(mine[left])
        others.append(mine[right])
    return greedy(np.concatenate(rows), np.concatenate(others), len(matrix))


def by_tamis(source: str, out: Path, arguments: argparse.Namespace, **parameters: Any) -> tuple[float, set[str], Any]:
    """(seconds, ids of the dropped rows, report) of a run from files to groups."""
    from tamis import ParquetReader, Pipeline
    from tamis.dedup import Groups, SemanticDedup
    from tamis.dedup.groups_only import GroupsOnly

    step = SemanticDedup(threshold=arguments.threshold, keep="first", device="cpu", **parameters)
    pipeline = Pipeline(ParquetReader(source), step, GroupsOnly(str(out)))
    seconds, report = timed(lambda: pipeline.run(memory=arguments.memory, workers=arguments.workers, progress=False))
    return seconds, set(Groups.load(out).table()["id"].to_pylist()), report


def ids_of(places: np.ndarray) -> set[str]:
    return {f"{place // PART_ROWS}-{place % PART_ROWS}" for place in places.tolist()}


def compare(arguments: argparse.Namespace) -> None:
    """Time and rows found against scikit-learn and faiss, with the same number of threads."""
    import faiss

    faiss.omp_set_num_threads(arguments.workers)
    folder = Path(arguments.folder)
    shutil.rmtree(folder, ignore_errors=True)
    source = write_files(folder / "in", arguments.rows)
    matrix = np.concatenate(list(vectors(arguments.rows)))
    num_clusters = int(np.ceil(arguments.rows**0.5))
    print(f"{machine()}; {arguments.rows:,} vectors of {DIMENSION}, threshold {arguments.threshold}")
    brute, kept = timed(lambda: by_faiss(matrix, arguments.threshold))
    truth = ids_of(np.flatnonzero(~kept))
    print(f"{'faiss, all pairs':<44}{brute:8.1f} s   dropped {len(truth):,}")

    def line(name: str, seconds: float, dropped: set[str]) -> None:
        recall = len(dropped & truth) / max(1, len(truth))
        print(f"{name:<44}{seconds:8.1f} s   recall {recall:.4f}   wrong {len(dropped - truth):,}", flush=True)

    for neighbours in (16, 4):
        seconds, dropped, _ = by_tamis(source, folder / f"out-{neighbours}", arguments, neighbours=neighbours)
        line(f"Tamis from Parquet, neighbours={neighbours}", seconds, dropped)
    for probes in (17, 5):
        seconds, kept = timed(lambda probes=probes: by_faiss(matrix, arguments.threshold, num_clusters, probes))
        line(f"faiss, inverted file, {probes} lists", seconds, ids_of(np.flatnonzero(~kept)))
    seconds, kept = timed(lambda: by_sklearn(matrix, arguments.threshold, num_clusters))
    line("scikit-learn, within clusters", seconds, ids_of(np.flatnonzero(~kept)))
    shutil.rmtree(folder, ignore_errors=True)


def recall(arguments: argparse.Namespace) -> None:
    """Rows found, by threshold and number of neighbouring clusters, against all pairs."""
    folder = Path(arguments.folder)
    shutil.rmtree(folder, ignore_errors=True)
    source = write_files(folder / "in", arguments.rows)
    matrix = np.concatenate(list(vectors(arguments.rows)))
    print(f"{arguments.rows:,} vectors of {DIMENSION}; recall by threshold and neighbours")
    for threshold in (0.8, 0.9, 0.95):
        arguments.threshold = threshold
        truth = ids_of(np.flatnonzero(~by_faiss(matrix, threshold)))
        found = []
        for neighbours in (0, 1, 4, 16, 64):
            _, dropped, _ = by_tamis(source, folder / f"{threshold}-{neighbours}", arguments, neighbours=neighbours)
            found.append(f"{neighbours}: {len(dropped & truth) / max(1, len(truth)):.4f}")
        print(f"threshold {threshold}, {len(truth):,} rows to drop: {', '.join(found)}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)


def memory(arguments: argparse.Namespace) -> None:
    """Peak memory of a run within a budget."""
    folder = Path(arguments.folder)
    shutil.rmtree(folder, ignore_errors=True)
    source = write_files(folder / "in", arguments.rows)
    seconds, dropped, report = by_tamis(source, folder / "out", arguments)
    peak = f"{report.peak_memory_bytes / 1e6:,.0f} MB"
    print(f"{arguments.rows:,} rows within {arguments.memory}: {seconds:.0f} s, dropped {len(dropped):,}, peak {peak}")
    shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, function in (
        ("recall", recall), ("compare", compare), ("memory", memory), ("gpu", gpu), ("gpu-files", gpu_files)
    ):  # fmt: skip
        command = commands.add_parser(name)
        command.set_defaults(function=function)
        command.add_argument("--rows", type=int, default=1_000_000)
        command.add_argument("--threshold", type=float, default=0.9)
        command.add_argument("--neighbours", type=int, default=16)
        command.add_argument("--clusters", type=int)
        command.add_argument("--folder", default="/tmp/tamis-semantic")
        command.add_argument("--memory", default="100GB")
        command.add_argument("--workers", type=int, default=16)
        command.add_argument("--devices", default="gpu")
        command.add_argument("--half", action="store_true")
        command.add_argument("--plain", action="store_true", help="without kernels of triton")
    arguments = parser.parse_args()
    arguments.function(arguments)


if __name__ == "__main__":
    main()
