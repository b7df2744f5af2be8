"""Splits videos into clips. A clip is a row that refers to a part of its video in time: nothing is cut until bytes are
needed.

    a.mp4                row a.mp4:0
      -> a.mp4#t=0,4.2       a.mp4:0/0     clip_begin 0, clip_end 4.2
      -> a.mp4#t=4.2,11      a.mp4:0/1

Times are seconds from the begin of the video, and those of a clip of a clip too. Where a step decodes the whole video to
split it,
each clip gets its part of the track, so that filters on clips need not decode anything again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import field
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tamis.batch import Batch
from tamis.errors import ColumnError, ParameterError, VideoError
from tamis.media import media_items
from tamis.operators import Expand, operator
from tamis.segments import is_video_name, segment_path, split_segment
from tamis.video.decode import Track, TrackStep, VideoStep, end_of, headers, track_facts, tracks

Span = tuple[float, float]

THRESHOLD = 0.2
"""The change of the histogram that is a cut, unless `Shots` is given another one."""

EDGE = 0.5
"""A change counts as a cut if it stands out by this share from those of the frames around it."""

LEVELS = 128.0
"""Two shots may have the same histogram: a mean change of pixels by this many levels counts as much as another histogram."""

OTHER_PICTURE, CHANGED_SHARE = 20, 0.25
"""Dark shots may differ little in brightness. They are different pictures if this many of the 64 bits of their hashes differ,
and if this share of pixels changes by more than 20 levels: the hash of a plain picture depends on a few pixels."""


MAX_CLIPS = 1_000_000
"""Of one video. Times in a damaged file may be anything."""


class Splitter(VideoStep, Expand):
    """Shared by steps that split videos."""

    column: str

    def writes(self) -> tuple[str, ...]:
        return (self.column, "clip_begin", "clip_end")

    def _clips(
        self, batch: Batch, spans: Sequence[Sequence[Span] | None], known: Sequence[Track | None] | None = None
    ) -> tuple[pa.Table, np.ndarray]:
        """The rows of all clips; None stands for a row without video, which is kept as it is."""
        before = batch["video"]
        items = media_items(batch, "video")
        values: list[Any] = []
        begins: list[float | None] = []
        ends: list[float | None] = []
        parents: list[int] = []
        parts: list[Track | None] = []
        for row, (item, found) in enumerate(zip(items, spans, strict=True)):
            if item is None or found is None:
                values.append(None)
                begins.append(None)
                ends.append(None)
                parents.append(row)
                parts.append(None)
                continue
            for begin, end in found:
                parents.append(row)
                begins.append(begin)
                ends.append(end)
                if item.data is not None:
                    from tamis.video.cut import cut_part  # a row that holds its bytes has nothing to refer to

                    values.append(cut_part(item, begin, end))
                else:
                    whole, _ = split_segment(item.path or "")
                    track_name = None if is_video_name(item.name) else "video"
                    values.append({"bytes": None, "path": segment_path(whole, begin, end, track_name)})
                track = None if known is None else known[row]
                parts.append(None if track is None or item.data is not None else track.part(begin, end))
        if known is not None and all(
            part is not None or each is None for part, each in zip(parts, values, strict=True)
        ):
            made = np.empty(len(parts), dtype=object)
            made[:] = parts
            batch.hand_on(self.column, track_facts, {"track": made})
        kind = (
            before.type
            if pa.types.is_struct(before.type)
            else pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        )
        table = pa.table(
            {
                self.column: pa.array(values, kind),
                "clip_begin": pa.array(begins, pa.float64()),
                "clip_end": pa.array(ends, pa.float64()),
            }
        )
        return table, np.array(parents, np.int64)


@operator(reads="video")
class FixedClips(Splitter):
    """Split videos into clips of 10 seconds, one after another; a remainder of less than 2 seconds is left out.

    `stride_s` is the time from the begin of a clip to that of the next one: less than `length_s` for clips that overlap.
    Nothing is decoded: the duration is read from the times of the last packets, because that in a header may be wrong. A
    stream without times is decoded once to measure it. A clip in which no frame begins, of slides for example, has the
    frame that is shown at its begin. Rows without video stay as they are.
    """

    length_s: float = 10.0
    stride_s: float | None = None
    min_length_s: float = 2.0
    max_clips: int | None = None
    column: str = "video"

    def check(self) -> None:
        if not all(0 < each < math.inf for each in (self.length_s, self.stride_s) if each is not None):
            raise ParameterError("`length_s` and `stride_s` must be positive and finite")
        if self.max_clips is not None and self.max_clips < 1:
            raise ParameterError("`max_clips` must be at least 1")

    def expand(self, batch: Batch) -> tuple[pa.Table, np.ndarray]:
        items = media_items(batch, "video")
        known = headers(batch, "video")
        ends = [math.nan if item is None else end_of(item) for item in items]
        measured: list[Track | None] = [None] * len(items)
        if any(item is not None and math.isnan(end) for item, end in zip(items, ends, strict=True)):
            measured = tracks(batch, "video")
        spans: list[list[Span] | None] = []
        for item, header, end, track in zip(items, known, ends, measured, strict=True):
            if item is None or header is None:
                spans.append(None)
                continue
            begin = 0.0 if item.segment is None else item.segment.begin
            length = track.duration if math.isnan(end) and track is not None else end - begin
            if item.segment is not None and item.segment.end is not None:
                length = min(length, header.duration)
            spans.append(self._spans(begin, length))
        return self._clips(batch, spans)

    def _spans(self, begin: float, length: float) -> list[Span]:
        step = self.stride_s or self.length_s
        most = math.ceil(length / step) if self.max_clips is None else self.max_clips
        if most > MAX_CLIPS:
            raise VideoError("too large", f"{length:g} seconds are {most:,} clips, and at most {MAX_CLIPS:,} are made")
        found: list[Span] = []
        for number in range(most):
            first = number * step
            last = min(length, first + self.length_s)
            if first >= length or last - first < min(self.min_length_s, self.length_s) - 1e-6:
                break
            found.append((round(begin + first, 6), round(begin + last, 6)))
        return found


class ShotSplitter(TrackStep, Splitter):
    """Shared by steps that find shots. The parameters are those of NeMo Curator, with its defaults."""

    min_length_s: float
    max_length_s: float | None
    max_length_mode: str
    crop_s: float
    whole_scene: bool

    def check(self) -> None:
        if self.max_length_s is not None and not self.max_length_s > 0:
            raise ParameterError("`max_length_s` must be positive")
        if self.min_length_s < 0 or self.crop_s < 0:
            raise ParameterError("`min_length_s` and `crop_s` must not be negative")

    def _spans(self, track: Track, cuts: np.ndarray) -> list[Span]:
        """Clips of the shots that begin at the frames `cuts`."""
        if not len(cuts) and not self.whole_scene:
            return []
        times = track.time[cuts]
        edges = [track.begin, *(float(time) for time in times), track.end]
        return self._fitted(list(itertools.pairwise(edges)))

    def _fitted(self, scenes: Sequence[Span]) -> list[Span]:
        """Scenes, cropped and limited to the lengths of clips."""
        found: list[Span] = []
        for number, (begin, end) in enumerate(scenes):
            # Around a cut, frames may be blends of both shots; the ends of the video need no crop.
            first = begin + (self.crop_s if number else 0.0)
            last = end - (self.crop_s if number < len(scenes) - 1 else 0.0)
            found += self._limited(first, last)
        return [(round(begin, 6), round(end, 6)) for begin, end in found if end - begin >= self.min_length_s - 1e-6]

    def _limited(self, begin: float, end: float) -> list[Span]:
        if end <= begin:
            return []
        if self.max_length_s is None or end - begin <= self.max_length_s:
            return [(begin, end)]
        if self.max_length_mode == "truncate":
            return [(begin, begin + self.max_length_s)]
        number = math.ceil((end - begin) / self.max_length_s - 1e-9)
        return [
            (begin + index * self.max_length_s, min(end, begin + (index + 1) * self.max_length_s))
            for index in range(number)
        ]


@operator(reads="video")
class Shots(ShotSplitter):
    """Split videos into their shots, found by changes of the histogram of brightness between frames.

    A cut is where the histogram (64 bins, at 64 x 64 pixels) changes by `threshold` or more, as a share of all pixels, and
    where pixels change by at least 8 levels on average; or where the picture is another one by its perceptual hash, which
    has to differ more, in proportion, if `threshold` is larger than its default. The change has to be twice as large as
    those of the four frames around it, so that a flash or a fast motion is no cut. Dissolves over many frames are not found;
    `TransNetShots` finds them. On six videos with 63 cuts that were checked by eye, 61 cuts are found and none is wrong
    (benchmarks/video.md).

    Clips are 2 to 10 seconds long, as in NeMo Curator: shots are cropped by `crop_s` at each cut, longer ones are divided
    (`max_length_mode="stride"`) or shortened ("truncate"), and shorter ones are left out. Without any cut, the whole video is
    one scene, unless `whole_scene` is False. One pass decodes all frames, and the clips get their parts of the track.
    """

    threshold: float = THRESHOLD
    min_length_s: float = 2.0
    max_length_s: float | None = 10.0
    max_length_mode: Literal["stride", "truncate"] = "stride"
    crop_s: float = 0.0
    whole_scene: bool = True
    column: str = "video"

    def expand(self, batch: Batch) -> tuple[pa.Table, np.ndarray]:
        known = tracks(batch, "video")
        spans = [None if each is None else self._spans(each, histogram_cuts(each, self.threshold)) for each in known]
        return self._clips(batch, spans, known)


def histogram_cuts(track: Track, threshold: float = THRESHOLD) -> np.ndarray:
    """The numbers of the frames that begin a new shot."""
    if len(track) < 2:
        return np.empty(0, np.int64)
    pixels = track["change"].astype(np.float64)
    change = np.maximum(track["histogram_change"], pixels / LEVELS)
    cuts = (change >= threshold) & (pixels >= 8) & _stands_out(change)
    words = track.hashes[1:] ^ track.hashes[:-1]
    bits = np.append(0, np.unpackbits(words[:, None].view(np.uint8), axis=1).sum(axis=1))
    strict = max(1.0, threshold / THRESHOLD)
    other = (bits >= OTHER_PICTURE * strict) & (track["changed_share"] >= CHANGED_SHARE * strict)
    cuts |= other & _stands_out(bits)
    return np.flatnonzero(cuts)


def _stands_out(change: np.ndarray) -> np.ndarray:
    """Whether each change is at least twice as large as those of the two frames before and after it."""
    padded = np.pad(change, 2)
    around = np.max([padded[shift : shift + len(change)] for shift in (0, 1, 3, 4)], axis=0)
    return np.asarray(around <= EDGE * change)


_NO_SEGMENTS = "column `segments` holds lists of structs with the fields `begin` and `end`, in seconds"


@operator(reads=("video", "segments"))
class TimedClips(Splitter):
    """Split videos at given times: column `segments` lists the clips of each row, as structs with `begin` and `end` in
    seconds.

    A transcript is such a list; with `fields=["text"]`, its texts become a column of the clips. Rows without segments
    are dropped,
    and so are clips shorter than `min_length_s`. Times count from the begin of the file, also for a row that is a clip.
    """

    fields: list[str] = field(default_factory=list)
    min_length_s: float = 0.0
    column: str = "video"

    def check(self) -> None:
        written = super().writes()
        wrong = next((name for name in self.fields if name in written or self.fields.count(name) > 1), None)
        if wrong is not None:
            raise ParameterError(f"`fields` names {wrong!r}, and another column of the clips has that name")

    def writes(self) -> tuple[str, ...]:
        return (*super().writes(), *self.fields)

    def expand(self, batch: Batch) -> tuple[pa.Table, np.ndarray]:
        values = batch["segments"].to_pylist()
        spans: list[list[Span] | None] = []
        others: list[dict[str, Any]] = []
        for item, segments in zip(media_items(batch, "video"), values, strict=True):
            kept = []
            if segments is not None and not isinstance(segments, list):
                raise ColumnError(_NO_SEGMENTS)
            for each in segments or ():
                if not isinstance(each, dict) or not {"begin", "end"} <= each.keys():
                    raise ColumnError(_NO_SEGMENTS)
                if each["begin"] is None or each["end"] is None or not 0 <= each["begin"] < each["end"]:
                    raise ValueError(f"a segment begins at {each['begin']} and ends at {each['end']}")
                if item is not None and each["end"] - each["begin"] >= self.min_length_s - 1e-6:
                    kept.append((round(each["begin"], 6), round(each["end"], 6)))
                    others.append(each)
            if item is None:
                others.append({})  # `_clips` keeps the row as it is
            spans.append(kept)
        table, parents = self._clips(batch, spans)
        for name in self.fields:
            table = table.append_column(name, pa.array([each.get(name) for each in others], _field_type(batch, name)))
        return table, parents


def _field_type(batch: Batch, name: str) -> pa.DataType:
    kind = batch["segments"].type
    inner = kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else pa.null()
    known = pa.types.is_struct(inner) and inner.get_field_index(name) >= 0
    return inner.field(name).type if known else pa.string()
