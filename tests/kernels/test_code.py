"""Compare the source code scanners with Python's own tokenizer, and run them on malformed input."""

from __future__ import annotations

import inspect
import io
import json.decoder
import textwrap
import tokenize
from types import ModuleType

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.batch import Batch
from tamis.kernels.code import measure_html, measure_python
from tamis.text.code import SYNTAX, GeneralCommentToCode
from tamis.text.segment import buffers

rubble = st.text(st.sampled_from("ab\"'#/*-<>!\\\n &;()[]{}é="), max_size=60)


def visible(text: str) -> int:
    return sum(char > " " for char in text)


def python_chars(source: str) -> int:
    data, offsets = buffers(pa.array([source]))
    out = np.zeros((2, 1), np.int64)
    measure_python(data, offsets, out)
    assert out[1, 0] == visible(source)
    return int(out[0, 0])


def html_chars(page: str) -> int:
    data, offsets = buffers(pa.array([page]))
    out = np.zeros(1, np.int64)
    words = [np.array(list(name), np.uint8) for name in (b"script", b"style")]
    measure_html(data, offsets, *words, out)
    return int(out[0])


@pytest.mark.parametrize("module", [tokenize, io, json.decoder, textwrap])
def test_comments_of_real_files_match_the_tokenizer(module: ModuleType) -> None:
    source = inspect.getsource(module)
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    ignored = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT)
    expected, fresh = 0, True
    for token in tokens:
        if token.type == tokenize.COMMENT:
            expected += visible(token.string)
        elif token.type == tokenize.STRING and fresh:
            expected += visible(token.string.lstrip("rRbBuUfF"))
        if token.type == tokenize.NEWLINE or token.string == ";":
            fresh = True
        elif token.type not in ignored:
            fresh = False
    assert python_chars(source) == expected


@settings(deadline=None, max_examples=300)
@given(rubble)
def test_broken_code_never_has_more_comment_than_text(source: str) -> None:
    assert 0 <= python_chars(source) <= len(source)
    assert 0 <= html_chars(source) <= len(source)
    for language in ("c", "lua", "html", "haskell", "shell"):
        found = GeneralCommentToCode(language).score(Batch.from_rows([{"text": source}]))["comments"]
        assert 0 <= found[0] <= 1


@pytest.mark.parametrize("language", sorted(SYNTAX))
def test_every_language_finds_its_own_comment(language: str) -> None:
    line, _, opening, closing, _, _ = SYNTAX[language]
    for text in ([f"x\n{line}abc"] if line else []) + ([f"x\n{opening}abc{closing}\ny"] if opening else []):
        share = GeneralCommentToCode(language).score(Batch.from_rows([{"text": text}]))["comments"][0]
        assert share * visible(text) == pytest.approx(visible(text.replace("x", "").replace("y", "")))


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<p>a</p>", "a"),
        ("a < b", "a < b"),
        ("<!-- x > y -->a", "a"),
        ("<STYLE>p{}</STYLE>a", "a"),
        ("<script src=x></script>a<script>b", "a"),
        ("a&nbsp;b&x", "a b&x"),
        ("<scripted>a</scripted>", "a"),
        ("<a title='>'>b</a>", "b"),
        ("<!-- never closed", ""),
        ("\n  <p>\n    a  b\n  </p>\n  <p>c</p>\n", "a b c"),
        ("a <b> </b> b", "a b"),
    ],
)
def test_text_of_pages(page: str, text: str) -> None:
    assert html_chars(page) == len(text)
