"""TransNetV2 with its real weights finds planted cuts, as frames are decoded, and in any division into windows."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from tamis.executors.opening import opened
from tamis.models.files import IMAGE_DEFAULTS, find
from tamis.models.transnet import HEIGHT, WIDTH, TransNet, Windows
from tamis.video import TransNetShots
from tamis.video.decode import tracks
from tamis.video.files import Decodes
from tests.image.photographs import row
from tests.models.make_vision import write_transnet
from tests.video.make_videos import Draw, video
from tests.video.test_filters import rows


def pan(name: str) -> Draw:
    """A camera that moves over a photograph: the network was trained on real pictures."""
    photograph = np.asarray(Image.open(io.BytesIO(row(name)["image"]["bytes"])).convert("RGB"))
    return lambda frame: photograph[100:340, 2 * frame : 2 * frame + 320]


def test_cuts_are_found_in_the_pass_that_makes_the_track():
    torch.set_num_threads(1)
    data = video([(pan("coffee.png"), 30), (pan("astronaut.png"), 34)])
    batch = rows(data, None)
    before = Decodes.files
    with opened(TransNetShots(min_length_s=1.0, crop_s=0.0)) as runner:
        table, parents = runner.expand(batch)
    assert tracks(batch, "video")[0] is not None
    assert table.column("clip_begin").to_pylist() == [0.0, 3.0, None]
    assert table.column("clip_end").to_pylist() == [3.0, 6.4, None]
    assert parents.tolist() == [0, 0, 1]
    assert Decodes.files == before + 3, "one pass for the video; the two clips of a row that holds bytes are cut"


@pytest.mark.parametrize("count", [1, 64, 75, 325])
def test_windows_give_each_frame_one_probability(tmp_path, monkeypatch, count):
    """75 frames are two windows, and 325 are seven: the last one is filled up with the last frame."""
    write_transnet(tmp_path / "transnetv2")
    monkeypatch.setenv("TAMIS_MODELS", str(tmp_path))
    network = TransNet(find("transnetv2", (), IMAGE_DEFAULTS))
    frames = np.random.default_rng(0).integers(0, 256, (count, HEIGHT, WIDTH, 3), np.uint8)
    padded = np.concatenate([frames[:1].repeat(25, axis=0), frames, frames[-1:].repeat(75, axis=0)])
    begins = range(0, -(-count // 50) * 50, 50)
    expected = np.concatenate([network.predict(padded[None, begin : begin + 100])[0] for begin in begins])
    for batch in (1, 3):
        windows = Windows(network, batch)
        for frame in frames:
            windows.add(frame)
        np.testing.assert_allclose(windows.probabilities(), expected[:count], atol=1e-6)
    assert Windows(network).probabilities().shape == (0,)


def test_the_convolutions_of_a_cpu_give_the_results_of_the_definition(tmp_path, monkeypatch):
    write_transnet(tmp_path / "transnetv2", filters=16)
    monkeypatch.setenv("TAMIS_MODELS", str(tmp_path))
    found = find("transnetv2", (), IMAGE_DEFAULTS)
    frames = np.random.default_rng(0).integers(0, 256, (1, 100, HEIGHT, WIDTH, 3), np.uint8)
    quick = TransNet(found)
    assert quick._convolutions
    monkeypatch.setattr("tamis.models.transnet.usable", lambda torch, filters: False)
    network = TransNet(found)
    assert not network._convolutions
    given = torch.from_numpy(frames).flatten(0, 1)
    for ours, expected in zip(quick._features(frames, given), network._features(frames, given), strict=True):
        assert (ours - expected).abs().max() < 1e-5 * expected.abs().max()
    np.testing.assert_allclose(quick.predict(frames), network.predict(frames), atol=1e-6)
