"""Common Crawl, Wikipedia and arXiv, as their hosts list them, played by a server on loopback."""

import gzip
import hashlib
import json

import pytest

from tamis.cli import main
from tamis.download import ArxivSources, CommonCrawl, Limits, WikipediaDump, download
from tamis.errors import ParameterError, SourceError
from tests.file_server import FileServer

QUICK = Limits(allow_private=True, retry_wait_s=0.001, retries=2)


def listing(names):
    return gzip.compress("\n".join(names).encode())


def crawl_files(snapshot, count=4):
    paths = [f"crawl-data/{snapshot}/segments/1/warc/CC-MAIN-{n:05d}.warc.gz" for n in range(count)]
    return {f"/crawl-data/{snapshot}/warc.paths.gz": listing(paths)} | {f"/{path}": path.encode() for path in paths}


def test_common_crawl(tmp_path, capsys):
    news = {"/crawl-data/CC-NEWS/2024/03/warc.paths.gz": listing(["n.warc.gz"]), "/n.warc.gz": b"news"}
    index = json.dumps([{"id": "CC-MAIN-2024-18"}, {"id": "CC-MAIN-2024-10"}]).encode()
    files = crawl_files("CC-MAIN-2024-10") | crawl_files("CC-MAIN-2024-18") | news | {"/collinfo.json": index}
    with FileServer(files) as server:
        found = download(CommonCrawl("2024-10", limit=2, skip=1, base=server.url), tmp_path / "a", QUICK)
        assert (found.listed, found.downloaded) == (2, 2)
        assert sorted(file.name for file in (tmp_path / "a").glob("*.gz")) == [
            "CC-MAIN-00001.warc.gz",
            "CC-MAIN-00002.warc.gz",
        ]
        assert download(CommonCrawl("CC-NEWS-2024-03", base=server.url), tmp_path / "n", QUICK).ok
        options = ["--base", server.url, "--index", f"{server.url}/collinfo.json", "--allow-private", "--limit", "1"]
        command = ["download", "common-crawl", *options, "--output", str(tmp_path / "b")]
        assert main(command) == 0
        assert (tmp_path / "b" / "CC-MAIN-00000.warc.gz").read_bytes().startswith(b"crawl-data/CC-MAIN-2024-18")
        # The latest snapshot is another one by now, but this folder continues with its own.
        server.files["/collinfo.json"] = json.dumps([{"id": "CC-MAIN-2024-22"}]).encode()
        capsys.readouterr()
        assert main([*command[:-2], "--output", str(tmp_path / "b"), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["present"] == 1
        for name, kind in (("2024", "warc"), ("../x", "warc"), ("CC-NEWS-2024-03", "wet")):
            with pytest.raises(ParameterError, match="is not a snapshot"):
                download(CommonCrawl(name, kind, base=server.url), tmp_path / "c", QUICK)
        with pytest.raises(SourceError, match=r"cannot be read: HTTP 404"):
            download(CommonCrawl("2023-01", base=server.url), tmp_path / "c", QUICK)
        server.files["/crawl-data/CC-MAIN-2024-10/warc.paths.gz"] = b"<html>an error page</html>"
        with pytest.raises(SourceError, match="not compressed with gzip"):
            download(CommonCrawl("2024-10", base=server.url), tmp_path / "c", QUICK)
        assert (
            main(
                [
                    "download",
                    "common-crawl",
                    "--snapshot",
                    "2024-18",
                    "--base",
                    server.url,
                    "--output",
                    str(tmp_path / "x"),
                ]
            )
            == 2
        )
        assert "private address" in capsys.readouterr().err


def dump(date, status, *names):
    about = {
        name: {
            "url": f"/frwiki/{date}/{name}",
            "size": len(name),
            "sha1": hashlib.sha1(name.encode()).hexdigest(),
        }
        for name in names
    }
    job = {"jobs": {"articlesmultistreamdump": {"status": status, "files": about}}}
    return {f"/frwiki/{date}/dumpstatus.json": json.dumps(job).encode()} | {
        about[name]["url"]: name.encode() for name in names
    }


@pytest.mark.parametrize("files", [{"a.xml.bz2": {"url": "/a.xml.bz2", "size": 1}}, ["a.xml.bz2"], None])
def test_a_dump_whose_status_lacks_something_is_an_error(tmp_path, files):
    status = {"jobs": {"articlesmultistreamdump": {"status": "done", "files": files}}}
    server = FileServer({"/frwiki/20240301/dumpstatus.json": json.dumps(status).encode()})
    with server, pytest.raises(SourceError, match=r"not in the expected form|is not complete"):
        download(WikipediaDump("fr", "20240301", base=server.url), tmp_path, QUICK)


def test_wikipedia(tmp_path):
    parts = [f"frwiki-20240301-pages-articles-multistream{n}.xml.bz2" for n in (10, 9)]
    index = "frwiki-20240301-pages-articles-multistream-index9.txt.bz2"
    files = dump("20240301", "done", *parts, index) | dump("20240320", "in-progress")
    files["/frwiki/"] = b'<a href="20240301/">x</a> <a href="20240320/">y</a> <a href="latest/">z</a>'
    with FileServer(files) as server:
        order = []
        report = download(
            WikipediaDump("fr", base=server.url),
            tmp_path,
            Limits(allow_private=True, concurrency=1),
            on_file=lambda name, outcome, size: order.append(name),
        )
        assert report.ok
        assert order == parts[::-1]  # the newest dump is not complete; 9 comes before 10; the index is not needed
        with pytest.raises(SourceError, match="20240320 of frwiki is not complete"):
            download(WikipediaDump("fr", "20240320", base=server.url), tmp_path / "b", QUICK)
        server.files[f"/frwiki/20240301/{parts[0]}"] = b"x" * len(parts[0])
        found = download(WikipediaDump("fr", "20240301", base=server.url), tmp_path / "c", QUICK)
        assert list(found.failed.values()) == ["does not match its checksum"]
        with pytest.raises(ParameterError, match="is not a dump"):
            download(WikipediaDump("../x", base=server.url), tmp_path / "d", QUICK)


def manifest(files):
    entries = "".join(
        f"<file><filename>{name}</filename><md5sum>{hashlib.md5(data).hexdigest()}</md5sum>"
        f"<size>{len(data)}</size><yymm>{name[-12:-8]}</yymm></file>"
        for name, data in files.items()
    )
    return f"<?xml version='1.0'?><arXivSRC>{entries}</arXivSRC>".encode()


PAPERS = {"src/arXiv_src_2404_001.tar": b"april", "src/arXiv_src_2403_001.tar": b"march" * 5000}


def test_arxiv_from_a_mirror(tmp_path):
    files = {f"/{name}": data for name, data in PAPERS.items()} | {"/src/arXiv_src_manifest.xml": manifest(PAPERS)}
    with FileServer(files) as server:
        report = download(ArxivSources(base=server.url, months=("2403",)), tmp_path, QUICK)
        assert (report.listed, report.downloaded) == (1, 1)
        assert (tmp_path / "arXiv_src_2403_001.tar").read_bytes() == PAPERS["src/arXiv_src_2403_001.tar"]
        server.files["/src/arXiv_src_manifest.xml"] = b'<!DOCTYPE x [<!ENTITY a "a">]><x/>'
        with pytest.raises(SourceError, match="not a manifest"):
            download(ArxivSources(base=server.url), tmp_path / "b", QUICK)


def test_arxiv_from_its_bucket(tmp_path, s3_server):
    import s3fs

    bucket = "arxiv-copy"
    system = s3fs.S3FileSystem(**s3_server.storage_options)
    system.mkdir(bucket)
    for name, data in {**PAPERS, "src/arXiv_src_manifest.xml": manifest(PAPERS)}.items():
        system.pipe_file(f"{bucket}/{name}", data)
    limits = Limits(storage_options={**s3_server.storage_options, "requester_pays": True}, retries=1, retry_wait_s=0)
    catalog = ArxivSources(base=f"s3://{bucket}")
    assert download(catalog, tmp_path, limits).ok
    assert (tmp_path / "arXiv_src_2404_001.tar").read_bytes() == b"april"
    system.rm_file(f"{bucket}/src/arXiv_src_2404_001.tar")
    (tmp_path / "arXiv_src_2404_001.tar").unlink()
    assert list(download(catalog, tmp_path, limits).failed.values()) == ["does not exist"]


@pytest.mark.parametrize("name", ["common-crawl", "wikipedia", "arxiv"])
def test_without_a_network_the_error_says_what_cannot_be_reached(name, tmp_path, capsys):
    options = ["--base", "http://127.0.0.1:9/", "--allow-private", "--ignore-robots", "--retries", "0"]
    snapshot = ["--snapshot", "2024-10"] if name == "common-crawl" else []
    assert main(["download", name, *snapshot, *options, "--output", str(tmp_path)]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "cannot be read: connection failed" in error
    assert "whether the host can be reached" in error
