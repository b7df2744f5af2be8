"""Sounds and videos that repeat others, in whole or in part: sequences of hashes that agree at an offset.

observe   the sequence of hashes of each row, one per step of time
resolve   find pairs that agree over time (`aligned`), and choose which to keep (`rounds`)
apply     filter out the duplicates
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from tamis.batch import Batch, Column, contiguous
from tamis.dedup.aligned import Matching, SequenceSearch
from tamis.dedup.decisions import Blocks, Decisions, check_disk, index_parts_of, publish
from tamis.dedup.exact import summary_of
from tamis.dedup.index import Index, write_part
from tamis.dedup.indexed import IndexedDedup
from tamis.dedup.keep import KeepPolicy
from tamis.dedup.rounds import decide_in_rounds
from tamis.dedup.rows import RowNumbers, address_facts, address_facts_of
from tamis.dedup.shared_keys import STORED_KEY_BYTES
from tamis.dedup.shuffle import bucket_count, handles_shortage, run_in_workers
from tamis.errors import OperatorError, ParameterError
from tamis.exchange import Exchange
from tamis.kernels.sequences import Comparing, count_present
from tamis.operators import Decide, Work

SequenceKeep: TypeAlias = Literal["longest", "first", "newest", "best"]

COMPARED_BYTES = 600
"""Memory per row while components are decided, if each row has a few edges."""


class SequenceDedup(IndexedDedup):
    """Keeps one of the rows whose sequences of hashes agree. Subclasses have the parameters, and say what the hashes are."""

    threshold: float
    max_error: float
    min_seconds: float
    keep: SequenceKeep
    hash_column: str | None
    column: str

    hashing: ClassVar[Mapping[str, Any]]
    """Everything that hashes depend on."""

    def check(self) -> None:
        if self.by is not None and self.keep == "longest":
            raise ParameterError('`by` has no effect with keep="longest"', hint='keep="newest" or keep="best"')
        self._policy.check()
        if not 0 < self.threshold <= 1:
            raise ParameterError(f"`threshold` must be above 0 and at most 1, got {self.threshold}")
        if not 0 <= self.max_error <= 0.4:
            raise ParameterError(
                f"`max_error` must be from 0 to 0.4, got {self.max_error}",
                hint="half of the bits of unrelated hashes differ",
            )
        if not self.min_seconds >= 0:
            raise ParameterError(f"`min_seconds` must be at least 0, got {self.min_seconds}")
        self.check_index()

    # ---------------------------------------------------------------------------------------------------------- parameters

    def sequences(self, batch: Batch) -> list[np.ndarray | None]:
        """The hashes of each row, uint64[positions], or None for a row without; from its sound or video."""
        raise NotImplementedError

    @property
    def step_s(self) -> float:
        """Seconds from one hash to the next."""
        raise NotImplementedError

    @property
    def span_s(self) -> float:
        """Seconds that one hash describes."""
        raise NotImplementedError

    @property
    def min_hashes(self) -> int:
        """Hashes of `min_seconds`; rows with fewer are not compared."""
        return max(1, round((self.min_seconds - self.span_s) / self.step_s) + 1)

    @property
    def comparing(self) -> Comparing:
        """How hashes are compared."""
        raise NotImplementedError

    @property
    def _policy(self) -> KeepPolicy:
        return KeepPolicy(self.keep, self.by, self.prefer, self.prefer_column, self.across_sources)

    @property
    def _matching(self) -> Matching:
        return Matching(self.comparing, self.threshold, self.step_s, self.across_sources)

    def reads(self) -> tuple[str, ...]:
        wanted = "hashes" if self.hash_column is not None else "media"
        return tuple(dict.fromkeys([wanted, *self._policy.columns()]))

    def real_names(self) -> dict[str, str]:
        real = {"media": self.column, "hashes": self.hash_column or "hashes"}
        return {name: real.get(name, name) for name in self.reads()}

    def index_settings(self) -> dict[str, Any]:
        return {**self.hashing, "step_s": self.step_s}

    # ------------------------------------------------------------------------------------------------------------- observe

    def observe(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        if self.hash_column is not None:
            found = stored_sequences(batch["hashes"], self.hash_column)
        else:
            found = self.sequences(batch)
        least = self.min_hashes
        present = np.array([0 if words is None else count_present(words) for words in found], np.int64)
        lengths = np.array([0 if words is None else len(words) for words in found], np.int64)
        facts: dict[str, Column | np.ndarray] = dict(address_facts(batch))
        facts["hashes"] = sequence_column(
            [words if count >= least else None for words, count in zip(found, present, strict=True)]
        )
        facts["blank"] = np.array([words is not None for words in found], np.bool_) & (present < least)
        return facts | self._policy.facts(batch, lengths)

    # ------------------------------------------------------------------------------------------------------------- resolve

    def resolve_rows(
        self, rows: RowNumbers, decide: Decide, work: Work, index: Index | None, call_bytes: int
    ) -> Exchange | None:
        blocks = Blocks.of(rows, index, call_bytes)
        counts = run_in_workers(
            work, "sequences", count_sequences, [(rows, part) for part in range(rows.num_partitions)]
        )
        summary: dict[str, Any] = {name: sum(part[name] for part in counts) for name in counts[0]} if counts else {}
        positions = summary.pop("positions", 0)
        if index is not None:
            positions += sum(num_hashes(entries.column("hashes")) for _, entries in index.entries())
        num_keys = positions * self.comparing.keys_per_hash
        check_disk(work, num_keys * STORED_KEY_BYTES * 2, f"deduplication of {self.index_kind}")
        search = SequenceSearch(work, blocks, self._matching, num_keys, call_bytes)
        known = rows.total + (index.total if index is not None else 0)
        num_buckets = bucket_count(known * COMPARED_BYTES, call_bytes)
        decided = decide_in_rounds(work, blocks, num_buckets, call_bytes, search.find)
        index_parts = index_parts_of(self.update, work, blocks)
        decisions = Decisions(
            blocks,
            decide,
            decided.pairs,
            work.exchange,
            reason=f"similar {self.index_kind}",
            index_reason=f"in the index {self.against}",
            index_parts=index_parts,
            write_entries=write_sequence_part,
        )
        summary = summary_of(self.name, rows, decided.fates, decisions.run(work, decided.pairs.stem)) | summary
        summary |= search.summary | {"hours": round(positions * self.step_s / 3600, 3), "keep": self.keep}
        summary |= {"threshold": self.threshold, "max_error": self.max_error}
        publish(work, summary, {})
        return index_parts


def sequence_column(sequences: Sequence[np.ndarray | None]) -> pa.LargeListArray:
    """Sequences as a column of lists."""
    ends = np.cumsum([0, *(0 if words is None else len(words) for words in sequences)])
    parts = [np.empty(0, np.uint64), *(words for words in sequences if words is not None)]
    known = np.array([words is not None for words in sequences], np.bool_)
    mask = None if known.all() else pa.array(~known)
    return pa.LargeListArray.from_arrays(pa.array(ends), pa.array(np.concatenate(parts)), mask=mask)


def stored_sequences(column: Column, name: str) -> list[np.ndarray | None]:
    """Sequences from a column of lists of integers."""
    kind = column.type
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not pa.types.is_null(kind) and not (
        lists and (pa.types.is_integer(kind.value_type) or pa.types.is_null(kind.value_type))
    ):
        raise OperatorError(
            f"`{name}` is {kind}, not a list of hashes",
            hint="name a column of lists of 64-bit integers, hash_column=...",
        )
    array = contiguous(column)
    if pa.types.is_null(kind):
        return [None] * len(array)
    array = array.cast(pa.large_list(pa.uint64()), safe=False)
    return [
        None if not value.is_valid else value.values.fill_null(0).to_numpy(zero_copy_only=False)
        for value in (array[row] for row in range(len(array)))
    ]


@handles_shortage
def count_sequences(rows: RowNumbers, partition: int) -> dict[str, int]:
    """How many rows of a partition have a sequence, how many have too little in it, and how many hashes there are."""
    facts = rows.observed[partition]
    if not facts.num_rows:
        return {"sequences": 0, "blank": 0, "positions": 0}
    column = facts.column("hashes")
    return {
        "sequences": facts.num_rows - column.null_count,
        "blank": int(np.count_nonzero(facts.column("blank").to_numpy())),
        "positions": num_hashes(column),
    }


def num_hashes(column: pa.ChunkedArray) -> int:
    """How many hashes there are in a column of sequences."""
    return sum(chunk.offsets[-1].as_py() - chunk.offsets[0].as_py() for chunk in column.chunks if len(chunk))


def write_sequence_part(facts: pa.Table, local: np.ndarray, parts: Exchange, block: int) -> None:
    """Write the sequences of the kept rows of a block to a part of an index."""
    local = local[facts.column("hashes").is_valid().to_numpy()[local]]
    if len(local):
        hashes = facts.column("hashes").take(pa.array(local))
        entries = pa.table({**address_facts_of(facts, local), "hashes": hashes})
        write_part(parts, block, entries, np.empty(0, np.uint64), {})
