"""`tamis dedup explain`: every fate of a row, with one and with several deduplication steps."""

import json
import random
import shutil

import pytest
from typer.testing import CliRunner

from tamis import JsonlReader, JsonlWriter, Pipeline
from tamis.commands.printing import NO_MATCH
from tamis.dedup import ExactDedup, FuzzyDedup, Groups
from tamis.dedup.commands import app
from tamis.text.quality import WordCount


def words(count, seed):
    rng = random.Random(seed)
    return ["".join(rng.choices("abcdefgh", k=5)) for _ in range(count)]


BASE, OTHER = words(60, 1), words(60, 2)
TEXTS = {
    "a": BASE,
    "b": BASE,
    "c": [*BASE[:3], "changed", *BASE[4:]],
    "d": OTHER,
    "short": ["too", "short"],
    "f": [*BASE[:3], "changed", *BASE[4:]],
    "bad": ["boom"] * 9,
}


def fails_on_boom(row):
    if row["text"].startswith("boom"):
        raise ValueError("cannot parse this")
    return row


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "rejects"])
def run(request, tmp_path_factory):
    """(output folder, address of each id, whether dropped rows are kept)"""
    folder = tmp_path_factory.mktemp("explain")
    lines = [json.dumps({"id": name, "text": " ".join(text)}) + "\n" for name, text in TEXTS.items()]
    (folder / "in.jsonl").write_text("".join(lines))
    places = [sum(map(len, lines[:number])) for number in range(len(lines))]
    reader, writer = JsonlReader(str(folder / "in.jsonl")), JsonlWriter(str(folder / "out"))
    steps = [fails_on_boom, WordCount(min_words=5), ExactDedup(), FuzzyDedup()]
    Pipeline(reader, *steps, writer).run(
        executor="inline", rejects=request.param, on_error="isolate", max_failed=1.0, progress=False
    )
    found = Groups.load(folder / "out").table()
    root = found["address"][0].as_py().rpartition(":")[0]
    return folder / "out", {name: f"{root}:{place}" for name, place in zip(TEXTS, places, strict=True)}, request.param


def explained(output, name, code=0):
    done = CliRunner().invoke(app, ["explain", str(output), name])
    assert done.exit_code == code, done.output
    return done.stdout.splitlines()


def test_a_row_that_the_first_step_drops(run):
    output, address, _ = run
    expected = [
        f"b ({address['b']}) was dropped by exact_dedup",
        f"  exact_dedup: duplicate of a ({address['a']})",
        "    the same content",
    ]
    assert explained(output, "b") == expected
    assert explained(output, address["b"]) == expected


def test_a_row_that_one_step_keeps_and_the_next_one_drops(run):
    output, address, _ = run
    assert explained(output, "c") == [
        f"c ({address['c']}) was dropped by fuzzy_dedup",
        "  exact_dedup: kept, in a group of 2 rows; dropped as duplicates of it:",
        f"    f ({address['f']})",
        "      the same content",
        f"  fuzzy_dedup: duplicate of a ({address['a']})",
        "    similarity 0.867",
    ]


def test_the_kept_row_of_two_groups(run):
    output, address, _ = run
    assert explained(output, "a") == [
        f"a ({address['a']}) was kept",
        "  exact_dedup: kept, in a group of 2 rows; dropped as duplicates of it:",
        f"    b ({address['b']})",
        "      the same content",
        "  fuzzy_dedup: kept, in a group of 2 rows; dropped as duplicates of it:",
        f"    c ({address['c']})",
        "      similarity 0.867",
    ]


def test_a_row_without_duplicates_is_found_in_the_output(run):
    output, _, _ = run
    assert explained(output, "d") == [
        "d was kept",
        "  exact_dedup: no duplicate found",
        "  fuzzy_dedup: no duplicate found",
    ]


def test_a_row_that_a_filter_drops(run):
    output, address, rejects = run
    if rejects:
        assert explained(output, "short") == [
            f"short ({address['short']}) was dropped by word_count",
            "  reason: words < 5",
        ]
        assert explained(output, address["short"]) == explained(output, "short")
    else:
        assert explained(output, "short", code=NO_MATCH) == [
            "short has no record of its own in this run",
            "  It is not in the output. One of these steps dropped it, or it is not a row of the input: word_count (1 row).",
            "  This run did not keep dropped rows. Run it with --rejects to record them.",
        ]


def test_a_row_that_failed(run):
    output, address, _ = run
    title, error = explained(output, "bad")
    assert title == f"bad ({address['bad']}) failed in fails_on_boom"
    assert error.startswith("  error: ValueError: cannot parse this")


def test_a_name_that_nothing_is_known_about(run):
    output, address, rejects = run
    assert explained(output, "nobody", code=NO_MATCH)[-1].strip() == (
        "No step dropped or failed it, and it is not in the output: it is not a row of the input."
        if rejects
        else "This run did not keep dropped rows. Run it with --rejects to record them."
    )
    assert "was kept, or" in explained(output, address["d"], code=NO_MATCH)[1].lower()


def test_the_overview_shows_each_step_and_no_internals(run):
    output, _, _ = run
    text = CliRunner().invoke(app, ["explain", str(output)]).stdout
    assert text.index("exact_dedup\n") < text.index("fuzzy_dedup\n")
    assert "dropped rows closest to the threshold" in text
    for internal in ("content", "buckets", "shingles", "hashing"):
        assert internal not in text
    steps = json.loads(CliRunner().invoke(app, ["explain", str(output), "--json"]).stdout)
    assert [(step["step"], step["dropped"], step["group_sizes"]) for step in steps] == [
        ("exact_dedup", 2, {"2": 2}),
        ("fuzzy_dedup", 1, {"2": 1}),
    ]


def test_a_dropped_row_is_not_called_kept_if_no_copy_is_kept(tmp_path):
    from tamis import Rows

    rows = [{"id": name, "text": "the same"} for name in "abc"]
    Pipeline(Rows(rows), ExactDedup(keep="none"), JsonlWriter(str(tmp_path / "out"))).run(executor="inline")
    for name in "abc":
        text = explained(tmp_path / "out", name)
        assert "was dropped by exact_dedup" in text[0]
        assert len(text) == 3


def test_lines_that_were_cut_and_rows_that_lost_too_many(tmp_path):
    from tamis import Rows

    line = "a line of boilerplate that everybody has"
    rows = [{"id": "a", "text": f"{line}\nthe first text has much to say"}]
    rows += [{"id": "b", "text": f"{line}\nthe second text has even more to say of its own"}, {"id": "c", "text": line}]
    step = ExactDedup(unit="line")
    Pipeline(Rows(rows), step, JsonlWriter(str(tmp_path / "out"))).run(executor="inline")
    cut = "unit 0 (34 bytes) repeats unit 0 of a (rows:0)"
    assert explained(tmp_path / "out", "b") == [
        "b (rows:1) was kept",
        "  exact_dedup: kept, without the text that repeats other rows",
        f"    {cut}",
    ]
    assert explained(tmp_path / "out", "c") == [
        "c (rows:2) was dropped by exact_dedup",
        "  exact_dedup: too much of its text repeats other rows",
        f"    {cut}",
    ]


@pytest.mark.parametrize("names", [[], ["b"]], ids=["all", "one row"])
def test_damaged_groups_are_an_error(run, tmp_path, names):
    shutil.copytree(run[0], tmp_path / "damaged")
    for file in (tmp_path / "damaged/.tamis/groups").rglob("*.table"):
        file.write_bytes(b"no table")
    done = CliRunner().invoke(app, ["explain", str(tmp_path / "damaged"), *names])
    assert done.exit_code == 2
    assert "records about its rows cannot be read" in " ".join(done.stderr.split())
