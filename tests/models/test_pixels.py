"""Preparing pictures: the same pixels as the image processors of transformers."""

import json

import numpy as np
import pytest
import transformers

from tamis.models.files import ModelError, ModelFiles
from tamis.models.pixels import preprocessing_of
from tests.models import make_vision

SIZES = [(50, 50), (97, 41), (33, 64), (32, 32), (20, 90), (7, 5)]


def picture(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height).integers(0, 255, (height, width, 3), np.uint8)


def prepared(folder, settings):
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return preprocessing_of(ModelFiles("model", folder, "transformers", ()))


@pytest.mark.parametrize(
    ("processor", "settings"),
    [
        (transformers.CLIPImageProcessorPil, make_vision.CLIP_INPUT),
        (transformers.SiglipImageProcessorPil, make_vision.SIGLIP_INPUT),
        (transformers.ViTImageProcessorPil, make_vision.VIT_INPUT),
        (transformers.BitImageProcessorPil, make_vision.DINO_INPUT),
        (transformers.ConvNextImageProcessorPil, make_vision.CONVNEXT_INPUT | {"size": {"shortest_edge": 32}}),
        (transformers.DeiTImageProcessorPil, {"image_processor_type": "DeiTImageProcessor"}),
        (transformers.CLIPImageProcessorPil, {"image_processor_type": "CLIPImageProcessor"}),
        (transformers.SiglipImageProcessorPil, {"image_processor_type": "SiglipImageProcessor"}),
        (transformers.ViTImageProcessorPil, {"feature_extractor_type": "ViTFeatureExtractor", "do_normalize": False}),
        (transformers.ConvNextImageProcessorPil, {"image_processor_type": "ConvNextImageProcessor"}),
    ],
)
@pytest.mark.parametrize("size", SIZES)
def test_pixels_equal_those_of_transformers(tmp_path, processor, settings, size):
    found = prepared(tmp_path, settings)
    made = processor(**{name: value for name, value in settings.items() if not name.endswith("_type")})
    expected = np.asarray(made(picture(*size), input_data_format="channels_last").pixel_values[0])
    scale, shift = found.factors()
    pixels = found.resized(picture(*size)) * scale + shift
    assert pixels.shape == (found.height, found.width, 3)
    np.testing.assert_allclose(pixels.transpose(2, 0, 1), expected, atol=2e-6)


def test_settings_are_found_in_the_configuration_of_a_processor(tmp_path):
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": make_vision.SIGLIP_INPUT}))
    assert preprocessing_of(ModelFiles("model", tmp_path, "transformers", ())).height == 32


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image_processor_type": "Owlv2ImageProcessor"}, "Owlv2ImageProcessor, which is not supported"),
        (make_vision.CLIP_INPUT | {"do_center_crop": False}, "differ in size"),
        (make_vision.VIT_INPUT | {"size": {"longest_edge": 3}}, "cannot be used"),
        (make_vision.VIT_INPUT | {"image_mean": [0.5]}, "1 values for three colours"),
    ],
)
def test_unusable_settings_are_an_error(tmp_path, settings, message):
    with pytest.raises(ModelError, match=message):
        prepared(tmp_path, settings)
