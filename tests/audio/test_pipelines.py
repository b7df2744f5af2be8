"""Pipelines over sound: damaged files, manifests, segments to files, budgets, any number of workers."""

from __future__ import annotations

import filecmp
import gc
import json
import struct
import tarfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tamis import (
    AudioReader,
    AudioWriter,
    FolderWriter,
    JsonlReader,
    ParquetWriter,
    Pipeline,
    ReadMedia,
    Rows,
    WebDatasetReader,
    WebDatasetWriter,
)
from tamis.audio import (
    AudioConvert,
    AudioDecodable,
    AudioDuration,
    AudioInfo,
    AudioLoudness,
    AudioResample,
    AudioSilence,
    AudioWindows,
    LhotseManifest,
    LhotseText,
    NemoManifest,
)
from tamis.audio.decode import waveforms
from tamis.batch import Batch
from tamis.errors import ColumnError, SinkError
from tamis.recipes.load import load_recipe
from tamis.registry import build_operator
from tamis.sources import references
from tests.audio.sounds import silence, sound, tone


def bursts(seconds: float, rate: int = 16_000) -> np.ndarray:
    """Noise that is loud for half a second and quiet for half a second, as speech is."""
    count = int(seconds * rate)
    loud = (np.arange(count) * 2 // rate) % 2 == 0
    noise = np.random.default_rng(1).standard_normal(count)
    return (noise * np.where(loud, 0.1, 0.001))[None].astype(np.float32)


GOOD = {
    "a.wav": lambda: sound(tone(1)),
    "b.flac": lambda: sound(tone(2, 44_100, 2), 44_100, "flac"),
    "c.mp3": lambda: sound(tone(1.5, 22_050), 22_050, "mp3"),
    "d.opus": lambda: sound(tone(1, 48_000), 48_000, "opus"),
    "e.m4a": lambda: sound(tone(1, 44_100), 44_100, "m4a"),
    "wrong.wav": lambda: sound(tone(1), 16_000, "flac"),
    "eight_bits.wav": lambda: sound(tone(1, 8_000), 8_000, "wav8"),
    "talk.wav": lambda: sound(bursts(3)),
    "talk.flac": lambda: sound(bursts(3, 44_100), 44_100, "flac"),
    "channels.wav": lambda: sound(tone(1, 96_000, 8), 96_000, "wav", bits=24),
}


def with_nan() -> bytes:
    samples = tone(1)
    samples[0, 100] = np.nan
    return sound(samples, bits=32)


BAD = {
    "truncated.mp3": lambda: sound(tone(8), 16_000, "mp3")[:10_000],
    "zero.wav": lambda: sound(silence(0)),
    "nan.wav": with_nan,
    "text.wav": lambda: b"not a sound",
    "nothing.flac": lambda: b"",
}


@pytest.fixture(scope="module")
def clips(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    for name, make in (GOOD | BAD).items():
        (folder / name).write_bytes(make())
    return folder


def sparse_silence(path: Path, hours: float, rate: int = 8_000) -> None:
    """A file of silence that takes no space on the disk."""
    size = int(hours * 3600 * rate) * 2
    head = struct.pack(
        "<4sI8sIHHIIHH4sI", b"RIFF", 36 + size, b"WAVEfmt ", 16, 1, 1, rate, rate * 2, 2, 16, b"data", size
    )
    with path.open("wb") as file:
        file.write(head)
        file.truncate(44 + size)


def test_damaged_files_are_dropped_with_a_reason_and_nothing_is_lost(clips, tmp_path):
    steps = [AudioDecodable(), AudioInfo(), ParquetWriter(tmp_path / "all")]
    report = Pipeline(AudioReader(str(clips)), *steps).run(workers=1)
    assert (report.kept, report.failed) == (len(GOOD), 0)
    assert report.dropped == {"audio_problem not in fine": len(BAD)}
    rows = {Path(row["path"]).name: row for row in pq.read_table(tmp_path / "all").to_pylist()}
    assert (rows["channels.wav"]["channels"], rows["channels.wav"]["sample_rate"], rows["channels.wav"]["bits"]) == (
        8,
        96_000,
        24,
    )
    assert rows["eight_bits.wav"]["bits"] == 8
    assert rows["wrong.wav"]["codec"] == "flac"


def test_without_that_step_they_fail_and_the_account_balances(clips, tmp_path):
    report = Pipeline(AudioReader(str(clips)), AudioLoudness(), ParquetWriter(tmp_path / "out")).run(workers=1)
    assert (report.kept, report.failed) == (len(GOOD), len(BAD))
    failed = [
        json.loads(line)
        for file in (tmp_path / "out/.tamis/failed").iterdir()
        for line in file.read_text().splitlines()
    ]
    problems = {Path(row["address"].rpartition(":")[0]).name: row["error"] for row in failed}
    assert "truncated" in problems["truncated.mp3"]
    assert "empty" in problems["zero.wav"]
    assert "not numbers" in problems["nan.wav"]


def test_the_recipe_without_networks_gives_the_same_rows_with_any_workers(clips, tmp_path):
    tables = []
    for number, options in enumerate([{"workers": 1}, {"workers": 2, "memory": "1GB"}]):
        steps = [
            build_operator(each.name, each.parameters) for each in load_recipe("speech").steps if not each.optional
        ]
        out = tmp_path / str(number)
        report = Pipeline(
            AudioReader(str(clips), files_per_partition=4), *steps, AudioWindows(window_s=0.4), ParquetWriter(out)
        ).run(**options)
        assert report.failed == 0
        tables.append(pq.read_table(out))
    assert tables[0].num_rows > 10
    assert tables[0].equals(tables[1])


def test_nemo_manifests_in_and_out(tmp_path):
    (tmp_path / "talk.flac").write_bytes(sound(tone(5), 16_000, "flac"))
    rows = [
        {"audio_filepath": "talk.flac", "offset": 1.0, "duration": 2.0, "text": "good"},
        {"audio_filepath": "talk.flac", "offset": None, "duration": 5.0, "text": "κείμενο"},
        {"audio_filepath": "gone.wav", "offset": None, "duration": 5.0, "text": "nothing there"},
        {"audio_filepath": "talk.flac", "offset": 4.0, "duration": 3.0, "text": "past the end"},
        {"audio_filepath": "talk.flac", "offset": -1.0, "duration": 3.0, "text": "negative"},
    ]
    (tmp_path / "manifest.json").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    out = tmp_path / "out"
    report = Pipeline(
        JsonlReader(str(tmp_path / "manifest.json")), NemoManifest(), AudioWriter(out, fields=["audio", "text"])
    ).run(workers=1)
    assert (report.kept, report.failed) == (2, 3)
    folder = next(out.glob("part-*"))
    made = [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]
    assert made == [
        {"audio_filepath": "00000000.flac", "duration": 2.0, "text": "good"},
        {"audio_filepath": "00000001.flac", "duration": 5.0, "text": "κείμενο"},
    ]
    assert (folder / "00000001.flac").read_bytes() == (tmp_path / "talk.flac").read_bytes()  # untouched
    again = Pipeline(
        JsonlReader(str(folder / "manifest.jsonl")), NemoManifest(), AudioDuration(), ParquetWriter(tmp_path / "3")
    )
    assert again.run(workers=1).kept == 2


def test_a_nemo_duration_without_an_offset_may_be_shorter_than_the_file(tmp_path):
    (tmp_path / "talk.wav").write_bytes(sound(tone(5)))
    rows = [{"audio_filepath": "talk.wav", "duration": each} for each in (2.0, 4.95, 5.3, -1, None)]
    (tmp_path / "manifest.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    reader = JsonlReader(str(tmp_path / "manifest.json"))
    paths = Pipeline(reader, NemoManifest()).collect(executor="inline")["audio"].to_pylist()
    assert [Path(each["path"]).name for each in paths] == ["talk.wav#t=0,2", *["talk.wav"] * 4]
    unread = Pipeline(reader, NemoManifest(verify=False)).collect(executor="inline")["audio"].to_pylist()
    assert [Path(each["path"]).name for each in unread] == ["talk.wav"] * 5


def test_a_segment_that_was_cut_out_has_no_offset(tmp_path):
    (tmp_path / "talk.flac").write_bytes(sound(tone(5), 16_000, "flac"))
    row = {"audio_filepath": "talk.flac", "offset": 1.0, "duration": 2.0, "text": "good"}
    (tmp_path / "manifest.json").write_text(json.dumps(row))
    reader = JsonlReader(str(tmp_path / "manifest.json"))
    Pipeline(reader, NemoManifest(), AudioWriter(tmp_path / "out")).run(executor="inline")
    (manifest,) = (tmp_path / "out").glob("part-*/manifest.jsonl")
    assert json.loads(manifest.read_text()) == {"audio_filepath": "00000000.flac", "duration": 2.0, "text": "good"}
    again = Pipeline(JsonlReader(str(manifest)), NemoManifest(), AudioInfo()).collect(executor="inline")
    assert again["duration"].to_pylist() == [2.0]


@pytest.mark.parametrize("options", [{"manifest": "nemo"}, {"manifest": "shar"}, {"format": "flac"}])
def test_a_recording_without_a_header_fails_and_the_others_are_written(options, tmp_path):
    good = sound(tone(1))
    rows = [
        {"audio": None if file is None else {"bytes": file, "path": "a.wav"}}
        for file in (good, b"", b"no sound", None, good)
    ]
    report = Pipeline(Rows(rows), AudioWriter(tmp_path / "out", **options)).run(executor="inline", on_error="isolate")
    assert (report.kept, report.failed) == (3, 2)
    (failed,) = (tmp_path / "out/.tamis/failed").iterdir()
    assert [json.loads(line)["address"].rpartition(":")[2] for line in failed.read_text().splitlines()] == ["1", "2"]


def test_recordings_may_be_in_a_column_of_another_name(tmp_path):
    rows = [{"speech": {"bytes": sound(tone(1)), "path": "a.wav"}, "text": "good"}]
    writer = AudioWriter(tmp_path / "out", columns={"speech": "audio"}, format="flac")
    Pipeline(Rows(rows), writer).run(executor="inline")
    (manifest,) = (tmp_path / "out").glob("part-*/manifest.jsonl")
    assert json.loads(manifest.read_text()) == {"audio_filepath": "00000000.flac", "duration": 1.0, "text": "good"}


@pytest.mark.parametrize("manifest", ["nemo", "lhotse", "shar"])
def test_rows_without_a_column_of_recordings_are_an_error(manifest, tmp_path):
    rows = Rows([{"speech": {"bytes": sound(tone(1)), "path": "a.wav"}}])
    writer = AudioWriter(tmp_path / "out", manifest=manifest)
    with pytest.raises(ColumnError, match=r'`audio_writer`, reads column `audio`(?s:.*)columns={"speech": "audio"}'):
        Pipeline(rows, writer).run(executor="inline")
    with pytest.raises(SinkError, match="no column `audio`, but the media columns speech"):
        Pipeline(rows, lambda row: {"text": "good"}, writer).run(executor="inline")


def test_shar_has_no_place_for_other_media(tmp_path):
    picture = {"bytes": b"\xff\xd8\xff", "path": "a.jpg"}
    rows = Rows([{"audio": {"bytes": sound(tone(1)), "path": "a.wav"}, "image": picture}])
    with pytest.raises(SinkError, match="no place for the media column `image`"):
        Pipeline(rows, AudioWriter(tmp_path / "all", manifest="shar")).run(executor="inline")
    writer = AudioWriter(tmp_path / "some", manifest="shar", fields=["audio"])
    assert Pipeline(rows, writer).run(executor="inline").kept == 1
    assert Pipeline(rows, AudioWriter(tmp_path / "files")).run(executor="inline").kept == 1
    assert len([*(tmp_path / "files").glob("part-*/*.jpg")]) == 1


def test_lhotse_cuts_in_and_out(tmp_path):
    (tmp_path / "talk.wav").write_bytes(sound(tone(5, 16_000, 2)))
    cut = {
        "id": "c1", "start": 1.0, "duration": 2.0, "channel": 0, "type": "MonoCut",
        "supervisions": [{"id": "s", "recording_id": "r", "start": 0.0, "duration": 2.0, "text": "good", "speaker": "a"}],
        "recording": {"id": "r", "sources": [{"type": "file", "channels": [0], "source": "talk.wav"}],
                      "sampling_rate": 16000, "num_samples": 80000, "duration": 5.0},
    }  # fmt: skip
    (tmp_path / "cuts.jsonl").write_text(json.dumps(cut) + "\n")
    out = tmp_path / "out"
    steps = [
        LhotseManifest(),
        LhotseText(),
        AudioWriter(out, manifest="lhotse", format="wav", fields=["audio", "text", "speaker", "id"]),
    ]
    assert Pipeline(JsonlReader(str(tmp_path / "cuts.jsonl")), *steps).run(workers=1).kept == 1
    folder = next(out.glob("part-*"))
    made = json.loads((folder / "manifest.jsonl").read_text())
    assert made["recording"]["sources"] == [{"type": "file", "channels": [0, 1], "source": "00000000.wav"}]
    assert (made["duration"], made["recording"]["num_samples"], made["type"]) == (2.0, 32_000, "MultiCut")
    assert made["supervisions"][0]["text"] == "good"
    assert made["custom"] == {"id": "c1"}
    back = Pipeline(
        JsonlReader(str(folder / "manifest.jsonl")), LhotseManifest(), AudioDuration(), ParquetWriter(tmp_path / "b")
    )
    assert back.run(workers=1).kept == 1


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_lhotse_shar_in_and_out(tmp_path):
    import lhotse

    (tmp_path / "shar").mkdir()
    cuts = []
    for number, (kind, channels) in enumerate([("wav", 1), ("flac", 2), ("wav", 1)]):
        path = tmp_path / f"{number}.{kind}"
        path.write_bytes(sound(tone(4, 16_000, channels, hertz=200 + 50 * number), 16_000, kind))
        recording = lhotse.Recording.from_file(path)
        said = lhotse.SupervisionSegment(
            f"s{number}", recording.id, 0, 1.5, text=f"ω {number}", language="el", speaker="a"
        )
        kind = lhotse.MonoCut if channels == 1 else lhotse.MultiCut
        channel = 0 if channels == 1 else [0, 1]
        cut = kind(f"talks/cut.{number}", 1.0, 1.5, channel, recording=recording, supervisions=[said])
        cut.custom = {"snr": 3.5}
        cuts.append(cut)
    cuts = lhotse.CutSet.from_cuts(cuts)
    cuts.to_shar(str(tmp_path / "shar"), fields={"recording": "flac"}, shard_size=2)

    # Cuts of one channel have a number there, others a list.
    mixed = {"channel": "json"}
    reader = JsonlReader(str(tmp_path / "shar/cuts.*.jsonl.gz"), types=mixed, files_per_partition=1)
    out = tmp_path / "out"
    writer = AudioWriter(out, manifest="shar", fields=["audio", "text", "language", "speaker", "id"])
    report = Pipeline(reader, LhotseManifest(), LhotseText(), writer).run(workers=1)
    assert (report.kept, report.failed) == (3, 0)
    files = sorted(str(path.relative_to(out)) for path in out.glob("part-*/*"))
    assert files == [
        "part-000000/cuts.000000.jsonl.gz", "part-000000/recording.000000.tar",
        "part-000001/cuts.000001.jsonl.gz", "part-000001/recording.000001.tar",
    ]  # fmt: skip
    again = lhotse.CutSet.from_shar(
        {
            "cuts": sorted(map(str, out.glob("part-*/cuts.*"))),
            "recording": sorted(map(str, out.glob("part-*/recording.*"))),
        }
    )
    for ours, theirs in zip(again, cuts, strict=True):
        assert (ours.duration, ours.num_channels) == (theirs.duration, theirs.num_channels)
        assert ours.supervisions[0].text == theirs.supervisions[0].text
        assert (ours.supervisions[0].language, ours.supervisions[0].speaker) == ("el", "a")
        assert ours.custom["id"] == theirs.id
        np.testing.assert_allclose(ours.load_audio(), theirs.load_audio(), atol=1e-4)
    ours = Pipeline(
        JsonlReader(str(out / "part-*/cuts.*.jsonl.gz"), types=mixed), LhotseManifest(), AudioInfo()
    ).collect(executor="inline")
    assert ours["duration"].to_pylist() == [1.5] * 3
    del again, cuts
    gc.collect()  # lhotse leaves files open, which is reported in this test rather than in another one


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_lhotse_cut_has_the_channels_that_it_names(tmp_path):
    import lhotse

    voices = [tone(4, hertz=hertz) for hertz in (200, 500, 900)]
    paths = [tmp_path / name for name in ("call.wav", "left.wav", "right.wav")]
    for path, channels in zip(paths, [voices, voices[:1], voices[1:2]], strict=True):
        path.write_bytes(sound(np.concatenate(channels)))
    call = lhotse.Recording.from_file(paths[0], recording_id="call")
    sources = [lhotse.audio.AudioSource("file", [number], str(path)) for number, path in enumerate(paths[1:])]
    apart = lhotse.Recording("apart", sources, 16_000, 64_000, 4.0)
    cuts = lhotse.CutSet.from_cuts(
        [lhotse.MonoCut(f"mono-{number}", 1.0, 2.0, number, recording=call) for number in range(3)]
        + [
            lhotse.MultiCut("pair", 1.0, 2.0, [0, 2], recording=call),
            lhotse.MultiCut("all", 0, 4, [0, 1, 2], recording=call),
        ]
        + [lhotse.MonoCut("whole", 0, 4.0, 2, recording=call), lhotse.MonoCut("right", 1.0, 2.0, 1, recording=apart)]
        + [lhotse.MonoCut("slow", 0, 2.0, 0, recording=call).resample(8_000)]
    )
    cuts.to_file(tmp_path / "cuts.jsonl")
    steps = [LhotseManifest(), AudioInfo(), AudioWriter(tmp_path / "out", format="wav")]
    reader = JsonlReader(str(tmp_path / "cuts.jsonl"), types={"channel": "json"})
    assert Pipeline(reader, *steps).run(executor="inline").kept == len(cuts)
    (manifest,) = (tmp_path / "out").glob("part-*/manifest.jsonl")
    rows = [json.loads(line) for line in manifest.read_text().splitlines()]
    assert [row["channels"] for row in rows] == [1, 1, 1, 2, 3, 1, 1, 1]
    for row, cut in zip(rows[:-1], cuts, strict=False):
        ours = lhotse.Recording.from_file(manifest.parent / row["audio_filepath"]).load_audio()
        np.testing.assert_array_equal(ours, cut.load_audio())
    gc.collect()  # as above


def test_lhotse_recordings_that_are_not_one_file_as_it_is_fail(tmp_path):
    (tmp_path / "call.wav").write_bytes(sound(tone(4, channels=2)))
    whole = {"type": "file", "channels": [0, 1], "source": "call.wav"}
    halves = [{**whole, "channels": [0]}, {**whole, "channels": [1]}]
    faster = [{"name": "Speed", "kwargs": {"factor": 1.1}}]

    def row(channel, sources, transforms=None):
        recording = {"id": "r", "sources": sources, "transforms": transforms}
        return json.dumps({"id": "c", "start": 0, "duration": 2.0, "channel": channel, "recording": recording}) + "\n"

    rows = [row([0, 1], [whole]), row([0, 1], halves), row([0, 2], [whole]), row([0], [whole], faster)]
    (tmp_path / "cuts.jsonl").write_text("".join(rows))
    reader = JsonlReader(str(tmp_path / "cuts.jsonl"))
    report = Pipeline(reader, LhotseManifest(), AudioWriter(tmp_path / "out")).run(
        executor="inline", on_error="isolate"
    )
    assert (report.kept, report.failed) == (1, 3)
    (failed,) = (tmp_path / "out/.tamis/failed").iterdir()
    errors = [json.loads(line)["error"] for line in failed.read_text().splitlines()]
    assert "no file of the recording has all channels of the cut: 0, 1" in errors[0]
    assert "no file of the recording has all channels of the cut: 0, 2" in errors[1]
    assert "the recording has a transform, 'Speed', that its file does not have" in errors[2]
    recordings = [{"id": "a", "sources": [whole]}, {"id": "b", "sources": halves}]
    recordings.append({"id": "c", "sources": [whole], "transforms": faster})
    (tmp_path / "recordings.jsonl").write_text("".join(json.dumps(each) + "\n" for each in recordings))
    reader = JsonlReader(str(tmp_path / "recordings.jsonl"))
    steps = [LhotseManifest(column="sources"), ParquetWriter(tmp_path / "whole")]
    report = Pipeline(reader, *steps).run(executor="inline", on_error="isolate")
    assert (report.kept, report.failed) == (1, 2)


def test_a_cut_without_its_recording_in_the_archive_fails(tmp_path):
    recording = {"id": "r", "sources": [{"type": "shar", "channels": [0], "source": ""}], "sampling_rate": 16000}
    rows = [{"id": name, "start": 0, "duration": 1.0, "recording": recording} for name in ("a", "b")]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "cuts.000003.jsonl").write_text(lines)
    (tmp_path / "cuts.000004.jsonl").write_text(lines)
    (tmp_path / "other.jsonl").write_text(lines)
    (tmp_path / "a.flac").write_bytes(sound(tone(1), 16_000, "flac"))
    with tarfile.open(tmp_path / "recording.000003.tar", "w") as archive:
        archive.add(tmp_path / "a.flac", "a.flac")
    report = Pipeline(JsonlReader(str(tmp_path / "*.jsonl")), LhotseManifest(), AudioWriter(tmp_path / "out")).run(
        workers=1
    )
    assert (report.kept, report.failed) == (1, 5)
    errors = "".join(file.read_text() for file in (tmp_path / "out/.tamis/failed").iterdir())
    assert "has no recording of the cut 'b'" in errors
    assert "recording.000004.tar` cannot be read" in errors
    assert "is not a list of cuts of lhotse Shar" in errors


def test_segments_in_archives_and_tables_that_datasets_plays(tmp_path):
    (tmp_path / "talk.mp3").write_bytes(sound(tone(5, 44_100), 44_100, "mp3"))
    reader = AudioReader(str(tmp_path / "talk.mp3"))
    windows = AudioWindows(window_s=2)
    Pipeline(reader, windows, WebDatasetWriter(tmp_path / "tars")).run(workers=1)
    Pipeline(reader, windows, ReadMedia(), ParquetWriter(tmp_path / "table")).run(workers=1)
    with tarfile.open(next((tmp_path / "tars").glob("*.tar"))) as archive:
        names = archive.getnames()
    assert sum(name.endswith(".flac") for name in names) == 3
    table = pq.read_table(tmp_path / "table")
    assert table["audio"][0]["path"].as_py() == "talk_0-2.flac"
    assert b"Audio" in table.schema.metadata[b"huggingface"]
    waves = waveforms(Batch(table.select(["audio"])), "audio")
    assert [len(wave) for wave in waves] == [32_000, 32_000, 16_000]


def test_twelve_hours_of_silence_within_a_budget(tmp_path):
    sparse_silence(tmp_path / "silence.wav", 12)
    windows = Pipeline(
        AudioReader(str(tmp_path / "silence.wav")),
        AudioWindows(window_s=300),
        AudioDuration(),
        ParquetWriter(tmp_path / "w"),
    ).run(workers=1, memory="600MB")
    assert (windows.kept, windows.failed) == (144, 0)
    part = Pipeline(
        AudioReader(str(tmp_path / "silence.wav")),
        AudioWindows(window_s=1800, step_s=6 * 3600),
        AudioSilence(),
        ParquetWriter(tmp_path / "s"),
    ).run(workers=1, memory="600MB")
    assert part.dropped == {"silence_share > 0.8": 2}


def test_large_recordings_are_copied_in_pieces(tmp_path):
    (tmp_path / "in").mkdir()
    sparse_silence(tmp_path / "in/long.wav", 4.8)  # 276 MB
    (tmp_path / "in/short.wav").write_bytes(sound(tone(1)))
    report = Pipeline(
        AudioReader(str(tmp_path / "in"), files_per_partition=1),
        AudioDuration(max_duration=None),
        AudioWriter(tmp_path / "out"),
    ).run(workers=1, memory="480MB")
    assert (report.kept, report.failed) == (2, 0)
    assert report.peak_memory_bytes <= 480_000_000
    for folder, name, duration in zip(
        sorted((tmp_path / "out").glob("part-*")), ["long.wav", "short.wav"], [17_280, 1], strict=True
    ):
        row = json.loads((folder / "manifest.jsonl").read_text())
        assert row["duration"] == duration
        assert filecmp.cmp(folder / row["audio_filepath"], tmp_path / "in" / name, shallow=False)


@pytest.mark.parametrize("sink", ["folder", "archive"])
def test_long_segments_are_cut_into_temporary_files(sink, tmp_path, monkeypatch):
    monkeypatch.setattr(references, "LONG_S", 2.5)
    monkeypatch.setattr("tamis.sinks.samples.PIECE_BYTES", 1000)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/talk.wav").write_bytes(sound(tone(8)))
    with tarfile.open(tmp_path / "shard.tar", "w") as archive:
        archive.add(tmp_path / "in/talk.wav", "talk.wav")
    out = tmp_path / "out"
    steps = [AudioWindows(window_s=3), FolderWriter(out) if sink == "folder" else WebDatasetWriter(out)]
    report = Pipeline(WebDatasetReader(str(tmp_path / "shard.tar")), *steps).run(
        executor="inline", scratch=tmp_path / "tmp"
    )
    assert (report.kept, report.failed) == (3, 0)
    assert not [path for path in (tmp_path / "tmp").rglob("*") if path.parent.name == references.SPOOL]
    again = AudioReader(str(out / "part-000000")) if sink == "folder" else WebDatasetReader(str(out))
    rows = Pipeline(again, ReadMedia()).collect(executor="inline")
    waves = waveforms(Batch(rows.select(["audio"])), "audio")
    whole = tone(8)[0]
    for wave, begin in zip(waves, (0, 3, 6), strict=True):
        np.testing.assert_allclose(wave, whole[begin * 16_000 : (begin + 3) * 16_000], atol=1e-4)


def test_unchanged_recordings_keep_their_bytes(clips, tmp_path):
    Pipeline(
        AudioReader(str(clips / "b.flac")),
        AudioResample(sample_rate=44_100),
        AudioConvert(),
        ReadMedia(),
        ParquetWriter(tmp_path / "o"),
    ).run(workers=1)
    made = pq.read_table(tmp_path / "o")["audio"][0]["bytes"].as_py()
    assert made == (clips / "b.flac").read_bytes()
