"""Exact duplicates: which rows are kept and dropped, and why, for any keep policy and any division of the work."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import JsonlReader, JsonlWriter, Pipeline, Rows
from tamis.dedup import ExactDedup, Groups
from tamis.errors import OperatorError, ParameterError, TamisError


def kept(rows, step, **options):
    options = {"executor": "inline", **options}
    return Pipeline(Rows(rows, rows_per_partition=3), step).collect(**options).to_pylist()


def test_first_of_equal_rows_is_kept_and_the_reason_is_reported():
    rows = [{"text": text} for text in ["a", "b", "a", "c", "b", "a"]]
    report = Pipeline(Rows(rows, rows_per_partition=2), ExactDedup()).run(executor="inline")
    assert report.dropped == {"exact duplicate": 3}
    assert report.balances
    assert [row["text"] for row in kept(rows, ExactDedup())] == ["a", "b", "c"]


def test_null_keys_are_not_duplicates_but_empty_texts_are():
    rows = [{"text": None}, {"text": ""}, {"text": None}, {"text": ""}, {"text": " "}]
    assert [row["text"] for row in kept(rows, ExactDedup())] == [None, "", None, " "]


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (ExactDedup(column="k"), [0, 4]),
        (ExactDedup(column="k", keep="best", by="n"), [3, 4]),
        (ExactDedup(column="k", keep="newest", by="date"), [1, 4]),
        (ExactDedup(column="k", keep="none"), [4]),
        (ExactDedup(column="k", prefer=["b", "c"], prefer_column="source"), [2, 4]),
        (ExactDedup(column="k", prefer=["c"], prefer_column="source", keep="best", by="n"), [3, 4]),
    ],
)
def test_keep_policies(step, expected):
    rows = [
        {"i": 0, "k": "x", "n": 1.0, "date": "2024-01-01", "source": "a"},
        {"i": 1, "k": "x", "n": None, "date": "2025-06-01T10:00:00Z", "source": "a"},
        {"i": 2, "k": "x", "n": -3.0, "date": None, "source": "b"},
        {"i": 3, "k": "x", "n": 2.5, "date": "2025-06-01", "source": "c"},
        {"i": 4, "k": "y", "n": 0.0, "date": "2020-01-01", "source": "a"},
    ]
    assert [row["i"] for row in kept(rows, step)] == expected


def test_the_longest_text_is_kept_when_case_and_space_are_ignored():
    rows = [{"text": "One  two"}, {"text": "one two"}, {"text": "ONE    two "}]
    step = ExactDedup(ignore_case=True, ignore_whitespace=True, keep="longest")
    assert kept(rows, step) == [{"text": "ONE    two "}]


def test_several_columns_and_keys_that_are_not_text():
    rows = [{"a": 1, "b": "x"}, {"a": 1, "b": None}, {"a": 1, "b": "x"}, {"a": 1, "b": None}, {"a": 2, "b": "x"}]
    assert kept(rows, ExactDedup(column=["a", "b"])) == [rows[0], rows[1], rows[4]]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c", "", None]), st.integers(0, 3)), max_size=25),
    st.sampled_from(["first", "best", "none"]),
    st.integers(1, 5),
)
def test_survivors_are_those_of_the_naive_reference(pairs, keep, per_partition):
    rows = [{"i": i, "text": text, "n": n} for i, (text, n) in enumerate(pairs)]
    expected = []
    for row in rows:
        group = [other for other in rows if other["text"] == row["text"]]
        best = min(group, key=lambda other: (-other["n"] if keep == "best" else 0, other["i"]))
        if row["text"] is None or len(group) == 1 or (row is best and keep != "none"):
            expected.append(row["i"])
    if not rows:
        return
    table = pa.table(
        {
            "i": pa.array([row["i"] for row in rows]),
            "text": pa.array([row["text"] for row in rows], pa.string()),
            "n": pa.array([row["n"] for row in rows]),
        }
    )
    step = ExactDedup(keep=keep, by="n" if keep == "best" else None)
    found = Pipeline(Rows(table, rows_per_partition=per_partition), step).collect(executor="inline")
    assert (found["i"].to_pylist() if found.num_rows else []) == expected


def test_nested_keys_are_rejected():
    with pytest.raises(OperatorError, match="which cannot be compared"):
        kept([{"k": [1, 2]}], ExactDedup(column="k"))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"keep": "newest"}, "needs a column"),
        ({"by": "n"}, "has no effect"),
        ({"update": True}, "needs an index"),
        ({"unit": "line", "keep": "none"}, "first occurrence"),
        ({"unit": "line", "column": ["a", "b"]}, "a single column"),
        ({"unit": "line", "max_removed": 2.0}, "from 0 to 1"),
        ({"against": "/nowhere/index"}, "there is no index"),
        ({"prefer_column": "source"}, "needs `prefer`"),
    ],
)
def test_invalid_parameters_are_rejected(parameters, message):
    with pytest.raises(ParameterError, match=message):
        ExactDedup(**parameters).check()


def test_best_by_a_column_of_text_is_rejected():
    with pytest.raises(OperatorError, match="ranked by a number"):
        kept([{"text": "a", "score": "high"}], ExactDedup(keep="best", by="score"))


def test_an_invalid_date_fails_only_its_row(tmp_path):
    rows = [
        {"text": "a", "date": "2024-01-01"},
        {"text": "a", "date": "yesterday"},
        {"text": "a", "date": "2025-01-01"},
    ]
    report = Pipeline(Rows(rows), ExactDedup(keep="newest", by="date")).run(executor="inline", on_error="isolate")
    assert (report.kept, report.failed) == (1, 1)


def write(folder, name, rows):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_sources_can_be_preferred_by_path(tmp_path):
    write(tmp_path / "in" / "web", "a.jsonl", [{"id": "w1", "text": "x"}, {"id": "w2", "text": "y"}])
    write(tmp_path / "in" / "books", "b.jsonl", [{"id": "b1", "text": "y"}])
    files = [str(tmp_path / "in" / "web" / "a.jsonl"), str(tmp_path / "in" / "books" / "b.jsonl")]
    found = Pipeline(JsonlReader(files), ExactDedup(prefer=["books", "web"])).collect(executor="inline")
    assert found["id"].to_pylist() == ["w1", "b1"]


def test_groups_name_rows_by_address_and_id(tmp_path):
    write(tmp_path / "in", "a.jsonl", [{"id": "1", "text": "x"}, {"id": "1", "text": "y"}, {"id": "3", "text": "x"}])
    Pipeline(JsonlReader(str(tmp_path / "in")), ExactDedup(), JsonlWriter(str(tmp_path / "out"))).run(executor="inline")
    (row,) = pq.read_table(tmp_path / "out" / ".tamis" / "groups").to_pylist()
    assert (row["id"], row["kept_id"], row["similarity"]) == ("3", "1", 1.0)
    assert row["address"].startswith(str(tmp_path / "in" / "a.jsonl"))
    assert row["kept_address"].endswith("a.jsonl:0")
    groups = Groups.load(tmp_path / "out")
    assert groups.histogram() == {2: 1}
    assert [entry["fate"] for entry in groups.explain("3")] == ["dropped"]
    assert [entry["fate"] for entry in groups.explain(row["kept_address"])] == ["kept"]
    assert groups.largest() == [{"size": 2, "kept_address": row["kept_address"], "kept_id": "1"}]


def test_no_groups_where_nothing_was_deduplicated(tmp_path):
    with pytest.raises(TamisError, match="no groups"):
        Groups.load(tmp_path)


def test_a_second_run_leaves_no_groups_of_the_first(tmp_path):
    write(tmp_path / "in", "a.jsonl", [{"text": "x"}, {"text": "x"}])
    step = ExactDedup()
    for expected in (1, 0):
        pipeline = Pipeline(JsonlReader(str(tmp_path / "in")), step, JsonlWriter(str(tmp_path / "out")))
        pipeline.run(executor="inline")
        assert Groups.load(tmp_path / "out").table().num_rows == expected
        write(tmp_path / "in", "a.jsonl", [{"text": "x"}, {"text": "y"}])


# ------------------------------------------------------------------------------------------------------------------- units

LINE = "this line of some length is seen in many places"


def test_repeated_lines_are_cut_and_the_first_is_kept():
    rows = [
        {"text": f"{LINE}\nfirst of its kind in here\n"},
        {"text": f"  quite another text in here\n{LINE}\nthe end of this text"},
    ]
    found = kept(rows, ExactDedup(unit="line", max_removed=0.9))
    assert found == [rows[0], {"text": "  quite another text in here\nthe end of this text"}]


def test_repeats_within_one_document_are_cut_too():
    rows = [{"text": f"{LINE}\n\nand something in the middle\n\n{LINE}\n"}]
    (found,) = kept(rows, ExactDedup(unit="paragraph"))
    assert found["text"] == f"{LINE}\n\nand something in the middle"


def test_documents_that_lose_too_much_are_dropped():
    rows = [{"text": f"{LINE}\nshort"}, {"text": f"{LINE}\nother"}, {"text": None}, {"text": ""}]
    pipeline = Pipeline(Rows(rows, rows_per_partition=1), ExactDedup(unit="line"))
    assert pipeline.run(executor="inline").dropped == {"more than 50% repeated lines": 1}
    assert pipeline.collect(executor="inline")["text"].to_pylist() == [rows[0]["text"], None, ""]


def test_short_units_are_not_compared():
    rows = [{"text": "}\nfoo"}, {"text": "}\nbar"}]
    assert kept(rows, ExactDedup(unit="line")) == rows


def test_units_work_in_workers_after_other_steps_and_on_renamed_columns(tmp_path):
    write(tmp_path, "a.jsonl", [{"body": f"{LINE}\nnumber {n} of the documents"} for n in range(6)])
    pipeline = Pipeline(
        JsonlReader(str(tmp_path / "a.jsonl"), blocksize=100),
        lambda row: {"body": row["body"] + "!"},
        ExactDedup(column="body", unit="line", max_removed=1.0),
    )
    found = pipeline.collect(workers=2)["body"].to_pylist()
    assert found == [f"{LINE}\nnumber 0 of the documents!"] + [f"number {n} of the documents!" for n in range(1, 6)]


def test_text_is_cut_only_if_a_document_that_is_kept_has_it():
    """The second document is dropped, so that the copy of its last line in the third one is the only one left."""
    rows = [
        {"text": f"{LINE}\nfirst of its kind in here, and long enough\n"},
        {"text": f"{LINE}\nthe only copy of this one"},
        {"text": "the only copy of this one\nand some text of its own, which is longer"},
        {"text": "the only copy of this one\nand the fourth has text of its own, too"},
    ]
    found = kept(rows, ExactDedup(unit="line"))
    assert found == [rows[0], rows[2], {"text": "and the fourth has text of its own, too"}]


def test_an_index_has_no_lines_of_documents_that_were_dropped(tmp_path):
    step = lambda **k: ExactDedup(unit="line", against=str(tmp_path / "index"), **k)  # noqa: E731
    rows = [
        {"text": f"{LINE}\nfirst of its kind in here, and long enough\n"},
        {"text": f"{LINE}\nthe only copy of this one"},
    ]
    assert kept(rows, step(update=True)) == rows[:1]
    later = [{"text": f"{LINE}\nthe only copy of this one\nand some text of its own, which is longer"}]
    assert kept(later, step()) == [{"text": "the only copy of this one\nand some text of its own, which is longer"}]


def lines_left(documents, max_removed):
    """The naive reference: drop documents that lose too much, then cut what an earlier one of the others has."""

    def cut(documents):
        seen = set()
        for document in documents:
            left = []
            for line in document:
                if line not in seen:
                    left.append(line)
                seen.add(line)
            yield left

    def is_kept(document, left):
        lost = len(document) - len(left)  # all lines have the same length
        return lost <= max_removed * len(document) and not (lost and not left)

    staying = [document for document, left in zip(documents, cut(documents), strict=True) if is_kept(document, left)]
    return ["\n".join(left) for left in cut(staying)]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=6), min_size=1, max_size=8),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.3, 0.5, 0.8, 1.0]),
)
def test_remaining_lines_are_those_of_the_naive_reference(documents, per_partition, max_removed):
    table = pa.table({"text": pa.array(["\n".join(document) for document in documents], pa.string())})
    step = ExactDedup(unit="line", min_unit_bytes=1, max_removed=max_removed)
    found = Pipeline(Rows(table, rows_per_partition=per_partition), step).collect(executor="inline")
    assert (found["text"].to_pylist() if found.num_rows else []) == lines_left(documents, max_removed)


def test_result_does_not_depend_on_the_executor(executor):
    rows = [{"id": n, "text": f"a line that is repeated {n % 5}\nanother one {n % 7}\nand one"} for n in range(60)]
    step = ExactDedup(unit="line", min_unit_bytes=1, max_removed=1.0)
    expected = Pipeline(Rows(rows), step).collect(executor="inline").to_pylist()
    assert Pipeline(Rows(rows, rows_per_partition=17), step).collect(executor=executor).to_pylist() == expected
