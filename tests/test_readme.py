"""What README.md shows can be run as it stands, in an empty folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
PYTHON = [text for kind, text in BLOCKS if kind == "python"]
RECIPES = [text for kind, text in BLOCKS if kind == "yaml"]
# Behind two spaces a line explains itself.
SHELL = [
    re.split(r"\s{2,}|\s#", line)[0]
    for kind, text in BLOCKS
    if kind in ("", "sh", "bash", "console")
    for line in text.splitlines()
    if line.startswith("tamis ")
]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"},
    )


def test_there_is_something_to_run():
    assert PYTHON
    assert RECIPES
    assert SHELL


@pytest.mark.slow
@pytest.mark.parametrize("code", PYTHON, ids=range(len(PYTHON)))
def test_python_runs_and_prints_what_it_says(code, tmp_path):
    (tmp_path / "example.py").write_text(code)
    result = run(tmp_path, "example.py")
    assert result.returncode == 0, result.stderr
    said = re.findall(r"^print\(.*\)\s+# (.*)$", code, re.M)
    assert result.stdout.splitlines()[: len(said)] == said


@pytest.mark.slow
def test_commands_run_in_the_order_shown(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"text": "one two three four"}\n{"text": "one"}\n' * 50)
    (tmp_path / "recipe.yaml").write_text(RECIPES[0])
    for line in SHELL:
        result = run(tmp_path, "-m", *shlex.split(line))
        assert result.returncode == 0, f"{line}\n{result.stderr}"
