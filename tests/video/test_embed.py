"""Embeddings of clips are those of transformers, for each architecture, and frames are prepared as its processors do."""

import json

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers

from tamis.context import Context
from tamis.errors import TamisError
from tamis.executors.opening import opened
from tamis.models.clips import clip_input
from tamis.models.files import ModelError
from tamis.video import FrameColumns, VideoEmbed, VideoTensor
from tamis.video.decode import FramePolicy, take_stills
from tamis.video.embed import find_clip_model
from tests.models import make_vision
from tests.models.make_vision import write_video_model
from tests.video.make_videos import scene, video
from tests.video.test_filters import held, rows

FILES = (video([(scene(1), 20)]), None, video([(scene(2), 6), (scene(3), 6)]), video([(scene(4), 2)]))
"""The last one has fewer frames than the networks take."""


def frames_of(file: bytes) -> np.ndarray:
    """Four frames of a video, in full size."""
    shown = [still.pixels for still in take_stills(held(file), FramePolicy("number", number=4), 256)]
    return np.stack([shown[place * len(shown) // 4] for place in range(4)])


def expected(kind: str, model, folder) -> np.ndarray:
    """The vectors of transformers' processor and model."""
    clips = [list(frames_of(file)) for file in FILES if file is not None]
    if kind == "vivit":
        processor = transformers.VivitImageProcessor.from_pretrained(folder)
    else:  # the processor of V-JEPA 2 does the same steps, but needs torchvision
        processor = transformers.VideoMAEImageProcessorPil(**make_vision.CLIP_FRAMES)
    pixels = torch.from_numpy(np.stack([np.stack(processor(clip)["pixel_values"][0]) for clip in clips])).float()
    with torch.inference_mode():
        if kind == "xclip":
            return model.get_video_features(pixel_values=pixels).pooler_output.numpy()
        if kind == "vjepa2":
            return model.get_vision_features(pixels).mean(dim=1).numpy()
        states = model(pixel_values=pixels).last_hidden_state
        return (states.mean(dim=1) if kind == "videomae" else states[:, 0]).numpy()


@pytest.mark.parametrize("kind", make_vision.VIDEO_MODELS)
def test_vectors_are_those_of_transformers(tmp_path, kind):
    model = write_video_model(tmp_path, kind)
    step = VideoEmbed(tmp_path, normalize=False)
    step.check()
    with opened(step) as runner:
        found = runner.apply(rows(*FILES))["embedding"]
    assert found.is_null().to_pylist() == [False, True, False, False]
    vectors = np.array(found.drop_null().to_pylist())
    wanted = expected(kind, model, tmp_path)
    np.testing.assert_allclose(vectors, wanted, atol=5e-5)
    assert np.abs(wanted[0] - wanted[1]).max() > 1e-3, "clips differ"


def test_frames_that_other_workers_prepared_give_the_same_vectors(tmp_path):
    write_video_model(tmp_path, "videomae")
    batch = rows(*FILES)
    pixels = VideoTensor(tmp_path).open(Context()).apply(batch)["pixels"]
    assert pixels.type == pa.binary(4 * 32 * 32 * 3)
    step = VideoEmbed(tmp_path, pixels="pixels")
    assert (step.reads(), step.removes(["video", "pixels"])) == (("pixels",), ("pixels",))
    found = step.open(Context()).apply(batch.with_columns({"pixels": pixels}))["embedding"]
    alone = VideoEmbed(tmp_path, batch_size=1).open(Context()).apply(batch)["embedding"]
    assert found.is_null().to_pylist() == alone.is_null().to_pylist() == [False, True, False, False]
    vectors = np.array(found.drop_null().to_pylist())
    np.testing.assert_allclose(vectors, np.array(alone.drop_null().to_pylist()), atol=2e-5)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_a_vector_says_in_which_direction_time_passes(tmp_path):
    """The mean of the vectors of frames does not."""
    write_video_model(tmp_path, "videomae")
    forward = [scene(1)(frame) for frame in range(0, 40, 10)]
    files = [video([(lambda frame, shown=shown: shown[frame], 4)]) for shown in (forward, forward[::-1])]
    with opened(VideoEmbed(tmp_path)) as runner:
        found = np.array(runner.apply(rows(*files))["embedding"].to_pylist())
    assert np.abs(found[0] - found[1]).max() > 1e-3


def test_vectors_of_frames_are_averaged(tmp_path):
    from tamis.image import ImageEmbed
    from tamis.video.frames import as_images

    make_vision.write_clip(tmp_path)
    with opened(FrameColumns({"image_embed": {"model": str(tmp_path)}}, number=4)) as runner:
        found = runner.apply(rows(*FILES[:2]))["embedding"].to_pylist()
    shown = take_stills(held(FILES[0]), FramePolicy("number", number=4), 256)
    with opened(ImageEmbed(tmp_path)) as runner:
        each = np.array(runner.apply(as_images(shown, files=False, side=256))["embedding"].to_pylist())
    mean = each.mean(axis=0) / np.linalg.norm(each.mean(axis=0))
    np.testing.assert_allclose(found[0], mean, atol=2e-5)
    assert found[1] is None


def test_other_models_are_refused_with_a_hint(tmp_path):
    make_vision.write_vit(tmp_path / "vit")
    with pytest.raises(ModelError, match="does not look at clips") as caught:
        VideoEmbed(tmp_path / "vit").check()
    assert "frame_columns" in caught.value.hint
    write_video_model(tmp_path / "mae", "videomae")
    config = json.loads((tmp_path / "mae" / "config.json").read_text())
    (tmp_path / "mae" / "config.json").write_text(json.dumps(config | {"num_frames": 10**9}))
    with pytest.raises(TamisError, match="1000000000 frames"):
        clip_input(find_clip_model(tmp_path / "mae"))
    assert VideoEmbed(tmp_path / "none").row_bytes > 0
