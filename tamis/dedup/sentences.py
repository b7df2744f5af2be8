"""Repeated spans of sentences: three in a row that occur before are cut, as in C4 and in datatrove.

observe   a digest of each span of consecutive sentences, and the number of words of each sentence
resolve   sort the digests by range, and find the spans that repeat an earlier one
apply     cut the sentences of these spans out of the texts, and drop texts that become too short
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tamis.batch import Batch, Column, contiguous
from tamis.dedup import units
from tamis.dedup.decisions import Blocks, Decisions, GroupWriter, publish, read_pairs
from tamis.dedup.rows import RowNumbers, address_facts
from tamis.dedup.shuffle import (
    RESOLVING_BYTES,
    as_numpy,
    handles_shortage,
    retry_with_less_memory,
)
from tamis.dedup.texts import Normalization, digest_spans, text_buffers
from tamis.errors import ParameterError
from tamis.gathering import GROUPS
from tamis.kernels import digests
from tamis.kernels import sentence_spans as kernel
from tamis.mapped import release_pages
from tamis.operators import Decide, Observations, Resources, Work, operator

_SPAN_SEED = 3
_NUMBER = re.compile("\\d+(?:[.,\u060c\u066b]\\d+)?")


@operator(reads="text", resources=Resources(memory=RESOLVING_BYTES))
class SentenceDedup(units.CutsText):
    """Cut every span of `num_sentences` consecutive sentences that occurs before, in the same text or another one.

    The first occurrence in source order is kept. A text that lost sentences is dropped if fewer than `min_words` words or
    `min_sentences` sentences are left. Defaults: spans of 3 (C4, Raffel et al. 2020), 50 words and 3 sentences (datatrove). A
    dropped text may have had the first occurrence of a span; `SubstringDedup` keeps one copy.

    Sentences end with . ! ? (and those of other scripts) before white space, and with the line; with `unit="line"`, only with
    the line. With `simplify`, case, punctuation, accents and the digits of numbers are ignored, as in datatrove. Words are
    separated by white space; characters of Chinese and Japanese count as words.

    Compares 128-bit digests. Costs about 100 bytes of disk space per sentence, and memory within the budget. `tamis dedup
    explain` shows where each span occurs first.

    >>> from tamis import Pipeline, Rows
    >>> rows = [{"text": "One. Two. Three. Four."}, {"text": "Zero. One. Two. Three. Five."}]
    >>> step = SentenceDedup(min_words=0, min_sentences=0)
    >>> Pipeline(Rows(rows), step).collect()["text"].to_pylist()
    ['One. Two. Three. Four.', 'Zero. Five.']
    """

    column: str = "text"
    num_sentences: int = 3
    unit: Literal["sentence", "line"] = "sentence"
    simplify: bool = True
    min_words: int = 50
    min_sentences: int = 3

    def check(self) -> None:
        if self.num_sentences < 1:
            raise ParameterError(f"`num_sentences` must be at least 1, got {self.num_sentences}")

    def disk_bytes(self, num_rows: int, num_bytes: int) -> int:
        """Disk space that a run takes, for sentences of 100 bytes."""
        return num_rows * 40 + num_bytes // 100 * 100

    def observe(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        data, offsets = text_buffers(batch[self.column], self.column)
        firsts, starts, stops = find_sentences(data, offsets, self.unit == "line")
        each = digest_sentences(data, starts, stops, self.simplify)
        spans, span_firsts = digest_rows_of(each, firsts, self.num_sentences)
        words = np.empty(len(starts), np.uint32)
        kernel.count_words(data, starts, stops, words)
        return address_facts(batch) | {
            "high": pa.LargeListArray.from_arrays(pa.array(span_firsts), pa.array(spans[:, 0])),
            "low": pa.LargeListArray.from_arrays(pa.array(span_firsts), pa.array(spans[:, 1])),
            "words": pa.LargeListArray.from_arrays(pa.array(firsts), pa.array(words)),
            **units.size_facts(data, offsets, firsts, starts, stops),
        }

    def resolve(self, observed: Observations, decide: Decide, work: Work) -> None:
        rows = RowNumbers(observed)
        retry_with_less_memory(lambda call_bytes: resolve(self, rows, decide, work, call_bytes), work.worker_bytes)

    def rewrite(self, batch: Batch, payload: Column) -> Mapping[str, Column | np.ndarray]:
        column = batch[self.column]
        return {self.column: without_sentences(column, self.column, payload, self.unit == "line")}


def find_sentences(data: np.ndarray, offsets: np.ndarray, lines: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(number of each row's first sentence, start of each sentence, end of each sentence)."""
    firsts = np.zeros(len(offsets), np.int64)
    room = int(offsets[-1] - offsets[0]) // 32 + len(offsets)
    while True:
        starts, stops = np.empty(room, np.int64), np.empty(room, np.int64)
        count = kernel.find_sentences(data, offsets, lines, firsts, starts, stops)
        if count <= room:
            return firsts, starts[:count], stops[:count]
        room = count


def digest_sentences(data: np.ndarray, starts: np.ndarray, stops: np.ndarray, simplify: bool) -> np.ndarray:
    """uint64[sentences, 2]: the digest of each sentence; 0 if nothing is left of it."""
    if not simplify or not len(starts):
        return digest_spans(data, starts, stops, Normalization())
    sizes = stops - starts
    plain, spans = np.empty(int(sizes.sum()), np.uint8), np.empty(len(starts) + 1, np.int64)
    is_ascii = np.empty(len(starts), np.bool_)
    kernel.ascii_spans(data, starts, stops, is_ascii)
    kernel.simplify_ascii(data, starts, stops, is_ascii, plain, spans)
    out = digest_spans(plain, spans[:-1], spans[1:], Normalization())
    out[spans[1:] == spans[:-1]] = 0
    others = np.flatnonzero(~is_ascii)
    if len(others):
        texts = [simplified(data[starts[i] : stops[i]].tobytes().decode("utf-8", "replace")).encode() for i in others]
        ends = np.cumsum(np.array([len(text) for text in texts], np.int64))
        begins = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        found = digest_spans(np.frombuffer(b"".join(texts), np.uint8), begins, ends, Normalization())
        found[ends == begins] = 0
        out[others] = found
    return out


def simplified(text: str) -> str:
    """The text in lower case, without accents and punctuation, and with 0 for each number."""
    text = unicodedata.normalize("NFD", _NUMBER.sub("0", text.lower()))
    kinds = ((char, unicodedata.category(char)[0]) for char in text if unicodedata.category(char) != "Mn")
    return " ".join("".join(char if kind in "LNM" else " " for char, kind in kinds).split())


def digest_rows_of(each: np.ndarray, firsts: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """(digest of each sequence of `length` consecutive digests in a row, number of the first sequence of each row).

    The digest is 0 if all digests of the sequence are.
    """
    counts = np.maximum(0, np.diff(firsts) - length + 1)
    begins = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    at = np.arange(begins[-1]) - np.repeat(begins[:-1] - firsts[:-1], counts)
    out = np.zeros((len(at), 2), np.uint64)
    if len(at):
        raw = np.ascontiguousarray(each).view(np.uint8).reshape(-1)
        digests.digest_spans(raw, 16 * at, 16 * (at + length), _SPAN_SEED, out)
        blank = np.concatenate([np.zeros(1, np.int64), np.cumsum((each == 0).all(axis=1))])
        out[blank[at + length] - blank[at] == length] = 0
    return out, begins


def without_sentences(column: Column, name: str, payload: Column, lines: bool) -> Column:
    """The texts without the sentences whose numbers are in the payload, each with the white space before it."""
    data, offsets = text_buffers(column, name)
    firsts, starts, stops = find_sentences(data, offsets, lines)
    cuts = as_numpy(payload.flatten()).astype(np.int64) if len(payload) else np.empty(0, np.int64)
    buffer, spans = np.empty(int(offsets[-1] - offsets[0]), np.uint8), np.empty(len(offsets), np.int64)
    kernel.cut_sentences(data, offsets, firsts, starts, stops, units.offsets_of(payload), cuts, buffer, spans)
    return units.rebuilt(column, buffer, spans)


@dataclass(frozen=True)
class SentenceDecisions(Decisions):
    """Decides which sentences are cut, and which texts become too short."""

    num_sentences: int = 3
    min_words: int = 0
    min_sentences: int = 0


def resolve(step: SentenceDedup, rows: RowNumbers, decide: Decide, work: Work, call_bytes: int) -> None:
    """Find spans that repeat an earlier one, cut them, and drop rows that become too short."""
    shuffled = units.shuffle_all(work, rows, "spans", "deduplication of sentences", call_bytes)
    blocks = Blocks.of(rows, None, call_bytes)
    cuts = units.find_repeats(work, blocks, shuffled, call_bytes)
    decisions = SentenceDecisions(
        blocks,
        decide,
        cuts,
        work.exchange,
        reason="",
        num_sentences=step.num_sentences,
        min_words=step.min_words,
        min_sentences=step.min_sentences,
    )
    decided = decisions.run(work, shuffled.name, decide_sentences)
    summary: dict[str, Any] = {"step": step.name, "unit": step.unit, "rows": rows.total, "units": shuffled.total}
    publish(work, summary | units.sums_of(decided), {})


# --------------------------------------------------------------------------------------------------- calls in the workers


@handles_shortage
def decide_sentences(decisions: SentenceDecisions, partition: int) -> dict[str, int]:
    """Decide which sentences are cut out of the rows of a partition, and which rows are dropped."""
    reasons, payloads = [np.empty(0, np.int8)], [pa.array([], pa.list_(pa.int32()))]
    totals = {"cut": 0, "dropped": 0, "cut_bytes": 0, "cut_chars": 0, "rewritten": 0}
    with GroupWriter(decisions, GROUPS, partition) as groups:
        for block in decisions.blocks.blocks_of(partition):
            reason, payload = _decide_block(decisions, block, groups, totals)
            reasons.append(reason)
            payloads.append(payload)
            release_pages()
    reason = np.concatenate(reasons)
    texts = [
        None,
        f"fewer than {decisions.min_words} words left",
        f"fewer than {decisions.min_sentences} sentences left",
    ]
    texts.append("nothing but repeated sentences")
    named = pa.DictionaryArray.from_arrays(pa.array(reason), pa.array(texts, pa.string()))
    decisions.decide(partition, reason > 0, named, pa.concat_arrays(payloads))
    return totals


def _decide_block(
    decisions: SentenceDecisions, block: int, groups: GroupWriter, totals: dict[str, int]
) -> tuple[np.ndarray, pa.ListArray]:
    """(why each row of a block is dropped, 0 if it is not; numbers of the sentences that are cut out of the kept rows)"""
    facts, first = decisions.blocks.facts(block), int(decisions.blocks.starts[block])
    count = facts.num_rows
    reason = np.zeros(count, np.int8)
    found = read_pairs(decisions, block)
    if found is None:
        return reason, pa.array([[]] * count, pa.list_(pa.int32()))
    pairs, names = found
    offsets = units.offsets_of(contiguous(facts.column("words")))
    words = as_numpy(contiguous(facts.column("words")).flatten()).astype(np.int64)
    sizes = as_numpy(contiguous(facts.column("size")).flatten()).astype(np.int64)
    local, start = as_numpy(pairs.column("row")) - first, as_numpy(pairs.column("unit")).astype(np.int64)
    opened = np.zeros(len(words) + 1, np.int64)
    np.add.at(opened, offsets[local] + start, 1)
    np.add.at(opened, offsets[local] + start + decisions.num_sentences, -1)
    cut = np.cumsum(opened)[:-1] > 0
    owner = np.repeat(np.arange(count), np.diff(offsets))
    lost = np.bincount(owner, weights=cut, minlength=count).astype(np.int64)
    words_left = np.bincount(owner, weights=words * ~cut, minlength=count).astype(np.int64)
    changed, left = lost > 0, np.diff(offsets) - lost
    reason[changed & (left < decisions.min_sentences)] = 2
    reason[changed & (words_left < decisions.min_words)] = 1
    reason[changed & (left == 0)] = 3
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    span_bytes = ends[offsets[local] + start + decisions.num_sentences] - ends[offsets[local] + start]
    more = {"similarity": np.ones(len(local), np.float32), "bytes": span_bytes, "dropped": reason[local] > 0}
    groups.write(block, facts, pairs, names, more)
    chosen = np.flatnonzero(cut & (reason[owner] == 0))
    stops = np.cumsum(np.bincount(owner[chosen], minlength=count)).astype(np.int32)
    payload = pa.ListArray.from_arrays(
        pa.array(np.concatenate([np.zeros(1, np.int32), stops])),
        pa.array((chosen - offsets[owner[chosen]]).astype(np.int32)),
    )
    totals["cut"] += int(cut.sum())
    totals["cut_bytes"] += int(sizes[cut].sum())
    totals["cut_chars"] += int(as_numpy(contiguous(facts.column("chars")).flatten())[cut].sum(dtype=np.int64))
    totals["dropped"] += int((reason > 0).sum())
    totals["rewritten"] += int((changed & (reason == 0)).sum())
    return reason, payload
