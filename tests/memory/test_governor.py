"""Overflows, made on purpose: each is answered as promised, and every row is accounted for."""

import json
import mmap
import os
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import zstandard

from tamis import JsonlReader, Pipeline, Rows
from tamis.dedup import ExactDedup
from tamis.errors import BudgetError, is_shortage
from tamis.events import Events
from tamis.memory.budget import SMALLEST_BATCH_BYTES, make_budget
from tamis.memory.governor import Allowance, Governor, Learned
from tamis.operators import Map, Resources, operator
from tamis.parameters import parse_bytes
from tamis.report import Report


def governor(**options):
    seen = []
    return Governor(make_budget(**options), Events([seen.append])), seen


class TestDecisions:
    def test_the_order_is_smaller_batches_then_fewer_workers_then_large_rows_then_an_error(self):
        chief, seen = governor(memory="700MB", workers=2)
        allowance = chief.allowance()
        kinds = []

        def until_it_gives_up():
            nonlocal allowance
            while True:
                allowance = chief.overflowed(allowance, "a.jsonl")
                kinds.append(seen[-1].kind)

        with pytest.raises(BudgetError, match="does not fit into 700 MB of memory"):
            until_it_gives_up()
        assert list(dict.fromkeys(kinds)) == ["shrink", "fewer_workers", "isolate"]
        assert chief.workers == 1
        assert allowance.batch_bytes == SMALLEST_BATCH_BYTES

    def test_a_worker_taken_away_leaves_its_share_to_the_others(self):
        chief, _ = governor(memory="1GB", workers=2)
        before = chief.worker_bytes
        chief.overflowed(Allowance(SMALLEST_BATCH_BYTES), "a")
        assert chief.worker_bytes == pytest.approx(2 * before, abs=1)

    def test_what_was_held_decides_the_next_batch_size(self):
        chief, _ = governor(memory="600MB", workers=1)
        chief.begin("stage")
        before = chief.allowance().batch_bytes
        chief.finished(peak_bytes=40 * before, batch_bytes=before, splits=0)
        assert chief.allowance().batch_bytes < before / 2

    def test_what_was_learnt_is_used_by_the_next_run(self):
        chief, _ = governor(memory="600MB", workers=1)
        chief.begin("stage")
        chief.finished(peak_bytes=400_000_000, batch_bytes=4_000_000, splits=0)
        learned = Learned.from_text(chief.learned.as_text())
        other = Governor(make_budget(memory="600MB", workers=1), Events([]), learned)
        other.begin("stage")
        assert other.allowance() == chief.allowance()
        assert Learned.from_text(b"not json").copies == {}

    def test_a_model_is_set_up_in_fewer_workers_or_not_at_all(self):
        chief, seen = governor(memory="900MB", workers=2)
        chief.too_large_to_set_up("`model` ran out of memory")
        assert (chief.workers, seen[-1].kind) == (1, "fewer_workers")
        with pytest.raises(
            BudgetError, match="`model` ran out of memory, in a single worker that may hold 740 MB"
        ) as told:
            chief.too_large_to_set_up("`model` ran out of memory")
        assert told.value.hint == "try --memory 1.8GB"
        with pytest.raises(BudgetError) as told:
            chief.too_large_to_set_up("`model` ran out of memory (CUDA out of memory. Tried to allocate 2 GiB)")
        assert "the GPU is out of memory" in told.value.hint

    def test_steps_with_the_same_name_are_learned_together(self):
        learned, model = Learned(), ModelForTests()
        assert learned.setup_bytes([model]) == 0
        learned.note_setup([(model.name, 300_000_000), (model.name, 0), ("small", 1_000_000)])
        assert learned.setup_bytes([model, model]) == 300_000_000
        assert learned.as_dict()["bytes_held_after_setup"] == {model.name: 300_000_000}
        for _ in range(60):
            learned.note_setup([(model.name, 0)])
        assert learned.setup_bytes([model]) == 0

    def test_only_the_largest_stage_is_held_at_a_time(self):
        learned = Learned(setup={"model_for_tests": 40_000_000, "grow_for_tests": 30_000_000})
        steps = [ModelForTests(), ExactDedup(), GrowForTests(), ExactDedup(), GrowForTests()]
        declared = ExactDedup().resources.memory_bytes
        assert learned.setup_bytes(steps) == 40_000_000 + declared

    def test_a_measurement_replaces_what_a_step_declares_and_a_gather_keeps_what_it_needs_later(self):
        learned = Learned(setup={"declares_for_tests": 0, "exact_dedup": 0})
        assert Learned().setup_bytes([DeclaresForTests()]) == 256_000_000
        assert learned.setup_bytes([DeclaresForTests()]) == 0
        assert learned.setup_bytes([ExactDedup()]) == ExactDedup().resources.memory_bytes
        assert make_budget(memory="900MB", workers=2, operator_bytes=256_000_000).workers == 1
        assert make_budget(memory="900MB", workers=2, operator_bytes=256_000_000, learned_bytes=0).workers == 2

    @pytest.mark.parametrize(
        ("error", "expected"),
        [
            (MemoryError(), True),
            (OSError(12, "Cannot allocate memory"), True),
            (OSError(2, "No such file"), False),
            (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."), True),
            (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
            (RuntimeError("a row that says: out of memory"), False),
            (ValueError("cannot parse 'CUDA out of memory'"), False),
            (BudgetError("a file ran out of memory"), False),
        ],
    )
    def test_a_shortage_is_known_by_what_libraries_say(self, error, expected):
        assert is_shortage(error) is expected


@operator(reads="text", writes="grown")
class GrowForTests(Map):
    """Makes a hundred times as many bytes as it is given."""

    factor: int = 100

    def apply(self, batch):
        return {"grown": pa.compute.binary_repeat(batch["text"], self.factor)}


@operator(reads="text", writes="n")
class ModelForTests(Map):
    """Loads something large, of which it says nothing."""

    num_bytes: int = 350_000_000

    def open(self, context):
        return WeightsForTests(np.ones(self.num_bytes, dtype=np.uint8))


class WeightsForTests:
    def __init__(self, weights):
        self.weights = weights

    def apply(self, batch):
        return {"n": np.full(len(batch), self.weights[0])}


@operator(reads="text", writes="n", resources=Resources(memory="256MB"))
class DeclaresForTests(Map):
    """Declares far more memory than it takes, and reads a mapped file when it is opened."""

    file: str = ""

    def open(self, context):
        with Path(self.file).open("rb") as file:
            assert mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ).find(b"x") == -1
        return self

    def apply(self, batch):
        return {"n": np.zeros(len(batch))}


@operator(reads="text", writes="n")
class GreedyForTests(Map):
    """Takes memory until it is stopped, when it meets a certain text."""

    def apply(self, batch):
        if "greedy" in batch["text"].to_pylist():
            taken = []
            while True:
                taken.append(np.ones(5_000_000))
        return {"n": np.zeros(len(batch))}


SCRIPT = """
import json, sys
from pathlib import Path
from tamis import JsonlReader, JsonlWriter, Pipeline, Rows
from tests.memory.test_governor import GreedyForTests, GrowForTests, ModelForTests
folder = Path(sys.argv[1])
report = Pipeline(*eval(sys.argv[2])).run(memory=sys.argv[3], workers=int(sys.argv[4]))
print(json.dumps(report.as_dict()))
"""


def run(tmp_path, steps, memory="512MB", workers=1):
    """The steps in a process of their own, whose memory is that of the run alone."""
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), steps, memory, str(workers)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(Path.cwd())})
    assert done.returncode == 0, done.stderr
    report = Report(**json.loads(done.stdout))
    assert report.balances
    assert report.peak_memory_bytes <= parse_bytes(memory)
    return report


def test_rows_that_grow_a_hundredfold_are_processed_in_smaller_batches(tmp_path):
    with (tmp_path / "in.jsonl").open("w") as file:
        for number in range(4000):
            file.write(json.dumps({"id": number, "text": "abcdefghij" * 300}) + "\n")
    report = run(
        tmp_path, "[JsonlReader(folder / 'in.jsonl'), GrowForTests(), JsonlWriter(folder / 'out', fields=['id'])]"
    )
    assert report.kept == 4000
    assert set(report.memory["actions"]) & {"split", "shrink"}


def test_a_row_that_alone_takes_everything_fails_alone(tmp_path):
    rows = [{"text": "modest"}] * 20 + [{"text": "greedy"}] + [{"text": "modest"}] * 20
    report = run(tmp_path, f"[Rows({rows!r}), GreedyForTests()]")
    assert (report.kept, report.failed) == (40, 1)
    assert report.memory["actions"]["split"] > 0


@pytest.mark.slow
def test_a_row_too_large_to_hold_fails_with_its_size(tmp_path):
    path = tmp_path / "in.jsonl"
    with path.open("w") as file:
        for number in range(50):
            if number == 25:
                file.write('{"text": "' + "x" * 300_000_000 + '"}\n')
            file.write(json.dumps({"text": f"row {number}"}) + "\n")
    report = run(tmp_path, "[JsonlReader(folder / 'in.jsonl'), JsonlWriter(folder / 'out')]")
    assert (report.read, report.kept, report.failed) == (51, 50, 1)
    (line,) = next((tmp_path / "out" / ".tamis" / "failed").iterdir()).read_text().splitlines()
    assert "300,000,0" in json.loads(line)["error"]


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_files_that_grow_a_thousandfold_when_unpacked(tmp_path, suffix):
    line = json.dumps({"text": "x" * 650_000}).encode() + b"\n"
    rows = 1500  # a gigabyte, in one member or frame that cannot be split
    if suffix == "gz":
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        data = b"".join([*(packer.compress(line * 100) for _ in range(rows // 100)), packer.flush()])
    else:
        packer = zstandard.ZstdCompressor(level=9).compressobj()
        data = b"".join([*(packer.compress(line * 100) for _ in range(rows // 100)), packer.flush()])
    (tmp_path / f"in.jsonl.{suffix}").write_bytes(data)
    assert rows * len(line) > 1000 * len(data)
    steps = f"[JsonlReader(folder / 'in.jsonl.{suffix}'), JsonlWriter(folder / 'out', compression='zst')]"
    assert run(tmp_path, steps, workers=2).kept == rows


def test_a_model_that_two_workers_cannot_hold_is_held_by_one_and_the_next_run_knows(tmp_path):
    for number in range(4):
        lines = [json.dumps({"id": row, "text": f"row {row}"}) for row in range(100)]
        (tmp_path / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    steps = "[JsonlReader(folder / '*.jsonl', files_per_partition=1), ModelForTests(), JsonlWriter(folder / 'out')]"
    report = run(tmp_path, steps, "1GB", workers=2)
    assert (report.kept, report.memory["workers"]) == (400, 1)
    assert report.memory["actions"] == {"fewer_workers": 1}
    assert report.memory["bytes_held_after_setup"]["model_for_tests"] == pytest.approx(350_000_000, rel=0.05)
    report = run(tmp_path, steps.replace("'out')", "'out', mode='overwrite')"), "1GB", workers=2)
    assert report.kept == 400
    assert report.memory["actions"] == {}


def test_pages_of_a_mapped_file_are_not_what_a_step_holds_after_its_setup(tmp_path):
    (tmp_path / "zeros").write_bytes(bytes(60_000_000))
    step = DeclaresForTests(file=str(tmp_path / "zeros"))
    report = Pipeline(Rows([{"text": "a"}]), step).run(memory="1GB", workers=1)
    assert report.memory["bytes_held_after_setup"] == {}


def test_a_model_too_large_for_any_worker_is_reported(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "abc"}\n')
    steps = Pipeline(JsonlReader(tmp_path / "in.jsonl"), ModelForTests(num_bytes=3_000_000_000))
    with pytest.raises(BudgetError, match="`model_for_tests` ran out of memory during setup") as told:
        steps.run(memory="1GB", workers=2)
    assert "try --memory" in str(told.value.hint)


def test_what_the_caller_held_before_is_not_the_run_s(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"id": 1, "text": "abc"}\n')
    held = "globals().update(held=b'x' * 900_000_000)"
    report = run(tmp_path, f"[{held} or JsonlReader(folder / 'in.jsonl'), JsonlWriter(folder / 'out')]")
    assert report.kept == 1
    manifest = json.loads((tmp_path / "out" / ".tamis" / "manifest.json").read_text())
    assert "MB that the caller held before" in json.dumps(manifest)


def test_the_same_rows_at_every_budget(tmp_path):
    with (tmp_path / "in.jsonl").open("w") as file:
        for number in range(30_000):
            file.write(json.dumps({"id": number, "text": f"text {number} " * 20}) + "\n")
    seen = set()
    for memory in ("512MB", "800MB", "2GB"):
        run(
            tmp_path,
            f"[JsonlReader(folder / 'in.jsonl'), GrowForTests(factor=3), JsonlWriter(folder / '{memory}')]",
            memory,
            workers=2,
        )
        seen.add(b"".join(file.read_bytes() for file in sorted((tmp_path / memory).glob("part-*"))))
    assert len(seen) == 1
