"""Videos in runs: recipes, sinks, parity, resuming after a kill, archives and object stores, and the memory budget."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tamis import (
    ClipWriter,
    FolderWriter,
    JsonlReader,
    MediaReference,
    ParquetReader,
    ParquetWriter,
    Pipeline,
    WebDatasetReader,
    WebDatasetWriter,
)
from tamis.cli import app
from tamis.errors import TamisError
from tamis.image.contact_sheet import write_contact_sheet
from tamis.recipes.load import load_recipe
from tamis.sinks.clips import join_parts
from tamis.sources.mediafiles import VideoReader
from tamis.video import (
    FixedClips,
    FrameColumns,
    Shots,
    VideoBlack,
    VideoDecodable,
    VideoMotion,
    VideoPreview,
    VideoProbe,
)
from tamis.video.decode import decode_track
from tamis.video.files import Decodes
from tests.video.make_videos import plain, scene, video
from tests.video.test_filters import held


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("videos")
    size = (256, 144)
    (made / "a.mp4").write_bytes(video([(scene(1, size), 25), (scene(2, size), 30), (plain(0, size), 25)], sound="aac"))
    (made / "b.mkv").write_bytes(video([(scene(3, size), 30)], container="matroska"))
    (made / "c.webm").write_bytes(video([(scene(4, size), 24)], codec="libvpx-vp9", container="webm", sound="libopus"))
    (made / "broken.mp4").write_bytes(video([(scene(1), 20)])[:2000])
    return made


def split(folder: Path, *sink: object) -> Pipeline:
    return Pipeline(VideoReader(str(folder / "*")), VideoDecodable(), Shots(), VideoBlack(), VideoMotion(), *sink)


def test_the_recipe_splits_videos_into_clips(folder, tmp_path):
    before = Decodes.frames
    recipe = load_recipe("video_split").with_paths(input=str(folder), output=str(tmp_path / "out"))
    report = recipe.build().run(executor="inline")
    assert report.read == 4
    assert report.dropped == {"video_problem not in fine": 1, "black_share > 0.5": 1}
    assert (report.kept, report.failed) == (4, 0)
    rows = [json.loads(line) for line in (tmp_path / "out/part-000000/metadata.jsonl").read_text().splitlines()]
    assert [(row["clip_begin"], row["clip_end"]) for row in rows] == [(0, 2.5), (2.5, 5.5), (0, 3), (0, 2.4)]
    first = (tmp_path / "out/part-000000" / rows[1]["video_file_name"]).read_bytes()
    assert len(decode_track(held(first))) == 30
    assert Decodes.frames > before


def test_the_layout_of_clips(folder, tmp_path):
    steps = [VideoPreview(height=48), FrameColumns({"image_hash": {}}, number=1)]
    report = split(folder, *steps, lambda row: {"embedding": [1.0, 2.0]}, ClipWriter(str(tmp_path / "out"))).run(
        executor="inline"
    )
    assert report.kept == 4
    part = tmp_path / "out" / "part-000000"
    assert sorted(each.name for each in part.iterdir()) == ["clips", "embeddings", "metas", "previews"]
    metas = [json.loads(each.read_text()) for each in sorted((part / "metas" / "v0").iterdir())]
    assert {each["span_uuid"] for each in metas} == {each.stem for each in (part / "clips").iterdir()}
    assert {each["span_uuid"] for each in metas} == {each.stem for each in (part / "previews").iterdir()}
    assert sorted(tuple(each["duration_span"]) for each in metas) == [(0, 2.4), (0, 2.5), (0, 3), (2.5, 5.5)]
    vectors = pq.read_table(part / "embeddings" / "embeddings.parquet")
    assert set(vectors["id"].to_pylist()) == {each["span_uuid"] for each in metas}
    verify = subprocess.run(
        [sys.executable, "-m", "tamis", "verify", str(tmp_path / "out")], capture_output=True, text=True, check=False
    )
    assert verify.returncode == 0, verify.stdout + verify.stderr


def test_clips_with_a_reason_are_kept_apart(folder, tmp_path):
    def reason(row: dict) -> dict:
        return {"filtered": "black" if row["black_share"] > 0.5 else None}

    steps = [VideoDecodable(), Shots(), VideoBlack(score_only=True), VideoPreview(height=48), reason]
    report = Pipeline(VideoReader(str(folder / "*")), *steps, ClipWriter(str(tmp_path / "out"))).run(executor="inline")
    assert report.kept == 5
    part = tmp_path / "out" / "part-000000"
    assert len(list((part / "clips").iterdir())) == 4
    assert len(list((part / "previews").iterdir())) == 5
    (apart,) = (part / "filtered_clips").iterdir()
    meta = json.loads((part / "metas" / "v0" / f"{apart.stem}.json").read_text())
    assert (meta["valid"], meta["filtered"]) == (False, "black")
    assert (meta["clip_location"], meta["duration_span"]) == (f"filtered_clips/{apart.name}", [5.5, 8.0])


def test_parts_are_joined_into_one_layout(folder, tmp_path):
    source = VideoReader(str(folder / "*"), files_per_partition=1)
    Pipeline(
        source, VideoDecodable(), Shots(), VideoBlack(), lambda row: {"embedding": [1.0, 2.0]},
        ClipWriter(str(tmp_path / "out")),
    ).run(executor="inline")  # fmt: skip
    assert len(list((tmp_path / "out").glob("part-*"))) == 3
    for _ in range(2):  # again: nothing changes
        command = [sys.executable, "-m", "tamis", "clips", str(tmp_path / "out"), str(tmp_path / "nemo")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "4 clips" in done.stderr
    metas = [json.loads(each.read_text()) for each in (tmp_path / "nemo" / "metas" / "v0").iterdir()]
    assert len(metas) == 4
    assert all((tmp_path / "nemo" / each["clip_location"]).is_file() for each in metas)
    vectors = pq.read_table(tmp_path / "nemo" / "embeddings")
    assert set(vectors["id"].to_pylist()) == {each["span_uuid"] for each in metas}
    one = next((tmp_path / "nemo" / "clips").iterdir())
    assert one.stat().st_nlink == 2, "linked, not copied"
    with pytest.raises(TamisError, match="no clips"):
        join_parts(folder, tmp_path / "other")


def test_the_contact_sheet_shows_frames_with_times_scores_and_reasons(folder, tmp_path):
    split(folder, ParquetWriter(str(tmp_path / "out"))).run(executor="inline", rejects=True)
    count = write_contact_sheet(str(tmp_path / "out"), tmp_path / "sheet.html", column="video")
    text = (tmp_path / "sheet.html").read_text()
    assert count == 6, "four clips that were kept, and a dropped one, by its reason and near its threshold"
    assert "a.mp4, 2.5 s to 5.5 s" in text
    assert "3.00 s, 256 x 144, 10 frames/s, h264" in text
    assert "black_share 1" in text
    assert "video_problem not in fine" in text
    command = ["report", str(tmp_path / "out"), "--contact-sheet", str(tmp_path / "sheet.html"), "--column", "video"]
    assert "shows 6 videos" in CliRunner().invoke(app, command).stderr


def test_the_contact_sheet_shows_clips_that_were_written_as_files(folder, tmp_path):
    report = split(folder, FolderWriter(str(tmp_path / "out"))).run(executor="inline")
    assert write_contact_sheet(str(tmp_path / "out"), tmp_path / "sheet.html", column="video") == report.kept == 4
    assert "00000000.mp4" in (tmp_path / "sheet.html").read_text()


def test_clips_of_a_file_that_is_not_named_like_a_video_are_videos(folder, tmp_path):
    (tmp_path / "5f3a09").write_bytes((folder / "a.mp4").read_bytes())
    (tmp_path / "list.jsonl").write_text('{"path": "5f3a09"}\n')
    steps = (MediaReference(to="video"), FixedClips(length_s=4), FixedClips(length_s=2))
    Pipeline(JsonlReader(tmp_path / "list.jsonl"), *steps, FolderWriter(str(tmp_path / "out"))).run(executor="inline")
    made = sorted((tmp_path / "out/part-000000").glob("0*"))
    assert [path.suffix for path in made] == [".mp4"] * 4
    assert [len(decode_track(held(path.read_bytes()))) for path in made] == [20] * 4


def test_clips_stay_references_in_tables_and_become_files_in_archives(folder, tmp_path):
    split(folder, ParquetWriter(str(tmp_path / "table"))).run(executor="inline")
    table = Pipeline(ParquetReader(str(tmp_path / "table"), media_roots=[str(folder)])).collect(executor="inline")
    assert [each["bytes"] for each in table["video"].to_pylist()] == [None] * 4
    assert table["video"].to_pylist()[1]["path"].endswith("a.mp4#t=2.5,5.5")
    again = Pipeline(
        ParquetReader(str(tmp_path / "table"), media_roots=[str(folder)]), WebDatasetWriter(str(tmp_path / "tars"))
    ).run(executor="inline")
    assert again.kept == 4
    with tarfile.open(next((tmp_path / "tars").glob("*.tar"))) as archive:
        assert sum(name.endswith("mp4") for name in archive.getnames()) == 4
    read = Pipeline(WebDatasetReader(str(tmp_path / "tars")), VideoProbe()).collect(executor="inline")
    assert read["video_frames"].to_pylist() == [25, 30, 30, 24]


@pytest.mark.slow
def test_rows_do_not_depend_on_workers_and_a_killed_run_resumes(folder, tmp_path):
    expected = None
    for name, options in (
        ("inline", {"executor": "inline"}),
        ("local", {"workers": 2, "memory": "1.2GB"}),
    ):
        pipeline = Pipeline(
            VideoReader(str(folder / "*"), files_per_partition=1), VideoDecodable(), Shots(), VideoBlack(score_only=True),
            VideoMotion(score_only=True), ParquetWriter(str(tmp_path / name)),
        )  # fmt: skip
        report = pipeline.run(progress=False, **options)
        rows = Pipeline(ParquetReader(str(tmp_path / name))).collect(executor="inline").to_pylist()
        expected = expected or (rows, report.dropped)
        assert (rows, report.dropped) == expected
    marker = tmp_path / "killed"

    def kill_once(row):
        if row["path"].endswith("b.mkv") and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), 9)
        return True

    report = Pipeline(
        VideoReader(str(folder / "*"), files_per_partition=1), VideoDecodable(), kill_once, Shots(),
        VideoBlack(score_only=True), VideoMotion(score_only=True), ParquetWriter(str(tmp_path / "again")),
    ).run(progress=False, workers=1, memory="1.2GB")  # fmt: skip
    assert marker.exists()
    assert report.failed == 0
    rows = Pipeline(ParquetReader(str(tmp_path / "again"))).collect(executor="inline").to_pylist()
    assert rows == expected[0]


@pytest.mark.slow
def test_a_4k_video_fits_into_800_megabytes(tmp_path):
    size = (3840, 2160)
    drawn = scene(1, size)(0)
    quick = {"preset": "ultrafast"}
    (tmp_path / "in").mkdir()
    data = video([(lambda frame: drawn, 3), (plain(90, size), 3)], rate=2, options=quick, pixel_format="yuv420p")
    (tmp_path / "in" / "a.mp4").write_bytes(data)
    report = Pipeline(
        VideoReader(str(tmp_path / "in" / "*")), VideoDecodable(), FixedClips(length_s=2.0, min_length_s=1.0), VideoBlack(),
        VideoPreview(), ParquetWriter(str(tmp_path / "out")),
    ).run(workers=1, memory="800MB", progress=False)  # fmt: skip
    assert (report.kept, report.failed) == (2, 0)
    assert report.peak_memory_bytes < 800_000_000


def test_a_video_in_an_object_store_is_read_by_range(folder):
    import fsspec

    store = fsspec.filesystem("memory")
    store.pipe_file("/videos/a.mp4", (folder / "a.mp4").read_bytes())
    table = Pipeline(VideoReader("memory://videos/a.mp4"), VideoProbe(), VideoBlack()).collect(executor="inline")
    assert table["video_frames"].to_pylist() == [80]
