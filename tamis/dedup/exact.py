"""Exact duplicates: rows, paragraphs or lines with the same content.

observe   a 128-bit digest per row (or per unit), 40 bytes of disk space each
resolve   sort the digests by range, each range within a worker's memory, and choose rows by the keep policy
apply     filter out duplicate rows, or cut duplicate units out of their rows
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tamis.batch import Batch, Column
from tamis.dedup import units
from tamis.dedup.decisions import (
    Blocks,
    Decisions,
    GroupSizes,
    PairWriter,
    check_disk,
    histogram,
    index_parts_of,
    publish,
)
from tamis.dedup.equal_digests import EqualDigests, read_digests
from tamis.dedup.index import Index, write_part
from tamis.dedup.indexed import IndexedDedup
from tamis.dedup.keep import Keep, KeepPolicy
from tamis.dedup.rows import RowNumbers, address_facts, address_facts_of, column_or_zeros
from tamis.dedup.shuffle import (
    RESOLVING_BYTES,
    NumberedFiles,
    ShuffleWriter,
    as_numpy,
    bucket_count,
    bucket_of,
    chunk_rows,
    handles_shortage,
    pieces,
    run_in_workers,
)
from tamis.dedup.texts import Normalization, comparable, digest_columns, lengths_of
from tamis.errors import ParameterError
from tamis.exchange import Blob, Exchange
from tamis.operators import Decide, Resources, Work, operator

RECORD_BYTES = 40
"""Disk space per digest: 16 bytes, the row, its order and source."""
SORTING_BYTES = 3 * RECORD_BYTES
"""Memory per digest while digests are sorted."""


@operator(reads="text", resources=Resources(memory=RESOLVING_BYTES))
class ExactDedup(IndexedDedup):
    """Keep one of the rows with the same value in `column` (text, URL, any key; the bytes of images, sounds or videos; or
    several columns).

    Compares 128-bit digests. `ignore_case`, `ignore_whitespace` (the amount of it) and `unicode` (composition) normalise
    the text first. Rows whose key is null are never duplicates.

    `keep` chooses the row to keep: the first in source order, the longest, the newest or best by the column `by`, or none
    of them. `prefer` lists sources, best first, and takes precedence over `keep`: folders or files in paths, patterns, or
    values of `prefer_column`. With `across_sources`, a row is dropped only if a better source has it too; duplicates within
    a source are kept.

    With `unit="paragraph"` or `"line"`, repeats anywhere in the corpus are cut out of the text and the first occurrence is
    kept. A document that would lose more than `max_removed` of its text is dropped; the first occurrence in a document that
    is kept then counts instead of those in dropped ones. Units shorter than `min_unit_bytes` are not compared.

    `against` names an index of rows from earlier runs; rows that it contains are dropped. `update` adds the rows kept by
    this run. An index in an object store (see `storage_options`) is first copied to the run's exchange.

    `count_column` names a column with the number of rows that each kept row stands for: itself, and those dropped for it.

    `tamis dedup explain` and `.tamis/groups/` show why each row was dropped. Costs about 80 bytes of disk space per row (per
    unit) during the run, and memory within the budget.

    >>> from tamis import Pipeline, Rows
    >>> Pipeline(Rows([{"text": "a"}, {"text": "b"}, {"text": "a"}]), ExactDedup()).collect()["text"].to_pylist()
    ['a', 'b']
    """

    column: str | Sequence[str] = "text"
    unit: Literal["document", "paragraph", "line"] = "document"
    ignore_case: bool = False
    ignore_whitespace: bool = False
    unicode: Literal["NFC", "NFKC"] | None = None
    keep: Keep = "first"
    by: str | None = None
    prefer: Sequence[str] | None = None
    prefer_column: str | None = None
    across_sources: bool = False
    max_removed: float = 0.5
    min_unit_bytes: int = 20
    against: str | None = None
    update: bool = False
    storage_options: Mapping[str, Any] | None = None
    count_column: str | None = None

    index_kind = "exact"

    def check(self) -> None:
        self._policy.check()
        if not self._columns:
            raise ParameterError("`column` names no column")
        if self.unit != "document":
            if len(self._columns) > 1:
                raise ParameterError(
                    f'unit="{self.unit}" needs a single column of text, got {", ".join(self._columns)}'
                )
            if self.keep != "first" or self.prefer:
                raise ParameterError(
                    f'unit="{self.unit}" always keeps the first occurrence', hint="leave out `keep` and `prefer`"
                )
            if self.count_column is not None:
                raise ParameterError(f'unit="{self.unit}" counts no rows', hint="leave out `count_column`")
            if not 0 <= self.max_removed <= 1:
                raise ParameterError(f"`max_removed` must be a share from 0 to 1, got {self.max_removed}")
        self.check_index()

    @property
    def _columns(self) -> tuple[str, ...]:
        return (self.column,) if isinstance(self.column, str) else tuple(self.column)

    @property
    def _policy(self) -> KeepPolicy:
        return KeepPolicy(self.keep, self.by, self.prefer, self.prefer_column, self.across_sources)

    @property
    def _normalization(self) -> Normalization:
        return Normalization(self.ignore_case, self.ignore_whitespace, self.unicode)

    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self._columns, *self._policy.columns()]))

    def real_names(self) -> dict[str, str]:
        return {name: name for name in self.reads()}

    def writes(self) -> tuple[str, ...]:
        if self.unit != "document":
            return self._columns
        return () if self.count_column is None else (self.count_column,)

    def disk_bytes(self, num_rows: int, num_bytes: int) -> int:
        """Disk space that a run takes."""
        records = (
            num_rows if self.unit == "document" else max(num_rows, num_bytes // (60 if self.unit == "line" else 300))
        )
        return num_rows * 20 + records * 2 * RECORD_BYTES

    def index_settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"columns": self._columns, "unit": self.unit, "case": self.ignore_case}
        return settings | {"whitespace": self.ignore_whitespace, "unicode": self.unicode}

    # ------------------------------------------------------------------------------------------------------------- observe

    def observe(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        if self.unit != "document":
            return address_facts(batch) | units.unit_facts(
                batch[self._columns[0]], self._columns[0], self.unit, self.min_unit_bytes, self._normalization
            )
        columns = [(name, self._comparable(batch, name)) for name in self._columns]
        digests, known = digest_columns(columns, self._normalization)
        facts: dict[str, Column | np.ndarray] = dict(address_facts(batch))
        facts["high"] = pa.array(digests[:, 0], mask=~known)
        facts["low"] = pa.array(digests[:, 1])
        lengths = np.zeros(len(batch), np.int64)
        if self.keep == "longest":
            lengths = np.sum([lengths_of(batch, name) for name in self._columns], axis=0)
        return facts | self._policy.facts(batch, lengths)

    def _comparable(self, batch: Batch, name: str) -> Column:
        return comparable(batch, name)

    # ------------------------------------------------------------------------------------------------------------- resolve

    def resolve_rows(
        self, rows: RowNumbers, decide: Decide, work: Work, index: Index | None, call_bytes: int
    ) -> Exchange | None:
        if self.unit != "document":
            return units.resolve(self, rows, decide, work, index, call_bytes)
        check_disk(work, rows.total * RECORD_BYTES, "exact deduplication")
        num_buckets = bucket_count((rows.total + (index.total if index else 0)) * SORTING_BYTES, call_bytes)
        shuffled = NumberedFiles(work.exchange.sub("digests"), f"{num_buckets}-", rows.num_partitions)
        chunk = chunk_rows(SORTING_BYTES, call_bytes)
        run_in_workers(
            work,
            f"digests by range, {num_buckets}",
            shuffle_digests,
            [(rows, part, num_buckets, blob, chunk) for part, blob in enumerate(shuffled)],
        )
        blocks = Blocks.of(rows, index, call_bytes)
        index_parts = index_parts_of(self.update, work, blocks)
        pairs = NumberedFiles(work.exchange.sub("pairs"), f"{num_buckets}, {blocks.division}-", num_buckets)
        equals = EqualDigests(rows.total, self.keep == "none", self.across_sources)
        found = run_in_workers(
            work,
            f"groups, {num_buckets}, {blocks.division}",
            group_digests,
            [(blocks, shuffled, bucket, num_buckets, equals, blob, call_bytes) for bucket, blob in enumerate(pairs)],
        )
        decisions = Decisions(
            blocks,
            decide,
            pairs,
            work.exchange,
            reason="exact duplicate",
            index_reason=f"in the index {self.against}",
            index_parts=index_parts,
            write_entries=write_digest_part,
            counted=self.count_column is not None,
        )
        decided = decisions.run(work, str(num_buckets))
        publish(work, summary_of(self.name, rows, found, decided), {})
        return index_parts

    def rewrite(self, batch: Batch, payload: Column) -> Mapping[str, Column | np.ndarray]:
        if self.count_column is not None:
            return {self.count_column: payload}
        name = self._columns[0]
        return {name: units.without_units(batch[name], name, payload, self.unit, self.min_unit_bytes)}


def summary_of(
    step: str, rows: RowNumbers, found: Sequence[Mapping[str, Any]], decided: Sequence[Mapping[str, int]]
) -> dict[str, Any]:
    counts = GroupSizes()
    for part in found:
        counts.add(part)
    dropped = sum(part["dropped"] for part in decided)
    return {"step": step, "rows": rows.total, "dropped": dropped, **counts.as_dict()}


# --------------------------------------------------------------------------------------------------- calls in the workers

_SHUFFLED = pa.schema(
    {"high": pa.uint64(), "low": pa.uint64(), "local": pa.uint32(), "order": pa.uint64(), "source": pa.uint64()}
)


@handles_shortage
def shuffle_digests(rows: RowNumbers, partition: int, num_buckets: int, blob: Blob, chunk: int) -> int:
    """Write the digests of a partition by range of digests."""
    first = int(rows.offsets[partition])
    with ShuffleWriter(blob, num_buckets, _SHUFFLED) as writer:
        for start, facts in rows.chunks(partition, ["high", "low", "order", "source"], chunk):
            if not facts.num_rows:
                continue
            known = facts.column("high").is_valid().to_numpy()
            count = facts.num_rows
            table = pa.table(
                {
                    "high": facts.column("high"),
                    "low": facts.column("low"),
                    "local": pa.array(np.arange(start - first, start - first + count, dtype=np.uint32)),
                    "order": pa.array(column_or_zeros(facts, "order", count)),
                    "source": pa.array(column_or_zeros(facts, "source", count)),
                }
            ).filter(pa.array(known))
            writer.write(table, bucket_of(as_numpy(table.column("high")), num_buckets))
    return 0


@handles_shortage
def group_digests(
    blocks: Blocks,
    shuffled: NumberedFiles,
    bucket: int,
    num_buckets: int,
    equals: EqualDigests,
    blob: Blob,
    call_bytes: int,
) -> dict[str, Any]:
    """Find the rows with equal digests in one range, and write them with their survivors."""
    max_rows = call_bytes * 5 // 4 // SORTING_BYTES  # ranges vary in size
    with PairWriter(blob, blocks) as writer:
        dropped = 0
        read = functools.partial(read_digests, blocks, shuffled, bucket, num_buckets, ("order", "source"))
        for found in equals.find(lambda: pieces(read(), max_rows)):
            count = len(found["row"])
            dropped += count
            more = {
                "similarity": np.ones(count),
                "short": np.zeros(count, np.bool_),
                "dropped": np.ones(count, np.bool_),
            }
            writer.write(found | more)
    return {"dropped": dropped, "sizes": histogram(equals.sizes)}


def write_digest_part(facts: pa.Table, local: np.ndarray, parts: Exchange, block: int) -> None:
    """Write the digests of the kept rows of a block to a part of an index."""
    known = facts.column("high").is_valid().to_numpy()[local]
    local = local[known]
    if len(local):
        chosen = facts.select(["high", "low"]).take(pa.array(local))
        keys, low = as_numpy(chosen.column("high")), as_numpy(chosen.column("low"))
        write_part(parts, block, pa.table(address_facts_of(facts, local)), keys, {"low": low})
