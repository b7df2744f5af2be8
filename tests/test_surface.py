"""The surface of the command line: completion, positions of mistakes, exit codes, colours and progress."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tamis.cli import main
from tamis.commands import printing

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}


def complete(folder, *words: str) -> list[str]:
    """What a shell offers for the last word, through the protocol of its completion script."""
    environment = {
        **ENVIRONMENT,
        "_TAMIS_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_ARGS": " ".join(words),
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_TESTING": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tamis"], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return [line.partition("\t")[0] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("tamis", "reth"), ["rethreshold"]),
        (("tamis", "run", "fineweb_"), ["fineweb_from_warc"]),
        (("tamis", "recipes", "len"), ["length"]),
        (("tamis", "ops", "gopher_"), ["gopher_quality", "gopher_repetition"]),
        (("tamis", "run", "length", "--set", "wor"), ["word_count."]),
        (("tamis", "run", "length", "--set", "word_count.min"), ["word_count.min_words="]),
        (("tamis", "check", "gopher", "--set", "gopher_quality.dialect=do"), ["gopher_quality.dialect=dolma"]),
        (("tamis", "run", "length", "--executor", "r"), ["ray"]),
        (("tamis", "run", "nowhere.yaml", "--set", "w"), []),
        (("tamis", "run", "length", "--no-p"), ["--no-progress"]),
    ],
    ids=lambda value: "-".join(value[1:]) if isinstance(value, tuple) else "",
)
def test_the_shell_completes(tmp_path, words, offered):
    assert complete(tmp_path, *words) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_completion_script_for(shell):
    environment = {**ENVIRONMENT, "_TAMIS_COMPLETE": f"source_{shell}"}
    done = subprocess.run([sys.executable, "-m", "tamis"], env=environment, capture_output=True, text=True, check=True)
    assert "_TAMIS_COMPLETE" in done.stdout


TYPED = {  # words as bash splits them, at `=` too; the line from its last part on
    ("tamis run gopher --set gopher_q", "tamis run gopher --set gopher_q"): "gopher_quality.|nospace",
    ("tamis run gopher --set gopher_quality.dia", "tamis run gopher --set gopher_quality.dia"): (
        "gopher_quality.dialect=|nospace"
    ),
    ("tamis run gopher --set gopher_quality.dialect=", "tamis run gopher --set gopher_quality.dialect ="): (
        "datatrove dolma dclm redpajama paper|"
    ),
    (
        "tamis run gopher --set gopher_quality.dialect=do",
        "tamis run gopher --set gopher_quality.dialect = do",
    ): "dolma|",
    ("tamis run gopher --set a.b=3 --set gopher_r", "tamis run gopher --set a.b = 3 --set gopher_r"): (
        "gopher_repetition.|nospace"
    ),
    ("tamis run gopher --input a", "tamis run gopher --input a"): "|",  # bash then completes files
}


def test_bash_completes_the_part_of_a_word_after_an_equals_sign(tmp_path):
    (tmp_path / "tamis").write_text(f'#!/bin/bash\nexec {sys.executable} -m tamis "$@"\n')
    (tmp_path / "tamis").chmod(0o755)
    lines = ['eval "$(tamis --show-completion bash)"', "compopt() { options=$2; }"]
    for line, words in TYPED:
        lines += [
            f"COMP_WORDS=({words}) COMP_LINE='{line}' COMP_POINT={len(line)} COMP_CWORD={len(words.split()) - 1} options=",
            '_tamis_completion tamis; echo "${COMPREPLY[*]}|$options"',
        ]
    environment = {**ENVIRONMENT, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == list(TYPED.values())


# ---------------------------------------------------------------------------------------------------- mistakes in recipes


def check(folder, recipe, *more):
    """The exit code of `tamis check` with this recipe."""
    (folder / "r.yaml").write_text(recipe)
    (folder / "in.jsonl").write_text('{"text": "one two"}\n')
    ends = ["--input", str(folder / "in.jsonl"), "--output", str(folder / "out")]
    return main(["check", str(folder / "r.yaml"), *ends, *more])


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        ("steps:\n  - word_count: {min_words: 3\n", "line 3, column 1: expected ',' or '}'"),
        ("steps:\n\t- word_count\n", "line 2, column 1: a tab stands where only spaces can"),
        ("steps:\n  - word_count: {min_words: *x}\n", "line 2, column 29: a recipe cannot use anchors"),
        ("memory: 1GB\nstepz: []\n", "line 2, column 1: unknown key `stepz`"),
        ("memory: lots\nsteps: [word_count]\n", "line 1, column 9: 'lots' is not a size"),
        ("name: 3\nsteps: [word_count]\n", "line 1, column 7: `name` must be text"),
        ("steps:\n  - word_count\n  - wordcount\n", "line 3, column 5: step 2, `wordcount`: there is no operator"),
        ("steps:\n  - word_count:\n      min_wrods: 3\n", "line 3, column 7: step 1, `word_count`: `word_count` has no"),
        ("steps:\n  - word_count: {max_words: 9, min_words: three}\n", "line 2, column 43: step 2, `word_count`: `min_words`"),
        ("steps:\n  - word_count: 3\n", "line 2, column 17: step 1, `word_count`: parameters must be names"),
        ("steps:\n  - 3\n", "line 2, column 5: step 1 must be an operator"),
        ("steps:\n  - tokenize\n", "line 2, column 5: step 2, `tokenize`: `tokenize` needs `model`"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_recipe_is_found_at_its_line_and_column(tmp_path, capsys, recipe, says):
    assert check(tmp_path, recipe) == 2
    assert f"r.yaml, {says}" in capsys.readouterr().err


def test_a_mistake_on_the_command_line_is_not_blamed_on_the_file(tmp_path, capsys):
    recipe = "steps:\n  - word_count: {min_words: 3}\n"
    assert check(tmp_path, recipe, "--set", "word_count.min_words=many") == 2
    assert "line 2, column 5: step 2, `word_count`: `min_words`" in capsys.readouterr().err


# -------------------------------------------------------------------------------------------------- progress and colours


@pytest.fixture
def job(tmp_path):
    rows = "".join(json.dumps({"text": f"one two three {number}"}) + "\n" for number in range(50))
    (tmp_path / "in.jsonl").write_text(rows)
    return ["run", "length", "--input", "in.jsonl", "--output", "out", "--workers", "1", "--memory", "1GB"]


def on_a_terminal(folder, *arguments: str, **variables: str) -> str:
    """What a command draws on a terminal."""
    outer, inner = pty.openpty()
    environment = {**ENVIRONMENT, "TERM": "xterm-256color", **variables}
    command = [sys.executable, "-m", "tamis", *arguments]
    process = subprocess.Popen(command, cwd=folder, env=environment, stdin=inner, stdout=inner, stderr=inner)
    os.close(inner)
    drawn = b""
    while True:
        try:
            piece = os.read(outer, 65536)
        except OSError:  # the terminal is closed with its last process
            break
        if not piece:
            break
        drawn += piece
    os.close(outer)
    assert process.wait() == 0, drawn.decode()
    return drawn.decode()


COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-7]|38|4[0-7]|48|9[0-7])(?:;\d+)*m")


def test_no_color_turns_colours_off(tmp_path, job):
    assert COLOUR.search(on_a_terminal(tmp_path, *job))
    assert not COLOUR.search(on_a_terminal(tmp_path, *job, "--fresh", NO_COLOR="1"))


def test_no_progress_leaves_the_summary(tmp_path, job):
    drawn = on_a_terminal(tmp_path, *job, "--no-progress")
    assert "results are in out" in drawn
    assert "\x1b" not in drawn
    assert "MB/s" not in drawn


# ------------------------------------------------------------------------------------------------------------ exit codes

ROOT = Path(__file__).parent.parent


def test_the_documented_exit_codes_are_those_of_the_module():
    listed = re.findall(r"^(\d+) +(.+)$", printing.__doc__, re.M)
    page = (ROOT / "docs" / "commands.md").read_text()
    assert re.findall(r"^\| (\d+) \| (.+) \|$", page, re.M) == listed
    named = {printing.BAD_USE, printing.TOO_MANY_FAILED, printing.NOT_OK, printing.INTERRUPTED, printing.BROKEN_PIPE}
    assert {int(code) for code, _ in listed} == {0, 1, *named}


def test_commands_exit_with_these_codes(tmp_path, monkeypatch, capsys):
    """130 and 141 are in test_cli.py, with the signals that lead to them."""
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_text('{"text": "one two"}\nbroken\n')
    job = ["run", "length", "--input", "in.jsonl", "--output", "out", "--executor", "inline"]
    assert main([*job, "--max-failed", "50%", "--set", "word_count.min_words=1"]) == 0
    assert main(["grep", "three", "out"]) == 1
    assert main(["run", "lenght"]) == 2
    assert main(["run", "--nonsense"]) == 2
    assert main([*job, "--output", "out-2", "--strict"]) == 3
    next(Path("out").glob("part-*")).write_text("damaged")
    assert main(["verify", "out"]) == 4
    capsys.readouterr()


@pytest.mark.parametrize("command", ["run gopher", "rethreshold", "stats", "dedup exact", "dedup substrings"])
def test_commands_that_run_a_pipeline_have_the_same_options(command, capsys):
    assert main([*command.split(), "--help"]) == 0
    text = capsys.readouterr().out
    for option in ("--memory", "--scratch", "--json", "--no-progress", "--quiet"):
        assert re.search(rf"^ +{option}\b", text, re.MULTILINE), option


def test_quiet_silences_rethreshold_and_stats(tmp_path, capfd):
    (tmp_path / "in.jsonl").write_text('{"text": "one two three"}\n{"text": "one"}\n')
    out = str(tmp_path / "out")
    given = ["--input", str(tmp_path / "in.jsonl"), "--output", out, "--executor", "inline"]
    assert main(["run", "length", *given, "--scores", "--quiet"]) == 0
    assert main(["rethreshold", out, "--set", "word_count.min_words=2", "--quiet"]) == 0
    assert capfd.readouterr() == ("", "")
    assert main(["stats", str(tmp_path / "in.jsonl"), "--quiet", "--no-language"]) == 0
    assert capfd.readouterr().err == ""
