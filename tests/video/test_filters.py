"""Filters find planted parts: black, frozen, letterboxed, flashing, still and shaking videos."""

import dataclasses
import io
import math
from typing import Any

import av
import numpy as np
import pytest

from tamis.audio.files import read_blocks
from tamis.batch import Batch
from tamis.errors import ColumnError, ParameterError
from tamis.executors.opening import opened
from tamis.executors.steps import apply_step
from tamis.media import MediaAccess, MediaItem
from tamis.operators import Filter
from tamis.segments import Segment
from tamis.video import (
    FixedClips,
    FrameColumns,
    FrameFilter,
    Shots,
    TimedClips,
    VectorMotion,
    VideoBars,
    VideoBitRate,
    VideoBlack,
    VideoCut,
    VideoDecodable,
    VideoDuration,
    VideoFlashing,
    VideoFrozen,
    VideoMotion,
    VideoPreview,
    VideoProbe,
    VideoRate,
    VideoShake,
    VideoSize,
    VideoSound,
)
from tamis.video.cut import cut_bytes
from tamis.video.decode import FramePolicy, decode_track, header_of, take_stills
from tamis.video.files import Decodes
from tests.video.make_videos import only_sound, plain, scene, video


def rows(*files: bytes | None) -> Batch:
    return Batch.from_rows(
        [{"video": {"bytes": file, "path": "a.mp4"} if file is not None else None} for file in files]
    )


def scores(step: Filter, *files: bytes | None) -> dict[str, list]:
    with opened(step) as runner:
        return {name: list(np.asarray(values)) for name, values in runner.score(rows(*files)).items()}


def held(data: bytes) -> MediaItem:
    return MediaItem("a.mp4", "a", MediaAccess(), memoryview(data))


MOVING = video([(scene(1), 30)])


def test_the_share_of_black_is_that_of_its_time():
    assert scores(VideoBlack(), video([(scene(1), 30), (plain(4), 10)]), MOVING)["black_share"] == [0.25, 0.0]


def test_a_part_that_stands_still_is_frozen():
    still = lambda frame: scene(1)(0)  # noqa: E731
    assert scores(VideoFrozen(), video([(scene(2), 10), (still, 30)], options={"qp": "0"}), MOVING)["frozen_share"] == [
        0.75,
        0.0,
    ]
    assert scores(VideoFrozen(), video([(scene(2), 30), (still, 10)]))["frozen_share"] == [0.0], "shorter than 2 s"


def test_bars_are_black_in_all_frames():
    def boxed(frame: int) -> np.ndarray:
        picture = scene(1)(frame).copy()
        picture[:30] = picture[-30:] = 0
        return picture

    found = scores(VideoBars(), video([(boxed, 10), (plain(0), 10)]), MOVING)["bar_share"]
    assert found == pytest.approx([0.5, 0.0], abs=0.05)


def test_flashes_are_counted_in_one_second():
    strobe = lambda frame: plain(255 if frame % 2 else 0)(frame)  # noqa: E731
    found = scores(VideoFlashing(), video([(strobe, 30)], gop=1), MOVING)["flashes"]
    assert found[0] >= 5
    assert found[1] == 0


def test_motion_and_its_calmest_part():
    def half(frame: int) -> np.ndarray:
        picture = scene(1)(frame).copy()
        picture[60:] = 100
        return picture

    still = video([(plain(100), 30)])
    found = scores(VideoMotion(), MOVING, video([(half, 30)]), still)
    assert found["motion"][0] > found["motion"][1] > 0.5 > found["motion"][2]
    assert found["patch_motion"][0] > 0.5 > found["patch_motion"][1] == 0.0


@pytest.mark.parametrize(
    ("codec", "container", "source"),
    [("libx264", "mp4", "codec"), ("mpeg4", "avi", "codec"), ("mpeg2video", "mpegts", "codec"),
     ("libx265", "mp4", "frames"), ("libvpx-vp9", "webm", "frames"), ("libsvtav1", "mp4", "frames"),
     ("mjpeg", "avi", "frames")],
)  # fmt: skip
def test_vectors_of_the_codec_have_the_length_of_the_planted_motion(codec, container, source):
    """Four pixels per frame of 320 + 240; half of the picture stands still in the second video."""
    size = (320, 240)
    # The vectors of B-frames reach over several frames, and are longer.
    options = {"libx265": {"x265-params": "log-level=none:pools=none"}, "libx264": {"bf": "0"}}.get(codec, {})
    common = {"codec": codec, "container": container, "options": options, "rate": 25}
    common["pixel_format"] = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    moving, still = scene(1, size, speed=4), plain(90, size)

    def half(frame: int) -> np.ndarray:
        return np.vstack([moving(frame)[:120], moving(0)[120:]])

    found = scores(VectorMotion(), *(video([(draw, 16)], **common) for draw in (moving, half, still)), None)
    assert found["vector_source"] == [source, source, source, None]
    whole, part, none, missing = found["vector_motion"]
    assert whole == pytest.approx(4 / 560, rel=0.35)
    assert 0.3 * whole < part < 0.8 * whole
    assert none < 1e-5
    assert np.isnan(missing)
    assert found["vector_patch_motion"][0] > 0.001 > found["vector_patch_motion"][1]
    step = VectorMotion()
    with opened(step) as runner:
        done = apply_step(step, rows(*(video([(draw, 16)], **common) for draw in (moving, still))), runner=runner)
    assert [reason for reason, _ in done.verdicts] == ["vector_motion < 0.00098"]


def test_a_video_of_key_frames_only_has_no_vectors():
    found = scores(VectorMotion(), video([(scene(1, (320, 240), speed=4), 16)], gop=1))
    assert found["vector_source"] == ["frames"]
    assert found["vector_motion"][0] == pytest.approx(4 / 560, rel=0.35)


def test_motion_by_pixels_and_by_vectors_costs_one_decode():
    batch, before = rows(MOVING), Decodes.frames
    VideoMotion().score(batch)
    VectorMotion().score(batch)
    assert Decodes.frames - before == 30


def test_a_trembling_camera_shakes_and_a_steady_one_does_not():
    base = scene(1, (320, 240), speed=0)(0)
    shifts = np.random.default_rng(0).integers(-12, 13, (40, 2))
    shaking = lambda frame: np.roll(base, tuple(shifts[frame]), axis=(0, 1))  # noqa: E731
    steady = lambda frame: np.roll(base, 2 * frame, axis=1)  # noqa: E731
    found = scores(VideoShake(), video([(shaking, 40)]), video([(steady, 40)]))["shake"]
    assert found[0] > 1.5
    assert found[1] < 0.7


def test_headers_decide_without_decoding():
    before = Decodes.frames
    data = video([(scene(1), 25)], sound="aac")
    assert scores(VideoDuration(), data)["video_duration"] == pytest.approx([2.5], abs=0.05)
    assert scores(VideoSize(), data) == {"video_width": [160], "video_height": [120]}
    assert scores(VideoRate(), data)["video_rate"] == [10.0]
    assert scores(VideoSound(), data, MOVING)["audio_channels"] == [2, 0]
    assert 0.01 < scores(VideoBitRate(), data)["bits_per_pixel"][0] < 10
    probed = VideoProbe().apply(rows(data, None))
    assert np.asarray(probed["video_codec"])[0] == "h264"
    assert Decodes.frames == before


def test_shots_are_split_at_cuts():
    data = video([(scene(1), 30), (scene(2), 25), (scene(3), 8), (scene(4), 120)])
    (table, _), track = Shots().expand(rows(data)), decode_track(held(data))
    found = list(zip(table.column("clip_begin").to_pylist(), table.column("clip_end").to_pylist(), strict=True))
    assert found == [(0, 3), (3, 5.5), (6.3, 16.3), (16.3, 18.3)], "the third shot is too short, the fourth too long"
    truncated, _ = Shots(max_length_mode="truncate", crop_s=0.5).expand(rows(data))
    begins = truncated.column("clip_begin").to_pylist()
    assert list(zip(begins, truncated.column("clip_end").to_pylist(), strict=True)) == [(0, 2.5), (6.8, 16.8)]
    assert len(track) == 183
    whole, _ = Shots(whole_scene=False).expand(rows(MOVING))
    assert whole.num_rows == 0
    assert Shots().expand(rows(MOVING))[0].column("clip_end").to_pylist() == [3.0]


def test_clips_at_the_times_of_a_transcript():
    segments = [{"begin": 0.2, "end": 1.0, "text": "hello"}, {"begin": 1.0, "end": 2.5, "text": "world"}]
    batch = Batch.from_rows([{"video": {"bytes": MOVING, "path": "a.mp4"}, "segments": segments}])
    table, parents = TimedClips(fields=["text"]).expand(batch)
    assert table.column("text").to_pylist() == ["hello", "world"]
    assert parents.tolist() == [0, 0]
    lengths = [header_of(held(each["bytes"])).num_frames for each in table.column("video").to_pylist()]
    assert lengths == [8, 15], "a row that holds its bytes is cut at once"


def test_fields_of_a_row_without_video_are_null():
    segments = [{"begin": 0.2, "end": 1.0, "text": "hello"}]
    batch = Batch.from_rows(
        [{"video": None, "segments": segments}, {"video": {"bytes": MOVING, "path": "a.mp4"}, "segments": segments}]
    )
    table, parents = TimedClips(fields=["text"]).expand(batch)
    assert (table.column("text").to_pylist(), parents.tolist()) == ([None, "hello"], [0, 1])


@pytest.mark.parametrize("segments", ["0 to 1", [1.0], {"begin": 0.0, "end": 1.0}])
def test_segments_other_than_lists_of_times_are_an_error(segments):
    batch = Batch.from_rows([{"video": {"bytes": MOVING, "path": "a.mp4"}, "segments": segments}])
    with pytest.raises(ColumnError, match="holds lists of structs"):
        TimedClips().expand(batch)


@pytest.mark.parametrize(
    ("step", "wrong"),
    [
        (FixedClips, {"length_s": math.inf}),
        (FixedClips, {"stride_s": math.inf}),
        (TimedClips, {"fields": ["text", "clip_begin"]}),
        (TimedClips, {"fields": ["text", "text"]}),
        (VideoCut, {"quality": 52}),
        (VideoCut, {"quality": 52, "codec": "h265"}),
        (VideoCut, {"quality": 64, "codec": "av1"}),
    ],
)
def test_values_that_cannot_work_are_refused(step, wrong):
    with pytest.raises(ParameterError):
        step(**wrong).check()


def test_the_bit_rate_is_null_if_the_frame_rate_is_unknown(monkeypatch):
    header = dataclasses.replace(header_of(held(MOVING)), rate=math.nan)
    monkeypatch.setattr("tamis.video.filters.headers", lambda batch, column: [header])
    assert VideoBitRate().score(rows(MOVING))["bits_per_pixel"].to_pylist() == [None]


@pytest.mark.parametrize("codec", ["h264", "h265", "vp9", "av1"])
def test_a_clip_is_cut_to_the_frame_with_its_sound(codec):
    data = video([(scene(1), 20), (scene(2), 20)], sound="aac", gop=50)
    made = cut_bytes(held(data), Segment(1.5, 3.1), "encode", codec)
    header = header_of(held(made))
    track = decode_track(held(made))
    assert len(track) == 16
    assert np.argmax(track["histogram_change"]) == 5
    assert header.audio_codec == "aac"
    assert header.duration == pytest.approx(1.6, abs=0.05)
    if codec == "h264":
        assert made == cut_bytes(held(data), Segment(1.5, 3.1), "encode", codec), "the same bytes again"


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("codec", ["h264", "h265", "vp9", "av1"])
def test_a_clip_of_few_frames_can_be_encoded(codec, number):
    for _ in range(6):
        made = cut_bytes(held(MOVING), Segment(0.5, 0.5 + number / 10), "encode", codec)
        assert decode_track(held(made)).time.tolist() == pytest.approx([each / 10 for each in range(number)])


def test_a_clip_between_key_frames_is_copied_without_loss():
    data = video([(scene(1), 12), (scene(2), 12), (scene(3), 12)], gop=12, options={"bf": "0"}, sound="aac")
    whole = decode_track(held(data))
    made = cut_bytes(held(data), Segment(1.2, 2.4))
    track = decode_track(held(made))
    assert np.array_equal(track.hashes, whole.hashes[12:24])
    assert np.array_equal(track["brightness"], whole["brightness"][12:24])
    inexact = decode_track(held(cut_bytes(held(data), Segment(1.5, 2.4), "copy")))
    assert len(inexact) == 12, "copying begins at the key frame"


OPEN = {"x264-params": "open-gop=1:bframes=3:scenecut=0:b-adapt=0"}


def test_a_clip_whose_last_frames_need_the_next_key_frame_is_encoded():
    data = video([(scene(1), 60)], gop=12, options=OPEN)
    whole = decode_track(held(data))
    begin, end = whole.time[whole.key][1:3]
    made = decode_track(held(cut_bytes(held(data), Segment(begin, end))))
    assert len(made) == len(whole.part(begin, end)) == 12


def test_a_copy_has_the_frames_that_its_last_frames_need():
    data = video([(scene(1), 60)], gop=12, options=OPEN)
    whole = decode_track(held(data))
    for number in range(15, 30):
        end = whole.time[number]
        made = decode_track(held(cut_bytes(held(data), Segment(1.2, end), "copy")))
        wanted = number - 12
        assert wanted <= len(made) <= wanted + 4
        np.testing.assert_array_equal(made.hashes[:wanted], whole.hashes[12:number])
        np.testing.assert_array_equal(made["brightness"][:wanted], whole["brightness"][12:number])


def test_a_clip_of_a_stream_without_a_container_is_encoded():
    data = video([(scene(1), 50)], container="h264", rate=25)
    assert len(decode_track(held(cut_bytes(held(data), Segment(0.4, 1.2))))) == 20


def _beep(container: str, sound: str) -> bytes:
    """Four seconds of picture, with a tone from second 2.1 on."""
    target = io.BytesIO()
    with av.open(target, "w", format=container) as output:
        pictures: Any = output.add_stream("mpeg4", rate=10)
        pictures.width, pictures.height, pictures.pix_fmt = 64, 48, "yuv420p"
        stream: Any = output.add_stream(sound, rate=48_000, layout="mono")
        for number in range(40):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 5 * number, np.uint8), format="rgb24")
            frame.pts = number
            output.mux(pictures.encode(frame))
        output.mux(pictures.encode(None))
        time = np.arange(4 * 48_000) / 48_000
        wave = np.where(time < 2.1, 0, 16_000 * np.sin(2 * np.pi * 440 * time)).astype(np.int16)
        piece = av.AudioFrame.from_ndarray(wave[None], format="s16", layout="mono")
        piece.rate, piece.pts = 48_000, 0
        output.mux(stream.encode(piece))  # one packet of plain samples in some containers
        output.mux(stream.encode(None))
    return target.getvalue()


@pytest.mark.parametrize(("container", "sound"), [("avi", "pcm_s16le"), ("mov", "pcm_s16le"), ("mpeg", "mp2")])
@pytest.mark.parametrize("begin", [0.5, 1.53, 2.0])
def test_sound_that_is_encoded_again_stays_with_its_picture(container, sound, begin):
    made = cut_bytes(held(_beep(container, sound)), Segment(begin, 3.5))
    wave = np.concatenate([*read_blocks(io.BytesIO(made))], axis=1)[0]
    assert np.argmax(np.abs(wave) > 0.1) / 48_000 == pytest.approx(2.1 - begin, abs=0.003)
    assert len(wave) / 48_000 == pytest.approx(3.5 - begin, abs=0.03)


def test_a_cut_keeps_the_rotation():
    data = video([(scene(1), 20)], rotation=90)
    made = cut_bytes(held(data), Segment(0.5, 1.5), "encode")
    assert (header_of(held(made)).width, header_of(held(made)).rotation) == (120, 90)


def test_video_cut_leaves_whole_videos_as_they_are():
    batch = rows(MOVING, None)
    assert VideoCut().apply(batch)["video"].equals(batch["video"])
    assert VideoCut(mode="encode", codec="h265").apply(batch)["video"].to_pylist()[0]["path"] == "a.mp4"


def test_any_filter_on_images_works_on_frames():
    dark = video([(plain(2), 10), (scene(1), 10)])
    step = FrameFilter({"image_brightness": {}}, reduce="min", number=4)
    with opened(step) as runner:
        before = Decodes.files
        done = apply_step(step, rows(dark, MOVING, None), runner=runner)
        assert Decodes.files == before + 2
    assert [reason for reason, _ in done.verdicts] == ["brightness is missing", "brightness < 10"]
    assert len(done.batch) == 1
    share = FrameFilter({"image_brightness": {}}, reduce="share", number=4)
    assert scores(share, dark, MOVING)["image_brightness_share"] == [0.5, 1.0]


def test_frames_are_the_same_as_images_and_as_files():
    """A step that reads files gets each frame as a PNG with the same pixels."""
    step = FrameColumns({"image_digest": {"of": "pixels"}}, number=2)
    with opened(step) as runner:
        found = runner.apply(rows(MOVING))["image_digest"].to_pylist()
    stills = take_stills(held(MOVING), FramePolicy("number", number=2), 256)
    from tamis.image.edit import _pixel_digest

    assert found == [[_pixel_digest(still.pixels) for still in stills]]


def test_previews_are_animations_or_sheets():
    from io import BytesIO

    from PIL import Image

    made = VideoPreview(height=64).apply(rows(MOVING, None))["preview"].to_pylist()
    image = Image.open(BytesIO(made[0]["bytes"]))
    assert (image.format, image.n_frames, image.height, made[1]) == ("WEBP", 3, 64, None)
    sheet = VideoPreview(form="sheet", height=64).apply(rows(MOVING))["preview"].to_pylist()[0]
    assert Image.open(BytesIO(sheet["bytes"])).size == (4 * (85 + 4), 3 * (64 + 18))


# ----------------------------------------------------------------------------------------------------------- bad input


def damaged_in_the_middle() -> bytes:
    data = bytearray(video([(scene(seed), 20) for seed in range(3)], container="matroska", gop=5))
    middle = len(data) // 2
    data[middle : middle + 2500] = bytes(2500)
    return bytes(data)


def claiming_a_billion_frames() -> bytes:
    """A Matroska file whose header says that it lasts a billion frames of 1/10 second."""
    data = video([(scene(1), 20)], container="matroska")
    place = data.index(b"\x44\x89\x88")  # Duration, 8 bytes
    return data[: place + 3] + np.array(1e11, ">f8").tobytes() + data[place + 11 :]


@pytest.mark.parametrize(
    ("data", "problem", "share"),
    [
        (video([(scene(1), 20)])[:3000], "not readable", 0.0),
        (only_sound(), "without picture", 0.0),
        (video([(scene(1), 20)], container="matroska")[:900], "without frames", 0.0),
        (None, "missing", 0.0),
        (b"", "empty", 0.0),
        (claiming_a_billion_frames(), "fine", 0.0),
        (damaged_in_the_middle(), "fine", None),
        (video([(scene(1), 30)], container="mpegts")[:-9000], "fine", None),
    ],
    ids=["no index", "only sound", "no frames", "no row", "empty", "a billion frames", "broken packets", "cut off"],
)
def test_damaged_videos_are_dropped_with_a_reason(data, problem, share):
    found = scores(VideoDecodable(), data)
    assert found["video_problem"] == [problem]
    if share is not None:
        assert found["decoded_share"][0] == pytest.approx(share, abs=1e-4)
    else:
        assert 0.2 < found["decoded_share"][0] <= 1.0


def test_a_claim_of_a_billion_frames_costs_nothing():
    data = claiming_a_billion_frames()
    assert header_of(held(data)).duration == pytest.approx(1e8)
    assert len(decode_track(held(data))) == 20
    assert len(take_stills(held(data), FramePolicy("number", number=4), 256)) == 4
    assert len(take_stills(held(data), FramePolicy("every"), 256)) == 2


def test_deep_colours_with_a_high_dynamic_range_are_read():
    quiet = {"x265-params": "log-level=none:pools=none:colorprim=bt2020:transfer=smpte2084:colormatrix=bt2020nc"}
    data = video([(scene(1), 10)], codec="libx265", pixel_format="yuv420p10le", options=quiet)
    header = header_of(held(data))
    assert (header.hdr, header.pixel_format) == ("pq", "yuv420p10le")
    assert len(decode_track(held(data))) == 10


def test_metadata_that_are_not_utf8_do_no_harm():
    data = video([(scene(1), 10)], container="matroska")
    data = data.replace(b"Lavf", b"\xff\xfe\xe9\xe8")
    assert header_of(held(data)).width == 160
