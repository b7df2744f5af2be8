"""Exact duplicates: rows, or paragraphs and lines, whose content is the same.

observe   128-bit digest per row (or per unit), 40 bytes of disk each
resolve   digests by range, each range within a worker's share: sort, group, order by the keep policy
apply     rows that go are filtered; units that go are cut out of their rows
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tamis.batch import Batch, Column
from tamis.dedup import units
from tamis.dedup.equal import Equals, read_digests
from tamis.dedup.index import Index, Options, add_generation, content_of, own_generation, write_part
from tamis.dedup.keep import Keep, KeepPolicy
from tamis.dedup.rows import RowNumbers, address_facts, fill, subset
from tamis.dedup.settle import (
    Counts,
    Homes,
    PairWriter,
    Settling,
    check_disk,
    histogram,
    index_folder_of,
    publish,
)
from tamis.dedup.shuffle import (
    RESOLVING_BYTES,
    Files,
    ShuffleWriter,
    bucket_count,
    bucket_of,
    chunk_rows,
    in_workers,
    numbers,
    pieces,
    retry_with_less_memory,
    tells_limits,
)
from tamis.dedup.texts import TextNormal, digest_columns, value_buffers
from tamis.errors import ParameterError
from tamis.operators import Decide, Gather, Observations, Resources, Work, operator

RECORD_BYTES = 40
"""A digest on its way: 16 bytes, the row, its order and source."""
HELD_BYTES = 3 * RECORD_BYTES
"""The same while it is sorted."""


@operator(reads="text", resources=Resources(memory=RESOLVING_BYTES))
class ExactDedup(Gather):
    """Keep one of the rows whose `column` (text, URL, any key; or several columns) is the same.

    Compares 128-bit digests, after leaving out of account what is asked for: letter case, the amount of white space,
    Unicode composition. Rows whose key is null are not duplicates of each other. `keep` chooses who stays: the first in
    source order, the longest, the newest or best by the column `by`, or none of them; `prefer` lists sources (folders or
    files in paths, patterns, or values of `prefer_column`), the best first, and goes before. With `across_sources` only
    what a better source has goes, and copies within one source stay. With `unit="paragraph"` or `"line"`, repeats anywhere
    in the corpus are cut out of the text, the first occurrence stays, and a document that would lose more than
    `max_removed` of its text is dropped; units of fewer than `min_unit_bytes` are left alone.

    `against` names an index of rows seen before, which stay; `update` adds the rows kept now. It may be in an object store,
    which `storage_options` say how to reach, and is then copied beside the run. Why each row went is in
    `.tamis/groups/`. Costs about 80 bytes of disk per row (per unit) while it runs, memory within the budget.

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

    incidental = frozenset({"storage_options"})

    def check(self) -> None:
        self._policy.check()
        if not self._columns:
            raise ParameterError("`column` names no column")
        if self.unit != "document":
            if len(self._columns) > 1:
                raise ParameterError(f'unit="{self.unit}" cuts one column of text, not {", ".join(self._columns)}')
            if self.keep != "first" or self.prefer:
                raise ParameterError(
                    f'unit="{self.unit}" keeps the first occurrence', hint='leave `keep` at "first" and `prefer` out'
                )
            if not 0 <= self.max_removed <= 1:
                raise ParameterError(f"`max_removed` is a share of the text, from 0 to 1, got {self.max_removed}")
        if self.update and self.against is None:
            raise ParameterError("`update` needs an index", hint='against="index/"')
        self._index(look=True)

    @property
    def _columns(self) -> tuple[str, ...]:
        return (self.column,) if isinstance(self.column, str) else tuple(self.column)

    @property
    def _policy(self) -> KeepPolicy:
        return KeepPolicy(self.keep, self.by, self.prefer, self.prefer_column, self.across_sources)

    @property
    def _normal(self) -> TextNormal:
        return TextNormal(self.ignore_case, self.ignore_whitespace, self.unicode)

    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self._columns, *self._policy.columns()]))

    def optional_reads(self) -> tuple[str, ...]:
        return ("id",)

    def real_names(self) -> dict[str, str]:
        return {name: name for name in self.reads()}

    def writes(self) -> tuple[str, ...]:
        return () if self.unit == "document" else self._columns

    def identity(self) -> dict[str, Any]:
        return super().identity() | index_identity(self.against, self.update, self.storage_options)

    def disk_bytes(self, num_rows: int, num_bytes: int) -> int:
        """Disk that a run over so many rows and bytes of text takes while it runs."""
        records = (
            num_rows if self.unit == "document" else max(num_rows, num_bytes // (60 if self.unit == "line" else 300))
        )
        return num_rows * 20 + records * 2 * RECORD_BYTES

    def _index(self, own: str = "", *, look: bool = False) -> Index | None:
        if self.against is None:
            return None
        settings: dict[str, Any] = {"columns": self._columns, "unit": self.unit, "case": self.ignore_case}
        settings |= {"whitespace": self.ignore_whitespace, "unicode": self.unicode}
        options = self.storage_options
        return Index.open(self.against, "exact", settings, options, own=own, create=self.update, look=look)

    # ------------------------------------------------------------------------------------------------------------- observe

    def observe(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        if self.unit != "document":
            return address_facts(batch) | units.unit_facts(
                batch[self._columns[0]], self._columns[0], self.unit, self.min_unit_bytes, self._normal
            )
        columns = [(name, batch[name]) for name in self._columns]
        digests, known = digest_columns(columns, self._normal)
        facts: dict[str, Column | np.ndarray] = dict(address_facts(batch))
        facts["high"] = pa.array(digests[:, 0], mask=~known)
        facts["low"] = pa.array(digests[:, 1])
        lengths = np.zeros(len(batch), np.int64)
        if self.keep == "longest":
            lengths = np.sum([np.diff(value_buffers(column, name)[1]) for name, column in columns], axis=0)
        return facts | self._policy.facts(batch, lengths)

    # ------------------------------------------------------------------------------------------------------------- resolve

    def resolve(self, observed: Observations, decide: Decide, work: Work) -> None:
        rows = RowNumbers(observed)
        own = own_generation(work) if self.update else ""
        index = self._index(own)
        index = index.for_work(work.folder, self.storage_options, pin=self.update) if index is not None else None
        settle = units.resolve if self.unit != "document" else ExactDedup._resolve_rows
        index_folder = retry_with_less_memory(
            lambda usable: settle(self, rows, decide, work, index, usable), work.worker_bytes
        )
        if index_folder is not None and self.against is not None:
            add_generation(self.against, own, index_folder, self.storage_options)

    def _resolve_rows(
        self, rows: RowNumbers, decide: Decide, work: Work, index: Index | None, usable: int
    ) -> Path | None:
        check_disk(work, rows.total * RECORD_BYTES, "looking for duplicates")
        num_buckets = bucket_count((rows.total + (index.total if index else 0)) * HELD_BYTES, usable)
        scattered = Files(work.folder / "digests", f"{num_buckets}-", rows.num_partitions)
        chunk = chunk_rows(HELD_BYTES, usable)
        in_workers(
            work,
            f"digests by range, {num_buckets}",
            scatter_digests,
            [(rows, part, num_buckets, path, chunk) for part, path in enumerate(scattered)],
        )
        homes = Homes.of(rows, index, usable)
        index_folder = index_folder_of(self.update, work, homes)
        pairs = Files(work.folder / "pairs", f"{num_buckets}, {homes.division}-", num_buckets)
        equals = Equals(rows.total, self.keep == "none", self.across_sources)
        found = in_workers(
            work,
            f"groups, {num_buckets}, {homes.division}",
            group_digests,
            [(homes, scattered, bucket, num_buckets, equals, path, usable) for bucket, path in enumerate(pairs)],
        )
        settling = Settling(
            homes,
            decide,
            pairs,
            work.folder,
            reason="exact duplicate",
            index_reason=f"in the index {self.against}",
            index_folder=index_folder,
            keep_entries=keep_digests,
        )
        settled = settling.run(work, str(num_buckets))
        publish(work, summary_of(self.name, rows, found, settled), {})
        return index_folder

    def rewrite(self, batch: Batch, payload: Column) -> Mapping[str, Column | np.ndarray]:
        name = self._columns[0]
        return {name: units.without_units(batch[name], name, payload, self.unit, self.min_unit_bytes)}


def index_identity(against: str | None, update: bool, options: Options) -> dict[str, Any]:
    """What an index adds to the identity of a step: its content, unless the step itself is what changes it."""
    if against is None or update:
        return {}
    return {"index": content_of(against, options)}


def summary_of(
    step: str, rows: RowNumbers, found: Sequence[Mapping[str, Any]], settled: Sequence[Mapping[str, int]]
) -> dict[str, Any]:
    counts = Counts()
    for part in found:
        counts.add(part)
    dropped = sum(part["dropped"] for part in settled)
    return {"step": step, "rows": rows.total, "dropped": dropped, **counts.as_dict()}


# --------------------------------------------------------------------------------------------------- calls in the workers

_SCATTERED = pa.schema(
    {"high": pa.uint64(), "low": pa.uint64(), "local": pa.uint32(), "order": pa.uint64(), "source": pa.uint64()}
)


@tells_limits
def scatter_digests(rows: RowNumbers, partition: int, num_buckets: int, path: Path, chunk: int) -> int:
    """Write the digests of a partition by range."""
    first = int(rows.offsets[partition])
    with ShuffleWriter(path, num_buckets, _SCATTERED) as writer:
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
                    "order": pa.array(fill(facts, "order", count)),
                    "source": pa.array(fill(facts, "source", count)),
                }
            ).filter(pa.array(known))
            writer.write(table, bucket_of(numbers(table.column("high")), num_buckets))
    return 0


@tells_limits
def group_digests(
    homes: Homes, scattered: Files, bucket: int, num_buckets: int, equals: Equals, path: Path, usable: int
) -> dict[str, Any]:
    """Find equal digests in one range and write who goes in whose favour."""
    most = usable * 5 // 4 // HELD_BYTES  # ranges of digests are not all of one size
    with PairWriter(path, homes) as writer:
        dropped = 0
        read = functools.partial(read_digests, homes, scattered, bucket, num_buckets, ("order", "source"))
        for found in equals.find(lambda: pieces(read(), most)):
            count = len(found["row"])
            dropped += count
            more = {
                "similarity": np.ones(count),
                "short": np.zeros(count, np.bool_),
                "dropped": np.ones(count, np.bool_),
            }
            writer.write(found | more)
    return {"dropped": dropped, "sizes": histogram(equals.sizes)}


def keep_digests(facts: pa.Table, local: np.ndarray, folder: Path, block: int) -> None:
    """The digests of the rows that stay, as a part of an index."""
    known = facts.column("high").is_valid().to_numpy()[local]
    local = local[known]
    if len(local):
        chosen = facts.select(["high", "low"]).take(pa.array(local))
        keys, low = numbers(chosen.column("high")), numbers(chosen.column("low"))
        write_part(folder, block, pa.table(subset(facts, local)), keys, {"low": low})
