"""Splits: no group is in two parts, and the part of a row depends on nothing but its group."""

import itertools
import shutil
from collections import Counter

import pytest

from tamis import JsonlReader, JsonlWriter, Pipeline, Rows
from tamis.attributes import Where
from tamis.dedup import ExactDedup, FuzzyDedup
from tamis.errors import ParameterError
from tamis.splitting import Split

HALVES = {"train": 0.5, "validation": 0.5}


def split(rows, **options):
    return Pipeline(Rows(rows, rows_per_partition=50), Split(**options)).collect(executor="inline").to_pylist()


def test_shares_of_rows():
    rows = split([{"n": n} for n in range(4000)], shares={"train": 8, "validation": 1, "test": 1})
    found = Counter(row["split"] for row in rows)
    assert abs(found["train"] - 3200) < 120
    assert abs(found["test"] - 400) < 90


def test_groups_stay_together_and_nulls_are_on_their_own():
    rows = [{"author": f"a{n % 40}" if n % 10 else None, "n": n} for n in range(1000)]
    found = split(rows, shares=HALVES, by="author")
    parts = {(row["author"], row["split"]) for row in found if row["author"] is not None}
    assert len(parts) == len({row["author"] for row in rows} - {None})
    assert len({row["split"] for row in found if row["author"] is None}) == 2
    assert found == split(list(rows), shares=HALVES, by="author")


def test_a_part_does_not_change_when_rows_are_added():
    few = split([{"author": f"a{n}"} for n in range(50)], shares=HALVES, by="author")
    many = split([{"author": f"a{n}"} for n in range(90)][::-1], shares=HALVES, by="author")
    assert {(row["author"], row["split"]) for row in few} <= {(row["author"], row["split"]) for row in many}
    other = split([{"author": f"a{n}"} for n in range(50)], shares=HALVES, by="author", seed=1)
    assert few != other


@pytest.mark.parametrize("steps", [[FuzzyDedup(verify="none")], [ExactDedup(), FuzzyDedup(verify="none")]])
def test_near_duplicates_do_not_cross(tmp_path, steps):
    # Words of letters: digits do not count as different.
    words = ["".join(pair) for pair in itertools.product("abcdefghij", "klmnopqrst")]
    base = [" ".join(words[(n * 13 + k * (n + 1)) % 100] for k in range(60)) for n in range(40)]
    texts = [text for text in base for text in (text, text + " end", text, "start " + text)]
    rows = Rows([{"text": text, "of": number // 4} for number, text in enumerate(texts)], rows_per_partition=30)
    Pipeline(rows, *steps, JsonlWriter(tmp_path)).run(executor="inline")
    table = Pipeline(rows, Split(shares=HALVES, groups=str(tmp_path))).collect(executor="inline").to_pylist()
    assert len(table) == 160
    assert len({(row["of"], row["split"]) for row in table}) == 40
    assert len({row["split"] for row in table}) == 2


@pytest.fixture
def pages(tmp_path, monkeypatch):
    """A folder `here` with pairs of equal texts in `pages/`, the groups of a deduplication in `groups/`, and a link."""
    here = tmp_path / "here"
    (here / "pages").mkdir(parents=True)
    (here / "link").symlink_to("pages")
    monkeypatch.chdir(here)
    rows = Rows([{"text": f"text {number // 2}"} for number in range(100)], rows_per_partition=25)
    Pipeline(rows, JsonlWriter("pages/")).run(executor="inline")
    Pipeline(JsonlReader("pages/"), ExactDedup(), JsonlWriter("groups/")).run(executor="inline")
    return here


def run_split(path, groups="groups/"):
    """(how many texts are in both parts, the report)"""
    step = Split(shares=HALVES, groups=str(groups))
    report = Pipeline(JsonlReader(str(path)), step, JsonlWriter("split/")).run(executor="inline")
    parts = {(row["text"], row["split"]) for row in Pipeline(JsonlReader("split/")).collect().to_pylist()}
    return len(parts) - 50, report


@pytest.mark.parametrize("path", ["pages/", "./pages", "pages/*.jsonl", "../here/pages/", "link/", "{here}/pages"])
def test_groups_are_found_however_the_input_is_written(pages, path):
    crossing, report = run_split(path.format(here=pages))
    assert crossing == 0
    assert "rows in folders without groups" not in report.operators[1]["counts"]


def test_groups_are_found_from_another_folder_and_if_all_is_moved(pages, monkeypatch):
    monkeypatch.chdir(pages.parent)
    assert run_split(pages / "pages", pages / "groups")[0] == 0
    pages.rename(pages.parent / "there")
    monkeypatch.chdir(pages.parent / "there")
    assert run_split("pages/")[0] == 0


def test_groups_of_files_that_do_not_exist_are_refused(pages):
    (pages / "pages").rename(pages / "other")
    with pytest.raises(ParameterError, match="rows in pages/, which does not exist"):
        run_split("other/")


def test_rows_in_other_folders_are_counted(pages):
    shutil.copytree("pages", "copy")
    _, report = run_split("copy/")
    assert report.operators[1]["counts"]["rows in folders without groups"] == 100


def test_one_part_is_kept_by_where():
    rows = Rows([{"n": n} for n in range(100)])
    report = Pipeline(rows, Split(shares=HALVES), Where(include="split == 'train'")).run(executor="inline")
    (counts,) = [step["counts"] for step in report.operators if step["counts"]]
    assert counts["rows of train"] == report.kept
    assert report.dropped == {"not split == 'train'": int(counts["rows of validation"])}


@pytest.mark.parametrize(
    "options", [{"shares": {}}, {"shares": {"a": -1}}, {"shares": {"a": 0}}, {"domain": True}, {"groups": "nowhere"}]
)
def test_mistakes(options):
    with pytest.raises(ParameterError):
        Pipeline(Rows([{"n": 1}]), Split(**options)).run(executor="inline")
