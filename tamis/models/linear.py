"""Train and run small text classifiers: logistic regression on hashed word and character n-grams, in one file.

    texts, labels --split by content--> 90 % train, 10 % held out --> LinearModel, Evaluation
                                                                          |
                                                              model.safetensors: weights, settings

Training is deterministic: on one platform, the same texts and settings give the same file, bit for bit. Equal texts fall on
the same side of the split, so the held-out texts were not seen in training. A model file holds numbers and JSON, no code.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tamis.errors import ParameterError, TamisError
from tamis.kernels import linear as kernel
from tamis.kernels.fasttext import clip_rows

_KIND = "tamis linear classifier 1"


@dataclass(frozen=True)
class Settings:
    """The shape of the features. 2**20 weights are 4 MB, which mostly fits a processor's cache."""

    bits: int = 20
    min_ngram: int = 3
    max_ngram: int = 5
    max_chars: int = 0
    """Characters read from the start of each text, in training and prediction; 0 reads whole texts."""

    def check(self) -> None:
        if not 8 <= self.bits <= 28:
            raise ParameterError(f"`bits` must be between 8 and 28, got {self.bits}")
        if not (self.min_ngram >= 1 and 0 <= self.max_ngram <= 16) or self.max_chars < 0:
            raise ParameterError(
                f"got min_ngram {self.min_ngram}, max_ngram {self.max_ngram}, max_chars {self.max_chars}",
                hint="min_ngram is at least 1, max_ngram from 0 to 16, and max_chars not negative",
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.bits, self.min_ngram, self.max_ngram


@dataclass(frozen=True)
class Evaluation:
    """Held-out metrics of a model. A ratio with denominator 0 is 0."""

    true_positive: int
    false_positive: int
    true_negative: int
    false_negative: int
    auc: float
    """The probability that a positive text scores above a negative one (ties count half); nan without both classes."""

    @staticmethod
    def of(targets: np.ndarray, scores: np.ndarray) -> Evaluation:
        said, true = scores >= 0.5, targets.astype(bool)
        return Evaluation(
            true_positive=int((said & true).sum()),
            false_positive=int((said & ~true).sum()),
            true_negative=int((~said & ~true).sum()),
            false_negative=int((~said & true).sum()),
            auc=area_under_curve(true, scores),
        )

    @property
    def rows(self) -> int:
        return self.true_positive + self.false_positive + self.true_negative + self.false_negative

    @property
    def accuracy(self) -> float:
        return _share(self.true_positive + self.true_negative, self.rows)

    @property
    def precision(self) -> float:
        return _share(self.true_positive, self.true_positive + self.false_positive)

    @property
    def recall(self) -> float:
        return _share(self.true_positive, self.true_positive + self.false_negative)

    @property
    def f1(self) -> float:
        return _share(2 * self.true_positive, 2 * self.true_positive + self.false_positive + self.false_negative)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def area_under_curve(true: np.ndarray, scores: np.ndarray) -> float:
    """Return the area under the ROC curve, computed from the ranks of the scores (Mann and Whitney 1947).

    >>> area_under_curve(np.array([True, False, True]), np.array([0.9, 0.5, 0.5]))
    0.75
    """
    positive = int(true.sum())
    negative = len(true) - positive
    if not positive or not negative:
        return float("nan")
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = ends - (counts - 1) / 2
    return float((ranks[inverse][true].sum() - positive * (positive + 1) / 2) / (positive * negative))


# ----------------------------------------------------------------------------------------------------------- the model


@dataclass(frozen=True, eq=False)
class LinearModel:
    """Weights, bias and the settings of the features. `predict` returns the probability of the positive class."""

    settings: Settings
    weights: np.ndarray
    bias: float

    def predict(self, data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Return one probability per text, float32; nan for a text without words or symbols."""
        out = np.zeros(len(offsets) - 1, np.float32)
        stops = clip_rows(data, offsets, self.settings.max_chars)
        kernel.score_rows(data, offsets, stops, kernel.KINDS, self.settings.shape, self.weights, self.bias, out)
        return out

    def save(self, path: str | Path) -> None:
        """Write the model as a safetensors file: an 8-byte length, JSON, numbers."""
        metadata = {"kind": _KIND, "bias": float(self.bias).hex(), "settings": json.dumps(asdict(self.settings))}
        tensor = {"dtype": "F32", "shape": [len(self.weights)], "data_offsets": [0, self.weights.nbytes]}
        header = json.dumps({"__metadata__": metadata, "weights": tensor}, sort_keys=True).encode()
        header += b" " * (-len(header) % 8)
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(target.name + ".partial")
        partial.write_bytes(struct.pack("<Q", len(header)) + header + self.weights.astype("<f4").tobytes())
        partial.replace(target)

    @staticmethod
    def load(path: str | Path) -> LinearModel:
        """Read a model, or raise a TamisError with what is wrong with the file."""
        try:
            raw = Path(path).read_bytes()
        except OSError as error:
            raise TamisError(f"cannot read the model {path}: {error}") from error
        try:
            (size,) = struct.unpack_from("<Q", raw)
            header = json.loads(raw[8 : 8 + size])
            metadata, (first, last) = header["__metadata__"], header["weights"]["data_offsets"]
            if metadata["kind"] != _KIND:
                raise ValueError(f"it is a {metadata['kind']!r}")
            settings = Settings(**json.loads(metadata["settings"]))
            settings.check()
            weights = np.frombuffer(memoryview(raw)[8 + size + first : 8 + size + last], "<f4").astype(np.float32)
            if header["weights"]["dtype"] != "F32" or len(weights) != 1 << settings.bits:
                raise ValueError(f"it has {len(weights)} weights instead of {1 << settings.bits}")
            bias = float.fromhex(metadata["bias"])
            if not (np.isfinite(weights).all() and np.isfinite(bias)):
                raise ValueError("some of its weights are not finite numbers")
        except (ValueError, KeyError, TypeError, struct.error, TamisError) as error:
            raise TamisError(
                f"{path} is not a classifier that Tamis trained: {error}",
                hint="train one with `tamis train-classifier`",
            ) from error
        return LinearModel(settings, weights, bias)


def memory_bytes(path: Path) -> int:
    """Return the memory that loading a model needs: its file, the weights, and a check of each."""
    return path.stat().st_size * 5 // 2


# ------------------------------------------------------------------------------------------------------------ training


@dataclass(frozen=True)
class Trained:
    model: LinearModel
    evaluation: Evaluation
    trained_rows: int
    losses: tuple[float, ...]
    """Mean loss of each epoch."""


def train(
    data: np.ndarray,
    offsets: np.ndarray,
    targets: np.ndarray,
    *,
    settings: Settings | None = None,
    epochs: int = 5,
    rate: float = 0.1,
    holdout: float = 0.1,
    seed: int = 0,
    progress: Callable[[int, float], None] | None = None,
) -> Trained:
    """Train on texts (bytes and offsets) with targets 1 and 0, and evaluate on the held-out share `holdout`.

    Both classes have the same total weight, however many texts each has, so that 0.5 is a sensible threshold.
    """
    settings = settings or Settings()
    settings.check()
    if epochs < 1 or not 0 <= holdout < 1 or rate <= 0:
        raise ParameterError(
            f"got epochs {epochs}, rate {rate}, holdout {holdout}",
            hint="epochs is at least 1, rate is positive, and holdout is at least 0 and below 1",
        )
    stops = clip_rows(data, offsets, settings.max_chars)
    apart = held_out(data, offsets, stops, holdout)
    chosen = np.flatnonzero(~apart)
    kinds = targets.astype(np.uint8)
    per_class = np.bincount(kinds[chosen], minlength=2)
    if not per_class.all():
        raise TamisError(
            f"there are {per_class[1]} positive and {per_class[0]} negative texts to train on",
            hint="training needs both",
        )
    costs = (len(chosen) / 2 / per_class)[kinds]
    weights, squares = np.zeros(1 << settings.bits, np.float32), np.zeros(1 << settings.bits, np.float32)
    bias = np.zeros(2, np.float64)
    random = np.random.Generator(np.random.PCG64(seed))
    losses = []
    for epoch in range(epochs):
        order = random.permutation(chosen)
        loss = kernel.train_epoch(
            data, offsets, stops, order, kinds, costs, kernel.KINDS, settings.shape, rate, weights, squares, bias
        )
        losses.append(float(loss))
        if progress is not None:
            progress(epoch + 1, float(loss))
    model = LinearModel(settings, weights, float(bias[0]))
    tested = np.flatnonzero(apart)
    scores = np.nan_to_num(model.predict(data, offsets), nan=0.0)[tested]
    return Trained(model, Evaluation.of(kinds[tested], scores), len(chosen), tuple(losses))


def held_out(data: np.ndarray, offsets: np.ndarray, stops: np.ndarray, holdout: float) -> np.ndarray:
    """Return which texts are held out: those whose content hashes below a bound, regardless of order and number."""
    raw, bound = data.data, int(holdout * 2**32)
    hashes = (
        hashlib.blake2b(raw[first:last], digest_size=4).digest()
        for first, last in zip(offsets[:-1].tolist(), stops.tolist(), strict=True)
    )
    return np.frombuffer(b"".join(hashes), "<u4").astype(np.int64) < bound
