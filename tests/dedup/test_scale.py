"""Many partitions, frequent keys, full disks: memory, files and disk space stay within their limits."""

import dataclasses
import json
import os
import random
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import JsonlReader, JsonlWriter, Pipeline, Rows
from tamis.dedup import ExactDedup, FuzzyDedup, Groups, candidates, decisions, equal_digests, shuffle
from tamis.dedup.candidates import edges_from_keys
from tamis.dedup.equal_digests import EqualDigests
from tamis.dedup.shuffle import ShuffleWriter, bucket_count, pieces
from tamis.errors import BudgetError, DiskFull
from tamis.exchange import Blob, FolderExchange
from tamis.executors import resume
from tamis.kernels import groups
from tamis.memory.spill import ObservedFacts

STEPS = [
    ExactDedup(),
    ExactDedup(unit="line", min_unit_bytes=1),
    FuzzyDedup(),
    FuzzyDedup(verify="signature"),
]


def texts(count, different, seed=0):
    rng = random.Random(seed)
    known = [" ".join("".join(rng.choices("abcdefghijklm", k=6)) for _ in range(20)) for _ in range(different)]
    return [{"id": str(n), "text": known[rng.randrange(different)]} for n in range(count)]


def outcome(rows, step, out, per_partition=10**6, **options):
    options = {"executor": "inline", **options}
    report = Pipeline(Rows(rows, rows_per_partition=per_partition), step, JsonlWriter(str(out))).run(**options)
    assert report.balances
    lines = [line for file in sorted(Path(out).glob("*.jsonl")) for line in file.read_text().splitlines()]
    found = Groups.load(out).table().sort_by([("row", "ascending"), ("unit", "ascending")])
    return lines, found.select(["row", "kept_row", "kept_address", "kept_id", "unit", "kept_unit"]).to_pylist()


@pytest.mark.parametrize("step", STEPS, ids=["exact", "lines", "jaccard", "signature"])
def test_files_are_opened_in_proportion_to_partitions(tmp_path, monkeypatch, step):
    opened = []
    plain = ObservedFacts.__getitem__
    monkeypatch.setattr(ObservedFacts, "__getitem__", lambda self, number: opened.append(number) or plain(self, number))
    counts = []
    for partitions in (30, 90):
        opened.clear()
        outcome(texts(partitions, 7), step, tmp_path / str(partitions), per_partition=1)
        counts.append(len(opened) / partitions)
    assert counts[1] <= counts[0] + 1


@pytest.mark.parametrize("step", STEPS, ids=["exact", "lines", "jaccard", "signature"])
def test_addresses_of_survivors_are_right_in_any_partition(tmp_path, step):
    rows = texts(120, 15)
    expected = outcome(rows, step, tmp_path / "one")
    assert expected[1]
    assert outcome(rows, step, tmp_path / "many", per_partition=2) == expected
    for pair in expected[1]:
        assert pair["kept_address"] == f"rows:{pair['kept_row']}"
        assert pair["kept_id"] == str(pair["kept_row"])


# ------------------------------------------------------------------------------------------- keys that do not fit


@pytest.mark.parametrize("keep", ["first", "best", "none"])
@pytest.mark.parametrize("unit", ["document", "line"])
def test_a_text_that_is_repeated_more_often_than_fits(tmp_path, monkeypatch, keep, unit):
    if unit == "line" and keep != "first":
        pytest.skip("units keep the first")
    rng = random.Random(3)
    rows = [{"text": "the same everywhere" if rng.random() < 0.7 else f"text {rng.randrange(40)}"} for _ in range(900)]
    rows = [row | {"id": str(n), "score": rng.randrange(5)} for n, row in enumerate(rows)]
    step = ExactDedup(keep=keep, by="score" if keep == "best" else None, unit=unit, min_unit_bytes=1)
    expected = outcome(rows, step, tmp_path / "whole")
    monkeypatch.setattr(shuffle, "bytes_per_call", lambda worker_bytes: 120 * 120)
    assert outcome(rows, step, tmp_path / "pieces", per_partition=70) == expected


@pytest.mark.parametrize("step", STEPS, ids=["exact", "lines", "jaccard", "signature"])
def test_a_part_that_runs_out_of_memory_is_divided_again(tmp_path, monkeypatch, step):
    rows = texts(3000, 2000)
    expected = outcome(rows, step, tmp_path / "whole")
    refused = []

    def limited(keys):
        if len(keys) > 700:
            refused.append(len(keys))
            raise MemoryError
        return plain(keys)

    plain = shuffle.duplicated
    monkeypatch.setattr(shuffle, "MIN_PART_BYTES", 1000)
    monkeypatch.setattr(equal_digests, "duplicated", limited)
    monkeypatch.setattr(candidates, "duplicated", limited)
    monkeypatch.setattr(shuffle, "bytes_per_call", lambda worker_bytes: 10**7)
    assert outcome(rows, step, tmp_path / "parts", per_partition=500) == expected
    assert refused
    more = {"executor": "local", "workers": 2, "memory": "3GB"}
    assert outcome(rows, step, tmp_path / "workers", per_partition=500, **more) == expected


def test_work_that_never_fits_is_reported(tmp_path, monkeypatch):
    def never(keys):
        raise MemoryError

    monkeypatch.setattr(equal_digests, "duplicated", never)
    with pytest.raises(BudgetError, match="more memory than a worker has"):
        outcome(texts(50, 20), ExactDedup(), tmp_path / "out")


KEYS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1), st.integers(0, 2), st.integers(0, 2)), max_size=40)


@settings(max_examples=150)
@given(KEYS, st.integers(1, 50), st.booleans(), st.booleans())
def test_equal_digests_are_found_whatever_the_pieces(keys, size, none, across):
    rows = [{"row": n, "high": h, "low": low, "source": s, "order": o} for n, (h, low, s, o) in enumerate(keys)]
    expected = {}
    for row in rows:
        group = [other for other in rows if (other["high"], other["low"]) == (row["high"], row["low"])]
        group.sort(key=lambda other: (other["source"], other["order"], other["row"]))
        best = group[0]
        others = [other for other in group if other["source"] != best["source"]] if across else group[1:]
        same = row["source"] == best["source"] if across else row is best
        if not same:
            expected[row["row"]] = best["row"]
        elif none and others:
            expected[row["row"]] = others[0]["row"]
    columns = {name: np.array([row[name] for row in rows], np.uint64) for name in ("high", "low", "source", "order")}
    columns |= {"row": np.arange(len(rows)), "new": np.ones(len(rows), np.uint8)}
    equals = EqualDigests(len(rows), none, across)
    found = list(equals.find(lambda: pieces(iter([columns] if rows else []), size)))
    assert {int(r): int(t) for part in found for r, t in zip(part["row"], part["survivor"], strict=True)} == expected
    assert equals.sizes.sum() >= len(expected)


@settings(max_examples=150)
@given(st.lists(st.integers(0, 9), max_size=60), st.integers(1, 70))
def test_edges_are_the_same_whatever_the_pieces(keys, size):
    columns = {"key": np.array(keys, np.uint64), "row": np.arange(len(keys))}
    found = edges_from_keys(pieces(iter([columns] if keys else []), size))
    pairs = {(int(a), int(b)) for left, right in found for a, b in zip(left, right, strict=True)}
    assert pairs == {(keys.index(key), n) for n, key in enumerate(keys) if keys.index(key) != n}


def test_parts_do_not_grow_with_the_data_until_they_are_many():
    call_bytes = 300_000_000
    for size in (10**7, 10**8, 10**9, 10**10):
        assert size / bucket_count(size, call_bytes) <= shuffle.PART_BYTES
    assert bucket_count(10**11, call_bytes) <= shuffle.MANY_PARTS + 1
    assert 10**12 / bucket_count(10**12, call_bytes) <= call_bytes
    assert 10**9 / bucket_count(10**9, 20_000_000) <= 20_000_000


@pytest.mark.parametrize("keep", ["first", "longest", "none"])
@pytest.mark.parametrize("verify", ["jaccard", "signature", "none"])
def test_a_component_that_does_not_fit_is_processed_in_pieces_with_the_same_result(tmp_path, monkeypatch, verify, keep):
    rng = random.Random(5)
    words = ["".join(rng.choices("abcdefghijklm", k=6)) for _ in range(40)]

    def changed(count):
        return " ".join(rng.choice(words) if rng.random() < count / 40 else word for word in words)

    rows = texts(300, 60) + [{"id": str(n), "text": changed(n % 7)} for n in range(300)]
    rng.shuffle(rows)
    step = FuzzyDedup(verify=verify, keep=keep, threshold=0.5)
    monkeypatch.setattr(groups, "MAX_UNLINKED", 3)  # low enough to have an effect
    expected = outcome(rows, step, tmp_path / "whole")
    mapped = []
    plain = candidates._take
    monkeypatch.setattr(
        candidates,
        "_take",
        lambda *args, **options: mapped.append(options["mapped"]) or plain(*args, **options),
    )
    monkeypatch.setattr(candidates, "MIN_PIECE_ROWS", 7)
    monkeypatch.setattr(candidates, "FAULT_BYTES", 10**6)
    monkeypatch.setattr(shuffle, "bytes_per_call", lambda worker_bytes: 20_000)
    assert outcome(rows, step, tmp_path / "bits", per_partition=70) == expected
    assert sum(mapped) > 4


def test_a_component_too_large_for_a_worker_is_reported_at_once(tmp_path, monkeypatch):
    tried = []

    def full(*args, **options):
        tried.append(args)
        raise MemoryError

    monkeypatch.setattr(candidates, "_take", full)
    monkeypatch.setattr(candidates, "COMPONENT_ROW_BYTES", 10**9)
    with pytest.raises(BudgetError, match="a component of 90 possible near-duplicates does not fit"):
        outcome([{"text": "one and the same text of many words " * 3}] * 90, FuzzyDedup(), tmp_path / "out")
    assert len(tried) == 2


@pytest.mark.parametrize("step", STEPS, ids=["exact", "lines", "jaccard", "signature"])
def test_a_partition_that_does_not_fit_is_decided_in_blocks(tmp_path, monkeypatch, step):
    def run(folder, rows):
        kept = dataclasses.replace(step, against=str(tmp_path / folder / "index"), update=True)
        first = outcome(rows[:200], kept, tmp_path / folder / "first", per_partition=90)
        again = dataclasses.replace(step, against=str(tmp_path / folder / "index"))
        lines, pairs = outcome(rows[200:], again, tmp_path / folder / "second", per_partition=45)
        return first, lines, pairs

    rows = texts(300, 60)
    expected = run("whole", rows)
    assert expected[0][1]
    assert any(pair["kept_row"] is None for pair in expected[2])
    monkeypatch.setattr(decisions, "MIN_BLOCK_ROWS", 7)
    monkeypatch.setattr(decisions, "DECISION_ROW_BYTES", 10**12)
    assert run("blocks", rows) == expected
    parts = list((tmp_path / "blocks" / "index").glob("*/entries-*.arrow"))
    assert len(parts) > 10


def test_reasons_belong_to_their_rows_in_blocks(tmp_path, monkeypatch):
    rows = [
        {"id": str(n), "text": "too short" if n % 3 else f"{n} " + "one and the same text of many words " * 3}
        for n in range(90)
    ]
    expected = outcome(rows, FuzzyDedup(), tmp_path / "whole")
    monkeypatch.setattr(decisions, "MIN_BLOCK_ROWS", 4)
    monkeypatch.setattr(decisions, "DECISION_ROW_BYTES", 10**12)
    assert outcome(rows, FuzzyDedup(), tmp_path / "blocks", per_partition=50) == expected
    report = json.loads((tmp_path / "blocks" / ".tamis" / "report.json").read_text())
    assert len(report["dropped"]) == 2


# ------------------------------------------------------------------------------------------------------ rows in buckets


@settings(max_examples=100)
@given(
    parts=st.lists(st.lists(st.integers(0, 6), max_size=12), max_size=12),
    gathered=st.sampled_from([0, 100, 10**6]),
    mapped=st.booleans(),
)
def test_buckets_hold_what_was_written_in_order(tmp_path_factory, parts, gathered, mapped):
    blob = Blob(FolderExchange(tmp_path_factory.mktemp("shuffle")), "a.arrow")
    expected, number = {bucket: [] for bucket in range(7)}, 0
    with pytest.MonkeyPatch.context() as patch, ShuffleWriter(blob, 7, pa.schema({"n": pa.int64()})) as writer:
        patch.setattr(shuffle, "BUFFER_BYTES", gathered)
        for part in parts:
            writer.write(pa.table({"n": np.arange(number, number + len(part))}), np.array(part, np.int64))
            for bucket in part:
                expected[bucket].append(number)
                number += 1
    for bucket, rows in expected.items():
        batches = list(shuffle.read_bucket(blob, bucket, 7, mapped=mapped))
        assert [n for batch in batches for n in batch.column("n").to_pylist()] == rows
        assert gathered < 10**6 or len(batches) <= 1


def test_buckets_without_rows_take_no_space(tmp_path):
    rows = pa.table(
        {
            "text": pa.array([b"word"] * 10_000, pa.large_binary()),
            "set": pa.array([[1]] * 10_000, pa.large_list(pa.uint32())),
        }
    )
    with ShuffleWriter(Blob(FolderExchange(tmp_path), "a.arrow"), 500, rows.schema) as writer:
        writer.write(rows, np.full(10_000, 250))
    assert (tmp_path / "a.arrow").stat().st_size < rows.nbytes + 500 * 1000


# ----------------------------------------------------------------------------------------------------------- full disks


def test_a_file_that_cannot_be_finished_leaves_nothing(tmp_path):
    def write():
        with ShuffleWriter(Blob(FolderExchange(tmp_path), "a.arrow"), 1, pa.schema({"n": pa.int64()})) as writer:
            writer.write(pa.table({"n": [1]}), np.zeros(1, np.int64))
            raise RuntimeError("in between")

    with pytest.raises(RuntimeError, match="in between"):
        write()
    assert not list(tmp_path.iterdir())


@pytest.fixture
def small_disk(tmp_path):
    """A small file system; the test is skipped if none can be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64M", "tmpfs", str(folder)], capture_output=True).returncode:
        pytest.skip("no right to mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fits(folder, megabytes):
    subprocess.run(["mount", "-o", f"remount,size={megabytes * 1000}k", str(folder)], check=True)


@pytest.mark.parametrize("executor", ["inline", "local"])
@pytest.mark.parametrize("step", [STEPS[0], STEPS[2], STEPS[3]], ids=["exact", "jaccard", "signature"])
def test_a_disk_that_fills_while_resolving_is_reported_and_the_run_resumes(tmp_path, small_disk, step, executor):
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in texts(20_000, 9000)))

    def run(out, **more):
        pipeline = Pipeline(JsonlReader(str(source), blocksize="500kB"), step, JsonlWriter(str(out)))
        report = pipeline.run(executor=executor, workers=1 if executor == "local" else "auto", memory="2GB", **more)
        assert report.balances
        return [line for file in sorted(out.glob("*.jsonl")) for line in file.read_text().splitlines()]

    expected = run(tmp_path / "calm")
    out = small_disk / "out"

    def fill(event):
        """From the moment everything is observed, there is a little room left."""
        if type(event).__name__ == "PartitionCommitted":
            used = sum(file.stat().st_blocks * 512 for file in out.rglob("*") if file.is_file())
            fits(small_disk, used // 1_000_000 + 1)
        elif type(event).__name__ == "StageStarted":
            fits(small_disk, 64)

    with pytest.raises((DiskFull, BudgetError), match="disk") as raised:
        run(out, on_event=fill)
    assert "rerun the same command" in str(raised.value)
    assert not [file for file in out.rglob("*.draft-*") if file.is_file()]
    fits(small_disk, 64)
    assert run(out) == expected


# -------------------------------------------------------------------------------------------------- killed at any instant

SCRIPT = """
import os, signal, sys
from tamis import JsonlReader, JsonlWriter, Pipeline
from tamis.dedup import ExactDedup, FuzzyDedup
from tamis.executors import driver

folder, out, step, when = sys.argv[1:]
plain = driver._GatherWork.map
calls = [0]

def map(self, name, function, items, *, new_workers=False):
    def counted(*item):
        calls[0] += 1
        if name.startswith(when) and len(items) - 1 <= items.index(item) + 1:
            if int(os.environ["KILL"]):
                os.kill(os.getpid(), signal.SIGKILL)
        return function(*item)
    result = plain(self, name, counted, items)
    if name.startswith(when) and os.environ["KILL"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return result

driver._GatherWork.map = map
steps = {"exact": ExactDedup(), "line": ExactDedup(unit="line", min_unit_bytes=1), "fuzzy": FuzzyDedup()}
Pipeline(JsonlReader(folder, blocksize="5kB"), steps[step], JsonlWriter(out)).run(executor="inline")
"""

PHASES = {
    "exact": ["digests", "groups", "survivors", "decisions"],
    "line": ["units", "digests", "repeats", "survivors", "decisions"],
    "fuzzy": ["bands", "candidate pairs", "components", "candidates", "comparisons", "survivors", "decisions"],
}


@pytest.mark.parametrize("step", PHASES)
def test_a_run_killed_in_any_phase_resumes_with_the_same_result(tmp_path, step):
    """One run, killed in every phase in turn: `kill -9` of the whole process, in the middle of the phase's calls."""
    (tmp_path / "in").mkdir()
    for number in range(3):
        lines = "".join(json.dumps(row) + "\n" for row in texts(60, 30, seed=number % 2))
        (tmp_path / "in" / f"{number}.jsonl").write_text(lines)

    def run(out, phase, kill):
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / "in"), str(out), step, phase]
        return subprocess.run(command, env={**os.environ, "KILL": str(kill)}, capture_output=True, text=True)

    assert run(tmp_path / "calm", "none", 0).returncode == 0
    for phase in PHASES[step]:
        done = run(tmp_path / "killed", phase, 1)
        assert done.returncode == -9, done.stderr
    done = run(tmp_path / "killed", "none", 0)
    assert done.returncode == 0, done.stderr
    for name in ("*.jsonl", ".tamis/groups/*.table"):
        calm, killed = (
            {file.name: file.read_bytes() for file in (tmp_path / out).glob(name)} for out in ("calm", "killed")
        )
        assert calm
        if name == "*.jsonl":
            assert killed == calm
    assert Groups.load(tmp_path / "killed").table().equals(Groups.load(tmp_path / "calm").table())


# ------------------------------------------------------------------------------------------------- bytes per document

MEASURE = """
import resource, sys
import numpy as np
from pathlib import Path
from tamis.dedup import candidates, joining
from tamis.dedup.shuffle import NumberedFiles
from tamis.exchange import Blob, FolderExchange
from tamis.executors import resume
import pyarrow as pa

folder, total = Path(sys.argv[1]), int(sys.argv[2])
rng = np.random.default_rng(0)
with pa.ipc.new_file(folder / "1-000000.spill", candidates._EDGES) as writer:
    for start in range(0, total, 500_000):
        left = rng.integers(0, total, 500_000)
        right = np.minimum(total - 1, left + rng.integers(1, 1000, 500_000))
        writer.write_table(pa.table({"left": left, "right": right}))
exchange = FolderExchange(folder)
edges = NumberedFiles(exchange, "1-", 1)
joining.join_in_one_call(1000, NumberedFiles(exchange, "none-", 0), Blob(exchange, "warm.bin"))
low = int([line for line in open("/proc/self/status") if line.startswith("RssAnon")][0].split()[1])
Path("/proc/self/clear_refs").write_text("5")
import threading, time
peak, stop = [low], threading.Event()
def watch():
    while not stop.wait(0.002):
        peak[0] = max(peak[0], int([line for line in open("/proc/self/status") if line.startswith("RssAnon")][0].split()[1]))
thread = threading.Thread(target=watch); thread.start()
joining.join_in_one_call(total, edges, Blob(exchange, "out.bin"))
stop.set(); thread.join()
print((peak[0] - low) * 1024)
"""


def test_components_take_less_than_16_bytes_per_document(tmp_path):
    """Anonymous memory of the union-find at two sizes; the difference is the cost of a document."""
    peaks = []
    for total in (4_000_000, 12_000_000):
        folder = tmp_path / str(total)
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, str(folder), str(total)], capture_output=True, text=True, check=True
        )
        peaks.append(int(done.stdout))
    per_document = (peaks[1] - peaks[0]) / 8_000_000
    assert per_document < 16
    assert peaks[1] < 16 * 12_000_000 + 150_000_000


def test_open_files_stay_few_with_many_partitions(tmp_path):
    """Three hundred partitions under a limit of a hundred open files."""
    rows = texts(300, 20)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    try:
        lines, pairs = outcome(rows, FuzzyDedup(), tmp_path / "out", per_partition=1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (len(lines), len(pairs)) == (20, 280)


def test_a_power_failure_costs_what_was_not_on_disk_and_no_row(tmp_path, monkeypatch):
    """The ledger is synced and the files between the stages are not: after a restart they may be there, and empty."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts(60, 30, seed=3)))
    command = [sys.executable, "-c", SCRIPT, str(folder), str(tmp_path / "out"), "fuzzy", "comparisons"]
    assert subprocess.run(command, env={**os.environ, "KILL": "1"}).returncode == -9
    work = tmp_path / "out" / ".tamis" / "work"
    blobs = [path for path in work.rglob("*") if path.is_file() and path != work / "system"]
    assert len(blobs) > 5
    for blob in blobs:
        blob.write_bytes(b"")
    monkeypatch.setattr(resume, "BOOT_ID", tmp_path / "boot_id")
    resume.BOOT_ID.write_text("another")

    def run(out):
        Pipeline(JsonlReader(str(folder), blocksize="5kB"), FuzzyDedup(), JsonlWriter(str(out))).run(executor="inline")
        return [file.read_text() for file in sorted(out.glob("*.jsonl"))]

    assert run(tmp_path / "out") == run(tmp_path / "calm")


def test_what_a_run_kept_on_purpose_survives_a_restart(tmp_path, monkeypatch):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts(60, 30, seed=3)))

    def run():
        pipeline = Pipeline(JsonlReader(str(folder), blocksize="5kB"), FuzzyDedup(), JsonlWriter(str(tmp_path / "out")))
        return pipeline.run(executor="inline", keep_work=True)

    first = run()
    monkeypatch.setattr(resume, "BOOT_ID", tmp_path / "boot_id")
    resume.BOOT_ID.write_text("another")
    (folder / "1.jsonl").write_text(json.dumps({"text": "another text, which is unlike all of them"}) + "\n")
    second = run()
    assert second.new_rows < first.new_rows < second.read
