"""URLs that are equal, and those that are not; duplicates by URL; the number of copies as a column."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis import ParquetReader, ParquetWriter, Pipeline, Rows
from tamis.dedup import ExactDedup, FuzzyDedup, UrlDedup
from tamis.dedup.urls import UrlForm
from tamis.errors import ParameterError

FORM = UrlForm()


@pytest.mark.parametrize(
    "urls",
    [
        [
            "http://example.org",
            "https://www.example.org/",
            "HTTP://EXAMPLE.ORG:80/index.html",
            "example.org#top",
        ],
        ["http://a.org/b?x=1&y=2", "http://a.org/b?y=2&x=1", "https://a.org/b/?utm_medium=m&x=1&y=2&fbclid=z"],
        ["http://a.org/%7Eann/", "http://a.org/~ann", "http://a.org/x/../~ann", "http://a.org//~ann/."],
        ["http://a.org/caf\u00e9", "http://a.org/caf%c3%a9", "http://a.org/caf%C3%A9"],
        ["http://b\u00fccher.example/", "http://xn--bcher-kva.example"],
        ["http://a.org/x;jsessionid=12AB?y=1", "http://a.org/x?y=1"],
        ["http://user:pw@a.org./x", "http://a.org/x"],
    ],
)
def test_urls_of_the_same_page(urls):
    assert len({FORM(url) for url in urls}) == 1


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("http://a.org/X", "http://a.org/x"),
        ("http://a.org:8080/", "http://a.org/"),
        ("http://a.org/x?a=1", "http://a.org/x?a=2"),
        ("http://a.org/a%2Fb", "http://a.org/a/b"),
        ("http://www.org/", "http://org/"),
        ("ftp://a.org/x", "http://a.org/x"),
        ("http://a.org/x", "http://b.a.org/x"),
        ("http://[::1", "http://[::2"),
        ("http://[::1]/x", "http://[::2]/x"),
    ],
)
def test_urls_of_other_pages(left, right):
    assert FORM(left) != FORM(right)


@given(
    st.text(max_size=60)
    | st.from_regex(r"https?://[a-z.]{1,12}(:[0-9]{1,6})?/[a-zA-Z0-9./%?&=;#]{0,30}", fullmatch=True)
)
def test_any_text_has_a_form_that_stays(url):
    assert isinstance(FORM(url), str)
    if url.startswith("http") and url.isprintable():
        form = FORM(url)
        assert FORM(form) == form


ROWS = [
    {"url": "http://a.org/x?utm_source=n", "date": 1, "text": "one two three four five six seven eight nine ten"},
    {"url": "https://www.a.org/x", "date": 3, "text": "something else"},
    {"url": "http://b.org", "date": 2, "text": "one two three four five six seven eight nine ten"},
    {"url": None, "date": 1, "text": "one two three four five six seven eight nine ten"},
    {"url": None, "date": 1, "text": None},
    {"url": "a.org/x/", "date": 2, "text": "something else"},
]


def test_rows_by_url_with_policies_and_counts():
    found = Pipeline(Rows(ROWS), UrlDedup(count_column="copies")).collect(executor="inline")
    assert found["copies"].to_pylist() == [3, 1, 1, 1]
    assert found["url"].to_pylist() == ["http://a.org/x?utm_source=n", "http://b.org", None, None]
    newest = Pipeline(Rows(ROWS), UrlDedup(keep="newest", by="date")).collect(executor="inline")
    assert newest["url"].to_pylist()[0] == "https://www.a.org/x"
    report = Pipeline(Rows(ROWS), UrlDedup(drop_parameters=[])).run(executor="inline")
    assert report.dropped == {"exact duplicate": 1}
    for wrong in ({"unit": "line"}, {"column": ["url", "text"]}):
        with pytest.raises(ParameterError):
            UrlDedup(**wrong).check()


@pytest.mark.parametrize("step", [ExactDedup(count_column="n"), FuzzyDedup(count_column="n")])
def test_the_number_of_copies_is_a_column(step, tmp_path):
    """The same for any division, and with other steps after it; the sum of the column is the number of rows."""
    rows = ROWS * 20 + [{"url": None, "date": 0, "text": f"row {number} of its own kind"} for number in range(30)]
    tables = []
    for number, per in enumerate((1000, 7)):
        source = Rows(rows, rows_per_partition=per)
        report = Pipeline(source, step, ParquetWriter(tmp_path / str(number))).run(executor="inline")
        table = Pipeline(ParquetReader(str(tmp_path / str(number)))).collect(executor="inline")
        tables.append(table["n"].to_pylist())
        assert sum(tables[-1]) == report.read
    assert tables[0] == tables[1]
    assert tables[0][:2] == [60, 40]
    with pytest.raises(ParameterError, match="counts no rows"):
        ExactDedup(unit="line", count_column="n").check()
