"""The formats of data files: their suffixes, readers and writers. Every other module looks them up here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """A kind of data file."""

    name: str
    suffixes: tuple[str, ...]
    reader: str
    writer: str | None = None
    """The recipe name of the sink that writes it; None if there is none."""
    compressible: bool = False
    """Whether a file may have a compression suffix after its own."""
    is_media: bool = False
    """Whether a file is one image, sound or video, and not a table of rows."""
    is_document: bool = False
    """Whether a file is one document, or an archive of such."""


_IMAGES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".heic", ".jxl"),
    *(".jp2", ".j2k", ".ppm", ".pgm", ".pbm", ".pnm", ".ico", ".qoi", ".apng", ".tga", ".svg"),
)
_SOUNDS = (".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".m4a", ".aac", ".wma", ".aiff", ".aif", ".au", ".sph")
_VIDEOS = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ogv", ".wmv", ".flv", ".3gp")
_DOCUMENTS = (
    *(".pdf", ".html", ".htm", ".xhtml", ".epub", ".docx", ".docm", ".pptx", ".pptm", ".xlsx", ".xlsm"),
    *(".odt", ".odp", ".ods", ".tex", ".ltx"),
)

FORMATS = {
    each.name: each
    for each in (
        Format("jsonl", (".jsonl", ".json", ".ndjson"), "jsonl_reader", "jsonl_writer", compressible=True),
        Format("parquet", (".parquet",), "parquet_reader", "parquet_writer"),
        Format("csv", (".csv", ".tsv"), "csv_reader", "csv_writer", compressible=True),
        Format("arrow", (".arrow", ".feather", ".ipc"), "arrow_reader", "arrow_writer"),
        Format("lance", (".lance",), "lance_reader"),  # the suffix of a dataset and of its data files
        Format("text", (".txt", ".md"), "text_reader", compressible=True),
        Format("tar", (".tar", ".tgz"), "web_dataset_reader", "web_dataset_writer", compressible=True),
        Format("warc", (".warc", ".wet", ".wat", ".arc"), "warc_reader", compressible=True),
        Format("mediawiki", (".xml",), "mediawiki_reader", compressible=True),
        Format("image", _IMAGES, "image_reader", "folder_writer", is_media=True),
        Format("audio", _SOUNDS, "audio_reader", "folder_writer", is_media=True),
        Format("video", _VIDEOS, "video_reader", "folder_writer", is_media=True),
        Format("document", _DOCUMENTS, "document_reader", is_document=True),
        Format("zip", (".zip",), "archive_reader", is_document=True),
    )
}

CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz", ".lz4": "lz4"}
"""Compression suffixes, and the compression of each."""


def codec_of(path: str) -> str | None:
    """The compression inferred from a file name: gzip, zstd, bz2, xz, lz4 or None."""
    suffix = _suffix(path)
    return "gzip" if suffix == ".tgz" else CODECS.get(suffix)


def media_kind(path: str) -> str | None:
    """What a file name says about the content: image, audio, video or None."""
    form = format_of(path)
    return form if form is not None and FORMATS[form].is_media else None


def format_of(path: str) -> str | None:
    """The format inferred from a file name, without its compression suffix; None if it is not a known one."""
    suffix = _suffix(path)
    compressed = suffix in CODECS
    if compressed:
        suffix = _suffix(path[: -len(suffix)])
    for form in FORMATS.values():
        if suffix in form.suffixes and (form.compressible or not compressed):
            return form.name
    return None


def _suffix(path: str) -> str:
    name = path[path.rfind("/") + 1 :]
    dot = name.rfind(".")
    return name[dot:].lower() if dot > 0 else ""
