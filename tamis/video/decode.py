"""Decodes videos once for all operators of a stage, one frame at a time.

    file or clip  -> header    from the container, nothing is decoded
                  -> track     every frame once, at 64 x 64: brightness, change, shift, vectors, bars and a hash of each
                  -> stills    a few frames in colour, with a short side of 256, 512 or 1024 pixels

A track takes 106 bytes per frame: 19 MB for two hours at 25 frames per second. All measures of the whole picture over time
come from it: shots, black, frozen and flashing parts, motion, shake, bars and sequences of hashes. It does not depend on the
operators that use it, so results do not either, and several operators cost one decode. When a video is split, the clips get
their parts of the track.

Stills are for operators on images. They depend on a policy, which says at which times frames are taken. Stills of the same
policy are decoded once; decoding starts at the key frame before each of them, and frames in between are not converted.

A step that needs each frame as it is decoded, such as a network that finds shots, passes a `Watcher`: the same pass over the
file shows it each frame and makes the track.
"""

from __future__ import annotations

import dataclasses
import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import pyarrow as pa

from tamis.batch import Batch, Facts, Origin
from tamis.errors import MediaError, ParameterError, VideoError
from tamis.kernels.frames import PATCHES, SIDE, cosines, estimated_motion, measure_frame, vector_motion
from tamis.media import MediaAccess, MediaItem, media_items
from tamis.operators import Operator
from tamis.segments import Segment
from tamis.video.files import (
    HELD_S,
    TOLERANCE_S,
    Decodes,
    Frame,
    Header,
    PacketTimes,
    count_packets,
    end_time,
    frames,
    key_times,
    opened_item,
    read_header,
)

TIERS = (256, 512, 1024)
"""Sizes of stills, as the length of the short side."""

DARK = 25
"""Pixels of at most this brightness are dark: 10 % of white, as in FFmpeg's filter blackdetect."""

ROW_BYTES = 2_000_000
"""What a step that decodes holds per row: the track of a video of about ten minutes."""

LONGEST_GAP_S = 1.0
"""Between two frames of a video with a regular rate, unless frames are missing."""

HEADER_BYTES = 10_000

HELD_BYTES = 32_000_000
"""Frames that wait to be released."""

NUMBERS = ("brightness", "contrast", "dark", "change", "histogram_change", "shift_y", "shift_x", "changed_share")
"""The columns of `Track.numbers`; see `measure_frame`."""


class VideoStep(Operator):
    """A step that reads the headers of videos."""

    cost = 2.0
    preload: ClassVar[tuple[str, ...]] = ("av",)

    def packages(self) -> Mapping[str, str]:
        return {"av": "video"}

    @property
    def row_bytes(self) -> int:
        return HEADER_BYTES


class TrackStep(VideoStep):
    """A step that uses the track of each video."""

    cost = 200.0

    @property
    def row_bytes(self) -> int:
        return ROW_BYTES


@dataclass(frozen=True)
class Track:
    """What was measured on the frames of a video or clip, one entry per frame. Changes count from the frame before."""

    time: np.ndarray
    """float64, in seconds from the begin of the video, also within a clip."""
    key: np.ndarray
    numbers: np.ndarray
    """float32[frames, 8]; see NUMBERS."""
    patches: np.ndarray
    """uint8[frames, PATCHES, PATCHES]: changes in parts of the frame, in eighths of a level."""
    bars: np.ndarray
    """uint8[frames, 4]: dark rows and columns at the top, bottom, left and right, of 64."""
    hashes: np.ndarray
    """uint64: a perceptual hash of 64 bits."""
    vectors: np.ndarray
    """float16[frames, PATCHES, PATCHES]: lengths of motion vectors in parts of the frame, over its width + height."""
    coded: np.ndarray
    """Whether the vectors of a frame are those of the codec; otherwise they are estimated from the two frames."""
    claimed: np.ndarray
    """float32: for how many seconds the container claims that each frame is shown; NaN where it does not say."""
    begin: float
    end: float
    """When the last frame ends, or the clip."""
    rate: float
    """Frames per second, measured."""

    def __len__(self) -> int:
        return len(self.time)

    @property
    def duration(self) -> float:
        return self.end - self.begin

    def __getitem__(self, name: str) -> np.ndarray:
        return self.numbers[:, NUMBERS.index(name)]

    def frame_seconds(self) -> np.ndarray:
        """How long each frame is shown."""
        return np.diff(self.time, append=max(self.end, self.time[-1])) if len(self) else np.empty(0)

    def part(self, begin: float, end: float) -> Track:
        """The track of a clip, as decoding it gives it: its first frame has no frame before it."""
        first, stop = (int(each) for each in np.searchsorted(self.time, [begin - TOLERANCE_S, end - TOLERANCE_S]))
        held = self._is_held(begin, first, stop)
        chosen = slice(first - held, max(first, stop))
        ends = self.time[chosen] + self.claimed[chosen]
        time = self.time[chosen].copy()
        time[:held] = begin
        numbers, patches, vectors = (array[chosen].copy() for array in (self.numbers, self.patches, self.vectors))
        numbers[:1, 3:] = 0
        patches[:1] = 0
        vectors[:1][~self.coded[chosen][:1]] = 0
        return Track(
            time, self.key[chosen], numbers, patches, self.bars[chosen], self.hashes[chosen], vectors,
            self.coded[chosen], _between(time, ends, end), begin, end, _rate(time, self.rate),
        )  # fmt: skip

    def _is_held(self, begin: float, first: int, stop: int) -> bool:
        """Whether the frame before `first` is shown at the begin of a clip and belongs to it; see `frames`."""
        if first == 0:
            return False
        if first == len(self):
            return bool(begin < np.fmax(self.end, self.time[-1] + self.claimed[-1]) - TOLERANCE_S)
        return stop <= first or bool(self.time[first] > begin + HELD_S)

    def decoded_seconds(self) -> float:
        """For how many seconds the frames are shown, without those in which frames are missing.

        A frame is shown for as long as the container claims. Where it claims nothing, it is shown until the next frame: at
        most for `LONGEST_GAP_S` if frames follow each other at a regular rate, so that a longer gap is a loss.
        """
        if not len(self):
            return 0.0
        gaps, claimed = self.frame_seconds(), float(np.nansum(self.claimed, dtype=np.float64))
        before = self.time[0] - self.begin  # the frame before the clip is shown, unless `_is_held`
        lead = before if self.begin > 0 and before <= HELD_S else 0.0
        if _regular(gaps) or not np.isnan(self.claimed).all():
            gaps = np.minimum(gaps, LONGEST_GAP_S)
        return float(lead + max(claimed, gaps.sum()))


class Watcher(Protocol):
    """Sees every frame of a video in the pass that makes its track."""

    def see(self, frame: Frame) -> None:
        """Called for each frame, in order of time; the frame is valid during the call."""
        ...


class _Recorder:
    """Collects a track; arrays grow with the frames that are decoded, not with what a header claims."""

    def __init__(self) -> None:
        self._basis = cosines()
        self._small, self._before = np.zeros((2, SIDE, SIDE), np.uint8)
        self._motion = np.zeros((PATCHES, PATCHES), np.float32)
        self.count = 0
        self.packet_times = PacketTimes()
        self._began = 0.0
        self.arrays: dict[str, np.ndarray] = {}
        self._resize(1024)

    def _resize(self, size: int) -> None:
        shapes: dict[str, tuple[Any, tuple[int, ...]]] = {
            "time": (np.float64, ()),
            "key": (np.bool_, ()),
            "numbers": (np.float32, (len(NUMBERS),)),
            "patches": (np.uint8, (PATCHES, PATCHES)),
            "bars": (np.uint8, (4,)),
            "hashes": (np.uint64, ()),
            "vectors": (np.float16, (PATCHES, PATCHES)),
            "coded": (np.bool_, ()),
        }
        made = {name: np.empty((size, *shape), kind) for name, (kind, shape) in shapes.items()}
        if self.count:
            for name, array in made.items():
                array[: self.count] = self.arrays[name][: self.count]
        self.arrays = made

    def see(self, frame: Frame) -> None:
        if self.count == len(self.arrays["time"]):
            self._resize(self.count * 3 // 2)
        row, into = self.count, self.arrays
        if row == 0:
            self._began = frame.began
        frame.small(self._small)
        into["time"][row], into["key"][row] = frame.time, frame.key
        into["hashes"][row] = measure_frame(
            self._small, self._before, row == 0, DARK, self._basis, into["numbers"][row], into["patches"][row],
            into["bars"][row],
        )  # fmt: skip
        self._see_motion(frame, row)
        self._small, self._before = self._before, self._small
        self.count += 1

    def _see_motion(self, frame: Frame, row: int) -> None:
        into, vectors = self.arrays, frame.vectors()
        width, height = frame.decoded.width, frame.decoded.height
        into["coded"][row] = vectors is not None
        if vectors is not None:
            vector_motion(vectors, width, height, self._motion)
        elif row:
            shift_y, shift_x = into["numbers"][row, 5:7]
            if frame.rotation % 180:
                width, height = height, width
            estimated_motion(self._small, self._before, shift_y, shift_x, width, height, self._motion)
        else:
            self._motion[:] = 0
        into["vectors"][row] = self._motion

    def track(self, segment: Segment | None, header: Header) -> Track:
        found = {name: array[: self.count].copy() for name, array in self.arrays.items()}
        time = found["time"]
        begin = 0.0 if segment is None else segment.begin
        rate = _rate(time, header.rate)
        end = float(time[-1]) + (1 / rate if rate > 0 else 0.0) if len(time) else begin
        latest = math.inf
        if segment is not None and segment.end is not None:
            end = latest = segment.end
        begins = time.copy()
        begins[:1] = self._began
        ends = self.packet_times.ends(begins) if self.packet_times.claimed else np.full(len(time), np.nan)
        claimed = _between(time, ends, latest)
        return Track(**found, claimed=claimed, begin=begin, end=end, rate=rate)


def _regular(gaps: np.ndarray) -> bool:
    """Whether frames follow each other at a regular rate: in screen recordings and slides they do not."""
    usual = gaps[gaps < LONGEST_GAP_S]
    if not len(usual) or np.median(gaps) > 0.5:
        return False
    middle = np.median(usual)
    # Times in some containers are rounded to milliseconds.
    return bool((np.abs(usual - middle) > 0.2 * middle + 0.0011).mean() <= 0.05)


def _rate(time: np.ndarray, claimed: float) -> float:
    if len(time) > 1 and time[-1] > time[0]:
        return (len(time) - 1) / float(time[-1] - time[0])
    return claimed if claimed > 0 else 0.0


def _between(begins: np.ndarray, ends: np.ndarray, latest: float) -> np.ndarray:
    return np.maximum(0.0, np.minimum(ends, latest) - begins).astype(np.float32)


def _ordered(time: np.ndarray) -> bool:
    return bool((np.diff(time) >= 0).all())


# --------------------------------------------------------------------------------------------------------- facts of a batch


def headers(batch: Batch, column: str) -> list[Header | None]:
    """The headers of the videos of a column, None for a row without video. A file that is no video raises a VideoError.

    For a clip, they are those of its file, with the duration and the number of frames of the clip.
    """
    found = batch.facts_with_origin(column, _header_facts)["header"]
    _raise_first(found)
    return list(found)


def tracks(batch: Batch, column: str) -> list[Track | None]:
    """The tracks of the videos of a column, None for a row without video; decoded once for all operators."""
    found = batch.facts_with_origin(column, track_facts)["track"]
    _raise_first(found)
    return list(found)


def watched(batch: Batch, column: str, watcher: Callable[[Header], Watcher]) -> list[tuple[Watcher, Track] | None]:
    """A watcher for each video, after it has seen all frames, and the track, which the same pass makes.

    Later steps find the tracks on the batch, so that they need not decode.
    """
    key = batch._key(column, track_facts)
    known = batch.memo.get(key)
    seen: list[tuple[Watcher, Track] | None] = []
    made: list[Track | MediaError | None] = []
    for row, item in enumerate(media_items(batch, column)):
        if item is None:
            seen.append(None)
            made.append(None)
            continue
        if known is not None and isinstance(known["track"][row], MediaError):
            raise known["track"][row]
        watching: list[Watcher] = []

        def begin(header: Header, into: list[Watcher] = watching) -> Watcher:
            into.append(watcher(header))
            return into[0]

        track = decode_track(item, begin)
        seen.append((watching[0], track))
        made.append(track)
    batch.memo.setdefault(key, {"track": _filled(made)})
    return seen


def track_facts(column: pa.Array, origin: Origin, access: MediaAccess | None) -> Facts:
    """{"track": a Track, a MediaError or None for each row}: what `Batch.facts_with_origin` computes for `tracks`."""
    items = media_items(Batch(pa.table({"video": column}), origin, access=access), "video")
    return {"track": _filled([_attempted(decode_track, item) for item in items])}


def _header_facts(column: pa.Array, origin: Origin, access: MediaAccess | None) -> Facts:
    items = media_items(Batch(pa.table({"video": column}), origin, access=access), "video")
    return {"header": _filled([_attempted(header_of, item) for item in items])}


def _attempted(function: Callable[[MediaItem], Any], item: MediaItem | None) -> Any:
    try:
        return None if item is None else function(item)
    except MediaError as error:
        return error


def header_of(item: MediaItem) -> Header:
    """The header of one video or clip."""
    with opened_item(item) as container:
        header = read_header(container)
    segment = item.segment
    if segment is None:
        return header
    end = header.duration if segment.end is None else segment.end
    duration = end - segment.begin
    frames_in = round(duration * header.rate) if duration * header.rate > 0 else 0
    return dataclasses.replace(header, duration=duration, num_frames=frames_in)


def end_of(item: MediaItem) -> float:
    """When the last frame of a file ends; NaN if its packets have no times. Nothing is decoded."""
    with opened_item(item) as container:
        return end_time(container)


def decode_track(item: MediaItem, watcher: Callable[[Header], Watcher] | None = None) -> Track:
    """The track of one video or clip, in one pass over its frames."""
    recorder = _Recorder()
    segment = item.segment
    with opened_item(item) as container:
        Decodes.files += 1
        header = read_header(container)
        watching = None if watcher is None else watcher(header)
        for frame in _released(frames(container, segment, vectors=True, packet_times=recorder.packet_times)):
            recorder.see(frame)
            if watching is not None:
                watching.see(frame)
    track = recorder.track(segment, header)
    if not len(track) and segment is not None:
        raise VideoError("without frames", f"it has none from {segment.begin:g} s on to the end of the clip")
    return track if _ordered(track.time) else dataclasses.replace(track, time=np.maximum.accumulate(track.time))


def _released(shown: Iterator[Frame]) -> Iterator[Frame]:
    """Frames whose memory is released soon.

    In PyAV, a frame and its motion vectors refer to each other, so that only a collection of garbage releases them. Objects
    that exist already are set aside meanwhile, since looking at all of them would take as long as decoding; in a worker,
    they have been since its start.
    """
    held, aside = 0, gc.get_freeze_count() == 0
    if aside:
        gc.freeze()
    try:
        for frame in shown:
            held += 2 * frame.decoded.width * frame.decoded.height
            if held > HELD_BYTES:
                gc.collect()
                held = 0
            yield frame
    finally:
        if aside:
            gc.unfreeze()


# ------------------------------------------------------------------------------------------------------------------ stills


@dataclass(frozen=True)
class Still:
    """One frame of a video, in colour."""

    time: float
    pixels: np.ndarray
    """uint8[height, width, 3], sRGB, upright."""
    size: tuple[int, int]
    """(width, height) of the frame in the video, upright."""


@dataclass(frozen=True)
class FramePolicy:
    """Which frames of a video or clip are taken.

    `every` takes the first frame in each span of `every_s` seconds; `number` takes `number` frames at equal distances, the
    first and last half a distance from the ends; `middle` takes one; `keys` takes those that are decoded without others, at
    most one in each `every_s` seconds.
    """

    kind: Literal["every", "number", "middle", "keys"] = "every"
    every_s: float = 1.0
    number: int = 8
    max_frames: int = 64
    """At most so many; if there are more, some at equal distances are taken."""

    def check(self) -> None:
        if not self.every_s > 0 or self.number < 1 or self.max_frames < 1:
            raise ParameterError("`every_s` must be positive, `number` and `max_frames` at least 1")


def stills(batch: Batch, column: str, policy: FramePolicy, side: int = 256) -> list[list[Still] | None]:
    """Frames of each video by a policy, with a short side of at least `side` pixels unless the video has less."""
    tier = next((tier for tier in TIERS if side <= tier), None)
    if tier is None:
        raise ValueError(f"side={side}: stills have a short side of at most {TIERS[-1]}")

    def compute() -> Facts:
        items = media_items(batch, column)
        return {"stills": _filled([_attempted(lambda each: take_stills(each, policy, tier), item) for item in items])}

    found = batch.remembered(column, f"stills {tier} {policy}", compute)["stills"]
    _raise_first(found)
    return list(found)


def take_stills(item: MediaItem, policy: FramePolicy, side: int | None) -> list[Still]:
    """The frames of one video or clip by a policy, in one pass; frames that are not taken are not converted."""
    found: list[Still] = []
    with opened_item(item) as container:
        Decodes.files += 1
        header = read_header(container)
        wanted = _Wanted(policy, item.segment, header.rate, _end_of_part(container, item.segment, header))
        if policy.kind == "keys":
            source = frames(container, item.segment, keys_only=True, rewind=True)
        else:
            source = _nearby(container, item.segment, wanted)
        for frame in source:
            if wanted.takes(frame):
                found.append(_still(frame, side))
                if wanted.done:
                    break
        if not found:  # the container claims more than can be decoded
            first = next(frames(container, item.segment, rewind=True), None)
            if first is None:
                raise VideoError("without frames", "it has none in this part")
            found.append(_still(first, side))
    return found


def _still(frame: Frame, side: int | None) -> Still:
    return Still(frame.time, frame.rgb(*frame.size_for(side)), frame.size_for(None))


def _nearby(container: Any, segment: Segment | None, wanted: _Wanted) -> Iterator[Frame]:
    """The frames from the key frame before each wanted time on; those far from any wanted time are not decoded."""
    end = None if segment is None else segment.end
    keys = key_times(container)
    target = max(wanted.begin, wanted.next_time)
    while True:
        jump = None
        for frame in frames(container, Segment(target, end), rewind=True):
            yield frame
            following = wanted.next_time
            # Key frames in an index are sorted by the time of decoding, which may be a little earlier.
            if following > frame.time + 1 and _any_within(keys, frame.time + 0.5, following):
                jump = following
                break
        if jump is None:
            return
        target = jump


def _any_within(times: np.ndarray, begin: float, end: float) -> bool:
    return bool(np.searchsorted(times, begin, "right") < np.searchsorted(times, end, "right"))


class _Wanted:
    """Decides which frames to take, as they come."""

    def __init__(self, policy: FramePolicy, segment: Segment | None, rate: float, end: float) -> None:
        self.policy = policy
        self.begin = 0.0 if segment is None else segment.begin
        length = max(0.0, end - self.begin)
        if policy.kind in ("middle", "number"):
            number = 1 if policy.kind == "middle" else min(policy.number, policy.max_frames)
            half = 0.5 / rate if rate > 0 else 0.0
            self.times: list[float] | None = [
                self.begin + length * (2 * index + 1) / (2 * number) - half for index in range(number)
            ]
            self.step = 0.0
        else:
            self.times = None
            self.step = max(policy.every_s, length / policy.max_frames)
        self.taken = 0
        self.next = self.begin

    @property
    def next_time(self) -> float:
        """The earliest time of the next frame to take."""
        if self.times is not None:
            return self.times[0] if self.times else math.inf
        return self.next

    @property
    def done(self) -> bool:
        if self.times is not None:
            return not self.times
        return self.taken >= self.policy.max_frames

    def takes(self, frame: Frame) -> bool:
        if self.times is not None:
            if not self.times or frame.time < self.times[0] - TOLERANCE_S:
                return False
            while self.times and self.times[0] <= frame.time + TOLERANCE_S:
                self.times.pop(0)
        else:
            if frame.time < self.next - TOLERANCE_S:
                return False
            spans = math.floor((frame.time - self.begin + TOLERANCE_S) / self.step) + 1
            self.next = self.begin + spans * self.step
        self.taken += 1
        return True


def _end_of_part(container: Any, segment: Segment | None, header: Header) -> float:
    """When the last frame of a video or clip ends, by its packets: a header may claim anything, and often says nothing.

    Nothing is decoded. The end of a clip within the duration that the header claims is taken as it is.
    """
    if segment is not None and segment.end is not None and segment.end <= header.duration:
        return segment.end
    end = end_time(container)
    if math.isnan(end):  # packets have no times
        end = header.duration
    if math.isnan(end):  # frames follow each other at the rate that `frames` assumes
        end = count_packets(container) / (header.rate if header.rate > 0 else 25.0)
    return end if segment is None or segment.end is None else min(end, segment.end)


def _raise_first(found: np.ndarray) -> None:
    for each in found:
        if isinstance(each, MediaError):
            raise each


def _filled(values: Sequence[Any]) -> np.ndarray:
    result = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):
        result[index] = value
    return result


def each_frame(item: MediaItem, *, keys_only: bool = False) -> Iterator[Frame]:
    """The frames of one video or clip, one at a time."""
    with opened_item(item) as container:
        yield from frames(container, item.segment, keys_only=keys_only)
