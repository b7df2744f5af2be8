"""Filters on the tokens a language model would see.

A tokenizer is a file: `tokenizer.json` of the Hugging Face library `tokenizers`, or a SentencePiece `.model`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tamis.batch import Batch
from tamis.errors import require
from tamis.operator import Filter, Rule, Scores, at_least, between, operator
from tamis.text.lists import check_files, identify_files
from tamis.text.quality import text_facts
from tamis.text.segment import ratio

Counter = Callable[[list[str]], list[int]]


@functools.lru_cache(maxsize=4)
def _load(path: str, stamp: int) -> Counter:
    if path.endswith(".model"):
        module = require("sentencepiece", extra="text", purpose="counting SentencePiece tokens")
        processor = module.SentencePieceProcessor(model_file=path)
        return lambda texts: [len(ids) for ids in processor.encode(texts)]
    module = require("tokenizers", extra="text", purpose="counting tokens")
    tokenizer = module.Tokenizer.from_file(path)
    tokenizer.no_truncation()
    return lambda texts: [len(each.ids) for each in tokenizer.encode_batch(texts, add_special_tokens=False)]


def count_tokens(path: str, batch: Batch) -> np.ndarray:
    """How many tokens each text has, without special ones; a missing text has none."""
    counter = _load(path, Path(path).stat().st_mtime_ns)
    texts = [text or "" for text in batch["text"].to_pylist()]
    return np.array(counter(texts) if texts else [], np.int64)


@operator(reads="text", writes="tokens")
class TokenCount(Filter):
    """Keep documents of so many tokens, without special ones.

    TokenCount("tokenizer.json", max_tokens=8192)
    """

    tokenizer: str
    min_tokens: int | None = 0
    max_tokens: int | None = None
    column: str = "text"

    def check(self) -> None:
        check_files(self.name, [self.tokenizer])

    def identity(self) -> dict[str, Any]:
        return identify_files(super().identity(), [self.tokenizer])

    def score(self, batch: Batch) -> Scores:
        return {"tokens": count_tokens(self.tokenizer, batch)}

    def rules(self) -> list[Rule]:
        return [between("tokens", self.min_tokens, self.max_tokens)]


@operator(reads="text", writes="chars_per_token")
class TokenizerFertility(Filter):
    """Drop files a tokenizer breaks into crumbs: at least 2.5 characters / tokens (StarCoder, Li et al. 2023).

    A text without tokens scores 0.

        TokenizerFertility("tokenizer.json")
    """

    tokenizer: str
    min_chars_per_token: float = 2.5
    column: str = "text"

    def check(self) -> None:
        check_files(self.name, [self.tokenizer])

    def identity(self) -> dict[str, Any]:
        return identify_files(super().identity(), [self.tokenizer])

    def score(self, batch: Batch) -> Scores:
        return {"chars_per_token": ratio(text_facts(batch)["chars"], count_tokens(self.tokenizer, batch))}

    def rules(self) -> list[Rule]:
        return [at_least("chars_per_token", self.min_chars_per_token)]
