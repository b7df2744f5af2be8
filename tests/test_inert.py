"""Text from data is harmless wherever it is shown."""

import io
import json

import pytest

from tamis import Batch, JsonlReader, Pipeline, Rows
from tamis.events import MemoryAlert, Note, RunStarted, StageStarted, WorkerDied
from tamis.inert import escaped, inert, inert_json, one_line
from tamis.progress import Progress
from tamis.text import WordCount

EVIL = "a\x1b[2J\x9b1m\x07\x00\u202e\u2066<script>'\"&\r\nb"
ACTIVE = {"\x1b", "\x9b", "\x07", "\x00", "\u202e", "\u2066", "\r"}


def test_everything_that_a_terminal_acts_on_becomes_visible():
    assert not ACTIVE & set(inert(EVIL))
    assert inert(EVIL).startswith("a\\x1b[2J\\x9b1m\\x07\\x00\\u202e\\u2066<script>")
    assert inert("tabs\tand\nlines stay, and é 漢 🎉") == "tabs\tand\nlines stay, and é 漢 🎉"
    assert inert(chr(0xD800)) == "\\ud800"  # half of a pair cannot be encoded
    assert inert(b"\xff\xfe text") == "\\xff\\xfe text"


def test_json_stays_the_same_value():
    value = {"text": EVIL, "slash": "\\x9b", "tag": "\U000e0041"}
    text = inert_json(json.dumps(value, ensure_ascii=False))
    assert not ACTIVE & set(text)
    assert json.loads(text) == value


def test_long_texts_are_cut_before_they_are_processed():
    assert one_line("x" * 10_000_000, 50) == "x" * 47 + "..."
    assert len(escaped("<" * 10_000_000, 50)) < 300
    assert len(inert(b"\xff" * 10_000_000, 50)) == 50


def test_markup_is_text_in_html():
    assert "<" not in escaped(EVIL)
    assert '"' not in escaped(EVIL)


@pytest.mark.parametrize("shows", ["bars", "line", "lines"])
def test_events_with_hostile_content_are_inert_on_a_terminal(shows, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    stream = io.StringIO()
    with Progress(stream, shows=shows) as progress:
        progress(RunStarted(EVIL, (EVIL,), 1, 10**9, 1, 0, (EVIL,)))
        progress(StageStarted(0, EVIL, 1, 0, 10**6))
        progress(Note(EVIL + "x" * 10_000_000))
        progress(MemoryAlert("budget", "warning", 1.0, 1.0, EVIL))
        progress(WorkerDied(1, EVIL, 0, EVIL))
    text = stream.getvalue()
    assert len(text) < 100_000
    assert "\x1b[2J" not in text
    assert not {"\x9b", "\x07", "\x00", "\u202e"} & set(text)


def test_values_of_python_objects_are_escaped_in_notebooks():
    batch = Batch.from_rows([{"text": EVIL, "<b>": 1}])
    pipeline = Pipeline(Rows([{"text": "<script>"}]), WordCount())
    source = JsonlReader("<script>alert(1)</script>.jsonl")
    for html in (batch._repr_html_(), pipeline._repr_html_(), Pipeline(source)._repr_html_()):
        assert "<script" not in html
        assert "<b>" not in html
        assert "\x1b" not in html
    assert "word_count" in pipeline._repr_html_()


def test_an_explanation_is_preformatted_text():
    explanation = Pipeline(Rows([{"text": "a"}]), WordCount()).explain()
    assert explanation._repr_html_().startswith("<pre>")
    assert "word_count" in repr(explanation)


def test_a_run_in_a_notebook_shows_a_real_bar():
    """In a real kernel: the cell shows an HTML progress element, which is updated in place and ends at 100 %."""
    from jupyter_client.manager import start_new_kernel

    code = """
from tamis import Pipeline, Rows
from tamis.text import WordCount
report = Pipeline(Rows([{"text": "one two three"}] * 50, rows_per_partition=10), WordCount(min_words=1)).run(
    progress=True, executor="inline")
report
"""
    manager, client = start_new_kernel(startup_timeout=600)
    try:
        shown = []
        client.execute_interactive(code, timeout=600, output_hook=shown.append, stdin_hook=None)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    kinds = [message["msg_type"] for message in shown]
    assert "error" not in kinds, shown
    bars = [
        message["content"]["data"]["text/html"]
        for message in shown
        if message["msg_type"] in ("display_data", "update_display_data")
    ]
    assert kinds.count("display_data") == 1
    assert "<progress value=" in bars[0]
    assert "100%" in bars[-1]
    (result,) = [message for message in shown if message["msg_type"] == "execute_result"]
    assert "<table" in result["content"]["data"]["text/html"]
