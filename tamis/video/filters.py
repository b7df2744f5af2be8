"""Filters on what a video file says about itself, and a step that adds it as columns.

All but `VideoDecodable` read containers only; nothing is decoded. A row without video is dropped, because it has no size
or codec.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa

from tamis.audio.files import END_TOLERANCE_S, read_info
from tamis.batch import Batch, Column
from tamis.errors import AudioError, MediaError, ParameterError, VideoError
from tamis.media import MediaItem, media_items
from tamis.operators import Filter, Map, Rule, Scores, at_least, between, one_of, operator
from tamis.segments import Segment, segment_path, split_segment
from tamis.video.decode import TrackStep, VideoStep, headers, track_facts
from tamis.video.files import Header

_PROBED: dict[str, tuple[pa.DataType, Callable[[Header], object]]] = {
    "duration": (pa.float64(), lambda each: each.duration),
    "frames": (pa.int64(), lambda each: each.num_frames),
    "rate": (pa.float64(), lambda each: each.rate),
    "width": (pa.int64(), lambda each: each.width),
    "height": (pa.int64(), lambda each: each.height),
    "rotation": (pa.int64(), lambda each: each.rotation),
    "codec": (pa.string(), lambda each: each.codec),
    "pixel_format": (pa.string(), lambda each: each.pixel_format),
    "container": (pa.string(), lambda each: each.container),
    "bit_rate": (pa.float64(), lambda each: each.bit_rate),
    "hdr": (pa.string(), lambda each: each.hdr),
    "audio_codec": (pa.string(), lambda each: each.audio_codec),
    "audio_rate": (pa.int64(), lambda each: each.audio_rate),
    "channels": (pa.int64(), lambda each: each.channels),
}


@operator(reads="video")
class VideoProbe(VideoStep, Map):
    """Add what the container of each video says about it: duration, size, codec, sound; nothing is decoded.

    Columns are `video_duration` and so on, in seconds, pixels, degrees and bits per second. Width and height are
    upright. Unknown
    numbers are null, `frames` is 0 if unknown, and `audio_codec` is null without sound. For a clip, duration and frames
    are its own.
    """

    prefix: str = "video_"
    column: str = "video"

    def writes(self) -> tuple[str, ...]:
        return tuple(self.prefix + name for name in _PROBED)

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        found = headers(batch, "video")
        return {
            self.prefix + name: pa.array(
                [None if each is None else value(each) for each in found], kind, from_pandas=True
            )
            for name, (kind, value) in _PROBED.items()
        }


class VideoFilter(VideoStep, Filter):
    """Shared by filters on the headers of videos."""

    column: str

    def _scores(self, batch: Batch, value: Callable[[Header], float], kind: pa.DataType | None = None) -> Scores:
        found = [None if each is None else value(each) for each in headers(batch, "video")]
        return {self.declared_writes[0]: pa.array(found, kind or pa.float64(), from_pandas=True)}


@operator(reads="video", writes="video_duration")
class VideoDuration(VideoFilter):
    """Keep videos of at least 2 seconds, as their containers say; an unknown duration is a reason to drop."""

    min_duration: float | None = 2.0
    max_duration: float | None = None
    column: str = "video"

    def score(self, batch: Batch) -> Scores:
        return self._scores(batch, lambda each: each.duration)

    def rules(self) -> list[Rule]:
        return [between("video_duration", self.min_duration, self.max_duration)]


@operator(reads="video", writes=("video_width", "video_height"))
class VideoSize(VideoFilter):
    """Keep videos of at least 256 x 256 pixels, upright. A file that has only sound has 0 x 0."""

    min_width: int | None = 256
    max_width: int | None = None
    min_height: int | None = 256
    max_height: int | None = None
    column: str = "video"

    def score(self, batch: Batch) -> Scores:
        found = headers(batch, "video")
        return {
            "video_width": pa.array([None if each is None else each.width for each in found], pa.int64()),
            "video_height": pa.array([None if each is None else each.height for each in found], pa.int64()),
        }

    def rules(self) -> list[Rule]:
        return [
            between("video_width", self.min_width, self.max_width),
            between("video_height", self.min_height, self.max_height),
        ]


@operator(reads="video", writes="video_rate")
class VideoRate(VideoFilter):
    """Keep videos with at least 10 frames per second on average."""

    min_rate: float | None = 10.0
    max_rate: float | None = None
    column: str = "video"

    def score(self, batch: Batch) -> Scores:
        return self._scores(batch, lambda each: each.rate)

    def rules(self) -> list[Rule]:
        return [between("video_rate", self.min_rate, self.max_rate)]


@operator(reads="video", writes="video_codec")
class VideoCodec(VideoFilter):
    """Keep videos of the given codecs, by FFmpeg's names of decoders: h264, hevc, vp9, libdav1d (AV1), mpeg4, ..."""

    verdict_parameters = frozenset({"keep"})

    keep: list[str]
    column: str = "video"

    def check(self) -> None:
        if not self.keep:
            raise ParameterError("`keep` names at least one codec")

    def score(self, batch: Batch) -> Scores:
        found = headers(batch, "video")
        return {"video_codec": pa.array([None if each is None else each.codec for each in found], pa.string())}

    def rules(self) -> list[Rule]:
        return [one_of("video_codec", self.keep)]


@operator(reads="video", writes="bits_per_pixel")
class VideoBitRate(VideoFilter):
    """Keep videos with at least 0.01 bits per pixel of each frame: less is damage by compression.

    The score is bit rate / (width x height x frame rate). H.264 in good quality has about 0.1, newer codecs half of it.
    """

    min_bits_per_pixel: float | None = 0.01
    max_bits_per_pixel: float | None = None
    column: str = "video"

    def score(self, batch: Batch) -> Scores:
        def bits(header: Header) -> float:
            pixels = header.width * header.height * header.rate
            return header.bit_rate / pixels if pixels > 0 else math.nan  # the rate is NaN if it is unknown

        return self._scores(batch, bits)

    def rules(self) -> list[Rule]:
        return [between("bits_per_pixel", self.min_bits_per_pixel, self.max_bits_per_pixel)]


@operator(reads="video", writes="audio_channels")
class VideoSound(VideoFilter):
    """Keep videos that have a sound track. With `max_channels=0`, keep those that have none.

    For what is in the sound, use `SoundTrack` and operators on audio.
    """

    min_channels: int | None = 1
    max_channels: int | None = None
    column: str = "video"

    def score(self, batch: Batch) -> Scores:
        return self._scores(batch, lambda each: each.channels, pa.int64())

    def rules(self) -> list[Rule]:
        return [between("audio_channels", self.min_channels, self.max_channels)]


@operator(reads="video")
class SoundTrack(VideoStep, Map):
    """Add the sound of each video or clip as column `audio`, for operators on audio; null for a video without sound.

    It is a reference, such as `a.mp4#t=2.5,5.5&track=audio`, so that nothing is copied; operators on audio decode only the
    sound. The sound of a file may begin later than its picture or end earlier: a clip gets the part that is heard while it is
    shown, and null if there is none. Times in such references count from the begin of the sound. A row that holds the bytes of
    its video gets the same bytes.

        SoundTrack()  # then SpeechShare(), AudioSilence(), Transcribe(), ...
    """

    output: str = "audio"
    column: str = "video"

    def writes(self) -> tuple[str, ...]:
        return (self.output,)

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        values: list[dict[str, object] | None] = []
        for item, header in zip(media_items(batch, "video"), headers(batch, "video"), strict=True):
            if item is None or header is None or not header.channels:
                values.append(None)
            elif item.data is not None:
                values.append({"bytes": bytes(item.data), "path": item.path})
            else:
                whole, segment = split_segment(item.path or "")
                times = (0.0, None) if segment is None else _heard(item, segment, header)
                if times is None:
                    values.append(None)
                else:
                    values.append({"bytes": None, "path": segment_path(whole, *times, "audio")})
        return {self.output: pa.array(values, kind)}


def _heard(item: MediaItem, segment: Segment, header: Header) -> tuple[float, float | None] | None:
    """The part of the sound that is heard during a clip, from the begin of the sound; None if there is none."""
    late = header.audio_begin if abs(header.audio_begin) > END_TOLERANCE_S else 0.0
    try:
        with item.open() as file:
            duration = read_info(file).duration
    except AudioError:  # which operators on audio report
        return segment.begin, segment.end
    begin, end = max(0.0, segment.begin - late), None if segment.end is None else segment.end - late
    if end is not None and end > duration + END_TOLERANCE_S:
        end = duration
    heard = (duration if end is None else end) - begin
    return (begin, end) if heard > END_TOLERANCE_S else None


@operator(reads="video", writes=("video_problem", "decoded_share"))
class VideoDecodable(TrackStep, Filter):
    """Drop videos that cannot be decoded, and those with less than 90 % of their frames.

    The share is that of the seconds decoded in the seconds that the container claims, at most 1; it is 1 if the duration is
    unknown. A video whose packets are broken in the middle, or whose end is missing, has less. A frame counts for as
    long as it is shown, which MP4 and MOV files say. In other containers, it counts until the next frame, but for at
    most 1 second if the frame rate is regular; slides and screen recordings, whose rate is not, have no such limit.
    Put this step first: other steps fail such rows. `video_problem` is "fine", or what is wrong: "not readable", "without
    picture" (only sound), "without frames", "too large", "unsupported", "empty", or "missing" for a row without video.
    """

    verdict_parameters = frozenset({"drop"})

    min_decoded_share: float = 0.9
    column: str = "video"

    def score(self, batch: Batch) -> Scores:
        found = batch.facts_with_origin("video", track_facts)["track"]
        problems, shares = [], []
        claimed = self._claimed(batch, found)
        for track, duration in zip(found, claimed, strict=True):
            if track is None:
                problems.append("missing")
            elif isinstance(track, VideoError):
                problems.append(track.problem)
            elif isinstance(track, MediaError):
                raise track
            else:
                problems.append("fine")
                seconds = track.decoded_seconds()
                shares.append(min(1.0, seconds / duration) if duration > 0 else 1.0)
                continue
            shares.append(0.0)
        return {"video_problem": pa.array(problems, pa.string()), "decoded_share": pa.array(shares, pa.float64())}

    def _claimed(self, batch: Batch, found: np.ndarray) -> list[float]:
        fine = np.array([each is not None and not isinstance(each, MediaError) for each in found], np.bool_)
        known = iter(headers(batch.select(fine), "video") if fine.any() else [])
        return [getattr(next(known), "duration", 0.0) if each else 0.0 for each in fine]

    def rules(self) -> list[Rule]:
        return [one_of("video_problem", ["fine"]), at_least("decoded_share", self.min_decoded_share)]
