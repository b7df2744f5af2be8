"""Edit a script between two runs: the steps that the edit concerns are redone, and no others."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SCRIPT = '''
import functools
import sys
import threading

import helpers
from helpers import shorten
from tamis import Filter, JsonlWriter, Map, Pipeline, Rows, at_least, operator, step

LIMIT = 3


def double(text):
    return text * 2


def uses_helper(row):
    """A docstring."""
    return {"text": double(row["text"])}


def uses_global(row):
    return len(row["text"]) > LIMIT


def uses_module(row):
    return {"text": helpers.clean(row["text"])}


def uses_imported(row):
    return {"text": shorten(row["text"])}


def uses_generator(row):
    return all(len(word) > 3 for word in row["text"].split())


def take(size, row):
    return {"text": row["text"][:size]}


class Prefix:
    def __init__(self, text):
        self.text = text

    def __call__(self, row):
        return {"text": self.text + row["text"]}


@operator(reads="text", writes="size")
class Size(Filter):
    min_size: int = 1

    def score(self, batch):
        return {"size": [len(text) + 0 for text in batch["text"].to_pylist()]}

    def rules(self):
        return [at_least("size", self.min_size)]


@operator(reads="text", writes="text", version=1)
class Upper(Map):
    def apply(self, batch):
        return {"text": [text.upper() for text in batch["text"].to_pylist()]}


LOCK = threading.Lock()


def locked(row):
    with LOCK:
        return True


STEPS = {
    "helper": uses_helper,
    "global": uses_global,
    "module": uses_module,
    "imported": uses_imported,
    "generator": uses_generator,
    "partial": functools.partial(take, 5),
    "object": Prefix("a "),
    "method": Prefix("b ").__call__,
    "class": Size(),
    "versioned": step(uses_helper, version=1),
    "versioned_class": Upper(),
    "locked": locked,
    "locked_versioned": step(locked, version=1),
}
if __name__ == "__main__":
    for name, chosen in STEPS.items():
        rows = Rows([{"text": "one word more"}, {"text": "and another"}, {"text": "x"}])
        job = Pipeline(rows, chosen, JsonlWriter(f"out/{name}"))
        report = job.run(executor="inline" if name != "helper" else "local", workers=1)
        print(name, report.state)
        for note in report.notes:
            print("note", note)
'''
HELPERS = """
def clean(text):
    return text.strip()

def shorten(text):
    return _first(text, 4)

def _first(text, size):
    return text[:size]
"""
EDITS = {
    "helper": ("return text * 2", "return text * 3"),
    "global": ("LIMIT = 3", "LIMIT = 12"),
    "generator": ("len(word) > 3", "len(word) > 100"),
    "partial": ("functools.partial(take, 5)", "functools.partial(take, 6)"),
    "object": ('Prefix("a ")', 'Prefix("c ")'),
    "method": ('Prefix("b ")', 'Prefix("d ")'),
    "class": ("len(text) + 0", "len(text) - 5"),
    "versioned_class": ("text.upper()", "text.title()"),
}
MODULE_EDITS = {"module": ("text.strip()", "text.strip('x')"), "imported": ("text[:size]", "text[1:size]")}
NEVER_REUSED = {"locked"}


def run(folder, source, helpers, seed="0"):
    (folder / "job.py").write_text(textwrap.dedent(source))
    (folder / "helpers.py").write_text(helpers)
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[1])
    done = subprocess.run([sys.executable, "job.py"], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
    return {name: text for name, text in lines if name != "note"}, [text for name, text in lines if name == "note"]


def edited(source, edits):
    for before, after in edits.values():
        assert source.count(before) == 1, before
        source = source.replace(before, after)
    return source


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("job")
    run(made, SCRIPT, HELPERS)
    return made


def test_a_second_run_does_nothing_but_what_cannot_be_compared(folder):
    states, notes = run(folder, SCRIPT, HELPERS, seed="1")
    assert {name for name, state in states.items() if state != "unchanged"} == NEVER_REUSED
    assert notes == [
        "step 2, `locked`, is redone in every run: it uses `locked.LOCK` (_thread.lock), which cannot be compared between "
        "runs; to reuse its work, set a version by hand: step(locked, version=1)"
    ]


def test_comments_docstrings_and_blank_lines_redo_nothing(folder):
    source = SCRIPT.replace('"""A docstring."""', '"""Another."""\n    # and a comment').replace(
        "LIMIT", "\n\nLIMIT", 1
    )
    states, _ = run(folder, source, "# a comment\n" + HELPERS)
    assert {name for name, state in states.items() if state != "unchanged"} == NEVER_REUSED


def test_each_edit_redoes_the_steps_it_concerns(folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    states, notes = run(tmp_path, edited(SCRIPT, EDITS), edited(HELPERS, MODULE_EDITS))
    redone = {name for name, state in states.items() if state == "finished"}
    assert redone == {*EDITS, *MODULE_EDITS, *NEVER_REUSED} - {"versioned_class"}
    assert "step 2, `uses_helper`: its code changed" in notes
    lines = {name: [] for name in states}
    for file in tmp_path.glob("out/*/part-*.jsonl"):
        lines[file.parent.name] += file.read_text().splitlines()
    assert lines["helper"][2] == '{"text":"xxx"}'
    assert lines["imported"][1] == '{"text":"nd "}'
    assert lines["partial"][0] == '{"text":"one wo"}'
    assert lines["object"][2] == '{"text":"c x"}'
    assert len(lines["global"]) == 1
    assert len(lines["class"]) == 2
    assert lines["generator"] == []
    assert lines["versioned_class"][0] == '{"text":"ONE WORD MORE"}'
