"""Segments: parts in time of a recording or a video, as references.

    talk.mp3#t=12.5,20                    from second 12.5 up to, not including, second 20
    talk.mp3#t=12.5                       from second 12.5 to the end
    talk.mp4#t=12.5,20&track=audio        only the sound of a video
    call.wav#t=12.5,20&channel=1          only the second channel; several are separated by commas
    5f3a09#t=12.5,20&track=video          a clip of a file whose name does not say that it is a video
    shard.tar#talks/1.flac#t=3,4          of a member of an archive
    shard.tar@1536+20480#1.flac#t=3,4     of a byte range

The notation is that of W3C Media Fragments 1.0, except for channels, which it does not have. A segment is a reference and
nothing more: `path` of a media column ends with it and `bytes` is null. The recording is not copied, and operators that
decode read only that part of it. Where bytes are needed (sinks that write files, `ReadMedia`, deduplication of bytes), the
segment is cut out and becomes a file of its own: FLAC for sound, MP4 for video. If a row has bytes, its path is only a name,
so `#t=` has no meaning there.

Times are rounded to microseconds, which tells samples apart at all sample rates up to 500 kHz.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tamis.errors import MediaError

_SEGMENT = re.compile(
    r"(?P<whole>.*)#t=(?P<begin>\d{1,9}(?:\.\d{1,9})?)?(?:,(?P<end>\d{1,9}(?:\.\d{1,9})?))?(?:&track=(?P<track>audio|video))?"
    r"(?:&channel=(?P<channels>\d{1,3}(?:,\d{1,3})*))?",
    re.DOTALL,
)
_VIDEO = re.compile(
    r".*\.(3gp|asf|avi|divx|f4v|flv|m2ts|m4v|mkv|mov|mp4|mpe?g|mts|mxf|ogv|qt|rm|rmvb|ts|vob|webm|wmv|y4m)",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True)
class Segment:
    """A part in time: `begin` and `end` in seconds; None for the end of the recording."""

    begin: float = 0.0
    end: float | None = None
    track: str | None = None
    """"audio" for only the sound of a video, "video" for a clip of a file that is not named like one."""
    channels: tuple[int, ...] = ()
    """The channels of a recording, counted from 0; empty for all."""

    @property
    def suffix(self) -> str:
        """What follows the path of the recording.

        >>> Segment(12.5, 20).suffix, Segment(0, None, "audio").suffix
        ('#t=12.5,20', '#t=0&track=audio')
        """
        end = "" if self.end is None else f",{_seconds(self.end)}"
        track = f"&track={self.track}" if self.track else ""
        channels = f"&channel={','.join(map(str, self.channels))}" if self.channels else ""
        return f"#t={_seconds(self.begin)}{end}{track}{channels}"

    @property
    def duration(self) -> float | None:
        return None if self.end is None else round(self.end - self.begin, 6)


def split_segment(path: str) -> tuple[str, Segment | None]:
    """The path of a recording, and the part of it that a reference names.

    Times that are not in order name no part: such a path is only passed on, and reading it is an error (`check_times`).

    >>> split_segment("talk.mp3#t=12.5,20")
    ('talk.mp3', Segment(begin=12.5, end=20.0, track=None, channels=()))
    >>> split_segment("talk.mp3")
    ('talk.mp3', None)
    """
    found = _parsed(path)
    return (path, None) if found is None or not _is_in_order(found[1]) else found


def check_times(path: str) -> None:
    """Raise a MediaError if a path names a part whose times are not in order."""
    found = _parsed(path)
    if found is not None and not _is_in_order(found[1]):
        raise MediaError(f"`{path:.200}` is a segment that does not end after its begin")


def _parsed(path: str) -> tuple[str, Segment] | None:
    found = _SEGMENT.fullmatch(path) if "#t=" in path else None
    if found is None or (found["begin"] is None and found["end"] is None):
        return None
    end = None if found["end"] is None else float(found["end"])
    channels = tuple(map(int, found["channels"].split(","))) if found["channels"] else ()
    return found["whole"], Segment(float(found["begin"] or 0), end, found["track"], channels)


def _is_in_order(segment: Segment) -> bool:
    return segment.end is None or segment.begin < segment.end


def segment_path(
    path: str, begin: float, end: float | None, track: str | None = None, channels: Sequence[int] = ()
) -> str:
    """The reference to a part of a recording. If `path` is a segment itself, times count from its begin.

    >>> segment_path("talk.mp3", 12.5, 20)
    'talk.mp3#t=12.5,20'
    >>> segment_path("talk.mp3#t=100,200", 12.5, 20)
    'talk.mp3#t=112.5,120'
    """
    if not 0 <= begin < 1e9 or (end is not None and not begin < end < 1e9):  # NaN is not in order either
        raise MediaError(f"a segment from {begin} to {end} s is not one: begin must be at least 0, and end after it")
    whole, outer = split_segment(path)
    if outer is not None:
        begin += outer.begin
        end = outer.end if end is None else end + outer.begin
        if outer.end is not None and end is not None and (begin >= outer.end or end > outer.end + 1e-6):
            raise MediaError(f"a segment from {begin} to {end} s lies outside of `{path:.200}`")
        track, channels = track or outer.track, channels or outer.channels
    return whole + Segment(begin, end, track, tuple(channels)).suffix


def is_clip(name: str, segment: Segment) -> bool:
    """Whether a segment of a file of this name is a part of a video, and not of a sound."""
    if segment.track is None:
        return is_video_name(name) and not segment.channels
    return segment.track == "video"


def is_video_name(name: str) -> bool:
    """Whether a file is named like a video. A segment of it is a clip, unless its track is "audio".

    >>> is_video_name("talk.MP4"), is_video_name("talk.m4a")
    (True, False)
    """
    return _VIDEO.fullmatch(name) is not None


def cut_name(name: str, segment: Segment) -> str:
    """What a segment is called when it becomes a file of its own.

    >>> cut_name("talks/1.mp3", Segment(12.5, 20)), cut_name("1.mkv", Segment(3, 4))
    ('talks/1_12.5-20.flac', '1_3-4.mp4')
    """
    end = "" if segment.end is None else _seconds(segment.end)
    kind = "mp4" if is_clip(name, segment) else "flac"
    channels = f"_ch{'-'.join(map(str, segment.channels))}" if segment.channels else ""
    return f"{posixpath.splitext(name)[0]}_{_seconds(segment.begin)}-{end}{channels}.{kind}"


def _seconds(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")
