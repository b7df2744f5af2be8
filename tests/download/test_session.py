"""Downloads end complete and exactly once, whatever the server and the machine do."""

import hashlib
import json
import random
import re
import signal
import subprocess
import sys
import time
import zlib
from contextlib import suppress
from dataclasses import replace

import pytest

import tamis
from tamis.download import Limits, RemoteFile, UrlList, download
from tamis.download import partial as partials
from tamis.download.limits import Pace
from tamis.download.partial import Partial
from tamis.download.session import safe_file_name
from tamis.errors import LedgerError, ParameterError, SourceError
from tamis.ledger import Ledger
from tamis.store import Store
from tests.file_server import FileServer

DATA = random.Random(1).randbytes(300_000)
QUICK = {"allow_private": True, "retry_wait_s": 0.001}


@pytest.fixture
def server():
    with FileServer({"/a.bin": DATA, "/b.bin": b"the second file", "/c.bin": b"the third"}) as running:
        yield running


def fetch(server, folder, *paths, **limits):
    files = [path if isinstance(path, RemoteFile) else RemoteFile(f"{server.url}{path}") for path in paths]
    return download(files, folder, Limits(**{**QUICK, **limits}))


def reasons(report):
    return list(report.failed.values())


@pytest.mark.parametrize(
    "script",
    [
        [],
        [("cut", 100_000), ("cut", 50_000), ("cut", 1)],
        [("stall", 70_000)],
        [("drip", 70_000)],
        [("cut", 100_000), ("ignore range",)],
        [("cut", 100_000), ("wrong range",)],
        [("claim", 400_000)],
        [("chunked",)],
        [("status", 503, {"Retry-After": "0"}), ("status", 429), ("cut", 9), ("status", 500)],
        [("cut", 100_000), ("status", 503, {"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"})],
        [("status", 416), ("cut", 10_000), ("status", 416)],
    ],
    ids=lambda script: ", ".join(each[0] for each in script) or "well behaved",
)
def test_a_file_is_complete_whatever_happens_on_the_way(server, tmp_path, script):
    server.script["/a.bin"] += script
    report = fetch(server, tmp_path, "/a.bin", timeout_s=0.3)
    assert (report.downloaded, report.num_bytes, report.failed) == (1, len(DATA), {})
    assert (tmp_path / "a.bin").read_bytes() == DATA
    assert not list((tmp_path / ".tamis" / "partial").iterdir())


def test_a_cut_is_continued_by_range_under_the_same_etag(server, tmp_path):
    server.script["/a.bin"] += [("cut", 200_000)]
    fetch(server, tmp_path, "/a.bin")
    (_, first), (_, second) = [request for request in server.requests if request[0] == "/a.bin"]
    assert "range" not in first
    start = int(re.fullmatch(r"bytes=(\d+)-", second["range"])[1])
    assert 0 < start <= 200_000
    assert second["if-range"] == f'"{hashlib.md5(DATA).hexdigest()}"'


def test_a_file_that_changes_on_the_way_is_never_mixed(server, tmp_path):
    other = DATA[::-1]
    server.script["/a.bin"] += [("cut", 200_000), ("change", other)]
    assert fetch(server, tmp_path, "/a.bin").ok
    assert (tmp_path / "a.bin").read_bytes() == other


def test_without_a_validator_a_file_begins_again(server, tmp_path):
    server.script["/a.bin"] += [("no etag",)]
    server.script["/b.bin"] += [("no etag",)]
    assert fetch(server, tmp_path, "/a.bin", "/b.bin").ok
    part = Partial(tmp_path / "p", f"{server.url}/a.bin")
    part.open()
    part.write(b"from another file")  # no validator is known for these bytes
    part.save()
    part.close()
    folder = tmp_path / "again" / ".tamis" / "partial"
    folder.mkdir(parents=True)
    for file in (tmp_path / "p").iterdir():
        file.rename(folder / file.name)
    assert fetch(server, tmp_path / "again", "/a.bin").ok
    assert (tmp_path / "again" / "a.bin").read_bytes() == DATA
    assert server.asked("/a.bin") == [None, None]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ([("status", 404)], "HTTP 404"),
        ([("no length",)], "the reply has no length, so that a cut would not be noticed"),
        ([("cut", 0)] * 9, "reply cut off"),
        ([("cut", 100_000), *[("ignore range",), ("cut", 100)] * 9], None),
        ([("status", 503)] * 9, "HTTP 503"),
        ([("status", 503, {"Retry-After": "86400"})], "HTTP 503"),
        ([("redirect", "/a.bin")] * 20, "too many redirects"),
        ([("redirect", "file:///etc/passwd")], "not a URL"),
        ([("redirect", "http://[::1")], "not a URL"),
        ([("change", DATA + b"1"), ("cut", 1)], None),
    ],
)
def test_each_file_ends_complete_or_with_a_reason(server, tmp_path, script, reason):
    server.script["/a.bin"] += script
    report = fetch(server, tmp_path, "/a.bin", "/b.bin", retries=3)
    assert (tmp_path / "b.bin").read_bytes() == b"the second file"
    assert reasons(report) == ([] if reason is None else [reason])
    assert (tmp_path / "a.bin").exists() is (reason is None)


def test_what_is_no_url_fails_alone(server, tmp_path):
    wrong = ["http://[::1/x", "http://ex\u2100.org/", "hf://[x"]
    path = tmp_path / "list.txt"
    path.write_text("\n".join([*wrong, f"{server.url}/b.bin"]), encoding="utf-8")
    report = download(UrlList(path), tmp_path / "out", Limits(**QUICK))
    assert (tmp_path / "out" / "b.bin").read_bytes() == b"the second file"
    assert report.failed == dict.fromkeys(wrong, "not a URL")


def test_a_listed_size_and_checksum_decide(server, tmp_path):
    url, good = f"{server.url}/a.bin", f"sha1:{hashlib.sha1(DATA).hexdigest()}"
    server.script["/a.bin"] += [("claim", 1000), ("no length",)]  # the first reply is shorter than the file
    assert fetch(server, tmp_path / "x", RemoteFile(url, size=len(DATA), checksum=good)).ok
    assert (tmp_path / "x" / "a.bin").read_bytes() == DATA
    report = fetch(server, tmp_path / "y", RemoteFile(url, checksum="md5:" + "0" * 32), retries=1)
    assert reasons(report) == ["does not match its checksum"]
    report = fetch(server, tmp_path / "z", RemoteFile(url, size=7), retries=1)
    assert reasons(report) == ["300,000 bytes instead of the 7 that are listed"]
    with pytest.raises(ParameterError, match="is not one"):
        fetch(server, tmp_path / "z", RemoteFile(url, checksum="crc:1"))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ({"size": 15}, {"size": 999}),
        ({"checksum": f"sha256:{hashlib.sha256(b'the second file').hexdigest().upper()}"}, {"checksum": "sha256:00"}),
    ],
)
def test_a_file_is_downloaded_again_if_its_list_says_something_else(server, tmp_path, right, wrong):
    listed = RemoteFile(f"{server.url}/b.bin")
    server.files["/b.bin"] = b"an older file"
    assert fetch(server, tmp_path, listed).downloaded == 1
    server.files["/b.bin"] = b"the second file"
    assert fetch(server, tmp_path, listed).present == 1
    assert fetch(server, tmp_path, replace(listed, **right)).downloaded == 1
    assert (tmp_path / "b.bin").read_bytes() == b"the second file"
    assert fetch(server, tmp_path, replace(listed, **right)).present == 1
    report = fetch(server, tmp_path, replace(listed, **wrong), retries=0)
    assert (report.present, len(report.failed)) == (0, 1)


def test_nothing_is_requested_twice_and_the_ledger_knows_each_file(server, tmp_path):
    assert fetch(server, tmp_path, "/a.bin", "/b.bin", "/a.bin").downloaded == 2
    before = len(server.requests)
    report = fetch(server, tmp_path, "/a.bin", "/b.bin", "/c.bin")
    assert (report.listed, report.present, report.downloaded) == (3, 2, 1)
    assert [path for path, _ in server.requests[before:] if path != "/robots.txt"] == ["/c.bin"]
    ledger = Ledger(Store(str(tmp_path)))
    ledger.load()
    found = ledger.downloads[f"{server.url}/a.bin"]
    assert (found.name, found.size, found.sha256) == ("a.bin", len(DATA), hashlib.sha256(DATA).hexdigest())
    assert found.checksum == f"{zlib.crc32(DATA):08x}"


def test_a_file_that_was_removed_or_damaged_is_downloaded_again(server, tmp_path):
    fetch(server, tmp_path, "/a.bin", "/b.bin", "/c.bin")
    assert tamis.verify(tmp_path).ok
    (tmp_path / "a.bin").unlink()
    (tmp_path / "b.bin").write_bytes(b"The second file")
    found = tamis.verify(tmp_path, forget=True)
    assert (found.missing, found.damaged, found.forgotten) == (["a.bin"], {"b.bin": "its checksum is wrong"}, 2)
    assert fetch(server, tmp_path, "/a.bin", "/b.bin", "/c.bin").downloaded == 2
    assert tamis.verify(tmp_path).ok


def test_a_run_that_ends_between_record_and_name_is_finished_by_the_next(server, tmp_path):
    fetch(server, tmp_path, "/a.bin")
    part = Partial(tmp_path / ".tamis" / "partial", f"{server.url}/a.bin")
    (tmp_path / "a.bin").rename(part.path)
    asked = len(server.requests)
    assert fetch(server, tmp_path, "/a.bin").present == 1
    assert (tmp_path / "a.bin").read_bytes() == DATA
    assert len(server.requests) == asked


def saved(folder):
    """The bytes of each part that are on disk for certain."""
    for file in (folder / ".tamis" / "partial").glob("*.state"):
        with suppress(FileNotFoundError):  # that of a file which has just become complete
            yield json.loads(file.read_text()[9:])["size"]


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT])
def test_a_download_that_is_killed_continues_by_range(server, tmp_path, sign):
    server.script["/a.bin"] += [("stall", 200_000)]
    (tmp_path / "list.txt").write_text(f"{server.url}/a.bin\n{server.url}/b.bin\n")
    command = ["download", "urls", str(tmp_path / "list.txt"), "--output", str(tmp_path / "out"), "--allow-private"]
    smaller = "import tamis.download.partial as p; p.CHECKPOINT_BYTES = 50_000"
    code = f"{smaller}; import tamis.cli, sys; sys.exit(tamis.cli.main({command}))"
    heed = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # ignored by jobs in the background
    )
    process = subprocess.Popen([sys.executable, "-c", f"{heed}; {code}"], stderr=subprocess.PIPE)
    assert server.held.wait(60)
    until = time.monotonic() + 60
    while not (tmp_path / "out" / "b.bin").exists() or max(saved(tmp_path / "out"), default=0) < 50_000:
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(sign)
    process.communicate()
    assert process.returncode in (-sign, 130)
    done = subprocess.run([sys.executable, "-m", "tamis", *command, "--json"], capture_output=True, text=True)
    report = json.loads(done.stdout)
    assert report["ok"]
    assert report["resumed_bytes"] >= 50_000
    assert (tmp_path / "out" / "a.bin").read_bytes() == DATA
    assert server.asked("/a.bin")[-1] == f"bytes={report['resumed_bytes']}-"
    assert server.asked("/b.bin") == [None]


def test_bytes_that_the_disk_lost_are_not_continued(tmp_path, monkeypatch):
    monkeypatch.setattr(partials, "CHECKPOINT_BYTES", 1000)
    part = Partial(tmp_path, "http://example.org/a")
    part.open()
    part.validator = '"1"'
    part.write(b"x" * 1000)
    part.write(b"y" * 500)  # after the checkpoint
    part.close()
    again = Partial(tmp_path, "http://example.org/a")
    again.open()
    assert (again.size, again.validator) == (1000, '"1"')
    again.close()
    part.path.write_bytes(b"x" * 999 + b"\0")
    lost = Partial(tmp_path, "http://example.org/a")
    lost.open()
    assert (lost.size, lost.validator) == (0, None)
    lost.remove()
    assert not list(tmp_path.iterdir())


def test_robots_and_private_addresses(tmp_path):
    with FileServer({"/open/a": b"1", "/closed/a": b"2"}, robots="User-agent: *\nDisallow: /closed/") as server:
        report = fetch(server, tmp_path / "x", "/open/a", "/closed/a")
        assert report.failed == {f"{server.url}/closed/a": "robots.txt"}
        assert fetch(server, tmp_path / "x", "/closed/a", robots=False).ok
        assert (tmp_path / "x" / "a").read_bytes() == b"1"
        assert len(list((tmp_path / "x").glob("a-*"))) == 1  # of two files with one name, the second has a digest in it
        count = len(server.requests)
        assert reasons(fetch(server, tmp_path / "y", "/open/a", allow_private=False)) == ["private address"]
        assert len(server.requests) == count


def test_a_redirect_to_a_private_address_is_refused(server, tmp_path, monkeypatch):
    from tamis.sources import http

    server.script["/a.bin"] += [("redirect", f"http://localhost:{server.url.rpartition(':')[2]}/b.bin")]
    seen = []

    def judge(address):
        seen.append(address)
        return len(seen) == 1  # the server plays a public host

    monkeypatch.setattr(http, "is_public", judge)
    assert reasons(fetch(server, tmp_path, "/a.bin", allow_private=False, robots=False)) == ["private address"]
    assert server.asked("/b.bin") == []


def test_the_folder_never_holds_more_than_its_limit(server, tmp_path):
    report = fetch(server, tmp_path, "/b.bin", "/a.bin", "/c.bin", disk=100_000, concurrency=1)
    assert (report.downloaded, report.failed) == (1, {})
    assert list(report.left.values()) == ["the limit of 100 kB for the folder is reached"] * 2
    assert "left: 2 files" in str(report)
    assert fetch(server, tmp_path, "/b.bin", "/a.bin", "/c.bin", disk=400_000).ok


def test_parts_of_files_that_failed_count_towards_the_limit(server, tmp_path):
    server.files["/d.bin"] = bytes(200_000)
    server.script["/a.bin"] += [("cut", 250_000)]
    limits = {"disk": 400_000, "concurrency": 1, "retries": 0}
    for _ in range(2):  # the second run finds the part on disk
        server.script["/a.bin"] += [("status", 404)]
        report = fetch(server, tmp_path, "/a.bin", "/d.bin", **limits)
        assert (len(report.failed), len(report.left)) == (1, 1)
        assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 300_000
    assert fetch(server, tmp_path, "/a.bin", **limits).resumed_bytes > 0


def test_one_host_gets_few_requests_at_a_time_and_a_slow_pace(server, tmp_path):
    server.files |= {f"/{n}.bin": b"x" * 2000 for n in range(12)}
    assert fetch(server, tmp_path, *(f"/{n}.bin" for n in range(12)), per_host=2, concurrency=8, rate="1MB").ok
    assert server.most_at_a_time <= 2
    pace = Pace(1000)
    assert [pace.delay_s(100, now) for now in (5.0, 5.0, 5.25)] == pytest.approx([0.1, 0.2, 0.1])
    assert Pace(None).delay_s(10**9, 1.0) == 0


def test_files_that_tamis_did_not_download_are_not_replaced(server, tmp_path):
    (tmp_path / "b.bin").write_bytes(b"mine")
    assert reasons(fetch(server, tmp_path, "/b.bin")) == ["b.bin exists, and the ledger does not know it"]
    assert (tmp_path / "b.bin").read_bytes() == b"mine"


def test_one_process_downloads_to_a_folder(server, tmp_path):
    with Ledger(Store(str(tmp_path))), pytest.raises(LedgerError):
        fetch(server, tmp_path, "/b.bin")


def test_damaged_lines_of_the_ledger_cost_a_download(server, tmp_path):
    fetch(server, tmp_path, "/a.bin", "/b.bin")
    log = tmp_path / ".tamis" / "ledger.log"
    bad = {"kind": "download", "url": "x", "name": "../x", "size": 1, "checksum": "", "sha256": "", "etag": None}
    body = json.dumps(bad, separators=(",", ":"), sort_keys=True).encode()
    log.write_bytes(log.read_bytes() + b"garbage\n" + b"%08x %s\n" % (zlib.crc32(body), body))
    ledger = Ledger(Store(str(tmp_path)))
    ledger.load()
    assert (len(ledger.downloads), ledger.damaged) == (2, 2)
    assert fetch(server, tmp_path, "/a.bin", "/b.bin").present == 2


@pytest.mark.parametrize(
    "name", ["..", "../x", ".hidden", "_x", "a/b", "\0", "a\nb", "é" * 300 + ".warc.gz", "con:1", " . ", "x" * 500]
)
def test_names_stay_in_the_folder_and_are_read(name):
    safe = safe_file_name(name)
    assert safe == safe_file_name(safe)
    assert 0 < len(safe.encode()) <= 220
    assert not safe.startswith((".", "_"))
    assert not set(safe) & set('/\\\0\n:"')


def test_lists_of_urls(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("# files\nhttp://example.org/a  sha256:00ff\n\nhttp://example.org/b\nhttp://example.org/c\n")
    found = UrlList(path, limit=2).files(None)
    assert found == [RemoteFile("http://example.org/a", checksum="sha256:00ff"), RemoteFile("http://example.org/b")]
    assert [each.url[-1] for each in UrlList(path, skip=1).files(None)] == ["b", "c"]
    path.write_text("not a url\n")
    with pytest.raises(SourceError, match="line 1"):
        UrlList(path).files(None)
    path.write_text("\n")
    with pytest.raises(SourceError, match="is empty"):
        UrlList(path).files(None)
    with pytest.raises(SourceError, match="cannot be read"):
        UrlList(tmp_path / "none").files(None)
