"""CSV and TSV: strings by default, quotes, malformed rows, types."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tamis.errors import ParameterError, SourceError
from tamis.sources.delimited import CsvReader


def test_values_are_strings_unless_declared(tmp_path, read_all):
    (tmp_path / "a.csv").write_text("code,year,day,none\n007,2020,2020-01-01,NA\n,1999,,\n")
    assert read_all(CsvReader(tmp_path)).rows == [
        {"code": "007", "year": "2020", "day": "2020-01-01", "none": "NA"},
        {"code": "", "year": "1999", "day": "", "none": ""},
    ]
    typed = read_all(CsvReader(tmp_path, types={"year": "int64", "code": "double"}))
    assert [(row["code"], row["year"]) for row in typed.rows] == [(7.0, 2020), (None, 1999)]


def test_rows_with_too_few_or_many_fields_fail_with_their_number(tmp_path, read_all):
    (tmp_path / "a.csv").write_text('a,b\n1,2\n3\n4,5\n"x\ny",6\n7,8,9\n\n10,11\n')
    found = read_all(CsvReader(tmp_path))
    assert found.rows == [{"a": "1", "b": "2"}, {"a": "4", "b": "5"}, {"a": "x\ny", "b": "6"}, {"a": "10", "b": "11"}]
    assert [address.rpartition(":")[2] for address in found.addresses] == ["0", "2", "3", "5"]
    assert [(f.address.rpartition(":")[2], f.row) for f in found.failures] == [("1", b"3"), ("4", b"7,8,9")]
    assert found.failures[0].error == "the row has 1 fields, the header 2"


def test_values_that_do_not_fit_fail_their_row(tmp_path, read_all):
    (tmp_path / "a.csv").write_bytes(b"n,t\n1,a\nx,b\n3,\xff\n4,d\n")
    found = read_all(CsvReader(tmp_path, types={"n": "int64"}))
    assert found.rows == [{"n": 1, "t": "a"}, {"n": 4, "t": "d"}]
    assert [failure.address.rpartition(":")[2] for failure in found.failures] == ["1", "2"]
    assert "'x' of column `n` is not int64" in found.failures[0].error
    assert "`t` is not UTF-8" in found.failures[1].error
    assert found.failures[0].row == {"n": "x", "t": "b"}


def test_pruning_spares_rows_whose_other_columns_are_bad(tmp_path, read_all):
    (tmp_path / "a.csv").write_bytes(b"n,t\n1,a\n2,\xff\n")
    found = read_all(CsvReader(tmp_path, columns={"id": "n"}), columns=("id",))
    assert found.rows == [{"id": "1"}, {"id": "2"}]
    assert found.failures == []


@pytest.mark.parametrize(("name", "parameters"), [("a.tsv", {}), ("a.csv", {"delimiter": "\t"}), ("a.tsv.gz", {})])
def test_tabs_separate_where_the_name_or_the_user_says_so(name, parameters, tmp_path, compress, read_all):
    data = b"a\tb\n1,5\t2\n"
    (tmp_path / name).write_bytes(compress("gz", data) if name.endswith("gz") else data)
    assert read_all(CsvReader(tmp_path, **parameters)).rows == [{"a": "1,5", "b": "2"}]


def test_a_row_longer_than_a_block_is_read(tmp_path, read_all):
    rows = "".join(f"{i},{'x' * (i * 700 % 30_000)}\n" for i in range(60))
    (tmp_path / "a.csv").write_text("n,t\n" + rows)
    found = read_all(CsvReader(tmp_path), batch_bytes=100)
    assert [row["n"] for row in found.rows] == [str(i) for i in range(60)]
    assert found.addresses == [f"{tmp_path}/a.csv:{i}" for i in range(60)]


def test_files_may_have_different_columns(tmp_path, read_all):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    (tmp_path / "b.csv").write_text("b,c\n3,4\n")
    assert read_all(CsvReader(tmp_path)).rows == [{"a": "1", "b": "2", "c": None}, {"a": None, "b": "3", "c": "4"}]


def test_empty_files_headers_alone_and_byte_order_marks(tmp_path, read_all):
    (tmp_path / "a.csv").write_bytes(b"")
    (tmp_path / "b.csv").write_bytes(b"x,y\n")
    (tmp_path / "c.csv").write_bytes(b"\xef\xbb\xbfx,y\r\n1,2\r\n")
    found = read_all(CsvReader(tmp_path))
    assert found.rows == [{"x": "1", "y": "2"}]
    assert found.failures == []


def test_two_columns_of_one_name_and_odd_delimiters_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("x,x\n1,2\n")
    with pytest.raises(SourceError, match="two columns called `x`"):
        CsvReader(tmp_path).layout(10**6)
    with pytest.raises(ParameterError, match="one character"):
        CsvReader(tmp_path, delimiter="::").check()


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 9])
def test_a_limit_counts_malformed_rows(limit, tmp_path, read_all):
    (tmp_path / "a.csv").write_text("a,b\n1,1\nbad\n2,2\n")
    (tmp_path / "b.csv").write_text("a,b\n3,3\n")
    found = read_all(CsvReader(tmp_path, limit=limit))
    fates = ["1", None, "2", "3"][:limit]
    assert [row["a"] for row in found.rows] == [fate for fate in fates if fate]
    assert len(found.failures) == fates.count(None)


def test_a_truncated_file_keeps_whole_lines_and_fails_once(tmp_path, compress, read_all):
    data = b"n,t\n" + b"".join(b"%d,%d\n" % (i, i * i) for i in range(20_000))
    (tmp_path / "a.csv.gz").write_bytes(compress("gz", data)[:-1000])
    found = read_all(CsvReader(tmp_path))
    assert [row["n"] for row in found.rows] == [str(i) for i in range(len(found.rows))]
    assert len(found.rows) > 10_000
    assert all(int(row["t"]) == int(row["n"]) ** 2 for row in found.rows[-3:])
    assert ["truncated" in failure.error for failure in found.failures] == [True]


cells = st.text(st.sampled_from('ab ,"\n\r;é'), max_size=6)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(cells, cells), max_size=12), batch_bytes=st.integers(1, 300))
def test_what_the_csv_module_writes_is_read(rows, batch_bytes, tmp_path_factory, read_all):
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows([("a", "b"), *rows])
    folder = tmp_path_factory.mktemp("csv")
    (folder / "a.csv").write_bytes(out.getvalue().encode())
    found = read_all(CsvReader(folder), batch_bytes=batch_bytes)
    assert [(row["a"], row["b"]) for row in found.rows] == rows
