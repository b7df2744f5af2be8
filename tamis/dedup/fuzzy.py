"""Near-duplicates by MinHash: bands propose candidates, a comparison of n-grams decides.

observe   band keys of each row, and its n-grams, whole or packed
resolve   find candidates by band keys, compare them, and choose which to keep (`candidates`, `decisions`)
apply     filter out the duplicates
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tamis.batch import Batch, Column
from tamis.context import Context
from tamis.dedup import candidates, components
from tamis.dedup.candidates import Comparison, Verify
from tamis.dedup.decisions import Blocks, Decisions, check_disk, index_parts_of, publish
from tamis.dedup.exact import summary_of
from tamis.dedup.index import Index, write_part
from tamis.dedup.indexed import IndexedDedup
from tamis.dedup.joining import Components, join_components
from tamis.dedup.keep import Keep, KeepPolicy
from tamis.dedup.rows import RowNumbers, address_facts, address_facts_of
from tamis.dedup.shuffle import (
    RESOLVING_BYTES,
    NumberedFiles,
    bucket_count,
    chunk_rows,
    column_to_matrix,
    matrix_to_column,
    run_in_workers,
)
from tamis.dedup.texts import text_buffers
from tamis.errors import ParameterError
from tamis.exchange import Exchange
from tamis.gathering import DETAILS
from tamis.kernels import minhash, minhash_gpu, sets
from tamis.kernels.digests import digest_spans
from tamis.kernels.minhash_gpu import Signed
from tamis.kernels.unicode_tables import KINDS, POINTS
from tamis.mapped import SPILL
from tamis.models.devices import choose, open_cupy
from tamis.operators import Decide, Resources, Work, operator

CANDIDATES = "candidates"

GPU_BATCH_BYTES = 64_000_000
"""Texts that are sent to a GPU at a time."""
WORKERS_PER_GPU = 3
"""One of them hashes some gigabytes per second, of which it spends most of the time copying texts and writing facts."""
GPU_FIXED_BYTES = 500_000_000
"""Memory on the GPU that does not depend on the batch."""

SETTINGS: dict[str, tuple[str, int, int, int, bool]] = {
    "fineweb": ("word", 5, 14, 8, True),  # Penedo et al. 2024, section 3.4
    "dolma3": ("word", 5, 26, 11, True),  # Olmo 3 technical report, web data
    "nemo": ("character", 24, 20, 13, False),  # NeMo Curator's defaults
}
"""(unit, n, bands, hashes per band, whether the text is normalised) by name"""


@operator(reads="text")
class FuzzyDedup(IndexedDedup):
    """Keep one document of each group of near-duplicates.

    Two documents become candidates if they share a band of MinHash values; at a similarity of 0.8 that happens with
    probability 0.92. `settings` chooses n-grams and bands: `"fineweb"` word 5-grams, 14 bands of 8 hashes; `"dolma3"` word
    5-grams, 26 of 11; `"nemo"` 24 characters, 20 of 13. Override them with `num_bands` and `hashes_per_band`, or with
    `num_hashes`, which are split into the bands that suit `threshold` best.

    Candidates, and candidates of candidates, form a component. Within it, documents are visited in the order of the keep
    policy. A document is dropped if its similarity to a document already kept reaches `threshold`. It is compared with up to
    256 kept documents that share a band with it; if none is similar enough, with up to 64 others of its component, in order.
    `verify` chooses the comparison: `"jaccard"` of the true n-gram sets; `"signature"` of packed sets, which take a quarter
    of the disk space and have a standard deviation of 0.001 (at a similarity of 0.8 and 1000 words; with a hundred words,
    one pair in thirty is off by one n-gram); `"none"` drops all but one document of a component without a comparison, as
    other tools do.

    Words are runs of characters without spaces, and single letters in scripts that do not separate words. Before hashing,
    `lowercase` folds case, `strip_accents` removes accents (Latin, Greek, Cyrillic), `fold_digits` replaces each number by 0
    and `strip_punctuation` replaces punctuation by spaces; all are on for `"fineweb"` and `"dolma3"`, off for `"nemo"`. A
    document of fewer than n words is dropped only if another has exactly the same words. One without words is kept.

    `keep`, `by`, `prefer`, `prefer_column`, `across_sources`, `against`, `update` and `storage_options` are as in
    `ExactDedup`. `reuse` names the output of an earlier run over the same input, whose hashes are reused; only `threshold`
    may differ.

    Hashes are the same on CPU and GPU. `device="auto"` uses a GPU, if there is one, for character n-grams from 200 MB of
    input on, and for words from 1 GB on if there are fewer than twelve cores per GPU, which are about as fast.

    Costs 330 bytes of disk space per document and 4 bytes per word (signature: 1 byte per word), half as much again for
    candidates, and memory within the budget. Broder 1997; Leskovec, Rajaraman and Ullman, chapter 3.

    `count_column` names a column with the number of rows that each kept row stands for: itself, and those dropped for it.

    >>> from tamis import Pipeline, Rows
    >>> text = "an article of about twenty words that two sites publish in very nearly the same form on one day"
    >>> rows = [{"text": text}, {"text": text.upper() + "!"}, {"text": "something else entirely"}]
    >>> Pipeline(Rows(rows), FuzzyDedup()).run().kept
    2
    """

    column: str = "text"
    settings: Literal["fineweb", "dolma3", "nemo"] = "fineweb"
    threshold: float = 0.8
    verify: Verify = "jaccard"
    unit: Literal["word", "character"] | None = None
    ngram: int | None = None
    num_bands: int | None = None
    hashes_per_band: int | None = None
    num_hashes: int | None = None
    lowercase: bool | None = None
    strip_accents: bool | None = None
    fold_digits: bool | None = None
    strip_punctuation: bool | None = None
    keep: Keep = "first"
    by: str | None = None
    prefer: Sequence[str] | None = None
    prefer_column: str | None = None
    across_sources: bool = False
    against: str | None = None
    update: bool = False
    reuse: str | None = None
    storage_options: Mapping[str, Any] | None = None
    seed: int = 1
    count_column: str | None = None
    device: Literal["auto", "cpu", "gpu"] = "auto"

    version = 4
    incidental = frozenset({"device", "storage_options"})
    path_parameters = frozenset({"against", "reuse"})
    index_kind = "fuzzy"

    def check(self) -> None:
        self._policy.check()
        if not 0 < self.threshold <= 1:
            raise ParameterError(f"`threshold` must be above 0 and at most 1, got {self.threshold}")
        limits = {"ngram": 64, "num_bands": 1000, "hashes_per_band": 1000, "num_hashes": 10_000}
        for name, largest in limits.items():
            value = getattr(self, name)
            if value is not None and not 1 <= value <= largest:
                raise ParameterError(f"`{name}` must be from 1 to {largest}, got {value}")
        if self.num_hashes is not None and (self.num_bands is not None or self.hashes_per_band is not None):
            raise ParameterError(
                "`num_hashes` cannot be combined with `num_bands` or `hashes_per_band`",
                hint="give either num_hashes, which is split into bands, or num_bands and hashes_per_band",
            )
        choose(self.device, "cupy")
        self.check_index()
        if self.reuse is not None:
            if self.update:
                raise ParameterError("`reuse` cannot be combined with `update`", hint="leave out one of them")
            self._earlier_run()

    # ---------------------------------------------------------------------------------------------------------- parameters

    @property
    def _unit(self) -> str:
        return self.unit or SETTINGS[self.settings][0]

    @property
    def _ngram(self) -> int:
        return self.ngram or SETTINGS[self.settings][1]

    @property
    def bands(self) -> tuple[int, int]:
        """(bands, hashes per band)"""
        if self.num_hashes is not None:
            return best_split(self.threshold, self.num_hashes)
        _, _, bands, hashes, _ = SETTINGS[self.settings]
        return self.num_bands or bands, self.hashes_per_band or hashes

    @property
    def _options(self) -> int:
        options = {
            minhash.LOWERCASE: self.lowercase,
            minhash.STRIP_ACCENTS: self.strip_accents,
            minhash.FOLD_DIGITS: self.fold_digits,
            minhash.STRIP_PUNCTUATION: self.strip_punctuation,
        }
        default = SETTINGS[self.settings][4]
        return sum(flag for flag, wanted in options.items() if (default if wanted is None else wanted))

    @property
    def resources(self) -> Resources:
        batch_bytes = self.batch_bytes
        if batch_bytes is None:
            return Resources(memory=RESOLVING_BYTES)
        # While one process reads packets and writes facts, another one can use the GPU.
        return Resources(
            memory=RESOLVING_BYTES,
            gpus=1 / WORKERS_PER_GPU,
            gpu_memory=GPU_FIXED_BYTES + batch_bytes * (160 if self._unit == "character" else 40),
        )

    @property
    def worth_gpu_bytes(self) -> int:
        """What cores hash in the time that it takes to open a GPU."""
        return 200_000_000 if self._unit == "character" else 1_000_000_000

    @property
    def cores_like_a_gpu(self) -> int | None:
        """Many cores hash words as fast as a GPU can be fed."""
        return None if self._unit == "character" else 12

    @property
    def batch_bytes(self) -> int | None:
        """Large batches, if they are hashed on a GPU."""
        if self.reuse is not None or choose(self.device, "cupy") == "cpu":
            return None
        return GPU_BATCH_BYTES

    @property
    def _policy(self) -> KeepPolicy:
        return KeepPolicy(self.keep, self.by, self.prefer, self.prefer_column, self.across_sources)

    @property
    def _comparison(self) -> Comparison:
        return Comparison(self.verify, self.threshold, self.bands[0], self.keep == "none", self.across_sources)

    @property
    def _keep_settings(self) -> list[Any]:
        """The parameters of the keep policy, as read back from JSON."""
        prefer = list(self.prefer) if self.prefer is not None else None
        return [self.keep, self.by, prefer, self.prefer_column, self.across_sources]

    def hashing(self) -> dict[str, Any]:
        """Everything that keys and n-grams depend on. An index and a reused run must have the same."""
        bands, hashes = self.bands
        return {
            "column": self.column,
            "unit": self._unit,
            "ngram": self._ngram,
            "bands": bands,
            "hashes_per_band": hashes,
            "normalisation": self._options,
            "seed": self.seed,
            "verify": "jaccard" if self.verify == "jaccard" else "signature",
            "packed": 0 if self.verify == "jaccard" else 2**sets.SPARE_BITS,
        }

    def probability(self, similarity: float) -> float:
        """The probability that two documents of this similarity share a band.

        >>> round(FuzzyDedup().probability(0.8), 2)
        0.92
        """
        bands, hashes = self.bands
        return 1 - (1 - similarity**hashes) ** bands

    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(["text", *self._policy.columns()]))

    def writes(self) -> tuple[str, ...]:
        return () if self.count_column is None else (self.count_column,)

    def rewrite(self, batch: Batch, payload: Column) -> Mapping[str, Column | np.ndarray]:
        assert self.count_column is not None
        return {self.count_column: payload}

    def disk_bytes(self, num_rows: int, num_bytes: int) -> int:
        """Disk space that a run takes, if a third of the rows are candidates."""
        bands, _ = self.bands
        ngrams = num_bytes if self._unit == "character" else num_bytes // 6
        compared = 4 * ngrams if self.verify == "jaccard" else ngrams + 8 * num_rows
        facts = num_rows * (8 * bands + 32) + compared
        return facts + num_rows * bands * 12 + (facts + num_rows * 40) // 3

    def index_settings(self) -> dict[str, Any]:
        return self.hashing()

    # ------------------------------------------------------------------------------------------------------------- observe

    def open(self, context: Context) -> Any:
        return _Observer(self, context)

    def facts(self, batch: Batch, *, on_gpu: bool = False) -> Mapping[str, Column | np.ndarray]:
        """What `resolve` needs to know about each row."""
        data, offsets = text_buffers(batch["text"], self.column)
        signed = self.signed(data, offsets, on_gpu=on_gpu) if self.reuse is None else None
        content = signed.content if signed is not None else digests_of(data, offsets)
        facts: dict[str, Column | np.ndarray] = {**address_facts(batch), "content": content}
        if signed is None:
            return facts
        rows, spans = len(batch), signed.spans
        facts |= {"count": signed.counts, "keys": matrix_to_column(signed.keys)}
        if self.verify == "jaccard":
            facts["shingles"] = pa.LargeListArray.from_arrays(pa.array(spans), pa.array(signed.compared))
        else:
            buffers = [None, pa.py_buffer(spans), pa.py_buffer(signed.compared)]
            facts["signature"] = pa.LargeBinaryArray.from_buffers(pa.large_binary(), rows, buffers)
        return facts | self._policy.facts(batch, np.diff(offsets))

    def signed(self, data: np.ndarray, offsets: np.ndarray, *, on_gpu: bool = False) -> Signed:
        """Digests, band keys and n-grams of texts; the same on both devices."""
        bands, hashes = self.bands
        rows, characters, packed = len(offsets) - 1, self._unit == "character", self.verify != "jaccard"
        factors = minhash.multipliers(bands * hashes, self.seed)
        if on_gpu:
            signed = minhash_gpu.sign(
                data,
                offsets,
                by_characters=characters,
                n=self._ngram,
                options=self._options,
                factors=factors,
                num_bands=bands,
                packed=packed,
            )
            if signed is not None:
                return signed
        counts, keys = np.zeros(rows, np.int64), np.empty((rows, bands), np.uint64)
        arguments = (
            data, offsets, characters, self._ngram, self._options, *minhash.folding_tables(self._options), POINTS, KINDS,
            factors, bands, counts, keys,
        )  # fmt: skip
        if packed:
            compared, spans = minhash.sign_packed(*arguments)
        else:
            compared, spans = minhash.ngram_buffers(offsets, characters)
            minhash.sign(*arguments, compared, spans)
            compared = compared[: spans[-1]]
        return Signed(digests_of(data, offsets), counts, keys, compared, spans)

    # ------------------------------------------------------------------------------------------------------------- resolve

    def index_for(self, work: Work, own: str) -> Index | None:
        return super().index_for(work, own) if self.reuse is None else None  # that of the earlier run

    def resolve_rows(
        self, rows: RowNumbers, decide: Decide, work: Work, index: Index | None, call_bytes: int
    ) -> Exchange | None:
        summary: dict[str, Any] = {}
        if self.reuse is None:
            collected, num_buckets = self._candidates(rows, work, index, summary, call_bytes)
        else:
            index, collected, num_buckets = self._reused(rows, work, summary)
        blocks = Blocks.of(rows, index, call_bytes)
        pairs = NumberedFiles(work.exchange.sub("pairs"), f"{num_buckets}, {blocks.division}-", num_buckets)
        compared = run_in_workers(
            work,
            f"comparisons, {num_buckets}, {blocks.division}",
            candidates.verify,
            [
                (blocks, collected, bucket, num_buckets, self._comparison, blob, call_bytes)
                for bucket, blob in enumerate(pairs)
            ],
        )
        index_parts = index_parts_of(self.update, work, blocks)
        decisions = Decisions(
            blocks,
            decide,
            pairs,
            work.exchange,
            reason="near-duplicate",
            short_reason=f"exact duplicate, too short for {self._ngram}-grams",
            index_reason=f"in the index {self.against}",
            index_parts=index_parts,
            write_entries=write_signature_part,
            counted=self.count_column is not None,
        )
        decided = decisions.run(work, str(num_buckets))
        summary |= summary_of(self.name, rows, compared, decided)
        summary |= {"largest_component": max((part["largest_component"] for part in compared), default=0)}
        summary |= {"threshold": self.threshold, "verify": self.verify}
        summary |= {"hashing": self.hashing(), "keep": self._keep_settings}
        summary |= {"buckets": num_buckets, "index": [index.path, index.generations] if index else None}
        publish(work, summary, {CANDIDATES: collected})
        return index_parts

    def _candidates(
        self, rows: RowNumbers, work: Work, index: Index | None, summary: dict[str, Any], call_bytes: int
    ) -> tuple[NumberedFiles, int]:
        """(files of candidates by component, number of buckets)"""
        bands, _ = self.bands
        check_disk(work, rows.total * bands * 12, "looking for near-duplicates")
        found = self._joined_on_gpu(rows, work) if index is None else None
        if found is None:
            found = self._joined(rows, work, index, call_bytes)
        label, joined_rows, joined = found
        summary |= joined
        comparison = self._comparison
        ngrams = summary["shingles"] // max(1, summary["texts"])
        per_row = comparison.row_bytes + 8 * ngrams
        num_buckets = bucket_count(summary["candidates"] * per_row * 2, call_bytes)
        on_disk = comparison.row_bytes + ngrams * (4 if self.verify == "jaccard" else 1)
        check_disk(work, summary["candidates"] * on_disk, "comparing near-duplicates")
        chunk = chunk_rows(4 * per_row, call_bytes, min_rows=100)
        part_of = work.exchange.sub(f"candidates-{label}-{num_buckets}")
        collected = NumberedFiles(part_of, "part-", rows.num_partitions)
        run_in_workers(
            work,
            f"candidates, {label}, {num_buckets}",
            candidates.collect,
            [(rows, part, joined_rows, num_buckets, blob, chunk, comparison) for part, blob in enumerate(collected)],
        )
        if index is not None:
            from_index = NumberedFiles(part_of, "part-index-", len(index.parts))
            run_in_workers(
                work,
                f"candidates of the index, {label}, {num_buckets}",
                candidates.collect_index,
                [
                    (index, part, rows.total, joined_rows, num_buckets, blob, comparison)
                    for part, blob in enumerate(from_index)
                ],
            )
            collected = replace(collected, more=tuple(blob.name for blob in from_index))
        return collected, num_buckets

    def _joined(
        self, rows: RowNumbers, work: Work, index: Index | None, call_bytes: int
    ) -> tuple[str, Components, dict[str, int]]:
        """(how the keys were divided, components, for the summary)"""
        bands, _ = self.bands
        known = rows.total + (index.total if index else 0)
        num_ranges = bucket_count(known * bands * candidates.KEY_BYTES, call_bytes)
        shuffled = NumberedFiles(work.exchange.sub("bands"), f"{num_ranges}-", rows.num_partitions)
        chunk = chunk_rows(bands * 32, call_bytes)
        totals = run_in_workers(
            work,
            f"bands by range, {num_ranges}",
            candidates.shuffle_bands,
            [(rows, part, num_ranges, blob, chunk) for part, blob in enumerate(shuffled)],
        )
        edges = NumberedFiles(work.exchange.sub("edges"), f"{num_ranges}-", num_ranges)
        pairs = run_in_workers(
            work,
            f"candidate pairs, {num_ranges}",
            candidates.candidate_pairs,
            [(rows, shuffled, bucket, num_ranges, index, blob, call_bytes) for bucket, blob in enumerate(edges)],
        )
        found, joined = join_components(work, str(num_ranges), known, edges, call_bytes)
        for part in shuffled:
            part.delete()
        summary = {name: sum(each[name] for each in totals) for name in candidates.NO_TOTALS}
        summary["content"] %= 2**64
        return str(num_ranges), found, summary | {"candidate_pairs": sum(pairs), **joined}

    def _joined_on_gpu(self, rows: RowNumbers, work: Work) -> tuple[str, Components, dict[str, int]] | None:
        """The same on a GPU; None if it is not worth it or does not fit."""
        if rows.total < components.WORTH_A_GPU or choose(self.device, "cupy") == "cpu":
            return None
        bands, _ = self.bands
        found = Components.in_one_file(work.exchange, "components-gpu-", rows.total)
        chunk = chunk_rows(bands * 32, work.worker_bytes)
        (joined,) = run_in_workers(
            work, "components on a GPU", components.join_on_gpu, [(rows, bands, found.files[0], chunk)], on_gpu=True
        )
        return ("gpu", found, joined) if joined is not None else None

    # --------------------------------------------------------------------------------------------------------------- reuse

    def _earlier_run(self) -> tuple[Path, dict[str, Any]]:
        """(folder, summary) of the run named by `reuse`; raises if its hashes cannot be reused."""
        wanted = {"hashing": self.hashing(), "verify": self.verify, "keep": self._keep_settings}
        mismatch: str | None = None
        for file in sorted((Path(str(self.reuse)) / ".tamis" / DETAILS).glob("*/summary.json")):
            summary = json.loads(file.read_text())
            if summary["step"] != self.name:
                continue
            differing = [name for name, value in wanted.items() if summary.get(name) != value]
            if not differing:
                return file.parent, summary
            name = differing[0]
            mismatch = f"{self.reuse} was made with {name} {summary.get(name)}, but this step has {wanted[name]}"
        if mismatch is not None:
            raise ParameterError(mismatch, hint="with `reuse`, only `threshold` may differ")
        raise ParameterError(
            f"{self.reuse} is not the output of a fuzzy deduplication", hint="reuse= names the output of an earlier run"
        )

    def _reused(self, rows: RowNumbers, work: Work, summary: dict[str, Any]) -> tuple[Index | None, NumberedFiles, int]:
        folder, earlier = self._earlier_run()
        if earlier["rows"] != rows.total:
            raise ParameterError(
                f"{self.reuse} was made from {earlier['rows']:,} rows, but the input has {rows.total:,}",
                hint="`reuse` needs the same input",
            )
        sums = run_in_workers(
            work, "content", candidates.sum_content, [(rows, part) for part in range(rows.num_partitions)]
        )
        if earlier["content"] != sum(sums) % 2**64:
            raise ParameterError(f"{self.reuse} was made from different texts", hint="`reuse` needs the same input")
        names = ("texts", "short", "shingles", "content", "candidate_pairs", "candidates", "components")
        summary |= {name: earlier[name] for name in names} | {"reused": str(self.reuse)}
        index = Index(earlier["index"][0], tuple(earlier["index"][1])) if earlier["index"] else None
        index = index.for_work(work.exchange, self.storage_options) if index is not None else None
        found = work.exchange.reachable(folder / CANDIDATES, CANDIDATES)
        files = tuple(name for name in found.names() if name.endswith(SPILL))
        return index, NumberedFiles(found, "part-", 0, files), int(earlier["buckets"])


class _Observer:
    """Observes rows, on a GPU if the worker has one."""

    def __init__(self, step: FuzzyDedup, context: Context) -> None:
        self._step = step
        self._on_gpu = context.device != "cpu" and step.batch_bytes is not None
        if self._on_gpu:
            open_cupy(context)
            data, offsets = text_buffers(pa.array(["a text of more than five words", ""]), step.column)
            step.signed(data, offsets, on_gpu=True)  # loads the kernels

    def observe(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        return self._step.facts(batch, on_gpu=self._on_gpu)

    def rewrite(self, batch: Batch, payload: Column) -> Mapping[str, Column | np.ndarray]:
        return self._step.rewrite(batch, payload)

    def close(self) -> None:
        if self._on_gpu:
            minhash_gpu.release()


def digests_of(data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """uint64[rows]: half a digest of each text."""
    content = np.empty((len(offsets) - 1, 2), np.uint64)
    digest_spans(data, offsets[:-1], offsets[1:], 0, content)
    return content[:, 0]


def write_signature_part(facts: pa.Table, local: np.ndarray, parts: Exchange, block: int) -> None:
    """Write the kept rows of a block, with keys and n-grams, to a part of an index."""
    local = local[facts.column("count").to_numpy()[local] != 0]
    if not len(local):
        return
    names = [name for name in ("count", "keys", "signature", "shingles") if name in facts.column_names]
    chosen = facts.select(names).take(pa.array(local))
    entries = pa.table({**address_facts_of(facts, local), **{name: chosen.column(name) for name in names}})
    write_part(parts, block, entries, column_to_matrix(chosen.column("keys"), np.uint64), {})


def best_split(threshold: float, num_hashes: int) -> tuple[int, int]:
    """(bands, hashes per band), at most `num_hashes` in total, that separate pairs at the threshold best.

    Minimises the area of candidates below the threshold plus the area of missed pairs above it (Zhu et al. 2016, LSH
    Ensemble, section 5).

    >>> best_split(0.8, 112)
    (9, 12)
    """
    grid = (np.arange(1000) + 0.5) / 1000
    below = grid < threshold
    best, least = (1, num_hashes), math.inf
    for hashes in range(1, num_hashes + 1):
        for bands in range(1, num_hashes // hashes + 1):
            probability = 1 - (1 - grid**hashes) ** bands
            error = float(probability[below].sum() + (1 - probability)[~below].sum())
            if error < least - 1e-12:
                best, least = (bands, hashes), error
    return best
