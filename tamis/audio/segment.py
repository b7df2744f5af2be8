"""Cuts recordings into segments: windows, between silences, by the times of a transcript, by columns of a manifest.

A segment refers to its recording (`talk.mp3#t=12.5,20`), and nothing is copied. If a row holds the bytes of its
recording, its segments are cut out as FLAC. Recordings of any length are read in blocks.
"""

from __future__ import annotations

import io
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tamis.audio.decode import AudioInfoStep, AudioStep, Recording, recordings
from tamis.audio.files import Encoder, check_inside, read_blocks, read_info
from tamis.batch import Batch, Column
from tamis.errors import MediaError, ParameterError
from tamis.media import MediaItem, media_items
from tamis.operators import Expand, Map, operator
from tamis.segments import is_video_name, segment_path
from tamis.sources.jsonmedia import MEDIA

Times = tuple[float, float]

_HOP_S = 0.02


def segment_rows(
    rows: Sequence[Recording | None], parts: Sequence[Sequence[tuple[float, float | None]]], column: str = "audio"
) -> tuple[dict[str, pa.Array], np.ndarray]:
    """(columns of new rows: `column`, `begin` and `duration`; the row that each came from).

    `parts` has the begin and end of the segments of each row, in seconds from the begin of the row. An end of None is
    that of the row; a row from 0 to None stays as it is.
    """
    audio, begins, durations, parents = [], [], [], []
    for row, (recording, times) in enumerate(zip(rows, parts, strict=True)):
        for begin, end in times:
            assert recording is not None
            whole = begin == 0 and end is None
            audio.append(_same(recording.item) if whole else part_of(recording.item, begin, end))
            begins.append(round(recording.begin + begin, 6))
            durations.append(round((recording.duration if end is None else end) - begin, 6))
            parents.append(row)
    columns = {
        column: pa.array(audio, MEDIA),
        "begin": pa.array(begins, pa.float64()),
        "duration": pa.array(durations, pa.float64()),
    }
    return columns, np.array(parents, np.int64)


def _same(item: MediaItem) -> dict[str, Any]:
    return {"bytes": None if item.data is None else bytes(item.data), "path": item.path}


def part_of(item: MediaItem, begin: float, end: float | None) -> dict[str, Any]:
    """A segment of a recording as a media value: a reference, or bytes if the row has those of the recording."""
    if item.data is None:
        track = "audio" if is_video_name(item.name) else None
        return {"bytes": None, "path": segment_path(item.path or "", begin, end, track)}
    target = io.BytesIO()
    with item.open() as file:
        info = read_info(file)
        file.seek(0)
        with Encoder(target, info.rate, info.channels, "flac", bits=24 if info.bits > 16 else 16) as encoder:
            for samples in read_blocks(file, begin, end):
                encoder.write(samples)
    stem = posixpath.splitext(item.path or "recording")[0]
    return {"bytes": target.getvalue(), "path": f"{stem}_{begin:g}-{'' if end is None else f'{end:g}'}.flac"}


class SegmentStep(Expand):
    """A step that replaces recordings by segments of them."""

    column: str

    def writes(self) -> tuple[str, ...]:
        return (self.column, "begin", "duration")

    def times(self, recording: Recording) -> list[Times]:
        """The begin and end of each segment, in seconds from the begin of the row."""
        raise NotImplementedError

    def expand(self, batch: Batch) -> tuple[pa.Table, np.ndarray]:
        rows = recordings(batch, "audio")
        columns, parents = segment_rows(rows, [[] if row is None else self.times(row) for row in rows], self.column)
        return pa.table(columns), parents


@operator(reads="audio", writes=("audio", "begin", "duration"))
class AudioWindows(AudioInfoStep, SegmentStep):
    """Replace each recording by windows of 30 seconds.

    Windows begin every `step_s` seconds, by default one after the other. The last one is shorter, and left out if it
    has less than `min_s`. `begin` is in seconds from the begin of the file. Only headers are read.

    >>> from tamis.audio.files import encoded
    >>> data = encoded(np.zeros((1, 16_000 * 7), np.float32), 16_000, "wav")
    >>> batch = Batch.from_rows([{"audio": {"bytes": data, "path": "a.wav"}}])
    >>> table, parents = AudioWindows(window_s=3).expand(batch)
    >>> table["begin"].to_pylist(), table["duration"].to_pylist()
    ([0.0, 3.0, 6.0], [3.0, 3.0, 1.0])
    """

    window_s: float = 30.0
    step_s: float | None = None
    min_s: float = 0.1
    column: str = "audio"

    def check(self) -> None:
        if self.window_s <= 0 or (self.step_s is not None and self.step_s <= 0) or not 0 <= self.min_s <= self.window_s:
            raise ParameterError(
                f"`window_s={self.window_s}`, `step_s={self.step_s}`, `min_s={self.min_s}` are no windows",
                hint="windows and steps are longer than 0, and min_s is at most window_s",
            )

    def times(self, recording: Recording) -> list[Times]:
        length, step = recording.duration, self.step_s or self.window_s
        found = []
        for number in range(int(np.ceil(length / step)) + 1):
            begin = number * step
            end = min(begin + self.window_s, length)
            if end - begin >= max(self.min_s, 1e-3):
                found.append((begin, end))
            if end >= length:
                break
        return found


@operator(reads="audio", writes=("audio", "begin", "duration"))
class AudioSplit(AudioStep, SegmentStep):
    """Replace each recording by the segments between its silences.

    A silence is at least `silence_s` long and below `threshold_db`, relative to full scale, in frames of 20 ms.
    `pad_s` of it is kept at both ends of a segment. Neighbours are joined as long as the result, with the silence
    between them, has at most `max_s`, if `join` is true. Longer segments are cut at their quietest frame in the last
    third before `max_s`. Segments shorter than `min_s` are left out. A recording without sound above the threshold is
    dropped. It finds loud parts, and not speech: for that, use `SpeechSegments`.
    """

    threshold_db: float = -45.0
    silence_s: float = 0.5
    pad_s: float = 0.1
    min_s: float = 0.5
    max_s: float = 30.0
    join: bool = False
    column: str = "audio"

    def check(self) -> None:
        if not 0 <= self.min_s < self.max_s or self.pad_s < 0 or self.silence_s <= 0:
            given = f"min_s={self.min_s}, max_s={self.max_s}, pad_s={self.pad_s}, silence_s={self.silence_s}"
            raise ParameterError(
                f"`{self.name}` cannot split with {given}", hint="give 0 <= min_s < max_s, pad_s >= 0 and silence_s > 0"
            )

    def times(self, recording: Recording) -> list[Times]:
        levels = frame_levels(recording)
        length = recording.duration
        found = [
            (max(0.0, begin - self.pad_s), min(length, end + self.pad_s))
            for begin, end in loud_parts(levels > self.threshold_db, self.silence_s)
        ]
        found = _without_overlap(found)
        if self.join:
            found = joined(found, self.max_s)
        cut = [part for begin, end in found for part in self._shortened(begin, end, levels)]
        return [(begin, end) for begin, end in cut if end - begin >= max(self.min_s, 1e-3)]

    def _shortened(self, begin: float, end: float, levels: np.ndarray) -> Iterator[Times]:
        while end - begin > self.max_s:
            first, last = round((begin + self.max_s * 2 / 3) / _HOP_S), round((begin + self.max_s) / _HOP_S)
            window = levels[first : max(first + 1, last)]
            middle = (first + int(window.argmin())) * _HOP_S if len(window) else begin + self.max_s
            yield begin, middle
            begin = middle
        yield begin, end


def frame_levels(recording: Recording) -> np.ndarray:
    """The level of each 20 ms in dB, float32; ten hours take 7 MB."""
    found = []
    for block in recording.blocks(seconds=10.0):
        frame = round(_HOP_S * 16_000)
        whole = np.pad(block, (0, -len(block) % frame)).reshape(-1, frame)
        squares = np.einsum("ij,ij->i", whole, whole, dtype=np.float64) / frame
        found.append((10 * np.log10(np.maximum(squares, 1e-12))).astype(np.float32))
    return np.concatenate(found) if found else np.zeros(0, np.float32)


def loud_parts(loud: np.ndarray, silence_s: float) -> list[Times]:
    """Begin and end of the parts between silences of at least `silence_s`, from a mask of frames of 20 ms."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], loud, [False]]).astype(np.int8)))
    merged: list[Times] = []
    for begin, end in edges.reshape(-1, 2) * _HOP_S:
        if merged and begin - merged[-1][1] < silence_s - 1e-9:
            merged[-1] = (merged[-1][0], float(end))
        else:
            merged.append((float(begin), float(end)))
    return merged


def joined(parts: Sequence[Times], max_s: float) -> list[Times]:
    """Neighbours joined from the first on, as long as the result has at most `max_s`.

    >>> joined([(0, 4), (5, 9), (10, 14)], 10)
    [(0, 9), (10, 14)]
    """
    result: list[Times] = []
    for begin, end in parts:
        if result and end - result[-1][0] <= max_s:
            result[-1] = (result[-1][0], end)
        else:
            result.append((begin, end))
    return result


def _without_overlap(parts: Sequence[Times]) -> list[Times]:
    """Parts whose padding overlaps meet in the middle."""
    result: list[Times] = []
    for begin, end in parts:
        if result and begin < result[-1][1]:
            middle = (begin + result[-1][1]) / 2
            result[-1] = (result[-1][0], middle)
            begin = middle
        result.append((begin, end))
    return result


@operator(reads=("audio", "segments"), writes=("audio", "begin", "duration", "text"))
class TranscriptSegments(AudioInfoStep, Expand):
    """Replace each recording by the segments of its transcript.

    Column `segments` is a list with `start` (or `begin`), `end` and `text`, as Whisper and most subtitles have it, in
    seconds from the begin of the row. Neighbours are joined, with a space between their texts, as long as they are at
    most `join_s` long together; 0 joins none. A segment that is not in its recording fails the row.

    >>> from tamis.audio.files import encoded
    >>> data = encoded(np.zeros((1, 16_000 * 7), np.float32), 16_000, "wav")
    >>> times = [{"start": 0.0, "end": 2.0, "text": "one"}, {"start": 2.5, "end": 4.0, "text": "two"}]
    >>> batch = Batch.from_rows([{"audio": {"bytes": data, "path": "a.wav"}, "segments": times}])
    >>> table, parents = TranscriptSegments(join_s=10).expand(batch)
    >>> table.select(["begin", "duration", "text"]).to_pylist()
    [{'begin': 0.0, 'duration': 4.0, 'text': 'one two'}]
    """

    column: str = "audio"
    times: str = "segments"
    join_s: float = 0.0
    to: str = "text"

    def writes(self) -> tuple[str, ...]:
        return (self.column, "begin", "duration", self.to)

    def real_names(self) -> dict[str, str]:
        return {"audio": self.column, "segments": self.times}

    def expand(self, batch: Batch) -> tuple[pa.Table, np.ndarray]:
        rows = recordings(batch, "audio")
        given = batch["segments"].to_pylist()
        parts: list[list[Times]] = []
        texts: list[str | None] = []
        for recording, segments in zip(rows, given, strict=True):
            found = [] if recording is None else self._joined(segments or [])
            parts.append([])
            for begin, end, text in found:
                assert recording is not None
                parts[-1].append(_inside(recording, begin, end))
                texts.append(text)
        columns, parents = segment_rows(rows, parts, self.column)
        return pa.table({**columns, self.to: pa.array(texts, pa.string())}), parents

    def _joined(self, segments: Sequence[Mapping[str, Any]]) -> list[tuple[float, float, str | None]]:
        result: list[tuple[float, float, str | None]] = []
        for each in segments:
            begin, end = _begin(each), each.get("end")
            if begin is None or end is None:
                raise MediaError(f"a segment of column `{self.times}` has no start and end: {each!r:.200}")
            text = each.get("text")
            if result and end - result[-1][0] <= self.join_s:
                before = result[-1]
                result[-1] = (before[0], end, " ".join(part for part in (before[2], text) if part))
            else:
                result.append((begin, end, text))
        return result


def _begin(segment: Mapping[str, Any]) -> float | None:
    found = segment.get("start")
    return segment.get("begin") if found is None else found


def _inside(recording: Recording, begin: float, end: float) -> Times:
    """Times of a segment, cut at the end of the recording if they are rounded; raises an error if they are not in it."""
    if not 0 <= begin < end:
        raise MediaError(f"a segment from {begin} to {end} s is not one: begin must be at least 0, and end after it")
    check_inside(begin, end, recording.duration)
    return begin, min(end, recording.duration)


@operator(reads=("audio", "offset", "duration"), writes="audio")
class AudioSlice(AudioInfoStep, Map):
    """Make each row the part of its recording that its columns `offset` and `duration` name, in seconds.

    A null offset is 0, and a null duration reaches to the end; rows with neither keep their recording. The result is
    a reference, as for all segments, and nothing is read unless `verify` is true: then a part that is not in its
    recording fails the row here, and not in a later step.
    """

    column: str = "audio"
    offset: str = "offset"
    duration: str = "duration"
    verify: bool = True

    def reads(self) -> tuple[str, ...]:
        return ("audio", "offset", "duration")

    def real_names(self) -> dict[str, str]:
        return {"audio": self.column, "offset": self.offset, "duration": self.duration}

    def writes(self) -> tuple[str, ...]:
        return (self.column,)

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        values = batch["audio"].to_pylist()
        items = media_items(batch, "audio")
        pairs = zip(numbers(batch, "offset"), numbers(batch, "duration"), strict=True)
        for row, (item, (offset, duration)) in enumerate(zip(items, pairs, strict=True)):
            if item is None or (offset is None and duration is None):
                continue
            values[row] = sliced(item, offset, duration, recordings(batch, "audio")[row] if self.verify else None)
        return {self.column: pa.array(values, MEDIA)}


def sliced(item: MediaItem, offset: float | None, duration: float | None, known: Recording | None) -> dict[str, Any]:
    """The part of a recording that a manifest names; `known` is the recording if its length is checked."""
    begin = offset or 0.0
    if begin < 0 or (duration is not None and duration <= 0):
        raise MediaError(f"offset {offset} and duration {duration} are not a part of a recording")
    end = None if duration is None else begin + duration
    if known is not None:
        length = known.duration
        if begin == 0 and end is not None and abs(end - length) < 0.005:
            return {"bytes": None if item.data is None else bytes(item.data), "path": item.path}
        begin, end = _inside(known, begin, length if end is None else end)
    return part_of(item, begin, end)


def numbers(batch: Batch, column: str) -> list[float | None]:
    """A column of numbers, also if they are text, as in CSV."""
    values = batch[column]
    if pa.types.is_null(values.type):
        return [None] * len(values)
    if not (pa.types.is_floating(values.type) or pa.types.is_integer(values.type)):
        return [None if each in (None, "") else float(each) for each in values.to_pylist()]
    return values.to_pylist()
