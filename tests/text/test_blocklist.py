"""Blocklists in every common format, and what they do to the URLs of documents."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from tamis import JsonlReader, JsonlWriter, Pipeline, Rows
from tamis.batch import Batch
from tamis.context import Context
from tamis.errors import ParameterError
from tamis.text.blocklist import (
    ELEMENTS,
    EXPRESSIONS,
    PARTS,
    UNREADABLE,
    Entry,
    Skipped,
    UrlBlocklist,
    parse_line,
)


def blocked(entries: list[str], *urls: str | None) -> list[int]:
    found = UrlBlocklist(sites=entries).open(Context()).score(Batch.from_rows([{"url": url} for url in urls]))
    return np.asarray(found["blocked_sites"]).tolist()


@pytest.mark.parametrize(
    ("line", "domain", "rest"),
    [
        ("Example.ORG", "example.org", ""),
        ("example.org.", "example.org", ""),
        (".example.org", "example.org", ""),
        ("*.example.org", "example.org", ""),
        ("127.0.0.1\tads.example.net", "ads.example.net", ""),
        ("0.0.0.0 ads.example.net # tracker", "ads.example.net", ""),
        ("203.0.113.9", "203.0.113.9", ""),
        ("https://example.org/bad/", "example.org", "/bad^"),
        ("example.org/bad/page.html?x=$1", "example.org", "/bad/page.html?x=$1^"),
        ("m\u00fcnchen.example", "m\u00fcnchen.example", ""),
        ("||ads.example.net^", "ads.example.net", ""),
        ("||ads.example.net", "ads.example.net", ""),
        ("||ads.example.net^$document", "ads.example.net", ""),
        ("||ads.example.net^$doc,popup", "ads.example.net", ""),
        ("||ads.example.net^$all,important", "ads.example.net", ""),
        ("||ads.example.net/banner^", "ads.example.net", "/banner^"),
        ("||ads.example.net:8080^", "ads.example.net", ":8080^"),
        ("|https://example.org/bad|", "example.org", "/bad|"),
        ("/casino-*.html$document", "", "/casino-*.html"),
    ],
)
def test_lines_that_block_pages(line: str, domain: str, rest: str) -> None:
    assert list(parse_line(line)) == [Entry(domain, rest)]
    if "#" not in line and not line[0].isdigit():
        assert list(parse_line("@@" + line)) == [Entry(domain, rest, allows=True)]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("stackoverflow.com###hireme", ELEMENTS),
        ("##.banner", ELEMENTS),
        ("a.org,b.org#@#.banner", ELEMENTS),
        ("a.org#?#div:has(.ad)", ELEMENTS),
        ("a.org#$#abort-on-property-read ads", ELEMENTS),
        ('a.org$$script[tag-content="ad"]', ELEMENTS),
        ("||ads.example.net^$third-party", PARTS),
        ("||ads.example.net^$script,image", PARTS),
        ("||ads.example.net^$~document", PARTS),
        ("||ads.example.net^$popup", PARTS),
        ("||ads.example.net^$document,domain=a.org|b.org", PARTS),
        ("||adserver.", PARTS),
        ("@@||good.example^$elemhide", PARTS),
        ("/banner/ads/*", PARTS),
        ("&ad_box_", PARTS),
        (".com/ads/$image", PARTS),
        (".com/ads/", PARTS),
        ("120x600.gif|", PARTS),
        (r"/^https?:\/\/ads[0-9]+\./$script", EXPRESSIONS),
        (r"/banner[0-9]+/", EXPRESSIONS),
        ("Malware list of 2019", UNREADABLE),
    ],
)
def test_lines_that_block_no_page(line: str, kind: str) -> None:
    assert list(parse_line(line)) == [Skipped(kind)]


@pytest.mark.parametrize(
    "line",
    ["", "  ", "! comment", "# comment", "## comment ##", "#####", "; comment", "[Adblock Plus 2.0]", "::1 localhost"],
)  # fmt: skip
def test_comments_and_local_names_are_neither_blocked_nor_skipped(line: str) -> None:
    assert list(parse_line(line)) == []


def test_a_line_of_a_hosts_file_may_have_several_names() -> None:
    assert list(parse_line("0.0.0.0 a.org b.org")) == [Entry("a.org"), Entry("b.org")]


def test_a_domain_blocks_its_subdomains_and_a_path_what_is_below_it() -> None:
    urls = ["http://bad.org", "https://www.bad.org:8080/x?y", "http://notbad.org", "http://ok.com/shop",
            "http://www.ok.com/shop/1", "http://ok.com/shop?x", "http://ok.com/shopping", "http://ok.com/", "//me@bad.org",
            "bad.org/x", "http://bad.org.evil.net/", "", None]  # fmt: skip
    assert blocked(["bad.org", "ok.com/shop"], *urls) == [1, 1, 0, 1, 1, 1, 0, 0, 1, 1, 0, 0, 0]


def test_patterns_follow_the_syntax_of_ad_blockers() -> None:
    entries = ["||a.org/x*y^", "|https://b.org/only|", "*/casino-$document", "||c.org:81^"]
    urls = ["http://a.org/x/1/y", "http://a.org/xy/z", "http://a.org/xyz", "https://b.org/only", "https://b.org/only/not",
            "http://any.net/casino-1", "http://casino-1.net/", "http://c.org:81/x", "http://c.org/x"]  # fmt: skip
    assert blocked(entries, *urls) == [1, 1, 0, 1, 0, 1, 1, 1, 0]


def test_an_exception_holds_against_every_list(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("0.0.0.0 bad.org\n0.0.0.0 worse.org\n")
    step = UrlBlocklist(sites=["@@||bad.org/about"], paths=[str(path)])
    urls = ["http://bad.org/", "http://bad.org/about/us", "http://worse.org/about"]
    found = step.open(Context()).score(Batch.from_rows([{"url": url} for url in urls]))
    assert np.asarray(found["blocked_sites"]).tolist() == [1, 0, 1]


def test_words_in_a_url_are_counted_once_each() -> None:
    step = UrlBlocklist(words=["casino"], suspect_words=["hot", "girls"])
    urls = ["http://ok.com/Hot-Girls-hot", "http://ok.com/hot-casino", "http://ok.com/hotel", None]
    found = step.open(Context()).score(Batch.from_rows([{"url": url} for url in urls]))
    assert np.asarray(found["blocked_url_words"]).tolist() == [0, 1, 0, 0]
    assert np.asarray(found["suspect_url_words"]).tolist() == [2, 1, 0, 0]


def test_substrings_are_found_within_and_across_the_words_of_a_url() -> None:
    step = UrlBlocklist(substrings=["Free spins", "freespins", "poker"])
    urls = ["http://ok.com/100-free-spins", "http://freespinspoker.com/", "http://ok.com/free-text", None]
    found = step.open(Context()).score(Batch.from_rows([{"url": url} for url in urls]))
    assert np.asarray(found["blocked_url_substrings"]).tolist() == [1, 2, 0, 0]
    assert Pipeline(Rows([{"url": url} for url in urls]), step).run().dropped == {"blocked_url_substrings > 0": 2}


def test_a_substring_without_letters_and_digits_is_refused() -> None:
    with pytest.raises(ParameterError, match="without letters a-z and digits"):
        UrlBlocklist(substrings=["--"]).check()


def test_the_number_of_skipped_lines_is_noted_by_check_and_report(tmp_path: Path) -> None:
    path = tmp_path / "list.gz"
    lines = ["||bad.org^", "a.org##.ad", "b.org##.ad", "||c.org^$script", "! comment"]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    rows = [{"url": "http://bad.org/"}, {"url": "http://a.org/"}]
    pipeline = Pipeline(Rows(rows), UrlBlocklist(paths=[str(path)]))
    note = (
        f"step 2, `url_blocklist`: lines of {path} that block no page are skipped "
        "(element hiding rules: 2, rules about parts of pages: 1)"
    )
    assert pipeline.check() == (note,)
    assert note in str(pipeline.explain())
    report = pipeline.run(executor="inline")
    assert report.notes == [note]
    assert report.dropped == {"blocked_sites > 0": 1}


def test_a_list_of_plain_domains_gives_no_note(tmp_path: Path) -> None:
    path = tmp_path / "domains"
    path.write_text("# bad sites\nbad.org\nworse.org/path\n")
    assert UrlBlocklist(paths=[str(path)]).notes() == []


def test_a_damaged_list_is_refused_before_the_run(tmp_path: Path) -> None:
    path = tmp_path / "list.gz"
    path.write_bytes(gzip.compress(b"bad.org\n" * 100)[:20])
    (tmp_path / "in.jsonl").write_text('{"url": "http://a.org"}\n')
    pipeline = Pipeline(
        JsonlReader(tmp_path / "in.jsonl"), UrlBlocklist(paths=[str(path)]), JsonlWriter(tmp_path / "out")
    )
    with pytest.raises(ParameterError, match="is damaged"):
        pipeline.check()
    path.write_bytes("m\u00fcnchen.example\n".encode("latin-1"))
    with pytest.raises(ParameterError, match="is not UTF-8"):
        pipeline.check()
