"""Segments, and maps that change sound."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tamis.audio.decode import recordings, waveforms
from tamis.audio.edit import AudioConvert, AudioInfo, AudioMono, AudioNormalize, AudioResample, AudioTrim
from tamis.audio.files import encoded
from tamis.audio.segment import AudioSlice, AudioSplit, AudioWindows, TranscriptSegments
from tamis.audio.signal import signals
from tamis.batch import Batch
from tamis.errors import AudioError, MediaError, ParameterError
from tests.audio.sounds import batch_in, batch_of, silence, sound, tone

TALK = np.concatenate([silence(1), tone(2), silence(1), tone(1.5), silence(0.2), tone(1), silence(2)], axis=1)


@pytest.fixture
def talk(tmp_path) -> Batch:
    (tmp_path / "talk.flac").write_bytes(sound(TALK, 16_000, "flac"))
    return batch_in(tmp_path, "talk.flac")


def expanded(step, batch):
    table, parents = step.expand(batch)
    return Batch(table, batch.origin.select(parents), access=batch.access)


def test_windows_refer_to_their_recording(talk):
    made = expanded(AudioWindows(window_s=4, step_s=3), talk)
    assert [each["path"] for each in made["audio"].to_pylist()] == [
        "talk.flac#t=0,4", "talk.flac#t=3,7", "talk.flac#t=6,8.7",
    ]  # fmt: skip
    assert made["begin"].to_pylist() == [0, 3, 6]
    again = expanded(AudioWindows(window_s=1.5), made.select(slice(1, 2)))
    assert again["begin"].to_pylist() == [3, 4.5, 6]
    assert again["audio"][2]["path"].as_py() == "talk.flac#t=6,7"
    np.testing.assert_array_equal(waveforms(again, "audio")[1], waveforms(talk, "audio")[0][72_000:96_000])


def test_silences_split_a_recording(talk):
    made = expanded(AudioSplit(pad_s=0), talk)
    np.testing.assert_allclose(made["begin"].to_pylist(), [1, 4], atol=0.021)
    np.testing.assert_allclose(made["duration"].to_pylist(), [2, 2.7], atol=0.041)
    joined = expanded(AudioSplit(pad_s=0.1, join=True), talk)
    np.testing.assert_allclose(joined["duration"].to_pylist(), [5.9], atol=0.05)
    short = expanded(AudioSplit(pad_s=0, max_s=2.2), talk)
    assert max(short["duration"].to_pylist()) <= 2.2
    np.testing.assert_allclose(short["begin"].to_pylist()[-1], 5.6, atol=0.15)  # in the pause of 0.2 s
    assert len(expanded(AudioSplit(), batch_of(sound(silence(3))))) == 0


def test_rows_with_bytes_get_segments_with_bytes():
    batch = batch_of(sound(TALK))
    made = expanded(AudioWindows(window_s=4), batch)
    assert [len(wave) for wave in waveforms(made, "audio")] == [64_000, 64_000, 11_200]
    np.testing.assert_array_equal(waveforms(made, "audio")[1], waveforms(batch, "audio")[0][64_000:128_000])


def test_the_sound_of_a_video_is_marked(tmp_path):
    (tmp_path / "a.mp4").write_bytes(sound(tone(3, 44_100), 44_100, "mp4"))
    made = expanded(AudioWindows(window_s=2), batch_in(tmp_path, "a.mp4"))
    assert made["audio"][0]["path"].as_py() == "a.mp4#t=0,2&track=audio"
    assert len(waveforms(made, "audio")[0]) == 32_000


def test_a_transcript_gives_segments(talk):
    times = [
        {"start": 1.0, "end": 3.0, "text": "good"},
        {"start": 4.0, "end": 5.5, "text": "morning"},
        {"start": 5.7, "end": 8.75, "text": "all"},
    ]
    batch = talk.with_columns({"segments": pa.array([times])})
    made = expanded(TranscriptSegments(), batch)
    assert made["text"].to_pylist() == ["good", "morning", "all"]
    assert made["duration"].to_pylist() == [2.0, 1.5, 3.0]  # the last one is rounded beyond the end
    assert expanded(TranscriptSegments(join_s=5), batch)["text"].to_pylist() == ["good morning", "all"]
    late = talk.with_columns({"segments": pa.array([[{"start": 8.0, "end": 11.0, "text": "?"}]])})
    with pytest.raises(AudioError, match="too short"):
        TranscriptSegments().expand(late)


def test_slices_are_checked(talk):
    def sliced(offset, duration, **options):
        columns = {"offset": pa.array([offset], pa.float64()), "duration": pa.array([duration], pa.float64())}
        return AudioSlice(**options).apply(talk.with_columns(columns))["audio"][0]["path"].as_py()

    assert sliced(1.0, 2.0) == "talk.flac#t=1,3"
    assert sliced(None, 2.0) == "talk.flac#t=0,2"
    assert sliced(7.0, None) == "talk.flac#t=7,8.7"
    assert sliced(None, None) == sliced(0.0, 8.7) == "talk.flac"
    assert sliced(100.0, 5.0, verify=False) == "talk.flac#t=100,105"
    with pytest.raises(AudioError, match="a segment begins at 100 s"):
        sliced(100.0, 5.0)
    with pytest.raises(MediaError, match=r"offset -1.0 and duration 2.0 are not a part"):
        sliced(-1.0, 2.0)
    with pytest.raises(ParameterError, match="cannot split"):
        AudioSplit(silence_s=0).check()
    with pytest.raises(ParameterError, match="are no windows"):
        AudioWindows(window_s=0).check()


def test_maps_change_only_what_they_must():
    wave = sound(tone(1, 44_100, 2), 44_100)
    batch = batch_of(wave, sound(tone(1), 16_000, "flac"), None)

    def after(step):
        made = batch.with_columns(step.apply(batch))
        kept = [value is not None and value["bytes"] for value in made["audio"].to_pylist()]
        infos = [
            None if each is None else (each.info.rate, each.info.channels, each.info.codec)
            for each in recordings(made, "audio")
        ]
        return infos, [
            data == value
            for data, value in zip(kept, [v and v["bytes"] for v in batch["audio"].to_pylist()], strict=True)
        ]

    assert after(AudioResample())[0] == [(16_000, 2, "flac"), (16_000, 1, "flac"), None]
    assert after(AudioResample())[1][1]
    assert after(AudioMono())[0] == [(44_100, 1, "flac"), (16_000, 1, "flac"), None]
    assert after(AudioMono())[1][1]
    assert after(AudioConvert(format="wav"))[0] == [(44_100, 2, "pcm_s16le"), (16_000, 1, "pcm_s16le"), None]
    assert after(AudioConvert(format="wav"))[1][0]
    assert after(AudioConvert(format="opus", mono=True))[0] == [(48_000, 1, "opus"), (48_000, 1, "opus"), None]
    info = AudioInfo().apply(batch)
    assert [column.to_pylist()[:2] for column in info.values()] == [
        [1.0, 1.0], [44_100, 16_000], [2, 1], ["pcm_s16le", "flac"], [16, 16],
    ]  # fmt: skip


@pytest.mark.parametrize(("format_", "rate"), [("mp3", 96_000), ("mp3", 4_000), ("opus", 96_000), ("mp3", 22_050)])
def test_a_format_without_the_sample_rate_gets_another_one(format_, rate):
    batch = batch_of(sound(tone(1, rate), rate))
    made = recordings(batch.with_columns(AudioConvert(format=format_).apply(batch)), "audio")[0]
    assert made.info.rate == (rate if rate == 22_050 else 48_000)
    assert made.info.duration == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize(("format_", "channels"), [("mp3", 6), ("flac", 9), ("opus", 9), ("wav", 9)])
def test_more_channels_than_a_format_has_are_an_error(format_, channels):
    with pytest.raises(AudioError, match=f"{format_} has at most . channels, and it has {channels}"):
        encoded(tone(1, channels=channels), 16_000, format_)


def test_loudness_is_normalized():
    batch = batch_of(sound(tone(2, level=0.01), bits=32), sound(silence(1)), sound(tone(2, level=0.9), bits=32))
    made = batch.with_columns(AudioNormalize(loudness=-20).apply(batch))
    first, silent, last = signals(made, "audio")
    assert first.loudness == pytest.approx(-20, abs=0.1)
    assert last.loudness == pytest.approx(-20, abs=0.1)
    assert silent.peak == 0
    loud = batch.with_columns(AudioNormalize(loudness=0).apply(batch))
    assert signals(loud, "audio")[0].peak == pytest.approx(10 ** (-1 / 20), abs=0.001)


def test_silence_is_trimmed(talk):
    path = AudioTrim(pad_s=0).apply(talk)["audio"][0]["path"].as_py()
    begin, end = (float(part) for part in path.partition("#t=")[2].split(","))
    assert (begin, end) == (pytest.approx(1, abs=0.021), pytest.approx(6.7, abs=0.021))
    quiet = batch_of(sound(silence(1)), sound(tone(1)))
    assert AudioTrim().apply(quiet)["audio"].to_pylist() == quiet["audio"].to_pylist()
