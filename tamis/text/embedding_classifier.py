"""Classify texts by a linear layer on their embeddings, which `tamis train-classifier --embeddings` trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Batch, Column, as_array
from tamis.context import Context
from tamis.errors import ColumnError
from tamis.models.devices import Device
from tamis.models.fasttext import find_model, with_model
from tamis.models.files import ModelError, find
from tamis.models.heads import Head
from tamis.models.outputs import check_labels, check_names, vectors
from tamis.models.tokens import LongTexts
from tamis.operators import Filter, Resources, Rule, Scores, between, one_of, operator
from tamis.text.embed import Embed, Embedder
from tamis.text.shared_files import HEAD


@operator(reads="text", writes=("label", "score"))
class EmbeddingClassifier(Filter):
    """Add the label that a classifier you trained gives each document, and keep only some labels if requested.

    `model` is a file written by `tamis train-classifier --embeddings minilm --positive A --negative B -o model`, or by the same
    command with `--labelled FILE`: a linear layer on the vectors of `Embed`. It names its embedding model, which must be on
    this machine; `embeddings` gives another place for it. `score` is the probability of "positive" if it was trained with
    positive and negative examples, and otherwise that of the label. `filter_by` keeps documents with one of these labels,
    `min_score` and `max_score` bound the score, and `probabilities` names a column for the probabilities of all labels.

    If `Embed` has already added the vectors of the same model, name their column in `embedding`: nothing is embedded again.
    A null text has no label, and a filter drops it. The cost is that of `Embed`.

        EmbeddingClassifier("quality.head", filter_by=["positive"])
    """

    model: str | Path
    column: str = "text"
    embedding: str | None = None
    embeddings: str | Path | None = None
    label_field: str = "label"
    score_field: str = "score"
    probabilities: str | None = None
    filter_by: Sequence[str] = ()
    min_score: float | None = None
    max_score: float | None = None
    batch_size: int | None = None
    device: Device = "auto"

    cost = 1000.0
    tolerance = 1e-4
    path_parameters = frozenset({"model", "embeddings"})
    verdict_parameters = frozenset({"filter_by"})
    incidental = frozenset({"batch_size", "device", "embeddings"})

    @property
    def adds_scores(self) -> bool:
        return True

    def reads(self) -> tuple[str, ...]:
        return ("text",) if self.embedding is None else ("embedding",)

    def real_names(self) -> dict[str, str]:
        return {"text": self.column} if self.embedding is None else {"embedding": self.embedding}

    def check(self) -> None:
        check_names(self.name, self.writes(), self.real_names().values())
        head = Head.load(find_model(self.model))
        check_labels(self.model, self.filter_by, head.labels)
        if self.embedding is None:
            self._embed(head).check()
            known = find(self._embed(head).model).identity()
            if known != head.embeddings.identity:
                raise ModelError(
                    f"{self.model} was trained on other vectors than those of {self._embed(head).model}",
                    hint="use the files of the embedding model that it was trained with, or train it again",
                )

    def packages(self) -> Mapping[str, str]:
        return {} if self.embedding is not None else self._embed(Head.load(find_model(self.model))).packages()

    def identity(self) -> dict[str, Any]:
        return with_model(super().identity(), find_model(self.model))

    @property
    def resources(self) -> Resources:
        own = HEAD.resources(self.model)
        if self.embedding is not None or not own.shared:
            return own
        embed = self._embed(Head.load(find_model(self.model))).resources
        return Resources(
            memory=embed.memory, gpus=embed.gpus, gpu_memory=embed.gpu_memory, shared={**embed.shared, **own.shared}
        )

    def open(self, context: Context) -> _Labeler:
        head = HEAD.open(self.model, context)
        return _Labeler(self, head, self._embed(head).open(context) if self.embedding is None else None)

    def rules(self) -> list[Rule]:
        rules = [one_of("label", self.filter_by)] if self.filter_by else []
        if self.min_score is not None or self.max_score is not None:
            rules.append(between("score", self.min_score, self.max_score))
        return rules

    def score_columns(self) -> dict[str, str]:
        columns = {"label": self.label_field, "score": self.score_field}
        return columns | ({"probabilities": self.probabilities} if self.probabilities is not None else {})

    def _embed(self, head: Head) -> Embed:
        made = head.embeddings
        return Embed(
            model=self.embeddings if self.embeddings is not None else made.model,
            normalize=made.normalize,
            max_tokens=made.max_tokens,
            max_chars=made.max_chars,
            long_texts=cast(LongTexts, made.long_texts),
            batch_size=self.batch_size,
            device=self.device,
        )


class _Labeler:
    def __init__(self, step: EmbeddingClassifier, head: Head, embedder: Embedder | None) -> None:
        self._step, self._head, self._embedder = step, head, embedder
        self._labels = pa.array(head.labels, pa.string())

    def score(self, batch: Batch) -> Scores:
        column = batch["text" if self._embedder is not None else "embedding"]
        missing = np.asarray(pc.is_null(column).to_numpy(zero_copy_only=False), np.bool_)
        points = self._embedder.vectors(column) if self._embedder is not None else self._stored(column)
        chances = self._head.predict(points)
        best = chances.argmax(axis=1)
        two = self._head.labels == ("negative", "positive")
        score = chances[:, 1] if two else chances.max(axis=1)
        found: dict[str, Column] = {
            "label": self._labels.take(pa.array(best, mask=missing)),
            "score": pa.array(score, mask=missing),
        }
        if self._step.probabilities is not None:
            found["probabilities"] = vectors(chances, missing)
        return found

    def _stored(self, column: Column) -> np.ndarray:
        """The vectors in a column; zeros where there is none."""
        array, size, name = as_array(column), self._head.embeddings.dimensions, self._step.embedding
        kind, points = array.type, np.zeros((len(array), size), np.float32)
        if pa.types.is_null(kind):
            return points
        variable = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        if not (variable or (pa.types.is_fixed_size_list(kind) and kind.list_size == size)):
            raise ColumnError(
                f"column `{name}` holds {kind}, not vectors of {size} dimensions",
                hint=f"add it with Embed({self._head.embeddings.model!r})",
            )
        there = np.asarray(array.is_valid().to_numpy(zero_copy_only=False), np.bool_)
        if variable:
            lengths = pc.list_value_length(array.drop_null()).to_numpy()
            other = lengths[lengths != size]
            if len(other):
                raise ValueError(
                    f"`{name}` has {other[0]} values, not {size} as the vectors of {self._head.embeddings.model}"
                )
        points[there] = array.flatten().to_numpy(zero_copy_only=False).reshape(-1, size)
        if not np.isfinite(points).all():
            raise ValueError("a vector has a value that is not a finite number")
        return points

    def close(self) -> None:
        if self._embedder is not None:
            self._embedder.close()
