"""Sound files: what they say about themselves, and their samples. The only module that calls the libraries that decode.

All formats are decoded by FFmpeg through PyAV, also the sound of videos, piece by piece: no more than a packet is in memory.
FFmpeg could follow playlists to other files and URLs, so only the containers listed here are opened. What a file is called
does not matter; its first bytes decide.

A segment is decoded from one second before its begin, because codecs such as MP3, AAC and Opus need what came before to return
the samples that decoding from the start returns.
"""

from __future__ import annotations

import functools
import io
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import IO, Any

import numpy as np

from tamis.errors import AudioError, is_shortage, require

MOST_DURATIONS = 1_000
"""Files whose packets were counted and are remembered."""

_durations: dict[tuple[int, ...] | None, float] = {}

CONTAINERS = (
    "wav,w64,aiff,au,caf,flac,mp3,ogg,mov,mp4,matroska,webm,aac,loas,ac3,eac3,amr,ape,wv,tta,asf,avi,flv,mpegts,mpeg,"
    "dts,dsf,mpc,mpc8,voc,nut,nistsphere"
)
"""Names of FFmpeg's demuxers that may open a file."""

PREROLL_S = 1.0
"""How much is decoded before a segment. Opus needs 80 ms (RFC 7845, section 4.6), MP3 and AAC a few frames."""

END_TOLERANCE_S = 0.1
"""How far beyond the end of its recording a segment may reach, because manifests round durations."""

MISSING_S = 0.5
"""If more than this is missing at the end of what a file announces, it is truncated."""

_CLOCK = re.compile(r"(\d{1,6}):(\d\d):(\d\d(?:\.\d{1,9})?)")

_BITS = {"u8": 8, "s16": 16, "s32": 32, "s64": 64, "flt": 32, "dbl": 64}
_TYPES = {"u8": np.uint8, "s16": np.int16, "s32": np.int32, "s64": np.int64, "flt": np.float32, "dbl": np.float64}
_LOSSY = re.compile("mp[123]|aac|vorbis|opus|e?ac3|dca|wma(v|pro)|amr")
_SCALES = {np.dtype(np.int16): 2.0**-15, np.dtype(np.int32): 2.0**-31, np.dtype(np.int64): 2.0**-63}


@dataclass(frozen=True)
class Info:
    """What a file says about its sound, without decoding it."""

    duration: float
    """Seconds."""
    rate: int
    """Samples per second and channel."""
    channels: int
    codec: str
    """As FFmpeg names it: pcm_s16le, flac, mp3, vorbis, opus, aac, ..."""
    container: str
    bits: int
    """Per sample: 8, 16, 24, 32, 64; 16 for codecs that lose information."""
    has_video: bool
    """Whether there are pictures too. The cover of an album does not count."""
    declared: bool
    """Whether the file announces its length; if not, packets were counted."""


@functools.cache
def _av() -> Any:
    return require("av", extra="audio", purpose="decoding sound")


def read_info(file: IO[bytes]) -> Info:
    """What a file says about its sound; raises an AudioError if it has none."""
    with _opened(file) as (container, stream):
        return _info(file, container, stream)


def read_blocks(
    file: IO[bytes], begin: float = 0.0, end: float | None = None, channels: Sequence[int] = ()
) -> Iterator[np.ndarray]:
    """The samples between two times, piece by piece as they are decoded: [channels, samples], in the type of the codec.

    `as_float` converts them. `channels` chooses some, counted from 0. A file that is damaged, shorter than it announces, or
    without samples raises an AudioError, and so does a segment or channel that is not in it.
    """
    with _opened(file) as (container, stream):
        info = _info(file, container, stream)
        if end is None and (missing := _missing_bytes(file, info)):
            raise AudioError("truncated", f"it announces {missing:,} bytes more than it has")
        check_inside(begin, end, info.duration)
        with_channels(info, channels)
        pieces = _samples(container, stream, info, begin, end)
        yield from (piece[list(channels)] for piece in pieces) if channels else pieces


def with_channels(info: Info, channels: Sequence[int]) -> Info:
    """What a file says about some of its channels, all if there are none; an AudioError if it does not have them."""
    if not channels:
        return info
    if max(channels) >= info.channels:
        raise AudioError("unsupported", f"it has no channel {max(channels)}: it has {info.channels}, counted from 0")
    return replace(info, channels=len(channels))


def check_inside(begin: float, end: float | None, duration: float) -> None:
    """Raise an AudioError if a segment is not inside a recording of some seconds."""
    if begin > 0 and begin >= duration:
        raise AudioError("too short", f"a segment begins at {begin:g} s, and it ends at {duration:.3f} s")
    if end is not None and end > duration + END_TOLERANCE_S:
        raise AudioError("too short", f"a segment ends at {end:g} s, and it ends at {duration:.3f} s")


def as_float(samples: np.ndarray) -> np.ndarray:
    """Samples as float32 from -1 to 1; samples of floating-point files may be larger.

    >>> as_float(np.array([[-32768, 16384]], np.int16)).tolist()
    [[-1.0, 0.5]]
    """
    if samples.dtype == np.uint8:
        return (samples.astype(np.float32) - 128.0) / 128.0
    scale = _SCALES.get(samples.dtype)
    if scale is None:
        return samples.astype(np.float32, copy=False)
    return samples.astype(np.float32) * np.float32(scale)


# ------------------------------------------------------------------------------------------------------------- opening


@contextmanager
def _opened(file: IO[bytes]) -> Iterator[tuple[Any, Any]]:
    """A container and its first sound stream."""
    if not file.read(1):
        raise AudioError("empty", "the file has no bytes")
    file.seek(0)
    av = _av()
    with _explained("its header cannot be read"):
        try:
            container = av.open(
                file, mode="r", metadata_errors="ignore", options={"format_whitelist": CONTAINERS, "max_streams": "64"}
            )
        except av.error.FFmpegError as error:
            if is_shortage(error):
                raise
            raise AudioError("not a sound", "its header is damaged, or of no known format") from error
    with container:
        streams = container.streams.audio
        if not streams:
            raise AudioError("not a sound", f"a file of format {container.format.name} without sound")
        stream = streams[0]
        context = stream.codec_context
        if context is None or not stream.codec_context.sample_rate or not stream.codec_context.channels:
            raise AudioError("unsupported", "there is no decoder for it, or its sample rate is unknown")
        context.thread_count = 1  # each core has a worker
        yield container, stream


def _info(file: IO[bytes], container: Any, stream: Any) -> Info:
    context = stream.codec_context
    codec = context.name
    declared = not _is_guess(container, file)
    duration = _duration(container, stream) if declared else None
    if duration is None:
        declared, duration = False, _counted(file, container, stream)
    if _LOSSY.match(codec):
        bits = 16
    else:
        packed = context.format.name.removesuffix("p") if context.format else "s16"
        bits = _flac_bits(context) or _pcm_bits(codec) or _BITS.get(packed, 16)
    return Info(
        duration=duration,
        rate=context.sample_rate,
        channels=context.channels,
        codec=codec.removesuffix("float"),
        container=container.format.name,
        bits=bits,
        has_video=any(not _is_cover(each) for each in container.streams.video),
        declared=declared,
    )


def _pcm_bits(codec: str) -> int:
    """The bits of a codec of plain samples: 24 for pcm_s24le."""
    digits = "".join(char for char in codec if char.isdigit()) if codec.startswith("pcm_") else ""
    return int(digits) if digits in ("8", "16", "24", "32", "64") else 0


def _flac_bits(context: Any) -> int:
    """The bits that the STREAMINFO block of a FLAC file names (RFC 9639, section 8.2)."""
    block = context.extradata if context.name == "flac" else None
    return ((block[12] & 1) << 4 | block[13] >> 4) + 1 if block and len(block) >= 34 else 0


def _is_cover(stream: Any) -> bool:
    return bool(int(stream.disposition) & int(_av().stream.Disposition.attached_pic))


def _is_guess(container: Any, file: IO[bytes]) -> bool:
    """Whether FFmpeg estimates the duration from the bitrate, because the file does not have it."""
    name = container.format.name
    if name in ("aac", "loas", "ac3", "eac3", "dts", "amr", "mpegts", "mpeg"):
        return True
    if name != "mp3":
        return False
    position = file.tell()
    file.seek(0)
    head = file.read(10)
    # An ID3 tag, which may hold a picture, comes before the frame that announces the length.
    tagged = head[:3] == b"ID3" and len(head) == 10
    file.seek((head[6] << 21 | head[7] << 14 | head[8] << 7 | head[9]) + 10 if tagged else 0)
    first = file.read(4096)
    file.seek(position)
    return not any(mark in first for mark in (b"Xing", b"Info", b"VBRI"))


def _missing_bytes(file: IO[bytes], info: Info) -> int:
    """How many bytes of samples a WAV file announces and does not have: FFmpeg takes what is there."""
    if info.container != "wav":
        return 0
    position, size = file.tell(), file.seek(0, 2)
    place = 12
    missing = 0
    while place + 8 <= size:
        file.seek(place)
        head = file.read(8)
        length = int.from_bytes(head[4:], "little")
        if head[:4] == b"data":
            unknown = length in (0, 0xFFFFFFFF)  # written to a pipe, or the long form RF64
            missing = 0 if unknown else max(0, place + 8 + length - size)
            break
        place += 8 + length + length % 2
    file.seek(position)
    return missing


def _duration(container: Any, stream: Any) -> float | None:
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base)
    if any(not _is_cover(each) for each in container.streams.video):
        return _tagged_duration(stream)  # that of the container is that of the picture too
    return None if container.duration is None else container.duration / _av().time_base


def _tagged_duration(stream: Any) -> float | None:
    """The duration by the tag of a track that begins at 0; FFmpeg counts from there."""
    if stream.time_base is None or abs((stream.start_time or 0) * stream.time_base) > END_TOLERANCE_S:
        return None
    return tagged_end(stream)


def tagged_end(stream: Any) -> float | None:
    """When a track ends by its tag in Matroska, whose files have one duration for all tracks; None without a tag."""
    found = _CLOCK.fullmatch(stream.metadata.get("DURATION", ""))
    return None if found is None else 3600 * int(found[1]) + 60 * int(found[2]) + float(found[3])


def _counted(file: IO[bytes], container: Any, stream: Any) -> float:
    """The duration by the packets of a file, without decoding them; once for all rows that refer to a file on a disk."""
    known = _stamp(file)
    if known in _durations:
        return _durations[known]
    total = 0
    with _explained("its packets cannot be read"):
        for packet in container.demux(stream):
            total += packet.duration or 0
        container.seek(0)
    duration = float(total * stream.time_base) if stream.time_base else 0.0
    if known is not None:
        if len(_durations) >= MOST_DURATIONS:
            _durations.clear()
        _durations[known] = duration
    return duration


def _stamp(file: IO[bytes]) -> tuple[int, ...] | None:
    """What changes if the content of a file on a disk does; None for parts of files and for bytes."""
    try:
        found = os.fstat(file.fileno())
    except (OSError, AttributeError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


# ------------------------------------------------------------------------------------------------------------ decoding


def _samples(container: Any, stream: Any, info: Info, begin: float, end: float | None) -> Iterator[np.ndarray]:
    first = round(begin * info.rate)
    last = None if end is None else round(end * info.rate)
    position: int | None = 0
    zero, start = 0, None
    if begin > PREROLL_S and not _jumps_wrong(info):
        zero = _first_timestamp(container, stream)
        start = zero + int((begin - PREROLL_S) / stream.time_base)
        position = None  # known from the first packet after the jump
    given = 0
    for frame in _frames(container, stream, start):
        if position is None:
            position = round((frame.pts - zero) * stream.time_base * info.rate)
        if frame.sample_rate != info.rate or frame.layout.nb_channels != info.channels:
            raise AudioError("unsupported", "its sample rate or number of channels changes on the way")
        samples = samples_of(frame)
        if samples.dtype.kind == "f" and not np.isfinite(samples).all():
            raise AudioError("invalid", "some of its samples are not numbers")
        skip = max(0, first - position)
        stop = samples.shape[1] if last is None else min(samples.shape[1], last - position)
        position += samples.shape[1]
        if skip < stop:
            given += stop - skip
            yield samples[:, skip:stop]
        if last is not None and position >= last:
            if not given:
                raise AudioError("empty", "it has no samples")
            return
    wanted = info.duration - begin if end is None else min(end, info.duration) - begin
    if not given and wanted <= MISSING_S:
        raise AudioError("empty", "it has no samples")
    if info.declared and given < (wanted - max(MISSING_S, 0.01 * wanted)) * info.rate:
        raise AudioError("truncated", f"it announces {wanted:.2f} s and has {given / info.rate:.2f} s")


def _first_timestamp(container: Any, stream: Any) -> int:
    """When the first sample is heard: encoders of MP3 and AAC put silence before it, which decoders skip."""
    with _explained("it cannot be decoded"):
        for frame in container.decode(stream):
            if frame.pts is not None:
                return int(frame.pts)
    raise AudioError("empty", "it has no samples")


def _jumps_wrong(info: Info) -> bool:
    """Whether FFmpeg computes times after a jump from a rate of bytes that need not be exact; decoding is fast then."""
    return info.container in ("wav", "w64") and not info.codec.startswith("pcm_")


def _frames(container: Any, stream: Any, start: int | None) -> Iterator[Any]:
    """The decoded frames of a stream, from the packet that contains the time `start` on, or from the first one."""
    av = _av()
    bad: Exception | None = None
    with _explained("it cannot be decoded"):
        for packet in container.demux(stream) if start is None else _packets_from(container, stream, start):
            try:
                frames = stream.codec_context.decode(packet if packet.size else None)
            except av.error.InvalidDataError as error:
                bad = error
                continue
            except av.error.EOFError:
                return
            if frames and bad is not None:
                raise AudioError("corrupt", f"data in the middle cannot be decoded: {bad}") from bad
            yield from frames
    if bad is not None:
        raise AudioError("truncated", "its last packet cannot be decoded")


def _packets_from(container: Any, stream: Any, start: int) -> Iterator[Any]:
    """The packets from the one that contains a time on.

    Where a jump leads depends on the index of the container; where decoding starts must not. Without an index, as in MPEG
    streams, it may lead too far, and the first packets after it may have wrong times.
    """
    step = int(PREROLL_S / stream.time_base)
    back = step if container.format.name in ("mpeg", "mpegts") else 0
    while start > back:
        with _explained("it cannot be searched"):
            container.seek(start - back, stream=stream, backward=True)
        before = None
        for packet in (packets := container.demux(stream)):
            if packet.size and packet.pts is not None and packet.pts <= start:
                before = packet
            elif before is not None:
                yield before
                yield packet
                yield from packets
                return
            elif packet.size:
                break
        back = 4 * back or step
    with _explained("it cannot be searched"):
        container.seek(0, backward=True)
    yield from container.demux(stream)


def samples_of(frame: Any) -> np.ndarray:
    """The samples of a decoded frame: [channels, samples] in the type of the codec.

    `to_ndarray` of PyAV reads a ninth channel from a frame with eight channels in arrays of their own, and crashes.
    """
    kind, channels, count = _TYPES[frame.format.name.removesuffix("p")], frame.layout.nb_channels, frame.samples
    if frame.format.is_planar:
        return np.stack([np.frombuffer(plane, kind, count) for plane in frame.planes[:channels]])
    return np.array(np.frombuffer(frame.planes[0], kind, count * channels).reshape(-1, channels).T, order="C")


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turn errors of the decoder into AudioErrors."""
    try:
        yield
    except (AudioError, GeneratorExit):
        raise
    except (_av().error.FFmpegError, ValueError, OSError, EOFError, IndexError) as error:
        if is_shortage(error):
            raise
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise AudioError("corrupt", f"{what}: {text}") from error


# ------------------------------------------------------------------------------------------------------------ encoding


def encoded(samples: np.ndarray, rate: int, format_: str, *, bits: int = 16, bitrate: int | None = None) -> bytes:
    """A file of samples [channels, samples]: format_ is "wav", "flac", "mp3" or "opus"."""
    target = io.BytesIO()
    with Encoder(target, rate, samples.shape[0], format_, bits=bits, bitrate=bitrate) as encoder:
        encoder.write(samples)
    return target.getvalue()


_KINDS = {
    "wav": ("wav", {16: ("pcm_s16le", "s16"), 24: ("pcm_s24le", "s32"), 32: ("pcm_f32le", "flt")}),
    "flac": ("flac", {16: ("flac", "s16"), 24: ("flac", "s32")}),
    "mp3": ("mp3", {16: ("libmp3lame", "fltp")}),
    "opus": ("ogg", {16: ("libopus", "flt")}),
}
"""The container, codec and type of samples of each format that is written, by bits."""


MOST_CHANNELS = {"flac": 8, "wav": 8, "mp3": 2, "opus": 8}
RATES = {
    "mp3": (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000),
    "opus": (8_000, 12_000, 16_000, 24_000, 48_000),
}
"""The sample rates that a format has, if not all."""


class Encoder:
    """Writes sound piece by piece."""

    def __init__(
        self, target: IO[bytes], rate: int, channels: int, format_: str, *, bits: int = 16, bitrate: int | None = None
    ) -> None:
        av = _av()
        kind, codecs = _KINDS[format_]
        if channels > MOST_CHANNELS[format_]:
            raise AudioError(
                "unsupported", f"{format_} has at most {MOST_CHANNELS[format_]} channels, and it has {channels}"
            )
        codec, self._type = codecs.get(bits) or codecs[max(codecs)]
        self._layout = _LAYOUTS[channels]
        self._rate, self._written = rate, 0
        options = {"flags": "+bitexact"} if kind == "wav" else {}
        if format_ == "opus" and channels in _OPUS_FAMILIES:
            options = {"mapping_family": _OPUS_FAMILIES[channels]}
        self._container = av.open(target, mode="w", format=kind, container_options={"fflags": "+bitexact"})
        self._stream = self._container.add_stream(codec, rate=rate, layout=self._layout, options=options)
        if bitrate is not None:
            self._stream.bit_rate = bitrate
        self._stream.codec_context.format = self._type
        if bits == 24 and codec == "flac":
            self._stream.codec_context.options = {"bits_per_raw_sample": "24"}
        self._container.start_encoding()  # a file without samples has a header too

    def write(self, samples: np.ndarray) -> None:
        """Append samples [channels, samples]: float, or int16."""
        if not samples.shape[1]:
            return
        data = _as_type(samples, self._type)
        frame = _av().AudioFrame.from_ndarray(
            np.ascontiguousarray(data if self._type.endswith("p") else data.T.reshape(1, -1)), self._type, self._layout
        )
        frame.sample_rate = self._rate
        frame.pts = self._written
        self._written += samples.shape[1]
        for packet in self._stream.encode(frame):
            self._container.mux(packet)

    def __enter__(self) -> Encoder:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            for packet in self._stream.encode(None):
                self._container.mux(packet)
        self._container.close()


_LAYOUTS = {1: "mono", 2: "stereo", 3: "3.0", 4: "quad", 5: "5.0", 6: "5.1", 7: "6.1", 8: "7.1"}
"""Those of FLAC (RFC 9639, section 9.1.3), of which Opus has the same."""

_OPUS_FAMILIES = {5: "1", 7: "255"}
"""How channels are assigned to streams (RFC 7845, section 5.1.1), where FFmpeg's own choice exchanges some of them. Family 1
encodes the fourth of seven channels as a subwoofer, with low frequencies only, so they are written without a layout."""


def _as_type(samples: np.ndarray, kind: str) -> np.ndarray:
    kind = kind.removesuffix("p")
    if kind == "flt":
        return as_float(samples)
    if kind == "s16" and samples.dtype == np.int16:
        return samples
    scale = 2.0**15 if kind == "s16" else 2.0**31
    values = np.rint(as_float(samples).astype(np.float64) * scale).clip(-scale, scale - 1)
    return values.astype(np.int16 if kind == "s16" else np.int32)
