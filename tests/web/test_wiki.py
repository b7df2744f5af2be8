"""Dumps of MediaWiki, whole, in pieces and cut off, and the text of their pages."""

import bz2
import gzip
import re

import pytest

from scripts.fetch_pages import fetch
from tamis import MediawikiReader, ParquetWriter, Pipeline
from tamis.errors import DamagedFile
from tamis.web.wikitext import Options, wikitext_to_text

HEAD = '<mediawiki xml:lang="de"><siteinfo><base>https://de.wikipedia.org/wiki/Seite</base></siteinfo>\n'


def page(number, text="Text &amp; mehr", ns=0, inside=""):
    return (
        f"<page><title>Seite {number}</title><ns>{ns}</ns><id>{number}</id>{inside}<revision><id>9</id>"
        f"<timestamp>2026-01-01T00:00:00Z</timestamp><text bytes='5'>{text}</text></revision></page>\n"
    )


def rows_of(path, **parameters):
    return Pipeline(MediawikiReader(path, **parameters)).collect(executor="inline", max_failed="100%").to_pylist()


def test_a_real_dump_has_its_articles():
    (path,) = fetch("wikipedia").iterdir()
    rows = rows_of(path, redirects=True)
    articles = [row for row in rows if row["redirect"] is None]
    assert (len(rows), len(articles)) == (205, 106)  # and a page of another namespace
    assert (articles[0]["title"], articles[0]["url"]) == ("Anarchism", "https://en.wikipedia.org/wiki/Anarchism")
    text = wikitext_to_text(articles[0]["wikitext"])
    assert text.startswith("Anarchism is a political philosophy that advocates self-governed societies")
    assert not {"{{", "}}", "[[", "]]", "<ref", "{|"} & set(re.findall(r"\{\{|\}\}|\[\[|\]\]|<ref|\{\|", text))


def test_pages_have_columns(tmp_path):
    (tmp_path / "a.xml").write_text(
        HEAD + page(1) + page(2, ns=1) + page(3, inside='<redirect title="X" />') + "</mediawiki>"
    )
    (row,) = rows_of(tmp_path / "a.xml")
    assert row == {
        "id": "1",
        "title": "Seite 1",
        "url": "https://de.wikipedia.org/wiki/Seite_1",
        "date": "2026-01-01T00:00:00Z",
        "language": "de",
        "redirect": None,
        "wikitext": "Text & mehr",
        "namespace": 0,
    }


def test_a_multistream_dump_is_split_at_its_streams(tmp_path):
    streams = [HEAD, *("".join(page(100 * block + each) for each in range(100)) for block in range(10)), "</mediawiki>"]
    path = tmp_path / "a.xml.bz2"
    path.write_bytes(b"".join(bz2.compress(stream.encode()) for stream in streams))
    source = MediawikiReader(path)
    pieces = [piece for partition in source.layout(5_000).partitions for piece in partition.pieces]
    assert len(pieces) > 3
    found = [row for piece in pieces for row in source.rows(piece, None, None)]
    assert [row.values["id"] for row in found] == [str(number) for number in range(1000)]


def test_a_dump_that_is_cut_off_costs_its_last_page(tmp_path):
    whole = (HEAD + "".join(page(number, f"{number * 7919} " * 50) for number in range(50))).encode()
    for name, data in (("a.xml", whole[:-100]), ("a.xml.gz", gzip.compress(whole)[:-200])):
        (tmp_path / name).write_bytes(data)
        report = Pipeline(MediawikiReader(tmp_path / name), ParquetWriter(tmp_path / f"out-{name}")).run(
            executor="inline", max_failed="100%"
        )
        assert report.failed == 1
        assert 30 < report.kept < 50


def test_damage_costs_the_rest_of_its_stream(tmp_path):
    """A bit that is wrong makes noise of a whole block of bz2, in which no page begins."""
    blocks = [
        "".join(page(10 * block + each, f"{block * 7919 + each} " * 99) for each in range(10)) for block in range(5)
    ]
    streams = [bytearray(bz2.compress(text.encode())) for text in (HEAD, *blocks, "</mediawiki>")]
    streams[2][len(streams[2]) // 2] ^= 1
    streams[4] = streams[4][: len(streams[4]) // 2]  # cut off, and the next one follows
    path = tmp_path / "a.xml.bz2"
    path.write_bytes(b"".join(streams))
    report = Pipeline(MediawikiReader(path), ParquetWriter(tmp_path / "out")).run(executor="inline", max_failed="100%")
    assert (report.kept, report.failed) == (30, 2)


def test_a_page_that_is_too_large_costs_itself(tmp_path, monkeypatch):
    monkeypatch.setattr("tamis.sources.mediawiki._LONGEST_PAGE", 5_000)
    path = tmp_path / "a.xml"
    path.write_text(HEAD + page(0) + page(1, "x" * 600_000) + "\n" * 600_000 + page(2) + "</mediawiki>")
    report = Pipeline(MediawikiReader(path), ParquetWriter(tmp_path / "out")).run(executor="inline", max_failed="100%")
    assert (report.kept, report.failed) == (2, 1)


def test_another_file_is_refused(tmp_path):
    (tmp_path / "a.xml").write_text("<html></html>")
    with pytest.raises(DamagedFile, match="not a dump of MediaWiki"):
        rows_of(tmp_path / "a.xml")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("[[a|b]] [[c]]s [[d (e)|]]", "b cs"),
        ("x<ref name=a/> y<ref>z {{cite|t=[[q]]}}</ref>.", "x y."),
        ("{{a|{{b|{{c}}}}}}text{{lang|fr|bonjour}}", "textbonjour"),
        ("{{convert|5|km|mi}} away", "5 km away"),
        ("[[File:a.jpg|thumb|A [[caption]] {{here}}]]after [[Category:X]][[de:Y]]", "after"),
        ("{| class=x\n|-\n| a || {| \n| nested\n|}\n|}\nafter", "after"),
        ("<!-- no -->''i'' '''b''' &nbsp;x &lt;3", "i b x <3"),
        ("[https://a.b c d] [https://a.b]", "c d"),
        ("== A ==\n=== B ===\ntext\n== C ==\n", "A\n\nB\n\ntext"),
        ("=A=\n= = \nx\n== B =\ny\n=======C=======\n==\nz", "x\n\n= B\n\ny\n\n=C=\n\n==\nz"),
        ("* one\n** two\n# three", "one\ntwo\nthree"),
        ("__NOTOC__<math>x^{2}</math><gallery>a</gallery><br/>end", "$x^{2}$\nend"),
        ("{{never ends [[nor this", "never ends nor this"),
        ("A ({{IPA-fr|a}}; born 1947) b ({{x|y}}) c (Greek: {{x}}) f()", "A (born 1947) b c (Greek) f()"),
        ("{{x}}* one\n({{x}}\n* two)", "one\n(\ntwo)"),
        ("[[File:a.jpg|thumb|A [[b]] [above] [http://c d]]]after [[x|y [z]]] [[x [y", "after y [z] x [y"),
        ("{{frac|2}} {{frac|1|2}} {{sfrac|3|1|2}} {{chem|H|2|O}}", "2 1/2 3 1/2 H2O"),
    ],
)
def test_markup_becomes_text(source, text):
    assert wikitext_to_text(source) == text


def test_markup_is_kept_if_requested():
    source = "== A ==\n'''b'''\n* c\n{| \n! h !! i\n|-\n| 1 || 2\n|}\n{{Infobox x|name=Rye|genus=[[Secale]]}}"
    found = wikitext_to_text(source, Options(markdown=True, tables=True, infoboxes=True))
    assert found == "## A\n\n**b**\n- c\n\nh | i\n--- | ---\n1 | 2\n\nname: Rye\ngenus: Secale"


def test_deep_and_unclosed_markup_takes_linear_time():
    for source in (
        *("{{" * 50_000, "[[" * 50_000, "{{a" * 20_000 + "}}" * 20_000, "<ref>" * 20_000, "{|\n" * 20_000),
        *("=" + " " * 20_000 + "x", "[//" + "a" * 200_000),
    ):
        assert len(wikitext_to_text(source)) <= len(source)
