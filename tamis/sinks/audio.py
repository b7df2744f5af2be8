"""Write recordings as files with a manifest that NeMo or lhotse reads.

    part-000000/manifest.jsonl     {"audio_filepath":"00000000.flac","duration":3.2,"text":"good morning"}
    part-000000/00000000.flac

    part-000000/cuts.000000.jsonl.gz     lhotse Shar: cuts, and an archive of their recordings in the same order
    part-000000/recording.000000.tar

Paths are relative to the folder of the manifest. A folder is one shard, as for `FolderWriter`.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from tamis.audio.edit import AudioConvert, AudioHeader
from tamis.audio.files import Info, read_info
from tamis.errors import SinkError
from tamis.media import LARGE_BYTES, is_media
from tamis.operators import Operator, Shard, ShardWriter, operator
from tamis.sinks.folder import FolderWriter, ShardFolder
from tamis.sinks.samples import Content, Sample
from tamis.sinks.streams import ByteStream
from tamis.sinks.webdataset import add_member
from tamis.sources.references import ReadMedia

MANIFEST = "manifest.jsonl"

_OTHER_COLUMN = 'name the column with the recordings: columns={"speech": "audio"}'


@operator()
class AudioWriter(FolderWriter):
    """Write recordings as files, in a folder per partition with a manifest `manifest.jsonl` of NeMo or lhotse.

        nemo      {"audio_filepath": ..., "duration": ..., and all other columns}
        lhotse    {"id": ..., "start": 0, "duration": ..., "recording": ..., "supervisions": ..., "custom": other columns}
        shar      the same in cuts.000000.jsonl.gz, with the recordings in recording.000000.tar; numbers are those of the
                  folders, so that all files may be moved into one

    Columns `text`, `language` and `speaker` become the supervision of a cut. Bytes are written unchanged, and
    references are read first. Segments become FLAC files, and a column `offset` is left out. With `format` "flac",
    "wav", "opus" or "mp3", recordings in another format are converted. Recordings come from the column `audio`, or from
    another one with `columns={"speech": "audio"}`; a row whose recording cannot be read fails, and one without sound is
    written with an empty path. Other media columns are written as files too, except in Shar, where they are an error.

    >>> AudioWriter("clips/", format="opus").file_suffix
    ''
    """

    manifest: Literal["nemo", "lhotse", "shar"] = "nemo"
    format: Literal["same", "flac", "wav", "opus", "mp3"] = "same"

    @property
    def _recordings(self) -> str:
        """The column that is written as `audio`."""
        return next((name for name, written in (self.columns or {}).items() if written == "audio"), "audio")

    def reads(self) -> tuple[str, ...]:
        return (*super().reads(), self._recordings)

    def without(self, column: str) -> str:
        if column != self._recordings:
            return super().without(column)
        return f"{_OTHER_COLUMN}, or use folder_writer or jsonl_writer for rows without recordings"

    def parts(self) -> Sequence[Operator]:
        column = self._recordings
        first = AudioHeader(column=column) if self.format == "same" else AudioConvert(self.format, column=column)
        return (first, ReadMedia(columns=self.fields, leave_above=LARGE_BYTES), self)

    def packages(self) -> Mapping[str, str]:
        return {"av": "audio"}

    def open_shard(self, folder: Path, stem: str, schema: pa.Schema) -> ShardWriter:
        if self.manifest == "shar":
            return _Shar(folder / stem, self._selection, schema)
        return _Manifest(folder / stem, self._selection, schema, self.manifest)


class _Recordings(ShardFolder):
    """A folder of recordings, which are in the column `audio`."""

    takes_others = True
    """Whether there is a place for the files of other media columns."""

    def write(self, table: pa.Table) -> None:
        if table.num_rows:
            self._check(self._selection.table(table, self._expected).schema)
        super().write(table)

    def _check(self, schema: pa.Schema) -> None:
        media = [each.name for each in schema if is_media(each.type) and each.name != "audio"]
        if "audio" not in schema.names:
            found = f", but the media columns {', '.join(media)}" if media else ""
            raise SinkError(f"the rows have no column `audio`{found}", hint=_OTHER_COLUMN)
        if media and not self.takes_others:
            raise SinkError(
                f"lhotse Shar has one recording for each row, and no place for the media column `{media[0]}`",
                hint="leave it out with fields=[...]",
            )


class _Manifest(_Recordings):
    """A folder whose manifest has a line for each recording."""

    manifest_name = MANIFEST

    def __init__(self, path: Path, selection: Any, schema: pa.Schema, kind: str) -> None:
        super().__init__(path, selection, schema)
        self._kind = kind

    def line(self, sample: Sample, own: dict[str, str | None]) -> bytes:
        others: dict[str, Any] = json.loads(sample.fields)
        found = sample.media.get("audio")
        name = own.get("file_name") or own.get("audio_file_name")
        rest = {key: value for key, value in own.items() if key not in ("file_name", "audio_file_name")}
        info = None if found is None else _info(found[0])
        if self._kind == "nemo":
            head = {"audio_filepath": name, "duration": None if info is None else round(info.duration, 6)}
            # The offset that a manifest had was that of a segment, which is a file of its own now.
            row = {**head, **{key: value for key, value in others.items() if key not in (*head, "offset")}, **rest}
        else:
            row = _cut(f"{self._path.name}-{self._rows:08d}", name, info, {**others, **rest})
        return _json(row) + b"\n"


class _Shar(_Recordings):
    """A folder with a list of cuts and an archive of their recordings."""

    takes_others = False
    manifest_compression = "gz"

    def __init__(self, path: Path, selection: Any, schema: pa.Schema) -> None:
        super().__init__(path, selection, schema)
        self._number = path.name.rpartition("-")[2]
        self.manifest_name = f"cuts.{self._number}.jsonl.gz"
        self._archive: ByteStream | None = None

    def _line(self, sample: Sample, names: dict[str, str]) -> bytes:
        if self._archive is None:
            self._archive = ByteStream(self._path / f"recording.{self._number}.tar", None)
        key = f"{self._path.name}-{self._rows:08d}"
        found = sample.media.get("audio")
        info = None if found is None else _info(found[0])
        cut = _cut(key, None, info, json.loads(sample.fields))
        if found is None:
            del cut["recording"]
            add_member(self._archive, f"{key}.nodata", Content(pa.py_buffer(b"")))
            add_member(self._archive, f"{key}.nometa", Content(pa.py_buffer(b"")))
        else:
            cut["recording"]["sources"][0] |= {"type": "shar", "source": ""}
            content, extension, _ = found
            add_member(self._archive, f"{key}.{extension}", content)
            add_member(self._archive, f"{key}.json", Content(pa.py_buffer(_json(cut["recording"]))))
            content.release()
        return _json(cut) + b"\n"

    def close(self) -> list[Shard]:
        if self._archive is not None:
            self._archive.write(b"\0" * (2 * tarfile.BLOCKSIZE))
            self._size += self._archive.close()
            self._archive = None
        return super().close()

    def abort(self) -> None:
        """Delete the folder."""
        if self._archive is not None:
            self._archive.abort()
            self._archive = None
        super().abort()


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _info(content: Content) -> Info:
    with content.opened() as file:
        return read_info(file)


def _cut(key: str, name: str | None, info: Any, columns: dict[str, Any]) -> dict[str, Any]:
    duration = 0.0 if info is None else info.duration
    said = {part: columns.pop(part) for part in ("text", "language", "speaker") if columns.get(part) is not None}
    recording = {
        "id": key,
        "sources": [{"type": "file", "channels": list(range(info.channels if info else 1)), "source": name or ""}],
        "sampling_rate": info.rate if info else 0,
        "num_samples": round(duration * info.rate) if info else 0,
        "duration": duration,
        "channel_ids": list(range(info.channels if info else 1)),
    }
    supervision = {"id": key, "recording_id": key, "start": 0.0, "duration": duration, "channel": 0, **said}
    channels = 0 if info is None or info.channels == 1 else list(range(info.channels))
    return {
        "id": key,
        "start": 0.0,
        "duration": duration,
        "channel": channels,
        "supervisions": [supervision] if said else [],
        "recording": recording,
        "type": "MonoCut" if channels == 0 else "MultiCut",
        "custom": {key: value for key, value in columns.items() if key not in ("duration", "offset")},
    }
