"""Keep policies over several sources, and results that do not depend on how a run is executed."""

import json
import os
import random
import subprocess
import sys

import pytest

from tamis import JsonlReader, JsonlWriter, Pipeline, Rows
from tamis.dedup import ExactDedup, FuzzyDedup, Groups
from tamis.dedup.keep import KeepPolicy
from tamis.errors import OperatorError, ParameterError

STEPS = [ExactDedup, FuzzyDedup, lambda **more: FuzzyDedup(verify="signature", **more)]
NAMES = ["exact", "jaccard", "signature"]
TEXT = {
    name: " ".join("".join(random.Random((name, n).__repr__()).choices("abcdefgh", k=6)) for n in range(60))
    for name in "xyz"
}


def kept(rows, step, per_partition=2, **options):
    options = {"executor": "inline", **options}
    return Pipeline(Rows(rows, rows_per_partition=per_partition), step).collect(**options)["id"].to_pylist()


def rows_of(*pairs):
    return [{"id": name, "source": name[0], "text": TEXT[text], "n": n} for n, (name, text) in enumerate(pairs)]


MIXED = rows_of(("a1", "x"), ("a2", "x"), ("a3", "y"), ("b1", "x"), ("b2", "z"), ("b3", "z"), ("c1", "y"), ("c2", "z"))


@pytest.mark.parametrize("make", STEPS, ids=NAMES)
def test_rows_of_the_preferred_source_are_kept(make):
    step = make(prefer=["b", "a"], prefer_column="source")
    assert kept(MIXED, step) == ["a3", "b1", "b2"]


@pytest.mark.parametrize("make", STEPS, ids=NAMES)
def test_only_rows_that_a_better_source_has_are_dropped(make):
    step = make(prefer=["b", "a"], prefer_column="source", across_sources=True)
    assert kept(MIXED, step) == ["a3", "b1", "b2", "b3"]  # copies within b are kept; c has only rows of a and b


@pytest.mark.parametrize("make", STEPS, ids=NAMES)
def test_copies_within_a_single_source_are_kept(make):
    rows = rows_of(("a1", "x"), ("a2", "x"), ("b1", "y"), ("b2", "y"))
    assert kept(rows, make(prefer=["b", "a"], prefer_column="source", across_sources=True)) == ["a1", "a2", "b1", "b2"]


@pytest.mark.parametrize("make", STEPS, ids=NAMES)
def test_across_sources_keep_none_drops_rows_that_two_sources_have(make):
    step = make(prefer=["b", "a"], prefer_column="source", across_sources=True, keep="none")
    assert kept(rows_of(("a1", "x"), ("b1", "x"), ("b2", "y"), ("b3", "y")), step) == ["b2", "b3"]


def test_across_sources_holds_for_unverified_groups_too():
    step = FuzzyDedup(verify="none", prefer=["b", "a"], prefer_column="source", across_sources=True)
    assert kept(MIXED, step) == ["a3", "b1", "b2", "b3"]


@pytest.mark.parametrize("make", STEPS, ids=NAMES)
def test_rows_in_the_index_are_dropped_across_sources(tmp_path, make):
    index = str(tmp_path / "index")
    more = {"prefer": ["b", "a"], "prefer_column": "source", "across_sources": True}
    first = make(against=index, update=True, **more)
    Pipeline(Rows(rows_of(("b1", "x"))), first, JsonlWriter(str(tmp_path / "out"))).run(executor="inline")
    assert kept(rows_of(("a1", "x"), ("b2", "x"), ("b3", "y"), ("b4", "y")), make(against=index, **more)) == [
        "b3",
        "b4",
    ]


@pytest.mark.parametrize("make", STEPS, ids=NAMES)
def test_across_sources_needs_sources(make):
    with pytest.raises(ParameterError, match="needs `prefer`"):
        make(across_sources=True).check()


@pytest.mark.parametrize(
    ("place", "rank"),
    [
        ("in/books/a.jsonl", 0),
        ("books/a.jsonl", 0),
        ("/data/books/x/a.jsonl.zst@1048576", 0),
        ("in/booksearch/a.jsonl", 2),
        ("in/web/books.jsonl", 1),
        ("s3://bucket/web/a.parquet", 1),
        ("crawl-2024-10/a.jsonl", 2),
    ],
)
def test_a_source_is_a_whole_part_of_a_path(place, rank):
    assert KeepPolicy(prefer=["books", "web/"])._rank_of_place(place) == rank


def test_a_source_may_be_a_pattern_or_a_file():
    assert KeepPolicy(prefer=["*/crawl-*/*", "b.jsonl"])._rank_of_place("in/crawl-2024/a.jsonl") == 0
    assert KeepPolicy(prefer=["*/crawl-*/*", "b.jsonl"])._rank_of_place("in/b.jsonl") == 1


def test_a_column_of_lists_cannot_name_a_source():
    rows = [{"text": "a", "source": ["x"]}]
    with pytest.raises(OperatorError, match="cannot name a source"):
        Pipeline(Rows(rows), ExactDedup(prefer=["x"], prefer_column="source")).run(executor="inline")


@pytest.mark.parametrize("make", STEPS, ids=NAMES)
@pytest.mark.parametrize(
    ("keep", "by", "expected"),
    [
        ("first", None, "a1"),
        ("best", "n", "b9"),
        ("newest", "date", "c5"),
        ("longest", None, "b9"),
        ("none", None, None),
    ],
)
def test_every_policy_for_every_kind(make, keep, by, expected):
    names = ["a1", "c5", "b9"]
    rows = [
        {"id": n, "text": TEXT["x"] + " " * k, "n": k, "date": f"202{9 - abs(k - 1)}-01-01"}
        for k, n in enumerate(names)
    ]
    step = make(keep=keep, by=by, **({"ignore_whitespace": True} if make is ExactDedup else {}))
    rest = {"id": "other", "text": TEXT["y"], "n": 0, "date": "2020-01-01"}
    assert kept([*rows, rest], step) == [*([expected] if expected else []), "other"]


def test_unicode_composition_can_be_ignored():
    rows = [
        {"id": "1", "text": "caf\u00e9"},
        {"id": "2", "text": "cafe\u0301"},
        {"id": "3", "text": "ﬁne"},
        {"id": "4", "text": "fine"},
    ]
    assert kept(rows, ExactDedup()) == ["1", "2", "3", "4"]
    assert kept(rows, ExactDedup(unicode="NFC")) == ["1", "3", "4"]
    assert kept(rows, ExactDedup(unicode="NFKC")) == ["1", "3"]


def test_normalisation_can_be_turned_off():
    rows = [{"id": "1", "text": TEXT["x"]}, {"id": "2", "text": TEXT["x"].upper()}]
    assert kept(rows, FuzzyDedup()) == ["1"]
    assert kept(rows, FuzzyDedup(lowercase=False)) == ["1", "2"]


# -------------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("make", STEPS, ids=NAMES)
def test_null_and_empty_texts_and_identical_ids(tmp_path, make):
    rows = [{"id": "same", "text": text} for text in (TEXT["x"], None, "", TEXT["x"], None, TEXT["x"] + "!")]
    pipeline = Pipeline(Rows(rows, rows_per_partition=2), make(), JsonlWriter(str(tmp_path / "out")))
    report = pipeline.run(executor="inline")
    assert report.balances
    assert report.failed == 0
    groups = Groups.load(tmp_path / "out")
    assert report.kept == 6 - groups.table().num_rows
    assert all(entry["address"] != entry["kept_address"] for entry in groups.explain("same"))
    lines = [line for file in sorted((tmp_path / "out").glob("*.jsonl")) for line in file.read_text().splitlines()]
    found = [json.loads(line)["text"] for line in lines]
    assert [text for text in found if not text] == [None, "", None]


def test_ids_that_only_some_files_have_are_recorded(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": TEXT["x"]}) + "\n" + json.dumps({"text": TEXT["y"]}) + "\n")
    (tmp_path / "b.jsonl").write_text(
        "".join(json.dumps({"id": n, "text": TEXT[t]}) + "\n" for n, t in enumerate("zxz"))
    )
    step = FuzzyDedup()
    Pipeline(JsonlReader(str(tmp_path / "*.jsonl")), step, JsonlWriter(str(tmp_path / "out"))).run(executor="inline")
    groups = Groups.load(tmp_path / "out")
    found = {row["id"]: (row["kept_id"], row["kept_address"].split("/")[-1]) for row in groups.table().to_pylist()}
    assert found == {"1": (None, "a.jsonl:0"), "2": ("0", "b.jsonl:0")}
    assert [entry["fate"] for entry in groups.explain("2")] == ["dropped"]


@pytest.mark.parametrize("make", STEPS[1:], ids=NAMES[1:])
def test_a_text_of_the_wrong_type_stops_a_run_of_workers_too(make):
    with pytest.raises(OperatorError, match="is int64, not text"):
        Pipeline(Rows([{"text": 3}] * 5), make()).run(workers=1, memory="2GB", on_error="raise")


# ------------------------------------------------------------------------------------------------- the same in each run

SCRIPT = """
import json, sys
from tamis import JsonlReader, JsonlWriter, Pipeline
from tamis.dedup import ExactDedup, FuzzyDedup, Groups
source, out = sys.argv[1:]
found = []
for number, step in enumerate([ExactDedup(), FuzzyDedup(), FuzzyDedup(verify="signature"), FuzzyDedup(verify="none")]):
    Pipeline(JsonlReader(source, blocksize="4kB"), step, JsonlWriter(f"{out}/{number}")).run(executor="inline")
    found.append(Groups.load(f"{out}/{number}").table().to_pylist())
print(json.dumps(found))
"""


def test_the_hash_seed_of_python_changes_nothing(tmp_path):
    rng = random.Random(1)
    with (tmp_path / "in.jsonl").open("w") as file:
        for number in range(200):
            text = rng.choice("xyz") and TEXT[rng.choice("xyz")] + rng.choice(["", " and", " or so it is said"])
            file.write(json.dumps({"id": number, "text": text}) + "\n")
    found = []
    for seed in ("0", "1", "4242"):
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / "in.jsonl"), str(tmp_path / seed)]
        env = {**os.environ, "PYTHONHASHSEED": seed}
        found.append(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)
    assert len(json.loads(found[0])[1]) > 100
    assert len(set(found)) == 1


def test_the_disk_space_of_a_run_is_estimated_before_it(tmp_path):
    rng = random.Random(5)
    texts = [" ".join("".join(rng.choices("abcdefgh", k=5)) for _ in range(60)) for _ in range(3000)]
    rows = [{"id": str(n), "text": text} for n, text in enumerate([*texts, *texts[:500]])]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for number, step in enumerate((ExactDedup(), FuzzyDedup(), FuzzyDedup(verify="signature"))):
        out = tmp_path / str(number)
        pipeline = Pipeline(JsonlReader(str(source)), step, JsonlWriter(str(out)))
        assert "of disk between stages" in str(pipeline.explain())
        most = []

        def watch(event, out=out, most=most):
            files = {file.stat().st_ino: file.stat().st_size for file in (out / ".tamis").rglob("*.spill")}
            most.append(sum(files.values()))

        pipeline.run(executor="inline", on_event=watch)
        assert 0.2 < max(most) / step.disk_bytes(len(rows), source.stat().st_size) < 1.2
