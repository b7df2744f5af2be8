"""From vectors to pairs of similar rows. Each phase is a set of calls that fit in a worker's share of memory.

    rows by cluster          -> see `clustering`
    some clusters            -> better rows that each row is similar to       find_better       one call per bucket
    edges of similar rows    -> components, see `joining`                     by_component      one call per bucket
    some components          -> which rows are dropped, and because of which  choose            one call per bucket

A row is compared with the better rows of its own cluster, and of the clusters that are within reach. Of those that are similar
enough, up to `MAX_LISTED` in each cluster are listed, the best first. A row is dropped if one of them is kept. If all of them
are dropped and there may be more, the row is compared again, with the rows that were kept. So the result is that of visiting
all rows one after another and keeping those that are not similar to a row kept before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tamis.dedup.candidates import bucket_of_component
from tamis.dedup.clustering import Centres, Members, Settings, map_vectors, write_matrix
from tamis.dedup.decisions import Blocks, PairWriter, histogram
from tamis.dedup.joining import Components, RowValues
from tamis.dedup.rows import MAX_MAPPED_BYTES
from tamis.dedup.shuffle import (
    NumberedFiles,
    ShuffleWriter,
    as_numpy,
    bucket_count,
    check_free_space,
    handles_shortage,
    read_bucket,
    read_whole_bucket,
)
from tamis.exchange import Blob
from tamis.kernels import clusters as kernel
from tamis.mapped import release_pages

MAX_LISTED = 16
"""Better rows of one cluster that are listed for a row. With fewer, more rows are compared again."""

EDGE_BYTES = 250
"""Memory per listed row, if it is similar to as many rows in several clusters."""

NEAR_MISS_MARGIN = 0.05
"""Kept rows whose best similarity to a kept row is this close below the threshold are recorded as near misses."""


# --------------------------------------------------------------------------------------------------------- comparison


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
_MEASURES = ("similarity", "distance", "bits", "error", "offset")
"""How similar two rows are; edges have some of these columns."""
_FATES = pa.schema({"row": pa.int64(), "state": pa.uint8()})
_SURVIVORS = pa.schema({"row": pa.int64()})
NEAR, FATES, SURVIVORS = ".near", ".fates", ".kept"
"""Suffixes of the near misses beside edges, and of the rows decided and the rows kept instead of them beside pairs."""

FATE_BYTES = 20
"""Memory per row while states are collected."""


@handles_shortage
def find_better(
    files: NumberedFiles,
    bucket: int,
    centres: Centres,
    settings: Settings,
    states: States | None,
    blob: Blob,
    memory: int,
) -> dict[str, int]:
    """Write an edge for each row of a bucket and each better row it is similar to, at most `MAX_LISTED` per cluster.

    With `states`, only rows whose fate is unknown are compared, with rows that are not dropped.
    """
    search = _Search(Members(files, centres.count, settings), centres.blob, settings, states)
    table, _ = search.members.bucket(bucket)
    piece = max(256, memory // 2 // (settings.row_bytes + EDGE_BYTES * MAX_LISTED))
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

    def __init__(self, members: Members, centres: Blob, settings: Settings, states: States | None) -> None:
        self.members, self._settings = members, settings
        self._centres = np.array(map_vectors(centres, settings.kind.dimension))
        self._states = states
        self._mapped = 0

    def run(self, table: pa.Table) -> tuple[pa.Table, pa.Table, dict[str, int]]:
        """(edges, near misses, counts) of the rows of a table of members."""
        row, source = as_numpy(table.column("row")), as_numpy(table.column("source"))
        wanted = source > 0
        if self._states is not None:
            wanted &= self._states.of(row) == kernel.UNKNOWN
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
                place = np.flatnonzero(self._states.of(target["row"][start : start + len(place)]) != kernel.DROPPED)
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


@dataclass(frozen=True)
class States(RowValues):
    """The state of each row, as one byte. Entries of the index, which are numbered after the rows, are kept."""

    dtype: str = "uint8"
    total: int = field(kw_only=True)

    def of(self, rows: np.ndarray) -> np.ndarray:
        found, mine = np.full(len(rows), kernel.KEPT, np.uint8), np.flatnonzero(rows < self.total)
        found[mine] = super().of(rows[mine])
        return found


# ------------------------------------------------------------------------------------------------------------- choices


@handles_shortage
def by_component(edges: Blob, components: Components, num_buckets: int, blob: Blob) -> int:
    """Write the edges of one file by component."""
    count = 0
    with ExitStack() as stack:
        reader = pa.ipc.open_file(stack.enter_context(pa.memory_map(str(edges.file()))))
        schema = pa.schema([*reader.schema, pa.field("component", pa.int64())])
        writer = stack.enter_context(ShuffleWriter(blob, num_buckets, schema))
        for number in range(reader.num_record_batches):
            table = pa.Table.from_batches([reader.get_batch(number)])
            component = components.of(as_numpy(table.column("right")))
            writer.write(
                table.append_column("component", pa.array(component)), bucket_of_component(component, num_buckets)
            )
            count += table.num_rows
            release_pages()
    return count


@handles_shortage
def choose(
    blocks: Blocks, shuffled: NumberedFiles, bucket: int, num_buckets: int, blob: Blob, ranges: FateRanges
) -> dict[str, int]:
    """Decide about the rows of some components, and write the dropped ones with their survivors."""
    table = read_whole_bucket(shuffled, bucket, num_buckets)
    with (
        PairWriter(blob, blocks) as writer,
        ShuffleWriter(blob.with_suffix(FATES), ranges.count, _FATES) as fates,
        ShuffleWriter(blob.with_suffix(SURVIVORS), ranges.count, _SURVIVORS) as survivors,
    ):
        if table is None:
            return {"dropped": 0, "unknown": 0}
        edge = {name: as_numpy(table.column(name)) for name in table.column_names}
        keys = ("left", "left_order", "left_source", "right", "right_order", "right_source")
        order = np.lexsort([edge[name] for name in keys])
        right = edge["right"][order]
        begins = np.flatnonzero(np.append(True, right[1:] != right[:-1]))
        vertices, place = np.unique(np.concatenate([right[begins], edge["left"][order]]), return_inverse=True)
        states, twins = np.full(len(vertices), kernel.KEPT, np.int8), np.empty(len(begins), np.int64)
        kernel.choose_kept(
            np.append(begins, len(right)), place[: len(begins)], place[len(begins) :], states,
            np.logical_or.reduceat(edge["full"][order], begins), twins,
        )  # fmt: skip
        mine = states[place[: len(begins)]]
        dropped = np.flatnonzero(twins >= 0)
        chosen = order[twins[dropped]]
        writer.write(
            {
                "row": edge["right"][chosen],
                "survivor": edge["left"][chosen],
                **{name: edge[name][chosen] for name in _MEASURES if name in edge},
                "short": np.zeros(len(chosen), np.bool_),
                "dropped": np.ones(len(chosen), np.bool_),
            }
        )
        unknown = right[begins][mine == kernel.UNKNOWN]
        row = np.concatenate([edge["right"][chosen], unknown])
        state = np.repeat(np.array([kernel.DROPPED, kernel.UNKNOWN], np.uint8), [len(chosen), len(unknown)])
        fates.write(pa.table({"row": row, "state": state}), row // ranges.rows)
        survivor = edge["left"][chosen]
        survivors.write(pa.table({"row": survivor}), survivor // ranges.rows)
    return {"dropped": len(chosen), "unknown": len(unknown)}


@dataclass(frozen=True)
class FateRanges:
    """Rows and entries of the index divided into ranges, of each of which one call collects the states."""

    known: int
    """The number of rows and entries."""
    rows: int
    """Rows of a range."""

    @staticmethod
    def of(known: int, call_bytes: int) -> FateRanges:
        return FateRanges(known, max(1, -(-known // bucket_count(known * FATE_BYTES, call_bytes))))

    @property
    def count(self) -> int:
        return max(1, -(-self.known // self.rows))


@handles_shortage
def collect_states(
    ranges: FateRanges, number: int, pairs: NumberedFiles, num_buckets: int, blob: Blob
) -> dict[str, Any]:
    """Write the states of the rows of a range, from the fates beside the pairs of all rounds so far."""
    first, last = number * ranges.rows, min(ranges.known, (number + 1) * ranges.rows)
    states, duplicates = np.full(last - first, kernel.KEPT, np.uint8), np.zeros(last - first, np.int64)
    for place, each in enumerate(pairs):
        if place % num_buckets == 0:
            states[states == kernel.UNKNOWN] = kernel.KEPT  # unless this round says otherwise
        for batch in read_bucket(each.with_suffix(FATES), number, ranges.count):
            states[as_numpy(batch.column("row")) - first] = as_numpy(batch.column("state"))
        for batch in read_bucket(each.with_suffix(SURVIVORS), number, ranges.count):
            kept, counts = np.unique(as_numpy(batch.column("row")) - first, return_counts=True)
            duplicates[kept] += counts
    write_matrix(blob, states)
    sizes = duplicates[duplicates > 0] + 1
    return {"unknown": int(np.count_nonzero(states == kernel.UNKNOWN)), "sizes": histogram(sizes)}


@handles_shortage
def keep_near_misses(blocks: Blocks, edges: Blob, states: States, blob: Blob) -> int:
    """Write the rows that were kept although they are almost similar enough to another row that was kept."""
    count = 0
    with PairWriter(blob, blocks) as writer, pa.memory_map(str(edges.with_suffix(NEAR).file())) as file:
        reader = pa.ipc.open_file(file)
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            row, survivor = as_numpy(batch.column("row")), as_numpy(batch.column("survivor"))
            kept = (states.of(row) == kernel.KEPT) & (states.of(survivor) == kernel.KEPT)
            chosen = batch.filter(pa.array(kept))
            writer.write(
                {name: chosen.column(name) for name in chosen.schema.names}
                | {name: np.zeros(chosen.num_rows, np.bool_) for name in ("short", "dropped")}
            )
            count += chosen.num_rows
            release_pages()
    return count
