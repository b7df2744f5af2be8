"""Failed rows and damaged files are counted by error, and too many of them end a run."""

import gzip

import pytest

from tamis import JsonlReader, JsonlWriter, Pipeline, Rows
from tamis.cli import main
from tamis.errors import ParameterError, TooManyFailed
from tamis.events import PartitionCommitted, PartitionProgress
from tamis.executors.failures import FailureLimit, FailureWatch, parse_max_failed
from tamis.report import Account, ErrorCount, ErrorCounts, Report, error_kind, error_text

ISOLATE = {"executor": "inline", "on_error": "isolate"}


def numbers(count):
    return Rows([{"n": number} for number in range(count)], rows_per_partition=50)


def fail_below(bound):
    """A step that fails rows below `bound`."""

    def check(row):
        if row["n"] < bound:
            raise ValueError("too small")
        return True

    return check


# ---------------------------------------------------------------------------------------------------------- collecting


def test_collect_raises_if_any_row_fails():
    pipeline = Pipeline(numbers(3), lambda row: {"n": row["typo"]})
    with pytest.raises(TooManyFailed) as caught:
        pipeline.collect(**ISOLATE)
    assert "3 of 3 rows read so far failed (100.0 %)" in caught.value.message
    assert "3  `lambda`: KeyError: 'typo' (test_failures.py:" in caught.value.message
    assert "first at rows:0" in caught.value.message
    assert 'collect(max_failed="100%")' in caught.value.hint


def test_collect_returns_the_other_rows_on_request():
    table = Pipeline(numbers(5), fail_below(2)).collect(max_failed="100%", **ISOLATE)
    assert table["n"].to_pylist() == [2, 3, 4]


def test_the_report_counts_errors_without_a_sink():
    report = Pipeline(numbers(200), fail_below(3)).run(**ISOLATE)
    (error,) = report.errors
    assert (error["step"], error["rows"], error["example"]) == ("check", 3, "rows:0")
    assert error["error"].startswith("ValueError: too small (test_failures.py:")
    assert "`check`: ValueError: too small" in str(report)


def test_errors_are_the_same_whatever_the_partitions():
    def fail(row):
        return {"m": 1 / (row["n"] % 2), "k": [][row["n"]]}

    found = []
    for size in (3, 100):
        rows = Rows([{"n": n} for n in range(20)], rows_per_partition=size)
        found.append(Pipeline(rows, fail).run(**ISOLATE).errors)
    assert found[0] == found[1]
    assert [(error["kind"], error["rows"]) for error in found[0]] == [("IndexError", 10), ("ZeroDivisionError", 10)]


# ------------------------------------------------------------------------------------------------------------ counting


def test_different_messages_of_one_kind_are_counted_together():
    counts = ErrorCounts()
    for number in range(1000):
        counts.add("parse", f"ValueError: bad value {number}", f"in:{number}")
    counts.add("parse", "KeyError: 'id'", "in:1000")
    assert [(entry.kind, entry.rows, entry.example) for entry in counts.commonest()] == [
        ("ValueError", 1000, "in:0"),
        ("KeyError", 1, "in:1000"),
    ]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("not UTF-8: invalid start byte at byte 2", "not UTF-8"),
        (
            r"a NUL byte at byte 12 of the line; JSON writes it as \u0000",
            r"a NUL byte at byte N of the line; JSON writes it as \u0000",
        ),
    ],
)
def test_positions_are_left_out_of_the_kind_of_an_error_but_not_names_with_digits(error, kind):
    assert error_kind(error) == kind


def test_errors_of_one_kind_are_shown_by_their_first_message():
    error = {"step": "f", "error": "KeyError: 'a'", "kind": "KeyError", "various": True, "example": "in:7"}
    assert error_text(error) == "`f`: KeyError: 'a', and similar errors; first at in:7"


def test_counts_do_not_depend_on_how_they_are_divided():
    messages = [f"ValueError: {number % 12}" for number in range(30)] + ["TypeError: no"] * 3
    whole = ErrorCounts()
    for number, message in enumerate(messages):
        whole.add("step", message, f"in:{number}")
    total = Account()
    for start in range(0, len(messages), 7):
        part = ErrorCounts()
        for number, message in list(enumerate(messages))[start : start + 7]:
            part.add("step", message, f"in:{number}")
        total.add(Account(errors=part.entries))
    assert total.errors == whole.entries


def test_long_messages_are_shortened_and_keep_their_end():
    counts = ErrorCounts()
    counts.add("step", f"ValueError: {'x' * 5000} (clean.py:12)\nsecond line", "in:0")
    (entry,) = counts.entries
    assert len(entry.error) <= 200
    assert entry.error.endswith("(clean.py:12)")


# -------------------------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize(
    ("value", "limit"),
    [
        ("10%", FailureLimit(share=0.1)),
        (0.1, FailureLimit(share=0.1)),
        ("0.1", FailureLimit(share=0.1)),
        (20, FailureLimit(count=20)),
        ("20", FailureLimit(count=20)),
        (0, FailureLimit(count=0)),
        (1.0, FailureLimit(share=1.0)),
    ],
)
def test_a_limit_is_a_share_or_a_number(value, limit):
    assert parse_max_failed(value) == limit


@pytest.mark.parametrize("value", ["many", "120%", 1.5, -1, True, "nan"])
def test_other_limits_are_errors(value):
    with pytest.raises(ParameterError, match="`max_failed`"):
        parse_max_failed(value)


def test_by_default_a_tenth_of_the_rows_may_fail():
    assert Pipeline(numbers(100), fail_below(10)).run(**ISOLATE).failed == 10
    with pytest.raises(TooManyFailed, match=r"11 of 100 rows failed \(11.0 %\); `max_failed` allows 10 %"):
        Pipeline(numbers(100), fail_below(11)).run(**ISOLATE)


def test_a_share_is_not_applied_to_a_few_rows():
    assert Pipeline(numbers(99), fail_below(90)).run(**ISOLATE).failed == 90


def test_a_number_is_applied_to_any_number_of_rows():
    assert Pipeline(numbers(5), fail_below(2)).run(max_failed=2, **ISOLATE).failed == 2
    with pytest.raises(TooManyFailed):
        Pipeline(numbers(5), fail_below(2)).run(max_failed=1, **ISOLATE)


def test_a_mistake_that_fails_every_row_ends_the_run_before_it_is_through():
    watch = FailureWatch(FailureLimit(share=0.1))
    watch.begin(1, {}, [])
    error = ErrorCount("step", "KeyError: 'typo'", 9_000, "in:0", "KeyError")
    watch(PartitionProgress(0, 0, 0, 9_000, 1, (error,)))
    watch.check(output=None)  # not enough rows yet
    watch(PartitionProgress(0, 1, 0, 9_000, 1, ()))
    with pytest.raises(TooManyFailed, match="9,000 of 18,000 rows read so far failed"):
        watch.check(output=None)


def test_a_partition_in_progress_is_not_counted_twice():
    watch = FailureWatch(FailureLimit(count=5))
    errors = [ErrorCount("step", "KeyError: 'typo'", 4, "in:0", "KeyError")]
    watch(PartitionProgress(0, 0, 0, 10, 1, tuple(errors)))
    watch(PartitionCommitted(0, 0, Account(read=10, errors=errors).as_dict(), 1))
    watch.check(output=None, final=True)


def test_in_a_run_the_first_failed_row_is_enough_for_strict_and_later_partitions_are_not_read():
    seen = []

    def step(row):
        seen.append(row["n"])
        return {"m": row["typo"]}

    with pytest.raises(TooManyFailed):
        Pipeline(numbers(500), step).run(max_failed=0, **ISOLATE)
    assert max(seen) < 100


# ------------------------------------------------------------------------------------------------- resuming and reports


def test_work_stays_committed_and_a_rerun_reports_the_failures_again(tmp_path):
    pipeline = Pipeline(numbers(200), fail_below(30), JsonlWriter(tmp_path / "out"))
    for _ in range(2):
        with pytest.raises(TooManyFailed, match="30 of 200 rows failed"):
            pipeline.run(**ISOLATE)
    assert Report.load(tmp_path / "out").state == "failed"
    report = pipeline.run(max_failed="20%", **ISOLATE)
    assert (report.state, report.kept, report.failed, report.new_rows) == ("finished", 170, 30, 0)
    with pytest.raises(TooManyFailed):  # the output is complete, and this run allows less
        pipeline.run(**ISOLATE)


def test_damaged_files_obey_the_limit():
    damaged = {"in/a.gz": "EOFError: the file is truncated", "in/b.gz": "OSError: bad header"}
    watch = FailureWatch(FailureLimit(share=0.1))
    watch.begin(12, dict([*damaged.items()][:1]), [])
    watch.check(output=None, final=True)
    watch(PartitionCommitted(0, 0, Account(read=10, damaged_files=damaged).as_dict(), 1))
    with pytest.raises(TooManyFailed, match="2 of 12 input files are damaged; `max_failed` allows 10 %") as caught:
        watch.check(output=None)
    assert "in/b.gz: OSError: bad header" in caught.value.message


def test_a_report_names_damaged_files():
    text = str(Report(read=10, kept=10, damaged_files={"in/a.gz": "EOFError: the file is truncated"}))
    assert "1 damaged file, read as far as possible:\n  in/a.gz: EOFError: the file is truncated" in text


# ------------------------------------------------------------------------------------------------------ command line


@pytest.fixture
def half_broken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text('{"text": "one two three"}\n' * 60 + '{"text": broken\n' * 60)
    (tmp_path / "r.yaml").write_text("steps: [{word_count: {min_words: 1}}]")
    return ["run", "r.yaml", "--input", "in.jsonl", "--output", "out", "--executor", "inline", "--on-error", "isolate"]


def test_too_many_failed_rows_are_exit_code_3(half_broken, capsys):
    assert main(half_broken) == 3
    told = capsys.readouterr().err
    assert "error: 60 of 120 rows failed (50.0 %); `max_failed` allows 10 %" in told
    assert "60  `jsonl_reader`: " in told
    assert main([*half_broken, "--max-failed", "50%"]) == 0
    assert main([*half_broken, "--strict"]) == 3
    assert main([*half_broken, "--strict", "--max-failed", "9"]) == 2


def test_a_recipe_sets_the_limit_and_the_command_line_overrides_it(half_broken, tmp_path, capsys):
    (tmp_path / "r.yaml").write_text("max_failed: 60%\nsteps: [{word_count: {min_words: 1}}]")
    assert main(half_broken) == 0
    assert main([*half_broken, "--fresh", "--max-failed", "59"]) == 3
    (tmp_path / "r.yaml").write_text("steps: [{word_count: {min_words: 1}}]\nmax_failed: lots")
    assert main(half_broken) == 2
    assert "r.yaml, line 2, column 13: `max_failed` must be a share or a number, got 'lots'" in capsys.readouterr().err


def test_dedup_takes_the_same_limit(half_broken):
    command = ["dedup", "exact", "in.jsonl", "out", "--executor", "inline"]
    assert main([*command, "--strict"]) in (2, 3)


def test_check_finds_a_misspelt_key_of_alerts(half_broken, tmp_path, capsys):
    (tmp_path / "r.yaml").write_text("alerts: {budget_procent: [70, 90]}\nsteps: [{word_count: {min_words: 1}}]")
    assert main(["check", "r.yaml", "--input", "in.jsonl", "--output", "out"]) == 2
    told = capsys.readouterr().err
    assert "r.yaml, line 1, column 9: `alerts` has no setting `budget_procent`" in told
    assert "did you mean `budget_percent`?" in told


def test_a_truncated_file_is_a_damaged_file(tmp_path):
    (tmp_path / "in").mkdir()
    data = gzip.compress("".join(f'{{"n": {number}}}\n' for number in range(500)).encode())
    (tmp_path / "in" / "a.jsonl.gz").write_bytes(data[: len(data) // 2])
    (tmp_path / "in" / "b.jsonl.gz").write_bytes(data)
    steps = [JsonlReader(tmp_path / "in", files_per_partition=1), JsonlWriter(tmp_path / "out")]
    report = Pipeline(*steps).run(**ISOLATE)
    assert [path.rpartition("/")[2] for path in report.damaged_files] == ["a.jsonl.gz"]
    assert "1 damaged file, read as far as possible" in str(report)
    with pytest.raises(TooManyFailed, match="1 of 2 input files is damaged"):
        Pipeline(*steps).run(max_failed=0, **ISOLATE)
