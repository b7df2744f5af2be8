"""A stage after a Gather that reads the source again processes the rows that the Gather decided about, and no others."""

import json
import shutil

import pytest

from tamis import JsonlReader, JsonlWriter, ParquetWriter, Pipeline
from tamis.dedup import ExactDedup
from tamis.errors import SourceError
from tamis.events import PartitionCommitted, StageStarted

LITTLE, MUCH = "700MB", "2GB"
"""Memory with which a row of `LARGE_BYTES` fails, and with which it is read."""
LARGE_BYTES = 30_000_000


class Ended(Exception):
    """Ends a run at a certain event, as if the process was killed there."""


def end_at(event, stage, number=1):
    left = [number]

    def look(found):
        if isinstance(found, event) and found.stage == stage:
            left[0] -= 1
            if not left[0]:
                raise Ended

    return look


def write_rows(file, rows):
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def pairs(first=0):
    """Rows of which every second one is a duplicate of the one before."""
    return [{"id": first + n, "text": f"text {(first + n) // 2}", "n": n} for n in range(10)]


def run(job, **options):
    return job.run(executor="inline", on_error="isolate", max_failed="100%", **options)


def end(job, event=StageStarted, stage=1, number=1, **options):
    with pytest.raises(Ended):
        run(job, on_event=end_at(event, stage, number), **options)


def ids(output):
    return [json.loads(line)["id"] for file in sorted(output.glob("part-*")) for line in file.read_text().splitlines()]


@pytest.fixture
def folder(tmp_path):
    write_rows(tmp_path / "in/a.jsonl", pairs())
    return tmp_path


def job(folder, **writer):
    reader = JsonlReader(folder / "in", types={"n": "int64"}, files_per_partition=1)
    return Pipeline(reader, ExactDedup(), JsonlWriter(folder / "out", **writer))


@pytest.mark.parametrize(
    ("before", "after", "kept"), [(MUCH, LITTLE, [0, 2, 3, 4, 6, 8]), (LITTLE, MUCH, [0, 2, 4, 6, 8])]
)
def test_a_row_limit_of_another_memory_does_not_shift_decisions(folder, before, after, kept):
    rows = pairs()
    rows[3]["text"] = "x" * LARGE_BYTES
    write_rows(folder / "in/a.jsonl", rows)
    end(job(folder), memory=before)
    report = run(job(folder), memory=after)
    assert ids(folder / "out") == kept
    assert report.balances
    assert report.failed == (before == LITTLE)


@pytest.mark.parametrize("rejects", [True, False])
def test_rejects_that_are_requested_or_not_do_not_shift_decisions(folder, rejects):
    """With rejects all columns are read, and a row fails because of one that is not needed otherwise."""
    rows = pairs()
    rows[3]["n"] = "no number"
    write_rows(folder / "in/a.jsonl", rows)
    end(job(folder, fields=["id", "text"]), rejects=rejects)
    report = run(job(folder, fields=["id", "text"]), rejects=not rejects)
    assert ids(folder / "out") == [0, 2, 4, 6, 8]
    assert (report.read, report.failed, report.balances) == (10, 1, True)


def test_columns_that_are_needed_after_an_interruption_do_not_shift_decisions(folder):
    rows = pairs()
    rows[3]["n"] = "no number"
    write_rows(folder / "in/a.jsonl", rows)
    end(job(folder, fields=["id", "text"]))
    report = run(job(folder, fields=["id", "text", "n"]))
    assert ids(folder / "out") == [0, 2, 4, 6, 8]
    assert (report.read, report.failed, report.balances) == (10, 1, True)


def test_types_that_a_new_file_changes_do_not_shift_decisions(folder):
    def numbers(output):
        return Pipeline(JsonlReader(folder / "in", files_per_partition=1), ExactDedup(), ParquetWriter(output))

    long = [{"id": -n, "text": f"{n} " * 10_000, "n": None} for n in range(1, 60)]  # the sample has no number
    rows = pairs()
    rows[3]["n"] = "no number"
    write_rows(folder / "in/a.jsonl", [*long, *(row | {"n": row["n"] if row["id"] == 3 else None} for row in rows)])
    run(numbers(folder / "out"), keep_work=True)
    write_rows(folder / "in/0.jsonl", pairs(100))
    report, undisturbed = run(numbers(folder / "out"), keep_work=True), run(numbers(folder / "fresh"))
    assert (report.kept, report.dropped, report.failed) == (undisturbed.kept, undisturbed.dropped, undisturbed.failed)


@pytest.mark.parametrize("change", ["shorter", "other lines", "gone"])
def test_input_that_changes_between_the_stages_ends_the_run_and_the_next_one_reads_it(folder, change):
    write_rows(folder / "in/b.jsonl", pairs(100))
    file = folder / "in/a.jsonl"

    def edit(event):
        if isinstance(event, StageStarted) and event.stage == 1:
            if change == "gone":
                file.unlink()
            else:
                write_rows(file, pairs()[:7] if change == "shorter" else [row | {"id": 1000} for row in pairs()])

    with pytest.raises(SourceError, match=r"the input changed during the run: .*a\.jsonl has other rows"):
        run(job(folder), on_event=edit)
    report = run(job(folder))
    assert report.balances
    assert report.read == {"shorter": 17, "other lines": 20, "gone": 10}[change]


def test_a_file_that_grows_between_the_stages_is_read_up_to_its_size_before(folder):
    def append(event):
        if isinstance(event, StageStarted) and event.stage == 1:
            write_rows(folder / "in/a.jsonl", [*pairs(), *pairs(10)])

    assert run(job(folder), on_event=append).read == 10
    assert ids(folder / "out") == [0, 2, 4, 6, 8]


def test_decisions_made_with_other_rows_are_made_again(folder):
    """The facts are lost, and a row that failed before is read now: no row is a duplicate of one that is not written."""
    write_rows(folder / "in/a.jsonl", [{"id": 0, "text": "x" * LARGE_BYTES, "n": 0}, *pairs(2)])
    write_rows(folder / "in/b.jsonl", [{"id": 100, "text": "x" * LARGE_BYTES, "n": 0}, *pairs(2)])
    end(job(folder), PartitionCommitted, stage=1, memory=LITTLE)
    shutil.rmtree(folder / "out/.tamis/work")
    report = run(job(folder), memory=MUCH)
    assert ids(folder / "out") == [0, 2, 4, 6, 8, 10]
    assert (report.failed, report.balances) == (0, True)


def test_groups_of_an_interrupted_run_are_not_among_those_of_changed_input(folder):
    write_rows(folder / "in/b.jsonl", pairs(100))
    end(job(folder))
    end(job(folder), PartitionCommitted, stage=1)
    write_rows(folder / "in/a.jsonl", [{"id": 0, "text": "alone", "n": 0}])
    write_rows(folder / "in/b.jsonl", [{"id": 1, "text": "alone, too", "n": 0}])
    report = run(job(folder))
    assert report.kept == 2
    assert report.groups().table().num_rows == 0
