"""Choose rows by their embeddings: drop those unlike all others, or keep a few that represent the rest.

observe   the embedding of each row
resolve   cluster the embeddings (`clustering`), then measure each row, or choose rows of each cluster
apply     filter out the others
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tamis.batch import Batch, Column
from tamis.dedup.clustering import (
    Centres,
    Members,
    Settings,
    Training,
    map_vectors,
    sort_by_cluster,
    train_centres,
    write_matrix,
)
from tamis.dedup.decisions import check_disk
from tamis.dedup.keep import ascending
from tamis.dedup.rows import RowNumbers
from tamis.dedup.shuffle import (
    RESOLVING_BYTES,
    NumberedFiles,
    ShuffleWriter,
    as_numpy,
    bucket_count,
    chunk_rows,
    handles_shortage,
    read_bucket,
    retry_with_less_memory,
    run_in_workers,
)
from tamis.dedup.vectors import VectorKind, count_vectors, most_frequent, vector_facts
from tamis.errors import ParameterError
from tamis.exchange import Blob
from tamis.kernels import clusters as kernel
from tamis.operators import Decide, Gather, Observations, Resources, Work, operator
from tamis.sampling import PartLimit, find_smallest

SIMILARITY = "centre_similarity"

MAX_TOGETHER = 4096
"""Rows of a cluster among which representatives are chosen together; larger clusters are divided at random."""


@operator(reads="embedding", resources=Resources(memory=RESOLVING_BYTES))
class Outliers(Gather):
    """Drop rows whose embedding is unlike all others: far from the centre of its cluster.

    The score `centre_similarity` is the cosine similarity of the embedding to the nearest of `num_clusters` centres. Rows
    below `min_similarity` are dropped, or the `share` of the rows with the lowest scores. With `score_only`, no row is
    dropped and the score becomes a column.

    Clusters are those of `SemanticDedup`; with more of them, fewer rows are far from a centre. Rows without an embedding
    are kept, and those with values that are not finite fail. Costs disk space of the embeddings during the run.

    >>> from tamis import Pipeline, Rows
    >>> rows = [{"embedding": [1.0, 0.01 * n]} for n in range(9)] + [{"embedding": [-1.0, 1.0]}]
    >>> Pipeline(Rows(rows), Outliers(min_similarity=0.5, num_clusters=1)).run().dropped
    {'centre_similarity < 0.5': 1}
    """

    column: str = "embedding"
    min_similarity: float | None = None
    share: float | None = None
    num_clusters: int | Literal["auto"] = "auto"
    dimension: int | None = None
    seed: int = 42
    score_only: bool = False

    version = 1

    def check(self) -> None:
        _check_clusters(self.num_clusters)
        chosen = (self.min_similarity is not None) + (self.share is not None)
        if chosen != 1 and not self.score_only:
            raise ParameterError(
                "`outliers` needs either `min_similarity` or `share`", hint="share=0.01 drops 1 % of the rows"
            )
        if self.share is not None and not 0 <= self.share < 1:
            raise ParameterError(f"`share` must be at least 0 and below 1, got {self.share}")
        if self.min_similarity is not None and not -1 <= self.min_similarity <= 1:
            raise ParameterError(f"`min_similarity` must be from -1 to 1, got {self.min_similarity}")

    def writes(self) -> tuple[str, ...]:
        return (SIMILARITY,) if self.score_only else ()

    def disk_bytes(self, num_rows: int, num_bytes: int) -> int:
        return num_bytes + 20 * num_rows

    def observe(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        return _facts(batch, self.column, self.dimension)

    def resolve(self, observed: Observations, decide: Decide, work: Work) -> None:
        rows = RowNumbers(observed)
        retry_with_less_memory(lambda call_bytes: self._resolve(rows, decide, work, call_bytes), work.worker_bytes)

    def _resolve(self, rows: RowNumbers, decide: Decide, work: Work, call_bytes: int) -> None:
        kind, count = _kind(rows, work)
        scores = NumberedFiles(work.exchange.sub("scores"), "part-", rows.num_partitions)
        centres, settings = None, Settings(kind, seed=self.seed)
        if count:
            centres = train_centres(work, rows, settings, Training.of(self.num_clusters, count), call_bytes)
        chunk = chunk_rows(settings.row_bytes, call_bytes)
        run_in_workers(
            work,
            "similarity to centres",
            measure,
            [(rows, part, centres, settings, blob, chunk) for part, blob in enumerate(scores)],
        )
        lowest: list[PartLimit | None] = [None] * rows.num_partitions
        if self.share is not None:
            lowest = [*find_smallest(work, "lowest", ScoreKeys(scores), len(scores), int(self.share * count))]
        limit = None if self.share is not None or self.score_only else self.min_similarity
        run_in_workers(
            work,
            "outliers",
            drop_outliers,
            [
                (
                    blob,
                    part,
                    decide,
                    limit,
                    None if self.score_only else lowest[part],
                    self._reason(limit),
                    self.score_only,
                )
                for part, blob in enumerate(scores)
            ],
        )

    def _reason(self, limit: float | None) -> str:
        if self.share is not None:
            return f"{SIMILARITY} among the lowest {100 * self.share:g} %"
        return f"{SIMILARITY} < {limit:g}" if limit is not None else ""

    def rewrite(self, batch: Batch, payload: Column) -> Mapping[str, Column | np.ndarray]:
        return {SIMILARITY: payload}


@operator(reads="embedding", resources=Resources(memory=RESOLVING_BYTES))
class Diverse(Gather):
    """Keep `rows` rows, or a `share` of them, whose embeddings represent all.

    Embeddings are divided into clusters, and each cluster keeps its share of the rows: `method="k_center"` starts with the row
    nearest to the centre and adds the row least similar to those already chosen (Gonzalez 1985), which covers the borders;
    `"facility_location"` adds the row that most increases the sum of the similarities of all rows to the nearest chosen one,
    which prefers typical rows (greedily: at least 63 % of the best sum). Clusters of more than 4,096 rows are divided randomly.

    Rows without an embedding are dropped; those with values that are not finite fail. The choice does not depend on workers,
    partitions or memory. Costs disk space of three times the embeddings during the run.

    >>> from tamis import Pipeline, Rows
    >>> rows = [{"embedding": [1.0, 0.01 * n]} for n in range(9)] + [{"embedding": [-1.0, 1.0]}]
    >>> Pipeline(Rows(rows), Diverse(rows=2, num_clusters=1)).collect()["embedding"].to_pylist()[-1]
    [-1.0, 1.0]
    """

    column: str = "embedding"
    rows: int | None = None
    share: float | None = None
    method: Literal["k_center", "facility_location"] = "k_center"
    num_clusters: int | Literal["auto"] = "auto"
    dimension: int | None = None
    seed: int = 42

    version = 1

    def check(self) -> None:
        _check_clusters(self.num_clusters)
        if (self.rows is None) == (self.share is None):
            raise ParameterError("`diverse` needs either `rows` or `share`", hint="share=0.1 keeps a tenth of the rows")
        if self.rows is not None and self.rows < 1:
            raise ParameterError(f"`rows` must be at least 1, got {self.rows}")
        if self.share is not None and not 0 < self.share <= 1:
            raise ParameterError(f"`share` must be above 0 and at most 1, got {self.share}")

    def disk_bytes(self, num_rows: int, num_bytes: int) -> int:
        return 3 * num_bytes + 60 * num_rows

    def observe(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        return _facts(batch, self.column, self.dimension)

    def resolve(self, observed: Observations, decide: Decide, work: Work) -> None:
        rows = RowNumbers(observed)
        retry_with_less_memory(lambda call_bytes: self._resolve(rows, decide, work, call_bytes), work.worker_bytes)

    def _resolve(self, rows: RowNumbers, decide: Decide, work: Work, call_bytes: int) -> None:
        kind, count = _kind(rows, work)
        wanted = min(count, self.rows if self.rows is not None else round((self.share or 0.0) * count))
        found = NumberedFiles(work.exchange.sub("chosen"), "none-", 0)
        if wanted:
            settings = Settings(kind, seed=self.seed)
            check_disk(work, count * (2 * kind.stored.byte_width + 60), "choosing representative rows")
            centres = train_centres(work, rows, settings, Training.of(self.num_clusters, count), call_bytes)
            num_buckets = min(centres.count, bucket_count(count * settings.row_bytes, call_bytes))
            members = sort_by_cluster(work, rows, None, settings, centres, num_buckets, call_bytes)
            sizes = run_in_workers(
                work,
                f"sizes, {num_buckets}",
                cluster_sizes,
                [(members, bucket, centres, settings) for bucket in range(num_buckets)],
            )
            quotas = divided(np.array([size for part in sizes for size in part]), wanted)
            ends = np.cumsum([len(part) for part in sizes])
            found = NumberedFiles(work.exchange.sub("chosen"), f"{num_buckets}-", num_buckets)
            run_in_workers(
                work,
                f"representatives, {num_buckets}",
                choose_rows,
                [
                    (rows, members, bucket, centres, settings,
                     quotas[ends[bucket] - len(sizes[bucket]) : ends[bucket]].tolist(), self.method, blob)
                    for bucket, blob in enumerate(found)
                ],
            )  # fmt: skip
        run_in_workers(
            work,
            f"choice, {len(found)}",
            keep_chosen,
            [(rows, found, part, kind, decide) for part in range(rows.num_partitions)],
        )


def _check_clusters(num_clusters: int | str) -> None:
    if isinstance(num_clusters, int) and not 1 <= num_clusters <= 2**16:
        raise ParameterError(f"`num_clusters` must be from 1 to {2**16}, got {num_clusters}")


def _facts(batch: Batch, column: str, dimension: int | None) -> dict[str, Column | np.ndarray]:
    # A column of its own, so that rows without a vector are facts too.
    return {"present": np.ones(len(batch), np.bool_), **vector_facts(batch["embedding"], column, dimension)}


def _kind(rows: RowNumbers, work: Work) -> tuple[VectorKind, int]:
    """(the kind of the vectors, how many there are)"""
    counts = run_in_workers(work, "vectors", count_vectors, [(rows, part) for part in range(rows.num_partitions)])
    kind, count, _ = most_frequent(counts)
    return kind or VectorKind(1, half=False), count


# --------------------------------------------------------------------------------------------------- calls in the workers

_CHOSEN = pa.schema({"row": pa.int64()})


@handles_shortage
def measure(
    rows: RowNumbers, partition: int, centres: Centres | None, settings: Settings, blob: Blob, chunk: int
) -> int:
    """Write the similarity of each row of a partition to its nearest centre, NaN for a row without a vector."""
    found = np.full(rows.observed.num_rows(partition), np.nan)
    if centres is not None:
        places = np.array(map_vectors(centres.blob, settings.kind.dimension))
        first = int(rows.offsets[partition])
        for start, facts in rows.chunks(partition, settings.kind.columns, chunk):
            local, stored = settings.kind.of(facts)
            if len(local):
                found[start - first + local] = kernel.nearest(settings.kind.unit(stored), places)[1]
    write_matrix(blob, found)
    return len(found)


@dataclass(frozen=True)
class ScoreKeys:
    """The scores of a partition as integers in the same order; rows without a score are left out."""

    scores: NumberedFiles

    def __call__(self, partition: int) -> np.ndarray:
        found = np.fromfile(self.scores[partition].file(), np.float64)
        return ascending(found[~np.isnan(found)])


@handles_shortage
def drop_outliers(
    blob: Blob, partition: int, decide: Decide, limit: float | None, lowest: PartLimit | None, reason: str, scored: bool
) -> int:
    """Decide about the rows of a partition: those below `limit`, or with the lowest scores, are dropped."""
    found = np.fromfile(blob.file(), np.float64)
    drop = found < limit if limit is not None else np.zeros(len(found), np.bool_)  # false for rows without a score
    if lowest is not None:
        known = np.flatnonzero(~np.isnan(found))
        drop[known] = lowest.chosen(ascending(found[known]))
    decide(partition, drop, reason, pa.array(found, mask=np.isnan(found)) if scored else None)
    return int(drop.sum())


@handles_shortage
def cluster_sizes(files: NumberedFiles, bucket: int, centres: Centres, settings: Settings) -> list[int]:
    """The number of rows of each cluster of a bucket."""
    _, starts = Members(files, centres.count, settings).bucket(bucket)
    return [int(size) for size in np.diff(starts[1:])]


def divided(sizes: np.ndarray, wanted: int) -> np.ndarray:
    """How many rows each cluster keeps, in proportion to its size (largest remainders, the first of equal ones).

    >>> divided(np.array([6, 3, 1]), 5).tolist()
    [3, 2, 0]
    """
    exact = sizes * (wanted / max(1, sizes.sum()))
    quotas = np.minimum(np.floor(exact + 1e-9).astype(np.int64), sizes)
    order = np.argsort(-(exact - quotas), kind="stable")
    quotas[order[: wanted - quotas.sum()]] += 1
    return np.asarray(quotas)


@dataclass(frozen=True)
class _Pool:
    """Rows of a cluster among which representatives are chosen."""

    row: np.ndarray
    vectors: np.ndarray
    quota: int


@handles_shortage
def choose_rows(
    rows: RowNumbers,
    files: NumberedFiles,
    bucket: int,
    centres: Centres,
    settings: Settings,
    quotas: list[int],
    method: str,
    blob: Blob,
) -> int:
    """Write the numbers of the rows that represent the clusters of a bucket, by partition."""
    members = Members(files, centres.count, settings)
    places = map_vectors(centres.blob, settings.kind.dimension)
    first = int(members.bucket(bucket)[1][0])
    count = 0
    with ShuffleWriter(blob, rows.num_partitions, _CHOSEN) as writer:
        for number, quota in enumerate(quotas):
            for pool in _pools(members.cluster(first + number), quota, settings) if quota else ():
                choose: Any = kernel.k_center if method == "k_center" else kernel.facility_location
                chosen = pool.row[choose(pool.vectors, np.array(places[first + number]), pool.quota)]
                writer.write(pa.table({"row": chosen}), rows.partition_of(chosen))
                count += len(chosen)
    return count


@handles_shortage
def keep_chosen(rows: RowNumbers, chosen: NumberedFiles, partition: int, kind: VectorKind, decide: Decide) -> int:
    """Decide about the rows of a partition: those that no bucket has chosen are dropped."""
    kept, known = (np.zeros(rows.observed.num_rows(partition), np.bool_) for _ in range(2))
    for blob in chosen:
        for batch in read_bucket(blob, partition, rows.num_partitions):
            kept[as_numpy(batch.column("row")) - rows.offsets[partition]] = True
    known[kind.of(rows.observed[partition])[0]] = True
    reasons = pa.array(["no embedding", "represented by others"])
    decide(partition, ~kept, pa.DictionaryArray.from_arrays(pa.array(known.astype(np.int8)), reasons))
    return int(kept.sum())


def _pools(table: pa.Table, quota: int, settings: Settings) -> Iterator[_Pool]:
    """A cluster, or several random parts of one that is too large, each with its share of the quota."""
    row = as_numpy(table.column("row"))
    parts = -(-len(row) // MAX_TOGETHER)
    mixed = np.argsort(kernel.mixed(row, settings.seed, 5), kind="stable")
    sizes = np.array([len(mixed[part::parts]) for part in range(parts)])
    for part, share in enumerate(divided(sizes, quota)):
        local = np.sort(mixed[part::parts])
        stored = table.column("vector").take(pa.array(local))
        yield _Pool(row[local], settings.kind.unit(stored), int(share))
