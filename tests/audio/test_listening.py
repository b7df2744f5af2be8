"""Networks that listen return what the packages they come from return, and steps use them row by row."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tamis import AudioReader, ParquetWriter, Pipeline, Rows
from tamis.audio import (
    RttmWriter,
    SoundKind,
    SpeakerCount,
    SpeakerEmbed,
    SpeakerSimilarity,
    SpeakerTurns,
    SpeechQuality,
    SpeechSegments,
    SpeechShare,
)
from tamis.audio.decode import RATE
from tamis.audio.files import encoded
from tamis.audio.rttm import read_rttm
from tamis.audio.speech import Speeches
from tamis.audio.voices import cluster
from tamis.batch import Batch
from tamis.context import Context
from tamis.errors import ColumnError, ParameterError, SourceError
from tamis.models.dnsmos import Graphs, Rating
from tamis.models.files import AUDIO_DEFAULTS, ModelError, find
from tamis.models.onnx import open_session
from tamis.models.silero import Voice
from tamis.models.sounds import SoundNetwork
from tamis.models.speakers import SpeakerEncoder
from tests.audio.sounds import silence
from tests.audio.speech import FILE, golden, seconds, speech


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    torch.set_num_threads(1)  # threads that wait for each other take longer than such networks


def model(name):
    return find(name, (), AUDIO_DEFAULTS)


def batch_of(*waves: np.ndarray) -> Batch:
    rows = [{"bytes": encoded(wave.reshape(1, -1), RATE, "flac"), "path": f"{n}.flac"} for n, wave in enumerate(waves)]
    return Batch(pa.table({"audio": pa.array(rows, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))}))


def probabilities(*blocks):
    voice = Voice(open_session(model("silero")))
    return np.concatenate([*map(voice.feed, blocks), voice.finish()])


def test_probabilities_of_speech_equal_those_of_silero_vad_for_any_blocks():
    whole = probabilities(speech())
    assert whole[::50].tolist() == pytest.approx(golden()["probabilities"], abs=1e-4)
    blocks = np.split(speech(), [1, 511, 512, 100_000, 100_300, 600_001])
    assert np.array_equal(probabilities(*blocks), whole)


@pytest.mark.parametrize("case", range(12))
def test_segments_of_probabilities_equal_those_of_silero_vad(case):
    settings, values, expected = golden()["random"][case]
    ms, s = RATE / 1000, RATE
    speeches = Speeches(
        settings["threshold"], settings["min_speech_duration_ms"] * ms, settings["max_speech_duration_s"] * s,
        settings["min_silence_duration_ms"] * ms, settings["speech_pad_ms"] * ms,
    )  # fmt: skip
    found = [part for block in np.array_split(np.array(values), 7) for part in speeches.feed(block)]
    found += speeches.finish(400 * 512 - 100)
    assert [list(part) for part in found] == expected


def test_speech_segments_refer_to_the_recording(tmp_path):
    (tmp_path / "talk.wav").write_bytes(FILE.read_bytes())
    out = tmp_path / "out"
    Pipeline(AudioReader(str(tmp_path / "*.wav")), SpeechSegments(), ParquetWriter(out)).run(workers=1)
    done = pq.read_table(out)
    expected = golden()["segments"]["defaults"]
    assert [round(begin * RATE) for begin in done["begin"].to_pylist()] == [begin for begin, _ in expected]
    assert done["duration"].to_pylist() == pytest.approx([(end - begin) / RATE for begin, end in expected])
    assert [row["bytes"] for row in done["audio"].to_pylist()] == [None] * len(expected)
    assert done["audio"].to_pylist()[0]["path"].endswith("talk.wav#t=0.916,8.544")


def test_speech_is_found_between_planted_silences():
    quiet = silence(3)[0]
    wave = np.concatenate([quiet, seconds(1, 8), quiet, seconds(21, 28.5), quiet])
    table, parents = SpeechSegments().open(Context()).expand(batch_of(wave, quiet))
    assert set(parents.tolist()) == {0}
    begins, ends = np.array(table["begin"]), np.array(table["begin"]) + np.array(table["duration"])
    assert [begins.min(), ends.max()] == pytest.approx([3, 20.5], abs=0.6)
    assert not any(begin < 11 and end > 12.5 for begin, end in zip(begins, ends, strict=True))
    shares = SpeechShare().open(Context()).score(batch_of(wave, quiet))["speech_share"].to_pylist()
    assert shares == pytest.approx([13 / 23.5, 0], abs=0.1)


def test_segments_of_rows_with_bytes_are_cut_out():
    table, _ = SpeechSegments(max_s=4).open(Context()).expand(batch_of(seconds(0, 9)))
    assert all(row["bytes"].startswith(b"fLaC") for row in table["audio"].to_pylist())
    assert max(table["duration"].to_pylist()) <= 4.001


def test_bounds_of_segments_are_checked():
    with pytest.raises(ParameterError, match="min_s"):
        SpeechSegments(min_s=5, max_s=2).check()
    with pytest.raises(ModelError, match="no-such-model"):
        SpeechSegments(model="no-such-model").check()


@pytest.mark.parametrize(("name", "length"), [("12 s", 12), ("4 s", 4), ("9.3 s", 9.3)])
def test_quality_of_speech_equals_that_of_speechmos(name, length):
    rating = Rating(Graphs(model("dnsmos")))
    for block in np.array_split(seconds(0, length), 5):
        rating.feed(block)
    found = rating.finish()
    assert [found.signal, found.background, found.overall, found.p808] == pytest.approx(
        golden()["dnsmos"][name], abs=2e-4
    )


def test_noise_lowers_the_quality_and_drops_the_row():
    clean = seconds(1, 10.5)
    noisy = clean + np.random.default_rng(0).normal(0, 0.05, len(clean)).astype(np.float32)
    scores = SpeechQuality().open(Context()).score(batch_of(clean, noisy))
    first, second = scores["dnsmos_ovrl"].to_pylist()
    assert first > 3 > 2 > second
    background = scores["dnsmos_bak"].to_pylist()
    assert background[0] > background[1] + 1


def test_kinds_of_sound_equal_those_of_ina_speech_segmenter():
    time = np.arange(RATE * 5) / RATE
    chord = sum(
        np.sin(2 * np.pi * h * time) * (0.1 + 0.05 * np.sin(2 * np.pi * 2 * time)) for h in (220, 277, 330, 440)
    )
    noise = np.random.default_rng(0).normal(0, 0.1, RATE * 4)
    wave = np.concatenate([seconds(1, 7), noise, np.zeros(RATE), chord]).astype(np.float32)
    labels = SoundNetwork(model("ina-smn")).labels(wave)
    expected = np.repeat(*zip(*golden()["sounds"], strict=True))
    assert len(labels) == len(expected)
    assert (labels == expected).mean() > 0.99
    found = SoundKind().open(Context()).score(batch_of(seconds(1, 7), noise.astype(np.float32)))
    assert found["sound"].to_pylist() == ["speech", "noise"]


def test_vectors_of_voices_equal_those_of_resemblyzer():
    encoder = SpeakerEncoder(model("ge2e"))
    one, two = encoder.embed(seconds(0, 7)), encoder.embed(seconds(20, 23))
    assert one[:16].tolist() == pytest.approx(golden()["voices"]["first"], abs=1e-4)
    assert float(one @ two) == pytest.approx(golden()["voices"]["similarity"], abs=1e-4)


def other_voice(begin, end):
    """The same words by a higher voice: the samples of 1.35 seconds are played in one."""
    wave = seconds(begin, end)
    places = np.arange(0, len(wave) - 1, 1.35)
    return np.interp(places, np.arange(len(wave)), wave).astype(np.float32)


def test_two_voices_are_distinguished():
    one, same, other = seconds(1, 8), seconds(21, 28), other_voice(29, 41)
    both = np.concatenate([one, silence(0.6)[0], other])
    counts = SpeakerCount().open(Context()).score(batch_of(one, both))
    assert counts["speakers"].to_pylist() == [1, 2]
    table, _ = SpeakerTurns().open(Context()).expand(batch_of(both))
    assert set(table["speaker"].to_pylist()) == {"speaker_0", "speaker_1"}
    pairs = batch_of(one, one).table.append_column("reference", batch_of(same, other).table["audio"])
    near, far = SpeakerSimilarity().open(Context()).score(Batch(pairs))["speaker_similarity"].to_pylist()
    assert near > 0.8 > far
    vector = SpeakerEmbed().open(Context()).apply(batch_of(one))["embedding"]
    assert np.linalg.norm(vector.to_pylist()[0]) == pytest.approx(1, abs=1e-5)


def test_clusters_are_those_of_average_similarity():
    rng = np.random.default_rng(3)
    found = rng.normal(size=(40, 8)).astype(np.float32)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    groups = [[row] for row in range(40)]
    table = found @ found.T
    while True:
        best, pair = -2.0, None
        for a in range(len(groups)):
            for b in range(a + 1, len(groups)):
                value = table[np.ix_(groups[a], groups[b])].mean()
                if value > best + 1e-7:
                    best, pair = value, (a, b)
        if best < 0.3:
            break
        groups[pair[0]] += groups.pop(pair[1])
    labels = cluster(found, np.ones(40), 0.3)
    assert sorted(map(sorted, groups)) == sorted(np.flatnonzero(labels == each).tolist() for each in set(labels))


def test_turns_are_read_from_rttm_and_written_to_it(tmp_path):
    (tmp_path / "talk.wav").write_bytes(FILE.read_bytes())
    lines = "SPEAKER talk 1 1.000 2.500 <NA> <NA> anna <NA> <NA>\nSPEAKER talk 1 4.000 3.000 <NA> <NA> bert <NA> <NA>\n"
    (tmp_path / "talk.rttm").write_text("LEXEME x\n" + lines)
    steps = [AudioReader(str(tmp_path / "*.wav")), SpeakerTurns(rttm=str(tmp_path))]
    report = Pipeline(*steps, RttmWriter(str(tmp_path / "out"))).run(workers=1)
    assert report.kept == 2
    (written,) = (tmp_path / "out").glob("*.rttm")
    assert written.read_text() == lines
    assert [turn.speaker for turn in read_rttm(written)["talk"]] == ["anna", "bert"]
    (tmp_path / "bad.rttm").write_text("SPEAKER talk 1 x\n")
    with pytest.raises(SourceError, match="line 1"):
        SpeakerTurns(rttm=str(tmp_path)).check()
    with pytest.raises(ColumnError, match="reads column `begin`"):
        Pipeline(AudioReader(str(tmp_path / "*.wav")), RttmWriter(str(tmp_path / "none"))).run(executor="inline")


def test_recordings_with_spaces_in_their_names_find_their_turns_again(tmp_path):
    names = ["my talk", "my_talk", "my%20talk", "100% \u3000sure"]
    (tmp_path / "in").mkdir()
    for name in names:
        (tmp_path / f"in/{name}.wav").write_bytes(encoded(silence(4), RATE, "wav"))
    turns = [
        {
            "audio": {"bytes": None, "path": str(tmp_path / f"in/{name}.wav")},
            "begin": 1.0,
            "duration": 2.0,
            "speaker": str(number),
        }
        for number, name in enumerate(names)
    ]
    Pipeline(Rows(turns), RttmWriter(tmp_path / "turns")).run(executor="inline")
    (written,) = (tmp_path / "turns").glob("*.rttm")
    assert list(read_rttm(written)) == ["my%20talk", "my_talk", "my%2520talk", "100%%20%E3%80%80sure"]
    reader = AudioReader(str(tmp_path / "in"))
    found = Pipeline(reader, SpeakerTurns(rttm=tmp_path / "turns")).collect(executor="inline").to_pylist()
    assert {(Path(row["path"]).stem, row["speaker"]) for row in found} == {
        (name, str(number)) for number, name in enumerate(names)
    }


def test_a_row_that_cannot_be_decoded_fails_alone(tmp_path):
    good = encoded(seconds(1, 3).reshape(1, -1), RATE, "flac")
    rows = [{"audio": {"bytes": data, "path": "a.flac"}} for data in (good, good[:200], b"no sound", good)]
    report = Pipeline(Rows(rows), SpeechShare()).run(workers=1)
    assert (report.kept, report.failed) == (2, 2)
