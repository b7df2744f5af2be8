"""Repeated paragraphs and lines: find them across the corpus by digest, and cut them out of the texts."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tamis.batch import Column, contiguous
from tamis.dedup.decisions import (
    GROUPS,
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
    run_in_workers,
)
from tamis.dedup.texts import Normalization, digest_spans, text_buffers
from tamis.exchange import Blob, Exchange
from tamis.kernels import digests as kernel
from tamis.mapped import release_pages
from tamis.operators import Decide, Work

if TYPE_CHECKING:
    from tamis.dedup.exact import ExactDedup

RECORD_BYTES = 32
SORTING_BYTES = 3 * RECORD_BYTES
_SHUFFLED = pa.schema({"high": pa.uint64(), "low": pa.uint64(), "local": pa.uint32(), "unit": pa.int32()})


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
    size, length = np.empty(len(starts), np.uint32), np.empty(len(column), np.int64)
    kernel.count_solid(data, starts, stops, size)
    kernel.count_solid(data, offsets[:-1], offsets[1:], length)
    return {
        "high": pa.LargeListArray.from_arrays(spans, pa.array(digests[:, 0])),
        "low": pa.LargeListArray.from_arrays(spans, pa.array(digests[:, 1])),
        "size": pa.LargeListArray.from_arrays(spans, pa.array(size)),
        "length": pa.array(length),
    }


def without_units(column: Column, name: str, payload: Column, unit: str, min_bytes: int) -> Column:
    """The texts without the units whose numbers are in the payload."""
    data, offsets = text_buffers(column, name)
    firsts, starts, stops = find_units(data, offsets, unit, min_bytes)
    cut_offsets = _offsets(payload)
    cuts = as_numpy(payload.flatten()) if len(payload) else np.empty(0, np.int32)
    buffer, spans = np.empty(int(offsets[-1] - offsets[0]), np.uint8), np.empty(len(offsets), np.int64)
    kernel.cut_units(data, offsets, firsts, starts, stops, cut_offsets, cuts.astype(np.int64), buffer, spans)
    texts = pa.LargeStringArray.from_buffers(len(column), pa.py_buffer(spans), pa.py_buffer(buffer[: spans[-1]]))
    if column.null_count:
        texts = pa.compute.if_else(column.is_null(), pa.scalar(None, pa.large_string()), texts)
    return texts.cast(column.type) if not pa.types.is_null(column.type) else column


def _offsets(lists: Column) -> np.ndarray:
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
    """Find units that repeat an earlier one, cut them, and drop rows that would lose too much text."""
    counts = run_in_workers(work, "units", count_units, [(rows, part) for part in range(rows.num_partitions)])
    total = sum(counts)
    check_disk(work, total * RECORD_BYTES * 2, f"deduplication of {step.unit}s")
    num_buckets = bucket_count((total + (index.total if index else 0)) * SORTING_BYTES, call_bytes)
    chunk = chunk_rows(RECORD_BYTES * 4 * max(1, total // max(1, rows.total)), call_bytes, min_rows=100)
    shuffled = NumberedFiles(work.exchange.sub("digests"), f"{num_buckets}-", rows.num_partitions)
    run_in_workers(
        work,
        f"digests by range, {num_buckets}",
        shuffle_units,
        [(rows, part, num_buckets, blob, chunk) for part, blob in enumerate(shuffled)],
    )
    blocks = Blocks.of(rows, index, call_bytes)
    cuts = NumberedFiles(work.exchange.sub("cuts"), f"{num_buckets}, {blocks.division}-", num_buckets)
    run_in_workers(
        work,
        f"repeats, {num_buckets}, {blocks.division}",
        group_units,
        [(blocks, shuffled, bucket, num_buckets, blob, call_bytes) for bucket, blob in enumerate(cuts)],
    )
    index_parts = index_parts_of(step.update, work, blocks)
    reason = f"more than {step.max_removed:.0%} repeated {step.unit}s"
    decisions = Decisions(
        blocks, decide, cuts, work.exchange, reason, index_parts=index_parts, max_removed=step.max_removed
    )
    decided = decisions.run(work, str(num_buckets), decide_units)
    summary: dict[str, Any] = {"step": step.name, "unit": step.unit, "rows": rows.total, "units": total}
    for name in ("cut", "dropped", "cut_bytes", "rewritten"):
        summary[name] = sum(part[name] for part in decided)
    publish(work, summary, {})
    return index_parts


# --------------------------------------------------------------------------------------------------- calls in the workers


def count_units(rows: RowNumbers, partition: int) -> int:
    facts = rows.observed[partition]
    return int(pa.compute.sum(pa.compute.list_value_length(facts.column("high"))).as_py() or 0) if facts.num_rows else 0


@handles_shortage
def shuffle_units(rows: RowNumbers, partition: int, num_buckets: int, blob: Blob, chunk: int) -> int:
    """Write the digests of the units of a partition by range of digests."""
    first = int(rows.offsets[partition])
    with ShuffleWriter(blob, num_buckets, _SHUFFLED) as writer:
        for start, facts in rows.chunks(partition, ["high", "low"], chunk):
            offsets = _offsets(contiguous(facts.column("high")))
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
            writer.write(table, bucket_of(high, num_buckets))
    return 0


@handles_shortage
def group_units(
    blocks: Blocks, shuffled: NumberedFiles, bucket: int, num_buckets: int, blob: Blob, call_bytes: int
) -> int:
    """Write every unit of a range of digests that repeats an earlier one; returns how many."""
    max_rows = call_bytes * 5 // 4 // SORTING_BYTES
    with PairWriter(blob, blocks) as writer:
        cut = 0
        read = functools.partial(read_digests, blocks, shuffled, bucket, num_buckets, ("unit",))
        for found in EqualDigests(blocks.rows.total).find(lambda: pieces(read(), max_rows)):
            writer.write(found)
            cut += len(found["row"])
    return cut


@handles_shortage
def decide_units(decisions: Decisions, partition: int) -> dict[str, int]:
    """Decide which units are cut out of the rows of a partition, and which rows are dropped."""
    parts = []
    totals = {"cut": 0, "dropped": 0, "cut_bytes": 0, "rewritten": 0}
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


def _decide_block(
    decisions: Decisions, block: int, groups: GroupWriter
) -> tuple[np.ndarray, pa.ListArray, dict[str, int]]:
    """(whether each row of a block is dropped, numbers of the units cut out of the kept rows, counts)"""
    facts, first = decisions.blocks.facts(block), int(decisions.blocks.starts[block])
    count = facts.num_rows
    found = read_pairs(decisions, block)
    drop = np.zeros(count, np.bool_)
    removed = np.zeros(count, np.int64)
    local = unit_numbers = np.empty(0, np.int64)
    if found is not None:
        cuts, names = found
        local, unit_numbers = as_numpy(cuts.column("row")) - first, as_numpy(cuts.column("unit")).astype(np.int64)
        sizes = contiguous(facts.column("size"))
        flat, offsets = as_numpy(sizes.flatten()), _offsets(sizes)
        cut_bytes = flat[offsets[local] + unit_numbers]
        removed = np.bincount(local, weights=cut_bytes, minlength=count).astype(np.int64)
        length = as_numpy(facts.column("length"))
        drop = removed > decisions.max_removed * length
        drop |= (removed > 0) & (removed >= length)
        more = {"similarity": np.ones(len(local), np.float32), "bytes": cut_bytes, "dropped": drop[local]}
        groups.write(block, facts, cuts, names, more)
    keep = ~drop[local] if len(local) else np.empty(0, np.bool_)
    ends = np.cumsum(np.bincount(local[keep], minlength=count)).astype(np.int32)
    payload = pa.ListArray.from_arrays(
        pa.array(np.concatenate([np.zeros(1, np.int32), ends])), pa.array(unit_numbers[keep].astype(np.int32))
    )
    if decisions.index_parts is not None:
        _write_unit_part(facts, local, unit_numbers, decisions.index_parts, block)
    counts = {
        "cut": len(local),
        "dropped": int(drop.sum()),
        "cut_bytes": int(removed.sum()),
        "rewritten": int(np.count_nonzero((removed > 0) & ~drop)),
    }
    return drop, payload, counts


def _write_unit_part(facts: pa.Table, local: np.ndarray, unit_numbers: np.ndarray, parts: Exchange, block: int) -> None:
    """Write the digests of units that were not cut to a part of an index. An entry is a unit with its row's address."""
    offsets = _offsets(contiguous(facts.column("high")))
    kept = np.ones(int(offsets[-1]), np.bool_)
    kept[offsets[local] + unit_numbers] = False
    owner = np.repeat(np.arange(facts.num_rows), np.diff(offsets))[kept]
    if len(owner):
        high = as_numpy(contiguous(facts.column("high")).flatten())[kept]
        low = as_numpy(contiguous(facts.column("low")).flatten())[kept]
        write_part(parts, block, pa.table(address_facts_of(facts, owner)), high, {"low": low})
