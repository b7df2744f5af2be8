"""Paragraphs are cut if most of their n-grams occur before, as in dolma and DataComp-LM but without a Bloom filter.

observe     a digest of each n-gram of words, and the n-grams of each paragraph
resolve     sort the digests by range: an n-gram is seen if an equal one occurs earlier
            a paragraph is cut if the share of its n-grams that are seen reaches the threshold
apply       cut the paragraphs out of the texts
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tamis.batch import Batch, Column, contiguous
from tamis.dedup import units
from tamis.dedup.decisions import Blocks, Decisions, PairWriter, publish
from tamis.dedup.equal_digests import EqualDigests, read_digests
from tamis.dedup.rows import RowNumbers, address_facts
from tamis.dedup.sentences import digest_rows_of
from tamis.dedup.shuffle import (
    RESOLVING_BYTES,
    NumberedFiles,
    ShuffleWriter,
    as_numpy,
    handles_shortage,
    pieces,
    read_whole_bucket,
    retry_with_less_memory,
    run_in_workers,
)
from tamis.dedup.texts import Normalization, digest_spans, text_buffers
from tamis.errors import ParameterError
from tamis.exchange import Blob
from tamis.kernels import digests
from tamis.kernels import sentence_spans as kernel
from tamis.mapped import release_pages
from tamis.operators import Decide, Observations, Resources, Work, operator

_SEEN = pa.schema({"row": pa.int64(), "unit": pa.int32(), "survivor": pa.int64()})


@operator(reads="text", resources=Resources(memory=RESOLVING_BYTES))
class ParagraphDedup(units.CutsText):
    """Cut paragraphs if at least `threshold` of their n-grams of words occur before, in the same text or another one.

    n-grams of paragraphs that are cut count as seen too. A paragraph is a line, as in dolma and DataComp-LM, or with
    `unit="paragraph"` a run of lines that are not blank. Paragraphs with fewer than `ngram` words are compared as a whole, and
    those with fewer than `min_words` are kept. A text that would lose more than `max_removed` of its text is dropped, and one
    of which nothing is left.

    Defaults: 13 words, 0.8 and 5 words (Li et al. 2024, the Bloom filter of DataComp-LM). `stride` compares only every n-th
    n-gram, as in dolma. Words are runs of letters and digits, in lower case with `ignore_case`; characters of Chinese and
    Japanese are words.

    Compares 128-bit digests, so nothing is cut by chance, as it may be with a Bloom filter. Costs about 50 bytes of disk
    space per n-gram, and memory within the budget. `tamis dedup explain` shows the share of each paragraph and a text that
    has it.

    >>> from tamis import Pipeline, Rows
    >>> rows = [{"text": "a b c d e f"}, {"text": "first a b c d e\\nnew words only in here"}]
    >>> Pipeline(Rows(rows), ParagraphDedup(ngram=2, threshold=0.7)).collect()["text"].to_pylist()
    ['a b c d e f', 'new words only in here']
    """

    column: str = "text"
    ngram: int = 13
    threshold: float = 0.8
    stride: int = 1
    unit: Literal["line", "paragraph"] = "line"
    min_words: int = 5
    ignore_case: bool = True
    max_removed: float = 1.0

    def check(self) -> None:
        for name in ("ngram", "stride", "min_words"):
            if getattr(self, name) < 1:
                raise ParameterError(f"`{name}` must be at least 1, got {getattr(self, name)}")
        if not 0 < self.threshold <= 1:
            raise ParameterError(f"`threshold` must be a share above 0 and up to 1, got {self.threshold}")
        if not 0 <= self.max_removed <= 1:
            raise ParameterError(f"`max_removed` must be a share from 0 to 1, got {self.max_removed}")

    def disk_bytes(self, num_rows: int, num_bytes: int) -> int:
        """Disk space that a run takes, for words of 6 bytes."""
        return num_rows * 40 + num_bytes // 6 // self.stride * 48

    def observe(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        data, offsets = text_buffers(batch[self.column], self.column)
        firsts, starts, stops = units.find_units(data, offsets, self.unit, 1)
        ngrams, counts = self._ngrams(data, starts, stops)
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])[firsts]
        return address_facts(batch) | {
            "high": pa.LargeListArray.from_arrays(pa.array(ends), pa.array(ngrams[:, 0])),
            "low": pa.LargeListArray.from_arrays(pa.array(ends), pa.array(ngrams[:, 1])),
            "count": pa.LargeListArray.from_arrays(pa.array(firsts), pa.array(counts.astype(np.uint32))),
            **units.size_facts(data, offsets, firsts, starts, stops),
        }

    def _ngrams(self, data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(uint64[n-grams, 2]: their digests, number of n-grams of each paragraph)"""
        firsts, none = np.zeros(len(starts) + 1, np.int64), np.zeros(0, np.int64)
        count = kernel.find_words(data, starts, stops, firsts, none, none)
        begins, ends = np.zeros(max(1, count), np.int64), np.zeros(max(1, count), np.int64)
        kernel.find_words(data, starts, stops, firsts, begins, ends)
        if self.ignore_case:
            lowered = np.empty(len(data), np.uint8)
            kernel.lower_ascii(data, lowered)
            data = lowered
        words = digest_spans(data, begins[:count], ends[:count], Normalization())
        sizes = np.diff(firsts)
        found, first = digest_rows_of(words, firsts, self.ngram)
        wholes, whole_first = digest_wholes(words, firsts, (sizes >= self.min_words) & (sizes < self.ngram))
        compared = (sizes >= self.min_words) & (sizes >= self.ngram)
        at = np.arange(len(found)) - np.repeat(first[:-1], np.diff(first))
        chosen = (at % self.stride == 0) & np.repeat(compared, np.diff(first))
        owner = np.repeat(np.arange(len(starts)), np.diff(first))[chosen]
        both = np.concatenate([owner, whole_first])
        order = np.argsort(both, kind="stable")
        return np.concatenate([found[chosen], wholes])[order], np.bincount(both, minlength=len(starts))

    def resolve(self, observed: Observations, decide: Decide, work: Work) -> None:
        rows = RowNumbers(observed)
        retry_with_less_memory(lambda call_bytes: resolve(self, rows, decide, work, call_bytes), work.worker_bytes)

    def rewrite(self, batch: Batch, payload: Column) -> Mapping[str, Column | np.ndarray]:
        return {self.column: units.without_units(batch[self.column], self.column, payload, self.unit, 1)}


def digest_wholes(each: np.ndarray, firsts: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(digest of all digests of each chosen row together, number of the row)"""
    rows = np.flatnonzero(chosen)
    out = np.zeros((len(rows), 2), np.uint64)
    if len(rows):
        raw = np.ascontiguousarray(each).view(np.uint8).reshape(-1)
        digests.digest_spans(raw, 16 * firsts[rows], 16 * firsts[rows + 1], 4, out)
    return out, rows


def resolve(step: ParagraphDedup, rows: RowNumbers, decide: Decide, work: Work, call_bytes: int) -> None:
    """Find n-grams that occur before, and cut paragraphs with enough of them."""
    shuffled = units.shuffle_all(work, rows, "n-grams", "deduplication of paragraphs", call_bytes, copies=1)
    total, num_buckets = shuffled.total, shuffled.num_buckets
    per_row = max(1, total // max(1, rows.total)) * units.RECORD_BYTES * 3
    all_blocks = Blocks.of(rows, None, call_bytes)
    block_rows = max(1, min(all_blocks.block_rows, call_bytes // per_row))
    blocks = Blocks(rows, None, block_rows, all_blocks.max_groups)
    division = f"{num_buckets}, {blocks.division}"
    seen = NumberedFiles(work.exchange.sub("seen"), f"{division}-", num_buckets)
    run_in_workers(
        work,
        f"seen, {division}",
        find_seen,
        [(blocks, shuffled.files, bucket, num_buckets, blob, call_bytes) for bucket, blob in enumerate(seen)],
    )
    cuts = NumberedFiles(work.exchange.sub("cuts"), f"{division}-", blocks.num_blocks)
    run_in_workers(
        work,
        f"paragraphs, {division}",
        choose_paragraphs,
        [(blocks, seen, step.threshold, block, blob) for block, blob in enumerate(cuts)],
    )
    reason = (
        f"more than {step.max_removed:.0%} repeated {step.unit}s" if step.max_removed < 1 else "nothing but repeats"
    )
    decisions = Decisions(blocks, decide, cuts, work.exchange, reason, max_removed=step.max_removed)
    decided = decisions.run(work, str(num_buckets), units.decide_units)
    summary: dict[str, Any] = {"step": step.name, "unit": step.unit, "rows": rows.total, "ngrams": total}
    publish(work, summary | {"share": step.threshold} | units.sums_of(decided), {})


# --------------------------------------------------------------------------------------------------- calls in the workers


@handles_shortage
def find_seen(
    blocks: Blocks, shuffled: NumberedFiles, bucket: int, num_buckets: int, blob: Blob, call_bytes: int
) -> int:
    """Write the n-grams of a range of digests that occur before, with the row of the first occurrence; returns how many."""
    max_rows = call_bytes * 5 // 4 // units.SORTING_BYTES
    count = 0
    with ShuffleWriter(blob, blocks.num_blocks, _SEEN) as writer:
        read = functools.partial(read_digests, blocks, shuffled, bucket, num_buckets, ("unit",))
        for found in EqualDigests(blocks.rows.total).find(lambda: pieces(read(), max_rows)):
            table = pa.table({name: found[name] for name in _SEEN.names})
            writer.write(table, blocks.block_of(found["row"]))
            count += len(found["row"])
    return count


@handles_shortage
def choose_paragraphs(blocks: Blocks, seen: NumberedFiles, threshold: float, block: int, blob: Blob) -> int:
    """Write the paragraphs of a block with enough n-grams that occur before; returns how many.

    The survivor is the first row that has the first of these n-grams.
    """
    with PairWriter(blob, blocks) as writer:
        found = read_whole_bucket(seen, block, blocks.num_blocks)
        if found is None:
            return 0
        found = found.sort_by([("row", "ascending"), ("unit", "ascending")])
        facts, first = blocks.facts(block), int(blocks.starts[block])
        counts = contiguous(facts.column("count"))
        offsets, counts = units.offsets_of(counts), as_numpy(counts.flatten()).astype(np.int64)
        ends = np.cumsum(counts)
        local = as_numpy(found.column("row")) - first
        begins = np.concatenate([np.zeros(1, np.int64), ends])[offsets[local]]
        paragraph = np.searchsorted(ends, begins + as_numpy(found.column("unit")), side="right")
        numbers, at, repeats = np.unique(paragraph, return_index=True, return_counts=True)
        share = repeats / counts[numbers]
        cut = share >= threshold
        rows = local[at[cut]]
        writer.write(
            {
                "row": rows + first,
                "survivor": as_numpy(found.column("survivor"))[at[cut]],
                "unit": (numbers[cut] - offsets[rows]).astype(np.int32),
                "similarity": share[cut].astype(np.float32),
            }
        )
    release_pages()
    return int(cut.sum())
