"""Write clips in the layout of NeMo Curator, with embeddings as Parquet and nothing pickled.

    part-000000/clips/<id>.mp4               the clips
    part-000000/filtered_clips/<id>.mp4      clips whose column `filtered` has a reason
    part-000000/previews/<id>.webp           previews of `VideoPreview`
    part-000000/metas/v0/<id>.json           all other columns, the source and the times of the clip
    part-000000/embeddings/*.parquet         column `embedding`, with the ids of the clips

An id is a UUID of the path of the video and the times of the clip, so that it is the same in every run. Each partition has a
folder of its own, because it is committed by one rename and has one record: with one layout for all, a killed run would leave
files that no record names among those that are complete. `tamis clips` links all parts into one layout afterwards.
"""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tamis.batch import contiguous
from tamis.errors import SinkError
from tamis.media import is_media
from tamis.operators import Shard, ShardWriter, digest, operator
from tamis.sinks.folder import FolderSink
from tamis.sinks.samples import Content, Sample, samples
from tamis.sinks.streams import synced
from tamis.sinks.writers import Selection
from tamis.store import sync_folder

_NAMESPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")  # that of URLs (RFC 4122, appendix C)
_OWN_FOLDERS = frozenset({"clips", "filtered_clips", "previews", "metas", "embeddings"})
_DRAFT = ".draft"


@operator()
class ClipWriter(FolderSink):
    """Write clips in the layout of NeMo Curator: clips/, filtered_clips/, previews/, metas/v0/ and embeddings as Parquet.

    Each partition is a folder of its own with these folders in it; `tamis clips OUTPUT TARGET` puts all of them into one
    layout. Clips are cut here, unless `VideoCut` did so before. A row with a text in column `filtered` goes to
    filtered_clips/. Column `embedding` is written as Parquet with the ids of the clips, all other columns as JSON in
    metas/v0/. Only for folders on a disk.

    >>> ClipWriter("clips/").file_suffix
    ''
    """

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
            folder = place if column == "video" else "previews" if column == "preview" else _folder_of(column)
            where = f"{folder}/{name}.{extension}"
            self._file(where, data)
            data.release()
            if column == "video":
                meta["clip_location"] = where
        kept = {key: value for key, value in fields.items() if key not in ("clip_begin", "clip_end")}
        text = json.dumps(meta | kept, ensure_ascii=False).encode()
        self._file(f"metas/v0/{name}.json", Content(pa.py_buffer(text)))
        self._rows += 1
        return name

    def _file(self, where: str, data: Content) -> None:
        target = self._path / where
        target.parent.mkdir(parents=True, exist_ok=True)
        data.write_to(target)
        self._size += data.size

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


def _folder_of(column: str) -> str:
    """The folder for the files of another media column, whose name comes with the data and may be that of any path.

    >>> _folder_of("poster"), _folder_of("../poster")
    ('poster', '___poster-0c861839')
    """
    name = "".join(each if each.isalnum() else "_" for each in column)[:40]
    plain = name == column and name.isascii() and name and name.lower() not in _OWN_FOLDERS
    return name if plain else f"{name}-{digest(column)[:8]}"


def join_parts(output: str | Path, target: str | Path) -> int:
    """Link the files of all parts of an output into one layout; returns the number of clips in it."""
    root, into = Path(output), Path(target)
    if not root.is_dir():
        raise SinkError(f"there is no folder {output}")
    parts = sorted(path for path in root.glob("part-*") if (path / "metas" / "v0").is_dir())
    if not parts:
        raise SinkError(f"{output} has no clips", hint="use clip_writer as the last step of the run")
    if into.resolve() == root.resolve():
        raise SinkError(
            "the layout needs a folder of its own", hint=f"tamis clips {output} {str(root).rstrip('/')}-joined"
        )
    wanted: dict[Path, Path] = {}
    for part in parts:
        for path in sorted(each for each in part.rglob("*") if each.is_file()):
            inside = path.relative_to(part)
            file_name = f"{part.name}.parquet" if inside.parts[0] == "embeddings" else inside.name
            other = wanted.setdefault(inside.parent / file_name, path)
            if not _is_same(other, path):
                raise SinkError(
                    f"{other} and {path} have the same name and are different files",
                    hint="rows without a path need the columns clip_begin and clip_end, or a column `path`",
                )
    _check_target(into, wanted)
    for name, path in wanted.items():
        _link(path, into / name)
    return sum(name.parts[0] in ("clips", "filtered_clips") for name in wanted)


def _is_same(one: Path, other: Path) -> bool:
    return one.samefile(other) or filecmp.cmp(one, other, shallow=False)


def _check_target(into: Path, wanted: Mapping[Path, Path]) -> None:
    """Raise if a folder has files that an earlier call with the same output would not have left there."""
    for path in sorted(each for each in into.rglob("*") if each.is_file()):
        source = wanted.get(path.relative_to(into))
        if path.name.startswith(".") and path.name.endswith(_DRAFT):
            path.unlink()  # of a process that was killed
        elif source is None or not _is_same(source, path):
            raise SinkError(f"{path} is there already, and is another file", hint="use an empty folder")


def _link(source: Path, target: Path) -> None:
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another disk, or one without links
        draft = target.with_name(f".{target.name}{_DRAFT}")
        shutil.copyfile(source, draft)
        draft.replace(target)
