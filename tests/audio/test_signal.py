"""Measures of the signal, against other implementations and against sounds whose values are known."""

from __future__ import annotations

import io
import warnings

import av
import numpy as np
import pytest

from tamis.audio import files
from tamis.audio.filters import (
    AudioBandwidth,
    AudioChannels,
    AudioClipping,
    AudioDecodable,
    AudioDuration,
    AudioLoudness,
    AudioNoise,
    AudioSampleRate,
    AudioSilence,
)
from tamis.audio.signal import signals
from tamis.executors.steps import apply_step
from tests.audio.sounds import batch_of, silence, sound, tone


def signal_of(samples: np.ndarray, rate: int = 16_000, **options):
    return signals(batch_of(sound(samples, rate, "wav", **options)), "audio")[0]


def by_ffmpeg(samples: np.ndarray, rate: int) -> float:
    """The integrated loudness that the filter `ebur128` of FFmpeg reports."""
    graph = av.filter.Graph()
    layout = {1: "mono", 2: "stereo", 6: "5.1"}[len(samples)]
    source = graph.add_abuffer(sample_rate=rate, format="fltp", layout=layout, time_base=f"1/{rate}")
    meter = graph.add("ebur128", "metadata=1:framelog=quiet")
    sink = graph.add("abuffersink")
    source.link_to(meter)
    meter.link_to(sink)
    graph.configure()
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples), "fltp", layout)
    frame.sample_rate, frame.pts = rate, 0
    graph.push(frame)
    graph.push(None)
    loudness = -70.0
    while True:
        try:
            found = graph.pull()
        except (av.error.EOFError, av.error.BlockingIOError):
            return loudness
        loudness = float(found.metadata.get("lavfi.r128.I", loudness))


@pytest.mark.parametrize(("rate", "channels"), [(16_000, 1), (44_100, 2), (48_000, 6), (22_050, 1)])
def test_loudness_is_that_of_other_implementations(rate, channels):
    import pyloudnorm

    samples = np.concatenate(
        [tone(3, rate, channels, level=0.5), silence(2, rate, channels), tone(3, rate, channels, 900, 0.05)], 1
    )
    ours = signal_of(samples, rate, bits=32).loudness
    if channels <= 5:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = pyloudnorm.Meter(rate, filter_class="DeMan").integrated_loudness(samples.T.astype(np.float64))
        assert ours == pytest.approx(theirs, abs=0.05)
    assert ours == pytest.approx(by_ffmpeg(samples, rate), abs=0.1)


def test_the_reference_tone_of_the_standard_has_its_loudness():
    time = np.arange(48_000 * 5) / 48_000
    wave = np.sin(2 * np.pi * 997 * time).astype(
        np.float32
    )  # ITU-R BS.1770-4: 0 dB FS at 997 Hz in one channel is -3.01
    assert signal_of(wave[None], 48_000, bits=32).loudness == pytest.approx(-3.01, abs=0.01)
    assert signal_of(silence(2)).loudness == -70.0
    assert signal_of(silence(0.05)).loudness == -70.0


def test_clipping_silence_noise_and_bandwidth():
    half = np.concatenate([tone(2), silence(2)], axis=1)
    assert signal_of(half).silence(-50) == pytest.approx(0.5, abs=0.01)
    assert signal_of(tone(2, level=3.0).clip(-1, 1), bits=32).clipped > 0.5
    assert signal_of(tone(2)).clipped == 0
    noise = np.random.default_rng(0).standard_normal((1, 32_000)).astype(np.float32)
    steps = np.repeat([0.1, 0.001, 0.1, 0.001], 8_000)
    assert signal_of(noise * steps, bits=32).snr == pytest.approx(40, abs=2)
    assert signal_of(noise * 0.1, bits=32).bandwidth == pytest.approx(8_000, abs=100)
    narrow = files.as_float(np.concatenate([*files.read_blocks(io.BytesIO(sound(noise * 0.1, 8_000)))], 1))
    from tamis.audio.decode import resampled

    assert 3_500 < signal_of(resampled(narrow[0], 8_000, 16_000)[None]).bandwidth < 4_100
    assert signal_of(silence(1)).bandwidth == 0


def test_a_segment_is_measured_alone_and_blocks_do_not_matter(monkeypatch):
    from tamis.audio import signal

    samples = np.concatenate([tone(3, 11_025), silence(3, 11_025)], axis=1)
    whole = signal_of(samples, 11_025)
    monkeypatch.setattr(signal, "_BLOCK_S", 0.512)
    again = signal_of(samples, 11_025)
    np.testing.assert_allclose(again.energies, whole.energies, rtol=1e-12)
    np.testing.assert_array_equal(again.levels, whole.levels)


def test_filters_say_why():
    batch = batch_of(
        sound(tone(1)),
        sound(tone(1, 8_000), 8_000),
        sound(tone(1, 16_000, 4)),
        sound(silence(1)),
        sound(tone(1, level=3.0).clip(-1, 1)),
        sound(tone(0.05)),
        b"no sound",
        None,
    )
    reasons = {}
    for step in (
        AudioDecodable(),
        AudioDuration(),
        AudioSampleRate(),
        AudioChannels(),
        AudioSilence(),
        AudioClipping(),
        AudioLoudness(min_loudness=-60),
        AudioBandwidth(min_bandwidth=100),
        AudioNoise(min_snr_db=-1),
    ):
        applied = apply_step(step, batch)
        reasons |= {reason: int(mask.sum()) for reason, mask in applied.verdicts if mask.any()}
        batch = applied.batch
    assert reasons == {
        "audio_problem not in fine": 2,
        "duration < 0.1": 1,
        "sample_rate < 16000": 1,
        "channels > 2": 1,
        "silence_share > 0.8": 1,
        "clipping > 0.001": 1,
    }
    assert len(batch) == 1


def test_all_filters_decode_once(monkeypatch):
    calls = []
    read = files.read_blocks
    monkeypatch.setattr(files, "read_blocks", lambda *args: calls.append(args) or read(*args))
    batch = batch_of(sound(tone(1)), sound(tone(2, 44_100, 2), 44_100, "mp3"))
    for step in (AudioDecodable(), AudioSilence(), AudioLoudness(), AudioBandwidth(), AudioNoise(), AudioClipping()):
        step.score(batch)
    from tamis.audio.decode import waveforms

    assert [len(wave) for wave in waveforms(batch, "audio")] == [16_000, 32_000]
    assert len(calls) == 2
