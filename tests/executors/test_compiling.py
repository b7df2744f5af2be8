"""Kernels that are not on disk yet: compiled outside the cap, and no worker dies of it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
    assert done.stderr.count("compiling kernels, once on this machine") == 1
    assert "died" not in done.stderr
    report = json.loads((tmp_path / "out" / "_tamis" / "report.json").read_text())
    assert (report["read"], report["kept"], report["failed"]) == (400, 200, 0)
    assert report["peak_memory_bytes"] <= 800_000_000
    compiled = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "kernels").rglob("*.nbc")}
    assert compiled

    done = subprocess.run([*command, "--fresh"], cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "compiling" not in done.stderr
    assert compiled == {path.name: path.stat().st_mtime_ns for path in (tmp_path / "kernels").rglob("*.nbc")}
