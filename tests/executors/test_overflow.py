"""Steps that take more memory than a worker may hold: the row that does not fit fails, all others are kept."""

import json
import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tamis.report import Report

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="caps are for Linux")

LEAKED = []


def leaks(row):
    """Keeps ten megabytes of every twentieth row for good."""
    if row["n"] % 20 == 0:
        LEAKED.append(np.ones(10_000_000 // 8))
    return {"double": 2 * row["n"]}


def shares(row):
    """Fills shared memory, which no limit of the kernel counts, and waits to be stopped."""
    if row["n"] == 7:
        held = mmap.mmap(-1, 700_000_000)
        page = b"x" * 4096
        for start in range(0, len(held) - 4096, 4096):
            held[start : start + 4096] = page
        signal.pause()
    return True


def starts_processes(row):
    """Starts four processes, none of which holds too much by itself, and waits to be stopped."""
    if row["n"] == 7:
        code = "held = b'x' * 150_000_000; import signal; signal.pause()"
        for _ in range(4):
            subprocess.Popen([sys.executable, "-c", code])
        signal.pause()
    return True


def takes_everything(row):
    """Needs more than there is for one row."""
    return {"sum": float(np.ones(1_000_000_000).sum())} if row["n"] == 7 else {"sum": 0.0}


SCRIPT = """
import json, sys
from pathlib import Path
from tamis import JsonlWriter, Pipeline, Rows
from tests.executors import test_overflow
folder, function, rows, memory, workers = sys.argv[1:]
source = Rows([{"n": n} for n in range(int(rows))])
steps = [getattr(test_overflow, function), JsonlWriter(folder)]
report = Pipeline(source, *steps).run(memory=memory, workers=int(workers))
print(json.dumps(report.as_dict()))
"""


def run(folder, function, *, rows, memory="600MB", workers=1):
    """The report and the numbers of the rows written, from a process whose memory is that of the run alone."""
    command = [sys.executable, "-c", SCRIPT, str(folder), function, str(rows), memory, str(workers)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(Path.cwd())})
    assert done.returncode == 0, done.stderr
    report = Report(**json.loads(done.stdout))
    assert report.balances
    written = [
        json.loads(line)["n"] for file in sorted(folder.glob("part-*")) for line in file.read_text().splitlines()
    ]
    return report, written


def failures(folder):
    return [
        json.loads(line) for file in (folder / ".tamis" / "failed").iterdir() for line in file.read_text().splitlines()
    ]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_step_that_leaks_loses_no_row(tmp_path, workers):
    report, written = run(tmp_path, "leaks", rows=900, memory="500MB", workers=workers)
    assert written == list(range(900))
    assert report.failed == 0
    assert report.memory["actions"]["divide"] >= 1
    assert len(list(tmp_path.glob("part-000000-*.jsonl"))) > 1
    assert report.peak_memory_bytes <= 500_000_000


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "memory"), [(1, "600MB"), (2, "600MB"), (3, "500MB")])
def test_a_step_that_leaks_gives_the_same_rows_with_any_number_of_workers(tmp_path, workers, memory):
    report, written = run(tmp_path, "leaks", rows=2000, memory=memory, workers=workers)
    assert (written, report.failed) == (list(range(2000)), 0)


@pytest.mark.parametrize("function", ["shares", "starts_processes"])
def test_memory_that_the_cap_does_not_see_is_measured_and_its_row_fails(tmp_path, function):
    report, written = run(tmp_path, function, rows=20, workers=2)
    assert written == [n for n in range(20) if n != 7]
    (failure,) = failures(tmp_path)
    assert failure["row"] == {"n": 7}
    assert f"in `{function}`, more than the" in failure["error"]
    assert report.memory["actions"]["stop"] >= 1


@pytest.mark.parametrize("workers", [1, 2])
def test_a_row_that_does_not_fit_fails_alone_and_says_so(tmp_path, workers):
    report, written = run(tmp_path, "takes_everything", rows=20, workers=workers)
    assert written == [n for n in range(20) if n != 7]
    (failure,) = failures(tmp_path)
    assert "needs more memory than a worker may hold" in failure["error"]
    assert (failure["step"], report.kept, report.failed) == ("takes_everything", 19, 1)
