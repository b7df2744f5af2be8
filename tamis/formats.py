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


FORMATS = {
    each.name: each
    for each in (
        Format("jsonl", (".jsonl", ".json", ".ndjson"), "jsonl_reader", "jsonl_writer", compressible=True),
        Format("parquet", (".parquet",), "parquet_reader", "parquet_writer"),
        Format("csv", (".csv", ".tsv"), "csv_reader", "csv_writer", compressible=True),
        Format("arrow", (".arrow", ".feather", ".ipc"), "arrow_reader", "arrow_writer"),
        Format("text", (".txt", ".md"), "text_reader", compressible=True),
    )
}

CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz", ".lz4": "lz4"}
"""Compression suffixes, and the compression of each."""


def codec_of(path: str) -> str | None:
    """The compression inferred from a file name: gzip, zstd, bz2, xz, lz4 or None."""
    return CODECS.get(_suffix(path))


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
