"""Decodes images: the header of each file, and its pixels in one of a few sizes, once for all operators of a stage.

    bytes  -> header      width, height, format: from the first bytes, no pixels
           -> picture     uint8[height, width, 3], sRGB, upright, first frame
                            256   short side at most 256: JPEG decoded at 1/2, 1/4 or 1/8 of its size, then area averages
                            512   the same at 512
                            1024  the same at 1024
                            None  all pixels; only one row at a time is in memory

What an operator sees depends on the size that it requests and on nothing else, so its results are the same with any other
operators around it. All operators of Tamis that can work on 256 do so: then each file is decoded once.

    orientation     as in the EXIF data
    transparency    on white
    colours         converted to sRGB if the file has an ICC profile; a damaged profile is ignored
    16 bits         rounded to 8
    animation       the first frame
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from tamis.batch import Batch, Facts
from tamis.errors import ImageError
from tamis.image.files import Data, Header, count_frames, decode_file, jpeg_quality, load_pixels, read_header
from tamis.media import read_bytes
from tamis.operators import Operator

T = TypeVar("T")

TIERS = (256, 512, 1024)
"""Sizes of pictures, as the length of the short side."""

LONGEST = 8
"""The long side of a picture is at most this many times the size of its tier."""

ROW_BYTES = 512_000
"""What an operator that uses pictures of the smallest tier holds per row: the pixels of a picture twice as long as wide."""


FILE_BYTES = 100_000
"""What an operator that reads files holds per row: rows may refer to files, and only their paths count as part of a batch."""


class ImageStep(Operator):
    """A step that reads image files."""

    cost = 2.0

    def packages(self) -> Mapping[str, str]:
        return {"PIL": "image", "simplejpeg": "image"}

    @property
    def row_bytes(self) -> int:
        return FILE_BYTES


class PictureStep(ImageStep):
    """A step that uses pictures of the smallest tier."""

    cost = 20.0

    @property
    def row_bytes(self) -> int:
        return ROW_BYTES


@dataclass(frozen=True)
class Headers:
    """What the headers of the files say, one entry per row."""

    present: np.ndarray
    """Whether the row has an image. If not, all its numbers are 0, and its texts are None."""
    width: np.ndarray
    """Pixels, after the orientation in the EXIF data is applied."""
    height: np.ndarray
    format: np.ndarray
    """JPEG, PNG, WEBP, AVIF, GIF, TIFF, BMP, ...: names of Pillow."""
    mode: np.ndarray
    """L, RGB, RGBA, P, CMYK, I;16, ...: names of Pillow."""
    orientation: np.ndarray
    """1 to 8, as in the EXIF data; 1 if there is none, and for TIFF."""
    num_bytes: np.ndarray

    @property
    def short_side(self) -> np.ndarray:
        return np.minimum(self.width, self.height)


def headers(batch: Batch, column: str) -> Headers:
    """The headers of the images of a column; no pixels are decoded. A file that is not an image raises an ImageError."""
    facts = _header_facts(batch, column)
    _raise_first(facts["header"])
    found = facts["header"]
    return Headers(
        present=np.array([each is not None for each in found], dtype=np.bool_),
        width=_numbers(found, lambda each: each.width),
        height=_numbers(found, lambda each: each.height),
        format=_texts(found, lambda each: each.format),
        mode=_texts(found, lambda each: each.mode),
        orientation=_numbers(found, lambda each: each.orientation),
        num_bytes=_numbers(found, lambda each: each.num_bytes),
    )


def pictures(batch: Batch, column: str, side: int = 256) -> list[np.ndarray | None]:
    """The pixels of the images of a column, sRGB uint8[height, width, 3]; None for a row without image.

    The short side has at least `side` pixels, unless the file has less. It is decoded once for all operators with the same
    tier. A file that cannot be decoded raises an ImageError; the engine then fails the row, and nothing is decoded again.
    """
    found = _picture_facts(batch, column, tier_of(side))["picture"]
    _raise_first(found)
    return list(found)


def row_bytes(side: int | None) -> int:
    """For `Operator.row_bytes` of an operator that uses `pictures(..., side)`; None stands for all pixels."""
    return ROW_BYTES if side is None else ROW_BYTES * (tier_of(side) // TIERS[0]) ** 2


def full_pictures(batch: Batch, column: str) -> Iterator[np.ndarray | None]:
    """The pixels of the images of a column in full size, one row at a time: do not collect them."""
    for data, header in zip(read_bytes(batch, column), _header_facts(batch, column)["header"], strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = _decoded(data, header, None)
        if isinstance(found, ImageError):
            raise found
        yield found


def problems(batch: Batch, column: str) -> np.ndarray:
    """For each row, what is wrong with its image: "truncated", "corrupt", ..., "missing" without one, or "fine"."""
    found = _picture_facts(batch, column, TIERS[0])["picture"]
    return _filled(
        ["missing" if each is None else each.problem if isinstance(each, ImageError) else "fine" for each in found]
    )


def frame_counts(batch: Batch, column: str) -> np.ndarray:
    """The number of frames or pages of each image, up to 10,000; 0 for a row without image."""
    return _remembered_numbers(batch, column, "image frames", count_frames)


def jpeg_qualities(batch: Batch, column: str) -> np.ndarray:
    """The quality that each JPEG was saved with, 1 to 100; 100 for other formats, 0 for a row without image."""
    return _remembered_numbers(batch, column, "jpeg quality", jpeg_quality)


def of_files(batch: Batch, column: str, function: Callable[[Data, Header], T]) -> Iterator[T | None]:
    """`function(bytes, header)` for each row, None for a row without image. Errors of decoders become ImageErrors."""
    known = _header_facts(batch, column)["header"]
    _raise_first(known)
    for data, header in zip(read_bytes(batch, column), known, strict=True):
        if data is None:
            yield None
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = function(data, header)
        yield found


def _remembered_numbers(batch: Batch, column: str, name: str, measure: Callable[[Data, Header], int]) -> np.ndarray:
    def compute() -> Facts:
        return {"value": np.array([found or 0 for found in of_files(batch, column, measure)], np.int64)}

    return batch.remembered(column, name, compute)["value"]


def tier_of(side: int) -> int:
    """The smallest tier whose pictures have a short side of at least `side` pixels."""
    for tier in TIERS:
        if side <= tier:
            return tier
    raise ValueError(
        f"side={side}: pictures have a short side of at most {TIERS[-1]}; for all pixels use full_pictures"
    )


def measured(
    batch: Batch, column: str, name: str, measure: Callable[[np.ndarray], float], side: int | None = 256
) -> np.ndarray:
    """`measure(picture)` for each row, float64, NaN for a row without image; computed once for all operators.

    With `side=None`, it is measured on all pixels, which are in memory for one row at a time.
    """

    def compute() -> Facts:
        found = full_pictures(batch, column) if side is None else iter(pictures(batch, column, side))
        return {"value": np.array([np.nan if each is None else measure(each) for each in found], np.float64)}

    return batch.remembered(column, f"{name} {side}", compute)["value"]


def _header_facts(batch: Batch, column: str) -> Facts:
    def compute() -> Facts:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns about details that it then ignores
            return {"header": _filled([_header(data) for data in read_bytes(batch, column)])}

    return batch.remembered(column, "image header", compute)


def _picture_facts(batch: Batch, column: str, tier: int) -> Facts:
    def compute() -> Facts:
        known = _header_facts(batch, column)["header"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = [
                _decoded(data, header, tier) for data, header in zip(read_bytes(batch, column), known, strict=True)
            ]
        return {"picture": _filled(found)}

    return batch.remembered(column, f"picture {tier}", compute)


def _header(data: Data | None) -> Header | ImageError | None:
    if data is None:
        return None
    try:
        return read_header(data)
    except ImageError as error:
        return error


def _decoded(data: Data | None, header: Header | ImageError | None, tier: int | None) -> np.ndarray | ImageError | None:
    if data is None or header is None or isinstance(header, ImageError):
        return header if isinstance(header, ImageError) else None
    try:
        return load_pixels(data, header, None) if tier is None else decode_file(data, header, tier, LONGEST)
    except ImageError as error:
        return error


def _raise_first(found: np.ndarray) -> None:
    for each in found:
        if isinstance(each, ImageError):
            raise each


def _filled(values: list[Any]) -> np.ndarray:
    """An array of objects; numpy would make a larger array of arrays."""
    result = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):
        result[index] = value
    return result


def _numbers(found: np.ndarray, number: Callable[[Header], int]) -> np.ndarray:
    return np.array([0 if each is None else number(each) for each in found], dtype=np.int64)


def _texts(found: np.ndarray, text: Callable[[Header], str]) -> np.ndarray:
    return _filled([None if each is None else text(each) for each in found])
