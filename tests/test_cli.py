from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer

import tamis
from tamis.cli import app, main
from tamis.help import EXAMPLES

LONG, SHORT = "one two three four five", "one two"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with input, as the current directory."""
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    for name in ("a", "b"):
        rows = [{"text": LONG, "id": f"{name}{n}"} for n in range(3)] + [{"text": SHORT, "id": f"{name}9"}]
        Path(f"in/{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.fixture
def invoke(capsys):
    """Run a command line; exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        out, err = capsys.readouterr()
        return code, out, err

    return run


def shell(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tamis", *arguments], capture_output=True, text=True, timeout=120, check=False, **options
    )


RUN = ("run", "length", "--input", "in", "--output", "out", "--set", "word_count.min_words=3", "--executor", "inline")


# ------------------------------------------------------------------------------------------------- files that it writes


@pytest.mark.parametrize(
    "command",
    [
        ("report", "out", "--html"),
        ("report", "out", "--contact-sheet"),
        ("stats", "in", "--no-language", "--html"),
        ("schema", "--output"),
        ("train-classifier", "--positive", "in/a.jsonl", "--negative", "in/b.jsonl", "-o"),
        ("train-language-model", "--input", "in", "-o"),
    ],
)
def test_a_file_that_cannot_be_written_is_an_error_before_anything_is_computed(here, invoke, command):
    assert invoke(*RUN, "--quiet")[0] == 0
    Path("folder").mkdir()
    code, out, err = invoke(*command, "folder")
    assert (code, out) == (2, "")
    assert (
        err == "error: folder cannot be written: Is a directory\n\nhint: choose another file, or fix its permissions\n"
    )
    code, out, err = invoke(*command, "in/a.jsonl/below")
    assert (code, out) == (2, "")
    assert err.startswith("error: in/a.jsonl/below cannot be written: ")


def test_the_folder_of_a_page_is_made(here, invoke):
    assert invoke(*RUN, "--quiet")[0] == 0
    assert invoke("report", "out", "--html", "pages/a/report.html")[0] == 0
    assert Path("pages/a/report.html").read_text().startswith("<!doctype html>")


# -------------------------------------------------------------------------------------------------------- what there is


@pytest.mark.parametrize("group", ["dedup", "download"])
def test_a_group_without_a_command_lists_its_commands(invoke, group):
    code, out, err = invoke(group)
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: tamis {group}")


def test_a_value_that_is_not_a_choice_is_named_with_the_choices(invoke):
    code, _, err = invoke("new-operator", "a_b", "--kind", "bogus")
    assert code == 2
    assert err.startswith("error: Invalid value for '--kind': 'bogus' is not one of 'filter', 'map', 'expand'")


def leaves(command: typer.core.TyperGroup, path: tuple[str, ...] = ()) -> dict[str, typer.core.TyperCommand]:
    """All commands that do something, by name."""
    found = {}
    for name, each in command.commands.items():
        found |= leaves(each, (*path, name)) if hasattr(each, "commands") else {" ".join((*path, name)): each}
    return found


def test_the_help_of_every_command_ends_with_an_example_that_can_be_parsed():
    commands = leaves(typer.main.get_command(app))
    assert set(commands) <= set(EXAMPLES)
    for name, command in commands.items():
        program, *arguments = shlex.split(EXAMPLES[name])
        assert [program, *arguments][: 1 + len(name.split())] == ["tamis", *name.split()]
        context = command.make_context(f"tamis {name}", arguments[len(name.split()) :])
        context.info_name, context.parent = f"tamis {name}", None
        assert " ".join(command.get_help(context).split()).endswith(f"Example: {EXAMPLES[name]}")


def test_the_commands_and_options_are_these():
    command = typer.main.get_command(app)
    flags = {
        name: sorted(option for parameter in each.params for option in parameter.opts if option.startswith("-"))
        for name, each in command.commands.items()
    }
    assert flags == {
        "run": [
            "--address", "--card", "--dashboard",
            "--device", "--exchange", "--executor", "--fresh", "--gpu-memory", "--input", "--json", "--keep-work",
            "--license", "--max-failed", "--max-seconds", "--memory", "--metrics-port", "--no-progress", "--on-error",
            "--on-overflow", "--output", "--quiet",
            "--rejects", "--scores", "--scratch", "--set", "--shard", "--shard-wait", "--strict", "--tokenizer",
            "--trace",
            "--workers",
        ],
        "merge": ["--exchange", "--json", "--max-failed", "--partial", "--quiet"],
        "check": ["--input", "--output", "--set"],
        "explain": [
            "--device", "--gpu-memory", "--input", "--json", "--memory", "--output", "--scratch", "--set", "--workers",
        ],
        "profile": [
            "--device", "--gpu-memory", "--input", "--json", "--memory", "--output", "--rows", "--scratch", "--set",
        ],
        "rethreshold": ["--json", "--memory", "--no-progress", "--output", "--quiet", "--scratch", "--set", "--workers"],
        "verify": ["--forget", "--json"],
        "memory": ["--json", "--watch"],
        "ops": ["--json"],
        "recipes": ["--json"],
        "report": ["--column", "--contact-sheet", "--failed", "--html", "--json", "--memory", "--rejects"],
        "clips": [],
        "dashboard": ["--host", "--port", "--token"],
        "dedup": [],
        "init": ["--force", "--output", "--recipe"],
        "new-operator": ["--folder", "--force", "--kind"],
        "schema": ["--output"],
        "doctor": ["--json"],
        "download": [],
        "head": ["--column", "--fate", "--full", "--json", "--rows", "-n"],
        "sample": ["--column", "--fate", "--full", "--json", "--rows", "--seed", "-n"],
        "grep": [
            "--count", "--fate", "--fixed", "--full", "--ignore-case", "--in", "--json", "--rows",
            "-F", "-c", "-i", "-n",
        ],
        "why": ["--json"],
        "compare": ["--examples", "--json", "--key"],
        "stats": flags["stats"],
        "train-classifier": flags["train-classifier"],
        "train-language-model": flags["train-language-model"],
    }  # fmt: skip
    assert sorted(option for parameter in command.params for option in parameter.opts) == [
        "--install-completion",
        "--show-completion",
        "--version",
    ]


def test_the_command_line_starts_without_heavy_packages():
    code = (
        "import sys, tamis.cli; tamis.cli.main(['--help']); "
        "print([name for name in ('pyarrow', 'numpy', 'numba', 'yaml', 'rich', 'fsspec') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.splitlines()[-1] == "[]"
    assert "Usage: tamis" in result.stdout


def test_version(invoke):
    assert invoke("--version") == (0, f"tamis {tamis.__version__}\n", "")


def test_no_command_shows_the_help(invoke):
    code, out, _ = invoke()
    assert code == 0
    assert "Usage: tamis" in out


def test_python_m_tamis_is_the_same_command():
    assert shell("--version").stdout == f"tamis {tamis.__version__}\n"


# -------------------------------------------------------------------------------------------------------------- running


def test_a_run_prints_its_report_and_where_the_results_are(here, invoke):
    code, out, err = invoke(*RUN)
    assert code == 0
    assert out == ""
    assert "words < 3" in err
    assert "results are in out" in err
    assert sum(len(file.read_text().splitlines()) for file in Path("out").glob("*.jsonl")) == 6


def test_a_run_in_worker_processes(here):
    result = shell(
        "run", "length", "--input", "in", "--output", "out", "--set", "1.limit=1", "--workers", "2", "--json"
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["read"] == report["kept"] + sum(report["dropped"].values())
    assert "2 workers" in result.stderr or "1 worker" in result.stderr


def test_json_is_the_report_and_nothing_else(here, invoke):
    code, out, err = invoke(*RUN, "--json")
    assert code == 0
    report = json.loads(out)
    assert (report["read"], report["kept"], report["dropped"], report["failed"]) == (8, 6, {"words < 3": 2}, 0)
    assert "results are in" not in err


def test_quiet_prints_nothing(here, invoke):
    assert invoke(*RUN, "--quiet") == (0, "", "")


def test_a_finished_output_is_left_alone(here, invoke):
    invoke(*RUN)
    before = {file: file.stat().st_mtime_ns for file in Path("out").glob("*.jsonl")}
    code, _, err = invoke(*RUN)
    assert code == 0
    assert "nothing to do: out is complete" in err
    assert {file: file.stat().st_mtime_ns for file in Path("out").glob("*.jsonl")} == before


def test_fresh_starts_over(here, invoke):
    invoke(*RUN)
    code, out, _ = invoke(*RUN, "--fresh", "--json")
    assert code == 0
    assert json.loads(out)["state"] == "finished"


def test_a_recipe_with_reader_and_writer_needs_no_options(here, invoke):
    Path("r.yaml").write_text(
        "rejects: true\nsteps:\n- jsonl_reader: {file_paths: in}\n"
        "- word_count: {min_words: 3}\n- parquet_writer: {path: out}\n"
    )
    code, _, err = invoke("run", "r.yaml", "--executor", "inline")
    assert code == 0, err
    assert list(Path("out").glob("*.parquet"))
    assert invoke("report", "out", "--rejects", "1")[1].count("words < 3") == 2  # in the report and in the sample


def test_failed_rows_are_shown_with_every_kind_of_error(here, invoke):
    with Path("in/a.jsonl").open("a") as file:
        file.write('{"text": broken\n{"text": broken\n{"text": [1]}\n')
    code, _, err = invoke(*RUN, "--on-error", "isolate")
    assert code == 0
    assert "failed rows are in out/.tamis/failed/" in err
    errors = [line for line in err.splitlines() if "`jsonl_reader`: " in line]
    assert sum(int(line.split()[0]) for line in errors) == 3
    assert all("first at in/a.jsonl:" in line for line in errors)
    quiet = invoke(*RUN, "--on-error", "isolate", "--fresh", "--quiet")[2]
    assert quiet.startswith("3 rows failed; see out/.tamis/failed/\n")
    assert quiet.count("`jsonl_reader`: ") == len(errors)


def test_ctrl_c_during_the_imports_prints_no_traceback(tmp_path):
    """The entry that pyproject.toml names, with a parser whose import is interrupted."""
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    root = Path(__file__).parent.parent
    entry = tomllib.loads((root / "pyproject.toml").read_text())["project"]["scripts"]["tamis"]
    module, _, function = entry.partition(":")
    code = f"import sys; from {module} import {function}; sys.exit({function}())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(root)])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_an_interrupted_run_says_how_to_resume(here, invoke, monkeypatch):
    from tamis.errors import Interrupted
    from tamis.pipeline import Pipeline

    def stopped(self, **options):
        raise Interrupted("stopped: 1 of 2 partitions committed", hint="rerun the same command to resume")

    monkeypatch.setattr(Pipeline, "run", stopped)
    code, _, err = invoke(*RUN)
    assert code == 130
    assert "1 of 2 partitions committed" in err
    assert "rerun the same command to resume" in err


SLOW = """
import sys
import tomllib
from tamis.operators import Map, operator

@operator(reads="text", writes="seen")
class Signalling(Map):
    '''Asks the run to stop, as Ctrl-C does, at its first batch.'''

    def apply(self, batch):
        import os, signal
        os.kill(os.getpid(), signal.SIGINT)
        return {"seen": batch["text"]}

from tamis.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_ctrl_c_commits_what_is_in_progress_and_the_same_command_resumes(here):
    Path("slow.py").write_text(SLOW)
    Path("r.yaml").write_text(
        "steps:\n- jsonl_reader: {file_paths: in, files_per_partition: 1}\n- signalling\n- jsonl_writer: {path: out}\n"
    )
    command = [sys.executable, "slow.py", "run", "r.yaml", "--executor", "inline"]
    environment = {**os.environ, "PYTHONPATH": str(Path(tamis.__file__).parents[1])}
    first = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert first.returncode == 128 + signal.SIGINT, first.stderr
    assert "finishing the shards in progress; press Ctrl-C again to abandon them" in first.stderr
    assert "1 of 2 partitions committed" in first.stderr
    assert "rerun the same command to resume" in first.stderr
    second = subprocess.run(
        [*command, "--json"], capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert "Traceback" not in second.stderr
    assert json.loads((here / "out/.tamis/report.json").read_text())["read"] == 8


# ------------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("arguments", "says", "hint"),
    [
        (("runn",), "No such command 'runn'", "`tamis --help`"),
        (("run",), "Missing argument", "`tamis run --help`"),
        (("run", "length", "--inptu", "x"), "No such option", "`tamis run --help`"),
        (("run", "length", "--device", "tpu"), "tpu", "`tamis run --help`"),
        (("run", "lenght"), "there is no recipe `lenght`", "did you mean `length`?"),
        (("run", "no/such.yaml"), "no/such.yaml does not exist", "tamis recipes"),
        (("run", "length"), "the recipe `length` names no input", "--input"),
        (("run", "length", "--input", "in"), "the recipe `length` names no output", "--output"),
        (("run", "length", "--input", "nowhere", "--output", "out"), "nowhere", ""),
        (("run", "length", "--input", "in", "--output", "in"), "is within the input", "folder of its own"),
        (("run", "length", "--input", "in", "--output", "in/out"), "is within the input", "folder of its own"),
        ((*RUN, "--memory", "lots"), "'lots' is not a size", "256MB"),
        ((*RUN, "--workers", "many"), "--workers must be a positive number or auto, got 'many'", ""),
        ((*RUN, "--workers", "0"), "--workers must be a positive number", ""),
        ((*RUN, "--executor", "rya"), "there is no executor 'rya'", "local"),
        ((*RUN, "--set", "word_cuont.min_words=3"), "there is no step `word_cuont`", "did you mean `word_count`?"),
        ((*RUN, "--set", "word_count.min_words=few"), "step 2, `word_count`: `min_words`", ""),
        (("check", "length", "--input", "in"), "names no output", "--output"),
        (("explain", "length"), "names no input", "--input"),
        (("ops", "word_cuont"), "there is no operator `word_cuont`", "did you mean `word_count`?"),
        (("recipes", "lenght"), "there is no recipe `lenght`", "did you mean `length`?"),
        (("report", "in"), "there is no report in in", "output folder"),
        (("report", "in/a.jsonl"), "there is no report in in/a.jsonl", "output folder"),
    ],
)
def test_a_mistake_is_a_sentence_and_exit_code_2(here, invoke, arguments, says, hint):
    code, out, err = invoke(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert says in err
    assert hint in err.partition("\n\nhint: ")[2]
    assert "Traceback" not in err
    assert not Path("out").exists()


def test_a_bug_keeps_its_traceback(here, monkeypatch):
    from tamis.pipeline import Pipeline

    def broken(self, **options):
        raise ZeroDivisionError

    monkeypatch.setattr(Pipeline, "run", broken)
    with pytest.raises(ZeroDivisionError):
        main(list(RUN))


def test_a_closed_stdout_ends_the_command_silently():
    reader, pipe = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "tamis", "recipes", "--json"]
    result = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(pipe)
    assert (result.returncode, result.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_stdout_is_an_error_without_a_traceback():
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run(
            [sys.executable, "-m", "tamis", "recipes"], stdout=full, stderr=subprocess.PIPE, timeout=60, check=False
        )
    assert (result.returncode, result.stderr) == (2, b"error: stdout cannot be written: No space left on device\n")


def test_a_broken_pipe_inside_a_run_is_not_taken_for_a_closed_stdout(here, monkeypatch):
    from tamis.pipeline import Pipeline

    def broken(self, **options):
        raise BrokenPipeError(32, "broken pipe")

    monkeypatch.setattr(Pipeline, "run", broken)
    with pytest.raises(RuntimeError, match="a pipe inside the run broke"):
        main(list(RUN))


# ------------------------------------------------------------------------------------------ check, explain and listings


def test_check_counts_the_steps_and_writes_nothing(here, invoke):
    code, out, err = invoke("check", "length", "--input", "in", "--output", "out")
    assert (code, err) == (0, "")
    assert out == "ok: 3 steps: 1 jsonl_reader, 2 word_count, 3 jsonl_writer\n"
    assert not Path("out").exists()


def test_check_finds_a_missing_column(here, invoke):
    code, _, err = invoke("check", "length", "--input", "in", "--output", "out", "--set", "word_count.column=body")
    assert code == 2
    assert "`body`" in err


def test_explain_prints_text_or_json(here, invoke):
    arguments = ("explain", "length", "--input", "in", "--output", "out", "--memory", "2GB", "--workers", "1")
    code, out, err = invoke(*arguments)
    assert (code, err) == (0, "")
    assert "word_count" in out
    data = json.loads(invoke(*arguments, "--json")[1])
    assert data["memory_bytes"] == 2 * 10**9
    assert data["workers"] == 1


def test_the_command_line_overrides_settings_of_the_recipe(here, invoke):
    Path("r.yaml").write_text("memory: 3GB\nworkers: 1\nsteps: [word_count]")
    arguments = ("explain", "r.yaml", "--input", "in", "--output", "out", "--json")
    assert json.loads(invoke(*arguments)[1])["memory_bytes"] == 3 * 10**9
    assert json.loads(invoke(*arguments, "--memory", "2GB")[1])["memory_bytes"] == 2 * 10**9


def test_ops_lists_operators(invoke):
    code, out, _ = invoke("ops")
    assert code == 0
    line = next(line for line in out.splitlines() if line.startswith("word_count "))
    assert line.split()[1] == "filter"
    listed = json.loads(invoke("ops", "--json")[1])
    assert "word_count" in [each["name"] for each in listed]


def test_ops_shows_one_operator_in_full(invoke):
    _, out, _ = invoke("ops", "word_count")
    assert out.startswith("word_count (filter)")
    assert "reads: text" in out
    assert any(line.split() == ["min_words", "int", "or", "None", "50"] for line in out.splitlines())
    assert json.loads(invoke("ops", "word_count", "--json")[1])["parameters"]


def test_recipes_lists_and_prints(invoke):
    assert "length" in invoke("recipes")[1]
    _, out, _ = invoke("recipes", "length")
    assert "steps:\n  - word_count" in out
    assert json.loads(invoke("recipes", "--json")[1])[0].keys() == {"name", "description", "steps"}
    assert json.loads(invoke("recipes", "length", "--json")[1])["steps"] == [{"word_count": {}}]


def test_report_shows_rows_by_step(here, invoke):
    invoke(*RUN, "--rejects")
    code, out, err = invoke("report", "out")
    assert (code, err) == (0, "")
    header = next(line for line in out.splitlines() if line.startswith("step "))
    assert header.split() == ["step", "rows", "in", "rows", "out", "dropped", "failed", "seconds", "share", "MB/s"]
    assert next(line for line in out.splitlines() if line.startswith("word_count ")).split()[1:4] == ["8", "6", "2"]
    data = json.loads(invoke("report", "out", "--json", "--rejects", "5", "--failed", "5")[1])
    assert data["kept"] == 6
    assert [row["text"] for row in data["rows"]["rejects"]] == [SHORT, SHORT]
    assert data["rows"]["failed"] == []


def test_the_memory_page_of_a_run(here, invoke):
    assert invoke(*RUN, "--memory", "3GB")[0] == 0
    code, out, _ = invoke("report", "out", "--memory")
    assert code == 0
    assert out.startswith("# Memory settings of out\n")
    assert "| memory | 3.0 GB | requested |" in out
    assert re.search(r"\| peak of the process tree \| [\d.]+ MB, \d+ % of the budget \|", out)
    assert "| budget percent | 80 and 95 |" in out
    widths = {line.count("|") for line in out.splitlines() if line.startswith("|")}
    assert widths == {3, 4}


def test_report_shows_failed_rows_with_their_addresses(here, invoke):
    Path("in/c.jsonl").write_text('{"text": "good enough for this"}\n{"text": broken\n')
    invoke(*RUN, "--on-error", "isolate")
    _, out, _ = invoke("report", "out", "--failed", "1", "--rejects", "1")
    line = out.partition("failed rows, sampled:\n")[2].splitlines()[1]
    assert "jsonl_reader" in line
    assert "c.jsonl:" in line
    assert line.endswith('{"text": broken')
    assert "no dropped rows are stored (dropped rows are kept by runs with --rejects)" in out


def test_dropped_rows_are_a_table_by_reason_that_fits_the_terminal(here, invoke, monkeypatch):
    rows = [{"text": "word " * (number % 2 + 5000 * (number % 3 == 0)), "n": number} for number in range(60)]
    Path("in/c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    invoke(*RUN, "--rejects", "--set", "word_count.max_words=4000")
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = invoke("report", "out", "--rejects", "2")
    lines = out.partition("dropped rows, sampled:\n")[2].splitlines()
    assert lines[0].split() == ["reason", "address", "row"]
    assert [line.split("  ")[0] for line in lines[1:]] == ["words < 3"] * 2 + ["words > 4000"] * 2
    assert all(len(line) <= 80 for line in lines)
    assert out == invoke("report", "out", "--rejects", "2")[1]
    sampled = json.loads(invoke("report", "out", "--json", "--rejects", "2")[1])["rows"]["rejects"]
    assert [len(row["text"]) for row in sampled if row["_reason"] == "words > 4000"] >= [25_000] * 2


def test_report_shows_alerts_and_actions(here, invoke):
    invoke(*RUN)
    path = Path("out/.tamis/report.json")
    events = [
        {
            "time": "2026-01-02T03:04:05+00:00",
            "kind": "leak",
            "level": "warning",
            "text": "it grows",
            "action": "recycle",
        },
        {"time": "2026-01-02T03:04:06+00:00", "kind": "recycle", "level": "action", "text": "replaced", "action": None},
    ]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"memory_events": events}))
    _, out, _ = invoke("report", "out")
    assert "2 memory events:" in out
    assert "03:04:05  leak     warning  it grows -> recycle" in out
    assert "03:04:06  recycle  action   replaced" in out
    page = invoke("report", "out", "--memory")[1]
    assert "| 2026-01-02T03:04:05+00:00 | leak | warning | it grows | recycle |" in page


def test_commands_are_listed_with_their_whole_description(invoke):
    for group in ((), ("dedup",), ("download",)):
        _, out, _ = invoke(*group, "--help")
        assert "..." not in out.partition("Commands:")[2]
        assert out.rstrip().endswith(".")


def test_the_description_of_an_operator_fits_the_terminal(invoke, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = invoke("ops", "fuzzy_dedup")
    prose = out.partition(">>>")[0]
    assert max(map(len, prose.splitlines())) <= 80
    assert ">>> Pipeline(Rows(rows), FuzzyDedup()).run().kept\n2\n" in out


def test_a_run_imports_no_package_that_it_does_not_use(here):
    """pydantic, because recent versions of typer convert values with it."""
    code = """
import sys
from tamis.cli import main

assert main(sys.argv[1:]) == 0
print(*{"pydantic", "rich", "numba", "fsspec", "pandas"} & set(sys.modules))
"""
    command = [sys.executable, "-c", code, "run", "length", "--input", "in", "--output", "out", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr


@pytest.mark.parametrize(
    ("option", "value"), [("--device", "tpu"), ("--max-seconds", "soon"), ("--on-error", "ignore")]
)
def test_a_value_that_cannot_be_converted(invoke, option, value):
    code, _, err = invoke("run", "length", option, value)
    assert code == 2
    assert f"Invalid value for '{option}'" in err
