"""What a video looks like over time, in a few bits, and digests of its frames."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tamis.batch import Batch, Column
from tamis.errors import ParameterError, VideoError
from tamis.kernels.image_hashes import says_little
from tamis.media import MediaItem, media_items, read_bytes
from tamis.operators import Map, operator
from tamis.video.decode import Track, TrackStep, each_frame, tracks
from tamis.video.files import planes_of

MAX_HASHES = 2**23
"""Nine days at ten hashes per second. The times of damaged files may be years apart."""

MIN_CONTRAST = 4.0
"""A frame whose brightness deviates less than this from its mean is blank."""


@operator(reads="video")
class VideoHashes(TrackStep, Map):
    """Add perceptual hashes of the frames of each video at fixed times, as a list of 64-bit integers.

    A hash has the signs of the lowest frequencies of the brightness of the frame that is shown at 0, `every_s`, 2 `every_s`,
    ... seconds, upright as its container says. It is 0 for a frame that is black or has hardly any contrast. Integers are
    signed; their bits are the hash.

    `VideoDedup(hash_column="frame_hashes")` compares them without decoding the videos again. The frames are those of the
    track that filters on motion and shots use too, so that a video is decoded once.
    """

    every_s: float = 0.1
    output: str = "frame_hashes"
    column: str = "video"

    version = 2

    def check(self) -> None:
        if not 0.01 <= self.every_s <= 60:
            raise ParameterError(f"`every_s` must be from 0.01 to 60, got {self.every_s}")

    def writes(self) -> tuple[str, ...]:
        return (self.output,)

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        found = [None if words is None else words.view(np.int64) for words in hashes_of(batch, "video", self.every_s)]
        return {self.output: pa.array(found, pa.list_(pa.int64()))}


def hashes_of(batch: Batch, column: str, every_s: float) -> list[np.ndarray | None]:
    """The hashes of the frames of each video at fixed times; None for a row without video."""
    return [None if track is None else sampled_hashes(track, every_s) for track in tracks(batch, column)]


def sampled_hashes(track: Track, every_s: float) -> np.ndarray:
    """The hashes of the frames that are shown at fixed times, uint64[times]; 0 for blank frames."""
    if not len(track):
        return np.empty(0, np.uint64)
    # A segment may claim an end that the video does not have.
    end = min(track.end, float(track.time[-1]) + (1 / track.rate if track.rate > 0 else every_s))
    count = max(1.0, np.ceil((end - track.begin) / every_s - 1e-6))
    if not count <= MAX_HASHES:
        raise VideoError("damaged", f"its last frame is shown after {end - track.begin:,.0f} s")
    times = track.begin + every_s * np.arange(int(count))
    shown = np.maximum(np.searchsorted(track.time, times + 1e-6, "right") - 1, 0)
    words = track.hashes.copy()
    words[(track["contrast"] < MIN_CONTRAST) | says_little(words[:, None])] = 0
    return words[shown]


@operator(reads="video")
class VideoDigest(TrackStep, Map):
    """Add the SHA-256 hash of each file, or of its decoded frames, in hexadecimal.

    Two files with the same frames, such as an MP4 file and its copy in another container, have different bytes. The hash of
    frames is that of the format, the size and the pixels of each frame as the codec returns it; times do not count.
    `ExactDedup(column="video_digest")` keeps one of the videos with the same frames.
    """

    of: Literal["bytes", "frames"] = "bytes"
    output: str = "video_digest"
    column: str = "video"

    version = 2

    def writes(self) -> tuple[str, ...]:
        return (self.output,)

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        if self.of == "bytes":
            found = [None if data is None else hashlib.sha256(data).hexdigest() for data in read_bytes(batch, "video")]
        else:
            found = [None if item is None else frame_digest(item) for item in media_items(batch, "video")]
        return {self.output: pa.array(found, pa.string())}


def frame_digest(item: MediaItem) -> str:
    """The SHA-256 hash of the frames of a video, one frame at a time."""
    digest = hashlib.sha256()
    for frame in each_frame(item):
        decoded: Any = frame.decoded
        digest.update(f"{decoded.format.name} {decoded.width} {decoded.height}\n".encode())
        for pixels in _pixels(decoded):
            digest.update(np.ascontiguousarray(pixels).data)
    return digest.hexdigest()


def _pixels(decoded: Any) -> list[np.ndarray]:
    """All pixels of a frame."""
    planes = planes_of(decoded)
    if planes is not None:
        return planes
    try:
        return [np.ascontiguousarray(decoded.to_ndarray())]
    except (ValueError, AssertionError):  # a format or a width that PyAV does not convert to an array
        return [decoded.reformat(format="rgb24").to_ndarray()]
