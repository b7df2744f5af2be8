"""Manifests of recordings: those of NeMo and of lhotse become a column `audio`.

    NeMo      {"audio_filepath": "a.wav", "offset": 1.5, "duration": 3.0, "text": "..."}
    lhotse    cuts: {"id": ..., "start": 1.5, "duration": 3.0, "recording": {"sources": [{"source": "a.wav"}]},
                     "supervisions": [{"text": "...", "language": "en", "speaker": "s"}]}
              recordings: {"id": ..., "sources": [{"source": "a.wav"}], "sampling_rate": 16000, "duration": 9.5}
    Shar      cuts.000000.jsonl.gz: cuts of lhotse whose recordings are in recording.000000.tar, by the id of the cut

All are JSON Lines, which `JsonlReader` reads; the steps here make references. Paths are relative to the folder of the
manifest; others must be allowed with `media_roots` of the reader.
"""

from __future__ import annotations

import functools
import json
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tamis.audio.decode import AudioInfoStep, Recording, recordings
from tamis.audio.files import END_TOLERANCE_S
from tamis.audio.segment import numbers, sliced
from tamis.batch import Batch, Column
from tamis.errors import MediaError
from tamis.media import MediaAccess, MediaItem, media_items, with_full_paths
from tamis.operators import Map, operator
from tamis.segments import segment_path
from tamis.sources.jsonmedia import MEDIA

_SHAR = re.compile(r"cuts(?P<number>.*)\.jsonl(\.\w+)?(@\d+)?")

Part = tuple[str | None, float | None, float | None]
"""The path, offset and duration of a row."""


class _Manifest(AudioInfoStep, Map):
    verify: bool

    def parts_of(self, batch: Batch) -> list[Part]:
        raise NotImplementedError

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        found = self.parts_of(batch)
        paths = [None if not path else {"bytes": None, "path": path} for path, _, _ in found]
        column = with_full_paths(pa.array(paths, MEDIA), batch.origin)
        whole = Batch(pa.table({"audio": column}), batch.origin, access=batch.access)
        items, known = media_items(whole, "audio"), recordings(whole, "audio")
        values = [
            None if item is None else self.value(item, offset, duration, row if self.verify else None)
            for item, (_, offset, duration), row in zip(items, found, known, strict=True)
        ]
        return {"audio": pa.array(values, MEDIA)}

    def value(
        self, item: MediaItem, offset: float | None, duration: float | None, known: Recording | None
    ) -> dict[str, Any]:
        if offset is None and duration is None:
            if known is not None:
                _ = known.info  # raises an error if it cannot be read
            return {"bytes": None, "path": item.path}
        return sliced(item, offset, duration, known)


@operator(reads="audio_filepath", writes="audio")
class NemoManifest(_Manifest):
    """Make a column `audio` from a NeMo manifest: `audio_filepath`, and `offset` and `duration` if it has them.

    A part of a recording becomes a reference with times; nothing is copied. Without an offset, the row is the whole file, or
    its begin if the duration is shorter by more than 0.1 s, as for NeMo. With `verify`, headers are read: a file that does not
    exist, and a part that is not in its recording, fail their row here; without it, durations without an offset are not
    compared. A negative offset fails its row.

        Pipeline(JsonlReader("manifest.json"), NemoManifest(), AudioDuration(min_duration=1), ParquetWriter("out/"))

    >>> batch = Batch.from_rows([{"audio_filepath": "/data/a.wav", "offset": 1.5, "duration": 3.0, "text": "hello"}])
    >>> NemoManifest(verify=False).apply(batch)["audio"].to_pylist()
    [{'bytes': None, 'path': '/data/a.wav#t=1.5,4.5'}]
    """

    column: str = "audio_filepath"
    verify: bool = True

    def optional_reads(self) -> tuple[str, ...]:
        return ("offset", "duration")

    def parts_of(self, batch: Batch) -> list[Part]:
        paths = batch["audio_filepath"].to_pylist()
        nothing: list[float | None] = [None] * len(paths)
        offsets = numbers(batch, "offset") if "offset" in batch else nothing
        lengths = numbers(batch, "duration") if "duration" in batch else nothing
        return list(zip(paths, offsets, lengths, strict=True))

    def value(
        self, item: MediaItem, offset: float | None, duration: float | None, known: Recording | None
    ) -> dict[str, Any]:
        # Without an offset, the duration is usually that of the file, and rounded.
        if offset is None and not (known and duration and 0 < duration < known.duration - END_TOLERANCE_S):
            duration = None
        return super().value(item, offset, duration, known)


@operator(reads="recording", writes="audio")
class LhotseManifest(_Manifest):
    """Make a column `audio` from a lhotse manifest of cuts: `recording`, and `start` and `duration` of the cut.

    For a manifest of recordings, give `column="sources"`: each row is then a whole file. `LhotseText` adds what was said. A cut
    of some channels refers to these (`call.wav#t=1.5,4.5&channel=1`). Only recordings in files can be read, of cuts only those
    of one track, whose channels are in one file, and whose recording has no transforms but a conversion of the sample rate;
    others fail. `verify` is that of `NemoManifest`.
    Cuts of lhotse Shar (`JsonlReader("shar/cuts.*.jsonl.gz")`) refer to the bytes in the archive that belongs to their file.

    >>> cut = {"start": 1.5, "duration": 3.0, "recording": {"sources": [{"type": "file", "source": "/data/a.wav"}]}}
    >>> LhotseManifest(verify=False).apply(Batch.from_rows([cut]))["audio"].to_pylist()
    [{'bytes': None, 'path': '/data/a.wav#t=1.5,4.5'}]
    """

    column: str = "recording"
    verify: bool = True

    def optional_reads(self) -> tuple[str, ...]:
        return ("transforms",) if self.column == "sources" else ("start", "duration", "channel", "tracks", "id")

    def parts_of(self, batch: Batch) -> list[Part]:
        found = batch["recording"].to_pylist()
        nothing: list[Any] = [None] * len(found)
        tracks = batch["tracks"].to_pylist() if "tracks" in batch else nothing
        starts = numbers(batch, "start") if "start" in batch else nothing
        lengths = numbers(batch, "duration") if "duration" in batch else nothing
        names = batch["id"].to_pylist() if "id" in batch else nothing
        channels = batch["channel"].to_pylist() if "channel" in batch else nothing
        if "transforms" in batch:
            found = [
                {"sources": sources, "transforms": each}
                for sources, each in zip(found, batch["transforms"].to_pylist(), strict=True)
            ]
        archives = _Archives(batch)
        parts: list[Part] = []
        for row, (recording, start, length) in enumerate(zip(found, starts, lengths, strict=True)):
            if tracks[row]:
                raise MediaError("a cut of several tracks is not one recording; mix it first, or leave it out")
            in_archive = functools.partial(archives.path, row, names[row])
            parts.append((_lhotse_path(recording, _numbers(channels[row]), in_archive), start, length))
        return parts


class _Archives:
    """Finds the recordings of lhotse Shar: that of a cut is the member named by its id, whatever its format."""

    def __init__(self, batch: Batch) -> None:
        self._origin, self._access = batch.origin, batch.access or MediaAccess()
        self._found: dict[str, dict[str, str]] = {}

    def path(self, row: int, name: str | None) -> str:
        """The reference to the bytes of a recording."""
        place = self._origin.places[self._origin.place[row]]
        if place not in self._found:
            self._found[place] = self._references(place)
        if name not in self._found[place]:
            raise MediaError(f"the archive that belongs to {place} has no recording of the cut {name!r}")
        return self._found[place][name]

    def _references(self, place: str) -> dict[str, str]:
        listing = _SHAR.fullmatch(posixpath.basename(place))
        if listing is None:
            raise MediaError(f"{place} is not a list of cuts of lhotse Shar, such as cuts.000000.jsonl.gz")
        archive = f"recording{listing['number']}.tar"
        members = MediaItem(archive, place, self._access).members()
        return {
            posixpath.splitext(name)[0]: f"{archive}@{start}+{length}#{name}"
            for name, (start, length) in members.items()
            if not name.endswith((".json", ".nodata", ".nometa"))
        }


def _lhotse_path(recording: Any, channels: Sequence[int] | None, in_archive: Callable[[], str]) -> str | None:
    sources = recording.get("sources") if isinstance(recording, dict) else recording
    if not sources:
        return None
    if not isinstance(sources, list) or not all(isinstance(each, dict) and "source" in each for each in sources):
        raise MediaError(f"not a recording of a lhotse manifest: {recording!r:.200}")
    source, kept = _source_of(sources, channels)
    if source.get("type") not in (None, "file", "url", "shar"):
        raise MediaError(f"a recording of type {source['type']!r} is not a file")
    if source.get("type") == "shar":
        path = in_archive()
    else:
        _check_transforms(recording.get("transforms") if isinstance(recording, dict) else None)
        path = str(source["source"])
    return segment_path(path, 0.0, None, channels=kept) if kept else path


def _source_of(sources: Sequence[dict[str, Any]], channels: Sequence[int] | None) -> tuple[dict[str, Any], list[int]]:
    """The file that has the channels of a cut, and which of its channels these are; none for all of them."""
    if channels is None:
        if len(sources) > 1:
            raise MediaError(f"a recording in {len(sources)} files, one for each channel, is not one row")
        return sources[0], []
    for source in sources:
        present = source.get("channels")
        if not present and len(sources) == 1:
            return source, []
        kept = [place for place, channel in enumerate(present or []) if channel in channels]
        if len(kept) == len(channels):
            return source, [] if len(kept) == len(present or []) else kept
    raise MediaError(f"no file of the recording has all channels of the cut: {', '.join(map(str, channels))}")


def _check_transforms(transforms: Any) -> None:
    """Raise an error if a recording is not what its file has. Sample rates are converted wherever they matter."""
    for each in _unpacked(transforms) or []:
        name = each.get("name") if isinstance(each, dict) else None
        if name != "Resample":
            raise MediaError(
                f"the recording has a transform, {name or each!r:.100}, that its file does not have; store it first, "
                "for example with `save_audios` of lhotse"
            )


def _numbers(channel: Any) -> list[int] | None:
    """The channels of a cut: a number, several, or their JSON text; None if it does not say."""
    channel = _unpacked(channel)
    return channel if channel is None or isinstance(channel, list) else [int(channel)]


def _unpacked(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


@operator(reads="supervisions", writes=("text", "language", "speaker"))
class LhotseText(Map):
    """Add the text, language and speaker of a lhotse cut, from its column `supervisions`; several texts are joined by spaces.

    >>> row = {"supervisions": [{"text": "good", "language": "en", "speaker": "a"}, {"text": "morning"}]}
    >>> {name: column.to_pylist() for name, column in LhotseText().apply(Batch.from_rows([row])).items()}
    {'text': ['good morning'], 'language': ['en'], 'speaker': ['a']}
    """

    column: str = "supervisions"

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        rows = [value if isinstance(value, list) else [] for value in batch["supervisions"].to_pylist()]
        texts = [" ".join(each["text"] for each in row if each.get("text")) or None for row in rows]
        made: dict[str, Column] = {"text": pa.array(texts, pa.string())}
        for name in ("language", "speaker"):
            values = [next((each[name] for each in row if each.get(name)), None) for row in rows]
            made[name] = pa.array(values, pa.string())
        return made
