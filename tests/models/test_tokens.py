"""Token ids: equal to those of transformers, cut as documented, for texts of any length."""

import json
import warnings

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.context import Context
from tamis.models import tokens
from tamis.models.encoders import encoder
from tamis.models.files import ModelError, find
from tamis.models.text_model import TextModel
from tamis.models.tokens import load_tokenizer, longest_input
from tests.models.make_models import write_encoder

WORDS = ["the", "cat", "sat", "on", "mat", "xyzzy", "a,b", "!", "old"]


@pytest.fixture(scope="module")
def minilm():
    return load_tokenizer(find("minilm"))


@pytest.fixture(scope="module")
def reference():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(find("minilm").folder)


def rows_of(pieces):
    return [
        pieces.ids[first:last].tolist() for first, last in zip(pieces.offsets[:-1], pieces.offsets[1:], strict=True)
    ]


@settings(max_examples=40)
@given(st.lists(st.text(max_size=40) | st.lists(st.sampled_from(WORDS), max_size=200).map(" ".join), max_size=6))
def test_ids_equal_those_of_transformers(minilm, reference, texts):
    found = rows_of(minilm.pieces(pa.array(texts, pa.string()), 32))
    assert found == [reference(text, truncation=True, max_length=32)["input_ids"] for text in texts]


def test_a_null_is_an_empty_text_and_rows_keep_their_order(minilm):
    found = minilm.pieces(pa.array(["the cat", None, "", "on"]), 16)
    assert found.lengths.tolist() == [4, 2, 2, 3]
    assert found.row.tolist() == [0, 1, 2, 3]


def test_only_the_start_of_a_long_text_is_encoded(minilm, reference, monkeypatch):
    seen = []
    encode = minilm._encode
    monkeypatch.setattr(minilm, "_encode", lambda texts: seen.extend(map(len, texts.to_pylist())) or encode(texts))
    text = "the cat sat on the mat, and " * 400_000
    found = rows_of(minilm.pieces(pa.array([text, "one"]), 128))
    assert found[0] == reference(text[:10_000], truncation=True, max_length=128)["input_ids"]
    assert max(seen) < 2000


def test_more_of_a_text_is_encoded_if_it_has_few_tokens(minilm, reference):
    text = (" " * 5000 + "cat") * 40
    found = rows_of(minilm.pieces(pa.array([text]), 32))
    assert found == [reference(text, truncation=True, max_length=32)["input_ids"]]


def test_head_and_tail(minilm):
    words = [WORDS[number % 5] for number in range(5000)]
    for text in (" ".join(words), " ".join(words[:100])):
        (found,) = rows_of(minilm.pieces(pa.array([text]), 18, "head_tail"))
        whole = rows_of(minilm.pieces(pa.array([text]), 10_000))[0][1:-1]
        assert found[1:-1] == whole[:4] + whole[-12:]
    assert rows_of(minilm.pieces(pa.array(["the cat"]), 18, "head_tail")) == rows_of(
        minilm.pieces(pa.array(["the cat"]), 18)
    )


def test_windows_cover_the_text_and_are_of_nearly_equal_size(minilm):
    text = " ".join(WORDS[number % 5] for number in range(100))
    found = minilm.pieces(pa.array(["on", text, ""]), 32, "windows")
    assert found.row.tolist() == [0, 1, 1, 1, 1, 2]
    assert found.lengths.tolist() == [3, 27, 27, 27, 27, 2]
    content = [token for row, ids in zip(found.row, rows_of(found), strict=True) if row == 1 for token in ids[1:-1]]
    assert content == rows_of(minilm.pieces(pa.array([text]), 1000))[0][1:-1]
    means = found.mean_by_row(np.arange(6, dtype=np.float32)[:, None])
    assert means[:, 0].tolist() == [0, 2.5, 5]


def test_windows_of_a_text_longer_than_a_portion(minilm, monkeypatch):
    text = " ".join(WORDS[number % 5] for number in range(3000))
    whole = rows_of(minilm.pieces(pa.array([text, "on", text]), 64, "windows"))
    monkeypatch.setattr(tokens, "PORTION_CHARS", 500)
    assert rows_of(minilm.pieces(pa.array([text, "on", text]), 64, "windows")) == whole


@pytest.mark.parametrize("long_texts", ["truncate", "head_tail", "windows"])
def test_a_column_of_contents_gives_the_same_pieces(minilm, long_texts):
    texts = pa.array(["skipped", "the cat", None, "", " ".join(WORDS * 30), "on"]).slice(1)
    contents = minilm.contents(texts, 24, long_texts)
    assert contents.type == pa.list_(pa.int32())
    assert contents.is_null().to_pylist() == [False, True, False, False, False]
    expected = minilm.pieces(texts, 24, long_texts)
    for column in (contents, pa.concat_arrays([contents, contents]).slice(5)):
        found = minilm.pieces_of(column, 24, long_texts)
        assert rows_of(found) == rows_of(expected)
        assert found.row.tolist() == expected.row.tolist()


def test_characters_are_limited_before_tokens(minilm):
    assert rows_of(minilm.pieces(pa.array(["cat cat cat"]), 64, max_chars=3)) == rows_of(
        minilm.pieces(pa.array(["cat"]), 64)
    )


def test_the_longest_input_is_the_smallest_limit_of_the_folder(tmp_path):
    assert longest_input(find("minilm")) == 256
    folder = write_encoder(tmp_path / "model")
    assert longest_input(find(folder)) == 64
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 10**30}))
    assert longest_input(find(folder)) == 66


@pytest.mark.parametrize("architecture", ["roberta", "roberta-prelayernorm", "data2vec-text", "mpnet"])
def test_the_longest_input_of_a_network_that_counts_positions_from_the_padding_token(architecture, tmp_path):
    folder = write_encoder(tmp_path / "model", architecture, pad_token_id=1)
    (folder / "tokenizer_config.json").unlink()
    assert longest_input(find(folder)) == 64
    assert len(TextModel.open(find(folder), Context(), build=encoder).predict(pa.array(["cat " * 100]))) == 1


def test_a_damaged_tokenizer_is_explained(tmp_path):
    folder = write_encoder(tmp_path / "model")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="is not a tokenizer"):
        load_tokenizer(find(folder))
