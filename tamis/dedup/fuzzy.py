"""Near-duplicates by MinHash: banding proposes, a comparison decides.

observe   band keys per row, and what is needed to compare it (its n-grams, whole or packed)
resolve   `candidates`: rows that share a band key are compared; who stays is decided by the keep policy
apply     rows that go are filtered
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
from tamis.dedup import candidates
from tamis.dedup.candidates import Comparison, Verify
from tamis.dedup.exact import index_identity, summary_of
from tamis.dedup.index import Index, add_generation, own_generation, write_part
from tamis.dedup.keep import Keep, KeepPolicy
from tamis.dedup.rows import RowNumbers, address_facts, subset
from tamis.dedup.settle import DETAILS, Homes, Settling, check_disk, index_folder_of, publish
from tamis.dedup.shuffle import (
    RESOLVING_BYTES,
    Files,
    as_matrix,
    bucket_count,
    chunk_rows,
    from_matrix,
    in_workers,
    retry_with_less_memory,
)
from tamis.dedup.texts import text_buffers
from tamis.errors import ParameterError
from tamis.kernels import minhash, minhash_gpu, sets
from tamis.kernels.digests import digest_spans
from tamis.kernels.unicode_tables import KINDS, POINTS
from tamis.mapped import SPILL
from tamis.operators import Decide, Gather, Observations, Resources, Work, operator

CANDIDATES = "candidates"

SETTINGS: dict[str, tuple[str, int, int, int, bool]] = {
    "fineweb": ("word", 5, 14, 8, True),  # Penedo et al. 2024, section 3.4
    "dolma3": ("word", 5, 26, 11, True),  # Olmo 3 technical report, web data
    "nemo": ("character", 24, 20, 13, False),  # NeMo Curator's defaults
}
"""unit, n, bands, hashes per band, whether the text is normalised before"""


@operator(reads="text")
class FuzzyDedup(Gather):
    """Keep one document of each group of near-duplicates.

    Two documents whose word 5-gram sets overlap by 80 % become candidates with probability 0.92 (`settings="fineweb"`:
    14 bands of 8 hashes; `"dolma3"`: 26 of 11; `"nemo"`: 24 characters, 20 of 13; or `num_bands` and `num_rows`; or
    `num_hashes`, divided as suits `threshold` best). A document goes only if its similarity to one that stays was verified
    to reach `threshold`: `verify="jaccard"` on the true n-gram sets; `"signature"` on packed ones, in a quarter of the disk,
    which tell it with a standard deviation of 0.001 (at 0.8 and 1000 words; of a hundred words, one pair in thirty is off by
    one n-gram); `"none"` takes candidates of candidates for alike, as other tools do.

    Words are those of the text package: runs without spaces, each letter of scripts that do not separate words. Before,
    letters become lower case and lose accents (Latin, Greek, Cyrillic), numbers are read as 0, punctuation as space, unless
    told otherwise. A document of fewer than n words goes only if another has the same words; one without any word stays.

    `keep`, `by`, `prefer`, `prefer_column`, `across_sources`, `against`, `update`, `storage_options` are as in `ExactDedup`.
    `reuse` names the output of an earlier run over the same input: its hashes are used again, so that only `threshold` may
    differ.

    Hashes are the same on a processor and on a GPU. With `device="auto"` n-grams of characters, which take longest, go to a
    GPU where there is one.

    Costs 330 bytes and 4 bytes per word of disk per document (signature: 1 byte per word), half as much again for candidates,
    and memory within the budget. Broder 1997; Leskovec, Rajaraman and Ullman, chapter 3.

    >>> from tamis import Pipeline, Rows
    >>> text = "a tale of twenty words that two pages tell in very nearly the same way and so only one stays"
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
    num_rows: int | None = None
    num_hashes: int | None = None
    lowercase: bool | None = None
    accents: bool | None = None
    numbers: bool | None = None
    punctuation: bool | None = None
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
    device: Literal["auto", "cpu", "gpu"] = "auto"

    version = 4
    incidental = frozenset({"device", "storage_options"})

    def check(self) -> None:
        self._policy.check()
        if not 0 < self.threshold <= 1:
            raise ParameterError(f"`threshold` is a similarity above 0 and at most 1, got {self.threshold}")
        for name, most in (("ngram", 64), ("num_bands", 1000), ("num_rows", 1000), ("num_hashes", 10_000)):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise ParameterError(f"`{name}` must be from 1 to {most}, got {value}")
        if self.num_hashes is not None and (self.num_bands is not None or self.num_rows is not None):
            raise ParameterError(
                "`num_hashes` is divided into bands by itself", hint="give either num_hashes, or num_bands and num_rows"
            )
        if self.update and self.against is None:
            raise ParameterError("`update` needs an index", hint='against="index/"')
        if self.device == "gpu":
            minhash_gpu.demand()
        self._index(look=True)
        if self.reuse is not None:
            if self.update:
                raise ParameterError("`reuse` has no hashes to add to an index", hint="leave out `update` or `reuse`")
            self._earlier()

    # --------------------------------------------------------------------------------------------------- what is asked for

    @property
    def _unit(self) -> str:
        return self.unit or SETTINGS[self.settings][0]

    @property
    def _ngram(self) -> int:
        return self.ngram or SETTINGS[self.settings][1]

    @property
    def bands(self) -> tuple[int, int]:
        """(bands, hashes in each)"""
        if self.num_hashes is not None:
            return best_split(self.threshold, self.num_hashes)
        _, _, bands, rows, _ = SETTINGS[self.settings]
        return self.num_bands or bands, self.num_rows or rows

    @property
    def _options(self) -> int:
        asked = {
            minhash.LOWERCASE: self.lowercase,
            minhash.ACCENTS: self.accents,
            minhash.DIGITS: self.numbers,
            minhash.PUNCTUATED: self.punctuation,
        }
        default = SETTINGS[self.settings][4]
        return sum(flag for flag, wanted in asked.items() if (default if wanted is None else wanted))

    @property
    def resources(self) -> Resources:  # type: ignore[override]
        return Resources(memory=RESOLVING_BYTES + (minhash_gpu.OPENING_BYTES if self.device == "gpu" else 0))

    @property
    def _on_gpu(self) -> bool:
        """Words are hashed as fast as they are read; characters, each the end of an n-gram, are not."""
        return self.device == "gpu" or (
            self.device == "auto" and self._unit == "character" and minhash_gpu.opens_freely()
        )

    @property
    def _policy(self) -> KeepPolicy:
        return KeepPolicy(self.keep, self.by, self.prefer, self.prefer_column, self.across_sources)

    @property
    def _comparison(self) -> Comparison:
        return Comparison(self.verify, self.threshold, self.bands[0], self.keep == "none", self.across_sources)

    @property
    def _keeping(self) -> list[Any]:
        """What decides who stays, as JSON holds it."""
        prefer = list(self.prefer) if self.prefer is not None else None
        return [self.keep, self.by, prefer, self.prefer_column, self.across_sources]

    def hashing(self) -> dict[str, Any]:
        """Everything the keys and n-grams depend on: what an index or an earlier run must agree in."""
        bands, rows = self.bands
        return {
            "column": self.column,
            "unit": self._unit,
            "ngram": self._ngram,
            "bands": bands,
            "rows": rows,
            "normalisation": self._options,
            "seed": self.seed,
            "verify": "jaccard" if self.verify == "jaccard" else "signature",
            "packed": 0 if self.verify == "jaccard" else 2**sets.SPARE,
        }

    def probability(self, similarity: float) -> float:
        """With which probability two documents of some similarity become candidates.

        >>> round(FuzzyDedup().probability(0.8), 2)
        0.92
        """
        bands, rows = self.bands
        return 1 - (1 - similarity**rows) ** bands

    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(["text", *self._policy.columns()]))

    def optional_reads(self) -> tuple[str, ...]:
        return ("id",)

    def identity(self) -> dict[str, Any]:
        return super().identity() | index_identity(self.against, self.update, self.storage_options)

    def disk_bytes(self, num_rows: int, num_bytes: int) -> int:
        """Disk that a run over so many rows and bytes of text takes while it runs, if a third of the rows are candidates."""
        bands, _ = self.bands
        ngrams = num_bytes if self._unit == "character" else num_bytes // 6
        compared = 4 * ngrams if self.verify == "jaccard" else ngrams + 8 * num_rows
        facts = num_rows * (8 * bands + 32) + compared
        return facts + num_rows * bands * 12 + (facts + num_rows * 40) // 3

    def _index(self, own: str = "", *, look: bool = False) -> Index | None:
        if self.against is None:
            return None
        options = self.storage_options
        return Index.open(self.against, "fuzzy", self.hashing(), options, own=own, create=self.update, look=look)

    # ------------------------------------------------------------------------------------------------------------- observe

    def observe(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        facts: dict[str, Column | np.ndarray] = dict(address_facts(batch))
        data, offsets = text_buffers(batch["text"], self.column)
        content = np.empty((len(batch), 2), np.uint64)
        digest_spans(data, offsets[:-1], offsets[1:], 0, content)
        facts["content"] = content[:, 0]
        if self.reuse is not None:
            return facts
        return facts | self._signed(data, offsets) | self._policy.facts(batch, np.diff(offsets))

    def _signed(self, data: np.ndarray, offsets: np.ndarray) -> dict[str, Column | np.ndarray]:
        bands, per_band = self.bands
        rows = len(offsets) - 1
        characters = self._unit == "character"
        counts, keys = np.zeros(rows, np.int64), np.empty((rows, bands), np.uint64)
        kernels = minhash_gpu if self._on_gpu else minhash
        arguments = (
            data, offsets, characters, self._ngram, self._options, *minhash.folding_tables(self._options), POINTS, KINDS,
            minhash.multipliers(bands * per_band, self.seed), bands, counts, keys,
        )  # fmt: skip
        compared: Column
        if self.verify == "jaccard":
            shingles, spans = minhash.room_for_ngrams(offsets, characters)
            kernels.sign(*arguments, shingles, spans)
            compared = pa.LargeListArray.from_arrays(pa.array(spans), pa.array(shingles[: spans[-1]]))
        else:
            packed, spans = kernels.sign_packed(*arguments)
            buffers = [None, pa.py_buffer(spans), pa.py_buffer(packed)]
            compared = pa.LargeBinaryArray.from_buffers(pa.large_binary(), rows, buffers)
        column = "shingles" if self.verify == "jaccard" else "signature"
        return {"count": counts, "keys": from_matrix(keys), column: compared}

    # ------------------------------------------------------------------------------------------------------------- resolve

    def resolve(self, observed: Observations, decide: Decide, work: Work) -> None:
        rows = RowNumbers(observed)
        own = own_generation(work) if self.update else ""
        retry_with_less_memory(lambda usable: self._resolve(rows, decide, work, own, usable), work.worker_bytes)

    def _resolve(self, rows: RowNumbers, decide: Decide, work: Work, own: str, usable: int) -> None:
        summary: dict[str, Any] = {}
        if self.reuse is None:
            index = self._index(own)
            index = index.for_work(work.folder, self.storage_options, pin=self.update) if index is not None else None
            collected, num_buckets = self._candidates(rows, work, index, summary, usable)
        else:
            index, collected, num_buckets = self._reused(rows, work, summary)
        homes = Homes.of(rows, index, usable)
        pairs = Files(work.folder / "pairs", f"{num_buckets}, {homes.division}-", num_buckets)
        found = in_workers(
            work,
            f"comparisons, {num_buckets}, {homes.division}",
            candidates.verify,
            [
                (homes, collected, bucket, num_buckets, self._comparison, path, usable)
                for bucket, path in enumerate(pairs)
            ],
        )
        index_folder = index_folder_of(self.update, work, homes)
        settling = Settling(
            homes,
            decide,
            pairs,
            work.folder,
            reason="near-duplicate",
            short_reason=f"exact duplicate, too short for {self._ngram}-grams",
            index_reason=f"in the index {self.against}",
            index_folder=index_folder,
            keep_entries=keep_signed,
        )
        settled = settling.run(work, str(num_buckets))
        summary |= summary_of(self.name, rows, found, settled)
        summary |= {"largest_component": max((part["largest_component"] for part in found), default=0)}
        summary |= {"threshold": self.threshold, "verify": self.verify}
        summary |= {"hashing": self.hashing(), "keep": self._keeping}
        summary |= {"buckets": num_buckets, "index": [index.path, index.generations] if index else None}
        publish(work, summary, {CANDIDATES: collected})
        if index_folder is not None and self.against is not None:
            add_generation(self.against, own, index_folder, self.storage_options)

    def _candidates(
        self, rows: RowNumbers, work: Work, index: Index | None, summary: dict[str, Any], usable: int
    ) -> tuple[Files, int]:
        """Files of candidates by component, and into how many buckets they are divided."""
        bands, _ = self.bands
        known = rows.total + (index.total if index else 0)
        check_disk(work, rows.total * bands * 12, "looking for near-duplicates")
        num_ranges = bucket_count(known * bands * candidates.KEY_BYTES, usable)
        scattered = Files(work.folder / "bands", f"{num_ranges}-", rows.num_partitions)
        chunk = chunk_rows(bands * 32, usable)
        totals = in_workers(
            work,
            f"bands by range, {num_ranges}",
            candidates.scatter_bands,
            [(rows, part, num_ranges, path, chunk) for part, path in enumerate(scattered)],
        )
        edges = Files(work.folder / "edges", f"{num_ranges}-", num_ranges)
        met = in_workers(
            work,
            f"meetings, {num_ranges}",
            candidates.candidate_pairs,
            [(rows, scattered, bucket, num_ranges, index, path, usable) for bucket, path in enumerate(edges)],
        )
        components = work.folder / f"components-{num_ranges}.bin"
        (found,) = in_workers(
            work,
            f"components, {num_ranges}",
            candidates.join_components,
            [(known, edges, components, usable)],
        )
        for name in ("texts", "short", "shingles", "content"):
            summary[name] = sum(part[name] for part in totals)
        summary["content"] %= 2**64
        summary |= {"proposed": sum(met), **found}
        how = self._comparison
        ngrams = summary["shingles"] // max(1, summary["texts"])
        per_row = how.row_bytes + 8 * ngrams
        num_buckets = bucket_count(found["candidates"] * per_row * 2, usable)
        on_disk = how.row_bytes + ngrams * (4 if self.verify == "jaccard" else 1)
        check_disk(work, found["candidates"] * on_disk, "comparing near-duplicates")
        chunk = chunk_rows(4 * per_row, usable, least=100)
        folder = work.folder / f"candidates-{num_ranges}-{num_buckets}"
        collected = Files(folder, "part-", rows.num_partitions)
        in_workers(
            work,
            f"candidates, {num_ranges}, {num_buckets}",
            candidates.collect,
            [(rows, part, components, num_buckets, path, chunk, how) for part, path in enumerate(collected)],
        )
        if index is not None:
            behind = folder / f"part-index{SPILL}"
            item = (index, rows.total, components, num_buckets, behind, how)
            in_workers(work, f"candidates of the index, {num_ranges}, {num_buckets}", candidates.collect_index, [item])
            collected = replace(collected, more=(behind,))
        for file in scattered:
            file.unlink(missing_ok=True)
        return collected, num_buckets

    # --------------------------------------------------------------------------------------------------------------- reuse

    def _earlier(self) -> tuple[Path, dict[str, Any]]:
        """Folder and summary of the run whose hashes are used again, after making sure that it fits."""
        wanted = {"hashing": self.hashing(), "verify": self.verify, "keep": self._keeping}
        refused: str | None = None
        for file in sorted((Path(str(self.reuse)) / ".tamis" / DETAILS).glob("*/summary.json")):
            summary = json.loads(file.read_text())
            if summary["step"] != self.name:
                continue
            differing = [name for name, value in wanted.items() if summary.get(name) != value]
            if not differing:
                return file.parent, summary
            name = differing[0]
            refused = f"{self.reuse} was made with {name} {summary.get(name)}, this step has {wanted[name]}"
        if refused is not None:
            raise ParameterError(refused, hint="with `reuse`, only `threshold` may differ")
        raise ParameterError(
            f"{self.reuse} is not the output of a fuzzy deduplication", hint="reuse= names the output of an earlier run"
        )

    def _reused(self, rows: RowNumbers, work: Work, summary: dict[str, Any]) -> tuple[Index | None, Files, int]:
        folder, earlier = self._earlier()
        if earlier["rows"] != rows.total:
            raise ParameterError(
                f"{self.reuse} was made from {earlier['rows']:,} rows, these are {rows.total:,}",
                hint="`reuse` needs the same input",
            )
        sums = in_workers(
            work, "content", candidates.sum_content, [(rows, part) for part in range(rows.num_partitions)]
        )
        if earlier["content"] != sum(sums) % 2**64:
            raise ParameterError(f"{self.reuse} was made from other texts", hint="`reuse` needs the same input")
        names = ("texts", "short", "shingles", "content", "proposed", "candidates", "components")
        summary |= {name: earlier[name] for name in names} | {"reused": str(self.reuse)}
        index = Index(earlier["index"][0], tuple(earlier["index"][1])) if earlier["index"] else None
        index = index.for_work(work.folder, self.storage_options) if index is not None else None
        found = (folder / CANDIDATES).glob(f"*{SPILL}")
        return index, Files(folder / CANDIDATES, "part-", 0, tuple(sorted(found))), int(earlier["buckets"])


def keep_signed(facts: pa.Table, local: np.ndarray, folder: Path, block: int) -> None:
    """What is known of the rows that stay, as a part of an index."""
    local = local[facts.column("count").to_numpy()[local] != 0]
    if not len(local):
        return
    names = [name for name in ("count", "keys", "signature", "shingles") if name in facts.column_names]
    chosen = facts.select(names).take(pa.array(local))
    entries = pa.table({**subset(facts, local), **{name: chosen.column(name) for name in names}})
    write_part(folder, block, entries, as_matrix(chosen.column("keys"), np.uint64), {})


def best_split(threshold: float, num_hashes: int) -> tuple[int, int]:
    """(bands, hashes in each), at most `num_hashes` in all, that err least in proposing pairs above the threshold only.

    The sum of the areas of false proposals below and missed pairs above, as in Zhu et al. 2016, LSH Ensemble, section 5.

    >>> best_split(0.8, 112)
    (9, 12)
    """
    grid = (np.arange(1000) + 0.5) / 1000
    below = grid < threshold
    best, least = (1, num_hashes), math.inf
    for rows in range(1, num_hashes + 1):
        for bands in range(1, num_hashes // rows + 1):
            proposed = 1 - (1 - grid**rows) ** bands
            error = float(proposed[below].sum() + (1 - proposed)[~below].sum())
            if error < least - 1e-12:
                best, least = (bands, rows), error
    return best
