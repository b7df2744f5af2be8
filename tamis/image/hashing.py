"""Perceptual hashes of images: which pictures look alike, in a few bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa

from tamis.batch import Batch, Column, Facts
from tamis.image.decode import PictureStep, full_pictures, pictures, row_bytes
from tamis.kernels import image_hashes as kernel
from tamis.operators import Map, operator

HashKind: TypeAlias = Literal["phash", "dhash", "ahash", "whash", "pdq"]

BITS: dict[str, int] = {"phash": 64, "dhash": 64, "ahash": 64, "whash": 64, "pdq": 256}

SIDES: dict[str, int] = {"phash": 256, "dhash": 256, "ahash": 256, "whash": 256, "pdq": 512}
"""The size of the pictures that are hashed unless all pixels are requested. For PDQ, its authors advise 512."""


@operator(reads="image")
class ImageHash(PictureStep, Map):
    """Add a perceptual hash of each image, and the amount of detail that it is based on.

    `hash` chooses it: `"phash"`, `"dhash"`, `"ahash"` and `"whash"` have 64 bits, `"pdq"` has 256. The hash is written to
    a column of that name as bytes, or as text with `encoding="hex"`; in hex it is what the packages ImageHash and pdqhash
    print. `hash_quality` is PDQ's measure of detail, from 0 for a blank picture to 100; with less than 10, a hash says little.

    By default the picture is decoded at a reduced size, which is several times as fast; on average less than one bit differs
    from the hash of all pixels, and four of 256 for PDQ (benchmarks/image_dedup.md). With `exact=True` all pixels are hashed,
    and the bits are those of the packages for the same pixels: upright as their EXIF data says, in sRGB and, if transparent,
    on white.

    A row without image has no hash. Zauner 2010 (pHash); Dalins et al. 2019 (PDQ).
    """

    hash: HashKind = "phash"
    exact: bool = False
    encoding: Literal["binary", "hex"] = "binary"
    column: str = "image"

    version = 1
    cost = 30.0

    @property
    def row_bytes(self) -> int:
        return row_bytes(SIDES[self.hash])

    def writes(self) -> tuple[str, ...]:
        return self.hash, "hash_quality"

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        found = hashes_of(batch, "image", self.hash, exact=self.exact)
        return {self.hash: found.column(self.encoding), "hash_quality": pa.array(found.quality, mask=~found.present)}


@dataclass(frozen=True)
class Hashes:
    """The hashes of the images of a batch."""

    words: np.ndarray
    """uint64[rows, words], the first bit highest."""
    quality: np.ndarray
    """int16: PDQ's measure of detail, 0 to 100."""
    present: np.ndarray
    """Whether the row has an image."""

    def column(self, encoding: str, known: np.ndarray | None = None) -> pa.Array:
        """The hashes as bytes, or as text in hex; null where there is none."""
        known = self.present if known is None else known
        width = self.words.shape[1] * 8
        raw = np.ascontiguousarray(self.words.astype(">u8")).view(np.uint8).reshape(len(self.words), width)
        if encoding == "hex":
            texts = [row.tobytes().hex() if here else None for row, here in zip(raw, known, strict=True)]
            return pa.array(texts, pa.string())
        bits = None if known.all() else pa.py_buffer(np.packbits(known, bitorder="little"))
        return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(raw), [bits, pa.py_buffer(raw)])


def hashes_of(batch: Batch, column: str, kind: str, *, exact: bool = False) -> Hashes:
    """The hashes of the images of a column, computed once for all operators. An image that cannot be decoded raises."""

    def compute() -> Facts:
        shown = full_pictures(batch, column) if exact else pictures(batch, column, SIDES[kind])
        found = hash_pictures(shown, kind)
        return {"words": found.words, "quality": found.quality, "present": found.present}

    facts = batch.remembered(column, f"{kind} {'exact' if exact else 'reduced'}", compute)
    return Hashes(facts["words"], facts["quality"], facts["present"])


def hash_pictures(shown: Iterable[np.ndarray | None], kind: str) -> Hashes:
    """The hashes of pictures, uint8[height, width, 3] each, or None."""
    words, quality, present = [], [], []
    for picture in shown:
        row = np.zeros(BITS[kind] // 64, np.uint64)
        present.append(picture is not None)
        quality.append(0 if picture is None else _hash(np.ascontiguousarray(picture), kind, row))
        words.append(row)
    shape = (len(words), BITS[kind] // 64)
    return Hashes(np.array(words, np.uint64).reshape(shape), np.array(quality, np.int16), np.array(present, np.bool_))


def _hash(picture: np.ndarray, kind: str, words: np.ndarray) -> int:
    """Write the hash of a picture to `words`, and return the quality."""
    if kind == "pdq":
        return int(kernel.pdq(picture, kernel.pdq_cosines(), words))
    grey = np.empty(picture.shape[:2], np.uint8)
    kernel.grey_of(picture, grey)
    words[0] = _KERNELS[kind](grey)
    return int(kernel.quality_of(grey))


_KERNELS: dict[str, Callable[[np.ndarray], int]] = {
    "phash": lambda grey: kernel.phash(grey, kernel.dct_cosines()),
    "dhash": kernel.dhash,
    "ahash": kernel.ahash,
    "whash": kernel.whash,
}
