"""Semantic duplicates: rows whose embeddings are similar.

observe   the embedding of each row
resolve   cluster the embeddings, compare rows of the same and of neighbouring clusters, and choose which to keep (`similar`)
apply     filter out the duplicates
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from tamis.batch import Batch, Column
from tamis.context import Context
from tamis.dedup import similar
from tamis.dedup.clustering import Centres, Settings, Training, sort_by_cluster, train_centres
from tamis.dedup.decisions import Blocks, Decisions, check_disk, index_parts_of, publish
from tamis.dedup.exact import summary_of
from tamis.dedup.index import Index, write_part
from tamis.dedup.indexed import IndexedDedup
from tamis.dedup.keep import KeepPolicy
from tamis.dedup.resident import OPENING_BYTES, ROW_BYTES, find_edges
from tamis.dedup.rounds import decide_in_rounds
from tamis.dedup.rows import RowNumbers, address_facts, address_facts_of
from tamis.dedup.shuffle import (
    RESOLVING_BYTES,
    NumberedFiles,
    bucket_count,
    run_in_workers,
)
from tamis.dedup.similar import States
from tamis.dedup.vectors import VectorKind, count_vectors, most_frequent, vector_facts, vectors_in
from tamis.errors import BudgetError, ParameterError
from tamis.exchange import Exchange
from tamis.models.devices import choose
from tamis.operators import Decide, Resources, Work, operator
from tamis.parameters import format_bytes

if TYPE_CHECKING:
    from tamis.text.embed import Embed, Embedder

SemanticKeep: TypeAlias = Literal["hard", "easy", "random", "first", "newest", "best"]

COMPARED_BYTES = 300
"""Memory per row while components are decided, if each row has a few edges."""


@operator(reads="embedding")
class SemanticDedup(IndexedDedup):
    """Keep one row of each group of rows with similar embeddings.

    Rows are visited in the order of the keep policy. A row is dropped if the cosine similarity of its embedding to that of a
    row already kept is at least `threshold` (or 1 - `eps`, as other tools call it). `keep` chooses the order: `"hard"` visits
    rows far from the centre of their cluster first, `"easy"` those near to it, `"random"` any order, by `seed`; `"first"`
    follows the source order, `"newest"` and `"best"` the column `by`. `prefer`, `prefer_column`, `across_sources`, `against`,
    `update` and `storage_options` are as in `ExactDedup`. An index holds embeddings of one length; rows with embeddings of
    another length are an error. Use one index for each embedding model.

    Not all rows are compared: embeddings are divided into `num_clusters` clusters (by default the square root of the number of
    rows), and a row is compared with rows of its own cluster and of up to `neighbours` others, those that may have a similar
    row and are nearest. With `neighbours=None` it is compared with all that may, and no pair is missed. With the default of 16,
    at least 99 % of the rows that have a similar row are found (benchmarks/semantic.md).

    `column` has lists of numbers, all of one length; `tamis.text.Embed` adds one. With `model`, a model of `Embed`, the step
    embeds `text_column` itself, and the rows are written without embeddings. A row without an embedding, or with one of
    length 0, is kept. A row with a value that is not finite fails, as does a row with another length than `dimension` if that
    is given; otherwise the length that most rows have is compared, and rows with another one are kept.

    Clusters are found by k-means with cosine similarity on a sample of 64 rows per cluster, initialised by k-means||
    (Bahmani et al. 2012; Abbas et al. 2023, SemDeDup). The result does not depend on the number of workers, on the size of
    partitions or on memory. Similarities are compared in float64 with a tolerance of 1e-6, where rounding matters.

    Costs disk space of three times the embeddings during the run, and memory within the budget.

    >>> from tamis import Pipeline, Rows
    >>> rows = [{"embedding": [1.0, 0.0]}, {"embedding": [0.99, 0.05]}, {"embedding": [0.0, 1.0]}]
    >>> Pipeline(Rows(rows), SemanticDedup(threshold=0.9)).run().dropped
    {'similar embedding': 1}
    """

    column: str = "embedding"
    model: str | None = None
    text_column: str = "text"
    threshold: float | None = None
    eps: float | None = None
    dimension: int | None = None
    num_clusters: int | Literal["auto"] = "auto"
    neighbours: int | None = 16
    keep: SemanticKeep = "hard"
    by: str | None = None
    prefer: Sequence[str] | None = None
    prefer_column: str | None = None
    across_sources: bool = False
    max_iterations: int = 20
    min_improvement: float = 1e-4
    oversampling: float = 2.0
    against: str | None = None
    update: bool = False
    storage_options: Mapping[str, Any] | None = None
    seed: int = 42
    device: Literal["auto", "cpu", "gpu"] = "auto"

    version = 1
    incidental = frozenset({"device", "storage_options"})
    path_parameters = frozenset({"against", "model"})
    index_kind = "semantic"

    def check(self) -> None:
        self._policy.check()
        if self._embed is not None:
            self._embed.check()
        if self.threshold is not None and self.eps is not None:
            raise ParameterError("give `threshold` or `eps`, not both", hint="eps is 1 - threshold")
        if not 0 < self.least_similarity <= 1:
            raise ParameterError(
                f"`threshold` must be above 0 and at most 1, got {self.least_similarity:g}"
                if self.eps is None
                else f"`eps` must be at least 0 and below 1, got {self.eps:g}"
            )
        for name, least in (("dimension", 1), ("neighbours", 0), ("max_iterations", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ParameterError(f"`{name}` must be at least {least}, got {value}")
        if self.num_clusters != "auto" and not 1 <= self.num_clusters <= 2**16:
            raise ParameterError(f"`num_clusters` must be from 1 to {2**16}, got {self.num_clusters}")
        if self.oversampling <= 0:
            raise ParameterError(f"`oversampling` must be above 0, got {self.oversampling}")
        choose(self.device)
        self.check_index()

    # ---------------------------------------------------------------------------------------------------------- parameters

    @property
    def least_similarity(self) -> float:
        """The similarity from which rows are duplicates."""
        if self.eps is not None:
            return 1 - self.eps
        return 0.9 if self.threshold is None else self.threshold

    @property
    def _embed(self) -> Embed | None:
        if self.model is None:
            return None
        from tamis.text.embed import Embed

        return Embed(self.model, column=self.text_column, device=self.device)

    @property
    def resources(self) -> Resources:
        needed = self._embed.resources if self._embed is not None else Resources()
        return replace(needed, memory=needed.own_bytes + RESOLVING_BYTES)

    @property
    def worth_gpu_bytes(self) -> int:
        """What many cores compare in the time that it takes to open a GPU: 200,000 vectors of 384 values."""
        return 300_000_000 if self.model is None else 0

    @property
    def _policy(self) -> KeepPolicy:
        # The order of the others is known only when the embeddings are clustered.
        keep: Any = self.keep if self.keep in ("newest", "best") else "first"
        return KeepPolicy(keep, self.by, self.prefer, self.prefer_column, self.across_sources)

    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([self._read, *self._policy.columns()]))

    @property
    def _read(self) -> str:
        return "embedding" if self.model is None else "text"

    def real_names(self) -> dict[str, str]:
        real = self.column if self.model is None else self.text_column
        return {name: name for name in self.reads()} | {self._read: real}

    def packages(self) -> Mapping[str, str]:
        return self._embed.packages() if self._embed is not None else {}

    def identity(self) -> dict[str, Any]:
        return super().identity() | ({"embed": self._embed.identity()} if self._embed is not None else {})

    def disk_bytes(self, num_rows: int, num_bytes: int) -> int:
        """Disk space that a run takes: the embeddings three times, and edges."""
        return 3 * num_bytes + 200 * num_rows

    def index_settings(self) -> dict[str, Any]:
        return {"column": self.column, "model": self.model}

    # ------------------------------------------------------------------------------------------------------------- observe

    def open(self, context: Context) -> VectorObserver:
        return VectorObserver(self, self._embed.open(context) if self._embed is not None else None)

    def facts(self, batch: Batch, vectors: Column) -> dict[str, Column | np.ndarray]:
        """Facts about rows with these vectors."""
        facts: dict[str, Column | np.ndarray] = dict(address_facts(batch))
        facts |= vector_facts(vectors, self.column, self.dimension)
        return facts | self._policy.facts(batch, np.zeros(len(batch), np.int64))

    # ------------------------------------------------------------------------------------------------------------- resolve

    def resolve_rows(
        self, rows: RowNumbers, decide: Decide, work: Work, index: Index | None, call_bytes: int
    ) -> Exchange | None:
        blocks = Blocks.of(rows, index, call_bytes)
        counts = run_in_workers(work, "vectors", count_vectors, [(rows, part) for part in range(rows.num_partitions)])
        kind, count, others = most_frequent(counts)
        summary: dict[str, Any] = {"vectors": count, "other_dimensions": others}
        if kind is None:
            pairs = NumberedFiles(work.exchange.sub("pairs"), "none-", 0)
            found: list[Mapping[str, Any]] = []
        else:
            if index is not None:
                check_dimension(index, kind)
            settings = Settings(
                kind,
                self.keep,
                self.seed,
                self.least_similarity,
                self.neighbours,
                self.across_sources,
                on_gpu=self._on_gpu(count, work),
            )
            summary["dimension"] = kind.dimension
            pairs, found = self._pairs(rows, blocks, count, settings, work, summary, call_bytes)
        index_parts = index_parts_of(self.update, work, blocks)
        decisions = Decisions(
            blocks,
            decide,
            pairs,
            work.exchange,
            reason="similar embedding",
            index_reason=f"in the index {self.against}",
            index_parts=index_parts,
            write_entries=partial(write_vector_part, [] if kind is None else kind.columns),
        )
        decided = decisions.run(work, pairs.stem)
        summary = summary_of(self.name, rows, found, decided) | summary
        publish(work, summary | {"threshold": self.least_similarity, "keep": self.keep}, {})
        return index_parts

    def _on_gpu(self, count: int, work: Work) -> bool:
        """Whether vectors are compared on a GPU: if there is one, and a worker has the memory to open it."""
        if choose(self.device) == "cpu":
            return False
        needed = OPENING_BYTES + count * ROW_BYTES
        if self.device == "gpu" and work.worker_bytes < needed:
            raise BudgetError(
                f"comparing embeddings on a GPU needs {format_bytes(needed)} of memory in a worker",
                hint='rerun the same command with more --memory or fewer --workers, or with device="auto"',
            )
        return work.worker_bytes >= needed

    def _pairs(
        self,
        rows: RowNumbers,
        blocks: Blocks,
        count: int,
        settings: Settings,
        work: Work,
        summary: dict[str, Any],
        call_bytes: int,
    ) -> tuple[NumberedFiles, list[Mapping[str, Any]]]:
        """(files of dropped rows with their survivors, sizes of groups)"""
        index = blocks.index
        known = count + (index.total if index is not None else 0)
        check_disk(work, known * (2 * settings.kind.stored.byte_width + 100), "semantic deduplication")
        search = _Search(self, rows, index, count, settings, work, call_bytes)
        num_buckets = bucket_count(known * COMPARED_BYTES, call_bytes)
        decided = decide_in_rounds(work, blocks, num_buckets, call_bytes, search.run)
        summary |= search.summary
        summary["rounds"] = decided.rounds
        return decided.pairs, [*decided.fates]


class _Search:
    """Finds the better rows that each row is similar to: on a GPU if the vectors fit there, otherwise bucket by bucket."""

    def __init__(
        self,
        step: SemanticDedup,
        rows: RowNumbers,
        index: Index | None,
        count: int,
        settings: Settings,
        work: Work,
        call_bytes: int,
    ) -> None:
        self._step, self._rows, self._index, self._settings = step, rows, index, settings
        self._work, self._call_bytes = work, call_bytes
        self._known = known = count + (index.total if index is not None else 0)
        training = Training.of(step.num_clusters, count, known - count)
        self._training = replace(
            training,
            oversampling=step.oversampling,
            max_iterations=step.max_iterations,
            min_improvement=step.min_improvement,
        )
        self._resident = settings.on_gpu
        self._members: NumberedFiles | None = None
        self._centres: Centres | None = None
        self.summary: dict[str, Any] = {
            "neighbours": settings.neighbours, "queries": 0, "edges": 0, "limited": 0, "compared": 0
        }  # fmt: skip

    def run(self, number: int, states: States | None) -> NumberedFiles:
        """Files of edges. In rounds after the first, `states` says which rows to compare again."""
        found: list[Mapping[str, int]] = []
        exchange = self._work.exchange.sub("edges")
        if self._resident:
            edges = NumberedFiles(exchange, f"gpu, round {number}-", 1)
            sizes = [self._vectors_of(self._rows.observed[part]) for part in range(self._rows.num_partitions)]
            sizes += [self._vectors_of(entries) for _, entries in self._index.entries()] if self._index else []
            item = (self._rows, self._index, sizes, self._settings, self._training, states, edges[0])
            name = f"similar rows on a GPU, round {number}"
            (result,) = run_in_workers(self._work, name, find_edges, [item], on_gpu=True)
            if result is None:
                self._settings = replace(self._settings, on_gpu=False)
            self._resident = result is not None and "too_large" not in result
            found = [result] if self._resident else []
        if not self._resident:
            if self._members is None:
                self._divide()
            assert self._members is not None
            num_buckets = len(self._members)
            edges = NumberedFiles(exchange, f"{num_buckets}, round {number}-", num_buckets)
            found = run_in_workers(
                self._work,
                f"similar rows, {num_buckets}, round {number}",
                similar.find_better,
                [
                    (
                        self._members,
                        bucket,
                        self._centres,
                        self._settings,
                        states,
                        blob,
                        self._call_bytes,
                    )
                    for bucket, blob in enumerate(edges)
                ],
                on_gpu=self._settings.on_gpu,
            )
        for part in found:
            for name, value in part.items():
                self.summary[name] = self.summary.get(name, 0) + value if name in _ADDED else value
        return edges

    def _vectors_of(self, facts: pa.Table) -> int:
        columns = [facts.column(name) for name in self._settings.kind.columns if name in facts.column_names]
        return sum(len(column) - column.null_count for column in columns)

    def _divide(self) -> None:
        """Find centres, and write the rows of each cluster."""
        self._centres = train_centres(self._work, self._rows, self._settings, self._training, self._call_bytes)
        needed = bucket_count(self._known * self._settings.row_bytes, self._call_bytes)
        self._members = sort_by_cluster(
            self._work,
            self._rows,
            self._index,
            self._settings,
            self._centres,
            min(self._centres.count, needed),
            self._call_bytes,
        )
        self.summary |= {
            "clusters": self._centres.count, "sample": self._centres.sample, "iterations": self._centres.iterations
        }  # fmt: skip


_ADDED = ("queries", "edges", "limited", "compared")
"""Counts that are summed over calls and rounds."""


class VectorObserver:
    """Observes the rows of a `SemanticDedup`, and embeds them if it has a model."""

    def __init__(self, step: SemanticDedup, embedder: Embedder | None) -> None:
        self._step, self._embedder = step, embedder

    def observe(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        if self._embedder is None:
            return self._step.facts(batch, batch["embedding"])
        return self._step.facts(batch, self._embedder.apply(batch)["embedding"])

    def close(self) -> None:
        if self._embedder is not None:
            self._embedder.close()


def check_dimension(index: Index, kind: VectorKind) -> None:
    """Raise if an index has vectors of another dimension, which can be compared with none of these."""
    known, _, _ = most_frequent(vectors_in(entries) for _, entries in index.entries())
    if known is not None and known.dimension != kind.dimension:
        raise ParameterError(
            f"the index {index.path} has embeddings of {known.dimension} values, and these rows have {kind.dimension}",
            hint="embed the rows with the model of the index, or use an index for each model",
        )


def write_vector_part(columns: Sequence[str], facts: pa.Table, local: np.ndarray, parts: Exchange, block: int) -> None:
    """Write the kept rows of a block that have a vector in one of these columns to a part of an index."""
    names = [name for name in columns if name in facts.column_names]
    known = np.zeros(facts.num_rows, np.bool_)
    for name in names:
        known |= facts.column(name).is_valid().to_numpy()
    local = local[known[local]]
    if len(local):
        chosen = facts.select(names).take(pa.array(local))
        entries = pa.table({**address_facts_of(facts, local), **{name: chosen.column(name) for name in names}})
        write_part(parts, block, entries, np.empty(0, np.uint64), {})
