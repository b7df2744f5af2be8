"""Similarity of images and captions, and aesthetic scores: those of transformers and of the layers in torch."""

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from safetensors.torch import save_file

from tamis import Pipeline
from tamis.context import Context
from tamis.errors import ParameterError, TamisError
from tamis.image import Aesthetics, ImageEmbed, ImageTensor, ImageTextSimilarity
from tamis.image.similarity import load_head
from tamis.models.files import ModelError
from tamis.sources.memory import Rows
from tests.image.photographs import batch, row
from tests.image.test_embed import PHOTOGRAPHS, prepared, vectors
from tests.models.make_vision import write_aesthetics, write_clip, write_siglip, write_vit

CAPTIONS = [
    "rain falls from clouds onto mountains",
    "cheap watches",
    "A function takes arguments and returns a value; a loop repeats statements. " * 3,
]


def captioned(*names, captions=CAPTIONS):
    return batch(*names).with_columns({"caption": pa.array(captions, pa.string())})


def scores(step, rows):
    step.check()
    return {name: values.to_pylist() for name, values in step.open(Context()).score(rows).items()}


@pytest.mark.parametrize("write", [write_clip, write_siglip])
def test_similarities_are_the_logits_of_transformers_before_scale_and_bias(tmp_path, write):
    model = write(tmp_path)
    step, rows = ImageTextSimilarity(tmp_path, score_only=True), captioned(*PHOTOGRAPHS)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    padding = "max_length" if write is write_siglip else True
    given = tokenizer(CAPTIONS, padding=padding, max_length=16, truncation=True, return_tensors="pt")
    mask = {} if write is write_siglip else {"attention_mask": given["attention_mask"]}
    with torch.inference_mode():
        out = model(input_ids=given["input_ids"], pixel_values=prepared(step, rows), **mask)
        bias = model.logit_bias if write is write_siglip else 0
        expected = (out.logits_per_image.diagonal() - bias) / model.logit_scale.exp()
    np.testing.assert_allclose(scores(step, rows)["similarity"], expected.numpy().ravel(), atol=2e-5)


def test_rows_without_image_or_caption_are_dropped(tmp_path):
    write_clip(tmp_path)
    rows = Rows(
        [
            row("coffee.png") | {"caption": "rain"},
            row("coffee.png") | {"caption": None},
            {"image": None, "caption": "rain"},
        ]
    )
    report = Pipeline(rows, ImageTextSimilarity(tmp_path, min_similarity=-1)).run(executor="inline")
    assert report.kept == 1
    assert report.dropped == {"similarity is missing": 2}


def test_pixels_that_other_workers_prepared_give_the_same_similarities(tmp_path):
    write_clip(tmp_path)
    rows = captioned("coffee.png", None, "rocket.jpg")
    pixels = ImageTensor(tmp_path).open(Context()).apply(rows)["pixels"]
    step = ImageTextSimilarity(tmp_path, score_only=True)
    changed = step.changed(pixels="pixels")
    assert changed.real_names() == {"pixels": "pixels", "caption": "caption"}
    found = scores(changed, rows.with_columns({"pixels": pixels}))["similarity"]
    expected = scores(step, rows)["similarity"]
    assert found == [None if value is None else pytest.approx(value, abs=2e-5) for value in expected]


def test_captions_may_have_another_name(tmp_path):
    write_clip(tmp_path)
    step = ImageTextSimilarity(tmp_path, column="picture", caption="alt", min_similarity=0)
    assert step.real_names() == {"image": "picture", "caption": "alt"}


def test_a_bound_and_both_encoders_are_required(tmp_path):
    write_clip(tmp_path / "clip")
    with pytest.raises(ParameterError, match="neither `min_similarity`"):
        ImageTextSimilarity(tmp_path / "clip").check()
    write_vit(tmp_path / "vit")
    (tmp_path / "vit" / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="does not compare pictures with texts"):
        ImageTextSimilarity(tmp_path / "vit", min_similarity=0).check()
    (tmp_path / "clip" / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"there is no tokenizer\.json"):
        ImageTextSimilarity(tmp_path / "clip", min_similarity=0).check()


def test_aesthetic_scores_are_those_of_the_layers_one_after_the_other(tmp_path):
    write_clip(tmp_path)
    head = write_aesthetics(tmp_path / "head.safetensors")
    rows = batch(*PHOTOGRAPHS, None)
    found = scores(Aesthetics(tmp_path, tmp_path / "head.safetensors"), rows)["aesthetics"]
    with torch.inference_mode():
        expected = head(torch.from_numpy(vectors(ImageEmbed(tmp_path), batch(*PHOTOGRAPHS))))[:, 0].numpy()
    np.testing.assert_allclose(found[:3], expected, atol=1e-4)
    assert found[3] is None


def test_the_first_predictor_is_one_layer(tmp_path):
    save_file({"weight": torch.tensor([[1.0, 2.0]]), "bias": torch.tensor([0.5])}, tmp_path / "head.safetensors")
    weights, bias = load_head(tmp_path / "head.safetensors")
    assert (weights.tolist(), bias) == ([1.0, 2.0], 0.5)


def test_a_predictor_that_does_not_fit_is_an_error(tmp_path):
    write_clip(tmp_path)
    write_aesthetics(tmp_path / "wide.safetensors", width=30)
    with pytest.raises(ModelError, match="vectors of 30 numbers"):
        scores(Aesthetics(tmp_path, tmp_path / "wide.safetensors"), batch("coffee.png"))
    save_file({"layers.0.weight": torch.zeros(2, 3)}, tmp_path / "half.safetensors")
    with pytest.raises(ModelError, match="linear layers"):
        load_head(tmp_path / "half.safetensors")
    with pytest.raises(TamisError, match="missing"):
        Aesthetics(tmp_path, tmp_path / "missing.safetensors").check()
