"""Deduplication of real files: sounds and videos that were encoded again, made louder or smaller, or cut."""

import io
from dataclasses import replace
from fractions import Fraction

import av
import numpy as np
import pytest
from typer.testing import CliRunner

from tamis import ParquetWriter, Pipeline, Rows
from tamis.audio import AudioDigest, AudioFingerprint
from tamis.audio.files import encoded
from tamis.dedup import AudioDedup, ExactDedup, Groups, VideoDedup
from tamis.dedup.commands import app
from tamis.errors import VideoError
from tamis.recipes.load import load_recipe
from tamis.video import VideoDigest, VideoHashes
from tamis.video.decode import Track
from tamis.video.hashing import sampled_hashes
from tests.dedup.deduplicate import kept_and_pairs
from tests.video import make_videos

RATE = 16_000


def fates(rows, step, per_partition=50, **options):
    """(ids of the kept rows, {dropped id: (kept id, similarity, offset in seconds)})"""
    kept, pairs = kept_and_pairs(rows, step, per_partition, **options)
    return kept, {row["id"]: (row["kept_id"], row["similarity"], row["offset"]) for row in pairs}


def melody(seconds, seed, rate=RATE):
    """Notes of three voices that change four times a second, with noise: float32[1, samples]."""
    rng = np.random.default_rng(seed)
    time = np.arange(round(seconds * rate)) / rate
    pitch = 200 * 2 ** rng.uniform(0, 4, (int(seconds * 4) + 1, 3))
    loud = rng.uniform(0.2, 1, pitch.shape)
    note = (time * 4).astype(int)
    wave = (np.sin(2 * np.pi * np.cumsum(pitch[note], axis=0) / rate) * loud[note]).sum(axis=1) / 8
    return (wave + rng.normal(0, 0.002, len(time))).astype(np.float32)[None]


def sound_rows(*files):
    return [{"id": f"v{number}", "audio": {"bytes": data, "path": None}} for number, data in enumerate(files)]


@pytest.fixture(scope="module")
def sounds():
    """A melody in several formats and at several levels, excerpts of it, another melody, and silence."""
    one, two = melody(12, 1), melody(9, 2)
    noise = np.random.default_rng(3).normal(0, 0.1 * np.sqrt(np.mean(one**2)), one.shape).astype(np.float32)
    return sound_rows(
        encoded(one, RATE, "wav"),
        encoded(one, RATE, "flac"),
        encoded(one, RATE, "mp3", bitrate=64_000),
        encoded(one, RATE, "opus", bitrate=24_000),
        encoded(one * np.float32(0.2), RATE, "wav"),
        encoded(one + noise, RATE, "wav"),
        encoded(one[:, 50_017:120_000], RATE, "mp3", bitrate=64_000),
        encoded(two, RATE, "wav"),
        encoded(np.concatenate([two[:, :60_000], melody(6, 4)], axis=1), RATE, "wav"),
        encoded(np.zeros((1, 5 * RATE), np.float32), RATE, "wav"),
        encoded(np.zeros((1, 6 * RATE), np.float32), RATE, "flac"),
    )


def test_copies_and_excerpts_of_a_sound_are_found_with_their_offset(sounds):
    kept, pairs = fates(sounds, AudioDedup(keep="first"), per_partition=4)
    assert kept == ["v0", "v7", "v8", "v9", "v10"], "half of v8 is in v7; silence is compared with nothing"
    assert {name: twin for name, (twin, _, _) in pairs.items()} == dict.fromkeys(
        ["v1", "v2", "v3", "v4", "v5", "v6"], "v0"
    )
    assert all(similarity > 0.9 for _, similarity, _ in pairs.values())
    assert abs(pairs["v6"][2] - 50_017 / RATE) < 0.1, "an MP3 file may begin with a few samples more"
    assert abs(pairs["v5"][2]) == 0
    with_columns = Pipeline(Rows(sounds), AudioFingerprint()).collect(executor="inline").to_pylist()
    stored = [{"id": row["id"], "fingerprint": row["fingerprint"]} for row in with_columns]
    assert fates(stored, AudioDedup(keep="first", hash_column="fingerprint")) == (kept, pairs)


def test_sounds_that_cannot_be_decoded_fail_and_rows_without_sound_are_kept(sounds, tmp_path):
    rows = [
        *sounds[:2],
        {"id": "bad", "audio": {"bytes": b"RIFF not a sound", "path": "a.wav"}},
        {"id": "none", "audio": None},
    ]
    pipeline = Pipeline(Rows(rows), AudioDedup(), ParquetWriter(str(tmp_path)))
    report = pipeline.run(workers=1, max_failed="100%")
    assert (report.kept, report.failed, report.dropped, report.balances) == (2, 1, {"similar audio": 1}, True)


def test_files_with_the_same_samples_have_the_same_digest(sounds):
    pipeline = Pipeline(Rows(sounds[:6]), AudioDigest(of="samples"), ExactDedup(column="audio_digest"))
    assert pipeline.collect(executor="inline")["id"].to_pylist() == ["v0", "v2", "v3", "v4", "v5"]
    pipeline = Pipeline(Rows([*sounds[:2], sounds[0]]), AudioDigest(), ExactDedup(column="audio_digest"))
    assert pipeline.collect(executor="inline")["id"].to_pylist() == ["v0", "v1"]


# -------------------------------------------------------------------------------------------------------------- videos


def scenes(seconds, seed, rate=20, width=96, height=64):
    """Frames uint8[height, width, 3] of shots of two seconds in which a blurred pattern moves."""
    rng = np.random.default_rng(seed)
    for shot in range(int(np.ceil(seconds / 2))):
        pattern = rng.integers(0, 255, (9, 12, 3)).repeat(20, axis=0).repeat(20, axis=1).astype(np.uint8)
        for frame in range(min(2 * rate, round(seconds * rate) - shot * 2 * rate)):
            yield pattern[frame : frame + height, 2 * frame : 2 * frame + width]


def video(frames, rate=20, codec="mpeg4", container="mp4", size=None, **options):
    target = io.BytesIO()
    with av.open(target, "w", format=container) as file:
        stream = None
        for number, pixels in enumerate(frames):
            if stream is None:
                stream = file.add_stream(codec, rate=rate, options=options)
                stream.height, stream.width = size or pixels.shape[:2]
                stream.pix_fmt = "yuv420p"
                stream.codec_context.thread_count = 1
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            frame = frame.reformat(width=stream.width, height=stream.height, format="yuv420p")
            frame.pts, frame.time_base = number, Fraction(1, rate)
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return target.getvalue()


def remuxed(data, container):
    """The same packets in another container."""
    target = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(target, "w", format=container) as file:
        stream = file.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                file.mux(packet)
    return target.getvalue()


def video_rows(*files):
    return [{"id": f"v{number}", "video": {"bytes": data, "path": None}} for number, data in enumerate(files)]


@pytest.fixture(scope="module")
def videos():
    """A video in several formats and sizes, parts of it, another video, and black."""
    one = list(scenes(12, 1))
    black = [np.zeros((64, 96, 3), np.uint8)] * 60
    first = video(one)
    return video_rows(
        first,
        remuxed(first, "matroska"),
        video(one, codec="libx264", crf="35", preset="ultrafast"),
        video(one, size=(32, 48)),
        video(one[67:147], codec="libx264", crf="30", preset="ultrafast"),
        video(one[100:200:2], rate=10),
        video(scenes(8, 2)),
        video([*scenes(6, 2), *scenes(6, 3)]),
        video(black),
        video(black[:40]),
    )


def test_copies_and_parts_of_a_video_are_found_with_their_offset(videos):
    kept, pairs = fates(videos, VideoDedup(keep="first"), per_partition=4)
    assert kept == ["v0", "v6", "v7", "v8", "v9"], (
        "six of the eight seconds of v6 are in v7; black is compared with nothing"
    )
    assert {name: twin for name, (twin, _, _) in pairs.items()} == dict.fromkeys(["v1", "v2", "v3", "v4", "v5"], "v0")
    assert abs(pairs["v4"][2] - 67 / 20) <= 0.1
    assert abs(pairs["v5"][2] - 5) <= 0.1
    with_columns = Pipeline(Rows(videos), VideoHashes()).collect(executor="inline").to_pylist()
    stored = [{"id": row["id"], "frame_hashes": row["frame_hashes"]} for row in with_columns]
    assert fates(stored, VideoDedup(keep="first", hash_column="frame_hashes")) == (kept, pairs)
    assert not any(with_columns[8]["frame_hashes"]), "black frames have no hash"


def test_a_video_that_its_container_turns_and_an_upright_copy_are_found():
    """A telephone stores what its sensor sees, and how to turn it; a copy from a site is upright."""
    frames = list(scenes(6, 1))
    shown = video(frames, codec="libx264", preset="ultrafast")
    stored = make_videos.video(
        [(lambda number: np.rot90(frames[number], -1), len(frames))], codec="mpeg4", rate=20, rotation=90
    )
    other = make_videos.video([(lambda number: np.rot90(frames[number], -1), len(frames))], codec="mpeg4", rate=20)
    kept, pairs = fates(video_rows(stored, shown, other), VideoDedup(keep="first"))
    assert kept == ["v0", "v2"]
    assert pairs["v1"][0] == "v0"


@pytest.mark.parametrize(
    ("codec", "container", "pixel_format", "size"),
    [
        ("libvpx-vp9", "webm", "yuv420p", (161, 121)),
        ("ffv1", "matroska", "yuv422p10le", (161, 121)),
        ("mjpeg", "avi", "yuvj420p", (161, 121)),
        ("qtrle", "mov", "gray", (160, 120)),  # decoded with a palette
    ],
)
def test_frames_of_any_format_and_size_have_a_digest(codec, container, pixel_format, size):
    common = {"codec": codec, "container": container, "pixel_format": pixel_format}
    one, other = (make_videos.video([(make_videos.scene(seed, size), 4)], **common) for seed in (1, 2))
    rows = video_rows(one, one, other, remuxed(one, "mov" if codec == "qtrle" else "nut"))
    found = Pipeline(Rows(rows), VideoDigest(of="frames")).collect(executor="inline")["video_digest"].to_pylist()
    assert found[0] == found[1] == found[3] != found[2]


def test_files_with_the_same_frames_have_the_same_digest(videos):
    rows = [videos[0], videos[1], videos[3], {**videos[0], "id": "copy"}, {"id": "none", "video": None}]
    pipeline = Pipeline(Rows(rows), VideoDigest(of="frames"), ExactDedup(column="video_digest"))
    assert pipeline.collect(executor="inline")["id"].to_pylist() == ["v0", "v3", "none"]
    pipeline = Pipeline(Rows(rows), VideoDigest(), ExactDedup(column="video_digest"))
    assert pipeline.collect(executor="inline")["id"].to_pylist() == ["v0", "v1", "v3", "none"]


def test_hashes_are_those_of_the_frames_that_are_shown_at_fixed_times():
    words = np.arange(1, 6, dtype=np.uint64) * np.uint64(0x0123456789ABCDEF)
    numbers = np.full((5, 8), 50, np.float32)
    numbers[3, 1] = 1.0  # hardly any contrast
    none, time = np.zeros(5, np.uint8), np.array([2.0, 2.1, 2.45, 2.5, 2.8])
    track = Track(time, none, numbers, none, none, words, none, none, none, begin=2.0, end=3.0, rate=5.0)
    assert sampled_hashes(track, 0.2).tolist() == [int(words[0]), int(words[1]), int(words[1]), 0, int(words[4])]
    assert len(sampled_hashes(replace(track, end=1e12), 0.2)) == 5, "a clip that claims to be longer than its video"
    with pytest.raises(VideoError, match="its last frame is shown after"):
        sampled_hashes(replace(track, time=time * 1e9, begin=0.0, end=1e12), 0.2)


# ------------------------------------------------------------------------------------------------- commands and recipes


@pytest.mark.parametrize(("kind", "suffix", "left"), [("audio", "wav", 5), ("video", "mp4", 5)])
def test_commands_and_recipes(kind, suffix, left, request, tmp_path):
    rows = request.getfixturevalue("sounds" if kind == "audio" else "videos")
    for row in rows:
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{row['id']}.{suffix}").write_bytes(row[kind]["bytes"])
    runner = CliRunner()
    command = [kind, str(tmp_path / "in"), str(tmp_path / "out"), "--executor", "inline", "--keep", "first", "--quiet"]
    done = runner.invoke(app, command)
    assert done.exit_code == 0, done.output
    assert len(list((tmp_path / "out").rglob(f"*.{suffix}"))) == left
    groups = Groups.load(tmp_path / "out")
    dropped = groups.table().to_pylist()[-1]["address"]
    assert "of the shorter one agrees" in runner.invoke(app, ["explain", str(tmp_path / "out"), dropped]).stdout
    assert "rows compared over time" in runner.invoke(app, ["explain", str(tmp_path / "out")]).stdout
    recipe = load_recipe(f"{kind}_dedup").with_paths(input=str(tmp_path / "in"), output=str(tmp_path / "by recipe"))
    report = recipe.build().run(executor="inline")
    assert (report.kept, report.balances) == (left, True)
