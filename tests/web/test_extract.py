"""From HTML to text: scored against texts that people chose, the same for any batches, and pages that misbehave."""

import re
from collections import Counter

import pyarrow.parquet as pq
import pytest

from scripts.fetch_pages import fetch
from tamis import Batch, ParquetWriter, Pipeline, Rows, WarcReader
from tamis.errors import ParameterError
from tamis.recipes.load import load_recipe
from tamis.registry import build_operator
from tamis.web import HtmlExtract, fast_html
from tamis.web.alone import Alone, TookTooLong
from tamis.web.extractors import Settings, extract_of
from tests.web.crawls import packed, page, reply, warc_record

TEXT = "<p>" + "A sentence of the article that says something, and then some more. " * 4 + "</p>"


@pytest.fixture(scope="session")
def news():
    """Pages of news sites, and the text of each as people chose it."""
    folder = fetch("news")
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted((folder / "txt").glob("*.txt"))}
    pages = {name: folder / "html" / f"{name}.html" for name in texts}
    return [(path.read_text(encoding="utf-8"), texts[name]) for name, path in pages.items() if path.exists()]


def f1(found, expected):
    """The F1 of the words of two texts."""
    one, other = (Counter(re.findall(r"\w+", text.lower())) for text in (found, expected))
    common = sum((one & other).values())
    return 2 * common / max(1, sum(one.values()) + sum(other.values()))


@pytest.mark.parametrize(("extractor", "least"), [("trafilatura", 0.91), ("resiliparse", 0.80), ("fast", 0.94)])
def test_extractors_find_the_text_of_news_pages(news, extractor, least):
    extract = extract_of(Settings(extractor, "text", "balanced", False))
    scores = [f1(extract(html), text) for html, text in news]
    assert len(scores) == 23
    assert sum(scores) / len(scores) > least


def run(pages, **parameters):
    rows = [{"n": number, "html": html} for number, html in enumerate(pages)]
    return Pipeline(Rows(rows), HtmlExtract(**parameters)).collect(executor="inline", max_failed="100%").to_pylist()


def test_the_head_of_a_page_becomes_columns():
    html = (
        "<!doctype html><html lang='de-AT'><head><title> A &amp; B </title>"
        '<meta property="article:published_time" content="2024-03-05T10:00:00Z"></head>'
        f'<body><a href="/a?x=1&amp;y=2">link</a>{TEXT}</body></html>'
    )
    (row,) = run([html], extractor="fast", metadata=["title", "page_date", "page_language", "links"])
    assert (row["title"], row["page_date"], row["page_language"], row["links"]) == (
        "A & B",
        "2024-03-05",
        "de",
        ["/a?x=1&y=2"],
    )


def test_markdown_keeps_headings_lists_and_code():
    html = f"<article><h2>Head</h2>{TEXT}<ul><li>{TEXT}</li></ul><pre>x = 1\n  y = {'2 ' * 30}</pre></article>"
    (row,) = run([html], extractor="fast", format="markdown")
    assert row["text"].startswith("## Head\n\nA sentence")
    assert "```\nx = 1\n  y" in row["text"]
    assert "A sentence" in run([html], format="markdown")[0]["text"]


def test_pages_without_text_are_dropped_with_a_reason(tmp_path):
    deep, inline = "<div>" * 100_000, "<b>" * 100_000
    rows = [{"html": html} for html in (TEXT, None, " ", "<p></p>", deep + TEXT, inline + TEXT, "x" * 1_000_001)]
    report = Pipeline(Rows(rows), HtmlExtract(extractor="fast", max_bytes="1MB"), ParquetWriter(tmp_path / "out")).run(
        executor="inline"
    )
    assert report.kept == 1
    assert report.dropped == {
        "extraction: no HTML": 2,
        "extraction: no text": 1,
        "extraction: nested deeper than 512": 2,
        "extraction: larger than 1.0 MB": 1,
    }


@pytest.mark.parametrize("extractor", ["trafilatura", "fast"])
def test_the_text_does_not_depend_on_other_pages(news, extractor):
    pages = [html for html, _ in news[:4]] * 2
    step = HtmlExtract(extractor=extractor, deduplicate=True)
    runner = step.open(None)
    together = runner.score(Batch.from_rows([{"html": html} for html in pages]))["text"].to_pylist()
    alone = [step.open(None).score(Batch.from_rows([{"html": html}]))["text"].to_pylist()[0] for html in pages]
    assert together == alone


def test_a_large_page_is_extracted_in_a_process_of_its_own(news):
    html = news[0][0]
    (usual,) = run([html])
    (alone,) = run([html], alone_bytes=1)
    assert usual["text"] == alone["text"]


def test_a_call_that_takes_too_long_is_ended_and_the_next_one_works():
    alone = Alone("tests.web.endless", "loop", 0.1)
    with pytest.raises(TookTooLong, match=r"more than 0.1 s"):
        alone.call(True)
    assert alone.call(False) == "done"
    alone.close()


def test_a_page_that_takes_too_long_fails_its_row(tmp_path, news):
    slow = "<table>" + "<tr><td><p>cell <b>x</b></td></tr>" * 60_000 + "</table>"
    short = min((html for html, _ in news), key=len)
    rows = [{"html": html} for html in (short, slow, short)]
    step = HtmlExtract(timeout_s=0.01, alone_bytes="100kB", max_bytes="100MB")
    report = Pipeline(Rows(rows), step, ParquetWriter(tmp_path / "out")).run(
        executor="inline", max_failed="100%", on_error="isolate"
    )
    assert (report.kept, report.failed) == (2, 1)


def test_every_prefix_of_a_page_can_be_parsed(news):
    html = news[3][0][:20_000]
    for size in range(0, len(html), 997):
        fast_html.main_text(fast_html.parse(html[:size]))
    assert fast_html.parse('<p title="' + "x" * 50_000).blocks == []


def test_from_an_archive_to_text_in_workers(tmp_path):
    records = [page(number) for number in range(50)] + [warc_record("response", reply(b"\x89PNG", "image/png"))]
    (tmp_path / "a.warc.gz").write_bytes(packed(records))
    results = []
    for workers in (1, 2):
        steps = WarcReader(tmp_path / "a.warc.gz", blocksize="40kB"), HtmlExtract(extractor="fast")
        output = tmp_path / f"out-{workers}"
        report = Pipeline(*steps, ParquetWriter(output)).run(workers=workers)
        assert (report.read, report.kept, report.dropped) == (51, 50, {"extraction: no HTML": 1})
        results.append(Pipeline(*steps).collect(executor="inline"))
    assert results[0].equals(results[1])


def test_wrong_parameters_are_explained():
    for parameters in (
        {"extractor": "resiliparse", "format": "markdown"},
        {"max_depth": 0},
        {"to": "title"},
        {"timeout_s": 0},
    ):
        with pytest.raises(ParameterError):
            HtmlExtract(**parameters).check()


def test_the_recipe_reads_crawls_and_writes_text(tmp_path, news):
    records = [
        warc_record("response", reply(html.encode()), number=number) for number, (html, _) in enumerate(news[:6] * 2)
    ]
    (tmp_path / "a.warc.gz").write_bytes(packed(records))
    recipe = load_recipe("fineweb_from_warc")
    steps = [build_operator(step.name, step.parameters) for step in recipe.steps]
    output = tmp_path / "out"
    report = Pipeline(WarcReader(tmp_path / "a.warc.gz"), *steps, ParquetWriter(output)).run(executor="inline")
    assert report.read == 12 == report.kept + sum(report.dropped.values())
    assert any("duplicate" in reason for reason in report.dropped)
    names = pq.read_schema(next(output.glob("*.parquet"))).names
    assert "text" in names
    assert "html" not in names
