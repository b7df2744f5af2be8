"""Write recordings as files with a manifest that NeMo or lhotse reads.

    part-000000/manifest.jsonl     {"audio_filepath":"00000000.flac","duration":3.2,"text":"good morning"}
    part-000000/00000000.flac

Paths are relative to the folder of the manifest. A folder is one shard, as for `FolderWriter`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from tamis.audio.edit import AudioConvert
from tamis.audio.files import read_info
from tamis.operators import Operator, ShardWriter, operator
from tamis.sinks.folder import FolderWriter, ShardFolder
from tamis.sinks.samples import Sample
from tamis.sources.references import ReadMedia

MANIFEST = "manifest.jsonl"


@operator()
class AudioWriter(FolderWriter):
    """Write recordings as files, in a folder per partition with a manifest `manifest.jsonl` of NeMo or lhotse.

        nemo      {"audio_filepath": ..., "duration": ..., and all other columns}
        lhotse    {"id": ..., "start": 0, "duration": ..., "recording": ..., "supervisions": ..., "custom": other columns}

    Columns `text`, `language` and `speaker` become the supervision of a cut. Bytes are written unchanged, and
    references are read first. Segments become FLAC files. With `format` "flac", "wav", "opus" or "mp3", recordings in
    another format are converted. The media column is `audio`; rows without sound are written with an empty path.

    >>> AudioWriter("clips/", format="opus").file_suffix
    ''
    """

    manifest: Literal["nemo", "lhotse"] = "nemo"
    format: Literal["same", "flac", "wav", "opus", "mp3"] = "same"

    def parts(self) -> Sequence[Operator]:
        convert = () if self.format == "same" else (AudioConvert(format=self.format),)
        return (*convert, ReadMedia(columns=self.fields), self)

    def open_shard(self, folder: Path, stem: str, schema: pa.Schema) -> ShardWriter:
        return _Manifest(folder / stem, self._selection, schema, self.manifest)


class _Manifest(ShardFolder):
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
        info = None if found is None else read_info(io.BytesIO(found[0]))
        if self._kind == "nemo":
            head = {"audio_filepath": name, "duration": None if info is None else round(info.duration, 6)}
            row = {**head, **{key: value for key, value in others.items() if key not in head}, **rest}
        else:
            row = _cut(f"{self._path.name}-{self._rows:08d}", name, info, {**others, **rest})
        return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


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
