"""Repeated substrings: cut every span of text that occurs somewhere before, and keep the first occurrence.

    observe      the text
    runs         of windows of `min_bytes` bytes, by hash: about 3 runs per `min_bytes` of text
    repeated     the runs whose hash occurs twice, by block of rows
    windows      the text of these runs, by hash; a table has the first occurrence of each window
    repeats      (row, start, stop) of text that occurs first in (survivor, kept), by block of the row
    questions    repeats with their bytes, by block of the survivor
    answers      those that are equal to the first occurrence, where that is intact, by block of the row
    spans        disjoint, cut between characters or words
    apply        cut the spans out of the texts, and drop rows of which nothing is left

A window is a repeat if the same bytes occur before it, in source order. The first occurrence of a window may itself be cut by
another repeat that overlaps it. Then the window is not cut, so that some copy of all text remains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tamis.batch import Batch, Column, contiguous
from tamis.dedup.decisions import Blocks, Decisions, GroupWriter, PairWriter, check_disk, publish
from tamis.dedup.rows import MAX_MAPPED_BYTES, RowNumbers, address_facts
from tamis.dedup.shuffle import (
    PART_BYTES,
    RESOLVING_BYTES,
    NumberedFiles,
    ShuffleWriter,
    as_numpy,
    bucket_count,
    bucket_of,
    duplicated,
    handles_shortage,
    pieces,
    read_bucket,
    read_whole_bucket,
    retry_with_less_memory,
    run_in_workers,
)
from tamis.dedup.texts import byte_buffers, text_buffers
from tamis.dedup.units import CutsText, offsets_of, rebuilt
from tamis.errors import ParameterError
from tamis.exchange import Blob
from tamis.gathering import GROUPS
from tamis.kernels import substrings as kernel
from tamis.mapped import release_pages
from tamis.operators import Decide, Observations, Resources, Work, operator

GRAM_SHARE = 3
"""Windows of n bytes are found by substrings of n / 3. Shorter ones are repeated more often where windows are not, and longer
ones give more runs."""
RUN_BYTES = 22
RUN_SORTING_BYTES = 3 * RUN_BYTES
WINDOW_BYTES = 96
"""Memory per window in a hash table that is half full and being enlarged."""
PIECE_BYTES = 1_000_000
"""Text that is processed at a time."""
MAX_QUESTION_BYTES = 1_000_000

_RUNS = pa.schema({"hash": pa.uint64(), "row": pa.int64(), "start": pa.uint32(), "count": pa.uint16()})
_WINDOWS = _RUNS.append(pa.field("text", pa.large_binary()))
_SPANS = pa.schema(
    {"row": pa.int64(), "start": pa.uint32(), "stop": pa.uint32(), "survivor": pa.int64(), "kept": pa.uint32()}
)
_QUESTIONS = _SPANS.append(pa.field("text", pa.large_binary()))
_RANGES = pa.schema({"row": pa.int64(), "start": pa.uint32(), "stop": pa.uint32()})


@operator(reads="text", resources=Resources(memory=RESOLVING_BYTES))
class SubstringDedup(CutsText):
    """Cut spans of at least `min_bytes` bytes that occur before, in the same text or another one.

    The first occurrence is kept. A byte is cut if it is part of `min_bytes` bytes that occur earlier in source order, without
    overlap, and remain there. So each span that is cut has a copy that is kept. The default of 200 bytes is about 50 tokens, as
    in Lee et al. 2022; OLMo 3 uses 500. Spans are cut between characters or, with `cut="word"`, next to white space.

    keep="none" cuts the first occurrence too, as Lee et al. do. A text of which nothing but white space is left is dropped, and
    one that would lose more than `max_removed` of its text; with the latter, the only copy of other text may be lost.

    Hashes of a few substrings find candidates, and bytes are compared before anything is cut. Costs about 2 bytes of disk space
    per byte of text, 6 more per byte that is repeated, and memory within the budget. `tamis dedup explain` shows each span and
    where it occurs first.

    >>> from tamis import Pipeline, Rows
    >>> rows = [{"text": "One sentence that is repeated. The end."}, {"text": "So: One sentence that is repeated."}]
    >>> Pipeline(Rows(rows), SubstringDedup(min_bytes=20)).collect()["text"].to_pylist()
    ['One sentence that is repeated. The end.', 'So: ']
    """

    column: str = "text"
    min_bytes: int = 200
    keep: Literal["first", "none"] = "first"
    cut: Literal["character", "word"] = "character"
    max_removed: float = 1.0

    def check(self) -> None:
        if self.min_bytes < 4:
            raise ParameterError(f"`min_bytes` must be at least 4, got {self.min_bytes}")
        if not 0 <= self.max_removed <= 1:
            raise ParameterError(f"`max_removed` must be a share from 0 to 1, got {self.max_removed}")

    def disk_bytes(self, num_rows: int, num_bytes: int) -> int:
        """Disk space that a run takes if a quarter of the text is repeated."""
        return num_rows * 40 + num_bytes * 4

    def observe(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        column = batch[self.column]
        text_buffers(column, self.column)  # raises unless it is text
        return address_facts(batch) | {"text": column.cast(pa.large_string()).fill_null("")}

    def resolve(self, observed: Observations, decide: Decide, work: Work) -> None:
        rows = RowNumbers(observed)
        retry_with_less_memory(lambda call_bytes: resolve(self, rows, decide, work, call_bytes), work.worker_bytes)

    def rewrite(self, batch: Batch, payload: Column) -> Mapping[str, Column | np.ndarray]:
        return {self.column: without_ranges(batch[self.column], self.column, payload)}


def without_ranges(column: Column, name: str, payload: Column) -> Column:
    """The texts without the ranges of bytes in the payload: start and end of the first, of the second, ..."""
    data, offsets = text_buffers(column, name)
    cuts = as_numpy(payload.flatten()).astype(np.int64) if len(payload) else np.empty(0, np.int64)
    buffer, spans = np.empty(int(offsets[-1] - offsets[0]), np.uint8), np.empty(len(offsets), np.int64)
    kernel.cut_ranges(data, offsets, offsets_of(payload), cuts, buffer, spans)
    return rebuilt(column, buffer, spans)


@dataclass(frozen=True)
class SpanDecisions(Decisions):
    """Decides which spans are cut. `spans` has those of each block, in the order of its pairs."""

    spans: NumberedFiles | None = None
    blank_reason: str = "nothing but repeated text"


def resolve(step: SubstringDedup, rows: RowNumbers, decide: Decide, work: Work, call_bytes: int) -> None:
    sizes = run_in_workers(work, "sizes", count_bytes, [(rows, part) for part in range(rows.num_partitions)])
    total = sum(sizes)
    gram = max(2, step.min_bytes // GRAM_SHARE)
    expected = 3 * total // max(1, step.min_bytes - gram) + rows.total
    check_disk(work, expected * RUN_BYTES + total // 2, "deduplication of substrings")
    num_buckets = bucket_count(expected * RUN_SORTING_BYTES, call_bytes)
    block_rows = max(1, min(call_bytes // 4, PART_BYTES) // max(1, total // max(1, rows.total)))
    num_groups = max(8, bucket_count(total, call_bytes))
    blocks = Blocks(rows, None, min(block_rows, Blocks.of(rows, None, call_bytes).block_rows), num_groups)
    division = f"{num_buckets}, {blocks.division}"

    def phase(name: str, function: Any, count: int, division: str, *arguments: Any) -> tuple[NumberedFiles, list[Any]]:
        """Call function(*arguments, number, blob) for each number below `count`."""
        files = NumberedFiles(work.exchange.sub(name.replace(" ", "-")), f"{division}-", count)
        items = [(*arguments, number, blob) for number, blob in enumerate(files)]
        return files, run_in_workers(work, f"{name}, {division}", function, items)

    parts = rows.num_partitions
    runs, _ = phase("runs", find_runs, parts, str(num_buckets), rows, num_buckets, step.min_bytes, gram)
    repeated, windows = phase("repeated", repeated_runs, num_buckets, division, blocks, runs, num_buckets, call_bytes)
    check_disk(work, sum(windows) * 8, "deduplication of substrings")
    num_tables = bucket_count(sum(windows) * WINDOW_BYTES, call_bytes)
    division = f"{division}, {num_tables}"
    count = blocks.num_blocks
    texts, _ = phase("windows", gather_windows, count, division, blocks, repeated, num_tables, step.min_bytes)
    tables = texts, num_tables, step.min_bytes, step.keep == "none", call_bytes
    found, _ = phase("repeats", find_repeats, num_tables, division, blocks, *tables)
    questions, _ = phase("questions", ask, count, division, blocks, found, step.min_bytes)
    search = questions, step.min_bytes, step.keep == "none"
    answers, _ = phase("answers", answer, count, division, blocks, *search)
    pairs, _ = phase("spans", choose_spans, count, division, blocks, answers, step.cut == "word")
    decisions = SpanDecisions(
        blocks,
        decide,
        pairs,
        work.exchange,
        f"more than {step.max_removed:.0%} repeated text",
        max_removed=step.max_removed,
        spans=pairs,
    )
    decided = decisions.run(work, division, decide_spans)
    summary: dict[str, Any] = {"step": step.name, "rows": rows.total, "bytes": total}
    for name in ("cut", "dropped", "cut_bytes", "cut_chars", "rewritten"):
        summary[name] = sum(part[name] for part in decided)
    publish(work, summary, {})


# --------------------------------------------------------------------------------------------------- calls in the workers


def count_bytes(rows: RowNumbers, partition: int) -> int:
    """The bytes of text of a partition, from the offsets."""
    if not rows.observed.num_rows(partition):
        return 0
    chunks = rows.observed[partition].column("text").chunks
    return sum(int(offsets[-1] - offsets[0]) for offsets in (byte_buffers(chunk)[1] for chunk in chunks if len(chunk)))


@handles_shortage
def find_runs(rows: RowNumbers, num_buckets: int, size: int, gram: int, partition: int, blob: Blob) -> int:
    """Write the runs of windows of a partition, by hash."""
    first = int(rows.offsets[partition])
    with ShuffleWriter(blob, num_buckets, _RUNS) as writer:
        for start, data, offsets in _texts(rows, partition):
            table = _runs_of(data, offsets, first + start, size, gram)
            writer.write(table, bucket_of(as_numpy(table.column("hash")), num_buckets))
    return 0


def _texts(rows: RowNumbers, partition: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """(number of the first row in the partition, bytes, offsets) for a few megabytes of text at a time."""
    if not rows.observed.num_rows(partition):
        return
    before, touched = 0, 0
    for chunk in rows.observed[partition].column("text").chunks:
        data, offsets = byte_buffers(chunk)
        start = 0
        while start < len(chunk):
            stop = max(start + 1, int(np.searchsorted(offsets, offsets[start] + MAX_MAPPED_BYTES)) - 1)
            stop = min(stop, len(chunk))
            yield before + start, data, offsets[start : stop + 1]
            touched += int(offsets[stop] - offsets[start])
            if touched > MAX_MAPPED_BYTES:
                release_pages()
                touched = 0
            start = stop
        before += len(chunk)


def _runs_of(data: np.ndarray, offsets: np.ndarray, first: int, size: int, gram: int) -> pa.Table:
    room = 3 * int(offsets[-1] - offsets[0]) // (size - gram + 1) + len(offsets) + 16
    while True:
        hashes, rows = np.empty(room, np.uint64), np.empty(room, np.int64)
        starts, counts = np.empty(room, np.uint32), np.empty(room, np.uint16)
        count = kernel.find_runs(data, offsets, size, gram, hashes, rows, starts, counts)
        if count <= room:
            break
        room = count
    names: dict[str, np.ndarray] = {"hash": hashes, "row": rows + first, "start": starts, "count": counts}
    return pa.table({name: values[:count] for name, values in names.items()})


@handles_shortage
def repeated_runs(
    blocks: Blocks, runs: NumberedFiles, num_buckets: int, call_bytes: int, bucket: int, blob: Blob
) -> int:
    """Write the runs of a range of hashes whose hash occurs more than once, by block; returns their number of windows."""
    max_rows = max(1, call_bytes * 5 // 4 // RUN_SORTING_BYTES)
    windows = 0
    with ShuffleWriter(blob, blocks.num_blocks, _RUNS) as writer:
        for piece, repeated in _repeated(partial(_run_pieces, runs, bucket, num_buckets, max_rows)):
            repeated |= piece["count"] >= kernel.PERIODIC
            chosen = {name: values[repeated] for name, values in piece.items()}
            chosen["count"] = chosen["count"] % np.uint16(kernel.PERIODIC)
            windows += int(chosen["count"].sum(dtype=np.int64))
            table = pa.table(chosen)
            writer.write(table, blocks.block_of(as_numpy(table.column("row"))))
    return windows


def _run_pieces(runs: NumberedFiles, bucket: int, num_buckets: int, max_rows: int) -> Iterator[dict[str, np.ndarray]]:
    batches = (batch for file in runs for batch in read_bucket(file, bucket, num_buckets))
    return pieces(({name: as_numpy(batch.column(name)) for name in _RUNS.names} for batch in batches), max_rows)


def _repeated(
    read: Callable[[], Iterator[dict[str, np.ndarray]]],
) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """(piece, whether its hashes occur more than once). A range of hashes is one piece unless one of them is very frequent."""
    begun = read()
    first, second = next(begun, None), next(begun, None)
    if first is None:
        return
    if second is None:
        yield first, duplicated(first["hash"])
        return
    del first, second
    seen = twice = np.empty(0, np.uint64)
    for piece in read():
        values, counts = np.unique(piece["hash"], return_counts=True)
        twice = np.union1d(twice, values[(counts > 1) | np.isin(values, seen, assume_unique=True)])
        seen = np.union1d(seen, values)
    for piece in read():
        yield piece, np.isin(piece["hash"], twice)


@handles_shortage
def gather_windows(blocks: Blocks, repeated: NumberedFiles, num_tables: int, size: int, block: int, blob: Blob) -> int:
    """Write the text of the repeated runs of a block, by hash, in source order."""
    with ShuffleWriter(blob, num_tables, _WINDOWS) as writer:
        found = read_whole_bucket(repeated, block, blocks.num_blocks)
        if found is None:
            return 0
        found = found.sort_by([("row", "ascending"), ("start", "ascending")])
        data, offsets = _block_text(blocks, block)
        local = as_numpy(found.column("row")) - blocks.starts[block]
        starts = offsets[local] + as_numpy(found.column("start"))
        stops = starts + as_numpy(found.column("count")).astype(np.int64) + size - 1
        for begin, end, text in _slices(data, starts, stops):
            table = found.slice(begin, end - begin).append_column("text", text)
            writer.write(table, bucket_of(as_numpy(table.column("hash")), num_tables))
    release_pages()
    return 0


def _block_text(blocks: Blocks, block: int) -> tuple[np.ndarray, np.ndarray]:
    return byte_buffers(contiguous(blocks.facts(block).column("text")))


def _slices(data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> Iterator[tuple[int, int, pa.Array]]:
    """(begin, end, bytes of spans begin to end) for about `PIECE_BYTES` at a time."""
    ends = np.cumsum(stops - starts)
    begin = 0
    while begin < len(ends):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + PIECE_BYTES, side="right")))
        buffer = np.empty(int(ends[end - 1]) - before, np.uint8)
        kernel.gather_bytes(data, starts[begin:end], stops[begin:end], buffer)
        offsets = np.concatenate([np.zeros(1, np.int64), ends[begin:end] - before])
        yield (
            begin,
            end,
            pa.LargeBinaryArray.from_buffers(
                pa.large_binary(), end - begin, [None, pa.py_buffer(offsets), pa.py_buffer(buffer)]
            ),
        )
        begin = end


@handles_shortage
def find_repeats(
    blocks: Blocks,
    texts: NumberedFiles,
    num_tables: int,
    size: int,
    may_overlap: bool,
    call_bytes: int,
    bucket: int,
    blob: Blob,
) -> int:
    """Write the spans of a range of hashes that occur before, by block of the row; returns how many.

    If one substring is so frequent that a table of all its windows does not fit, they are looked up in several passes.
    """
    total = _count_windows(texts, bucket, num_tables)
    passes = -(-total * WINDOW_BYTES // max(WINDOW_BYTES, call_bytes * 5 // 4))
    count = 0
    with ShuffleWriter(blob, blocks.num_blocks, _SPANS) as writer:
        for chosen in range(passes):
            table = _WindowTable(size, may_overlap, passes, chosen)
            for piece in _text_pieces(texts, bucket, num_tables):
                spans = table.match(piece)
                count += len(spans)
                writer.write(_span_table(spans), blocks.block_of(spans[:, 0]))
    return count


def _count_windows(texts: NumberedFiles, bucket: int, num_tables: int) -> int:
    options = pa.ipc.IpcReadOptions(included_fields=[_WINDOWS.get_field_index("count")])
    total = 0
    for blob in texts:
        with blob.open() as file:
            reader = pa.ipc.open_file(file, options=options)
            for number in range(bucket, reader.num_record_batches, num_tables):
                total += int(as_numpy(reader.get_batch(number).column("count")).sum(dtype=np.int64))
    return total


def _text_pieces(files: Iterable[Blob], bucket: int, num_buckets: int) -> Iterator[pa.Table]:
    """The rows of a bucket, in tables with about `PIECE_BYTES` of text."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in (batch for file in files for batch in read_bucket(file, bucket, num_buckets)):
        held.append(batch)
        size += batch.nbytes
        if size > PIECE_BYTES:
            yield pa.Table.from_batches(held).combine_chunks()
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held).combine_chunks()


class _WindowTable:
    """The first occurrence of each window, in a hash table that grows."""

    def __init__(self, size: int, may_overlap: bool, passes: int, chosen: int) -> None:
        self.size, self.may_overlap, self.passes, self.chosen = size, may_overlap, passes, chosen
        self.used = 0
        self._table = self._empty(2**10)

    @staticmethod
    def _empty(slots: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return np.zeros(slots, np.uint64), np.empty(slots, np.int64), np.empty(slots, np.uint32)

    def match(self, runs: pa.Table) -> np.ndarray:
        """int64[spans, 5]: row, start, stop, survivor, kept of the windows that occur before; adds those that do not."""
        counts = as_numpy(runs.column("count"))
        windows = int(counts.sum(dtype=np.int64))
        needed = 2 * (self.used + (windows if self.passes == 1 else 2 * windows // self.passes + 1000))
        needed = min(needed, 2 * (self.used + windows))
        if needed > len(self._table[0]):
            grown = self._empty(1 << (needed - 1).bit_length())
            kernel.grow_table(*self._table, *grown)
            self._table = grown
        data, offsets = byte_buffers(contiguous(runs.column("text")))
        out = np.empty((windows, 5), np.int64)
        columns = [as_numpy(runs.column(name)) for name in ("hash", "row", "start")]
        found, inserted = kernel.match_windows(
            data, offsets, *columns, counts, self.size, self.may_overlap, self.passes, self.chosen, *self._table, out
        )
        self.used += inserted
        return out[:found]


def _span_table(spans: np.ndarray) -> pa.Table:
    return pa.table({name: spans[:, index] for index, name in enumerate(_SPANS.names)}).cast(_SPANS)


def _span_array(table: pa.Table | None) -> np.ndarray:
    """int64[spans, 5], from a table of spans."""
    if table is None:
        return np.empty((0, len(_SPANS)), np.int64)
    return np.stack([as_numpy(table.column(name)).astype(np.int64) for name in _SPANS.names], axis=1)


def _ranges(spans: np.ndarray) -> np.ndarray:
    """int64[ranges, 3]: row, start and stop of the union of spans."""
    ranges = spans[:, :3]
    ranges = np.ascontiguousarray(ranges[np.lexsort((ranges[:, 1], ranges[:, 0]))])
    return ranges[: kernel.unite_ranges(ranges)]


RANGES = ".ranges"


@handles_shortage
def ask(blocks: Blocks, found: NumberedFiles, size: int, block: int, blob: Blob) -> int:
    """Write the repeats of a block with their bytes, by block of the first occurrence, and the ranges that they cover."""
    spans = _span_array(read_whole_bucket(found, block, blocks.num_blocks))
    row, start, _, survivor, kept = spans.T
    spans = spans[np.lexsort((start, kept - start, survivor, row))]
    spans = spans[: kernel.join_spans(spans, size)]
    ranges = _ranges(spans)
    with ShuffleWriter(blob.with_suffix(RANGES), 1, _RANGES) as writer:
        table = pa.table({name: ranges[:, index] for index, name in enumerate(_RANGES.names)}).cast(_RANGES)
        writer.write(table, np.zeros(len(ranges), np.int64))
    with ShuffleWriter(blob, blocks.num_blocks, _QUESTIONS) as writer:
        if len(spans):
            data, offsets = _block_text(blocks, block)
            spans = _short_spans(spans, size)
            begins = offsets[spans[:, 0] - blocks.starts[block]]
            for begin, end, text in _slices(data, begins + spans[:, 1], begins + spans[:, 2]):
                table = _span_table(spans[begin:end]).append_column("text", text)
                writer.write(table, blocks.block_of(spans[begin:end, 3]))
    release_pages()
    return len(spans)


def _short_spans(spans: np.ndarray, size: int) -> np.ndarray:
    """Divide long spans into some that overlap, so that each window is inside one of them."""
    largest = max(MAX_QUESTION_BYTES, 2 * size)
    step = largest - size + 1
    times = np.maximum(1, -(-(spans[:, 2] - spans[:, 1] - size + 1) // step))
    result = np.repeat(spans, times, axis=0)
    shift = step * (np.arange(len(result)) - np.repeat(np.cumsum(times) - times, times))
    result[:, 1] += shift
    result[:, 4] += shift
    result[:, 2] = np.minimum(result[:, 2], result[:, 1] + largest)
    return result


@handles_shortage
def answer(blocks: Blocks, questions: NumberedFiles, size: int, everywhere: bool, block: int, blob: Blob) -> int:
    """Write the spans whose first occurrence is in a block, equal and intact, by block of the row.

    With `everywhere`, it need not be intact, and is written as a span too.
    """
    first, count = int(blocks.starts[block]), 0
    lost = None if everywhere else read_whole_bucket([questions[block].with_suffix(RANGES)], 0, 1)
    ranges = np.empty((0, 3), np.int64)
    if lost is not None:
        ranges = np.stack([as_numpy(lost.column(name)).astype(np.int64) for name in _RANGES.names], axis=1)
    with ShuffleWriter(blob, blocks.num_blocks, _SPANS) as writer:
        text: tuple[np.ndarray, np.ndarray] | None = None
        for piece in _text_pieces(questions, block, blocks.num_blocks):
            if text is None:
                text = _block_text(blocks, block)
                range_offsets = np.searchsorted(ranges[:, 0], np.arange(first, first + len(text[1])))
            spans = _confirmed(_span_array(piece), piece, text, first, ranges, range_offsets, size)
            if everywhere:
                mirrored = spans[:, [3, 4, 4, 0, 1]]
                mirrored[:, 2] += spans[:, 2] - spans[:, 1]
                spans = np.concatenate([spans, mirrored])
            writer.write(_span_table(spans), blocks.block_of(spans[:, 0]))
            count += len(spans)
    release_pages()
    return count


def _confirmed(
    spans: np.ndarray,
    piece: pa.Table,
    text: tuple[np.ndarray, np.ndarray],
    first: int,
    ranges: np.ndarray,
    range_offsets: np.ndarray,
    size: int,
) -> np.ndarray:
    asked = byte_buffers(contiguous(piece.column("text")))
    room = len(spans)
    while True:
        out = np.empty((room, 5), np.int64)
        count = kernel.confirm_spans(spans, *asked, *text, first, ranges, range_offsets, size, out)
        if count <= room:
            return out[:count]
        room = count


CUTS = ".cuts"


@handles_shortage
def choose_spans(blocks: Blocks, answers: NumberedFiles, whole_words: bool, block: int, blob: Blob) -> int:
    """Write the disjoint spans to cut out of the rows of a block; returns how many."""
    spans = _span_array(read_whole_bucket(answers, block, blocks.num_blocks))
    row, start, stop, survivor, kept = spans.T
    spans = spans[np.lexsort((kept, survivor, -stop, start, row))]
    if len(spans):
        spans = spans[: kernel.cut_spans(spans, *_block_text(blocks, block), int(blocks.starts[block]), whole_words)]
    with ShuffleWriter(blob.with_suffix(CUTS), 1, _SPANS) as writer:
        writer.write(_span_table(spans), np.zeros(len(spans), np.int64))
    with PairWriter(blob, blocks) as pairs:
        rows = spans[:, 0]
        begins = np.flatnonzero(np.append(True, rows[1:] != rows[:-1])) if len(rows) else np.empty(0, np.int64)
        unit = np.arange(len(rows)) - np.repeat(begins, np.diff(np.append(begins, len(rows))))
        pairs.write({"row": rows, "survivor": spans[:, 3], "unit": unit.astype(np.int32)})
    release_pages()
    return len(spans)


@handles_shortage
def decide_spans(decisions: SpanDecisions, partition: int) -> dict[str, int]:
    """Decide which spans are cut out of the rows of a partition, and which rows are dropped."""
    totals = {"cut": 0, "dropped": 0, "cut_bytes": 0, "cut_chars": 0, "rewritten": 0}
    reasons: list[np.ndarray] = [np.empty(0, np.int8)]
    payloads = [pa.array([], pa.list_(pa.int64()))]
    with GroupWriter(decisions, GROUPS, partition) as groups:
        for block in decisions.blocks.blocks_of(partition):
            reason, payload = _decide_block(decisions, block, groups, totals)
            reasons.append(reason)
            payloads.append(payload)
            release_pages()
    reason = np.concatenate(reasons)
    texts = pa.array([None, decisions.reason, decisions.blank_reason], pa.string())
    named = pa.DictionaryArray.from_arrays(pa.array(reason), texts)
    decisions.decide(partition, reason > 0, named, pa.concat_arrays(payloads))
    return totals


def _decide_block(
    decisions: SpanDecisions, block: int, groups: GroupWriter, totals: dict[str, int]
) -> tuple[np.ndarray, pa.ListArray]:
    """(why each row of a block is dropped: 0 if it is not, 1 or 2; ranges that are cut out of the kept rows)"""
    assert decisions.spans is not None
    blocks = decisions.blocks
    facts, first = blocks.facts(block), int(blocks.starts[block])
    count = facts.num_rows
    reason = np.zeros(count, np.int8)
    spans = _span_array(read_whole_bucket([decisions.spans[block].with_suffix(CUTS)], 0, 1))
    if len(spans):
        data, offsets = byte_buffers(contiguous(facts.column("text")))
        lost, lost_solid, lost_chars, solid = np.zeros((4, count), np.int64)
        kernel.measure_spans(data, offsets, spans, first, lost, lost_solid, lost_chars, solid)
        reason[(lost > 0) & (lost_solid > decisions.max_removed * solid)] = 1
        reason[(lost > 0) & (lost_solid == solid)] = 2
        order = [("row", "ascending"), ("unit", "ascending")]
        pairs = read_whole_bucket([decisions.pairs[block]], block, blocks.num_blocks)
        names = read_whole_bucket(decisions.names, block, blocks.num_blocks)
        assert pairs is not None
        assert names is not None
        more = {
            "similarity": np.ones(len(spans), np.float32),
            "start": spans[:, 1],
            "kept_start": spans[:, 4],
            "bytes": spans[:, 2] - spans[:, 1],
            "dropped": reason[spans[:, 0] - first] > 0,
        }
        groups.write(block, facts, pairs.sort_by(order), names.sort_by(order), more)
        totals["cut"] += len(spans)
        totals["cut_bytes"] += int(lost.sum())
        totals["cut_chars"] += int(lost_chars.sum())
        totals["dropped"] += int((reason > 0).sum())
        totals["rewritten"] += int(((lost > 0) & (reason == 0)).sum())
    local = spans[:, 0] - first
    kept = reason[local] == 0
    ends = np.cumsum(2 * np.bincount(local[kept], minlength=count)).astype(np.int32)
    values = np.ascontiguousarray(spans[kept, 1:3]).reshape(-1)
    return reason, pa.ListArray.from_arrays(pa.array(np.concatenate([np.zeros(1, np.int32), ends])), pa.array(values))
