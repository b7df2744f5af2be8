"""From vectors to pairs of similar rows. Each phase is a set of calls that fit in a worker's share of memory.

    vectors of a partition   -> a sample of them                              take_sample       one call per partition
    the sample               -> initial centres, then better ones             start_centres, improve_centres
    vectors of a partition   -> by cluster                                    assign            one call per partition
    some clusters            -> their rows in the order of the keep policy    sort_members      one call per bucket
    some clusters            -> better rows that each row is similar to       find_better       one call per bucket
    edges of similar rows    -> components, see `candidates`                  by_component      one call per bucket
    some components          -> which rows are dropped, and because of which  choose            one call per bucket

A row is compared with the better rows of its own cluster, and of the clusters that are within reach. Of those that are similar
enough, up to `MAX_LISTED` in each cluster are listed, the best first. A row is dropped if one of them is kept. If all of them
are dropped and there may be more, the row is compared again, with the rows that were kept. So the result is that of visiting
all rows one after another and keeping those that are not similar to a row kept before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

from tamis.dedup.candidates import bucket_of_component
from tamis.dedup.decisions import Blocks, PairWriter, histogram
from tamis.dedup.index import Index
from tamis.dedup.rows import FAULT_BYTES, MAX_MAPPED_BYTES, RowNumbers, column_or_zeros
from tamis.dedup.shuffle import (
    NumberedFiles,
    ShuffleWriter,
    as_numpy,
    check_free_space,
    handles_shortage,
    read_bucket,
    read_whole_bucket,
)
from tamis.dedup.vectors import VectorKind
from tamis.exchange import Blob
from tamis.kernels import clusters as kernel
from tamis.kernels import clusters_gpu
from tamis.mapped import release_pages

MAX_LISTED = 16
"""Better rows of one cluster that are listed for a row. With fewer, more rows are compared again."""

SAMPLE_PER_CENTRE, MIN_SAMPLE = 64, 2**14
"""Vectors in the sample that centres are computed from."""

CHUNK_ROWS = 2**15
"""Rows of the sample in one call. The same for any memory and any number of workers."""

NEAR_MISS_MARGIN = 0.05
"""Kept rows whose best similarity to a kept row is this close below the threshold are recorded as near misses."""


@dataclass(frozen=True)
class Settings:
    """What the calls need to know of the step."""

    kind: VectorKind
    keep: str
    seed: int
    threshold: float
    neighbours: int | None
    across_sources: bool
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
        with pa.ipc.new_file(path, table.schema) as writer:
            for start in range(0, len(order), step):
                part = take_mapped(batches, order[start : start + step])
                check_free_space(blob.exchange, part.nbytes)
                writer.write_batch(part)
                release_pages()
    return len(order)


def take_mapped(batches: list[pa.RecordBatch], order: np.ndarray) -> pa.RecordBatch:
    """Some rows of mapped batches, in this order. Arrow's own `take` would copy all of a chunked column first."""
    ends = np.cumsum([batch.num_rows for batch in batches])
    inside = np.searchsorted(ends, order, side="right")
    by_batch = np.argsort(inside, kind="stable")
    width = max(1, batches[0].nbytes // max(1, batches[0].num_rows))
    step = max(1, 4 * MAX_MAPPED_BYTES // (FAULT_BYTES // 8 + width))
    parts = []
    for start in range(0, len(order), step):
        some = by_batch[start : start + step]
        for number in np.unique(inside[some]):
            places = order[some[inside[some] == number]] - (ends[number] - batches[number].num_rows)
            parts.append(batches[number].take(pa.array(places)))
        release_pages()
    back = np.empty(len(order), np.int64)
    back[by_batch] = np.arange(len(order))
    joined = pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
    return joined.take(pa.array(back))


# --------------------------------------------------------------------------------------------------------- comparison


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


EDGES = pa.schema(
    {
        "left": pa.int64(),  # the better row
        "right": pa.int64(),
        "left_source": pa.uint64(),
        "left_order": pa.uint64(),
        "right_source": pa.uint64(),
        "right_order": pa.uint64(),
        "similarity": pa.float32(),
        "distance": pa.float32(),  # of the row on the right to its centre
        "full": pa.bool_(),  # whether the row on the right may have more edges
    }
)
NEAR_MISSES = pa.schema(
    {"row": pa.int64(), "survivor": pa.int64(), "similarity": pa.float32(), "distance": pa.float32()}
)
_FATES = pa.schema({"row": pa.int64(), "survivor": pa.int64()})
NEAR, FATES = ".near", ".fates"
"""Suffixes of the near misses beside edges, and of the rows decided beside pairs."""


@handles_shortage
def find_better(
    files: NumberedFiles,
    bucket: int,
    num_clusters: int,
    centres: Blob,
    settings: Settings,
    states: Blob | None,
    blob: Blob,
    memory: int,
) -> dict[str, int]:
    """Write an edge for each row of a bucket and each better row it is similar to, at most `MAX_LISTED` per cluster.

    With `states`, only rows whose fate is unknown are compared, with rows that are not dropped.
    """
    search = _Search(Members(files, num_clusters, settings), centres, settings, states)
    table, _ = search.members.bucket(bucket)
    piece = max(256, memory // 2 // settings.row_bytes)
    found = {"queries": 0, "edges": 0, "limited": 0, "compared": 0}
    with (
        blob.writing() as path,
        pa.ipc.new_file(path, EDGES) as edges,
        blob.with_suffix(NEAR).writing() as near_path,
        pa.ipc.new_file(near_path, NEAR_MISSES) as near,
    ):
        for start in range(0, table.num_rows, piece):
            pairs, misses, counts = search.run(table.slice(start, piece))
            check_free_space(blob.exchange, pairs.nbytes + misses.nbytes)
            edges.write_table(pairs)
            near.write_table(misses)
            for name, count in counts.items():
                found[name] += count
    return found


class _Search:
    """Compares rows with the better rows of the clusters within reach."""

    def __init__(self, members: Members, centres: Blob, settings: Settings, states: Blob | None) -> None:
        self.members, self._settings = members, settings
        self._centres = np.array(map_vectors(centres, settings.kind.dimension))
        self._states = np.memmap(states.file(), np.uint8, mode="r") if states is not None else None
        self._mapped = 0

    def run(self, table: pa.Table) -> tuple[pa.Table, pa.Table, dict[str, int]]:
        """(edges, near misses, counts) of the rows of a table of members."""
        row, source = as_numpy(table.column("row")), as_numpy(table.column("source"))
        wanted = source > 0
        if self._states is not None:
            wanted &= states_of(self._states, row) == kernel.UNKNOWN
        if not wanted.all():
            table = table.take(pa.array(np.flatnonzero(wanted)))
        if not table.num_rows:
            return EDGES.empty_table(), NEAR_MISSES.empty_table(), {}
        rows, settings = _Rows.of(table, settings=self._settings), self._settings
        home = as_numpy(table.column("cluster"))
        query, cluster, limited = settings.kernels.reach(
            rows.vectors, self._centres, home, settings.threshold, settings.neighbours
        )
        query = np.concatenate([np.arange(len(home)), query])
        cluster = np.concatenate([home, cluster])
        by_cluster = np.argsort(cluster, kind="stable")
        query, cluster = query[by_cluster], cluster[by_cluster]
        begins = np.flatnonzero(np.append(True, cluster[1:] != cluster[:-1]))
        full = np.zeros(len(home), np.bool_)
        near, near_similarity = np.full(len(home), -1, np.int64), np.full(len(home), -1.0, np.float32)
        parts: list[pa.Table] = []
        compared = 0
        for first, last in zip(begins, [*begins[1:], len(query)], strict=True):
            some = query[first:last]
            for found in self._compare(rows, some, int(cluster[first]), full, near, near_similarity):
                parts.append(found)
            compared += int(last - first)
        edges = pa.concat_tables(parts) if parts else EDGES.empty_table()
        if parts:
            worse = as_numpy(edges.column("full"))  # the number of the query, until all clusters are compared
            edges = edges.set_column(edges.schema.get_field_index("full"), "full", pa.array(full[worse])).cast(EDGES)
        missed = np.flatnonzero(near >= 0)
        misses = {
            "row": rows.row[missed],
            "survivor": near[missed],
            "similarity": near_similarity[missed],
            "distance": rows.distance[missed],
        }
        counts = {"queries": len(home), "edges": edges.num_rows, "limited": limited, "compared": compared}
        return edges, pa.table(misses).cast(NEAR_MISSES), counts

    def _compare(
        self,
        rows: _Rows,
        query: np.ndarray,
        cluster: int,
        full: np.ndarray,
        near: np.ndarray,
        near_similarity: np.ndarray,
    ) -> Iterator[pa.Table]:
        """Edges from some rows to the better rows of a cluster; `full` has the number of the query."""
        table, settings = self.members.cluster(cluster), self._settings
        target = {name: as_numpy(table.column(name)) for name in ("row", "source", "order")}
        if not table.num_rows:
            return
        before = np.empty(len(query), np.int64)
        kernel.count_better(
            rows.source[query], rows.order[query], rows.row[query],
            target["source"], target["order"], target["row"], settings.across_sources, before,
        )  # fmt: skip
        some = np.flatnonzero(before > 0)
        if not len(some):
            return
        query, before = query[some], before[some]
        vectors = rows.vectors[query]
        counts = np.zeros(len(query), np.int64)
        for start in range(0, int(before.max()), kernel.TARGET_ROWS):
            active = np.flatnonzero((before > start) & (counts < MAX_LISTED))
            if not len(active):
                break
            part = table.slice(start, kernel.TARGET_ROWS)
            place = np.arange(part.num_rows)
            limit = before[active] - start
            if self._states is not None:  # dropped rows are skipped
                place = np.flatnonzero(
                    states_of(self._states, target["row"][start : start + len(place)]) != kernel.DROPPED
                )
                limit = np.searchsorted(place, limit)
            stored = part.column("vector")
            targets = settings.kind.unit(stored.take(pa.array(place)) if len(place) < part.num_rows else stored)
            mine = counts[active]
            left, right, similarity, close, close_similarity = settings.kernels.first_matches(
                vectors if len(active) == len(vectors) else vectors[active],
                np.maximum(limit, 0), targets, settings.threshold, MAX_LISTED, mine,
                max(0.0, settings.threshold - NEAR_MISS_MARGIN),
            )  # fmt: skip
            counts[active] = mine
            closer = np.flatnonzero(close_similarity > near_similarity[query[active]])
            near[query[active[closer]]] = target["row"][start + place[close[closer]]]
            near_similarity[query[active[closer]]] = close_similarity[closer]
            if len(left):
                better, worse = start + place[right], query[active[left]]
                yield pa.table(
                    {
                        "left": target["row"][better],
                        "right": rows.row[worse],
                        "left_source": target["source"][better],
                        "left_order": target["order"][better],
                        "right_source": rows.source[worse],
                        "right_order": rows.order[worse],
                        "similarity": similarity,
                        "distance": rows.distance[worse],
                        "full": worse,
                    }
                )
            self._mapped += part.nbytes
            if self._mapped > MAX_MAPPED_BYTES:
                release_pages()
                self._mapped = 0
        full[query[counts >= MAX_LISTED]] = True


@dataclass(frozen=True)
class _Rows:
    """Rows that are compared, in arrays."""

    row: np.ndarray
    source: np.ndarray
    order: np.ndarray
    distance: np.ndarray
    vectors: np.ndarray

    @staticmethod
    def of(table: pa.Table, settings: Settings) -> _Rows:
        row, source, order, distance = (
            np.array(as_numpy(table.column(name))) for name in ("row", "source", "order", "distance")
        )
        return _Rows(row, source, order, distance, settings.kind.unit(table.column("vector")))


def states_of(states: np.ndarray, row: np.ndarray) -> np.ndarray:
    """The state of rows; entries of the index, which are numbered after the rows, are kept."""
    return np.where(row < len(states), states[np.minimum(row, len(states) - 1)], kernel.KEPT)


# ------------------------------------------------------------------------------------------------------------- choices

_WITH_COMPONENT = pa.schema([*EDGES, pa.field("component", pa.int64())])


@handles_shortage
def by_component(edges: Blob, components: Blob, num_buckets: int, blob: Blob) -> int:
    """Write the edges of one file by component."""
    count = 0
    with ShuffleWriter(blob, num_buckets, _WITH_COMPONENT) as writer, pa.memory_map(str(edges.file())) as file:
        numbers = np.memmap(components.file(), np.int64, mode="r")
        reader = pa.ipc.open_file(file)
        for number in range(reader.num_record_batches):
            table = pa.Table.from_batches([reader.get_batch(number)])
            component = np.asarray(numbers[as_numpy(table.column("right"))])
            writer.write(
                table.append_column("component", pa.array(component)), bucket_of_component(component, num_buckets)
            )
            count += table.num_rows
            release_pages()
    return count


@handles_shortage
def choose(blocks: Blocks, shuffled: NumberedFiles, bucket: int, num_buckets: int, blob: Blob) -> dict[str, int]:
    """Decide about the rows of some components, and write the dropped ones with their survivors."""
    table = read_whole_bucket(shuffled, bucket, num_buckets)
    with (
        PairWriter(blob, blocks) as writer,
        blob.with_suffix(FATES).writing() as path,
        pa.ipc.new_file(path, _FATES) as fates,
    ):
        if table is None:
            return {"dropped": 0, "unknown": 0}
        edge = {name: as_numpy(table.column(name)) for name in EDGES.names}
        keys = ("left", "left_order", "left_source", "right", "right_order", "right_source")
        order = np.lexsort([edge[name] for name in keys])
        right = edge["right"][order]
        begins = np.flatnonzero(np.append(True, right[1:] != right[:-1]))
        vertices, place = np.unique(np.concatenate([right[begins], edge["left"][order]]), return_inverse=True)
        states, twins = np.full(len(vertices), kernel.KEPT, np.int8), np.empty(len(begins), np.int64)
        kernel.choose_kept(
            np.append(begins, len(right)), place[: len(begins)], place[len(begins) :], states,
            edge["full"][order[begins]], twins,
        )  # fmt: skip
        mine = states[place[: len(begins)]]
        dropped = np.flatnonzero(twins >= 0)
        chosen = order[twins[dropped]]
        writer.write(
            {
                "row": edge["right"][chosen],
                "survivor": edge["left"][chosen],
                "similarity": edge["similarity"][chosen],
                "distance": edge["distance"][chosen],
                "short": np.zeros(len(chosen), np.bool_),
                "dropped": np.ones(len(chosen), np.bool_),
            }
        )
        unknown = right[begins][mine == kernel.UNKNOWN]
        row = np.concatenate([edge["right"][chosen], unknown])
        survivor = np.concatenate([edge["left"][chosen], np.full(len(unknown), -1)])
        fates.write_table(pa.table({"row": row, "survivor": survivor}))
    return {"dropped": len(chosen), "unknown": len(unknown)}


@handles_shortage
def collect_states(total: int, pairs: NumberedFiles, num_buckets: int, blob: Blob) -> dict[str, Any]:
    """Write the state of each row as one byte, from the fates beside the pairs of all rounds so far."""
    states = np.full(total, kernel.KEPT, np.uint8)
    survivors = []
    for number, each in enumerate(pairs):
        if number % num_buckets == 0:
            states[states == kernel.UNKNOWN] = kernel.KEPT  # unless this round says otherwise
        with pa.memory_map(str(each.with_suffix(FATES).file())) as file:
            fates = pa.ipc.open_file(file).read_all()
        row, survivor = as_numpy(fates.column("row")), as_numpy(fates.column("survivor"))
        states[row] = np.where(survivor < 0, kernel.UNKNOWN, kernel.DROPPED)
        survivors.append(survivor[survivor >= 0])
        release_pages()
    write_matrix(blob, states)
    sizes = np.unique(np.concatenate(survivors), return_counts=True)[1] + 1 if survivors else np.empty(0, np.int64)
    return {"unknown": int(np.count_nonzero(states == kernel.UNKNOWN)), "sizes": histogram(sizes)}


@handles_shortage
def keep_near_misses(blocks: Blocks, edges: Blob, states: Blob, blob: Blob) -> int:
    """Write the rows that were kept although they are almost similar enough to another row that was kept."""
    count = 0
    state = np.memmap(states.file(), np.uint8, mode="r") if blocks.rows.total else np.empty(0, np.uint8)
    with PairWriter(blob, blocks) as writer, pa.memory_map(str(edges.with_suffix(NEAR).file())) as file:
        reader = pa.ipc.open_file(file)
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            row, survivor = as_numpy(batch.column("row")), as_numpy(batch.column("survivor"))
            kept = (states_of(state, row) == kernel.KEPT) & (states_of(state, survivor) == kernel.KEPT)
            chosen = batch.filter(pa.array(kept))
            writer.write(
                {name: chosen.column(name) for name in NEAR_MISSES.names}
                | {name: np.zeros(chosen.num_rows, np.bool_) for name in ("short", "dropped")}
            )
            count += chosen.num_rows
            release_pages()
    return count
