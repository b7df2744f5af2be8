"""Readers of images, sounds, videos and documents that are files of their own: one row per file, which refers to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from tamis.batch import Batch, Origin
from tamis.errors import SourceError
from tamis.features import media_feature, with_features
from tamis.operators import Layout, Partition, Piece, Reading, operator
from tamis.sources.files import File, is_local, list_files, local_path
from tamis.sources.filesource import DamagedFiles, FileSource
from tamis.sources.jsonmedia import MEDIA

_ROW_BYTES = 500
"""An estimate of what a row takes besides the file it refers to."""


@dataclass(frozen=True)
class _MediaFiles(FileSource):
    """One row per file, with its path and its size."""

    rows_are_files = True

    def layout(self, blocksize: int) -> Layout:
        size = self.block_bytes(blocksize)
        files, damaged = self.list_files(), DamagedFiles()
        schema = pa.schema([(self.format, MEDIA), ("path", pa.string()), ("size", pa.int64())])
        if self.format != "document":  # Hugging Face datasets have no such feature
            schema = with_features(schema, {self.format: media_feature(self.format)})
        pieces = [Piece(file.path, 0, file.size, file.size + _ROW_BYTES) for file in files]
        layout = self.divided(files, pieces, schema, size, {}, damaged)
        return replace(layout, num_rows=sum(piece.limit != 0 for each in layout.partitions for piece in each.pieces))

    def count_rows(self, piece: Piece, most: int) -> int:
        return 1

    def read(self, partition: Partition, reading: Reading) -> Iterator[Batch]:
        wanted = self.wanted(reading)
        # A step that reads the files of a batch holds all of them at a time.
        counted = wanted is None or self.format in wanted
        held: list[Piece] = []
        num_bytes = 0
        for piece in self.pieces_to_read(partition, reading):
            held.append(piece)
            num_bytes += piece.size if counted else _ROW_BYTES
            if num_bytes >= reading.batch_bytes:
                yield self._rows(held, wanted)
                held, num_bytes = [], 0
        if held:
            yield self._rows(held, wanted)

    def _rows(self, pieces: list[Piece], wanted: list[str] | None) -> Batch:
        paths = [piece.path for piece in pieces]
        full = [str(Path(local_path(path)).absolute()) if is_local(path) else path for path in paths]
        references = [{"bytes": None, "path": path} for path in full]
        table = pa.table(
            {
                self.format: pa.array(references, MEDIA),
                "path": pa.array(paths, pa.string()),
                "size": pa.array([piece.stop for piece in pieces], pa.int64()),
            }
        )
        if wanted is not None:
            table = table.select([name for name in table.column_names if name in wanted])
        rows = len(pieces)
        return self.batch(table, Origin(tuple(paths), np.arange(rows, dtype=np.int32), np.zeros(rows, np.int64)))


@operator()
class ImageReader(_MediaFiles):
    """Read image files, one row per file, with its `path` and its `size` in bytes.

    Column `image` refers to the file, which is read when a step needs it. Many small files become one partition.

    >>> ImageReader("photos/**/*.jpg").name
    'image_reader'
    """

    format = "image"


@operator()
class AudioReader(_MediaFiles):
    """Read sound files, one row per file, with its `path` and its `size` in bytes.

    Column `audio` refers to the file, which is read when a step needs it. Many small files become one partition. Videos
    are read for their sound if a folder has no sound files, or if the path names them.

    >>> AudioReader("clips/**/*.flac").name
    'audio_reader'
    """

    format = "audio"
    other_formats = ("video",)

    def list_files(self) -> list[File]:
        try:
            return super().list_files()
        except SourceError as nothing:
            try:
                return list_files(self.file_paths, "video", self.storage_options)
            except SourceError:
                raise nothing from None


@operator()
class VideoReader(_MediaFiles):
    """Read video files, one row per file, with its `path` and its `size` in bytes.

    Column `video` refers to the file, which is read when a step needs it. Many small files become one partition.

    >>> VideoReader("videos/**/*.mp4").name
    'video_reader'
    """

    format = "video"


@operator()
class DocumentReader(_MediaFiles):
    """Read documents in files (PDF, HTML, EPUB, Office, LaTeX), one row per file, with its `path` and its `size` in bytes.

    Column `document` refers to the file, which is read when a step needs it: `DocumentExtract`, `PdfExtract` or
    `LatexExtract` make text of it. Many small files become one partition. `ArchiveReader` reads documents in archives.

    >>> DocumentReader("papers/**/*.pdf").name
    'document_reader'
    """

    format = "document"
