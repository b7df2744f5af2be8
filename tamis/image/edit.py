"""Maps that change images: smaller, cut out, or in another format; frames of animations; digests.

A changed image is decoded in full: upright, in sRGB, on white, first frame. It is then encoded without metadata. Images that
a step does not have to change keep their bytes.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tamis.batch import Batch, Column
from tamis.errors import ParameterError
from tamis.image.decode import ImageStep, full_pictures, of_files
from tamis.image.files import ENCODED, Data, Header, encoded, enlarged, frames_of, load_pixels, reduced
from tamis.media import is_media, read_bytes
from tamis.operators import Expand, Map, operator

Encoding = Literal["same", "JPEG", "PNG", "WEBP", "AVIF"]


class ImageEdit(ImageStep, Map):
    """A map that replaces images. `edited` returns the new file and its format, or None if the image stays as it is."""

    cost = 20.0

    column: str

    def writes(self) -> tuple[str, ...]:
        return (self.column,)

    def edited(self, data: Data, header: Header) -> tuple[bytes, str] | None:
        raise NotImplementedError

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        before = batch["image"]
        if not is_media(before.type):  # a column without any image
            return {self.column: before}
        values: list[dict[str, Any] | None] = before.to_pylist()
        for row, made in enumerate(of_files(batch, "image", self.edited)):
            old = values[row]
            if made is not None and old is not None:
                values[row] = {"bytes": made[0], "path": renamed(old["path"], made[1])}
        return {self.column: pa.array(values, before.type)}


def renamed(path: str | None, format_: str) -> str | None:
    """The name of a file with the suffix of its format.

    >>> renamed("a/b.gif", "PNG"), renamed("a.JPG", "JPEG"), renamed("a.tar#b.bmp", "WEBP"), renamed(None, "PNG")
    ('a/b.png', 'a.JPG', 'b.webp', None)
    """
    if path is None:
        return None
    path = path.rpartition("#")[2]
    stem, suffix = posixpath.splitext(path)
    fitting = {"JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"), "TIFF": (".tif", ".tiff")}.get(
        format_, (f".{format_.lower()}",)
    )
    return path if suffix.lower() in fitting else stem + fitting[0]


def _target(encoding: Encoding, header: Header) -> str:
    """The format to write: that of the file, or PNG if it is not one of those that are written."""
    if encoding != "same":
        return encoding
    return header.format if header.format in ENCODED else "PNG"


def _check_quality(quality: int) -> None:
    if not 1 <= quality <= 100:
        raise ParameterError(f"`quality={quality}` is not between 1 and 100")


@operator(reads="image")
class ImageResize(ImageEdit):
    """Make images smaller, so that they fit into `width` x `height` pixels.

        fit     the whole picture, at most this large
        fill    exactly this large: what is outside in one direction is cut off at both ends
        pad     exactly this large: the whole picture, with white borders

    Pixels are averages of the area that they cover. JPEG files are decoded at reduced size where that is enough. An image
    that fits already keeps its bytes. With `only_shrink=False`, smaller images are enlarged (Lanczos). `format` is that of
    the new files; "same" stands for the one of the file, or PNG for formats other than JPEG, PNG, WebP and AVIF.

    >>> import numpy as np
    >>> from tamis.image.decode import headers
    >>> batch = Batch.from_rows([{"image": {"bytes": encoded(np.zeros((600, 900, 3), np.uint8), "PNG"), "path": None}}])
    >>> made = batch.with_columns(ImageResize(width=300, height=300).apply(batch))
    >>> headers(made, "image").width.tolist(), headers(made, "image").height.tolist()
    ([300], [200])
    """

    width: int
    height: int
    mode: Literal["fit", "fill", "pad"] = "fit"
    only_shrink: bool = True
    format: Encoding = "same"
    quality: int = 90
    column: str = "image"

    def check(self) -> None:
        _check_quality(self.quality)
        if min(self.width, self.height) < 1:
            raise ParameterError("`width` and `height` are at least 1")

    def edited(self, data: Data, header: Header) -> tuple[bytes, str] | None:
        width, height = self._scaled(header)
        target = _target(self.format, header)
        if (width, height) == (header.width, header.height) == self._framed(width, height) and target == header.format:
            return None
        pixels = load_pixels(data, header, min(width, height) if width <= header.width else None)
        if (width, height) != pixels.shape[1::-1]:
            pixels = reduced(pixels, width, height) if width <= pixels.shape[1] else enlarged(pixels, width, height)
        return encoded(self._in_frame(pixels), target, self.quality), target

    def _scaled(self, header: Header) -> tuple[int, int]:
        """The size of the whole picture in the new scale."""
        ratios = (self.width / header.width, self.height / header.height)
        ratio = max(ratios) if self.mode == "fill" else min(ratios)
        if self.only_shrink:
            ratio = min(1.0, ratio)
        return max(1, round(header.width * ratio)), max(1, round(header.height * ratio))

    def _framed(self, width: int, height: int) -> tuple[int, int]:
        """The size of the new image."""
        if self.mode == "fill":
            return min(width, self.width), min(height, self.height)
        return (self.width, self.height) if self.mode == "pad" else (width, height)

    def _in_frame(self, pixels: np.ndarray) -> np.ndarray:
        height, width, _ = pixels.shape
        new_width, new_height = self._framed(width, height)
        if self.mode == "pad":
            result = np.full((new_height, new_width, 3), 255, np.uint8)
            top, left = (new_height - height) // 2, (new_width - width) // 2
            result[top : top + height, left : left + width] = pixels
            return result
        top, left = (height - new_height) // 2, (width - new_width) // 2
        return np.ascontiguousarray(pixels[top : top + new_height, left : left + new_width])


@operator(reads="image")
class ImageCrop(ImageEdit):
    """Cut a rectangle of at most `width` x `height` pixels out of each image.

    `left` and `top` are the position of the rectangle; None stands for the middle. What is outside of the image is not part
    of the result. An image within the rectangle keeps its bytes; an image outside of it fails.
    """

    width: int
    height: int
    left: int | None = None
    top: int | None = None
    format: Encoding = "same"
    quality: int = 90
    column: str = "image"

    def check(self) -> None:
        _check_quality(self.quality)
        if min(self.width, self.height) < 1 or min(self.left or 0, self.top or 0) < 0:
            raise ParameterError("`width` and `height` are at least 1, `left` and `top` at least 0")

    def edited(self, data: Data, header: Header) -> tuple[bytes, str] | None:
        left, right = _span(self.left, self.width, header.width)
        top, bottom = _span(self.top, self.height, header.height)
        target = _target(self.format, header)
        if (left, top, right, bottom) == (0, 0, header.width, header.height) and target == header.format:
            return None
        pixels = load_pixels(data, header, None)[top:bottom, left:right]
        return encoded(np.ascontiguousarray(pixels), target, self.quality), target


def _span(begin: int | None, length: int, whole: int) -> tuple[int, int]:
    begin = max(0, (whole - length) // 2) if begin is None else begin
    if begin >= whole:
        raise ValueError(f"the rectangle begins at {begin}, and the image ends at {whole}")
    return begin, min(whole, begin + length)


@operator(reads="image")
class ImageConvert(ImageEdit):
    """Convert images to another format.

    Files that have the format already keep their bytes, unless `again` is True: then they are encoded again with `quality`,
    which counts for JPEG, WebP and AVIF. JPEG colours are stored at half the resolution below a quality of 90.
    """

    format: Literal["JPEG", "PNG", "WEBP", "AVIF"]
    quality: int = 90
    again: bool = False
    column: str = "image"

    def check(self) -> None:
        _check_quality(self.quality)

    def edited(self, data: Data, header: Header) -> tuple[bytes, str] | None:
        if header.format == self.format and not self.again:
            return None
        return encoded(load_pixels(data, header, None), self.format, self.quality), self.format


@operator(reads="image")
class ImageDigest(ImageStep, Map):
    """Add the SHA-256 hash of each file, or of its decoded pixels, in hexadecimal.

    Two files with the same pixels, such as a PNG and its copy with other metadata, have different bytes. The hash of pixels
    is that of width and height, 32 bits each with the lowest byte first, followed by the pixels: sRGB, upright, 3 bytes each.

    >>> ImageDigest().apply(Batch.from_rows([{"image": {"bytes": b"abc", "path": None}}]))["image_digest"].to_pylist()[0][:16]
    'ba7816bf8f01cfea'
    """

    cost = 20.0

    of: Literal["bytes", "pixels"] = "bytes"
    output: str = "image_digest"
    column: str = "image"

    def writes(self) -> tuple[str, ...]:
        return (self.output,)

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        if self.of == "bytes":
            found = [None if data is None else hashlib.sha256(data).hexdigest() for data in read_bytes(batch, "image")]
        else:
            found = [None if each is None else _pixel_digest(each) for each in full_pictures(batch, "image")]
        return {self.output: pa.array(found, pa.string())}


def _pixel_digest(pixels: np.ndarray) -> str:
    size = np.array(pixels.shape[1::-1], "<u4").tobytes()
    return hashlib.sha256(size + np.ascontiguousarray(pixels).data).hexdigest()


@operator(reads="image")
class ImageFrames(ImageStep, Expand):
    """Make a row of each frame of an animation, or of each page of a file: a PNG image, and its number from 0.

    At most `max_frames` rows are made of a file, of every `every`-th frame. A file of one frame keeps its bytes. A row without
    image stays as it is. Other columns are repeated.
    """

    cost = 20.0

    every: int = 1
    max_frames: int = 100
    frame: str = "frame"
    column: str = "image"

    def check(self) -> None:
        if min(self.every, self.max_frames) < 1:
            raise ParameterError("`every` and `max_frames` are at least 1")

    def writes(self) -> tuple[str, ...]:
        return (self.column, self.frame)

    def expand(self, batch: Batch) -> tuple[pa.Table, np.ndarray]:
        before = batch["image"]
        values = before.to_pylist()
        rows: list[Any] = []
        numbers: list[int] = []
        parents: list[int] = []
        for row, files in enumerate(of_files(batch, "image", self._files)):
            made = [values[row]]
            if files:
                path = renamed(values[row]["path"], "PNG")
                made = [{"bytes": file, "path": path} for file in files]
            rows += made
            numbers += [index * self.every for index in range(len(made))]
            parents += [row] * len(made)
        table = pa.table({self.column: pa.array(rows, before.type), self.frame: pa.array(numbers, pa.int64())})
        return table, np.array(parents, np.int64)

    def _files(self, data: Data, header: Header) -> list[bytes]:
        """The frames as PNG files; none if the file has only one."""
        made = [encoded(pixels, "PNG") for pixels in frames_of(data, header, self.every, self.max_frames)]
        return made if len(made) > 1 else []
