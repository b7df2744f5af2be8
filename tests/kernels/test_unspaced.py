"""Compare rows in scripts without spaces, and lines that end like a sentence, with reference implementations."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.batch import Batch
from tamis.kernels.unicode_tables import BLOCKS, CLASSES, CLOSER, FLAGS, KINDS, LETTER, MARK, POINTS, STOP
from tamis.kernels.unspaced import find_unspaced
from tamis.text.quality import Punctuation
from tamis.text.segment import buffers, ended_lines
from tests.naive import ALPHABET, ODD, SAMPLES, is_unspaced

TEXTS = st.lists(st.text(st.sampled_from(ALPHABET), max_size=40) | st.sampled_from(SAMPLES + ODD), max_size=5)


def flags(character: str) -> int:
    point = ord(character)
    return int(FLAGS[CLASSES[int(BLOCKS[point >> 8]) << 8 | point & 255]])


def is_ended(line: str) -> bool:
    line = line.rstrip()
    if line.endswith(('"', "'")):
        return True
    while line and flags(line[-1]) & CLOSER and not flags(line[-1]) & STOP:
        line = line[:-1]
    if not line:
        return False
    last = line[-1]
    thai = "\u0e00" <= last < "\u0f00" and bool(flags(last) & (LETTER | MARK))
    return bool(flags(last) & STOP) or last in "…\u0f0d\u0f0e\u17d4\u17d5" or thai


@given(TEXTS)
def test_ended_lines_match_the_reference(texts: list[str]) -> None:
    found = ended_lines(pa.array(texts, pa.string()))["ended_lines"]
    assert found.tolist() == [sum(map(is_ended, text.split("\n"))) for text in texts]


@given(TEXTS)
def test_unspaced_rows_match_the_reference(texts: list[str]) -> None:
    data, offsets = buffers(pa.array(texts, pa.string()))
    out = np.zeros(len(texts), np.bool_)
    find_unspaced(data, offsets, POINTS, KINDS, out)
    assert out.tolist() == [any(is_unspaced(c) or c == "\u1361" for c in text) for text in texts]


@pytest.mark.parametrize(
    ("text", "english", "unicode"),
    [
        ("他又数了一遍。\n首页", 1.0, 0.5),
        ("क्या ये काफ़ी हैं?\nकिसी को पता नहीं।", 0.5, 0.0),
        ("「足りる。」\n粉屋", 1.0, 0.5),
        ("ไม่มีใครรู้\nเขานับอีกครั้ง ", 1.0, 0.0),
        ("Home\nIt rains. \n(She said so.)\nAbout (us)", 0.75, 0.5),
    ],
)
def test_stops_of_other_scripts(text: str, english: float, unicode: float) -> None:
    batch = Batch.from_rows([{"text": text}])
    assert Punctuation().score(batch)["unpunctuated_lines"].tolist() == [english]
    assert Punctuation(stops="unicode").score(batch)["unpunctuated_lines"].tolist() == [unicode]
