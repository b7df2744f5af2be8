"""Metadata in image files: removed without touching pixels, or read into columns.

    JPEG    segments before the pixels     kept: JFIF, Adobe, ICC profile; removed: EXIF, XMP, IPTC, comments, previews
    PNG     chunks                         kept: pixels, colours, animation; removed: text, EXIF, time, unknown chunks
    WebP    chunks                         kept: pixels, colours, animation; removed: EXIF, XMP, unknown chunks
    GIF     blocks                         kept: pixels, loops; removed: comments, XMP

An orientation other than upright is kept as EXIF data with this one entry: without it, the picture would be turned.
"""

from __future__ import annotations

import datetime
import math
import re
import struct
import zlib
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tamis.batch import Batch, Column
from tamis.errors import ImageError, is_shortage
from tamis.image.decode import ImageStep, of_files
from tamis.image.edit import ImageEdit
from tamis.image.files import Data, Header, exif_of
from tamis.operators import Map, operator

PNG_KEPT = frozenset(
    b"IHDR PLTE IDAT IEND tRNS gAMA cHRM sRGB iCCP cICP mDCV cLLI sBIT bKGD hIST sPLT pHYs acTL fcTL fdAT".split()
)
WEBP_KEPT = frozenset((b"VP8 ", b"VP8L", b"VP8X", b"ALPH", b"ANIM", b"ANMF", b"ICCP"))
NO_METADATA = frozenset({"BMP", "ICO", "PPM", "QOI"})

_JPEG_MARKER = re.compile(rb"\xff[^\x00\xff]")
"""The next marker between segments. Decoders skip what is before it, such as fill bytes."""
_JPEG_MARKER_AFTER_DATA = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
"""The next marker after entropy-coded data."""
_WEBP_EXIF, _WEBP_XMP = 0x08, 0x04
"""Flags of the chunk VP8X."""


@operator(reads="image")
class ImageMetadataRemoval(ImageEdit):
    """Remove EXIF data, XMP, comments, thumbnails and places from image files; pixels are not encoded again.

    Colour profiles and the orientation are kept, because pictures would look different without them. What follows the end
    of a JPEG or PNG file, such as the video of a motion photo, is removed too. JPEG, PNG, WebP and GIF are supported; BMP,
    ICO, PPM and QOI have no metadata. Files of other formats (AVIF, TIFF, JPEG 2000) fail: convert them first
    (`ImageConvert`), or keep them as they are with `others="keep"`.

    >>> import numpy as np
    >>> from tamis.image.files import encoded
    >>> file = encoded(np.zeros((8, 8, 3), np.uint8), "JPEG")
    >>> without_metadata(file[:2] + b"\\xff\\xfe\\x00\\x09private" + file[2:], "JPEG", 1) == file
    True
    """

    others: Literal["fail", "keep"] = "fail"
    column: str = "image"

    def edited(self, data: Data, header: Header) -> tuple[bytes, str] | None:
        if header.format in NO_METADATA or (self.others == "keep" and header.format not in CLEANERS):
            return None
        return without_metadata(data, header.format, header.orientation), header.format


def without_metadata(data: Data, format_: str, orientation: int) -> bytes:
    """The file without metadata."""
    if format_ not in CLEANERS:
        raise ImageError("unsupported", f"the metadata of {format_} files cannot be removed; convert them first")
    try:
        return CLEANERS[format_](bytes(data), _orientation_exif(orientation) if orientation != 1 else b"")
    except (IndexError, struct.error) as error:
        raise ImageError("truncated", f"the {format_} file ends too early") from error


def _orientation_exif(orientation: int) -> bytes:
    """EXIF data with the orientation only: a TIFF header, and a directory with one entry."""
    return struct.pack(">2sHIHHHIHHI", b"MM", 42, 8, 1, 0x0112, 3, 1, orientation, 0, 0)


def _clean_jpeg(data: bytes, exif: bytes) -> bytes:
    parts = [data[:2]]
    rest = [b"\xff\xe1" + struct.pack(">H", len(exif) + 8) + b"Exif\0\0" + exif] if exif else []
    end, has_pixels = 2, False
    while found := _JPEG_MARKER.search(data, end):
        position, marker = found.start(), data[found.start() + 1]
        if marker == 0xD9:
            if not has_pixels:
                raise ImageError("corrupt", "the JPEG file has no pixels")
            return b"".join(parts) + b"\xff\xd9"
        end = position + 2
        if not (marker == 0x01 or 0xD0 <= marker <= 0xD7):
            end += struct.unpack_from(">H", data, position + 2)[0]
        if end > len(data) and not has_pixels:
            raise IndexError
        if marker == 0xDA:
            following = _JPEG_MARKER_AFTER_DATA.search(data, end)
            end, has_pixels = following.start() if following else len(data), True
        if marker != 0xE0:  # JFIF comes first
            parts, rest = parts + rest, []
        parts.append(_clean_segment(marker, data[position:end]))
    if not has_pixels:
        raise IndexError
    return b"".join(parts)


def _clean_segment(marker: int, segment: bytes) -> bytes:
    """What is kept of a segment: without markers of programs that decoders do not need, and without a thumbnail."""
    start = segment[4:16]
    if marker == 0xE0:
        if not start.startswith(b"JFIF\0"):
            return b""
        return segment if len(segment) < 18 else segment[:2] + b"\0\x10" + segment[4:16] + b"\0\0"
    if 0xE1 <= marker <= 0xEF or marker == 0xFE:
        kept = {0xE2: b"ICC_PROFILE\0", 0xEE: b"Adobe"}.get(marker)
        return segment if kept is not None and start.startswith(kept) else b""
    return segment


def _clean_png(data: bytes, exif: bytes) -> bytes:
    parts = [data[:8]]
    position = 8
    while position < len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        end = position + 12 + length
        if end > len(data):
            raise IndexError
        if kind in PNG_KEPT:
            parts.append(data[position:end])
        if kind == b"IHDR" and exif:
            body = b"eXIf" + exif
            parts.append(struct.pack(">I", len(exif)) + body + struct.pack(">I", zlib.crc32(body)))
        if kind == b"IEND":
            break
        position = end
    return b"".join(parts)


def _clean_webp(data: bytes, exif: bytes) -> bytes:
    parts = []
    position, end = 12, min(len(data), 8 + struct.unpack_from("<I", data, 4)[0])
    while position + 8 <= end:
        kind, length = struct.unpack_from("<4sI", data, position)
        following = position + 8 + length + length % 2
        if position + 8 + length > len(data):
            raise IndexError
        if kind == b"VP8X":
            flags = data[position + 8] & ~(_WEBP_EXIF | _WEBP_XMP) | (_WEBP_EXIF if exif else 0)
            parts.append(data[position : position + 8] + bytes([flags]) + data[position + 9 : following])
        elif kind in WEBP_KEPT:
            parts.append(data[position:following])
        position = following
    if exif:
        parts.append(b"EXIF" + struct.pack("<I", len(exif)) + exif + b"\0" * (len(exif) % 2))
    body = b"WEBP" + b"".join(parts)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def _clean_gif(data: bytes, _: bytes) -> bytes:
    palette = 3 * 2 ** ((data[10] & 7) + 1) if data[10] & 0x80 else 0
    position = 13 + palette
    parts = [data[:position]]
    while data[position] != 0x3B:
        begin = position
        if data[position] == 0x21:
            label, position = data[position + 1], position + 2
            looped = data[position + 1 : position + 12] in (b"NETSCAPE2.0", b"ANIMEXTS1.0")
            keep = label != 0xFE and (label != 0xFF or looped)
        elif data[position] == 0x2C:
            flags = data[position + 9]
            position += 11 + (3 * 2 ** ((flags & 7) + 1) if flags & 0x80 else 0)
            keep = True
        else:
            raise ImageError("corrupt", "a GIF block has an unknown kind")
        while data[position]:
            position += data[position] + 1
        position += 1
        if keep:
            parts.append(data[begin:position])
    return b"".join(parts) + b";"


CLEANERS = {"JPEG": _clean_jpeg, "PNG": _clean_png, "WEBP": _clean_webp, "GIF": _clean_gif}


# ---------------------------------------------------------------------------------------------------------------- EXIF

_TAGS = {"make": 0x010F, "model": 0x0110, "software": 0x0131, "artist": 0x013B, "copyright": 0x8298}
_EXIF_IFD, _GPS_IFD, _TAKEN = 0x8769, 0x8825, 0x9003
EXIF_COLUMNS = {
    "exif_make": pa.string(),
    "exif_model": pa.string(),
    "exif_software": pa.string(),
    "exif_artist": pa.string(),
    "exif_copyright": pa.string(),
    "exif_taken": pa.timestamp("s"),
    "exif_latitude": pa.float64(),
    "exif_longitude": pa.float64(),
}


@operator(reads="image", writes=tuple(EXIF_COLUMNS))
class ImageExif(ImageStep, Map):
    """Add what the EXIF data of an image say: camera, software, artist, copyright, time, and place in degrees.

    The time has no time zone, as in the file. What is missing or damaged is null.
    """

    column: str = "image"

    def writes(self) -> tuple[str, ...]:
        prefix = "" if self.column == "image" else f"{self.column}_"
        return tuple(prefix + name for name in EXIF_COLUMNS)

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        rows = [found or {} for found in of_files(batch, "image", _exif_values)]
        return {
            name: pa.array([row.get(key) for row in rows], kind)
            for name, (key, kind) in zip(self.writes(), EXIF_COLUMNS.items(), strict=True)
        }


def _exif_values(data: Data, header: Header) -> dict[str, Any]:
    exif = exif_of(data)
    if exif is None:
        return {}
    found: dict[str, Any] = {f"exif_{name}": _text(exif.get(tag)) for name, tag in _TAGS.items()}
    found["exif_taken"] = _time(_text(_ifd(exif, _EXIF_IFD).get(_TAKEN)))
    place = _ifd(exif, _GPS_IFD)
    found["exif_latitude"] = _degrees(place.get(2), place.get(1), b"S", 90)
    found["exif_longitude"] = _degrees(place.get(4), place.get(3), b"W", 180)
    return found


def _ifd(exif: Any, number: int) -> Mapping[int, Any]:
    try:
        return dict(exif.get_ifd(number))
    except Exception as error:  # damaged directories raise all kinds of errors
        if is_shortage(error):
            raise
        return {}


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str):
        return None
    return value.encode("utf-8", "replace").decode().strip(" \0\r\n\t") or None


def _time(text: str | None) -> datetime.datetime | None:
    try:
        return datetime.datetime.strptime(text or "", "%Y:%m:%d %H:%M:%S")
    except ValueError:
        return None


def _degrees(values: Any, reference: Any, negative: bytes, most: int) -> float | None:
    try:
        degrees, minutes, seconds = (float(value) for value in values)
        result = degrees + minutes / 60 + seconds / 3600
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    if not math.isfinite(result) or abs(result) > most:
        return None
    sign = reference.encode("ascii", "replace") if isinstance(reference, str) else bytes(reference or b"")
    return -result if sign[:1].upper() == negative else result
