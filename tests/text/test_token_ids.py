"""Token ids: those of the tokenizer, whatever is remembered."""

from __future__ import annotations

import inspect
import random
from pathlib import Path

import pyarrow as pa
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import Pipeline, Rows
from tamis.context import Context
from tamis.errors import ParameterError
from tamis.text import TokenIds
from tamis.text.token_ids import Speller, load_vocabulary

END = "<|endoftext|>"


def train(path: Path, regex: str | None = None) -> tokenizers.Tokenizer:
    """A byte-level tokenizer trained on the source of some modules, saved."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex is None)
    split = [] if regex is None else [tokenizers.pre_tokenizers.Split(tokenizers.Regex(regex), "isolated")]
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([*split, level])
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=2000, initial_alphabet=level.alphabet(), show_progress=False, special_tokens=[END]
    )
    tokenizer.train_from_iterator([inspect.getsource(pytest), inspect.getsource(random)], trainer)
    tokenizer.save(str(path))
    return tokenizer


GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.fixture(scope="module", params=[None, GPT4], ids=["gpt-2", "gpt-4"])
def trained(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    return path, train(path, request.param)


def expected(tokenizer, texts):
    return [tokenizer.encode(text or "", add_special_tokens=False).ids for text in texts]


def spelled(speller, texts):
    ids, sizes = speller(pa.array(texts, pa.string()))
    ends = sizes.cumsum().tolist()
    return [ids[start:end].tolist() for start, end in zip([0, *ends], ends, strict=False)]


def test_ids_are_those_of_the_whole_text(trained):
    path, tokenizer = trained
    texts = [inspect.getsource(random), None, "", f"before{END}after", "été 123,456 don't", "\n\n  x\t\ty  \n"]
    speller = Speller(load_vocabulary(path))
    assert spelled(speller, texts) == expected(tokenizer, texts)
    assert spelled(speller, texts[::-1]) == expected(tokenizer, texts[::-1])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(st.sampled_from("ab zé1 2'.,\n\t <|end>İ\u00a0字"), max_size=40), max_size=6))
def test_ids_of_odd_texts(trained, texts):
    path, tokenizer = trained
    speller = _SPELLERS.setdefault(path, Speller(load_vocabulary(path), num_slots=64))  # so small that it forgets
    assert spelled(speller, texts) == expected(tokenizer, texts)


_SPELLERS: dict[Path, Speller] = {}


def test_an_error_while_pieces_are_learned_leaves_no_piece_without_ids(trained):
    path, tokenizer = trained
    vocabulary = load_vocabulary(path)
    speller = Speller(vocabulary)
    calls = []

    def fail_once(texts):
        calls.append(texts)
        if len(calls) == 1:
            raise MemoryError
        return vocabulary.encode(texts)

    speller._encode = fail_once
    with pytest.raises(MemoryError):
        spelled(speller, ["some words"])
    assert spelled(speller, ["some words"]) == expected(tokenizer, ["some words"])


def test_the_step_adds_ids_and_counts_tokens_by_source(trained):
    path, tokenizer = trained
    rows = [
        {"text": "a small text", "from": "web"},
        {"text": "another", "from": "books"},
        {"text": None, "from": "web"},
    ]
    pipeline = Pipeline(Rows(rows), TokenIds(str(path), end_token=END, source="from"))
    end = tokenizer.token_to_id(END)
    ids = [[*each, end] for each in expected(tokenizer, [row["text"] for row in rows])]
    assert pipeline.collect()["input_ids"].to_pylist() == ids
    counts = pipeline.run().operators[1]["counts"]
    web, books = len(ids[0]) + len(ids[2]), len(ids[1])
    assert counts == {"tokens": web + books, "tokens of web": web, "tokens of books": books}


def test_an_unknown_end_token_is_an_error_with_the_known_ones(trained):
    with pytest.raises(ParameterError, match="has no token '<end>'") as raised:
        TokenIds(str(trained[0]), end_token="<end>").open(Context())
    assert END in raised.value.hint
