"""Kernels that are not on disk yet: compiled outside the cap, and no worker dies of it."""

import fcntl
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from tamis.executors.compiling import Compiling, CompilingTime, KernelsCompiled

ROOT = Path(__file__).parent.parent.parent
RECIPE = """
steps:
  - jsonl_reader: {file_paths: in/, files_per_partition: 1}
  - word_count: {min_words: 2}
  - mean_word_length
  - jsonl_writer: {path: out}
"""


@pytest.mark.slow
def test_compiling_stays_inside_a_small_budget_and_the_next_run_finds_the_kernels(tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(4):
        (tmp_path / "in" / f"{number}.jsonl").write_text('{"text": "some words to count"}\n{"text": "one"}\n' * 50)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    command = [sys.executable, "-m", "tamis", "run", "recipe.yaml", "--memory", "800MB", "--workers", "2"]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "kernels"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("compiling kernels (once on this machine)") == 1
    assert "died" not in done.stderr
    report = json.loads((tmp_path / "out" / ".tamis" / "report.json").read_text())
    assert (report["read"], report["kept"], report["failed"]) == (400, 200, 0)
    assert report["peak_memory_bytes"] <= 800_000_000
    compiled = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "kernels").rglob("*.nbc")}
    assert compiled

    done = subprocess.run([*command, "--fresh"], cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "compiling" not in done.stderr
    assert compiled == {path.name: path.stat().st_mtime_ns for path in (tmp_path / "kernels").rglob("*.nbc")}


@pytest.fixture
def lock(tmp_path, monkeypatch):
    """Where the lock file is, in a temporary folder of this test's own; the cap of this process stays as it is."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    return tmp_path / f"tamis-compiling-{os.getuid()}.lock"


def begin(announced):
    compiling = Compiling(lambda: announced.append(True))
    compiling._begin(SimpleNamespace(py_func=begin_in_tamis))
    return compiling


def begin_in_tamis():
    """Stands for a kernel of ours."""


begin_in_tamis.__module__ = "tamis.kernels.anything"


def test_one_worker_compiles_at_a_time(lock):
    announced = []
    compiling = begin(announced)
    assert announced == [True]
    with lock.open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    compiling.release()
    with lock.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(KernelsCompiled):
        compiling.look()


def test_a_link_under_the_name_of_the_lock_is_not_followed_and_work_continues(lock, tmp_path):
    lock.symlink_to(tmp_path / "elsewhere")
    announced = []
    begin(announced).release()
    assert announced == [True]
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.parent.rename(path.parent.with_name("gone"))])
def test_work_continues_where_no_lock_file_can_be_created(lock, make):
    make(lock)
    announced = []
    begin(announced).release()
    assert announced == [True]


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_kernels_that_take_a_moment_are_not_announced_and_those_that_take_longer_are_once():
    clock, announced = Clock(), []
    compiling = CompilingTime(lambda: announced.append(clock.now), clock)
    for worker, (begun, ended) in enumerate([(0.0, 0.5), (60.0, 60.6)]):
        clock.now = begun
        compiling.begin(worker)
        clock.now = ended
        compiling.look()
        compiling.end(worker)
        clock.now = ended + 30.0
        compiling.look()
    assert announced == [], "1.1 s of 90"
    clock.now = 100.0
    compiling.begin(7)
    for moment in (100.2, 101.0, 101.2, 130.0):
        clock.now = moment
        compiling.look()
    assert announced == [101.0], "0.5 + 0.6 + 1.0 s"
