"""From HTML to text: scored against texts that people chose, the same for any batches, and pages that misbehave."""

import json
import random
import re
import subprocess
import sys
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers

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


@pytest.mark.parametrize(("extractor", "least"), [("trafilatura", 0.91), ("resiliparse", 0.80), ("fast", 0.96)])
def test_extractors_find_the_text_of_news_pages(news, extractor, least):
    extract = extract_of(Settings(extractor, "text", "balanced", False))
    scores = [f1(extract(html), text) for html, text in news]
    assert len(scores) == 23
    assert sum(scores) / len(scores) > least


PLAIN = """
import json, sys
import trafilatura
from trafilatura.deduplication import LRU_TEST
request = json.load(sys.stdin)
texts = []
for page in request["pages"]:
    LRU_TEST.clear()
    texts.append((trafilatura.extract(page, include_comments=False, **request["options"]) or "").strip())
json.dump(texts, sys.stdout)
"""


@pytest.fixture(scope="session")
def pages(news):
    cached = sorted((fetch("pages") / "cache").glob("*.html"))
    return [html for html, _ in news] + [path.read_text(encoding="utf-8", errors="replace") for path in cached]


@pytest.mark.parametrize("favor", ["precision", "balanced", "recall"])
def test_texts_are_those_of_trafilatura_itself(pages, favor):
    options = {"favor_precision": favor == "precision", "favor_recall": favor == "recall", "deduplicate": True}
    request = json.dumps({"pages": pages, "options": options})
    done = subprocess.run([sys.executable, "-c", PLAIN], input=request, capture_output=True, text=True, check=True)
    extract = extract_of(Settings("trafilatura", "text", favor, True))
    assert [extract(html).strip() for html in pages] == json.loads(done.stdout)


def known(found):
    """What an outline has of a page."""
    return found.title, found.language, found.meta, found.links, found.times, found.depth


def test_the_outline_of_a_page_is_what_parsing_all_of_it_finds(pages):
    cut = [html[:size] for html in pages[:12] for size in range(0, len(html), 9973)]
    odd = [
        "<div>" * 600 + "<p>x" * 9,
        "<b>" * 700,
        "<div></p></div></div><hr><html lang=de><li><li>",
        "<title>x",
        "<title> &nbsp; </title><title>a\xa0b</title><title>c</title>",
        "<script>",
        "<!--",
        "<p" + " a='1'" * 200 + "><p" + " a='1'" * 201 + "><b>",
        f"<i a='{'x' * 20_000}'><i a='{'x' * 20_001}'>b<i><time datetime='{'é' * 15_000}'>",
        "<pé><i><script></scripté><i></script><i>",
    ]
    for html in [*pages, *cut, *odd]:
        assert known(fast_html.outline(html)) == known(fast_html.parse(html))
    assert fast_html.outline(pages[0], links=False).links == []


PIECES = """
< > / ! ? -- <!-- --> ' " = a div p li td h1 span br hr html title script style meta time b table SCRIPT Div é _ 1 &amp; </
<div> </div> </p> </script> <title> </title> <li> <h2> </td <td> <html/lang=fr> blockquote figcaption text abcdefghijklmnopqrstu
"""
SPACED = ["\0", " ", " lang=de", " name=author content='x'", " datetime=2024", " href=/x"]


def test_the_outline_of_any_characters_is_what_parsing_finds():
    chosen = random.Random(7)
    for _ in range(3_000):
        soup = "".join(chosen.choice(PIECES.split() + SPACED) for _ in range(30))
        assert known(fast_html.outline(soup)) == known(fast_html.parse(soup)), soup


def test_a_tag_with_very_many_attributes_is_no_tag():
    """Where a quote is missing, each tag would otherwise be read to the end of the page, which takes the square of its size."""
    page = "<time datetime='2024-01-02'{}></time>"
    assert fast_html.parse(page.format(" a='1'" * 199)).times == ["2024-01-02"]
    assert fast_html.parse(page.format(" a='1'" * 200)).times == []


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


def test_files_of_bytes_are_no_pages():
    prose = " text that is stored" * 40
    files = [b"PK\x03\x04a.txt" + prose.encode(), b"\n%PDF-1.4" + prose.encode(), b"BM\0\0" + prose.encode()]
    texts = [file.decode() for file in files[:2]]
    pages = [TEXT.encode(), "\ufeff".encode("utf-16-le") + TEXT.encode("utf-16-le")]
    for rows, kept in ((files + pages, 2), ([*texts, TEXT], 1)):
        report = Pipeline(Rows([{"html": html} for html in rows]), HtmlExtract(extractor="fast")).run(executor="inline")
        assert (report.kept, report.dropped) == (kept, {"extraction: not HTML": len(rows) - kept})


@pytest.mark.parametrize(
    "attributes",
    [
        'class="post-12 post hentry tag-poetry"',
        'class="read-more-content"',
        'id="ad-portal"',
        'style="display: none"',
        "hidden",
    ],
)
def test_an_element_that_holds_most_of_the_page_is_not_left_out_for_its_name(attributes):
    other = "These are seventeen other words of a note which stands somewhere beside the article on this page. " * 2
    article = "".join(f"<p>{number} {TEXT}</p>" for number in range(6))
    (row,) = run([f"<div {attributes}>{article}</div><div {attributes}><p>{other}</p></div>"], extractor="fast")
    assert row["text"].count("A sentence") == article.count("A sentence")
    assert "seventeen" not in row["text"]
    (row,) = run([f"<div class='comments'>{article}</div><div><p>{other * 3}</p></div>"], extractor="fast")
    assert "A sentence" not in row["text"]  # this name is only given to what is not the article


@pytest.mark.parametrize("extractor", ["trafilatura", "fast"])
def test_the_text_does_not_depend_on_other_pages(news, extractor):
    pages = [html for html, _ in news[:4]] * 2
    step = HtmlExtract(extractor=extractor, deduplicate=True)
    runner = step.open(None)
    together = runner.score(Batch.from_rows([{"html": html} for html in pages]))["text"].to_pylist()
    alone = [step.open(None).score(Batch.from_rows([{"html": html}]))["text"].to_pylist()[0] for html in pages]
    assert together == alone


@pytest.mark.parametrize("anchor", ['<a id="a"/>', '<a name="a">', "<A ID=a></A>"])
def test_a_place_that_links_lead_to_is_no_link(anchor):
    menu = "<p><a href='/'>The first page</a></p>" * 4
    found = fast_html.main_text(fast_html.parse(f"<body>{menu}{anchor}{TEXT * 3}{menu}</body>"))
    assert found == "\n\n".join([re.sub("<[^>]*>", "", TEXT).strip()] * 3)


def test_words_between_spaces_and_characters_count_in_scripts_that_do_not_separate_words():
    menu = "<p><a href='/'>首页</a> <a href='/a'>关于 我们</a></p>" * 4
    text = "请先用 apt 安装软件包,然后用 dpkg 列出已经安装的软件包,最后用 systemctl 启动服务,并检查日志。"
    page = fast_html.parse(f"<body>{menu}<p>{text}</p><p>{text}</p>{menu}</body>")
    assert fast_html.main_text(page) == f"{text}\n\n{text}"
    assert {block.density for block in page.blocks if block.link_words} == {1.0}


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


def test_the_recipe_goes_from_crawls_to_packed_tokens(tmp_path, news):
    records = [
        warc_record("response", reply(html.encode()), number=number) for number, (html, _) in enumerate(news[:6] * 2)
    ]
    (tmp_path / "a.warc.gz").write_bytes(packed(records))
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator([], tokenizers.trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False))
    made.add_special_tokens(["</s>"])
    made.save(str(tmp_path / "tokenizer.json"))
    recipe = load_recipe("fineweb_from_warc").with_paths(input=tmp_path / "a.warc.gz")
    recipe = recipe.with_tokens(tmp_path / "tokenizer.json").with_paths(output=tmp_path / "out")
    recipe = recipe.with_overrides(["token_writer.sequence_length=512", "token_writer.format=arrow"])
    report = recipe.build().run(executor="inline")
    assert report.read == 12 == report.kept + sum(report.dropped.values())
    assert report.kept
    rows = pa.ipc.open_file(next((tmp_path / "out").glob("*.arrow"))).read_all().to_pylist()
    (counts,) = [step["counts"] for step in report.operators if step["counts"]]
    assert sum(len(row["input_ids"]) for row in rows) == counts["tokens"] > 1000
    ends = sum(row["input_ids"].count(made.token_to_id("</s>")) for row in rows)
    assert ends == report.kept
