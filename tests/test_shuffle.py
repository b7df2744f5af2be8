"""Shuffle: a permutation of all rows, the same however the work is divided, resumable, within the budget."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import (
    Filter,
    Gather,
    JsonlReader,
    JsonlWriter,
    LocalExecutor,
    Map,
    ParquetWriter,
    Pipeline,
    Resources,
    Rows,
    at_most,
    operator,
)
from tamis.batch import Batch, Origin
from tamis.dedup import ExactDedup
from tamis.events import CallsFinished, PartitionCommitted
from tamis.exchange import FolderExchange, StoreExchange
from tamis.executors.merging import merge
from tamis.memory import runs
from tamis.memory.runs import RunWriter, merge_runs, read_range
from tamis.sampling import Sample, Shuffle, order_keys
from tamis.verification import verify

ROWS = 700


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Seven files; the last has a column that the others have not."""
    folder = tmp_path_factory.mktemp("source")
    for number in range(7):
        rows = [{"n": 100 * number + row, "text": f"row {row} " * (row % 5)} for row in range(100)]
        rows = [row | ({"more": "x"} if number == 6 else {}) for row in rows]
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def contents(output):
    return {file.name: file.read_bytes() for file in sorted(output.glob("part-*"))}


def order(output):
    return [json.loads(line)["n"] for text in contents(output).values() for line in text.splitlines()]


def job(source, output, *after, seed=0, before=(), **reading):
    reader = JsonlReader(source, **(reading or {"files_per_partition": 1}))
    return Pipeline(reader, *before, Shuffle(seed=seed), *after, JsonlWriter(output))


@pytest.fixture(scope="module")
def undisturbed(source, tmp_path_factory):
    output = tmp_path_factory.mktemp("undisturbed")
    job(source, output).run(executor="inline")
    return output


def test_the_output_is_a_permutation_and_lines_are_unchanged(source, undisturbed):
    found = order(undisturbed)
    assert sorted(found) == list(range(ROWS))
    lines = [line for text in contents(undisturbed).values() for line in text.splitlines()]
    read = [line for file in source.iterdir() for line in file.read_bytes().splitlines()]
    assert sorted(lines) == sorted(read)


def test_the_order_is_that_of_every_executor(source, undisturbed, tmp_path, executor):
    report = job(source, tmp_path).run(executor=executor)
    assert contents(tmp_path) == contents(undisturbed)
    assert (report.read, report.kept, report.failed) == (ROWS, ROWS, 0)
    assert report.balances
    assert [op["name"] for op in report.operators] == ["jsonl_reader", "shuffle", "reordered_rows", "jsonl_writer"]


def test_the_order_does_not_depend_on_blocks_memory_or_seedless_state(source, undisturbed, tmp_path):
    for number, options in enumerate([{"blocksize": "1kB"}, {"blocksize": "10MB"}, {"files_per_partition": 3}]):
        job(source, tmp_path / str(number), **options).run(executor="inline", memory="600MB")
        assert order(tmp_path / str(number)) == order(undisturbed)
    job(source, tmp_path / "other", seed=1).run(executor="inline")
    assert order(tmp_path / "other") != order(undisturbed)


def test_rows_of_each_file_are_spread_over_all_shards(tmp_path):
    table = Pipeline(Rows([{"n": n} for n in range(20_000)], rows_per_partition=1000), Shuffle()).collect()
    found = np.array(table["n"].to_pylist())
    # Of 20 blocks of the output, each has about 50 rows of each block of the input: chi-squared with 361 degrees of freedom.
    counts = np.histogram2d(np.arange(20_000), found, bins=20)[0]
    assert 250 < ((counts - 50) ** 2 / 50).sum() < 490
    assert abs(np.corrcoef(np.arange(20_000), found)[0, 1]) < 0.03
    assert np.abs(np.diff(found) == 1).sum() < 10


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_few_rows(rows, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text("".join(f'{{"n": {n}}}\n' for n in range(rows)))
    report = Pipeline(JsonlReader(source), Shuffle(), ParquetWriter(tmp_path / "out")).run(executor="inline")
    assert (report.read, report.kept) == (rows, rows)


@operator(reads="n", writes="n")
class AtMost(Filter):
    """Keep small numbers."""

    max_n: int = 349

    def score(self, batch):
        return {"n": np.asarray(batch["n"])}

    def rules(self):
        return [at_most("n", self.max_n)]


def test_rows_keep_their_addresses_and_reasons(source, tmp_path):
    report = job(source, tmp_path, AtMost(), before=[AtMost(max_n=599)]).run(executor="inline", rejects=True)
    assert (report.kept, report.dropped) == (350, {"n > 599": 100, "n > 349": 250})
    lines = {int(json.loads(line)["n"]): (file, place) for file in source.iterdir() for place, line in _places(file)}
    for row in report.dropped_rows().to_pandas().to_dict("records"):
        file, place = lines[row["n"]]
        assert row["_address" if "_address" in row else "address"] == f"{file}:{place}"


def _places(file):
    place = 0
    for line in file.read_bytes().splitlines(keepends=True):
        yield place, line
        place += len(line)


def test_other_barriers_before_and_after(source, tmp_path):
    plain = job(source, tmp_path / "a", before=[ExactDedup(), Sample(rows=40)]).run(executor="inline")
    again = job(source, tmp_path / "b", Shuffle(seed=4), Sample(rows=300), seed=3).run(executor="inline")
    assert (plain.kept, again.kept) == (len(order(tmp_path / "a")), 300)
    assert plain.balances
    assert again.balances
    assert len(set(order(tmp_path / "b"))) == 300


def test_a_row_that_fails_after_the_shuffle_costs_only_itself(source, tmp_path):
    def breaks(row):
        if row["n"] == 33:
            raise ValueError("33")
        return row

    report = job(source, tmp_path, breaks).run(executor="local", workers=2, max_failed=5)
    assert (report.kept, report.failed) == (ROWS - 1, 1)
    assert report.balances
    (line,) = [row for file in (tmp_path / ".tamis/failed").iterdir() for row in file.read_text().splitlines()]
    assert json.loads(line)["row"]["n"] == 33


def test_keys_depend_on_the_address_alone_and_all_bits_are_used():
    origin = Origin.of("a.jsonl", np.arange(5000))
    parents = np.repeat(np.arange(5000), 2)
    copies = origin.expanded(parents, np.where(parents % 3 == 0, np.tile([0, 1], 5000), -1))
    batch = Batch(pa.table({"n": np.arange(10_000)}), copies)
    keys = order_keys(batch, 7)
    alone = [int(order_keys(batch.select(slice(row, row + 1)), 7)[0]) for row in range(0, 10_000, 777)]
    assert keys[::777].tolist() == alone
    plain = order_keys(Batch(pa.table({"n": np.arange(5000)}), origin), 7)
    assert (keys[::2][parents[::2] % 3 != 0] == plain[np.arange(5000) % 3 != 0]).all()
    assert len(set(keys[parents % 3 == 0].tolist())) == 2 * 1667
    ones = ((plain[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)).mean(axis=0)
    assert np.abs(ones - 0.5).max() < 0.04
    assert (order_keys(Batch(pa.table({"n": np.arange(5000)}), origin), 8) != plain).all()


# ---------------------------------------------------------------------------------------------------------- resuming


class Killed(BaseException):
    """Ends a run at an event, as a kill would: nothing is cleaned up by the engine's own handlers for errors."""


def killed_at(number):
    seen = Counter()

    def hear(event):
        if isinstance(event, (PartitionCommitted, CallsFinished)):
            seen["events"] += 1
            if seen["events"] == number:
                raise Killed

    return hear


def test_a_run_killed_after_any_commit_continues_and_gives_the_same_files(source, undisturbed, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "MOST_RUNS", 3)
    monkeypatch.setattr(runs, "MERGED_RUNS", 2)
    commits = 0
    for number in range(1, 18):
        output = tmp_path / str(number)
        try:
            job(source, output).run(executor="inline", on_event=killed_at(number))
        except Killed:
            commits += 1
        report = job(source, output).run(executor="inline")
        assert contents(output) == contents(undisturbed), number
        assert (report.read, report.kept) == (ROWS, ROWS)
    assert commits == 16  # seven partitions twice, and two levels of merging


SCRIPT = """
import os, signal, sys
from tamis import JsonlReader, JsonlWriter, Pipeline
from tamis.events import PartitionCommitted
from tamis.sampling import Shuffle
source, output, most = sys.argv[1], sys.argv[2], int(sys.argv[3])
left = [most]
def hear(event):
    if isinstance(event, PartitionCommitted):
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
Pipeline(JsonlReader(source, files_per_partition=1), Shuffle(), JsonlWriter(output)).run(workers=2, on_event=hear)
"""


def test_kill_9_of_the_driver_in_each_stage(source, undisturbed, tmp_path):
    for most, code in ((3, -signal.SIGKILL), (8, -signal.SIGKILL), (0, 0)):
        command = [sys.executable, "-c", SCRIPT, str(source), str(tmp_path / "out"), str(most)]
        assert subprocess.run(command, check=False, capture_output=True).returncode == code
    assert contents(tmp_path / "out") == contents(undisturbed)
    assert verify(str(tmp_path / "out")).ok


def test_a_worker_that_dies_in_either_stage(source, undisturbed, tmp_path):
    def dies_once(place):
        def step(row):
            if row["n"] == 250 and not (tmp_path / place).exists():
                (tmp_path / place).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return row

        return step

    report = job(source, tmp_path / "out", dies_once("b"), before=[dies_once("a")]).run(workers=2)
    assert order(tmp_path / "out") == order(undisturbed)
    assert (report.kept, report.failed) == (ROWS, 0)
    assert {"a", "b"} <= {path.name for path in tmp_path.iterdir()}


def test_shards_give_the_files_of_one_run(source, undisturbed, tmp_path):
    for number in (1, 2, 3, 1, 2, 3):
        job(source, tmp_path).run(executor="inline", shard=f"{number}/3", shard_wait=0)
    if not (tmp_path / ".tamis" / "report.json").exists():
        merge(str(tmp_path))
    assert contents(tmp_path) == contents(undisturbed)


def test_an_added_file_redoes_the_order_and_reads_only_that_file(source, tmp_path):
    copies = tmp_path / "in"
    copies.mkdir()
    for file in source.iterdir():
        (copies / file.name).write_bytes(file.read_bytes())
    job(copies, tmp_path / "out").run(executor="inline", keep_work=True)
    (copies / "35.jsonl").write_text('{"n": 1000}\n')
    done = []
    job(copies, tmp_path / "out").run(
        executor="inline",
        on_event=lambda e: done.append((e.stage, e.partition)) if isinstance(e, PartitionCommitted) else None,
    )
    assert [partition for stage, partition in done if stage == 0] == [4]
    assert sorted(order(tmp_path / "out")) == [*range(ROWS), 1000]


# --------------------------------------------------------------------------------------------------------------- runs


def written(exchange, keys, run_bytes):
    writer = RunWriter(exchange, "rows.spill", run_bytes)
    for start in range(0, len(keys), 7):
        part = np.array(keys[start : start + 7], np.uint64)
        writer.write(Batch(pa.table({"n": np.arange(start, start + len(part))})), part)
    return [draft.name for draft in writer.close()]


KEYS = st.lists(st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 3), st.just(2**64 - 1)), min_size=1, max_size=60)


@settings(max_examples=40)
@given(KEYS, st.integers(1, 400), st.integers(1, 5), st.integers(1, 2000))
def test_any_division_into_runs_blocks_and_ranges_is_a_stable_sort(tmp_path_factory, keys, run_bytes, parts, most):
    exchange = FolderExchange(tmp_path_factory.mktemp("runs"))
    names = written(exchange, keys, run_bytes)
    before, runs.BLOCK_BYTES = runs.BLOCK_BYTES, 60
    try:
        merge_runs(exchange, names[:2], "merged", most)
        found = []
        for part in range(parts):
            first, last = part * 2**64 // parts, (part + 1) * 2**64 // parts - 1
            for table in read_range(exchange, ["merged", *names[2:]], first, last, most):
                found += table["n"].to_pylist()
    finally:
        runs.BLOCK_BYTES = before
    assert found == np.argsort(np.array(keys, np.uint64), kind="stable").tolist()


def test_runs_with_other_columns_have_all_columns_in_every_range(tmp_path):
    exchange = FolderExchange(tmp_path)
    writer = RunWriter(exchange, "rows.spill", 10**6)
    writer.write(Batch(pa.table({"a": [1]})), np.array([5], np.uint64))
    writer.write(Batch(pa.table({"a": [2.5], "b": ["x"]})), np.array([2**63], np.uint64))
    names = [draft.name for draft in writer.close()]
    assert len(names) == 2
    for first in (0, 2**62):
        (table,) = (
            read_range(exchange, names, first, first + 2**62 + 1, 10**6)
            if first
            else read_range(exchange, names, 0, 2**62, 10**6)
        )
        assert table.schema.field("a").type == pa.float64()
        assert "b" in table.column_names


def test_a_reorder_is_a_gather_with_memory_of_its_own():
    assert isinstance(Shuffle(), Gather)
    assert Shuffle().resources.memory_bytes == runs.RUN_BYTES * 2


@operator(reads="n", writes="twice", resources=Resources(memory="10MB"))
class HeavyBeforeShuffle(Map):
    """Has workers of its own."""

    def apply(self, batch):
        return {"twice": np.asarray(batch["n"]) * 2}


def test_stages_that_run_at_the_same_time_before_and_after(source, undisturbed, tmp_path):
    steps = [JsonlReader(source, files_per_partition=1), HeavyBeforeShuffle(), Shuffle(), HeavyBeforeShuffle()]
    report = Pipeline(*steps, JsonlWriter(tmp_path)).run(executor=LocalExecutor(workers=2, streaming="always"))
    assert len(report.streams) == 2
    assert order(tmp_path) == order(undisturbed)
    assert report.balances


def test_runs_in_an_object_store_are_read_in_ranges(tmp_path, monkeypatch):
    monkeypatch.setattr("tamis.exchange.WHOLE_BYTES", 0)
    exchange = StoreExchange(f"memory://runs-{tmp_path.name}", scratch=tmp_path)
    keys = np.random.default_rng(0).integers(0, 2**64, 500, np.uint64)
    names = written(exchange, keys.tolist(), 3000)
    assert len(names) > 5
    halves = [(0, 2**63 - 1), (2**63, 2**64 - 1)]
    found = [
        n
        for first, last in halves
        for table in read_range(exchange, names, first, last, 4000)
        for n in table["n"].to_pylist()
    ]
    assert found == np.argsort(keys, kind="stable").tolist()


def test_the_life_of_a_row_is_known_across_the_shuffle(source, tmp_path):
    report = job(source, tmp_path, AtMost()).run(executor="inline", rejects=True)
    file = source / "6.jsonl"
    place, line = list(_places(file))[-1]
    (life,) = report.why(f"{file}:{place}")
    assert "n > 349" in str(life)
    assert json.loads(line)["n"] == 699
