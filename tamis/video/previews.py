"""Previews of videos: small animations and sheets of frames, as images."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from tamis.batch import Batch, Column
from tamis.errors import ParameterError, require
from tamis.media import MediaItem
from tamis.operators import Map, operator
from tamis.video.decode import FramePolicy, Still, TrackStep, header_of, stills, take_stills

SHEET_SIDE = 160
"""The longest side of a frame on a contact sheet, in pixels."""


@operator(reads="video")
class VideoPreview(TrackStep, Map):
    """Add a preview of each video: an animated WebP image in column `preview`, or a sheet of its frames with their times.

    An animation shows one frame per second at a height of 240 pixels, in quality 50 (the defaults of NeMo Curator). With
    `form="sheet"`, up to 12 frames are shown at a time, four in a row, with their times in seconds. The preview of a row
    without video is null.
    """

    preload: ClassVar[tuple[str, ...]] = ("av", "PIL.ImageDraw", "PIL.WebPImagePlugin")

    form: Literal["animation", "sheet"] = "animation"
    every_s: float = 1.0
    height: int = 240
    quality: int = 50
    max_frames: int = 30
    output: str = "preview"
    column: str = "video"

    def check(self) -> None:
        if not 16 <= self.height <= 1024 or not 1 <= self.quality <= 100 or not self.every_s > 0 or self.max_frames < 1:
            raise ParameterError(
                "`height` is 16 to 1024, `quality` 1 to 100, `every_s` positive, `max_frames` at least 1"
            )

    def writes(self) -> tuple[str, ...]:
        return (self.output,)

    @property
    def row_bytes(self) -> int:
        return 512_000 * max(1, self.height // 256) ** 2 * (12 if self.form == "sheet" else self.max_frames)

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        number = 12 if self.form == "sheet" else self.max_frames
        policy = FramePolicy("number" if self.form == "sheet" else "every", self.every_s, number, number)
        rows = stills(batch, "video", policy, self.height)
        make = self._sheet if self.form == "sheet" else self._animation
        made = [None if found is None else {"bytes": make(found), "path": "preview.webp"} for found in rows]
        return {self.output: pa.array(made, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))}

    def _images(self, found: list[Still]) -> list[Any]:
        images = require("PIL.Image", extra="image", purpose="writing previews")
        shown = []
        for still in found:
            image = images.fromarray(still.pixels)
            width = max(1, round(image.width * self.height / image.height))
            if image.height > self.height:
                image = image.resize((width, self.height), images.Resampling.BOX, reducing_gap=2.0)
            shown.append(image)
        return shown

    def _animation(self, found: list[Still]) -> bytes:
        first, *others = self._images(found)
        target = io.BytesIO()
        first.save(
            target, "WEBP", save_all=True, append_images=others, duration=500, loop=0, quality=self.quality, method=4
        )
        return target.getvalue()

    def _sheet(self, found: list[Still]) -> bytes:
        target = io.BytesIO()
        sheet_of(self._images(found), found, 4).save(target, "WEBP", quality=self.quality, method=4)
        return target.getvalue()


def sheet_of(shown: list[Any], found: list[Still], columns: int) -> Any:
    """Images of frames in rows, with their times below them, as one image of Pillow."""
    images = require("PIL.Image", extra="image", purpose="writing previews")
    draws = require("PIL.ImageDraw", extra="image", purpose="writing previews")
    width, height = max(each.width for each in shown), max(each.height for each in shown)
    columns = min(columns, len(shown))
    rows = -(-len(shown) // columns)
    sheet = images.new("RGB", (columns * (width + 4), rows * (height + 18)), "white")
    draw = draws.Draw(sheet)
    for index, (image, still) in enumerate(zip(shown, found, strict=True)):
        left, top = index % columns * (width + 4), index // columns * (height + 18)
        sheet.paste(image, (left, top))
        draw.text((left + 2, top + height + 3), f"{still.time:.1f} s", fill="black")
    return sheet


def shown_frames(item: MediaItem) -> tuple[str, bytes]:
    """(what a video is, four of its frames with their times as a JPEG), for a contact sheet."""
    images = require("PIL.Image", extra="image", purpose="writing previews")
    header, found = header_of(item), take_stills(item, FramePolicy("number", number=4), 256)
    shown = [images.fromarray(still.pixels) for still in found]
    for image in shown:
        image.thumbnail((SHEET_SIDE, SHEET_SIDE))
    target = io.BytesIO()
    sheet_of(shown, found, 2).save(target, "JPEG", quality=80)
    rate = f", {header.rate:.4g} frames/s" if header.rate > 0 else ""
    return f"{header.duration:.2f} s, {header.width} x {header.height}{rate}, {header.codec}", target.getvalue()
