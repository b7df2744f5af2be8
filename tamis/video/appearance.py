"""Filters on the frames of a video over time: black, frozen, letterboxed, flashing, still, shaking.

All of them measure the track, which is made in one pass over the frames at 64 x 64 pixels; several cost one decode. A row
without video has no scores and is dropped.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from tamis.batch import Batch
from tamis.errors import ParameterError
from tamis.operators import Filter, Rule, Scores, at_least, at_most, operator
from tamis.video.decode import Track, TrackStep, tracks

BLACK_PICTURE = 0.98
"""A frame is black if this share of its pixels is dark: the default of FFmpeg's filter blackdetect."""

FROZEN_CHANGE = 0.255
"""A frame repeats the one before it if pixels change by less on average: 0.1 %, as in FFmpeg's filter freezedetect."""

FLASH = 25.5
"""A flash is a pair of opposite changes of brightness by 10 % or more (WCAG 2.2, success criterion 2.3.1)."""


class TrackFilter(TrackStep, Filter):
    """Shared by filters on the tracks of videos."""

    column: str

    def _scores(self, batch: Batch, *measures: Callable[[Track], float]) -> Scores:
        found = tracks(batch, "video")
        return {
            name: pa.array([None if track is None else measure(track) for track in found], pa.float64())
            for name, measure in zip(self.declared_writes, measures, strict=True)
        }


def _share_of_time(track: Track, chosen: np.ndarray) -> float:
    seconds = track.frame_seconds()
    total = seconds.sum()
    return float(seconds[chosen].sum() / total) if total > 0 else float(chosen.mean()) if len(chosen) else 0.0


def _runs(chosen: np.ndarray) -> list[tuple[int, int]]:
    """(first, stop) of each run of True.

    >>> _runs(np.array([False, True, True, False, True]))
    [(1, 3), (4, 5)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[0], chosen.astype(np.int8), [0]])))
    return [(int(first), int(stop)) for first, stop in zip(edges[::2], edges[1::2], strict=True)]


@operator(reads="video", writes="black_share")
class VideoBlack(TrackFilter):
    """Drop videos that are black for more than half of their time.

    A frame is black if 98 % of its pixels have at most 10 % of the brightness of white, as in FFmpeg's filter blackdetect.
    """

    max_black_share: float = 0.5
    column: str = "video"

    def score(self, batch: Batch) -> Scores:
        return self._scores(batch, lambda track: _share_of_time(track, track["dark"] >= BLACK_PICTURE))

    def rules(self) -> list[Rule]:
        return [at_most("black_share", self.max_black_share)]


@operator(reads="video", writes="frozen_share")
class VideoFrozen(TrackFilter):
    """Drop videos that stand still for more than half of their time, in parts of 2 seconds or more.

    A frame repeats the one before it if pixels change by less than 0.1 % on average, as in FFmpeg's filter freezedetect.
    """

    freeze_s: float = 2.0
    max_frozen_share: float = 0.5
    column: str = "video"

    def score(self, batch: Batch) -> Scores:
        return self._scores(batch, self._frozen)

    def _frozen(self, track: Track) -> float:
        still = track["change"] < FROZEN_CHANGE
        still[:1] = False
        chosen = np.zeros(len(track), np.bool_)
        ends = np.append(track.time[1:], track.end)
        for first, stop in _runs(still):
            if ends[stop - 1] - track.time[first - 1] >= self.freeze_s - 1e-6:
                chosen[first - 1 : stop] = True
        return _share_of_time(track, chosen)

    def rules(self) -> list[Rule]:
        return [at_most("frozen_share", self.max_frozen_share)]


@operator(reads="video", writes="bar_share")
class VideoBars(TrackFilter):
    """Drop videos with black bars over more than 30 % of the picture: letterboxes and pillarboxes.

    Rows and columns at the edges count if they are dark in every frame that is not black, so that a dark scene does not.
    """

    max_bar_share: float = 0.3
    column: str = "video"

    def score(self, batch: Batch) -> Scores:
        return self._scores(batch, bar_share)

    def rules(self) -> list[Rule]:
        return [at_most("bar_share", self.max_bar_share)]


def bar_share(track: Track) -> float:
    """The share of the picture that is black in all frames but black ones."""
    shown = track["dark"] < BLACK_PICTURE
    if not shown.any():
        return 1.0 if len(track) else 0.0
    top, bottom, left, right = track.bars[shown].min(axis=0).astype(float) / 64
    return 1.0 - max(0.0, 1 - top - bottom) * max(0.0, 1 - left - right)


@operator(reads="video", writes="flashes")
class VideoFlashing(TrackFilter):
    """Drop videos that flash more than 3 times in any second (WCAG 2.2, success criterion 2.3.1).

    A flash is a pair of opposite changes of the mean brightness by at least 10 % of white.
    """

    max_flashes: int = 3
    column: str = "video"

    def score(self, batch: Batch) -> Scores:
        return self._scores(batch, lambda track: float(_most_flashes(track)))

    def rules(self) -> list[Rule]:
        return [at_most("flashes", self.max_flashes)]


def _most_flashes(track: Track) -> int:
    """The most flashes in any second. A change counts from the last extreme value in the other direction."""
    times: list[float] = []
    direction, low, high = 0, np.inf, -np.inf
    for time, value in zip(track.time, track["brightness"], strict=True):
        low, high = min(low, value), max(high, value)
        if direction >= 0 and high - value >= FLASH:
            direction, low = -1, value
            times.append(float(time))
        elif direction <= 0 and value - low >= FLASH:
            direction, high = 1, value
            times.append(float(time))
    most, first = 0, 0
    for last, time in enumerate(times):
        while time - times[first] > 1.0:
            first += 1
        most = max(most, (last - first + 1) // 2)
    return most


@operator(reads="video", writes=("motion", "patch_motion"))
class VideoMotion(TrackFilter):
    """Keep videos in which something moves: pixels change by 0.5 of 256 levels or more between frames, on average.

    Changes are those of the brightness at 64 x 64 pixels, as levels per 1/25 second, so that the frame rate does not matter.
    `patch_motion` is the change in the calmest of 16 parts of the picture; with `min_patch_motion`, everything has to move.
    """

    min_motion: float | None = 0.5
    max_motion: float | None = None
    min_patch_motion: float = 0.0
    column: str = "video"

    def score(self, batch: Batch) -> Scores:
        return self._scores(batch, motion, _patch_motion)

    def rules(self) -> list[Rule]:
        return [Rule("motion", self.min_motion, self.max_motion), at_least("patch_motion", self.min_patch_motion)]


def motion(track: Track) -> float:
    """The mean change of a pixel, in levels per 1/25 second."""
    return _per_frame(track, track["change"])


def _patch_motion(track: Track) -> float:
    parts = track.patches.reshape(len(track), -1)
    return min((_per_frame(track, parts[:, part] / 8.0) for part in range(parts.shape[1])), default=0.0)


def _per_frame(track: Track, change: np.ndarray) -> float:
    seconds = float(track.time[-1] - track.time[0]) if len(track) else 0.0
    return float(change[1:].sum(dtype=np.float64)) / (25 * seconds) if seconds > 0 else 0.0


@operator(reads="video", writes=("vector_motion", "vector_patch_motion", "vector_source"))
class VectorMotion(TrackFilter):
    """Keep videos in which something moves, by the motion vectors of their codec.

    `vector_motion` is the mean length of the vectors in pixels, over the width + height of the picture, and
    `vector_patch_motion` that of the calmest of 16 parts of the picture. The thresholds are those of NeMo Curator, which
    measures 2 frames per second of the first half and parts of 256 x 256 pixels; here all frames count, and small videos
    can be measured too. H.264, MPEG-1, -2 and -4 and their relatives have vectors. For other codecs (H.265, VP9, AV1), and
    for videos in which most frames have none, they are estimated from each two frames; `vector_source` is "codec" or
    "frames".

    Vectors are what an encoder found cheap: plain surfaces may seem to move, or not to, and the vectors of B-frames, which
    reach over several frames, are longer. `VideoMotion` measures the pictures. The vectors are read in the pass that makes
    the track, so that both cost one decode.
    """

    min_motion: float | None = 0.00098
    max_motion: float | None = None
    min_patch_motion: float | None = 0.000001
    column: str = "video"

    def score(self, batch: Batch) -> Scores:
        found = [None if track is None else vector_motion(track) for track in tracks(batch, "video")]
        values = list(zip(*[each or (None, None, None) for each in found], strict=True)) or [(), (), ()]
        kinds = (pa.float64(), pa.float64(), pa.string())
        return {
            name: pa.array(column, kind) for name, column, kind in zip(self.declared_writes, values, kinds, strict=True)
        }

    def rules(self) -> list[Rule]:
        return [
            Rule("vector_motion", self.min_motion, self.max_motion),
            Rule("vector_patch_motion", self.min_patch_motion, None),
        ]


def vector_motion(track: Track) -> tuple[float, float, str]:
    """(mean length of vectors, that of the calmest part, whether they are those of the codec)."""
    by_codec = 2 * int(track.coded.sum()) >= len(track) - 1 and bool(track.coded.any())
    chosen = track.coded if by_codec else np.arange(len(track)) > 0
    lengths = track.vectors[chosen].astype(np.float64)
    means = lengths.mean(axis=0) if len(lengths) else np.zeros(1)
    return float(means.mean()), float(means.min()), "codec" if by_codec else "frames"


@operator(reads="video", writes="shake")
class VideoShake(TrackFilter):
    """Drop videos from a shaking camera: the whole picture trembles by more than 1 % of its size.

    The shift between frames is that of the sums of rows and of columns of the brightness. Its mean over half a second is
    intended motion, the rest is trembling; the score is its root mean square in percent of the picture.
    """

    max_shake: float = 1.0
    window_s: float = 0.5
    column: str = "video"

    def check(self) -> None:
        if not self.window_s > 0:
            raise ParameterError("`window_s` must be positive")

    @classmethod
    def is_threshold(cls, parameter: str) -> bool:
        return parameter in ("max_shake", "score_only")

    def score(self, batch: Batch) -> Scores:
        return self._scores(batch, self._shake)

    def _shake(self, track: Track) -> float:
        if len(track) < 3:
            return 0.0
        width = min(len(track) - 1, max(3, round(self.window_s * track.rate) | 1))
        total = 0.0
        for name in ("shift_x", "shift_y"):
            shift = track[name][1:].astype(np.float64)
            # A shift at the end of the range is a cut, not a motion.
            shift[np.abs(shift) >= 100 * 8 / 64] = 0
            sums = np.cumsum(np.concatenate([[0.0], np.pad(shift, width // 2, mode="edge")]))
            size = 2 * (width // 2) + 1
            smooth = (sums[size:] - sums[:-size]) / size
            total += float(((shift - smooth[: len(shift)]) ** 2).mean())
        return float(np.sqrt(total))

    def rules(self) -> list[Rule]:
        return [at_most("shake", self.max_shake)]
