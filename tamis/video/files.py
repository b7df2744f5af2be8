"""Video files: their headers and their frames. The only module that opens containers with PyAV (FFmpeg) to read them.

    file  -> Header     duration, frames, rate, size, codec, sound: from the container, nothing is decoded
          -> Frame ...  one at a time, in order; each is reduced before the next one is decoded

A file is opened by the demuxer of a known container format. Playlists and lists of files, which lead to other files, reach
no demuxer. Nothing is allocated by what a header claims: a file that claims a billion frames costs what its data cost.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import IO, Any

import numpy as np

from tamis.audio.files import tagged_end
from tamis.errors import VideoError, is_shortage, require
from tamis.kernels.frames import shrink_plane, small_frame, to_rgb
from tamis.media import MediaItem
from tamis.segments import Segment

FORMATS = (
    "mov", "mp4", "m4a", "3gp", "3g2", "mj2", "matroska", "webm", "avi", "mpegts", "mpeg", "mpegvideo", "m4v", "flv", "ogg",
    "asf", "rm", "dv", "gif", "nut", "ivf", "h264", "hevc", "obu", "mxf", "wtv", "yuv4mpegpipe", "swf", "nsv", "vivo", "bink",
    "smk", "roq", "cdxl", "film_cpk", "4xm",
)  # fmt: skip
"""Containers that are read. Formats that name other files (HLS, DASH, concat, image sequences) are not among them."""

MAX_PIXELS = 178_956_970
"""Larger frames are not decoded; the limit is that of images. 8K has 33 million."""

TOLERANCE_S = 2e-6
"""Times in references are rounded to microseconds."""

HELD_S = 1.0
"""A frame that is shown already at the begin of a clip is its first one if no other one begins for so long."""

TIMED = frozenset({"mov"})
"""Containers with a table of all packets (MP4, MOV): it says how long each frame is shown, also if the next one is broken."""

FROM_ZERO = frozenset({"matroska,webm"})
"""Containers whose duration counts from time 0, and not from the first frame."""

LONGEST_S = 1e9
"""Times beyond this are not looked for."""

UNTIMED = frozenset({"h264", "hevc"})
"""Streams without a container."""

UNINDEXED = frozenset({"mpeg", "mpegts"})
STEP_BACK_S = 1.0
"""How far before a time a key frame is looked for if there is none at the time itself."""

MAX_ERRORS = 1000
"""After this many broken packets in a row, the rest of a video is given up."""

_PLANAR = re.compile(r"yuvj?(420|422|444|440|411|410)p(9|10|12|14|16)?(le)?")
_ROTATION = re.compile(
    r"Side data:\s+(?:[^\n]*\n\s+)*?(?:Display Matrix|displaymatrix): rotation of (-?\d+(?:\.\d+)?) degrees"
)
_HDR = {16: "pq", 18: "hlg"}  # colour transfer functions (ITU-T H.273, table 3)
_MATRICES = {1: (0.2126, 0.0722), 4: (0.30, 0.11), 7: (0.212, 0.087), 9: (0.2627, 0.0593), 10: (0.2627, 0.0593)}
_BT601 = (0.299, 0.114)
"""Shares of red and blue in the brightness, by the colour space of a frame (ITU-T H.273, table 4)."""


class Decodes:
    """What was decoded in this process, for tests and benchmarks."""

    files = 0
    """Passes over a file or a clip that decoded frames."""
    frames = 0


@dataclass(frozen=True)
class Header:
    """What a container says about a video, before anything is decoded."""

    container: str
    codec: str
    pixel_format: str
    width: int
    """In pixels, upright: after the rotation is applied."""
    height: int
    rotation: int
    """In degrees counterclockwise: 0, 90, 180 or 270."""
    rate: float
    """Frames per second, on average; NaN if unknown."""
    duration: float
    """In seconds; NaN if unknown. It is a claim: files may be shorter or longer."""
    num_frames: int
    """As the header says, or from rate and duration; 0 if unknown."""
    bit_rate: float
    """Bits per second of the video stream; of the file if the stream does not say; NaN if unknown."""
    audio_codec: str | None
    audio_rate: int
    channels: int
    audio_begin: float
    """When the sound begins, in seconds from the begin of the video; 0 without sound."""
    hdr: str | None
    """"pq" or "hlg" for a high dynamic range."""
    has_picture: bool
    """False for a file that has only sound."""

    @property
    def short_side(self) -> int:
        return min(self.width, self.height)


@cache
def av_module() -> Any:
    found = require("av", extra="video", purpose="reading videos")
    found.logging.set_level(None)  # errors are raised; FFmpeg would also print them
    return found


@contextmanager
def opened(file: IO[bytes]) -> Iterator[Any]:
    """A file as a container of PyAV; errors of FFmpeg become VideoErrors."""
    av = av_module()
    with explained():
        start = file.read(1)
        if not start:
            raise VideoError("empty", "the file has no bytes")
        file.seek(0)
        options = {"format_whitelist": ",".join(FORMATS), "protocol_whitelist": "none"}
        container = av.open(file, metadata_errors="replace", options=options)
    try:
        yield container
    finally:
        container.close()


@contextmanager
def opened_item(item: MediaItem) -> Iterator[Any]:
    """The container that a row refers to or holds. Errors of decoding pass as they are; they are not errors of reading."""
    manager = item.open()
    file = manager.__enter__()
    try:
        with opened(file) as container:
            yield container
    finally:
        manager.__exit__(None, None, None)


@contextmanager
def explained() -> Iterator[None]:
    """Turn errors of FFmpeg into a VideoError, except those caused by a lack of memory."""
    av = av_module()
    try:
        yield
    except av.error.FFmpegError as error:
        if is_shortage(error) or isinstance(error, MemoryError):
            raise MemoryError(str(error)) from error
        raise VideoError(*_described(error)) from error


def _described(error: Exception) -> tuple[str, str]:
    av = av_module()
    text = str(error.strerror if isinstance(error, OSError) else error)
    text = re.sub(r"\[Errno -?\d+\] |: '(<none>|\d+)'|; last error log: ", "", text)
    if isinstance(error, av.error.EOFError):
        return "truncated", text
    if isinstance(error, (av.error.DecoderNotFoundError, av.error.PatchWelcomeError)):
        return "unsupported", text
    return "not readable", f"{text}; it is damaged, its end with the index is missing, or it is not a video"


def read_header(container: Any) -> Header:
    """The header of an open container. A file without frames to show has no picture, and a width of 0."""
    videos = [each for each in container.streams.video if not each.disposition & 0x400]  # cover pictures are not videos
    sound = next(iter(container.streams.audio), None)
    common = {
        "container": container.format.name.partition(",")[0],
        "audio_codec": None if sound is None or sound.codec_context is None else sound.codec_context.name,
        "audio_rate": 0 if sound is None or sound.codec_context is None else int(sound.codec_context.sample_rate or 0),
        "channels": 0 if sound is None or sound.codec_context is None else int(sound.codec_context.channels or 0),
    }
    if not videos:
        return Header(
            codec="", pixel_format="", width=0, height=0, rotation=0, rate=math.nan, duration=_duration(container, sound),
            num_frames=0, bit_rate=math.nan, audio_begin=0.0, hdr=None, has_picture=False, **common,
        )  # fmt: skip
    stream = videos[0]
    context = stream.codec_context
    if context is None:
        raise VideoError("unsupported", "its codec is unknown")
    rate = float(stream.average_rate or stream.guessed_rate or math.nan)
    duration = _duration(container, stream)
    known = not (math.isnan(rate) or math.isnan(duration))
    rotation = _rotation(container)
    width, height = context.width, context.height
    if rotation % 180:
        width, height = height, width
    return Header(
        codec=context.name,
        pixel_format=context.pix_fmt or "",
        width=width,
        height=height,
        rotation=rotation,
        rate=rate,
        duration=duration,
        num_frames=int(stream.frames) or (round(min(rate * duration, 1e15)) if known else 0),
        bit_rate=_bit_rate(container, context, duration),
        audio_begin=0.0 if sound is None else _start(sound, container) - _start(stream, container),
        hdr=_HDR.get(int(context.color_trc or 0)),
        has_picture=True,
        **common,
    )


def _duration(container: Any, stream: Any) -> float:
    if stream is not None and stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    if not container.duration or container.duration < 0:
        return math.nan
    end = container.duration / 1e6
    tagged = tagged_end(stream) if stream is not None and len(container.streams) > 1 else None
    end = tagged if tagged and tagged < end else end
    begin = 0.0 if stream is None or container.format.name not in FROM_ZERO else _start(stream, container)
    return end - begin if 0 < begin < end else end


def _bit_rate(container: Any, context: Any, duration: float) -> float:
    if context.bit_rate:
        return float(context.bit_rate)
    size = container.size
    return 8.0 * size / duration if size and size > 0 and duration > 0 else math.nan


def _rotation(container: Any) -> int:
    """The rotation of the picture in the container. PyAV shows it with decoded frames only, and in this description."""
    logging = av_module().logging
    logging.set_level(logging.INFO)  # the description is what FFmpeg would log
    try:
        found = _ROTATION.search(container.dumps_format())
    except UnicodeDecodeError:  # metadata that are not UTF-8
        found = None
    finally:
        logging.set_level(None)
    return round(float(found[1]) / 90) * 90 % 360 if found else 0


# -------------------------------------------------------------------------------------------------------------- frames


@dataclass
class Frame:
    """A decoded frame, valid until the next one is decoded."""

    time: float
    """In seconds from the begin of the video, also within a clip."""
    key: bool
    rotation: int
    decoded: Any
    began: float
    """As `time`, but before the begin of a clip for a frame that is shown there already."""

    def small(self, out: np.ndarray) -> None:
        """out uint8[SIDE, SIDE] = the brightness of the frame, upright: a copy may be turned, or say how to turn it."""
        frame = self.decoded
        name = frame.format.name
        if not (_PLANAR.fullmatch(name) or name in ("nv12", "gray", "p010le")):
            frame, name = frame.reformat(format="yuv444p"), "yuv444p"
        plane, shift = _plane(frame, 0, name)
        small_frame(plane, frame.width, shift, _full_range(frame, name), out)
        if self.rotation:
            out[:] = np.rot90(out, self.rotation // 90)

    def rgb(self, width: int, height: int) -> np.ndarray:
        """uint8[height, width, 3], upright, by area averages; not larger than the frame."""
        frame = self.decoded
        name = frame.format.name
        if not _PLANAR.fullmatch(name):
            frame, name = frame.reformat(format="yuv444p"), "yuv444p"
        if self.rotation % 180:
            width, height = height, width
        planes = []
        for index in range(3):
            plane, shift = _plane(frame, index, name)
            wide = frame.planes[index].width
            low = np.empty((min(height, plane.shape[0]), min(width, wide)), np.uint8)
            shrink_plane(plane, wide, shift, low)
            planes.append(low if low.shape == (height, width) else _stretched(low, height, width))
        result = np.empty((height, width, 3), np.uint8)
        shares = _MATRICES.get(int(frame.colorspace or 0)) or (_MATRICES[1] if frame.height > 576 else _BT601)
        if self.decoded.format.is_rgb:
            shares = _BT601  # by which FFmpeg converts it
        weights = np.array([round(65536 * share) for share in shares], np.int64)
        to_rgb(planes[0], planes[1], planes[2], weights, _full_range(frame, name), result)
        return np.ascontiguousarray(np.rot90(result, self.rotation // 90))

    def vectors(self) -> np.ndarray | None:
        """int32[vectors, 10], the motion vectors of the codec; None if it gives none for this frame. See `vector_motion`."""
        found = self.decoded.side_data.get("MOTION_VECTORS")
        return None if found is None or not len(found) else np.frombuffer(found, np.int32).reshape(-1, 10)

    def size_for(self, side: int | None, longest: int = 8) -> tuple[int, int]:
        """(width, height), upright, of the frame with a short side of at most `side`; None for all pixels."""
        width, height = self.decoded.width, self.decoded.height
        if self.rotation % 180:
            width, height = height, width
        ratio = 1.0 if side is None else min(1.0, side / min(width, height), longest * side / max(width, height))
        return max(1, round(width * ratio)), max(1, round(height * ratio))


def planes_of(decoded: Any) -> list[np.ndarray] | None:
    """The planes of a decoded frame, without what follows each of their lines; None if its format has no such planes."""
    name = decoded.format.name
    if not _PLANAR.fullmatch(name):
        return None
    return [_plane(decoded, index, name)[0][:, : decoded.planes[index].width] for index in range(3)]


def _plane(frame: Any, index: int, name: str) -> tuple[np.ndarray, int]:
    """A plane as an array that shares the memory of the frame, and by how many bits its values exceed 8 bits."""
    plane = frame.planes[index]
    bits = frame.format.components[0].bits
    wide = 2 if bits > 8 else 1
    values = np.frombuffer(plane, np.uint16 if wide == 2 else np.uint8)
    stride = plane.line_size // wide
    shift = 8 if name == "p010le" else bits - 8
    return values[: plane.height * stride].reshape(plane.height, stride), shift


def _full_range(frame: Any, name: str) -> bool:
    return int(frame.color_range or 0) == 2 or name.startswith("yuvj") or (name == "gray" and not frame.color_range)


def _stretched(plane: np.ndarray, height: int, width: int) -> np.ndarray:
    """Colours have fewer pixels than brightness: each is repeated."""
    rows = np.arange(height) * plane.shape[0] // height
    columns = np.arange(width) * plane.shape[1] // width
    return np.ascontiguousarray(plane[rows][:, columns])


class PacketTimes:
    """When the packets of a container begin and end, also broken ones."""

    def __init__(self) -> None:
        self.claimed = False
        """Whether the container has a duration for each packet, so that missing packets are known."""
        self._times = array("d")
        self._last = self._next = -math.inf
        self._length = 0.0

    def see(self, packet: Any, origin: float, step: float) -> None:
        """Called for each packet, in the order of decoding; `step` is its duration if the container does not say it."""
        if packet.pts is None:
            return
        base = float(packet.time_base)
        length = packet.duration * base if packet.duration else step
        if packet.dts is not None:
            if self.claimed and packet.dts * base > self._next + base:
                self._times.append(self.end)  # packets are missing
            self._next = packet.dts * base + length
        self._length = length
        if not packet.is_discard:
            begin = packet.pts * base - origin
            self._times.append(begin)
            self._last = max(self._last, begin)

    @property
    def end(self) -> float:
        """When the packet that is shown last ends. Durations are stored in the order of decoding, but sum up as shown."""
        return self._last + self._length

    def ends(self, begins: np.ndarray) -> np.ndarray:
        """When frames that begin at given times end: with the next packet, or where packets are missing."""
        known = np.sort(np.append(np.array(self._times, np.float64), self.end))
        return np.append(known, math.nan)[np.searchsorted(known, begins + TOLERANCE_S, "right")]


def frames(
    container: Any,
    segment: Segment | None = None,
    *,
    keys_only: bool = False,
    rewind: bool = False,
    vectors: bool = False,
    packet_times: PacketTimes | None = None,
) -> Iterator[Frame]:
    """The frames of the first video stream, in order of time, or of a part of it; broken packets are skipped.

    The first frame of a part is the one that is shown at its begin already, if no other one begins within `HELD_S`.

    A stream without any frame that can be decoded raises a VideoError. With `keys_only`, other frames are not decoded.
    A container that was read before has to be rewound. With `vectors`, frames have the motion vectors of their codec.
    `packet_times` gets the times of all packets that are read.
    """
    av = av_module()
    header = read_header(container)
    if not header.has_picture:
        raise VideoError("without picture", "it has only sound")
    if header.width * header.height > MAX_PIXELS:
        raise VideoError(
            "too large", f"{header.width:,} x {header.height:,} pixels; at most {MAX_PIXELS:,} are decoded"
        )
    stream = next(each for each in container.streams.video if not each.disposition & 0x400)
    context = stream.codec_context
    if not context.is_open:
        context.thread_count = 1  # each core has a worker, and every further thread holds frames of its own
        if vectors:
            context.flags2 |= av.codec.context.Flags2.export_mvs
    context.skip_frame = "NONKEY" if keys_only else "DEFAULT"
    packet_times = PacketTimes() if packet_times is None else packet_times
    packet_times.claimed = container.format.name.partition(",")[0] in TIMED
    origin = _start(stream, container)
    begin = 0.0 if segment is None else segment.begin
    end = math.inf if segment is None or segment.end is None else segment.end
    seen, errors, last, time = 0, 0, "", -math.inf
    step = 1 / header.rate if header.rate > 0 else 0.04
    held: Frame | None = None
    packets = packets_from(container, stream, begin) if begin > 0 or rewind else container.demux(stream)
    while True:
        try:
            packet = next(packets, None)
            if packet is None:
                break
            packet_times.see(packet, origin, step)
            decoded = packet.decode()
        except av.error.EOFError:
            break
        except av.error.FFmpegError as error:
            if is_shortage(error) or isinstance(error, MemoryError):
                raise MemoryError(str(error)) from error
            errors, last = errors + 1, str(error)
            if errors > MAX_ERRORS:
                break
            continue
        errors = 0
        for frame in decoded:
            Decodes.frames += 1
            # A frame without a time follows the one before it: streams without a container have none.
            known = frame.pts is not None and frame.time_base
            time = float(frame.pts * frame.time_base) - origin if known else max(0.0, time + step)
            seen += 1
            if frame.width * frame.height > MAX_PIXELS:
                continue
            if time < begin - TOLERANCE_S:
                held = None if keys_only else Frame(begin, bool(frame.key_frame), header.rotation, frame, time)
                continue
            if held is not None and (time > begin + HELD_S or time >= end - TOLERANCE_S):
                yield held
            held = None
            if time >= end - TOLERANCE_S:
                return
            shown = max(0.0, time)
            yield Frame(shown, bool(frame.key_frame), header.rotation, frame, shown)
    if held is not None and begin < packet_times.end - TOLERANCE_S:
        yield held
    if not seen and begin <= 0:
        raise VideoError("without frames", f"no frame could be decoded{f' ({last})' if last else ''}")


def packets_from(container: Any, stream: Any, begin: float) -> Iterator[Any]:
    """The packets of a stream from the last key frame that is shown at `begin`, or before it.

    A jump may lead to a packet after that key frame, in MPEG streams, which have no index, or to a key frame that is decoded
    before `begin` and shown after it. Then the next one leads further back. In MPEG streams the first packets after a jump may
    also have wrong times, so that it leads further back at once.

    Streams without a container have no times to jump to, and are read from their first byte.
    """
    if container.format.name in UNTIMED:
        with explained():
            container.seek(0, backward=True, unsupported_byte_offset=True)
        yield from container.demux(stream)
        return
    origin, back = _start(stream, container), STEP_BACK_S if container.format.name in UNINDEXED else 0.0
    while back < begin:
        with explained():
            container.seek(round((begin - back + origin) / stream.time_base), stream=stream, backward=True)
        packets = container.demux(stream)
        first = next(packets, None)
        while first is not None and not first.is_keyframe and not _is_after(first, origin, begin):
            first = next(packets, None)
        if first is not None and first.is_keyframe and not _is_after(first, origin, begin):
            yield first
            yield from packets
            return
        back = 4 * back or STEP_BACK_S
    with explained():
        container.seek(0, backward=True)
    yield from container.demux(stream)


def _is_after(packet: Any, origin: float, begin: float) -> bool:
    ticks = packet.dts if packet.pts is None else packet.pts
    return ticks is not None and float(ticks * packet.time_base) - origin > begin + TOLERANCE_S


def _start(stream: Any, container: Any) -> float:
    """When the first frame of a stream is shown; times count from there."""
    if stream.start_time is not None and stream.time_base:
        return float(stream.start_time * stream.time_base)
    return (container.start_time or 0) / 1e6


def end_time(container: Any) -> float:
    """When the last frame ends, by the times of the last packets; NaN if packets have none. Nothing is decoded.

    The duration in a header is a claim: a file may have been cut off, or still be in the process of being written.
    """
    stream = next((each for each in container.streams.video if not each.disposition & 0x400), None)
    if stream is None:
        raise VideoError("without picture", "it has only sound")
    base, origin = stream.time_base, _start(stream, container)
    claimed = _duration(container, stream)
    if math.isnan(claimed) or not base:
        return _last_end(container, stream)
    # Without an index, a jump may lead past the packet that is shown last, because others are decoded after it.
    back = STEP_BACK_S if container.format.name in UNINDEXED else 0.0
    try:
        container.seek(round((max(0.0, min(claimed, LONGEST_S) - back) + origin) / base), stream=stream, backward=True)
        found = _last_end(container, stream)
    except av_module().error.FFmpegError:  # there is nothing to seek there
        found = math.nan
    if math.isnan(found):
        with explained():
            container.seek(0, backward=True)
        found = _last_end(container, stream)
    return found


def _last_end(container: Any, stream: Any) -> float:
    """The end of the last frame among the packets that follow."""
    base, origin = stream.time_base, _start(stream, container)
    rate = stream.average_rate or stream.guessed_rate
    step = float(1 / rate) if rate else 0.04
    found = math.nan
    with suppress(av_module().error.FFmpegError):  # a damaged end is no part of the video
        for packet in container.demux(stream):
            if packet.pts is not None:
                length = float(packet.duration * base) if packet.duration else step
                found = max(-math.inf if math.isnan(found) else found, float(packet.pts * base) - origin + length)
    return found


def count_packets(container: Any) -> int:
    """The number of packets of the video, of which each has a frame. Nothing is decoded."""
    stream = next((each for each in container.streams.video if not each.disposition & 0x400), None)
    if stream is None:
        raise VideoError("without picture", "it has only sound")
    with explained():
        if container.format.name in UNTIMED:
            container.seek(0, backward=True, unsupported_byte_offset=True)
        else:
            container.seek(0, backward=True)
    count = 0
    with suppress(av_module().error.FFmpegError):  # a damaged end is no part of the video
        for packet in container.demux(stream):
            count += bool(packet.size)
    return count


def key_times(container: Any) -> np.ndarray:
    """When frames that are decoded without others are shown, if the container has an index; approximately."""
    stream = next((each for each in container.streams.video if not each.disposition & 0x400), None)
    if stream is None:
        raise VideoError("without picture", "it has only sound")
    base, origin = stream.time_base, _start(stream, container)
    entries = stream.index_entries
    ticks = [entry.timestamp for entry in entries if entry.is_keyframe] if entries is not None else []
    return np.sort(np.array(ticks, np.float64) * float(base or 0) - origin)
