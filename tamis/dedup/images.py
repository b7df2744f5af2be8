"""Images that look alike: perceptual hashes within a Hamming distance.

observe   the perceptual hash of each image
resolve   find all pairs within the radius by multi-index hashing, and choose which to keep (`hamming`, `rounds`)
apply     filter out the duplicates
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from tamis.batch import Batch, Column, contiguous
from tamis.dedup.decisions import Blocks, Decisions, check_disk, index_parts_of, publish
from tamis.dedup.exact import summary_of
from tamis.dedup.hamming import Division, HashSearch, hash_facts
from tamis.dedup.index import Index, write_part
from tamis.dedup.indexed import IndexedDedup
from tamis.dedup.keep import KeepPolicy
from tamis.dedup.rounds import decide_in_rounds
from tamis.dedup.rows import RowNumbers, address_facts, address_facts_of
from tamis.dedup.shuffle import (
    RESOLVING_BYTES,
    bucket_count,
    handles_shortage,
    run_in_workers,
)
from tamis.errors import OperatorError, ParameterError
from tamis.exchange import Exchange
from tamis.image.decode import PictureStep, headers, row_bytes
from tamis.image.hashing import BITS, SIDES, HashKind, hashes_of
from tamis.kernels.image_hashes import says_little
from tamis.operators import Decide, Resources, Work, operator

ImageKeep: TypeAlias = Literal["first", "largest", "newest", "best"]

RADIUS = {"phash": 8, "dhash": 6, "ahash": 2, "whash": 2, "pdq": 31}
"""Chosen from the table of recall and precision in benchmarks/image_dedup.md; 31 for PDQ is the threshold of its authors."""

MAX_RADIUS = {64: 20, 256: 80}
"""Beyond this, half of all pictures are within the radius of each other."""

COMPARED_BYTES = 600
"""Memory per row while components are decided, if each row has a few edges."""


@operator(reads="image", resources=Resources(memory=RESOLVING_BYTES))
class ImageDedup(PictureStep, IndexedDedup):
    """Keep one image of each group of images that look alike.

    Images are visited in the order of the keep policy. An image is dropped if its perceptual hash differs from that of an image
    already kept in at most `radius` bits. No pair within the radius is missed, and no image is dropped because of a chain of
    others. `hash` chooses the hash, as in `tamis.image.ImageHash`: `"phash"`, `"dhash"`, `"ahash"`, `"whash"` (64 bits) or
    `"pdq"` (256). The default radius is 8 for pHash, 6 for dHash, 2 for aHash and wHash, and 31 for PDQ; recall and precision
    by radius are in benchmarks/image_dedup.md. With `exact=True` all pixels are hashed instead of a picture of reduced size.

    `keep` chooses the order: the first in source order, the largest (most pixels, then most bytes), the newest or best by the
    column `by`. `prefer`, `prefer_column`, `across_sources`, `against`, `update` and `storage_options` are as in `ExactDedup`.

    Pictures with little detail have the same hash, whatever they show. An image is therefore kept and compared with no other if
    its quality, PDQ's measure of detail from 0 to 100, is below `min_quality`, or if fewer than an eighth of the bits of its
    hash are set, or not set. `ExactDedup` removes those that are really equal. Pictures of few pixels, and pictures of one kind
    of object on a plain background, need a smaller radius or PDQ: with the defaults, many are dropped that are not duplicates.

    `hash_column` names a column that already has the hashes, as bytes, as text in hex or, for 64 bits, as integers; then no
    image is decoded, and `min_quality` is not applied. A row without image or hash is kept.

    Finding pairs takes time in proportion to the number of rows up to about ten million rows, then more (multi-index hashing,
    Norouzi et al. 2012). Costs about 200 bytes of disk space per row (PDQ: 1000), and memory within the budget.

    >>> from tamis import Pipeline, Rows
    >>> rows = [{"phash": "ffd8810100183c7e"}, {"phash": "ffd8810100183c7f"}, {"phash": "0f0f0f0f12345678"}]
    >>> Pipeline(Rows(rows), ImageDedup(hash_column="phash")).run().dropped
    {'similar image': 1}
    """

    hash: HashKind = "phash"
    radius: int | None = None
    exact: bool = False
    min_quality: int = 10
    keep: ImageKeep = "first"
    by: str | None = None
    prefer: Sequence[str] | None = None
    prefer_column: str | None = None
    across_sources: bool = False
    hash_column: str | None = None
    against: str | None = None
    update: bool = False
    storage_options: Mapping[str, Any] | None = None
    column: str = "image"

    version = 1
    cost = 30.0
    index_kind = "image"

    @property
    def row_bytes(self) -> int:
        return row_bytes(SIDES[self.hash])

    def check(self) -> None:
        if self.by is not None and self.keep == "largest":
            raise ParameterError('`by` has no effect with keep="largest"', hint='keep="newest" or keep="best"')
        self._policy.check()
        if self.radius is not None and not 0 <= self.radius <= MAX_RADIUS[self._bits]:
            raise ParameterError(
                f"`radius` must be from 0 to {MAX_RADIUS[self._bits]} for {self.hash}, got {self.radius}"
            )
        if not 0 <= self.min_quality <= 100:
            raise ParameterError(f"`min_quality` must be from 0 to 100, got {self.min_quality}")
        self.check_index()

    # ---------------------------------------------------------------------------------------------------------- parameters

    @property
    def _bits(self) -> int:
        return BITS[self.hash]

    @property
    def most_bits(self) -> int:
        """The number of bits in which the hashes of duplicates differ at most."""
        return RADIUS[self.hash] if self.radius is None else self.radius

    @property
    def _policy(self) -> KeepPolicy:
        keep: Any = "longest" if self.keep == "largest" else self.keep
        return KeepPolicy(keep, self.by, self.prefer, self.prefer_column, self.across_sources)

    def reads(self) -> tuple[str, ...]:
        wanted = ["hash"] if self.hash_column is not None else ["image"]
        wanted += ["image"] if self.keep == "largest" else []
        return tuple(dict.fromkeys([*wanted, *self._policy.columns()]))

    def real_names(self) -> dict[str, str]:
        real = {"image": self.column, "hash": self.hash_column or "hash"}
        return {name: real.get(name, name) for name in self.reads()}

    def disk_bytes(self, num_rows: int, num_bytes: int) -> int:
        """Disk space that a run takes, if a third of the rows have an edge."""
        division = Division.of(self._bits, self.most_bits, num_rows, self.across_sources, 2**30)
        return num_rows * (len(division.substrings.used) * (self._bits // 8 + 24) + self._bits // 8 + 60)

    def index_settings(self) -> dict[str, Any]:
        return {"hash": self.hash, "exact": self.exact}

    # ------------------------------------------------------------------------------------------------------------- observe

    def observe(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        facts: dict[str, Column | np.ndarray] = dict(address_facts(batch))
        if self.hash_column is None:
            found = hashes_of(batch, "image", self.hash, exact=self.exact)
            blank = found.present & ((found.quality < self.min_quality) | says_little(found.words))
            facts |= {"hash": hash_facts(found.words, found.present & ~blank), "blank": blank}
        else:
            facts["hash"] = hash_facts(*stored_hashes(batch["hash"], self.hash_column, self._bits))
        sizes = np.zeros(len(batch), np.uint64)
        if self.keep == "largest":
            header = headers(batch, "image")
            pixels = np.minimum(header.width * header.height, 2**33 - 1).astype(np.uint64)
            sizes = (pixels << np.uint64(31)) | np.minimum(header.num_bytes, 2**31 - 1).astype(np.uint64)
        return facts | self._policy.facts(batch, sizes)

    # ------------------------------------------------------------------------------------------------------------- resolve

    def resolve_rows(
        self, rows: RowNumbers, decide: Decide, work: Work, index: Index | None, call_bytes: int
    ) -> Exchange | None:
        blocks = Blocks.of(rows, index, call_bytes)
        counts = run_in_workers(work, "hashes", count_hashes, [(rows, part) for part in range(rows.num_partitions)])
        summary: dict[str, Any] = {name: sum(part[name] for part in counts) for name in ("hashes", "blank")}
        known = summary["hashes"] + (index.total if index is not None else 0)
        division = Division.of(self._bits, self.most_bits, known, self.across_sources, call_bytes)
        check_disk(work, self.disk_bytes(known, 0), "deduplication of images")
        search = HashSearch(work, rows, index, division, call_bytes)
        num_buckets = bucket_count(known * COMPARED_BYTES, call_bytes)
        decided = decide_in_rounds(work, blocks, num_buckets, call_bytes, search.find)
        index_parts = index_parts_of(self.update, work, blocks)
        decisions = Decisions(
            blocks,
            decide,
            decided.pairs,
            work.exchange,
            reason="similar image",
            index_reason=f"in the index {self.against}",
            index_parts=index_parts,
            write_entries=write_hash_part,
        )
        summary = summary_of(self.name, rows, decided.fates, decisions.run(work, decided.pairs.stem)) | summary
        summary |= search.summary | {"rounds": decided.rounds, "keep": self.keep}
        summary |= {"hash": self.hash, "radius": self.most_bits, "threshold": 1 - self.most_bits / self._bits}
        publish(work, summary, {})
        return index_parts


def stored_hashes(column: Column, name: str, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """(uint64[rows, words], whether each row has a hash) from bytes, text in hex, or integers of 64 bits."""
    kind, rows = column.type, len(column)
    known = column.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_integer(kind) and bits == 64:
        return column.fill_null(0).cast(pa.uint64(), safe=False).to_numpy(zero_copy_only=False).reshape(rows, 1), known
    if pa.types.is_null(kind):
        return np.zeros((rows, bits // 64), np.uint64), known
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not text and not (
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    ):
        raise OperatorError(
            f"`{name}` is {kind}, not a hash of {bits} bits",
            hint="name a column with bytes, text in hex or integers of 64 bits, hash_column=...",
        )
    words = np.zeros((rows, bits // 64), np.uint64)
    for row, value in enumerate(contiguous(column).to_pylist()):
        if value is None:
            continue
        try:
            raw = bytes.fromhex(value) if text else value
        except ValueError:
            raise ValueError(f"`{name}` is {value!r}, which is not a number in hex") from None
        if len(raw) * 8 != bits:
            raise ValueError(f"`{name}` has {len(raw) * 8} bits, not {bits}")
        words[row] = np.frombuffer(raw, ">u8")
    return words, known


@handles_shortage
def count_hashes(rows: RowNumbers, partition: int) -> dict[str, int]:
    """How many rows of a partition have a hash, and how many are too blank to have one."""
    facts = rows.observed[partition]
    if not facts.num_rows:
        return {"hashes": 0, "blank": 0}
    blank = int(np.count_nonzero(facts.column("blank").to_numpy())) if "blank" in facts.column_names else 0
    return {"hashes": facts.num_rows - facts.column("hash").null_count, "blank": blank}


def write_hash_part(facts: pa.Table, local: np.ndarray, parts: Exchange, block: int) -> None:
    """Write the hashes of the kept rows of a block to a part of an index."""
    local = local[facts.column("hash").is_valid().to_numpy()[local]]
    if len(local):
        hashes = facts.column("hash").take(pa.array(local))
        entries = pa.table({**address_facts_of(facts, local), "hash": hashes})
        write_part(parts, block, entries, np.empty(0, np.uint64), {})
