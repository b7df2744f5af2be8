"""Filters by the scores of models that need no GPU.

These are fastText classifiers, linear classifiers trained with `tamis train-classifier`, and n-gram language models trained
with `tamis train-language-model`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from tamis.batch import Batch, Column
from tamis.context import Context
from tamis.errors import ParameterError, did_you_mean
from tamis.models.fasttext import FastText
from tamis.models.language_model import LanguageModel
from tamis.models.linear import LinearModel
from tamis.operators import Filter, Map, Operator, Rule, Scores, at_least, between, operator
from tamis.sampling import salt_of
from tamis.text.segment import buffers
from tamis.text.shared_files import FASTTEXT, LANGUAGE_MODEL, LINEAR, ModelFileStep


def _open(model: str | Path, label: str, context: Context) -> FastText:
    found = FASTTEXT.open(model, context)
    if label not in found.labels:
        listed = ", ".join(found.labels[:20])
        hint = did_you_mean(label, found.labels) or f"it has {listed}"
        raise ParameterError(f"the model {model} has no label {label!r}", hint=hint)
    return found


def _scores(model: FastText, column: Column, label: str, max_chars: int) -> np.ndarray:
    """The probability of a label for each text, at most 1; 0 for a text without words."""
    data, offsets = buffers(column)
    scores = np.minimum(model.score(data, offsets, label, max_chars=max_chars), 1)
    scores[model.blank(data, offsets)] = 0
    return scores


def _check_length(step: Operator, max_chars: int) -> None:
    if max_chars < 0:
        raise ParameterError(
            f"`max_chars` of `{step.name}` must not be negative, got {max_chars}", hint="0 reads whole texts"
        )


@operator(reads="text", writes="fasttext_score")
class FastTextScore(ModelFileStep, Filter):
    """Keep documents for which a fastText classifier gives `label` a probability of at least 0.5.

    `model` is a `.bin` or `.ftz` file, or its name in the folder $TAMIS_MODELS or in ~/.cache/tamis/models. Scores equal
    those of the fastText library, with line breaks as spaces; a text that is null, empty or blank scores 0. `max_chars` limits
    the model to that many characters from the start. To use several models in one pipeline, set `score_column` for each.

    >>> FastTextScore(model="oh_eli5.bin", label="__label__hq", min_score=0.018).rules()[0].minimum
    0.018
    """

    model: str | Path
    label: str
    column: str = "text"
    min_score: float = 0.5
    max_score: float = 1.0
    max_chars: int = 0
    score_column: str = "fasttext_score"

    cost = 3.0
    model_file = FASTTEXT

    @classmethod
    def is_threshold(cls, parameter: str) -> bool:
        return parameter != "max_chars" and super().is_threshold(parameter)

    def check(self) -> None:
        _check_length(self, self.max_chars)
        super().check()

    def open(self, context: Context) -> _FastTextScorer:
        return _FastTextScorer(self, _open(self.model, self.label, context))

    def rules(self) -> list[Rule]:
        return [between("fasttext_score", self.min_score, self.max_score)]

    def score_columns(self) -> dict[str, str]:
        return {"fasttext_score": self.score_column}


@dataclass(frozen=True)
class _FastTextScorer:
    step: FastTextScore
    model: FastText

    def score(self, batch: Batch) -> Scores:
        return {"fasttext_score": _scores(self.model, batch["text"], self.step.label, self.step.max_chars)}


@operator(reads="text", writes=("fasttext_quality", "fasttext_quality_margin"))
class FastTextQuality(ModelFileStep, Filter):
    """Keep documents that a fastText classifier rates highly, and a random sample of the rest.

    A document with probability p of `label` is kept if a random number from the Pareto distribution with shape `alpha` is
    greater than 1 - p (Brown et al. 2020, appendix A; alpha is 3 in NeMo Curator). Low scores are thus kept sometimes, which
    preserves diversity. `fasttext_quality` is p; `fasttext_quality_margin` is the random number minus (1 - p), and
    documents below 0 are dropped. The random number depends only on the address of the row and on `seed`, so it is the same
    in every run and for any number of workers.

    >>> FastTextQuality(model="quality.bin").rules()[0].score
    'fasttext_quality_margin'
    """

    model: str | Path
    label: str = "__label__hq"
    column: str = "text"
    alpha: float = 3.0
    seed: int = 42
    max_chars: int = 0

    cost = 3.0
    model_file = FASTTEXT

    @classmethod
    def is_threshold(cls, parameter: str) -> bool:
        return parameter != "max_chars" and super().is_threshold(parameter)

    def check(self) -> None:
        _check_length(self, self.max_chars)
        if self.alpha <= 0:
            raise ParameterError(f"`alpha` must be positive, got {self.alpha}")
        super().check()

    def open(self, context: Context) -> _FastTextQualityScorer:
        return _FastTextQualityScorer(self, _open(self.model, self.label, context))

    def rules(self) -> list[Rule]:
        return [at_least("fasttext_quality_margin", 0.0)]


@dataclass(frozen=True)
class _FastTextQualityScorer:
    step: FastTextQuality
    model: FastText

    def score(self, batch: Batch) -> Scores:
        scores = _scores(self.model, batch["text"], self.step.label, self.step.max_chars)
        drawn = (1 - _random_keys(batch, self.step.seed)) ** (-1 / self.step.alpha) - 1
        return {"fasttext_quality": scores, "fasttext_quality_margin": drawn - (1 - scores.astype(np.float64))}


def _random_keys(batch: Batch, seed: int) -> np.ndarray:
    """A random number from 0 to 1 for each row, which depends on its address and the seed only."""
    salt = salt_of(seed)
    keys = (address.encode() for address in batch.origin.addresses())
    drawn = b"".join(hashlib.blake2b(key, digest_size=8, key=salt).digest() for key in keys)
    return (np.frombuffer(drawn, "<u8") >> np.uint64(11)).astype(np.float64) / 2**53


@operator(reads="text", writes=("label", "label_confidence"))
class FastTextLabel(ModelFileStep, Map):
    """Add the most probable label of a fastText classifier and its probability; both are null for a text without words.

    The prefix "__label__" is removed from labels. `max_chars` limits the model to that many characters from the start.

    >>> FastTextLabel(model="topics.ftz").writes()
    ('label', 'label_confidence')
    """

    model: str | Path
    column: str = "text"
    max_chars: int = 0

    cost = 3.0
    model_file = FASTTEXT

    def check(self) -> None:
        _check_length(self, self.max_chars)
        super().check()

    def open(self, context: Context) -> _FastTextLabeler:
        return _FastTextLabeler(self.max_chars, FASTTEXT.open(self.model, context))


class _FastTextLabeler:
    def __init__(self, max_chars: int, model: FastText) -> None:
        self.max_chars, self.model = max_chars, model
        self.labels = pa.array([label.removeprefix("__label__") for label in model.labels], pa.string())

    def apply(self, batch: Batch) -> dict[str, Column]:
        data, offsets = buffers(batch["text"])
        best, scores = self.model.predict(data, offsets, max_chars=self.max_chars)
        unknown = self.model.blank(data, offsets) | (best[:, 0] < 0)
        return {
            "label": self.labels.take(pa.array(best[:, 0], mask=unknown)),
            "label_confidence": pa.array(np.minimum(scores[:, 0], 1), mask=unknown),
        }


@operator(reads="text", writes="classifier_score")
class LinearClassifier(ModelFileStep, Filter):
    """Keep documents that a classifier you trained scores at least 0.5.

    `model` is a file written by `tamis train-classifier --positive A --negative B -o model`: logistic regression on hashed
    word and character n-grams. The score is the probability that a text is like those in A; a text without words scores 0.
    To use several models in one pipeline, set `score_column` for each.

    >>> LinearClassifier(model="quality.model", min_score=0.8).rules()[0].minimum
    0.8
    """

    model: str | Path
    column: str = "text"
    min_score: float = 0.5
    max_score: float = 1.0
    score_column: str = "classifier_score"

    cost = 2.0
    model_file = LINEAR

    def open(self, context: Context) -> _LinearScorer:
        return _LinearScorer(LINEAR.open(self.model, context))

    def rules(self) -> list[Rule]:
        return [between("classifier_score", self.min_score, self.max_score)]

    def score_columns(self) -> dict[str, str]:
        return {"classifier_score": self.score_column}


@dataclass(frozen=True)
class _LinearScorer:
    model: LinearModel

    def score(self, batch: Batch) -> Scores:
        data, offsets = buffers(batch["text"])
        return {"classifier_score": np.nan_to_num(self.model.predict(data, offsets), nan=0.0)}


@operator(reads="text", writes="perplexity")
class Perplexity(ModelFileStep, Filter):
    """Keep documents whose perplexity under an n-gram language model is within bounds (Wenzek et al. 2020).

    10 ** (-log10 p(text) / (words + lines)), where p is the product over lines of the probabilities of their words and of
    the end of the line. `model` is a file written by `tamis train-language-model --input A -o model`, which prints the range
    of values for texts like those in A, or an ARPA file of SRILM or KenLM (plain or gzip), for which words are split at
    spaces. Useful bounds depend on the model, so there are no defaults. A text without words has no perplexity and is
    dropped. To use several models in one pipeline, set `score_column` for each.

    >>> Perplexity(model="wiki.model", max_perplexity=1000).rules()[0].maximum
    1000
    """

    model: str | Path
    column: str = "text"
    min_perplexity: float | None = None
    max_perplexity: float | None = None
    score_column: str = "perplexity"

    cost = 3.0
    model_file = LANGUAGE_MODEL

    def check(self) -> None:
        super().check()
        if self.min_perplexity is None and self.max_perplexity is None and not self.score_only:
            raise ParameterError(
                f"`{self.name}` has neither `min_perplexity` nor `max_perplexity`",
                hint="use the percentiles that training printed, or score_only=True to add the score only",
            )

    def open(self, context: Context) -> _PerplexityScorer:
        return _PerplexityScorer(LANGUAGE_MODEL.open(self.model, context))

    def rules(self) -> list[Rule]:
        return [between("perplexity", self.min_perplexity, self.max_perplexity)]

    def score_columns(self) -> dict[str, str]:
        return {"perplexity": self.score_column}


@dataclass(frozen=True)
class _PerplexityScorer:
    model: LanguageModel

    def score(self, batch: Batch) -> Scores:
        found = self.model.perplexity(batch["text"])
        return {"perplexity": pa.array(found, mask=np.isnan(found))}
