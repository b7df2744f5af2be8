"""Write media as files in folders with manifests, the layout of `imagefolder` and `audiofolder` of Hugging Face datasets.

    part-000000/metadata.jsonl     {"file_name":"00000000.jpg","caption":"a cat"}
    part-000000/00000000.jpg

A folder is one shard: it gets its name when it is complete, and the ledger has one record for it, not one per file.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from tamis.errors import SinkError
from tamis.media import LARGE_BYTES, is_media
from tamis.operators import Operator, Shard, ShardWriter, operator
from tamis.remote import is_remote
from tamis.sinks.samples import Sample, check_file_names, samples
from tamis.sinks.streams import ByteStream, synced
from tamis.sinks.tables import TableSink
from tamis.sinks.writers import Selection
from tamis.sources.references import ReadMedia
from tamis.store import sync_folder

MANIFEST = "metadata.jsonl"


class FolderSink(TableSink):
    """Shared by the sinks that write a folder per partition, with media as files in it."""

    compressions = ()
    preload = ("tamis.kernels.json",)

    def parts(self) -> Sequence[Operator]:
        return (ReadMedia(columns=self.fields, leave_above=LARGE_BYTES), self)

    def check(self) -> None:
        super().check()
        if is_remote(str(self.path)):
            raise SinkError(
                f"`{self.name}` cannot write to {self.path}: an object store has no folders that appear at once",
                hint="use web_dataset_writer or parquet_writer",
            )
        if self.target_shard_size is not None:
            raise SinkError(f"`{self.name}` has one folder per partition and no `target_shard_size`")


@operator()
class FolderWriter(FolderSink):
    """Write media as files, in a folder per partition with a manifest `metadata.jsonl` of all other columns.

    `datasets.load_dataset("imagefolder", data_dir=...)` reads the output. If rows have one media column, `file_name` has the
    names of its files; if they have several, `image_file_name` has those of column `image`. Bytes are written unchanged;
    references are read first, and a row whose file cannot be read fails. Only for folders on a disk: for object stores,
    and for millions of small files, write archives with `WebDatasetWriter`.

    >>> FolderWriter("clean/").file_suffix
    ''
    """

    def open_shard(self, folder: Path, stem: str, schema: pa.Schema) -> ShardWriter:
        return ShardFolder(folder / stem, self._selection, schema)


class ShardFolder:
    """The folder of a partition. It is created with its first row."""

    manifest_name = MANIFEST
    manifest_compression: str | None = None

    def __init__(self, path: Path, selection: Selection, schema: pa.Schema) -> None:
        self._path, self._selection, self._expected = path, selection, schema
        self._manifest: ByteStream | None = None
        self._rows = self._size = 0

    def write(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        chosen = self._selection.table(table, self._expected)
        media = [spec.name for spec in chosen.schema if is_media(spec.type)]
        names = {name: "file_name" if len(media) == 1 else f"{name}_file_name" for name in media}
        taken = next((name for name in names.values() if name in chosen.column_names), None)
        if taken is not None:
            raise SinkError(
                f"the rows have a column `{taken}`, which the manifest has for the names of files",
                hint=f'rename it: columns={{"{taken}": "original_{taken}"}}, or leave it out with fields=[...]',
            )
        check_file_names(media, _part)
        if self._manifest is None:
            self._path.mkdir()
            self._manifest = ByteStream(self._path / self.manifest_name, self.manifest_compression)
        for sample in samples(chosen, "", {}):
            self._manifest.write(self._line(sample, names))
            self._rows += 1

    def _line(self, sample: Sample, names: dict[str, str]) -> bytes:
        """Write the files of a row; returns its line of the manifest."""
        own: dict[str, str | None] = {}
        for column, written in names.items():
            own[written] = None
            if column in sample.media:
                data, extension, _ = sample.media[column]
                tail = "" if written == "file_name" else f"_{_part(column)}"
                own[written] = f"{self._rows:08d}{tail}.{extension}"
                data.write_to(self._path / str(own[written]))
                self._size += data.size
        line = self.line(sample, own)
        for data, _, _ in sample.media.values():
            data.release()
        return line

    def line(self, sample: Sample, own: dict[str, str | None]) -> bytes:
        """The line of a row, whose files have the names in `own`."""
        head = json.dumps(own, ensure_ascii=False, separators=(",", ":")).encode()
        rest = sample.fields[1:]
        if not own:
            return sample.fields + b"\n"
        return head[:-1] + (b"," if rest != b"}" else b"") + rest + b"\n"

    def close(self) -> list[Shard]:
        if self._manifest is None:
            return []
        self._size += self._manifest.close()
        self._manifest = None
        with os.scandir(self._path) as entries:
            for entry in entries:
                synced(Path(entry.path))
        sync_folder(self._path)
        return [Shard(self._path.name, self._rows, self._size)]

    def abort(self) -> None:
        """Delete the folder."""
        if self._manifest is not None:
            self._manifest.abort()
            self._manifest = None
        shutil.rmtree(self._path, ignore_errors=True)


def _part(column: str) -> str:
    """The name of a column as a part of file names."""
    return "".join(each if each.isalnum() else "_" for each in column)
