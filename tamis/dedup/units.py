"""Repeated paragraphs and lines: found across the corpus by their digests, and cut out of the texts they repeat in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tamis.batch import Column, contiguous
from tamis.dedup.index import Index, write_part
from tamis.dedup.rows import RowNumbers, subset
from tamis.dedup.settle import GROUPS, check_disk, publish, write_found
from tamis.dedup.shuffle import (
    ShuffleWriter,
    bounds_of,
    bucket_count,
    bucket_of,
    duplicated,
    gather_bucket,
    numbers,
    read_bucket,
    tells_disk,
    usable_bytes,
)
from tamis.dedup.texts import TextNormal, digest_spans, text_buffers
from tamis.kernels import digests as kernel
from tamis.operator import Decide, Work

if TYPE_CHECKING:
    from tamis.dedup.exact import ExactDedup

RECORD_BYTES = 32
_CUTS = pa.schema({"row": pa.int64(), "unit": pa.int32(), "kept_row": pa.int64(), "kept_unit": pa.int32()})
_SCATTERED = pa.schema({"high": pa.uint64(), "low": pa.uint64(), "local": pa.uint32(), "unit": pa.int32()})


def find_units(
    data: np.ndarray, offsets: np.ndarray, unit: str, min_bytes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(number of each row's first unit, where units start, where they stop)."""
    firsts, none = np.zeros(len(offsets), np.int64), np.zeros(0, np.int64)
    count = kernel.find_units(data, offsets, unit == "paragraph", min_bytes, firsts, none, none)
    starts, stops = np.zeros(max(1, count), np.int64), np.zeros(max(1, count), np.int64)
    kernel.find_units(data, offsets, unit == "paragraph", min_bytes, firsts, starts, stops)
    return firsts, starts[:count], stops[:count]


def unit_facts(column: Column, name: str, unit: str, min_bytes: int, normal: TextNormal) -> dict[str, Column]:
    """Per row, the digests and sizes of its units, and the size of its text; white space does not count in sizes."""
    data, offsets = text_buffers(column, name)
    firsts, starts, stops = find_units(data, offsets, unit, min_bytes)
    digests = digest_spans(data, starts, stops, normal)
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
    """The texts without the units whose numbers the payload lists."""
    data, offsets = text_buffers(column, name)
    firsts, starts, stops = find_units(data, offsets, unit, min_bytes)
    cut_offsets = _offsets(payload)
    cuts = numbers(payload.flatten()) if len(payload) else np.empty(0, np.int32)
    buffer, spans = np.empty(int(offsets[-1] - offsets[0]), np.uint8), np.empty(len(offsets), np.int64)
    kernel.cut_units(data, offsets, firsts, starts, stops, cut_offsets, cuts.astype(np.int64), buffer, spans)
    texts = pa.LargeStringArray.from_buffers(len(column), pa.py_buffer(spans), pa.py_buffer(buffer[: spans[-1]]))
    if column.null_count:
        texts = pa.compute.if_else(column.is_null(), pa.scalar(None, pa.large_string()), texts)
    return texts.cast(column.type) if not pa.types.is_null(column.type) else column


def _offsets(lists: Column) -> np.ndarray:
    sizes = pa.compute.fill_null(pa.compute.list_value_length(lists), 0)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(numbers(sizes)).astype(np.int64)])


def resolve(
    step: ExactDedup, rows: RowNumbers, decide: Decide, work: Work, index: Index | None, index_folder: Path | None
) -> None:
    """Find the units that repeat an earlier one, and decide what is cut and which rows lose too much."""
    usable = usable_bytes(work.worker_bytes)
    counts = work.map("units", count_units, [(rows, part) for part in range(rows.num_partitions)])
    total = sum(counts)
    check_disk(work, total * RECORD_BYTES * 2, "looking for repeated text")
    num_buckets = bucket_count((total + (index.total if index else 0)) * RECORD_BYTES * 3, usable)
    chunk = max(100, usable // (RECORD_BYTES * 4 * max(1, total // max(1, rows.total))))
    scattered = [work.folder / "digests" / f"{num_buckets}-{part:06d}.arrow" for part in range(rows.num_partitions)]
    work.map(
        f"digests by range, {num_buckets}",
        scatter_units,
        [(rows, part, num_buckets, path, chunk) for part, path in enumerate(scattered)],
    )
    cuts = [work.folder / "cuts" / f"{num_buckets}-{bucket:06d}.arrow" for bucket in range(num_buckets)]
    work.map(
        f"repeats, {num_buckets}",
        group_units,
        [(rows, scattered, bucket, num_buckets, index, path) for bucket, path in enumerate(cuts)],
    )
    settled = work.map(
        f"fates, {num_buckets}",
        settle_units,
        [
            (rows, decide, part, cuts, step.unit, step.max_removed, work.folder, index, index_folder)
            for part in range(rows.num_partitions)
        ],
    )
    summary: dict[str, Any] = {"step": step.name, "unit": step.unit, "rows": rows.total, "units": total}
    for name in ("cut", "dropped", "cut_bytes", "rewritten"):
        summary[name] = sum(part[name] for part in settled)
    publish(work, summary, {})


# --------------------------------------------------------------------------------------------------- calls in the workers


def count_units(rows: RowNumbers, partition: int) -> int:
    facts = rows.observed[partition]
    return int(pa.compute.sum(pa.compute.list_value_length(facts.column("high"))).as_py() or 0) if facts.num_rows else 0


@tells_disk
def scatter_units(rows: RowNumbers, partition: int, num_buckets: int, path: Path, chunk: int) -> int:
    """Write the digests of the units of a partition by range."""
    first = int(rows.offsets[partition])
    with ShuffleWriter(path, num_buckets, _SCATTERED) as writer:
        for start, facts in rows.chunks(partition, ["high", "low"], chunk):
            offsets = _offsets(contiguous(facts.column("high")))
            local = np.repeat(np.arange(start - first, start - first + facts.num_rows), np.diff(offsets))
            unit = np.arange(len(local)) - np.repeat(offsets[:-1], np.diff(offsets))
            high = numbers(contiguous(facts.column("high")).flatten())
            table = pa.table(
                {
                    "high": high,
                    "low": numbers(contiguous(facts.column("low")).flatten()),
                    "local": local.astype(np.uint32),
                    "unit": unit.astype(np.int32),
                }
            )
            writer.write(table, bucket_of(high, num_buckets))
    return 0


@tells_disk
def group_units(
    rows: RowNumbers, scattered: list[Path], bucket: int, num_buckets: int, index: Index | None, path: Path
) -> int:
    """Every unit of a range that repeats an earlier one."""
    columns: dict[str, list[np.ndarray]] = {name: [] for name in ("high", "low", "row", "unit", "seen")}
    for part, file in enumerate(scattered):
        for batch in read_bucket(file, bucket, num_buckets):
            for name in ("high", "low", "unit"):
                columns[name].append(numbers(batch.column(name)))
            columns["row"].append(numbers(batch.column("local")).astype(np.int64) + rows.offsets[part])
            columns["seen"].append(np.ones(batch.num_rows, np.uint8))
    if index is not None and columns["high"]:
        for before, batch in index.keys_between(*bounds_of(bucket, num_buckets)):
            columns["high"].append(numbers(batch.column("key")))
            columns["low"].append(numbers(batch.column("low")))
            columns["row"].append(numbers(batch.column("entry")).astype(np.int64) + before + rows.total)
            columns["unit"].append(np.zeros(batch.num_rows, np.int32))
            columns["seen"].append(np.zeros(batch.num_rows, np.uint8))
    parts = {name: np.concatenate(found) if found else np.empty(0, np.int64) for name, found in columns.items()}
    chosen = duplicated(parts["high"].astype(np.uint64))
    parts = {name: values[chosen] for name, values in parts.items()}
    order = np.lexsort([parts[name] for name in ("unit", "row", "seen", "low", "high")])
    parts = {name: values[order] for name, values in parts.items()}
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (parts["high"][1:] != parts["high"][:-1]) | (parts["low"][1:] != parts["low"][:-1])
    group = np.cumsum(begins) - 1
    goes = ~begins & (parts["row"] < rows.total)
    first = np.flatnonzero(begins)[group] if len(order) else group
    table = pa.table(
        {
            "row": parts["row"][goes].astype(np.int64),
            "unit": parts["unit"][goes].astype(np.int32),
            "kept_row": parts["row"][first][goes].astype(np.int64),
            "kept_unit": parts["unit"][first][goes].astype(np.int32),
        }
    )
    with ShuffleWriter(path, rows.num_partitions, _CUTS) as writer:
        writer.write(table, rows.partition_of(numbers(table.column("row"))))
    return table.num_rows


@tells_disk
def settle_units(
    rows: RowNumbers,
    decide: Decide,
    partition: int,
    cut_files: list[Path],
    unit: str,
    max_removed: float,
    folder: Path,
    index: Index | None,
    index_folder: Path | None,
) -> dict[str, int]:
    """Decide what is cut out of the rows of one partition, and which of them lose too much."""
    first, count = int(rows.offsets[partition]), int(rows.offsets[partition + 1] - rows.offsets[partition])
    facts = rows.observed[partition]
    cuts = gather_bucket(cut_files, partition, rows.num_partitions)
    drop = np.zeros(count, np.bool_)
    removed = np.zeros(count, np.int64)
    local = unit_numbers = np.empty(0, np.int64)
    if cuts is not None:
        cuts = cuts.sort_by([("row", "ascending"), ("unit", "ascending")])
        local, unit_numbers = numbers(cuts.column("row")) - first, numbers(cuts.column("unit")).astype(np.int64)
        sizes = contiguous(facts.column("size"))
        flat, offsets = numbers(sizes.flatten()), _offsets(sizes)
        cut_bytes = flat[offsets[local] + unit_numbers]
        removed = np.bincount(local, weights=cut_bytes, minlength=count).astype(np.int64)
        length = numbers(facts.column("length"))
        drop = removed > max_removed * length
        drop |= (removed > 0) & (removed >= length)
        facts_of_cuts = {
            "similarity": np.ones(len(local), np.float32),
            "unit": unit_numbers,
            "kept_unit": cuts.column("kept_unit"),
            "bytes": cut_bytes,
        }
        write_found(
            rows, index, local + first, numbers(cuts.column("kept_row")), facts_of_cuts, folder / GROUPS, partition
        )
    keep = ~drop[local] if len(local) else np.empty(0, np.bool_)
    ends = np.cumsum(np.bincount(local[keep], minlength=count)).astype(np.int32) if count else np.empty(0, np.int32)
    payload = pa.ListArray.from_arrays(
        pa.array(np.concatenate([np.zeros(1, np.int32), ends])), pa.array(unit_numbers[keep].astype(np.int32))
    )
    decide(partition, drop, f"more than {max_removed:.0%} repeated {unit}s", payload)
    if index_folder is not None and count:
        _keep_units(facts, local, unit_numbers, index_folder, partition)
    return {
        "cut": len(local),
        "dropped": int(drop.sum()),
        "cut_bytes": int(removed.sum()),
        "rewritten": int(np.count_nonzero((removed > 0) & ~drop)),
    }


def _keep_units(facts: pa.Table, local: np.ndarray, unit_numbers: np.ndarray, folder: Path, partition: int) -> None:
    """The digests of units that were not cut, as a part of an index; an entry is a unit, with its row's address."""
    offsets = _offsets(contiguous(facts.column("high")))
    stays = np.ones(int(offsets[-1]), np.bool_)
    stays[offsets[local] + unit_numbers] = False
    owner = np.repeat(np.arange(facts.num_rows), np.diff(offsets))[stays]
    if len(owner):
        high = numbers(contiguous(facts.column("high")).flatten())[stays]
        low = numbers(contiguous(facts.column("low")).flatten())[stays]
        write_part(folder, partition, pa.table(subset(facts, owner)), high, {"low": low})
