"""Filters on the length and make-up of a document."""

from __future__ import annotations

from tamis.batch import Batch
from tamis.operator import Filter, Rule, Scores, between, operator
from tamis.text.segment import word_stats


@operator(reads="text", writes="words")
class WordCount(Filter):
    """Keep documents of a sane length, counted in words."""

    column: str = "text"
    min_words: int = 50
    max_words: int = 100_000

    def score(self, batch: Batch) -> Scores:
        return {"words": batch.facts("text", word_stats)["words"]}

    def rules(self) -> list[Rule]:
        return [between("words", self.min_words, self.max_words)]
