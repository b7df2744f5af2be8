import subprocess
import sys

import numpy as np
import pytest

from tamis.memory.leaks import LeakDetector, Thinned, fit_trend

BASE = 200e6


def first_alert(values, limit_bytes=None, **settings):
    """The moment at which a series raises the alert, or None."""
    detector = LeakDetector(**settings)
    for moment, value in enumerate(values):
        if detector.add(0, moment, int(value), limit_bytes=limit_bytes):
            return moment
    return None


def alerts(make, count=50):
    return sum(first_alert(make(np.random.default_rng(seed))) is not None for seed in range(count))


def white(rng, n=200, sigma=0.02):
    return rng.normal(0, sigma, n)


def noisy(rng):
    """Noise of a different kind and size for each seed, none of it rising."""
    sigma = rng.choice([0.002, 0.01, 0.03, 0.1])
    kind = rng.integers(4)
    if kind == 0:
        return BASE * (1 + rng.normal(0, sigma, 200))
    if kind == 1:
        return BASE * rng.lognormal(0, sigma, 200)
    if kind == 2:
        return BASE * (1 + sigma * np.abs(rng.standard_t(2, 200)))
    return BASE * (1 + sigma * rng.uniform(-2, 2, 200) * (rng.random(200) < 0.3))


# ---------------------------------------------------------------------------------------------------------- no leaks


def test_of_a_thousand_noisy_series_fewer_than_ten_raise_an_alert():
    assert alerts(noisy, 1_000) < 10


@pytest.mark.parametrize(("period", "height"), [(4, 0.5), (8, 0.3), (12, 0.3), (40, 0.08)])
def test_a_sawtooth_is_no_leak(period, height):
    def make(rng):
        teeth = (np.arange(200) + rng.integers(period)) % period / period
        return BASE * (1 + height * teeth + white(rng, sigma=0.01))

    assert alerts(make) <= 1


@pytest.mark.parametrize(("shards", "rise"), [(2, 2.0), (3, 1.0), (5, 0.3)])
def test_a_warm_up_that_reaches_a_plateau_is_no_leak(shards, rise):
    assert alerts(lambda rng: BASE * (1 + rise * (1 - np.exp(-np.arange(200) / shards)) + white(rng))) == 0


@pytest.mark.parametrize(("shards", "rise"), [(10, 0.15), (20, 0.1), (60, 0.08)])
def test_an_allocator_that_drifts_and_settles_is_no_leak(shards, rise):
    assert alerts(lambda rng: BASE * (1 + rise * (1 - np.exp(-np.arange(200) / shards)) + white(rng, sigma=0.01))) <= 1


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_few_steps_are_no_leak(count):
    def make(rng):
        steps = np.zeros(200)
        for at in rng.integers(0, 200, count):
            steps[at:] += rng.uniform(0.05, 0.5)
        return BASE * (1 + steps + white(rng, sigma=0.01))

    assert alerts(make) <= 1


def test_two_levels_by_turns_are_no_leak():
    assert alerts(lambda rng: BASE * (1 + 0.3 * np.repeat(rng.integers(0, 2, 20), 10) + white(rng, sigma=0.01))) == 0


def test_neighbours_that_are_alike_do_not_look_like_a_trend():
    def make(rng):
        values = np.zeros(200)
        for i in range(1, 200):
            values[i] = 0.7 * values[i - 1] + rng.normal(0, 0.02)
        return BASE * (1 + values)

    assert alerts(make) <= 2


def test_memory_that_falls_is_no_leak():
    assert alerts(lambda rng: BASE * (2 - 0.005 * np.arange(200) + white(rng))) == 0


def test_growth_too_small_to_matter_is_let_be():
    assert first_alert(1e6 + 10_000 * np.arange(200)) is None
    assert first_alert(1e6 + 10_000 * np.arange(200), min_growth_bytes=0) is not None


def test_a_constant_is_no_leak():
    assert first_alert([BASE] * 200) is None


# ------------------------------------------------------------------------------------------------------------- leaks


@pytest.mark.parametrize("sigma", [0.0, 0.005, 0.01])
def test_a_leak_of_one_percent_per_shard_is_found_within_thirty_shards(sigma):
    found = alerts(lambda rng: BASE * (1 + 0.01 * np.arange(30) + white(rng, 30, sigma)), 300)
    assert found > 0.99 * 300


@pytest.mark.parametrize(("rate", "sigma"), [(0.002, 0.02), (0.001, 0.01), (0.001, 0.02)])
def test_a_slow_leak_under_noise_is_found_in_the_end(rate, sigma):
    assert alerts(lambda rng: BASE * (1 + rate * np.arange(300) + white(rng, 300, sigma)), 40) == 40


def test_a_leak_that_begins_late_is_found():
    def make(rng):
        return BASE * (1 + 0.01 * np.maximum(0, np.arange(170) - 120) + white(rng, 170))

    moments = [first_alert(make(np.random.default_rng(seed))) for seed in range(40)]
    assert all(moment is not None and moment > 120 for moment in moments)


def test_a_very_slow_leak_is_found_although_old_moments_are_thinned():
    values = BASE * (1 + 0.0002 * np.arange(2_000) + white(np.random.default_rng(1), 2_000, 0.01))
    assert first_alert(values) is not None


def test_a_leak_says_where_how_fast_since_when_and_how_long_it_can_last():
    detector = LeakDetector("stage 2")
    for shard in range(60):
        leak = detector.add(4, shard, 200_000_000 + 2_000_000 * shard, at_s=10.0 * shard)
        if leak:
            break
    assert (leak.stage, leak.worker, leak.since) == ("stage 2", 4, 5)
    assert leak.bytes_per_shard == pytest.approx(2_000_000)
    assert leak.bytes_per_s == pytest.approx(200_000)
    assert leak.confidence > 0.9999
    assert leak.shards_until(leak.now_bytes + 20_000_000) == pytest.approx(10)
    assert leak.shards_until(0) == 0
    assert detector.add(4, 100, 400_000_000) is None, "it is said once"
    assert detector.leaks[4].worker == 4


# ------------------------------------------------------------------------------------- with a limit that is known

FAR = int(10 * BASE)


def moments(make, count=60, limit_bytes=FAR):
    """Return when each series raises the alert, or None if it does not."""
    return [first_alert(make(np.random.default_rng(seed)), limit_bytes) for seed in range(count)]


def noise_of(rng, n):
    """Noise of a size and kind of its own: normal, or with tails as heavy as Student's t of two degrees of freedom."""
    sigma = rng.uniform(0.0005, 0.01)
    return sigma * (rng.normal(0, 1, n) if rng.random() < 0.7 else rng.standard_t(2, n))


def filling(rng, shape):
    """What a cache or pool adds to the baseline as it fills."""
    t, rise = np.arange(100), np.exp(rng.uniform(np.log(0.1), np.log(3)))
    return BASE * (1 + rise * shape(t) + noise_of(rng, 100))


@pytest.mark.parametrize(("shards", "most"), [(3, 0), (8, 0), (14, 1), (20, 2), (30, 6)])
def test_what_levels_off_exponentially_is_no_leak(shards, most):
    found = moments(lambda rng: filling(rng, lambda t: 1 - np.exp(-t / shards)))
    assert sum(moment is not None for moment in found) <= most


@pytest.mark.parametrize("shards", [10, 18, 25, 30])
def test_what_fills_evenly_and_then_stays_is_no_leak(shards):
    def make(rng):
        # Slow enough that the limit would not be near if it went on.
        return BASE * (1 + rng.uniform(0.1, 1.5) * np.minimum(np.arange(100) / shards, 1) + noise_of(rng, 100))

    assert sum(moment is not None for moment in moments(make)) <= 1


def test_several_caches_that_fill_one_after_the_other_seldom_look_like_a_leak():
    def make(rng):
        t, values = np.arange(100), 1 + noise_of(rng, 100)
        for start, tau, rise in zip(rng.uniform(0, 60, 3), rng.uniform(2, 8, 3), rng.uniform(0.1, 0.5, 3), strict=True):
            values = values + rise * (1 - np.exp(-np.maximum(0, t - start) / tau))
        return BASE * values

    assert sum(moment is not None for moment in moments(make)) <= 6


@pytest.mark.parametrize("limit", [None, FAR])
def test_heavy_tails_on_a_sawtooth_are_no_leak(limit):
    def make(rng):
        period = rng.integers(4, 40)
        teeth = (np.arange(100) + rng.integers(period)) % period / period
        return BASE * (1 + rng.uniform(0, 0.08) * teeth + 0.01 * np.abs(rng.standard_t(2, 100)))

    assert sum(moment is not None for moment in moments(make, limit_bytes=limit)) <= 1


@pytest.mark.parametrize("rate", [0.003, 0.01, 0.03, 0.1])
def test_a_steady_leak_far_from_the_limit_is_found_within_fifty_shards(rate):
    found = moments(lambda rng: BASE * (1 + rate * np.arange(100) + rng.normal(0, rng.uniform(0, 0.01), 100)))
    assert None not in found
    assert np.median(found) <= 46
    assert np.quantile(found, 0.95) <= 50


def test_a_leak_is_found_with_room_to_spare_however_near_the_limit():
    def make(rng):
        rate = np.exp(rng.uniform(np.log(0.005), np.log(0.2)))
        shards = rng.integers(36, 120)
        series = BASE * (1 + rate * np.arange(shards) + rng.normal(0, min(0.01, rate / 2), shards))
        return series, int(BASE * (1 + rate * shards))

    for seed in range(100):
        series, limit = make(np.random.default_rng(seed))
        found = first_alert(series, limit)
        if limit < 1.3 * BASE and found is None:
            continue  # too small to distinguish from noise
        assert found is not None, seed
        assert len(series) - found >= 6, seed


def test_the_nearer_the_limit_the_sooner_the_alert():
    leak = BASE * (1 + 0.02 * np.arange(100))
    assert first_alert(leak, int(2 * BASE)) == first_alert(leak) == 20
    assert first_alert(leak, FAR) == 44


def test_a_leak_behind_a_warm_up_is_found():
    def make(rng):
        t = np.arange(100)
        return BASE * (1 + 2 * (1 - np.exp(-t / 3)) + 0.03 * t + rng.normal(0, 0.01, 100))

    found = moments(make, limit_bytes=None)
    assert None not in found
    assert max(found) <= 80


def test_without_times_there_is_no_rate_per_second():
    detector = LeakDetector()
    leaks = [detector.add(0, shard, 200_000_000 + 4_000_000 * shard) for shard in range(40)]
    (leak,) = [leak for leak in leaks if leak]
    assert leak.bytes_per_s is None


def test_workers_are_judged_apart_and_a_new_one_starts_afresh():
    detector = LeakDetector()
    found = []
    for shard in range(40):
        found += [detector.add(1, shard, 200_000_000), detector.add(2, shard, 200_000_000 + 4_000_000 * shard)]
    assert [leak.worker for leak in found if leak] == [2]
    detector.forget(2)
    assert not detector.leaks
    assert detector.add(2, 0, 900_000_000) is None


# ------------------------------------------------------------------------------------------------------------- trend


def test_outliers_do_not_bend_the_line():
    values = 3.0 * np.arange(30) + 10
    values[[4, 17]] = 1e6
    trend = fit_trend(range(30), values)
    assert trend.slope == pytest.approx(3.0)
    assert trend.level == pytest.approx(97.0)
    assert trend.confidence > 0.999


def test_too_few_points_have_no_trend():
    assert fit_trend([1, 2, 3], [1, 2, 3]) is None
    assert fit_trend([1, 1, 1, 1], [1, 2, 3, 4]).slope == 0


def test_a_long_series_keeps_its_beginning_its_end_and_an_even_spread_between():
    series = Thinned(16)
    for number in range(1_000):
        series.append(number)
        assert len(series) <= 16
    assert series.recent == list(range(992, 1_000))
    assert series.old == list(range(0, 992, 128))
    assert list(series) == series.old + series.recent
    assert series.even == series.old


# ---------------------------------------------------------------------------------------------------- real processes

WORKER = """
import os, sys
import numpy as np
from tamis.memory import process
from tamis.memory.monitor import held_bytes

rng, kept = np.random.default_rng(1), []
for shard in range(35):
    for _ in range(20):
        block = np.ones(int(rng.integers(1_000, 400_000)))
    if sys.argv[1] == "leaks":
        kept.append(np.ones(250_000))
    del block
    process.trim()
    print(held_bytes(os.getpid()), flush=True)
"""


@pytest.mark.parametrize("behaviour", ["leaks", "frees"])
def test_a_leaking_process_is_distinguished_from_one_that_does_not_leak(behaviour):
    done = subprocess.run([sys.executable, "-c", WORKER, behaviour], capture_output=True, text=True, check=True)
    detector = LeakDetector()
    found = [detector.add(0, shard, int(line)) for shard, line in enumerate(done.stdout.split())]
    leaks = [leak for leak in found if leak]
    if behaviour == "frees":
        assert not leaks
    else:
        (leak,) = leaks
        assert leak.bytes_per_shard == pytest.approx(2_000_000, rel=0.2)
