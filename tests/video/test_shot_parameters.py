"""Each parameter of the steps that split videos into shots, for both detectors: a video of shots of 3, 1.2 and 4.5 seconds."""

import numpy as np
import pytest
import torch

from tamis.errors import ParameterError
from tamis.executors.opening import opened
from tamis.operators import Expand
from tamis.video import Shots, TransNetShots
from tests.video.make_videos import Draw, video
from tests.video.test_filters import rows
from tests.video.test_transnet import pan

PICTURES = [(pan("coffee.png"), 30), (pan("astronaut.png"), 12), (pan("chelsea.png"), 45)]
DATA = video(PICTURES, options={"preset": "ultrafast"})
ALL = {"min_length_s": 0.0, "max_length_s": None, "crop_s": 0.0}


@pytest.fixture(params=[Shots, TransNetShots], ids=lambda each: each.__name__)
def detector(request):
    torch.set_num_threads(1)
    return request.param


def spans(step: Expand, data: bytes = DATA) -> list[tuple[float, float]]:
    with opened(step) as runner:
        table, _ = runner.expand(rows(data))
    return list(zip(table.column("clip_begin").to_pylist(), table.column("clip_end").to_pylist(), strict=True))


def test_without_limits_clips_are_the_shots(detector):
    assert spans(detector(**ALL)) == [(0, 3), (3, 4.2), (4.2, 8.7)]


def test_shots_shorter_than_the_minimum_are_left_out(detector):
    assert spans(detector(**{**ALL, "min_length_s": 1.2})) == [(0, 3), (3, 4.2), (4.2, 8.7)]
    assert spans(detector(**{**ALL, "min_length_s": 1.3})) == [(0, 3), (4.2, 8.7)]


def test_shots_longer_than_the_maximum_are_divided_or_shortened(detector):
    limits = {**ALL, "max_length_s": 2.0}
    assert spans(detector(**limits)) == [(0, 2), (2, 3), (3, 4.2), (4.2, 6.2), (6.2, 8.2), (8.2, 8.7)]
    assert spans(detector(**limits, max_length_mode="truncate")) == [(0, 2), (3, 4.2), (4.2, 6.2)]
    remainders = {**limits, "min_length_s": 1.0}
    assert spans(detector(**remainders)) == [(0, 2), (2, 3), (3, 4.2), (4.2, 6.2), (6.2, 8.2)]


def test_a_crop_leaves_out_time_on_both_sides_of_a_cut(detector):
    assert spans(detector(**{**ALL, "crop_s": 0.25})) == [(0, 2.75), (3.25, 3.95), (4.45, 8.7)]
    assert spans(detector(**{**ALL, "crop_s": 0.6})) == [(0, 2.4), (4.8, 8.7)], "nothing is left of the second shot"
    assert spans(detector(**{**ALL, "crop_s": 0.25, "min_length_s": 1.0})) == [(0, 2.75), (4.45, 8.7)]


def test_a_video_without_cuts_is_one_scene_or_none(detector):
    data = video(PICTURES[:1])
    assert spans(detector(**ALL), data) == [(0, 3)]
    assert spans(detector(**ALL, whole_scene=False), data) == []
    assert spans(detector(**ALL, whole_scene=False)) == spans(detector(**ALL)), "a video with cuts is split as before"


def ramp(level: int) -> Draw:
    """From dark on the left to bright on the right, raised by `level`."""
    picture = np.tile(np.linspace(20, 180, 160).astype(np.uint8)[None, :, None], (120, 1, 3)) + np.uint8(level)
    return lambda frame: picture


def test_the_threshold_of_the_histogram_decides_what_is_a_cut():
    """The same picture, brighter by 25 levels: 19 % of the histogram change."""
    data = video([(ramp(0), 30), (ramp(25), 30)])
    assert spans(Shots(**ALL, threshold=0.1), data) == [(0, 3), (3, 6)]
    assert spans(Shots(**ALL, threshold=0.3), data) == [(0, 6)]


def test_a_large_threshold_leaves_no_cut():
    assert spans(Shots(**ALL, threshold=100.0)) == [(0, 8.7)]


def test_the_threshold_of_the_network_decides_what_is_a_cut():
    torch.set_num_threads(1)
    assert spans(TransNetShots(**ALL, threshold=0.999)) == [(0, 8.7)]


def test_defaults_are_those_of_nemo_curator():
    found = TransNetShots()
    assert (found.threshold, found.min_length_s, found.max_length_s, found.crop_s) == (0.4, 2.0, 10.0, 0.5)
    assert (found.max_length_mode, found.whole_scene) == ("stride", True)


@pytest.mark.parametrize(
    "wrong", [{"max_length_s": 0}, {"min_length_s": -1}, {"crop_s": -0.1}, {"max_length_mode": "x"}]
)
def test_values_without_meaning_are_refused(wrong):
    with pytest.raises(ParameterError):
        Shots(**wrong).check()
