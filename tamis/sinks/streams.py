"""Compressed output files. The same input bytes always give the same file, and a closed file is synced to disk."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import os
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from tamis.formats import CODECS

COMPRESSIONS = tuple(suffix[1:] for suffix in CODECS)


class ByteStream:
    """A file being written. `size` is the number of bytes written so far, without the buffer of the compressor."""

    def __init__(self, path: Path, compression: str | None) -> None:
        self.path = path
        self._file: IO[bytes] = path.open("wb")
        self._stream = _compressor(self._file, compression)

    @property
    def size(self) -> int:
        return self._file.tell()

    def write(self, data: bytes | pa.Buffer) -> None:
        self._stream.write(data)

    def flush(self) -> None:
        """Flush the compressor, if it supports that (bz2 and xz do not)."""
        if not isinstance(self._stream, (bz2.BZ2File, lzma.LZMAFile)):
            self._stream.flush()

    def close(self) -> int:
        """Flush and sync the file, and return its size."""
        try:
            self._stream.close()
        finally:
            self._file.close()
        return synced(self.path)

    def abort(self) -> None:
        """Delete the file, ignoring errors while closing it: a full disk may be why it is deleted."""
        with contextlib.suppress(OSError):
            self._stream.close()
        with contextlib.suppress(OSError):
            self._file.close()
        self.path.unlink(missing_ok=True)


def _compressor(file: IO[bytes], compression: str | None) -> Any:
    if compression == "gz":
        # Without a name and a timestamp in the header, the file depends only on the rows. Level 4 is twice as fast as
        # level 6 and writes 4 % more bytes.
        return gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=4, mtime=0)
    if compression == "bz2":
        return bz2.BZ2File(file, mode="wb")
    if compression == "xz":
        return lzma.LZMAFile(file, mode="wb")
    if compression in ("zst", "lz4"):
        # One frame for the whole file: pandas and fsspec stop reading after the first.
        return pa.CompressedOutputStream(file, "zstd" if compression == "zst" else "lz4")
    return file


def reading(path: Path, compression: str | None) -> Any:
    """A stream of the bytes that were written to a `ByteStream`; use as a context manager."""
    if compression == "gz":
        return gzip.open(path, "rb")
    if compression == "bz2":
        return bz2.open(path, "rb")
    if compression == "xz":
        return lzma.open(path, "rb")
    if compression in ("zst", "lz4"):
        return pa.input_stream(str(path), compression="zstd" if compression == "zst" else "lz4")
    return path.open("rb")


def synced(path: Path) -> int:
    """Sync a closed file to disk and return its size."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
