"""The live view, on a real pseudo-terminal."""

import json
import os
import pty
import re
import subprocess
import sys

import pytest

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_a_terminal(arguments, folder, **environment):
    """Run a command on a terminal of 100 columns; its exit code, stdout, and what the terminal received."""
    outer, inner = pty.openpty()
    variables = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30", **environment}
    command = [sys.executable, "-m", "tamis", *arguments]
    process = subprocess.Popen(command, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=inner)
    os.close(inner)
    shown = b""
    while True:
        try:
            part = os.read(outer, 65536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        shown += part
    out = process.stdout.read().decode()
    process.stdout.close()
    os.close(outer)
    return process.wait(), out, shown.decode()


def test_a_run_shows_one_view_and_leaves_results_on_stdout(tmp_path):
    rows = [{"id": number, "text": "word " * (number % 9)} for number in range(60)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["run", "length", "--input", "in.jsonl", "--output", "out", "--set", "word_count.min_words=3", "--json"]
    code, out, shown = on_a_terminal([*arguments, "--workers", "1"], tmp_path, NO_COLOR="1")
    assert (code, json.loads(out)["kept"]) == (0, 39)
    lines = [line.rstrip() for line in ESCAPE.sub("", shown).replace("\r", "\n").splitlines() if line.strip()]
    assert any(line.startswith("run ") and "100%" in line for line in lines)
    assert any(re.match(r"jsonl_reader.* +60 +39", line) for line in lines)
    assert "\x1b[?25h" in shown  # the cursor is visible again
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", shown)  # no colours
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_a_narrow_terminal_shows_numbers_in_full(tmp_path, columns):
    rows = [{"id": number, "text": "word " * (number % 9)} for number in range(60)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["run", "length", "--input", "in.jsonl", "--output", "out", "--set", "word_count.min_words=3"]
    code, _, shown = on_a_terminal([*arguments, "--workers", "1"], tmp_path, NO_COLOR="1", COLUMNS=str(columns))
    assert code == 0
    lines = [line.rstrip() for line in ESCAPE.sub("", shown).replace("\r", "\n").splitlines() if line.strip()]
    last = [line for line in lines if line.startswith("jsonl_r")][-1]
    assert re.search(r" 60 +39 .*[0-9] [kM]?B/s$", last)
    assert len(last) <= columns
