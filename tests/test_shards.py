"""Shards: several drivers that do one run together give the rows, files and account of a run without them."""

import json
import os
import platform
import random
import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa
import pytest

from tamis import JsonlReader, JsonlWriter, ParquetWriter, Pipeline, Rows
from tamis.console import summary_text
from tamis.dedup import ExactDedup, FuzzyDedup
from tamis.errors import LedgerError, ParameterError, ShardsMissing, ShardsRunning, TooManyFailed
from tamis.events import Note, PartitionCommitted
from tamis.executors import resume
from tamis.executors.merging import merge
from tamis.ledger import Ledger
from tamis.operators import Expand, operator
from tamis.report import Report
from tamis.sampling import Sample
from tamis.shards import ShardLedger, parse_shard
from tamis.store import Store
from tamis.text.quality import WordCount
from tamis.verification import verify

WORDS = ["eins", "zwei", "drei", "vier", "fünf"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Seven files, so seven partitions; the last has a column and a type that the others have not."""
    folder = tmp_path_factory.mktemp("source")
    generator = random.Random(5)
    for number in range(7):
        rows = []
        for row in range(40):
            text = " ".join(generator.choices(WORDS, k=generator.randrange(9)))
            value = row + 0.5 if number == 6 else row
            rows.append(
                {"id": f"{number}-{row}", "text": text, "value": value} | ({"more": "x"} if number == 6 else {})
            )
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def breaks_on_some(row):
    if row["id"].endswith("-17"):
        raise RuntimeError("row 17")
    return {"length": len(row["text"])}


@operator(reads="text", writes="text")
class Halves(Expand):
    """Replace each row by two, with half of the text each."""

    def expand(self, batch):
        texts = batch["text"].to_pylist()
        parts = [part for text in texts for part in (text[: len(text) // 2], text[len(text) // 2 :])]
        return pa.table({"text": pa.array(parts, pa.string())}), np.repeat(np.arange(len(texts)), 2)


MIDDLES = {
    "filters": [WordCount(min_words=3), breaks_on_some],
    "exact": [WordCount(min_words=2), ExactDedup()],
    "fuzzy after a change": [breaks_on_some, FuzzyDedup(ngram=2)],
    "two gathers": [ExactDedup(), WordCount(min_words=2), Sample(rows=60)],
}


def job(source, output, middle=(), writer=JsonlWriter):
    return Pipeline(JsonlReader(source, files_per_partition=1), *middle, writer(output))


def run(source, output, middle=(), writer=JsonlWriter, **options):
    settings = {"executor": "inline", "on_error": "isolate", "rejects": True, "max_failed": "100%", "shard_wait": 0}
    return job(source, output, middle, writer).run(**settings | options)


def account(report):
    steps = [
        {k: op[k] for k in ("name", "rows_in", "rows_out", "dropped", "failed", "created")} for op in report.operators
    ]
    return report.read, report.created, report.kept, report.dropped, report.failed, report.errors, steps


def contents(output):
    """All files of an output that a user may read, apart from times."""
    kept = [*output.glob("part-*"), *(output / ".tamis/rejects").glob("*"), *(output / ".tamis/failed").glob("*")]
    return {str(file.relative_to(output)): file.read_bytes() for file in sorted(kept)}


def assert_same(output, report, expected_output, expected_report):
    assert report.state == "finished"
    assert report.balances
    assert account(report) == account(expected_report)
    assert contents(output) == contents(expected_output)
    assert verify(output).ok
    assert not [*(output / ".tamis/tmp").iterdir()]
    assert not (output / ".tamis/shards").exists()
    assert not (output / ".tamis/work").exists()


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("middle", MIDDLES)
def test_shards_in_sequence_give_the_files_and_the_account_of_one_run(source, tmp_path, middle, count):
    expected = run(source, tmp_path / "one", MIDDLES[middle])
    reports = [run(source, tmp_path / "out", MIDDLES[middle], shard=f"{n}/{count}") for n in range(1, count + 1)]
    assert [report.state for report in reports] == ["shard"] * (count - 1) + ["finished"]
    assert_same(tmp_path / "out", reports[-1], tmp_path / "one", expected)
    assert account(Report.load(tmp_path / "out")) == account(expected)
    assert run(source, tmp_path / "out", MIDDLES[middle], shard=f"1/{count}").state == "unchanged"
    assert run(source, tmp_path / "out", MIDDLES[middle]).state == "unchanged"


def test_rows_that_expand_and_files_that_differ_in_their_columns(source, tmp_path):
    middle = [Halves(), ExactDedup()]
    expected = run(source, tmp_path / "one", middle, ParquetWriter)
    for number in (2, 1, 3):
        report = run(source, tmp_path / "out", middle, ParquetWriter, shard=f"{number}/3")
    assert report.created > 0
    assert_same(tmp_path / "out", report, tmp_path / "one", expected)


def test_more_shards_than_partitions(tmp_path):
    rows = Rows([{"n": n} for n in range(4)], rows_per_partition=2)
    for number in range(1, 5):
        report = Pipeline(rows, JsonlWriter(tmp_path / "out")).run(executor="inline", shard=f"{number}/4")
    assert (report.state, report.kept) == ("unchanged", 4)


def together(jobs):
    """Run functions at the same time; returns their results."""
    results = [None] * len(jobs)

    def call(number):
        results[number] = jobs[number]()

    threads = [threading.Thread(target=call, args=(number,)) for number in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_shards_at_the_same_time_wait_for_each_other_at_a_gather(source, tmp_path):
    middle = MIDDLES["two gathers"]
    expected = run(source, tmp_path / "one", middle)
    reports = together(
        [lambda n=n: run(source, tmp_path / "out", middle, shard=f"{n}/3", shard_wait=600) for n in (1, 2, 3)]
    )
    states = sorted(report.state for report in reports)
    assert states in (["finished", "shard", "shard"], ["finished", "finished", "shard"], ["finished"] * 3)
    report = next(report for report in reports if report.state == "finished")
    assert_same(tmp_path / "out", report, tmp_path / "one", expected)
    assert [shard["shard"] for shard in Report.load(tmp_path / "out").shards] == [1, 2, 3]


RECIPE = """
steps:
  - jsonl_reader: {file_paths: SOURCE, files_per_partition: 1}
  - word_count: {min_words: 2}
  - exact_dedup: {}
  - jsonl_writer: {path: OUTPUT}
"""


def command(*arguments):
    return [sys.executable, "-m", "tamis", *map(str, arguments)]


@pytest.mark.slow
def test_processes_at_the_same_time(source, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.replace("SOURCE", str(source)).replace("OUTPUT", str(tmp_path / "out")))
    expected = run(source, tmp_path / "one", MIDDLES["exact"], rejects=False)
    shards = [
        subprocess.Popen(
            command("run", recipe, "--shard", f"{n}/3", "--memory", "1GB", "--workers", "1", "--quiet"),
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in (1, 2, 3)
    ]
    ends = [(shard.communicate()[1], shard.returncode) for shard in shards]
    assert [code for _, code in ends] == [0, 0, 0], ends
    merged = subprocess.run(command("merge", tmp_path / "out", "--json"), capture_output=True, text=True, check=True)
    assert json.loads(merged.stdout)["state"] == "unchanged"
    assert_same(tmp_path / "out", Report.load(tmp_path / "out"), tmp_path / "one", expected)


# ------------------------------------------------------------------------------------------------------- kills and stops

KILLS = """
import os, random, signal, sys
from pathlib import Path
import pyarrow.parquet, pyarrow.dataset, tamis.dedup.exact, tamis.executors.inline
from tamis import JsonlReader, JsonlWriter, Pipeline
from tamis.dedup import ExactDedup
from tamis.executors.merging import merge
from tamis.exchange import FolderExchange
from tamis.logs import Log
from tamis.report import Report
from tamis.store import Store
from tamis.text.quality import WordCount

source, folder, rounds, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
random.seed(seed)

def kill_at(number):
    # Dies before or after the operation of this number that others can see.
    left = [number]
    def counted(plain):
        def call(*arguments, **options):
            left[0] -= 1
            if left[0] == 0 and number % 2:
                os.kill(os.getpid(), signal.SIGKILL)
            result = plain(*arguments, **options)
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result
        return call
    for owner, name in ((Log, "append"), (Log, "remove"), (Store, "publish"), (Store, "remove"), (Store, "remove_folder"),
                        (FolderExchange, "publish_draft"), (FolderExchange, "delete")):
        setattr(owner, name, counted(getattr(owner, name)))

def run(output, shard=None, kill=0):
    return os.waitpid(start(output, shard, kill), 0)[1]

def start(output, shard, kill):
    child = os.fork()
    if not child:
        try:
            if kill:
                kill_at(kill)
            Pipeline(
                JsonlReader(source, files_per_partition=1), WordCount(min_words=2), ExactDedup(), JsonlWriter(output)
            ).run(executor="inline", shard=shard, shard_wait=0)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}".encode())
            os._exit(1)
        os._exit(0)
    return child

def files(output):
    return {path.name: path.read_bytes() for path in sorted(output.glob("part-*"))}

assert run(folder / "one") == 0
expected, account = files(folder / "one"), Report.load(folder / "one")
killed = 0
for number in range(rounds):
    output = folder / f"out-{number}"
    order = random.sample([1, 2, 3], 3)
    kills = [random.randrange(1, 45) if random.random() < 0.6 else 0 for _ in order]
    if number % 2:  # at the same time
        children = [start(output, f"{shard}/3", kill) for shard, kill in zip(order, kills)]
        ends = [os.waitpid(child, 0)[1] for child in children]
    else:
        ends = [run(output, f"{shard}/3", kill) for shard, kill in zip(order, kills)]
    killed += ends.count(signal.SIGKILL)
    assert set(ends) <= {0, signal.SIGKILL}, (number, ends)
    for shard in order:
        assert run(output, f"{shard}/3") == 0
    report = Report.load(output)
    assert files(output) == expected, number
    assert (report.read, report.kept, report.dropped) == (account.read, account.kept, account.dropped), number
    assert report.balances and report.state == "finished"
    assert not (output / ".tamis/shards").exists() and not (output / ".tamis/work").exists(), number
print(killed)
"""


@pytest.mark.slow
def test_kill_9_at_any_moment_of_any_shard_costs_no_row(source, tmp_path):
    """Each round kills some of three shards at random operations; those that follow take over, and a rerun completes."""
    done = subprocess.run(
        [sys.executable, "-c", KILLS, str(source), str(tmp_path), os.environ.get("TAMIS_SHARD_ROUNDS", "6"), "7"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 3


def stops_after(partitions):
    """An event handler that ends a run as if its process had been killed, without cleaning up."""
    seen = []

    def hear(event):
        seen.append(event) if isinstance(event, PartitionCommitted) else None
        if len(seen) == partitions:
            raise Killed

    return hear


class Killed(BaseException):
    """Not handled anywhere."""


def test_a_shard_that_was_killed_is_taken_over_by_the_next_one_and_its_rerun_has_nothing_left_to_do(source, tmp_path):
    expected = run(source, tmp_path / "one", MIDDLES["filters"])
    with pytest.raises(Killed):
        run(source, tmp_path / "out", MIDDLES["filters"], shard="1/2", on_event=stops_after(1))
    notes = []
    report = run(
        source,
        tmp_path / "out",
        MIDDLES["filters"],
        shard="2/2",
        on_event=lambda event: notes.append(event.text) if isinstance(event, Note) else None,
    )
    assert "shard 2/2: doing the work of shard 1, which nobody works on" in notes
    assert_same(tmp_path / "out", report, tmp_path / "one", expected)


def test_a_rerun_of_a_killed_shard_reads_only_what_is_missing(source, tmp_path):
    with pytest.raises(Killed):
        run(source, tmp_path / "out", shard="1/2", on_event=stops_after(3))
    report = run(source, tmp_path / "out", shard="1/2")
    assert (report.state, report.read, report.new_rows) == ("shard", 160, 40)


@pytest.mark.parametrize("middle", ["exact", "two gathers"])
def test_what_shards_wrote_before_a_power_failure_is_made_again(source, tmp_path, middle, monkeypatch):
    """The logs are synced and the files between the stages are not: after a restart they may be there, and empty."""
    expected = run(source, tmp_path / "one", MIDDLES[middle])
    for shard in ("1/2", "2/2"):
        with pytest.raises(Killed):
            run(source, tmp_path / "out", MIDDLES[middle], shard=shard, on_event=stops_after(3))
    work = tmp_path / "out" / ".tamis" / "work"
    for blob in [path for path in work.rglob("*") if path.is_file() and path != work / "system"]:
        blob.write_bytes(b"")
    monkeypatch.setattr(resume, "BOOT_ID", tmp_path / "boot_id")
    resume.BOOT_ID.write_text("another")
    report = run(source, tmp_path / "out", MIDDLES[middle], shard="2/2")
    assert_same(tmp_path / "out", report, tmp_path / "one", expected)


def test_a_shard_on_which_a_driver_died_that_took_it_over_is_left_alone(source, tmp_path):
    for shard in ("1/3", "2/3"):
        with pytest.raises(Killed):
            run(source, tmp_path / "out", shard=shard, on_event=stops_after(3 if shard == "2/3" else 1))
    report = run(source, tmp_path / "out", shard="3/3")
    assert report.state == "shard"
    with pytest.raises(ShardsMissing, match=r"1 of 3 shards are not complete\nshard 1: ended without a word"):
        merge(tmp_path / "out")
    assert run(source, tmp_path / "out", shard="1/3").state == "finished"


def test_a_run_without_shards_finishes_what_shards_have_begun(source, tmp_path):
    expected = run(source, tmp_path / "one", MIDDLES["exact"])
    run(source, tmp_path / "out", MIDDLES["exact"], shard="2/3")
    report = run(source, tmp_path / "out", MIDDLES["exact"])
    assert report.new_rows == 280 - 80
    assert_same(tmp_path / "out", report, tmp_path / "one", expected)


# ----------------------------------------------------------------------------------------------------------- merging


def test_merge_names_shards_that_failed_or_were_never_started(source, tmp_path):
    with pytest.raises(TooManyFailed):
        run(source, tmp_path / "out", MIDDLES["filters"], shard="1/4", max_failed=0)
    run(source, tmp_path / "out", MIDDLES["filters"], shard="2/4")
    with pytest.raises(ShardsMissing) as caught:
        merge(tmp_path / "out")
    lines = caught.value.message.splitlines()
    assert lines[0] == "3 of 4 shards are not complete"
    assert lines[1].startswith("shard 1: failed on ")
    assert lines[1].endswith("2 partitions missing: 1 of 40 rows read so far failed (2.5 %); `max_failed` allows 0")
    assert lines[2:] == ["shard 3: not started, 2 partitions missing", "shard 4: not started, 1 partition missing"]
    assert "--shard 1/4" in caught.value.hint
    done = subprocess.run(command("merge", tmp_path / "out"), capture_output=True, text=True, check=False)
    assert (done.returncode, "shard 4: not started" in done.stderr) == (4, True)


def test_a_shard_that_ended_with_an_error_is_not_taken_over(source, tmp_path):
    def broken(row):
        raise RuntimeError("a mistake")

    with pytest.raises(RuntimeError, match="a mistake"):
        run(source, tmp_path / "out", [broken], shard="1/2", on_error="raise")
    with pytest.raises(RuntimeError, match="a mistake"):
        run(source, tmp_path / "out", [broken], shard="2/2", on_error="raise")
    with pytest.raises(ShardsMissing) as caught:
        merge(tmp_path / "out")
    assert [line.rpartition(": ")[0] for line in caught.value.message.splitlines()[1:]] == [
        f"shard 1: failed on {platform.node()}, 4 partitions missing: RuntimeError",
        f"shard 2: failed on {platform.node()}, 3 partitions missing: RuntimeError",
    ]


def test_the_limit_of_failures_applies_to_the_whole_run(tmp_path):
    """All failing rows are in one shard: more than its share, and less than that of all rows."""
    rows = Rows([{"id": f"-{17 if n < 15 else 0}", "text": ""} for n in range(400)], rows_per_partition=100)
    for number in (1, 2, 3, 4):
        pipeline = Pipeline(rows, breaks_on_some, JsonlWriter(tmp_path / "out"))
        report = pipeline.run(executor="inline", on_error="isolate", shard=f"{number}/4", max_failed="10%")
    assert (report.state, report.failed) == ("finished", 15)
    strict = Pipeline(rows, breaks_on_some, JsonlWriter(tmp_path / "strict"))
    for number in (1, 2, 3):
        strict.run(executor="inline", on_error="isolate", shard=f"{number}/4", max_failed="3%")
    with pytest.raises(TooManyFailed, match="15 of 400 rows failed"):
        strict.run(executor="inline", on_error="isolate", shard="4/4", max_failed="3%")
    assert merge(tmp_path / "strict", max_failed="5%").state == "finished"


def test_merge_publishes_a_part_and_closes_the_run(source, tmp_path):
    run(source, tmp_path / "out", writer=ParquetWriter, shard="3/4")
    report = merge(tmp_path / "out", partial=True)
    assert (report.state, report.read, report.kept, report.balances) == ("interrupted", 80, 80, True)
    assert report.notes == [
        "shard 1: not started, 2 partitions missing",
        "shard 2: not started, 2 partitions missing",
        "shard 4: not started, 1 partition missing",
    ]
    assert sorted(file.name for file in (tmp_path / "out").glob("part-*")) == [
        "part-000002.parquet",
        "part-000006.parquet",
    ]
    assert verify(tmp_path / "out").ok
    report = run(source, tmp_path / "out", writer=ParquetWriter, shard="1/1")
    assert (report.state, report.kept) == ("finished", 280)


def test_merge_says_how_many_rows_wait_for_a_gather(source, tmp_path):
    run(source, tmp_path / "out", MIDDLES["exact"], shard="3/4")
    report = merge(tmp_path / "out", partial=True)
    waiting = report.read - report.failed - sum(report.dropped.values())
    assert (report.kept, report.balances) == (0, False)
    assert report.notes[-1] == (
        f"not in the output: {waiting} rows that a step can decide about only with those of all shards"
    )
    assert waiting > 0
    for note in report.notes:
        assert f"note: {note}" in summary_text(report).replace("\n  ", " ")


def test_merge_finishes_if_the_last_shard_was_killed_before_it_could(source, tmp_path, monkeypatch):
    expected = run(source, tmp_path / "one", MIDDLES["two gathers"], ParquetWriter)
    monkeypatch.setattr("tamis.pipeline.merge_if_last", lambda run, emit: None)
    run(source, tmp_path / "out", MIDDLES["two gathers"], ParquetWriter, shard="1/1")
    report = merge(tmp_path / "out")
    assert_same(tmp_path / "out", report, tmp_path / "one", expected)
    assert merge(tmp_path / "out").state == "unchanged"


def test_merge_of_other_folders(source, tmp_path):
    with pytest.raises(LedgerError, match="there is no ledger"):
        merge(tmp_path)
    with pytest.raises(Killed):
        run(source, tmp_path / "out", on_event=stops_after(2))
    with pytest.raises(LedgerError, match="is not finished, and has no shards"):
        merge(tmp_path / "out")


# ---------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("text", ["0/4", "5/4", "x", "3", "-1/4", "1/0", "1.5/4", "1/4/2", "", "1/999999999"])
def test_a_shard_must_be_a_number_and_a_count(text, tmp_path):
    with pytest.raises(ParameterError, match="shard"):
        parse_shard(text)
    with pytest.raises(ParameterError):
        Pipeline(Rows([{"n": 1}]), JsonlWriter(tmp_path / "out")).run(shard=text)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "options", [{"fresh": True}, {"on_overflow": "sample"}, {"shard_wait": -1}, {"shard_wait": float("nan")}]
)
def test_options_that_shards_cannot_have(tmp_path, options):
    with pytest.raises(ParameterError):
        Pipeline(Rows([{"n": 1}]), JsonlWriter(tmp_path)).run(shard="1/2", **options)
    with pytest.raises(ParameterError, match="need an output folder"):
        Pipeline(Rows([{"n": 1}])).run(shard="1/2")


def test_a_shard_with_other_settings_is_refused(source, tmp_path):
    run(source, tmp_path / "out", [WordCount(min_words=3)], shard="1/2")
    with pytest.raises(LedgerError, match="step 2, `word_count`: min_words was 3, is 4"):
        run(source, tmp_path / "out", [WordCount(min_words=4)], shard="2/2")
    with pytest.raises(LedgerError, match="rejected rows were requested, and are not"):
        run(source, tmp_path / "out", [WordCount(min_words=3)], shard="2/2", rejects=False)
    with pytest.raises(LedgerError, match="has 2 shards, and this is shard 2/3"):
        run(source, tmp_path / "out", [WordCount(min_words=3)], shard="2/3")
    with pytest.raises(LedgerError, match="the exchange was"):
        run(source, tmp_path / "out", [WordCount(min_words=3)], shard="2/2", exchange=str(tmp_path / "elsewhere"))
    assert run(source, tmp_path / "out", [WordCount(min_words=3)], shard="2/2").state == "finished"


def test_a_shard_with_another_input_is_refused(source, tmp_path):
    inputs = tmp_path / "in"
    inputs.mkdir()
    for file in source.iterdir():
        (inputs / file.name).write_bytes(file.read_bytes())
    run(inputs, tmp_path / "out", shard="1/2")
    (inputs / "7.jsonl").write_text('{"id": "new", "text": "new"}\n')
    with pytest.raises(LedgerError, match=r"1 input part new: .*7\.jsonl"):
        run(inputs, tmp_path / "out", shard="2/2")


def test_a_step_that_cannot_be_compared_between_shards_is_refused(source, tmp_path):
    lock = threading.Lock()

    def opaque(row):
        with lock:
            return True

    run(source, tmp_path / "out", [opaque], shard="1/2")
    with pytest.raises(LedgerError, match="cannot be compared between runs"):
        run(source, tmp_path / "out", [opaque], shard="2/2")


def test_two_drivers_of_the_same_shard_are_refused(source, tmp_path):
    run(source, tmp_path / "out", shard="1/3")
    with ShardLedger(Store(str(tmp_path / "out")), parse_shard("2/3")) as ledger:
        assert ledger.join() is None
        with pytest.raises(LedgerError, match=rf"shard 2/3 is running already \(process {os.getpid()} on "):
            run(source, tmp_path / "out", shard="2/3")
        with pytest.raises(ShardsRunning, match=r"shard 2/3 of the run in .* is running"):
            run(source, tmp_path / "out")
        with pytest.raises(ShardsRunning):
            merge(tmp_path / "out")
        assert run(source, tmp_path / "out", shard="3/3").state == "shard"
    assert run(source, tmp_path / "out", shard="2/3").state == "finished"


def test_a_shard_waits_while_another_one_does_its_work(source, tmp_path):
    """Also if the other one takes the lock after this one has looked whether it is free."""
    run(source, tmp_path / "out", shard="3/3")
    ledgers = [ShardLedger(Store(str(tmp_path / "out")), parse_shard(shard)) for shard in ("1/3", "2/3")]
    with ledgers[0] as own, ledgers[1] as other:
        assert other.join() is None
        with other.claim("0001") as mine:
            assert mine
            assert own.join()["shard"] == "2/3"
        assert own.join() is None


def test_a_shard_waits_while_the_folder_is_locked(source, tmp_path):
    run(source, tmp_path / "out", shard="1/2")
    ledger = ShardLedger(Store(str(tmp_path / "out")), parse_shard("2/2"))
    with Ledger(Store(str(tmp_path / "out"))):
        assert ledger.join() is not None
    assert ledger.join() is None
    ledger.__exit__()


def test_a_lock_that_another_machine_took_is_noticed(tmp_path):
    """As on a file system on which locks hold on one machine only."""
    store = Store(str(tmp_path / "out"))
    store.make()
    with Ledger(store) as ledger:
        (tmp_path / "out/.tamis/lock").write_text('{"owner": "other", "process": 7, "host": "node-2"}')
        with pytest.raises(LedgerError, match="is lost: taken over by process 7 on node-2"):
            ledger.append([{"kind": "clear"}])
