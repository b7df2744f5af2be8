"""Train and run classifiers on embeddings: one linear layer on the vectors of a frozen model, in one file.

    texts, labels --Embed--> vectors --split by content--> 90 % train, 10 % held out --> Head, HeadEvaluation
                                                                                           |
                                                      model.safetensors: weights, labels, which embeddings

The layer is multinomial logistic regression, fitted to convergence, so that it depends on the rows and not on their order. On
one platform, the same vectors give the same file. A file holds numbers and JSON, no code.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tamis.errors import ParameterError, TamisError
from tamis.models.linear import area_under_curve

_KIND = "tamis embedding classifier 1"

PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
"""Strengths of the L2 penalty that are tried, on vectors of unit variance; the best on a fifth of the rows is taken."""

MAX_STEPS = 500
TOLERANCE = 1e-5
"""Fitting stops when no component of the gradient of the mean loss exceeds this."""


@dataclass(frozen=True)
class Embeddings:
    """The vectors that a head was trained on."""

    model: str
    """The model as `Embed` found it."""
    identity: str
    """A hash of its files."""
    dimensions: int
    normalize: bool = True
    max_tokens: int | None = None
    max_chars: int | None = None
    long_texts: str = "truncate"


@dataclass(frozen=True, eq=False)
class Head:
    """A linear layer on embeddings. `predict` returns the probability of each label."""

    labels: tuple[str, ...]
    weights: np.ndarray
    """float32[labels, dimensions]"""
    bias: np.ndarray
    """float32[labels]"""
    embeddings: Embeddings

    def predict(self, vectors: np.ndarray) -> np.ndarray:
        """float32[rows, labels]; each row adds up to 1."""
        return _softmax(vectors.astype(np.float32) @ self.weights.T + self.bias)

    def save(self, path: str | Path) -> None:
        """Write a safetensors file: an 8-byte length, JSON, numbers."""
        metadata = {"kind": _KIND, "labels": json.dumps(self.labels), "embeddings": json.dumps(asdict(self.embeddings))}
        weights, bias = (np.ascontiguousarray(part, "<f4") for part in (self.weights, self.bias))
        tensors = {
            "weights": {"dtype": "F32", "shape": list(weights.shape), "data_offsets": [0, weights.nbytes]},
            "bias": {
                "dtype": "F32",
                "shape": list(bias.shape),
                "data_offsets": [weights.nbytes, weights.nbytes + bias.nbytes],
            },
        }
        header = json.dumps({"__metadata__": metadata, **tensors}, sort_keys=True).encode()
        header += b" " * (-len(header) % 8)
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(target.name + ".partial")
        partial.write_bytes(struct.pack("<Q", len(header)) + header + weights.tobytes() + bias.tobytes())
        partial.replace(target)

    @staticmethod
    def load(path: str | Path) -> Head:
        """Read a head, or raise a TamisError with what is wrong with the file."""
        try:
            raw = Path(path).read_bytes()
        except OSError as error:
            raise TamisError(f"cannot read the model {path}: {error}") from error
        try:
            (size,) = struct.unpack_from("<Q", raw)
            header = json.loads(raw[8 : 8 + size])
            metadata = header["__metadata__"]
            if metadata["kind"] != _KIND:
                raise ValueError(f"it is a {metadata['kind']!r}")
            labels = tuple(str(label) for label in json.loads(metadata["labels"]))
            embeddings = Embeddings(**json.loads(metadata["embeddings"]))
            content = memoryview(raw)[8 + size :]
            weights, bias = (_tensor(header[name], content) for name in ("weights", "bias"))
            if weights.shape != (len(labels), embeddings.dimensions) or bias.shape != (len(labels),):
                raise ValueError(f"it has weights of shape {weights.shape} for {len(labels)} labels")
            if not (np.isfinite(weights).all() and np.isfinite(bias).all()):
                raise ValueError("some of its weights are not finite numbers")
        except (ValueError, KeyError, TypeError, struct.error) as error:
            raise TamisError(
                f"{path} is not a classifier on embeddings that Tamis trained: {error}",
                hint="train one with `tamis train-classifier --embeddings minilm`",
            ) from error
        return Head(labels, weights, bias, embeddings)


def _tensor(entry: Mapping[str, Any], content: memoryview) -> np.ndarray:
    first, last = entry["data_offsets"]
    if entry["dtype"] != "F32" or not 0 <= first <= last <= len(content):
        raise ValueError("its numbers are not within the file")
    return np.frombuffer(content[first:last], "<f4").astype(np.float32).reshape(entry["shape"])


def memory_bytes(path: Path) -> int:
    """The memory that loading a head needs."""
    return 4 * path.stat().st_size


# ----------------------------------------------------------------------------------------------------------- evaluation


@dataclass(frozen=True)
class LabelMetrics:
    """How well one label is found. A ratio with denominator 0 is 0."""

    label: str
    rows: int
    precision: float
    recall: float

    @property
    def f1(self) -> float:
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0


@dataclass(frozen=True)
class HeadEvaluation:
    """Held-out metrics of a head."""

    rows: int
    accuracy: float
    auc: float
    """Of the second of two labels; with more labels, the mean over labels, each against all others."""
    labels: tuple[LabelMetrics, ...]

    @property
    def macro_f1(self) -> float:
        """The mean F1 of the labels that occur."""
        found = [label.f1 for label in self.labels if label.rows]
        return sum(found) / len(found) if found else 0.0

    @staticmethod
    def of(labels: Sequence[str], targets: np.ndarray, probabilities: np.ndarray) -> HeadEvaluation:
        said = probabilities.argmax(axis=1)
        metrics = []
        for number, label in enumerate(labels):
            right = int(((said == number) & (targets == number)).sum())
            named, true = int((said == number).sum()), int((targets == number).sum())
            metrics.append(LabelMetrics(label, true, right / named if named else 0.0, right / true if true else 0.0))
        curves = [area_under_curve(targets == number, probabilities[:, number]) for number in range(len(labels))]
        known = [area for area in (curves[1:] if len(labels) == 2 else curves) if not np.isnan(area)]
        accuracy = float((said == targets).mean()) if len(targets) else 0.0
        return HeadEvaluation(len(targets), accuracy, float(np.mean(known)) if known else float("nan"), tuple(metrics))


# ------------------------------------------------------------------------------------------------------------- training


@dataclass(frozen=True)
class TrainedHead:
    head: Head
    evaluation: HeadEvaluation
    trained_rows: int
    penalty: float


def train_head(
    vectors: np.ndarray,
    targets: np.ndarray,
    labels: Sequence[str],
    held_out: np.ndarray,
    embeddings: Embeddings,
    *,
    balanced: bool = False,
    progress: Callable[[str], None] | None = None,
) -> TrainedHead:
    """Train on float[rows, dimensions] with the number of the label of each row, and evaluate on the rows `held_out`.

    With `balanced`, all labels have the same total weight, however many rows each has.
    """
    chosen = np.flatnonzero(~held_out)
    counts = np.bincount(targets[chosen], minlength=len(labels))
    if len(labels) < 2 or not counts.all():
        lacking = [label for label, count in zip(labels, counts, strict=True) if not count]
        raise TamisError(
            f"there are no rows to train on for {', '.join(lacking)}" if lacking else "all rows have the same label",
            hint="training needs rows of at least two labels, some of each outside of the held-out share",
        )
    if not np.isfinite(vectors).all():
        raise ParameterError("some vectors have values that are not finite numbers")
    center = vectors[chosen].mean(axis=0, dtype=np.float64)
    spread = np.maximum(vectors[chosen].std(axis=0, dtype=np.float64), 1e-6)
    points = (vectors[chosen] - center) / spread
    points = np.concatenate([points, np.ones((len(points), 1))], axis=1)  # the last weight is the bias
    wanted = np.eye(len(labels))[targets[chosen]]
    costs = (len(chosen) / len(labels) / counts)[targets[chosen]] if balanced else np.ones(len(chosen))
    penalty = _best_penalty(points, wanted, costs, progress)
    weights = _fit(points, wanted, costs, penalty)
    scaled = weights[:, :-1] / spread
    head = Head(
        tuple(labels), scaled.astype(np.float32), (weights[:, -1] - scaled @ center).astype(np.float32), embeddings
    )
    tested = np.flatnonzero(held_out)
    evaluation = HeadEvaluation.of(labels, targets[tested], head.predict(vectors[tested]))
    return TrainedHead(head, evaluation, len(chosen), penalty)


def _best_penalty(
    points: np.ndarray, wanted: np.ndarray, costs: np.ndarray, progress: Callable[[str], None] | None
) -> float:
    """The strength with the lowest loss on every fifth row of each label."""
    targets, apart = wanted.argmax(axis=1), np.zeros(len(points), np.bool_)
    for number in range(wanted.shape[1]):
        apart[np.flatnonzero(targets == number)[4::5]] = True
    if not apart.any():
        return PENALTIES[len(PENALTIES) // 2]
    losses = []
    for penalty in PENALTIES:
        weights = _fit(points[~apart], wanted[~apart], costs[~apart], penalty)
        chances = _softmax(points[apart] @ weights.T)
        losses.append(float(-(costs[apart] * np.log(np.maximum((chances * wanted[apart]).sum(1), 1e-12))).mean()))
        if progress is not None:
            progress(f"penalty {penalty:g}: loss {losses[-1]:.4f}")
    return PENALTIES[int(np.argmin(losses))]


def _fit(points: np.ndarray, wanted: np.ndarray, costs: np.ndarray, penalty: float) -> np.ndarray:
    """Weights of logistic regression, by accelerated gradient descent with restarts (O'Donoghue and Candes 2015)."""
    rows = len(points)
    shrink = np.full(points.shape[1], penalty)
    shrink[-1] = 0  # the bias
    # The curvature of the softmax is at most half the largest eigenvalue of the weighted second moments.
    rate = 1 / (0.5 * np.linalg.eigvalsh((points * costs[:, None]).T @ points / rows)[-1] + penalty)
    weights = np.zeros((wanted.shape[1], points.shape[1]))
    ahead, momentum = weights, 1.0
    for _ in range(MAX_STEPS):
        error = (_softmax(points @ ahead.T) - wanted) * costs[:, None]
        gradient = error.T @ points / rows + shrink * ahead
        if np.abs(gradient).max() < TOLERANCE:
            break
        moved = ahead - rate * gradient
        if ((moved - weights) * gradient).sum() > 0:
            momentum = 1.0
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = moved + (momentum - 1) / following * (moved - weights)
        weights, momentum = moved, following
    return weights


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances: np.ndarray = powers / powers.sum(axis=1, keepdims=True)
    return chances
