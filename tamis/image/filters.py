"""Filters on what an image file says about itself: size, format, quality, and whether it can be decoded.

All but `ImageDecodable` read headers only. A row without image is dropped, because it has no size or format.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow as pa

from tamis.batch import Batch, Column
from tamis.image.decode import ImageStep, PictureStep, frame_counts, headers, jpeg_qualities, problems
from tamis.image.files import MAX_PIXELS
from tamis.operators import Filter, Rule, Scores, at_most, between, one_of, operator

Format = Literal["AVIF", "BMP", "GIF", "ICO", "JPEG", "JPEG2000", "PNG", "PPM", "QOI", "TIFF", "WEBP"]


class ImageFilter(ImageStep, Filter):
    """Shared by filters on images."""

    column: str


def scored(values: np.ndarray, present: np.ndarray) -> Column:
    """Scores that are missing for rows without image."""
    return pa.array(values, mask=~present)


@operator(reads="image", writes=("width", "height"))
class ImageSize(ImageFilter):
    """Keep images of at least 200 x 200 pixels (Gadre et al. 2023, DataComp).

    Width and height are those after the orientation in the EXIF data is applied.

    >>> import numpy as np
    >>> from tamis.image.files import encoded
    >>> batch = Batch.from_rows([{"image": {"bytes": encoded(np.zeros((100, 300, 3), np.uint8), "PNG"), "path": "a.png"}}])
    >>> {name: values.to_pylist() for name, values in ImageSize().score(batch).items()}
    {'width': [300], 'height': [100]}
    """

    min_width: int | None = 200
    max_width: int | None = None
    min_height: int | None = 200
    max_height: int | None = None
    column: str = "image"

    def score(self, batch: Batch) -> Scores:
        found = headers(batch, "image")
        return {"width": scored(found.width, found.present), "height": scored(found.height, found.present)}

    def rules(self) -> list[Rule]:
        return [
            between("width", self.min_width, self.max_width),
            between("height", self.min_height, self.max_height),
        ]


@operator(reads="image", writes="pixels")
class ImagePixels(ImageFilter):
    """Drop images with more than 89,478,485 pixels, width x height, before anything decodes them.

    That is the number above which Pillow warns of a decompression bomb.
    """

    min_pixels: int | None = None
    max_pixels: int | None = MAX_PIXELS // 2
    column: str = "image"

    def score(self, batch: Batch) -> Scores:
        found = headers(batch, "image")
        return {"pixels": scored(found.width * found.height, found.present)}

    def rules(self) -> list[Rule]:
        return [between("pixels", self.min_pixels, self.max_pixels)]


@operator(reads="image", writes="aspect_ratio")
class ImageAspect(ImageFilter):
    """Drop images whose long side is more than 3 times as long as the short one (Gadre et al. 2023, DataComp)."""

    max_aspect_ratio: float = 3.0
    column: str = "image"

    def score(self, batch: Batch) -> Scores:
        found = headers(batch, "image")
        long = np.maximum(found.width, found.height)
        return {"aspect_ratio": scored(long / np.maximum(1, found.short_side), found.present)}

    def rules(self) -> list[Rule]:
        return [at_most("aspect_ratio", self.max_aspect_ratio)]


@operator(reads="image", writes="image_bytes")
class ImageBytes(ImageFilter):
    """Keep images whose files have at most 20 MB."""

    min_bytes: int | None = None
    max_bytes: int | None = 20_000_000
    column: str = "image"

    def score(self, batch: Batch) -> Scores:
        found = headers(batch, "image")
        return {"image_bytes": scored(found.num_bytes, found.present)}

    def rules(self) -> list[Rule]:
        return [between("image_bytes", self.min_bytes, self.max_bytes)]


@operator(reads="image", writes="image_format")
class ImageFormat(ImageFilter):
    """Keep images of some formats, by the content of the file and not by its name.

    >>> ImageFormat(keep=["JPEG", "PNG"]).rules()[0].allowed
    ('JPEG', 'PNG')
    """

    verdict_parameters = frozenset({"keep"})

    keep: list[Format]
    column: str = "image"

    def score(self, batch: Batch) -> Scores:
        return {"image_format": pa.array(headers(batch, "image").format, pa.string())}

    def rules(self) -> list[Rule]:
        return [one_of("image_format", self.keep)]


@operator(reads="image", writes="image_mode")
class ImageMode(ImageFilter):
    """Keep images whose pixels are stored in some modes, by Pillow's names: L (gray), RGB, RGBA, P (palette), CMYK, I;16.

    >>> ImageMode(keep=["RGB"]).rules()[0].allowed
    ('RGB',)
    """

    verdict_parameters = frozenset({"keep"})

    keep: list[str]
    column: str = "image"

    def score(self, batch: Batch) -> Scores:
        return {"image_mode": pa.array(headers(batch, "image").mode, pa.string())}

    def rules(self) -> list[Rule]:
        return [one_of("image_mode", self.keep)]


@operator(reads="image", writes="frames")
class ImageFrameCount(ImageFilter):
    """Drop animated images and files of several pages: keep those with one frame.

    Frames are counted up to 10,000.
    """

    min_frames: int | None = None
    max_frames: int | None = 1
    column: str = "image"

    def score(self, batch: Batch) -> Scores:
        return {"frames": scored(frame_counts(batch, "image"), headers(batch, "image").present)}

    def rules(self) -> list[Rule]:
        return [between("frames", self.min_frames, self.max_frames)]


@operator(reads="image", writes="jpeg_quality")
class JpegQuality(ImageFilter):
    """Drop JPEG files saved with a quality below 50.

    The quality, from 1 to 100, is that of the table of libjpeg for brightness that is closest to the table in the file. It
    is exact for files of programs that use libjpeg. Files of other formats count as 100.

    >>> import numpy as np
    >>> from tamis.image.files import encoded
    >>> file = encoded(np.zeros((32, 32, 3), np.uint8), "JPEG", quality=83)
    >>> JpegQuality().score(Batch.from_rows([{"image": {"bytes": file, "path": None}}]))["jpeg_quality"].to_pylist()
    [83]
    """

    min_quality: int | None = 50
    max_quality: int | None = None
    column: str = "image"

    def score(self, batch: Batch) -> Scores:
        return {"jpeg_quality": scored(jpeg_qualities(batch, "image"), headers(batch, "image").present)}

    def rules(self) -> list[Rule]:
        return [between("jpeg_quality", self.min_quality, self.max_quality)]


class _Fine(Rule):
    """Keeps a row whose image is fine; the reason of a drop is what is wrong with it."""

    @property
    def met(self) -> str:
        return "the file is fine"

    def verdicts(self, values: Column) -> list[tuple[str, np.ndarray]]:
        found = np.array(values.to_pylist(), dtype=object)
        return [
            ("there is no image" if problem == "missing" else f"the file is {problem}", found == problem)
            for problem in sorted(set(found) - {"fine"})
        ]


@operator(reads="image", writes="image_state")
class ImageDecodable(PictureStep, ImageFilter):
    """Drop rows whose image is missing, empty, truncated, corrupt, too large, in an unsupported format, or not an image.

    The whole file is decoded, at the size that other filters use, so that it is decoded only once. Put this step before steps
    that look at images: they fail such rows instead of dropping them. `image_state` is "fine", or what is wrong.

    Images of more than 178,956,970 pixels are too large. They are not decoded.

    >>> step = ImageDecodable()
    >>> step.score(Batch.from_rows([{"image": {"bytes": b"no image", "path": "a.jpg"}}]))["image_state"].to_pylist()
    ['not an image']
    """

    column: str = "image"

    def score(self, batch: Batch) -> Scores:
        return {"image_state": pa.array(problems(batch, "image"), pa.string())}

    def rules(self) -> list[Rule]:
        return [_Fine("image_state")]
