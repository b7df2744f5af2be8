"""Slides and screen recordings, whose frames are shown for different times, are intact; missing frames are still found."""

import io
import re
from pathlib import Path

import av
import numpy as np
import pytest

from tamis.errors import VideoError
from tamis.media import MediaAccess, MediaItem
from tamis.pipeline import Pipeline
from tamis.segments import Segment
from tamis.sources.mediafiles import VideoReader
from tamis.video import FixedClips, VideoBlack, VideoDecodable
from tamis.video.cut import cut_bytes
from tamis.video.decode import FramePolicy, decode_track, header_of, take_stills
from tests.video.make_videos import scene, video
from tests.video.test_filters import held, scores

SLIDES = [0, 50, 60, 61, 62, 63, 300, 320, 600, 601, 602, 900]
"""In tenths of a second."""
RECORDING = [*range(0, 30, 3), *range(30, 50), *range(200, 230, 7), *range(400, 430)]

CONTAINERS = [
    ("libx264", "mp4"), ("libx264", "mov"), ("libx264", "matroska"), ("libvpx-vp9", "webm"), ("libx264", "mpegts"),
    ("mpeg4", "avi"), ("libx264", "flv"),
]  # fmt: skip
SUFFIXES = ["mp4", "mov", "mkv", "webm", "mpg", "avi", "flv"]


def shown_at(times: list[int], codec: str = "libx264", container: str = "mp4", **options: str) -> bytes:
    return video(
        [(scene(seed), 1) for seed in range(len(times))], codec=codec, container=container, times=times, **options
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("slides")
    for (codec, container), suffix in zip(CONTAINERS, SUFFIXES, strict=True):
        (made / f"a.{suffix}").write_bytes(shown_at(SLIDES, codec, container))
    return made


def clip(path: Path, begin: float, end: float) -> MediaItem:
    return MediaItem(f"{path}#t={begin:g},{end:g}", str(path), MediaAccess())


def whole(path: Path) -> MediaItem:
    return MediaItem(str(path), str(path), MediaAccess())


def broken(data: bytes, begin: float, end: float) -> bytes:
    """An MP4 file whose packets between two times are zeros."""
    made = bytearray(data)
    with av.open(io.BytesIO(data)) as container:
        for packet in container.demux(video=0):
            if packet.pts is not None and begin <= packet.pts * packet.time_base < end:
                made[packet.pos : packet.pos + packet.size] = bytes(packet.size)
    return bytes(made)


@pytest.mark.parametrize(("codec", "container"), CONTAINERS)
@pytest.mark.parametrize("times", [SLIDES, RECORDING], ids=["slides", "recording"])
def test_an_intact_video_is_kept_however_long_its_frames_are_shown(codec, container, times):
    assert scores(VideoDecodable(), shown_at(times, codec, container))["decoded_share"][0] > 0.99


def test_the_last_slide_counts_as_long_as_the_container_says():
    data = cut_bytes(held(shown_at([0, 10, 20, 200])), Segment(0.0, 12.0), "encode")
    assert scores(VideoDecodable(), data)["decoded_share"] == [1.0]


@pytest.mark.parametrize("container", ["matroska", "mpegts", "flv"])
def test_a_gap_in_a_video_with_a_regular_rate_is_a_loss(container):
    times = [*range(100), *range(150, 200)]
    data = shown_at(times, "libx264", container)
    assert scores(VideoDecodable(), data)["decoded_share"] == pytest.approx([0.8], abs=0.02)


@pytest.mark.parametrize(
    "times", [range(200), sorted({*range(0, 200, 9), *range(60, 100)})], ids=["regular", "irregular"]
)
def test_broken_packets_of_an_mp4_file_are_a_loss(times):
    data = broken(shown_at(list(times), gop=5), 6.0, 12.0)
    assert scores(VideoDecodable(), data)["decoded_share"] == pytest.approx([0.72], abs=0.06)


def test_a_video_that_begins_late_is_intact():
    """Matroska says when a recording ends, not how long it lasts."""
    target = io.BytesIO()
    with (
        av.open(io.BytesIO(video([(scene(1), 40)]))) as source,
        av.open(target, "w", format="matroska") as output,
    ):
        stream = source.streams.video[0]
        made = output.add_stream_from_template(stream)
        for packet in source.demux(stream):
            if packet.dts is not None:
                late = round(5 / packet.time_base)
                packet.pts, packet.dts, packet.stream = packet.pts + late, packet.dts + late, made
                output.mux(packet)
    header = header_of(held(target.getvalue()))
    assert (header.duration, header.num_frames) == (pytest.approx(4.0), 40)
    assert scores(VideoDecodable(), target.getvalue())["decoded_share"] == [1.0]


@pytest.mark.parametrize(
    ("container", "codec", "sound"), [("webm", "libvpx-vp9", "libopus"), ("mp4", "libx264", "aac")]
)
def test_a_video_whose_sound_lasts_longer_is_intact(container, codec, sound):
    """WebM says how long the file lasts, and in a tag how long the picture does."""
    picture = video([(scene(1), 20)], codec=codec, container=container)
    longer = video([(scene(2), 40)], codec=codec, container=container, sound=sound)
    target = io.BytesIO()
    with (
        av.open(io.BytesIO(picture)) as one,
        av.open(io.BytesIO(longer)) as other,
        av.open(target, "w", format=container) as output,
    ):
        streams = one.streams.video[0], other.streams.audio[0]
        made = [output.add_stream_from_template(stream) for stream in streams]
        for source, stream, into in zip((one, other), streams, made, strict=True):
            for packet in source.demux(stream):
                if packet.dts is not None:
                    packet.stream = into
                    output.mux(packet)
    assert header_of(held(target.getvalue())).duration == pytest.approx(2.0)
    assert scores(VideoDecodable(), target.getvalue())["decoded_share"] == [1.0]


def test_a_missing_fragment_of_an_mp4_file_is_a_loss():
    steady = {"x264-params": "scenecut=0"}
    times = list(range(0, 200, 4))
    data = video(
        [(scene(1), 50)], times=times, gop=5, options=steady, movflags="frag_keyframe+empty_moov+default_base_moof"
    )
    places = [found.start() - 4 for found in re.finditer(b"moof", data)]
    assert len(places) == 10
    lacking = data[: places[3]] + data[places[6] :]
    assert decode_track(held(data)).decoded_seconds() == pytest.approx(20.0, abs=0.5)
    assert decode_track(held(lacking)).decoded_seconds() == pytest.approx(14.0, abs=1.1)


# --------------------------------------------------------------------------------------------------------------- clips

SPANS = [(0.0, 10.0), (2.0, 4.5), (5.5, 20.0), (10.0, 20.0), (10.0, 40.0), (29.5, 33.0), (60.05, 60.15), (31.5, 95.0)]


@pytest.mark.parametrize("container", SUFFIXES[:-1])
@pytest.mark.parametrize(("begin", "end"), SPANS)
def test_the_part_of_a_track_is_that_of_the_clip(folder, container, begin, end):
    path = folder / f"a.{container}"
    part = decode_track(whole(path)).part(begin, end)
    alone = decode_track(clip(path, begin, end))
    np.testing.assert_allclose(part.time, alone.time, atol=1e-5)
    for name in ("key", "numbers", "patches", "bars", "hashes", "coded"):
        np.testing.assert_array_equal(getattr(part, name), getattr(alone, name), err_msg=name)
    np.testing.assert_allclose(part.claimed, alone.claimed, atol=1e-4)
    assert part.decoded_seconds() == pytest.approx(alone.decoded_seconds(), abs=1e-3)


@pytest.mark.parametrize("container", ["mp4", "mov"])
@pytest.mark.parametrize(("begin", "end"), SPANS[:-1])
def test_a_clip_of_an_intact_video_is_intact(folder, container, begin, end):
    track = decode_track(clip(folder / f"a.{container}", begin, end))
    assert track.decoded_seconds() >= 0.99 * track.duration


@pytest.mark.parametrize("container", SUFFIXES[:-1])
def test_the_first_frame_of_a_clip_is_the_one_that_is_shown_at_its_begin(folder, container):
    path = folder / f"a.{container}"
    video_track = decode_track(whole(path))
    track = decode_track(clip(path, 10.0, 31.0))  # frames begin at 6.3 and 30.0
    assert track.time.tolist() == pytest.approx([10.0, 30.0])
    assert track.hashes.tolist() == video_track.hashes[5:7].tolist()
    soon = decode_track(clip(path, 29.5, 31.0))
    assert soon.time.tolist() == pytest.approx([30.0]), "the next frame follows within a second"


@pytest.mark.parametrize("kind", ["every", "number", "middle", "keys"])
@pytest.mark.parametrize("container", SUFFIXES[:-1])
def test_a_clip_in_which_no_frame_begins_has_the_frame_that_is_shown(folder, container, kind):
    path = folder / f"a.{container}"
    (still,) = take_stills(clip(path, 10.0, 20.0), FramePolicy(kind), 256)
    assert 10.0 <= still.time < 20.0
    assert np.abs(still.pixels.astype(int) - scene(5)(0)).mean() < 20


@pytest.mark.parametrize("mode", ["auto", "encode"])
@pytest.mark.parametrize("container", SUFFIXES[:-1])
@pytest.mark.parametrize(
    ("begin", "end", "times"),
    [(10, 20, [0]), (10, 14, [0]), (25, 31, [0, 5]), (40, 70, [0, 20, 20.1, 20.2])],
)
def test_an_encoded_clip_of_slides_is_as_long_as_its_times_say(folder, container, begin, end, times, mode):
    path = folder / f"a.{container}"
    made = held(cut_bytes(whole(path), Segment(begin, end), mode))
    assert header_of(made).duration == pytest.approx(end - begin, abs=0.01)
    assert decode_track(made).time.tolist() == pytest.approx(times, abs=0.01)


def test_fixed_clips_of_slides_all_have_frames(folder):
    report = Pipeline(VideoReader(str(folder)), FixedClips(), VideoBlack()).run(executor="inline")
    assert (report.kept, report.dropped, report.failed) == (63, {}, 0)
    report = Pipeline(VideoReader(str(folder / "*.m[po][4v]")), FixedClips(), VideoDecodable()).run(executor="inline")
    assert (report.kept, report.dropped, report.failed) == (18, {}, 0)


def test_a_clip_after_the_end_of_a_video_has_no_frames(tmp_path):
    for container in ("mp4", "matroska"):
        path = tmp_path / f"a.{container}"
        path.write_bytes(shown_at([0, 10, 20], container=container))
        with pytest.raises(VideoError, match="without frames"):
            decode_track(clip(path, 5.0, 9.0))
        assert not len(decode_track(whole(path)).part(9.0, 12.0))


def test_a_clip_without_a_key_frame_has_a_still(tmp_path):
    (tmp_path / "a.mp4").write_bytes(video([(scene(1), 30)], gop=30))
    assert len(take_stills(clip(tmp_path / "a.mp4", 1.0, 2.0), FramePolicy("keys"), 256)) == 1
