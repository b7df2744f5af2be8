"""Folders of media files with manifests: exactly one file per row, whatever happens to the run."""

import json

import pyarrow as pa
import pytest

from tamis import (
    ClipWriter,
    FolderWriter,
    ImageReader,
    JsonlReader,
    MediaReference,
    Pipeline,
    Rows,
    WebDatasetWriter,
    verify,
)
from tamis.errors import SinkError
from tamis.sinks.clips import join_parts

MEDIA = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def make(folder, count=4):
    folder.mkdir(parents=True)
    for number in range(count):
        (folder / f"{number}.png").write_bytes(b"\x89PNG" + bytes([number]) * 50)
    return folder


def contents(output):
    return {
        str(path.relative_to(output)): path.read_bytes()
        for path in sorted(output.rglob("*"))
        if path.is_file() and ".tamis" not in path.parts
    }


def pipeline(source, output):
    return Pipeline(ImageReader(source, files_per_partition=2), FolderWriter(output))


def test_files_and_a_manifest(tmp_path):
    source = make(tmp_path / "in")
    pipeline(source, tmp_path / "out").run(executor="inline")
    found = contents(tmp_path / "out")
    assert sorted(found) == [
        "part-000000/00000000.png", "part-000000/00000001.png", "part-000000/metadata.jsonl",
        "part-000001/00000000.png", "part-000001/00000001.png", "part-000001/metadata.jsonl",
    ]  # fmt: skip
    lines = [json.loads(line) for line in found["part-000001/metadata.jsonl"].splitlines()]
    assert lines[0] == {"file_name": "00000000.png", "path": f"{source}/2.png", "size": 54}
    assert found["part-000001/00000000.png"] == (source / "2.png").read_bytes()


@pytest.mark.filterwarnings("ignore")
def test_datasets_reads_it_as_an_imagefolder(tmp_path):
    import io

    import datasets
    from PIL import Image

    pictures = []
    for number in range(4):
        out = io.BytesIO()
        Image.new("L", (3, 3), number).save(out, "PNG")
        pictures.append({"bytes": out.getvalue(), "path": None})
    table = pa.table({"image": pa.array(pictures, MEDIA), "caption": [f"picture {number}" for number in range(4)]})
    Pipeline(Rows(table, rows_per_partition=3), FolderWriter(tmp_path / "out")).run(executor="inline")
    found = datasets.load_dataset(
        "imagefolder", data_dir=str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache")
    )
    rows = sorted((row["caption"], row["image"].getpixel((0, 0))) for row in found)
    assert rows == [(f"picture {number}", number) for number in range(4)]


def test_the_manifest_leads_back_to_the_files(tmp_path):
    pipeline(make(tmp_path / "in"), tmp_path / "out").run(executor="inline")
    steps = [JsonlReader(f"{tmp_path}/out/*/metadata.jsonl"), MediaReference(column="file_name")]
    table = Pipeline(*steps).collect(executor="inline")
    assert table["image"].to_pylist()[2]["path"] == f"{tmp_path}/out/part-000001/00000000.png"


def test_several_media_columns_and_rows_without_media(tmp_path):
    values = [{"bytes": b"GIF89a", "path": None}, None]
    table = pa.table({"image": pa.array(values, MEDIA), "mask/x": pa.array(values[::-1], MEDIA), "n": [1, 2]})
    Pipeline(Rows(table), FolderWriter(tmp_path)).run(executor="inline")
    found = contents(tmp_path)
    assert sorted(found) == [
        "part-000000/00000000_image.gif",
        "part-000000/00000001_mask_x.gif",
        "part-000000/metadata.jsonl",
    ]
    assert [json.loads(line) for line in found["part-000000/metadata.jsonl"].splitlines()] == [
        {"image_file_name": "00000000_image.gif", "mask/x_file_name": None, "n": 1},
        {"image_file_name": None, "mask/x_file_name": "00000001_mask_x.gif", "n": 2},
    ]


def test_rows_without_any_media_column_are_only_in_the_manifest(tmp_path):
    Pipeline(Rows([{"n": 1}, {"n": 2}]), FolderWriter(tmp_path)).run(executor="inline")
    assert contents(tmp_path) == {"part-000000/metadata.jsonl": b'{"n":1}\n{"n":2}\n'}


def test_wrong_use_is_explained(tmp_path):
    with pytest.raises(SinkError, match="web_dataset_writer"):
        FolderWriter("s3://bucket/out").check()
    table = pa.table({"image": pa.array([None], MEDIA), "file_name": ["x"]})
    with pytest.raises(SinkError, match="the rows have a column `file_name`"):
        Pipeline(Rows(table), FolderWriter(tmp_path)).run(executor="inline")


class TestResume:
    @pytest.fixture
    def finished(self, tmp_path):
        source = make(tmp_path / "in", 6)
        pipeline(source, tmp_path / "out").run(executor="inline")
        return source, tmp_path / "out"

    def undisturbed(self, source, tmp_path):
        pipeline(source, tmp_path / "undisturbed").run(executor="inline")
        return contents(tmp_path / "undisturbed")

    def test_a_finished_output_is_left_alone(self, finished):
        assert pipeline(*finished).run(executor="inline").state == "unchanged"

    @pytest.mark.parametrize("lost", ["part-000001/00000001.png", "part-000001/metadata.jsonl"])
    def test_a_folder_that_lost_a_file_is_written_again(self, finished, lost):
        source, output = finished
        before = contents(output)
        (output / lost).unlink()
        assert not verify(output).ok
        pipeline(source, output).run(executor="inline")
        assert contents(output) == before
        assert verify(output).ok

    def test_a_changed_file_is_found_by_its_checksum(self, finished):
        path = finished[1] / "part-000001" / "00000001.png"
        path.write_bytes(path.read_bytes()[::-1])
        assert verify(finished[1]).damaged == {"part-000001": "its checksum is wrong"}

    def test_files_that_are_added_or_removed_rename_folders(self, finished, tmp_path):
        source, output = finished
        (source / "0.png").unlink()
        (source / "1.png").unlink()
        pipeline(source, output).run(executor="inline")
        assert contents(output) == self.undisturbed(source, tmp_path)
        (source / "0.png").write_bytes(b"new")
        (source / "00.png").write_bytes(b"new")
        pipeline(source, output).run(executor="inline")
        (tmp_path / "undisturbed").rename(tmp_path / "old")
        assert contents(output) == self.undisturbed(source, tmp_path)
        assert verify(output).ok

    def test_folders_without_a_record_are_removed(self, finished):
        source, output = finished
        before = contents(output)
        (output / "part-000009").mkdir()
        (output / "part-000009" / "x.png").write_bytes(b"unfinished")
        (output / "part-000009-notes").mkdir()  # not a name that a run gives
        pipeline(source, output).run(executor="inline", fresh=False)
        assert contents(output) == before
        assert (output / "part-000009-notes").is_dir()

    def test_another_sink_replaces_the_folders(self, finished):
        from tamis import JsonlWriter

        source, output = finished
        Pipeline(ImageReader(source, files_per_partition=2), JsonlWriter(output)).run(executor="inline")
        assert sorted(path.name for path in output.iterdir() if path.name != ".tamis") == [
            f"part-00000{number}.jsonl" for number in range(3)
        ]


# ------------------------------------------------------------------------------------------ names that come with the data


def media(*values):
    return pa.array([None if value is None else {"bytes": value, "path": None} for value in values], MEDIA)


@pytest.mark.parametrize("column", ["../../../outside", "..", "clips", "metas/v0", ""])
def test_clips_of_a_column_with_any_name_stay_in_the_folder_of_their_part(tmp_path, column):
    outside = str(tmp_path / "outside")
    table = pa.table({"video": media(b"a clip"), column: media(b"one"), outside: media(b"two")})
    Pipeline(Rows(table), ClipWriter(tmp_path / "deep" / "er" / "out")).run(executor="inline")
    found = contents(tmp_path)
    assert all(name.startswith("deep/er/out/part-000000/") for name in found)
    assert sorted(value for value in found.values() if b"{" not in value) == [b"a clip", b"one", b"two"]
    [clip] = [name for name in found if "/part-000000/clips/" in name]
    assert found[clip] == b"a clip"


@pytest.mark.parametrize("writer", [FolderWriter, WebDatasetWriter])
def test_columns_whose_files_would_have_one_name_are_an_error(tmp_path, writer):
    names = ("a/b", "a_b") if writer is FolderWriter else ("Left", "left")
    table = pa.table({name: media(b"x") for name in names})
    with pytest.raises(SinkError, match="would have the same names"):
        Pipeline(Rows(table), writer(tmp_path / "out")).run(executor="inline")


def clips(output, contents, **columns):
    table = pa.table({"video": media(*contents), **columns})
    Pipeline(Rows(table, rows_per_partition=1), ClipWriter(output)).run(executor="inline")


def test_no_clip_takes_the_place_of_another_when_parts_are_joined(tmp_path):
    clips(tmp_path / "out", [b"one", b"two"])  # neither path nor times: both have the same id
    with pytest.raises(SinkError, match="have the same name and are different files"):
        join_parts(tmp_path / "out", tmp_path / "joined")
    assert not (tmp_path / "joined").exists()


def test_joining_into_the_clips_of_another_run_is_an_error(tmp_path):
    paths = {"path": ["a.mp4", "b.mp4"]}
    clips(tmp_path / "one", [b"one", b"two"], **paths)
    clips(tmp_path / "other", [b"one", b"2wo"], **paths)
    clips(tmp_path / "fewer", [b"one"], path=["a.mp4"])
    assert [join_parts(tmp_path / "one", tmp_path / "joined") for _ in range(2)] == [2, 2]
    (tmp_path / "joined" / "clips" / ".x.mp4.draft").write_bytes(b"of a process that was killed")
    assert join_parts(tmp_path / "one", tmp_path / "joined") == 2
    assert len(list((tmp_path / "joined" / "clips").iterdir())) == 2
    for name in ("other", "fewer"):
        with pytest.raises(SinkError, match="is there already"):
            join_parts(tmp_path / name, tmp_path / "joined")
