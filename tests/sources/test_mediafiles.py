"""Files of images, sounds and videos as rows, and manifests that refer to them."""

import json

import pyarrow as pa
import pytest

from tamis import (
    AudioReader,
    Batch,
    CsvReader,
    ImageReader,
    JsonlReader,
    MediaReference,
    ParquetReader,
    ParquetWriter,
    Pipeline,
    ReadMedia,
    Rows,
    VideoReader,
)
from tamis.errors import SourceError
from tamis.features import features_of
from tamis.media import read_bytes
from tamis.recipes.paths import reader_step, writer_step
from tamis.workflows import AudioDeduplicationWorkflow


def sizes(batch: Batch):
    return {"read": [None if data is None else len(data) for data in read_bytes(batch, "image")]}


@pytest.fixture
def photos(tmp_path):
    for number in range(10):
        path = tmp_path / "photos" / f"{number % 3}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(number * 100))
    (tmp_path / "photos" / "notes.xyz").write_text("not an image")
    return tmp_path / "photos"


def test_a_row_refers_to_its_file(photos, read_all):
    found = read_all(ImageReader(f"{photos}/**/*.jpg"))
    assert [row["size"] for row in found.rows] == [0, 300, 600, 900, 100, 400, 700, 200, 500, 800]
    path = f"{photos}/1/4.jpg"
    assert found.rows[5] == {"image": {"bytes": None, "path": path}, "path": path, "size": 400}
    assert found.addresses[5] == f"{path}:0"
    assert features_of(found.layout.schema) == {"image": {"_type": "Image"}}


def test_small_files_share_partitions_and_batches_hold_what_fits(photos, read_all):
    whole = read_all(ImageReader(photos))
    assert (len(whole.layout.partitions), whole.batches) == (1, [10])
    assert read_all(ImageReader(photos), batch_bytes=2000).batches == [3, 2, 2, 3]
    assert read_all(ImageReader(photos), batch_bytes=5000, columns=("path",)).batches == [10]
    assert len(read_all(ImageReader(photos, blocksize="2kB")).layout.partitions) == 7
    assert len(read_all(ImageReader(photos, files_per_partition=4)).layout.partitions) == 3
    assert len(read_all(ImageReader(photos, limit=4, blocksize="2kB")).rows) == 4
    for blocksize in ("1B", "2kB"):
        assert read_all(ImageReader(photos, blocksize=blocksize)).rows == whole.rows


def test_references_are_read_by_steps(photos):
    table = Pipeline(ImageReader(photos), sizes).collect(executor="inline")
    assert table["read"].to_pylist() == table["size"].to_pylist()


def test_a_file_that_was_removed_fails_its_row(photos, tmp_path):
    def remove(row):
        (photos / "0" / "3.jpg").unlink(missing_ok=True)
        return True

    report = Pipeline(ImageReader(photos), remove, sizes).run(executor="inline", max_failed="100%", on_error="isolate")
    assert (report.kept, report.failed) == (9, 1)


def test_a_link_to_nothing_is_a_damaged_file(photos):
    (photos / "0" / "lost.jpg").symlink_to("nowhere.jpg")
    report = Pipeline(ImageReader(photos)).run(executor="inline", max_failed="100%")
    assert report.kept == 10
    assert [path[-8:] for path in report.damaged_files] == ["lost.jpg"]


def test_sounds_and_videos(tmp_path, read_all):
    for name in ("a.flac", "b.WAV", "c.mp4", "d.mkv", "e.jpg"):
        (tmp_path / name).write_bytes(b"x")
    assert [row["path"][-6:] for row in read_all(AudioReader(tmp_path)).rows] == ["a.flac", "/b.WAV"]
    found = read_all(VideoReader(tmp_path))
    assert [row["video"]["path"][-5:] for row in found.rows] == ["c.mp4", "d.mkv"]
    assert features_of(found.layout.schema) == {"video": {"_type": "Video"}}
    with pytest.raises(SourceError, match="audio_reader or image_reader or video_reader"):
        read_all(JsonlReader(tmp_path))


def test_videos_are_read_for_their_sound_where_there_are_no_sound_files(tmp_path, read_all):
    (tmp_path / "c.mp4").write_bytes(b"x")
    (tmp_path / "e.jpg").write_bytes(b"x")
    found = read_all(AudioReader(tmp_path))
    assert [row["audio"]["path"][-5:] for row in found.rows] == ["c.mp4"]
    assert features_of(found.layout.schema) == {"audio": {"_type": "Audio"}}
    (tmp_path / "c.mp4").unlink()
    with pytest.raises(SourceError, match=r"has no files with the suffix \.wav"):
        read_all(AudioReader(tmp_path))


def test_the_input_of_a_recipe_about_sound_may_be_videos(tmp_path):
    (tmp_path / "c.mp4").write_bytes(b"x")
    paths = [str(tmp_path)]
    reads = ("audio_reader", {"file_paths": str(tmp_path)})
    assert reader_step(paths, None, [("audio_duration", {}), ("word_count", {"column": ["wrong"]})]) == reads
    assert reader_step(paths, ("audio_reader", {"limit": 3})) == ("audio_reader", {**reads[1], "limit": 3})
    assert reader_step(paths, None, [("audio_duration", {"column": "video"})])[0] == "video_reader"
    assert reader_step(paths, None, [("audio_duration", {}), ("shots", {})])[0] == "video_reader"
    assert reader_step(paths, None)[0] == "video_reader"
    workflow = AudioDeduplicationWorkflow(input_path=tmp_path, output_path=tmp_path / "out")
    assert workflow.pipeline().steps[0].name == "audio_reader"


def test_a_folder_of_images_is_recognized(photos, tmp_path):
    step = reader_step([str(photos)], None)
    assert step == ("image_reader", {"file_paths": str(photos)})
    assert writer_step("out", None, step) == ("folder_writer", {"path": "out"})
    (photos / "metadata.jsonl").write_text("{}\n")  # a table that may refer to the images
    assert reader_step([str(photos)], None)[0] == "jsonl_reader"


def test_files_in_an_object_store(photos, s3_server):
    import s3fs

    s3fs.S3FileSystem(**s3_server.storage_options).put(f"{photos}/1/", f"{s3_server.url[5:]}/photos/", recursive=True)
    source = ImageReader(f"{s3_server.url}/photos/**/*.jpg", storage_options=s3_server.storage_options)
    table = Pipeline(source, sizes).collect(executor="inline")
    assert sorted(table["read"].to_pylist()) == [100, 400, 700] == sorted(table["size"].to_pylist())


# ------------------------------------------------------------------------------------------------------------- manifests


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_a_manifest_refers_to_files_beside_it(form, photos, tmp_path):
    names = ["photos/0/3.jpg", None, "photos/1/1.jpg"]
    path = tmp_path / f"list.{form}"
    if form == "jsonl":
        path.write_text("".join(json.dumps({"file": name}) + "\n" for name in names))
    elif form == "csv":
        path.write_text("file,n\n" + "".join(f"{name or ''},1\n" for name in names))
    else:
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"file": names}), path)
    reader = {"jsonl": JsonlReader, "csv": CsvReader, "parquet": ParquetReader}[form](path)
    table = Pipeline(reader, MediaReference(column="file"), sizes).collect(executor="inline")
    assert table["read"].to_pylist() == [300, None, 100]


def test_paths_of_a_manifest_are_not_trusted(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    rows = [{"file": "../secret.jpg"}, {"file": str(tmp_path / "secret.jpg")}, {"file": "in.jpg"}]
    (tmp_path / "in" / "in.jpg").write_bytes(b"fine")
    (tmp_path / "in" / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    steps = [JsonlReader(tmp_path / "in" / "list.jsonl"), MediaReference(column="file"), ReadMedia()]
    report = Pipeline(*steps, ParquetWriter(tmp_path / "out")).run(
        executor="inline", max_failed="100%", on_error="isolate"
    )
    assert (report.kept, report.failed) == (1, 2)
    (row,) = Pipeline(ParquetReader(tmp_path / "out")).collect(executor="inline")["image"].to_pylist()
    assert row == {"bytes": b"fine", "path": "in.jpg"}


def test_media_is_read_into_rows_that_keep_their_names(photos, tmp_path):
    held = {"bytes": b"held", "path": "a/b.png"}
    values = [held, {"bytes": None, "path": f"{photos}/0/3.jpg"}, None, {"bytes": None, "path": None}]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"image": pa.array(values, kind), "other": pa.array(values, kind), "n": [1, 2, 3, 4]})
    found = Pipeline(Rows(table, media_roots=[str(photos)]), ReadMedia(columns=["image"])).collect(executor="inline")
    assert found["image"].to_pylist() == [held, {"bytes": bytes(300), "path": "3.jpg"}, None, values[3]]
    assert found["other"].to_pylist() == values
    assert found.column_names == ["image", "other", "n"]


def test_the_bytes_of_files_are_counted_as_read(tmp_path):
    for number in range(5):
        (tmp_path / f"{number}.mp4").write_bytes(bytes(1_000_000))
    report = Pipeline(VideoReader(str(tmp_path)), lambda row: row["path"].endswith("1.mp4")).run(executor="inline")
    assert 5_000_000 <= report.num_bytes < 5_010_000
