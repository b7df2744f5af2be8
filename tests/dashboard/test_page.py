"""The report page as a file: what it says is true, and what comes from data is inert."""

import base64
import hashlib
import io
import json
import re
import wave
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tamis import JsonlReader, ParquetReader, ParquetWriter, Pipeline, Rows
from tamis.cli import main
from tamis.dashboard.duplicates import differences
from tamis.dashboard.markup import element, embedded, marked, page, plain, text
from tamis.dashboard.report_page import heavy_parts, report_page, write_report_page
from tamis.dashboard.runs import load_run
from tamis.dashboard.scores import bounds_of, read_scores
from tamis.errors import LedgerError
from tamis.eventlog import FOLDER
from tamis.recipes.load import recorded
from tamis.recipes.rethreshold import rethreshold
from tamis.text import C4Quality, GopherQuality, GopherRepetition, RepeatedLines, WordCount
from tests.dashboard.conftest import documents

# ------------------------------------------------------------------------------------------------------------------ markup


class Reader(HTMLParser):
    """Reads a page as a browser does: texts, and everything that could do something."""

    def __init__(self, markup):
        super().__init__(convert_charrefs=True)
        self.texts, self.tags = [], []
        self.feed(markup)
        self.close()

    def handle_data(self, data):
        self.texts.append(data)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))


ANYTHING = st.text(st.characters(codec=None), max_size=60) | st.sampled_from(
    [
        "<script>alert(1)</script>",
        "\"'><img onerror=x>",
        "</textarea>",
        "\x00\x1b[31m",
        "\ud800",
        "javascript:x",
        "&lt;",
    ]
)


@given(ANYTHING)
def test_no_text_becomes_markup(value):
    read = Reader(element("p", value, title=value))
    assert [tag for tag, _ in read.tags] == ["p"]
    assert "".join(read.texts) == plain(value)
    assert read.tags[0][1] == {"title": plain(value)}
    text(value).encode()  # can be written as UTF-8


@given(ANYTHING)
def test_texts_show_control_characters_and_cannot_reverse_what_follows(value):
    shown = plain(value)
    assert not any(ord(each) < 32 and each not in "\n\t" for each in shown)
    assert not re.search("[\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", shown)


@given(ANYTHING, st.lists(st.tuples(st.integers(-5, 70), st.integers(-5, 70)), max_size=5))
def test_marks_change_no_text(value, passages):
    read = Reader(marked(value, passages))
    assert "".join(read.texts) == plain(value)
    assert {tag for tag, _ in read.tags} <= {"mark"}


def test_long_texts_are_cut_around_their_marks():
    content = "a" * 5_000 + " here " + "b" * 5_000
    shown = marked(content, [(5_001, 5_005)], longest=600)
    assert "<mark>here</mark>" in shown
    assert len(shown) < 1_000
    assert "more characters" in shown


@given(ANYTHING, ANYTHING)
def test_differences_show_both_texts_and_nothing_else(kept, other):
    read = Reader(differences(kept, other))
    assert {tag for tag, _ in read.tags} <= {"ins", "del", "span"}


@given(st.dictionaries(ANYTHING, ANYTHING, max_size=3))
def test_embedded_json_cannot_end_its_element(value):
    written = embedded(value)
    assert json.loads(written) == value
    assert not set(written) & set("<>&")


def test_the_policy_of_a_page_allows_its_own_styles_and_script_alone():
    made = page("A & B", element("p", "x"))
    policy = next(attributes["content"] for tag, attributes in Reader(made).tags if "http-equiv" in attributes)
    script = re.search(r"<script>(.*?)</script>", made, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "connect-src" not in policy, "a file fetches nothing"
    assert not [attributes for _, attributes in Reader(made).tags if "style" in attributes]


# -------------------------------------------------------------------------------------------------------------------- pages


def test_the_page_counts_what_the_report_counts(finished):
    view = load_run(finished)
    read = Reader(report_page(view))
    words = " ".join(read.texts)
    assert view.report.balances
    for count in (view.report.read, view.report.kept, view.report.failed):
        assert f"{count:,}" in words
    for reason, count in view.report.dropped.items():
        assert reason in words
        assert f"{count:,}" in words


def test_hostile_rows_file_names_recipes_and_events_are_inert(finished, tmp_path):
    """Everything that a page shows is replaced by markup, in turn."""
    file = tmp_path / "page.html"
    size = write_report_page(finished, file)
    assert size < 1_000_000, "a field of 10 MB is cut"
    log = json.loads((load_run(finished).store.path / FOLDER / "run.json").read_text())
    view = load_run(finished)
    evil = "</title></style></script><script>alert(1)</script><img src=x onerror=alert(1)>\x1b]0;x\x07"
    view.manifest["recipe"]["steps"].insert(1, {evil: {evil: evil}})
    view.manifest["command"] = [evil]
    view.log = log | {"plan": [evil], "remarks": [{"time_s": 1, "kind": evil, "text": evil}]}
    view.report.dropped[evil] = 3
    view.report.damaged_files[evil] = evil
    view.report.errors.append({"step": evil, "error": evil, "rows": 1, "example": evil, "kind": evil, "various": True})
    view.report.operators[1]["name"] = evil
    view.output, view.error, view.title = evil, evil, evil
    view.state = evil
    for content in (file.read_text(), report_page(view)):
        tags = [tag for tag, _ in Reader(content).tags]
        assert tags.count("script") == 1
        assert "iframe" not in tags
        assert "img" not in tags
        assert not [name for _, attributes in Reader(content).tags for name in attributes if name.startswith("on")]
        assert "\x1b" not in content


def test_media_are_shown_as_thumbnails_and_players(tmp_path):
    picture = io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 255, (64, 96, 3), np.uint8)).save(picture, "PNG")
    sound = io.BytesIO()
    with wave.open(sound, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(4000))
    rows = [
        {
            "text": f"a caption of row {number}",
            "image": {"bytes": picture.getvalue(), "path": None},
            "audio": {"bytes": sound.getvalue(), "path": None},
            "video": {"bytes": b"\x1a\x45\xdf\xa3" + bytes(100), "path": None},
        }
        for number in range(2)
    ]
    Pipeline(Rows(rows), ParquetWriter(str(tmp_path / "in"))).run(executor="inline", progress=False)
    output = str(tmp_path / "out")
    Pipeline(ParquetReader(str(tmp_path / "in")), ParquetWriter(output)).run(executor="inline", progress=False)
    write_report_page(output, tmp_path / "page.html")
    tags = Reader((tmp_path / "page.html").read_text()).tags
    sources = {tag: attributes["src"][:24] for tag, attributes in tags if "src" in attributes}
    assert sources == {
        "img": "data:image/jpeg;base64,/",
        "audio": "data:audio/wav;base64,Uk",
        "video": "data:video/webm;base64,G",
    }


def test_a_folder_without_a_run_is_an_error(tmp_path, capsys):
    with pytest.raises(LedgerError):
        write_report_page(str(tmp_path), tmp_path / "page.html")
    assert main(["report", str(tmp_path), "--html", str(tmp_path / "page.html")]) == 2
    assert "name the output folder of a run" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def test_the_page_of_a_run_with_functions_has_no_sliders_and_says_why(tmp_path):
    def shorten(row):
        return {"text": row["text"][:20]}

    source = Rows([{"text": "one two three"}] * 3)
    output = str(tmp_path / "out")
    Pipeline(source, shorten, WordCount(min_words=2), ParquetWriter(output)).run(
        executor="inline", scores=True, progress=False
    )
    parts = "".join(heavy_parts(load_run(output)))
    assert "cannot be built here" in parts


# ------------------------------------------------------------------------------------------------------------- thresholds


def test_the_slider_agrees_with_a_run_with_another_threshold(tmp_path):
    """For each bound, what the histogram says is what `rethreshold` keeps."""
    (tmp_path / "in").mkdir()
    lines = [json.dumps(row) + "\n" for row in documents() if row["id"] != "huge"]
    (tmp_path / "in" / "a.jsonl").write_text("".join(lines))
    output = str(tmp_path / "out")
    steps = [WordCount(min_words=10, max_words=60), RepeatedLines()]
    Pipeline(JsonlReader(str(tmp_path / "in")), *steps, ParquetWriter(output)).run(
        executor="inline", scores=True, progress=False
    )
    scores = read_scores(load_run(output).store, recorded(output).operators())
    assert scores.rows == len(lines)
    for step, score, parameter, values in [
        ("word_count", "words", "min_words", (1, 5, 12, 40)),
        ("word_count", "words", "max_words", (12, 47, 59, 80)),
        ("repeated_lines", "unique_lines", "min_unique_lines", (0.1, 0.5, 0.95)),
    ]:
        histogram = next(each for each in scores.histograms if each.score == score)
        bound = next(each for each in histogram.bounds if each.parameter == parameter)
        for value in values:
            place = int(np.searchsorted(histogram.edges, value))
            if histogram.edges[place] != value:
                continue
            kept = bound.alone[place + 1 :].sum() if bound.side == "minimum" else bound.alone[: place + 1].sum()
            to = str(tmp_path / f"{parameter}-{value}")
            report = rethreshold(output, [f"{step}.{parameter}={value}"], to=to, executor="inline", progress=False)
            assert report.kept == kept, (parameter, value)


def test_bounds_know_the_parameters_that_set_them():
    found = {(bound.score, bound.side): bound.parameter for bound in bounds_of("g", GopherQuality())}
    assert found["gopher_words", "minimum"] == "min_words"
    assert found["gopher_word_length", "maximum"] == "max_word_length"
    assert {bound.parameter for bound in bounds_of("c", C4Quality())} >= {"min_sentences", "max_lorem_ipsum"}
    assert all(bound.parameter for bound in bounds_of("r", GopherRepetition()))
