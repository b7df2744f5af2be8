"""Compare raw words with the regular expression of NLTK's WordPunctTokenizer."""

from __future__ import annotations

import re

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tamis.kernels.redpajama import BULLETS
from tamis.text.redpajama import RawStats
from tests.naive import ALPHABET, ODD, SAMPLES

LISTED = ("the", "...", "La")
TEXTS = st.lists(
    st.text(st.sampled_from([*ALPHABET, "_", "\u2013"]), max_size=40) | st.sampled_from(SAMPLES + ODD), max_size=5
)


@given(TEXTS)
def test_raw_words_match_the_regular_expression(texts: list[str]) -> None:
    found = RawStats(LISTED)(pa.array(texts, pa.string()))
    for row, text in enumerate(texts):
        words = re.findall(r"\w+|[^\w\s]+", text)
        bullets = tuple(map(chr, BULLETS))
        assert found["words"][row] == len(words)
        assert found["alphabetic"][row] == sum(bool(re.search("[a-zA-Z]", word)) for word in words)
        assert found["listed"][row] == sum(word in LISTED for word in words)
        assert found["bullet_lines"][row] == sum(line.lstrip().startswith(bullets) for line in text.split("\n"))
