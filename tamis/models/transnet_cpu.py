"""The convolutions of TransNetV2 on a CPU.

In each branch of a block, a convolution over space and one over time follow each other with nothing in between, so their
weights are multiplied in advance. In the form of Winograd (`kernels/winograd.py`), the product is a convolution over time for
each of 36 sums:

    pixels -> spread_tiles -> sums of some tiles -> convolution over time -> gather_tiles -> pixels of the next block

A window of 100 frames takes 33 GFLOP; the convolutions as defined take 82. oneDNN gets weights in the order that it needs;
otherwise it would reorder them in each call. Pixels are float32[rows, columns, frames, channels], in one array per branch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tamis.kernels.winograd import LANES, TILE, WEIGHTS, gather_means, gather_tiles, neighbours, spread_tiles

SUMS = 36
AROUND = 32
"""The values of 3 x 3 pixels in three colours, and zeros up to a multiple of LANES."""

HELD_BYTES = 4_000_000
"""Sums that are held at a time, so that they stay in a cache."""


def usable(torch: Any, filters: int) -> bool:
    """Whether this build of torch has the operations, and the network has channels in multiples of LANES."""
    return bool(
        filters % LANES == 0
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_convolution_pointwise")
        and hasattr(torch.ops.mkldnn, "_reorder_convolution_weight")
    )


class Convolutions:
    """All blocks of the network, each as (weights[branches, outputs, 3 times, inputs, 3 rows, 3 columns], bias)."""

    def __init__(self, torch: Any, blocks: Iterator[tuple[np.ndarray, np.ndarray]], dilations: Sequence[int]) -> None:
        self._torch = torch
        weights, bias = next(blocks)
        self._outputs = weights.shape[1]
        around = weights.transpose(0, 1, 4, 5, 3, 2).reshape(*weights.shape[:2], 27, 3) / 255
        around = np.pad(around, ((0, 0), (0, 0), (0, AROUND - 27), (0, 0)))
        self._first = [
            _over_time(torch, kernel, dilation, 1, more)
            for kernel, dilation, more in zip(around, dilations, bias, strict=True)
        ]
        self._others = [_Block(torch, *block, dilations) for block in blocks]

    def __call__(self, frames: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of each frame of uint8[frames, rows, columns, 3]: the means of all stages, and the pixels of the last one."""
        count, rows, columns, _ = frames.shape
        around = self._torch.empty(rows * columns, 1, count, AROUND)
        neighbours(frames, around.numpy().reshape(rows, columns, count, AROUND))
        pixels = [branch(around).reshape(rows, columns, count, self._outputs) for branch in self._first]
        del around
        means = []
        for number, block in enumerate(self._others):
            pixels = block.means(pixels) if number % 2 == 0 else block.results(pixels)
            if number % 2 == 0:
                means += [branch.mean((0, 1)) for branch in pixels]
        return np.concatenate(means, 1), np.concatenate(pixels, 3).transpose(2, 0, 1, 3).reshape(count, -1)


class _Block:
    def __init__(self, torch: Any, weights: np.ndarray, bias: np.ndarray, dilations: Sequence[int]) -> None:
        self._torch = torch
        self._outputs, times, self._inputs = weights.shape[1:4]
        self._bias = bias.astype(np.float32)
        self._branches = []
        for kernel, dilation in zip(weights, dilations, strict=True):
            sums = (kernel.reshape(-1, 9) @ np.kron(WEIGHTS, WEIGHTS).T).astype(np.float32)
            sums = sums.reshape(self._outputs, times, self._inputs, SUMS).transpose(3, 0, 2, 1)
            self._branches.append(_over_time(torch, sums.reshape(-1, self._inputs, times), dilation, SUMS))

    def results(self, given: list[np.ndarray]) -> list[np.ndarray]:
        """The first block of a stage."""
        rows, columns, frames, _ = given[0].shape
        return self._run(given, rows, (rows, columns, frames, self._outputs), gather_tiles)

    def means(self, given: list[np.ndarray]) -> list[np.ndarray]:
        """The second block of a stage: its results plus what it was given, as means of 2 x 2 pixels."""
        rows, columns, frames, _ = given[0].shape
        shape = (rows // 2, columns // 2, frames, self._outputs)
        return self._run(given, rows // 2 * 2, shape, gather_means, given)

    def _run(
        self,
        given: list[np.ndarray],
        used_rows: int,
        shape: tuple[int, ...],
        gather: Callable[..., None],
        more: list[np.ndarray] | None = None,
    ) -> list[np.ndarray]:
        _, columns, frames, channels = given[0].shape
        found = [np.empty(shape, np.float32) for _ in self._branches]
        across = columns // TILE
        tiles = -(-used_rows // TILE) * across
        step = max(1, HELD_BYTES // (4 * frames * SUMS * self._inputs))
        held = self._torch.empty(step, 1, frames, SUMS * self._inputs)
        for first in range(0, tiles, step):
            part = held[: tiles - first]
            for number, pixels in enumerate(given):
                sums = part.numpy().reshape(len(part), frames, SUMS, self._inputs)
                spread_tiles(pixels, first, across, number * channels, sums)
            for number, branch in enumerate(self._branches):
                sums = branch(part).reshape(len(part), frames, SUMS, self._outputs)
                others = () if more is None else (more[number],)
                gather(sums, first, across, self._bias[number], *others, found[number])
        return found


def _over_time(
    torch: Any, weights: np.ndarray, dilation: int, groups: int, bias: np.ndarray | None = None
) -> Callable[[Any], np.ndarray]:
    """Convolve float32[any, 1, frames, channels] with weights[outputs, inputs of a group, 3].

    With a bias, results are at least 0.
    """
    operations = torch.ops.mkldnn
    padding, dilations, ones = [0, dilation], [1, dilation], [1, 1]
    kernel = torch.from_numpy(np.ascontiguousarray(weights[:, :, None], np.float32))
    size = [1, groups * kernel.shape[1], 1, 100]
    ordered = operations._reorder_convolution_weight(kernel, padding, ones, dilations, groups, size)
    more = None if bias is None else torch.from_numpy(np.asarray(bias, np.float32))
    after = "none" if bias is None else "relu"

    def convolved(x: Any) -> np.ndarray:
        x = x.permute(0, 3, 1, 2)
        found = operations._convolution_pointwise(x, ordered, more, padding, ones, dilations, groups, after, [], "")
        return np.asarray(found.permute(0, 2, 3, 1).contiguous().numpy())

    return convolved
