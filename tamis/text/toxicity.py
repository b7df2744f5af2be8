"""Hate speech and offensive language, by a small model that a package includes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc

from tamis.batch import Batch
from tamis.context import Context
from tamis.models.tfidf import TfidfClassifier
from tamis.operators import Filter, Rule, Scores, at_most, operator
from tamis.text.clean import strings
from tamis.text.shared_files import TFIDF, ModelFileStep


@operator(reads="text", writes=("toxicity", "hate_speech", "offensive_language"))
class Toxicity(ModelFileStep, Filter):
    """Keep documents that are hate speech or offensive language with a probability of at most 0.5.

    The model of the package hatesonar 0.1.0 (MIT): logistic regression on the TF-IDF of English words, trained on 24,783 tweets
    labelled by people (Davidson et al. 2017). `toxicity` is the sum of `hate_speech` and `offensive_language`; a text without
    words that the model knows scores 0.325. It judges words and not what is meant by them, so check what it drops.
    `max_chars` limits it to that many characters from the start. Needs `tamis[toxicity]`; about 12 MB/s.

    >>> Toxicity(max_toxicity=0.9).rules()[0].maximum
    0.9
    """

    model: str | Path = "hatesonar.onnx"
    column: str = "text"
    max_toxicity: float = 0.5
    max_chars: int | None = None

    cost = 20.0
    model_file = TFIDF
    measuring_parameters = frozenset({"max_chars"})

    def open(self, context: Context) -> _ToxicityScorer:
        return _ToxicityScorer(self.max_chars, TFIDF.open(self.model, context))

    def rules(self) -> list[Rule]:
        return [at_most("toxicity", self.max_toxicity)]


@dataclass(frozen=True)
class _ToxicityScorer:
    max_chars: int | None
    model: TfidfClassifier

    def score(self, batch: Batch) -> Scores:
        texts = pc.fill_null(strings(batch["text"]), "")
        if self.max_chars is not None:
            texts = pc.utf8_slice_codeunits(texts, 0, self.max_chars)
        found = self.model.predict(texts.to_pylist())
        return {"toxicity": found[:, 0] + found[:, 1], "hate_speech": found[:, 0], "offensive_language": found[:, 1]}
