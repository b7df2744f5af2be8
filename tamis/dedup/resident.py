"""Similar rows with all vectors in the memory of one GPU: from facts to edges in one call, without files in between.

    load       facts of all partitions -> float32[vectors, dimension] on the device, read and copied by several threads
    train      centres of clusters, from the same sample as on a CPU
    arrange    vectors by cluster, those of a cluster in the order of the keep policy
    compare    better rows that each row is similar to, one cluster after another

The edges are those that `similar.find_better` writes: products in float16 only choose what is computed again in float64.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa

from tamis.dedup import similar
from tamis.dedup.clustering import Settings, Training, order_of
from tamis.dedup.index import Index
from tamis.dedup.rows import RowNumbers, column_or_zeros
from tamis.dedup.shuffle import check_free_space, handles_shortage
from tamis.dedup.similar import EDGES, NEAR, NEAR_MISSES
from tamis.exchange import Blob
from tamis.kernels import clusters, clusters_gpu
from tamis.mapped import release_pages
from tamis.models.devices import assigned, keep_to_share

OPENING_BYTES = 2_200_000_000
"""Memory that a process maps when it imports PyTorch and opens a GPU; about half of it is used."""

ROW_BYTES = 100
"""Memory of the host per row: its number, order, source, distance and state, and edges."""

READERS = 8
"""Threads that read facts and copy them to the device."""

STAGING_BYTES = 32_000_000

MAX_VISITS = 2**28
"""Pairs of a row and a cluster within reach that are listed at a time."""


def usable() -> bool:
    """Whether this process may use a GPU."""
    return not clusters_gpu.DEVICE.startswith("cuda") or clusters_gpu.library().cuda.is_available()


def fits(count: int, dimension: int) -> bool:
    """Whether this many vectors fit in the free memory of the GPU, twice in float32 and float16, with what is computed."""
    if not clusters_gpu.DEVICE.startswith("cuda"):
        return True
    free, _ = clusters_gpu.library().cuda.mem_get_info()
    share = assigned().gpu_memory_bytes
    return count * (12 * dimension + 400) + 4_000_000_000 < (0.9 * free if share is None else min(0.9 * free, share))


@handles_shortage
def find_edges(
    rows: RowNumbers,
    index: Index | None,
    sizes: list[int],
    settings: Settings,
    training: Training,
    states: similar.States | None,
    blob: Blob,
) -> dict[str, int] | None:
    """Write the edges and near misses of all rows, as `similar.find_better` does.

    `sizes` is the number of vectors of each partition, then that of each part of the index. Returns None if there is no GPU,
    and nothing else than `too_large` if the vectors do not fit.
    """
    if not usable():
        return None
    keep_to_share(assigned().gpu_memory_bytes)
    if not fits(sum(sizes), settings.kind.dimension):
        return {"too_large": 1}
    vectors = Resident(settings, rows.total)
    vectors.load(rows, index, sizes)
    release_pages()
    vectors.train(training)
    vectors.arrange()
    edges, near = vectors.compare(states)
    check_free_space(blob.exchange, edges.nbytes + near.nbytes)
    for table, place in ((edges, blob), (near, blob.with_suffix(NEAR))):
        with place.writing() as path, pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=2**19)
    return vectors.counts


class Resident:
    """Vectors on the device, with what is known about their rows on the host."""

    def __init__(self, settings: Settings, total: int) -> None:
        self.settings, self.total = settings, total
        self.counts: dict[str, int] = {}

    # --------------------------------------------------------------------------------------------------------------- load

    def load(self, rows: RowNumbers, index: Index | None, sizes: list[int]) -> None:
        """Copy the vectors of all partitions and parts of the index to the device."""
        torch = clusters_gpu.library()
        count = sum(sizes)
        self.vectors = torch.empty(
            (count, self.settings.kind.dimension), dtype=torch.float32, device=clusters_gpu.DEVICE
        )
        self.row = np.empty(count, np.int64)
        self.source, self.order = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
        parts = rows.num_partitions
        begins = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

        def read(part: int) -> None:
            if part < parts:
                facts, first = rows.observed[part], int(rows.offsets[part])
            else:
                assert index is not None
                facts, first = index.part(part - parts), self.total + index.parts[part - parts][1]
            self._load(facts, first, int(begins[part]), ours=part < parts)

        with ThreadPoolExecutor(READERS) as pool:
            for _ in pool.map(read, range(len(sizes))):
                pass

    def _load(self, facts: pa.Table, first: int, place: int, *, ours: bool) -> None:
        torch, kind = clusters_gpu.library(), self.settings.kind
        wanted = [name for name in [*kind.columns, "order", "source"] if name in facts.column_names]
        width = kind.stored.byte_width
        staging = torch.empty(
            max(1, STAGING_BYTES // width) * width, dtype=torch.uint8, pin_memory=self.vectors.is_cuda
        )
        for batch in facts.select(wanted).to_batches(max_chunksize=len(staging) // width):
            table = pa.Table.from_batches([batch])
            local, stored = kind.of(table)
            end = place + len(local)
            if len(local):
                raw = np.frombuffer(stored.buffers()[1], np.uint8)[
                    stored.offset * width : (stored.offset + len(local)) * width
                ]
                staging[: len(raw)].numpy()[:] = raw
                copied = staging[: len(raw)].to(self.vectors.device, non_blocking=False)
                values = copied.view(torch.float16 if kind.half else torch.float32).view(len(local), kind.dimension)
                self.vectors[place:end] = _unit(values) if kind.half else values
                self.row[place:end] = local + first
                if ours:
                    rest = table.select([name for name in ("order", "source") if name in wanted])
                    chosen = rest.take(pa.array(local)) if len(local) < len(rest) else rest
                    self.order[place:end] = column_or_zeros(chosen, "order", len(local))
                    self.source[place:end] = column_or_zeros(chosen, "source", len(local)) + np.uint64(1)
            first, place = first + batch.num_rows, end

    # -------------------------------------------------------------------------------------------------------------- train

    def train(self, training: Training) -> None:
        """Compute centres from a sample, as on a CPU."""
        limit = np.uint64(min(2**64 - 1, int(training.share * 2**64)))
        chosen = np.flatnonzero((clusters.mixed(self.row, self.settings.seed, 7) <= limit) & (self.source > 0))
        sample = self.vectors[clusters_gpu.to_device(chosen)]
        halves = clusters_gpu.short(sample)
        on_host = sample.cpu().numpy()

        def nearest(_: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            home, similarity = clusters_gpu.nearest_on(sample, halves, clusters_gpu.to_device(centres))
            return home.int().cpu().numpy(), similarity.cpu().numpy()

        centres = clusters.initial_centres(
            on_host, training.num_clusters, self.settings.seed, training.oversampling, nearest, clusters_gpu.plus_plus
        )
        before, iterations = np.inf, 0
        while iterations < training.max_iterations:
            iterations += 1
            home, similarity = clusters_gpu.nearest_on(sample, halves, clusters_gpu.to_device(centres))
            sums, _ = clusters_gpu.fixed_sums_on(sample, home, len(centres))
            centres = clusters.moved_centres(centres, sums.cpu().numpy())
            distance = float(((1.0 - similarity) * 2.0**30).round().sum()) / 2.0**30
            if before - distance <= training.min_improvement * distance:
                break
            before = distance
        self.centres = centres
        self.counts |= {"clusters": len(centres), "sample": len(chosen), "iterations": iterations}

    # ------------------------------------------------------------------------------------------------------------ arrange

    def arrange(self) -> None:
        """Sort the vectors by cluster, those of a cluster in the order of the keep policy."""
        torch = clusters_gpu.library()
        count = len(self.row)
        halves = clusters_gpu.short(self.vectors)
        home, similarity = clusters_gpu.nearest_on(self.vectors, halves, clusters_gpu.to_device(self.centres))
        del halves
        similarity = similarity.cpu().numpy()
        ordered = order_of(self.settings, self.order, similarity, self.row)
        self.order = np.where(self.source > 0, ordered, self.order)
        place = torch.arange(count, device=home.device)
        for key in (self.order, self.source):
            if len(key) and key.min() != key.max():  # in source order already
                signed = clusters_gpu.to_device((key ^ np.uint64(2**63)).view(np.int64))
                place = place[torch.sort(signed[place], stable=True)[1]]
        key = torch.empty(count, dtype=torch.int64, device=home.device)
        key[place] = torch.arange(count, device=home.device)
        if self.settings.across_sources:
            key = clusters_gpu.to_device(self.source.astype(np.int64))
        members = place[torch.sort(home[place], stable=True)[1]]
        self.home, self.key = home[members], key[members]
        self.vectors = self.vectors[members]
        self.halves = clusters_gpu.short(self.vectors)
        on_host = members.cpu().numpy()
        self.row, self.source, self.order = self.row[on_host], self.source[on_host], self.order[on_host]
        self.distance = np.maximum(0.0, 1.0 - similarity[on_host]).astype(np.float32)

    # ------------------------------------------------------------------------------------------------------------ compare

    def compare(self, states: similar.States | None) -> tuple[pa.Table, pa.Table]:
        """(edges, near misses) of all rows; with `states`, of rows whose fate is unknown to rows that are not dropped."""
        torch, settings = clusters_gpu.library(), self.settings
        wanted = self.source > 0
        if states is not None:
            state = states.of(self.row)
            self._leave_out(state != clusters.DROPPED)
            wanted = (self.source > 0) & (states.of(self.row) == clusters.UNKNOWN)
        queries = clusters_gpu.to_device(np.flatnonzero(wanted))
        count = len(self.row)
        self._full = torch.zeros(count, dtype=torch.bool, device=queries.device)
        self._near = torch.full((count,), -1, dtype=torch.int64, device=queries.device)
        self._near_value = torch.full((count,), -1.0, dtype=torch.float64, device=queries.device)
        places = torch.arange(len(self.centres) + 1, device=queries.device)
        self._starts = torch.searchsorted(self.home, places)
        self._stride = (
            int(self.key.max()) + 1 if count else 1
        )  # some vectors may have been left out, and keys have gaps
        self._sorted = self.home * self._stride + self.key
        limit = settings.neighbours if settings.neighbours is not None else len(self.centres)
        step = max(2**12, MAX_VISITS // (1 + min(limit, len(self.centres))))
        found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self.counts |= {"queries": len(queries), "edges": 0, "limited": 0, "compared": 0}
        for start in range(0, len(queries), step):
            found += self._compare(queries[start : start + step])
        query, target, value = (
            (np.concatenate(each) for each in zip(*found, strict=True))
            if found
            else (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))
        )
        self.counts["edges"] = len(query)
        full = self._full.cpu().numpy()
        edges = {
            "left": self.row[target],
            "right": self.row[query],
            "left_source": self.source[target],
            "left_order": self.order[target],
            "right_source": self.source[query],
            "right_order": self.order[query],
            "similarity": value,
            "distance": self.distance[query],
            "full": full[query],
        }
        near = self._near.cpu().numpy()
        missed = np.flatnonzero(near >= 0)
        misses = {
            "row": self.row[missed],
            "survivor": self.row[near[missed]],
            "similarity": self._near_value.cpu().numpy()[missed].astype(np.float32),
            "distance": self.distance[missed],
        }
        return pa.table(edges).cast(EDGES), pa.table(misses).cast(NEAR_MISSES)

    def _leave_out(self, kept: np.ndarray) -> None:
        """Forget some vectors."""
        chosen = clusters_gpu.to_device(np.flatnonzero(kept))
        self.vectors, self.halves = self.vectors[chosen], self.halves[chosen]
        self.home, self.key = self.home[chosen], self.key[chosen]
        self.row, self.source, self.order = self.row[kept], self.source[kept], self.order[kept]
        self.distance = self.distance[kept]

    def _compare(self, queries) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        torch, settings = clusters_gpu.library(), self.settings
        count = len(self.row)
        row, cluster, limited = clusters_gpu.reach_on(
            self.vectors[queries] if len(queries) < count else self.vectors,
            clusters_gpu.to_device(self.centres),
            self.home[queries],
            settings.threshold,
            settings.neighbours,
        )
        self.counts["limited"] += limited
        query = torch.cat([queries, queries[row]])
        cluster = torch.cat([self.home[queries], cluster])
        before = torch.searchsorted(self._sorted, cluster * self._stride + self.key[query]) - self._starts[cluster]
        some = (before > 0).nonzero()[:, 0]
        some = some[torch.sort(cluster[some], stable=True)[1]]
        query, cluster, before = query[some], cluster[some], before[some]
        ends = torch.searchsorted(cluster, torch.arange(len(self.centres) + 1, device=query.device))
        self.counts["compared"] += len(query)
        floor = max(0.0, settings.threshold - similar.NEAR_MISS_MARGIN)
        matches = clusters_gpu.fused_matches(
            self.vectors, self.halves, query, before, ends, self._starts, settings.threshold, similar.MAX_LISTED, floor
        )
        if matches is None:
            return self._compare_each(query, before, ends.tolist(), floor)
        self._full[matches.full] = True
        self._near[matches.near_query], self._near_value[matches.near_query] = matches.near_target, matches.near_value
        found = (matches.query.cpu().numpy(), matches.target.cpu().numpy(), matches.value.cpu().numpy())
        return [(found[0], found[1], found[2].astype(np.float32))]

    def _compare_each(
        self, query, before, ends: list[int], floor: float
    ) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Compare one cluster after another: for any number of pairs, and without triton."""
        torch, settings = clusters_gpu.library(), self.settings
        starts = self._starts.tolist()
        search = clusters_gpu.Search(
            self.vectors, self.halves, self.vectors, self.halves, settings.threshold, similar.MAX_LISTED, floor
        )
        found = []
        for number in range(len(self.centres)):
            first, last = ends[number], ends[number + 1]
            if first == last:
                continue
            mine, limit = query[first:last], before[first:last]
            counts = torch.zeros(len(mine), dtype=torch.int64, device=query.device)
            left, right, value, near, near_value = search.run(
                mine, limit, slice(starts[number], starts[number + 1]), counts
            )
            self._full[mine[counts >= similar.MAX_LISTED]] = True
            closer = (near_value > self._near_value[mine]).nonzero()[:, 0]
            self._near_value[mine[closer]] = near_value[closer]
            self._near[mine[closer]] = near[closer] + starts[number]
            if len(left):
                found.append((mine[left], right + starts[number], value))
        if not found:
            return []
        query, target, value = (torch.cat(each).cpu().numpy() for each in zip(*found, strict=True))
        return [(query, target, value.astype(np.float32))]


def _unit(stored) -> Any:
    """Vectors in float16 as float32 of length 1."""
    values = stored.float()
    length = values.double().square().sum(dim=1).sqrt().float()
    return values / length[:, None]
