"""The report page as a file: what it says is true, and what comes from data is inert."""

import base64
import hashlib
import io
import json
import re
import shutil
import wave
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tamis import (
    AudioReader,
    AudioWriter,
    Batch,
    ClipWriter,
    FolderWriter,
    ImageReader,
    JsonlReader,
    JsonlWriter,
    ParquetReader,
    ParquetWriter,
    Pipeline,
    Rows,
)
from tamis.audio import AudioWindows
from tamis.cli import main
from tamis.dashboard.duplicates import _compared as compared
from tamis.dashboard.duplicates import differences, duplicates
from tamis.dashboard.markup import element, marked, page, plain, text
from tamis.dashboard.near import kept_near_bounds
from tamis.dashboard.report_page import heavy_parts, report_page, write_report_page
from tamis.dashboard.resources import bottleneck_text, rates, resources
from tamis.dashboard.rows import rows
from tamis.dashboard.runs import load_run
from tamis.dashboard.samples import Samples
from tamis.dashboard.scores import Bound, bounds_of, read_scores
from tamis.dashboard.sections import funnel, reasons
from tamis.dashboard.thresholds import thresholds
from tamis.dedup import ExactDedup
from tamis.errors import LedgerError
from tamis.eventlog import FOLDER
from tamis.image import ImageDigest, ImageSize
from tamis.parameters import format_bytes
from tamis.recipes.load import Recipe, Step, recorded
from tamis.recipes.rethreshold import rethreshold
from tamis.sources.mediafiles import VideoReader
from tamis.text import C4Quality, GopherQuality, GopherRepetition, RepeatedLines, WordCount
from tamis.video import FixedClips, SoundTrack, VideoDecodable
from tests.dashboard.conftest import documents
from tests.video.make_videos import only_sound, scene, video

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


@given(st.lists(st.sampled_from(["a", "b c", ".", "\n", " "]), max_size=40), st.data())
def test_compared_pieces_are_the_texts(words, data):
    """Whatever the window, the pieces of both sides are the two texts, or their beginnings if not all is compared."""
    other = [data.draw(st.sampled_from([word, "x", ""])) for word in words]
    window = data.draw(st.sampled_from([4, 9, 100]))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tamis.dashboard.duplicates.WINDOW", window)
        patched.setattr("tamis.dashboard.duplicates.AGREED", 2)
        pieces, complete = compared(words, other, limited=False)
    for given_tokens, side in ((words, 0), (other, 1)):
        shown = [token for piece in pieces for token in piece[side]]
        assert shown == given_tokens[: len(shown)]
        assert not complete or len(shown) == len(given_tokens)


def test_long_texts_that_differ_late_are_not_shown_as_equal_and_a_cut_is_no_difference():
    words = [f"word{number}" for number in range(1_700)]
    kept = " ".join(words)
    late = " ".join([*words[:1_600], "changed", *words[1_601:]])
    assert "<del>word1600</del><ins>changed</ins>" in differences(kept, late)
    assert "no difference" not in differences(kept, late)
    early = " ".join(["changed", *words[1:]])
    assert differences(kept, early).count("<ins>") == 1
    more, much = " ".join([*words, "end " * 3_000]), " ".join([words[0], "added", *words[1:], "end " * 3_000])
    assert differences(more, much).count("<ins>") == 1, "the half words at the cut do not differ"
    assert "<del>" not in differences(more, much)
    assert "the rest is not compared" in differences(more, much)


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


def picture_at(path, color):
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(np.full((48, 64, 3), color, np.uint8)).save(path)


def media_of(output):
    """What the page of a run shows of media: tags with a source, and why there is none."""
    seen = Reader(rows(load_run(output), Samples(load_run(output)).collect()))
    return [(tag, each["src"][:22]) for tag, each in seen.tags if "src" in each], [
        t for t in seen.texts if "stored" in t
    ]


def test_files_that_rows_refer_to_are_shown(tmp_path):
    for number in range(3):
        picture_at(tmp_path / "photos" / f"{number}.png", 80 * number)
    (tmp_path / "sounds").mkdir()
    with wave.open(str(tmp_path / "sounds" / "a.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(np.sin(np.arange(16000) / 9).astype(np.float16).tobytes())
    output = str(tmp_path / "out")
    small = ImageSize(min_width=1_000)
    Pipeline(ImageReader(str(tmp_path / "photos")), small, JsonlWriter(output)).run(executor="inline", rejects=True)
    assert media_of(output) == ([("img", "data:image/jpeg;base64")] * 3, [])
    output = str(tmp_path / "sounds-out")
    Pipeline(AudioReader(str(tmp_path / "sounds")), FolderWriter(output)).run(executor="inline")
    assert media_of(output) == ([("img", "data:image/jpeg;base64"), ("audio", "data:audio/ogg;base64,")], [])
    output = str(tmp_path / "parts-out")
    parts = AudioWindows(window_s=0.5)
    Pipeline(AudioReader(str(tmp_path / "sounds")), parts, JsonlWriter(output)).run(executor="inline")
    assert media_of(output) == ([("img", "data:image/jpeg;base64"), ("audio", "data:audio/ogg;base64,")] * 2, [])


def test_groups_of_equal_images_are_shown_as_thumbnails(tmp_path):
    for name, color in (("a", 40), ("b", 40), ("c", 200)):
        picture_at(tmp_path / "photos" / f"{name}.png", color)
    steps = [ImageReader(str(tmp_path / "photos")), ImageDigest(), ExactDedup(column="image_digest")]
    for output, rejects in (("with", True), ("without", False)):
        Pipeline(*steps, ParquetWriter(str(tmp_path / output))).run(executor="inline", rejects=rejects, progress=False)
        seen = Reader(duplicates(load_run(str(tmp_path / output))))
        assert [each["src"][:22] for tag, each in seen.tags if tag == "img"] == ["data:image/jpeg;base64"] * 2
        assert not [text for text in seen.texts if "not shown" in text]


def test_a_reference_in_data_shows_no_other_file_of_the_machine(tmp_path):
    picture_at(tmp_path / "private" / "me.png", 200)
    path = str(tmp_path / "private" / "me.png")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text(json.dumps({"text": "a b", "image": {"bytes": None, "path": path}}) + "\n")
    for output, least in (("kept", 1), ("dropped", 3)):
        steps = [JsonlReader(str(tmp_path / "in")), WordCount(min_words=least), ParquetWriter(str(tmp_path / output))]
        Pipeline(*steps).run(executor="inline", rejects=True)
        shown, notes = media_of(str(tmp_path / output))
        assert shown == []
        assert notes[0].startswith(f"stored in {path}: ")
        assert "outside" in notes[0]


def test_a_file_with_only_sound_does_not_hide_other_rows(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.mp4").write_bytes(video([(scene(1), 5)]))
    (tmp_path / "in" / "b.mp4").write_bytes(only_sound())
    output = str(tmp_path / "out")
    report = Pipeline(VideoReader(str(tmp_path / "in")), VideoDecodable(), ParquetWriter(output)).run(
        executor="inline", rejects=True
    )
    assert (report.kept, report.dropped) == (1, {"video_problem not in fine": 1})
    shown, notes = media_of(output)
    assert shown == [("img", "data:image/jpeg;base64")]
    assert notes == [f"stored in {tmp_path}/in/b.mp4: the video is without picture: it has only sound"]


def test_an_unexpected_error_of_a_decoder_is_that_of_its_row(tmp_path, monkeypatch):
    picture_at(tmp_path / "photos" / "a.png", 80)
    output = str(tmp_path / "out")
    Pipeline(ImageReader(str(tmp_path / "photos")), JsonlWriter(output)).run(executor="inline")

    def fail(batch, column):
        raise KeyError

    monkeypatch.setattr("tamis.image.contact_sheet.cards", fail)
    shown, notes = media_of(output)
    assert shown == []
    assert notes[0].endswith("a.png: KeyError")


def test_clips_and_encoded_sounds_are_shown_from_the_files_that_were_written(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.mp4").write_bytes(video([(scene(1), 20)], sound="aac"))
    source, clips, sounds = VideoReader(str(tmp_path / "in")), str(tmp_path / "clips"), str(tmp_path / "sounds")
    Pipeline(source, FixedClips(length_s=1, min_length_s=1), ClipWriter(clips)).run(executor="inline")
    assert media_of(clips) == ([("img", "data:image/jpeg;base64")] * 2, [])
    Pipeline(source, SoundTrack(), AudioWriter(sounds)).run(executor="inline")
    assert media_of(sounds) == ([("img", "data:image/jpeg;base64"), ("audio", "data:audio/ogg;base64,")], [])


def test_a_page_says_that_a_format_cannot_be_read(tmp_path):
    output = str(tmp_path / "out")
    Pipeline(write_files(tmp_path, "a"), JsonlWriter(output)).run(executor="inline")
    view = load_run(output)
    view.manifest["recipe"]["steps"][-1] = {"my_writer": {}}
    assert "Kept rows are not shown: what my_writer writes cannot be read as rows." in report_page(view)


def test_times_that_python_cannot_hold_are_shown(tmp_path):
    far = pa.array([2**62] * 2)
    columns = {name: far.cast(kind) for name, kind in (("at", pa.timestamp("us")), ("took", pa.duration("s")))}
    pq.write_table(pa.table({"text": ["one", "one two"], **columns}), tmp_path / "in.parquet")
    output = str(tmp_path / "out")
    steps = [ParquetReader(str(tmp_path / "in.parquet")), WordCount(min_words=2), ParquetWriter(output)]
    Pipeline(*steps).run(executor="inline", rejects=True)
    samples = Samples(load_run(output))
    assert [(each.fate, dict(each.details)["took"]) for each in samples.collect()] == [
        ("kept", "<duration[s]>"),
        ("borderline", "<duration[s]>"),
    ]
    assert samples.notes == []


def test_a_threshold_is_shown_with_all_digits():
    assert [str(Bound("s", "p", "n", "maximum", value)) for value in (89_478_485.0, 0.65, 100_000.0)] == [
        "n <= 89478485",
        "n <= 0.65",
        "n <= 100000",
    ]


def test_damaged_files_of_an_output_are_named_on_the_page_and_do_not_prevent_it(tmp_path, capsys):
    rows = [{"id": f"d{number}", "text": "one two three" if number % 2 else f"one {number}"} for number in range(50)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    steps = [WordCount(min_words=3), ExactDedup(), ParquetWriter(str(tmp_path / "out"))]
    Pipeline(JsonlReader(str(tmp_path / "in.jsonl")), *steps).run(executor="inline", rejects=True, scores=True)
    words = {
        "scores": "The stored scores cannot be read",
        "rejects": "Dropped rows cannot be shown",
        "groups": "The groups of duplicates cannot be read",
    }
    for folder, message in words.items():
        shutil.copytree(tmp_path / "out", damaged := tmp_path / folder)
        for file in (damaged / ".tamis" / folder).iterdir():
            data = bytearray(file.read_bytes())
            footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
            data[4:footer] = bytes(footer - 4)
            file.write_bytes(data)
        assert message in report_page(load_run(str(damaged)))
    assert main(["why", str(tmp_path / "groups"), "d1"]) == 2
    assert "records about its rows cannot be read" in capsys.readouterr().err


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
    assert "data-slider" not in parts
    assert "neither a filter nor a map" in parts
    assert "Not all steps can be built here" in parts


@pytest.mark.parametrize("from_memory", [False, True])
def test_filters_before_a_function_have_sliders_without_a_command_that_could_not_run(tmp_path, from_memory):
    found = [{"text": "word " * number} for number in range(1, 11)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    source = Rows(found) if from_memory else JsonlReader(str(tmp_path / "in.jsonl"))
    output = str(tmp_path / "out")

    def shorten(row: dict[str, Any]) -> dict[str, Any]:
        return {"text": row["text"][:20]}

    Pipeline(source, WordCount(min_words=4), shorten, ParquetWriter(output)).run(
        executor="inline", scores=True, progress=False
    )
    shown = "".join(heavy_parts(load_run(output)))
    assert "`tamis rethreshold` cannot build all steps" in shown
    (data,) = [
        json.loads(each["data-slider"]) for _, each in Reader(shown).tags if "min_words" in each.get("data-slider", "")
    ]
    assert (data["rows"], data["kept"], data["set"], data["command"]) == (10, 7, "word_count.min_words", "")


def test_dropped_rows_that_are_all_near_a_threshold_are_among_the_dropped(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "one two"}\n{"text": "one two three"}\n{"text": ""}\n')
    steps = [JsonlReader(str(tmp_path / "in.jsonl")), WordCount(min_words=3), ParquetWriter(str(tmp_path / "out"))]
    Pipeline(*steps).run(executor="inline", rejects=True)
    view = load_run(str(tmp_path / "out"))
    found = Samples(view).collect()
    assert {(each.fate, each.text) for each in found} == {
        ("kept", "one two three"),
        ("borderline", "one two"),
        ("dropped", ""),  # far from the threshold
    }
    shown = Reader(rows(view, [each for each in found if each.text]))
    fates = [each["data-fate"] for tag, each in shown.tags if tag in ("article", "button")]
    assert fates == ["", "kept", "dropped", "borderline", "kept", "borderline dropped"]
    assert not [words for words in shown.texts if "--rejects" in words]


def test_the_funnel_counts_rows_that_a_step_creates(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "a b"}\n{"text": "c"}\n{"text": ""}\n')

    def words(row: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"text": word} for word in row["text"].split()]

    steps = [WordCount(min_words=1), words, WordCount(min_words=2), ParquetWriter(str(tmp_path / "out"))]
    Pipeline(JsonlReader(str(tmp_path / "in.jsonl")), *steps).run(executor="inline")
    view = load_run(str(tmp_path / "out"))
    seen = Reader(funnel(view))
    assert "3 rows were read, 1 created, and 0 kept." in seen.texts
    bars = [float(each["width"].rstrip("%")) for tag, each in seen.tags if tag == "rect" and each["class"] == "kept"]
    assert bars == [75.0, 50.0, 75.0, 0.0, 0.0], "of the four rows read and created"
    assert "4 rows were dropped. " in "".join(Reader(reasons(view)).texts)


def test_a_page_without_rows_or_scores_says_why(tmp_path):
    (tmp_path / "in.jsonl").write_text("")
    steps = [JsonlReader(str(tmp_path / "in.jsonl")), WordCount(), ParquetWriter(str(tmp_path / "out"))]
    Pipeline(*steps).run(executor="inline", rejects=True, scores=True)
    view = load_run(str(tmp_path / "out"))
    html = report_page(view)
    assert "The input has no rows" in html
    assert "--scores" not in Reader(thresholds(view, None)).texts[-1]
    view.state = "ended"
    assert "The run ended before any part of the input was processed" in report_page(view)


def test_passages_are_marked_although_another_step_is_a_function(tmp_path):
    def same(row: dict[str, Any]) -> dict[str, Any]:
        return {"text": row["text"]}

    (tmp_path / "in.jsonl").write_text(json.dumps({"text": "a line\na line\na line\na line\n"}) + "\n")
    steps = [JsonlReader(str(tmp_path / "in.jsonl")), same, RepeatedLines(), ParquetWriter(str(tmp_path / "out"))]
    Pipeline(*steps).run(executor="inline", rejects=True)
    assert "<mark>a line" in "".join(heavy_parts(load_run(str(tmp_path / "out"))))


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


def test_filters_whose_scores_are_not_stored_are_named(tmp_path):
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": "a b " * n}) + "\n" for n in range(9)))
    steps = [WordCount(min_words=3), ExactDedup(), RepeatedLines(), WordCount(min_words=5)]
    Pipeline(JsonlReader(str(tmp_path / "in.jsonl")), *steps, ParquetWriter(str(tmp_path / "out"))).run(
        executor="inline", scores=True
    )
    view = load_run(str(tmp_path / "out"))
    scores = read_scores(view.store, steps_of(view))
    assert (scores.rows, scores.kept, scores.without) == (9, 7, ["repeated_lines", "word_count#2"])
    assert "so these are not shown: repeated_lines, word_count#2." in "".join(Reader(thresholds(view, scores)).texts)


def test_bounds_know_the_parameters_that_set_them():
    found = {(bound.score, bound.side): bound.parameter for bound in bounds_of("g", GopherQuality())}
    assert found["gopher_words", "minimum"] == "min_words"
    assert found["gopher_word_length", "maximum"] == "max_word_length"
    assert {bound.parameter for bound in bounds_of("c", C4Quality())} >= {"min_sentences", "max_lorem_ipsum"}
    assert all(bound.parameter for bound in bounds_of("r", GopherRepetition()))


def steps_of(view):
    return Recipe(tuple(Step(name, dict(given)) for name, given in view.steps)).operators()


@pytest.mark.parametrize("gathered", [False, True])
def test_kept_rows_near_a_threshold_are_shown_with_their_scores(tmp_path, gathered):
    """Rows have 1 to 40 words, in two files; at least 20 are required. Texts come from the output, or else from the input."""
    for name, words in (("a", range(1, 41, 2)), ("b", range(2, 41, 2))):
        rows = [{"id": f"{name}{count}", "text": " ".join(["word"] * count)} for count in words]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    steps = [WordCount(min_words=20), *([ExactDedup()] if gathered else [])]
    source = JsonlReader(str(tmp_path / "*.jsonl"))
    Pipeline(source, *steps, ParquetWriter(str(tmp_path / "out"))).run(executor="inline", scores=True, progress=False)
    view = load_run(str(tmp_path / "out"))
    scores = read_scores(view.store, steps_of(view))
    found = kept_near_bounds(view, scores, Samples(view))
    assert [sample.reason for sample in found] == ["words >= 20"] * 6
    assert [dict(sample.details)["words"] for sample in found] == ["20", "21", "22", "23", "24", "25"]
    assert [len(sample.text.split()) for sample in found] == [20, 21, 22, 23, 24, 25]
    assert {sample.outcome for sample in found} == {"passed the filters" if gathered else "kept"}
    if not gathered:
        assert [sample.title for sample in found] == ["b20", "a21", "b22", "a23", "b24", "a25"]
        (tmp_path / "a.jsonl").unlink()
        (tmp_path / "b.jsonl").unlink()
        assert len(kept_near_bounds(view, scores, Samples(view))) == 6, "the output has them"
    assert "borderline, " in report_page(view)


def test_memory_is_shown_by_role_of_processes(tmp_path):
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": f"word number {n}"}) + "\n" for n in range(50)))
    Pipeline(JsonlReader(str(tmp_path / "in.jsonl")), WordCount(min_words=1), ParquetWriter(str(tmp_path / "out"))).run(
        workers=1, progress=False
    )
    shown = " ".join(Reader(resources(load_run(str(tmp_path / "out")))).texts)
    assert "Memory by role of the processes" in shown
    assert "driver" in shown
    assert "worker" in shown


def test_steps_are_the_bottleneck_only_if_they_took_the_time(tmp_path):
    steps = [Rows(documents()), WordCount(min_words=1), ExactDedup(), ParquetWriter(str(tmp_path / "out"))]
    Pipeline(*steps).run(executor="inline")
    view = load_run(str(tmp_path / "out"))
    slow = max(view.report.operators, key=lambda op: op["seconds"])["name"]
    view.report.seconds = sum(op["seconds"] for op in view.report.operators)
    assert bottleneck_text(view).startswith(f"The bottleneck is {slow}: it takes ")
    view.report.seconds += 100.0
    assert "most of which went to start-up and compiling kernels" in bottleneck_text(view)
    view.log["calls"] = [{"stage": 0, "from_s": 10.0, "to_s": 90.0}]
    assert bottleneck_text(view).endswith(f"went to decisions about all rows. The slowest step is {slow}.")


def test_no_role_held_more_than_the_run_whatever_the_caller_held_before(tmp_path):
    Pipeline(Rows(documents()), WordCount(min_words=1)).collect(executor="inline")  # compiling kernels takes memory too
    before = np.ones(400_000_000, np.uint8)
    out = str(tmp_path / "out")
    report = Pipeline(Rows(documents()), WordCount(min_words=1), ParquetWriter(out)).run(executor="inline")
    assert before.nbytes > 1.5 * report.peak_memory_bytes, "what was there before does not count"
    shown = Reader(resources(load_run(out))).texts
    assert shown[shown.index("driver") + 2] == format_bytes(report.peak_memory_bytes)
    assert shown.count(f"peak {format_bytes(report.peak_memory_bytes)}") == 1, "the curve says the same"


def test_the_page_of_shards_adds_up_what_each_of_them_did(tmp_path):
    """Two of three shards have run; then the third one, which merges."""
    for name in "abc":
        (tmp_path / f"{name}.jsonl").write_text(
            "".join(json.dumps({"text": "a b c d"[: n + 1]}) + "\n" for n in range(7))
        )

    def run(shard):
        Pipeline(
            JsonlReader(str(tmp_path / "*.jsonl"), files_per_partition=1),
            WordCount(min_words=2),
            JsonlWriter(str(tmp_path / "out")),
        ).run(executor="inline", shard=f"{shard}/3", shard_wait=0, progress=False)
        view = load_run(str(tmp_path / "out"))
        return view, " ".join(Reader(report_page(view)).texts)

    run(1)
    view, shown = run(2)
    assert (view.state, view.report.read, view.report.kept) == ("shard", 14, 10)
    assert "Shard finished" in shown
    view, shown = run(3)
    assert (view.state, view.report.read, view.report.kept) == ("finished", 21, 15)
    assert "Finished" in shown
    assert "words < 2" in shown


def write_files(folder, names):
    for name in names:
        (folder / f"{name}.jsonl").write_text(json.dumps({"text": "a b c"}) + "\n")
    return JsonlReader(str(folder / "*.jsonl"), files_per_partition=1)


def test_a_run_that_another_shard_finished_is_not_shown_as_killed(tmp_path):
    source, output = write_files(tmp_path, "abcd"), str(tmp_path / "out")

    def run(shard):
        Pipeline(source, WordCount(min_words=2), JsonlWriter(output)).run(
            executor="inline", shard=shard, shard_wait=0, progress=False
        )

    run("1/2")
    log = tmp_path / "out" / FOLDER / "shard-0001.json"
    state = json.loads(log.read_text())
    state |= {"state": "running", "updated": state["updated"] - 60}  # as if it had been killed a minute ago
    log.write_text(json.dumps(state))
    assert load_run(output).state == "ended"
    run("2/2")
    view = load_run(output)
    assert (view.state, view.error, view.report.read) == ("finished", "", 4)


def test_shards_after_a_run_without_shards_are_shown_and_not_the_old_run(tmp_path):
    source, output = write_files(tmp_path, "abcd"), str(tmp_path / "out")
    options = {"executor": "inline", "progress": False}
    seen = []
    for least, shard in ((1, None), (2, "1/2"), (2, "2/2"), (4, None)):
        pipeline = Pipeline(source, WordCount(min_words=least), JsonlWriter(output))
        pipeline.run(**options, **({} if shard is None else {"shard": shard, "shard_wait": 0}))
        view = load_run(output)
        seen.append((view.state, view.report.read, view.report.kept, len(view.shards)))
    assert seen == [("finished", 4, 4, 0), ("shard", 2, 2, 1), ("finished", 4, 4, 2), ("finished", 4, 0, 0)]


def test_the_rate_is_an_average_between_reports_of_rows_and_zero_while_a_step_decides():
    bursts = [(second, 0, 0, 100 * (second // 2)) for second in range(11)]  # 100 rows every two seconds
    assert rates(bursts, 1) == [(second, 50.0) for second in range(2, 11, 2)]
    then = [*bursts, (20, 0, 1, 0), (22, 0, 1, 100)]
    assert rates(then, 1)[5:] == [(11, 0.0), (20, 0.0), (22, 50.0)]


def test_a_single_rate_is_drawn_from_the_beginning(tmp_path):
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": f"word {n}"}) + "\n" for n in range(9)))
    Pipeline(JsonlReader(str(tmp_path / "in.jsonl")), WordCount(min_words=1), ParquetWriter(str(tmp_path / "out"))).run(
        executor="inline"
    )
    view = load_run(str(tmp_path / "out"))
    view.log["samples"] = [[0.0, 9, 0, 0, 0, 0, 0], [4.0, 9, 0, 80, 0, 0, 0]]
    curves = [
        each["d"] for tag, each in Reader(resources(view)).tags if tag == "path" and each["class"] == "curve first"
    ]
    assert len(curves) == 2, "memory and rows"
    assert all(len(curve.split("L")) == 2 for curve in curves), "from one point to another"


def test_a_run_that_stopped_before_its_last_stage_does_not_claim_that_no_row_is_kept(tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        (tmp_path / "in" / f"{name}.jsonl").write_text(json.dumps({"text": f"row {name}"}) + "\n")
    done = []

    def stop_at_the_second(batch: Batch) -> dict[str, list[int]]:
        if done:
            raise KeyboardInterrupt
        done.append(1)
        return {"n": [1] * len(batch)}

    source, output = JsonlReader(str(tmp_path / "in"), files_per_partition=1), str(tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        Pipeline(source, stop_at_the_second, ExactDedup(), ParquetWriter(output)).run(executor="inline", progress=False)
    html = report_page(load_run(output))
    assert "The last stage, which writes the rows that are kept, has not begun." in html
    assert "Rerun the same command to resume." in html
    assert "Rows kept" not in html
