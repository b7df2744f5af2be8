"""Recordings on the contact sheet."""

from __future__ import annotations

import io

import numpy as np
from typer.testing import CliRunner

from tamis import AudioReader, ParquetWriter, Pipeline
from tamis.audio import AudioSilence
from tamis.audio.files import read_info
from tamis.audio.preview import drawn, playable
from tamis.cli import app
from tests.audio.sounds import silence, sound, tone


def test_the_sheet_shows_waveforms_and_plays_them(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/talk.wav").write_bytes(sound(tone(2)))
    (tmp_path / "in/quiet.wav").write_bytes(sound(silence(2)))
    Pipeline(AudioReader(str(tmp_path / "in")), AudioSilence(), ParquetWriter(tmp_path / "out")).run(
        workers=1, rejects=True
    )
    page = tmp_path / "sheet.html"
    done = CliRunner().invoke(
        app,
        ["report", str(tmp_path / "out"), "--contact-sheet", str(page), "--column", "audio"],
        catch_exceptions=False,
    )
    assert done.exit_code == 0
    text = page.read_text()
    assert text.count("data:audio/ogg;base64,") == text.count("<audio") >= 2
    assert "talk.wav" in text
    assert "quiet.wav" in text
    assert "silence_share 1" in text
    assert "2.00 s, 16,000 Hz, 1 channel, pcm_s16le" in text


def test_the_picture_has_the_waveform_above_the_spectrogram():
    wave = np.concatenate([silence(1), tone(1, hertz=2000)], axis=1)[0]
    picture = drawn(wave)
    assert picture.shape == (120, 180, 3)
    loud = (picture[:60] != 255).any(axis=2).sum(axis=0)
    assert loud[:80].max() <= 2 < loud[100:].min()
    dark = picture[60:, 150, 0].argmin()
    assert abs(dark / 60 - (1 - 2000 / 8000)) < 0.05
    assert (drawn(np.zeros(0, np.float32)) == 255).all()
    assert (drawn(silence(1)[0])[60:] == 255).all(), "silence has no power at any frequency"
    assert read_info(io.BytesIO(playable(wave))).codec == "opus"
