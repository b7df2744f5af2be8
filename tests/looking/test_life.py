"""The life of one document, and the differences between two outputs, from what these record."""

import json
import shutil

import pytest

from tamis import JsonlReader, JsonlWriter, ParquetWriter, Pipeline, Report
from tamis.cli import main
from tamis.dedup import ExactDedup
from tamis.errors import ParameterError, SourceError
from tamis.looking.compare import compare
from tamis.looking.life import MOST_LIVES, why
from tamis.text import GopherQuality, WordCount

EVIL = "<script>alert(1)</script>\x1b[31m"


def make(folder, name, min_words, writer=JsonlWriter, rejects=True, scores=True, **options):
    source = JsonlReader(str(folder / "in.jsonl"), blocksize=200)
    steps = [WordCount(min_words=min_words), ExactDedup(), writer(str(folder / name))]
    return Pipeline(source, *steps).run(rejects=rejects, scores=scores, executor="inline", **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("life")
    rows = [{"id": f"doc-{number}", "text": f"{number} " * number} for number in range(12)]
    rows.append({"id": "copy", "text": "11 " * 11})
    rows.append({"id": "evil", "text": EVIL + " and three more"})
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    make(folder, "strict", 8)
    make(folder, "mild", 4, ParquetWriter)
    make(folder, "bare", 8, rejects=False, scores=False)
    return folder


def test_a_kept_document_is_followed_through_every_step_by_its_id(folder):
    (life,) = why(str(folder / "strict"), "doc-9")
    assert (life.fate, life.id) == ("kept", "doc-9")
    assert [(stop.step, stop.outcome) for stop in life.stops] == [
        ("jsonl_reader", "read"),
        ("word_count", "passed"),
        ("exact_dedup", "passed"),
        ("jsonl_writer", "written"),
    ]
    assert life.row["text"] == "9 " * 9


def test_a_dropped_document_has_its_score_and_the_rule_it_broke(folder):
    (life,) = why(str(folder / "strict"), "doc-5")
    assert life.fate == "dropped"
    stop = life.stops[1]
    assert (stop.outcome, stop.detail, stop.scores) == ("dropped", "words < 8", {"words": 5})
    assert stop.rules == ["words from 8 to 100000"]
    assert [each.outcome for each in life.stops[2:]] == ["not reached", "not reached"]
    assert why(str(folder / "strict"), life.address)[0].id == "doc-5"


def test_scores_of_a_kept_document_are_found_by_its_address(folder):
    (life,) = why(str(folder / "strict"), "copy")
    twin = life.stops[2].twins[0]
    assert (life.fate, twin["kept_id"]) == ("dropped", "doc-11")
    assert life.stops[1].scores == {"words": 11}
    (kept,) = why(str(folder / "strict"), twin["kept_address"])
    assert (kept.fate, kept.stops[1].scores) == ("kept", {"words": 11})
    assert [entry["id"] for entry in kept.stops[2].twins] == ["copy"]


def test_scores_of_a_kept_document_are_found_by_its_id_alone(tmp_path):
    rows = [{"id": number, "text": "word " * number} for number in range(20)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = JsonlReader(str(tmp_path / "in.jsonl"), blocksize=300)
    Pipeline(source, WordCount(min_words=3), JsonlWriter(str(tmp_path / "out"))).run(scores=True, executor="inline")
    for number in (3, 11, 19):
        (life,) = why(str(tmp_path / "out"), str(number))
        assert (life.fate, life.stops[1].scores) == ("kept", {"words": number})
        assert life.address.startswith(str(tmp_path / "in.jsonl:"))


@pytest.mark.parametrize("scores", [False, True])
def test_every_row_with_an_id_has_a_life(tmp_path, scores):
    texts = ["a b c", "a", "d e f", "g h i"]
    lines = [json.dumps({"id": "x" if number < 3 else "y", "text": text}) for number, text in enumerate(texts)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    out = str(tmp_path / "out")
    Pipeline(JsonlReader(str(tmp_path / "in.jsonl")), WordCount(min_words=2), JsonlWriter(out)).run(
        executor="inline", rejects=True, scores=scores
    )
    lives = why(out, "x")
    assert [(life.fate, life.id, life.row["text"]) for life in lives] == [
        ("dropped", "x", "a"),
        ("kept", "x", "a b c"),
        ("kept", "x", "d e f"),
    ]
    if scores:
        starts = [0, len(lines[0]) + len(lines[1]) + 2]
        assert [life.address for life in lives[1:]] == [f"{tmp_path}/in.jsonl:{start}" for start in starts]
        assert [[each.fate for each in why(out, life.address)] for life in lives] == [["dropped"], ["kept"], ["kept"]]


def test_of_many_rows_with_an_id_some_are_shown_and_the_others_counted(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"id": "x"}\n' * (MOST_LIVES + 3))
    Pipeline(JsonlReader(str(tmp_path / "in.jsonl")), JsonlWriter(str(tmp_path / "out"))).run(executor="inline")
    lives = why(str(tmp_path / "out"), "x")
    assert len(lives) == MOST_LIVES
    assert lives[-1].notes[-1].startswith("3 more rows of the output have this id")


def test_a_note_says_how_to_see_scores_that_an_id_does_not_lead_to(folder):
    (life,) = why(str(folder / "strict"), "doc-9")
    assert (life.stops[1].scores, life.address) == ({}, None)
    assert "Give the address" in life.notes[-1]


@pytest.mark.parametrize("invert", [False, True])
def test_stored_scores_tell_the_fate_of_rows_that_were_not_recorded(tmp_path, invert):
    lines = [json.dumps({"text": "word " * number}) + "\n" for number in range(1, 9)]
    (tmp_path / "in.jsonl").write_text("".join(lines))
    count = WordCount(min_words=4, max_words=6, invert=invert)
    steps = [GopherQuality(score_only=True), count, ParquetWriter(str(tmp_path / "out"))]
    Pipeline(JsonlReader(str(tmp_path / "in.jsonl")), *steps).run(scores=True, executor="inline")
    addresses = [f"{tmp_path}/in.jsonl:{sum(map(len, lines[:number]))}" for number in range(8)]
    lives = [why(str(tmp_path / "out"), address)[0] for address in addresses]
    reasons = [life.stops[2].detail for life in lives]
    met = "words from 4 to 6"
    below, above = "words < 4", "words > 6"
    assert reasons == ([""] * 3 + [met] * 3 + [""] * 2 if invert else [below] * 3 + [""] * 3 + [above] * 2)
    assert [life.fate for life in lives] == ["dropped" if reason else "kept" for reason in reasons]
    assert lives[1].stops[2].scores == {"words": 2}


def test_a_step_without_scores_leaves_the_fate_of_rows_open(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "one two three"}\n{"text": "one two"}\n{"text": "one"}\n')

    def long(text: str) -> bool:
        return len(text) > 8

    source, sink = JsonlReader(str(tmp_path / "in.jsonl")), ParquetWriter(str(tmp_path / "out"))
    Pipeline(source, long, WordCount(min_words=2), sink).run(scores=True, executor="inline")
    lives = [why(str(tmp_path / "out"), f"{tmp_path}/in.jsonl:{at}")[0] for at in (0, 26, 46)]
    assert [life.fate for life in lives] == ["unknown"] * 3


def test_what_is_not_recorded_is_not_invented(folder):
    (life,) = why(str(folder / "bare"), "doc-5")
    assert (life.fate, life.stops) == ("unknown", [])
    assert "word_count (9 rows)" in life.notes[0]
    assert "--scores" in life.notes[-1]
    (life,) = why(str(folder / "strict"), "no such id")
    assert "it is not a row of the input" in life.notes[0]


def test_the_report_answers_from_disk(folder):
    report = Report.load(folder / "strict")
    frame = report.dropped_rows("words < 8").to_pandas()
    assert sorted(frame["_reason"].unique()) == ["words < 8"]
    assert len(frame) == report.dropped["words < 8"] == 9
    assert report.groups().explain("copy")[0]["kept_id"] == "doc-11"
    assert report.why("copy")[0].fate == "dropped"
    assert [row["id"] for row in report.kept_rows()] == ["doc-8", "doc-9", "doc-10", "doc-11"]
    assert list(report.failed_rows()) == []
    with pytest.raises(ParameterError, match="no row was dropped because of 'words < 7'"):
        report.dropped_rows("words < 7")
    with pytest.raises(SourceError, match="does not contain the rows that were dropped"):
        Report.load(folder / "bare").dropped_rows()


def test_two_outputs_are_compared_by_id(folder):
    found = compare(str(folder / "strict"), str(folder / "mild"))
    assert found.settings["word_count.min_words"] == (8, 4)
    assert found.counts["kept"] == (4, 9)
    assert (found.same, found.only_in_first, found.only_in_second) == (4, 0, 5)
    crossed = {(change.first, change.second): change.rows for change in found.changes}
    assert crossed == {
        ("dropped: words < 8", "kept"): 5,
        ("dropped: words < 8", "dropped: words < 4"): 4,
    }
    (example,) = [each for each in found.changes[0].examples if each["row"]["id"] == "doc-4"]
    assert json.loads(example["row"]["_scores"]) == {"words": 4}


def test_rows_of_a_run_without_rejects_are_missing_with_a_note(folder):
    found = compare(str(folder / "bare"), str(folder / "mild"), key="text")
    assert {(change.first, change.second): change.rows for change in found.changes} == {
        ("not recorded", "kept"): 5,
        ("not recorded", "dropped: words < 4"): 4,
    }
    assert "--rejects" in found.notes[0]


def test_rows_that_share_a_key_are_counted_in_a_note(tmp_path):
    outputs = []
    for name, ids in (("one", "aabbb"), ("two", "aabc")):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"id": each}) + "\n" for each in ids))
        outputs.append(str(tmp_path / f"{name}-out"))
        Pipeline(JsonlReader(str(tmp_path / f"{name}.jsonl")), JsonlWriter(outputs[-1])).run(executor="inline")
    found = compare(*outputs)
    assert (found.same, found.only_in_first, found.only_in_second) == (2, 0, 1)
    assert found.notes == [
        f"3 rows of {outputs[0]} have the key of another row, and only one row of a key is compared",
        f"1 row of {outputs[1]} has the key of another row, and only one row of a key is compared",
    ]


def test_rows_that_cannot_be_read_are_noted_in_a_comparison(folder, tmp_path):
    shutil.copytree(folder / "mild", tmp_path / "damaged")
    for shard in (tmp_path / "damaged").glob("part-*.parquet"):
        data = bytearray(shard.read_bytes())
        data[4:60] = bytes(56)
        shard.write_bytes(data)
    found = compare(str(folder / "strict"), str(tmp_path / "damaged"))
    assert found.same == 0
    assert found.notes[-1].startswith(
        f"some rows of {tmp_path}/damaged cannot be read and are missing here; the first: "
    )


def test_comparisons_in_many_buckets_give_the_same_result(folder, monkeypatch):
    whole = compare(str(folder / "strict"), str(folder / "mild")).as_dict()
    monkeypatch.setattr("tamis.looking.compare.ROWS_PER_BUCKET", 3)
    assert compare(str(folder / "strict"), str(folder / "mild")).as_dict() == whole


def test_the_commands_print_text_and_json(folder, capsys):
    strict, mild = str(folder / "strict"), str(folder / "mild")
    assert main(["why", strict, "copy"]) == 0
    assert "duplicate of doc-11" in capsys.readouterr().out
    assert main(["why", strict, "nobody"]) == 1
    assert "unknown" in capsys.readouterr().out
    assert main(["why", strict, "copy", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["fate"] == "dropped"
    assert main(["compare", strict, mild]) == 0
    printed = capsys.readouterr().out
    assert "word_count.min_words: 8 -> 4" in printed
    assert "doc-4 (words 4) " in printed, "the score that crossed a threshold, and no others"
    assert main(["compare", strict, mild, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["only_in_second"] == 5


def test_notebooks_show_tables_in_which_data_is_text(folder):
    report = Report.load(folder / "strict")
    life = report.why("evil")[0]
    shown = [
        report,
        report.groups(),
        life,
        report.dropped_rows(),
        compare(str(folder / "strict"), str(folder / "mild")),
    ]
    for each in shown:
        html = each._repr_html_()
        assert "<table" in html
        assert "<script" not in html
        assert "\x1b" not in html
        assert "\x1b" not in repr(each)
    assert "&lt;script&gt;" in report.dropped_rows()._repr_html_()
