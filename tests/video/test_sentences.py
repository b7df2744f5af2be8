"""What users rely on, in small: manifests, wrong headers, remote files, overlapping clips, deep colours, deduplication."""

import io
import json
from pathlib import Path

import av
import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from tamis import CsvReader, JsonlReader, MediaReference, ParquetReader, ParquetWriter, Pipeline
from tamis.dedup import Groups, SemanticDedup
from tamis.errors import VideoError
from tamis.recipes.load import load_recipe
from tamis.segments import Segment
from tamis.sources.mediafiles import VideoReader
from tamis.video import FixedClips, FrameColumns, Shots, VideoCodec, VideoDecodable, VideoProbe
from tamis.video.cut import ENCODERS, cut_bytes
from tamis.video.decode import FramePolicy, decode_track, header_of, take_stills
from tests.video.make_videos import only_sound, scene, video
from tests.video.test_contents import pan
from tests.video.test_filters import held, rows, scores


def test_only_parts_of_a_remote_file_are_read(monkeypatch):
    """The header of a file of several megabytes, and one frame in its middle."""
    read: list[int] = []
    data = video([(scene(1, (320, 240)), 400)], options={"qp": "2", "preset": "ultrafast"})
    assert len(data) > 2_000_000
    store = fsspec.filesystem("memory")
    store.pipe_file("/range/a.mp4", data)

    class Counting(MemoryFile):
        def read(self, *size: int) -> bytes:
            found = super().read(*size)
            read.append(len(found))
            return found

    real = MemoryFileSystem._open

    def counted(self, path, *arguments, **options):
        found = real(self, path, *arguments, **options)
        return Counting(self, path, found.getvalue())

    monkeypatch.setattr(MemoryFileSystem, "_open", counted)
    table = Pipeline(VideoReader("memory://range/a.mp4"), VideoProbe()).collect(executor="inline")
    assert table["video_frames"].to_pylist() == [400]
    assert 0 < sum(read) < len(data) / 4
    read.clear()
    step = FrameColumns({"image_hash": {}}, frames="middle")
    Pipeline(VideoReader("memory://range/a.mp4"), step).run(executor="inline")
    assert 0 < sum(read) < len(data) / 2


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_a_manifest_is_a_source_of_videos_and_of_parts_of_them(form, tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.mp4").write_bytes(video([(scene(1), 30)]))
    (tmp_path / "files" / "b.avi").write_bytes(video([(scene(2, (64, 48)), 20)], codec="mpeg4", container="avi"))
    paths = ["files/a.mp4", "files/b.avi", "files/a.mp4#t=1,2.5", "", "files/none.mp4"]
    manifest = tmp_path / f"list.{form}"
    lines = [json.dumps({"path": path or None, "name": f"v{number}"}) for number, path in enumerate(paths)]
    if form == "csv":
        lines = ["path,name", *(f'"{path}",v{number}' for number, path in enumerate(paths))]
    manifest.write_text("\n".join(lines) + "\n")
    source = JsonlReader(manifest) if form == "jsonl" else CsvReader(manifest)
    output = str(tmp_path / "out")
    report = Pipeline(source, MediaReference(to="video"), VideoProbe(), ParquetWriter(output)).run(
        executor="inline", on_error="isolate", max_failed="100%"
    )
    assert (report.kept, report.failed) == (4, 1), "the last file does not exist"
    found = Pipeline(ParquetReader(output)).collect(executor="inline")
    assert found["name"].to_pylist() == ["v0", "v1", "v2", "v3"]
    assert found["video_codec"].to_pylist() == ["h264", "mpeg4", "h264", None]
    assert found["video_duration"].to_pylist() == [3.0, 2.0, 1.5, None]


def claiming(seconds: float) -> bytes:
    """A video of 6 seconds whose header says that it lasts `seconds`."""
    data = video([(scene(1), 30), (scene(2), 30)], container="matroska")
    place = data.index(b"\x44\x89\x88")  # Duration, 8 bytes, in milliseconds
    return data[: place + 3] + np.array(1000 * seconds, ">f8").tobytes() + data[place + 11 :]


@pytest.mark.parametrize(("seconds", "share"), [(1.0, 1.0), (30.0, 0.2), (1e8, 6e-8)])
def test_a_wrong_duration_in_the_header_changes_no_clip(seconds, share, tmp_path):
    (tmp_path / "a.mkv").write_bytes(claiming(seconds))
    source = VideoReader(str(tmp_path))
    assert Pipeline(source, VideoProbe()).collect(executor="inline")["video_duration"].to_pylist() == [seconds]
    for step, begins in ((FixedClips(length_s=2.0), [0.0, 2.0, 4.0]), (Shots(), [0.0, 3.0])):
        table = Pipeline(source, step, VideoDecodable()).collect(executor="inline")
        assert table["clip_begin"].to_pylist() == begins
        assert table["clip_end"].to_pylist() == [*begins[1:], 6.0]
    report = Pipeline(source, VideoDecodable()).run(executor="inline")
    assert report.dropped == ({} if share == 1.0 else {"decoded_share < 0.9": 1})
    assert scores(VideoDecodable(), claiming(seconds))["decoded_share"] == pytest.approx([share])


def test_videos_without_picture_or_frames_are_dropped_or_fail_and_others_are_kept(tmp_path):
    (tmp_path / "fine.mp4").write_bytes(video([(scene(1), 30)]))
    (tmp_path / "no frames.mkv").write_bytes(video([(scene(1), 20)], container="matroska")[:900])
    (tmp_path / "sound.mp4").write_bytes(only_sound())
    source = VideoReader(str(tmp_path))
    report = Pipeline(source, VideoDecodable()).run(executor="inline")
    assert (report.kept, report.failed) == (1, 0)
    assert report.dropped == {"video_problem not in fine": 2}
    for step in (FixedClips(), Shots()):
        report = Pipeline(source, step).run(executor="inline", on_error="isolate", max_failed="100%")
        assert (report.read, report.kept, report.failed) == (3, 1, 2)


def test_times_that_would_make_too_many_clips_fail_the_video():
    data = video([(scene(1), 2)], times=[0, 2**31 // 10], container="matroska")
    with pytest.raises(VideoError, match="at most 1,000,000 are made"):
        FixedClips().expand(rows(data))


def test_clips_may_overlap_and_be_limited():
    data = video([(scene(1), 100)])
    table, _ = FixedClips(length_s=4.0, stride_s=2.0, min_length_s=3.0).expand(rows(data))
    spans = list(zip(table.column("clip_begin").to_pylist(), table.column("clip_end").to_pylist(), strict=True))
    assert spans == [(0, 4), (2, 6), (4, 8), (6, 10)]
    few, _ = FixedClips(length_s=4.0, stride_s=2.0, max_clips=2).expand(rows(data))
    assert few.column("clip_begin").to_pylist() == [0, 2]


def test_videos_are_kept_by_their_codec(tmp_path):
    for name, codec, container in (
        ("a.mp4", "libx264", "mp4"),
        ("b.webm", "libvpx-vp9", "webm"),
        ("c.avi", "mpeg4", "avi"),
    ):
        (tmp_path / name).write_bytes(video([(scene(1), 10)], codec=codec, container=container))
    report = Pipeline(VideoReader(str(tmp_path)), VideoCodec(keep=["h264", "vp9"])).run(executor="inline")
    assert (report.kept, report.dropped) == (2, {"video_codec not in h264, vp9": 1})


@pytest.mark.parametrize("codec", ["h265", "vp9", "h264"])
def test_a_cut_keeps_deep_colours_where_the_codec_has_them(codec):
    quiet = {"x265-params": "log-level=none:pools=none:colorprim=bt2020:transfer=smpte2084:colormatrix=bt2020nc"}
    data = video([(scene(1), 12)], codec="libx265", pixel_format="yuv420p10le", options=quiet)
    made = cut_bytes(held(data), Segment(0.3, 0.9), "encode", codec)
    header = header_of(held(made))
    deep = {each.name for each in av.codec.Codec(ENCODERS[codec][0], "w").video_formats or ()} >= {"yuv420p10le"}
    assert header.pixel_format == ("yuv420p10le" if deep and codec != "h264" else "yuv420p")
    assert len(decode_track(held(made))) == 6
    before, after = (take_stills(held(file), FramePolicy("number", number=1), 256)[0].pixels for file in (data, made))
    assert np.abs(before.astype(int) - after.astype(int)).mean() < 30


@pytest.mark.parametrize("codec", ["h264", "h265", "vp9", "av1"])
@pytest.mark.parametrize(
    "tags",
    [
        "colormatrix=bt709:fullrange=on",
        "colormatrix=bt2020nc:transfer=smpte2084:colorprim=bt2020:sar=16/15",
        "colormatrix=bt470bg:fullrange=off",
    ],
)
def test_a_cut_keeps_what_its_colours_mean_and_the_shape_of_its_pixels(codec, tags):
    data = video([(scene(1), 12)], options={"x264-params": tags})
    made = cut_bytes(held(data), Segment(0.3, 0.9), "encode", codec)
    before, after = (take_stills(held(file), FramePolicy("keys"), 256)[0].pixels for file in (data, made))
    before = np.roll(before, -6, axis=1)  # the clip begins three frames later
    assert np.abs(before.astype(int) - after.astype(int)).mean() < 5
    streams = [av.open(io.BytesIO(file)).streams.video[0] for file in (data, made)]
    described = [(each.codec_context.colorspace, each.codec_context.color_trc) for each in streams]
    assert described[0] == described[1]
    assert streams[0].sample_aspect_ratio in (None, streams[1].sample_aspect_ratio)


@pytest.mark.parametrize("height", [64, 640])
@pytest.mark.parametrize(("codec", "pixel_format"), [("libx264rgb", "bgr24"), ("qtrle", "rgb24"), ("png", "rgb24")])
def test_stills_and_cuts_keep_colours_that_have_to_be_converted(codec, pixel_format, height):
    colour = np.broadcast_to(np.array([200, 50, 100], np.uint8), (height, 64, 3))
    data = video([(lambda _: colour, 4)], codec=codec, container="mov", pixel_format=pixel_format)
    made = cut_bytes(held(data), Segment(0.0, 0.4), "encode")
    for file in (data, made):
        middle = take_stills(held(file), FramePolicy("keys"), 256)[0].pixels[30, 30]
        np.testing.assert_allclose(middle, [200, 50, 100], atol=4)


def test_a_cut_keeps_times_that_vary():
    times = [0, 1, 2, 10, 11, 20, 21, 22, 30, 31]
    data = video([(scene(1), 10)], times=times)
    track = decode_track(held(cut_bytes(held(data), Segment(1.0, 3.0), "encode")))
    np.testing.assert_allclose(track.time, [0.0, 0.1, 1.0, 1.1, 1.2], atol=0.01)


def with_subtitles() -> bytes:
    """A Matroska file with subtitles in an old Cyrillic code page."""
    texts = b"1\n00:00:00,100 --> 00:00:00,900\n" + "Привет\n\n".encode("cp1251")
    target = io.BytesIO()
    pictures = io.BytesIO(video([(scene(1), 10)]))
    with (
        av.open(io.BytesIO(texts), format="srt", metadata_errors="replace") as lines,
        av.open(pictures) as source,
        av.open(target, "w", format="matroska") as output,
    ):
        shown = output.add_stream_from_template(source.streams.video[0])
        written = output.add_stream_from_template(lines.streams[0])
        for stream, made in ((source.streams.video[0], shown), (lines.streams[0], written)):
            for packet in stream.container.demux(stream):
                if packet.dts is not None:
                    packet.stream = made
                    output.mux(packet)
    return target.getvalue()


def test_subtitles_that_are_not_utf8_do_no_harm():
    data = with_subtitles()
    with av.open(io.BytesIO(data)) as container:
        assert [stream.type for stream in container.streams] == ["video", "subtitle"]
    assert "Привет".encode("cp1251") in data
    assert scores(VideoDecodable(), data)["video_problem"] == ["fine"]
    assert len(decode_track(held(cut_bytes(held(data), Segment(0.2, 0.6))))) == 4


@pytest.fixture(scope="module")
def copies(tmp_path_factory) -> Path:
    """Two subjects, each in two versions."""
    made = tmp_path_factory.mktemp("copies")
    for name in ("chelsea", "coffee"):
        (made / f"{name}.mp4").write_bytes(video([(pan(f"{name}.png"), 30)]))
        (made / f"{name}-again.avi").write_bytes(video([(pan(f"{name}.png"), 30)], codec="mpeg4", container="avi"))
    return made


def test_clips_of_the_same_subject_are_found_by_their_embeddings(copies, tmp_path):
    steps = [FrameColumns({"image_embed": {}}, number=2), SemanticDedup(threshold=0.9)]
    report = Pipeline(VideoReader(str(copies)), *steps, ParquetWriter(str(tmp_path / "out"))).run(executor="inline")
    assert (report.kept, sum(report.dropped.values()), report.failed) == (2, 2, 0)
    pairs = Groups.load(str(tmp_path / "out")).table().to_pylist()
    keys = ("address", "kept_address")
    subjects = [{Path(pair[key].rpartition(":")[0]).stem.partition("-")[0] for key in keys} for pair in pairs]
    assert sorted(map(sorted, subjects)) == [["chelsea"], ["coffee"]]


def test_the_recipe_of_deduplication_keeps_one_of_each_video(copies, tmp_path):
    recipe = load_recipe("video_dedup").with_paths(input=str(copies), output=str(tmp_path / "out"))
    report = recipe.build().run(executor="inline")
    assert (report.kept, report.dropped, report.failed) == (2, {"similar video": 2}, 0)
