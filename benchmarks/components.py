"""Memory per node while components are joined on 1, 2 and 4 nodes, against one call that holds all rows.

    python benchmarks/components.py --rows 8000000 --nodes 1,2,4 > benchmarks/components.md

Each node is a Dask worker with one thread. Rows are divided into as many ranges as there are nodes, and each node joins one.
The memory of a node is the highest resident memory during its calls beyond what it held before them.
"""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tamis.dedup.joining import Ranges, join_in_one_call
from tamis.dedup.shuffle import NumberedFiles
from tamis.exchange import FolderExchange

NUM_FILES = 16


def write_edges(exchange: FolderExchange, rows: int) -> NumberedFiles:
    """Chains of near-duplicates: each second row is linked to an earlier one, near it or anywhere before."""
    files = NumberedFiles(exchange, "edges-", NUM_FILES)
    generator = np.random.default_rng(0)
    for blob in files:
        right = generator.integers(1, rows, rows // 2 // NUM_FILES)
        near = np.maximum(0, right - generator.integers(1, 1000, len(right)))
        anywhere = (generator.random(len(right)) * right).astype(np.int64)
        left = np.where(generator.random(len(right)) < 0.5, near, anywhere)
        with blob.writing() as path, pa.ipc.new_file(path, pa.schema({"left": "int64", "right": "int64"})) as writer:
            for start in range(0, len(left), 2**18):
                part = slice(start, start + 2**18)
                writer.write_table(pa.table({"left": left[part], "right": right[part]}))
    return files


def status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def measured(function: Callable[..., Any], *item: Any) -> tuple[Any, int]:
    """(result, bytes that the process held during the call beyond those before)"""
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    result = function(*item)
    return result, max(0, status("VmHWM") - before)


class Nodes:
    """`Work` on Dask workers: item n runs on node n."""

    worker_bytes = 10**9

    def __init__(self, client: Any, exchange: FolderExchange) -> None:
        self.exchange, self._client = exchange, client
        self._nodes = sorted(client.scheduler_info(n_workers=-1)["workers"])
        self.peaks = dict.fromkeys(self._nodes, 0)
        self.rounds = 0

    def map(self, name: str, function: Callable[..., Any], items: Sequence[tuple[Any, ...]], **_: Any) -> list[Any]:
        self.rounds += function.__name__ == "hook"
        nodes = [self._nodes[number % len(self._nodes)] for number in range(len(items))]
        calls = [
            self._client.submit(measured, function, *item, workers=[node], pure=False)
            for node, item in zip(nodes, items, strict=True)
        ]
        answers = self._client.gather(calls)
        for node, (_, peak) in zip(nodes, answers, strict=True):
            self.peaks[node] = max(self.peaks[node], peak)
        return [result for result, _ in answers]


def main() -> None:
    from distributed import Client, LocalCluster

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--nodes", default="1,2,4")
    options = parser.parse_args()
    print(f"# Joining components of {options.rows:,} rows\n")
    print(
        "| nodes | memory of a node | bytes per row of the input | rounds | seconds | equal |\n|---|---|---|---|---|---|"
    )
    expected = None
    for count in [None, *map(int, options.nodes.split(","))]:
        with (
            tempfile.TemporaryDirectory() as folder,
            LocalCluster(n_workers=count or 1, threads_per_worker=1, dashboard_address=None, memory_limit=0) as cluster,
            Client(cluster) as client,
        ):
            exchange = FolderExchange(Path(folder))
            for rows in (100_000, options.rows):  # the first time, kernels are compiled
                exchange.delete()
                edges, work = write_edges(exchange, rows), Nodes(client, exchange)
                began = time.perf_counter()
                if count is None:
                    one = NumberedFiles(exchange, "one-", 1)
                    work.map("one", join_in_one_call, [(rows, edges, one[0])])
                    found = np.fromfile(one[0].file(), np.int64)
                else:
                    components, _ = Ranges(exchange, rows, -(-rows // count)).join(work, "ranges", edges)
                    found = components.between(0, rows)
                seconds = time.perf_counter() - began
            expected = found if expected is None else expected
            peak = max(work.peaks.values())
            label = "1, in one call" if count is None else str(count)
            print(
                f"| {label} | {peak / 1e6:,.0f} MB | {peak / options.rows:.1f} | {work.rounds or 1} | {seconds:.1f} | "
                f"{'yes' if np.array_equal(found, expected) else 'NO'} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
