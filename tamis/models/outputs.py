"""What the outputs of a network mean: labels and probabilities, scores, vectors."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import HIDDEN, Column
from tamis.errors import ParameterError, did_you_mean
from tamis.models.files import ModelError, ModelFiles, labels_of

Task = Literal["single", "multi", "regression"]


def task_of(found: ModelFiles) -> tuple[Task, list[str]]:
    """What a classifier predicts, and the names of its outputs."""
    config = found.config
    if config.get("id2label") and labels_of(config) is None:
        raise ModelError(
            f"the labels in {found.folder / 'config.json'} are not numbered from 0 without gaps",
            hint="`id2label` must name each output of the network",
        )
    count = config.get("num_labels") or 2
    if not isinstance(count, int) or count < 1:
        raise ModelError(
            f"`num_labels` in {found.folder / 'config.json'} is {count!r}, not a number",
            hint="download the model again",
        )
    labels = labels_of(config) or [f"LABEL_{number}" for number in range(count)]
    problem = config.get("problem_type")
    if problem == "regression" or (problem is None and len(labels) == 1):
        return "regression", labels
    return ("multi" if problem == "multi_label_classification" else "single"), labels


def check_labels(model: str | Path, wanted: Sequence[str], labels: Sequence[str]) -> None:
    """Raise if a model has no such labels."""
    for label in wanted:
        if label not in labels:
            raise ParameterError(
                f"the model {model} has no label {label!r}",
                hint=did_you_mean(label, labels) or f"it has {', '.join(labels[:20])}",
            )


def check_names(step: str, names: Iterable[str], read: Container[str] = ()) -> None:
    """Raise if columns that a step adds have no name, a reserved name, the same name, or that of a column it reads."""
    known: set[str] = set()
    for name in names:
        if not name or name.startswith(HIDDEN):
            raise ParameterError(
                f"`{step}` cannot add a column named {name!r}", hint=f"names that begin with `{HIDDEN}` are reserved"
            )
        if name in read:
            raise ParameterError(
                f"`{step}` would replace the column `{name}`, which it reads", hint="give the new column another name"
            )
        if name in known:
            raise ParameterError(f"`{step}` would add two columns named `{name}`", hint="give each its own name")
        known.add(name)


def label_scores(logits: np.ndarray, empty: np.ndarray, task: Task, labels: pa.Array, model: str) -> dict[str, Column]:
    """The label, its score and the probabilities of all labels in each row; null where `empty`.

    A regression has a score only. If several labels may apply, the label is the list of those with at least 0.5.
    """
    if task == "regression":
        return {"score": pa.array(logits[:, 0], mask=empty)}
    if logits.shape[1] != len(labels):
        raise ModelError(
            f"{model} has {logits.shape[1]} outputs but {len(labels)} names of labels",
            hint="config.json and the weights must be of the same model",
        )
    if task == "multi":
        probabilities = sigmoid(logits)
        found = chosen_labels(probabilities >= 0.5, labels, empty)
    else:
        probabilities = softmax(logits)
        found = labels.take(pa.array(probabilities.argmax(axis=1), mask=empty))
    score = pa.array(probabilities.max(axis=1), mask=empty)
    return {"label": found, "score": score, "probabilities": vectors(probabilities, empty)}


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities that add up to 1 in each row."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """A probability for each logit, without overflow."""
    powers = np.exp(-np.abs(logits))
    return np.where(logits >= 0, 1 / (1 + powers), powers / (1 + powers)).astype(np.float32)


def chosen_labels(chosen: np.ndarray, labels: pa.Array, empty: np.ndarray) -> pa.Array:
    """The labels chosen in each row."""
    counts = np.where(empty, 0, chosen.sum(axis=1))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]).astype(np.int32)
    values = labels.take(pa.array(np.nonzero(chosen & ~empty[:, None])[1]))
    made = pa.ListArray.from_arrays(pa.array(offsets), values)
    return pc.if_else(pa.array(empty), pa.scalar(None, made.type), made) if empty.any() else made


def vectors(values: np.ndarray, empty: np.ndarray | None = None, dtype: str = "float32") -> pa.FixedSizeListArray:
    """A matrix as a column of fixed-size lists, null where `empty`."""
    flat = pa.array(np.ascontiguousarray(values, dtype).reshape(-1))
    if empty is None or not empty.any():
        return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1], mask=pa.array(empty))
