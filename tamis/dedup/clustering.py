"""Clusters of vectors: centres from a sample, and the rows of each cluster, in calls that fit in a worker's share of memory.

    vectors of a partition   -> a sample of them                              take_sample       one call per partition
    the sample               -> initial centres, then better ones             start_centres, improve_centres
    vectors of a partition   -> by cluster                                    assign            one call per partition
    some clusters            -> their rows in the order of the keep policy    sort_members      one call per bucket

`train_centres` and `sort_by_cluster` run these calls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Literal

import numpy as np
import pyarrow as pa

from tamis.dedup.index import Index
from tamis.dedup.rows import FAULT_BYTES, MAX_MAPPED_BYTES, RowNumbers, column_or_zeros, take_mapped
from tamis.dedup.shuffle import (
    NumberedFiles,
    ShuffleWriter,
    as_numpy,
    check_free_space,
    chunk_rows,
    handles_shortage,
    read_bucket,
    run_in_workers,
)
from tamis.dedup.vectors import VectorKind
from tamis.exchange import Blob
from tamis.kernels import clusters as kernel
from tamis.kernels import clusters_gpu
from tamis.mapped import SPILL, release_pages
from tamis.operators import Work

SAMPLE_PER_CENTRE, MIN_SAMPLE = 64, 2**14
"""Vectors in the sample that centres are computed from."""

CHUNK_ROWS = 2**15
"""Rows of the sample in one call. The same for any memory and any number of workers."""

MAX_AUTO_CLUSTERS = 2**14


@dataclass(frozen=True)
class Settings:
    """What the calls need to know of the step."""

    kind: VectorKind
    keep: str = "first"
    seed: int = 42
    threshold: float = 1.0
    neighbours: int | None = 0
    across_sources: bool = False
    on_gpu: bool = False

    @property
    def kernels(self) -> ModuleType:
        """The functions that compare vectors."""
        return clusters_gpu if self.on_gpu else kernel

    @property
    def row_bytes(self) -> int:
        """Memory per row while it is compared."""
        return 12 * self.kind.dimension + 100

    def schema(self) -> pa.Schema:
        return pa.schema(
            {
                "cluster": pa.int32(),
                "row": pa.int64(),
                "source": pa.uint64(),
                "order": pa.uint64(),
                "distance": pa.float32(),
                "vector": self.kind.stored,
            }
        )


# ------------------------------------------------------------------------------------------------------------- centres


@handles_shortage
def take_sample(rows: RowNumbers, partition: int, share: float, settings: Settings, blob: Blob, chunk: int) -> int:
    """Write the vectors of a partition that are in the sample, as float32 of length 1."""
    limit = np.uint64(min(2**64 - 1, int(share * 2**64)))
    taken = 0
    with blob.writing() as path, path.open("wb") as file:
        for start, facts in rows.chunks(partition, settings.kind.columns, chunk):
            local, stored = settings.kind.of(facts)
            chosen = np.flatnonzero(kernel.mixed(local + start, settings.seed, 7) <= limit)
            if len(chosen):
                vectors = settings.kind.unit(stored.take(pa.array(chosen)))
                check_free_space(blob.exchange, vectors.nbytes)
                file.write(np.ascontiguousarray(vectors).data)
                taken += len(chosen)
    return taken


def map_vectors(blob: Blob, dimension: int) -> np.ndarray:
    """The vectors of a blob of float32, mapped."""
    path = blob.file()
    if not path.stat().st_size:
        return np.empty((0, dimension), np.float32)
    return np.memmap(path, np.float32, mode="r").reshape(-1, dimension)


@handles_shortage
def start_centres(
    parts: NumberedFiles, count: int, settings: Settings, oversampling: float, sample: Blob, blob: Blob
) -> int:
    """Join the parts of the sample, and choose initial centres; returns how many there are."""
    dimension = settings.kind.dimension
    with sample.writing() as path:
        with path.open("wb") as file:
            for part in parts:
                vectors = map_vectors(part, dimension)
                check_free_space(sample.exchange, vectors.nbytes)
                file.write(np.ascontiguousarray(vectors).data)
                del vectors
                release_pages()
        whole = np.memmap(path, np.float32, mode="r").reshape(-1, dimension) if path.stat().st_size else None
        if whole is None:
            whole = np.empty((0, dimension), np.float32)
        centres = kernel.initial_centres(whole, count, settings.seed, oversampling)
        write_matrix(blob, centres)
    return len(centres)


@handles_shortage
def improve_centres(sample: Blob, chunk: int, centres: Blob, settings: Settings, blob: Blob) -> float:
    """Write the sum of the vectors of each cluster, for one chunk of the sample; returns the sum of distances."""
    dimension = settings.kind.dimension
    vectors = map_vectors(sample, dimension)[chunk * CHUNK_ROWS : (chunk + 1) * CHUNK_ROWS]
    places = np.array(map_vectors(centres, dimension))
    home, similarity = settings.kernels.nearest(vectors, places)
    sums, _ = kernel.fixed_sums(vectors, home, len(places))
    write_matrix(blob, sums)
    return float(np.rint((1.0 - similarity) * 2.0**30).sum() / 2.0**30)


def write_matrix(blob: Blob, matrix: np.ndarray) -> None:
    with blob.writing() as path, path.open("wb") as file:
        check_free_space(blob.exchange, matrix.nbytes)
        file.write(np.ascontiguousarray(matrix).data)


# ---------------------------------------------------------------------------------------------------------- assignment


def bucket_of_cluster(cluster: np.ndarray, num_clusters: int, num_buckets: int) -> np.ndarray:
    return cluster.astype(np.int64) * num_buckets // num_clusters


@handles_shortage
def assign(
    rows: RowNumbers, partition: int, centres: Blob, num_buckets: int, settings: Settings, blob: Blob, chunk: int
) -> int:
    """Write the rows of a partition that have a vector, by cluster; returns how many there are."""
    found = 0
    places = np.array(map_vectors(centres, settings.kind.dimension))
    with ShuffleWriter(blob, num_buckets, settings.schema()) as writer:
        columns = [*settings.kind.columns, "order", "source"]
        for start, facts in rows.chunks(partition, columns, chunk):
            local, stored = settings.kind.of(facts)
            if not len(local):
                continue
            facts = facts.select([name for name in ("order", "source") if name in facts.column_names])
            chosen = facts.take(pa.array(local)) if len(local) < len(facts) else facts
            source = column_or_zeros(chosen, "source", len(local)) + np.uint64(1)
            order = column_or_zeros(chosen, "order", len(local))
            found += _assign(writer, stored, local + start, source, order, places, settings)
    return found


@handles_shortage
def assign_index(
    index: Index, first: int, centres: Blob, num_buckets: int, settings: Settings, blob: Blob, chunk: int
) -> int:
    """Write the entries of an index, which are numbered from `first` and better than all rows, by cluster."""
    found = 0
    places = np.array(map_vectors(centres, settings.kind.dimension))
    with ShuffleWriter(blob, num_buckets, settings.schema()) as writer:
        for before, entries in index.entries():
            for start in range(0, entries.num_rows, chunk):
                local, stored = settings.kind.of(entries.slice(start, chunk))
                if len(local):
                    zeros = np.zeros(len(local), np.uint64)
                    number = first + before + start + local
                    found += _assign(writer, stored, number, zeros, zeros, places, settings)
                release_pages()
    return found


def _assign(
    writer: ShuffleWriter,
    stored: pa.Array,
    row: np.ndarray,
    source: np.ndarray,
    order: np.ndarray,
    centres: np.ndarray,
    settings: Settings,
) -> int:
    vectors = settings.kind.unit(stored)
    home, similarity = settings.kernels.nearest(vectors, centres)
    if source.any():  # not the index
        order = order_of(settings, order, similarity, row)
    columns = {
        "cluster": home,
        "row": row,
        "source": source,
        "order": order,
        "distance": np.maximum(0.0, 1.0 - similarity).astype(np.float32),
        "vector": stored,
    }
    writer.write(pa.table(columns), bucket_of_cluster(home, len(centres), writer.num_buckets))
    return len(row)


def order_of(settings: Settings, order: np.ndarray, similarity: np.ndarray, row: np.ndarray) -> np.ndarray:
    """The place of each row in the order of the keep policy, smaller is better."""
    if settings.keep in ("hard", "easy"):
        steps = np.rint((similarity + 2.0) * 2.0**24).astype(np.uint64)
        return steps if settings.keep == "hard" else np.uint64(2**27) - steps
    if settings.keep == "random":
        return kernel.mixed(row, settings.seed, 6)
    return order


@handles_shortage
def sort_members(shuffled: NumberedFiles, bucket: int, num_buckets: int, blob: Blob, memory: int) -> int:
    """Write the rows of a bucket by cluster, those of a cluster in the order of the keep policy."""
    batches = [batch for each in shuffled for batch in read_bucket(each, bucket, num_buckets, mapped=True)]
    with blob.writing() as path:
        if not batches:
            path.touch()
            return 0
        table = pa.Table.from_batches(batches)
        keys = [as_numpy(table.column(name)) for name in ("row", "order", "source", "cluster")]
        order = np.lexsort(keys)
        del keys
        release_pages()
        width = max(1, table.nbytes // table.num_rows)
        step = max(1000, memory // 4 // width)
        mapped = max(1, 4 * MAX_MAPPED_BYTES // (FAULT_BYTES // 8 + width))
        with pa.ipc.new_file(path, table.schema) as writer:
            for start in range(0, len(order), step):
                part = take_mapped(batches, order[start : start + step], mapped)
                check_free_space(blob.exchange, part.nbytes)
                writer.write_table(part)
                release_pages()
    return len(order)


class Members:
    """The rows of each cluster in the order of the keep policy, mapped from the files of `sort_members`."""

    def __init__(self, files: NumberedFiles, num_clusters: int, settings: Settings) -> None:
        self._files, self._num_clusters, self._settings = files, num_clusters, settings
        self._tables: dict[int, tuple[pa.Table, np.ndarray]] = {}

    def bucket(self, number: int) -> tuple[pa.Table, np.ndarray]:
        """(the rows of a bucket, the first row of each of its clusters and the end of the last)"""
        if number not in self._tables:
            path = self._files[number].file()
            schema = self._settings.schema()
            clusters = np.arange(self._num_clusters)
            mine = clusters[bucket_of_cluster(clusters, self._num_clusters, len(self._files)) == number]
            if path.stat().st_size:
                table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
            else:
                table = schema.empty_table()
            starts = np.searchsorted(as_numpy(table.column("cluster")), np.append(mine, self._num_clusters))
            self._tables[number] = (table, np.concatenate([[mine[0] if len(mine) else 0], starts]))
            release_pages()
        return self._tables[number]

    def cluster(self, number: int) -> pa.Table:
        table, starts = self.bucket(int(bucket_of_cluster(np.array([number]), self._num_clusters, len(self._files))[0]))
        place = 1 + number - int(starts[0])
        first, last = int(starts[place]), int(starts[place + 1])
        return table.slice(first, last - first)


# ------------------------------------------------------------------------------------------------------ all calls together


@dataclass(frozen=True)
class Training:
    """How centres are found."""

    num_clusters: int
    share: float
    """Of the vectors in the sample."""
    oversampling: float = 2.0
    max_iterations: int = 20
    min_improvement: float = 1e-4

    @staticmethod
    def of(num_clusters: int | Literal["auto"], count: int, more: int = 0) -> Training:
        """Training for this many vectors, and others that are only compared; by default the square root of all clusters."""
        automatic = min(MAX_AUTO_CLUSTERS, math.ceil(math.sqrt(count + more)))
        wanted = automatic if num_clusters == "auto" else num_clusters
        return Training(wanted, max(MIN_SAMPLE, SAMPLE_PER_CENTRE * wanted) / count)


@dataclass(frozen=True)
class Centres:
    """The centres of clusters, as float32[count, dimension] in a blob, and how they were found."""

    blob: Blob
    count: int
    sample: int
    iterations: int


def train_centres(work: Work, rows: RowNumbers, settings: Settings, training: Training, call_bytes: int) -> Centres:
    """Find centres by k-means|| and Lloyd's iterations over the sample."""
    exchange, dimension = work.exchange.sub("centres"), settings.kind.dimension
    parts = NumberedFiles(exchange, "sample-", rows.num_partitions)
    chunk = chunk_rows(settings.row_bytes, call_bytes)
    taken = sum(
        run_in_workers(
            work,
            "sample",
            take_sample,
            [(rows, part, training.share, settings, blob, chunk) for part, blob in enumerate(parts)],
        )
    )
    sample, centres = Blob(exchange, "sample.bin"), Blob(exchange, "centres-0.bin")
    (count,) = run_in_workers(
        work,
        "first centres",
        start_centres,
        [(parts, training.num_clusters, settings, training.oversampling, sample, centres)],
    )
    num_chunks, before, number = -(-taken // CHUNK_ROWS), math.inf, 0
    for number in range(1, training.max_iterations + 1):
        sums = NumberedFiles(exchange, f"sums-{number}-", num_chunks)
        distances = run_in_workers(
            work,
            f"centres, {number}",
            improve_centres,
            [(sample, part, centres, settings, blob) for part, blob in enumerate(sums)],
            on_gpu=settings.on_gpu,
        )
        following = Blob(exchange, f"centres-{number}.bin")
        if not exchange.has(following.name):
            total = np.sum([np.fromfile(blob.file(), np.int64) for blob in sums], axis=0).reshape(-1, dimension)
            write_matrix(following, kernel.moved_centres(map_vectors(centres, dimension), total))
        centres = following
        distance = sum(distances)
        if before - distance <= training.min_improvement * distance:
            break
        before = distance
    for name in exchange.names():
        if name.startswith("sums-"):
            exchange.delete(name)
    return Centres(centres, count, taken, number)


def sort_by_cluster(
    work: Work,
    rows: RowNumbers,
    index: Index | None,
    settings: Settings,
    centres: Centres,
    num_buckets: int,
    call_bytes: int,
) -> NumberedFiles:
    """Files of the rows and index entries by cluster, those of a cluster in the order of the keep policy."""
    part_of = work.exchange.sub(f"clusters-{num_buckets}")
    shuffled = NumberedFiles(part_of, "part-", rows.num_partitions)
    chunk = chunk_rows(settings.row_bytes, call_bytes)
    run_in_workers(
        work,
        f"clusters, {num_buckets}",
        assign,
        [(rows, part, centres.blob, num_buckets, settings, blob, chunk) for part, blob in enumerate(shuffled)],
        on_gpu=settings.on_gpu,
    )
    if index is not None:
        from_index = Blob(part_of, f"part-index{SPILL}")
        item = (index, rows.total, centres.blob, num_buckets, settings, from_index, chunk)
        run_in_workers(work, f"clusters of the index, {num_buckets}", assign_index, [item], on_gpu=settings.on_gpu)
        shuffled = replace(shuffled, more=(from_index.name,))
    members = NumberedFiles(work.exchange.sub("members"), f"{num_buckets}-", num_buckets)
    run_in_workers(
        work,
        f"members, {num_buckets}",
        sort_members,
        [(shuffled, bucket, num_buckets, blob, call_bytes) for bucket, blob in enumerate(members)],
    )
    for blob in shuffled:
        blob.delete()
    return members
