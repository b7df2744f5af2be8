"""Networks on pictures: EfficientNet-lite0 as in its package, batches, shortage of memory, values that are not numbers."""

import numpy as np
import pytest
import torch

from tamis.context import Context
from tamis.models import efficientnet, image_model
from tamis.models.files import IMAGE_DEFAULTS, ModelError, ModelFiles, find
from tamis.models.image_model import ImageModel, LoadedImages, TorchImages
from tamis.models.pixels import Preprocessing

SMALL = Preprocessing(4, 6, "exact", (4, 6))


def pictures(count: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 255, (count, 4, 6, 3), np.uint8)


class Sums(torch.nn.Module):
    """The sum of each colour. Has memory for a few pictures at a time only."""

    def __init__(self, fits: int = 1000) -> None:
        super().__init__()
        self.fits, self.batches = fits, []

    def forward(self, pixels):
        self.batches.append(len(pixels))
        if len(pixels) > self.fits:
            raise MemoryError("not enough memory")
        return pixels.sum(dim=(2, 3))


def run(module, values, batch_size=None):
    return ImageModel(LoadedImages(TorchImages(module, SMALL)), Context(), batch_size).predict(values)


def test_pixels_are_scaled_and_normalized():
    values = pictures(3)
    expected = ((values.astype(np.float64) / 255 - 0.5) / 0.5).sum(axis=(1, 2))
    np.testing.assert_allclose(run(Sums(), values), expected, atol=1e-4)


@pytest.mark.parametrize("count", [1, 3, 4, 5, 9])
def test_batches_keep_the_order(count):
    module = Sums()
    np.testing.assert_allclose(run(module, pictures(count)), run(Sums(), pictures(count), batch_size=1), atol=1e-5)
    assert max(module.batches) <= image_model.CPU_ROWS


def test_no_pictures_have_no_rows():
    assert run(Sums(), pictures(0)).shape == (0, 3)


def test_batches_are_halved_if_memory_runs_out_and_the_size_is_remembered():
    module = Sums(fits=2)
    loaded = LoadedImages(TorchImages(module, SMALL))
    model = ImageModel(loaded, Context())
    np.testing.assert_allclose(model.predict(pictures(9)), run(Sums(), pictures(9)), atol=1e-5)
    module.batches.clear()
    model.predict(pictures(9))
    assert max(module.batches) == 2


def test_a_picture_that_does_not_fit_alone_is_an_error():
    with pytest.raises(MemoryError):
        run(Sums(fits=0), pictures(3))


def test_a_value_that_is_not_a_number_is_an_error():
    class Broken(torch.nn.Module):
        def forward(self, pixels):
            return pixels.sum(dim=(2, 3)) * float("nan")

    with pytest.raises(ValueError, match="not a number for 2 of 2 rows"):
        run(Broken(), pictures(2))


def test_efficientnet_gives_the_outputs_of_its_package():
    package = pytest.importorskip("efficientnet_lite_pytorch")
    found = find("efficientnet-lite0", defaults=IMAGE_DEFAULTS)
    original = package.EfficientNet.from_name("efficientnet-lite0")
    original.load_state_dict(torch.load(found.weights[0], weights_only=True))
    original.eval()
    pixels = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        torch.testing.assert_close(efficientnet.classes(found)(pixels), original(pixels), atol=1e-4, rtol=1e-4)
        expected = original.extract_features(pixels).mean(dim=(2, 3))
        torch.testing.assert_close(efficientnet.features(found)(pixels), expected, atol=1e-4, rtol=1e-4)


def test_weights_of_another_network_are_an_error(tmp_path):
    torch.save({"other": torch.zeros(3)}, tmp_path / "other.pth")
    found = ModelFiles("other", tmp_path, "efficientnet", (tmp_path / "other.pth",))
    with pytest.raises(ModelError, match="does not contain the weights of EfficientNet-lite0"):
        efficientnet.classes(found)
