"""Repeated paragraphs and lines: find them across the corpus by digest, and cut them out of the texts."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tamis.batch import Column, contiguous
from tamis.dedup.decisions import (
    Blocks,
    Decisions,
    GroupWriter,
    PairWriter,
    check_disk,
    index_parts_of,
    publish,
    read_pairs,
)
from tamis.dedup.equal_digests import EqualDigests, read_digests
from tamis.dedup.index import Index, write_part
from tamis.dedup.rows import RowNumbers, address_facts_of
from tamis.dedup.shuffle import (
    NumberedFiles,
    ShuffleWriter,
    as_numpy,
    bucket_count,
    bucket_of,
    chunk_rows,
    handles_shortage,
    pieces,
    read_whole_bucket,
    run_in_workers,
)
from tamis.dedup.texts import Normalization, digest_spans, text_buffers
from tamis.exchange import Blob, Exchange
from tamis.gathering import GROUPS
from tamis.kernels import digests as kernel
from tamis.mapped import release_pages
from tamis.operators import Decide, Gather, Work

if TYPE_CHECKING:
    from tamis.dedup.exact import ExactDedup

RECORD_BYTES = 32
SORTING_BYTES = 3 * RECORD_BYTES
_SHUFFLED = pa.schema({"high": pa.uint64(), "low": pa.uint64(), "local": pa.uint32(), "unit": pa.int32()})
_ORDERED = _SHUFFLED.append(pa.field("order", pa.uint8()))


class CutsText(Gather):
    """A step that cuts parts out of the texts in one column."""

    column: str

    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def optional_reads(self) -> tuple[str, ...]:
        return ("id",)

    def real_names(self) -> dict[str, str]:
        return {self.column: self.column}

    def writes(self) -> tuple[str, ...]:
        return (self.column,)


def find_units(
    data: np.ndarray, offsets: np.ndarray, unit: str, min_bytes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(number of each row's first unit, start of each unit, end of each unit)."""
    firsts, none = np.zeros(len(offsets), np.int64), np.zeros(0, np.int64)
    count = kernel.find_units(data, offsets, unit == "paragraph", min_bytes, firsts, none, none)
    starts, stops = np.zeros(max(1, count), np.int64), np.zeros(max(1, count), np.int64)
    kernel.find_units(data, offsets, unit == "paragraph", min_bytes, firsts, starts, stops)
    return firsts, starts[:count], stops[:count]


def unit_facts(column: Column, name: str, unit: str, min_bytes: int, normalization: Normalization) -> dict[str, Column]:
    """The digests and sizes of the units of each row, and the size of its text. Sizes do not count white space."""
    data, offsets = text_buffers(column, name)
    firsts, starts, stops = find_units(data, offsets, unit, min_bytes)
    digests = digest_spans(data, starts, stops, normalization)
    spans = pa.array(firsts)
    return {
        "high": pa.LargeListArray.from_arrays(spans, pa.array(digests[:, 0])),
        "low": pa.LargeListArray.from_arrays(spans, pa.array(digests[:, 1])),
        **size_facts(data, offsets, firsts, starts, stops),
    }


def size_facts(
    data: np.ndarray, offsets: np.ndarray, firsts: np.ndarray, starts: np.ndarray, stops: np.ndarray
) -> dict[str, Column]:
    """The bytes that are not white space and the characters of each unit, and the former of each row."""
    spans = pa.array(firsts)
    size, chars = np.empty(len(starts), np.uint32), np.empty(len(starts), np.uint32)
    length = np.empty(len(offsets) - 1, np.int64)
    kernel.count_solid(data, starts, stops, size)
    kernel.count_chars(data, starts, stops, chars)
    kernel.count_solid(data, offsets[:-1], offsets[1:], length)
    return {
        "size": pa.LargeListArray.from_arrays(spans, pa.array(size)),
        "chars": pa.LargeListArray.from_arrays(spans, pa.array(chars)),
        "length": pa.array(length),
    }


def without_units(column: Column, name: str, payload: Column, unit: str, min_bytes: int) -> Column:
    """The texts without the units whose numbers are in the payload."""
    data, offsets = text_buffers(column, name)
    firsts, starts, stops = find_units(data, offsets, unit, min_bytes)
    cut_offsets = offsets_of(payload)
    cuts = as_numpy(payload.flatten()) if len(payload) else np.empty(0, np.int32)
    buffer, spans = np.empty(int(offsets[-1] - offsets[0]), np.uint8), np.empty(len(offsets), np.int64)
    kernel.cut_units(data, offsets, firsts, starts, stops, cut_offsets, cuts.astype(np.int64), buffer, spans)
    return rebuilt(column, buffer, spans)


def rebuilt(column: Column, buffer: np.ndarray, spans: np.ndarray) -> Column:
    """A column of edited texts, with the type and the nulls of the original; spans (int64, rows + 1) are offsets in buffer."""
    texts = pa.LargeStringArray.from_buffers(len(column), pa.py_buffer(spans), pa.py_buffer(buffer[: spans[-1]]))
    if column.null_count:
        texts = pa.compute.if_else(column.is_null(), pa.scalar(None, pa.large_string()), texts)
    return texts.cast(column.type) if not pa.types.is_null(column.type) else column


def offsets_of(lists: Column) -> np.ndarray:
    """Where each list of a column begins and ends in its flattened values; int64, rows + 1."""
    sizes = pa.compute.fill_null(pa.compute.list_value_length(lists), 0)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(as_numpy(sizes)).astype(np.int64)])


def resolve(
    step: ExactDedup,
    rows: RowNumbers,
    decide: Decide,
    work: Work,
    index: Index | None,
    call_bytes: int,
) -> Exchange | None:
    """Find units that repeat an earlier one, cut them, and drop rows that would lose too much text.

    The first occurrence of a unit may be in a row that is dropped. Units are then compared once more, with the rows that are
    kept first in order, so that text is cut out of a row only if another row that is kept has it, or the index. This changes
    no other decision: kept rows lose less text than before, and dropped rows as much or more.
    """
    blocks = Blocks.of(rows, index, call_bytes)
    index_parts = index_parts_of(step.update, work, blocks)
    reason = f"more than {step.max_removed:.0%} repeated {step.unit}s"
    known, copies = index.total if index else 0, 2 if step.max_removed == 1 else 4

    def compare(before: Decisions | None = None) -> tuple[ShuffledUnits, Decisions]:
        purpose = f"deduplication of {step.unit}s"
        shuffled = shuffle_all(work, rows, "units", purpose, call_bytes, known=known, copies=copies, before=before)
        cuts = find_repeats(work, blocks, shuffled, call_bytes)
        return shuffled, Decisions(
            blocks, decide, cuts, work.exchange, reason, index_parts=index_parts, max_removed=step.max_removed
        )

    shuffled, decisions = compare()
    if step.max_removed < 1:
        calls = [(decisions, part) for part in range(rows.num_partitions)]
        if any(run_in_workers(work, f"rows to drop, {shuffled.name}, {blocks.division}", count_dropped, calls)):
            shuffled, decisions = compare(before=decisions)
    decided = decisions.run(work, shuffled.name, decide_units)
    summary: dict[str, Any] = {"step": step.name, "unit": step.unit, "rows": rows.total, "units": shuffled.total}
    publish(work, summary | sums_of(decided), {})
    return index_parts


@dataclass(frozen=True)
class ShuffledUnits:
    """The digests of all units, divided into ranges that fit in a worker."""

    name: str
    total: int
    num_buckets: int
    files: NumberedFiles
    columns: tuple[str, ...]
    """What decides which of equal units is the first, besides the number of the row."""


def shuffle_all(
    work: Work,
    rows: RowNumbers,
    what: str,
    purpose: str,
    call_bytes: int,
    *,
    known: int = 0,
    copies: int = 2,
    before: Decisions | None = None,
) -> ShuffledUnits:
    """Divide the digests of all units by range. The disk needs space for `copies` of them; `known` ones are in an index.

    Rows that were to be dropped `before` come after all others.
    """
    suffix = "" if before is None else ", kept first"
    total = sum(run_in_workers(work, what + suffix, count_units, [(rows, part) for part in range(rows.num_partitions)]))
    check_disk(work, total * RECORD_BYTES * copies, purpose)
    num_buckets = bucket_count((total + known) * SORTING_BYTES, call_bytes)
    chunk = chunk_rows(RECORD_BYTES * 4 * max(1, total // max(1, rows.total)), call_bytes, min_rows=100)
    name = f"{num_buckets}{suffix}"
    files = NumberedFiles(work.exchange.sub("digests"), f"{name}-", rows.num_partitions)
    run_in_workers(
        work,
        f"digests by range, {name}",
        shuffle_units,
        [(rows, part, num_buckets, blob, chunk, before) for part, blob in enumerate(files)],
    )
    return ShuffledUnits(name, total, num_buckets, files, ("unit",) if before is None else ("unit", "order"))


def find_repeats(work: Work, blocks: Blocks, shuffled: ShuffledUnits, call_bytes: int) -> NumberedFiles:
    """The units that repeat an earlier one, range by range."""
    division = f"{shuffled.name}, {blocks.division}"
    cuts = NumberedFiles(work.exchange.sub("cuts"), f"{division}-", shuffled.num_buckets)
    run_in_workers(
        work,
        f"repeats, {division}",
        group_units,
        [(blocks, shuffled, bucket, blob, call_bytes) for bucket, blob in enumerate(cuts)],
    )
    return cuts


def sums_of(decided: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """What the decisions about all partitions add up to."""
    names = ("cut", "dropped", "cut_bytes", "cut_chars", "rewritten")
    return {name: sum(part[name] for part in decided) for name in names}


# --------------------------------------------------------------------------------------------------- calls in the workers


def count_units(rows: RowNumbers, partition: int) -> int:
    facts = rows.observed[partition]
    return int(pa.compute.sum(pa.compute.list_value_length(facts.column("high"))).as_py() or 0) if facts.num_rows else 0


@handles_shortage
def shuffle_units(
    rows: RowNumbers, partition: int, num_buckets: int, blob: Blob, chunk: int, before: Decisions | None = None
) -> int:
    """Write the digests of the units of a partition by range of digests; rows that were to be dropped `before` come last."""
    first = int(rows.offsets[partition])
    dropped = _dropped_in(before, partition) if before is not None else None
    with ShuffleWriter(blob, num_buckets, _SHUFFLED if dropped is None else _ORDERED) as writer:
        for start, facts in rows.chunks(partition, ["high", "low"], chunk):
            offsets = offsets_of(contiguous(facts.column("high")))
            local = np.repeat(np.arange(start - first, start - first + facts.num_rows), np.diff(offsets))
            unit = np.arange(len(local)) - np.repeat(offsets[:-1], np.diff(offsets))
            high = as_numpy(contiguous(facts.column("high")).flatten())
            table = pa.table(
                {
                    "high": high,
                    "low": as_numpy(contiguous(facts.column("low")).flatten()),
                    "local": local.astype(np.uint32),
                    "unit": unit.astype(np.int32),
                }
            )
            if dropped is not None:
                table = table.append_column("order", pa.array(dropped[local].astype(np.uint8)))
            known = (high != 0) | (as_numpy(table.column("low")) != 0)  # 0 stands for a span that is not compared
            if not known.all():
                table, high = table.filter(pa.array(known)), high[known]
            writer.write(table, bucket_of(high, num_buckets))
    return 0


@handles_shortage
def group_units(blocks: Blocks, shuffled: ShuffledUnits, bucket: int, blob: Blob, call_bytes: int) -> int:
    """Write every unit of a range of digests that repeats an earlier one; returns how many."""
    max_rows = call_bytes * 5 // 4 // SORTING_BYTES
    with PairWriter(blob, blocks) as writer:
        cut = 0
        read = functools.partial(read_digests, blocks, shuffled.files, bucket, shuffled.num_buckets, shuffled.columns)
        for found in EqualDigests(blocks.rows.total).find(lambda: pieces(read(), max_rows)):
            writer.write(found)
            cut += len(found["row"])
    return cut


@handles_shortage
def decide_units(decisions: Decisions, partition: int) -> dict[str, int]:
    """Decide which units are cut out of the rows of a partition, and which rows are dropped."""
    parts = []
    totals = {"cut": 0, "dropped": 0, "cut_bytes": 0, "cut_chars": 0, "rewritten": 0}
    with GroupWriter(decisions, GROUPS, partition) as groups:
        for block in decisions.blocks.blocks_of(partition):
            drop, payload, counts = _decide_block(decisions, block, groups)
            parts.append((drop, payload))
            totals = {name: total + counts[name] for name, total in totals.items()}
            release_pages()
    drop = np.concatenate([np.empty(0, np.bool_), *(drop for drop, _ in parts)])
    payload = pa.concat_arrays([pa.array([], pa.list_(pa.int32())), *(payload for _, payload in parts)])
    decisions.decide(partition, drop, decisions.reason, payload)
    return totals


@handles_shortage
def count_dropped(decisions: Decisions, partition: int) -> int:
    return int(np.count_nonzero(_dropped_in(decisions, partition)))


def _dropped_in(decisions: Decisions, partition: int) -> np.ndarray:
    """Whether each row of a partition would lose too much text."""
    found = [np.empty(0, np.bool_)]
    for block in decisions.blocks.blocks_of(partition):
        facts, first = decisions.blocks.facts(block), int(decisions.blocks.starts[block])
        cuts = read_whole_bucket(decisions.pairs, block, decisions.blocks.num_blocks)
        found.append(
            np.zeros(facts.num_rows, np.bool_) if cuts is None else Loss.of(decisions, facts, cuts, first).drop
        )
        release_pages()
    return np.concatenate(found)


@dataclass(frozen=True)
class Loss:
    """What the rows of a block lose if all their repeated units are cut."""

    local: np.ndarray
    """By cut, the number of the row in the block."""
    units: np.ndarray
    cut_bytes: np.ndarray
    at: np.ndarray
    """By cut, the position of the unit among those of all rows of the block."""
    removed: np.ndarray
    """Bytes by row, without white space."""
    drop: np.ndarray
    """By row, whether that is too much."""

    @classmethod
    def of(cls, decisions: Decisions, facts: pa.Table, cuts: pa.Table, first: int) -> Loss:
        local, units = as_numpy(cuts.column("row")) - first, as_numpy(cuts.column("unit")).astype(np.int64)
        sizes = contiguous(facts.column("size"))
        at = offsets_of(sizes)[local] + units
        cut_bytes = as_numpy(sizes.flatten())[at]
        removed = np.bincount(local, weights=cut_bytes, minlength=facts.num_rows).astype(np.int64)
        length = as_numpy(facts.column("length"))
        drop = (removed > decisions.max_removed * length) | ((removed > 0) & (removed >= length))
        return cls(local, units, cut_bytes, at, removed, drop)


def _decide_block(
    decisions: Decisions, block: int, groups: GroupWriter
) -> tuple[np.ndarray, pa.ListArray, dict[str, int]]:
    """(whether each row of a block is dropped, numbers of the units cut out of the kept rows, counts)"""
    facts, first = decisions.blocks.facts(block), int(decisions.blocks.starts[block])
    count = facts.num_rows
    found = read_pairs(decisions, block)
    drop, cut_chars = np.zeros(count, np.bool_), 0
    removed = np.zeros(count, np.int64)
    local = unit_numbers = np.empty(0, np.int64)
    if found is not None:
        cuts, names = found
        loss = Loss.of(decisions, facts, cuts, first)
        local, unit_numbers, removed, drop = loss.local, loss.units, loss.removed, loss.drop
        chars = as_numpy(contiguous(facts.column("chars")).flatten())
        cut_chars = int(chars[loss.at].sum(dtype=np.int64))
        similarity = pa.compute.fill_null(cuts.column("similarity"), 1.0)
        more = {"similarity": similarity, "bytes": loss.cut_bytes, "dropped": drop[local]}
        groups.write(block, facts, cuts, names, more)
    keep = ~drop[local] if len(local) else np.empty(0, np.bool_)
    ends = np.cumsum(np.bincount(local[keep], minlength=count)).astype(np.int32)
    payload = pa.ListArray.from_arrays(
        pa.array(np.concatenate([np.zeros(1, np.int32), ends])), pa.array(unit_numbers[keep].astype(np.int32))
    )
    if decisions.index_parts is not None:
        _write_unit_part(facts, drop, local, unit_numbers, decisions.index_parts, block)
    counts = {
        "cut": len(local),
        "dropped": int(drop.sum()),
        "cut_bytes": int(removed.sum()),
        "cut_chars": cut_chars,
        "rewritten": int(np.count_nonzero((removed > 0) & ~drop)),
    }
    return drop, payload, counts


def _write_unit_part(
    facts: pa.Table, drop: np.ndarray, local: np.ndarray, unit_numbers: np.ndarray, parts: Exchange, block: int
) -> None:
    """Write the digests of the units of kept rows that were not cut to a part of an index, each with its row's address."""
    offsets = offsets_of(contiguous(facts.column("high")))
    kept = np.repeat(~drop, np.diff(offsets))
    kept[offsets[local] + unit_numbers] = False
    owner = np.repeat(np.arange(facts.num_rows), np.diff(offsets))[kept]
    if len(owner):
        high = as_numpy(contiguous(facts.column("high")).flatten())[kept]
        low = as_numpy(contiguous(facts.column("low")).flatten())[kept]
        write_part(parts, block, pa.table(address_facts_of(facts, owner)), high, {"low": low})
