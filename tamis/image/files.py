"""Image files: their format, header and pixels. The only module that calls the libraries that decode.

JPEG is decoded by libjpeg-turbo through simplejpeg, and by Pillow where that cannot (CMYK); both give the same pixels. All
other formats are decoded by Pillow. Each file is opened by the decoder that its first bytes name, so that formats that are
programs (PostScript, SVG) reach no decoder.
"""

from __future__ import annotations

import functools
import io
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tamis.errors import ImageError, is_shortage, require
from tamis.kernels.pixels import on_white, shrink

Data: TypeAlias = memoryview | bytes

MAX_PIXELS = 178_956_970
"""Files with more pixels are not decoded. It is the number above which Pillow refuses a file as a decompression bomb."""

MOST_FRAMES = 10_000
"""Frames beyond these are not counted."""

ENCODED = ("JPEG", "PNG", "WEBP", "AVIF")
"""Formats that images are written in."""

PLUGINS = {
    "JPEG": ("JpegImagePlugin", "JpegImageFile"),
    "PNG": ("PngImagePlugin", "PngImageFile"),
    "GIF": ("GifImagePlugin", "GifImageFile"),
    "WEBP": ("WebPImagePlugin", "WebPImageFile"),
    "AVIF": ("AvifImagePlugin", "AvifImageFile"),
    "TIFF": ("TiffImagePlugin", "TiffImageFile"),
    "BMP": ("BmpImagePlugin", "BmpImageFile"),
    "JPEG2000": ("Jpeg2KImagePlugin", "Jpeg2KImageFile"),
    "PPM": ("PpmImagePlugin", "PpmImageFile"),
    "ICO": ("IcoImagePlugin", "IcoImageFile"),
    "QOI": ("QoiImagePlugin", "QoiImageFile"),
}
"""The decoders of Pillow, by format."""

_DAMAGE = re.compile("premature end of data segment|bad Huffman code|bad arithmetic code|instead of RST", re.IGNORECASE)
"""Warnings of libjpeg after which some pixels are wrong."""

_PROBLEMS = (
    (re.compile("decompression bomb"), "too large"),
    (re.compile("truncated|premature end of (JPEG|data)|not enough|only got", re.IGNORECASE), "truncated"),
    (re.compile("unsupported|unknown|not configured", re.IGNORECASE), "unsupported"),
)
"""What messages of decoders mean; all others mean that a file is corrupt."""

_EXIF_ORIENTATION = 0x0112
_AVIF_BRANDS = (b"avif", b"avis")


@dataclass(frozen=True)
class Header:
    """What a file says about itself before its pixels."""

    format: str
    mode: str
    width: int
    height: int
    orientation: int
    num_bytes: int


def format_of(data: Data) -> str | None:
    """The format that the first bytes of a file name.

    >>> format_of(b"GIF89a..."), format_of(b"<svg")
    ('GIF', None)
    """
    start = bytes(data[:16])
    if start.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if start.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if start.startswith((b"GIF87a", b"GIF89a")):
        return "GIF"
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "WEBP"
    if start[4:8] == b"ftyp" and (start[8:12] in _AVIF_BRANDS or any(b in bytes(data[16:64]) for b in _AVIF_BRANDS)):
        return "AVIF"
    if start.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")):
        return "TIFF"
    if start.startswith((b"\0\0\0\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51")):
        return "JPEG2000"
    if start.startswith(b"BM"):
        return "BMP"
    if start.startswith(b"\0\0\1\0"):
        return "ICO"
    if start.startswith(b"qoif"):
        return "QOI"
    if re.match(rb"P[1-6][\s#]", start):
        return "PPM"
    return None


def read_header(data: Data) -> Header:
    """The header of a file; raises an ImageError if it is not an image."""
    if not len(data):
        raise ImageError("empty", "the file has no bytes")
    image = _opened(data)
    width, height = image.size
    orientation = _orientation(image)
    if orientation >= 5:
        width, height = height, width
    return Header(image.format, image.mode, width, height, orientation, len(data))


def decode_file(data: Data, header: Header, tier: int, longest: int) -> np.ndarray:
    """The pixels of a file, with a short side of `tier` if there are as many, and a long side of at most `longest` tiers."""
    return load_pixels(data, header, tier, lambda pixels: _in_tier(pixels, tier, longest))


def load_pixels(
    data: Data, header: Header, side: int | None, reduce: Callable[[np.ndarray], np.ndarray] | None = None
) -> np.ndarray:
    """The pixels of a file: sRGB uint8[height, width, 3], upright.

    Those of a JPEG may be reduced, as long as the short side has at least `side` pixels; None stands for all pixels. What
    `reduce` makes of the pixels is turned and converted to sRGB, which costs less than to do so with all of them.
    """
    if header.width * header.height > MAX_PIXELS:
        raise ImageError(
            "too large", f"{header.width:,} x {header.height:,} pixels; at most {MAX_PIXELS:,} are decoded"
        )
    image = _opened(data)
    _check_memory(image, side)
    try:
        pixels, mode = _jpeg_pixels(data, image, side) if header.format == "JPEG" else _pixels(image)
    except ImageError:
        raise
    except Exception as error:  # decoders raise all kinds of errors for damaged files
        raise _explained(error, header) from error
    if reduce is not None:
        pixels = reduce(pixels)
    return _upright(_in_srgb(pixels, mode, image.info.get("icc_profile")), header.orientation)


def frames_of(data: Data, header: Header, every: int, most: int) -> Iterator[np.ndarray]:
    """Every `every`-th frame or page of a file, at most `most`: sRGB uint8[height, width, 3]."""
    if count_frames(data, header) == 1:
        yield load_pixels(data, header, None)
        return
    image = _opened(data)
    last = min(count_frames(data, header), most * every)
    for number in range(0, last, every):
        try:
            image.seek(number)
            if image.size[0] * image.size[1] > MAX_PIXELS:
                raise ImageError("too large", f"frame {number} has {image.size[0]:,} x {image.size[1]:,} pixels")
            _check_memory(image, None)
            pixels, mode = _pixels(image)
        except ImageError:
            raise
        except Exception as error:  # decoders raise all kinds of errors for damaged files
            raise _explained(error, header) from error
        yield _upright(_in_srgb(pixels, mode, image.info.get("icc_profile")), header.orientation)


def exif_of(data: Data) -> Any:
    """The EXIF data of a file, as Pillow's object; None if there are none, or if they are damaged."""
    return _exif(_opened(data))


def reduced(pixels: np.ndarray, width: int, height: int) -> np.ndarray:
    """Pixels in a size that is not larger in any direction, by area averages."""
    result = np.empty((height, width, 3), np.uint8)
    shrink(np.ascontiguousarray(pixels), result)
    return result


def enlarged(pixels: np.ndarray, width: int, height: int) -> np.ndarray:
    """Pixels in a larger size (Lanczos)."""
    images = _pillow("Image")
    return np.asarray(images.fromarray(pixels).resize((width, height), images.Resampling.LANCZOS))


def encoded(pixels: np.ndarray, format_: str, quality: int = 90) -> bytes:
    """A file of some pixels, uint8[height, width, 3]. The quality counts for JPEG, WebP and AVIF."""
    target = io.BytesIO()
    options: dict[str, Any] = {"quality": quality} if format_ in ("JPEG", "WEBP", "AVIF") else {}
    if format_ == "AVIF":
        options["max_threads"] = 1
    if format_ == "JPEG":
        options["subsampling"] = 0 if quality >= 90 else 2
    _pillow("Image").fromarray(pixels).save(target, format_, **options)
    return target.getvalue()


# ------------------------------------------------------------------------------------------------------------- headers


@functools.cache
def _pillow(module: str) -> Any:
    # What is wrong with a file is the outcome of its row.
    logging.getLogger("PIL.TiffImagePlugin").setLevel(logging.CRITICAL)
    return require(f"PIL.{module}", extra="image", purpose="decoding images")


def _opened(data: Data) -> Any:
    """The image, opened by the decoder of its format; its pixels are not decoded."""
    format_ = format_of(data)
    if format_ is None:
        what = (
            "SVG is not decoded" if b"<svg" in bytes(data[:1000]).lower() else "its first bytes are of no known format"
        )
        raise ImageError("not an image", what)
    module, name = PLUGINS[format_]
    plugin = _pillow(module)
    try:
        with _one_thread(plugin):
            return getattr(plugin, name)(io.BytesIO(data))
    except Exception as error:  # decoders raise all kinds of errors for damaged files
        if is_shortage(error) or isinstance(error, ImageError):
            raise
        raise _described(error, f"the {format_} header cannot be read") from error


@contextmanager
def _one_thread(plugin: Any) -> Iterator[None]:
    """Let the decoder of AVIF use one thread: each core has a worker."""
    before = getattr(plugin, "DEFAULT_MAX_THREADS", None)
    if before is None:
        yield
        return
    plugin.DEFAULT_MAX_THREADS = 1
    try:
        yield
    finally:
        plugin.DEFAULT_MAX_THREADS = before


def _orientation(image: Any) -> int:
    exif = None if image.format == "TIFF" else _exif(image)  # Pillow turns the pixels of TIFF files itself
    found = 1 if exif is None else exif.get(_EXIF_ORIENTATION, 1)
    return found if isinstance(found, int) and 1 <= found <= 8 else 1


def _exif(image: Any) -> Any:
    """The EXIF data of an image; None if there are none before its pixels, or if they are damaged."""
    if image.format != "TIFF" and not {"exif", "Raw profile type exif"} & image.info.keys():
        return None  # Pillow would decode a PNG to look behind its pixels
    try:
        return image.getexif()
    except Exception as error:  # damaged EXIF data raise all kinds of errors
        if is_shortage(error):
            raise
        return None


def count_frames(data: Data, header: Header) -> int:
    """The number of frames or pages of a file, up to MOST_FRAMES."""
    if header.format not in ("GIF", "PNG", "WEBP", "AVIF", "TIFF"):
        return 1
    image = _opened(data)
    if header.format != "TIFF":
        try:
            return min(MOST_FRAMES, getattr(image, "n_frames", 1))
        except Exception as error:  # decoders raise all kinds of errors for damaged files
            raise _explained(error, header) from error
    for number in range(1, MOST_FRAMES):  # a chain of pages may be endless
        try:
            image.seek(number)
        except (EOFError, ValueError, OSError, SyntaxError, KeyError, TypeError):
            return number
    return MOST_FRAMES


def jpeg_quality(data: Data, header: Header) -> int:
    """The quality, 1 to 100, whose table for brightness in libjpeg is closest to the first one of the file."""
    if header.format != "JPEG":
        return 100
    tables = _opened(data).quantization
    if not tables:
        return 100
    distances = np.abs(_libjpeg_tables() - np.array(tables[min(tables)], np.int64)).sum(axis=1)
    return 100 - int(distances[::-1].argmin())


@functools.cache
def _libjpeg_tables() -> np.ndarray:
    """int64[100, 64]: the table of libjpeg for brightness by quality - 1 (ITU-T T.81, table K.1, scaled)."""
    base = np.array(
        [
            16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55,
            14, 13, 16, 24, 40, 57, 69, 56, 14, 17, 22, 29, 51, 87, 80, 62,
            18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92,
            49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99,
        ]
    )  # fmt: skip
    quality = np.arange(1, 101)[:, None]
    scale = np.where(quality < 50, 5000 // quality, 200 - 2 * quality)
    return ((base * scale + 50) // 100).clip(1, 255)


def _explained(error: Exception, header: Header) -> Exception:
    """The error to raise for what a decoder raised: not every lack of memory is a MemoryError."""
    if is_shortage(error):
        return error
    text = str(error).lower()
    if "memory" in text or "alloc" in text:
        return MemoryError(str(error))
    np.empty(header.width * header.height * 8, np.uint8)  # raises a MemoryError if that is the cause
    return _described(error, f"the {header.format} data cannot be decoded")


def _described(error: Exception, what: str) -> ImageError:
    text = str(error) or type(error).__name__
    problem = next((problem for pattern, problem in _PROBLEMS if pattern.search(text)), "corrupt")
    return ImageError("truncated" if isinstance(error, EOFError) else problem, f"{what}: {text}")


# -------------------------------------------------------------------------------------------------------------- pixels


def _check_memory(image: Any, tier: int | None) -> None:
    """Raise a MemoryError if the pixels do not fit: not every decoder notices it, and some call the file corrupt."""
    width, height = image.size
    if image.format == "JPEG":
        scale = _dct_scale(min(width, height), tier)
        coefficients = 6 * width * height if image.info.get("progressive") else 0
        needed = 3 * (width // scale + 1) * (height // scale + 1) + coefficients
    else:
        needed = 8 * width * height  # 4 bytes in Pillow, and the array
    np.empty(needed, np.uint8)  # reserved and released at once; the pages are never touched


def _jpeg_pixels(data: Data, image: Any, tier: int | None) -> tuple[np.ndarray, str]:
    width, height = image.size
    scale = _dct_scale(min(width, height), tier)
    if image.mode not in ("RGB", "L"):
        image.draft(image.mode, (width // scale, height // scale))
        return _pixels(image)
    simplejpeg = require("simplejpeg", extra="image", purpose="decoding images")
    raw = data.cast("B") if isinstance(data, memoryview) else data
    size = {"min_width": -(-width // scale), "min_height": -(-height // scale)} if scale > 1 else {}
    try:
        return simplejpeg.decode_jpeg(raw, "RGB", **size), image.mode
    except ValueError as error:
        if _DAMAGE.search(str(error)):
            raise
        # A warning, such as bytes between segments: Pillow raises an error only if pixels are missing.
        image.draft(image.mode, (width // scale, height // scale))
        return _pixels(image)


def _dct_scale(short: int, tier: int | None) -> int:
    """How many times smaller a JPEG is decoded: 2, 4 and 8 are fast."""
    return 1 if tier is None else max(scale for scale in (1, 2, 4, 8) if scale == 1 or short >= scale * tier)


def _pixels(image: Any) -> tuple[np.ndarray, str]:
    """All pixels of the first frame as RGB, without transparency, and the kind of colours: L, RGB or sRGB."""
    image.load()
    mode = image.mode
    if mode.startswith("I"):
        values = np.asarray(image).clip(0, 65535).astype(np.uint32)
        gray = ((values * 255 + 32767) // 65535).astype(np.uint8)
        return np.repeat(gray[:, :, None], 3, axis=2), "L"
    if mode == "F":
        raise ImageError("unsupported", "its pixels are floating-point numbers without a defined range")
    if mode in ("CMYK", "LAB"):
        return np.asarray(_converted(image, image.info.get("icc_profile"))), "sRGB"
    kind = "L" if mode in ("1", "L", "LA", "La") else "RGB"
    if image.has_transparency_data:
        layers = np.asarray(image if mode == "RGBA" else image.convert("RGBA"))
        pixels = np.empty((*layers.shape[:2], 3), np.uint8)
        on_white(layers, pixels)
        return pixels, kind
    return np.asarray(image if mode == "RGB" else image.convert("RGB")), kind


def _in_tier(pixels: np.ndarray, tier: int, longest: int) -> np.ndarray:
    height, width, _ = pixels.shape
    ratio = min(1.0, tier / min(height, width), longest * tier / max(height, width))
    size = (max(1, round(width * ratio)), max(1, round(height * ratio)))
    return pixels if size == (width, height) else reduced(pixels, *size)


def _upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Pixels turned as the EXIF orientation says."""
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


# ------------------------------------------------------------------------------------------------------------- colours


def _in_srgb(pixels: np.ndarray, mode: str, profile: bytes | None) -> np.ndarray:
    if not profile or mode == "sRGB":
        return pixels
    transform = _transform(profile, mode)
    if transform is None:
        return pixels
    image = _pillow("Image").fromarray(np.ascontiguousarray(pixels[:, :, 0] if mode == "L" else pixels))
    return np.asarray(transform.apply(image))


def _converted(image: Any, profile: bytes | None) -> Any:
    """An image in CMYK or LAB, converted by its profile, or without one as Pillow does."""
    transform = _transform(profile, image.mode) if profile else None
    return image.convert("RGB") if transform is None else transform.apply(image)


@functools.lru_cache(maxsize=64)
def _transform(profile: bytes, mode: str) -> Any:
    """The transform from a profile to sRGB; None if there is nothing to do, or if the profile is damaged or does not fit."""
    cms = _pillow("ImageCms")
    try:
        source = cms.ImageCmsProfile(io.BytesIO(profile))
        if "srgb" in cms.getProfileDescription(source).lower():
            return None
        return cms.buildTransform(source, cms.createProfile("sRGB"), mode, "RGB")
    except (cms.PyCMSError, OSError, ValueError, TypeError):
        return None
