"""Write fastText models with random weights, of every kind that the format supports, for tests."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

LOSSES = {"hs": 1, "ns": 2, "softmax": 3, "ova": 4}


@dataclass
class Recipe:
    words: list[str]
    labels: list[str]
    loss: str = "softmax"
    dim: int = 10
    orders: int = 1
    shortest: int = 0
    longest: int = 0
    buckets: int = 0
    quantised: bool = False
    output_quantised: bool = False
    normed: bool = False
    kept: int | None = None
    """Number of buckets left in a pruned model."""
    version: int = 12
    seed: int = 0
    input: np.ndarray | None = None
    output: np.ndarray | None = None
    counts: list[int] = field(default_factory=list)

    def write(self, path: Path) -> Path:
        rng = np.random.default_rng(self.seed)
        parts = [struct.pack("<ii", 793712314, self.version)]
        numbers = (
            self.dim,
            5,
            5,
            1,
            5,
            self.orders,
            LOSSES[self.loss],
            3,
            self.buckets,
            self.shortest,
            self.longest,
            100,
        )
        parts.append(struct.pack("<12id", *numbers, 1e-4))
        parts.append(self._dictionary(rng))
        rows = len(self.words) + 1 + (self.buckets if self.kept is None else self.kept)
        parts.append(struct.pack("<?", self.quantised))
        parts.append(self._matrix(rng, rows, self.quantised, self.input))
        parts.append(struct.pack("<?", self.output_quantised))
        parts.append(self._matrix(rng, len(self.labels), self.quantised and self.output_quantised, self.output))
        path.write_bytes(b"".join(parts))
        return path

    def _dictionary(self, rng: np.random.Generator) -> bytes:
        words = ["</s>", *self.words]
        counts = self.counts or [max(1, 1000 // (2 * number + 1)) for number in range(len(self.labels))]
        parts = [struct.pack("<iiiqq", len(words) + len(self.labels), len(words), len(self.labels), 1000, self._pruned)]
        parts += [word.encode() + struct.pack("<bqb", 0, 10, 0) for word in words]
        parts += [
            label.encode() + struct.pack("<bqb", 0, count, 1) for label, count in zip(self.labels, counts, strict=True)
        ]
        if self.kept is not None:
            left = rng.permutation(self.buckets)[: self.kept]
            parts += [struct.pack("<ii", bucket, number) for number, bucket in enumerate(left.tolist())]
        return b"".join(parts)

    @property
    def _pruned(self) -> int:
        return -1 if self.kept is None else self.kept

    def _matrix(self, rng: np.random.Generator, rows: int, quantised: bool, given: np.ndarray | None) -> bytes:
        if not quantised:
            values = given if given is not None else rng.normal(0, 1, (rows, self.dim))
            assert values.shape == (rows, self.dim)
            return struct.pack("<qq", rows, self.dim) + values.astype("<f4").tobytes()
        width = 2
        spaces = -(-self.dim // width)
        codes = rng.integers(0, 256, rows * spaces, dtype=np.uint8).tobytes()
        parts = [
            struct.pack("<?qqi", self.normed, rows, self.dim, len(codes)),
            codes,
            self._quantiser(rng, self.dim, width),
        ]
        if self.normed:
            parts += [rng.integers(0, 256, rows, dtype=np.uint8).tobytes(), self._quantiser(rng, 1, 1)]
        return b"".join(parts)

    @staticmethod
    def _quantiser(rng: np.random.Generator, dim: int, width: int) -> bytes:
        spaces = -(-dim // width)
        last = dim - (spaces - 1) * width
        return struct.pack("<4i", dim, spaces, width, last) + rng.normal(0, 1, dim * 256).astype("<f4").tobytes()


def hand_made(path: Path, good: list[str], bad: list[str]) -> Path:
    """Write a model that knows some good and some bad words, with the labels __label__hq and __label__lq."""
    weights = np.zeros((1 + len(good) + len(bad), 4))
    weights[1 : 1 + len(good), 0], weights[1 + len(good) :, 1] = 6, 6
    labels = ["__label__hq", "__label__lq"]
    return Recipe([*good, *bad], labels, dim=4, input=weights, output=np.eye(2, 4)).write(path)
