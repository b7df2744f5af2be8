"""Write clips in the layout of NeMo Curator, with embeddings as Parquet and nothing pickled.

    part-000000/clips/<id>.mp4               the clips
    part-000000/filtered_clips/<id>.mp4      clips whose column `filtered` has a reason
    part-000000/previews/<id>.webp           previews of `VideoPreview`
    part-000000/metas/v0/<id>.json           all other columns, the source and the times of the clip
    part-000000/embeddings/*.parquet         column `embedding`, with the ids of the clips

An id is a UUID of the path of the video and the times of the clip, so that it is the same in every run.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tamis.batch import contiguous
from tamis.errors import SinkError
from tamis.media import is_media
from tamis.operators import Operator, Shard, ShardWriter, operator
from tamis.remote import is_remote
from tamis.sinks.samples import Sample, samples
from tamis.sinks.streams import synced
from tamis.sinks.tables import TableSink
from tamis.sinks.writers import Selection
from tamis.sources.references import ReadMedia
from tamis.store import sync_folder

_NAMESPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")  # that of URLs (RFC 4122, appendix C)


@operator()
class ClipWriter(TableSink):
    """Write clips in the layout of NeMo Curator: clips/, filtered_clips/, previews/, metas/v0/ and embeddings as Parquet.

    Each partition is a folder of its own with these folders in it. Clips are cut here, unless `VideoCut` did so before.
    A row with
    a text in column `filtered` goes to filtered_clips/. Column `embedding` is written as Parquet with the ids of the
    clips, all
    other columns as JSON in metas/v0/. Only for folders on a disk.

    >>> ClipWriter("clips/").file_suffix
    ''
    """

    compressions = ()
    preload = ("tamis.kernels.json",)

    def parts(self) -> Sequence[Operator]:
        return (ReadMedia(columns=self.fields), self)

    def check(self) -> None:
        super().check()
        if is_remote(str(self.path)):
            raise SinkError(
                f"`{self.name}` cannot write to {self.path}: an object store has no folders that appear at once",
                hint="use web_dataset_writer or parquet_writer",
            )
        if self.target_shard_size is not None:
            raise SinkError(f"`{self.name}` has one folder per partition and no `target_shard_size`")

    def open_shard(self, folder: Path, stem: str, schema: pa.Schema) -> ShardWriter:
        return _Clips(folder / stem, self._selection, schema)


class _Clips:
    """The folder of a partition. It is created with its first row."""

    def __init__(self, path: Path, selection: Selection, schema: pa.Schema) -> None:
        self._path, self._selection, self._expected = path, selection, schema
        self._rows = self._size = 0
        self._embeddings: pq.ParquetWriter | None = None
        self._seen: set[str] = set()

    def write(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        chosen = self._selection.table(table, self._expected)
        if "video" not in chosen.column_names or not is_media(chosen.schema.field("video").type):
            raise SinkError("a clip writer needs a column `video`", hint="use folder_writer for rows without videos")
        (self._path / "metas" / "v0").mkdir(parents=True, exist_ok=True)
        vectors = "embedding" in chosen.column_names
        rest = chosen.drop_columns(["embedding"]) if vectors else chosen
        ids = [self._written(sample) for sample in samples(rest, "", {})]
        if vectors:
            column = contiguous(chosen.column("embedding"))
            self._add_embeddings(pa.table({"id": pa.array(ids, pa.string()), "embedding": column}))

    def _written(self, sample: Sample) -> str:
        """Write the files of a row; returns its id."""
        fields: dict[str, Any] = json.loads(sample.fields)
        video = sample.media.get("video")
        source = str(fields.get("path") or (video[2] if video else ""))
        span = [fields.get("clip_begin"), fields.get("clip_end")]
        name = str(uuid.uuid5(_NAMESPACE, f"{source}_{span[0]}_{span[1]}"))
        while name in self._seen:  # two rows of the same video
            name = str(uuid.uuid5(_NAMESPACE, f"{name}_{self._rows}"))
        self._seen.add(name)
        place = "filtered_clips" if fields.get("filtered") else "clips"
        meta = {"span_uuid": name, "source_video": source, "duration_span": span, "valid": not fields.get("filtered")}
        for column, (data, extension, _) in sample.media.items():
            folder = place if column == "video" else "previews" if column == "preview" else column
            where = f"{folder}/{name}.{extension}"
            self._file(where, data)
            if column == "video":
                meta["clip_location"] = where
        kept = {key: value for key, value in fields.items() if key not in ("clip_begin", "clip_end")}
        self._file(f"metas/v0/{name}.json", json.dumps(meta | kept, ensure_ascii=False).encode())
        self._rows += 1
        return name

    def _file(self, where: str, data: Any) -> None:
        target = self._path / where
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            file.write(data)
        self._size += len(data)

    def _add_embeddings(self, table: pa.Table) -> None:
        if self._embeddings is None:
            (self._path / "embeddings").mkdir()
            self._embeddings = pq.ParquetWriter(self._path / "embeddings" / "embeddings.parquet", table.schema)
        self._embeddings.write_table(table)

    def close(self) -> list[Shard]:
        if self._embeddings is not None:
            self._embeddings.close()
            self._embeddings = None
            self._size += (self._path / "embeddings" / "embeddings.parquet").stat().st_size
        if not self._rows:
            return []
        for folder, _, files in os.walk(self._path):
            for each in files:
                synced(Path(folder) / each)
            sync_folder(Path(folder))
        return [Shard(self._path.name, self._rows, self._size)]

    def abort(self) -> None:
        """Delete the folder."""
        if self._embeddings is not None:
            self._embeddings.close()
            self._embeddings = None
        shutil.rmtree(self._path, ignore_errors=True)
