"""Downloads: every URL ends as bytes or as a reason, whatever the server does."""

import gzip
import ipaddress
import re
import socket

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis import Batch, Download, ParquetWriter, Pipeline, Rows
from tamis.errors import ParameterError
from tamis.executors.opening import opened
from tamis.sources import http
from tamis.sources.http import is_public
from tamis.sources.robots import Robots, _matches, opted_out
from tests.web_server import WebServer

QUICK = {"allow_private": True, "timeout_s": 10, "retry_wait_s": 0.001}


def download(urls, **parameters):
    """The bytes of each URL, or the reason why there are none."""
    batch = Batch(pa.table({"url": pa.array(urls, pa.string())}))
    with opened(Download(**{**QUICK, **parameters})) as runner:
        found = runner.score(batch)
    outcomes = zip(found["image"].to_pylist(), found["download"].to_pylist(), strict=True)
    return [media["bytes"] if media else outcome for media, outcome in outcomes]


@pytest.fixture
def server():
    with WebServer() as running:
        yield running


@pytest.mark.parametrize(
    ("path", "outcome"),
    [
        ("/ok/cat", b"cat"),
        ("/status/404", "HTTP 404"),
        ("/status/403", "HTTP 403"),
        ("/status/503", "HTTP 503"),
        ("/status/503/cat?times=2", b"cat"),
        ("/status/429/cat?times=1", b"cat"),
        ("/cut", "reply cut off"),
        ("/huge", "larger than 1.0 MB"),
        ("/endless", "larger than 1.0 MB"),
        ("/to?url=/ok/cat", b"cat"),
        ("/to?url=/to%3Furl=/ok/cat", b"cat"),
        ("/to?url=file:///etc/passwd", "not a URL"),
        ("/to?url=http://%5B::1", "not a URL"),
        ("/loop", "too many redirects"),
        ("/noai/cat", "opt-out: noai"),
        ("/reserved/cat", "opt-out: tdm-reservation"),
        ("/bot/cat", b"cat"),
        ("/gzip/cat", "compressed reply"),
        ("/empty", "empty reply"),
        ("/garbage", "invalid reply"),
        ("/reset", "connection failed"),
    ],
)
def test_each_reply_has_an_outcome(server, path, outcome):
    assert download([server.url + path], max_bytes="1MB") == [outcome]


def test_a_server_that_says_nothing_or_too_slowly_is_given_up(server):
    urls = [server.url + path for path in ("/stall", "/drip", "/status/404")]
    assert download(urls, timeout_s=0.5, retries=0)[:2] == ["time-out", "time-out"]
    assert download([server.url + "/ok/a"]) == [b"a"]  # the server still answers


@pytest.mark.parametrize(
    ("url", "outcome"),
    [
        (None, "no URL"),
        ("", "not a URL"),
        ("cat.png", "not a URL"),
        ("ftp://example.org/a", "not a URL"),
        ("http://user:secret@example.org/", "not a URL"),
        ("http://[::1/", "not a URL"),
        ("http://exa mple.org/", "not a URL"),
        ("http://example.org:99999999/", "not a URL"),
        ("http://" + "a" * 9000, "not a URL"),
        ("http://127.0.0.1/", "private address"),
        ("http://[::ffff:10.0.0.1]/", "private address"),
        ("http://169.254.169.254/latest/meta-data/", "private address"),
    ],
)
def test_urls_that_are_not_fetched(url, outcome):
    assert download([url], allow_private=False, respect_robots=False) == [outcome]


def test_a_name_that_leads_to_a_private_address_is_refused(server):
    port = server.url.rpartition(":")[2]
    for host in ("localhost", "2130706433", "127.1"):  # the last two are other ways to write 127.0.0.1
        found = download([f"http://{host}:{port}/ok/secret"], allow_private=False, respect_robots=False, retries=0)
        assert found in (["private address"], ["host not found"], ["not a URL"]), host
    assert server.requests == []


def test_a_host_is_judged_as_the_library_writes_it(server):
    """Digits and dots of other scripts become those of 127.0.0.1, which is then connected to without being resolved."""
    port = server.url.rpartition(":")[2]
    for host in ("\uff11\uff12\uff17.0.0.1", "127\u30020\u30020\u30021", "\u2460\u2461\u2466.0.0.1", "127.0.0.1."):
        found = download([f"http://{host}:{port}/ok/secret"], allow_private=False, respect_robots=False, retries=0)
        assert found in (["private address"], ["not a URL"]), host
    assert server.requests == []


def test_a_private_address_is_the_reason_before_robots_txt_is(server):
    port = server.url.rpartition(":")[2]
    assert download([f"http://localhost:{port}/ok/secret"], allow_private=False) == ["private address"]
    assert server.requests == []


def test_a_redirect_to_a_private_address_is_refused(server, monkeypatch):
    """A public host, played by the server, redirects to the machine itself."""
    port = server.url.rpartition(":")[2]
    real = socket.getaddrinfo

    def resolve(host, *arguments, **options):
        return real("127.0.0.1" if host == "public.example" else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    seen = []

    def judge(address):
        seen.append(str(address))
        return len(seen) == 1  # the first lookup counts as public

    monkeypatch.setattr(http, "is_public", judge)
    start = f"http://public.example:{port}/to?url=http://localhost:{port}/ok/secret"
    assert download([start], allow_private=False, respect_robots=False) == ["private address"]
    assert server.requests == [f"/to?url=http://localhost:{port}/ok/secret"]


@pytest.mark.parametrize(
    ("text", "public"),
    [
        *(("8.8.8.8", True), ("2606:4700::1", True), ("127.0.0.1", False), ("10.1.2.3", False), ("100.64.0.1", False)),
        *(("0.0.0.0", False), ("224.0.0.1", False), ("::1", False), ("fe80::1", False), ("fd00::1", False)),
        *(("::ffff:192.168.0.1", False), ("64:ff9b::a00:1", False), ("2002:7f00:1::", False), ("::ffff:8.8.8.8", True)),
    ],
)
def test_addresses_that_are_public(text, public):
    assert is_public(ipaddress.ip_address(text)) is public


def test_dropped_rows_have_their_reason_and_equal_urls_are_fetched_once(server):
    urls = [server.url + path for path in ("/ok/a", "/status/404", "/ok/a", "/status/404", "/noai/x")] + [None]
    rows = [{"url": url, "n": n} for n, url in enumerate(urls)]
    report = Pipeline(Rows(rows), Download(**QUICK), lambda row: row["n"] < 100).run(executor="inline")
    assert (report.read, report.kept, report.failed) == (6, 2, 0)
    assert report.dropped == {
        "download: HTTP 404": 2,
        "download: no URL": 1,
        "download: opt-out: noai": 1,
    }
    assert server.requests.count("/ok/a") == 1


def test_bytes_are_named_like_the_last_part_of_the_url(server):
    rows = [{"link": f"{server.url}/ok/photos/cat.png?size=2"}]
    table = Pipeline(Rows(rows), Download(column="link", to="picture", **QUICK)).collect(executor="inline")
    assert table["picture"].to_pylist() == [{"bytes": b"photos/cat.png", "path": "cat.png"}]
    assert table.column_names == ["link", "picture", "download"]


def test_no_more_requests_at_a_time_than_allowed(server):
    urls = [f"{server.url}/ok/{number}" for number in range(60)]
    assert download(urls, concurrency=8, per_host=3) == [str(number).encode() for number in range(60)]
    assert server.most_at_a_time <= 3


def test_it_runs_in_workers(server, tmp_path):
    rows = [{"url": f"{server.url}/{'ok' if n % 3 else 'status'}/{404 if n % 3 == 0 else n}"} for n in range(30)]
    report = Pipeline(Rows(rows, rows_per_partition=10), Download(**QUICK), ParquetWriter(tmp_path)).run(workers=2)
    assert (report.read, report.kept, report.dropped) == (30, 20, {"download: HTTP 404": 10})


class TestRobots:
    @pytest.mark.parametrize(
        ("robots", "agent", "outcome"),
        [
            ("User-agent: *\nDisallow: /", "tamis/1.0", "robots.txt"),
            ("User-agent: *\nDisallow: /ok/private", "tamis/1.0", b"cat"),
            ("User-agent: other\nDisallow: /", "tamis/1.0", b"cat"),
            ("User-agent: *\nDisallow: /\n\nUser-agent: MyBot\nAllow: /", "mybot/2 (+https://x.org)", b"cat"),
            ("User-agent: *\nDisallow: /\nAllow: /ok/*t$", "tamis/1.0", b"cat"),
            ("\ufeffUser-agent: *\nDisallow: /", "tamis/1.0", "robots.txt"),
            ("User-agent: *\nAllow: /\n\nUser-agent: Tamis/1.0\nDisallow: /", "tamis/2.0", "robots.txt"),
            (gzip.compress(b"User-agent: *\nDisallow: /", mtime=0), "tamis/1.0", "robots.txt cannot be read"),
            (404, "tamis/1.0", b"cat"),
            (503, "tamis/1.0", "robots.txt cannot be read"),
        ],
    )
    def test_what_a_host_says_is_respected(self, robots, agent, outcome):
        with WebServer(robots) as server:
            assert download([f"{server.url}/ok/cat"] * 2, user_agent=agent) == [outcome] * 2
            assert server.requests.count("/robots.txt") == (3 if robots == 503 else 1)
            assert server.agents == {agent}

    def test_it_can_be_switched_off_with_a_note(self):
        with WebServer("User-agent: *\nDisallow: /") as server:
            assert download([f"{server.url}/ok/cat"], respect_robots=False) == [b"cat"]
        assert Download(respect_robots=False).notes() == ["robots.txt is not respected"]

    def test_a_redirect_is_checked_as_well(self):
        with WebServer("User-agent: *\nDisallow: /ok/") as server:
            assert download([f"{server.url}/to?url=/ok/cat"]) == ["robots.txt"]

    @pytest.mark.parametrize(
        ("rules", "path", "allowed"),
        [  # RFC 9309, 2.2.2, 2.2.3 and 5.2
            ("Allow: /example/page/\nDisallow: /example/page/disallowed.gif", "/example/page/disallowed.gif", False),
            ("Allow: /example/page/\nDisallow: /example/page/disallowed.gif", "/example/page/", True),
            ("Disallow: /foo/bar?baz=https://foo.bar", "/foo/bar?baz=https://foo.bar", False),
            ("Disallow: /foo/bar/ツ", "/foo/bar/%E3%83%84", False),
            ("Disallow: /foo/bar/%62%61%7A", "/foo/bar/baz", False),
            ("Disallow: *.gif$", "/a.gif", False),
            ("Disallow: *.gif$", "/a.gif?x", True),
            ("Disallow: /a\nAllow: /a", "/a", True),
            ("Disallow:", "/a", True),
            ("Disallow: /", "/robots.txt", True),
        ],
    )
    def test_rules_of_the_standard(self, rules, path, allowed):
        assert Robots.parse(f"User-agent: *\n{rules}", "tamis").allows(f"https://example.org{path}") is allowed

    def test_groups_are_found_and_joined(self):
        text = "User-agent: a\nUser-agent: TAMIS\nDisallow: /x # why\nuser-agent: *\nDisallow: /\n\n"
        text += "User-agent: tamis\nDisallow: /y"
        robots = Robots.parse(text, "tamis")
        assert [robots.allows(f"https://e.org/{path}") for path in "xyz"] == [False, False, True]

    @given(st.text("ab/*$", max_size=8), st.text("ab/", max_size=10))
    def test_patterns_match_as_a_regular_expression_would(self, pattern, path):
        body = pattern.removesuffix("$")
        expression = ".*".join(map(re.escape, body.split("*"))) + ("$" if pattern.endswith("$") else "")
        assert _matches(pattern, path) == bool(re.match(expression, path))

    @pytest.mark.parametrize(
        ("header", "found"),
        [
            ("noai", "noai"),
            ("NoAI , noimageai", "noai"),
            ("otherbot: noai, nofollow", None),
            ("otherbot: nofollow, tamis: noai", "noai"),
            ("unavailable_after: 25 Jun 2010 15:00:00 PST, noai", "noai"),
            ("index, follow", None),
        ],
    )
    def test_opt_out_headers(self, header, found):
        assert opted_out([("x-robots-tag", header)], ["noai", "noimageai"], "tamis") == found


@pytest.mark.parametrize(
    "wrong",
    [
        *({"concurrency": 0}, {"per_host": 0}, {"timeout_s": 0.0}, {"retries": -1}),
        *({"max_bytes": "3GB"}, {"user_agent": "ä"}, {"to": "download"}),
    ],
    ids=str,
)
def test_wrong_parameters_are_explained(wrong):
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        Download(**wrong).check()
