"""Decoding: every format, segments, streaming, and files that are damaged."""

from __future__ import annotations

import io
import pickle
import tarfile
import tracemalloc
import zipfile

import numpy as np
import pytest

from tamis.audio import decode, files
from tamis.audio.cut import cut
from tamis.audio.decode import blocks, recordings, waveforms
from tamis.audio.files import as_float, read_blocks, read_info
from tamis.batch import Batch
from tamis.errors import AudioError, MediaError
from tamis.media import media_items, media_name, read_bytes
from tamis.segments import Segment, is_clip, segment_path, split_segment
from tests.audio.sounds import batch_in, batch_of, silence, sound, tone

FORMATS = {
    "wav": ("wav", 16_000, 1, {}),
    "wav of 8 bits": ("wav8", 8_000, 1, {}),
    "wav of 24 bits, 96 kHz, 8 channels": ("wav", 96_000, 8, {"bits": 24}),
    "wav of 32-bit floats": ("wav", 44_100, 2, {"bits": 32}),
    "flac": ("flac", 44_100, 2, {}),
    "flac of 24 bits": ("flac", 48_000, 1, {"bits": 24}),
    "flac of 8 channels": ("flac", 48_000, 8, {}),
    "mp3": ("mp3", 44_100, 2, {}),
    "opus": ("opus", 48_000, 1, {}),
    "opus of 8 channels": ("opus", 48_000, 8, {}),
    "ogg vorbis": ("OGG:VORBIS", 44_100, 2, {}),
    "sph, as many corpora of speech have it": ("NIST:ULAW", 8_000, 2, {}),
    "m4a": ("m4a", 44_100, 2, {}),
    "aac": ("aac", 44_100, 1, {}),
    "the sound of a video": ("mp4", 44_100, 1, {}),
    "mp2 in an MPEG stream": ("mpeg/mp2", 48_000, 1, {}),
    "mp2 in a transport stream": ("mpegts/mp2", 48_000, 2, {}),
    "ADPCM, whose rate of bytes is not exact": ("wav/adpcm_ima_wav", 48_000, 1, {}),
    "TTA, whose packets are longer than a second": ("tta/tta", 48_000, 1, {}),
}


def all_of(data: bytes, begin: float = 0.0, end: float | None = None) -> np.ndarray:
    return as_float(np.concatenate([*read_blocks(io.BytesIO(data), begin, end)], axis=1))


class NotedFile(io.FileIO):
    """Adds up what is read."""

    num_bytes = 0

    def read(self, size: int | None = -1) -> bytes:
        found = super().read(-1 if size is None else size) or b""
        self.num_bytes += len(found)
        return found


def test_a_file_that_does_not_say_its_duration_is_counted_once(tmp_path):
    """A recording has as many rows as it has segments."""
    for seconds in (60, 30):
        data = sound(tone(seconds, 16_000, 1), 16_000, "aac")
        (tmp_path / "a.aac").write_bytes(data)
        found = []
        for _ in range(2):
            with NotedFile(tmp_path / "a.aac") as file:
                assert read_info(file).duration == pytest.approx(seconds, abs=0.2)
                found.append(file.num_bytes)
        assert found[0] > len(data) > 2 * found[1]


def item_of(batch: Batch):
    return media_items(batch, "audio")[0]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_decoded_and_its_segments_are_slices(name):
    kind, rate, channels, options = FORMATS[name]
    samples = tone(5, rate, channels)
    data = sound(samples, rate, kind, **options)
    info = read_info(io.BytesIO(data))
    assert (info.rate, info.channels) == (rate, channels)
    assert info.duration == pytest.approx(5, abs=0.06)
    whole = all_of(data)
    assert whole.shape[1] == pytest.approx(5 * rate, abs=0.06 * rate)
    # The same sound: it correlates, whatever the codec adds.
    overlap = min(whole.shape[1], samples.shape[1])
    # ADTS and MPEG streams have no field for the silence that the encoder put first.
    delay = {"aac": 1024, "mpeg/mp2": 481, "mpegts/mp2": 481}.get(kind, 0)
    ours, made = whole[0, delay:overlap], samples[0, : overlap - delay]
    assert np.corrcoef(ours, made)[0, 1] > 0.99
    for begin, end in [(2.25, 3.5), (1.01, 2.0), (3.3337, 4.77)]:
        part, same = all_of(data, begin, end), whole[:, round(begin * rate) : round(end * rate)]
        # AAC replaces noise by random numbers, which follow each other from the start, and mp2 is rounded by such.
        if kind in ("m4a", "aac", "mp4", "mpeg/mp2"):
            assert part.shape == same.shape
            assert np.corrcoef(part[0], same[0])[0, 1] > 0.99
            np.testing.assert_array_equal(part, all_of(data, begin, end))
        else:
            np.testing.assert_array_equal(part, same)


@pytest.mark.parametrize("channels", range(1, 9))
@pytest.mark.parametrize("kind", ["wav", "flac", "opus"])
def test_channels_keep_their_order_and_all_frequencies(kind, channels):
    levels = np.linspace(0.2, 1, channels)
    noise = np.random.default_rng(0).standard_normal((channels, 48_000)) * 0.1 * levels[:, None]
    decoded = all_of(sound(noise.astype(np.float32), 48_000, kind))[:, :48_000]
    assert len(decoded) == channels
    for band in (slice(100, 3_000), slice(12_000, 18_000)):
        strength = np.abs(np.fft.rfft(decoded))[:, band].mean(axis=1)
        assert strength / strength[0] == pytest.approx(levels / levels[0], rel=0.1)


def test_a_segment_of_floats_becomes_flac_of_24_bits_and_is_clipped():
    samples = tone(1, level=3.0)
    made = all_of(cut(item_of(batch_of(sound(samples, bits=32)))))
    np.testing.assert_allclose(made, samples.clip(-1, 1), atol=2**-22)


def test_what_a_file_says_about_itself_needs_no_decoding(monkeypatch):
    monkeypatch.setattr(files, "_samples", None)
    data = sound(tone(2, 48_000, 2), 48_000, "flac", bits=24)
    info = read_info(io.BytesIO(data))
    assert (info.duration, info.rate, info.channels, info.codec, info.bits) == (2.0, 48_000, 2, "flac", 24)
    assert not info.has_video
    assert read_info(io.BytesIO(sound(tone(1, 44_100), 44_100, "mp4"))).has_video


def test_operators_share_one_decode(monkeypatch):
    calls = []
    read = files.read_blocks
    monkeypatch.setattr(files, "read_blocks", lambda *args: calls.append(args) or read(*args))
    batch = batch_of(sound(tone(1, 44_100, 2), 44_100), None, sound(tone(2), 16_000))
    first = waveforms(batch, "audio")
    assert [None if wave is None else len(wave) for wave in first] == [16_000, None, 32_000]
    assert waveforms(batch, "audio")[0] is first[0]
    assert len(waveforms(batch, "audio", 24_000)[0]) == 24_000
    assert sum(block.shape[1] for block in recordings(batch, "audio")[0].channels()) == 44_100
    assert len(waveforms(batch.select(np.array([False, False, True])), "audio")[0]) == 32_000
    assert len(calls) == 2


def test_a_batch_holds_a_bounded_number_of_samples(monkeypatch):
    monkeypatch.setattr(decode, "HELD_BYTES", 200_000)
    batch = batch_of(*[sound(tone(1), 16_000)] * 5)
    waves = [*waveforms(batch, "audio")]
    again = [*waveforms(batch, "audio")]
    held = sum(recording._native is not None or bool(recording._waves) for recording in recordings(batch, "audio"))
    assert held == 3
    for wave, same in zip(waves, again, strict=True):
        np.testing.assert_array_equal(wave, same)


def test_blocks_are_those_of_the_waveform_for_any_size():
    batch = batch_of(sound(tone(3, 44_100, 2), 44_100, "mp3"))
    whole = waveforms(batch, "audio")[0]
    for seconds in (0.1, 0.77, 10):
        pieces = [*blocks(item_of(batch), seconds=seconds)]
        assert {len(piece) for piece in pieces[:-1]} <= {round(16_000 * seconds)}
        np.testing.assert_array_equal(np.concatenate(pieces), whole)


def test_a_long_recording_is_streamed(tmp_path):
    path = tmp_path / "long.flac"
    with path.open("wb") as target, files.Encoder(target, 8_000, 1, "flac") as encoder:
        for _ in range(30):
            encoder.write(silence(60, 8_000))
    batch = batch_in(tmp_path, str(path))
    with pytest.raises(AudioError, match="it has 1,800 s, and steps that need all samples at a time take 600 s"):
        waveforms(batch, "audio")[0]
    tracemalloc.start()
    count = sum(len(block) for block in recordings(batch, "audio")[0].blocks(16_000, 10))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 1_800 * 16_000
    assert peak < 5_000_000


# ------------------------------------------------------------------------------------------------------------ segments


def test_a_segment_is_a_reference_into_its_recording(tmp_path):
    data = sound(tone(5), 16_000, "flac")
    (tmp_path / "talk.flac").write_bytes(data)
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / "talk.flac", "talks/1.flac")
    with tarfile.open(tmp_path / "a.tar") as archive:
        start = archive.getmember("talks/1.flac").offset_data
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(tmp_path / "talk.flac", "1.flac")
    wholes = ["talk.flac", "a.tar#talks/1.flac", "a.zip#1.flac", f"a.tar@{start}+{len(data)}#1.flac"]
    paths = [segment_path(path, 2.25, 3.5) for path in wholes]
    batch = batch_in(tmp_path, *paths)
    expected = all_of(data)[0, 36_000:56_000]
    for wave in waveforms(batch, "audio"):
        np.testing.assert_array_equal(wave, expected)
    # Where bytes are needed, it becomes a file of its own, without loss.
    for made in read_bytes(batch, "audio"):
        np.testing.assert_array_equal(all_of(made)[0], expected)
    assert [recording.duration for recording in recordings(batch, "audio")] == [1.25] * 4


def test_segments_of_segments_count_from_their_begin():
    inner = segment_path(segment_path("a.mp4", 100, 200, "audio"), 12.5, 20)
    assert inner == "a.mp4#t=112.5,120&track=audio"
    assert split_segment(inner) == ("a.mp4", Segment(112.5, 120.0, "audio"))
    with pytest.raises(MediaError, match="lies outside of"):
        segment_path("a.mp3#t=1,2", 0.5, 3)
    for begin, end in [(-1, 2), (2, 2), (3, 2), (float("nan"), 1)]:
        with pytest.raises(MediaError, match="is not one"):
            segment_path("a.mp3", begin, end)
    assert split_segment("a.mp3#t=3,2") == ("a.mp3#t=3,2", None)


def test_a_segment_may_have_some_of_the_channels(tmp_path):
    data = sound(np.concatenate([tone(5, hertz=hertz) for hertz in (200, 500, 900)]))
    (tmp_path / "call.wav").write_bytes(data)
    paths = [segment_path("call.wav", 1, 2, channels=[1]), segment_path("call.wav#t=1,4&channel=0,2", 1, 2)]
    assert paths == ["call.wav#t=1,2&channel=1", "call.wav#t=2,3&channel=0,2"]
    batch = batch_in(tmp_path, *paths)
    for recording, expected, made in zip(
        recordings(batch, "audio"),
        (all_of(data)[1:2, 16_000:32_000], all_of(data)[::2, 32_000:48_000]),
        read_bytes(batch, "audio"),
        strict=True,
    ):
        assert recording.info.channels == len(expected)
        np.testing.assert_array_equal(np.concatenate([*recording.channels()], axis=1), expected)
        np.testing.assert_allclose(recording.waveform(), expected.mean(axis=0), atol=1e-7)
        np.testing.assert_array_equal(all_of(made), expected)
    assert media_name(paths[1]) == "call_2-3_ch0-2.flac"
    assert not is_clip("call.mp4", split_segment("call.mp4#t=1,2&channel=1")[1])
    with pytest.raises(AudioError, match="it has no channel 3: it has 3, counted from 0"):
        _ = recordings(batch_in(tmp_path, "call.wav#t=1,2&channel=3"), "audio")[0].info


def test_a_segment_without_a_sample_is_empty(tmp_path):
    (tmp_path / "a.wav").write_bytes(sound(tone(5)))
    with pytest.raises(AudioError, match="it has no samples"):
        recordings(batch_in(tmp_path, "a.wav#t=2,2.00001"), "audio")[0].waveform()


@pytest.mark.parametrize("times", ["6,7", "4,5.5", "5"])
def test_a_segment_past_the_end_is_an_error(tmp_path, times):
    (tmp_path / "a.wav").write_bytes(sound(tone(5)))
    batch = batch_in(tmp_path, f"a.wav#t={times}")
    with pytest.raises(AudioError, match=r"too short: a segment (begins|ends) at .* s, and it ends at 5.000 s"):
        waveforms(batch, "audio")[0]
    with pytest.raises(AudioError, match="too short"):
        _ = recordings(batch, "audio")[0].duration


def test_rounded_durations_reach_a_little_beyond_the_end(tmp_path):
    (tmp_path / "a.wav").write_bytes(sound(tone(5)))
    batch = batch_in(tmp_path, "a.wav#t=4,5.05")
    assert len(waveforms(batch, "audio")[0]) == 16_000
    assert recordings(batch, "audio")[0].duration == 1.0


def test_a_segment_of_many_bits_is_cut_without_loss(tmp_path):
    data = sound(tone(3, 44_100, 2), 44_100, "flac", bits=24)
    (tmp_path / "a.flac").write_bytes(data)
    batch = batch_in(tmp_path, "a.flac#t=1,2")
    made = cut(item_of(batch))
    assert read_info(io.BytesIO(made)).bits == 24
    np.testing.assert_array_equal(all_of(made), all_of(data)[:, 44_100:88_200])


# ------------------------------------------------------------------------------------------------------- damaged files


def with_nan() -> bytes:
    samples = tone(1)
    samples[0, 100] = np.nan
    return sound(samples, 16_000, "wav", bits=32)


DAMAGED = {
    "no bytes": (lambda: b"", "empty"),
    "no samples": (lambda: sound(silence(0)), "empty"),
    "text": (lambda: b"this is not a sound at all\n" * 100, "not a sound"),
    "a playlist": (
        lambda: b"#EXTM3U\n#EXT-X-VERSION:3\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n",
        "not a sound",
    ),
    "a concatenation": (lambda: b"ffconcat version 1.0\nfile /etc/passwd\n", "not a sound"),
    "half an mp3": (lambda: sound(tone(8), 16_000, "mp3")[:10_000], "truncated"),
    "half a wav": (lambda: sound(tone(8))[:100_000], "truncated"),
    "half a flac": (lambda: sound(tone(8), 16_000, "flac")[:60_000], "truncated"),
    "half an m4a": (lambda: sound(tone(8), 16_000, "m4a")[:10_000], "not a sound"),
    "not a number": (with_nan, "invalid"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_say_what_is_wrong(name):
    make, problem = DAMAGED[name]
    batch = batch_of(make(), sound(tone(1)))
    found = waveforms(batch, "audio")
    with pytest.raises(AudioError) as caught:
        found[0]
    assert caught.value.problem == problem
    assert pickle.loads(pickle.dumps(caught.value)).problem == problem
    assert len(found[1]) == 16_000


def test_the_extension_does_not_matter():
    batch = batch_of(sound(tone(1), 16_000, "flac"))  # its name has no extension
    assert len(waveforms(batch, "audio")[0]) == 16_000


def test_a_reference_to_nothing_is_an_error(tmp_path):
    batch = batch_in(tmp_path, "gone.wav")
    with pytest.raises(MediaError, match=r"`gone.wav` cannot be read: No such file"):
        waveforms(batch, "audio")[0]
    outside = batch_in(tmp_path, "/etc/hosts#t=1,2")
    with pytest.raises(MediaError, match="outside the folder"):
        waveforms(outside, "audio")[0]
