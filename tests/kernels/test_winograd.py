"""Tiles in the form of Winograd give the convolutions of the definition, at all edges of a picture."""

import numpy as np
import pytest
import torch

from tamis.kernels.winograd import WEIGHTS, gather_means, gather_tiles, spread_tiles


@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (6, 12), (13, 8), (27, 8)])
def test_a_convolution_by_tiles_is_that_of_the_definition(rows, columns):
    rng = np.random.default_rng(rows)
    frames, inputs, outputs = 3, 32, 16
    pixels = rng.standard_normal((rows, columns, frames, inputs), np.float32)
    kernel = rng.standard_normal((outputs, inputs, 3, 3), np.float32)
    bias = rng.standard_normal(outputs).astype(np.float32)
    picture = torch.from_numpy(pixels).permute(2, 3, 0, 1)
    convolved = torch.conv2d(picture.double(), torch.from_numpy(kernel).double(), padding=1).permute(2, 3, 0, 1).numpy()
    expected = np.maximum(convolved + bias, 0)

    across = columns // 4
    tiles = -(-rows // 4) * across
    weights = np.einsum("yr,oirc,xc->yxio", WEIGHTS, kernel, WEIGHTS).reshape(36, inputs, outputs).astype(np.float32)
    more = rng.standard_normal((rows, columns, frames, outputs), np.float32)
    found, means = np.full_like(more, np.nan), np.full((rows // 2, columns // 2, frames, outputs), np.nan, np.float32)
    for first in range(0, tiles, 2):
        sums = np.empty((min(2, tiles - first), frames, 36, inputs), np.float32)
        for channel in (0, 16):
            spread_tiles(np.ascontiguousarray(pixels[..., channel : channel + 16]), first, across, channel, sums)
        products = np.ascontiguousarray(np.einsum("tfsi,sio->tfso", sums, weights))
        gather_tiles(products, first, across, bias, found)
        gather_means(products, first, across, bias, more, means)
    np.testing.assert_allclose(found, expected, atol=2e-4)
    pooled = torch.nn.functional.avg_pool2d(torch.from_numpy(expected + more).permute(2, 3, 0, 1), 2).permute(
        2, 3, 0, 1
    )
    np.testing.assert_allclose(means, pooled.numpy(), atol=2e-4)
