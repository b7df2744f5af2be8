"""Token filters, with a tokenizer of two words and with some that are trained here."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tamis import Pipeline, Rows
from tamis.batch import Batch
from tamis.context import Context
from tamis.errors import ParameterError, TamisError
from tamis.text.tokens import PieceCounter, TokenCount, TokenizerFertility, load_tokenizer

TOKENIZER = str(Path(__file__).parent / "data" / "tokenizer.json")


@pytest.fixture(autouse=True)
def _tokenizers() -> None:
    pytest.importorskip("tokenizers")


def test_tokens_are_counted() -> None:
    batch = Batch.from_rows([{"text": "the cat, the dog"}, {"text": None}, {"text": ""}])
    assert TokenCount(TOKENIZER).open(Context()).score(batch)["tokens"].tolist() == [5, 0, 0]


def test_fertility_is_characters_per_token() -> None:
    batch = Batch.from_rows([{"text": "the cat"}, {"text": ""}])
    assert TokenizerFertility(TOKENIZER).open(Context()).score(batch)["chars_per_token"].tolist() == [3.5, 0.0]


def test_an_empty_batch_has_no_tokens() -> None:
    batch = Batch.from_rows([{"text": "x"}]).select(slice(0, 0))
    assert TokenCount(TOKENIZER).open(Context()).score(batch)["tokens"].tolist() == []


def test_a_tokenizer_that_is_not_there_is_missed_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="does not exist"):
        TokenCount(str(tmp_path / "tokenizer.json")).check()


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model"])
def test_an_invalid_tokenizer_file_stops_the_run_before_the_first_row(tmp_path: Path, name: str) -> None:
    pytest.importorskip("sentencepiece")
    (tmp_path / name).write_text('{"version": 1')
    steps = Pipeline(Rows([{"text": "a"}]), TokenizerFertility(str(tmp_path / name)))
    with pytest.raises(TamisError, match=f"{name} is not a "):
        steps.run(executor="inline")


def test_sentencepiece_models_are_read_too(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the cat sat\nthe dog sat\n" * 20)
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(tmp_path / "small"), vocab_size=14, minloglevel=3
    )
    batch = Batch.from_rows([{"text": "the cat"}, {"text": None}])
    tokens = TokenCount(str(tmp_path / "small.model")).open(Context()).score(batch)["tokens"].tolist()
    assert tokens[0] > 0
    assert tokens[1] == 0


@pytest.fixture(scope="module")
def sources() -> list[str]:
    return [inspect.getsource(module) for module in (inspect, pytest, pa)]


def trained(sources: list[str], path: Path, change: Any = None) -> Any:
    """A byte-level tokenizer, saved."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=3000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(sources, trainer)
    if change:
        change(tokenizer)
    tokenizer.save(str(path))
    return tokenizer


def add_special(tokenizer: Any) -> None:
    tokenizer.add_special_tokens(["<|end of text|>", "[MASK]"])
    tokenizer.add_tokens(["e "])


def normalise(tokenizer: Any) -> None:
    import tokenizers

    tokenizer.normalizer = tokenizers.normalizers.NFC()


def lower(tokenizer: Any) -> None:
    import tokenizers

    tokenizer.normalizer = tokenizers.normalizers.Lowercase()


def begin_with_space(tokenizer: Any) -> None:
    import tokenizers

    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)


def pad(tokenizer: Any) -> None:
    tokenizer.enable_padding(length=50_000)
    tokenizer.enable_truncation(max_length=10)


def test_columns_of_all_kinds_are_counted(sources, tmp_path) -> None:
    trained(sources, tmp_path / "tokenizer.json", add_special)
    count = load_tokenizer(tmp_path / "tokenizer.json")
    texts = pa.array(["some text", None, "a [MASK]", "some text"])
    plain = count(texts).tolist()
    assert plain[1] == 0
    for other in (texts.dictionary_encode(), texts.cast(pa.string_view()), texts.cast(pa.large_string())):
        assert count(other).tolist() == plain
    assert count(texts.slice(2)).tolist() == plain[2:]
    assert count(pa.nulls(2)).tolist() == [0, 0]


def test_dropout_is_for_training(sources, tmp_path) -> None:
    expected = len(trained(sources, tmp_path / "tokenizer.json").encode(sources[0]))
    tokenizer = trained(sources, tmp_path / "tokenizer.json")
    tokenizer.model.dropout = 0.5
    tokenizer.save(str(tmp_path / "random.json"))
    assert load_tokenizer(tmp_path / "random.json")(pa.array(sources[:1])).tolist() == [expected]


@pytest.mark.parametrize(
    ("change", "piecewise"),
    [(None, True), (add_special, True), (normalise, True), (lower, False), (begin_with_space, False), (pad, True)],
)
def test_counts_are_those_of_the_tokenizer(sources, tmp_path, change, piecewise) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer = trained(sources, path, change)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    odd = ["a<|end of text|>b", "x [MASK] y", "the end ", "e\u0301te\u0301 \u212a", "", "<|end of", "İstanbul ÉTÉ"]
    texts = [*sources, *odd]
    expected = [len(tokenizer.encode(text, add_special_tokens=False)) for text in texts]
    count = load_tokenizer(path)
    assert isinstance(count, PieceCounter) is piecewise
    assert count(pa.array(texts)).tolist() == expected
    assert count(pa.array(texts[::-1])).tolist() == expected[::-1]
