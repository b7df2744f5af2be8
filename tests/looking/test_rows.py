"""Look into files and outputs with `head`, `sample` and `grep`, hostile content included."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tamis import JsonlReader, JsonlWriter, Pipeline
from tamis.cli import main
from tamis.looking.rows import Seen, read_rows, row_text
from tamis.looking.search import Pattern, sampled
from tamis.text import WordCount

ESCAPES = "title \x1b]0;owned\x07 \x1b[2J \x9b31m \u202eright to left <script>alert(1)</script>"


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    """An output with kept, dropped and failed rows."""
    folder = tmp_path_factory.mktemp("looking")
    rows = [{"id": f"doc-{number}", "text": "word " * number} for number in range(10)]
    rows.append({"id": "evil", "text": f"{ESCAPES} and more words than five"})
    lines = [json.dumps(row) for row in rows]
    (folder / "in.jsonl").write_text("\n".join([*lines, "{broken"]) + "\n")
    Pipeline(JsonlReader(str(folder / "in.jsonl")), WordCount(min_words=5), JsonlWriter(str(folder / "out"))).run(
        rejects=True, executor="inline", on_error="isolate", max_failed="100%"
    )
    return folder / "out"


def printed(capsys, *arguments, code=0):
    assert main([str(each) for each in arguments]) == code
    return capsys.readouterr()


def test_head_shows_kept_dropped_and_failed_rows(output, capsys):
    assert "doc-5" in printed(capsys, "head", output, "-n", 1).out
    dropped = printed(capsys, "head", output, "--fate", "dropped", "-n", 1).out
    assert "doc-0" in dropped
    assert "words < 5" in dropped
    failed = printed(capsys, "head", output, "--fate", "failed").out
    assert "{broken" in failed
    assert "jsonl_reader" in failed


def test_head_of_a_plain_file_reports_rows_that_cannot_be_read(output, capsys):
    shown = printed(capsys, "head", output.parent / "in.jsonl", "-n", 100, "--json")
    rows = [json.loads(line) for line in shown.out.splitlines()]
    assert [row["id"] for row in rows] == [*(f"doc-{number}" for number in range(10)), "evil"]
    assert "1 row could not be read" in shown.err


def test_json_rows_are_the_rows(output, capsys):
    (row,) = [json.loads(line) for line in printed(capsys, "grep", "owned", output, "--json").out.splitlines()]
    assert row["text"] == f"{ESCAPES} and more words than five"
    assert (row["_fate"], row["id"]) == ("kept", "evil")


def test_nothing_in_data_acts_on_the_terminal(output, capsys):
    every = ["head", output, "--fate", "all", "-n", 99]
    for options in ([], ["--full"], ["--json"]):
        shown = printed(capsys, *every, *options)
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(shown.out + shown.err)
        assert "owned" in shown.out
    unknown = ["why", output, "\x1b[2J"]
    for command in (["grep", "owned", output], ["why", output, "evil"], unknown):
        shown = printed(capsys, *command, code=int(command is unknown))
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(shown.out + shown.err)


def test_grep_searches_texts_reasons_errors_and_ids(output, capsys):
    assert printed(capsys, "grep", "words < 5", output, "--count").out == "5\n"
    assert printed(capsys, "grep", "^doc-[78]$", output, "--in", "id", "--count").out == "2\n"
    assert "failed" in printed(capsys, "grep", "broken", output, "--fixed").out
    assert printed(capsys, "grep", "WORD WORD", output, "-i", "-n", 2).out.count("\n") == 2
    assert printed(capsys, "grep", "no such text", output, code=1).out == ""


def test_a_bad_pattern_or_column_is_a_clear_error(output, capsys):
    assert "cannot be compiled" in printed(capsys, "grep", "(", output, code=2).err
    assert "there is no column `nope`" in printed(capsys, "head", output, "--column", "nope", code=2).err
    assert "there is no column `nope`" in printed(capsys, "grep", "x", output, "--in", "nope", code=2).err
    both = printed(capsys, "grep", "evil", output, "--in", "id", "--in", "nope", code=2)
    assert "there is no column `nope`" in both.err
    assert "evil" in printed(capsys, "grep", "evil", output, "--in", "id", "--in", "_reason").out, (
        "only rejects have it"
    )
    assert "does not exist" in printed(capsys, "head", output / "nope.jsonl", code=2).err


def test_a_column_that_exists_nowhere_is_an_error_with_the_columns_and_no_rows_are_none(output, capsys, tmp_path):
    assert "columns: id, text" in printed(capsys, "grep", "x", output, "--in", "nope", "--fate", "kept", code=2).err
    (tmp_path / "empty.jsonl").write_text("")
    assert printed(capsys, "grep", "x", tmp_path / "empty.jsonl", "--in", "text", code=1).err == ""


@pytest.mark.parametrize("command", [("head",), ("sample",), ("grep", "doc")])
def test_a_plain_file_has_no_dropped_rows(output, capsys, command):
    shown = printed(capsys, *command, output.parent / "in.jsonl", "--fate", "dropped", code=2)
    assert "is not the output folder of a run, so it has no dropped rows" in shown.err
    assert shown.out == ""


def test_a_pattern_takes_time_that_grows_with_the_text_alone():
    table = pa.table({"text": ["a" * 30 + "!"]})
    assert list(Pattern("(a+)+$").matches([Seen(None, table, str)])) == []


def test_a_sample_is_random_uniform_and_repeatable(tmp_path):
    pq.write_table(pa.table({"id": range(200)}), tmp_path / "a.parquet", row_group_size=17)
    counts = [0] * 200
    for seed in range(300):
        rows = [seen.row(number)["id"] for seen, number in sampled(read_rows(str(tmp_path)), 20, seed)]
        assert rows == sorted(set(rows))
        assert len(rows) == 20
        for row in rows:
            counts[row] += 1
    assert min(counts) > 8  # 30 expected, standard deviation 5.2
    assert max(counts) < 56
    first = [seen.row(number) for seen, number in sampled(read_rows(str(tmp_path)), 20, 7)]
    assert first == [seen.row(number) for seen, number in sampled(read_rows(str(tmp_path)), 20, 7)]


def bad_text() -> pa.Array:
    """Texts as some writers leave them: not UTF-8, and ten megabytes without a line break."""
    data = b"ab\xff\xfecd" + b"x" * 10_000_000
    offsets = pa.array([0, 6, len(data)], pa.int64()).buffers()[1]
    return pa.Array.from_buffers(pa.large_string(), 2, [None, offsets, pa.py_buffer(data)])


def test_large_fields_are_shown_shortened_and_bytes_by_their_size(tmp_path, capsys):
    table = pa.table({"text": ["x" * 10_000_000], "picture": [b"\x00\x1b" * 10]})
    pq.write_table(table, tmp_path / "a.parquet")
    shown = printed(capsys, "head", tmp_path / "a.parquet").out
    assert "<20 B>" in shown
    assert len(shown) < 2_000
    assert len(printed(capsys, "grep", "x{50}", tmp_path / "a.parquet").out) < 2_000


def test_text_that_is_not_utf8_can_be_searched_and_shown():
    seen = Seen(None, pa.table({"text": bad_text()}), str)
    (match,) = Pattern("cd").matches([seen])
    assert match.excerpt == "ab\\xff\\xfecd"
    assert row_text("a", seen.row(0), 80) == "a\n  text  ab\\xff\\xfecd"


def test_an_output_without_rows_says_so(tmp_path, capsys):
    (tmp_path / "in.jsonl").write_text('{"text": "one"}\n')
    Pipeline(JsonlReader(str(tmp_path / "in.jsonl")), WordCount(min_words=5), JsonlWriter(str(tmp_path / "out"))).run(
        executor="inline"
    )
    assert "--rejects" in printed(capsys, "head", tmp_path / "out", "--fate", "dropped").err
    assert "no kept rows" in printed(capsys, "sample", tmp_path / "out").err
