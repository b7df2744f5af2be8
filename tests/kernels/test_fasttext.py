"""Compare the fastText kernels with the official library on the language model, with generated texts."""

import fasttext
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tamis.kernels import scripts
from tamis.kernels.fasttext import clip_rows
from tamis.kernels.unicode_tables import KINDS, POINTS
from tamis.models.fasttext import FastText, find_model
from tamis.text.segment import buffers

PATH = find_model("lid.176.ftz")
OURS, THEIRS = FastText.open(PATH), fasttext.load_model(str(PATH))

TEXT = st.one_of(
    st.text(max_size=200),
    st.lists(
        st.sampled_from(["the", "ça", "мир", "世界", "__label__en", "</s>", "x", "مرحبا", "\x00"]), max_size=40
    ).map(" ".join),
    st.text(alphabet="abé世🎈 \t\n\r\x0b\x0c\x00<>/s", max_size=100),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(TEXT, max_size=8))
@example(["</s>", "a</s>", "</s> a", "__label__", "__label__en", "é" * 30, "a" * 24, "a" * 25])
def test_languages_match_the_library(texts):
    texts = [text.encode("utf-8", "ignore").decode() for text in texts]
    best, scores = OURS.predict(*buffers(pa.array(texts, pa.large_string())), k=3)
    for row, text in enumerate(texts):
        labels, expected = THEIRS.predict(text.replace("\n", " "), k=3)
        assert scores[row, : len(expected)] == pytest.approx(expected, abs=1e-5)  # the library omits scores below 1e-5
        if len(expected) < 2 or expected[0] - expected[1] > 1e-5:
            assert OURS.labels[best[row, 0]] == labels[0]


@pytest.mark.parametrize("text", ["word " * 200_000, "字" * 400_000, "x" * 1_000_000], ids=["words", "han", "one word"])
def test_long_texts_match_the_library(text):
    best, scores = OURS.predict(*buffers(pa.array([text], pa.large_string())))
    labels, expected = THEIRS.predict(text)
    assert OURS.labels[best[0, 0]] == labels[0]
    assert scores[0, 0] == pytest.approx(
        expected[0], abs=1e-3
    )  # the library sums millions of values in single precision


@given(st.lists(st.text(max_size=30), max_size=5), st.integers(0, 35))
def test_clipping_counts_characters(texts, most):
    texts = [text.encode("utf-8", "ignore").decode() for text in texts]
    data, offsets = buffers(pa.array(texts, pa.large_string()))
    raw = data.tobytes()
    cut = [raw[a:b].decode() for a, b in zip(offsets[:-1], clip_rows(data, offsets, most), strict=True)]
    assert cut == [text[:most] if most else text for text in texts]


def test_every_script_has_its_own_code():
    names = set(scripts.SCRIPTS)
    assert {
        "Latn",
        "Grek",
        "Cyrl",
        "Arab",
        "Hebr",
        "Deva",
        "Thai",
        "Hang",
        "Hani",
        "Hira",
        "Kana",
        "Ethi",
        "Geor",
    } <= names
    assert len(names) == len(scripts.SCRIPTS) < 256


LETTERS = {
    "Latn": "aßﬀ", "Grek": "ω", "Cyrl": "ѣ", "Armn": "բ", "Hebr": "ש", "Arab": "پ", "Deva": "ह", "Beng": "ব", "Thai": "ก",
    "Tibt": "ཀ", "Mymr": "က", "Geor": "ა", "Hang": "한", "Ethi": "አ", "Khmr": "ខ", "Hani": "漢\U00020000", "Jpan": "ひﾊ",
    "Dsrt": "\U00010400",
}  # fmt: skip


@pytest.mark.parametrize(
    ("letter", "code"), [(letter, code) for code, letters in LETTERS.items() for letter in letters]
)
def test_letters_belong_to_their_script(letter, code):
    data, offsets = buffers(pa.array([letter], pa.large_string()))
    out = np.zeros(1, np.int16)
    count = len(scripts.SCRIPTS)
    scripts.find_scripts(data, offsets, POINTS, KINDS, scripts.PAGES, scripts.CELLS, count, out)
    assert [*scripts.SCRIPTS, scripts.JAPANESE][out[0]] == code
