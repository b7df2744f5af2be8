"""Sound in tables of Hugging Face datasets and in archives, and transcripts as texts."""

import io
import tarfile

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile

from tamis import (
    AudioReader,
    ParquetReader,
    ParquetWriter,
    Pipeline,
    Rows,
    WebDatasetReader,
    WebDatasetWriter,
)
from tamis.audio import AudioConvert, AudioDuration, AudioInfo, AudioWindows
from tamis.fields import Rename
from tamis.sources.jsonmedia import MEDIA
from tamis.text import WordCount
from tests.audio.sounds import sound, tone


def test_tables_of_datasets_are_read_and_their_features_are_kept(tmp_path):
    files = [{"bytes": sound(tone(seconds)), "path": f"{seconds}.wav"} for seconds in (1, 2, 3)]
    features = datasets.Features({"audio": datasets.Audio(sampling_rate=16_000), "text": datasets.Value("string")})
    table = pa.table({"audio": pa.array(files, MEDIA), "text": ["a", "b", "c"]}, schema=features.arrow_schema)
    pq.write_table(table, tmp_path / "in.parquet")
    report = Pipeline(
        ParquetReader(tmp_path / "in.parquet"), AudioDuration(min_duration=1.5), ParquetWriter(tmp_path / "out")
    ).run(executor="inline")
    assert report.dropped == {"duration < 1.5": 1}
    found = pq.read_table(tmp_path / "out")
    assert datasets.Features.from_arrow_schema(found.schema) == features
    assert [each["bytes"] for each in found["audio"].to_pylist()] == [each["bytes"] for each in files[1:]]


def test_datasets_loads_the_output_as_audio_and_gets_the_same_samples(tmp_path):
    (tmp_path / "in").mkdir()
    for seconds in (1, 2):
        (tmp_path / f"in/{seconds}.wav").write_bytes(sound(tone(seconds)))
    steps = [AudioWindows(window_s=1), AudioConvert(format="flac"), ParquetWriter(tmp_path / "out")]
    assert Pipeline(AudioReader(str(tmp_path / "in")), *steps).run(executor="inline").kept == 3
    found = datasets.load_dataset(
        "parquet", data_files=str(tmp_path / "out/*.parquet"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert found.features["audio"] == datasets.Audio()
    # What decodes them for `datasets` needs another build of torch; libsndfile reads the same bytes.
    rows = found.cast_column("audio", datasets.Audio(decode=False))["audio"]
    assert [row["path"] for row in rows] == ["1_0-1.flac", "2_0-1.flac", "2_1-2.flac"]
    for row, (seconds, begin) in zip(rows, ((1, 0), (2, 0), (2, 1)), strict=True):
        samples, rate = soundfile.read(io.BytesIO(row["bytes"]), dtype="float32")
        assert rate == 16_000
        np.testing.assert_allclose(samples, tone(seconds)[0, begin * rate : (begin + 1) * rate], atol=1e-4)


def test_segments_are_written_as_opus_into_archives(tmp_path):
    (tmp_path / "talk.wav").write_bytes(sound(tone(4, 48_000), 48_000))
    steps = [AudioWindows(window_s=2), AudioConvert(format="opus"), WebDatasetWriter(tmp_path / "tars")]
    assert Pipeline(AudioReader(str(tmp_path / "talk.wav")), *steps).run(executor="inline").kept == 2
    (path,) = (tmp_path / "tars").glob("*.tar")
    with tarfile.open(path) as archive:
        assert sum(name.endswith(".opus") for name in archive.getnames()) == 2
    table = Pipeline(WebDatasetReader(str(tmp_path / "tars")), AudioInfo()).collect(executor="inline")
    assert table["codec"].to_pylist() == ["opus", "opus"]
    np.testing.assert_allclose(table["duration"].to_pylist(), [2, 2], atol=0.05)


def test_transcripts_are_texts(tmp_path):
    rows = [{"transcript": "it was the best of times"}, {"transcript": "no"}]
    Pipeline(
        Rows(rows),
        WordCount(column="transcript", min_words=2),
        Rename({"text": "transcript"}),
        ParquetWriter(tmp_path / "o"),
    ).run(executor="inline")
    assert pq.read_table(tmp_path / "o").to_pylist() == [{"text": "it was the best of times"}]
