"""Mistakes of users and faults of disks give a clear error or a failed row, never a lost row or a traceback."""

import gzip
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tamis import JsonlReader, JsonlWriter, ParquetReader, ParquetWriter, Pipeline, Rows
from tamis.dedup import ExactDedup
from tamis.errors import SinkError
from tamis.mixing import Balance
from tamis.sampling import Shuffle

RECIPE = """
steps:
  - jsonl_reader: {file_paths: IN}
  - word_count: {min_words: 1}
  - jsonl_writer: {path: OUT}
"""


def run(tmp_path, *arguments, recipe=RECIPE, **options):
    (tmp_path / "recipe.yaml").write_text(
        recipe.replace("IN", str(tmp_path / "in")).replace("OUT", str(tmp_path / "out"))
    )
    command = [sys.executable, "-m", "tamis", "run", str(tmp_path / "recipe.yaml"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, **options)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def good(folder, name="good.jsonl", rows=3):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("".join(json.dumps({"id": number, "text": f"row {number}"}) + "\n" for number in range(rows)))
    return path


def failed(tmp_path):
    folder = tmp_path / "out" / ".tamis" / "failed"
    return [json.loads(line) for file in sorted(folder.iterdir()) for line in file.read_text().splitlines()]


def account(tmp_path):
    report = json.loads((tmp_path / "out" / ".tamis" / "report.json").read_text())
    assert report["read"] == report["kept"] + sum(report["dropped"].values()) + report["failed"]
    return report["read"], report["kept"], report["failed"]


def test_a_missing_path(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "hint: " in done.stderr
    assert not (tmp_path / "out").exists()


def test_an_empty_folder(tmp_path):
    (tmp_path / "in").mkdir()
    done = run(tmp_path)
    assert done.returncode == 2
    assert "hint: " in done.stderr


def test_an_empty_file_is_no_rows(tmp_path):
    good(tmp_path / "in")
    (tmp_path / "in" / "empty.jsonl").touch()
    assert run(tmp_path).returncode == 0
    assert account(tmp_path) == (3, 3, 0)


AS_NOBODY = """
import os, sys
from pathlib import Path
from tamis import JsonlReader, JsonlWriter, Pipeline, TamisError
folder = Path(sys.argv[1])
def job():
    return Pipeline(JsonlReader(folder / "in"), JsonlWriter(folder / "out")).run(executor="inline")
Pipeline(JsonlReader(folder / "in"), JsonlWriter(folder / "warm")).run(executor="inline")  # import modules while permitted
if os.geteuid() == 0:
    os.seteuid(65534)
try:
    (folder / "in" / "good.jsonl").open().close()
except PermissionError:
    print("closed")
try:
    job()
except TamisError as error:
    print(error)
"""


@pytest.fixture
def for_all():
    """A folder that every user can enter. Those of pytest are closed, and closed again whenever another pytest starts."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.parametrize(("closed", "message"), [("in/good.jsonl", "permission"), ("out", "cannot write")])
def test_no_permission_to_read_or_to_write(for_all, closed, message):
    good(for_all / "in")
    (for_all / "out").mkdir()
    os.chown(for_all / "out", 65534 if os.geteuid() == 0 else -1, -1)
    (for_all / closed).chmod((0o400 if os.geteuid() == 0 else 0) if closed == "in/good.jsonl" else 0o500)
    if closed == "out":
        os.chown(for_all / "out", os.geteuid(), -1)
    done = subprocess.run([sys.executable, "-c", AS_NOBODY, str(for_all)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert message in done.stdout
    assert "hint: " in done.stdout


def test_a_malformed_line_in_the_middle_costs_that_line(tmp_path):
    path = good(tmp_path / "in")
    lines = path.read_text().splitlines()
    lines.insert(1, '{"id": 99, "text": ')
    path.write_text("\n".join(lines) + "\n")
    assert run(tmp_path).returncode == 0
    assert account(tmp_path) == (4, 3, 1)
    (row,) = failed(tmp_path)
    assert row["address"] == f"{path}:{len(lines[0]) + 1}"
    assert row["row"] == lines[1]


def test_invalid_utf8_and_nul_bytes_cost_their_lines(tmp_path):
    path = good(tmp_path / "in")
    with path.open("ab") as file:
        file.write(b'{"id": 3, "text": "\xff\xfe"}\n{"id": 4, "text": "a\x00b"}\n{"id": 5, "text": "fine"}\n')
    assert run(tmp_path).returncode == 0
    assert account(tmp_path) == (6, 4, 2)
    assert any("UTF-8" in row["error"] for row in failed(tmp_path))


@pytest.mark.parametrize("name", ["cut.jsonl.gz", "cut.jsonl.zst"])
def test_a_truncated_compressed_file_keeps_what_could_be_read(tmp_path, name):
    (tmp_path / "in").mkdir()
    text = b"".join(
        json.dumps({"id": n, "text": f"row {n} {os.urandom(20).hex()}"}).encode() + b"\n" for n in range(20_000)
    )
    packed = gzip.compress(text) if name.endswith("gz") else pa.compress(text, codec="zstd", asbytes=True)
    (tmp_path / "in" / name).write_bytes(packed[: len(packed) // 2])
    assert run(tmp_path).returncode == 0
    _, kept, lost = account(tmp_path)
    assert lost >= 1
    assert kept > 3000
    assert any("truncated" in row["error"] for row in failed(tmp_path))
    report = json.loads((tmp_path / "out" / ".tamis" / "report.json").read_text())
    assert list(report["damaged_files"]) == [f"{tmp_path}/in/{name}"]


def test_a_corrupt_parquet_footer(tmp_path):
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"text": ["a"] * 1000}), tmp_path / "in" / "a.parquet")
    data = (tmp_path / "in" / "a.parquet").read_bytes()
    (tmp_path / "in" / "b.parquet").write_bytes(data[:-20] + b"x" * 20)
    report = Pipeline(ParquetReader(tmp_path / "in"), ParquetWriter(tmp_path / "out")).run(executor="inline")
    assert (report.read, report.kept, report.failed) == (1000, 1000, 0)
    assert list(report.damaged_files) == [f"{tmp_path}/in/b.parquet"]


@pytest.mark.slow
def test_a_line_of_200_megabytes(tmp_path):
    path = good(tmp_path / "in")
    with path.open("a") as file:
        file.write('{"id": 3, "text": "' + "long " * 40_000_000 + '"}\n{"id": 4, "text": "after"}\n')
    assert run(tmp_path, "--workers", "1", "--set", "word_count.max_words=100000000").returncode == 0
    assert account(tmp_path) == (5, 5, 0)


def test_a_column_that_changes_its_type_between_files(tmp_path):
    good(tmp_path / "in", "a.jsonl")
    (tmp_path / "in" / "b.jsonl").write_text('{"id": "x", "text": "now a string"}\n')
    done = run(tmp_path)
    assert done.returncode == 2
    assert "`id`" in done.stderr
    assert "types=" in done.stderr


def test_a_type_that_changes_far_inside_a_file_costs_those_rows(tmp_path):
    path = good(tmp_path / "in", rows=100_000)
    with path.open("a") as file:
        file.write('{"id": "late", "text": "a string"}\n{"id": 100000, "text": "after"}\n')
    assert run(tmp_path, recipe=RECIPE.replace("jsonl_writer", "parquet_writer")).returncode == 0
    assert account(tmp_path) == (100_002, 100_001, 1)
    (row,) = failed(tmp_path)
    assert "`id`" in row["error"]


POISON = {"_tamis_dropped": True, "_tamis_line": "injected", "_tamis_copies": 3, "_tamis_key": 1, "_tamis_place": "x"}


@pytest.mark.parametrize("steps", ["none", "map", "balance", "dedup", "shuffle", "map and dedup"])
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_rows_with_columns_that_are_named_as_those_of_the_engine_fail(tmp_path, form, steps):
    """Such a name in the input must not hide, repeat or replace rows."""
    rows = [{"n": n, "group": "a"} | (POISON if n in (3, 4) else {}) for n in range(6)]
    chain = {
        "none": [],
        "map": [lambda row: {"more": 1}],
        "balance": [Balance(by="group", weights={"a": 1})],
        "dedup": [ExactDedup(column="n")],
        "shuffle": [Shuffle()],
        "map and dedup": [lambda row: {"more": 1}, ExactDedup(column="n")],
    }[steps]
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.Table.from_pylist(rows[3:]).schema), tmp_path / "in.parquet")
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    reader = {"jsonl": JsonlReader, "parquet": ParquetReader}[form](tmp_path / f"in.{form}")
    report = Pipeline(reader, *chain, ParquetWriter(tmp_path / "out")).run(
        executor="inline", on_error="isolate", max_failed="100%", rejects=True, scores=True
    )
    assert report.balances
    assert (report.read, report.kept, report.failed) == (6, 4, 2)
    found = pq.read_table(next((tmp_path / "out").glob("*.parquet"))).to_pylist()
    assert sorted(row["n"] for row in found) == [0, 1, 2, 5]
    assert not any(name.startswith("_tamis_") for name in found[0])
    assert {each["address"].rpartition(".")[2].partition(":")[0] for each in failed(tmp_path)} == {form}
    assert all("are reserved" in each["error"] for each in failed(tmp_path))


def test_a_function_cannot_return_columns_of_the_engine(tmp_path):
    rows = Rows([{"more": "{}"}, {"more": '{"_tamis_dropped": true}'}])
    report = Pipeline(rows, lambda row: json.loads(row["more"])).run(
        executor="inline", on_error="isolate", max_failed="100%"
    )
    assert (report.kept, report.failed) == (1, 1)


def test_an_unknown_key_a_wrong_type_and_an_unknown_operator_in_a_recipe(tmp_path):
    good(tmp_path / "in")
    for wrong, right, message in (
        ("word_count", "word_cuont", "did you mean `word_count`?"),
        ("min_words: 1", "min_wrods: 1", "did you mean `min_words`?"),
        ("min_words: 1", "min_words: many", "must be int or None, got 'many'"),
        ("steps:", "stebs:", "did you mean `steps`?"),
    ):
        done = run(tmp_path, recipe=RECIPE.replace(wrong, right))
        assert done.returncode == 2
        assert message in done.stderr


def test_nothing_in_a_recipe_is_evaluated(tmp_path):
    done = run(tmp_path, recipe="steps: !!python/object/apply:os.system ['touch pwned']\n")
    assert done.returncode == 2
    assert not (tmp_path / "pwned").exists()


def test_a_shard_outside_the_output_folder_is_refused(tmp_path):
    from tamis.errors import TamisError
    from tamis.store import Store

    with pytest.raises(TamisError, match="is outside the output folder"):
        Store(str(tmp_path)).publish(tmp_path / "x", "../../x")


def limit_file_size(size):
    def limit():
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


@pytest.mark.parametrize(
    ("source", "output", "how"),
    [
        ("in", "in/out", "is within"),
        ("in", "in/a/b/out", "is within"),
        ("in/", "in", "is within"),
        ("in/**", "in/out", "is within"),
        ("in/*/*.jsonl", "in/out", "is within"),
        ("./in", "other/../in/out", "is within"),
        ("in[1]", "in[1]/out", "is within"),
        ("**/*.jsonl", "in/out", "is within"),
        (["in[1]/c.jsonl", "in"], "in/out", "is within"),
        ("link", "in/out", "is within"),
        ("in", "link/out", "is within"),
        ("in/a.jsonl", "in", "contains an input file, .*in/a.jsonl"),
        ("in/a*.jsonl", "in", "contains an input file"),
        ("*/a.jsonl", "in", "contains an input file"),
        ("@list.txt", "in", "contains an input file"),
        ("in/sub", "in", "contains an input file, .*in/sub/b.jsonl"),
        ("in/sub/*.jsonl", "link", "contains an input file"),
        ("in/a.jsonl", ".", "contains an input file"),
        ("@list.txt", "in/out", None),
        ("in/*.jsonl", "in/out", None),
        ("in/a.jsonl", "in/out", None),
        ("in", "in/_out", None),
        ("in", "in2", None),
    ],
)
@pytest.mark.parametrize("fresh", [False, True])
def test_an_output_that_would_harm_its_input_is_refused(tmp_path, monkeypatch, source, output, how, fresh):
    monkeypatch.chdir(tmp_path)
    Path("in/sub").mkdir(parents=True)
    Path("in[1]").mkdir()
    Path("link").symlink_to("in")
    Path("list.txt").write_text("in/a.jsonl\n")
    files = [Path(name) for name in ("in/a.jsonl", "in/sub/b.jsonl", "in[1]/c.jsonl")]
    for file in files:
        file.write_text('{"text": "abc"}\n')
    steps = Pipeline(JsonlReader(source), JsonlWriter(output))
    if how:
        with pytest.raises(SinkError, match=how):
            steps.run(executor="inline", fresh=fresh)
    else:
        first = steps.run(executor="inline", fresh=fresh)
        assert steps.run(executor="inline").read == first.read
    assert all(file.read_text() == '{"text": "abc"}\n' for file in files)


def test_an_output_of_another_format_may_lie_in_the_input(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "abc"}\n')
    for _ in range(2):
        report = Pipeline(JsonlReader(tmp_path), ParquetWriter(tmp_path / "out")).run(executor="inline")
        assert report.read == 1


def test_a_full_disk_stops_the_run_and_the_next_run_resumes(tmp_path):
    """A real small file system, filled by the run."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        limited = limit_file_size(100_000)
    else:
        limited = None
    try:
        for number in range(8):
            good(tmp_path / "in", f"{number}.jsonl", rows=2000)
        recipe = RECIPE.replace("OUT", str(disk / "out")).replace(
            "{file_paths: IN}", "{file_paths: IN, files_per_partition: 1}"
        )
        done = run(tmp_path, recipe=recipe, preexec_fn=limited)
        if mounted.returncode == 0:
            assert done.returncode == 2, done.stderr
            assert "there may not be enough disk space: about 510 kB are needed and" in done.stderr  # before the run
            assert "the disk is full" in done.stderr
            assert "rerun the same command" in done.stderr
            subprocess.run(["mount", "-o", "remount,size=50M", str(disk)], check=True)
        done = run(tmp_path, recipe=recipe)
        assert done.returncode == 0, done.stderr
        lines = [line for file in sorted((disk / "out").glob("part-*")) for line in file.read_text().splitlines()]
        assert len(lines) == 16_000
        assert not list((disk / "out" / ".tamis" / "tmp").iterdir())
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", str(disk)], check=True)


def test_two_writers_on_one_output(tmp_path):
    from tamis.ledger import Ledger
    from tamis.store import Store

    good(tmp_path / "in")
    store = Store(str(tmp_path / "out"))
    store.make()
    with Ledger(store):
        done = run(tmp_path)
    assert done.returncode == 2
    assert "another run is writing to" in done.stderr


def test_an_output_that_is_a_file(tmp_path):
    good(tmp_path / "in")
    (tmp_path / "out").write_text("a file")
    with pytest.raises(SinkError, match="cannot write to"):
        Pipeline(JsonlReader(tmp_path / "in"), JsonlWriter(tmp_path / "out")).run()


@pytest.mark.parametrize(
    "options", [["--output", "nope://bucket/out"], ["--output", "out", "--exchange", "nope://bucket"]]
)
def test_a_store_that_cannot_be_opened_is_one_clear_error(tmp_path, options):
    (tmp_path / "in.jsonl").write_text('{"text": "some words"}\n')
    command = [sys.executable, "-m", "tamis", "run", "gopher", "--input", "in.jsonl", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "nope://bucket" in done.stderr
    assert "hint: install the package for nope://" in done.stderr
    assert "Traceback" not in done.stderr
