"""Runs over real speech: the same rows for any executor, budget and killed process; and the recipe `speech`."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tamis import AudioReader, AudioWriter, JsonlReader, ParquetWriter, Pipeline
from tamis.audio import (
    AudioDecodable,
    AudioDuration,
    AudioLoudness,
    NemoManifest,
    SpeechQuality,
    SpeechSegments,
    Transcribe,
    WordErrorRate,
)
from tamis.audio.transcripts import error_rates
from tamis.recipes.load import load_recipe
from tests.audio.sounds import silence, sound, tone
from tests.audio.speech import seconds

PARTS = {"a": (0.8, 8.6), "b": (8.5, 13.2), "c": (17.2, 20.5), "d": (24.0, 27.0)}

OPENING = (
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness,"
)


@pytest.fixture(scope="module")
def talks(tmp_path_factory) -> Path:
    """Parts of one reading in several formats, a tone, silence, and a damaged file."""
    folder = tmp_path_factory.mktemp("talks")
    for (name, times), kind in zip(PARTS.items(), ("flac", "wav", "mp3", "opus"), strict=True):
        (folder / f"{name}.{kind}").write_bytes(sound(seconds(*times)[None], 16_000, kind))
    (folder / "e.wav").write_bytes(sound(tone(3)))
    (folder / "f.wav").write_bytes(sound(silence(3)))
    (folder / "g.mp3").write_bytes(sound(tone(8), 16_000, "mp3")[:10_000])
    return folder


def steps(talks: Path, output: Path, *more: object) -> Pipeline:
    return Pipeline(
        AudioReader(str(talks), files_per_partition=1),
        AudioDecodable(),
        *more,
        SpeechSegments(min_s=1, max_s=6),
        AudioLoudness(),
        Transcribe(),
        AudioWriter(output),
    )


def outcome(report, output: Path) -> dict[str, object]:
    files = {str(file.relative_to(output)): file.read_bytes() for file in sorted(output.glob("part-*/*"))}
    return {"files": files, "account": (report.read, report.created, report.kept, report.dropped, report.failed)}


@pytest.fixture(scope="module")
def expected(talks, tmp_path_factory):
    output = tmp_path_factory.mktemp("expected") / "out"
    found = outcome(steps(talks, output).run(executor="inline", on_error="isolate"), output)
    read, created, kept, dropped, failed = found["account"]
    assert (read, failed) == (7, 0)
    assert kept == 7 + created - sum(dropped.values())
    assert dropped == {"audio_problem not in fine": 1, "speech_segments: nothing left": 2}
    assert sum(name.endswith(".flac") for name in found["files"]) == kept >= 5
    return found


def test_rows_and_files_do_not_depend_on_the_executor(talks, expected, executor, tmp_path):
    report = steps(talks, tmp_path / "out").run(executor=executor, on_error="isolate", workers=2, progress=False)
    assert outcome(report, tmp_path / "out") == expected


def test_a_killed_worker_costs_no_row_and_the_budget_holds(talks, expected, tmp_path):
    marker = tmp_path / "killed"

    def kill_once(row):
        if row["path"].endswith("b.wav") and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    report = steps(talks, tmp_path / "out", kill_once).run(workers=1, memory="1200MB", progress=False)
    assert marker.exists()
    assert report.peak_memory_bytes <= 1_200_000_000
    assert outcome(report, tmp_path / "out") == expected


KILLED = """
import os, signal, sys
from pathlib import Path
from tamis.events import PartitionCommitted
from tests.audio.test_runs import steps
done = []
def kill(event):
    done.extend([event] if isinstance(event, PartitionCommitted) else [])
    if len(done) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
steps(Path(sys.argv[1]), Path(sys.argv[2])).run(workers=1, memory="2GB", on_event=kill)
"""


def test_a_killed_run_is_resumed(talks, expected, tmp_path):
    output = tmp_path / "out"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(talks), str(output)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    report = steps(talks, output).run(workers=1, memory="2GB", progress=False)
    assert report.state == "finished"
    assert outcome(report, output) == expected


# -------------------------------------------------------------------------------------------------------- the recipe


def test_the_recipe_cuts_judges_and_transcribes(talks, tmp_path):
    recipe = load_recipe("speech").with_paths(input=str(talks), output=str(tmp_path / "out"))
    pipeline = recipe.build()
    assert pipeline.notes == ()
    report = pipeline.run(workers=1, progress=False)
    assert (report.read, report.failed) == (7, 0)
    assert report.dropped["audio_problem not in fine"] == 1
    assert report.dropped["speech_segments: nothing left"] == 2
    (manifest,) = (tmp_path / "out").glob("part-*/metadata.jsonl")
    rows = [json.loads(line) for line in manifest.read_text().splitlines()]
    assert len(rows) == report.kept >= 3
    said = " ".join(row["transcript"] for row in rows).lower()
    assert "it was the best of times" in said
    assert all(2 <= row["duration"] <= 60 for row in rows)


def test_rows_with_a_text_are_not_cut_but_compared(talks, tmp_path):
    texts = [
        ("a.flac", OPENING),
        ("b.wav", "this is about something else entirely and nobody has ever read it aloud"),
        ("c.mp3", None),
        ("f.wav", "silence has no words"),
    ]
    lines = [json.dumps({"audio_filepath": name, "text": text}) + "\n" for name, text in texts]
    (talks / "manifest.json").write_text("".join(lines))
    recipe = load_recipe("speech").build()
    report = Pipeline(
        JsonlReader(str(talks / "manifest.json")), NemoManifest(), recipe, ParquetWriter(tmp_path / "out")
    ).run(executor="inline")
    (talks / "manifest.json").unlink()
    assert report.dropped == {"speech_segments: nothing left": 1, "wer > 0.75": 1}
    rows = pq.read_table(tmp_path / "out").to_pylist()
    whole = [row for row in rows if row["text"]]
    assert [Path(row["audio"]["path"]).name for row in whole] == ["a.flac"]
    assert all("#t=" in row["audio"]["path"] for row in rows if not row["text"])
    assert len(rows) >= 2
    (counts,) = (step["counts"] for step in report.operators if step["name"] == "word_error_rate")
    words = sum(len(text.split()) for _, text in texts[:2])
    assert counts["reference_words"] == words  # rows without a text do not count


def test_noise_lowers_quality_and_raises_errors(tmp_path):
    clean = seconds(0.8, 8.6)
    noise = np.random.default_rng(0).standard_normal(len(clean)).astype(np.float32)
    noisy = clean + noise * np.sqrt(np.mean(clean**2))  # 0 dB
    for name, samples in (("clean", clean), ("noisy", noisy)):
        (tmp_path / f"{name}.flac").write_bytes(sound(samples[None] / np.abs(samples).max(), 16_000, "flac"))
    table = Pipeline(
        AudioReader(str(tmp_path)),
        AudioDuration(),
        SpeechQuality(score_only=True),
        Transcribe(),
        lambda row: {"text": OPENING},
        WordErrorRate(score_only=True),
    ).collect(executor="inline")
    clean_row, noisy_row = table.to_pylist()
    assert clean_row["dnsmos_ovrl"] > 2.5 > noisy_row["dnsmos_ovrl"]
    assert error_rates({name: [clean_row[name]] for name in COUNTS})["wer"] < 0.2
    assert clean_row["wer"] <= noisy_row["wer"]


COUNTS = ("word_edits", "reference_words", "char_edits", "reference_chars")
