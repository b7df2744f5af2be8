"""Rows that an earlier run wrote are reused: the same output as a run from the beginning, and no work done twice."""

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tamis import ArrowWriter, CsvReader, CsvWriter, JsonlReader, JsonlWriter, ParquetReader, ParquetWriter, Pipeline
from tamis.ledger import Ledger
from tamis.operators import Filter, Map, between, operator
from tamis.store import Store
from tamis.verification import verify

SEEN = {"measured": [], "trimmed": [], "marked": []}


@operator(reads="text", writes="letters", version=1)
class LengthForReuse(Filter):
    """Counts characters; fails on some rows."""

    min_letters: int = 0
    max_letters: int = 10**9

    def score(self, batch):
        texts = batch["text"].to_pylist()
        if any("bad filter" in text for text in texts):
            raise ValueError("bad filter")
        SEEN["measured"] += texts
        return {"letters": pc.utf8_length(batch["text"])}

    def rules(self):
        return [between("letters", self.min_letters, self.max_letters)]


@operator(reads="text", writes="blanks", version=1)
class BlanksForReuse(Filter):
    """Counts blanks."""

    max_blanks: int = 10**9

    def score(self, batch):
        return {"blanks": pc.count_substring(batch["text"], " ")}

    def rules(self):
        return [between("blanks", None, self.max_blanks)]


@operator(reads="text", writes="text", version=1)
class TrimForReuse(Map):
    """Trims text, between two filters; fails on some rows."""

    def apply(self, batch):
        texts = batch["text"].to_pylist()
        if any("bad trim" in text for text in texts):
            raise ValueError("bad trim")
        SEEN["trimmed"] += texts
        return {"text": pc.utf8_trim_whitespace(batch["text"])}


@operator(reads="text", writes=("text", "marks"), version=1)
class MarkForReuse(Map):
    """Changes the text and adds a column, after all filters; fails on some rows."""

    def apply(self, batch):
        texts = batch["text"].to_pylist()
        if any("bad mark" in text for text in texts):
            raise ValueError("bad mark")
        SEEN["marked"] += texts
        return {"text": pc.utf8_upper(batch["text"]), "marks": pc.count_substring(batch["text"], "a")}


def make_rows(seed=0, num_rows=300, *, bad=True):
    generator = random.Random(seed)
    rows = []
    for number in range(num_rows):
        text = " ".join(
            generator.choices(["a", "bb", "ccc", 'say "x"', "two\nlines", "é"], k=generator.randrange(1, 40))
        )
        if bad and number % 97 == 13:
            text += generator.choice([" bad filter", " bad trim", " bad mark"])
        rows.append({"id": number, "text": f" {text} ", "tags": [str(number)] * generator.randrange(3)})
    return rows


def write_lines(path, rows, *, broken=()):
    lines = [json.dumps(row) for row in rows]
    for number in broken:
        lines.insert(number, '{"id": 1, "text": "cut')
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def filters(minimum, maximum, blanks):
    return LengthForReuse(min_letters=minimum, max_letters=maximum), BlanksForReuse(max_blanks=blanks)


def with_maps(reader, writer, thresholds):
    first, second = filters(*thresholds)
    return Pipeline(reader, first, TrimForReuse(), second, MarkForReuse(), writer)


def only_filters(reader, writer, thresholds):
    return Pipeline(reader, *filters(*thresholds), writer)


MAKERS = (with_maps, only_filters)


def rejects_in(output):
    files = sorted((output / ".tamis" / "rejects").glob("*"))
    return sorted(
        (row["_address"], json.dumps(row, sort_keys=True))
        for file in files
        for row in pq.ParquetFile(file).read().to_pylist()
    )


def failures_in(output):
    return sorted(line for file in (output / ".tamis" / "failed").glob("*") for line in file.read_text().splitlines())


def content(file):
    if file.suffix == ".parquet":  # how rows are divided into pages is not part of the content
        return pq.ParquetFile(file).schema_arrow, pq.ParquetFile(file).read().to_pylist()
    return file.read_bytes()


def state_of(report, output):
    """Everything that must not depend on what was reused."""
    names = ("name", "rows_in", "rows_out", "dropped", "failed", "created")
    return {
        "counts": (report.read, report.kept, report.dropped, report.failed, report.num_bytes),
        "steps": [[op[name] for name in names] for op in report.operators],
        "errors": sorted((error["step"], error["error"], error["rows"]) for error in report.errors),
        "shards": {file.name: content(file) for file in sorted(output.glob("part-*"))},
        "rejects": rejects_in(output),
        "failures": failures_in(output),
        "side files": sorted(
            f"{folder}/{file.name}"
            for folder in ("rejects", "failed", "written")
            for file in (output / ".tamis" / folder).glob("*")
        ),
    }


def run(job, **options):
    return job.run(**{"executor": "inline", "on_error": "isolate", "scores": True, "max_failed": "100%"} | options)


WRITERS = {
    "jsonl": JsonlWriter,
    "jsonl.gz": lambda path: JsonlWriter(path, compression="gz"),
    "jsonl.zst": lambda path: JsonlWriter(path, compression="zst"),
    "jsonl, some fields": lambda path: JsonlWriter(path, fields=["text", "id"], columns={"text": "content"}),
    "parquet": ParquetWriter,
    "parquet, some fields": lambda path: ParquetWriter(path, fields=["text", "id"], columns={"text": "content"}),
    "arrow": ArrowWriter,
    "csv": CsvWriter,
    "jsonl, small shards": lambda path: JsonlWriter(path, target_shard_size="2kB"),
}

START = (40, 90, 30)
CHANGES = {
    "nothing is dropped that was kept": (40, 91, 30),
    "tighter": (50, 80, 25),
    "looser": (20, 100, 40),
    "mixed": (30, 80, 20),
    "everything": (0, 10**9, 10**9),
    "nothing": (10**8, 10**9, 0),
    "no row concerned": (40, 90, 10**6),
}


@pytest.mark.parametrize(
    ("form", "make", "rejects"),
    [
        *((form, make, rejects) for form in ("jsonl", "parquet") for make in MAKERS for rejects in (False, True)),
        *((form, with_maps, True) for form in WRITERS if form not in ("jsonl", "parquet")),
        ("jsonl.gz", only_filters, False),
    ],
)
def test_the_output_is_that_of_a_run_from_the_beginning(tmp_path, form, make, rejects):
    source = write_lines(tmp_path / "in.jsonl", make_rows(), broken=(5, 200))
    reader = JsonlReader(source, blocksize="8kB")
    run(make(reader, WRITERS[form](tmp_path / "out"), START), rejects=rejects)
    changes = (
        CHANGES.values() if form in ("jsonl", "parquet") else [CHANGES[name] for name in ("tighter", "looser", "mixed")]
    )
    for number, thresholds in enumerate(changes):  # each from the output of the one before
        report = run(make(reader, WRITERS[form](tmp_path / "out"), thresholds), rejects=rejects)
        fresh = run(make(reader, WRITERS[form](tmp_path / str(number)), thresholds), rejects=rejects)
        assert report.balances
        assert state_of(report, tmp_path / "out") == state_of(fresh, tmp_path / str(number))
        assert verify(tmp_path / "out").ok


@pytest.mark.parametrize("seed", range(4))
def test_random_thresholds_give_the_output_of_a_run_from_the_beginning(tmp_path, seed):
    generator = random.Random(seed)
    source = write_lines(tmp_path / "in.jsonl", make_rows(seed, bad=seed % 2 == 0), broken=(7,) * (seed % 3 == 0))
    reader = JsonlReader(source, blocksize=generator.choice(["4kB", "12kB", "1MB"]))
    make, writer = generator.choice([with_maps, only_filters]), generator.choice([JsonlWriter, ParquetWriter])
    options = {"rejects": generator.random() < 0.5}
    for number in range(6):
        thresholds = generator.randrange(70), generator.randrange(70, 140), generator.randrange(40)
        report = run(make(reader, writer(tmp_path / "out"), thresholds), **options)
        fresh = run(make(reader, writer(tmp_path / str(number)), thresholds), **options)
        assert state_of(report, tmp_path / "out") == state_of(fresh, tmp_path / str(number))


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_sources_that_cannot_read_single_rows(tmp_path, form):
    rows = [{"id": row["id"], "text": row["text"]} for row in make_rows()]
    table = pa.Table.from_pylist(rows)
    if form == "parquet":
        pq.write_table(table, tmp_path / "in.parquet", row_group_size=100)
        reader = ParquetReader(tmp_path / "in.parquet", blocksize="8kB")
    else:
        pa.csv.write_csv(table, tmp_path / "in.csv")
        reader = CsvReader(tmp_path / "in.csv", blocksize="8kB")
    run(with_maps(reader, ParquetWriter(tmp_path / "out"), START), rejects=True)
    for number, thresholds in enumerate(CHANGES.values()):
        report = run(with_maps(reader, ParquetWriter(tmp_path / "out"), thresholds), rejects=True)
        fresh = run(with_maps(reader, ParquetWriter(tmp_path / str(number)), thresholds), rejects=True)
        assert state_of(report, tmp_path / "out") == state_of(fresh, tmp_path / str(number))


@pytest.mark.parametrize("writer", [JsonlWriter, ParquetWriter])
def test_columns_and_types_that_first_appear_late(tmp_path, writer):
    rows = make_rows(num_rows=9_000, bad=False)
    for number in range(7_000, 9_000, 50):
        rows[number]["late"] = number
        rows[number]["id"] += 0.5
    source = write_lines(tmp_path / "in.jsonl", rows)
    reader = JsonlReader(source, blocksize="300kB")
    run(with_maps(reader, writer(tmp_path / "out"), START), rejects=True)
    for number, thresholds in enumerate([CHANGES["looser"], CHANGES["tighter"], CHANGES["mixed"]]):
        report = run(with_maps(reader, writer(tmp_path / "out"), thresholds), rejects=True)
        fresh = run(with_maps(reader, writer(tmp_path / str(number)), thresholds), rejects=True)
        assert state_of(report, tmp_path / "out") == state_of(fresh, tmp_path / str(number))


# ------------------------------------------------------------------------------------------------------- work that is not done


@pytest.fixture
def done(tmp_path):
    """A reader of rows that do not fail, and an output."""
    reader = JsonlReader(write_lines(tmp_path / "in.jsonl", make_rows(bad=False)), blocksize="8kB")
    run(with_maps(reader, JsonlWriter(tmp_path / "out"), START))
    for seen in SEEN.values():
        seen.clear()
    return reader, tmp_path / "out"


def ids_in(output):
    return [json.loads(line)["id"] for file in sorted(output.glob("*.jsonl")) for line in file.read_text().splitlines()]


def test_only_rows_that_come_back_are_processed(done):
    reader, output = done
    before = set(ids_in(output))
    run(with_maps(reader, JsonlWriter(output), (20, 80, 30)))
    after = ids_in(output)
    assert after == sorted(after)
    back = [row["text"].strip() for row in make_rows(bad=False) if row["id"] in set(after) - before]
    assert back
    assert before - set(after)
    assert SEEN["marked"] == back
    assert not SEEN["measured"]


def test_rows_that_come_back_are_the_only_ones_parsed(done, monkeypatch):
    from tamis.sources.jsonl import JsonlParser

    reader, output = done
    before, parsed, parse = set(ids_in(output)), [], JsonlParser.parse

    def counted(self, lines, bad):
        parsed.append(len(lines))
        return parse(self, lines, bad)

    monkeypatch.setattr(JsonlParser, "parse", counted)
    run(with_maps(reader, JsonlWriter(output), (20, 90, 30)))
    sampled = parsed[0]  # to plan the run
    assert sum(parsed) - sampled == len(set(ids_in(output)) - before) > 0


def test_tighter_thresholds_need_no_input(done):
    reader, output = done
    size = Path(reader.file_paths).stat()
    run(with_maps(reader, JsonlWriter(output), (50, 80, 25)))
    assert not any(SEEN.values())
    assert size.st_size == Path(reader.file_paths).stat().st_size


@pytest.mark.parametrize("writer", [JsonlWriter, CsvWriter, ParquetWriter])
def test_shards_without_a_change_stay_as_they_are(tmp_path, writer):
    reader = JsonlReader(write_lines(tmp_path / "in.jsonl", make_rows(bad=False)), blocksize="8kB")
    run(only_filters(reader, writer(tmp_path / "out"), START))
    before = {file.name: file.stat() for file in (tmp_path / "out").glob("part-*")}
    report = run(only_filters(reader, writer(tmp_path / "out"), (40, 90, 10**6)))
    after = {file.name: file.stat() for file in (tmp_path / "out").glob("part-*")}
    assert len(after) > 2
    assert {name: stat.st_ino for name, stat in after.items()} == {name: stat.st_ino for name, stat in before.items()}
    assert {name: stat.st_mtime_ns for name, stat in after.items()} == {
        name: stat.st_mtime_ns for name, stat in before.items()
    }
    assert report.state == "finished"


def test_a_damaged_shard_is_written_again(done):
    reader, output = done
    file = sorted(output.glob("*.jsonl"))[1]
    data = bytearray(file.read_bytes())
    data[20] ^= 1
    file.write_bytes(data)
    report = run(with_maps(reader, JsonlWriter(output), (50, 80, 25)))
    fresh = run(with_maps(reader, JsonlWriter(output.with_name("fresh")), (50, 80, 25)))
    assert state_of(report, output) == state_of(fresh, output.with_name("fresh"))


def test_nothing_is_reused_after_the_input_changed(done):
    reader, output = done
    rows = make_rows(bad=False)
    for row in rows:
        row["text"] = row["text"].replace("a", "z")  # the same size
    write_lines(Path(reader.file_paths), rows)
    report = run(with_maps(reader, JsonlWriter(output), (50, 80, 25)))
    fresh = run(with_maps(reader, JsonlWriter(output.with_name("fresh")), (50, 80, 25)))
    assert state_of(report, output) == state_of(fresh, output.with_name("fresh"))
    assert '"marks":0' in next(output.glob("*.jsonl")).read_text()


def test_nothing_is_reused_after_another_step_changed(done):
    reader, output = done
    first, second = filters(50, 80, 25)
    job = [reader, first, second, MarkForReuse()]
    report = run(Pipeline(*job, JsonlWriter(output)))
    fresh = run(Pipeline(*job, JsonlWriter(output.with_name("fresh"))))
    assert state_of(report, output) == state_of(fresh, output.with_name("fresh"))


def test_requested_rejects_are_written_though_there_were_none(done):
    reader, output = done
    report = run(with_maps(reader, JsonlWriter(output), (50, 80, 25)), rejects=True)
    assert len(rejects_in(output)) == sum(report.dropped.values()) > 0


# ---------------------------------------------------------------------------------------------------------- interruptions

KILLED = """
    import os, signal, sys
    from tests.executors.test_reuse import *
    from tamis.events import PartitionCommitted
    from tamis.store import Store

    place, left = sys.argv[1], int(sys.argv[2])
    source, output, rejects = JsonlReader(sys.argv[3], blocksize="8kB"), sys.argv[4], sys.argv[5] == "rejects"

    def count(*_):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    if place == "committed":
        options = {"on_event": lambda event: count() if isinstance(event, PartitionCommitted) else None}
    else:
        options, publish, remove = {}, Store.publish, Store.remove
        Store.publish = lambda self, file, name: (publish(self, file, name), count() if "part-" in name else None)
        Store.remove = lambda self, name: (remove(self, name), count() if "part-" in name else None)
    run(with_maps(source, JsonlWriter(output), (30, 100, 20)), rejects=rejects, **options)
"""


@pytest.mark.parametrize(
    ("place", "left", "rejects", "following"),
    [
        ("committed", 2, "", (30, 100, 20)),
        ("committed", 2, "rejects", START),
        ("changed", 1, "rejects", START),
        ("changed", 2, "rejects", (30, 100, 20)),
        ("changed", 3, "rejects", START),
        ("changed", 4, "rejects", START),
        ("changed", 5, "rejects", START),
        ("changed", 7, "", (50, 80, 25)),
    ],
)
def test_a_killed_run_is_resumed(tmp_path, place, left, rejects, following):
    source = write_lines(tmp_path / "in.jsonl", make_rows(), broken=(9,))
    reader, output = JsonlReader(source, blocksize="8kB"), tmp_path / "out"
    options = {"rejects": bool(rejects)}
    run(with_maps(reader, JsonlWriter(output), START), **options)
    script = tmp_path / "killed.py"
    script.write_text(textwrap.dedent(KILLED))
    arguments = [sys.executable, str(script), place, str(left), str(source), str(output), rejects]
    root = str(Path(__file__).parents[2])
    ended = subprocess.run(arguments, env=os.environ | {"PYTHONPATH": root}, capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    assert not verify(output).foreign
    report = run(with_maps(reader, JsonlWriter(output), following), **options)
    fresh = run(with_maps(reader, JsonlWriter(tmp_path / "fresh"), following), **options)
    assert state_of(report, output) == state_of(fresh, tmp_path / "fresh")
    assert verify(output).ok
    ledger = Ledger(Store(str(output)))
    ledger.load()
    assert not ledger.earlier


def test_workers_reuse_rows_too(tmp_path):
    source = write_lines(tmp_path / "in.jsonl", make_rows(num_rows=3_000))
    reader, options = JsonlReader(source, blocksize="40kB"), {"executor": "local", "workers": 2, "rejects": True}
    run(with_maps(reader, ParquetWriter(tmp_path / "out"), START), **options)
    report = run(with_maps(reader, ParquetWriter(tmp_path / "out"), (30, 100, 20)), **options)
    fresh = run(with_maps(reader, ParquetWriter(tmp_path / "fresh"), (30, 100, 20)), rejects=True)
    assert state_of(report, tmp_path / "out") == state_of(fresh, tmp_path / "fresh")
