"""Finds memory that keeps rising, with few false alerts.

Each worker is measured at comparable moments: after a committed shard, once it has collected garbage and returned free
memory. A rise counts as a leak when all of these hold for the whole history or its recent part:

    it is significant      Mann-Kendall test, its variance corrected for autocorrelation (Yue and Wang 2004)
    it is large            Theil-Sen slope times span, against the baseline and against the noise around the line
    it is steady           each quarter is higher than the previous one, or each eighth with many moments: a cache that is
                           loaded makes one or two steps
    it does not level off  within the noise, the later half rises as fast as the earlier, and a recent part as fast as the
                           part before it: caches and pools that fill up level off
    it is a new high       higher than any earlier value: a sawtooth is not
    it is urgent           if the limit is known and far away, more moments are awaited, in which a pool would level off
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Generic, TypeAlias, TypeVar

import numpy as np

MAD_TO_SIGMA = 1.4826
"""Scales the median absolute deviation to the standard deviation of a normal distribution."""

MAX_CORRELATION = 0.95
"""The largest autocorrelation taken into account; beyond it no series is long enough to be significant."""

CLEAN = 0.08
"""Noise below this share of the growth is ignored, and so is its autocorrelation."""

FLATTER = 0.1
"""A slope that falls by less than this share counts as unchanged."""

FLATTEST = 0.3
"""A slope that falls by more than this share has changed, however large the noise."""

DOUBT = 2.5
"""Standard errors by which a slope may fall and still count as unchanged."""

MIN_BEFORE = 8
"""Moments needed before a stretch to have a slope to compare with."""

FINER = 32
"""With this many moments, eighths are compared too: several caches, filled one after the other, can raise every quarter."""

MEDIAN_ERROR = 1.25
"""The standard error of a median, relative to that of a mean."""

LOOKS = 12
"""A series is tested again when it has grown by a twelfth."""

T = TypeVar("T")


class Thinned(Generic[T]):
    """A long series in bounded space: all of the newest items, and older ones at even and growing distances.

    >>> series = Thinned(8)
    >>> for number in range(100):
    ...     series.append(number)
    >>> list(series)
    [0, 32, 64, 96, 97, 98, 99]
    """

    def __init__(self, keep: int) -> None:
        self._recent: deque[tuple[int, T]] = deque()
        self._old: list[T] = []
        self._half = max(1, keep // 2)
        self._stride = 1
        self._count = 0

    def append(self, item: T) -> None:
        self._recent.append((self._count, item))
        self._count += 1
        if len(self._recent) > self._half:
            number, oldest = self._recent.popleft()
            if number % self._stride == 0:
                self._old.append(oldest)
                if len(self._old) > self._half:
                    del self._old[1::2]
                    self._stride *= 2

    def __len__(self) -> int:
        return len(self._old) + len(self._recent)

    def __iter__(self) -> Iterator[T]:
        yield from self._old
        yield from self.recent

    @property
    def recent(self) -> list[T]:
        return [item for _, item in self._recent]

    @property
    def old(self) -> list[T]:
        return list(self._old)

    @property
    def even(self) -> list[T]:
        """The whole history, evenly spaced."""
        return self._old + [item for number, item in self._recent if number % self._stride == 0]


# ---------------------------------------------------------------------------------------------------------------- trend


@dataclass(frozen=True)
class Trend:
    """A robust line through a series, and how significant it is."""

    slope: float
    """Change per unit of the moments; Theil-Sen: the median of the slopes between all pairs."""
    level: float
    """The value of the line at the last moment."""
    growth: float
    """Slope times the span of the moments."""
    noise: float
    """Spread of the values around the line, as a standard deviation."""
    confidence: float
    """Confidence that the series rises: one minus the one-sided p-value of the Mann-Kendall test."""
    steady: bool
    """Every part is well above the previous one, and the later half rises about as fast as the earlier."""
    jitter: float
    """Spread of single values around a curve of any shape."""


def fit_trend(moments: Sequence[float], values: Sequence[float]) -> Trend | None:
    """The trend of `values` over rising `moments`; None when there are fewer than four. Costs time quadratic in them."""
    x, y = np.asarray(moments, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if len(x) < 4:
        return None
    slope = _theil_sen(x, y)
    middle = float(np.median(y - slope * x))
    residual = y - (slope * x + middle)
    noise = MAD_TO_SIGMA * float(np.median(np.abs(residual)))
    growth = slope * float(x[-1] - x[0])
    factor = 1.0 if noise <= CLEAN * abs(growth) else _redundancy(residual)
    jitter = _jitter(y)
    return Trend(
        slope=slope,
        level=float(slope * x[-1] + middle),
        growth=growth,
        noise=noise,
        confidence=_mann_kendall(y, factor),
        steady=growth > 0 and _is_steady(x, y, slope, jitter),
        jitter=jitter,
    )


def _theil_sen(x: np.ndarray, y: np.ndarray) -> float:
    first, second = np.triu_indices(len(x), 1)
    run = x[second] - x[first]
    apart = run > 0
    if not apart.any():
        return 0.0
    return float(np.median((y[second] - y[first])[apart] / run[apart]))


def _mann_kendall(y: np.ndarray, factor: float) -> float:
    n = len(y)
    first, second = np.triu_indices(n, 1)
    score = float(np.sign(y[second] - y[first]).sum())
    variance = n * (n - 1) * (2 * n + 5) / 18 * factor
    z = (score - np.sign(score)) / math.sqrt(variance)
    return 0.5 * math.erfc(-z / math.sqrt(2))


def _redundancy(residual: np.ndarray) -> float:
    """How many correlated values say as much as one independent value would (Yue and Wang 2004).

    The correlation of neighbours is taken by ranks, and corrected for being underestimated in a short series that was
    detrended (Kendall 1954).
    """
    n = len(residual)
    ranks = residual.argsort().argsort().astype(np.float64)
    ranks -= ranks.mean()
    found = float(ranks[:-1] @ ranks[1:]) / float(ranks @ ranks)
    correlation = min(MAX_CORRELATION, max(0.0, (n * found + 2) / max(1, n - 4)))
    return (1 + correlation) / (1 - correlation)


def _jitter(y: np.ndarray) -> float:
    """Spread of the values around any smooth curve, from the differences of neighbours, as a standard deviation."""
    steps = np.diff(y)
    return MAD_TO_SIGMA * float(np.median(np.abs(steps - np.median(steps)))) / math.sqrt(2)


def _is_steady(x: np.ndarray, y: np.ndarray, slope: float, jitter: float) -> bool:
    if len(x) < 8 or not _climbs(x, y, slope, 0.0, 4):
        return False
    if len(x) >= FINER and not _climbs(x, y, slope, jitter, 8):
        return False
    half = len(x) // 2
    early, late = _theil_sen(x[:half], y[:half]), _theil_sen(x[half:], y[half:])
    return not _falls(max(early, slope), x[:half], late, x[half:], jitter)


def _climbs(x: np.ndarray, y: np.ndarray, slope: float, jitter: float, count: int) -> bool:
    """Whether each of `count` parts is higher than the previous one by a good part of the expected rise, within noise."""
    parts = np.array_split(np.arange(len(x)), count)
    centres = np.array([np.median(x[part]) for part in parts])
    heights = np.array([np.median(y[part]) for part in parts])
    spread = MEDIAN_ERROR * jitter * math.sqrt(2 * count / len(x))
    return not (np.diff(heights) < 0.3 * slope * np.diff(centres) - 2 * spread).any()


def _falls(early: float, early_x: np.ndarray, late: float, late_x: np.ndarray, jitter: float) -> bool:
    """Whether a slope has fallen, as far as noise allows to decide.

    An exponential that levels off with a time constant of T moments loses 1 - exp(-n / 2T) of its slope from one half of n
    moments to the other: 0.45 of it in 24 moments if T is 20.
    """
    spans = [float(((x - x.mean()) ** 2).sum()) for x in (early_x, late_x)]
    if not all(spans):
        return False  # a single moment has no slope
    error = jitter * math.sqrt(sum(1 / span for span in spans))
    doubt = DOUBT * error / early if early > 0 else 0.0
    return late < (1 - min(FLATTEST, max(FLATTER, doubt))) * early


# ---------------------------------------------------------------------------------------------------------------- leaks


@dataclass(frozen=True)
class Leak:
    """A worker whose memory keeps rising."""

    stage: str
    worker: int
    bytes_per_shard: float
    bytes_per_s: float | None
    """None when the moments were given without a time."""
    since: int
    """The first moment of the rise."""
    confidence: float
    now_bytes: int
    """What it holds now, according to the trend."""

    def shards_until(self, limit_bytes: int) -> float:
        """Shards until the worker holds `limit_bytes`; 0 if it already does."""
        return max(0.0, (limit_bytes - self.now_bytes) / self.bytes_per_shard)


_Point: TypeAlias = tuple[int, float, float | None]
"""Moment, bytes, seconds."""


@dataclass
class _Series:
    """The memory of one worker, moment by moment; old moments are thinned out."""

    points: Thinned[_Point]
    seen: int = 0


class LeakDetector:
    """Checks the memory of each worker after each shard, and reports once when a worker leaks.

    Of a thousand series of 200 noisy moments, fewer than ten raise an alert; a leak of 1 % of the baseline per shard,
    under noise of up to 1 %, is found within 30 shards. If `limit_bytes` is given, an alert waits until 40 moments show the
    rise, as long as the limit is at least twice as many shards away as it has to wait; pools that fill up over 20 or 30
    shards then rarely raise one. Growth that takes a hundred shards to level off looks like a leak until it does, and is
    reported too. Costs less than a millisecond per moment, and a few kilobytes per worker.

    >>> detector = LeakDetector("stage 1")
    >>> for shard in range(40):
    ...     leak = detector.add(worker=3, moment=shard, num_bytes=200_000_000 + 4_000_000 * shard)
    ...     if leak:
    ...         break
    >>> leak.worker, round(leak.bytes_per_shard), leak.shards_until(500_000_000) > 50
    (3, 4000000, True)
    """

    def __init__(
        self,
        stage: str = "",
        *,
        warmup: int = 5,
        min_points: int = 16,
        patient_points: int = 40,
        min_growth: float = 0.1,
        min_growth_bytes: int = 4_000_000,
        noise_ratio: float = 4.0,
        min_confidence: float = 0.9999,
        keep: int = 256,
    ) -> None:
        """The first `warmup` moments are ignored: imports, compilation, pools. `min_growth` is relative to the baseline."""
        self.stage = stage
        self.warmup, self.min_points, self.patient_points, self.keep = warmup, min_points, patient_points, keep
        self.min_growth, self.min_growth_bytes = min_growth, min_growth_bytes
        self.noise_ratio, self.min_confidence = noise_ratio, min_confidence
        self.leaks: dict[int, Leak] = {}
        """The leaking workers by number, each with the latest estimate."""
        self._series: dict[int, _Series] = {}

    def add(
        self, worker: int, moment: int, num_bytes: int, at_s: float | None = None, limit_bytes: int | None = None
    ) -> Leak | None:
        """Add what `worker` holds after its shard `moment`; returns the leak at the moment it becomes certain.

        `limit_bytes` is what it may hold: as long as that is far away, the detector waits for more moments.
        """
        series = self._series.setdefault(worker, _Series(Thinned(self.keep)))
        series.seen += 1
        if series.seen <= self.warmup:
            return None
        series.points.append((moment, float(num_bytes), at_s))
        if series.seen % max(1, len(series.points) // LOOKS):
            return None  # each test may give a false alert, and a long series changes slowly
        leak = self._judge(worker, series.points, limit_bytes)
        if leak is None:
            return None
        known = worker in self.leaks
        self.leaks[worker] = leak
        return None if known else leak

    def forget(self, worker: int) -> None:
        """Drop the history of a worker that was replaced."""
        self.leaks.pop(worker, None)
        self._series.pop(worker, None)

    def _judge(self, worker: int, series: Thinned[_Point], limit_bytes: int | None) -> Leak | None:
        """The leak over the longest stretch that shows one: the whole history, then shorter and shorter ends of it."""
        leak = self._judge_stretch(worker, series.even, [], limit_bytes)
        old, recent = series.old, series.recent
        length = len(recent) if old else len(recent) // 2
        while leak is None and length >= self.min_points:
            leak = self._judge_stretch(worker, recent[-length:], old + recent[:-length], limit_bytes)
            length //= 2
        return leak

    def _judge_stretch(
        self, worker: int, points: list[_Point], before: list[_Point], limit_bytes: int | None
    ) -> Leak | None:
        if len(points) < self.min_points:
            return None
        moments, values = [point[0] for point in points], [point[1] for point in points]
        quarter = max(3, len(values) // 4)
        baseline = median(values[:quarter])
        enough = max(self.min_growth * baseline, self.min_growth_bytes)
        if median(values[-quarter:]) - baseline < 0.6 * enough:
            return None  # a cheap test first, which nearly always decides; on a line the value is 0.75 of the growth
        trend = fit_trend(moments, values)
        if (
            trend is None
            or trend.growth < max(enough, self.noise_ratio * trend.noise)
            or trend.confidence < self.min_confidence
            or not trend.steady
            or trend.level < _usual_high([point[1] for point in before])
            or _rose_faster(before[-len(points) :], moments, trend)
        ):
            return None
        times = [point[2] for point in points]
        known = [time for time in times if time is not None]
        span = known[-1] - known[0] if len(known) == len(times) else 0.0
        leak = Leak(
            stage=self.stage,
            worker=worker,
            bytes_per_shard=trend.slope,
            bytes_per_s=trend.growth / span if span > 0 else None,
            since=moments[0],
            confidence=trend.confidence,
            now_bytes=int(trend.level),
        )
        wait = self.patient_points - len(points)
        if limit_bytes is not None and wait > 0 and leak.shards_until(limit_bytes) >= 2 * wait:
            return None  # there is time to see whether it levels off
        return leak


def _rose_faster(before: list[_Point], moments: list[int], trend: Trend) -> bool:
    """Whether the stretch before was steeper, so that this is the end of a curve that levels off."""
    if len(before) < MIN_BEFORE:
        return False
    x = np.array([point[0] for point in before], np.float64)
    slope = _theil_sen(x, np.array([point[1] for point in before]))
    return _falls(slope, x, trend.slope, np.array(moments, np.float64), trend.jitter)


def _usual_high(values: list[float]) -> float:
    """The highest value a series has reached without leaking."""
    if not values:
        return 0.0
    spread = MAD_TO_SIGMA * float(np.median(np.abs(np.asarray(values) - np.median(values))))
    return max(values) + 2 * spread
