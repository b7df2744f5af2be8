"""Operators of another package, registered as entry points of `tamis.operators`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import tamis

MODULE = '''
import os

from tamis.operators import Map, operator


@operator(reads="text", writes=("shout", "pid"))
class Shout(Map):
    """Convert texts to upper case."""

    mark: str = "!"

    def apply(self, batch):
        texts = batch["text"].to_pylist()
        return {"shout": [text.upper() + self.mark for text in texts], "pid": [os.getpid()] * len(texts)}
'''

RECIPE = "steps:\n- jsonl_reader: {file_paths: in.jsonl}\n- shout: {mark: '?'}\n- jsonl_writer: {path: out}\n"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the package `loud` as pip would install it: a module and its dist-info."""
    folder = tmp_path / "site"
    info = folder / "loud-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "loud.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: loud\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tamis.operators]\nloud = loud\n")
    return folder


@dataclass(frozen=True)
class Ended:
    pid: int
    code: int
    out: str
    err: str


def shell(site: Path | None, folder: Path, *arguments: str) -> Ended:
    path = [str(Path(tamis.__file__).parents[1]), *([str(site)] if site else [])]
    with subprocess.Popen(
        [sys.executable, "-m", "tamis", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
    ) as process:
        out, err = process.communicate(timeout=120)
    return Ended(process.pid, process.returncode, out, err)


def test_an_operator_of_another_package_is_listed_and_explained(site, tmp_path):
    result = shell(site, tmp_path, "ops", "--json")
    assert result.code == 0, result.err
    assert "shout" in result.out
    result = shell(site, tmp_path, "ops", "shout")
    assert result.code == 0, result.err
    assert "Convert texts to upper case." in result.out
    assert "mark" in result.out


@pytest.mark.parametrize("options", [("--executor", "inline"), ("--workers", "1")], ids=["inline", "worker"])
def test_an_operator_of_another_package_runs_from_a_recipe(site, tmp_path, options):
    (tmp_path / "in.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    result = shell(site, tmp_path, "run", "recipe.yaml", "--json", *options)
    assert result.code == 0, result.err
    report = json.loads(result.out)
    assert (report["read"], report["kept"], report["failed"]) == (2, 2, 0)
    rows = [json.loads(line) for file in (tmp_path / "out").glob("*.jsonl") for line in file.read_text().splitlines()]
    assert [row["shout"] for row in rows] == ["ONE?", "TWO?"]
    assert all((row["pid"] == result.pid) == (options[1] == "inline") for row in rows)


def test_without_the_package_its_operator_is_unknown(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "one"}\n')
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    result = shell(None, tmp_path, "run", "recipe.yaml")
    assert result.code != 0
    assert "there is no operator `shout`" in result.err
    assert "Traceback" not in result.err
