"""Embeddings of images: the vectors of transformers, and of the default model on real photographs."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file, save_file

from tamis import Pipeline
from tamis.context import Context
from tamis.errors import ParameterError
from tamis.image import ImageEmbed, ImageTensor
from tamis.image.decode import pictures
from tamis.image.neural import from_binary
from tamis.models.files import ModelError
from tamis.models.vision import input_of
from tamis.sources.memory import Rows
from tests.image.photographs import batch, row
from tests.models import make_vision

PHOTOGRAPHS = ("astronaut.png", "coffee.png", "rocket.jpg")


def vectors(step, rows):
    return np.array(step.open(Context()).apply(rows)[step.output].to_pylist(), np.float32)


def prepared(step, rows):
    """The pictures as transformers prepares them, of the pixels that the step sees."""
    found = input_of(step.found())
    scale, shift = found.factors()
    return torch.from_numpy(
        np.stack([found.resized(picture) * scale + shift for picture in pictures(rows, "image", found.side)])
    ).permute(0, 3, 1, 2)


MODELS = {
    "clip": (make_vision.write_clip, lambda model, pixels: model.get_image_features(pixel_values=pixels).pooler_output),
    "siglip": (make_vision.write_siglip, lambda model, pixels: model.get_image_features(pixel_values=pixels).pooler_output),
    "vit": (make_vision.write_vit, lambda model, pixels: model(pixel_values=pixels).last_hidden_state[:, 0]),
    "dino": (make_vision.write_dino, lambda model, pixels: model(pixel_values=pixels).pooler_output),
}  # fmt: skip


@pytest.mark.parametrize("kind", MODELS)
def test_vectors_are_those_of_transformers(tmp_path, kind):
    write, outputs = MODELS[kind]
    model = write(tmp_path)
    step = ImageEmbed(tmp_path, normalize=False)
    step.check()
    rows = batch(*PHOTOGRAPHS)
    with torch.inference_mode():
        expected = outputs(model, prepared(step, rows)).numpy()
    np.testing.assert_allclose(vectors(step, rows), expected, atol=2e-5)
    assert np.abs(expected[0] - expected[1]).max() > 0.01, "pictures differ"


def test_vectors_have_length_one_and_the_type_requested(tmp_path):
    make_vision.write_clip(tmp_path)
    step = ImageEmbed(tmp_path, dtype="float16", output="vector")
    found = step.open(Context()).apply(batch(None, *PHOTOGRAPHS))["vector"]
    assert found.type == pa.list_(pa.float16(), 24)
    assert found.null_count == 1
    lengths = np.linalg.norm(np.array(found.drop_null().to_pylist(), np.float32), axis=1)
    np.testing.assert_allclose(lengths, 1, atol=1e-3)


def test_the_vision_half_of_clip_is_enough(tmp_path):
    whole = make_vision.write_clip(tmp_path / "whole")
    config = json.loads((tmp_path / "whole" / "config.json").read_text())["vision_config"]
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.json").write_text(json.dumps(config | {"model_type": "clip_vision_model"}))
    shutil.copy(tmp_path / "whole" / "preprocessor_config.json", tmp_path / "half")
    tensors = load_file(tmp_path / "whole" / "model.safetensors")
    save_file(
        {name: value for name, value in tensors.items() if name.startswith("vis")},
        tmp_path / "half" / "model.safetensors",
    )
    rows = batch(*PHOTOGRAPHS)
    assert whole.config.projection_dim == 24
    np.testing.assert_allclose(
        vectors(ImageEmbed(tmp_path / "half"), rows), vectors(ImageEmbed(tmp_path / "whole"), rows), atol=2e-5
    )


def test_pixels_that_other_workers_prepared_give_the_same_vectors(tmp_path):
    make_vision.write_clip(tmp_path)
    rows = batch("coffee.png", None, "rocket.jpg")
    tensor = ImageTensor(tmp_path)
    pixels = tensor.open(Context()).apply(rows)["pixels"]
    assert pixels.type == pa.binary(32 * 32 * 3)
    assert pixels.null_count == 1
    step = ImageEmbed(tmp_path, pixels="pixels")
    assert step.reads() == ("pixels",)
    assert step.removes(["image", "pixels"]) == ("pixels",)
    found = step.open(Context()).apply(rows.with_columns({"pixels": pixels}))["embedding"]
    expected = ImageEmbed(tmp_path).open(Context()).apply(rows)["embedding"]
    assert found.is_null().to_pylist() == [False, True, False]
    np.testing.assert_allclose(
        np.array(found.drop_null().to_pylist()), np.array(expected.drop_null().to_pylist()), atol=2e-5
    )
    part = from_binary(pixels.slice(2, 1), input_of(step.found()))
    assert bytes(part.reshape(-1)) == pixels[2].as_py()


def test_pixels_for_another_model_are_an_error(tmp_path):
    make_vision.write_clip(tmp_path)
    rows = batch("coffee.png").with_columns({"pixels": pa.array([b"abc"], pa.binary(3))})
    with pytest.raises(ModelError, match="does not hold pictures of 32 x 32"):
        ImageEmbed(tmp_path, pixels="pixels").open(Context()).apply(rows)


def test_similar_photographs_have_similar_vectors():
    rows = batch("motorcycle_left.png", "motorcycle_right.png", "coffee.png", "chelsea.png")
    found = vectors(ImageEmbed(), rows)
    assert found.shape == (4, 1280)
    products = found @ found.T
    assert products[0, 1] > 0.8
    assert products[0, 2:].max() < 0.5


def test_a_run_adds_vectors_and_fails_rows_whose_output_is_not_a_number(tmp_path):
    make_vision.write_vit(tmp_path)
    rows = [row("coffee.png"), {"image": {"bytes": b"no image", "path": "a.png"}}, row("rocket.jpg")]
    report = Pipeline(Rows(rows), ImageEmbed(tmp_path)).run(executor="inline", on_error="isolate", max_failed="100%")
    assert (report.kept, report.failed) == (2, 1)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["layernorm.bias"] = tensors["layernorm.bias"] * float("nan")
    save_file(tensors, tmp_path / "model.safetensors")
    report = Pipeline(Rows(rows), ImageEmbed(tmp_path)).run(executor="inline", on_error="isolate", max_failed="100%")
    assert (report.kept, report.failed) == (0, 3)


def test_missing_files_are_named(tmp_path):
    make_vision.write_vit(tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(ModelError, match=r"there is no preprocessor_config\.json"):
        ImageEmbed(tmp_path).check()
    with pytest.raises(ModelError, match="there is no model 'efficientnet-lite9'") as caught:
        ImageEmbed("efficientnet-lite9").check()
    assert "efficientnet-lite0" in str(caught.value.hint)
    with pytest.raises(ModelError, match="is not on this machine") as caught:
        ImageEmbed("openai/clip-vit-large-patch14").check()
    assert "preprocessor_config.json" in str(caught.value.hint)


def test_a_batch_size_below_one_is_an_error():
    with pytest.raises(ParameterError, match="batch_size"):
        ImageEmbed(batch_size=0).check()


def test_on_a_gpu_images_are_prepared_by_other_workers(monkeypatch):
    monkeypatch.setattr("tamis.image.neural.why_not_gpu", lambda library: None)
    first, second = ImageEmbed(column="picture").parts()
    assert isinstance(first, ImageTensor)
    assert (first.column, first.output) == ("picture", "pixels for image_embed (of this run)")
    assert isinstance(second, ImageEmbed)
    assert second.pixels == first.output
    assert list(second.parts()) == [second]
    assert second.batch_bytes == 512 * 224 * 224 * 3
    assert second.resources.gpus == pytest.approx(1 / 3)
