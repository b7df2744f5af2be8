"""An interrupted run resumes with the same rows; after a change, only the affected work is redone."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

from tamis import Gather, JsonlReader, JsonlWriter, ParquetWriter, Pipeline, operator
from tamis.dedup import ExactDedup
from tamis.errors import Interrupted, TamisError
from tamis.events import PartitionCommitted
from tamis.logs import format_line, parse_line
from tamis.sampling import Sample, Shuffle
from tamis.text.quality import WordCount


def make_input(folder, files=6, rows=400):
    folder.mkdir()
    generator = random.Random(1)
    for number in range(files):
        lines = [
            json.dumps({"id": f"{number}-{row}", "text": "word " * generator.randrange(40)}) for row in range(rows)
        ]
        (folder / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def contents(output):
    return {file.name: file.read_bytes() for file in sorted(output.glob("part-*"))}


def pipeline(source, output, **changes):
    return Pipeline(
        JsonlReader(source, files_per_partition=1),
        WordCount(min_words=changes.get("min_words", 10)),
        *([Sample(rows=200)] if changes.get("gather") else []),
        JsonlWriter(output),
    )


def run_counting(job, **options):
    done = []
    report = job.run(
        on_event=lambda e: done.append(e.partition) if isinstance(e, PartitionCommitted) else None, **options
    )
    return report, sorted(done)


class TestChanges:
    @pytest.fixture
    def finished(self, tmp_path):
        source = make_input(tmp_path / "in")
        pipeline(source, tmp_path / "out").run(executor="inline")
        return source, tmp_path / "out"

    def again(self, source, output, **changes):
        return run_counting(pipeline(source, output, **changes), executor="inline")

    def test_a_finished_output_is_left_alone(self, finished):
        before = contents(finished[1])
        report, done = self.again(*finished)
        assert (report.state, done) == ("unchanged", [])
        assert contents(finished[1]) == before
        assert report.read == 2400
        assert str(report).startswith("unchanged: nothing to do")
        assert repr(report).startswith("<Report unchanged>\nunchanged: nothing to do")

    def test_only_a_changed_file_is_redone(self, finished):
        source, output = finished
        (source / "3.jsonl").write_text('{"id": "new", "text": "' + "word " * 20 + '"}\n')
        report, done = self.again(source, output)
        assert done == [3]
        assert report.read == 2001
        assert report.notes == [f"1 input part changed: {source}/3.jsonl"]

    def test_a_file_edited_without_a_change_of_size_is_redone(self, finished):
        source, output = finished
        text = (source / "2.jsonl").read_text()
        (source / "2.jsonl").write_text(text.replace("word", "wort", 1))
        assert self.again(source, output)[1] == [2]

    def test_a_new_file_in_the_middle_renames_the_shards_of_the_others(self, finished, tmp_path):
        source, output = finished
        (source / "2b.jsonl").write_text('{"id": "new", "text": "' + "word " * 20 + '"}\n')
        report, done = self.again(source, output)
        assert done == [3]
        assert report.read == 2401
        pipeline(source, tmp_path / "undisturbed").run(executor="inline")
        assert contents(output) == contents(tmp_path / "undisturbed")

    def test_the_rows_of_a_removed_file_are_removed(self, finished, tmp_path):
        source, output = finished
        (source / "0.jsonl").unlink()
        report, done = self.again(source, output)
        assert done == []
        assert report.read == 2000
        pipeline(source, tmp_path / "undisturbed").run(executor="inline")
        assert contents(output) == contents(tmp_path / "undisturbed")

    def test_a_changed_parameter_redoes_everything_and_says_why(self, finished):
        report, done = self.again(*finished, min_words=20)
        assert done == [0, 1, 2, 3, 4, 5]
        assert report.notes == ["step 2, `word_count`: min_words was 10, is 20"]

    def test_a_lost_shard_is_redone(self, finished):
        source, output = finished
        before = contents(output)
        (output / "part-000004.jsonl").unlink()
        assert self.again(source, output)[1] == [4]
        assert contents(output) == before

    def test_a_damaged_ledger_costs_work_not_rows(self, finished):
        source, output = finished
        before = contents(output)
        ledger = output / ".tamis" / "ledger.log"
        data = bytearray(ledger.read_bytes())
        for position in range(200, len(data), 2500):
            data[position] ^= 0xFF
        ledger.write_bytes(data)
        _, done = self.again(source, output)
        assert done
        assert contents(output) == before

    def test_fresh_starts_over(self, finished):
        source, output = finished
        _, done = run_counting(pipeline(source, output), executor="inline", fresh=True)
        assert done == [0, 1, 2, 3, 4, 5]

    def test_other_memory_and_workers_do_not_matter(self, finished):
        source, output = finished
        report = pipeline(source, output).run(memory="1GB", workers=1)
        assert report.state == "unchanged"

    def test_an_unrecorded_shard_is_removed(self, finished):
        source, output = finished
        before = contents(output)
        (output / "part-000099.jsonl").write_text("{}\n")
        self.again(source, output)
        assert contents(output) == before

    def test_a_hand_written_ledger_removes_no_file_of_the_user(self, finished, tmp_path):
        source, output = finished
        before = contents(output)
        outside = tmp_path / "outside"
        outside.mkdir()
        for folder in (outside, output):
            (folder / "mine.txt").write_text("precious")
        (output / "link").symlink_to(outside)
        ledger = output / ".tamis" / "ledger.log"
        records = [parse_line(line) for line in ledger.read_bytes().splitlines()]
        commit = next(record for record in records if record["kind"] == "commit")
        for name in (".", "./", "", "mine.txt", "link", "link/mine.txt", "../outside/mine.txt"):
            stale = commit | {"key": f"stale {name}", "shards": [commit["shards"][0] | {"name": name}]}
            with ledger.open("ab") as file:
                file.write(format_line(stale))
        report, done = self.again(source, output)
        assert done == []
        assert report.notes == ["7 damaged lines of the ledger ignored; the partitions concerned are redone"]
        assert contents(output) == before
        assert [(folder / "mine.txt").read_text() for folder in (outside, output)] == ["precious", "precious"]

    def test_scores_are_written_when_a_finished_run_is_repeated_with_scores(self, finished):
        source, output = finished
        report, done = run_counting(pipeline(source, output), executor="inline", scores=True)
        assert done == [0, 1, 2, 3, 4, 5]
        assert report.notes == ["scores are requested, and were not kept before"]
        assert len(list((output / ".tamis" / "scores").iterdir())) == 6
        assert run_counting(pipeline(source, output), executor="inline")[0].state == "unchanged"


@operator(version=1)
class DropForTests(Gather):
    """Drops the first rows of each partition: as many as `CALL` says."""

    def observe(self, batch):
        return {"row": np.arange(len(batch))}

    def resolve(self, observed, decide, work):
        dropped = work.map("count", CALL[0], [(observed.num_rows(number),) for number in range(len(observed))])
        for number, count in enumerate(dropped):
            decide(number, np.arange(observed.num_rows(number)) < count, "first rows")


CALL: list = []  # not part of the identity of the step, whose version is set by hand


def gathering(source, output):
    return Pipeline(
        JsonlReader(source, files_per_partition=1), WordCount(min_words=10), DropForTests(), JsonlWriter(output)
    )


def test_fresh_forgets_the_results_of_an_interrupted_gather(tmp_path):
    source = make_input(tmp_path / "in", files=2)

    def all_rows_then_stop(rows):
        if len(calls) == 1:
            raise KeyboardInterrupt
        calls.append(rows)
        return rows

    calls: list = []
    CALL[:] = [all_rows_then_stop]
    with pytest.raises(KeyboardInterrupt):
        gathering(source, tmp_path / "out").run(executor="inline")
    CALL[:] = [lambda rows: 1]
    report = gathering(source, tmp_path / "out").run(executor="inline", fresh=True)
    assert report.dropped["first rows"] == 2  # and not all rows of the first partition


@pytest.mark.parametrize("keep_work", [False, True])
def test_after_a_gather_only_an_added_file_is_observed_if_work_is_kept(tmp_path, keep_work):
    source = make_input(tmp_path / "in", files=3)
    CALL[:] = [lambda rows: 1]
    gathering(source, tmp_path / "out").run(executor="inline", keep_work=keep_work, rejects=True)
    (source / "0b.jsonl").write_text((source / "2.jsonl").read_text().replace("word", "wort"))
    stages = []
    report = gathering(source, tmp_path / "out").run(
        executor="inline",
        keep_work=keep_work,
        rejects=True,
        on_event=lambda e: stages.append((e.stage, e.partition)) if isinstance(e, PartitionCommitted) else None,
    )
    later = [(1, 0), (1, 1), (1, 2), (1, 3)]
    assert stages == ([(0, 1)] if keep_work else [(0, 0), (0, 1), (0, 2), (0, 3)]) + later
    assert report.read == 1600
    undisturbed = gathering(source, tmp_path / "undisturbed").run(executor="inline", rejects=True)
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")
    assert (report.kept, report.dropped) == (undisturbed.kept, undisturbed.dropped)
    rejects = [
        {file.name: pq.ParquetFile(file).read().to_pylist() for file in (tmp_path / name / ".tamis/rejects").iterdir()}
        for name in ("out", "undisturbed")
    ]
    assert rejects[0] == rejects[1]
    assert (tmp_path / "out/.tamis/work").exists() == keep_work
    assert not [*(tmp_path / "out/.tamis").rglob("*.arrow"), *(tmp_path / "out/.tamis").rglob("*.fates*")]


@pytest.mark.parametrize("step", [Sample(rows=5), ExactDedup(), Shuffle()])
def test_facts_of_rows_that_were_removed_are_not_used_again(tmp_path, step):
    """A partition without rows writes no facts, so those of an earlier run must not stay in their place."""
    source = make_input(tmp_path / "in", files=3)

    def job(output):
        pipeline = Pipeline(JsonlReader(source, files_per_partition=1), step, JsonlWriter(tmp_path / output))
        return pipeline.run(executor="inline", keep_work=True)

    job("out")
    (source / "1.jsonl").write_text("")
    report, undisturbed = job("out"), job("undisturbed")
    assert (report.read, report.kept, report.dropped) == (undisturbed.read, undisturbed.kept, undisturbed.dropped)
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


@pytest.mark.parametrize("interrupted", [False, True])
@pytest.mark.parametrize("step", [ExactDedup(), Shuffle()])
def test_files_given_in_another_order_are_decided_about_again(tmp_path, step, interrupted):
    """Of duplicates the first in source order is kept, and a shuffle divides all rows among the partitions."""
    source = make_input(tmp_path / "in", files=2, rows=50)

    def job(output, *names):
        reader = JsonlReader([source / name for name in names], files_per_partition=1)
        return Pipeline(reader, step, JsonlWriter(tmp_path / output))

    def end(event):
        if interrupted and isinstance(event, PartitionCommitted) and event.stage == 1:
            raise Interrupted("")

    with contextlib.suppress(Interrupted):
        job("out", "0.jsonl", "1.jsonl").run(executor="inline", on_event=end)
    job("out", "1.jsonl", "0.jsonl").run(executor="inline")
    job("undisturbed", "1.jsonl", "0.jsonl").run(executor="inline")
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


SCRIPT = """
import sys
from tamis import JsonlReader, JsonlWriter, Pipeline
from tamis.logs import format_line, parse_line
from tamis.sampling import Sample, Shuffle
from tamis.text.quality import WordCount
source, output, gather = sys.argv[1:]
steps = [JsonlReader(source, blocksize="4kB"), WordCount(min_words=10), *([Sample(rows=200)] if gather == "yes" else [])]
Pipeline(*steps, JsonlWriter(output)).run(workers=2)
"""


def start(source, output, gather):
    command = [sys.executable, "-c", SCRIPT, str(source), str(output), gather]
    return subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def descendants(pid):
    import psutil

    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def kill_tree(process):
    """Kill the driver and all its descendants with SIGKILL."""
    below = descendants(process.pid)
    for victim in [process, *below]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim.pid, signal.SIGKILL)
    process.wait()
    process.stderr.close()


def lines_in_ledger(output):
    ledger = output / ".tamis" / "ledger.log"
    return ledger.read_bytes().count(b"\n") if ledger.exists() else 0


def kill_after(process, output, records, extra_s):
    """Kill the run `extra_s` after `records` more records are in the ledger; return whether it was still running."""
    target = lines_in_ledger(output) + records
    while lines_in_ledger(output) < target:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.002)
            process.stderr.close()
            return False
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=extra_s)
    kill_tree(process)
    return True


@pytest.mark.slow
@pytest.mark.parametrize("gather", ["no", "yes"])
def test_killed_at_random_moments_gives_the_same_rows(tmp_path, gather):
    source = make_input(tmp_path / "in", files=5, rows=500)
    undisturbed = start(source, tmp_path / "undisturbed", gather)
    assert undisturbed.wait() == 0, undisturbed.stderr.read()
    undisturbed.stderr.close()
    generator = random.Random(gather)
    kills = 0
    for _ in range(10):
        process = start(source, tmp_path / "out", gather)
        kills += kill_after(process, tmp_path / "out", generator.randrange(12), generator.uniform(0.001, 0.02))
    last = start(source, tmp_path / "out", gather)
    assert last.wait() == 0, last.stderr.read()
    last.stderr.close()
    assert kills >= 5
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")
    reports = [json.loads((tmp_path / name / ".tamis" / "report.json").read_text()) for name in ("out", "undisturbed")]
    for key in ("read", "kept", "dropped", "failed"):
        assert reports[0][key] == reports[1][key]
    assert reports[0]["read"] == 2500


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_stops_cleanly_and_the_same_command_resumes(tmp_path, times):
    source = make_input(tmp_path / "in")
    pipeline(source, tmp_path / "undisturbed").run()

    def interrupt(event):
        if isinstance(event, PartitionCommitted) and event.partition == 2:
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match=r"stopped: [2345] of 6 partitions committed"):
        pipeline(source, tmp_path / "out").run(on_event=interrupt, workers=2)
    assert not [path for path in (tmp_path / "out" / ".tamis" / "tmp").iterdir() if times == 1]
    assert json.loads((tmp_path / "out" / ".tamis" / "report.json").read_text())["state"] == "interrupted"
    report, done = run_counting(pipeline(source, tmp_path / "out"))
    assert 1 <= len(done) <= 4
    assert report.state == "finished"
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


def test_workers_die_with_a_killed_driver(tmp_path):
    source = make_input(tmp_path / "in", files=30, rows=1000)
    process = start(source, tmp_path / "out", "no")
    below = []
    while process.poll() is None and len(below) < 3:  # the server and two workers
        below = descendants(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stderr.close()
    for child in below:
        child.wait(timeout=30)
    assert len(below) >= 3


def test_another_format_replaces_the_shards_of_the_first(tmp_path):
    source = make_input(tmp_path / "in", files=2)
    pipeline(source, tmp_path / "out").run(executor="inline")
    Pipeline(JsonlReader(source), ParquetWriter(tmp_path / "out")).run(executor="inline")
    assert {path.suffix for path in (tmp_path / "out").glob("part-*")} == {".parquet"}


@pytest.mark.parametrize("steps", [[Sample(rows=50)], [Shuffle()], []])
def test_groups_of_a_deduplication_that_is_no_longer_a_step_are_removed(tmp_path, steps):
    source = make_input(tmp_path / "in", files=1)

    def job(*between):
        return Pipeline(JsonlReader(source), *between, JsonlWriter(tmp_path / "out")).run(executor="inline")

    assert job(ExactDedup()).groups().table().num_rows
    report = job(*steps)
    with pytest.raises(TamisError, match="there are no groups of duplicates"):
        report.groups()


@pytest.mark.parametrize("compression", [None, "gz"])
def test_overwriting_a_folder_replaces_files_of_its_format_whatever_their_compression(tmp_path, compression):
    source = make_input(tmp_path / "in", files=1)
    (tmp_path / "out").mkdir()
    for name in ("old.jsonl", "old.jsonl.gz", "old.jsonl.zst", "notes.txt.gz"):
        (tmp_path / "out" / name).write_bytes(b"")
    writer = JsonlWriter(tmp_path / "out", compression=compression, mode="overwrite")
    Pipeline(JsonlReader(source), writer).run(executor="inline")
    shard = f"part-000000{writer.file_suffix}"
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [".tamis", "notes.txt.gz", shard]
