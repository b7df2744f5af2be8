"""Cuts clips out of videos: the bytes of an MP4 file for a part in time.

    copy      packets are copied, from the last key frame before the begin: fast and without loss, but not exact
    encode    frames are decoded and encoded again: exact to the frame

`auto` copies where that is exact, because the clip begins and ends at key frames, and encodes otherwise. Sound is
copied, or encoded
as AAC if its codec does not go into MP4. Encoders use one thread, so that the same clip gives the same bytes.
"""

from __future__ import annotations

import io
import math
import posixpath
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cache
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tamis.audio.files import samples_of
from tamis.batch import Batch, Column
from tamis.errors import ParameterError, VideoError
from tamis.media import MediaItem, media_items
from tamis.operators import Map, operator
from tamis.segments import Segment, cut_name
from tamis.video.decode import ROW_BYTES, VideoStep
from tamis.video.files import (
    TOLERANCE_S,
    Decodes,
    PacketTimes,
    av_module,
    explained,
    frames,
    opened_item,
    packets_from,
    read_header,
)

Mode = Literal["auto", "copy", "encode"]
Codec = Literal["h264", "h265", "vp9", "av1"]

ENCODERS: dict[str, tuple[str, dict[str, str]]] = {
    # Without B-frames, clips can be cut again at any key frame. With the macroblock tree, a clip would not always give the
    # same bytes.
    "h264": ("libx264", {"preset": "veryfast", "threads": "1", "bf": "0", "x264-params": "mbtree=0"}),
    "h265": ("libx265", {"preset": "fast", "x265-params": "pools=none:frame-threads=1:log-level=none"}),
    "vp9": ("libvpx-vp9", {"b": "0", "deadline": "good", "cpu-used": "5", "threads": "1", "row-mt": "0"}),
    "av1": ("libsvtav1", {"preset": "9", "svtav1-params": "lp=1"}),
}
MOST_REORDERED = 16
"""The most frames that a codec decodes before one that is shown earlier (H.264, H.265: 16)."""

_BT709, _LIMITED = 1, 1  # a colour space and a range of FFmpeg

SOUND_PREROLL_S = 0.5
"""How much sound is decoded before a clip: a packet may be that long, and codecs need what came before."""

QUALITIES = {"h264": 20, "h265": 23, "vp9": 30, "av1": 32}
"""Constant rate factors at which a clip is hard to tell from its source; they are the scales of the encoders."""

WORST_QUALITIES = {"h264": 51, "h265": 51, "vp9": 63, "av1": 63}

IN_MP4 = frozenset({"aac", "mp3", "mp3float", "opus", "libopus", "flac", "ac3", "eac3", "alac"})
COPIED = frozenset({"h264", "hevc", "vp9", "libvpx-vp9", "av1", "libdav1d", "mpeg4", "mpeg2video"})


def cut(item: MediaItem) -> bytes:
    """The clip that a row refers to, as the bytes of an MP4 file; what sinks and `ReadMedia` write."""
    assert item.segment is not None
    return cut_bytes(item, item.segment)


def cut_part(item: MediaItem, begin: float, end: float) -> dict[str, Any]:
    """A media value with a part of a video that a row holds as bytes."""
    name = cut_name(posixpath.basename(item.name or "video.mp4"), Segment(begin, end))
    return {"bytes": cut_bytes(item, Segment(begin, end)), "path": posixpath.splitext(name)[0] + ".mp4"}


def cut_bytes(
    item: MediaItem,
    segment: Segment,
    mode: Mode = "auto",
    codec: Codec = "h264",
    quality: int | None = None,
    sound: bool = True,
) -> bytes:
    """The bytes of an MP4 file with a part of a video."""
    target = io.BytesIO()
    with opened_item(item) as container, explained():
        stream = next((each for each in container.streams.video if not each.disposition & 0x400), None)
        if stream is None:
            raise VideoError("without picture", "it has only sound")
        Decodes.files += 1
        at_keys, ordered = _look(container, stream, segment)
        # MP4 needs the times of decoding, which Matroska does not store: those of B-frames are unknown.
        copied = mode != "encode" and (at_keys or mode == "copy") and ordered and stream.codec_context.name in COPIED
        with av_module().open(target, "w", format="mp4") as output:
            if copied:
                _copy(container, stream, output, segment, sound)
            else:
                _encode(container, stream, output, segment, codec, quality, sound)
    return target.getvalue()


def _look(container: Any, stream: Any, segment: Segment) -> tuple[bool, bool]:
    """Whether a part begins and ends with key frames, so that copying is exact; whether all packets have their times."""
    base, origin = stream.time_base, _origin(stream)
    wanted = {round(segment.begin, 6)} | ({round(segment.end, 6)} if segment.end is not None else set())
    if segment.end is not None and container.duration and segment.end >= container.duration / 1e6 - 1e-3:
        wanted.discard(round(segment.end, 6))
    end = math.inf if segment.end is None else segment.end
    ordered, closed, last_key = True, True, -math.inf
    for packet in packets_from(container, stream, segment.begin):
        if packet.pts is None:
            continue
        time = float(packet.pts * base) - origin
        if time > end + 1:
            break
        ordered &= packet.dts is not None
        if packet.is_keyframe:
            wanted -= {each for each in wanted if abs(each - time) <= TOLERANCE_S}
            last_key = time
        elif time < end - TOLERANCE_S <= last_key:
            closed = False  # a frame of the clip needs the key frame after its end
    return not wanted and closed, ordered


def _origin(stream: Any) -> float:
    return float((stream.start_time or 0) * stream.time_base)


def _copy(container: Any, stream: Any, output: Any, segment: Segment, sound: bool) -> None:
    base, origin = stream.time_base, _origin(stream)
    made = output.add_stream_from_template(stream)
    audio = _SoundCopy.of(container, output) if sound else None
    end = math.inf if segment.end is None else segment.end
    first: int | None = None
    begin = segment.begin
    late: list[Any] = []
    for packet in packets_from(container, stream, segment.begin):
        if packet.dts is None or packet.pts is None:
            continue
        time = float(packet.pts * base) - origin
        if first is None:
            if not packet.is_keyframe:
                continue
            first, begin = packet.pts, time
        if time < begin - TOLERANCE_S:
            continue  # it needs frames before the key frame
        late.append(packet)
        if time >= end - TOLERANCE_S:
            if len(late) > MOST_REORDERED:
                break
            continue
        for each in late:  # what is shown after the end and decoded before this packet, which may need it
            each.pts, each.dts = each.pts - first, each.dts - first
            each.stream = made
            output.mux(each)
        late = []
    if first is None:
        raise VideoError("without frames", "the clip has none")
    if audio is not None:
        audio.finish(container, begin, end, origin)


def _encode(
    container: Any, stream: Any, output: Any, segment: Segment, codec: Codec, quality: int | None, sound: bool
) -> None:
    header = read_header(container)
    name, options = ENCODERS[codec]
    settings = {**options, "crf": str(QUALITIES[codec] if quality is None else quality)}
    rate = Fraction(header.rate).limit_denominator(1001) if header.rate > 0 else Fraction(25)
    made = output.add_stream(name, rate=rate, options=settings)
    context = stream.codec_context
    made.width, made.height = context.width // 2 * 2 or 2, context.height // 2 * 2 or 2  # 4:2:0 has even sizes
    made.pix_fmt = "yuv420p10le" if codec != "h264" and _deep(context) and _writes_deep(name) else "yuv420p"
    made.codec_context.time_base = stream.time_base
    made.codec_context.thread_count = 1
    if header.rotation:
        made.set_display_rotation(header.rotation)
    if context.sample_aspect_ratio:
        made.codec_context.sample_aspect_ratio = context.sample_aspect_ratio
    into = _described_colours(context, made.codec_context)
    audio = _SoundCopy.of(container, output) if sound else None
    origin, count = _origin(stream), 0
    last, times, begins = -1, PacketTimes(), np.zeros(1)
    late: list[Any] = []
    for frame in frames(container, segment, rewind=True, packet_times=times):
        picture = frame.decoded
        if picture.width != made.width or picture.height != made.height or picture.format.name != made.pix_fmt:
            picture = picture.reformat(made.width, made.height, made.pix_fmt, **into)
        last = max(last + 1, round((frame.time - segment.begin) / float(stream.time_base)))
        picture.pts, picture.time_base, picture.pict_type = last, stream.time_base, 0
        late += made.encode(picture)
        output.mux(late[:-1])
        late = late[-1:]
        begins[0] = frame.began
        count += 1
    if not count:
        raise VideoError("without frames", "the clip has none")
    late += made.encode(None)
    if count <= 2:  # libx265 leaves the times of decoding undefined; so few frames are decoded as they are shown
        for packet in late:
            packet.dts = packet.pts
    end = float(times.ends(begins)[0])
    if end > -math.inf:  # otherwise packets have no times
        end = end if segment.end is None else min(end, segment.end)
        late[-1].duration = max(1, round((end - segment.begin) / float(stream.time_base)) - last)
    output.mux(late)
    if audio is not None:
        audio.finish(container, segment.begin, math.inf if segment.end is None else segment.end, origin)


def _described_colours(source: Any, made: Any) -> dict[str, int]:
    """Say in a new stream what its colours mean, as the source does; returns how to convert frames, so that it stays true.

    Red, green and blue become brightness and colours by ITU-R BT.709.
    """
    if source.format is not None and source.format.is_rgb:
        made.colorspace, made.color_range = _BT709, _LIMITED
        return {"dst_colorspace": _BT709, "dst_color_range": _LIMITED}
    made.colorspace, made.color_range = source.colorspace, source.color_range
    made.color_primaries, made.color_trc = source.color_primaries, source.color_trc
    return {"dst_color_range": source.color_range} if source.color_range else {}


@cache
def _writes_deep(encoder: str) -> bool:
    """Whether an encoder writes 10 bits; libvpx can be built without."""
    formats = av_module().codec.Codec(encoder, "w").video_formats or ()
    return any(each.name == "yuv420p10le" for each in formats)


def _deep(context: Any) -> bool:
    return context.format is not None and context.format.components[0].bits > 8


class _SoundCopy:
    """Copies the sound of a clip, or encodes it again if MP4 cannot hold its codec."""

    def __init__(self, source: Any, made: Any, output: Any, copied: bool) -> None:
        self.source, self.made, self.output, self.copied = source, made, output, copied

    @staticmethod
    def of(container: Any, output: Any) -> _SoundCopy | None:
        source = next(iter(container.streams.audio), None)
        if source is None or source.codec_context is None or not source.codec_context.sample_rate:
            return None
        copied = source.codec_context.name in IN_MP4
        made = output.add_stream_from_template(source) if copied else output.add_stream("aac", rate=48_000)
        return _SoundCopy(source, made, output, copied)

    def finish(self, container: Any, begin: float, end: float, origin: float) -> None:
        start = begin if self.copied else begin - SOUND_PREROLL_S
        container.seek(round(max(0.0, start + origin) / self.source.time_base), stream=self.source, backward=True)
        made = self._copies if self.copied else self._encoded
        for packet in made(container, begin, end, origin):
            self.output.mux(packet)

    def _copies(self, container: Any, begin: float, end: float, origin: float) -> Iterator[Any]:
        shift = round((begin + origin) / self.source.time_base)
        for packet, time in self._packets(container, end, origin):
            if time >= begin - TOLERANCE_S:
                packet.pts = packet.dts = max(0, packet.pts - shift)
                packet.stream = self.made
                yield packet

    def _encoded(self, container: Any, begin: float, end: float, origin: float) -> Iterator[Any]:
        av = av_module()
        resampler = av.AudioResampler("fltp", "stereo", 48_000)
        for packet, _ in self._packets(container, end, origin):
            try:
                decoded = packet.decode()
            except av.error.InvalidDataError:
                continue  # a damaged piece of sound
            for frame in decoded:
                part = _part(frame, begin + origin, end + origin)
                for piece in resampler.resample(part) if part is not None else ():
                    yield from self.made.encode(piece)
        for piece in resampler.resample(None):
            yield from self.made.encode(piece)
        yield from self.made.encode(None)

    def _packets(self, container: Any, end: float, origin: float) -> Iterator[tuple[Any, float]]:
        """The packets up to a time of the clip, and when they are heard."""
        for packet in container.demux(self.source):
            if packet.pts is None:
                continue
            time = float(packet.pts * self.source.time_base) - origin
            if time >= end - TOLERANCE_S:
                return
            yield packet, time


def _part(frame: Any, begin: float, end: float) -> Any:
    """The samples of a frame of sound between two times, with times from the first one on; None if there are none."""
    if frame.pts is None or not frame.time_base:
        return None
    rate = frame.sample_rate
    start = round((float(frame.pts * frame.time_base) - begin) * rate)
    first, stop = max(0, -start), frame.samples
    if end < math.inf:
        stop = min(stop, round((end - begin) * rate) - start)
    if first >= stop:
        return None
    samples = np.ascontiguousarray(samples_of(frame)[:, first:stop].T).reshape(1, -1)
    made = av_module().AudioFrame.from_ndarray(samples, frame.format.name.removesuffix("p"), frame.layout.name)
    made.sample_rate, made.time_base, made.pts = rate, Fraction(1, rate), start + first
    return made


@operator(reads="video")
class VideoCut(VideoStep, Map):
    """Replace each clip by a file of its own: column `video` then holds the bytes of an MP4 file.

    Without this step, sinks cut clips themselves, with `mode="auto"`. `mode="copy"` copies packets from the key frame
    before the
    begin of the clip on, which is fast and without loss, and gives a clip that may begin earlier than its times say; `encode`
    encodes again, exact to the frame; `auto` copies where that is exact. The codecs are those of FFmpeg's libx264, libx265,
    libvpx and SVT-AV1; `quality` is their constant rate factor (defaults: 20, 23, 30 and 32). A row that is no clip
    stays as it
    is, unless `mode` is "encode".
    """

    cost = 2000.0

    mode: Mode = "auto"
    codec: Codec = "h264"
    quality: int | None = None
    sound: bool = True
    column: str = "video"

    def check(self) -> None:
        most = WORST_QUALITIES[self.codec]
        if self.quality is not None and not 0 <= self.quality <= most:
            raise ParameterError(f"`quality` is 0 to {most} for {self.codec}")

    @property
    def row_bytes(self) -> int:
        return ROW_BYTES

    def writes(self) -> tuple[str, ...]:
        return (self.column,)

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        values = batch["video"].to_pylist()
        for row, item in enumerate(media_items(batch, "video")):
            if item is None or (item.segment is None and self.mode != "encode"):
                continue
            segment = item.segment or Segment(0.0, None)
            name = (
                cut_name(item.name, segment) if item.segment is not None else f"{posixpath.splitext(item.name)[0]}.mp4"
            )
            made = cut_bytes(item, segment, self.mode, self.codec, self.quality, self.sound)
            values[row] = {"bytes": made, "path": name}
        return {self.column: pa.array(values, batch["video"].type)}
