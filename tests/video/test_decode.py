"""One pass over the frames of a video serves all steps, and parts of it are what decoding the part gives."""

import io
import math

import av
import numpy as np
import pytest

from tamis.batch import Batch
from tamis.errors import VideoError
from tamis.media import MediaAccess, MediaItem
from tamis.operators import Operator
from tamis.pipeline import Pipeline
from tamis.sources.mediafiles import VideoReader
from tamis.video import FixedClips, Shots, VideoBlack, VideoFrozen, VideoMotion, VideoShake
from tamis.video.decode import FramePolicy, decode_track, end_of, header_of, stills, take_stills, tracks, watched
from tamis.video.files import Decodes
from tests.video.make_videos import only_sound, plain, scene, video


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """a.mp4: four seconds of one scene, three of another one, two of black, at 10 frames per second."""
    made = tmp_path_factory.mktemp("videos")
    (made / "a.mp4").write_bytes(video([(scene(1), 40), (scene(2), 30), (plain(0), 20)], sound="aac"))
    return made


def item(path, segment: str = "") -> MediaItem:
    return MediaItem(f"{path}{segment}", str(path), MediaAccess())


def batch(*rows: object) -> Batch:
    return Batch.from_rows([{"video": row} for row in rows])


def test_a_header_needs_no_decoding(folder):
    before = Decodes.frames
    header = header_of(item(folder / "a.mp4"))
    assert (header.width, header.height, header.rate, header.num_frames) == (160, 120, 10.0, 90)
    assert header.duration == pytest.approx(9.0)
    assert (header.codec, header.audio_codec, header.channels) == ("h264", "aac", 2)
    assert Decodes.frames == before


def test_all_steps_on_a_video_share_one_decode(folder, tmp_path):
    steps: list[Operator] = [VideoBlack(), VideoFrozen(), VideoMotion(), VideoShake(max_shake=100.0)]
    before = Decodes.files, Decodes.frames
    report = Pipeline(VideoReader(str(folder / "*.mp4")), *steps).run(executor="inline")
    assert report.kept == 1
    assert (Decodes.files - before[0], Decodes.frames - before[1]) == (1, 90)


def test_clips_get_their_parts_of_the_track_and_are_not_decoded_again(folder):
    before = Decodes.files, Decodes.frames
    report = Pipeline(
        VideoReader(str(folder / "*.mp4")), Shots(min_length_s=1), VideoBlack(), VideoMotion(min_motion=0.1)
    ).run(executor="inline")
    assert (report.kept, report.dropped) == (2, {"black_share > 0.5": 1})
    assert (Decodes.files - before[0], Decodes.frames - before[1]) == (1, 90)


def test_the_track_of_a_clip_is_that_part_of_the_track_of_the_video(folder):
    whole = decode_track(item(folder / "a.mp4"))
    part = whole.part(3.3, 5.7)
    alone = decode_track(item(folder / "a.mp4", "#t=3.3,5.7"))
    assert len(part) == 24
    for name in ("time", "key", "numbers", "patches", "bars", "hashes", "vectors", "coded"):
        assert np.array_equal(getattr(part, name), getattr(alone, name)), name
    assert (part.begin, part.end, part.rate) == (alone.begin, alone.end, alone.rate)


@pytest.mark.parametrize(
    ("codec", "container", "options"),
    [
        ("libx264", "mpegts", {}),
        ("mpeg2video", "mpeg", {"bf": "2"}),
        ("libx264", "flv", {}),
        ("libx264", "h264", {}),
        ("libx265", "hevc", {"x265-params": "log-level=none:pools=none"}),
        ("libx264", "mp4", {"x264-params": "open-gop=1:bframes=3:scenecut=0"}),
    ],
)
def test_a_clip_has_its_first_frames_whether_or_not_its_container_has_an_index(tmp_path, codec, container, options):
    path = tmp_path / f"a.{container}"
    path.write_bytes(video([(scene(3), 150)], codec=codec, container=container, rate=25, options=options))
    whole = decode_track(item(path))
    for begin in (0.28, 0.56, 1.96, 2.24, 4.76):
        part, alone = whole.part(begin, begin + 0.6), decode_track(item(path, f"#t={begin},{begin + 0.6:g}"))
        np.testing.assert_allclose(alone.time, part.time, atol=1e-5)
        np.testing.assert_array_equal(alone.hashes, part.hashes)


def test_a_watcher_sees_every_frame_in_the_pass_that_makes_the_track(folder):
    class Times:
        def __init__(self) -> None:
            self.times: list[float] = []

        def see(self, frame):
            self.times.append(frame.time)

    rows = batch({"bytes": (folder / "a.mp4").read_bytes(), "path": "a.mp4"}, None)
    before = Decodes.files
    (watcher, track), none = watched(rows, "video", lambda header: Times())
    assert none is None
    assert watcher.times == track.time.tolist()
    assert tracks(rows, "video")[0] is track
    assert Decodes.files == before + 1


@pytest.mark.parametrize(
    ("policy", "times"),
    [
        (FramePolicy("every", every_s=2.0), [0, 2, 4, 6, 8]),
        (FramePolicy("every", every_s=1.0, max_frames=3), [0, 3, 6]),
        (FramePolicy("number", number=3), [1.5, 4.5, 7.5]),
        (FramePolicy("middle"), [4.5]),
        (FramePolicy("keys", every_s=3.0), [0, 3.6, 6.4]),
    ],
)
def test_policies_choose_frames(folder, policy, times):
    found = take_stills(item(folder / "a.mp4"), policy, 256)
    assert [still.time for still in found] == pytest.approx(times)
    assert {still.pixels.shape for still in found} == {(120, 160, 3)}


def test_stills_show_the_colours_of_the_source(folder):
    middle = take_stills(item(folder / "a.mp4", "#t=0,4"), FramePolicy("middle"), 256)[0]
    drawn = scene(1)(round(middle.time * 10)).astype(int)
    assert np.abs(middle.pixels.astype(int) - drawn).mean() < 12
    shifted = scene(1)(round(middle.time * 10) + 3).astype(int)
    assert np.abs(middle.pixels.astype(int) - shifted).mean() > 20


def test_stills_of_one_policy_are_decoded_once(folder):
    rows = batch({"bytes": (folder / "a.mp4").read_bytes(), "path": "a.mp4"})
    before = Decodes.files
    first = stills(rows, "video", FramePolicy("number", number=2))
    assert stills(rows, "video", FramePolicy("number", number=2), side=200)[0] is first[0]
    assert Decodes.files == before + 1


class Pipe(io.RawIOBase):
    """A file that cannot be rewound, so that its header does not say how long it is."""

    def __init__(self) -> None:
        self.written = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        self.written += bytes(data)
        return len(data)


@pytest.mark.parametrize(
    ("container", "codec", "seconds"), [("webm", "libvpx-vp9", 6), ("matroska", "libx264", 6), ("h264", "libx264", 2.4)]
)
def test_a_video_of_unknown_duration_has_stills_of_all_its_parts(container, codec, seconds, tmp_path):
    """As a browser records it. 60 frames at 10 per second; a stream without container has 25."""
    pipe = Pipe()
    with av.open(io.BytesIO(video([(scene(1), 60)], codec=codec))) as source:
        stream = source.streams.video[0]
        with av.open(pipe, "w", format=container) as output:
            made = output.add_stream_from_template(stream)
            for packet in source.demux(stream):
                if packet.dts is not None:
                    packet.stream = made
                    output.mux(packet)
    row = MediaItem("a", "a", MediaAccess(), memoryview(bytes(pipe.written)))
    assert math.isnan(header_of(row).duration)
    step = seconds / 60
    for policy, times in (
        (FramePolicy("number", number=4), [seconds * (2 * each + 1) / 8 for each in range(4)]),
        (FramePolicy("middle"), [seconds / 2]),
        (FramePolicy("every", every_s=seconds / 6, max_frames=3), [0, seconds / 3, seconds * 2 / 3]),
    ):
        assert [still.time for still in take_stills(row, policy, 256)] == pytest.approx(times, abs=step)
    (tmp_path / "a.mkv").write_bytes(pipe.written)
    clip = item(tmp_path / "a.mkv", "#t=1,90")
    half = 1 + (seconds - 1) / 2
    assert take_stills(clip, FramePolicy("middle"), 256)[0].time == pytest.approx(half, abs=step)


def test_a_still_far_into_a_video_is_found_by_its_key_frame(folder):
    before = Decodes.frames
    take_stills(item(folder / "a.mp4", "#t=6.5,9"), FramePolicy("middle"), 256)
    assert Decodes.frames - before < 30


def test_rotated_videos_are_upright():
    data = video(
        [(lambda _: np.dstack([np.tile(np.linspace(0, 255, 160).astype(np.uint8), (120, 1))] * 3), 3)], rotation=90
    )
    row = MediaItem("a.mp4", "a", MediaAccess(), memoryview(data))
    header = header_of(row)
    assert (header.width, header.height, header.rotation) == (120, 160, 90)
    picture = take_stills(row, FramePolicy("middle"), 256)[0].pixels
    assert picture.shape == (160, 120, 3)
    assert picture[10].mean() > 200 > 50 > picture[-10].mean()  # turned counterclockwise: what was right is on top


@pytest.mark.parametrize(
    ("codec", "container", "pixel_format"),
    [
        ("libx264", "matroska", "yuv444p"),
        ("libx265", "mp4", "yuv420p10le"),
        ("libvpx-vp9", "webm", "yuv420p"),
        ("libsvtav1", "mp4", "yuv420p"),
        ("mpeg4", "avi", "yuv420p"),
        ("ffv1", "matroska", "bgr0"),
        ("prores_ks", "mov", "yuv422p10le"),
    ],
)
def test_codecs_and_pixel_formats_give_the_same_measures(codec, container, pixel_format):
    quiet = {"x265-params": "log-level=none:pools=none"} if codec == "libx265" else {}
    data = video(
        [(scene(1), 6), (plain(200), 4)], codec=codec, container=container, pixel_format=pixel_format, options=quiet
    )
    track = decode_track(MediaItem("a", "a", MediaAccess(), memoryview(data)))
    assert len(track) == 10
    assert track["brightness"][-1] == pytest.approx(200, abs=3)
    assert np.argmax(track["histogram_change"]) == 6
    still = take_stills(MediaItem("a", "a", MediaAccess(), memoryview(data)), FramePolicy("number", number=1), 256)[0]
    assert np.abs(still.pixels.astype(int) - scene(1)(round(still.time * 10)).astype(int)).mean() < 25


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "empty"),
        (b"not a video at all" * 100, "not readable"),
        (b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n", "not readable"),
        (video([(scene(1), 20)])[:3000], "not readable"),  # the index is at the end
        (only_sound(), "without picture"),
    ],
    ids=["empty", "text", "playlist", "truncated", "sound"],
)
def test_files_that_are_no_videos_are_named_as_such(data, problem):
    with pytest.raises(VideoError) as caught:
        decode_track(MediaItem("a.mp4", "a", MediaAccess(), memoryview(data)))
    assert caught.value.problem == problem


def test_frame_times_that_vary_are_kept():
    times = [0, 1, 2, 10, 11, 30, 31, 32]
    track = decode_track(MediaItem("a", "a", MediaAccess(), memoryview(video([(scene(1), 8)], times=times))))
    assert track.time.tolist() == pytest.approx([each / 10 for each in times])


def test_fixed_clips_refer_to_parts_of_the_video(folder):
    rows = batch({"bytes": None, "path": str(folder / "a.mp4")}, None)
    rows.access = MediaAccess((str(folder),))
    table, parents = FixedClips(length_s=4.0, min_length_s=1.0).expand(rows)
    assert [each and each["path"].partition("#")[2] for each in table.column("video").to_pylist()] == [
        "t=0,4", "t=4,8", "t=8,9", None,
    ]  # fmt: skip
    assert parents.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("codec", "container"), [("libx264", "mpegts"), ("mpeg2video", "mpeg"), ("libx264", "flv"), ("libx264", "mp4")]
)
def test_fixed_clips_reach_the_end_of_the_last_frame(codec, container):
    """Which is not the one that is decoded last."""
    data = video([(scene(1), 60)], codec=codec, container=container, rate=25)
    row = MediaItem("a", "a", MediaAccess(), memoryview(data))
    assert end_of(row) == pytest.approx(decode_track(row).end) == pytest.approx(2.4)


def test_fixed_clips_do_not_depend_on_the_other_videos_of_a_batch(tmp_path):
    (tmp_path / "a.mp4").write_bytes(video([(scene(1), 4)], times=[0, 10, 11, 40]))
    (tmp_path / "b.h264").write_bytes(video([(scene(1), 50)], container="h264", rate=25))  # its packets have no times
    rows = batch(*({"bytes": None, "path": str(tmp_path / name)} for name in ("a.mp4", "b.h264")))
    rows.access = MediaAccess((str(tmp_path),))
    step = FixedClips(length_s=1.5, min_length_s=0.01)
    both, alone = step.expand(rows)[0], step.expand(rows.select(slice(0, 1)))[0]
    assert both.slice(0, len(alone)).equals(alone)
    assert alone["clip_end"].to_pylist() == [1.5, 3.0, 4.1]
    assert both["clip_end"].to_pylist()[3:] == [1.5, 2.0]


def test_frames_with_vectors_are_released_while_a_video_is_decoded():
    """A frame and its vectors refer to each other in PyAV; ninety frames of 1280 x 720 would be 120 MB."""
    import resource

    data = video([(scene(1, (1280, 720)), 90)], options={"preset": "ultrafast", "tune": "zerolatency"}, gop=90)
    row = MediaItem("a.mp4", "a", MediaAccess(), memoryview(data))
    decode_track(MediaItem("a.mp4#t=0,1", "a", MediaAccess(), memoryview(data)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert decode_track(row).coded.sum() > 80
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 80_000
