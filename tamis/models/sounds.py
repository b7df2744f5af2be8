"""Speech, music or noise: the network of inaSpeechSegmenter (Doukhan et al. 2018; MIT).

    16 kHz --24 mel bands, 10 ms--> patches [68 frames, 21 bands], every 20 ms --network--> 3 probabilities --Viterbi-->
    labels
           --energy of frames--------------------------------------------------Viterbi--> silent or not

The weights are in an HDF5 file of Keras; the network is built here in torch. A recording is passed in blocks of a minute.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tamis.errors import require
from tamis.models import mel
from tamis.models.files import ModelError, ModelFiles

LABELS = ("speech", "music", "noise", "silence")
STEP_S = 0.02
BLOCK_S = 60.0
_FRAMES, _BANDS, _USED = 68, 24, 21
_SIZE, _HOP, _FFT = 400, 160, 512
_QUIET = 0.03
"""Frames with less energy than this share of the geometric mean are silent."""

_CONVOLUTIONS = ((12, 15), (13, 16), (14, 17), (15, 18))
_LAYERS = ((6, 19), (7, 20), (8, 21), (9, 22), (10, None))


class SoundNetwork:
    """Four convolutions and five linear layers, in torch."""

    def __init__(self, found: ModelFiles) -> None:
        torch = require("torch", extra="models", purpose=f"running {found.name}")
        h5py = require("h5py", extra="audio-models", purpose=f"running {found.name}")
        path = found.weights[0]
        try:
            with h5py.File(path, "r") as file:
                read = functools.partial(_read, file, torch)
                self._convolutions = [
                    _folded(
                        read("conv2d", number, "kernel").permute(3, 2, 0, 1), read("conv2d", number, "bias"), read, norm
                    )
                    for number, norm in _CONVOLUTIONS
                ]
                self._layers = [
                    _folded(read("dense", number, "kernel").T, read("dense", number, "bias"), read, norm)
                    for number, norm in _LAYERS
                ]
        except (OSError, KeyError) as error:
            raise ModelError(f"{path} is not the network of inaSpeechSegmenter", hint="download it again") from error
        self._torch = torch

    def probabilities(self, patches: np.ndarray) -> np.ndarray:
        """[patches, 3] for patches [patches, 68, 21]."""
        torch, nn = self._torch, self._torch.nn.functional
        out = np.empty((len(patches), 3), np.float32)
        with torch.inference_mode():
            for start in range(0, len(patches), 64):
                values = torch.from_numpy(np.ascontiguousarray(patches[start : start + 64]))[:, None]
                values = nn.max_pool2d(_pad_same(nn, self._convolve(values, 0), (4, 2)), (4, 2))
                values = self._convolve(self._convolve(values, 1), 2)
                values = nn.max_pool2d(_pad_same(nn, values, (2, 2)), (2, 2))
                values = nn.max_pool2d(self._convolve(values, 3), (4, 1))
                values = values.permute(0, 2, 3, 1).flatten(1)
                for number, (weight, bias) in enumerate(self._layers):
                    values = nn.linear(values, weight, bias)
                    values = torch.relu(values) if number + 1 < len(self._layers) else torch.softmax(values, dim=1)
                out[start : start + 64] = values.numpy()
        return out

    def _convolve(self, values: Any, number: int) -> Any:
        weight, bias = self._convolutions[number]
        return self._torch.relu(self._torch.nn.functional.conv2d(values, weight, bias))

    def labels(self, samples: np.ndarray) -> np.ndarray:
        """The label of each 20 ms of a block, as an index into `LABELS`; empty for less than one frame."""
        bands, energy = features(samples)
        if not len(bands):
            return np.empty(0, np.int64)
        active = viterbi(_certain(energy > _threshold(energy)), stay=(-5.0, 0.0), change=150)[::2].astype(bool)
        patches, valid = _patches(bands)
        found = self.probabilities(patches)
        found[~valid] = 0.5
        patch_of = np.clip(np.arange(len(active)) - _FRAMES // 4, 0, len(found) - 1)
        found = found[patch_of]
        result = np.full(len(active), len(LABELS) - 1)
        with np.errstate(divide="ignore"):
            logarithms = np.log(found.astype(np.float64))
        for start, stop in _runs(active):
            result[start:stop] = viterbi(logarithms[start:stop], stay=(0.0, 0.0, 0.0), change=80)
        return result

    def close(self) -> None:
        self._convolutions = self._layers = []


def _read(file: Any, torch: Any, layer: str, number: int, name: str) -> Any:
    key = f"{layer}_{number}"
    return torch.from_numpy(np.asarray(file["model_weights"][key][key][f"{name}:0"], np.float32))


def _folded(weight: Any, bias: Any, read: Any, norm: int | None) -> tuple[Any, Any]:
    """A layer with the batch normalization that follows it."""
    if norm is None:
        return weight.contiguous(), bias
    name = "batch_normalization"
    scale = read(name, norm, "gamma") / (read(name, norm, "moving_variance") + 0.001).sqrt()
    shape = [-1] + [1] * (weight.ndim - 1)
    bias = (bias - read(name, norm, "moving_mean")) * scale + read(name, norm, "beta")
    return (weight * scale.reshape(shape)).contiguous(), bias


def _pad_same(nn: Any, values: Any, pool: tuple[int, int]) -> Any:
    """Values padded so that pooling covers all of them, as Keras does with padding="same"."""
    tall, wide = (-values.shape[2] % pool[0], -values.shape[3] % pool[1])
    return nn.pad(values, (wide // 2, wide - wide // 2, tall // 2, tall - tall // 2), value=float("-inf"))


# --------------------------------------------------------------------------------------------------------------- features


def features(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """([frames, 24] logarithms of mel bands from 100 Hz to 8 kHz, [frames] logarithms of energy), 100 frames per second."""
    frames = mel.frames_of(np.asarray(samples, np.float32), _SIZE, _HOP)
    bands = np.empty((len(frames), _BANDS), np.float32)
    energy = np.empty(len(frames), np.float32)
    window, weights = np.hanning(_SIZE), _triangles()
    with np.errstate(divide="ignore"):
        for start in range(0, len(frames), 1024):
            some = frames[start : start + 1024]
            some = some - 0.97 * np.concatenate([some[:, :1], some[:, :-1]], axis=1)
            energy[start : start + 1024] = np.log((some**2).sum(axis=1))
            bands[start : start + 1024] = np.log(mel.power(some, window, _FFT) @ weights)
    return bands, energy


@functools.cache
def _triangles() -> np.ndarray:
    """[257, 24]: triangular filters of equal area, spaced by the mel scale of HTK, with the rounding of SIDEKIT."""
    low, high = (2595 * np.log10(1 + hertz / 700) for hertz in (100.0, 8000.0))
    edges = 700 * (10 ** (np.linspace(low, high, _BANDS + 2) / 2595) - 1)
    heights = 2.0 / (edges[2:] - edges[:-2])
    hertz = np.arange(_FFT) / _FFT * mel.RATE
    out = np.zeros((_FFT // 2 + 1, _BANDS), np.float32)
    bins = np.floor(edges * _FFT / mel.RATE).astype(int) + 1
    for band in range(_BANDS):
        left = np.arange(bins[band], bins[band + 1])
        right = np.arange(bins[band + 1], min(bins[band + 2], _FFT))[:-1]
        out[left, band] = heights[band] / (edges[band + 1] - edges[band]) * (hertz[left] - edges[band])
        out[right, band] = heights[band] / (edges[band + 2] - edges[band + 1]) * (edges[band + 2] - hertz[right])
    return out


def _patches(bands: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """([patches, 68, 21] with mean 0 and deviation 1 each, which of them are finite), every second frame."""
    if len(bands) < _FRAMES:
        lowest = np.full((_FRAMES - len(bands), _BANDS), bands.min(), np.float32)
        bands = np.concatenate([bands, lowest])
    views = np.lib.stride_tricks.sliding_window_view(bands[:, :_USED], _FRAMES, axis=0)[::2].transpose(0, 2, 1)
    flat = views.reshape(len(views), -1)
    with np.errstate(invalid="ignore", divide="ignore"):
        flat = (flat - flat.mean(axis=1, keepdims=True)) / flat.std(axis=1, keepdims=True)
    valid = np.isfinite(flat).all(axis=1)
    return np.where(valid[:, None], flat, 0).reshape(-1, _FRAMES, _USED).astype(np.float32), valid


def _threshold(energy: np.ndarray) -> float:
    finite = energy[np.isfinite(energy)]
    return float(finite.mean() + np.log(_QUIET)) if len(finite) else np.inf


# ---------------------------------------------------------------------------------------------------------------- Viterbi


def _certain(active: np.ndarray) -> np.ndarray:
    """Log-probabilities of two states that are almost certain."""
    out = np.full((len(active), 2), np.log(1e-10))
    out[np.arange(len(active)), active.astype(int)] = np.log(1 - 1e-10)
    return out


def viterbi(logarithms: np.ndarray, stay: tuple[float, ...], change: float) -> np.ndarray:
    """The most likely state at each time, if a change of state costs a factor of 10 ** -change."""
    count = logarithms.shape[1]
    transition = np.full((count, count), -change * np.log(10))
    np.fill_diagonal(transition, stay)
    best = logarithms[0] - np.log(count)
    came = np.zeros(logarithms.shape, np.int64)
    for time in range(1, len(logarithms)):
        ways = best[:, None] + transition
        came[time] = ways.argmax(axis=0)
        best = ways.max(axis=0) + logarithms[time]
    path = np.empty(len(logarithms), np.int64)
    path[-1] = best.argmax()
    for time in range(len(logarithms) - 1, 0, -1):
        path[time - 1] = came[time, path[time]]
    return path


def _runs(active: np.ndarray) -> list[tuple[int, int]]:
    """(start, stop) of the runs of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], active.astype(np.int8), [0]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
