"""What is in a video, by operators on its frames and on its sound, in whole runs: NSFW, text, aesthetics, tags, speech."""

import importlib.util
import io
import json
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image, ImageDraw

from tamis import ParquetReader, ParquetWriter, Pipeline
from tamis.audio import AudioSilence, SpeechShare
from tamis.batch import Batch
from tamis.executors.opening import opened
from tamis.image import Aesthetics
from tamis.recipes.load import load_recipe
from tamis.sources.mediafiles import VideoReader
from tamis.video import FixedClips, FrameColumns, FrameFilter, SoundTrack
from tamis.video.decode import FramePolicy, take_stills
from tamis.video.files import Decodes
from tamis.video.frames import as_images
from tests.image.photographs import row
from tests.models.make_vision import write_aesthetics, write_clip, write_graph
from tests.video.make_videos import Draw, plain, scene, video
from tests.video.test_filters import held, rows

SIZE = (320, 240)


def pan(name: str) -> Draw:
    """A camera that moves over a photograph."""
    photograph = Image.open(io.BytesIO(row(name)["image"]["bytes"])).convert("RGB").resize((380, 280))
    return lambda frame: np.asarray(photograph)[20:260, frame : frame + 320]


def titled(frame: int) -> np.ndarray:
    """Large letters over most of the picture."""
    image = Image.new("RGB", SIZE, "white")
    draw = ImageDraw.Draw(image)
    for line in range(5):
        draw.text((4, 4 + 46 * line), "SUBSCRIBE NOW TO OUR"[line : line + 16], fill="black", font_size=36)
    return np.asarray(image)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("contents")
    (made / "cat.mp4").write_bytes(video([(pan("chelsea.png"), 20)]))
    (made / "coffee.mp4").write_bytes(video([(pan("coffee.png"), 20)]))
    (made / "title.mp4").write_bytes(video([(titled, 20)]))
    return made


def fates(folder: Path, *steps: object, out: Path) -> tuple[list[dict], dict[str, int]]:
    report = Pipeline(VideoReader(str(folder / "*")), *steps, ParquetWriter(str(out))).run(executor="inline")
    assert report.failed == 0
    kept = Pipeline(ParquetReader(str(out), media_roots=[str(folder)])).collect(executor="inline").to_pylist()
    return kept, report.dropped


def names(rows: list[dict]) -> list[str]:
    return [Path(each["path"]).name for each in rows]


def test_videos_with_much_text_are_dropped(folder, tmp_path):
    step = FrameFilter({"text_share": {}}, reduce="mean", number=2)
    kept, dropped = fates(folder, step, out=tmp_path / "out")
    assert names(kept) == ["cat.mp4", "coffee.mp4"]
    assert list(dropped) == ["text_share > 0.3"]


def test_safe_videos_are_kept_and_others_are_dropped_by_their_worst_frame(folder, tmp_path):
    kept, _ = fates(folder, FrameFilter({"nsfw": {"max_nsfw": 0.3}}, reduce="max", number=2), out=tmp_path / "real")
    assert names(kept) == ["cat.mp4", "coffee.mp4", "title.mp4"]
    # A model that finds white pictures unsafe: one frame of three is enough.
    model = write_graph(
        tmp_path / "bright.onnx", lambda pixels: pixels.mean(dim=(1, 2))[:, :2] / 100 + 0.5, (1, 224, 224, 3)
    )
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "flash.mp4").write_bytes(video([(plain(20, SIZE), 20), (plain(255, SIZE), 10)]))
    (tmp_path / "in" / "dark.mp4").write_bytes(video([(plain(20, SIZE), 30)]))
    step = FrameFilter({"nsfw": {"model": str(model)}}, reduce="max", number=3)
    kept, dropped = fates(tmp_path / "in", step, out=tmp_path / "out")
    assert (names(kept), dropped) == (["dark.mp4"], {"nsfw > 0.5": 1})


def test_tags_of_frames_are_those_of_the_video(folder, tmp_path):
    step = FrameFilter({"image_tags": {"drop": ["espresso"]}}, number=3)
    kept, dropped = fates(folder, step, out=tmp_path / "out")
    assert names(kept) == ["cat.mp4", "title.mp4"]
    assert dropped == {"tags has espresso": 1}
    assert {"tabby", "Egyptian cat"} & set(kept[0]["tags"])
    assert len(set(kept[0]["tags"])) == len(kept[0]["tags"])


def test_aesthetic_scores_are_averaged_over_frames(folder, tmp_path):
    write_clip(tmp_path / "clip")
    write_aesthetics(tmp_path / "head.safetensors")
    inner = {"model": str(tmp_path / "clip"), "head": str(tmp_path / "head.safetensors"), "min_aesthetics": None}
    table = Pipeline(
        VideoReader(str(folder / "cat.mp4")), FrameFilter({"aesthetics": inner}, number=4, score_only=True)
    ).collect(executor="inline")
    stills = take_stills(held((folder / "cat.mp4").read_bytes()), FramePolicy("number", number=4), 256)
    with opened(Aesthetics(**inner)) as runner:
        each = np.asarray(runner.score(as_images(stills, files=False, side=256))["aesthetics"])
    assert len(table) == 1
    with opened(FrameFilter({"aesthetics": inner}, number=4)) as runner:
        found = runner.score(rows((folder / "cat.mp4").read_bytes()))["aesthetics"].to_pylist()
    assert found == [pytest.approx(each.mean(), abs=1e-4)]


def test_frames_are_as_large_as_a_network_looks_at(tmp_path):
    write_clip(tmp_path / "clip")
    settings = tmp_path / "clip" / "preprocessor_config.json"
    for side, expected in ((224, 256), (336, 512), (1500, 1024)):
        size = {"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}}
        settings.write_text(json.dumps(json.loads(settings.read_text()) | size))
        step = FrameColumns({"image_embed": {"model": str(tmp_path / "clip")}})
        assert step.side == expected


def test_the_size_of_a_frame_is_that_of_its_video():
    step = FrameFilter({"image_size": {}}, number=2)
    with opened(step) as runner:
        found = runner.score(rows(video([(scene(1, (640, 480)), 4)], rotation=90)))
    assert {name: values.to_pylist() for name, values in found.items()} == {"width": [480], "height": [640]}


def test_filters_on_frames_in_a_recipe_decode_a_video_once(folder, tmp_path):
    (tmp_path / "look.yaml").write_text(
        """
name: look
steps:
  - frame_filter: {step: {nsfw: {max_nsfw: 0.5}}, reduce: max, number: 2}
  - frame_filter: {step: {image_brightness: {min_brightness: 10}}, reduce: min, number: 2}
  - frame_columns: {step: {image_hash: {}}, number: 2}
""",
        encoding="utf-8",
    )
    before = Decodes.files
    recipe = load_recipe(str(tmp_path / "look.yaml")).with_paths(input=str(folder), output=str(tmp_path / "out"))
    assert recipe.build().run(executor="inline").kept == 3
    assert Decodes.files - before == 3


# ------------------------------------------------------------------------------------------------------------------ sound


def talk(seconds: int) -> bytes:
    """A video in which somebody reads for the first half, and nobody speaks in the second."""
    spec = importlib.util.find_spec("numpy")
    assert spec is not None
    assert spec.submodule_search_locations
    speech = Path(spec.submodule_search_locations[0]).parent / "moonshine_voice/assets/two_cities.wav"
    target = io.BytesIO()
    with av.open(str(speech)) as source, av.open(target, "w", format="mp4") as output:
        pictures = output.add_stream("libx264", rate=10)
        pictures.width, pictures.height, pictures.pix_fmt = 160, 120, "yuv420p"
        sound = output.add_stream("aac", rate=48_000)
        resampler = av.AudioResampler("flt", "mono", 48_000)
        spoken = [piece.to_ndarray() for frame in source.decode(audio=0) for piece in resampler.resample(frame)]
        wave = np.concatenate(spoken, axis=1)[:, : 24_000 * seconds]
        wave = np.pad(wave, ((0, 0), (0, 48_000 * seconds - wave.shape[1]))).repeat(2, axis=0)
        for number in range(10 * seconds):
            picture = np.ascontiguousarray(scene(1)(number))
            output.mux(pictures.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        output.mux(pictures.encode(None))
        for begin in range(0, wave.shape[1], 1024):
            piece = av.AudioFrame.from_ndarray(
                np.ascontiguousarray(wave[:, begin : begin + 1024], np.float32), format="fltp", layout="stereo"
            )
            piece.sample_rate, piece.pts = 48_000, begin
            output.mux(sound.encode(piece))
        output.mux(sound.encode(None))
    return target.getvalue()


def test_clips_in_which_nobody_speaks_are_dropped(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "talk.mp4").write_bytes(talk(12))
    (tmp_path / "in" / "mute.mp4").write_bytes(video([(scene(2), 60)]))
    steps = [FixedClips(length_s=6.0), SoundTrack(), SpeechShare(), AudioSilence(score_only=True)]
    kept, dropped = fates(tmp_path / "in", *steps, out=tmp_path / "out")
    assert [(Path(each["path"]).name, each["clip_begin"], each["clip_end"]) for each in kept] == [
        ("talk.mp4", 0.0, 6.0)
    ]
    assert dropped == {"speech_share < 0.2": 1, "speech_share is missing": 1}
    assert kept[0]["audio"]["path"].endswith("talk.mp4#t=0,6&track=audio")


def beep(container: str, seconds: float, begin: float) -> bytes:
    """Six seconds of picture, and sound of some seconds from a time on, with a tone from second 2 on."""
    target = io.BytesIO()
    with av.open(target, "w", format=container) as output:
        pictures = output.add_stream("libx264", rate=10)
        pictures.width, pictures.height, pictures.pix_fmt = 160, 120, "yuv420p"
        sound = output.add_stream("aac", rate=48_000)
        for number in range(60):
            picture = np.ascontiguousarray(scene(1)(number))
            output.mux(pictures.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        output.mux(pictures.encode(None))
        time = begin + np.arange(round(48_000 * seconds)) / 48_000
        wave = np.where(time < 2, 0, np.sin(2 * np.pi * 440 * time)).astype(np.float32)[None].repeat(2, axis=0)
        for first in range(0, wave.shape[1], 1024):
            piece = av.AudioFrame.from_ndarray(
                np.ascontiguousarray(wave[:, first : first + 1024]), format="fltp", layout="stereo"
            )
            piece.sample_rate, piece.pts = 48_000, first + round(48_000 * begin)
            output.mux(sound.encode(piece))
        output.mux(sound.encode(None))
    return target.getvalue()


@pytest.mark.parametrize("container", ["mp4", "matroska", "mpegts"])
@pytest.mark.parametrize(
    ("seconds", "begin", "silent"),
    [(6.0, 0.0, [2 / 3, 0.0]), (5.0, 0.0, [2 / 3, 0.0]), (2.5, 0.0, [0.8, None]), (5.0, 1.0, [0.5, 0.0])],
    ids=["as long as the picture", "ends early", "ends in the first clip", "begins late"],
)
def test_a_clip_has_the_sound_that_is_heard_while_it_is_shown(container, seconds, begin, silent, tmp_path):
    (tmp_path / "a.mkv").write_bytes(beep(container, seconds, begin))
    steps = [FixedClips(length_s=3.0), SoundTrack(), AudioSilence(score_only=True)]
    report = Pipeline(VideoReader(str(tmp_path / "a.mkv")), *steps, ParquetWriter(str(tmp_path / "out"))).run(
        executor="inline"
    )
    assert (report.kept, report.failed) == (2, 0)
    rows = Pipeline(ParquetReader(str(tmp_path / "out"))).collect(executor="inline").to_pylist()
    assert [row["silence_share"] for row in rows] == [
        None if share is None else pytest.approx(share, abs=0.04) for share in silent
    ]


def test_a_video_held_as_bytes_has_its_sound_too():
    found = SoundTrack().apply(rows(talk(4), None, video([(scene(1), 10)])))["audio"].to_pylist()
    assert found[1:] == [None, None]
    with opened(SpeechShare()) as runner:
        assert runner.score(Batch.from_rows([{"audio": found[0]}]))["speech_s"].to_pylist()[0] > 0.5
