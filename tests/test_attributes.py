"""Attributes: expressions that are parsed and never evaluated, joins by id, and spans."""

import itertools

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import JsonlReader, JsonlWriter, ParquetWriter, Pipeline, Rows
from tamis.attributes import JoinAttributes, Lookup, ReplaceSpans, Where
from tamis.errors import ColumnError, OperatorError, ParameterError
from tamis.expressions import merged, parse
from tamis.sources.files import list_files
from tamis.text.pii import PersonalDataSpans
from tamis.text.quality import WordCount

ROWS = {
    "n": [1, 2, None, 4],
    "x": [0.5, None, 2.0, -1.0],
    "lang": ["en", "de", None, "is"],
    "my column": [True, False, None, True],
    "spans": [
        [{"start": 0, "end": 4, "score": 0.9}, {"start": 2, "end": 6, "score": 0.2}],
        [],
        None,
        [{"start": 3, "end": 5, "score": None}],
    ],
    "dolma": [[[0.0, 4.0, 0.7]], [], None, [[1.0, 2.0, 0.1], [5.0, 9.0, 0.8]]],
    "meta": [{"a": {"b": 1}}, {"a": None}, None, {"a": {"b": 4}}],
    "url": ["https://a.org/x", "ftp://b", "", "https://c.de/'q'"],
}
COLUMNS = {name: pa.array(values) for name, values in ROWS.items()}
COLUMNS["small"] = pa.array([1, 2, None, 44], pa.uint8())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n >= 2", [0, 1, 0, 1]),
        ("not n >= 2", [1, 0, 0, 0]),  # a null is neither
        ("n is null or x is null", [0, 1, 1, 0]),
        ("n is not null and x is not null", [1, 0, 0, 1]),
        ("lang in ['en', 'is']", [1, 0, 0, 1]),
        ("lang not in ['en']", [0, 1, 0, 1]),
        ("n in [1, -4, 4.0]", [1, 0, 0, 1]),
        ("n in [1.5, 4, 1e300]", [0, 0, 0, 1]),
        ("small in [300, 257, 2]", [0, 1, 0, 0]),
        ("small + 254 > 255 and small * 200 == 400", [0, 1, 0, 0]),
        ("-small < 0 and abs(small - 3) == 2", [1, 0, 0, 0]),
        ("`my column`", [1, 0, 0, 1]),
        ("not `my column`", [0, 1, 0, 0]),
        ("n + 1 * 2 == 3 or n / 0 > 1e9", [1, 1, 0, 1]),
        ("(n + 1) * 2 == 4", [1, 0, 0, 0]),
        ("-n < -1 - 0.5", [0, 1, 0, 1]),
        ("max(spans.score) > 0.5", [1, 0, 0, 0]),
        ("count(spans) == 0", [0, 1, 0, 0]),
        ("covered(spans) > 2", [1, 0, 0, 0]),
        ("covered(dolma) / length(url) > 0.3", [0, 0, 0, 1]),
        ("dolma[0][2] > 0.5", [1, 0, 0, 0]),
        ("dolma[1][2] > 0.5", [0, 0, 0, 1]),
        ("meta.a.b >= 1", [1, 0, 0, 1]),
        ("url matches '^https?://[a-b]'", [1, 0, 0, 0]),
        (r"url contains '/\'q'", [0, 0, 0, 1]),
        ('lower(lang) == "en" and true and not false', [1, 0, 0, 0]),
        ("sum(spans.score) < 1.05", [0, 1, 0, 1]),
        ("1 < 2", [1, 1, 1, 1]),
        ("null", [0, 0, 0, 0]),
        ("n == null", [0, 0, 0, 0]),
    ],
)
def test_expressions(text, expected):
    assert parse(text).condition(COLUMNS, 4).astype(int).tolist() == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "n >", "n ==", "(n", "n)", "n > 1 2", "__import__('os')", "open('x')", "n.__class__()", "lambda: 1", "n = 1",
        "n in (1)", "n; 1", "x[-1] > 1", "lang matches lang", "lang matches '['", "'open", "@n", "n if x else 1", "f'{n}'",
        "and", "(" * 60 + "n" + ")" * 60, "n " + "+ 1" * 5000,
    ],
)  # fmt: skip
def test_what_is_not_an_expression_is_an_error_with_a_place(text):
    with pytest.raises(ParameterError):
        parse(text)


@given(st.text(alphabet="n x'\"()[].,<>=!+-*/andornotin01`\\", max_size=40))
def test_any_text_is_parsed_or_rejected(text):
    try:
        found = parse(text)
    except ParameterError:
        return
    try:
        found.condition({name: COLUMNS.get(name, COLUMNS["n"]) for name in found.columns}, 4)
    except OperatorError:
        return


def test_types_that_do_not_fit_end_the_run_with_the_types():
    with pytest.raises(OperatorError, match="n: int64"):
        Pipeline(Rows([{"n": 1}]), Where(include="n == 'a'")).run(executor="inline")
    with pytest.raises(OperatorError, match="not a condition"):
        Pipeline(Rows([{"n": 1}]), Where(include="n + 1")).run(executor="inline")


def test_a_number_that_becomes_too_large_fails_its_row():
    rows = pa.table({"n": pa.array([70_000, 2, 2**40], pa.int64()), "m": pa.array([70_000, 2, 1], pa.int32())})
    area = Pipeline(Rows(rows), Where(include="m * m > 10")).run(executor="inline")  # more than 32 bits
    assert (area.kept, area.failed) == (1, 0)
    report = Pipeline(Rows(rows), Where(include="n * n > 10")).run(
        executor="inline", on_error="isolate", max_failed="100%"
    )
    assert (report.kept, report.dropped, report.failed) == (1, {"not n * n > 10": 1}, 1)
    assert "more than 64 bits" in report.errors[0]["error"]


def test_reasons_are_the_expressions():
    rows = [{"n": n, "s": "ab"[n % 2]} for n in range(10)]
    report = Pipeline(Rows(rows), Where(include=["n > 1"], exclude=["s == 'a'", "n == 9"])).run(executor="inline")
    assert report.dropped == {"not n > 1": 2, "s == 'a'": 4, "n == 9": 1}
    assert report.kept == 3


def test_spans_are_replaced_once_and_by_score():
    spans = [
        {"start": 0, "end": 2, "score": 0.9},
        {"start": 1, "end": 4, "score": 0.8},
        {"start": 6, "end": 99, "score": 0.3},
    ]
    rows = [{"text": "abcdefgé", "spans": spans}, {"text": None, "spans": spans}, {"text": "x", "spans": None}]
    both = Pipeline(Rows(rows), ReplaceSpans(spans="spans", replacement="_")).collect(executor="inline")
    assert both["text"].to_pylist() == ["_ef_", None, "x"]
    sure = Pipeline(Rows(rows), ReplaceSpans(spans="spans", min_score=0.5)).collect(executor="inline")
    assert sure["text"].to_pylist() == ["efgé", None, "x"]


def test_a_replacement_can_keep_the_text_between_marks():
    rows = [{"text": "Ann a@b.org.", "names": [[0, 3, 1.0]]}]
    step = ReplaceSpans(spans="names", replacement="<b>{}</b>")
    assert Pipeline(Rows(rows), step).collect(executor="inline")["text"].to_pylist() == ["<b>Ann</b> a@b.org."]


def test_spans_that_touch_are_replaced_one_by_one():
    rows = [{"text": "AnnBob", "names": [[3, 6, 1.0], [0, 3, 1.0]]}]
    step = ReplaceSpans(spans="names", replacement="[NAME]")
    assert Pipeline(Rows(rows), step).collect(executor="inline")["text"].to_pylist() == ["[NAME][NAME]"]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20))))
def test_merged_spans_cover_the_same_characters(spans):
    found = merged([list(span) for span in spans])
    covered = {at for start, end in found for at in range(start, end)}
    assert covered == {at for start, end in spans for at in range(start, end)}
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(found))


# ---------------------------------------------------------------------------------------------------------------- joins


def test_tag_once_and_decide_later(tmp_path):
    lines = [f'{{"id": "d{n}", "text": "{"word " * n}mail a{n}@example.org"}}' for n in range(30)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    reader = JsonlReader(tmp_path / "in.jsonl", blocksize="400B")
    tags = [WordCount(score_only=True), PersonalDataSpans()]
    Pipeline(reader, *tags, ParquetWriter(tmp_path / "tags", fields=["id", "words", "personal_data"])).run(
        executor="inline"
    )
    steps = [
        JoinAttributes(tmp_path / "tags"),
        Where(include="words >= 10", exclude="covered(personal_data) > 16"),
        ReplaceSpans(spans="personal_data", replacement="[EMAIL]"),
    ]
    report = Pipeline(reader, *steps, JsonlWriter(tmp_path / "out", fields=["id", "text"])).run(executor="inline")
    assert report.dropped == {"not words >= 10": 8}
    text = (tmp_path / "out").glob("part-*")
    joined = "".join(file.read_text() for file in text)
    assert joined.count("[EMAIL]") == 22
    assert "@" not in joined


def test_attributes_do_not_replace_columns_of_the_rows_by_accident(tmp_path):
    """A run that tags and names no columns to write stores the texts as well; a new row would get a null text."""
    rows = [{"id": "a", "text": "one two"}, {"id": "b", "text": "three"}]
    tagging = [WordCount(score_only=True), ParquetWriter(tmp_path / "tags")]
    Pipeline(Rows(rows), *tagging).run(executor="inline")
    more = Rows([*rows, {"id": "new", "text": "was not tagged"}])
    with pytest.raises(ColumnError, match="would replace columns that the rows have: text") as caught:
        Pipeline(more, JoinAttributes(tmp_path / "tags")).collect(executor="inline")
    assert 'fields=["words"]' in str(caught.value)
    found = Pipeline(more, JoinAttributes(tmp_path / "tags", fields=["words"])).collect(executor="inline")
    assert found.select(["text", "words"]).to_pylist() == [
        {"text": "one two", "words": 2},
        {"text": "three", "words": 1},
        {"text": "was not tagged", "words": None},
    ]


@pytest.fixture
def stored(tmp_path):
    """Ids 0 to 99 in two files of five row groups each."""
    for number in range(2):
        ids = list(range(50 * number, 50 * number + 50))
        table = pa.table({"id": ids, "score": [each / 2 for each in ids], "tag": [f"t{each}" for each in ids]})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=10)
    return tmp_path


@pytest.mark.parametrize("cache_bytes", [1, 10**9])
@pytest.mark.parametrize("order", ["same", "reversed", "mixed"])
def test_any_order_of_rows_finds_its_attributes(stored, order, cache_bytes, tmp_path):
    ids = {"same": list(range(100)), "reversed": list(range(99, -1, -1)), "mixed": [n * 37 % 100 for n in range(100)]}[
        order
    ]
    lookup = Lookup(list_files(stored, "parquet"), "id", ["score", "tag"], tmp_path / "index", cache_bytes=cache_bytes)
    for start in range(0, 100, 9):
        part = ids[start : start + 9]
        found, known = lookup.find(pa.array([*part, None, 1000, 1000]))
        assert found["score"].to_pylist() == [*(each / 2 for each in part), None, None, None]
        assert found["tag"].to_pylist()[:-3] == [f"t{each}" for each in part]
        assert known.tolist() == [True] * len(part) + [False] * 3


@settings(max_examples=25)
@given(st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6), min_size=1, max_size=6), st.data())
def test_the_first_of_several_entries_counts_whatever_was_looked_up_before(tmp_path_factory, groups, data):
    folder = tmp_path_factory.mktemp("stored")
    keys = list(itertools.chain(*groups))
    for number, group in enumerate(groups):
        first = sum(map(len, groups[:number]))
        table = pa.table({"id": group, "n": list(range(first, first + len(group)))})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=2)
    lookup = Lookup(list_files(folder, "parquet"), "id", ["n"], folder / "index", cache_bytes=1)
    for _ in range(3):
        asked = data.draw(st.lists(st.sampled_from("abcdefg"), max_size=8))
        found, _ = lookup.find(pa.array(asked, pa.string()))
        assert found["n"].to_pylist() == [keys.index(each) if each in keys else None for each in asked]


def test_repeated_ids_get_the_same_attributes_for_any_division(tmp_path):
    rows = "".join(f'{{"id": "d{n % 7}"}}\n' for n in range(60))
    (tmp_path / "in.jsonl").write_text(rows)
    (tmp_path / "tags").mkdir()
    pq.write_table(
        pa.table({"id": [f"d{n % 7}" for n in range(60)], "n": range(60)}),
        tmp_path / "tags/0.parquet",
        row_group_size=4,
    )
    results = [
        Pipeline(JsonlReader(tmp_path / "in.jsonl", blocksize=size), JoinAttributes(tmp_path / "tags"))
        .collect(executor="inline")["n"]
        .to_pylist()
        for size in ("50B", "300B", "1MB")
    ]
    assert results == [[n % 7 for n in range(60)]] * 3


def test_rows_without_attributes_get_nulls_and_are_counted(stored):
    rows = [{"id": str(number)} for number in (7, 700, 8)]
    pipeline = Pipeline(Rows(rows), JoinAttributes(stored, fields=["score"]))
    assert pipeline.collect(executor="inline")["score"].to_pylist() == [3.5, None, 4.0]
    assert pipeline.run(executor="inline").operators[1]["counts"] == {"rows_without_attributes": 1}


def test_changed_attributes_are_noticed(stored, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text('{"id": "7"}\n')
    job = Pipeline(JsonlReader(source), JoinAttributes(stored, fields=["score"]), JsonlWriter(tmp_path / "out"))
    assert job.run(executor="inline").state == "finished"
    assert job.run(executor="inline").state == "unchanged"
    pq.write_table(pa.table({"id": [7], "score": [9.0]}), stored / "0.parquet")
    assert job.run(executor="inline").state == "finished"
    assert '"score":9.0' in next((tmp_path / "out").glob("part-*")).read_text().replace(" ", "")


def test_mistakes_in_names(stored):
    with pytest.raises(ParameterError, match="no column `nothing`"):
        Pipeline(Rows([{"id": 1}]), JoinAttributes(stored, fields=["nothing"])).run(executor="inline")
    with pytest.raises(ParameterError, match="has no expressions"):
        Pipeline(Rows([{"id": 1}]), Where()).run(executor="inline")
