"""Token filters, with a tokenizer of two words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tamis.batch import Batch
from tamis.errors import ParameterError
from tamis.text.tokens import TokenCount, TokenizerFertility

TOKENIZER = str(Path(__file__).parent / "data" / "tokenizer.json")


@pytest.fixture(autouse=True)
def _tokenizers() -> None:
    pytest.importorskip("tokenizers")


def test_tokens_are_counted() -> None:
    batch = Batch.from_rows([{"text": "the cat, the dog"}, {"text": None}, {"text": ""}])
    assert TokenCount(TOKENIZER).score(batch)["tokens"].tolist() == [5, 0, 0]


def test_fertility_is_characters_per_token() -> None:
    batch = Batch.from_rows([{"text": "the cat"}, {"text": ""}])
    assert TokenizerFertility(TOKENIZER).score(batch)["chars_per_token"].tolist() == [3.5, 0.0]


def test_an_empty_batch_has_no_tokens() -> None:
    batch = Batch.from_rows([{"text": "x"}]).select(slice(0, 0))
    assert TokenCount(TOKENIZER).score(batch)["tokens"].tolist() == []


def test_a_tokenizer_that_is_not_there_is_missed_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="not there"):
        TokenCount(str(tmp_path / "tokenizer.json")).check()


def test_sentencepiece_models_are_read_too(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the cat sat\nthe dog sat\n" * 20)
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(tmp_path / "small"), vocab_size=14, minloglevel=3
    )
    batch = Batch.from_rows([{"text": "the cat"}, {"text": None}])
    tokens = TokenCount(str(tmp_path / "small.model")).score(batch)["tokens"].tolist()
    assert tokens[0] > 0
    assert tokens[1] == 0
